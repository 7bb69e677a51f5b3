/* SPDX-License-Identifier: Apache-2.0 */

/* Effects that no answer shows: hits, recency, expiry, the clock. Others are in tests/script.
 *
 * Inputs: small worlds of core_world.h. Invariant: node records and the next victim. */

#include "tests/unit/core_world.h"

/* INSERT raises priority and expiry of every node on its path; a new node gets the operation's. */
TEST(insert_raises_priority_and_expiry_of_its_path)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), trunk, leaf;

	a->priority = 3;
	a->ttl_ms = 10;
	trunk = insert(a, ns, range(1, 4)).handle.node;
	assert_int_equal(node_at(w, trunk)->priority, 3);
	assert_int_equal(node_at(w, trunk)->expiry_ns, w->now_ns + 10000000);
	a->priority = 1;
	a->ttl_ms = 20;
	leaf = insert(a, ns, range(1, 6)).handle.node;
	assert_int_equal(node_at(w, leaf)->priority, 1);
	assert_int_equal(node_at(w, trunk)->priority, 3);
	assert_int_equal(node_at(w, leaf)->expiry_ns, w->now_ns + 20000000);
	assert_int_equal(node_at(w, trunk)->expiry_ns, w->now_ns + 20000000);
	insert(a, ns, range(1, 6)); /* no TTL is the latest expiry */
	assert_int_equal(node_at(w, trunk)->expiry_ns, UINT64_MAX);
	a->ttl_ms = 5;
	insert(a, ns, range(1, 6));
	assert_int_equal(node_at(w, leaf)->expiry_ns, UINT64_MAX);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), UINT64_MAX);
}

/* Hits: BEGIN counts once, INSERT once unless CHUNKED, MATCH and its lease not at all. */
TEST(operations_that_count_a_hit)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), node;
	struct seq *seq;

	node = insert_flags(a, ns, range(1, 4), KVT_F_CHUNKED).handle.node;
	assert_int_equal(node_at(w, node)->hits, 0);
	insert(a, ns, range(1, 4));
	assert_int_equal(node_at(w, node)->hits, 1);
	match(a, ns, range(1, 4));
	unlock(a, match_lock(a, ns, range(1, 4)));
	assert_int_equal(node_at(w, node)->hits, 1);
	seq = begin(a, ns, range(1, 4), 0, 0);
	assert_int_equal(node_at(w, node)->hits, 1);
	end(seq); /* without a COMMIT: at END */
	assert_int_equal(node_at(w, node)->hits, 2);
	seq = begin(a, ns, range(1, 4), 4, 0);
	commit(seq, 4, NO_KEYS, 0);
	commit(seq, 6, K(5, 6), 0);
	end(seq); /* its new run lies right behind and is joined to the rest */
	node = match(a, ns, range(1, 4)).handle.node;
	assert_int_equal(node_at(w, node)->hits, 3);
	seq = begin(a, ns, range(1, 4), 0, 0);
	commit(seq, 4, NO_KEYS, KVT_F_CHUNKED);
	end_commit(seq, 4, NO_KEYS, KVT_F_COMMIT);
	node = match(a, ns, range(1, 4)).handle.node;
	assert_int_equal(node_at(w, node)->hits, 4);
}

/* Recency: a match that ends inside a node touches it; LOCK, EXTEND, COMMIT and END touch. */
TEST(what_touches)
{
	for (int how = 0; how < 7; how++) {
		struct world *w = world_small(1, 60);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");
		struct handle old = insert(a, ns, range(1, 4)).handle;
		struct seq *seq = how >= 3 ? begin(a, ns, range(1, 4), 4, KVT_F_FULL) : NULL;
		struct answer lease = how == 2 ? match_lock(a, ns, range(1, 4)) :
						 (struct answer){ 0 };
		uint64_t before;

		insert(a, ns, range(11, 14));
		before = node_at(w, old.node)->touched;
		if (how == 0)
			match(a, ns, range(1, 2));
		else if (how == 1)
			unlock(a, lock(a, old));
		else if (how == 2)
			unlock(a, lease);
		else if (how == 3)
			extend(seq, 1);
		else if (how == 4)
			commit(seq, 4, NO_KEYS, KVT_F_CHUNKED);
		else if (how == 5)
			end(seq);
		else
			close_session(a);
		assert_true(node_at(w, old.node)->touched > before);
		world_free(w);
	}
}

/* COMMIT below `next` changes nothing and answers `next`, so commits can be pipelined. */
TEST(commit_below_next_changes_nothing)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 8, 0);
	uint64_t clock;

	expect_ok(commit(seq, 12, NO_KEYS, KVT_F_CHUNKED));
	clock = kvt_core_ledger(w->core)->clock;
	assert_int_equal(commit(seq, 8, K(99, 98), KVT_F_CHUNKED).next, 12);
	assert_int_equal(seq->a.advanced, 0);
	assert_int_equal(kvt_core_ledger(w->core)->clock, clock);
	seq->client->list_capacity = 2;
	expect_refused(commit(seq, 8, NO_KEYS, 0), -ENOBUFS, KVT_REASON_LIST_SHORT);
	assert_int_equal(seq->a.number, 6);
	expect_ok(commit(seq, 17, K(17), 0)); /* the keys of the stale commit were not taken */
	assert_int_equal(end_commit(seq, 20, range(18, 20), KVT_F_COMMIT).sealed, 1);
	expect_matched(a, ns, range(1, 20), 20);
}

/* Detached pages without locks are cached and evictable until reclaimed, and are evicted first. */
TEST(detached_pages_go_first)
{
	struct world *w = world_small(1, 21);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(a, "other");
	struct answer got;

	insert(a, other, range(1, 5)); /* the oldest */
	insert(a, ns, range(1, 10));
	assert_int_equal(remove_prefix(a, ns, NO_KEYS).state, 1);
	expect_matched(a, ns, range(1, 10), 0);
	expect_pages(w, 15, 0, 0);
	got = alloc(a, 9);
	assert_int_equal(got.evicted, 4);
	expect_matched(a, other, range(1, 5), 5);
	assert_int_equal(evict(a, 7).evicted, 7); /* six detached, then one of the others */
	expect_matched(a, other, range(1, 5), 4);
}

/* INSERT that ends inside a node touches and raises the whole node without splitting it. */
TEST(insert_that_ends_inside_a_node)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), node = insert(a, ns, range(1, 8)).handle.node;
	uint64_t before = node_at(w, node)->touched;
	struct answer done;

	a->priority = 7;
	done = insert(a, ns, range(1, 3));
	assert_int_equal(done.handle.node, node);
	assert_int_equal(done.handle.positions, 3);
	assert_int_equal(counters(w)->split_nodes, 0);
	assert_int_equal(node_at(w, node)->priority, 7);
	assert_true(node_at(w, node)->touched > before);
	/* With LOCK it locks exactly its end. */
	done = insert_flags(a, ns, range(1, 3), KVT_F_LOCK);
	expect_ok(done);
	assert_int_equal(counters(w)->protected_pages, 3);
	expect_ok(unlock(a, done));
}

/* EVICT frees detached pages first and counts them. */
TEST(evict_frees_detached_pages_first)
{
	struct world *w = world_small(1, 40);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, K(1, 2));
	insert(a, ns, K(11, 12, 13));
	remove_prefix(a, ns, K(11));
	assert_int_equal(evict(a, 3).evicted, 3);
	expect_matched(a, ns, K(1, 2), 2);
}
