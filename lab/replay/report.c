/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file report.c
 * The final report of a replay, as text, JSON and the --served file.
 *
 * Inputs: a finished kvt_replay_report. Invariant: reads only; all workers have ended. Caller:
 * main.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/json.h"
#include "base/number.h"
#include "base/output.h"
#include "base/store.h"
#include "base/text.h"
#include "lab/replay/replay.h"
#include "shm/size.h"

static const char *const op_names[KVT_REPLAY_OPS] = { "begin", "commit", "extend", "end",
						      "first_token", "burst_first_token" };

/* Sums over requests and workers. */
struct totals {
	uint64_t input, hits;
	uint32_t served, refused, lost, fallbacks;
	uint64_t pattern_errors, verified_pages, look_on, computed, duplicates, stale, cut_short;
	uint64_t matched, without_point;
	struct kvt_latency latency[KVT_REPLAY_OPS];
	uint32_t nodes_p50, nodes_p99, nodes_max;
};

static void add_up_paths(const struct kvt_replay_report *report, struct totals *totals)
{
	uint64_t nodes[KVT_REPLAY_MAX_NODES] = { 0 }, n = 0, before = 0;

	for (uint32_t w = 0; w < report->options->workers; w++) {
		for (uint32_t i = 0; i < KVT_REPLAY_MAX_NODES; i++) {
			nodes[i] += report->shared->workers[w].path_nodes[i];
			n += report->shared->workers[w].path_nodes[i];
		}
	}
	for (uint32_t i = 0; i < KVT_REPLAY_MAX_NODES; i++) {
		if (!nodes[i])
			continue;
		if (before * 2 < n)
			totals->nodes_p50 = i;
		if (before * 100 < n * 99)
			totals->nodes_p99 = i;
		totals->nodes_max = i;
		before += nodes[i];
	}
}

static void add_up(const struct kvt_replay_report *report, struct totals *totals)
{
	memset(totals, 0, sizeof(*totals));
	for (uint32_t i = 0; i < report->trace->n_requests; i++) {
		const struct kvt_replay_slot *slot = &report->shared->slots[i];

		if (slot->state == KVT_REPLAY_PENDING)
			continue;
		totals->input += report->trace->requests[i].input;
		totals->hits += slot->hit;
		totals->served++;
		totals->refused += slot->state == KVT_REPLAY_REFUSED;
		totals->lost += slot->state == KVT_REPLAY_LOST;
		totals->fallbacks += slot->fallback;
	}
	for (uint32_t w = 0; w < report->options->workers; w++) {
		const struct kvt_replay_worker *worker = &report->shared->workers[w];

		totals->pattern_errors += worker->pattern_errors;
		totals->verified_pages += worker->verified_pages;
		totals->look_on += worker->look_on_positions;
		totals->computed += worker->computed_positions;
		totals->duplicates += worker->duplicates;
		totals->stale += worker->stale_commits;
		totals->cut_short += worker->cut_short;
		totals->matched += worker->matched_positions;
		totals->without_point += worker->without_point;
		for (uint32_t op = 0; op < KVT_REPLAY_OPS; op++)
			kvt_latency_merge(&totals->latency[op], &worker->latency[op]);
	}
	add_up_paths(report, totals);
}

static double rate(uint64_t hits, uint64_t input)
{
	return input ? (double)hits / (double)input : 0;
}

bool kvt_replay_good(const struct kvt_replay_report *report)
{
	struct totals totals;

	add_up(report, &totals);
	return !report->problems && !totals.pattern_errors && !report->workers_failed &&
	       totals.served == report->trace->n_requests &&
	       (totals.refused < totals.served || totals.served == 0);
}

/* ---- JSON ---- */

/* Add a number with `decimals` places, in place of a null: the writer has no such format. */
static void json_number(struct kvt_json *json, const char *name, int decimals, double value)
{
	kvt_json_null(json, name);
	json->text.used -= strlen("null");
	kvt_text_print(&json->text, "%.*f", decimals, value);
}

static void json_pages(struct kvt_json *json, const char *name, const struct kvt_counters *counters)
{
	kvt_json_open(json, name, '{');
	kvt_json_u64(json, "free", counters->free_pages);
	kvt_json_u64(json, "private", counters->private_pages);
	kvt_json_u64(json, "cached", counters->cached_pages);
	kvt_json_u64(json, "quarantined", counters->quarantined_pages);
	kvt_json_u64(json, "evictable", counters->evictable_pages);
	kvt_json_u64(json, "protected", counters->protected_pages);
	kvt_json_close(json, '}');
}

