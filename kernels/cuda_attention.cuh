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

#define UNIT 1024u
#define GROUP_UNITS 8u

/* The kinds of products. */
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
 * Where the rows of a tile lie in shared memory, in chunks of 16 bytes. Shared memory is 8 columns
 * of 16 bytes (4 banks each) wide, and serves 8 lanes at once if their chunks are in 8 columns.
 * Rows follow each other without gaps, but chunk c of a row lies at its place c ^ twist(row):
 *
 *   run     the largest power of two, 8 at most, that divides the chunks of a row
 *   twist   counts 0, 0, .., 1, 1, .., run - 1, each for 8 / run rows, again and again
 *
 *   row_chunks      8, 16, 24, 32, 64        12, 20             10
 *   run             8                        4                  2
 *   twist of rows   0 1 2 3 4 5 6 7          0 0 1 1 2 2 3 3    0 0 0 0 1 1 1 1
 *
 * (All rows need not be twisted by their number: rows of 160 or 192 bytes are odd multiples of 32
 * or 64, so that some rows are apart as they are, and must not be moved onto each other.)
 *
 * Two ways of access meet no conflict:
 *
 * Chunk c of rows 8n to 8n + 7, as ldmatrix reads them. Row r begins at column r * row_chunks % 8,
 * a multiple of run. 8 / run rows, one after the other, begin at all of these: row_chunks / run is
 * odd, or run is 8. The next 8 / run rows begin there again, with the next twist. A twist is less
 * than run, so it leaves a chunk among the run places from a multiple of run on, and each twist
 * puts it to another one of them: 8 / run beginnings times run places are 8 columns.
 *
 * Chunks 8n to 8n + 7 of a tile, row by row, as lanes copy them. They are whole runs, each of one
 * row, and chunks of a run only change places with each other.
 */
template <int row_chunks> struct swizzle {
	static constexpr uint32_t run = row_chunks % 8 == 0   ? 8
					: row_chunks % 4 == 0 ? 4
					: row_chunks % 2 == 0 ? 2
							      : 1;

	KVT_MEMBER uint32_t twist(uint32_t row)
	{
		return row / (8 / run) % run;
	}

	/* Return the number of chunks before this one in the tile. */
	KVT_MEMBER uint32_t place(uint32_t row, uint32_t chunk)
	{
		return row * row_chunks + (chunk ^ twist(row));
	}

	/*
	 * chunk ^ twisted, for a constant chunk and a lane's twisted, less than run: the constant
	 * part of the sum fits an instruction's offset.
	 */
	KVT_MEMBER uint32_t in_row(uint32_t chunk, uint32_t twisted)
	{
		return chunk / run * run + (chunk % run ^ twisted);
	}
};

template <int dim, int kind> struct shape {
	typedef typename element_of<kind>::type element;
	static constexpr int tile_keys = (dim > 128 ? 32 : 64) /
					 (kind != KIND_F32 ? 1 : dim > 128 ? 4 : 2);
	static constexpr int chunk_elements = 16 / sizeof(element);
	static constexpr int row_chunks = dim / chunk_elements;
	static constexpr int q_bytes = KVT_CUDA_ROWS * row_chunks * 16;
	static constexpr int tile_chunks = tile_keys * row_chunks;
	static constexpr int key_tiles = tile_keys / 8;
};

/*
 * A tile as copied: elements as above, or raw fp8, sixteen at a time and not swizzled, which is
 * converted to a tile on arrival. Queries, that tile, and two stages of keys and values are at most
 * 99 KiB, which every device has.
 */
template <int dim, int kind, bool f8> struct copied_shape {
	static constexpr int chunk_elements = f8 ? 16 : shape<dim, kind>::chunk_elements;
	static constexpr int row_chunks = dim / chunk_elements;
	static constexpr int tile_bytes = shape<dim, kind>::tile_keys * row_chunks * 16;
	static constexpr int converted_bytes = f8 ? 2 * shape<dim, kind>::tile_chunks * 16 : 0;
	static_assert(shape<dim, kind>::q_bytes + converted_bytes + 4 * tile_bytes <= 99 << 10,
		      "too large");
};

