/* SPDX-License-Identifier: Apache-2.0 */

/* The trees that figures are measured on: fresh ones of distinct prefixes, and what a replay
 * leaves.
 *
 * Inputs: a target, a trace. Invariant: a prefix in struct bench_tree is wholly cached. Caller:
 * main.c. */

#include "kvtrunk_wire_admin.h"
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lab/trace/context.h"

#define CHUNK 512u
#define QUICK_REQUESTS 3000u
#define IDLE_BUDGET 256u /* steps of background work between two requests, core target */
#define CONTEXTS 64u

const uint32_t bench_sizes[BENCH_SIZES] = { 64, 1024, 4096, 32768, 131072 };
static const uint32_t fresh_sets[BENCH_SIZES] = { 16, 16, 16, 4, 2 };

void bench_new_keys(uint32_t *keys, uint32_t n)
{
	static uint64_t counter;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = (uint32_t)(kvt_trace_mix(++counter) >> 33);
}

static bool commit(struct bench_target *target, struct kvt_lease lease, uint32_t computed,
		   bool chunked, uint32_t *ret_next)
{
	struct kvt_request request = { .op = KVT_OP_COMMIT, .lease = lease, .arg = computed,
				       .flags = chunked ? KVT_F_CHUNKED : 0, .fence = KVT_IDLE };
	struct kvt_result result;

	if (bench_try(target, &request, &result))
		return false;
	*ret_next = result.next;
	bench_release(target, &result);
	return true;
}

bool bench_cache(struct bench_target *target, const uint32_t *keys, uint32_t n, uint32_t chunk,
		 uint32_t *ret_reusable, uint32_t *ret_path_nodes)
{
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = target->namespace_id,
				     .keys = keys, .n_keys = n };
	struct kvt_request end = { .op = KVT_OP_END, .fence = KVT_IDLE };
	struct kvt_result result;
	uint32_t next, to;

	if (bench_try(target, &begin, &result))
		return false;
	if (ret_reusable)
		*ret_reusable = result.reusable;
	if (ret_path_nodes && target->core)
		*ret_path_nodes = kvt_core_effort(target->core)->path_nodes;
	end.lease = result.lease;
	next = result.reusable;
	bench_release(target, &result);
	while (next < n) {
		to = chunk && n - next > chunk ? next + chunk : n;
		if (!commit(target, end.lease, to, to < n, &next))
			bench_die("commit failed while a tree was built");
	}
	bench_prepare(target, &end);
	bench_run(target, &end, &result);
	bench_release(target, &result);
	return true;
}

void bench_tree_fresh(struct bench_target *target, struct bench_tree *tree)
{
	memset(tree, 0, sizeof(*tree));
	tree->name = "fresh";
	for (uint32_t size = 0; size < BENCH_SIZES; size++) {
		uint32_t n = bench_sizes[size];

		for (uint32_t i = 0; i < fresh_sets[size]; i++) {
			uint32_t *keys = bench_alloc(n, sizeof(*keys));

			bench_new_keys(keys, n);
			if (!bench_cache(target, keys, n, 0, NULL, NULL))
				bench_die("the fresh tree does not fit the pool");
			tree->keys[size][tree->n_sets[size]++] = keys;
		}
	}
}

void bench_tree_free(struct bench_tree *tree)
{
	for (uint32_t size = 0; size < BENCH_SIZES; size++) {
		for (uint32_t i = 0; i < tree->n_sets[size]; i++)
			free(tree->keys[size][i]);
	}
	memset(tree, 0, sizeof(*tree));
}

/* ---- the tree after a replay ---- */

struct replay {
	struct kvt_trace *trace;
	struct kvt_context contexts[CONTEXTS];
	uint32_t streams[CONTEXTS];
	uint64_t input, hits;
	uint32_t refused;
	uint32_t *path_nodes; /* by request */
	uint32_t n_path_nodes;
};

static struct kvt_trace *load_trace(const struct bench_options *options, const char **ret_what)
{
	struct kvt_trace_options trace_options = { .format = KVT_TRACE_AGENT, .users = 16 };
	struct kvt_trace *trace;
	char path[4096], why[512] = "";

	snprintf(path, sizeof(path), "%s/agent_sessions.jsonl.gz", options->data);
	*ret_what = "agent trace";
	trace_options.path = path;
	if (access(path, R_OK)) {
		trace_options.format = KVT_TRACE_GENERATE;
		trace_options.sessions = 355;
		*ret_what = "generated agent trace";
	}
	if (options->quick)
		trace_options.requests = QUICK_REQUESTS;
	if (kvt_trace_load(&trace_options, &trace, why, sizeof(why)))
		bench_die("%s", why);
	return trace;
}

static struct kvt_context *find_context(struct replay *replay, uint32_t stream, uint64_t now)
{
	uint32_t oldest = 0;

