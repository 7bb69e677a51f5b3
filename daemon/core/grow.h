/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_GROW_H
#define KVT_CORE_GROW_H

/**
 * @file grow.h
 * New runs in the tree: count what they need, make sure that it is there, then change.
 */

#include "daemon/core/walk.h"

/** How much of what a new path needs. */
struct kvt_need {
	uint32_t root;  /* 0 or 1 */
	uint32_t split; /* 0 or 1 */
	uint32_t runs;  /* nodes for the new run, as slots are free now */
	uint32_t spare; /* 1: pages are evicted after this, and the last victim keeps its node */
	uint32_t new_pages; /* what `runs` was computed from */
	uint32_t evict_pages; /* pages that will be evicted after this; each but a side page gives a
				 slot, too */
	uint32_t wish;
	uint32_t path_nodes; /* unlocked nodes on the path: not to be evicted for it */
	uint64_t path_pages; /* evictable pages that would become locked */
};

/** Make the root of a namespace that has none, or a stale one. */
uint32_t kvt_root_make(struct kvt_core *core, uint32_t namespace_id);
/** Count what n new pages at the end of a walk need. `exact`: a node must end there. */
void kvt_need_compute(struct kvt_core *core, const struct kvt_walk *walk, uint32_t new_pages,
		      bool exact, struct kvt_need *need);
/** Make sure that the nodes needed are free, evicting leaves off the path. -ENOSPC: impossible, and
 * nothing happened. */
int kvt_need_nodes(struct kvt_core *core, uint32_t path_node, struct kvt_need *need);
/** Copy the first page of keys after a walk into core->first_page, and return whether it is new
 * there. Judging the copy prevents a TOCTOU race: from here on the shape of the tree does not
 * depend on memory that a client can change. */
bool kvt_walk_ends_new(struct kvt_core *core, const struct kvt_op_context *op,
		       const struct kvt_walk *walk);
/** Split where a walk ended inside a node; returns the node that ends exactly there. */
uint32_t kvt_walk_cut(struct kvt_core *core, struct kvt_walk *walk);
/** Lengthen a run in place by n announced pages; the slots behind it must be free. */
void kvt_grow_run(struct kvt_core *core, uint32_t node, const uint32_t *keys, uint32_t n);
/** Add n announced pages under `parent`, with `root_key` if that is a root. `first` is a private
 * copy of the first page of keys, `keys` has all of them. Returns the deepest new node. */
uint32_t kvt_grow(struct kvt_core *core, uint32_t parent, uint64_t root_key,
		  const uint32_t *first, const uint32_t *keys, uint32_t n, int32_t priority,
		  uint64_t expiry_ns);

#endif
