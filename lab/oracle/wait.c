/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting BEGINs: when they must wait, when they may run, and their order.
 *
 * Inputs: o->pending and the record. Invariant: no record passes over a waiter that is ready.
 * Callers: oracle.c before each record, ops.c for BEGIN and DEFER. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_control.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/run.h"
#include "lab/oracle/wait.h"

/* ---- what leases compute ---- */

static bool stalled(const struct kvt_oracle *o, uint32_t index)
{
	const struct model_lease *lease = &o->leases[index];
	uint64_t patience = o->config.patience_ns, gaps = 4000 * lease->gap_us;

	return patience && o->run.record->now_ns - lease->sealed_ns >=
				   (gaps > patience ? gaps : patience);
}

/* Of the last 30 patiences. */
static bool in_vain(const struct kvt_oracle *o, uint32_t session)
{
	uint32_t since = o->sessions[session].in_vain_ms, now = o->run.record->now_ns / 1000000;

	return since && now - since < 30 * o->config.patience_ns / 1000000;
}

static bool computes(const struct kvt_oracle *o, uint32_t index)
{
	const struct model_lease *lease = &o->leases[index];

	return lease->kind == MODEL_LEASE_BEGIN && !lease->ending && !lease->late && !lease->bare &&
	       o->sessions[lease->session].state == KVT_SESSION_OPEN &&
	       !in_vain(o, lease->session) && !stalled(o, index) &&
	       lease->epoch == o->epoch && (!lease->node || !o->nodes[lease->node]->detached);
}

static bool crosses(const struct kvt_oracle *o, uint32_t lease, uint32_t node)
{
	for (uint32_t id = o->leases[lease].node; id; id = o->nodes[id]->parent)
		if (id == node)
			return true;
	return false;
}

/* Count the leading sealed pages of a lease's path. */
static uint32_t sealed_pages(const struct kvt_oracle *o, uint32_t lease)
{
	uint32_t page = 0;

	while (o->leases[lease].node && page < model_end(o->nodes[o->leases[lease].node]) &&
	       model_page_at(o, o->leases[lease].node, page))
		page++;
	return page;
}

static bool blocks(const struct kvt_oracle *o, const struct model_pending *p, uint32_t session)
{
	return p->waits && p->session == session && !(p->sqe.flags & KVT_F_NO_WAIT) &&
	       p->awaited && o->leases[p->awaited].generation == p->generation;
}

/* True if `session` waits for `target`, directly or through others. `depth` bounds cycles, which
 * notices may form. */
static bool waits_for(const struct kvt_oracle *o, uint32_t session, uint32_t target, uint32_t depth)
{
	if (session == target)
		return true;
	for (uint32_t i = 0; i < o->n_pending && depth > 0; i++)
		if (blocks(o, &o->pending[i], session) &&
		    waits_for(o, o->leases[o->pending[i].awaited].session, target, depth - 1))
			return true;
	return false;
}

/* True if the record's BEGIN may wait for this lease, on a path to `node`. Never for its own
 * session's leases, nor for a session that waits for it, except for NO_WAIT. */
static bool computes_for(const struct kvt_oracle *o, uint32_t lease, uint32_t node)
{
	const struct kvt_record *record = o->run.record;

	return computes(o, lease) && crosses(o, lease, node) &&
	       ((record->sqe.flags & KVT_F_NO_WAIT) ||
		!waits_for(o, o->leases[lease].session, record->session, o->n_pending));
}

/* True if no sides are needed, or the lease will have them behind `goal` pages, where its path
 * ends. */
static bool ends_at(const struct kvt_oracle *o, uint32_t lease, uint32_t goal)
{
	const struct model_node *last = model_node(o, o->leases[lease].node);

	return o->config.n_sides == 0 || (last && model_end(last) == goal);
}

static bool node_computed(const struct kvt_oracle *o, uint32_t node, uint32_t goal)
{
	for (uint32_t i = 1; i <= o->config.n_leases; i++)
		if (computes_for(o, i, node) && ends_at(o, i, goal))
			return true;
	return false;
}

static bool worth_waiting(const struct kvt_oracle *o, uint32_t goal, uint32_t matched)
{
	return goal > matched && (uint64_t)(goal - matched) * o->config.page_size >
					 o->config.coalesce_threshold;
}

bool wait_too_short(const struct kvt_oracle *o, uint32_t pages)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint64_t keys = (uint64_t)sqe->positions + sqe->n_keys;
	uint64_t has = (uint64_t)pages * o->config.page_size;
	uint64_t next = has + o->config.page_size + !(sqe->flags & KVT_F_FULL);

	return has < (uint64_t)sqe->priority && next <= keys;
}

