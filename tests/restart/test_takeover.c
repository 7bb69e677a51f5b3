/* SPDX-License-Identifier: Apache-2.0 */
/* Takeovers that fail, at every step: the daemon serves on, as if nobody had asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/client.h"
#include "tests/lib/harness.h"
#include "tests/restart/trace.h"
#include "tests/restart/work.h"

#define N_BUSY 2
#define NOBODY 65534

/* ---- the world: a daemon alone, clients at work, and an observer that stays */

static struct kvt_test_daemon daemon_;
static struct kvt_test_child busy[N_BUSY];
static struct kvt_client *watcher;
static uint32_t descriptors; /* of the daemon, with these */
static char log_flag[128];

/* An answer of the daemon: what happened before is over. */
static void round_trip(void)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;

	kvt_test_equal(kvt_admin(watcher, &request, NULL, 0, &status, sizeof(status)), 1);
}

/* What it holds now that it has done with all who came: a client hears its WELCOME before the
 * daemon has closed what it sent with it. */
static void count_descriptors(void)
{
	round_trip();
	descriptors = kvt_test_daemon_descriptors(&daemon_);
}

/* False: it may not be started as that user. */
static bool begin_as(uid_t uid, int clock)
{
	const char *const alone[] = { log_flag, NULL };

	kvt_test_daemon_prepare(&daemon_, "max_observers = 128\n");
	snprintf(log_flag, sizeof(log_flag), "--log_file=%s/operations", daemon_.dir);
	daemon_.uid = uid;
	daemon_.clock = clock;
	kvt_test_daemon_spawn(&daemon_, alone);
	if (!kvt_test_daemon_await(&daemon_, "READY=1")) {
		int status = kvt_test_daemon_wait(&daemon_);

		kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 77);
		kvt_test_daemon_remove(&daemon_);
		return false;
	}
	for (int i = 0; i < N_BUSY; i++)
		kvt_work_start(&busy[i], &daemon_);
	watcher = kvt_test_observe(&daemon_);
	count_descriptors();
	return true;
}

static void begin(void)
{
	kvt_test_check(begin_as(0, 0));
}

/* The daemon's patience ends when the test says so. */
static void begin_with_clock(void)
{
	int clock = eventfd(0, EFD_SEMAPHORE);

	kvt_test_check(clock > 0 && begin_as(0, clock));
}

/* The next `n` waits of the daemon that no event ends are over. */
static void let_time_pass(uint64_t n)
{
	kvt_test_equal(write(daemon_.clock, &n, sizeof(n)), sizeof(n));
}

static void expect_said(const char *text)
{
	if (!kvt_test_daemon_said(&daemon_, text))
		kvt_test_fail("not said: %s", text);
}

/* An answer later the daemon has seen every hang-up before; few more if it has to accept first.
 * Nobody was greeted by a daemon that never was. */
static void expect_nothing_left(void)
{
	char byte;

	kvt_test_equal(recv(kvt_client_control_fd(watcher), &byte, 1, MSG_PEEK | MSG_DONTWAIT), -1);
	for (int i = 0; i < 1000; i++) {
		round_trip();
		if (kvt_test_daemon_descriptors(&daemon_) == descriptors)
			return;
	}
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), descriptors);
}

static void end(void)
{
	for (int i = 0; i < N_BUSY; i++)
		kvt_work_finish(&busy[i]);
	kvt_client_close(watcher, KVT_IDLE);
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_verify(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

/* ---- who asks and is none */

static void ask(int control, uint32_t what, uint64_t cookie)
{
	struct kvt_message_admin request = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_ADMIN,
			  .version = KVT_ABI_MAJOR, .bytes = sizeof(request), .cookie = cookie },
		.what = what,
	};

	kvt_test_equal(send(control, &request, sizeof(request), MSG_NOSIGNAL), sizeof(request));
}

static void expect_answer(int control, uint64_t cookie, int result, const char *text)
{
	static union {
		struct kvt_message_admin admin;
		char bytes[KVT_MESSAGE_MAX];
	} answer;

	kvt_test_check(kvt_control_receive(control, &answer, sizeof(answer), NULL, 0, NULL,
					   INT64_MAX) >= (int)sizeof(answer.admin));
	kvt_test_equal(answer.admin.head.type, KVT_MSG_ADMIN);
	kvt_test_equal(answer.admin.head.cookie, cookie);
	kvt_test_equal(answer.admin.head.result, result);
	kvt_test_check(strstr(answer.admin.text, text));
}

