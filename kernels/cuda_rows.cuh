/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of queries, keys and values, on their way into shared memory. See cuda_attention.cuh. */
#ifndef KVT_KERNELS_CUDA_ROWS_CUH
#define KVT_KERNELS_CUDA_ROWS_CUH

#include "cuda_shape.cuh"

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
	const uint32_t i = n * KVT_CUDA_THREADS + thread_index();
	/* Where whole rows make a round of the threads, most of it is the same in each round. */
	const bool whole = KVT_CUDA_THREADS % chunks == 0;
	const uint32_t row = whole ? n * (KVT_CUDA_THREADS / chunks) + thread_index() / chunks
				   : i / chunks;
	const uint32_t position = start + row;
	/* A page number is read in any case: a branch would have each waited for. */
	const uint32_t read = least(position, rows->limit_high - 1);
	struct copied_chunk<dim, kind, f8> chunk;

	chunk.there = (n + 1) * KVT_CUDA_THREADS <= found::tile_chunks || i < found::tile_chunks;
	chunk.valid = chunk.there && position < rows->limit_high;
	chunk.chunk = whole ? thread_index() % chunks : i % chunks;
	chunk.place = f8 ? i : swizzle<chunks>::place(row, chunk.chunk);
	chunk.offset = rows->block->kv_head * args->head_stride +
		       pages[read >> args->page_shift] * args->page_stride +
		       (read & ((1u << args->page_shift) - 1)) * args->position_stride;
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

#endif
