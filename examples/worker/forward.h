/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_FORWARD_H
#define KVT_WORKER_FORWARD_H

/**
 * @file forward.h
 * One forward pass over new positions whose KV goes into pages of a pool.
 *
 * The same position gives the same bits whatever else is computed with it: attention promises
 * that (kvt_kernels.h), and matrix products are always called for whole blocks of ROW_BLOCK
 * positions, aligned to position 0, each position in its own row, the rest zero.
 */

#include <stdint.h>

#include "compute.h"
#include "kvt_kernels.h"
#include "model.h"

struct forward {
	const struct model *model;
	struct compute *compute;
	struct compute *own;         /* the same, if it ends with this */
	struct kvt_attn_view *views; /* one for each layer */
	uint32_t page_size;
	uint32_t max_rows; /* of a chunk, padding included */
	/* Where it is computed. */
	float *x, *normed, *q, *k, *v, *out, *gate, *up, *last;
	void *q_rounded; /* the queries as the KV's type: q itself for fp32 */
	uint32_t *there; /* tokens */
	/* Here. */
	float *logits;
	uint64_t *slots;
	uint32_t last_row; /* of what was computed last */
};

/** What a page of this model's KV is: fp32, page-major, HND. */
void forward_geometry(const struct model *model, uint32_t page_size, uint32_t n_pages,
		      struct kvt_attn_geometry *ret_geometry);

/** Prepare for chunks of at most `chunk` positions on pages that `views` describe, one for each
 * layer (copied), which are of the device that `compute` computes on. 0 or a negative errno with
 * why. */
int forward_open_views(struct forward *forward, const struct model *model, struct compute *compute,
		       const struct kvt_attn_view *views, uint32_t chunk, char *why);
/** On the CPU, and on a slab of the caller's own, as forward_geometry() says. */
int forward_open(struct forward *forward, const struct model *model, uint32_t page_size,
		 uint32_t n_pages, void *slab, uint64_t slab_bytes, uint32_t chunk, char *why);
/** Waits for what is queued. */
void forward_close(struct forward *forward);

/** Compute positions [start, start + n) of a sequence; pages name where each position's KV is.
 * KV of earlier positions must be there. On a device this is queued: what fails later is told by
 * forward_logits(). 0, or a negative errno with why. */
int forward_queue(struct forward *forward, const uint32_t *tokens, uint32_t start, uint32_t n,
		  const uint32_t *pages, uint32_t n_pages, char *why);
/** The logits of the last position of the last chunk, valid until the next call, or NULL with why.
 * Waits for what is queued. */
const float *forward_logits(struct forward *forward, char *why);
/** Both. */
const float *forward_run(struct forward *forward, const uint32_t *tokens, uint32_t start,
			 uint32_t n, const uint32_t *pages, uint32_t n_pages, char *why);

#endif
