/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file match.c
 * Figures of a single client: the empty round trip, MATCH+LOCK and UNLOCK, probe, a cycle.
 *
 * Inputs: a target, a tree. Invariant: figure and floor are measured in turns, on the same keys.
 * Caller: main.c.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 10u
#define FLOOR_IS "keys written, read once and compared by the other core, answer"
#define FLOOR_IS_CORE "memcmp of the keys, same core"

enum { HIT, HALF, MISS, CASES };
static const char *const case_names[CASES] = { "hit", "half", "miss" };

/* Return a number of samples: enough for a p99, few enough for the largest size. */
static uint32_t samples_for(const struct bench_target *target, uint32_t n)
{
	uint32_t samples = n <= 4096 ? 1000 : n <= 32768 ? 400 : 150;

	return target->options->quick ? samples / 5 : samples;
}

static const char *floor_is(const struct bench_target *target)
{
	return target->core ? FLOOR_IS_CORE : FLOOR_IS;
}

void bench_nop(struct bench_target *target)
{
	struct bench_floor *floor = bench_floor_start(target, NULL, 0, 0);
	struct bench_samples values = { 0 }, floors = { 0 };
	struct bench_result line = { .name = "empty_round_trip",
				     .floor_is = "ring round trip, no daemon" };
	struct kvt_request nop = { .op = KVT_OP_NOP };
	uint32_t n = samples_for(target, 0) * 2;
	struct kvt_result result;

	bench_prepare(target, &nop);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		bench_floor_turn(floor, true);
		for (uint32_t i = 0; i < n; i++)
			bench_samples_add(&floors, bench_floor_call(floor, 0, NULL, 0, 0));
		bench_floor_turn(floor, false);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t start = bench_ticks();

			bench_run(target, &nop, &result);
			bench_samples_add(&values, bench_ticks() - start);
			bench_release(target, &result);
		}
	}
	bench_floor_stop(floor);
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&floors);
	bench_emit(&line);
}

struct match_samples {
	struct bench_samples match, sent, unlock, floor, empty;
};

/* kvt_match(), which probes first, or the bare operation. */
static void run_match(struct bench_target *target, const struct kvt_request *match, bool sent,
		      struct kvt_result *ret_result)
{
	if (target->core || sent)
		bench_run(target, match, ret_result);
	else if (kvt_match(target->client, match->namespace_id, match->keys, match->n_keys,
			   match->flags, ret_result) != 0)
		bench_die("match: %s", kvt_client_error(target->client)->text);
}

static void match_once(struct bench_target *target, const uint32_t *keys, uint32_t n,
		       uint32_t expected, bool sent, struct match_samples *samples)
{
	struct kvt_request match = { .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .keys = keys,
				     .n_keys = n, .namespace_id = target->namespace_id };
	struct kvt_request unlock = { .op = KVT_OP_UNLOCK, .fence = KVT_IDLE };
	struct kvt_result result;
	uint64_t start;

	bench_prepare(target, &match);
	start = bench_ticks();
	run_match(target, &match, sent, &result);
	bench_samples_add(sent ? &samples->sent : &samples->match, bench_ticks() - start);
	if (result.matched != expected)
		bench_die("match: %u positions instead of %u", result.matched, expected);
	unlock.lease = result.lease;
	bench_release(target, &result);
	bench_prepare(target, &unlock);
	start = bench_ticks();
	bench_run(target, &unlock, &result);
	bench_samples_add(&samples->unlock, bench_ticks() - start);
	bench_release(target, &result);
}

/* Make a query: all of it cached, its first half, or nothing. */
static void make_query(uint32_t *query, const uint32_t *keys, uint32_t n, int kind)
{
	uint32_t kept = kind == HIT ? n : kind == HALF ? n / 2 : 0;

	memcpy(query, keys, kept * sizeof(*query));
	bench_new_keys(query + kept, n - kept);
}

static void match_aims(const struct bench_tree *tree, uint32_t n, const struct bench_result *line)
{
	double aim = !strcmp(tree->name, "fresh") ? 1.3 : 1.5;
	char figure[80];

	if (n != 4096 && n != 131072)
		return;
	snprintf(figure, sizeof(figure), "MATCH+LOCK %u keys, p50 / floor, %s", n, tree->name);
	bench_aim(figure, line->value.p50 / line->floor.p50, "x", aim, false);
	if (n == 4096) {
		snprintf(figure, sizeof(figure), "MATCH+LOCK %u keys, p99 / p50, %s", n,
			 tree->name);
		bench_aim(figure, line->value.p99 / line->value.p50, "x", 2, false);
	}
}

