/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of other instances (sibling.h). Inputs: their feeds, and names and records of loads.
 *
 * Invariants: a read is judged by the feed after its copy. Reads that come while there is no
 * daemon, or its pool is read anew, end at once, as bad ones. What both threads touch is atomic, or
 * a message of a pipe. Called by session.c and serve.c, and by the tier.
 */
#include "shm/clock.h"
#include "store/sibling.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keep/backoff.h"
#include "shm/atomic.h"
#include "store/attach.h"
#include "store/names.h"
#include "store/why.h"

#define BATCH 8u /* reads that are judged together */
#define POLL_MOST_MS 20
#define BACKOFF_FIRST_NS 100000000ull
#define BACKOFF_MOST_NS 30000000000ull

/* To the thread. A pipe takes it whole. */
struct request {
	struct kvt_chain page;
	uint32_t entry; /* to read into */
};

/* To the thread that serves. */
struct ending {
	uint32_t entry;
	bool good;
};

struct reading {
	uint32_t entry, page; /* page 0: it is not cached */
	uint32_t changes;     /* of the page when the copy began */
};

/* A table that the other thread may look into: it is never freed before the end. */
struct table {
	struct kvt_names names;
	struct table *older; /* of a daemon that had fewer pages */
};

struct kvt_sibling {
	const char *path;
	struct kvt_tier *tier;
	const uint64_t *layout;
	pthread_t thread;

	/* Between the threads. */
	int requests[2], endings[2];
	struct table *table;    /* NULL: none yet */
	bool ready;             /* the table is what the feed says */
	uint32_t to_forget, forgotten; /* times that all was to be forgotten, and was */
	uint64_t read, spoiled; /* pages */
	const char *failure;    /* of the driver, NULL: none */

	uint32_t n_reads; /* without their ending; of the thread that serves */

	/* The sibling's thread's. */
	struct kvt_client *client; /* NULL: no daemon */
	struct kvt_feed *feed;
	struct kvt_device *device; /* NULL: its pool was never on one */
	struct kvt_slabs slabs;
	struct kvt_known known;
	uint64_t instance[2]; /* that of the last session */
	bool outdated; /* what it cached before all was forgotten is there: no snapshot is taken */
	int wait_ms;       /* for requests, until the feed is looked at again */
	uint32_t failures; /* since its pool could be read */
	char said[256];    /* line of the log that was printed last */
};

/* Print what has changed, once. */
static void say(struct kvt_sibling *sibling, const char *what)
{
	if (strcmp(sibling->said, what) == 0)
		return;
	snprintf(sibling->said, sizeof(sibling->said), "%s", what);
	fprintf(stderr, "kvtstored: sibling %s: %s\n", sibling->path, what);
}

/* ---- the feed */

static void forget_all(struct kvt_sibling *sibling)
{
	kvt_known_forget(&sibling->known);
	if (sibling->table)
		kvt_names_clear(&sibling->table->names);
}

static uint32_t page_of(const struct kvt_feed_record *record, uint32_t i)
{
	return record->sides ? record->sides[i].side : record->pages[i];
}

/* Take a record, and name the pages that it names. Records of a snapshot have seq 0. */
static int take(struct kvt_sibling *sibling, const struct kvt_feed_record *record)
{
	uint32_t n = record->pages || record->sides ? record->n : 0;
	struct kvt_names *names = &sibling->table->names;
	const struct kvt_chain *name;
	int rc;

	if (sibling->outdated && record->seq == 0 && record->type != KVT_FEED_NAMESPACE)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		kvt_names_remove(names, page_of(record, i));
	if (record->type == KVT_FEED_CLEARED) {
		kvt_names_clear(names);
		sibling->outdated = false;
	}
	rc = kvt_known_take(&sibling->known, record);
	for (uint32_t i = 0; i < n; i++) {
		name = kvt_known_name(&sibling->known, page_of(record, i));
		if (name && kvt_known_lasts(&sibling->known, page_of(record, i)))
			kvt_names_add(names, page_of(record, i), name);
	}
	return rc;
}

/* Take all records. Returns their number. */
static int follow(struct kvt_sibling *sibling)
{
	struct kvt_feed_record record;
	int n = 0, rc;

	while ((rc = kvt_feed_next(sibling->feed, &record)) == 1) {
		rc = take(sibling, &record);
		if (rc != 0)
			return rc;
		n++;
	}
	return rc < 0 ? rc : n;
}

/* ---- requests */

