/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_TIER_H
#define KVT_STORE_TIER_H

/**
 * @file tier.h
 * The RAM tier: an index, and one record of memory for each of its entries. And the copy of a page
 * into it, which takes no lock in the pool:
 *
 *     kvt_copy_begin()   a cached page that is not here: have its bytes read into an entry
 *     its job has ended: take all records of the feed that there are
 *     kvt_copy_end()     the page was in none of them: let the entry be found; else drop it
 *
 * So a slow store delays no eviction. A page that was evicted during the copy costs the copy.
 *
 * Pages of the tiers below come into memory by kvt_tier_bring(). While bytes are on their way, from
 * a pool or below, their entry is COMING: it is found once they are there.
 *
 * Several instances share a tier, each by a thread of its own:
 *
 *   1. `lock` guards the index and all that is below it. The functions here take it.
 *   2. It is not held while a page is copied from or to a pool, or a daemon or peer is called.
 *   3. The record of an entry that is COMING or pinned, and its checksums, belong to the thread
 *      that took or pinned it, or to its job.
 *   4. Looking for a name and publishing it are one critical section: no name is there twice.
 *   5. After kvt_tier_clear() no copy is published that began before, and no thread copies what its
 *      pool cached before. After kvt_tier_forget() it is the same, until what is damaged has left
 *      the thread's pool.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/below.h"
#include "store/index.h"
#include "store/known.h"
#include "store/slabs.h"
#include "store/workers.h"

#define KVT_BELOW_MOST 2u /* a file, a helper */

struct kvt_tier {
	pthread_mutex_t lock;
	uint32_t drops; /* times that all pages were forgotten; atomic */
	uint32_t withdrawals; /* damaged pages, whose copies were forgotten; atomic */
	struct kvt_index index;
	uint8_t *ram;
	uint64_t ram_bytes;
	uint64_t record_bytes;
	uint64_t page_bytes;   /* of a record, from its beginning */
	uint32_t (*crcs)[4];   /* of the pages of entries 1, ..., by kvt_crc32c_quarters(); NULL: no
				* tier below needs them */
	int memory_fd;         /* of memory that a helper shares; -1: none does */
	uint8_t *seals;        /* of records, for a helper; NULL: none */
	uint64_t mapped_bytes; /* records and seals */
	struct kvt_below below[KVT_BELOW_MOST]; /* the nearest first */
	uint32_t n_below;
	struct kvt_jobs jobs; /* of the thread that calls kvt_tier_arrivals() */
	uint32_t n_coming;  /* pages from below */
	uint32_t n_copying; /* and those of pools */
	uint32_t n_writing; /* pages that are pinned until they are written below */
	uint32_t max_age_s; /* older pages are not found; 0: there is no such age */
	uint64_t begun, brought, lost; /* reads from below: all, good, bad */
};

/* The part of one instance in a tier. */
struct kvt_share {
	uint64_t copied, spoiled, full; /* copies: good, bad, without a place */
	uint64_t computed, recomputed;  /* pages of clients; those that a tier had */
	uint32_t drops; /* of the tier: those that were noticed */
	uint32_t withdrawn; /* of the tier's withdrawals: those that are done in its pool */
};

struct kvt_copy {
	struct kvt_job job;
	uint32_t entry;
	uint32_t changes; /* of the page when the copy began */
};

/** Make a tier of about ram_bytes, not yet allocated, with seal_bytes for each record. 0: no helper
 * shares its memory. Pages fill records until `page_bytes` is set. -ENOMEM; -EINVAL: less than a
 * record. */
int kvt_tier_init(struct kvt_tier *tier, uint64_t ram_bytes, uint64_t record_bytes,
		  uint32_t seal_bytes);
void kvt_tier_destroy(struct kvt_tier *tier);
/** Keep the checksums of pages, for tiers below. -ENOMEM. */
int kvt_tier_keep_crcs(struct kvt_tier *tier);
/** Use the records in these first bytes, from now on. */
void kvt_tier_fill(struct kvt_tier *tier, uint64_t bytes);
/** The record of an entry, and the checksums of its page. */
uint8_t *kvt_tier_record(const struct kvt_tier *tier, uint32_t entry);
uint32_t *kvt_tier_crcs(const struct kvt_tier *tier, uint32_t entry);

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

/** Note that a request uses the path up to a page, as far as that is here. */
void kvt_tier_use(struct kvt_tier *tier, const struct kvt_chain *page);

/** Have the page in a COMING entry checked, if its bytes came: else the job has ended. With the
 * lock, by the thread that calls kvt_tier_arrivals(). */
void kvt_tier_check(struct kvt_tier *tier, uint32_t entry, bool came, struct kvt_job *job);
/** Note the checksums of the page in an entry, where they are kept. */
void kvt_tier_note_crc(struct kvt_tier *tier, uint32_t entry, const struct kvt_job *job);

/** Forget all pages, and those on their way. With the lock. */
void kvt_tier_clear(struct kvt_tier *tier);
/** Open a scan for kvt_tier_forget(). */
void kvt_tier_scan_open(struct kvt_tier *tier, struct kvt_scan *scan);
/** Look at a part of the pages. Returns true if all were looked at. */
bool kvt_tier_scan(struct kvt_tier *tier, struct kvt_scan *scan, uint32_t since);
/** Forget a page, and all behind it that was copied since a time, but for a pinned entry that
 * `stays`, 0: none does; and all that is on its way. Closes the scan, which is done. With the lock.
 * Returns the number of pages. */
uint32_t kvt_tier_forget(struct kvt_tier *tier, struct kvt_scan *scan, const struct kvt_chain *page,
			 uint32_t since, uint32_t stays);

/** Begin to copy the next queued page: its job is added. Returns 1; 0: there is none; -EAGAIN: many
 * that need no copy were looked at, call again. */
int kvt_copy_begin(struct kvt_tier *tier, struct kvt_known *known, const struct kvt_slabs *slabs,
		   struct kvt_share *share, struct kvt_jobs *jobs, struct kvt_copy *copy);
/** End a copy whose job has ended. `complete`: all records of the feed were taken since. Returns
 * true if its page is in its entry from now on: it is good. After a failure of a device no one
 * uses its entry any more. */
bool kvt_copy_end(struct kvt_tier *tier, const struct kvt_known *known, struct kvt_share *share,
		  const struct kvt_copy *copy, bool complete);

#endif
