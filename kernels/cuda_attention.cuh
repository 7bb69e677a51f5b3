/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on paged KV, for compute capability 8.0 and above. Two kinds of products: mma.sync for
 * queries of 16 bits with KV of the same type or fp8, and fp32 products and sums (KIND_F32) for
 * all else, whose queries and KV become fp32 while they are copied.
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
 * have any are flagged and not written out, and kernel repair does them again, row by row. A row
 * alone never meets a position that it must not see. (Nothing is written before it is known to
 * be right, since out may lie where q does.)
 *
 * Lane l of a warp has, of a 16 x 8 product, the columns 2 * (l % 4) and the next, of rows l / 4
 * and l / 4 + 8.
 */
#ifndef KVT_KERNELS_CUDA_ATTENTION_CUH
#define KVT_KERNELS_CUDA_ATTENTION_CUH

#define UNIT 1024u
#define GROUP_UNITS 8u

/* What products are made of. */
enum kind {
	KIND_BF16 = 0,
	KIND_F16 = 1,
	KIND_F32 = 2,
};

template <int kind> struct element_of {
	typedef uint16_t type;
};
template <> struct element_of<KIND_F32> {
	typedef float type;
};

/*
 * Rows in shared memory are 16 bytes longer than they need be, so that 8 rows lie in different
 * banks.
 */
template <int dim, int kind> struct shape {
	typedef typename element_of<kind>::type element;
	static constexpr int tile_keys = (dim > 128 ? 32 : 64) /
					 (kind != KIND_F32 ? 1 : dim > 128 ? 4 : 2);
	static constexpr int chunk_elements = 16 / sizeof(element);
	static constexpr int row_elements = dim + chunk_elements;
	static constexpr int q_elements = KVT_CUDA_ROWS * row_elements;
	static constexpr int tile_elements = tile_keys * row_elements;
	static constexpr int key_tiles = tile_keys / 8;
};

/*
 * A tile as it is copied: elements as above, or fp8 as it lies in the pages, sixteen at a time,
 * from which a tile is made when it is there. Queries, two stages of keys and values, and that
 * tile together are at most 99 KiB, which every device has.
 */
template <int dim, int kind, bool f8> struct copied_shape {
	typedef typename element_of<kind>::type element;
	static constexpr int chunk_elements = f8 ? 16 : shape<dim, kind>::chunk_elements;
	static constexpr int row_bytes =
		f8 ? dim : shape<dim, kind>::row_elements * (int)sizeof(element);
	static constexpr int tile_bytes = shape<dim, kind>::tile_keys * row_bytes;
	static_assert(shape<dim, kind>::q_elements * sizeof(element) + 4 * tile_bytes +
				      (f8 ? 2 * shape<dim, kind>::tile_elements * sizeof(element)
					  : 0) <=
			      99 << 10,
		      "too large");
};

/* What does not depend on the kind of products. */
template <int dim> struct result_shape {
	static constexpr int dim_tiles = dim / 8;
	static constexpr int slot_floats = KVT_CUDA_ROWS * (dim + 2);
};

#define MINUS_INFINITY bits_float(0xff800000u)

/* What one load or store of a device moves at most. */
struct alignas(16) line_piece {
	uint32_t words[4];
};

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

/* fp8 by its bits below the sign: those of a number 2^120 too small. Exact. */
KVT_DEVICE float f8_value(uint32_t bits)
{
	uint32_t magnitude = bits & 0x7f, sign = (bits & 0x80) << 24;
	float value = magnitude == 0x7f
			      ? bits_float(0x7fc00000u)
			      : product(bits_float(magnitude << 20), bits_float(0x7b800000u));

	return bits_float(float_bits(value) | sign);
}

/*
 * Sixteen bytes to shared memory, from dimension dim of a row on, as fast as can be; what lies
 * beyond n_dims, and rows that are not valid, are zeros. For fp32 products, rows of another type
 * are converted on the way.
 */
