/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file adopt.c
 * Recover what a predecessor stored (stored.c): first its objects, then its sessions.
 *
 * The core recovers between the two. A session continues if all its descriptors were stored and
 * all its processes live; else it ends as if its client had exited. Called by start.c only.
 */

#include "daemon/serve/adopt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/records.h"
#include "daemon/core/view.h"
#include "daemon/serve/member.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "daemon/serve/stored.h"
#include "daemon/setup/pool_backend.h"
#include "kvtrunk_wire_arena.h"
#include "shm/assert.h"

/* ---- objects */

static int map_object(struct kvt_object *object, const char *name, uint64_t need, char *why)
{
	int error;

	if (object->fd < 0) {
		snprintf(why, KVT_WHY_BYTES, "no %s was left", name);
		return -ESTALE;
	}
	error = kvt_object_take(object, object->fd);
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "cannot map the stored %s: %s", name,
			 strerror(-error));
		return error;
	}
	if (object->bytes == need)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "the stored %s has %llu bytes, but these options want "
		 "%llu", name, (unsigned long long)object->bytes, (unsigned long long)need);
	return -ESTALE;
}

/* Map the log's tail. If it cannot be mapped, this start fails: a later one would continue the log
 * behind a gap. */
static int take_log_tail(struct kvt_daemon *daemon, char *why)
{
	struct kvt_object *tail = &daemon->oplog_tail;
	int error = tail->fd < 0 ? 0 : kvt_object_take(tail, tail->fd);

	if (error == -EINVAL) { /* no memory object */
		kvt_log(KVT_LOG_WARNING, "no_log_tail", "effect=\"the log ends\"");
		return 0;
	}
	if (error)
		snprintf(why, KVT_WHY_BYTES, "cannot map the stored log's tail: %s",
			 strerror(-error));
	return error;
}

/* Map the pool. Consumes `slabs`, on failure too. */
static int adopt_pool(struct kvt_daemon *daemon, const int *slabs, char *why)
{
	struct kvt_pool *pool = &daemon->pool;
	const struct kvt_pool_backend_ops *ops = pool->ops;
	uint32_t n = 0;
	int error;

	pool->ops = NULL; /* not created yet */
	while (n < KVT_MAX_SLABS && slabs[n] >= 0)
		n++;
	error = ops->adopt(pool, slabs, n, why, KVT_WHY_BYTES);
	if (!error)
		pool->ops = ops;
	return error;
}

int kvt_adopt_objects(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int slabs[KVT_MAX_SLABS], error;

	if (!daemon->pool.ops->adopt) {
		snprintf(why, KVT_WHY_BYTES, "a %s pool ends with its daemon",
			 daemon->pool.ops->name);
		daemon->pool.ops = NULL;
		return -ESTALE;
	}
	memset(slabs, -1, sizeof(slabs));
	kvt_take_instance(daemon, slabs);
	error = map_object(&daemon->arena, "arena", daemon->sizes.arena_bytes, why);
	if (!error)
		error = map_object(&daemon->ledger, "ledger", daemon->sizes.ledger_bytes, why);
	if (!error)
		error = kvt_core_adoptable(&daemon->core_config, daemon->arena.base,
					   daemon->ledger.base, why, KVT_WHY_BYTES);
	if (!error)
		error = take_log_tail(daemon, why);
	if (!error)
		return adopt_pool(daemon, slabs, why);
	daemon->pool.ops = NULL;
	for (uint32_t i = 0; i < KVT_MAX_SLABS; i++)
		if (slabs[i] >= 0)
			close(slabs[i]);
	return error;
}

void kvt_adopt_say_gone(struct kvt_daemon *daemon)
{
	struct kvt_arena_header *arena = daemon->arena.base;

	if (daemon->arena.bytes >= sizeof(*arena))
		kvt_store_release(&arena->state, KVT_ARENA_GONE);
}

/* ---- processes */

/* Find the process by its stored pidfd, else by pid and start time. False: it exited. */
static bool find_process(struct kvt_member *member, const struct kvt_member_record *record)
{
	if (record->signs & KVT_SIGN_EXITED && member->pidfd >= 0) {
		close(member->pidfd);
		member->pidfd = -1;
	}
	if (record->signs & KVT_SIGN_EXITED)
		return false;
	if (member->pidfd >= 0 || record->pid == 0) /* 0: not visible here, so it may live */
		return true;
	return kvt_peer_pidfd_of(record->pid, record->start_time, &member->pidfd) == 0;
}

/* Map what rank 0 and its session share, or a member's segment. True if all of it is mapped. */
static bool map_segment(struct kvt_session *session, struct kvt_member *member)
{
	bool mapped = member->segment.fd >= 0 &&
		      kvt_object_take(&member->segment, member->segment.fd) == 0;

	if (member->rank || session->areas.fd < 0)
		return mapped;
	return kvt_object_take(&session->areas, session->areas.fd) == 0 && mapped;
}

/* Recover a process. False: its session must end, because a descriptor was not
 * stored, the process is gone, or damaged its segment (which must not refuse an upgrade).
 * *ret_lost: a stored descriptor cannot be used here. */
