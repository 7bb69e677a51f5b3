/* SPDX-License-Identifier: Apache-2.0 */
/* Kill the restarted daemon, or its supervisor, at a system call. While the supervisor lives,
 * clients continue; else they learn it, and the next daemon starts.
 *
 * Inputs: places (stops of trace.h), all or a random choice. Invariant: clients meet no error and
 * one log agrees with the oracle. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/state.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/daemon/restart/trace.h"
#include "tests/daemon/restart/work.h"

#define N_BUSY 2
#define FEW 16
#define BEYOND_READY 100

static struct kvt_test_child busy[N_BUSY];
static struct kvt_test_child comer;

/* ---- the world */

/* Connects and closes in a loop. Each HELLO succeeds: one that a daemon did not answer before it
 * died is repeated. */
static void comer_run(int pipe, void *context)
{
	struct pollfd told = { .fd = pipe, .events = POLLIN };
	bool first = true;

	while (poll(&told, 1, 0) == 0) {
		struct kvt_client *client = kvt_test_connect(&daemon_);
		uint32_t page;

		kvt_test_equal(kvt_alloc(client, 1, &page), 0);
		kvt_client_close(client, KVT_IDLE);
		if (first)
			kvt_test_send(pipe, 1);
		first = false;
	}
}

static void start_work(void)
{
	kvt_test_child_start(&comer, comer_run, NULL);
	kvt_test_expect(comer.pipe, 1);
	for (int i = 0; i < N_BUSY; i++)
		kvt_work_start(&busy[i], &daemon_);
}

/* Nothing was lost: workers met no error, and one log has all their operations. */
static void end_work(void)
{
	kvt_test_send(comer.pipe, 9);
	kvt_test_child_finish(&comer);
	kvt_work_end(busy, N_BUSY, &daemon_);
}

static void cannot_trace(void)
{
	kvt_test_daemon_end(&daemon_);
	kvt_skip("processes cannot be traced here");
}

/* The next daemon starts from any remains, and is empty. */
static void expect_a_fresh_start(void)
{
	daemon_.supervised = false;
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_test_daemon_end(&daemon_);
}

/* ---- the restarted daemon */

static void await_ready(void)
{
	if (!kvt_test_daemon_await(&daemon_, "READY=1"))
		kvt_test_fail("no daemon came back");
}

/* Run from its fork to the n-th place; UINT32_MAX: to the place before it sends READY. Returns the
 * places passed. */
static uint32_t run_start(pid_t pid, uint32_t n)
{
	struct ptrace_syscall_info info;
	bool ready = false;
	uint32_t at = 0;
	int status;

	do {
		if (!kvt_trace_next(pid, &info, &status))
			kvt_test_fail("it ended at place %u with status 0x%x", at, status);
		if (ready) /* READY was sent by now */
			await_ready();
		ready = kvt_trace_says(pid, &info, "READY=1");
	} while (at++ < n && !(ready && n == UINT32_MAX));
	return at;
}

static pid_t next_child(void)
{
	int status;
	pid_t pid = kvt_trace_child(daemon_.pid, &status);

	if (!pid)
		kvt_test_fail("the supervisor ended with status 0x%x", status);
	return pid;
}

/* Restart the daemon. Kill it at place n, and its successor at place m if `m` is set; the next one
 * serves. Returns the places up to READY if n is UINT32_MAX. */
static uint32_t die_at_start(uint32_t n, const uint32_t *m)
{
	uint32_t places;
	pid_t pid;

	kvt_test_equal(kill(daemon_.pid, SIGUSR2), 0);
	pid = next_child();
	places = run_start(pid, n);
	if (n != UINT32_MAX) {
		kvt_trace_kill(pid);
		pid = next_child();
		if (m) {
			run_start(pid, *m);
			kvt_trace_kill(pid);
			pid = next_child();
		}
	}
	kvt_trace_let_go(pid);
	await_ready();
	return places;
}

static void let_go_of_supervisor(void)
{
	kvt_trace_stop(daemon_.pid);
	kvt_trace_let_go(daemon_.pid);
}

