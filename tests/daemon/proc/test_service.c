/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a service: passed sockets, clients' processes, limits, reload, a busy service
 * manager, watchdog, system calls, logs. Each test has a daemon of its own, some in a namespace or
 * under a filter.
 *
 * Invariant: clients' requests are answered meanwhile, and the daemon ends with status 0. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "shm/atomic.h"
#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"

/* ---- passed socket */

TEST(a_passed_socket_is_served_and_stays)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct stat there;

	kvt_test_daemon_prepare(&daemon, NULL);
	kvt_test_listen_for(&daemon);
	for (int round = 0; round < 2; round++) {
		kvt_test_spawn_changed(&daemon, kvt_test_pass_socket);
		kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
		client = kvt_test_connect(&daemon);
		kvt_test_namespace(client, "passed");
		kvt_client_close(client, KVT_IDLE);
		kill(daemon.pid, SIGTERM);
		kvt_test_equal(kvt_test_daemon_wait(&daemon), 0);
		kvt_test_equal(stat(daemon.socket, &there), 0);
	}
	close(daemon.notify + 1);
	kvt_test_daemon_remove(&daemon);
}

/* ---- who the client is */

static void many_operations(struct kvt_client *client, uint32_t namespace_id, int n)
{
	const uint32_t keys[64] = { 5, 6, 7 };

	for (int i = 0; i < n; i++) {
		struct kvt_result result;

		kvt_test_equal(kvt_match(client, namespace_id, keys, 64, 0, &result), 0);
		kvt_result_release(client, &result);
	}
}

/* Connect, take pages, be killed. The daemon must see both signs and reclaim the pages. */
static void live_and_die(struct kvt_test_daemon *daemon)
{
	struct kvt_counters counters;
	struct kvt_test_child child;
	uint64_t session;

	kvt_test_child_start(&child, kvt_test_hold_pages, daemon);
	session = kvt_test_word(child.pipe);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(daemon, (uint32_t)session);
	kvt_test_until(daemon, counters, counters.free_pages == 4095);
}

