/* SPDX-License-Identifier: Apache-2.0 */
/* Many processes ask for the same prompt at the same moment. One computes it and the others wait,
 * also if it is killed or stopped at any chunk. Each process reports the positions that it computed
 * and checks the pages that it reuses; the oracle replays the operation log.
 *
 * Invariant: positions computed and reused add up, and no reused page has wrong content. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "kvtrunk_wire.h"
#include "libclient/state.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define PAGE 16u
#define PROMPT 4096u /* positions shared by all */
#define TAIL 40u     /* further positions of each one's own */
#define CHUNK 512u
#define MOST 32
#define HOUR_NS 3600000000000ll /* no deadline passes, however slow the machine is */

static struct kvt_test_child children[MOST];
static uint64_t kill_seed;

struct worker {
	uint32_t number;
	int64_t begin_wait_ns;
};

static void prompt_keys(const struct worker *worker, uint32_t *keys)
{
	for (uint32_t i = 0; i < PROMPT; i++)
		keys[i] = i * 7919u & 0x7fffffffu;
	for (uint32_t i = 0; i < TAIL; i++)
		keys[PROMPT + i] = 1000u * (worker->number + 1) + i;
}

static void check_pages(const struct kvt_pool *pool, const struct kvt_seq *seq,
			const uint32_t *keys, uint32_t from, uint32_t to)
{
	const uint32_t *pages = kvt_seq_pages(seq, NULL);

	for (uint32_t i = from / PAGE; i < to / PAGE; i++)
		kvt_test_check(kvt_test_page_right(pool, PAGE, pages[i], 'c', keys, i));
}

/* Compute one chunk. Returns its positions. */
static uint32_t compute(const struct kvt_pool *pool, struct kvt_seq *seq, const uint32_t *keys,
			uint32_t n)
{
	uint32_t at = kvt_seq_next(seq), end = at + CHUNK < n ? at + CHUNK : n;
	const uint32_t *pages = kvt_seq_pages(seq, NULL);

	for (uint32_t i = at / PAGE; i < end / PAGE; i++)
		kvt_test_page_fill(pool, PAGE, pages[i], 'c', keys, i);
	kvt_test_equal(kvt_seq_commit(seq, end, NULL, 0, KVT_IDLE, end < n ? KVT_F_CHUNKED : 0),
		       0);
	check_pages(pool, seq, keys, end, kvt_seq_next(seq));
	return end - at;
}

/* Report the reusable positions. Then compute as many chunks as told and report their positions,
 * until done. */
static void worker_run(int pipe, void *context)
{
	const struct worker *worker = context;
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t ns = kvt_test_namespace(client, "burst"), n = PROMPT + TAIL, keys[PROMPT + TAIL];
	struct kvt_pool pool;
	struct kvt_seq *seq;
	uint64_t chunks;

	prompt_keys(worker, keys);
	client->begin_wait_ns = worker->begin_wait_ns;
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 2);
	if (kvt_seq_begin(client, ns, keys, n, 0, 0, &seq) != 0)
		kvt_test_fail("begin: %s", kvt_client_error(client)->text);
	check_pages(&pool, seq, keys, 0, kvt_seq_reusable(seq));
	kvt_test_send(pipe, kvt_seq_reusable(seq));
	while (kvt_test_receive(pipe, &chunks)) {
		uint64_t computed = 0;

		for (; chunks > 0 && kvt_seq_next(seq) < n; chunks--)
			computed += compute(&pool, seq, keys, n);
		if (kvt_seq_next(seq) == n) {
			check_pages(&pool, seq, keys, 0, n);
			kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
			kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
			kvt_test_send(pipe, computed);
			return;
		}
		kvt_test_send(pipe, computed);
	}
}

static void start_workers(uint32_t n, int64_t begin_wait_ns)
{
	for (uint32_t i = 0; i < n; i++) {
		struct worker worker = { .number = i, .begin_wait_ns = begin_wait_ns };

		kvt_test_child_start(&children[i], worker_run, &worker);
	}
	for (uint32_t i = 0; i < n; i++)
		kvt_test_expect(children[i].pipe, 1);
}

