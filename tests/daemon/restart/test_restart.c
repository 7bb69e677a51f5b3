/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon under `kvtrunkd --supervise` is killed, stopped, upgraded, or finds its objects damaged.
 * Its clients continue or learn why not.
 *
 * Inputs: a configuration, and what happens to daemon, supervisor or lock file. Invariant: after
 * each test nothing is lost, the audit is clean, and the oracle agrees with one log of all daemons.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "libclient/control.h"
#include "shm/clock.h"
#include "tests/daemon/restart/trace.h"
#include "tests/daemon/restart/work.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define N_PAGES 4096

/* ---- the world */

static void start(const char *more)
{
	kvt_test_daemon_begin_logged(&daemon_, more, true);
}

static void await_ready(void)
{
	if (!kvt_test_daemon_await(&daemon_, "READY=1"))
		kvt_test_fail("no daemon came back");
}

static void kill_daemon(void)
{
	kvt_test_daemon_succeed(&daemon_);
}

/* Stop the supervisor, then kill the daemon: no successor until resume_supervisor(). */
static void kill_daemon_for_a_while(void)
{
	pid_t pid = kvt_test_daemon_child(&daemon_);

	kvt_test_freeze(daemon_.pid);
	kill(pid, SIGKILL);
	kvt_test_await_zombie(pid);
}

static void resume_supervisor(void)
{
	kill(daemon_.pid, SIGCONT);
	await_ready();
}

static uint32_t matched(struct kvt_client *client, const char *space, const uint32_t *keys)
{
	return kvt_test_matched(client, kvt_test_namespace(client, space), keys, KVT_WORK_KEYS);
}

/* What others computed of a prompt is there, with the right content. */
static void check_prompt(struct kvt_client *client, const uint32_t *keys)
{
	struct kvt_seq *seq = kvt_work_begin(client, kvt_test_namespace(client, "restart"), keys);

	kvt_work_check(client, seq, keys, 15);
}

/* All clients are gone: nothing is lost, and the oracle agrees with the log of all daemons. */
static void stop_clean(void)
{
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_daemon_end(&daemon_);
}

/* ---- killed */

TEST(a_client_continues_after_a_kill)
{
	struct kvt_client *client, *other;
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_seq *seq;

	start(NULL);
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	client = kvt_test_connect(&daemon_);
	kvt_test_check(kvt_client_info(client)->kept);
	space = kvt_test_namespace(client, "restart");
	seq = kvt_work_begin(client, space, keys);
	kvt_work_compute(client, seq, keys, 0, 8);
	kvt_test_equal(kvt_seq_commit(seq, 128, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kill_daemon();
	/* Its lease, private pages and namespace are unchanged. */
	kvt_work_compute(client, seq, keys, 8, 16);
	kvt_test_equal(kvt_seq_commit(seq, 256, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_extend(seq, 32), 0);
	kill_daemon();
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	other = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(other, "restart", keys), KVT_WORK_KEYS);
	check_prompt(other, keys);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

/* The process lives, and has no connection: only the ring can tell a successor. */
TEST(what_a_client_closed_without_a_daemon_is_given_back)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_counters counters;
	uint32_t pages[8], session;

	start(NULL);
	options.socket_path = daemon_.socket;
	options.resume_ns = 1;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	session = kvt_client_info(client)->session;
	kvt_test_equal(kvt_alloc(client, 7, pages), 0);
	kill_daemon_for_a_while();
	kvt_test_equal(kvt_alloc(client, 1, pages), -ECONNRESET);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), -ECONNRESET);
	resume_supervisor();
	do
		counters = kvt_test_settled(&daemon_);
	while (counters.private_pages);
	kvt_test_equal(counters.quarantined_pages, 0);
	kvt_test_session_ended(&daemon_, session);
	stop_clean();
}

/* As a program does that execs another: its descriptors close, and the process lives. */
TEST(a_session_abandoned_without_a_daemon_ends)
{
	struct kvt_client *client;
	uint32_t keys[KVT_WORK_KEYS], pages[8], session;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	session = kvt_client_info(client)->session;
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	kvt_work_begin(client, kvt_test_namespace(client, "restart"), keys);
	kvt_test_equal(kvt_alloc(client, 7, pages), 0);
	kill_daemon_for_a_while();
	kvt_client_abandon(client);
	resume_supervisor();
	kvt_test_session_ended(&daemon_, session);
	kvt_test_equal(kvt_test_settled(&daemon_).live_leases, 0);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "sign=unconnected"));
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
}

/* Commits in flight while no daemon runs. The successor answers them and knows which pages they
 * displaced; so does the next one. */
