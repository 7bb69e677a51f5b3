/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvt_kernels.h: attention on paged KV, for CPUs and CUDA devices.
 *
 * The library (libkvtkernels) has three operations. kvt_attn_append_prefill() computes attention
 * of new positions over KV that lies in pages, cached and new positions alike.
 * kvt_attn_kv_append() writes K and V of new positions into pages. kvt_attn_page_copy() copies
 * the beginning of pages into other pages. The library knows how KV lies in pages. It knows
 * neither trees nor sessions, and it needs nothing but libc.
 *
 *
 * Words
 *
 *   position   one K vector and one V vector per KV head, in every layer
 *   page       page_size consecutive positions; named by its index in the pool
 *   slot       one position's place in the pool: page * page_size + (position in the page)
 *   row        one query vector: one query position and one query head
 *   k          how many positions a sequence has, cached and new; q of them, the last, are queries
 *
 *
 * Same bits, warm or cold
 *
 * The result for one query position is a function of its query vector, of the K and V it may see,
 * and of the scale. It is the same to the last bit however much was cached, however the prompt
 * was cut into chunks, whatever else is in the batch, at whichever pages the positions lie, in
 * whichever layout and page size, with however many threads, and by decode (q = 1) as by prefill.
 * So logits computed from a cached prefix equal those computed without.
 *
 * To keep this, positions are reduced in units of KVT_ATTN_UNIT, and units are merged in groups
 * of KVT_ATTN_GROUP, both counted from position 0 of the sequence, always in ascending order.
 * Work is handed out in whole units.
 *
 * The promise holds for one code path (kvt_attn_isa, or one CUDA binary) and one set of element
 * types. Two different paths differ in rounding. A region that is cut by the end of k (see
 * kvt_attn_region) is seen only as far as k, so there chunking changes what is asked for, and
 * with it the result.
 *
 *
 * What is never read
 *
 * Positions from k on are never read, though their page is there: they may hold NaN or anything
 * else. A position that a query may not see has no influence on it, even if its K or V is not
 * finite. No byte outside of head_dim elements of a valid position is read, so a pool may end
 * with the last of them.
 *
 *
 * Errors
 *
 * Functions return 0 or a negative errno. On a failure nothing has been written.
 * kvt_attn_error_text() then gives one line with cause and cure. The library never logs and never
 * exits.
 *
 *
 * Threads
 *
 * A context runs one operation at a time: calls from several threads wait for each other.
 * Different contexts are independent. There is no other state: the library has no globals. A
 * context does not survive fork() in the child; open another there. The caller's rounding mode has
 * no influence, nor has a mode in which denormals are taken for 0; both are as before on return.
 *
 *
 * Example: one sequence, 100 cached positions and 28 new ones, fp32
 *
 *	struct kvt_attn_geometry geometry = { .n_pages = 1024, .page_size = 16, .n_layers = 22,
 *		.n_kv_heads = 4, .head_dim = 64, .type = KVT_ATTN_F32 };
 *	struct kvt_attn_view view;
 *	kvt_attn_geometry_view(&geometry, slab, slab_bytes, layer, &view);
 *
 *	struct kvt_attn_append append = { .kv = view, .n_positions = 28, .slots = slots,
 *		.k = k, .v = v, .type = KVT_ATTN_F32 };
 *	kvt_attn_kv_append(context, &append, NULL);
 *
 *	struct kvt_attn_sequence sequence = { .n_queries = 28, .n_positions = 128,
 *		.pages = page_table, .n_pages = 8 };
 *	struct kvt_attn_prefill prefill = { .kv = view, .sequences = &sequence, .n_sequences = 1,
 *		.n_q_heads = 32, .q = q, .out = out,
 *		.q_type = KVT_ATTN_F32, .out_type = KVT_ATTN_F32,
 *		.scale = 1.0f / 8.0f };
 *	kvt_attn_append_prefill(context, &prefill, NULL);
 */
#ifndef KVT_KERNELS_H
#define KVT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the shared library exports. */
#define KVT_ATTN_API __attribute__((visibility("default")))

/* Raised by an incompatible change of this header. kvt_attn_abi() returns the library's. */
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
	KVT_ATTN_ISA_NEON = 5, /* 64-bit Arm */
	KVT_ATTN_ISA_NEON_BF16 = 6, /* and BFMMLA, used likewise */
};

enum kvt_attn_device {
	KVT_ATTN_CPU = 0,
	KVT_ATTN_CUDA = 1,
};

