/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_LEASE_H
#define KVT_CORE_LEASE_H

/**
 * @file lease.h
 * Leases, and the four operations of a sequence.
 */

#include "daemon/core/entry.h"

/** Check that the session may have one more lease: 0 or a refusal. */
int kvt_lease_quota(struct kvt_core *core, struct kvt_op_context *op);
/** Take a free lease, which kvt_lease_quota() found. */
uint32_t kvt_lease_make(struct kvt_core *core, uint32_t session, uint32_t kind, uint32_t node,
			uint32_t path_pages);
/** List a lease with its session, before all older ones, and count it. */
void kvt_lease_list(struct kvt_core *core, uint32_t lease);
/** Free a lease that holds nothing any more. */
void kvt_lease_free(struct kvt_core *core, uint32_t lease);
/** Append a lease to the free ones. */
void kvt_lease_queue(struct kvt_core *core, uint32_t lease);
/** List a lease that has a declared point. */
void kvt_lease_point(struct kvt_core *core, uint32_t id);

/** How many of n private pages an operation may have now: quota, room. */
uint32_t kvt_private_most(struct kvt_core *core, const struct kvt_op_context *op, uint32_t n);
/** Check that an operation may have n private pages and list them: quota, list, room. Fills
 * op->own, how many of them come from leases that end. */
int kvt_private_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t n);
/** Check that the session may lock this path: 0 or a refusal. */
int kvt_lock_quota(struct kvt_core *core, struct kvt_op_context *op, uint32_t node,
		   uint32_t pages);
/** Take n private pages from the session's leases that end. Returns a list for kvt_own_next(). */
uint32_t kvt_own_take(struct kvt_core *core, uint32_t session, uint32_t n);
/** Take the first page off such a list. */
uint32_t kvt_own_next(struct kvt_core *core, uint32_t *list);
/** Evict until n pages are free, which was found possible. */
void kvt_room_make(struct kvt_core *core, uint32_t n);

int kvt_op_begin(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_commit(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_extend(struct kvt_core *core, struct kvt_op_context *op);
int kvt_op_end(struct kvt_core *core, struct kvt_op_context *op);

/** End a lease without an entry: unlock, free what is private. Returns pages freed. */
uint32_t kvt_lease_end(struct kvt_core *core, uint32_t lease);
/** End a lease as kvt_lease_end(), and join the runs of its path where that is cheap. *holder names
 * a node of the path that stays cached, or KVT_NONE. On return it names the node with its pages. */
uint32_t kvt_lease_end_join(struct kvt_core *core, uint32_t lease, uint32_t *holder);

#endif
