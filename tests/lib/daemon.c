/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon for one test, in a directory of its own.
 *
 * Inputs: a configuration, arguments. Invariants: no wait is timed; after kvt_test_daemon_stop()
 * nothing of the daemon is left. Callers: the tests, by harness.h. */
#include "tests/lib/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* Output files of this process's daemons, and of its parent's; "": free. */
static char outputs[8][sizeof(((struct kvt_test_daemon *)NULL)->output)];

static void remember_output(const char *from, const char *to)
{
	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++)
		if (strcmp(outputs[i], from) == 0) {
			snprintf(outputs[i], sizeof(outputs[i]), "%s", to);
			return;
		}
}

/* Print the last lines of each output. */
static void print_outputs(void)
{
	char text[2048];

	for (size_t i = 0; i < sizeof(outputs) / sizeof(outputs[0]); i++) {
		int fd = outputs[i][0] ? open(outputs[i], O_RDONLY | O_CLOEXEC) : -1;
		off_t bytes;
		ssize_t n;

		if (fd < 0)
			continue;
		bytes = lseek(fd, 0, SEEK_END);
		n = pread(fd, text, sizeof(text),
			  bytes > (off_t)sizeof(text) ? bytes - (off_t)sizeof(text) : 0);
		if (n > 0)
			fprintf(stderr, "the end of %s:\n%.*s\n", outputs[i], (int)n, text);
		close(fd);
	}
}

void kvt_test_fail_at(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s:%d: ", file, line);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	print_outputs();
	fflush(NULL);
	_exit(1);
}

const char *kvt_test_build(void)
{
	static char path[512];
	ssize_t n;
	char *slash;

	if (path[0])
		return path;
	n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	kvt_test_check(n > 0);
	path[n] = '\0';
	slash = strstr(path, "/tests/");
	while (slash && strstr(slash + 1, "/tests/"))
		slash = strstr(slash + 1, "/tests/");
	kvt_test_check(slash);
	*slash = '\0';
	return path;
}

/* Remove the lines of `text` that set the key at the start of `line`. */
static void remove_key(char *text, const char *line)
{
	size_t n = strcspn(line, " =\n");
	char *at = text;

	while (*at) {
		char *next = strchrnul(at, '\n');

		next += *next != '\0';
		if (n && strncmp(at, line, n) == 0 && (at[n] == ' ' || at[n] == '='))
			memmove(at, next, strlen(next) + 1);
		else
			at = next;
	}
}

