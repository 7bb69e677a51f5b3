/* SPDX-License-Identifier: Apache-2.0 */

/* Running operations: the top floor.
 *
 * An operation's way is down once and up once: its entry is checked (entry.c), it runs (op.c and
 * below), its effect is recorded, and it is answered. It runs at once, or when its fence is reached
 * (kvt_core_poll()), or, a BEGIN that waits, when what it waited for is there (kvt_core_wake()).
 *
 * Before each operation, expired nodes are detached and ready waiters run, so nothing can evict
 * what they waited for. Both are effects of their own. An operation that comes upon an expired node
 * runs again once that is detached. Callers: the daemon's turn, and its operator commands. */

#include <errno.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/entry.h"
#include "daemon/core/evict.h"
#include "daemon/core/op.h"
#include "daemon/core/order.h"
#include "daemon/core/pending.h"
#include "daemon/core/run.h"
#include "daemon/core/running.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "daemon/core/wait.h"
#include "daemon/core/walk.h"

#define EXPIRE_AT_ONCE 16 /* nodes, before an operation */

/* ---- expiry */

static void expire(struct kvt_core *core, uint32_t id)
{
	uint64_t outer = kvt_running_work(core, KVT_WORK_EXPIRE, 0);

	kvt_mutation_begin(core);
	kvt_detach(core, id, KVT_NODE_EXPIRED);
	core->count->expired_nodes++;
	kvt_record_emit(core, KVT_REC_EXPIRE, 0, id);
	kvt_mutation_end(core);
	kvt_running_end(core, outer);
}

/** Expire a node inside the bracket of an operation that has changed nothing, and runs again: its
 * record is empty, or is filled again. */
static void expire_inside(struct kvt_core *core, uint32_t id)
{
	kvt_mutation_end(core);
	kvt_record_start(core);
	expire(core, id);
	kvt_record_start(core);
	kvt_mutation_begin(core);
}

void kvt_expire_due(struct kvt_core *core, uint32_t limit)
{
	for (uint32_t i = 0; i < limit && core->expiry.count > 0; i++) {
		uint32_t id = core->expiry.nodes[0];

		if (core->nodes[id].expiry_ns > core->now_ns)
			return;
		if (kvt_path_detached(core, id)) {
			kvt_heap_remove(core, &core->expiry, id);
			continue;
		}
		kvt_record_start(core);
		expire(core, id);
	}
}

/* ---- one operation */

/** Evict n pages, or all that can be, as an effect of its own. `inside`: of a BEGIN, whose match
 * ends in path_node and goes last, or alone. */
static void evict(struct kvt_core *core, uint32_t n, enum kvt_evict_inside inside,
		  uint32_t path_node)
{
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (n > core->count->evictable_pages)
		n = (uint32_t)core->count->evictable_pages;
	if (inside == KVT_EVICT_ALONE)
		kvt_evict_path_end(core, n, path_node);
	else
		kvt_evict_path_last(core, n, path_node);
	core->record.sqe = (struct kvt_sqe){ .op = KVT_OP_EVICT, .arg = n, .node = path_node };
	core->record.cqe = (struct kvt_cqe){ .evict.evicted = core->n_out };
	kvt_record_emit(core, KVT_REC_ADMIN, 0, inside);
	kvt_mutation_end(core);
}

