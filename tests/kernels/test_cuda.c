/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels on emulated hardware: their index arithmetic, masks, paging, merging and
 * planning. Rounding of a real device is not what is tested here, but that equal rows get equal
 * bits is.
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_plan.h"
#include "tests/kernels/emulated.h"
#include "tests/kernels/support.h"

struct run {
	struct pool pool;
	struct text text;
	uint32_t kv_type;
	uint32_t q_type;
	uint32_t group_heads;
	uint32_t head_dim;
};

static struct run run_make(uint32_t head_dim, uint32_t n_kv_heads, uint32_t group_heads,
			   uint32_t n_positions, uint32_t page_size, uint32_t kv_type,
			   uint32_t q_type)
{
	struct pool_options options = { .n_pages = n_positions / page_size + 9,
					.page_size = page_size,
					.n_kv_heads = n_kv_heads,
					.head_dim = head_dim,
					.type = kv_type,
					.layout = page_size & 1,
					.seed = 3 };
	struct run run = { .kv_type = kv_type,
			   .q_type = q_type,
			   .group_heads = group_heads,
			   .head_dim = head_dim,
			   .pool = pool_make(&options) };

	run.text = text_make(&run.pool, 1, n_positions);
	return run;
}

static void run_free(struct run *run)
{
	text_free(&run->text);
	pool_free(&run->pool);
}

static void launch(const char *kernel, uint32_t dim, bool bf16, bool f8,
		   const struct kvt_cuda_prefill *args, uint32_t grid)
{
	const char *kv = strcmp(kernel, "merge") == 0 ? "" : f8 ? "_f8" : "_16";
	char name[64];

	snprintf(name, sizeof name, "kvt_%s_%u_%s%s", kernel, dim, bf16 ? "bf16" : "f16", kv);
	emulated_launch(name, args, grid, 1);
}

/* The n queries from position first on, with what is planned for a device of n_resident blocks. */
static struct rows attend(const struct run *run, uint32_t first, uint32_t n, uint32_t n_resident,
			  uint64_t slots, const struct kvt_attn_region *regions, uint32_t n_regions)
{
	uint32_t n_heads = run->pool.geometry.n_kv_heads * run->group_heads;
	struct rows rows = rows_make(n, n_heads, run->head_dim, run->q_type, KVT_ATTN_F32);
	struct kvt_attn_sequence sequence = { .n_queries = n,
					      .n_positions = first + n,
					      .pages = run->text.pages,
					      .n_pages = run->text.n_pages,
					      .regions = regions,
					      .n_regions = n_regions };
	struct kvt_attn_prefill prefill = { .kv = run->pool.view,
					    .sequences = &sequence,
					    .n_sequences = 1,
					    .n_q_heads = n_heads,
					    .q = rows.q.data,
					    .out = rows.out.data,
					    .q_type = run->q_type,
					    .out_type = KVT_ATTN_F32,
					    .scale = 1.0f / sqrtf((float)run->head_dim) };
	uint32_t dim = kvt_cuda_dim(run->head_dim);
	bool bf16 = run->q_type == KVT_ATTN_BF16, f8 = run->kv_type == KVT_ATTN_F8_E4M3;
	struct kvt_cuda_plan plan = { 0 };
	const struct kvt_cuda_launch *launches;
	struct guarded partials;

	rows_fill(&rows, 0, 1, first, n);
	kvt_prefill_strides(&prefill);
	EXPECT_EQUAL(kvt_cuda_plan_make(&plan, &prefill, n_resident, slots), 0);
	partials = guarded_alloc(plan.slots_max * kvt_cuda_slot_bytes(dim));
	launches = plan.launches.data;
	for (uint32_t i = 0; i < plan.n_launches; i++) {
		struct kvt_cuda_prefill args;

		kvt_cuda_plan_args(&plan, &launches[i], &prefill,
				   (uint64_t)(uintptr_t)plan.memory.data,
				   (uint64_t)(uintptr_t)partials.data, &args);
		launch("attend", dim, bf16, f8, &args, launches[i].n_items);
		launch("merge", dim, bf16, f8, &args, launches[i].n_blocks);
		launch("repair", dim, bf16, f8, &args, launches[i].n_blocks);
	}
	guarded_free(&partials);
	kvt_cuda_plan_free(&plan);
	return rows;
}

