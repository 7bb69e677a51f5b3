/* SPDX-License-Identifier: Apache-2.0 */

/* The cases of the tree, T1 to T24, through the core. */

#include "tests/unit/core_world.h"

#include <stdio.h>
#include <stdlib.h>

static void t1_match_of_an_insert_and_of_its_prefix(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	assert_int_equal(insert(a, ns, K(1, 2, 3)).inserted, 3);
	assert_int_equal(match(a, ns, K(1, 2, 3)).matched, 3);
	assert_int_equal(match(a, ns, K(1, 2)).matched, 2);
	assert_int_equal(counters(w)->split_nodes, 0);
	assert_int_equal(counters(w)->evictable_pages, 3);
	world_free(w);
}

static void t2_a_disabled_cache_misses_and_stores_nothing(void **state)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 100,
							      .disabled = true });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer inserted, pages;
	struct seq *seq;

	(void)state;
	pages = alloc(a, 3);
	inserted = insert_pages(a, ns, K(1, 2, 3), (uint32_t[]){ pages.list[0], pages.list[1],
								 pages.list[2] }, 3, 0);
	expect_ok(inserted);
	assert_int_equal(inserted.inserted, 0);
	assert_int_equal(inserted.existed, 0);
	expect_pages(w, 0, 3, 0);
	expect_matched(a, ns, K(1, 2, 3), 0);
	/* Whoever asks for a lease gets one, so that A/B runs need no other client code. */
	expect_ok(unlock(a, match_lock(a, ns, K(1, 2, 3))));
	expect_ok(unlock(a, insert_pages(a, ns, NO_KEYS, NULL, 0, KVT_F_LOCK)));
	seq = begin(a, ns, K(1, 2, 3, 4), 1, 0);
	expect_ok(seq->a);
	assert_int_equal(seq->a.matched, 0);
	assert_int_equal(seq->n_table, 5);
	expect_pages(w, 0, 8, 0);
	assert_int_equal(counters(w)->live_nodes, 0);
	assert_int_equal(commit(seq, 4, NO_KEYS, 0).sealed, 0);
	assert_int_equal(seq->a.next, 4);
	expect_ok(end(seq));
	expect_pages(w, 0, 3, 0);
	expect_matched(a, ns, K(1, 2, 3, 4), 0);
	world_free(w);
}

static void t3_two_branches_of_one_trunk(uint32_t ps, uint32_t pages)
{
	struct world *w = world_small(ps, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, range(1, 8));
	insert(a, ns, K(1, 2, 9, 10));
	assert_int_equal(counters(w)->cached_pages, pages);
	assert_int_equal(match(a, ns, K(1, 2, 3, 4, 999, 1000)).matched, 4);
	assert_int_equal(match(a, ns, join(range(1, 6), K(777, 888))).matched, 6);
	/* Locks compare the pages' content: both branches are exact. */
	assert_int_equal(match_lock(a, ns, range(1, 8)).matched, 8);
	assert_int_equal(match_lock(a, ns, K(1, 2, 9, 10)).matched, 4);
	world_free(w);
}

static void t3_a_sequence_and_its_branch(void **state)
{
	(void)state;
	t3_two_branches_of_one_trunk(1, 10);
	t3_two_branches_of_one_trunk(2, 5);
}

static void t4_namespaces_share_nothing(void **state)
{
	static const char *const names[] = { "key1", "key2", "" };
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	bool used[100] = { false };

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(insert(a, space_open(a, names[i]), range(1, 8)).existed, 0);
	assert_int_equal(counters(w)->cached_pages, 24);
	for (int i = 0; i < 3; i++) {
		struct answer found = match_lock(a, space_open(a, names[i]), range(1, 8));

		assert_int_equal(found.matched, 8);
		for (uint32_t k = 0; k < 8; k++) {
			assert_false(used[found.list[k]]);
			used[found.list[k]] = true;
		}
	}
	expect_matched(a, space_open(a, "key3"), range(1, 8), 0);
	world_free(w);
}

static void t5_a_lock_moves_pages_from_evictable_to_protected(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease;

	(void)state;
	insert(a, ns, range(1, 5));
	expect_pages(w, 5, 0, 0);
	lease = match_lock(a, ns, K(1, 2, 3));
	expect_pages(w, 5, 0, 3);
	expect_ok(unlock(a, lease));
	expect_pages(w, 5, 0, 0);
	world_free(w);
}

