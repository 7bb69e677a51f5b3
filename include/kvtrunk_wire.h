/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_H
#define KVTRUNK_WIRE_H

/**
 * @file kvtrunk_wire.h
 * Every byte that clients and the daemon share: the arena, the session segment and the messages of
 * the control socket.
 *
 * Applications include kvtrunk.h. This header is for the library, the daemon, debuggers and clients
 * in another language.
 *
 *     arena     tree and page records. Written by the daemon alone, mapped read-only by clients.
 *     segment   one per session: SQ, CQ, fence words. Written by both.
 *     areas     one per session: key area, list area. Written by both.
 *     mirror    one per session that asks for it. Written by its clients; the daemon never maps it.
 *     messages  fixed structs on a SOCK_SEQPACKET socket, one message a packet.
 *
 * All integers are little endian; kvtrunk does not build for another byte order. Every structure
 * has a fixed size that a static assertion holds. kvt_abi_layout() folds sizes and offsets into one
 * number that both ends compare first: two builds that disagree never touch the same memory.
 *
 * The daemon's own object, the ledger, is private to it: daemon/core/ledger.h, which also says
 * which fields of the arena are facts and which are derived.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_types.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvtrunk shares little-endian structures: this byte order is not supported"
#endif

#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

#define KVT_ABI 3 /* raised with each change of shared bytes or messages: no build speaks two */

/* A line that one side writes and the other polls. 128, not 64: x86 prefetches lines in pairs
 * and Arm server cores have 128-byte granules, so 64 would still ping-pong. */
#define KVT_LINE 128
#define KVT_ALIGNED(n) __attribute__((aligned(n)))

/* ---------------------------------------------------------------------- arena */

#define KVT_ARENA_MAGIC 0x3130414e4552414bull   /* "KARENA01" */
#define KVT_SEGMENT_MAGIC 0x313047455354564bull /* "KVTSEG01" */

/** Life of an arena. Written last at start-up and first at shutdown: a reader of READY reads a
 * complete header. */
enum kvt_arena_state {
	KVT_ARENA_STARTING = 0, /* a zeroed object reads as this */
	KVT_ARENA_READY = 1,
	KVT_ARENA_DRAINING = 2, /* no new sessions; leases may finish */
	KVT_ARENA_GONE = 3,     /* the instance ended in order: attach again elsewhere */
};

enum kvt_arena_section {
	KVT_SECTION_NODES = 0,
	KVT_SECTION_BUCKETS = 1,
	KVT_SECTION_SLOT_KEYS = 2,
	KVT_SECTION_SLOT_PAGES = 3,
	KVT_SECTION_PAGES = 4,
	KVT_SECTION_NAMESPACES = 5,
	KVT_SECTION_ROOT_KEYS = 6, /* u64 of each node with KVT_NODE_KEYED */
	KVT_SECTION_SIDES = 7, /* u32 per page and kind of side page: none yet */
	KVT_ARENA_SECTIONS = 8,
};

/** One array inside an object. Before use, a reader checks offset + bytes against the object's real
 * size, and bytes against count * entry_bytes. */
struct kvt_section {
	uint64_t offset; /* bytes from the start of the object, multiple of KVT_LINE */
	uint64_t bytes;
	uint64_t count;
	uint32_t entry_bytes;
	uint32_t id;
};
_Static_assert(sizeof(struct kvt_section) == 32, "kvt_section");

/** The counters: X(kind, name, meaning), in the order of struct kvt_counters. `kvtctl status
 * --json` (member NAME) and the metrics come from this table: kvtrunk_NAME for a GAUGE,
 * kvtrunk_NAME_total for a COUNTER, which only rises. A name that ends in _ns is exposed in
 * seconds: kvtrunk_wait_ns is kvtrunk_wait_seconds_total. Units are last in the name. */
#define KVT_COUNTERS(X)                                                                           \
	X(GAUGE, free_pages, "Pages that hold nothing.")                                          \
	X(GAUGE, private_pages, "Pages that belong to one session, which may be writing them.")   \
	X(GAUGE, cached_pages, "Pages in the tree, readable by all.")                             \
	X(GAUGE, quarantined_pages, "Pages of dead sessions that may still be written.")          \
	X(GAUGE, evictable_pages, "Cached pages under no lock, detached ones included.")          \
	X(GAUGE, protected_pages, "Cached pages under a lock.")                                   \
	X(GAUGE, detached_pending, "Detached subtrees not yet reclaimed.")                        \
	X(GAUGE, live_nodes, "Tree nodes in use, roots and detached ones included.")              \
	X(GAUGE, locked_nodes, "Tree nodes under a lock.")                                        \
	X(GAUGE, live_leases, "Leases that sessions hold.")                                       \
	X(GAUGE, live_sessions, "Sessions that have not ended.")                                  \
	X(GAUGE, live_namespaces, "Namespaces that are open or hold keys.")                       \
	X(COUNTER, operations, "Operations taken from the rings.")                                \
	X(COUNTER, input_positions, "Positions asked for (keys of BEGIN).")                       \
	X(COUNTER, hit_positions, "Positions that needed no prefill (reusable of BEGIN).")        \
	X(COUNTER, inserted_pages, "Pages that became cached.")                                   \
	X(COUNTER, duplicate_pages, "Pages not cached: their keys were already.")                 \
	X(COUNTER, evicted_pages, "Cached pages evicted: to make room, or by EVICT.")             \
	X(COUNTER, advanced_positions, "Positions that COMMIT saved: others had sealed them.")    \
	X(COUNTER, expired_nodes, "Tree nodes that reached their time to live.")                  \
	X(COUNTER, merged_nodes, "Tree nodes merged into their children.")                        \
	X(COUNTER, split_nodes, "Tree nodes split.")                                              \
	X(COUNTER, violations, "Entries refused because no honest client sends them.")            \
	X(COUNTER, coalesced_positions, "Positions that waiting saved each BEGIN, added up.")     \
	X(COUNTER, waits, "BEGINs that waited for what others computed, or asked for a notice.")  \
	X(COUNTER, wait_ns, "Time that BEGINs waited, added when a wait ends.")                   \
	X(COUNTER, takeovers, "Waits that ended because no session computed the rest.")           \
	X(COUNTER, deadline_misses, "Waits that ended late: at the deadline, or nothing came.")   \
	X(COUNTER, shared_hit_positions, "Of hit_positions: those that another session sealed.")  \
	X(COUNTER, expired_pages, "Cached pages given back after their time to live.")            \
	X(COUNTER, removed_pages, "Cached pages given back after REMOVE.")                        \
	X(COUNTER, reset_pages, "Cached pages given back after RESET.")                           \
	X(COUNTER, suspected_pages, "Reports of a cached page whose KV is another than computed.")