template <int kind, bool f8>
KVT_DEVICE void chunk_copy(unsigned char *target, const unsigned char *row, uint32_t dim,
			   uint32_t n_dims, bool valid, bool lines, uint32_t type)
{
	const uint32_t bytes = kind == KIND_F32 ? kvt_type_size(type) : f8 ? 1 : 2;
	const uint32_t target_bytes = f8 ? 1 : sizeof(typename element_of<kind>::type);

	if (lines && bytes == target_bytes) {
		valid = valid && dim < n_dims;
		copy_async(target, row + (valid ? dim * bytes : 0), valid);
		return;
	}
	for (uint32_t i = 0; i < 16 / target_bytes; i++) {
		bool there = valid && dim + i < n_dims;
		const unsigned char *source = row + (there ? (dim + i) * bytes : 0);

		if (kind == KIND_F32)
			((float *)(void *)target)[i] = there ? kvt_element_load(source, type) : 0;
		else if (f8)
			target[i] = there ? *source : 0;
		else
			((uint16_t *)(void *)target)[i] =
				there ? *(const uint16_t *)(const void *)source : 0;
	}
}

template <int dim, int kind>
KVT_DEVICE void queries_copy(const struct rows_at_hand *rows,
			     typename element_of<kind>::type *target)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t chunk_elements = shape<dim, kind>::chunk_elements;
	const uint32_t chunks = dim / chunk_elements;

	for (uint32_t i = thread_index(); i < KVT_CUDA_ROWS * chunks; i += KVT_CUDA_THREADS) {
		uint32_t row = i / chunks, x = i % chunks * chunk_elements;
		bool valid = row < rows->n_rows;
		const unsigned char *q =
			at<const unsigned char>(args->q) +
			row_offset(rows, valid ? row : 0, args->q_row_stride, args->q_head_stride);

		typename element_of<kind>::type *to =
			target + row * shape<dim, kind>::row_elements + x;

		chunk_copy<kind, false>((unsigned char *)(void *)to, q, x, args->head_dim, valid,
					args->lines & KVT_CUDA_LINES_Q, args->q_type);
	}
}

/* A tile of one plane: positions from start on. Those from limit_high on are not read. */
template <int dim, int kind, bool f8>
KVT_DEVICE void tile_copy(const struct rows_at_hand *rows, uint64_t plane, uint32_t start,
			  unsigned char *target)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t *pages = at<const uint32_t>(args->pages) + rows->block->first_page;
	const unsigned char *head =
		at<const unsigned char>(plane) + rows->block->kv_head * args->head_stride;
	const uint32_t chunks = dim / copied_shape<dim, kind, f8>::chunk_elements;

	for (uint32_t i = thread_index(); i < shape<dim, kind>::tile_keys * chunks;
	     i += KVT_CUDA_THREADS) {
		uint32_t key = i / chunks, chunk = i % chunks, position = start + key;
		bool valid = position < rows->limit_high;
		uint64_t page = valid ? pages[position >> args->page_shift] : 0;
		uint32_t within = valid ? position & ((1u << args->page_shift) - 1) : 0;

		chunk_copy<kind, f8>(target + key * copied_shape<dim, kind, f8>::row_bytes +
					     chunk * 16,
				     head + page * args->page_stride +
					     within * args->position_stride,
				     chunk * copied_shape<dim, kind, f8>::chunk_elements,
				     args->head_dim, valid, args->lines & KVT_CUDA_LINES_KV,
				     args->kv_type);
	}
}

/*
 * A tile of 16-bit elements from one of fp8. Each thread converts what it has copied itself, so
 * its own copies are all that it has to wait for.
 */
template <int dim, int kind>
KVT_DEVICE void tile_convert(const unsigned char *copied, uint16_t *target)
{
	const uint32_t chunks = dim / 16;

	for (uint32_t i = thread_index(); i < shape<dim, kind>::tile_keys * chunks;
	     i += KVT_CUDA_THREADS) {
		const struct line_piece source =
			*(const struct line_piece *)(const void *)(copied + i * 16);
		uint16_t *to = target + i / chunks * shape<dim, kind>::row_elements +
			       i % chunks * 16;
		struct line_piece half[2];

#pragma unroll
		for (int j = 0; j < 8; j++) {
			uint32_t two = source.words[j / 2] >> j % 2 * 16;

			half[j / 4].words[j % 4] = pair_of<kind == KIND_BF16>(f8_value(two),
									      f8_value(two >> 8));
		}
		((struct line_piece *)(void *)to)[0] = half[0];
		((struct line_piece *)(void *)to)[1] = half[1];
	}
}

