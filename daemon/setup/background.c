/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file background.c
 * --detach: fork, choose where the child logs, and wait until it serves (background.h).
 *
 * Runs before anything is made, with one thread. The child ends with the parent until it serves.
 * Called by main.c.
 */
#include "daemon/setup/background.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log/lines.h"

struct log_file {
	int fd; /* -1: standard error is not replaced */
	off_t start; /* end of the file before this start */
	char path[2 * KVT_CONFIG_TEXT_BYTES + 8];
};

static bool stderr_can_stay(void)
{
	struct stat there;

	return kvt_log_is_journal() ||
	       (fstat(STDERR_FILENO, &there) == 0 && !isatty(STDERR_FILENO) &&
		(S_ISREG(there.st_mode) || S_ISCHR(there.st_mode)));
}

/* Open the log. It must be a regular file of ours: others may write to the directory. */
static int open_log(const struct kvt_config *config, struct log_file *log, char why[KVT_WHY_BYTES])
{
	struct stat there;
	int error = 0;

	*log = (struct log_file){ .fd = -1 };
	if (stderr_can_stay())
		return 0;
	snprintf(log->path, sizeof(log->path), "%s/%s.log", config->runtime_dir, config->instance);
	if (mkdir(config->runtime_dir, 0755) != 0 && errno != EEXIST)
		error = -errno;
	if (!error)
		log->fd = open(log->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW |
			       O_NONBLOCK, 0600);
	if (!error && (log->fd < 0 || fstat(log->fd, &there) != 0))
		error = -errno;
	if (!error && (!S_ISREG(there.st_mode) || there.st_uid != geteuid()))
		error = -EPERM;
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "cannot log to %.150s: %s; choose another "
			 "runtime_dir, or give a file: --detach 2>FILE", log->path,
			 strerror(-error));
		if (log->fd >= 0)
			close(log->fd);
		return error;
	}
	log->start = lseek(log->fd, 0, SEEK_END);
	return 0;
}

static int become_background(const struct log_file *log, pid_t parent, int *ret_ready, int pipe[2])
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	/* Until the child serves, it ends with the parent: interrupting --detach ends both. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent || setsid() < 0 || null < 0 || dup2(null, STDIN_FILENO) < 0 ||
	    dup2(null, STDOUT_FILENO) < 0 || (log->fd >= 0 && dup2(log->fd, STDERR_FILENO) < 0))
		_exit(EXIT_FAILURE);
	close(pipe[0]);
	if (null > STDERR_FILENO)
		close(null);
	if (log->fd >= 0)
		close(log->fd);
	*ret_ready = pipe[1];
	return 0;
}

/* Print what a failed child wrote to its log. */
static void print_log(const struct log_file *log)
{
	FILE *file = log->fd >= 0 ? fopen(log->path, "re") : NULL;
	char line[1024];

	if (file && fseeko(file, log->start, SEEK_SET) == 0)
		while (fgets(line, sizeof(line), file))
			fputs(line, stderr);
	if (file)
		fclose(file);
}

static int await_child(const struct kvt_config *config, const struct log_file *log, pid_t child,
		       int pipe)
{
	int status = 0;
	ssize_t n;
	char byte;

	do {
		n = read(pipe, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n == 1) {
		bool named = *config->socket_path;

		/* Not by stdio, whose failures end a program with 1: the daemon serves. */
		dprintf(STDOUT_FILENO, "kvtrunkd: ready, pid %d, socket %s%s%s%s, log %s; kill %d "
			"stops it\n", (int)child,
			named ? config->socket_path : config->runtime_dir, named ? "" : "/",
			named ? "" : config->instance, named ? "" : ".sock",
			log->fd >= 0 ? log->path : "as given", (int)child);
		return EXIT_SUCCESS;
	}
	waitpid(child, &status, 0);
	print_log(log);
	return WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

int kvt_background(const struct kvt_config *config, int *ret_ready, int *ret_status,
	       char why[KVT_WHY_BYTES])
{
	const char *listen_pid = getenv("LISTEN_PID");
	pid_t parent = getpid(), child;
	struct log_file log;
	int ends[2], error;

	if (listen_pid && atol(listen_pid) == (long)parent) {
		snprintf(why, KVT_WHY_BYTES, "a socket was passed to this process, which a "
			 "detached daemon would not have: let the service manager start kvtrunkd "
			 "without --detach");
		return -EINVAL;
	}
	error = open_log(config, &log, why);
	if (error)
		return error;
	fflush(NULL);
	child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
	if (child == 0)
		return become_background(&log, parent, ret_ready, ends);
	if (child < 0) {
		snprintf(why, KVT_WHY_BYTES, "cannot detach: %s", strerror(errno));
		return -errno;
	}
	close(ends[1]);
	*ret_status = await_child(config, &log, child, ends[0]);
	return 1;
}

void kvt_background_ready(int *ready)
{
	char byte = 1;

	if (*ready < 0)
		return;
	prctl(PR_SET_PDEATHSIG, 0);
	while (write(*ready, &byte, 1) < 0 && errno == EINTR)
		continue;
	close(*ready);
	*ready = -1;
}