static bool adopt_member(struct kvt_daemon *daemon, struct kvt_session *session, uint32_t index,
			 bool *ret_lost)
{
	const struct kvt_member_record *record = kvt_core_member(daemon->core, index);
	struct kvt_member *member = &daemon->members[index];
	bool lives, stored, mapped, sound;

	member->rank = record->rank;
	member->pid = record->pid;
	kvt_member_link(session, member);
	kvt_take_member(daemon, member);
	stored = member->segment.fd >= 0 && (member->rank || session->areas.fd >= 0);
	mapped = map_segment(session, member);
	sound = mapped && kvt_segment_check(member->segment.base, member->segment.bytes,
					    member->rank ? 0 : session->areas.bytes,
					    &member->layout) == 0;
	if (!sound)
		kvt_object_destroy(&member->segment);
	lives = find_process(member, record);
	session->processes += lives;
	lives = lives && stored && !record->signs;
	*ret_lost |= lives && !mapped;
	return lives && (sound || !mapped);
}

/* ---- sessions */

static bool is_alive(const struct kvt_session_record *record)
{
	return record->state == KVT_SESSION_OPEN || record->state == KVT_SESSION_CLOSING;
}

static void resume_ring(struct kvt_daemon *daemon, struct kvt_session *session,
			const struct kvt_session_record *record)
{
	struct kvt_core_view view;

	KVT_ASSERT(session->members->segment.base && session->areas.base);
	kvt_session_view(session, &view);
	kvt_core_session_attach(daemon->core, session->index, &view);
	kvt_ring_end_init(&session->ring, session->members->segment.base, session->areas.base,
			  &session->members->layout);
	kvt_ring_end_resume(&session->ring, record->sq_taken, record->cq_done, record->last_cqe);
	session->deferred = record->n_pending + record->n_waiters;
}

/* Recover the processes of a session, and what only a session has. As adopt_member(). */
static bool adopt_members(struct kvt_daemon *daemon, struct kvt_session *session, bool *ret_lost)
{
	bool lives;

	lives = adopt_member(daemon, session, session->index, ret_lost) &&
		session->doorbell >= 0 && session->bell >= 0;
	for (uint32_t i = daemon->core_config.max_sessions + 1;
	     i <= kvt_core_members(&daemon->core_config); i++) {
		const struct kvt_member_record *record = kvt_core_member(daemon->core, i);

		if (record && record->session == session->index &&
		    record->state == KVT_MEMBER_JOINED)
			lives = adopt_member(daemon, session, i, ret_lost) && lives;
	}
	return lives;
}

/* Recover one session. -ESTALE (trial only): another process could recover it. */
static int adopt_session(struct kvt_daemon *daemon, uint32_t index,
			 const struct kvt_session_record *record)
{
	struct kvt_session *session = &daemon->sessions.slots[index];
	bool lives, lost = false;
	uint32_t signs = 0;

	session->index = index;
	session->generation = ++daemon->generation;
	session->name_generation = record->generation;
	session->quiet = record->signs & KVT_SIGN_QUIET;
	lives = adopt_members(daemon, session, &lost) && is_alive(record);
	if (lives && lost && daemon->notify.upgrade.trial)
		return -ESTALE;
	lives = lives && !lost;
	if (lives)
		resume_ring(daemon, session, record);
	kvt_session_adopted(daemon, session, lives);
	for (struct kvt_member *member = session->members; member; member = member->next) {
		if (member->pidfd >= 0)
			kvt_member_watch(daemon, member);
		if (lives && member->rank)
			kvt_core_member_attach(daemon->core, member->index,
					       kvt_member_fences(member));
	}
	if (!lives && session->processes && !(record->signs & KVT_SIGN_CLOSED))
		kvt_session_tell(daemon, session->members, -ECONNRESET,
				 "it could not be continued after the daemon's restart: connect "
				 "again");
	if (!session->processes)
		signs |= KVT_SIGN_EXITED;
	if (!lives)
		signs |= KVT_SIGN_HANGUP; /* the sockets ended with the last daemon */
	signs &= ~record->signs;
	if (signs)
		kvt_core_session_sign(daemon->core, index, signs, daemon->clock.now_ns);
	else if (!lives) /* the processes live, but descriptors are lost */
		kvt_core_session_kill(daemon->core, index, daemon->clock.now_ns);
	if (lives) /* a completion may have come before the restart, without its ring */
		kvt_session_ring_bell(daemon, session);
	daemon->sessions.look_due = daemon->sessions.sweep_due = true;
	return 0;
}

int kvt_adopt_sessions(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = 0;

	for (uint32_t i = 1; i <= daemon->core_config.max_sessions && !error; i++) {
		const struct kvt_session_record *record = kvt_core_session(daemon->core, i);

		if (record->state != KVT_SESSION_FREE)
			error = adopt_session(daemon, i, record);
		if (error)
			snprintf(why, KVT_WHY_BYTES, "session %u (pid %d) would be lost: some of "
				 "its descriptors cannot be used here", i,
				 (int)daemon->members[i].pid);
	}
	return error;
}

/* Close unused descriptors and remove them from the store. Clients keep their mappings and see
 * their sockets hang up. */
void kvt_adopt_rest(struct kvt_daemon *daemon)
{
	struct kvt_fdstore *passed = &daemon->kept.passed;

	for (uint32_t i = 0; i < passed->n; i++)
		if (!kvt_stored_outlives_cache(kvt_stored_kind(passed->at[i].name)) &&
		    (passed->at[i].fd >= 0 || !daemon->adopted))
			kvt_notify_forget(&daemon->notify, passed->at[i].name);
	kvt_fdstore_close(passed);
}
