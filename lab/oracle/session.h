/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_SESSION_H
#define KVT_LAB_ORACLE_SESSION_H

/** @file session.h: records of sessions, namespaces and background work. */

struct kvt_oracle;

int session_apply(struct kvt_oracle *o); /* all kinds but OP, ADMIN and DEFER */
int session_close(struct kvt_oracle *o); /* the effect of CLOSE */
int session_leave(struct kvt_oracle *o); /* of LEAVE */
/** Check that the namespace that is emptied for another one is the right one. */
int session_check_recycled(struct kvt_oracle *o);

#endif
