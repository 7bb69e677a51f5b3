/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon under `kvtrunkd --supervise` is killed, stopped, upgraded, taken over, or finds that
 * what it left cannot be used; its clients go on or are told why not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
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

#include "libclient/client.h"
#include "tests/lib/harness.h"
#include "tests/restart/trace.h"
#include "tests/restart/work.h"

#define N_PAGES 4096

static struct kvt_test_daemon daemon_;

/* ---- the world */

static char log_flag[128];

static void prepare(const char *more)
{
	kvt_test_daemon_prepare(&daemon_, more);
	snprintf(log_flag, sizeof(log_flag), "--log_file=%s/operations", daemon_.dir);
}

static void start(const char *more)
{
	const char *const supervised[] = { "--supervise", log_flag, NULL };

	prepare(more);
	kvt_test_daemon_start(&daemon_, supervised);
}

static void stop(void)
{
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

static void await_ready(void)
{
	if (!kvt_test_daemon_await(&daemon_, "READY=1"))
		kvt_test_fail("no daemon came back");
}

static void kill_daemon(void)
{
	kvt_test_equal(kill(kvt_test_daemon_child(&daemon_), SIGKILL), 0);
	await_ready();
}

/* Nobody starts the next one until resume_supervisor(). */
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

static struct kvt_client *connect_with(uint32_t flags)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;

	options.socket_path = daemon_.socket;
	options.flags = flags;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	return client;
}

static uint32_t matched(struct kvt_client *client, uint32_t space, const uint32_t *keys)
{
	struct kvt_result result;

	kvt_test_equal(kvt_match(client, space, keys, KVT_WORK_KEYS, 0, &result), 0);
	return result.matched;
}

/* What others computed of a prompt is there, and right. */
static void check_prompt(struct kvt_client *client, const uint32_t *keys)
{
	struct kvt_seq *seq = kvt_work_begin(client, kvt_test_namespace(client, "restart"), keys);

	kvt_work_check(client, seq, keys, 15);
}

/* All clients are gone: nothing is lost, and the log of all daemons is what the oracle says. */
static void stop_clean(void)
{
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_audit(&daemon_);
	kvt_test_verify(&daemon_);
	stop();
}

/* ---- killed */

