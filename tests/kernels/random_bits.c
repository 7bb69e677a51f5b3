/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random shape, batch and places in memory, computed twice: each position's result has the same
 * bits for any chunks, order and layout. Callers: test_bits.c, test_gpu.c, test_cuda.c, through
 * support.h.
 *
 * Inputs: a seed, and the caller's operation. Invariant: bits are equal.
 */

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/support.h"

#define SEED 1 /* of the text */

/* Queries at the positions [first, n_positions) of a text; some see ahead. */
struct question {
	struct pool_options pool; /* page size, layout and order are those of the first run */
	uint32_t group_heads;
	uint32_t q_type;
	uint32_t n_positions;
	uint32_t first;
	uint32_t n_regions;
	struct kvt_attn_region regions[4];
	/* One position whose K or V is NaN or infinite in one dimension; n_positions: none. */
	uint32_t bad_position;
	uint32_t bad_plane;
	uint32_t bad_dim;
};

/* A part of it, as one sequence of a batch that has the positions before n_positions. */
struct part {
	uint32_t first;
	uint32_t n;
	uint32_t n_positions;
};

struct batch {
	struct pool pool;
	struct text text;
	struct part parts[RANDOM_PARTS_MAX];
	struct kvt_attn_sequence sequences[RANDOM_PARTS_MAX];
	uint32_t n_parts;
	struct rows rows;
};

static void place_random(struct random *random, uint32_t n_positions, struct pool_options *pool)
{
	pool->page_size = 1u << random_below(random, 9);
	pool->n_pages = (n_positions - 1) / pool->page_size + 3 + random_below(random, 9);
	pool->layout = random_below(random, 2);
	pool->order = random_below(random, 2);
	pool->seed = random_next(random);
}

static struct question question_random(struct random *random, uint32_t n_positions_max)
{
	static const uint32_t dims[] = { 64, 80, 96, 128, 256 };
	static const uint32_t groups[] = { 1, 2, 3, 4, 7, 8, 16 };
	uint32_t n_most = random_below(random, 4) ? n_positions_max / 8 : n_positions_max;
	struct question question = {
		.pool = { .n_kv_heads = 1 + random_below(random, 3),
			  .head_dim = random_below(random, 2) ? dims[random_below(random, 5)]
							      : 1 + random_below(random, 256),
			  .type = random_below(random, 4) },
		.group_heads = groups[random_below(random, 7)],
		.q_type = random_below(random, 3),
		.n_positions = 1 + random_below(random, n_most),
	};
	uint32_t n_queries = 1 + random_below(random, 90), at = 0;

	if (n_queries > question.n_positions)
		n_queries = question.n_positions;
	question.first = question.n_positions - n_queries;
	/* They may begin before the first query, and may be cut by the end. */
	while (question.n_regions < 4 && random_below(random, 2)) {
		struct kvt_attn_region *region = &question.regions[question.n_regions++];

		region->start = at + random_below(random, question.n_positions);
		region->end = at = region->start + 1 + random_below(random, 60);
	}
	question.bad_position = question.n_positions;
	if (random_below(random, 3) == 0)
		question.bad_position = random_below(random, question.n_positions);
	question.bad_plane = random_below(random, 2);
	question.bad_dim = random_below(random, question.pool.head_dim);
	place_random(random, question.n_positions, &question.pool);
	return question;
}

static uint32_t limit_of(const struct question *question, uint32_t position, uint32_t n_positions)
{
	return reference_limit(position, n_positions, question->regions, question->n_regions);
}

/* Chunks, and single positions as in decode (if they see no more), in any order. */
static uint32_t parts_random(struct random *random, const struct question *question,
			     struct part *parts, uint32_t n_max)
{
	uint32_t end = question->n_positions, at = question->first, n = 0;

	while (at < end && n < n_max / 2) {
		uint32_t length = 1 + random_below(random, random_below(random, 2) ? 9 : end - at);

		length = length < end - at ? length : end - at;
		parts[n++] = (struct part){ at, length, at + length };
		at += length;
	}
	while (n < n_max && random_below(random, 4)) {
		uint32_t first = question->first + random_below(random, end - question->first);
		uint32_t limit = limit_of(question, first, end);

		parts[n++] = (struct part){ first, limit - first, limit };
	}
	for (uint32_t i = n - 1; i; i--) {
		uint32_t j = random_below(random, i + 1);
		struct part part = parts[i];

		parts[i] = parts[j];
		parts[j] = part;
	}
	return n;
}

