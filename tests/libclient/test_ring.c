/* SPDX-License-Identifier: Apache-2.0 */
/* libclient on a live ring, with the core behind it in the same process (inprocess.h). Each test
 * ends with an audit and no page or lease left.
 *
 * Inputs: operations, deadlines and pauses of the daemon. */
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "kvtrunk_pool.h"
#include "kvtrunk_sequences.h"
#include "libclient/wait.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 65 };

struct world {
	struct inside inside;
	struct kvt_client *client;
	uint32_t ns;
};

static struct world world;

static int setup(void **state)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 7 };

	inside_init(&world.inside, &config);
	inside_start(&world.inside);
	world.client = inside_connect(&world.inside, 0, 0, 0, 0, 20000);
	world.ns = inside_namespace(&world.inside, world.client, 1);
	return 0;
}

static int teardown(void **state)
{
	if (world.client)
		inside_close(&world.inside, world.client);
	inside_end(&world.inside);
	return 0;
}

static void count_up(uint32_t *to, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		to[i] = from + i;
}

/* Insert n keys from `from` on. */
static void insert(uint32_t from, uint32_t n)
{
	uint32_t keys[64], pages[16];
	struct kvt_result result;

	count_up(keys, from, n);
	assert_int_equal(kvt_alloc(world.client, n / PS, pages), 0);
	assert_int_equal(kvt_insert(world.client, world.ns, keys, n, pages,
				    (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, 0, &result), 0);
	assert_int_equal(result.inserted, n / PS);
	kvt_result_release(world.client, &result);
}

TEST_WITH(each_operation_answers_under_its_names, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[16], pages[4], list[4], n, evicted;
	struct kvt_counters counters;
	struct kvt_result result;
	struct kvt_lease lease;

	count_up(keys, 1, 16);
	assert_int_equal(kvt_alloc(client, 4, pages), 0);
	assert_int_equal(kvt_insert(client, world.ns, keys, 16, pages,
				    (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, 0, &result), 0);
	assert_int_equal(result.existed, 0);
	assert_int_equal(result.inserted, 4);
	assert_int_equal(result.handle.positions, 16);
	assert_int_equal(kvt_match(client, world.ns, keys, 15, 0, &result), 0);
	assert_int_equal(result.matched, 12);
	assert_int_equal(result.n_pages, 0); /* pages of an unlocked match could be gone */
	assert_int_equal(kvt_lock(client, result.handle, &lease, list, 2, &n), -ENOBUFS);
	assert_int_equal(n, 3);
	assert_int_equal(kvt_lock(client, result.handle, &lease, list, 4, &n), 0);
	assert_int_equal(n, 3);
	assert_memory_equal(list, pages, 3 * sizeof(*list));
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(counters.protected_pages, 3);
	assert_int_equal(kvt_unlock(client, lease, KVT_IDLE), 0);
	assert_int_equal(kvt_unlock(client, lease, KVT_IDLE), -ESTALE);
	assert_int_equal(kvt_client_error(client)->reason, KVT_REASON_LEASE_STALE);
	assert_non_null(strstr(kvt_client_error(client)->text, "unlock"));
	assert_int_equal(kvt_evict(client, 1, &evicted), 0);
	assert_int_equal(evicted, 1);
	assert_int_equal(kvt_remove(client, world.ns, keys, 0), -EINVAL);
	assert_non_null(strstr(kvt_client_error(client)->text, "keys NULL"));
	assert_int_equal(kvt_match(client, world.ns, keys, 16, 0, &result), 0);
	assert_int_equal(result.matched, 12);
	assert_int_equal(kvt_remove(client, world.ns, NULL, 0), 0);
	assert_int_equal(kvt_match(client, world.ns, keys, 16, 0, &result), 0);
	assert_int_equal(result.matched, 0);
	assert_int_equal(kvt_reset(client), 0);
}

TEST_WITH(the_rare_operations_answer_too, setup, teardown)
{
	struct kvt_client *client = inside_connect(&world.inside, 4, 8, 256, 64, 20000);
	uint32_t ns = inside_namespace(&world.inside, client, 1), keys[80], pages[2];
	struct kvt_request request = { .op = KVT_OP_PAGE };
	struct kvt_result result;

	insert(1, 8);
	assert_int_equal(kvt_alloc(client, 1, pages), 0);
	request.arg = pages[0];
	assert_int_equal(kvt_call(client, &request, &result), 0);
	assert_int_equal(result.state, KVT_PAGE_PRIVATE);
	assert_int_equal(result.owner, inside_session_of(&world.inside, client)->session);
	assert_int_equal(kvt_free(client, pages, 1, KVT_IDLE), 0);
	request = (struct kvt_request){ .op = KVT_OP_AUDIT };
	assert_int_equal(kvt_call(client, &request, &result), 0);
	assert_int_equal(result.problems, 0);
	/* A COMMIT guesses a quarter of the list area for a table that only the daemon knows. This
	 * table of 20 pages is longer, so the client asks again. */
	count_up(keys, 1, 80);
	request = (struct kvt_request){ .op = KVT_OP_BEGIN, .namespace_id = ns, .keys = keys,
					.n_keys = 80 };
	assert_int_equal(kvt_call(client, &request, &result), 0);
	assert_int_equal(result.reusable, 8);
	kvt_result_release(client, &result);
	request = (struct kvt_request){ .op = KVT_OP_COMMIT, .arg = 80, .lease = result.lease,
					.fence = KVT_IDLE };
	assert_int_equal(kvt_call(client, &request, &result), 0);
	assert_int_equal(result.n_pages, 20);
	assert_int_equal(result.sealed, 18);
	kvt_result_release(client, &result);
	request.list_capacity = 19;
	assert_int_equal(kvt_call(client, &request, &result), -ENOBUFS);
	assert_int_equal(result.needed, 20);
	assert_non_null(strstr(kvt_client_error(client)->text, "needs 20"));
	/* Only the daemon refuses what is too large for the pool, however short the list area. */
	request = (struct kvt_request){ .op = KVT_OP_BEGIN, .namespace_id = ns, .arg = 1u << 30 };
	assert_int_equal(kvt_call(client, &request, &result), -ENOSPC);
	assert_int_equal(result.reason, KVT_REASON_TOO_LARGE);
	assert_int_equal(kvt_alloc(client, 1u << 30, pages), -ENOSPC);
	assert_int_equal(kvt_client_error(client)->reason, KVT_REASON_TOO_LARGE);
	assert_int_equal(kvt_client_error(client)->needed, 1u << 30);
	assert_int_equal(kvt_client_error(client)->available, kvt_client_info(client)->n_pages - 1);
	inside_close(&world.inside, client);
}

TEST_WITH(duplicates_are_named_with_their_twins, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[8], first[2], second[2];
	struct kvt_result result;

	count_up(keys, 1, 8);
	assert_int_equal(kvt_alloc(client, 2, first), 0);
	assert_int_equal(kvt_insert(client, world.ns, keys, 8, first,
				    (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, 0, &result), 0);
	assert_int_equal(kvt_alloc(client, 2, second), 0);
	assert_int_equal(kvt_insert(client, world.ns, keys, 8, second,
				    (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, KVT_F_LOCK,
				    &result), 0);
	assert_int_equal(result.existed, 8);
	assert_int_equal(result.n_twins, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(result.twins[2 * i], second[i]);
		assert_int_equal(result.twins[2 * i + 1], first[i]);
	}
	/* With LOCK the page list of the path follows the twins. */
	assert_int_equal(result.n_pages, 2);
	assert_memory_equal(result.pages, first, sizeof(first));
	assert_int_equal(kvt_unlock(client, result.lease, KVT_IDLE), 0);
	kvt_result_release(client, &result);
	assert_int_equal(kvt_free(client, second, 2, KVT_IDLE), 0);
}

TEST_WITH(a_sequence_lives_from_begin_to_end, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[20], n, generated[4] = { 90, 91, 92, 93 };
	struct kvt_seq *seq, *again;

	count_up(keys, 1, 20);
	assert_int_equal(kvt_seq_begin(client, world.ns, keys, 10, 2, 0, &seq), 0);
	assert_int_equal(kvt_seq_matched(seq) + kvt_seq_reusable(seq) + kvt_seq_next(seq), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, 3);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	assert_int_equal(kvt_seq_next(seq), 8);
	assert_int_equal(kvt_seq_extend(seq, 1), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, 4);
	assert_int_equal(kvt_seq_begin(client, world.ns, keys, 12, 0, 0, &again), 0);
	assert_int_equal(kvt_seq_reusable(again), 8);
	assert_memory_equal(kvt_seq_pages(again, NULL), kvt_seq_pages(seq, NULL), 8);
	assert_int_equal(kvt_seq_end(again, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_commit(seq, 17, generated, 4, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_client_error(client)->reason, KVT_REASON_BEYOND_TABLE);
	assert_int_equal(kvt_seq_end(seq, 14, generated, 4, KVT_IDLE, 0), 0);
	/* 14 positions were published: three whole pages, generated keys included. */
	memcpy(keys + 10, generated, sizeof(generated));
	assert_int_equal(kvt_seq_begin(client, world.ns, keys, 14, 0, 0, &seq), 0);
	assert_int_equal(kvt_seq_reusable(seq), 12);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_begin(client, world.ns, keys, 14, 400, 0, &seq), -ENOSPC);
	assert_int_equal(kvt_client_error(client)->reason, KVT_REASON_TOO_LARGE);
	assert_int_equal(kvt_client_error(client)->needed, (14 + 400 + 3) / 4);
	assert_true(kvt_client_error(client)->available < (14 + 400 + 3) / 4);
}

TEST_WITH(a_sequence_that_has_ended_is_refused, setup, teardown)
{
	const uint32_t keys[4] = { 1, 2, 3, 4 };
	struct kvt_result result;
	struct kvt_seq *seq;

	assert_int_equal(kvt_seq_begin(world.client, world.ns, keys, 4, 0, 0, &seq), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_seq_commit(seq, 4, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_extend(seq, 1), -EINVAL);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_seq_end(NULL, 0, NULL, 0, KVT_IDLE, 0), 0);
	/* An END with bad extra arguments is refused, yet ends the lease. */
	assert_int_equal(kvt_seq_begin(world.client, world.ns, keys, 4, 0, 0, &seq), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, KVT_F_FULL), -EINVAL);
	while (world.client->n_flying)
		kvt_reap(world.client, &result, 1, 1);
	assert_int_equal(inside_counters(&world.inside).live_leases, 0);
	assert_int_equal(kvt_seq_commit(NULL, 4, NULL, 0, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(kvt_submit(NULL, &(struct kvt_request){ .op = KVT_OP_NOP }), -EINVAL);
}

TEST_WITH(an_end_that_published_nothing_says_so, setup, teardown)
{
	uint32_t keys[8];
	struct kvt_seq *seq;

	count_up(keys, 1, 8);
	assert_int_equal(kvt_seq_begin(world.client, world.ns, keys, 8, 0, 0, &seq), 0);
	assert_int_equal(kvt_reset(world.client), 0);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(kvt_seq_end(seq, 8, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
	assert_int_equal(kvt_seq_begin(world.client, world.ns, keys, 8, 0, 0, &seq), 0);
	assert_int_equal(kvt_seq_end(seq, 9, keys, 8, KVT_IDLE, 0), -EINVAL);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
	/* Nothing was left to publish, but the published prefix is not cached any more. */
	assert_int_equal(kvt_seq_begin(world.client, world.ns, keys, 8, 0, 0, &seq), 0);
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_remove(world.client, world.ns, keys, 8), 0);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ESTALE);
	assert_int_equal(kvt_client_error(world.client)->reason, KVT_REASON_DETACHED);
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
}

/* ---------------------------------------------------------------- submit and reap */

TEST_WITH(answers_come_in_any_order_and_block_no_other, setup, teardown)
{
	enum { WAITING = 5, ROUNDS = 300 };
	struct kvt_client *client = world.client;
	struct kvt_request request = { .op = KVT_OP_MATCH, .namespace_id = world.ns };
	struct kvt_result results[8], held[8];
	uint32_t keys[64], seen = 0, which = 0, n_held = 0, pages[1];

	count_up(keys, 1, 64);
	insert(1, 16);
	/* Frees that wait for their fence keep their page numbers in the key area ... */
	for (uint32_t i = 0; i < WAITING; i++) {
		struct kvt_request wait = { .op = KVT_OP_FREE, .pages = pages, .n_pages = 1,
					    .fence = { 3, i + 1 }, .user_data = 1000 + i };

		assert_int_equal(kvt_alloc(client, 1, pages), 0);
		assert_int_equal(kvt_submit(client, &wait), 0);
	}
	/* ... while many times its size passes through it. */
	for (uint64_t round = 0; round < ROUNDS; round++) {
		request.user_data = round;
		request.keys = keys;
		request.n_keys = (uint32_t)(round % 64) + 1;
		request.flags = round % 3 ? 0 : KVT_F_LOCK;
		assert_int_equal(kvt_submit(client, &request), 0);
		assert_int_equal(kvt_reap(client, results, 1, 1), 1);
		assert_int_equal(results[0].user_data, round);
		assert_int_equal(results[0].matched,
				 request.n_keys < 16 ? request.n_keys / PS * PS : 16);
		if (request.flags)
			assert_int_equal(kvt_unlock(client, results[0].lease, KVT_IDLE), 0);
		held[n_held++ % 8] = results[0];
		if (n_held >= 8) /* released seven rounds later */
			kvt_result_release(client, &held[n_held % 8]);
	}
	for (uint32_t i = 0; i < 8; i++)
		kvt_result_release(client, &held[i]);
	assert_int_equal(kvt_fence_raise(client, 3, WAITING), 0);
	while (seen < WAITING) {
		int n = kvt_reap(client, results, 1, 8);

		assert_true(n > 0);
		for (int i = 0; i < n; i++, seen++) {
			which |= 1u << (results[i].user_data - 1000);
			assert_int_equal(results[i].freed, 1);
			assert_true(results[i].flags & KVT_CQE_DEFERRED);
		}
	}
	assert_int_equal(which, (1u << WAITING) - 1);
	assert_int_equal(kvt_reap(client, results, 1, 8), 0); /* nothing is in flight */
}

TEST_WITH(full_rings_and_areas_push_back_and_recover, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result results[64];
	uint32_t keys[4097], submitted = 0;
	int rc, reaped = 0;

	inside_pause(&world.inside, true);
	while ((rc = kvt_submit(client, &request)) == 0)
		submitted++;
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(submitted, 8); /* the SQ's entries */
	inside_pause(&world.inside, false);
	while (reaped < (int)submitted) {
		rc = kvt_reap(client, results, 1, 64);
		assert_true(rc > 0);
		reaped += rc;
	}
	memset(keys, 0, sizeof(keys));
	request = (struct kvt_request){ .op = KVT_OP_MATCH, .namespace_id = world.ns,
					.keys = keys, .n_keys = 4097 };
	assert_int_equal(kvt_submit(client, &request), -E2BIG);
	request.n_keys = 4096;
	inside_pause(&world.inside, true);
	assert_int_equal(kvt_submit(client, &request), 0);
	request.n_keys = 1;
	assert_int_equal(kvt_submit(client, &request), -EAGAIN);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_reap(client, results, 1, 1), 1);
	assert_int_equal(kvt_submit(client, &request), 0);
	assert_int_equal(kvt_reap(client, results, 1, 1), 1);
}

TEST_WITH(a_call_passes_what_others_wait_for, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_counters counters;
	struct kvt_result results[4];

	for (uint64_t i = 0; i < 4; i++) {
		request.user_data = 70 + i;
		assert_int_equal(kvt_submit(client, &request), 0);
	}
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(kvt_reap(client, results, 4, 4), 4);
	for (uint64_t i = 0; i < 4; i++)
		assert_int_equal(results[i].user_data, 70 + i);
}

TEST_WITH(what_the_library_cannot_say_it_refuses, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[8] = { 0 }, pages[2] = { 1, 2 };
	const struct kvt_side side = { KVT_SIDE_PLACE(0, 0), 1 };
	struct kvt_request bad[] = {
		{ .op = 300 },
		{ .op = KVT_OP_NOP, .flags = 1u << 16 },
		{ .op = KVT_OP_COMMIT, .flags = KVT_F_SIDES },
		{ .op = KVT_OP_COMMIT, .sides = &side, .n_sides = 1 }, /* the daemon has none */
		{ .op = KVT_OP_MATCH, .n_keys = 4 },
		{ .op = KVT_OP_FREE, .n_pages = 4 },
		{ .op = KVT_OP_FREE, .fence = { 256, 0 } },
		{ .op = KVT_OP_INSERT, .keys = keys, .n_keys = 8, .pages = pages, .n_pages = 1 },
		{ .op = KVT_OP_INSERT, .keys = keys, .n_keys = 7, .pages = pages, .n_pages = 2 },
	};
	struct kvt_result result;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(kvt_submit(client, &bad[i]), -EINVAL);
		assert_int_equal(kvt_call(client, &bad[i], &result), -EINVAL);
		assert_true(kvt_client_error(client)->text[0]);
	}
}

TEST_WITH(results_released_twice_or_never_given_are_harmless, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_result result, copy, none = { 0 };
	uint32_t keys[16], free_before;

	count_up(keys, 1, 16);
	insert(1, 16);
	free_before = client->n_free;
	assert_int_equal(kvt_match(client, world.ns, keys, 16, KVT_F_LOCK, &result), 0);
	copy = result;
	assert_int_equal(client->n_free, free_before - 1);
	assert_int_equal(kvt_unlock(client, result.lease, KVT_IDLE), 0);
	kvt_result_release(client, &result);
	kvt_result_release(client, &result);
	kvt_result_release(client, &none);
	assert_int_equal(client->n_free, free_before);
	/* The same slot again: the old copy does not release the new answer. */
	assert_int_equal(kvt_match(client, world.ns, keys, 16, KVT_F_LOCK, &result), 0);
	kvt_result_release(client, &copy);
	assert_int_equal(client->n_free, free_before - 1);
	assert_int_equal(kvt_unlock(client, result.lease, KVT_IDLE), 0);
	kvt_result_release(client, &result);
	assert_int_equal(client->n_free, free_before);
}

TEST_WITH(answers_that_are_held_leave_room_to_give_back, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_result held[64];
	uint32_t keys[16], n = 0;
	int rc;

	count_up(keys, 1, 16);
	insert(1, 16);
	while ((rc = kvt_match(client, world.ns, keys, 16, KVT_F_LOCK, &held[n])) == 0)
		n++;
	assert_int_equal(rc, -EAGAIN);
	assert_true(n >= 16);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(kvt_unlock(client, held[i].lease, KVT_IDLE), 0);
	while (n)
		kvt_result_release(client, &held[--n]);
}

/* Submit a request until there is no room; its answers stay unreaped. Returns how many. */
static uint32_t submit_all(struct kvt_request *request)
{
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_result result;
	uint32_t n = 0;
	int rc;

	while ((rc = kvt_submit(world.client, request)) == 0) {
		n++;
		/* Answered, so what is full is not the ring. */
		assert_int_equal(kvt_call(world.client, &nop, &result), 0);
	}
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(world.client->n_flying, 0);
	return n;
}

static void expect_error(const char *part)
{
	const char *text = kvt_client_error(world.client)->text;

	if (!strstr(text, part))
		fail_msg("\"%s\" is not in: %s", part, text);
}

TEST_WITH(answers_to_reap_leave_room_for_a_call_that_waits, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[16], page, n, slots;
	struct kvt_request match = { .op = KVT_OP_MATCH, .namespace_id = world.ns, .keys = keys,
				     .n_keys = 16, .flags = KVT_F_LOCK };
	struct kvt_request unlock = { .op = KVT_OP_UNLOCK, .lease = { 99, 99 } };
	struct kvt_counters counters;
	struct kvt_result result;
	struct kvt_lease lease;

	count_up(keys, 1, 16);
	insert(1, 16);
	n = submit_all(&match);
	/* What only gives something back takes slots that a MATCH must leave. */
	slots = submit_all(&unlock);
	assert_true(n > 4 && slots > 4);
	expect_error("answers to reap");
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(counters.live_leases, n);
	assert_int_equal(kvt_alloc(client, 1, &page), 0);
	assert_int_equal(kvt_free(client, &page, 1, KVT_IDLE), 0);
	/* Late answers are given back, too. */
	inside_pause(&world.inside, true);
	kvt_client_set_timeout(client, 2000000);
	assert_int_equal(kvt_alloc(client, 1, &page), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(counters.private_pages, 0);
	while (n--) {
		assert_int_equal(kvt_reap(client, &result, 1, 1), 1);
		assert_int_equal(result.matched, 16);
		lease = result.lease;
		kvt_result_release(client, &result);
		assert_int_equal(kvt_unlock(client, lease, KVT_IDLE), 0);
	}
	while (slots--)
		assert_int_equal(kvt_reap(client, &result, 1, 1), 1);
}

TEST_WITH(lists_of_answers_to_reap_leave_the_area_to_a_call_that_waits, setup, teardown)
{
	struct kvt_client *client = inside_connect(&world.inside, 8, 64, 256, 64, 20000);
	uint32_t lists[4][30], pages[60], n = 0;
	struct kvt_request alloc = { .op = KVT_OP_ALLOC, .arg = 30 };
	struct kvt_result result;
	int rc;

	while ((rc = kvt_submit(client, &alloc)) == 0)
		n++;
	assert_int_equal(rc, -EAGAIN);
	assert_int_equal(n, 2);
	/* Longer than what is left of the area: the daemon refuses it, for want of pages. */
	assert_int_equal(kvt_alloc(client, 60, pages), -ENOSPC);
	/* The lists are still there when they are reaped, and in order. */
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(kvt_reap(client, &result, 1, 1), 1);
		assert_int_equal(result.n_pages, 30);
		memcpy(lists[i], result.pages, 30 * sizeof(*result.pages));
		for (uint32_t j = 0; j < 30; j++)
			for (uint32_t k = 0; k < 30 * i; k++)
				assert_int_not_equal(lists[i][j], lists[k / 30][k % 30]);
		kvt_result_release(client, &result);
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(kvt_free(client, lists[i], 30, KVT_IDLE), 0);
	assert_int_equal(client->list.n_holes, 1);
	inside_close(&world.inside, client);
}

TEST_WITH(a_call_waits_for_room_that_only_answers_make, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_seq *seqs[8];
	struct kvt_counters counters;
	uint32_t key;

	for (key = 0; key < 8; key++)
		assert_int_equal(kvt_seq_begin(client, world.ns, &key, 1, 0, 0, &seqs[key]), 0);
	inside_pause(&world.inside, true);
	for (key = 0; key < 8; key++)
		assert_int_equal(kvt_seq_end_async(seqs[key], 0, NULL, 0, KVT_IDLE, 0), 0);
	assert_int_equal(kvt_submit(client, &(struct kvt_request){ .op = KVT_OP_NOP }), -EAGAIN);
	expect_error("8 operations without an answer");
	expect_error("try again when one of them has been answered");
	kvt_client_set_timeout(client, 2000000);
	assert_int_equal(kvt_stats(client, &counters), -EAGAIN);
	expect_error("the daemon is stopped or busy");
	kvt_client_set_timeout(client, 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(counters.live_leases, 0);
}

/* ---------------------------------------------------------------- deadlines */

static void expect_nothing_held(void)
{
	struct kvt_counters counters = inside_counters(&world.inside);

	assert_int_equal(counters.private_pages, 0);
	assert_int_equal(counters.live_leases, 0);
	assert_int_equal(counters.protected_pages, 0);
}

/* Let one call pass its deadline, then resume the daemon and settle. */
static void miss_deadline(int expected)
{
	struct kvt_counters counters;

	assert_int_equal(expected, -ETIMEDOUT);
	kvt_client_set_timeout(world.client, 0);
	inside_pause(&world.inside, false);
	do { /* the first call takes the late answer, later ones what was given back */
		assert_int_equal(kvt_stats(world.client, &counters), 0);
	} while (world.client->n_flying);
}

static void pause_and_set_deadline(void)
{
	inside_pause(&world.inside, true);
	kvt_client_set_timeout(world.client, 2000000);
}

TEST_WITH(late_leases_and_pages_are_given_back, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[16], pages[8], n;
	struct kvt_result result;
	struct kvt_handle handle;
	struct kvt_lease lease;
	struct kvt_seq *seq;

	count_up(keys, 1, 16);
	insert(1, 16);
	assert_int_equal(kvt_match(client, world.ns, keys, 16, 0, &result), 0);
	handle = result.handle;
	pause_and_set_deadline();
	miss_deadline(kvt_seq_begin(client, world.ns, keys, 16, 4, 0, &seq));
	pause_and_set_deadline();
	miss_deadline(kvt_alloc(client, 8, pages));
	pause_and_set_deadline();
	miss_deadline(kvt_match(client, world.ns, keys, 16, KVT_F_LOCK, &result));
	pause_and_set_deadline();
	miss_deadline(kvt_match(client, world.ns, keys, 16, 0, &result));
	pause_and_set_deadline();
	miss_deadline(kvt_lock(client, handle, &lease, pages, 8, &n));
	expect_nothing_held();
	assert_int_equal(inside_counters(&world.inside).cached_pages, 4);
}

TEST_WITH(late_inserts_give_back_what_the_tree_did_not_take, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_handle root = { 0, 0, 0 }, nowhere = { 9, 9, 4 };
	struct kvt_result result;
	uint32_t keys[16], pages[4];

	count_up(keys, 1, 16);
	insert(1, 8);
	/* Two duplicates, two new pages, and a lock whose handle the caller never gets. */
	assert_int_equal(kvt_alloc(client, 4, pages), 0);
	pause_and_set_deadline();
	miss_deadline(kvt_insert(client, world.ns, keys, 16, pages, root, KVT_IDLE, KVT_F_LOCK,
				 &result));
	expect_nothing_held();
	assert_int_equal(inside_counters(&world.inside).cached_pages, 4);
	/* One that is refused: all of its pages return. */
	assert_int_equal(kvt_alloc(client, 4, pages), 0);
	pause_and_set_deadline();
	miss_deadline(kvt_insert(client, world.ns, keys, 16, pages, nowhere, KVT_IDLE, 0, &result));
	assert_int_equal(inside_counters(&world.inside).private_pages, 0);
}

TEST_WITH(a_sequence_learns_of_its_late_answers, setup, teardown)
{
	struct kvt_client *client = world.client;
	uint32_t keys[16], n, table[6];
	struct kvt_seq *seq;

	count_up(keys, 1, 16);
	assert_int_equal(kvt_seq_begin(client, world.ns, keys, 16, 0, 0, &seq), 0);
	pause_and_set_deadline();
	assert_int_equal(kvt_seq_extend(seq, 2 * PS), -ETIMEDOUT);
	/* The table is unknown until its answer comes, so nothing may overtake it. */
	assert_int_equal(kvt_seq_commit(seq, 8, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	inside_pause(&world.inside, false);
	assert_int_equal(kvt_seq_commit(seq, 16, NULL, 0, KVT_IDLE, 0), 0);
	kvt_seq_pages(seq, &n);
	assert_int_equal(n, 6);
	memcpy(table, kvt_seq_pages(seq, NULL), sizeof(table));
	for (int i = 0; i < 6; i++)
		for (int j = 0; j < i; j++)
			assert_int_not_equal(table[i], table[j]);
	/* A sequence may end before its answer comes. */
	pause_and_set_deadline();
	assert_int_equal(kvt_seq_extend(seq, 1), -ETIMEDOUT);
	assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ETIMEDOUT);
	miss_deadline(-ETIMEDOUT);
	expect_nothing_held();
}

static long sleeps(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

TEST_WITH(a_client_on_the_daemons_cpu_sleeps_instead_of_spinning_for_ever, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_result result;
	unsigned int cpu = (unsigned int)sched_getcpu();
	cpu_set_t allowed, here;
	long before;

	assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	CPU_ZERO(&here);
	CPU_SET(cpu, &here);
	assert_int_equal(sched_setaffinity(0, sizeof(here), &here), 0);
	client->spin_budget_ns = -1;
	pause_and_set_deadline();
	kvt_store_relaxed(&client->ring.header->daemon_cpu, cpu + 2);
	before = sleeps();
	assert_int_equal(kvt_call(client, &nop, &result), -ETIMEDOUT);
	assert_int_equal(sleeps(), before);
	kvt_store_relaxed(&client->ring.header->daemon_cpu, cpu + 1);
	assert_int_equal(kvt_call(client, &nop, &result), -ETIMEDOUT);
	assert_int_not_equal(sleeps(), before);
	miss_deadline(-ETIMEDOUT);
	assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
}

/* On a busy host a sleep is long because the client waits for a CPU. If it spun less then, it would
 * sleep at each call. */
TEST_WITH(a_client_spins_no_less_after_long_sleeps, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_wait wait;
	uint64_t one = 1;

	client->spin_budget_ns = 16; /* no sleep is as short as four times that */
	pause_and_set_deadline();
	for (int i = 0; i < 3; i++) {
		wait = (struct kvt_wait){ .started = false };
		assert_int_equal(write(client->completion, &one, sizeof(one)), sizeof(one));
		assert_int_equal(kvt_client_wait(client, &wait), -ETIMEDOUT);
		assert_int_equal(wait.spin_until_ns - (wait.deadline_ns - client->timeout_ns), 16);
	}
	miss_deadline(-ETIMEDOUT);
}

TEST_WITH(what_is_to_be_given_back_waits_for_room, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_request nop = { .op = KVT_OP_NOP };
	uint32_t pages[8], submitted = 0, reaped = 0;
	struct kvt_result results[16];
	struct kvt_seq *seq;

	pause_and_set_deadline();
	assert_int_equal(kvt_alloc(client, 8, pages), -ETIMEDOUT);
	assert_int_equal(kvt_seq_begin(client, world.ns, NULL, 0, 8, 0, &seq), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	inside_pause(&world.inside, false);
	while (inside_counters(&world.inside).private_pages < 10)
		;
	/* The answers are there, but no place in the SQ. */
	inside_pause(&world.inside, true);
	while (kvt_ring_sq_space(&client->ring) > 0) {
		struct kvt_sqe sqe = { .op = KVT_OP_NOP };

		kvt_ring_sq_put(&client->ring, &sqe);
		kvt_ring_sq_publish(&client->ring);
		submitted++;
	}
	assert_int_equal(kvt_reap(client, results, 0, 16), 0);
	assert_true(client->undo.first);
	assert_int_equal(kvt_submit(client, &nop), -EAGAIN);
	/* Entries that bypassed the library get answers that bypass it. */
	inside_pause(&world.inside, false);
	while (reaped < submitted) {
		struct kvt_cqe cqe;

		if (kvt_ring_cq_ready(&client->ring)) {
			kvt_ring_cq_take(&client->ring, &cqe);
			assert_int_equal(cqe.user_data, 0);
			reaped++;
		}
	}
	assert_int_equal(kvt_submit(client, &nop), 0);
	assert_int_equal(client->undo.first, 0);
	while (client->n_flying)
		assert_true(kvt_reap(client, results, 1, 16) >= 0);
	expect_nothing_held();
}

/* ---- random calls under random deadlines */

enum { SEQS = 3 };
static uint64_t soak_seed = 1;

static uint32_t soak_random(uint32_t n)
{
	soak_seed = soak_seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(soak_seed >> 33) % n;
}

static bool may_fail(int rc)
{
	return rc == 0 || rc == -ETIMEDOUT || rc == -ENOSPC || rc == -ESTALE || rc == -EAGAIN;
}

/* What was not submitted in time did not happen: repeat without a deadline. */
static void give_back(struct kvt_lease lease, const uint32_t *pages, uint32_t n)
{
	int rc = lease.index ? kvt_unlock(world.client, lease, KVT_IDLE) :
			       kvt_free(world.client, pages, n, KVT_IDLE);

	if (rc == -EAGAIN) {
		kvt_client_set_timeout(world.client, 0);
		give_back(lease, pages, n);
		return;
	}
	assert_true(rc == 0 || rc == -ETIMEDOUT);
}

static void soak_sequence(struct kvt_seq **seq, const uint32_t *keys, uint32_t n_keys)
{
	int rc;

	if (!*seq) {
		rc = kvt_seq_begin(world.client, world.ns, keys, n_keys, soak_random(9), 0, seq);
		assert_true(may_fail(rc));
		if (rc != 0)
			*seq = NULL;
		return;
	}
	switch (soak_random(6)) {
	case 0: /* keys of another sequence: a position beyond them is refused */
		rc = kvt_seq_commit(*seq, soak_random(16), NULL, 0, KVT_IDLE, 0);
		assert_true(may_fail(rc) || rc == -EINVAL);
		break;
	case 1:
		assert_true(may_fail(kvt_seq_extend(*seq, soak_random(3 * PS))));
		break;
	case 2:
		rc = kvt_seq_commit_async(*seq, soak_random(16), NULL, 0, KVT_IDLE, 0);
		assert_true(may_fail(rc) || rc == -EINVAL);
		break;
	case 3:
		rc = soak_random(2) ? kvt_seq_poll(*seq) : kvt_seq_settle(*seq);
		assert_true(may_fail(rc) || rc == -EINVAL || rc > 0);
		break;
	case 4:
		break;
	default:
		rc = kvt_seq_end(*seq, 0, NULL, 0, KVT_IDLE, 0);
		assert_true(may_fail(rc) || rc == -EINVAL); /* of a commit in flight */
		*seq = NULL;
	}
}

static void soak_pages(const uint32_t *keys, uint32_t n_keys)
{
	struct kvt_client *client = world.client;
	uint32_t pages[8], left[8], n_left = 0, n = n_keys / PS;
	struct kvt_result result;
	int rc = kvt_alloc(client, n, pages);

	assert_true(may_fail(rc));
	if (rc != 0)
		return;
	rc = kvt_insert(client, world.ns, keys, n_keys, pages, (struct kvt_handle){ 0, 0, 0 },
			KVT_IDLE, soak_random(2) ? KVT_F_LOCK : 0, &result);
	assert_true(may_fail(rc));
	if (rc == -ETIMEDOUT)
		return; /* lease and pages are the library's now */
	if (rc == 0) {
		for (uint32_t i = 0; i < result.n_twins; i++)
			left[n_left++] = result.twins[2 * i];
		if (result.lease.index)
			give_back(result.lease, NULL, 0);
		kvt_result_release(client, &result);
	} else {
		memcpy(left, pages, n * sizeof(*left));
		n_left = n;
	}
	give_back((struct kvt_lease){ 0, 0 }, left, n_left);
}

static void soak_lock(const uint32_t *keys, uint32_t n_keys)
{
	struct kvt_client *client = world.client;
	struct kvt_result result;
	int rc = kvt_match(client, world.ns, keys, n_keys, KVT_F_LOCK, &result);

	assert_true(may_fail(rc));
	if (rc != 0)
		return;
	kvt_result_release(client, &result);
	give_back(result.lease, NULL, 0);
}

TEST_WITH(random_deadlines_lose_nothing, setup, teardown)
{
	struct kvt_seq *seqs[SEQS] = { NULL };
	struct kvt_counters counters;
	uint32_t keys[32], timeouts = 0;

	for (uint32_t round = 0; round < 4000; round++) {
		uint32_t n_keys = PS * (1 + soak_random(8));
		bool paused = soak_random(8) == 0;

		for (uint32_t i = 0; i < n_keys; i++)
			keys[i] = i % PS ? keys[i - 1] : soak_random(2);
		/* From "hardly ever in time" to "always"; with a stopped daemon, never. */
		kvt_client_set_timeout(world.client,
				       paused || soak_random(4) ? 1 + soak_random(3000) : 0);
		inside_pause(&world.inside, paused);
		switch (soak_random(3)) {
		case 0: soak_pages(keys, n_keys); break;
		case 1: soak_lock(keys, n_keys); break;
		default: soak_sequence(&seqs[soak_random(SEQS)], keys, n_keys); break;
		}
		timeouts += kvt_client_error(world.client)->code == -ETIMEDOUT;
		inside_pause(&world.inside, false);
	}
	kvt_client_set_timeout(world.client, 0);
	for (uint32_t i = 0; i < SEQS; i++) {
		int rc = kvt_seq_end(seqs[i], 0, NULL, 0, KVT_IDLE, 0);

		assert_true(rc == 0 || rc == -EINVAL);
	}
	do {
		assert_int_equal(kvt_stats(world.client, &counters), 0);
	} while (world.client->n_flying || world.client->undo.first || world.client->ending);
	expect_nothing_held();
	assert_int_equal(world.client->n_free, world.client->n_slots - 1);
	assert_int_equal(world.client->keys.n_holes + world.client->list.n_holes, 2);
	assert_true(timeouts > 100);
}

TEST_WITH(a_fence_that_is_not_reached_holds_only_its_own, setup, teardown)
{
	struct kvt_client *client = world.client;
	struct kvt_counters counters;
	uint32_t pages[2];

	assert_int_equal(kvt_alloc(client, 2, pages), 0);
	kvt_client_set_timeout(client, 2000000);
	assert_int_equal(kvt_free(client, pages, 1, (struct kvt_fence){ 2, 10 }), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	assert_int_equal(kvt_stats(client, &counters), 0);
	assert_int_equal(counters.private_pages, 2);
	assert_int_equal(kvt_fence_raise(client, 2, 9), 0);
	assert_int_equal(kvt_fence_raise(client, 2, 3), 0); /* never back */
	assert_int_equal(*kvt_fence_word(client, 2), 9);
	assert_int_equal(kvt_free(client, pages + 1, 1, (struct kvt_fence){ 2, 9 }), 0);
	assert_int_equal(inside_counters(&world.inside).private_pages, 1);
	assert_int_equal(kvt_fence_raise(client, 2, 11), 0);
	do {
		assert_int_equal(kvt_stats(client, &counters), 0);
	} while (counters.private_pages);
	assert_null(kvt_fence_word(client, 16));
	assert_int_equal(kvt_fence_raise(client, 16, 1), -EINVAL);
}

/* A daemon that sleeps: its thread neither runs nor takes doorbells until sleep_end(). */
static int sleep_begin(void)
{
	int doorbell = world.client->doorbell;

	pthread_mutex_lock(&world.inside.lock);
	world.client->doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	kvt_store_relaxed(&world.client->ring.header->sq_need_wakeup, 1);
	return doorbell;
}

static void sleep_end(int doorbell)
{
	close(world.client->doorbell);
	world.client->doorbell = doorbell;
	pthread_mutex_unlock(&world.inside.lock);
	inside_wake(&world.inside);
}

/* How many times, since the last look. */
static uint64_t rang(void)
{
	uint64_t count;

	return read(world.client->doorbell, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

static void check_raise(uint64_t value, bool rings)
{
	assert_int_equal(kvt_fence_raise(world.client, 4, value), 0);
	assert_int_equal(rang() > 0, rings);
}

TEST_WITH(a_fence_wakes_the_daemon_only_for_what_was_submitted, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 4, 5 } };
	struct kvt_result results[3];
	int doorbell;

	doorbell = sleep_begin();
	check_raise(1, false);
	assert_int_equal(kvt_submit(world.client, &request), 0);
	request.fence = (struct kvt_fence){ 3, 9 };
	assert_int_equal(kvt_submit(world.client, &request), 0);
	request.fence = KVT_IDLE;
	assert_int_equal(kvt_submit(world.client, &request), 0);
	check_raise(2, true); /* what the entries rang is read, too */
	check_raise(4, true);
	check_raise(7, true);
	check_raise(7, false);
	check_raise(8, false);
	assert_int_equal(kvt_fence_raise(world.client, 3, 9), 0);
	sleep_end(doorbell);
	assert_int_equal(kvt_reap(world.client, results, 3, 3), 3);
}

TEST_WITH(a_call_behind_a_fence_rings_at_once, setup, teardown)
{
	uint32_t page;
	int doorbell;

	assert_int_equal(kvt_alloc(world.client, 1, &page), 0);
	doorbell = sleep_begin();
	kvt_client_set_timeout(world.client, 1);
	assert_int_equal(kvt_free(world.client, &page, 1, (struct kvt_fence){ 4, 1 }), -ETIMEDOUT);
	assert_int_equal(rang(), 1);
	assert_int_equal(kvt_fence_raise(world.client, 3, 1), 0);
	assert_int_equal(kvt_free(world.client, &page, 1, (struct kvt_fence){ 3, 1 }), -ETIMEDOUT);
	assert_int_equal(rang(), 1); /* a fence that is reached */
	kvt_client_set_timeout(world.client, 0);
	sleep_end(doorbell);
	assert_int_equal(kvt_fence_raise(world.client, 4, 1), 0);
}

TEST_WITH(entries_behind_a_fence_ring_when_there_is_no_room, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 4, 1 } };
	struct kvt_result result;
	int doorbell, n = 0;

	doorbell = sleep_begin();
	while (kvt_submit(world.client, &request) == 0) {
		assert_int_equal(rang(), 0);
		n++;
	}
	assert_int_equal(kvt_client_error(world.client)->code, -EAGAIN);
	assert_true(n > 0);
	assert_true(rang() > 0);
	sleep_end(doorbell);
	assert_int_equal(kvt_fence_raise(world.client, 4, 1), 0);
	for (; n > 0; n--) {
		assert_int_equal(kvt_reap(world.client, &result, 1, 1), 1);
		kvt_result_release(world.client, &result);
	}
}

/* ---------------------------------------------------------------- the end */

/* The daemon is gone: every later call says so. */
static void check_lost(const char *text)
{
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_handle handle;
	struct kvt_result result;
	uint32_t key = 1, matched;

	assert_non_null(strstr(kvt_client_error(world.client)->text, text));
	assert_int_equal(kvt_submit(world.client, &request), -ECONNRESET);
	assert_int_equal(kvt_reap(world.client, &result, 1, 1), -ECONNRESET);
	assert_int_equal(kvt_fence_raise(world.client, 0, 1), -ECONNRESET);
	assert_int_equal(kvt_probe(world.client, world.ns, &key, 1, &handle, &matched),
			 -ECONNRESET);
	assert_int_equal(kvt_client_close(world.client, KVT_IDLE), -ECONNRESET);
	inside_forget(&world.inside, world.client);
	world.client = NULL;
}

TEST_WITH(a_hang_up_wakes_a_sleeping_call, setup, teardown)
{
	uint32_t page;

	inside_pause(&world.inside, true);
	inside_hang_up(&world.inside, world.client);
	errno = 4321;
	assert_int_equal(kvt_alloc(world.client, 1, &page), -ECONNRESET);
	assert_int_equal(errno, 4321); /* the caller's is unchanged */
	check_lost("gone");
}

TEST_WITH(a_spinning_call_notices_too, setup, teardown)
{
	uint32_t page;

	world.client->spin_budget_ns = -1;
	inside_pause(&world.inside, true);
	inside_hang_up(&world.inside, world.client);
	assert_int_equal(kvt_alloc(world.client, 1, &page), -ECONNRESET);
	check_lost("gone");
}

TEST_WITH(a_poller_notices_too, setup, teardown)
{
	struct kvt_result result;
	int rc;

	inside_hang_up(&world.inside, world.client);
	do
		rc = kvt_reap(world.client, &result, 0, 1);
	while (rc == 0);
	assert_int_equal(rc, -ECONNRESET);
	check_lost("gone");
}

TEST_WITH(a_goodbye_tells_why, setup, teardown)
{
	struct kvt_message_refused message = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_GOODBYE,
			  .version = KVT_ABI, .bytes = sizeof(message),
			  .result = -EPROTO },
		.text = "your ring is upside down",
	};
	uint32_t page;

	inside_pause(&world.inside, true);
	assert_int_equal(send(inside_session_of(&world.inside, world.client)->control, &message,
			      sizeof(message), 0), sizeof(message));
	assert_int_equal(kvt_alloc(world.client, 1, &page), -ECONNRESET);
	check_lost("upside down");
}

TEST_WITH(the_gone_word_ends_the_session, setup, teardown)
{
	uint32_t page;

	kvt_store_release(&inside_session_of(&world.inside, world.client)->end.header->gone, 71u);
	assert_int_equal(kvt_alloc(world.client, 1, &page), -ECONNRESET);
	check_lost("ended the session");
}

TEST_WITH(an_arena_that_is_gone_ends_the_probes, setup, teardown)
{
	struct kvt_handle handle;
	uint32_t key = 1, matched;

	pthread_mutex_lock(&world.inside.lock);
	kvt_core_publish(world.inside.core, KVT_ARENA_GONE);
	pthread_mutex_unlock(&world.inside.lock);
	assert_int_equal(kvt_probe(world.client, world.ns, &key, 1, &handle, &matched),
			 -ECONNRESET);
	check_lost("shut down");
}

TEST_WITH(answers_before_the_end_still_count, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_NOP, .user_data = 5 };
	struct kvt_result result;

	assert_int_equal(kvt_submit(world.client, &request), 0);
	while (kvt_client_arm(world.client) == 0)
		kvt_cpu_relax();
	inside_hang_up(&world.inside, world.client);
	assert_int_equal(kvt_reap(world.client, &result, 1, 1), 1);
	assert_int_equal(result.user_data, 5);
	while (kvt_reap(world.client, &result, 0, 1) == 0)
		;
	check_lost("gone");
}

TEST_WITH(answers_to_nothing_end_the_session, setup, teardown)
{
	static const uint64_t wrong[] = { 0, 1, 99999, 0xffffffffffffffffull, 1ull << 32 | 1 };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct kvt_cqe cqe = { .user_data = wrong[i] };
		struct kvt_result result;
		struct kvt_client *client;

		client = inside_connect(&world.inside, 0, 0, 0, 0, 1000);
		pthread_mutex_lock(&world.inside.lock);
		inside_answer(inside_session_of(&world.inside, client), &cqe);
		pthread_mutex_unlock(&world.inside.lock);
		assert_int_equal(kvt_reap(client, &result, 0, 1), -EPROTO);
		assert_int_equal(kvt_submit(client, &(struct kvt_request){ .op = KVT_OP_NOP }),
				 -EPROTO);
		kvt_client_abandon(client);
		inside_forget(&world.inside, client);
	}
}

TEST_WITH(an_answer_longer_than_its_list_ends_the_session, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_ALLOC, .arg = 2 };
	struct kvt_cqe cqe = { .n_list = 1000 };
	struct kvt_result result;

	inside_pause(&world.inside, true);
	assert_int_equal(kvt_submit(world.client, &request), 0);
	cqe.user_data = world.client->ring.sq[0].user_data;
	inside_answer(inside_session_of(&world.inside, world.client), &cqe);
	assert_int_equal(kvt_reap(world.client, &result, 1, 1), -EPROTO);
	kvt_client_abandon(world.client);
	inside_forget(&world.inside, world.client);
	world.client = NULL;
}

TEST_WITH(a_callers_own_loop_is_woken, setup, teardown)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 1, 1 } };
	struct pollfd fds[2] = {
		{ .fd = kvt_client_completion_fd(world.client), .events = POLLIN },
		{ .fd = kvt_client_control_fd(world.client), .events = POLLIN },
	};
	struct kvt_result result;

	for (uint64_t round = 1; round <= 20; round++) {
		request.fence.value = round;
		errno = 4321;
		assert_int_equal(kvt_submit(world.client, &request), 0);
		assert_int_equal(kvt_client_arm(world.client), 0);
		assert_int_equal(kvt_fence_raise(world.client, 1, round), 0);
		assert_int_equal(poll(fds, 2, -1), 1);
		assert_int_equal(fds[0].revents, POLLIN);
		assert_int_equal(kvt_reap(world.client, &result, 0, 1), 1);
		assert_int_equal(errno, 4321);
		/* Reaping emptied it and withdrew the wake-up request. */
		assert_int_equal(poll(fds, 2, 0), 0);
	}
	/* The other descriptor wakes it too; the first reap then gives the cause. */
	assert_int_equal(kvt_client_arm(world.client), 0);
	inside_hang_up(&world.inside, world.client);
	assert_int_equal(poll(fds, 2, -1), 1);
	assert_true(fds[1].revents & POLLHUP);
	assert_int_equal(kvt_reap(world.client, &result, 0, 1), -ECONNRESET);
	check_lost("gone");
}

