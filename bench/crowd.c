/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file crowd.c
 * Who gets the processor: closed-loop clients on an idle, a busy and an
 * oversubscribed host, for each way to spin and both priorities of the daemon.
 *
 * Every way is measured in turns with the others. The floor of a row is the
 * best way in it, so `ratio` is what a wrong choice costs. Inputs: the options;
 * this process bound to no core. Caller: main.c.
 */
#include "bench/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/atomic.h"

#define KEYS 64u
#define MOST 32u
#define LATEST 16384u /* samples that a client keeps */
#define MOST_ROUNDS 5u
#define MOST_THREADS 64u

struct way {
	const char *name; /* of its spin */
	int64_t spin_us;  /* of the daemon and of its clients */
	int nice;         /* of the daemon */
};

static const struct way ways[] = {
	{ "default", BENCH_SPIN_DEFAULT, 0 },
	{ "default", BENCH_SPIN_DEFAULT, -20 },
	{ "0", 0, 0 },
	{ "0", 0, -20 },
	{ "50", 50, 0 },
	{ "50", 50, -20 },
	{ "200", 200, 0 },
	{ "200", 200, -20 },
	{ "always", -1, 0 },
	{ "always", -1, -20 },
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

static const struct host {
	const char *name;
	uint32_t per_core; /* threads that compute, beside the clients */
	bool pinned;       /* the daemon on one core, its clients on another */
} hosts[] = { { "idle", 0, false },
	      { "pinned", 0, true },
	      { "busy", 1, false },
	      { "oversubscribed", 4, false } };

struct figure {
	double pairs_per_s, p99_us, fairness;
};

/* Shared with the clients. */
struct gate {
	uint32_t arrived, open, over;
	struct {
		uint64_t pairs;
		uint32_t ns[LATEST];
	} of[MOST];
};

/* ---- the processes */

static void pin(const struct host *host, const struct bench_options *options)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (host->pinned)
		bench_pin(options->client_cpu);
}

static void run_pair(struct kvt_client *client, struct kvt_request *match)
{
	struct kvt_request unlock = { .op = KVT_OP_UNLOCK };
	struct kvt_result result;

	if (kvt_call(client, match, &result))
		bench_die("match: %s", kvt_client_error(client)->text);
	unlock.lease = result.lease;
	kvt_result_release(client, &result);
	if (kvt_call(client, &unlock, &result))
		bench_die("unlock: %s", kvt_client_error(client)->text);
}

static __attribute__((noreturn)) void client_main(const struct bench_target *target,
						  const struct way *way, struct gate *gate,
						  uint32_t index, const uint32_t *keys)
{
	struct kvt_request match = {
		.op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .keys = keys, .n_keys = KEYS
	};
	int64_t spin_ns = way->spin_us == BENCH_SPIN_DEFAULT ? 0
			  : way->spin_us > 0                 ? way->spin_us * 1000
			  : way->spin_us < 0                 ? -1
							     : 1;
	struct kvt_client *client = bench_connect(target, spin_ns, &match.namespace_id);
	uint64_t from, to;

	run_pair(client, &match);
	kvt_add_full(&gate->arrived, 1);
	while (!kvt_load_acquire(&gate->open))
		usleep(100);
	from = bench_clock_ns();
	for (uint64_t n = 0; !kvt_load_relaxed(&gate->over); n++, from = to) {
		run_pair(client, &match);
		to = bench_clock_ns();
		gate->of[index].ns[n % LATEST] = (uint32_t)(to - from);
		gate->of[index].pairs = n + 1;
	}
	_exit(0);
}

static __attribute__((noreturn)) void compute(void)
{
	for (volatile uint64_t n = 0;; n++)
		;
}

static pid_t begin(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		bench_die("fork: %s", strerror(errno));
	return pid;
}

static void end(const pid_t *pids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < n; i++)
		waitpid(pids[i], NULL, 0);
}

/* ---- one figure */

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Take the figure of a window of `ns`. Fairness: Jain's index of the clients'
 * pairs. */
static struct figure take(struct gate *gate, uint32_t clients, uint64_t ns)
{
	static uint32_t all[MOST * LATEST];
	double sum = 0, squares = 0;
	size_t n = 0;

	for (uint32_t i = 0; i < clients; i++) {
		double pairs = (double)gate->of[i].pairs;
		size_t kept = gate->of[i].pairs < LATEST ? gate->of[i].pairs : LATEST;

		sum += pairs;
		squares += pairs * pairs;
		memcpy(all + n, gate->of[i].ns, kept * sizeof(*all));
		n += kept;
	}
	if (!n)
		return (struct figure){ 0 };
	qsort(all, n, sizeof(*all), by_value);
	return (struct figure){ sum * 1e9 / (double)ns, all[n * 99 / 100] / 1e3,
				sum * sum / (clients * squares) };
}