static void emit_match(struct bench_target *target, const struct bench_tree *tree, uint32_t n,
		       int kind, struct match_samples *samples)
{
	struct bench_result line = { .name = "match_lock", .kind = case_names[kind],
				     .tree = tree->name, .keys = n };

	line.value = bench_samples_take(&samples->match);
	line.floor = bench_samples_take(&samples->floor);
	line.floor_is = floor_is(target);
	bench_emit(&line);
	if (!target->core) {
		line.name = "match_sent";
		line.value = bench_samples_take(&samples->sent);
		bench_emit(&line);
		if (kind == HIT)
			match_aims(tree, n, &line);
	}
	line.name = "unlock";
	line.value = bench_samples_take(&samples->unlock);
	line.floor = bench_samples_take(&samples->empty);
	line.floor_is = "empty round trip";
	if (target->core)
		line.floor.n = 0;
	bench_emit(&line);
}

static void match_case(struct bench_target *target, const struct bench_tree *tree, uint32_t size,
		       int kind)
{
	uint32_t n = bench_sizes[size], sets = tree->n_sets[size], set = 0;
	uint32_t count = samples_for(target, n);
	uint32_t expected = kind == HIT ? n : kind == HALF ? n / 2 / BENCH_PAGE_SIZE *
			    BENCH_PAGE_SIZE : 0;
	struct match_samples samples = { 0 };
	uint32_t *queries[BENCH_PREFIXES];
	struct bench_floor *floor = bench_floor_start(target, tree->keys[size], sets, n);

	for (uint32_t i = 0; i < sets; i++) {
		queries[i] = bench_alloc(n, sizeof(uint32_t));
		make_query(queries[i], tree->keys[size][i], n, kind);
	}
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		bench_floor_turn(floor, true);
		for (uint32_t i = 0; i < count; i++, set = (set + 1) % sets) {
			if (target->core)
				memcpy(target->keys, queries[set], n * sizeof(uint32_t));
			bench_samples_add(&samples.floor,
					  bench_floor_call(floor, set, queries[set], n, n));
			bench_samples_add(&samples.empty, bench_floor_call(floor, 0, NULL, 0, 0));
		}
		bench_floor_turn(floor, false);
		for (uint32_t i = 0; i < count; i++, set = (set + 1) % sets)
			match_once(target, queries[set], n, expected, false, &samples);
		for (uint32_t i = 0; i < count && !target->core; i++, set = (set + 1) % sets)
			match_once(target, queries[set], n, expected, true, &samples);
	}
	bench_floor_stop(floor);
	for (uint32_t i = 0; i < sets; i++)
		free(queries[i]);
	emit_match(target, tree, n, kind, &samples);
}

void bench_match(struct bench_target *target, const struct bench_tree *tree)
{
	for (uint32_t size = 0; size < BENCH_SIZES; size++) {
		if (!tree->n_sets[size]) {
			bench_line("match_lock", "\"keys\":%u,\"tree\":\"%s\",\"skipped\":"
				   "\"no cached path is so long\"", bench_sizes[size], tree->name);
			continue;
		}
		for (int kind = HIT; kind < CASES; kind++) {
			/* Half of a page is a miss. */
			if (kind != HALF || bench_sizes[size] >= 2 * BENCH_PAGE_SIZE)
				match_case(target, tree, size, kind);
		}
	}
}

/* ---- probe ---- */

/* Lock and unlock what was probed: that writes to the lines that the next probe reads. */
static void lock_between(struct bench_target *target, struct kvt_handle handle)
{
	struct kvt_request lock = { .op = KVT_OP_LOCK, .handle = handle };
	struct kvt_request unlock = { .op = KVT_OP_UNLOCK, .fence = KVT_IDLE };
	struct kvt_result result;

	bench_run(target, &lock, &result);
	unlock.lease = result.lease;
	bench_release(target, &result);
	bench_run(target, &unlock, &result);
	bench_release(target, &result);
}