/** Answer an operation, and emit its record. `token`: seq of its DEFER record, or 0. */
static void finish(struct kvt_core *core, struct kvt_op_context *op, int error, uint64_t token)
{
	struct kvt_session_record *session = &core->sessions[op->session];
	struct kvt_cqe *cqe = op->cqe;

	if (error)
		*cqe = (struct kvt_cqe){
			.result = error, .reason = cqe->reason, .flags = cqe->flags,
			.refused = cqe->refused,
		};
	if (cqe->reason)
		kvt_tally_refused(core, op->session, op->sqe, cqe->reason);
	kvt_save_progress(core, op->session);
	cqe->user_data = op->sqe->user_data;
	cqe->seq = core->ledger->seq + 1;
	if (!(cqe->flags & KVT_CQE_ASYNC)) { /* counted when it was answered first */
		core->count->operations++;
		session->operations++;
	}
	session->sq_taken += token == 0;
	session->last_cqe[session->cq_done & 1] = *cqe;
	session->cq_done++;
	if (core->hooks.record) {
		struct kvt_record *record = &core->record;

		record->sqe = *op->sqe;
		record->cqe = *cqe;
		/* An entry that was refused for something else may name keys that are not there, or
		 * were not read. */
		if (kvt_entry_areas_ok(core, op) &&
		    op->sqe->n_keys <= core->config.max_op_keys &&
		    (op->keys || op->sqe->n_keys == 0)) {
			record->keys = op->keys;
			record->root_key = op->root_key;
			record->n_keys = op->sqe->n_keys;
			record->list = op->view->list + op->sqe->list_offset;
			record->n_list = error ? 0 : cqe->n_list;
		}
	}
	kvt_record_emit(core, KVT_REC_OP, op->session, token);
}

/** Let a BEGIN wait. Returns true if there is a completion: -EAGAIN, with NO_WAIT or without a
 * deadline. */
static bool begin_waits(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t announced = (op->goal - op->matched) * core->ps;
	bool again = op->waiter != KVT_NONE;
	uint64_t token;

	if (!op->sqe->ttl_ms) {
		finish(core, op, kvt_refuse(op, -EAGAIN, KVT_REASON_ANNOUNCED, announced), 0);
		return true;
	}
	kvt_wait_begin(core, op);
	token = core->pending[op->waiter].token;
	if (!again && (op->sqe->flags & KVT_F_WAIT)) {
		kvt_save_progress(core, op->session);
		core->sessions[op->session].sq_taken++;
	}
	if (again || (op->sqe->flags & KVT_F_WAIT)) {
		kvt_wait_emit(core, op, again ? token : 0);
		return false;
	}
	finish(core, op, kvt_refuse(op, -EAGAIN, KVT_REASON_ANNOUNCED, announced), 0);
	kvt_record_start(core);
	kvt_wait_emit(core, op, token);
	return true;
}

/** Run what waits for fences that were raised since the last poll, inside the bracket of an
 * operation that has changed nothing. True: something ran, and may have given pages back. */
static bool poll_inside(struct kvt_core *core)
{
	uint32_t ran = 0;

	kvt_mutation_end(core);
	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		if (core->sessions[id].n_pending > 0)
			ran += kvt_core_poll(core, id, core->now_ns);
	kvt_core_wake(core, core->now_ns); /* before the operation, which may evict */
	kvt_record_start(core);
	kvt_mutation_begin(core);
	return ran > 0;
}

/** Evict inside the bracket of a BEGIN that has changed nothing, and runs again. */
static void evict_inside(struct kvt_core *core, uint32_t n)
{
	kvt_mutation_end(core);
	evict(core, n, core->evict_alone ? KVT_EVICT_ALONE : KVT_EVICT_LAST, core->evict_path);
	kvt_record_start(core);
	kvt_mutation_begin(core);
}

/** True if raised fences may give an operation what it was refused for: never more than the pool
 * has. Only an entry on its way in: polling changes the queues of those that wait. */
static bool wants_pages(const struct kvt_op_context *op, int error)
{
	return error == -ENOSPC && op->cqe->reason != KVT_REASON_TOO_LARGE && !op->deferred &&
	       !op->waiter &&
	       (op->sqe->op == KVT_OP_ALLOC || op->sqe->op == KVT_OP_EXTEND ||
		op->sqe->op == KVT_OP_BEGIN);
}

/** Run an operation, and again after each expired node that it meets, once more if it found no
 * pages and raised fences gave some back, and while its own match is in its way. Expiry, what
 * waited and eviction are separate effects: the operation has changed nothing so far. */
