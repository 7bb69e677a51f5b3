/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_WAIT_H
#define KVT_LAB_ORACLE_WAIT_H

/** @file wait.h: BEGINs that wait for the pages of others. */

#include "lab/oracle/model.h"

/** Check that this record passes over no ready waiter. */
int wait_check_order(struct kvt_oracle *o);
/** Follow the DEFER of a BEGIN. */
int wait_defer(struct kvt_oracle *o);
/** Decide after a BEGIN's walk, under WAIT or NO_WAIT, if it must wait or may run. */
int wait_begin(struct kvt_oracle *o, const struct model_walk *walk);
/* True if a BEGIN shall not reuse so few pages: below its minimum, and not all of its prompt. */
bool wait_too_short(const struct kvt_oracle *o, uint32_t pages);
/** Follow the second completion of a BEGIN with NO_WAIT. */
int wait_notice(struct kvt_oracle *o);
int wait_cancel(struct kvt_oracle *o);
/** Count a finished wait. */
void wait_end(struct kvt_oracle *o);
/* A lease has sealed pages. */
void wait_sealed(struct kvt_oracle *o, struct model_lease *lease);

#endif
