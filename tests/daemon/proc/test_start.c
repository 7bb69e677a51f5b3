/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts on which the daemon cannot start: each gets its sentence with cause and cure, and nothing
 * is left behind. Inputs: a configuration and a change of the environment (spawn.h).
 *
 * Invariant: exit status, words, and no file or object left. */
#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"

/* Copy the sentence with which a start failed; "" if the options were not even read. */
static void reason_of(const struct kvt_test_daemon *daemon, char *to, size_t bytes)
{
	FILE *file = fopen(daemon->output, "r");
	char line[2048], *why;

	to[0] = '\0';
	while (file && fgets(line, sizeof(line), file)) {
		why = strstr(line, "event=start_failed") ? strstr(line, " why=\"") : NULL;
		if (why)
			snprintf(to, bytes, "%.*s", (int)(strrchr(why, '"') - why - 6), why + 6);
	}
	if (file)
		fclose(file);
}

/* --check-config ends as a start does, with the same words. */
static void check_fails(struct kvt_test_daemon *daemon, kvt_test_change_fn *change, int status,
			const char *const *words)
{
	char reason[1024];
	int ended;

	reason_of(daemon, reason, sizeof(reason));
	unlink(daemon->output);
	kvt_test_spawn_with(daemon, change, "--check-config");
	ended = kvt_test_daemon_wait(daemon);
	for (; *words; words++)
		if (strncmp(*words, "event=", 6) != 0 && !kvt_test_daemon_said(daemon, *words))
			kvt_test_fail("--check-config does not say: %s", *words);
	if (!kvt_test_daemon_said(daemon, reason))
		kvt_test_fail("--check-config does not say as the start: %s", reason);
	if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
		kvt_test_fail("wait status 0x%x of --check-config", ended);
}

/* Start with this configuration in this environment. It must exit with `status` and print each of
 * the words. Skips if the environment cannot be made. */
static void must_fail(const char *config, kvt_test_change_fn *change, int status,
		      const char *const *words)
{
	struct kvt_test_daemon daemon;
	char names[1024];
	int ended;

	if (kvt_test_start_changed(&daemon, config, change, &ended))
		kvt_test_fail("it started");
	if (WIFEXITED(ended) && WEXITSTATUS(ended) == KVT_TEST_CANNOT_CHANGE) {
		kvt_test_daemon_remove(&daemon);
		kvt_skip("needs a mount namespace, a limit or a filter that cannot be had here");
	}
	for (size_t i = 0; words[i]; i++)
		if (!kvt_test_daemon_said(&daemon, words[i]))
			kvt_test_fail("not said: %s", words[i]);
	check_fails(&daemon, change, status, words);
	if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
		kvt_test_fail("wait status 0x%x", ended);
	if (kvt_test_daemon_leftovers(&daemon, names, sizeof(names)))
		kvt_test_fail("left behind: %s", names);
	kvt_test_daemon_remove(&daemon);
}

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* ---- io_uring */

static bool io_uring_not_permitted(struct kvt_test_daemon *daemon)
{
	return kvt_test_forbid(SYS_io_uring_setup, EPERM);
}

static bool io_uring_unknown(struct kvt_test_daemon *daemon)
{
	return kvt_test_forbid(SYS_io_uring_setup, ENOSYS);
}

TEST(io_uring_forbidden_by_seccomp_is_said_so)
{
	must_fail("event_loop = io_uring\n", io_uring_not_permitted, 1,
		  WORDS("event=start_failed", "seccomp", "io_uring_setup"));
}

TEST(a_kernel_without_io_uring_is_said_so)
{
	must_fail("event_loop = io_uring\n", io_uring_unknown, 1,
		  WORDS("no io_uring here", "5.11 or newer"));
}