static void probe_size(struct bench_target *target, const struct bench_tree *tree, uint32_t size,
		       bool locked)
{
	uint32_t n = bench_sizes[size], sets = tree->n_sets[size];
	uint32_t count = samples_for(target, n) * 4;
	struct bench_result line = { .name = "probe",
				     .kind = locked ? "locked between" : "hit",
				     .tree = tree->name, .keys = n,
				     .floor_is = "memcmp of the keys, same core" };
	struct bench_samples values = { 0 }, floors = { 0 };
	uint32_t *copies[BENCH_PREFIXES], less = 0;

	for (uint32_t i = 0; i < sets; i++) {
		copies[i] = bench_alloc(n, sizeof(uint32_t));
		memcpy(copies[i], tree->keys[size][i], n * sizeof(uint32_t));
	}
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t *keys = tree->keys[size][i % sets];
		uint64_t start = bench_ticks();
		struct kvt_handle handle;
		uint32_t matched = 0;
		bool equal;
		int rc;

		equal = !memcmp(copies[i % sets], keys, n * sizeof(*keys));
		__asm__ volatile("" ::"r"(equal) : "memory");
		bench_samples_add(&floors, bench_ticks() - start);
		start = bench_ticks();
		rc = kvt_probe(target->client, target->namespace_id, keys, n, &handle, &matched);
		bench_samples_add(&values, bench_ticks() - start);
		less += rc || matched != n;
		if (locked && rc == 0)
			lock_between(target, handle);
	}
	for (uint32_t i = 0; i < sets; i++)
		free(copies[i]);
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&floors);
	snprintf(line.extra, sizeof(line.extra), "\"less_than_all\":%u", less);
	bench_emit(&line);
}

void bench_probe(struct bench_target *target, const struct bench_tree *tree)
{
	if (target->core)
		return;
	for (uint32_t size = 0; size < BENCH_SIZES; size++) {
		if (tree->n_sets[size]) {
			probe_size(target, tree, size, false);
			probe_size(target, tree, size, true);
		}
	}
}

/* ---- BEGIN, COMMIT, END ---- */

#define CYCLE_CACHED 4096u
#define CYCLE_NEW 727u /* the median of an agent's call */

struct cycle_samples {
	struct bench_samples whole, begin, commit, end;
};

static void add_cycle(struct cycle_samples *samples, uint64_t begin, uint64_t commit, uint64_t end)
{
	bench_samples_add(&samples->begin, begin);
	bench_samples_add(&samples->commit, commit);
	bench_samples_add(&samples->end, end);
	bench_samples_add(&samples->whole, begin + commit + end);
}

/* As a worker does it: kvt_seq_begin() sends what a probe does not find, kvt_seq_continue() what is
 * behind the handle of the turn before. */
static void seq_once(struct bench_target *target, struct kvt_handle start, const uint32_t *keys,
		     struct cycle_samples *samples)
{
	uint32_t n = CYCLE_CACHED + CYCLE_NEW;
	uint64_t t0, t1, t2, t3, t4, t5;
	struct kvt_seq *seq;
	int rc;

	t0 = bench_ticks();
	rc = kvt_seq_continue(target->client, target->namespace_id, start, keys, n, 0, 0, &seq);
	t1 = bench_ticks();
	if (rc)
		bench_die("cycle: BEGIN: %s", kvt_client_error(target->client)->text);
	if (kvt_seq_reusable(seq) != CYCLE_CACHED)
		bench_die("cycle: %u positions cached", kvt_seq_reusable(seq));
	t2 = bench_ticks();
	rc = kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0);
	t3 = bench_ticks();
	if (rc)
		bench_die("cycle: COMMIT: %s", kvt_client_error(target->client)->text);
	t4 = bench_ticks();
	rc = kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0);
	t5 = bench_ticks();
	if (rc)
		bench_die("cycle: END: %s", kvt_client_error(target->client)->text);
	add_cycle(samples, t1 - t0, t3 - t2, t5 - t4);
}

/* What the END of a turn with the cached keys alone gives. */
static struct kvt_handle last_turn(struct bench_target *target, const uint32_t *keys)
{
	struct kvt_handle handle;
	struct kvt_seq *seq;

	if (kvt_seq_begin(target->client, target->namespace_id, keys, CYCLE_CACHED, 0, 0, &seq) ||
	    kvt_seq_end_handle(seq, 0, NULL, 0, KVT_IDLE, 0, &handle))
		bench_die("cycle: %s", kvt_client_error(target->client)->text);
	if (handle.positions != CYCLE_CACHED)
		bench_die("cycle: END's handle has %u positions", handle.positions);
	return handle;
}