/* The warp's state of one unit. [0] is of row lane / 4, [1] of the row 8 below. */
template <int dim> struct unit_state {
	float maximum[2];
	float sum[2]; /* this lane's part, until the unit is done */
	float output[result_shape<dim>::dim_tiles][4];
};

template <int dim> KVT_DEVICE void unit_clear(struct unit_state<dim> *state)
{
	for (int i = 0; i < 2; i++) {
		state->maximum[i] = MINUS_INFINITY;
		state->sum[i] = 0;
	}
#pragma unroll
	for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			state->output[tile][i] = 0;
	}
}

/* scores = q k^T for the warp's 16 rows and the tile's keys; they are 0 to begin with */
template <int dim, int kind>
KVT_DEVICE void tile_scores(const uint16_t *q, const uint16_t *k, float (*scores)[4])
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const int row_elements = shape<dim, kind>::row_elements;
	/* Matrices of a: rows 0-7 and 8-15 of dims 0-7, then of dims 8-15. */
	const uint16_t *q_row = q + (warp * 16 + lane % 16) * row_elements + lane / 16 * 8;
	/* Matrices of b, for two tiles of keys: keys 0-7 with dims 0-7 and 8-15, then keys 8-15. */
	const uint16_t *k_row = k + (lane / 16 * 8 + lane % 8) * row_elements + lane / 8 % 2 * 8;

#pragma unroll
	for (int step = 0; step < dim / 16; step++) {
		uint32_t a[4];

		matrix_load(a, q_row + step * 16);
#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load(b, k_row + tile * 8 * row_elements + step * 16);
			matrix_multiply<kind == KIND_BF16>(scores[tile], a, b[0], b[1]);
			matrix_multiply<kind == KIND_BF16>(scores[tile + 1], a, b[2], b[3]);
		}
	}
}

/* Four floats that are loaded at once. */
struct alignas(16) four {
	float x[4];
};

/* The same in fp32: each score adds dimensions in ascending order. */
template <int dim, int kind>
KVT_DEVICE void tile_scores(const float *q, const float *k, float (*scores)[4])
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const int row_elements = shape<dim, kind>::row_elements;
	const float *q_row = q + (warp * 16 + lane / 4) * row_elements;
	const float *k_row = k + lane % 4 * 2 * row_elements;

	for (int step = 0; step < dim; step += 4) {
		const struct four low = *(const struct four *)(q_row + step);
		const struct four high = *(const struct four *)(q_row + 8 * row_elements + step);

#pragma unroll
		for (int i = 0; i < shape<dim, kind>::key_tiles * 2; i++) {
			const struct four key = *(const struct four *)(
				k_row + (i / 2 * 8 + i % 2) * row_elements + step);
			float *score = scores[i / 2] + i % 2;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				score[0] = product_sum(low.x[j], key.x[j], score[0]);
				score[2] = product_sum(high.x[j], key.x[j], score[2]);
			}
		}
	}
}

/* Minus infinity for keys that a row must not see; start is the tile's first position. */
template <int dim, int kind>
KVT_DEVICE void tile_mask(float (*scores)[4], uint32_t start, const uint32_t *limits)
{
	const uint32_t column = thread_index() % 4 * 2;

#pragma unroll
	for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++) {
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
template <int dim, int kind>
KVT_DEVICE void tile_weights(struct unit_state<dim> *state, float (*scores)[4], float log2_scale)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float high = MINUS_INFINITY, shift, factor, sum = 0;

#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++)
			high = higher(high, higher(scores[tile][2 * i], scores[tile][2 * i + 1]));
		high = higher(high, exchange(high, 1));
		high = higher(high, exchange(high, 2));
		high = higher(state->maximum[i], product(high, log2_scale));
		shift = high == MINUS_INFINITY ? 0 : high;
		factor = exp2_of(state->maximum[i] - shift);
		state->maximum[i] = high;
#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++) {
#pragma unroll
			for (int j = 2 * i; j < 2 * i + 2; j++) {
				scores[tile][j] =
					exp2_of(product_sum(scores[tile][j], log2_scale, -shift));
				sum += scores[tile][j];
			}
		}
		state->sum[i] = product_sum(state->sum[i], factor, sum);
