/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file crowd.c
 * Who gets the processor: closed-loop clients on an idle, a busy and an
 * oversubscribed host and in a container with a CPU quota, for each way to
 * spin and both priorities of the daemon.
 *
 * Every way is measured in turns with the others. The floor is the best way
 * in the row, of those without a privilege for one without, so `ratio` is what
 * a wrong choice costs. Half of the rounds say which way is the best, the others
 * give all figures: of ten ways that are equal, the highest would be ahead by
 * chance. Inputs: the options; this process bound to no core. Caller: main.c.
 */
#include "bench/bench.h"

#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/atomic.h"

#define KEYS 64u
#define MOST 32u
#define LATEST 16384u /* samples that a client keeps */
#define ROUNDS 6u /* even */
#define MOST_THREADS 64u
#define QUOTA_PERIOD_US 100000u

struct way {
	const char *name; /* of its spin */
	int64_t spin_us;  /* of the daemon and of its clients */
	int nice;         /* of the daemon */
};

/* Those that need a privilege come last. */
static const struct way ways[] = {
	{ "default", BENCH_SPIN_DEFAULT, 0 },
	{ "0", 0, 0 },
	{ "50", 50, 0 },
	{ "200", 200, 0 },
	{ "always", -1, 0 },
	{ "default", BENCH_SPIN_DEFAULT, -20 },
	{ "0", 0, -20 },
	{ "50", 50, -20 },
	{ "200", 200, -20 },
	{ "always", -1, -20 },
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))
#define N_UNPRIVILEGED (N_WAYS / 2)

static const struct host {
	const char *name;
	uint32_t per_core; /* threads that compute, beside the clients */
	bool pinned;       /* the daemon on one core, its clients on another */
	bool quota;        /* daemon and clients in a control group that may use one core's time */
} hosts[] = { { "idle", .per_core = 0 },
	      { "pinned", .pinned = true },
	      { "busy", .per_core = 1 },
	      { "oversubscribed", .per_core = 4 },
	      { "quota", .quota = true } };

struct figure {
	double pairs_per_s, p99_us, fairness;
};

/* Shared with the clients. */
struct gate {
	uint32_t arrived, open, over;
	struct {
		uint64_t pairs;
		uint64_t ticks[LATEST];
	} of[MOST];
};

/* ---- the processes */

/* As an option of a client, where 0 means the default. */
static int64_t client_spin_ns(const struct way *way)
{
	if (way->spin_us == BENCH_SPIN_DEFAULT)
		return 0;
	if (way->spin_us == 0)
		return 1;
	return way->spin_us < 0 ? -1 : way->spin_us * 1000;
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
	struct kvt_request match = { .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .keys = keys,
				     .n_keys = KEYS };
	struct kvt_client *client = bench_connect(target, client_spin_ns(way), &match.namespace_id);
	uint64_t from, to;

	run_pair(client, &match);
	kvt_add_full(&gate->arrived, 1);
	while (!kvt_load_acquire(&gate->open))
		usleep(100);
	from = bench_ticks();
	for (uint64_t n = 0; !kvt_load_relaxed(&gate->over); n++, from = to) {
		run_pair(client, &match);
		to = bench_ticks();
		gate->of[index].ticks[n % LATEST] = to - from;
		gate->of[index].pairs = n + 1;
	}
	_exit(0);
}

static __attribute__((noreturn)) void compute(void)
{
	for (volatile uint64_t n = 0;; n++)
		;
}

/* Fork a process that dies with this one. */
static pid_t begin(void)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0)
		bench_die("fork: %s", strerror(errno));
	if (pid == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return pid;
}

static void end(const pid_t *pids, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < n; i++)
		waitpid(pids[i], NULL, 0);
}

/* ---- a container */

static const struct quota {
	const char *folder, *file, *value;
} quotas[] = { { "/sys/fs/cgroup/kvtbench", "cpu.max", "100000 100000" },
	       { "/sys/fs/cgroup/cpu/kvtbench", "cpu.cfs_quota_us", "100000" } };
static const struct quota *quota; /* NULL: this host has none for us */

static bool write_file(const char *folder, const char *name, const char *value)
{
	char path[128];
	bool written;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "we");
	if (!file)
		return false;
	written = fputs(value, file) >= 0;
	return fclose(file) == 0 && written;
}

static void quota_make(void)
{
	for (size_t i = 0; !quota && i < sizeof(quotas) / sizeof(quotas[0]); i++) {
		if (mkdir(quotas[i].folder, 0755) != 0 && errno != EEXIST)
			continue;
		if (write_file(quotas[i].folder, quotas[i].file, quotas[i].value))
			quota = &quotas[i];
		else
			rmdir(quotas[i].folder);
	}
}

