/* SPDX-License-Identifier: Apache-2.0 */
/* append_prefill against attention in double precision: all paths, types, layouts, sizes, masks. A
 * row passes if its relative norm of the error is within the path's tolerance.
 *
 * Inputs: shapes from tables and from seeds. Invariant: no byte outside of valid elements is read
 * (guard pages, poison). */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/support.h"

#define N_SEQUENCES_MAX 6
#define N_REGIONS_MAX 4

struct shape {
	const char *name;
	uint32_t head_dim, n_kv_heads, group_heads, page_size, n_sequences;
	uint32_t lengths[N_SEQUENCES_MAX][2]; /* queries, positions */
	const struct shape_regions *regions; /* of each sequence */
};

struct shape_regions {
	uint32_t n;
	struct kvt_attn_region at[N_REGIONS_MAX];
};

static const struct shape_regions no_regions[N_SEQUENCES_MAX];
static const struct shape_regions many_regions[] = {
	{ 2, { { 0, 20 }, { 30, 47 } } },
	{ 2, { { 3, 10 }, { 30, 44 } } }, /* the second begins before the queries */
	{ 1, { { 35, 90 } } },            /* cut by the end */
	{ 3, { { 0, 5 }, { 280, 292 }, { 292, 300 } } },
};
static const struct shape_regions region_over_a_unit[] = { { 1, { { 1004, 1037 } } } };

/*
 * Sizes that are multiples of nothing; borders of pages, panels, blocks and units from both sides.
 */
static const struct shape shapes[] = {
	{ "one position", 64, 1, 1, 16, 1, { { 1, 1 } }, no_regions },
	{ "decode, head dim 128", 128, 2, 4, 64, 2, { { 1, 300 }, { 1, 1025 } }, no_regions },
	{ "prefill, head dim 128", 128, 2, 4, 64, 1, { { 130, 130 } }, no_regions },
	{ "append, head dim 80", 80, 2, 3, 16, 2, { { 37, 291 }, { 5, 64 } }, no_regions },
	{ "append, head dim 96", 96, 1, 7, 32, 2, { { 29, 257 }, { 1, 255 } }, no_regions },
	{ "append, head dim 256", 256, 1, 2, 8, 1, { { 33, 270 } }, no_regions },
	{ "odd head dim 17", 17, 3, 2, 4, 2, { { 9, 70 }, { 3, 3 } }, no_regions },
	{ "head dim 1", 1, 2, 1, 2, 1, { { 9, 40 } }, no_regions },
	{ "head dim 200", 200, 1, 8, 128, 1, { { 7, 140 } }, no_regions },
	{ "page size 1", 64, 2, 2, 1, 2, { { 11, 77 }, { 77, 77 } }, no_regions },
	{ "page size 256", 64, 2, 2, 256, 2, { { 11, 500 }, { 40, 256 } }, no_regions },
	{ "no queries between", 64, 1, 4, 16, 3, { { 3, 20 }, { 0, 50 }, { 6, 6 } }, no_regions },
	{ "several units", 64, 1, 6, 16, 2, { { 67, 2100 }, { 2, 1024 } }, no_regions },
	{ "several groups", 64, 1, 2, 64, 1, { { 13, 17000 } }, no_regions },
	{ "more rows than a job", 64, 1, 16, 16, 1, { { 150, 200 } }, no_regions },
	{ "regions", 64, 2, 2, 4, 4, { { 60, 60 }, { 25, 60 }, { 20, 40 }, { 12, 300 } },
	  many_regions },
	{ "region over a unit", 64, 1, 4, 16, 1, { { 40, 1040 } }, region_over_a_unit },
};

#define N_SHAPES (sizeof shapes / sizeof shapes[0])

struct types {
	uint32_t kv;
	uint32_t q;
	uint32_t out;
	double tolerance; /* of the relative norm of a row */
	double tolerance_bf16; /* if products are bf16 */
};

static const struct types type_sets[] = {
	{ KVT_ATTN_F32, KVT_ATTN_F32, KVT_ATTN_F32, 2e-6, 2e-6 },
	{ KVT_ATTN_F16, KVT_ATTN_F16, KVT_ATTN_F16, 6e-4, 6e-4 },
	{ KVT_ATTN_BF16, KVT_ATTN_BF16, KVT_ATTN_BF16, 4e-3, 6e-3 },
	{ KVT_ATTN_BF16, KVT_ATTN_BF16, KVT_ATTN_F32, 2e-6, 5e-3 },
	{ KVT_ATTN_F8_E4M3, KVT_ATTN_BF16, KVT_ATTN_F32, 2e-6, 5e-3 },
	{ KVT_ATTN_F8_E4M3, KVT_ATTN_F16, KVT_ATTN_F32, 2e-6, 2e-6 },
	{ KVT_ATTN_BF16, KVT_ATTN_F32, KVT_ATTN_F16, 6e-4, 6e-4 },
};

