/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_REPLAY_PRIVATE_H
#define KVT_LAB_REPLAY_PRIVATE_H

/**
 * @file private.h
 * What a trace would hit without kvtrunk: simulated caches, one request at a time.
 *
 * A pool here is a page cache with per-page LRU under one worker. It keeps to the trunk's rules:
 * whole pages, at least one position left to compute, the matched path locked meanwhile, input
 * and output pages held until the end, eviction of the oldest path from its last page. So one
 * pool of the whole size is also a prediction of what a lockstep replay must measure.
 */

#include "lab/trace/tree.h"

enum kvt_private_router {
	KVT_ROUTER_ONE = 0,         /* one pool of the whole size: an ideal trunk */
	KVT_ROUTER_ROUND_ROBIN = 1, /* request i to pool i mod N */
	KVT_ROUTER_STICKY = 2,      /* session s to pool s mod N */
	KVT_ROUTERS = 3,
};

struct kvt_private_result {
	uint64_t input_positions;
	uint64_t hit_positions;
	uint64_t evictions; /* pages */
	uint32_t refused;
};

struct kvt_private_options {
	uint32_t page_size;
	uint32_t usable_pages; /* of all pools together */
	uint32_t n_pools;      /* of ROUND_ROBIN and STICKY */
	uint32_t n_namespaces; /* session modulo this */
};

/** Simulate all routers in one pass. `progress` may be NULL. 0, -ENOMEM, -ECANCELED. */
int kvt_private_simulate(const struct kvt_trace *trace, const struct kvt_private_options *options,
			 struct kvt_private_result ret_results[KVT_ROUTERS],
			 kvt_trace_progress_fn *progress, void *context);

/* ---- the flat cache of hash-chained blocks ---- */

struct kvt_flat;

/** Create a cache of `capacity` blocks (0: no limit), each keyed by the hash of itself and all
 * before it. There are no paths: a block's age is that of its last use, in prompt order. NULL: no
 * memory. */
struct kvt_flat *kvt_flat_create(uint32_t block, uint32_t capacity);
void kvt_flat_destroy(struct kvt_flat *flat);

/** Serve one prompt. *ret_cached: positions that were cached. Afterwards its whole blocks are; they
 * are not evicted for each other. 0, -ENOSPC (does not fit) or -ENOMEM. */
int kvt_flat_serve(struct kvt_flat *flat, const uint32_t *keys, uint32_t n_keys,
		   uint32_t *ret_cached);

#endif
