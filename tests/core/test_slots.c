/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/slots.c: extents, compared with a map of every slot.
 *
 * Inputs: random takes and frees, from fixed seeds. */

#include "tests/core/world.h"

#include <stdlib.h>

#define MOST 3000u
#define MAP_WORDS (MOST / 64 + 2)

struct field {
	struct kvt_slots slots;
	uint32_t arrays[5][MOST];
	uint64_t maps[3][MAP_WORDS];
	uint32_t n;
	bool used[MOST]; /* the truth */
	uint32_t n_free;
};

static struct field *field_new(uint32_t n)
{
	struct field *field = calloc(1, sizeof(*field));

	field->n = n;
	field->n_free = n - 1;
	field->used[0] = true;
	field->slots = (struct kvt_slots){
		.n_slots = n,
		.length = field->arrays[0], .first = field->arrays[1], .next = field->arrays[2],
		.prev = field->arrays[3], .run = field->arrays[4],
		.free_head = field->maps[0], .free_tail = field->maps[1],
		.run_head = field->maps[2],
	};
	kvt_slots_init(&field->slots);
	return field;
}

static uint32_t free_run_at(const struct field *field, uint32_t at)
{
	uint32_t n = 0;

	while (at + n < field->n && !field->used[at + n])
		n++;
	return n;
}

/** Every extent is as long as possible and in one bin. There are no other entries. */
static void expect_exact(struct field *field)
{
	const struct kvt_slots *slots = &field->slots;
	uint64_t extents = 0;

	assert_int_equal(slots->free_slots, field->n_free);
	for (uint32_t at = 1; at < field->n; at++) {
		bool begins = !field->used[at] && field->used[at - 1];
		uint32_t run = free_run_at(field, at);

		extents += begins;
		assert_int_equal(kvt_slots_free_at(slots, at), begins ? run : 0);
		if (!begins)
			continue;
		assert_int_equal(kvt_slots_free_before(slots, at + run), run);
	}
	assert_int_equal(kvt_slots_free_at(slots, field->n), 0);
	assert_int_equal(kvt_slots_free_before(slots, 1), 0);
	assert_true(kvt_slots_bins_ok(slots, extents));
	assert_false(kvt_slots_bins_ok(slots, extents + 1));
}

static void mark(struct field *field, uint32_t first, uint32_t n, bool used)
{
	for (uint32_t i = first; i < first + n; i++) {
		assert_int_equal(field->used[i], !used);
		field->used[i] = used;
	}
	field->n_free += used ? -n : n;
}

static uint32_t longest_free(const struct field *field)
{
	uint32_t longest = 0;

	for (uint32_t at = 1; at < field->n; at++)
		if (!field->used[at] && free_run_at(field, at) > longest)
			longest = free_run_at(field, at);
	return longest;
}

static uint32_t take(struct field *field, uint32_t n, uint32_t wish)
{
	uint32_t longest = longest_free(field), got = 0;
	bool wish_fits = wish && wish < field->n && field->used[wish - 1] &&
			 free_run_at(field, wish) >= n;
	uint32_t first = kvt_slots_take(&field->slots, n, wish, &got);

	assert_in_range(got, 1, n);
	mark(field, first, got, true);
	if (wish_fits)
		assert_int_equal(first, wish);
	if (wish_fits)
		assert_int_equal(got, n);
	/* Less than asked only if surely nothing fits: bins are at most a quarter wide. */
	if (got < n)
		assert_true(longest < n + n / 4 + 1);
	return first;
}

TEST(random_takes_and_gives_agree_with_a_map)
{
	enum { RUNS = 4000 };
	static struct { uint32_t first, n; } runs[RUNS];

	for (uint64_t seed = 1; seed <= 12; seed++) {
		struct field *field = field_new(64 + (uint32_t)seed * 200);
		uint32_t n_runs = 0;
		uint64_t random = seed;

		for (int step = 0; step < 1500; step++) {
			bool fill = next_random(&random) % 100 < (step / 300 % 2 ? 65 : 40);

			if (fill && field->n_free > 0 && n_runs < RUNS) {
				uint32_t before = field->slots.free_slots;
				uint32_t n = 1 + next_random(&random) % (seed % 2 ? 8 : 90);
				uint32_t wish = next_random(&random) % field->n;

				runs[n_runs].first = take(field, n, wish);
				runs[n_runs].n = before - field->slots.free_slots;
				n_runs++;
			} else if (n_runs > 0) {
				uint32_t i = next_random(&random) % n_runs;

				mark(field, runs[i].first, runs[i].n, false);
				kvt_slots_give(&field->slots, runs[i].first, runs[i].n);
				runs[i] = runs[--n_runs];
			}
			if (step % 7 == 0)
				expect_exact(field);
		}
		while (n_runs > 0) {
			n_runs--;
			mark(field, runs[n_runs].first, runs[n_runs].n, false);
			kvt_slots_give(&field->slots, runs[n_runs].first, runs[n_runs].n);
		}
		expect_exact(field);
		assert_int_equal(kvt_slots_free_at(&field->slots, 1), field->n - 1);
		free(field);
	}
}

TEST(taking_at_a_place_leaves_both_ends)
{
	struct field *field = field_new(1000);

	kvt_slots_take_at(&field->slots, 1, 400, 100);
	mark(field, 400, 100, true);
	expect_exact(field);
	kvt_slots_take_at(&field->slots, 500, 500, 500);
	mark(field, 500, 500, true);
	expect_exact(field);
	kvt_slots_take_at(&field->slots, 1, 1, 1);
	mark(field, 1, 1, true);
	expect_exact(field);
	kvt_slots_take_at(&field->slots, 2, 399, 1);
	mark(field, 399, 1, true);
	expect_exact(field);
	kvt_slots_give(&field->slots, 399, 101);
	mark(field, 399, 101, false);
	expect_exact(field);
	free(field);
}

/* `runs` is a true bound: a greedy taker needs no more pieces. */
TEST(runs_is_an_upper_bound_of_what_taking_needs)
{
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct field *field = field_new(600);
		uint64_t random = seed;
		uint32_t n, wish, promised, pieces = 0;

		for (uint32_t at = 1; at < 600;) {
			uint32_t hole = 1 + next_random(&random) % 12;
			uint32_t wall = 1 + next_random(&random) % 3;

			at += hole;
			if (at + wall >= 600)
				break;
			kvt_slots_take_at(&field->slots, at - hole, at, wall);
			mark(field, at, wall, true);
			at += wall;
		}
		n = 1 + next_random(&random) % field->n_free;
		wish = 1 + next_random(&random) % 599;
		promised = kvt_slots_runs(&field->slots, n, wish);
		while (n > 0) {
			uint32_t before = field->n_free;

			wish = take(field, n, wish);
			n -= before - field->n_free;
			wish += before - field->n_free;
			pieces++;
		}
		assert_in_range(pieces, 1, promised);
		expect_exact(field);
		free(field);
	}
}

TEST(a_slot_knows_its_run)
{
	struct field *field = field_new(2000);

	for (uint32_t node = 1; node * 37 < 1900; node++)
		kvt_slots_set_run(&field->slots, node * 37, node);
	for (uint32_t slot = 1; slot < 37; slot++)
		assert_int_equal(kvt_slots_node_of(&field->slots, slot), KVT_NONE);
	for (uint32_t slot = 37; slot < 1900; slot++)
		assert_int_equal(kvt_slots_node_of(&field->slots, slot), slot / 37);
	kvt_slots_clear_run(&field->slots, 370);
	assert_int_equal(kvt_slots_node_of(&field->slots, 380), 9);
	free(field);
}
