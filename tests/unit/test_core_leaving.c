/* SPDX-License-Identifier: Apache-2.0 */

/* Leaving: fences, a session's orderly end, and its death. tests/script has the order of operations
 * that wait for fences.
 *
 * Inputs: fences, signs and background turns, in any order. Invariant: no page is free while it can
 * be written. */

#include "tests/unit/core_world.h"

/* Locks last until the fence: what a kernel still reads cannot be evicted. */
TEST(a_lock_is_held_until_its_fence)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease;

	insert(a, ns, range(1, 10));
	lease = match_lock(a, ns, range(1, 10));
	fence(a, 15, UINT64_MAX);
	assert_true(unlock(a, lease).deferred);
	assert_int_equal(evict(a, 10).evicted, 0);
	raise_fence(a, 15, UINT64_MAX - 1);
	assert_int_equal(evict(a, 10).evicted, 0);
	raise_fence(a, 15, UINT64_MAX);
	assert_int_equal(evict(a, 10).evicted, 10);
}

TEST(fence_words_that_do_not_exist_are_refused)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w);

	for (uint32_t slot = 16; slot < 255; slot++) {
		fence(a, (uint8_t)slot, 1);
		expect_refused(give(a, NULL, 0), -EINVAL, KVT_REASON_FENCE);
	}
}

TEST(back_pressure_tells_before_an_entry_is_taken)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 30,
							      .n_pending = 3 });
	struct client *a = client_new(w);

	for (int i = 0; i < 3; i++) {
		assert_true(kvt_core_can_defer(w->core));
		fence(a, 0, 1);
		assert_true(give(a, NULL, 0).deferred);
	}
	assert_false(kvt_core_can_defer(w->core));
	raise_fence(a, 0, 1);
	assert_true(kvt_core_can_defer(w->core));
}

/* Deferred operations of a dead session never happen. */
TEST(death_forgets_what_waited)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	space_open(b, "ns");
	fence(a, 0, 1);
	commit(seq, 16, NO_KEYS, 0);
	fence(a, 0, 1);
	end(seq);
	client_dies(a, KVT_SIGN_EXITED);
	raise_fence(a, 0, 1);
	assert_int_equal(w->n_done, 0);
	expect_matched(b, ns, range(1, 16), 0);
	assert_int_equal(counters(w)->quarantined_pages, 4);
	assert_int_equal(w->core->free_pending.count, w->config.n_pending);
}

/* Locks end at the first sign. Pages become free after hang-up, exit and quiet. */
TEST(quarantine_ends_when_all_signs_are_there)
{
	static const uint32_t signs[6][3] = {
		{ 1, 2, 4 }, { 1, 4, 2 }, { 2, 1, 4 }, { 2, 4, 1 }, { 4, 1, 2 }, { 4, 2, 1 },
	};

	for (int order = 0; order < 6; order++) {
		struct world *w = world_small(4, 60);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");

		insert(a, ns, range(1, 8));
		match_lock(a, ns, range(1, 8));
		commit(begin(a, ns, range(1, 20), 4, 0), 12, NO_KEYS, KVT_F_CHUNKED);
		alloc(a, 2);
		for (int i = 0; i < 3; i++) {
			bool over = (signs[order][0] | (i > 0 ? signs[order][1] : 0)) & 3;

			client_dies(a, signs[order][i]);
			if (i == 2)
				break;
			assert_int_equal(counters(w)->live_leases, over ? 0 : 2);
			assert_int_equal(counters(w)->quarantined_pages, over ? 5 : 0);
			assert_int_equal(counters(w)->protected_pages, over ? 0 : 3);
		}
		expect_pages(w, 3, 0, 0);
		assert_int_equal(counters(w)->free_pages, 56);
		assert_int_equal(counters(w)->live_sessions, 0);
		world_free(w);
	}
}

