/* SPDX-License-Identifier: Apache-2.0 */

/* BEGINs that wait for what another session computes: what scenarios through a daemon
 * (tests/core/script/W*.kvt) cannot reach. Waiters form one queue; each is answered once.
 *
 * Inputs: the cache's clock, commits and deaths of owners. */

#include "daemon/core/records.h"
#include "kvtrunk_wire_control.h"
#include "tests/core/world.h"

#define SECOND 1000000000ull

/* BEGIN with its keys where no other operation of the client puts any. */
static struct answer begin_waiting(struct client *client, uint32_t space, struct keys keys,
				   uint16_t flags, uint32_t ttl_ms)
{
	uint32_t ps = client->world->ps, pages = (keys.n + ps - 1) / ps;
	struct kvt_sqe sqe = {
		.op = KVT_OP_BEGIN,
		.flags = flags,
		.namespace_id = space,
		.keys_offset = (uint32_t)client->keys_count / 2,
		.n_keys = keys.n,
		.list_offset = (uint32_t)client->list_count / 2,
		.list_capacity = pages,
		.ttl_ms = ttl_ms,
	};

	memcpy(client->keys + sqe.keys_offset, keys.at, keys.n * sizeof(uint32_t));
	return submit(client, &sqe);
}

static struct answer waiting(struct client *client, uint32_t space, struct keys keys)
{
	struct answer answer = begin_waiting(client, space, keys, KVT_F_WAIT, 1000);

	assert_true(answer.deferred);
	return answer;
}

static void end_lease(struct client *client, const struct kvt_cqe *cqe)
{
	struct kvt_sqe sqe = { .op = KVT_OP_END, .fence_slot = KVT_FENCE_IDLE, .node = cqe->lease,
			       .generation = cqe->lease_generation };

	expect_ok(submit(client, &sqe));
}

static void expect_begun(const struct world *w, uint32_t i, uint32_t matched, uint32_t flags)
{
	assert_true(i < w->n_done);
	assert_int_equal(w->done[i].result, 0);
	assert_int_not_equal(w->done[i].lease, 0);
	assert_int_equal(w->done[i].begin.matched, matched);
	assert_int_equal(w->done[i].flags, KVT_CQE_DEFERRED | flags);
}

static void pass(struct world *w, uint64_t ms)
{
	w->now_ns += ms * 1000000;
	kvt_core_wake(w->core, w->now_ns);
}

static struct world *world_patient(void)
{
	return world_new((struct kvt_core_config){ .page_size = 4, .n_pages = 100,
						   .patience_ns = SECOND });
}

/* One announces a prompt and holds it for `hold_ms` at most, another one begins it. Returns how
 * long that one waited. */
static uint64_t squat(struct client *squatter, struct client *other, uint32_t first,
		      uint64_t hold_ms)
{
	struct world *w = squatter->world;
	uint32_t ns = space_open(squatter, "ns"), before = w->n_done;
	struct seq *seq = begin(squatter, ns, range(first, first + 39), 0, 0);
	uint64_t ms = 0;
	struct answer answer;

	space_open(other, "ns");
	answer = begin_waiting(other, ns, range(first, first + 39), KVT_F_WAIT, 30000);
	for (; answer.deferred && w->n_done == before && ms < hold_ms; ms += 50)
		pass(w, 50);
	expect_ok(end(seq));
	pass(w, 0);
	end_lease(other, answer.deferred ? &w->done[before] : &answer.cqe);
	return ms;
}

