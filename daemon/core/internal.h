/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_INTERNAL_H
#define KVT_CORE_INTERNAL_H

/**
 * @file internal.h
 * What the files of the core share. Nothing outside daemon/core/ includes this, tests excepted.
 *
 *   plan.c    sizes, layout, init           slots.c   extents of slots
 *   index.c   child index                   tree.c    nodes: make, free, split, merge, lock, touch
 *   walk.c    keys -> place in the tree     evict.c   policies, victims, detached subtrees
 *   grow.c    put new runs into the tree    page.c    page states and lists
 *   lease.c   BEGIN COMMIT EXTEND END       op.c      the other operations, and the switch
 *   session.c sessions, fences, death       work.c    background: expiry, reclaim, compaction
 *   wait.c    BEGINs that wait for others   audit.c   everything against everything
 *   user.c    what one uid holds
 *   undo.c    how a mutation is undone
 *   adopt.c   a successor takes over   rebuild.c  what is derived, made again from the facts
 */

#include "daemon/core/core.h"
#include "daemon/core/undo.h"
#include "shm/assert.h"
#include "shm/atomic.h"
#include "shm/racy.h"

#define KVT_CORE_MAGIC 0x4b56544bu
#define KVT_NEVER UINT64_MAX
#define KVT_BINS 128 /* size classes of free extents: exact to 15, then 4 per power of two */

struct kvt_fifo { /* free records, recycled first in, first out */
	uint32_t head;
	uint32_t tail;
	uint32_t count;
};

/** Free slots: extents with boundary tags, in bins by size (good fit in O(1)). */
struct kvt_slots {
	uint32_t n_slots;
	uint32_t free_slots;
	uint32_t *length;    /* at the first slot of a free extent: its length */
	uint32_t *first;     /* at the last slot of a free extent: its first slot */
	uint32_t *next;      /* at the first slot: list of the bin */
	uint32_t *prev;
	uint32_t *run;       /* at the first slot of a node's run: the node */
	uint64_t *free_head; /* bit: a free extent begins here */
	uint64_t *free_tail; /* bit: a free extent ends here */
	uint64_t *run_head;  /* bit: a node's run begins here */
	uint32_t bins[KVT_BINS];
	uint64_t bin_used[KVT_BINS / 64];
};

struct kvt_run { /* of slots */
	uint32_t first;
	uint32_t n;
};

struct kvt_heap {
	uint32_t *nodes; /* smallest first */
	uint32_t count;
	bool expiry; /* which of a node's two places it uses */
};

/** One record in the order that a rebuild restores: by `first`, then `second`. */
struct kvt_sort {
	uint64_t first;
	uint32_t second;
	uint32_t id;
};

/** How far the lease of a path has come, as one pass over the waiters found it. */
struct kvt_progress {
	uint32_t stamp;
	uint32_t sealed; /* leading pages */
	bool computes;   /* it goes on */
};

/** What the audit finds of a namespace. */
struct kvt_space_tally {
	uint64_t nodes, cached, evictable, protected_pages;
	uint32_t root;
	uint32_t opened; /* sessions */
};

/** What the sessions of one uid have together. */
struct kvt_user {
	uint32_t uid;
	uint32_t sessions; /* all that are not FREE */
	uint32_t live;     /* OPEN or CLOSING */
	uint32_t leases;
	uint32_t namespaces; /* that they made, and that are in use */
	uint64_t pages;      /* private or in quarantine */
};

/** Fence words of a session's members, beside its own in its view. */
struct kvt_fence_group {
	const struct kvt_fence_word *words[KVT_MAX_RANKS - 1];
	uint32_t n;
};

struct kvt_core {
	uint32_t magic;
	struct kvt_core_config config;
	struct kvt_core_hooks hooks;
	uint32_t ps; /* page size */

	struct kvt_arena_header *arena;
	struct kvt_node *nodes;
	kvt_bucket *buckets;
	uint32_t bucket_mask;
	uint32_t *slot_keys;
	uint32_t *slot_pages;
	struct kvt_page_record *pages;
	struct kvt_namespace_record *namespaces;
	struct kvt_counters *count;

