/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_ORACLE_MODEL_H
#define KVT_ORACLE_MODEL_H

/**
 * @file oracle_model.h
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

#include "tools/oracle.h"

struct model_node {
	uint32_t id;
	uint32_t parent; /* 0: a root, or the unlocked top of a detached subtree */
	uint32_t namespace_id;
	uint32_t generation;
	bool root;
	bool detached; /* it or something above it was detached */
	bool top;      /* it was: `parent` is only the way that its locks go up */
	uint32_t start; /* pages above it on its path */
	uint32_t n;
	uint32_t sealed;
	uint32_t locks;
	uint32_t hits;
	int32_t priority;
	uint64_t touched;
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

struct model_page {
	uint32_t state; /* enum kvt_page_state */
	uint32_t session; /* PRIVATE, QUARANTINE */
	uint32_t lease;   /* PRIVATE: index or 0 */
	uint32_t node;    /* CACHED */
	bool kept;        /* displaced under KEEP: of the lease, but not in its table */
};

struct model_lease {
	uint32_t kind; /* enum kvt_lease_kind */
	uint32_t generation;
	uint32_t session;
	uint32_t namespace_id;
	uint32_t node; /* deepest locked node or 0 */
	bool counted, force_miss, ending, late;
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
	/* A BEGIN that waits for what others compute: */
	bool waits;
	uint64_t deadline_ns, begun_ns;
	uint32_t matched;             /* pages, when it began to wait */
	uint32_t awaited, generation; /* the lease that it waits for; 0: it is about to be told */
	uint32_t goal;                /* pages of that one's path that are its own */
};

struct model_session {
	uint32_t state; /* enum kvt_session_state */
	uint32_t signs;
	bool closed; /* its CLOSE took effect */
	bool privileged;
	uint32_t uid;
	uint32_t n_private;
	uint32_t n_quarantined;
	uint32_t n_leases;
	uint8_t *opened; /* by namespace number */
};

struct model_namespace {
	bool used;
	uint64_t digest[2];
	uint32_t root;
	uint32_t opened;
	uint32_t uid; /* of the session that made it */
};

/** What a record's operation is about while it is followed. */
struct model_run {
	const struct kvt_record *record;
	uint32_t event; /* the next one to follow */
	uint32_t out;   /* the next page of record.out */
	struct kvt_cqe want;
	uint32_t *want_list; /* 0 stands for any page that was FREE */
	uint32_t n_want;
	uint32_t want_room;
	/* The path that the operation builds: pages [0, reached) exist, `cursor` holds the last. */
	uint32_t cursor;
	uint32_t reached;
	uint32_t target;      /* pages that the path shall have */
	const uint32_t *keys; /* of page `base` on */
	uint32_t base;
	uint32_t split_at;    /* the only place where SPLIT is right, UINT32_MAX: nowhere */
	int32_t priority;     /* of new nodes */
	uint64_t expiry_ns;
	uint64_t tick;        /* the logical time of this operation */
	uint32_t grow_node;   /* the node that GROW may lengthen, 0: none */
	uint64_t need_pages;  /* free pages that the operation wants to see */
	uint64_t most_nodes;  /* nodes it may want to see free: runs can fall into pieces */
	uint32_t evicted;     /* pages that left the cache by TRIM */
	uint32_t sealed, duplicates, advanced;
	struct model_pending waiter; /* the BEGIN that waited and takes effect now */
};

