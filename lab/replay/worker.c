/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file worker.c
 * One replay worker: an inference process with patterns in place of KV.
 *
 * Inputs: the shared mapping, the options, its number. Invariants: every reused byte is compared
 * with its pattern; nothing is published that was not written. Caller: crew.c, in the forked child.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/path.h"
#include "base/store.h"
#include "kvtrunk_fetch.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_wire_arena.h"
#include "lab/replay/points.h"
#include "lab/replay/replay.h"
#include "lab/replay/steps.h"
#include "lab/trace/context.h"
#include "libclient/state.h"
#include "shm/atomic.h"
#include "shm/clock.h"

#define EXTRA_CONTEXTS 32u
#define END_SAMPLES 16u /* pages of the path checked before END */
#define ERRORS_SHOWN 3u
#define FETCH_LOOK_NS 20000l /* between two looks for its answer */
#define COPY_WAIT_NS 1000000000ll /* for a store that copies what one request left */

struct run {
	uint32_t index; /* KVT_TRACE_NONE: free */
	const struct kvt_trace_request *request;
	struct kvt_context *context;
	struct kvt_lease lease;
	uint32_t next;     /* position to compute */
	uint32_t reusable; /* at BEGIN */
	int64_t asked_ns;  /* when it was claimed */
	bool begun;
	bool stale;    /* its path is detached: decode on, publish nothing */
	bool full;     /* no more pages for the answer */
	uint32_t *table;
	uint32_t n_table;
	uint32_t capacity;
	struct kvt_points points; /* its side pages, where pages have sides */
};

struct worker {
	const struct kvt_replay_options *options;
	const struct kvt_trace *trace;
	struct kvt_replay_shared *shared;
	struct kvt_replay_worker *mine;
	uint32_t number;
	struct kvt_client *client;
	char store_path[KVT_STORE_PATH_BYTES]; /* of its instance; "": wait for no store */
	char *piece; /* page 0's start: the page, or its first piece in layer-major order */
	uint64_t piece_stride;
	uint32_t page_size;
	uint32_t page_words; /* words of a page that are used */
	uint32_t n_sides;
	uint32_t *namespaces;
	struct run runs[KVT_REPLAY_MAX_CONCURRENCY];
	uint32_t n_active;
	struct kvt_context *contexts;
	uint32_t *streams;
	uint32_t n_contexts;
	uint64_t clock;
};

static __attribute__((noreturn)) void fail(struct worker *worker, const char *what)
{
	const char *why = worker->client ? kvt_client_error(worker->client)->text : "";

	fprintf(stderr, "kvtlab replay: worker %u: %s%s%s\n", worker->number, what,
		*why ? ": " : "", why);
	worker->mine->failed = 1;
	_exit(1);
}

/* ---- patterns ---- */

/* Return the word of a position. A page holds the words of its last `page_words` positions, each at
 * its place modulo that: with room for all, one word a position. */
static uint64_t *word_at(struct worker *worker, uint32_t page, uint32_t position)
{
	uint64_t *words = (uint64_t *)(worker->piece + page * worker->piece_stride);

	return &words[position % worker->page_size % worker->page_words];
}

static void fill(struct worker *worker, struct run *run, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		*word_at(worker, run->table[i / worker->page_size], i) = run->context->words[i];
}

static void wrong_page(struct worker *worker, struct run *run, uint32_t page_index, uint32_t from,
		       uint32_t to)
{
	if (worker->mine->pattern_errors++ >= ERRORS_SHOWN)
		return;
	for (uint32_t i = from; i < to; i++) {
		uint64_t found = *word_at(worker, run->table[page_index], i);

		if (found == run->context->words[i])
			continue;
		fprintf(stderr, "kvtlab replay: WRONG PATTERN: worker %u, request %u, position %u, "
			"page %u: %016llx instead of %016llx\n", worker->number, run->index, i,
			run->table[page_index], (unsigned long long)found,
			(unsigned long long)run->context->words[i]);
		return;
	}
}

