/* SPDX-License-Identifier: Apache-2.0 */

/* Nodes and paths: make, link, split, merge, trim, seal; lock, unlock, touch.
 *
 * Inputs are node ids of the tree; nothing is refused here. Invariants: a parent's locks are at
 * least its child's; a listed child is older than its listed parent; pages are sealed front to back
 * along a path; readers see a node change under its version. Work for idle turns is noted in
 * backlog.c. Callers: growth, eviction, detaching, compaction, leases. */

#include <string.h>

#include "daemon/core/backlog.h"
#include "daemon/core/effect.h"
#include "daemon/core/index.h"
#include "daemon/core/leaf.h"
#include "daemon/core/order.h"
#include "daemon/core/page.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"

/* ---- making and linking */

uint32_t kvt_node_make(struct kvt_core *core, uint32_t namespace_id, uint32_t parent)
{
	uint32_t id = core->free_nodes.head;
	struct kvt_node *node = kvt_node_at(core, id);

	KVT_ASSERT(id != KVT_NONE && !(node->flags & KVT_NODE_LIVE));
	KVT_ASSERT(core->namespaces[namespace_id].flags & KVT_NAMESPACE_USED);
	core->free_nodes.head = node->next_sibling;
	if (--core->free_nodes.count == 0)
		core->free_nodes.tail = KVT_NONE;
	kvt_save_node(core, id);
	kvt_node_write_begin(node);
	KVT_SET(node->parent, parent);
	KVT_SET(node->first_slot, KVT_NONE);
	KVT_SET(node->n_slots, 0);
	KVT_SET(node->sealed, 0);
	KVT_SET(node->start, parent ? core->nodes[parent].start + core->nodes[parent].n_slots : 0);
	KVT_SET(node->flags, KVT_NODE_LIVE);
	KVT_SET(node->namespace_id, namespace_id);
	KVT_SET(node->epoch, core->arena->epoch);
	kvt_node_write_end(node);
	node->first_child = node->next_sibling = node->prev_sibling = KVT_NONE;
	node->n_children = 0;
	node->lock_ref = 0;
	node->uses = 0;
	node->priority = 0;
	node->touched = node->created = core->ledger->clock;
	node->touched_ns = core->now_ns;
	KVT_SET(node->expiry_ns, KVT_NEVER);
	node->announcer = KVT_NONE;
	core->cut_below[id] = 0;
	if (core->n_sides > 0)
		core->sides_in[id] = core->side_top[id] = 0;
	core->remains[id] = (struct kvt_remains){ .born = node->generation, .left = UINT32_MAX };
	node->older = KVT_NONE;
	node->younger = KVT_NODE_UNLISTED;
	node->heap_at = node->expiry_at = 0;
	core->count->live_nodes++;
	core->namespaces[namespace_id].nodes++;
	return id;
}

void kvt_node_set_root_key(struct kvt_core *core, uint32_t id, uint64_t root_key)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t others = node->flags & ~(uint32_t)KVT_NODE_KEYED;

	if (root_key) {
		kvt_save(core, &core->root_keys[id], sizeof(*core->root_keys));
		KVT_SET(core->root_keys[id], root_key);
	}
	KVT_SET(node->flags, root_key ? others | KVT_NODE_KEYED : others);
}

static void add_child(struct kvt_core *core, uint32_t parent, uint32_t child)
{
	struct kvt_node *up = kvt_node_at(core, parent);
	struct kvt_node *node = kvt_node_at(core, child);

	node->prev_sibling = KVT_NONE;
	node->next_sibling = up->first_child;
	if (up->first_child != KVT_NONE)
		core->nodes[up->first_child].prev_sibling = child;
	up->first_child = child;
	if (up->n_children++ == 0)
		kvt_leaf_check(core, parent);
}

/** Link a node with its run, so that walks find it. */
void kvt_node_link(struct kvt_core *core, uint32_t id)
{
	kvt_slots_set_run(&core->slots, core->nodes[id].first_slot, id);
	add_child(core, core->nodes[id].parent, id);
	kvt_index_add(core, id);
}

