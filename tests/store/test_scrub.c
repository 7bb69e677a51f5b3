/* SPDX-License-Identifier: Apache-2.0 */
/* Which page is read next, and what counts as damage, against a feed that is this test's. */
#include <malloc.h>
#include <string.h>
#include <time.h>

#include "kvtrunk_feed.h"
#include "store/scrub.h"
#include "tests/lib/cases.h"

#define PS 4u
#define PAGES 64u
#define BYTES 32u

static const struct kvt_info info = { .page_size = PS, .n_pages = PAGES, .page_bytes = BYTES,
				      .n_slabs = 2, .n_sides = 1, .side_pages = { 1 } };
static uint8_t memory[2][PAGES * BYTES];
static const struct kvt_slabs slabs = {
	.bases = { memory[0], memory[1] }, .n_slabs = 2, .n_pieces = 2, .record_bytes = 2 * BYTES,
	.pieces = { { 0, BYTES / 2, BYTES / 2 }, { PAGES * BYTES / 2, BYTES / 2, BYTES / 2 } },
};
static struct kvt_known known;
static struct kvt_scrub scrub;
static struct kvt_jobs jobs; /* done at once */

static void take(const struct kvt_feed_record *record)
{
	assert_int_equal(kvt_known_take(&known, record), 0);
	kvt_scrub_note(&scrub, &known, record);
}

static void seal(uint32_t page)
{
	const uint32_t keys[PS] = { page, page, page, page };

	take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = 1, .namespace_id = 3,
					.pages = &page, .keys = keys });
}

static void evict(uint32_t page)
{
	take(&(struct kvt_feed_record){ .type = KVT_FEED_REMOVED, .n = 1, .pages = &page });
}

static int start(void **state)
{
	const uint64_t fast = 1ull << 60; /* no page waits for its time */

	memset(memory, 0, sizeof(memory));
	scrub = (struct kvt_scrub){ .rate = 0 };
	assert_int_equal(kvt_known_init(&known, &info, PAGES), 0);
	assert_int_equal(kvt_scrub_init(&scrub, fast, &known, &slabs), 0);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_NAMESPACE, .namespace_id = 3,
					.digest = { 5, 6 } });
	return 0;
}

static int stop(void **state)
{
	kvt_scrub_destroy(&scrub);
	kvt_known_destroy(&known);
	return 0;
}

/* Read one page, and judge it. Returns its number, 0: none was read. */
static uint32_t read_one(bool complete, bool *ret_damaged)
{
	struct kvt_damage damage;
	uint32_t page;

	*ret_damaged = false;
	if (!kvt_scrub_begin(&scrub, &known, &slabs, &jobs))
		return 0;
	assert_int_equal(kvt_scrub_ended(&scrub), 1);
	page = scrub.reads[scrub.reads_at].job.page;
	*ret_damaged = kvt_scrub_end(&scrub, &known, complete, &damage);
	return page;
}

static uint32_t read_right(void)
{
	bool damaged;
	uint32_t page = read_one(true, &damaged);

	assert_false(damaged);
	return page;
}

TEST_WITH(new_pages_come_first_and_each_fourth_is_of_the_round, start, stop)
{
	static const uint32_t expected[] = { 10, 11, 12, 10, 13, 14, 15, 11, 16 };

	assert_int_equal(read_right(), 0);
	for (uint32_t page = 10; page < 20; page++)
		seal(page);
	for (uint32_t i = 0; i < sizeof(expected) / sizeof(*expected); i++)
		assert_int_equal(read_right(), expected[i]);
}

TEST_WITH(one_of_eight_new_pages_is_read_again_soon, start, stop)
{
	uint32_t first = 0;

	for (uint32_t page = 10; page < 26; page++)
		seal(page);
	while (scrub.first_new)
		read_right();
	assert_int_equal(scrub.n_soon, 2);
	first = scrub.soon[scrub.soon_at].page;
	assert_int_equal(first, 10);
	scrub.soon[0].due_ns = scrub.soon[1].due_ns = 0; /* it is time */
	evict(18); /* not this one */
	seal(18);
	assert_int_equal(read_right(), first);
	assert_int_equal(read_right(), 18); /* as a new one */
}

/* One bit, in the second slab. */
TEST_WITH(a_changed_page_is_told_of_once_with_its_pieces, start, stop)
{
	uint32_t before = (uint32_t)time(NULL), sums[4];
	struct kvt_damage damage;

	seal(7);
	assert_int_equal(read_right(), 7);
	assert_int_equal(read_right(), 7);
	memory[1][PAGES * BYTES / 2 + 7 * BYTES / 2 + 5] ^= 8;
	assert_true(kvt_scrub_begin(&scrub, &known, &slabs, &jobs));
	assert_true(kvt_scrub_end(&scrub, &known, true, &damage));
	assert_int_equal(damage.page, 7);
	assert_int_equal(damage.n_pieces, 1);
	assert_int_equal(damage.first, 3);
	assert_int_equal(damage.last, 3);
	memory[1][PAGES * BYTES / 2 + 7 * BYTES / 2 + 5] ^= 8; /* as it was */
	kvt_slabs_sum(&slabs, 7, NULL, sums);
	assert_memory_equal(damage.first_sums, sums, sizeof(sums));
	memory[1][PAGES * BYTES / 2 + 7 * BYTES / 2 + 5] ^= 8;
	assert_true(damage.right_s >= before && damage.right_s <= (uint32_t)time(NULL));
	assert_int_equal(read_right(), 7);
	assert_int_equal(scrub.damaged, 1);
	assert_int_equal(scrub.scrubbed, 3);
}

