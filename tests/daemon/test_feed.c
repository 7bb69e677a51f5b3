/* SPDX-License-Identifier: Apache-2.0 */

/* The feed beside a working core: a thread that reads records and snapshots, and copies pages.
 *
 * Each page has one key, as often as it has positions, and its owner writes that key into all words
 * of the page. So a torn or foreign key shows in the record, and a torn or foreign copy in the
 * words. Inputs: the core's changes, told in time or, by a mutant, after the next owner has
 * written. Invariant: a copy that the rule of kvtrunk_feed.h calls good is good. */

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "daemon/log/feed.h"
#include "libclient/feed_reader.h"
#include "libclient/snapshot.h"
#include "shm/clock.h"
#include "shm/racy.h"
#include "tests/lib/cases.h"
#include "tests/lib/zeroed.h"

#define PS 4u
#define PAGES 48u
#define WORDS 8192u /* of a page's content */
#define PATH 6u     /* pages of a prompt */
#define PROMPTS 24u /* first pages to choose from */
#define MOST_NS 300000000000ull
#define GOOD_COPIES 5000u
#define SNAPSHOT_EVERY 4u /* copies */

struct world {
	struct kvt_core *core;
	struct kvt_core_config config;
	struct kvt_core_sizes sizes;
	void *arena, *ledger, *scratch, *feed;
	uint64_t feed_bytes;
	struct kvt_feed_writer writer;
	struct kvt_arena_view view;
	struct kvt_core_view client;
	uint32_t session, namespace_id;
	uint32_t *pool;
	/* The mutant holds a change back. */
	bool late, reading;
	struct kvt_change held;
	uint32_t held_in[PAGES], held_out[PAGES];
	/* Shared with the reader. */
	uint32_t stop;
	uint64_t tried; /* pages to copy */
	uint64_t good, bad, wrong, snapshots, impossible;
};

static void on_change(void *context, const struct kvt_change *change)
{
	struct world *world = context;

	if (!world->late) {
		kvt_feed_write(&world->writer, change);
		return;
	}
	world->held = *change;
	memcpy(world->held_in, change->in, change->n_in * sizeof(uint32_t));
	memcpy(world->held_out, change->out, change->n_out * sizeof(uint32_t));
	world->held.in = world->held_in;
	world->held.out = world->held_out;
}

/* Tell what was held back, once the reader had time to copy each page. */
static void tell_late(struct world *world)
{
	uint64_t from = kvt_load_relaxed(&world->tried);
	int64_t until = kvt_now_ns() + MOST_NS;

	while (world->late && world->reading && kvt_load_relaxed(&world->wrong) == 0 &&
	       kvt_load_relaxed(&world->tried) < from + 2 * PAGES && kvt_now_ns() < until)
		sched_yield();
	if (world->late && world->held.seq)
		kvt_feed_write(&world->writer, &world->held);
	world->held.seq = 0;
}

static struct world *world_new(bool late)
{
	struct world *world = calloc(1, sizeof(*world));
	struct kvt_core_hooks hooks = { .context = world };
	struct kvt_core_peer peer = { .pid = 1, .privileged = true };
	uint64_t digest[2] = { 1, 2 };
	const char *why = "";

	world->late = late;
	world->config = (struct kvt_core_config){ .page_size = PS, .n_pages = PAGES,
						  .max_namespaces = 4, .max_op_keys = 4096 };
	assert_int_equal(kvt_core_plan(&world->config, &world->sizes, &why), 0);
	world->arena = zeroed(world->sizes.arena_bytes);
	world->ledger = zeroed(world->sizes.ledger_bytes);
	world->scratch = zeroed(world->sizes.scratch_bytes);
	assert_int_equal(kvt_core_init(&world->core, &world->config, world->arena, world->ledger,
				       world->scratch, &hooks, 1), 0);
	kvt_core_publish(world->core, KVT_ARENA_READY);
	world->client = (struct kvt_core_view){
		.keys = calloc(4096, sizeof(uint32_t)), .keys_count = 4096,
		.list = calloc(4096, sizeof(uint32_t)), .list_count = 4096,
		.fences = calloc(KVT_FENCE_WORDS, sizeof(struct kvt_fence_word)),
	};
	world->pool = calloc(PAGES, WORDS * sizeof(uint32_t));
	world->feed_bytes = kvt_feed_object_bytes(1 << 20);
	world->feed = zeroed(world->feed_bytes);
	kvt_feed_begin(&world->writer, world->feed, world->feed_bytes, world->core, world->arena,
		       world->sizes.arena_bytes, false);
	kvt_core_set_change(world->core, on_change);
	assert_int_equal(kvt_arena_view_init(&world->view, world->arena,
					     world->sizes.arena_bytes), KVT_ATTACH_OK);
	assert_int_equal(kvt_core_session_open(world->core, &peer, &world->client, 1,
					       &world->session), 0);
	tell_late(world);
	assert_int_equal(kvt_core_namespace_open(world->core, world->session, digest, "", 1,
						 &world->namespace_id), 0);
	tell_late(world);
	return world;
}