static void remove_child(struct kvt_core *core, uint32_t parent, uint32_t child)
{
	struct kvt_node *up = kvt_node_at(core, parent);
	struct kvt_node *node = kvt_node_at(core, child);

	KVT_ASSERT(up->n_children > 0 &&
		   (node->prev_sibling != KVT_NONE || up->first_child == child));
	if (node->prev_sibling != KVT_NONE)
		core->nodes[node->prev_sibling].next_sibling = node->next_sibling;
	else
		up->first_child = node->next_sibling;
	if (node->next_sibling != KVT_NONE)
		core->nodes[node->next_sibling].prev_sibling = node->prev_sibling;
	node->prev_sibling = node->next_sibling = KVT_NONE;
	if (--up->n_children == 0)
		kvt_leaf_check(core, parent);
}

/** Unlink a node from index and parent. It keeps its `parent`: locks climb through it. */
void kvt_node_unlink(struct kvt_core *core, uint32_t id)
{
	kvt_index_remove(core, id);
	remove_child(core, core->nodes[id].parent, id);
}

/** Free a node, at the end of the free list: its id should not be reused soon. `heir`: the node
 * that has what is left of its path, or KVT_NONE. */
static void recycle(struct kvt_core *core, uint32_t id, uint32_t heir)
{
	struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];

	KVT_ASSERT(node->n_children == 0 && space->nodes > 0);
	kvt_reclaim_skip(core, id);
	kvt_save_node(core, id);
	if (node->expiry_at)
		kvt_heap_remove(core, &core->expiry, id);
	kvt_node_write_begin(node);
	KVT_SET(node->generation, node->generation + 1);
	KVT_SET(node->flags, 0);
	KVT_SET(node->parent, KVT_NONE);
	KVT_SET(node->first_slot, KVT_NONE);
	KVT_SET(node->n_slots, 0);
	KVT_SET(node->sealed, 0);
	kvt_node_write_end(node);
	core->remains[id].heir = heir;
	node->created = ++core->ledger->tickets;
	node->next_sibling = KVT_NONE;
	if (core->free_nodes.count++ == 0)
		core->free_nodes.head = id;
	else
		core->nodes[core->free_nodes.tail].next_sibling = id;
	core->free_nodes.tail = id;
	core->count->live_nodes--;
	if (--space->nodes == 0 && space->opened == 0)
		kvt_space_free(core, node->namespace_id);
}

void kvt_root_leave(struct kvt_core *core, uint32_t id)
{
	KVT_ASSERT(core->namespaces[core->nodes[id].namespace_id].root == id);
	KVT_SET(core->namespaces[core->nodes[id].namespace_id].root, KVT_NONE);
	core->n_roots--;
	if (!kvt_is_stale(core, id))
		return;
	core->stale_roots--;
	core->count->detached_pending--;
}

void kvt_root_prune(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *root = kvt_node_at(core, id);

	if (!(root->flags & KVT_NODE_ROOT) || root->n_children || root->lock_ref ||
	    (root->flags & KVT_NODE_PINNED))
		return;
	if (!(root->flags & KVT_NODE_DETACHED))
		kvt_root_leave(core, id);
	kvt_event_add(core, KVT_EV_FREE, id, 0, 0);
	recycle(core, id, KVT_NONE);
}

/** Let older handles of a node name at most `pages` pages of its path. */
static void keep_pages(struct kvt_core *core, uint32_t id, uint32_t pages)
{
	core->remains[id].left = kvt_min(core->remains[id].left, pages);
}

