/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Same bits, warm or cold: a row's result does not depend on what was cached, on chunks, batch,
 * page order, layout, page size, threads, or memory for partial results. Positions that it may not
 * see do not influence it.
 *
 * Inputs: one text, asked in many ways. Invariant: bits of each row are equal on one path.
 */

#include <math.h>
#include <pthread.h>
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/support.h"

#define SEED 11

/* The same text in another pool. */
struct setting {
	struct pool pool;
	struct text text;
	struct text other;
};

struct model {
	uint32_t head_dim;
	uint32_t n_kv_heads;
	uint32_t group_heads;
	uint32_t kv_type;
	uint32_t q_type;
	uint32_t n_positions;
	uint32_t n_expected; /* rows computed at once as the expected result: the last ones */
	const struct kvt_attn_region *regions;
	uint32_t n_regions;
};

static struct setting setting_make(const struct model *model, uint32_t page_size, uint32_t layout,
				   uint32_t order, uint64_t seed)
{
	struct pool_options options = { .page_size = page_size,
					.n_kv_heads = model->n_kv_heads,
					.head_dim = model->head_dim,
					.type = model->kv_type,
					.layout = layout,
					.order = order,
					.seed = seed };
	struct setting setting;

	options.n_pages = (model->n_positions + 600) / page_size + 4;
	setting.pool = pool_make(&options);
	/* Another text in front, so that pages differ in more than their order. */
	setting.other = text_make(&setting.pool, 99, 300);
	setting.text = text_make(&setting.pool, SEED, model->n_positions);
	return setting;
}

static void setting_free(struct setting *setting)
{
	text_free(&setting->text);
	text_free(&setting->other);
	pool_free(&setting->pool);
}

/* On an emulated CPU a row costs hundreds of times as much: fewer rows and repetitions reach every
 * corner there (group, head dim, page size, one row, tails of tiles, blocks and units). */
static bool emulated;

/* The caller's rounding mode during an operation. Only one test changes it. */
static int rounding_mode = FE_TONEAREST;

/*
 * Compute the positions [first, first + n) when n_positions positions exist. Free the result with
 * rows_free().
 */
static struct rows run(struct kvt_attn_context *context, const struct model *model,
		       const struct setting *setting, uint32_t first, uint32_t n, bool crowded)
{
	struct kvt_attn_region cut[4];
	struct kvt_attn_sequence sequences[3] = {
		{ .n_queries = 3,
		  .n_positions = 290,
		  .pages = setting->other.pages,
		  .n_pages = setting->other.n_pages },
		{ .n_queries = n,
		  .n_positions = first + n,
		  .pages = setting->text.pages,
		  .n_pages = setting->text.n_pages,
		  .regions = cut,
		  .n_regions = model->n_regions },
		{ .n_queries = 40,
		  .n_positions = 41,
		  .pages = setting->text.pages,
		  .n_pages = setting->text.n_pages },
	};
	uint32_t before = crowded ? 3 : 0, behind = crowded ? 40 : 0;
	uint32_t n_heads = model->n_kv_heads * model->group_heads;
	struct rows rows = rows_make(before + n + behind, n_heads, model->head_dim, model->q_type,
				     KVT_ATTN_F32);
	struct kvt_attn_prefill prefill = {
		.kv = setting->pool.view,
		.sequences = crowded ? sequences : sequences + 1,
		.n_sequences = crowded ? 3 : 1,
		.n_q_heads = n_heads,
		.q = rows.q.data,
		.out = rows.out.data,
		.q_type = model->q_type,
		.out_type = KVT_ATTN_F32,
		.scale = 1.0f / sqrtf((float)model->head_dim),
	};

	for (uint32_t i = 0; i < model->n_regions; i++)
		cut[i] = model->regions[i];
	rows_fill(&rows, 0, 99, 287, before);
	rows_fill(&rows, before, SEED, first, n);
	rows_fill(&rows, before + n, 5, 1, behind);
	fesetround(rounding_mode);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &prefill, NULL), 0);
	EXPECT_EQUAL(fegetround(), rounding_mode);
	fesetround(FE_TONEAREST);
	if (crowded) {
		/* Only the middle is compared. */
		size_t row_bytes = (size_t)n_heads * model->head_dim * sizeof(float);
		struct guarded out = guarded_alloc(n * row_bytes);

		memcpy(out.data, (char *)rows.out.data + before * row_bytes, n * row_bytes);
		guarded_free(&rows.out);
		rows.out = out;
	}
	return rows;
}

