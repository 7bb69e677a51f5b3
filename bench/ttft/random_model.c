/* SPDX-License-Identifier: Apache-2.0 */

/* A model with a long context: random weights, in the llama2.c format, in memory. Its text means
 * nothing, but it computes as a real one does, and every token of a prompt matters. */

#include "bench/ttft/ttft.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADS 2u
#define KV_HEADS 1u
#define HEAD_DIM 64u
#define DIM (HEADS * HEAD_DIM)
#define LAYERS 2u
#define HIDDEN 384u
/* Deviation of attention's scores over random positions: a softmax over tens of thousands then
 * weighs some dozens and still counts the rest. Less would average everything out; more would leave
 * one. */
#define SCORE_DEVIATION 2.5f
/* Weight of attention against the embedding: without it each token alone would decide the next
 * one. */
#define ATTENTION_GAIN 4.0f

struct writer {
	FILE *file;
	uint64_t random;
};

/** Write n numbers of mean 0 and this deviation. */
static void write_random(struct writer *writer, size_t n, float deviation)
{
	const float step = deviation * sqrtf(12.0f) / 65536.0f;

	for (size_t i = 0; i < n; i++) {
		float value = step * ((float)prices_random(&writer->random, 65536) - 32767.5f);

		fwrite(&value, sizeof(value), 1, writer->file);
	}
}

static void write_ones(struct writer *writer, size_t n)
{
	const float one = 1.0f;

	for (size_t i = 0; i < n; i++)
		fwrite(&one, sizeof(one), 1, writer->file);
}

/** Return the deviation of weights that keeps that of their input. */
static float keep(uint32_t n_in)
{
	return 1.0f / sqrtf((float)n_in);
}

static void write_model(struct writer *writer, uint32_t vocab_size, uint32_t context)
{
	/* Negative: a classifier of its own. The embedding would answer each token with itself. */
	const int32_t header[] = { DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, -(int32_t)vocab_size,
				   (int32_t)context };
	const size_t square = (size_t)LAYERS * DIM * DIM;
	const size_t kv = (size_t)LAYERS * DIM * KV_HEADS * HEAD_DIM;
	const size_t wide = (size_t)LAYERS * DIM * HIDDEN;

	fwrite(header, sizeof(header), 1, writer->file);
	write_random(writer, (size_t)vocab_size * DIM, 1.0f);
	write_ones(writer, (size_t)LAYERS * DIM);
	write_random(writer, square, SCORE_DEVIATION * keep(DIM));
	write_random(writer, kv, keep(DIM));
	write_random(writer, kv, keep(DIM));
	write_random(writer, square, ATTENTION_GAIN * keep(DIM));
	write_ones(writer, (size_t)LAYERS * DIM);
	write_random(writer, wide, keep(DIM));
	write_random(writer, wide, keep(HIDDEN));
	write_random(writer, wide, keep(DIM));
	write_ones(writer, DIM);
	/* The format's rotary tables, which are never read: a hole. */
	fseek(writer->file, (long)((size_t)context * HEAD_DIM * sizeof(float)), SEEK_CUR);
	write_random(writer, (size_t)vocab_size * DIM, keep(DIM));
}

void ttft_random_model_open(struct worker *worker, const struct ttft_options *options,
			    const struct worker *like, uint32_t context)
{
	static char path[64];
	int fd = memfd_create("kvtbench-ttft-model", MFD_CLOEXEC);
	struct writer writer = { .file = fd < 0 ? NULL : fdopen(fd, "w"), .random = 1 };

	if (!writer.file)
		bench_die("no memory for a model: %s", strerror(errno));
	write_model(&writer, like->model.vocab_size, context);
	if (fflush(writer.file) != 0 || ferror(writer.file))
		bench_die("no memory for a model: %s", strerror(errno));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ttft_engine_open(worker, options, path);
	fclose(writer.file); /* it stays mapped */
}
