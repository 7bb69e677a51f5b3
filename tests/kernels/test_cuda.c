/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels on emulated hardware: their index arithmetic, masks, paging, merging and
 * planning. It does not test a device's rounding, but that equal rows get equal bits.
 *
 * Inputs: shapes, plans and schedules. Invariant: results within tolerance of the reference, equal
 * bits for equal rows.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_plan.h"
#include "tests/kernels/emulated.h"
#include "tests/kernels/support.h"

static void launch(const char *kernel, const char *name, const struct kvt_cuda_prefill *args,
		   uint32_t grid)
{
	char whole[64];

	snprintf(whole, sizeof whole, "kvt_%s_%s", kernel, name);
	emulated_launch(whole, args, grid, 1);
}

/* Of the batches that follow. */
static uint32_t n_stages = 2;

/* A batch, with the plan for a device of n_resident blocks, as in cuda_host.c. */
static void batch_run(const struct kvt_attn_prefill *prefill, uint32_t n_resident, uint64_t slots)
{
	uint32_t dim = kvt_cuda_dim(prefill->kv.head_dim);
	struct kvt_cuda_fit fit = { .n_resident = n_resident, .n_stages = n_stages };
	OWNED(kvt_cuda_plan) plan = { 0 };
	const struct kvt_cuda_launch *launches;
	struct guarded partials;
	char name[16], dim_name[16];

	kvt_cuda_kernel_name(prefill, name, sizeof name);
	snprintf(dim_name, sizeof dim_name, "%u", dim);
	EXPECT_EQUAL(kvt_cuda_plan_make(&plan, prefill, &fit, slots), 0);
	partials = guarded_alloc(plan.slots_max * kvt_cuda_slot_bytes(dim));
	launches = plan.launches.data;
	for (uint32_t i = 0; i < plan.n_launches; i++) {
		struct kvt_cuda_prefill args;

		kvt_cuda_plan_args(&plan, &launches[i], prefill,
				   (uint64_t)(uintptr_t)plan.memory.data,
				   (uint64_t)(uintptr_t)partials.data, &args);
		launch("attend", name, &args, launches[i].n_items);
		if (launches[i].n_split)
			launch("merge", dim_name, &args, launches[i].n_blocks);
		if (launches[i].n_uneven)
			launch("repair", name, &args, launches[i].n_blocks);
	}
	guarded_free(&partials);
}

static struct kvt_attn_prefill prefill_make(const struct scene *scene, struct rows *rows,
					    const struct kvt_attn_sequence *sequences, uint32_t n)
{
	struct kvt_attn_prefill prefill = { .kv = scene->pool.view,
					    .sequences = sequences,
					    .n_sequences = n,
					    .n_q_heads = rows->n_heads,
					    .q = rows->q.data,
					    .out = rows->out.data,
					    .q_type = rows->q_type,
					    .out_type = rows->out_type,
					    .scale = 1.0f / sqrtf((float)scene->is.head_dim) };

	kvt_prefill_strides(&prefill);
	return prefill;
}

/* The n queries from position first on. */
static struct rows attend(const struct scene *scene, uint32_t first, uint32_t n,
			  uint32_t n_resident, uint64_t slots,
			  const struct kvt_attn_region *regions, uint32_t n_regions)
{
	const struct scene_options *is = &scene->is;
	struct rows rows = rows_make(n, is->n_kv_heads * is->group_heads, is->head_dim, is->q_type,
				     KVT_ATTN_F32);
	struct kvt_attn_sequence sequence = { .n_queries = n,
					      .n_positions = first + n,
					      .pages = scene->text.pages,
					      .n_pages = scene->text.n_pages,
					      .regions = regions,
					      .n_regions = n_regions };
	struct kvt_attn_prefill prefill = prefill_make(scene, &rows, &sequence, 1);

	rows_fill(&rows, 0, 1, first, n);
	batch_run(&prefill, n_resident, slots);
	return rows;
}

