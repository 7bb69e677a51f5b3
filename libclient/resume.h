/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_RESUME_H
#define KVT_CLIENT_RESUME_H

#include "libclient/state.h"

/** Handle a hang-up: start looking for a successor, or lose the session. */
void kvt_client_hung_up(struct kvt_client *client);
/** Look for a successor once, unless connected or the last look was recent. */
void kvt_client_look_for_successor(struct kvt_client *client);
/** Wait for a successor. 0, -ETIMEDOUT, or why the session is lost. */
int kvt_client_await_successor(struct kvt_client *client, int64_t deadline_ns);
#define KVT_SUCCESSOR_POLL_NS 2000000

#endif