#define N_TYPE_SETS (sizeof type_sets / sizeof type_sets[0])

struct batch {
	struct pool pool;
	struct text texts[N_SEQUENCES_MAX];
	struct kvt_attn_sequence sequences[N_SEQUENCES_MAX];
	struct guarded tables[N_SEQUENCES_MAX];
	struct rows rows;
	struct kvt_attn_prefill prefill;
};

static void batch_make(struct batch *batch, const struct shape *shape, const struct types *types,
		       uint32_t layout, uint32_t order)
{
	struct pool_options options = { .page_size = shape->page_size,
					.n_kv_heads = shape->n_kv_heads,
					.head_dim = shape->head_dim,
					.type = types->kv,
					.layout = layout,
					.order = order,
					.seed = 5,
					.n_pages = 3 };
	uint32_t n_rows = 0, row = 0;

	for (uint32_t i = 0; i < shape->n_sequences; i++) {
		options.n_pages += (shape->lengths[i][1] - 1) / shape->page_size + 1;
		n_rows += shape->lengths[i][0];
	}
	batch->pool = pool_make(&options);
	batch->rows = rows_make(n_rows, shape->n_kv_heads * shape->group_heads, shape->head_dim,
				types->q, types->out);
	for (uint32_t i = 0; i < shape->n_sequences; i++) {
		uint32_t n_queries = shape->lengths[i][0], n_positions = shape->lengths[i][1];
		struct text *text = &batch->texts[i];

		*text = text_make(&batch->pool, i + 1, n_positions);
		batch->tables[i] = guarded_alloc(text->n_pages * sizeof *text->pages);
		memcpy(batch->tables[i].data, text->pages, batch->tables[i].bytes);
		rows_fill(&batch->rows, row, i + 1, n_positions - n_queries, n_queries);
		row += n_queries;
		batch->sequences[i] = (struct kvt_attn_sequence){
			.n_queries = n_queries,
			.n_positions = n_positions,
			.pages = batch->tables[i].data,
			.n_pages = text->n_pages,
			.regions = shape->regions[i].at,
			.n_regions = shape->regions[i].n,
		};
	}
	batch->prefill = (struct kvt_attn_prefill){
		.kv = batch->pool.view,
		.sequences = batch->sequences,
		.n_sequences = shape->n_sequences,
		.n_q_heads = batch->rows.n_heads,
		.q = batch->rows.q.data,
		.out = batch->rows.out.data,
		.q_type = types->q,
		.out_type = types->out,
		.scale = 1.0f / sqrtf((float)shape->head_dim),
	};
}

static void batch_free(struct batch *batch, const struct shape *shape)
{
	for (uint32_t i = 0; i < shape->n_sequences; i++) {
		text_free(&batch->texts[i]);
		guarded_free(&batch->tables[i]);
	}
	rows_free(&batch->rows);
	pool_free(&batch->pool);
}

/* Relative error of a row. */
static double row_error(const struct batch *batch, uint32_t sequence, uint32_t query, uint32_t row,
			uint32_t head)
{
	const struct kvt_attn_prefill *prefill = &batch->prefill;
	const struct kvt_attn_sequence *s = &batch->sequences[sequence];
	uint32_t limit = reference_limit(s->n_positions - s->n_queries + query, s->n_positions,
					 s->regions, s->n_regions);

	return rows_error(&batch->rows, row, head, &batch->pool, &batch->texts[sequence],
			  prefill->n_q_heads / prefill->kv.n_kv_heads, limit, prefill->scale);
}

/* Rows of a sequence that are checked; fewer on an emulated CPU, where the reference takes most of
 * the time. */
static uint32_t n_checks_most = 12;

/* Check some rows: the first and last of each sequence, and others at random. */
static void batch_check(const struct batch *batch, double tolerance)
{
	const struct kvt_attn_prefill *prefill = &batch->prefill;
	struct random random = { 3 };
	uint32_t row = 0;

	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		uint32_t n = batch->sequences[i].n_queries;
		uint64_t work = (uint64_t)batch->sequences[i].n_positions * prefill->kv.head_dim;
		uint32_t n_checks = work > 100000 ? 3 : n_checks_most;

		for (uint32_t check = 0; n && check < n_checks; check++) {
			uint32_t query = check == 0   ? 0
					 : check == 1 ? n - 1
						      : random_below(&random, n);
			uint32_t head = random_below(&random, prefill->n_q_heads);
			double error = row_error(batch, i, query, row + query, head);

			if (!(error <= tolerance))
				case_fail(__FILE__, __LINE__,
					  "sequence %u, query %u, head %u: relative "
					  "error %g, allowed %g",
					  i, query, head, error, tolerance);
		}
		row += n;
	}
}