/** Recycle an empty, unlinked node; prunes the root that was its parent if it was the last. */
static void node_drop(struct kvt_core *core, uint32_t id, uint32_t parent)
{
	struct kvt_node *node = kvt_node_at(core, id);

	KVT_ASSERT(node->n_slots == 0 && node->n_children == 0 && node->lock_ref == 0);
	if (kvt_node_listed(node))
		kvt_recency_remove(core, id);
	kvt_leaf_remove(core, id);
	core->evictable_nodes--;
	kvt_event_add(core, KVT_EV_FREE, id, 0, 0);
	keep_pages(core, id, node->start);
	recycle(core, id, parent);
	if (parent != KVT_NONE)
		kvt_root_prune(core, parent);
}

/* ---- dividing and joining */

/** Divide a node's count of side pages with the new upper node, which has the first `pages`. */
static void split_sides(struct kvt_core *core, uint32_t up, uint32_t id, uint32_t pages)
{
	uint32_t end = core->nodes[id].start + pages;

	if (core->n_sides == 0)
		return;
	core->sides_in[up] = kvt_sides_count(core, id, pages);
	core->sides_in[id] -= core->sides_in[up];
	core->side_top[up] = kvt_min(core->side_top[id], end);
}

uint32_t kvt_node_split(struct kvt_core *core, uint32_t id, uint32_t pages)
{
	struct kvt_node *lower = kvt_node_at(core, id), *upper;
	uint32_t up = kvt_node_make(core, lower->namespace_id, lower->parent);

	upper = kvt_node_at(core, up);
	KVT_ASSERT(pages > 0 && pages < lower->n_slots);
	kvt_node_write_begin(upper);
	KVT_SET(upper->first_slot, lower->first_slot);
	KVT_SET(upper->n_slots, pages);
	KVT_SET(upper->sealed, kvt_min(pages, lower->sealed));
	KVT_SET(upper->start, lower->start);
	KVT_SET(upper->epoch, lower->epoch);
	kvt_node_set_root_key(core, up, kvt_root_key_of(core, id));
	kvt_node_set_expiry(core, up, lower->expiry_ns); /* a snapshot reads it with its pages */
	kvt_node_write_end(upper);
	upper->lock_ref = lower->lock_ref;
	upper->uses = lower->uses;
	upper->priority = lower->priority;
	upper->touched = lower->touched;
	upper->touched_ns = lower->touched_ns;
	upper->created = lower->created;
	upper->announcer = lower->announcer;
	core->cut_below[up] = core->cut_below[id];
	core->sealers[up] = core->sealers[id];
	split_sides(core, up, id, pages);

	/* Link the upper node under the parent, then the lower one under the upper. */
	kvt_index_replace(core, id, up);
	add_child(core, lower->parent, up);
	remove_child(core, lower->parent, id);
	kvt_slots_set_run(&core->slots, upper->first_slot, up);
	kvt_save_node(core, id);
	kvt_node_write_begin(lower);
	KVT_SET(lower->parent, up);
	KVT_SET(lower->first_slot, lower->first_slot + pages);
	KVT_SET(lower->n_slots, lower->n_slots - pages);
	KVT_SET(lower->sealed, lower->sealed - upper->sealed);
	KVT_SET(lower->start, lower->start + pages);
	kvt_node_set_root_key(core, id, 0);
	kvt_node_write_end(lower);
	kvt_slots_set_run(&core->slots, lower->first_slot, id);
	add_child(core, up, id);
	kvt_index_add(core, id);

	if (kvt_node_listed(lower))
		kvt_recency_add_after(core, up, id);
	if (lower->lock_ref > 0)
		core->count->locked_nodes++;
	else
		core->evictable_nodes++;
	core->count->split_nodes++;
	kvt_event_add(core, KVT_EV_SPLIT, id, up, pages);
	return up;
}

/** Undo a split, when the runs are neighbours. The lower node keeps its id, so locks and handles
 * still name the same full prefix. */
