/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_STORE_H
#define KVT_STORE_STORE_H

/**
 * @file store.h
 * kvtstored: the tiers of a host, and for each of its instances a thread with a session there and
 * peers that fetch. The main thread takes signals, and drives the file and the helper.
 *
 * Instances share the tiers and nothing else (tier.h). A daemon that is stopped, dies or starts
 * holds up its own thread.
 *
 * A load is what any worker does: BEGIN announces the pages before they are read, COMMIT seals
 * them, END lets go. So the daemon coalesces, times out and cleans up loads as it does computing.
 *
 * Everything is done in turns, and each part of a turn is bounded: a FETCH waits for one turn. The
 * bytes of pages are touched by workers.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shm/atomic.h"
#include "store/device.h"
#include "store/file.h"
#include "store/remote.h"
#include "store/scrub.h"
#include "store/times.h"
#include "store/withdraw.h"
#include "store/workers.h"

#define KVT_COPIES_MOST 128u

#define KVT_STORE_INSTANCES 16u

struct kvt_load;
struct kvt_store_fetch;

struct kvt_store_options {
	const char *sockets[KVT_STORE_INSTANCES]; /* of daemons, or patterns of such */
	uint32_t n_sockets;
	bool several; /* there may be more than one instance */
	uint64_t ram_bytes; /* 0: no page is kept */
	uint64_t scrub_rate; /* bytes of a pool a second that are read again; 0: none */
	struct kvt_file_options file;
	uint32_t stop_s; /* most time to write the memory to the file at the end */
	struct kvt_remote_options remote;
	uint32_t max_age_s; /* older pages are not found; 0: there is no such age */
	uint32_t min_positions;
	uint32_t queue_pages;
	uint32_t load_percent; /* of the pool's pages, in all loads together */
	uint32_t n_workers;
};

struct kvt_loads {
	struct kvt_load *first, *last; /* oldest first */
	uint32_t n_pages;     /* still to load */
	uint32_t n_jobs;      /* open */
	uint32_t most_pages;
	uint32_t namespace_id; /* of the last one, which is open; 0: none is */
	uint64_t page_ns;     /* time of a page, as the last ones took */
	uint64_t begun, ended, cut; /* loads; `cut`: ended before their last page */
	uint64_t loaded;      /* pages */
	struct kvt_store_time time; /* of loads with all their pages */
	uint64_t last_ns;     /* when a page was loaded last, 0: never */
	uint64_t last_computed; /* `computed` of the share then */
};

/* Shared by the instances of a host. */
struct kvt_host {
	struct kvt_store_options options;
	uint64_t started_ns;
	pthread_mutex_t making; /* of the tiers */
	struct kvt_workers workers;
	struct kvt_tier tier;   /* ram NULL: not made yet */
	pthread_t filler;       /* allocates its memory, until it is `filled` */
	bool has_filler, filled; /* `filled`: atomic */
	bool pinned;            /* for devices; atomic */
	struct kvt_file *file;  /* NULL: none. By the tier's lock, and so is `remote` */
	struct kvt_remote *remote; /* NULL: none */
	struct kvt_chain withdrawals[KVT_WITHDRAWALS]; /* of the tier: names of the last pages, by
							* the same */
	int wake;               /* eventfd: the helper has work, or an instance has ended */
	bool stopping;          /* atomic, as are these instances: */
	uint32_t n_instances;   /* with a thread */
	uint32_t n_sessions;    /* of instances, now */
	uint32_t n_connected, n_tried; /* by their first attempt; in vain */
	uint32_t n_ended;
};

/* An instance. */
struct kvt_store {
	struct kvt_host *host;
	struct kvt_tier *tier; /* of the host */
	const char *daemon_path;
	char name[32];         /* in the log: of the daemon's socket */
	int wake;              /* eventfd: what it waits for may be there, or it stops */
	bool tried;            /* to connect */
	bool waits;            /* for the file or the helper; atomic */
	struct kvt_share share;
	uint64_t begun;        /* reads from below */
	bool outdated;         /* without a session: the pool has pages from before a drop */
	struct kvt_client *client; /* NULL: no daemon */
	struct kvt_error unserved; /* why there is none, as the log says; empty: there was one */
	struct kvt_feed *feed;
	bool current; /* all records that the feed had were taken */
	bool reading; /* a snapshot of what is cached is not complete yet */
	bool reset;   /* there was a RESET: all pages are to be dropped */
	uint64_t epoch; /* of the pages */
	uint64_t instance[2]; /* that of the last session */
	struct kvt_device *device; /* NULL: the pool was never on a device */
	struct kvt_slabs slabs;
	struct kvt_known known;
	struct kvt_jobs jobs;
	uint32_t jobs_most; /* that are open of copies, and as many of loads */
	struct kvt_copy copies[KVT_COPIES_MOST]; /* open ones, a ring */
	uint32_t copies_at, n_copies;
	struct kvt_scrub scrub;
	struct kvt_damage damage; /* found by it, n_pieces 0: none */
	struct kvt_withdrawal withdrawal; /* of the last one */
	uint64_t again_ns;  /* when to try again to withdraw; 0: it did not fail */
	struct kvt_loads loads;
};

/** Return true if all that was withdrawn has left this pool. */
static inline bool kvt_store_is_clean(const struct kvt_store *store)
{
	return store->share.withdrawn == kvt_load_acquire(&store->tier->withdrawals);
}

/** Return why copies can no longer be made, NULL: they can. Then the session must stay open until
 * the process ends: its pages may still be written. */
static inline const char *kvt_store_broken(const struct kvt_store *store)
{
	return store->device ? kvt_device_failure(store->device) : NULL;
}

/* ---- session.c */

/** Connect, map the pool, make the tiers if there are none, and learn what is cached. On failure
 * nothing is left, and `why` says what to do. -EINVAL: this store cannot serve this daemon. */
int kvt_store_connect(struct kvt_store *store, struct kvt_error *why);
/** End all loads and the session, unless copies are broken. The tier stays. */
void kvt_store_disconnect(struct kvt_store *store);
/** Let devices copy to and from the memory at full speed, once all of it is there. */
void kvt_store_pin(struct kvt_store *store);
/** Print a line of the log, with the instance's name if there are several. */
__attribute__((format(printf, 2, 3))) void kvt_store_say(const struct kvt_store *store,
							 const char *format, ...);

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
/** End copies whose jobs have ended, and begin others. Returns true if there were any. */
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
/** Take pages that were copied, and begin to copy one. Returns true if there were any. */
bool kvt_load_turn(struct kvt_store *store);
/** End all loads, unless copies are broken: a device may still write their pages. */
void kvt_loads_end(struct kvt_store *store);

#endif