/* Positions [first, first + n) have the bits of the expected rows, which are the last ones. */
static void expect_same(struct kvt_attn_context *context, const struct model *model,
			const struct setting *setting, const struct rows *expected, uint32_t first,
			uint32_t n, bool crowded)
{
	OWNED(rows) result = run(context, model, setting, first, n, crowded);

	rows_compare(expected, model->n_positions - model->n_expected, &result, first, n);
}

/* Chunks of the given sizes, in turn, over all expected rows. */
static void chunks_test(struct kvt_attn_context *context, const struct model *model,
			const struct setting *setting, const struct rows *expected,
			const uint32_t *sizes, uint32_t n_sizes, bool crowded)
{
	uint32_t first = model->n_positions - model->n_expected, i = 0;

	while (first < model->n_positions) {
		uint32_t n = sizes[i++ % n_sizes];

		if (n > model->n_positions - first)
			n = model->n_positions - first;
		expect_same(context, model, setting, expected, first, n, crowded);
		first += n;
	}
}

static void decode_test(struct kvt_attn_context *context, const struct model *model,
			const struct setting *setting, const struct rows *expected)
{
	static const uint32_t places[] = { 0,	 1,    2,    15,   63,	 64,   127,
					   255,	 256,  1022, 1023, 1024, 1025, 2047,
					   2048, 8190, 8191, 8192, 8193, 9216 };
	uint32_t expected_first = model->n_positions - model->n_expected;
	struct random random = { 17 };

	for (uint32_t i = 0; i < (emulated ? 24 : 40); i++) {
		uint32_t place =
			i < sizeof places / sizeof places[0]
				? places[i]
				: expected_first + random_below(&random, model->n_expected);

		if (place >= expected_first && place < model->n_positions)
			expect_same(context, model, setting, expected, place, 1, i & 1);
	}
}

static void model_test(const char *name, enum kvt_attn_isa isa, const struct model *model)
{
	static const uint32_t small[] = { 1, 2, 3, 5, 7, 13, 64 }, large[] = { 727, 100, 333 },
			      odd[] = { 29, 61 };
	const char *path = isa_names[isa];
	OWNED(setting) home = setting_make(model, 16, KVT_ATTN_HND, KVT_ATTN_LAYER_MAJOR, 1);
	OWNED(setting) away = setting_make(model, 1, KVT_ATTN_NHD, KVT_ATTN_PAGE_MAJOR, 2);
	OWNED(setting) wide = setting_make(model, 256, KVT_ATTN_HND, KVT_ATTN_PAGE_MAJOR, 3);
	struct kvt_attn_context *one = context_for(isa, 1, 0);
	struct kvt_attn_context *three = context_for(isa, 3, 0);
	struct kvt_attn_context *tight = context_for(isa, 5, 20000);
	uint32_t first = model->n_positions - model->n_expected;
	OWNED(rows) expected = run(one, model, &home, first, model->n_expected, false);

	case_begin("%s: %s: computed cold", path, name);
	for (size_t i = 0; i < expected.out.bytes / 4; i++)
		EXPECT(isfinite(((float *)expected.out.data)[i]));
	case_begin("%s: %s: small chunks", path, name);
	if (!model->n_regions)
		chunks_test(one, model, &home, &expected, small, 7, false);
	case_begin("%s: %s: large chunks, other pages and layout, three threads", path, name);
	if (!model->n_regions)
		chunks_test(three, model, &away, &expected, large, 3, false);
	case_begin("%s: %s: in a batch, page size 256, five threads, no scratch", path, name);
	if (!model->n_regions)
		chunks_test(tight, model, &wide, &expected, odd, 2, true);
	case_begin("%s: %s: decode", path, name);
	if (!model->n_regions) {
		decode_test(one, model, &home, &expected);
		decode_test(three, model, &away, &expected);
		decode_test(tight, model, &wide, &expected);
	}
	case_begin("%s: %s: all at once with other threads and pages", path, name);
	expect_same(three, model, &wide, &expected, first, model->n_expected, true);
	expect_same(tight, model, &away, &expected, first, model->n_expected, false);
	kvt_attn_close(one);
	kvt_attn_close(three);
	kvt_attn_close(tight);
}