enum kvt_counter_place {
#define KVT_COUNTER_PLACE(kind, name, text) KVT_COUNTER_##name,
	KVT_COUNTERS(KVT_COUNTER_PLACE)
#undef KVT_COUNTER_PLACE
};
#define KVT_COUNTER_CHECK(kind, name, text)                                                       \
	_Static_assert(offsetof(struct kvt_counters, name) == 8 * KVT_COUNTER_##name, #name);
KVT_COUNTERS(KVT_COUNTER_CHECK)
#undef KVT_COUNTER_CHECK
_Static_assert(sizeof(struct kvt_counters) == 384, "kvt_counters");

/** First bytes of the arena.
 *
 * `state`, `epoch` and `mutation` are written while clients read, each on its own line. `mutation`
 * is odd while the daemon is inside an operation. A successor that finds it odd rolls back; readers
 * of the counters use it as a sequence lock. */
struct kvt_arena_header {
	uint64_t magic;
	uint32_t abi; /* KVT_ABI */
	uint32_t header_bytes;
	uint64_t layout;       /* kvt_abi_layout() of the writer */
	uint64_t object_bytes; /* size of the whole object */
	uint64_t instance[2];  /* random, one per daemon start on new objects */
	uint64_t hash_seed;    /* of the child index */
	uint64_t generation;   /* counts the daemons that served these objects */
	uint32_t page_size;    /* positions per page */
	uint32_t n_pages;      /* page 0 included */
	uint32_t n_slots;      /* slot 0 unused */
	uint32_t max_nodes;    /* node 0 unused */
	uint32_t n_buckets;    /* power of two */
	uint32_t max_namespaces;
	uint32_t n_sections;
	uint32_t policy;       /* enum kvt_policy, for display */
	uint64_t started_ns;   /* the clock that operations are stamped with */
	uint64_t reserved0[2];
	struct kvt_section sections[8];
	char fingerprint[KVT_FINGERPRINT_BYTES]; /* geometry, NUL-terminated */
	uint32_t state KVT_ALIGNED(KVT_LINE);    /* enum kvt_arena_state */
	uint64_t epoch KVT_ALIGNED(KVT_LINE);
	uint64_t mutation KVT_ALIGNED(KVT_LINE);
	struct kvt_counters counters KVT_ALIGNED(KVT_LINE);
	uint32_t n_sides;        /* kinds of side pages: none yet */
	uint32_t side_pages[8];  /* of each kind: pages of a path that a reader needs */
	uint8_t reserved1[KVT_LINE * 17 - 36];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_arena_header) % KVT_LINE == 0, "header ends on a line");
_Static_assert(sizeof(struct kvt_arena_header) <= 4096, "header is at most 4 KiB");

enum kvt_node_flag {
	KVT_NODE_LIVE = 1u << 0,     /* in use; clear = on the free list */
	KVT_NODE_ROOT = 1u << 1,     /* stands for a namespace, has no run */
	KVT_NODE_DETACHED = 1u << 2, /* top of a detached subtree; not set on what is below */
	KVT_NODE_PINNED = 1u << 3,   /* on the path of an operation that evicts (derived) */
	KVT_NODE_QUEUED = 1u << 4,   /* detached top that waits for reclaim (derived) */
	KVT_NODE_KEYED = 1u << 5,    /* below a root, and found with its root key only */
	/* Why it is DETACHED: exactly one of them then, else none. */
	KVT_NODE_EXPIRED = 1u << 6,
	KVT_NODE_REMOVED = 1u << 7,
	KVT_NODE_RESET = 1u << 8,
	KVT_NODE_MADE_ROOM = 1u << 9, /* for another namespace */
	KVT_NODE_WHY = 15u << 6,      /* all of them */
};

#define KVT_NODE_UNLISTED UINT32_MAX /* as kvt_node.younger */

/** A radix-tree node: a run of whole pages, `n_slots` slots from `first_slot` on.
 *
 * One node is two lines. The first holds all that a lock-free reader needs and is covered by
 * `version` (odd while it changes). The second is bookkeeping of the daemon: LOCK, UNLOCK and
 * touches change only this line, so they cost readers nothing.
 *
 * `start` is absolute, so a handle (node, generation, positions) stays good when the node is split
 * (the lower part keeps the id) or its upper neighbour is merged into it. Invariants: sealed <=
 * n_slots; an unlocked node has sealed == n_slots > 0 (roots: 0); start == parent.start +
 * parent.n_slots. */
struct kvt_node {
	uint32_t version;    /* sequence lock for this line */
	uint32_t generation; /* raised when freed, trimmed or merged away */
	uint32_t parent;     /* KVT_NONE for roots, and for detached tops without locks */
	uint32_t first_slot;
	uint32_t n_slots;    /* pages announced or cached */
	uint32_t sealed;     /* leading pages that are cached */
	uint32_t start;      /* pages before this node on its path */
	uint32_t flags;      /* enum kvt_node_flag */
	uint32_t namespace_id;
	int32_t priority;
	uint64_t expiry_ns;  /* UINT64_MAX: never */
	uint64_t epoch;      /* of the node's creation */
	uint64_t created;    /* logical time of creation; a split copies it. Free: its ticket */

	uint32_t lock_ref;   /* derived: live leases whose path crosses this node */
	uint32_t hits;
	uint64_t touched;    /* logical time of the last touch; larger is younger */
	uint64_t touched_ns; /* clock at the last touch, for display */
	uint32_t older;      /* recency list (derived) */
	uint32_t younger;    /* KVT_NODE_UNLISTED: not in the list (derived) */
	uint32_t heap_at;    /* place in the policy heap + 1, 0 = not in it (derived) */
	uint32_t expiry_at;  /* place in the expiry heap + 1 (derived) */
	uint32_t first_child;  /* derived */
	uint32_t next_sibling; /* derived */
	uint32_t prev_sibling; /* derived */
	uint32_t n_children;   /* derived */
	uint32_t tag;        /* its key in the child index (derived) */
	uint32_t announcer;  /* a lease that computes what is announced here: a hint (derived) */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_node) == 128, "a node is exactly one pair of lines");
