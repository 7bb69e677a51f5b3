/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_SIDE_H
#define KVT_CORE_SIDE_H

/**
 * @file side.h
 * Side pages: cached pages that hang on a page of a node, at most one of each kind.
 *
 * They hold what layers with windows or states need to continue behind that page. They have no
 * slot, no lock and no recency: they live and leave with the page that they hang on. One that its
 * lease let go (KVT_SIDE_LET) may leave earlier.
 */

#include "daemon/core/state.h"

/** The side pages of a page of a node, one word for each kind. */
static inline uint32_t *kvt_sides_of(const struct kvt_core *core, uint32_t page)
{
	return core->sides + (size_t)page * core->n_sides;
}

/** Count the side pages of a page of a node. */
static inline uint32_t kvt_sides_count_of(const struct kvt_core *core, uint32_t page)
{
	const uint32_t *sides = kvt_sides_of(core, page);
	uint32_t n = 0;

	for (uint32_t kind = 0; kind < core->n_sides; kind++)
		n += sides[kind] != KVT_NONE;
	return n;
}

/** All side pages of a node. */
static inline uint32_t kvt_sides_in(const struct kvt_core *core, uint32_t node)
{
	return core->n_sides > 0 ? core->sides_in[node] : 0;
}

/** Count the side pages on the first `pages` pages of a node's run. */
uint32_t kvt_sides_count(const struct kvt_core *core, uint32_t node, uint32_t pages);
/** PRIVATE to CACHED as a side page of page `at` of a node's run, of a page in no list. */
void kvt_side_attach(struct kvt_core *core, uint32_t node, uint32_t at, uint32_t kind,
		     uint32_t page);
/** CACHED to FREE. False: there is no side page of that kind. */
bool kvt_side_drop(struct kvt_core *core, uint32_t node, uint32_t at, uint32_t kind);
/** True if a side page may be evicted although the page that it hangs on is locked. */
static inline bool kvt_side_is_let(const struct kvt_core *core, uint32_t page)
{
	return core->let[page].lease != KVT_NONE;
}
/** Let a held side page of a node go, on behalf of a lease: the only one that crosses the node. */
void kvt_side_let(struct kvt_core *core, uint32_t node, uint32_t page, uint32_t lease);
/** Hold a side page that was let go. */
void kvt_side_hold(struct kvt_core *core, uint32_t page);
/** Hold all that a lease let go, before it unlocks its path. */
void kvt_sides_hold_all(struct kvt_core *core, uint32_t lease);
/** Drop the side page that was let go first. Returns its node. */
uint32_t kvt_side_drop_let(struct kvt_core *core);
/** Free all side pages of a page that leaves its node, which are counted elsewhere. Returns how
 * many. */
uint32_t kvt_sides_leave(struct kvt_core *core, uint32_t main);

#endif