/* Return the page up to which the announced part of the walk is being computed; 0: not worth a
 * wait. */
static uint32_t wait_goal(const struct kvt_oracle *o, const struct model_walk *walk)
{
	uint32_t goal = walk->pages, node = walk->node;

	if (o->run.record->sqe.flags & KVT_F_FORCE_MISS)
		return 0;
	while (goal > walk->matched && !node_computed(o, node, goal)) {
		goal = o->nodes[node]->start;
		node = o->nodes[node]->parent;
	}
	return worth_waiting(o, goal, walk->matched) && !wait_too_short(o, goal) ? goal : 0;
}

/* Count the leading pages of the walk that the BEGIN would use if they were there. */
static uint32_t most_used(const struct kvt_oracle *o, const struct model_walk *walk)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint32_t keys = sqe->positions + sqe->n_keys, most;

	if (sqe->flags & KVT_F_FULL || keys == 0)
		return walk->pages;
	most = (keys - 1) / o->config.page_size;
	return most < walk->pages ? most : walk->pages;
}

/* Count the leading pages that the BEGIN could reuse now. */
static uint32_t usable_now(const struct kvt_oracle *o, const struct model_walk *walk)
{
	uint32_t most = most_used(o, walk);

	return model_usable(o, walk->matched_node, most < walk->matched ? most : walk->matched);
}

/* What a BEGIN waits for: `goal` pages, of which it has `have`; goal 0: nothing. */
struct aim {
	uint32_t goal, have;
	bool point;
};

/* True if a lease will make a point behind `goal` pages of the walk. */
static bool makes_point(const struct kvt_oracle *o, const struct model_walk *walk, uint32_t lease,
			uint32_t goal)
{
	return o->leases[lease].kind == MODEL_LEASE_BEGIN && goal > 0 &&
	       o->leases[lease].point == goal && goal <= most_used(o, walk) &&
	       computes_for(o, lease, model_covering(o, walk->node, goal - 1)->id);
}

/* Find the furthest that the BEGIN should wait for: a path that is announced, or a point. */
static struct aim wait_aim(const struct kvt_oracle *o, const struct model_walk *walk)
{
	struct aim aim = { .goal = wait_goal(o, walk), .have = walk->matched };
	uint32_t have = usable_now(o, walk);

	if (o->run.record->sqe.flags & KVT_F_FORCE_MISS)
		return aim;
	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		uint32_t point = o->leases[i].point;

		if (point > aim.goal && worth_waiting(o, point, have) &&
		    !wait_too_short(o, point) &&
		    makes_point(o, walk, i, point))
			aim = (struct aim){ point, have, true };
	}
	return aim;
}

/* True if one of the leases that the BEGIN may wait for, for `aim`, is this one. */
static bool reaches(const struct kvt_oracle *o, const struct model_walk *walk, uint32_t lease,
		    struct aim aim)
{
	if (lease == 0 || lease > o->config.n_leases)
		return false;
	if (aim.point)
		return makes_point(o, walk, lease, aim.goal);
	return computes_for(o, lease, model_covering(o, walk->node, aim.goal - 1)->id) &&
	       ends_at(o, lease, aim.goal);
}

static bool still_waits(const struct kvt_oracle *o, const struct model_pending *p)
{
	return p->awaited && computes(o, p->awaited) &&
	       o->leases[p->awaited].generation == p->generation &&
	       ((p->for_point && o->leases[p->awaited].point == p->goal) ||
		worth_waiting(o, p->goal, sealed_pages(o, p->awaited))) &&
	       o->run.record->now_ns < p->deadline_ns;
}

/* ---- ready waiters go first ---- */

/* Check that no waiter before `token` (0: none at all) is ready when this record is written. */
static int none_ready(struct kvt_oracle *o, uint64_t token)
{
	for (uint32_t i = 0; i < o->n_pending; i++) {
		const struct model_pending *p = &o->pending[i];

		if (p->waits && (!token || p->seq < token) && !still_waits(o, p))
			return oracle_fail(o, "the BEGIN of session %u that waits since seq %llu "
					   "for lease %u is ready and was passed over", p->session,
					   (unsigned long long)p->seq, p->awaited);
	}
	return 0;
}

static struct model_pending *find_waiter(struct kvt_oracle *o, uint64_t token)
{
	for (uint32_t i = 0; token && i < o->n_pending; i++)
		if (o->pending[i].waits && o->pending[i].seq == token)
			return &o->pending[i];
	return NULL;
}

