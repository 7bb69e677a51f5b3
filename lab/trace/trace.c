/* SPDX-License-Identifier: Apache-2.0 */

/* Loading a trace: serving order, bursts, the limit on context, keys.
 *
 * Inputs: the requests of a reader or the generator. Invariants: `previous` is earlier in serving
 * order; keys follow from the seed and identities alone, so equal prefixes give equal keys.
 * Callers: replay, chaos, the benchmarks. */

#include "lab/trace/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/trace/read.h"

#define DEFAULT_USERS 16u
#define DEFAULT_SESSIONS 64u

/* Part of the key function: heads, blocks, tails and answers of the same numbers differ. */
enum key_kind {
	KIND_HEAD = 1,
	KIND_BLOCK = 2,
	KIND_TAIL = 3,
	KIND_OUTPUT = 4,
};

int kvt_trace_format_parse(const char *name, uint32_t *ret_format)
{
	static const char *const names[] = { "mooncake", "agent", "jsonl", "generate", "any" };

	for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (!strcmp(name, names[i])) {
			*ret_format = i;
			return 0;
		}
	}
	return -EINVAL;
}

/* ---- serving order ---- */

/* Sessions as ranges of the file's requests, each sorted by time. */
struct session_range {
	uint32_t first;
	uint32_t count;
};

/* One active user: its place, and when its next request is due. */
struct user {
	uint64_t due_us;
	uint32_t session;
	uint32_t next; /* inside the session */
	uint32_t last; /* place in serving order of its previous request */
};

static int by_session_and_time(const void *a, const void *b)
{
	const struct kvt_trace_request *x = a, *y = b;

	if (x->session != y->session)
		return x->session < y->session ? -1 : 1;
	if (x->at_us != y->at_us)
		return x->at_us < y->at_us ? -1 : 1;
	return x->line < y->line ? -1 : 1;
}

static bool user_before(const struct user *users, uint32_t a, uint32_t b)
{
	if (users[a].due_us != users[b].due_us)
		return users[a].due_us < users[b].due_us;
	return a < b;
}

static void heap_sift(uint32_t *heap, uint32_t n, const struct user *users, uint32_t at)
{
	for (;;) {
		uint32_t child = at * 2 + 1, keep = heap[at];

		if (child >= n)
			return;
		if (child + 1 < n && user_before(users, heap[child + 1], heap[child]))
			child++;
		if (!user_before(users, heap[child], keep))
			return;
		heap[at] = heap[child];
		heap[child] = keep;
		at = child;
	}
}

/* Advance the earliest user: send its request, then move its due time by the capped gap. After a
 * session it starts the file's next one at once. False: no session is left. */
static bool user_advance(struct user *user, const struct session_range *sessions,
			 uint32_t n_sessions, uint32_t *next_session,
			 const struct kvt_trace_request *requests)
{
	const struct session_range *range = &sessions[user->session];
	uint64_t gap;

	if (++user->next == range->count) {
		if (*next_session == n_sessions)
			return false;
		user->session = (*next_session)++;
		user->next = 0;
		return true;
	}
	gap = requests[range->first + user->next].at_us -
	      requests[range->first + user->next - 1].at_us;
	user->due_us += gap < KVT_TRACE_GAP_US ? gap : KVT_TRACE_GAP_US;
	return true;
}

