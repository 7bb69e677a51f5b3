/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions: open, close, reclaim.
 *
 * CLOSE frees a session's pages at once. A session that ends by a sign or a kill is DYING:
 * background work unlocks its leases one by one, and its private pages wait in quarantine until no
 * process can write them (signs HANGUP, EXITED and QUIET, or FENCED). DEAD means that only
 * quarantine is left. Each step is an effect. Callers: the daemon when a peer connects or
 * disconnects, op.c for CLOSE, work.c. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/effect.h"
#include "daemon/core/lease.h"
#include "daemon/core/page.h"
#include "daemon/core/pending.h"
#include "daemon/core/running.h"
#include "daemon/core/session.h"
#include "daemon/core/side.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "daemon/core/wait.h"
#include "kvtrunk_wire_control.h"

const struct kvt_session_record *kvt_core_session(const struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(session <= core->config.max_sessions);
	return &core->sessions[session];
}

/** A number that no page has yet, but for a chance of 2^-24. */
static uint32_t next_sealer(struct kvt_core *core)
{
	uint32_t number = (uint32_t)++core->ledger->tickets & KVT_SEALER_MASK;

	return number ? number : 1;
}

/** Check that the uid may have one more session: 0, or -EDQUOT. */
static int check_uid(const struct kvt_core *core, uint32_t uid)
{
	uint32_t n = 0;

	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		n += core->sessions[id].state != KVT_SESSION_FREE && core->members[id].uid == uid;
	return core->config.uid_sessions && n >= core->config.uid_sessions ? -EDQUOT : 0;
}

int kvt_core_session_open(struct kvt_core *core, const struct kvt_core_peer *peer,
			  const struct kvt_core_view *view, uint64_t now_ns,
			  uint32_t *ret_session)
{
	struct kvt_session_record *session;
	struct kvt_member_record *member;
	int error = check_uid(core, peer->uid);
	uint32_t id = 1, last = core->config.max_sessions;

	if (error)
		return error;
	if (last > 1 && !peer->privileged)
		last--;
	while (id <= last && core->sessions[id].state != KVT_SESSION_FREE)
		id++;
	if (id > last)
		return -EUSERS;
	core->now_ns = now_ns;
	session = &core->sessions[id];
	member = &core->members[id];
	KVT_ASSERT(session->first_lease == KVT_NONE && !session->n_private);
	*member = (struct kvt_member_record){ /* valid once the session is open */
		.state = KVT_MEMBER_JOINED,
		.session = id,
		.generation = session->generation + 1,
		.pid = peer->pid,
		.uid = peer->uid,
		.start_time = peer->start_time,
		.secret = { peer->secret[0], peer->secret[1] },
	};
	if (peer->label)
		snprintf(member->label, sizeof(member->label), "%s", peer->label);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_save(core, session, KVT_SESSION_FACTS);
	*session = (struct kvt_session_record){
		.state = KVT_SESSION_OPEN,
		.generation = session->generation + 1,
		.flags = peer->privileged ? KVT_SESSION_PRIVILEGED : 0,
		.max_leases = core->config.max_leases,
		.max_private_pages = core->config.max_private_pages,
		.opened_ns = now_ns,
		.sealer = next_sealer(core),
	};
	kvt_tally_clear(core, kvt_tally_session(core, id));
	core->views[id] = *view;
	core->groups[id].n = 0;
	core->count->live_sessions++;
	core->open_sessions++;
	kvt_record_emit(core, KVT_REC_SESSION, id, (uint64_t)peer->uid << 32 | peer->privileged);
	kvt_mutation_end(core);
	*ret_session = id;
	return 0;
}

void kvt_core_session_attach(struct kvt_core *core, uint32_t session,
			     const struct kvt_core_view *view)
{
	KVT_ASSERT(session > 0 && session <= core->config.max_sessions);
	KVT_ASSERT(core->sessions[session].state != KVT_SESSION_FREE && view->fences);
	core->views[session] = *view;
	core->groups[session].n = 0;
	core->wake_due = true;
}

/* ---- the end of a session */