/* And some places beyond READY: clients that connect again have arrived by then. */
TEST(a_restarted_daemon_may_die_at_any_system_call)
{
	struct kvt_sweep sweep;
	uint32_t n, m;

	kvt_test_daemon_begin_logged(&daemon_, NULL, true);
	if (!kvt_trace_seize(daemon_.pid, true)) {
		cannot_trace();
		return;
	}
	start_work();
	kvt_sweep_start(&sweep, "the start of a supervised one",
			die_at_start(UINT32_MAX, NULL) + BEYOND_READY, FEW);
	while (kvt_sweep_next(&sweep, &n)) {
		bool twice = n % 3 == 0;

		m = n / 3;
		die_at_start(n, twice ? &m : NULL);
	}
	let_go_of_supervisor();
	end_work();
}

/* ---- the supervisor */

static bool upgrade(void)
{
	return kill(daemon_.pid, SIGUSR2) == 0;
}

static bool crash(void)
{
	return kill(kvt_test_daemon_child(&daemon_), SIGKILL) == 0;
}

static bool (*const triggers[])(void) = { upgrade, crash };

/* Run the supervisor from its daemon's end until the next one is ready; stop it at the n-th place.
 * Returns the places passed. */
static uint32_t run_supervisor(uint32_t n, bool (*trigger)(void))
{
	struct ptrace_syscall_info info;
	uint32_t at = 0;
	int status;

	kvt_test_check(kvt_trace_seize(daemon_.pid, false));
	kvt_trace_stop(daemon_.pid);
	kvt_test_check(trigger());
	do {
		kvt_test_check(kvt_trace_next(daemon_.pid, &info, &status));
	} while (at++ < n && !kvt_trace_says(daemon_.pid, &info, "READY=1"));
	return at;
}

/* Its children end by themselves: in order, or because their supervisor is gone. */
static void reap_all(void)
{
	int status;

	while (waitpid(-1, &status, __WALL) > 0)
		kvt_test_check(WIFEXITED(status) || WTERMSIG(status) == SIGTERM ||
			       WTERMSIG(status) == SIGKILL);
	kvt_test_equal(errno, ECHILD);
}

static struct kvt_client *connect_impatient(void)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;

	options.socket_path = daemon_.socket;
	options.resume_ns = 1;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	return client;
}

static uint32_t supervisor_dies(uint32_t n, bool (*trigger)(void))
{
	uint32_t keys[KVT_WORK_KEYS], places;
	struct kvt_client *client;
	struct kvt_counters counters;

	kvt_test_daemon_begin_supervised(&daemon_, "drain_ms = 0\n");
	client = connect_impatient();
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	kvt_work_begin(client, kvt_test_namespace(client, "death"), keys);
	places = run_supervisor(n, trigger);
	kvt_trace_kill(daemon_.pid);
	reap_all();
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_test_check(*kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
	expect_a_fresh_start();
	return places;
}

TEST(when_the_supervisor_dies_all_ends_and_nothing_is_in_the_way)
{
	struct kvt_sweep sweep;
	uint32_t n;

	kvt_test_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	for (size_t i = 0; i < 2; i++) {
		kvt_sweep_start(&sweep, i ? "a supervisor, its daemon crashed" :
					    "a supervisor, its daemon is upgraded",
				supervisor_dies(UINT32_MAX, triggers[i]), FEW / 2);
		while (kvt_sweep_next(&sweep, &n))
			supervisor_dies(n, triggers[i]);
	}
	kvt_test_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

TEST(a_daemon_whose_supervisor_dies_before_it_begins_ends)
{
	pid_t pid;

	kvt_test_daemon_begin_supervised(&daemon_, "drain_ms = 0\n");
	if (!kvt_trace_seize(daemon_.pid, true)) {
		cannot_trace();
		return;
	}
	kvt_test_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	kvt_test_equal(kill(daemon_.pid, SIGUSR2), 0);
	pid = next_child(); /* before its first instruction */
	kvt_trace_kill(daemon_.pid);
	kvt_trace_let_go(pid);
	reap_all();
	expect_a_fresh_start();
	kvt_test_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

int main(int argc, char **argv)
{
	/* For daemons that end while traced: LeakSanitizer cannot look at these. */
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
	return kvt_tests_run(argc, argv);
}
