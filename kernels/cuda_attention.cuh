/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on paged KV, for compute capability 8.0 and above. Two kinds of products: mma.sync for
 * queries of 16 bits with KV of the same type or fp8, and fp32 products and sums (KIND_F32) for
 * all else, whose queries and KV become fp32 while they are copied.
 *
 * A thread block takes 64 rows through one span of units, in tiles of tile_keys positions that are
 * copied to shared memory while earlier ones are used, as many stages ahead as the host has fitted
 * (cuda_plan.h). A warp has 16 of the rows. Each row's products use the same instructions in the
 * same order, whatever the other rows are: tiles, units and groups begin at absolute positions, and
 * positions that a row must not see add weight 0. So bits are the same, warm or cold, as
 * kvt_kernels.h promises.
 *
 * A unit's result is in registers. It is merged into the group's in the span's slot in global
 * memory (in practice in L2), each element always by the same thread. If a block has several
 * spans, kernel merge combines them.
 *
 * Weight 0 does not hide a V that is not finite. So tiles in which rows end are searched for such
 * values. Blocks that have any are flagged and not written out, and kernel repair redoes them row
 * by row: a single row never meets a position that it must not see. Nothing is written before it is
 * known to be right, since out may overlap q.
 *
 * Lane l of a warp has, of a 16 x 8 product, the columns 2 * (l % 4) and the next, of rows l / 4
 * and l / 4 + 8.
 */
#ifndef KVT_KERNELS_CUDA_ATTENTION_CUH
#define KVT_KERNELS_CUDA_ATTENTION_CUH

#include "cuda_merge.cuh"
#include "cuda_products.cuh"
#include "cuda_rows.cuh"

/* True if an element of a word, one or two, is not finite. */
template <int kind> KVT_DEVICE bool not_finite(uint32_t word)
{
	const uint32_t high = kind == KIND_F16 ? 0x7c000000u : 0x7f800000u, low = high >> 16;

	return (word & high) == high || (kind != KIND_F32 && (word & low) == low);
}

KVT_DEVICE volatile uint32_t *flag_of(const struct kvt_cuda_prefill *args,
				      const struct kvt_cuda_block *block)
{
	return at<volatile uint32_t>(args->flags) +
	       (block - at<const struct kvt_cuda_block>(args->blocks));
}

/* Flag the block if its rows end within the tile, and the tile has a value that is not finite. */
template <int dim, int kind>
KVT_DEVICE void tile_search(const struct rows_at_hand *rows, uint32_t start,
			    const unsigned char *v)
{
	bool found = false;

	if (rows->limit_low == rows->limit_high ||
	    start + shape<dim, kind>::tile_keys <= rows->limit_low)
		return;
#pragma unroll 1
	for (uint32_t i = thread_index(); i < shape<dim, kind>::tile_chunks;
	     i += KVT_CUDA_THREADS) {
		const struct line_piece piece = shared_load<struct line_piece>(v + i * 16);

		for (int j = 0; j < 4; j++)
			found |= not_finite<kind>(piece.words[j]);
	}
	if (found)
		*flag_of(rows->args, (const struct kvt_cuda_block *)used_here(rows->block)) = 1;
}

/*
 * Shared memory: queries; with fp8 a tile of keys and one of values to which a stage is converted;
 * then stages, each a tile of keys and one of values as they are copied.
 */
template <int dim, int kind, bool f8> struct tiles {
	unsigned char *q;
	unsigned char *converted;
	unsigned char *stages;
	uint32_t n_stages;
	uint32_t stage; /* next one to use */
};

template <int dim, int kind, bool f8>
KVT_DEVICE struct tiles<dim, kind, f8> tiles_in_shared(uint32_t n_stages)
{
	struct tiles<dim, kind, f8> tiles;

	tiles.q = shared_memory();
	tiles.converted = tiles.q + shape<dim, kind>::q_bytes;
	tiles.stages = tiles.converted + copied_shape<dim, kind, f8>::converted_bytes;
	tiles.n_stages = n_stages;
	tiles.stage = 0;
	return tiles;
}

