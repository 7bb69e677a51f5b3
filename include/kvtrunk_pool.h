/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_POOL_H
#define KVTRUNK_POOL_H

/**
 * @file kvtrunk_pool.h
 * The memory of pages, and fences: when work launched earlier no longer touches it. Included by
 * kvtrunk.h.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_client.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* ---------------------------------------------------------------- pool */

/** One slab, mapped. Where a page lies: kvt_pool_view(), and kvt_page_address() if all of it is in
 * one piece. */
struct kvt_pool {
	void *base;
	uint64_t bytes;    /* at least n_pages * kvt_client_info()->page_bytes */
	uint32_t n_pages;  /* page 0, the scratch page, included */
	uint32_t slab;     /* which one this is */
	uint64_t reserved; /* the library's own */
};

/** Map slab 0; a member of a group maps that of its rank. Once per client: later calls return the
 * same mapping. Unmapped by close.
 * Errors: -ENOTSUP backend not mappable here, -ENOMEM, -EPROTO differs from WELCOME. */
int kvt_pool_map(struct kvt_client *client, struct kvt_pool *ret_pool);

/** Map one slab of several. A page number names a page in each: a tensor-parallel rank maps the
 * slab of its rank, one process that drives all ranks maps them all. -EINVAL: there are only
 * kvt_client_info()->n_slabs. */
int kvt_pool_map_slab(struct kvt_client *client, uint32_t slab,
		      struct kvt_pool *ret_pool);

/** Address of the kvt_client_info()->page_bytes bytes of a page in a mapped slab. NULL if there is
 * no such page, or if it is not in one piece: in layer-major order, the default of a daemon with a
 * geometry, each layer of it is elsewhere (kvt_pool_view()). A device pointer if
 * the pool is device memory. */
void *kvt_page_address(const struct kvt_pool *pool, uint32_t page);

/** One layer of a slab: enough to build a tensor on the pages without a copy.
 *
 * Element `x` of position `t` of KV head `h` in page `p` lies at
 *
 *     k + p * page_stride_bytes + h * head_stride_bytes + t * position_stride_bytes
 *       + x * element_bytes
 *
 * and likewise from v. For PyTorch: a tensor on `k` of shape [n_pages, n_kv_heads, page_size,
 * head_dim] with the strides (page, head, position)_stride_bytes / element_bytes and 1. The
 * elements of a head are contiguous, everything lies within the slab, and no two elements of any
 * two planes share a byte; with KVT_LAYOUT_LATENT there is one plane, and v is k. Pages that are
 * cached are read only, by contract. */
struct kvt_pool_view {
	void *k;
	void *v;
	uint64_t page_stride_bytes;
	uint64_t head_stride_bytes;
	uint64_t position_stride_bytes;
	uint32_t element_bytes;
	uint32_t type; /* enum kvt_element_type */
	uint32_t n_pages;
	uint32_t page_size; /* positions */
	uint32_t n_kv_heads;
	uint32_t head_dim;  /* elements */
	float k_scale;      /* fp8: value = stored value * scale; else 1 */
	float v_scale;
};

/** Describe layer `layer` of a mapped slab. Pure arithmetic on the daemon's answer to HELLO: no
 * memory is touched, so `pool->base` may be an address of a device.
 * Errors: -ENODATA the daemon has page_bytes and no geometry, -EINVAL no such layer, or `pool`
 * is not of this client's size, -ECHILD in a forked child. */
int kvt_pool_view(struct kvt_client *client, const struct kvt_pool *pool, uint32_t layer,
		  struct kvt_pool_view *ret_view);

#define KVT_MAX_PIECES 512u /* pieces of a page: two planes in each of KVT_MAX_LAYERS layers */

/** A piece of every page of a slab: `bytes` bytes at offset_bytes + page * stride_bytes from the
 * slab's base. */
struct kvt_pool_piece {
	uint64_t offset_bytes;
	uint64_t stride_bytes;
	uint64_t bytes;
};

/** Describe where the bytes of a page lie, to copy whole pages without knowing what they mean. In
 * layer-major order each plane of each layer is a piece, or each layer if its planes are packed.
 * In page-major order, and without a geometry, a page is one piece. All slabs are alike. The pieces
 * of a page have kvt_client_info()->page_bytes bytes together.
 *
 * @ret_pieces  KVT_MAX_PIECES of them.
 * Returns the number of pieces. -ECHILD in a forked child. */
int kvt_pool_pieces(struct kvt_client *client, struct kvt_pool_piece *ret_pieces);

/** A geometry as texts for struct kvt_geometry (kvtrunk_keys.h). The daemon puts the same three
 * into its fingerprint, so both sides use the same words. -EINVAL: not a geometry (a field is 0 or
 * out of range); nothing was written. */
