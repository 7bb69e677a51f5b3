/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of pages against a feed that is this test's: what is known, what is queued, and which
 * copies are good. Pages can have side pages of two kinds. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/tier.h"
#include "tests/lib/cases.h"

#define PS 4u
#define PAGES 16u
#define BYTES 32u

static const struct kvt_info info = { .page_size = PS, .n_pages = PAGES, .page_bytes = BYTES,
				      .n_slabs = 2, .fingerprint = "weights=a",
				      .n_sides = 2, .side_pages = { 2, 1 } };
static const uint64_t digest[2] = { 5, 6 };

static struct kvt_known known;
static struct kvt_tier tier;
static struct kvt_share share;
static struct kvt_slabs slabs;
static struct kvt_jobs jobs; /* done at once */
static uint8_t memory[2][PAGES * BYTES];

static void take(const struct kvt_feed_record *record)
{
	assert_int_equal(kvt_known_take(&known, record), 0);
}

static void store_at(uint32_t parent, const uint32_t *pages, uint32_t n, uint32_t first_key)
{
	uint32_t keys[PAGES * PS];

	for (uint32_t i = 0; i < n * PS; i++)
		keys[i] = first_key + i;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t s = 0; s < 2; s++)
			memset(memory[s] + pages[i] * BYTES, (int)(keys[i * PS] * 2 + s), BYTES);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = n, .parent = parent,
					.namespace_id = parent ? 0 : 3, .pages = pages,
					.keys = keys });
}

static void change(uint32_t type, uint32_t page)
{
	take(&(struct kvt_feed_record){ .type = type, .n = type == KVT_FEED_REMOVED,
					.pages = &page });
}

static void attach(uint32_t page, uint32_t kind, uint32_t side)
{
	for (uint32_t half = 0; half < 2 && side < PAGES; half++)
		memset(memory[0] + (half * PAGES + side) * BYTES / 2, (int)side, BYTES / 2);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_SIDE, .n = 1,
		.sides = &(struct kvt_feed_side){ page, kind, side } });
}

static int start(void **state)
{
	share = (struct kvt_share){ .copied = 0 };
	assert_int_equal(kvt_known_init(&known, &info, 8), 0);
	assert_int_equal(kvt_tier_init(&tier, 5 * 2 * BYTES + 1, 2 * BYTES, 0), 0);
	assert_int_equal(tier.index.n_entries, 5);
	slabs = (struct kvt_slabs){ .n_slabs = 2, .n_pieces = 2, .record_bytes = 2 * BYTES,
				    .bases = { memory[0], memory[1] } };
	for (uint32_t i = 0; i < 2; i++) /* layer-major: two halves of a page */
		slabs.pieces[i] = (struct kvt_pool_piece){ i * PAGES * BYTES / 2, BYTES / 2,
							   BYTES / 2 };
	take(&(struct kvt_feed_record){ .type = KVT_FEED_NAMESPACE, .namespace_id = 3,
					.digest = { digest[0], digest[1] } });
	return 0;
}

static int stop(void **state)
{
	kvt_known_destroy(&known);
	kvt_tier_destroy(&tier);
	return 0;
}

/* The name of the page whose keys run from `first` in blocks, `index` pages behind the root. */
static void name_of(uint32_t first, uint32_t index, struct kvt_chain *ret_chain)
{
	uint32_t keys[PS];

	kvt_chain_root(&info, digest, 0, ret_chain);
	for (uint32_t i = 0; i <= index; i++) {
		for (uint32_t k = 0; k < PS; k++)
			keys[k] = first + i * PS + k;
		kvt_chain_next(ret_chain, keys, PS, ret_chain);
	}
}

/* Its entry. */
static uint32_t find(uint32_t first, uint32_t index)
{
	struct kvt_chain chain;

	name_of(first, index, &chain);
	return kvt_index_find(&tier.index, &chain);
}

/* The entry of a side page of that page. */
static uint32_t find_side(uint32_t first, uint32_t index, uint32_t kind)
{
	struct kvt_chain chain;

	name_of(first, index, &chain);
	kvt_chain_side(&chain, kind, &chain);
	return kvt_index_find(&tier.index, &chain);
}