uint32_t kvt_close_now(struct kvt_core *core, uint32_t id)
{
	struct kvt_session_record *session = &core->sessions[id];
	uint32_t freed = 0;

	while (session->first_lease != KVT_NONE)
		freed += kvt_lease_end(core, session->first_lease);
	kvt_save_list(core, session->first_page, UINT32_MAX);
	while (session->first_page != KVT_NONE) {
		uint32_t page = session->first_page;

		kvt_loose_remove(core, id, page);
		kvt_page_release(core, page);
		freed++;
	}
	kvt_save(core, session, KVT_SESSION_FACTS);
	session->state = KVT_SESSION_CLOSING;
	KVT_ASSERT(session->n_leases == 0 && session->n_private == 0);
	session->signs |= KVT_SIGN_CLOSED;
	return freed;
}

static void session_over(struct kvt_core *core, uint32_t id)
{
	struct kvt_session_record *session = &core->sessions[id];

	KVT_ASSERT(session->state == KVT_SESSION_OPEN || session->state == KVT_SESSION_CLOSING);
	while (session->first_pending != KVT_NONE)
		kvt_pending_forget(core, session->first_pending, KVT_NONE);
	kvt_waiters_forget(core, id);
	KVT_ASSERT(session->n_pending == 0 && session->n_waiters == 0);
	core->wake_due = true;
	session->state = KVT_SESSION_DYING;
	session->ended_ns = core->now_ns;
	KVT_ASSERT(core->open_sessions > 0);
	core->open_sessions--;
	core->dying++;
}

static void session_signal(struct kvt_core *core, uint32_t id, uint32_t signs, uint64_t now_ns)
{
	struct kvt_session_record *session = &core->sessions[id];

	KVT_ASSERT(id > 0 && id <= core->config.max_sessions);
	if (session->state == KVT_SESSION_FREE || (signs && (session->signs & signs) == signs))
		return;
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_save(core, session, KVT_SESSION_FACTS);
	session->signs |= signs;
	if (session->state == KVT_SESSION_OPEN || session->state == KVT_SESSION_CLOSING) {
		if (!signs || (signs & (KVT_SIGN_HANGUP | KVT_SIGN_EXITED)))
			session_over(core, id);
	} else if (session->state == KVT_SESSION_DEAD) {
		session->state = KVT_SESSION_DYING; /* look again */
		core->dying++;
	}
	kvt_record_emit(core, KVT_REC_SIGN, id, signs);
	kvt_mutation_end(core);
}

void kvt_core_session_sign(struct kvt_core *core, uint32_t session, uint32_t signs,
			   uint64_t now_ns)
{
	if (signs)
		session_signal(core, session, signs, now_ns);
}

void kvt_core_session_kill(struct kvt_core *core, uint32_t session, uint64_t now_ns)
{
	uint32_t state = core->sessions[session].state;

	KVT_ASSERT(session > 0 && session <= core->config.max_sessions);
	if (state == KVT_SESSION_OPEN || state == KVT_SESSION_CLOSING)
		session_signal(core, session, 0, now_ns);
}

/** Unlock one lease of a dead session. Its pages join the session's. */
static void lose_lease(struct kvt_core *core, uint32_t id, uint32_t lease_id)
{
	struct kvt_session_record *session = &core->sessions[id];
	struct kvt_lease_record *lease = &core->leases[lease_id];
	uint32_t page = lease->first_kept;

	KVT_ASSERT(session->state == KVT_SESSION_DYING && lease->session == id);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (core->n_let > 0)
		kvt_sides_hold_all(core, lease_id);
	kvt_path_unlock(core, lease->node);
	kvt_save_list(core, lease->last_page, 1);
	kvt_save_list(core, page, UINT32_MAX);
	if (lease->n_private > 0) {
		core->owners[lease->last_page].next = session->first_page;
		session->first_page = lease->first_page;
	}
	while (page != KVT_NONE) {
		uint32_t next = core->owners[page].next;

		core->owners[page].next = session->first_page;
		session->first_page = page;
		page = next;
	}
	kvt_lease_free(core, lease_id);
	kvt_record_emit(core, KVT_REC_LEASE_LOST, id, lease_id);
	kvt_mutation_end(core);
}

