/* SPDX-License-Identifier: Apache-2.0 */

/* What operations cost, in the core's own counts: nodes touched, keys compared, keys copied, pages
 * moved. These claims depend on no machine.
 *
 * Inputs: worlds of growing size. Invariant: counts stay within the bounds claimed. */

#include "tests/core/world.h"

#include <stdio.h>
#include <stdlib.h>

static struct world *large(uint32_t ps, uint32_t n_pages, uint32_t max_nodes, uint32_t policy)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = ps, .n_pages = n_pages, .max_nodes = max_nodes, .policy = policy });

	w->quick = true;
	return w;
}

static struct kvt_core_effort effort(const struct world *w)
{
	return *kvt_core_effort(w->core);
}

/** Make `n` leaves of one page below a trunk of `trunk` keys. Returns the number of keys of a
 * path. */
static void plant(struct client *a, uint32_t ns, uint32_t trunk, uint32_t n)
{
	uint32_t *keys = calloc(trunk + 1, sizeof(*keys));

	for (uint32_t i = 0; i < trunk; i++)
		keys[i] = 7 + i;
	for (uint32_t i = 0; i < n; i++) {
		keys[trunk] = 1000000 + i;
		insert(a, ns, (struct keys){ keys, trunk + 1 });
	}
	free(keys);
}

TEST(evicting_one_leaf_costs_the_same_among_10_and_30000)
{
	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		struct kvt_core_effort few, many;

		for (int round = 0; round < 2; round++) {
			uint32_t n = round ? 30000 : 10;
			struct world *w = large(1, n + 100, n + 100, policy);
			struct client *a = client_new(w);

			plant(a, space_open(a, "ns"), 3, n);
			assert_int_equal(evict(a, 1).evicted, 1);
			*(round ? &many : &few) = effort(w);
			world_free(w);
		}
		assert_memory_equal(&few, &many, sizeof(few));
		assert_int_equal(many.nodes_touched, 1);
		assert_int_equal(many.pages_moved, 1);
	}
}

TEST(detaching_costs_the_same_for_10_and_30000_nodes)
{
	struct kvt_core_effort removed[2], reset_[2];

	for (int round = 0; round < 2; round++) {
		uint32_t n = round ? 30000 : 10;
		struct world *w = large(1, 2 * n + 100, 2 * n + 100, KVT_POLICY_LRU);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns"), work = 0;

		plant(a, ns, 3, n);
		assert_int_equal(remove_prefix(a, ns, range(7, 9)).state, 1);
		removed[round] = effort(w);
		assert_int_equal(counters(w)->cached_pages, n + 3);
		plant(a, ns, 3, n - 5);
		expect_ok(reset(a));
		reset_[round] = effort(w);
		while (kvt_core_unsettled(w->core)) { /* small turns do the rest */
			uint64_t before = counters(w)->free_pages;

			kvt_core_work(w->core, 50, false, w->now_ns);
			assert_in_range(counters(w)->free_pages - before, 0, 50);
			work++;
		}
		assert_true(work >= n / 25);
		assert_int_equal(counters(w)->live_nodes, 0);
		world_free(w);
	}
	assert_memory_equal(&removed[0], &removed[1], sizeof(removed[0]));
	assert_memory_equal(&reset_[0], &reset_[1], sizeof(reset_[0]));
	assert_int_equal(removed[1].keys_copied + removed[1].pages_moved, 0);
	assert_in_range(removed[1].nodes_touched, 0, 2);
	assert_int_equal(reset_[1].nodes_touched + reset_[1].pages_moved, 0);
}

/* A path of many nodes: every key of the query is compared once, and so is the page that
 * differs. */
TEST(match_compares_each_key_once)
{
	struct world *w = large(4, 3000, 600, KVT_POLICY_LRU);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct keys all = range(1, 4096);

	for (uint32_t n = 512; n <= 4096; n += 512)
		insert(a, ns, join(head(all, n), range(100000 + n, 100000 + n + 3)));
	match(a, ns, all);
	assert_int_equal(effort(w).keys_compared, 4096);
	assert_in_range(effort(w).path_nodes, 8, 9);
	assert_in_range(effort(w).nodes_touched, 16, 19); /* the index once, the touch once */
	assert_int_equal(effort(w).keys_copied, 0);
	match_flags(a, ns, all, KVT_F_NO_TOUCH);
	assert_in_range(effort(w).nodes_touched, 8, 9);
	match(a, ns, join(head(all, 2001), range(1, 2000)));
	assert_int_equal(effort(w).keys_compared, 2004);
	match(a, ns, range(5000, 9000));
	assert_int_equal(effort(w).keys_compared, 0); /* found by the index */
}

TEST(a_split_copies_no_keys_and_moves_no_pages)
{
	for (uint32_t n = 40; n <= 4000; n *= 10) {
		struct world *w = large(4, 3000, 600, KVT_POLICY_LRU);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");

		insert(a, ns, range(1, n));
		assert_int_equal(match_lock(a, ns, range(1, n / 2)).matched, n / 2);
		assert_int_equal(counters(w)->split_nodes, 1);
		assert_int_equal(effort(w).keys_copied, 0);
		assert_int_equal(effort(w).pages_moved, 0);
		assert_int_equal(effort(w).keys_compared, n / 2);
		assert_in_range(effort(w).nodes_touched, 1, 6);
		world_free(w);
	}
}

