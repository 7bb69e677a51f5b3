/* SPDX-License-Identifier: Apache-2.0 */

/* kvtbench-ttft: options, the parts and their aims.
 *
 * Inputs: the command line. Invariant: every mode must give the reference's tokens and logits, or
 * the program ends. Callers: none; a program. */

#include "bench/ttft/ttft.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_PAGES 4096u      /* 64 K positions: room for everything but the thrashing case */
#define AGENT_WORKERS 2u
#define THRASH_LISTS 6u
#define THRASH_PAGES 260u     /* of 6 lists with 64 pages and their own parts, about 3.5 */

static struct ttft_workload workload;
static struct ttft_reference reference;
static struct ttft_answer answers[TTFT_MAX_REQUESTS];

static void usage(FILE *to)
{
	fputs("Usage: kvtbench-ttft [options] [PART...]\n"
	      "What sharing pages does to processes that run a real model. JSON lines on stdout,\n"
	      "a table and the aims on stderr. Fails when any output differs between modes.\n"
	      "\n"
	      "  --quick            12 requests instead of 48, one round instead of 5; agent:\n"
	      "                     2 conversations of 2 calls behind 4,096 positions\n"
	      "  --requests N       of each workload but agent (48)\n"
	      "  --rate R           requests a second (8)\n"
	      "  --workers N        only this many worker processes (1, 2 and 4; agent: 2)\n"
	      "  --rounds N         of the last three parts; the best of each request counts (5)\n"
	      "  --chunk N          positions between two commits in the last three parts, up to\n"
	      "                     512 (512 and 128)\n"
	      "  --agent-cached N   positions that the first call of a conversation finds cached\n"
	      "                     (32768; the trace's median is 101000)\n"
	      "  --agent-calls N    calls of each conversation (4)\n"
	      "  --agent-conversations N\n"
	      "                     that are alive at once (4)\n"
	      "  --model DIRECTORY  with prices.bin, prices.tok, words.txt\n"
	      "                     (examples/worker/model)\n"
	      "  --daemon PROGRAM   kvtrunkd to run (default: beside this program)\n"
	      "\n"
	      "Parts (default: all):\n"
	      "  shared    1,024 positions in common, 33 to 117 own; cache, none, private caches\n"
	      "  agent     long conversations come back, 727 new positions a call; likewise, and\n"
	      "            private caches each with its own conversations (sticky)\n"
	      "  same      every process gets the same prompt at once\n"
	      "  unique    nothing in common: the time without a cache, and that without a\n"
	      "            daemon, over the time with the cache\n"
	      "  thrash    six lists in turns, room for three and a half: likewise\n"
	      "  disabled  caching = no: likewise\n", to);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

struct spread {
	double p50, p99;
};

static struct spread spread_of(double *values, uint32_t n)
{
	struct spread spread = { 0 };

	if (n == 0)
		return spread;
	qsort(values, n, sizeof(*values), compare);
	spread.p50 = values[n / 2];
	spread.p99 = values[n - 1 < n * 99 / 100 ? n - 1 : n * 99 / 100];
	return spread;
}

struct figures {
	struct spread ttft, between, total; /* from the arrival */
	double served_ttft_us;              /* median, since a process took it */
	double cpu_us;
	uint64_t cached, prefilled, restarts, waits, unpublished, tokens;
};

static void sum_up(struct figures *f)
{
	static double ttft[TTFT_MAX_REQUESTS], total[TTFT_MAX_REQUESTS];
	static double served[TTFT_MAX_REQUESTS];
	static double between[TTFT_MAX_REQUESTS * TTFT_MAX_TOKENS];
	uint32_t n = 0, steps = 0;

	*f = (struct figures){ 0 };
	for (uint32_t i = workload.n_unmeasured; i < workload.n; i++, n++) {
		const struct ttft_answer *a = &answers[i];

		served[n] = a->ttft_us;
		ttft[n] = a->late_us + a->ttft_us;
		total[n] = a->late_us + a->total_us;
		for (uint32_t j = 1; j < a->n_tokens; j++)
			between[steps++] = a->token_us[j] - a->token_us[j - 1];
		f->cpu_us += a->cpu_us;
		f->tokens += a->n_tokens;
		f->cached += a->cached;
		f->prefilled += a->prefilled;
		f->restarts += a->restarts;
		f->waits += a->waits;
		f->unpublished += a->unpublished;
	}
	f->ttft = spread_of(ttft, n);
	f->served_ttft_us = spread_of(served, n).p50;
	f->total = spread_of(total, n);
	f->between = spread_of(between, steps);
}

/** The phase before the measured requests. */
struct unmeasured {
	double seconds;
	uint64_t prefilled;
};

static void print_row(const char *mode, uint32_t workers, const struct figures *f,
		      double floor_us, double floor_cpu_us, double seconds, uint64_t peak_pages)
{
	uint32_t n = workload.n - workload.n_unmeasured;

	fprintf(stderr, "%-8s %-8s %7u %9.1f %9.1f %8.1f %8.1f %6.2f %6.2f %8.2f %8.2f %9.1f "
		"%9.1f %7.1f %9llu %6llu %6llu\n", workload.name, mode, workers, f->ttft.p50 / 1e3,
		f->ttft.p99 / 1e3, f->served_ttft_us / 1e3, floor_us / 1e3,
		f->served_ttft_us / floor_us, f->cpu_us / floor_cpu_us,
		f->between.p50 / 1e3, f->between.p99 / 1e3, f->total.p50 / 1e3,
		f->total.p99 / 1e3, n / seconds,
		(unsigned long long)f->prefilled, (unsigned long long)peak_pages,
		(unsigned long long)f->restarts + f->waits + f->unpublished);
}

static void report(enum ttft_mode mode, uint32_t workers, const struct ttft_pool_use *use,
		   const struct unmeasured *before, double seconds)
{
	bool warm = mode == TTFT_CACHE || mode == TTFT_PRIVATE || mode == TTFT_STICKY;
	double floor_us = warm ? reference.warm_ttft_us : reference.cold_ttft_us;
	double floor_cpu_us = warm ? reference.warm_cpu_us : reference.cold_cpu_us;
	uint32_t n = workload.n - workload.n_unmeasured;
	struct figures f;

	sum_up(&f);
	bench_line("serve", "\"workload\":\"%s\",\"mode\":\"%s\",\"workers\":%u,\"requests\":%u,"
		   "\"ttft_p50_us\":%.0f,\"ttft_p99_us\":%.0f,\"served_ttft_p50_us\":%.0f,"
		   "\"floor_ttft_p50_us\":%.0f,\"over_floor\":%.3f,"
		   "\"inter_token_p50_us\":%.0f,\"inter_token_p99_us\":%.0f,"
		   "\"floor_inter_token_p50_us\":%.0f,\"latency_p50_us\":%.0f,"
		   "\"latency_p99_us\":%.0f,\"floor_latency_mean_us\":%.0f,"
		   "\"cpu_mean_us\":%.0f,\"cpu_over_floor\":%.3f,"
		   "\"requests_per_s\":%.2f,\"tokens_per_s\":%.1f,\"cached_positions\":%llu,"
		   "\"prefill_positions\":%llu,\"before_s\":%.2f,"
		   "\"before_prefill_positions\":%llu,"
		   "\"peak_pool_pages\":%llu,\"peak_held_pages\":%llu,"
		   "\"peak_pool_positions\":%llu,\"fallback_restarts\":%llu,"
		   "\"fallback_waits\":%llu,\"fallback_unpublished\":%llu,"
		   "\"coalesced_positions\":%llu,"
		   "\"floor\":\"the same positions computed alone, without a daemon\"",
		   workload.name, ttft_mode_name[mode], workers, n, f.ttft.p50, f.ttft.p99,
		   f.served_ttft_us, floor_us, f.served_ttft_us / floor_us, f.between.p50,
		   f.between.p99, reference.token_us, f.total.p50, f.total.p99,
		   (warm ? reference.warm_total_us : reference.cold_total_us) / n,
		   f.cpu_us / n, f.cpu_us / floor_cpu_us,
		   n / seconds, (double)f.tokens / seconds, (unsigned long long)f.cached,
		   (unsigned long long)f.prefilled, before->seconds,
		   (unsigned long long)before->prefilled, (unsigned long long)use->peak_used,
		   (unsigned long long)use->peak_held,
		   (unsigned long long)use->peak_used_positions, (unsigned long long)f.restarts,
		   (unsigned long long)f.waits, (unsigned long long)f.unpublished,
		   (unsigned long long)use->coalesced_positions);
	print_row(ttft_mode_name[mode], workers, &f, floor_us, floor_cpu_us, seconds,
		  use->peak_used);
}

static void table_head(void)
{
	fprintf(stderr, "\n%-8s %-8s %7s %9s %9s %8s %8s %6s %6s %8s %8s %9s %9s %7s %9s %6s "
		"%6s\n%35s %9s %8s %8s %6s %6s %8s %8s %9s %9s %7s %9s %6s\n", "", "mode",
		"workers", "TTFT p50", "p99", "served", "floor", "ratio", "CPU", "token", "p99",
		"request", "p99", "req/s", "prefill", "pages", "fallb.", "ms", "ms", "ms", "ms", "",
		"ratio", "ms", "ms", "ms", "ms", "", "positions", "peak");
}

/** Compute the reference once a workload. Every mode must give its tokens. */
static void make_reference(struct worker *worker)
{
	ttft_reference_run(worker, &workload, &reference);
	bench_line("reference", "\"workload\":\"%s\",\"requests\":%u,\"right_answers\":%u,"
		   "\"cold_ttft_p50_us\":%.0f,\"warm_ttft_p50_us\":%.0f,\"token_p50_us\":%.0f",
		   workload.name, workload.n, reference.right, reference.cold_ttft_us,
		   reference.warm_ttft_us, reference.token_us);
	fprintf(stderr, "%s: %u of %u answers are right\n", workload.name, reference.right,
		workload.n);
}

static void serve(const struct ttft_options *options, struct worker *worker, enum ttft_mode mode,
		  uint32_t workers, uint32_t n_pages)
{
	uint32_t first = mode == TTFT_NONE ? workload.n_unmeasured : 0;
	struct unmeasured before = { 0 };
	struct ttft_pool_use use;
	double seconds;

	ttft_serve(options, worker, &workload, mode, workers, n_pages, answers, &use,
		   &before.seconds, &seconds);
	for (uint32_t i = first; i < workload.n; i++)
		ttft_same_output(workload.name, &reference.answer[i], i, &answers[i],
				 ttft_mode_name[mode]);
	for (uint32_t i = first; i < workload.n_unmeasured; i++)
		before.prefilled += answers[i].prefilled;
	report(mode, workers, &use, &before, seconds);
}

static void part_shared(const struct ttft_options *options, struct worker *worker,
			uint32_t workers)
{
	static const uint32_t usual[] = { 1, 2, 4 };
	uint32_t n = workers ? 1 : sizeof(usual) / sizeof(usual[0]);
	const uint32_t *counts = workers ? &workers : usual;

	make_reference(worker);
	table_head();
	for (uint32_t i = 0; i < n; i++) {
		serve(options, worker, TTFT_CACHE, counts[i], POOL_PAGES);
		serve(options, worker, TTFT_NONE, counts[i], POOL_PAGES);
		serve(options, worker, TTFT_PRIVATE, counts[i], POOL_PAGES);
	}
}

/** End the program unless every call reused all that came before and computed the rest, as in the
 * reference. */
static void check_found(void)
{
	for (uint32_t i = workload.n_unmeasured; i < workload.n; i++) {
		const struct ttft_request *r = &workload.request[i];

		if (answers[i].cached != r->warm || answers[i].prefilled != r->n - r->warm)
			bench_die("%s: request %u found %u positions and computed %u, not %u and "
				  "%u", workload.name, i, answers[i].cached, answers[i].prefilled,
				  r->warm, r->n - r->warm);
	}
}

static void part_agent(const struct ttft_options *options, struct ttft_agent *agent,
		       uint32_t workers)
{
	static const enum ttft_mode modes[] = { TTFT_CACHE, TTFT_NONE, TTFT_PRIVATE,
						TTFT_STICKY };
	struct worker *worker = ttft_agent_worker(agent);
	uint32_t n_pages = ttft_agent_pages(agent, workers);

	ttft_agent_reference(agent, &workload, &reference);
	bench_line("reference", "\"workload\":\"agent\",\"requests\":%u,\"conversations\":%u,"
		   "\"calls\":%u,\"cached\":%u,\"context\":%u,\"pool_pages\":%u,"
		   "\"cold_ttft_p50_us\":%.0f,\"warm_ttft_p50_us\":%.0f,\"token_p50_us\":%.0f",
		   workload.n, options->conversations, options->calls, options->cached,
		   worker->model.context, n_pages, reference.cold_ttft_us,
		   reference.warm_ttft_us, reference.token_us);
	fprintf(stderr, "agent: %u conversations of %u calls behind %u cached positions, a pool of "
		"%u pages\n", options->conversations, options->calls, options->cached, n_pages);
	table_head();
	for (unsigned int i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		serve(options, worker, modes[i], workers, n_pages);
		if (modes[i] == TTFT_CACHE)
			check_found();
	}
	ttft_agent_turns(agent);
}

static void part_same(const struct ttft_options *options, struct worker *worker,
		      const struct prices *prices)
{
	ttft_workload_same(&workload, worker, prices, 4);
	make_reference(worker);
	table_head();
	serve(options, worker, TTFT_CACHE, 4, POOL_PAGES);
	serve(options, worker, TTFT_NONE, 4, POOL_PAGES);
}

static void pair_aim(const char *what, uint32_t chunk, const char *other, double ratio,
		     double aim)
{
	char figure[128];

	snprintf(figure, sizeof(figure), "%s, chunks of %u: %s, over cache", what, chunk, other);
	bench_aim(figure, ratio, "x", aim, true);
}

/** Measure the overhead on a workload that sharing cannot help. More commits cost more. */
static void part_pair(const struct ttft_options *options, struct worker *worker, const char *name,
		      const char *what, double aim)
{
	static const uint32_t chunks[] = { TTFT_CHUNK, 128 };
	bool disabled = !strcmp(name, "disabled");

	workload.name = name;
	for (unsigned int i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		uint32_t chunk = options->chunk ? options->chunk : chunks[i];
		struct ttft_pair_ratios ratios;

		worker->options.chunk = chunk;
		make_reference(worker);
		ttft_pair(options, worker, &workload, &reference,
			  !strcmp(name, "thrash") ? THRASH_PAGES : POOL_PAGES, !disabled, &ratios);
		pair_aim(what, chunk, "nothing reused", ratios.miss, aim);
		pair_aim(what, chunk, "no daemon", ratios.alone, aim);
		if (options->chunk)
			break;
	}
	worker->options.chunk = TTFT_CHUNK;
}

struct part {
	const char *name;
	bool wanted;
};
enum { SHARED, AGENT, SAME, UNIQUE, THRASH, DISABLED, N_PARTS };
static struct part parts[N_PARTS] = {
	[SHARED] = { "shared", false }, [AGENT] = { "agent", false },
	[SAME] = { "same", false }, [UNIQUE] = { "unique", false },
	[THRASH] = { "thrash", false }, [DISABLED] = { "disabled", false },
};

static double positive(const char *name, const char *text, double most)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value > 0.0) || value > most) {
		fprintf(stderr, "kvtbench-ttft: --%s takes a number up to %.0f, not '%s'\n", name,
			most, text);
		exit(2);
	}
	return value;
}

