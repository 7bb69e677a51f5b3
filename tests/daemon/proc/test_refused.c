/* SPDX-License-Identifier: Apache-2.0 */
/* A host that refuses one system call to the daemon, before its start or once it is ready.
 *
 * A seccomp filter reports the call to another process, the host, which lets it pass or answers for
 * the kernel. Invariant: the daemon serves, or it refuses or ends and has named the call. It obeys
 * SIGTERM. A client's call returns before its timeout. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "shm/atomic.h"
#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"

#define PATIENCE_NS 20000000000ll /* a call that takes so long was not answered */

static const struct call {
	const char *name;
	long number;
	bool by_loader; /* refused at start, the program is not even loaded */
} calls[] = {
	{ "io_uring_setup", SYS_io_uring_setup, false },
	{ "io_uring_enter", SYS_io_uring_enter, false },
	{ "io_uring_register", SYS_io_uring_register, false },
	{ "epoll_create1", SYS_epoll_create1, false },
	{ "epoll_ctl", SYS_epoll_ctl, false },
#ifdef SYS_epoll_wait
	{ "epoll_wait", SYS_epoll_wait, false },
	{ "poll", SYS_poll, false },
#else
	{ "epoll_wait", SYS_epoll_pwait, false },
#endif
	{ "ppoll", SYS_ppoll, false },
	{ "eventfd2", SYS_eventfd2, false },
	{ "signalfd4", SYS_signalfd4, false },
	{ "accept4", SYS_accept4, false },
	{ "recvmsg", SYS_recvmsg, false },
	{ "recvfrom", SYS_recvfrom, false },
	{ "sendmsg", SYS_sendmsg, false },
	{ "sendto", SYS_sendto, false },
	{ "socketpair", SYS_socketpair, false },
	{ "getsockopt", SYS_getsockopt, false },
	{ "setsockopt", SYS_setsockopt, false },
	{ "pidfd_open", SYS_pidfd_open, false },
	{ "memfd_create", SYS_memfd_create, false },
	{ "ioctl", SYS_ioctl, false },
	{ "madvise", SYS_madvise, false },
	{ "fcntl", SYS_fcntl, false },
	{ "read", SYS_read, true },
	{ "write", SYS_write, true },
};

/* ---- the host */

static struct {
	long number;
	int error;    /* what it answers for the kernel; 0: the call passes */
	bool lies;    /* it answers that the call succeeded */
	int listener; /* of the daemon's filter, as its number in the daemon; -1: none yet */
	bool taken;   /* the test has a copy of it: exec closes it */
} *host; /* shared with the daemon's process and the host's */

static bool report_calls(struct kvt_test_daemon *daemon)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)host->number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };
	long listener = -1;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
		listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
				   SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	kvt_store_release(&host->listener, listener < 0 ? -2 : (int)listener);
	while (listener >= 0 && !kvt_load_acquire(&host->taken))
		sched_yield();
	return listener >= 0;
}

/* Answer for the kernel, until the test ends this process. */
static void answer_calls(int listener)
{
	for (;;) {
		struct seccomp_notif call = { 0 };
		struct seccomp_notif_resp answer = { 0 };

		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0)
			continue; /* its process was killed, or none is left */
		answer.id = call.id;
		answer.error = -kvt_load_acquire(&host->error);
		if (!answer.error && !kvt_load_acquire(&host->lies))
			answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	}
}

static pid_t answers; /* the host's process */

/* Start a daemon whose calls of this number the host answers. False: no such filter here. */
static bool start_on_host(struct kvt_test_daemon *daemon, long number, int error,
			  const char *flag)
{
	pid_t test = getpid();
	int listener, pidfd;

	*host = (typeof(*host)){ .number = number, .error = error, .listener = -1 };
	kvt_test_spawn_with(daemon, report_calls, flag);
	while ((listener = kvt_load_acquire(&host->listener)) == -1)
		sched_yield();
	if (listener < 0)
		return false;
	pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
	listener = (int)syscall(SYS_pidfd_getfd, pidfd, listener, 0);
	kvt_test_check(pidfd >= 0 && listener >= 0);
	kvt_store_release(&host->taken, true);
	answers = fork();
	if (!answers) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == test)
			answer_calls(listener);
		_exit(0);
	}
	close(pidfd);
	close(listener);
	return true;
}

static void end_host(void)
{
	kill(answers, SIGKILL);
	kvt_test_equal(waitpid(answers, NULL, 0), answers);
}

/* ---- clients */

static int connect_to(const struct kvt_test_daemon *daemon, struct kvt_client **ret_client)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon->socket;
	options.timeout_ns = PATIENCE_NS;
	return kvt_client_connect(ret_client, &options, NULL);
}

/* Have an operation done. Returns its error, never a timeout. */
static int use(struct kvt_client *client)
{
	uint32_t page;
	int error = kvt_alloc(client, 1, &page);

	if (!error)
		error = kvt_free(client, &page, 1, KVT_IDLE);
	if (error == -ETIMEDOUT)
		kvt_test_fail("an operation was not answered");
	return error;
}

/* Connect and have an operation done. True: both worked. */
static bool is_served(const struct kvt_test_daemon *daemon)
{
	struct kvt_client *client;
	int error = connect_to(daemon, &client);

	if (error == -ETIMEDOUT)
		kvt_test_fail("a connection was not answered");
	if (error)
		return false;
	error = use(client);
	kvt_client_close(client, KVT_IDLE);
	return !error;
}