/* A full completion descriptor, made blocking by its holder: the daemon must not block on it. */
TEST(a_client_that_stuffs_its_bell_stops_no_other)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client, *witness;
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result results[8];
	const uint64_t words[2] = { UINT64_MAX - 1, 1 };
	int bell;

	kvt_test_daemon_begin(&daemon, NULL);
	witness = kvt_test_connect(&daemon);
	client = kvt_test_connect(&daemon);
	bell = kvt_client_completion_fd(client);
	kvt_test_check(fcntl(bell, F_SETFL, O_NONBLOCK) == 0);
	for (int i = 0; i < 2; i++)
		while (write(bell, &words[i], sizeof(words[i])) > 0)
			continue;
	kvt_test_check(fcntl(bell, F_SETFL, 0) == 0);
	kvt_test_equal(kvt_client_arm(client), 0);
	for (int i = 0; i < 8; i++)
		kvt_test_equal(kvt_submit(client, &request), 0);
	many_operations(witness, kvt_test_namespace(witness, "witness"), 100);
	kvt_test_audit(&daemon);
	kvt_client_close(witness, KVT_IDLE);
	kvt_test_check(fcntl(bell, F_SETFL, O_NONBLOCK) == 0);
	for (int n = 0; n < 8;) {
		int got = kvt_reap(client, results, 1, 8);

		kvt_test_check(got > 0);
		for (int i = 0; i < got; i++)
			kvt_result_release(client, &results[i]);
		n += got;
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* Lower the limit of a running daemon below what it uses. */
static void lower_nofile(struct kvt_test_daemon *daemon, struct rlimit *ret_before)
{
	struct rlimit low = { 3, 3 };

	kvt_test_equal(prlimit(daemon->pid, RLIMIT_NOFILE, NULL, ret_before), 0);
	low.rlim_max = ret_before->rlim_max;
	kvt_test_equal(prlimit(daemon->pid, RLIMIT_NOFILE, &low, NULL), 0);
}

TEST(a_daemon_raises_the_limit_of_descriptors_that_it_needs)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct rlimit before;

	kvt_test_daemon_begin(&daemon, NULL);
	client = kvt_test_connect(&daemon);
	for (int i = 0; i < 3; i++) {
		lower_nofile(&daemon, &before);
		kvt_client_close(kvt_test_connect(&daemon), KVT_IDLE);
		many_operations(client, kvt_test_namespace(client, "continues"), 5);
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* It first gets enough descriptors: without them it would not start. */
static bool no_limits(struct kvt_test_daemon *daemon)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prlimit64, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, RLIMIT_NOFILE, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return false;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) == 0 &&
	       kvt_test_set_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

/* Connected clients are served, others wait, and the log gives the reason. */
TEST(a_daemon_out_of_descriptors_logs_it_and_continues)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_test_daemon daemon;
	struct kvt_client *client, *late;
	struct kvt_error error;
	struct rlimit before;
	int tries = 0;

	kvt_test_start_changed(&daemon, NULL, no_limits, NULL);
	client = kvt_test_connect(&daemon);
	lower_nofile(&daemon, &before);
	options.socket_path = daemon.socket;
	options.timeout_ns = 50000000;
	do {
		kvt_test_equal(kvt_client_connect(&late, &options, &error), -ETIMEDOUT);
		many_operations(client, kvt_test_namespace(client, "continues"), 5);
	} while (++tries < 3 || !kvt_test_daemon_said(&daemon, "cure=\"raise RLIMIT_NOFILE\""));
	kvt_test_equal(prlimit(daemon.pid, RLIMIT_NOFILE, &before, NULL), 0);
	kvt_client_close(kvt_test_connect(&daemon), KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* SO_PEERPIDFD fails as on a kernel before 6.5. */
static bool no_peer_pidfd(struct kvt_test_daemon *daemon)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 77 /* SO_PEERPIDFD */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return kvt_test_set_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

TEST(an_older_kernel_without_peer_pidfds_sees_death_too)
{
	struct kvt_test_daemon daemon;

	kvt_test_start_changed(&daemon, NULL, no_peer_pidfd, NULL);
	live_and_die(&daemon);
	kvt_test_daemon_end(&daemon);
}

/* Fork a child that is process 1 of a PID namespace. */
static void enter_namespace(int pipe, void *context)
{
	if (unshare(CLONE_NEWPID) != 0) {
		kvt_test_send(pipe, 0);
		return;
	}
	kvt_test_send(pipe, 1);
	live_and_die(context);
	kvt_test_send(pipe, 2);
}

TEST(a_client_in_a_pid_namespace_of_its_own_is_a_client_like_others)
{
	struct kvt_test_daemon daemon;
	struct kvt_test_child child;
	uint64_t word;

	kvt_test_daemon_begin(&daemon, NULL);
	kvt_test_child_start(&child, enter_namespace, &daemon);
	word = kvt_test_word(child.pipe);
	if (word)
		kvt_test_expect(child.pipe, 2);
	kvt_test_child_finish(&child);
	kvt_test_daemon_end(&daemon);
	if (!word)
		kvt_skip("needs a PID namespace, which this process cannot make");
}

static pid_t inner;

static void forward(int signal_number)
{
	kill(inner, signal_number);
}

/* Continue as a child in a PID namespace of its own, where clients have no number. SIGTERM may
 * arrive as soon as it is ready, before its parent runs again. */
static bool own_pid_namespace(struct kvt_test_daemon *daemon)
{
	sigset_t termination;
	int status;

	if (unshare(CLONE_NEWPID) != 0)
		return false;
	sigemptyset(&termination);
	sigaddset(&termination, SIGTERM);
	sigprocmask(SIG_BLOCK, &termination, NULL);
	inner = fork();
	if (inner == 0)
		return sigprocmask(SIG_UNBLOCK, &termination, NULL) == 0 &&
		       prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
	signal(SIGTERM, forward);
	sigprocmask(SIG_UNBLOCK, &termination, NULL);
	while (waitpid(inner, &status, 0) < 0)
		if (errno != EINTR)
			_exit(1);
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

TEST(a_daemon_that_does_not_see_its_clients_numbers_sees_their_death)
{
	struct kvt_test_daemon daemon;
	int status, pair[2], pidfd;
	socklen_t bytes = sizeof(pidfd);

	kvt_test_check(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	status = getsockopt(pair[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &pidfd, &bytes);
	close(pair[0]);
	close(pair[1]);
	if (status != 0)
		kvt_skip("this kernel has no SO_PEERPIDFD");
	close(pidfd);
	if (!kvt_test_start_changed(&daemon, NULL, own_pid_namespace, &status)) {
		kvt_test_equal(WEXITSTATUS(status), KVT_TEST_CANNOT_CHANGE);
		kvt_test_daemon_remove(&daemon);
		kvt_skip("needs a PID namespace, which this process cannot make");
	}
	live_and_die(&daemon);
	kvt_test_daemon_end(&daemon);
}

/* ---- reload */

TEST(sighup_takes_over_what_may_change_and_names_the_rest)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;

	kvt_test_daemon_begin(&daemon, NULL);
	client = kvt_test_connect(&daemon);
	kvt_test_daemon_configure(&daemon, "spin_budget_us = 33\npage_size = 32\n");
	kill(daemon.pid, SIGHUP);
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_check(kvt_test_daemon_said(&daemon, "changed=\"spin_budget_us\" "
						     "need_restart=\"page_size\""));
	kvt_test_daemon_configure(&daemon, "spin_budget_us = fast\n");
	kill(daemon.pid, SIGHUP);
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_check(kvt_test_daemon_said(&daemon, "event=reload_failed"));
	kvt_test_check(kvt_test_daemon_said(&daemon, "'fast'"));
	kvt_test_namespace(client, "still here");
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* ---- a manager that is busy */

static void fill_queue(const struct kvt_test_daemon *daemon)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", daemon->dir);
	kvt_test_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	while (send(fd, "X=1", 3, MSG_DONTWAIT) == 3)
		continue;
	kvt_test_equal(errno, EAGAIN);
	close(fd);
}

/* Once it serves, each message to its manager was sent or found no room. */
static void await_service(const struct kvt_test_daemon *daemon)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;

	options.socket_path = daemon->socket;
	while (kvt_client_connect(&client, &options, NULL) != 0)
		kvt_test_equal(waitpid(daemon->pid, NULL, WNOHANG), 0);
	kvt_client_close(client, KVT_IDLE);
}

TEST(a_manager_whose_queue_was_full_gets_all_that_matters)
{
	struct kvt_test_daemon daemon;

	for (int i = 0; i < 2; i++) {
		kvt_test_daemon_prepare(&daemon, NULL);
		daemon.supervised = i;
		fill_queue(&daemon);
		kvt_test_daemon_spawn(&daemon, NULL);
		await_service(&daemon);
		kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
		fill_queue(&daemon);
		kill(daemon.pid, SIGHUP);
		while (!kvt_test_daemon_said(&daemon, "event=reloaded"))
			await_service(&daemon);
		kvt_test_check(kvt_test_daemon_await(&daemon, "RELOADING=1"));
		kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
		kvt_test_daemon_end(&daemon);
	}
}

/* ---- watchdog */

static bool with_watchdog(struct kvt_test_daemon *daemon)
{
	return setenv("WATCHDOG_USEC", "100000", 1) == 0;
}

TEST(the_watchdog_is_fed_asleep_and_spinning)
{
	static const char *const budgets[] = { "spin_budget_us = 0\n", "spin_budget_us = -1\n" };
	struct kvt_test_daemon daemon;

	for (size_t i = 0; i < 2; i++) {
		kvt_test_start_changed(&daemon, budgets[i], with_watchdog, NULL);
		for (int fed = 0; fed < 5; fed++)
			kvt_test_check(kvt_test_daemon_await(&daemon, "WATCHDOG=1"));
		kvt_test_daemon_end(&daemon);
	}
}

/* ---- core files */

/* Check that the kernel leaves each object out of the process's core file. Returns their number. */
static uint32_t count_undumped(pid_t pid)
{
	char path[64], line[512], name[512] = "";
	uint32_t n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)pid);
	file = fopen(path, "re");
	kvt_test_check(file);
	while (fgets(line, sizeof(line), file)) {
		if (strstr(line, "/dev/shm/kvtrunk") || strstr(line, "/memfd:kvtrunk"))
			snprintf(name, sizeof(name), "%s", line);
		if (strncmp(line, "VmFlags:", 8) != 0)
			continue;
		if (*name && !strstr(line, " dd"))
			kvt_test_fail("in a core file: %s", name);
		n += *name != '\0';
		*name = '\0';
	}
	fclose(file);
	return n;
}

TEST(core_files_have_no_keys_and_no_pages)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;

	kvt_test_daemon_prepare(&daemon, "mlock = yes\n");
	daemon.supervised = true;
	kvt_test_daemon_spawn(&daemon, NULL);
	if (!kvt_test_daemon_await(&daemon, "READY=1")) {
		kvt_test_daemon_wait(&daemon);
		kvt_test_check(kvt_test_daemon_said(&daemon, "mlock"));
		kvt_test_daemon_remove(&daemon);
		kvt_skip("the daemon cannot lock its memory here (ulimit -l)");
	}
	client = kvt_test_connect(&daemon);
	for (int i = 0; i < 2; i++) {
		/* Arena, ledger, slab, the session's segment and areas. */
		kvt_test_check(count_undumped(kvt_test_daemon_child(&daemon)) >= 5);
		kvt_test_equal(count_undumped(daemon.pid), 0); /* it maps nothing */
		kvt_test_daemon_succeed(&daemon);
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* ---- system calls */

/* The n-th CPU that this process may use, from 0; -1: it may not use so many. */
static int allowed_cpu(int n)
{
	cpu_set_t allowed;

	kvt_test_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET((unsigned int)cpu, &allowed) && n-- == 0)
			return cpu;
	return -1;
}

/* A child that keeps a ring busy, so that the daemon works while it is traced. On the daemon's CPU
 * it would sleep, and the daemon would wake it. */
static void busy_child(int pipe, void *context)
{
	const struct kvt_test_daemon *daemon = context;
	cpu_set_t own;
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	uint32_t namespace_id;
	uint64_t word;

	CPU_ZERO(&own);
	CPU_SET((unsigned int)allowed_cpu(0), &own);
	kvt_test_equal(sched_setaffinity(0, sizeof(own), &own), 0);
	options.socket_path = daemon->socket;
	options.spin_budget_ns = -1;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	namespace_id = kvt_test_namespace(client, "busy");
	many_operations(client, namespace_id, 100);
	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &word) && word == 2) {
		many_operations(client, namespace_id, 300);
		kvt_test_send(pipe, 3);
	}
	kvt_client_close(client, KVT_IDLE);
}

