/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one job, for any vector width. A path_*.c file defines the macros and functions
 * listed below and includes this file, which defines the functions of a struct kvt_path.
 *
 *   vf, VW                     a vector of VW floats
 *   element, STEP              the products' factors: a step takes STEP elements of each side
 *   GEMM_ROWS, GEMM_VECTORS    accumulators of the inner kernel: 4 or 6 rows, 2 or 4 vectors each
 *   GEMM_UNROLL                a pragma for its loop, or nothing
 *   TILE                       rows whose scores are held at a time
 *   BLOCK                      positions whose scores are held at a time, a divisor of the unit
 *   v_*                        float vector operations
 *   vb, b_load, a_broadcast    a vector of VW steps, and one step in all lanes
 *   dot(c, b, a)               c + product of one step, rounded as the instruction does
 *   weights_store              2 * VW weights as elements
 *   row_load, row_store        one row of head_dim elements to and from the caller's types
 *   keys_pack, values_pack     pages to panels
 *   FEW_ROWS, FEW_STRIPS, struct few, few_possible, few_scores, few_values
 *                              few rows (if the path has a way), without packing, FEW_STRIPS times
 *                              VW positions at a time: few.inc.h
 *
 * A path with an inner kernel of its own defines GEMM_OWN, and instead of b_load, a_broadcast and
 * dot:
 *
 *   STEPS_ALIGN                steps that it takes at a time
 *   gemm_run                   the inner kernel, declared below
 *
 * How results stay the same
 *
 *   Every number below is computed by a chain of operations that depends only on the row's own
 *   data and on absolute positions: scores add dimensions in ascending order; maxima and sums go
 *   through the blocks of a unit in order, a lane of a vector holding every VW-th position;
 *   outputs add positions in ascending order; units and groups are merged in order. Which rows
 *   share a tile, how many rows or vectors an inner kernel has, and which lane or thread
 *   computes, changes no chain. Positions that a row must not see add weight +0 to its chain,
 *   which changes nothing (the last step, + 0, makes -0 and +0 the same).
 *
 * Panels
 *
 *   keys:    [BLOCK / PANEL_KEYS panels][steps of head_dim][PANEL_KEYS positions][STEP dimensions]
 *   values:  [panels of 1 to GEMM_VECTORS vectors of dimensions]
 *            [steps of positions][dimensions][STEP positions]
 *   queries: [row][steps of head_dim][STEP], weights likewise [row][position]
 */

#ifndef STEPS_ALIGN
#define STEPS_ALIGN 1
#endif
#ifndef GEMM_UNROLL
#define GEMM_UNROLL
#endif
#define PANEL_KEYS (GEMM_VECTORS * VW)
#ifdef FEW_ROWS
#define FEW_KEYS (FEW_STRIPS * VW)
#else
#define FEW_KEYS PANEL_KEYS
#endif
#define N_BLOCKS (KVT_ATTN_UNIT / BLOCK)
#define STRIP (2 * VW)
#define LAST_KEYS (STEP * STEPS_ALIGN) /* positions of one addition to outputs */
#define TILE_ROWS (TILE > KVT_HEADS_ROWS ? TILE : KVT_HEADS_ROWS)
#define INLINE static inline __attribute__((always_inline))

_Static_assert(KVT_ATTN_UNIT % BLOCK == 0 && BLOCK % PANEL_KEYS == 0 && BLOCK % STRIP == 0 &&
		       BLOCK % FEW_KEYS == 0 && BLOCK <= KVT_ROWS_MAX,
	       "a unit is whole blocks, a block whole panels and strips");
_Static_assert(TILE_ROWS % VW == 0, "rows of a tile are whole vectors");

#include "attention_work.inc.h"
#include "attention_panels.inc.h"
#include "attention_tile.inc.h"
#include "attention_block.inc.h"