static void t6_evict_frees_exactly_what_it_reports(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, K(1, 2));
	insert(a, ns, K(3, 4));
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_pages(w, 2, 0, 0);
	assert_int_equal(evict(a, 3).evicted, 2);
	expect_pages(w, 0, 0, 0);
	assert_int_equal(counters(w)->evicted_pages, 4);
	world_free(w);
}

static void t7_matches_are_whole_pages(void **state)
{
	static const uint32_t sizes[] = { 1, 2, 4 }, lengths[] = { 5, 5, 6 }, want[] = { 5, 4, 4 };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct world *w = world_small(sizes[i], 100);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");

		insert(a, ns, range(1, lengths[i]));
		assert_int_equal(match(a, ns, range(1, lengths[i])).matched, want[i]);
		world_free(w);
	}
}

static void t8_a_longer_query_and_one_below_a_page(void **state)
{
	(void)state;
	for (uint32_t ps = 2; ps <= 64; ps *= 2) {
		struct world *w = world_small(ps, 100);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");

		insert(a, ns, range(1, 4 * ps));
		expect_matched(a, ns, range(1, 4 * ps + ps - 1), 4 * ps);
		expect_matched(a, ns, range(1, ps - 1), 0);
		expect_matched(a, ns, NO_KEYS, 0);
		world_free(w);
	}
}

static void t9_a_mismatch_in_the_second_and_in_the_first_page(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, range(1, 8));
	expect_matched(a, ns, K(1, 2, 3, 4, 5, 6, 99, 8), 4);
	expect_matched(a, ns, K(1, 2, 99, 4, 5, 6, 7, 8), 0);
	world_free(w);
}

static void t10_an_unaligned_tail_is_freed_at_the_fence(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	seq = begin(a, ns, range(1, 10), 0, 0);
	assert_int_equal(seq->n_table, 3);
	assert_int_equal(commit(seq, 10, NO_KEYS, 0).sealed, 2);
	fence(a, 3, 7);
	assert_true(end(seq).deferred);
	expect_pages(w, 2, 1, 2);
	raise_fence(a, 3, 7);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done[0].d, 1);
	expect_pages(w, 2, 0, 0);
	expect_matched(a, ns, range(1, 10), 8);
	world_free(w);
}

static void t11_diverging_at(uint32_t ps, uint32_t at)
{
	struct world *w = world_small(ps, 4200 / ps + 70);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), aligned = at / ps * ps;
	struct keys base = range(1, 2000), other = join(head(base, at), range(5000, 7000 - at));

	insert(a, ns, base);
	assert_int_equal(match(a, ns, other).matched, aligned);
	assert_int_equal(insert(a, ns, other).existed, aligned);
	assert_int_equal(match_lock(a, ns, base).matched, 2000 / ps * ps);
	assert_int_equal(match_lock(a, ns, other).matched, other.n / ps * ps);
	assert_int_equal(counters(w)->cached_pages,
			 2000 / ps + other.n / ps - aligned / ps);
	world_free(w);
}

static void t11_divergence_rounds_down_to_the_page(void **state)
{
	static const uint32_t points[] = { 1, 2, 63, 64, 65, 127, 128, 511, 512, 513, 1234, 1999 };

	(void)state;
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		t11_diverging_at(1, points[i]);
		t11_diverging_at(4, points[i]);
		t11_diverging_at(64, points[i]);
	}
}

static void t12_the_same_page_of_keys_twice_in_a_sequence(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer once, twice;

	(void)state;
	assert_int_equal(insert(a, ns, K(1, 2, 3, 4, 1, 2, 3, 4)).inserted, 2);
	twice = match_lock(a, ns, K(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4));
	assert_int_equal(twice.matched, 8);
	assert_int_not_equal(twice.list[0], twice.list[1]);
	once = match_lock(a, ns, K(1, 2, 3, 4));
	assert_int_equal(once.matched, 4);
	assert_int_not_equal(once.handle.node, twice.handle.node);
	world_free(w);
}

