/* SPDX-License-Identifier: Apache-2.0 */
/* What kills the daemon is answered with an error after two deaths. Sessions and cache continue.
 *
 * Inputs: a daemon that is stepped until its ledger says that a request runs, and killed there, as
 * the OOM killer or an assertion would. Invariants: the third daemon does not run it; other clients
 * meet no error; one log agrees with the oracle. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/core/ledger.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"
#include "tests/daemon/restart/trace.h"
#include "tests/daemon/restart/work.h"

static struct kvt_client *other;
static uint32_t space;

static int start_with(const char *more)
{
	uint32_t keys[KVT_WORK_KEYS];
	struct kvt_seq *seq;

	kvt_test_daemon_begin_logged(&daemon_, more, true);
	other = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(other, "fatal");
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(other, space, keys);
	kvt_work_compute(other, seq, keys, 0, 16);
	kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	return 0;
}

static int start(void **state)
{
	return start_with("");
}

/* The other client continues with the cache, and all agree with the log. */
static int stop(void **state)
{
	uint32_t keys[KVT_WORK_KEYS];
	struct kvt_seq *seq;

	(void)state;
	kvt_work_keys(keys, KVT_WORK_KEYS, 1);
	seq = kvt_work_begin(other, space, keys);
	kvt_test_equal(kvt_seq_reusable(seq), KVT_WORK_KEYS - 16);
	kvt_work_check(other, seq, keys, 15);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_client_close(other, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
	return 0;
}

/* ---- deaths at a chosen instruction */

static uint64_t running_address(pid_t pid)
{
	unsigned long long from = 0;
	char path[64], line[256];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "ledger") && sscanf(line, "%llx-", &from) == 1)
			break;
	kvt_test_check(maps && from);
	fclose(maps);
	return from + offsetof(struct kvt_ledger_header, running);
}

/* Kill a stopped daemon when it runs this: enum kvt_running, and its `what`. */
static void kill_in(pid_t pid, uint32_t kind, uint32_t what)
{
	uint64_t running = 0, address = running_address(pid);
	int status, signal = 0;

	while (running >> 60 != kind || (running >> 48 & 0xff) != what) {
		kvt_test_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, signal), 0);
		kvt_test_equal(waitpid(pid, &status, __WALL), pid);
		kvt_test_check(WIFSTOPPED(status));
		signal = status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		kvt_test_check(kvt_trace_read(pid, address, &running, sizeof(running)));
	}
	kvt_trace_kill(pid);
}

/* Take the supervisor's next daemon and run it until it says that it is ready. */
static pid_t next_daemon(void)
{
	struct ptrace_syscall_info info;
	int status;
	pid_t pid = kvt_trace_child(daemon_.pid, &status);

	kvt_test_check(pid > 0);
	do {
		kvt_test_check(kvt_trace_next(pid, &info, &status));
	} while (!kvt_trace_says(pid, &info, "READY=1"));
	kvt_test_check(kvt_trace_next(pid, &info, &status));
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	return pid;
}

/* Let the child go on, and two daemons die in what it then asks for. Returns its word. */
static uint64_t die_twice(struct kvt_test_child *child, uint32_t kind, uint32_t what)
{
	pid_t pid = kvt_test_daemon_child(&daemon_);
	uint64_t word;

	if (!kvt_trace_seize(daemon_.pid, true) || !kvt_trace_seize(pid, false))
		kvt_skip("processes cannot be traced here");
	kvt_trace_stop(pid);
	kvt_test_send(child->pipe, 1);
	kill_in(pid, kind, what);
	kill_in(next_daemon(), kind, what);
	kvt_trace_let_go(next_daemon());
	kvt_trace_stop(daemon_.pid);
	kvt_trace_let_go(daemon_.pid);
	word = kvt_test_word(child->pipe);
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=died_in"), 2);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "deaths=2 effect=\"it is answered with an"));
	return word;
}

static void restart_in_order(void)
{
	kvt_test_equal(kill(daemon_.pid, SIGUSR2), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
}

/* ---- what they die in */

static void alloc_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(context);
	uint32_t page;

	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 1);
	kvt_test_equal(kvt_alloc(client, 1, &page), -EIO);
	kvt_test_equal(kvt_client_error(client)->reason, KVT_REASON_FATAL);
	kvt_test_check(strstr(kvt_client_error(client)->text, "two daemons died while they ran"));
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, 2);
}