static struct figure crowd(struct bench_target *target, const struct way *way,
			     const struct host *host, uint32_t clients, const uint32_t *keys)
{
	struct gate *gate = mmap(NULL, sizeof(*gate), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t window_us = target->options->quick ? 50000 : 250000, n_threads;
	pid_t pids[MOST], threads[MOST_THREADS];
	struct figure figure;
	uint64_t start;

	if (gate == MAP_FAILED)
		bench_die("mmap: %s", strerror(errno));
	n_threads = host->per_core * (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	n_threads = n_threads < MOST_THREADS ? n_threads : MOST_THREADS;
	for (uint32_t i = 0; i < clients; i++) {
		pids[i] = begin();
		if (pids[i] == 0) {
			pin(host, target->options);
			client_main(target, way, gate, i, keys);
		}
	}
	while (kvt_load_acquire(&gate->arrived) < clients)
		usleep(1000);
	for (uint32_t i = 0; i < n_threads; i++) {
		threads[i] = begin();
		if (threads[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			compute();
		}
	}
	start = bench_clock_ns();
	kvt_store_release(&gate->open, 1);
	usleep(window_us);
	kvt_store_release(&gate->over, 1);
	figure = take(gate, clients, bench_clock_ns() - start);
	end(threads, n_threads);
	end(pids, clients);
	munmap(gate, sizeof(*gate));
	return figure;
}

/* Start a daemon for the way, cache the keys, and measure. */
static struct figure measure(const struct bench_options *options, const struct way *way,
			     const struct host *host, uint32_t clients, const uint32_t *keys)
{
	struct bench_target target = { .spin_us = way->spin_us, .unbound = !host->pinned };
	struct figure figure;

	bench_target_open(&target, options, 1024);
	if (way->nice && setpriority(PRIO_PROCESS, (id_t)target.daemon.pid, way->nice) != 0)
		bench_die("nice %d: %s", way->nice, strerror(errno));
	if (!bench_cache(&target, keys, KEYS, 0, NULL, NULL))
		bench_die("crowd: the keys were refused");
	figure = crowd(&target, way, host, clients, keys);
	bench_target_close(&target);
	return figure;
}

/* ---- rows */

static int by_rate(const void *a, const void *b)
{
	const struct figure *x = a, *y = b;

	return (x->pairs_per_s > y->pairs_per_s) - (x->pairs_per_s < y->pairs_per_s);
}

static bool allowed(const struct way *way)
{
	return way->nice == 0 || geteuid() == 0;
}

/* Measure all ways in turns, `rounds` times; the middle round by its rate counts. */
static void row(const struct bench_options *options, const struct host *host, uint32_t clients,
		const uint32_t *keys)
{
	uint32_t rounds = options->quick ? 1 : MOST_ROUNDS;
	struct figure figures[N_WAYS][MOST_ROUNDS];
	double best = 0;

	for (uint32_t r = 0; r < rounds; r++)
		for (size_t w = 0; w < N_WAYS; w++)
			if (allowed(&ways[w]))
				figures[w][r] = measure(options, &ways[w], host, clients, keys);
	for (size_t w = 0; w < N_WAYS; w++) {
		if (!allowed(&ways[w]))
			continue;
		qsort(figures[w], rounds, sizeof(figures[w][0]), by_rate);
		if (figures[w][rounds / 2].pairs_per_s > best)
			best = figures[w][rounds / 2].pairs_per_s;
	}
	for (size_t w = 0; w < N_WAYS; w++) {
		const struct figure *middle = &figures[w][rounds / 2];

		if (!allowed(&ways[w]))
			continue;
		bench_line("crowd",
			   "\"host\":\"%s\",\"clients\":%u,\"spin_us\":\"%s\",\"nice\":%d,"
			   "\"pairs_per_s\":%.0f,\"p99_us\":%.1f,\"fairness\":%.2f,"
			   "\"floor_pairs_per_s\":%.0f,\"floor\":\"the best way in this row\","
			   "\"ratio\":%.2f",
			   host->name, clients, ways[w].name, ways[w].nice, middle->pairs_per_s,
			   middle->p99_us, middle->fairness, best,
			   best / (middle->pairs_per_s + 1));
	}
}

void bench_crowd(const struct bench_options *options)
{
	static const uint32_t clients[] = { 1, 2, 8, 32 };
	uint32_t keys[KEYS];

	bench_new_keys(keys, KEYS);
	for (size_t h = 0; h < sizeof(hosts) / sizeof(hosts[0]); h++)
		for (size_t c = 0; c < sizeof(clients) / sizeof(clients[0]); c++)
			row(options, &hosts[h], clients[c], keys);
}
