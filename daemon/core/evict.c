/* SPDX-License-Identifier: Apache-2.0 */

/* Make room: reclaim detached nodes first, then evict what namespaces have above their limits, then
 * the policy's victims, each from its last page backwards and only as far as needed. A page takes
 * its side pages along, so the last one may free more. A side page that was let go is a victim,
 * too, if that was before the policy's victim was last used. */

#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/evict.h"
#include "daemon/core/leaf.h"
#include "daemon/core/order.h"
#include "daemon/core/side.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"

/** The next victim off the pinned path: of a namespace above its limit, else the policy's.
 * `*ret_most`: pages that may leave it as such, UINT32_MAX for the policy's. */
static uint32_t victim(struct kvt_core *core, uint32_t *ret_most)
{
	uint32_t id = kvt_limit_victim(core, ret_most), pinned = KVT_NONE;

	if (id != KVT_NONE)
		return id;
	*ret_most = UINT32_MAX;
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

/** True if the side page that was let go first goes before a victim. */
static bool side_first(const struct kvt_core *core, uint32_t id)
{
	return core->n_let > 0 && (id == KVT_NONE || core->let[core->let_first].tick <
							     core->nodes[id].touched);
}

static void evict_side(struct kvt_core *core)
{
	uint32_t page = core->let_first;

	kvt_event_add(core, KVT_EV_SIDE, kvt_side_drop_let(core), page, 1);
	core->count->evicted_pages++;
}

/** Evict up to n pages off the pinned path. Returns how many are still missing. */
static uint32_t evict_some(struct kvt_core *core, uint32_t n)
{
	while (n > 0) {
		uint32_t steps = UINT32_MAX, most, id;

		n -= kvt_min(n, kvt_reclaim(core, &steps, n));
		if (n == 0)
			return 0;
		if (core->stale_roots > 0) {
			kvt_detach_stale(core, 1, UINT32_MAX);
			continue;
		}
		id = victim(core, &most);
		if (most == UINT32_MAX && side_first(core, id)) {
			evict_side(core);
			n--;
			continue;
		}
		if (id == KVT_NONE)
			return n;
		most = kvt_node_last(core, id, kvt_min(n, most));
		n -= kvt_min(n, kvt_node_trim(core, id, most, 0));
	}
	return 0;
}

void kvt_evict_pages(struct kvt_core *core, uint32_t n)
{
	KVT_ASSERT(n <= core->count->evictable_pages);
	n = evict_some(core, n);
	KVT_ASSERT(n == 0);
}

void kvt_evict_path_last(struct kvt_core *core, uint32_t n, uint32_t path_node)
{
	KVT_ASSERT(n <= core->count->evictable_pages);
	kvt_path_pin(core, path_node, true);
	n = evict_some(core, n);
	kvt_path_pin(core, path_node, false);
	kvt_evict_pages(core, n);
}

void kvt_evict_path_end(struct kvt_core *core, uint32_t n, uint32_t leaf)
{
	while (n > 0) {
		uint32_t parent = core->nodes[leaf].parent, pages = kvt_node_last(core, leaf, n);
		bool whole = pages == core->nodes[leaf].n_slots;

		n -= kvt_min(n, kvt_node_trim(core, leaf, pages, 0));
		if (whole)
			leaf = parent;
	}
}

void kvt_evict_nodes(struct kvt_core *core, uint32_t n)
{
	KVT_ASSERT(n < core->config.max_nodes);
	while (core->free_nodes.count < n) {
		uint32_t id, steps = 1, most;

		if (core->detached_count > 0) {
			kvt_reclaim(core, &steps, UINT32_MAX);
			continue;
		}
		if (core->stale_roots > 0) {
			kvt_detach_stale(core, 1, UINT32_MAX);
			continue;
		}
		id = victim(core, &most);
		KVT_ASSERT(id != KVT_NONE);
		kvt_node_trim(core, id, core->nodes[id].n_slots, 0);
	}
}
