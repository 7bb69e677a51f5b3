/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_STATE_H
#define KVT_LAB_ORACLE_STATE_H

/**
 * @file state.h
 * Inside of the oracle: the model's objects. Each file declares its steps in its own header.
 *
 * The model is meant to be read and believed. A node owns its keys and pages as plain arrays,
 * children are a list that is searched from the front, victims are found by looking at every node,
 * and page counters are recounted from the nodes after each record. Only three sums are kept as
 * they change (pages by state, locks of a node, private pages of a session), and
 * kvt_oracle_check() recounts those, too.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire_counts.h"
#include "lab/oracle/oracle.h"

struct model_node {
	uint32_t id;
	uint32_t parent; /* 0: a root, or the unlocked top of a detached subtree */
	uint32_t namespace_id;
	uint32_t generation;
	bool root;
	uint64_t root_key; /* of its path */
	bool detached; /* this node or an ancestor was detached */
	uint32_t why;  /* then: one of KVT_NODE_WHY */
	bool damaged;  /* and this is the top, whose first page is not as it was sealed */
	bool top;      /* this node was: `parent` only leads its locks up */
	uint32_t start; /* pages above the node */
	uint32_t n;
	uint32_t sealed;
	uint32_t locks;
	uint32_t uses;
	int32_t priority;
	uint64_t touched;
	uint64_t touched_ns;
	uint64_t created;
	uint64_t expiry_ns;
	uint64_t own; /* == oracle.stamp: on the path of the operation that runs */
	uint32_t live_at; /* place in oracle.live */
	uint32_t *keys;  /* n * page_size */
	uint32_t *pages; /* n, the first `sealed` are meaningful */
	uint32_t room;   /* pages that the two arrays have room for */
	uint32_t *children;
	uint32_t n_children;
	uint32_t children_room;
};

/* What handles of a node, or of the node that last had its id, still name. */
struct model_remains {
	uint32_t born; /* their first generation */
	uint32_t left; /* pages of the path that were never trimmed */
	uint32_t heir; /* of a free id: the node that has them; 0: none */
};

struct model_page {
	uint32_t state; /* enum kvt_page_state */
	uint32_t session; /* PRIVATE, QUARANTINE */
	uint32_t lease;   /* PRIVATE: index or 0 */
	uint32_t node;    /* CACHED */
	uint64_t sealer;  /* CACHED: `number` of the session that sealed it */
	uint32_t sides[KVT_MAX_SIDES]; /* CACHED in a node: side pages, by kind */
	uint32_t main;    /* CACHED as a side page: the page that it hangs on */
	uint32_t let;     /* then: the lease that let it go, so it can be evicted; 0: none */
	uint64_t let_at;  /* logical time of that */
	uint64_t let_order; /* place among all that were let go */
	bool kept;        /* displaced under KEEP: the lease's, not in its table */
};

enum model_lease_kind {
	MODEL_LEASE_FREE = 0,
	MODEL_LEASE_MATCH, /* only a lock */
	MODEL_LEASE_BEGIN, /* a sequence */
};

struct model_lease {
	enum model_lease_kind kind;
	uint32_t generation;
	uint32_t session;
	uint32_t namespace_id;
	uint64_t root_key;
	uint32_t node; /* deepest locked node or 0 */
	bool counted, force_miss, ending, late;
	bool bare; /* NO_PAGES, and without a page so far: it computes nothing */
	bool alone; /* too short to share */
	uint32_t point; /* pages in front of a declared point, not reached yet; 0: none */
	uint64_t sealed_ns; /* its BEGIN or last seal */
	uint64_t gap_us;    /* the longest between two of these */
	uint64_t epoch;
	uint64_t order; /* of creation, among all leases */
	uint32_t known;    /* positions */
	uint32_t computed; /* highest `next` */
	uint32_t done;     /* leading table entries that are cached */
	uint32_t *table;
	uint32_t n_table;
	uint32_t table_room;
	uint32_t n_kept;
	uint32_t tail[KVT_MAX_PAGE_SIZE]; /* the known % page_size last keys */
};

struct model_pending {
	uint64_t seq; /* of its DEFER record */
	uint32_t session;
	uint32_t lease; /* 0: names none */
	struct kvt_sqe sqe;
	uint64_t since; /* daemons that had ended when it was deferred */
	/* A BEGIN that waits for other leases' pages: */
	bool waits;
	uint64_t deadline_ns, begun_ns;
	uint32_t owner;         /* session of the awaited lease, and */
	uint64_t owner_number;  /* its `number` */
	uint32_t matched;             /* pages, when it began to wait */
	bool for_point;               /* the goal is a declared point; `matched` could be used */
	uint32_t awaited, generation; /* the lease; 0: its answer is due */
	uint32_t goal;                /* its path's pages that this BEGIN needs */
};

