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
	struct kvt_attn_view *views; /* one for each layer */
	uint32_t page_size;
	uint32_t max_rows; /* of a chunk, padding included */
	/* In the computing memory: */
	float *x, *normed, *q, *k, *v, *out, *gate, *up, *last;
	void *q_rounded; /* queries in the KV's type; q itself for fp32 */
	uint32_t *there; /* tokens */
	/* On the host: */
	float *logits;
	uint64_t *slots;
	uint32_t last_row; /* of the last chunk */
};

/** Prepare for chunks of at most `chunk` positions on the pages of `views`, one for each layer
 * (copied), on the device of `compute`. 0 or a negative errno with why. */
int forward_open(struct forward *forward, const struct model *model, struct compute *compute,
		 const struct kvt_attn_view *views, uint32_t chunk, char *why);
/** Close. Waits for queued work. */
void forward_close(struct forward *forward);

/** Compute positions [start, start + n) of a sequence; pages hold each position's KV. KV of earlier
 * positions must be there. On a device this is queued: later errors are told by forward_logits().
 * 0, or a negative errno with why. */
int forward_queue(struct forward *forward, const uint32_t *tokens, uint32_t start, uint32_t n,
		  const uint32_t *pages, uint32_t n_pages, char *why);
/** Return the logits of the last chunk's last position, valid until the next call, or NULL with
 * why. Waits for queued work. */
const float *forward_logits(struct forward *forward, char *why);
/** Queue and return the logits. */
const float *forward_run(struct forward *forward, const uint32_t *tokens, uint32_t start,
			 uint32_t n, const uint32_t *pages, uint32_t n_pages, char *why);

#endif