static uint32_t copy_all(void)
{
	struct kvt_copy copy;
	uint32_t n = 0;

	while (kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy) == 1)
		n += kvt_copy_end(&tier, &known, &share, &copy, true);
	return n;
}

/* The first of many pages with one name is copied, and each of the others needs a look. */
TEST(pages_that_need_no_copy_are_looked_at_in_parts)
{
	const struct kvt_info large = { .page_size = 1, .n_pages = 20000, .page_bytes = BYTES };
	uint8_t *pool = calloc(large.n_pages, BYTES);
	struct kvt_slabs slab = { .n_slabs = 1, .n_pieces = 1, .record_bytes = BYTES,
				  .bases = { pool }, .pieces = { { 0, BYTES, BYTES } } };
	struct kvt_copy copy;
	uint32_t parts = 0;
	int rc;

	assert_int_equal(kvt_known_init(&known, &large, 2), 0);
	assert_int_equal(kvt_tier_init(&tier, 8 * BYTES, BYTES, 0), 0);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_NAMESPACE, .namespace_id = 3 });
	for (uint32_t page = 1; page < large.n_pages; page++)
		take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = 1, .namespace_id = 3,
						.pages = &page, .keys = &(uint32_t){ 7 } });
	assert_int_equal(kvt_copy_begin(&tier, &known, &slab, &share, &jobs, &copy), 1);
	assert_true(kvt_copy_end(&tier, &known, &share, &copy, true));
	while ((rc = kvt_copy_begin(&tier, &known, &slab, &share, &jobs, &copy)) != 0) {
		assert_int_equal(rc, -EAGAIN);
		parts++;
	}
	assert_int_equal(parts, 4);
	stop(NULL);
	free(pool);
}

/* Tell that pages behind page 0 have a time to live. */
static void store_for_a_while(const uint32_t *pages, uint32_t n)
{
	uint32_t keys[PAGES * PS];

	for (uint32_t i = 0; i < n * PS; i++)
		keys[i] = 100 + i;
	take(&(struct kvt_feed_record){ .type = KVT_FEED_STORED, .n = n, .namespace_id = 3,
					.pages = pages, .keys = keys, .ends = 1 });
}

TEST_WITH(pages_with_a_time_to_live_are_copied_when_that_is_lifted, start, stop)
{
	const uint32_t pages[] = { 7, 2 }, later = 9;

	store_for_a_while(pages, 2);
	known.sweep_at = 1;
	assert_int_equal(copy_all(), 0);
	take(&(struct kvt_feed_record){ .type = KVT_FEED_LASTING, .n = 2, .pages = pages });
	assert_int_equal(copy_all(), 2);
	assert_int_not_equal(find(100, 1), 0);
	/* Another page at a number that had one. */
	change(KVT_FEED_REMOVED, 7);
	store_for_a_while(&later, 1);
	store_at(0, (const uint32_t[]){ 7 }, 1, 500);
	assert_int_equal(copy_all(), 1);
}

TEST_WITH(pages_of_a_path_are_found_by_their_keys, start, stop)
{
	store_at(0, (const uint32_t[]){ 7, 2 }, 2, 100);
	store_at(2, (const uint32_t[]){ 9 }, 1, 108);
	assert_int_equal(copy_all(), 3);
	assert_int_equal(share.copied, 3);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t entry = find(100, i);

		assert_int_not_equal(entry, 0);
	}
	assert_int_equal(find(100, 3), 0);
	assert_int_equal(find(104, 0), 0); /* not at the root */
	change(KVT_FEED_REMOVED, 9); /* it stays in the store */
	assert_int_not_equal(find(100, 2), 0);
}

TEST_WITH(a_page_has_the_time_of_its_copy, start, stop)
{
	uint32_t before = (uint32_t)time(NULL);

	store_at(0, (const uint32_t[]){ 7 }, 1, 100);
	assert_int_equal(copy_all(), 1);
	assert_in_range(tier.index.entries[find(100, 0)].time, before, time(NULL));
}