int wait_check_order(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	const struct model_pending *p = find_waiter(o, record->value);
	bool lenient = o->expired;

	/* These may fall inside an operation that has begun its walk. */
	if (record->kind == KVT_REC_EXPIRE || (record->kind == KVT_REC_ADMIN && record->value)) {
		o->expired = true;
		return 0;
	}
	switch (record->kind) {
	case KVT_REC_SIGN:
	case KVT_REC_SESSION:
	case KVT_REC_NAMESPACE:
	case KVT_REC_DRAIN:
		return 0;
	case KVT_REC_ADOPT: /* a CLOSE that killed two daemons is refused, by no record */
		o->canceled = 0;
		return 0;
	default:
		break;
	}
	o->expired = false;
	if (o->canceled && !(record->session == o->canceled && record->kind <= KVT_REC_DEFER &&
			     (record->sqe.op == KVT_OP_CLOSE ||
			      (p && record->cqe.result == -ECANCELED))))
		return oracle_fail(o, "a BEGIN of session %u was canceled, but no CLOSE followed",
				   o->canceled);
	o->canceled = 0;
	if (lenient)
		return 0;
	if (record->kind > KVT_REC_DEFER || !p)
		return none_ready(o, 0);
	if (record->cqe.result == -ECANCELED)
		return 0;
	TRY(none_ready(o, p->seq));
	if (still_waits(o, p))
		return oracle_fail(o, "the BEGIN that waits since seq %llu continued, but lease "
				   "%u still computes for it", (unsigned long long)p->seq,
				   p->awaited);
	return 0;
}

/* ---- a BEGIN under way ---- */

static int wait_add(struct kvt_oracle *o, struct aim aim)
{
	const struct kvt_record *record = o->run.record;

	o->pending = oracle_room(o->pending, &o->pending_room, o->n_pending + 1ull,
				 sizeof(*o->pending));
	if (!o->pending)
		return oracle_fail(o, "the oracle is out of memory");
	o->pending[o->n_pending++] = (struct model_pending){
		.seq = record->seq,
		.session = record->session,
		.sqe = record->sqe,
		.since = o->n_adopted,
		.waits = true,
		.deadline_ns = record->now_ns + record->sqe.ttl_ms * 1000000ull,
		.begun_ns = record->now_ns,
		.matched = aim.have,
	};
	o->counters.waits++;
	return 0;
}

/* Follow the awaited lease. The core may choose any of those that compute furthest. */
static int wait_follow(struct kvt_oracle *o, const struct model_walk *walk,
		       struct model_pending *p)
{
	const struct kvt_cqe *cqe = &o->run.record->cqe;
	struct aim aim = wait_aim(o, walk);

	if (!aim.goal)
		return oracle_fail(o, "it waits, though no lease computes any of it (%u "
				   "pages matched, %u walked)", walk->matched, walk->pages);
	TRY(oracle_expect(o, "positions that it waits for",
			  (uint64_t)aim.goal * o->config.page_size, cqe->begin.matched));
	if (!reaches(o, walk, cqe->lease, aim))
		return oracle_fail(o, "it waits for lease %u, which does not compute page %u",
				   cqe->lease, aim.goal - 1);
	TRY(oracle_expect(o, "generation of the awaited lease",
			  o->leases[cqe->lease].generation, cqe->lease_generation));
	p->awaited = cqe->lease;
	p->generation = cqe->lease_generation;
	p->goal = aim.goal;
	p->for_point = aim.point;
	p->owner = o->leases[cqe->lease].session;
	p->owner_number = o->sessions[p->owner].number;
	return 0;
}

int wait_defer(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	struct model_pending *p = find_waiter(o, record->value);
	struct model_walk walk;

	if (record->value && (!p || p->session != record->session ||
			      memcmp(&p->sqe, &record->sqe, sizeof(p->sqe)) != 0))
		return oracle_fail(o, "no such BEGIN waits since seq %llu",
				   (unsigned long long)record->value);
	if (run_walk(o, &walk) != 0)
		return oracle_fail(o, "it waits, but its handle is refused (reason %u)",
				   o->run.want.reason);
	if (!p) {
		if (!(record->sqe.flags & KVT_F_WAIT))
			return oracle_fail(o, "a BEGIN waits that did not ask for it");
		TRY(wait_add(o, wait_aim(o, &walk)));
		p = &o->pending[o->n_pending - 1];
	}
	return wait_follow(o, &walk, p);
}

/* The wait is over, or not needed. */
static void wait_over(struct kvt_oracle *o, uint32_t goal, const struct model_walk *walk)
{
	uint32_t now = o->run.waiter.for_point ? usable_now(o, walk) : walk->matched;

	o->run.has_now = now;
	o->run.gained = now > o->run.waiter.matched;
	if (goal)
		o->run.want.flags |= KVT_CQE_DEADLINE;
	else if (worth_waiting(o, o->run.waiter.goal, now))
		o->run.want.flags |= KVT_CQE_TAKEOVER;
}

