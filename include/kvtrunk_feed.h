/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_FEED_H
#define KVTRUNK_FEED_H

/**
 * @file kvtrunk_feed.h
 * The feed: which pages became cached, and which stopped being so. Included by kvtrunk.h.
 *
 * For routers, stores and displays. The daemon writes each change into a ring in shared memory and
 * never looks at its readers. A reader polls; one that falls behind by more than the ring
 * (`feed_bytes`) gets -EOVERFLOW and takes a snapshot:
 *
 *     kvt_feed_open(client, &feed)
 *     kvt_feed_snapshot(feed)              what is cached now
 *     kvt_feed_next(feed, &record)         1: a record, first those of the snapshot; 0: none now
 *     kvt_feed_close(feed)
 *
 * A reader that needs hashes keeps one for each page: that of STORED's parent, and the keys, give
 * that of the page. Without subscribers the daemon writes nothing.
 *
 * A page matches as long as the reader knows its whole path. Behind a removed page nothing does;
 * REMOVED follow as pages are reclaimed. A number is reused only after the pages right behind it
 * were removed, so `parent` never means another page. Until all are reclaimed, two pages can have
 * one path: count, if you tell hashes to others.
 *
 * Rule for copies of pages: a copy is good if, after it ended, kvt_feed_next() was called until it
 * returned 0, and the page was in no REMOVED and no STORED since the copy began, and there was no
 * CLEARED. REMOVED is in the feed before the page's next owner learns its number. On a device the
 * copy has ended when its event has.
 */

#include <stdint.h>

#include "kvtrunk_client.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct kvt_feed; /* a subscription; opaque */

enum kvt_feed_type {
	KVT_FEED_PAD = 0, /* fills the ring's end; the library skips it */
	/* A session opened the namespace of this number and digest. Numbers are reused. */
	KVT_FEED_NAMESPACE = 1,
	/* Pages became cached, in the order of their path, behind a cached page. With `ends` they
	 * have a time to live, and their side pages with them: a copy must not outlive it. */
	KVT_FEED_STORED = 2,
	KVT_FEED_SIDE = 3,   /* side pages were attached to cached pages */
	/* Pages stopped being cached: evicted, reclaimed or dropped, side pages, too. The first
	 * page of what is removed or expires is told at once; of a namespace that is removed whole,
	 * the first page of each path. In front of the STORED and SIDE of the same effect. Ignore
	 * pages that are not known: they were told before, or came and went in one effect. */
	KVT_FEED_REMOVED = 4,
	/* RESET: nothing cached before matches any more. Forget all pages. */
	KVT_FEED_CLEARED = 5,
	KVT_FEED_USED = 6,   /* a BEGIN reused pages; only with feed_used = yes */
	/* Cached pages, which were stored with a time to live, have none from now on: a COMMIT or
	 * an INSERT without one used their path. */
	KVT_FEED_LASTING = 7,
	KVT_FEED_TYPES = 8,
};

/** A side page of a cached page. */
struct kvt_feed_side {
	uint32_t page;
	uint32_t kind;
	uint32_t side; /* page number of the side page */
};

/** One record. Fields that its type does not name are 0. */
struct kvt_feed_record {
	uint32_t type; /* enum kvt_feed_type */
	uint32_t n;    /* STORED, REMOVED, LASTING: pages. SIDE: sides. USED: reused pages */
	uint64_t seq;  /* of the effect, as in completions; 0: of a snapshot */
	uint32_t parent; /* STORED: page in front of the first, 0 at a root. USED: the last page */
	uint32_t namespace_id; /* NAMESPACE; STORED with parent 0 */
	uint32_t sealer;       /* STORED: number of the session, kvt_info.sealer */
	uint32_t ends;         /* STORED: 1 if the pages have a time to live */
	uint64_t root_key;     /* STORED with parent 0 */
	uint64_t digest[2];    /* NAMESPACE */
	uint64_t epoch;        /* CLEARED: the new one */
	const uint32_t *pages; /* STORED, REMOVED, LASTING */
	const uint32_t *keys;  /* STORED: n * page_size */
	const struct kvt_feed_side *sides; /* SIDE */
};

/** Subscribe: records of effects from now on. A client has one feed at a time.
 *
 * @ret_feed  owned by the caller, freed by kvt_feed_close() before the client is closed.
 * Errors: -EACCES arena_visible = no, -ENOTSUP feed_bytes = 0, -EALREADY it has one, -ENOMEM,
 * -ECONNRESET. */
int kvt_feed_open(struct kvt_client *client, struct kvt_feed **ret_feed);

/** Take the next record. Its pointers are valid until the next call. Never waits: poll each
 * millisecond while records come, and up to every 20 ms while none do.
 *
 * Returns 1; 0: none now. -EOVERFLOW: records were lost; the feed continues with those of now on,
 * take a snapshot. -ECONNRESET: the daemon of this feed is gone, or has ended it because
 * `arena_visible` became no. If a successor has the session, close the feed, open another and take
 * a snapshot. -EPROTO: no record. */
int kvt_feed_next(struct kvt_feed *feed, struct kvt_feed_record *ret_record);

/** Read which pages are cached, without the daemon. The next calls of kvt_feed_next() give it as
 * records with seq 0: NAMESPACE, then STORED, parents before children, then SIDE; behind them come
 * the changes since. Forget what was known before.
 *
 * Exact: the records of the snapshot are the pages that a reader of all records would know with
 * their whole paths at one place of the feed, and the records behind it begin there. Keeps all keys
 * until the records are taken.
 * Errors: -EOVERFLOW the ring is overtaken while the arena is read: raise feed_bytes; -ETIMEDOUT
 * the daemon was stopped while it changed the tree; -ENOMEM, -ECONNRESET, -EPROTO. */
int kvt_feed_snapshot(struct kvt_feed *feed);

/** Unsubscribe and free. Also right after any error, and in a forked child. */
void kvt_feed_close(struct kvt_feed *feed);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