static uint32_t count(const char *name, const char *text, uint32_t most)
{
	double value = positive(name, text, most);

	if (value != (double)(uint32_t)value) {
		fprintf(stderr, "kvtbench-ttft: --%s takes a whole number, not '%s'\n", name, text);
		exit(2);
	}
	return (uint32_t)value;
}

static void want(const char *name)
{
	for (unsigned int i = 0; i < N_PARTS; i++) {
		if (!strcmp(name, parts[i].name)) {
			parts[i].wanted = true;
			return;
		}
	}
	fprintf(stderr, "kvtbench-ttft: there is no part '%s'\n", name);
	usage(stderr);
	exit(2);
}

static void be_quick(struct ttft_options *options)
{
	options->requests = 12;
	options->rounds = 1;
	options->conversations = 2;
	options->calls = 2;
	options->cached = 4096;
}

static void parse(int argc, char **argv, struct ttft_options *options, uint32_t *ret_workers)
{
	static const struct option longs[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "requests", required_argument, NULL, 'n' },
		{ "rate", required_argument, NULL, 'r' },
		{ "workers", required_argument, NULL, 'w' },
		{ "rounds", required_argument, NULL, 'o' },
		{ "chunk", required_argument, NULL, 'c' },
		{ "agent-cached", required_argument, NULL, 'p' },
		{ "agent-calls", required_argument, NULL, 'a' },
		{ "agent-conversations", required_argument, NULL, 'v' },
		{ "model", required_argument, NULL, 'm' },
		{ "daemon", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", longs, NULL)) >= 0) {
		switch (c) {
		case 'q': be_quick(options); break;
		case 'n':
			options->requests = count("requests", optarg, TTFT_MAX_REQUESTS);
			break;
		case 'r': options->per_second = positive("rate", optarg, 1e6); break;
		case 'w': *ret_workers = count("workers", optarg, TTFT_MAX_WORKERS); break;
		case 'o': options->rounds = count("rounds", optarg, 1000); break;
		case 'c': options->chunk = count("chunk", optarg, TTFT_CHUNK); break;
		case 'p': options->cached = count("agent-cached", optarg, 1e9); break;
		case 'a': options->calls = count("agent-calls", optarg, TTFT_MAX_REQUESTS); break;
		case 'v':
			options->conversations = count("agent-conversations", optarg,
						       TTFT_MAX_REQUESTS);
			break;
		case 'm': options->directory = optarg; break;
		case 'd': options->daemon = optarg; break;
		case 'h': usage(stdout); exit(0);
		default: usage(stderr); exit(2);
		}
	}
	for (unsigned int i = 0; optind >= argc && i < N_PARTS; i++)
		parts[i].wanted = true;
	while (optind < argc)
		want(argv[optind++]);
}

