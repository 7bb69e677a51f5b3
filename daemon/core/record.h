/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_RECORD_H
#define KVT_RECORD_H

/**
 * @file record.h
 * One effect of the core, as the operation log, the simulation and the oracle see it.
 *
 * Every change of state is exactly one record with its own seq. The change is an operation that
 * took effect or was refused, one that began to wait for its fence, or a step of background work. A
 * record has inputs (entry, keys, pages) and outputs (completion, list). Then come the structural
 * events in order, the pages that left the cache, and the counters. A model with the same
 * configuration that applies the records in order must get the same results. Only *where* runs are
 * placed and joined is the core's choice. A checker takes NEW, GROW, SPLIT and MERGE from the
 * events, checks that they are allowed, and predicts everything else.
 */

#include <stdint.h>

#include "kvtrunk_wire_operations.h"

enum kvt_record_kind {
	KVT_REC_OP = 1,        /* sqe was executed: result in cqe (also refusals) */
	KVT_REC_DEFER = 2,     /* sqe waits for its fence: nothing changed, but an END, UNLOCK or
				  CLOSE makes its lease or session refuse new operations. A BEGIN
				  waits for the lease in cqe, until cqe.begin.matched positions of
				  its path match; with value != 0 it has waited since that seq, for
				  another one (or was just answered -EAGAIN: NO_WAIT) */
	KVT_REC_SESSION = 3,   /* a session opened: session; value = uid << 32 | privileged */
	KVT_REC_SIGN = 4,      /* signs reported for session: value = signs (enum), 0 = killed */
	KVT_REC_NAMESPACE = 5, /* session opened a namespace: value = number | limit << 32, keys =
				  digest; 0: refused for max_namespaces, or the session's part of
				  it. Session 0: a limit changed at a restart; no keys */
	KVT_REC_LEASE_LOST = 6, /* a dead session's lease lost its lock: value = lease index */
	KVT_REC_QUARANTINE = 7, /* pages (in list) of a dead session went to quarantine */
	KVT_REC_RELEASE = 8,   /* pages (in list) left quarantine and are free */
	KVT_REC_SESSION_GONE = 9, /* the session's record is free again, its namespaces closed */
	KVT_REC_EXPIRE = 10,   /* events hold one DETACH */
	KVT_REC_RECLAIM = 11,  /* detached nodes given back: TRIM and FREE events */
	KVT_REC_COMPACT = 12,  /* MERGE events */
	KVT_REC_ADMIN = 13,    /* EVICT, RESET or REMOVE by the operator: sqe.op says which. With a
				  session: the REMOVE empties a namespace, for one that it opens.
				  Value: enum kvt_evict_inside */
	KVT_REC_DRAIN = 14,    /* value 1: from here on operations that would begin a lease are
				  refused, 0: no more */
	KVT_REC_ADOPT = 15,    /* a successor took over here: value 1 if it rolled back an
				  unfinished effect. Records of its seq or later before it, in
				  a log that outlives daemons, tell of that effect: skip them */
	KVT_REC_KINDS = 16,
};

/** An EVICT for the BEGIN that follows: how its match, the path to sqe.node, is treated. */
enum kvt_evict_inside {
	KVT_EVICT_OUTSIDE = 0, /* no BEGIN follows */
	KVT_EVICT_LAST = 1,    /* for want of room: the match goes after all else */
	KVT_EVICT_ALONE = 2,   /* for want of quota: only the end of the match goes */
};

enum kvt_event_kind {
	KVT_EV_ROOT = 1,   /* node = new root of namespace `other` */
	KVT_EV_NEW = 2,    /* node = new child of `other` with n announced pages, none sealed */
	KVT_EV_GROW = 3,   /* node got n more announced pages at its end */
	KVT_EV_SPLIT = 4,  /* node kept its lower part; `other` = new upper node with n pages */
	KVT_EV_MERGE = 5,  /* node took over the run of its parent `other`, which is gone: in
			      COMPACT, and behind all else in END and UNLOCK */
	KVT_EV_TRIM = 6,   /* node lost its last n pages to eviction or reclaim (pages in `out`,
			      last page first, each followed by its side pages by kind) */
	KVT_EV_CUT = 7,    /* node lost its unsealed tail of n pages */
	KVT_EV_FREE = 8,   /* node is gone: it had no pages left (roots: no children) */
	KVT_EV_DETACH = 9, /* node is the top of a detached subtree from now on */
	KVT_EV_RAISE = 10, /* ADOPT: the generation of node, free or not, is `other` from now on:
			      clients may have seen what was rolled back */
	KVT_EV_SIDE = 11,  /* node lost the side page `other`, of which its lease had let go, to
			      eviction (it is in `out`) */
	KVT_EV_KINDS = 12,
};

struct kvt_event {
	uint32_t kind; /* enum kvt_event_kind */
	uint32_t node;
	uint32_t other;
	uint32_t n;
};

struct kvt_record {
	uint32_t kind; /* enum kvt_record_kind */
	uint32_t session;
	uint64_t seq;
	uint64_t now_ns;
	uint64_t value; /* number by kind; OP of a deferred one: seq of its DEFER record */
	struct kvt_sqe sqe; /* OP, DEFER, ADMIN */
	struct kvt_cqe cqe; /* OP, ADMIN */
	const uint32_t *keys; /* OP, DEFER of BEGIN: the entry's keys (FREE: pages), all of them */
	uint32_t n_keys;
	uint32_t n_pages;
	uint64_t root_key; /* with KVT_F_ROOT_KEY */
	const uint32_t *pages; /* INSERT: page numbers given. COMMIT with SIDES: places and pages */
	const uint32_t *list;  /* words that the operation wrote into the list area */
	const struct kvt_event *events;
	const uint32_t *out; /* pages that left the cache for FREE, in order: for TRIM events, each
				followed by its side pages, for SIDE events, and then those that
				COMMIT dropped */
	uint32_t n_list;
	uint32_t n_events;
	uint32_t n_out;
	/* For MATCH, BEGIN, INSERT, REMOVE: before the operation the first `known_positions` keys
	 * stood on the path to `known_node` (announced ones included): a log leaves them out. */
	uint32_t known_node;
	uint32_t known_positions;
	uint32_t reserved;
	struct kvt_counters counters; /* counters after the effect */
};

#endif
