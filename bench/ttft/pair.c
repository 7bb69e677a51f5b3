/* SPDX-License-Identifier: Apache-2.0 */

/* With the cache, without it but through the daemon, and in private memory without a daemon:
 * request by request in turns, so that noise hits all. Each request's best round counts.
 *
 * Inputs: a workload, rounds. Invariant: all three ways give the same output. Caller: main.c. */

#include "bench/ttft/ttft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum turn { WITH, WITHOUT, ALONE, TURNS };

struct pair {
	double us[TURNS][TTFT_MAX_REQUESTS];
	double cpu_us[TURNS]; /* of the worker, all rounds */
	uint64_t cached, prefilled, restarts, waits;
};

static void keep_better(double *best, double now)
{
	if (*best == 0.0 || now < *best)
		*best = now;
}

static void reset(const char *socket)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = socket;
	options.flags = KVT_ANY_GEOMETRY;
	if (kvt_client_connect(&client, &options, &error) != 0)
		bench_die("%s", error.text);
	if (kvt_reset(client) != 0)
		bench_die("%s", kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
}

static void serve_one(struct worker *worker, struct ttft_slab *slab, enum turn turn,
		      const struct ttft_request *request, struct ttft_answer *ret_answer)
{
	if (turn == ALONE)
		ttft_slab_generate(slab, request, 0, ret_answer);
	else
		ttft_engine_serve(worker, request, turn == WITH, ret_answer);
}

static void serve_round(struct worker *worker, struct ttft_slab *slab,
			const struct ttft_workload *workload,
			const struct ttft_reference *reference, uint32_t round, struct pair *pair)
{
	static const char *const where[TURNS] = { "with the cache", "without the cache",
						  "without a daemon" };

	for (uint32_t i = 0; i < workload->n; i++) {
		for (uint32_t j = 0; j < TURNS; j++) {
			enum turn turn = (i + j + round) % TURNS;
			struct ttft_answer answer = { 0 };

			serve_one(worker, slab, turn, &workload->request[i], &answer);
			ttft_same_output(workload->name, &reference->answer[i], i, &answer,
					 where[turn]);
			pair->cpu_us[turn] += answer.cpu_us;
			keep_better(&pair->us[turn][i], answer.total_us);
			if (turn != WITH || round > 0)
				continue;
			pair->cached += answer.cached;
			pair->prefilled += answer.prefilled;
			pair->restarts += answer.restarts;
			pair->waits += answer.waits;
		}
	}
}

static double sum(const double *values, uint32_t n)
{
	double total = 0.0;

	for (uint32_t i = 0; i < n; i++)
		total += values[i];
	return total;
}

/** Serve all rounds in a process of its own. */
static void serve_rounds(struct worker *worker, const char *socket,
			 const struct ttft_options *options, const struct ttft_workload *workload,
			 const struct ttft_reference *reference, struct pair *pair)
{
	struct ttft_slab slab;

	ttft_slab_open(&slab, worker);
	ttft_engine_connect(worker, socket);
	for (uint32_t round = 0; round < options->rounds; round++) {
		if (round > 0)
			reset(socket);
		serve_round(worker, &slab, workload, reference, round, pair);
	}
	worker_close_cache(worker);
	ttft_slab_close(&slab);
}

static void report(const struct ttft_options *options, const struct worker *worker,
		   const struct ttft_workload *workload, uint32_t n_pages, bool caching,
		   const struct pair *pair, struct ttft_pair_ratios *ret_ratios)
{
	double us[TURNS];

	for (unsigned int i = 0; i < TURNS; i++)
		us[i] = sum(pair->us[i], workload->n);
	*ret_ratios = (struct ttft_pair_ratios){
		.miss = us[WITHOUT] / us[WITH],
		.miss_cpu = pair->cpu_us[WITHOUT] / pair->cpu_us[WITH],
		.alone = us[ALONE] / us[WITH],
		.alone_cpu = pair->cpu_us[ALONE] / pair->cpu_us[WITH],
	};
	bench_line("pair", "\"workload\":\"%s\",\"chunk\":%u,\"caching\":%s,\"requests\":%u,"
		   "\"rounds\":%u,\"pool_pages\":%u,\"with_us\":%.0f,\"without_us\":%.0f,"
		   "\"ratio\":%.4f,\"cpu_ratio\":%.4f,\"floor_us\":%.0f,\"floor_ratio\":%.4f,"
		   "\"floor_cpu_ratio\":%.4f,"
		   "\"floor\":\"the same positions computed without a daemon, in turns\","
		   "\"cached_positions\":%llu,\"prefill_positions\":%llu,\"restarts\":%llu,"
		   "\"waits\":%llu", workload->name, worker->options.chunk,
		   caching ? "true" : "false", workload->n, options->rounds, n_pages, us[WITH],
		   us[WITHOUT], ret_ratios->miss, ret_ratios->miss_cpu, us[ALONE],
		   ret_ratios->alone, ret_ratios->alone_cpu,
		   (unsigned long long)pair->cached, (unsigned long long)pair->prefilled,
		   (unsigned long long)pair->restarts, (unsigned long long)pair->waits);
}

void ttft_pair(const struct ttft_options *options, struct worker *worker,
	       const struct ttft_workload *workload, const struct ttft_reference *reference,
	       uint32_t n_pages, bool caching, struct ttft_pair_ratios *ret_ratios)
{
	struct pair *pair = mmap(NULL, sizeof(*pair), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct kvt_own_daemon daemon;
	int status;
	pid_t pid;

	if (pair == MAP_FAILED)
		bench_die("out of memory");
	ttft_daemon_start(&daemon, options, worker, n_pages, caching);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		serve_rounds(worker, daemon.socket_path, options, workload, reference, pair);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0)
		bench_die("%s: the worker process failed", workload->name);
	ttft_daemon_stop(&daemon);
	report(options, worker, workload, n_pages, caching, pair, ret_ratios);
	munmap(pair, sizeof(*pair));
}
