/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks by wake-ups: a client chooses how many watches each one runs through. The serving thread
 * must not run through them; its processor time tells, whatever the machine's load.
 *
 * Inputs: the scenes below. Invariant: the daemon's lanes pay, and only those of the attacker's uid
 * stall. Caller: tests/run hostile. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/client.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

enum { SETS = 100, EACH = 1000 }; /* so many watches: about 10 ms for each wake-up */
enum { CONNECTIONS = 4, ROUNDS = 20 };

#define OTHER_UID 65534
#define MOST_NS 60000000ull /* of all rounds; one connection used to cost 100 ms until it ended */

static struct kvt_test_daemon victim;
static int epolls[SETS];

static void watch_many_times(int fd)
{
	struct rlimit limit = { 4 * EACH, 4 * EACH };
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
	int fds[EACH];

	kvt_test_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (int i = 0; i < EACH; i++)
		kvt_test_check((fds[i] = dup(fd)) >= 0);
	for (int set = 0; set < SETS; set++) {
		kvt_test_check((epolls[set] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
		for (int i = 0; i < EACH; i++)
			kvt_test_equal(epoll_ctl(epolls[set], EPOLL_CTL_ADD, fds[i], &event), 0);
	}
	for (int i = 0; i < EACH; i++)
		close(fds[i]);
}

static void watch_no_more(void)
{
	for (int set = 0; set < SETS; set++)
		close(epolls[set]);
}

static bool is_over(struct kvt_client *client)
{
	return kvt_load_acquire(&client->ring.header->gone) != 0;
}

/* Run one NOP. False: the session is over. */
static bool run_nop(struct kvt_client *client, uint32_t wake_me)
{
	const struct kvt_sqe nop = { .op = KVT_OP_NOP, .fence_slot = KVT_FENCE_IDLE };
	struct kvt_cqe cqe;

	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, wake_me);
	kvt_ring_sq_put(&client->ring, &nop);
	if (kvt_ring_sq_publish(&client->ring))
		eventfd_write(client->doorbell, 1);
	while (kvt_ring_cq_ready(&client->ring) == 0)
		if (is_over(client))
			return false;
	kvt_ring_cq_take(&client->ring, &cqe);
	return true;
}

/* ---------------------------------------------------------------- watched files */

static void be_rung_for_by_doorbell(struct kvt_client *client)
{
	watch_many_times(client->doorbell);
	for (int i = 0; i < ROUNDS; i++) {
		while (!kvt_load_relaxed(&client->ring.header->sq_need_wakeup) && !is_over(client))
			;
		if (!run_nop(client, 0))
			return;
	}
}

static void be_woken_by_bell(struct kvt_client *client)
{
	struct pollfd rung = { .fd = client->completion, .events = POLLIN };
	uint64_t bytes;

	watch_many_times(client->completion);
	for (int i = 0; i < ROUNDS && run_nop(client, 1); i++) {
		while (poll(&rung, 1, 1) == 0)
			if (is_over(client))
				return;
		while (read(client->completion, &bytes, sizeof(bytes)) > 0)
			;
	}
}

static void be_answered_on_control_socket(struct kvt_client *client)
{
	uint64_t digest[2] = { (uint64_t)getpid(), 0 };
	uint32_t number;

	watch_many_times(client->control);
	for (int i = 0; i < ROUNDS && !is_over(client); i++) {
		digest[1]++; /* a new one: an open one is not asked for again */
		kvt_namespace_open(client, digest, "another", &number); /* it may be refused */
	}
}

/* ---------------------------------------------------------------- scenes */

typedef void scene_fn(struct kvt_client *client);

static void become_other(void)
{
	if (geteuid() != 0)
		return;
	kvt_test_equal(setresgid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
	kvt_test_equal(setresuid(OTHER_UID, OTHER_UID, OTHER_UID), 0);
}

static void connect_as_other(int pipe, void *context)
{
	struct kvt_client *client;

	become_other();
	client = kvt_test_connect(&victim);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_send(pipe, 6);
}

static void attack(int pipe, void *context)
{
	scene_fn **scene = context;

	become_other();
	for (int i = 0; i < CONNECTIONS; i++) {
		struct kvt_client *client = kvt_test_connect(&victim);

		(*scene)(client);
		kvt_client_abandon(client);
		watch_no_more();
	}
	kvt_test_send(pipe, 5);
}

static uint64_t daemon_cpu_ns(void)
{
	struct timespec now;
	clockid_t clock;

	kvt_test_equal(clock_getcpuclockid(victim.pid, &clock), 0);
	kvt_test_equal(clock_gettime(clock, &now), 0);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void cost_others_nothing(scene_fn *scene)
{
	struct kvt_test_child child;
	uint64_t before = daemon_cpu_ns(), used;

	kvt_test_child_start(&child, attack, &scene);
	kvt_test_expect(child.pipe, 5);
	used = daemon_cpu_ns() - before;
	kvt_test_child_finish(&child);
	printf("processor time of the daemon: %u us\n", (unsigned int)(used / 1000));
	kvt_test_check(used < MOST_NS);
}

/* ---------------------------------------------------------------- lanes */

static bool is_lane(int pid)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	file = fopen(path, "re");
	if (file && !fgets(name, sizeof(name), file))
		name[0] = '\0';
	if (file)
		fclose(file);
	return strcmp(name, "kvtrunkd-lane\n") == 0;
}

/* Return the state in /proc/PID/stat; 'Z' also if the process is gone. */
static char state_of(int pid)
{
	char path[64], state = 'Z';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (file && fscanf(file, "%*d %*s %c", &state) != 1)
		state = 'Z';
	if (file)
		fclose(file);
	return state;
}

/* Signal all lanes. Returns the last one's pid, 0 if there is none. */
static pid_t signal_lanes(int with_signal)
{
	pid_t closer = kvt_test_daemon_closer(&victim), last = 0;
	char path[64];
	FILE *file;
	int pid;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)closer, (int)closer);
	file = fopen(path, "re");
	kvt_test_check(file != NULL);
	while (fscanf(file, "%d", &pid) == 1) {
		if (!is_lane(pid))
			continue;
		last = pid;
		while (with_signal == SIGSTOP && !strchr("SZ", state_of(pid)))
			; /* all answers taken */
		kill(pid, with_signal);
		while (with_signal == SIGSTOP && !strchr("TZ", state_of(pid)))
			;
	}
	fclose(file);
	return last;
}

