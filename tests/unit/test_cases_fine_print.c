/* SPDX-License-Identifier: Apache-2.0 */

/* The fine print of the operations, one test for each rule. */

#include "tests/unit/core_world.h"

/* A count of 0 is legal and does nothing. */
static void zero_is_legal_everywhere_and_does_nothing(void **state)
{
	struct world *w = world_small(4, 50);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct kvt_counters before;
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 8));
	before = *counters(w);
	expect_ok(alloc(a, 0));
	expect_ok(give(a, NULL, 0));
	assert_int_equal(evict(a, 0).evicted, 0);
	expect_ok(insert_pages(a, ns, NO_KEYS, NULL, 0, 0));
	expect_ok(insert_pages(a, ns, K(1, 2, 3), NULL, 0, 0));
	assert_int_equal(match(a, ns, NO_KEYS).matched, 0);
	expect_ok(unlock(a, match_lock(a, ns, NO_KEYS)));
	seq = begin(a, ns, NO_KEYS, 0, 0);
	expect_ok(seq->a);
	assert_int_equal(seq->n_table, 0);
	expect_ok(extend(seq, 0));
	assert_int_equal(commit(seq, 0, NO_KEYS, 0).next, 0);
	expect_ok(end(seq));
	assert_int_equal(remove_prefix(a, ns, K(1, 2, 3)).cqe.a, 0);
	before.operations = counters(w)->operations;
	assert_memory_equal(counters(w), &before, sizeof(before));
	world_free(w);
}

/* Keys of a sequence that start below a page become whole pages as they are generated. */
static void a_sequence_may_start_without_a_key(void **state)
{
	struct world *w = world_small(4, 50);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, NO_KEYS, 12, 0);

	(void)state;
	expect_ok(commit(seq, 3, K(1, 2, 3), KVT_F_CHUNKED));
	assert_int_equal(counters(w)->cached_pages, 0);
	assert_int_equal(commit(seq, 9, range(4, 9), 0).sealed, 2);
	expect_matched(a, ns, range(1, 12), 8);
	assert_int_equal(end(seq).freed, 1);
	world_free(w);
}

/* INSERT from a start handle: keys and pages name what follows; existed counts from 0. */
static void insert_from_a_start_handle_names_what_follows(void **state)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(a, "other"), more[3];
	struct answer trunk = insert(a, ns, range(1, 8)), done;

	(void)state;
	space_open(b, "ns");
	b->start = trunk.handle; /* a name, not a right: another session's is good */
	b->start_keys = range(1, 8);
	done = insert(b, ns, range(9, 12));
	assert_int_equal(done.existed, 8);
	assert_int_equal(done.inserted, 2);
	assert_int_equal(done.handle.positions, 12);
	assert_int_equal(match_lock(a, ns, range(1, 12)).matched, 12);
	/* From inside the edge: the rest of the edge is compared, then left. */
	b->start = (struct handle){ trunk.handle.node, trunk.handle.generation, 4 };
	b->start_keys = range(1, 4);
	done = insert(b, ns, K(5, 6, 50, 51));
	assert_int_equal(done.existed, 6);
	assert_int_equal(done.inserted, 1);
	assert_int_equal(match_lock(a, ns, join(range(1, 6), K(50, 51))).matched, 8);
	/* Its own twins pass, others do not. */
	memcpy(more, match_lock(a, ns, range(1, 12)).list, sizeof(more));
	a->start = (struct handle){ trunk.handle.node, trunk.handle.generation, 2 };
	done = insert_pages(a, ns, K(3, 4), (uint32_t[]){ more[1] }, 1, 0);
	expect_ok(done);
	assert_int_equal(done.existed, 4);
	assert_int_equal(done.n_twins, 0);
	a->start = (struct handle){ trunk.handle.node, trunk.handle.generation, 2 };
	expect_refused(insert_pages(a, ns, K(3, 4), (uint32_t[]){ more[2] }, 1, 0), -EINVAL,
		       KVT_REASON_PAGE_CACHED);
	a->start = trunk.handle;
	expect_refused(insert_pages(a, other, K(3, 4), more, 1, 0), -EINVAL,
		       KVT_REASON_NOT_CONTINUATION);
	world_free(w);
}

