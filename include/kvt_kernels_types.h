/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_KERNELS_TYPES_H
#define KVT_KERNELS_TYPES_H

/* Numbers and structures of kvt_kernels.h, which includes this file. */

#include <stdint.h>

/* Raised by an incompatible change of these headers. kvt_attn_abi() returns the library's. */
#define KVT_ATTN_ABI 2

/*
 * Positions reduced at once, and positions whose units are merged before they are merged into the
 * result. 1,024 makes the merge cost less than a hundredth of the products at head_dim 128; 8,192
 * keeps a long decode parallel with few partial results. Part of the result's definition: a change
 * changes bits.
 */
#define KVT_ATTN_UNIT 1024
#define KVT_ATTN_GROUP 8192

/* Limits. Each is checked: -EINVAL. */
#define KVT_ATTN_PAGE_SIZE_MAX 256
#define KVT_ATTN_HEAD_DIM_MAX 256
#define KVT_ATTN_HEADS_MAX 4096
#define KVT_ATTN_POSITIONS_MAX 0x40000000u
#define KVT_ATTN_THREADS_MAX 1024

/*
 * Element types. Numbers are little endian; F8_E4M3 is the "fn" kind: no infinities, 0x7f and
 * 0xff are NaN.
 */
enum kvt_attn_type {
	KVT_ATTN_F32 = 0,
	KVT_ATTN_F16 = 1,
	KVT_ATTN_BF16 = 2,
	KVT_ATTN_F8_E4M3 = 3, /* only in pages */
};

/* How a page lies in its plane: [kv head][position][dim], or [position][kv head][dim]. */
enum kvt_attn_layout {
	KVT_ATTN_HND = 0,
	KVT_ATTN_NHD = 1,
};

/*
 * How planes lie in the slab. Each layer has two planes, K and then V.
 *   layer-major: [layer][K, V][page][...]   a layer is one tensor
 *   page-major:  [page][layer][K, V][...]   all of a page is contiguous
 */
enum kvt_attn_order {
	KVT_ATTN_LAYER_MAJOR = 0,
	KVT_ATTN_PAGE_MAJOR = 1,
};

/*
 * CPU code paths. AUTO is the best that this CPU has. Each has every feature; they differ in speed
 * and rounding.
 */
enum kvt_attn_isa {
	KVT_ATTN_ISA_AUTO = 0,
	KVT_ATTN_ISA_PORTABLE = 1, /* any CPU; 128-bit vectors by the compiler */
	KVT_ATTN_ISA_AVX2 = 2, /* AVX2, FMA, F16C */
	KVT_ATTN_ISA_AVX512 = 3, /* AVX-512 F, BW, DQ, VL */
	KVT_ATTN_ISA_AVX512_BF16 =
		4, /* and BF16, VBMI, used where q is bf16 and KV is bf16 or fp8 */
};

enum kvt_attn_device {
	KVT_ATTN_CPU = 0,
	KVT_ATTN_CUDA = 1,
};

/* The shape of a whole pool. All fields must be equal in all processes that share it. */
struct kvt_attn_geometry {
	uint32_t n_pages; /* 1 or more, page 0 included */
	uint32_t page_size; /* positions: a power of two, 1 to 256 */
	uint32_t n_layers; /* 1 or more */
	uint32_t n_kv_heads; /* 1 to 4,096 */
	uint32_t head_dim; /* elements, 1 to 256 */
	uint32_t type; /* enum kvt_attn_type */
	uint32_t layout; /* enum kvt_attn_layout */
	uint32_t order; /* enum kvt_attn_order */
};

/*
 * One layer of a pool. kvt_attn_geometry_view() makes one; a caller with another layout fills it in
 * itself. Element x of position t of KV head h in page p lies at k + p * page_stride_bytes + h *
 * head_stride_bytes + t * position_stride_bytes + x * (size of type), likewise from v. Pointers and
 * strides are multiples of the element size; elements of a head are contiguous. Pointers belong to
 * the caller and are of the context's device.
 */
struct kvt_attn_view {
	void *k;
	void *v;
	uint64_t page_stride_bytes;
	uint64_t head_stride_bytes;
	uint64_t position_stride_bytes;
	uint32_t n_pages;
	uint32_t page_size; /* a power of two, 1 to 256 */
	uint32_t n_kv_heads;
	uint32_t head_dim;
	uint32_t type; /* enum kvt_attn_type */
	/* fp8: true value = stored value * scale; finite, above 0. Other types: 1, or 0 for 1. */
	float k_scale;
	float v_scale;
};

