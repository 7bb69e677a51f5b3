/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tiles, and where their rows lie in shared memory. See cuda_attention.cuh. */
#ifndef KVT_KERNELS_CUDA_SHAPE_CUH
#define KVT_KERNELS_CUDA_SHAPE_CUH

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

#endif
