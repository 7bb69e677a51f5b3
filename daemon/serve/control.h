/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CONTROL_H
#define KVT_SERVE_CONTROL_H

#include "daemon/serve/state.h"

/** True if one more half-open connection can be taken now. */
bool kvt_control_has_room(const struct kvt_daemon *daemon);
void kvt_control_accepted(struct kvt_daemon *daemon, int fd);
/** Drop connections whose first message is overdue. Returns when the next one is. */
uint64_t kvt_control_end_half_open(struct kvt_daemon *daemon);
/** Handle a poll's end: its events, or a negative errno. kvt_control_take() takes the message. */
void kvt_control_event(struct kvt_daemon *daemon, struct kvt_connection *connection, int result);
/** Take one message of a queued connection. If its session ended since, it stays unread. */
void kvt_control_take(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Close and free the slot, and tell its session or member of the hang-up. */
void kvt_control_drop(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Answer waiting requests that are true now. */
void kvt_control_answer(struct kvt_daemon *daemon);

#endif
