/* SPDX-License-Identifier: Apache-2.0 */

/* BEGINs that wait for what others compute.
 *
 * A waiter holds nothing. It names one lease whose path is its own up to `goal` pages. It is ready
 * when that lease does not compute them any more, or has sealed all but a small rest. If the goal
 * is a point that the lease declared, it is ready when the lease has reached it. run.c runs ready
 * waiters before anything else, oldest first. Each walks the tree again: of many whose owner
 * died, the first announces the rest and the others find it announced.
 *
 * A lease is stalled if it has sealed nothing for longer than its own progress suggests. If a wait
 * ends because the lease stalled, or ended unsealed, the wait was in vain. Then no BEGIN waits for
 * that session until it seals a page before it stalls, or for VAIN_PATIENCES. Callers: BEGIN,
 * COMMIT, run.c, the end of a session, recovery. */

#include <errno.h>
#include <string.h>

#include "daemon/core/effect.h"
#include "daemon/core/entry.h"
#include "daemon/core/pending.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "daemon/core/wait.h"
#include "daemon/core/walk.h"
#include "kvtrunk_wire_control.h"

/* ---- leases that compute */

#define GAPS_OF_PATIENCE 4
/* A session that seals too late because no request waits, as a store where computing is quicker
 * than loading, gets another try. One that hangs costs its waiters a thirtieth of their time. */
#define VAIN_PATIENCES 30

/** Time at which a lease will have sealed nothing for too long. A chunk may take several times as
 * long as the slowest so far, because an engine computes other requests, too. */
static uint64_t stalls_ns(const struct kvt_core *core, uint32_t id)
{
	const struct kvt_lease_record *lease = &core->leases[id];
	uint64_t patience = core->config.patience_ns, gaps = lease->gap_us * 1000ull;

	if (!patience)
		return KVT_NEVER;
	gaps *= GAPS_OF_PATIENCE;
	return lease->sealed_ns + (patience > gaps ? patience : gaps);
}

static bool stalled(const struct kvt_core *core, uint32_t id)
{
	return core->now_ns >= stalls_ns(core, id);
}

static uint32_t clock_ms(const struct kvt_core *core)
{
	return (uint32_t)(core->now_ns / 1000000);
}

/** True if others waited in vain for a session, and not long ago. */
static bool in_vain(const struct kvt_core *core, const struct kvt_session_record *session)
{
	return session->in_vain_ms && clock_ms(core) - session->in_vain_ms <
				      VAIN_PATIENCES * core->config.patience_ns / 1000000;
}

/** True if a lease will still seal what its path has announced. */
static bool computes(const struct kvt_core *core, uint32_t id)
{
	const struct kvt_lease_record *lease = &core->leases[id];

	return lease->kind == KVT_LEASE_BEGIN &&
	       !(lease->flags & (KVT_LEASE_ENDING | KVT_LEASE_LATE | KVT_LEASE_BARE)) &&
	       core->sessions[lease->session].state == KVT_SESSION_OPEN &&
	       !in_vain(core, &core->sessions[lease->session]) && !stalled(core, id) &&
	       lease->epoch == core->arena->epoch && !kvt_path_detached(core, lease->node);
}

static bool crosses(const struct kvt_core *core, uint32_t lease, uint32_t node)
{
	uint32_t id = core->leases[lease].node, start = core->nodes[node].start;

	while (id != KVT_NONE && core->nodes[id].start > start)
		id = core->nodes[id].parent;
	return id == node;
}

/** True if `session` waits for `target`, directly or through others (deadlock). A synchronous
 * engine blocks until its BEGIN is answered, so a cycle would last until a deadline. */