TEST(who_lets_others_wait_in_vain_is_not_waited_for_until_it_seals)
{
	struct world *w = world_patient();
	struct client *a = client_of(w, 1), *b = client_of(w, 2), *c = client_of(w, 3);
	uint32_t ns = space_open(c, "ns");
	struct seq *seq;

	assert_int_equal(squat(a, b, 100, 30000), 1000);
	assert_int_equal(squat(a, b, 200, 30000), 0);
	/* Others are waited for, with time of their own. */
	assert_int_equal(squat(c, b, 300, 30000), 1000);
	/* Ending before the patience of others does not help. */
	seq = begin(c, ns, range(401, 440), 0, 0);
	expect_ok(commit(seq, 4, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(squat(c, b, 500, 900), 900);
	assert_int_equal(squat(c, b, 600, 900), 0);
	expect_ok(commit(seq, 8, NO_KEYS, KVT_F_CHUNKED)); /* in time: it heals */
	assert_int_equal(squat(c, b, 700, 900), 900);
	/* What comes too late does not. */
	pass(w, 20000);
	expect_ok(commit(seq, 12, NO_KEYS, KVT_F_CHUNKED));
	assert_int_equal(squat(c, b, 800, 900), 0);
	/* Thirty times the patience after the wait, it gets another try. */
	pass(w, 30000);
	assert_int_equal(squat(c, b, 900, 900), 900);
	assert_int_equal(squat(c, b, 1000, 900), 0);
}

TEST(blame_outlives_the_daemon_and_ends_with_the_session)
{
	struct world *w = world_patient();
	struct client *a = client_of(w, 1), *b = client_of(w, 2);
	char why[256] = "";

	assert_int_equal(squat(a, b, 100, 30000), 1000);
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	assert_int_equal(squat(a, b, 200, 30000), 0);
	client_dies(a, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	assert_int_equal(squat(client_of(w, 1), b, 300, 30000), 1000);
}

TEST(a_hint_that_is_wrong_changes_nothing)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t ns = space_open(a, "ns"), other;
	struct seq *seq, *else_;

	space_open(b, "ns");
	space_open(c, "ns");
	for (uint32_t wrong = 0; wrong < 3; wrong++) {
		struct keys keys = range(1000 * wrong + 1, 1000 * wrong + 16);

		seq = begin(a, ns, keys, 0, 0);
		else_ = begin(c, ns, range(1000 * wrong + 500, 1000 * wrong + 507), 0, 0);
		other = wrong == 0 ? KVT_NONE : wrong == 1 ? else_->lease : w->config.n_leases;
		for (uint32_t i = 1; i < w->config.max_nodes; i++)
			w->core->nodes[i].announcer = other;
		waiting(b, ns, keys);
		assert_int_equal(w->core->pending[w->core->first_waiter].lease, seq->lease);
		expect_ok(commit(seq, 16, NO_KEYS, 0));
		kvt_core_wake(w->core, w->now_ns);
		expect_begun(w, wrong, 16, 0);
		end_lease(b, &w->done[wrong]);
		expect_ok(end(seq));
		expect_ok(end(else_));
	}
}

TEST(a_successor_finds_the_waiters)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	struct kvt_core_adoption adoption;
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);
	char why[256];

	space_open(b, "ns");
	space_open(c, "ns");
	waiting(b, ns, range(1, 16));
	expect_refused(begin_waiting(c, ns, range(1, 16), KVT_F_NO_WAIT, 500), -EAGAIN,
		       KVT_REASON_ANNOUNCED);
	assert_int_equal(world_adopt(w, &adoption, why, sizeof(why)), 0);
	assert_int_equal(adoption.waiting, 2);
	kvt_core_wake(w->core, w->now_ns);
	assert_int_equal(w->n_done, 0);
	expect_ok(commit(seq, 8, NO_KEYS, KVT_F_CHUNKED));
	/* Time passes while no daemon runs. */
	assert_int_equal(world_adopt(w, &adoption, why, sizeof(why)), 0);
	w->now_ns += SECOND / 2;
	kvt_core_wake(w->core, w->now_ns);
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done[0].flags, KVT_CQE_DEFERRED | KVT_CQE_ASYNC);
	assert_int_equal(w->done[0].notice.state, KVT_NOTICE_DEADLINE);
	assert_int_equal(w->done[0].notice.matched, 8);
	/* The owner is late now, also for those who waited before. */
	expect_begun(w, 1, 8, KVT_CQE_TAKEOVER);
	assert_int_equal(counters(w)->deadline_misses, 1);
	assert_int_equal(counters(w)->takeovers, 1);
}