static void go_on(const char *more)
{
	struct kvt_client *client, *other;
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_seq *seq;

	start(more);
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	client = kvt_test_connect(&daemon_);
	kvt_test_check(kvt_client_info(client)->kept);
	space = kvt_test_namespace(client, "restart");
	seq = kvt_work_begin(client, space, keys);
	kvt_work_compute(client, seq, keys, 0, 8);
	kvt_test_equal(kvt_seq_commit(seq, 128, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kill_daemon();
	/* Its lease, its private pages and its namespace are its own, as before. */
	kvt_work_compute(client, seq, keys, 8, 16);
	kvt_test_equal(kvt_seq_commit(seq, 256, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_extend(seq, 32), 0);
	kill_daemon();
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	other = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(other, kvt_test_namespace(other, "restart"), keys), KVT_WORK_KEYS);
	check_prompt(other, keys);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

static void a_client_goes_on_with_the_successor_of_a_killed_daemon(void **state)
{
	(void)state;
	go_on(NULL);
}

static void a_client_connects_again_with_its_secret(void **state)
{
	(void)state;
	go_on("park_connections = no\n");
}

/* Commits that were not waited for while nobody was there to take them. The successor answers, and
 * knows which pages they displaced; its own successor, too. */
static void commits_in_flight_go_on(const char *more)
{
	struct kvt_client *client, *other;
	uint32_t keys[KVT_WORK_KEYS], old[17], space, n;
	struct kvt_seq *seq, *twin;
	const uint32_t *pages;

	start(more);
	kvt_work_keys(keys, KVT_WORK_KEYS, 4);
	client = kvt_test_connect(&daemon_);
	other = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	seq = kvt_work_begin(client, space, keys);
	kvt_client_set_begin_wait(other, -1);
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

static void commits_that_nobody_waits_for_survive(void **state)
{
	(void)state;
	commits_in_flight_go_on(NULL);
}

static void commits_that_nobody_waits_for_survive_a_new_connection(void **state)
{
	(void)state;
	commits_in_flight_go_on("park_connections = no\n");
}

/* Waiters of every kind, asleep when the daemon dies; what they wait for comes after it. */
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

/* A thread of the child would do, but the fence word is in shared memory: another process that has
 * the same segment can raise it. Here the parent does, through the supervisor's descriptor. */
static void waiter_run(int pipe, void *context)
{
	struct kvt_client *client = connect_with(0);
	size_t which = (size_t)(uintptr_t)context;

	kvt_test_send(pipe, kvt_client_info(client)->session);
	waits[which](client, pipe);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

/* A descriptor that the supervisor keeps, whose name begins with `what`. */
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
			fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (dir)
		closedir(dir);
	return fd;
}

/* Fence word 0 of every session, through the segments that the supervisor keeps. It lets go of one
 * whose session ends, which may be at once: so all are opened before any is raised. */
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

static void waiters_go_on(const char *more)
{
	struct kvt_test_child children[N_WAITS];
	uint64_t session;

	start(more);
	for (size_t i = 0; i < N_WAITS; i++) {
		kvt_test_child_start(&children[i], waiter_run, (void *)(uintptr_t)i);
		kvt_test_check(kvt_test_receive(children[i].pipe, &session) && session > 0);
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
	stop();
}

static void every_waiter_goes_on(void **state)
{
	(void)state;
	waiters_go_on(NULL);
}

static void every_waiter_goes_on_with_a_new_connection(void **state)
{
	(void)state;
	waiters_go_on("park_connections = no\n");
}

/* ---- control socket */

static void asking_run(int pipe, void *context)
{
	const uint64_t digest[2] = { 17, 18 };
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	bool observer = context != NULL;
	struct kvt_client *client = connect_with(observer ? KVT_HELLO_OBSERVE : 0);
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

static void what_was_asked_on_the_control_socket_is_asked_again(void **state)
{
	struct kvt_test_child children[2];

	(void)state;
	start(NULL);
	for (size_t i = 0; i < 2; i++) {
		kvt_test_child_start(&children[i], asking_run, (void *)(uintptr_t)i);
		kvt_test_expect(children[i].pipe, 1);
	}
	kvt_test_freeze(kvt_test_daemon_child(&daemon_)); /* nobody reads the question */
	for (size_t i = 0; i < 2; i++)
		kvt_test_send(children[i].pipe, 9);
	kill_daemon();
	for (size_t i = 0; i < 2; i++) {
		kvt_test_expect(children[i].pipe, 2);
		kvt_test_child_finish(&children[i]);
	}
	stop();
}

static void ender_run(int pipe, void *context)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_ENDED };
	struct kvt_client *client = connect_with(0);

	(void)context;
	kvt_test_check(kvt_test_receive(pipe, &request.argument));
	kvt_test_send(pipe, 1);
	kvt_test_equal(kvt_admin(client, &request, NULL, 0, NULL, 0), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

/* The daemon has read this question and waits with the answer, and takes that with it. */
static void what_was_heard_and_not_answered_is_asked_again(void **state)
{
	struct kvt_test_child child;
	struct kvt_client *client;

	(void)state;
	start(NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_child_start(&child, ender_run, NULL);
	kvt_test_send(child.pipe, kvt_client_info(client)->session);
	kvt_test_expect(child.pipe, 1);
	while (kvt_test_process_state(child.pid) != 'S')
		sched_yield();
	kvt_test_audit(&daemon_); /* a round trip: what was sent before it was read */
	kill_daemon();
	kvt_client_close(client, KVT_IDLE);
	kvt_test_expect(child.pipe, 2);
	kvt_test_child_finish(&child);
	stop();
}

/* ---- those who are not there any more */

static void holder_run(int pipe, void *context)
{
	struct kvt_client *client = connect_with(0);
	uint32_t keys[KVT_WORK_KEYS], pages[8], space;
	struct kvt_seq *seq;

	(void)context;
	kvt_work_keys(keys, KVT_WORK_KEYS, 2);
	space = kvt_test_namespace(client, "holder");
	seq = kvt_work_begin(client, space, keys);
	kvt_test_equal(kvt_seq_commit(seq, 64, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	kvt_test_equal(kvt_alloc(client, 8, pages), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_expect(pipe, 9);
}

static void an_owner_that_died_while_no_daemon_lived_is_found(void **state)
{
	struct kvt_counters counters;
	struct kvt_test_child child;
	uint64_t session;

	(void)state;
	start(NULL);
	kvt_test_child_start(&child, holder_run, NULL);
	kvt_test_check(kvt_test_receive(child.pipe, &session) && session > 0);
	kill_daemon_for_a_while();
	kvt_test_child_kill(&child, SIGKILL);
	resume_supervisor();
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.private_pages + counters.quarantined_pages, 0);
	kvt_test_equal(counters.live_leases, 0);
	kvt_test_equal(counters.cached_pages, 4);
	kvt_test_audit(&daemon_);
	stop();
}

/* While nobody lives the socket listens: who asks is in its queue, and stays there. */
static void who_asked_before_a_successor_came_goes_on(void **state)
{
	struct kvt_counters counters;
	struct kvt_client *client;
	uint32_t page;

	(void)state;
	start("park_connections = no\n");
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
	stop();
}

static void who_does_not_want_to_go_on_is_told_at_once(void **state)
{
	struct kvt_client *client;
	struct kvt_counters counters;

	(void)state;
	start(NULL);
	client = connect_with(KVT_HELLO_NO_RESUME);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kill_daemon();
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_test_session_ended(&daemon_, kvt_client_info(client)->session);
	kvt_client_close(client, KVT_IDLE);
	stop();
}

/* ---- secrets */

static void a_wrong_secret_resumes_nothing(void **state)
{
	const uint64_t digest[2] = { 17, 18 };
	struct kvt_client *client;
	uint32_t number;

	(void)state;
	start("park_connections = no\n");
	client = kvt_test_connect(&daemon_);
	client->hello.secret[1] ^= 1;
	kill_daemon();
	kvt_test_equal(kvt_namespace_open(client, digest, "late", &number), -ESTALE);
	kvt_test_check(strstr(kvt_client_error(client)->text, "no session with this secret"));
	kvt_client_close(client, KVT_IDLE);
	stop();
}

/* Says HELLO with a secret that it was told. */
static void thief_run(int pipe, void *context)
{
	struct kvt_message_hello *hello = context;
	struct kvt_message_refused answer;
	uint64_t secret[2];
	int fd;

	kvt_test_check(kvt_test_receive(pipe, &secret[0]) && kvt_test_receive(pipe, &secret[1]));
	hello->pid = getpid();
	memcpy(hello->secret, secret, sizeof(secret));
	kvt_test_equal(kvt_control_open(daemon_.socket, kvt_client_now_ns() + 5000000000ll, &fd,
					NULL), 0);
	kvt_test_equal(kvt_control_send(fd, hello, sizeof(*hello), NULL, 0, INT64_MAX), 0);
	kvt_test_equal(kvt_control_receive(fd, &answer, sizeof(answer), NULL, 0, NULL, INT64_MAX),
		       sizeof(answer));
	kvt_test_equal(answer.head.type, KVT_MSG_REFUSED);
	kvt_test_equal(answer.head.result, -ESTALE);
	kvt_test_check(strstr(answer.text, "another process"));
	kvt_test_send(pipe, 2);
}

static void the_right_secret_of_another_process_resumes_nothing(void **state)
{
	struct kvt_counters counters;
	struct kvt_message_hello hello;
	struct kvt_test_child thief;
	struct kvt_client *client;

	(void)state;
	start("park_connections = no\n");
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
	stop();
}

/* ---- doubt */

/* The old cache is not served: a new one, and the clients of the old one know. */
static void expect_cold_start(struct kvt_client *client, const uint32_t *keys, const char *why)
{
	struct kvt_counters counters;
	struct kvt_client *fresh;

	if (!kvt_test_daemon_said(&daemon_, "event=cold_start") ||
	    !kvt_test_daemon_said(&daemon_, why))
		kvt_test_fail("not said: %s", why);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	fresh = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(fresh, kvt_test_namespace(fresh, "doubt"), keys), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).cached_pages, 0);
	kvt_client_close(fresh, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_audit(&daemon_);
	stop();
}

static struct kvt_client *fill_cache(uint32_t *keys, uint32_t *ret_space)
{
	struct kvt_client *client = connect_with(KVT_HELLO_NO_RESUME);
	struct kvt_seq *seq;

	kvt_work_keys(keys, KVT_WORK_KEYS, 3);
	*ret_space = kvt_test_namespace(client, "doubt");
	seq = kvt_work_begin(client, *ret_space, keys);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(matched(client, *ret_space, keys), KVT_WORK_KEYS);
	return client;
}

static void damage_in_the_ledger_is_a_cold_start(void **state)
{
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;
	struct kvt_ledger_header ledger;
	struct kvt_owner_record wrong = { 77, 88, 0xffffffffu, 0xffffffffu };
	int fd;

	(void)state;
	start(NULL);
	client = fill_cache(keys, &space);
	kill_daemon_for_a_while();
	fd = open_kept(".ledger.", 0);
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

static void another_geometry_is_a_cold_start(void **state)
{
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;
	FILE *file;

	(void)state;
	start(NULL);
	client = fill_cache(keys, &space);
	file = fopen(daemon_.config, "ae");
	kvt_test_check(file && fputs("n_pages = 2048\n", file) >= 0 && fclose(file) == 0);
	kill(daemon_.pid, SIGUSR2);
	await_ready();
	expect_cold_start(client, keys, "the arena that was left has");
}

/* ---- upgrades */

static void upgrades_and_crashes_under_load_lose_nothing(void **state)
{
	struct kvt_test_child children[3];

	(void)state;
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
	for (int i = 0; i < 3; i++)
		kvt_work_finish(&children[i]);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	stop_clean();
}

static void a_running_daemon_is_taken_over_under_load(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	const char *const takeover[] = { "--takeover", log_flag, NULL };
	const char *const other[] = { "--takeover", "--n-pages=2048", log_flag, NULL };
	struct kvt_test_child children[2];
	int status;

	(void)state;
	prepare(NULL);
	kvt_test_daemon_start(&daemon_, alone);
	for (int i = 0; i < 2; i++)
		kvt_work_start(&children[i], &daemon_);
	for (int i = 0; i < 6; i++) {
		pid_t old = daemon_.pid;

		kvt_test_daemon_spawn(&daemon_, i % 2 ? other : takeover);
		if (i % 2) { /* it cannot: the old one serves on */
			status = kvt_test_daemon_wait(&daemon_);
			kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
			daemon_.pid = old;
		} else {
			await_ready();
			kvt_test_check(waitpid(old, &status, 0) == old && status == 0);
		}
	}
	for (int i = 0; i < 2; i++)
		kvt_work_finish(&children[i]);
	stop_clean();
}

/* From a daemon that nobody supervises to one that somebody does. */
static void take_over_supervised(void)
{
	const char *const both[] = { "--supervise", "--takeover", log_flag, NULL };
	pid_t old = daemon_.pid;
	int status;

	kvt_test_daemon_start(&daemon_, both);
	kvt_test_check(waitpid(old, &status, 0) == old && status == 0);
}

static void what_was_taken_over_survives_a_crash(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	struct kvt_test_child children[2];
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;
	struct kvt_seq *seq;
	int queued;

	(void)state;
	prepare(NULL);
	kvt_test_daemon_start(&daemon_, alone);
	for (int i = 0; i < 2; i++)
		kvt_work_start(&children[i], &daemon_);
	client = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(client, space, keys);
	kvt_work_compute(client, seq, keys, 0, 8);
	kvt_test_equal(kvt_seq_commit(seq, 128, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
	take_over_supervised();
	kvt_test_equal(kill(daemon_.pid, SIGUSR2), 0); /* the same command again, in order */
	await_ready();
	/* Arena, ledger, log, pool, lock; six of each session; and the socket. */
	kvt_test_check(kvt_test_daemon_said(&daemon_, "sessions=3 parked=23"));
	kvt_test_check(kvt_test_daemon_said(&daemon_, "ready=yes kept=24"));
	for (int i = 0; i < 3; i++) {
		kill_daemon();
		kvt_test_equal(matched(client, space, keys), 128);
	}
	kill_daemon_for_a_while();
	kvt_test_equal(kvt_control_open(daemon_.socket, INT64_MAX, &queued, NULL), 0);
	resume_supervisor();
	close(queued);
	kvt_work_compute(client, seq, keys, 8, 16);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	check_prompt(client, keys);
	kvt_client_close(client, KVT_IDLE);
	for (int i = 0; i < 2; i++)
		kvt_work_finish(&children[i]);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=not_parked"));
	stop_clean();
}

/* The third and the second ask the first one, or whoever took over from it meanwhile. */
static void several_take_over_at_once(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	const char *const takeover[] = { "--takeover", log_flag, NULL };
	struct kvt_test_child children[2];
	pid_t pids[1 + 3];

	(void)state;
	prepare(NULL);
	kvt_test_daemon_start(&daemon_, alone);
	for (int i = 0; i < 2; i++)
		kvt_work_start(&children[i], &daemon_);
	pids[0] = daemon_.pid;
	for (int round = 0; round < 4; round++) {
		siginfo_t end;

		for (int i = 1; i <= 3; i++) {
			kvt_test_daemon_spawn(&daemon_, takeover);
			pids[i] = daemon_.pid;
		}
		for (int n = 0; n < 3; n++) {
			kvt_test_equal(waitid(P_ALL, 0, &end, WEXITED), 0);
			kvt_test_equal(end.si_status, 0);
			for (int i = 0; i <= 3; i++)
				pids[i] = pids[i] == end.si_pid ? 0 : pids[i];
		}
		for (int i = 0; i <= 3; i++)
			daemon_.pid = pids[i] ? pids[i] : daemon_.pid;
		pids[0] = daemon_.pid;
		kvt_test_audit(&daemon_);
	}
	for (int i = 0; i < 2; i++)
		kvt_work_finish(&children[i]);
	stop_clean();
}

static void who_wants_to_end_with_its_daemon_is_not_handed_over(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	struct kvt_counters counters;
	struct kvt_client *client;

	(void)state;
	prepare(NULL);
	kvt_test_daemon_start(&daemon_, alone);
	client = connect_with(KVT_HELLO_NO_RESUME);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	take_over_supervised();
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_test_session_ended(&daemon_, kvt_client_info(client)->session);
	kvt_client_close(client, KVT_IDLE);
	stop();
}

/* No room for the log, as on a full disk: the cache goes on without it. */
static void a_full_disk_for_the_log_hinders_no_takeover(void **state)
{
	const char *const alone[] = { log_flag, NULL };
	const char *const takeover[] = { "--takeover", log_flag, NULL };
	const struct rlimit full = { 4096, RLIM_INFINITY };
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_client *client;
	struct kvt_seq *seq;
	pid_t old;
	int status;

	(void)state;
	prepare("spin_budget_us = -1\n"); /* it writes when it sleeps, or has to */
	kvt_test_daemon_start(&daemon_, alone);
	client = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	for (uint32_t i = 0; i < 8; i++) {
		kvt_work_keys(keys, KVT_WORK_KEYS, i);
		seq = kvt_work_begin(client, space, keys);
		kvt_work_compute(client, seq, keys, 0, 16);
		kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	}
	old = daemon_.pid;
	kvt_test_equal(prlimit(old, RLIMIT_FSIZE, &full, NULL), 0);
	kvt_test_daemon_start(&daemon_, takeover);
	kvt_test_check(waitpid(old, &status, 0) == old && status == 0);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "event=oplog_failed"));
	kvt_test_equal(matched(client, space, keys), KVT_WORK_KEYS);
	check_prompt(client, keys);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_audit(&daemon_);
	stop();
}

static void a_managed_daemon_is_not_taken_over(void **state)
{
	static const char *const takeover[] = { "--takeover", NULL };
	pid_t supervisor;
	int status;

	(void)state;
	start(NULL);
	supervisor = daemon_.pid;
	kvt_test_daemon_spawn(&daemon_, takeover);
	status = kvt_test_daemon_wait(&daemon_);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "SIGUSR2 to kvtrunkd --supervise"));
	daemon_.pid = supervisor;
	kvt_test_audit(&daemon_);
	stop();
}

/* ---- hanging */

static void a_stopped_daemon_is_noticed_by_deadlines_and_by_the_watchdog(void **state)
{
	struct kvt_counters counters;
	struct kvt_client *client;

	(void)state;
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
	stop();
}

static uint32_t count_said(const char *text)
{
	FILE *file = fopen(daemon_.output, "re");
	char line[2048];
	uint32_t n = 0;

	while (file && fgets(line, sizeof(line), file))
		n += strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return n;
}

/* Have the supervisor go round once: when it sleeps again it has taken the signal. */
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

/* As with one that is killed and stuck in the kernel (state D), its parent does not hear that it
 * has ended: here because its tracer has not waited for it. */
static void a_killed_child_that_does_not_end_is_said_once(void **state)
{
	siginfo_t end;
	pid_t child;

	(void)state;
	start("watchdog_ms = 100\n");
	child = kvt_test_daemon_child(&daemon_);
	if (!kvt_trace_seize(child, false))
		skip();
	kvt_trace_stop(child);
	/* It stays as it is when SIGABRT comes; SIGKILL ends it. */
	kvt_test_equal(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT), 0);
	kvt_test_equal(end.si_status, SIGKILL);
	for (int i = 0; i < 20; i++)
		go_round();
	kvt_test_equal(count_said("event=watchdog"), 2); /* ABRT, KILL */
	kvt_test_equal(count_said("event=child_stuck"), 0);
	kvt_test_equal(waitid(P_PID, (id_t)child, &end, WEXITED), 0);
	await_ready();
	stop();
}

/* Of another user: waits for whatever lock file it can open, and never lets go. */
static void stranger_run(int pipe, void *context)
{
	static const char *const names[] = { "%s/%s.lock", "%s/%s.lock.d/lock" };
	char path[256];
	int fd = -1;

	(void)context;
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

/* A shared lock would come before the successor's. */
static void a_stranger_does_not_keep_the_successor_out(void **state)
{
	struct kvt_test_child stranger;
	struct kvt_client *client;
	uint32_t keys[KVT_WORK_KEYS], space;
	struct kvt_seq *seq;
	uint64_t opened;

	(void)state;
	if (getuid() != 0)
		skip();
	start(NULL);
	kvt_test_equal(chmod(daemon_.dir, 0755), 0);
	client = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "restart");
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(client, space, keys);
	kvt_work_compute(client, seq, keys, 0, 16);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_child_start(&stranger, stranger_run, NULL);
	kvt_test_check(kvt_test_receive(stranger.pipe, &opened));
	while (opened && kvt_test_process_state(stranger.pid) != 'S')
		sched_yield();
	for (int i = 0; i < 3; i++)
		kill_daemon();
	kvt_test_equal(matched(client, space, keys), KVT_WORK_KEYS);
	kvt_test_equal(opened, 0);
	kvt_test_child_kill(&stranger, SIGKILL);
	kvt_client_close(client, KVT_IDLE);
	stop_clean();
}

/* No daemon of the same user can come between one that died and its successor. */
static void the_lock_outlives_its_daemon(void **state)
{
	char path[256];
	int fd;

	(void)state;
	start(NULL);
	for (int i = 0; i < 2; i++) {
		kill_daemon_for_a_while();
		snprintf(path, sizeof(path), "%s/%s.lock.d/lock", daemon_.dir, daemon_.name);
		fd = open(path, O_RDWR | O_CLOEXEC);
		kvt_test_check(fd >= 0);
		kvt_test_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
		close(fd);
		resume_supervisor();
	}
	stop();
}

/* Removed with everything in /run, say: the successor makes another. */
static void a_lock_that_was_removed_is_made_again(void **state)
{
	const char *const second[] = { NULL };
	struct kvt_test_daemon other;
	char path[256];
	int status;

	(void)state;
	start(NULL);
	snprintf(path, sizeof(path), "%s/%s.lock.d/lock", daemon_.dir, daemon_.name);
	kvt_test_equal(unlink(path), 0);
	for (int i = 0; i < 2; i++)
		kill_daemon();
	other = daemon_;
	kvt_test_daemon_spawn(&other, second);
	status = kvt_test_daemon_wait(&other);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 3);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=cold_start"));
	stop();
}

/* Somebody else has the lock when the successor starts: that is no reason to end with the cache. */
static void a_successor_that_finds_the_lock_taken_is_started_again(void **state)
{
	struct kvt_client *client;
	uint32_t keys[KVT_WORK_KEYS], space;
	char path[256];
	int fd;

	(void)state;
	start(NULL);
	client = fill_cache(keys, &space);
	kvt_client_close(client, KVT_IDLE);
	snprintf(path, sizeof(path), "%s/%s.lock.d/lock", daemon_.dir, daemon_.name);
	kvt_test_equal(unlink(path), 0);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	kvt_test_check(fd >= 0 && flock(fd, LOCK_EX) == 0 && dprintf(fd, "1\n") == 2);
	kvt_test_equal(kill(kvt_test_daemon_child(&daemon_), SIGKILL), 0);
	while (!kvt_test_daemon_said(&daemon_, "already served by a live daemon, pid 1 "))
		sched_yield();
	close(fd);
	await_ready();
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(matched(client, kvt_test_namespace(client, "doubt"), keys), KVT_WORK_KEYS);
	kvt_client_close(client, KVT_IDLE);
	stop();
}

/* No socket of the supervisor has a name but the one that clients connect to: what strangers send
 * to a named one takes up its queue. */
static void no_stranger_can_send_to_the_supervisor(void **state)
{
	char line[512], what[64], path[300], target[256];
	struct dirent *entry;
	unsigned long inode;
	FILE *file;
	DIR *dir;

	(void)state;
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
	stop();
}

static void when_the_supervisor_stops_clients_are_told_and_nothing_is_left(void **state)
{
	struct kvt_counters counters;
	struct kvt_client *client;

	(void)state;
	start(NULL);
	client = kvt_test_connect(&daemon_);
	kill_daemon();
	kvt_test_daemon_stop(&daemon_);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon_);
}

/* Its daemon has died, and it is told to end before it has started another one. */
static void a_supervisor_that_stops_without_a_daemon_leaves_nothing(void **state)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *none;
	char names[1024];
	int status;

	(void)state;
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

/* A name, or a pattern, runs the tests that it fits. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_goes_on_with_the_successor_of_a_killed_daemon),
		cmocka_unit_test(a_client_connects_again_with_its_secret),
		cmocka_unit_test(commits_that_nobody_waits_for_survive),
		cmocka_unit_test(commits_that_nobody_waits_for_survive_a_new_connection),
		cmocka_unit_test(every_waiter_goes_on),
		cmocka_unit_test(every_waiter_goes_on_with_a_new_connection),
		cmocka_unit_test(what_was_asked_on_the_control_socket_is_asked_again),
		cmocka_unit_test(what_was_heard_and_not_answered_is_asked_again),
		cmocka_unit_test(an_owner_that_died_while_no_daemon_lived_is_found),
		cmocka_unit_test(who_asked_before_a_successor_came_goes_on),
		cmocka_unit_test(who_does_not_want_to_go_on_is_told_at_once),
		cmocka_unit_test(a_wrong_secret_resumes_nothing),
		cmocka_unit_test(the_right_secret_of_another_process_resumes_nothing),
		cmocka_unit_test(damage_in_the_ledger_is_a_cold_start),
		cmocka_unit_test(another_geometry_is_a_cold_start),
		cmocka_unit_test(upgrades_and_crashes_under_load_lose_nothing),
		cmocka_unit_test(a_running_daemon_is_taken_over_under_load),
		cmocka_unit_test(what_was_taken_over_survives_a_crash),
		cmocka_unit_test(several_take_over_at_once),
		cmocka_unit_test(who_wants_to_end_with_its_daemon_is_not_handed_over),
		cmocka_unit_test(a_full_disk_for_the_log_hinders_no_takeover),
		cmocka_unit_test(a_managed_daemon_is_not_taken_over),
		cmocka_unit_test(a_stopped_daemon_is_noticed_by_deadlines_and_by_the_watchdog),
		cmocka_unit_test(a_killed_child_that_does_not_end_is_said_once),
		cmocka_unit_test(no_stranger_can_send_to_the_supervisor),
		cmocka_unit_test(a_stranger_does_not_keep_the_successor_out),
		cmocka_unit_test(the_lock_outlives_its_daemon),
		cmocka_unit_test(a_lock_that_was_removed_is_made_again),
		cmocka_unit_test(a_successor_that_finds_the_lock_taken_is_started_again),
		cmocka_unit_test(when_the_supervisor_stops_clients_are_told_and_nothing_is_left),
		cmocka_unit_test(a_supervisor_that_stops_without_a_daemon_leaves_nothing),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
