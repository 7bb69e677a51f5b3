/* SPDX-License-Identifier: Apache-2.0 */

/* Side pages where the simulation does not look: damage that audit and recovery must find, exact
 * room, and the cost of a search. What may be reused is in tests/core/script/sides*.kvt. */

#include "daemon/core/plan.h"
#include "daemon/core/side.h"
#include "tests/core/world.h"

#include <errno.h>
#include <string.h>

static struct world *world_sided(uint32_t n_pages, uint32_t n_sides)
{
	return world_new((struct kvt_core_config){ .page_size = 1, .n_pages = n_pages,
						   .max_nodes = 32, .n_sides = n_sides,
						   .side_pages = { 1, 2 } });
}

/** COMMIT with side pages: `pages` at the places. */
static struct answer attach(struct seq *seq, uint32_t computed, const uint32_t *places,
			    const uint32_t *pages, uint32_t n)
{
	struct client *client = seq->client;
	struct kvt_sqe sqe = {
		.op = KVT_OP_COMMIT, .flags = KVT_F_KEEP | KVT_F_NO_LIST | KVT_F_SIDES,
		.node = seq->lease, .generation = seq->generation, .arg = computed,
		.list_capacity = n, .fence_slot = KVT_FENCE_IDLE,
	};

	client->keys[0] = n;
	for (uint32_t i = 0; i < n; i++) {
		client->keys[1 + 2 * i] = places[i];
		client->keys[2 + 2 * i] = pages[i];
	}
	return submit(client, &sqe);
}

/** A sequence of n cached pages, each with a side page of kind 0. */
static struct seq *sided(struct client *client, uint32_t space, uint32_t n)
{
	struct seq *seq = begin(client, space, range(1, n), 0, 0);
	uint32_t places[64], pages[64];

	expect_ok(commit(seq, n, NO_KEYS, 0));
	memcpy(pages, alloc(client, n).list, n * sizeof(*pages));
	for (uint32_t i = 0; i < n; i++)
		places[i] = KVT_SIDE_PLACE(i, 0);
	expect_ok(attach(seq, n, places, pages, n));
	return seq;
}

TEST(each_changed_word_of_sides_is_found)
{
	struct world *w = world_sided(40, 2);
	struct client *a = client_new(w);
	struct kvt_core *core = w->core;

	sided(a, space_open(a, "ns"), 6);
	for (uint32_t at = 0; at < w->config.n_pages * 2; at++) {
		for (uint32_t bit = 0; bit < 32; bit++) {
			core->sides[at] ^= 1u << bit;
			assert_true(world_problems(w) > 0);
			core->sides[at] ^= 1u << bit;
		}
	}
	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		if (!kvt_node_live(core, id))
			continue;
		core->sides_in[id]++;
		assert_true(world_problems(w) > 0);
		core->sides_in[id]--;
		if (core->sides_in[id] == 0)
			continue;
		core->side_top[id]--;
		assert_true(world_problems(w) > 0);
		core->side_top[id]++;
	}
	core->count->side_pages++;
	assert_true(world_problems(w) > 0);
	core->count->side_pages--;
	world_audit(w);
}

/** Let the side pages of kind 0 of pages [from, to) go. */
static void let_go(struct seq *seq, uint32_t computed, uint32_t from, uint32_t to)
{
	uint32_t places[64], pages[64];

	for (uint32_t i = from; i < to; i++) {
		places[i - from] = KVT_SIDE_PLACE(i, 0);
		pages[i - from] = KVT_SIDE_LET;
	}
	expect_ok(attach(seq, computed, places, pages, to - from));
}

TEST(each_changed_word_of_what_was_let_go_is_found)
{
	struct world *w = world_sided(40, 1);
	struct client *a = client_new(w);
	struct seq *seq = sided(a, space_open(a, "ns"), 6);
	struct kvt_core *core = w->core;
	uint32_t *words[] = { &core->let_first, &core->let_last, &core->n_let,
			      &core->let_of[seq->lease], &core->let_of[seq->lease + 1] };

	let_go(seq, 6, 1, 4);
	world_audit(w);
	assert_int_equal(counters(w)->evictable_pages, 3);
	for (uint32_t page = 0; page < w->config.n_pages; page++) {
		for (uint32_t word = 0; word < 3; word++) {
			uint32_t *at = (uint32_t *)(void *)&core->let[page] + word;

			if (!kvt_side_is_let(core, page) && word > 0)
				continue;
			*at ^= 1;
			assert_true(world_problems(w) > 0);
			*at ^= 1;
		}
	}
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		*words[i] += 1;
		assert_true(world_problems(w) > 0);
		*words[i] -= 1;
	}
	world_audit(w);
}