static void t13_a_lock_inside_an_edge_splits_it(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer inserted = insert(a, ns, K(10, 11, 12, 13)), locked;
	const struct kvt_node *upper, *lower;

	(void)state;
	locked = match_lock(a, ns, K(10, 11, 99));
	assert_int_equal(locked.matched, 2);
	assert_int_equal(locked.n_list, 2);
	assert_int_equal(counters(w)->split_nodes, 1);
	upper = node_at(w, locked.handle.node);
	lower = node_at(w, inserted.handle.node);
	assert_int_equal(upper->n_slots, 2);
	assert_int_equal(upper->lock_ref, 1);
	assert_int_equal(lower->n_slots, 2);
	assert_int_equal(lower->parent, locked.handle.node);
	assert_int_equal(lower->lock_ref, 0);
	assert_int_equal(lower->generation, inserted.handle.generation);
	expect_pages(w, 4, 0, 2);
	world_free(w);
}

static void t14_priority_is_the_maximum_of_a_path(void **state)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 100, .policy = KVT_POLICY_PRIORITY });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, K(3, 4));
	a->priority = 10;
	insert(a, ns, K(1, 2));
	insert(a, ns, K(5, 6));
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_matched(a, ns, K(3, 4), 0);
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_matched(a, ns, K(5, 6), 0);
	expect_matched(a, ns, K(1, 2), 2);
	/* The trunk of an important branch is as important; a lesser INSERT takes nothing away. */
	a->priority = -5;
	insert(a, ns, K(1, 2));
	assert_int_equal(node_at(w, match(a, ns, K(1, 2)).handle.node)->priority, 10);
	a->priority = 20;
	insert(a, ns, K(1, 2, 3));
	assert_int_equal(node_at(w, match(a, ns, K(1, 2)).handle.node)->priority, 20);
	world_free(w);
}

static void t15_chunks_count_one_hit_in_all(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 20), 0, 0);
	uint32_t node;

	(void)state;
	for (uint32_t done = 4; done < 20; done += 4)
		expect_ok(commit(seq, done, NO_KEYS, KVT_F_CHUNKED));
	node = match(a, ns, range(1, 16)).handle.node;
	assert_int_equal(node_at(w, node)->hits, 0);
	expect_ok(commit(seq, 20, NO_KEYS, 0));
	assert_int_equal(node_at(w, node)->hits, 1);
	expect_ok(end(seq));
	assert_int_equal(node_at(w, node)->hits, 1);
	world_free(w);
}

static void t16_match_refreshes_and_no_touch_does_not(void **state)
{
	(void)state;
	for (int touches = 0; touches < 2; touches++) {
		struct world *w = world_small(1, 100);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");

		insert(a, ns, K(1, 2));
		insert(a, ns, K(3, 4));
		match_flags(a, ns, K(1, 2), touches ? 0 : KVT_F_NO_TOUCH);
		evict(a, 2);
		expect_matched(a, ns, K(1, 2), touches ? 2 : 0);
		expect_matched(a, ns, K(3, 4), touches ? 0 : 2);
		world_free(w);
	}
}

static void t17_a_trunk_stays_until_it_is_a_leaf(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, K(1, 2, 3, 4));
	insert(a, ns, K(1, 2, 5, 6));
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_matched(a, ns, K(1, 2, 3, 4), 2);
	expect_matched(a, ns, K(1, 2, 5, 6), 4);
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_matched(a, ns, K(1, 2, 5, 6), 2);
	assert_int_equal(evict(a, 2).evicted, 2);
	expect_matched(a, ns, K(1, 2), 0);
	assert_int_equal(counters(w)->live_nodes, 0);
	world_free(w);
}

static void t18_evict_with_all_locked_of_nothing_and_of_too_much(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease;

	(void)state;
	assert_int_equal(evict(a, 5).evicted, 0);
	insert(a, ns, K(1, 2, 3));
	lease = match_lock(a, ns, K(1, 2, 3));
	assert_int_equal(evict(a, 3).evicted, 0);
	expect_matched(a, ns, K(1, 2, 3), 3);
	insert(a, ns, K(4, 5));
	assert_int_equal(evict(a, 1000).evicted, 2);
	unlock(a, lease);
	assert_int_equal(evict(a, 1000).evicted, 3);
	world_free(w);
}