TEST_WITH(a_record_has_all_pieces_of_all_slabs, start, stop)
{
	uint8_t expected[2 * BYTES], back[2][PAGES * BYTES];
	const uint8_t *record;

	store_at(0, (const uint32_t[]){ 3 }, 1, 100);
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t b = 0; b < PAGES * BYTES; b++)
			memory[s][b] = (uint8_t)(b * 7 + s);
	assert_int_equal(copy_all(), 1);
	record = kvt_tier_record(&tier, find(100, 0));
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t b = 0; b < BYTES; b++)
			expected[s * BYTES + b] =
				memory[s][b / 16 * PAGES * BYTES / 2 + 3 * BYTES / 2 + b % 16];
	assert_memory_equal(record, expected, sizeof(expected));
	memcpy(back, memory, sizeof(back));
	for (uint32_t s = 0; s < 2; s++)
		for (uint32_t i = 0; i < 2; i++)
			memset(memory[s] + i * PAGES * BYTES / 2 + 3 * BYTES / 2, 0, BYTES / 2);
	kvt_slabs_write(&slabs, 3, record);
	assert_memory_equal(back, memory, sizeof(back));
}

/* Around the size from which copies are streamed, and beside whole cache lines. */
TEST(pieces_of_any_size_and_place_are_copied_and_nothing_else)
{
	enum { MOST = 1500, ROOM = 2 * MOST };
	static const uint32_t sizes[] = { 1, 63, 64, 1023, 1024, 1025, 1087, 1088, 1151, MOST };
	static uint8_t pool[ROOM], back[ROOM], record[ROOM];
	struct kvt_slabs one = { .n_slabs = 1, .n_pieces = 1, .bases = { pool } };

	for (uint32_t b = 0; b < ROOM; b++)
		pool[b] = (uint8_t)(b * 2654435761u >> 24);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		for (uint32_t at = 0; at < 130; at += 13) {
			uint32_t n = sizes[i], to = (at * 7) % 64;

			one.pieces[0] = (struct kvt_pool_piece){ at, 0, n };
			one.bases[0] = pool;
			memset(record, 0xee, ROOM);
			kvt_slabs_read(&one, 0, record + to, NULL);
			assert_memory_equal(record + to, pool + at, n);
			assert_int_equal(record[to + n], 0xee);
			assert_true(to == 0 || record[to - 1] == 0xee);
			one.bases[0] = back;
			memset(back, 0xdd, ROOM);
			kvt_slabs_write(&one, 0, record + to);
			assert_memory_equal(back + at, pool + at, n);
			assert_int_equal(back[at + n], 0xdd);
			assert_true(at == 0 || back[at - 1] == 0xdd);
		}
	}
}

TEST_WITH(a_copy_of_a_page_that_changed_meanwhile_is_dropped, start, stop)
{
	static const uint32_t types[] = { KVT_FEED_REMOVED, KVT_FEED_STORED, KVT_FEED_CLEARED };
	struct kvt_copy copy;

	for (uint32_t i = 0; i < 4; i++) {
		store_at(0, (const uint32_t[]){ 3 }, 1, 100);
		assert_true(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy));
		if (i < 3 && types[i] == KVT_FEED_STORED) {
			change(KVT_FEED_REMOVED, 3);
			store_at(0, (const uint32_t[]){ 3 }, 1, 100); /* the same again */
		} else if (i < 3) {
			change(types[i], 3);
		}
		/* Or a lost feed. */
		assert_false(kvt_copy_end(&tier, &known, &share, &copy, i < 3));
		assert_int_equal(share.spoiled, i + 1);
		assert_int_equal(find(100, 0), 0);
		kvt_known_forget(&known);
	}
	assert_int_equal(share.copied, 0);
	store_at(0, (const uint32_t[]){ 3, 4 }, 2, 100);
	assert_true(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy));
	change(KVT_FEED_REMOVED, 4); /* another page */
	assert_true(kvt_copy_end(&tier, &known, &share, &copy, true));
	assert_int_not_equal(find(100, 0), 0);
}

