/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon dies under clients that wait in every possible way: each wait returns -ECONNRESET, and
 * so does every later call.
 *
 * Inputs: the step or call in which a client is when the daemon is killed. Invariant: each call
 * returns. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "libclient/state.h"
#include "libclient/steps.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

struct waiter {
	const char *name;
	int64_t spin_budget_ns;
	void (*wait)(struct kvt_client *client, uint32_t namespace_id);
	bool sleeps;  /* reaches the step before-sleep */
	bool observer;
	bool when_stopped; /* calls while the daemon is stopped: no answer can come */
};

static int waiter_pipe = -1;
static bool told = true;
static bool tell; /* wait for the step just before sleeping, after the word that it will wait */

/* The step just before a blocking call sleeps. */
static void at_step(struct kvt_client *client, unsigned int step, void *context)
{
	if (step == KVT_STEP_BEFORE_SLEEP && !told) {
		told = true;
		kvt_test_send(waiter_pipe, 2);
	}
}

static void going_to_wait(void)
{
	kvt_test_send(waiter_pipe, 1);
	told = !tell;
}

static void wait_in_call(struct kvt_client *client, uint32_t namespace_id)
{
	struct kvt_counters counters;

	going_to_wait();
	kvt_test_expect(waiter_pipe, 9);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
}

static void wait_for_a_fence(struct kvt_client *client, uint32_t namespace_id)
{
	uint32_t page;

	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	going_to_wait();
	kvt_test_equal(kvt_free(client, &page, 1, (struct kvt_fence){ 0, 1 }), -ECONNRESET);
}

static void wait_in_reap(struct kvt_client *client, uint32_t namespace_id)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 0, 1 } };
	struct kvt_result result;

	kvt_test_equal(kvt_submit(client, &request), 0);
	going_to_wait();
	kvt_test_equal(kvt_reap(client, &result, 1, 1), -ECONNRESET);
}

static void wait_in_the_callers_own_loop(struct kvt_client *client, uint32_t namespace_id)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 0, 1 } };
	struct kvt_result result;
	struct pollfd fds[2] = { { .fd = kvt_client_completion_fd(client), .events = POLLIN },
				 { .fd = kvt_client_control_fd(client), .events = POLLIN } };

	kvt_test_equal(kvt_submit(client, &request), 0);
	kvt_test_equal(kvt_client_arm(client), 0);
	going_to_wait();
	do /* the completion descriptor may hang up first */
		kvt_test_check(poll(fds, 2, -1) > 0);
	while (fds[1].revents == 0);
	kvt_test_equal(kvt_reap(client, &result, 0, 1), -ECONNRESET);
}

static void wait_for_a_namespace(struct kvt_client *client, uint32_t namespace_id)
{
	const uint64_t digest[2] = { 17, 18 };
	uint32_t number;

	going_to_wait();
	kvt_test_expect(waiter_pipe, 9);
	kvt_test_equal(kvt_namespace_open(client, digest, "late", &number), -ECONNRESET);
}

static void wait_for_an_admin_answer(struct kvt_client *client, uint32_t namespace_id)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;

	going_to_wait();
	kvt_test_expect(waiter_pipe, 9);
	kvt_test_equal(kvt_admin(client, &request, NULL, 0, &status, sizeof(status)), -ECONNRESET);
}

static void wait_in_a_sequence(struct kvt_client *client, uint32_t namespace_id)
{
	const uint32_t keys[32] = { 1, 2, 3 };
	struct kvt_seq *seq;

	kvt_test_equal(kvt_seq_begin(client, namespace_id, keys, 32, 0, 0, &seq), 0);
	going_to_wait();
	kvt_test_equal(kvt_seq_commit(seq, 32, NULL, 0, (struct kvt_fence){ 1, 5 }, 0),
		       -ECONNRESET);
	kvt_test_equal(kvt_seq_extend(seq, 1), -ECONNRESET);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ECONNRESET);
}

static void wait_in_close(struct kvt_client *client, uint32_t namespace_id)
{
	going_to_wait();
	kvt_test_equal(kvt_client_close(client, (struct kvt_fence){ 2, 1 }), -ECONNRESET);
}