#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
			state->output[tile][2 * i] = product(state->output[tile][2 * i], factor);
			state->output[tile][2 * i + 1] =
				product(state->output[tile][2 * i + 1], factor);
		}
	}
}

/* outputs += weights v */
template <int dim, int kind>
KVT_DEVICE void tile_values(struct unit_state<dim> *state, float (*weights)[4], const uint16_t *v)
{
	const uint32_t lane = thread_index() % 32;
	const int row_elements = shape<dim, kind>::row_elements;
	const bool bf16 = kind == KIND_BF16;
	/* Matrices of b, for two tiles of dims: dims 0-7 of keys 0-7 and 8-15, then dims 8-15. */
	const uint16_t *v_row = v + lane % 16 * row_elements + lane / 16 * 8;

#pragma unroll
	for (int step = 0; step < shape<dim, kind>::tile_keys / 16; step++) {
		const float *low = weights[2 * step], *high = weights[2 * step + 1];
		uint32_t a[4] = { pair_of<bf16>(low[0], low[1]), pair_of<bf16>(low[2], low[3]),
				  pair_of<bf16>(high[0], high[1]),
				  pair_of<bf16>(high[2], high[3]) };

#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load_transposed(b, v_row + step * 16 * row_elements + tile * 8);
			matrix_multiply<bf16>(state->output[tile], a, b[0], b[1]);
			matrix_multiply<bf16>(state->output[tile + 1], a, b[2], b[3]);
		}
	}
}

/* The same in fp32: each output adds positions in ascending order. */
template <int dim, int kind>
KVT_DEVICE void tile_values(struct unit_state<dim> *state, float (*weights)[4], const float *v)
{
	const uint32_t lane = thread_index() % 32;
	const int row_elements = shape<dim, kind>::row_elements;
	const float *v_row = v + lane % 4 * 2;

#pragma unroll
	for (int key = 0; key < shape<dim, kind>::tile_keys; key++, v_row += row_elements) {
		/* The lane of the same four that has this column. */
		const uint32_t owner = lane / 4 * 4 + key % 8 / 2;
		const float low = from_lane(weights[key / 8][key % 2], owner);
		const float high = from_lane(weights[key / 8][2 + key % 2], owner);

#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
			const float first = v_row[tile * 8], second = v_row[tile * 8 + 1];
			float *output = state->output[tile];

			output[0] = product_sum(low, first, output[0]);
			output[1] = product_sum(low, second, output[1]);
			output[2] = product_sum(high, first, output[2]);
			output[3] = product_sum(high, second, output[3]);
		}
	}
}

template <int kind> KVT_DEVICE bool not_finite(uint16_t bits)
{
	const uint16_t exponent = kind == KIND_BF16 ? 0x7f80 : 0x7c00;

	return (bits & exponent) == exponent;
}

template <int kind> KVT_DEVICE bool not_finite(float value)
{
	return (float_bits(value) & 0x7f800000u) == 0x7f800000u;
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
			    const typename element_of<kind>::type *v)
{
	if (rows->limit_low == rows->limit_high ||
	    start + shape<dim, kind>::tile_keys <= rows->limit_low)
		return;
	for (uint32_t i = thread_index(); i < shape<dim, kind>::tile_elements;
	     i += KVT_CUDA_THREADS) {
		if (i % shape<dim, kind>::row_elements < dim && not_finite<kind>(v[i]))
			*flag_of(rows->args, rows->block) = 1;
	}
}

