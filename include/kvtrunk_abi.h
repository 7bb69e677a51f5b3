/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_ABI_H
#define KVTRUNK_ABI_H

/**
 * @file kvtrunk_abi.h
 * Every byte that two processes share: the arena, the ledger, the session segment and the
 * messages of the control socket.
 *
 * Applications want kvtrunk.h; this header is for the library, the daemon, debuggers and
 * people who write a client in another language.
 *
 *     arena     tree and page records. Written by the daemon alone, mapped read-only by clients.
 *     ledger    sessions, leases, page owners. The daemon's own, never handed out.
 *     segment   one per session: SQ, CQ, fence words. Written by both.
 *     areas     one per session: key area, list area. Written by both.
 *     messages  fixed structs on a SOCK_SEQPACKET socket, one message a packet.
 *
 * All integers are little endian (the two ends share a host, and kvtrunk refuses to build for
 * another byte order). Every structure has a fixed size that a static assertion holds, and
 * kvt_abi_layout() folds sizes and offsets into one number that both ends compare before they
 * believe anything else: two builds that disagree never touch the same memory.
 *
 * What is primary and what is derived. The facts are: node records (parent, run, sealed count,
 * flags, generation, times, policy fields), the keys and pages of their runs, which namespaces are
 * in use, the epoch, the counters that rise; and of the ledger sessions, which namespaces they
 * opened, leases with their tails and lists of pages, page owners, what waits, labels, and the
 * numbers given so far (seq, clock, tickets). Everything else follows from them: fields below are
 * marked "derived" where that is so, and a successor makes those anew without looking at them.
 * Orders are facts, too, kept as numbers: recency as times, free records and the leases of a
 * session by tickets, what waits by tokens. A record that is free means nothing but its
 * generation and its ticket; slots in no run mean nothing.
 *
 * Facts change between an odd and an even value of `mutation` only, all of one effect at once: see
 * struct kvt_undo_header for how a successor gets back when it finds an odd one.
 */

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvtrunk shares little-endian structures: this byte order is not supported"
#endif

#define KVT_ABI_MAJOR 2 /* raised when an old client could misread a new daemon's memory */
#define KVT_ABI_MINOR 0 /* raised when something was added that an old client may ignore */

/* A line that one side writes and the other polls. 128, not 64: x86 prefetches lines in pairs
 * and Arm server cores have 128-byte granules, so 64 would still ping-pong. */
#define KVT_LINE 128
#define KVT_ALIGNED(n) __attribute__((aligned(n)))

#define KVT_NONE 0u             /* "no node", "no page", "no slot": index 0 is never valid */
#define KVT_MAX_PAGE_SIZE 256u  /* positions; a power of two */
#define KVT_FENCE_WORDS 16u     /* per session: one for each stream an engine uses, with slack */
#define KVT_MAX_SLABS 16u       /* devices of one pool: as many as the largest hosts have */
#define KVT_MAX_RANKS 16u       /* processes of one group: a rank for each slab */
#define KVT_MAX_LAYERS 256u     /* of one slab: the deepest open models have half of that */
#define KVT_FINGERPRINT_BYTES 256u
#define KVT_LABEL_BYTES 64u

/* ---------------------------------------------------------------------- arena */

#define KVT_ARENA_MAGIC 0x3130414e4552414bull   /* "KARENA01" */
#define KVT_LEDGER_MAGIC 0x313047454c54564bull  /* "KVTLEG01" */
#define KVT_SEGMENT_MAGIC 0x313047455354564bull /* "KVTSEG01" */

/** Life of an arena. Written last at start-up and first at shutdown, so whoever reads READY
 * reads a complete header. */
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
	KVT_ARENA_SECTIONS = 6,
};

enum kvt_ledger_section {
	KVT_LSECTION_SESSIONS = 0,
	KVT_LSECTION_LEASES = 1,
	KVT_LSECTION_TAILS = 2,
	KVT_LSECTION_OWNERS = 3,
	KVT_LSECTION_PENDING = 4,
	KVT_LSECTION_OPENED = 5,
	KVT_LSECTION_LABELS = 6, /* of namespaces, KVT_LABEL_BYTES each, by the first opener */
	KVT_LSECTION_UNDO = 7, /* struct kvt_undo_header, then 64-bit words of entries */
	KVT_LSECTION_MEMBERS = 8, /* of groups */
	KVT_LSECTION_MAKERS = 9, /* u32: uid of the session that made a namespace */
	KVT_LEDGER_SECTIONS = 10,
};

/** One array inside an object. A reader checks offset + bytes against the object's real size
 * and bytes against count * entry_bytes before it uses either. */
struct kvt_section {
	uint64_t offset; /* bytes from the start of the object, multiple of KVT_LINE */
	uint64_t bytes;
	uint64_t count;
	uint32_t entry_bytes;
	uint32_t id;
};
_Static_assert(sizeof(struct kvt_section) == 32, "kvt_section");

/** What is counted: X(kind, name, what it means), in the order of struct kvt_counters. The table
 * also makes `kvtctl status --json` (member NAME) and the metrics (kvtrunk_NAME for a GAUGE,
 * kvtrunk_NAME_total for a COUNTER, which only rises; a name that ends in _ns is exposed in
 * seconds: kvtrunk_wait_ns is kvtrunk_wait_seconds_total). Units are last in the name. */
