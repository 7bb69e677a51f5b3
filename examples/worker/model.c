/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtrunk_keys.h"

#define HEADER_WORDS 7

static int __attribute__((format(printf, 3, 4))) fail(char *why, int error, const char *format,
						      ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(why, WORKER_WHY_BYTES, format, args);
	va_end(args);
	return error;
}

static int map_file(const char *path, void **ret_map, size_t *ret_bytes, char *why)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), error; /* no wait on a FIFO */
	struct stat stat = { 0 };
	void *map;

	if (fd < 0)
		return fail(why, -errno, "%s: %s", path, strerror(errno));
	if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_size < HEADER_WORDS * 4) {
		close(fd);
		return fail(why, -EINVAL, "%s: %s", path, S_ISREG(stat.st_mode)
			    ? "too short to be a model" : "not a file that can be mapped");
	}
	map = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	error = errno;
	close(fd);
	if (map == MAP_FAILED)
		return fail(why, -error, "%s: cannot be mapped: %s", path, strerror(error));
	*ret_map = map;
	*ret_bytes = (size_t)stat.st_size;
	return 0;
}

/** True if the header can be a model's, so that no size below overflows. */
static bool plausible(const struct model *m)
{
	return m->dim > 0 && m->dim <= 16384 && m->hidden_dim > 0 && m->hidden_dim <= 65536 &&
	       m->n_layers > 0 && m->n_layers <= 256 && m->n_heads > 0 && m->n_heads <= 256 &&
	       m->n_kv_heads > 0 && m->n_kv_heads <= m->n_heads &&
	       m->n_heads % m->n_kv_heads == 0 && m->dim % m->n_heads == 0 &&
	       m->dim / m->n_heads % 2 == 0 && m->dim / m->n_heads <= 256 && m->vocab_size > 2 &&
	       m->vocab_size <= 1u << 20 && m->context > 0 && m->context <= 1u << 20;
}

static const float *take(const float **at, size_t n)
{
	const float *from = *at;

	*at += n;
	return from;
}

/** Point the tensors into the file. Returns their floats. */
static size_t lay_tensors(struct model *m, const float *base, bool shared)
{
	const float *at = base;
	size_t layers = m->n_layers, dim = m->dim;

	m->embedding = take(&at, m->vocab_size * dim);
	m->rms_attention = take(&at, layers * dim);
	m->wq = take(&at, layers * dim * dim);
	m->wk = take(&at, layers * dim * m->kv_dim);
	m->wv = take(&at, layers * dim * m->kv_dim);
	m->wo = take(&at, layers * dim * dim);
	m->rms_ffn = take(&at, layers * dim);
	m->w1 = take(&at, layers * dim * m->hidden_dim);
	m->w2 = take(&at, layers * dim * m->hidden_dim);
	m->w3 = take(&at, layers * dim * m->hidden_dim);
	m->rms_final = take(&at, dim);
	take(&at, (size_t)m->context * m->head_dim); /* the rotary tables: unused */
	m->classifier = shared ? m->embedding : take(&at, m->vocab_size * dim);
	return (size_t)(at - base);
}

int model_open(struct model *model, const char *path, char *why)
{
	struct model m = { 0 };
	const int32_t *header;
	size_t floats, bytes;
	bool shared;
	int error = map_file(path, &m.map, &m.map_bytes, why);

	if (error)
		return error;
	header = m.map;
	m.dim = (uint32_t)header[0];
	m.hidden_dim = (uint32_t)header[1];
	m.n_layers = (uint32_t)header[2];
	m.n_heads = (uint32_t)header[3];
	m.n_kv_heads = (uint32_t)header[4];
	shared = header[5] > 0;
	m.vocab_size = shared ? (uint32_t)header[5] : 0u - (uint32_t)header[5];
	m.context = (uint32_t)header[6];
	if (!plausible(&m)) {
		munmap(m.map, m.map_bytes);
		return fail(why, -EINVAL, "%s: not a llama2.c model, version 0: its header "
			    "makes no sense", path);
	}
	m.head_dim = m.dim / m.n_heads;
	m.kv_dim = m.head_dim * m.n_kv_heads;
	floats = lay_tensors(&m, (const float *)(header + HEADER_WORDS), shared);
	bytes = HEADER_WORDS * 4 + floats * sizeof(float);
	if (bytes != m.map_bytes) {
		munmap(m.map, m.map_bytes);
		return fail(why, -EINVAL, "%s: %s: its header promises %zu bytes, it has %zu", path,
			    bytes > m.map_bytes ? "cut short" : "not a llama2.c model, version 0",
			    bytes, m.map_bytes);
	}
	kvt_image_hash(m.map, m.map_bytes, m.digest);
	*model = m;
	return 0;
}

void model_close(struct model *model)
{
	if (model->map)
		munmap(model->map, model->map_bytes);
	model->map = NULL;
}