static void check_rows(const struct run *run, const struct rows *rows, uint32_t first, uint32_t n,
		       const struct kvt_attn_region *regions, uint32_t n_regions)
{
	struct random random = { 7 };

	for (uint32_t i = 0; i < 10; i++) {
		uint32_t query = i == 0 ? 0 : i == 1 ? n - 1 : random_below(&random, n);
		uint32_t head = random_below(&random, rows->n_heads);
		size_t index = ((size_t)query * rows->n_heads + head) * run->head_dim;
		uint32_t limit = reference_limit(first + query, first + n, regions, n_regions);
		double expected[256], difference = 0, norm = 0;
		double tolerance = run->q_type == KVT_ATTN_BF16 ? 5e-3 : 1e-3;

		reference_row(&run->pool, &run->text,
			      (char *)rows->q.data + index * type_bytes(run->q_type), run->q_type,
			      head / run->group_heads, limit,
			      1.0 / (double)sqrtf((float)run->head_dim), expected);
		for (uint32_t j = 0; j < run->head_dim; j++) {
			double value = ((float *)rows->out.data)[index + j];

			difference += (value - expected[j]) * (value - expected[j]);
			norm += expected[j] * expected[j];
		}
		if (!(sqrt(difference / norm) <= tolerance))
			case_fail(__FILE__, __LINE__, "query %u, head %u: relative error %g", query,
				  head, sqrt(difference / norm));
	}
}

static void compare(const struct rows *expected, uint32_t expected_first, const struct rows *result,
		    uint32_t first, uint32_t n)
{
	size_t row_bytes = (size_t)expected->n_heads * expected->head_dim * sizeof(float);

	for (uint32_t i = 0; i < n; i++) {
		if (memcmp((char *)expected->out.data + (first - expected_first + i) * row_bytes,
			   (char *)result->out.data + i * row_bytes, row_bytes) != 0)
			case_fail(__FILE__, __LINE__, "position %u has other bits", first + i);
	}
}

static void reference_tests(void)
{
	static const struct {
		uint32_t head_dim, n_kv_heads, group_heads, n_positions, page_size, n_queries,
			kv_type, q_type;
	} cases[] = {
		{ 64, 1, 4, 150, 16, 40, KVT_ATTN_BF16, KVT_ATTN_BF16 },
		{ 80, 2, 3, 100, 1, 100, KVT_ATTN_F16, KVT_ATTN_F16 },
		{ 96, 1, 7, 90, 32, 11, KVT_ATTN_BF16, KVT_ATTN_BF16 },
		{ 128, 1, 8, 200, 64, 17, KVT_ATTN_BF16, KVT_ATTN_BF16 },
		{ 128, 1, 2, 130, 16, 33, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16 },
		{ 256, 1, 2, 70, 16, 35, KVT_ATTN_F16, KVT_ATTN_F16 },
		{ 64, 1, 2, 66, 16, 1, KVT_ATTN_F8_E4M3, KVT_ATTN_F16 },
		{ 17, 1, 2, 70, 4, 40, KVT_ATTN_BF16, KVT_ATTN_BF16 }, /* rows that are no lines */
		{ 72, 1, 2, 70, 4, 20, KVT_ATTN_BF16, KVT_ATTN_BF16 },
	};

	for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct run run = run_make(cases[i].head_dim, cases[i].n_kv_heads,
					  cases[i].group_heads, cases[i].n_positions,
					  cases[i].page_size, cases[i].kv_type, cases[i].q_type);
		uint32_t first = cases[i].n_positions - cases[i].n_queries;
		struct rows rows;

		case_begin("emulated: dim %u, group of %u, %u of %u, page size %u, %s KV, %s q",
			   cases[i].head_dim, cases[i].group_heads, cases[i].n_queries,
			   cases[i].n_positions, cases[i].page_size, type_name(cases[i].kv_type),
			   type_name(cases[i].q_type));
		rows = attend(&run, first, cases[i].n_queries, 100, 1000, NULL, 0);
		check_rows(&run, &rows, first, cases[i].n_queries, NULL, 0);
		rows_free(&rows);
		run_free(&run);
	}
}