static void json_latency(struct kvt_json *json, const struct totals *totals)
{
	kvt_json_open(json, "latency_us", '{');
	for (uint32_t op = 0; op < KVT_REPLAY_OPS; op++) {
		const struct kvt_latency *latency = &totals->latency[op];

		kvt_json_open(json, op_names[op], '{');
		kvt_json_u64(json, "count", latency->n);
		json_number(json, "p50", 2, kvt_latency_us(latency, 0.5));
		json_number(json, "p90", 2, kvt_latency_us(latency, 0.9));
		json_number(json, "p99", 2, kvt_latency_us(latency, 0.99));
		json_number(json, "max", 2, (double)latency->max_ns / 1000);
		kvt_json_close(json, '}');
	}
	kvt_json_close(json, '}');
}

static void json_private(struct kvt_json *json, const struct kvt_replay_report *report)
{
	static const char *const names[KVT_ROUTERS][3] = {
		{ "simulated_shared_hit_rate", "simulated_shared_evictions",
		  "simulated_shared_refused" },
		{ "private_rr_hit_rate", "private_rr_evictions", "private_rr_refused" },
		{ "private_sticky_hit_rate", "private_sticky_evictions", "private_sticky_refused" },
	};

	for (int i = 0; i < KVT_ROUTERS; i++) {
		const struct kvt_private_result *result = &report->private[i];

		if (!report->simulated) {
			kvt_json_null(json, names[i][0]);
			continue;
		}
		json_number(json, names[i][0], 6,
			    rate(result->hit_positions, result->input_positions));
		kvt_json_u64(json, names[i][1], result->evictions);
		kvt_json_u64(json, names[i][2], result->refused);
	}
	if (report->simulated)
		kvt_json_u64(json, "simulated_shared_hit_positions",
			     report->private[KVT_ROUTER_ONE].hit_positions);
}

static void json_waits(struct kvt_json *json, const struct kvt_replay_report *report)
{
	const struct kvt_counters *after = &report->after, *before = &report->before;

	kvt_json_u64(json, "coalesced_positions",
		     after->coalesced_positions - before->coalesced_positions);
	kvt_json_u64(json, "waits", after->waits - before->waits);
	json_number(json, "wait_seconds", 3, (double)(after->wait_ns - before->wait_ns) / 1e9);
	kvt_json_u64(json, "takeovers", after->takeovers - before->takeovers);
	kvt_json_u64(json, "deadline_misses", after->deadline_misses - before->deadline_misses);
}

static void print_json(const struct kvt_replay_report *report, const struct totals *totals)
{
	struct kvt_json json = { 0 };

	kvt_json_open(&json, NULL, '{');
	kvt_json_u64(&json, "requests", totals->served);
	kvt_json_u64(&json, "input_positions", totals->input);
	kvt_json_u64(&json, "hit_positions", totals->hits);
	json_number(&json, "hit_rate", 6, rate(totals->hits, totals->input));
	kvt_json_u64(&json, "matched_positions", totals->matched);
	kvt_json_u64(&json, "side_pages", report->after.side_pages);
	kvt_json_u64(&json, "requests_without_point", totals->without_point);
	kvt_json_u64(&json, "prefill_avoided_positions", totals->hits + totals->look_on);
	kvt_json_u64(&json, "look_on_positions", totals->look_on);
	kvt_json_u64(&json, "computed_positions", totals->computed);
	json_waits(&json, report);
	kvt_json_u64(&json, "evictions",
		     report->after.evicted_pages - report->before.evicted_pages);
	kvt_json_u64(&json, "refused", totals->refused);
	kvt_json_refused(&json, "refused_attempts", report->refused);
	kvt_json_u64(&json, "fallbacks", totals->fallbacks);
	kvt_json_u64(&json, "cut_short", totals->cut_short);
	kvt_json_u64(&json, "pattern_errors", totals->pattern_errors);
	kvt_json_u64(&json, "verified_pages", totals->verified_pages);
	kvt_json_u64(&json, "duplicate_pages", totals->duplicates);
	kvt_json_u64(&json, "stale_commits", totals->stale);
	kvt_json_u64(&json, "workers", report->options->workers);
	kvt_json_u64(&json, "workers_lost", report->workers_lost);
	kvt_json_u64(&json, "workers_failed", report->workers_failed);
	kvt_json_u64(&json, "requests_lost", totals->lost);
	kvt_json_u64(&json, "requests_left_out",
		    (uint64_t)report->trace->left_out + report->trace->empty);
	json_private(&json, report);
	if (report->options->asks_store) {
		kvt_json_open(&json, "store", '{');
		kvt_json_store(&json, &report->store);
		kvt_json_close(&json, '}');
	}
	kvt_json_u64(&json, "nodes_per_path_p50", totals->nodes_p50);
	kvt_json_u64(&json, "nodes_per_path_p99", totals->nodes_p99);
	kvt_json_u64(&json, "nodes_per_path_max", totals->nodes_max);
	json_latency(&json, totals);
	kvt_json_u64(&json, "page_size", report->page_size);
	kvt_json_u64(&json, "pages", report->n_pages);
	json_pages(&json, "peak_pages", &report->peak);
	json_pages(&json, "final_pages", &report->after);
	json_number(&json, "seconds", 3, report->seconds);
	kvt_json_u64(&json, "audit_problems", report->problems);
	if (report->problems)
		kvt_json_string(&json, "audit_first_problem", report->first_problem);
	kvt_json_bool(&json, "audit_clean", !report->problems);
	kvt_json_close(&json, '}');
	kvt_json_flush(&json, stdout);
	kvt_json_free(&json);
}