/* ---- the cases */

struct outcome {
	bool ready, served, ended_itself;
	int status;
};

/* Its words: a line of its log, or what it refused a client with, which it logs. */
static bool named(const struct kvt_test_daemon *daemon, const char *call, int error)
{
	return kvt_test_daemon_said(daemon, call) ||
	       kvt_test_daemon_said(daemon, strerror(error));
}

static void judge(const struct kvt_test_daemon *daemon, const struct call *call, int error,
		  const struct outcome *outcome, const char *when)
{
	print_message("%-18s %-12s %-6s: %s%s\n", call->name, strerrorname_np(error), when,
		      !outcome->ready ? "does not start" : outcome->served ? "serves" :
		      "refuses", outcome->ended_itself ? ", ends" : "");
	if (outcome->ready && outcome->served && !outcome->ended_itself)
		return;
	if (!named(daemon, call->name, error))
		kvt_test_fail("%s refused %s: it does not say so", call->name, when);
	if (outcome->ended_itself && (!WIFEXITED(outcome->status) || !outcome->status))
		kvt_test_fail("%s refused %s: wait status 0x%x", call->name, when,
			      outcome->status);
}

/* End the daemon if it has not ended. Its clients have been answered, so an end of its own has
 * begun. */
static void end(struct kvt_test_daemon *daemon, struct outcome *outcome)
{
	outcome->ended_itself = kvt_test_daemon_said(daemon, "event=refused_by_host");
	if (!outcome->ended_itself)
		kill(daemon->pid, SIGTERM);
	outcome->status = kvt_test_daemon_wait(daemon);
}

static void refuse_at_start(const struct call *call, int error, const char *config)
{
	struct outcome outcome = { 0 };
	struct kvt_test_daemon daemon;

	kvt_test_daemon_prepare(&daemon, config);
	if (!start_on_host(&daemon, call->number, error, NULL))
		kvt_skip("no seccomp filter can be set here");
	outcome.ready = kvt_test_daemon_await(&daemon, "READY=1");
	if (outcome.ready) {
		outcome.served = is_served(&daemon);
		end(&daemon, &outcome);
	} else {
		outcome.status = kvt_test_daemon_wait(&daemon);
		outcome.ended_itself = true;
	}
	end_host();
	judge(&daemon, call, error, &outcome, "at start");
	kvt_test_daemon_remove(&daemon);
}

static void refuse_once_ready(const struct call *call, int error, const char *config)
{
	struct outcome outcome = { .ready = true };
	struct kvt_test_daemon daemon;
	struct kvt_client *client;

	kvt_test_daemon_prepare(&daemon, config);
	if (!start_on_host(&daemon, call->number, 0, NULL))
		kvt_skip("no seccomp filter can be set here");
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_equal(connect_to(&daemon, &client), 0);
	kvt_test_equal(use(client), 0);
	kvt_store_release(&host->error, error);
	outcome.served = is_served(&daemon);
	outcome.served = use(client) == 0 && outcome.served;
	kvt_client_close(client, KVT_IDLE);
	end(&daemon, &outcome);
	end_host();
	judge(&daemon, call, error, &outcome, "ready");
	kvt_test_daemon_remove(&daemon);
}

static void refuse_each(const char *config)
{
	static const int errors[] = { EPERM, ENOSYS };

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		int error = errors[i % 2];

		if (!calls[i].by_loader)
			refuse_at_start(&calls[i], error, config);
		refuse_once_ready(&calls[i], errors[(i + 1) % 2], config);
	}
}

TEST(with_any_call_refused_the_daemon_serves_or_ends_in_words)
{
	refuse_each(NULL);
}

TEST(on_epoll_too)
{
	refuse_each("event_loop = epoll\n");
}

/* ---- with a keeper */

/* Have io_uring_enter() changed under a daemon with a keeper. The client continues with the
 * successor, which waits with epoll. */
static void change_enter(int error, bool lies)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;

	kvt_test_daemon_prepare(&daemon, "watchdog_ms = 2000\n");
	if (!start_on_host(&daemon, SYS_io_uring_enter, 0, "--supervise"))
		kvt_skip("no seccomp filter can be set here");
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	if (kvt_test_daemon_said(&daemon, "event_loop=epoll"))
		kvt_skip("io_uring is not available here");
	kvt_test_equal(connect_to(&daemon, &client), 0);
	kvt_store_release(&host->lies, lies);
	kvt_store_release(&host->error, error);
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_equal(use(client), 0);
	kvt_test_check(kvt_test_daemon_said(&daemon, "event_loop=epoll"));
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
	end_host();
}

TEST(a_keeper_starts_a_successor_on_epoll_when_enter_is_refused)
{
	change_enter(EPERM, false);
}

/* The loop turns, and no event ever comes: it must not feed the watchdog. */
TEST(a_daemon_whose_loop_reports_nothing_is_replaced)
{
	change_enter(0, true);
}

static int make_host(void **state)
{
	host = mmap(NULL, sizeof(*host), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		    0);
	return host == MAP_FAILED ? -1 : 0;
}

TEST_GROUP(make_host, NULL)
