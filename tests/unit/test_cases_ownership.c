/* SPDX-License-Identifier: Apache-2.0 */

/* The cases of ownership, O1 to O14, through the core. O13, page conservation, is checked by the
 * harness after each step of all of them. */

#include "tests/unit/core_world.h"

static void o1_the_same_sequence_twice(void **state)
{
	struct world *w = world_small(2, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), mine[3], cached[3];
	struct answer found, again;

	(void)state;
	insert(a, ns, range(1, 6));
	found = match_lock(a, ns, range(1, 6));
	memcpy(cached, found.list, sizeof(cached));
	memcpy(mine, alloc(a, 3).list, sizeof(mine));
	again = insert_pages(a, ns, range(1, 6), mine, 3, 0);
	expect_ok(again);
	assert_int_equal(again.existed, 6);
	assert_int_equal(again.inserted, 0);
	assert_int_equal(again.n_twins, 3);
	assert_int_equal(again.n_list, 6);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(again.list[2 * i], mine[i]);
		assert_int_equal(again.list[2 * i + 1], cached[i]);
	}
	expect_pages(w, 3, 3, 3);
	expect_ok(give(a, mine, 3));
	expect_pages(w, 3, 0, 3);
	world_free(w);
}

static void o2_a_miss_then_end(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 17), 8, 0);

	(void)state;
	assert_int_equal(seq->a.matched, 0);
	assert_int_equal(seq->n_table, 7);
	expect_pages(w, 0, 7, 0);
	assert_int_equal(commit(seq, 17, NO_KEYS, 0).sealed, 4);
	expect_pages(w, 4, 3, 4);
	assert_int_equal(end(seq).freed, 3);
	expect_pages(w, 4, 0, 0);
	assert_int_equal(counters(w)->live_leases, 0);
	assert_int_equal(counters(w)->locked_nodes, 0);
	world_free(w);
}

static void o3_a_partial_hit_under_one_lock(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer old = insert(a, ns, range(1, 5));
	struct seq *seq = begin(a, ns, range(1, 10), 0, 0);

	(void)state;
	assert_int_equal(seq->a.matched, 5);
	assert_int_equal(seq->a.reusable, 5);
	assert_int_equal(node_at(w, old.handle.node)->lock_ref, 1);
	assert_int_equal(counters(w)->live_leases, 1);
	assert_int_equal(commit(seq, 10, NO_KEYS, 0).sealed, 5);
	assert_int_equal(node_at(w, old.handle.node)->lock_ref, 1);
	expect_pages(w, 10, 0, 10);
	expect_ok(end(seq));
	assert_int_equal(node_at(w, old.handle.node)->lock_ref, 0);
	expect_matched(a, ns, range(1, 10), 10);
	world_free(w);
}

static void o4_the_whole_prompt_is_cached(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), private_page, twin;
	struct answer old = insert(a, ns, range(1, 12)), done;
	struct seq *seq = begin(a, ns, range(1, 12), 4, 0);

	(void)state;
	assert_int_equal(seq->a.matched, 12);
	assert_int_equal(seq->a.reusable, 8);
	assert_int_equal(seq->n_table, 4);
	assert_int_equal(counters(w)->split_nodes, 0);
	assert_int_equal(seq->a.handle.node, old.handle.node);
	expect_pages(w, 3, 2, 3);
	private_page = seq->table[2];
	done = commit(seq, 12, NO_KEYS, 0);
	assert_int_equal(done.next, 12);
	assert_int_equal(done.sealed, 0);
	assert_int_equal(done.duplicates, 1);
	twin = seq->table[2];
	assert_int_not_equal(twin, private_page);
	assert_int_equal(page_of(a, twin).cqe.a, KVT_PAGE_CACHED);
	assert_int_equal(page_of(a, private_page).cqe.a, KVT_PAGE_FREE);
	assert_int_equal(node_at(w, old.handle.node)->lock_ref, 1);
	expect_ok(end(seq));
	expect_pages(w, 3, 0, 0);
	world_free(w);
}

