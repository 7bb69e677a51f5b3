/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_LEASE_H
#define KVT_LAB_ORACLE_LEASE_H

/** @file lease.h: leases, and the operations of a sequence. */

#include "lab/oracle/state.h"

int lease_find(struct kvt_oracle *o, bool effect, struct model_lease **ret_lease);
int lease_make(struct kvt_oracle *o, uint32_t kind, uint32_t node, struct model_lease **ret);
void lease_drop(struct kvt_oracle *o, uint32_t index);
int lease_begin(struct kvt_oracle *o);
int lease_commit(struct kvt_oracle *o);
int lease_extend(struct kvt_oracle *o);
int lease_end(struct kvt_oracle *o);
void lease_count_use(struct kvt_oracle *o, struct model_lease *lease);
/** Unlock a lease's path and cut unsealed tails. */
int lease_unlock(struct kvt_oracle *o, struct model_lease *lease);
/** Free all private pages of a lease. Returns their number. */
uint32_t lease_free_pages(struct kvt_oracle *o, uint32_t index);

#endif
