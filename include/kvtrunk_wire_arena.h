/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_ARENA_H
#define KVTRUNK_WIRE_ARENA_H

/**
 * @file kvtrunk_wire_arena.h
 * The arena: tree and page records. Written by the daemon alone, mapped read-only by clients.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire_base.h"

#define KVT_ARENA_MAGIC 0x3130414e4552414bull /* "KARENA01" */

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
	KVT_SECTION_SIDES = 7, /* u32 per page and kind: the side page that hangs on the page */
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
	X(COUNTER, suspected_pages, "Reports of a cached page whose KV is another than computed.") \
	X(GAUGE, victim_age_ns, "Time from its last touch to its end of what was evicted last.")  \
	X(GAUGE, side_pages, "Cached pages that hang on other cached pages, in sides.")           \
	X(COUNTER, refusals, "Attempts refused for want of room, or at a limit.")                 \
	X(COUNTER, damaged_pages, "REMOVEs of a page that was written after it was sealed.")

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
	uint32_t n_sides; /* kinds of side pages */
	uint32_t side_pages[KVT_MAX_SIDES]; /* of each: trailing pages of a path that need one */
	uint8_t reserved1[KVT_LINE * 17 - 4 - 4 * KVT_MAX_SIDES];
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
	KVT_NODE_DAMAGED = 1u << 10,  /* REMOVED, and its first page is not as it was sealed */
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
	uint32_t uses;        /* by prompts; one prompt counts once */
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

/** The state of a page. The owner of a private one is in the ledger. All derived (from slots and
 * owners) but two facts: whether an owned page is PRIVATE or in QUARANTINE, and the sealer of a
 * CACHED one. In other states sealer and parent are left over. */
struct kvt_page_record {
	uint32_t slot;        /* its slot when CACHED, else KVT_NONE. A side page has none */
	uint32_t state : 8;   /* enum kvt_page_state: the low bits */
	uint32_t sealer : 24; /* number of the session that sealed it; 0: unknown */
	uint32_t parent;      /* page in front on the path, 0 at a root; of a side page its main
				 page. Constant while CACHED */
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
	uint32_t nodes;           /* derived: nodes that name this record */
	uint32_t limit; /* cached pages above it are evicted before all others; 0: none */
} KVT_ALIGNED(64);
_Static_assert(sizeof(struct kvt_namespace_record) == 64, "kvt_namespace_record");

#endif