/* All that an honest owner does between two readings, or between a reading and the look. */
TEST_WITH(the_next_owner_of_a_page_is_no_damage, start, stop)
{
	struct kvt_damage damage;
	bool damaged;

	seal(7);
	assert_int_equal(read_right(), 7);
	evict(7);
	memory[0][7 * BYTES / 2] = 1;
	seal(7);
	assert_int_equal(read_right(), 7);
	/* Written while it is read: the record is in the feed. */
	memory[0][7 * BYTES / 2] = 2;
	assert_true(kvt_scrub_begin(&scrub, &known, &slabs, &jobs));
	evict(7);
	assert_false(kvt_scrub_end(&scrub, &known, true, &damage));
	seal(7);
	assert_int_equal(read_right(), 7);
	/* Not all records were taken: nothing is known of it. */
	memory[0][7 * BYTES / 2] = 3;
	assert_int_equal(read_one(false, &damaged), 7);
	assert_false(damaged);
	/* A snapshot tells it anew. */
	kvt_known_forget(&known);
	kvt_scrub_forget(&scrub);
	seal(7);
	assert_int_equal(read_right(), 7);
	assert_int_equal(scrub.damaged, 0);
}

/* It is new, and its turn may have come while the reading was open. */
TEST_WITH(the_next_owner_of_a_page_that_was_being_read_is_read_soon, start, stop)
{
	struct kvt_damage damage;

	for (uint32_t page = 7; page < 10; page++) {
		seal(page);
		assert_int_equal(read_right(), page);
	}
	do
		assert_true(kvt_scrub_begin(&scrub, &known, &slabs, &jobs));
	while (scrub.reads[scrub.reads_at].job.page != 7 &&
	       !kvt_scrub_end(&scrub, &known, true, &damage));
	scrub.turns = 0;
	evict(7);
	seal(7);
	assert_false(kvt_scrub_begin(&scrub, &known, &slabs, &jobs));
	assert_false(kvt_scrub_end(&scrub, &known, true, &damage));
	assert_int_equal(read_right(), 7);
	assert_int_equal(scrub.pages[7].changes, known.pages[7].changes);
}

/* A lease may hold what is behind a removed page, while its path is sealed again elsewhere. */
TEST_WITH(pages_behind_a_removed_one_are_forgotten, start, stop)
{
	static const uint32_t pages[] = { 5, 6, 7 }, again[] = { 10, 11 };
	static const uint32_t keys[3 * PS] = { 1, 2, 3 };
	const struct kvt_feed_side side = { .page = 7, .side = 20 };

	take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = 3, .namespace_id = 3,
					.pages = pages, .keys = keys });
	take(&(struct kvt_feed_record){ .type = KVT_FEED_SIDE, .n = 1, .sides = &side });
	evict(5);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = 2, .namespace_id = 3,
					.pages = again, .keys = keys });
	assert_int_equal(kvt_known_lose_behind(&known), 0);
	assert_null(kvt_known_name(&known, 6));
	assert_null(kvt_known_name(&known, 7));
	assert_null(kvt_known_name(&known, 20));
	assert_non_null(kvt_known_name(&known, 10));
	assert_int_equal(kvt_known_find(&known, kvt_known_name(&known, 11)), 11);
}

/* Or a store of a large pool that caches little would do nothing else. */
TEST_WITH(a_turn_looks_at_a_part_of_the_pool, start, stop)
{
	struct kvt_info large = info;
	uint32_t turns = 1;

	large.n_pages = 100000;
	stop(state);
	assert_int_equal(kvt_known_init(&known, &large, PAGES), 0);
	assert_int_equal(kvt_scrub_init(&scrub, 1ull << 60, &known, &slabs), 0);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_NAMESPACE, .namespace_id = 3,
					.digest = { 5, 6 } });
	seal(7);
	assert_int_equal(read_right(), 7); /* as a new one */
	assert_int_equal(read_right(), 7);
	while (read_right() != 7)
		turns++;
	assert_in_range(turns, large.n_pages / 8192, large.n_pages / 1024);
	while (read_right() != 7) /* a whole round */
		;
	assert_true(scrub.last_round_ns > 0);
	evict(7);
	for (uint32_t i = 0; i < 2 * turns; i++)
		assert_int_equal(read_right(), 0);
	assert_int_equal(scrub.last_round_ns, 0);
}

/* What a start demands. */
TEST_WITH(it_takes_the_memory_that_it_says, start, stop)
{
	uint64_t bytes = kvt_scrub_bytes(&info, &slabs);

	assert_in_range(malloc_usable_size(scrub.pages) + malloc_usable_size(scrub.sums) +
			malloc_usable_size(scrub.read_sums), bytes, bytes + 64);
}

TEST_WITH(no_more_is_read_than_its_rate, start, stop)
{
	uint32_t n = 0;

	scrub.rate = 2 * BYTES; /* a page a second */
	seal(7);
	while (read_right())
		n++;
	assert_int_equal(n, 1);
	assert_true(scrub.ready_ns > 0);
}
