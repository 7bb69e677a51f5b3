/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_POOL_BACKEND_H
#define KVT_DAEMON_SETUP_POOL_BACKEND_H

/** @file pool_backend.h: what a backend does for a pool (pool.h). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire_control.h"

struct kvt_pool;

/** The pool's part of WELCOME. Descriptors stay the pool's: the client gets duplicates. */
struct kvt_pool_export {
	int fds[KVT_MAX_SLABS]; /* none, or one for each slab */
	uint32_t n_fds;
	struct kvt_slab_record slabs[KVT_MAX_SLABS];
};

/** A dead session's processes, which may have written to private pages. */
struct kvt_pool_writer {
	uint32_t session;
	uint32_t n_pids;
	int32_t pids[KVT_MAX_RANKS];
	uint64_t ended_ns; /* when the last process exited and the last connection hung up */
};

struct kvt_pool_backend_ops {
	const char *name;
	uint32_t backend; /* enum kvt_pool_backend */
	/** Free bytes for each slab: the base of a budget in per cent. Negative errno with `why`.
	 * May be called before create(), with the pool's options set. */
	int (*free_bytes)(struct kvt_pool *pool, uint64_t *ret_bytes, char *why, size_t why_size);
	/** Check that create() can succeed here, and make nothing; `note` may be set. `running`:
	 * this instance has a pool, whose memory counts as free. Errors as of create(). */
	int (*check)(struct kvt_pool *pool, bool running, char *why, size_t why_size);
	/** Make the slabs. Negative errno, with cause and cure in `why`. */
	int (*create)(struct kvt_pool *pool, char *why, size_t why_size);
	/** Recover a predecessor's slabs, in their order. Consumes the descriptors, on failure
	 * too. NULL: slabs of this backend end with the daemon. */
	int (*adopt)(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		     size_t why_size);
	int (*export)(struct kvt_pool *pool, struct kvt_pool_export *ret_export);
	/** True if nothing that `writer` launched can still write to the pool. Called once its
	 * sockets have hung up and its processes have exited. False: ask again at *ret_again_ns.
	 * `why`, which is "" before: set if there is a reason to tell, fit for the log: why this is
	 * not known, or was only assumed. */
	bool (*quiesce)(struct kvt_pool *pool, const struct kvt_pool_writer *writer,
			uint64_t now_ns, uint64_t *ret_again_ns, char *why, size_t why_size);
	/** The answer is not needed any more. NULL: there is nothing to end. */
	void (*forget)(struct kvt_pool *pool, uint32_t session);
	void (*destroy)(struct kvt_pool *pool);
};

extern const struct kvt_pool_backend_ops kvt_pool_host_ops;
extern const struct kvt_pool_backend_ops kvt_pool_cuda_ipc_ops;
extern const struct kvt_pool_backend_ops kvt_pool_cuda_vmm_ops;

/** Find a backend by enum kvt_pool_backend. NULL: not in this build. */
const struct kvt_pool_backend_ops *kvt_pool_backend_find(uint32_t backend);

#endif