static void bad_handles_are_refused(void **state)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), page;
	struct handle good = insert(a, ns, range(1, 8)).handle, bad;

	(void)state;
	page = alloc(a, 1).list[0];
	for (int what = 0; what < 6; what++) {
		enum kvt_reason reason = KVT_REASON_HANDLE_BAD;
		int error = -EINVAL;

		bad = good;
		if (what == 0)
			bad.positions = 3;
		else if (what == 1)
			bad.positions = 10;
		else if (what == 2)
			bad.positions = 0;
		else if (what == 3)
			bad.node = w->config.max_nodes;
		else if (what == 4)
			bad.node = UINT32_MAX;
		else
			bad.generation++, error = -ESTALE, reason = KVT_REASON_HANDLE_STALE;
		expect_refused(lock(a, bad), error, reason);
		a->start = bad;
		expect_refused(insert_pages(a, ns, K(20, 21), &page, 1, 0), error, reason);
	}
	expect_ok(lock(a, good));
	bad = (struct handle){ 0, 1, 0 };
	a->start = bad;
	expect_refused(insert_pages(a, ns, K(20, 21), &page, 1, 0), -EINVAL,
		       KVT_REASON_HANDLE_BAD);
	world_free(w);
}

/* INSERT raises priority and expiry on every node of its path; a new node has the operation's. */
static void insert_raises_priority_and_expiry_of_its_path(void **state)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), trunk, leaf;

	(void)state;
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
	insert(a, ns, range(1, 6)); /* no TTL is the latest of all */
	assert_int_equal(node_at(w, trunk)->expiry_ns, UINT64_MAX);
	a->ttl_ms = 5;
	insert(a, ns, range(1, 6));
	assert_int_equal(node_at(w, leaf)->expiry_ns, UINT64_MAX);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), UINT64_MAX);
	world_free(w);
}

static void keys_below_an_expired_locked_node_go_into_a_new_node(void **state)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), again;
	struct answer reader;

	(void)state;
	a->ttl_ms = 10;
	insert(a, ns, range(1, 4));
	reader = match_lock(a, ns, range(1, 4));
	w->now_ns += 10000000;
	expect_matched(a, ns, range(1, 4), 0);
	assert_int_equal(counters(w)->expired_nodes, 1);
	again = insert(a, ns, range(1, 6)).handle.node;
	assert_int_not_equal(again, reader.handle.node);
	assert_int_equal(counters(w)->cached_pages, 10);
	assert_int_equal(match_lock(a, ns, range(1, 6)).matched, 6);
	expect_ok(unlock(a, reader));
	world_settle(w);
	expect_pages(w, 6, 0, 6);
	world_free(w);
}

/* Hits: BEGIN once; INSERT one unless CHUNKED; MATCH and its lease nothing. */
static void who_counts_a_hit(void **state)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), node;
	struct seq *seq;

	(void)state;
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
	end(seq); /* what it added lies right behind and is joined to the rest */
	node = match(a, ns, range(1, 4)).handle.node;
	assert_int_equal(node_at(w, node)->hits, 3);
	seq = begin(a, ns, range(1, 4), 0, 0);
	commit(seq, 4, NO_KEYS, KVT_F_CHUNKED);
	end_commit(seq, 4, NO_KEYS, KVT_F_COMMIT);
	node = match(a, ns, range(1, 4)).handle.node;
	assert_int_equal(node_at(w, node)->hits, 4);
	world_free(w);
}

/* Recency: a match that ends inside a node touches it; LOCK, EXTEND, COMMIT and END touch. */
static void what_touches(void **state)
{
	(void)state;
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

/* MATCH+LOCK and BEGIN lock exactly the matched positions; a full match splits nothing. */
static void locks_cover_exactly_what_matched(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 40));
	unlock(a, match_lock(a, ns, range(1, 40)));
	seq = begin(a, ns, range(1, 40), 0, 0);
	assert_int_equal(seq->a.reusable, 36);
	assert_int_equal(counters(w)->protected_pages, 10);
	assert_int_equal(counters(w)->split_nodes, 0);
	end(seq);
	seq = begin(a, ns, join(range(1, 10), range(50, 60)), 0, 0);
	assert_int_equal(seq->a.matched, 8);
	assert_int_equal(counters(w)->protected_pages, 2);
	assert_int_equal(counters(w)->split_nodes, 1);
	end(seq);
	assert_int_equal(match_lock(a, ns, range(1, 27)).matched, 24);
	assert_int_equal(counters(w)->protected_pages, 6);
	world_free(w);
}

