/* SPDX-License-Identifier: Apache-2.0 */

/* Operations in which daemons died.
 *
 * Inputs: the ledger's `running` word, as a daemon leaves it that dies at that moment; kvtcrash
 * --lives dies there for real. Invariant: what two daemons died in is refused, and nothing else. */

#include "daemon/core/running.h"
#include "kvtrunk_wire_admin.h"
#include "tests/core/world.h"

static void die_in(struct world *w, uint64_t running, const char *what, uint32_t deaths)
{
	struct kvt_core_adoption adoption;
	char why[256], text[64];

	w->core->ledger->running = running;
	assert_int_equal(world_adopt(w, &adoption, why, sizeof(why)), 0);
	assert_int_equal(w->core->ledger->running, 0);
	assert_int_equal(kvt_core_died_in(adoption.died_in, text, sizeof(text)), deaths);
	assert_string_equal(text, what);
	world_audit(w);
}

/* Die in the client's next entry, an ALLOC. */
static void die_in_entry(struct client *client, uint32_t deaths)
{
	struct world *w = client->world;
	const struct kvt_session_record *session = kvt_core_session(w->core, client->session);
	char what[64];

	snprintf(what, sizeof(what), "ALLOC of session %u", client->session);
	die_in(w, kvt_running_word(KVT_RUNNING_ENTRY, kvt_entry_deaths(session), KVT_OP_ALLOC,
				   client->session, session->sq_taken), what, deaths);
}

/* Die in a deferred operation. */
static void die_in_deferred(struct client *client, uint32_t id, const char *op, uint32_t deaths)
{
	struct world *w = client->world;
	const struct kvt_pending_record *pending = &w->core->pending[id];
	char what[64];

	snprintf(what, sizeof(what), "%s of session %u, deferred", op, client->session);
	die_in(w, kvt_running_word(KVT_RUNNING_DEFERRED, pending->deaths, pending->sqe.op,
				   client->session, id), what, deaths);
}

TEST(an_entry_in_which_two_daemons_died_is_refused_and_the_next_one_runs)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t space = space_open(a, "one");
	uint64_t violations = counters(w)->violations;

	insert(a, space, range(1, 8));
	die_in_entry(a, 1);
	die_in_entry(a, 2);
	expect_ok(alloc(b, 1));
	expect_refused(alloc(a, 1), -EIO, KVT_REASON_FATAL);
	expect_pages(w, 4, 1, 0);
	expect_ok(alloc(a, 1));
	expect_matched(a, space, range(1, 8), 8);
	assert_int_equal(counters(w)->violations, violations);
}

TEST(deaths_in_different_entries_are_not_added)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w);

	die_in_entry(a, 1);
	die_in_entry(b, 1);
	expect_ok(alloc(b, 1));
	die_in_entry(b, 1);
	die_in_entry(a, 2);
	expect_ok(alloc(b, 1));
	expect_refused(alloc(a, 1), -EIO, KVT_REASON_FATAL);
	die_in_entry(a, 1);
	expect_ok(alloc(a, 1));
}

TEST(an_entry_that_took_effect_is_not_charged)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w);

	for (int i = 0; i < 3; i++) {
		const struct kvt_session_record *session = kvt_core_session(w->core, a->session);

		expect_ok(alloc(a, 1));
		die_in(w, kvt_running_word(KVT_RUNNING_ENTRY, 1, KVT_OP_ALLOC, a->session,
					   session->sq_taken - 1), "nothing", 0);
	}
	expect_ok(alloc(a, 1));
}

TEST(a_deferred_operation_is_refused_at_its_fence)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "one"), id;
	struct seq *seq = begin(a, space, range(1, 9), 0, 0);

	fence(a, 3, 7);
	assert_true(commit(seq, 4, NO_KEYS, KVT_F_CHUNKED).deferred);
	id = w->core->sessions[a->session].first_pending;
	assert_true(commit(seq, 8, NO_KEYS, KVT_F_CHUNKED).deferred);
	die_in_deferred(a, id, "COMMIT", 1);
	die_in_deferred(a, id, "COMMIT", 2);
	raise_fence(a, 3, 7);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done[0].result, -EIO);
	assert_int_equal(w->done[0].reason, KVT_REASON_FATAL);
	assert_int_equal(w->done[0].flags, KVT_CQE_DEFERRED);
	assert_int_equal(w->done[1].result, 0);
	expect_matched(a, space, range(1, 9), 8);
}

TEST(a_deferred_end_that_is_refused_leaves_its_lease_to_the_session)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "one"), id;
	struct seq *seq = begin(a, space, range(1, 9), 0, 0);

	fence(a, 3, 7);
	assert_true(end(seq).deferred);
	id = w->core->sessions[a->session].first_pending;
	die_in_deferred(a, id, "END", 1);
	die_in_deferred(a, id, "END", 2);
	raise_fence(a, 3, 7);
	assert_int_equal(w->done[0].result, -EIO);
	expect_refused(extend(seq, 1), -ESTALE, KVT_REASON_LEASE_STALE);
	client_dies(a, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	expect_pages(w, 0, 0, 0);
}

static void wait_for(struct client *client, uint32_t space, uint16_t flags)
{
	struct kvt_sqe sqe = { .op = KVT_OP_BEGIN, .flags = flags, .namespace_id = space,
			       .n_keys = 8, .ttl_ms = 1000, .list_capacity = 4,
			       .fence_slot = KVT_FENCE_IDLE };

	memcpy(client->keys, range(1, 8).at, 8 * sizeof(uint32_t));
	submit(client, &sqe);
}