#define KVT_COUNTERS(X)                                                                           \
	X(GAUGE, free_pages, "Pages that hold nothing.")                                          \
	X(GAUGE, private_pages, "Pages that belong to one session, which may be writing them.")   \
	X(GAUGE, cached_pages, "Pages in the tree, readable by all.")                             \
	X(GAUGE, quarantined_pages, "Pages of dead sessions that something may still write.")     \
	X(GAUGE, evictable_pages, "Cached pages under no lock, detached ones included.")          \
	X(GAUGE, protected_pages, "Cached pages under a lock.")                                   \
	X(GAUGE, detached_pending, "Detached subtrees that are not reclaimed yet.")               \
	X(GAUGE, live_nodes, "Tree nodes in use, roots and detached ones included.")              \
	X(GAUGE, locked_nodes, "Tree nodes under a lock.")                                        \
	X(GAUGE, live_leases, "Leases that sessions hold.")                                       \
	X(GAUGE, live_sessions, "Sessions that are not over.")                                    \
	X(GAUGE, live_namespaces, "Namespaces that are open or hold keys.")                       \
	X(COUNTER, operations, "Operations taken from the rings.")                                \
	X(COUNTER, input_positions, "Positions asked for (keys of BEGIN).")                       \
	X(COUNTER, hit_positions, "Positions that needed no prefill (reusable of BEGIN).")        \
	X(COUNTER, inserted_pages, "Pages that became cached.")                                   \
	X(COUNTER, duplicate_pages, "Pages that came back because somebody else had sealed.")     \
	X(COUNTER, evicted_pages, "Cached pages that were given up to make room.")                \
	X(COUNTER, advanced_positions, "Positions that COMMIT saved: others had sealed them.")    \
	X(COUNTER, expired_nodes, "Tree nodes that reached their time to live.")                  \
	X(COUNTER, merged_nodes, "Tree nodes merged into their children.")                        \
	X(COUNTER, split_nodes, "Tree nodes split.")                                              \
	X(COUNTER, violations, "Entries refused because no honest client sends them.")            \
	X(COUNTER, coalesced_positions, "Positions that others sealed while a BEGIN waited.")     \
	X(COUNTER, waits, "BEGINs that waited for what others computed, or asked for a notice.")  \
	X(COUNTER, wait_ns, "How long they waited; those that still do are not included.")        \
	X(COUNTER, takeovers, "Waits that ended because nobody computed the rest any more.")      \
	X(COUNTER, deadline_misses, "Waits that ended with their deadline.")

#define KVT_COUNTER_FIELD(kind, name, text) uint64_t name;
#define KVT_COUNTER_ONE(kind, name, text) +1
#define KVT_COUNTER_ROOM 32 /* of the struct, so that a new counter moves nothing */

/** Counters that are true between two operations. A GAUGE is derived; a COUNTER rises from the
 * start of the objects, over restarts. free + private + cached + quarantined == n_pages - 1. They
 * are one block so that reading them is O(1) and one seqlock pass over `mutation` gives a
 * consistent set. */
struct kvt_counters {
	KVT_COUNTERS(KVT_COUNTER_FIELD)
	uint64_t reserved[KVT_COUNTER_ROOM - (0 KVT_COUNTERS(KVT_COUNTER_ONE))];
};
_Static_assert(sizeof(struct kvt_counters) == 256, "kvt_counters");

/** First bytes of the arena.
 *
 * `state`, `epoch` and `mutation` are written while clients read, each on its own line. `mutation`
 * is odd while the daemon is inside an operation: a successor that finds it odd knows that the
 * last one died half way, a reader of the counters uses it as a sequence lock. */
struct kvt_arena_header {
	uint64_t magic;
	uint16_t abi_major;
	uint16_t abi_minor;
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
	uint8_t reserved1[KVT_LINE * 18];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_arena_header) % KVT_LINE == 0, "header ends on a line");
_Static_assert(sizeof(struct kvt_arena_header) <= 4096, "header is at most 4 KiB");

enum kvt_node_flag {
	KVT_NODE_LIVE = 1u << 0,     /* in use; clear = on the free list */
	KVT_NODE_ROOT = 1u << 1,     /* stands for a namespace, has no run */
	KVT_NODE_DETACHED = 1u << 2, /* top of a detached subtree; not set on what is below */
	KVT_NODE_LISTED = 1u << 3,   /* in the recency list (derived) */
	KVT_NODE_PINNED = 1u << 4,   /* on the path of the running operation (derived) */
	KVT_NODE_QUEUED = 1u << 5,   /* detached top that waits for reclaim (derived) */
};

/** A radix-tree node: a run of whole pages, `n_slots` slots from `first_slot` on.
 *
 * One node is two lines. The first holds all that a lock-free reader needs and is covered by
 * `version` (odd while it changes); the second is bookkeeping that only the daemon and display
 * tools read. `start` is absolute, so a handle (node, generation, positions) stays good when the
 * node is split (the lower part keeps the id) or its upper neighbour is merged into it.
 * Invariants: sealed <= n_slots; an unlocked node has sealed == n_slots > 0 (roots: 0);
 * start == parent.start + parent.n_slots. */
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
	uint32_t first_child;  /* derived */
	uint32_t next_sibling; /* derived */
	uint32_t prev_sibling; /* derived */
	uint32_t n_children;   /* derived */
	uint32_t lock_ref;     /* derived: live leases whose path crosses this node */
	uint32_t hits;
	int32_t priority;
	uint64_t touched;   /* logical time of the last touch; larger is younger */
	uint64_t created;   /* logical time of creation; a split copies it. Free: its ticket */
	uint64_t expiry_ns; /* UINT64_MAX: never */
	uint64_t touched_ns; /* clock at the last touch, for display */
	uint32_t older;      /* recency list (derived) */
	uint32_t younger;    /* derived */
	uint32_t heap_at;    /* place in the policy heap + 1, 0 = not in it (derived) */
	uint32_t expiry_at;  /* place in the expiry heap + 1 (derived) */
	uint64_t epoch;      /* of the node's creation */
	uint32_t tag;        /* its key in the child index (derived) */
	uint32_t announcer;  /* a lease that computes what is announced here: a hint (derived) */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_node) == 128, "a node is exactly one pair of lines");
_Static_assert(offsetof(struct kvt_node, touched) == 64, "readers' fields fill the first 64 bytes");

/** A bucket of the child index: (tag << 32) | child, 0 when empty. The tag is the 32-bit hash of
 * (parent, first page of keys); it also gives the home bucket, so deletion can shift entries
 * back without reading nodes. A hit is a hint: the child's parent and keys decide. */
typedef uint64_t kvt_bucket;

enum kvt_page_state {
	KVT_PAGE_FREE = 0,
	KVT_PAGE_PRIVATE = 1,
	KVT_PAGE_CACHED = 2,
	KVT_PAGE_QUARANTINE = 3,
	KVT_PAGE_SCRATCH = 4, /* page 0 alone */
};

/** What a page is. Who owns a private one is in the ledger, not here. All derived (from slots and
 * owners) but one thing: whether an owned page is PRIVATE or in QUARANTINE. */
struct kvt_page_record {
	uint32_t slot;  /* its slot when CACHED, else KVT_NONE */
	uint32_t state; /* enum kvt_page_state */
};
_Static_assert(sizeof(struct kvt_page_record) == 8, "kvt_page_record");

/** A namespace that is open in some session or still has keys. What people call it is in the
 * ledger: clients have no need to read each other's adapter names. */