/* The part that does not depend on the kind of products. */
template <int dim> struct result_shape {
	static constexpr int dim_tiles = dim / 8;
	static constexpr int slot_floats = KVT_CUDA_ROWS * (dim + 2);
};

#define MINUS_INFINITY bits_float(0xff800000u)

/* The most that one load or store moves. */
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

/* Some rows of a block, 16 for each warp: known to all threads of the thread block. */
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

/* Return the offset of a row of q or out. */
KVT_DEVICE uint64_t row_offset(const struct rows_at_hand *rows, uint32_t row, uint64_t row_stride,
			       uint64_t head_stride)
{
	uint32_t group_heads = rows->args->group_heads;
	uint32_t in_sequence = rows->first_row + row;
	uint64_t token = rows->block->first_token + in_sequence / group_heads;

	return token * row_stride +
	       (rows->block->kv_head * group_heads + in_sequence % group_heads) * head_stride;
}

/* Convert fp8, its bits below the sign being those of a number 2^120 too small. Exact. */
KVT_DEVICE float f8_value(uint32_t bits)
{
	uint32_t magnitude = bits & 0x7f, sign = (bits & 0x80) << 24;
	float value = magnitude == 0x7f
			      ? bits_float(0x7fc00000u)
			      : product(bits_float(magnitude << 20), bits_float(0x7b800000u));

	return bits_float(float_bits(value) | sign);
}

/* Return the bytes of an element in memory. */
template <int kind, bool f8> KVT_DEVICE uint32_t source_bytes(uint32_t type)
{
	return kind == KIND_F32 ? kvt_type_size(type) : f8 ? 1 : 2;
}

/*
 * Load sixteen bytes for shared memory, from dimension dim of a row on. Zeros beyond n_dims and for
 * invalid rows. For fp32 products, rows of another type are converted.
 */
template <int kind, bool f8>
KVT_DEVICE struct line_piece chunk_load(const unsigned char *row, uint32_t dim, uint32_t n_dims,
					bool valid, uint32_t type)
{
	const uint32_t bytes = source_bytes<kind, f8>(type);
	const uint32_t target_bytes = f8 ? 1 : sizeof(typename element_of<kind>::type);
	struct line_piece piece = { { 0, 0, 0, 0 } };

#pragma unroll
	for (uint32_t i = 0; i < 16 / target_bytes; i++) {
		const unsigned char *source = row + (dim + i) * bytes;
		uint32_t bits;

		if (!valid || dim + i >= n_dims)
			continue;
		if (kind == KIND_F32)
			bits = float_bits(kvt_element_load(source, type));
		else
			bits = f8 ? *source : *(const uint16_t *)(const void *)source;
		piece.words[i * target_bytes / 4] |= bits << i * target_bytes % 4 * 8;
	}
	return piece;
}

/* True if rows are copied unchanged, 16 bytes at a time. */
template <int kind, bool f8> KVT_DEVICE bool are_copied(bool lines, uint32_t type)
{
	return lines && (kind != KIND_F32 || type == KVT_ATTN_F32);
}

template <int dim, int kind>
KVT_DEVICE void queries_copy(const struct rows_at_hand *rows, unsigned char *target)
{
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t chunks = shape<dim, kind>::row_chunks;
	const bool copied =
		are_copied<kind, false>(args->lines & KVT_CUDA_LINES_Q, args->q_type);

	for (uint32_t i = thread_index(); i < KVT_CUDA_ROWS * chunks; i += KVT_CUDA_THREADS) {
		uint32_t row = i / chunks, first = i % chunks * shape<dim, kind>::chunk_elements;
		unsigned char *to = target + swizzle<chunks>::place(row, i % chunks) * 16;
		bool valid = row < rows->n_rows;
		const unsigned char *q =
			at<const unsigned char>(args->q) +
			row_offset(rows, valid ? row : 0, args->q_row_stride, args->q_head_stride);

		if (copied) {
			valid = valid && first < args->head_dim;
			copy_async(to, q + (valid ? i % chunks * 16 : 0), valid);
		} else {
			shared_store(to, chunk_load<kind, false>(q, first, args->head_dim, valid,
								 args->q_type));
		}
	}
}

