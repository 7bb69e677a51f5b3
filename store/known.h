/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_KNOWN_H
#define KVT_STORE_KNOWN_H

/**
 * @file known.h
 * The content of a pool, as its feed tells: the name of each cached page, and the pages to copy.
 *
 * `changes` of a page rises with each record that names it. A copy is good if all records were
 * taken after it, the page is cached, and `changes` is as before: then the page stayed cached.
 *
 * The queue is bounded and in the order of the feed. When it is full, new pages are not queued but
 * counted. Once it is empty, a sweep over all pages finds those that are still cached. So a store
 * that starts beside a warm pool copies all of it, however short its queue is.
 *
 * A page with a time to live is not copied: a copy would outlive it. When that is lifted, it is
 * queued.
 *
 * After a drop of the store no page is copied that was cached before, until it is stored again. Nor
 * are pages of a snapshot: it does not tell when they were cached.
 *
 * A side page is a page with a name of its own, and is copied like others. Its `parent` is the main
 * page that it hangs on, and `sides` names it there as long as both are cached.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_feed.h"
#include "store/chain.h"

struct kvt_known_page {
	struct kvt_chain chain; /* its name, if it is cached */
	uint32_t parent; /* page in front of it, 0: a root page; of a side page: its main page */
	uint32_t changes;
	uint32_t round; /* that of struct kvt_known: it is cached */
	bool is_side;
	bool ends; /* it has a time to live, which a copy would outlive */
	bool old;  /* cached before all pages of the store were dropped: it is not copied */
	bool computed; /* by a client, and not counted yet */
};

struct kvt_queued {
	uint32_t page;
	uint32_t changes; /* of the page when it was queued */
};

struct kvt_known {
	struct kvt_info info;
	struct kvt_known_page *pages;
	uint32_t round; /* rises when all pages are forgotten */
	bool outdated;  /* what a snapshot tells may be from before a drop: it is old */
	uint32_t *sides; /* of each page info.n_sides side pages, 0: none */
	uint64_t (*digests)[2]; /* of namespaces, by number */
	uint32_t n_digests;
	struct kvt_queued *queue;
	uint32_t queue_pages; /* room */
	uint32_t queue_at, n_queued;
	uint32_t sweep_at; /* next page of the sweep; info.n_pages: there is none */
	uint64_t dropped; /* pages that found the queue full */
};

/** Know nothing yet. queue_pages 0: no page is copied. -ENOMEM. */
int kvt_known_init(struct kvt_known *known, const struct kvt_info *info, uint32_t queue_pages);
void kvt_known_destroy(struct kvt_known *known);

/** Take a record of the feed. -ENOMEM, -EPROTO: no number of a namespace. */
int kvt_known_take(struct kvt_known *known, const struct kvt_feed_record *record);
/** Forget all pages, at once: a snapshot follows. */
void kvt_known_forget(struct kvt_known *known);
/** Copy no page that is cached now, unless it is stored again. */
void kvt_known_keep_out(struct kvt_known *known);

/** Take the next page to copy, which is cached and was not stored again. 0: none. *ret_swept: the
 * sweep found it, so it may have been copied long ago. */
uint32_t kvt_known_next(struct kvt_known *known, bool *ret_swept);

/** Queue a page, if it may be copied, behind the others; one that was taken comes again. */
void kvt_known_queue(struct kvt_known *known, uint32_t page);

/** The name of a cached page, NULL: it is not cached, or there is no such page. */
const struct kvt_chain *kvt_known_name(const struct kvt_known *known, uint32_t page);
/** True if a page is cached, and may be copied. */
bool kvt_known_copyable(const struct kvt_known *known, uint32_t page);
/** The page with this name, 0: none that is cached. Looks at all. */
uint32_t kvt_known_find(const struct kvt_known *known, const struct kvt_chain *name);
/** Forget all pages behind one that was removed, which no request finds: while leases hold them no
 * record names them. -ENOMEM: nothing happened. */
int kvt_known_lose_behind(struct kvt_known *known);
/** True if a page that had so many `changes` has been cached since. */
bool kvt_known_stayed(const struct kvt_known *known, uint32_t page, uint32_t changes);
/** The side page of a kind of a main page, 0: none that is cached. */
uint32_t kvt_known_side(const struct kvt_known *known, uint32_t page, uint32_t kind);

#endif