TEST(commits_in_flight_survive)
{
	struct kvt_client *client, *other;
	uint32_t keys[KVT_WORK_KEYS], old[17], space, n;
	struct kvt_seq *seq, *twin;
	const uint32_t *pages;

	start(NULL);
	kvt_work_keys(keys, KVT_WORK_KEYS, 4);
	client = kvt_test_connect(&daemon_);
	other = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	seq = kvt_work_begin(client, space, keys);
	other->begin_wait_ns = -1;
	twin = kvt_work_begin(other, kvt_test_namespace(other, "restart"), keys);
	kvt_work_compute(other, twin, keys, 0, 12);
	kvt_test_equal(kvt_seq_commit(twin, 192, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_work_compute(client, seq, keys, 0, 4);
	pages = kvt_seq_pages(seq, &n);
	kvt_test_equal(n, 17);
	memcpy(old, pages, sizeof(old));
	kill_daemon_for_a_while();
	kvt_test_equal(kvt_seq_commit_async(seq, 64, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_work_compute(client, seq, keys, 4, 8);
	kvt_test_equal(kvt_seq_commit_async(seq, 128, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_test_equal(kvt_seq_poll(seq), 2);
	kvt_test_equal(kvt_seq_next(seq), 128);
	resume_supervisor();
	kvt_test_equal(kvt_seq_settle(seq), 0);
	kvt_test_equal(kvt_seq_next(seq), 192);
	pages = kvt_seq_pages(seq, NULL);
	kvt_test_check(memcmp(pages, kvt_seq_pages(twin, NULL), 12 * sizeof(*pages)) == 0);
	kvt_test_check(memcmp(pages + 12, old + 12, 5 * sizeof(*pages)) == 0);
	kill_daemon();
	/* 17 of the one, 12 of them displaced and kept; 5 of the other. */
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 22);
	kvt_work_compute(client, seq, keys, 12, 16);
	kvt_test_equal(kvt_seq_commit_async(seq, 256, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(twin, 0, NULL, 0, KVT_IDLE, 0), 0);
	check_prompt(other, keys);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

/* Waiters of every kind, asleep when the daemon dies. What they wait for comes later. */
static void wait_for_a_fence(struct kvt_client *client, int pipe)
{
	uint32_t page;

	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_free(client, &page, 1, (struct kvt_fence){ 0, 1 }), 0);
}

static void wait_in_reap(struct kvt_client *client, int pipe)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 0, 1 }, .user_data = 7 };
	struct kvt_result result;

	kvt_test_equal(kvt_submit(client, &request), 0);
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_reap(client, &result, 1, 1), 1);
	kvt_test_equal(result.user_data, 7);
}

static void wait_in_own_loop(struct kvt_client *client, int pipe)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .fence = { 0, 1 }, .user_data = 9 };
	struct pollfd fds[2] = { { .fd = kvt_client_completion_fd(client), .events = POLLIN },
				 { .fd = kvt_client_control_fd(client), .events = POLLIN } };
	struct kvt_result result;
	int n = 0;

	kvt_test_equal(kvt_submit(client, &request), 0);
	kvt_test_send(pipe, 1);
	while (n == 0) {
		int ready = kvt_client_arm(client);

		kvt_test_check(ready >= 0);
		kvt_test_check(ready > 0 || poll(fds, 2, -1) > 0);
		n = kvt_reap(client, &result, 0, 1);
		kvt_test_check(n >= 0);
	}
	kvt_test_equal(result.user_data, 9);
}

static void (*const waits[])(struct kvt_client *, int) = { wait_for_a_fence, wait_in_reap,
							   wait_in_own_loop };
#define N_WAITS (sizeof(waits) / sizeof(waits[0]))

/* The fence word is in shared memory, so any process with the segment can raise it. Here the parent
 * does, through the supervisor's descriptor. */
static void waiter_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect_with(&daemon_, 0);
	size_t which = (size_t)(uintptr_t)context;

	kvt_test_send(pipe, kvt_client_info(client)->session);
	waits[which](client, pipe);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

/* Write to a file of this user's that is read-only for those who open it: root needs no detour. */
static int open_own(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), writable;
	struct stat stat;

	kvt_test_check(fd >= 0 && fstat(fd, &stat) == 0 && fchmod(fd, stat.st_mode | 0600) == 0);
	writable = open(path, O_RDWR | O_CLOEXEC);
	kvt_test_equal(fchmod(fd, stat.st_mode), 0);
	close(fd);
	return writable;
}

