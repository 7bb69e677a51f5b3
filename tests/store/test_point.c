/* SPDX-License-Identifier: Apache-2.0 */
/* Points of prefixes whose side pages are drawn, against the definition. */
#include "store/point.h"
#include "tests/lib/cases.h"

#define PAGES 40u

static bool sides[KVT_MAX_SIDES][PAGES];
static uint32_t last_index;

/* kvt_point_has: each page comes after those behind it. */
static bool has(void *context, uint32_t index, uint32_t kind)
{
	const struct kvt_info *info = context;

	assert_true(index <= last_index && kind < info->n_sides);
	last_index = index;
	return sides[kind][index];
}

static uint32_t last_point(const struct kvt_info *info, uint32_t n)
{
	last_index = n;
	return kvt_point_last(info, n, has, (void *)info);
}

static bool is_point(const struct kvt_info *info, uint32_t n)
{
	for (uint32_t kind = 0; kind < info->n_sides; kind++)
		for (uint32_t i = 0; i < info->side_pages[kind] && i < n; i++)
			if (!sides[kind][n - 1 - i])
				return false;
	return true;
}

static uint32_t drawn(uint32_t *seed, uint32_t below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 8) % below;
}

TEST(the_last_point_is_the_largest_prefix_with_all_side_pages)
{
	uint32_t seed = 1, found = 0;

	for (uint32_t round = 0; round < 20000; round++) {
		struct kvt_info info = { .n_sides = drawn(&seed, KVT_MAX_SIDES + 1) };
		uint32_t n = drawn(&seed, PAGES + 1), point = n, holes = drawn(&seed, 20) + 2;

		for (uint32_t kind = 0; kind < info.n_sides; kind++) {
			info.side_pages[kind] = 1 + drawn(&seed, kind % 2 ? 2 : PAGES);
			for (uint32_t i = 0; i < PAGES; i++)
				sides[kind][i] = drawn(&seed, holes) > 0;
		}
		while (!is_point(&info, point))
			point--;
		assert_int_equal(last_point(&info, n), point);
		found += point > 0 && point < n;
	}
	assert_true(found > 1000);
}

TEST(a_point_needs_the_last_pages_or_all)
{
	const struct kvt_info info = { .n_sides = 2, .side_pages = { 16, 1 } };

	assert_int_equal(kvt_point_pages(&info), 17);
	assert_int_equal(kvt_point_first(&info, 20, 0), 4);
	assert_int_equal(kvt_point_first(&info, 20, 1), 19);
	assert_int_equal(kvt_point_first(&info, 16, 0), 0);
	assert_int_equal(kvt_point_first(&info, 3, 0), 0);
}
