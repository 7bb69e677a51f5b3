/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_FEED_H
#define KVT_SERVE_FEED_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/log/feed.h"
#include "daemon/setup/object.h"

struct kvt_connection;
struct kvt_daemon;

/** The feed, while it has subscribers. Changed by feed.c. */
struct kvt_feed_subscribers {
	uint32_t n; /* connections */
	struct kvt_object object;
	int readonly; /* its descriptor for subscribers; valid while n > 0 */
	struct kvt_feed_writer writer;
};

/** Subscribe a connection; the first one makes the feed. A second time: nothing happens. Returns
 * the descriptor to send, the daemon's, or a negative errno with cause and cure in `text`. */
int kvt_feed_join(struct kvt_daemon *daemon, struct kvt_connection *connection, char *text,
		  size_t size);
/** Unsubscribe a connection, if it is; the last one drops the feed. */
void kvt_feed_leave(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** End the feed of all subscribers, when keys are shown no more. */
void kvt_feed_withhold(struct kvt_daemon *daemon);
/** Drop the feed, at the daemon's end. */
void kvt_feed_drop(struct kvt_daemon *daemon);

#endif