struct kvt_namespace_record {
	uint64_t digest[2];
	uint32_t flags; /* 1 = in use */
	uint32_t root;  /* node, KVT_NONE while it has no keys (derived) */
	uint32_t opened; /* sessions that have it open (derived) */
	uint32_t reserved0;
	uint64_t cached_pages;    /* derived */
	uint64_t evictable_pages; /* derived */
	uint64_t protected_pages; /* derived */
	uint64_t nodes;           /* derived: nodes that name this record */
} KVT_ALIGNED(64);
_Static_assert(sizeof(struct kvt_namespace_record) == 64, "kvt_namespace_record");

/* ---------------------------------------------------------------------- operations */

enum kvt_op {
	KVT_OP_NOP = 0, /* an empty round trip */
	KVT_OP_MATCH = 1,
	KVT_OP_LOCK = 2,
	KVT_OP_UNLOCK = 3,
	KVT_OP_ALLOC = 4,
	KVT_OP_FREE = 5,
	KVT_OP_INSERT = 6,
	KVT_OP_BEGIN = 7,
	KVT_OP_COMMIT = 8,
	KVT_OP_EXTEND = 9,
	KVT_OP_END = 10,
	KVT_OP_REMOVE = 11,
	KVT_OP_PAGE = 12,
	KVT_OP_EVICT = 13,
	KVT_OP_RESET = 14,
	KVT_OP_STATS = 15,
	KVT_OP_AUDIT = 16,
	KVT_OP_CLOSE = 17,
	KVT_OP_COUNT = 18,
};

enum kvt_sqe_flag {
	KVT_F_LOCK = 1u << 0,       /* MATCH, INSERT: take a lease on the result */
	KVT_F_NO_TOUCH = 1u << 1,   /* MATCH without LOCK: leave recency alone */
	KVT_F_CHUNKED = 1u << 2,    /* INSERT, COMMIT, END: not the last chunk, counts no hit */
	KVT_F_KEEP = 1u << 3,       /* COMMIT, END: duplicates stay private until END */
	KVT_F_FULL = 1u << 4,       /* BEGIN: do not cap reuse below the number of keys */
	KVT_F_FORCE_MISS = 1u << 5, /* BEGIN: reuse nothing */
	KVT_F_COMMIT = 1u << 6,     /* END: with a last COMMIT */
	KVT_F_TTL = 1u << 7,        /* INSERT: ttl_ms counts; without it entries never expire */
	KVT_F_WAIT = 1u << 8,       /* BEGIN: wait up to ttl_ms for what others compute of it */
	KVT_F_NO_WAIT = 1u << 9,    /* BEGIN: do not begin then, but be told within ttl_ms */
};

#define KVT_FENCE_IDLE 0xffu /* fence_slot: nothing launched touches the pages */

/** One submission, 64 bytes: half a line pair, so that two fit one. The daemon copies it once.
 *
 *  offset 0        4        8               16              24              32
 *         op,flags namespace user_data       keys: off, n    list: off, cap
 *  offset 32       36       40              48               56      60
 *         arg      node     gen, positions   fence_value      priority ttl_ms
 *
 * Offsets and lengths of keys are u32 elements in the key area, those of lists u32 elements in
 * the list area. Fields an operation does not use must be 0 (fence_slot: KVT_FENCE_IDLE or 0).
 *
 *   MATCH   namespace keys list(with LOCK)
 *   LOCK    node generation positions, list
 *   UNLOCK  lease fence
 *   ALLOC   arg = pages, list
 *   FREE    keys = page numbers, fence
 *   INSERT  namespace keys; arg = offset of the page numbers in the key area; node generation
 *           positions (start, node KVT_NONE = from the root); fence priority ttl_ms; list = twins
 *           as pairs (yours, cached), followed with LOCK by the page list
 *   BEGIN   namespace keys; arg = extra positions; list = page table; ttl_ms = deadline, with WAIT
 *           or NO_WAIT only
 *   COMMIT  lease; arg = computed positions; keys = generated keys; fence; list = page table
 *   EXTEND  lease; arg = pages; list = the new pages
 *   END     lease; fence; with F_COMMIT arg and keys as COMMIT
 *   REMOVE  namespace keys
 *   PAGE    arg = page
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

enum kvt_cqe_flag {
	KVT_CQE_DEFERRED = 1u << 0, /* the operation waited: for its fence, a BEGIN for others */
	KVT_CQE_DETACHED = 1u << 1, /* END: its path was detached; its COMMIT sealed nothing */
	KVT_CQE_ASYNC = 1u << 2,    /* BEGIN: the notice that NO_WAIT asked for, not a lease */
	KVT_CQE_DEADLINE = 1u << 3, /* BEGIN: it waited until its deadline passed */
	KVT_CQE_TAKEOVER = 1u << 4, /* BEGIN: who computed what it waited for does not any more */
	KVT_CQE_NO_PLACE = 1u << 5, /* BEGIN: it would have waited, but there was no place to */
};

/** What a notice (KVT_CQE_ASYNC) says in `c`. */
enum kvt_notice {
	KVT_NOTICE_SEALED = 1,    /* what others computed is sealed, but for a small rest */
	KVT_NOTICE_ABANDONED = 2, /* nobody computes it any more: BEGIN announces the rest */
	KVT_NOTICE_DEADLINE = 3,  /* the time given is over */
};

/** One completion. `seq` is the daemon's global order of effects. Which of a..e mean what is in
 * the table; all counts of keys are positions, all others pages.
 *
 *           handle       lease   a         b          c          d         e
 *   MATCH   yes          (LOCK)  matched   announced  -          -         n_list
 *   LOCK    yes          yes     matched   -          -          -         n_list
 *   ALLOC   -            -       -         -          evicted    -         n_list
 *   INSERT  yes          (LOCK)  existed   inserted   evicted    n_twins   n_list (all words)
 *   BEGIN   of the match yes     matched   reusable   announced  evicted   n_list
 *   COMMIT  pos: known   yes     next      advanced   sealed     duplicates n_list
 *   EXTEND  -            yes     -         -          evicted    -         n_list
 *   END     -            -       -         -          sealed     freed     -
 *   FREE    -            -       -         -          -          freed     -
 *   EVICT   -            -       -         -          evicted    -         -
 *   PAGE    node,gen,pos -       state     owner      -          locks     -
 *   STATS   -            -       -         -          -          -         n_list
 *   AUDIT   -            -       problems  -          -          -         -
 *   REMOVE  -            -       removed (1 if something was detached)
 *   CLOSE   -            -       -         -          -          freed     -
 *
 * On failure `result` is a negative errno, `reason` an enum kvt_reason, and `a` its number:
 * available pages (-ENOSPC; `b` = pages needed, where it is for want of pages), needed list words
 * (-ENOBUFS), the limit (-EDQUOT), positions that others compute (BEGIN with NO_WAIT, -EAGAIN),
 * `next` else. Available is what this very operation could have had: free and evictable pages
 * without those that it would have locked.
 *
 * COMMIT, and END with F_COMMIT: `computed` must lie within the page table, and every position
 * below it must have a key. Keys are taken as far as the table goes and the rest is left out, as
 * that of a token just sampled, which has no KV yet. `positions` of COMMIT says how many are known
 * now: the next ones begin there. A COMMIT with `computed` below `next` changes nothing and takes
 * no keys. A refused one takes none, either.
 *
 * A BEGIN with NO_WAIT that was answered -EAGAIN has a second completion with the same user_data:
 * result 0, KVT_CQE_ASYNC, no lease, a = matched positions by then, c = enum kvt_notice. */
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
	uint32_t a, b, c, d, e;
};
_Static_assert(sizeof(struct kvt_cqe) == 64, "kvt_cqe");

