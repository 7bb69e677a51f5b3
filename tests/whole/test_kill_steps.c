/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 at every protocol step of every operation: nothing is lost, other clients continue.
 *
 * The victim runs one scenario that uses all operations, over a library whose steps call a hook. A
 * first run counts the steps. Then it runs once per step, stops itself there and is killed. A
 * survivor holds a sequence with content throughout and serves the same prefix after each kill.
 *
 * Invariant: after each kill the audit is clean and the survivor's pages have their content. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/state.h"
#include "libclient/steps.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define PAGE 16u
#define PROMPT 200u
#define TOTAL 4095u

enum { WORD_STEP = 1000, WORD_SESSION = 1000000, WORD_DONE = 3 };

struct victim {
	uint32_t stop_at; /* number of the step at which it stops, from 1; 0: none */
	uint32_t kind;    /* or the first step of this kind, from 1 */
	bool reset;       /* with RESET, which affects the survivor's sequence */
};

struct steps {
	const struct victim *victim;
	uint32_t passed;
	uint8_t seen[KVT_STEP_COUNT];
	int pipe;
};

static void at_step(struct kvt_client *client, unsigned int step, void *context)
{
	struct steps *steps = context;

	steps->seen[step] = 1;
	steps->passed += step != KVT_STEP_BEFORE_SLEEP; /* not the same number each time */
	if (step + 1 != steps->victim->kind &&
	    (step == KVT_STEP_BEFORE_SLEEP || steps->passed != steps->victim->stop_at))
		return;
	kvt_test_send(steps->pipe, WORD_STEP + step);
	for (;;)
		pause();
}

/* Keys that no other victim uses. */
static uint32_t own_seed(uint32_t which)
{
	return (uint32_t)getpid() * 4 + 1000 + which;
}

static void fill_pages(struct kvt_seq *seq, const struct kvt_pool *pool, const uint32_t *keys,
		       uint32_t from, uint32_t to)
{
	uint32_t n;
	const uint32_t *pages = kvt_seq_pages(seq, &n);

	for (uint32_t i = from; i < to; i++)
		kvt_test_page_fill(pool, PAGE, pages[i], 's', keys, i);
}

/* Submit without waiting, let the fence be reached, then take the answer. */
static void deferred(struct kvt_client *client, struct kvt_request request, uint64_t value)
{
	struct kvt_result result;

	request.fence = (struct kvt_fence){ 3, value };
	kvt_test_equal(kvt_submit(client, &request), 0);
	kvt_test_equal(kvt_fence_raise(client, 3, value), 0);
	kvt_test_equal(kvt_reap(client, &result, 1, 1), 1);
	kvt_test_equal(result.error, 0);
	kvt_result_release(client, &result);
}