/* Largest relative error: rounding of weights, and of out. */
static double tolerance_of(const struct scene *scene, uint32_t out_type)
{
	bool same = scene->is.kv_type == scene->is.q_type || scene->is.kv_type == KVT_ATTN_F8_E4M3;
	double products = scene->is.q_type == KVT_ATTN_F32 || !same ? 2e-6
			  : scene->is.q_type == KVT_ATTN_BF16       ? 5e-3
							       : 1e-3;
	double rounding = out_type == KVT_ATTN_BF16 ? 4e-3 : out_type == KVT_ATTN_F16 ? 5e-4 : 0;

	return products + rounding;
}

/* Compare row number row of the result, whose query is at a position, with double precision. */
static void check_row(const struct scene *scene, const struct rows *rows, uint32_t row,
		      uint32_t head, uint32_t limit)
{
	double error = rows_error(rows, row, head, &scene->pool, &scene->text,
				  scene->is.group_heads, limit,
				  1.0 / (double)sqrtf((float)scene->is.head_dim));

	if (!(error <= tolerance_of(scene, rows->out_type)))
		case_fail(__FILE__, __LINE__, "row %u, head %u: relative error %g", row, head,
			  error);
}

static void check_rows(const struct scene *scene, const struct rows *rows, uint32_t first,
		       uint32_t n, const struct kvt_attn_region *regions, uint32_t n_regions)
{
	struct random random = { 7 };

	for (uint32_t i = 0; i < 10; i++) {
		uint32_t query = i == 0 ? 0 : i == 1 ? n - 1 : random_below(&random, n);

		check_row(scene, rows, query, random_below(&random, rows->n_heads),
			  reference_limit(first + query, first + n, regions, n_regions));
	}
}

static void reference_tests(void)
{
	for (uint32_t i = 0; i < N_SCENE_SHAPES; i++) {
		const struct scene_options *is = &scene_shapes[i].scene;
		OWNED(scene) scene = scene_make(is);
		uint32_t n = scene_shapes[i].n, first = is->n_positions - n;
		OWNED(rows) rows = attend(&scene, first, n, 100, 1000, NULL, 0);

		case_begin("emulated: dim %u, group of %u, %u of %u, page size %u, %s KV, %s q",
			   is->head_dim, is->group_heads, n, is->n_positions, is->page_size,
			   type_name(is->kv_type), type_name(is->q_type));
		check_rows(&scene, &rows, first, n, NULL, 0);
	}
}

static void regions_test(void)
{
	static const struct kvt_attn_region regions[] = { { 0, 20 }, { 60, 90 }, { 95, 200 } };
	OWNED(scene) scene = scene_make(&(struct scene_options){
		64, 1, 2, 110, 16, KVT_ATTN_BF16, KVT_ATTN_BF16 });
	OWNED(rows) rows = attend(&scene, 0, 110, 100, 1000, regions, 3);
	OWNED(rows) later = attend(&scene, 70, 40, 100, 1000, regions, 3);

	case_begin("emulated: regions");
	check_rows(&scene, &rows, 0, 110, regions, 3);
	rows_compare(&rows, 0, &later, 70, 40);
}

/* Queries from position first on give the bits of earlier ones, whose first one was at `at`. */
static void expect_same(const struct scene *scene, const struct rows *expected, uint32_t at,
			uint32_t first, uint32_t n, uint32_t n_resident, uint64_t slots)
{
	OWNED(rows) result = attend(scene, first, n, n_resident, slots, NULL, 0);

	rows_compare(expected, at, &result, first, n);
}