_Static_assert(offsetof(struct kvt_node, lock_ref) == 64, "readers use line 1 only");

/** A bucket of the child index: (tag << 32) | child, 0 when empty. The tag is the 32-bit hash of
 * (parent, root key, first page of keys); it also gives the home bucket, so deletion can shift
 * entries back without reading nodes. A hit is a hint: the child's parent and keys decide. */
typedef uint64_t kvt_bucket;

/** What a page is. The owner of a private one is in the ledger. All derived (from slots and owners)
 * but two facts: whether an owned page is PRIVATE or in QUARANTINE, and the sealer of a CACHED one.
 * In other states sealer and parent are left over. */
struct kvt_page_record {
	uint32_t slot;        /* its slot when CACHED, else KVT_NONE */
	uint32_t state : 8;   /* enum kvt_page_state: the low bits */
	uint32_t sealer : 24; /* number of the session that sealed it; 0: unknown */
	uint32_t parent;      /* page in front on the path, 0 at a root: constant while CACHED */
	uint32_t reserved;
};
#define KVT_SEALER_MASK 0xffffffu
_Static_assert(sizeof(struct kvt_page_record) == 16, "kvt_page_record");

enum kvt_namespace_flag {
	KVT_NAMESPACE_USED = 1u << 0, /* clear: the record is free */
};

/** A namespace that is open in some session or still has keys. Its label is in the ledger: clients
 * need not read each other's adapter names. */
struct kvt_namespace_record {
	uint64_t digest[2];
	uint32_t flags; /* enum kvt_namespace_flag */
	uint32_t root;  /* node, KVT_NONE while it has no keys (derived) */
	uint32_t opened; /* sessions that have it open (derived) */
	uint32_t generation; /* RENEWs since the record was made; the tree does not know it */
	uint64_t cached_pages;    /* derived */
	uint64_t evictable_pages; /* derived */
	uint64_t protected_pages; /* derived */
	uint64_t nodes;           /* derived: nodes that name this record */
} KVT_ALIGNED(64);
_Static_assert(sizeof(struct kvt_namespace_record) == 64, "kvt_namespace_record");

/* ---------------------------------------------------------------------- operations */

/** One submission, 64 bytes: half a line pair, so that two fit one. The daemon copies it once.
 *
 *  offset 0        4        8               16              24              32
 *         op,flags namespace user_data       keys: off, n    list: off, cap
 *  offset 32       36       40              48               56      60
 *         arg      node     gen, positions   fence_value      priority ttl_ms
 *
 * Offsets and lengths of keys are u32 elements in the key area, those of lists u32 elements in the
 * list area. With ROOT_KEY, two words at the keys' offset are the root key, low word first, and the
 * `n` keys follow them; not with a handle, which has its root. Unused fields must be 0 (fence_slot:
 * KVT_FENCE_IDLE or 0).
 *
 *   MATCH   namespace keys list(with LOCK); node generation positions (start, as INSERT's)
 *   LOCK    node generation positions, list; with SHORTER the leading pages of the handle that are
 *           left, -ESTALE if none is
 *   UNLOCK  lease fence
 *   ALLOC   arg = pages, list; with SHORTER fewer if there are fewer, -ENOSPC or -EDQUOT if none
 *   FREE    keys = page numbers, fence
 *   INSERT  namespace keys; arg = offset of the page numbers in the key area; node generation
 *           positions (start, node KVT_NONE = from the root); fence priority ttl_ms; list = twins
 *           as pairs (yours, cached), followed with LOCK by the page list
 *   BEGIN   namespace keys; arg = extra positions; node generation positions (start, as
 *           INSERT's); list = page table and, if there is room, a word behind its n_list: the
 *           reused positions that other sessions sealed; ttl_ms = deadline, with WAIT or NO_WAIT
 *           only
 *   COMMIT  lease; arg = computed positions; keys = generated keys; fence; list = page table,
 *           none with NO_LIST
 *   EXTEND  lease; arg = pages; list = the new pages. Or keys = numbers of pages that ALLOC gave
 *           the session; no arg, no list
 *   END     lease; fence; with F_COMMIT arg and keys as COMMIT
 *   REMOVE  namespace keys (none: all of it; not with ROOT_KEY)
 *   LEAVE   namespace
 *   PAGE    arg = page
 *   SUSPECT arg = page, a cached one: the caller computed other KV for it
 *   EVICT   arg = pages
 *   STATS   list = struct kvt_counters as u32 words
 *   CLOSE   fence
 */
struct kvt_sqe {
	uint8_t op;         /* enum kvt_op */
	uint8_t fence_slot; /* 0..15 or KVT_FENCE_IDLE */
	uint16_t flags;     /* enum kvt_sqe_flag */
	uint32_t namespace_id;
	uint64_t user_data;
	uint32_t keys_offset;
	uint32_t n_keys;
	uint32_t list_offset;
	uint32_t list_capacity;
	uint32_t arg;
	uint32_t node;       /* handle; with lease operations: lease index */
	uint32_t generation; /* with lease operations: lease generation */
	uint32_t positions;
	uint64_t fence_value;
	int32_t priority;
	uint32_t ttl_ms;
};
_Static_assert(sizeof(struct kvt_sqe) == 64, "kvt_sqe");

/** Words of the key area in front of an entry's keys. */
static inline uint32_t kvt_root_key_words(uint32_t flags)
{
	return flags & KVT_F_ROOT_KEY ? sizeof(uint64_t) / sizeof(uint32_t) : 0;
}

/** What an operation takes from its entry; what it does not take must be 0. */
enum kvt_takes {
	KVT_TAKES_NAMESPACE = 1u << 0,
	KVT_TAKES_KEYS = 1u << 1,
	KVT_TAKES_LIST = 1u << 2, /* its answer may have one; without, n_list is 0 */
	KVT_TAKES_ARG = 1u << 3,
	KVT_TAKES_HANDLE = 1u << 4,
	KVT_TAKES_LEASE = 1u << 5, /* in the fields of a handle */
	KVT_TAKES_FENCE = 1u << 6, /* so it may have to wait for it */
	KVT_TAKES_POLICY = 1u << 7, /* priority and TTL */
	KVT_TAKES_DEADLINE = 1u << 8, /* ttl_ms, with WAIT or NO_WAIT */
	KVT_TAKES_PRIVILEGE = 1u << 9,
	KVT_TAKES_PAGES = 1u << 10, /* its keys are page numbers */
};