/* Find a descriptor of the supervisor whose name has `what` in it. */
static int open_kept(const char *what, uint32_t nth)
{
	char path[300], target[256];
	struct dirent *entry;
	int fd = -1;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_.pid);
	dir = opendir(path);
	while (dir && fd < 0 && (entry = readdir(dir))) {
		ssize_t n;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)daemon_.pid, entry->d_name);
		n = readlink(path, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = '\0';
		if (strstr(target, what) && nth-- == 0)
			fd = open_own(path);
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* Raise fence word 0 of every session, through the segments that the supervisor holds. It closes
 * one whose session ends, perhaps at once: so open all before raising any. */
static void raise_fences(void)
{
	struct kvt_segment_header header;
	uint64_t one = 1;
	int fds[N_WAITS];

	for (uint32_t i = 0; i < N_WAITS; i++) {
		fds[i] = open_kept("kvtrunk-session", i);
		kvt_test_check(fds[i] >= 0);
	}
	for (uint32_t i = 0; i < N_WAITS; i++) {
		kvt_test_equal(pread(fds[i], &header, sizeof(header), 0), sizeof(header));
		kvt_test_equal(pwrite(fds[i], &one, sizeof(one), (off_t)header.fences_offset),
			       sizeof(one));
		close(fds[i]);
	}
}

TEST(every_waiter_continues)
{
	struct kvt_test_child children[N_WAITS];

	start(NULL);
	for (size_t i = 0; i < N_WAITS; i++) {
		kvt_test_child_start(&children[i], waiter_run, (void *)(uintptr_t)i);
		kvt_test_check(kvt_test_word(children[i].pipe) > 0);
		kvt_test_expect(children[i].pipe, 1);
	}
	kill_daemon();
	kill_daemon();
	raise_fences();
	for (size_t i = 0; i < N_WAITS; i++) {
		kvt_test_expect(children[i].pipe, 2);
		kvt_test_child_finish(&children[i]);
	}
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
}

/* ---- control socket */

static void asking_run(int pipe, void *context)
{
	const uint64_t digest[2] = { 17, 18 };
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	bool observer = context != NULL;
	struct kvt_client *client = observer ? kvt_test_observe(&daemon_) :
					       kvt_test_connect(&daemon_);
	struct kvt_admin_status status;
	uint32_t number;

	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 9);
	if (observer)
		kvt_test_equal(kvt_admin(client, &request, NULL, 0, &status, sizeof(status)), 1);
	else
		kvt_test_equal(kvt_namespace_open(client, digest, "late", &number), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

TEST(what_was_asked_on_the_control_socket_is_asked_again)
{
	struct kvt_test_child children[2];

	start(NULL);
	for (size_t i = 0; i < 2; i++) {
		kvt_test_child_start(&children[i], asking_run, (void *)(uintptr_t)i);
		kvt_test_expect(children[i].pipe, 1);
	}
	kvt_test_freeze(kvt_test_daemon_child(&daemon_)); /* no one reads the question */
	for (size_t i = 0; i < 2; i++)
		kvt_test_send(children[i].pipe, 9);
	kill_daemon();
	for (size_t i = 0; i < 2; i++) {
		kvt_test_expect(children[i].pipe, 2);
		kvt_test_child_finish(&children[i]);
	}
	kvt_test_daemon_end(&daemon_);
}

/* Its answer is lost with the daemon; asked again, it raises nothing more. */
TEST(a_renewed_generation_stays)
{
	const uint64_t digest[2] = { 19, 20 };
	struct kvt_client *client, *other;
	uint32_t space, same, generation = 77;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_namespace_open(client, digest, "control", &space), 0);
	kvt_test_equal(kvt_namespace_generation(client, space, &generation), 0);
	kvt_test_equal(generation, 0);
	kvt_test_equal(kvt_namespace_renew(client, space, 0, &generation), 0);
	kill_daemon();
	kvt_test_equal(kvt_namespace_renew(client, space, 0, &generation), 0);
	kvt_test_equal(generation, 1);
	kvt_test_equal(kvt_namespace_renew(client, space, 1, &generation), 0);
	kvt_test_equal(generation, 2);
	other = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_namespace_open(other, digest, "control", &same), 0);
	kvt_test_equal(kvt_namespace_generation(other, same, &generation), 0);
	kvt_test_equal(generation, 2);
	kvt_test_equal(kvt_namespace_close(other, same), 0);
	kvt_test_equal(kvt_namespace_renew(other, same, 2, &generation), -EINVAL);
	kvt_test_equal(kvt_namespace_generation(other, same, &generation), -EINVAL);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

static void ender_run(int pipe, void *context)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_ENDED };
	struct kvt_client *client = kvt_test_connect_with(&daemon_, 0);

	request.argument = kvt_test_word(pipe);
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_admin(client, &request, NULL, 0, NULL, 0), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