static int order_by_users(struct kvt_trace *trace, uint32_t n_users)
{
	uint32_t n = trace->n_requests, n_sessions = trace->n_sessions, next_session = 0, done = 0;
	struct kvt_trace_request *ordered = calloc(n ? n : 1, sizeof(*ordered));
	struct session_range *sessions = calloc(n_sessions ? n_sessions : 1, sizeof(*sessions));
	struct user *users = calloc(n_users, sizeof(*users));
	uint32_t *heap = calloc(n_users, sizeof(*heap)), heap_n = 0;
	int rc = ordered && sessions && users && heap ? 0 : -ENOMEM;

	if (rc)
		goto out;
	qsort(trace->requests, n, sizeof(*ordered), by_session_and_time);
	for (uint32_t i = 0; i < n; i++) {
		struct session_range *range = &sessions[trace->requests[i].session];

		if (!range->count++)
			range->first = i;
	}
	for (uint32_t u = 0; u < n_users && next_session < n_sessions; u++) {
		users[u] = (struct user){ .session = next_session++, .last = KVT_TRACE_NONE };
		heap[heap_n++] = u;
	}
	while (heap_n) {
		struct user *user = &users[heap[0]];
		struct kvt_trace_request *request = &ordered[done];

		*request = trace->requests[sessions[user->session].first + user->next];
		request->user = heap[0];
		request->at_us = user->due_us;
		request->previous = user->last;
		user->last = done++;
		if (!user_advance(user, sessions, n_sessions, &next_session, trace->requests))
			heap[0] = heap[--heap_n];
		heap_sift(heap, heap_n, users, 0);
	}
	free(trace->requests);
	trace->requests = ordered;
	ordered = NULL;
out:
	free(ordered);
	free(sessions);
	free(users);
	free(heap);
	return rc;
}

/* ---- bursts ---- */

/* Make a twin of a sub-agent's first request: the same context, then a task of its own. */
static void make_twin(struct kvt_trace *trace, const struct kvt_trace_request *from, uint32_t line,
		      struct kvt_trace_request *twin)
{
	uint32_t own = from->input / 2 < KVT_TRACE_OWN_POSITIONS ? from->input / 2 :
								   KVT_TRACE_OWN_POSITIONS;

	*twin = *from;
	twin->line = line;
	twin->stream = trace->n_streams++;
	if (twin->covered > twin->input - own)
		twin->covered = twin->input - own;
	if (twin->head > twin->covered)
		twin->head = twin->covered;
}

/* True if a request begins a stream other than its session's first. `seen`: streams, then
 * sessions. */
static bool starts_helper(const struct kvt_trace_request *request, uint8_t *seen,
			  uint32_t n_streams)
{
	bool first = !seen[request->stream], main = !seen[n_streams + request->session];

	seen[request->stream] = seen[n_streams + request->session] = 1;
	return first && !main;
}

/* Start sub-agents `bursts` at a time: that of the trace, and twins right behind it. */
static int add_bursts(struct kvt_trace *trace, uint32_t bursts)
{
	uint32_t n = trace->n_requests, done = 0, line = 0, n_streams = trace->n_streams;
	struct kvt_trace_request *all = calloc((size_t)n * bursts + 1, sizeof(*all));
	uint8_t *seen = calloc((size_t)n_streams + trace->n_sessions + 1, 1);
	uint32_t *place = calloc((size_t)n + 1, sizeof(*place));
	int rc = all && seen && place ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < n; i++)
		line = trace->requests[i].line > line ? trace->requests[i].line : line;
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct kvt_trace_request *request = &trace->requests[i];

		if (request->previous != KVT_TRACE_NONE)
			request->previous = place[request->previous];
		place[i] = done;
		all[done++] = *request;
		if (!starts_helper(request, seen, n_streams))
			continue;
		all[done - 1].burst = request->burst = bursts;
		for (uint32_t twin = 1; twin < bursts; twin++)
			make_twin(trace, request, ++line, &all[done++]);
	}
	free(seen);
	free(place);
	if (rc) {
		free(all);
		return rc;
	}
	free(trace->requests);
	trace->requests = all;
	trace->n_requests = done;
	return 0;
}

/* ---- loading ---- */

/* Renumber sessions: those that lost all requests to the context limit would be empty ranges. */
static int renumber(struct kvt_trace *trace)
{
	uint32_t *number = malloc((trace->n_sessions + 1) * sizeof(*number));
	uint32_t n = 0;

	if (!number)
		return -ENOMEM;
	memset(number, 0xff, (trace->n_sessions + 1) * sizeof(*number));
	for (uint32_t i = 0; i < trace->n_requests; i++) {
		uint32_t *session = &trace->requests[i].session;

		if (number[*session] == KVT_TRACE_NONE)
			number[*session] = n++;
		*session = number[*session];
	}
	trace->n_sessions = n;
	free(number);
	return 0;
}