/* Both messages are there before the daemon looks. */
static void who_says_more_than_the_request_gets_nothing(void **state)
{
	struct kvt_client *asker;
	int control;

	(void)state;
	begin();
	asker = kvt_test_observe(&daemon_);
	control = kvt_client_control_fd(asker);
	kvt_test_freeze(daemon_.pid);
	ask(control, KVT_ADMIN_TAKEOVER, 71);
	ask(control, KVT_ADMIN_STATUS, 72);
	kvt_test_equal(kill(daemon_.pid, SIGCONT), 0);
	expect_answer(control, 71, -EPROTO, "says nothing until it has taken up everything");
	expect_answer(control, 72, 0, "");
	kvt_client_close(asker, KVT_IDLE);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=handing_over"));
	end();
}

static void who_has_hung_up_gets_nothing(void **state)
{
	struct kvt_client *asker;

	(void)state;
	begin();
	asker = kvt_test_observe(&daemon_);
	kvt_test_freeze(daemon_.pid);
	ask(kvt_client_control_fd(asker), KVT_ADMIN_TAKEOVER, 71);
	kvt_client_close(asker, KVT_IDLE);
	kvt_test_equal(kill(daemon_.pid, SIGCONT), 0);
	expect_nothing_left();
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=handing_over"));
	end();
}

static void a_client_cannot_take_over(void **state)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_TAKEOVER };
	struct kvt_client *client;

	(void)state;
	begin();
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_admin(client, &request, NULL, 0, NULL, 0), -EINVAL);
	kvt_test_check(strstr(kvt_client_error(client)->text, "ask as an observer"));
	kvt_client_close(client, KVT_IDLE);
	end();
}

static void a_daemon_that_stops_is_not_taken_over(void **state)
{
	uint32_t keys[KVT_WORK_KEYS];
	struct kvt_client *client, *asker;
	struct kvt_seq *seq;

	(void)state;
	kvt_test_daemon_prepare(&daemon_, "drain_ms = 86400000\n");
	kvt_test_daemon_start(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	asker = kvt_test_observe(&daemon_);
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(client, kvt_test_namespace(client, "takeover"), keys);
	kvt_test_equal(kill(daemon_.pid, SIGTERM), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "STOPPING=1"));
	ask(kvt_client_control_fd(asker), KVT_ADMIN_TAKEOVER, 71);
	expect_answer(kvt_client_control_fd(asker), 71, -ESHUTDOWN, "without --takeover when it");
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_test_daemon_wait(&daemon_), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_client_close(asker, KVT_IDLE);
	kvt_test_daemon_remove(&daemon_);
}

/* ---- who takes everything and does not confirm */

static struct { /* by a taker */
	char name[48];
	int fd;
} taken[256];
static uint32_t n_taken;

static int taken_fd(const char *name)
{
	for (uint32_t i = 0; i < n_taken; i++)
		if (strcmp(taken[i].name, name) == 0)
			return taken[i].fd;
	kvt_test_fail("not handed over: %s", name);
}

static void say_rubbish(int control)
{
	ask(control, KVT_ADMIN_STATUS, 5);
}

static void hang_up(int control)
{
	kvt_test_equal(shutdown(control, SHUT_RDWR), 0);
}

static void say_nothing(int control)
{
	(void)control;
}

/* Takes what it is given, does that, says so, and lives on. */
static void taker_run(int pipe, void *context)
{
	void (*const *act)(int control) = context;
	int control = kvt_client_control_fd(kvt_test_observe(&daemon_));
	struct kvt_message_handover message = { 0 };
	int fds[KVT_HANDOVER_MAX];
	unsigned int n_fds;
	uint64_t word;

	ask(control, KVT_ADMIN_TAKEOVER, 5);
	while (!message.last) {
		kvt_test_equal(kvt_control_receive(control, &message, sizeof(message), fds,
						   KVT_HANDOVER_MAX, &n_fds, INT64_MAX),
			       sizeof(message));
		kvt_test_equal(message.head.type, KVT_MSG_HANDOVER);
		kvt_test_equal(message.n, n_fds);
		for (uint32_t i = 0; i < n_fds && n_taken < 256; i++, n_taken++) {
			memcpy(taken[n_taken].name, message.names[i], sizeof(taken[0].name));
			taken[n_taken].fd = fds[i];
		}
	}
	(*act)(control);
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &word);
}