TEST_WITH(an_operation_that_kills_the_daemon_twice_is_answered_with_an_error, start, stop)
{
	struct kvt_test_child child;

	kvt_test_child_start(&child, alloc_run, &daemon_);
	kvt_test_expect(child.pipe, 1);
	kvt_test_equal(die_twice(&child, KVT_RUNNING_ENTRY, KVT_OP_ALLOC), 2);
	kvt_test_child_finish(&child);
}

static char said[2048]; /* by kvtctl */

/* Returns kvtctl's exit status. */
static int kvtctl(const char *command)
{
	char line[400];
	FILE *output;
	int status;

	snprintf(line, sizeof(line), "%s/kvtctl --timeout 300 --socket %s %s 2>&1",
		 kvt_test_build(), daemon_.socket, command);
	output = popen(line, "re");
	kvt_test_check(output != NULL);
	said[fread(said, 1, sizeof(said) - 1, output)] = '\0';
	status = pclose(output);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void audit_run(int pipe, void *context)
{
	(void)context;
	kvt_test_expect(pipe, 1);
	kvt_test_equal(kvtctl("audit"), 1);
	kvt_test_check(strstr(said, "two daemons died in this request"));
	kvt_test_send(pipe, 2);
}

static void status_run(int pipe, void *context)
{
	(void)context;
	kvt_test_expect(pipe, 1);
	kvt_test_equal(kvtctl("status"), 0);
	kvt_test_send(pipe, 2);
}

TEST_WITH(an_audit_that_kills_the_daemon_twice_is_refused_until_an_orderly_restart, start, stop)
{
	struct kvt_test_child child;

	kvt_test_child_start(&child, audit_run, NULL);
	kvt_test_equal(die_twice(&child, KVT_RUNNING_REQUEST, KVT_RUNNING_ADMIN | KVT_ADMIN_AUDIT),
		       2);
	kvt_test_child_finish(&child);
	kvt_test_equal(kvtctl("status"), 0);
	kvt_test_equal(kvtctl("audit"), 1);
	restart_in_order();
	kvt_test_equal(kvtctl("audit"), 0);
}

static void connect_run(int pipe, void *context)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = ((struct kvt_test_daemon *)context)->socket;
	kvt_test_expect(pipe, 1);
	kvt_test_equal(kvt_client_connect(&client, &options, &error), -EIO);
	kvt_test_check(strstr(error.text, "two daemons died in this request"));
	kvt_test_send(pipe, 2);
}

TEST_WITH(a_hello_that_kills_the_daemon_twice_is_refused_until_an_orderly_restart, start, stop)
{
	struct kvt_test_child child;

	kvt_test_child_start(&child, connect_run, &daemon_);
	kvt_test_equal(die_twice(&child, KVT_RUNNING_REQUEST, KVT_MSG_HELLO), 2);
	kvt_test_child_finish(&child);
	restart_in_order();
	kvt_client_close(kvt_test_connect(&daemon_), KVT_IDLE);
}

/* Run a stopped daemon until it sends an answer, and kill it before that. */
static void kill_in_answer(pid_t pid)
{
	struct ptrace_syscall_info info;
	int status;

	do {
		kvt_test_check(kvt_trace_next(pid, &info, &status));
	} while (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != SYS_sendmsg);
	kvt_trace_kill(pid);
}

/* The other client's session and an observer come back, as often as daemons die in that. */
TEST_WITH(sessions_and_observers_resume_after_any_number_of_deaths, start, stop)
{
	struct kvt_test_child child;
	pid_t pid = kvt_test_daemon_child(&daemon_);

	if (!kvt_trace_seize(daemon_.pid, true) || !kvt_trace_seize(pid, false))
		kvt_skip("processes cannot be traced here");
	kvt_test_child_start(&child, status_run, NULL);
	kvt_trace_stop(pid);
	kvt_trace_kill(pid);
	kvt_test_send(child.pipe, 1);
	for (int i = 0; i < 4; i++)
		kill_in_answer(next_daemon());
	kvt_trace_let_go(next_daemon());
	kvt_trace_stop(daemon_.pid);
	kvt_trace_let_go(daemon_.pid);
	kvt_test_child_finish(&child);
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=died_in"), 0);
}

