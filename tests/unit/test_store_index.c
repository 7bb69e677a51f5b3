/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a store against a list that is searched from end to end. Keys share their leading
 * bytes, so they collide in the table. */
#include <stdlib.h>
#include <string.h>

#include "store/index.h"
#include "tests/lib/cases.h"

#define ENTRIES 24u
#define NAMES 64u

/* Few homes: four values of the first byte that decides. */
static struct kvt_chain name(uint32_t i)
{
	struct kvt_chain page = { { 0 } };

	page.digest[3] = (uint8_t)(i % 4 * 85); /* the highest of the bits; 255: wraps round */
	page.digest[2] = i % 4 == 3 ? 255 : 0;
	page.digest[8] = (uint8_t)i;
	return page;
}

/* The truth: names from the oldest to the youngest, and pins by name. */
static uint32_t order[NAMES], n_order, pins[NAMES], entry_of[NAMES];
/* Pins by entry, of those that were cleared with pins. */
static uint32_t cleared[ENTRIES + 1], n_cleared;

static void forget(uint32_t i)
{
	for (uint32_t at = 0; at < n_order; at++)
		if (order[at] == i) {
			memmove(order + at, order + at + 1, (n_order - at - 1) * sizeof(*order));
			n_order--;
			return;
		}
}

static void check(const struct kvt_index *index)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < NAMES; i++) {
		struct kvt_chain page = name(i);

		assert_int_equal(kvt_index_find(index, &page), entry_of[i]);
		found += entry_of[i] != 0;
	}
	assert_int_equal(index->n_found, found);
}

static void add(struct kvt_index *index, uint32_t i)
{
	struct kvt_chain page = name(i);
	uint32_t entry = kvt_index_take(index);

	for (uint32_t other = 0; other < NAMES && entry; other++)
		if (entry_of[other] == entry) {
			assert_int_equal(other, order[0]);
			entry_of[other] = 0;
			forget(other);
		}
	if (!entry) {
		assert_int_equal(n_order, 0);
		assert_int_equal(index->n_found + n_cleared, ENTRIES);
		return;
	}
	assert_int_equal(cleared[entry], 0);
	kvt_index_publish(index, entry, &page, 0);
	entry_of[i] = entry;
	order[n_order++] = i;
}

/* Place a name behind another, or last if that is not in the order. */
static void place(struct kvt_index *index, uint32_t i, uint32_t front)
{
	uint32_t at = 0;

	kvt_index_touch(index, entry_of[i], entry_of[front]);
	if (pins[i])
		return;
	forget(i);
	while (at < n_order && order[at] != front)
		at++;
	memmove(order + at + 1, order + at, (n_order - at) * sizeof(*order));
	order[at] = i;
	n_order++;
}

static void clear(struct kvt_index *index)
{
	kvt_index_clear(index);
	for (uint32_t i = 0; i < NAMES; i++) {
		if (pins[i]) {
			cleared[entry_of[i]] = pins[i];
			n_cleared++;
		}
		entry_of[i] = pins[i] = 0;
	}
	n_order = 0;
}

TEST(it_finds_what_a_plain_list_finds_and_evicts_the_oldest)
{
	struct kvt_index index;

	memset(entry_of, 0, sizeof(entry_of));
	n_order = 0;
	srand(1);
	assert_int_equal(kvt_index_init(&index, ENTRIES), 0);
	for (uint32_t step = 0; step < 40000; step++) {
		uint32_t i = (uint32_t)rand() % NAMES, what = (uint32_t)rand() % 8;
		uint32_t entry = 1 + (uint32_t)rand() % ENTRIES;

		if (cleared[entry]) {
			assert_false(kvt_index_unpin(&index, entry));
			n_cleared -= --cleared[entry] == 0;
		}
		if (rand() % 200 == 0)
			clear(&index);
		if (!entry_of[i]) {
			add(&index, i);
		} else if (what < 2) {
			place(&index, i, (uint32_t)rand() % NAMES);
		} else if (what < 4) {
			kvt_index_pin(&index, entry_of[i]);
			pins[i]++;
			forget(i);
		} else if (what < 7 && pins[i]) {
			assert_true(kvt_index_unpin(&index, entry_of[i]));
			if (--pins[i] == 0)
				order[n_order++] = i;
		} else if (what == 7 && !pins[i]) {
			kvt_index_drop(&index, entry_of[i]);
			entry_of[i] = 0;
			forget(i);
		}
		check(&index);
	}
	kvt_index_destroy(&index);
}

TEST(with_all_pinned_or_private_there_is_none_to_take)
{
	struct kvt_chain page = name(1);
	struct kvt_index index;
	uint32_t first, second;

	assert_int_equal(kvt_index_init(&index, 2), 0);
	first = kvt_index_take(&index);
	second = kvt_index_take(&index);
	assert_true(first && second && first != second);
	assert_int_equal(kvt_index_take(&index), 0);
	kvt_index_publish(&index, first, &page, 0);
	kvt_index_pin(&index, first);
	assert_int_equal(kvt_index_take(&index), 0);
	kvt_index_unpin(&index, first);
	assert_int_equal(kvt_index_take(&index), first);
	assert_int_equal(kvt_index_find(&index, &page), 0);
	kvt_index_destroy(&index);
}
