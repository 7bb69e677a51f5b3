/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file asleep.c
 * What a COMMIT after a chunk of prefill costs its caller while the daemon sleeps, as it does
 * beside an engine that computes for milliseconds between two operations: with and without waiting.
 * And what the BEGIN of a scheduler costs that announced its pace, beside one that did not.
 *
 * Inputs: the options. Invariant: each sample begins after the daemon has announced its sleep, or
 * after the same pause if a pace keeps it from sleeping.
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

#include "libclient/state.h"
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

static void compute_for(int64_t ns)
{
	for (int64_t until = kvt_now_ns() + ns; kvt_now_ns() < until;)
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

#define BEGIN_KEYS 128u
#define STEP_NS 2000000 /* a scheduler's step: 100 times the daemon's budget */

static void begin_once(struct bench_target *target, struct bench_samples *samples)
{
	struct kvt_client *client = target->client;
	uint32_t keys[BEGIN_KEYS];
	struct kvt_seq *seq;
	uint64_t start;
	int rc;

	bench_new_keys(keys, BEGIN_KEYS);
	compute_for(STEP_NS);
	start = bench_ticks();
	rc = kvt_seq_begin(client, target->namespace_id, keys, BEGIN_KEYS, 0, 0, &seq);
	bench_samples_add(samples, bench_ticks() - start);
	if (rc || kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0))
		bench_die("asleep: %s", kvt_client_error(client)->text);
}

/* The floor serves the same keys after the same pause, and never sleeps. */
static void begin_steps(struct bench_target *target, uint32_t count, struct bench_samples *plain,
			struct bench_samples *paced, struct bench_samples *floor_ticks)
{
	uint32_t keys[BEGIN_KEYS], *set = keys;
	struct bench_floor *floor;

	kvt_client_set_pace(target->client, 2 * STEP_NS);
	for (uint32_t i = 0; i < count; i++)
		begin_once(target, paced);
	kvt_client_set_pace(target->client, 0);
	for (uint32_t i = 0; i < count; i++)
		begin_once(target, plain);
	bench_new_keys(keys, BEGIN_KEYS);
	floor = bench_floor_start(target, &set, 1, BEGIN_KEYS);
	bench_floor_turn(floor, true);
	for (uint32_t i = 0; i < count; i++) {
		compute_for(STEP_NS);
		bench_samples_add(floor_ticks, bench_floor_call(floor, 0, keys, 0, BEGIN_KEYS));
	}
	bench_floor_stop(floor);
}

/* Returns the median in microseconds. */
static double emit(const char *kind, uint32_t keys, struct bench_samples *value,
		 struct bench_summary floor, const char *floor_is)
{
	struct bench_result line = { .name = "asleep", .kind = kind, .keys = keys,
				     .floor = floor, .floor_is = floor_is };

	line.value = bench_samples_take(value);
	bench_emit(&line);
	return line.value.p50 / 1000;
}

void bench_asleep(const struct bench_options *options)
{
	struct bench_samples waited = { 0 }, not_waited = { 0 }, written = { 0 }, woken = { 0 };
	struct bench_samples plain = { 0 }, paced = { 0 }, served = { 0 };
	struct bench_target target = { .spin_us = 20 };
	struct sleeper sleeper = { 0 };
	struct bench_summary floor;
	double us;

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
	begin_steps(&target, options->quick ? 200 : 1000, &plain, &paced, &served);
	bench_target_close(&target);
	emit("commit, waited for", ASLEEP_CHUNK, &waited, bench_samples_take(&woken),
	     "an eventfd written, until the process that slept on it says so in memory");
	emit("commit, not waited for", ASLEEP_CHUNK, &not_waited, bench_samples_take(&written),
	     "an eventfd written on which a process sleeps");
	floor = bench_samples_take(&served);
	emit("begin, no pace announced", BEGIN_KEYS, &plain, floor,
	     "a process that spins on a ring and copies the keys, after the same pause");
	us = emit("begin, pace announced", BEGIN_KEYS, &paced, floor,
		  "a process that spins on a ring and copies the keys, after the same pause");
	bench_aim("BEGIN 2 ms after the last call, pace announced", us, "us", 10, false);
}