/** Why an operation was refused; the errno is the class, this is the cause. kvt_reason_text()
 * gives a sentence with the cure. X(enumerator, name, text). */
#define KVT_REASONS(X)                                                                            \
	X(KVT_REASON_NONE, "none", "no reason given")                                            \
	X(KVT_REASON_ALL_LOCKED, "all_locked",                                                   \
	  "not enough pages: what is cached is locked by leases; end some or enlarge the pool")  \
	X(KVT_REASON_TOO_LARGE, "too_large",                                                     \
	  "larger than the whole pool: enlarge the pool or shorten the request")                 \
	X(KVT_REASON_NODES, "nodes", "out of tree nodes and all are locked: raise max_nodes")    \
	X(KVT_REASON_LEASES, "leases", "out of lease records: raise total_leases")               \
	X(KVT_REASON_LIMIT_LEASES, "max_leases", "this session is at its max_leases: END some")  \
	X(KVT_REASON_LIMIT_PAGES, "max_private_pages",                                           \
	  "this session is at its max_private_pages: END or FREE some")                          \
	X(KVT_REASON_UID_LEASES, "uid_leases",                                                    \
	  "this uid's sessions hold as many leases as one uid may: END some, raise total_leases " \
	  "and max_nodes, or run engines as several users")                                       \
	X(KVT_REASON_UID_PAGES, "uid_pages",                                                      \
	  "this uid's sessions hold as many private pages as one uid may while another one has "  \
	  "a session: END or FREE some, enlarge the pool, or give each user an instance")         \
	X(KVT_REASON_LIST_SHORT, "list_short", "the list is too short for the answer")           \
	X(KVT_REASON_BAD_OP, "bad_op", "unknown operation")                                      \
	X(KVT_REASON_BAD_FLAGS, "bad_flags", "flags that this operation does not take")          \
	X(KVT_REASON_BAD_FIELD, "bad_field", "a field this operation does not use is not 0")     \
	X(KVT_REASON_BAD_RANGE, "bad_range", "keys or list lie outside the session's areas")     \
	X(KVT_REASON_BAD_KEYS, "bad_keys", "number of keys and pages do not fit together")       \
	X(KVT_REASON_KEYS_CHANGED, "keys_changed", "the keys changed while they were read")      \
	X(KVT_REASON_NAMESPACE, "namespace", "namespace not opened by this session")             \
	X(KVT_REASON_HANDLE_STALE, "handle_stale",                                               \
	  "the prefix this handle named is gone: MATCH again")                                   \
	X(KVT_REASON_HANDLE_BAD, "handle_bad", "no such handle")                                 \
	X(KVT_REASON_NOT_CONTINUATION, "not_continuation",                                       \
	  "the start handle is of another namespace or not a place where keys can go on")        \
	X(KVT_REASON_LEASE_STALE, "lease_stale",                                                 \
	  "this lease has ended, or its END waits: BEGIN, or MATCH with LOCK, again")            \
	X(KVT_REASON_LEASE_FOREIGN, "lease_foreign", "this lease belongs to another session")    \
	X(KVT_REASON_LEASE_KIND, "lease_kind",                                                   \
	  "MATCH and LOCK leases take UNLOCK, BEGIN leases take COMMIT, EXTEND, END")            \
	X(KVT_REASON_PAGE_RANGE, "page_range", "no such page")                                   \
	X(KVT_REASON_PAGE_FOREIGN, "page_foreign", "a page of another session")                  \
	X(KVT_REASON_PAGE_FREE, "page_free", "a page that is free")                              \
	X(KVT_REASON_PAGE_CACHED, "page_cached", "a page that is already cached")                \
	X(KVT_REASON_PAGE_LEASED, "page_leased", "a page that belongs to a lease")               \
	X(KVT_REASON_PAGE_TWICE, "page_twice", "the same page twice in one list")                \
	X(KVT_REASON_BEYOND_TABLE, "beyond_table", "positions beyond the page table: EXTEND")    \
	X(KVT_REASON_BEYOND_KEYS, "beyond_keys", "positions whose keys the daemon does not know") \
	X(KVT_REASON_DETACHED, "detached",                                                       \
	  "the prefix was removed or expired meanwhile: finish with the pages that the "        \
	  "sequence has, or END and BEGIN again to share")                                       \
	X(KVT_REASON_EPOCH, "epoch",                                                             \
	  "RESET happened after this lease began: finish with the pages that the sequence "     \
	  "has, or END and BEGIN again to share")                                                \
	X(KVT_REASON_FENCE, "fence", "fence slot out of range")                                  \
	X(KVT_REASON_PRIVILEGE, "privilege", "needs uid 0, the daemon's uid or admin_group")     \
	X(KVT_REASON_TTL, "ttl", "a TTL needs the TTL flag, and the flag a TTL above 0")         \
	X(KVT_REASON_CLOSING, "closing", "the session is closing")                               \
	X(KVT_REASON_DRAINING, "draining", "the daemon is shutting down")                        \
	X(KVT_REASON_DISABLED, "disabled", "caching is disabled on this instance")               \
	X(KVT_REASON_ANNOUNCED, "announced",                                                     \
	  "others compute a part of it: a notice follows when it is sealed, then BEGIN again")   \
	X(KVT_REASON_DEADLINE, "deadline",                                                       \
	  "WAIT and NO_WAIT need a deadline (ttl_ms), and a deadline one of them")

