/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_DETACH_H
#define KVT_CORE_DETACH_H

/**
 * @file detach.h
 * Detached subtrees: how they become so, and how they are reclaimed.
 */

#include "daemon/core/state.h"

/** Detach the subtree at `node`: nothing in it matches from now on. `why`: one of KVT_NODE_WHY,
 * perhaps with KVT_NODE_DAMAGED. */
void kvt_detach(struct kvt_core *core, uint32_t node, uint32_t why);
/** Detach up to `roots` stale roots, looking at no more than `looks` namespaces. Returns at how
 * many it looked. */
uint32_t kvt_detach_stale(struct kvt_core *core, uint32_t roots, uint32_t looks);
/** Visit up to *steps nodes of detached subtrees until `pages` are free. Returns how many became
 * free, side pages of the last one included, and takes the nodes visited off *steps. */
uint32_t kvt_reclaim(struct kvt_core *core, uint32_t *steps, uint32_t pages);

#endif
