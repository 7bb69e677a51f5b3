/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_MODEL_H
#define KVT_LAB_ORACLE_MODEL_H

/**
 * @file model.h
 * Inside of the oracle: the model's objects and the steps on them.
 *
 * The model is meant to be read and believed. A node owns its keys and pages as plain arrays,
 * children are a list that is searched from the front, victims are found by looking at every node,
 * and page counters are recounted from the nodes after each record. Only three sums are kept as
 * they change (pages by state, locks of a node, private pages of a session), and
 * kvt_oracle_check() recounts those, too.
 *
 * Steps return 0, or -EBADMSG after oracle_fail() has written down what was expected.
 */

#include <stdarg.h>
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

#define TRY(step)                                                                                 \
	do {                                                                                      \
		int try_result = (step);                                                          \
		if (try_result != 0)                                                              \
			return try_result;                                                        \
	} while (0)

/** Returned by a step that refused the operation. Not a mismatch; the record is done. */
#define MODEL_REFUSED 1

int oracle_fail(struct kvt_oracle *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int oracle_expect(struct kvt_oracle *o, const char *what, uint64_t want, uint64_t got);
void *oracle_room(void *array, uint32_t *room, uint64_t want, size_t bytes);

/* ---- model.c: nodes, pages, walks ---- */

struct model_node *model_node(const struct kvt_oracle *o, uint32_t id); /* NULL if not in use */
uint32_t model_end(const struct model_node *node);
uint32_t model_root(const struct kvt_oracle *o, uint32_t namespace_id);

int model_node_take(struct kvt_oracle *o, uint32_t id, struct model_node **ret_node);
/** `heir`: the node that has what is left of its path, 0 if none has. */
void model_node_drop(struct kvt_oracle *o, struct model_node *node, uint32_t heir);
/** Let older handles of a node name at most `pages` pages of its path. */
void model_keep(struct kvt_oracle *o, uint32_t id, uint32_t pages);
/** At a restart what was left of older handles is forgotten. */
void model_forget_remains(struct kvt_oracle *o);
bool model_node_reserve(struct model_node *node, uint32_t n, uint32_t page_size);
bool model_child_add(struct model_node *parent, uint32_t child);
void model_child_remove(struct model_node *parent, uint32_t child);

void model_page_set(struct kvt_oracle *o, uint32_t page, uint32_t state, uint32_t session,
		    uint32_t lease);
void model_page_cache(struct kvt_oracle *o, uint32_t page, uint32_t node);

struct model_walk {
	uint32_t named;   /* pages before where it began, as a start handle names them */
	uint32_t node;    /* deepest node that holds a walked page; the root, or 0, if none does */
	uint32_t pages;   /* walked: equal keys, sealed or not; counted from the root */
	uint32_t matched; /* of those, leading sealed ones */
	uint32_t matched_node; /* deepest node that holds a matched page, 0 if none does */
};
/** Walk `n_pages` pages of keys down from page `from_pages`, which lies in, or at the end of,
 * `from`; from a root under `root_key`. */
void model_walk(const struct kvt_oracle *o, uint32_t from, uint32_t from_pages, uint64_t root_key,
		const uint32_t *keys, uint32_t n_pages, struct model_walk *ret_walk);
/** Fill o->path with the nodes from the root (or detached top) to `node`. */
int model_path(struct kvt_oracle *o, uint32_t node);
/** Return the node that covers page `page`, given any node at or below it. */
struct model_node *model_covering(const struct kvt_oracle *o, uint32_t node, uint32_t page);
uint32_t model_page_at(const struct kvt_oracle *o, uint32_t node, uint32_t page);

/** Count the side pages of a page. */
uint32_t model_sides(const struct kvt_oracle *o, uint32_t page);
/** Count the first `pages` sealed pages of a node, and their side pages. */
uint32_t model_weight(const struct kvt_oracle *o, const struct model_node *node, uint32_t pages);
/** The most of the first `pages` pages of the path to `node` whose last ones have all sides that a
 * reader needs. */
uint32_t model_usable(const struct kvt_oracle *o, uint32_t node, uint32_t pages);
/** The side page that was let go first, 0: none was. */
uint32_t model_first_let(const struct kvt_oracle *o);
/** Count the side pages that were let go in a namespace; 0: in all. */
uint32_t model_count_let(const struct kvt_oracle *o, uint32_t namespace_id);
/** Hold all that a lease let go; lease 0: that any lease did. */
void model_hold(struct kvt_oracle *o, uint32_t lease);
void model_touch(struct kvt_oracle *o, uint32_t node);
/* RESET detaches all roots at once, without events. */
void model_detach(struct kvt_oracle *o, struct model_node *node, uint32_t why);
void model_lock(struct kvt_oracle *o, uint32_t node, uint32_t stop);
/** Hold what a lease let go and unlock its path, which touches it. */
void model_unlock(struct kvt_oracle *o, struct model_lease *lease);
void model_count_use(struct kvt_oracle *o, uint32_t node);
/** Mark a path as the operation's own: this operation may evict nothing on it. */
void model_own(struct kvt_oracle *o, uint32_t node);
uint64_t model_evictable(const struct kvt_oracle *o);
/** Count the sealed pages in unlocked nodes on the first `pages` pages of the path to `node`. */
uint32_t model_unlocked_on_path(const struct kvt_oracle *o, uint32_t node, uint32_t pages);
void model_namespace_settle(struct kvt_oracle *o, uint32_t namespace_id);

/* ---- events.c ---- */

#define EVENT_BIT(kind) (1u << (kind))
/** Follow events as long as their kinds are in `mask`. */
int events_follow(struct kvt_oracle *o, uint32_t mask);
/** Check that all events and out pages were followed. */
int events_done(struct kvt_oracle *o);
/** Check that the next page that left the cache is this one, and free it. */
int events_page_out(struct kvt_oracle *o, uint32_t page);

/* ---- ops.c, session.c ---- */

int ops_apply(struct kvt_oracle *o);   /* OP */
int admin_apply(struct kvt_oracle *o); /* ADMIN */
int ops_defer(struct kvt_oracle *o);     /* DEFER */
int session_apply(struct kvt_oracle *o); /* all other kinds */
int session_close(struct kvt_oracle *o); /* the effect of CLOSE */
int session_leave(struct kvt_oracle *o); /* of LEAVE */
/** Check that the namespace that is emptied for another one is the right one. */
int session_check_recycled(struct kvt_oracle *o);

/* ---- lease.c ---- */

int lease_find(struct kvt_oracle *o, bool effect, struct model_lease **ret_lease);
int lease_make(struct kvt_oracle *o, uint32_t kind, uint32_t node, struct model_lease **ret);
void lease_drop(struct kvt_oracle *o, uint32_t index);
int lease_begin(struct kvt_oracle *o);
int lease_commit(struct kvt_oracle *o);
int lease_extend(struct kvt_oracle *o);
int lease_end(struct kvt_oracle *o);
void lease_count_use(struct kvt_oracle *o, struct model_lease *lease);
/** Unlock a lease's path and cut unsealed tails. */
int lease_unlock(struct kvt_oracle *o, struct model_lease *lease);
/** Free all private pages of a lease. Returns their number. */
uint32_t lease_free_pages(struct kvt_oracle *o, uint32_t index);

/* ---- run.c ---- */

int run_refuse(struct kvt_oracle *o, int result, uint32_t reason, uint64_t number);
/* Refuse n pages when only `available` can be supplied. */
int run_no_room(struct kvt_oracle *o, uint32_t n, uint64_t available);
int run_need_list(struct kvt_oracle *o, uint64_t words);
int run_want(struct kvt_oracle *o, uint32_t word);
/** Announce that the operation may need up to `most_nodes` nodes. How a run fragments is the core's
 * choice, so -ENOSPC for nodes is accepted if it is possible. */
int run_need_nodes(struct kvt_oracle *o, uint64_t most_nodes);
int run_need_lease(struct kvt_oracle *o);
/* Check the session's quota. `locked`: pages of the path that were evictable until now. */
int run_need_quota(struct kvt_oracle *o, uint64_t pages, uint64_t locked);
/** Refuse pages of a list that are not the session's own, in no lease and different. Accepted, too:
 * page i if it is twins[i]. */
int run_need_pages(struct kvt_oracle *o, const uint32_t *pages, uint32_t n, const uint32_t *twins,
		   uint32_t n_twins);
/** Decide how many of n new pages OWN_STREAM takes from leases that end; `locked`: as below. */
void run_take_own(struct kvt_oracle *o, uint64_t n, uint64_t locked);
/** Check that the session may have n private pages and list them, and follow the evictions. */
int run_need_private(struct kvt_oracle *o, uint32_t n);
/** Put pages [0, n) of the path to `node` into the wanted list. */
int run_want_path(struct kvt_oracle *o, uint32_t node, uint32_t n);
void run_want_handle(struct kvt_oracle *o, uint32_t node, uint64_t positions);
uint64_t model_available(const struct kvt_oracle *o);
/** Take the page at place `at` of the record's list: the first `own` ones from leases of the
 * session that end, the others were free. */
int run_fresh_page(struct kvt_oracle *o, uint32_t at, uint32_t *ret_page);
/** True if the session may have n more private pages: quota, room. `locked`: as above. */
bool run_may_have(struct kvt_oracle *o, uint32_t n, uint64_t locked);
/** Check the entry's handle. *ret_node: the shallowest node that covers its *ret_pages pages: all,
 * or with SHORTER those that are left. */
int run_handle(struct kvt_oracle *o, uint32_t *ret_node, uint32_t *ret_pages);
/** Walk the entry's whole pages of keys from the root of its namespace, or behind its start handle.
 * Without caching none is walked. */
int run_walk(struct kvt_oracle *o, struct model_walk *ret_walk);
/** Check that the path ends at exactly `target`. */
int run_check_path(struct kvt_oracle *o);

/* ---- wait.c ---- */

/** Check that this record passes over no ready waiter. */
int wait_check_order(struct kvt_oracle *o);
/** Follow the DEFER of a BEGIN. */
int wait_defer(struct kvt_oracle *o);
/** Decide after a BEGIN's walk, under WAIT or NO_WAIT, if it must wait or may run. */
int wait_begin(struct kvt_oracle *o, const struct model_walk *walk);
/* True if a BEGIN shall not reuse so few pages: below its minimum, and not all of its prompt. */
bool wait_too_short(const struct kvt_oracle *o, uint32_t pages);
/** Follow the second completion of a BEGIN with NO_WAIT. */
int wait_notice(struct kvt_oracle *o);
int wait_cancel(struct kvt_oracle *o);
/** Count a finished wait. */
void wait_end(struct kvt_oracle *o);
/* A lease has sealed pages. */
void wait_sealed(struct kvt_oracle *o, struct model_lease *lease);

/* ---- check.c ---- */
int check_counters(struct kvt_oracle *o);
int check_settled(struct kvt_oracle *o);

#endif