#define KVT_REASON_ENUM(e, n, t) e,
enum kvt_reason { KVT_REASONS(KVT_REASON_ENUM) KVT_REASON_COUNT };
#undef KVT_REASON_ENUM

/** Eviction policies: the smallest key of the table goes first. */
enum kvt_policy {
	KVT_POLICY_LRU = 0,
	KVT_POLICY_SLRU = 1,
	KVT_POLICY_LFU = 2,
	KVT_POLICY_FIFO = 3,
	KVT_POLICY_FILO = 4,
	KVT_POLICY_MRU = 5,
	KVT_POLICY_PRIORITY = 6,
	KVT_POLICY_COUNT = 7,
};

/* ---------------------------------------------------------------------- session segment */

/* A client can punch holes into its own memory while the daemon uses it, and a fault there waits
 * until the hole is made. No seal forbids that, so the sizes bound it: what every operation touches
 * is small, and no area is larger than what one operation can use. */
#define KVT_SEGMENT_BYTES_MAX 65536u

/** First bytes of a session segment: a memfd that the daemon makes, sizes and seals. The key area
 * and the list area are in a second one.
 *
 * The four indices are free running and only ever compared by unsigned difference; entry i is at
 * i & (entries - 1). Each is alone on its line because its writer is alone. The daemon reads
 * sizes from its own copy, never from here: a client can write every byte of this object.
 *
 *   client: entry, then sq_tail (release)      daemon: sq_tail (acquire), entry, sq_head (release)
 *   daemon: entry, then cq_tail (release)      client: cq_tail (acquire), entry, cq_head (release)
 *
 * Sleeping: a side sets its *_need_wakeup, issues a full fence, looks once more, then sleeps on
 * its descriptor. The other side, after publishing, issues a full fence and reads the flag. */
struct kvt_segment_header {
	uint64_t magic;
	uint16_t abi_major;
	uint16_t abi_minor;
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
	uint32_t cq_head KVT_ALIGNED(KVT_LINE); /* client */
	uint32_t cq_tail KVT_ALIGNED(KVT_LINE); /* daemon */
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

/* ---------------------------------------------------------------------- ledger */

/** First bytes of the ledger; the same rules as for the arena header. */
struct kvt_ledger_header {
	uint64_t magic;
	uint16_t abi_major;
	uint16_t abi_minor;
	uint32_t header_bytes;
	uint64_t layout;
	uint64_t object_bytes;
	uint64_t instance[2]; /* that of the arena it belongs to */
	uint64_t boot_id[2];
	uint64_t seq;         /* last effect */
	uint64_t clock;       /* logical time of the last touch */
	uint64_t tickets;     /* given so far: places in queues that a successor has to restore */
	uint32_t max_sessions;
	uint32_t n_leases;
	uint32_t n_pending;
	uint32_t n_sections;
	struct kvt_section sections[12];
} KVT_ALIGNED(KVT_LINE);

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
	KVT_SIGN_QUIET = 1u << 2,   /* the pool backend agrees: nothing in flight can write */
	KVT_SIGN_FENCED = 1u << 3,  /* an operator said so */
	KVT_SIGN_CLOSED = 1u << 4,  /* ended by CLOSE: pages left at its fence */
};

/** One client process. Index 0 is unused. */
struct kvt_session_record {
	uint32_t state; /* enum kvt_session_state */
	uint32_t signs; /* enum kvt_session_sign */
	uint32_t generation;
	uint32_t flags; /* 1 = privileged */
	int32_t pid;    /* in the daemon's PID namespace, 0 if unknown there */
	uint32_t uid;
	uint32_t max_leases;        /* 0 = no limit */
	uint32_t max_private_pages; /* 0 = no limit */
	uint32_t n_leases;
	uint32_t n_private; /* pages in leases included (derived) */
	uint32_t n_quarantined; /* derived */
	uint32_t first_lease;   /* derived */
	uint32_t first_page;    /* pages in no lease: ALLOCed, or in quarantine (derived) */
	uint32_t first_pending; /* derived */
	uint32_t last_pending;  /* derived */
	uint32_t n_pending;     /* derived */
	uint64_t start_time;    /* of the process, clock ticks since boot */
	uint64_t opened_ns;
	uint64_t ended_ns;
	uint64_t secret[2]; /* what the client must show to resume */
	uint64_t operations;
	char label[KVT_LABEL_BYTES];
	uint32_t first_quarantined; /* derived */
	uint32_t sq_taken; /* entries that took effect, were refused or wait */
	uint32_t cq_done;  /* completions made; completion i is last_cqe[i & 1] until i + 2 is */
	uint32_t n_waiters; /* BEGINs that wait for others (derived) */
	/* Both counters count like the indices of the ring and change in the mutation that they
	 * tell of: entry i took effect iff i < sq_taken, and the completions before cq_done - 1
	 * stand in the ring, for each one is published before the next is made. So a successor
	 * knows the fate of every entry. */
	struct kvt_cqe last_cqe[2];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_session_record) == 384, "kvt_session_record");

enum kvt_member_state {
	KVT_MEMBER_FREE = 0,
	KVT_MEMBER_LEADER = 1,  /* rank 0, who opened the session; its secret is the token */
	KVT_MEMBER_AWAITED = 2, /* a rank that has not come yet */
	KVT_MEMBER_JOINED = 3,
	KVT_MEMBER_OVER = 4,    /* hung up or exited, and the group with it */
};

/** One rank of a group: processes of a tensor-parallel engine that hold what one session holds.
 * Index 0 is unused. A record counts as long as its session has the generation that it names, so
 * it ends with the session, and is written outside of mutations: `state` last when it is made. */
struct kvt_member_record {
	uint32_t state; /* enum kvt_member_state */
	uint32_t session;
	uint32_t session_generation;
	uint32_t rank;
	uint32_t n_ranks; /* of the group, rank 0 included */
	uint32_t signs;   /* enum kvt_session_sign: HANGUP and EXITED of this process */
	int32_t pid;      /* in the daemon's PID namespace, 0 if unknown there */
	uint32_t uid;
	uint64_t start_time; /* of the process, clock ticks since boot */
	uint64_t secret[2];
	uint32_t generation; /* of this record */
	uint32_t reserved;
	char label[KVT_LABEL_BYTES];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_member_record) == 128, "kvt_member_record");

