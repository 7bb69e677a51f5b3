/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_TYPES_H
#define KVTRUNK_TYPES_H

/**
 * @file kvtrunk_types.h
 * Numbers and structures that applications see. Included by kvtrunk.h.
 *
 * kvtrunk_wire.h has the other bytes that two processes share. This file, kvtrunk.h and
 * kvtrunk_keys.h can be read without a preprocessor, for example by cffi: drop the comments, the
 * blocks of __cplusplus, and all other lines that begin with # except `#define NAME number`.
 */

#include <stdint.h>

#define KVT_NONE 0u             /* "no node", "no page", "no slot": index 0 is never valid */
#define KVT_MAX_PAGE_SIZE 4096u /* positions */
#define KVT_FENCE_WORDS 16u     /* per session: one for each stream an engine uses, with slack */
#define KVT_FENCE_IDLE 0xffu    /* fence slot: nothing launched touches the pages */
#define KVT_MAX_SLABS 16u       /* devices of one pool: as many as the largest hosts have */
#define KVT_MAX_RANKS 16u       /* processes of one group: a rank for each slab */
#define KVT_MIRROR_MESSAGE_MAX 16384u /* bytes of one message of kvt_mirror_write() */
#define KVT_MAX_SIDES 32u       /* kinds of side pages: engines plan up to 20 */
#define KVT_MAX_SIDE_PAGES 2048u /* side pages of all kinds that continue a prefix; half of one */
#define KVT_MAX_LAYERS 256u     /* of one slab: the deepest open models have half of that */
#define KVT_MAX_KV_HEADS 4096u  /* of one slab */
#define KVT_MAX_HEAD_DIM 1024u
#define KVT_FINGERPRINT_BYTES 256u
#define KVT_LABEL_BYTES 64u
#define KVT_TEXT_BYTES 512u

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
	KVT_OP_LEAVE = 18, /* close one namespace */
	KVT_OP_SUSPECT = 19, /* report a cached page whose KV is not what the caller computed */
	KVT_OP_COUNT = 20,
};

/* Flags of operations. Two operations may share a bit; KVT_OPS lists those that each one takes. */
enum kvt_sqe_flag {
	KVT_F_LOCK = 1u << 0,       /* MATCH, INSERT: take a lease on the result */
	KVT_F_NO_TOUCH = 1u << 1,   /* MATCH without LOCK: leave recency alone */
	KVT_F_CHUNKED = 1u << 2,    /* INSERT, COMMIT, END: not the last chunk, counts no hit */
	KVT_F_UNCOUNTED = KVT_F_CHUNKED, /* BEGIN: a load, which counts no positions */
	KVT_F_KEEP = 1u << 3,       /* COMMIT, END: duplicates stay private until END */
	KVT_F_FULL = 1u << 4,       /* BEGIN: do not cap reuse below the number of keys */
	KVT_F_FORCE_MISS = 1u << 5, /* BEGIN: reuse nothing */
	KVT_F_COMMIT = 1u << 6,     /* END: with a last COMMIT */
	KVT_F_TTL = 1u << 7,        /* INSERT: ttl_ms counts; without it entries never expire, as
				     * those of COMMIT and all that they continue. Pages behind
				     * the keys of an INSERT keep their life and priority */
	KVT_F_WAIT = 1u << 8,       /* BEGIN: wait up to ttl_ms for what others compute of it */
	KVT_F_NO_WAIT = 1u << 9,    /* BEGIN: do not begin then, but get a notice within ttl_ms */
	KVT_F_NO_PAGES = 1u << 10,  /* BEGIN: lock and announce, but give no private pages: EXTEND
				     * does. Until the first one no BEGIN waits for the lease */
	KVT_F_DAMAGED = KVT_F_NO_PAGES, /* REMOVE: the page was written after it was sealed, so that
				     * leases of it are told at COMMIT (KVT_REASON_DAMAGED) */
	KVT_F_SHORTER = 1u << 11,   /* LOCK: what is left of the handle, if anything is; ALLOC: as
				     * many of the pages as can be had, at least one */
	KVT_F_NO_LIST = 1u << 12,   /* COMMIT with KEEP: answer without the page table */
	KVT_F_OWN_STREAM = 1u << 13, /* BEGIN, EXTEND, ALLOC: what writes the pages is ordered
				      * behind the session's fences */
	KVT_F_SIDES = 1u << 15,      /* COMMIT with KEEP and NO_LIST: pairs in front of the keys
				      * name side pages. The library sets it */
	KVT_F_ROOT_KEY = 1u << 14,  /* MATCH, INSERT, BEGIN, REMOVE: two words in front of the keys
				     * are a root key. The library sets it */
};

/** A place that can have a side page: page `index` of a sequence's page table, and a kind. */
#define KVT_SIDE_PLACE(index, kind) ((index) * KVT_MAX_SIDES + (kind))
#define KVT_SIDE_INDEX(place) ((place) / KVT_MAX_SIDES)
#define KVT_SIDE_KIND(place) ((place) % KVT_MAX_SIDES)

