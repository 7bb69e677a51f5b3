/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_BACKLOG_H
#define KVT_CORE_BACKLOG_H

/**
 * @file backlog.h
 * Deferred work of the tree: detached subtrees to reclaim (detach.c), nodes to join with their
 * parents (compact.c). Derived; ids in it are checked again before use.
 */

#include "daemon/core/state.h"

/** Queue the top of a detached subtree. If it is queued, it is visited once more. */
void kvt_detached_queue(struct kvt_core *core, uint32_t top);
/** Drop the top at `place` of the queue; at 0 the reclaim cursor starts over. */
void kvt_detached_forget(struct kvt_core *core, uint32_t place);
/** Forget a node that is about to be freed in the reclaim cursor and the queue. */
void kvt_reclaim_skip(struct kvt_core *core, uint32_t node);

/** Note the end of an unlocked path for compaction. Dropped when there is no room. */
void kvt_compact_note(struct kvt_core *core, uint32_t node);

#endif