static bool waits_for_session(struct kvt_core *core, uint32_t session, uint32_t target)
{
	bool more = core->sessions[session].n_waiters > 0;

	if (!more)
		return false;
	core->wait_stamp++;
	core->session_stamp[session] = core->wait_stamp;
	while (more) {
		uint32_t next;

		more = false;
		for (uint32_t id = core->first_waiter; id != KVT_NONE; id = next) {
			const struct kvt_pending_record *waiter = &core->pending[id];
			uint32_t owner = core->leases[waiter->lease].session;

			next = waiter->next;
			if (core->session_stamp[waiter->session] != core->wait_stamp ||
			    core->leases[waiter->lease].generation != waiter->lease_generation ||
			    core->session_stamp[owner] == core->wait_stamp ||
			    (waiter->sqe.flags & KVT_F_NO_WAIT))
				continue;
			core->session_stamp[owner] = core->wait_stamp;
			more = true;
		}
	}
	return core->session_stamp[target] == core->wait_stamp;
}

/** True if a BEGIN takes notice of its own session's leases. */
static bool own_too(const struct kvt_op_context *op)
{
	return op->sqe->flags & KVT_F_NO_WAIT;
}

/** True if the caller may wait for this lease: it computes. Never its own session's, nor that of a
 * session that waits for the caller's, except for NO_WAIT. */
static bool may_await(struct kvt_core *core, uint32_t id, const struct kvt_op_context *op)
{
	uint32_t owner = core->leases[id].session;

	if (!computes(core, id))
		return false;
	if (owner == op->session)
		return own_too(op);
	return op->sqe->flags & KVT_F_NO_WAIT || !waits_for_session(core, owner, op->session);
}

/** True if waiting for this lease helps the caller, whose keys are those of the first `goal` pages.
 * Where pages have sides, the path must end inside the caller's keys: it gets side pages at its
 * end, and the caller continues there. */
static bool computes_for(struct kvt_core *core, uint32_t id, uint32_t goal,
			 const struct kvt_op_context *op)
{
	return (core->n_sides == 0 || core->leases[id].path_pages == goal) &&
	       may_await(core, id, op);
}

/** A lease that crosses a node with announced pages and computes them. The node's hint is right
 * nearly always; where it is not, all leases are asked. */
static uint32_t node_owner(struct kvt_core *core, uint32_t node, uint32_t goal,
			   const struct kvt_op_context *op)
{
	uint32_t hint = core->nodes[node].announcer;

	if (hint != KVT_NONE && crosses(core, hint, node)) {
		if (computes_for(core, hint, goal, op))
			return hint;
		if (core->nodes[node].lock_ref == 1)
			return KVT_NONE; /* the only one there is */
	}
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		if (i == op->session && !own_too(op))
			continue;
		for (uint32_t id = core->sessions[i].first_lease; id != KVT_NONE;
		     id = core->leases[id].next_lease) {
			const struct kvt_lease_record *lease = &core->leases[id];

			if (lease->done < lease->path_pages &&
			    lease->path_pages > core->nodes[node].start &&
			    crosses(core, id, node) && computes_for(core, id, goal, op)) {
				core->nodes[node].announcer = id;
				return id;
			}
		}
	}
	return KVT_NONE;
}

/** Find the lease that computes the most of what a walk found announced, and up to which page. */
static uint32_t find_owner(struct kvt_core *core, const struct kvt_op_context *op,
			   const struct kvt_walk *walk, uint32_t *ret_goal)
{
	uint32_t goal = walk->walked;

	for (uint32_t node = walk->node; goal > walk->matched; node = core->nodes[node].parent) {
		KVT_ASSERT(node != KVT_NONE);
		uint32_t owner = node_owner(core, node, goal, op);

		if (owner != KVT_NONE) {
			*ret_goal = goal;
			return owner;
		}
		goal = core->nodes[node].start;
	}
	return KVT_NONE;
}

void kvt_path_announce(struct kvt_core *core, uint32_t lease)
{
	for (uint32_t id = core->leases[lease].node; id != KVT_NONE; id = core->nodes[id].parent) {
		struct kvt_node *node = kvt_node_at(core, id);

		if (node->sealed == node->n_slots)
			return;
		if (node->announcer == KVT_NONE || !computes(core, node->announcer) ||
		    !crosses(core, node->announcer, id))
			node->announcer = lease;
	}
}

