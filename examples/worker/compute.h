/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_COMPUTE_H
#define KVT_WORKER_COMPUTE_H

/**
 * @file compute.h
 * The operations of a forward pass on a CPU core or a CUDA device. The order of layers is in
 * forward.c, the same for both.
 *
 * Numbers lie in the memory that computes: reserve() returns an address there, from which
 * only operations read. Weights are named by their address in the model's file.
 *
 * Operations run in order. On a device they are queued on one stream; only
 * read() and wait() wait. An operation that fails sets `error` and `why`; later ones do
 * nothing.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvt_kernels.h"
#include "model.h"

/* Positions of one matrix product, always: see forward.h. */
#define ROW_BLOCK 16u

#define RMS_EPSILON 1e-5f
#define ROPE_BASE 10000.0f

struct compute;

/** Sizes are in elements. `to` never overlaps another operand. */
struct compute_ops {
	/** Close. Waits for queued work. */
	void (*close)(struct compute *compute);
	/** Allocate n numbers, all 0. NULL: no memory. release() accepts NULL. */
	float *(*reserve)(struct compute *compute, size_t n);
	void (*release)(struct compute *compute, float *memory);
	/** Copy from the host; `from` may be reused at once. */
	void (*write)(struct compute *compute, void *to, const void *from, size_t bytes);
	/** Copy to the host once all earlier work is done. 0, or the first error. */
	int (*read)(struct compute *compute, void *to, const void *from, size_t bytes);
	/** Wait for all earlier work, even after an error. 0, or a negative errno: the device has
	 * failed and runs none of the queued work any more. */
	int (*wait)(struct compute *compute);
	void (*zero)(struct compute *compute, float *to, size_t n);
	/** to[i] = table[tokens[i]], rows of dim; tokens are on the device, the table is a
	 * weight. */
	void (*embed)(struct compute *compute, float *to, const float *table,
		      const uint32_t *tokens, uint32_t n, uint32_t dim);
	void (*rms_norm)(struct compute *compute, float *to, const float *from,
			 const float *weight, uint32_t n_rows, uint32_t dim);
	/** to[row][n_out] = from[row][n_in] * weight[n_out][n_in]^T, ROW_BLOCK rows in each library
	 * call; n_rows is a multiple of that. */
	void (*product)(struct compute *compute, float *to, const float *from, const float *weight,
			uint32_t n_rows, uint32_t n_in, uint32_t n_out);
	/** Rotate neighbouring pairs of each head by an angle that grows with the position, which
	 * is `position` in the first row. */
	void (*rotate)(struct compute *compute, float *x, uint32_t n_rows, uint32_t width,
		       uint32_t head_dim, uint32_t position);
	/** gate = silu(gate) * up */
	void (*swiglu)(struct compute *compute, float *gate, const float *up, size_t n);
	void (*add)(struct compute *compute, float *to, const float *from, size_t n);
	/** Convert to a type of enum kvt_attn_type, rounded to nearest even. */
	void (*round)(struct compute *compute, void *to, const float *from, size_t n,
		      uint32_t type);
};

#define COMPUTE_ARITHMETIC_BYTES 320

struct compute {
	const struct compute_ops *ops;
	struct kvt_attn_context *attention;
	void *stream; /* of all operations: a CUstream, NULL on the CPU */
	char arithmetic[COMPUTE_ARITHMETIC_BYTES]; /* what determines the bits, in words */
	int error;    /* negative errno; 0 while all is well */
	char why[WORKER_WHY_BYTES];
};

/** True if this build can compute there; other obstacles show on opening. */
bool compute_cpu_is_built(void);
bool compute_cuda_is_built(void);

/** Open for a model, which must stay open. 0, or a negative errno with why, which has
 * WORKER_WHY_BYTES. compute_close() accepts NULL. */
int compute_cpu_open(const struct model *model, struct compute **ret_compute, char *why);
int compute_cuda_open(const struct model *model, uint32_t device, struct compute **ret_compute,
		      char *why);
void compute_close(struct compute *compute);

/** Record the first error: `why` is cause and cure. */
void compute_fail(struct compute *compute, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** Write K and V of n new positions into their pages, then compute their attention. */
void compute_attention(struct compute *compute, const struct kvt_attn_append *append,
		       const struct kvt_attn_prefill *prefill);

#endif
