/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_TIER_H
#define KVT_STORE_TIER_H

/**
 * @file tier.h
 * The RAM tier: an index, and one record of memory for each of its entries. And the copy of a page
 * into it, which takes no lock in the pool:
 *
 *     kvt_copy_begin()   a cached page that is not here: read its bytes into a private entry
 *     take all records of the feed that there are
 *     kvt_copy_end()     the page was in none of them: let the entry be found; else drop it
 *
 * So a slow store delays no eviction. A page that was evicted during the copy costs the copy.
 *
 * Pages of the tiers below come into memory by kvt_tier_bring(), each into a private entry that is
 * found once its bytes are there.
 *
 * Several instances share a tier, each by a thread of its own:
 *
 *   1. `lock` guards the index and all that is below it. The functions here take it.
 *   2. It is not held while a page is copied from or to a pool, or a daemon or peer is called.
 *   3. The record of an entry that is PRIVATE or pinned belongs to the thread that took or pinned
 *      it.
 *   4. Looking for a name and publishing it are one critical section: no name is there twice.
 *   5. After kvt_tier_clear() no copy is published that began before, and no thread copies what its
 *      pool cached before.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/below.h"
#include "store/index.h"
#include "store/known.h"
#include "store/slabs.h"

#define KVT_BELOW_MOST 2u /* a file, a helper */
#define KVT_COMING_MOST 64u

/* A page on its way into memory. */
struct kvt_coming {
	struct kvt_chain page, front; /* and the page in front of it */
	uint32_t entry;
	bool first; /* of its prompt: there is none in front */
	bool stale; /* all pages were forgotten meanwhile */
};

struct kvt_tier {
	pthread_mutex_t lock;
	uint32_t drops; /* times that all pages were forgotten; atomic */
	struct kvt_index index;
	uint8_t *ram;
	uint64_t ram_bytes;
	uint64_t record_bytes;
	int memory_fd;         /* of memory that a helper shares; -1: none does */
	uint8_t *seals;        /* of records, for a helper; NULL: none */
	uint64_t mapped_bytes; /* records and seals */
	struct kvt_below below[KVT_BELOW_MOST]; /* the nearest first */
	uint32_t n_below;
	struct kvt_coming coming[KVT_COMING_MOST];
	uint32_t n_coming;
	uint32_t n_writing; /* pages that are pinned until they are written below */
	uint32_t max_age_s; /* older pages are not found; 0: there is no such age */
	uint64_t begun, brought, lost; /* reads from below: all, good, bad */
};

/* What one instance has to do with a tier. */
struct kvt_share {
	uint64_t copied, spoiled, full; /* copies: good, bad, without a place */
	uint64_t computed, recomputed;  /* pages of clients; those that a tier had */
	uint32_t drops; /* of the tier: those that were noticed */
};

struct kvt_copy {
	uint32_t page;
	uint32_t entry;
	uint32_t front;          /* entry of the page in front, which is pinned; 0: none is here */
	uint32_t changes;        /* of the page when the copy began */
	uint32_t drops;          /* of the tier then */
	bool first;              /* page of its prompt: there is none in front */
	struct kvt_chain chain;
};

/** Make a tier of about ram_bytes, not yet allocated, with seal_bytes for each record. 0: no helper
 * shares its memory. -ENOMEM; -EINVAL: less than a record. */
int kvt_tier_init(struct kvt_tier *tier, uint64_t ram_bytes, uint64_t record_bytes,
		  uint32_t seal_bytes);
void kvt_tier_destroy(struct kvt_tier *tier);
/** Use the records in these first bytes, from now on. */
void kvt_tier_fill(struct kvt_tier *tier, uint64_t bytes);
/** The record of an entry. */
uint8_t *kvt_tier_record(const struct kvt_tier *tier, uint32_t entry);

/** Return true if a page of this time (struct kvt_index_entry) is too old to be found. */
bool kvt_tier_is_old(const struct kvt_tier *tier, uint32_t time);
/** Take the lock, for what the functions here do not. */
void kvt_tier_lock(struct kvt_tier *tier);
void kvt_tier_unlock(struct kvt_tier *tier);

/** Return true if a page is here or below. */
bool kvt_tier_has(struct kvt_tier *tier, const struct kvt_chain *page);
/** Pin a page, if it is here. Returns its entry, 0: it is not. */
uint32_t kvt_tier_pin(struct kvt_tier *tier, const struct kvt_chain *page);
/** `used`: it was read. */
void kvt_tier_unpin(struct kvt_tier *tier, uint32_t entry, bool used);
/** Return true if something comes from below, or leaves for there. */
bool kvt_tier_moves(struct kvt_tier *tier);
/** Get a page into memory, behind the one with the name `front`, NULL: the first of its prompt, and
 * pin it. Returns its entry; 0: it is on its way; -EINPROGRESS: from now on. -EAGAIN: no room now.
 * -ENOENT: no tier has it. */
int64_t kvt_tier_bring(struct kvt_tier *tier, const struct kvt_chain *page,
		       const struct kvt_chain *front);
/** Give each tier below a turn, and let a page that arrived from it be found. Returns true if there
 * may be more: call again. One thread calls it. */
bool kvt_tier_arrivals(struct kvt_tier *tier);

/** Note that a request continues behind a cached page, as far as that is here. */
void kvt_tier_use(struct kvt_tier *tier, const struct kvt_chain *page);

/** Forget all pages, and those on their way. With the lock. */
void kvt_tier_clear(struct kvt_tier *tier);

/** Begin to copy the next queued page. Returns 1; 0: there is none; -EAGAIN: many that need no copy
 * were looked at, call again. */
int kvt_copy_begin(struct kvt_tier *tier, struct kvt_known *known, const struct kvt_slabs *slabs,
		   struct kvt_share *share, struct kvt_copy *ret_copy);
/** End a copy. `complete`: all records of the feed were taken since. Returns true if its page is in
 * its entry from now on: it is good, and no other instance was quicker. */
bool kvt_copy_end(struct kvt_tier *tier, const struct kvt_known *known, struct kvt_share *share,
		  const struct kvt_copy *copy, bool complete);

#endif