void kvt_node_merge(struct kvt_core *core, uint32_t up, uint32_t id)
{
	struct kvt_node *upper = kvt_node_at(core, up), *lower = kvt_node_at(core, id);
	uint32_t parent = upper->parent;

	KVT_ASSERT(upper->first_slot + upper->n_slots == lower->first_slot);
	KVT_ASSERT(upper->n_children == 1 && upper->lock_ref == lower->lock_ref);
	KVT_ASSERT(upper->sealed == upper->n_slots && lower->parent == up);
	kvt_index_remove(core, id);
	remove_child(core, up, id);
	kvt_slots_clear_run(&core->slots, lower->first_slot);
	kvt_sealer_note(core, id, lower->sealed, core->sealers[up]);
	if (core->n_sides > 0) {
		core->sides_in[id] += core->sides_in[up];
		if (core->side_top[id] <= lower->start)
			core->side_top[id] = core->side_top[up];
	}
	kvt_save_node(core, id);
	kvt_node_write_begin(lower);
	KVT_SET(lower->parent, parent);
	KVT_SET(lower->first_slot, upper->first_slot);
	KVT_SET(lower->start, upper->start);
	KVT_SET(lower->n_slots, lower->n_slots + upper->n_slots);
	KVT_SET(lower->sealed, lower->sealed + upper->sealed);
	kvt_node_set_root_key(core, id, kvt_root_key_of(core, up));
	kvt_node_write_end(lower);
	if (upper->uses > lower->uses)
		lower->uses = upper->uses;
	lower->created = upper->created;
	kvt_slots_set_run(&core->slots, lower->first_slot, id);
	kvt_index_replace(core, up, id);
	add_child(core, parent, id);
	remove_child(core, parent, up);

	if (kvt_node_listed(upper))
		kvt_recency_remove(core, up);
	kvt_leaf_remove(core, up);
	if (upper->lock_ref > 0)
		core->count->locked_nodes--;
	else
		core->evictable_nodes--;
	core->count->merged_nodes++;
	kvt_event_add(core, KVT_EV_MERGE, id, up, 0);
	recycle(core, up, id);
	if (lower->lock_ref == 0)
		kvt_leaf_check(core, id);
}

/** The counter of pages that leave: by the flags of their detached top, 0 if they are evicted. */
static uint64_t *count_of(struct kvt_core *core, uint32_t why)
{
	return why & KVT_NODE_EXPIRED ? &core->count->expired_pages :
	       why & KVT_NODE_REMOVED ? &core->count->removed_pages :
	       why & KVT_NODE_RESET   ? &core->count->reset_pages :
					&core->count->evicted_pages;
}

uint32_t kvt_node_last(const struct kvt_core *core, uint32_t id, uint32_t most)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	uint32_t n = 0;

	if (kvt_sides_in(core, id) == 0)
		return kvt_min(most, node->n_slots);
	for (uint32_t pages = 0; n < node->n_slots && pages < most; n++) {
		uint32_t at = node->n_slots - n - 1;

		pages += 1 + kvt_sides_count_of(core, core->slot_pages[node->first_slot + at]);
	}
	return n;
}

/** Free the pages of a run that left its node, the last one first, each with its side pages.
 * Returns how many. */
static uint32_t free_run(struct kvt_core *core, uint32_t id, uint32_t first, uint32_t n)
{
	bool sided = kvt_sides_in(core, id) > 0;
	uint32_t freed = n;

	for (uint32_t slot = first + n; slot-- > first;) {
		uint32_t page = core->slot_pages[slot];

		kvt_page_uncache(core, page);
		core->slot_pages[slot] = KVT_NONE;
		if (sided)
			freed += kvt_sides_leave(core, page);
	}
	if (sided) {
		core->sides_in[id] -= freed - n;
		core->side_top[id] = kvt_min(core->side_top[id], core->nodes[id].start +
								  core->nodes[id].n_slots);
	}
	return freed;
}

