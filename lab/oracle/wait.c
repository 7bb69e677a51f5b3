/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting BEGINs: when they must wait, when they may run, and their order.
 *
 * Inputs: o->pending and the record. Invariant: no record passes over a waiter that is ready.
 * Callers: oracle.c before each record, ops.c for BEGIN and DEFER. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/oracle/model.h"

/* ---- what leases compute ---- */

static bool stalled(const struct kvt_oracle *o, uint32_t index)
{
	const struct model_lease *lease = &o->leases[index];
	uint64_t patience = o->config.patience_ns, gaps = 4000 * lease->gap_us;

	return patience && o->run.record->now_ns - lease->sealed_ns >=
				   (gaps > patience ? gaps : patience);
}

static bool computes(const struct kvt_oracle *o, uint32_t index)
{
	const struct model_lease *lease = &o->leases[index];

	return lease->kind == MODEL_LEASE_BEGIN && !lease->ending && !lease->late &&
	       o->sessions[lease->session].state == KVT_SESSION_OPEN &&
	       !o->sessions[lease->session].in_vain && !stalled(o, index) &&
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

/* True if waiting on this lease helps `session`. Never its own session's leases, nor a session that
 * waits for it, except for NO_WAIT. */
static bool computes_for(const struct kvt_oracle *o, uint32_t lease, uint32_t goal,
			 uint32_t session, uint32_t flags)
{
	const struct model_node *last = model_node(o, o->leases[lease].node);

	if (!computes(o, lease))
		return false;
	if (o->config.n_sides > 0 && (!last || model_end(last) != goal))
		return false; /* it has no sides where the keys leave it */
	return (flags & KVT_F_NO_WAIT) ||
	       !waits_for(o, o->leases[lease].session, session, o->n_pending);
}

static bool node_computed(const struct kvt_oracle *o, uint32_t node, uint32_t goal)
{
	const struct kvt_record *record = o->run.record;

	for (uint32_t i = 1; i <= o->config.n_leases; i++)
		if (crosses(o, i, node) &&
		    computes_for(o, i, goal, record->session, record->sqe.flags))
			return true;
	return false;
}

static bool worth_waiting(const struct kvt_oracle *o, uint32_t goal, uint32_t matched)
{
	return goal > matched && (uint64_t)(goal - matched) * o->config.page_size >
					 o->config.coalesce_threshold;
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
	return worth_waiting(o, goal, walk->matched) ? goal : 0;
}

static bool still_waits(const struct kvt_oracle *o, const struct model_pending *p)
{
	return p->awaited && computes(o, p->awaited) &&
	       o->leases[p->awaited].generation == p->generation &&
	       worth_waiting(o, p->goal, sealed_pages(o, p->awaited)) &&
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
	case KVT_REC_ADOPT:
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

static int wait_add(struct kvt_oracle *o, const struct model_walk *walk)
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
		.matched = walk->matched,
	};
	o->counters.waits++;
	return 0;
}

/* Follow the awaited lease. The core may choose any of those that compute furthest. */
static int wait_follow(struct kvt_oracle *o, const struct model_walk *walk,
		       struct model_pending *p)
{
	const struct kvt_cqe *cqe = &o->run.record->cqe;
	uint32_t goal = wait_goal(o, walk);
	const struct model_node *last;

	if (!goal)
		return oracle_fail(o, "it waits, though no lease computes any of it (%u "
				   "pages matched, %u walked)", walk->matched, walk->pages);
	TRY(oracle_expect(o, "positions that it waits for", (uint64_t)goal * o->config.page_size,
			  cqe->begin.matched));
	last = model_covering(o, walk->node, goal - 1);
	if (cqe->lease == 0 || cqe->lease > o->config.n_leases ||
	    !crosses(o, cqe->lease, last->id) ||
	    !computes_for(o, cqe->lease, goal, o->run.record->session,
			  o->run.record->sqe.flags))
		return oracle_fail(o, "it waits for lease %u, which does not compute page %u",
				   cqe->lease, goal - 1);
	TRY(oracle_expect(o, "generation of the awaited lease",
			  o->leases[cqe->lease].generation, cqe->lease_generation));
	p->awaited = cqe->lease;
	p->generation = cqe->lease_generation;
	p->goal = goal;
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
		TRY(wait_add(o, &walk));
		p = &o->pending[o->n_pending - 1];
	}
	return wait_follow(o, &walk, p);
}

/* The wait is over, or not needed. */
static void wait_over(struct kvt_oracle *o, uint32_t goal, uint32_t matched)
{
	o->run.gained = matched > o->run.waiter.matched;
	if (goal)
		o->run.want.flags |= KVT_CQE_DEADLINE;
	else if (worth_waiting(o, o->run.waiter.goal, matched))
		o->run.want.flags |= KVT_CQE_TAKEOVER;
}

int wait_begin(struct kvt_oracle *o, const struct model_walk *walk)
{
	const struct kvt_record *record = o->run.record;
	uint32_t goal = wait_goal(o, walk);

	if (o->run.waiter.waits) {
		if (goal && record->now_ns < o->run.waiter.deadline_ns)
			return oracle_fail(o, "it began, though %u pages of it are computed by "
					   "another lease", goal - walk->matched);
		wait_over(o, goal, walk->matched);
		return 0;
	}
	if (!goal)
		return 0;
	if (record->cqe.flags & KVT_CQE_NO_PLACE) { /* the log lacks the number of places */
		o->run.want.flags |= KVT_CQE_NO_PLACE;
		return 0;
	}
	if (record->sqe.flags & KVT_F_WAIT)
		return oracle_fail(o, "it did not wait, though %u pages of it are computed by "
				   "another lease", goal - walk->matched);
	TRY(wait_add(o, walk));
	return run_refuse(o, -EAGAIN, KVT_REASON_ANNOUNCED,
			  (uint64_t)(goal - walk->matched) * o->config.page_size);
}

int wait_notice(struct kvt_oracle *o)
{
	struct kvt_cqe *want = &o->run.want;
	struct model_walk walk;
	uint32_t goal;

	TRY(run_walk(o, &walk));
	goal = wait_goal(o, &walk);
	if (goal && o->run.record->now_ns < o->run.waiter.deadline_ns)
		return oracle_fail(o, "a notice came, though %u pages are computed by a lease",
				   goal - walk.matched);
	wait_over(o, goal, walk.matched);
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
	if (!o->run.gained)
		o->sessions[p->owner].in_vain = true;
}

void wait_sealed(struct kvt_oracle *o, struct model_lease *lease)
{
	uint64_t now = o->run.record->now_ns, gap = (now - lease->sealed_ns) / 1000;

	if (!stalled(o, (uint32_t)(lease - o->leases)))
		o->sessions[lease->session].in_vain = false;
	lease->gap_us = gap > lease->gap_us ? gap : lease->gap_us;
	lease->sealed_ns = now;
}

void wait_end(struct kvt_oracle *o)
{
	const struct model_pending *p = &o->run.waiter;
	const struct kvt_cqe *want = &o->run.want;
	bool notice = want->flags & KVT_CQE_ASYNC;
	uint32_t there = notice ? want->notice.matched : want->begin.reusable;
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