static void let_begin(uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		kvt_test_send(children[i].pipe, 2);
}

static struct kvt_counters counters_now(struct kvt_client *observer)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;

	kvt_test_equal(kvt_admin(observer, &request, NULL, 0, &status, sizeof(status)), 1);
	return status.counters;
}

/* Wait until all but the computing process have asked and got no answer. */
static void until_waiting(struct kvt_client *observer, uint64_t waits)
{
	while (counters_now(observer).waits < waits)
		;
}

/* Find the next child that reports for the first time. */
static uint32_t next_word(const bool *quiet, uint32_t n, uint64_t *ret_word)
{
	struct pollfd polls[MOST];

	for (uint32_t i = 0; i < n; i++)
		polls[i] = (struct pollfd){ quiet[i] ? children[i].pipe : -1, POLLIN, 0 };
	kvt_test_check(poll(polls, n, -1) > 0);
	for (uint32_t i = 0; i < n; i++) {
		if (!polls[i].revents)
			continue;
		kvt_test_check(kvt_test_receive(children[i].pipe, ret_word));
		return i;
	}
	kvt_test_fail("no child reports");
}

static uint64_t ask(uint32_t child, uint64_t chunks)
{
	return kvt_test_ask(&children[child], chunks);
}

/* All others have been answered: the prompt is there. Returns what they compute. */
static uint64_t finish_others(bool *quiet, uint32_t n, uint32_t left, uint32_t *finished)
{
	uint64_t computed = 0, reused;

	for (; left > 0; left--) {
		uint32_t child = next_word(quiet, n, &reused);

		quiet[child] = false;
		kvt_test_equal(reused, PROMPT);
		computed += ask(child, UINT64_MAX);
		finished[child] = 1;
	}
	return computed;
}

static void end_burst(struct kvt_client *observer)
{
	struct kvt_counters counters;

	kvt_test_equal(kvt_client_close(observer, KVT_IDLE), 0);
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.private_pages, 0);
	kvt_test_equal(counters.protected_pages, 0);
	kvt_test_equal(counters.live_leases, 0);
	kvt_test_audit(&daemon_);
}

/* `deaths` owners are killed, each at another chunk, before one finishes. */
static void burst(uint32_t n, uint32_t deaths)
{
	struct kvt_client *observer = kvt_test_observe(&daemon_);
	struct kvt_test_random random = { kill_seed++ };
	uint32_t finished[MOST] = { 0 }, dead = 0, at = 0;
	bool quiet[MOST];
	uint64_t computed = 0, reused;

	for (uint32_t i = 0; i < n; i++)
		quiet[i] = true;
	start_workers(n, HOUR_NS);
	let_begin(0, n);
	for (;;) {
		uint32_t owner = next_word(quiet, n, &reused);

		quiet[owner] = false;
		kvt_test_equal(reused, at); /* nothing computed is lost */
		until_waiting(observer, n - 1);
		if (dead == deaths) {
			computed += ask(owner, UINT64_MAX);
			finished[owner] = 1;
			break;
		}
		/* At least one chunk is left to take over. */
		computed += ask(owner, kvt_test_random_below(&random, (PROMPT - at) / CHUNK));
		at = (uint32_t)computed;
		kvt_test_child_kill(&children[owner], SIGKILL);
		dead++;
	}
	computed += finish_others(quiet, n, n - 1 - dead, finished);
	for (uint32_t i = 0; i < n; i++)
		if (finished[i])
			kvt_test_child_finish(&children[i]);
	kvt_test_equal(computed, PROMPT + (n - dead) * TAIL);
	kvt_test_equal(counters_now(observer).takeovers, dead);
	kvt_test_equal(counters_now(observer).waits, n - 1);
	kvt_test_equal(counters_now(observer).deadline_misses, 0);
	printf("%u processes, %u killed while they computed: %llu positions computed, %llu by "
	       "each for itself\n", n, dead, (unsigned long long)computed,
	       (unsigned long long)n * (PROMPT + TAIL));
	end_burst(observer);
}

