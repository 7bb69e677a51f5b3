/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_HOOKS_H
#define KVT_CORE_HOOKS_H

/**
 * @file hooks.h
 * Hooks by which the core tells completions, records and changes; the effort of its operations.
 */

#include <stdint.h>

struct kvt_cqe;
struct kvt_record;

/** Called when a deferred operation takes effect. `cqe->user_data` is the request's. */
typedef void kvt_core_complete_fn(void *context, uint32_t session, const struct kvt_cqe *cqe);
/** Called after every effect, in order of seq. The record is valid during the call only. */
typedef void kvt_core_record_fn(void *context, const struct kvt_record *record);

/** A change of what is cached, by one effect, for the feed. */
struct kvt_change {
	uint64_t seq;
	const uint32_t *in;  /* pages that became cached, in order: of a node those of its path */
	const uint32_t *out; /* then, pages that stopped being so, some of `in` among them */
	const uint32_t *lasting; /* cached pages whose time to live was lifted */
	uint32_t n_in, n_out, n_lasting;
	uint32_t cut;          /* top of a subtree that was detached; KVT_NONE: none */
	uint32_t namespace_id; /* a session opened it; 0: none */
	uint32_t n_used;       /* pages that a BEGIN reuses, */
	uint32_t used;         /* and the last one of them */
};
/** Called at the end of every effect, inside its mutation: before any answer. */
typedef void kvt_core_change_fn(void *context, const struct kvt_change *change);

struct kvt_core_hooks {
	kvt_core_complete_fn *complete;
	kvt_core_record_fn *record; /* NULL: no log */
	void *context;
};

/** Work of the last operation, for tests of the O(1) claims and statistics. */
struct kvt_core_effort {
	uint32_t nodes_touched;
	uint32_t keys_compared;
	uint32_t keys_copied;
	uint32_t pages_moved;
	uint32_t path_nodes; /* nodes on the matched path */
};

#endif
