/* SPDX-License-Identifier: Apache-2.0 */

/* A sequence from BEGIN to END, as an inference engine runs it.
 *
 * Inputs: a worker with an open cache, a prompt. Invariants: after an error no queued work writes
 * pages that are given up; a full pool makes a sequence give everything back, so workers never
 * deadlock. Callers: main.c, the benchmarks. */

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker.h"

#define ROOM_WAIT_NS 1000000L /* between two attempts while others hold the pages */
#define ROOM_WAITS 60000      /* a minute */
#define LOST_DEVICE_NS 100000000L /* for remaining answers after a device has failed */
#define RECONNECT_WAIT_NS 20000000L /* between two attempts without a daemon */
#define RECONNECT_US 30e6 /* limit for a successor */
#define RECONNECTS 16 /* of one prompt: more, and the prompt may be the cause */

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* ---- sampling */

static uint64_t next_random(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static uint32_t sample(const float *logits, uint32_t n, float temperature, uint64_t *state)
{
	double sum = 0.0, point;
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	if (temperature <= 0.0f)
		return best;
	for (uint32_t i = 0; i < n; i++)
		sum += exp((logits[i] - logits[best]) / temperature);
	point = (double)(next_random(state) >> 11) / 9007199254740992.0 * sum;
	for (uint32_t i = 0; i < n; i++) {
		point -= exp((logits[i] - logits[best]) / temperature);
		if (point < 0.0)
			return i;
	}
	return best;
}

/* ---- one sequence */

struct run {
	struct worker *worker;
	struct generation *generation;
	struct kvt_seq *seq;
	bool cache;
	bool publishing; /* false once the daemon calls our pages stale */
	uint64_t random;
	double begun_us;
};

/** True if the daemon ended and nothing kept this session. -ESTALE alone may also mean one removed
 * prefix. */
static bool is_lost(const struct worker *worker)
{
	return kvt_group_check(worker->client) != 0;
}

/** True if others hold the pages for now, so that waiting helps. */
static bool is_full(const struct worker *worker)
{
	int reason = kvt_client_error(worker->client)->reason;

	return reason == KVT_REASON_ALL_LOCKED || reason == KVT_REASON_SHARE;
}

/** Do BEGIN. While other sequences hold the pages, wait for them to end. */
static int begin(struct run *run)
{
	struct worker *worker = run->worker;
	struct generation *g = run->generation;
	const struct timespec pause = { .tv_nsec = ROOM_WAIT_NS };
	uint32_t flags = run->cache ? 0 : KVT_F_FORCE_MISS;

	for (uint32_t tries = 0;; tries++) {
		int error = kvt_seq_begin(worker->client, worker->namespace_id, g->tokens,
					  g->n_tokens, 1, flags, &run->seq);

		if (error == 0)
			return 0;
		if (error == -EDQUOT && !is_full(worker)) { /* nothing else to end */
			snprintf(worker->why, sizeof(worker->why), "%.300s: this sequence alone "
				 "needs more: raise kvtrunkd's max_private_pages",
				 kvt_client_error(worker->client)->text);
			return error;
		}
		if (tries == ROOM_WAITS || !is_full(worker))
			return worker_failed(worker, error);
		g->waits++;
		nanosleep(&pause, NULL);
	}
}

/** Publish, and take over twins that the daemon has answered so far. Waits neither for the daemon
 * nor for a device. */
static int commit(struct run *run, uint32_t computed, uint32_t flags)
{
	struct kvt_fence fence;
	int error;

	if (!run->cache)
		return 0;
	error = worker_fence(run->worker, &fence);
	if (error)
		return error;
	error = kvt_seq_commit_async(run->seq, computed, NULL, 0, fence, flags);
	if (error == -EAGAIN) /* too many in flight: wait for them */
		error = kvt_seq_commit(run->seq, computed, NULL, 0, fence, flags);
	if (error == 0)
		error = kvt_seq_poll(run->seq);
	if (error == -ESTALE && !is_lost(run->worker)) {
		run->publishing = false; /* reset or removed meanwhile: continue unpublished */
		run->generation->unpublished = true;
		return 0;
	}
	return error < 0 ? worker_failed(run->worker, error) : 0;
}

/** Compute the uncached positions chunk by chunk, publishing each chunk. Leaves the last position's
 * logits. */
static int prefill(struct run *run, const float **ret_logits)
{
	struct worker *worker = run->worker;
	struct generation *g = run->generation;
	uint32_t at = kvt_seq_next(run->seq), n = g->n_tokens, chunk = worker->options.chunk;
	uint32_t prefilled = g->prefilled;

	while (at < n) {
		uint32_t end = n - at > chunk ? at + chunk : n, n_pages;
		const uint32_t *pages = kvt_seq_pages(run->seq, &n_pages);
		int error = forward_queue(&worker->forward, g->tokens + at, at, end - at, pages,
					  n_pages, worker->why);

		if (error)
			return error;
		g->prefilled += end - at;
		error = commit(run, end, end < n ? KVT_F_CHUNKED : 0);
		if (error)
			return error;
		at = run->cache && end < n ? kvt_seq_next(run->seq) : end;
		g->cached += at - end; /* taken over from others */
	}
	if (g->prefilled == prefilled) {
		snprintf(worker->why, sizeof(worker->why),
			 "the daemon left no position to compute");
		return -EPROTO;
	}
	*ret_logits = forward_logits(&worker->forward, worker->why);
	return *ret_logits ? 0 : -EIO;
}

static void emit(struct run *run, uint32_t token)
{
	struct generation *g = run->generation;
	double since_us = now_us() - run->begun_us;
	char buffer[2];

	if (g->n_tokens == g->n_prompt)
		g->ttft_us = since_us;
	if (g->token_us)
		g->token_us[g->n_tokens - g->n_prompt] = since_us;
	if (g->echo && token != TOKEN_BOS && token != TOKEN_EOS) {
		fputs(tokenizer_piece(&run->worker->tokenizer, g->tokens[g->n_tokens - 1], token,
				      buffer),
		      g->echo);
		fflush(g->echo);
	}
	g->tokens[g->n_tokens++] = token;
}

static int check_numbers(struct worker *worker, const float *logits)
{
	for (uint32_t i = 0; i < worker->model.vocab_size; i++) {
		if (isfinite(logits[i]))
			continue;
		snprintf(worker->why, sizeof(worker->why), "the model's results are no numbers any "
			 "more: is %s whole?", worker->options.model);
		return -EDOM;
	}
	return 0;
}

/** Get a page for the position if it has none. -EAGAIN: none is available. */
static int grow(struct run *run, uint32_t position)
{
	uint32_t n_pages;
	int error;

	kvt_seq_pages(run->seq, &n_pages);
	if (position / run->worker->forward.page_size < n_pages)
		return 0;
	error = kvt_seq_extend(run->seq, 1);
	if (error == -ENOSPC || error == -EDQUOT)
		return -EAGAIN;
	return error ? worker_failed(run->worker, error) : 0;
}

/** Generate from the last position's logits on. -EAGAIN: no page for the next position. */
static int decode(struct run *run, const float *logits)
{
	struct worker *worker = run->worker;
	struct generation *g = run->generation;
	uint32_t vocab = worker->model.vocab_size, n_pages;

	for (;;) {
		uint32_t position = g->n_tokens, step = g->n_tokens - g->n_prompt, token;
		const uint32_t *pages;
		int error = check_numbers(worker, logits);

		if (error)
			return error;
		if (g->logits)
			memcpy(g->logits + (size_t)step * vocab, logits, vocab * sizeof(*logits));
		token = sample(logits, vocab, worker->options.temperature, &run->random);
		emit(run, token);
		if (token == TOKEN_BOS || token == TOKEN_EOS ||
		    step + 1 == worker->options.max_tokens || g->n_tokens == worker->model.context)
			return 0;
		error = grow(run, position);
		if (error)
			return error;
		pages = kvt_seq_pages(run->seq, &n_pages);
		logits = forward_run(&worker->forward, &token, position, 1, pages, n_pages,
				     worker->why);
		if (!logits)
			return -EIO;
	}
}

/** Do END after an error. Nothing may write the pages once they are given up. */
static void abandon(struct run *run)
{
	struct worker *worker = run->worker;

	/* A failed device writes nothing more, but it reaches no fence either, and END comes after
	 * the commits in flight: leave them to the session's end. */
	if (worker->compute->ops->wait(worker->compute) != 0)
		kvt_client_set_timeout(worker->client, LOST_DEVICE_NS);
	kvt_seq_end(run->seq, 0, NULL, 0, KVT_IDLE, 0);
	run->seq = NULL;
}

/** Do END. Publishes the generated positions, whose KV is complete but for the last token. */
static int finish(struct run *run, uint32_t begun_with)
{
	const struct generation *g = run->generation;
	uint32_t computed = g->n_tokens - 1;
	struct kvt_fence fence;
	int error = worker_fence(run->worker, &fence);

	if (error) {
		abandon(run);
		return error;
	}
	if (run->publishing && computed > begun_with)
		error = kvt_seq_end(run->seq, computed, g->tokens + begun_with,
				    computed - begun_with, fence, 0);
	else
		error = kvt_seq_end(run->seq, 0, NULL, 0, fence, 0);
	run->seq = NULL;
	if (error == -ESTALE || (error && is_lost(run->worker))) {
		run->generation->unpublished = true; /* but the text is complete */
		return 0;
	}
	return error ? worker_failed(run->worker, error) : 0;
}

/** Connect to the successor of a daemon that ended. Pages and sequences are lost. */
static int reconnect(struct worker *worker)
{
	const struct timespec pause = { .tv_nsec = RECONNECT_WAIT_NS };
	double until_us = now_us() + RECONNECT_US;

	for (;;) {
		int error;

		worker_close_cache(worker);
		error = worker_open_cache(worker);
		if ((error != -ENOENT && error != -ECONNREFUSED && error != -ECONNRESET &&
		     error != -EAGAIN && error != -ESHUTDOWN && error != -ETIMEDOUT) ||
		    now_us() >= until_us)
			return error;
		nanosleep(&pause, NULL);
	}
}

/** Run BEGIN, prefill, decode, END once. -EAGAIN: the pool is full, begin again. */
static int attempt(struct run *run)
{
	struct generation *g = run->generation;
	uint32_t begun_with = g->n_tokens;
	const float *logits = NULL;
	int error = begin(run), end_error;

	if (error)
		return error;
	g->cached += kvt_seq_reusable(run->seq);
	error = prefill(run, &logits);
	if (!error)
		error = decode(run, logits);
	if (error && error != -EAGAIN) {
		abandon(run);
		return error;
	}
	end_error = finish(run, begun_with);
	return end_error ? end_error : error;
}

/** Handle a failed attempt. 0: another one may succeed. */
static int recover(struct run *run, int error)
{
	struct worker *worker = run->worker;
	struct generation *g = run->generation;

	/* Give everything back and begin again with all tokens so far, so that workers which fill a
	 * small pool do not deadlock. */
	if (error == -EAGAIN) {
		g->restarts++;
		return 0;
	}
	if (worker->compute->error || !is_lost(worker) || g->reconnects == RECONNECTS)
		return error;
	g->reconnects++;
	return reconnect(worker);
}

int worker_generate(struct worker *worker, struct generation *g, bool cache)
{
	struct run run = { .worker = worker, .generation = g, .cache = cache,
			   .random = worker->options.seed, .begun_us = now_us() };
	int error;

	g->n_tokens = g->n_prompt;
	g->cached = g->prefilled = g->restarts = g->reconnects = g->waits = 0;
	g->unpublished = false;
	do {
		run.publishing = cache;
		error = attempt(&run);
	} while (error && (error = recover(&run, error)) == 0);
	g->total_us = now_us() - run.begun_us;
	if (!error)
		worker->why[0] = '\0';
	return error;
}
