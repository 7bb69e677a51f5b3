/* SPDX-License-Identifier: Apache-2.0 */

/* Eviction order: the table of policies, and indexed heaps.
 *
 * All of it is derived from node fields (touched, uses, created, priority, start, expiry).
 * Invariants: with a list policy the recency list alone decides; with any other the policy
 * heap holds exactly the evictable leaves. Callers: leaves and expiry when a node changes, eviction
 * to choose, recovery to rebuild. */

#include "daemon/core/core.h"
#include "daemon/core/order.h"
#include "daemon/core/state.h"

/* ---- the policies: `before` orders victims, smallest first */

static bool older(const struct kvt_core *core, const struct kvt_node *a, const struct kvt_node *b)
{
	(void)core;
	return a->touched < b->touched;
}

static bool segmented(const struct kvt_core *core, const struct kvt_node *a,
		      const struct kvt_node *b)
{
	bool a_kept = a->uses >= core->config.slru_threshold;
	bool b_kept = b->uses >= core->config.slru_threshold;

	return a_kept != b_kept ? b_kept : older(core, a, b);
}

static bool fewer_uses(const struct kvt_core *core, const struct kvt_node *a,
		       const struct kvt_node *b)
{
	return a->uses != b->uses ? a->uses < b->uses : older(core, a, b);
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
	       (upper->uses == lower->uses ||
		(upper->uses >= threshold && lower->uses >= threshold));
}

static bool same_uses(const struct kvt_core *core, const struct kvt_node *upper,
		      const struct kvt_node *lower)
{
	return same_touch(core, upper, lower) && upper->uses == lower->uses;
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
	[KVT_POLICY_LFU] = { "lfu", false, fewer_uses, same_uses },
	[KVT_POLICY_FIFO] = { "fifo", false, made_earlier, same_birth },
	[KVT_POLICY_FILO] = { "filo", false, made_later, same_birth },
	[KVT_POLICY_MRU] = { "mru", false, younger, same_touch },
	[KVT_POLICY_PRIORITY] = { "priority", false, less_important, same_touch },
};

const char *kvt_policy_name(uint32_t policy)
{
	return policy < KVT_POLICY_COUNT ? kvt_policies[policy].name : "unknown";
}

/* ---- heaps: smallest first; each node or namespace knows its place + 1 */

/** Pages of a namespace above its limit. */
static uint64_t excess(const struct kvt_core *core, uint32_t id)
{
	return core->namespaces[id].cached_pages - core->namespaces[id].limit;
}

/** Out of line, so that the order of leaves is inlined. */
static __attribute__((noinline)) bool other_before(const struct kvt_core *core,
						   const struct kvt_heap *heap, uint32_t a,
						   uint32_t b)
{
	const struct kvt_node *x, *y;

	if (heap->of == KVT_HEAP_OVER)
		return excess(core, a) != excess(core, b) ? excess(core, a) > excess(core, b) :
							    a < b;
	x = kvt_node_at(core, a);
	y = kvt_node_at(core, b);
	return x->expiry_ns != y->expiry_ns ? x->expiry_ns < y->expiry_ns : x->start < y->start;
}

bool kvt_heap_before(const struct kvt_core *core, const struct kvt_heap *heap, uint32_t a,
		     uint32_t b)
{
	if (heap->of != KVT_HEAP_LEAVES)
		return other_before(core, heap, a, b);
	return kvt_policies[core->config.policy].before(core, kvt_node_at(core, a),
							kvt_node_at(core, b));
}

uint32_t *kvt_heap_place(const struct kvt_core *core, const struct kvt_heap *heap, uint32_t id)
{
	if (heap->of == KVT_HEAP_LEAVES)
		return &core->nodes[id].heap_at;
	return heap->of == KVT_HEAP_OVER ? &core->over_at[id] : &core->nodes[id].expiry_at;
}

static void heap_put(struct kvt_core *core, struct kvt_heap *heap, uint32_t at, uint32_t id)
{
	heap->nodes[at] = id;
	*kvt_heap_place(core, heap, id) = at + 1;
}

static void sift_up(struct kvt_core *core, struct kvt_heap *heap, uint32_t at)
{
	uint32_t node = heap->nodes[at];

	while (at > 0 && kvt_heap_before(core, heap, node, heap->nodes[(at - 1) / 2])) {
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
		    kvt_heap_before(core, heap, heap->nodes[child + 1], heap->nodes[child]))
			child++;
		if (!kvt_heap_before(core, heap, heap->nodes[child], node))
			break;
		heap_put(core, heap, at, heap->nodes[child]);
		at = child;
	}
	heap_put(core, heap, at, node);
}

void kvt_heap_update(struct kvt_core *core, struct kvt_heap *heap, uint32_t node)
{
	uint32_t *place = kvt_heap_place(core, heap, node);

	KVT_ASSERT(*place ? heap->nodes[*place - 1] == node :
			    heap->count < core->config.max_nodes);
	if (*place == 0)
		heap_put(core, heap, heap->count++, node);
	sift_up(core, heap, *place - 1);
	sift_down(core, heap, *place - 1);
}

void kvt_heap_remove(struct kvt_core *core, struct kvt_heap *heap, uint32_t node)
{
	uint32_t *place = kvt_heap_place(core, heap, node), at = *place - 1, last;

	KVT_ASSERT(*place > 0 && heap->nodes[at] == node);
	*place = 0;
	last = heap->nodes[--heap->count];
	if (last == node)
		return;
	heap_put(core, heap, at, last);
	sift_up(core, heap, at);
	sift_down(core, heap, *kvt_heap_place(core, heap, last) - 1);
}
