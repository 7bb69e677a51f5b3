/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_CONFIG_H
#define KVT_CORE_CONFIG_H

/**
 * @file config.h
 * Limits of a core, and the memory that they need.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_types.h"

#define KVT_MAX_SPACE_LIMITS 16

/** Most cached pages of a namespace, by its label or by its digest as 32 hexadecimal digits. */
struct kvt_space_limit {
	char name[KVT_LABEL_BYTES];
	uint32_t pages; /* 0: no limit */
};

/** Limits, all fixed at start. Zeros are replaced by kvt_core_plan(). */
struct kvt_core_config {
	uint32_t page_size;     /* positions, 1..4096 */
	uint32_t n_pages;       /* page 0 included, >= 2 */
	uint32_t n_slots;       /* 0: n_pages + n_pages / 16 + 1 */
	uint32_t max_nodes;     /* 0: the larger of n_pages / 4 and min(n_pages, 4096) */
	uint32_t max_namespaces; /* 0: 4096 */
	uint32_t max_sessions;  /* 0: 256 */
	uint32_t n_leases;      /* in the whole instance, 0: 16384 */
	uint32_t max_members;   /* ranks of groups in the whole instance, 0: 64 */
	uint32_t n_pending;     /* deferred operations in the whole instance, 0: 4096 */
	uint32_t max_leases;    /* per session, 0 = no limit */
	uint32_t max_private_pages; /* per session, 0 = no limit */
	/* max_private_pages is a share of the pool: it binds only while another session lives, and
	 * is then the same share of what the session has or could have. */
	bool soft_private;
	/* Pages that only sessions with fewer of them, private and locked ones, get while another
	 * session lives; 0 = none. */
	uint32_t reserve_pages;
	uint32_t uid_sessions;  /* of one uid, dead ones in quarantine included; 0 = no limit */
	uint32_t max_opened;    /* namespaces that one session has open, 0 = no limit */
	uint32_t max_op_keys;   /* most keys or pages of one operation: sizes scratch; 0: 1 Mi */
	/* Cached pages of each namespace that is not in the list, 0 = no limit. Above it they are
	 * evicted before those of others. */
	uint32_t space_pages;
	uint32_t n_space_limits;
	struct kvt_space_limit space_limits[KVT_MAX_SPACE_LIMITS];
	uint32_t policy;        /* enum kvt_policy */
	uint32_t slru_threshold; /* 0: 2 */
	uint32_t n_sides;       /* kinds of side pages, 0..KVT_MAX_SIDES */
	uint32_t side_pages[KVT_MAX_SIDES]; /* of each: last pages of a path that need one */
	bool disabled;          /* everything misses, nothing is cached */
	uint32_t coalesce_threshold; /* positions: for so few, or fewer, no BEGIN waits */
	uint64_t patience_ns; /* no BEGIN waits for a lease without a seal for so long; 0: any */
	uint64_t hash_seed;
	uint64_t instance[2];
	uint64_t boot_id[2];
	char fingerprint[KVT_FINGERPRINT_BYTES];
};

struct kvt_core_sizes {
	uint64_t arena_bytes;
	uint64_t ledger_bytes;
	uint64_t scratch_bytes;
	uint64_t audit_bytes; /* bytes of scratch that only an audit touches */
	uint64_t scratch_hot_bytes; /* leading bytes of scratch that any operation may read */
};

/** Fill in defaults and compute sizes. -EINVAL with *ret_why (a static sentence) otherwise. */
int kvt_core_plan(struct kvt_core_config *config, struct kvt_core_sizes *ret_sizes,
		  const char **ret_why);

#endif
