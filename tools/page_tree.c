/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/page_tree.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/fetch.h"
#include "shm/atomic.h"
#include "shm/racy.h"

#define TRIES_MOST 1000 /* a node changes in each of them, or the daemon died while it changed it */
#define SEVERAL UINT32_MAX

/* The session that computed all cached pages of a run; SEVERAL; 0: unknown. */
static uint32_t sealer_of(const struct kvt_arena_view *view, const uint32_t *pages, uint32_t n)
{
	struct kvt_page_record record;
	uint32_t sealer = 0;

	for (uint32_t i = 0; i < n && sealer != SEVERAL; i++) {
		uint32_t page = kvt_load_relaxed(&pages[i]);

		if (page >= view->n_pages)
			continue;
		kvt_racy_copy((uint32_t *)&record, (const uint32_t *)&view->pages[page],
			      sizeof(record) / sizeof(uint32_t));
		sealer = i == 0 || record.sealer == sealer ? record.sealer : SEVERAL;
	}
	return sealer;
}

static uint32_t sides_of(const struct kvt_arena_view *view, const uint32_t *pages, uint32_t n)
{
	uint32_t sides = 0;

	for (uint32_t i = 0; view->n_sides && i < n; i++)
		for (uint32_t kind = 0; kind < view->n_sides; kind++)
			sides += kvt_arena_side(view, kvt_load_relaxed(&pages[i]), kind) !=
				 KVT_NONE;
	return sides;
}

/* Read what a node's version covers. False: it is free, or changes all the time. */
static bool read_run(const struct kvt_arena_view *view, uint32_t id, uint32_t *row,
		     uint32_t *ret_first_slot)
{
	const struct kvt_node *node = &view->nodes[id];

	for (unsigned int tries = 0; tries < TRIES_MOST; tries++) {
		/* Pairs with the release that ends a change of the node. */
		uint32_t version = kvt_load_acquire(&node->version);

		row[KVT_PAGE_FIELD_node] = id;
		row[KVT_PAGE_FIELD_parent] = kvt_load_relaxed(&node->parent);
		row[KVT_PAGE_FIELD_namespace] = kvt_load_relaxed(&node->namespace_id);
		row[KVT_PAGE_FIELD_start] = kvt_load_relaxed(&node->start);
		row[KVT_PAGE_FIELD_pages] = kvt_load_relaxed(&node->n_slots);
		row[KVT_PAGE_FIELD_sealed] = kvt_load_relaxed(&node->sealed);
		row[KVT_PAGE_FIELD_flags] = kvt_load_relaxed(&node->flags);
		*ret_first_slot = kvt_load_relaxed(&node->first_slot);
		/* Pairs with the release fence that begins one. */
		kvt_fence_acquire();
		if (!(version & 1) && kvt_load_relaxed(&node->version) == version)
			return row[KVT_PAGE_FIELD_flags] & KVT_NODE_LIVE;
	}
	return false;
}

static bool read_node(const struct kvt_arena_view *view, uint32_t id, uint64_t now_ns,
		      uint32_t *row)
{
	const struct kvt_node *node = &view->nodes[id];
	uint32_t first_slot, sealed;
	const uint32_t *pages;
	uint64_t touched_ns, age_s;

	if (!read_run(view, id, row, &first_slot))
		return false;
	sealed = row[KVT_PAGE_FIELD_sealed];
	if (first_slot > view->n_slots || sealed > view->n_slots - first_slot)
		return false; /* a broken arena */
	pages = &view->slot_pages[first_slot];
	touched_ns = kvt_load_relaxed(&node->touched_ns);
	age_s = now_ns > touched_ns ? (now_ns - touched_ns) / 1000000000 : 0;
	row[KVT_PAGE_FIELD_locks] = kvt_load_relaxed(&node->lock_ref);
	row[KVT_PAGE_FIELD_uses] = kvt_load_relaxed(&node->uses);
	row[KVT_PAGE_FIELD_age_s] = age_s < UINT32_MAX ? (uint32_t)age_s : UINT32_MAX;
	row[KVT_PAGE_FIELD_sealer] = sealer_of(view, pages, sealed);
	row[KVT_PAGE_FIELD_sides] = sides_of(view, pages, sealed);
	return true;
}