/* The daemon dies between reading this question and answering it. */
TEST(what_was_heard_and_not_answered_is_asked_again)
{
	struct kvt_test_child child;
	struct kvt_client *client;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_child_start(&child, ender_run, NULL);
	kvt_test_send(child.pipe, kvt_client_info(client)->session);
	kvt_test_expect(child.pipe, 1);
	while (kvt_test_process_state(child.pid) != 'S')
		sched_yield();
	kvt_test_audit(&daemon_); /* a round trip: all earlier messages have been read */
	kill_daemon();
	kvt_client_close(client, KVT_IDLE);
	kvt_test_expect(child.pipe, 2);
	kvt_test_child_finish(&child);
	kvt_test_daemon_end(&daemon_);
}

/* ---- clients that died */

static void holder_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect_with(&daemon_, 0);
	uint32_t keys[KVT_WORK_KEYS], pages[8], space;
	struct kvt_seq *seq;

	kvt_work_keys(keys, KVT_WORK_KEYS, 2);
	space = kvt_test_namespace(client, "holder");
	seq = kvt_work_begin(client, space, keys);
	kvt_test_equal(kvt_seq_commit(seq, 64, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_test_equal(kvt_alloc(client, 8, pages), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_expect(pipe, 9);
}

TEST(an_owner_that_died_while_no_daemon_lived_is_found)
{
	struct kvt_counters counters;
	struct kvt_test_child child;
	uint32_t session;

	start(NULL);
	kvt_test_child_start(&child, holder_run, NULL);
	session = (uint32_t)kvt_test_word(child.pipe);
	kill_daemon_for_a_while();
	kvt_test_child_kill(&child, SIGKILL);
	resume_supervisor();
	kvt_test_session_ended(&daemon_, session);
	kvt_test_until(&daemon_, counters,
		       counters.private_pages + counters.quarantined_pages == 0);
	kvt_test_equal(counters.live_leases, 0);
	kvt_test_equal(counters.cached_pages, 4);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
}

/* Without a daemon the socket still listens: a connecting client waits in its queue. */
TEST(a_client_that_asked_before_the_successor_came_continues)
{
	struct kvt_counters counters;
	struct kvt_client *client;
	uint32_t page;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kill_daemon_for_a_while();
	kvt_client_set_timeout(client, 10000000);
	for (int i = 0; i < 3; i++)
		kvt_test_equal(kvt_stats(client, &counters), -ETIMEDOUT);
	kvt_client_set_timeout(client, 0);
	resume_supervisor();
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_test_equal(counters.private_pages, 1);
	kvt_test_equal(kvt_free(client, &page, 1, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_daemon_end(&daemon_);
}

TEST(a_client_without_resume_gets_the_end_at_once)
{
	struct kvt_client *client;
	struct kvt_counters counters;

	start(NULL);
	client = kvt_test_connect_with(&daemon_, KVT_HELLO_NO_RESUME);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kill_daemon();
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_test_session_ended(&daemon_, kvt_client_info(client)->session);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

static void damage_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect_with(&daemon_, 0);
	uint32_t page;

	(void)context;
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	client->ring.header->magic++;
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_free(client, &page, 1, (struct kvt_fence){ 0, 1 }), -ESTALE);
	kvt_test_check(strstr(kvt_client_error(client)->text, "could not be continued"));
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

TEST(a_waiter_that_damaged_its_segment_is_told_that_the_session_is_over)
{
	struct kvt_test_child child;

	start(NULL);
	kvt_test_child_start(&child, damage_run, NULL);
	kvt_test_expect(child.pipe, 1);
	kill_daemon();
	kvt_test_expect(child.pipe, 2);
	kvt_test_child_finish(&child);
	kvt_test_daemon_end(&daemon_);
}

/* ---- secrets */

TEST(a_wrong_secret_resumes_nothing)
{
	const uint64_t digest[2] = { 17, 18 };
	struct kvt_client *client;
	uint32_t number;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	client->hello.secret[1] ^= 1;
	kill_daemon();
	kvt_test_equal(kvt_namespace_open(client, digest, "late", &number), -ESTALE);
	kvt_test_check(strstr(kvt_client_error(client)->text, "no session with this secret"));
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* Sends HELLO with a given secret. */
static void thief_run(int pipe, void *context)
{
	struct kvt_message_hello *hello = context;
	struct kvt_message_refused answer;
	int fd;

	hello->secret[0] = kvt_test_word(pipe);
	hello->secret[1] = kvt_test_word(pipe);
	hello->pid = getpid();
	kvt_test_equal(kvt_control_open(daemon_.socket, kvt_now_ns() + 5000000000ll, &fd,
					NULL), 0);
	kvt_test_equal(kvt_control_send(fd, hello, sizeof(*hello), NULL, 0, INT64_MAX), 0);
	kvt_test_equal(kvt_control_receive(fd, &answer, sizeof(answer), NULL, 0, NULL, INT64_MAX),
		       sizeof(answer));
	kvt_test_equal(answer.head.type, KVT_MSG_REFUSED);
	kvt_test_equal(answer.head.result, -ESTALE);
	kvt_test_check(strstr(answer.text, "another process"));
	kvt_test_send(pipe, 2);
}

TEST(the_right_secret_of_another_process_resumes_nothing)
{
	struct kvt_counters counters;
	struct kvt_message_hello hello;
	struct kvt_test_child thief;
	struct kvt_client *client;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	hello = client->hello;
	kvt_test_child_start(&thief, thief_run, &hello);
	kill_daemon();
	kvt_test_send(thief.pipe, client->hello.secret[0]);
	kvt_test_send(thief.pipe, client->hello.secret[1]);
	kvt_test_expect(thief.pipe, 2);
	kvt_test_child_finish(&thief);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* ---- damage */

/* The old cache is not served: the daemon starts cold, and the old cache's clients learn it. */
static void expect_cold_start(struct kvt_client *client, const uint32_t *keys, const char *why)
{
	struct kvt_counters counters;
	struct kvt_client *fresh;

	if (!kvt_test_daemon_said(&daemon_, "event=cold_start") ||
	    !kvt_test_daemon_said(&daemon_, why))
		kvt_test_fail("not said: %s", why);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	fresh = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(fresh, "doubt", keys), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_client_close(fresh, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
}

static struct kvt_client *fill_cache(uint32_t *keys, uint32_t *ret_space)
{
	struct kvt_client *client = kvt_test_connect_with(&daemon_, KVT_HELLO_NO_RESUME);
	struct kvt_seq *seq;

	kvt_work_keys(keys, KVT_WORK_KEYS, 3);
	*ret_space = kvt_test_namespace(client, "doubt");
	seq = kvt_work_begin(client, *ret_space, keys);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(matched(client, "doubt", keys), KVT_WORK_KEYS);
	return client;
}

TEST(damage_in_the_ledger_is_a_cold_start)
{
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;
	struct kvt_ledger_header ledger;
	struct kvt_owner_record wrong = { 77, 88, 0xffffffffu, 0xffffffffu };
	int fd;

	start(NULL);
	client = fill_cache(keys, &space);
	kill_daemon_for_a_while();
	fd = open_kept("kvtrunk-ledger", 0);
	kvt_test_check(fd >= 0);
	kvt_test_equal(pread(fd, &ledger, sizeof(ledger), 0), sizeof(ledger));
	for (uint32_t page = 1; page < N_PAGES; page++)
		kvt_test_equal(pwrite(fd, &wrong, sizeof(wrong),
				      (off_t)(ledger.sections[KVT_LSECTION_OWNERS].offset +
					      page * sizeof(wrong))), sizeof(wrong));
	for (uint32_t i = 1; i < 4; i++) {
		struct kvt_lease_record lease = { .kind = KVT_LEASE_BEGIN, .session = 60000,
						  .node = 0x7fffffff };

		kvt_test_equal(pwrite(fd, &lease, sizeof(lease),
				      (off_t)(ledger.sections[KVT_LSECTION_LEASES].offset +
					      i * sizeof(lease))), sizeof(lease));
	}
	close(fd);
	resume_supervisor();
	expect_cold_start(client, keys, "why=");
}

TEST(a_side_page_that_two_pages_name_is_a_cold_start)
{
	uint32_t keys[KVT_WORK_KEYS], space, pages[2], sides[N_PAGES], n = 0;
	struct kvt_arena_header arena;
	struct kvt_client *client;
	struct kvt_seq *seq;
	off_t offset;
	int fd;

	start("sides = 1\n");
	client = fill_cache(keys, &space);
	kvt_test_equal(kvt_alloc(client, 2, pages), 0);
	seq = kvt_work_begin(client, space, keys);
	kvt_test_equal(kvt_seq_attach(seq, 3, 0, pages[0]), 0);
	kvt_test_equal(kvt_seq_attach(seq, 7, 0, pages[1]), 0);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	kill_daemon_for_a_while();
	fd = open_kept("arena.", 0);
	kvt_test_check(fd >= 0);
	kvt_test_equal(pread(fd, &arena, sizeof(arena), 0), sizeof(arena));
	offset = (off_t)arena.sections[KVT_SECTION_SIDES].offset;
	kvt_test_equal(pread(fd, sides, sizeof(sides), offset), sizeof(sides));
	for (uint32_t page = 0; page < N_PAGES; page++) {
		n += sides[page] != 0;
		if (sides[page] == pages[1])
			sides[page] = pages[0];
	}
	kvt_test_equal(n, 2);
	kvt_test_equal(pwrite(fd, sides, sizeof(sides), offset), sizeof(sides));
	close(fd);
	resume_supervisor();
	expect_cold_start(client, keys, "which is not its own");
}

TEST(another_geometry_is_a_cold_start)
{
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;

	start(NULL);
	client = fill_cache(keys, &space);
	kvt_test_daemon_configure(&daemon_, "n_pages = 2048\n");
	kill(daemon_.pid, SIGUSR2);
	await_ready();
	expect_cold_start(client, keys, "the stored arena has");
}

/* ---- upgrades */

TEST(upgrades_and_crashes_under_load_lose_nothing)
{
	struct kvt_test_child children[3];

	start(NULL);
	for (int i = 0; i < 3; i++)
		kvt_work_start(&children[i], &daemon_);
	for (int i = 0; i < 6; i++) {
		if (i % 2) {
			kill_daemon();
		} else {
			kill(daemon_.pid, SIGUSR2);
			await_ready();
		}
	}
	/* Arena, ledger, log, pool, lock; five per session; and the socket. */
	kvt_test_check(kvt_test_daemon_said(&daemon_, "sessions=3 kept=21"));
	kvt_test_check(kvt_test_daemon_said(&daemon_, "ready=yes kept=21"));
	for (int i = 0; i < 3; i++)
		kvt_work_finish(&children[i]);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	stop_clean();
}

/* ---- hanging */

TEST(a_stopped_daemon_is_noticed_by_deadlines_and_by_the_watchdog)
{
	struct kvt_counters counters;
	struct kvt_client *client;

	start("watchdog_ms = 1000\n");
	client = kvt_test_connect(&daemon_);
	kvt_test_freeze(daemon_.pid); /* else its watchdog may be as quick as the deadline */
	kvt_test_freeze(kvt_test_daemon_child(&daemon_));
	kvt_client_set_timeout(client, 50000000);
	kvt_test_equal(kvt_stats(client, &counters), -ETIMEDOUT);
	kill(daemon_.pid, SIGCONT);
	await_ready();
	kvt_test_check(kvt_test_daemon_said(&daemon_, "event=watchdog"));
	kvt_client_set_timeout(client, 0);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
}

/* Wake the supervisor once. When it sleeps again it has taken the signal. */
static void go_round(void)
{
	char path[64], line[128];
	unsigned long long pending = 1;

	kvt_test_equal(kill(daemon_.pid, SIGHUP), 0);
	snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon_.pid);
	while (pending || kvt_test_process_state(daemon_.pid) != 'S') {
		FILE *file = fopen(path, "re");

		while (file && fgets(line, sizeof(line), file))
			sscanf(line, "ShdPnd: %llx", &pending);
		fclose(file);
		sched_yield();
	}
}

/* A killed process that is stuck in the kernel (state D): its parent does not see it end. Here
 * because its tracer has not waited for it. */
TEST(a_killed_child_that_does_not_end_is_said_once)
{
	siginfo_t end;
	pid_t child;

	start("watchdog_ms = 3000\n");
	child = kvt_test_daemon_child(&daemon_);
	if (!kvt_trace_seize(child, false))
		kvt_skip("processes cannot be traced here");
	kvt_trace_stop(child);
	/* SIGABRT leaves it unchanged; SIGKILL ends it. */
	kvt_test_equal(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT), 0);
	kvt_test_equal(end.si_status, SIGKILL);
	for (int i = 0; i < 20; i++)
		go_round();
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=watchdog"), 2); /* ABRT, KILL */
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=child_stuck"), 0);
	kvt_test_equal(waitid(P_PID, (id_t)child, &end, WEXITED), 0);
	await_ready();
	kvt_test_daemon_end(&daemon_);
}

static const char *lock_path(void)
{
	static char path[256];

	snprintf(path, sizeof(path), "%s/%s.lock.d/lock", daemon_.dir, daemon_.name);
	return path;
}

/* Another user's process: waits for whichever lock file it can open, and never releases it. */
static void stranger_run(int pipe, void *context)
{
	static const char *const names[] = { "%s/%s.lock", "%s/%s.lock.d/lock" };
	char path[256];
	int fd = -1;

	kvt_test_check(setgid(65534) == 0 && setuid(65534) == 0);
	for (size_t i = 0; i < 2 && fd < 0; i++) {
		snprintf(path, sizeof(path), names[i], daemon_.dir, daemon_.name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
	}
	kvt_test_send(pipe, fd >= 0);
	if (fd >= 0)
		flock(fd, LOCK_SH);
	kvt_test_expect(pipe, 9);
}

/* A shared lock would precede the successor's. */
TEST(a_stranger_does_not_keep_the_successor_out)
{
	struct kvt_test_child stranger;
	struct kvt_client *client;
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_seq *seq;
	uint64_t opened;

	if (getuid() != 0)
		kvt_skip("needs root");
	start(NULL);
	client = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(client, space, keys);
	kvt_work_compute(client, seq, keys, 0, 16);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_child_start(&stranger, stranger_run, NULL);
	opened = kvt_test_word(stranger.pipe);
	while (opened && kvt_test_process_state(stranger.pid) != 'S')
		sched_yield();
	for (int i = 0; i < 3; i++)
		kill_daemon();
	kvt_test_equal(matched(client, "restart", keys), KVT_WORK_KEYS);
	kvt_test_equal(opened, 0);
	kvt_test_child_kill(&stranger, SIGKILL);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

/* No daemon of the same user can start between a dead one and its successor. */
TEST(the_lock_outlives_its_daemon)
{
	int fd;

	start(NULL);
	for (int i = 0; i < 2; i++) {
		kill_daemon_for_a_while();
		fd = open(lock_path(), O_RDWR | O_CLOEXEC);
		kvt_test_check(fd >= 0);
		kvt_test_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
		close(fd);
		resume_supervisor();
	}
	kvt_test_daemon_end(&daemon_);
}

/* Removed with all of /run, for example: the successor makes another. */
TEST(a_lock_that_was_removed_is_made_again)
{
	struct kvt_test_daemon other;
	int status;

	start(NULL);
	kvt_test_equal(unlink(lock_path()), 0);
	for (int i = 0; i < 2; i++)
		kill_daemon();
	other = daemon_;
	other.supervised = other.logged = false;
	kvt_test_daemon_spawn(&other, NULL);
	status = kvt_test_daemon_wait(&other);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	kvt_test_daemon_end(&daemon_);
}

/* Another process has the lock when the successor starts: the cache must survive that. */
TEST(a_successor_that_finds_the_lock_taken_is_started_again)
{
	struct kvt_client *client;
	uint32_t keys[KVT_WORK_KEYS], space;
	int fd;

	start(NULL);
	client = fill_cache(keys, &space);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(unlink(lock_path()), 0);
	fd = open(lock_path(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	kvt_test_check(fd >= 0 && flock(fd, LOCK_EX) == 0 && dprintf(fd, "1\n") == 2);
	kvt_test_equal(kill(kvt_test_daemon_child(&daemon_), SIGKILL), 0);
	while (!kvt_test_daemon_said(&daemon_, "already served by a live daemon, pid 1 "))
		sched_yield();
	close(fd);
	await_ready();
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(client, "doubt", keys), KVT_WORK_KEYS);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* Only the socket that clients connect to has a name: strangers fill the queue of a named one. */
TEST(no_stranger_can_send_to_the_supervisor)
{
	char line[512], what[64], path[300], target[256];
	struct dirent *entry;
	unsigned long inode;
	FILE *file;
	DIR *dir;

	start(NULL);
	file = fopen("/proc/net/unix", "re");
	kvt_test_check(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu%*[ ]%255s", &inode, target) != 2 ||
		    strcmp(target, daemon_.socket) == 0)
			continue;
		snprintf(what, sizeof(what), "socket:[%lu]", inode);
		snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_.pid);
		dir = opendir(path);
		while ((entry = readdir(dir))) {
			ssize_t n;

			n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);
			target[n > 0 ? n : 0] = '\0';
			if (strcmp(target, what) == 0)
				kvt_test_fail("descriptor %s has a name: %s", entry->d_name, line);
		}
		closedir(dir);
	}
	fclose(file);
	kvt_test_daemon_end(&daemon_);
}

/* ---- no daemon can be started */

#define PATIENCE_NS 20000000000ll /* a client that is told nothing waits longer */

static struct rlimit nofile;

/* Start, connect, and let the supervisor have no descriptors for a successor. */
static struct kvt_client *start_once(const char *more, uint32_t *keys)
{
	struct kvt_client *client;
	struct kvt_seq *seq;
	struct rlimit few;

	start(more);
	kvt_work_keys(keys, KVT_WORK_KEYS, 6);
	client = kvt_test_connect(&daemon_);
	kvt_client_set_timeout(client, PATIENCE_NS);
	seq = kvt_work_begin(client, kvt_test_namespace(client, "restart"), keys);
	kvt_work_compute(client, seq, keys, 0, 16);
	kvt_test_equal(kvt_seq_end(seq, 256, NULL, 0, KVT_IDLE, 0), 0);
	/* Asleep, it has taken the session's descriptors. */
	while (kvt_test_process_state(daemon_.pid) != 'S')
		sched_yield();
	kvt_test_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, NULL, &nofile), 0);
	few = (struct rlimit){ 20, nofile.rlim_max };
	kvt_test_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &few, NULL), 0);
	kvt_test_equal(kill(kvt_test_daemon_child(&daemon_), SIGKILL), 0);
	return client;
}

static void await_words(const char *words)
{
	while (!kvt_test_daemon_said(&daemon_, words))
		sched_yield();
}

TEST(a_supervisor_that_cannot_start_a_daemon_keeps_the_cache)
{
	uint32_t keys[KVT_WORK_KEYS];
	struct kvt_client *client = start_once(NULL, keys);

	await_words("event=start_failed failed_starts=4");
	kvt_test_check(kvt_test_daemon_said(&daemon_, "raise RLIMIT_NOFILE of the supervisor"));
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=store_dropped"));
	kvt_test_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &nofile, NULL), 0);
	kill(daemon_.pid, SIGUSR2);
	await_ready();
	check_prompt(client, keys);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

TEST(a_supervisor_without_a_daemon_ends_at_sigterm_and_clients_are_told)
{
	uint32_t keys[KVT_WORK_KEYS], page;
	struct kvt_client *client = start_once(NULL, keys);

	await_words("event=start_failed failed_starts=2");
	kvt_test_daemon_stop(&daemon_);
	kvt_test_equal(kvt_alloc(client, 1, &page), -ECONNRESET);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon_);
}

