/* SPDX-License-Identifier: Apache-2.0 */

/* Keys to a place in the tree. Keys may be client memory: they are compared, never trusted. A walk
 * changes nothing. */

#include "daemon/core/index.h"
#include "daemon/core/state.h"
#include "daemon/core/walk.h"

/** Go down from the end of walk->node. */
static int descend(struct kvt_core *core, struct kvt_walk *walk, const uint32_t *keys,
		   uint32_t base, uint32_t n_pages)
{
	while (walk->walked < base + n_pages) {
		uint32_t done = walk->walked - base, equal = 0;
		uint32_t child = kvt_index_find(core, walk->node, keys + (size_t)done * core->ps,
						n_pages - done, &equal);
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

int kvt_walk_keys(struct kvt_core *core, uint32_t namespace_id, const uint32_t *keys,
		  uint32_t n_pages, struct kvt_walk *walk)
{
	*walk = (struct kvt_walk){ .root = kvt_root_of(core, namespace_id) };
	walk->node = walk->root;
	return walk->root != KVT_NONE ? descend(core, walk, keys, 0, n_pages) : 0;
}
