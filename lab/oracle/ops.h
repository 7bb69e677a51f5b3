/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_OPS_H
#define KVT_LAB_ORACLE_OPS_H

/** @file ops.h: records of operations: what they answer. */

struct kvt_oracle;

int ops_apply(struct kvt_oracle *o);   /* OP */
int admin_apply(struct kvt_oracle *o); /* ADMIN */
int ops_defer(struct kvt_oracle *o);   /* DEFER */

#endif