/*
 * Chunk borders inside a region change nothing for rows outside of it, nor for those of a whole
 * region.
 */
static void region_chunks_test(enum kvt_attn_isa isa)
{
	static const struct kvt_attn_region regions[] = { { 0, 37 }, { 90, 130 }, { 130, 141 } };
	static const uint32_t borders[] = { 37, 60, 90, 130, 141, 180 };
	struct model model = { 64, 2, 3, KVT_ATTN_BF16, KVT_ATTN_BF16, 180, 180, regions, 3 };
	OWNED(setting) setting = setting_make(&model, 4, KVT_ATTN_HND, KVT_ATTN_LAYER_MAJOR, 1);
	struct kvt_attn_context *context = context_for(isa, 2, 0);
	OWNED(rows) expected = run(context, &model, &setting, 0, 180, false);
	uint32_t first = 0;

	case_begin("%s: chunks between regions, and a region resumed in its middle",
		   isa_names[isa]);
	for (uint32_t i = 0; i < 6; i++) {
		expect_same(context, &model, &setting, &expected, first, borders[i] - first, false);
		first = borders[i];
	}
	/*
	 * The cached boundary cuts the second region at 100; all its KV is present by the end of
	 * this chunk.
	 */
	expect_same(context, &model, &setting, &expected, 100, 60, false);
	kvt_attn_close(context);
}

/* A later position whose K or V is not finite must not reach the rows before it. */
static void poison_test(enum kvt_attn_isa isa, uint32_t kv_type, uint32_t q_type, uint32_t plane,
			uint32_t at, double poison)
{
	/* Emulated: rows that share tiles and blocks of positions with it, and some beyond. */
	uint32_t begin = emulated && at > 160 ? at - 160 : 0, end = emulated ? at + 40 : 1200;
	struct model model = { 80, 2, 2, kv_type, q_type, end, end - begin, NULL, 0 };
	OWNED(setting) setting = setting_make(&model, 16, KVT_ATTN_NHD, KVT_ATTN_LAYER_MAJOR, 4);
	struct kvt_attn_context *context = context_for(isa, 2, 0);
	OWNED(rows) clean = run(context, &model, &setting, begin, end - begin, false);
	const size_t row_floats = 4 * 80, head_floats = 2 * 80;
	const float *out;

	case_begin("%s: %s %g at position %u, %s", isa_names[isa], plane ? "V" : "K", poison, at,
		   type_name(kv_type));
	element_write(pool_element(&setting.pool, plane, setting.text.pages[at / 16], 1, at % 16,
				   77),
		      kv_type, poison);
	OWNED(rows) poisoned = run(context, &model, &setting, begin, end - begin, false);

	if (at)
		rows_compare(&clean, begin, &poisoned, begin, at - begin);
	/* Few rows at a time take other loops. */
	for (uint32_t n = 1; n <= 9; n += n < 3 ? 1 : 2) {
		uint32_t first = at < n / 2 ? 0 : at - n / 2;
		OWNED(rows) few = run(context, &model, &setting, first, n, false);

		rows_compare(&poisoned, begin, &few, first, n);
	}
	/* It does reach later rows of its head, or this test could not fail. */
	out = poisoned.out.data;
	EXPECT(!isfinite(out[(at - begin) * row_floats + head_floats + 77]));
	EXPECT(!isfinite(out[(end - 1 - begin) * row_floats + head_floats + 77]));
	EXPECT(isfinite(out[(end - 1 - begin) * row_floats + 77]));
	kvt_attn_close(context);
}