static void o5_a_tiny_hit_and_a_forced_miss(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 16));
	seq = begin(a, ns, join(range(1, 4), range(50, 60)), 0, 0);
	assert_int_equal(seq->a.reusable, 4);
	expect_ok(commit(seq, 15, NO_KEYS, 0));
	expect_ok(end(seq));
	expect_pages(w, 6, 0, 0);
	seq = begin(a, ns, range(1, 16), 0, KVT_F_FORCE_MISS);
	assert_int_equal(seq->a.matched, 0);
	assert_int_equal(seq->a.reusable, 0);
	assert_int_equal(seq->n_table, 4);
	expect_pages(w, 6, 4, 4);
	expect_ok(commit(seq, 16, NO_KEYS, 0));
	expect_ok(end(seq));
	expect_pages(w, 6, 0, 0);
	expect_matched(a, ns, range(1, 16), 16);
	world_free(w);
}

static void o6_a_lock_on_the_node_that_holds_it(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer first, second;

	(void)state;
	insert(a, ns, range(1, 4));
	first = match_lock(a, ns, range(1, 4));
	second = lock(a, first.handle);
	expect_ok(second);
	assert_int_equal(second.handle.node, first.handle.node);
	assert_int_equal(node_at(w, first.handle.node)->lock_ref, 2);
	expect_ok(unlock(a, first));
	assert_int_equal(node_at(w, first.handle.node)->lock_ref, 1);
	expect_pages(w, 4, 0, 4);
	expect_ok(unlock(a, second));
	expect_pages(w, 4, 0, 0);
	world_free(w);
}

static void o7_bad_leases_are_refused(void **state)
{
	struct world *w = world_small(1, 100);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease, none = { .lease = 0 }, far = { .lease = UINT32_MAX };
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 4));
	lease = match_lock(a, ns, range(1, 4));
	expect_refused(unlock(b, lease), -EPERM, KVT_REASON_LEASE_FOREIGN);
	expect_refused(unlock(a, none), -ESTALE, KVT_REASON_LEASE_STALE);
	expect_refused(unlock(a, far), -ESTALE, KVT_REASON_LEASE_STALE);
	expect_ok(unlock(a, lease));
	expect_refused(unlock(a, lease), -ESTALE, KVT_REASON_LEASE_STALE);
	lease.lease_generation++;
	expect_refused(unlock(a, lease), -ESTALE, KVT_REASON_LEASE_STALE);
	seq = begin(a, ns, range(1, 4), 0, 0);
	expect_refused(unlock(a, seq->a), -EINVAL, KVT_REASON_LEASE_KIND);
	seq->client = b;
	expect_refused(end(seq), -EPERM, KVT_REASON_LEASE_FOREIGN);
	expect_refused(extend(seq, 1), -EPERM, KVT_REASON_LEASE_FOREIGN);
	seq->client = a;
	expect_ok(end(seq));
	expect_refused(end(seq), -ESTALE, KVT_REASON_LEASE_STALE);
	expect_refused(commit(seq, 4, NO_KEYS, 0), -ESTALE, KVT_REASON_LEASE_STALE);
	world_free(w);
}

/* Each kind of page that is not a loose private page of the caller, in FREE and INSERT. */
static void o7_bad_pages_are_refused(void **state)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t ns = space_open(a, "ns"), mine[2], cached, leased, foreign, quarantined, free_page;
	struct seq *seq;

	(void)state;
	insert(a, ns, K(7));
	cached = match_lock(a, ns, K(7)).list[0];
	seq = begin(a, ns, K(8, 9), 0, 0);
	leased = seq->table[0];
	memcpy(mine, alloc(a, 2).list, sizeof(mine));
	foreign = alloc(b, 1).list[0];
	quarantined = alloc(c, 1).list[0];
	client_dies(c, KVT_SIGN_HANGUP);
	free_page = 59;
	assert_int_equal(page_of(a, free_page).cqe.a, KVT_PAGE_FREE);
	assert_int_equal(page_of(a, quarantined).cqe.a, KVT_PAGE_QUARANTINE);
	struct { uint32_t second, third; enum kvt_reason reason; } cases[] = {
		{ 0, mine[1], KVT_REASON_PAGE_RANGE },
		{ 60, mine[1], KVT_REASON_PAGE_RANGE },
		{ UINT32_MAX, mine[1], KVT_REASON_PAGE_RANGE },
		{ free_page, mine[1], KVT_REASON_PAGE_FREE },
		{ cached, mine[1], KVT_REASON_PAGE_CACHED },
		{ foreign, mine[1], KVT_REASON_PAGE_FOREIGN },
		{ quarantined, mine[1], KVT_REASON_PAGE_FOREIGN },
		{ leased, mine[1], KVT_REASON_PAGE_LEASED },
		{ mine[1], mine[1], KVT_REASON_PAGE_TWICE },
		{ mine[0], mine[1], KVT_REASON_PAGE_TWICE },
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint32_t list[3] = { mine[0], cases[i].second, cases[i].third };

		expect_refused(give(a, list, 3), -EINVAL, cases[i].reason);
		expect_refused(insert_pages(a, ns, K(20, 21, 22), list, 3, 0), -EINVAL,
			       cases[i].reason);
	}
	expect_ok(give(a, mine, 2));
	expect_ok(end(seq));
	world_free(w);
}