/* Run one unit for the rows [first_row, first_row + n_rows) of the block, into work->tile. */
static void tile_unit(const struct work *work, uint32_t first_row, uint32_t n_rows, bool packed)
{
	struct tile tile = { .first_row = first_row, .n_rows = n_rows };
	uint32_t n_keys = 0;

	tile.head_rows = n_rows / work->block->n_kv_heads;
	bands_cut(&tile);
	for (uint32_t row = 0; row < n_rows; row++) {
		uint32_t limit = row_limit(work->block, first_row + row);

		n_keys = limit <= work->unit_start
				 ? 0
				 : minimum(limit - work->unit_start, KVT_ATTN_UNIT);
		tile.n_keys[row] = n_keys;
	}
	for (uint32_t row = 0; row < n_rows; row += VW)
		v_store(work->tile.maxima + row, v_set1(-__builtin_inff()));
	for (uint32_t i = 0; i < n_rows * VW; i += VW)
		v_store(work->sum_lanes + i, v_zero());
	for (uint32_t i = 0; i < n_rows * work->out_dim; i += VW)
		v_store(work->tile.outputs + i, v_zero());

	for (uint32_t start = 0; start < n_keys; start += BLOCK) {
		if (packed)
			block_packed(work, &tile, start, minimum(start + BLOCK, n_keys));
		else
			block_streamed(work, &tile, start);
	}
	for (uint32_t row = 0; row < n_rows; row++)
		work->tile.sums[row] = v_sum(v_load(work->sum_lanes + row * VW));
}

/* Merging */

static struct partial partial_at(const struct partial *partial, uint32_t row, uint32_t out_dim)
{
	return (struct partial){ partial->maxima + row, partial->sums + row,
				 partial->outputs + (size_t)row * out_dim };
}

static void partial_copy(const struct partial *target, const struct partial *source,
			 uint32_t n_rows, uint32_t out_dim)
{
	memcpy(target->maxima, source->maxima, n_rows * sizeof(float));
	memcpy(target->sums, source->sums, n_rows * sizeof(float));
	memcpy(target->outputs, source->outputs, (size_t)n_rows * out_dim * sizeof(float));
}

/* Merge n rows (at most VW): bring both sides to their common maximum and add. */
static void partial_merge_some(const struct partial *target, const struct partial *source,
			       uint32_t n, uint32_t out_dim)
{
	_Alignas(64) float a[VW] = { 0 }, b[VW] = { 0 }, common[VW];
	vf lowest = v_set1(-__builtin_inff());
	vf high, shift;

	memcpy(a, target->maxima, n * sizeof(float));
	memcpy(b, source->maxima, n * sizeof(float));
	high = v_max(v_load(a), v_load(b));
	shift = v_if_equal(high, lowest, v_zero(), high);
	v_store(common, high);
	v_store(a, v_exp2(v_sub(v_load(a), shift)));
	v_store(b, v_exp2(v_sub(v_load(b), shift)));
	memcpy(target->maxima, common, n * sizeof(float));

	for (uint32_t row = 0; row < n; row++) {
		vf fa = v_set1(a[row]), fb = v_set1(b[row]);
		float *to = target->outputs + (size_t)row * out_dim;
		const float *from = source->outputs + (size_t)row * out_dim;

		target->sums[row] = v_lane0(
			v_fma(v_set1(source->sums[row]), fb, v_mul(v_set1(target->sums[row]), fa)));
		for (uint32_t i = 0; i < out_dim; i += VW)
			v_store(to + i, v_fma(v_load(from + i), fb, v_mul(v_load(to + i), fa)));
	}
}

static void partial_merge(const struct partial *target, const struct partial *source,
			  uint32_t n_rows, uint32_t out_dim, bool first)
{
	if (first) {
		partial_copy(target, source, n_rows, out_dim);
		return;
	}
	for (uint32_t row = 0; row < n_rows; row += VW) {
		struct partial to = partial_at(target, row, out_dim);
		struct partial from = partial_at(source, row, out_dim);

		partial_merge_some(&to, &from, minimum(VW, n_rows - row), out_dim);
	}
}

/* Run one unit of the block and merge it into work->group. */
static void unit_run(struct work *work, uint32_t unit, bool first)
{
	const struct kvt_row_block *block = work->block;
	uint32_t start = unit * KVT_ATTN_UNIT;
	uint32_t first_row = row_first(block, start);
	uint32_t tile_rows = block->n_kv_heads > 1 ? block->n_rows : TILE;
	bool packed = block->n_rows - first_row > tile_rows;

	work->unit_start = start;
	work->limit = row_limit(block, block->n_rows - 1);
	work->unit_keys = minimum(work->limit - start, KVT_ATTN_UNIT);
	if (packed)
		unit_pack(work);
	for (uint32_t row = first_row; row < block->n_rows; row += tile_rows) {
		uint32_t n_rows = minimum(tile_rows, block->n_rows - row);
		struct partial target = partial_at(&work->group, row, work->out_dim);

		tile_unit(work, row, n_rows, packed);
		partial_merge(&target, &work->tile, n_rows, work->out_dim, first);
	}
}

