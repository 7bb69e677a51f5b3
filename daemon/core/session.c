/* SPDX-License-Identifier: Apache-2.0 */

/* Sessions: how they come, what waits for their fences, and how what they held comes back. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/internal.h"

const struct kvt_session_record *kvt_core_session(const struct kvt_core *core, uint32_t session)
{
	KVT_ASSERT(session <= core->config.max_sessions);
	return &core->sessions[session];
}

int kvt_core_session_open(struct kvt_core *core, const struct kvt_core_peer *peer,
			  const struct kvt_core_view *view, uint64_t now_ns,
			  uint32_t *ret_session)
{
	struct kvt_session_record *session;
	int error = kvt_user_check_session(core, peer->uid);
	uint32_t id = 1;

	if (error)
		return error;
	while (id <= core->config.max_sessions && core->sessions[id].state != KVT_SESSION_FREE)
		id++;
	if (id > core->config.max_sessions)
		return -EUSERS;
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	session = &core->sessions[id];
	kvt_undo_session(core, id);
	*session = (struct kvt_session_record){
		.state = KVT_SESSION_OPEN,
		.generation = session->generation + 1,
		.flags = peer->privileged,
		.pid = peer->pid,
		.uid = peer->uid,
		.max_leases = core->config.max_leases,
		.max_private_pages = core->config.max_private_pages,
		.start_time = peer->start_time,
		.opened_ns = now_ns,
		.secret = { peer->secret[0], peer->secret[1] },
	};
	if (peer->label)
		snprintf(session->label, sizeof(session->label), "%s", peer->label);
	core->views[id] = *view;
	core->groups[id].n = 0;
	core->count->live_sessions++;
	kvt_user_session(core, id);
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

/* ---- namespaces */

static uint32_t find_namespace(const struct kvt_core *core, const uint64_t digest[2],
			       uint32_t *ret_free)
{
	*ret_free = 0;
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		const struct kvt_namespace_record *space = &core->namespaces[i];

		if (!space->flags) {
			if (!*ret_free)
				*ret_free = i;
		} else if (space->digest[0] == digest[0] && space->digest[1] == digest[1]) {
			return i;
		}
	}
	return 0;
}

static void make_namespace(struct kvt_core *core, uint32_t id, uint32_t session,
			   const uint64_t digest[2], const char *label)
{
	struct kvt_namespace_record *space = &core->namespaces[id];

	kvt_undo_space(core, id);
	kvt_user_space(core, id, core->sessions[session].uid);
	KVT_SET(space->root, KVT_NONE);
	KVT_SET(space->digest[0], digest[0]);
	KVT_SET(space->digest[1], digest[1]);
	space->flags = 1;
	space->opened = 0;
	space->cached_pages = space->evictable_pages = space->protected_pages = 0;
	snprintf(core->labels[id], KVT_LABEL_BYTES, "%s", label ? label : "");
	core->count->live_namespaces++;
}

void kvt_space_free(struct kvt_core *core, uint32_t id)
{
	kvt_undo_space(core, id);
	core->namespaces[id].flags = 0;
	core->count->live_namespaces--;
	kvt_user_space_gone(core, id);
}

int kvt_core_namespace_open(struct kvt_core *core, uint32_t session, const uint64_t digest[2],
			    const char *label, uint64_t now_ns, uint32_t *ret_namespace)
{
	uint64_t *bits = core->opened + (size_t)session * core->opened_words;
	uint32_t place, id = find_namespace(core, digest, &place);
	uint32_t words[4] = { (uint32_t)digest[0], (uint32_t)(digest[0] >> 32),
			      (uint32_t)digest[1], (uint32_t)(digest[1] >> 32) };

	if (!id && session == 0)
		return -ENOENT;
	if (!id && kvt_user_check_space(core, session))
		return -EDQUOT;
	if (!id && !place)
		return -ENOSPC;
	if (session == 0 || (id && kvt_bit_get(bits, id))) {
		*ret_namespace = id;
		return 0;
	}
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (!id) {
		id = place;
		make_namespace(core, id, session, digest, label);
	}
	core->namespaces[id].opened++;
	kvt_undo_opened(core, session, id);
	kvt_bit_set(bits, id);
	core->record.keys = words;
	core->record.n_keys = 4;
	kvt_record_emit(core, KVT_REC_NAMESPACE, session, id);
	kvt_mutation_end(core);
	*ret_namespace = id;
	return 0;
}