	for (uint32_t i = 0; i < CONTEXTS; i++) {
		if (replay->contexts[i].request && replay->streams[i] == stream) {
			replay->contexts[i].used = now;
			return &replay->contexts[i];
		}
		if (replay->contexts[i].used < replay->contexts[oldest].used)
			oldest = i;
	}
	replay->contexts[oldest].request = NULL;
	replay->contexts[oldest].used = now;
	replay->streams[oldest] = stream;
	return &replay->contexts[oldest];
}

static void replay_one(struct bench_target *target, struct replay *replay, uint32_t index)
{
	const struct kvt_trace_request *request = &replay->trace->requests[index];
	struct kvt_context *context = find_context(replay, request->stream, index + 1);
	uint32_t reusable = 0, path_nodes = 0;

	if (kvt_context_load(context, replay->trace, request, 0, false, NULL))
		bench_die("out of memory");
	replay->input += request->input;
	if (!bench_cache(target, context->keys, request->input, CHUNK, &reusable, &path_nodes)) {
		replay->refused++;
		return;
	}
	replay->hits += reusable;
	if (reusable)
		replay->path_nodes[replay->n_path_nodes++] = path_nodes;
	bench_idle(target, IDLE_BUDGET);
}

/* Pick distinct, wholly cached prefixes of n keys, of the most recent requests first. */
static void pick_prefixes(struct bench_target *target, struct replay *replay,
			  struct bench_tree *tree, uint32_t size)
{
	uint32_t n = bench_sizes[size], *keys = bench_alloc(n, sizeof(*keys));

	for (uint32_t i = replay->trace->n_requests; i-- > 0 && tree->n_sets[size] <
	     fresh_sets[size];) {
		const struct kvt_trace_request *request = &replay->trace->requests[i];
		struct kvt_request match = { .op = KVT_OP_MATCH, .flags = KVT_F_NO_TOUCH,
					     .namespace_id = target->namespace_id,
					     .keys = keys, .n_keys = n };
		struct kvt_result result;
		bool known = false;

		if (request->input < n)
			continue;
		kvt_trace_keys(replay->trace, request, 0, n, keys);
		for (uint32_t j = 0; j < tree->n_sets[size] && !known; j++)
			known = !memcmp(tree->keys[size][j], keys, n * sizeof(*keys));
		if (known)
			continue;
		bench_prepare(target, &match);
		bench_run(target, &match, &result);
		bench_release(target, &result);
		if (result.matched != n)
			continue;
		tree->keys[size][tree->n_sets[size]++] = keys;
		keys = bench_alloc(n, sizeof(*keys));
	}
	free(keys);
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Report the nodes per path. The core target sees every BEGIN; the daemon keeps recent ones. */
static void report_path_nodes(struct bench_target *target, struct replay *replay)
{
	uint32_t n = replay->n_path_nodes, p50, p99;

	if (target->core) {
		qsort(replay->path_nodes, n, sizeof(uint32_t), compare);
		p50 = n ? replay->path_nodes[n / 2] : 0;
		p99 = n ? replay->path_nodes[(uint32_t)(0.99 * n)] : 0;
	} else {
		struct kvt_admin_status status;
		struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };

		if (kvt_admin(target->client, &request, NULL, 0, &status, sizeof(status)) < 1)
			bench_die("status: %s", kvt_client_error(target->client)->text);
		p50 = status.path_nodes_p50;
		p99 = status.path_nodes_p99;
	}
	bench_line("nodes_per_path", "\"tree\":\"replayed\",\"target\":\"%s\","
		   "\"p50\":%u,\"p99\":%u,\"aim\":16",
		   target->core ? "core, every request" : "daemon", p50, p99);
	bench_aim("nodes per matched path, p99", p99, "", 16, false);
}

void bench_tree_replayed(struct bench_target *target, struct bench_tree *tree)
{
	struct replay *replay = bench_alloc(1, sizeof(*replay));
	uint64_t started = kvt_now_ns();
	const char *what;

	memset(tree, 0, sizeof(*tree));
	tree->name = "replayed";
	replay->trace = load_trace(target->options, &what);
	replay->path_nodes = bench_alloc(replay->trace->n_requests, sizeof(uint32_t));
	for (uint32_t i = 0; i < replay->trace->n_requests; i++)
		replay_one(target, replay, i);
	bench_line("replayed_tree", "\"trace\":\"%s\",\"requests\":%u,\"chunk\":%u,"
		   "\"hit_rate\":%.4f,\"refused\":%u,\"pause_us\":200,\"seconds\":%.1f", what,
		   replay->trace->n_requests, CHUNK,
		   (double)replay->hits / (double)replay->input, replay->refused,
		   (double)(kvt_now_ns() - started) / 1e9);
	report_path_nodes(target, replay);
	for (uint32_t size = 0; size < BENCH_SIZES; size++)
		pick_prefixes(target, replay, tree, size);
	for (uint32_t i = 0; i < CONTEXTS; i++)
		kvt_context_free(&replay->contexts[i]);
	kvt_trace_free(replay->trace);
	free(replay->path_nodes);
	free(replay);
}
