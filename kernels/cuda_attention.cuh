/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on paged KV with mma.sync, for compute capability 8.0 and above.
 *
 * A thread block takes 64 rows through one span of units, in tiles of tile_keys positions that
 * are copied to shared memory while the tile before is used. A warp has 16 of the rows, so each
 * row's products are made by the same instructions in the same order whatever the other rows are:
 * tiles, units and groups begin at absolute positions, and what a row must not see adds weight 0.
 * That keeps the promise of kvt_kernels.h (same bits, warm or cold).
 *
 * The result of a unit is in registers; it is merged into the group's, which lies in the span's
 * slot in global memory (in practice in the second cache), each element always by the same
 * thread. Where a block has several spans, kernel merge puts them together.
 *
 * V is multiplied with weights that are 0 for positions that a row must not see, which is wrong
 * where V is not finite. So tiles in which rows end are searched for such values; blocks that
 * have any are flagged, and kernel repair does them again, row by row. A row alone never meets a
 * position that it must not see.
 *
 * Lane l of a warp has, of a 16 x 8 product, the columns 2 * (l % 4) and the next, of rows l / 4
 * and l / 4 + 8.
 */
#ifndef KVT_KERNELS_CUDA_ATTENTION_CUH
#define KVT_KERNELS_CUDA_ATTENTION_CUH

#define UNIT 1024u
#define GROUP_UNITS 8u

/*
 * Rows in shared memory are 16 bytes longer than they need be, so that 8 rows lie in different
 * banks.
 */
template <int dim> struct shape {
	static constexpr int tile_keys = dim > 128 ? 32 : 64;
	static constexpr int row_elements = dim + 8;
	static constexpr int q_elements = KVT_CUDA_ROWS * row_elements;
	static constexpr int tile_elements = tile_keys * row_elements;
	static constexpr int key_tiles = tile_keys / 8;
	static constexpr int dim_tiles = dim / 8;
	static constexpr int slot_floats = KVT_CUDA_ROWS * (dim + 2);
};

#define MINUS_INFINITY bits_float(0xff800000u)

template <typename type> KVT_DEVICE type *at(uint64_t address)
{
	return (type *)(uintptr_t)address;
}

KVT_DEVICE uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Some rows of a block, of which a warp has 16: what all threads of the thread block know. */
struct rows_at_hand {
	const struct kvt_cuda_prefill *args;
	const struct kvt_cuda_block *block;
	uint32_t first_row; /* in the sequence */
	uint32_t n_rows;
	uint32_t limit_low; /* of the first row */
	uint32_t limit_high; /* of the last row */
};

KVT_DEVICE uint32_t limit_of(const struct rows_at_hand *rows, uint32_t row)
{
	const struct kvt_cuda_prefill *args = rows->args;
	uint32_t query = (rows->first_row + row) / args->group_heads;

	return row < rows->n_rows
		       ? at<const uint32_t>(args->limits)[rows->block->first_token + query]
		       : 0;
}

KVT_DEVICE struct rows_at_hand rows_take(const struct kvt_cuda_prefill *args,
					 const struct kvt_cuda_block *block, uint32_t skip,
					 uint32_t n_rows)
{
	struct rows_at_hand rows = { args, block, block->first_row + skip, n_rows, 0, 0 };

	rows.limit_low = limit_of(&rows, 0);
	rows.limit_high = limit_of(&rows, n_rows - 1);
	return rows;
}

/* Where a row of q or out begins. */
KVT_DEVICE uint64_t row_offset(const struct rows_at_hand *rows, uint32_t row, uint64_t row_stride,
			       uint64_t head_stride)
{
	uint32_t group_heads = rows->args->group_heads;
	uint32_t in_sequence = rows->first_row + row;
	uint64_t token = rows->block->first_token + in_sequence / group_heads;

	return token * row_stride +
	       (rows->block->kv_head * group_heads + in_sequence % group_heads) * head_stride;
}

/* fp8 to 16 bits: the bits below the sign, as those of a number 2^8 or 2^120 too small. Exact. */
template <bool bf16> KVT_DEVICE uint16_t f8_to_16(uint8_t bits)
{
	uint32_t magnitude = bits & 0x7f, sign = (uint32_t)(bits & 0x80) << 24;
	float value = magnitude == 0x7f
			      ? bits_float(0x7fc00000u)
			      : product(bits_float(magnitude << 20), bits_float(0x7b800000u));

	return (uint16_t)pair_of<bf16>(bits_float(float_bits(value) | sign), 0.0f);
}