/** Leading pages of a path that are sealed. */
static uint32_t sealed_pages(const struct kvt_core *core, uint32_t id)
{
	uint32_t pages = 0;

	if (id != KVT_NONE)
		pages = core->nodes[id].start + core->nodes[id].n_slots;
	for (; id != KVT_NONE; id = core->nodes[id].parent)
		if (core->nodes[id].sealed < core->nodes[id].n_slots)
			pages = core->nodes[id].start + core->nodes[id].sealed;
	return pages;
}

static bool worth_waiting(const struct kvt_core *core, uint32_t goal, uint32_t matched)
{
	return goal > matched &&
	       (uint64_t)(goal - matched) * core->ps > core->config.coalesce_threshold;
}

/** The aim of a BEGIN that waits: `goal` pages; it has `have` of them. */
struct aim {
	uint32_t owner; /* the lease that computes them, KVT_NONE: nothing is worth waiting for */
	uint32_t goal, have;
	bool point; /* the goal is a declared point, and `have` what is usable */
};

/** Leading pages of what a walk found that a BEGIN would use if they were there. */
static uint32_t most_used(const struct kvt_core *core, const struct kvt_op_context *op,
			  const struct kvt_walk *walk)
{
	uint32_t keys = op->sqe->positions + op->sqe->n_keys;

	if (op->sqe->flags & KVT_F_FULL || keys == 0)
		return walk->walked;
	return kvt_min(walk->walked, (keys - 1) / core->ps);
}

/** Leading pages that a BEGIN could reuse now. */
static uint32_t usable_now(struct kvt_core *core, const struct kvt_op_context *op,
			   const struct kvt_walk *walk)
{
	return kvt_walk_usable(core, walk->match_node,
			       kvt_min(walk->matched, most_used(core, op, walk)));
}

/** Find the furthest declared point at which a BEGIN would continue. */
static struct aim find_point(struct kvt_core *core, const struct kvt_op_context *op,
			     const struct kvt_walk *walk)
{
	uint32_t have = usable_now(core, op, walk), most = most_used(core, op, walk);
	struct aim aim = { .goal = have, .have = have, .point = true };

	for (uint32_t i = 0; i < core->n_points; i++) {
		uint32_t id = core->pointed[i], point = core->leases[id].point;

		if (point <= aim.goal || point > most || !worth_waiting(core, point, have) ||
		    kvt_walk_too_short(core, op->sqe, point) ||
		    !crosses(core, id, kvt_path_node(core, walk->node, point - 1)) ||
		    !may_await(core, id, op))
			continue;
		aim.owner = id;
		aim.goal = point;
	}
	return aim;
}

/** Find what a BEGIN should wait for: the announced path, or the point, that gets it furthest. */
static struct aim find_aim(struct kvt_core *core, const struct kvt_op_context *op,
			   const struct kvt_walk *walk)
{
	struct aim aim = { .have = walk->matched }, point;

	if (op->sqe->flags & KVT_F_FORCE_MISS)
		return aim;
	aim.owner = find_owner(core, op, walk, &aim.goal);
	if (!worth_waiting(core, aim.goal, aim.have) ||
	    kvt_walk_too_short(core, op->sqe, aim.goal))
		aim = (struct aim){ .have = walk->matched };
	if (core->n_points == 0)
		return aim;
	point = find_point(core, op, walk);
	return point.owner != KVT_NONE && point.goal > aim.goal ? point : aim;
}

/* ---- the queue */

