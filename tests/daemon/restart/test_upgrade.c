/* SPDX-License-Identifier: Apache-2.0 */
/* `kvtctl upgrade`: a new program serves with all of the old one's state, or the old one again.
 * Under the name "impostor" this program is the new one: see impostor().
 *
 * Inputs: good, bad and hanging programs, callers of several users, and failures at each system
 * call. Invariants: clients meet no error, and one log agrees with the oracle. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/daemon/restart/trace.h"
#include "tests/daemon/restart/work.h"

#define N_BUSY 2
#define GROUP 12345 /* without members */
#define NOBODY 65534
#define FEW 12

static struct kvt_test_child busy[N_BUSY];
static char program[640], impostor_path[96];

/* ---- the world */

static void begin(const char *options)
{
	snprintf(program, sizeof(program), "%s/kvtrunkd", kvt_test_build());
	kvt_test_daemon_begin_logged(&daemon_, options, true);
}

static void start_work(void)
{
	for (int i = 0; i < N_BUSY; i++)
		kvt_work_start(&busy[i], &daemon_);
}

/* Nothing was lost: clients met no error, and one log has the operations of all daemons. */
static void end_work(void)
{
	static const char *const ours[] = { "impostor", "impostor.how", "script" };
	char path[128];

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", daemon_.dir, ours[i]);
		unlink(path);
	}
	kvt_work_end(busy, N_BUSY, &daemon_);
}

static pid_t serving(void)
{
	return kvt_test_daemon_child(&daemon_);
}

static void expect_program(const char *path)
{
	char link[64], target[640];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/%d/exe", (int)serving());
	n = readlink(link, target, sizeof(target) - 1);
	kvt_test_check(n > 0);
	target[n] = '\0';
	if (strcmp(target, path) != 0)
		kvt_test_fail("%s serves, not %s", target, path);
}

/* Run `kvtctl upgrade` as `uid`; 0: as this user. `binary` NULL: without the option. */
static pid_t start_upgrade(const char *binary, uid_t uid)
{
	const char *arguments[] = { "kvtctl", "--socket", daemon_.socket, "upgrade",
				    binary ? "--binary" : NULL, binary, NULL };
	const gid_t group = GROUP;
	char kvtctl[640];
	int fd, file; /* open, because another user may not reach its folder */
	pid_t pid;

	snprintf(kvtctl, sizeof(kvtctl), "%s/kvtctl", kvt_test_build());
	file = open(kvtctl, O_RDONLY | O_CLOEXEC);
	kvt_test_check(file >= 0);
	fflush(NULL);
	pid = fork();
	kvt_test_check(pid >= 0);
	if (pid) {
		close(file);
		return pid;
	}
	fd = open(daemon_.output, O_WRONLY | O_APPEND | O_CLOEXEC);
	dup2(fd, 1);
	dup2(fd, 2);
	if (!uid || (setgroups(1, &group) == 0 && setgid(GROUP) == 0 && setuid(uid) == 0))
		fexecve(file, (char *const *)arguments, environ);
	_exit(126);
}