/*
 * The chunks of a tile that a thread copies: number n of them is chunk i = n * KVT_CUDA_THREADS +
 * thread of the tile. Keys and values of a position lie at the same offset in their planes.
 */
template <int dim, int kind, bool f8> struct copied_chunk {
	typedef copied_shape<dim, kind, f8> copied;
	static constexpr uint32_t tile_chunks = shape<dim, kind>::tile_keys * copied::row_chunks;
	static constexpr uint32_t n_max = (tile_chunks + KVT_CUDA_THREADS - 1) / KVT_CUDA_THREADS;
	uint64_t offset; /* of the position */
	uint32_t chunk; /* of its row */
	uint32_t place; /* in the tile */
	bool there; /* in the tile */
	bool valid;
};

template <int dim, int kind, bool f8>
KVT_DEVICE struct copied_chunk<dim, kind, f8> chunk_find(const struct rows_at_hand *rows,
							 uint32_t start, uint32_t n)
{
	typedef copied_chunk<dim, kind, f8> found;
	const uint32_t chunks = found::copied::row_chunks;
	const struct kvt_cuda_prefill *args = rows->args;
	const uint32_t *pages = at<const uint32_t>(args->pages) + rows->block->first_page;
	const uint32_t i = n * KVT_CUDA_THREADS + thread_index(), position = start + i / chunks;
	struct copied_chunk<dim, kind, f8> chunk;

	chunk.there = (n + 1) * KVT_CUDA_THREADS <= found::tile_chunks || i < found::tile_chunks;
	chunk.valid = chunk.there && position < rows->limit_high;
	chunk.chunk = i % chunks;
	chunk.place = f8 ? i : swizzle<chunks>::place(i / chunks, i % chunks);
	chunk.offset = rows->block->kv_head * args->head_stride;
	if (chunk.valid)
		chunk.offset += pages[position >> args->page_shift] * args->page_stride +
				(position & ((1u << args->page_shift) - 1)) * args->position_stride;
	return chunk;
}

/*
 * A tile of keys and one of values: positions from start on. Those from limit_high on are not
 * read. All page numbers are read before the first copy, or each would be waited for.
 */
template <int dim, int kind, bool f8>
KVT_DEVICE void tiles_copy(const struct rows_at_hand *rows, uint32_t start, unsigned char *keys)
{
	typedef copied_chunk<dim, kind, f8> found;
	const struct kvt_cuda_prefill *args = rows->args;
	const unsigned char *k = at<const unsigned char>(args->k);
	const unsigned char *v = at<const unsigned char>(args->v);
	unsigned char *values = keys + found::copied::tile_bytes;
	struct copied_chunk<dim, kind, f8> chunks[found::n_max];

#pragma unroll
	for (uint32_t n = 0; n < found::n_max; n++)
		chunks[n] = chunk_find<dim, kind, f8>(rows, start, n);
#pragma unroll
	for (uint32_t n = 0; n < found::n_max; n++) {
		const bool valid = chunks[n].valid && chunks[n].chunk *
					   found::copied::chunk_elements < args->head_dim;
		const uint64_t offset = chunks[n].offset + (valid ? chunks[n].chunk * 16 : 0);

		if (!chunks[n].there)
			break;
		copy_async(keys + chunks[n].place * 16, k + offset, valid);
		copy_async(values + chunks[n].place * 16, v + offset, valid);
	}
}

