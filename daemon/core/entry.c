/* SPDX-License-Identifier: Apache-2.0 */

/* Checking and refusing entries.
 *
 * Input is a private copy of a client's entry; its keys stay in client memory. These checks do
 * not depend on the tree, so they come before a fence is waited for; an operation refuses the rest
 * itself, with kvt_refuse(). Nothing is changed. Callers: run.c, each operation, and
 * recovery, which finds entries that a dead daemon let in. */

#include <errno.h>

#include "daemon/core/entry.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"
#include "kvtrunk_wire_control.h"

int kvt_refuse(struct kvt_op_context *op, int error, enum kvt_reason reason, uint32_t number)
{
	op->cqe->reason = (uint16_t)reason;
	op->cqe->refused = (struct kvt_answer_refused){ .number = number };
	return error;
}

/* ---- what each operation takes */

#define FLAGS(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = (flags),
static const uint16_t op_flags[KVT_OP_COUNT] = { KVT_OPS(FLAGS, , ) };

static bool namespace_ok(const struct kvt_core *core, uint32_t session, uint32_t namespace_id)
{
	return namespace_id > 0 && namespace_id < core->config.max_namespaces &&
	       kvt_bit_get(core->opened + (size_t)session * core->opened_words, namespace_id);
}

static bool waits(const struct kvt_sqe *sqe)
{
	return sqe->op == KVT_OP_BEGIN && (sqe->flags & (KVT_F_WAIT | KVT_F_NO_WAIT));
}

/** True if a deadline is there for a wait, and for a notice. */
static bool deadline_fits(const struct kvt_sqe *sqe)
{
	return sqe->ttl_ms ? waits(sqe) : !(sqe->flags & KVT_F_NO_WAIT);
}

/** True if the operation takes all flags of the entry. */
static bool flags_known(const struct kvt_core *core, const struct kvt_sqe *sqe)
{
	return !(sqe->flags & ~op_flags[sqe->op]) &&
	       (core->n_sides > 0 || !(sqe->flags & KVT_F_SIDES));
}

bool kvt_op_may_wait(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe)
{
	uint32_t takes;

	if (sqe->op >= KVT_OP_COUNT)
		return false;
	takes = kvt_op_takes(sqe->op);
	return (takes & KVT_TAKES_FENCE || waits(sqe)) &&
	       flags_known(core, sqe) &&
	       (sqe->fence_slot < KVT_FENCE_WORDS || sqe->fence_slot == KVT_FENCE_IDLE) &&
	       sqe->n_keys <= core->config.max_op_keys &&
	       (!(takes & KVT_TAKES_NAMESPACE) || namespace_ok(core, session, sqe->namespace_id));
}

/** True if every field that the operation does not take is 0. */
static bool unused_fields_zero(const struct kvt_core *core, const struct kvt_sqe *sqe,
			       uint32_t takes)
{
	bool point = takes & KVT_TAKES_POINT && core->n_sides > 0;
	uint64_t fence_value = point ? sqe->fence_value >> 32 : sqe->fence_value;

	if (!(takes & KVT_TAKES_NAMESPACE) && sqe->namespace_id)
		return false;
	if (!(takes & KVT_TAKES_KEYS) && (sqe->keys_offset || sqe->n_keys))
		return false;
	if (!(takes & KVT_TAKES_LIST) && (sqe->list_offset || sqe->list_capacity))
		return false;
	if (!(takes & KVT_TAKES_ARG) && sqe->arg)
		return false;
	if (!(takes & (KVT_TAKES_HANDLE | KVT_TAKES_LEASE)) && (sqe->node || sqe->generation))
		return false;
	if (!(takes & KVT_TAKES_HANDLE) && sqe->positions)
		return false;
	if (!(takes & KVT_TAKES_FENCE) &&
	    (fence_value || (sqe->fence_slot && sqe->fence_slot != KVT_FENCE_IDLE)))
		return false;
	if (!(takes & KVT_TAKES_POLICY) && sqe->priority &&
	    (!(takes & KVT_TAKES_MIN) || sqe->priority < 0))
		return false;
	return takes & (KVT_TAKES_POLICY | KVT_TAKES_DEADLINE) || !sqe->ttl_ms;
}

void kvt_entry_sides(struct kvt_core *core, struct kvt_op_context *op)
{
	const uint32_t *from = op->view->keys + op->sqe->keys_offset;

	if (core->n_sides == 0 || !kvt_entry_areas_ok(core, op))
		return;
	kvt_racy_copy(&op->n_sides, from, 1);
	if (2ull * op->n_sides > core->config.max_op_keys)
		op->n_sides = UINT32_MAX;
	else if (kvt_entry_areas_ok(core, op))
		kvt_racy_copy(core->op_sides, from + 1, 2 * op->n_sides);
}