/* The daemon's message to the service manager, every ten seconds, and then a look at the socket's
 * name; a question after it was preempted (spin.h); its looks on epoll. */
static bool may_call(const struct kvt_test_daemon *daemon, uint64_t call)
{
	bool looks = call == SYS_epoll_pwait;

#ifdef SYS_epoll_wait
	looks |= call == SYS_epoll_wait;
#endif
	return call == SYS_sendto || call == SYS_newfstatat || call == SYS_getrusage ||
	       (looks && kvt_test_daemon_said(daemon, "event_loop=epoll"));
}

/* Wait for the child's word while the daemon is traced. */
static void expect_while_traced(const struct kvt_test_daemon *daemon, int signals, int pipe,
				uint64_t word)
{
	for (;;) {
		struct pollfd fds[] = { { .fd = pipe, .events = POLLIN },
					{ .fd = signals, .events = POLLIN } };
		struct __ptrace_syscall_info info = { 0 };
		struct signalfd_siginfo ignored;
		int status;

		kvt_test_check(poll(fds, 2, -1) > 0);
		if (fds[1].revents)
			kvt_test_check(read(signals, &ignored, sizeof(ignored)) > 0);
		if (waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
			kvt_test_check(ptrace(PTRACE_GET_SYSCALL_INFO, daemon->pid, sizeof(info),
					      &info) > 0);
			if (info.op == PTRACE_SYSCALL_INFO_ENTRY &&
			    !may_call(daemon, info.entry.nr))
				kvt_test_fail("system call %llu",
					      (unsigned long long)info.entry.nr);
			ptrace(PTRACE_SYSCALL, daemon->pid, NULL, NULL);
		}
		if (fds[0].revents) {
			kvt_test_expect(pipe, word);
			return;
		}
	}
}