	struct kvt_ledger_header *ledger;
	struct kvt_session_record *sessions;
	struct kvt_lease_record *leases;
	uint32_t *tails; /* [lease][page_size]: keys known beyond the last whole page */
	struct kvt_owner_record *owners;
	struct kvt_pending_record *pending;
	uint64_t *opened; /* [session][max_namespaces bits] */
	uint32_t opened_words;
	char (*labels)[KVT_LABEL_BYTES]; /* of namespaces */
	uint32_t *makers; /* uid, by namespace */

	struct kvt_member_record *members;
	struct kvt_fence_group *groups; /* by session */
	struct kvt_undo undo;
	struct kvt_slots slots;
	struct kvt_run *slots_due; /* of victims: free when the mutation ends */
	uint32_t n_slots_due;
	struct kvt_fifo free_nodes;
	struct kvt_fifo free_leases;
	uint32_t oldest_lease, youngest_lease;
	uint64_t epoch_leases; /* of the running epoch */
	uint64_t cut_leases;   /* of these: on detached paths */
	uint32_t *cut_below;   /* [node]: leases across it, with a detached node further down */
	struct kvt_fifo free_pending;
	uint32_t free_page;       /* list through owners[].next */
	uint32_t oldest, youngest; /* recency */
	uint32_t evictable_nodes; /* unlocked, not roots */
	struct kvt_heap heap;     /* evictable leaves, other policies than LRU */
	struct kvt_heap expiry;

	uint32_t *detached; /* ring of tops that wait for reclaim */
	uint32_t detached_head, detached_count;
	uint32_t n_roots;     /* that their namespaces name */
	uint32_t stale_roots; /* of these, of earlier epochs: left to background work by RESET */
	uint32_t stale_at;    /* namespace where that looks next */
	uint32_t reclaim_cursor; /* next node of the first top to visit, post-order */
	bool reclaim_again;      /* something was unlocked behind the cursor */

	uint32_t *compact; /* ring of nodes worth a look */
	uint32_t compact_head, compact_count;

	struct kvt_core_view *views; /* by session */
	struct kvt_user *users;      /* [n_users + 1]: some may be free */
	uint32_t n_users, live_users;
	uint32_t *user_of;           /* by session */
	uint32_t *user_of_space;     /* by namespace */
	uint32_t *lock_count;        /* audit: leases that cross each node */
	struct kvt_space_tally *space_tally; /* audit */
	uint32_t *lease_stamp;       /* poll: lease has an earlier deferred operation */
	uint32_t stamp;
	uint32_t dying;  /* sessions that background work has to look at */
	uint32_t dying_at; /* where it looks next */
	bool draining;   /* nothing that begins a lease */

	uint32_t first_waiter, last_waiter, n_waiters; /* BEGINs that wait, oldest first */
	bool wake_due; /* something happened that may have made one of them ready */
	bool no_place; /* there is no place for one more of them */
	uint64_t wake_at_ns; /* no deadline is earlier */
	struct kvt_progress *progress; /* by lease */
	uint32_t progress_stamp;
	uint32_t *session_stamp; /* who waits for whom */
	uint32_t wait_stamp;

	uint32_t *op_pages;  /* pages of an INSERT or FREE, copied */
	uint32_t *op_keys;   /* generated keys, copied */
	uint32_t *log_keys;  /* keys of a logged operation, copied: it runs on what is logged */
	uint32_t *path_list; /* pages of an INSERT's path as they are before it */
	uint64_t *page_mark; /* bit per page: seen in this list */
	uint32_t first_page[KVT_MAX_PAGE_SIZE]; /* keys that decide where a new run goes */

	struct kvt_sort *sort; /* rebuild: two halves of n_sort each, untouched otherwise */
	uint32_t n_sort;
	struct kvt_event *events;
	uint32_t n_events, max_events;
	uint32_t *out;
	uint32_t n_out;
	uint64_t now_ns;
	uint64_t op_now_ns;
	struct kvt_core_effort effort;
	struct kvt_record record; /* of the running effect */
	bool recording;
};