static void run(const struct ttft_options *options, struct worker *worker,
		struct ttft_agent *agent, const struct prices *prices, uint32_t workers)
{
	if (parts[SHARED].wanted) {
		ttft_workload_shared(&workload, worker, prices, options);
		part_shared(options, worker, workers);
		ttft_workload_free(&workload);
	}
	if (agent) {
		part_agent(options, agent, workers ? workers : AGENT_WORKERS);
		ttft_workload_free(&workload);
	}
	if (parts[SAME].wanted) {
		part_same(options, worker, prices);
		ttft_workload_free(&workload);
	}
	if (parts[UNIQUE].wanted) {
		ttft_workload_unique(&workload, worker, prices, options);
		part_pair(options, worker, "unique", "nothing shared", 0.98);
		ttft_workload_free(&workload);
	}
	if (parts[THRASH].wanted) {
		ttft_workload_rotating(&workload, worker, prices, options, THRASH_LISTS);
		part_pair(options, worker, "thrash", "thrashing", 0.95);
		ttft_workload_free(&workload);
	}
	if (parts[DISABLED].wanted) {
		ttft_workload_shared(&workload, worker, prices, options);
		part_pair(options, worker, "disabled", "caching = no", 0.98);
		ttft_workload_free(&workload);
	}
}