/* Return the place of a stage's keys; its values follow. */
template <int dim, int kind, bool f8>
KVT_DEVICE unsigned char *stage_of(const struct tiles<dim, kind, f8> *tiles, uint32_t stage)
{
	return tiles->stages + 2 * stage * copied_shape<dim, kind, f8>::tile_bytes;
}

/*
 * Begin to copy the positions from start on, none at the end. Each call is a group of copies, even
 * an empty one, so that the number of later groups is known.
 */
template <int dim, int kind, bool f8>
KVT_DEVICE void tiles_fetch(const struct rows_at_hand *rows,
			    const struct tiles<dim, kind, f8> *tiles, uint32_t start, uint32_t end,
			    uint32_t stage)
{
	const struct kvt_cuda_prefill *args = rows->args;
	unsigned char *keys = stage_of<dim, kind, f8>(tiles, stage);

	if (start < end && are_copied<kind, f8>(args->lines & KVT_CUDA_LINES_KV, args->kv_type))
		tiles_copy<dim, kind, f8>(rows, start, keys);
	else if (start < end)
		tiles_load<dim, kind, f8>(rows, start, keys);
	copy_commit();
}

/* Wait for the oldest of the last n_stages groups of copies. */
KVT_DEVICE void stage_wait(uint32_t n_stages)
{
	static_assert(KVT_CUDA_STAGES_MAX == 4, "cases are missing");
	if (n_stages == 2)
		copy_wait<1>();
	else if (n_stages == 3)
		copy_wait<2>();
	else
		copy_wait<3>();
}

/*
 * Return the next stage's elements, keys and then values, whose copies by this thread have arrived.
 * Those by other threads arrive by a barrier.
 */
template <int dim, int kind, bool f8>
KVT_DEVICE unsigned char *tiles_take(const struct tiles<dim, kind, f8> *tiles)
{
	unsigned char *keys = stage_of<dim, kind, f8>(tiles, tiles->stage);

	if constexpr (f8) {
		tile_convert<dim, kind>(keys, tiles->converted);
		tile_convert<dim, kind>(keys + copied_shape<dim, kind, f8>::tile_bytes,
					tiles->converted + shape<dim, kind>::tile_chunks * 16);
		return tiles->converted;
	}
	return keys;
}

/*
 * Run the unit from start on, of a span that ends at end. Copies ahead may belong to its next unit.
 */
template <int dim, int kind, bool f8>
KVT_DEVICE void unit_run(const struct rows_at_hand *rows, struct tiles<dim, kind, f8> *tiles,
			 uint32_t start, uint32_t end, struct unit_state<dim> *state,
			 const uint32_t *limits)
{
	const uint32_t step = shape<dim, kind>::tile_keys, ahead = tiles->n_stages - 1;
	const uint32_t unit_end = least(start + UNIT, end);
	const bool busy = thread_index() / 32 * 16 < rows->n_rows;

	unit_clear<dim>(state);
	for (; start < unit_end; start += step) {
		float scores[shape<dim, kind>::key_tiles][4] = {};
		const unsigned char *k, *v;

		tiles_fetch<dim, kind, f8>(rows, tiles, start + ahead * step, end,
					   tiles->stage ? tiles->stage - 1 : ahead);
		stage_wait(tiles->n_stages);
		k = tiles_take<dim, kind, f8>(tiles);
		v = k + shape<dim, kind>::tile_chunks * 16;
		barrier();
		tile_search<dim, kind>(rows, start, v);
		/* Uniform in a warp, as its instructions need. */
		if (busy) {
			if constexpr (kind == KIND_F32)
				tile_scores_f32<dim>(tiles->q, k, scores);
			else
				tile_scores<dim, kind>(tiles->q, k, scores);
			if (start + step > rows->limit_low || rows->n_rows < KVT_CUDA_ROWS)
				tile_mask<dim, kind>(scores, start, limits);
			tile_weights<dim, kind>(state, scores, rows->args->log2_scale);
			if constexpr (kind == KIND_F32)
				tile_values_f32<dim>(state, scores, v);
			else
				tile_values<dim, kind>(state, scores, v);
		}
		/* The next round's copies overwrite what this one read. */
		barrier();
		tiles->stage = tiles->stage == ahead ? 0 : tiles->stage + 1;
	}
	for (int i = 0; i < 2; i++) {
		state->sum[i] += exchange(state->sum[i], 1);
		state->sum[i] += exchange(state->sum[i], 2);
	}
}

