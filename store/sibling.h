/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SIBLING_H
#define KVT_STORE_SIBLING_H

/**
 * @file sibling.h
 * Other instances of the host as tiers below the memory: what their pools cache is read from there,
 * by the rule of kvtrunk_feed.h. No lock is taken in them, and no recency changes.
 *
 * Each sibling has a thread with a session in its daemon. The thread follows the feed, which tells
 * the names of pages, and copies pages into records. It alone waits for the daemon. The thread
 * that serves looks names up (names.h). The two exchange messages by pipes: a page to read into a
 * record, a record that was read.
 *
 * A stopped daemon changes nothing: what its shared memory says is true. After one that ended, the
 * thread connects to the next, 0.1 s later, doubling to 30 s.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/tier.h"

#define KVT_SIBLINGS_MOST 15u

struct kvt_sibling;

struct kvt_siblings_options {
	const char *paths[KVT_SIBLINGS_MOST]; /* sockets of daemons */
	uint32_t n;
};

struct kvt_siblings {
	struct kvt_sibling *each[KVT_SIBLINGS_MOST];
	uint32_t n;
};

struct kvt_siblings_counts {
	uint64_t ready;         /* siblings whose pools can be read now */
	uint64_t pages;         /* that these cache */
	uint64_t read, spoiled; /* pages: brought; evicted before they were read whole */
};

/** Make each a tier below `tier`. They connect by and by.
 *
 * @own     socket of the store's own daemon, which is left out.
 * @layout  kvt_chain_layout() of that, atomic: a daemon with another is not used.
 * Errors: -ENOMEM and the like; close what is open. */
int kvt_siblings_open(struct kvt_siblings *siblings, struct kvt_tier *tier,
		      const struct kvt_siblings_options *options, const char *own,
		      const uint64_t *layout);
/** End all threads. Waits for calls of a stopped daemon, seconds at most. Before the tier goes. */
void kvt_siblings_close(struct kvt_siblings *siblings);
/** Forget what all pools cache now: only what they cache from now on is found. */
void kvt_siblings_forget(struct kvt_siblings *siblings);
struct kvt_siblings_counts kvt_siblings_count(const struct kvt_siblings *siblings);
/** What failed of the driver of a sibling's pool, as kvt_device_failure(). NULL: nothing has. */
const char *kvt_siblings_failure(const struct kvt_siblings *siblings);

#endif
