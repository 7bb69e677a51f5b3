/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SLABS_H
#define KVT_STORE_SLABS_H

/**
 * @file slabs.h
 * Whole pages of a pool as records: all slabs behind each other, each in the order of its pieces.
 */

#include <stdint.h>

#include "kvtrunk_pool.h"

struct kvt_slabs {
	uint8_t *bases[KVT_MAX_SLABS];
	uint32_t n_slabs;
	uint32_t n_pieces;
	uint64_t record_bytes;
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
};

/** Map all slabs of a pool in host memory. They are unmapped with the client.
 * Errors: those of kvt_pool_map_slab(). */
int kvt_slabs_map(struct kvt_slabs *slabs, struct kvt_client *client);
/** Copy a page into a record. Others may be writing the page: then the record is garbage. */
void kvt_slabs_read(const struct kvt_slabs *slabs, uint32_t page, uint8_t *to);
/** Copy a record into a page, which must be the caller's. */
void kvt_slabs_write(const struct kvt_slabs *slabs, uint32_t page, const uint8_t *from);

#endif