/*
 * Eight elements of a row of 16-bit or fp8 elements to shared memory, as fast as can be; what
 * lies beyond n_dims, and rows that are not valid, are zeros.
 */
template <bool bf16, bool f8>
KVT_DEVICE void chunk_copy(uint16_t *target, const unsigned char *row, uint32_t dim,
			   uint32_t n_dims, bool valid, bool lines)
{
	if (lines && !f8) {
		valid = valid && dim < n_dims;
		copy_async(target, row + (valid ? dim * 2 : 0), valid);
		return;
	}
	for (uint32_t i = 0; i < 8; i++) {
		bool there = valid && dim + i < n_dims;

		if (f8)
			target[i] = there ? f8_to_16<bf16>(row[dim + i]) : 0;
		else
			target[i] = there ? ((const uint16_t *)row)[dim + i] : 0;
	}
}

template <int dim> KVT_DEVICE void queries_copy(const struct rows_at_hand *rows, uint16_t *target)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t chunks = dim / 8;

	for (uint32_t i = thread_index(); i < KVT_CUDA_ROWS * chunks; i += KVT_CUDA_THREADS) {
		uint32_t row = i / chunks, chunk = i % chunks;
		bool valid = row < rows->n_rows;
		const unsigned char *q =
			at<const unsigned char>(args->q) +
			row_offset(rows, valid ? row : 0, args->q_row_stride, args->q_head_stride);

		chunk_copy<true, false>(target + row * shape<dim>::row_elements + chunk * 8, q,
					chunk * 8, args->head_dim, valid, args->lines);
	}
}

/* A tile of one plane: positions from start on. Those from limit_high on are not read. */
template <int dim, bool bf16, bool f8>
KVT_DEVICE void tile_copy(const struct rows_at_hand *rows, uint64_t plane, uint32_t start,
			  uint16_t *target)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t *pages = at<const uint32_t>(args->pages) + rows->block->first_page;
	const unsigned char *head =
		at<const unsigned char>(plane) + rows->block->kv_head * args->head_stride;
	const uint32_t chunks = dim / 8;

	for (uint32_t i = thread_index(); i < shape<dim>::tile_keys * chunks;
	     i += KVT_CUDA_THREADS) {
		uint32_t key = i / chunks, chunk = i % chunks, position = start + key;
		bool valid = position < rows->limit_high;
		uint64_t page = valid ? pages[position >> args->page_shift] : 0;
		uint32_t within = valid ? position & ((1u << args->page_shift) - 1) : 0;

		chunk_copy<bf16, f8>(target + key * shape<dim>::row_elements + chunk * 8,
				     head + page * args->page_stride +
					     within * args->position_stride,
				     chunk * 8, args->head_dim, valid, args->lines);
	}
}

/* The warp's state of one unit. [0] is of row lane / 4, [1] of the row 8 below. */
template <int dim> struct unit_state {
	float maximum[2];
	float sum[2]; /* this lane's part, until the unit is done */
	float output[shape<dim>::dim_tiles][4];
};

template <int dim> KVT_DEVICE void unit_clear(struct unit_state<dim> *state)
{
	for (int i = 0; i < 2; i++) {
		state->maximum[i] = MINUS_INFINITY;
		state->sum[i] = 0;
	}
#pragma unroll
	for (int tile = 0; tile < shape<dim>::dim_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			state->output[tile][i] = 0;
	}
}

/* scores = q k^T for the warp's 16 rows and the tile's keys */
template <int dim, bool bf16>
KVT_DEVICE void tile_scores(const uint16_t *q, const uint16_t *k, float (*scores)[4])
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const int row_elements = shape<dim>::row_elements;
	/* Matrices of a: rows 0-7 and 8-15 of dims 0-7, then of dims 8-15. */
	const uint16_t *q_row = q + (warp * 16 + lane % 16) * row_elements + lane / 16 * 8;
	/* Matrices of b, for two tiles of keys: keys 0-7 with dims 0-7 and 8-15, then keys 8-15. */
	const uint16_t *k_row = k + (lane / 16 * 8 + lane % 8) * row_elements + lane / 8 % 2 * 8;