static int start(void **state)
{
	kvt_test_daemon_begin_logged(&daemon_, *state, false);
	return 0;
}

#define LOGGED_TEST(name, config) TEST_FROM(name, start, kvt_test_end, config)
#define COALESCING "coalesce_threshold = 0\n"

LOGGED_TEST(a_prompt_asked_for_by_2_processes_at_once_is_computed_once, COALESCING)
{
	burst(2, 0);
}

LOGGED_TEST(a_prompt_asked_for_by_8_processes_at_once_is_computed_once, COALESCING)
{
	burst(8, 0);
}

LOGGED_TEST(a_prompt_asked_for_by_32_processes_at_once_is_computed_once, COALESCING)
{
	burst(32, 0);
}

LOGGED_TEST(one_of_2_takes_over_where_the_owner_was_killed, COALESCING)
{
	burst(2, 1);
}

LOGGED_TEST(one_of_8_takes_over_from_each_owner_that_is_killed, COALESCING)
{
	burst(8, 3);
}

LOGGED_TEST(one_of_32_takes_over_from_each_owner_that_is_killed, COALESCING)
{
	burst(32, 5);
}

/* Waiters continue while the owner is stopped, and none waits for it again. They begin after the
 * stop: before it, their deadline could pass on a busy machine. */
LOGGED_TEST(a_stopped_owner_delays_none_beyond_the_deadline, COALESCING)
{
	struct kvt_client *observer = kvt_test_observe(&daemon_);
	const uint32_t n = 8;
	bool quiet[MOST];
	const uint32_t owner = 0;
	uint64_t reused;

	for (uint32_t i = 0; i < n; i++)
		quiet[i] = i != owner;
	start_workers(n, 300000000);
	let_begin(owner, owner + 1);
	kvt_test_expect(children[owner].pipe, 0); /* nothing to reuse */
	kvt_test_equal(ask(owner, 3), 3 * CHUNK);
	kvt_test_freeze(children[owner].pid);
	let_begin(owner + 1, n);
	for (uint32_t left = n - 1; left > 0; left--) {
		uint32_t child = next_word(quiet, n, &reused);

		quiet[child] = false;
		kvt_test_check(reused >= 3 * CHUNK);
		kvt_test_check(ask(child, UINT64_MAX) <= PROMPT + TAIL - 3 * CHUNK);
		kvt_test_child_finish(&children[child]);
	}
	kvt_test_check(counters_now(observer).deadline_misses >= 1);
	kvt_test_equal(kill(children[owner].pid, SIGCONT), 0);
	/* Its next COMMIT takes over what others sealed meanwhile. */
	kvt_test_equal(ask(owner, UINT64_MAX), CHUNK + TAIL);
	kvt_test_child_finish(&children[owner]);
	end_burst(observer);
}

/* Answers of BEGINs with NO_WAIT: refused for now, begun at once, and notices. */
struct answers {
	uint32_t not_now, begun, notices;
};

static void take_answers(struct kvt_client *client, struct answers *answers, int min)
{
	struct kvt_result results[8];
	int n = kvt_reap(client, results, min, 8);

	kvt_test_check(n >= 0);
	for (int i = 0; i < n; i++) {
		const struct kvt_result *result = &results[i];

		kvt_test_equal(result->op, KVT_OP_BEGIN);
		if (result->error == -EAGAIN) {
			kvt_test_equal(result->announced, PROMPT);
			answers->not_now++;
		} else if (result->flags & KVT_CQE_ASYNC) {
			kvt_test_equal(result->error, 0);
			kvt_test_equal(result->state, KVT_NOTICE_SEALED);
			kvt_test_equal(result->lease.index, 0);
			kvt_test_equal(result->matched, PROMPT);
			answers->notices++;
		} else {
			kvt_test_equal(result->error, 0);
			kvt_test_equal(result->flags, KVT_CQE_NO_PLACE);
			answers->begun++;
		}
		kvt_result_release(client, &results[i]);
	}
}