static void victim_sequences(struct kvt_client *client, const struct kvt_pool *pool, uint32_t ns)
{
	uint32_t keys[PROMPT + 64];
	struct kvt_seq *seq;

	kvt_test_keys(keys, PROMPT + 64, 1);
	kvt_test_equal(kvt_seq_begin(client, ns, keys, PROMPT, 16, 0, &seq), 0);
	fill_pages(seq, pool, keys, kvt_seq_next(seq) / PAGE, PROMPT / PAGE);
	kvt_test_equal(kvt_seq_commit(seq, PROMPT, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_test_equal(kvt_seq_extend(seq, 4 * PAGE), 0);
	fill_pages(seq, pool, keys, PROMPT / PAGE, (PROMPT + 40) / PAGE);
	kvt_test_equal(kvt_seq_commit(seq, PROMPT + 40, keys + PROMPT, 40, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	/* The same keys again, in commits in flight: what they displace is kept. */
	kvt_test_equal(kvt_seq_begin(client, ns, keys, PROMPT, 16, KVT_F_FORCE_MISS, &seq), 0);
	fill_pages(seq, pool, keys, 0, PROMPT / PAGE);
	for (uint32_t end = 64; end < PROMPT; end += 64)
		kvt_test_equal(kvt_seq_commit_async(seq, end, NULL, 0, (struct kvt_fence){ 6, end },
						    KVT_F_CHUNKED), 0);
	kvt_test_check(kvt_seq_poll(seq) >= 0);
	kvt_test_equal(kvt_fence_raise(client, 6, PROMPT), 0);
	kvt_test_equal(kvt_seq_settle(seq), 0);
	kvt_test_equal(kvt_seq_commit_async(seq, PROMPT, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	/* Keys of its own, half done, ended behind a fence. */
	kvt_test_keys(keys, PROMPT, own_seed(0));
	kvt_test_equal(kvt_seq_begin(client, ns, keys, PROMPT, 0, 0, &seq), 0);
	fill_pages(seq, pool, keys, 0, 4);
	kvt_test_equal(kvt_seq_commit(seq, 64, NULL, 0, KVT_IDLE, KVT_F_KEEP), 0);
	deferred(client, (struct kvt_request){ .op = KVT_OP_END, .lease = seq->lease }, 1);
}

static void victim_pages(struct kvt_client *client, const struct kvt_pool *pool, uint32_t ns)
{
	uint32_t keys[64], pages[8], locked[8], n, ignored;
	struct kvt_result result;
	struct kvt_handle handle;
	struct kvt_lease lease;

	kvt_test_keys(keys, 64, own_seed(1));
	kvt_test_equal(kvt_alloc(client, 8, pages), 0);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_page_fill(pool, PAGE, pages[i], 's', keys, i);
	kvt_test_equal(kvt_insert(client, ns, keys, 64, pages, (struct kvt_handle){ 0, 0, 0 },
				  KVT_IDLE, 0, &result), 0);
	kvt_test_equal(result.inserted, 4);
	handle = result.handle;
	kvt_result_release(client, &result);
	kvt_test_equal(kvt_free(client, pages + 4, 4, KVT_IDLE), 0);
	kvt_test_equal(kvt_match(client, ns, keys, 64, 0, &result), 0);
	kvt_test_equal(result.matched, 64);
	kvt_result_release(client, &result);
	kvt_test_equal(kvt_lock(client, handle, &lease, locked, 8, &n), 0);
	kvt_test_equal(n, 4);
	deferred(client, (struct kvt_request){ .op = KVT_OP_UNLOCK, .lease = lease }, 2);
	kvt_test_equal(kvt_remove(client, ns, keys, 48), 0);
	kvt_test_equal(kvt_evict(client, 1, &ignored), 0);
}

/* The answer to a locking INSERT comes after the caller's deadline: the library unlocks it. */
static void victim_late_answer(struct kvt_client *client, uint32_t ns)
{
	uint32_t keys[16], page;
	struct kvt_request request = { .op = KVT_OP_INSERT, .flags = KVT_F_LOCK,
				       .namespace_id = ns, .keys = keys, .n_keys = 16,
				       .pages = &page, .n_pages = 1, .fence = { 4, 1 } };
	struct kvt_result result;
	struct kvt_counters counters;

	kvt_test_keys(keys, 16, own_seed(2));
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_client_set_timeout(client, 1000);
	kvt_test_equal(kvt_call(client, &request, &result), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	kvt_test_equal(kvt_fence_raise(client, 4, 1), 0);
	do /* each call takes late answers in */
		kvt_test_equal(kvt_stats(client, &counters), 0);
	while (counters.protected_pages > 0 && counters.live_leases > 1);
}

static void victim_rest(struct kvt_client *client, const struct victim *victim)
{
	static const uint32_t ops[] = { KVT_OP_NOP, KVT_OP_PAGE, KVT_OP_AUDIT };
	struct kvt_counters counters;

	for (unsigned int i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		struct kvt_request request = { .op = ops[i], .fence = KVT_IDLE };
		struct kvt_result result;

		kvt_test_equal(kvt_call(client, &request, &result), 0);
		kvt_result_release(client, &result);
	}
	kvt_test_equal(kvt_stats(client, &counters), 0);
	if (victim->reset)
		kvt_test_equal(kvt_reset(client), 0);
}

static void victim_run(int pipe, void *context)
{
	struct steps steps = { .victim = context, .pipe = pipe };
	struct kvt_client *client;
	struct kvt_pool pool;
	uint32_t ns;

	kvt_test_check(kvt_client_step_hook(at_step, &steps));
	client = kvt_test_connect(&daemon_);
	kvt_test_send(pipe, WORD_SESSION + kvt_client_info(client)->session);
	ns = kvt_test_namespace(client, "steps");
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	victim_sequences(client, &pool, ns);
	victim_pages(client, &pool, ns);
	victim_late_answer(client, ns);
	victim_rest(client, context);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_send(pipe, WORD_DONE);
	kvt_test_send(pipe, steps.passed);
	for (unsigned int i = 0; i < KVT_STEP_COUNT; i++)
		kvt_test_send(pipe, steps.seen[i]);
}

/* ---------------------------------------------------------------- the survivor */

struct survivor {
	struct kvt_client *client;
	struct kvt_pool pool;
	struct kvt_seq *seq; /* held throughout, private pages with content */
	uint32_t namespace_id;
	uint32_t held[3 * PAGE];
};

static void survivor_start(struct survivor *survivor)
{
	survivor->client = kvt_test_connect(&daemon_);
	survivor->namespace_id = kvt_test_namespace(survivor->client, "steps");
	kvt_test_equal(kvt_pool_map(survivor->client, &survivor->pool), 0);
	kvt_test_keys(survivor->held, 3 * PAGE, 77);
	kvt_test_equal(kvt_seq_begin(survivor->client, survivor->namespace_id, survivor->held,
				     3 * PAGE, 0, 0, &survivor->seq), 0);
	fill_pages(survivor->seq, &survivor->pool, survivor->held, 0, 3);
}

static void check_pages(struct survivor *survivor, struct kvt_seq *seq, const uint32_t *keys,
			uint32_t n)
{
	uint32_t count;
	const uint32_t *pages = kvt_seq_pages(seq, &count);

	kvt_test_check(count >= n);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_check(kvt_test_page_right(&survivor->pool, PAGE, pages[i], 's', keys, i));
}

static void survivor_serve(struct survivor *survivor)
{
	uint32_t keys[PROMPT];
	struct kvt_seq *seq;

	kvt_test_keys(keys, PROMPT, 1);
	kvt_test_equal(kvt_seq_begin(survivor->client, survivor->namespace_id, keys, PROMPT, 0, 0,
				     &seq), 0);
	check_pages(survivor, seq, keys, kvt_seq_reusable(seq) / PAGE);
	fill_pages(seq, &survivor->pool, keys, kvt_seq_reusable(seq) / PAGE, PROMPT / PAGE);
	kvt_test_equal(kvt_seq_commit(seq, PROMPT, NULL, 0, KVT_IDLE, 0), 0);
	check_pages(survivor, seq, keys, PROMPT / PAGE);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	check_pages(survivor, survivor->seq, survivor->held, 3);
}

static void survivor_end(struct survivor *survivor, bool reset)
{
	int error = kvt_seq_end(survivor->seq, 3 * PAGE, NULL, 0, KVT_IDLE, 0);

	kvt_test_check(error == (reset ? -ESTALE : 0)); /* ended either way */
	kvt_test_equal(kvt_client_close(survivor->client, KVT_IDLE), 0);
}

/* ---------------------------------------------------------------- the tests */

/* A session is over at its first sign of death; its pages are free after the second. */
static struct kvt_counters wait_for_sessions(uint64_t n)
{
	struct kvt_counters counters;

	kvt_test_until(&daemon_, counters,
		       counters.live_sessions == n && counters.quarantined_pages == 0);
	return counters;
}

static uint32_t count_steps(struct victim victim, uint8_t *ret_seen)
{
	struct kvt_test_child child;
	uint64_t word, passed, seen;

	kvt_test_child_start(&child, victim_run, &victim);
	kvt_test_check(kvt_test_receive(child.pipe, &word) && word > WORD_SESSION);
	kvt_test_expect(child.pipe, WORD_DONE);
	kvt_test_check(kvt_test_receive(child.pipe, &passed));
	for (unsigned int i = 0; i < KVT_STEP_COUNT; i++) {
		kvt_test_check(kvt_test_receive(child.pipe, &seen));
		ret_seen[i] |= (uint8_t)seen;
	}
	kvt_test_child_finish(&child);
	return (uint32_t)passed;
}

/* Returns false if the victim finished without reaching that step: it was the last. */
static bool kill_at(struct victim victim, uint8_t *ret_killed)
{
	struct kvt_test_child child;
	uint64_t word = 0;
	bool stopped = false, alive = true;

	kvt_test_child_start(&child, victim_run, &victim);
	while (alive && !stopped && (alive = kvt_test_receive(child.pipe, &word))) {
		if (word >= WORD_STEP && word < WORD_SESSION) {
			stopped = true;
			ret_killed[word - WORD_STEP] = 1;
		} else if (word == WORD_DONE) {
			break;
		}
	}
	kvt_test_check(alive);
	kvt_test_child_kill(&child, SIGKILL);
	return stopped;
}

static void check_after_kill(struct survivor *survivor)
{
	struct kvt_counters counters = wait_for_sessions(1);

	kvt_test_equal(counters.private_pages, 3);
	kvt_test_equal(counters.free_pages + counters.cached_pages + 3, TOTAL);
	kvt_test_equal(counters.live_leases, 1);
	kvt_test_audit(&daemon_);
	survivor_serve(survivor);
}

static void kill_everywhere(bool reset)
{
	uint8_t seen[KVT_STEP_COUNT] = { 0 }, killed[KVT_STEP_COUNT] = { 0 };
	struct survivor survivor;
	uint32_t steps, kills = 0;
	bool stopped = true;

	kvt_test_daemon_begin(&daemon_, NULL);
	steps = count_steps((struct victim){ .reset = reset }, seen);
	survivor_start(&survivor);
	survivor_serve(&survivor);
	for (uint32_t at = reset ? steps * 9 / 10 : 1; stopped; at++) {
		stopped = kill_at((struct victim){ .stop_at = at, .reset = reset }, killed);
		check_after_kill(&survivor);
		kills += stopped;
	}
	print_message("killed at %u steps\n", kills);
	/* Where a late answer shifted the numbers, or for steps that have none. */
	for (uint32_t kind = 1; !reset && kind <= KVT_STEP_COUNT; kind++)
		if (!killed[kind - 1]) {
			kill_at((struct victim){ .kind = kind }, killed);
			check_after_kill(&survivor);
		}
	survivor_end(&survivor, reset);
	for (unsigned int i = 0; !reset && i < KVT_STEP_COUNT; i++)
		if (!killed[i] && i != KVT_STEP_AFTER_RESET)
			kvt_test_fail("no process was killed at step %s (%s)",
				      kvt_client_step_name(i), seen[i] ? "passed" : "never passed");
	kvt_test_equal(wait_for_sessions(0).private_pages, 0);
	kvt_test_daemon_end(&daemon_);
}

TEST(a_process_killed_at_any_protocol_step_loses_no_page)
{
	kill_everywhere(false);
}

TEST(nor_one_that_is_killed_around_a_reset)
{
	kill_everywhere(true);
}
