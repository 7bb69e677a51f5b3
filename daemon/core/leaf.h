/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_LEAF_H
#define KVT_CORE_LEAF_H

/**
 * @file leaf.h
 * Evictable leaves: in the heap of the policy and, if their namespace has a limit of cached pages,
 * in an order by namespace.
 */

#include "daemon/core/state.h"

/** kvt_leaf_check(), kvt_leaf_remove() and kvt_limit_check() where there is an order to keep. */
void kvt_leaf_place(struct kvt_core *core, uint32_t node);
void kvt_leaf_displace(struct kvt_core *core, uint32_t node);
void kvt_limit_apply(struct kvt_core *core, uint32_t namespace_id);

/** Put a node where evictable leaves are, or move it there, if it is one. Else take it out. A
 * locked one is out since it was locked. */
static inline void kvt_leaf_check(struct kvt_core *core, uint32_t node)
{
	if (core->leaves_ordered && core->nodes[node].lock_ref == 0)
		kvt_leaf_place(core, node);
}

/** Take a node out. No evictable leaf: nothing. */
static inline void kvt_leaf_remove(struct kvt_core *core, uint32_t node)
{
	if (core->leaves_ordered)
		kvt_leaf_displace(core, node);
}

/** Find out whether a namespace is above its limit, after its cached pages changed. */
static inline void kvt_limit_check(struct kvt_core *core, uint32_t namespace_id)
{
	if (core->limited)
		kvt_limit_apply(core, namespace_id);
}

/** The first victim, off the pinned path, of the namespace that is farthest above its limit.
 * KVT_NONE: no namespace above one has any. `*ret_excess`: pages above the limit. */
uint32_t kvt_limit_victim(struct kvt_core *core, uint32_t *ret_excess);
/** Rebuild the order by namespace, when limits changed. */
void kvt_limits_changed(struct kvt_core *core);

#endif
