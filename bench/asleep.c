/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file asleep.c
 * What a COMMIT after a chunk of prefill costs its caller while the daemon sleeps, as it does
 * beside an engine that computes for milliseconds between two operations: with and without waiting.
 *
 * Inputs: the options. Invariant: each sample begins after the daemon has announced its sleep.
 * Caller: main.c.
 */
#include "bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/client.h"
#include "shm/atomic.h"

#define ASLEEP_CHUNK 128u
#define CHUNKS 64u      /* commits of one sequence */
#define PAUSE_NS 300000 /* after the daemon announced its sleep */

/* A process asleep in read() on an eventfd, which notes in memory that it woke. */
struct sleeper {
	pid_t pid;
	int fd;
	uint32_t *woken;
};

static void sleeper_start(struct sleeper *sleeper, int cpu)
{
	sleeper->fd = eventfd(0, EFD_CLOEXEC);
	sleeper->woken = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			      0);
	if (sleeper->fd < 0 || sleeper->woken == MAP_FAILED)
		bench_die("asleep: no eventfd or memory");
	sleeper->pid = fork();
	if (sleeper->pid < 0)
		bench_die("asleep: fork: %s", strerror(errno));
	if (sleeper->pid == 0) {
		uint64_t count;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (uint32_t n = 1; read(sleeper->fd, &count, sizeof(count)) > 0; n++)
			kvt_store_release(sleeper->woken, n);
		_exit(0);
	}
	bench_pin(sleeper->pid, cpu);
}

static void sleeper_stop(struct sleeper *sleeper)
{
	kill(sleeper->pid, SIGKILL);
	waitpid(sleeper->pid, NULL, 0);
	close(sleeper->fd);
	munmap(sleeper->woken, 4096);
}

static void compute_for(uint64_t ns)
{
	for (uint64_t until = bench_clock_ns() + ns; bench_clock_ns() < until;)
		kvt_cpu_relax();
}

static void wake_sleeper(struct sleeper *sleeper, struct bench_samples *write_ticks,
			 struct bench_samples *woken_ticks)
{
	uint32_t before = kvt_load_acquire(sleeper->woken);
	const uint64_t one = 1;
	uint64_t start, written;

	compute_for(PAUSE_NS);
	start = bench_ticks();
	if (write(sleeper->fd, &one, sizeof(one)) != sizeof(one))
		bench_die("asleep: write: %s", strerror(errno));
	written = bench_ticks();
	while (kvt_load_acquire(sleeper->woken) == before)
		kvt_cpu_relax();
	bench_samples_add(write_ticks, written - start);
	bench_samples_add(woken_ticks, bench_ticks() - start);
}

static void await_sleep(struct bench_target *target)
{
	while (!kvt_load_relaxed(&target->client->ring.header->sq_need_wakeup))
		kvt_cpu_relax();
	compute_for(PAUSE_NS);
}

static void one_sequence(struct bench_target *target, struct bench_samples *waited,
			 struct bench_samples *not_waited)
{
	static uint32_t keys[CHUNKS * ASLEEP_CHUNK];
	struct kvt_client *client = target->client;
	struct kvt_seq *seq;

	bench_new_keys(keys, CHUNKS * ASLEEP_CHUNK);
	if (kvt_seq_begin(client, target->namespace_id, keys, CHUNKS * ASLEEP_CHUNK, 0, 0, &seq))
		bench_die("asleep: %s", kvt_client_error(client)->text);
	for (uint32_t i = 1; i <= CHUNKS; i++) {
		uint64_t start;
		int rc;

		await_sleep(target);
		start = bench_ticks();
		if (i % 2)
			rc = kvt_seq_commit(seq, i * ASLEEP_CHUNK, NULL, 0, KVT_IDLE,
					    KVT_F_CHUNKED);
		else
			rc = kvt_seq_commit_async(seq, i * ASLEEP_CHUNK, NULL, 0, KVT_IDLE,
						  KVT_F_CHUNKED);
		bench_samples_add(i % 2 ? waited : not_waited, bench_ticks() - start);
		if (rc || kvt_seq_settle(seq))
			bench_die("asleep: %s", kvt_client_error(client)->text);
	}
	if (kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0))
		bench_die("asleep: %s", kvt_client_error(client)->text);
}

static void emit(const char *kind, struct bench_samples *value, struct bench_samples *floor,
		 const char *floor_is)
{
	struct bench_result line = { .name = "asleep", .kind = kind, .keys = ASLEEP_CHUNK,
				     .floor_is = floor_is };

	line.value = bench_samples_take(value);
	line.floor = bench_samples_take(floor);
	bench_emit(&line);
}

void bench_asleep(const struct bench_options *options)
{
	struct bench_samples waited = { 0 }, not_waited = { 0 }, written = { 0 }, woken = { 0 };
	struct bench_target target = { .spin_us = 20 };
	struct sleeper sleeper = { 0 };

	if (options->core)
		return;
	bench_target_open(&target, options, BENCH_POSITIONS / BENCH_PAGE_SIZE + 1);
	sleeper_start(&sleeper, options->daemon_cpu);
	for (uint32_t i = 0; i < (options->quick ? 4 : 16); i++) {
		for (uint32_t n = 0; n < CHUNKS / 2; n++)
			wake_sleeper(&sleeper, &written, &woken);
		one_sequence(&target, &waited, &not_waited);
	}
	sleeper_stop(&sleeper);
	bench_target_close(&target);
	emit("commit, waited for", &waited, &woken,
	     "an eventfd written, until the process that slept on it says so in memory");
	emit("commit, not waited for", &not_waited, &written,
	     "an eventfd written on which a process sleeps");
}