/* FULL gives the uncapped match. */
static void full_gives_the_uncapped_match(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 8));
	seq = begin(a, ns, range(1, 8), 0, KVT_F_FULL);
	assert_int_equal(seq->a.reusable, 8);
	assert_int_equal(seq->n_table, 2);
	assert_int_equal(counters(w)->private_pages, 0);
	assert_int_equal(commit(seq, 8, NO_KEYS, 0).next, 8);
	end(seq);
	seq = begin(a, ns, range(1, 9), 0, 0); /* one key more: nothing to cap */
	assert_int_equal(seq->a.reusable, 8);
	end(seq);
	world_free(w);
}

/* COMMIT below `next` changes nothing and answers next, so that commits can be pipelined. */
static void commit_below_next_changes_nothing(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 8, 0);
	uint64_t clock;

	(void)state;
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
	world_free(w);
}

static void commit_beyond_table_or_keys_is_refused(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 4, 0);

	(void)state;
	expect_refused(commit(seq, 21, NO_KEYS, 0), -EINVAL, KVT_REASON_BEYOND_TABLE);
	expect_refused(commit(seq, 17, NO_KEYS, 0), -EINVAL, KVT_REASON_BEYOND_KEYS);
	expect_refused(commit(seq, 21, range(17, 21), 0), -EINVAL, KVT_REASON_BEYOND_TABLE);
	expect_refused(commit(seq, 20, range(17, 19), 0), -EINVAL, KVT_REASON_BEYOND_KEYS);
	assert_int_equal(seq->a.number, 0);
	expect_ok(extend(seq, 1));
	expect_ok(commit(seq, 21, range(17, 21), 0));
	expect_refused(commit(seq, UINT32_MAX, NO_KEYS, 0), -EINVAL, KVT_REASON_BEYOND_TABLE);
	expect_ok(end(seq));
	world_free(w);
}

/* The last token sampled has no KV, and often no place in the table, either: its key is left out,
 * and the answer says up to where keys are known. */
static void keys_beyond_the_table_are_left_out(void **state)
{
	for (uint32_t ps = 1; ps <= 4; ps *= 2) {
		struct world *w = world_small(ps, 60);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");
		struct seq *seq = begin(a, ns, range(1, 6), 2, 0);

		(void)state;
		expect_ok(commit(seq, 6, NO_KEYS, KVT_F_CHUNKED));
		expect_ok(commit(seq, 7, range(7, 12), KVT_F_CHUNKED));
		assert_int_equal(seq->a.cqe.positions, 8);
		assert_int_equal(seq->a.next, 7);
		expect_ok(commit(seq, 8, range(9, 12), KVT_F_CHUNKED));
		assert_int_equal(seq->a.cqe.positions, 8);
		expect_ok(extend(seq, 4 / ps));
		/* Given again, now that there is room. */
		expect_ok(commit(seq, 8, range(9, 13), KVT_F_CHUNKED));
		assert_int_equal(seq->a.cqe.positions, 12);
		expect_ok(commit(seq, 12, NO_KEYS, 0));
		expect_ok(end(seq));
		expect_matched(a, ns, range(1, 12), 12);
		/* At END, too. */
		seq = begin(a, ns, range(101, 106), 2, 0);
		expect_ok(commit(seq, 6, NO_KEYS, KVT_F_CHUNKED));
		assert_int_equal(end_commit(seq, 8, range(107, 109), KVT_F_COMMIT).sealed,
				 8 / ps - 6 / ps);
		expect_matched(a, ns, range(101, 109), 8);
		world_free(w);
	}
}

