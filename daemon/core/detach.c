/* SPDX-License-Identifier: Apache-2.0 */

/* Detaching subtrees in O(1), and giving back what is in them.
 *
 * Detached nodes are out of the index, are never matched, and stay only until their locks are gone.
 * RESET raises the epoch and no more: the roots of earlier epochs, stale ones, are detached later.
 * Callers: expiry, removal, eviction and background work; growth, for a namespace's stale root. */

#include "daemon/core/backlog.h"
#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/order.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"

void kvt_detach(struct kvt_core *core, uint32_t id, uint32_t why)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t parent = node->parent, cut = node->lock_ref - core->cut_below[id];

	KVT_ASSERT((node->flags & (KVT_NODE_LIVE | KVT_NODE_DETACHED)) == KVT_NODE_LIVE);
	KVT_ASSERT(core->cut_below[id] <= node->lock_ref);
	KVT_ASSERT(why & (KVT_NODE_EXPIRED | KVT_NODE_REMOVED | KVT_NODE_RESET |
		   KVT_NODE_MADE_ROOM));
	core->cut_leases += node->epoch == core->arena->epoch ? cut : 0;
	for (uint32_t up = cut ? parent : KVT_NONE; up != KVT_NONE; up = core->nodes[up].parent)
		core->cut_below[up] += cut;
	if (!kvt_is_stale(core, id)) { /* else its RESET told of it */
		kvt_event_add(core, KVT_EV_DETACH, id, 0, 0);
		core->cut = id;
	}
	core->wake_due = true;
	if (node->flags & KVT_NODE_ROOT)
		kvt_root_leave(core, id);
	else
		kvt_node_unlink(core, id);
	kvt_save_node(core, id);
	kvt_node_write_begin(node);
	KVT_SET(node->flags, node->flags | KVT_NODE_DETACHED | why);
	if (node->lock_ref == 0)
		KVT_SET(node->parent, KVT_NONE);
	kvt_node_write_end(node);
	if (node->expiry_at)
		kvt_heap_remove(core, &core->expiry, id);
	kvt_detached_queue(core, id);
	if (parent != KVT_NONE)
		kvt_root_prune(core, parent);
}

uint32_t kvt_detach_stale(struct kvt_core *core, uint32_t roots, uint32_t looks)
{
	uint32_t looked = 0;

	KVT_ASSERT(core->config.max_namespaces > 1);
	while (core->stale_roots > 0 && roots > 0 && looked < looks) {
		uint32_t root;

		core->stale_at = core->stale_at % (core->config.max_namespaces - 1) + 1;
		root = core->namespaces[core->stale_at].root;
		looked++;
		if (root == KVT_NONE || !kvt_is_stale(core, root))
			continue;
		kvt_detach(core, root, KVT_NODE_RESET);
		roots--;
	}
	return looked;
}

static uint32_t leftmost(const struct kvt_core *core, uint32_t id)
{
	while (core->nodes[id].first_child != KVT_NONE)
		id = core->nodes[id].first_child;
	return id;
}

/** Post-order successor inside the subtree of `top`; KVT_NONE after the top itself. */
static uint32_t post_order_next(const struct kvt_core *core, uint32_t id, uint32_t top)
{
	const struct kvt_node *node = kvt_node_at(core, id);

	if (id == top)
		return KVT_NONE;
	if (node->next_sibling != KVT_NONE)
		return leftmost(core, node->next_sibling);
	KVT_ASSERT(node->parent != KVT_NONE);
	return node->parent;
}

uint32_t kvt_reclaim(struct kvt_core *core, uint32_t *steps, uint32_t pages)
{
	uint32_t freed = 0;

	while (core->detached_count > 0 && freed < pages && *steps > 0) {
		uint32_t top = core->detached[core->detached_head], next;
		struct kvt_node *node;

		KVT_ASSERT(core->nodes[top].flags & KVT_NODE_QUEUED);
		if (core->reclaim_cursor == KVT_NONE)
			core->reclaim_cursor = leftmost(core, top);
		node = kvt_node_at(core, core->reclaim_cursor);
		next = post_order_next(core, core->reclaim_cursor, top);
		KVT_ASSERT(node->flags & KVT_NODE_LIVE &&
			   node->lock_ref <= core->nodes[top].lock_ref);
		--*steps;
		if (node->lock_ref == 0 && node->n_children == 0 && node->n_slots > 0) {
			uint32_t id = core->reclaim_cursor;
			uint32_t n = kvt_node_last(core, id, pages - freed);
			bool whole = n == node->n_slots;

			if (whole)
				core->reclaim_cursor = next;
			freed += kvt_node_trim(core, id, n, core->nodes[top].flags);
			if (!whole || id == top)
				continue;
		} else if (node->lock_ref == 0 && node->n_children == 0) {
			kvt_root_prune(core, top); /* a detached root with nothing below */
			continue;
		}
		/* The trim may have taken the rest of the subtree with it (a root). */
		if (core->detached_count == 0 || core->detached[core->detached_head] != top)
			continue;
		core->reclaim_cursor = next;
		if (next != KVT_NONE)
			continue;
		if (core->reclaim_again) {
			core->reclaim_again = false;
			continue;
		}
		node = kvt_node_at(core, top);
		KVT_SET(node->flags, node->flags & ~(uint32_t)KVT_NODE_QUEUED);
		kvt_detached_forget(core, 0);
	}
	return freed;
}