static void serve_while_traced(const char *event_loop)
{
	struct kvt_test_daemon daemon;
	char config[96];
	struct kvt_test_child child;
	sigset_t child_signal;
	int status, signals;

	if (allowed_cpu(1) < 0)
		kvt_skip("needs two CPUs");
	snprintf(config, sizeof(config), "spin_budget_us = -1\ncpu = %d\nevent_loop = %s\n",
		 allowed_cpu(1), event_loop);
	kvt_test_daemon_begin(&daemon, config);
	kvt_test_child_start(&child, busy_child, &daemon);
	kvt_test_expect(child.pipe, 1);
	if (ptrace(PTRACE_SEIZE, daemon.pid, NULL, PTRACE_O_TRACESYSGOOD) != 0) {
		kvt_test_child_kill(&child, SIGKILL);
		kvt_test_daemon_end(&daemon);
		kvt_skip("processes cannot be traced here");
	}
	kvt_test_equal(ptrace(PTRACE_INTERRUPT, daemon.pid, NULL, NULL), 0);
	kvt_test_equal(waitpid(daemon.pid, &status, 0), daemon.pid);
	sigemptyset(&child_signal);
	sigaddset(&child_signal, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child_signal, NULL);
	signals = signalfd(-1, &child_signal, SFD_CLOEXEC | SFD_NONBLOCK);
	kvt_test_check(signals >= 0);
	kvt_test_equal(ptrace(PTRACE_SYSCALL, daemon.pid, NULL, NULL), 0);
	for (int round = 0; round < 3; round++) {
		kvt_test_send(child.pipe, 2);
		expect_while_traced(&daemon, signals, child.pipe, 3);
	}
	close(signals);
	sigprocmask(SIG_UNBLOCK, &child_signal, NULL);
	kvt_test_equal(ptrace(PTRACE_INTERRUPT, daemon.pid, NULL, NULL), 0);
	kvt_test_equal(waitpid(daemon.pid, &status, 0), daemon.pid);
	kvt_test_equal(ptrace(PTRACE_DETACH, daemon.pid, NULL, NULL), 0);
	kvt_test_send(child.pipe, 4);
	kvt_test_child_finish(&child);
	kvt_test_daemon_end(&daemon);
}

