/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions from HELLO to their last freed page, and background work.
 *
 * Inputs: records of sessions, signs, namespaces, limits, reclaim. Invariant: a session's pages are
 * PRIVATE, then QUARANTINE, then FREE. Caller: oracle.c. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_control.h"
#include "lab/oracle/events.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/lease.h"
#include "lab/oracle/run.h"
#include "lab/oracle/session.h"

#define SIGNS_OF_PEACE (KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET)

static void drop_pending_of(struct kvt_oracle *o, uint32_t session)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < o->n_pending; i++)
		if (o->pending[i].session != session)
			o->pending[kept++] = o->pending[i];
	o->n_pending = kept;
}

/* Close a session: end every lease without a COMMIT, newest first, and free every page. */
int session_close(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint32_t session = run->record->session, freed = 0;

	for (;;) {
		struct model_lease *first = NULL;

		for (uint32_t i = 1; i <= o->config.n_leases; i++) {
			struct model_lease *lease = &o->leases[i];

			if (lease->kind != MODEL_LEASE_FREE && lease->session == session &&
			    (!first || lease->order > first->order))
				first = lease;
		}
		if (!first)
			break;
		lease_count_use(o, first);
		model_unlock(o, first);
		freed += lease_free_pages(o, (uint32_t)(first - o->leases));
		lease_drop(o, (uint32_t)(first - o->leases));
	}
	TRY(events_follow(o, EVENT_BIT(KVT_EV_CUT) | EVENT_BIT(KVT_EV_FREE)));
	for (uint32_t page = 1; page < o->config.n_pages; page++) {
		if (o->pages[page].state == KVT_PAGE_PRIVATE && o->pages[page].session == session) {
			model_page_set(o, page, KVT_PAGE_FREE, 0, 0);
			freed++;
		}
	}
	o->sessions[session].state = KVT_SESSION_CLOSING;
	o->sessions[session].closed = true;
	run->want.close.freed = freed;
	return 0;
}

static void close_namespace(struct kvt_oracle *o, struct model_session *s, uint32_t ns)
{
	s->opened[ns] = 0;
	o->namespaces[ns].opened--;
	model_namespace_settle(o, ns);
}

/* Close a namespace in which the session has no lease, and no operation waits. */
int session_leave(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	uint32_t session = record->session, ns = record->sqe.namespace_id, held = 0;

	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		const struct model_lease *lease = &o->leases[i];

		if (lease->kind == MODEL_LEASE_FREE || lease->session != session)
			continue;
		if (lease->node)
			held += o->nodes[lease->node]->namespace_id == ns;
		else /* a MATCH that locked nothing is nowhere */
			held += lease->kind == MODEL_LEASE_BEGIN && lease->namespace_id == ns;
	}
	for (uint32_t i = 0; i < o->n_pending; i++)
		held += o->pending[i].session == session && o->pending[i].sqe.namespace_id == ns;
	if (held)
		return run_refuse(o, -EBUSY, KVT_REASON_NAMESPACE_HELD, held);
	close_namespace(o, &o->sessions[session], ns);
	return 0;
}

static int apply_session(struct kvt_oracle *o, uint32_t session)
{
	uint32_t uid = (uint32_t)(o->run.record->value >> 32), used = 0;
	struct model_session *s;

	for (uint32_t i = 1; i <= o->config.max_sessions; i++)
		used += o->sessions[i].state != KVT_SESSION_FREE && o->sessions[i].uid == uid;
	if (o->config.uid_sessions && used >= o->config.uid_sessions)
		return oracle_fail(o, "uid %u got more than %u sessions", uid,
				   o->config.uid_sessions);

	if (session == 0 || session > o->config.max_sessions ||
	    o->sessions[session].state != KVT_SESSION_FREE)
		return oracle_fail(o, "session %u was opened, but it is not free", session);
	if (session == o->config.max_sessions && session > 1 && !(o->run.record->value & 1))
		return oracle_fail(o, "session %u is kept for a privileged peer", session);
	s = &o->sessions[session];
	s->state = KVT_SESSION_OPEN;
	s->tally = (struct kvt_tally){ 0 };
	o->n_sessions++;
	s->signs = 0;
	s->closed = false;
	s->in_vain_ms = 0;
	s->privileged = o->run.record->value & 1;
	s->uid = uid;
	s->number = ++o->session_numbers;
	s->since = o->n_adopted;
	return 0;
}

