/* SPDX-License-Identifier: Apache-2.0 */

/* Evictable leaves (leaf.h).
 *
 * With a list policy the recency list has them, so there is no heap. The order by namespace, then
 * policy, is a treap of the leaves of namespaces with a limit: each step costs the logarithm of
 * their number. A node's rank is a hash of its id, so that neither order of ids nor of use makes it
 * deep. A second heap has the namespaces above their limit that have such a leaf, the one farthest
 * above it first. All of it is derived. Callers: the tree when a node, its locks or the pages of
 * its namespace change, eviction to choose, recovery to rebuild. */

#include <string.h>

#include "daemon/core/leaf.h"
#include "daemon/core/order.h"
#include "daemon/core/state.h"

/* ---- the order by namespace */

static uint32_t rank_of(const struct kvt_core *core, uint32_t id)
{
	uint32_t hash = id ^ (uint32_t)core->config.hash_seed;

	hash = (hash ^ hash >> 16) * 0x85ebca6bu;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
	return (hash ^ hash >> 16) | 1; /* 0: not in the treap */
}

/** True if a is nearer to the root. */
static bool is_above(const struct kvt_leaf *leaves, uint32_t a, uint32_t b)
{
	return leaves[a].rank != leaves[b].rank ? leaves[a].rank < leaves[b].rank : a < b;
}

static bool is_before(const struct kvt_core *core, uint32_t a, uint32_t b)
{
	const struct kvt_node *x = kvt_node_at(core, a), *y = kvt_node_at(core, b);
	const struct kvt_policy_row *policy = &kvt_policies[core->config.policy];

	if (x->namespace_id != y->namespace_id)
		return x->namespace_id < y->namespace_id;
	if (policy->before(core, x, y) != policy->before(core, y, x))
		return policy->before(core, x, y);
	return a < b;
}

/** Insert a node, and divide what it displaces into what is before it and what is not. */
static void leaf_put(struct kvt_core *core, uint32_t id)
{
	struct kvt_leaf *leaves = core->leaves, *leaf = &leaves[id];
	uint32_t *place = &core->leaf_root, *before = &leaf->left, *after = &leaf->right;
	uint32_t up = KVT_NONE, up_before = id, up_after = id, rest;

	leaf->rank = rank_of(core, id);
	while (*place != KVT_NONE && is_above(leaves, *place, id)) {
		up = *place;
		place = is_before(core, id, up) ? &leaves[up].left : &leaves[up].right;
	}
	rest = *place;
	*place = id;
	leaf->up = up;
	while (rest != KVT_NONE) {
		bool first = is_before(core, rest, id);

		*(first ? before : after) = rest;
		leaves[rest].up = first ? up_before : up_after;
		*(first ? &up_before : &up_after) = rest;
		if (first)
			before = &leaves[rest].right;
		else
			after = &leaves[rest].left;
		rest = first ? *before : *after;
	}
	*before = *after = KVT_NONE;
}

/** Remove a node, whose place in the order may have changed already. */
static void leaf_take(struct kvt_core *core, uint32_t id)
{
	struct kvt_leaf *leaves = core->leaves, *leaf = &leaves[id];
	uint32_t up = leaf->up, a = leaf->left, b = leaf->right;
	uint32_t *place = up == KVT_NONE	   ? &core->leaf_root :
			  leaves[up].left == id ? &leaves[up].left :
						  &leaves[up].right;

	while (a != KVT_NONE && b != KVT_NONE) {
		bool first = is_above(leaves, a, b);
		uint32_t top = first ? a : b;

		*place = top;
		leaves[top].up = up;
		up = top;
		place = first ? &leaves[top].right : &leaves[top].left;
		*(first ? &a : &b) = *place;
	}
	*place = a != KVT_NONE ? a : b;
	if (*place != KVT_NONE)
		leaves[*place].up = up;
	*leaf = (struct kvt_leaf){ 0 };
}

static uint32_t first_of(const struct kvt_core *core, uint32_t namespace_id)
{
	uint32_t id = core->leaf_root, first = KVT_NONE;

	while (id != KVT_NONE) {
		if (core->nodes[id].namespace_id >= namespace_id)
			first = id;
		id = core->nodes[id].namespace_id >= namespace_id ? core->leaves[id].left :
								    core->leaves[id].right;
	}
	KVT_ASSERT(first != KVT_NONE && core->nodes[first].namespace_id == namespace_id);
	return first;
}