static void shape_test(const struct shape *shape, const struct types *types, uint32_t variant,
		       struct kvt_attn_context *const *contexts)
{
	struct batch batch;

	batch_make(&batch, shape, types, variant & 1, variant >> 1 & 1);
	for (int isa = 1; isa < N_ISAS; isa++) {
		bool bf16 = isa_rounds((uint32_t)isa);

		if (!contexts[isa])
			continue;
		/* The largest cases take the portable path too long; it ran them in part. */
		if (isa == KVT_ATTN_ISA_PORTABLE && shape->lengths[0][1] > 10000 &&
		    variant)
			continue;
		case_begin("%s: %s, %s KV, %s q, %s out, %s, %s-major", isa_names[isa], shape->name,
			   type_name(types->kv), type_name(types->q), type_name(types->out),
			   variant & 1 ? "NHD" : "HND", variant & 2 ? "page" : "layer");
		memset(batch.rows.out.data, 0xff, batch.rows.out.bytes);
		EXPECT_EQUAL(kvt_attn_append_prefill(contexts[isa], &batch.prefill, NULL), 0);
		/* In one dimension weighted values may cancel each other, so the norm is small. */
		batch_check(&batch, (bf16 ? types->tolerance_bf16 : types->tolerance) *
					    (shape->head_dim == 1 ? 4 : 1));
	}
	batch_free(&batch, shape);
}

/* Rows of q and out that are not contiguous; bytes between them must not change. */
static void strides_test(struct kvt_attn_context *context, const char *name)
{
	static const struct shape shape = { "strides", 64, 2, 2, 16, 1, { { 9, 50 } }, no_regions };
	struct batch batch;
	uint32_t n = 9 * 4;
	OWNED(guarded) q = guarded_alloc(n * 80 * 4), out = guarded_alloc(n * 72 * 4);

	case_begin("%s: strides of q and out", name);
	batch_make(&batch, &shape, &type_sets[0], 0, 0);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &batch.prefill, NULL), 0);
	/*
	 * Heads apart from each other, in another order: [head][query], 80 and 72 elements a row.
	 */
	for (uint32_t i = 0; i < n; i++)
		memcpy((float *)q.data + (i % 4 * 9 + i / 4) * 80,
		       (float *)batch.rows.q.data + i * 64, 256);
	batch.prefill.q = q.data;
	batch.prefill.q_row_stride_bytes = 80 * 4;
	batch.prefill.q_head_stride_bytes = 9 * 80 * 4;
	batch.prefill.out = out.data;
	batch.prefill.out_row_stride_bytes = 72 * 4;
	batch.prefill.out_head_stride_bytes = 9 * 72 * 4;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &batch.prefill, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		const float *row = (float *)out.data + (i % 4 * 9 + i / 4) * 72;
		uint32_t gap[8];

		memcpy(gap, row + 64, sizeof gap);
		EXPECT(memcmp(row, (float *)batch.rows.out.data + i * 64, 256) == 0);
		for (int j = 0; j < 8; j++)
			EXPECT_EQUAL(gap[j], 0xffffffffu);
	}
	batch_free(&batch, &shape);
}

/* The result may be written over the queries. */
static void in_place_test(struct kvt_attn_context *context, const char *name)
{
	static const struct shape shape = {
		"in place", 64, 1, 4, 16, 1, { { 70, 90 } }, no_regions
	};
	struct batch batch;

	case_begin("%s: out in place of q", name);
	batch_make(&batch, &shape, &type_sets[0], 0, 0);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &batch.prefill, NULL), 0);
	batch.prefill.out = batch.rows.q.data;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &batch.prefill, NULL), 0);
	EXPECT(memcmp(batch.rows.q.data, batch.rows.out.data, batch.rows.out.bytes) == 0);
	batch_free(&batch, &shape);
}

/* Scores far apart: nearly all weight on one position, and all but one weight underflow. */
static void sharp_test(struct kvt_attn_context *context, const char *name)
{
	static const struct shape shape = {
		"sharp", 64, 1, 4, 16, 1, { { 20, 1500 } }, no_regions
	};
	struct batch batch;

	case_begin("%s: scores hundreds apart", name);
	batch_make(&batch, &shape, &type_sets[0], 0, 0);
	batch.prefill.scale = 40;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &batch.prefill, NULL), 0);
	batch_check(&batch, 2e-3);
	batch_free(&batch, &shape);
}