/* By single entries, with all keys. */
static void cycle_once(struct bench_target *target, const uint32_t *keys,
		       struct cycle_samples *samples)
{
	uint32_t n = CYCLE_CACHED + CYCLE_NEW;
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = n,
				     .namespace_id = target->namespace_id };
	struct kvt_request commit = { .op = KVT_OP_COMMIT, .arg = n, .fence = KVT_IDLE };
	struct kvt_request end = { .op = KVT_OP_END, .fence = KVT_IDLE };
	uint64_t t0, t1, t2, t3, t4, t5;
	struct kvt_result result;

	bench_prepare(target, &begin);
	t0 = bench_ticks();
	bench_run(target, &begin, &result);
	t1 = bench_ticks();
	if (result.reusable != CYCLE_CACHED)
		bench_die("cycle: %u positions cached", result.reusable);
	commit.lease = end.lease = result.lease;
	bench_release(target, &result);
	bench_prepare(target, &commit);
	t2 = bench_ticks();
	bench_run(target, &commit, &result);
	t3 = bench_ticks();
	bench_release(target, &result);
	bench_prepare(target, &end);
	t4 = bench_ticks();
	bench_run(target, &end, &result);
	t5 = bench_ticks();
	bench_release(target, &result);
	add_cycle(samples, t1 - t0, t3 - t2, t5 - t4);
}

static void emit_cycle(struct bench_target *target, const struct bench_tree *tree,
		       const char *name, struct cycle_samples *samples,
		       const struct bench_summary *floor)
{
	struct bench_result line = { .name = name, .floor = *floor, .kind = "4096 cached + 727 new",
				     .tree = tree->name, .keys = CYCLE_CACHED + CYCLE_NEW };
	struct bench_summary begin = bench_samples_take(&samples->begin);
	struct bench_summary commit = bench_samples_take(&samples->commit);
	struct bench_summary end = bench_samples_take(&samples->end);
	char figure[80];

	line.value = bench_samples_take(&samples->whole);
	line.floor_is = "keys written, 4096 compared, 727 copied, and two empty round trips";
	if (target->core)
		line.floor_is = floor_is(target);
	snprintf(line.extra, sizeof(line.extra), "\"begin_p50_ns\":%.0f,\"commit_p50_ns\":%.0f,"
		 "\"end_p50_ns\":%.0f", begin.p50, commit.p50, end.p50);
	bench_emit(&line);
	if (target->core || strcmp(name, "cycle") != 0)
		return;
	snprintf(figure, sizeof(figure), "BEGIN+COMMIT+END, 4096 cached + 727 new, p50, %s",
		 tree->name);
	bench_aim(figure, line.value.p50 / 1000, "us", 3, false);
}

void bench_cycle(struct bench_target *target, const struct bench_tree *tree)
{
	uint32_t n = CYCLE_CACHED + CYCLE_NEW, sets = tree->n_sets[2], set = 0;
	uint32_t count = samples_for(target, n), *query = bench_alloc(n, sizeof(*query));
	struct cycle_samples samples = { 0 }, sent = { 0 }, next = { 0 };
	struct bench_samples floors = { 0 };
	struct bench_summary summary;
	struct bench_floor *floor;

	if (!sets)
		return;
	floor = bench_floor_start(target, tree->keys[2], sets, CYCLE_CACHED);
	for (uint32_t turn = 0; turn < TURNS; turn++) {
		bench_floor_turn(floor, true);
		for (uint32_t i = 0; i < count; i++, set = (set + 1) % sets) {
			uint64_t ticks;

			memcpy(query, tree->keys[2][set], CYCLE_CACHED * sizeof(*query));
			bench_new_keys(query + CYCLE_CACHED, CYCLE_NEW);
			if (target->core)
				memcpy(target->keys, query, n * sizeof(*query));
			ticks = bench_floor_call(floor, set, query, CYCLE_CACHED, n);
			ticks += bench_floor_call(floor, 0, NULL, 0, 0);
			ticks += bench_floor_call(floor, 0, NULL, 0, 0);
			bench_samples_add(&floors, ticks);
		}
		bench_floor_turn(floor, false);
		for (uint32_t i = 0; i < count; i++, set = (set + 1) % sets) {
			memcpy(query, tree->keys[2][set], CYCLE_CACHED * sizeof(*query));
			bench_new_keys(query + CYCLE_CACHED, CYCLE_NEW);
			cycle_once(target, query, target->core ? &samples : &sent);
			if (target->core)
				continue;
			bench_new_keys(query + CYCLE_CACHED, CYCLE_NEW);
			seq_once(target, (struct kvt_handle){ 0, 0, 0 }, query, &samples);
			bench_new_keys(query + CYCLE_CACHED, CYCLE_NEW);
			seq_once(target, last_turn(target, query), query, &next);
		}
	}
	bench_floor_stop(floor);
	free(query);
	summary = bench_samples_take(&floors);
	emit_cycle(target, tree, "cycle", &samples, &summary);
	if (target->core)
		return;
	emit_cycle(target, tree, "cycle_next", &next, &summary);
	emit_cycle(target, tree, "cycle_sent", &sent, &summary);
}
