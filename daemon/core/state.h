/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_STATE_H
#define KVT_CORE_STATE_H

/**
 * @file state.h
 * The core's state, which every file of it sees. Each file declares in the header of its name what
 * it offers to others. Nothing outside daemon/core/ includes these headers, tests excepted.
 *
 * A file calls files below it only, and the way of an operation is down once and up once:
 *
 *   run, work                        execute, poll, wake; background work
 *   op                               the switch, and the operations that are not a sequence's
 *   session                          sessions: open, end, reclaim
 *   lease, attach                    BEGIN COMMIT EXTEND END; side pages of a COMMIT
 *   grow                             new runs; what they need, before anything changes
 *   evict                            victims
 *   compact, detach, wait            joining runs; detached subtrees; BEGINs that wait
 *   tree                             nodes and paths
 *   space, pending                   namespaces; operations that wait for a fence
 *   effect, walk                     mutations and records; keys to a place
 *   entry, index, side, page, slots, user, backlog, running, undo
 *   leaf                             evictable leaves; limits of namespaces
 *   order                            recency, heaps, policies
 *
 * Beside them: plan (sizes, layout, first state), group (processes of sessions), describe (what is
 * shown), audit, and recovery: adopt, rollback, rebuild (recover.h).
 */

#include "daemon/core/config.h"
#include "daemon/core/hooks.h"
#include "daemon/core/record.h"
#include "daemon/core/slots.h"
#include "kvtrunk_wire_arena.h"
#include "shm/assert.h"
#include "shm/atomic.h"
#include "shm/racy.h"

struct kvt_core_view;
struct kvt_lease_record;
struct kvt_ledger_header;
struct kvt_member_record;
struct kvt_owner_record;
struct kvt_pending_record;
struct kvt_session_record;
struct kvt_undo_header;

#define KVT_CORE_MAGIC 0x4b56544bu
#define KVT_NEVER UINT64_MAX
#define KVT_SEALERS_MANY UINT32_MAX
struct kvt_fifo { /* free records, recycled first in, first out */
	uint32_t head;
	uint32_t tail;
	uint32_t count;
};

struct kvt_run { /* of slots */
	uint32_t first;
	uint32_t n;
};

/** The part of a node that older handles still name, also once it is free. Lost at a restart. A
 * node is freed, and so reused (free_nodes), before its heir: an heir is never another node. */
struct kvt_remains {
	uint32_t born; /* the first generation of these handles */
	uint32_t left; /* pages of its path that were never trimmed; a run may grow behind them */
	uint32_t heir; /* free: node that has these pages, KVT_NONE if they are detached */
};

/** A side page that its lease let go: evictable, although its path is locked. */
struct kvt_let {
	uint32_t lease; /* KVT_NONE: it is held */
	uint32_t older, younger; /* pages, in the order in which they were let go */
	uint64_t tick; /* logical time of that */
};

enum kvt_heap_of {
	KVT_HEAP_LEAVES = 0, /* evictable leaves, by policy; the place in a node is heap_at */
	KVT_HEAP_EXPIRY = 1, /* nodes, by time; expiry_at */
	KVT_HEAP_OVER = 2,   /* namespaces, by pages above their limit; over_at */
};

struct kvt_heap {
	uint32_t *nodes; /* or namespaces, smallest first */
	uint32_t count;
	enum kvt_heap_of of;
};

/** A node in the treap of evictable leaves of namespaces with a limit. */
struct kvt_leaf {
	uint32_t left, right, up; /* nodes */
	uint32_t rank; /* 0: not in it */
};

/** One record in the order that a rebuild restores: by `first`, then `second`. */
struct kvt_sort {
	uint64_t first;
	uint32_t second;
	uint32_t id;
};

/** Progress of a lease along its path, cached for one pass over the waiters. */
struct kvt_progress {
	uint32_t stamp;
	uint32_t sealed; /* leading pages */
	bool computes;   /* it will still seal what is announced */
};

/** Fence words of a session's members, beside its own in its view. */
struct kvt_fence_group {
	const struct kvt_fence_word *words[KVT_MAX_RANKS - 1];
	uint32_t n;
};

/** The undo log, while it is written (undo.h). */
struct kvt_undo {
	struct kvt_undo_header *header;
	uint64_t *words;
	uint64_t used;     /* header->words, where clients of the cache line are not */
	uint64_t capacity;
	uint64_t arena_bytes;
	uint32_t stamp;    /* number of the running mutation */
	uint32_t *nodes;   /* [node]: stamp of the mutation that saved it whole */
	uint32_t *touches; /* [node]: stamp of the one that saved its times and uses */
	uint32_t *leases;
	uint64_t *freed;   /* [slot / 32]: stamp << 32 | mask of slots freed in it */
};