static int apply_sign(struct kvt_oracle *o, struct model_session *s, uint32_t session)
{
	uint64_t signs = o->run.record->value;

	s->signs |= (uint32_t)signs;
	/* QUIET alone does not prove an exit; 0 is a kill for a violation. */
	if (signs && !(signs & (KVT_SIGN_HANGUP | KVT_SIGN_EXITED)))
		return 0;
	if (s->state != KVT_SESSION_OPEN && s->state != KVT_SESSION_CLOSING)
		return 0;
	s->state = KVT_SESSION_DYING;
	drop_pending_of(o, session);
	return 0;
}

static int apply_lease_lost(struct kvt_oracle *o, const struct model_session *s, uint32_t session)
{
	uint64_t index = o->run.record->value;
	struct model_lease *lease;

	if (s->state != KVT_SESSION_DYING)
		return oracle_fail(o, "session %u lost a lease in state %u", session, s->state);
	if (index == 0 || index > o->config.n_leases)
		return oracle_fail(o, "lease %llu was lost", (unsigned long long)index);
	lease = &o->leases[index];
	if ((lease->kind != MODEL_LEASE_MATCH && lease->kind != MODEL_LEASE_BEGIN) ||
	    lease->session != session)
		return oracle_fail(o, "lease %llu of session %u was lost, it is of kind %u",
				   (unsigned long long)index, session, lease->kind);
	TRY(lease_unlock(o, lease));
	for (uint32_t page = 1; page < o->config.n_pages; page++)
		if (o->pages[page].state == KVT_PAGE_PRIVATE && o->pages[page].lease == index)
			o->pages[page].lease = 0; /* the session's until it is in quarantine */
	lease_drop(o, (uint32_t)index);
	return 0;
}

/* Move a list of the dead session's pages from one state to another. */
static int move_pages(struct kvt_oracle *o, uint32_t session, uint32_t from, uint32_t to)
{
	const struct kvt_record *record = o->run.record;

	for (uint32_t i = 0; i < record->n_list; i++) {
		uint32_t page = record->list[i];

		if (page == 0 || page >= o->config.n_pages || o->pages[page].state != from ||
		    o->pages[page].session != session)
			return oracle_fail(o, "page %u of a dead session: state %u of session %u, "
					   "expected state %u of session %u", page,
					   page < o->config.n_pages ? o->pages[page].state : 0,
					   page < o->config.n_pages ? o->pages[page].session : 0,
					   from, session);
		if (from == KVT_PAGE_PRIVATE && o->pages[page].lease)
			return oracle_fail(o, "page %u goes before its lease %u lost its lock",
					   page, o->pages[page].lease);
		model_page_set(o, page, to, to == KVT_PAGE_FREE ? 0 : session, 0);
	}
	return 0;
}

static int apply_release(struct kvt_oracle *o, const struct model_session *s, uint32_t session)
{
	if ((s->signs & SIGNS_OF_PEACE) != SIGNS_OF_PEACE && !(s->signs & KVT_SIGN_FENCED))
		return oracle_fail(o, "pages of session %u left quarantine with signs %x only",
				   session, s->signs);
	return move_pages(o, session, KVT_PAGE_QUARANTINE, KVT_PAGE_FREE);
}

static int apply_session_gone(struct kvt_oracle *o, struct model_session *s, uint32_t session)
{
	for (uint32_t page = 1; page < o->config.n_pages; page++)
		if ((o->pages[page].state == KVT_PAGE_PRIVATE ||
		     o->pages[page].state == KVT_PAGE_QUARANTINE) &&
		    o->pages[page].session == session)
			return oracle_fail(o, "session %u is gone, but page %u is still its own",
					   session, page);
	if (s->n_leases)
		return oracle_fail(o, "session %u is gone with %u leases", session, s->n_leases);
	if (s->state == KVT_SESSION_OPEN)
		return oracle_fail(o, "session %u is gone without a sign", session);
	for (uint32_t ns = 0; ns <= o->config.max_namespaces; ns++)
		if (s->opened[ns])
			close_namespace(o, s, ns);
	drop_pending_of(o, session);
	s->state = KVT_SESSION_FREE;
	o->n_sessions--;
	return 0;
}

