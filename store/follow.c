/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The feed of a session, and the copies of pages, which are good only by it (store/tier.h). Called
 * by main.c, serve.c and load.c.
 *
 * A kept session continues under the daemon's successor, which has another feed: open it, take a
 * snapshot. A snapshot, and a flood of records, are taken a part at a time: until all were taken,
 * anchors may be unknown and a copy stays open.
 *
 * A page that was cached before a RESET must not come back. CLEARED tells of it, or, where no store
 * took that record, another epoch: then `reset` is set, and main.c drops all pages.
 */
#include <errno.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/feed.h"
#include "libclient/state.h"
#include "shm/atomic.h"
#include "store/store.h"

#define FOLLOW_BLOCKS (8u << 10) /* of SHA-256, at once: about a millisecond */
#define BLOCK_KEYS 16u
#define FEW_PAGES 8u
#define SMALL_BYTES (64u << 10) /* of a page */
#define SNAPSHOT_PAGES (16u << 10) /* read at once: about a millisecond, too */

static uint64_t epoch_of(const struct kvt_store *store)
{
	return kvt_load_acquire(&store->client->arena.header->epoch);
}

/* Have what is cached come as the next records, when continue_snapshot() has read it. */
static int begin_snapshot(struct kvt_store *store)
{
	uint64_t epoch = epoch_of(store);
	int rc;

	kvt_known_forget(&store->known);
	kvt_scrub_forget(&store->scrub);
	store->reset |= store->epoch != epoch;
	store->known.outdated &= store->epoch == epoch;
	store->epoch = epoch;
	rc = kvt_feed_snapshot_begin(store->feed);
	store->reading = rc == 0;
	return rc;
}

/* Read a part of the arena. */
static int continue_snapshot(struct kvt_store *store)
{
	int rc = kvt_feed_snapshot_step(store->feed, SNAPSHOT_PAGES);

	if (rc != 1)
		return rc == -EOVERFLOW ? 0 : rc;
	/* A RESET meanwhile may be in the snapshot or behind it. */
	if (store->epoch != epoch_of(store))
		return begin_snapshot(store);
	store->reading = false;
	return 0;
}

int kvt_store_subscribe(struct kvt_store *store)
{
	int rc = store->feed ? begin_snapshot(store) : -ECONNRESET;

	if (rc != -ECONNRESET)
		return rc;
	kvt_feed_close(store->feed); /* its daemon is gone, perhaps not the session */
	store->feed = NULL;
	rc = kvt_feed_open(store->client, &store->feed);
	return rc == 0 ? begin_snapshot(store) : rc;
}

/* The work of a record, in blocks that take as long to hash. Each page hashes the digest in front
 * of it, too. */
static uint64_t blocks_of(const struct kvt_store *store, const struct kvt_feed_record *record)
{
	uint32_t page_blocks = record->keys ? 1 + store->known.info.page_size / BLOCK_KEYS : 1;

	return 1 + (uint64_t)record->n * page_blocks;
}

/* Take records until there are none, or they were much work. Returns their number, 1 also for a
 * part of a snapshot. */
static int take_some(struct kvt_store *store)
{
	struct kvt_feed_record record;
	uint64_t blocks = 0;
	int n = 0, rc;

	if (store->reading) {
		rc = continue_snapshot(store);
		return rc == 0 ? 1 : rc == -EAGAIN ? 0 : rc;
	}
	while (blocks < FOLLOW_BLOCKS && (rc = kvt_feed_next(store->feed, &record)) != 0) {
		if (rc == 1) {
			rc = kvt_known_take(&store->known, &record);
			kvt_scrub_note(&store->scrub, &store->known, &record);
			blocks += blocks_of(store, &record);
			n++;
			if (record.type == KVT_FEED_CLEARED) {
				store->reset = true;
				store->epoch = record.epoch;
			}
		} else if (rc == -EOVERFLOW) {
			rc = begin_snapshot(store);
			return rc == 0 ? 1 : rc;
		}
		if (rc != 0)
			return rc;
	}
	store->current = blocks < FOLLOW_BLOCKS;
	return n;
}

int kvt_store_follow(struct kvt_store *store)
{
	int rc;

	store->current = false;
	rc = store->feed ? take_some(store) : -ECONNRESET;
	if (rc == -ECONNRESET) {
		rc = kvt_store_subscribe(store);
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

/* ---- copies: a ring, in the order of the queue, so a page comes behind its front */

static struct kvt_copy *copy_at(struct kvt_store *store, uint32_t i)
{
	return &store->copies[(store->copies_at + i) % KVT_COPIES_MOST];
}

/* The first copies whose jobs have ended. */
static uint32_t n_ended(struct kvt_store *store)
{
	uint32_t n = 0;

	while (n < store->n_copies && kvt_job_has_ended(&copy_at(store, n)->job))
		n++;
	return n;
}

/* End the first n copies. `complete`: all records of the feed were taken since their jobs ended. */
static void end_copies(struct kvt_store *store, uint32_t n, bool complete)
{
	for (; n > 0; n--) {
		kvt_copy_end(store->tier, &store->known, &store->share, copy_at(store, 0),
			     complete);
		store->copies_at = (store->copies_at + 1) % KVT_COPIES_MOST;
		store->n_copies--;
	}
}

/* End the first n reads of the scrubber, as copies, up to one that found damage. */
static void end_reads(struct kvt_store *store, uint32_t n, bool complete)
{
	while (n-- > 0 && !kvt_scrub_end(&store->scrub, &store->known, complete, &store->damage))
		;
}

void kvt_store_unfollow(struct kvt_store *store)
{
	kvt_jobs_settle(&store->jobs);
	end_copies(store, store->n_copies, false);
	end_reads(store, store->scrub.n_reads, false);
	kvt_feed_close(store->feed);
	store->feed = NULL;
}

/* Return who copies what is queued: the thread itself, if waking a worker takes longer. */
static struct kvt_jobs *copiers(struct kvt_store *store)
{
	static struct kvt_jobs at_once = { .wake = -1 };
	bool few = store->n_copies == 0 && store->known.n_queued <= FEW_PAGES;

	return few && !store->slabs.device && store->slabs.record_bytes <= SMALL_BYTES ?
	       &at_once : &store->jobs;
}

bool kvt_store_copy(struct kvt_store *store)
{
	struct kvt_jobs *jobs;
	uint32_t n = n_ended(store), n_read = kvt_scrub_ended(&store->scrub), begun = 0;
	bool may;
	int rc = 1;

	/* Jobs that end behind this look are judged by the records behind the next one. */
	if (n + n_read > 0)
		kvt_store_follow(store);
	if (store->current) {
		end_copies(store, n, true);
		if (!store->withdrawal.open)
			end_reads(store, n_read, true);
	}
	may = store->current && !store->reset && kvt_store_is_clean(store);
	while (may && kvt_scrub_begin(&store->scrub, &store->known, &store->slabs, &store->jobs))
		begun++;
	jobs = copiers(store);
	/* `current`: what is queued was not changed since. */
	while (may && rc == 1 && store->n_copies < store->jobs_most) {
		rc = kvt_copy_begin(store->tier, &store->known, &store->slabs, &store->share,
				    jobs, copy_at(store, store->n_copies));
		store->n_copies += rc == 1;
		begun += rc == 1;
	}
	return n + n_read + begun > 0 || rc == -EAGAIN;
}