struct kvt_core {
	uint32_t magic;
	kvt_core_change_fn *change; /* NULL: no feed */
	uint32_t ps; /* page size */
	uint32_t n_sides; /* kinds of side pages; 0: `sides` and what derives from it is empty */

	struct kvt_arena_header *arena;
	struct kvt_node *nodes;
	kvt_bucket *buckets;
	uint32_t bucket_mask;
	uint32_t *slot_keys;
	uint32_t *slot_pages;
	struct kvt_page_record *pages;
	struct kvt_namespace_record *namespaces;
	uint64_t *root_keys; /* [node]: root key, with KVT_NODE_KEYED */
	struct kvt_counters *count;

	struct kvt_ledger_header *ledger;
	struct kvt_session_record *sessions;
	struct kvt_lease_record *leases;
	uint32_t *tails; /* [lease][page_size]: keys known beyond the last whole page */
	struct kvt_owner_record *owners;
	struct kvt_pending_record *pending;
	uint64_t *opened; /* [session][max_namespaces bits] */
	uint32_t opened_words;
	char (*labels)[KVT_LABEL_BYTES]; /* [namespace] */
	struct kvt_tally *tallies; /* [session], then [namespace] */

	struct kvt_member_record *members;
	struct kvt_fence_group *groups; /* [session] */
	struct kvt_undo undo;
	struct kvt_slots slots;
	struct kvt_run *slots_due; /* slots of victims, free when the mutation ends */
	uint32_t n_slots_due;
	struct kvt_fifo free_nodes;
	struct kvt_fifo free_leases;
	uint32_t *pointed;    /* leases with a declared point, in no order */
	uint32_t *pointed_at; /* [lease]: its place there */
	uint32_t n_points;
	uint64_t epoch_leases; /* leases of the running epoch */
	uint64_t cut_leases;   /* leases of it on detached paths */
	uint32_t *cut_below;   /* [node]: leases across it, with a detached node further down */
	struct kvt_remains *remains; /* [node] */
	struct kvt_fifo free_pending;
	uint32_t free_page;       /* list through owners[].next */
	uint32_t oldest, youngest; /* ends of the recency list */
	uint32_t evictable_nodes; /* unlocked, not roots */
	struct kvt_heap heap;     /* evictable leaves, other policies than LRU */
	struct kvt_heap expiry;
	bool leaves_ordered; /* leaves are in the heap or in order by namespace (leaf.h) */
	bool limited; /* namespaces may have limits; else what follows is empty */
	struct kvt_leaf *leaves; /* [node] */
	uint32_t leaf_root;
	uint32_t *leaves_in;  /* [namespace]: nodes in the treap */
	struct kvt_heap over; /* namespaces above their limit that have nodes in it */
	uint32_t *over_at;    /* [namespace] */

	uint32_t *detached; /* ring of tops that wait for reclaim */
	uint32_t detached_head, detached_count;
	uint32_t n_roots;     /* roots of namespaces */
	uint32_t stale_roots; /* roots of earlier epochs, left to background work by RESET */
	uint32_t stale_at;    /* namespace that background work checks next */
	uint32_t reclaim_cursor; /* next node of the first top to visit, post-order */
	bool reclaim_again;      /* something was unlocked behind the cursor */

	uint32_t *compact; /* ring of nodes that may be joined */
	uint32_t compact_head, compact_count;

	struct kvt_core_view *views; /* [session] */
	uint32_t open_sessions;      /* state: OPEN or CLOSING */
	struct kvt_core *shadow;     /* audit: what a rebuild writes, again. Untouched otherwise */
	uint32_t *lease_stamp;       /* poll: lease has an earlier deferred operation */
	uint32_t stamp;
	uint32_t expired; /* the node for which KVT_EXPIRED was returned */
	uint32_t evict_first; /* pages whose eviction gives a refused BEGIN its room, or 0 */
	uint32_t evict_path;  /* then the last node of its match, whose path goes last */
	bool evict_alone;     /* or alone: the BEGIN lacks quota, not room */
	uint32_t dying;  /* sessions that background work must reclaim */
	uint32_t dying_at; /* session that background work checks next */
	bool draining;   /* refuse what begins a lease */