/* What a whole pool looks like. All fields must be equal in all processes that share it. */
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
	 * environment's KVT_ATTN_ISA decides (portable, avx2, avx512, avx512_bf16, neon,
	 * neon_bf16).
	 */
	uint32_t n_threads;
	uint32_t isa; /* enum kvt_attn_isa */
	/*
	 * Most memory for partial results, in bytes; 0: 256 MiB. Less means less parallel work for
	 * long contexts, never another result.
	 */
	uint64_t scratch_bytes;
};

struct kvt_attn_context;

/* The library's ABI; equal to the KVT_ATTN_ABI of its header. */
KVT_ATTN_API int kvt_attn_abi(void);

/*
 * Open a context. options may be NULL: as if all zero. On failure *ret_context is untouched, and
 * error_text, if not NULL, gets one line (cut at error_text_bytes) with cause and cure.
 *   -EINVAL   a field is out of range, or KVT_ATTN_ISA names no path
 *   -ENOTSUP  this CPU lacks the path; this build or this device has no CUDA kernels
 *   -ENODEV   no NVIDIA driver, or no such device
 *   -ENOMEM, -EAGAIN  no memory, no threads
 */
KVT_ATTN_API int kvt_attn_open(const struct kvt_attn_options *options,
			       struct kvt_attn_context **ret_context, char *error_text,
			       size_t error_text_bytes);

/* Close a context: threads end, memory is freed. NULL is allowed. No call may be running. */
KVT_ATTN_API void kvt_attn_close(struct kvt_attn_context *context);

/*
 * What the context runs, such as "cpu avx512_bf16, 2 threads" or "cuda 0, sm_90: sm_90a binary,
 * mma.sync".
 */
KVT_ATTN_API const char *kvt_attn_describe(const struct kvt_attn_context *context);

/* The CPU path (enum kvt_attn_isa) in use; AUTO for a CUDA context. */
KVT_ATTN_API int kvt_attn_context_isa(const struct kvt_attn_context *context);

/* Cause and cure of this context's last failed call; "" if none. Valid until the next call. */
KVT_ATTN_API const char *kvt_attn_error_text(const struct kvt_attn_context *context);

/* Bytes of one element. -EINVAL: no such type. */
KVT_ATTN_API int kvt_attn_type_bytes(uint32_t type);

/*
 * Bytes of a slab with this geometry. -EINVAL: a field is out of range. -EOVERFLOW: more than
 * 2^63 - 1.
 */
KVT_ATTN_API int kvt_attn_geometry_bytes(const struct kvt_attn_geometry *geometry,
					 uint64_t *ret_bytes);

/*
 * One layer of a slab. Scales are set to 1. -EINVAL: as above, or no such layer; -ERANGE: the
 * slab is too small; it needs kvt_attn_geometry_bytes().
 */
KVT_ATTN_API int kvt_attn_geometry_view(const struct kvt_attn_geometry *geometry, void *slab,
					uint64_t slab_bytes, uint32_t layer,
					struct kvt_attn_view *ret_view);

/*
 * The three operations. On a CPU they are done when they return, and stream is NULL. On a CUDA
 * device they are queued on stream (a CUstream; NULL is the default stream), host arrays may be
 * reused at once, and the caller finds errors of the device when it synchronizes. All checks
 * precede all writes:
 *   -EINVAL   a value is out of range, or pointers and counts contradict each other
 *   -ENOMEM   no memory for partial results
 *   -EBUSY    the stream, or one that the default stream waits for, is being captured into a CUDA
 *             graph, and a call cannot be part of one
 *   -EIO      the CUDA driver failed
 * Other streams may be captured meanwhile, on any thread and in any mode: neither these nor
 * kvt_attn_open() and kvt_attn_close() end a capture, and the calling thread's capture mode is the
 * same afterwards.
 */
KVT_ATTN_API int kvt_attn_append_prefill(struct kvt_attn_context *context,
					 const struct kvt_attn_prefill *prefill, void *stream);
KVT_ATTN_API int kvt_attn_kv_append(struct kvt_attn_context *context,
				    const struct kvt_attn_append *append, void *stream);

/*
 * Copy pages in each of n_views layers (views of one pool: the same page size, heads, head dim
 * and type). Copies of one call must not depend on each other: no target is another's source or
 * target.
 */
KVT_ATTN_API int kvt_attn_page_copy(struct kvt_attn_context *context,
				    const struct kvt_attn_view *views, uint32_t n_views,
				    const struct kvt_attn_copy *copies, uint32_t n_copies,
				    void *stream);

#ifdef __cplusplus
}
#endif

#endif