static void leave_out_long(struct kvt_trace *trace, uint32_t context)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < trace->n_requests; i++) {
		const struct kvt_trace_request *request = &trace->requests[i];

		if (context && (uint64_t)request->input + request->output > context)
			continue;
		trace->requests[kept++] = *request;
	}
	trace->left_out = trace->n_requests - kept;
	trace->n_requests = kept;
}

static int finish(struct kvt_trace *trace, const struct kvt_trace_options *options)
{
	bool users = trace->format == KVT_TRACE_AGENT || trace->format == KVT_TRACE_GENERATE;
	int rc;

	leave_out_long(trace, options->context);
	rc = renumber(trace);
	if (rc)
		return rc;
	if (users) {
		trace->n_users = options->users ? options->users : DEFAULT_USERS;
		rc = order_by_users(trace, trace->n_users);
		if (rc)
			return rc;
	}
	if (options->requests && options->requests < trace->n_requests)
		trace->n_requests = options->requests;
	if (users && options->bursts > 1) {
		rc = add_bursts(trace, options->bursts);
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < trace->n_requests; i++) {
		const struct kvt_trace_request *request = &trace->requests[i];

		trace->input_positions += request->input;
		if (request->input > trace->max_input)
			trace->max_input = request->input;
		if (request->output > trace->max_output)
			trace->max_output = request->output;
	}
	return 0;
}

/* Refuse options that the format, which may be known only now, has no use for. */
static int check_format(const struct kvt_trace *trace, const struct kvt_trace_options *options,
			char *why, size_t why_bytes)
{
	bool agents = trace->format == KVT_TRACE_AGENT || trace->format == KVT_TRACE_GENERATE;
	const char *wrong = NULL;

	if (options->bursts > 1 && !agents)
		wrong = "--bursts is for traces with sub-agents: agent or generate";
	if (options->block && trace->format != KVT_TRACE_AGENT &&
	    trace->format != KVT_TRACE_MOONCAKE)
		wrong = "--block-size is for traces with block ids: mooncake or agent";
	if (options->users && !agents)
		wrong = "--users is for traces of sessions: agent or generate";
	if (options->sessions && trace->format != KVT_TRACE_GENERATE)
		wrong = "--sessions is of --format generate";
	if (wrong)
		snprintf(why, why_bytes, "%s", wrong);
	return wrong ? -EINVAL : 0;
}

int kvt_trace_load(const struct kvt_trace_options *options, struct kvt_trace **ret_trace,
		   char *why, size_t why_bytes)
{
	struct kvt_trace_builder builder = { 0 };
	struct kvt_trace *trace = calloc(1, sizeof(*trace));
	int rc;

	if (!trace)
		return -ENOMEM;
	trace->seed = options->seed;
	trace->format = options->format;
	trace->block = KVT_TRACE_GENERATED_BLOCK;
	if (options->format == KVT_TRACE_GENERATE)
		rc = kvt_trace_generate(&builder, options->seed,
					options->sessions ? options->sessions : DEFAULT_SESSIONS);
	else
		rc = kvt_trace_read(trace, &builder, options, why, why_bytes);
	trace->literal = trace->format == KVT_TRACE_JSONL;
	if (!rc)
		rc = check_format(trace, options, why, why_bytes);
	trace->requests = builder.requests;
	trace->runs = builder.runs;
	trace->n_requests = builder.n_requests;
	trace->n_runs = builder.n_runs;
	trace->n_sessions = builder.n_sessions;
	trace->n_streams = builder.n_streams;
	trace->n_heads = builder.n_heads;
	if (!rc)
		rc = finish(trace, options);
	if (rc == -ENOMEM)
		snprintf(why, why_bytes, "out of memory while loading the trace");
	if (rc) {
		kvt_trace_free(trace);
		return rc;
	}
	*ret_trace = trace;
	return 0;
}

void kvt_trace_free(struct kvt_trace *trace)
{
	if (!trace)
		return;
	free(trace->requests);
	free(trace->runs);
	free(trace->unread);
	free(trace);
}

void kvt_trace_say_unread(const struct kvt_trace *trace)
{
	if (trace->unread)
		fprintf(stderr, "%s\n", trace->unread);
}

/* ---- keys ---- */