static int in_child(void)
{
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_handle handle;
	struct kvt_result result;
	uint32_t key = 1, matched;
	struct kvt_seq *seq;
	struct kvt_pool pool;

	return kvt_submit(world.client, &request) == -ECHILD &&
	       kvt_call(world.client, &request, &result) == -ECHILD &&
	       kvt_reap(world.client, &result, 0, 1) == -ECHILD &&
	       kvt_probe(world.client, world.ns, &key, 1, &handle, &matched) == -ECHILD &&
	       kvt_seq_begin(world.client, world.ns, &key, 1, 0, 0, &seq) == -ECHILD &&
	       kvt_fence_raise(world.client, 0, 1) == -ECHILD &&
	       kvt_fence_word(world.client, 0) == NULL &&
	       kvt_pool_map(world.client, &pool) == -ECHILD &&
	       kvt_client_arm(world.client) == -ECHILD &&
	       strstr(kvt_client_error(world.client)->text, "connect in this one") &&
	       kvt_client_close(world.client, KVT_IDLE) == -ECHILD;
}

/* Emulators accept the advice and do nothing. */
static bool kernel_wipes_on_fork(void)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	int *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t pid;

	assert_true(page != MAP_FAILED);
	*page = 1;
	if (madvise(page, bytes, MADV_WIPEONFORK) != 0)
		return false;
	pid = fork();
	if (pid == 0)
		_exit(*page);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	munmap(page, bytes);
	return status == 0;
}