/* Compare positions [from, to) of one page in all of its used bytes. */
static void verify_part(struct worker *worker, struct run *run, uint32_t page_index,
			uint32_t from, uint32_t to)
{
	uint32_t end = (page_index + 1) * worker->page_size;
	bool good = true;

	if (end - worker->page_words > from && worker->page_words < worker->page_size)
		from = end - worker->page_words; /* older ones were overwritten */
	if (worker->page_words == worker->page_size) {
		good = !memcmp(word_at(worker, run->table[page_index], from),
			       &run->context->words[from], (to - from) * sizeof(uint64_t));
	} else {
		for (uint32_t i = from; i < to; i++)
			good &= *word_at(worker, run->table[page_index], i) ==
				run->context->words[i];
	}
	worker->mine->verified_pages++;
	if (!good)
		wrong_page(worker, run, page_index, from, to);
}

static void verify_pages(struct worker *worker, struct run *run, uint32_t from_page,
			 uint32_t to_page)
{
	if (!worker->options->verify)
		return;
	for (uint32_t i = from_page; i < to_page; i++)
		verify_part(worker, run, i, i * worker->page_size, (i + 1) * worker->page_size);
}

/* Return the word of a side page: of the last position in front of it, and of its kind. */
static uint64_t side_word(const struct worker *worker, const struct run *run, uint32_t index,
			  uint32_t kind)
{
	return kvt_trace_mix(run->context->words[(index + 1) * worker->page_size - 1] + kind);
}

/* Compare the side pages that BEGIN gave. */
static void verify_sides(struct worker *worker, struct run *run, const struct kvt_result *result)
{
	const struct kvt_info *info = kvt_client_info(worker->client);
	uint32_t end = run->reusable / worker->page_size, at = 0;

	for (uint32_t kind = 0; kind < info->n_sides && worker->options->verify; kind++) {
		uint32_t n = info->side_pages[kind] < end ? info->side_pages[kind] : end;

		for (uint32_t index = end - n; index < end; index++, at++) {
			worker->mine->verified_pages++;
			if (at < result->n_sides &&
			    *word_at(worker, result->sides[at], 0) ==
				    side_word(worker, run, index, kind))
				continue;
			if (worker->mine->pattern_errors++ < ERRORS_SHOWN)
				fprintf(stderr, "kvtlab replay: WRONG PATTERN: worker %u, request "
					"%u, side page %u of page %u\n", worker->number,
					run->index, kind, index);
		}
	}
}

/* ---- calls ---- */

static int timed_call(struct worker *worker, uint32_t op, const struct kvt_request *request,
		      struct kvt_result *ret_result)
{
	int64_t start = kvt_now_ns();
	int rc = kvt_call(worker->client, request, ret_result);

	if (rc == -ECONNRESET || rc == -EPROTO)
		fail(worker, "lost the daemon");
	kvt_latency_add(&worker->mine->latency[op], (uint64_t)(kvt_now_ns() - start));
	return rc;
}

/* Append the pages of an answer to the table. */
static void append_pages(struct worker *worker, struct run *run, const struct kvt_result *result)
{
	uint32_t n = run->n_table + result->n_pages, *larger;

	if (n > run->capacity) {
		larger = realloc(run->table, (n + n / 4 + 64) * sizeof(*larger));
		if (!larger)
			fail(worker, "out of memory");
		run->table = larger;
		run->capacity = n + n / 4 + 64;
	}
	if (result->n_pages)
		memcpy(run->table + run->n_table, result->pages,
		       result->n_pages * sizeof(*run->table));
	run->n_table = n;
}

/* Count the nodes from the match's end up to the root. Our lease locks the path, but two of its
 * nodes may merge meanwhile, which shortens or ends the count. */
static void count_path(struct worker *worker, const struct kvt_result *result)
{
	const struct kvt_arena_view *arena = &worker->client->arena;
	uint32_t node = result->handle.node, n = 0;

	if (!arena->base || !result->matched)
		return;
	while (node && node < arena->max_nodes && n < KVT_REPLAY_MAX_NODES - 1) {
		if (kvt_load_relaxed(&arena->nodes[node].flags) & KVT_NODE_ROOT)
			break;
		node = kvt_load_relaxed(&arena->nodes[node].parent);
		n++;
	}
	worker->mine->path_nodes[n]++;
}