static void world_free(struct world *world)
{
	free((void *)(uintptr_t)world->client.keys);
	free(world->client.list);
	free((void *)(uintptr_t)world->client.fences);
	free(world->pool);
	free(world->feed);
	free(world->arena);
	free(world->ledger);
	free(world->scratch);
	free(world);
}

/* ---- the worker */

static struct kvt_cqe run(struct world *world, const struct kvt_sqe *sqe)
{
	struct kvt_cqe cqe;

	assert_true(kvt_core_execute(world->core, world->session, sqe, 1, &cqe));
	kvt_fence_full(); /* the answer goes to another process */
	return cqe;
}

static void fill(struct world *world, uint32_t page, uint32_t key)
{
	for (uint32_t i = 0; i < WORDS; i++)
		kvt_store_relaxed(&world->pool[page * WORDS + i], key);
}

/* One prompt: begin, write the pages that are not cached, publish, end. */
static void serve(struct world *world, uint32_t *seed)
{
	uint32_t *keys = (uint32_t *)(uintptr_t)world->client.keys, first;
	struct kvt_sqe begin = { .op = KVT_OP_BEGIN, .fence_slot = KVT_FENCE_IDLE,
				 .namespace_id = world->namespace_id, .n_keys = PS * PATH,
				 .list_capacity = 64 };
	struct kvt_sqe commit = { .op = KVT_OP_COMMIT, .fence_slot = KVT_FENCE_IDLE,
				  .arg = PS * PATH, .list_capacity = 64, .list_offset = 64 };
	struct kvt_sqe end = { .op = KVT_OP_END, .fence_slot = KVT_FENCE_IDLE };
	struct kvt_cqe cqe;

	*seed = *seed * 1664525u + 1013904223u;
	first = 1 + (*seed >> 8) % PROMPTS;
	for (uint32_t i = 0; i < PATH; i++) /* half of a path is shared with others */
		for (uint32_t k = 0; k < PS; k++)
			keys[i * PS + k] = i < PATH / 2 ? first % 5 * 100 + i : first * 1000 + i;
	cqe = run(world, &begin);
	assert_int_equal(cqe.result, 0);
	for (uint32_t i = cqe.begin.reusable / PS; i < PATH; i++)
		fill(world, world->client.list[i], keys[i * PS]);
	tell_late(world);
	commit.node = end.node = cqe.lease;
	commit.generation = end.generation = cqe.lease_generation;
	assert_int_equal(run(world, &commit).result, 0);
	tell_late(world);
	assert_int_equal(run(world, &end).result, 0);
	tell_late(world);
	kvt_core_work(world->core, 8, true, 1);
	tell_late(world);
	sched_yield();
}

/* ---- the reader */

struct reader {
	struct world *world;
	struct kvt_feed_reader feed;
	uint32_t key[PAGES];  /* of a cached page; 0: not cached */
	uint64_t touched[PAGES]; /* number of the last record that named it */
	uint64_t records;
};

static void learn(struct reader *reader, const struct kvt_feed_record *record)
{
	reader->records++;
	for (uint32_t i = 0; i < record->n && record->pages; i++) {
		uint32_t page = record->pages[i];

		reader->touched[page] = reader->records;
		if (record->type == KVT_FEED_STORED && reader->key[page])
			reader->world->impossible++;
		reader->key[page] = 0;
		if (record->type != KVT_FEED_STORED)
			continue;
		reader->key[page] = record->keys[i * PS];
		for (uint32_t k = 1; k < PS; k++)
			if (record->keys[i * PS + k] != reader->key[page])
				reader->world->impossible++;
	}
}

