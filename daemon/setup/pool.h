/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_POOL_H
#define KVT_DAEMON_SETUP_POOL_H

/**
 * @file pool.h
 * The memory of pages. The daemon never reads them: it makes the slabs, exports them, and asks
 * whether a dead writer can still reach them.
 */

#include <stdbool.h>
#include <stdint.h>

struct kvt_pool_backend_ops;

/** A pool: n_slabs slabs of `bytes` bytes, each with room for n_pages pages of page_bytes. */
struct kvt_pool {
	const struct kvt_pool_backend_ops *ops; /* NULL: not created */
	uint64_t page_bytes;
	uint32_t n_pages;
	uint32_t n_slabs; /* 1..KVT_MAX_SLABS, before create() */
	uint64_t bytes;  /* per slab, rounded up to the backend's mapping unit */
	bool mlock;
	uint32_t hugepages; /* enum kvt_hugepages */
	const char *devices;   /* cuda: option `devices`, which sets n_slabs */
	uint32_t mps;          /* enum kvt_mps */
	const char *mps_control; /* cuda under MPS: option `mps_control` */
	uint64_t mps_grace_ns; /* cuda under MPS: time for a dead client's work to finish */
	char note[256];  /* for the operator: how it was made, or "" */
	void *state;     /* private to the backend */
};

#endif