static void expect_end(struct kvt_test_child *taker, const char *why)
{
	int status = 0;

	kvt_test_equal(waitpid(taker->pid, &status, 0), taker->pid);
	kvt_test_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	close(taker->pipe);
	expect_nothing_left();
	expect_said(why);
}

/* `waits`: of the daemon, that end because time passes; the last one is for the taker's end. */
static void expect_killed(void (*act)(int control), uint64_t waits, const char *why)
{
	struct kvt_test_child taker;

	kvt_test_child_start(&taker, taker_run, &act);
	kvt_test_expect(taker.pipe, 1); /* it has acted */
	let_time_pass(waits);
	expect_end(&taker, why);
}

static void who_says_something_else_is_ended(void **state)
{
	(void)state;
	begin_with_clock();
	expect_killed(say_rubbish, 1, "error=\"it said something else\" effect=\"serving on\"");
	end();
}

static void who_hangs_up_and_lives_is_ended(void **state)
{
	(void)state;
	begin_with_clock();
	for (int i = 0; i < 2; i++)
		expect_killed(hang_up, 1, "error=\"it hung up\" effect=\"serving on\"");
	end();
}

static void who_says_nothing_is_ended(void **state)
{
	(void)state;
	begin_with_clock();
	expect_killed(say_nothing, 2, "error=\"it said nothing for 10 s\" effect=\"serving on\"");
	end();
}

/* ---- who does not read what it is handed */

static void reader_of_nothing_run(int pipe, void *context)
{
	int control = kvt_client_control_fd(kvt_test_observe(&daemon_));
	uint64_t word;

	(void)context;
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 9);
	ask(control, KVT_ADMIN_TAKEOVER, 5);
	kvt_test_receive(pipe, &word);
}

#define FDS_MOST 1024

/* Which numbers are open descriptors of the daemon. Returns the one that was not before. */
static int new_descriptor(bool open[FDS_MOST])
{
	struct dirent *entry;
	char path[64];
	int found = -1;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon_.pid);
	dir = opendir(path);
	kvt_test_check(dir);
	while ((entry = readdir(dir))) {
		int fd = entry->d_name[0] == '.' ? FDS_MOST : atoi(entry->d_name);

		if (fd < FDS_MOST && !open[fd])
			found = fd;
		if (fd < FDS_MOST)
			open[fd] = true;
	}
	closedir(dir);
	return found;
}