/** How many list words an answer has at most. */
enum kvt_list_size {
	KVT_LIST_NONE,
	KVT_LIST_KEYS,     /* with LOCK, pages of the handle and the keys */
	KVT_LIST_HANDLE,   /* pages of the handle */
	KVT_LIST_ARG,      /* arg */
	KVT_LIST_TWINS,    /* two a page of the keys; with LOCK, the pages of the path */
	KVT_LIST_BEGUN,    /* pages of the handle, the keys, and arg positions behind them */
	KVT_LIST_TABLE,    /* the lease's page table */
	KVT_LIST_COUNTERS, /* struct kvt_counters */
};

/** The operations, each once: X(NAME, name, enum kvt_takes, enum kvt_sqe_flag, list size, answer).
 *
 * The answer is four words of its completion (struct kvt_cqe): W(name), or U(n) for word n that is
 * 0. Counts of keys are positions, all others pages. KVT_OPS(X, , ) does without W and U. */
#define KVT_OPS(X, W, U)                                                                  \
	X(NOP, nop, 0, 0, KVT_LIST_NONE, U(0) U(1) U(2) U(3))                             \
	X(MATCH, match,                                                                   \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_HANDLE,       \
	  KVT_F_LOCK | KVT_F_NO_TOUCH | KVT_F_ROOT_KEY, KVT_LIST_KEYS,                    \
	  W(matched) W(announced) U(2) U(3))                                              \
	X(LOCK, lock, KVT_TAKES_HANDLE | KVT_TAKES_LIST, KVT_F_SHORTER, KVT_LIST_HANDLE,  \
	  W(matched) U(1) U(2) U(3))                                                      \
	X(UNLOCK, unlock, KVT_TAKES_LEASE | KVT_TAKES_FENCE, 0, KVT_LIST_NONE,            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(ALLOC, alloc, KVT_TAKES_ARG | KVT_TAKES_LIST,                                   \
	  KVT_F_SHORTER | KVT_F_OWN_STREAM, KVT_LIST_ARG,                                 \
	  U(0) U(1) W(evicted) U(3))                                                      \
	X(FREE, free, KVT_TAKES_KEYS | KVT_TAKES_PAGES | KVT_TAKES_FENCE, 0,              \
	  KVT_LIST_NONE, U(0) U(1) U(2) W(freed))                                         \
	X(INSERT, insert,                                                                 \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |         \
	  KVT_TAKES_HANDLE | KVT_TAKES_FENCE | KVT_TAKES_POLICY,                          \
	  KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL | KVT_F_ROOT_KEY, KVT_LIST_TWINS,        \
	  W(existed) W(inserted) W(evicted) W(n_twins))                                   \
	X(BEGIN, begin,                                                                   \
	  KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |         \
	  KVT_TAKES_HANDLE | KVT_TAKES_DEADLINE,                                          \
	  KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT | KVT_F_OWN_STREAM | \
	  KVT_F_ROOT_KEY,                                                                 \
	  KVT_LIST_BEGUN,                                                                 \
	  W(matched) W(reusable) W(announced) W(evicted))                                 \
	X(COMMIT, commit,                                                                 \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_LIST | KVT_TAKES_ARG |             \
	  KVT_TAKES_FENCE,                                                                \
	  KVT_F_CHUNKED | KVT_F_KEEP | KVT_F_NO_LIST, KVT_LIST_TABLE,                     \
	  W(next) W(advanced) W(sealed) W(duplicates))                                    \
	X(EXTEND, extend,                                                                 \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_PAGES | KVT_TAKES_LIST |           \
	  KVT_TAKES_ARG, KVT_F_OWN_STREAM, KVT_LIST_ARG, U(0) U(1) W(evicted) U(3))       \
	X(END, end,                                                                       \
	  KVT_TAKES_LEASE | KVT_TAKES_KEYS | KVT_TAKES_ARG | KVT_TAKES_FENCE,             \
	  KVT_F_COMMIT | KVT_F_CHUNKED | KVT_F_KEEP, KVT_LIST_NONE,                       \
	  U(0) U(1) W(sealed) W(freed))                                                   \
	X(REMOVE, remove, KVT_TAKES_NAMESPACE | KVT_TAKES_KEYS, KVT_F_ROOT_KEY,           \
	  KVT_LIST_NONE, W(state) U(1) U(2) U(3)) /* 1 if something was detached */       \
	X(PAGE, page, KVT_TAKES_ARG, 0, KVT_LIST_NONE,                                    \
	  W(state) W(owner) W(sealer) W(lock_ref)) /* enum kvt_page_state, session */     \
	X(EVICT, evict, KVT_TAKES_ARG | KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,            \
	  U(0) U(1) W(evicted) U(3))                                                      \
	X(RESET, reset, KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,                            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(STATS, stats, KVT_TAKES_LIST, 0, KVT_LIST_COUNTERS,                             \
	  U(0) U(1) U(2) U(3))                                                            \
	X(AUDIT, audit, KVT_TAKES_PRIVILEGE, 0, KVT_LIST_NONE,                            \
	  W(problems) U(1) U(2) U(3))                                                     \
	X(CLOSE, close, KVT_TAKES_FENCE, 0, KVT_LIST_NONE,                                \
	  U(0) U(1) U(2) W(freed))                                                        \
	X(LEAVE, leave, KVT_TAKES_NAMESPACE, 0, KVT_LIST_NONE,                            \
	  U(0) U(1) U(2) U(3))                                                            \
	X(SUSPECT, suspect, KVT_TAKES_ARG, 0, KVT_LIST_NONE,                              \
	  U(0) W(owner) U(2) U(3)) /* the session that sealed it; 0: it has ended */

#define KVT_OP_ONE(NAME, name, takes, flags, list, answer) +1
_Static_assert(KVT_OPS(KVT_OP_ONE, , ) == KVT_OP_COUNT, "KVT_OPS has a row for each operation");
#undef KVT_OP_ONE

#define KVT_OP_TAKES(NAME, name, takes, flags, list, answer)                              \
	case KVT_OP_##NAME:                                                               \
		return (takes);
/** What an operation takes: enum kvt_takes; 0 for numbers that are none. */
static inline uint32_t kvt_op_takes(uint32_t op)
{
	switch (op) {
		KVT_OPS(KVT_OP_TAKES, , )
	default:
		return 0;
	}
}
#undef KVT_OP_TAKES

/* struct kvt_answer_match { uint32_t matched, announced, unused2, unused3; }, and so on. */
#define KVT_ANSWER_WORD(name) uint32_t name;
#define KVT_ANSWER_UNUSED(n) uint32_t unused##n;
#define KVT_ANSWER(NAME, name, takes, flags, list, answer)                                \
	struct kvt_answer_##name {                                                        \
		answer                                                                    \
	};                                                                                \
	_Static_assert(sizeof(struct kvt_answer_##name) == 16, "an answer is four words");
KVT_OPS(KVT_ANSWER, KVT_ANSWER_WORD, KVT_ANSWER_UNUSED)
#undef KVT_ANSWER
#undef KVT_ANSWER_UNUSED
#undef KVT_ANSWER_WORD

/** The answer to a refused operation: the number of its reason. */
struct kvt_answer_refused {
	/* -ENOSPC: pages that this very operation could have had: free and evictable ones without
	 * those that it would have locked. -ENOBUFS: list words needed. -EDQUOT: the limit.
	 * -EAGAIN (BEGIN with NO_WAIT): positions that others compute. -EBUSY (LEAVE): leases and
	 * operations of the session there. Else of COMMIT: `next`. */
	uint32_t number;
	uint32_t needed; /* pages; -ENOSPC for want of pages */
	uint32_t unused2, unused3;
};

/** The second answer to a BEGIN with NO_WAIT. */
struct kvt_answer_notice {
	uint32_t matched; /* positions, by then */
	uint32_t unused1;
	uint32_t state; /* enum kvt_notice */
	uint32_t unused3;
};

/** One completion. `seq` is the daemon's global order of effects.
 *
 * A handle: MATCH, LOCK, INSERT, BEGIN (of the match), END (of the leading pages of its path
 * that stay cached; 0 if they are detached), PAGE. A lease: LOCK, BEGIN, COMMIT,
 * EXTEND; MATCH and INSERT with LOCK. Counts are in the answer that has the operation's name, as
 * cqe.begin.reusable: its row of KVT_OPS. On failure `result` is a negative errno, `reason` an enum
 * kvt_reason, and only `refused` holds something.
 *
 * COMMIT, and END with F_COMMIT: `computed` must lie within the page table, and every position
 * below it must have a key. Keys are taken as far as the table goes and the rest is left out, as
 * that of a token just sampled, which has no KV yet. `positions` of COMMIT says how many are known
 * now: the next ones begin there. A COMMIT with `computed` below `next` changes nothing and takes
 * no keys. A refused one takes none, either.
 *
 * A BEGIN with NO_WAIT that was answered -EAGAIN has a second completion with the same user_data:
 * KVT_CQE_ASYNC, no lease, result 0 and `notice`; -ESTALE if its handle went stale meanwhile. */
struct kvt_cqe {
	uint64_t user_data;
	uint64_t seq;
	int32_t result;
	uint16_t reason;
	uint16_t flags;
	uint32_t lease;
	uint32_t lease_generation;
	uint32_t node;
	uint32_t generation;
	uint32_t positions;
	union {
#define KVT_ANSWER_MEMBER(NAME, name, takes, flags, list, answer) struct kvt_answer_##name name;
		KVT_OPS(KVT_ANSWER_MEMBER, , )
#undef KVT_ANSWER_MEMBER
		struct kvt_answer_refused refused;
		struct kvt_answer_notice notice;
		uint32_t words[4];
	};
	uint32_t n_list; /* words in the list area, twins included */
};
_Static_assert(sizeof(struct kvt_cqe) == 64, "kvt_cqe");
_Static_assert(offsetof(struct kvt_cqe, words) == 44, "answers begin at 44");
_Static_assert(offsetof(struct kvt_cqe, n_list) == 60, "n_list is the last word");

/* ---------------------------------------------------------------------- session segment */

/* A client can punch holes into its own memory while the daemon uses it; a fault there waits until
 * the hole is made. No seal forbids that, so the sizes bound it: every operation touches little,
 * and no area is larger than one operation can use. */
#define KVT_SEGMENT_BYTES_MAX 65536u

/** First bytes of a session segment: a memfd that the daemon makes, sizes and seals. The key area
 * and the list area are in a second one.
 *
 * The four indices are free running and only ever compared by unsigned difference; entry i is at i
 * & (entries - 1). Each has one writer and a line of its own. The daemon reads sizes from its own
 * copy, never from here: a client can write every byte of this object.
 *
 *   client: entry, then sq_tail (release)      daemon: sq_tail (acquire), entry, sq_head (release)
 *   daemon: entry, then cq_tail (release)      client: cq_tail (acquire), entry, cq_head (release)
 *
 * Sleeping: a side sets its *_need_wakeup, issues a full fence, looks once more, then sleeps on its
 * descriptor. The other side, after publishing, issues a full fence and reads the flag. */
struct kvt_segment_header {
	uint64_t magic;
	uint32_t abi; /* KVT_ABI */
	uint32_t header_bytes;
	uint64_t layout;
	uint64_t object_bytes;
	uint32_t sq_entries; /* powers of two */
	uint32_t cq_entries;
	uint64_t sq_offset;
	uint64_t cq_offset;
	uint64_t fences_offset; /* KVT_FENCE_WORDS lines, the word first on each */
	uint64_t areas_bytes;   /* of the second object; 0: there is none */
	uint64_t keys_offset;   /* in it */
	uint64_t keys_count;    /* u32 */
	uint64_t list_offset;   /* in it */
	uint64_t list_count;    /* u32 */
	uint32_t session;
	uint32_t reserved0[3];
	uint32_t sq_head KVT_ALIGNED(KVT_LINE); /* daemon */
	uint32_t sq_tail KVT_ALIGNED(KVT_LINE); /* client */
	uint32_t client_cpu; /* where it last submitted: number + 1; 0 = unknown */
	uint32_t pace_us;    /* client: its next entry comes within; 0 = unknown */
	uint32_t raises_ring; /* client: 1 = each raise of a fence word rings the doorbell */
	uint32_t cq_head KVT_ALIGNED(KVT_LINE); /* client */
	uint32_t cq_tail KVT_ALIGNED(KVT_LINE); /* daemon */
	uint32_t daemon_cpu; /* where it last answered: number + 1; 0 = unknown */
	uint32_t sq_need_wakeup KVT_ALIGNED(KVT_LINE); /* daemon: "ring my eventfd" */
	uint32_t cq_need_wakeup KVT_ALIGNED(KVT_LINE); /* client: "ring mine" */
	uint32_t gone KVT_ALIGNED(KVT_LINE); /* daemon: session over, errno in the low bits */
	uint8_t reserved1[KVT_LINE - sizeof(uint32_t)];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_segment_header) == 8 * KVT_LINE, "kvt_segment_header");

struct kvt_fence_word {
	uint64_t value;
	uint8_t reserved[KVT_LINE - 8];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_fence_word) == KVT_LINE, "kvt_fence_word");

#define KVT_MIRROR_RING 32768u /* bytes; a power of two */

/** How far a member has read. A line of its own, which it writes and rank 0 polls. */
struct kvt_mirror_reader {
	uint32_t read;       /* as `written`; a futex */
	uint32_t writer_sleeps; /* rank 0: "wake me" */
	uint8_t reserved[KVT_LINE - 8];
};

/** The mirror of a group: messages of rank 0, each for every member, in order. The daemon makes the
 * object, zeroed, and passes it to rank 0 and to each member.
 *
 * A message is a word with its length, at most KVT_MIRROR_MESSAGE_MAX, and its bytes, padded to 4.
 * Positions count bytes modulo 2^32; a byte lies at its position modulo KVT_MIRROR_RING. Rank 0
 * raises `written` behind a whole message, after every rank from 1 to the last has read what it
 * overwrites, joined or not. */
struct kvt_mirror {
	uint32_t written;      /* rank 0; a futex */
	uint32_t reader_sleeps; /* members: "wake me" */
	uint8_t reserved[KVT_LINE - 8];
	struct kvt_mirror_reader readers[KVT_MAX_RANKS]; /* by rank; 0 unused */
	uint8_t ring[KVT_MIRROR_RING];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_mirror) == (1 + KVT_MAX_RANKS) * KVT_LINE + KVT_MIRROR_RING,
	       "kvt_mirror");