#pragma unroll
	for (int tile = 0; tile < shape<dim>::key_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			scores[tile][i] = 0;
	}
#pragma unroll
	for (int step = 0; step < dim / 16; step++) {
		uint32_t a[4];

		matrix_load(a, q_row + step * 16);
#pragma unroll
		for (int tile = 0; tile < shape<dim>::key_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load(b, k_row + tile * 8 * row_elements + step * 16);
			matrix_multiply<bf16>(scores[tile], a, b[0], b[1]);
			matrix_multiply<bf16>(scores[tile + 1], a, b[2], b[3]);
		}
	}
}

/* Minus infinity for keys that a row must not see; start is the tile's first position. */
template <int dim>
KVT_DEVICE void tile_mask(float (*scores)[4], uint32_t start, const uint32_t *limits)
{
	const uint32_t column = thread_index() % 4 * 2;

#pragma unroll
	for (int tile = 0; tile < shape<dim>::key_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (start + tile * 8 + column + i % 2 >= limits[i / 2])
				scores[tile][i] = MINUS_INFINITY;
		}
	}
}

/*
 * Scores become weights; maxima, sums and outputs follow. A row that sees nothing of the tile has
 * only minus infinities: its maximum stays, the factor is 1, the weights are 0.
 */
template <int dim>
KVT_DEVICE void tile_weights(struct unit_state<dim> *state, float (*scores)[4], float log2_scale)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float high = MINUS_INFINITY, shift, factor, sum = 0;

#pragma unroll
		for (int tile = 0; tile < shape<dim>::key_tiles; tile++)
			high = higher(high, higher(scores[tile][2 * i], scores[tile][2 * i + 1]));
		high = higher(high, exchange(high, 1));
		high = higher(high, exchange(high, 2));
		high = higher(state->maximum[i], product(high, log2_scale));
		shift = high == MINUS_INFINITY ? 0 : high;
		factor = exp2_of(state->maximum[i] - shift);
		state->maximum[i] = high;
#pragma unroll
		for (int tile = 0; tile < shape<dim>::key_tiles; tile++) {
#pragma unroll
			for (int j = 2 * i; j < 2 * i + 2; j++) {
				scores[tile][j] =
					exp2_of(product_sum(scores[tile][j], log2_scale, -shift));
				sum += scores[tile][j];
			}
		}
		state->sum[i] = product_sum(state->sum[i], factor, sum);
#pragma unroll
		for (int tile = 0; tile < shape<dim>::dim_tiles; tile++) {
			state->output[tile][2 * i] = product(state->output[tile][2 * i], factor);
			state->output[tile][2 * i + 1] =
				product(state->output[tile][2 * i + 1], factor);
		}
	}
}

/* outputs += weights v */
template <int dim, bool bf16>
KVT_DEVICE void tile_values(struct unit_state<dim> *state, float (*weights)[4], const uint16_t *v)
{
	const uint32_t lane = thread_index() % 32;
	const int row_elements = shape<dim>::row_elements;
	/* Matrices of b, for two tiles of dims: dims 0-7 of keys 0-7 and 8-15, then dims 8-15. */
	const uint16_t *v_row = v + lane % 16 * row_elements + lane / 16 * 8;

#pragma unroll
	for (int step = 0; step < shape<dim>::tile_keys / 16; step++) {
		const float *low = weights[2 * step], *high = weights[2 * step + 1];
		uint32_t a[4] = { pair_of<bf16>(low[0], low[1]), pair_of<bf16>(low[2], low[3]),
				  pair_of<bf16>(high[0], high[1]),
				  pair_of<bf16>(high[2], high[3]) };

#pragma unroll
		for (int tile = 0; tile < shape<dim>::dim_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load_transposed(b, v_row + step * 16 * row_elements + tile * 8);
			matrix_multiply<bf16>(state->output[tile], a, b[0], b[1]);
			matrix_multiply<bf16>(state->output[tile + 1], a, b[2], b[3]);
		}
	}
}

