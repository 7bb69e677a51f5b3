/* SPDX-License-Identifier: Apache-2.0 */

/* Keys to a place in the tree. Keys may be client memory: they are compared, never trusted. A walk
 * changes nothing. */

#include <errno.h>

#include "daemon/core/entry.h"
#include "daemon/core/index.h"
#include "daemon/core/side.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/walk.h"

/** Go down from the end of walk->node. */
static int descend(struct kvt_core *core, struct kvt_walk *walk, const uint32_t *keys,
		   uint32_t base, uint32_t n_pages)
{
	while (walk->walked < base + n_pages) {
		uint32_t done = walk->walked - base, equal = 0;
		uint32_t child = kvt_index_find(core, walk->node, walk->root_key,
						keys + (size_t)done * core->ps, n_pages - done,
						&equal);
		struct kvt_node *node;

		if (child == KVT_NONE)
			return 0;
		if (kvt_is_expired(core, child))
			return KVT_EXPIRED;
		node = kvt_node_at(core, child);
		KVT_ASSERT(node->start == walk->walked && equal > 0);
		walk->node = child;
		walk->in_node = equal;
		walk->path_nodes++;
		if (walk->matched == walk->walked && node->sealed > 0) {
			walk->matched += kvt_min(equal, node->sealed);
			walk->match_node = child;
		}
		walk->walked += equal;
		if (equal < node->n_slots)
			return 0;
	}
	return 0;
}

int kvt_walk_from(struct kvt_core *core, struct kvt_walk *walk, const uint32_t *keys,
		  uint32_t n_pages)
{
	struct kvt_node *node = kvt_node_at(core, walk->node);
	uint32_t base = walk->walked, rest = node->n_slots - walk->in_node;

	KVT_ASSERT(walk->in_node <= node->n_slots && walk->matched <= walk->walked);
	if (n_pages > 0 && rest > 0) {
		uint32_t equal = kvt_racy_equal_pages(
			keys, kvt_keys_at(core, node->first_slot + walk->in_node),
			kvt_min(rest, n_pages), core->ps);

		core->effort.keys_compared += equal * core->ps;
		if (walk->matched == walk->walked && node->sealed > walk->in_node)
			walk->matched += kvt_min(equal, node->sealed - walk->in_node);
		walk->in_node += equal;
		walk->walked += equal;
		if (equal < rest)
			return 0;
	}
	return descend(core, walk, keys, base, n_pages);
}

int kvt_walk_keys(struct kvt_core *core, uint32_t namespace_id, uint64_t root_key,
		  const uint32_t *keys, uint32_t n_pages, struct kvt_walk *walk)
{
	*walk = (struct kvt_walk){ .root_key = root_key, .root = kvt_root_of(core, namespace_id) };
	walk->node = walk->root;
	return walk->root != KVT_NONE ? descend(core, walk, keys, 0, n_pages) : 0;
}

/** Find the node that has what is left of a handle, and how many of its pages that are. False:
 * nothing, or the node has been reused. */
static bool find_left(struct kvt_core *core, uint32_t generation, uint32_t *id, uint32_t *pages)
{
	const struct kvt_remains *remains = &core->remains[*id];
	const struct kvt_node *node = kvt_node_at(core, *id);
	bool older = node->generation != generation;

	if (generation - remains->born > node->generation - remains->born ||
	    (!older && !(node->flags & KVT_NODE_LIVE)))
		return false;
	for (;; older = true) {
		if (older)
			*pages = kvt_min(*pages, core->remains[*id].left);
		if (core->nodes[*id].flags & KVT_NODE_LIVE)
			return *pages > 0;
		*id = core->remains[*id].heir;
		core->effort.nodes_touched++;
		if (*id == KVT_NONE)
			return false;
	}
}