static int run_op(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_cqe before = { .flags = op->cqe->flags };
	bool polled = false;
	int error;

	for (;;) {
		core->evict_first = 0;
		error = kvt_op_run(core, op);
		if (error == KVT_EXPIRED) {
			expire_inside(core, core->expired);
		} else if (!polled && wants_pages(op, error) && poll_inside(core)) {
			*op->cqe = before;
			polled = true;
		} else if (error && core->evict_first > 0) {
			*op->cqe = before;
			evict_inside(core, core->evict_first);
		} else {
			return error;
		}
	}
}

/** Run an operation as one effect. Returns true if it is answered, false if it waits. */
static bool take_effect(struct kvt_core *core, struct kvt_op_context *op, uint64_t token)
{
	bool answered = true;
	int error = 0;

	if (token) /* it waited: the keys are read now */
		kvt_entry_keys(core, op);
	kvt_mutation_begin(core);
	/* A session may come back from a restart with smaller areas. */
	if (token && !op->keys)
		error = kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE, 0);
	else if (token && kvt_op_takes(op->sqe->op) & KVT_TAKES_LEASE)
		error = kvt_entry_check_lease(core, op, true);
	if (!error)
		error = run_op(core, op);
	if (error == KVT_WAITS) {
		answered = begin_waits(core, op);
	} else {
		if (op->waiter)
			kvt_wait_end(core, op, error);
		if (op->deferred)
			kvt_pending_forget(core, op->deferred, op->before);
		finish(core, op, error, token);
	}
	kvt_mutation_end(core);
	return answered;
}

/** End an operation with an error instead of running it. Its keys are not read. */
static void give_up(struct kvt_core *core, struct kvt_op_context *op, uint64_t token, int error,
		    enum kvt_reason reason)
{
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (op->waiter && op->sqe->flags & KVT_F_NO_WAIT)
		op->cqe->flags |= KVT_CQE_ASYNC;
	if (op->waiter)
		kvt_wait_end(core, op, error);
	if (op->deferred)
		kvt_pending_forget(core, op->deferred, op->before);
	finish(core, op, kvt_refuse(op, error, reason, 0), token);
	kvt_mutation_end(core);
}

/** Run a deferred operation that is due, unless daemons died in it. Returns true if it is answered,
 * false if it waits again. */
static bool run_deferred(struct kvt_core *core, struct kvt_op_context *op, uint32_t id)
{
	struct kvt_pending_record *pending = &core->pending[id];
	uint64_t token = pending->token, outer;
	bool answered;

	if (pending->deaths >= KVT_FATAL_DEATHS) {
		give_up(core, op, token, -EIO, KVT_REASON_FATAL);
		return true;
	}
	outer = kvt_running_begin(core, kvt_running_word(KVT_RUNNING_DEFERRED, pending->deaths,
							 op->sqe->op, op->session, id));
	kvt_record_start(core);
	answered = take_effect(core, op, token);
	kvt_running_end(core, outer);
	if (!answered)
		pending->deaths = 0;
	return answered;
}

/** An operation that runs in no queue; callers name its place in one. */
static inline struct kvt_op_context context_of(const struct kvt_core *core, uint32_t session,
					       const struct kvt_sqe *sqe, struct kvt_cqe *cqe)
{
	return (struct kvt_op_context){
		.session = session,
		.sqe = sqe,
		.view = &core->views[session],
		.cqe = cqe,
	};
}

/* ---- BEGINs that wait */

static void run_waiter(struct kvt_core *core, uint32_t id)
{
	struct kvt_pending_record entry = core->pending[id];
	struct kvt_cqe cqe = { .flags = KVT_CQE_DEFERRED };
	struct kvt_op_context op = context_of(core, entry.session, &entry.sqe, &cqe);

	op.waiter = id;
	core->effort = (struct kvt_core_effort){ 0 };
	if (run_deferred(core, &op, id) && core->hooks.complete)
		core->hooks.complete(core->hooks.context, entry.session, &cqe);
}