/* Flag the block if its rows end within the tile, and the tile has a value that is not finite. */
template <int dim, bool bf16>
KVT_DEVICE void tile_search(const struct rows_at_hand *rows, uint32_t start, const uint16_t *v)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint16_t exponent = bf16 ? 0x7f80 : 0x7c00;
	uint32_t index = (uint32_t)(rows->block - at<const struct kvt_cuda_block>(args->blocks));

	if (rows->limit_low == rows->limit_high || start + shape<dim>::tile_keys <= rows->limit_low)
		return;
	for (uint32_t i = thread_index(); i < shape<dim>::tile_elements; i += KVT_CUDA_THREADS) {
		if (i % shape<dim>::row_elements < dim && (v[i] & exponent) == exponent)
			at<uint32_t>(args->flags)[index] = 1;
	}
}

struct tiles {
	uint16_t *q;
	uint16_t *k[2];
	uint16_t *v[2];
};

template <int dim> KVT_DEVICE struct tiles tiles_in_shared(void)
{
	uint16_t *memory = (uint16_t *)(void *)shared_memory();
	struct tiles tiles;

	tiles.q = memory;
	memory += shape<dim>::q_elements;
	for (int i = 0; i < 2; i++) {
		tiles.k[i] = memory + 2 * i * shape<dim>::tile_elements;
		tiles.v[i] = memory + (2 * i + 1) * shape<dim>::tile_elements;
	}
	return tiles;
}

template <int dim, bool bf16, bool f8>
KVT_DEVICE void tiles_fetch(const struct rows_at_hand *rows, const struct tiles *tiles,
			    uint32_t start, int stage)
{
	tile_copy<dim, bf16, f8>(rows, rows->args->k, start, tiles->k[stage]);
	tile_copy<dim, bf16, f8>(rows, rows->args->v, start, tiles->v[stage]);
	copy_commit();
}

/* One unit of the rows. The queries are in shared memory, or on their way there. */
template <int dim, bool bf16, bool f8>
KVT_DEVICE void unit_run(const struct rows_at_hand *rows, const struct tiles *tiles, uint32_t unit,
			 struct unit_state<dim> *state, const uint32_t *limits)
{
	const uint32_t first = unit * UNIT;
	const uint32_t end = least(first + UNIT, rows->limit_high);
	const bool busy = thread_index() / 32 * 16 < rows->n_rows;
	int stage = 0;

	unit_clear<dim>(state);
	tiles_fetch<dim, bf16, f8>(rows, tiles, first, 0);
	for (uint32_t start = first; start < end; start += shape<dim>::tile_keys, stage ^= 1) {
		float scores[shape<dim>::key_tiles][4];

		if (start + shape<dim>::tile_keys < end) {
			tiles_fetch<dim, bf16, f8>(rows, tiles, start + shape<dim>::tile_keys,
						   stage ^ 1);
			copy_wait<1>();
		} else {
			copy_wait<0>();
		}
		barrier();
		tile_search<dim, bf16>(rows, start, tiles->v[stage]);
		/* The same for all lanes of a warp, as its instructions need. */
		if (busy) {
			tile_scores<dim, bf16>(tiles->q, tiles->k[stage], scores);
			if (start + shape<dim>::tile_keys > rows->limit_low ||
			    rows->n_rows < KVT_CUDA_ROWS)
				tile_mask<dim>(scores, start, limits);
			tile_weights<dim>(state, scores, rows->args->log2_scale);
			tile_values<dim, bf16>(state, scores, tiles->v[stage]);
		}
		/* The next round but one writes where this one read. */
		barrier();
	}
	for (int i = 0; i < 2; i++) {
		state->sum[i] += exchange(state->sum[i], 1);
		state->sum[i] += exchange(state->sum[i], 2);
	}
}

/* Merging. The same few operations everywhere, or bits would differ. */

struct merge_factors {
	float maximum;
	float target;
	float source;
};

KVT_DEVICE struct merge_factors merge_factors_of(float target, float source)
{
	struct merge_factors factors;
	float shift;

	factors.maximum = higher(target, source);
	shift = factors.maximum == MINUS_INFINITY ? 0 : factors.maximum;
	factors.target = exp2_of(target - shift);
	factors.source = exp2_of(source - shift);
	return factors;
}

KVT_DEVICE float merged(float target, float source, const struct merge_factors *factors)
{
	return product_sum(source, factors->source, product(target, factors->target));
}