/* ---------------------------------------------------------------------- control socket */

#define KVT_MESSAGE_MAGIC 0x5456414bu /* "KAVT" */
#define KVT_MESSAGE_MAX 65536u        /* bytes in one packet */

enum kvt_message_type {
	KVT_MSG_HELLO = 1,      /* client: open a session (or observe) */
	KVT_MSG_WELCOME = 2,    /* daemon: + descriptors */
	KVT_MSG_REFUSED = 3,    /* daemon: errno and a sentence */
	KVT_MSG_NAMESPACE = 4,  /* client: open a namespace; daemon: its number */
	KVT_MSG_ADMIN = 5,      /* client: one admin request; daemon: one answer page */
	KVT_MSG_GOODBYE = 6,    /* daemon: the session is over, and why */
	KVT_MSG_GROUP = 7,      /* client: others will join its session; daemon: the token */
	KVT_MSG_RENEW = 8,      /* client: raise a namespace's generation; daemon: the new one */
};

struct kvt_message {
	uint32_t magic;
	uint16_t type;    /* enum kvt_message_type */
	uint16_t version; /* KVT_ABI */
	uint32_t bytes;   /* of the whole message, this header included */
	int32_t result;   /* answers: 0 or negative errno */
	uint64_t cookie;  /* copied from the request */
};
_Static_assert(sizeof(struct kvt_message) == 24, "kvt_message");

