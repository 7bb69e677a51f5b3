/* SPDX-License-Identifier: Apache-2.0 */
/* shm/racy.c: compare and hash keys that may change meanwhile. */
#include <stdlib.h>
#include <string.h>

#include "shm/racy.h"
#include "tests/lib/cases.h"

#define MOST 4096u

static uint32_t left[MOST], right[MOST];

static void fill(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		left[i] = right[i] = i * 2654435761u;
}

/* The slow reference. */
static uint32_t equal_pages(uint32_t n_pages, uint32_t page_size)
{
	uint32_t i = 0;

	while (i < n_pages * page_size && left[i] == right[i])
		i++;
	return i / page_size;
}

TEST(every_single_difference_is_found_at_its_page)
{
	static const uint32_t sizes[] = { 1, 2, 4, 16, 64, 256 };

	for (unsigned int s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t n_pages = 300 / sizes[s] + 3;

		fill(n_pages * sizes[s]);
		for (uint32_t at = 0; at < n_pages * sizes[s]; at++) {
			right[at] ^= 1u << (at % 32);
			assert_int_equal(kvt_racy_equal_pages(left, right, n_pages, sizes[s]),
					 at / sizes[s]);
			right[at] = left[at];
		}
		assert_int_equal(kvt_racy_equal_pages(left, right, n_pages, sizes[s]), n_pages);
	}
}

TEST(several_differences_count_up_to_the_first)
{
	uint32_t random = 1;

	for (int round = 0; round < 20000; round++) {
		uint32_t page_size = 1u << (random >> 8) % 6, n_pages;

		random = random * 1664525u + 1013904223u;
		n_pages = (random >> 8) % (MOST / page_size + 1);
		fill(n_pages * page_size);
		for (int k = 0; k < 3 && n_pages > 0; k++) {
			random = random * 1664525u + 1013904223u;
			right[(random >> 4) % (n_pages * page_size)] ^= 0x10;
		}
		assert_int_equal(kvt_racy_equal_pages(left, right, n_pages, page_size),
				 equal_pages(n_pages, page_size));
	}
}

TEST(nothing_compares_equal_to_nothing)
{
	assert_true(kvt_racy_equal(left, right, 0));
	assert_int_equal(kvt_racy_equal_pages(left, right, 0, 64), 0);
}

TEST(a_copy_is_exact_and_stays_in_bounds)
{
	fill(MOST);
	for (uint32_t n = 0; n < 70; n++) {
		memset(right, 0xee, sizeof(right));
		kvt_racy_copy(right + 1, left + 3, n);
		assert_memory_equal(right + 1, left + 3, n * sizeof(*left));
		assert_int_equal(right[0], 0xeeeeeeee);
		assert_int_equal(right[n + 1], 0xeeeeeeee);
	}
}

/* A tag only says where to look; still it must depend on all its inputs. */
TEST(a_tag_depends_on_seed_parent_and_each_key)
{
	static const uint32_t sizes[] = { 1, 2, 3, 4, 7, 16, 64, 256 };

	fill(MOST);
	for (unsigned int s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t n = sizes[s], tag = kvt_racy_tag(5, 9, left, n);

		assert_int_equal(tag, kvt_racy_tag(5, 9, left, n));
		assert_int_not_equal(tag, kvt_racy_tag(6, 9, left, n));
		assert_int_not_equal(tag, kvt_racy_tag(5, 10, left, n));
		for (uint32_t i = 0; i < n; i++) {
			left[i] ^= 0x80000000u;
			assert_int_not_equal(tag, kvt_racy_tag(5, 9, left, n));
			left[i] ^= 0x80000000u;
		}
	}
}

TEST(a_tag_is_never_zero_and_spreads_over_buckets)
{
	enum { BUCKETS = 1024, KEYS = 65536 };
	static uint32_t load[BUCKETS];

	for (uint32_t i = 0; i < KEYS; i++) {
		uint32_t key[4] = { i, i & 7, 1, 0 }, tag = kvt_racy_tag(77, 3, key, 4);

		assert_int_not_equal(tag, 0);
		load[tag % BUCKETS]++;
	}
	/* 64 expected in each; ten standard deviations are 80. */
	for (uint32_t i = 0; i < BUCKETS; i++)
		assert_in_range(load[i], 1, 64 + 80);
}
