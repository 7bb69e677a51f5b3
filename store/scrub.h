/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SCRUB_H
#define KVT_STORE_SCRUB_H

/**
 * @file scrub.h
 * Reads cached pages again and again, and finds those whose bytes have changed.
 *
 * A cached page is never written, so a change is damage, whatever the numbers mean: there is no
 * tolerance. A sum counts by the rule of a copy (tier.h): read the page, take all records
 * of the feed; the page was in none of them. No lock is taken, and no eviction, next owner or
 * restart of the daemon looks like damage.
 *
 * A change before the first read of a page is not seen. So new pages come first, but each
 * fourth page is one of the round: pages that are sealed faster than they can be read are evicted
 * as fast. One of eight new pages is read again soon: a page that changes right after it was sealed
 * was published too early.
 *
 * With each snapshot of what is cached (a successor, a flood of records, a RESET) all first sums
 * begin again: what was written in between is not seen.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/known.h"
#include "store/workers.h"

#define KVT_SCRUB_READS 16u
#define KVT_SCRUB_SOON 256u

/* A page of the pool. */
struct kvt_scrubbed {
	uint64_t right_ns; /* when it was last as at first; 0: it was not read yet */
	uint32_t right_s;  /* the same, in s since 1970 */
	uint32_t changes;  /* of struct kvt_known_page then */
	uint32_t next;     /* of the new pages */
	bool waits;        /* among these */
	bool reading;      /* an open read is of it */
	uint32_t namespace_id; /* of a page without one in front */
	uint64_t root_key;     /* of the same */
};

/* A page that is read again at its time. */
struct kvt_scrub_soon {
	uint32_t page, changes;
	uint64_t due_ns;
};

struct kvt_scrub_read {
	struct kvt_job job;
	uint32_t changes; /* of the page when the read began */
	uint64_t begun_ns;
	uint32_t begun_s; /* the same, in s since 1970 */
};

struct kvt_scrub {
	uint64_t rate; /* bytes a second; 0: nothing is read */
	struct kvt_scrubbed *pages;
	uint32_t *sums;   /* of each page one for each piece in each slab, as read first */
	uint32_t n_sums;
	uint32_t *read_sums; /* of each read, and the first ones of the last damaged page */
	uint8_t *records;    /* of each read, if the pool is on a device */
	struct kvt_scrub_read reads[KVT_SCRUB_READS]; /* open ones, a ring */
	uint32_t reads_at, n_reads;
	struct kvt_scrub_soon soon[KVT_SCRUB_SOON]; /* a ring */
	uint32_t soon_at, n_soon;
	uint32_t first_new, last_new; /* pages; 0: none */
	uint32_t n_new;       /* that were read first */
	uint32_t at, turns;   /* of the round */
	uint32_t n_round;     /* pages of the round until now */
	uint64_t ready_ns;    /* when the next page may be read */
	uint64_t since_ns;    /* when the first sums began again */
	uint64_t round_ns;    /* when the round began; 0: none did */
	uint64_t last_round_ns; /* how long the last whole one took; 0: there was none */
	uint64_t scrubbed, damaged; /* pages read again; of these, those that had changed */
};

/* A page that was written after it was sealed. */
struct kvt_damage {
	uint32_t page;
	uint32_t n_pieces, first, last; /* that differ, by their place in a record */
	uint64_t right_ns; /* when it was last right */
	uint32_t right_s;  /* the same, in s since 1970 */
	const uint32_t *first_sums; /* until there is another one */
};

/** Memory that reading pages of these sizes takes: most of it grows with the pool. */
uint64_t kvt_scrub_bytes(const struct kvt_info *info, const struct kvt_slabs *slabs);
/** Begin with a session. rate 0: does nothing. -ENOMEM. */
int kvt_scrub_init(struct kvt_scrub *scrub, uint64_t rate, const struct kvt_known *known,
		   const struct kvt_slabs *slabs);
/** Behind its last read. */
void kvt_scrub_destroy(struct kvt_scrub *scrub);
/** Note that a snapshot of what is cached begins. */
void kvt_scrub_forget(struct kvt_scrub *scrub);
/** Note the pages of a record that was taken. */
void kvt_scrub_note(struct kvt_scrub *scrub, const struct kvt_known *known,
		    const struct kvt_feed_record *record);
/** Begin to read the next page. False: it is not time, or there is none, or too many are open. */
bool kvt_scrub_begin(struct kvt_scrub *scrub, const struct kvt_known *known,
		     const struct kvt_slabs *slabs, struct kvt_jobs *jobs);
/** The number of the first open reads whose jobs have ended. */
uint32_t kvt_scrub_ended(const struct kvt_scrub *scrub);
/** End the first read. `complete`: all records of the feed were taken since its job ended. Returns
 * true if the page was damaged. */
bool kvt_scrub_end(struct kvt_scrub *scrub, const struct kvt_known *known, bool complete,
		   struct kvt_damage *ret_damage);

#endif