KVT_DEVICE void output_write(const struct rows_at_hand *rows, uint32_t row, uint32_t column,
			     float value, bool bf16)
{
	const struct kvt_cuda_prefill *args = rows->args;
	unsigned char *out = at<unsigned char>(args->out) +
			     row_offset(rows, row, args->out_row_stride, args->out_head_stride);

	if (column >= args->head_dim)
		return;
	value += 0.0f; /* -0 and 0 are the same */
	if (args->out_f32)
		((float *)(void *)out)[column] = value;
	else if (bf16)
		((uint16_t *)(void *)out)[column] = (uint16_t)pair_of<true>(value, 0.0f);
	else
		((uint16_t *)(void *)out)[column] = (uint16_t)pair_of<false>(value, 0.0f);
}

/* The warp's part of a span's result: maxima and sums in registers, outputs in the slot. */
struct span_state {
	float maximum[2];
	float sum[2];
	float *slot;
};

/* Merge a unit into the span; rows that see nothing of the unit are left alone. */
template <int dim>
KVT_DEVICE void span_merge(struct span_state *span, const struct unit_state<dim> *unit,
			   const uint32_t *limits, uint32_t unit_start, bool first)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;

#pragma unroll
	for (int i = 0; i < 2; i++) {
		uint32_t row = warp * 16 + lane / 4 + 8 * i;
		float *output = span->slot + 2 * KVT_CUDA_ROWS + row * dim + lane % 4 * 2;
		struct merge_factors factors;

		if (limits[i] <= unit_start)
			continue;
		factors = merge_factors_of(span->maximum[i], unit->maximum[i]);
		span->maximum[i] = first ? unit->maximum[i] : factors.maximum;
		span->sum[i] = first ? unit->sum[i] : merged(span->sum[i], unit->sum[i], &factors);
#pragma unroll
		for (int tile = 0; tile < shape<dim>::dim_tiles; tile++) {
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float value = unit->output[tile][2 * i + j];

				if (!first)
					value = merged(output[tile * 8 + j], value, &factors);
				output[tile * 8 + j] = value;
			}
		}
	}
}

/* The result is complete: write it out, from the slot where this thread has put it. */
template <int dim>
KVT_DEVICE void span_write(const struct rows_at_hand *rows, const struct span_state *span,
			   bool bf16)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;

	for (int i = 0; i < 2; i++) {
		uint32_t row = warp * 16 + lane / 4 + 8 * i;
		const float *output = span->slot + 2 * KVT_CUDA_ROWS + row * dim + lane % 4 * 2;
		float factor = quotient(rows->args->v_scale, span->sum[i]);

		if (row >= rows->n_rows)
			continue;
		for (int j = 0; j < dim / 4; j++) {
			uint32_t column = j / 2 * 8 + j % 2;

			output_write(rows, row, column + lane % 4 * 2,
				     product(output[column], factor), bf16);
		}
	}
}

/* One span, into a slot; and written out if that is all there is. */
template <int dim, bool bf16, bool f8>
KVT_DEVICE void span_run(const struct rows_at_hand *rows, uint32_t first_unit, uint32_t end_unit,
			 float *slot, bool complete)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const struct tiles tiles = tiles_in_shared<dim>();
	const uint32_t limits[2] = { limit_of(rows, warp * 16 + lane / 4),
				     limit_of(rows, warp * 16 + lane / 4 + 8) };
	struct span_state span = { { 0, 0 }, { 0, 0 }, slot };
	struct unit_state<dim> unit_result;

	queries_copy<dim>(rows, tiles.q);
	for (uint32_t unit = first_unit; unit < end_unit; unit++) {
		if (unit * UNIT >= rows->limit_high)
			break;
		unit_run<dim, bf16, f8>(rows, &tiles, unit, &unit_result, limits);
		span_merge<dim>(&span, &unit_result, limits, unit * UNIT, unit == first_unit);
	}
	if (complete) {
		span_write<dim>(rows, &span, bf16);
		return;
	}
	for (int i = 0; i < 2; i++) {
		uint32_t row = warp * 16 + lane / 4 + 8 * i;

		if (lane % 4 == 0) {
			slot[row] = span.maximum[i];
			slot[KVT_CUDA_ROWS + row] = span.sum[i];
		}
	}
}

/* Merging of spans: a warp does a row, a lane every 32nd dimension. */

template <int dim> struct row_state {
	float maximum;
	float sum;
	float output[(dim + 31) / 32];
};