int kvt_handle_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t *ret_node,
		     uint32_t *ret_pages)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t id = sqe->node, pages = sqe->positions / core->ps, holder;
	bool shorter = sqe->op == KVT_OP_LOCK && (sqe->flags & KVT_F_SHORTER);
	const struct kvt_node *node;

	if (id == KVT_NONE || id >= core->config.max_nodes)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	if (shorter && pages > 0 && !find_left(core, sqe->generation, &id, &pages))
		return kvt_refuse(op, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	node = kvt_node_at(core, id);
	if (!(node->flags & KVT_NODE_LIVE) || kvt_path_detached(core, id) ||
	    (!shorter && node->generation != sqe->generation))
		return kvt_refuse(op, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	if ((node->flags & KVT_NODE_ROOT) || pages == 0 || sqe->positions % core->ps)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	/* Below announced pages a node has none that are sealed: what counts is the node that holds
	 * the handle's last page, not the one that it names. */
	holder = kvt_path_node(core, id, pages - 1);
	if (pages > core->nodes[holder].start + core->nodes[holder].sealed)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	/* A node without a TTL may stand below one whose time has come. */
	for (uint32_t up = id; up != KVT_NONE; up = core->nodes[up].parent)
		if (kvt_is_expired(core, up))
			return KVT_EXPIRED;
	*ret_node = holder;
	*ret_pages = pages;
	return 0;
}

/** Stand at the end of the entry's start handle. */
static int start(struct kvt_core *core, struct kvt_op_context *op, struct kvt_walk *walk)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t pages, node = KVT_NONE;
	int error = kvt_handle_check(core, op, &node, &pages);

	if (error)
		return error;
	if (core->nodes[node].namespace_id != sqe->namespace_id)
		return kvt_refuse(op, -EINVAL, KVT_REASON_NOT_CONTINUATION, 0);
	*walk = (struct kvt_walk){
		.root = node,
		.node = node,
		.match_node = node,
		.in_node = pages - core->nodes[node].start,
		.named = pages,
		.walked = pages,
		.matched = pages,
	};
	for (; core->nodes[node].n_slots > 0; node = core->nodes[node].parent)
		walk->path_nodes++;
	return 0;
}

int kvt_walk_entry(struct kvt_core *core, struct kvt_op_context *op, uint32_t n_pages,
		   struct kvt_walk *walk)
{
	const struct kvt_sqe *sqe = op->sqe;
	int error;

	if (core->config.disabled) { /* also what was cached before a restart misses */
		error = kvt_walk_keys(core, sqe->namespace_id, op->root_key, op->keys, 0, walk);
	} else if (sqe->node != KVT_NONE) {
		error = start(core, op, walk);
		if (!error)
			error = kvt_walk_from(core, walk, op->keys, n_pages);
	} else if (sqe->generation || sqe->positions) {
		error = kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	} else {
		error = kvt_walk_keys(core, sqe->namespace_id, op->root_key, op->keys, n_pages,
				      walk);
	}
	if (error)
		return error;
	core->effort.path_nodes = walk->path_nodes;
	if (sqe->node == KVT_NONE && walk->walked > 0) {
		core->record.known_node = walk->node;
		core->record.known_positions = walk->walked * core->ps;
	}
	return 0;
}

/* ---- where a reader can continue */

/** True if page `at` of a path lacks a side page that a reader behind its first `end` needs. */
static bool lacks_side(const struct kvt_core *core, uint32_t page, uint32_t at, uint32_t end)
{
	const uint32_t *sides = kvt_sides_of(core, page);

	for (uint32_t kind = 0; kind < core->n_sides; kind++)
		if (sides[kind] == KVT_NONE && end - at <= core->config.side_pages[kind])
			return true;
	return false;
}

uint32_t kvt_walk_search(struct kvt_core *core, uint32_t node, uint32_t pages, uint32_t floor)
{
	uint32_t end = pages, at = pages;

	/* Downwards: a page that lacks a side is the end of the next candidate. */
	while (at > 0 && end > floor && end - at < core->side_most) {
		const struct kvt_node *holder;
		uint32_t page;

		while (core->nodes[node].start >= at)
			node = core->nodes[node].parent;
		holder = kvt_node_at(core, node);
		core->effort.nodes_touched++;
		if (at > core->side_top[node]) { /* no page down to there has any */
			at = core->side_top[node] > holder->start ? core->side_top[node] :
								    holder->start;
			end = at;
			continue;
		}
		page = core->slot_pages[holder->first_slot + --at - holder->start];
		if (lacks_side(core, page, at, end))
			end = at;
		if (core->side_top[node] == at + 1 && kvt_sides_count_of(core, page) == 0)
			core->side_top[node] = at;
	}
	return end;
}