TEST(a_sequence_copies_its_keys_once)
{
	struct world *w = large(4, 3000, 600, KVT_POLICY_LRU);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	insert(a, ns, range(1, 4096));
	seq = begin(a, ns, join(range(1, 4096), range(10001, 10727)), 64, 0);
	assert_int_equal(seq->a.reusable, 4096);
	assert_int_equal(effort(w).keys_compared, 4096);
	assert_int_equal(effort(w).keys_copied, 724); /* 727 rounded down to the page */
	assert_int_equal(effort(w).pages_moved, 182 + 16);
	commit(seq, 4096 + 512, NO_KEYS, KVT_F_CHUNKED);
	assert_int_equal(effort(w).keys_copied, 0);
	assert_int_equal(effort(w).keys_compared, 0);
	assert_int_equal(effort(w).pages_moved, 128);
	commit(seq, 4096 + 727, NO_KEYS, 0);
	assert_int_equal(effort(w).keys_copied, 0);
	commit(seq, 4096 + 727 + 9, range(20001, 20009), 0);
	assert_int_equal(effort(w).keys_copied, 12); /* 3 from the tail and 9 generated */
	assert_int_equal(effort(w).keys_compared, 0);
	extend(seq, 5);
	assert_int_equal(effort(w).keys_copied + effort(w).keys_compared, 0);
	assert_int_equal(effort(w).pages_moved, 5);
	end(seq);
	assert_int_equal(effort(w).keys_copied + effort(w).keys_compared, 0);
	assert_in_range(effort(w).nodes_touched, 2, 4); /* its path */
}

/* Decoding grows the sequence's own run: the path does not gain a node per page. */
TEST(decoding_lengthens_a_run_in_place)
{
	struct world *w = large(4, 3000, 600, KVT_POLICY_LRU);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 400), 2000, 0);

	commit(seq, 400, NO_KEYS, 0);
	for (uint32_t at = 400; at < 2400; at++)
		expect_ok(commit(seq, at + 1, K(50000 + at), 0));
	assert_int_equal(path_length(a, ns, (struct keys){ seq->keys, 2400 }), 1);
	assert_int_equal(counters(w)->cached_pages, 600);
	end(seq);
}

/* Sixteen growing conversations, interleaved: idle turns keep every path short, and copy a bounded
 * number of pages per page stored. */
TEST(compaction_keeps_paths_short_at_a_bounded_price)
{
	enum { USERS = 16, TURNS = 60, GROWTH = 40 };
	struct world *w = large(4, 20000, 4000, KVT_POLICY_LRU);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), longest = 0;
	uint64_t moved = 0;

	for (uint32_t turn = 1; turn <= TURNS; turn++) {
		for (uint32_t user = 0; user < USERS; user++) {
			struct keys keys = range(100000 * (user + 1),
						 100000 * (user + 1) + turn * GROWTH - 1);
			struct seq *seq = begin(a, ns, keys, 0, 0);
			uint32_t path;

			expect_ok(commit(seq, keys.n, NO_KEYS, 0));
			expect_ok(end(seq));
			path = path_length(a, ns, keys);
			longest = path > longest ? path : longest;
			while (kvt_core_work(w->core, 64, true, w->now_ns))
				moved += effort(w).pages_moved;
		}
		keys_free();
	}
	world_audit(w);
	print_message("compaction: longest path %u nodes, %.1f pages copied for each stored\n",
		      longest, (double)moved / (double)counters(w)->cached_pages);
	assert_int_equal(counters(w)->cached_pages, USERS * TURNS * GROWTH / 4);
	assert_in_range(longest, 1, 16);
	assert_true(moved <= 16 * counters(w)->cached_pages);
}

TEST(refusals_cost_nothing_that_grows)
{
	struct world *w = large(1, 31000, 31000, KVT_POLICY_LRU);
	struct client *a = client_new(w);

	plant(a, space_open(a, "ns"), 3, 30000);
	expect_refused(alloc(a, 31000), -ENOSPC, KVT_REASON_TOO_LARGE);
	assert_int_equal(effort(w).nodes_touched + effort(w).pages_moved, 0);
}

/* A continuation lies right behind its parent if those slots are free. */
TEST(a_continuation_lies_behind_its_parent)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	const struct kvt_node *one = node_at(w, insert(a, ns, range(1, 5)).handle.node);
	const struct kvt_node *two = node_at(w, insert(a, ns, range(1, 9)).handle.node);

	assert_int_equal(two->first_slot, one->first_slot + one->n_slots);
	assert_int_equal(two->start, 5);
}

/* A conversation that grows turn by turn, never idle in between. */
TEST(a_growing_path_stays_short_without_idle_turns)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 2, .n_pages = 900,
							      .max_nodes = 256 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	for (uint32_t turn = 1; turn <= 40; turn++) {
		struct seq *seq = begin(a, ns, range(1, 10 * turn), 0, 0);
		struct seq *other = begin(a, ns, range(1000 * turn, 1000 * turn + 9), 0, 0);

		commit(seq, 10 * turn, NO_KEYS, 0);
		commit(other, 10, NO_KEYS, 0);
		expect_ok(end(seq));
		expect_ok(end(other)); /* takes the slots behind */
		assert_in_range(path_length(a, ns, range(1, 10 * turn)), 1, 8);
	}
	expect_matched(a, ns, range(1, 400), 400);
}