/** The next leaf of the same namespace. */
static uint32_t next_of(const struct kvt_core *core, uint32_t id)
{
	const struct kvt_leaf *leaves = core->leaves;
	uint32_t next = leaves[id].right, from = id;

	if (next != KVT_NONE) {
		while (leaves[next].left != KVT_NONE)
			next = leaves[next].left;
	} else {
		for (next = leaves[id].up; next != KVT_NONE && leaves[next].right == from;
		     next = leaves[next].up)
			from = next;
	}
	return next != KVT_NONE && core->nodes[next].namespace_id == core->nodes[id].namespace_id ?
		       next :
		       KVT_NONE;
}

/* ---- limits */

void kvt_limit_apply(struct kvt_core *core, uint32_t id)
{
	const struct kvt_namespace_record *space = &core->namespaces[id];

	if (!space->limit)
		return;
	if (space->cached_pages > space->limit && core->leaves_in[id] > 0)
		kvt_heap_update(core, &core->over, id);
	else if (core->over_at[id])
		kvt_heap_remove(core, &core->over, id);
}

static bool has_limit(const struct kvt_core *core, uint32_t node)
{
	return core->limited && core->namespaces[core->nodes[node].namespace_id].limit > 0;
}

static void limit_leaf(struct kvt_core *core, uint32_t id, bool evictable)
{
	uint32_t namespace_id = core->nodes[id].namespace_id;

	if (core->leaves[id].rank) {
		leaf_take(core, id);
		core->leaves_in[namespace_id]--;
	}
	if (evictable) {
		leaf_put(core, id);
		core->leaves_in[namespace_id]++;
	}
	kvt_limit_check(core, namespace_id);
}

uint32_t kvt_limit_victim(struct kvt_core *core, uint32_t *ret_excess)
{
	uint32_t id = KVT_NONE, space, passed = KVT_NONE;

	while (id == KVT_NONE && core->over.count > 0) {
		space = core->over.nodes[0];
		id = first_of(core, space);
		*ret_excess = (uint32_t)core->namespaces[space].cached_pages -
			      core->namespaces[space].limit;
		if (!(core->nodes[id].flags & KVT_NODE_PINNED))
			break;
		id = next_of(core, id); /* at most one leaf is on the path */
		if (id != KVT_NONE)
			break;
		KVT_ASSERT(passed == KVT_NONE);
		passed = space;
		kvt_heap_remove(core, &core->over, space);
	}
	if (passed != KVT_NONE)
		kvt_heap_update(core, &core->over, passed);
	return id;
}

/* ---- leaves */

static bool is_evictable(const struct kvt_node *node)
{
	return node->lock_ref == 0 && node->n_children == 0 && node->n_slots > 0 &&
	       !(node->flags & KVT_NODE_ROOT);
}

void kvt_leaf_place(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);
	bool evictable = is_evictable(node);

	if (has_limit(core, id))
		limit_leaf(core, id, evictable);
	if (kvt_policies[core->config.policy].list)
		return;
	if (evictable)
		kvt_heap_update(core, &core->heap, id);
	else if (node->heap_at)
		kvt_heap_remove(core, &core->heap, id);
}

void kvt_leaf_displace(struct kvt_core *core, uint32_t id)
{
	if (core->nodes[id].heap_at)
		kvt_heap_remove(core, &core->heap, id);
	if (core->limited && core->leaves[id].rank)
		limit_leaf(core, id, false);
}

void kvt_limits_changed(struct kvt_core *core)
{
	const struct kvt_core_config *c = &core->config;

	if (!core->limited)
		return;
	memset(core->leaves, 0, c->max_nodes * sizeof(*core->leaves));
	memset(core->leaves_in, 0, c->max_namespaces * sizeof(*core->leaves_in));
	memset(core->over_at, 0, c->max_namespaces * sizeof(*core->over_at));
	core->leaf_root = KVT_NONE;
	core->over.count = 0;
	for (uint32_t id = 1; id < c->max_nodes; id++)
		if (core->nodes[id].flags & KVT_NODE_LIVE && has_limit(core, id))
			limit_leaf(core, id, is_evictable(kvt_node_at(core, id)));
}