/* END says that its path is detached, with a last COMMIT or without one. */
static void end_of_a_detached_lease_says_so(void **state)
{
	static const enum kvt_reason reasons[] = { KVT_REASON_NONE, KVT_REASON_DETACHED,
						   KVT_REASON_EPOCH };

	(void)state;
	for (uint32_t i = 0; i < 9; i++) {
		struct world *w = world_small(4, 60);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns"), how = i % 3, computed = i / 3 * 4;
		struct seq *seq = begin(a, ns, range(1, 8), 0, 0);
		struct answer answer;

		expect_ok(commit(seq, 8, NO_KEYS, KVT_F_CHUNKED));
		if (how == 1)
			expect_ok(remove_prefix(a, ns, range(1, 4)));
		if (how == 2)
			expect_ok(reset(a));
		/* Without COMMIT, with one that says nothing new, with one of everything. */
		answer = end_commit(seq, computed, NO_KEYS, computed ? KVT_F_COMMIT : 0);
		expect_ok(answer);
		assert_int_equal(answer.cqe.reason, reasons[how]);
		assert_int_equal(!!(answer.cqe.flags & KVT_CQE_DETACHED), how > 0);
		world_free(w);
	}
}

/* At least one position of what was announced is left, even when others computed it all. */
static void look_on_leaves_one_position(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 16), 0, 0), *two;

	(void)state;
	space_open(b, "ns");
	two = begin(b, ns, range(1, 16), 0, 0);
	expect_ok(commit(one, 16, NO_KEYS, 0));
	expect_ok(commit(two, 0, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(two->a.next, 12);
	assert_int_equal(two->a.advanced, 12);
	assert_int_equal(two->a.duplicates, 3);
	expect_ok(commit(two, 16, NO_KEYS, 0));
	assert_int_equal(two->a.duplicates, 1);
	assert_int_equal(counters(w)->advanced_positions, 12);
	assert_int_equal(counters(w)->private_pages, 0);
	world_free(w);
}

/* `computed` inside a page that somebody else sealed: look-on takes that page over. */
static void look_on_takes_over_the_page_it_is_in(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 16), 0, 0), *two;

	(void)state;
	space_open(b, "ns");
	two = begin(b, ns, range(1, 16), 0, 0);
	expect_ok(commit(one, 8, NO_KEYS, KVT_F_CHUNKED));
	expect_ok(commit(two, 6, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(two->a.next, 8);
	assert_int_equal(two->a.advanced, 2);
	assert_memory_equal(one->table, two->table, 2 * sizeof(uint32_t));
	world_free(w);
}

/* -ENOSPC names what this very operation could have had. */
static void enospc_names_what_is_available(void **state)
{
	struct world *w = world_small(1, 31);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;
	struct answer no;

	(void)state;
	insert(a, ns, range(1, 10));
	insert(a, ns, range(101, 105));
	alloc(b, 5); /* 10 free, 15 evictable */
	no = alloc(a, 26);
	expect_refused(no, -ENOSPC, KVT_REASON_ALL_LOCKED);
	assert_int_equal(no.number, 25);
	no = alloc(a, 31);
	expect_refused(no, -ENOSPC, KVT_REASON_TOO_LARGE);
	assert_int_equal(no.number, 25);
	seq = begin(a, ns, range(1, 10), 20, 0); /* needs 21, its own 10 are locked */
	expect_refused(seq->a, -ENOSPC, KVT_REASON_ALL_LOCKED);
	assert_int_equal(seq->a.number, 15);
	assert_int_equal(seq->a.cqe.b, 21);
	seq = begin(a, ns, range(1, 10), 21, 0); /* its own 10 are not available here, either */
	expect_refused(seq->a, -ENOSPC, KVT_REASON_TOO_LARGE);
	assert_int_equal(seq->a.number, 15);
	assert_int_equal(seq->a.cqe.b, 31);
	seq = begin(a, ns, range(1, 10), 14, 0); /* 15: the last of the ten is computed again */
	expect_ok(seq->a);
	expect_refused(extend(seq, 1), -ENOSPC, KVT_REASON_ALL_LOCKED);
	world_free(w);
}

/* Detached pages without locks are cached and evictable until reclaimed, and go first. */
static void detached_pages_go_first(void **state)
{
	struct world *w = world_small(1, 21);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(a, "other");
	struct answer got;

	(void)state;
	insert(a, other, range(1, 5)); /* the oldest */
	insert(a, ns, range(1, 10));
	assert_int_equal(remove_prefix(a, ns, NO_KEYS).cqe.a, 1);
	expect_matched(a, ns, range(1, 10), 0);
	expect_pages(w, 15, 0, 0);
	got = alloc(a, 9);
	assert_int_equal(got.evicted, 4);
	expect_matched(a, other, range(1, 5), 5);
	assert_int_equal(evict(a, 7).evicted, 7); /* six detached, then one of the others */
	expect_matched(a, other, range(1, 5), 4);
	world_free(w);
}

/* FORCE_MISS reports nothing matched, locks and announces like any BEGIN, does not look on. */
static void force_miss_reuses_nothing(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one, *two;

	(void)state;
	space_open(b, "ns");
	insert(a, ns, range(1, 8));
	one = begin(a, ns, range(1, 16), 0, KVT_F_FORCE_MISS);
	assert_int_equal(one->a.matched, 0);
	assert_int_equal(one->a.reusable, 0);
	assert_int_equal(one->n_table, 4);
	expect_pages(w, 2, 4, 2);
	two = begin(b, ns, range(1, 16), 0, 0);
	assert_int_equal(two->a.matched, 8);
	assert_int_equal(two->a.announced, 8);
	expect_ok(commit(two, 16, NO_KEYS, 0));
	expect_ok(commit(one, 4, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(one->a.next, 4);
	assert_int_equal(one->a.advanced, 0);
	assert_int_equal(one->a.duplicates, 1); /* its own page has a twin all the same */
	expect_ok(commit(one, 16, NO_KEYS, 0));
	expect_ok(end(one));
	expect_ok(end(two));
	expect_pages(w, 4, 0, 0);
	world_free(w);
}

/* With KEEP duplicates and pages displaced by look-on stay private until END. */
static void keep_holds_duplicates_until_end(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), mine[4];
	struct seq *one = begin(a, ns, range(1, 17), 0, 0), *two;

	(void)state;
	space_open(b, "ns");
	two = begin(b, ns, range(1, 17), 0, 0);
	memcpy(mine, two->table, sizeof(mine));
	expect_ok(commit(one, 16, NO_KEYS, 0));
	expect_ok(commit(two, 8, NO_KEYS, KVT_F_KEEP));
	assert_int_equal(two->a.next, 16);
	assert_int_equal(two->a.duplicates, 4);
	assert_int_equal(counters(w)->private_pages, 1 + 5);
	for (int i = 0; i < 4; i++)
		assert_int_equal(page_of(b, mine[i]).cqe.a, KVT_PAGE_PRIVATE);
	expect_refused(give(b, mine, 1), -EINVAL, KVT_REASON_PAGE_LEASED);
	assert_int_equal(end(two).freed, 5);
	assert_int_equal(counters(w)->private_pages, 1);
	world_free(w);
}

/* `announced` counts what other live leases announced beyond matched. */
static void announced_counts_live_leases_only(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 16), 0, 0);

	(void)state;
	space_open(b, "ns");
	assert_int_equal(match(b, ns, range(1, 16)).announced, 16);
	assert_int_equal(match(b, ns, join(range(1, 8), range(90, 99))).announced, 8);
	expect_ok(commit(one, 4, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(match(b, ns, range(1, 16)).matched, 4);
	assert_int_equal(match(b, ns, range(1, 16)).announced, 12);
	expect_ok(end(one));
	assert_int_equal(match(b, ns, range(1, 16)).announced, 0);
	assert_int_equal(match(b, ns, range(1, 16)).matched, 4);
	world_free(w);
}

static void an_operation_on_an_ending_lease_is_stale(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 4, 0);
	struct answer reader;

	(void)state;
	expect_refused(unlock(a, seq->a), -EINVAL, KVT_REASON_LEASE_KIND);
	fence(a, 0, 1);
	assert_true(end(seq).deferred);
	expect_refused(extend(seq, 1), -ESTALE, KVT_REASON_LEASE_STALE);
	expect_refused(commit(seq, 16, NO_KEYS, 0), -ESTALE, KVT_REASON_LEASE_STALE);
	expect_refused(end(seq), -ESTALE, KVT_REASON_LEASE_STALE);
	insert(a, ns, range(21, 24));
	reader = match_lock(a, ns, range(21, 24));
	fence(a, 1, 1);
	assert_true(unlock(a, reader).deferred);
	expect_refused(unlock(a, reader), -ESTALE, KVT_REASON_LEASE_STALE);
	raise_fence(a, 1, 1);
	raise_fence(a, 0, 1);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(counters(w)->live_leases, 0);
	world_free(w);
}

/* END always ends: on a detached path its last COMMIT seals nothing and says so. */
static void end_always_ends(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);
	struct answer done;

	(void)state;
	expect_ok(commit(seq, 4, NO_KEYS, KVT_F_CHUNKED));
	remove_prefix(a, ns, range(1, 4));
	done = end_commit(seq, 16, NO_KEYS, KVT_F_COMMIT);
	expect_ok(done);
	assert_int_equal(done.cqe.flags & KVT_CQE_DETACHED, KVT_CQE_DETACHED);
	assert_int_equal(done.reason, KVT_REASON_DETACHED);
	assert_int_equal(done.sealed, 0);
	assert_int_equal(done.freed, 3);
	world_settle(w);
	expect_pages(w, 0, 0, 0);
	seq = begin(a, ns, range(1, 16), 0, 0);
	done = end_commit(seq, 999, NO_KEYS, KVT_F_COMMIT); /* any other mistake ends it, too */
	expect_ok(done);
	assert_int_equal(done.reason, KVT_REASON_BEYOND_TABLE);
	assert_int_equal(counters(w)->live_leases, 0);
	assert_int_equal(counters(w)->live_nodes, 0);
	world_free(w);
}

