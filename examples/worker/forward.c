/* SPDX-License-Identifier: Apache-2.0 */
#include "forward.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RMS_EPSILON 1e-5f
#define ROPE_BASE 10000.0f

void forward_geometry(const struct model *model, uint32_t page_size, uint32_t n_pages,
		      struct kvt_attn_geometry *ret_geometry)
{
	*ret_geometry = (struct kvt_attn_geometry){
		.n_pages = n_pages,
		.page_size = page_size,
		.n_layers = model->n_layers,
		.n_kv_heads = model->n_kv_heads,
		.head_dim = model->head_dim,
		.type = KVT_ATTN_F32,
		.layout = KVT_ATTN_HND,
		.order = KVT_ATTN_PAGE_MAJOR,
	};
}

static float *rows(const struct forward *f, uint32_t width)
{
	return calloc((size_t)f->max_rows * width, sizeof(float));
}

int forward_open_views(struct forward *forward, const struct model *model,
		       const struct kvt_attn_view *views, uint32_t chunk, char *why)
{
	struct forward f = { .model = model, .page_size = views[0].page_size };
	struct kvt_attn_options options = { .n_threads = 1 };
	int error;

	/* A chunk may begin and end inside a block. */
	f.max_rows = (chunk / ROW_BLOCK + 2) * ROW_BLOCK;
	error = kvt_attn_open(&options, &f.attention, why, WORKER_WHY_BYTES);
	if (error)
		return error;
	f.x = rows(&f, model->dim);
	f.normed = rows(&f, model->dim);
	f.q = rows(&f, model->dim);
	f.k = rows(&f, model->kv_dim);
	f.v = rows(&f, model->kv_dim);
	f.out = rows(&f, model->dim);
	f.gate = rows(&f, model->hidden_dim);
	f.up = rows(&f, model->hidden_dim);
	f.logits = calloc((size_t)ROW_BLOCK * model->vocab_size, sizeof(float));
	f.slots = calloc(f.max_rows, sizeof(*f.slots));
	f.views = calloc(model->n_layers, sizeof(*f.views));
	if (!f.x || !f.normed || !f.q || !f.k || !f.v || !f.out || !f.gate || !f.up ||
	    !f.logits || !f.slots || !f.views) {
		forward_close(&f);
		snprintf(why, WORKER_WHY_BYTES, "no memory for chunks of %u positions", chunk);
		return -ENOMEM;
	}
	memcpy(f.views, views, model->n_layers * sizeof(*f.views));
	*forward = f;
	return 0;
}

int forward_open(struct forward *forward, const struct model *model, uint32_t page_size,
		 uint32_t n_pages, void *slab, uint64_t slab_bytes, uint32_t chunk, char *why)
{
	struct kvt_attn_view *views = calloc(model->n_layers, sizeof(*views));
	struct kvt_attn_geometry geometry;
	int error = views ? 0 : -ENOMEM;

	forward_geometry(model, page_size, n_pages, &geometry);
	for (uint32_t i = 0; i < model->n_layers && !error; i++)
		error = kvt_attn_geometry_view(&geometry, slab, slab_bytes, i, &views[i]);
	if (error)
		snprintf(why, WORKER_WHY_BYTES, "a slab of %llu bytes does not hold %u pages: %s",
			 (unsigned long long)slab_bytes, n_pages, strerror(-error));
	else
		error = forward_open_views(forward, model, views, chunk, why);
	free(views);
	return error;
}

void forward_close(struct forward *f)
{
	float *arrays[] = { f->x,   f->normed, f->q,  f->k,     f->v,
			    f->out, f->gate,   f->up, f->logits };

	for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
		free(arrays[i]);
	free(f->slots);
	free(f->views);
	kvt_attn_close(f->attention);
	*f = (struct forward){ 0 };
}

/** to[row][n_out] = from[row][n_in] * weight[n_out][n_in]^T, a block of rows at a time. */
static void product(float *to, const float *from, const float *weight, uint32_t n_rows,
		    uint32_t n_in, uint32_t n_out)
{
	for (uint32_t row = 0; row < n_rows; row += ROW_BLOCK)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROW_BLOCK, (int)n_out,
			    (int)n_in, 1.0f, from + (size_t)row * n_in, (int)n_in, weight,
			    (int)n_in, 0.0f, to + (size_t)row * n_out, (int)n_out);
}

static void rms_norm(float *to, const float *from, const float *weight, uint32_t n_rows,
		     uint32_t dim)
{
	for (uint32_t row = 0; row < n_rows; row++) {
		const float *x = from + (size_t)row * dim;
		float *y = to + (size_t)row * dim, sum = 0.0f, scale;

		for (uint32_t i = 0; i < dim; i++)
			sum += x[i] * x[i];
		scale = 1.0f / sqrtf(sum / (float)dim + RMS_EPSILON);
		for (uint32_t i = 0; i < dim; i++)
			y[i] = weight[i] * (scale * x[i]);
	}
}

/** Rotate neighbouring pairs of each head by an angle that grows with the position. */
static void rotate(float *x, uint32_t width, uint32_t head_dim, uint32_t position)
{
	for (uint32_t i = 0; i < width; i += 2) {
		float frequency = 1.0f / powf(ROPE_BASE, (float)(i % head_dim) / (float)head_dim);
		float angle = (float)position * frequency;
		float c = cosf(angle), s = sinf(angle), a = x[i], b = x[i + 1];

		x[i] = a * c - b * s;
		x[i + 1] = a * s + b * c;
	}
}