/* The log says once why, and the daemon serves. */
static void must_use_epoll(kvt_test_change_fn *change, const char *cause)
{
	struct kvt_test_daemon daemon;

	kvt_test_start_changed(&daemon, NULL, change, NULL);
	kvt_test_check(kvt_test_daemon_said(&daemon, cause));
	kvt_test_check(kvt_test_daemon_said(&daemon, "event_loop=epoll"));
	kvt_test_equal(kvt_test_daemon_count(&daemon, "event=no_io_uring"), 1);
	kvt_client_close(kvt_test_connect(&daemon), KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

TEST(where_seccomp_forbids_io_uring_the_daemon_uses_epoll)
{
	must_use_epoll(io_uring_not_permitted, "seccomp");
}

TEST(on_a_kernel_without_io_uring_the_daemon_uses_epoll)
{
	must_use_epoll(io_uring_unknown, "no io_uring here");
}

TEST(epoll_by_option_is_no_news)
{
	struct kvt_test_daemon daemon;

	kvt_test_daemon_begin(&daemon, "event_loop = epoll\n");
	kvt_test_check(kvt_test_daemon_said(&daemon, "event_loop=epoll"));
	kvt_test_equal(kvt_test_daemon_count(&daemon, "event=no_io_uring"), 0);
	kvt_test_daemon_end(&daemon);
}

/* ---- limits */

static bool without_capability(int capability)
{
	return prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 || geteuid() != 0;
}

static bool few_descriptors(struct kvt_test_daemon *daemon)
{
	struct rlimit limit = { 100, 100 };

	return without_capability(CAP_SYS_RESOURCE) && setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST(too_few_descriptors_are_said_with_the_number_needed)
{
	must_fail("max_sessions = 200\n", few_descriptors, 1,
		  WORDS("RLIMIT_NOFILE is 100", "max_sessions=200 needs 1768"));
}

static bool little_lockable(struct kvt_test_daemon *daemon)
{
	struct rlimit limit = { 65536, 65536 };

#ifdef __SANITIZE_ADDRESS__
	return false; /* its mlock() does nothing */
#endif
	return without_capability(CAP_IPC_LOCK) && setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
}

TEST(memory_that_cannot_be_locked_is_said_with_the_limit)
{
	must_fail("mlock = yes\n", little_lockable, 1,
		  WORDS("RLIMIT_MEMLOCK is 65536", "mlock = no"));
}

/* Docker's 64 MB, smaller. */
static bool small_shm(struct kvt_test_daemon *daemon)
{
	return unshare(CLONE_NEWNS) == 0 && mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	       mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=256k") == 0;
}

TEST(a_small_dev_shm_is_said_with_what_is_needed_and_the_cure)
{
	must_fail(NULL, small_shm, 1, WORDS("the arena needs", "262144", "--shm-size"));
}

TEST(a_pool_larger_than_memory_is_refused)
{
	must_fail("n_pages = 100000\npage_bytes = 1G\n", NULL, 1,
		  WORDS("more memory is needed", "pool 107374182400000", "n_pages"));
}

TEST(a_core_that_does_not_exist_is_refused)
{
	must_fail("cpu = 8191\n", NULL, 2, WORDS("cannot run on cpu 8191"));
}

TEST(a_group_that_does_not_exist_is_refused)
{
	must_fail("socket_group = no-such-group\n", NULL, 2, WORDS("'no-such-group'", "groupadd"));
}

/* A supervisor or manager does not try again after status 2. */
TEST(options_that_only_the_start_finds_bad_end_with_status_2)
{
	must_fail("sides = 2,x\n", NULL, 2, WORDS("sides"));
}

TEST(a_log_that_cannot_be_written_is_refused)
{
	must_fail("log_file = /no-such-directory/log\n", NULL, 2, WORDS("/no-such-directory/log"));
	must_fail("log_file = /tmp\n", NULL, 2, WORDS("/tmp: Is a directory"));
}

TEST(an_admin_group_that_does_not_exist_is_refused)
{
	must_fail("admin_group = no-such-group\n", NULL, 2, WORDS("admin_group", "groupadd"));
}

TEST(scales_that_cannot_be_read_are_refused)
{
	must_fail("n_layers = 4\nn_kv_heads = 1\nhead_dim = 8\nkv_type = fp8_e4m3\n"
		  "kv_scales = /no-such-scales\n", NULL, 2, WORDS("cannot read /no-such-scales"));
}

/* So much that no host has reserved it. */
TEST(huge_pages_that_are_not_there_are_no_bad_option)
{
	must_fail("hugepages = require\nn_pages = 1000\npage_bytes = 1M\n", NULL, 1,
		  WORDS("no huge pages for", "vm.nr_hugepages"));
}

TEST(bad_options_have_an_exit_status_of_their_own)
{
	must_fail("page_size = 4097\n", NULL, 2, WORDS("page_size"));
}

TEST(a_manager_that_does_not_answer_is_said)
{
	struct kvt_test_daemon daemon;
	char path[128];

	kvt_test_daemon_prepare(&daemon, NULL);
	snprintf(path, sizeof(path), "%s/notify", daemon.dir);
	unlink(path);
	kvt_test_spawn_changed(&daemon, NULL);
	kvt_test_equal(WEXITSTATUS(kvt_test_daemon_wait(&daemon)), 1);
	kvt_test_check(kvt_test_daemon_said(&daemon, "cannot reach NOTIFY_SOCKET"));
	kvt_test_daemon_remove(&daemon);
}

/* ---- socket */

/* A listener on the path stays, and the message names it. */
TEST(a_socket_with_a_listener_is_left_alone)
{
	struct kvt_test_daemon daemon;
	struct stat there;
	char pid[64];
	int fd, status;

	kvt_test_daemon_prepare(&daemon, NULL);
	fd = kvt_test_listen(daemon.socket);
	kvt_test_spawn_changed(&daemon, NULL);
	kvt_test_check(!kvt_test_daemon_await(&daemon, "READY=1"));
	status = kvt_test_daemon_wait(&daemon);
	kvt_test_equal(WEXITSTATUS(status), 3);
	snprintf(pid, sizeof(pid), "live process, pid %d", (int)getpid());
	kvt_test_check(kvt_test_daemon_said(&daemon, pid));
	kvt_test_equal(stat(daemon.socket, &there), 0);
	close(fd);
	kvt_test_daemon_remove(&daemon);
}

/* Connect until the queue is full. Returns the last connection: it does not wait. */
static int fill_queue(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, rc;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	do {
		fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
	} while (rc == 0);
	kvt_test_equal(errno, EAGAIN);
	return fd;
}

/* So looks the socket of a daemon that was killed, until the kernel has released its io_uring. */
TEST(a_socket_that_takes_no_connections_is_waited_for)
{
	struct kvt_test_daemon daemon;
	int fd;

	kvt_test_daemon_prepare(&daemon, NULL);
	fd = kvt_test_listen(daemon.socket);
	close(fill_queue(daemon.socket));
	kvt_test_spawn_changed(&daemon, NULL);
	kvt_test_equal(WEXITSTATUS(kvt_test_daemon_wait(&daemon)), 3);
	kvt_test_check(kvt_test_daemon_said(&daemon, "no connections, for its queue is full"));
	kvt_test_spawn_changed(&daemon, NULL);
	while (kvt_test_daemon_count(&daemon, "event=waits") < 2)
		sched_yield();
	close(fd);
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_daemon_end(&daemon);
}

/* Wait until SIGKILL has arrived while the process still holds everything, as one does that frees
 * much memory. Returns false if it has ended. */
static bool kill_halfway(pid_t pid)
{
	int status;

	ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT);
	kvt_test_equal(kill(pid, SIGKILL), 0);
	kvt_test_equal(waitpid(pid, &status, __WALL), pid);
	return WIFSTOPPED(status);
}

TEST(a_daemon_that_is_just_ending_is_waited_for)
{
	struct kvt_test_daemon daemon;
	char at = ' ';
	pid_t old;

	kvt_test_daemon_begin(&daemon, NULL);
	old = daemon.pid;
	if (!kill_halfway(old)) {
		kvt_test_daemon_remove(&daemon);
		kvt_skip("processes cannot be traced here");
	}
	kvt_test_spawn_changed(&daemon, NULL);
	while (at != 'S') { /* in its wait, or before */
		at = kvt_test_process_state(daemon.pid);
		if (at == 'Z')
			kvt_test_fail("it gave up");
		sched_yield();
	}
	kvt_test_equal(ptrace(PTRACE_DETACH, old, NULL, NULL), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon, "READY=1"));
	kvt_test_equal(waitpid(old, NULL, 0), old);
	kvt_test_daemon_end(&daemon);
}

TEST(a_dead_socket_is_replaced)
{
	struct kvt_test_daemon daemon;

	kvt_test_daemon_prepare(&daemon, NULL);
	close(kvt_test_listen(daemon.socket));
	kvt_test_daemon_start(&daemon, NULL);
	kvt_client_close(kvt_test_connect(&daemon), KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

TEST(a_file_where_the_socket_should_be_is_left_alone)
{
	struct kvt_test_daemon daemon;
	struct stat there;
	FILE *file;

	kvt_test_daemon_prepare(&daemon, NULL);
	file = fopen(daemon.socket, "we");
	kvt_test_check(file && fputs("precious", file) >= 0 && fclose(file) == 0);
	kvt_test_spawn_changed(&daemon, NULL);
	kvt_test_equal(WEXITSTATUS(kvt_test_daemon_wait(&daemon)), 2);
	kvt_test_check(kvt_test_daemon_said(&daemon, "is not a socket"));
	kvt_test_check(stat(daemon.socket, &there) == 0 && there.st_size == 8);
	kvt_test_daemon_remove(&daemon);
}
