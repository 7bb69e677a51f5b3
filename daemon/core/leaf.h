/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_LEAF_H
#define KVT_CORE_LEAF_H

/**
 * @file leaf.h
 * Evictable leaves: in the heap of the policy and, if their namespace has a limit of cached pages,
 * in an order by namespace.
 */

#include "daemon/core/state.h"

/** Put a node where evictable leaves are, or move it there, if it is one. Else take it out. */
void kvt_leaf_check(struct kvt_core *core, uint32_t node);
/** Take a node out. No evictable leaf: nothing. */
void kvt_leaf_remove(struct kvt_core *core, uint32_t node);
/** Find out whether a namespace is above its limit, after its cached pages changed. */
void kvt_limit_check(struct kvt_core *core, uint32_t namespace_id);
/** The first victim, off the pinned path, of the namespace that is farthest above its limit.
 * KVT_NONE: no namespace above one has any. `*ret_excess`: pages above the limit. */
uint32_t kvt_limit_victim(struct kvt_core *core, uint32_t *ret_excess);
/** Rebuild the order by namespace, when limits changed. */
void kvt_limits_changed(struct kvt_core *core);

#endif
