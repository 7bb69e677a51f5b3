/* SPDX-License-Identifier: Apache-2.0 */

/* The death of a session: signs out of order, and background turns. The simulation and tests/script
 * have the rest of leaving. */

#include "tests/unit/core_world.h"

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
