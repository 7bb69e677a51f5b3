/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/chaos/pulse.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvtrunk_operations.h"
#include "shm/atomic.h"
#include "lab/replay/replay.h"

static __attribute__((noreturn)) void fail(struct pulse *pulse, const char *text)
{
	fprintf(stderr, "kvtlab chaos: pulse: %s\n", text);
	pulse->failed = 1;
	_exit(1);
}

static void note_gap(struct pulse *pulse, int64_t from_ns, int64_t to_ns)
{
	uint32_t n = pulse->n_gaps;

	pulse->gaps[n % PULSE_GAPS] = (struct pulse_gap){ from_ns, to_ns };
	/* Pairs with the acquire of pulse_longest_ns(). */
	kvt_store_release(&pulse->n_gaps, n + 1);
}

static __attribute__((noreturn)) void ask(struct pulse *pulse, const char *socket_path)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_request nop = { .op = KVT_OP_NOP };
	const struct timespec pause = { .tv_nsec = PULSE_PAUSE_NS };
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_result result;
	int64_t last, now;

	options.socket_path = socket_path;
	options.label = "kvtlab chaos: pulse";
	options.flags = KVT_ANY_GEOMETRY; /* it writes no page */
	if (kvt_client_connect(&client, &options, &error))
		fail(pulse, error.text);
	last = kvt_now_ns();
	while (!kvt_load_acquire(&pulse->stop)) {
		if (kvt_call(client, &nop, &result))
			fail(pulse, kvt_client_error(client)->text);
		kvt_result_release(client, &result);
		now = kvt_now_ns();
		if (now - last > PULSE_GAP_LEAST_NS)
			note_gap(pulse, last, now);
		kvt_add_full(&pulse->answers, 1);
		kvt_store_release(&pulse->last_ns, now);
		last = now;
		/* Workers need the processor more, and each record is room of the log. */
		nanosleep(&pause, NULL);
	}
	kvt_client_close(client, KVT_IDLE);
	_exit(0);
}

struct pulse *pulse_start(const char *socket_path)
{
	struct pulse *pulse = mmap(NULL, sizeof(*pulse), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t parent = getpid();

	if (pulse == MAP_FAILED)
		return NULL;
	pulse->pid = fork();
	if (pulse->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		ask(pulse, socket_path);
	}
	if (pulse->pid > 0)
		return pulse;
	munmap(pulse, sizeof(*pulse));
	return NULL;
}

int64_t pulse_longest_ns(const struct pulse *pulse, int64_t from_ns)
{
	uint32_t n = kvt_load_acquire(&pulse->n_gaps);
	int64_t longest = 0;

	for (uint32_t i = n; i-- > 0 && n - i <= PULSE_GAPS;) {
		const struct pulse_gap *gap = &pulse->gaps[i % PULSE_GAPS];

		if (gap->to_ns < from_ns)
			break;
		if (gap->to_ns - gap->from_ns > longest)
			longest = gap->to_ns - gap->from_ns;
	}
	return longest;
}

bool pulse_await(struct pulse *pulse)
{
	uint64_t before = kvt_load_acquire(&pulse->answers);

	/* The next answer may belong to a question asked before this call; the one after it does
	 * not. */
	while (kvt_load_acquire(&pulse->answers) < before + 2) {
		if (kvt_load_acquire(&pulse->failed) || kill(pulse->pid, 0))
			return false;
		sched_yield();
	}
	return true;
}

bool pulse_stop(struct pulse *pulse)
{
	int result = -1;

	kvt_store_release(&pulse->stop, 1);
	waitpid(pulse->pid, &result, 0);
	munmap(pulse, sizeof(*pulse));
	return !result;
}