_Static_assert(sizeof(struct kvt_pool_geometry) == 32 + 8 * KVT_MAX_LAYERS,
	       "kvt_pool_geometry");

/** First message on a connection. A size or count of 0 means "the daemon's"; anything else must be
 * equal, or the answer is REFUSED with the difference named. Each field of the fingerprint
 * (name=value, or a word, between semicolons) must be one of the daemon's. If the daemon has a
 * geometry or a fingerprint, a session or a member of a group must name one of the two, or say
 * KVT_ANY_GEOMETRY: it would write its KV where others read theirs. */
struct kvt_message_hello {
	struct kvt_message head;
	uint32_t reserved;
	uint32_t flags;
	uint64_t layout;
	uint32_t page_size;
	uint32_t n_pages;
	uint64_t page_bytes;
	uint32_t sq_entries; /* requested; rounded up to powers of two within the daemon's limits */
	uint32_t cq_entries;
	uint32_t keys_count; /* u32 elements of the key area */
	uint32_t list_count;
	int32_t pid;         /* getpid() of the caller: refused if it is not the connector */
	uint32_t rank;       /* with `group`: which one the caller is */
	uint64_t secret[2];  /* WELCOME's: resume that session; 0 = no */
	uint64_t group[2];   /* token: join that session instead of opening one; 0 = no */
	char fingerprint[KVT_FINGERPRINT_BYTES];
	char label[KVT_LABEL_BYTES];
	struct kvt_pool_geometry geometry;
};

/** Descriptors that come with WELCOME, in this order, those whose bit is set in `fds`. */
enum kvt_welcome_fd {
	KVT_FD_SEGMENT = 1u << 0,
	KVT_FD_AREAS = 1u << 1,      /* key area and list area; none for a member of a group */
	KVT_FD_DOORBELL = 1u << 2,   /* eventfd: client writes when sq_need_wakeup */
	KVT_FD_COMPLETION = 1u << 3, /* readable once rung after cq_need_wakeup: read 8 bytes */
	KVT_FD_ARENA = 1u << 4,      /* O_RDONLY */
	KVT_FD_POOL = 1u << 5,       /* host and cuda-vmm: one for each slab, in their order */
	KVT_FD_MIRROR = 1u << 6,     /* of a session with KVT_MIRROR: last, after all slabs */
};