TEST(a_successor_holds_what_was_let_go)
{
	struct world *w = world_sided(40, 1);
	struct client *a = client_new(w);
	struct seq *seq = sided(a, space_open(a, "ns"), 6);
	char why[256];

	let_go(seq, 6, 0, 6);
	assert_int_equal(counters(w)->evictable_pages, 6);
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	assert_int_equal(counters(w)->evictable_pages, 0);
	world_audit(w);
}

TEST(recovery_refuses_side_pages_that_others_have)
{
	struct world *w = world_sided(40, 1);
	struct client *a = client_new(w);
	struct seq *seq = sided(a, space_open(a, "ns"), 4);
	uint32_t *side = &w->core->sides[seq->table[1]], own = *side;
	const uint32_t wrong[] = { w->core->sides[seq->table[0]], seq->table[2],
				   alloc(a, 1).list[0], w->config.n_pages, UINT32_MAX };
	char why[256];

	memcpy(w->arena_before, w->arena, w->sizes.arena_bytes);
	memcpy(w->ledger_before, w->ledger, w->sizes.ledger_bytes);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		*side = wrong[i];
		assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), -EUCLEAN);
		assert_non_null(strstr(why, "which is not its own"));
		memcpy(w->arena, w->arena_before, w->sizes.arena_bytes);
		memcpy(w->ledger, w->ledger_before, w->sizes.ledger_bytes);
	}
	w->core->sides[w->core->free_page] = own; /* of a page that nothing holds */
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	assert_int_equal(w->core->sides[w->core->free_page], KVT_NONE);
	assert_int_equal(counters(w)->side_pages, 4);
}

TEST(a_successor_with_other_sides_is_refused)
{
	struct world *w = world_sided(40, 2);
	char why[256];

	w->config.side_pages[1]++;
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), -ESTALE);
	assert_non_null(strstr(why, "sides"));
	w->config.side_pages[1]--;
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
}

TEST(impossible_sides_have_no_plan)
{
	const struct kvt_core_config bad[] = {
		{ .n_sides = KVT_MAX_SIDES + 1 },
		{ .n_sides = 1, .side_pages = { 0 } },
		{ .n_sides = 1, .side_pages = { 1025 } },
		{ .n_sides = 3, .side_pages = { 1024, 1024, 1 } },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvt_core_config config = bad[i];
		struct kvt_core_sizes sizes;
		const char *why = NULL;

		config.page_size = 1;
		config.n_pages = 16;
		assert_int_equal(kvt_core_plan(&config, &sizes, &why), -EINVAL);
		assert_non_null(strstr(why, "side pages"));
	}
}

TEST(without_sides_nothing_is_larger)
{
	struct kvt_core_config config = { .page_size = 1, .n_pages = 1000 };
	struct kvt_core_sizes none, one;
	struct kvt_arena_header arena;
	struct kvt_ledger_header ledger;

	assert_int_equal(kvt_core_plan(&config, &none, NULL), 0);
	kvt_core_layout(&config, &arena, &ledger);
	assert_int_equal(arena.sections[KVT_SECTION_SIDES].bytes, 0);
	assert_int_equal(arena.sections[KVT_SECTION_SIDES].offset, none.arena_bytes);
	config.n_sides = 1;
	config.side_pages[0] = 1;
	assert_int_equal(kvt_core_plan(&config, &one, NULL), 0);
	assert_true(one.arena_bytes >= none.arena_bytes + 4000);
}

/* A BEGIN that ends inside an unlocked run locks the pages up to there with their side pages. */
TEST(available_counts_the_side_pages_of_a_part_of_a_run)
{
	struct world *w = world_sided(13, 1);
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "ns");

	expect_ok(end(sided(a, space, 4)));
	expect_pages(w, 8, 0, 0);
	alloc(a, 2); /* without its match it would not fit, either */
	expect_refused(begin(a, space, range(1, 2), 9, KVT_F_FULL)->a, -ENOSPC,
		       KVT_REASON_ALL_LOCKED);
	assert_int_equal(begin(a, space, range(1, 2), 9, KVT_F_FULL)->a.number, 6);
	expect_ok(begin(a, space, range(1, 2), 6, KVT_F_FULL)->a);
	expect_pages(w, 4, 8, 4);
}

TEST(a_search_skips_runs_without_side_pages)
{
	struct world *w = world_sided(600, 1);
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "ns");

	insert(a, space, range(1, 500));
	assert_int_equal(match(a, space, range(1, 500)).usable, 0);
	assert_true(kvt_core_effort(w->core)->nodes_touched < 16);
}
