/* SPDX-License-Identifier: Apache-2.0 */
/* libclient/area.c: ranges of the key and list areas, against a map of every word. */
#include <stdlib.h>
#include <string.h>

#include "libclient/area.h"
#include "libclient/state.h"
#include "tests/lib/cases.h"

enum { TAKEN_MAX = 40, LINE_WORDS = KVT_LINE / 4 };

static uint64_t seed = 1;

static uint32_t random_below(uint32_t n)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % n;
}

/* Longest free run of words. */
static uint32_t longest_free(const uint8_t *map, uint32_t count)
{
	uint32_t longest = 0, run = 0;

	for (uint32_t i = 0; i < count; i++) {
		run = map[i] ? 0 : run + 1;
		longest = run > longest ? run : longest;
	}
	return longest;
}

static void check_taken(const uint8_t *map, const struct kvt_extent *taken, uint32_t n,
			uint32_t count)
{
	assert_true(taken->n >= n && taken->n < n + LINE_WORDS);
	assert_true(taken->at + taken->n <= count);
	assert_int_equal(taken->at % LINE_WORDS, 0);
	for (uint32_t i = 0; i < taken->n; i++)
		assert_int_equal(map[taken->at + i], 0);
}

static void random_ranges(uint32_t count)
{
	struct kvt_extent taken[TAKEN_MAX];
	uint8_t *map = calloc(count, 1);
	struct kvt_area area;
	uint32_t n_taken = 0;

	assert_int_equal(kvt_area_init(&area, count, TAKEN_MAX), 0);
	for (int step = 0; step < 20000; step++) {
		uint32_t n = 1 + random_below(random_below(4) ? 70 : count), which;

		if (n_taken < TAKEN_MAX && random_below(2)) {
			bool got = kvt_area_take(&area, n, &taken[n_taken]);

			/* Refused exactly when no run of words is long enough. */
			assert_int_equal(got, longest_free(map, count) >= n);
			if (!got)
				continue;
			check_taken(map, &taken[n_taken], n, count);
			memset(map + taken[n_taken].at, 1, taken[n_taken].n);
			n_taken++;
		} else if (n_taken) {
			which = random_below(n_taken);
			kvt_area_give(&area, taken[which]);
			memset(map + taken[which].at, 0, taken[which].n);
			taken[which] = taken[--n_taken];
		}
	}
	while (n_taken)
		kvt_area_give(&area, taken[--n_taken]);
	assert_int_equal(area.n_holes, count ? 1 : 0);
	assert_int_equal(area.holes[0].n, count);
	kvt_area_destroy(&area);
	free(map);
}

TEST(ranges_given_back_in_any_order_leave_one_hole)
{
	random_ranges(1);
	random_ranges(31);
	random_ranges(32);
	random_ranges(1000);
	random_ranges(4096);
}

TEST(nothing_is_always_there)
{
	struct kvt_extent taken = { 5, 5 };
	struct kvt_area area;

	assert_int_equal(kvt_area_init(&area, 0, 4), 0);
	assert_true(kvt_area_take(&area, 0, &taken));
	assert_int_equal(taken.n, 0);
	assert_false(kvt_area_take(&area, 1, &taken));
	kvt_area_give(&area, (struct kvt_extent){ 0, 0 });
	assert_int_equal(area.n_holes, 0);
	kvt_area_destroy(&area);
}