/** Where keys lead. */
struct kvt_walk {
	uint32_t root;     /* KVT_NONE: the namespace has no keys */
	uint32_t node;     /* deepest node reached, the root included */
	uint32_t in_node;  /* pages walked inside it */
	uint32_t walked;   /* pages that exist, announced ones included */
	uint32_t matched;  /* leading pages that are sealed */
	uint32_t match_node; /* deepest node with matched pages, KVT_NONE if none */
	uint32_t path_nodes;
};

/** How much of what a new path needs. */
struct kvt_need {
	uint32_t root;  /* 0 or 1 */
	uint32_t split; /* 0 or 1 */
	uint32_t runs;  /* nodes for the new run, as slots are free now */
	uint32_t spare; /* 1: pages are evicted after this, and the last victim keeps its node */
	uint32_t new_pages; /* what `runs` was computed from */
	uint32_t evict_pages; /* pages that will be evicted after this: each gives a slot, too */
	uint32_t wish;
	uint32_t path_nodes; /* unlocked nodes on the path: not to be evicted for it */
	uint64_t path_pages; /* evictable pages that would become locked */
};

static inline struct kvt_node *kvt_node_at(const struct kvt_core *core, uint32_t node)
{
	return &core->nodes[node];
}

/** RESET raises the epoch and does no more: every node of an earlier one is as good as detached
 * from then on, and background work detaches their roots. */
static inline bool kvt_is_stale(const struct kvt_core *core, uint32_t node)
{
	return core->nodes[node].epoch != core->arena->epoch;
}

/** The root of a namespace's keys, KVT_NONE if there are none. */
static inline uint32_t kvt_root_of(const struct kvt_core *core, uint32_t namespace_id)
{
	uint32_t root = core->namespaces[namespace_id].root;

	return root != KVT_NONE && !kvt_is_stale(core, root) ? root : KVT_NONE;
}

static inline uint32_t *kvt_keys_at(const struct kvt_core *core, uint32_t slot)
{
	return core->slot_keys + (size_t)slot * core->ps;
}