static void regions_test(void)
{
	static const struct kvt_attn_region regions[] = { { 0, 20 }, { 60, 90 }, { 95, 200 } };
	struct run run = run_make(64, 1, 2, 110, 16, KVT_ATTN_BF16, KVT_ATTN_BF16);
	struct rows rows, later;

	case_begin("emulated: regions");
	rows = attend(&run, 0, 110, 100, 1000, regions, 3);
	check_rows(&run, &rows, 0, 110, regions, 3);
	later = attend(&run, 70, 40, 100, 1000, regions, 3);
	compare(&rows, 0, &later, 70, 40);
	rows_free(&rows);
	rows_free(&later);
	run_free(&run);
}

static void bits_test(void)
{
	struct run run = run_make(64, 1, 4, 1300, 16, KVT_ATTN_BF16, KVT_ATTN_BF16);
	static const uint32_t chunks[] = { 1, 2, 17, 5, 35 };
	struct rows expected, result;
	uint32_t first = 1240;

	case_begin("emulated: chunks, decode, spans and memory change no bits");
	expected = attend(&run, 1240, 60, 1, 1000, NULL, 0); /* spans of groups */
	check_rows(&run, &expected, 1240, 60, NULL, 0);
	result = attend(&run, 1240, 60, 1000, 1000, NULL, 0); /* spans of units */
	compare(&expected, 1240, &result, 1240, 60);
	rows_free(&result);
	result = attend(&run, 1240, 60, 1000, 1, NULL, 0); /* a launch for each block */
	compare(&expected, 1240, &result, 1240, 60);
	rows_free(&result);
	for (uint32_t i = 0; i < 5; i++) {
		result = attend(&run, first, chunks[i], 1000, 1000, NULL, 0);
		compare(&expected, 1240, &result, first, chunks[i]);
		rows_free(&result);
		first += chunks[i];
	}
	rows_free(&expected);
	run_free(&run);
}

static void groups_test(void)
{
	struct run run = run_make(16, 1, 2, 9300, 64, KVT_ATTN_BF16, KVT_ATTN_BF16);
	struct rows groups, units;

	case_begin("emulated: two groups, by groups and by units");
	groups = attend(&run, 9298, 2, 1, 1000, NULL, 0);
	units = attend(&run, 9298, 2, 1000, 1000, NULL, 0);
	check_rows(&run, &groups, 9298, 2, NULL, 0);
	compare(&groups, 9298, &units, 9298, 2);
	rows_free(&groups);
	rows_free(&units);
	run_free(&run);
}

static void poison_test(uint32_t at, uint32_t n_resident)
{
	struct run run = run_make(64, 1, 2, 1060, 16, KVT_ATTN_BF16, KVT_ATTN_BF16);
	struct rows clean, poisoned;

	case_begin("emulated: V not finite at position %u, spans of %s", at,
		   n_resident > 1 ? "units" : "groups");
	clean = attend(&run, 1000, 60, n_resident, 1000, NULL, 0);
	element_write(pool_element(&run.pool, 1, run.text.pages[at / 16], 0, at % 16, 5),
		      run.kv_type, INFINITY);
	poisoned = attend(&run, 1000, 60, n_resident, 1000, NULL, 0);
	compare(&clean, 1000, &poisoned, 1000, at - 1000);
	EXPECT(!isfinite(((float *)poisoned.out.data)[(at - 1000) * 128 + 5]));
	EXPECT(!isfinite(((float *)poisoned.out.data)[59 * 128 + 64 + 5]));
	EXPECT(isfinite(((float *)poisoned.out.data)[59 * 128 + 64 + 6]));
	rows_free(&clean);
	rows_free(&poisoned);
	run_free(&run);
}

int main(void)
{
	reference_tests();
	regions_test();
	bits_test();
	groups_test();
	poison_test(1021, 1);
	poison_test(1033, 1000);
	return cases_end();
}