TEST_WITH(a_page_that_went_before_its_copy_costs_none, start, stop)
{
	struct kvt_copy copy;

	store_at(0, (const uint32_t[]){ 3 }, 1, 100);
	change(KVT_FEED_REMOVED, 3);
	assert_false(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy));
	store_at(0, (const uint32_t[]){ 4 }, 1, 100);
	store_at(0, (const uint32_t[]){ 5 }, 1, 100); /* a twin of 4 */
	assert_int_equal(copy_all(), 1);
	assert_int_equal(share.spoiled, 0);
	assert_int_equal(tier.index.n_found, 1);
}

TEST_WITH(what_is_behind_an_unknown_page_is_not_known, start, stop)
{
	store_at(8, (const uint32_t[]){ 3, 4 }, 2, 100);
	assert_int_equal(copy_all(), 0);
	assert_null(kvt_known_name(&known, 3));
	assert_null(kvt_known_name(&known, PAGES));
	take(&(struct kvt_feed_record){ .type = KVT_FEED_REMOVED, .n = 1,
					.pages = (const uint32_t[]){ PAGES } });
	assert_int_equal(kvt_known_take(&known, &(struct kvt_feed_record){
		.type = KVT_FEED_NAMESPACE, .namespace_id = 1u << 24 }), -EPROTO);
}

TEST_WITH(side_pages_are_known_and_copied_by_their_main_page, start, stop)
{
	store_at(0, (const uint32_t[]){ 3, 4 }, 2, 100);
	attach(4, 0, 8);
	attach(4, 1, 9);
	attach(4, 2, 10);  /* no such kind */
	attach(7, 0, 11);  /* on no known page */
	attach(4, 0, PAGES);
	assert_int_equal(copy_all(), 4);
	assert_int_equal(*kvt_tier_record(&tier, find_side(100, 1, 0)), 8);
	assert_int_equal(*kvt_tier_record(&tier, find_side(100, 1, 1)), 9);
	assert_int_equal(find_side(100, 0, 0), 0);
	assert_int_equal(kvt_known_side(&known, 4, 0), 8);
	assert_int_equal(kvt_known_side(&known, 4, 1), 9);
	assert_int_equal(kvt_known_side(&known, 3, 0), 0);
	assert_int_equal(kvt_known_side(&known, PAGES, 0), 0);
	assert_int_equal(share.computed, 0); /* of a snapshot, and not main pages */
}

TEST_WITH(side_pages_are_known_as_long_as_they_and_their_main_page_are_cached, start, stop)
{
	struct kvt_copy copy;

	store_at(0, (const uint32_t[]){ 3, 4 }, 2, 100);
	attach(3, 0, 7);
	attach(4, 0, 8);
	attach(4, 1, 9);
	assert_int_equal(copy_all(), 5);
	change(KVT_FEED_REMOVED, 9); /* dropped */
	assert_int_equal(kvt_known_side(&known, 4, 1), 0);
	assert_int_equal(kvt_known_side(&known, 4, 0), 8);
	attach(4, 1, 9); /* the same page, with other bytes */
	/* It has that name. */
	assert_false(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy));
	change(KVT_FEED_REMOVED, 4);
	assert_int_equal(kvt_known_side(&known, 4, 0), 0);
	store_at(3, (const uint32_t[]){ 4 }, 1, 104); /* the main page's number again */
	assert_int_equal(kvt_known_side(&known, 4, 0), 0);
	attach(4, 0, 10);
	change(KVT_FEED_REMOVED, 8); /* told late: not that of the new page */
	assert_int_equal(kvt_known_side(&known, 4, 0), 10);
	store_at(4, (const uint32_t[]){ 7 }, 1, 108); /* a side page's number as a main page */
	assert_int_equal(kvt_known_side(&known, 3, 0), 0);
	assert_false(known.pages[7].is_side);
	kvt_known_forget(&known);
	assert_int_equal(kvt_known_side(&known, 4, 0), 0);
	assert_null(kvt_known_name(&known, 10));
}