static void close_ends_all_leases_at_its_fence(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	expect_ok(commit(begin(a, ns, range(1, 17), 8, 0), 16, NO_KEYS, 0));
	match_lock(a, ns, range(1, 8));
	alloc(a, 3);
	fence(a, 2, 5);
	assert_true(close_session(a).deferred);
	expect_refused(alloc(a, 1), -ESHUTDOWN, KVT_REASON_CLOSING);
	assert_int_equal(counters(w)->live_leases, 2);
	raise_fence(a, 2, 4);
	assert_int_equal(counters(w)->live_leases, 2);
	raise_fence(a, 2, 5);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done[0].d, 3 + 3);
	expect_pages(w, 4, 0, 0);
	client_dies(a, KVT_SIGN_HANGUP);
	assert_int_equal(counters(w)->live_sessions, 0);
	world_free(w);
}

/* REMOVE rounds down, and detaches the last whole page of the prefix and everything below. */
static void remove_takes_the_last_page_and_all_below(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, range(1, 32));
	insert(a, ns, join(range(1, 16), range(50, 57)));
	assert_int_equal(remove_prefix(a, ns, range(1, 3)).cqe.a, 0);
	assert_int_equal(remove_prefix(a, ns, join(range(1, 16), range(90, 93))).cqe.a, 0);
	assert_int_equal(remove_prefix(a, ns, range(1, 27)).cqe.a, 1); /* 24: page 5 and below */
	expect_matched(a, ns, range(1, 32), 20);
	expect_matched(a, ns, join(range(1, 16), range(50, 57)), 24);
	assert_int_equal(remove_prefix(a, ns, range(1, 16)).cqe.a, 1);
	expect_matched(a, ns, range(1, 32), 12);
	expect_matched(a, ns, join(range(1, 16), range(50, 57)), 12);
	assert_int_equal(remove_prefix(a, ns, NO_KEYS).cqe.a, 1);
	expect_matched(a, ns, range(1, 32), 0);
	assert_int_equal(remove_prefix(a, ns, NO_KEYS).cqe.a, 0);
	world_settle(w);
	expect_pages(w, 0, 0, 0);
	assert_int_equal(counters(w)->live_nodes, 0);
	world_free(w);
}

