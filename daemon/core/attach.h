/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_ATTACH_H
#define KVT_CORE_ATTACH_H

/**
 * @file attach.h
 * Side pages that a COMMIT names, on the pages of its lease's path.
 */

#include "daemon/core/entry.h"

/** Check all pairs before anything changes: 0 or a refusal. `cached`: pages of the lease's table
 * that will be cached then. */
int kvt_attach_check(struct kvt_core *core, struct kvt_op_context *op,
		     const struct kvt_lease_record *lease, uint32_t cached);
/** Take the checked pages and drop others, in the order given. Lists the pages not taken. */
void kvt_attach(struct kvt_core *core, struct kvt_op_context *op,
		const struct kvt_lease_record *lease);

#endif
