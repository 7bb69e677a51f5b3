/* SPDX-License-Identifier: Apache-2.0 */

/* Add new runs to the tree: compute what that needs, make room, then change.
 *
 * Input is the end of a walk and keys that may be client memory. The first new page is copied
 * before anything is decided on it (TOCTOU); the others go into slots that no reader sees yet.
 * Callers: BEGIN, COMMIT, INSERT and REMOVE. */

#include <errno.h>
#include <string.h>

#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/evict.h"
#include "daemon/core/grow.h"
#include "daemon/core/index.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/walk.h"

static bool ends_inside(const struct kvt_core *core, const struct kvt_walk *walk)
{
	return walk->node != KVT_NONE && walk->in_node < core->nodes[walk->node].n_slots;
}

/** The slot behind a node's run: where its continuation belongs. 0 for roots. */
static uint32_t slot_behind(const struct kvt_core *core, uint32_t id)
{
	if (id == KVT_NONE || core->nodes[id].n_slots == 0)
		return 0;
	return core->nodes[id].first_slot + core->nodes[id].n_slots;
}

void kvt_need_compute(struct kvt_core *core, const struct kvt_walk *walk, uint32_t new_pages,
		      bool exact, struct kvt_need *need)
{
	bool inside = ends_inside(core, walk);

	KVT_ASSERT(walk->in_node <= core->nodes[walk->node].n_slots);
	*need = (struct kvt_need){ .new_pages = new_pages };
	need->root = walk->root == KVT_NONE && new_pages > 0;
	need->split = inside && (new_pages > 0 || exact);
	need->wish = inside ? 0 : slot_behind(core, walk->node);
	need->runs = kvt_slots_runs(&core->slots, new_pages, need->wish);
	for (uint32_t id = walk->node; id != KVT_NONE; id = core->nodes[id].parent) {
		const struct kvt_node *node = kvt_node_at(core, id);

		/* The lock count only rises on the way up: above here all is locked already. */
		if (node->lock_ref > 0)
			break;
		if (node->flags & KVT_NODE_ROOT)
			continue;
		need->path_nodes++;
		need->path_pages += id == walk->node && need->split ?
					    kvt_min(walk->in_node, node->sealed) +
						    kvt_sides_count(core, id, walk->in_node) :
					    node->sealed + kvt_sides_in(core, id);
	}
}

static uint32_t nodes_wanted(const struct kvt_need *need)
{
	return need->root + need->split + need->spare + need->runs;
}

/** A victim brings its node, but also one more free extent, into which the new run may then fall:
 * each one evicted moves the goal. The goal that never moves: with everything evictable gone, free
 * extents lie between locked runs, so there is one more of them than of those. */
static uint32_t nodes_at_most(const struct kvt_core *core, const struct kvt_need *need)
{
	uint64_t extents = core->count->locked_nodes + need->path_nodes + need->split + 1ull;

	return need->root + need->split + need->spare +
	       (extents < need->new_pages ? (uint32_t)extents : need->new_pages);
}

int kvt_need_nodes(struct kvt_core *core, uint32_t path_node, struct kvt_need *need)
{
	/* Announced slots have private pages behind them, so slots are enough - unless, for want of
	 * nodes, a reader locked a whole edge whose announced tail no lease computes any more.
	 * Victims may all be side pages, which give no slot. */
	if (need->new_pages > core->slots.free_slots &&
	    need->new_pages - core->slots.free_slots + core->count->side_pages >
		    need->evict_pages)
		return -ENOSPC;
	if (core->free_nodes.count >= nodes_wanted(need))
		return 0;
	KVT_ASSERT(core->evictable_nodes >= need->path_nodes);
	if (core->free_nodes.count + core->evictable_nodes - need->path_nodes <
	    nodes_at_most(core, need))
		return -ENOSPC;
	kvt_path_pin(core, path_node, true);
	while (core->free_nodes.count < nodes_wanted(need)) {
		kvt_evict_nodes(core, core->free_nodes.count + 1);
		kvt_slots_give_due(core, true);
		need->runs = kvt_slots_runs(&core->slots, need->new_pages, need->wish);
	}
	kvt_path_pin(core, path_node, false);
	return 0;
}

