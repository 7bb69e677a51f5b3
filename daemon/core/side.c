/* SPDX-License-Identifier: Apache-2.0 */

/* Side pages (side.h), and how many a node has.
 *
 * Inputs are pages of nodes; nothing is refused here. Invariants: `sides` is a fact, and is saved
 * before it changes; sides_in counts a node's side pages; side_top is above the last page that has
 * one. Callers: COMMIT (attach.c), nodes (tree.c), what a path needs (grow.c). */

#include "daemon/core/page.h"
#include "daemon/core/side.h"
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

/** Count a side page that came to a node, or left it. */
static void count(struct kvt_core *core, uint32_t id, int n)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	bool locked = node->lock_ref > 0;

	core->sides_in[id] += (uint32_t)n;
	core->count->side_pages += (uint64_t)n;
	space->cached_pages += (uint64_t)n;
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
	kvt_save(core, side, sizeof(*side));
	KVT_SET(*side, KVT_NONE);
	kvt_page_uncache(core, page);
	count(core, id, -1);
	return true;
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