/* The caller's rounding mode, in one of the threads only, has no influence. */
static void rounding_test(enum kvt_attn_isa isa)
{
	struct model model = { 64, 1, 4, KVT_ATTN_F32, KVT_ATTN_F32, 1500, 200, NULL, 0 };
	OWNED(setting) setting = setting_make(&model, 16, KVT_ATTN_HND, KVT_ATTN_LAYER_MAJOR, 1);
	struct kvt_attn_context *context = context_for(isa, 2, 0);
	OWNED(rows) expected = run(context, &model, &setting, 1300, 200, false);

	case_begin("%s: caller's rounding mode", isa_names[isa]);
	rounding_mode = FE_UPWARD;
	expect_same(context, &model, &setting, &expected, 1300, 200, false);
	rounding_mode = FE_TONEAREST;
	kvt_attn_close(context);
}

/* Two threads share a context, and then have one each. */
struct caller {
	struct kvt_attn_context *context;
	const struct model *model;
	const struct setting *setting;
	struct rows result;
};

static void *caller_main(void *argument)
{
	struct caller *caller = argument;

	for (int i = 0; i < (emulated ? 2 : 10); i++) {
		if (i)
			rows_free(&caller->result);
		caller->result = run(caller->context, caller->model, caller->setting, 1300,
				     caller->model->n_expected, i & 1);
	}
	return NULL;
}

static void callers_test(enum kvt_attn_isa isa, bool shared)
{
	uint32_t n = emulated ? 40 : 200;
	struct model model = { 64, 2, 2, KVT_ATTN_BF16, KVT_ATTN_BF16, 1300 + n, n, NULL, 0 };
	OWNED(setting) setting = setting_make(&model, 16, KVT_ATTN_HND, KVT_ATTN_LAYER_MAJOR, 1);
	struct kvt_attn_context *contexts[2];
	struct caller callers[2];
	struct rows expected;
	pthread_t threads[2];

	case_begin("%s: two callers, %s", isa_names[isa], shared ? "one context" : "two contexts");
	contexts[0] = context_for(isa, 2, 0);
	contexts[1] = context_for(isa, 2, 0);
	expected = run(contexts[0], &model, &setting, 1300, n, false);
	for (int i = 0; i < 2; i++) {
		callers[i] = (struct caller){ .context = contexts[shared ? 0 : i],
					      .model = &model,
					      .setting = &setting };
		pthread_create(&threads[i], NULL, caller_main, &callers[i]);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		rows_compare(&expected, 1300, &callers[i].result, 1300, n);
		rows_free(&callers[i].result);
	}
	kvt_attn_close(contexts[0]);
	kvt_attn_close(contexts[1]);
	rows_free(&expected);
}

static void poison_tests(enum kvt_attn_isa isa)
{
	static const uint32_t places[] = { 1, 6, 64, 301, 1023, 1024, 1101 };

	for (uint32_t i = emulated ? 2 : 0; i < 7; i += emulated ? 3 : 1) {
		poison_test(isa, KVT_ATTN_BF16, KVT_ATTN_BF16, 1, places[i], INFINITY);
		poison_test(isa, KVT_ATTN_F32, KVT_ATTN_F32, 1, places[i], i & 1 ? NAN : -INFINITY);
	}
	poison_test(isa, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16, 1, 333, NAN);
	poison_test(isa, KVT_ATTN_BF16, KVT_ATTN_BF16, 0, 500, NAN);
	poison_test(isa, KVT_ATTN_F32, KVT_ATTN_F32, 0, 501, NAN);
	poison_test(isa, KVT_ATTN_F16, KVT_ATTN_F16, 1, 501, INFINITY);
}