static void close_namespaces(struct kvt_core *core, uint32_t session)
{
	uint64_t *bits = core->opened + (size_t)session * core->opened_words;

	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		struct kvt_namespace_record *space = &core->namespaces[i];

		if (!kvt_bit_get(bits, i))
			continue;
		kvt_undo_opened(core, session, i);
		kvt_bit_clear(bits, i);
		if (--space->opened == 0 && space->nodes == 0)
			kvt_space_free(core, i);
	}
}

/* ---- operations that wait for their fence */

bool kvt_core_can_defer(const struct kvt_core *core)
{
	return core->free_pending.count > 0;
}

static bool fence_reached(const struct kvt_core *core, uint32_t session,
			  const struct kvt_sqe *sqe)
{
	const struct kvt_fence_group *group = &core->groups[session];
	const struct kvt_fence_word *words = core->views[session].fences;

	if (sqe->fence_slot == KVT_FENCE_IDLE)
		return true;
	/* Pairs with the release by which the client (or a device) raises the word: whatever it
	 * wrote into pages before is done. */
	if (kvt_load_acquire(&words[sqe->fence_slot].value) < sqe->fence_value)
		return false;
	for (uint32_t i = 0; i < group->n; i++)
		if (kvt_load_acquire(&group->words[i][sqe->fence_slot].value) < sqe->fence_value)
			return false;
	return true;
}

/** Whether something submitted earlier has to take effect before this one. */
static bool has_elders(const struct kvt_core *core, const struct kvt_op_context *op)
{
	if (op->sqe->op == KVT_OP_CLOSE)
		return core->sessions[op->session].n_pending > 0;
	return kvt_op_takes_lease(op->sqe->op) && core->leases[op->sqe->node].n_pending > 0;
}

static void mark_ending(struct kvt_core *core, const struct kvt_op_context *op)
{
	if (op->sqe->op == KVT_OP_END || op->sqe->op == KVT_OP_UNLOCK) {
		kvt_undo_lease(core, &core->undo, op->sqe->node);
		core->leases[op->sqe->node].flags |= KVT_LEASE_ENDING;
	} else if (op->sqe->op == KVT_OP_CLOSE) {
		kvt_undo_session(core, op->session);
		core->sessions[op->session].state = KVT_SESSION_CLOSING;
	}
	core->wake_due = true;
}

uint32_t kvt_pending_take(struct kvt_core *core)
{
	uint32_t id = core->free_pending.head;

	KVT_ASSERT(id != KVT_NONE);
	core->free_pending.head = core->pending[id].next;
	if (--core->free_pending.count == 0)
		core->free_pending.tail = KVT_NONE;
	return id;
}

void kvt_pending_free(struct kvt_core *core, uint32_t id)
{
	kvt_undo_pending(core, id);
	core->pending[id] = (struct kvt_pending_record){ 0 };
	if (core->free_pending.count++ == 0)
		core->free_pending.head = id;
	else
		core->pending[core->free_pending.tail].next = id;
	core->free_pending.tail = id;
}

/** Queue an operation whose time has not come. False if it may run now. */
bool kvt_defer(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_session_record *session = &core->sessions[op->session];
	struct kvt_pending_record *pending;
	uint32_t id;

	if (fence_reached(core, op->session, op->sqe) && !has_elders(core, op))
		return false;
	kvt_mutation_begin(core);
	id = kvt_pending_take(core);
	pending = &core->pending[id];
	kvt_undo_pending(core, id);
	*pending = (struct kvt_pending_record){ .sqe = *op->sqe, .session = op->session };
	if (session->n_pending++ == 0)
		session->first_pending = id;
	else
		core->pending[session->last_pending].next = id;
	session->last_pending = id;
	if (kvt_op_takes_lease(op->sqe->op)) {
		pending->lease = op->sqe->node;
		core->leases[pending->lease].n_pending++;
	}
	mark_ending(core, op);
	kvt_undo_progress(core, op->session);
	session->sq_taken++;
	core->record.sqe = *op->sqe;
	pending->token = kvt_record_emit(core, KVT_REC_DEFER, op->session, 0);
	kvt_mutation_end(core);
	return true;
}

/** Take a pending record out of its session's list; `before` is its predecessor. */
void kvt_pending_forget(struct kvt_core *core, uint32_t id, uint32_t before)
{
	struct kvt_pending_record *pending = &core->pending[id];
	struct kvt_session_record *session = &core->sessions[pending->session];

	if (before != KVT_NONE)
		core->pending[before].next = pending->next;
	else
		session->first_pending = pending->next;
	if (session->last_pending == id)
		session->last_pending = before;
	session->n_pending--;
	/* An END or UNLOCK is forgotten when its lease has ended. */
	if (pending->lease != KVT_NONE &&
	    core->leases[pending->lease].generation == pending->sqe.generation)
		core->leases[pending->lease].n_pending--;
	kvt_pending_free(core, id);
}