/* Return how many positions of these keys are cached now, up to BEGIN's limit. */
static uint32_t present(struct worker *worker, const struct run *run)
{
	struct kvt_result result;
	uint32_t matched;

	if (kvt_match(worker->client,
		      worker->namespaces[run->request->session % worker->options->n_namespaces],
		      run->context->keys, run->request->input, KVT_F_NO_TOUCH, &result))
		return 0;
	matched = result.matched;
	kvt_result_release(worker->client, &result);
	return matched && matched == run->request->input ? matched - worker->page_size : matched;
}

/* ---- the life of a request ---- */

/* Wait until the store has copied what was computed. It answers and then takes the daemon's
 * records, so the second such answer in turn knows of all that came before the first. */
static void await_copies(struct worker *worker)
{
	int64_t until = kvt_now_ns() + COPY_WAIT_NS;
	uint32_t times = 0;

	while (times < 2 && kvt_now_ns() < until) {
		struct kvt_store_seen seen;
		struct kvt_error why;

		if (kvt_store_ask(worker->store_path, KVT_STORE_STATUS, COPY_WAIT_NS, &seen, &why))
			return; /* the replay's end tells of a store that is gone */
		times = seen.status.queued_pages == 0 ? times + 1 : 0;
	}
}

static void finish(struct worker *worker, struct run *run, uint32_t state)
{
	if (*worker->store_path)
		await_copies(worker);
	kvt_replay_settle(worker->shared, run->index, state);
	run->index = KVT_TRACE_NONE;
	run->context->used = ++worker->clock;
	worker->n_active--;
}

static void begin_points(struct worker *worker, struct run *run, const struct kvt_result *result)
{
	const struct kvt_replay_options *options = worker->options;
	uint32_t ps = worker->page_size;
	struct kvt_points_rule rule = {
		.every = options->points_all ? 1 : (options->points_every + ps - 1) / ps,
		.drop = options->points_drop,
	};

	if (kvt_points_begin(&run->points, worker->client, &rule, result->reusable / ps,
			     result->matched / ps, run->request->input / ps))
		fail(worker, "out of memory");
}

/* Have the store load what the pool lacks, and let BEGIN wait for it as long as engines do. */
static void fetch(struct worker *worker, struct kvt_request *begin)
{
	const struct timespec pause = { .tv_nsec = FETCH_LOOK_NS };
	struct kvt_fetched fetched = { .positions = 0 };
	int rc = kvt_fetch(worker->client, begin);

	if (rc == 1)
		while ((rc = kvt_fetch_poll(worker->client, &fetched)) == 0)
			nanosleep(&pause, NULL);
	if (rc < 0 || !fetched.positions)
		return; /* BEGIN tells if the daemon is gone */
	begin->flags |= KVT_F_WAIT;
	begin->ttl_ms = begin->ttl_ms > fetched.wait_ms ? begin->ttl_ms : fetched.wait_ms;
}

static void begin(struct worker *worker, struct run *run)
{
	const struct kvt_trace_request *request = run->request;
	struct kvt_replay_slot *slot = &worker->shared->slots[run->index];
	struct kvt_request begin = {
		.op = KVT_OP_BEGIN, .keys = run->context->keys, .n_keys = request->input,
		.flags = (worker->options->force_miss ? KVT_F_FORCE_MISS : 0) |
			 (worker->options->coalesce_ms ? KVT_F_WAIT : 0),
		.ttl_ms = worker->options->coalesce_ms,
		.namespace_id = worker->namespaces[request->session %
						   worker->options->n_namespaces],
	};
	uint32_t could = worker->options->force_miss ? present(worker, run) : 0;
	struct kvt_result result = { 0 };
	int rc;

	if (worker->options->asks_store)
		fetch(worker, &begin);
	rc = timed_call(worker, KVT_REPLAY_BEGIN, &begin, &result);
	if (rc == -ENOSPC || rc == -EDQUOT) {
		slot->fallback = present(worker, run) > 0;
		kvt_store_relaxed(&slot->end_seq, result.seq);
		kvt_store_relaxed(&slot->begin_seq, result.seq);
		finish(worker, run, KVT_REPLAY_REFUSED);
		return;
	}
	if (rc)
		fail(worker, "BEGIN");
	kvt_store_relaxed(&slot->begin_seq, result.seq);
	slot->hit = result.reusable;
	slot->fallback = result.reusable < could;
	run->lease = result.lease;
	run->reusable = run->next = result.reusable;
	run->begun = true;
	worker->mine->matched_positions += result.matched;
	append_pages(worker, run, &result);
	count_path(worker, &result);
	if (worker->n_sides) {
		verify_sides(worker, run, &result);
		begin_points(worker, run, &result);
	}
	kvt_result_release(worker->client, &result);
	verify_pages(worker, run, 0, run->reusable / worker->page_size);
}