static void bits_test(uint32_t kv_type, uint32_t type)
{
	OWNED(scene) scene =
		scene_make(&(struct scene_options){ 64, 1, 4, 1300, 16, kv_type, type });
	OWNED(rows) expected = attend(&scene, 1240, 60, 1, 1000, NULL, 0); /* spans of groups */
	static const uint32_t chunks[] = { 1, 2, 17, 5, 35 };
	uint32_t first = 1240;

	case_begin("emulated: chunks, decode, spans, memory and stages change no bits, %s KV, %s q",
		   type_name(kv_type), type_name(type));
	check_rows(&scene, &expected, 1240, 60, NULL, 0);
	expect_same(&scene, &expected, 1240, 1240, 60, 1000, 1000); /* spans of units */
	expect_same(&scene, &expected, 1240, 1240, 60, 1000, 1);    /* a launch per block */
	for (uint32_t i = 0; i < 5; i++) {
		n_stages = 2 + i % 3;
		expect_same(&scene, &expected, 1240, first, chunks[i], 1000, 1000);
		first += chunks[i];
	}
	n_stages = 2;
}

/*
 * Threads and copies in other orders, over the end of a unit. With many rows all warps have work;
 * with few, and a value that is not finite, the repairing kernel has.
 */
static void schedules_test(uint32_t n, bool poison, uint64_t n_seeds, uint32_t kv_type,
			   uint32_t type)
{
	OWNED(scene) scene =
		scene_make(&(struct scene_options){ 64, 1, 1, 1060, 16, kv_type, type });
	uint32_t first = 1060 - n;

	if (poison)
		element_write(pool_element(&scene.pool, 1, scene.text.pages[1058 / 16], 0,
					   1058 % 16, 5), kv_type, NAN);
	OWNED(rows) expected = attend(&scene, first, n, 1000, 1000, NULL, 0);

	for (uint64_t seed = 1; seed <= n_seeds; seed++) {
		case_begin("emulated: warps and copies in order %u, %s KV, %s q, %u rows",
			   (uint32_t)seed, type_name(kv_type), type_name(type), n);
		emulated_schedule(seed);
		n_stages = 2 + seed % 3;
		expect_same(&scene, &expected, first, first, n, seed % 2 ? 1000 : 1, 1000);
		n_stages = 2;
		emulated_schedule(0);
	}
}

static void schedules_tests(void)
{
	schedules_test(60, false, 4, KVT_ATTN_BF16, KVT_ATTN_BF16);
	schedules_test(60, false, 4, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16);
	schedules_test(60, false, 2, KVT_ATTN_BF16, KVT_ATTN_F16);
	schedules_test(3, true, 2, KVT_ATTN_BF16, KVT_ATTN_BF16);
	schedules_test(3, true, 2, KVT_ATTN_F8_E4M3, KVT_ATTN_F16);
}

static void groups_test(uint32_t type)
{
	OWNED(scene) scene = scene_make(&(struct scene_options){ 16, 1, 2, 9300, 64, type, type });
	OWNED(rows) groups = attend(&scene, 9298, 2, 1, 1000, NULL, 0);

	case_begin("emulated: two groups, by groups and by units, %s", type_name(type));
	check_rows(&scene, &groups, 9298, 2, NULL, 0);
	expect_same(&scene, &groups, 9298, 9298, 2, 1000, 1000);
}

static void poison_test(uint32_t at, uint32_t n_resident, uint32_t kv_type, uint32_t type)
{
	OWNED(scene) scene =
		scene_make(&(struct scene_options){ 64, 1, 2, 1060, 16, kv_type, type });
	OWNED(rows) clean = attend(&scene, 1000, 60, n_resident, 1000, NULL, 0);

	case_begin("emulated: V not finite at position %u, %s, spans of %s", at, type_name(kv_type),
		   n_resident > 1 ? "units" : "groups");
	element_write(pool_element(&scene.pool, 1, scene.text.pages[at / 16], 0, at % 16, 5),
		      kv_type, kv_type == KVT_ATTN_F8_E4M3 ? NAN : INFINITY);
	OWNED(rows) poisoned = attend(&scene, 1000, 60, n_resident, 1000, NULL, 0);

	rows_compare(&clean, 1000, &poisoned, 1000, at - 1000);
	EXPECT(!isfinite(((float *)poisoned.out.data)[(at - 1000) * 128 + 5]));
	EXPECT(!isfinite(((float *)poisoned.out.data)[59 * 128 + 64 + 5]));
	EXPECT(isfinite(((float *)poisoned.out.data)[59 * 128 + 64 + 6]));
}