static uint32_t run_waiters(struct kvt_core *core)
{
	uint32_t ran = 0, id;

	do {
		kvt_waiters_pass(core);
		for (id = core->first_waiter; id != KVT_NONE;) {
			uint32_t next = core->pending[id].next;

			if (kvt_waiter_ready(core, id)) {
				run_waiter(core, id);
				ran++;
			}
			if (core->wake_due) /* perhaps for an earlier one */
				break;
			kvt_waiter_watch(core, id);
			id = next;
		}
	} while (core->wake_due);
	return ran;
}

static inline uint32_t wake(struct kvt_core *core)
{
	if (core->n_waiters == 0 || (!core->wake_due && core->now_ns < core->wake_at_ns))
		return 0;
	return run_waiters(core);
}

uint32_t kvt_core_wake(struct kvt_core *core, uint64_t now_ns)
{
	core->now_ns = now_ns;
	return wake(core);
}

void kvt_core_let_wait(struct kvt_core *core, bool allowed)
{
	core->no_place = !allowed;
}

/** Answer all waiters of a session that closes. */
static void cancel_waiters(struct kvt_core *core, uint32_t session)
{
	for (uint32_t id = core->first_waiter; id != KVT_NONE;) {
		struct kvt_pending_record entry = core->pending[id];
		struct kvt_cqe cqe = { .flags = KVT_CQE_DEFERRED };
		struct kvt_op_context op = context_of(core, session, &entry.sqe, &cqe);

		op.waiter = id;
		id = entry.next;
		if (entry.session != session)
			continue;
		give_up(core, &op, entry.token, -ECANCELED, KVT_REASON_CLOSING);
		if (core->hooks.complete)
			core->hooks.complete(core->hooks.context, session, &cqe);
	}
}

/* ---- entries */

/** Run an entry. Returns true if it is answered, false if it waits. */
static bool run_entry(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	int error;

	kvt_record_start(core);
	kvt_entry_keys(core, op);
	error = kvt_entry_check(core, op);
	if (error || (core->draining && kvt_entry_begins_lease(sqe))) {
		kvt_mutation_begin(core);
		if (error)
			core->count->violations++;
		else
			error = kvt_refuse(op, -ESHUTDOWN, KVT_REASON_DRAINING, 0);
		finish(core, op, error, 0);
		kvt_mutation_end(core);
		return true;
	}
	if (sqe->op == KVT_OP_CLOSE && core->sessions[op->session].n_waiters > 0) {
		cancel_waiters(core, op->session);
		kvt_record_start(core);
	}
	if (kvt_op_takes(sqe->op) & KVT_TAKES_FENCE && kvt_defer(core, op))
		return false;
	return take_effect(core, op, 0);
}

bool kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
		      uint64_t now_ns, struct kvt_cqe *ret_cqe)
{
	struct kvt_op_context op = context_of(core, session, sqe, ret_cqe);
	struct kvt_session_record *record = &core->sessions[session];
	bool answered = true;
	uint32_t deaths;

	KVT_ASSERT(session > 0 && session <= core->config.max_sessions);
	core->now_ns = now_ns;
	if (core->expiry.count > 0)
		kvt_expire_due(core, EXPIRE_AT_ONCE);
	wake(core);
	core->effort = (struct kvt_core_effort){ 0 };
	memset(ret_cqe, 0, sizeof(*ret_cqe));
	deaths = kvt_entry_deaths(record);
	if (deaths < KVT_FATAL_DEATHS) {
		kvt_running_begin(core, kvt_running_word(KVT_RUNNING_ENTRY, deaths, sqe->op,
							 session, record->sq_taken));
		answered = run_entry(core, &op);
		kvt_running_end(core, 0);
	} else {
		give_up(core, &op, 0, -EIO, KVT_REASON_FATAL);
	}
	record->deaths = 0; /* before the number of the entry comes round */
	return answered;
}

void kvt_core_let_audit(struct kvt_core *core, bool allowed)
{
	core->no_memory = !allowed;
}