uint32_t kvt_node_trim(struct kvt_core *core, uint32_t id, uint32_t n, uint32_t why)
{
	struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	uint32_t keep = node->n_slots - n, first = node->first_slot, parent = node->parent;
	uint32_t freed;

	KVT_ASSERT(node->lock_ref == 0 && node->n_children == 0);
	KVT_ASSERT(n > 0 && n <= node->n_slots && node->sealed == node->n_slots);
	core->effort.nodes_touched++;
	kvt_event_add(core, KVT_EV_TRIM, id, 0, n);
	kvt_save_node(core, id);
	kvt_save(core, core->slot_pages + first + keep, n * sizeof(*core->slot_pages));
	if (keep == 0) {
		if (!(node->flags & KVT_NODE_DETACHED))
			kvt_node_unlink(core, id);
		kvt_slots_clear_run(&core->slots, first);
	}
	kvt_node_write_begin(node);
	KVT_SET(node->generation, node->generation + 1);
	KVT_SET(node->n_slots, keep);
	KVT_SET(node->sealed, keep);
	kvt_node_write_end(node);
	keep_pages(core, id, node->start + keep);
	freed = free_run(core, id, first + keep, n);
	space->cached_pages -= freed;
	space->evictable_pages -= freed;
	core->count->evictable_pages -= freed;
	kvt_limit_check(core, node->namespace_id);
	*count_of(core, why) += freed;
	if (why == 0)
		core->count->victim_age_ns = core->now_ns - node->touched_ns;
	kvt_slots_give_later(core, first + keep, n);
	if (keep == 0)
		node_drop(core, id, parent);
	return freed;
}

void kvt_node_seal(struct kvt_core *core, uint32_t id, uint32_t page)
{
	struct kvt_node *node = kvt_node_at(core, id);

	KVT_ASSERT(node->sealed < node->n_slots);
	kvt_save_node(core, id);
	kvt_page_cache(core, page, node->first_slot + node->sealed,
		       kvt_page_before(core, node, node->sealed));
	kvt_sealer_note(core, id, node->sealed, core->pages[page].sealer);
	/* Pairs with the prober's acquire of sealed: keys and page are there before it counts. */
	kvt_store_release(&node->sealed, node->sealed + 1);
}

void kvt_node_sealed(struct kvt_core *core, uint32_t id, uint32_t pages)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	bool locked = node->lock_ref > 0;

	space->cached_pages += pages;
	*(locked ? &space->protected_pages : &space->evictable_pages) += pages;
	*(locked ? &core->count->protected_pages : &core->count->evictable_pages) += pages;
	kvt_limit_check(core, node->namespace_id);
	core->wake_due = true;
}

void kvt_node_set_expiry(struct kvt_core *core, uint32_t id, uint64_t expiry_ns)
{
	struct kvt_node *node = kvt_node_at(core, id);

	kvt_save_node(core, id);
	KVT_SET(node->expiry_ns, expiry_ns);
	if (expiry_ns != KVT_NEVER)
		kvt_heap_update(core, &core->expiry, id);
	else if (node->expiry_at)
		kvt_heap_remove(core, &core->expiry, id);
}

/* ---- paths */

static void count_locked(struct kvt_core *core, struct kvt_node *node, bool locked)
{
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	int64_t pages = node->sealed + kvt_sides_in(core, (uint32_t)(node - core->nodes));

	pages = locked ? pages : -pages;
	core->count->locked_nodes += locked ? 1 : (uint64_t)-1;
	if (node->flags & KVT_NODE_ROOT)
		return;
	core->evictable_nodes += locked ? (uint32_t)-1 : 1;
	core->count->protected_pages += (uint64_t)pages;
	core->count->evictable_pages -= (uint64_t)pages;
	space->protected_pages += (uint64_t)pages;
	space->evictable_pages -= (uint64_t)pages;
}

void kvt_path_lock(struct kvt_core *core, uint32_t id, uint32_t until)
{
	for (; id != until && id != KVT_NONE; id = core->nodes[id].parent) {
		struct kvt_node *node = kvt_node_at(core, id);

		core->effort.nodes_touched++;
		if (node->lock_ref++ > 0)
			continue;
		if (kvt_node_listed(node))
			kvt_recency_remove(core, id);
		kvt_leaf_remove(core, id);
		count_locked(core, node, true);
	}
	KVT_ASSERT(id == until); /* `until` was on the path */
}

