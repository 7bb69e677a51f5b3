/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_WAIT_H
#define KVT_CORE_WAIT_H

/**
 * @file wait.h
 * BEGINs that wait for what others compute.
 */

#include "daemon/core/entry.h"
#include "daemon/core/walk.h"

#define KVT_WAITS 1 /* of a BEGIN: neither done nor refused */
/** Decide whether a BEGIN with WAIT or NO_WAIT waits at the place that a walk found: KVT_WAITS with
 * op's fields of waiters filled, else 0; cqe->flags say how a wait ended or why there is none. */
int kvt_wait_check(struct kvt_core *core, struct kvt_op_context *op, const struct kvt_walk *walk);
/** Fill the notice of a NO_WAIT waiter: 0, KVT_WAITS or KVT_EXPIRED. */
int kvt_wait_notice(struct kvt_core *core, struct kvt_op_context *op);
/** Let a BEGIN begin to wait, or wait for another lease. */
void kvt_wait_begin(struct kvt_core *core, struct kvt_op_context *op);
/** Emit the DEFER record of that; `token` is 0 for a wait that begins. */
void kvt_wait_emit(struct kvt_core *core, const struct kvt_op_context *op, uint64_t token);
/** End a wait with its result, and free its record. */
void kvt_wait_end(struct kvt_core *core, struct kvt_op_context *op, int error);
/** Note that a lease, which the caller saved, has sealed pages. */
void kvt_wait_progress(struct kvt_core *core, uint32_t lease);
/** Name a lease in the nodes of its path as the one that computes their announced pages. */
void kvt_path_announce(struct kvt_core *core, uint32_t lease);
/** Begin a pass over the waiters. */
void kvt_waiters_pass(struct kvt_core *core);
/** True if a waiter need not wait any longer, or its deadline has passed. */
bool kvt_waiter_ready(struct kvt_core *core, uint32_t id);
/** Wake no later than at this waiter's deadline. */
void kvt_waiter_watch(struct kvt_core *core, uint32_t id);
/** Queue a waiter behind all others. */
void kvt_waiter_add(struct kvt_core *core, uint32_t id);
/** Free the waiters of a session that is over, unanswered. */
void kvt_waiters_forget(struct kvt_core *core, uint32_t session);

#endif
