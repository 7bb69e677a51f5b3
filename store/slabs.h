/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SLABS_H
#define KVT_STORE_SLABS_H

/**
 * @file slabs.h
 * Whole pages of a pool as records: all slabs behind each other, each in the order of its pieces.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_pool.h"

struct kvt_device;

struct kvt_slabs {
	uint8_t *bases[KVT_MAX_SLABS]; /* device pointers if there is a `device` */
	struct kvt_device *device;     /* NULL: the pool is host memory */
	uint32_t n_slabs;
	uint32_t n_pieces;
	uint64_t record_bytes;
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
};

/** Map all slabs of a pool. They are unmapped with the client.
 * @device  for a pool in device memory, NULL: it is host memory.
 * @writes  false: a write of this process faults, where the host and the driver can do that.
 * On failure `why` says what to do. Errors: those of kvt_pool_map_slab() and kvt_device_map(). */
int kvt_slabs_map(struct kvt_slabs *slabs, struct kvt_client *client, struct kvt_device *device,
		  bool writes, struct kvt_error *why);
/** Copy a page into a record, and compute its checksums on the way: ret_crc as
 * kvt_crc32c_quarters(), NULL: none. Others may be writing the page: then both are garbage. On a
 * device it only begins, without checksums. Any thread may call it, and the next two. */
void kvt_slabs_read(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to,
		    uint32_t ret_crc[4]);
/** Copy a record into a page, which must be the caller's. On a device it only begins. */
void kvt_slabs_write(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *from);
/** Compute the CRC-32C of each piece of a page in each slab: of its record, or of the pool itself,
 * if that is host memory and `record` NULL. */
void kvt_slabs_sum(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *record,
		   uint32_t *ret_sums);
/** Wait until what this thread read (`out`) or wrote is there, for other threads, too. -EIO: the
 * device failed, and what was copied is garbage. */
int kvt_slabs_settle(const struct kvt_slabs *slabs, bool out);

#endif