static void expect_rung(const struct kvt_client *client)
{
	struct pollfd rung = { .fd = client->completion, .events = POLLIN };

	kvt_test_equal(poll(&rung, 1, -1), 1);
	kvt_test_equal(rung.revents, POLLIN);
}

/* The first ring of a session is a lane's, since its cost is unknown. */
TEST(what_a_killed_lane_did_not_ring_is_rung_by_its_successor)
{
	struct kvt_client *client = kvt_test_connect(&victim);

	kvt_test_check(signal_lanes(SIGSTOP) > 0);
	kvt_test_check(run_nop(client, 1));
	signal_lanes(SIGKILL);
	expect_rung(client);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

/* Let a traced lane run to its next system call, or to the end of one. Returns that call's number
 * if the lane begins it, else -1. *ret_result: of the call that ended. */
static long next_stop(pid_t lane, int64_t *ret_result)
{
	struct __ptrace_syscall_info info = { 0 };
	int status;

	kvt_test_equal(ptrace(PTRACE_SYSCALL, lane, NULL, NULL), 0);
	kvt_test_equal(waitpid(lane, &status, __WALL), lane);
	kvt_test_check(WIFSTOPPED(status));
	kvt_test_check(ptrace(PTRACE_GET_SYSCALL_INFO, lane, sizeof(info), &info) > 0);
	*ret_result = info.op == PTRACE_SYSCALL_INFO_EXIT ? info.exit.rval : -1;
	return info.op == PTRACE_SYSCALL_INFO_ENTRY ? (long)info.entry.nr : -1;
}

/* Have a ring asked for, and kill its lane `stops` stops after it looked at the request. Returns
 * false if that is after it was done, or if processes cannot be traced. */
static bool ring_killed_after(struct kvt_client *client, uint32_t stops)
{
	pid_t lane = signal_lanes(SIGCONT); /* that does nothing */
	int64_t result = -1;
	uint32_t answers = 0;
	int status;

	kvt_test_check(lane > 0);
	if (ptrace(PTRACE_SEIZE, lane, NULL, PTRACE_O_TRACESYSGOOD) != 0)
		return false;
	kvt_test_equal(ptrace(PTRACE_INTERRUPT, lane, NULL, NULL), 0);
	kvt_test_equal(waitpid(lane, &status, __WALL), lane);
	kvt_test_check(run_nop(client, 1));
	for (long call = -1; call != SYS_recvfrom || result <= 0;) {
		long next = next_stop(lane, &result);

		call = next >= 0 ? next : call;
	}
	for (; stops && answers < 2; stops--)
		answers += next_stop(lane, &result) == SYS_sendto; /* the ring, then the answer */
	for (; stops && answers < 3; stops--)
		answers += next_stop(lane, &result) == SYS_recvfrom; /* the next request */
	kvt_test_equal(kill(lane, SIGKILL), 0);
	kvt_test_equal(waitpid(lane, &status, __WALL), lane);
	return answers < 3;
}

TEST(a_lane_killed_at_any_system_call_loses_no_ring)
{
	bool killed = true;
	uint32_t stops = 0;

	for (; killed; stops++) {
		struct kvt_client *client = kvt_test_connect(&victim);

		killed = ring_killed_after(client, stops);
		if (!stops && !killed)
			kvt_skip("processes cannot be traced here");
		expect_rung(client);
		kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	}
	printf("killed at %u stops\n", stops);
	kvt_test_check(stops > 8);
}

/* The serving thread accepts new connections, while their first messages wait for a lane. */
TEST(a_lane_that_stands_still_stalls_only_its_uid)
{
	struct kvt_client *client, *other;
	struct kvt_test_child child;

	if (geteuid() != 0)
		kvt_skip("needs root");
	signal_lanes(SIGKILL); /* those of others, too: one remains, for us */
	client = kvt_test_connect(&victim);
	kvt_test_check(signal_lanes(SIGSTOP) > 0);
	kvt_test_check(run_nop(client, 1)); /* the ring is asked for */
	kvt_test_child_start(&child, connect_as_other, NULL);
	kvt_test_expect(child.pipe, 6);
	kvt_test_child_finish(&child);
	signal_lanes(SIGCONT);
	expect_rung(client);
	other = kvt_test_connect(&victim);
	kvt_test_equal(kvt_client_close(other, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

/* A message's lane may answer after the message was. */
TEST(a_late_lane_leaves_no_descriptor)
{
	uint32_t descriptors = kvt_test_daemon_descriptors(&victim), asked = 0;
	struct kvt_client *session = kvt_test_connect(&victim);
	struct kvt_client *observer = kvt_test_observe(&victim);
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;
	char answer[1024];

	watch_many_times(observer->control); /* from its next answer on, lanes take and send */
	kvt_test_equal(kvt_admin(observer, &request, NULL, 0, &status, sizeof(status)), 1);
	kvt_test_check(signal_lanes(SIGSTOP) > 0);
	request = (struct kvt_message_admin){
		.head = { KVT_MESSAGE_MAGIC, KVT_MSG_ADMIN, KVT_ABI_MAJOR, sizeof(request),
			  .cookie = 99 },
		.what = KVT_ADMIN_ENDED,
		.argument = kvt_client_info(session)->session,
	};
	kvt_test_equal(kvt_control_send(observer->control, &request, sizeof(request), NULL, 0,
					INT64_MAX), 0);
	while (state_of(victim.pid) != 'S') /* read, and not answered yet */
		;
	kvt_client_abandon(session);
	while (state_of(victim.pid) != 'S')
		;
	signal_lanes(SIGCONT);
	kvt_test_check(kvt_control_receive(observer->control, answer, sizeof(answer), NULL, 0, NULL,
					   INT64_MAX) > 0);
	kvt_client_close(observer, KVT_IDLE);
	watch_no_more();
	while (kvt_test_daemon_descriptors(&victim) > descriptors && asked++ < 1000)
		kvt_test_audit(&victim);
	kvt_test_check(kvt_test_daemon_descriptors(&victim) <= descriptors);
}

/* Last: their uid is slow from then on. */
TEST(watches_on_a_doorbell_cost_the_serving_thread_nothing)
{
	cost_others_nothing(be_rung_for_by_doorbell);
}

TEST(watches_on_a_bell_cost_the_serving_thread_nothing)
{
	cost_others_nothing(be_woken_by_bell);
}

TEST(watches_on_a_control_socket_cost_the_serving_thread_nothing)
{
	cost_others_nothing(be_answered_on_control_socket);
}

static int start(void **state)
{
	kvt_test_daemon_prepare(&victim, "socket_mode = 0666\nspin_budget_us = 20\n");
	kvt_test_equal(chmod(victim.dir, 0755), 0);
	kvt_test_daemon_start(&victim, NULL);
	return 0;
}

static int end(void **state)
{
	kvt_test_daemon_end(&victim);
	return 0;
}

TEST_GROUP(start, end)
