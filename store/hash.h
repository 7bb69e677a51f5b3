/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_HASH_H
#define KVT_STORE_HASH_H

/**
 * @file hash.h
 * A hash table from the key of a page to its entry in an array of the caller's. 8 bytes an entry.
 *
 * Open addressing, half full at most. Entries that count no more may stay in it, until their place
 * in the array is used again: a search passes them.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"

struct kvt_hash {
	uint32_t *places; /* entries, 0: none */
	uint32_t size;
	const uint8_t *keys; /* key of entry 1, the first bytes of it */
	uint32_t stride;     /* bytes from an entry to the next one */
	/* Return true if an entry counts. */
	bool (*counts)(const void *self, uint32_t entry);
	const void *self;
};

/** Make a table of n entries, with the other fields set. -ENOMEM. */
int kvt_hash_init(struct kvt_hash *table, uint32_t n);
void kvt_hash_destroy(struct kvt_hash *table);
/** Return the entry of a key, 0: none counts. */
uint32_t kvt_hash_find(const struct kvt_hash *table, const uint8_t key[KVT_CHAIN_KEY_BYTES]);
/** Add an entry, whose key no other one that counts has. */
void kvt_hash_add(struct kvt_hash *table, uint32_t entry);
/** Remove an entry that was added, with its key as it was then. */
void kvt_hash_remove(struct kvt_hash *table, uint32_t entry);

#endif
