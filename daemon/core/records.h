/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_RECORDS_H
#define KVT_CORE_RECORDS_H

/**
 * @file records.h
 * The ledger's records: sessions and their processes, leases, owners of pages, pending operations.
 * ledger.h says which of their fields are facts.
 */

#include <stdint.h>

#include "kvtrunk_wire_operations.h"

enum kvt_session_flag {
	KVT_SESSION_PRIVILEGED = 1u << 0, /* may EVICT, RESET and AUDIT */
};

/** What the processes of a session hold together. Index 0 is unused. */
struct kvt_session_record {
	uint32_t state; /* enum kvt_session_state */
	uint32_t signs; /* enum kvt_session_sign */
	uint32_t generation;
	uint32_t flags; /* enum kvt_session_flag */
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
	uint64_t opened_ns;
	uint64_t ended_ns;
	uint64_t operations;
	uint32_t sq_taken; /* entries that took effect, were refused or wait */
	uint32_t cq_done;  /* completions made; completion i is last_cqe[i & 1] until i + 2 is */
	uint32_t first_quarantined; /* derived */
	uint32_t n_waiters; /* BEGINs that wait for others (derived) */
	uint32_t last_lease; /* the oldest (derived) */
	uint32_t sealer;     /* its number in the pages that it seals */
	uint32_t suspects;   /* SUSPECTs that it sent */
	uint32_t suspected;  /* SUSPECTs of pages that it sealed */
	uint32_t in_vain_ms; /* clock when others waited in vain for it, modulo 2^32; 0: never */
	uint32_t fatal_entry; /* the sq_taken for which `deaths` counts */
	uint32_t deaths;      /* of daemons that ran this entry */
	/* sq_taken and cq_done count like the ring's indices and change in the mutation that they
	 * count: entry i took effect iff i < sq_taken. Completions before cq_done - 1 are in the
	 * ring, because each is published before the next is made. So a successor knows the fate
	 * of every entry. */
	struct kvt_cqe last_cqe[2];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_session_record) == 256, "kvt_session_record");

enum kvt_member_state {
	KVT_MEMBER_FREE = 0,
	KVT_MEMBER_AWAITED = 1, /* a rank that has not joined yet */
	KVT_MEMBER_JOINED = 2,
};

/** One process of a session: rank 0, which opened it, or another rank of its group. The index of
 * rank 0 is its session's; ranks of groups have the indices above max_sessions. A record is valid
 * while its session has the generation that it names, so it ends with the session. It is written
 * outside of mutations, `state` last. */
struct kvt_member_record {
	uint32_t state; /* enum kvt_member_state */
	uint32_t session;
	uint32_t generation; /* of the session */
	uint32_t rank;
	uint32_t n_ranks; /* of the group, rank 0 included; 0 = none. Rank 0's is set last */
	uint32_t signs;   /* enum kvt_session_sign: HANGUP and EXITED of this process */
	int32_t pid;      /* in the daemon's PID namespace, 0 if unknown there */
	uint32_t uid;
	uint64_t start_time; /* of the process, clock ticks since boot */
	uint64_t secret[2];  /* rank 0 resumes the session with it; of others: the group's token */
	uint64_t reserved;
	char label[KVT_LABEL_BYTES];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_member_record) == 128, "kvt_member_record");

enum kvt_lease_kind {
	KVT_LEASE_FREE = 0,
	KVT_LEASE_MATCH = 1, /* MATCH with LOCK, LOCK, INSERT with LOCK: a lock, nothing else */
	KVT_LEASE_BEGIN = 2, /* a sequence */
};

enum kvt_lease_flag {
	KVT_LEASE_COUNTED = 1u << 0,    /* its use has been counted */
	KVT_LEASE_FORCE_MISS = 1u << 1,
	KVT_LEASE_ENDING = 1u << 2,     /* END or UNLOCK waits behind a fence */
	KVT_LEASE_FULL = 1u << 3,
	KVT_LEASE_LATE = 1u << 4, /* a waiter missed its deadline, or it stalled: no BEGIN waits
				     for it again */
	KVT_LEASE_BARE = 1u << 5, /* NO_PAGES, and not extended yet: it computes nothing */
	KVT_LEASE_ALONE = 1u << 6, /* too short to share: it has no path */
};

/** A session's lock on a path of the tree, and the private pages of its sequence. The path is named
 * by its deepest node: a node id keeps its full prefix through splits and merges.
 *
 *   page table of a BEGIN lease:   [ tree pages 0..done )[ private pages, in order ... )
 *   path:                          [ 0 .. path_pages )  (may be longer or shorter than done)
 */
struct kvt_lease_record {
	uint16_t kind; /* enum kvt_lease_kind */
	uint16_t flags;
	uint32_t point; /* pages in front of a declared point that it has not reached; 0: none */
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
	uint64_t epoch;      /* epoch of the arena at its BEGIN */
	uint64_t begun_ns;
	uint32_t next_lease; /* next of the session; free: 0 is the next number (derived) */
	uint32_t prev_lease; /* derived */
	uint32_t n_pending;  /* its deferred operations (derived) */
	uint32_t gap_us;     /* longest time between two of its seals, or BEGIN and the first */
	uint64_t ticket; /* order in which leases were made or, free ones, given back */
	uint64_t pending_keys; /* keys that its deferred operations bring (derived) */
	uint64_t root_key; /* root key of its BEGIN, or 0 */
	uint64_t sealed_ns; /* time of the last seal, or of BEGIN */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_lease_record) == 128, "kvt_lease_record");

/** The owner of a page that is neither free nor cached, and its place in a list. FREE pages use
 * `next` for the free list. Pages of a dying session may still name leases that have ended. */
struct kvt_owner_record {
	uint32_t lease;   /* lease index, or KVT_NONE */
	uint32_t session; /* session index, or KVT_NONE */
	uint32_t next;    /* derived, but in the two lists of a lease */
	uint32_t prev;    /* derived */
};
_Static_assert(sizeof(struct kvt_owner_record) == 16, "kvt_owner_record");

/** A pending operation: it waits for its fence or, a BEGIN, for pages that another lease computes.
 *
 * A waiting BEGIN holds neither page nor lock. It names the lease that it waits for and how far
 * that path is its own. All waiters are one queue in order of their tokens. Ready ones run before
 * any other operation. */
struct kvt_pending_record {
	struct kvt_sqe sqe;
	uint32_t session;
	uint32_t next; /* next in its list: session's, waiters or free ones (derived) */
	uint32_t lease; /* lease of the operation; of a waiter, the awaited lease */
	uint32_t prev;  /* waiter before it in the queue (derived) */
	uint64_t token; /* seq of the DEFER record, for the operation log */
	uint64_t deadline_ns; /* time at which a waiter computes by itself */
	uint64_t begun_ns;    /* time at which it began to wait */
	uint32_t matched;     /* pages that it matched, or could use, when it began to wait */
	uint32_t goal;        /* pages of the awaited lease's path that are the waiter's own */
	uint32_t lease_generation; /* generation of the awaited lease */
	uint32_t owner;            /* session of the awaited lease */
	uint32_t owner_generation;
	uint16_t deaths; /* daemons that died while they ran it */
	uint16_t for_point; /* 1: the goal is a declared point, and `matched` what was usable */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_pending_record) == 128, "kvt_pending_record");

#endif