static void o8_a_begin_that_fails_leaves_no_trace(void **state)
{
	struct world *w = world_small(1, 21);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 6));
	insert(a, ns, range(11, 13));
	alloc(a, 8); /* 3 free, 9 evictable */
	/* 6 matched and locked, then 3 + 3 can be had: 7 new ones cannot. The harness compares
	 * every byte of arena and ledger: counters, locks and recency are as before. */
	seq = begin(a, ns, range(1, 13), 0, 0);
	expect_refused(seq->a, -ENOSPC, KVT_REASON_ALL_LOCKED);
	assert_int_equal(seq->a.number, 6);
	expect_ok(begin(a, ns, range(1, 12), 0, 0)->a);
	world_free(w);
}

static void o9_two_share_a_prefix(bool first_ends_first)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one, *two, *gone, *left;

	space_open(b, "ns");
	insert(a, ns, range(1, 20));
	one = begin(a, ns, join(range(1, 20), range(100, 105)), 8, 0);
	two = begin(b, ns, join(range(1, 20), range(200, 205)), 8, 0);
	assert_int_equal(one->a.reusable, 20);
	assert_int_equal(two->a.reusable, 20);
	expect_ok(commit(one, 26, NO_KEYS, 0));
	expect_ok(commit(two, 26, NO_KEYS, 0));
	expect_ok(extend(one, 2));
	expect_ok(extend(two, 2));
	gone = first_ends_first ? one : two;
	left = first_ends_first ? two : one;
	assert_int_equal(end(gone).freed, 5); /* of 9 own pages one is cached: 26 = 6 * 4 + 2 */
	assert_int_equal(evict(a, 100).evicted, 1);
	expect_matched(a, ns, range(1, 20), 20);
	expect_ok(commit(left, 28, K(1, 2), 0));
	expect_ok(end(left));
	assert_int_equal(counters(w)->protected_pages, 0);
	assert_int_equal(counters(w)->private_pages, 0);
	world_free(w);
}

static void o9_either_of_two_that_share_ends_first(void **state)
{
	(void)state;
	o9_two_share_a_prefix(true);
	o9_two_share_a_prefix(false);
}

static void o10_two_commit_the_same(uint32_t step_of_a, uint32_t step_of_b)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), done_a = 0, done_b = 0, duplicates = 0;
	struct keys prompt = range(1, 32);
	struct seq *one = begin(a, ns, prompt, 4, 0), *two;

	space_open(b, "ns");
	two = begin(b, ns, prompt, 4, 0);
	assert_int_equal(two->a.matched, 0);
	assert_int_equal(two->a.announced, 32);
	while (done_a < 32 || done_b < 32) {
		if (done_a < 32) {
			done_a = done_a + step_of_a < 32 ? done_a + step_of_a : 32;
			done_a = commit(one, done_a, NO_KEYS, KVT_F_CHUNKED).next;
			duplicates += one->a.duplicates;
		}
		if (done_b < 32) {
			done_b = done_b + step_of_b < 32 ? done_b + step_of_b : 32;
			done_b = commit(two, done_b, NO_KEYS, KVT_F_CHUNKED).next;
			duplicates += two->a.duplicates;
		}
	}
	assert_int_equal(counters(w)->cached_pages, 8);
	assert_int_equal(duplicates, 8);
	assert_memory_equal(one->table, two->table, 8 * sizeof(uint32_t));
	assert_int_not_equal(one->table[8], two->table[8]);
	expect_pages(w, 8, 2, 8);
	expect_ok(end(one));
	expect_ok(end(two));
	expect_pages(w, 8, 0, 0);
	world_free(w);
}

static void o10_two_commit_the_same_prefix(void **state)
{
	(void)state;
	o10_two_commit_the_same(32, 32);
	o10_two_commit_the_same(4, 32);
	o10_two_commit_the_same(32, 4);
	o10_two_commit_the_same(4, 4);
	o10_two_commit_the_same(8, 4);
	o10_two_commit_the_same(3, 5); /* not at the ends of pages */
}