static void fork_and_try(void)
{
	uint32_t page;
	int status;
	pid_t pid;

	/* A child does not inherit a real client's mappings; here it would. */
	pid = fork();
	if (pid == 0)
		_exit(in_child() ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kvt_alloc(world.client, 1, &page), 0);
	assert_int_equal(kvt_free(world.client, &page, 1, KVT_IDLE), 0);
}

TEST_WITH(a_forked_child_is_refused_and_harmless, setup, teardown)
{
	if (kernel_wipes_on_fork())
		fork_and_try();
	/* Without kernel support, each call asks for its pid. */
	world.client->ask_pid = true;
	fork_and_try();
}

TEST_WITH(clients_of_one_process_share_prefixes, setup, teardown)
{
	struct kvt_client *other = inside_connect(&world.inside, 0, 0, 0, 0, 20000);
	uint32_t keys[16], ns = inside_namespace(&world.inside, other, 1), matched;
	struct kvt_handle handle;
	struct kvt_result result;

	count_up(keys, 1, 16);
	insert(1, 16);
	assert_int_equal(ns, world.ns);
	assert_int_equal(kvt_match(other, ns, keys, 16, KVT_F_LOCK, &result), 0);
	assert_int_equal(result.matched, 16);
	kvt_result_release(other, &result);
	assert_int_equal(kvt_probe(other, ns, keys, 16, &handle, &matched), 0);
	assert_int_equal(matched, 16);
	/* Dropped without CLOSE: its lock is freed when its end is seen. */
	kvt_client_abandon(other);
	inside_forget(&world.inside, other);
}