/* out in place of q, also if a block is repeated because a value was not finite. */
static void in_place_test(uint32_t n_positions, uint32_t n_resident)
{
	OWNED(scene) scene = scene_make(&(struct scene_options){
		64, 1, 2, n_positions, 16, KVT_ATTN_F16, KVT_ATTN_F16 });
	uint32_t first = n_positions - 40, at = n_positions - 20;
	OWNED(rows) apart = rows_make(40, 2, 64, KVT_ATTN_F16, KVT_ATTN_F16);
	OWNED(rows) within = rows_make(40, 2, 64, KVT_ATTN_F16, KVT_ATTN_F16);
	struct kvt_attn_sequence sequence = { .n_queries = 40,
					      .n_positions = n_positions,
					      .pages = scene.text.pages,
					      .n_pages = scene.text.n_pages };
	struct kvt_attn_prefill prefill = prefill_make(&scene, &apart, &sequence, 1);

	case_begin("emulated: out in place of q, %u positions, V not finite", n_positions);
	element_write(pool_element(&scene.pool, 1, scene.text.pages[at / 16], 0, at % 16, 5),
		      KVT_ATTN_F16, INFINITY);
	rows_fill(&apart, 0, 1, first, 40);
	rows_fill(&within, 0, 1, first, 40);
	batch_run(&prefill, n_resident, 1000);
	prefill.q = prefill.out = within.q.data;
	batch_run(&prefill, n_resident, 1000);
	EXPECT(memcmp(apart.out.data, within.q.data, apart.out.bytes) == 0);
	for (uint32_t i = 0; i < 20; i++)
		check_row(&scene, &apart, i, i % 2, first + i + 1);
}

/* More rows than 32 bits count are refused before the batch is read. */
static void too_large_test(void)
{
	OWNED(scene) scene = scene_make(&(struct scene_options){
		8, 1, 8, 8, 8, KVT_ATTN_BF16, KVT_ATTN_BF16 });
	OWNED(rows) rows = rows_make(1, 8, 8, KVT_ATTN_BF16, KVT_ATTN_BF16);
	struct kvt_attn_sequence sequence = { .n_queries = 1u << 29, .n_positions = 1u << 29 };
	struct kvt_attn_prefill prefill = prefill_make(&scene, &rows, &sequence, 1);
	struct kvt_cuda_fit fit = { .n_resident = 1, .n_stages = 2 };
	OWNED(kvt_cuda_plan) plan = { 0 };

	case_begin("emulated: a batch that is too large");
	EXPECT_EQUAL(kvt_cuda_plan_make(&plan, &prefill, &fit, 1), -EINVAL);
}

static void place_check(const struct emulated_place *place)
{
	char lanes[512] = "";
	size_t length = 0;

	for (uint32_t i = 0; place->n_excess && i < place->n_lanes; i++)
		length += (size_t)snprintf(lanes + length, sizeof lanes - length, " %u",
					   place->offsets[i]);
	if (place->n_excess)
		case_fail(place->file, (int)place->line,
			  "%llu accesses to shared memory take %llu transactions, %llu of them by "
			  "bank conflicts; the first: lanes from %u on, %u bytes each, at%s",
			  (unsigned long long)place->n_accesses,
			  (unsigned long long)place->n_transactions,
			  (unsigned long long)place->n_excess, place->first_lane,
			  place->access_bytes, lanes);
}

/*
 * All of a block's accesses to shared memory: no bank conflicts, and none beyond the host's size.
 * Four tiles use every stage, and rows end in the last ones, so these are searched.
 */