/** Cut the announced tail of a node that lost its last lock: no lease computes it any more. */
static void cut_tail(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t tail = node->n_slots - node->sealed, first = node->first_slot;

	if (tail == 0)
		return;
	KVT_ASSERT(node->n_children == 0);
	kvt_event_add(core, KVT_EV_CUT, id, 0, tail);
	if (node->sealed == 0) {
		if (!(node->flags & KVT_NODE_DETACHED)) {
			/* Unlink while the keys that its tag came from are still named by it. */
			kvt_node_unlink(core, id);
		}
		kvt_slots_clear_run(&core->slots, first);
	}
	kvt_save_node(core, id);
	kvt_save_slots_freed(core, first + node->sealed, tail);
	kvt_node_write_begin(node);
	KVT_SET(node->n_slots, node->sealed);
	kvt_node_write_end(node);
	kvt_slots_give(&core->slots, first + node->sealed, tail);
}

/** Release one node of an unlocked path. A root is freed last, when it has no children. */
static void unlock_one(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);
	bool detached = node->flags & KVT_NODE_DETACHED;
	uint32_t parent = node->parent;

	KVT_ASSERT(node->lock_ref > 0);
	kvt_save_touch(core, id);
	node->touched = core->ledger->clock;
	node->touched_ns = core->now_ns;
	core->effort.nodes_touched++;
	if (--node->lock_ref > 0)
		return;
	count_locked(core, node, false);
	if (node->flags & KVT_NODE_ROOT) {
		kvt_root_prune(core, id);
		return;
	}
	if (detached) {
		kvt_save_node(core, id);
		KVT_SET(node->parent, KVT_NONE); /* no lock climbs through it */
	}
	cut_tail(core, id);
	if (node->n_slots == 0) {
		node_drop(core, id, detached ? KVT_NONE : parent);
		return;
	}
	kvt_recency_add(core, id);
	kvt_leaf_check(core, id);
}

void kvt_path_unlock(struct kvt_core *core, uint32_t id)
{
	uint32_t deepest = id;
	bool cut = false;

	core->ledger->clock++;
	while (id != KVT_NONE) {
		const struct kvt_node *node = kvt_node_at(core, id);
		uint32_t parent = node->parent;
		bool detached = node->flags & KVT_NODE_DETACHED;

		if (cut) {
			core->cut_below[id]--;
		} else if (detached) {
			cut = true;
			core->cut_leases -= node->epoch == core->arena->epoch;
		}
		unlock_one(core, id);
		/* A node of a detached subtree can be reclaimed now. */
		if (detached && node->flags & KVT_NODE_DETACHED)
			kvt_detached_queue(core, id);
		id = parent;
	}
	if (!cut && deepest != KVT_NONE)
		kvt_compact_note(core, deepest);
}

static void touch(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);

	core->effort.nodes_touched++;
	kvt_save_touch(core, id);
	node->touched = core->ledger->clock;
	node->touched_ns = core->now_ns;
	if (node->lock_ref > 0 || (node->flags & KVT_NODE_ROOT))
		return;
	if (core->youngest != id) {
		if (kvt_node_listed(node))
			kvt_recency_remove(core, id);
		kvt_recency_add(core, id);
	}
	kvt_leaf_check(core, id);
}

void kvt_path_touch(struct kvt_core *core, uint32_t id)
{
	core->ledger->clock++;
	for (; id != KVT_NONE; id = core->nodes[id].parent)
		touch(core, id);
}

void kvt_path_pin(struct kvt_core *core, uint32_t id, bool on)
{
	for (; id != KVT_NONE; id = core->nodes[id].parent) {
		struct kvt_node *node = kvt_node_at(core, id);
		uint32_t others = node->flags & ~(uint32_t)KVT_NODE_PINNED;

		KVT_SET(node->flags, on ? others | KVT_NODE_PINNED : others);
	}
}