/* Skip waiters that are answered, or whose session is not attached yet. */
void kvt_waiter_watch(struct kvt_core *core, uint32_t id)
{
	const struct kvt_pending_record *waiter = &core->pending[id];
	uint64_t at;

	if (!waiter->session || !core->views[waiter->session].fences)
		return;
	at = stalls_ns(core, waiter->lease);
	if (waiter->deadline_ns < at)
		at = waiter->deadline_ns;
	if (at < core->wake_at_ns)
		core->wake_at_ns = at;
}

void kvt_waiter_add(struct kvt_core *core, uint32_t id)
{
	struct kvt_pending_record *waiter = &core->pending[id];

	waiter->next = KVT_NONE;
	KVT_ASSERT(waiter->session > 0 && core->n_waiters < core->config.n_pending);
	KVT_ASSERT(core->last_waiter == KVT_NONE ||
		   core->pending[core->last_waiter].token < waiter->token);
	waiter->prev = core->last_waiter;
	if (core->last_waiter != KVT_NONE)
		core->pending[core->last_waiter].next = id;
	else
		core->first_waiter = id;
	core->last_waiter = id;
	core->n_waiters++;
	core->sessions[waiter->session].n_waiters++;
	kvt_waiter_watch(core, id);
}

static void queue_remove(struct kvt_core *core, uint32_t id)
{
	struct kvt_pending_record *waiter = &core->pending[id];

	KVT_ASSERT(core->n_waiters > 0 && core->sessions[waiter->session].n_waiters > 0);
	KVT_ASSERT(waiter->prev != KVT_NONE || core->first_waiter == id);
	KVT_ASSERT(waiter->next != KVT_NONE || core->last_waiter == id);
	if (waiter->prev != KVT_NONE)
		core->pending[waiter->prev].next = waiter->next;
	else
		core->first_waiter = waiter->next;
	if (waiter->next != KVT_NONE)
		core->pending[waiter->next].prev = waiter->prev;
	else
		core->last_waiter = waiter->prev;
	core->n_waiters--;
	core->sessions[waiter->session].n_waiters--;
	kvt_pending_free(core, id);
}

/* ---- one BEGIN */

int kvt_wait_check(struct kvt_core *core, struct kvt_op_context *op, const struct kvt_walk *walk)
{
	const struct kvt_pending_record *waiter = &core->pending[op->waiter];
	struct aim aim = find_aim(core, op, walk);

	op->matched = op->waiter && waiter->for_point ? usable_now(core, op, walk) :
							walk->matched;
	if (aim.owner == KVT_NONE) {
		if (op->waiter && worth_waiting(core, waiter->goal, op->matched))
			op->cqe->flags |= KVT_CQE_TAKEOVER;
		return 0;
	}
	if (op->waiter && core->now_ns >= waiter->deadline_ns) {
		op->cqe->flags |= KVT_CQE_DEADLINE;
		return 0;
	}
	if (!op->waiter && op->sqe->ttl_ms &&
	    (core->no_place || core->free_pending.count == 0)) {
		op->cqe->flags |= KVT_CQE_NO_PLACE;
		return 0;
	}
	KVT_ASSERT(aim.goal <= walk->walked && core->leases[aim.owner].kind == KVT_LEASE_BEGIN);
	op->awaited = aim.owner;
	op->goal = aim.goal;
	op->matched = aim.have;
	op->for_point = aim.point;
	return KVT_WAITS;
}

int kvt_wait_notice(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_walk walk;
	int error = kvt_walk_entry(core, op, op->sqe->n_keys / core->ps, &walk);

	if (error < 0) /* its handle went stale */
		op->cqe->flags |= KVT_CQE_ASYNC;
	if (error)
		return error;
	error = kvt_wait_check(core, op, &walk);
	if (error)
		return error;
	op->cqe->notice.matched = walk.matched * core->ps;
	op->cqe->notice.state = op->cqe->flags & KVT_CQE_DEADLINE ? KVT_NOTICE_DEADLINE :
				op->cqe->flags & KVT_CQE_TAKEOVER ? KVT_NOTICE_ABANDONED :
								    KVT_NOTICE_SEALED;
	op->cqe->flags &= (uint16_t)~(KVT_CQE_DEADLINE | KVT_CQE_TAKEOVER);
	op->cqe->flags |= KVT_CQE_ASYNC;
	return 0;
}

