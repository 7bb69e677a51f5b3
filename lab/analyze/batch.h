/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ANALYZE_BATCH_H
#define KVT_LAB_ANALYZE_BATCH_H

/**
 * @file batch.h
 * What the requests of a trace have in common, and an order that keeps it together.
 */

#include "lab/trace/tree.h"

struct kvt_batch {
	const struct kvt_trace *trace;
	uint32_t page_size;
	struct kvt_page_tree tree;
	uint32_t *uses; /* by page: requests whose input has it */
	uint64_t unique_positions; /* that an endless pool computes: the first copy of each */
	uint64_t shared_positions; /* those of them that two or more requests have */
};

/** Find the pages of a trace. Free it with kvt_batch_free(), also after a failure. 0, -ENOMEM,
 * -ECANCELED, -EOVERFLOW (paths of 2^32 pages together). */
int kvt_batch_create(struct kvt_batch *batch, const struct kvt_trace *trace, uint32_t page_size,
		     kvt_trace_progress_fn *progress, void *context);
void kvt_batch_free(struct kvt_batch *batch);

/** Write the requests depth first through the tree, children in order of appearance. Then all that
 * a request shares with any before it, it shares with the one in front of it. 0 or -ENOMEM. */
int kvt_batch_order(const struct kvt_batch *batch, uint32_t *ret_order);

#endif
