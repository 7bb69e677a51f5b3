/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_EVENTS_H
#define KVT_LAB_ORACLE_EVENTS_H

/** @file events.h: the structural events of a record, followed in the model. */

#include "lab/oracle/state.h"

#define EVENT_BIT(kind) (1u << (kind))
/** Follow events as long as their kinds are in `mask`. */
int events_follow(struct kvt_oracle *o, uint32_t mask);
/** Check that all events and out pages were followed. */
int events_done(struct kvt_oracle *o);
/** Check that the next page that left the cache is this one, and free it. */
int events_page_out(struct kvt_oracle *o, uint32_t page);

#endif