static void end_read(struct kvt_sibling *sibling, uint32_t entry, bool good)
{
	struct ending ending = { .entry = entry, .good = good };

	kvt_store_relaxed(good ? &sibling->read : &sibling->spoiled,
			  (good ? sibling->read : sibling->spoiled) + 1);
	/* There are fewer reads than a pipe has room for. */
	if (write(sibling->endings[1], &ending, sizeof(ending)) != sizeof(ending))
		say(sibling, strerror(errno));
}

/* Wait for requests and take BATCH at most. Returns how many; -ESHUTDOWN: the store ends. */
static int receive(struct kvt_sibling *sibling, int wait_ms, struct request *ret_requests)
{
	struct pollfd wait = { .fd = sibling->requests[0], .events = POLLIN };
	ssize_t bytes;

	if (poll(&wait, 1, wait_ms) <= 0)
		return 0;
	bytes = read(wait.fd, ret_requests, BATCH * sizeof(*ret_requests));
	return bytes > 0 ? (int)((size_t)bytes / sizeof(*ret_requests)) : -ESHUTDOWN;
}

/* End all reads as bad ones, also those of the next milliseconds. 0; -ESHUTDOWN. */
static int refuse(struct kvt_sibling *sibling, uint64_t ms)
{
	uint64_t now_ms = (uint64_t)kvt_now_ns() / 1000000, until_ms = now_ms + ms;
	struct request requests[BATCH];
	int n;

	do {
		n = receive(sibling, now_ms < until_ms ? (int)(until_ms - now_ms) : 0, requests);
		for (int i = 0; i < n; i++)
			end_read(sibling, requests[i].entry, false);
		now_ms = (uint64_t)kvt_now_ns() / 1000000;
	} while (n > 0 || (n == 0 && now_ms < until_ms));
	return n;
}

static struct reading begin_read(struct kvt_sibling *sibling, const struct request *request)
{
	uint32_t page = kvt_names_find(&sibling->table->names, &request->page);
	const struct kvt_chain *name = kvt_known_name(&sibling->known, page);
	struct reading reading = { .entry = request->entry };

	if (!name || memcmp(name, &request->page, sizeof(*name)) != 0)
		return reading;
	reading.page = page;
	reading.changes = sibling->known.pages[page].changes;
	if (kvt_slabs_read(&sibling->slabs, page,
			   kvt_tier_record(sibling->tier, request->entry)) != 0)
		kvt_store_release(&sibling->failure, kvt_device_failure(sibling->device));
	return reading;
}

/* ---- the thread */

/* Have what is cached come as the next records: at first, if records were lost, and from a
 * successor of the daemon. */
static int begin_again(struct kvt_sibling *sibling)
{
	int rc;

	kvt_store_release(&sibling->ready, false);
	rc = refuse(sibling, 0);
	forget_all(sibling);
	if (rc == 0 && !sibling->feed)
		rc = kvt_feed_open(sibling->client, &sibling->feed);
	if (rc == 0)
		rc = kvt_feed_snapshot(sibling->feed);
	if (rc == 0)
		return 0;
	kvt_feed_close(sibling->feed);
	sibling->feed = NULL;
	return rc;
}

/* Forget all, if that was asked. */
static void forget_if_asked(struct kvt_sibling *sibling)
{
	uint32_t asked = kvt_load_acquire(&sibling->to_forget);

	if (asked == sibling->forgotten)
		return;
	forget_all(sibling);
	sibling->outdated = true;
	/* Pairs with has(): nothing from before is found. */
	kvt_store_release(&sibling->forgotten, asked);
}

/* Read pages and take the feed. 0, -ESHUTDOWN, or the session is over. */
static int turn(struct kvt_sibling *sibling)
{
	struct request requests[BATCH];
	struct reading readings[BATCH];
	int n = receive(sibling, sibling->wait_ms, requests), rc;

	if (n < 0)
		return n;
	for (int i = 0; i < n; i++)
		readings[i] = begin_read(sibling, &requests[i]);
	if (sibling->failure)
		return -EIO; /* records may still be written */
	/* Pairs with the release of the feed's tail: a later writer of a page is in the feed. */
	kvt_fence_acquire();
	rc = sibling->feed ? follow(sibling) : -ECONNRESET;
	for (int i = 0; i < n; i++)
		end_read(sibling, readings[i].entry,
			 rc >= 0 && kvt_known_stayed(&sibling->known, readings[i].page,
						     readings[i].changes));
	forget_if_asked(sibling); /* the records of a snapshot, too */
	sibling->wait_ms = rc != 0 || n > 0 ? 1 : 2 * sibling->wait_ms;
	if (sibling->wait_ms > POLL_MOST_MS)
		sibling->wait_ms = POLL_MOST_MS;
	if (rc == -ECONNRESET) { /* the feed's daemon is gone, perhaps not the session */
		kvt_feed_close(sibling->feed);
		sibling->feed = NULL;
	}
	if (rc >= 0 && !sibling->ready) {
		kvt_store_release(&sibling->ready, true);
		sibling->failures = 0;
		say(sibling, "connected");
	} else if (rc == -ECONNRESET || rc == -EOVERFLOW) {
		rc = begin_again(sibling);
	}
	return rc >= 0 || rc == -ETIMEDOUT || rc == -EOVERFLOW ? 0 : rc;
}

