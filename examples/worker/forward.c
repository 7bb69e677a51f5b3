/* SPDX-License-Identifier: Apache-2.0 */

/* One forward pass over new positions: the order of layers, on any compute_ops.
 *
 * Inputs: tokens, page table, views of the pool. Invariant: matrix products run on whole blocks of
 * ROW_BLOCK positions aligned to position 0, so a position's bits do not depend on the chunk.
 * Callers: cache.c, generate.c. */

#include "forward.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *rows(const struct forward *f, uint32_t width)
{
	return f->compute->ops->reserve(f->compute, (size_t)f->max_rows * width);
}

int forward_open(struct forward *forward, const struct model *model, struct compute *compute,
		 const struct kvt_attn_view *views, uint32_t chunk, char *why)
{
	struct forward f = { .model = model, .compute = compute,
			     .page_size = views[0].page_size };

	/* A chunk may begin and end inside a block. */
	f.max_rows = (chunk / ROW_BLOCK + 2) * ROW_BLOCK;
	f.x = rows(&f, model->dim);
	f.normed = rows(&f, model->dim);
	f.q = rows(&f, model->dim);
	f.q_rounded = views[0].type == KVT_ATTN_F32 ? f.q : rows(&f, model->dim);
	f.k = rows(&f, model->kv_dim);
	f.v = rows(&f, model->kv_dim);
	f.out = rows(&f, model->dim);
	f.gate = rows(&f, model->hidden_dim);
	f.up = rows(&f, model->hidden_dim);
	f.there = (uint32_t *)(void *)rows(&f, 1);
	f.last = compute->ops->reserve(compute, (size_t)ROW_BLOCK * model->vocab_size);
	f.logits = calloc(model->vocab_size, sizeof(float));
	f.slots = calloc(f.max_rows, sizeof(*f.slots));
	f.views = calloc(model->n_layers, sizeof(*f.views));
	if (!f.x || !f.normed || !f.q || !f.q_rounded || !f.k || !f.v || !f.out || !f.gate ||
	    !f.up || !f.there || !f.last || !f.logits || !f.slots || !f.views) {
		forward_close(&f);
		snprintf(why, WORKER_WHY_BYTES, "no memory for chunks of %u positions: give a "
			 "smaller --chunk", chunk);
		return -ENOMEM;
	}
	memcpy(f.views, views, model->n_layers * sizeof(*f.views));
	*forward = f;
	return 0;
}

void forward_close(struct forward *f)
{
	float *arrays[] = { f->x,   f->normed, f->q,  f->k,    f->v,
			    f->out, f->gate,   f->up, f->last, (float *)(void *)f->there,
			    f->q_rounded == f->q ? NULL : f->q_rounded };

	if (f->compute)
		f->compute->ops->wait(f->compute);
	for (size_t i = 0; f->compute && i < sizeof(arrays) / sizeof(arrays[0]); i++)
		f->compute->ops->release(f->compute, arrays[i]);
	free(f->logits);
	free(f->slots);
	free(f->views);
	*f = (struct forward){ 0 };
}

/** Rows of a chunk: `lead` zero rows, n positions, zero rows up to a whole block. */
struct chunk {
	uint32_t start, n, lead, n_rows;
	const uint32_t *pages;
	uint32_t n_pages;
};

static void attend(struct forward *f, const struct chunk *chunk, uint32_t layer)
{
	const struct model *m = f->model;
	struct kvt_attn_append append = { .kv = f->views[layer], .n_positions = chunk->n,
					  .type = KVT_ATTN_F32, .slots = f->slots };
	struct kvt_attn_sequence sequence = { .n_queries = chunk->n,
					      .n_positions = chunk->start + chunk->n,
					      .pages = chunk->pages,
					      .n_pages = chunk->n_pages };
	struct kvt_attn_prefill prefill = { .kv = f->views[layer],
					    .sequences = &sequence, .n_sequences = 1,
					    .n_q_heads = m->n_heads,
					    .q_type = f->views[layer].type,
					    .out_type = KVT_ATTN_F32,
					    .scale = 1.0f / sqrtf((float)m->head_dim) };
	const float *q = f->q + (size_t)chunk->lead * m->dim;

	append.k = f->k + (size_t)chunk->lead * m->kv_dim;
	append.v = f->v + (size_t)chunk->lead * m->kv_dim;
	prefill.out = f->out + (size_t)chunk->lead * m->dim;
	prefill.q = q;
	if (prefill.q_type != KVT_ATTN_F32) {
		f->compute->ops->round(f->compute, f->q_rounded, q, (size_t)chunk->n * m->dim,
				       prefill.q_type);
		prefill.q = f->q_rounded;
	}
	compute_attention(f->compute, &append, &prefill);
}

