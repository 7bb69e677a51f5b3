/* SPDX-License-Identifier: Apache-2.0 */

/* Operations that wait for their fences, in the order in which they were submitted.
 *
 * Operations of one lease take effect in their order; CLOSE waits for all others of its session. An
 * END, UNLOCK or CLOSE that waits closes its lease or session to new operations at once. Callers:
 * run.c, which queues and runs them, and the end of a session, which forgets them. wait.c keeps
 * BEGINs that wait in records of the same kind. */

#include "daemon/core/core.h"
#include "daemon/core/effect.h"
#include "daemon/core/entry.h"
#include "daemon/core/pending.h"
#include "daemon/core/state.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_segment.h"

bool kvt_core_can_defer(const struct kvt_core *core)
{
	return core->free_pending.count > 0;
}

bool kvt_fence_reached(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe)
{
	const struct kvt_fence_group *group = &core->groups[session];
	const struct kvt_fence_word *words = core->views[session].fences;

	if (sqe->fence_slot == KVT_FENCE_IDLE)
		return true;
	KVT_ASSERT(words && sqe->fence_slot < KVT_FENCE_WORDS);
	/* Pairs with the release that raises the word (client or device): its earlier stores to
	 * pages are visible. */
	if (kvt_load_acquire(&words[sqe->fence_slot].value) < sqe->fence_value)
		return false;
	for (uint32_t i = 0; i < group->n; i++)
		if (kvt_load_acquire(&group->words[i][sqe->fence_slot].value) < sqe->fence_value)
			return false;
	return true;
}

uint32_t kvt_pending_take(struct kvt_core *core)
{
	uint32_t id = core->free_pending.head;

	KVT_ASSERT(id != KVT_NONE);
	KVT_ASSERT(core->free_pending.count > 0 && core->pending[id].session == 0);
	core->free_pending.head = core->pending[id].next;
	if (--core->free_pending.count == 0)
		core->free_pending.tail = KVT_NONE;
	return id;
}

void kvt_pending_free(struct kvt_core *core, uint32_t id)
{
	KVT_ASSERT(id != KVT_NONE && core->pending[id].session > 0);
	KVT_ASSERT(core->free_pending.count < core->config.n_pending);
	kvt_save(core, &core->pending[id], sizeof(*core->pending));
	core->pending[id] = (struct kvt_pending_record){ 0 };
	if (core->free_pending.count++ == 0)
		core->free_pending.head = id;
	else
		core->pending[core->free_pending.tail].next = id;
	core->free_pending.tail = id;
}

/** True if an earlier operation has to take effect before this one. */
static bool has_earlier(const struct kvt_core *core, const struct kvt_op_context *op)
{
	if (op->sqe->op == KVT_OP_CLOSE)
		return core->sessions[op->session].n_pending > 0;
	return kvt_op_takes(op->sqe->op) & KVT_TAKES_LEASE &&
	       core->leases[op->sqe->node].n_pending > 0;
}

static void mark_ending(struct kvt_core *core, const struct kvt_op_context *op)
{
	struct kvt_session_record *session = &core->sessions[op->session];

	if (op->sqe->op == KVT_OP_END || op->sqe->op == KVT_OP_UNLOCK) {
		kvt_save_lease(core, op->sqe->node);
		core->leases[op->sqe->node].flags |= KVT_LEASE_ENDING;
	} else if (op->sqe->op == KVT_OP_CLOSE) {
		kvt_save(core, session, KVT_SESSION_FACTS);
		session->state = KVT_SESSION_CLOSING;
	}
	core->wake_due = true;
}

bool kvt_defer(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_session_record *session = &core->sessions[op->session];
	struct kvt_pending_record *pending;
	uint32_t id;

	if (kvt_fence_reached(core, op->session, op->sqe) && !has_earlier(core, op))
		return false;
	kvt_mutation_begin(core);
	id = kvt_pending_take(core);
	pending = &core->pending[id];
	kvt_save(core, pending, sizeof(*pending));
	*pending = (struct kvt_pending_record){ .sqe = *op->sqe, .session = op->session };
	if (session->n_pending++ == 0)
		session->first_pending = id;
	else
		core->pending[session->last_pending].next = id;
	session->last_pending = id;
	if (kvt_op_takes(op->sqe->op) & KVT_TAKES_LEASE) {
		pending->lease = op->sqe->node;
		KVT_ASSERT(core->leases[pending->lease].session == op->session);
		core->leases[pending->lease].n_pending++;
		core->leases[pending->lease].pending_keys += op->sqe->n_keys;
	}
	mark_ending(core, op);
	kvt_save_progress(core, op->session);
	session->sq_taken++;
	core->record.sqe = *op->sqe;
	pending->token = kvt_record_emit(core, KVT_REC_DEFER, op->session, 0);
	kvt_mutation_end(core);
	return true;
}

void kvt_pending_forget(struct kvt_core *core, uint32_t id, uint32_t before)
{
	struct kvt_pending_record *pending = &core->pending[id];
	struct kvt_session_record *session = &core->sessions[pending->session];

	KVT_ASSERT(session->n_pending > 0);
	KVT_ASSERT(before == KVT_NONE ? session->first_pending == id :
		   core->pending[before].next == id);
	if (before != KVT_NONE)
		core->pending[before].next = pending->next;
	else
		session->first_pending = pending->next;
	if (session->last_pending == id)
		session->last_pending = before;
	session->n_pending--;
	/* An END or UNLOCK is forgotten when its lease has ended. */
	if (pending->lease != KVT_NONE &&
	    core->leases[pending->lease].generation == pending->sqe.generation) {
		KVT_ASSERT(core->leases[pending->lease].n_pending > 0);
		KVT_ASSERT(core->leases[pending->lease].pending_keys >= pending->sqe.n_keys);
		core->leases[pending->lease].n_pending--;
		core->leases[pending->lease].pending_keys -= pending->sqe.n_keys;
	}
	kvt_pending_free(core, id);
}