/*
 * A slab that ends with the last byte of the last valid position: no byte behind it may be touched.
 */
static void last_byte_test(struct kvt_attn_context *context, const char *name, uint32_t type)
{
	uint32_t dim = 72, page_size = 16, n = 5;
	size_t bytes = dim * type_bytes(type);
	OWNED(guarded) k = guarded_alloc(n * bytes), v = guarded_alloc(n * bytes);
	OWNED(rows) rows = rows_make(1, 1, dim, KVT_ATTN_BF16, KVT_ATTN_F32);
	uint32_t table = 0;
	struct kvt_attn_sequence sequence = {
		.n_queries = 1, .n_positions = n, .pages = &table, .n_pages = 1
	};
	struct kvt_attn_prefill prefill = {
		.kv = { .k = k.data,
			.v = v.data,
			.page_stride_bytes = page_size * bytes,
			.head_stride_bytes = page_size * bytes,
			.position_stride_bytes = bytes,
			.n_pages = 1,
			.page_size = page_size,
			.n_kv_heads = 1,
			.head_dim = dim,
			.type = type,
			.k_scale = 1,
			.v_scale = 1 },
		.sequences = &sequence,
		.n_sequences = 1,
		.n_q_heads = 1,
		.q = rows.q.data,
		.out = rows.out.data,
		.q_type = KVT_ATTN_BF16,
		.out_type = KVT_ATTN_F32,
		.scale = 0.1f,
	};

	case_begin("%s: a slab that ends with the last position, %s", name, type_name(type));
	for (uint32_t i = 0; i < n * dim; i++) {
		element_write((char *)k.data + i * type_bytes(type), type, 0.25 * (i % 7));
		element_write((char *)v.data + i * type_bytes(type), type, 1.5);
	}
	rows_fill(&rows, 0, 1, 0, 1);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &prefill, NULL), 0);
	for (uint32_t i = 0; i < dim; i++)
		EXPECT(fabsf(((float *)rows.out.data)[i] - 1.5f) < 0.01f);
}

static void random_run(const struct kvt_attn_prefill *prefill, struct random *random, void *context)
{
	EXPECT_EQUAL(kvt_attn_append_prefill(context, prefill, NULL), 0);
}

/* In few dimensions values may cancel each other, so the norm is small. */
static double random_tolerance(const struct scene *scene, uint32_t out_type, void *context)
{
	bool pairs = isa_rounds((uint32_t)kvt_attn_context_isa(context)) &&
		     scene->is.q_type == KVT_ATTN_BF16 &&
		     (scene->is.kv_type == KVT_ATTN_BF16 || scene->is.kv_type == KVT_ATTN_F8_E4M3);
	double rounding = out_type == KVT_ATTN_BF16 ? 4e-3 : out_type == KVT_ATTN_F16 ? 5e-4 : 0;

	return ((pairs ? 5e-3 : 2e-6) + rounding) * (scene->is.head_dim <= 8 ? 4 : 1);
}

int main(int argc, char **argv)
{
	bool emulated = argc > 1 && strcmp(argv[1], "--emulated") == 0;
	bool quick = emulated || (argc > 1 && strcmp(argv[1], "--quick") == 0);
	struct kvt_attn_context *contexts[N_ISAS] = { NULL };

	if (emulated)
		n_checks_most = 4;
	for (int isa = 1; isa < N_ISAS; isa++) {
		contexts[isa] = context_for((enum kvt_attn_isa)isa, 2, 0);
		if (!contexts[isa]) {
			case_begin("%s: all shapes", isa_names[isa]);
			case_skip("this CPU does not have the path");
		}
	}
	/* Every shape with every set of types. Layouts take turns; the default one gets all. */
	for (uint32_t i = 0; i < N_SHAPES; i++) {
		if (quick && shapes[i].lengths[0][1] > 2000)
			continue;
		for (uint32_t j = 0; j < N_TYPE_SETS; j++)
			shape_test(&shapes[i], &type_sets[j], (i + j) % 4, contexts);
	}
	for (int isa = 1; isa < N_ISAS; isa++) {
		if (!contexts[isa])
			continue;
		for (uint32_t seed = 1; seed <= (quick ? 20 : 120); seed++)
			random_test(isa_names[isa], seed, random_run, random_tolerance,
				    contexts[isa]);
		strides_test(contexts[isa], isa_names[isa]);
		in_place_test(contexts[isa], isa_names[isa]);
		sharp_test(contexts[isa], isa_names[isa]);
		for (uint32_t type = 0; type <= KVT_ATTN_F8_E4M3; type++)
			last_byte_test(contexts[isa], isa_names[isa], type);
		kvt_attn_close(contexts[isa]);
	}
	return cases_end();
}
