/* SPDX-License-Identifier: Apache-2.0 */

/* Subscriptions: a mapped feed, its reader, and the snapshot that is being given (kvtrunk_feed.h).
 *
 * A feed is the daemon's that made it. That it is gone shows in the arena, whose generation a
 * successor raises before it serves, and on the control socket. That it was ended shows in it. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/feed.h"
#include "libclient/feed_reader.h"
#include "libclient/interrupt.h"
#include "libclient/pool.h"
#include "libclient/snapshot.h"
#include "libclient/wait.h"
#include "libclient/welcome.h"

#define SNAPSHOT_STEPS 65536u /* between two looks at the daemon */
#define SNAPSHOT_TRIES 4      /* when the ring overtakes it */
#define SETTLE_NS 50000       /* most mutations are shorter */

struct kvt_feed {
	struct kvt_client *client;
	void *memory;
	uint64_t bytes;
	struct kvt_feed_reader reader;
	struct kvt_snapshot snapshot;
	bool giving; /* the snapshot's records are not all taken */
};

/* Send a request. Returns its error, with *ret_fd the descriptor that came or -1. */
static int ask(struct kvt_client *client, bool on, int *ret_fd)
{
	struct kvt_message_feed message = { .head.type = KVT_MSG_FEED, .on = on };
	const struct kvt_message_feed *answer = (const void *)client->packet;
	int fd = -1, rc = kvt_control_ask_fd(client, &message.head, sizeof(message), &fd);

	if (rc < 0)
		return rc;
	if (rc == sizeof(*answer) && answer->head.result == 0 && (fd >= 0) == on) {
		*ret_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	if (rc != sizeof(*answer) || answer->head.result >= 0)
		return kvt_client_fail(client, -EPROTO, 0, "feed: %d bytes in the answer", rc);
	return kvt_client_fail(client, answer->head.result, 0, "feed: %.*s",
			       (int)sizeof(answer->text), answer->text);
}

/* Map what came with the answer, and check it. */
static int map(struct kvt_feed *feed, int fd)
{
	void *memory;
	int rc = kvt_client_sealed_bytes(fd, &feed->bytes);

	if (rc == 0 && feed->bytes < sizeof(struct kvt_feed_header))
		rc = -EPROTO;
	if (rc != 0)
		return rc;
	memory = mmap(NULL, feed->bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	feed->memory = memory;
	if (madvise(memory, feed->bytes, MADV_DONTFORK) != 0)
		return -errno;
	return kvt_feed_reader_init(&feed->reader, memory, feed->bytes,
				    feed->client->info.page_size);
}

static void destroy(struct kvt_feed *feed)
{
	kvt_snapshot_destroy(&feed->snapshot);
	kvt_feed_reader_destroy(&feed->reader);
	if (feed->memory && !kvt_client_forked(feed->client))
		munmap(feed->memory, feed->bytes);
	feed->client->feed = NULL;
	free(feed);
}

int kvt_feed_open(struct kvt_client *client, struct kvt_feed **ret_feed)
{
	KVT_KEEP_ERRNO;
	struct kvt_feed *feed;
	int rc, fd = -1;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc != 0)
		return rc;
	if (client->feed)
		return kvt_client_fail(client, -EALREADY, 0, "feed: this client has one: close it, "
				       "or connect a second client");
	rc = ask(client, true, &fd);
	if (rc != 0)
		return rc;
	feed = calloc(1, sizeof(*feed));
	if (feed) {
		feed->client = client;
		client->feed = feed;
	}
	rc = !feed ? -ENOMEM : client->arena.base ? map(feed, fd) : -EPROTO;
	close(fd);
	if (rc == 0) {
		*ret_feed = feed;
		return 0;
	}
	if (feed)
		destroy(feed);
	ask(client, false, &fd);
	return kvt_client_fail(client, rc, 0, "feed: cannot be mapped: %s", kvt_errno_name(rc));
}

/* 0 if the daemon of this feed was alive when its tail was last read. */
static int check_alive(struct kvt_feed *feed)
{
	struct kvt_client *client = feed->client;
	const struct kvt_arena_header *arena = client->arena.header;
	/* Pairs with the daemon's release. */
	uint64_t generation = kvt_load_acquire(&feed->reader.header->generation);
	int rc;

	kvt_client_look(client);
	rc = kvt_client_usable(client);
	if (rc != 0)
		return rc;
	if (generation == 0)
		return kvt_client_fail(client, -ECONNRESET, 0, "feed: the daemon has ended it: "
				       "arena_visible is no now: close it");
	/* Pairs with nothing: a successor serves, and so lets pages be written, later. */
	if (!client->broken_ns &&
	    kvt_load_acquire(&arena->generation) == generation &&
	    memcmp(arena->instance, feed->reader.header->instance, sizeof(arena->instance)) == 0)
		return 0;
	return kvt_client_fail(client, -ECONNRESET, 0, "feed: the daemon that wrote it is gone: "
			       "close it, open another and take a snapshot");
}

static int failed(struct kvt_feed *feed, int rc)
{
	if (rc == -EOVERFLOW)
		return kvt_client_fail(feed->client, rc, 0, "feed: records were overwritten before "
				       "they were read: take a snapshot; if it happens often, "
				       "raise feed_bytes");
	return kvt_client_fail(feed->client, rc, 0, "feed: %s", rc == -EPROTO ?
			       "what it says cannot be: it is damaged" : kvt_errno_name(rc));
}

/* Give the next record of the snapshot. 0: there are no more. */
static int give(struct kvt_feed *feed, struct kvt_feed_record *ret_record)
{
	int rc = kvt_snapshot_next(&feed->snapshot, ret_record);

	if (rc > 0)
		return rc;
	kvt_snapshot_destroy(&feed->snapshot);
	feed->giving = false;
	return rc;
}

int kvt_feed_next(struct kvt_feed *feed, struct kvt_feed_record *ret_record)
{
	KVT_KEEP_ERRNO;
	int rc = kvt_client_usable(feed->client);

	if (rc == 0 && feed->giving)
		rc = give(feed, ret_record);
	if (rc == 0)
		rc = kvt_feed_reader_next(&feed->reader, ret_record);
	if (rc == 0)
		return check_alive(feed);
	return rc > 0 || rc == feed->client->dead ? rc : failed(feed, rc);
}

int kvt_feed_snapshot_begin(struct kvt_feed *feed)
{
	int rc = check_alive(feed);

	feed->giving = false;
	kvt_snapshot_destroy(&feed->snapshot);
	if (rc != 0)
		return rc;
	rc = kvt_snapshot_init(&feed->snapshot, &feed->client->arena, &feed->reader);
	return rc == 0 ? 0 : failed(feed, rc);
}

int kvt_feed_snapshot_step(struct kvt_feed *feed, uint32_t steps)
{
	int rc = kvt_snapshot_step(&feed->snapshot, steps);

	if (rc == 0 && check_alive(feed) != 0)
		return -ECONNRESET;
	feed->giving = rc == 1;
	if (rc < 0)
		return failed(feed, rc);
	return rc == 0 && feed->snapshot.phase == KVT_SNAPSHOT_SETTLE ? -EAGAIN : rc;
}

/* Wait for the mutation that runs. A daemon that was stopped in it does not end it. */
static int settle(struct kvt_feed *feed, int64_t *until_ns)
{
	const struct timespec pause = { .tv_nsec = SETTLE_NS };
	int64_t now_ns = kvt_now_ns(), timeout_ns = feed->client->timeout_ns;

	if (*until_ns == 0)
		*until_ns = timeout_ns > 0 ? now_ns + timeout_ns : INT64_MAX;
	if (now_ns >= *until_ns)
		return kvt_client_fail(feed->client, -ETIMEDOUT, 0, "feed: the daemon is stopped "
				       "in the middle of a change: continue it (SIGCONT), or "
				       "restart it");
	nanosleep(&pause, NULL);
	if (kvt_client_interrupted())
		return kvt_client_fail(feed->client, -EINTR, 0, "feed: a signal ended the call");
	return 0;
}

int kvt_feed_snapshot(struct kvt_feed *feed)
{
	KVT_KEEP_ERRNO;
	int rc = kvt_feed_snapshot_begin(feed), tries = 0;
	int64_t until_ns = 0;

	while (rc == 0) {
		rc = kvt_feed_snapshot_step(feed, SNAPSHOT_STEPS);
		if (rc == -EAGAIN)
			rc = settle(feed, &until_ns);
		else if (rc == -EOVERFLOW && ++tries < SNAPSHOT_TRIES)
			rc = 0;
	}
	if (rc == 1)
		return 0;
	kvt_snapshot_destroy(&feed->snapshot);
	return rc;
}

void kvt_feed_close(struct kvt_feed *feed)
{
	KVT_KEEP_ERRNO;
	struct kvt_client *client;
	int fd;

	if (!feed)
		return;
	client = feed->client;
	kvt_client_check_fork(client);
	destroy(feed);
	if (kvt_client_usable(client) == 0 && !client->broken_ns)
		ask(client, false, &fd);
}