int kvt_pool_geometry_describe(const struct kvt_pool_geometry *geometry,
			       struct kvt_pool_geometry_text *ret_text);

/** Bytes of one page in one slab: planes * layers * heads * page_size * dim * element. 0: not a
 * geometry, or page_size is above 4,096. */
uint64_t kvt_pool_geometry_page_bytes(const struct kvt_pool_geometry *geometry,
				      uint32_t page_size);

#define KVT_DEVICE_CURRENT -1 /* the device of the calling thread's CUDA context */

enum kvt_map_flag {
	KVT_MAP_READ_ONLY = 1u << 0, /* cuda-vmm: kernels that write into it fail */
};

/** Map the slab of a pool in device memory that is on this CUDA device, into the device's primary
 * context (that of the CUDA runtime). `base` is a device pointer.
 *
 * @device  number in this process (CUDA_VISIBLE_DEVICES counts), or KVT_DEVICE_CURRENT. The slab is
 *          found by the device's UUID.
 * All clients of a process share one mapping per device. It closes with the last of them: no work
 * on it may be left then. Loads libcuda.so.1; makes the context if there is none. Neither mapping
 * nor closing ends a capture of this process's streams into CUDA graphs, or becomes part of one.
 * Errors: -ENOTSUP host pool, no CUDA IPC here, drivers that differ, or read-only by IPC or where
 * the driver cannot; -ENODEV no driver or no such device; -EXDEV no slab is on it (or it is another
 * MIG instance); -ENOTUNIQ this process and the daemon have the same pid in two PID namespaces;
 * -EPERM by IPC, and the daemon is another user; -ECONNRESET the daemon is gone; -EBUSY already
 * opened by other code of this process; -ENOMEM; -EIO the driver failed. kvt_client_error() says
 * what to do. */
int kvt_pool_map_cuda(struct kvt_client *client, int device, uint32_t flags,
		      struct kvt_pool *ret_pool);

/* ---------------------------------------------------------------- fences */

/** Raise fence word `slot` to `value` (monotonic). Wakes a sleeping daemon if an operation of this
 * client may wait for the word; a member always does. */
int kvt_fence_raise(struct kvt_client *client, uint32_t slot, uint64_t value);

/** The word itself, for a device that writes it in stream order: the daemon polls it while an
 * operation waits. NULL if slot is out of range. */
uint64_t *kvt_fence_word(struct kvt_client *client, uint32_t slot);

/** How a stream raises its fence word. */
enum kvt_fence_method {
	KVT_FENCE_BY_DEFAULT = 0, /* as $KVTRUNK_FENCE says: host or write; else host */
	KVT_FENCE_BY_HOST = 1,    /* a host function (cuLaunchHostFunc): works everywhere */
	KVT_FENCE_BY_WRITE = 2,   /* a stream-ordered write to the registered segment
				   * (cuStreamWriteValue64), where the device can; else as host */
};

/** Fence for all work queued on a CUDA stream so far, for COMMIT, INSERT, END, FREE, UNLOCK or
 * CLOSE. Neither the caller nor the device waits.
 *
 * @stream  a CUstream or cudaStream_t. Each stream has a fence word of its own, from the last one
 *          downwards of those that kvt_fence_raise() and kvt_fence_word() were not used for;
 *          fences of one stream are reached in their order. The null stream is that of the current
 *          context.
 * Another stream may be captured into a CUDA graph meanwhile, on any thread: the capture continues.
 * In a group each rank records a fence for each of rank 0's, streams in the same order: then slots
 * and values agree. A stream whose context has failed reaches no fence: its operations wait until
 * the session ends, and its pages go to quarantine.
 * Errors: -ENOSPC all words are taken: kvt_fence_forget() unused streams; -EBUSY the stream, or one
 * that the null stream waits for, is being captured into a graph; -EINVAL a per-thread default
 * stream, or an observer; -ENODEV no driver; -EIO the driver failed; -ECONNRESET. */
int kvt_fence_record(struct kvt_client *client, void *stream, struct kvt_fence *ret_fence);

/** Free the fence word of a stream that will be destroyed. -EBUSY: not all of its fences are
 * reached. -ENOENT: it has none. A stream destroyed without this call keeps its word. Then all of
 * its fences must have been reached: the driver may reuse its handle for another stream, which
 * inherits the word. */
int kvt_fence_forget(struct kvt_client *client, void *stream);

/** The enum kvt_fence_method in use, KVT_FENCE_BY_DEFAULT before the first fence. */
int kvt_fence_method(const struct kvt_client *client);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
