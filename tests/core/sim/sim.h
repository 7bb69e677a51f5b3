/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SIM_H
#define KVT_SIM_H

/**
 * @file sim.h
 * Seeded simulation of the core against the oracle.
 *
 * A run follows from its seed: the configuration, what each session asks for, when fences rise,
 * when sessions die, how much background work is done. Each record of the core is applied to the
 * oracle at once, and tells what the sessions hold.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/core/core.h"
#include "daemon/core/ledger.h"
#include "daemon/core/view.h"
#include "daemon/log/feed.h"
#include "daemon/log/operations.h"
#include "lab/oracle/oracle.h"
#include "libclient/feed_reader.h"
#include "libclient/snapshot.h"

#define SIM_MAX_KEYS 6144 /* of one sequence */
#define SIM_KEYS_AREA 16384
#define SIM_KEPT_KEYS 4 /* sequences with long-lived keys */
#define SIM_KEPT_EACH (SIM_MAX_KEYS + 2) /* with a root key */
#define SIM_KEPT_AREA (SIM_KEPT_KEYS * SIM_KEPT_EACH) /* behind the other keys */
#define SIM_ROOT_KEYS 4
#define SIM_LIST_AREA 4096
#define SIM_MANY_KINDS 9
#define SIM_SEQUENCES 24
#define SIM_HANDLES 24
#define SIM_LEASES 24  /* remembered by a session, dead ones too */
#define SIM_HISTORY 48 /* records shown at a failure */
#define SIM_SESSIONS 6
#define SIM_HELD 4 /* records of one mutation, at most */

struct sim_sequence {
	uint32_t n;
	uint32_t keys[SIM_MAX_KEYS];
};

struct sim_lease {
	uint32_t index, generation, kind;
	uint32_t namespace_id;
	uint32_t known, computed, table; /* positions, positions, pages */
	bool bare; /* begun without pages */
	uint32_t n_list;                 /* MATCH leases: pages of the locked prefix */
	uint32_t list[SIM_LIST_AREA];
	uint32_t sequence; /* place of its keys, if they are still there */
};

struct sim_handle {
	uint32_t namespace_id, node, generation, positions;
	uint32_t sequence;
	uint64_t digests[SIM_MAX_KEYS]; /* of its first i + 1 pages of keys */
};

#define SIM_RANKS 3 /* of a group */

struct sim_session {
	bool open;     /* takes entries */
	bool closing;  /* CLOSE was submitted */
	bool present;  /* known to the core */
	uint32_t uid;
	uint32_t signs;
	uint32_t taken, done; /* entries and completions that its record must count */
	struct kvt_cqe last_cqe;
	struct kvt_core_view view;
	/* Ranks of its group that joined, each with its own words. */
	uint32_t n_members;
	uint32_t members[SIM_RANKS - 1]; /* the core's places */
	struct kvt_fence_word *words[SIM_RANKS - 1];
	uint32_t n_leases;
	struct sim_lease leases[SIM_LEASES];
	uint32_t n_pages;
	uint32_t *pages; /* private ones without a lease */
	uint32_t n_waiting; /* deferred operations without an answer */
	uint32_t kept_next; /* place of the keys of the next BEGIN that may wait */
	uint32_t n_namespaces;
	uint32_t namespaces[8]; /* opened by it */
};

struct sim_brief { /* of a record, for the history */
	struct kvt_record record;
	struct kvt_event events[12];
	uint32_t list[12];
};