enum kvt_lease_kind {
	KVT_LEASE_FREE = 0,
	KVT_LEASE_MATCH = 1, /* MATCH with LOCK, LOCK, INSERT with LOCK: a lock, nothing else */
	KVT_LEASE_BEGIN = 2, /* a sequence */
	KVT_LEASE_DYING = 3, /* its session died: the lock is gone, pages are on their way */
};

enum kvt_lease_flag {
	KVT_LEASE_COUNTED = 1u << 0,    /* its hit has been counted */
	KVT_LEASE_FORCE_MISS = 1u << 1,
	KVT_LEASE_ENDING = 1u << 2,     /* END or UNLOCK waits behind a fence */
	KVT_LEASE_FULL = 1u << 3,
	KVT_LEASE_LATE = 1u << 4, /* somebody missed a deadline for it: nobody waits for it again */
};

/** What a session holds of the tree. The path is named by its deepest node: node ids survive
 * splits and merges with the same full prefix, so nothing else is needed to find it again.
 *
 *   page table of a BEGIN lease:   [ tree pages 0..done )[ private pages, in order ... )
 *   path:                          [ 0 .. path_pages )  (may be longer or shorter than done)
 */
struct kvt_lease_record {
	uint32_t kind; /* enum kvt_lease_kind */
	uint32_t flags;
	uint32_t generation;
	uint32_t session;
	uint32_t node;       /* deepest locked node, KVT_NONE if nothing is locked */
	uint32_t path_pages; /* pages from the root to the end of that node */
	uint32_t namespace_id;
	uint32_t done;       /* leading table entries that are cached pages of the path */
	uint32_t n_private;  /* table entries after that (derived) */
	uint32_t first_page; /* private pages in table order: list in the owners section */
	uint32_t last_page;  /* derived */
	uint32_t first_kept; /* displaced under KEEP, private until END */
	uint32_t n_kept;     /* derived */
	uint32_t known;      /* positions whose keys the daemon knows */
	uint32_t computed;   /* highest `next` answered */
	uint32_t own_start;  /* first page of the path whose nodes this lease created */
	uint64_t epoch;      /* of its BEGIN */
	uint64_t begun_ns;
	uint32_t next_lease; /* of the session (derived) */
	uint32_t prev_lease; /* derived */
	uint32_t n_pending;  /* its deferred operations (derived) */
	uint32_t reserved0;
	uint64_t ticket; /* order in which leases were made or, free ones, given back */
	uint32_t older;  /* all leases, oldest to youngest (derived) */
	uint32_t younger; /* derived */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_lease_record) == 128, "kvt_lease_record");

/** Who owns a page that is not free and not cached, and the list it is in. FREE pages use
 * `next` for the free list. Pages of a dying session may go on naming leases that are gone. */
struct kvt_owner_record {
	uint32_t lease;   /* lease index, or KVT_NONE */
	uint32_t session; /* session index, or KVT_NONE */
	uint32_t next;    /* derived, but in the two lists of a lease */
	uint32_t prev;    /* derived */
};
_Static_assert(sizeof(struct kvt_owner_record) == 16, "kvt_owner_record");

/** An operation that waits: for its fence, or (op BEGIN) for what somebody else computes.
 *
 * A waiting BEGIN holds nothing, neither page nor lock. It names the lease that it waits for and
 * how far that one's path is its own; all waiters together are one queue in order of their
 * tokens, and whoever is ready in it runs before any other operation. */
struct kvt_pending_record {
	struct kvt_sqe sqe;
	uint32_t session;
	uint32_t next; /* in its session's list, in the waiters' queue or the free one (derived) */
	uint32_t lease; /* whose operation this is; of a waiter: whom it waits for */
	uint32_t prev;  /* of a waiter, in the queue (derived) */
	uint64_t token; /* seq of the DEFER record, for the operation log */
	uint64_t deadline_ns; /* of a waiter */
	uint64_t begun_ns;    /* when it began to wait */
	uint32_t matched;     /* pages that were there when it began to wait */
	uint32_t goal;        /* pages of the awaited lease's path that are the waiter's own */
	uint32_t lease_generation; /* of the awaited lease */
	uint32_t reserved;
	uint64_t reserved1;
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_pending_record) == 128, "kvt_pending_record");

/** What an entry of the undo log holds. Its last word is kind << 60 | words << 32 | id, where
 * `words` counts those before it; it is written last, and the log is undone from its end. */
enum kvt_undo_kind {
	KVT_UNDO_NODE = 1,         /* id: node; all of its record */
	KVT_UNDO_NODE_FREE = 2,    /* id: node, which was free; its ticket */
	KVT_UNDO_NODE_TOUCHED = 3, /* id: node; touched, touched_ns, hits */
	KVT_UNDO_SLOTS = 4,        /* id: first slot; their pages as u32, then how many */
	KVT_UNDO_KEYS = 5,         /* id: first slot; their keys, then how many slots */
	KVT_UNDO_PAGES = 6,        /* id: session; pages as u32 in the order of their list, then
				      how many << 32 | what followed, state << 32 | lease */
	KVT_UNDO_LEASE = 7,        /* id: lease; all of its record */
	KVT_UNDO_LEASE_FREE = 8,   /* id: lease, which was free; ticket, generation << 32 |
				      session that took it */
	KVT_UNDO_TAIL = 9,         /* id: lease; keys of its tail, then how many */
	KVT_UNDO_SESSION = 10,     /* id: session; its record without the last completions */
	KVT_UNDO_PROGRESS = 11,    /* id: session; operations, cq_done << 32 | sq_taken */
	KVT_UNDO_PENDING = 12,     /* id: deferred operation; all of its record */
	KVT_UNDO_SPACE = 13,       /* id: namespace; all of its record */
	KVT_UNDO_OPENED = 14,      /* id: word of the map of opened namespaces; its value */
};

/** How a successor gets back to the last effect when it finds `mutation` odd: every primary fact
 * that a mutation changes was written here first, as it was before. Cheap facts that every
 * mutation changes stand in the header; what a record did not mean before (the rest of a record
 * that was free, pages that were free) is not kept. */
struct kvt_undo_header {
	uint64_t words; /* of entries, since `mutation` became odd */
	uint64_t seq;   /* as in the headers, when it did */
	uint64_t clock;
	uint64_t tickets;
	uint64_t epoch;
	uint64_t reserved[11];
	struct kvt_counters counters; /* the monotonic ones */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_undo_header) == 384, "kvt_undo_header");

/* ---------------------------------------------------------------------- control socket */