/* ---- text ---- */

static void print_rates(const struct kvt_replay_report *report, const struct totals *totals)
{
	static const char *const names[KVT_ROUTERS] = {
		"the same, simulated       ", "private, round robin   ", "private, sticky        ",
	};

	uint32_t n = report->options->n_instances;

	if (n == 1)
		printf("  one shared pool            %6.2f %%   (measured, %u worker%s)\n",
		       100 * rate(totals->hits, totals->input), report->options->workers,
		       kvt_plural(report->options->workers));
	else
		printf("  %2u instances, %-12s%6.2f %%   (measured, %u worker%s)\n", n,
		       !report->options->store_pages ? "no store" :
		       report->options->private_stores ? "a store each" : "one store",
		       100 * rate(totals->hits, totals->input), report->options->workers,
		       kvt_plural(report->options->workers));
	for (int i = 0; i < KVT_ROUTERS && report->simulated; i++) {
		const struct kvt_private_result *result = &report->private[i];

		if (i == KVT_ROUTER_ONE)
			printf("  %s", names[i]);
		else
			printf("  %2u %s", n > 1 ? n : report->options->workers, names[i]);
		printf(" %6.2f %%   (simulated, same size in all, %u refused)\n",
		       100 * rate(result->hit_positions, result->input_positions),
		       result->refused);
	}
}

static void print_latencies(const struct totals *totals)
{
	printf("latency seen by workers, us     p50        p90        p99        max      calls\n");
	for (uint32_t op = 0; op < KVT_REPLAY_OPS; op++) {
		const struct kvt_latency *latency = &totals->latency[op];

		if (latency->n)
			printf("  %-22s %10.1f %10.1f %10.1f %10.1f %10" PRIu64 "\n", op_names[op],
			       kvt_latency_us(latency, 0.5), kvt_latency_us(latency, 0.9),
			       kvt_latency_us(latency, 0.99), (double)latency->max_ns / 1000,
			       latency->n);
	}
}

static void print_waits(const struct kvt_replay_report *report, const struct totals *totals)
{
	const struct kvt_counters *after = &report->after, *before = &report->before;

	printf("computed        %" PRIu64 " position%s\n", totals->computed,
	       kvt_plural(totals->computed));
	if (after->waits == before->waits)
		return;
	printf("waits           %" PRIu64 " for others' prefill, %.1f s in all; %" PRIu64
	       " position%s not computed twice; %" PRIu64 " taken over, %" PRIu64
	       " deadline%s missed\n", after->waits - before->waits,
	       (double)(after->wait_ns - before->wait_ns) / 1e9,
	       after->coalesced_positions - before->coalesced_positions,
	       kvt_plural(after->coalesced_positions - before->coalesced_positions),
	       after->takeovers - before->takeovers,
	       after->deadline_misses - before->deadline_misses,
	       kvt_plural(after->deadline_misses - before->deadline_misses));
}

/* The verdict: a hit rate of the rest alone would hide them. */
static void print_refused(const struct kvt_replay_report *report, const struct totals *totals)
{
	uint64_t alone = report->refused[kvt_refusal_of(KVT_REASON_TOO_LARGE)];
	char attempts[256];

	printf("REFUSED         %u of %u request%s (%.1f %%): they count as input without a hit. "
	       "Attempts %s. A larger pool (--pages) serves them%s\n", totals->refused,
	       totals->served, kvt_plural(totals->served),
	       kvt_percent(totals->refused, totals->served),
	       kvt_refused_text(report->refused, attempts, sizeof(attempts)),
	       alone == kvt_refused_all(report->refused) ? "" : alone ?
	       "; fewer at a time (--workers, --concurrency) those that were not too_large" :
	       ", and so do fewer at a time (--workers, --concurrency)");
}