int kvt_entry_check_lease(struct kvt_core *core, struct kvt_op_context *op, bool deferred)
{
	const struct kvt_sqe *sqe = op->sqe;
	const struct kvt_lease_record *lease;

	if (sqe->node == 0 || sqe->node > core->config.n_leases)
		return kvt_refuse(op, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	lease = &core->leases[sqe->node];
	if (lease->kind == KVT_LEASE_FREE || lease->generation != sqe->generation ||
	    (!deferred && (lease->flags & KVT_LEASE_ENDING)))
		return kvt_refuse(op, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	if (lease->session != op->session)
		return kvt_refuse(op, -EPERM, KVT_REASON_LEASE_FOREIGN, 0);
	if ((lease->kind == KVT_LEASE_MATCH) != (sqe->op == KVT_OP_UNLOCK))
		return kvt_refuse(op, -EINVAL, KVT_REASON_LEASE_KIND, 0);
	return 0;
}

int kvt_entry_check(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	const struct kvt_session_record *session = &core->sessions[op->session];
	uint32_t takes;

	if (session->state != KVT_SESSION_OPEN)
		return kvt_refuse(op, -ESHUTDOWN, KVT_REASON_CLOSING, 0);
	if (sqe->op >= KVT_OP_COUNT)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_OP, 0);
	takes = kvt_op_takes(sqe->op);
	if (!flags_known(core, sqe) ||
	    (sqe->op == KVT_OP_MATCH && (sqe->flags & KVT_F_LOCK) &&
	     (sqe->flags & KVT_F_NO_TOUCH)) ||
	    (sqe->flags & KVT_F_ROOT_KEY && sqe->node) ||
	    (sqe->op == KVT_OP_REMOVE && sqe->flags && !sqe->n_keys) ||
	    (sqe->op == KVT_OP_BEGIN && (sqe->flags & KVT_F_WAIT) &&
	     (sqe->flags & KVT_F_NO_WAIT)) ||
	    (sqe->op == KVT_OP_COMMIT &&
	     ((sqe->flags & (KVT_F_KEEP | KVT_F_NO_LIST)) == KVT_F_NO_LIST ||
	      (sqe->flags & (KVT_F_SIDES | KVT_F_NO_LIST)) == KVT_F_SIDES)) ||
	    (sqe->op == KVT_OP_END && (sqe->flags & (KVT_F_CHUNKED | KVT_F_KEEP)) &&
	     !(sqe->flags & KVT_F_COMMIT)))
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (!unused_fields_zero(core, sqe, takes) ||
	    ((sqe->flags & (KVT_F_NO_LIST | KVT_F_SIDES)) == KVT_F_NO_LIST &&
	     (sqe->list_offset || sqe->list_capacity)) ||
	    (sqe->op == KVT_OP_END && !(sqe->flags & KVT_F_COMMIT) &&
	     (sqe->arg || sqe->keys_offset || sqe->n_keys)) ||
	    (sqe->op == KVT_OP_BEGIN && (sqe->flags & KVT_F_NO_PAGES) && sqe->arg) ||
	    (sqe->op == KVT_OP_EXTEND && sqe->n_keys &&
	     (sqe->arg || sqe->list_capacity || sqe->flags)))
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (takes & KVT_TAKES_DEADLINE && !deadline_fits(sqe))
		return kvt_refuse(op, -EINVAL, KVT_REASON_DEADLINE, 0);
	if (takes & KVT_TAKES_POLICY && !!(sqe->flags & KVT_F_TTL) != !!sqe->ttl_ms)
		return kvt_refuse(op, -EINVAL, KVT_REASON_TTL, 0);
	if (sqe->fence_slot >= KVT_FENCE_WORDS && sqe->fence_slot != KVT_FENCE_IDLE)
		return kvt_refuse(op, -EINVAL, KVT_REASON_FENCE, 0);
	if (!op->keys)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE,
				  kvt_entry_areas_ok(core, op) ? core->config.max_op_keys : 0);
	if (takes & KVT_TAKES_NAMESPACE && !namespace_ok(core, op->session, sqe->namespace_id))
		return kvt_refuse(op, -EINVAL, KVT_REASON_NAMESPACE, 0);
	if (takes & KVT_TAKES_PRIVILEGE && !(session->flags & KVT_SESSION_PRIVILEGED))
		return kvt_refuse(op, -EPERM, KVT_REASON_PRIVILEGE, 0);
	return takes & KVT_TAKES_LEASE ? kvt_entry_check_lease(core, op, false) : 0;
}

bool kvt_entry_begins_lease(const struct kvt_sqe *sqe)
{
	return sqe->op == KVT_OP_BEGIN || sqe->op == KVT_OP_LOCK ||
	       ((sqe->op == KVT_OP_MATCH || sqe->op == KVT_OP_INSERT) &&
		(sqe->flags & KVT_F_LOCK));
}