static int snapshot(struct reader *reader)
{
	struct kvt_feed_record record;
	struct kvt_snapshot taken;
	int rc;

	assert_int_equal(kvt_snapshot_init(&taken, &reader->world->view, &reader->feed), 0);
	while ((rc = kvt_snapshot_step(&taken, 8)) == 0 || rc == -EOVERFLOW)
		;
	assert_int_equal(rc, 1);
	memset(reader->key, 0, sizeof(reader->key));
	while ((rc = kvt_snapshot_next(&taken, &record)) == 1)
		learn(reader, &record);
	kvt_snapshot_destroy(&taken);
	reader->world->snapshots++;
	return rc;
}

/* Read until there are no more records. */
static int catch_up(struct reader *reader)
{
	struct kvt_feed_record record;
	int rc;

	while ((rc = kvt_feed_reader_next(&reader->feed, &record)) == 1)
		learn(reader, &record);
	return rc;
}

static void copy_one(struct reader *reader, uint32_t page)
{
	struct world *world = reader->world;
	uint64_t before = reader->records;
	static uint32_t copy[WORDS];
	uint32_t key = reader->key[page];

	kvt_store_relaxed(&world->tried, world->tried + 1);
	if (!key)
		return;
	kvt_racy_copy(copy, world->pool + page * WORDS, WORDS / 2);
	if (!world->late) /* there the worker waits for copies */
		sched_yield();
	kvt_racy_copy(copy + WORDS / 2, world->pool + page * WORDS + WORDS / 2, WORDS / 2);
	kvt_fence_acquire();
	if (catch_up(reader) != 0 || reader->touched[page] > before) {
		world->bad++;
		return;
	}
	world->good++;
	for (uint32_t i = 0; i < WORDS; i++) {
		if (copy[i] != key) {
			world->wrong++;
			return;
		}
	}
}

static void *read_and_copy(void *argument)
{
	struct reader *reader = argument;
	struct world *world = reader->world;

	for (uint64_t n = 0; !kvt_load_relaxed(&world->stop); n++) {
		/* Another snapshot would show what the mutant does not tell. */
		bool again = n == 0 || (!world->late && n % SNAPSHOT_EVERY == 0);
		int rc = again ? snapshot(reader) : catch_up(reader);

		if (rc == -EOVERFLOW)
			rc = snapshot(reader);
		assert_int_equal(rc, 0);
		copy_one(reader, 1 + (uint32_t)(n * 7919 % (PAGES - 1)));
	}
	return NULL;
}

/* Work beside a reader until it has seen enough, or something wrong. */
static void play(struct world *world, uint64_t good_copies)
{
	struct reader *reader = calloc(1, sizeof(*reader));
	int64_t until = kvt_now_ns() + MOST_NS;
	uint32_t seed = 1;
	pthread_t thread;

	reader->world = world;
	assert_int_equal(kvt_feed_reader_init(&reader->feed, world->feed, world->feed_bytes, PS),
			 0);
	assert_int_equal(pthread_create(&thread, NULL, read_and_copy, reader), 0);
	world->reading = true;
	while (kvt_now_ns() < until && kvt_load_relaxed(&world->wrong) == 0 &&
	       (kvt_load_relaxed(&world->good) < good_copies ||
		kvt_load_relaxed(&world->bad) == 0))
		serve(world, &seed);
	kvt_store_relaxed(&world->stop, 1);
	pthread_join(thread, NULL);
	print_message("%llu good copies, %llu bad, %llu wrong, %llu snapshots\n",
		      (unsigned long long)world->good, (unsigned long long)world->bad,
		      (unsigned long long)world->wrong, (unsigned long long)world->snapshots);
	kvt_feed_reader_destroy(&reader->feed);
	free(reader);
}

TEST(a_copy_that_the_feed_calls_good_is_good)
{
	struct world *world = world_new(false);

	play(world, GOOD_COPIES);
	assert_int_equal(world->wrong, 0);
	assert_int_equal(world->impossible, 0);
	assert_true(world->good > 0 && world->bad > 0 && world->snapshots > 1);
	world_free(world);
}

TEST(a_removal_told_after_the_answer_is_found)
{
	struct world *world = world_new(true);

	play(world, UINT64_MAX);
	assert_true(world->wrong > 0);
	world_free(world);
}

/* ---- the ring */

