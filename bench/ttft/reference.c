/* SPDX-License-Identifier: Apache-2.0 */

/* The floor: one process, no daemon, private KV, a page table that counts up.
 *
 * Inputs: requests, a worker's model. Invariant: kept times are the best of several runs; outputs
 * are those of the first. Callers: main.c, agent.c, pair.c. */

#include "bench/ttft/ttft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ATTEMPTS 3u

void ttft_slab_open(struct ttft_slab *slab, struct worker *worker)
{
	struct kvt_attn_geometry geometry;

	slab->worker = worker;
	slab->logits = bench_alloc((size_t)TTFT_MAX_TOKENS * worker->model.vocab_size,
				   sizeof(*slab->logits));
	slab->n_pages = worker->model.context / TTFT_PAGE_SIZE + 1;
	forward_geometry(&worker->model, TTFT_PAGE_SIZE, slab->n_pages, &geometry);
	if (kvt_attn_geometry_bytes(&geometry, &slab->bytes) != 0)
		bench_die("the model's geometry is not possible");
	slab->base = mmap(NULL, slab->bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (slab->base == MAP_FAILED)
		bench_die("out of memory");
	slab->pages = bench_alloc(slab->n_pages, sizeof(*slab->pages));
	for (uint32_t i = 0; i < slab->n_pages; i++)
		slab->pages[i] = i;
	if (forward_open(&slab->forward, &worker->model, TTFT_PAGE_SIZE, slab->n_pages,
			 slab->base, slab->bytes, worker->options.chunk, worker->why) != 0)
		bench_die("%s", worker->why);
}

void ttft_slab_close(struct ttft_slab *slab)
{
	forward_close(&slab->forward);
	munmap(slab->base, slab->bytes);
	free(slab->pages);
	free(slab->logits);
}

static double since_us(uint64_t begun_ns)
{
	return (double)(bench_clock_ns() - begun_ns) / 1e3;
}

/** Compute the positions. Returns the logits of the last one. */
static const float *step(struct ttft_slab *slab, const uint32_t *tokens, uint32_t start,
			 uint32_t n)
{
	const float *logits = forward_run(&slab->forward, tokens, start, n, slab->pages,
					  slab->n_pages, slab->worker->why);

	if (!logits)
		bench_die("%s", slab->worker->why);
	return logits;
}

static uint32_t likeliest(const float *logits, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

void ttft_slab_generate(struct ttft_slab *slab, const struct ttft_request *request, uint32_t from,
			struct ttft_answer *answer)
{
	uint32_t chunk = slab->worker->options.chunk, vocab = slab->worker->model.vocab_size;
	const float *logits = NULL;
	double cpu_us = ttft_cpu_us();
	uint32_t token;

	answer->n_tokens = 0;
	answer->begun_ns = bench_clock_ns();
	for (uint32_t at = from, n; at < request->n; at += n) {
		n = request->n - at > chunk ? chunk : request->n - at;
		logits = step(slab, request->tokens + at, at, n);
	}
	for (;;) {
		memcpy(slab->logits + (size_t)answer->n_tokens * vocab, logits,
		       vocab * sizeof(*logits));
		token = likeliest(logits, vocab);
		answer->token_us[answer->n_tokens] = since_us(answer->begun_ns);
		answer->tokens[answer->n_tokens++] = token;
		if (token == TOKEN_BOS || token == TOKEN_EOS ||
		    answer->n_tokens == TTFT_MAX_TOKENS)
			break;
		logits = step(slab, &token, request->n + answer->n_tokens - 1, 1);
	}
	answer->total_us = since_us(answer->begun_ns);
	answer->cpu_us = ttft_cpu_us() - cpu_us;
	answer->ttft_us = answer->token_us[0];
	ttft_digest(slab->logits, answer->n_tokens, vocab, answer->logits_digest);
	answer->done = true;
}

/* Keep the quickest run: noise only adds time. */
void ttft_slab_generate_best(struct ttft_slab *slab, const struct ttft_request *request,
			     uint32_t from, struct ttft_answer *answer)
{
	struct ttft_answer one = { 0 };

	ttft_slab_generate(slab, request, from, answer);
	for (unsigned int i = 1; i < ATTEMPTS; i++) {
		ttft_slab_generate(slab, request, from, &one);
		if (one.total_us < answer->total_us)
			*answer = one;
	}
}

static bool is_right(const struct worker *worker, const struct ttft_request *request,
		     const struct ttft_answer *answer)
{
	char text[256] = "", buffer[2];
	size_t at = 0;

	for (uint32_t i = 0; i < answer->n_tokens; i++) {
		const char *piece;

		if (answer->tokens[i] == TOKEN_EOS || answer->tokens[i] == TOKEN_BOS)
			break;
		piece = tokenizer_piece(&worker->tokenizer, TOKEN_EOS, answer->tokens[i], buffer);
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", piece);
		if (at >= sizeof(text))
			return false;
	}
	return strcmp(text, request->text) == 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double ttft_median(double *values, uint32_t n)
{
	qsort(values, n, sizeof(*values), compare);
	return n ? values[n / 2] : 0.0;
}

void ttft_reference_add(struct ttft_reference *reference, const struct ttft_answer *cold,
			const struct ttft_answer *warm)
{
	struct ttft_reference *r = reference;

	r->cold[r->n] = cold->ttft_us;
	r->warm[r->n++] = warm->ttft_us;
	r->cold_total_us += cold->total_us;
	r->warm_total_us += warm->total_us;
	r->cold_cpu_us += cold->cpu_us;
	r->warm_cpu_us += warm->cpu_us;
	for (uint32_t i = 1; i < warm->n_tokens; i++)
		r->token[r->n_steps++] = warm->token_us[i] - warm->token_us[i - 1];
}

void ttft_reference_end(struct ttft_reference *r)
{
	r->cold_ttft_us = ttft_median(r->cold, r->n);
	r->warm_ttft_us = ttft_median(r->warm, r->n);
	r->token_us = ttft_median(r->token, r->n_steps);
}

void ttft_reference_run(struct worker *worker, const struct ttft_workload *workload,
			struct ttft_reference *ret_reference)
{
	struct ttft_reference *r = ret_reference;
	struct ttft_slab slab;

	memset(r, 0, sizeof(*r));
	ttft_slab_open(&slab, worker);
	step(&slab, workload->request[0].tokens, 0, 64); /* warm up */
	for (uint32_t i = 0; i < workload->n; i++) {
		const struct ttft_request *request = &workload->request[i];
		struct ttft_answer warm = { 0 }, *answer = &r->answer[i];

		ttft_slab_generate_best(&slab, request, 0, answer);
		ttft_slab_generate_best(&slab, request, request->warm, &warm);
		ttft_reference_add(r, answer, &warm);
		r->right += is_right(worker, request, answer);
	}
	ttft_slab_close(&slab);
	ttft_reference_end(r);
}