/** How a client opens one slab. A device is named by its UUID, because ordinals differ from process
 * to process (CUDA_VISIBLE_DEVICES); under MIG it is that of the MIG instance. The other fields
 * name causes of failure: the driver's own errors mislead. */
struct kvt_slab_record {
	uint8_t ipc_handle[64]; /* cuda-ipc: of cuIpcGetMemHandle, else 0 */
	uint8_t device_uuid[16]; /* 0: host memory */
	int32_t device;          /* the daemon's ordinal, -1: host memory */
	uint32_t flags;          /* 0 */
	uint32_t driver;         /* cuda: cuDriverGetVersion of the daemon, e.g. 12040 */
	uint32_t pid_namespace;  /* of the daemon: inode of /proc/PID/ns/pid, 0 unknown */
	uint32_t user;           /* cuda: of the daemon, its effective uid + 1; 0 unknown */
	uint32_t reserved[7];
};
_Static_assert(sizeof(struct kvt_slab_record) == 128, "kvt_slab_record");

enum kvt_welcome_flag {
	KVT_WELCOME_PRIVILEGED = 1u << 0,
	KVT_WELCOME_DISABLED = 1u << 1,   /* caching is */
	KVT_WELCOME_TEST_CLOCK = 1u << 2,
	KVT_WELCOME_KEPT = 1u << 3,       /* all of it outlives this daemon */
	KVT_WELCOME_RESUMED = 1u << 4,    /* the session that HELLO's secret names continues */
};

struct kvt_message_welcome {
	struct kvt_message head;
	uint32_t fds; /* enum kvt_welcome_fd */
	uint32_t session;
	uint32_t page_size;
	uint32_t n_pages;
	uint64_t page_bytes;
	uint64_t pool_bytes; /* per slab */
	uint32_t backend;    /* enum kvt_pool_backend */
	uint32_t n_slabs;
	uint64_t segment_bytes;
	uint64_t areas_bytes;
	uint64_t arena_bytes;
	uint64_t epoch;
	uint64_t instance[2];
	uint64_t secret[2];
	uint32_t max_leases;
	uint32_t max_private_pages;
	uint32_t policy;
	uint32_t flags; /* enum kvt_welcome_flag */
	int32_t daemon_pid;
	uint32_t sealer; /* number of the session in the records of pages that it seals */
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_slab_record slabs[KVT_MAX_SLABS]; /* n_slabs of them; none for observers */
	struct kvt_pool_geometry geometry;
	uint32_t rank;    /* of a member; 0 for the session's opener */
	uint32_t n_ranks; /* of its group, 0 = none */
};

enum kvt_session_state {
	KVT_SESSION_FREE = 0,
	KVT_SESSION_OPEN = 1,
	KVT_SESSION_CLOSING = 2, /* CLOSE seen, its fence not reached */
	KVT_SESSION_DYING = 3,   /* over; leases and pages are being taken back */
	KVT_SESSION_DEAD = 4,    /* holds nothing but quarantined pages */
};

enum kvt_session_sign {
	KVT_SIGN_HANGUP = 1u << 0,  /* the control socket hung up */
	KVT_SIGN_EXITED = 1u << 1,  /* the pidfd fired */
	KVT_SIGN_QUIET = 1u << 2,   /* the pool backend agrees: no work in flight can write */
	KVT_SIGN_FENCED = 1u << 3,  /* declared by an operator */
	KVT_SIGN_CLOSED = 1u << 4,  /* ended by CLOSE: pages left at its fence */
};

struct kvt_message_refused {
	struct kvt_message head;
	char text[KVT_TEXT_BYTES]; /* cause and cure, one sentence, NUL-terminated */
	uint32_t state;            /* enum kvt_attach_state; GOODBYE: 0 */
	uint32_t reserved;
};

/** NAMESPACE and RENEW. RENEW raises the generation by one unless it is above `generation` already,
 * and answers it: so a repeated request, or two clients that saw the same one, raise it once. */
