/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/program.h"

#define MAX_FLAGS 16
#define PATIENCE_NS (60 * 1000000000ll) /* for its answer */

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

int kvt_own_store_start(struct kvt_own_store *store, const char *program, const char *socket_path,
			const char *const *flags, int cpu, char *why, size_t why_bytes)
{
	pid_t parent = getpid();
	int ends[2], rc;

	*store = (struct kvt_own_store){ .pid = 0 };
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	fflush(NULL);
	store->pid = fork();
	if (store->pid == 0)
		run_store(program, socket_path, flags, cpu, ends[1], parent);
	close(ends[1]);
	rc = await_serving(ends[0], why, why_bytes);
	if (rc == 0)
		rc = kvt_store_path(socket_path, store->path);
	if (rc != 0)
		kvt_own_store_stop(store);
	return rc;
}

int kvt_own_store_status(const struct kvt_own_store *store, struct kvt_store_status *ret_status)
{
	struct kvt_store_seen seen;
	struct kvt_error why;
	int rc = kvt_store_ask(store->path, KVT_STORE_STATUS, PATIENCE_NS, &seen, &why);

	if (rc == 0)
		*ret_status = seen.status;
	return rc;
}

void kvt_own_store_stop(struct kvt_own_store *store)
{
	if (store->pid > 0) {
		kill(store->pid, SIGKILL);
		while (waitpid(store->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	store->pid = 0;
}
