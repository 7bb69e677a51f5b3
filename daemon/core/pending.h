/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_PENDING_H
#define KVT_CORE_PENDING_H

/**
 * @file pending.h
 * Pending records, and the operations that wait in them for their fences.
 */

#include "daemon/core/entry.h"

/** Take a free record; there must be one. */
uint32_t kvt_pending_take(struct kvt_core *core);
/** Clear a record that is in no list. */
void kvt_pending_free(struct kvt_core *core, uint32_t id);

/** True if the fence words of all processes of the session have reached the entry's fence. */
bool kvt_fence_reached(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe);
/** Queue an operation, as an effect of its own, if it has to wait. False: it may run now. */
bool kvt_defer(struct kvt_core *core, struct kvt_op_context *op);
/** Take a record out of its session's list and free it; `before` is its predecessor there. */
void kvt_pending_forget(struct kvt_core *core, uint32_t id, uint32_t before);

#endif