/* Compute one span into a slot. */
template <int dim, int kind, bool f8>
KVT_DEVICE void span_run(const struct rows_at_hand *rows, uint32_t first_unit, uint32_t end_unit,
			 float *slot)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const uint32_t end = least(end_unit * UNIT, rows->limit_high);
	struct tiles<dim, kind, f8> tiles = tiles_in_shared<dim, kind, f8>(rows->args->n_stages);
	const uint32_t limits[2] = { limit_of(rows, warp * 16 + lane / 4),
				     limit_of(rows, warp * 16 + lane / 4 + 8) };
	struct unit_state<dim> unit_result;
	bool first = true;

	queries_copy<dim, kind>(rows, tiles.q);
	for (uint32_t stage = 0; stage + 1 < tiles.n_stages; stage++)
		tiles_fetch<dim, kind, f8>(rows, &tiles,
					   first_unit * UNIT + stage * shape<dim, kind>::tile_keys,
					   end, stage);
	for (uint32_t start = first_unit * UNIT; start < end; start += UNIT) {
		unit_run<dim, kind, f8>(rows, &tiles, start, end, &unit_result, limits);
		span_merge<dim>(slot, &unit_result, limits, start, first);
		first = false;
	}
}

/* The kernels */

template <int dim, int kind, bool f8> KVT_DEVICE void attend(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_item item = at<const struct kvt_cuda_item>(args.items)[block_index()];
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + item.block;
	const struct rows_at_hand rows = rows_take(&args, block, 0, block->n_rows);
	float *slot =
		slot_at<dim>(slots_of<dim>(args, block), item.first_unit / block->span_units);

	span_run<dim, kind, f8>(&rows, item.first_unit,
				least(item.first_unit + block->span_units, block->n_units), slot);
	/* Other lanes wrote the sums, and maybe the flag. */
	barrier();
	block = (const struct kvt_cuda_block *)used_here(block);
	if (block->n_units <= block->span_units && !*flag_of(&args, block))
		span_write<dim>(&rows, slot);
}

template <int dim> KVT_DEVICE void merge(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + block_index();
	const struct rows_at_hand rows = rows_take(&args, block, 0, block->n_rows);

	if (block->n_units <= block->span_units || *flag_of(&args, block))
		return;
	for (uint32_t row = thread_index() / 32; row < rows.n_rows; row += KVT_CUDA_THREADS / 32)
		row_finish<dim>(&rows, row, block->span_units, slots_of<dim>(args, block), row);
}

template <int dim, int kind, bool f8> KVT_DEVICE void repair(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + block_index();
	float *slots = slots_of<dim>(args, block);

	if (!*flag_of(&args, block))
		return;
	for (uint32_t row = 0; row < block->n_rows; row++) {
		const struct rows_at_hand rows = rows_take(&args, block, row, 1);
		uint32_t n_units = (rows.limit_high + UNIT - 1) / UNIT;

		/* A slot for each group: every group has at least one. */
		for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
			span_run<dim, kind, f8>(&rows, first, least(first + GROUP_UNITS, n_units),
						slot_at<dim>(slots, first / GROUP_UNITS));
			barrier();
		}
		if (thread_index() < 32)
			row_finish<dim>(&rows, 0, GROUP_UNITS, slots, 0);
		barrier();
	}
}

#endif