void kvt_path_count_use(struct kvt_core *core, uint32_t id)
{
	for (; id != KVT_NONE; id = core->nodes[id].parent) {
		kvt_save_touch(core, id);
		core->nodes[id].uses++;
		kvt_leaf_check(core, id);
	}
}

/* For the hook of changes: the pages of a node had a time to live until now. */
static void note_lasting(struct kvt_core *core, const struct kvt_node *node)
{
	for (uint32_t i = 0; i < node->sealed && core->change; i++) {
		KVT_ASSERT(core->n_lasting < core->config.n_pages);
		core->lasting[core->n_lasting++] = core->slot_pages[node->first_slot + i];
	}
}

void kvt_path_raise(struct kvt_core *core, uint32_t id, int32_t priority, uint64_t expiry_ns)
{
	for (; id != KVT_NONE; id = core->nodes[id].parent) {
		struct kvt_node *node = kvt_node_at(core, id);

		if (node->flags & KVT_NODE_ROOT)
			continue;
		if (priority > node->priority) {
			kvt_save_node(core, id);
			node->priority = priority;
		}
		if (expiry_ns > node->expiry_ns && expiry_ns == KVT_NEVER)
			note_lasting(core, node);
		if (expiry_ns > node->expiry_ns)
			kvt_node_set_expiry(core, id, expiry_ns);
		kvt_leaf_check(core, id);
	}
}

uint64_t kvt_path_evictable(const struct kvt_core *core, uint32_t id, uint32_t pages)
{
	uint64_t sum = 0;

	/* The lock count only rises on the way up: above a locked one all are. */
	for (; id != KVT_NONE && core->nodes[id].lock_ref == 0; id = core->nodes[id].parent)
		sum += kvt_min(core->nodes[id].sealed, pages - core->nodes[id].start) +
		       kvt_sides_count(core, id, pages - core->nodes[id].start);
	return sum;
}

bool kvt_path_detached(const struct kvt_core *core, uint32_t id)
{
	if (id != KVT_NONE && kvt_is_stale(core, id))
		return true;
	for (; id != KVT_NONE; id = core->nodes[id].parent)
		if (core->nodes[id].flags & KVT_NODE_DETACHED)
			return true;
	return false;
}

bool kvt_path_damaged(const struct kvt_core *core, uint32_t id)
{
	while (id != KVT_NONE && !(core->nodes[id].flags & KVT_NODE_DAMAGED))
		id = core->nodes[id].parent;
	return id != KVT_NONE;
}

void kvt_path_pages(const struct kvt_core *core, uint32_t id, uint32_t pages, uint32_t *list)
{
	for (; id != KVT_NONE && pages > 0; id = core->nodes[id].parent) {
		const struct kvt_node *node = kvt_node_at(core, id);

		if (node->start >= pages || node->n_slots == 0)
			continue;
		memcpy(list + node->start, core->slot_pages + node->first_slot,
		       kvt_min(node->n_slots, pages - node->start) * sizeof(*list));
	}
}

uint32_t kvt_path_shared(const struct kvt_core *core, uint32_t id, uint32_t pages, uint32_t sealer)
{
	uint32_t shared = 0;

	for (; id != KVT_NONE && pages > 0; id = core->nodes[id].parent) {
		const struct kvt_node *node = kvt_node_at(core, id);
		const uint32_t *at = core->slot_pages + node->first_slot;
		uint32_t n = node->start < pages ? kvt_min(node->n_slots, pages - node->start) : 0;
		uint32_t other = core->sealers[id];

		if (other != KVT_SEALERS_MANY) {
			shared += other != sealer && other != 0 ? n : 0;
			continue;
		}
		/* Their records are lines that BEGIN does not read otherwise. */
		while (n-- > 0) {
			other = core->pages[at[n]].sealer;
			shared += other != sealer && other != 0;
		}
	}
	return shared;
}

uint32_t kvt_path_node(const struct kvt_core *core, uint32_t id, uint32_t page)
{
	while (core->nodes[id].start > page)
		id = core->nodes[id].parent;
	return id;
}
