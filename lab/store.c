/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/program.h"

#define MAX_FLAGS 16

void kvt_own_store_program(const char *daemon, char *ret_path, size_t bytes)
{
	const char *slash = daemon ? strrchr(daemon, '/') : NULL;

	if (slash)
		snprintf(ret_path, bytes, "%.*s/kvtstored", (int)(slash - daemon), daemon);
	else
		kvt_program_find("kvtstored", ret_path, bytes);
}

static void bind_to(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (cpu < 0 || i == cpu)
			CPU_SET((unsigned int)i, &set);
	sched_setaffinity(0, sizeof(set), &set);
}

static void run_store(const char *program, const char *socket_path, const char *const *flags,
		      int cpu, int said, pid_t parent)
{
	const char *arguments[MAX_FLAGS + 4] = { program, "--socket", socket_path };
	unsigned int n = 3;

	while (*flags && n < MAX_FLAGS + 3)
		arguments[n++] = *flags++;
	bind_to(cpu);
	dup2(said, STDERR_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	execvp(program, (char *const *)arguments);
	fprintf(stderr, "%s: %s: build it\n", program, strerror(errno));
	_exit(127);
}

/* Read lines until one says that it serves. -ECHILD: it ended; `why` has its last line. */
static int await_serving(int said, char *why, size_t why_bytes)
{
	FILE *lines = fdopen(said, "r");
	char line[512];
	int rc = -ECHILD;

	if (!lines) {
		close(said);
		return -errno;
	}
	snprintf(why, why_bytes, "kvtstored did not start");
	while (rc != 0 && fgets(line, sizeof(line), lines)) {
		line[strcspn(line, "\n")] = '\0';
		snprintf(why, why_bytes, "%s", line);
		if (strstr(line, ": serving at "))
			rc = 0;
	}
	fclose(lines);
	return rc;
}

static int dial(const char *socket_path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct kvt_store_welcome welcome; /* its key area is not asked for */
	size_t n = strlen(socket_path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (n > 5 && strcmp(socket_path + n - 5, ".sock") == 0)
		n -= 5;
	snprintf(address.sun_path, sizeof(address.sun_path), "%.*s.store", (int)n, socket_path);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 &&
	    recv(fd, &welcome, sizeof(welcome), 0) == sizeof(welcome))
		return fd;
	close(fd);
	return -ECHILD;
}

int kvt_own_store_start(struct kvt_own_store *store, const char *program, const char *socket_path,
			const char *const *flags, int cpu, char *why, size_t why_bytes)
{
	pid_t parent = getpid();
	int ends[2], rc;

	*store = (struct kvt_own_store){ .fd = -1 };
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	fflush(NULL);
	store->pid = fork();
	if (store->pid == 0)
		run_store(program, socket_path, flags, cpu, ends[1], parent);
	close(ends[1]);
	rc = await_serving(ends[0], why, why_bytes);
	if (rc == 0)
		rc = store->fd = dial(socket_path);
	if (rc >= 0)
		return 0;
	kvt_own_store_stop(store);
	return rc;
}

int kvt_own_store_status(const struct kvt_own_store *store, struct kvt_store_status *ret_status)
{
	struct kvt_message ask = { .magic = KVT_STORE_MAGIC, .type = KVT_STORE_STATUS,
				   .version = KVT_ABI, .bytes = sizeof(ask) };

	if (send(store->fd, &ask, sizeof(ask), MSG_NOSIGNAL) != sizeof(ask) ||
	    recv(store->fd, ret_status, sizeof(*ret_status), 0) != sizeof(*ret_status))
		return -ECONNRESET;
	return 0;
}

void kvt_own_store_stop(struct kvt_own_store *store)
{
	if (store->fd >= 0)
		close(store->fd);
	if (store->pid > 0) {
		kill(store->pid, SIGKILL);
		while (waitpid(store->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	*store = (struct kvt_own_store){ .fd = -1 };
}
