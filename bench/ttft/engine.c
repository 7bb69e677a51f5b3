/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ttft/ttft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtrunk_keys.h"

#define MAX_FLAGS 16

const char *const ttft_mode_name[TTFT_MODES] = { "cache", "none", "private", "sticky",
						 "disabled" };

void ttft_engine_open(struct worker *worker, const struct ttft_options *options,
		      const char *model)
{
	static char shipped[512], tokenizer[512];

	snprintf(shipped, sizeof(shipped), "%s/prices.bin", options->directory);
	snprintf(tokenizer, sizeof(tokenizer), "%s/prices.tok", options->directory);
	*worker = (struct worker){ .options = { .model = model ? model : shipped,
						.tokenizer = tokenizer,
						.max_tokens = TTFT_MAX_TOKENS,
						.chunk = TTFT_CHUNK, .seed = 1 } };
	if (worker_open_model(worker) != 0)
		bench_die("%s", worker->why);
}

void ttft_daemon_start(struct kvt_own_daemon *daemon, const struct ttft_options *options,
		       const struct worker *worker, uint32_t n_pages, bool caching)
{
	char geometry[WORKER_FLAGS_BYTES], pages[32], why[256];
	const char *flags[MAX_FLAGS + 1] = { "--instance=default", "--log_level=warning", pages,
					     caching ? "--caching=yes" : "--caching=no",
					     "--max_private_pages=0" };
	unsigned int n = 5;

	snprintf(pages, sizeof(pages), "--n_pages=%u", n_pages);
	worker_daemon_flags(worker, TTFT_PAGE_SIZE, geometry);
	for (char *at = geometry, *flag; (flag = strsep(&at, " ")) && n < MAX_FLAGS;)
		flags[n++] = flag;
	if (kvt_own_daemon_start(daemon, options->daemon, flags, -1, why, sizeof(why)) != 0)
		bench_die("%s", why);
}

void ttft_daemon_stop(struct kvt_own_daemon *daemon)
{
	if (kvt_own_daemon_stop(daemon) != 0)
		bench_die("a daemon did not end well");
}

void ttft_engine_connect(struct worker *worker, const char *socket)
{
	uint32_t tokens[TTFT_CHUNK], pages[TTFT_CHUNK] = { 0 }, chunk = worker->options.chunk;

	worker->options.socket = socket;
	if (worker_open_cache(worker) != 0)
		bench_die("%s", worker->why);
	for (uint32_t i = 0; i < chunk; i++)
		tokens[i] = TOKEN_BOS;
	/* Page 0 is scratch. */
	for (unsigned int i = 0; i < 3; i++)
		if (!forward_run(&worker->forward, tokens, 0, chunk, pages, chunk, worker->why))
			bench_die("%s", worker->why);
}

void ttft_digest(const float *logits, uint32_t n_tokens, uint32_t vocab_size, uint64_t *ret_digest)
{
	kvt_image_hash(logits, (size_t)n_tokens * vocab_size * sizeof(*logits), ret_digest);
}

void ttft_engine_serve(struct worker *worker, const struct ttft_request *request, bool cache,
		       struct ttft_answer *ret_answer)
{
	struct generation g = { .n_prompt = request->n, .token_us = ret_answer->token_us };
	uint32_t vocab = worker->model.vocab_size;
	double cpu_us;

	g.logits = bench_alloc((size_t)TTFT_MAX_TOKENS * vocab, sizeof(*g.logits));
	g.tokens = bench_alloc(worker->model.context + 1, sizeof(*g.tokens));
	memcpy(g.tokens, request->tokens, request->n * sizeof(*g.tokens));
	cpu_us = ttft_cpu_us();
	ret_answer->begun_ns = bench_clock_ns();
	if (worker_generate(worker, &g, cache) != 0)
		bench_die("%s", worker->why);
	ret_answer->cpu_us = ttft_cpu_us() - cpu_us;
	ret_answer->n_tokens = g.n_tokens - g.n_prompt;
	memcpy(ret_answer->tokens, g.tokens + g.n_prompt,
	       ret_answer->n_tokens * sizeof(*g.tokens));
	ttft_digest(g.logits, ret_answer->n_tokens, vocab, ret_answer->logits_digest);
	ret_answer->cached = g.cached;
	ret_answer->prefilled = g.prefilled;
	ret_answer->restarts = g.restarts;
	ret_answer->waits = g.waits;
	ret_answer->unpublished = g.unpublished;
	ret_answer->ttft_us = g.ttft_us;
	ret_answer->total_us = g.total_us;
	ret_answer->done = true;
	free(g.tokens);
	free(g.logits);
}

void ttft_same_output(const char *workload, const struct ttft_answer *expected, uint32_t request,
		      const struct ttft_answer *answer, const char *where)
{
	if (!answer->done)
		bench_die("%s, %s: request %u got no answer", workload, where, request);
	if (answer->n_tokens != expected->n_tokens ||
	    memcmp(answer->tokens, expected->tokens,
		   answer->n_tokens * sizeof(answer->tokens[0])) != 0)
		bench_die("%s, %s: request %u got other tokens than without kvtrunk", workload,
			  where, request);
	if (memcmp(answer->logits_digest, expected->logits_digest,
		   sizeof(answer->logits_digest)) != 0)
		bench_die("%s, %s: request %u got the tokens that it gets without kvtrunk, from "
			  "other logits", workload, where, request);
}

double ttft_cpu_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}
