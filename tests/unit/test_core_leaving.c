/* SPDX-License-Identifier: Apache-2.0 */

/* Leaving: fences and their order, the orderly end of a session, and its death. */

#include "tests/unit/core_world.h"

static void operations_of_one_lease_take_effect_in_order(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	(void)state;
	fence(a, 0, 5);
	assert_true(commit(seq, 8, NO_KEYS, KVT_F_CHUNKED).deferred);
	/* Its own fence is reached, the one before it is not. */
	assert_true(commit(seq, 16, NO_KEYS, 0).deferred);
	fence(a, 1, 1);
	assert_true(end(seq).deferred);
	raise_fence(a, 1, 1);
	assert_int_equal(w->n_done, 0);
	expect_matched(a, ns, range(1, 16), 0);
	raise_fence(a, 0, 5);
	assert_int_equal(w->n_done, 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(w->done[i].result, 0);
		assert_int_equal(w->done[i].flags & KVT_CQE_DEFERRED, KVT_CQE_DEFERRED);
		assert_true(i == 0 || w->done[i].seq > w->done[i - 1].seq);
	}
	assert_int_equal(w->done[0].a, 8);
	assert_int_equal(w->done[1].a, 16);
	expect_matched(a, ns, range(1, 16), 16);
	assert_int_equal(counters(w)->live_leases, 0);
	world_free(w);
}

static void extend_waits_for_nothing(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	(void)state;
	fence(a, 0, 1);
	assert_true(commit(seq, 16, NO_KEYS, 0).deferred);
	expect_ok(extend(seq, 3));
	assert_int_equal(seq->n_table, 7);
	raise_fence(a, 0, 1);
	assert_int_equal(w->n_done, 1);
	assert_int_equal(w->done[0].result, 0);
	assert_int_equal(w->done[0].e, 7);
	world_free(w);
}

static void other_operations_of_the_session_go_on(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 16), 0, 0), *two;

	(void)state;
	fence(a, 0, 1);
	assert_true(commit(one, 16, NO_KEYS, 0).deferred);
	two = begin(a, ns, range(101, 116), 0, 0);
	fence(a, 1, 1);
	assert_true(commit(two, 16, NO_KEYS, 0).deferred);
	expect_ok(alloc(a, 2));
	raise_fence(a, 1, 1); /* the second lease does not wait for the first */
	assert_int_equal(w->n_done, 1);
	expect_matched(a, ns, range(101, 116), 16);
	expect_matched(a, ns, range(1, 16), 0);
	raise_fence(a, 0, 1);
	expect_matched(a, ns, range(1, 16), 16);
	world_free(w);
}

/* Locks are held until the fence: what a kernel still reads cannot be evicted. */
static void a_lock_is_held_until_its_fence(void **state)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer lease;

	(void)state;
	insert(a, ns, range(1, 10));
	lease = match_lock(a, ns, range(1, 10));
	fence(a, 15, UINT64_MAX);
	assert_true(unlock(a, lease).deferred);
	assert_int_equal(evict(a, 10).evicted, 0);
	raise_fence(a, 15, UINT64_MAX - 1);
	assert_int_equal(evict(a, 10).evicted, 0);
	raise_fence(a, 15, UINT64_MAX);
	assert_int_equal(evict(a, 10).evicted, 10);
	world_free(w);
}

static void a_deferred_insert_publishes_at_its_fence(void **state)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), list[3];

	(void)state;
	space_open(b, "ns");
	memcpy(list, alloc(a, 3).list, sizeof(list));
	fence(a, 4, 2);
	assert_true(insert_pages(a, ns, range(1, 3), list, 3, 0).deferred);
	expect_matched(b, ns, range(1, 3), 0);
	insert(b, ns, range(1, 2)); /* somebody else is faster */
	raise_fence(a, 4, 2);
	assert_int_equal(w->done[0].result, 0);
	assert_int_equal(w->done[0].a, 2);
	assert_int_equal(w->done[0].b, 1);
	assert_int_equal(w->done[0].d, 2);
	expect_pages(w, 3, 2, 0);
	expect_matched(b, ns, range(1, 3), 3);
	world_free(w);
}

/* Pages of a deferred operation are judged when it takes effect: the same pages given twice. */
static void a_deferred_list_is_judged_at_its_fence(void **state)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w);
	uint32_t list[3];

	(void)state;
	memcpy(list, alloc(a, 3).list, sizeof(list));
	for (uint64_t value = 1; value <= 2; value++) {
		fence(a, 0, value);
		assert_true(give(a, list, 3).deferred);
	}
	expect_pages(w, 0, 3, 0);
	raise_fence(a, 0, 2);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done[0].d, 3);
	assert_int_equal(w->done[1].result, -EINVAL);
	assert_int_equal(w->done[1].reason, KVT_REASON_PAGE_FREE);
	expect_pages(w, 0, 0, 0);
	world_free(w);
}