/* What goes first of four leaves, by the policy: a chain of "use" decides. Leaf i is {10 * i}. */
static void t19_order(uint32_t policy, uint32_t threshold, const uint32_t *want)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 50, .policy = policy, .slru_threshold = threshold });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	for (uint32_t i = 1; i <= 4; i++) {
		a->priority = i == 2 ? 5 : 0;
		insert(a, ns, K(10 * i)); /* one hit each */
	}
	insert(a, ns, K(20)); /* 2: two hits */
	insert(a, ns, K(30)); /* 3: three hits */
	insert(a, ns, K(30));
	match(a, ns, K(10)); /* 1: used last but one, no hit */
	match(a, ns, K(30));
	for (int i = 0; i < 4; i++) {
		expect_matched(a, ns, K(10 * want[i]), 1);
		assert_int_equal(evict(a, 1).evicted, 1);
		expect_matched(a, ns, K(10 * want[i]), 0);
	}
	world_free(w);
}

static void t19_lru_goes_by_use(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_LRU, 0, (uint32_t[]){ 4, 2, 1, 3 });
}

static void t19_lfu_goes_by_hits_then_use(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_LFU, 0, (uint32_t[]){ 4, 1, 2, 3 });
}

static void t19_fifo_goes_by_creation(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_FIFO, 0, (uint32_t[]){ 1, 2, 3, 4 });
}

static void t19_filo_goes_by_creation_backwards(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_FILO, 0, (uint32_t[]){ 4, 3, 2, 1 });
}

static void t19_mru_goes_by_use_backwards(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_MRU, 0, (uint32_t[]){ 3, 1, 2, 4 });
}

static void t19_slru_keeps_what_reached_the_threshold(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_SLRU, 2, (uint32_t[]){ 4, 1, 2, 3 });
	t19_order(KVT_POLICY_SLRU, 3, (uint32_t[]){ 4, 2, 1, 3 });
}

static void t19_priority_goes_before_use(void **state)
{
	(void)state;
	t19_order(KVT_POLICY_PRIORITY, 0, (uint32_t[]){ 4, 1, 3, 2 });
}

static void t20_what_was_evicted_can_be_inserted_again(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	for (int round = 0; round < 3; round++) {
		insert(a, ns, range(1, 200));
		expect_matched(a, ns, range(1, 200), 200);
		assert_int_equal(evict(a, 1000).evicted, 50);
		expect_matched(a, ns, range(1, 200), 0);
	}
	world_free(w);
}

/* 10,000 sequences of 10,000 common and 100 own positions, at page 4: nothing stored twice. */
static void t21_unique_positions_are_stored_once(void **state)
{
	enum { SEQUENCES = 10000, COMMON = 10000, OWN = 100, PS = 4 };
	struct world *w = world_new((struct kvt_core_config){
		.page_size = PS, .n_pages = (COMMON + SEQUENCES * OWN) / PS + COMMON,
		.max_nodes = SEQUENCES + 100 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), *keys = calloc(COMMON + OWN, sizeof(*keys));
	struct handle trunk;

	(void)state;
	w->quick = true;
	for (uint32_t i = 0; i < COMMON; i++)
		keys[i] = i * 7 + 1;
	trunk = insert(a, ns, (struct keys){ keys, COMMON }).handle;
	for (uint32_t s = 0; s < SEQUENCES; s++) {
		struct answer pages = alloc(a, OWN / PS), done;
		uint32_t list[OWN / PS];

		for (uint32_t i = 0; i < OWN; i++)
			keys[COMMON + i] = 0x100000 + s * OWN + i;
		memcpy(list, pages.list, sizeof(list));
		a->start = trunk;
		done = insert_pages(a, ns, (struct keys){ keys + COMMON, OWN }, list, OWN / PS, 0);
		assert_int_equal(done.existed, COMMON);
		assert_int_equal(done.inserted, OWN / PS);
		if (s % 997 == 0)
			expect_matched(a, ns, ((struct keys){ keys, COMMON + OWN }), COMMON + OWN);
	}
	world_audit(w);
	assert_int_equal(counters(w)->cached_pages, (COMMON + SEQUENCES * OWN) / PS);
	assert_int_equal(counters(w)->live_nodes, 1 + 1 + SEQUENCES);
	free(keys);
	world_free(w);
}

/* What is promised is a figure for page 64, a million positions, and every default size. */
static void t21_metadata_within_the_promised_bytes(void **state)
{
	struct kvt_core_config config = { .page_size = 64, .n_pages = (1u << 20) / 64 };
	struct kvt_core_sizes sizes;
	double bytes;

	(void)state;
	assert_int_equal(kvt_core_plan(&config, &sizes, NULL), 0);
	bytes = (double)sizes.arena_bytes / (1u << 20);
	print_message("arena bytes per pool position: %.2f at page 64, 2^20 positions\n", bytes);
	assert_true(bytes <= 5.5);
}

static void t22_random_sequences_leave_nothing_behind(void **state)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 2, .n_pages = 700,
							      .max_nodes = 600 });
	struct client *a = client_new(w);
	uint32_t spaces[10];
	uint64_t random = 22;
	char name[8];

	(void)state;
	for (uint32_t i = 0; i < 10; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		spaces[i] = space_open(a, name);
	}
	for (int i = 0; i < 1000; i++) {
		uint32_t keys[24], n = next_random(&random) % 24;

		for (uint32_t k = 0; k < n; k++)
			keys[k] = next_random(&random) % 3;
		insert(a, spaces[next_random(&random) % 10], (struct keys){ keys, n });
	}
	assert_true(counters(w)->cached_pages > 500);
	evict(a, 1000);
	expect_pages(w, 0, 0, 0);
	assert_int_equal(counters(w)->live_nodes, 0);
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(w->core->namespaces[spaces[i]].root, KVT_NONE);
	world_free(w);
}

