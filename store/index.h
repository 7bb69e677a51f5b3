/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_INDEX_H
#define KVT_STORE_INDEX_H

/**
 * @file index.h
 * The pages of a store by name, and which of them leaves next. 52 bytes an entry.
 *
 * Entry e owns place e of the RAM tier, so an entry is all that a page needs. Its states:
 *
 *     FREE --take--> PRIVATE --expect--> COMING --arrive--> FOUND --the oldest, by take--> PRIVATE
 *       ^---drop--------+-------------------+------------------+
 *
 * The bytes of a COMING page are on their way: it is not found, but has its name already, so that
 * no other entry gets it, and its place behind its front. Only FOUND entries are found, and only
 * those without pins leave. An entry that is pinned is in no list.
 *
 * A prefix ends at the first page that is missing, so a page must leave before the one in front of
 * it: each pins its front. A use touches one entry, and the pins keep the path in front of it. An
 * entry that leaves hands its `used` and `passed` to its front. That leaves next, unless it was
 * used later itself. So a path is as old as its last use, as if each use had touched all of it.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"
#include "store/hash.h"
#include "store/scan.h"

#define KVT_INDEX_MAX (1u << 30)

enum kvt_index_state {
	KVT_INDEX_FREE = 0,
	KVT_INDEX_PRIVATE,
	KVT_INDEX_COMING,
	KVT_INDEX_FOUND,
};

struct kvt_index_entry {
	uint8_t key[KVT_CHAIN_KEY_BYTES];
	uint32_t older, younger; /* FOUND without pins: neighbours; FREE so: `older` is next */
	uint32_t front; /* entry of the page in front, which has a pin for it; 0: none is here */
	uint32_t use;   /* clock at its last use, or at that of a page behind it that has left */
	uint32_t pins;
	uint32_t time;  /* when it was copied out of a pool, or came from another host, in s since
			 * 1970; 0: that is not known */
	uint32_t state : 2; /* enum kvt_index_state */
	uint32_t used : 1;   /* it was asked for since it was published */
	uint32_t first : 1;  /* of its prompt: no page is in front */
	uint32_t kept : 1;   /* the file has it, or it is being written */
	uint32_t passed : 1; /* nothing from here to the front is used and not kept (writer.h) */
	uint32_t below : 1;  /* COMING from a tier below */
	uint32_t round : 25; /* COMING or FOUND in another one: it will be free, or is */
};

struct kvt_index {
	struct kvt_index_entry *entries; /* [1, n_entries] */
	struct kvt_hash table;
	uint32_t n_entries;
	uint32_t n_ready; /* of these, that can be taken */
	uint32_t first_free, oldest, youngest; /* entries, 0: none */
	uint32_t n_found;
	uint32_t clock; /* uses; wraps, and two of entries differ by less than half of its range */
	uint32_t left;  /* last use of the entry that left last */
	uint32_t round : 25; /* 1 more with each kvt_index_clear() */
	struct kvt_scan *scans; /* open ones, for kvt_index_forget() */
};

/** Make an index of 1 to KVT_INDEX_MAX entries. -ENOMEM. */
int kvt_index_init(struct kvt_index *index, uint32_t n_entries);
void kvt_index_destroy(struct kvt_index *index);
/** Let only the first n entries be taken, n >= 1. None may be taken yet. */
void kvt_index_limit(struct kvt_index *index, uint32_t n);
/** Let the first n entries be taken, more than until now. */
void kvt_index_grow(struct kvt_index *index, uint32_t n);
/** Memory that an index of n_entries takes, once all were used. */
uint64_t kvt_index_bytes(uint64_t n_entries);

/** Return true if an entry is FOUND. */
bool kvt_index_is_found(const struct kvt_index *index, uint32_t entry);
/** Return the name of an entry's page, as far as the index keeps it. */
struct kvt_chain kvt_index_page(const struct kvt_index *index, uint32_t entry);
/** Return the FOUND or COMING entry of a page, 0: none. */
uint32_t kvt_index_look(const struct kvt_index *index, const struct kvt_chain *page);
/** Return the FOUND entry of a page, 0: none. */
uint32_t kvt_index_find(const struct kvt_index *index, const struct kvt_chain *page);
/** Use a FOUND entry: it becomes the youngest, and its path stays as long as it does. */
void kvt_index_touch(struct kvt_index *index, uint32_t entry);
/** Take a free entry, or the oldest. Returns 0 if all are pinned or private. */
uint32_t kvt_index_take(struct kvt_index *index);
/** Give a PRIVATE entry a page's name, behind a FOUND or COMING one or 0: it is COMING. The page
 * must have no other. */
void kvt_index_expect(struct kvt_index *index, uint32_t entry, const struct kvt_chain *page,
		      uint32_t front);
/** Let a COMING entry be found, as the youngest. Returns false if the index was cleared since: it
 * is no longer the caller's. */
bool kvt_index_arrive(struct kvt_index *index, uint32_t entry);
/** Both at once. */
void kvt_index_publish(struct kvt_index *index, uint32_t entry, const struct kvt_chain *page,
		       uint32_t front);
/** Tell a FOUND entry that has no front, or lost it, which one it has, 0: none. */
void kvt_index_join(struct kvt_index *index, uint32_t entry, uint32_t front);
/** Free a PRIVATE, COMING or FOUND entry. Only a COMING one may have pins, those of pages behind
 * it: it is free at the last unpin. */
void kvt_index_drop(struct kvt_index *index, uint32_t entry);
/** Keep a FOUND or COMING entry where it is. Each pin needs its unpin. */
void kvt_index_pin(struct kvt_index *index, uint32_t entry);
/** The last unpin makes it the youngest. Returns false if the index was cleared since the pin: the
 * entry is no longer the caller's. */
bool kvt_index_unpin(struct kvt_index *index, uint32_t entry);
/** The same, but this is no use: the last one puts it back to the end that its last use is nearer
 * to. */
bool kvt_index_put_back(struct kvt_index *index, uint32_t entry);
/** Forget all FOUND entries, in O(1): those without pins are free now, others at their last unpin.
 */
void kvt_index_clear(struct kvt_index *index);
/** Look at KVT_SCAN_LOOKS entries more for those that kvt_index_forget() judges. The scan is opened
 * with `scans` and n_entries. Returns true if all were looked at. */
bool kvt_index_scan(const struct kvt_index *index, struct kvt_scan *scan, uint32_t since);
/** Forget an entry and all behind it that were copied since a time, but for the entry `stays`, and
 * all that are COMING; and close the scan, which is done. `page` 0: it is not here. An entry that
 * lost its front may be behind it. */
void kvt_index_forget(struct kvt_index *index, struct kvt_scan *scan, uint32_t page,
		      uint32_t since, uint32_t stays);

#endif
