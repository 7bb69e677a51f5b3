/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ANALYZE_STACK_H
#define KVT_LAB_ANALYZE_STACK_H

/**
 * @file stack.h
 * Hit rates of pools of every size, in one pass over a batch.
 *
 * LRU has the inclusion property, also as kvtrunk does it: whole pages, a path touched from its
 * end, the matched path locked, input and output held to the end. What a pool holds is the youngest
 * part of what a larger one holds. So one list of all resting pages, by last use, serves all sizes,
 * and a size is how many of them it still has. With one request at a time this equals a lockstep
 * replay exactly. With more, requests end in the order in which they began.
 */

#include "lab/analyze/batch.h"

/** A pool under study. */
struct kvt_stack_size {
	uint32_t usable_pages; /* at least kvt_stack_result.window_pages */
	uint64_t hit_positions; /* answer */
};

struct kvt_stack_result {
	/* Most pages that requests hold at once, input and output. */
	uint32_t window_pages;
	/* The smallest pool that hits as an endless one does. */
	uint32_t need_pages;
	uint64_t hit_positions; /* of an endless pool */
};

/** Run the requests in this order (NULL: as the trace has them), `concurrency` of them at once. 0
 * or -ENOMEM. */
int kvt_stack_run(const struct kvt_batch *batch, const uint32_t *order, uint32_t concurrency,
		  struct kvt_stack_size *sizes, uint32_t n_sizes,
		  struct kvt_stack_result *ret_result);

#endif