static void t23_match_makes_no_roots(void **state)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 50,
							      .max_namespaces = 128 });
	struct client *a = client_new(w);
	char name[8];

	(void)state;
	for (uint32_t i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		expect_matched(a, space_open(a, name), K(1, 2, 3), 0);
		expect_ok(unlock(a, match_lock(a, space_open(a, name), K(1, 2, 3))));
	}
	assert_int_equal(counters(w)->live_nodes, 0);
	world_free(w);
}

static void t24_lengths_round_down_to_the_page(void **state)
{
	struct world *w = world_small(16, 300);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, range(1, 1060));
	expect_matched(a, ns, range(1, 1060), 1056);
	insert(a, ns, range(5001, 6124));
	expect_matched(a, ns, range(5001, 6124), 1120);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(t1_match_of_an_insert_and_of_its_prefix),
		CASE(t2_a_disabled_cache_misses_and_stores_nothing),
		CASE(t3_a_sequence_and_its_branch),
		CASE(t4_namespaces_share_nothing),
		CASE(t5_a_lock_moves_pages_from_evictable_to_protected),
		CASE(t6_evict_frees_exactly_what_it_reports),
		CASE(t7_matches_are_whole_pages),
		CASE(t8_a_longer_query_and_one_below_a_page),
		CASE(t9_a_mismatch_in_the_second_and_in_the_first_page),
		CASE(t10_an_unaligned_tail_is_freed_at_the_fence),
		CASE(t11_divergence_rounds_down_to_the_page),
		CASE(t12_the_same_page_of_keys_twice_in_a_sequence),
		CASE(t13_a_lock_inside_an_edge_splits_it),
		CASE(t14_priority_is_the_maximum_of_a_path),
		CASE(t15_chunks_count_one_hit_in_all),
		CASE(t16_match_refreshes_and_no_touch_does_not),
		CASE(t17_a_trunk_stays_until_it_is_a_leaf),
		CASE(t18_evict_with_all_locked_of_nothing_and_of_too_much),
		CASE(t19_lru_goes_by_use),
		CASE(t19_lfu_goes_by_hits_then_use),
		CASE(t19_fifo_goes_by_creation),
		CASE(t19_filo_goes_by_creation_backwards),
		CASE(t19_mru_goes_by_use_backwards),
		CASE(t19_slru_keeps_what_reached_the_threshold),
		CASE(t19_priority_goes_before_use),
		CASE(t20_what_was_evicted_can_be_inserted_again),
		CASE(t21_unique_positions_are_stored_once),
		CASE(t21_metadata_within_the_promised_bytes),
		CASE(t22_random_sequences_leave_nothing_behind),
		CASE(t23_match_makes_no_roots),
		CASE(t24_lengths_round_down_to_the_page),
	};

	return RUN_CASES(tests);
}
