/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_TREE_H
#define KVT_CORE_TREE_H

/**
 * @file tree.h
 * Nodes and paths of them.
 */

#include "daemon/core/state.h"

/** Take a free node, there must be one: no run, no locks, not linked. */
uint32_t kvt_node_make(struct kvt_core *core, uint32_t namespace_id, uint32_t parent);
/** Between write_begin and write_end: have a node be found with this root key, 0: without one. */
void kvt_node_set_root_key(struct kvt_core *core, uint32_t id, uint64_t root_key);
/** Make a node with its run findable. */
void kvt_node_link(struct kvt_core *core, uint32_t node);
/** Take it out of the index and of its parent's children; locks still go up through it. */
void kvt_node_unlink(struct kvt_core *core, uint32_t node);
/** Free a root that has no children, locks or pin. No root: nothing. */
void kvt_root_prune(struct kvt_core *core, uint32_t root);
/** Take a root off its namespace: it is detached or gone. */
void kvt_root_leave(struct kvt_core *core, uint32_t root);

/** Give the first `pages` pages to a new upper node; `node` keeps its id and the rest. */
uint32_t kvt_node_split(struct kvt_core *core, uint32_t node, uint32_t pages);
/** Join neighbouring runs: `lower` keeps its id, so locks and handles name the same prefix. */
void kvt_node_merge(struct kvt_core *core, uint32_t upper, uint32_t lower);
/** Take the last n pages off an unlocked, sealed leaf, and their side pages. With no page left the
 * leaf is freed. `why` chooses the counter of the pages: the flags of the leaf's detached top, or 0
 * to evict. Returns how many pages became free. */
uint32_t kvt_node_trim(struct kvt_core *core, uint32_t node, uint32_t n, uint32_t why);
/** The fewest last pages of a node that are `most` pages with their side pages, or more; all if
 * they are fewer. */
uint32_t kvt_node_last(const struct kvt_core *core, uint32_t node, uint32_t most);
/** Give the first announced slot of a node its page: readers see it from now on. Count it with
 * kvt_node_sealed(). */
void kvt_node_seal(struct kvt_core *core, uint32_t node, uint32_t page);
/** Count the pages of a node that were sealed since the last call. */
void kvt_node_sealed(struct kvt_core *core, uint32_t node, uint32_t pages);
/** Set when a node expires, KVT_NEVER included. */
void kvt_node_set_expiry(struct kvt_core *core, uint32_t node, uint64_t expiry_ns);

/** Lock every node from `node` up to, not including, `until`. */
void kvt_path_lock(struct kvt_core *core, uint32_t node, uint32_t until);
/** Unlock a whole path: a touch. Cuts unsealed tails of nodes that lose their last lock. */
void kvt_path_unlock(struct kvt_core *core, uint32_t node);
/** Make a path the youngest, deepest node first. */
void kvt_path_touch(struct kvt_core *core, uint32_t node);
/** Keep eviction off a path, or let it on again. */
void kvt_path_pin(struct kvt_core *core, uint32_t node, bool on);
/** Count a hit on each node of a path. */
void kvt_path_count_use(struct kvt_core *core, uint32_t node);
/** Raise priority and expiry along a path; neither is ever lowered. */
void kvt_path_raise(struct kvt_core *core, uint32_t node, int32_t priority, uint64_t expiry_ns);
/** True if the path to a node is detached, or of an earlier epoch. */
bool kvt_path_detached(const struct kvt_core *core, uint32_t node);
/** True if a page of the path was removed because it was written after it was sealed. */
bool kvt_path_damaged(const struct kvt_core *core, uint32_t node);
/** Copy the pages [0, pages) of the path to `node` into list. */
void kvt_path_pages(const struct kvt_core *core, uint32_t node, uint32_t pages, uint32_t *list);
/** The page in front of page `at` of a node's run; 0 at a root, or if the path above is gone. */
static inline uint32_t kvt_page_before(const struct kvt_core *core, const struct kvt_node *node,
				       uint32_t at)
{
	const struct kvt_node *up;

	if (at > 0)
		return core->slot_pages[node->first_slot + at - 1];
	if (node->parent == KVT_NONE)
		return 0;
	up = kvt_node_at(core, node->parent);
	return up->n_slots ? core->slot_pages[up->first_slot + up->n_slots - 1] : 0;
}

/** Note who sealed more pages of a node, which had `sealed` ones. */
static inline void kvt_sealer_note(struct kvt_core *core, uint32_t node, uint32_t sealed,
				   uint32_t sealer)
{
	if (sealed == 0)
		core->sealers[node] = sealer;
	else if (core->sealers[node] != sealer)
		core->sealers[node] = KVT_SEALERS_MANY;
}

/** How many of the first `pages` pages of a path another session than `sealer` is known to have
 * sealed. */
uint32_t kvt_path_shared(const struct kvt_core *core, uint32_t node, uint32_t pages,
			 uint32_t sealer);
/** Pages that could be evicted now of the first `pages` pages of a path and their side pages. */
uint64_t kvt_path_evictable(const struct kvt_core *core, uint32_t node, uint32_t pages);
/** The node on the path to `node` that holds page `page`. */
uint32_t kvt_path_node(const struct kvt_core *core, uint32_t node, uint32_t page);

#endif
