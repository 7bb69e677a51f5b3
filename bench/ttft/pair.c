/* SPDX-License-Identifier: Apache-2.0 */

/* With the cache and without it, request by request in turns, so that a noisy moment of the
 * machine hits both. The better of each request's rounds counts. */

#include "bench/ttft/ttft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct pair {
	double with_us[TTFT_MAX_REQUESTS], without_us[TTFT_MAX_REQUESTS];
	double with_cpu_us, without_cpu_us; /* of the worker process alone, all rounds */
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
	if (kvt_client_connect(&client, &options, &error) != 0)
		bench_die("%s", error.text);
	if (kvt_reset(client) != 0)
		bench_die("%s", kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
}

static void serve_both(struct worker *worker, const struct ttft_workload *workload,
		       const struct ttft_reference *reference, uint32_t round, struct pair *pair)
{
	for (uint32_t i = 0; i < workload->n; i++) {
		for (uint32_t turn = 0; turn < 2; turn++) {
			bool cache = (turn + i + round) % 2 == 0;
			struct ttft_answer answer = { 0 };

			ttft_engine_serve(worker, &workload->request[i], cache, &answer);
			*(cache ? &pair->with_cpu_us : &pair->without_cpu_us) += answer.cpu_us;
			ttft_same_output(workload->name, &reference->answer[i], i, &answer,
					 cache ? "with the cache" : "without the cache");
			keep_better(cache ? &pair->with_us[i] : &pair->without_us[i],
				    answer.total_us);
			if (!cache || round > 0)
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

double ttft_pair(const struct ttft_options *options, struct worker *worker,
		 const struct ttft_workload *workload, const struct ttft_reference *reference,
		 uint32_t n_pages, bool caching)
{
	struct pair *pair = mmap(NULL, sizeof(*pair), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct kvt_own_daemon daemon;
	double with_us, without_us;
	int status;
	pid_t pid;

	if (pair == MAP_FAILED)
		bench_die("out of memory");
	ttft_daemon_start(&daemon, options, worker, n_pages, caching);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		ttft_engine_connect(worker, daemon.socket_path);
		for (uint32_t round = 0; round < options->rounds; round++) {
			if (round > 0)
				reset(daemon.socket_path);
			serve_both(worker, workload, reference, round, pair);
		}
		worker_close_cache(worker);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0)
		bench_die("%s: the worker process failed", workload->name);
	ttft_daemon_stop(&daemon);
	with_us = sum(pair->with_us, workload->n);
	without_us = sum(pair->without_us, workload->n);
	bench_line("pair", "\"workload\":\"%s\",\"chunk\":%u,\"caching\":%s,\"requests\":%u,"
		   "\"rounds\":%u,"
		   "\"pool_pages\":%u,\"with_us\":%.0f,\"without_us\":%.0f,\"ratio\":%.4f,"
		   "\"cpu_ratio\":%.4f,"
		   "\"floor_us\":%.0f,\"over_floor\":%.4f,"
		   "\"floor\":\"the same positions computed without a daemon\","
		   "\"cached_positions\":%llu,\"prefill_positions\":%llu,\"restarts\":%llu,"
		   "\"waits\":%llu", workload->name, worker->options.chunk,
		   caching ? "true" : "false", workload->n, options->rounds, n_pages, with_us,
		   without_us, without_us / with_us,
		   pair->without_cpu_us / pair->with_cpu_us, reference->cold_total_us,
		   with_us / reference->cold_total_us,
		   (unsigned long long)pair->cached,
		   (unsigned long long)pair->prefilled, (unsigned long long)pair->restarts,
		   (unsigned long long)pair->waits);
	munmap(pair, sizeof(*pair));
	return without_us / with_us;
}