void kvt_wait_emit(struct kvt_core *core, const struct kvt_op_context *op, uint64_t token)
{
	struct kvt_record *record = &core->record;

	if (core->hooks.record) {
		record->sqe = *op->sqe;
		record->cqe = (struct kvt_cqe){
			.lease = op->awaited,
			.lease_generation = core->leases[op->awaited].generation,
			.begin.matched = op->goal * core->ps,
		};
		record->keys = op->keys;
		record->root_key = op->root_key;
		record->n_keys = op->sqe->n_keys;
	}
	kvt_record_emit(core, KVT_REC_DEFER, op->session, token);
}

static void await(struct kvt_core *core, struct kvt_pending_record *waiter,
		  const struct kvt_op_context *op)
{
	waiter->lease = op->awaited;
	KVT_ASSERT(op->awaited != KVT_NONE && core->leases[op->awaited].session > 0);
	waiter->lease_generation = core->leases[op->awaited].generation;
	waiter->owner = core->leases[op->awaited].session;
	waiter->owner_generation = core->sessions[waiter->owner].generation;
	waiter->goal = op->goal;
	waiter->for_point = op->for_point;
}

void kvt_wait_begin(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t id = op->waiter ? op->waiter : kvt_pending_take(core);
	struct kvt_pending_record *waiter = &core->pending[id];

	KVT_ASSERT(op->goal > op->matched);
	kvt_save(core, waiter, sizeof(*waiter));
	if (op->waiter) {
		await(core, waiter, op);
		return;
	}
	*waiter = (struct kvt_pending_record){
		.sqe = *op->sqe,
		.session = op->session,
		.deadline_ns = core->now_ns + op->sqe->ttl_ms * 1000000ull,
		.begun_ns = core->now_ns,
		.matched = op->matched,
		.token = core->ledger->seq + 1,
	};
	await(core, waiter, op);
	kvt_waiter_add(core, id);
	core->count->waits++;
	op->waiter = id;
}

/** Count how the wait ended. */
static void account(struct kvt_core *core, const struct kvt_op_context *op, int error)
{
	const struct kvt_pending_record *waiter = &core->pending[op->waiter];
	const struct kvt_cqe *cqe = op->cqe;
	uint32_t there = cqe->flags & KVT_CQE_ASYNC ? op->matched * core->ps :
						      cqe->begin.reusable;
	uint32_t before = waiter->matched * core->ps;

	core->count->wait_ns += core->now_ns - waiter->begun_ns;
	core->count->takeovers += (cqe->flags & KVT_CQE_TAKEOVER) != 0;
	if (!error && there > before)
		core->count->coalesced_positions += there - before;
}

static void mark_late(struct kvt_core *core, uint32_t lease)
{
	kvt_save_lease(core, lease);
	core->leases[lease].flags |= KVT_LEASE_LATE;
	core->wake_due = true;
}

/** Blame the session whose lease was abandoned, unless RESET or another's deadline was the cause,
 * or some of it was sealed. `matched`: pages that the waiter matches, or could use, now. */
static void waited_in_vain(struct kvt_core *core, const struct kvt_pending_record *waiter,
			   uint32_t matched)
{
	const struct kvt_lease_record *lease = &core->leases[waiter->lease];
	struct kvt_session_record *owner = &core->sessions[waiter->owner];

	if (owner->generation != waiter->owner_generation)
		return;
	if (lease->generation == waiter->lease_generation) {
		if (!stalled(core, waiter->lease))
			return;
		core->count->deadline_misses++;
		mark_late(core, waiter->lease);
	}
	if (in_vain(core, owner) || matched > waiter->matched)
		return;
	kvt_save(core, owner, KVT_SESSION_FACTS);
	owner->in_vain_ms = clock_ms(core) ? clock_ms(core) : 1;
	core->wake_due = true;
}

