/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_SNAPSHOT_H
#define KVT_CLIENT_SNAPSHOT_H

/**
 * @file snapshot.h
 * Which pages are cached, read from the arena while the daemon changes it.
 *
 *   1. Note the feed's tail, T0.
 *   2. For each page, read its record; if it is cached, also the keys at its slot; then the record
 *      again: if it has changed, once more. A page without a slot is a side page of its `parent`.
 *   3. Read the nodes under their versions: whether their pages have a time to live; namespace
 *      and root key of those that begin a path.
 *      Leave out the first pages of detached subtrees, those on a detached root included, and of
 *      nodes from before the last RESET.
 *   4. Wait until the mutation that runs now, if any, has ended. Load the tail, T1.
 *   5. Apply the records from T0 to T1. If pages without a node from 3 are left, go to 3: a
 *      split or a merge moved them meanwhile.
 *
 * The result is the pages cached at T1. Proof:
 *
 *   - A page's parent, keys, namespace and root key are constant while it is cached. It has a time
 *     to live from its beginning, or never.
 *   - Each change of whether it is cached, and that its time to live is lifted, has a record,
 *     stored before its mutation ends.
 *   - (a) Changes before T0 are visible in 2: the tail is loaded with acquire.
 *   - (b) Changes that 2 or 3 saw are of mutations that have ended in 4: their records are
 *     before T1.
 *   - So a page without a record in (T0, T1] was read as it was all the time. For the others the
 *     last record decides.
 *   - A compaction moves keys to another slot and changes `slot` first. The old slot is reused in a
 *     later mutation only, so a reader of other keys sees another record.
 *   - What 3 leaves out has a record, too: REMOVED when the subtree was detached, CLEARED at RESET.
 *     The rest of the path is left out with it, because the page in front is not there. That page
 *     is the last one of the subtree to be reclaimed, so until then its number has no other use.
 *   - A namespace's digest is constant while its number is in use, and NAMESPACE tells a new one.
 *
 * Walking the nodes instead would be wrong: a merge can move a run from a node that was not read
 * yet to one that was.
 */

#include <stdbool.h>
#include <stdint.h>

#include "libclient/feed_reader.h"
#include "shm/arena.h"

enum kvt_snapshot_life {
	KVT_LIFE_UNKNOWN = 0, /* its node was not found yet */
	KVT_LIFE_LASTS,
	KVT_LIFE_ENDS,
};

struct kvt_snapshot_page {
	uint32_t state; /* enum kvt_page_state: CACHED, SIDE, else 0 */
	uint32_t parent;
	uint32_t sealer;
	uint32_t namespace_id; /* of a root page, 0: not found yet */
	uint64_t root_key;
	uint32_t kind; /* of a side page */
	enum kvt_snapshot_life life; /* of a page that is CACHED */
	bool given;    /* by kvt_snapshot_next() */
};

struct kvt_snapshot_namespace {
	uint64_t digest[2];
	bool used;
};

enum kvt_snapshot_phase {
	KVT_SNAPSHOT_NAMESPACES = 0,
	KVT_SNAPSHOT_PAGES,
	KVT_SNAPSHOT_NODES,
	KVT_SNAPSHOT_SETTLE, /* a mutation runs that may have been seen half done */
	KVT_SNAPSHOT_APPLY,
	KVT_SNAPSHOT_READY,
};

struct kvt_snapshot {
	const struct kvt_arena_view *view;
	struct kvt_feed_reader *reader;
	enum kvt_snapshot_phase phase;
	uint32_t at;        /* next page or node to read, or namespace or page to give */
	uint64_t mutation;  /* SETTLE: the one that ran */
	uint64_t until;     /* APPLY: T1 */
	uint32_t n_open; /* cached pages without a life, root pages without a namespace */
	uint32_t rounds; /* of looking for those */
	uint64_t epoch;      /* of the arena at T0, or later */
	struct kvt_snapshot_namespace *namespaces;
	struct kvt_snapshot_page *pages;
	uint32_t *keys;  /* [page][page_size] */
	uint32_t *chain; /* pages of a path that wait for their turn, the last one first */
	uint32_t n_chain;
	enum kvt_feed_type giving;
};

/** Prepare memory, which is touched as pages are found. -ENOMEM. */
int kvt_snapshot_init(struct kvt_snapshot *snapshot, const struct kvt_arena_view *view,
		      struct kvt_feed_reader *reader);
void kvt_snapshot_destroy(struct kvt_snapshot *snapshot);

/** Do about `steps` small steps, each for a page, a node or a record. Returns 1 when it is ready;
 * 0: call again; -EOVERFLOW: the feed was overtaken, and the snapshot begins again with the next
 * call; -EPROTO: what the arena or the feed says cannot be. */
int kvt_snapshot_step(struct kvt_snapshot *snapshot, uint32_t steps);

/** Give the next record of a ready snapshot, built in the reader's copy. 1; 0: there are no more;
 * -EPROTO: pages contradict each other. */
int kvt_snapshot_next(struct kvt_snapshot *snapshot, struct kvt_feed_record *ret_record);

#endif
