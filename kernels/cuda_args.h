/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arguments of the CUDA kernels. Compiled by the C compiler and by nvcc, so both see one
 * layout.
 */
#ifndef KVT_KERNELS_CUDA_ARGS_H
#define KVT_KERNELS_CUDA_ARGS_H

#include <stdint.h>

/* Rows of one thread block: four warps of sixteen, an mma's rows. */
#define KVT_CUDA_ROWS 64
#define KVT_CUDA_THREADS 128

/*
 * Up to KVT_CUDA_ROWS rows of one sequence and KV head, in (query, head of the group) order. Its
 * units are cut into spans of span_units, a unit or a group. Each span has a slot for its partial
 * result: KVT_CUDA_ROWS maxima, as many sums, then as many padded rows of outputs.
 */
struct kvt_cuda_block {
	uint32_t first_token; /* of the sequence, in limits, and as row of q and out */
	uint32_t first_row;
	uint32_t n_rows;
	uint32_t kv_head;
	uint32_t first_page; /* of the sequence, in pages */
	uint32_t n_units;
	uint32_t span_units;
	uint32_t first_slot;
};

/* One thread block's work: a span of a block. */
struct kvt_cuda_item {
	uint32_t block;
	uint32_t first_unit;
};

/*
 * Attention blocks resident on a multiprocessor, by head dim. The kernels are compiled for that
 * (65,536 registers: 128, 168 or 255 for a thread), and none spills. At 80 on sm_90 shared memory
 * would allow a fourth, registers do not.
 */
#define KVT_CUDA_BLOCKS(dim) ((dim) <= 64 ? 4 : (dim) <= 96 ? 3 : 2)

/* Tiles in use or in flight to shared memory: 2 to this. */
#define KVT_CUDA_STAGES_MAX 4

#define KVT_CUDA_LINES_Q 1u
#define KVT_CUDA_LINES_KV 2u

/* Addresses are the device's. */
struct kvt_cuda_prefill {
	uint64_t k;
	uint64_t v;
	uint64_t page_stride;
	uint64_t head_stride;
	uint64_t position_stride;
	uint64_t q;
	uint64_t out;
	uint64_t q_row_stride;
	uint64_t q_head_stride;
	uint64_t out_row_stride;
	uint64_t out_head_stride;
	uint64_t pages; /* uint32_t[]: all page tables, one behind the other */
	uint64_t limits; /* uint32_t[]: positions that each query sees */
	uint64_t blocks; /* struct kvt_cuda_block[] */
	uint64_t items; /* struct kvt_cuda_item[] */
	uint64_t partials; /* float[]: slots */
	uint64_t flags; /* uint32_t[]: one for each block, initially 0 */
	uint32_t n_blocks;
	uint32_t page_shift;
	uint32_t head_dim;
	uint32_t group_heads;
	uint32_t q_type; /* enum kvt_attn_type */
	uint32_t kv_type;
	uint32_t out_type;
	uint32_t lines; /* KVT_CUDA_LINES_*: rows readable 16 bytes at a time */
	uint32_t n_stages; /* tiles of keys and values in shared memory */
	float log2_scale;
	float v_scale;
};

struct kvt_cuda_append {
	uint64_t k_pages;
	uint64_t v_pages;
	uint64_t page_stride;
	uint64_t head_stride;
	uint64_t position_stride;
	uint64_t k;
	uint64_t v;
	uint64_t row_stride;
	uint64_t row_head_stride;
	uint64_t slots; /* uint64_t[] */
	uint64_t n_elements; /* positions * heads * dim */
	uint32_t page_shift;
	uint32_t n_kv_heads;
	uint32_t head_dim;
	uint32_t source_type;
	uint32_t target_type;
	float k_scale;
	float v_scale;
};

struct kvt_cuda_copy {
	uint64_t k;
	uint64_t v;
	uint64_t page_stride;
	uint64_t head_stride;
	uint64_t position_stride;
	uint64_t copies; /* struct kvt_attn_copy[] */
	uint32_t n_kv_heads;
	uint32_t row_bytes;
};

#endif
