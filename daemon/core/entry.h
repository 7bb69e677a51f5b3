/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_ENTRY_H
#define KVT_CORE_ENTRY_H

/**
 * @file entry.h
 * An entry on its way through the core: what it takes, and how it is refused.
 */

#include "daemon/core/state.h"
#include "daemon/core/view.h"

/** One operation under way. */
struct kvt_op_context {
	uint32_t session;
	uint32_t n_sides; /* pairs of a COMMIT, copied to core->op_sides; UINT32_MAX: too many */
	const struct kvt_sqe *sqe;
	const struct kvt_core_view *view;
	struct kvt_cqe *cqe;
	const uint32_t *keys; /* of the entry: client memory, or the copy that the log gets */
	uint64_t root_key;    /* of the entry, 0 if it has none */
	/* For a BEGIN that waits, or that found that it must (KVT_WAITS): */
	uint32_t waiter; /* its pending record, KVT_NONE before it has one */
	uint32_t awaited, goal, matched;
	bool for_point; /* the goal is a declared point, and `matched` what is usable */
	uint32_t own; /* pages that the BEGIN takes from ended leases of its session */
	/* For one that waited for its fence: its pending record, and the session's before it. */
	uint32_t deferred, before;
};

/** Fill a refusal into the completion. Returns `error`. */
int kvt_refuse(struct kvt_op_context *op, int error, enum kvt_reason reason, uint32_t number);

/** Check what can be judged before the entry's fence is reached: 0 or a refusal. Its keys were
 * read. */
int kvt_entry_check(struct kvt_core *core, struct kvt_op_context *op);
/** Check the lease that an entry names: 0 or a refusal. `deferred`: it was let in before. */
int kvt_entry_check_lease(struct kvt_core *core, struct kvt_op_context *op, bool deferred);
/** True if the entry would begin a lease: refused while the daemon drains. */
bool kvt_entry_begins_lease(const struct kvt_sqe *sqe);

/** True if an entry found deferred after a restart can be one that was let in. */
bool kvt_op_may_wait(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe);

/** Words of the key area in front of an entry's keys. */
static inline uint64_t kvt_entry_front(const struct kvt_op_context *op)
{
	return kvt_root_key_words(op->sqe->flags) + kvt_side_words(op->sqe->flags, op->n_sides);
}

/** True if an entry's keys, list and page numbers lie inside the session's areas. */
static inline bool kvt_entry_areas_ok(const struct kvt_core *core,
				      const struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;

	if (sqe->keys_offset + kvt_entry_front(op) + sqe->n_keys > op->view->keys_count ||
	    (uint64_t)sqe->list_offset + sqe->list_capacity > op->view->list_count)
		return false;
	return sqe->op != KVT_OP_INSERT ||
	       (uint64_t)sqe->arg + sqe->n_keys / core->ps <= op->view->keys_count;
}

/** Copy the pairs of a COMMIT with SIDES, and count them in op->n_sides. */
void kvt_entry_sides(struct kvt_core *core, struct kvt_op_context *op);
/** Set op->keys to where the operation reads its keys; NULL if the areas do not hold what the entry
 * names, or there are too many. op->root_key is a copy, as are the pairs of a COMMIT. A logged
 * operation runs on a copy of its keys, too: the client may change them at any moment, and the log
 * must hold those that were used. */
static inline void kvt_entry_keys(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t root_key[2];

	op->keys = NULL;
	op->root_key = 0;
	op->n_sides = 0;
	if (sqe->flags & KVT_F_SIDES)
		kvt_entry_sides(core, op);
	if (!kvt_entry_areas_ok(core, op) || sqe->n_keys > core->config.max_op_keys)
		return;
	op->keys = op->view->keys + sqe->keys_offset + kvt_entry_front(op);
	if (kvt_root_key_words(sqe->flags)) {
		kvt_racy_copy(root_key, op->view->keys + sqe->keys_offset, 2);
		op->root_key = (uint64_t)root_key[1] << 32 | root_key[0];
	}
	if (!core->hooks.record)
		return;
	kvt_racy_copy(core->log_keys, op->keys, sqe->n_keys);
	op->keys = core->log_keys;
}

#endif
