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

#include "kvt_kernels_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An export of the shared library. */
#define KVT_ATTN_API __attribute__((visibility("default")))

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