/*
 * Shared memory: queries, two stages of a tile of keys and one of values, and with fp8 a tile of
 * each to which a stage is converted.
 */
template <int kind> struct tiles {
	typename element_of<kind>::type *q;
	unsigned char *stages;
	typename element_of<kind>::type *converted;
};

template <int dim, int kind, bool f8> KVT_DEVICE struct tiles<kind> tiles_in_shared(void)
{
	struct tiles<kind> tiles;

	tiles.q = (typename element_of<kind>::type *)(void *)shared_memory();
	tiles.stages = (unsigned char *)(void *)(tiles.q + shape<dim, kind>::q_elements);
	tiles.converted =
		(typename element_of<kind>::type *)(void *)(tiles.stages +
							    4 * copied_shape<dim, kind,
									     f8>::tile_bytes);
	return tiles;
}

/* Where a stage's keys are copied to; its values follow. */
template <int dim, int kind, bool f8>
KVT_DEVICE unsigned char *stage_of(const struct tiles<kind> *tiles, int stage)
{
	return tiles->stages + 2 * stage * copied_shape<dim, kind, f8>::tile_bytes;
}

template <int dim, int kind, bool f8>
KVT_DEVICE void tiles_fetch(const struct rows_at_hand *rows, const struct tiles<kind> *tiles,
			    uint32_t start, int stage)
{
	unsigned char *keys = stage_of<dim, kind, f8>(tiles, stage);

	tile_copy<dim, kind, f8>(rows, rows->args->k, start, keys);
	tile_copy<dim, kind, f8>(rows, rows->args->v, start,
				 keys + copied_shape<dim, kind, f8>::tile_bytes);
	copy_commit();
}

/*
 * The elements of a stage whose copies by this thread have arrived: keys, and behind them values.
 * Those of other threads are there after a barrier.
 */
template <int dim, int kind, bool f8>
KVT_DEVICE typename element_of<kind>::type *tiles_take(const struct tiles<kind> *tiles, int stage)
{
	unsigned char *keys = stage_of<dim, kind, f8>(tiles, stage);

	if constexpr (f8) {
		tile_convert<dim, kind>(keys, tiles->converted);
		tile_convert<dim, kind>(keys + copied_shape<dim, kind, f8>::tile_bytes,
					tiles->converted + shape<dim, kind>::tile_elements);
		return tiles->converted;
	}
	return (typename element_of<kind>::type *)(void *)keys;
}

/* One unit of the rows. The queries are in shared memory, or on their way there. */
template <int dim, int kind, bool f8>
KVT_DEVICE void unit_run(const struct rows_at_hand *rows, const struct tiles<kind> *tiles,
			 uint32_t unit, struct unit_state<dim> *state, const uint32_t *limits)
{
	const uint32_t first = unit * UNIT;
	const uint32_t end = least(first + UNIT, rows->limit_high);
	const uint32_t step = shape<dim, kind>::tile_keys;
	const bool busy = thread_index() / 32 * 16 < rows->n_rows;
	int stage = 0;

	unit_clear<dim>(state);
	tiles_fetch<dim, kind, f8>(rows, tiles, first, 0);
	for (uint32_t start = first; start < end; start += step, stage ^= 1) {
		float scores[shape<dim, kind>::key_tiles][4] = {};
		const typename element_of<kind>::type *k, *v;

		if (start + step < end) {
			tiles_fetch<dim, kind, f8>(rows, tiles, start + step, stage ^ 1);
			copy_wait<1>();
		} else {
			copy_wait<0>();
		}
		k = tiles_take<dim, kind, f8>(tiles, stage);
		v = k + shape<dim, kind>::tile_elements;
		barrier();
		tile_search<dim, kind>(rows, start, v);
		/* The same for all lanes of a warp, as its instructions need. */
		if (busy) {
			tile_scores<dim, kind>(tiles->q, k, scores);
			if (start + step > rows->limit_low || rows->n_rows < KVT_CUDA_ROWS)
				tile_mask<dim, kind>(scores, start, limits);
			tile_weights<dim, kind>(state, scores, rows->args->log2_scale);
			tile_values<dim, kind>(state, scores, v);
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
			     float value)
{
	const struct kvt_cuda_prefill *args = rows->args;
	unsigned char *out = at<unsigned char>(args->out) +
			     row_offset(rows, row, args->out_row_stride, args->out_head_stride);

	if (column >= args->head_dim)
		return;
	value += 0.0f; /* -0 and 0 are the same */
	if (args->out_type == KVT_ATTN_F32)
		((float *)(void *)out)[column] = value;
	else if (args->out_type == KVT_ATTN_BF16)
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
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
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
KVT_DEVICE void span_write(const struct rows_at_hand *rows, const struct span_state *span)
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
				     product(output[column], factor));
		}
	}
}