static void quota_join(pid_t pid)
{
	char value[16];

	snprintf(value, sizeof(value), "%d", (int)pid);
	if (!write_file(quota->folder, "cgroup.procs", value))
		bench_die("%s: %s", quota->folder, strerror(errno));
}

static void quota_remove(void)
{
	if (quota)
		rmdir(quota->folder);
	quota = NULL;
}

/* ---- one figure */

/* Take the figure of a window of `ns`. Fairness: Jain's index of the clients' pairs. */
static struct figure take(const struct gate *gate, uint32_t clients, uint64_t ns)
{
	struct bench_samples samples = { 0 };
	double sum = 0, squares = 0;

	for (uint32_t i = 0; i < clients; i++) {
		uint64_t pairs = gate->of[i].pairs;

		sum += (double)pairs;
		squares += (double)pairs * (double)pairs;
		for (uint64_t k = 0; k < pairs && k < LATEST; k++)
			bench_samples_add_any(&samples, gate->of[i].ticks[k]);
	}
	if (sum == 0)
		return (struct figure){ 0 };
	return (struct figure){ sum * 1e9 / (double)ns, bench_samples_take(&samples).p99 / 1e3,
				sum * sum / (clients * squares) };
}

static struct figure crowd(struct bench_target *target, const struct way *way,
			   const struct host *host, uint32_t clients, const uint32_t *keys)
{
	struct gate *gate = mmap(NULL, sizeof(*gate), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t window_us = host->quota            ? 5 * QUOTA_PERIOD_US
			     : target->options->quick ? 50000
						      : 250000;
	uint32_t n_threads;
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
			if (host->pinned)
				bench_pin(0, target->options->client_cpu);
			if (host->quota)
				quota_join(getpid());
			client_main(target, way, gate, i, keys);
		}
	}
	while (kvt_load_acquire(&gate->arrived) < clients)
		usleep(1000);
	for (uint32_t i = 0; i < n_threads; i++) {
		threads[i] = begin();
		if (threads[i] == 0)
			compute();
	}
	start = kvt_now_ns();
	kvt_store_release(&gate->open, 1);
	usleep(window_us);
	kvt_store_release(&gate->over, 1);
	figure = take(gate, clients, kvt_now_ns() - start);
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
	if (host->quota)
		quota_join(target.daemon.pid);
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

/* Sort rounds by rate and return the middle one. */
static struct figure *middle(struct figure rounds[], uint32_t n)
{
	qsort(rounds, n, sizeof(rounds[0]), by_rate);
	return &rounds[n / 2];
}

/* Measure all ways in turns. A quick run's one round is both halves. */
static void row(const struct bench_options *options, const struct host *host, uint32_t clients,
		const uint32_t *keys)
{
	size_t n_ways = geteuid() == 0 ? N_WAYS : N_UNPRIVILEGED, best = 0, best_without = 0;
	uint32_t rounds = options->quick ? 1 : ROUNDS, half = (rounds + 1) / 2;
	struct figure figures[N_WAYS][ROUNDS], *from[N_WAYS];

	for (uint32_t r = 0; r < rounds; r++)
		for (size_t w = 0; w < n_ways; w++)
			figures[w][r] = measure(options, &ways[w], host, clients, keys);
	for (size_t w = 0; w < n_ways; w++) {
		if (middle(figures[w], half)->pairs_per_s >
		    middle(figures[best], half)->pairs_per_s)
			best = w;
		if (w < N_UNPRIVILEGED)
			best_without = best;
		from[w] = middle(figures[w] + rounds - half, half);
	}
	for (size_t w = 0; w < n_ways; w++) {
		double floor = from[w < N_UNPRIVILEGED ? best_without : best]->pairs_per_s;

		bench_line("crowd", "\"host\":\"%s\",\"clients\":%u,\"spin_us\":\"%s\",\"nice\":%d,"
			   "\"pairs_per_s\":%.0f,\"p99_us\":%.1f,\"fairness\":%.2f,"
			   "\"floor_pairs_per_s\":%.0f,\"floor\":\"the best way in this row\","
			   "\"ratio\":%.2f", host->name, clients, ways[w].name, ways[w].nice,
			   from[w]->pairs_per_s, from[w]->p99_us, from[w]->fairness, floor,
			   floor / (from[w]->pairs_per_s + 1));
	}
}

void bench_crowd(const struct bench_options *options)
{
	static const uint32_t clients[] = { 1, 2, 8, 32 };
	uint32_t keys[KEYS];

	bench_new_keys(keys, KEYS);
	quota_make();
	for (size_t h = 0; h < sizeof(hosts) / sizeof(hosts[0]); h++)
		for (size_t c = 0; c < sizeof(clients) / sizeof(clients[0]); c++)
			if (!hosts[h].quota || quota)
				row(options, &hosts[h], clients[c], keys);
	if (!quota)
		warnx("crowd: no rows with a CPU quota: no control group can be made (root?)");
	quota_remove();
}
