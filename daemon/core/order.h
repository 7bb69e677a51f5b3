/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_ORDER_H
#define KVT_CORE_ORDER_H

/**
 * @file order.h
 * The order in which nodes leave: eviction policies, recency, heaps.
 *
 * The recency list holds every unlocked node but roots, oldest to youngest. A touch moves a whole
 * path, deepest node first. So a listed child is older than its listed parent, and the oldest node
 * is a leaf.
 */

#include "daemon/core/state.h"

struct kvt_policy_row {
	const char *name;
	bool list; /* the recency list is the order */
	bool (*before)(const struct kvt_core *core, const struct kvt_node *a,
		       const struct kvt_node *b);
	/* True if joining a parent and its only child changes no choice of victims. */
	bool (*same)(const struct kvt_core *core, const struct kvt_node *upper,
		     const struct kvt_node *lower);
};
extern const struct kvt_policy_row kvt_policies[KVT_POLICY_COUNT];

/** Put a node or namespace into a heap, or move it to where it belongs now. */
void kvt_heap_update(struct kvt_core *core, struct kvt_heap *heap, uint32_t id);
/** Take it out of the heap that holds it. */
void kvt_heap_remove(struct kvt_core *core, struct kvt_heap *heap, uint32_t id);
/** The place + 1 of a node or namespace in a heap, 0 if it is not there. */
uint32_t *kvt_heap_place(const struct kvt_core *core, const struct kvt_heap *heap, uint32_t id);
/** True if a goes before b in a heap. */
bool kvt_heap_before(const struct kvt_core *core, const struct kvt_heap *heap, uint32_t a,
		     uint32_t b);

/** True if a node is in the recency list. */
static inline bool kvt_node_listed(const struct kvt_node *node)
{
	return node->younger != KVT_NODE_UNLISTED;
}

/** List a node as the youngest. */
static inline void kvt_recency_add(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);

	node->older = core->youngest;
	node->younger = KVT_NONE;
	if (core->youngest != KVT_NONE)
		core->nodes[core->youngest].younger = id;
	else
		core->oldest = id;
	core->youngest = id;
}

/** Put a node right on the young side of a listed one: the upper half of a split belongs there. */
static inline void kvt_recency_add_after(struct kvt_core *core, uint32_t id,
					 uint32_t older)
{
	struct kvt_node *node = kvt_node_at(core, id);

	node->older = older;
	node->younger = core->nodes[older].younger;
	core->nodes[older].younger = id;
	if (node->younger != KVT_NONE)
		core->nodes[node->younger].older = id;
	else
		core->youngest = id;
}

/** Unlist a node. */
static inline void kvt_recency_remove(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);

	if (node->older != KVT_NONE)
		core->nodes[node->older].younger = node->younger;
	else
		core->oldest = node->younger;
	if (node->younger != KVT_NONE)
		core->nodes[node->younger].older = node->older;
	else
		core->youngest = node->older;
	node->younger = KVT_NODE_UNLISTED;
}

#endif