/* True if a namespace may be emptied: no session has it open or locks it. */
static bool may_recycle(const struct kvt_oracle *o, uint32_t ns)
{
	const struct model_namespace *space = &o->namespaces[ns];

	if (!space->used || space->opened)
		return false;
	for (uint32_t i = 0; i < o->n_live; i++)
		if (o->nodes[o->live[i]]->namespace_id == ns && o->nodes[o->live[i]]->locks)
			return false;
	return true;
}

static uint32_t n_opened(const struct kvt_oracle *o, const struct model_session *s)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i < o->config.max_namespaces; i++)
		n += s->opened[i];
	return n;
}

/* Check and count an opening that was refused: the session has its most open, or there is no place
 * and none can be made. */
static int apply_unopened(struct kvt_oracle *o, struct model_session *s)
{
	const struct kvt_record *record = o->run.record;
	bool known = false, room = o->n_namespaces < o->config.max_namespaces - 1;

	if (record->n_keys != 4)
		return oracle_fail(o, "an opening was refused without a digest");
	for (uint32_t i = 1; i < o->config.max_namespaces; i++) {
		bool same = o->namespaces[i].used && memcmp(o->namespaces[i].digest, record->keys,
							    sizeof(o->namespaces[i].digest)) == 0;

		if (same && s->opened[i])
			return oracle_fail(o, "namespace %u was refused, which is open", i);
		known |= same;
		room |= may_recycle(o, i);
	}
	if ((known || room) &&
	    (!o->config.max_opened || n_opened(o, s) < o->config.max_opened))
		return oracle_fail(o, "a namespace was refused to session %u, which may open it",
				   record->session);
	o->counters.refusals++;
	o->refused[KVT_REFUSAL_LIMIT_NAMESPACES]++;
	s->tally.refused[KVT_REFUSAL_LIMIT_NAMESPACES]++;
	return 0;
}

static int apply_namespace(struct kvt_oracle *o, struct model_session *s)
{
	const struct kvt_record *record = o->run.record;
	uint64_t digest[2];
	uint32_t number = (uint32_t)record->value;
	struct model_namespace *ns;

	if (number == 0 || number >= o->config.max_namespaces || record->n_keys != 4)
		return oracle_fail(o, "namespace %u was opened", number);
	memcpy(digest, record->keys, sizeof(digest));
	ns = &o->namespaces[number];
	for (uint32_t i = 0; i <= o->config.max_namespaces; i++)
		if (i != number && o->namespaces[i].used &&
		    memcmp(o->namespaces[i].digest, digest, sizeof(digest)) == 0)
			return oracle_fail(o, "one digest is namespace %u and %u", i, number);
	if (ns->used && memcmp(ns->digest, digest, sizeof(digest)) != 0)
		return oracle_fail(o, "namespace %u is in use by another digest", number);
	if (!s->opened[number] && o->config.max_opened && n_opened(o, s) >= o->config.max_opened)
		return oracle_fail(o, "session %u has more than %u namespaces open",
				   record->session, o->config.max_opened);
	o->n_namespaces += !ns->used;
	if (!ns->used)
		ns->tally = (struct kvt_tally){ 0 };
	ns->used = true;
	ns->limit = (uint32_t)(record->value >> 32);
	memcpy(ns->digest, digest, sizeof(digest));
	if (!s->opened[number]) {
		s->opened[number] = 1;
		ns->opened++;
	}
	return 0;
}

static int apply_limit(struct kvt_oracle *o)
{
	uint32_t number = (uint32_t)o->run.record->value;

	if (number == 0 || number >= o->config.max_namespaces || !o->namespaces[number].used)
		return oracle_fail(o, "namespace %u, which is not in use, got a limit", number);
	o->namespaces[number].limit = (uint32_t)(o->run.record->value >> 32);
	return events_done(o);
}

