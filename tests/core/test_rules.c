/* SPDX-License-Identifier: Apache-2.0 */

/* Rules that no single operation owns, as far as the simulation and tests/core/script do not show
 * them. Each case runs on a world of world.h, audited after each operation.
 *
 * Inputs: entries as a client may write them. Invariant: refusals change nothing. */

#include "daemon/core/records.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_segment.h"
#include "tests/core/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

/* ---- entries */

TEST(unknown_operations_are_refused_whatever_they_carry)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	for (uint32_t op = KVT_OP_COUNT; op < 256; op++) {
		struct kvt_sqe sqe;

		memset(&sqe, 0xff, sizeof(sqe));
		sqe.op = (uint8_t)op;
		sqe.list_offset = 0;
		expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_BAD_OP);
	}
	assert_int_equal(counters(w)->violations, 256 - KVT_OP_COUNT);
}

/* Set each single bit in an entry of an operation that takes nothing. */
TEST(fields_that_an_operation_does_not_use_must_be_zero)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	for (uint32_t bit = 8; bit < 512; bit++) {
		struct kvt_sqe sqe = { .op = KVT_OP_NOP };
		struct answer answer;

		((uint8_t *)&sqe)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		if (bit / 8 >= 8 && bit / 8 < 16) { /* user_data is the caller's */
			assert_int_equal(submit(a, &sqe).cqe.user_data, sqe.user_data);
			continue;
		}
		answer = submit(a, &sqe);
		assert_int_equal(answer.result, -EINVAL);
		assert_true(answer.reason == KVT_REASON_BAD_FLAGS ||
			    answer.reason == KVT_REASON_BAD_FIELD ||
			    answer.reason == KVT_REASON_TTL || answer.reason == KVT_REASON_FENCE);
	}
}

TEST(flags_that_an_operation_does_not_take_are_refused)
{
	static const uint16_t takes[KVT_OP_COUNT] = {
		[KVT_OP_MATCH] = KVT_F_LOCK | KVT_F_NO_TOUCH | KVT_F_ROOT_KEY,
		[KVT_OP_LOCK] = KVT_F_SHORTER,
		[KVT_OP_ALLOC] = KVT_F_SHORTER | KVT_F_OWN_STREAM,
		[KVT_OP_EXTEND] = KVT_F_OWN_STREAM,
		[KVT_OP_INSERT] = KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL | KVT_F_ROOT_KEY,
		[KVT_OP_BEGIN] = KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT |
				 KVT_F_OWN_STREAM | KVT_F_ROOT_KEY | KVT_F_NO_PAGES |
				 KVT_F_UNCOUNTED,
		[KVT_OP_COMMIT] = KVT_F_CHUNKED | KVT_F_KEEP, /* with which it takes NO_LIST */
		[KVT_OP_END] = KVT_F_COMMIT | KVT_F_CHUNKED | KVT_F_KEEP,
	};
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	for (uint32_t op = 0; op < KVT_OP_COUNT; op++) {
		for (uint32_t bit = 0; bit < 16; bit++) {
			struct kvt_sqe sqe = { .op = (uint8_t)op, .flags = (uint16_t)(1u << bit) };

			if (!(takes[op] & sqe.flags))
				expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_BAD_FLAGS);
		}
	}
	expect_refused(match_flags(a, ns, K(1), KVT_F_LOCK | KVT_F_NO_TOUCH), -EINVAL,
		       KVT_REASON_BAD_FLAGS);
}

TEST(keys_and_lists_must_lie_in_the_areas)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), most = w->config.max_op_keys;
	uint32_t n_keys = (uint32_t)a->keys_count, n_list = (uint32_t)a->list_count;
	const struct kvt_sqe bad[] = {
		{ .op = KVT_OP_MATCH, .n_keys = n_keys + 1 },
		{ .op = KVT_OP_MATCH, .keys_offset = n_keys, .n_keys = 1 },
		{ .op = KVT_OP_MATCH, .keys_offset = UINT32_MAX, .n_keys = UINT32_MAX },
		{ .op = KVT_OP_MATCH, .keys_offset = UINT32_MAX, .n_keys = 2 },
		{ .op = KVT_OP_MATCH, .n_keys = most + 1 },
		{ .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .list_capacity = n_list + 1 },
		{ .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .list_offset = UINT32_MAX,
		  .list_capacity = 1 },
		{ .op = KVT_OP_INSERT, .n_keys = 8, .arg = n_keys - 1,
		  .fence_slot = KVT_FENCE_IDLE },
		{ .op = KVT_OP_INSERT, .n_keys = 8, .arg = UINT32_MAX,
		  .fence_slot = KVT_FENCE_IDLE },
		{ .op = KVT_OP_BEGIN, .n_keys = 8, .arg = UINT32_MAX },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvt_sqe sqe = bad[i];
		struct answer answer;

		sqe.namespace_id = ns;
		sqe.list_offset = 0;
		answer = submit(a, &sqe);
		if (bad[i].list_offset) {
			sqe.list_offset = bad[i].list_offset;
			memset(&answer.cqe, 0, sizeof(answer.cqe));
			assert_true(kvt_core_execute(w->core, a->session, &sqe, w->now_ns,
						     &answer.cqe));
			answer.result = answer.cqe.result;
			answer.reason = answer.cqe.reason;
		}
		expect_refused(answer, -EINVAL, KVT_REASON_BAD_RANGE);
	}
}