TEST_WITH(a_side_page_leaves_before_its_main_page_and_is_young_with_it, start, stop)
{
	store_at(0, (const uint32_t[]){ 1, 2 }, 2, 100);
	attach(2, 0, 3);
	store_at(0, (const uint32_t[]){ 4, 5 }, 2, 200);
	assert_int_equal(copy_all(), 5);
	kvt_tier_use(&tier, kvt_known_name(&known, 2));
	kvt_tier_use(&tier, kvt_known_name(&known, 3));
	store_at(0, (const uint32_t[]){ 6, 7 }, 2, 300); /* takes the places of the other path */
	assert_int_equal(copy_all(), 2);
	assert_true(find(100, 0) && find(100, 1) && find_side(100, 1, 0));
	assert_true(!find(200, 0) && !find(200, 1));
	store_at(0, (const uint32_t[]){ 8 }, 1, 400);
	assert_int_equal(copy_all(), 1);
	assert_true(find(100, 1) && !find_side(100, 1, 0));
}

TEST_WITH(what_found_the_queue_full_is_copied_once_it_is_empty, start, stop)
{
	known.queue_pages = 2;
	store_at(0, (const uint32_t[]){ 9, 3, 5, 4 }, 4, 100);
	assert_int_equal(known.dropped, 2);
	change(KVT_FEED_REMOVED, 4);
	assert_int_equal(copy_all(), 3);
	assert_true(find(100, 0) && find(100, 1) && find(100, 2) && !find(100, 3));
	assert_int_equal(known.sweep_at, PAGES);
	store_at(0, (const uint32_t[]){ 10, 11, 12 }, 3, 200); /* 12 takes the place of the end */
	assert_int_equal(copy_all(), 3);
	assert_true(find(200, 2) && find(100, 1) && !find(100, 2));
}

TEST_WITH(a_full_tier_drops_the_end_of_the_oldest_path, start, stop)
{
	const uint32_t pages[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };

	store_at(0, pages, 10, 100);
	assert_int_equal(known.dropped, 2);
	assert_int_equal(copy_all(), 5); /* no page for one behind it */
	assert_int_equal(share.full, 3 + 5); /* and those that the sweep finds */
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(find(100, i) != 0, i < 5);
	store_at(0, (const uint32_t[]){ 11, 12 }, 2, 200);
	assert_int_equal(copy_all(), 2);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(find(100, i) != 0, i < 3);
}

TEST_WITH(a_path_leaves_from_its_end_and_is_young_if_it_grows, start, stop)
{
	store_at(0, (const uint32_t[]){ 1, 2 }, 2, 100);
	store_at(0, (const uint32_t[]){ 3, 4, 5 }, 3, 150);
	assert_int_equal(copy_all(), 5);
	store_at(2, (const uint32_t[]){ 6 }, 1, 108); /* the older one grows */
	assert_int_equal(copy_all(), 1);
	assert_true(find(100, 2) && find(150, 1) && !find(150, 2));
	store_at(0, (const uint32_t[]){ 7, 8 }, 2, 150); /* stored again: no copy, but young */
	assert_int_equal(copy_all(), 0);
	store_at(0, (const uint32_t[]){ 9 }, 1, 180);
	assert_int_equal(copy_all(), 1);
	assert_true(find(100, 1) && !find(100, 2) && find(150, 1) && find(180, 0));
}

TEST_WITH(pinned_pages_stay, start, stop)
{
	const uint32_t pages[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct kvt_copy copy;

	store_at(0, pages, 5, 100);
	assert_int_equal(copy_all(), 5);
	for (uint32_t i = 0; i < 5; i++)
		kvt_index_pin(&tier.index, find(100, i));
	store_at(5, pages + 5, 1, 120);
	assert_false(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy));
	assert_int_equal(share.full, 1);
	kvt_index_unpin(&tier.index, find(100, 0));
	kvt_index_unpin(&tier.index, find(100, 4)); /* only this one has nothing behind it */
	store_at(0, pages + 6, 1, 200);
	assert_int_equal(copy_all(), 1);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(find(100, i) != 0, i != 4);
	assert_int_not_equal(find(200, 0), 0);
}

/* ---- a tier below, with pages whose names begin with a small number */

static uint32_t below_pages, reads[8], n_reads, n_ended;
static bool read_good;

static bool below_has(void *self, const struct kvt_chain *page)
{
	return self == reads && page->digest[0] < below_pages;
}

