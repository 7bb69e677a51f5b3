/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_POOL_H
#define KVT_DAEMON_POOL_H

/**
 * @file pool.h
 * Where pages live. The daemon never looks into them: it makes the slabs, hands them out, and
 * asks whether a dead writer can still reach them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_abi.h"

struct kvt_pool_backend_ops;

/** A pool: n_slabs slabs of `bytes` bytes, each with room for n_pages pages of page_bytes. */
struct kvt_pool {
	const struct kvt_pool_backend_ops *ops; /* NULL: not created */
	uint64_t page_bytes;
	uint32_t n_pages;
	uint32_t n_slabs; /* 1..KVT_MAX_SLABS, before create() */
	uint64_t bytes;  /* per slab, rounded up to what the backend maps in */
	bool mlock;
	uint32_t hugepages; /* enum kvt_hugepages */
	const char *devices;   /* cuda: option `devices`, which makes n_slabs */
	uint32_t mps;          /* enum kvt_mps */
	uint64_t mps_grace_ns; /* cuda under MPS: how long a dead client's work may go on */
	char note[256];  /* what an operator should know about how it was made, or "" */
	void *state;     /* the backend's own */
};

/** What a client gets with WELCOME. The descriptors stay the pool's: duplicates travel. */
struct kvt_pool_export {
	int fds[KVT_MAX_SLABS]; /* none, or one for each slab */
	uint32_t n_fds;
	struct kvt_slab_record slabs[KVT_MAX_SLABS];
};

/** A process, or group of them, that may have written to private pages and is gone. */
struct kvt_pool_writer {
	uint32_t session;
	int32_t pid;
	uint64_t ended_ns; /* when the last of its processes and connections was gone */
};

struct kvt_pool_backend_ops {
	const char *name;
	uint32_t backend; /* enum kvt_pool_backend */
	/** Bytes that each of its slabs could have now: what a budget in per cent is of. Negative
	 * errno with `why`. May be called before create(), on a pool whose options are set. */
	int (*free_bytes)(struct kvt_pool *pool, uint64_t *ret_bytes, char *why, size_t why_size);
	/** Make the slabs. Negative errno with `why`: cause and cure. */
	int (*create)(struct kvt_pool *pool, char *why, size_t why_size);
	/** Take up the slabs that a predecessor made and exported, in their order. Takes the
	 * descriptors, also on failure. NULL: its slabs die with the daemon. */
	int (*adopt)(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		     size_t why_size);
	int (*export)(struct kvt_pool *pool, struct kvt_pool_export *ret_export);
	/** Whether nothing that `writer` launched can still write to the pool. Asked when its
	 * sockets have hung up and its processes have exited. False: ask again at *ret_again_ns. */
	bool (*quiesce)(struct kvt_pool *pool, const struct kvt_pool_writer *writer,
			uint64_t now_ns, uint64_t *ret_again_ns);
	void (*destroy)(struct kvt_pool *pool);
};

extern const struct kvt_pool_backend_ops kvt_pool_host_ops;
extern const struct kvt_pool_backend_ops kvt_pool_cuda_ipc_ops;
extern const struct kvt_pool_backend_ops kvt_pool_cuda_vmm_ops;

/** Backend by enum kvt_pool_backend, NULL if this build has none. */
const struct kvt_pool_backend_ops *kvt_pool_backend_find(uint32_t backend);

/** Memory that this process could ever have: the machine's, or its cgroup's limit if lower. */
uint64_t kvt_memory_limit_bytes(void);
/** Memory that is to be had now without swapping: the machine's, or what is left below the lowest
 * limit of its cgroups if that is less. */
uint64_t kvt_memory_free_bytes(void);

#endif