/** Offer a list of n words to the next operation. */
static void offer(struct client *client, uint32_t n)
{
	memset(client->list, 0xff, client->list_count * sizeof(*client->list));
	client->list_capacity = n;
}

static void expect_filled(const struct client *client, uint32_t n)
{
	assert_int_not_equal(client->list[n - 1], UINT32_MAX);
	assert_int_equal(client->list[n], UINT32_MAX);
}

/* Behind the list of one entry may lie the list of another. */
TEST(an_answer_ends_with_the_list_that_was_offered)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *seq;

	insert(a, ns, range(1, 4));
	offer(a, 2);
	expect_ok(match_lock(a, ns, range(1, 4)));
	expect_filled(a, 2);
	offer(a, 3);
	expect_ok(alloc(a, 3));
	expect_filled(a, 3);
	offer(a, 5);
	seq = begin(a, ns, range(1, 8), 2, 0);
	expect_ok(seq->a);
	expect_filled(a, 5);
	offer(a, 5);
	expect_ok(commit(seq, 6, NO_KEYS, 0));
	expect_filled(a, 5);
	offer(a, 1);
	expect_ok(extend(seq, 1));
	expect_filled(a, 1);
}

/* ---- fences, sessions, expiry */

/* A fence is raised after the daemon looked at it, and before an operation that needs its pages. */
TEST(an_operation_without_pages_looks_at_raised_fences)
{
	struct world *w = world_small(2, 20);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), others = space_open(b, "others");
	struct seq *old = begin(a, ns, range(1, 8), 28, 0), *new;

	fence(a, 1, 7);
	assert_true(end(old).deferred);
	expect_refused(alloc(b, 18), -ENOSPC, KVT_REASON_ALL_LOCKED);
	kvt_store_release(&a->fences[1].value, 7);
	new = begin(b, others, range(1, 30), 2, 0);
	expect_ok(new->a);
	assert_int_equal(counters(w)->private_pages, 16);
	fence(b, 1, 9);
	assert_true(end(new).deferred);
	kvt_store_release(&b->fences[1].value, 9);
	expect_ok(alloc(a, 18));
	world_audit(w);
}

TEST(what_no_pool_has_is_refused_without_a_look_at_fences)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w), *b = client_new(w);
	struct seq *old = begin(a, space_open(a, "ns"), NO_KEYS, 16, 0);

	fence(a, 0, 1);
	assert_true(end(old).deferred);
	kvt_store_release(&a->fences[0].value, 1);
	expect_refused(alloc(b, 60), -ENOSPC, KVT_REASON_TOO_LARGE);
	assert_int_equal(counters(w)->private_pages, 8);
	expect_ok(alloc(b, 59));
	assert_int_equal(counters(w)->private_pages, 59);
}

TEST(sessions_and_namespaces_run_out)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 60, .max_sessions = 2, .max_namespaces = 4 });
	struct client *a = client_new(w), *b = client_new(w);
	struct kvt_core_view view = { .keys = a->keys };
	struct kvt_core_peer peer = { .label = "x" };
	uint64_t digest[2] = { 7, 7 };
	uint32_t id = 99;

	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, w->now_ns, &id), -EUSERS);
	assert_int_equal(id, 99);
	space_open(a, "1");
	space_open(a, "2");
	space_open(b, "2");
	space_open(b, "3");
	assert_int_equal(kvt_core_namespace_open(w->core, a->session, digest, "4", w->now_ns, &id),
			 -ENOSPC);
	assert_int_equal(kvt_core_namespace_open(w->core, 0, digest, "4", w->now_ns, &id),
			 -ENOENT);
	client_dies(b, 7);
	assert_int_equal(counters(w)->live_namespaces, 2); /* "3" ended with its last opener */
	assert_int_equal(kvt_core_namespace_open(w->core, a->session, digest, "4", w->now_ns, &id),
			 0);
}