static struct kvt_change out_of(uint64_t seq, const uint32_t *pages, uint32_t n)
{
	return (struct kvt_change){ .seq = seq, .out = pages, .n_out = n };
}

TEST(records_arrive_in_order_across_the_end_of_the_ring)
{
	struct world *world = world_new(false);
	uint32_t pages[PAGES - 1];
	struct kvt_feed_reader reader;
	struct kvt_feed_record record;

	for (uint32_t i = 0; i < PAGES - 1; i++)
		pages[i] = 1 + i;
	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes, PS), 0);
	assert_int_equal(kvt_feed_reader_next(&reader, &record), 0);
	for (uint64_t seq = 1; seq < 30000; seq++) {
		uint32_t n = 1 + seq * 7 % (PAGES - 1);
		struct kvt_change change = out_of(seq, pages, n);

		kvt_feed_write(&world->writer, &change);
		assert_int_equal(kvt_feed_reader_next(&reader, &record), 1);
		assert_int_equal(record.type, KVT_FEED_REMOVED);
		assert_int_equal(record.seq, seq);
		assert_int_equal(record.n, n);
		assert_memory_equal(record.pages, pages, n * sizeof(*pages));
		assert_int_equal(kvt_feed_reader_next(&reader, &record), 0);
	}
	assert_true(reader.at > 2 * world->writer.ring_bytes);
	kvt_feed_reader_destroy(&reader);
	world_free(world);
}

TEST(a_reader_that_was_overtaken_is_told_once_and_continues)
{
	struct world *world = world_new(false);
	uint32_t page = 1;
	struct kvt_feed_reader reader;
	struct kvt_feed_record record;
	struct kvt_change change;

	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes, PS), 0);
	for (uint64_t seq = 1; seq <= world->writer.ring_bytes / 64 + 1; seq++) {
		change = out_of(seq, &page, 1);
		kvt_feed_write(&world->writer, &change);
	}
	assert_int_equal(kvt_feed_reader_next(&reader, &record), -EOVERFLOW);
	assert_int_equal(kvt_feed_reader_next(&reader, &record), 0);
	change = out_of(7, &page, 1);
	kvt_feed_write(&world->writer, &change);
	assert_int_equal(kvt_feed_reader_next(&reader, &record), 1);
	assert_int_equal(record.seq, 7);
	kvt_feed_reader_destroy(&reader);
	world_free(world);
}

/* ---- a writer that lies */

static int next_after(struct world *world, void change(struct kvt_feed_entry *entry))
{
	uint32_t page = 1;
	struct kvt_change written = out_of(1, &page, 1);
	struct kvt_feed_reader reader;
	struct kvt_feed_record record;
	int rc;

	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes, PS), 0);
	kvt_feed_write(&world->writer, &written);
	change((void *)(world->writer.ring + (reader.at & (world->writer.ring_bytes - 1))));
	rc = kvt_feed_reader_next(&reader, &record);
	kvt_feed_reader_destroy(&reader);
	return rc;
}

static void no_bytes(struct kvt_feed_entry *entry)
{
	entry->bytes = 0;
}

static void odd_bytes(struct kvt_feed_entry *entry)
{
	entry->bytes = 60;
}

static void beyond_the_tail(struct kvt_feed_entry *entry)
{
	entry->bytes += 16;
}

static void many_pages(struct kvt_feed_entry *entry)
{
	entry->n = UINT32_MAX;
}

static void another_type(struct kvt_feed_entry *entry)
{
	entry->type = KVT_FEED_TYPES;
}

TEST(an_entry_that_cannot_be_is_refused)
{
	void (*const changes[])(struct kvt_feed_entry *) = {
		no_bytes, odd_bytes, beyond_the_tail, many_pages, another_type,
	};

	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		struct world *world = world_new(false);

		assert_int_equal(next_after(world, changes[i]), -EPROTO);
		world_free(world);
	}
}

TEST(an_object_that_is_no_feed_is_refused)
{
	struct world *world = world_new(false);
	struct kvt_feed_header *header = world->feed;
	struct kvt_feed_reader reader;

	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes / 2, PS),
			 -EPROTO);
	header->ring_bytes--;
	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes, PS),
			 -EPROTO);
	header->ring_bytes++;
	header->abi++;
	assert_int_equal(kvt_feed_reader_init(&reader, world->feed, world->feed_bytes, PS),
			 -EPROTO);
	world_free(world);
}