#define KVT_MESSAGE_MAGIC 0x5456414bu /* "KAVT" */
#define KVT_MESSAGE_MAX 65536u        /* bytes in one packet */
#define KVT_TEXT_BYTES 512u

enum kvt_message_type {
	KVT_MSG_HELLO = 1,      /* client: open a session (or observe) */
	KVT_MSG_WELCOME = 2,    /* daemon: + descriptors */
	KVT_MSG_REFUSED = 3,    /* daemon: errno and a sentence */
	KVT_MSG_NAMESPACE = 4,  /* client: open a namespace; daemon: its number */
	KVT_MSG_ADMIN = 5,      /* client: one admin request; daemon: one answer page */
	KVT_MSG_GOODBYE = 6,    /* daemon: the session is over, and why */
	KVT_MSG_HANDOVER = 8,   /* daemon to daemon: names and descriptors; back: "taken" */
	KVT_MSG_RESUMED = 7,    /* daemon: a successor serves this connection; ask again */
	KVT_MSG_GROUP = 8,      /* client: others are to join its session; daemon: the token */
};

struct kvt_message {
	uint32_t magic;
	uint16_t type;    /* enum kvt_message_type */
	uint16_t version; /* KVT_ABI_MAJOR */
	uint32_t bytes;   /* of the whole message, this header included */
	int32_t result;   /* answers: 0 or negative errno */
	uint64_t cookie;  /* copied from the request */
};
_Static_assert(sizeof(struct kvt_message) == 24, "kvt_message");

enum kvt_element_type {
	KVT_ELEMENT_BF16 = 0,
	KVT_ELEMENT_FP16 = 1,
	KVT_ELEMENT_FP32 = 2,
	KVT_ELEMENT_FP8_E4M3 = 3, /* the "fn" kind, no infinities; value = stored * scale */
};

/** How the positions and KV heads of a page lie in each of its K and V planes. */
enum kvt_page_layout {
	KVT_LAYOUT_HND = 0, /* [kv head][position][dim] */
	KVT_LAYOUT_NHD = 1, /* [position][kv head][dim] */
};

/** How planes lie in a slab; each layer has two, K and then V. */
enum kvt_page_order {
	KVT_ORDER_LAYER = 0, /* [layer][K, V][page][...]: a layer is one tensor */
	KVT_ORDER_PAGE = 1,  /* [page][layer][K, V][...]: all layers of a page are contiguous */
};

/** What the pages of one slab hold, as far as the daemon was told. Under tensor parallelism the
 * heads are those of one rank. All 0: pages are bytes, whose meaning only the clients know. */
struct kvt_pool_geometry {
	uint32_t n_layers; /* 1..KVT_MAX_LAYERS; 0: not known */
	uint32_t n_kv_heads;
	uint32_t head_dim; /* elements */
	uint32_t type;     /* enum kvt_element_type */
	uint32_t layout;   /* enum kvt_page_layout */
	uint32_t order;    /* enum kvt_page_order */
	uint32_t reserved[2];
	float scales[KVT_MAX_LAYERS][2]; /* of K and V per layer, 0: 1; 1 unless the type is fp8 */
};
_Static_assert(sizeof(struct kvt_pool_geometry) == 32 + 8 * KVT_MAX_LAYERS, "kvt_pool_geometry");

/** A geometry in words, as it stands in a fingerprint: kvt_pool_geometry_describe(). */
struct kvt_pool_geometry_text {
	char kv_type[64];   /* bf16.32x8x128: type, layers x KV heads x dim */
	char kv_scales[48]; /* bits of K's and V's in hex, or a digest of all layers'; "": none */
	char layout[32];    /* hnd.layer, nhd.page, ... */
};

enum kvt_hello_flag {
	KVT_HELLO_OBSERVE = 1u << 0, /* no session: namespaces and admin requests only */
	KVT_HELLO_NO_RESUME = 1u << 1, /* the session is to end with the daemon, however it does */
	/* The session leaves the content of pages alone, or asks the daemon what they hold: it need
	 * not name a geometry or fingerprint. */
	KVT_ANY_GEOMETRY = 1u << 2,
};

/** First message on a connection. A size or count of 0 means "as the daemon has it"; anything
 * else must be equal, or the answer is REFUSED with the difference named. Of the fingerprint each
 * field (name=value, or a word, between semicolons) must be one of the daemon's. Where the daemon
 * has a geometry or a fingerprint, a session or a member of a group must name one of the two, or
 * say KVT_ANY_GEOMETRY: it would write its KV where others read theirs. */
struct kvt_message_hello {
	struct kvt_message head;
	uint16_t abi_major;
	uint16_t abi_minor;
	uint32_t flags;
	uint64_t layout;
	uint32_t page_size;
	uint32_t n_pages;
	uint64_t page_bytes;
	uint32_t sq_entries; /* wishes, rounded up to powers of two within the daemon's limits */
	uint32_t cq_entries;
	uint32_t keys_count; /* u32 elements of the key area */
	uint32_t list_count;
	int32_t pid;         /* getpid() of the caller: refused if it is not the connector */
	uint32_t rank;       /* with `group`: which one the caller is */
	uint64_t secret[2];  /* resume; 0 = new */
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
};

enum kvt_pool_backend {
	KVT_POOL_HOST = 0,
	KVT_POOL_CUDA_IPC = 1,
	KVT_POOL_CUDA_VMM = 2,
};

/** How a client opens one slab. A device is named by its UUID, because ordinals differ from process
 * to process (CUDA_VISIBLE_DEVICES); under MIG it is that of the MIG instance. The rest is for
 * naming what went wrong: what the driver itself says about these traps is misleading. */
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
	KVT_WELCOME_RESUMED = 1u << 4,    /* the session that HELLO's secret names goes on */
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
	uint32_t reserved;
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_slab_record slabs[KVT_MAX_SLABS]; /* n_slabs of them; none for observers */
	struct kvt_pool_geometry geometry;
	uint32_t rank;    /* of a member; 0 for who opened the session */
	uint32_t n_ranks; /* of its group, 0 = none */
};

/** A running daemon hands what it has to its successor (--takeover): message by message, the
 * descriptors along with their names. */
#define KVT_HANDOVER_MAX 32u
struct kvt_message_handover {
	struct kvt_message head;
	uint32_t n;    /* names, and as many descriptors */
	uint32_t last; /* 1: that was all */
	char names[KVT_HANDOVER_MAX][48];
};