enum sim_rare {
	SIM_BARE,          /* BEGIN without pages */
	SIM_BARE_SEALED,   /* COMMIT of such a lease */
	SIM_LOOK_ON,
	SIM_KEPT,
	SIM_ROOT_KEY,      /* BEGIN found pages under a root key */
	SIM_ROOT_KEY_LATE, /* a lease without a path got one, under its root key */
	SIM_KEYS_CUT,      /* COMMIT with keys beyond the page table */
	SIM_TAKEN_OVER,    /* COMMIT duplicates */
	SIM_TWINS,         /* INSERT duplicates */
	SIM_TWIN_GIVEN,    /* INSERT was given the cached page itself */
	SIM_START_HANDLE,  /* INSERT that continued from a handle */
	SIM_MATCH_BEHIND,  /* MATCH that found more behind its handle */
	SIM_BEGIN_BEHIND,  /* BEGIN likewise */
	SIM_END_DETACHED,
	SIM_END_REASON,
	SIM_END_HANDLE,    /* END left something cached */
	SIM_END_MERGED,    /* in a node that it merged others into */
	SIM_CAPPED,        /* reusable < matched */
	SIM_SHARED_ANNOUNCE,
	SIM_NODE_EVICTION, /* evicted for lack of nodes */
	SIM_TRIM_PART,
	SIM_TRIM_WHOLE,
	SIM_DETACHED_TRIM,
	SIM_CLOSE_WAITED,
	SIM_LOCK_TRIMMED,  /* LOCK of what is left in a trimmed node */
	SIM_LOCK_HEIR,     /* LOCK of what is left of a node that is gone */
	SIM_ALLOC_FEWER,   /* ALLOC with SHORTER gave fewer pages */
	SIM_OWN_TAKEN,     /* OWN_STREAM took pages of a lease that ends */
	SIM_NO_LIST,       /* COMMIT without a list, with pages to list */
	SIM_EDGE_LOCKED,   /* LOCK inside an edge without a free node */
	SIM_DEAD_WITH_DEFERRED,
	SIM_NO_DEFER_ROOM,
	SIM_WAIT_SEALED,    /* a BEGIN waited until others had sealed everything it waited for */
	SIM_WAIT_TAKEOVER,
	SIM_WAIT_DEADLINE,
	SIM_WAIT_REFUSED,   /* it waited, and then could not begin */
	SIM_WAIT_STALE,     /* it waited, and its handle went stale */
	SIM_WAIT_AGAIN,     /* it then waited for another lease */
	SIM_WAIT_CANCELED,
	SIM_WAIT_NO_PLACE,
	SIM_NOTICE_SEALED,
	SIM_NOTICE_ABANDONED,
	SIM_NOTICE_DEADLINE,
	SIM_NOTICE_CANCELED,
	SIM_NOTICE_STALE,
	SIM_MADE_ROOM,
	SIM_UNOPENED,
	SIM_REFUSED,
	SIM_POINT,         /* BEGIN continued at a point, all of what matched or less */
	SIM_POINT_SHORT,   /* less */
	SIM_SIDE_TAKEN,
	SIM_SIDE_TWIN,     /* COMMIT gave a side page back */
	SIM_SIDE_DROPPED,
	SIM_SIDE_LATE,     /* COMMIT took sides and nothing else */
	SIM_SIDE_LET,      /* COMMIT let one go */
	SIM_SIDE_LET_EVICTED,
	SIM_SIDE_LET_REUSED, /* a BEGIN held it again */
	SIM_SIDE_TRIMMED,  /* a victim took side pages along */
	SIM_POINT_AWAITED, /* a BEGIN waited for a declared point */
	SIM_POINT_CACHED,  /* although the pages in front of it were cached */
	SIM_POINT_MADE,    /* and could use it */
	SIM_POINT_GONE,    /* or found that it would not be made */
	SIM_MANY_TAKEN,    /* with many kinds: a side page taken */
	SIM_MANY_POINT,    /* BEGIN at a point */
	SIM_MANY_LET,      /* COMMIT let one go */
	SIM_MANY_AWAITED,  /* a BEGIN waited for a declared point */
	SIM_SIDES_LAST = SIM_MANY_AWAITED,
	SIM_MATCH_GAVE,    /* pages were evicted for a BEGIN whose match had its room */
	SIM_MATCH_ENDED,   /* pages of a match were evicted, for a BEGIN that had room, not quota */
	SIM_MEMBER,        /* a rank joined a group */
	SIM_FEED_CHECKED,  /* what a subscriber of the feed knows was compared with the arena */
	SIM_FEED_SNAPSHOT,
	SIM_FEED_ROUNDS,   /* a snapshot looked again for namespaces of root pages */
	SIM_FEED_CUT_OFF, /* a page whose path matches nothing any more */
	SIM_FEED_OVERTAKEN,
	SIM_FEED_OVERTAKEN_READING, /* while it took a snapshot */
	SIM_FEED_SIDE,
	SIM_FEED_LASTING,
	SIM_FEED_CLEARED,
	SIM_MEMBER_WAITED, /* an operation waited only for a member's word */
	SIM_RARE_COUNT,
};

struct sim_coverage {
	uint64_t steps, records, seeds, rolled_back;
	uint64_t probes, probe_hits;
	uint64_t op[KVT_OP_COUNT + 1][KVT_REASON_COUNT + 1]; /* last column: ok */
	uint64_t deferred[KVT_OP_COUNT + 1];
	uint64_t waited[KVT_OP_COUNT + 1]; /* took effect after waiting */
	uint64_t kind[KVT_REC_KINDS];
	uint64_t event[KVT_EV_KINDS];
	uint64_t policy[KVT_POLICY_COUNT];
	uint64_t rare[SIM_RARE_COUNT];
};

/* What a subscriber believes of a page. */
struct sim_fed_page {
	uint32_t state; /* KVT_PAGE_CACHED, KVT_PAGE_SIDE, 0 */
	uint32_t parent, sealer, kind, namespace_id;
	bool ends; /* it has a time to live */
	uint64_t root_key;
};