static void add(float *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] += from[i];
}

/** Rows of a chunk: `lead` zero rows, n positions, zero rows up to a whole block. */
struct chunk {
	uint32_t start, n, lead, n_rows;
	const uint32_t *pages;
	uint32_t n_pages;
};

static int attend(struct forward *f, const struct chunk *chunk, uint32_t layer)
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
					    .n_q_heads = m->n_heads, .q_type = KVT_ATTN_F32,
					    .out_type = KVT_ATTN_F32,
					    .scale = 1.0f / sqrtf((float)m->head_dim) };
	int error;

	append.k = f->k + (size_t)chunk->lead * m->kv_dim;
	append.v = f->v + (size_t)chunk->lead * m->kv_dim;
	prefill.q = f->q + (size_t)chunk->lead * m->dim;
	prefill.out = f->out + (size_t)chunk->lead * m->dim;
	error = kvt_attn_kv_append(f->attention, &append, NULL);
	return error ? error : kvt_attn_append_prefill(f->attention, &prefill, NULL);
}

static int run_layer(struct forward *f, const struct chunk *chunk, uint32_t layer)
{
	const struct model *m = f->model;
	size_t dd = (size_t)layer * m->dim * m->dim, dk = (size_t)layer * m->dim * m->kv_dim;
	size_t dh = (size_t)layer * m->dim * m->hidden_dim;
	uint32_t n = chunk->n_rows;
	int error;

	rms_norm(f->normed, f->x, m->rms_attention + (size_t)layer * m->dim, n, m->dim);
	product(f->q, f->normed, m->wq + dd, n, m->dim, m->dim);
	product(f->k, f->normed, m->wk + dk, n, m->dim, m->kv_dim);
	product(f->v, f->normed, m->wv + dk, n, m->dim, m->kv_dim);
	for (uint32_t i = 0; i < chunk->n; i++) {
		size_t row = chunk->lead + i;

		rotate(f->q + row * m->dim, m->dim, m->head_dim, chunk->start + i);
		rotate(f->k + row * m->kv_dim, m->kv_dim, m->head_dim, chunk->start + i);
	}
	error = attend(f, chunk, layer);
	if (error)
		return error;
	product(f->normed, f->out, m->wo + dd, n, m->dim, m->dim);
	add(f->x, f->normed, (size_t)n * m->dim);

	rms_norm(f->normed, f->x, m->rms_ffn + (size_t)layer * m->dim, n, m->dim);
	product(f->gate, f->normed, m->w1 + dh, n, m->dim, m->hidden_dim);
	product(f->up, f->normed, m->w3 + dh, n, m->dim, m->hidden_dim);
	for (size_t i = 0; i < (size_t)n * m->hidden_dim; i++)
		f->gate[i] = f->gate[i] / (1.0f + expf(-f->gate[i])) * f->up[i];
	product(f->normed, f->gate, m->w2 + dh, n, m->hidden_dim, m->dim);
	add(f->x, f->normed, (size_t)n * m->dim);
	return 0;
}

const float *forward_run(struct forward *f, const uint32_t *tokens, uint32_t start, uint32_t n,
			 const uint32_t *pages, uint32_t n_pages, char *why)
{
	const struct model *m = f->model;
	uint32_t ps = f->page_size, last, block;
	struct chunk chunk = { .start = start, .n = n, .lead = start % ROW_BLOCK,
			       .pages = pages, .n_pages = n_pages };

	chunk.n_rows = (chunk.lead + n + ROW_BLOCK - 1) / ROW_BLOCK * ROW_BLOCK;
	if (n == 0 || chunk.n_rows > f->max_rows) {
		snprintf(why, WORKER_WHY_BYTES, "a chunk of %u positions is not possible", n);
		return NULL;
	}
	memset(f->x, 0, (size_t)chunk.n_rows * m->dim * sizeof(float));
	memset(f->out, 0, (size_t)chunk.n_rows * m->dim * sizeof(float));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t position = start + i;

		f->slots[i] = (uint64_t)pages[position / ps] * ps + position % ps;
		memcpy(f->x + (size_t)(chunk.lead + i) * m->dim,
		       m->embedding + (size_t)tokens[i] * m->dim, m->dim * sizeof(float));
	}
	for (uint32_t layer = 0; layer < m->n_layers; layer++) {
		if (run_layer(f, &chunk, layer) != 0) {
			snprintf(why, WORKER_WHY_BYTES, "%s", kvt_attn_error_text(f->attention));
			return NULL;
		}
	}
	/* Logits of the last position, from the whole block that it stands in. */
	last = chunk.lead + n - 1;
	block = last / ROW_BLOCK * ROW_BLOCK;
	rms_norm(f->normed + (size_t)block * m->dim, f->x + (size_t)block * m->dim, m->rms_final,
		 ROW_BLOCK, m->dim);
	product(f->logits, f->normed + (size_t)block * m->dim, m->classifier, ROW_BLOCK, m->dim,
		m->vocab_size);
	return f->logits + (size_t)(last - block) * m->vocab_size;
}