struct model_session {
	uint32_t state; /* enum kvt_session_state */
	uint32_t signs;
	bool closed; /* its CLOSE took effect */
	bool privileged;
	uint32_t uid;
	uint32_t in_vain_ms; /* when others waited in vain for it; 0: never */
	uint64_t number; /* of all sessions so far */
	uint64_t since;  /* daemons that had ended when its last entry was taken */
	uint32_t n_private;
	uint32_t n_quarantined;
	uint32_t n_leases;
	struct kvt_tally tally;
	uint8_t *opened; /* by namespace number */
};

struct model_namespace {
	bool used;
	uint64_t digest[2];
	uint32_t root;
	uint32_t opened;
	uint32_t limit; /* of cached pages, 0: none */
	struct kvt_tally tally;
};

/** The operation of the current record. */
struct model_run {
	const struct kvt_record *record;
	uint32_t namespace_id; /* of its entry or its lease; 0: none */
	uint32_t event; /* the next one to follow */
	uint32_t out;   /* the next page of record.out */
	struct kvt_cqe want;
	uint32_t *want_list; /* 0 stands for any page that was FREE */
	uint32_t n_want;
	uint32_t want_room;
	/* The path under construction: pages [0, reached) exist, `cursor` holds the last. */
	uint32_t cursor;
	uint32_t reached;
	uint32_t target;      /* pages of the finished path */
	const uint32_t *keys; /* of page `base` on */
	uint32_t base;
	uint64_t root_key;    /* with which they stand below a root */
	uint32_t split_at;    /* the only allowed SPLIT; UINT32_MAX: none */
	int32_t priority;     /* of new nodes */
	uint64_t expiry_ns;
	uint64_t tick;        /* the logical time of this operation */
	uint32_t grow_node;   /* GROW may lengthen it; 0: none */
	uint32_t has_now; /* pages of a waiter's goal that are there when its wait ends */
	bool gained; /* the waiter matches more than when it began to wait */
	uint32_t own, own_taken; /* pages that it takes from leases that end, and has taken */
	uint64_t need_pages;  /* free pages that the operation wants to see */
	bool path_alone;      /* they come from the end of the operation's path */
	uint64_t most_nodes;  /* free nodes that it may require: runs can fragment */
	uint32_t evicted;     /* evicted by TRIM */
	uint32_t sealed, duplicates, advanced;
	uint32_t kept_pages, kept_node; /* END: cached pages of its path, the last one's node */
	uint64_t since; /* daemons that had ended when it could first run */
	struct model_pending waiter; /* the waiting BEGIN that takes effect */
};

struct kvt_oracle {
	struct kvt_core_config config;
	uint64_t seq, clock, epoch, stamp, lease_order, session_numbers, let_order;
	uint64_t n_adopted; /* daemons that ended and had a successor */
	bool draining;
	struct model_node **nodes; /* by id */
	uint32_t *live;            /* ids in use, in no order */
	uint32_t n_live;
	uint32_t *free_ids; /* first in, first out; a ring of max_nodes */
	uint32_t free_head, n_free_ids;
	uint32_t *generations; /* by id */
	struct model_remains *remains; /* by id */
	struct model_page *pages;
	uint64_t in_state[KVT_PAGE_SCRATCH + 1];
	struct model_lease *leases;
	uint32_t *free_leases; /* first in, first out; a ring of n_leases */
	uint32_t free_lease, n_free_leases;
	struct model_session *sessions;
	struct model_namespace *namespaces;
	uint64_t refused[KVT_REFUSAL_COUNT];
	uint32_t n_sessions, n_namespaces; /* in use */
	struct model_pending *pending;
	uint32_t n_pending, pending_room;
	bool expired;      /* the record before was an EXPIRE, or an EVICT for a BEGIN */
	uint32_t canceled; /* this session had a BEGIN canceled: its CLOSE must follow */
	struct kvt_counters counters; /* the monotonic ones; the others are recounted */
	struct model_run run;
	uint32_t *scratch; /* keys of a COMMIT */
	uint32_t scratch_room;
	uint32_t *path; /* node ids, root first */
	uint32_t n_path, path_room;
	char *why;
	size_t why_bytes;
};

#endif