static bool may_run(struct kvt_core *core, uint32_t id, uint32_t before)
{
	const struct kvt_pending_record *pending = &core->pending[id];

	if (pending->lease != KVT_NONE && core->lease_stamp[pending->lease] == core->stamp)
		return false;
	if (pending->sqe.op == KVT_OP_CLOSE && before != KVT_NONE)
		return false;
	return fence_reached(core, pending->session, &pending->sqe);
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
		struct kvt_op_context op = {
			.session = session,
			.sqe = &entry.sqe,
			.view = &core->views[session],
			.cqe = &cqe,
			.deferred = id,
			.before = before,
		};

		if (!may_run(core, id, before)) {
			if (entry.lease != KVT_NONE)
				core->lease_stamp[entry.lease] = core->stamp;
			before = id;
			id = entry.next;
			continue;
		}
		if (core->expiry.count > 0)
			kvt_expire_due(core, 16);
		kvt_wake(core);
		kvt_record_start(core);
		kvt_op_run(core, &op, entry.token);
		cqe.flags |= KVT_CQE_DEFERRED;
		if (core->hooks.complete)
			core->hooks.complete(core->hooks.context, session, &cqe);
		ran++;
		id = entry.next;
	}
	return ran;
}

/* ---- the end of a session */

uint32_t kvt_close_now(struct kvt_core *core, uint32_t id)
{
	struct kvt_session_record *session = &core->sessions[id];
	uint32_t freed = 0;

	while (session->first_lease != KVT_NONE)
		freed += kvt_lease_end(core, session->first_lease);
	kvt_undo_list(core, session->first_page, UINT32_MAX);
	while (session->first_page != KVT_NONE) {
		uint32_t page = session->first_page;

		kvt_loose_remove(core, id, page);
		kvt_page_release(core, page);
		freed++;
	}
	kvt_undo_session(core, id);
	session->state = KVT_SESSION_CLOSING;
	session->signs |= KVT_SIGN_CLOSED;
	return freed;
}

static void session_over(struct kvt_core *core, uint32_t id)
{
	struct kvt_session_record *session = &core->sessions[id];

	while (session->first_pending != KVT_NONE)
		kvt_pending_forget(core, session->first_pending, KVT_NONE);
	kvt_waiters_forget(core, id);
	core->wake_due = true;
	session->state = KVT_SESSION_DYING;
	session->ended_ns = core->now_ns;
	core->dying++;
	kvt_user_session_over(core, id);
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
	kvt_undo_session(core, id);
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

	if (state == KVT_SESSION_OPEN || state == KVT_SESSION_CLOSING)
		session_signal(core, session, 0, now_ns);
}

/** One lease of a dead session: its lock goes now; its pages join the session's. */
static void lose_lease(struct kvt_core *core, uint32_t id, uint32_t lease_id)
{
	struct kvt_session_record *session = &core->sessions[id];
	struct kvt_lease_record *lease = &core->leases[lease_id];
	uint32_t page = lease->first_kept;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_path_unlock(core, lease->node);
	kvt_undo_list(core, lease->last_page, 1);
	kvt_undo_list(core, page, UINT32_MAX);
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
	kvt_undo_list(core, session->first_page, limit);
	while (n < limit && session->first_page != KVT_NONE) {
		uint32_t page = session->first_page;

		session->first_page = core->owners[page].next;
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
	kvt_undo_list(core, session->first_quarantined, limit);
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
	kvt_undo_session(core, id);
	close_namespaces(core, id);
	core->dying--;
	core->count->live_sessions--;
	kvt_user_session_gone(core, id);
	*session = (struct kvt_session_record){ .generation = session->generation };
	kvt_record_emit(core, KVT_REC_SESSION_GONE, id, 0);
	kvt_mutation_end(core);
}

/** A few steps for one dying session. Returns how many pages, leases or records they moved. */
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
		kvt_undo_session(core, id);
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

	/* Round robin, so that one session with a million pages does not hold up another. */
	while (core->dying > 0 && done < budget && looked <= core->config.max_sessions) {
		core->dying_at = core->dying_at % core->config.max_sessions + 1;
		looked++;
		if (core->sessions[core->dying_at].state != KVT_SESSION_DYING)
			continue;
		done += bury(core, core->dying_at,
			     kvt_min(budget - done, kvt_min(core->config.max_op_keys, 256)));
		looked = 0;
	}
	return done;
}

bool kvt_session_unsettled(const struct kvt_core *core)
{
	return core->dying > 0;
}
