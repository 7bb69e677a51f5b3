/* SPDX-License-Identifier: Apache-2.0 */
/* Who hands over, who is started again, and who starts it again are killed at their system calls.
 * Clients go on where anybody is left who has what they had; else they are told, and nothing is in
 * the way of the next daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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

#include "libclient/client.h"
#include "tests/lib/harness.h"
#include "tests/restart/trace.h"
#include "tests/restart/work.h"

#define N_BUSY 2
#define N_IDLE 6 /* with them there is more to hand over than fits one message */
#define FEW 16

static struct kvt_test_daemon daemon_;
static struct kvt_test_child busy[N_BUSY];
static struct kvt_test_child comer;
static struct kvt_client *idle[N_IDLE];
static char log_flag[128];

/* ---- the world */

static void begin_with(const char *options, const char *const *arguments)
{
	kvt_test_daemon_prepare(&daemon_, options);
	snprintf(log_flag, sizeof(log_flag), "--log_file=%s/operations", daemon_.dir);
	kvt_test_daemon_start(&daemon_, arguments);
}

static void begin(const char *const *arguments)
{
	begin_with(NULL, arguments);
}

/* Comes and goes, and is always let in: what dies between HELLO and WELCOME is asked again. */
static void comer_run(int pipe, void *context)
{
	struct pollfd told = { .fd = pipe, .events = POLLIN };
	bool first = true;

	(void)context;
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

/* Nothing was lost: who worked met nothing wrong, and all of it is in one log. */
static void end_work(void)
{
	kvt_test_send(comer.pipe, 9);
	kvt_test_child_finish(&comer);
	for (int i = 0; i < N_BUSY; i++)
		kvt_work_finish(&busy[i]);
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_audit(&daemon_);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	kvt_test_daemon_stop(&daemon_);
	kvt_test_verify(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

static void cannot_trace(void)
{
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
	print_message("skip: processes cannot be traced here\n");
	skip();
}

/* With a log and without a supervisor. False: it cannot be traced, and the test ends. */
static bool begin_traced(void)
{
	const char *const alone[] = { log_flag, NULL };

	begin(alone);
	if (kvt_trace_seize(daemon_.pid, false))
		return true;
	cannot_trace();
	return false;
}

/* Whatever was left, the next daemon starts, and is empty. */
static void expect_a_fresh_start(void)
{
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

/* ---- the daemon that hands over */

static bool sends_the_last(pid_t pid, const struct ptrace_syscall_info *info)
{
	struct kvt_message_handover message;
	struct msghdr header;
	struct iovec part;

	return kvt_trace_begins(info, SYS_sendmsg) &&
	       kvt_trace_read(pid, info->entry.args[1], &header, sizeof(header)) &&
	       kvt_trace_read(pid, (uintptr_t)header.msg_iov, &part, sizeof(part)) &&
	       part.iov_len == sizeof(message) &&
	       kvt_trace_read(pid, (uintptr_t)part.iov_base, &message, sizeof(message)) &&
	       message.head.type == KVT_MSG_HANDOVER && message.last;
}

static pid_t start_successor(const char *const *arguments)
{
	struct kvt_test_daemon successor = daemon_;

	kvt_test_daemon_spawn(&successor, arguments);
	return successor.pid;
}

/* Let a seized daemon, which was asked to hand over, run to where it says so. */
static void run_to_the_handover(struct ptrace_syscall_info *info)
{
	int status;

	do {
		kvt_test_check(kvt_trace_next(daemon_.pid, info, &status));
	} while (!kvt_trace_says(daemon_.pid, info, "event=handing_over"));
}

/* Places from there to the one before the last descriptors go; it is stopped at the n-th, or
 * there. */
static uint32_t run_before_the_last(uint32_t n)
{
	struct ptrace_syscall_info info;
	uint32_t at = 0;
	int status;

	for (run_to_the_handover(&info); at < n && !sends_the_last(daemon_.pid, &info); at++)
		kvt_test_check(kvt_trace_next(daemon_.pid, &info, &status));
	return at;
}

/* Places from the one behind the last descriptors to its end. False: it ended before the n-th.
 * Whoever gets the processors, at the first the successor has not yet said that all came. */
static bool run_behind_the_last(uint32_t n, pid_t successor, uint32_t *ret_places, int *ret_status)
{
	struct ptrace_syscall_info info;

	run_before_the_last(UINT32_MAX);
	if (n == 0)
		kvt_test_freeze(successor);
	for (*ret_places = 0; *ret_places <= n; (*ret_places)++)
		if (!kvt_trace_next(daemon_.pid, &info, ret_status))
			return false;
	return true;
}

static void open_idle(void)
{
	for (int i = 0; i < N_IDLE; i++)
		idle[i] = kvt_test_connect(&daemon_);
}

/* Nobody has all of what it had: that is over, and everybody knows. */
static void die_before_the_last(uint32_t n)
{
	const char *const alone[] = { NULL }, *const takeover[] = { "--takeover", NULL };
	struct kvt_counters counters;
	pid_t successor;
	int status;

	begin(alone);
	open_idle();
	kvt_test_check(kvt_trace_seize(daemon_.pid, false));
	kvt_trace_stop(daemon_.pid);
	successor = start_successor(takeover);
	run_before_the_last(n);
	kvt_trace_kill(daemon_.pid);
	kvt_test_equal(waitpid(successor, &status, 0), successor);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "has ended, start without --takeover"));
	for (int i = 0; i < N_IDLE; i++) {
		kvt_test_equal(kvt_stats(idle[i], &counters), -ECONNRESET);
		kvt_test_check(strstr(kvt_client_error(idle[i])->text, "daemon is gone"));
		kvt_client_close(idle[i], KVT_IDLE);
	}
	expect_a_fresh_start();
}

static void an_old_daemon_that_dies_too_soon_takes_all_with_it(void **state)
{
	const char *const alone[] = { NULL }, *const takeover[] = { "--takeover", NULL };
	struct kvt_sweep sweep;
	uint32_t places, n;
	pid_t successor;

	(void)state;
	begin(alone);
	open_idle();
	if (!kvt_trace_seize(daemon_.pid, false)) {
		cannot_trace();
		return;
	}
	kvt_trace_stop(daemon_.pid);
	successor = start_successor(takeover);
	places = run_before_the_last(UINT32_MAX) + 1;
	kvt_trace_kill(daemon_.pid);
	kvt_test_equal(waitpid(successor, NULL, 0), successor);
	for (int i = 0; i < N_IDLE; i++)
		kvt_client_close(idle[i], KVT_IDLE);
	expect_a_fresh_start();
	kvt_sweep_start(&sweep, "before all is handed over", places, FEW / 2);
	while (kvt_sweep_next(&sweep, &n))
		die_before_the_last(n);
}

/* Be taken over, and die at the n-th place behind that; the successor goes on. Places so far. */
static uint32_t die_behind_the_last(uint32_t n)
{
	const char *const takeover[] = { "--takeover", log_flag, NULL };
	uint32_t places;
	pid_t successor;
	int status;

	kvt_trace_stop(daemon_.pid);
	successor = start_successor(takeover);
	if (run_behind_the_last(n, successor, &places, &status))
		kvt_trace_kill(daemon_.pid);
	else
		kvt_test_equal(status, 0);
	kill(successor, SIGCONT);
	daemon_.pid = successor;
	if (!kvt_test_daemon_await(&daemon_, "READY=1"))
		kvt_test_fail("it gave up what it had, place %u", n);
	kvt_test_check(kvt_trace_seize(daemon_.pid, false));
	return places;
}

static void an_old_daemon_that_handed_over_may_die_at_any_system_call(void **state)
{
	struct kvt_sweep sweep;
	uint32_t places, n;

	(void)state;
	if (!begin_traced())
		return;
	start_work();
	open_idle();
	places = die_behind_the_last(UINT32_MAX);
	die_behind_the_last(0);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "event=predecessor_died"));
	kvt_sweep_start(&sweep, "behind the handover", places, FEW);
	while (kvt_sweep_next(&sweep, &n))
		die_behind_the_last(n);
	for (int i = 0; i < N_IDLE; i++)
		kvt_client_close(idle[i], KVT_IDLE);
	kvt_trace_stop(daemon_.pid);
	kvt_trace_let_go(daemon_.pid);
	end_work();
}

