/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/order.c, evict.c, detach.c: the heap, victims, trims, detached subtrees. Random use
 * is compared with naive lists.
 *
 * Invariant: the victim is the one that the policy names, and never below a lock. */

#include "tests/unit/core_world.h"

#include <stdio.h>
#include <stdlib.h>

TEST(the_heap_agrees_with_a_sorted_list)
{
	enum { NODES = 200 };

	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1, .n_pages = 400, .max_nodes = NODES,
			.policy = KVT_POLICY_LFU });
		struct kvt_core *core = w->core;
		uint64_t random = seed;

		for (int step = 0; step < 4000; step++) {
			uint32_t id = 1 + next_random(&random) % (NODES - 1), best = KVT_NONE;
			struct kvt_node *node = &core->nodes[id];

			if (node->heap_at && next_random(&random) % 3 == 0) {
				kvt_heap_remove(core, &core->heap, id);
				assert_int_equal(node->heap_at, 0);
			} else {
				node->hits = next_random(&random) % 6;
				node->touched = (uint64_t)step + 1;
				kvt_heap_update(core, &core->heap, id);
			}
			for (uint32_t i = 1; i < NODES; i++) {
				const struct kvt_node *n = &core->nodes[i], *b = &core->nodes[best];

				if (n->heap_at &&
				    (best == KVT_NONE || n->hits < b->hits ||
				     (n->hits == b->hits && n->touched < b->touched)))
					best = i;
			}
			if (best == KVT_NONE)
				assert_int_equal(core->heap.count, 0);
			else
				assert_int_equal(core->heap.nodes[0], best);
		}
		while (core->heap.count > 0)
			kvt_heap_remove(core, &core->heap, core->heap.nodes[core->heap.count / 2]);
		world_free(w);
	}
}

struct leaf {
	uint32_t key;
	uint64_t touched, created;
	uint32_t hits;
	int32_t priority;
};

static bool goes_before(uint32_t policy, const struct leaf *a, const struct leaf *b)
{
	bool a_kept = a->hits >= 2, b_kept = b->hits >= 2;

	switch (policy) {
	case KVT_POLICY_LRU:
		return a->touched < b->touched;
	case KVT_POLICY_SLRU:
		return a_kept != b_kept ? b_kept : a->touched < b->touched;
	case KVT_POLICY_LFU:
		return a->hits != b->hits ? a->hits < b->hits : a->touched < b->touched;
	case KVT_POLICY_FIFO:
		return a->created < b->created;
	case KVT_POLICY_FILO:
		return a->created > b->created;
	case KVT_POLICY_MRU:
		return a->touched > b->touched;
	default:
		return a->priority != b->priority ? a->priority < b->priority :
						    a->touched < b->touched;
	}
}

/* Leaves below one root, used at random: each policy evicts what a naive list names. */
TEST(each_policy_evicts_what_a_naive_list_says)
{
	enum { LEAVES = 40 };

	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1, .n_pages = 100, .max_nodes = 64, .policy = policy });
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns"), n = 0;
		struct leaf leaves[LEAVES];
		uint64_t random = policy + 1, clock = 0;

		for (int step = 0; step < 600; step++) {
			uint32_t what = next_random(&random) % 4, i = 0;

			clock++;
			if (n == 0 || (what == 0 && n < LEAVES)) {
				leaves[n] = (struct leaf){ 1000 + (uint32_t)step, clock, clock, 1,
							   (int32_t)(next_random(&random) % 5) };
				a->priority = leaves[n].priority;
				insert(a, ns, K(leaves[n++].key));
				continue;
			}
			i = next_random(&random) % n;
			if (what == 1) {
				match(a, ns, K(leaves[i].key));
				leaves[i].touched = clock;
			} else if (what == 2) {
				a->priority = -100;
				insert(a, ns, K(leaves[i].key));
				leaves[i].touched = clock;
				leaves[i].hits++;
			} else {
				i = 0;
				for (uint32_t k = 1; k < n; k++)
					if (goes_before(policy, &leaves[k], &leaves[i]))
						i = k;
				assert_int_equal(evict(a, 1).evicted, 1);
				expect_matched(a, ns, K(leaves[i].key), 0);
				leaves[i] = leaves[--n];
			}
			assert_int_equal(counters(w)->cached_pages, n);
		}
		world_free(w);
	}
}

/* Exactly as many pages as needed, leaf by leaf, each from its last page backwards. */
TEST(victims_are_trimmed_from_their_ends)
{
	struct world *w = world_small(2, 41);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, range(1, 40));
	insert(a, ns, range(101, 140));
	for (uint32_t left = 20; left-- > 0;) {
		assert_int_equal(alloc(a, 1).evicted, 1);
		expect_matched(a, ns, range(1, 40), 2 * left);
		expect_matched(a, ns, range(101, 140), 40);
	}
}

TEST(a_locked_leaf_protects_its_path_and_nothing_else)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease;

	insert(a, ns, range(1, 10));
	insert(a, ns, join(range(1, 5), range(50, 54)));
	insert(a, ns, join(range(1, 5), range(60, 64)));
	lease = match_lock(a, ns, join(range(1, 5), range(50, 52)));
	assert_int_equal(counters(w)->protected_pages, 8);
	assert_int_equal(evict(a, 100).evicted, 12);
	expect_matched(a, ns, join(range(1, 5), range(50, 54)), 8);
	expect_ok(unlock(a, lease));
	assert_int_equal(evict(a, 100).evicted, 8);
}

/* A detached subtree with locks inside: what is not below a lock is freed at once, the rest when
 * its locks end, in any order. */
TEST(detached_subtrees_are_reclaimed_around_their_locks)
{
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1, .n_pages = 400, .max_nodes = 300,
			.policy = (uint32_t)seed % KVT_POLICY_COUNT });
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns"), n = 0;
		struct answer leases[12];
		uint64_t random = seed;

		for (int i = 0; i < 40; i++) {
			uint32_t keys[10];

			for (uint32_t k = 0; k < 10; k++)
				keys[k] = next_random(&random) % 2;
			insert(a, ns, (struct keys){ keys, 1 + next_random(&random) % 10 });
			if (i % 4 == 0)
				leases[n++] = match_lock(a, ns, (struct keys){ keys, 10 });
		}
		remove_prefix(a, ns, K(next_random(&random) % 2));
		if (seed % 2)
			expect_ok(reset(a));
		while (n > 0) {
			uint32_t i = next_random(&random) % n;

			for (uint32_t turns = next_random(&random) % 4; turns > 0; turns--)
				kvt_core_work(w->core, 1 + next_random(&random) % 5, seed % 3 == 0,
					      w->now_ns);
			if (next_random(&random) % 3 == 0)
				evict(a, 1);
			expect_ok(unlock(a, leases[i]));
			leases[i] = leases[--n];
		}
		world_settle(w);
		assert_int_equal(counters(w)->detached_pending, 0);
		evict(a, 1000);
		assert_int_equal(counters(w)->cached_pages, 0);
		assert_int_equal(counters(w)->live_nodes, 0);
		world_free(w);
	}
}

TEST(policies_have_names)
{
	uint32_t policy = 99;

	for (uint32_t i = 0; i < KVT_POLICY_COUNT; i++) {
		assert_int_equal(kvt_policy_parse(kvt_policy_name(i), &policy), 0);
		assert_int_equal(policy, i);
	}
	assert_int_equal(kvt_policy_parse("best", &policy), -EINVAL);
	assert_int_equal(policy, KVT_POLICY_COUNT - 1);
	assert_non_null(kvt_policy_name(KVT_POLICY_COUNT));
}