TEST(a_spinning_daemon_serves_without_a_system_call)
{
	serve_while_traced("auto");
}

TEST(a_spinning_daemon_on_epoll_only_looks_for_events)
{
	serve_while_traced("epoll");
}

/* No side spins: every operation wakes the daemon, every answer wakes the client. */
TEST(a_daemon_that_never_spins_misses_no_entry)
{
	struct kvt_test_daemon daemon;
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *clients[3];
	uint32_t namespaces[3], page;

	kvt_test_daemon_begin(&daemon, "spin_budget_us = 0\n");
	options.socket_path = daemon.socket;
	options.spin_budget_ns = 1;
	for (int i = 0; i < 3; i++) {
		kvt_test_equal(kvt_client_connect(&clients[i], &options, NULL), 0);
		namespaces[i] = kvt_test_namespace(clients[i], "asleep");
	}
	for (int round = 0; round < 2000; round++)
		many_operations(clients[round % 3], namespaces[round % 3], 1 + round % 2);
	for (uint64_t value = 1; value <= 50; value++) { /* raised by plain stores, with no bell */
		struct kvt_request request = { .op = KVT_OP_FREE, .pages = &page, .n_pages = 1,
					       .fence = { 3, value } };
		struct kvt_result result;

		kvt_test_equal(kvt_alloc(clients[0], 1, &page), 0);
		kvt_test_equal(kvt_submit(clients[0], &request), 0);
		kvt_store_release(kvt_fence_word(clients[0], 3), value);
		kvt_test_equal(kvt_reap(clients[0], &result, 1, 1), 1);
		kvt_test_equal(result.error, 0);
		kvt_result_release(clients[0], &result);
	}
	for (int i = 0; i < 3; i++)
		kvt_client_close(clients[i], KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* More sessions than a turn looks at: each entry is still seen. */
TEST(many_idle_sessions_are_served_when_they_wake)
{
	enum { N = 60 };
	struct kvt_test_daemon daemon;
	struct kvt_client *clients[N];
	uint32_t namespaces[N];

	kvt_test_daemon_begin(&daemon, "spin_budget_us = 1000\n");
	for (int i = 0; i < N; i++) {
		clients[i] = kvt_test_connect(&daemon);
		namespaces[i] = kvt_test_namespace(clients[i], "many");
	}
	many_operations(clients[0], namespaces[0], 2000); /* the others cool down */
	for (int i = N - 1; i >= 0; i--)
		many_operations(clients[i], namespaces[i], 3);
	for (int i = 0; i < N - 5; i++)
		kvt_client_close(clients[i], KVT_IDLE);
	for (int i = N - 5; i < N; i++) { /* few are left, none of them looked at lately */
		many_operations(clients[i], namespaces[i], 3);
		kvt_client_close(clients[i], KVT_IDLE);
	}
	kvt_test_daemon_end(&daemon);
}

/* ---- what the log says */

static void hold_a_lease_and_pages(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(context);
	uint32_t pages[10], keys[64] = { 1, 2, 3 };
	struct kvt_seq *seq;
	uint64_t word;

	kvt_test_equal(kvt_alloc(client, 10, pages), 0);
	kvt_test_equal(kvt_seq_begin(client, kvt_test_namespace(client, "holder"), keys, 64, 0, 0,
				     &seq), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_receive(pipe, &word);
	kvt_client_close(client, KVT_IDLE);
	_exit(0);
}

/* 10 pages and 4 of its sequence; page size 16. */
TEST(the_end_of_a_session_says_what_came_back)
{
	struct kvt_test_daemon daemon;
	struct kvt_counters counters;
	struct kvt_test_child child;
	uint64_t session;
	char line[128];
	int pid;

	kvt_test_daemon_begin(&daemon, NULL);
	for (int killed = 0; killed < 2; killed++) {
		kvt_test_child_start(&child, hold_a_lease_and_pages, &daemon);
		session = kvt_test_word(child.pipe);
		pid = (int)child.pid;
		if (killed) {
			kvt_test_child_kill(&child, SIGKILL);
		} else {
			kvt_test_send(child.pipe, 1);
			kvt_test_child_finish(&child);
		}
		kvt_test_session_ended(&daemon, (uint32_t)session);
		kvt_test_until(&daemon, counters, counters.free_pages == 4095);
		snprintf(line, sizeof(line), "event=session_free session=%u pid=%d end=%s ",
			 (unsigned int)session, pid, killed ? "died" : "closed");
		kvt_test_until(&daemon, counters, kvt_test_daemon_said(&daemon, line));
	}
	kvt_test_daemon_stop(&daemon);
	kvt_test_check(kvt_test_daemon_said(&daemon, "operations=2 leases=1 pages=14 "));
	kvt_test_daemon_remove(&daemon);
}

/* A limit on the size of files stands for a full disk. */
TEST(a_log_that_ends_early_says_why)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct rlimit limit = { 65536, 65536 };
	struct kvt_request nop = { .op = KVT_OP_NOP };
	struct kvt_admin_status status;
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct kvt_result result;

	signal(SIGXFSZ, SIG_IGN);
	kvt_test_daemon_begin_logged(&daemon, NULL, false);
	signal(SIGXFSZ, SIG_DFL);
	client = kvt_test_connect(&daemon);
	kvt_test_check(prlimit(daemon.pid, RLIMIT_FSIZE, &limit, NULL) == 0);
	do {
		for (int i = 0; i < 1000; i++)
			kvt_test_equal(kvt_call(client, &nop, &result), 0);
		kvt_test_equal(kvt_admin(client, &request, NULL, 0, &status, sizeof(status)), 1);
	} while (!status.log_error);
	kvt_test_equal(status.log_error, -EFBIG);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_stop(&daemon);
	kvt_test_check(kvt_test_daemon_said(&daemon, "event=oplog_failed"));
	kvt_test_check(kvt_test_daemon_said(&daemon, "why=\"File too large\""));
	kvt_test_daemon_remove(&daemon);
}