int session_check_recycled(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	uint32_t number = record->sqe.namespace_id;
	const struct model_node *root = model_node(o, model_root(o, number));

	if (record->session > o->config.max_sessions || number > o->config.max_namespaces)
		return oracle_fail(o, "session %u emptied namespace %u", record->session, number);
	TRY(oracle_expect(o, "namespaces in use when one is emptied",
			  o->config.max_namespaces - 1, o->n_namespaces));
	if (!root || !may_recycle(o, number))
		return oracle_fail(o, "namespace %u was emptied, which is in use", number);
	for (uint32_t ns = 0; ns <= o->config.max_namespaces; ns++) {
		const struct model_node *other = model_node(o, model_root(o, ns));

		if (may_recycle(o, ns) && (!other || other->touched < root->touched))
			return oracle_fail(o, "namespace %u was emptied, %s is %u", number,
					   other ? "less recently used" : "already empty", ns);
	}
	return 0;
}

static int apply_expire(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	const struct model_node *node;

	if (record->n_events == 0 || record->events[0].kind != KVT_EV_DETACH)
		return oracle_fail(o, "EXPIRE without a DETACH");
	node = model_node(o, record->events[0].node);
	if (!node || node->detached || node->expiry_ns > record->now_ns)
		return oracle_fail(o, "node %u expired, which is not due", record->events[0].node);
	o->counters.expired_nodes++;
	return events_follow(o, EVENT_BIT(KVT_EV_DETACH) | EVENT_BIT(KVT_EV_FREE));
}

static int apply_background(struct kvt_oracle *o)
{
	switch (o->run.record->kind) {
	case KVT_REC_EXPIRE:
		return apply_expire(o);
	case KVT_REC_RECLAIM:
		return events_follow(o, EVENT_BIT(KVT_EV_TRIM) | EVENT_BIT(KVT_EV_FREE));
	case KVT_REC_COMPACT:
		return events_follow(o, EVENT_BIT(KVT_EV_MERGE));
	default:
		return oracle_fail(o, "unknown record kind %u", o->run.record->kind);
	}
}

int session_apply(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	uint32_t session = record->session;
	struct model_session *s;

	if (record->kind == KVT_REC_SESSION)
		return apply_session(o, session);
	if (record->kind == KVT_REC_DRAIN || record->kind == KVT_REC_ADOPT) {
		o->draining = record->kind == KVT_REC_DRAIN && record->value;
		if (record->kind == KVT_REC_ADOPT && record->value)
			TRY(events_follow(o, EVENT_BIT(KVT_EV_RAISE)));
		if (record->kind == KVT_REC_ADOPT) {
			model_forget_remains(o);
			model_hold(o, 0);
			o->n_adopted++;
		}
		return events_done(o);
	}
	if (record->kind == KVT_REC_EXPIRE || record->kind == KVT_REC_RECLAIM ||
	    record->kind == KVT_REC_COMPACT) {
		TRY(apply_background(o));
		return events_done(o);
	}
	if (record->kind == KVT_REC_NAMESPACE && session == 0)
		return apply_limit(o);
	if (session == 0 || session > o->config.max_sessions ||
	    o->sessions[session].state == KVT_SESSION_FREE)
		return oracle_fail(o, "no such session: %u", session);
	s = &o->sessions[session];
	switch (record->kind) {
	case KVT_REC_NAMESPACE:
		TRY(record->value ? apply_namespace(o, s) : apply_unopened(o, s));
		break;
	case KVT_REC_SIGN:
		TRY(apply_sign(o, s, session));
		break;
	case KVT_REC_LEASE_LOST:
		TRY(apply_lease_lost(o, s, session));
		break;
	case KVT_REC_QUARANTINE:
		TRY(move_pages(o, session, KVT_PAGE_PRIVATE, KVT_PAGE_QUARANTINE));
		break;
	case KVT_REC_RELEASE:
		TRY(apply_release(o, s, session));
		break;
	case KVT_REC_SESSION_GONE:
		TRY(apply_session_gone(o, s, session));
		break;
	default:
		return oracle_fail(o, "unknown record kind %u", record->kind);
	}
	return events_done(o);
}