TEST(an_operator_ends_a_quarantine)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	alloc(a, 5);
	kvt_core_session_kill(w->core, a->session, w->now_ns); /* a violation: no sign at all */
	world_settle(w);
	assert_int_equal(kvt_core_session(w->core, a->session)->state, KVT_SESSION_DEAD);
	assert_int_equal(counters(w)->quarantined_pages, 5);
	client_dies(a, KVT_SIGN_FENCED);
	assert_int_equal(counters(w)->free_pages, 59);
	assert_int_equal(kvt_core_session(w->core, a->session)->state, KVT_SESSION_FREE);
}

/* KEEP pages, table pages and pages without a lease of a dead session: none is lost. */
TEST(every_kind_of_private_page_is_quarantined)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one, *two;

	space_open(b, "ns");
	one = begin(a, ns, range(1, 17), 0, 0);
	two = begin(b, ns, range(1, 17), 0, 0);
	commit(one, 16, NO_KEYS, 0);
	commit(two, 16, NO_KEYS, KVT_F_KEEP);
	alloc(b, 3);
	client_dies(b, KVT_SIGN_HANGUP);
	assert_int_equal(counters(w)->quarantined_pages, 5 + 3);
	assert_int_equal(kvt_core_session(w->core, b->session)->n_quarantined, 8);
	client_dies(b, KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	assert_int_equal(counters(w)->quarantined_pages, 0);
}

/* A reader keeps the pages of a dead owner. What the owner announced is removed. */
TEST(the_dead_leave_what_others_lock)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 32), 0, 0), *two;
	struct answer reader;

	space_open(b, "ns");
	commit(one, 8, NO_KEYS, KVT_F_CHUNKED);
	reader = match_lock(b, ns, range(1, 32));
	two = begin(b, ns, range(1, 24), 0, 0);
	assert_int_equal(two->a.announced, 16);
	client_dies(a, KVT_SIGN_HANGUP);
	expect_matched(b, ns, range(1, 32), 8);
	assert_int_equal(match(b, ns, range(1, 32)).announced, 16); /* what two computes now */
	assert_int_equal(evict(b, 60).evicted, 0);
	expect_ok(commit(two, 24, NO_KEYS, 0));
	expect_ok(end(two));
	expect_ok(unlock(b, reader));
	expect_matched(b, ns, range(1, 32), 24);
}

/* Repeated signs, late ones, and those for unknown sessions change nothing. */
TEST(signs_out_of_order_do_no_harm)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b;
	uint32_t session = a->session;

	alloc(a, 2);
	client_dies(a, KVT_SIGN_HANGUP);
	client_dies(a, KVT_SIGN_HANGUP);
	kvt_core_session_kill(w->core, session, w->now_ns);
	client_dies(a, KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	client_dies(a, KVT_SIGN_EXITED);
	kvt_core_session_kill(w->core, session, w->now_ns);
	assert_int_equal(kvt_core_session(w->core, session)->state, KVT_SESSION_FREE);
	b = client_new(w);
	assert_int_equal(b->session, session);
	assert_int_equal(kvt_core_session(w->core, session)->generation, 2);
	expect_ok(alloc(b, 1));
}

/* Background work per turn is bounded: one page beyond the budget costs another turn. */
TEST(reclaim_of_a_dead_session_is_bounded_per_turn)
{
	struct world *w = world_small(1, 1000);
	struct client *a = client_new(w);
	uint32_t turns = 0;

	alloc(a, 900);
	kvt_core_session_sign(w->core, a->session, 7, w->now_ns);
	while (kvt_core_unsettled(w->core)) {
		uint64_t moved = counters(w)->quarantined_pages + 2 * counters(w)->free_pages;

		kvt_core_work(w->core, 10, false, w->now_ns);
		moved = counters(w)->quarantined_pages + 2 * counters(w)->free_pages - moved;
		assert_in_range(moved, 0, 10);
		turns++;
	}
	assert_in_range(turns, 180, 200);
	world_audit(w);
}