static void isa_test(enum kvt_attn_isa isa, bool quick)
{
	static const struct kvt_attn_region regions[] = { { 0, 30 },
							  { 1000, 1100 },
							  { 1101, 1500 } };
	struct model models[] = {
		{ 64, 1, 2, KVT_ATTN_F32, KVT_ATTN_F32, 1300, 1300, NULL, 0 },
		{ 64, 2, 4, KVT_ATTN_BF16, KVT_ATTN_BF16, 1300, 1300, NULL, 0 },
		{ 80, 1, 3, KVT_ATTN_F16, KVT_ATTN_F16, 1100, 300, NULL, 0 },
		{ 33, 1, 5, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16, 1100, 300, NULL, 0 },
		{ 32, 1, 4, KVT_ATTN_BF16, KVT_ATTN_BF16, 1500, 1500, regions, 3 },
		{ 80, 1, 7, KVT_ATTN_BF16, KVT_ATTN_BF16, 1150, 140, NULL, 0 },
		{ 256, 1, 8, KVT_ATTN_BF16, KVT_ATTN_BF16, 300, 40, NULL, 0 },
		{ 36, 1, 5, KVT_ATTN_BF16, KVT_ATTN_BF16, 300, 100, NULL, 0 },
		{ 104, 2, 6, KVT_ATTN_BF16, KVT_ATTN_BF16, 1100, 90, NULL, 0 },
		{ 32, 8, 4, KVT_ATTN_BF16, KVT_ATTN_BF16, 1100, 40, NULL, 0 },
		{ 16, 40, 2, KVT_ATTN_BF16, KVT_ATTN_BF16, 600, 30, NULL, 0 },
		{ 48, 5, 3, KVT_ATTN_F32, KVT_ATTN_F32, 1100, 40, NULL, 0 },
		{ 24, 3, 17, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16, 1100, 30, NULL, 0 },
		{ 64, 1, 4, KVT_ATTN_BF16, KVT_ATTN_BF16, 9300, 240, NULL, 0 },
		{ 64, 1, 1, KVT_ATTN_F32, KVT_ATTN_F32, 17000, 100, NULL, 0 },
	};
	static const char *const names[] = { "fp32",
					     "bf16",
					     "fp16, dim 80",
					     "fp8, dim 33",
					     "regions",
					     "bf16, dim 80, group of 7",
					     "bf16, dim 256, group of 8",
					     "bf16, dim 36, group of 5",
					     "bf16, dim 104, group of 6",
					     "bf16, 8 KV heads",
					     "bf16, 40 KV heads",
					     "fp32, 5 KV heads",
					     "fp8, 3 KV heads of 17",
					     "two groups, bf16",
					     "three groups, fp32" };

	for (uint32_t i = 0; i < (quick ? 13 : 15); i++) {
		if (emulated && models[i].n_expected > 100)
			continue;
		if (emulated && models[i].n_positions > 300 && models[i].n_expected > 30)
			models[i].n_expected = 30; /* chunks of 1 to 12, 29 + 1, and all 30 */
		model_test(names[i], isa, &models[i]);
	}
	region_chunks_test(isa);
	poison_tests(isa);
	rounding_test(isa);
	callers_test(isa, true);
	callers_test(isa, false);
}

/* Any number of threads, and any room for partial results. */
static void random_run(const struct kvt_attn_prefill *prefill, int mode, struct random *random,
		       void *isa)
{
	static const uint64_t scratch[] = { 0, 0, 1, 100000, 1000000 };
	struct kvt_attn_context *context = context_for(
		*(enum kvt_attn_isa *)isa, 1 + random_below(random, 5),
		scratch[random_below(random, 5)]);

	fesetround(mode);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, prefill, NULL), 0);
	fesetround(FE_TONEAREST);
	kvt_attn_close(context);
}

/*
 * --emulated PATH: on an emulated CPU or with a sanitizer, this path alone, with the shapes of
 * --quick that are small.
 */
int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	uint32_t seed = random_seed(), n;

	if (argc > 2 && strcmp(argv[1], "--emulated") == 0)
		emulated = quick = true;
	n = random_cases(emulated ? 1 : quick ? 4 : 12);
	for (int isa = 1; isa < N_ISAS; isa++) {
		struct kvt_attn_context *context = context_for((enum kvt_attn_isa)isa, 1, 0);

		if (emulated && strcmp(isa_names[isa], argv[2]) != 0) {
			kvt_attn_close(context);
			continue;
		}
		if (!context) {
			case_begin("%s: same bits", isa_names[isa]);
			case_skip("this CPU does not have the path");
			continue;
		}
		kvt_attn_close(context);
		isa_test((enum kvt_attn_isa)isa, quick);
		for (uint32_t i = 0; i < n; i++)
			random_bits_test(isa_names[isa], seed + i, emulated ? 2500 : 6000,
					 RANDOM_PARTS_MAX, random_run, &isa);
	}
	return cases_end();
}