/* The text in a pool, and rows for the batch's parts. */
static void batch_make(struct batch *batch, const struct question *question,
		       const struct pool_options *options)
{
	const struct pool *pool = &batch->pool;
	uint32_t n_rows = 0, bad = question->bad_position, row = 0;

	batch->pool = pool_make(options);
	batch->text = text_make(&batch->pool, SEED, question->n_positions);
	if (bad < question->n_positions)
		memset(pool_element(pool, question->bad_plane,
				    batch->text.pages[bad / options->page_size], 0,
				    bad % options->page_size, question->bad_dim),
		       0xff, type_bytes(options->type));
	for (uint32_t i = 0; i < batch->n_parts; i++)
		n_rows += batch->parts[i].n;
	batch->rows = rows_make(n_rows, options->n_kv_heads * question->group_heads,
				options->head_dim, question->q_type, KVT_ATTN_F32);
	for (uint32_t i = 0; i < batch->n_parts; i++) {
		const struct part *part = &batch->parts[i];

		batch->sequences[i] =
			(struct kvt_attn_sequence){ .n_queries = part->n,
						    .n_positions = part->n_positions,
						    .pages = batch->text.pages,
						    .n_pages = batch->text.n_pages,
						    .regions = question->regions,
						    .n_regions = question->n_regions };
		rows_fill(&batch->rows, row, SEED, part->first, part->n);
		row += part->n;
	}
}

static void batch_free(struct batch *batch)
{
	rows_free(&batch->rows);
	text_free(&batch->text);
	pool_free(&batch->pool);
}

static void batch_run(struct batch *batch, struct random *random, random_run_fn *run, void *context)
{
	static const int modes[] = { FE_TONEAREST, FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO };
	struct kvt_attn_prefill prefill = {
		.kv = batch->pool.view,
		.sequences = batch->sequences,
		.n_sequences = batch->n_parts,
		.n_q_heads = batch->rows.n_heads,
		.q = batch->rows.q.data,
		.out = batch->rows.out.data,
		.q_type = batch->rows.q_type,
		.out_type = KVT_ATTN_F32,
		.scale = 1.0f / sqrtf((float)batch->rows.head_dim),
	};

	run(&prefill, modes[random_below(random, 4)], random, context);
}

/* Equal bits; or both are NaN, whose bits are not promised. */
static bool row_same(const struct rows *a, uint32_t row_a, const struct rows *b, uint32_t row_b)
{
	uint32_t n = a->n_heads * a->head_dim;
	const float *x = (float *)a->out.data + (size_t)row_a * n;
	const float *y = (float *)b->out.data + (size_t)row_b * n;

	for (uint32_t i = 0; i < n; i++) {
		if (memcmp(&x[i], &y[i], sizeof *x) != 0 && !(isnan(x[i]) && isnan(y[i])))
			return false;
	}
	return true;
}

/* Compare rows that see the same in both. */
static void batches_compare(const struct question *question, const struct batch *whole,
			    const struct batch *batch)
{
	uint32_t row = 0;

	for (uint32_t i = 0; i < batch->n_parts; i++) {
		const struct part *part = &batch->parts[i];

		for (uint32_t j = 0; j < part->n; j++, row++) {
			uint32_t position = part->first + j;

			if (limit_of(question, position, part->n_positions) !=
			    limit_of(question, position, question->n_positions))
				continue;
			if (!row_same(&whole->rows, position - question->first, &batch->rows, row))
				case_fail(__FILE__, __LINE__,
					  "position %u, in a part of %u from %u with %u there, "
					  "page %u",
					  position, part->n, part->first, part->n_positions,
					  batch->pool.geometry.page_size);
		}
	}
}

void random_bits_test(const char *what, uint32_t seed, uint32_t n_positions_max,
		      uint32_t n_parts_max, random_run_fn *run, void *context)
{
	struct random random = { seed };
	struct question question = question_random(&random, n_positions_max);
	OWNED(batch) whole = { .n_parts = 1,
			       .parts = { { question.first, question.n_positions - question.first,
					    question.n_positions } } };

	case_begin("%s: bits, random %u: dim %u, %u heads x %u, %u of %u, page %u, %s KV, %s q, "
		   "%u regions, %s",
		   what, seed, question.pool.head_dim, question.pool.n_kv_heads,
		   question.group_heads, whole.parts[0].n, question.n_positions,
		   question.pool.page_size, type_name(question.pool.type),
		   type_name(question.q_type), question.n_regions,
		   question.bad_position < question.n_positions ? "a NaN" : "finite");
	batch_make(&whole, &question, &question.pool);
	batch_run(&whole, &random, run, context);
	for (uint32_t i = 0; i < 2; i++) {
		struct pool_options place = question.pool;
		OWNED(batch) batch = { .n_parts = 0 };

		place_random(&random, question.n_positions, &place);
		batch.n_parts = parts_random(&random, &question, batch.parts, n_parts_max);
		batch_make(&batch, &question, &place);
		batch_run(&batch, &random, run, context);
		batches_compare(&question, &whole, &batch);
	}
}
