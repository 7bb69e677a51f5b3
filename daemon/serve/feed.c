/* SPDX-License-Identifier: Apache-2.0 */

/* Subscribers of the feed. The daemon counts them, to have a feed only while it is read; it never
 * looks at what they read. The feed is not stored for a successor. Called by control.c,
 * connection.c, options.c and start.c. */

#include "daemon/serve/feed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/state.h"
#include "shm/assert.h"

static void write_change(void *context, const struct kvt_change *change)
{
	struct kvt_daemon *daemon = context;

	kvt_feed_write(&daemon->feed.writer, change);
}

static int make(struct kvt_daemon *daemon, char *text, size_t size)
{
	struct kvt_feed_subscribers *feed = &daemon->feed;
	uint64_t bytes = kvt_feed_object_bytes((uint64_t)daemon->config.feed_bytes);
	int error = kvt_object_create_sealed(&feed->object, "kvtrunk-feed", bytes);

	if (!error) {
		feed->readonly = kvt_object_open_readonly(&feed->object);
		error = feed->readonly < 0 ? feed->readonly : 0;
		if (error)
			kvt_object_destroy(&feed->object);
	}
	if (error) {
		snprintf(text, size, "no memory or descriptors for a feed of %llu bytes: %s: lower "
			 "feed_bytes, or raise the limit", (unsigned long long)bytes,
			 strerror(-error));
		return error;
	}
	kvt_feed_begin(&feed->writer, feed->object.base, bytes, daemon->core, daemon->arena.base,
		       daemon->arena.bytes, daemon->config.feed_used);
	kvt_core_set_change(daemon->core, write_change);
	return 0;
}

int kvt_feed_join(struct kvt_daemon *daemon, struct kvt_connection *connection, char *text,
		  size_t size)
{
	int error = 0;

	if (!daemon->config.arena_visible) {
		snprintf(text, size, "the daemon shows no keys: it needs arena_visible = yes");
		return -EACCES;
	}
	if (daemon->config.feed_bytes == 0) {
		snprintf(text, size, "the daemon has none: set feed_bytes = 16M");
		return -ENOTSUP;
	}
	if (daemon->feed.n == 0)
		error = make(daemon, text, size);
	if (error)
		return error;
	daemon->feed.n += !connection->subscribed;
	connection->subscribed = true;
	return daemon->feed.readonly;
}

void kvt_feed_drop(struct kvt_daemon *daemon)
{
	struct kvt_feed_subscribers *feed = &daemon->feed;

	if (feed->n == 0)
		return;
	kvt_core_set_change(daemon->core, NULL);
	close(feed->readonly);
	kvt_object_destroy(&feed->object);
	feed->n = 0;
}

void kvt_feed_withhold(struct kvt_daemon *daemon)
{
	if (daemon->feed.n == 0)
		return;
	for (uint32_t i = 0; i < daemon->connections.n_slots; i++)
		daemon->connections.slots[i].subscribed = false;
	kvt_feed_end(&daemon->feed.writer);
	kvt_feed_drop(daemon);
}

void kvt_feed_leave(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (!connection->subscribed)
		return;
	connection->subscribed = false;
	KVT_ASSERT(daemon->feed.n > 0);
	if (daemon->feed.n == 1)
		kvt_feed_drop(daemon);
	else
		daemon->feed.n--;
}