static int below_read(void *self, const struct kvt_chain *page, uint32_t entry)
{
	if (n_reads - n_ended == 2)
		return -EAGAIN;
	memset(kvt_tier_record(&tier, entry), page->digest[0], 2 * BYTES);
	tier.index.entries[entry].time = 0;
	reads[n_reads++] = entry;
	return 0;
}

static void below_entered(void *self, uint32_t entry)
{
}

static bool below_leave(void *self, uint32_t entry)
{
	return false;
}

static bool below_arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	if (n_ended == n_reads)
		return false;
	*ret_entry = reads[n_ended++];
	*ret_good = read_good;
	return true;
}

static int start_below(void **state)
{
	start(state);
	below_pages = 6;
	n_reads = n_ended = 0;
	read_good = true;
	kvt_tier_destroy(&tier);
	assert_int_equal(kvt_tier_init(&tier, 12 * 2 * BYTES, 2 * BYTES, 0), 0);
	tier.below[0] = (struct kvt_below){ .self = reads, .fd = -1, .has = below_has,
					    .read = below_read, .arrived = below_arrived,
					    .entered = below_entered, .leave = below_leave };
	tier.n_below = 1;
	return 0;
}

static struct kvt_chain below_page(uint8_t i)
{
	return (struct kvt_chain){ { i } };
}

TEST_WITH(a_page_from_below_is_found_once_it_arrived, start_below, stop)
{
	struct kvt_chain page = below_page(1), other = below_page(6);
	int64_t entry;

	assert_true(kvt_tier_has(&tier, &page));
	assert_false(kvt_tier_has(&tier, &other));
	assert_int_equal(kvt_tier_bring(&tier, &other, &page), -ENOENT);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), -EINPROGRESS);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), 0); /* one read */
	assert_int_equal(n_reads, 1);
	assert_int_equal(kvt_index_find(&tier.index, &page), 0);
	assert_true(kvt_tier_arrivals(&tier));
	assert_false(kvt_tier_arrivals(&tier));
	entry = kvt_tier_bring(&tier, &page, &page);
	assert_true(entry > 0);
	assert_int_equal(*kvt_tier_record(&tier, (uint32_t)entry), 1);
	assert_int_equal(tier.brought, 1);
}

TEST_WITH(a_read_that_fails_leaves_no_page, start_below, stop)
{
	struct kvt_chain page = below_page(1);

	read_good = false;
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), -EINPROGRESS);
	below_pages = 0;
	assert_true(kvt_tier_arrivals(&tier));
	assert_int_equal(tier.lost, 1);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), -ENOENT);
	assert_int_equal(tier.index.n_found, 0);
	assert_int_equal(tier.n_coming, 0);
}

TEST_WITH(a_page_that_was_forgotten_while_it_was_read_is_not_found, start_below, stop)
{
	struct kvt_chain page = below_page(1);

	assert_int_equal(kvt_tier_bring(&tier, &page, &page), -EINPROGRESS);
	kvt_tier_clear(&tier);
	assert_true(kvt_tier_arrivals(&tier));
	assert_int_equal(tier.index.n_found, 0);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), -EINPROGRESS); /* read again */
	assert_true(kvt_tier_arrivals(&tier));
	assert_int_equal(tier.index.n_found, 1);
}

TEST_WITH(reads_from_below_are_bounded, start_below, stop)
{
	struct kvt_chain pages[6];

	for (uint8_t i = 0; i < 6; i++)
		pages[i] = below_page(i);
	assert_int_equal(kvt_tier_bring(&tier, &pages[0], &pages[0]), -EINPROGRESS);
	assert_int_equal(kvt_tier_bring(&tier, &pages[1], &pages[1]), -EINPROGRESS);
	/* By the tier below. */
	assert_int_equal(kvt_tier_bring(&tier, &pages[2], &pages[2]), -EAGAIN);
	while (kvt_tier_arrivals(&tier))
		;
	for (uint32_t entry; (entry = kvt_index_take(&tier.index)) != 0;)
		share.full++; /* all are taken: no record to read into */
	assert_int_equal(share.full, 12);
	assert_int_equal(kvt_tier_bring(&tier, &pages[3], &pages[3]), -EAGAIN);
}