static void run_layer(struct forward *f, const struct chunk *chunk, uint32_t layer)
{
	const struct compute_ops *ops = f->compute->ops;
	const struct model *m = f->model;
	struct compute *c = f->compute;
	size_t dd = (size_t)layer * m->dim * m->dim, dk = (size_t)layer * m->dim * m->kv_dim;
	size_t dh = (size_t)layer * m->dim * m->hidden_dim;
	uint32_t n = chunk->n_rows;

	ops->rms_norm(c, f->normed, f->x, m->rms_attention + (size_t)layer * m->dim, n, m->dim);
	ops->product(c, f->q, f->normed, m->wq + dd, n, m->dim, m->dim);
	ops->product(c, f->k, f->normed, m->wk + dk, n, m->dim, m->kv_dim);
	ops->product(c, f->v, f->normed, m->wv + dk, n, m->dim, m->kv_dim);
	ops->rotate(c, f->q + (size_t)chunk->lead * m->dim, chunk->n, m->dim, m->head_dim,
		    chunk->start);
	ops->rotate(c, f->k + (size_t)chunk->lead * m->kv_dim, chunk->n, m->kv_dim, m->head_dim,
		    chunk->start);
	attend(f, chunk, layer);
	ops->product(c, f->normed, f->out, m->wo + dd, n, m->dim, m->dim);
	ops->add(c, f->x, f->normed, (size_t)n * m->dim);

	ops->rms_norm(c, f->normed, f->x, m->rms_ffn + (size_t)layer * m->dim, n, m->dim);
	ops->product(c, f->gate, f->normed, m->w1 + dh, n, m->dim, m->hidden_dim);
	ops->product(c, f->up, f->normed, m->w3 + dh, n, m->dim, m->hidden_dim);
	ops->swiglu(c, f->gate, f->up, (size_t)n * m->hidden_dim);
	ops->product(c, f->normed, f->gate, m->w2 + dh, n, m->hidden_dim, m->dim);
	ops->add(c, f->x, f->normed, (size_t)n * m->dim);
}

int forward_queue(struct forward *f, const uint32_t *tokens, uint32_t start, uint32_t n,
		  const uint32_t *pages, uint32_t n_pages, char *why)
{
	const struct compute_ops *ops = f->compute->ops;
	const struct model *m = f->model;
	struct compute *c = f->compute;
	uint32_t ps = f->page_size;
	struct chunk chunk = { .start = start, .n = n, .lead = start % ROW_BLOCK,
			       .pages = pages, .n_pages = n_pages };

	chunk.n_rows = (chunk.lead + n + ROW_BLOCK - 1) / ROW_BLOCK * ROW_BLOCK;
	if (n == 0 || chunk.n_rows > f->max_rows) {
		snprintf(why, WORKER_WHY_BYTES, "a chunk of %u positions is not possible", n);
		return -EINVAL;
	}
	for (uint32_t i = start; i < start + n; i++)
		f->slots[i - start] = (uint64_t)pages[i / ps] * ps + i % ps;
	ops->zero(c, f->x, (size_t)chunk.n_rows * m->dim);
	ops->zero(c, f->out, (size_t)chunk.n_rows * m->dim);
	ops->write(c, f->there, tokens, n * sizeof(*tokens));
	ops->embed(c, f->x + (size_t)chunk.lead * m->dim, m->embedding, f->there, n, m->dim);
	for (uint32_t layer = 0; layer < m->n_layers; layer++)
		run_layer(f, &chunk, layer);
	f->last_row = chunk.lead + n - 1;
	if (c->error)
		snprintf(why, WORKER_WHY_BYTES, "%s", c->why);
	return c->error;
}

/* Compute the logits from the whole block of the last position. */
const float *forward_logits(struct forward *f, char *why)
{
	const struct compute_ops *ops = f->compute->ops;
	const struct model *m = f->model;
	uint32_t block = f->last_row / ROW_BLOCK * ROW_BLOCK;
	float *normed = f->normed + (size_t)block * m->dim;

	ops->rms_norm(f->compute, normed, f->x + (size_t)block * m->dim, m->rms_final, ROW_BLOCK,
		      m->dim);
	ops->product(f->compute, f->last, normed, m->classifier, ROW_BLOCK, m->dim, m->vocab_size);
	if (ops->read(f->compute, f->logits, f->last + (size_t)(f->last_row - block) *
		      m->vocab_size, m->vocab_size * sizeof(float)) == 0)
		return f->logits;
	snprintf(why, WORKER_WHY_BYTES, "%s", f->compute->why);
	return NULL;
}

const float *forward_run(struct forward *f, const uint32_t *tokens, uint32_t start, uint32_t n,
			 const uint32_t *pages, uint32_t n_pages, char *why)
{
	if (forward_queue(f, tokens, start, n, pages, n_pages, why) != 0)
		return NULL;
	return forward_logits(f, why);
}