TEST(a_late_owner_is_let_go_by_all)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	struct client *d = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq = begin(a, ns, range(1, 16), 0, 0);

	space_open(b, "ns");
	space_open(c, "ns");
	space_open(d, "ns");
	assert_true(begin_waiting(b, ns, range(1, 16), KVT_F_WAIT, 2000).deferred);
	expect_refused(begin_waiting(c, ns, range(1, 16), KVT_F_NO_WAIT, 500), -EAGAIN,
		       KVT_REASON_ANNOUNCED);
	assert_true(begin_waiting(d, ns, range(1, 16), KVT_F_WAIT, 3000).deferred);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), w->now_ns + SECOND / 2);
	w->now_ns += SECOND / 2;
	kvt_core_wake(w->core, w->now_ns);
	/* The notice made the owner late. b came first and could wait longer: it continues. d came
	 * last: it waits for b. */
	assert_int_equal(w->n_done, 2);
	assert_int_equal(w->done[0].notice.state, KVT_NOTICE_DEADLINE);
	expect_begun(w, 1, 0, KVT_CQE_TAKEOVER);
	assert_int_equal(w->done[1].begin.announced, 16); /* announced by a, and shared */
	assert_int_equal(w->core->pending[w->core->first_waiter].lease, w->done[1].lease);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), w->now_ns + 5 * SECOND / 2);
	end_lease(b, &w->done[1]);
	kvt_core_wake(w->core, w->now_ns);
	expect_begun(w, 2, 0, KVT_CQE_TAKEOVER);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), UINT64_MAX);
	expect_ok(end(seq));
}

TEST(a_lease_record_that_is_used_again_is_another_lease)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 4, .n_pages = 60,
							      .n_leases = 3 });
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t ns = space_open(a, "ns"), record;

	space_open(b, "ns");
	space_open(c, "ns");
	begin(a, ns, range(1, 16), 0, 0);
	record = begin(a, ns, range(101, 116), 0, 0)->lease;
	waiting(b, ns, range(1, 16));
	expect_refused(begin_waiting(c, ns, range(101, 116), KVT_F_NO_WAIT, 1000), -EAGAIN,
		       KVT_REASON_ANNOUNCED);
	begin(c, ns, range(201, 204), 0, 0); /* takes the last record */
	expect_ok(close_session(a));
	kvt_core_wake(w->core, w->now_ns);
	/* b gets the record of the lease that c waits for. */
	assert_int_equal(w->n_done, 2);
	expect_begun(w, 0, 0, KVT_CQE_TAKEOVER);
	assert_int_equal(w->done[0].lease, record);
	assert_int_equal(w->done[1].notice.state, KVT_NOTICE_ABANDONED);
}

/* The queue has the end of the chain first. */
TEST(a_chain_of_waiters_is_followed_in_any_order)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer answer;

	space_open(b, "ns");
	space_open(c, "ns");
	begin(a, ns, range(1, 16), 0, 0);
	begin(b, ns, range(101, 116), 0, 0);
	begin(c, ns, range(201, 216), 0, 0);
	waiting(b, ns, range(201, 216));
	waiting(a, ns, range(101, 116));
	answer = begin_waiting(c, ns, range(1, 16), KVT_F_WAIT, 1000); /* a waits for b, b for c */
	expect_ok(answer);
	assert_false(answer.deferred);
	assert_int_equal(answer.cqe.begin.announced, 16);
}

/* What d waited for has ended, and b has its record. b waits for c, but d does not wait for b. */
TEST(a_record_that_is_used_again_makes_no_chain)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 4, .n_pages = 60,
							      .n_leases = 5 });
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	struct client *d = client_new(w);
	uint32_t ns = space_open(a, "ns"), record;
	struct seq *seq;

	space_open(b, "ns");
	space_open(c, "ns");
	space_open(d, "ns");
	seq = begin(d, ns, range(1, 8), 0, 0);
	begin(c, ns, range(401, 416), 0, 0);
	begin(a, ns, range(301, 316), 0, 0);
	record = begin(a, ns, range(1, 16), 0, 0)->lease;
	waiting(b, ns, range(401, 416));
	waiting(b, ns, range(301, 316));
	waiting(c, ns, range(1, 20));
	waiting(d, ns, range(1, 24));
	begin(d, ns, range(501, 504), 0, 0); /* takes the last record */
	expect_ok(close_session(a));
	kvt_core_wake(w->core, w->now_ns);
	expect_begun(w, 0, 0, KVT_CQE_TAKEOVER);
	assert_int_equal(w->done[0].lease, record);
	assert_int_equal(w->n_done, 2);
	expect_begun(w, 1, 0, KVT_CQE_TAKEOVER);
	/* c waits for the beginning, which d computes. */
	assert_int_equal(w->core->pending[w->core->last_waiter].session, c->session);
	assert_int_equal(w->core->pending[w->core->last_waiter].lease, seq->lease);
}