/* A page that is on its way from below, and those behind it, are copied if it is lost. */
TEST_WITH(a_page_on_its_way_from_below_is_copied_later, start_below, stop)
{
	for (uint32_t turn = 0; turn < 2; turn++) {
		uint32_t first = 100 + 100 * turn;
		struct kvt_chain page;

		store_at(0, (const uint32_t[]){ 3 + 3 * turn, 4 + 3 * turn }, 2, first);
		store_at(0, (const uint32_t[]){ 5 + 3 * turn }, 1, first + 50);
		page = *kvt_known_name(&known, 3 + 3 * turn);
		below_pages = 256;
		assert_int_equal(kvt_tier_bring(&tier, &page, NULL), -EINPROGRESS);
		assert_int_equal(copy_all(), 1);
		assert_int_not_equal(find(first + 50, 0), 0);
		assert_int_equal(known.n_queued, 2);
		read_good = turn == 0;
		assert_true(kvt_tier_arrivals(&tier));
		assert_int_equal(find(first, 0) != 0, turn == 0);
		assert_int_equal(copy_all(), 1 + turn);
		assert_int_equal(tier.index.entries[find(first, 1)].front, find(first, 0));
	}
}

TEST_WITH(a_page_that_is_copied_is_not_read_from_below, start_below, stop)
{
	struct kvt_chain page;
	struct kvt_copy copy;

	store_at(0, (const uint32_t[]){ 3 }, 1, 100);
	page = *kvt_known_name(&known, 3);
	below_pages = 256;
	assert_int_equal(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy), 1);
	assert_int_equal(kvt_index_find(&tier.index, &page), 0);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), 0);
	assert_true(kvt_tier_moves(&tier));
	assert_true(kvt_copy_end(&tier, &known, &share, &copy, true));
	assert_false(kvt_tier_moves(&tier));
	assert_int_equal(n_reads, 0);
	assert_int_equal(kvt_tier_bring(&tier, &page, &page), find(100, 0));
}

/* While the memory of a start comes, no page leaves for another one if there is time. */
TEST_WITH(copies_wait_for_memory_that_comes, start, stop)
{
	kvt_index_limit(&tier.index, 2);
	store_at(0, (uint32_t[]){ 1, 2, 3 }, 3, 100);
	assert_int_equal(copy_all(), 2);
	assert_int_equal(known.n_queued, 1);
	assert_int_equal(share.full, 0);
	kvt_tier_fill(&tier, 3 * 2 * BYTES);
	assert_int_equal(copy_all(), 1);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(find(100, i), i + 1);
	for (uint32_t i = 0; i < 4; i++) /* half of what the queue has room for */
		store_at(0, (uint32_t[]){ 4 + i }, 1, 200 + 10 * i);
	assert_int_equal(copy_all(), 1);
	assert_int_equal(known.n_queued, 3);
	assert_int_equal(tier.index.n_found, 3);
	kvt_tier_fill(&tier, 5 * 2 * BYTES);
	assert_int_equal(copy_all(), 3); /* and all is there: pages leave as ever */
	assert_int_equal(tier.index.n_found, 5);
}

TEST_WITH(what_is_too_old_is_not_found_until_it_is_cached_again, start, stop)
{
	struct kvt_chain first, second;
	uint32_t entry;

	tier.max_age_s = 100;
	store_at(0, (uint32_t[]){ 1, 2 }, 2, 100);
	assert_int_equal(copy_all(), 2);
	name_of(100, 0, &first);
	name_of(100, 1, &second);
	entry = find(100, 0);
	tier.index.entries[entry].time -= 100;
	assert_true(kvt_tier_has(&tier, &first));
	tier.index.entries[entry].time -= 2;
	assert_false(kvt_tier_has(&tier, &first));
	assert_int_equal(kvt_tier_pin(&tier, &first), 0);
	assert_int_equal(kvt_tier_bring(&tier, &first, NULL), -ENOENT);
	assert_true(kvt_tier_has(&tier, &second));
	while (kvt_tier_arrivals(&tier))
		;
	assert_int_equal(find(100, 0), entry); /* a page is behind it */
	change(KVT_FEED_REMOVED, 1);
	store_at(0, (uint32_t[]){ 3 }, 1, 100);
	assert_int_equal(copy_all(), 0);
	assert_true(kvt_tier_has(&tier, &first));
	tier.index.entries[entry].time -= 102;
	tier.index.entries[find(100, 1)].time -= 102;
	while (kvt_tier_arrivals(&tier))
		;
	assert_int_equal(tier.index.n_found, 0);
	tier.max_age_s = 0;
}