int wait_begin(struct kvt_oracle *o, const struct model_walk *walk)
{
	const struct kvt_record *record = o->run.record;
	struct aim aim = wait_aim(o, walk);

	if (o->run.waiter.waits) {
		if (aim.goal && record->now_ns < o->run.waiter.deadline_ns)
			return oracle_fail(o, "it began, though %u pages of it are computed by "
					   "another lease", aim.goal - aim.have);
		wait_over(o, aim.goal, walk);
		return 0;
	}
	if (!aim.goal)
		return 0;
	if (!record->sqe.ttl_ms)
		return run_refuse(o, -EAGAIN, KVT_REASON_ANNOUNCED,
				  (uint64_t)(aim.goal - aim.have) * o->config.page_size);
	if (record->cqe.flags & KVT_CQE_NO_PLACE) { /* the log lacks the number of places */
		o->run.want.flags |= KVT_CQE_NO_PLACE;
		return 0;
	}
	if (record->sqe.flags & KVT_F_WAIT)
		return oracle_fail(o, "it did not wait, though %u pages of it are computed by "
				   "another lease", aim.goal - aim.have);
	TRY(wait_add(o, aim));
	return run_refuse(o, -EAGAIN, KVT_REASON_ANNOUNCED,
			  (uint64_t)(aim.goal - aim.have) * o->config.page_size);
}

int wait_notice(struct kvt_oracle *o)
{
	struct kvt_cqe *want = &o->run.want;
	struct model_walk walk;
	struct aim aim;

	TRY(run_walk(o, &walk));
	aim = wait_aim(o, &walk);
	if (aim.goal && o->run.record->now_ns < o->run.waiter.deadline_ns)
		return oracle_fail(o, "a notice came, though %u pages are computed by a lease",
				   aim.goal - aim.have);
	wait_over(o, aim.goal, &walk);
	want->notice.matched = walk.matched * o->config.page_size;
	want->notice.state = want->flags & KVT_CQE_DEADLINE ? KVT_NOTICE_DEADLINE :
			     want->flags & KVT_CQE_TAKEOVER ? KVT_NOTICE_ABANDONED :
							      KVT_NOTICE_SEALED;
	want->flags = KVT_CQE_DEFERRED | KVT_CQE_ASYNC;
	return 0;
}

int wait_cancel(struct kvt_oracle *o)
{
	o->canceled = o->run.record->session;
	return run_refuse(o, -ECANCELED, KVT_REASON_CLOSING, 0);
}

static void waited_in_vain(struct kvt_oracle *o, const struct model_pending *p)
{
	bool there = o->leases[p->awaited].generation == p->generation;

	if (!o->config.patience_ns || o->sessions[p->owner].number != p->owner_number ||
	    (there && !stalled(o, p->awaited)))
		return;
	if (there) {
		o->counters.deadline_misses++;
		o->leases[p->awaited].late = true;
	}
	if (!o->run.gained && !in_vain(o, p->owner)) {
		uint32_t now = o->run.record->now_ns / 1000000;

		o->sessions[p->owner].in_vain_ms = now ? now : 1;
	}
}

void wait_sealed(struct kvt_oracle *o, struct model_lease *lease)
{
	uint64_t now = o->run.record->now_ns, gap = (now - lease->sealed_ns) / 1000;

	if (!stalled(o, (uint32_t)(lease - o->leases)))
		o->sessions[lease->session].in_vain_ms = 0;
	lease->gap_us = gap > lease->gap_us ? gap : lease->gap_us;
	lease->sealed_ns = now;
}

void wait_end(struct kvt_oracle *o)
{
	const struct model_pending *p = &o->run.waiter;
	const struct kvt_cqe *want = &o->run.want;
	bool notice = want->flags & KVT_CQE_ASYNC;
	uint32_t there = notice ? o->run.has_now * o->config.page_size : want->begin.reusable;
	uint32_t before = p->matched * o->config.page_size;

	o->counters.wait_ns += o->run.record->now_ns - p->begun_ns;
	if (want->result == 0 && there > before)
		o->counters.coalesced_positions += there - before;
	o->counters.takeovers += (want->flags & KVT_CQE_TAKEOVER) != 0;
	if (notice ? want->notice.state == KVT_NOTICE_ABANDONED : want->flags & KVT_CQE_TAKEOVER)
		waited_in_vain(o, p);
	if (!(want->flags & KVT_CQE_DEADLINE) &&
	    !(notice && want->notice.state == KVT_NOTICE_DEADLINE))
		return;
	o->counters.deadline_misses++;
	if (o->leases[p->awaited].generation == p->generation && computes(o, p->awaited))
		o->leases[p->awaited].late = true;
}
