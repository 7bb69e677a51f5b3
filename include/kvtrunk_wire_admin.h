/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_ADMIN_H
#define KVTRUNK_WIRE_ADMIN_H

/**
 * @file kvtrunk_wire_admin.h
 * Admin requests on the control socket, and the records of their answers.
 */

#include <stdint.h>

#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_counts.h"

enum kvt_admin_what {
	KVT_ADMIN_STATUS = 1,     /* struct kvt_admin_status */
	KVT_ADMIN_CLIENTS = 2,    /* struct kvt_admin_client, paged by cursor = session index */
	KVT_ADMIN_NAMESPACES = 3, /* struct kvt_admin_namespace, cursor = namespace number */
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

struct kvt_admin_status {
	struct kvt_counters counters;
	uint64_t epoch;
	uint64_t instance[2];
	uint64_t now_ns;
	uint64_t started_ns;       /* the process */
	uint64_t cache_started_ns; /* the cache, which a restart may keep */
	struct kvt_starts starts;
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
	uint64_t refused[KVT_REFUSAL_COUNT]; /* attempts, since the cache began */
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
	uint32_t sealer;    /* its number in struct kvt_page_record */
	uint32_t reserved;
	struct kvt_tally tally;
};

struct kvt_admin_namespace {
	uint32_t namespace_id, root, opened, generation;
	uint64_t digest[2];
	uint64_t cached_pages, evictable_pages, protected_pages;
	uint32_t nodes, limit; /* limit: of cached pages, 0: none */
	char label[KVT_LABEL_BYTES];
	struct kvt_tally tally;
};

struct kvt_admin_page {
	uint32_t page, state, session, lease;
	uint32_t node, generation, position, lock_ref;
};

#endif