/* Forget a page and what is behind it. */
static uint32_t forget(const struct kvt_chain *page, uint32_t since, uint32_t stays)
{
	struct kvt_scan scan;

	kvt_tier_scan_open(&tier, &scan);
	assert_true(kvt_tier_scan(&tier, &scan, since));
	return kvt_tier_forget(&tier, &scan, page, since, stays);
}

/* So a FETCH waits for one, however large the memory is. */
TEST_WITH(what_may_be_wrong_is_looked_for_in_parts_that_each_take_the_lock, start, stop)
{
	enum { PARTS = 4, ENTRIES = (PARTS - 1) * KVT_SCAN_LOOKS + 1 };
	struct kvt_tier large;
	struct kvt_scan scan;
	uint32_t parts = 1;

	assert_int_equal(kvt_tier_init(&large, (uint64_t)ENTRIES * BYTES, BYTES, 0), 0);
	kvt_tier_scan_open(&large, &scan);
	while (!kvt_tier_scan(&large, &scan, 1)) {
		assert_int_equal(pthread_mutex_trylock(&large.lock), 0);
		kvt_tier_unlock(&large);
		parts++;
	}
	assert_int_equal(parts, PARTS);
	kvt_scan_close(&large.index.scans, &scan);
	kvt_tier_destroy(&large);
}

/* A copy on its way may be of a page that was computed from a damaged one. */
TEST_WITH(after_a_withdrawal_no_copy_is_found_that_began_before, start, stop)
{
	struct kvt_chain first;
	struct kvt_copy copy;

	store_at(0, (uint32_t[]){ 1, 2 }, 2, 100);
	assert_int_equal(copy_all(), 2);
	store_at(2, (uint32_t[]){ 3 }, 1, 100 + 2 * PS);
	name_of(100, 0, &first);
	assert_int_equal(kvt_copy_begin(&tier, &known, &slabs, &share, &jobs, &copy), 1);
	assert_int_equal(forget(&first, UINT32_MAX, 0), 0);
	assert_false(kvt_copy_end(&tier, &known, &share, &copy, true));
	assert_int_not_equal(find(100, 1), 0);
	assert_int_equal(find(100, 2), 0);
	known.sweep_at = 1;
	assert_int_equal(copy_all(), 0); /* this pool may have it still */
	share.withdrawn = tier.withdrawals;
	assert_int_equal(copy_all(), 1);
	assert_int_not_equal(find(100, 2), 0);
	assert_int_equal(forget(&first, 0, find(100, 1)), 2);
	assert_int_equal(find(100, 0), 0);
	assert_int_not_equal(find(100, 1), 0);
	assert_int_equal(find(100, 2), 0);
	/* The page that stays is behind its front again, once that is copied. */
	share.withdrawn = tier.withdrawals;
	change(KVT_FEED_REMOVED, 3);
	store_at(0, (uint32_t[]){ 4, 5 }, 2, 100);
	assert_int_equal(copy_all(), 1);
	assert_int_equal(tier.index.entries[find(100, 1)].front, find(100, 0));
}

/* By another host, and not later. */
TEST_WITH(a_page_without_a_time_was_copied_when_it_came, start_below, stop)
{
	struct kvt_chain page = below_page(1);
	uint32_t now = (uint32_t)time(NULL);

	assert_int_equal(kvt_tier_bring(&tier, &page, NULL), -EINPROGRESS);
	while (kvt_tier_arrivals(&tier))
		;
	assert_true(tier.index.entries[kvt_index_find(&tier.index, &page)].time >= now);
}