/* Take over the daemon's table. It replaced pages that others sealed first, maybe with pages beyond
 * ours; all must hold exactly what we would have computed. */
static void take_table(struct worker *worker, struct run *run, const struct kvt_result *result,
		       uint32_t from_page)
{
	uint32_t sealed = result->next / worker->page_size;

	for (uint32_t i = from_page; i < result->n_pages && i < run->n_table; i++) {
		if (run->table[i] == result->pages[i])
			continue;
		run->table[i] = result->pages[i];
		if (i < sealed)
			verify_pages(worker, run, i, i + 1);
		else
			fail(worker, "COMMIT changed a page that is still private");
	}
}

/* Use the one device, shared in order of request. No lock is held, so a worker may be killed
 * here. */
static void use_device(struct worker *worker, uint32_t positions)
{
	uint64_t *free_ns = &worker->shared->device_free_ns;
	uint64_t busy_ns, begins, now = (uint64_t)kvt_now_ns();
	struct timespec until;

	worker->mine->computed_positions += positions;
	if (!worker->options->prefill_rate)
		return;
	busy_ns = positions * 1000000000ull / worker->options->prefill_rate;
	do {
		begins = kvt_load_acquire(free_ns);
	} while (!kvt_replace_u64(free_ns, begins, (begins > now ? begins : now) + busy_ns));
	begins = (begins > now ? begins : now) + busy_ns;
	until = (struct timespec){ (time_t)(begins / 1000000000ull),
				   (long)(begins % 1000000000ull) };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

/* Compute the side pages of a step, and let its COMMIT publish them. */
static void compute_sides(struct worker *worker, struct run *run, uint32_t to,
			  struct kvt_request *commit)
{
	struct kvt_points *points = &run->points;

	if (kvt_points_step(points, to, worker->page_size))
		fail(worker, "ALLOC");
	for (uint32_t i = 0; i < points->n_pairs; i++) {
		const struct kvt_side *pair = &points->pairs[i];

		if (pair->page != KVT_NONE)
			*word_at(worker, pair->page, 0) =
				side_word(worker, run, KVT_SIDE_INDEX(pair->place),
					  KVT_SIDE_KIND(pair->place));
	}
	commit->flags |= KVT_F_KEEP | KVT_F_NO_LIST;
	commit->sides = points->pairs;
	commit->n_sides = points->n_pairs;
}

static void compute_chunk(struct worker *worker, struct run *run)
{
	uint32_t input = run->request->input, to = input, from_page = run->next / worker->page_size;
	struct kvt_request commit = { .op = KVT_OP_COMMIT, .lease = run->lease,
				      .fence = KVT_IDLE };
	struct kvt_result result;
	int rc;

	if (input - run->next > worker->options->chunk)
		to = run->next + worker->options->chunk;
	fill(worker, run, run->next, to);
	use_device(worker, to - run->next);
	if (run->stale) {
		run->next = to;
		return;
	}
	commit.arg = to;
	commit.flags = to < input ? KVT_F_CHUNKED : 0;
	if (worker->n_sides)
		compute_sides(worker, run, to, &commit);
	rc = timed_call(worker, KVT_REPLAY_COMMIT, &commit, &result);
	if (rc == -ESTALE) { /* an operator reset or removed it */
		run->stale = true;
		worker->mine->stale_commits++;
		run->next = to;
		return;
	}
	if (rc)
		fail(worker, "COMMIT");
	if (!worker->n_sides)
		take_table(worker, run, &result, from_page);
	else if (kvt_points_committed(&run->points, &result, to, worker->page_size))
		fail(worker, "FREE");
	worker->mine->look_on_positions += result.advanced;
	worker->mine->duplicates += result.duplicates;
	run->next = result.next;
	kvt_result_release(worker->client, &result);
}

/* Decode a few positions: get their pages and write them. */
static void decode_step(struct worker *worker, struct run *run)
{
	uint32_t total = run->request->input + run->request->output, room, to;
	uint32_t table = (total + worker->page_size - 1) / worker->page_size;
	struct kvt_request extend = { .op = KVT_OP_EXTEND, .lease = run->lease };
	struct kvt_result result;
	int rc;

	room = run->n_table * worker->page_size;
	if (room <= run->next) {
		extend.arg = table - run->n_table < KVT_REPLAY_EXTEND_PAGES ?
			     table - run->n_table : KVT_REPLAY_EXTEND_PAGES;
		rc = timed_call(worker, KVT_REPLAY_EXTEND, &extend, &result);
		if (rc == -ENOSPC || rc == -EDQUOT) {
			run->full = true;
			worker->mine->cut_short++;
			return;
		}
		if (rc)
			fail(worker, "EXTEND");
		append_pages(worker, run, &result);
		room = run->n_table * worker->page_size;
		kvt_result_release(worker->client, &result);
	}
	to = room < total ? room : total;
	fill(worker, run, run->next, to);
	run->next = to;
}

/* Check before END that our answer is intact and that held cached pages did not change. */
static void verify_end(struct worker *worker, struct run *run)
{
	uint32_t ps = worker->page_size, input = run->request->input, pages = input / ps;

	if (!worker->options->verify)
		return;
	for (uint32_t i = 0; i < END_SAMPLES && pages; i++) {
		uint32_t page = (uint32_t)(kvt_trace_mix(run->index * 64ull + i) % pages);

		verify_pages(worker, run, page, page + 1);
	}
	for (uint32_t at = pages * ps; at < run->next; at = (at / ps + 1) * ps)
		verify_part(worker, run, at / ps, at,
			    (at / ps + 1) * ps < run->next ? (at / ps + 1) * ps : run->next);
}

static void end(struct worker *worker, struct run *run)
{
	struct kvt_request end = { .op = KVT_OP_END, .lease = run->lease, .fence = KVT_IDLE };
	struct kvt_result result;

	verify_end(worker, run);
	if (worker->n_sides) {
		worker->mine->without_point += run->points.out;
		if (kvt_points_end(&run->points))
			fail(worker, "FREE");
	}
	if (timed_call(worker, KVT_REPLAY_END, &end, &result))
		fail(worker, "END");
	kvt_store_relaxed(&worker->shared->slots[run->index].end_seq, result.seq);
	kvt_result_release(worker->client, &result);
	finish(worker, run, KVT_REPLAY_DONE);
}

static void prefill(struct worker *worker, struct run *run)
{
	uint64_t took_ns;

	compute_chunk(worker, run);
	if (run->next < run->request->input)
		return;
	took_ns = (uint64_t)(kvt_now_ns() - run->asked_ns);
	kvt_latency_add(&worker->mine->latency[KVT_REPLAY_FIRST], took_ns);
	if (run->request->burst)
		kvt_latency_add(&worker->mine->latency[KVT_REPLAY_BURST], took_ns);
}

/* Run one step of a request, so that a worker's requests interleave chunk by chunk. */
static void step(struct worker *worker, struct run *run)
{
	if (!run->begun)
		begin(worker, run);
	else if (run->next < run->request->input)
		prefill(worker, run);
	else if (!run->full && run->next < run->request->input + run->request->output)
		decode_step(worker, run);
	else
		end(worker, run);
}

/* ---- which request is next ---- */

/* Take the stream's own context if no request uses it, else the least recently used one. */
static struct kvt_context *take_context(struct worker *worker, uint32_t stream)
{
	uint32_t oldest = KVT_TRACE_NONE;

	for (uint32_t i = 0; i < worker->n_contexts; i++) {
		struct kvt_context *context = &worker->contexts[i];

		if (context->used == UINT64_MAX) /* taken */
			continue;
		if (context->request && worker->streams[i] == stream) {
			oldest = i;
			break;
		}
		if (oldest == KVT_TRACE_NONE || context->used < worker->contexts[oldest].used)
			oldest = i;
	}
	KVT_ASSERT(oldest != KVT_TRACE_NONE); /* more contexts than runs */
	if (worker->streams[oldest] != stream)
		worker->contexts[oldest].request = NULL;
	worker->streams[oldest] = stream;
	worker->contexts[oldest].used = UINT64_MAX;
	return &worker->contexts[oldest];
}

static void start(struct worker *worker, uint32_t index)
{
	const struct kvt_trace_request *request = &worker->trace->requests[index];
	struct run *run = worker->runs;

	while (run->index != KVT_TRACE_NONE)
		run++;
	run->index = index;
	run->request = request;
	run->begun = run->stale = run->full = false;
	run->asked_ns = kvt_now_ns();
	run->n_table = 0;
	run->context = take_context(worker, request->stream);
	worker->n_active++;
	if (kvt_context_load(run->context, worker->trace, request,
			     request->session % worker->options->n_namespaces, true, NULL))
		fail(worker, "out of memory");
}

/* True if request `index` is this worker's: in lockstep, worker i modulo N, or the next live
 * one. */
static bool my_turn(const struct worker *worker, uint32_t index)
{
	uint32_t n = worker->options->workers, at = index % n;

	for (uint32_t i = 0; i < n && !kvt_load_acquire(&worker->shared->workers[at].alive); i++)
		at = (at + 1) % n;
	return at == worker->number;
}

static bool settled(const struct kvt_replay_shared *shared, uint32_t index)
{
	return kvt_load_acquire(&shared->slots[index].state) >= KVT_REPLAY_DONE;
}

/* True if request `index` may start now. *ret_wait_ns: the time to wait, if only that is
 * missing. */
static bool ready(const struct worker *worker, uint32_t index, int64_t *ret_wait_ns)
{
	const struct kvt_trace_request *request = &worker->trace->requests[index];
	int64_t due;

	if (worker->options->lockstep) {
		if (index && !settled(worker->shared, index - 1))
			return false;
		if (!my_turn(worker, index))
			return false;
	} else if (request->previous != KVT_TRACE_NONE &&
		   !settled(worker->shared, request->previous)) {
		return false; /* its user waits for the answer */
	}
	if (worker->options->time_scale > 0) {
		due = (int64_t)worker->shared->start_ns +
		      (int64_t)((double)request->at_us * 1000 / worker->options->time_scale);
		*ret_wait_ns = due - kvt_now_ns();
		return *ret_wait_ns <= 0;
	}
	return true;
}

/* Claim the next request if it may start. 1: started, 0: not now, -1: none left. */
static int claim(struct worker *worker, int64_t *ret_wait_ns)
{
	struct kvt_replay_shared *shared = worker->shared;
	uint32_t index = kvt_load_acquire(&shared->next);

	while (index < worker->trace->n_requests && kvt_load_acquire(&shared->slots[index].owner)) {
		/* The claimer may have been killed before it moved `next`: help. */
		kvt_replace_u32(&shared->next, index, index + 1);
		index = kvt_load_acquire(&shared->next);
	}
	if (index >= worker->trace->n_requests || kvt_load_acquire(&shared->stop))
		return -1;
	*ret_wait_ns = 0;
	if (index >= kvt_load_acquire(&shared->gate) || !ready(worker, index, ret_wait_ns))
		return 0;
	if (!kvt_replace_u32(&shared->slots[index].owner, 0, worker->number + 1))
		return 1; /* lost the race: look again */
	kvt_store_release(&shared->slots[index].state, KVT_REPLAY_CLAIMED);
	kvt_replay_notify(shared);
	start(worker, index);
	return 1;
}

static void work(struct worker *worker)
{
	for (;;) {
		uint32_t seen = kvt_load_acquire(&worker->shared->progress);
		int64_t wait_ns = 0;
		int claimed = 0;

		if (worker->n_active < worker->options->concurrency)
			claimed = claim(worker, &wait_ns);
		if (claimed < 0 && !worker->n_active)
			return;
		for (uint32_t i = 0; i < worker->options->concurrency; i++) {
			if (worker->runs[i].index != KVT_TRACE_NONE)
				step(worker, &worker->runs[i]);
		}
		if (!claimed && !worker->n_active)
			kvt_replay_wait(worker->shared, seen, wait_ns);
	}
}

/* Map the pool. Patterns lie at the start of private pages, which overlap no other page in any
 * geometry. */
static void map_pool(struct worker *worker)
{
	const struct kvt_info *info = kvt_client_info(worker->client);
	uint64_t bytes = info->page_bytes;
	struct kvt_pool_view view;
	struct kvt_pool pool;

	if (kvt_pool_map(worker->client, &pool))
		fail(worker, "cannot map the pool");
	worker->piece = kvt_page_address(&pool, 0);
	if (!worker->piece) {
		if (kvt_pool_view(worker->client, &pool, 0, &view))
			fail(worker, "cannot find the pages");
		worker->piece = view.k;
		bytes = view.page_stride_bytes;
	}
	worker->piece_stride = bytes;
	worker->page_words = (uint32_t)(bytes / 8 < info->page_size ? bytes / 8 : info->page_size);
	if (!worker->page_words)
		fail(worker, "pages of less than 8 bytes hold no pattern");
}

static void open_client(struct worker *worker, const char *socket_path)
{
	const struct kvt_replay_options *options = worker->options;
	struct kvt_options connect = KVT_OPTIONS_INIT;
	uint64_t digest[2] = { 0x79616c706572ull, 0 };
	struct kvt_error error;
	const struct kvt_info *info;
	char label[KVT_LABEL_BYTES];

	snprintf(label, sizeof(label), "replay %u", worker->number);
	connect.socket_path = socket_path;
	connect.connect_wait_ns = -1;
	connect.label = label;
	connect.flags = KVT_ANY_GEOMETRY;
	connect.fetch_wait_ns = options->fetch_ms * 1000000ll;
	connect.keys_count = worker->trace->max_input + 64;
	connect.list_count = worker->trace->max_input + worker->trace->max_output + 64;
	if (kvt_client_connect(&worker->client, &connect, &error)) {
		fprintf(stderr, "kvtlab replay: worker %u: %s\n", worker->number, error.text);
		worker->mine->failed = 1;
		_exit(1);
	}
	info = kvt_client_info(worker->client);
	worker->page_size = info->page_size;
	worker->n_sides = info->n_sides;
	worker->mine->session = info->session;
	map_pool(worker);
	for (uint32_t i = 0; i < options->n_namespaces; i++) {
		digest[1] = i;
		snprintf(label, sizeof(label), "replay-%u", i);
		if (kvt_namespace_open(worker->client, digest, label, &worker->namespaces[i]))
			fail(worker, "namespace");
	}
}

void kvt_replay_work(const struct kvt_replay_options *options, const struct kvt_trace *trace,
		     const char *socket_path, struct kvt_replay_shared *shared, uint32_t number)
{
	struct worker *worker = calloc(1, sizeof(*worker));

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGINT, SIG_IGN); /* the parent decides */
	if (!worker)
		_exit(1);
	worker->options = options;
	worker->trace = trace;
	worker->shared = shared;
	worker->mine = &shared->workers[number];
	worker->number = number;
	worker->n_contexts = options->concurrency + EXTRA_CONTEXTS;
	worker->contexts = calloc(worker->n_contexts, sizeof(*worker->contexts));
	worker->streams = calloc(worker->n_contexts, sizeof(*worker->streams));
	worker->namespaces = calloc(options->n_namespaces, sizeof(*worker->namespaces));
	if (!worker->contexts || !worker->streams || !worker->namespaces)
		fail(worker, "out of memory");
	for (uint32_t i = 0; i < KVT_REPLAY_MAX_CONCURRENCY; i++)
		worker->runs[i].index = KVT_TRACE_NONE;
	if (options->lockstep && options->store_pages &&
	    kvt_store_path(socket_path, worker->store_path))
		fail(worker, "the store's path is too long");
	open_client(worker, socket_path);
	work(worker);
	if (kvt_client_close(worker->client, KVT_IDLE))
		_exit(1);
	_exit(0);
}