static void traffic_test(uint32_t head_dim, uint32_t kv_type, uint32_t q_type, uint32_t n_places)
{
	uint32_t n_positions = (head_dim > 128 ? 125 : 253) / (n_places == 8 ? 2 : 1);
	OWNED(scene) scene = scene_make(
		&(struct scene_options){ head_dim, 1, 4, n_positions, 16, kv_type, q_type });
	struct kvt_attn_prefill prefill = { .kv = scene.pool.view, .q_type = q_type };
	const struct emulated_place *places;
	uint32_t bytes, n;

	case_begin("emulated: no bank conflicts, dim %u, %s KV, %s q", head_dim, type_name(kv_type),
		   type_name(q_type));
	n_stages = 2 + head_dim % 3;
	emulated_traffic_count(1);
	OWNED(rows) rows = attend(&scene, n_positions - 16, 16, 1000, 1000, NULL, 0);

	emulated_traffic_count(0);
	check_rows(&scene, &rows, n_positions - 16, 16, NULL, 0);
	n = emulated_traffic(&places, &bytes);
	EXPECT_EQUAL(n, n_places);
	EXPECT_EQUAL(bytes, kvt_cuda_shared_bytes(&prefill, n_stages));
	for (uint32_t i = 0; i < n; i++)
		place_check(&places[i]);
	n_stages = 2;
}

/*
 * Head dims that are copied by lines, and some that are not. Places: copies of queries, keys and
 * values, matrices of the same, the search of values; the conversion has three more. Products in
 * fp32 read two rows of queries.
 */
static void traffic_tests(void)
{
	static const uint32_t dims[] = { 64, 80, 96, 128, 256, 63, 75, 90, 115, 250 };

	for (uint32_t i = 0; i < 10; i++) {
		traffic_test(dims[i], KVT_ATTN_BF16, KVT_ATTN_BF16, 7);
		traffic_test(dims[i], KVT_ATTN_F8_E4M3, KVT_ATTN_BF16, 10);
		traffic_test(dims[i], KVT_ATTN_F32, KVT_ATTN_F32, 8);
	}
	for (uint32_t i = 0; i < 5; i++) {
		traffic_test(dims[i], KVT_ATTN_F16, KVT_ATTN_F16, 7);
		traffic_test(dims[i], KVT_ATTN_F8_E4M3, KVT_ATTN_F16, 10);
		traffic_test(dims[i], KVT_ATTN_F8_E4M3, KVT_ATTN_F32, 8);
		traffic_test(dims[i], KVT_ATTN_BF16, KVT_ATTN_F32, 8);
	}
}