TEST(a_begin_that_waits_is_refused_when_it_may_begin)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t space = space_open(a, "one");
	struct seq *seq = begin(a, space, range(1, 8), 0, 0);

	space_open(b, "one");
	wait_for(b, space, KVT_F_WAIT);
	wait_for(b, space, KVT_F_NO_WAIT);
	for (uint32_t deaths = 1; deaths <= 2; deaths++) {
		uint32_t first = w->core->first_waiter;

		die_in_deferred(b, w->core->pending[first].next, "BEGIN", deaths);
		die_in_deferred(b, first, "BEGIN", deaths);
	}
	expect_ok(commit(seq, 8, NO_KEYS, 0));
	kvt_core_wake(w->core, w->now_ns);
	assert_int_equal(w->n_done, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(w->done[i].result, -EIO);
		assert_int_equal(w->done[i].reason, KVT_REASON_FATAL);
		assert_int_equal(w->done[i].flags,
				 KVT_CQE_DEFERRED | (i ? KVT_CQE_ASYNC : 0));
	}
	wait_for(b, space, KVT_F_WAIT);
	expect_ok(end(seq));
}

TEST(a_begin_that_ran_and_waits_again_forgets_a_death)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t space = space_open(a, "one");
	struct seq *first = begin(a, space, range(1, 8), 0, 0), *second;

	space_open(b, "one");
	space_open(c, "one");
	wait_for(b, space, KVT_F_WAIT);
	second = begin(c, space, range(1, 8), 0, 0);
	die_in_deferred(b, w->core->first_waiter, "BEGIN", 1);
	expect_ok(end(first));
	kvt_core_wake(w->core, w->now_ns);
	assert_int_equal(w->n_done, 0);
	assert_int_equal(w->core->pending[w->core->first_waiter].deaths, 0);
	expect_ok(commit(second, 8, NO_KEYS, 0));
	kvt_core_wake(w->core, w->now_ns);
	assert_int_equal(w->done[0].result, 0);
}

/* Try a request on a control socket; the daemon dies in it. False: it is refused. */
static bool die_in_request(struct world *w, uint32_t what, uint64_t digest)
{
	char why[256];

	if (!kvt_core_request_begin(w->core, what, digest))
		return false;
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	return true;
}

static bool run_request(struct world *w, uint32_t what, uint64_t digest)
{
	if (!kvt_core_request_begin(w->core, what, digest))
		return false;
	kvt_core_request_end(w->core);
	return true;
}

TEST(a_request_in_which_two_daemons_died_is_refused_until_an_orderly_end)
{
	const uint32_t audit = KVT_RUNNING_ADMIN | KVT_ADMIN_AUDIT;
	struct world *w = world_small(2, 40);
	char why[256];

	assert_true(die_in_request(w, audit, 1));
	assert_true(die_in_request(w, KVT_MSG_HELLO, 0xffffffffffffull));
	assert_true(run_request(w, audit, 2));
	assert_true(die_in_request(w, audit, 1));
	assert_true(die_in_request(w, KVT_MSG_HELLO, 0xffffffffffffull));
	assert_false(run_request(w, audit, 1));
	assert_false(run_request(w, KVT_MSG_HELLO, 0xffffffffffffull));
	assert_true(run_request(w, audit, 2));
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0); /* killed while idle */
	assert_false(run_request(w, audit, 1));
	kvt_core_leave(w->core);
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	assert_true(run_request(w, audit, 1));
}

TEST(a_request_that_ran_forgets_the_deaths_in_earlier_ones)
{
	struct world *w = world_small(2, 40);

	assert_true(die_in_request(w, KVT_MSG_HELLO, 5));
	assert_true(run_request(w, KVT_MSG_HELLO, 5));
	assert_true(die_in_request(w, KVT_MSG_HELLO, 5));
	assert_true(run_request(w, KVT_MSG_HELLO, 5));
}

TEST(a_death_in_background_work_is_named)
{
	struct world *w = world_small(2, 40);

	die_in(w, kvt_running_word(KVT_RUNNING_WORK, 0, KVT_WORK_RECLAIM, 0, 0),
	       "background work: reclaiming detached nodes", 1);
	die_in(w, kvt_running_word(KVT_RUNNING_REQUEST, 0, KVT_RUNNING_ADMIN | KVT_ADMIN_AUDIT, 0,
				   1), "an administrator's AUDIT", 1);
	die_in(w, kvt_running_word(KVT_RUNNING_REQUEST, 0, KVT_MSG_HELLO, 0, 1),
	       "HELLO on a control socket", 1);
}

TEST(an_impossible_word_is_ignored)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w);
	char why[256];

	for (uint64_t kind = 0; kind < 16; kind++) {
		w->core->ledger->running = kind << 60 | UINT64_MAX >> 4;
		assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
		expect_ok(alloc(a, 1));
	}
}

TEST(an_audit_without_memory_for_it_is_refused)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w);
	struct kvt_sqe sqe = { .op = KVT_OP_AUDIT };

	kvt_core_let_audit(w->core, false);
	expect_refused(submit(a, &sqe), -ENOMEM, KVT_REASON_MEMORY);
	kvt_core_let_audit(w->core, true);
	expect_ok(submit(a, &sqe));
}