/* Pages up to the last point of a node; 0: there is none. */
static uint32_t point_of(const struct kvt_client *client, const struct kvt_tree_node *node,
			 uint32_t first_slot)
{
	uint32_t n = node->sealed;

	if (!node->sides || node->flags & KVT_NODE_DETACHED)
		return 0;
	while (n > 0 && !kvt_client_is_point(client, kvt_load_relaxed(
				&client->arena.slot_pages[first_slot + n - 1])))
		n--;
	return n ? node->start + n : 0;
}

/* Read what the page does not show. False: the node has changed since its row was read. */
static bool read_more(const struct kvt_client *client, uint64_t now_ns, uint32_t version,
		      struct kvt_tree_node *to)
{
	const struct kvt_arena_view *view = &client->arena;
	const struct kvt_node *node = &view->nodes[to->node];
	uint32_t pages = to->pages, slot = kvt_load_relaxed(&node->first_slot);
	uint64_t touched_ns = kvt_load_relaxed(&node->touched_ns);
	uint64_t expiry_ns = kvt_load_relaxed(&node->expiry_ns);

	if (slot > view->n_slots || pages > view->n_slots - slot)
		return false;
	to->generation = kvt_load_relaxed(&node->generation);
	to->n_children = kvt_load_relaxed(&node->n_children);
	to->priority = kvt_load_relaxed(&node->priority);
	to->root_key = to->flags & KVT_NODE_KEYED ? kvt_load_relaxed(&view->root_keys[to->node]) :
						    0;
	to->age_ns = now_ns > touched_ns ? now_ns - touched_ns : 0;
	to->expires_in_ns = expiry_ns == UINT64_MAX || expiry_ns > now_ns ? expiry_ns : now_ns;
	to->expires_in_ns -= expiry_ns == UINT64_MAX ? 0 : now_ns;
	for (uint32_t i = 0; i < 4 && i < pages * view->page_size; i++)
		to->keys[i] = kvt_load_relaxed(
			&view->slot_keys[(size_t)slot * view->page_size + i]);
	to->point = point_of(client, to, slot);
	/* Pairs with the release fence that begins a change. */
	kvt_fence_acquire();
	return kvt_load_relaxed(&node->version) == version;
}

/* Read a node, with `more` or without. False: it is free, or changes all the time. */
static bool read_all(const struct kvt_client *client, uint32_t id, uint64_t now_ns, bool more,
		     struct kvt_tree_node *to)
{
	const struct kvt_arena_view *view = &client->arena;

	memset(to, 0, sizeof(*to));
	for (unsigned int tries = 0; tries < TRIES_MOST; tries++) {
		/* Pairs with the release that ends a change of the node. */
		uint32_t version = kvt_load_acquire(&view->nodes[id].version);

		if (!read_node(view, id, now_ns, to->row))
			return false;
		if (!more || read_more(client, now_ns, version, to))
			return true;
	}
	return false;
}

void kvt_tree_read(const struct kvt_client *client, uint64_t now_ns, uint32_t most, bool more,
		   struct kvt_tree *ret_tree)
{
	const struct kvt_arena_view *view = &client->arena;
	struct kvt_tree tree = { .n = 0 };
	struct kvt_tree_node node;
	size_t room = 0;

	for (uint32_t id = 1; id < view->max_nodes; id++) {
		if (!(kvt_load_relaxed(&view->nodes[id].flags) & KVT_NODE_LIVE) ||
		    !read_all(client, id, now_ns, more, &node))
			continue;
		if (tree.n == most) {
			tree.omitted++;
			continue;
		}
		if (tree.n == room) {
			room = room * 2 + 512;
			tree.nodes = kvt_memory_grow(tree.nodes, room, sizeof(node));
		}
		tree.nodes[tree.n++] = node;
	}
	*ret_tree = tree;
}

void kvt_tree_print(const struct kvt_tree *tree, struct kvt_text *text)
{
	uint32_t *column = kvt_memory_grow(NULL, tree->n + 1ull, sizeof(*column));

	for (unsigned int field = 0; field < KVT_PAGE_N_FIELDS; field++) {
		for (uint32_t i = 0; i < tree->n; i++)
			column[i] = tree->nodes[i].row[field];
		kvt_text_add(text, (const char *)column, tree->n * sizeof(*column));
	}
	free(column);
}