/*
 * Merge a group. Rows that see none of it have stale data in work->group; they are the first ones
 * and are left out. Every row sees position 0, so the first group has all rows.
 */
static void group_merge(struct work *work, uint32_t first_unit, bool first)
{
	const struct kvt_row_block *block = work->block;
	uint32_t row = row_first(block, first_unit * KVT_ATTN_UNIT);
	struct partial to = partial_at(&work->total, row, work->out_dim);
	struct partial from = partial_at(&work->group, row, work->out_dim);

	partial_merge(&to, &from, block->n_rows - row, work->out_dim, first);
}

/* Return span number i of the block's partial results. */
static struct partial partial_of_span(const struct kvt_row_block *block, uint32_t out_dim,
				      uint32_t i)
{
	size_t n_rows = block->n_rows;
	float *base = block->partials + i * n_rows * (out_dim + 2);

	return (struct partial){ base, base + n_rows, base + 2 * n_rows };
}

static void job_run(const struct kvt_job *job, void *workspace)
{
	const struct kvt_row_block *block = job->block;
	uint32_t end = minimum(job->first_unit + block->span_units, block->n_units);
	uint32_t unit = job->first_unit;
	struct work work;

	work_begin(&work, block, workspace);
	queries_load(&work);
	while (unit < end) {
		uint32_t group = unit;
		uint32_t group_end =
			minimum(end, (unit / KVT_UNITS_PER_GROUP + 1) * KVT_UNITS_PER_GROUP);

		for (; unit < group_end; unit++)
			unit_run(&work, unit, unit == group);
		if (end - job->first_unit > KVT_UNITS_PER_GROUP)
			group_merge(&work, group, group == job->first_unit);
	}
	/* A single group was not copied into the total. */
	struct partial *result =
		end - job->first_unit > KVT_UNITS_PER_GROUP ? &work.total : &work.group;

	if (block->partials) {
		struct partial target =
			partial_of_span(block, work.out_dim, job->first_unit / block->span_units);
		uint32_t row = row_first(block, job->first_unit * KVT_ATTN_UNIT);
		struct partial to = partial_at(&target, row, work.out_dim);
		struct partial from = partial_at(result, row, work.out_dim);

		partial_copy(&to, &from, block->n_rows - row, work.out_dim);
	} else {
		rows_write(&work, result);
	}
}

/* Merge the span that begins at unit, a group or one unit of it, into work->group. */
static void span_merge(struct work *work, uint32_t unit)
{
	const struct kvt_row_block *block = work->block;
	uint32_t row = row_first(block, unit * KVT_ATTN_UNIT);
	struct partial source = partial_of_span(block, work->out_dim, unit / block->span_units);
	struct partial to = partial_at(&work->group, row, work->out_dim);
	struct partial from = partial_at(&source, row, work->out_dim);

	partial_merge(&to, &from, block->n_rows - row, work->out_dim,
		      unit % KVT_UNITS_PER_GROUP == 0);
}

static void block_finish(const struct kvt_row_block *block, void *workspace)
{
	struct work work;

	work_begin(&work, block, workspace);
	for (uint32_t group = 0; group < block->n_units; group += KVT_UNITS_PER_GROUP) {
		uint32_t end = minimum(group + KVT_UNITS_PER_GROUP, block->n_units);

		for (uint32_t unit = group; unit < end; unit += block->span_units)
			span_merge(&work, unit);
		group_merge(&work, group, group == 0);
	}
	rows_write(&work, &work.total);
}

#define KVT_PATH_DEFINE(path_name, text)                                                           \
	const struct kvt_path path_name = {                                                        \
		.name = text,                                                                      \
		.padded_dim = padded_dim,                                                          \
		.workspace_bytes = workspace_bytes,                                                \
		.job_run = job_run,                                                                \
		.block_finish = block_finish,                                                      \
	}
