/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ANALYZE_ANALYZE_H
#define KVT_LAB_ANALYZE_ANALYZE_H

/**
 * @file analyze.h
 * kvtlab analyze: what a batch would find in pools of each size, before it runs.
 */

#include "lab/analyze/stack.h"

/** Orders of the requests. */
enum kvt_analysis_order {
	KVT_AS_THEY_COME = 0,
	KVT_DEPTH_FIRST = 1,
	KVT_ORDERS = 2,
};

struct kvt_analysis {
	struct kvt_batch batch;
	uint32_t concurrency;
	uint32_t n_orders; /* 1: requests wait for each other, and keep their order */
	uint32_t *order;   /* depth first; NULL: there is none */
	struct kvt_stack_size *sizes[KVT_ORDERS]; /* ascending */
	uint32_t n_sizes;
	struct kvt_stack_result results[KVT_ORDERS];
	bool probed;
	uint32_t pool_pages;       /* of the daemon that was probed, page 0 included */
	uint64_t cached_positions; /* of the input, cached there now */
};

void kvt_analysis_print(const struct kvt_analysis *analysis);
void kvt_analysis_print_json(const struct kvt_analysis *analysis);
/** Write a picture of the hit rates, and close the file. -errno. */
int kvt_analysis_draw(const struct kvt_analysis *analysis, FILE *file);

int kvt_analyze_main(int argc, char **argv);

#endif
