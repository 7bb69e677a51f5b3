/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_STORE_H
#define KVT_STORE_STORE_H

/**
 * @file store.h
 * kvtstored: one thread, a session in one instance, the tier that outlives it, and peers that
 * fetch. Another thread for each sibling (sibling.h).
 *
 * A load is what any worker does: BEGIN announces the pages before they are read, COMMIT seals
 * them, END lets go. So the daemon coalesces, times out and cleans up loads as it does computing.
 *
 * Everything is done in turns, and each part of a turn is bounded: a FETCH waits for one turn.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/file.h"
#include "store/remote.h"
#include "store/sibling.h"

/** Bytes that a turn copies in each direction: at least a page. */
#define KVT_STORE_TURN_BYTES (512ull << 10)

struct kvt_load;
struct kvt_store_fetch;

struct kvt_store_options {
	const char *daemon_path; /* the daemon's socket */
	uint64_t ram_bytes;
	struct kvt_file_options file;
	struct kvt_remote_options remote;
	struct kvt_siblings_options siblings;
	uint32_t min_positions;
	uint32_t queue_pages;
	uint32_t load_percent; /* of the pool's pages, in all loads together */
};

struct kvt_loads {
	struct kvt_load *first, *last; /* oldest first */
	uint32_t n_pages;     /* still to load */
	uint32_t most_pages;
	uint32_t namespace_id; /* of the last one, which is open; 0: none is */
	uint64_t page_ns;     /* time of a page, as the last ones took */
	uint64_t begun, ended, cut; /* loads; `cut`: ended before their last page */
	uint64_t loaded;      /* pages */
	uint64_t last_ns;     /* when a page was loaded last, 0: never */
	uint64_t last_computed; /* the tier's `computed` then */
};

struct kvt_store {
	struct kvt_store_options options;
	struct kvt_client *client; /* NULL: no daemon */
	struct kvt_error unserved; /* why there is none, as the log says; empty: there was one */
	struct kvt_feed *feed;
	bool current; /* all records that the feed had were taken */
	bool reading; /* a snapshot of what is cached is not complete yet */
	bool reset;   /* there was a RESET: all pages are to be dropped */
	uint64_t epoch; /* of the pages */
	uint64_t instance[2]; /* that of the last session */
	struct kvt_device *device; /* NULL: the pool was never on a device */
	uint64_t started_ns;
	struct kvt_slabs slabs;
	uint64_t layout; /* of its pages, by kvt_chain_layout(); atomic */
	struct kvt_known known;
	struct kvt_tier tier; /* ram NULL: not made yet */
	struct kvt_file *file; /* NULL: none */
	struct kvt_remote *remote; /* NULL: none */
	struct kvt_siblings siblings;
	struct kvt_copy copy; /* begun before the last look at the feed, if its page is not 0 */
	struct kvt_loads loads;
};

/* ---- session.c */

/** Connect, map the pool, make the tier if there is none, and learn what is cached. On failure
 * nothing is left, and `why` says what to do. -EINVAL: this store cannot serve this daemon. */
int kvt_store_connect(struct kvt_store *store, struct kvt_error *why);
/** End all loads and the session. The tier stays. */
void kvt_store_disconnect(struct kvt_store *store);
/** Return why copies can no longer be made, NULL: they can. Then the process must end, with its
 * session open: its pages may still be written until then. */
const char *kvt_store_broken(const struct kvt_store *store);
/** End all loads and forget all pages. What the pool caches is copied again once it is stored
 * again. */
void kvt_store_drop(struct kvt_store *store);

/* ---- follow.c */

/** Begin to learn what is cached, by the feed that is open, or by another. Errors: as
 * kvt_store_follow(). */
int kvt_store_subscribe(struct kvt_store *store);
/** Take records of the feed, of that of a successor if the session continues there, for about a
 * millisecond at most. Returns how many there were; `current` tells whether those were all.
 * -ETIMEDOUT, -EOVERFLOW: try again; other errors: the session is over. */
int kvt_store_follow(struct kvt_store *store);
/** Unsubscribe. */
void kvt_store_unfollow(struct kvt_store *store);
/** Copy pages out, KVT_STORE_TURN_BYTES or one. Returns true if there may be more. */
bool kvt_store_copy(struct kvt_store *store);

/* ---- load.c */

/** Check whether the tier has the first page that a FETCH lacks; `keys` are a private copy of that
 * page's. */
bool kvt_load_possible(const struct kvt_store *store, const struct kvt_store_fetch *ask,
		       const uint32_t *keys);
/** Note that a request continues behind the anchor of a FETCH. */
void kvt_load_note(struct kvt_store *store, const struct kvt_store_fetch *ask);
/** Name the pages of a FETCH from the first on that no tier has, and side pages that they may have;
 * `keys` are a private copy. Returns their number. */
uint32_t kvt_load_missing(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			  const uint32_t *keys, struct kvt_chain *ret_names, uint32_t most);
/** Begin to load what a FETCH lacks, if no open load brings it; `keys` are a private copy. Returns
 * the positions that will be loaded: they are announced. 0: none. */
uint32_t kvt_load_begin(struct kvt_store *store, const struct kvt_store_fetch *ask,
			const uint32_t *keys);
/** Load one page of the oldest load. Returns true if there was one. */
bool kvt_load_turn(struct kvt_store *store);
/** End all loads. */
void kvt_loads_end(struct kvt_store *store);

#endif