/** A declared point of a BEGIN, in positions: at the junction, where its keys leave what is cached
 * or announced. */
#define KVT_POINT_JUNCTION 0xffffffffu

/** In place of a side page: let go of what is there. The lease will not read it again, so it may be
 * evicted although the path is locked; until then it stays cached and usable. Nothing happens while
 * another lease crosses the page that it hangs on. It is held again when a BEGIN continues behind
 * it, and when the lease ends. */
#define KVT_SIDE_LET 0xffffffffu

/** A side page for a place: a private page in no lease, KVT_NONE to drop what is there, or
 * KVT_SIDE_LET. */
struct kvt_side {
	uint32_t place;
	uint32_t page;
};

enum kvt_cqe_flag {
	KVT_CQE_DEFERRED = 1u << 0, /* the operation waited: for its fence, a BEGIN for others */
	KVT_CQE_DETACHED = 1u << 1, /* END: its path was detached; its COMMIT sealed nothing */
	KVT_CQE_ASYNC = 1u << 2,    /* BEGIN: the notice that NO_WAIT asked for, not a lease */
	KVT_CQE_DEADLINE = 1u << 3, /* BEGIN: it waited until its deadline passed */
	KVT_CQE_TAKEOVER = 1u << 4, /* BEGIN: what it waited for is not being computed any more */
	KVT_CQE_NO_PLACE = 1u << 5, /* BEGIN: it would have waited, but there was no place */
};

/** The kvt_result.state of a notice (KVT_CQE_ASYNC). */
enum kvt_notice {
	KVT_NOTICE_SEALED = 1,    /* what others computed is sealed, but for a small rest */
	KVT_NOTICE_ABANDONED = 2, /* it is not being computed any more: BEGIN announces the rest */
	KVT_NOTICE_DEADLINE = 3,  /* the given time has passed */
};

/** Why an operation was refused: the errno is the class, this is the cause. kvt_reason_name() gives
 * its name ("all_locked"), kvt_reason_text() a sentence with the cure. */
enum kvt_reason {
	KVT_REASON_NONE = 0,
	KVT_REASON_ALL_LOCKED = 1,
	KVT_REASON_TOO_LARGE = 2,
	KVT_REASON_NODES = 3,
	KVT_REASON_LEASES = 4,
	KVT_REASON_LIMIT_LEASES = 5,
	KVT_REASON_LIMIT_PAGES = 6,
	KVT_REASON_SHARE = 7,
	KVT_REASON_LIST_SHORT = 8,
	KVT_REASON_BAD_OP = 9,
	KVT_REASON_BAD_FLAGS = 10,
	KVT_REASON_BAD_FIELD = 11,
	KVT_REASON_BAD_RANGE = 12,
	KVT_REASON_BAD_KEYS = 13,
	KVT_REASON_KEYS_CHANGED = 14,
	KVT_REASON_NAMESPACE = 15,
	KVT_REASON_HANDLE_STALE = 16,
	KVT_REASON_HANDLE_BAD = 17,
	KVT_REASON_NOT_CONTINUATION = 18,
	KVT_REASON_LEASE_STALE = 19,
	KVT_REASON_LEASE_FOREIGN = 20,
	KVT_REASON_LEASE_KIND = 21,
	KVT_REASON_PAGE_RANGE = 22,
	KVT_REASON_PAGE_FOREIGN = 23,
	KVT_REASON_PAGE_FREE = 24,
	KVT_REASON_PAGE_CACHED = 25,
	KVT_REASON_PAGE_LEASED = 26,
	KVT_REASON_PAGE_TWICE = 27,
	KVT_REASON_BEYOND_TABLE = 28,
	KVT_REASON_BEYOND_KEYS = 29,
	KVT_REASON_DETACHED = 30,
	KVT_REASON_EPOCH = 31,
	KVT_REASON_FENCE = 32,
	KVT_REASON_PRIVILEGE = 33,
	KVT_REASON_TTL = 34,
	KVT_REASON_CLOSING = 35,
	KVT_REASON_DRAINING = 36,
	KVT_REASON_DISABLED = 37,
	KVT_REASON_ANNOUNCED = 38,
	KVT_REASON_DEADLINE = 39,
	KVT_REASON_NAMESPACE_HELD = 40,
	KVT_REASON_PAGE_NOT_CACHED = 41,
	KVT_REASON_FATAL = 42,
	KVT_REASON_MEMORY = 43,
	KVT_REASON_SIDE_PLACE = 44,
	KVT_REASON_SLOTS = 45,
	KVT_REASON_DAMAGED = 46,
	KVT_REASON_LIMIT_NAMESPACES = 47,
	KVT_REASON_COUNT = 48,
};

