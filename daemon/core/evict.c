/* SPDX-License-Identifier: Apache-2.0 */

/* What goes when room is needed: first what is detached anyway, then the policy's victims, each
 * from its last page backwards and only as far as needed. */

#include <errno.h>
#include <string.h>

#include "daemon/core/internal.h"

/* ---- the policies: `before` orders victims, smallest first */

static bool older(const struct kvt_core *core, const struct kvt_node *a, const struct kvt_node *b)
{
	(void)core;
	return a->touched < b->touched;
}

static bool segmented(const struct kvt_core *core, const struct kvt_node *a,
		      const struct kvt_node *b)
{
	bool a_kept = a->hits >= core->config.slru_threshold;
	bool b_kept = b->hits >= core->config.slru_threshold;

	return a_kept != b_kept ? b_kept : older(core, a, b);
}

static bool fewer_hits(const struct kvt_core *core, const struct kvt_node *a,
		       const struct kvt_node *b)
{
	return a->hits != b->hits ? a->hits < b->hits : older(core, a, b);
}

static bool made_earlier(const struct kvt_core *core, const struct kvt_node *a,
			 const struct kvt_node *b)
{
	(void)core;
	return a->created < b->created;
}

static bool made_later(const struct kvt_core *core, const struct kvt_node *a,
		       const struct kvt_node *b)
{
	return made_earlier(core, b, a);
}

static bool younger(const struct kvt_core *core, const struct kvt_node *a,
		    const struct kvt_node *b)
{
	return older(core, b, a);
}

static bool less_important(const struct kvt_core *core, const struct kvt_node *a,
			   const struct kvt_node *b)
{
	return a->priority != b->priority ? a->priority < b->priority : older(core, a, b);
}

static bool same_touch(const struct kvt_core *core, const struct kvt_node *upper,
		       const struct kvt_node *lower)
{
	(void)core;
	return upper->lock_ref > 0 || upper->touched == lower->touched;
}

static bool same_segment(const struct kvt_core *core, const struct kvt_node *upper,
			 const struct kvt_node *lower)
{
	uint32_t threshold = core->config.slru_threshold;

	return same_touch(core, upper, lower) &&
	       (upper->hits == lower->hits ||
		(upper->hits >= threshold && lower->hits >= threshold));
}

static bool same_hits(const struct kvt_core *core, const struct kvt_node *upper,
		      const struct kvt_node *lower)
{
	return same_touch(core, upper, lower) && upper->hits == lower->hits;
}

static bool same_birth(const struct kvt_core *core, const struct kvt_node *upper,
		       const struct kvt_node *lower)
{
	(void)core;
	return upper->created == lower->created;
}

const struct kvt_policy_row kvt_policies[KVT_POLICY_COUNT] = {
	[KVT_POLICY_LRU] = { "lru", true, older, same_touch },
	[KVT_POLICY_SLRU] = { "slru", false, segmented, same_segment },
	[KVT_POLICY_LFU] = { "lfu", false, fewer_hits, same_hits },
	[KVT_POLICY_FIFO] = { "fifo", false, made_earlier, same_birth },
	[KVT_POLICY_FILO] = { "filo", false, made_later, same_birth },
	[KVT_POLICY_MRU] = { "mru", false, younger, same_touch },
	[KVT_POLICY_PRIORITY] = { "priority", false, less_important, same_touch },
};

const char *kvt_policy_name(uint32_t policy)
{
	return policy < KVT_POLICY_COUNT ? kvt_policies[policy].name : "unknown";
}