TEST(the_cache_is_dropped_in_words_when_its_time_has_passed)
{
	uint32_t keys[KVT_WORK_KEYS], page;
	struct kvt_client *client = start_once("keep_cache_ms = 1\n", keys);
	int rc;

	await_words("event=store_dropped");
	kvt_test_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &nofile, NULL), 0);
	/* Told by its bell, or by a daemon that started with an empty cache. */
	rc = kvt_alloc(client, 1, &page);
	kvt_test_check(rc == -ECONNRESET || rc == -ESTALE);
	kvt_client_close(client, KVT_IDLE);
	await_ready();
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(client, "restart", keys), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

TEST(when_daemon_and_supervisor_are_killed_clients_are_told)
{
	uint32_t page;
	struct kvt_client *client;
	pid_t pid;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	kvt_client_set_timeout(client, PATIENCE_NS);
	pid = kvt_test_daemon_child(&daemon_);
	kvt_test_freeze(daemon_.pid);
	kill(pid, SIGKILL);
	kill(daemon_.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon_);
	kvt_test_equal(kvt_alloc(client, 1, &page), -ECONNRESET);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon_);
}

TEST(when_the_supervisor_stops_clients_are_told_and_nothing_is_left)
{
	struct kvt_counters counters;
	struct kvt_client *client;

	start(NULL);
	client = kvt_test_connect(&daemon_);
	kill_daemon();
	kvt_test_daemon_stop(&daemon_);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon_);
}

/* Its daemon has died, and it gets SIGTERM before it has started another one. */
TEST(a_supervisor_that_stops_without_a_daemon_leaves_nothing)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *none;
	char names[1024];
	int status;

	start(NULL);
	kill_daemon_for_a_while();
	kvt_test_equal(kill(daemon_.pid, SIGTERM), 0);
	kvt_test_equal(kill(daemon_.pid, SIGCONT), 0);
	status = kvt_test_daemon_wait(&daemon_);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	if (kvt_test_daemon_leftovers(&daemon_, names, sizeof(names)))
		kvt_test_fail("left behind: %s", names);
	options.socket_path = daemon_.socket;
	options.connect_wait_ns = -1;
	kvt_test_equal(kvt_client_connect(&none, &options, NULL), -ENOENT);
	kvt_test_daemon_remove(&daemon_);
}