int main(int argc, char **argv)
{
	struct ttft_options options = { .directory = "examples/worker/model", .requests = 48,
					.per_second = 8.0, .rounds = 5, .conversations = 4,
					.calls = 4, .cached = 32768 };
	struct ttft_agent *agent = NULL;
	struct prices prices;
	struct worker worker;
	uint32_t workers = 0;
	char words[512], why[WORKER_WHY_BYTES];

	parse(argc, argv, &options, &workers);
	snprintf(words, sizeof(words), "%s/words.txt", options.directory);
	if (prices_open(&prices, words, why) != 0)
		bench_die("%s", why);
	setvbuf(stdout, NULL, _IOLBF, 0);
	bench_clock_init();
	ttft_engine_open(&worker, &options, NULL);
	bench_line("machine", "\"page_size\":%u,\"pool_pages\":%u,\"requests\":%u,"
		   "\"per_second\":%.2f,\"context\":%u", TTFT_PAGE_SIZE, POOL_PAGES,
		   options.requests, options.per_second, worker.model.context);
	/* Refuse now what the machine has no room for, not some parts later. */
	if (parts[AGENT].wanted)
		agent = ttft_agent_open(&options, &worker, workers ? workers : AGENT_WORKERS);
	run(&options, &worker, agent, &prices, workers);
	if (agent)
		ttft_agent_close(agent);
	worker_close(&worker);
	bench_aims_print();
	return 0;
}