/* ---- the daemon that is started again */

static void await_ready(void)
{
	if (!kvt_test_daemon_await(&daemon_, "READY=1"))
		kvt_test_fail("no daemon came back");
}

/* From its fork to the n-th place; with UINT32_MAX to where it is about to say that it is READY.
 * Places so far. */
static uint32_t run_start(pid_t pid, uint32_t n)
{
	struct ptrace_syscall_info info;
	bool ready = false;
	uint32_t at = 0;
	int status;

	do {
		if (!kvt_trace_next(pid, &info, &status))
			kvt_test_fail("it ended at place %u with status 0x%x", at, status);
		if (ready) /* that it is has been said now */
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

/* Restart it; the one that comes is killed at place n, its successor at place m if there is one,
 * and the next one serves. Places up to READY, if n is UINT32_MAX. */
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

/* And `more` places beyond READY: those who connect again are there by then. */
static void sweep_starts(const char *options, uint32_t more)
{
	const char *const supervised[] = { "--supervise", log_flag, NULL };
	struct kvt_sweep sweep;
	uint32_t n, m;

	begin_with(options, supervised);
	if (!kvt_trace_seize(daemon_.pid, true)) {
		cannot_trace();
		return;
	}
	start_work();
	kvt_sweep_start(&sweep, "the start of a supervised one",
			die_at_start(UINT32_MAX, NULL) + more, FEW);
	while (kvt_sweep_next(&sweep, &n)) {
		bool twice = n % 3 == 0;

		m = n / 3;
		die_at_start(n, twice ? &m : NULL);
	}
	let_go_of_supervisor();
	end_work();
}

static void a_restarted_daemon_may_die_at_any_system_call(void **state)
{
	(void)state;
	sweep_starts(NULL, 0);
}

static void a_restarted_daemon_may_die_while_clients_connect_again(void **state)
{
	(void)state;
	sweep_starts("park_connections = no\n", 100);
}

/* ---- the daemon that takes over and is kept from then on */

/* A supervised one takes over, and dies at place n. Either its supervisor gives up, and the old one
 * serves on; or it starts another one, which has everything. False: the old one serves on. */
static bool die_taking_over(uint32_t n, uint32_t *ret_places)
{
	const char *const both[] = { "--supervise", "--takeover", log_flag, NULL };
	struct kvt_test_daemon successor = daemon_;
	int status;
	pid_t pid;

	successor.traced = true;
	kvt_test_daemon_spawn(&successor, both);
	kvt_test_check(kvt_trace_begin(successor.pid));
	pid = kvt_trace_child(successor.pid, &status);
	kvt_test_check(pid > 0);
	*ret_places = run_start(pid, n);
	if (n != UINT32_MAX) {
		kvt_trace_kill(pid);
		pid = kvt_trace_child(successor.pid, &status);
	}
	if (!pid) {
		kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		kvt_test_audit(&daemon_);
		return false;
	}
	kvt_trace_let_go(pid);
	pid = daemon_.pid;
	daemon_.pid = successor.pid;
	await_ready();
	kvt_test_check(waitpid(pid, &status, 0) == pid && status == 0);
	return true;
}

static void who_takes_over_and_is_supervised_may_die_at_any_system_call(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	struct kvt_sweep sweep;
	uint32_t places, n;

	(void)state;
	if (!begin_traced())
		return;
	let_go_of_supervisor();
	start_work();
	kvt_test_check(die_taking_over(UINT32_MAX, &places));
	end_work();
	kvt_sweep_start(&sweep, "a supervised one that takes over", places, FEW / 2);
	begin(alone);
	start_work();
	while (kvt_sweep_next(&sweep, &n)) {
		if (!die_taking_over(n, &places))
			continue;
		end_work();
		begin(alone);
		start_work();
	}
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

/* Places of the supervisor, from the end of its daemon until the next one is ready; it is stopped
 * at the n-th. */
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

/* Whoever it had started ends by itself: in order, or because it finds nobody to tell. */
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
	const char *const supervised[] = { "--supervise", NULL };
	uint32_t keys[KVT_WORK_KEYS], places;
	struct kvt_client *client;
	struct kvt_counters counters;

	begin_with("drain_ms = 0\n", supervised);
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

static void when_the_supervisor_dies_all_ends_and_nothing_is_in_the_way(void **state)
{
	struct kvt_sweep sweep;
	uint32_t n;

	(void)state;
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

static void a_daemon_whose_supervisor_dies_before_it_begins_ends(void **state)
{
	const char *const supervised[] = { "--supervise", NULL };
	pid_t pid;

	(void)state;
	begin_with("drain_ms = 0\n", supervised);
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
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_old_daemon_that_dies_too_soon_takes_all_with_it),
		cmocka_unit_test(an_old_daemon_that_handed_over_may_die_at_any_system_call),
		cmocka_unit_test(a_restarted_daemon_may_die_at_any_system_call),
		cmocka_unit_test(a_restarted_daemon_may_die_while_clients_connect_again),
		cmocka_unit_test(who_takes_over_and_is_supervised_may_die_at_any_system_call),
		cmocka_unit_test(when_the_supervisor_dies_all_ends_and_nothing_is_in_the_way),
		cmocka_unit_test(a_daemon_whose_supervisor_dies_before_it_begins_ends),
	};

	/* Of daemons that end while they are traced: LeakSanitizer cannot look at these. */
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