/* One announces the prompts of another one, holds them, and computes nothing. */
LOGGED_TEST(a_squatter_costs_one_short_wait, "coalesce_patience_ms = 20\n")
{
	struct kvt_client *squatter = kvt_test_connect(&daemon_);
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *innocent;
	struct kvt_error error;
	struct kvt_seq *held, *own;
	struct kvt_counters counters;
	uint32_t keys[PAGE * 16];

	options.socket_path = daemon_.socket;
	options.begin_wait_ns = HOUR_NS;
	kvt_test_equal(kvt_client_connect(&innocent, &options, &error), 0);
	for (uint32_t i = 0; i < 20; i++) {
		kvt_test_keys(keys, PAGE * 16, i);
		kvt_test_equal(kvt_seq_begin(squatter, kvt_test_namespace(squatter, "c"), keys,
					     PAGE * 16, 0, 0, &held), 0);
		kvt_test_equal(kvt_seq_begin(innocent, kvt_test_namespace(innocent, "c"), keys,
					     PAGE * 16, 0, 0, &own), 0);
		kvt_test_equal(kvt_seq_end(held, 0, NULL, 0, KVT_IDLE, 0), 0);
		kvt_test_equal(kvt_seq_end(own, 0, NULL, 0, KVT_IDLE, 0), 0);
	}
	counters = kvt_test_settled(&daemon_);
	printf("20 prompts: waited %.1f ms in all\n", (double)counters.wait_ns / 1e6);
	kvt_test_equal(counters.waits, 1);
	kvt_test_equal(counters.takeovers, 1);
	kvt_test_equal(counters.deadline_misses, 1);
	kvt_client_close(squatter, KVT_IDLE);
	kvt_client_close(innocent, KVT_IDLE);
}

/* Each may have two answers, and both have room. A BEGIN without that room begins at once. */
LOGGED_TEST(a_small_completion_queue_holds_both_answers, COALESCING)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct worker worker = { .number = 0 };
	uint32_t keys[PROMPT + TAIL], submitted = 0;
	struct kvt_client *owner = kvt_test_connect(&daemon_), *client;
	struct answers answers = { 0 };
	struct kvt_request request = { .op = KVT_OP_BEGIN, .flags = KVT_F_NO_WAIT, .keys = keys,
				       .n_keys = PROMPT, .ttl_ms = 600000 };
	struct kvt_pool pool;
	struct kvt_seq *seq;

	prompt_keys(&worker, keys);
	options.socket_path = daemon_.socket;
	options.sq_entries = options.cq_entries = 8;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	request.namespace_id = kvt_test_namespace(client, "burst");
	kvt_test_equal(kvt_pool_map(owner, &pool), 0);
	kvt_test_equal(kvt_seq_begin(owner, kvt_test_namespace(owner, "burst"), keys, PROMPT, 0, 0,
				     &seq), 0);
	/* Take no answer before the client itself is full. */
	for (uint32_t round = 0; round < 3; round++) {
		while (kvt_submit(client, &request) == 0)
			submitted++;
		take_answers(client, &answers, 1);
	}
	while (answers.not_now + answers.begun < submitted)
		take_answers(client, &answers, 1);
	kvt_test_check(answers.not_now > 0);
	kvt_test_equal(answers.notices, 0);
	while (kvt_seq_next(seq) < PROMPT)
		compute(&pool, seq, keys, PROMPT);
	while (answers.notices < answers.not_now)
		take_answers(client, &answers, 1);
	kvt_test_equal(answers.notices, answers.not_now);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(owner, KVT_IDLE), 0);
	kvt_test_audit(&daemon_);
}

int main(int argc, char **argv)
{
	kill_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	return kvt_tests_run(1, argv);
}
