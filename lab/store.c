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

#include "base/path.h"
#include "base/program.h"
#include "base/store.h"
#include "kvtrunk_wire_store.h"
#include "lab/daemon.h"
#include "shm/assert.h"

#define MAX_FLAGS 16u
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

static void run_store(const char *program, const char *const *socket_paths, uint32_t n_paths,
		      const char *const *flags, int cpu, int said, pid_t parent)
{
	const char *arguments[2 * KVT_OWN_STORE_INSTANCES + MAX_FLAGS + 2] = { program };
	unsigned int n = 1;

	for (uint32_t i = 0; i < n_paths; i++) {
		arguments[n++] = "--socket";
		arguments[n++] = socket_paths[i];
	}
	for (uint32_t i = 0; i < MAX_FLAGS && flags[i]; i++)
		arguments[n++] = flags[i];
	bind_to(cpu);
	dup2(said, STDERR_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	execvp(program, (char *const *)arguments);
	fprintf(stderr, "%s: %s: build it\n", program, strerror(errno));
	_exit(127);
}

/* Read lines until n say that it serves. -ECHILD: it ended; `why` has its last line. */
static int await_serving(int said, uint32_t n, char *why, size_t why_bytes)
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
		if (strstr(line, ": serving at ") && --n == 0)
			rc = 0;
	}
	fclose(lines);
	return rc;
}

/* Wait for the end of a store that does not serve, and tell why. */
static int end_of(struct kvt_own_store *store)
{
	int status = 0;

	while (waitpid(store->pid, &status, 0) < 0 && errno == EINTR)
		;
	store->pid = 0;
	return kvt_status_is_usage(status) ? -EINVAL : -ECHILD;
}

int kvt_own_store_start(struct kvt_own_store *store, const char *program,
			const char *const *socket_paths, uint32_t n, const char *const *flags,
			int cpu, char *why, size_t why_bytes)
{
	pid_t parent = getpid();
	int ends[2], rc;

	KVT_ASSERT(n > 0 && n <= KVT_OWN_STORE_INSTANCES);
	*store = (struct kvt_own_store){ .n = n };
	if (pipe2(ends, O_CLOEXEC) != 0)
		return -errno;
	fflush(NULL);
	store->pid = fork();
	if (store->pid == 0)
		run_store(program, socket_paths, n, flags, cpu, ends[1], parent);
	close(ends[1]);
	rc = await_serving(ends[0], n, why, why_bytes);
	if (rc == -ECHILD)
		rc = end_of(store);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = kvt_store_path(socket_paths[i], store->paths[i]);
	if (rc != 0)
		kvt_own_store_stop(store);
	return rc;
}

/* Add what an instance counts for itself. The rest is the same in each. */
static void add_instance(struct kvt_store_status *sum, const struct kvt_store_status *status)
{
#define ADD(name) sum->name += status->name
	ADD(pool_pages);
	ADD(queued_pages);
	ADD(dropped_pages);
	ADD(copied_pages);
	ADD(spoiled_copies);
	ADD(refused_copies);
	ADD(open_loads);
	ADD(loading_pages);
	ADD(loads);
	ADD(cut_loads);
	ADD(loaded_pages);
	ADD(fetches);
	ADD(hits);
	ADD(computed_pages);
	ADD(recomputed_pages);
	ADD(unloaded_pages);
#undef ADD
}

int kvt_own_store_status(const struct kvt_own_store *store, struct kvt_store_status *ret_status)
{
	struct kvt_store_status sum = { .connected = 0 };
	struct kvt_store_seen seen;
	struct kvt_error why;

	for (uint32_t i = 0; i < store->n; i++) {
		int rc = kvt_store_ask(store->paths[i], KVT_STORE_STATUS, PATIENCE_NS, &seen, &why);

		if (rc != 0)
			return rc;
		if (i == 0)
			sum = seen.status;
		else
			add_instance(&sum, &seen.status);
	}
	*ret_status = sum;
	return 0;
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