/* Let little fit into the daemon's end of a connection. False: not permitted here. */
static bool narrow(int its_descriptor)
{
	int pidfd = (int)syscall(SYS_pidfd_open, daemon_.pid, 0);
	int end = (int)syscall(SYS_pidfd_getfd, pidfd, its_descriptor, 0);
	int bytes = 1;

	close(pidfd);
	if (end < 0)
		return false;
	kvt_test_equal(setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
	close(end);
	return true;
}

/* There is more to hand over than one message holds, and than fits into the socket. */
static void who_reads_nothing_is_ended(void **state)
{
	struct kvt_client *observers[4 * KVT_HANDOVER_MAX - 8];
	struct kvt_test_child taker;
	size_t n = sizeof(observers) / sizeof(observers[0]);
	bool open[FDS_MOST] = { false }, permitted;

	(void)state;
	begin_with_clock();
	for (size_t i = 0; i < n; i++)
		observers[i] = kvt_test_observe(&daemon_);
	descriptors = kvt_test_daemon_descriptors(&daemon_);
	new_descriptor(open);
	kvt_test_child_start(&taker, reader_of_nothing_run, NULL);
	kvt_test_expect(taker.pipe, 1);
	permitted = narrow(new_descriptor(open));
	if (permitted) {
		kvt_test_send(taker.pipe, 9);
		let_time_pass(2); /* for the socket's room, and for its end */
		expect_end(&taker, "error=\"it did not read all of it within 10 s\" "
			   "effect=\"serving on\"");
	} else {
		kvt_test_child_kill(&taker, SIGKILL);
	}
	for (size_t i = 0; i < n; i++)
		kvt_client_close(observers[i], KVT_IDLE);
	end();
	if (!permitted) {
		print_message("skip: another process's descriptors cannot be had here\n");
		skip();
	}
}

static uint32_t victim; /* a session */

/* As a successor does that cannot map the session's memory; then it fails for another reason. */
static void end_a_session(int control)
{
	struct kvt_ledger_header ledger;
	uint32_t state = KVT_SESSION_DYING;
	int fd = taken_fd("ledger");

	kvt_test_equal(pread(fd, &ledger, sizeof(ledger), 0), sizeof(ledger));
	kvt_test_equal(pwrite(fd, &state, sizeof(state),
			      (off_t)(ledger.sections[KVT_LSECTION_SESSIONS].offset +
				      victim * sizeof(struct kvt_session_record) +
				      offsetof(struct kvt_session_record, state))),
		       sizeof(state));
	hang_up(control);
}

/* No log: what ended the session is not in it. */
static void a_session_that_was_ended_by_it_is_told(void **state)
{
	struct kvt_client *client, *other;
	uint32_t keys[KVT_WORK_KEYS], page;
	struct kvt_seq *seq;

	(void)state;
	kvt_test_daemon_prepare(&daemon_, NULL);
	daemon_.clock = eventfd(0, EFD_SEMAPHORE);
	kvt_test_daemon_start(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	other = kvt_test_connect(&daemon_);
	watcher = kvt_test_observe(&daemon_);
	count_descriptors();
	victim = kvt_client_info(client)->session;
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(client, kvt_test_namespace(client, "takeover"), keys);
	kvt_test_check(seq);
	kvt_test_equal(kvt_alloc(other, 1, &page), 0);
	expect_killed(end_a_session, 1, "error=\"it hung up\" effect=\"serving on\"");
	kvt_test_equal(kvt_alloc(client, 1, &page), -ECONNRESET);
	kvt_test_check(strstr(kvt_client_error(client)->text, "that was to take over and failed"));
	kvt_client_close(client, KVT_IDLE);
	kvt_test_session_ended(&daemon_, victim);
	kvt_test_equal(kvt_free(other, &page, 1, KVT_IDLE), 0);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(watcher, KVT_IDLE);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

/* Owners that cannot be. */
static void damage_the_ledger(int control)
{
	struct kvt_owner_record wrong = { 77, 88, 0xffffffffu, 0xffffffffu };
	struct kvt_ledger_header ledger;
	int fd = taken_fd("ledger");

	kvt_test_equal(pread(fd, &ledger, sizeof(ledger), 0), sizeof(ledger));
	for (uint32_t page = 1; page < 4096; page++)
		kvt_test_equal(pwrite(fd, &wrong, sizeof(wrong),
				      (off_t)(ledger.sections[KVT_LSECTION_OWNERS].offset +
					      page * sizeof(wrong))), sizeof(wrong));
	hang_up(control);
}

/* Nothing of it is served, everybody hears why, and nothing is in the way of the next one. */
static void a_cache_that_was_damaged_by_it_ends_in_order(void **state)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	void (*act)(int control) = damage_the_ledger;
	struct kvt_client *client, *none;
	uint32_t keys[KVT_WORK_KEYS];
	struct kvt_test_child taker;
	struct kvt_error error;
	char names[1024];
	int status;

	(void)state;
	kvt_test_daemon_prepare(&daemon_, NULL);
	daemon_.clock = eventfd(0, EFD_SEMAPHORE);
	kvt_test_daemon_start(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	watcher = kvt_test_observe(&daemon_);
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	kvt_work_begin(client, kvt_test_namespace(client, "takeover"), keys);
	kvt_test_child_start(&taker, taker_run, &act);
	kvt_test_expect(taker.pipe, 1);
	let_time_pass(1);
	status = kvt_test_daemon_wait(&daemon_);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	expect_said("event=cache_lost");
	kvt_test_equal(kvt_match(client, 1, keys, KVT_WORK_KEYS, 0, NULL), -ECONNRESET);
	if (!strstr(kvt_client_error(client)->text, "when kvtrunkd is started anew"))
		kvt_test_fail("the client heard: %s", kvt_client_error(client)->text);
	if (kvt_test_daemon_leftovers(&daemon_, names, sizeof(names)))
		kvt_test_fail("left behind: %s", names);
	options.socket_path = daemon_.socket;
	options.connect_wait_ns = -1;
	kvt_test_equal(kvt_client_connect(&none, &options, &error), -ENOENT);
	kvt_test_check(strstr(error.text, "no_socket") && strstr(error.text, "start kvtrunkd"));
	kvt_client_close(client, KVT_IDLE);
	kvt_client_close(watcher, KVT_IDLE);
	kvt_test_child_kill(&taker, SIGKILL);
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

/* Asks what is answered when a session ends. */
static void ender_run(int pipe, void *context)
{
	struct kvt_client *observer = kvt_test_observe(&daemon_);
	int control = kvt_client_control_fd(observer);
	struct pollfd look = { .fd = control, .events = POLLIN };
	struct kvt_message_admin request = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_ADMIN,
			  .version = KVT_ABI_MAJOR, .bytes = sizeof(request), .cookie = 81 },
		.what = KVT_ADMIN_ENDED,
	};

	(void)context;
	kvt_test_check(kvt_test_receive(pipe, &request.argument));
	kvt_test_equal(send(control, &request, sizeof(request), 0), sizeof(request));
	kvt_test_send(pipe, 1);
	expect_answer(control, 81, 0, "");
	ask(control, KVT_ADMIN_STATUS, 82); /* and no second answer before this one */
	expect_answer(control, 82, 0, "");
	kvt_test_equal(poll(&look, 1, 0), 0);
	kvt_client_close(observer, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

static void who_waits_for_an_answer_gets_it_once(void **state)
{
	struct kvt_test_child ender;
	struct kvt_client *client;

	(void)state;
	begin_with_clock();
	client = kvt_test_connect(&daemon_);
	kvt_test_child_start(&ender, ender_run, NULL);
	kvt_test_send(ender.pipe, kvt_client_info(client)->session);
	kvt_test_expect(ender.pipe, 1);
	count_descriptors();
	expect_killed(hang_up, 1, "error=\"it hung up\" effect=\"serving on\"");
	kvt_client_close(client, KVT_IDLE);
	kvt_test_expect(ender.pipe, 2);
	kvt_test_child_finish(&ender);
	end();
}

/* The daemon is nobody, and who took everything is root. */
static void who_cannot_be_ended_is_named(void **state)
{
	void (*act)(int control) = hang_up;
	struct kvt_test_child taker;

	(void)state;
	if (geteuid() != 0 || !begin_as(NOBODY, 0)) {
		print_message("skip: a daemon cannot be started as another user here\n");
		skip();
	}
	kvt_test_child_start(&taker, taker_run, &act);
	kvt_test_expect(taker.pipe, 1);
	round_trip();
	kvt_test_check(WIFSIGNALED(kvt_test_child_kill(&taker, SIGTERM))); /* it lived */
	expect_said("event=not_ended");
	expect_said("error=\"it hung up\" effect=\"serving on\"");
	expect_nothing_left();
	end();
}

/* ---- a successor that dies */

/* Whether it is about to connect to the daemon. */
static bool connects(pid_t pid, const struct ptrace_syscall_info *info)
{
	struct sockaddr_un address = { 0 };

	return kvt_trace_begins(info, SYS_connect) &&
	       kvt_trace_read(pid, info->entry.args[1], &address, sizeof(address)) &&
	       strcmp(address.sun_path, daemon_.socket) == 0;
}

/* Start a successor and let it run to the n-th stop since it connects, or to where it is about to
 * confirm: the third message on that socket. Returns its pid, 0 where it cannot be traced. */
static pid_t start_until(uint32_t n, bool *ret_confirms)
{
	const char *const takeover[] = { "--takeover", log_flag, NULL };
	struct kvt_test_daemon successor = daemon_;
	struct ptrace_syscall_info info = { 0 };
	uint64_t control, sent = 0;
	int status;

	successor.traced = true;
	kvt_test_daemon_spawn(&successor, takeover);
	kvt_test_equal(waitpid(successor.pid, &status, 0), successor.pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		return 0;
	kvt_test_check(WIFSTOPPED(status));
	kvt_test_equal(ptrace(PTRACE_SETOPTIONS, successor.pid, NULL,
			      PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
	while (!connects(successor.pid, &info))
		kvt_test_check(kvt_trace_next(successor.pid, &info, &status));
	control = info.entry.args[0];
	while (n-- > 0 && sent < 3) {
		kvt_test_check(kvt_trace_next(successor.pid, &info, &status));
		sent += kvt_trace_begins(&info, SYS_sendmsg) && info.entry.args[0] == control;
	}
	*ret_confirms = sent == 3;
	return successor.pid;
}

/* Who listens says so: whoever finds the socket in use is told the right process. */
static void expect_listener(pid_t pid)
{
	struct ucred owner;
	socklen_t bytes = sizeof(owner);
	int fd;

	kvt_test_equal(kvt_control_open(daemon_.socket, INT64_MAX, &fd, NULL), 0);
	kvt_test_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &bytes), 0);
	kvt_test_equal(owner.pid, pid);
	close(fd);
}

/* Asked to end while it takes over: it does, and the cache stays where it is. */
static void who_is_asked_to_end_takes_nothing_over(void **state)
{
	bool confirms;
	int status;
	pid_t pid;

	(void)state;
	begin();
	pid = start_until(1, &confirms);
	if (pid) {
		kvt_test_equal(kill(pid, SIGTERM), 0); /* blocked there, so it waits */
		kvt_trace_let_go(pid);
		kvt_test_equal(waitpid(pid, &status, 0), pid);
		kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		expect_said("asked to end before everything was taken up");
		expect_nothing_left();
	}
	end();
	if (!pid) {
		print_message("skip: processes cannot be traced here\n");
		skip();
	}
}

static void let_it_take_over(pid_t pid)
{
	pid_t old = daemon_.pid;
	int status;

	kvt_trace_let_go(pid);
	daemon_.pid = pid;
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_check(waitpid(old, &status, 0) == old && status == 0);
	expect_listener(pid);
}

/* The lock is the daemon's, as ever: nobody can start beside it. */
static void expect_locked(void)
{
	struct kvt_test_daemon other = daemon_;
	int status;

	kvt_test_daemon_spawn(&other, NULL);
	status = kvt_test_daemon_wait(&other);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static void a_log_that_is_no_file_hinders_nobody(void **state)
{
	const char *const alone[] = { "--log_file=/dev/null", NULL };
	const char *const takeover[] = { "--takeover", "--log_file=/dev/null", NULL };
	pid_t old;
	int status;

	(void)state;
	kvt_test_daemon_prepare(&daemon_, NULL);
	kvt_test_daemon_start(&daemon_, alone);
	old = daemon_.pid;
	kvt_test_daemon_start(&daemon_, takeover);
	kvt_test_check(waitpid(old, &status, 0) == old && status == 0);
	expect_said("event=oplog_not_handed_over");
	kvt_test_audit(&daemon_);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

static void a_successor_can_die_at_every_system_call(void **state)
{
	bool confirms = false;
	uint32_t n = 0;
	pid_t pid;

	(void)state;
	begin();
	while ((pid = start_until(n, &confirms)) && !confirms) {
		kvt_trace_kill(pid);
		expect_nothing_left();
		n++;
	}
	if (!pid) {
		end();
		print_message("skip: processes cannot be traced here\n");
		skip();
	}
	kvt_trace_kill(pid); /* all is done, but for the confirmation */
	expect_nothing_left();
	expect_said("error=\"it hung up\" effect=\"serving on\"");
	print_message("killed at %u places\n", n + 1);
	expect_locked();
	/* The next one takes over, holds no more than the old one, and its own can fail, too. */
	let_it_take_over(start_until(UINT32_MAX, &confirms));
	round_trip(); /* takes the greeting */
	expect_nothing_left();
	kvt_trace_kill(start_until(UINT32_MAX, &confirms));
	expect_nothing_left();
	let_it_take_over(start_until(UINT32_MAX, &confirms));
	end();
}

/* A name, or a pattern, runs the tests that it fits. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_says_more_than_the_request_gets_nothing),
		cmocka_unit_test(who_has_hung_up_gets_nothing),
		cmocka_unit_test(a_client_cannot_take_over),
		cmocka_unit_test(a_daemon_that_stops_is_not_taken_over),
		cmocka_unit_test(who_says_something_else_is_ended),
		cmocka_unit_test(who_hangs_up_and_lives_is_ended),
		cmocka_unit_test(who_says_nothing_is_ended),
		cmocka_unit_test(who_reads_nothing_is_ended),
		cmocka_unit_test(who_cannot_be_ended_is_named),
		cmocka_unit_test(a_session_that_was_ended_by_it_is_told),
		cmocka_unit_test(a_cache_that_was_damaged_by_it_ends_in_order),
		cmocka_unit_test(who_waits_for_an_answer_gets_it_once),
		cmocka_unit_test(who_is_asked_to_end_takes_nothing_over),
		cmocka_unit_test(a_log_that_is_no_file_hinders_nobody),
		cmocka_unit_test(a_successor_can_die_at_every_system_call),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