/* INSERT that ends inside a node touches and raises the whole node, and does not split it. */
static void insert_that_ends_inside_a_node(void **state)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), node = insert(a, ns, range(1, 8)).handle.node;
	uint64_t before = node_at(w, node)->touched;
	struct answer done;

	(void)state;
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
	world_free(w);
}

/* FIFO goes by when a node was made, whatever happened to it since. */
static void fifo_goes_by_creation_even_across_splits(void **state)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 40,
							      .policy = KVT_POLICY_FIFO });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, range(1, 4));
	insert(a, ns, range(11, 14));
	insert(a, ns, K(1, 2, 50, 51)); /* splits the first one: both halves are as old as it */
	match(a, ns, range(1, 4));
	evict(a, 2);
	expect_matched(a, ns, range(1, 4), 2);
	evict(a, 4);
	expect_matched(a, ns, range(11, 14), 0);
	expect_matched(a, ns, K(1, 2, 50, 51), 4);
	world_free(w);
}

/* EVICT frees detached pages first and counts them. */
static void evict_frees_detached_pages_first(void **state)
{
	struct world *w = world_small(1, 40);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	(void)state;
	insert(a, ns, K(1, 2));
	insert(a, ns, K(11, 12, 13));
	remove_prefix(a, ns, K(11));
	assert_int_equal(evict(a, 3).evicted, 3);
	expect_matched(a, ns, K(1, 2), 2);
	world_free(w);
}