TEST(what_expires_is_gone_at_its_time)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	a->ttl_ms = 10;
	insert(a, ns, range(1, 4));
	a->ttl_ms = 30;
	insert(a, ns, range(1, 2)); /* raises these two */
	a->ttl_ms = 20;
	insert(a, ns, range(11, 14));
	assert_int_equal(kvt_core_next_expiry_ns(w->core), w->now_ns + 10000000);
	w->now_ns += 10000000;
	expect_matched(a, ns, range(1, 4), 2);
	assert_int_equal(kvt_core_next_expiry_ns(w->core), w->now_ns + 10000000);
	w->now_ns += 10000000 - 1;
	expect_matched(a, ns, range(11, 14), 4);
	w->now_ns++;
	expect_matched(a, ns, range(11, 14), 0);
	expect_matched(a, ns, range(1, 4), 2);
	w->now_ns += 10000000;
	kvt_core_work(w->core, 7, false, w->now_ns); /* background work alone, in one turn */
	assert_int_equal(counters(w)->expired_nodes, 3);
	world_settle(w);
	expect_pages(w, 0, 0, 0);
	assert_int_equal(counters(w)->live_nodes, 0);
}

/* More expire at once than one operation handles, each the only keys of a namespace. */
TEST(many_expire_at_once)
{
	enum { SPACES = 30 };
	struct world *w = world_small(1, 200);
	struct client *a = client_new(w);
	uint32_t spaces[SPACES];
	struct answer handles[SPACES];
	char name[8];

	for (uint32_t i = 0; i < SPACES; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		spaces[i] = space_open(a, name);
		a->ttl_ms = 5 + i;
		handles[i] = insert(a, spaces[i], range(1, 4));
	}
	w->now_ns += (5 + SPACES - 1) * 1000000; /* the last one's exact expiry */
	expect_refused(lock(a, handles[SPACES - 1].handle), -ESTALE, KVT_REASON_HANDLE_STALE);
	expect_ok(begin(a, spaces[SPACES - 2], range(1, 6), 0, 0)->a);
	insert(a, spaces[SPACES - 3], range(1, 3));
	expect_matched(a, spaces[SPACES - 4], range(1, 4), 0);
	world_settle(w);
	assert_int_equal(counters(w)->expired_nodes, SPACES);
	assert_int_equal(counters(w)->cached_pages, 3);
}

/* ---- the death of a session */

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

/* ---- a client that changes its keys while the core reads them */

struct liar {
	uint32_t *keys;
	uint32_t n;
	uint32_t stop;
};

static void *lie(void *context)
{
	struct liar *liar = context;
	uint64_t random = 3;

	while (!kvt_load_relaxed(&liar->stop))
		kvt_store_relaxed(&liar->keys[next_random(&random) % liar->n],
				  next_random(&random) % 2);
	return NULL;
}

TEST(keys_that_change_meanwhile_spoil_nothing_else)
{
	enum { KEYS = 24, OPS = 20000 };
	struct world *w = world_small(2, 300);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), list[KEYS];
	struct liar liar = { a->keys, KEYS, 0 };
	uint64_t random = 4;
	pthread_t thread;

	w->quick = true;
	space_open(b, "ns");
	insert(b, ns, range(1000, 1063)); /* a witness */
	match_lock(b, ns, range(1000, 1063));
	assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
	for (int i = 0; i < OPS; i++) {
		struct kvt_sqe sqe = { .namespace_id = ns, .n_keys = next_random(&random) % KEYS,
				       .list_capacity = (uint32_t)a->list_count };
		uint32_t n = sqe.n_keys / 2;
		struct answer answer;

		if (i % 3 == 0) {
			memcpy(list, alloc(a, n).list, n * sizeof(*list));
			memcpy(a->keys + 100, list, n * sizeof(*list));
			sqe.op = KVT_OP_INSERT;
			sqe.arg = 100;
			sqe.fence_slot = KVT_FENCE_IDLE;
			submit(a, &sqe);
			for (uint32_t k = 0; k < n; k++)
				if (w->core->pages[list[k]].state == KVT_PAGE_PRIVATE)
					a->keys[200] = list[k], sqe = (struct kvt_sqe){
						.op = KVT_OP_FREE, .keys_offset = 200, .n_keys = 1,
						.fence_slot = KVT_FENCE_IDLE },
					assert_int_equal(submit(a, &sqe).result, 0);
		} else if (i % 3 == 1) {
			sqe.op = KVT_OP_BEGIN;
			answer = submit(a, &sqe);
			assert_int_equal(answer.result == 0 || answer.reason ==
					 KVT_REASON_KEYS_CHANGED, 1);
			if (answer.result < 0)
				continue;
			sqe = (struct kvt_sqe){ .op = KVT_OP_END, .node = answer.lease,
						.generation = answer.lease_generation,
						.flags = KVT_F_COMMIT, .arg = n * 2,
						.fence_slot = KVT_FENCE_IDLE };
			assert_int_equal(submit(a, &sqe).result, 0);
		} else {
			sqe.op = i % 2 && n > 0 ? KVT_OP_REMOVE : KVT_OP_MATCH;
			sqe.list_capacity = 0;
			submit(a, &sqe);
		}
		if (i % 500 == 0)
			world_audit(w);
	}
	kvt_store_relaxed(&liar.stop, 1);
	pthread_join(thread, NULL);
	world_audit(w);
	assert_int_equal(match_lock(b, ns, range(1000, 1063)).matched, 64);
}