/* Blocks per multiprocessor, stages, and KiB per block, as docs/kernels.md lists them. */
static void fit_test(void)
{
	static const struct kvt_cuda_room rooms[] = { { 1, 164 << 10, 163 << 10 },
						      { 1, 228 << 10, 227 << 10 },
						      { 1, 100 << 10, 99 << 10 } };
	static const uint32_t types[][2] = { { KVT_ATTN_BF16, KVT_ATTN_BF16 },
					     { KVT_ATTN_F8_E4M3, KVT_ATTN_F16 },
					     { KVT_ATTN_F32, KVT_ATTN_F32 } };
	static const uint32_t dims[] = { 64, 80, 96, 128, 256 };
	static const uint32_t expected[3][5][3][3] = {
		{ { { 4, 2, 40 }, { 4, 3, 56 }, { 2, 2, 40 } },
		  { { 3, 2, 50 }, { 3, 3, 70 }, { 1, 4, 90 } },
		  { { 2, 2, 60 }, { 3, 2, 60 }, { 1, 3, 84 } },
		  { { 2, 2, 80 }, { 2, 3, 112 }, { 1, 2, 80 } },
		  { { 1, 4, 160 }, { 2, 2, 96 }, { 1, 2, 96 } } },
		{ { { 4, 2, 40 }, { 4, 4, 56 }, { 2, 3, 48 } },
		  { { 3, 2, 50 }, { 3, 4, 70 }, { 1, 4, 70 } },
		  { { 2, 3, 72 }, { 3, 3, 72 }, { 1, 4, 84 } },
		  { { 2, 2, 80 }, { 2, 4, 112 }, { 1, 3, 96 } },
		  { { 1, 4, 128 }, { 2, 3, 112 }, { 1, 2, 96 } } },
		{ { { 3, 2, 48 }, { 4, 2, 48 }, { 2, 2, 48 } },
		  { { 2, 3, 80 }, { 3, 2, 60 }, { 1, 3, 80 } },
		  { { 2, 2, 72 }, { 3, 2, 72 }, { 1, 3, 96 } },
		  { { 1, 4, 160 }, { 2, 2, 96 }, { 1, 2, 96 } },
		  { { 1, 4, 128 }, { 2, 3, 112 }, { 1, 2, 96 } } },
	};

	case_begin("plan: blocks and stages that fit on a multiprocessor");
	for (uint32_t i = 0; i < 3 * 5 * 3; i++) {
		const uint32_t *is = expected[i / 15][i / 3 % 5][i % 3];
		struct kvt_attn_prefill prefill = { .kv = { .head_dim = dims[i / 3 % 5],
							    .type = types[i / 15][0] },
						    .q_type = types[i / 15][1] };
		struct kvt_cuda_fit fit = kvt_cuda_fit(&prefill, &rooms[i % 3]);

		if (fit.n_resident != is[0] || fit.n_stages != is[1] ||
		    fit.shared_bytes != is[2] << 10)
			case_fail(__FILE__, __LINE__, "dim %u, %s KV: %u blocks, %u stages, %u",
				  dims[i / 3 % 5], type_name(types[i / 15][0]), fit.n_resident,
				  fit.n_stages, fit.shared_bytes);
	}
}

/* Random shapes, planned for imaginary devices and memory. */
static void random_run(const struct kvt_attn_prefill *prefill, struct random *random, void *context)
{
	struct kvt_attn_prefill whole = *prefill;

	kvt_prefill_strides(&whole);
	n_stages = 2 + random_below(random, 3);
	batch_run(&whole, 1 + random_below(random, 60), 1 + random_below(random, 12));
}

static void random_bits_run(const struct kvt_attn_prefill *prefill, int mode, struct random *random,
			    void *context)
{
	(void)mode; /* the device's default */
	random_run(prefill, random, context);
}

static double random_tolerance(const struct scene *scene, uint32_t out_type, void *context)
{
	return tolerance_of(scene, out_type);
}

int main(int argc, char **argv)
{
	uint32_t n_random = argc > 1 ? (uint32_t)atoi(argv[1]) : 40;

	reference_tests();
	regions_test();
	schedules_tests();
	bits_test(KVT_ATTN_BF16, KVT_ATTN_BF16);
	bits_test(KVT_ATTN_F8_E4M3, KVT_ATTN_BF16);
	bits_test(KVT_ATTN_F32, KVT_ATTN_F32);
	groups_test(KVT_ATTN_BF16);
	groups_test(KVT_ATTN_F32);
	poison_test(1021, 1, KVT_ATTN_BF16, KVT_ATTN_BF16);
	poison_test(1033, 1000, KVT_ATTN_BF16, KVT_ATTN_BF16);
	poison_test(1033, 1000, KVT_ATTN_F8_E4M3, KVT_ATTN_F16);
	poison_test(1033, 1000, KVT_ATTN_F32, KVT_ATTN_F32);
	in_place_test(100, 1000);
	in_place_test(1050, 1000);
	traffic_tests();
	fit_test();
	too_large_test();
	for (uint32_t seed = 1; seed <= n_random; seed++)
		random_test("emulated", seed, random_run, random_tolerance, NULL);
	for (uint32_t i = 0, seed = random_seed(); i < random_cases(8); i++)
		random_bits_test("emulated", seed + i, i % 8 ? 400 : 2500, 6, random_bits_run,
				 NULL);
	return cases_end();
}