int kvt_policy_parse(const char *name, uint32_t *ret_policy)
{
	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		if (strcmp(name, kvt_policies[policy].name) == 0) {
			*ret_policy = policy;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- an indexed binary heap, used for the policy and for expiry */

static bool heap_before(const struct kvt_core *core, const struct kvt_heap *heap, uint32_t a,
			uint32_t b)
{
	const struct kvt_node *x = kvt_node_at(core, a), *y = kvt_node_at(core, b);

	if (heap->expiry)
		return x->expiry_ns != y->expiry_ns ? x->expiry_ns < y->expiry_ns :
						      x->start < y->start;
	return kvt_policies[core->config.policy].before(core, x, y);
}

static uint32_t *heap_place(struct kvt_core *core, const struct kvt_heap *heap, uint32_t node)
{
	return heap->expiry ? &core->nodes[node].expiry_at : &core->nodes[node].heap_at;
}

static void heap_put(struct kvt_core *core, struct kvt_heap *heap, uint32_t at, uint32_t node)
{
	heap->nodes[at] = node;
	*heap_place(core, heap, node) = at + 1;
}

static void sift_up(struct kvt_core *core, struct kvt_heap *heap, uint32_t at)
{
	uint32_t node = heap->nodes[at];

	while (at > 0 && heap_before(core, heap, node, heap->nodes[(at - 1) / 2])) {
		heap_put(core, heap, at, heap->nodes[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	heap_put(core, heap, at, node);
}

static void sift_down(struct kvt_core *core, struct kvt_heap *heap, uint32_t at)
{
	uint32_t node = heap->nodes[at];

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= heap->count)
			break;
		if (child + 1 < heap->count &&
		    heap_before(core, heap, heap->nodes[child + 1], heap->nodes[child]))
			child++;
		if (!heap_before(core, heap, heap->nodes[child], node))
			break;
		heap_put(core, heap, at, heap->nodes[child]);
		at = child;
	}
	heap_put(core, heap, at, node);
}

void kvt_heap_update(struct kvt_core *core, struct kvt_heap *heap, uint32_t node)
{
	uint32_t *place = heap_place(core, heap, node);

	if (*place == 0)
		heap_put(core, heap, heap->count++, node);
	sift_up(core, heap, *place - 1);
	sift_down(core, heap, *place - 1);
}

void kvt_heap_remove(struct kvt_core *core, struct kvt_heap *heap, uint32_t node)
{
	uint32_t *place = heap_place(core, heap, node), at = *place - 1, last;

	KVT_ASSERT(*place > 0 && heap->nodes[at] == node);
	*place = 0;
	last = heap->nodes[--heap->count];
	if (last == node)
		return;
	heap_put(core, heap, at, last);
	sift_up(core, heap, at);
	sift_down(core, heap, *heap_place(core, heap, last) - 1);
}

void kvt_leaf_check(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);

	if (kvt_policies[core->config.policy].list)
		return;
	if (node->lock_ref == 0 && node->n_children == 0 && node->n_slots > 0 &&
	    !(node->flags & KVT_NODE_ROOT))
		kvt_heap_update(core, &core->heap, id);
	else if (node->heap_at)
		kvt_heap_remove(core, &core->heap, id);
}

/* ---- detached subtrees */

void kvt_detached_queue(struct kvt_core *core, uint32_t top)
{
	struct kvt_node *node = kvt_node_at(core, top);

	if (node->flags & KVT_NODE_QUEUED) {
		if (core->detached[core->detached_head] == top)
			core->reclaim_again = true;
		return;
	}
	KVT_ASSERT(core->detached_count < core->config.max_nodes);
	KVT_SET(node->flags, node->flags | KVT_NODE_QUEUED);
	core->detached[(core->detached_head + core->detached_count++) % core->config.max_nodes] =
		top;
	core->count->detached_pending++;
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
	return node->parent;
}

static void detached_forget(struct kvt_core *core, uint32_t place)
{
	uint32_t size = core->config.max_nodes;

	for (uint32_t i = place; i > 0; i--)
		core->detached[(core->detached_head + i) % size] =
			core->detached[(core->detached_head + i - 1) % size];
	core->detached_head = (core->detached_head + 1) % size;
	core->detached_count--;
	core->count->detached_pending--;
	if (place == 0) {
		core->reclaim_cursor = KVT_NONE;
		core->reclaim_again = false;
	}
}

/** A node goes: neither the cursor nor the queue may keep its id. Its siblings are unlinked from
 * it already, so the cursor starts its subtree anew; what it passes again it passes quickly. */
void kvt_reclaim_skip(struct kvt_core *core, uint32_t id)
{
	if (core->reclaim_cursor == id)
		core->reclaim_cursor = KVT_NONE;
	if (!(core->nodes[id].flags & KVT_NODE_QUEUED))
		return;
	for (uint32_t i = 0; i < core->detached_count; i++) {
		if (core->detached[(core->detached_head + i) % core->config.max_nodes] == id) {
			detached_forget(core, i);
			return;
		}
	}
}

uint32_t kvt_reclaim(struct kvt_core *core, uint32_t *steps, uint32_t pages)
{
	uint32_t freed = 0;

	while (core->detached_count > 0 && freed < pages && *steps > 0) {
		uint32_t top = core->detached[core->detached_head], next;
		struct kvt_node *node;

		if (core->reclaim_cursor == KVT_NONE)
			core->reclaim_cursor = leftmost(core, top);
		node = kvt_node_at(core, core->reclaim_cursor);
		next = post_order_next(core, core->reclaim_cursor, top);
		--*steps;
		if (node->lock_ref == 0 && node->n_children == 0 && node->n_slots > 0) {
			uint32_t n = kvt_min(node->n_slots, pages - freed);
			bool whole = n == node->n_slots;
			uint32_t id = core->reclaim_cursor;

			if (whole)
				core->reclaim_cursor = next;
			freed += n;
			kvt_node_trim(core, id, n);
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
		detached_forget(core, 0);
	}
	return freed;
}

void kvt_detach(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t parent = node->parent, cut = node->lock_ref - core->cut_below[id];

	KVT_ASSERT(!(node->flags & KVT_NODE_DETACHED));
	core->cut_leases += node->epoch == core->arena->epoch ? cut : 0;
	for (uint32_t up = cut ? parent : KVT_NONE; up != KVT_NONE; up = core->nodes[up].parent)
		core->cut_below[up] += cut;
	if (!kvt_is_stale(core, id)) /* else its RESET told of it */
		kvt_event_add(core, KVT_EV_DETACH, id, 0, 0);
	core->wake_due = true;
	if (node->flags & KVT_NODE_ROOT)
		kvt_root_leave(core, id);
	else
		kvt_node_unlink(core, id);
	kvt_undo_node(core, &core->undo, id);
	kvt_node_write_begin(node);
	KVT_SET(node->flags, node->flags | KVT_NODE_DETACHED);
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

	while (core->stale_roots > 0 && roots > 0 && looked < looks) {
		uint32_t root;

		core->stale_at = core->stale_at % (core->config.max_namespaces - 1) + 1;
		root = core->namespaces[core->stale_at].root;
		looked++;
		if (root == KVT_NONE || !kvt_is_stale(core, root))
			continue;
		kvt_detach(core, root);
		roots--;
	}
	return looked;
}

/* ---- eviction */

/* Until the mutation has ended their keys are still facts: who takes them has to save them first,
 * and mostly there are others. */
void kvt_slots_give_later(struct kvt_core *core, uint32_t first, uint32_t n)
{
	if (core->n_slots_due == core->config.max_nodes)
		kvt_slots_give_due(core, true);
	core->slots_due[core->n_slots_due++] = (struct kvt_run){ first, n };
}

void kvt_slots_give_due(struct kvt_core *core, bool inside)
{
	for (uint32_t i = 0; i < core->n_slots_due; i++) {
		struct kvt_run run = core->slots_due[i];

		if (inside)
			kvt_undo_slots_freed(core, run.first, run.n);
		kvt_slots_give(&core->slots, run.first, run.n);
	}
	core->n_slots_due = 0;
}

/** An unlocked leaf loses its last n pages; with none left it goes. */
void kvt_node_trim(struct kvt_core *core, uint32_t id, uint32_t n)
{
	struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	uint32_t keep = node->n_slots - n, first = node->first_slot, parent = node->parent;

	KVT_ASSERT(node->lock_ref == 0 && node->n_children == 0);
	KVT_ASSERT(n > 0 && n <= node->n_slots && node->sealed == node->n_slots);
	core->effort.nodes_touched++;
	kvt_event_add(core, KVT_EV_TRIM, id, 0, n);
	kvt_undo_node(core, &core->undo, id);
	kvt_undo_slots(core, first + keep, n);
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
	for (uint32_t i = n; i-- > 0;) {
		uint32_t slot = first + keep + i;

		kvt_page_uncache(core, core->slot_pages[slot]);
		core->slot_pages[slot] = KVT_NONE;
	}
	space->cached_pages -= n;
	space->evictable_pages -= n;
	core->count->evictable_pages -= n;
	core->count->evicted_pages += n;
	kvt_slots_give_later(core, first + keep, n);
	if (keep == 0)
		kvt_node_drop(core, id, parent);
}

/** The policy's next victim off the pinned path. */
static uint32_t victim(struct kvt_core *core)
{
	uint32_t id, pinned = KVT_NONE;

	if (kvt_policies[core->config.policy].list) {
		/* Only one root path is pinned, and a listed child is older than its listed
		 * parent: so what comes right after pinned nodes is a leaf, too. */
		for (id = core->oldest; id != KVT_NONE; id = core->nodes[id].younger)
			if (!(core->nodes[id].flags & KVT_NODE_PINNED))
				break;
		return id;
	}
	if (core->heap.count == 0)
		return KVT_NONE;
	id = core->heap.nodes[0];
	if (core->nodes[id].flags & KVT_NODE_PINNED) {
		pinned = id; /* at most one leaf is on the path: look past it */
		kvt_heap_remove(core, &core->heap, pinned);
		id = core->heap.count ? core->heap.nodes[0] : KVT_NONE;
		kvt_heap_update(core, &core->heap, pinned);
	}
	return id;
}

void kvt_evict_pages(struct kvt_core *core, uint32_t n)
{
	while (n > 0) {
		uint32_t steps = UINT32_MAX, id, take;

		take = kvt_reclaim(core, &steps, n);
		n -= take;
		if (n == 0)
			return;
		if (core->stale_roots > 0) {
			kvt_detach_stale(core, 1, UINT32_MAX);
			continue;
		}
		id = victim(core);
		KVT_ASSERT(id != KVT_NONE);
		take = kvt_min(n, core->nodes[id].n_slots);
		kvt_node_trim(core, id, take);
		n -= take;
	}
}

void kvt_evict_nodes(struct kvt_core *core, uint32_t n)
{
	while (core->free_nodes.count < n) {
		uint32_t id, steps = 1;

		if (core->detached_count > 0) {
			kvt_reclaim(core, &steps, UINT32_MAX);
			continue;
		}
		if (core->stale_roots > 0) {
			kvt_detach_stale(core, 1, UINT32_MAX);
			continue;
		}
		id = victim(core);
		KVT_ASSERT(id != KVT_NONE);
		kvt_node_trim(core, id, core->nodes[id].n_slots);
	}
}