void kvt_test_daemon_configure(const struct kvt_test_daemon *daemon, const char *lines)
{
	char text[16384] = "";
	FILE *file = fopen(daemon->config, "re");
	size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;

	text[n] = '\0';
	if (file)
		fclose(file);
	while (*lines) {
		int length = (int)(strchrnul(lines, '\n') - lines);

		remove_key(text, lines);
		n = strlen(text);
		snprintf(text + n, sizeof(text) - n, "%.*s\n", length, lines);
		lines += length + (lines[length] == '\n');
	}
	file = fopen(daemon->config, "we");
	kvt_test_check(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void write_config(const struct kvt_test_daemon *daemon, const char *more)
{
	char lines[512];

	snprintf(lines, sizeof(lines), "instance = %s\nruntime_dir = %s\nsocket_path = %s\n"
		 "page_size = 16\npage_bytes = 1024\nn_pages = 4096\nspin_budget_us = 20\n"
		 "max_private_pages = 0\ncoalesce_patience_ms = 0\nlog_level = debug\n"
		 "hugepages = no\n", daemon->name, daemon->dir, daemon->socket);
	kvt_test_daemon_configure(daemon, lines);
	kvt_test_daemon_configure(daemon, more ? more : "");
}

void kvt_test_daemon_prepare(struct kvt_test_daemon *daemon, const char *more)
{
	static unsigned int count;
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	*daemon = (struct kvt_test_daemon){ .pid = -1 };
	snprintf(daemon->dir, sizeof(daemon->dir), "/tmp/kvt-test-XXXXXX");
	kvt_test_check(mkdtemp(daemon->dir) && chmod(daemon->dir, 0755) == 0);
	/* Remove leftovers of an earlier process with the same number. */
	snprintf(daemon->name, sizeof(daemon->name), "test-%d-%u-%s", (int)getpid(), count++,
		 strrchr(daemon->dir, '-') + 1);
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/socket", daemon->dir);
	snprintf(daemon->config, sizeof(daemon->config), "%s/config", daemon->dir);
	snprintf(daemon->output, sizeof(daemon->output), "%s/output", daemon->dir);
	remember_output("", daemon->output);
	write_config(daemon, more);
	daemon->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	kvt_test_check(daemon->notify >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", daemon->dir);
	kvt_test_check(bind(daemon->notify, (struct sockaddr *)&address, sizeof(address)) == 0);
}

static void become_daemon(const struct kvt_test_daemon *daemon, const char *const *arguments)
{
	char program[640], notify[96], log_flag[96];
	const char *argv[32] = { program, "--config", daemon->config };
	int n = 3, fd = open(daemon->output, O_WRONLY | O_CREAT | O_APPEND, 0600);

	snprintf(log_flag, sizeof(log_flag), "--log_file=%s/operations", daemon->dir);
	if (daemon->supervised)
		argv[n++] = "--supervise";
	if (daemon->logged)
		argv[n++] = log_flag;
	snprintf(program, sizeof(program), "%s/kvtrunkd", kvt_test_build());
	snprintf(notify, sizeof(notify), "%s/notify", daemon->dir);
	for (; arguments && *arguments; arguments++) {
		kvt_test_check(n < 31);
		argv[n++] = *arguments;
	}
	dup2(fd, 1);
	dup2(fd, 2);
	setenv("NOTIFY_SOCKET", notify, 1);
	if (daemon->uid && (chown(daemon->dir, daemon->uid, (gid_t)-1) != 0 ||
			    chown(daemon->config, daemon->uid, (gid_t)-1) != 0 ||
			    chown(notify, daemon->uid, (gid_t)-1) != 0 ||
			    setuid(daemon->uid) != 0 || access(program, X_OK) != 0))
		_exit(77);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (daemon->traced && ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
		_exit(77);
	execv(program, (char *const *)argv);
	fprintf(stderr, "cannot run %s: %s\n", program, strerror(errno));
	_exit(126);
}

void kvt_test_daemon_spawn(struct kvt_test_daemon *daemon, const char *const *arguments)
{
	fflush(NULL);
	daemon->pid = fork();
	kvt_test_check(daemon->pid >= 0);
	if (daemon->pid == 0)
		become_daemon(daemon, arguments);
}

bool kvt_test_daemon_await(struct kvt_test_daemon *daemon, const char *text)
{
	int pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
	bool seen = false, ended = false;

	kvt_test_check(pidfd >= 0);
	while (!seen && !ended) {
		struct pollfd fds[] = { { .fd = daemon->notify, .events = POLLIN },
					{ .fd = pidfd, .events = POLLIN } };
		char message[1024];
		ssize_t n;

		if (poll(fds, 2, -1) < 0 && errno == EINTR)
			continue;
		ended = fds[1].revents != 0;
		while (!seen && (n = recv(daemon->notify, message, sizeof(message) - 1,
					  MSG_DONTWAIT)) > 0) {
			message[n] = '\0';
			seen = strstr(message, text) != NULL;
		}
	}
	close(pidfd);
	return seen;
}

void kvt_test_daemon_start(struct kvt_test_daemon *daemon, const char *const *arguments)
{
	kvt_test_daemon_spawn(daemon, arguments);
	if (!kvt_test_daemon_await(daemon, "READY=1"))
		kvt_test_fail("the daemon ended before it was ready");
}

int kvt_test_daemon_wait(struct kvt_test_daemon *daemon)
{
	int status = 0;

	kvt_test_check(daemon->pid > 0);
	while (waitpid(daemon->pid, &status, 0) < 0)
		kvt_test_check(errno == EINTR);
	daemon->pid = -1;
	return status;
}

static void add_name(char *names, size_t bytes, const char *name)
{
	size_t used = strlen(names);

	snprintf(names + used, bytes - used, "%s\n", name);
}

bool kvt_test_daemon_leftovers(const struct kvt_test_daemon *daemon, char *ret_names, size_t bytes)
{
	static const char *const ours[] = { ".", "..", "config", "output", "notify", "operations" };
	struct dirent *entry;
	DIR *dir;

	ret_names[0] = '\0';
	dir = opendir("/dev/shm");
	while (dir && (entry = readdir(dir)))
		if (strstr(entry->d_name, daemon->name))
			add_name(ret_names, bytes, entry->d_name);
	if (dir)
		closedir(dir);
	dir = opendir(daemon->dir);
	while (dir && (entry = readdir(dir))) {
		bool mine = false;

		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			mine |= strcmp(entry->d_name, ours[i]) == 0;
		if (!mine)
			add_name(ret_names, bytes, entry->d_name);
	}
	if (dir)
		closedir(dir);
	return ret_names[0] != '\0';
}

void kvt_test_daemon_stop(struct kvt_test_daemon *daemon)
{
	char names[1024];
	int status;

	kvt_test_check(kill(daemon->pid, SIGTERM) == 0);
	status = kvt_test_daemon_wait(daemon);
	if (status != 0)
		kvt_test_fail("the daemon ended with status 0x%x", status);
	if (kvt_test_daemon_leftovers(daemon, names, sizeof(names)))
		kvt_test_fail("left behind: %s", names);
}

/* Count the daemon's descriptors; prints each if `print`. */
static uint32_t look_at_descriptors(const struct kvt_test_daemon *daemon, bool print)
{
	struct dirent *entry;
	char path[64], what[128];
	uint32_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon->pid);
	dir = opendir(path);
	kvt_test_check(dir);
	while ((entry = readdir(dir))) {
		ssize_t bytes = readlinkat(dirfd(dir), entry->d_name, what, sizeof(what));

		n += bytes > 0;
		if (print && bytes > 0)
			fprintf(stderr, "  descriptor %s: %.*s\n", entry->d_name, (int)bytes,
				what);
	}
	closedir(dir);
	return n;
}

uint32_t kvt_test_daemon_descriptors(const struct kvt_test_daemon *daemon)
{
	return look_at_descriptors(daemon, false);
}

void kvt_test_daemon_print_descriptors(const struct kvt_test_daemon *daemon)
{
	look_at_descriptors(daemon, true);
}

/** Check the operation log with `kvtlab verify`. */
static void verify(const struct kvt_test_daemon *daemon)
{
	char command[1200];
	int status;

	snprintf(command, sizeof(command), "'%s/kvtlab' verify %s/operations", kvt_test_build(),
		 daemon->dir);
	fflush(NULL);
	status = system(command);
	if (status != 0)
		kvt_test_fail("'%s' ended with status 0x%x", command, status);
}

static int remove_entry(const char *path, const struct stat *there, int kind, struct FTW *where)
{
	remove(path);
	return 0;
}

void kvt_test_daemon_remove(struct kvt_test_daemon *daemon)
{
	kvt_test_equal(nftw(daemon->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
	remember_output(daemon->output, "");
	close(daemon->notify);
}

uint32_t kvt_test_daemon_count(const struct kvt_test_daemon *daemon, const char *text)
{
	FILE *file = fopen(daemon->output, "re");
	char line[2048];
	uint32_t n = 0;

	while (file && fgets(line, sizeof(line), file))
		n += strstr(line, text) != NULL;
	if (file)
		fclose(file);
	return n;
}

bool kvt_test_daemon_said(const struct kvt_test_daemon *daemon, const char *text)
{
	return kvt_test_daemon_count(daemon, text) != 0;
}

pid_t kvt_test_first_child(pid_t parent)
{
	char path[64];
	int pid = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
	file = fopen(path, "re");
	kvt_test_check(file && (fscanf(file, "%d", &pid) == 1 || feof(file)));
	fclose(file);
	return pid;
}

pid_t kvt_test_daemon_child(const struct kvt_test_daemon *daemon)
{
	pid_t pid = kvt_test_first_child(daemon->pid);

	kvt_test_check(pid);
	return pid;
}

char kvt_test_process_state(pid_t pid)
{
	char path[64], state = ' ';
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	kvt_test_check(file && fscanf(file, "%*d %*s %c", &state) == 1);
	fclose(file);
	return state;
}

void kvt_test_freeze(pid_t pid)
{
	char state = ' ';

	kvt_test_equal(kill(pid, SIGSTOP), 0);
	while (state != 'T') {
		state = kvt_test_process_state(pid);
		kvt_test_check(state != 'Z');
		sched_yield();
	}
}

void kvt_test_await_zombie(pid_t pid)
{
	while (kvt_test_process_state(pid) != 'Z')
		sched_yield();
}

void kvt_test_daemon_succeed(struct kvt_test_daemon *daemon)
{
	kvt_test_equal(kill(kvt_test_daemon_child(daemon), SIGKILL), 0);
	kvt_test_check(kvt_test_daemon_await(daemon, "READY=1"));
}

static void begin(struct kvt_test_daemon *daemon, const char *more, bool supervised, bool logged)
{
	kvt_test_daemon_prepare(daemon, more);
	daemon->supervised = supervised;
	daemon->logged = logged;
	kvt_test_daemon_start(daemon, NULL);
}

void kvt_test_daemon_begin(struct kvt_test_daemon *daemon, const char *more)
{
	begin(daemon, more, false, false);
}

void kvt_test_daemon_begin_supervised(struct kvt_test_daemon *daemon, const char *more)
{
	begin(daemon, more, true, false);
}

void kvt_test_daemon_begin_logged(struct kvt_test_daemon *daemon, const char *more,
				  bool supervised)
{
	begin(daemon, more, supervised, true);
}

void kvt_test_daemon_end(struct kvt_test_daemon *daemon)
{
	kvt_test_audit(daemon);
	kvt_test_daemon_stop(daemon);
	if (daemon->logged)
		verify(daemon);
	kvt_test_daemon_remove(daemon);
}

struct kvt_test_daemon daemon_;

int kvt_test_begin(void **state)
{
	kvt_test_daemon_begin(&daemon_, *state);
	return 0;
}

int kvt_test_end(void **state)
{
	kvt_test_daemon_end(&daemon_);
	return 0;
}