/*
 * Positions [start, end) that see each other in both directions, such as an image's. A query in a
 * region sees the positions 0 .. end - 1, but never beyond k; a query outside of all regions sees
 * 0 .. its own position. Regions of a sequence are in ascending order and do not overlap. They
 * may begin at 0, begin before the first query, and end after k.
 */
struct kvt_attn_region {
	uint32_t start;
	uint32_t end;
};

/* One sequence of a batch. Its queries are its last n_queries positions. */
struct kvt_attn_sequence {
	uint32_t n_queries; /* 0 (sequence is skipped) to n_positions */
	uint32_t n_positions; /* cached and new; their K and V are already in the pages */
	const uint32_t *pages; /* host memory; position t is in pages[t / page_size] */
	uint32_t n_pages; /* entries in pages: at least n_positions / page_size, rounded up */
	uint32_t n_regions;
	const struct kvt_attn_region *regions; /* host memory; NULL if there are none */
};

/*
 * Attention of a batch over one layer. Query head h uses KV head h / (n_q_heads / n_kv_heads).
 *
 *   out = softmax(scale * q K^T) V over the positions that the query may see
 *
 * q and out have one row for each query position of each sequence in order (so rows of sequence i
 * begin behind those of i - 1), n_q_heads heads a row, head_dim elements a head. Strides in
 * bytes; 0 means "contiguous": [row][head][dim]. Sums are in fp32 (on bf16 paths, weights are
 * rounded to bf16 before they meet V). Numbers below 2^-126, in K, V, or on the way to the result,
 * lose accuracy, and AVX512_BF16 takes them for 0. out may be q's own memory, if types and strides
 * are equal; it must not overlap anything else.
 *
 * Scores may be infinite or NaN, as IEEE 754 has it: a score of minus infinity is a position
 * without weight, and a row that sees another one, or nothing else, is NaN, and no other row.
 *
 * On CUDA, tensor cores are used where q is bf16 or fp16 and KV has the same type or fp8. All
 * other combinations are computed by fp32 products and sums, many times slower.
 */
struct kvt_attn_prefill {
	struct kvt_attn_view kv;
	const struct kvt_attn_sequence *sequences;
	uint32_t n_sequences;
	uint32_t n_q_heads; /* a multiple of kv.n_kv_heads, 1 to 4,096 */
	const void *q;
	void *out;
	uint32_t q_type; /* F32, F16 or BF16 */
	uint32_t out_type; /* F32, F16 or BF16 */
	uint64_t q_row_stride_bytes;
	uint64_t q_head_stride_bytes;
	uint64_t out_row_stride_bytes;
	uint64_t out_head_stride_bytes;
	/* Finite, above 0, also times kv.k_scale and log2(e); usually 1 / sqrt(head_dim) */
	float scale;
};

/* A slot for "write this position nowhere", for padded batches. */
#define KVT_ATTN_NO_SLOT UINT64_MAX

/*
 * K and V of n_positions new positions, [position][kv head][dim], to write to slots[i] of the
 * pages. Strides in bytes; 0 means "contiguous". Conversion rounds to nearest even. For fp8 the
 * value is divided by the scale, and too large ones become +-448. Elements of the pages' type are
 * copied, bits of a NaN too. Two positions with the same slot leave a mixture of both there. The
 * caller has applied RoPE, if the model has it.
 */
struct kvt_attn_append {
	struct kvt_attn_view kv;
	uint32_t n_positions;
	uint32_t type; /* of k and v: F32, F16 or BF16 */
	const void *k;
	const void *v;
	uint64_t row_stride_bytes;
	uint64_t head_stride_bytes;
	const uint64_t *slots; /* host memory */
};

/* Copy the first n_positions positions (1 to page_size) of page source into page target. */
struct kvt_attn_copy {
	uint32_t source;
	uint32_t target;
	uint32_t n_positions;
};

/* All zero: the CPU, its best path, a thread for each core of the affinity mask. */
struct kvt_attn_options {
	uint32_t device; /* enum kvt_attn_device */
	uint32_t device_index; /* CUDA ordinal */
	/*
	 * CPU: threads that compute, the caller's included; 0: one for each CPU the caller may run
	 * on. The context's threads block signals sent to the process. If isa is AUTO, the
	 * environment's KVT_ATTN_ISA decides (portable, avx2, avx512, avx512_bf16).
	 */
	uint32_t n_threads;
	uint32_t isa; /* enum kvt_attn_isa */
	/*
	 * Most memory for partial results, in bytes; 0: 256 MiB. Less means less parallel work for
	 * long contexts, never another result.
	 */
	uint64_t scratch_bytes;
};

#endif
