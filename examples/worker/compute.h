/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_COMPUTE_H
#define KVT_WORKER_COMPUTE_H

/**
 * @file compute.h
 * What a forward pass is computed with: a CPU core, or a CUDA device. The order of layers is in
 * forward.c, the same for both.
 *
 * Numbers lie where they are computed with: what reserve() gives is an address there, from which
 * only operations read. Weights are named by where they lie in the model's file.
 *
 * Operations follow each other. On a device they are queued on one stream, and nobody waits but
 * read() and wait(). An operation that fails says so in `error` and `why`; those after it do
 * nothing.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvt_kernels.h"
#include "model.h"

/* Positions of one matrix product, however many there are to compute: see forward.h. */
#define ROW_BLOCK 16u

#define RMS_EPSILON 1e-5f
#define ROPE_BASE 10000.0f

struct compute;

/** Sizes are in elements. `to` never overlaps another operand, where there is one. */
struct compute_ops {
	/** End: waits for what is queued. */
	void (*close)(struct compute *compute);
	/** Memory for n numbers, all 0; NULL if there is none. release() takes NULL, too. */
	float *(*reserve)(struct compute *compute, size_t n);
	void (*release)(struct compute *compute, float *memory);
	/** From here to there; `from` may be reused at once. */
	void (*write)(struct compute *compute, void *to, const void *from, size_t bytes);
	/** From there to here, when everything before is done. 0, or the first error of all. */
	int (*read)(struct compute *compute, void *to, const void *from, size_t bytes);
	/** For everything before, whatever operation failed. 0, or a negative errno: the device has
	 * failed, and none of what is queued is done any more. */
	int (*wait)(struct compute *compute);
	void (*zero)(struct compute *compute, float *to, size_t n);
	/** to[i] = table[tokens[i]], rows of dim; tokens are there, the table is a weight. */
	void (*embed)(struct compute *compute, float *to, const float *table,
		      const uint32_t *tokens, uint32_t n, uint32_t dim);
	void (*rms_norm)(struct compute *compute, float *to, const float *from,
			 const float *weight, uint32_t n_rows, uint32_t dim);
	/** to[row][n_out] = from[row][n_in] * weight[n_out][n_in]^T, ROW_BLOCK rows a call of the
	 * library that multiplies; n_rows is a multiple of that. */
	void (*product)(struct compute *compute, float *to, const float *from, const float *weight,
			uint32_t n_rows, uint32_t n_in, uint32_t n_out);
	/** Rotate neighbouring pairs of each head by an angle that grows with the position, which
	 * is `position` in the first row. */
	void (*rotate)(struct compute *compute, float *x, uint32_t n_rows, uint32_t width,
		       uint32_t head_dim, uint32_t position);
	/** gate = silu(gate) * up */
	void (*swiglu)(struct compute *compute, float *gate, const float *up, size_t n);
	void (*add)(struct compute *compute, float *to, const float *from, size_t n);
	/** As elements of a type of enum kvt_attn_type, rounded to nearest even. */
	void (*round)(struct compute *compute, void *to, const float *from, size_t n,
		      uint32_t type);
};

#define COMPUTE_ARITHMETIC_BYTES 320

struct compute {
	const struct compute_ops *ops;
	struct kvt_attn_context *attention;
	void *stream; /* of everything: a CUstream, NULL on the CPU */
	char arithmetic[COMPUTE_ARITHMETIC_BYTES]; /* what decides about the bits, in words */
	int error;    /* negative errno; 0 while all is well */
	char why[WORKER_WHY_BYTES];
};

/** Whether this program can, as far as it was built: the rest shows when it is opened. */
bool compute_cpu_is_built(void);
bool compute_cuda_is_built(void);

/** Ready to compute with a model, which stays open as long. 0, or a negative errno with why, which
 * has WORKER_WHY_BYTES. compute_close() takes NULL, too. */
int compute_cpu_open(const struct model *model, struct compute **ret_compute, char *why);
int compute_cuda_open(const struct model *model, uint32_t device, struct compute **ret_compute,
		      char *why);
void compute_close(struct compute *compute);

/** Note an error, unless there is one: `why` is cause and cure. */
void compute_fail(struct compute *compute, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** K and V of n new positions into slots of the pages, and then their attention. */
void compute_attention(struct compute *compute, const struct kvt_attn_append *append,
		       const struct kvt_attn_prefill *prefill);

#endif