struct kvt_oracle {
	struct kvt_oracle_config config;
	uint64_t seq, clock, epoch, stamp, lease_order;
	bool draining;
	struct model_node **nodes; /* by id */
	uint32_t *live;            /* ids in use, in no order */
	uint32_t n_live;
	uint32_t *free_ids; /* first in, first out; a ring of max_nodes */
	uint32_t free_head, n_free_ids;
	uint32_t *generations; /* by id */
	struct model_page *pages;
	uint64_t in_state[KVT_PAGE_SCRATCH + 1];
	struct model_lease *leases;
	uint32_t *free_leases; /* first in, first out; a ring of n_leases */
	uint32_t free_lease, n_free_leases;
	struct model_session *sessions;
	struct model_namespace *namespaces;
	struct model_pending *pending;
	uint32_t n_pending, pending_room;
	bool expired;      /* the record before was an EXPIRE */
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

/** A step that refuses the operation returns this: no mismatch, but nothing more to do. */
#define MODEL_REFUSED 1

int oracle_fail(struct kvt_oracle *o, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
int oracle_expect(struct kvt_oracle *o, const char *what, uint64_t want, uint64_t got);
void *oracle_room(void *array, uint32_t *room, uint64_t want, size_t bytes);

/* ---- model.c: nodes, pages, walks ---- */

struct model_node *model_node(const struct kvt_oracle *o, uint32_t id); /* NULL if not in use */
uint32_t model_end(const struct model_node *node);
uint32_t model_root(const struct kvt_oracle *o, uint32_t namespace_id);
uint32_t model_usable_nodes(const struct kvt_oracle *o);

int model_node_take(struct kvt_oracle *o, uint32_t id, struct model_node **ret_node);
void model_node_drop(struct kvt_oracle *o, struct model_node *node);
bool model_node_reserve(struct model_node *node, uint32_t n, uint32_t page_size);
bool model_child_add(struct model_node *parent, uint32_t child);
void model_child_remove(struct model_node *parent, uint32_t child);

void model_page_set(struct kvt_oracle *o, uint32_t page, uint32_t state, uint32_t session,
		    uint32_t lease);
void model_page_cache(struct kvt_oracle *o, uint32_t page, uint32_t node);

struct model_walk {
	uint32_t node;    /* deepest node that holds a walked page; the root, or 0, if none does */
	uint32_t pages;   /* walked: equal keys, sealed or not; counted from the root */
	uint32_t matched; /* of those, leading sealed ones */
	uint32_t matched_node; /* deepest node that holds a matched page, 0 if none does */
};
/** Follow `n_pages` pages of keys, from page `from_pages` on, which lies in (or at the end of)
 * `from`. */
void model_walk(const struct kvt_oracle *o, uint32_t from, uint32_t from_pages,
		const uint32_t *keys, uint32_t n_pages, struct model_walk *ret_walk);
/** o->path = the nodes from the root (or detached top) to `node`. */
int model_path(struct kvt_oracle *o, uint32_t node);
/** The node of a path that covers page `page`, given any node at or below it. */
struct model_node *model_covering(const struct kvt_oracle *o, uint32_t node, uint32_t page);
uint32_t model_page_at(const struct kvt_oracle *o, uint32_t node, uint32_t page);

void model_touch(struct kvt_oracle *o, uint32_t node);
/* RESET does it to all roots at once, without events. */
void model_detach(struct kvt_oracle *o, struct model_node *node);
void model_lock(struct kvt_oracle *o, uint32_t node, uint32_t stop);
/** Unlocking is a touch of the whole path. */
void model_unlock(struct kvt_oracle *o, uint32_t node);
void model_count_hit(struct kvt_oracle *o, uint32_t node);
/** Mark a path as the operation's own: nothing on it may be evicted by this operation. */
void model_own(struct kvt_oracle *o, uint32_t node);
uint64_t model_evictable(const struct kvt_oracle *o);
/** Sealed pages on the first `pages` pages of the path to `node` whose nodes are unlocked. */
uint32_t model_unlocked_on_path(const struct kvt_oracle *o, uint32_t node, uint32_t pages);
void model_namespace_settle(struct kvt_oracle *o, uint32_t namespace_id);

/* ---- events.c ---- */

#define EVENT_BIT(kind) (1u << (kind))
/** Follow events as long as their kinds are in `mask`. */
int events_follow(struct kvt_oracle *o, uint32_t mask);
/** All events and out pages were followed. */
int events_done(struct kvt_oracle *o);

/* ---- ops.c, lease.c, session.c ---- */

int ops_apply(struct kvt_oracle *o);   /* OP */
int admin_apply(struct kvt_oracle *o); /* ADMIN */
int ops_defer(struct kvt_oracle *o);     /* DEFER */
int session_apply(struct kvt_oracle *o); /* all other kinds */
int session_close(struct kvt_oracle *o); /* the effect of CLOSE */

int lease_find(struct kvt_oracle *o, bool effect, struct model_lease **ret_lease);
int lease_make(struct kvt_oracle *o, uint32_t kind, uint32_t node, struct model_lease **ret);
void lease_drop(struct kvt_oracle *o, uint32_t index);
int lease_begin(struct kvt_oracle *o);
int lease_commit(struct kvt_oracle *o);
int lease_extend(struct kvt_oracle *o);
int lease_end(struct kvt_oracle *o);
void lease_count_hit(struct kvt_oracle *o, struct model_lease *lease);
/** Unlock, with the cutting of tails that follows. */
int lease_unlock(struct kvt_oracle *o, struct model_lease *lease);
/** Give all private pages of a lease back; returns how many. */
uint32_t lease_free_pages(struct kvt_oracle *o, uint32_t index);

int run_refuse(struct kvt_oracle *o, int result, uint32_t reason, uint64_t a);
/* Refuse n pages of which `available` could be had. */
int run_no_room(struct kvt_oracle *o, uint32_t n, uint64_t available);
int run_need_list(struct kvt_oracle *o, uint64_t words);
int run_want(struct kvt_oracle *o, uint32_t word);
/** The operation may need up to `most_nodes` nodes. Into how many pieces a run falls is the core's
 * affair, so -ENOSPC for want of nodes is followed after a check that it is possible. */
int run_need_nodes(struct kvt_oracle *o, uint64_t most_nodes);
int run_need_lease(struct kvt_oracle *o);
int run_need_quota(struct kvt_oracle *o, uint64_t pages);
/** Pages [0, n) of the path to `node` into the wanted list. */
int run_want_path(struct kvt_oracle *o, uint32_t node, uint32_t n);
void run_want_handle(struct kvt_oracle *o, uint32_t node, uint64_t positions);
uint64_t model_available(const struct kvt_oracle *o);
/** The page that the record put at place `at` of the list, after a check that it is free. */
int run_fresh_page(struct kvt_oracle *o, uint32_t at, uint32_t *ret_page);
/** Where the operation's path ends now must be exactly `target`. */
int run_check_path(struct kvt_oracle *o);

/* ---- wait.c ---- */

/** No waiter that is ready may be passed over by this record. */
int wait_check_order(struct kvt_oracle *o);
/** DEFER of a BEGIN. */
int wait_defer(struct kvt_oracle *o);
/** A BEGIN with WAIT or NO_WAIT came as far as its walk: must it wait, might it go on? */
int wait_begin(struct kvt_oracle *o, const struct model_walk *walk);
/** The second completion of a BEGIN with NO_WAIT. */
int wait_notice(struct kvt_oracle *o);
int wait_cancel(struct kvt_oracle *o);
/** The accounts of a wait that is over. */
void wait_end(struct kvt_oracle *o);

/* ---- check.c ---- */
int check_counters(struct kvt_oracle *o);
int check_settled(struct kvt_oracle *o);

#endif