static int make_table(struct kvt_sibling *sibling, uint32_t n_pages)
{
	struct table *table = sibling->table;

	if (table && table->names.n_pages >= n_pages)
		return 0;
	table = calloc(1, sizeof(*table));
	if (!table || kvt_names_init(&table->names, n_pages) != 0) {
		free(table);
		return -ENOMEM;
	}
	table->older = sibling->table;
	kvt_store_release(&sibling->table, table);
	return 0;
}

static int connect_to(struct kvt_sibling *sibling, struct kvt_error *why)
{
	int rc = kvt_attach(sibling->path, KVT_ATTACH_CALL_NS, &sibling->client, &sibling->device,
			    &sibling->slabs, why);
	const struct kvt_info *info;

	if (rc != 0)
		return rc;
	info = kvt_client_info(sibling->client);
	if (kvt_chain_layout(info) != kvt_load_relaxed(sibling->layout))
		return kvt_store_fail(why, -EINVAL, "it has another model, layout or page size: "
				      "nothing of it can be used");
	if (kvt_known_init(&sibling->known, info, 0) != 0 ||
	    make_table(sibling, info->n_pages) != 0)
		return kvt_store_fail(why, -ENOMEM, "no memory for %u pages", info->n_pages);
	if (memcmp(sibling->instance, info->instance, sizeof(info->instance)) != 0)
		sibling->outdated = false;
	memcpy(sibling->instance, info->instance, sizeof(info->instance));
	sibling->wait_ms = 0;
	return 0;
}

static void disconnect(struct kvt_sibling *sibling)
{
	kvt_store_release(&sibling->ready, false);
	refuse(sibling, 0);
	forget_all(sibling);
	kvt_feed_close(sibling->feed);
	sibling->feed = NULL;
	kvt_known_destroy(&sibling->known);
	kvt_client_close(sibling->client, KVT_IDLE);
	sibling->client = NULL;
}

static void *run(void *self)
{
	struct kvt_sibling *sibling = self;
	int rc;

	do {
		struct kvt_error why = { .code = 0 };

		rc = connect_to(sibling, &why);
		while (rc == 0)
			rc = turn(sibling);
		if (sibling->failure)
			return NULL; /* with its session open */
		if (!why.code && rc != -ESHUTDOWN)
			why = *kvt_client_error(sibling->client);
		disconnect(sibling);
		if (rc == -ESHUTDOWN)
			break;
		say(sibling, why.text);
		sibling->failures++;
		rc = refuse(sibling, kvt_backoff_ns(sibling->failures, BACKOFF_FIRST_NS,
						    BACKOFF_MOST_NS) / 1000000);
	} while (rc == 0);
	kvt_device_close(sibling->device);
	return NULL;
}

/* ---- the tier below */

static bool has(void *self, const struct kvt_chain *page)
{
	const struct kvt_sibling *sibling = self;
	const struct table *table;

	/* Pair with the releases that tell that the table was made, filled and emptied. */
	if (!kvt_load_acquire(&sibling->ready) ||
	    kvt_load_acquire(&sibling->forgotten) != sibling->to_forget)
		return false;
	table = kvt_load_acquire(&sibling->table);
	return kvt_names_find(&table->names, page) != 0;
}

static int read_page(void *self, const struct kvt_chain *page, uint32_t entry)
{
	struct request request = { .page = *page, .entry = entry };
	struct kvt_sibling *sibling = self;

	if (!has(self, page))
		return -ENOENT;
	if (write(sibling->requests[1], &request, sizeof(request)) != sizeof(request))
		return -EAGAIN; /* more than a thousand are on their way */
	sibling->n_reads++;
	return 0;
}