/* The same, of rows that are not whole lines, or are converted. */
template <int dim, int kind, bool f8>
KVT_DEVICE void tiles_load(const struct rows_at_hand *rows, uint32_t start, unsigned char *keys)
{
	typedef copied_chunk<dim, kind, f8> found;
	const struct kvt_cuda_prefill *args = rows->args;
	unsigned char *values = keys + found::copied::tile_bytes;

#pragma unroll 1
	for (uint32_t n = 0; n < found::n_max; n++) {
		const struct copied_chunk<dim, kind, f8> chunk =
			chunk_find<dim, kind, f8>(rows, start, n);
		const uint32_t first = chunk.chunk * found::copied::chunk_elements;

		if (!chunk.there)
			break;
		shared_store(keys + chunk.place * 16,
			     chunk_load<kind, f8>(at<const unsigned char>(args->k) + chunk.offset,
						  first, args->head_dim, chunk.valid,
						  args->kv_type));
		shared_store(values + chunk.place * 16,
			     chunk_load<kind, f8>(at<const unsigned char>(args->v) + chunk.offset,
						  first, args->head_dim, chunk.valid,
						  args->kv_type));
	}
}

/* Convert eight elements of fp8 to 16 bits. */
template <int kind> KVT_DEVICE struct line_piece f8_convert(uint32_t low, uint32_t high)
{
	struct line_piece piece;

#pragma unroll
	for (int i = 0; i < 4; i++) {
		uint32_t two = (i < 2 ? low : high) >> i % 2 * 16;

		piece.words[i] = pair_of<kind == KIND_BF16>(f8_value(two), f8_value(two >> 8));
	}
	return piece;
}

/*
 * A tile of 16-bit elements from one of fp8. Each thread converts what it has copied itself, so
 * its own copies are all that it has to wait for.
 *
 * It makes two chunks from one, which lie at an even place and the next one. Were all lanes to
 * write their first chunk first, 8 of them would meet in 4 columns (struct swizzle): so of each 8,
 * the first 4 begin at the even place and the others at the odd one.
 */
template <int dim, int kind>
KVT_DEVICE void tile_convert(const unsigned char *copied, unsigned char *target)
{
	const uint32_t chunks = dim / 16;

	for (uint32_t i = thread_index(); i < shape<dim, kind>::tile_keys * chunks;
	     i += KVT_CUDA_THREADS) {
		const struct line_piece source = shared_load<struct line_piece>(copied + i * 16);
		const uint32_t even = swizzle<2 * chunks>::place(i / chunks, i % chunks * 2) & ~1u;
		const uint32_t twist = swizzle<2 * chunks>::twist(i / chunks);
		const uint32_t odd_first = i / 4 % 2;
		const bool high_first = (odd_first ^ twist) & 1;
		unsigned char *first = target + (even + odd_first) * 16;
		unsigned char *second = target + (even + 1 - odd_first) * 16;

		const struct line_piece low = f8_convert<kind>(source.words[0], source.words[1]);
		const struct line_piece high = f8_convert<kind>(source.words[2], source.words[3]);
		struct line_piece pieces[2];

		/* Chosen word by word: an addressed variable would leave the registers. */
#pragma unroll
		for (int j = 0; j < 4; j++) {
			pieces[0].words[j] = high_first ? high.words[j] : low.words[j];
			pieces[1].words[j] = high_first ? low.words[j] : high.words[j];
		}
		shared_store(first, pieces[0]);
		shared_store(second, pieces[1]);
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

/*
 * The address that a lane gives to load four matrices of 8 x 8: of 16 rows, two chunks, an even one
 * and the next. Matrices 0 and 1 are the even chunk of rows 0-7 and 8-15, 2 and 3 the next chunk.
 * Queries, keys and values are all loaded so, and addresses share what depends on the lane.
 */
template <int row_chunks>
KVT_DEVICE const unsigned char *matrix_row(const unsigned char *rows, uint32_t chunk)
{
	typedef swizzle<row_chunks> layout;
	const uint32_t lane = thread_index() % 32;
	const uint32_t twisted = lane / 16 ^ layout::twist(lane % 8);

	return rows + (lane % 16 * row_chunks + layout::in_row(chunk, twisted)) * 16;
}

/* scores = q k^T for the warp's 16 rows and the tile's keys; they are 0 to begin with */
template <int dim, int kind>
KVT_DEVICE void tile_scores(const unsigned char *q, const unsigned char *k, float (*scores)[4])
{
	const int row_chunks = shape<dim, kind>::row_chunks;
	const unsigned char *rows = q + thread_index() / 32 * 16 * row_chunks * 16;

#pragma unroll
	for (int step = 0; step < dim / 16; step++) {
		uint32_t a[4];

		matrix_load(a, matrix_row<row_chunks>(rows, step * 2));
#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load(b, matrix_row<row_chunks>(k + tile * 8 * row_chunks * 16,
							      step * 2));
			matrix_multiply<kind == KIND_BF16>(scores[tile], a, b[0], b[2]);
			matrix_multiply<kind == KIND_BF16>(scores[tile + 1], a, b[1], b[3]);
		}
	}
}