static inline uint32_t kvt_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline bool kvt_bit_get(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static inline void kvt_bit_set(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= 1ull << (i % 64);
}

static inline void kvt_bit_clear(uint64_t *bits, uint32_t i)
{
	bits[i / 64] &= ~(1ull << (i % 64));
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

/* slots.c */
void kvt_slots_init(struct kvt_slots *slots);
void kvt_slots_give(struct kvt_slots *slots, uint32_t first, uint32_t n);
/** Up to n slots in one run: at `wish` if that is free and long enough, else good fit, else the
 * longest there is. Returns the first; *ret_got <= n. At least one slot must be free. */
uint32_t kvt_slots_take(struct kvt_slots *slots, uint32_t n, uint32_t wish, uint32_t *ret_got);
/** Length of the free extent that begins at `slot`, 0 if none does. */
uint32_t kvt_slots_free_at(const struct kvt_slots *slots, uint32_t slot);
/** Length of the free extent that ends right before `slot`. */
uint32_t kvt_slots_free_before(const struct kvt_slots *slots, uint32_t slot);
/** Exactly n slots that begin at `first`, inside a free extent that contains them. */
void kvt_slots_take_at(struct kvt_slots *slots, uint32_t extent, uint32_t first, uint32_t n);
/** An extent of at least n slots, KVT_NONE if there is none. */
uint32_t kvt_slots_find(const struct kvt_slots *slots, uint32_t n);
/** How many runs n slots would take now, at most; more than n if they are not there. */
uint32_t kvt_slots_runs(const struct kvt_slots *slots, uint32_t n, uint32_t wish);
/** Audit: whether the bins hold exactly the free extents, of which there are so many. */
bool kvt_slots_bins_ok(const struct kvt_slots *slots, uint64_t extents);
void kvt_slots_set_run(struct kvt_slots *slots, uint32_t first, uint32_t node);
void kvt_slots_clear_run(struct kvt_slots *slots, uint32_t first);
/** The node whose run holds a used slot. */
uint32_t kvt_slots_node_of(const struct kvt_slots *slots, uint32_t slot);

/* index.c */
void kvt_index_add(struct kvt_core *core, uint32_t child);
/** The same for a rebuild: false, and nothing done, if its parent has another such child. */
bool kvt_index_add_new(struct kvt_core *core, uint32_t child);
void kvt_index_remove(struct kvt_core *core, uint32_t child);
void kvt_index_replace(struct kvt_core *core, uint32_t child, uint32_t by);
/** Child of `parent` that begins with the first page of `keys`; *ret_equal = how many of its
 * leading pages (at most n_pages) are equal. */
uint32_t kvt_index_find(struct kvt_core *core, uint32_t parent, const uint32_t *keys,
			uint32_t n_pages, uint32_t *ret_equal);

/* tree.c */
uint32_t kvt_node_make(struct kvt_core *core, uint32_t namespace_id, uint32_t parent);
void kvt_node_link(struct kvt_core *core, uint32_t node);
void kvt_node_unlink(struct kvt_core *core, uint32_t node);
/** Recycle an empty, unlinked node; prunes the root that was its parent if it was the last. */
void kvt_node_drop(struct kvt_core *core, uint32_t node, uint32_t parent);
void kvt_root_prune(struct kvt_core *core, uint32_t root);
uint32_t kvt_root_make(struct kvt_core *core, uint32_t namespace_id);
/** Give the first `pages` pages to a new upper node; `node` keeps its id and the rest. */
uint32_t kvt_node_split(struct kvt_core *core, uint32_t node, uint32_t pages);
void kvt_node_merge(struct kvt_core *core, uint32_t upper, uint32_t lower);
/** Lock (or unlock) every node from `node` up to, not including, `until`. */
void kvt_path_lock(struct kvt_core *core, uint32_t node, uint32_t until);
/** Unlock a whole path: a touch. Cuts unsealed tails of nodes that lose their last lock. */
void kvt_path_unlock(struct kvt_core *core, uint32_t node);
void kvt_path_touch(struct kvt_core *core, uint32_t node);
void kvt_path_pin(struct kvt_core *core, uint32_t node, bool on);
void kvt_path_count_hit(struct kvt_core *core, uint32_t node);
void kvt_path_raise(struct kvt_core *core, uint32_t node, int32_t priority, uint64_t expiry_ns);
bool kvt_path_detached(const struct kvt_core *core, uint32_t node);
/** Copy the pages [0, pages) of the path to `node` into list. */
void kvt_path_pages(const struct kvt_core *core, uint32_t node, uint32_t pages, uint32_t *list);
/** Node on the path to `node` that holds page `page`. */
uint32_t kvt_path_node(const struct kvt_core *core, uint32_t node, uint32_t page);
void kvt_node_seal(struct kvt_core *core, uint32_t node, uint32_t page);
void kvt_node_set_expiry(struct kvt_core *core, uint32_t node, uint64_t expiry_ns);
void kvt_recency_add(struct kvt_core *core, uint32_t node);
void kvt_recency_remove(struct kvt_core *core, uint32_t node);

/* walk.c */
void kvt_walk_keys(struct kvt_core *core, uint32_t namespace_id, const uint32_t *keys,
		   uint32_t n_pages, struct kvt_walk *walk);
/** Go on from a place inside the tree. */
void kvt_walk_from(struct kvt_core *core, struct kvt_walk *walk, const uint32_t *keys,
		   uint32_t n_pages);

/* evict.c */
struct kvt_policy_row {
	const char *name;
	bool list; /* the recency list is the order */
	bool (*before)(const struct kvt_core *core, const struct kvt_node *a,
		       const struct kvt_node *b);
	/* Whether a parent and its only child may become one without changing any choice. */
	bool (*same)(const struct kvt_core *core, const struct kvt_node *upper,
		     const struct kvt_node *lower);
};
extern const struct kvt_policy_row kvt_policies[KVT_POLICY_COUNT];
void kvt_heap_update(struct kvt_core *core, struct kvt_heap *heap, uint32_t node);
void kvt_heap_remove(struct kvt_core *core, struct kvt_heap *heap, uint32_t node);
/** (Re)consider whether a node is an evictable leaf, for the policy heap. */
void kvt_leaf_check(struct kvt_core *core, uint32_t node);
void kvt_node_trim(struct kvt_core *core, uint32_t node, uint32_t n);
/** Slots that are free when the mutation has ended. */
void kvt_slots_give_later(struct kvt_core *core, uint32_t first, uint32_t n);
/** They become free; `inside` a mutation, which will use them. */
void kvt_slots_give_due(struct kvt_core *core, bool inside);
/** Free exactly n pages; n <= evictable. */
void kvt_evict_pages(struct kvt_core *core, uint32_t n);
/** Evict whole leaves until n nodes are free; the caller made sure that this can succeed. */
void kvt_evict_nodes(struct kvt_core *core, uint32_t n);
void kvt_detach(struct kvt_core *core, uint32_t node);
/** Detach up to `roots` stale roots, looking at no more than `looks` namespaces. Returns at how
 * many it looked. */
uint32_t kvt_detach_stale(struct kvt_core *core, uint32_t roots, uint32_t looks);
/** A root that its namespace names is detached or gone. */
void kvt_root_leave(struct kvt_core *core, uint32_t root);
void kvt_detached_queue(struct kvt_core *core, uint32_t top);
/** Post-order successor of the reclaim cursor, called when a node goes. */
void kvt_reclaim_skip(struct kvt_core *core, uint32_t node);
/** Visit up to `steps` nodes of detached subtrees, freeing at most `pages`. */
uint32_t kvt_reclaim(struct kvt_core *core, uint32_t *steps, uint32_t pages);

/* grow.c */
void kvt_need_compute(struct kvt_core *core, const struct kvt_walk *walk, uint32_t new_pages,
		      bool exact, struct kvt_need *need);
/** Make sure that `need` nodes can be had, evicting leaves off the path. -ENOSPC: impossible,
 * nothing happened. */
int kvt_need_nodes(struct kvt_core *core, uint32_t path_node, struct kvt_need *need);
/** Copy the first page of `keys` behind a walk into core->first_page, and decide on the copy
 * whether it really goes on there as something new: from here on the shape of the tree does not
 * depend on memory that a client can change. */
bool kvt_walk_ends_new(struct kvt_core *core, const struct kvt_walk *walk, const uint32_t *keys);
/** Split where a walk ended inside a node; returns the node that ends exactly there. */
uint32_t kvt_walk_cut(struct kvt_core *core, struct kvt_walk *walk);
/** Lengthen a run in place by n announced pages; the slots behind it must be free. */
void kvt_grow_run(struct kvt_core *core, uint32_t node, const uint32_t *keys, uint32_t n);
/** Put n announced pages under `parent`. `first` is a private copy of the keys of the first
 * page, `keys` where all of them are. Returns the deepest new node. */
uint32_t kvt_grow(struct kvt_core *core, uint32_t parent, const uint32_t *first,
		  const uint32_t *keys, uint32_t n, int32_t priority, uint64_t expiry_ns);

/* page.c */
uint32_t kvt_page_take(struct kvt_core *core, uint32_t session, uint32_t lease);
void kvt_page_release(struct kvt_core *core, uint32_t page);
void kvt_page_cache(struct kvt_core *core, uint32_t page, uint32_t slot);
void kvt_page_uncache(struct kvt_core *core, uint32_t page);
void kvt_loose_add(struct kvt_core *core, uint32_t session, uint32_t page);
void kvt_loose_remove(struct kvt_core *core, uint32_t session, uint32_t page);
/** Copy a page list and check that each is a loose private page of the session. A page equal to
 * twins[i] (where twins is given and i < n_twins) passes. 0 or the reason. */
int kvt_pages_check(struct kvt_core *core, uint32_t session, const uint32_t *pages, uint32_t n,
		    const uint32_t *twins, uint32_t n_twins);

/* lease.c */
struct kvt_op_context {
	uint32_t session;
	const struct kvt_sqe *sqe;
	const struct kvt_core_view *view;
	struct kvt_cqe *cqe;
	const uint32_t *keys; /* of the entry: client memory, or the copy that the log gets */
	/* Of a BEGIN that waits, or that found that it must (KVT_WAITS): */
	uint32_t waiter; /* its pending record, KVT_NONE before it has one */
	uint32_t awaited, goal, matched;
	/* Of one that waited for its fence: its pending record, and the session's before it. */
	uint32_t deferred, before;
};
int kvt_lease_quota(struct kvt_core *core, struct kvt_op_context *op);
/** Behind all younger ones, and counted. */
void kvt_lease_list(struct kvt_core *core, uint32_t lease);
uint32_t kvt_lease_make(struct kvt_core *core, uint32_t session, uint32_t kind, uint32_t node,
			uint32_t path_pages);
void kvt_lease_free(struct kvt_core *core, uint32_t lease);
/** Take private pages for an operation: quota, room, eviction. `own` pages of the pool are about
 * to be locked by it. 0 or a negative errno with cqe->reason and a set. */
int kvt_room_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t n,
		   uint64_t path_pages);
/** Whether an operation can have n private pages and list them: quota, list, room. */
int kvt_private_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t n);
void kvt_room_make(struct kvt_core *core, uint32_t n);
int kvt_op_begin(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_commit(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_extend(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_end(struct kvt_core *core, struct kvt_op_context *op);
/** END without its entry: unlock, free what is private. Returns pages freed. */
uint32_t kvt_lease_end(struct kvt_core *core, uint32_t lease);
/** The same, and what its path leaves is joined where it can be. */
uint32_t kvt_lease_end_join(struct kvt_core *core, uint32_t lease);
bool kvt_lease_alive(const struct kvt_core *core, uint32_t lease);

/* op.c */
int kvt_refuse(struct kvt_op_context *op, int error, enum kvt_reason reason, uint32_t number);
void kvt_reset_all(struct kvt_core *core);
/** 0, or a refusal of REMOVE; *ret_removed tells whether something was detached. */
int kvt_remove_prefix(struct kvt_core *core, struct kvt_op_context *op, uint32_t namespace_id,
		      const uint32_t *keys, uint32_t n_keys, bool *ret_removed);
bool kvt_op_run(struct kvt_core *core, struct kvt_op_context *op, uint64_t token);
/** The operation of a waiter ends with -ECANCELED: its session closes. */
void kvt_op_cancel(struct kvt_core *core, struct kvt_op_context *op, uint64_t token);
bool kvt_op_takes_fence(uint32_t op);
bool kvt_op_takes_lease(uint32_t op);
/** Whether a deferred entry that a successor finds can be one that was let in. */
bool kvt_op_may_wait(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe);
int kvt_lease_check(struct kvt_core *core, struct kvt_op_context *op, bool deferred);

/* user.c */
static inline struct kvt_user *kvt_user_of(const struct kvt_core *core, uint32_t session)
{
	return &core->users[core->user_of[session]];
}
/** The record of a uid, 0 if it has none. */
uint32_t kvt_user_find(const struct kvt_core *core, uint32_t uid);
/** A session begins, is over, and is gone. */
void kvt_user_session(struct kvt_core *core, uint32_t session);
void kvt_user_session_over(struct kvt_core *core, uint32_t session);
void kvt_user_session_gone(struct kvt_core *core, uint32_t session);
/** A namespace is made, and is in use no more. */
void kvt_user_space(struct kvt_core *core, uint32_t namespace_id, uint32_t uid);
void kvt_user_space_gone(struct kvt_core *core, uint32_t namespace_id);
/** Whether the uid may have one more: 0, or -EDQUOT. */
int kvt_user_check_session(const struct kvt_core *core, uint32_t uid);
int kvt_user_check_space(const struct kvt_core *core, uint32_t session);
/** From the records of sessions and namespaces, which are complete. */
void kvt_users_rebuild(struct kvt_core *core);
/** Audit: whether a record is the sum of what names it. */
bool kvt_user_ok(const struct kvt_core *core, uint32_t user);

/* session.c */
/** A namespace is in no session's map, and no node names it. */
void kvt_space_free(struct kvt_core *core, uint32_t namespace_id);
uint32_t kvt_close_now(struct kvt_core *core, uint32_t session);
bool kvt_defer(struct kvt_core *core, struct kvt_op_context *op);
uint32_t kvt_pending_take(struct kvt_core *core);
void kvt_pending_free(struct kvt_core *core, uint32_t id);
void kvt_pending_forget(struct kvt_core *core, uint32_t id, uint32_t before);
uint32_t kvt_session_work(struct kvt_core *core, uint32_t budget);
bool kvt_session_unsettled(const struct kvt_core *core);
/** Bracket of every change: `mutation` is odd inside. */
void kvt_mutation_begin(struct kvt_core *core);
void kvt_mutation_end(struct kvt_core *core);

/* wait.c */
#define KVT_WAITS 1 /* of a BEGIN: neither done nor refused */
/** Whether a BEGIN with WAIT or NO_WAIT has to wait at the place that a walk found: KVT_WAITS with
 * op's last fields filled, else 0; cqe->flags tell how a wait ended or why there is none. */
int kvt_wait_check(struct kvt_core *core, struct kvt_op_context *op, const struct kvt_walk *walk);
/** What a NO_WAIT waiter is told: 0, or KVT_WAITS. */
int kvt_wait_notice(struct kvt_core *core, struct kvt_op_context *op);
/** It begins to wait, or goes on to wait for somebody else. */
void kvt_wait_begin(struct kvt_core *core, struct kvt_op_context *op);
/** The log's word for that; `token` is 0 for a wait that begins. */
void kvt_wait_emit(struct kvt_core *core, const struct kvt_op_context *op, uint64_t token);
/** Its wait is over with this result, whatever it is. */
void kvt_wait_end(struct kvt_core *core, struct kvt_op_context *op, int error);
/** A lease's path has announced pages: say in their nodes who computes them. */
void kvt_path_announce(struct kvt_core *core, uint32_t lease);
uint32_t kvt_waiters_run(struct kvt_core *core);
/** Behind all that wait already. */
void kvt_waiter_add(struct kvt_core *core, uint32_t id);
/** A session is over, or closes: its waiters go without a word, or with -ECANCELED. */
void kvt_waiters_forget(struct kvt_core *core, uint32_t session);
void kvt_waiters_cancel(struct kvt_core *core, uint32_t session);

/** Before every operation. */
static inline uint32_t kvt_wake(struct kvt_core *core)
{
	if (core->n_waiters == 0 || (!core->wake_due && core->now_ns < core->wake_at_ns))
		return 0;
	return kvt_waiters_run(core);
}

/* work.c */
void kvt_compact_note(struct kvt_core *core, uint32_t node);
void kvt_path_join(struct kvt_core *core, uint32_t node);
void kvt_expire_due(struct kvt_core *core, uint32_t limit);
bool kvt_expire_now(struct kvt_core *core, uint32_t node);

/* plan.c: what init and adoption share, and the headers as a configuration wants them */
int kvt_core_prepare(struct kvt_core *core, const struct kvt_core_config *config, void *arena,
		     void *ledger, const struct kvt_core_hooks *hooks, uint64_t now_ns);
void kvt_core_layout(const struct kvt_core_config *config, struct kvt_arena_header *ret_arena,
		     struct kvt_ledger_header *ret_ledger);

/* rebuild.c */
/** Why an adoption is refused, into the caller's buffer. Returns -EUCLEAN. */
struct kvt_doubt {
	char *why;
	size_t why_size;
};
int __attribute__((format(printf, 2, 3))) kvt_doubt(struct kvt_doubt *doubt, const char *format,
						    ...);
/** Make everything derived again from the primary facts, all of which are checked: 0, or -EUCLEAN
 * with the sentence in `doubt`. */
int kvt_rebuild(struct kvt_core *core, struct kvt_doubt *doubt);

/* plan.c: records */
void kvt_event_add(struct kvt_core *core, uint32_t kind, uint32_t node, uint32_t other,
		   uint32_t n);
void kvt_record_start(struct kvt_core *core);
uint64_t kvt_record_emit(struct kvt_core *core, uint32_t kind, uint32_t session, uint64_t value);

#endif