static int exit_status(pid_t pid)
{
	int status;

	kvt_test_equal(waitpid(pid, &status, 0), pid);
	kvt_test_check(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void upgrade(const char *binary)
{
	pid_t before = serving();

	kvt_test_equal(exit_status(start_upgrade(binary, 0)), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_check(serving() != before);
}

/* kvtctl printed `text`, and the old program serves. */
static void expect_failed(const char *binary, const char *text)
{
	kvt_test_equal(exit_status(start_upgrade(binary, 0)), 1);
	if (!kvt_test_daemon_said(&daemon_, text))
		kvt_test_fail("not said: %s", text);
	expect_program(program);
}

static void copy(const char *from, const char *to, mode_t mode)
{
	char bytes[65536];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	ssize_t n;

	kvt_test_check(in >= 0 && out >= 0);
	while ((n = read(in, bytes, sizeof(bytes))) > 0)
		kvt_test_equal(write(out, bytes, (size_t)n), n);
	close(in);
	close(out);
}

/* ---- a bad program */

/* Its task is in a file beside it: this test cannot change the keeper's environment. */
static void use_impostor(const char *how)
{
	char path[128];
	FILE *file;

	snprintf(impostor_path, sizeof(impostor_path), "%s/impostor", daemon_.dir);
	copy("/proc/self/exe", impostor_path, 0700);
	snprintf(path, sizeof(path), "%s.how", impostor_path);
	file = fopen(path, "we");
	kvt_test_check(file && fputs(how, file) >= 0 && fclose(file) == 0);
}

/* Pretend to be a kvtrunkd that ends, crashes or hangs at its start. */
static int impostor(const char *path)
{
	char file[700], how[32] = "";
	FILE *from;

	snprintf(file, sizeof(file), "%s.how", path);
	from = fopen(file, "re");
	if (!from || !fgets(how, sizeof(how), from))
		return 1;
	fclose(from);
	if (strcmp(how, "hangs") == 0)
		pause();
	if (strcmp(how, "crashes") == 0)
		abort();
	return 1;
}

/* ---- upgrades */

TEST(an_upgrade_under_load_is_a_pause)
{
	char path[128], deleted[144];

	begin(NULL);
	start_work();
	expect_program(program);
	for (int i = 0; i < 3; i++)
		upgrade(NULL);
	expect_program(program);
	snprintf(path, sizeof(path), "%s/newer", daemon_.dir);
	copy(program, path, 0700);
	upgrade(path);
	expect_program(path);
	/* After a crash the supervisor starts the program that ran, whatever became of its file. */
	kvt_test_equal(unlink(path), 0);
	kvt_test_daemon_succeed(&daemon_);
	snprintf(deleted, sizeof(deleted), "%s (deleted)", path);
	expect_program(deleted);
	upgrade(program);
	expect_program(program);
	end_work();
}

TEST(a_program_that_cannot_run_is_replaced_by_the_old_one)
{
	char script[128];

	begin(NULL);
	start_work();
	expect_failed("/bin/true", "was not ready: it ended");
	expect_failed("/bin/false", "was not ready: it ended");
	expect_failed("/", "cannot be opened: Permission denied");
	expect_failed("/proc/self/status", "cannot be opened: Permission denied");
	snprintf(script, sizeof(script), "%s/script", daemon_.dir);
	copy("/dev/null", script, 0700);
	expect_failed(script, "error=\"Exec format error\"");
	end_work();
}

TEST(options_that_would_lose_the_cache_are_refused)
{
	pid_t before;

	begin(NULL);
	before = serving();
	start_work();
	kvt_test_daemon_configure(&daemon_, "n_pages = 2048\n");
	expect_failed(NULL, "the cache would be lost: the arena has");
	kvt_test_daemon_configure(&daemon_, "n_pages = many\n");
	expect_failed(NULL, "the cache would be lost: ");
	kvt_test_equal(serving(), before);
	end_work();
}

TEST(a_program_that_is_not_ready_is_replaced_by_the_old_one)
{
	static const char *const hows[] = { "hangs", "crashes", "ends" };

	begin("watchdog_ms = 5000\n");
	start_work();
	for (size_t i = 0; i < 3; i++) {
		pid_t before = serving();

		use_impostor(hows[i]);
		expect_failed(impostor_path, i ? "was not ready: it ended" :
						 "was not ready in time: it ended");
		kvt_test_check(serving() != before);
	}
	upgrade(NULL);
	end_work();
}

/* ---- permissions */

TEST(a_member_of_the_admin_group_does_not_choose_the_program)
{
	char options[96];
	int status;

	if (getuid() != 0)
		kvt_skip("needs root");
	snprintf(options, sizeof(options), "admin_group = %d\nsocket_mode = 0666\n", GROUP);
	begin(options);
	kvt_test_equal(chmod(daemon_.output, 0666), 0);
	status = exit_status(start_upgrade("/bin/true", NOBODY));
	kvt_test_equal(status, 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "only uid 0 and the daemon's uid"));
	kvt_test_equal(exit_status(start_upgrade(NULL, NOBODY)), 0);
	kvt_test_daemon_end(&daemon_);
}

TEST(without_a_keeper_of_ours_it_says_what_to_run)
{
	kvt_test_daemon_begin(&daemon_, NULL);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "event=no_keeper"));
	kvt_test_equal(exit_status(start_upgrade(NULL, 0)), 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "start it with kvtrunkd --supervise"));
	kvt_test_daemon_stop(&daemon_);
	setenv("FDSTORE", "100", 1);
	kvt_test_daemon_start(&daemon_, NULL);
	unsetenv("FDSTORE");
	kvt_test_equal(exit_status(start_upgrade(NULL, 0)), 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "systemctl restart kvtrunkd@"));
	kvt_test_daemon_end(&daemon_);
}