struct sim_feed {
	bool on;
	bool known;   /* `pages` is the state as of the reader's place */
	bool reading; /* `snapshot` is being taken */
	uint32_t stopped; /* steps */
	uint64_t random;
	void *memory;
	struct kvt_feed_writer writer;
	struct kvt_feed_reader reader;
	struct kvt_snapshot snapshot;
	struct kvt_arena_view view;
	struct sim_fed_page *pages;
	uint32_t *keys;
	uint64_t digests[8][2];
};

struct sim {
	uint64_t seed;
	uint64_t random[4];
	uint64_t step;
	uint64_t now_ns;
	struct kvt_core_config config;
	struct kvt_core *core;
	void *arena, *ledger, *scratch;
	void *heir; /* scratch of a successor that has not taken over */
	uint64_t arena_bytes, ledger_bytes, scratch_bytes;
	char *before, *after; /* copies of arena and ledger, around an operation */
	bool draining;
	bool mortal; /* the core may be killed at any store: records are held back */
	uint32_t n_held;
	uint64_t held_mutation;
	struct kvt_record held[SIM_HELD];
	bool focus; /* sim_focus() */
	bool many;  /* at least SIM_MANY_KINDS kinds of side pages, and pages for them */
	bool tiny; /* set before sim_create(): small enough to check at every store */
	bool steady; /* a restart keeps all options */
	struct kvt_oracle *oracle;
	struct kvt_oplog *log; /* or NULL */
	struct sim_feed feed;
	struct sim_coverage *coverage;
	struct sim_session sessions[SIM_SESSIONS + 1];
	struct sim_sequence sequences[SIM_SEQUENCES];
	uint32_t n_handles;
	struct sim_handle handles[SIM_HANDLES];
	uint32_t alphabet;
	uint32_t longest; /* of a sequence */
	bool gentle;      /* fewer catastrophes: long lives */
	bool wide;        /* large pages: keys differ page by page, not key by key */
	struct sim_brief history[SIM_HISTORY];
	uint64_t n_history;
	struct kvt_cqe last_cqe; /* of the last OP record */
	uint64_t last_completed; /* seq */
	uint32_t sequence_in_use;
	bool failed;
	char why[1024];
};

/* random.c */
uint32_t sim_below(struct sim *sim, uint32_t n); /* 0 if n is 0 */
extern const uint64_t sim_root_keys[SIM_ROOT_KEYS]; /* 0 among them */
bool sim_chance(struct sim *sim, uint32_t per_mille);
uint32_t sim_between(struct sim *sim, uint32_t least, uint32_t most);
bool sim_fail(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* world.c */
/** True with KVTSIM_FOCUS in the environment: what concerns side pages happens often. */
bool sim_focus(void);
bool sim_create(struct sim *sim);
void sim_destroy(struct sim *sim);
void sim_namespace_open(struct sim *sim, uint32_t session);
void sim_session_open(struct sim *sim);
void sim_session_end(struct sim *sim, uint32_t session, uint32_t signs);
void sim_restart(struct sim *sim);
void sim_view_free(struct sim_session *session);
/** End everything: sessions, leases, cache. Returns false if something is left. */
bool sim_drain(struct sim *sim);

/* operate.c */
void sim_operate(struct sim *sim);

/* observe.c */
void sim_on_record(void *context, const struct kvt_record *record);
void sim_on_problem(void *context, const char *text); /* of an audit */
void sim_on_complete(void *context, uint32_t session, const struct kvt_cqe *cqe);
bool sim_fence_reached(const struct sim *sim, uint32_t session, const struct kvt_sqe *sqe);
void sim_print_history(const struct sim *sim, FILE *to);

void sim_observe(struct sim *sim, const struct kvt_record *record);

/* hold.c */
void sim_hold(struct sim *sim, const struct kvt_record *record);
/** The mutation has ended: observe what was held back. */
void sim_settle(struct sim *sim);
/** The core was killed, inside a mutation or not: a successor continues. */
void sim_killed(struct sim *sim);
void sim_check_progress(struct sim *sim);

/* compare.c */
/** Compare all of the core's memory with the model. */
bool sim_compare(struct sim *sim);

/* feed.c */
/** Let the subscriber of the feed do something, between two operations. */
void sim_feed_step(struct sim *sim);
/** Step a snapshot that is being taken, inside an operation. */
void sim_feed_inside(struct sim *sim);
/** The core that wrote the feed is gone. */
void sim_feed_lost(struct sim *sim);
void sim_feed_free(struct sim *sim);

/* coverage.c */
extern const char *const sim_rare_names[SIM_RARE_COUNT];
void sim_coverage_print(const struct sim_coverage *coverage, FILE *to);
/** Name the required things that never happened. Returns their number. */
uint32_t sim_coverage_missing(const struct sim_coverage *coverage, FILE *to);

#endif