struct kvt_message_namespace {
	struct kvt_message head;
	uint64_t digest[2];    /* NAMESPACE */
	uint32_t namespace_id; /* answer; request of RENEW: open in the session */
	uint32_t generation;   /* answer; request of RENEW: the last one seen */
	char label[KVT_LABEL_BYTES];
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

/** Open a group on the connection's session, and the answer. */
struct kvt_message_group {
	struct kvt_message head;
	uint32_t n_ranks; /* rank 0, the session's own process, included */
	uint32_t reserved;
	uint64_t token[2]; /* chosen by the caller, 0 = random; answer: the group's */
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

enum kvt_admin_what {
	KVT_ADMIN_STATUS = 1,     /* struct kvt_admin_status */
	KVT_ADMIN_CLIENTS = 2,    /* struct kvt_admin_client, paged by cursor = session index */
	KVT_ADMIN_NAMESPACES = 3, /* struct kvt_admin_namespace, cursor = namespace number */
	KVT_ADMIN_NODES = 4,      /* struct kvt_admin_node, cursor = node id */
	KVT_ADMIN_PAGE = 5,       /* argument = page: struct kvt_admin_page */
	KVT_ADMIN_AUDIT = 6,      /* text lines; result 0 even if problems: `total` counts them.
				     Answer: argument = ns for which no client was served */
	KVT_ADMIN_EVICT = 7,      /* argument = pages; `total` = evicted */
	KVT_ADMIN_REMOVE = 8,     /* digest: the namespace; argument = root key or 0; payload keys
				   * (u32): prefix */
	KVT_ADMIN_RESET = 9,
	KVT_ADMIN_FENCE = 10,     /* argument = session: its quarantine is declared quiet */
	KVT_ADMIN_TICK = 11,      /* argument = ns: moves the test clock */
	KVT_ADMIN_SETTLED = 12,   /* struct kvt_admin_status once no background work is left */
	KVT_ADMIN_ENDED = 13,     /* argument = session | generation << 32 (0: any): answers when it
				     is DEAD, FREE or, of another generation, another client's */
	/* The keeper tries a program. argument = a random number that names the request; payload =
	 * its absolute path, or nothing: the present one's. Afterwards the daemon that serves
	 * answers; total = its pid. */
	KVT_ADMIN_UPGRADE = 14,
	KVT_ADMIN_CONFIG = 15,    /* struct kvt_admin_option, cursor = number of the option */
};

/** Request and answer. In the answer `count` records of `record_bytes` follow; `cursor` is where
 * the next request continues (0: no more). */
struct kvt_message_admin {
	struct kvt_message head;
	uint32_t what; /* enum kvt_admin_what */
	uint32_t count;
	uint64_t argument;
	uint64_t cursor;
	uint64_t total;
	uint32_t record_bytes;
	uint32_t reserved;
	uint64_t digest[2];
	char text[KVT_TEXT_BYTES]; /* answer: why not */
	/* records follow */
};

#define KVT_HISTOGRAM_BUCKETS 24 /* powers of two of 64 ns: 64 ns .. 0.5 s */

struct kvt_admin_status {
	struct kvt_counters counters;
	uint64_t epoch;
	uint64_t instance[2];
	uint64_t now_ns;
	uint64_t started_ns;
	uint64_t page_bytes;
	uint64_t pool_bytes;
	uint64_t arena_bytes;
	uint64_t ledger_bytes;
	uint32_t page_size, n_pages, n_slots, max_nodes;
	uint32_t policy, backend, disabled, draining;
	uint32_t path_nodes_p50, path_nodes_p99; /* nodes per matched path, recent BEGINs */
	uint32_t oldest_lease, oldest_lease_session;
	uint64_t oldest_lease_age_ns;
	uint64_t stale_locks; /* leases on detached paths or older epochs */
	uint64_t sleeps, spins, turns;
	int32_t daemon_pid;
	int32_t nice; /* -20 (goes first) to 19; on a shared core this decides who waits */
	uint64_t op_count[32];
	uint64_t op_histogram[32][KVT_HISTOGRAM_BUCKETS]; /* by enum kvt_op, in the daemon */
	uint64_t op_ns[32];                               /* total time in it */
	uint64_t accepted_connections, refused_connections, log_lines_dropped;
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_pool_geometry geometry;
	uint32_t n_slabs;
	uint32_t event_loop; /* 1: io_uring, 2: epoll; 0: a daemon that does not say */
	int32_t log_error;   /* negative errno: the operation log ended early; 0: it did not */
	uint32_t reserved;
	char version[24];
	char instance_name[64];
	char socket_path[112];
};

/** An option of kvtrunkd(8). `value` is as configured, `used` the effective one (0 pages: as many
 * as fit). Texts end with NUL and are cut to fit. */
struct kvt_admin_option {
	char key[32];
	char value[256];
	char used[256];
	char origin[128]; /* "default", "--policy", "FILE:12" */
	uint32_t reload;  /* 1: SIGHUP changes it, 0: needs a restart */
	uint32_t reserved;
};

struct kvt_admin_client {
	uint32_t session, state, signs, generation;
	int32_t pid;
	uint32_t uid;
	uint32_t n_leases, n_private, n_quarantined, n_pending;
	uint32_t max_leases, max_private_pages;
	uint64_t operations;
	uint64_t age_ns;
	uint64_t ended_age_ns; /* 0: alive */
	uint32_t sq_waiting, cq_waiting;
	char label[KVT_LABEL_BYTES];
	uint32_t rank, n_ranks; /* of a group; a row with rank > 0 is a member of `session` */
	uint32_t suspects;  /* SUSPECTs that it sent */
	uint32_t suspected; /* SUSPECTs of pages that it sealed */
};

struct kvt_admin_namespace {
	uint32_t namespace_id, root, opened, generation;
	uint64_t digest[2];
	uint64_t cached_pages, evictable_pages, protected_pages, nodes;
	char label[KVT_LABEL_BYTES];
};

struct kvt_admin_node {
	uint32_t node, generation, parent, first_slot, n_slots, sealed, start, flags;
	uint32_t namespace_id, n_children, lock_ref, hits;
	int32_t priority;
	uint32_t first_page; /* page in the first slot, KVT_NONE if announced */
	uint64_t age_ns;     /* since the last touch */
	uint64_t expires_in_ns; /* UINT64_MAX: never */
	uint32_t keys[4];    /* the first keys of the run, for people */
	uint64_t root_key;   /* of a node right below a root; 0: it has none */
};

struct kvt_admin_page {
	uint32_t page, state, session, lease;
	uint32_t node, generation, position, lock_ref;
};

/** Fold numbers into one: FNV-1a, computed at compile time. */
static inline uint64_t kvt_layout_fold(const uint32_t *facts, size_t n)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < n; i++)
		hash = (hash ^ facts[i]) * 0x100000001b3ull;
	return hash;
}

/** One number that changes when a structure that clients and the daemon share does: sizes,
 * alignments, and the offsets that a change of order would move. */
static inline uint64_t kvt_abi_layout(void)
{
	static const uint32_t facts[] = {
		KVT_ABI, KVT_LINE, KVT_FENCE_WORDS, KVT_OP_COUNT, KVT_REASON_COUNT,
		KVT_ARENA_SECTIONS,
		sizeof(struct kvt_arena_header), offsetof(struct kvt_arena_header, counters),
		offsetof(struct kvt_arena_header, state),
		offsetof(struct kvt_arena_header, mutation),
		sizeof(struct kvt_counters), sizeof(struct kvt_section),
		sizeof(struct kvt_node), offsetof(struct kvt_node, lock_ref),
		offsetof(struct kvt_node, expiry_ns),
		offsetof(struct kvt_node, younger), sizeof(struct kvt_page_record),
		sizeof(struct kvt_namespace_record), sizeof(struct kvt_sqe), sizeof(struct kvt_cqe),
		sizeof(struct kvt_segment_header), offsetof(struct kvt_segment_header, cq_tail),
		offsetof(struct kvt_segment_header, gone), sizeof(struct kvt_fence_word),
		sizeof(struct kvt_message_hello), sizeof(struct kvt_message_welcome),
		sizeof(struct kvt_slab_record), sizeof(struct kvt_pool_geometry),
		sizeof(struct kvt_message_group), sizeof(struct kvt_message_namespace),
		sizeof(struct kvt_message_admin), sizeof(struct kvt_admin_status),
		sizeof(struct kvt_admin_option), sizeof(struct kvt_admin_client),
		sizeof(struct kvt_admin_node),
	};

	return kvt_layout_fold(facts, sizeof(facts) / sizeof(facts[0]));
}

#endif