static void print_text(const struct kvt_replay_report *report, const struct totals *totals)
{
	uint64_t evicted = report->after.evicted_pages - report->before.evicted_pages;
	const struct kvt_counters *peak = &report->peak;

	printf("requests        %u in %.1f s (%u refused, %u lost with their worker, %u longer "
	       "than the context left out)\n", totals->served, report->seconds, totals->refused,
	       totals->lost, report->trace->left_out);
	printf("input positions %" PRIu64 "\n", totals->input);
	printf("hit positions   %" PRIu64 " (and %" PRIu64 " taken over from others while they "
	       "computed them)\n", totals->hits, totals->look_on);
	if (report->n_sides)
		printf("points          %" PRIu64 " position%s matched; %" PRIu64 " side page%s "
		       "now; %" PRIu64 " request%s without room for a point\n", totals->matched,
		       kvt_plural(totals->matched), report->after.side_pages,
		       kvt_plural(report->after.side_pages), totals->without_point,
		       kvt_plural(totals->without_point));
	print_waits(report, totals);
	if (report->options->asks_store)
		printf("store           %" PRIu64 " of %" PRIu64 " fetches answered, %" PRIu64
		       " page%s loaded in %" PRIu64 " load%s; %" PRIu64 " of its pages computed "
		       "again\n", report->store.hits, report->store.fetches,
		       report->store.loaded_pages, kvt_plural(report->store.loaded_pages),
		       report->store.loads, kvt_plural(report->store.loads),
		       report->store.recomputed_pages);
	printf("hit rate\n");
	print_rates(report, totals);
	printf("evictions       %" PRIu64 " page%s; fallbacks %u; answers cut short %" PRIu64 "\n",
	       evicted, kvt_plural(evicted), totals->fallbacks,
	       totals->cut_short);
	printf("duplicates      %" PRIu64 " page%s computed twice, kept once\n", totals->duplicates,
	       kvt_plural(totals->duplicates));
	printf("pool            %u pages of %u position%s; peak private %" PRIu64 ", cached "
	       "%" PRIu64 ", under locks %" PRIu64 ", quarantined %" PRIu64 " (sampled)\n",
	       report->n_pages - 1, report->page_size, kvt_plural(report->page_size),
	       peak->private_pages, peak->cached_pages, peak->protected_pages,
	       peak->quarantined_pages);
	printf("nodes per path  p50 %u, p99 %u, most %u\n", totals->nodes_p50, totals->nodes_p99,
	       totals->nodes_max);
	print_latencies(totals);
	printf("workers         %u, %u killed, %u failed\n", report->options->workers,
	       report->workers_lost, report->workers_failed);
	printf("patterns        %" PRIu64 " page%s verified, %" PRIu64 " wrong\n",
	       totals->verified_pages, kvt_plural(totals->verified_pages),
	       totals->pattern_errors);
	if (report->problems)
		printf("audit           %" PRIu64 " PROBLEMS, the first: %s\n", report->problems,
		       report->first_problem);
	else
		printf("audit           clean\n");
	if (totals->refused)
		print_refused(report, totals);
}

void kvt_replay_print(const struct kvt_replay_report *report)
{
	struct totals totals;

	add_up(report, &totals);
	if (report->options->json)
		print_json(report, &totals);
	else
		print_text(report, &totals);
}

/* ---- --served ---- */

struct event {
	uint64_t seq;
	uint32_t index;
	char kind;
};

static int by_seq(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	if (x->seq != y->seq)
		return x->seq < y->seq ? -1 : 1;
	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return x->kind - y->kind; /* a refused request has one number for begin and end */
}

/* With the line of the trace's file, from 1, and what the cache gave, another program can replay
 * the same requests in the same order and compare. */
static void write_event(FILE *file, const struct kvt_replay_report *report,
			const struct event *event)
{
	uint32_t line = report->trace->requests[event->index].line + 1;

	if (event->kind == 'B')
		fprintf(file, "B %u %u %u\n", event->index, line,
			report->shared->slots[event->index].hit);
	else
		fprintf(file, "E %u %u\n", event->index, line);
}

int kvt_replay_write_served(const struct kvt_replay_report *report)
{
	uint32_t n = report->trace->n_requests, n_events = 0;
	struct event *events = calloc(n ? 2 * (size_t)n : 1, sizeof(*events));
	FILE *file = report->options->served;

	if (!events)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct kvt_replay_slot *slot = &report->shared->slots[i];

		if (!slot->begin_seq)
			continue;
		events[n_events++] = (struct event){ slot->begin_seq, i, 'B' };
		events[n_events++] = (struct event){ slot->end_seq, i, 'E' };
	}
	qsort(events, n_events, sizeof(*events), by_seq);
	for (uint32_t i = 0; i < n_events; i++)
		write_event(file, report, &events[i]);
	free(events);
	return kvt_file_end(file);
}