static uint64_t identity(const struct kvt_trace *trace, enum key_kind kind, uint64_t scope,
			 uint64_t id)
{
	return kvt_trace_mix(kvt_trace_mix(trace->seed ^ ((uint64_t)kind << 56) ^ scope) ^ id);
}

/* Text keys have the top bit clear. */
static uint32_t key_at(uint64_t who, uint32_t place)
{
	return (uint32_t)(kvt_trace_mix(who + place) >> 33);
}

static void fill(uint64_t who, uint32_t place, uint32_t n, uint32_t *ret_keys)
{
	for (uint32_t i = 0; i < n; i++)
		ret_keys[i] = key_at(who, place + i);
}

/* Write the keys of positions [from, to), which the runs must cover. */
static void block_keys(const struct kvt_trace *trace, const struct kvt_trace_request *request,
		       uint32_t from, uint32_t to, uint32_t *ret_keys)
{
	uint32_t block = trace->block, run = request->first_run, start = 0;

	for (uint32_t at = from; at < to;) {
		uint32_t index = at / block, place = at % block, n = block - place, id;

		while (index - start >= trace->runs[run].count)
			start += trace->runs[run++].count;
		if (n > to - at)
			n = to - at;
		id = trace->runs[run].first + (index - start);
		if (trace->literal)
			ret_keys[at - from] = id;
		else
			fill(identity(trace, KIND_BLOCK, request->scope, id), place, n,
			     ret_keys + (at - from));
		at += n;
	}
}

void kvt_trace_keys(const struct kvt_trace *trace, const struct kvt_trace_request *request,
		    uint32_t from, uint32_t to, uint32_t *ret_keys)
{
	uint32_t at = from, end;

	if (at < request->head) {
		end = to < request->head ? to : request->head;
		fill(identity(trace, KIND_HEAD, 0, request->head_id), at, end - at, ret_keys);
		at = end;
	}
	if (at < to && at < request->covered) {
		end = to < request->covered ? to : request->covered;
		block_keys(trace, request, at, end, ret_keys + (at - from));
		at = end;
	}
	if (at < to)
		fill(identity(trace, KIND_TAIL, request->scope, request->line), at, to - at,
		     ret_keys + (at - from));
}

void kvt_trace_output_keys(const struct kvt_trace *trace, const struct kvt_trace_request *request,
			   uint32_t from, uint32_t to, uint32_t *ret_keys)
{
	fill(identity(trace, KIND_OUTPUT, request->scope, request->line), from, to - from,
	     ret_keys);
}

/* Count the leading ids that two lists of runs share. */
static uint64_t common_ids(const struct kvt_trace *trace, const struct kvt_trace_request *a,
			   const struct kvt_trace_request *b)
{
	uint32_t i = 0, j = 0, in_x = 0, in_y = 0;
	uint64_t ids = 0;

	while (i < a->n_runs && j < b->n_runs) {
		const struct kvt_trace_run *x = &trace->runs[a->first_run + i];
		const struct kvt_trace_run *y = &trace->runs[b->first_run + j];
		uint32_t left_x = x->count - in_x, left_y = y->count - in_y;
		uint32_t n = left_x < left_y ? left_x : left_y;

		if (x->first + in_x != y->first + in_y)
			break;
		ids += n;
		in_x += n;
		in_y += n;
		if (in_x == x->count) {
			i++;
			in_x = 0;
		}
		if (in_y == y->count) {
			j++;
			in_y = 0;
		}
	}
	return ids;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint32_t kvt_trace_common(const struct kvt_trace *trace, const struct kvt_trace_request *a,
			  const struct kvt_trace_request *b)
{
	uint32_t limit = min_u32(min_u32(a->covered, a->input), min_u32(b->covered, b->input));
	uint32_t common = 0;
	uint64_t blocks;

	if (a->head || b->head) {
		if (a->head_id != b->head_id || a->head != b->head)
			return a->head_id == b->head_id ? min_u32(a->head, b->head) : 0;
		common = min_u32(a->head, limit);
	}
	if (a->scope != b->scope)
		return common;
	blocks = common_ids(trace, a, b) * trace->block;
	if (blocks > common)
		common = blocks < limit ? (uint32_t)blocks : limit;
	return common;
}