static void o11_a_match_is_not_evicted_for_its_own_begin(void **state)
{
	struct world *w = world_small(1, 21);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 10)); /* older */
	insert(a, ns, range(101, 110));
	seq = begin(a, ns, range(1, 21), 0, 0);
	expect_refused(seq->a, -ENOSPC, KVT_REASON_TOO_LARGE);
	seq = begin(a, ns, range(1, 20), 0, 0);
	expect_ok(seq->a);
	assert_int_equal(seq->a.reusable, 10);
	assert_int_equal(seq->a.evicted, 10);
	expect_matched(a, ns, range(101, 110), 0);
	expect_ok(commit(seq, 20, NO_KEYS, 0));
	expect_ok(end(seq));
	world_free(w);
}

static void o12_reset_while_leases_live(void **state)
{
	struct world *w = world_small(4, 100);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer reader;
	struct seq *seq;

	(void)state;
	insert(a, ns, range(1, 8));
	reader = match_lock(a, ns, range(1, 8));
	seq = begin(a, ns, range(1, 20), 8, 0);
	expect_ok(commit(seq, 12, NO_KEYS, KVT_F_CHUNKED));
	expect_ok(reset(a));
	assert_int_equal(kvt_core_arena(w->core)->epoch, 2);
	expect_matched(a, ns, range(1, 8), 0);
	expect_refused(lock(a, reader.handle), -ESTALE, KVT_REASON_HANDLE_STALE);
	expect_refused(commit(seq, 20, NO_KEYS, 0), -ESTALE, KVT_REASON_EPOCH);
	expect_ok(extend(seq, 2)); /* it decodes on */
	world_settle(w);
	expect_pages(w, 3, 6, 3);
	insert(a, ns, range(1, 8)); /* new weights, same keys */
	assert_int_equal(match_lock(a, ns, range(1, 8)).matched, 8);
	expect_ok(unlock(a, reader));
	assert_int_equal(end(seq).freed, 6);
	world_settle(w);
	expect_pages(w, 2, 0, 2);
	world_free(w);
}

static void o14_a_page_whose_fence_is_not_reached(void **state)
{
	struct world *w = world_small(1, 11);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), pages[2];
	struct seq *seq = begin(a, ns, range(1, 6), 0, 0);

	(void)state;
	space_open(b, "ns");
	memcpy(pages, alloc(a, 2).list, sizeof(pages));
	fence(a, 0, 1);
	assert_true(commit(seq, 6, NO_KEYS, 0).deferred);
	fence(a, 0, 2);
	assert_true(end(seq).deferred);
	fence(a, 1, 1);
	assert_true(give(a, pages, 2).deferred);
	/* Whatever else happens: */
	expect_matched(b, ns, range(1, 6), 0);
	expect_refused(alloc(b, 3), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_ok(reset(b));
	evict(b, 10);
	kvt_core_poll(w->core, a->session, w->now_ns);
	world_settle(w);
	expect_pages(w, 0, 8, 0);
	client_dies(a, KVT_SIGN_EXITED); /* fences that a dead session never reached */
	assert_int_equal(counters(w)->quarantined_pages, 8);
	expect_refused(alloc(b, 3), -ENOSPC, KVT_REASON_ALL_LOCKED);
	client_dies(a, KVT_SIGN_HANGUP);
	assert_int_equal(counters(w)->quarantined_pages, 8);
	client_dies(a, KVT_SIGN_QUIET);
	assert_int_equal(counters(w)->quarantined_pages, 0);
	expect_ok(alloc(b, 10));
	assert_int_equal(w->n_done, 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(o1_the_same_sequence_twice),
		CASE(o2_a_miss_then_end),
		CASE(o3_a_partial_hit_under_one_lock),
		CASE(o4_the_whole_prompt_is_cached),
		CASE(o5_a_tiny_hit_and_a_forced_miss),
		CASE(o6_a_lock_on_the_node_that_holds_it),
		CASE(o7_bad_leases_are_refused),
		CASE(o7_bad_pages_are_refused),
		CASE(o8_a_begin_that_fails_leaves_no_trace),
		CASE(o9_either_of_two_that_share_ends_first),
		CASE(o10_two_commit_the_same_prefix),
		CASE(o11_a_match_is_not_evicted_for_its_own_begin),
		CASE(o12_reset_while_leases_live),
		CASE(o14_a_page_whose_fence_is_not_reached),
	};

	return RUN_CASES(tests);
}