/* ---- failures */

/* Let a process run to its end, or to the place before it sends READY. Its n-th system call fails;
 * every third time the process is killed instead. Returns how many it made. */
static uint32_t run_failing(pid_t pid, uint32_t n)
{
	struct ptrace_syscall_info info;
	uint32_t at = 0;
	int status;

	while (kvt_trace_next(pid, &info, &status)) {
		if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
			continue;
		if (at == n && n % 3 == 0) {
			kvt_trace_kill(pid);
			return at;
		}
		if (at == n)
			kvt_trace_fail(pid, ENOMEM);
		if (kvt_trace_says(pid, &info, "READY=1")) {
			kvt_trace_let_go(pid);
			return at + 1;
		}
		if (at++ == n) { /* any reaction to it is allowed */
			kvt_trace_let_go(pid);
			return at;
		}
	}
	return at;
}

/* Upgrade while a system call of the new program fails. Other children of the supervisor run
 * untraced. Returns how many calls it made, and kvtctl's exit status. */
static uint32_t upgrade_failing(uint32_t n, int *ret_exit)
{
	pid_t kvtctl = start_upgrade(NULL, 0);
	uint32_t places = 0;
	bool started = false;
	int status;

	for (;;) {
		pid_t pid = waitpid(-1, &status, __WALL);
		int signal = 0;

		kvt_test_check(pid > 0);
		if (pid == kvtctl && WIFEXITED(status))
			break;
		if (!WIFSTOPPED(status))
			continue;
		if (pid != daemon_.pid) { /* it has just been started */
			if (started)
				kvt_trace_let_go(pid);
			else
				places = run_failing(pid, n);
			started = true;
			continue;
		}
		if (!(status >> 16) && WSTOPSIG(status) != SIGTRAP)
			signal = WSTOPSIG(status);
		kvt_test_equal(ptrace(PTRACE_CONT, pid, NULL, signal), 0);
	}
	*ret_exit = WEXITSTATUS(status);
	return places;
}

static void sweep(const char *what)
{
	struct kvt_sweep places;
	uint32_t n, failed = 0;
	int code;

	kvt_sweep_start(&places, what, upgrade_failing(UINT32_MAX, &code), FEW);
	kvt_test_equal(code, 0);
	while (kvt_sweep_next(&places, &n)) {
		upgrade_failing(n, &code);
		if (code != 0 && code != 1)
			kvt_test_fail("place %u: kvtctl ends with %d", n, code);
		failed += code == 1;
	}
	print_message("%s: %u came to nothing\n", what, failed);
}

TEST(any_system_call_may_fail)
{
	begin("watchdog_ms = 5000\n");
	if (!kvt_trace_can_fail() || !kvt_trace_seize(daemon_.pid, true)) {
		kvt_test_daemon_end(&daemon_);
		kvt_skip("processes cannot be traced here");
	}
	start_work();
	sweep("system calls of a new program that fail");
	kvt_trace_stop(daemon_.pid);
	kvt_trace_let_go(daemon_.pid);
	end_work();
}

int main(int argc, char **argv)
{
	char self[640];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	if (n > 9 && strcmp(self + n - 9, "/impostor") == 0)
		return impostor(self);
	/* For processes that end while traced: LeakSanitizer cannot look at these. */
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
	return kvt_tests_run(argc, argv);
}