/* ---- the OOM killer */

/* Files of a memory cgroup, by version. */
static const struct {
	const char *root, *limit, *used, *swap, *unlimited;
} cgroups[] = {
	{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
	  "memory.swappiness", "-1" },
	{ "/sys/fs/cgroup", "memory.max", "memory.current", "memory.swap.max", "max" },
};

/* A cgroup of this test, and the one above it. Open, because its daemon must not see them. */
static struct {
	char path[64];
	int version, limit, used, procs, outside;
} group;

static int open_in(const char *folder, const char *file)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, file);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void put(int fd, const char *text)
{
	kvt_test_equal(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
}

static void put_number(int fd, long long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", number);
	put(fd, text);
}

static bool make_group(void)
{
	for (int i = 0; i < 2; i++) {
		int swap;

		snprintf(group.path, sizeof(group.path), "%s/kvtrunk-test-%d", cgroups[i].root,
			 (int)getpid());
		if (mkdir(group.path, 0755) != 0)
			continue;
		group.version = i;
		group.limit = open_in(group.path, cgroups[i].limit);
		group.used = open_in(group.path, cgroups[i].used);
		group.procs = open_in(group.path, "cgroup.procs");
		group.outside = open_in(cgroups[i].root, "cgroup.procs");
		swap = open_in(group.path, cgroups[i].swap);
		if (swap >= 0)
			put(swap, "0");
		if (group.limit >= 0 && group.procs >= 0 && group.outside >= 0)
			return true;
		rmdir(group.path);
	}
	return false;
}

static long long group_used(void)
{
	char text[32] = "";

	kvt_test_check(pread(group.used, text, sizeof(text) - 1, 0) > 0);
	return strtoll(text, NULL, 10);
}

/* Move the daemons and their closers out, and remove the group. */
static void remove_group(void)
{
	char procs[128], line[32];

	snprintf(procs, sizeof(procs), "%s/cgroup.procs", group.path);
	while (rmdir(group.path) != 0) {
		FILE *file = fopen(procs, "re");

		kvt_test_check(errno == EBUSY && file);
		while (fgets(line, sizeof(line), file))
			if (pwrite(group.outside, line, strlen(line), 0) < 0)
				kvt_test_equal(errno, ESRCH);
		fclose(file);
	}
}

/* In a mount namespace where the cgroups can be hidden from the daemon. */
static int start_apart(void **state)
{
	group.version = -1;
	if (unshare(CLONE_NEWNS) == 0 &&
	    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && make_group())
		return start_with("n_pages = 65536\n");
	group.version = -1;
	return start(state);
}

TEST_WITH(an_audit_that_the_oom_killer_ends_twice_is_refused, start_apart, stop)
{
	if (group.version < 0)
		kvt_skip("no memory cgroup, or no mount namespace, can be made here");
	put_number(group.procs, daemon_.pid);
	kvt_test_daemon_succeed(&daemon_); /* its memory counts in the group */
	/* Room for another successor, and not for the audit's 8 MB. */
	put_number(group.limit, group_used() + (2 << 20));
	kvt_test_equal(mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL), 0);
	kvt_test_equal(kvtctl("audit"), 1);
	kvt_test_check(strstr(said, "two daemons died in this request"));
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=died_in"), 2);
	for (int i = 0; i < 2; i++) /* of their successors, before that of the restart */
		kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_equal(umount("/sys/fs/cgroup"), 0);
	put(group.limit, cgroups[group.version].unlimited);
	restart_in_order();
	kvt_test_equal(kvtctl("audit"), 0);
	remove_group();
}

int main(int argc, char **argv)
{
	/* For daemons that end while traced: LeakSanitizer cannot look at these. */
	setenv("LSAN_OPTIONS", "detect_leaks=0", 1);
	return kvt_tests_run(argc, argv);
}