bool kvt_walk_ends_new(struct kvt_core *core, const struct kvt_op_context *op,
		       const struct kvt_walk *walk)
{
	const struct kvt_node *node = kvt_node_at(core, walk->node);
	uint32_t equal;

	kvt_racy_copy(core->first_page, kvt_walk_rest(core, op, walk), core->ps);
	if (walk->node == KVT_NONE)
		return true;
	if (ends_inside(core, walk))
		return !kvt_racy_equal(core->first_page,
				       kvt_keys_at(core, node->first_slot + walk->in_node),
				       core->ps);
	return kvt_index_find(core, walk->node, walk->root_key, core->first_page, 1, &equal) ==
	       KVT_NONE;
}

uint32_t kvt_walk_cut(struct kvt_core *core, struct kvt_walk *walk)
{
	if (ends_inside(core, walk)) {
		walk->node = kvt_node_split(core, walk->node, walk->in_node);
		walk->in_node = core->nodes[walk->node].n_slots;
	}
	KVT_ASSERT(core->nodes[walk->node].start + core->nodes[walk->node].n_slots == walk->walked);
	return walk->node;
}

uint32_t kvt_root_make(struct kvt_core *core, uint32_t namespace_id)
{
	uint32_t stale = core->namespaces[namespace_id].root, root;

	if (stale != KVT_NONE)
		kvt_detach(core, stale, KVT_NODE_RESET);
	KVT_ASSERT(core->namespaces[namespace_id].root == KVT_NONE);
	root = kvt_node_make(core, namespace_id, KVT_NONE);
	core->n_roots++;
	KVT_SET(core->nodes[root].flags, core->nodes[root].flags | KVT_NODE_ROOT);
	KVT_SET(core->namespaces[namespace_id].root, root);
	kvt_event_add(core, KVT_EV_ROOT, root, namespace_id, 0);
	return root;
}

uint32_t kvt_grow(struct kvt_core *core, uint32_t parent, uint64_t root_key,
		  const uint32_t *first, const uint32_t *keys, uint32_t n, int32_t priority,
		  uint64_t expiry_ns)
{
	uint32_t namespace_id = core->nodes[parent].namespace_id, done = 0, got;

	if (core->n_slots_due > 0 && kvt_slots_find(&core->slots, n) == KVT_NONE)
		kvt_slots_give_due(core, true);
	KVT_ASSERT(kvt_node_live(core, parent) && n > 0 && n <= core->slots.free_slots);
	while (done < n) {
		uint32_t slot = kvt_slots_take(&core->slots, n - done, slot_behind(core, parent),
					       &got);
		uint32_t id;
		struct kvt_node *node;
		uint32_t *to = kvt_keys_at(core, slot);

		KVT_ASSERT(got > 0 && got <= n - done);
		kvt_save_keys(core, slot, got);
		id = kvt_node_make(core, namespace_id, parent);
		node = kvt_node_at(core, id);
		/* The slots are not published yet, so a lying client can only spoil its own. */
		kvt_racy_copy(to, keys + (size_t)done * core->ps, (size_t)got * core->ps);
		if (done == 0)
			memcpy(to, first, core->ps * sizeof(*to));
		core->effort.keys_copied += got * core->ps;
		memset(core->slot_pages + slot, 0, got * sizeof(*core->slot_pages));
		kvt_node_write_begin(node);
		KVT_SET(node->first_slot, slot);
		KVT_SET(node->n_slots, got);
		if (core->nodes[parent].flags & KVT_NODE_ROOT)
			kvt_node_set_root_key(core, id, root_key);
		kvt_node_write_end(node);
		node->priority = priority;
		kvt_node_set_expiry(core, id, expiry_ns);
		core->evictable_nodes++;
		kvt_node_link(core, id);
		kvt_event_add(core, KVT_EV_NEW, id, parent, got);
		parent = id;
		done += got;
	}
	return parent;
}

void kvt_grow_run(struct kvt_core *core, uint32_t id, const uint32_t *keys, uint32_t n)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t slot = slot_behind(core, id);

	KVT_ASSERT(slot > 0 && n > 0 && node->lock_ref == 1 && node->n_children == 0);
	kvt_slots_take_at(&core->slots, slot, slot, n);
	kvt_save_keys(core, slot, n);
	kvt_save_node(core, id);
	kvt_racy_copy(kvt_keys_at(core, slot), keys, (size_t)n * core->ps);
	core->effort.keys_copied += n * core->ps;
	memset(core->slot_pages + slot, 0, n * sizeof(*core->slot_pages));
	kvt_node_write_begin(node);
	KVT_SET(node->n_slots, node->n_slots + n);
	kvt_node_write_end(node);
	kvt_event_add(core, KVT_EV_GROW, id, 0, n);
}