static void limits_per_session(void **state)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 60, .max_leases = 2, .max_private_pages = 10 });
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;
	struct answer no;

	(void)state;
	insert(a, ns, range(1, 9));
	alloc(a, 4);
	no = alloc(a, 7);
	expect_refused(no, -EDQUOT, KVT_REASON_LIMIT_PAGES);
	assert_int_equal(no.number, 10);
	seq = begin(a, ns, range(1, 20), 0, 0);
	expect_refused(seq->a, -EDQUOT, KVT_REASON_LIMIT_PAGES);
	seq = begin(a, ns, range(1, 12), 0, 0);
	expect_ok(seq->a);
	expect_refused(extend(seq, 4), -EDQUOT, KVT_REASON_LIMIT_PAGES);
	expect_ok(extend(seq, 3));
	expect_ok(match_lock(a, ns, range(1, 4)));
	no = match_lock(a, ns, range(1, 4));
	expect_refused(no, -EDQUOT, KVT_REASON_LIMIT_LEASES);
	assert_int_equal(no.number, 2);
	expect_refused(begin(a, ns, range(1, 4), 0, 0)->a, -EDQUOT, KVT_REASON_LIMIT_LEASES);
	expect_refused(insert_pages(a, ns, K(1), (uint32_t[]){ seq->table[0] }, 1, KVT_F_LOCK),
		       -EDQUOT, KVT_REASON_LIMIT_LEASES);
	expect_ok(alloc(b, 10)); /* another session has limits of its own */
	expect_ok(end(seq));
	expect_ok(match_lock(a, ns, range(1, 4)));
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(zero_is_legal_everywhere_and_does_nothing),
		CASE(a_sequence_may_start_without_a_key),
		CASE(insert_from_a_start_handle_names_what_follows),
		CASE(bad_handles_are_refused),
		CASE(insert_raises_priority_and_expiry_of_its_path),
		CASE(keys_below_an_expired_locked_node_go_into_a_new_node),
		CASE(who_counts_a_hit),
		CASE(what_touches),
		CASE(locks_cover_exactly_what_matched),
		CASE(full_gives_the_uncapped_match),
		CASE(commit_below_next_changes_nothing),
		CASE(commit_beyond_table_or_keys_is_refused),
		CASE(keys_beyond_the_table_are_left_out),
		CASE(end_of_a_detached_lease_says_so),
		CASE(look_on_leaves_one_position),
		CASE(look_on_takes_over_the_page_it_is_in),
		CASE(enospc_names_what_is_available),
		CASE(detached_pages_go_first),
		CASE(force_miss_reuses_nothing),
		CASE(keep_holds_duplicates_until_end),
		CASE(announced_counts_live_leases_only),
		CASE(an_operation_on_an_ending_lease_is_stale),
		CASE(end_always_ends),
		CASE(close_ends_all_leases_at_its_fence),
		CASE(remove_takes_the_last_page_and_all_below),
		CASE(insert_that_ends_inside_a_node),
		CASE(fifo_goes_by_creation_even_across_splits),
		CASE(evict_frees_detached_pages_first),
		CASE(limits_per_session),
	};

	return RUN_CASES(tests);
}