void kvt_wait_end(struct kvt_core *core, struct kvt_op_context *op, int error)
{
	const struct kvt_pending_record *waiter = &core->pending[op->waiter];
	const struct kvt_cqe *cqe = op->cqe;
	bool notice = cqe->flags & KVT_CQE_ASYNC;

	KVT_ASSERT(waiter->session == op->session && waiter->token > 0);
	account(core, op, error);
	if (notice ? cqe->notice.state == KVT_NOTICE_DEADLINE : cqe->flags & KVT_CQE_DEADLINE) {
		core->count->deadline_misses++;
		if (core->leases[waiter->lease].generation == waiter->lease_generation &&
		    computes(core, waiter->lease))
			mark_late(core, waiter->lease);
	} else if (core->config.patience_ns &&
		   (notice ? cqe->notice.state == KVT_NOTICE_ABANDONED :
			     cqe->flags & KVT_CQE_TAKEOVER)) {
		waited_in_vain(core, waiter, op->matched);
	}
	queue_remove(core, op->waiter);
}

/* ---- progress, and trust */

void kvt_wait_progress(struct kvt_core *core, uint32_t id)
{
	struct kvt_lease_record *lease = &core->leases[id];
	struct kvt_session_record *session = &core->sessions[lease->session];
	uint64_t gap_us = (core->now_ns - lease->sealed_ns) / 1000;

	KVT_ASSERT(lease->kind == KVT_LEASE_BEGIN && lease->done > 0);
	if (session->in_vain_ms && !stalled(core, id)) {
		kvt_save(core, session, KVT_SESSION_FACTS);
		session->in_vain_ms = 0;
	}
	if (gap_us > lease->gap_us)
		lease->gap_us = gap_us < UINT32_MAX ? (uint32_t)gap_us : UINT32_MAX;
	lease->sealed_ns = core->now_ns;
}

/* ---- ready waiters */

/** Progress of a lease, looked up once in each pass over the queue. 0: no use to wait for it. */
static uint32_t progress(struct kvt_core *core, uint32_t lease)
{
	struct kvt_progress *seen = &core->progress[lease];

	if (seen->stamp != core->progress_stamp) {
		seen->stamp = core->progress_stamp;
		seen->computes = computes(core, lease);
		seen->sealed = seen->computes ? sealed_pages(core, core->leases[lease].node) : 0;
	}
	return seen->sealed;
}

void kvt_waiters_pass(struct kvt_core *core)
{
	core->wake_due = false;
	core->wake_at_ns = KVT_NEVER;
	core->progress_stamp++;
}

bool kvt_waiter_ready(struct kvt_core *core, uint32_t id)
{
	const struct kvt_pending_record *waiter = &core->pending[id];
	uint32_t sealed;

	KVT_ASSERT(waiter->session > 0 && waiter->lease != KVT_NONE);
	if (!core->views[waiter->session].fences) /* recovered, not attached yet */
		return false;
	sealed = progress(core, waiter->lease);
	if (waiter->for_point && core->leases[waiter->lease].point == waiter->goal)
		sealed = 0; /* cached pages without the side pages */
	return !core->progress[waiter->lease].computes ||
	       core->leases[waiter->lease].generation != waiter->lease_generation ||
	       !worth_waiting(core, waiter->goal, sealed) || core->now_ns >= waiter->deadline_ns;
}

/* ---- the end of a session */

void kvt_waiters_forget(struct kvt_core *core, uint32_t session)
{
	for (uint32_t id = core->first_waiter; id != KVT_NONE;) {
		uint32_t next = core->pending[id].next;

		if (core->pending[id].session == session)
			queue_remove(core, id);
		id = next;
	}
	KVT_ASSERT(core->sessions[session].n_waiters == 0);
}