static bool arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	struct kvt_sibling *sibling = self;
	struct ending ending;

	if (!sibling->n_reads ||
	    read(sibling->endings[0], &ending, sizeof(ending)) != sizeof(ending))
		return false;
	sibling->n_reads--;
	*ret_entry = ending.entry;
	*ret_good = ending.good;
	return true;
}

/* ---- all of them */

static void release(struct kvt_sibling *sibling)
{
	for (int i = 0; i < 2; i++) {
		if (sibling->requests[i] >= 0)
			close(sibling->requests[i]);
		if (sibling->endings[i] >= 0)
			close(sibling->endings[i]);
	}
	while (sibling->table) {
		struct table *table = sibling->table;

		sibling->table = table->older;
		kvt_names_destroy(&table->names);
		free(table);
	}
	free(sibling);
}

/* Start a thread that takes no signals. */
static int start(struct kvt_sibling *sibling)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&sibling->thread, NULL, run, sibling);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

static int open_one(struct kvt_sibling **ret_sibling, struct kvt_tier *tier, const char *path,
		    const uint64_t *layout)
{
	struct kvt_sibling *sibling = calloc(1, sizeof(*sibling));
	int rc = 0;

	if (!sibling)
		return -ENOMEM;
	*sibling = (struct kvt_sibling){ .path = path, .tier = tier, .layout = layout,
					 .requests = { -1, -1 }, .endings = { -1, -1 } };
	if (pipe2(sibling->requests, O_CLOEXEC | O_NONBLOCK) != 0 ||
	    pipe2(sibling->endings, O_CLOEXEC | O_NONBLOCK) != 0)
		rc = -errno;
	if (rc == 0)
		rc = start(sibling);
	if (rc != 0) {
		release(sibling);
		return rc;
	}
	tier->below[tier->n_below++] = (struct kvt_below){
		.self = sibling, .fd = sibling->endings[0], .has = has, .read = read_page,
		.arrived = arrived };
	*ret_sibling = sibling;
	return 0;
}

/* True if both are one socket, perhaps by another path. */
static bool is_same(const char *path, const char *other)
{
	struct stat one, two;

	return strcmp(path, other) == 0 ||
	       (stat(path, &one) == 0 && stat(other, &two) == 0 && one.st_dev == two.st_dev &&
		one.st_ino == two.st_ino);
}

int kvt_siblings_open(struct kvt_siblings *siblings, struct kvt_tier *tier,
		      const struct kvt_siblings_options *options, const char *own,
		      const uint64_t *layout)
{
	int rc = 0;

	for (uint32_t i = 0; i < options->n && rc == 0; i++) {
		if (is_same(options->paths[i], own))
			continue;
		rc = open_one(&siblings->each[siblings->n], tier, options->paths[i], layout);
		siblings->n += rc == 0;
	}
	return rc;
}

void kvt_siblings_close(struct kvt_siblings *siblings)
{
	for (uint32_t i = 0; i < siblings->n; i++) {
		close(siblings->each[i]->requests[1]);
		siblings->each[i]->requests[1] = -1;
	}
	for (uint32_t i = 0; i < siblings->n; i++) {
		pthread_join(siblings->each[i]->thread, NULL);
		release(siblings->each[i]);
	}
	siblings->n = 0;
}

void kvt_siblings_forget(struct kvt_siblings *siblings)
{
	for (uint32_t i = 0; i < siblings->n; i++)
		kvt_store_release(&siblings->each[i]->to_forget, siblings->each[i]->to_forget + 1);
}

struct kvt_siblings_counts kvt_siblings_count(const struct kvt_siblings *siblings)
{
	struct kvt_siblings_counts counts = { 0 };
	const struct table *table;

	for (uint32_t i = 0; i < siblings->n; i++) {
		if (kvt_load_acquire(&siblings->each[i]->ready)) {
			counts.ready++;
			table = kvt_load_acquire(&siblings->each[i]->table);
			counts.pages += kvt_load_relaxed(&table->names.n_named);
		}
		counts.read += kvt_load_relaxed(&siblings->each[i]->read);
		counts.spoiled += kvt_load_relaxed(&siblings->each[i]->spoiled);
	}
	return counts;
}

const char *kvt_siblings_failure(const struct kvt_siblings *siblings)
{
	const char *failure = NULL;

	for (uint32_t i = 0; i < siblings->n && !failure; i++)
		failure = kvt_load_acquire(&siblings->each[i]->failure);
	return failure;
}
