/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sides.c
 * A cycle that does more, beside the same cycle without it: its COMMIT attaches side pages to its
 * last page, or its changes are told to a subscriber. On state machines in this process.
 *
 * Inputs: none; it makes its own trees. Invariant: both run in turns, on the same number of keys.
 * Caller: main.c.
 */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/log/feed.h"

#define KINDS 3u
#define CACHED 4096u
#define NEW 727u /* as in `cycle` */
#define TURN 50u /* cycles */
#define AIM_SIDES 1.3
#define AIM_FEED 1.1
#define FEED_BYTES (16u << 20)

/* Run a sequence, with a side page of each kind at its last whole page. Return the ticks. */
static uint64_t cycle(struct bench_target *target, const uint32_t *keys, uint32_t n,
		      uint32_t reusable)
{
	uint32_t n_sides = target->config.n_sides, last = n / BENCH_PAGE_SIZE - 1;
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = n,
				     .namespace_id = target->namespace_id };
	struct kvt_request alloc = { .op = KVT_OP_ALLOC, .arg = n_sides };
	struct kvt_request commit = { .op = KVT_OP_COMMIT, .arg = n, .fence = KVT_IDLE,
				      .flags = KVT_F_KEEP | KVT_F_NO_LIST, .n_sides = n_sides };
	struct kvt_request end = { .op = KVT_OP_END, .fence = KVT_IDLE };
	struct kvt_request *const steps[] = { &begin, &commit, &end };
	struct kvt_side sides[KINDS];
	struct kvt_result result;
	uint64_t start, ticks = 0;

	if (n_sides && bench_try(target, &alloc, &result))
		bench_die("sides: no pages");
	for (uint32_t kind = 0; kind < n_sides; kind++)
		sides[kind] = (struct kvt_side){ KVT_SIDE_PLACE(last, kind), result.pages[kind] };
	if (n_sides)
		bench_release(target, &result);
	commit.sides = sides;
	for (uint32_t i = 0; i < 3; i++) {
		bench_prepare(target, steps[i]);
		start = bench_ticks();
		bench_run(target, steps[i], &result);
		ticks += bench_ticks() - start;
		if (i == 0 && result.reusable != reusable)
			bench_die("sides: %u positions reused", result.reusable);
		if (i == 0)
			commit.lease = end.lease = result.lease;
		bench_release(target, &result);
	}
	return ticks;
}

static struct kvt_feed_writer feed; /* of the core that tells its changes */

static void write_change(void *context, const struct kvt_change *change)
{
	(void)context;
	kvt_feed_write(&feed, change);
}

/* Run both in turns, and print the line. plain: NULL: that of `more` while it tells nothing. */
static void compare(const struct bench_options *options, struct bench_target *more,
		    struct bench_target *plain, struct bench_result *line, const char *aim,
		    double most)
{
	uint32_t count = options->quick ? 4000 : 20000, keys[CACHED + NEW];
	struct bench_samples with = { 0 }, without = { 0 };

	bench_new_keys(keys, CACHED);
	cycle(more, keys, CACHED, 0);
	if (plain)
		cycle(plain, keys, CACHED, 0);
	for (uint32_t i = 0; i < count; i++) {
		bool is_plain = i / TURN % 2;

		if (!plain)
			kvt_core_set_change(more->core, is_plain ? NULL : write_change);
		bench_new_keys(keys + CACHED, NEW);
		bench_samples_add(is_plain ? &without : &with,
				  cycle(is_plain && plain ? plain : more, keys, CACHED + NEW,
					CACHED));
	}
	line->value = bench_samples_take(&with);
	line->floor = bench_samples_take(&without);
	bench_emit(line);
	bench_aim(aim, line->value.p50 / line->floor.p50, "x", most, false);
	bench_target_close(more);
	if (plain)
		bench_target_close(plain);
}

void bench_sides(const struct bench_options *options)
{
	struct bench_options core = *options;
	struct bench_target sided = { .config = { .n_sides = KINDS, .side_pages = { 1, 1, 1 } } };
	struct bench_target plain = { 0 };
	struct bench_result line = { .name = "cycle_sides", .keys = CACHED + NEW,
				     .kind = "a side page of 3 kinds at the last page",
				     .floor_is = "the same without sides" };

	core.core = true;
	bench_target_open(&sided, &core, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	bench_target_open(&plain, &core, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	compare(options, &sided, &plain, &line,
		"BEGIN+COMMIT+END with 3 side pages, p50 / without", AIM_SIDES);
}

void bench_feed(const struct bench_options *options)
{
	uint64_t bytes = kvt_feed_object_bytes(FEED_BYTES);
	struct bench_target told = { 0 };
	struct bench_options core = *options;
	struct bench_result line = { .name = "cycle_feed", .keys = CACHED + NEW,
				     .kind = "with a subscriber of the feed",
				     .floor_is = "the same without" };
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		bench_die("feed: no memory");
	memset(memory, 0, bytes); /* a ring that came round once */
	core.core = true;
	bench_target_open(&told, &core, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	kvt_feed_begin(&feed, memory, bytes, told.core, told.arena, told.sizes.arena_bytes, false);
	compare(options, &told, NULL, &line,
		"BEGIN+COMMIT+END with a subscriber of the feed, p50 / without", AIM_FEED);
	munmap(memory, bytes);
}
