/* SPDX-License-Identifier: Apache-2.0 */

/* Computes on one core: matrix products by OpenBLAS, the rest in plain C.
 *
 * Inputs: the operations of compute.h. Invariants: nothing is ever queued; one thread and a fixed
 * order of sums, so equal shapes give equal bits. Caller: through compute_ops. */

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compute.h"
#include "kernels/convert.h"

/* Declared here: cblas.h may be the reference BLAS's where both are installed. */
char *openblas_get_config(void);
void openblas_set_num_threads(int n_threads);

#define BLAS_MIB 160   /* it takes a little over 128 */
#define BLAS_FIRST 128 /* rows and columns: smaller products may need none */

static void cpu_close(struct compute *compute)
{
	kvt_attn_close(compute->attention);
	free(compute);
}

static float *cpu_reserve(struct compute *compute, size_t n)
{
	(void)compute;
	return calloc(n, sizeof(float));
}

static void cpu_release(struct compute *compute, float *memory)
{
	(void)compute;
	free(memory);
}

static void cpu_write(struct compute *compute, void *to, const void *from, size_t bytes)
{
	(void)compute;
	memcpy(to, from, bytes);
}

static int cpu_read(struct compute *compute, void *to, const void *from, size_t bytes)
{
	if (!compute->error)
		memcpy(to, from, bytes);
	return compute->error;
}

static int cpu_wait(struct compute *compute)
{
	(void)compute;
	return 0;
}

static void cpu_zero(struct compute *compute, float *to, size_t n)
{
	(void)compute;
	memset(to, 0, n * sizeof(float));
}

static void cpu_embed(struct compute *compute, float *to, const float *table,
		      const uint32_t *tokens, uint32_t n, uint32_t dim)
{
	(void)compute;
	for (uint32_t i = 0; i < n; i++)
		memcpy(to + (size_t)i * dim, table + (size_t)tokens[i] * dim, dim * sizeof(float));
}

static void cpu_rms_norm(struct compute *compute, float *to, const float *from,
			 const float *weight, uint32_t n_rows, uint32_t dim)
{
	(void)compute;
	for (uint32_t row = 0; row < n_rows; row++) {
		const float *x = from + (size_t)row * dim;
		float *y = to + (size_t)row * dim, sum = 0.0f, scale;

		for (uint32_t i = 0; i < dim; i++)
			sum += x[i] * x[i];
		scale = 1.0f / sqrtf(sum / (float)dim + RMS_EPSILON);
		for (uint32_t i = 0; i < dim; i++)
			y[i] = weight[i] * (scale * x[i]);
	}
}

static void cpu_product(struct compute *compute, float *to, const float *from,
			const float *weight, uint32_t n_rows, uint32_t n_in, uint32_t n_out)
{
	(void)compute;
	for (uint32_t row = 0; row < n_rows; row += ROW_BLOCK)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROW_BLOCK, (int)n_out,
			    (int)n_in, 1.0f, from + (size_t)row * n_in, (int)n_in, weight,
			    (int)n_in, 0.0f, to + (size_t)row * n_out, (int)n_out);
}

static void cpu_rotate(struct compute *compute, float *x, uint32_t n_rows, uint32_t width,
		       uint32_t head_dim, uint32_t position)
{
	(void)compute;
	for (uint32_t row = 0; row < n_rows; row++, x += width)
		for (uint32_t i = 0; i < width; i += 2) {
			float exponent = (float)(i % head_dim) / (float)head_dim;
			float frequency = 1.0f / powf(ROPE_BASE, exponent);
			float angle = (float)(position + row) * frequency;
			float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];

			x[i] = a * c - b * s;
			x[i + 1] = a * s + b * c;
		}
}

static void cpu_swiglu(struct compute *compute, float *gate, const float *up, size_t n)
{
	(void)compute;
	for (size_t i = 0; i < n; i++)
		gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void cpu_add(struct compute *compute, float *to, const float *from, size_t n)
{
	(void)compute;
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

static void cpu_round(struct compute *compute, void *to, const float *from, size_t n,
		      uint32_t type)
{
	(void)compute;
	for (size_t i = 0; i < n; i++)
		kvt_element_store((char *)to + i * kvt_type_size(type), type, from[i]);
}

static const struct compute_ops cpu_ops = {
	.close = cpu_close,
	.reserve = cpu_reserve,
	.release = cpu_release,
	.write = cpu_write,
	.read = cpu_read,
	.wait = cpu_wait,
	.zero = cpu_zero,
	.embed = cpu_embed,
	.rms_norm = cpu_rms_norm,
	.product = cpu_product,
	.rotate = cpu_rotate,
	.swiglu = cpu_swiglu,
	.add = cpu_add,
	.round = cpu_round,
};

bool compute_cpu_is_built(void)
{
	return true;
}

/* Make OpenBLAS take its working memory now, before pools and buffers. It takes it at its first
 * product, and without it retries for ever. */
static int take_blas_memory(void)
{
	size_t bytes = (size_t)BLAS_MIB << 20, n = BLAS_FIRST;
	void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	float *square = calloc(3 * n * n, sizeof(*square));

	if (room != MAP_FAILED)
		munmap(room, bytes);
	if (room != MAP_FAILED && square)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, BLAS_FIRST, BLAS_FIRST,
			    BLAS_FIRST, 1.0f, square, BLAS_FIRST, square + n * n, BLAS_FIRST, 0.0f,
			    square + 2 * n * n, BLAS_FIRST);
	free(square);
	return room != MAP_FAILED && square ? 0 : -ENOMEM;
}

int compute_cpu_open(const struct model *model, struct compute **ret_compute, char *why)
{
	struct kvt_attn_options options = { .n_threads = 1 };
	struct compute *compute = calloc(1, sizeof(*compute));
	int error = -ENOMEM;

	(void)model; /* its weights are readable in place */
	if (!compute) {
		snprintf(why, WORKER_WHY_BYTES, "no memory");
		return error;
	}
	/* One core for a worker, and a fixed order of sums. */
	openblas_set_num_threads(1);
	if (take_blas_memory() != 0) {
		snprintf(why, WORKER_WHY_BYTES, "no memory for OpenBLAS, which takes %u MiB of "
			 "address space: raise the limit (ulimit -v)", BLAS_MIB);
		free(compute);
		return -ENOMEM;
	}
	compute->ops = &cpu_ops;
	error = kvt_attn_open(&options, &compute->attention, why, WORKER_WHY_BYTES);
	if (error) {
		free(compute);
		return error;
	}
	snprintf(compute->arithmetic, sizeof(compute->arithmetic), "%s; %s",
		 kvt_attn_describe(compute->attention), openblas_get_config());
	*ret_compute = compute;
	return 0;
}
