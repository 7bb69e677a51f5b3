/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_OP_H
#define KVT_CORE_OP_H

/**
 * @file op.h
 * The switch over all operations.
 */

#include "daemon/core/entry.h"

/** Raise the epoch: everything cached is stale from now on. */
void kvt_reset_all(struct kvt_core *core);
/** Detach what begins with these keys: 0, a refusal, or KVT_EXPIRED. *ret_removed: there was
 * any. */
int kvt_remove_prefix(struct kvt_core *core, struct kvt_op_context *op, uint32_t namespace_id,
		      uint64_t root_key, const uint32_t *keys, uint32_t n_keys,
		      bool *ret_removed);
/** Run one operation: 0, a refusal, KVT_WAITS or KVT_EXPIRED. */
int kvt_op_run(struct kvt_core *core, struct kvt_op_context *op);

#endif
