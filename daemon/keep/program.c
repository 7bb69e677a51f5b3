/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bsd/string.h>


#define FDS_START 3

int kvt_program_open_self(struct kvt_program *program)
{
	ssize_t n = readlink("/proc/self/exe", program->path, sizeof(program->path) - 1);

	program->path[n > 0 ? n : 0] = '\0';
	program->fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	return program->fd < 0 ? -errno : 0;
}

int kvt_program_open(struct kvt_program *program, const char *path)
{
	struct stat there;

	if (strlcpy(program->path, path, sizeof(program->path)) >= sizeof(program->path))
		return -ENAMETOOLONG;
	program->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (program->fd < 0)
		return -errno;
	if (fstat(program->fd, &there) == 0 && S_ISREG(there.st_mode) &&
	    faccessat(program->fd, "", X_OK, AT_EMPTY_PATH | AT_EACCESS) == 0)
		return 0;
	kvt_program_close(program);
	return -EACCES;
}

void kvt_program_close(struct kvt_program *program)
{
	if (program->fd >= 0)
		close(program->fd);
	program->fd = -1;
}

/* Move `n` descriptors to FDS_START and up. Moves all above that range first, so that none
 * overwrites another. */
static int place(int *fds, int n, int *program)
{
	*program = fcntl(*program, F_DUPFD_CLOEXEC, FDS_START + n);
	if (*program < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FDS_START + n);
		if (fds[i] < 0)
			return -errno;
	}
	for (int i = 0; i < n; i++)
		if (dup2(fds[i], FDS_START + i) < 0)
			return -errno;
	return 0;
}

static void set_number(const char *name, long long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", number);
	setenv(name, text, 1);
}

int kvt_program_run(const struct kvt_program *program, char *const argv[],
		    const struct kvt_fdstore *store, int notify)
{
	char *names = calloc(store->n + 1, KVT_STORED_NAME_BYTES + 1), *end = names, pair[32];
	int *fds = calloc(store->n + 1, sizeof(*fds)), n = 0, fd = program->fd, error = -ENOMEM;

	for (uint32_t i = 0; names && fds && i < store->n; i++) {
		if (store->at[i].fd < 0)
			continue;
		end += snprintf(end, KVT_STORED_NAME_BYTES + 1, "%s%s", n ? ":" : "",
				store->at[i].name);
		fds[n++] = store->at[i].fd;
	}
	if (names && fds) {
		fds[n] = notify;
		error = place(fds, n + (notify >= 0), &fd);
	}
	if (!error && n) {
		set_number("LISTEN_FDS", n);
		set_number("LISTEN_PID", getpid());
		setenv("LISTEN_FDNAMES", names, 1);
	}
	free(names);
	free(fds);
	if (error)
		return error;
	if (notify >= 0) {
		snprintf(pair, sizeof(pair), "%d:%d", (int)getpid(), FDS_START + n);
		setenv(KVT_NOTIFY_PAIR, pair, 1);
	}
	fexecve(fd, argv, environ);
	return -errno;
}