template <int dim>
KVT_DEVICE void row_load(struct row_state<dim> *state, const float *slot, uint32_t row)
{
	state->maximum = slot[row];
	state->sum = slot[KVT_CUDA_ROWS + row];
	for (int i = 0; i < (dim + 31) / 32; i++) {
		uint32_t column = i * 32 + thread_index() % 32;

		state->output[i] = column < dim ? slot[2 * KVT_CUDA_ROWS + row * dim + column] : 0;
	}
}

template <int dim>
KVT_DEVICE void row_merge(struct row_state<dim> *target, const struct row_state<dim> *source)
{
	struct merge_factors factors = merge_factors_of(target->maximum, source->maximum);

	target->maximum = factors.maximum;
	target->sum = merged(target->sum, source->sum, &factors);
	for (int i = 0; i < (dim + 31) / 32; i++)
		target->output[i] = merged(target->output[i], source->output[i], &factors);
}

/* Put a row's spans together and write it out. slot_row is its place in the slots. */
template <int dim>
KVT_DEVICE void row_finish(const struct rows_at_hand *rows, uint32_t row, uint32_t span_units,
			   const float *slots, uint32_t slot_row, bool bf16)
{
	const uint32_t n_units = (limit_of(rows, row) + UNIT - 1) / UNIT;
	struct row_state<dim> total = {}, group, span;
	float factor;

	for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
		uint32_t end = least(first + GROUP_UNITS, n_units);

		row_load<dim>(&group,
			      slots + (uint64_t)(first / span_units) * shape<dim>::slot_floats,
			      slot_row);
		for (uint32_t unit = first + span_units; unit < end; unit += span_units) {
			row_load<dim>(&span,
				      slots + (uint64_t)(unit / span_units) *
						      shape<dim>::slot_floats,
				      slot_row);
			row_merge<dim>(&group, &span);
		}
		if (first == 0)
			total = group;
		else
			row_merge<dim>(&total, &group);
	}
	factor = quotient(rows->args->v_scale, total.sum);
	for (int i = 0; i < (dim + 31) / 32; i++)
		output_write(rows, row, i * 32 + thread_index() % 32,
			     product(total.output[i], factor), bf16);
}

/* The kernels */

template <int dim, bool bf16, bool f8> KVT_DEVICE void attend(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_item item = at<const struct kvt_cuda_item>(args.items)[block_index()];
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + item.block;
	const struct rows_at_hand rows = rows_take(&args, block, 0, block->n_rows);
	uint64_t slot = block->first_slot + item.first_unit / block->span_units;

	span_run<dim, bf16, f8>(&rows, item.first_unit,
				least(item.first_unit + block->span_units, block->n_units),
				at<float>(args.partials) + slot * shape<dim>::slot_floats,
				block->n_units <= block->span_units);
}

template <int dim, bool bf16> KVT_DEVICE void merge(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + block_index();
	const struct rows_at_hand rows = rows_take(&args, block, 0, block->n_rows);
	const float *slots = at<const float>(args.partials) +
			     (uint64_t)block->first_slot * shape<dim>::slot_floats;

	if (block->n_units <= block->span_units)
		return;
	for (uint32_t row = thread_index() / 32; row < rows.n_rows; row += KVT_CUDA_THREADS / 32)
		row_finish<dim>(&rows, row, block->span_units, slots, row, bf16);
}

template <int dim, bool bf16, bool f8> KVT_DEVICE void repair(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + block_index();
	float *slots =
		at<float>(args.partials) + (uint64_t)block->first_slot * shape<dim>::slot_floats;

	if (!at<const uint32_t>(args.flags)[block_index()])
		return;
	for (uint32_t row = 0; row < block->n_rows; row++) {
		const struct rows_at_hand rows = rows_take(&args, block, row, 1);
		uint32_t n_units = (rows.limit_high + UNIT - 1) / UNIT;

		/* A slot for each group: there is one at least for each. */
		for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
			span_run<dim, bf16, f8>(&rows, first, least(first + GROUP_UNITS, n_units),
						slots + (uint64_t)(first / GROUP_UNITS) *
								shape<dim>::slot_floats,
						false);
			barrier();
		}
		if (thread_index() < 32)
			row_finish<dim>(&rows, 0, GROUP_UNITS, slots, 0, bf16);
		barrier();
	}
}

#endif