/* Floats that are loaded at once. */
struct alignas(16) four {
	float x[4];
};

struct alignas(8) two {
	float x[2];
};

/* The same in fp32: each score adds dimensions in ascending order. */
template <int dim>
KVT_DEVICE void tile_scores_f32(const unsigned char *q, const unsigned char *k, float (*scores)[4])
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const uint32_t q_row = warp * 16 + lane / 4, k_row = lane % 4 * 2;
	typedef swizzle<shape<dim, KIND_F32>::row_chunks> layout;

	for (uint32_t chunk = 0; chunk < dim / 4; chunk++) {
		const struct four low =
			shared_load<struct four>(q + layout::place(q_row, chunk) * 16);
		const struct four high =
			shared_load<struct four>(q + layout::place(q_row + 8, chunk) * 16);

#pragma unroll
		for (uint32_t i = 0; i < shape<dim, KIND_F32>::key_tiles * 2; i++) {
			const struct four key = shared_load<struct four>(
				k + layout::place(i / 2 * 8 + k_row + i % 2, chunk) * 16);
			float *score = scores[i / 2] + i % 2;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				score[0] = product_sum(low.x[j], key.x[j], score[0]);
				score[2] = product_sum(high.x[j], key.x[j], score[2]);
			}
		}
	}
}

/* Set scores to minus infinity for keys that a row must not see; start is the tile's first
 * position. */
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
 * Turn scores into weights; update maxima, sums and outputs. A row that sees nothing of the tile
 * has only minus infinities: its maximum stays, the factor is 1, the weights are 0.
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
KVT_DEVICE void tile_values(struct unit_state<dim> *state, float (*weights)[4],
			    const unsigned char *v)
{
	const int row_chunks = shape<dim, kind>::row_chunks;
	const bool bf16 = kind == KIND_BF16;

#pragma unroll
	for (int step = 0; step < shape<dim, kind>::tile_keys / 16; step++) {
		const float *low = weights[2 * step], *high = weights[2 * step + 1];
		uint32_t a[4] = { pair_of<bf16>(low[0], low[1]), pair_of<bf16>(low[2], low[3]),
				  pair_of<bf16>(high[0], high[1]),
				  pair_of<bf16>(high[2], high[3]) };

#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load_transposed(
				b, matrix_row<row_chunks>(v + step * 16 * row_chunks * 16, tile));
			matrix_multiply<bf16>(state->output[tile], a, b[0], b[1]);
			matrix_multiply<bf16>(state->output[tile + 1], a, b[2], b[3]);
		}
	}
}