static void fence_words_that_do_not_exist_are_refused(void **state)
{
	struct world *w = world_small(1, 30);
	struct client *a = client_new(w);

	(void)state;
	for (uint32_t slot = 16; slot < 255; slot++) {
		fence(a, (uint8_t)slot, 1);
		expect_refused(give(a, NULL, 0), -EINVAL, KVT_REASON_FENCE);
	}
	world_free(w);
}

static void back_pressure_tells_before_an_entry_is_taken(void **state)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 30,
							      .n_pending = 3 });
	struct client *a = client_new(w);

	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_true(kvt_core_can_defer(w->core));
		fence(a, 0, 1);
		assert_true(give(a, NULL, 0).deferred);
	}
	assert_false(kvt_core_can_defer(w->core));
	raise_fence(a, 0, 1);
	assert_true(kvt_core_can_defer(w->core));
	world_free(w);
}

static void close_waits_for_what_came_before_it(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	(void)state;
	fence(a, 0, 1);
	assert_true(commit(seq, 16, NO_KEYS, 0).deferred);
	assert_true(close_session(a).deferred); /* IDLE itself */
	assert_int_equal(kvt_core_poll(w->core, a->session, w->now_ns), 0);
	raise_fence(a, 0, 1);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done[1].result, 0);
	expect_pages(w, 4, 0, 0);
	world_free(w);
}

/* A dead session's deferred operations never happen. */
static void death_forgets_what_waited(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	(void)state;
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
	world_free(w);
}

/* Locks go at once with the first sign; pages leave only when hang-up, exit and quiet are there. */
static void quarantine_ends_when_all_signs_are_there(void **state)
{
	static const uint32_t signs[6][3] = {
		{ 1, 2, 4 }, { 1, 4, 2 }, { 2, 1, 4 }, { 2, 4, 1 }, { 4, 1, 2 }, { 4, 2, 1 },
	};

	(void)state;
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

static void an_operator_ends_a_quarantine(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	(void)state;
	alloc(a, 5);
	kvt_core_session_kill(w->core, a->session, w->now_ns); /* a violation: no sign at all */
	world_settle(w);
	assert_int_equal(kvt_core_session(w->core, a->session)->state, KVT_SESSION_DEAD);
	assert_int_equal(counters(w)->quarantined_pages, 5);
	client_dies(a, KVT_SIGN_FENCED);
	assert_int_equal(counters(w)->free_pages, 59);
	assert_int_equal(kvt_core_session(w->core, a->session)->state, KVT_SESSION_FREE);
	world_free(w);
}

/* KEEP pages, table pages and loose pages of a dead session: none is lost. */
static void every_kind_of_private_page_is_quarantined(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one, *two;

	(void)state;
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
	world_free(w);
}

/* A reader of a dead owner's pages keeps them; what the owner announced goes. */
static void the_dead_leave_what_others_lock(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 32), 0, 0), *two;
	struct answer reader;

	(void)state;
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
	world_free(w);
}

/* Signs come twice, late, or for nobody: nothing happens. */
static void signs_out_of_order_do_no_harm(void **state)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b;
	uint32_t session = a->session;

	(void)state;
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
	world_free(w);
}

/* Background work is bounded a turn: one page more than the budget costs another turn. */
static void reclaim_of_a_dead_session_is_bounded_per_turn(void **state)
{
	struct world *w = world_small(1, 1000);
	struct client *a = client_new(w);
	uint32_t turns = 0;

	(void)state;
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
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(operations_of_one_lease_take_effect_in_order),
		CASE(extend_waits_for_nothing),
		CASE(other_operations_of_the_session_go_on),
		CASE(a_lock_is_held_until_its_fence),
		CASE(a_deferred_insert_publishes_at_its_fence),
		CASE(a_deferred_list_is_judged_at_its_fence),
		CASE(fence_words_that_do_not_exist_are_refused),
		CASE(back_pressure_tells_before_an_entry_is_taken),
		CASE(close_waits_for_what_came_before_it),
		CASE(death_forgets_what_waited),
		CASE(quarantine_ends_when_all_signs_are_there),
		CASE(an_operator_ends_a_quarantine),
		CASE(every_kind_of_private_page_is_quarantined),
		CASE(the_dead_leave_what_others_lock),
		CASE(signs_out_of_order_do_no_harm),
		CASE(reclaim_of_a_dead_session_is_bounded_per_turn),
	};

	return RUN_CASES(tests);
}