static const struct waiter waiters[] = {
	{ .name = "call", .wait = wait_in_call, .when_stopped = true },
	{ .name = "call, spinning", .spin_budget_ns = -1, .wait = wait_in_call,
	  .when_stopped = true },
	{ .name = "fence", .wait = wait_for_a_fence, .sleeps = true },
	{ .name = "fence, spinning", .spin_budget_ns = -1, .wait = wait_for_a_fence },
	{ .name = "reap", .wait = wait_in_reap, .sleeps = true },
	{ .name = "reap, spinning", .spin_budget_ns = -1, .wait = wait_in_reap },
	{ .name = "own loop", .wait = wait_in_the_callers_own_loop },
	{ .name = "namespace", .wait = wait_for_a_namespace, .when_stopped = true },
	{ .name = "admin", .wait = wait_for_an_admin_answer, .when_stopped = true },
	{ .name = "admin, observer", .wait = wait_for_an_admin_answer, .observer = true,
	  .when_stopped = true },
	{ .name = "sequence", .wait = wait_in_a_sequence, .sleeps = true },
	{ .name = "close", .wait = wait_in_close, .sleeps = true },
};
#define N_WAITERS (sizeof(waiters) / sizeof(waiters[0]))

static void waiter_run(int pipe, void *context)
{
	const struct waiter *waiter = context;
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_counters counters;
	struct kvt_client *client;
	uint32_t namespace_id;

	waiter_pipe = pipe;
	options.socket_path = daemon_.socket;
	options.flags = waiter->observer ? KVT_HELLO_OBSERVE : 0;
	options.spin_budget_ns = waiter->spin_budget_ns ? waiter->spin_budget_ns : 1;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	namespace_id = waiter->observer ? 0 : kvt_test_namespace(client, "death");
	kvt_test_check(kvt_client_step_hook(at_step, NULL));
	tell = waiter->sleeps;
	waiter->wait(client, namespace_id);
	if (waiter->wait != wait_in_close) {
		kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
		kvt_test_check(kvt_client_error(client)->text[0]);
		kvt_client_close(client, KVT_IDLE);
	}
	kvt_test_send(pipe, 3);
}

static void start_waiters(struct kvt_test_child *children)
{
	for (size_t i = 0; i < N_WAITERS; i++) {
		kvt_test_child_start(&children[i], waiter_run, (void *)(uintptr_t)&waiters[i]);
		kvt_test_expect(children[i].pipe, 1);
		if (!waiters[i].sleeps)
			continue;
		kvt_test_expect(children[i].pipe, 2);
		while (kvt_test_process_state(children[i].pid) != 'S')
			sched_yield();
	}
}

static void finish_waiters(struct kvt_test_child *children)
{
	for (size_t i = 0; i < N_WAITERS; i++) {
		uint64_t word = 0;

		if (!kvt_test_receive(children[i].pipe, &word) || word != 3)
			kvt_test_fail("the waiter in '%s' did not come back", waiters[i].name);
		kvt_test_child_finish(&children[i]);
	}
}

TEST(every_waiter_returns_econnreset_when_the_daemon_is_killed)
{
	struct kvt_test_child children[N_WAITERS];

	kvt_test_daemon_begin(&daemon_, NULL);
	start_waiters(children);
	kvt_test_freeze(daemon_.pid);
	for (size_t i = 0; i < N_WAITERS; i++)
		if (waiters[i].when_stopped)
			kvt_test_send(children[i].pipe, 9);
	kill(daemon_.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon_);
	finish_waiters(children);
	/* The next daemon removes what the dead one left. */
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_daemon_end(&daemon_);
}

static void connecting_run(int pipe, void *context)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { .code = 0 };
	struct kvt_client *client;

	waiter_pipe = pipe;
	options.socket_path = daemon_.socket;
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_client_connect(&client, &options, &error), -ECONNRESET);
	kvt_test_check(error.text[0]);
	kvt_test_send(pipe, 3);
}

static void connecting_at_step(struct kvt_client *client, unsigned int step, void *context)
{
	if (step == KVT_STEP_HELLO_SENT)
		kvt_test_send(waiter_pipe, 2);
}

static void hello_run(int pipe, void *context)
{
	kvt_test_check(kvt_client_step_hook(connecting_at_step, NULL));
	connecting_run(pipe, context);
}

TEST(a_client_that_waits_for_its_welcome_is_told_too)
{
	struct kvt_test_child child;

	kvt_test_daemon_begin(&daemon_, NULL);
	kvt_test_freeze(daemon_.pid);
	kvt_test_child_start(&child, hello_run, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_expect(child.pipe, 2);
	kill(daemon_.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon_);
	kvt_test_expect(child.pipe, 3);
	kvt_test_child_finish(&child);
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_daemon_end(&daemon_);
}

TEST(a_deadline_passes_although_the_daemon_hangs)
{
	struct kvt_client *client;
	struct kvt_counters counters;

	kvt_test_daemon_begin(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_freeze(daemon_.pid);
	kvt_client_set_timeout(client, 2000000);
	kvt_test_equal(kvt_stats(client, &counters), -ETIMEDOUT);
	kill(daemon_.pid, SIGCONT);
	kvt_client_set_timeout(client, 0);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_daemon_end(&daemon_);
}