static bool may_run(struct kvt_core *core, uint32_t id, uint32_t before)
{
	const struct kvt_pending_record *pending = &core->pending[id];

	if (pending->lease != KVT_NONE && core->lease_stamp[pending->lease] == core->stamp)
		return false;
	if (pending->sqe.op == KVT_OP_CLOSE && before != KVT_NONE)
		return false;
	return kvt_fence_reached(core, pending->session, &pending->sqe);
}

uint32_t kvt_core_poll(struct kvt_core *core, uint32_t session, uint64_t now_ns)
{
	uint32_t before = KVT_NONE, id = core->sessions[session].first_pending, ran = 0;

	if (!core->views[session].fences) /* adopted, not attached yet */
		return 0;
	core->now_ns = now_ns;
	core->stamp++;
	while (id != KVT_NONE) {
		struct kvt_pending_record entry = core->pending[id];
		struct kvt_cqe cqe = { .flags = KVT_CQE_DEFERRED };
		struct kvt_op_context op = context_of(core, session, &entry.sqe, &cqe);

		op.deferred = id;
		op.before = before;
		if (!may_run(core, id, before)) {
			if (entry.lease != KVT_NONE)
				core->lease_stamp[entry.lease] = core->stamp;
			before = id;
			id = entry.next;
			continue;
		}
		if (core->expiry.count > 0)
			kvt_expire_due(core, EXPIRE_AT_ONCE);
		wake(core);
		run_deferred(core, &op, id);
		cqe.flags |= KVT_CQE_DEFERRED;
		if (core->hooks.complete)
			core->hooks.complete(core->hooks.context, session, &cqe);
		ran++;
		id = entry.next;
	}
	return ran;
}

/* ---- the operator */

void kvt_core_drain(struct kvt_core *core, bool draining, uint64_t now_ns)
{
	if (core->draining == draining)
		return;
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->draining = draining;
	kvt_record_emit(core, KVT_REC_DRAIN, 0, draining);
	kvt_mutation_end(core);
}

uint32_t kvt_core_evict(struct kvt_core *core, uint32_t n, uint64_t now_ns)
{
	core->now_ns = now_ns;
	wake(core);
	evict(core, n, KVT_EVICT_OUTSIDE, KVT_NONE);
	return core->n_out;
}

void kvt_core_reset(struct kvt_core *core, uint64_t now_ns)
{
	core->now_ns = now_ns;
	wake(core);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_reset_all(core);
	core->record.sqe = (struct kvt_sqe){ .op = KVT_OP_RESET };
	kvt_record_emit(core, KVT_REC_ADMIN, 0, 0);
	kvt_mutation_end(core);
}

int kvt_core_remove(struct kvt_core *core, uint32_t namespace_id, uint64_t root_key,
		    const uint32_t *keys, uint32_t n_keys, uint64_t now_ns, bool *ret_removed)
{
	struct kvt_sqe sqe = { .op = KVT_OP_REMOVE, .namespace_id = namespace_id,
			       .n_keys = n_keys,
			       .flags = root_key ? KVT_F_ROOT_KEY : 0 };
	struct kvt_cqe cqe = { 0 };
	struct kvt_op_context op = { .sqe = &sqe, .cqe = &cqe, .keys = keys };
	int error;

	if (namespace_id == 0 || namespace_id >= core->config.max_namespaces ||
	    !core->namespaces[namespace_id].flags)
		return -ENOENT;
	if (root_key && !n_keys)
		return -EINVAL;
	core->now_ns = now_ns;
	wake(core);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	while ((error = kvt_remove_prefix(core, &op, namespace_id, root_key, keys, n_keys,
					  ret_removed)) == KVT_EXPIRED)
		expire_inside(core, core->expired);
	if (!error)
		cqe.remove.state = *ret_removed;
	cqe.result = error;
	core->record.sqe = sqe;
	core->record.cqe = cqe;
	core->record.keys = keys;
	core->record.root_key = root_key;
	core->record.n_keys = n_keys;
	kvt_record_emit(core, KVT_REC_ADMIN, 0, 0);
	kvt_mutation_end(core);
	return error;
}