/* One span, into a slot; and written out if that is all there is. */
template <int dim, int kind, bool f8>
KVT_DEVICE void span_run(const struct rows_at_hand *rows, uint32_t first_unit, uint32_t end_unit,
			 float *slot, bool complete)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const struct tiles<kind> tiles = tiles_in_shared<dim, kind, f8>();
	const uint32_t limits[2] = { limit_of(rows, warp * 16 + lane / 4),
				     limit_of(rows, warp * 16 + lane / 4 + 8) };
	struct span_state span = { { 0, 0 }, { 0, 0 }, slot };
	struct unit_state<dim> unit_result;

	queries_copy<dim, kind>(rows, tiles.q);
	for (uint32_t unit = first_unit; unit < end_unit; unit++) {
		if (unit * UNIT >= rows->limit_high)
			break;
		unit_run<dim, kind, f8>(rows, &tiles, unit, &unit_result, limits);
		span_merge<dim>(&span, &unit_result, limits, unit * UNIT, unit == first_unit);
	}
	if (complete) {
		/* Whoever raised the flag did so before the last barrier. */
		if (!*flag_of(rows->args, rows->block))
			span_write<dim>(rows, &span);
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

template <int dim> KVT_DEVICE float *slot_at(float *slots, uint64_t index)
{
	return slots + index * result_shape<dim>::slot_floats;
}

/* The first of a block's slots. */
template <int dim>
KVT_DEVICE float *slots_of(const struct kvt_cuda_prefill &args, const struct kvt_cuda_block *block)
{
	return slot_at<dim>(at<float>(args.partials), block->first_slot);
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
			   float *slots, uint32_t slot_row)
{
	const uint32_t n_units = (limit_of(rows, row) + UNIT - 1) / UNIT;
	struct row_state<dim> total = {}, group, span;
	float factor;

	for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
		uint32_t end = least(first + GROUP_UNITS, n_units);

		row_load<dim>(&group, slot_at<dim>(slots, first / span_units), slot_row);
		for (uint32_t unit = first + span_units; unit < end; unit += span_units) {
			row_load<dim>(&span, slot_at<dim>(slots, unit / span_units), slot_row);
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
			     product(total.output[i], factor));
}

/* The kernels */

template <int dim, int kind, bool f8> KVT_DEVICE void attend(const struct kvt_cuda_prefill &args)
{
	const struct kvt_cuda_item item = at<const struct kvt_cuda_item>(args.items)[block_index()];
	const struct kvt_cuda_block *block =
		at<const struct kvt_cuda_block>(args.blocks) + item.block;
	const struct rows_at_hand rows = rows_take(&args, block, 0, block->n_rows);
	float *slots = slots_of<dim>(args, block);

	span_run<dim, kind, f8>(&rows, item.first_unit,
				least(item.first_unit + block->span_units, block->n_units),
				slot_at<dim>(slots, item.first_unit / block->span_units),
				block->n_units <= block->span_units);
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

		/* A slot for each group: there is one at least for each. */
		for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
			span_run<dim, kind, f8>(&rows, first, least(first + GROUP_UNITS, n_units),
						slot_at<dim>(slots, first / GROUP_UNITS), false);
			barrier();
		}
		if (thread_index() < 32)
			row_finish<dim>(&rows, 0, GROUP_UNITS, slots, 0);
		barrier();
	}
}

#endif