	uint32_t first_waiter, last_waiter, n_waiters; /* BEGINs that wait, oldest first */
	bool wake_due; /* a waiter may have become ready */
	bool no_place; /* the next BEGIN cannot wait */
	bool no_memory; /* the next AUDIT would not find enough */
	uint64_t wake_at_ns; /* lower bound of the deadlines */
	struct kvt_progress *progress; /* [lease] */
	uint32_t progress_stamp;
	uint32_t *session_stamp; /* which sessions wait for which */
	uint32_t wait_stamp;

	uint32_t *op_pages;  /* pages of an INSERT, FREE or EXTEND, copied */
	uint32_t *op_keys;   /* generated keys, copied */
	uint32_t *op_sides;  /* places and side pages of a COMMIT, copied */
	uint32_t *log_keys;  /* keys of a logged operation, copied: it runs on what is logged */
	uint32_t *path_list; /* pages of an INSERT's path as they are before it */
	uint32_t *sealers;   /* [node]: who sealed all its cached pages, or KVT_SEALERS_MANY */
	uint64_t *page_mark; /* bit per page: seen in this list */
	uint32_t first_page[KVT_MAX_PAGE_SIZE]; /* keys that decide where a new run goes */

	struct kvt_sort *sort; /* rebuild: two halves of n_sort each, untouched otherwise */
	uint32_t n_sort;
	struct kvt_event *events;
	uint32_t n_events, max_events;
	uint32_t *in;  /* with a hook of changes: pages that became cached in the effect */
	uint32_t *out; /* pages that stopped being so */
	uint32_t *lasting; /* with a hook: cached pages whose time to live was lifted */
	uint32_t n_in, n_out, n_lasting;
	uint32_t cut;          /* top of a subtree that was detached */
	uint32_t n_used, used; /* pages that a BEGIN reuses, and the last one of them */
	uint64_t now_ns;
	struct kvt_core_effort effort;
	struct kvt_record record; /* of the running effect */
	bool recording;

	uint32_t *sides;    /* [page][n_sides]: side pages of a cached page of a node, 0 = none */
	uint32_t *sides_in; /* [node]: side pages of its pages */
	uint32_t *side_top; /* [node]: no page of its run from this one of the path on has any */
	uint32_t side_most; /* the largest of config.side_pages */
	/* Lost at a restart: all side pages of a locked path are held again. */
	struct kvt_let *let; /* [page] */
	uint32_t *let_of;    /* [lease]: pages that it let go */
	uint32_t let_first, let_last, n_let;

	/* Large and seldom read: last, so that what each operation reads is together in front. */
	struct kvt_core_config config;
	struct kvt_core_hooks hooks;
};

static inline struct kvt_node *kvt_node_at(const struct kvt_core *core, uint32_t node)
{
	return &core->nodes[node];
}

/** True if `node` is the number of a node in use; for numbers that may be anything. */
static inline bool kvt_node_live(const struct kvt_core *core, uint32_t node)
{
	return node != KVT_NONE && node < core->config.max_nodes &&
	       (core->nodes[node].flags & KVT_NODE_LIVE);
}

/** True if the node is of an earlier epoch. RESET only raises the epoch: such nodes count as
 * detached, and background work detaches their roots. */
static inline bool kvt_is_stale(const struct kvt_core *core, uint32_t node)
{
	return core->nodes[node].epoch != core->arena->epoch;
}

/** The root of a namespace's keys, KVT_NONE if there are none. */
static inline uint32_t kvt_root_of(const struct kvt_core *core, uint32_t namespace_id)
{
	uint32_t root = core->namespaces[namespace_id].root;

	return core->stale_roots == 0 || !kvt_is_stale(core, root) ? root : KVT_NONE;
}

/** The root key that a node is found with, 0 if without. */
static inline uint64_t kvt_root_key_of(const struct kvt_core *core, uint32_t node)
{
	return core->nodes[node].flags & KVT_NODE_KEYED ? core->root_keys[node] : 0;
}

static inline uint32_t *kvt_keys_at(const struct kvt_core *core, uint32_t slot)
{
	return core->slot_keys + (size_t)slot * core->ps;
}

/* A field that clients read while it changes: one store, of the whole value. */
#define KVT_SET(field, value) kvt_store_relaxed(&(field), (value))

/* Readers check `version` around what they read of a node's first line. */
static inline void kvt_node_write_begin(struct kvt_node *node)
{
	kvt_store_relaxed(&node->version, node->version + 1);
	kvt_fence_release(); /* pairs with the reader's acquire fence before its second look */
}

static inline void kvt_node_write_end(struct kvt_node *node)
{
	kvt_store_release(&node->version, node->version + 1); /* pairs with the reader's acquire */
}

#endif
