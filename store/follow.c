/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The feed of a session, and the copies of pages, which are good only by it (store/tier.h). Called
 * by main.c, serve.c and load.c.
 *
 * A kept session continues under the daemon's successor, which has another feed: open it, take a
 * snapshot. A flood of records is taken a part at a time: until all were taken, anchors may be
 * unknown and a copy stays open.
 *
 * What was cached before a RESET must not come back. CLEARED tells of it, or, where no store took
 * that record, another epoch: then `reset` is set, and main.c drops all pages.
 */
#include <errno.h>

#include "libclient/state.h"
#include "shm/atomic.h"
#include "store/store.h"

#define FOLLOW_KEYS (64u << 10) /* of records, at once: about a millisecond of hashing */

static uint64_t epoch_of(const struct kvt_store *store)
{
	return kvt_load_acquire(&store->client->arena.header->epoch);
}

/* Have what is cached come as the next records. */
static int take_snapshot(struct kvt_store *store)
{
	uint64_t epoch;
	int rc;

	kvt_known_forget(&store->known);
	do { /* a RESET meanwhile may be in the snapshot or behind it */
		epoch = epoch_of(store);
		rc = kvt_feed_snapshot(store->feed);
	} while (rc == 0 && epoch != epoch_of(store));
	if (rc != 0)
		return rc;
	store->reset |= store->epoch != epoch;
	store->epoch = epoch;
	return 0;
}

/* Open the feed. */
static int subscribe(struct kvt_store *store)
{
	int rc;

	kvt_feed_close(store->feed);
	store->feed = NULL;
	rc = kvt_feed_open(store->client, &store->feed);
	return rc == 0 ? take_snapshot(store) : rc;
}

/* The work of a record, in keys that take as long to hash. */
static uint64_t keys_of(const struct kvt_store *store, const struct kvt_feed_record *record)
{
	if (record->type == KVT_FEED_CLEARED)
		return store->known.info.n_pages;
	return 1 + (uint64_t)record->n * (record->keys ? store->known.info.page_size : 1);
}

/* Take records until there are none, or they were much work. Returns their number. */
static int take_some(struct kvt_store *store)
{
	struct kvt_feed_record record;
	uint64_t keys = 0;
	int n = 0, rc;

	while (keys < FOLLOW_KEYS && (rc = kvt_feed_next(store->feed, &record)) != 0) {
		if (rc == 1) {
			rc = kvt_known_take(&store->known, &record);
			keys += keys_of(store, &record);
			n++;
			if (record.type == KVT_FEED_CLEARED) {
				store->reset = true;
				store->epoch = record.epoch;
			}
		} else if (rc == -EOVERFLOW) {
			rc = take_snapshot(store);
		}
		if (rc != 0)
			return rc;
	}
	store->current = keys < FOLLOW_KEYS;
	return n;
}

int kvt_store_follow(struct kvt_store *store)
{
	int rc;

	store->current = false;
	rc = store->feed ? take_some(store) : -ECONNRESET;
	if (rc == -ECONNRESET) { /* the feed's daemon is gone, perhaps not the session */
		rc = subscribe(store);
		if (rc == 0)
			rc = take_some(store);
	}
	if (rc >= 0)
		return rc;
	kvt_feed_close(store->feed);
	store->feed = NULL;
	kvt_known_forget(&store->known);
	return rc;
}

/* End the copy that was begun, if there is one. */
static void end_copy(struct kvt_store *store, bool complete)
{
	const struct kvt_copy *copy = &store->copy;

	if (copy->page && kvt_copy_end(&store->tier, &store->known, copy, complete) &&
	    kvt_index_find(&store->tier.index, &copy->chain) == copy->entry)
		kvt_remote_store(store->remote, copy->entry);
	store->copy.page = 0;
}

void kvt_store_unfollow(struct kvt_store *store)
{
	end_copy(store, false);
	kvt_feed_close(store->feed);
	store->feed = NULL;
}

bool kvt_store_copy(struct kvt_store *store)
{
	uint64_t bytes = 0;

	/* `current`: all records since the last copy were taken. */
	while (store->current && !store->reset && bytes < KVT_STORE_TURN_BYTES) {
		end_copy(store, true);
		if (!kvt_copy_begin(&store->tier, &store->known, &store->slabs, &store->copy))
			break;
		bytes += store->tier.record_bytes;
		kvt_store_follow(store);
	}
	return bytes > 0;
}