static uint32_t quarantine(struct kvt_core *core, uint32_t id, uint32_t limit)
{
	struct kvt_session_record *session = &core->sessions[id];
	uint32_t n = 0;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_save_list(core, session->first_page, limit);
	KVT_ASSERT(limit <= core->config.max_op_keys && session->first_lease == KVT_NONE);
	while (n < limit && session->first_page != KVT_NONE) {
		uint32_t page = session->first_page;

		session->first_page = core->owners[page].next;
		core->pages[page].sealer = 0;
		core->pages[page].state = KVT_PAGE_QUARANTINE;
		kvt_loose_add(core, id, page);
		session->n_private--;
		session->n_quarantined++;
		core->count->private_pages--;
		core->count->quarantined_pages++;
		core->op_pages[n++] = page;
	}
	core->record.list = core->op_pages;
	core->record.n_list = n;
	kvt_record_emit(core, KVT_REC_QUARANTINE, id, 0);
	kvt_mutation_end(core);
	return n;
}

static uint32_t release(struct kvt_core *core, uint32_t id, uint32_t limit)
{
	struct kvt_session_record *session = &core->sessions[id];
	uint32_t n = 0;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_save_list(core, session->first_quarantined, limit);
	KVT_ASSERT(limit <= core->config.max_op_keys && session->first_page == KVT_NONE);
	while (n < limit && session->first_quarantined != KVT_NONE) {
		uint32_t page = session->first_quarantined;

		kvt_loose_remove(core, id, page);
		kvt_page_release(core, page);
		core->op_pages[n++] = page;
	}
	core->record.list = core->op_pages;
	core->record.n_list = n;
	kvt_record_emit(core, KVT_REC_RELEASE, id, 0);
	kvt_mutation_end(core);
	return n;
}

static void session_gone(struct kvt_core *core, uint32_t id)
{
	struct kvt_session_record *session = &core->sessions[id];

	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_save(core, session, KVT_SESSION_FACTS);
	kvt_spaces_close(core, id);
	KVT_ASSERT(session->n_leases == 0 && session->n_private == 0 &&
		   session->n_quarantined == 0);
	KVT_ASSERT(core->dying > 0 && core->count->live_sessions > 0);
	core->dying--;
	core->count->live_sessions--;
	*session = (struct kvt_session_record){ .generation = session->generation };
	kvt_record_emit(core, KVT_REC_SESSION_GONE, id, 0);
	kvt_mutation_end(core);
}

/** Take a few steps for one dying session. Returns the number of pages, leases or records moved. */
static uint32_t bury(struct kvt_core *core, uint32_t id, uint32_t limit)
{
	const uint32_t all = KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET;
	struct kvt_session_record *session = &core->sessions[id];

	if (session->first_lease != KVT_NONE) {
		lose_lease(core, id, session->first_lease);
		return 1;
	}
	if (session->first_page != KVT_NONE)
		return quarantine(core, id, limit);
	if (session->first_quarantined != KVT_NONE) {
		if ((session->signs & all) == all || (session->signs & KVT_SIGN_FENCED))
			return release(core, id, limit);
		kvt_mutation_begin(core);
		kvt_save(core, session, KVT_SESSION_FACTS);
		session->state = KVT_SESSION_DEAD;
		core->dying--;
		kvt_mutation_end(core);
		return 1;
	}
	session_gone(core, id);
	return 1;
}

uint32_t kvt_session_work(struct kvt_core *core, uint32_t budget)
{
	uint32_t done = 0, looked = 0;
	uint64_t outer;

	/* Round robin, so that a session with a million pages delays no other. */
	while (core->dying > 0 && done < budget && looked <= core->config.max_sessions) {
		core->dying_at = core->dying_at % core->config.max_sessions + 1;
		looked++;
		if (core->sessions[core->dying_at].state != KVT_SESSION_DYING)
			continue;
		outer = kvt_running_work(core, KVT_WORK_SESSION, core->dying_at);
		done += bury(core, core->dying_at,
			     kvt_min(budget - done, kvt_min(core->config.max_op_keys, 256)));
		kvt_running_end(core, outer);
		looked = 0;
	}
	return done;
}

bool kvt_session_unsettled(const struct kvt_core *core)
{
	return core->dying > 0;
}
