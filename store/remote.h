/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_REMOTE_H
#define KVT_STORE_REMOTE_H

/**
 * @file remote.h
 * A distributed store as a tier below the memory, by a helper process.
 *
 * Only asking tells which pages it has. So a FETCH first asks the helper, and is answered when the
 * helper answers, or without it after `wait_ns`. Until then its pages count as missing.
 *
 * Pages that are copied out of the pool are put there, too, as far as the helper keeps up and a
 * budget allows: first those that came back, because they were used here, or computed again. When a
 * path is used here, and the last news of its end is older than `again_s`, the helper is asked for
 * that end. If it is missing, the path is put again, before others: so a path that is used here
 * does not stay lost there.
 *
 * A GET that is late or brings nothing closes the tier for a while, and each time for twice as
 * long: EXISTS is no promise in such stores, and one that hangs must cost no more than one load.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/helper.h"
#include "store/tier.h"
#include "store/times.h"

#define KVT_REMOTE_LATE_NS 1000000000ull /* a GET that takes longer */

struct kvt_remote_options {
	const char *command; /* NULL: none */
	uint64_t batch_bytes;  /* of a GET or PUT */
	uint64_t wait_ns;      /* a FETCH waits so long for the helper */
	uint32_t queue_pages;  /* that wait to be put: of what came back, and of others */
	uint64_t write_bytes;  /* most that is put in a second; 0: no limit */
	uint32_t again_s;      /* a page is not asked for again in so many seconds, below 2^29 */
};

struct kvt_remote_counts {
	uint64_t ready; /* 1: now */
	uint64_t starts;
	uint64_t got, bad;        /* pages: brought; promised, and missing or not as they were */
	uint64_t stored, refused; /* pages, by the helper */
	uint64_t dropped;         /* pages: the helper was slow, or ended */
	uint64_t full, garbage;   /* 1: of the last pages too many were refused, or damaged */
	const char *kind;         /* as the helper calls the distributed store, "" before */
	struct kvt_store_time get_time;
};

struct kvt_remote;

/** Make it a tier below `tier`, whose memory is shared. The helper is started by the first turn.
 * -ENOMEM and the like. */
int kvt_remote_open(struct kvt_remote **ret_remote, struct kvt_tier *tier,
		    const struct kvt_remote_options *options);
/** Kill the helper. NULL: none. */
void kvt_remote_close(struct kvt_remote *remote);
struct kvt_remote_counts kvt_remote_count(const struct kvt_remote *remote);

/** Do what is due. Returns true if there was something. */
bool kvt_remote_turn(struct kvt_remote *remote);

/** Have names asked for. Returns the round that answers; 0: they are not asked. */
uint64_t kvt_remote_ask(struct kvt_remote *remote, const struct kvt_chain *names, uint32_t n);
/** Return true if a round was answered, or will not be. */
bool kvt_remote_answered(const struct kvt_remote *remote, uint64_t round);

#endif
