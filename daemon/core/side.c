/* SPDX-License-Identifier: Apache-2.0 */

/* Side pages (side.h), and how many a node has.
 *
 * Inputs are pages of nodes; nothing is refused here. Invariants: `sides` is a fact, and is saved
 * before it changes; sides_in counts a node's side pages; side_top is above the last page that has
 * one. A page in the list of those that were let go hangs on a locked node, and is counted as
 * evictable. Callers: COMMIT (attach.c), BEGIN and END (lease.c), eviction (evict.c), nodes
 * (tree.c), what a path needs (grow.c). */

#include "daemon/core/leaf.h"
#include "daemon/core/ledger.h"
#include "daemon/core/page.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/undo.h"

static uint32_t count_between(const struct kvt_core *core, const struct kvt_node *node,
			      uint32_t from, uint32_t to)
{
	uint32_t n = 0;

	for (uint32_t at = from; at < to; at++)
		n += kvt_sides_count_of(core, core->slot_pages[node->first_slot + at]);
	return n;
}

uint32_t kvt_sides_count(const struct kvt_core *core, uint32_t id, uint32_t pages)
{
	const struct kvt_node *node = kvt_node_at(core, id);

	if (pages >= node->sealed || kvt_sides_in(core, id) == 0)
		return kvt_sides_in(core, id);
	if (pages <= node->sealed / 2)
		return count_between(core, node, 0, pages);
	return core->sides_in[id] - count_between(core, node, pages, node->sealed);
}

/** Count side pages of a locked node as evictable (1), or protected again (-1). */
static void weigh(struct kvt_core *core, uint32_t id, int n)
{
	struct kvt_namespace_record *space = &core->namespaces[core->nodes[id].namespace_id];

	KVT_ASSERT(core->nodes[id].lock_ref > 0);
	space->evictable_pages += (uint64_t)n;
	space->protected_pages -= (uint64_t)n;
	core->count->evictable_pages += (uint64_t)n;
	core->count->protected_pages -= (uint64_t)n;
}

/** Count a side page that came to a node, or left it. */
static void count(struct kvt_core *core, uint32_t id, int n)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	bool locked = node->lock_ref > 0;

	core->sides_in[id] += (uint32_t)n;
	core->count->side_pages += (uint64_t)n;
	space->cached_pages += (uint64_t)n;
	kvt_limit_check(core, node->namespace_id);
	*(locked ? &space->protected_pages : &space->evictable_pages) += (uint64_t)n;
	*(locked ? &core->count->protected_pages : &core->count->evictable_pages) += (uint64_t)n;
}

void kvt_side_attach(struct kvt_core *core, uint32_t id, uint32_t at, uint32_t kind,
		     uint32_t page)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	uint32_t main = core->slot_pages[node->first_slot + at];
	uint32_t *side = kvt_sides_of(core, main) + kind;

	KVT_ASSERT(at < node->sealed && kind < core->n_sides && *side == KVT_NONE);
	kvt_save(core, side, sizeof(*side));
	kvt_page_cache(core, page, KVT_NONE, main);
	KVT_SET(*side, page);
	count(core, id, 1);
	if (core->side_top[id] <= node->start + at)
		core->side_top[id] = node->start + at + 1;
}

bool kvt_side_drop(struct kvt_core *core, uint32_t id, uint32_t at, uint32_t kind)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	uint32_t *side = kvt_sides_of(core, core->slot_pages[node->first_slot + at]) + kind;
	uint32_t page = *side;

	KVT_ASSERT(at < node->sealed && kind < core->n_sides);
	if (page == KVT_NONE)
		return false;
	if (kvt_side_is_let(core, page))
		kvt_side_hold(core, page);
	kvt_save(core, side, sizeof(*side));
	KVT_SET(*side, KVT_NONE);
	kvt_page_uncache(core, page);
	count(core, id, -1);
	return true;
}

static uint32_t node_of(const struct kvt_core *core, uint32_t page)
{
	return kvt_slots_node_of(&core->slots, core->pages[core->pages[page].parent].slot);
}

void kvt_side_let(struct kvt_core *core, uint32_t id, uint32_t page, uint32_t lease)
{
	KVT_ASSERT(lease != KVT_NONE && !kvt_side_is_let(core, page));
	core->let[page] = (struct kvt_let){
		.lease = lease, .older = core->let_last, .tick = core->ledger->clock,
	};
	*(core->let_last ? &core->let[core->let_last].younger : &core->let_first) = page;
	core->let_last = page;
	core->let_of[lease]++;
	core->n_let++;
	weigh(core, id, 1);
}

void kvt_side_hold(struct kvt_core *core, uint32_t page)
{
	struct kvt_let *let = &core->let[page];

	KVT_ASSERT(let->lease != KVT_NONE && core->n_let > 0 && core->let_of[let->lease] > 0);
	*(let->older ? &core->let[let->older].younger : &core->let_first) = let->younger;
	*(let->younger ? &core->let[let->younger].older : &core->let_last) = let->older;
	core->let_of[let->lease]--;
	core->n_let--;
	*let = (struct kvt_let){ 0 };
	weigh(core, node_of(core, page), -1);
}

void kvt_sides_hold_all(struct kvt_core *core, uint32_t lease)
{
	for (uint32_t page = core->let_first, next; core->let_of[lease] > 0; page = next) {
		next = core->let[page].younger;
		core->effort.nodes_touched++;
		if (core->let[page].lease == lease)
			kvt_side_hold(core, page);
	}
}

uint32_t kvt_side_drop_let(struct kvt_core *core)
{
	uint32_t page = core->let_first, id = node_of(core, page), kind = 0;
	uint32_t main = core->pages[page].parent;

	while (kvt_sides_of(core, main)[kind] != page)
		kind++;
	kvt_side_drop(core, id, core->pages[main].slot - core->nodes[id].first_slot, kind);
	return id;
}

uint32_t kvt_sides_leave(struct kvt_core *core, uint32_t main)
{
	uint32_t *sides = kvt_sides_of(core, main), n = 0;

	for (uint32_t kind = 0; kind < core->n_sides; kind++) {
		uint32_t page = sides[kind];

		if (page == KVT_NONE)
			continue;
		if (n++ == 0)
			kvt_save(core, sides, core->n_sides * sizeof(*sides));
		KVT_SET(sides[kind], KVT_NONE);
		kvt_page_uncache(core, page);
	}
	core->count->side_pages -= n;
	return n;
}