/** To a connection that a successor took up, first of all. Whatever was asked on it and not
 * answered is to be asked again, unless it still waits in the socket: then this is not sent. */
struct kvt_message_resumed {
	struct kvt_message head;
	uint64_t generation; /* of the arena: daemons that served it */
	int32_t daemon_pid;
	uint32_t reserved;
};

/** State of an instance as seen from outside: why connecting failed. */
enum kvt_attach_state {
	KVT_ATTACH_OK = 0,
	KVT_ATTACH_NO_SOCKET,      /* nothing there: daemon not started, or another path */
	KVT_ATTACH_STARTING,       /* objects exist, not READY yet: try again */
	KVT_ATTACH_NO_PERMISSION,
	KVT_ATTACH_WRONG_VERSION,  /* ABI major differs */
	KVT_ATTACH_WRONG_LAYOUT,   /* same version, other structures */
	KVT_ATTACH_WRONG_GEOMETRY, /* or none was named */
	KVT_ATTACH_CORRUPT,        /* sizes or offsets do not fit the object */
	KVT_ATTACH_GONE,           /* the daemon ended */
	KVT_ATTACH_REFUSED,        /* the daemon is there, but at a limit or the like */
	KVT_ATTACH_FAILED,         /* it was not even asked: out of memory, a path too long */
};

struct kvt_message_refused {
	struct kvt_message head;
	char text[KVT_TEXT_BYTES]; /* cause and cure, one sentence, NUL-terminated */
	uint32_t state;            /* enum kvt_attach_state; GOODBYE: 0 */
	uint32_t reserved;
};

struct kvt_message_namespace {
	struct kvt_message head;
	uint64_t digest[2];
	uint32_t namespace_id; /* answer */
	uint32_t reserved;
	char label[KVT_LABEL_BYTES];
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

/** Open a group on the connection's session, and the answer. */
struct kvt_message_group {
	struct kvt_message head;
	uint32_t n_ranks; /* rank 0, the session's own process, included */
	uint32_t reserved;
	uint64_t token[2]; /* answer */
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
	KVT_ADMIN_REMOVE = 8,     /* digest: the namespace; payload keys (u32): prefix */
	KVT_ADMIN_RESET = 9,
	KVT_ADMIN_FENCE = 10,     /* argument = session: its quarantine is declared quiet */
	KVT_ADMIN_TICK = 11,      /* argument = ns: moves the test clock */
	KVT_ADMIN_SETTLED = 12,   /* struct kvt_admin_status once no background work is left */
	KVT_ADMIN_ENDED = 13,     /* argument = session: answers when it is DEAD or FREE */
	KVT_ADMIN_TAKEOVER = 14,  /* answered by HANDOVER messages: the asker is the successor */
	KVT_ADMIN_CONFIG = 15,    /* struct kvt_admin_option, cursor = number of the option */
};

/** Request and answer. In the answer `count` records of `record_bytes` follow, and `cursor` is
 * where the next request goes on (0: that was all). */
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
	uint32_t reserved;
	uint64_t op_count[32];
	uint64_t op_histogram[32][KVT_HISTOGRAM_BUCKETS]; /* by enum kvt_op, in the daemon */
	uint64_t op_ns[32];                               /* time in it, all together */
	uint64_t accepted_connections, refused_connections, log_lines_dropped;
	uint64_t costly_sessions; /* ended because waking them cost too much */
	uint64_t costly_ns;       /* processor time of wake-ups of more than 0.2 ms, all clients */
	char fingerprint[KVT_FINGERPRINT_BYTES];
	struct kvt_pool_geometry geometry;
	uint32_t n_slabs;
	uint32_t reserved1;
	char version[24];
	char instance_name[64];
	char socket_path[112];
};

/** An option of kvtrunkd(8). `value` is as configured, `used` what the daemon made of it (0 pages:
 * as many as fit). Texts end with NUL and are cut where they do not fit. */
struct kvt_admin_option {
	char key[32];
	char value[256];
	char used[256];
	char origin[128]; /* "default", "--policy", "FILE:12" */
	uint32_t reload;  /* 1: SIGHUP changes it, 0: it takes a restart */
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
};

struct kvt_admin_namespace {
	uint32_t namespace_id, root, opened, reserved;
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
};

struct kvt_admin_page {
	uint32_t page, state, session, lease;
	uint32_t node, generation, position, lock_ref;
};

/** One number that changes when any shared structure does: sizes, alignments and the offsets
 * that a change of order would move. FNV-1a over them, computed at compile time by any decent
 * compiler. */
static inline uint64_t kvt_abi_layout(void)
{
	static const uint32_t facts[] = {
		KVT_ABI_MAJOR, KVT_LINE, KVT_FENCE_WORDS, KVT_OP_COUNT, KVT_REASON_COUNT,
		sizeof(struct kvt_arena_header), offsetof(struct kvt_arena_header, counters),
		offsetof(struct kvt_arena_header, state),
		offsetof(struct kvt_arena_header, mutation),
		sizeof(struct kvt_counters), sizeof(struct kvt_section),
		sizeof(struct kvt_node), offsetof(struct kvt_node, touched),
		offsetof(struct kvt_node, expiry_ns), sizeof(struct kvt_page_record),
		sizeof(struct kvt_namespace_record), sizeof(struct kvt_sqe), sizeof(struct kvt_cqe),
		sizeof(struct kvt_segment_header), offsetof(struct kvt_segment_header, cq_tail),
		offsetof(struct kvt_segment_header, gone), sizeof(struct kvt_fence_word),
		sizeof(struct kvt_ledger_header), sizeof(struct kvt_session_record),
		sizeof(struct kvt_lease_record), sizeof(struct kvt_owner_record),
		sizeof(struct kvt_pending_record), offsetof(struct kvt_session_record, last_cqe),
		sizeof(struct kvt_undo_header), sizeof(struct kvt_message_hello),
		sizeof(struct kvt_message_welcome), sizeof(struct kvt_slab_record),
		sizeof(struct kvt_pool_geometry), sizeof(struct kvt_member_record),
		sizeof(struct kvt_message_group),
		sizeof(struct kvt_message_namespace),
		sizeof(struct kvt_message_admin), sizeof(struct kvt_admin_status),
		sizeof(struct kvt_admin_option),
		sizeof(struct kvt_admin_client), sizeof(struct kvt_admin_node),
	};
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < sizeof(facts) / sizeof(facts[0]); i++)
		hash = (hash ^ facts[i]) * 0x100000001b3ull;
	return hash;
}

#endif
