/* SPDX-License-Identifier: Apache-2.0 */

/* Starts and stops a private kvtrunkd: see daemon.h.
 *
 * Inputs: the program, its flags, a CPU. Invariant: however this process ends, the daemon gets
 * SIGTERM and its directory is removed; a shell that outlives both does the latter. Callers:
 * replay, script, chaos, the benchmarks, tests/daemon/hostile. */

#include "lab/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/program.h"

#define MAX_FLAGS 64

/* Open the notify socket for the daemon's READY=1. */
static int open_notify(const struct kvt_own_daemon *daemon, char *path, size_t bytes)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	snprintf(path, bytes, "%s/notify", daemon->directory);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address))) {
		int error = errno;

		close(fd);
		return -error;
	}
	return fd < 0 ? -errno : fd;
}

/* Start a shell that removes the directory once its pipe has a line or is closed: when this process
 * and the daemon have both ended, by whatever means. */
static void start_cleaner(struct kvt_own_daemon *daemon)
{
	char shell[] = "sh", option[] = "-c";
	char script[] = "trap '' HUP INT TERM; read -r _; rm -rf \"$0\"";
	char *arguments[] = { shell, option, script, daemon->directory, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) != 0)
		return;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	/* Its own session keeps it from this group's signals. It must inherit no descriptor. */
	if (posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID) != 0 ||
	    posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO) != 0 ||
	    posix_spawn_file_actions_addclosefrom_np(&actions, STDIN_FILENO + 1) != 0 ||
	    posix_spawnp(&daemon->cleaner, shell, &actions, &attributes, arguments, environ) != 0)
		daemon->cleaner = 0;
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[0]);
	daemon->held = ends[1];
	if (!daemon->cleaner)
		close(daemon->held);
}

static void run_daemon(const struct kvt_own_daemon *daemon, const char *program,
		       const char *const *flags, int cpu, const char *notify, pid_t parent)
{
	const char *arguments[MAX_FLAGS + 4];
	char directory[96], socket_path[128];
	unsigned int n = 0;
	sigset_t none;

	snprintf(directory, sizeof(directory), "--runtime_dir=%s", daemon->directory);
	snprintf(socket_path, sizeof(socket_path), "--socket_path=%s", daemon->socket_path);
	arguments[n++] = program;
	arguments[n++] = directory;
	arguments[n++] = socket_path;
	while (*flags && n < MAX_FLAGS + 3)
		arguments[n++] = *flags++;
	arguments[n] = NULL;
	if (cpu >= 0) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET((unsigned int)cpu, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	setenv("NOTIFY_SOCKET", notify, 1);
	unsetenv("WATCHDOG_USEC");
	unsetenv("LISTEN_FDS");
	if (daemon->cleaner)
		fcntl(daemon->held, F_SETFD, 0);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Die with the parent, even if it is killed. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1);
	execvp(program, (char *const *)arguments);
	_exit(errno == ENOENT ? 127 : 126);
}

/* Wait for READY=1 on the notify socket, or for the end of the process. */
static int await_ready(const struct kvt_own_daemon *daemon, int notify)
{
	int pidfd = (int)syscall(SYS_pidfd_open, daemon->pid, 0);
	struct pollfd fds[2] = { { .fd = notify, .events = POLLIN },
				 { .fd = pidfd, .events = POLLIN } };
	char text[512];
	ssize_t n;
	int rc = 0;

	if (pidfd < 0)
		return -errno;
	for (;;) {
		if (poll(fds, 2, -1) < 0) {
			if (errno == EINTR)
				continue;
			rc = -errno;
			break;
		}
		if (fds[0].revents & POLLIN) {
			n = recv(notify, text, sizeof(text) - 1, MSG_DONTWAIT);
			text[n > 0 ? n : 0] = 0;
			if (strstr(text, "READY=1"))
				break;
		} else if (fds[1].revents) {
			rc = -ECHILD;
			break;
		}
	}
	close(pidfd);
	return rc;
}

static void remove_directory(struct kvt_own_daemon *daemon)
{
	if (!daemon->cleaner)
		return;
	dprintf(daemon->held, "\n"); /* a child of this process may hold the pipe, too */
	close(daemon->held);
	waitpid(daemon->cleaner, NULL, 0);
	daemon->cleaner = 0;
}

bool kvt_status_is_usage(int wait_status)
{
	int status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;

	return status == 2 || status == 126 || status == 127;
}

static int start(struct kvt_own_daemon *daemon, const char *program, const char *const *flags,
		 int cpu, char *why, size_t why_bytes)
{
	char notify[96];
	pid_t parent = getpid();
	int fd, rc, status = 0;

	fd = open_notify(daemon, notify, sizeof(notify));
	if (fd < 0) {
		snprintf(why, why_bytes, "%s: %s", notify, strerror(-fd));
		return fd;
	}
	daemon->pid = fork();
	if (daemon->pid == 0)
		run_daemon(daemon, program, flags, cpu, notify, parent);
	if (daemon->pid < 0) {
		rc = -errno;
		daemon->pid = 0;
		snprintf(why, why_bytes, "cannot fork: %s", strerror(-rc));
	} else {
		rc = await_ready(daemon, fd);
	}
	close(fd);
	if (rc == -ECHILD) {
		waitpid(daemon->pid, &status, 0);
		daemon->pid = 0;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
			snprintf(why, why_bytes,
				 "%s: not found: build it, or name it with --daemon", program);
		else if (WIFEXITED(status) && WEXITSTATUS(status) == 126)
			snprintf(why, why_bytes, "%s: not a program that can be run: name another "
				 "with --daemon", program);
		else
			snprintf(why, why_bytes, "%s did not start; its own message is above",
				 program);
		if (kvt_status_is_usage(status))
			rc = -EINVAL;
	}
	return rc;
}

int kvt_own_daemon_start(struct kvt_own_daemon *daemon, const char *program,
			 const char *const *flags, int cpu, char *why, size_t why_bytes)
{
	const char *base = getenv("XDG_RUNTIME_DIR");
	char found[4096];
	int rc;

	memset(daemon, 0, sizeof(*daemon));
	if (!base || strlen(base) > 24 || access(base, W_OK))
		base = "/tmp";
	snprintf(daemon->directory, sizeof(daemon->directory), "%s/kvtrunk-XXXXXX", base);
	if (!mkdtemp(daemon->directory)) {
		rc = -errno;
		snprintf(why, why_bytes, "cannot make a directory in %s: %s", base, strerror(-rc));
		return rc;
	}
	snprintf(daemon->socket_path, sizeof(daemon->socket_path), "%s/kvt.sock",
		 daemon->directory);
	start_cleaner(daemon);
	if (!program) {
		kvt_program_find("kvtrunkd", found, sizeof(found));
		program = found;
	}
	rc = start(daemon, program, flags, cpu, why, why_bytes);
	if (rc)
		remove_directory(daemon);
	return rc;
}

int kvt_own_daemon_stop(struct kvt_own_daemon *daemon)
{
	int status = -1;

	if (!daemon->pid)
		return -1;
	kill(daemon->pid, SIGTERM);
	kill(daemon->pid, SIGCONT);
	while (waitpid(daemon->pid, &status, 0) < 0) {
		if (errno != EINTR) {
			status = -1;
			break;
		}
	}
	daemon->pid = 0;
	remove_directory(daemon);
	return status;
}

pid_t kvt_supervised_daemon(pid_t supervisor)
{
	char path[64];
	FILE *file;
	int pid = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)supervisor,
		 (int)supervisor);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%d", &pid) != 1)
		pid = 0;
	fclose(file);
	return pid;
}