enum kvt_page_state {
	KVT_PAGE_FREE = 0,
	KVT_PAGE_PRIVATE = 1,
	KVT_PAGE_CACHED = 2,
	KVT_PAGE_QUARANTINE = 3,
	KVT_PAGE_SCRATCH = 4, /* page 0 alone */
	KVT_PAGE_SIDE = 5,    /* in answers: a cached page that hangs on another cached one */
};

/** Counters that agree with each other between two operations. KVT_COUNTERS (kvtrunk_wire_arena.h)
 * describes each and says which is a GAUGE. A COUNTER rises from the start of the objects, over
 * restarts. free + private + cached + quarantined == n_pages - 1. */
struct kvt_counters {
	uint64_t free_pages;
	uint64_t private_pages;
	uint64_t cached_pages;
	uint64_t quarantined_pages;
	uint64_t evictable_pages;
	uint64_t protected_pages;
	uint64_t detached_pending;
	uint64_t live_nodes;
	uint64_t locked_nodes;
	uint64_t live_leases;
	uint64_t live_sessions;
	uint64_t live_namespaces;
	uint64_t operations;
	uint64_t input_positions;
	uint64_t hit_positions;
	uint64_t inserted_pages;
	uint64_t duplicate_pages;
	uint64_t evicted_pages;
	uint64_t advanced_positions;
	uint64_t expired_nodes;
	uint64_t merged_nodes;
	uint64_t split_nodes;
	uint64_t violations;
	uint64_t coalesced_positions;
	uint64_t waits;
	uint64_t wait_ns;
	uint64_t takeovers;
	uint64_t deadline_misses;
	uint64_t shared_hit_positions;
	uint64_t expired_pages;
	uint64_t removed_pages;
	uint64_t reset_pages;
	uint64_t suspected_pages;
	uint64_t victim_age_ns;
	uint64_t side_pages;
	uint64_t refusals;
	uint64_t damaged_pages;
	uint64_t reserved[11]; /* so that a new counter moves nothing */
};

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

enum kvt_element_type {
	KVT_ELEMENT_BF16 = 0,
	KVT_ELEMENT_FP16 = 1,
	KVT_ELEMENT_FP32 = 2,
	KVT_ELEMENT_FP8_E4M3 = 3, /* the "fn" kind, no infinities; value = stored * scale */
};

/** How one layer of a page lies: in two planes, K and then V; packed, one piece with both; or in
 * one plane, from which K and V are made. */
enum kvt_page_layout {
	KVT_LAYOUT_HND = 0,  /* two planes: [kv head][position][dim] */
	KVT_LAYOUT_NHD = 1,  /* two planes: [position][kv head][dim] */
	KVT_LAYOUT_HNKD = 2, /* packed: [kv head][position][K, V][dim] */
	KVT_LAYOUT_NHKD = 3, /* packed: [position][kv head][K, V][dim] */
	KVT_LAYOUT_HKND = 4, /* packed: [kv head][K, V][position][dim] */
	/* One plane: [position][dim], n_kv_heads 1. Multi-head latent attention (DeepSeek-V2,
	 * arXiv:2405.04434): dim = kv_lora_rank + qk_rope_head_dim. */
	KVT_LAYOUT_LATENT = 5,
};

/** How the pages of all layers lie in a slab. [K, V]: the planes, if the layout has two. */
enum kvt_page_order {
	KVT_ORDER_LAYER = 0, /* [layer][K, V][page][...]: a layer is one tensor */
	KVT_ORDER_PAGE = 1,  /* [page][layer][K, V][...]: all layers of a page are contiguous */
};

/** Content of the pages of one slab, as far as the daemon knows. Under tensor parallelism the heads
 * are those of one rank. All 0: pages are bytes, whose meaning only the clients know. */
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

/** A geometry in words, as it stands in a fingerprint: kvt_pool_geometry_describe(). */
struct kvt_pool_geometry_text {
	char kv_type[64];   /* bf16.32x8x128: type, layers x KV heads x dim */
	char kv_scales[48]; /* bits of K's and V's in hex, or a digest of all layers'; "": none */
	char layout[32];    /* hnd.layer, nhd.page, ... */
};

enum kvt_pool_backend {
	KVT_POOL_HOST = 0,
	KVT_POOL_CUDA_IPC = 1,
	KVT_POOL_CUDA_VMM = 2,
};

enum kvt_hello_flag {
	KVT_HELLO_OBSERVE = 1u << 0, /* no session: namespaces and admin requests only */
	KVT_HELLO_NO_RESUME = 1u << 1, /* the session ends with the daemon, however that ends */
	/* The session does not touch the content of pages, or asks the daemon what they hold: it
	 * need not name a geometry or fingerprint. */
	KVT_ANY_GEOMETRY = 1u << 2,
	KVT_MIRROR = 1u << 3, /* the session's group gets a mirror: kvt_mirror_write() */
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
	KVT_ATTACH_REFUSED,        /* the daemon runs, but is at a limit or similar */
	KVT_ATTACH_FAILED,         /* no request was made: out of memory, a path too long */
};

#endif
