/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_WAIT_H
#define KVT_CLIENT_WAIT_H

#include "libclient/state.h"
#include "shm/clock.h"

/** The limits of one blocking call, set when it first reads the clock. */
struct kvt_wait {
	int64_t deadline_ns;
	int64_t spin_until_ns;
	int64_t look_at_ns; /* when to look at the control socket while spinning */
	bool started;
};

/** Wait until the CQ holds something. -ETIMEDOUT, -EINTR, -ECONNRESET (also kvt_client.dead). */
int kvt_client_wait(struct kvt_client *client, struct kvt_wait *wait);
/** Empty the completion descriptor, so that the next sleep sleeps. */
void kvt_client_drain(struct kvt_client *client);
/** Poll the control socket for GOODBYE and hang-up. */
void kvt_client_look(struct kvt_client *client);
/** The same, but only once in many calls: for callers that poll. */
void kvt_client_look_now_and_then(struct kvt_client *client);
/** Handle a message in client->packet that answers no request: GOODBYE ends the session, anything
 * else came too late. */
void kvt_client_take_message(struct kvt_client *client, int bytes);

#endif