/* The same in fp32: each output adds positions in ascending order. */
template <int dim>
KVT_DEVICE void tile_values_f32(struct unit_state<dim> *state, float (*weights)[4],
				const unsigned char *v)
{
	const uint32_t lane = thread_index() % 32;
	const int row_chunks = shape<dim, KIND_F32>::row_chunks;
	/* Two columns of eight: the half of a chunk, of one of two chunks that are neighbours. */
	const unsigned char *half = v + lane % 2 * 8;
	const uint32_t neighbour = lane / 2 % 2;

#pragma unroll
	for (uint32_t key = 0; key < shape<dim, KIND_F32>::tile_keys; key++) {
		/* The lane of the same four that has this column. */
		const uint32_t owner = lane / 4 * 4 + key % 8 / 2;
		const float low = from_lane(weights[key / 8][key % 2], owner);
		const float high = from_lane(weights[key / 8][2 + key % 2], owner);
		const uint32_t twist = swizzle<row_chunks>::twist(key);
		const unsigned char *row = half + (neighbour ^ twist % 2) * 16;

#pragma unroll
		for (uint32_t tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
			const uint32_t chunk = key * row_chunks + (tile * 2 ^ twist / 2 * 2);
			const struct two value = shared_load<struct two>(row + chunk * 16);
			float *output = state->output[tile];

			output[0] = product_sum(low, value.x[0], output[0]);
			output[1] = product_sum(low, value.x[1], output[1]);
			output[2] = product_sum(high, value.x[0], output[2]);
			output[3] = product_sum(high, value.x[1], output[3]);
		}
	}
}

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

/* Merging. Always the same operations, or bits would differ. */

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

/* The maximum and the sum of a row, as in a slot. */
struct row_sums {
	float maximum;
	float sum;
};

KVT_DEVICE struct row_sums row_sums_load(const float *slot, uint32_t row, bool first)
{
	struct row_sums sums = { 0, 0 };

	if (!first) {
		sums.maximum = slot[row];
		sums.sum = slot[KVT_CUDA_ROWS + row];
	}
	return sums;
}

KVT_DEVICE void row_sums_store(float *slot, uint32_t row, const struct row_sums *sums)
{
	slot[row] = sums->maximum;
	slot[KVT_CUDA_ROWS + row] = sums->sum;
}

/*
 * Merge a unit into the span's result, which is in its slot for want of registers. Rows that see
 * nothing of the unit are left alone.
 */
template <int dim>
KVT_DEVICE void span_merge(float *slot, const struct unit_state<dim> *unit, const uint32_t *limits,
			   uint32_t unit_start, bool first)
{
	const uint32_t lane = thread_index() % 32, row = thread_index() / 32 * 16 + lane / 4;

	slot = (float *)used_here(slot);

	struct row_sums sums[2] = { row_sums_load(slot, row, first),
				    row_sums_load(slot, row + 8, first) };

	/* The four lanes of a row have read what one of them now overwrites. */
	warp_barrier();
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float *output = slot + 2 * KVT_CUDA_ROWS + (row + 8 * i) * dim + lane % 4 * 2;
		struct merge_factors factors =
			merge_factors_of(sums[i].maximum, unit->maximum[i]);

		if (limits[i] > unit_start) {
			sums[i].maximum = first ? unit->maximum[i] : factors.maximum;
			sums[i].sum = first ? unit->sum[i]
					    : merged(sums[i].sum, unit->sum[i], &factors);
		}
		if (lane % 4 == 0)
			row_sums_store(slot, row + 8 * i, &sums[i]);
		if (limits[i] <= unit_start)
			continue;
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

/* Write the complete result out, from the slot where this thread has put it. */
template <int dim> KVT_DEVICE void span_write(const struct rows_at_hand *rows, const float *slot)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;

	for (int i = 0; i < 2; i++) {
		uint32_t row = warp * 16 + lane / 4 + 8 * i;
		const float *output = slot + 2 * KVT_CUDA_ROWS + row * dim + lane % 4 * 2;
		float factor = quotient(rows->args->v_scale, slot[KVT_CUDA_ROWS + row]);

		if (row >= rows->n_rows)
			continue;
		for (int j = 0; j < dim / 4; j++) {
			uint32_t column = j / 2 * 8 + j % 2;

			output_write(rows, row, column + lane % 4 * 2,
				     product(output[column], factor));
		}
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

template <int dim> KVT_DEVICE float *slot_at(float *slots, uint64_t index)
{
	return slots + index * result_shape<dim>::slot_floats;
}

/* Return the first of a block's slots. */
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
