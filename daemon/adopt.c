/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bsd/string.h>

/* What outlives the daemon: parking it while it runs, and taking it up from a predecessor. */

/* ---- parking */

/* Returns whether the manager has it. */
static bool park(struct kvt_daemon *daemon, const char *name, int fd)
{
	int error = fd < 0 ? 0 : kvt_notify_park(&daemon->notify, name, fd);

	if (error)
		kvt_log_limited(&daemon->client_log, 0, daemon->real_ns, KVT_LOG_WARNING,
				"not_parked", "name=%s error=\"%s\" effect=\"lost when this daemon "
				"ends\"", name, strerror(-error));
	return !error;
}

/* With the size of a page: a pool of other pages is another pool. */
static const char *pool_name(char to[KVT_PARCEL_NAME_BYTES], uint32_t slab, uint64_t page_bytes)
{
	snprintf(to, KVT_PARCEL_NAME_BYTES, "pool.%u.%llu", slab, (unsigned long long)page_bytes);
	return to;
}

static void park_pool(struct kvt_daemon *daemon)
{
	struct kvt_pool_export export;
	char name[KVT_PARCEL_NAME_BYTES];

	if (daemon->pool.ops->export(&daemon->pool, &export) != 0)
		return;
	for (uint32_t i = 0; i < export.n_fds; i++)
		park(daemon, pool_name(name, i, daemon->pool.page_bytes), export.fds[i]);
}

/* Whose file it is. */
static const char *listen_name(const struct kvt_daemon *daemon)
{
	return daemon->socket_made ? "listen" : "socket";
}

void kvt_park_objects(struct kvt_daemon *daemon)
{
	if (!daemon->notify.store)
		return;
	if (daemon->takeover || (daemon->socket_made && !daemon->listen_kept))
		park(daemon, listen_name(daemon), daemon->listen_fd);
	daemon->n_parked += 3 + daemon->pool.n_slabs;
	if (daemon->adopted && !daemon->takeover) /* they are there already */
		return;
	park(daemon, "arena", daemon->arena.fd);
	park(daemon, "ledger", daemon->ledger.fd);
	if (daemon->oplog_tail.base)
		park(daemon, "log", daemon->oplog_tail.fd);
	park_pool(daemon);
}

static const char *lock_name(char to[KVT_PARCEL_NAME_BYTES], int made_directory)
{
	snprintf(to, KVT_PARCEL_NAME_BYTES, "lock.%d", made_directory);
	return to;
}

void kvt_park_lock(struct kvt_daemon *daemon)
{
	char name[KVT_PARCEL_NAME_BYTES];

	if (!daemon->notify.store)
		return;
	daemon->n_parked++;
	lock_name(name, daemon->lock.made_directory);
	if (!daemon->lock_parked)
		daemon->lock_parked = park(daemon, name, daemon->lock.fd);
}

int kvt_adopt_lock(struct kvt_daemon *daemon, int *ret_made_directory)
{
	char name[KVT_PARCEL_NAME_BYTES];
	int fd = -1;

	for (int made = 0; made < 2 && fd < 0; made++) {
		fd = kvt_parcels_take(&daemon->passed, lock_name(name, made));
		*ret_made_directory = made;
	}
	return fd;
}

void kvt_unpark_lock(struct kvt_daemon *daemon, int made_directory)
{
	char name[KVT_PARCEL_NAME_BYTES];

	kvt_notify_unpark(&daemon->notify, lock_name(name, made_directory));
	daemon->lock_parked = false;
}

static const struct {
	enum kvt_parcel_kind kind;
	size_t offset;
} session_fds[] = {
	{ KVT_PARCEL_SEGMENT, offsetof(struct kvt_session, segment.fd) },
	{ KVT_PARCEL_AREAS, offsetof(struct kvt_session, areas.fd) },
	{ KVT_PARCEL_PIDFD, offsetof(struct kvt_session, pidfd) },
	{ KVT_PARCEL_DOORBELL, offsetof(struct kvt_session, doorbell) },
	{ KVT_PARCEL_BELL, offsetof(struct kvt_session, bell) },
};
#define N_SESSION_FDS (sizeof(session_fds) / sizeof(session_fds[0]))

static int *session_fd(struct kvt_session *session, size_t i)
{
	return (int *)((char *)session + session_fds[i].offset);
}

/* Of a session that is to end with its daemon others need only what tells of its process's end. */
static bool outlives(const struct kvt_session *session, enum kvt_parcel_kind kind)
{
	return !session->no_resume || kind == KVT_PARCEL_PIDFD;
}

void kvt_park_session(struct kvt_daemon *daemon, struct kvt_session *session, int control)
{
	char name[KVT_PARCEL_NAME_BYTES];

	session->name_generation = kvt_core_session(daemon->core, session->index)->generation;
	if (!daemon->notify.store)
		return;
	if (daemon->n_parked + KVT_PARCELS_PER_SESSION > daemon->notify.store) {
		kvt_log_limited(&daemon->client_log, 0, daemon->real_ns, KVT_LOG_WARNING,
				"not_parked", "session=%u store=%u effect=\"the session ends with "
				"this daemon\" cure=\"raise FileDescriptorStoreMax=\"",
				session->index, daemon->notify.store);
		return;
	}
	for (size_t i = 0; i < N_SESSION_FDS; i++)
		if (outlives(session, session_fds[i].kind))
			park(daemon, kvt_parcel_name(name, session_fds[i].kind, session->index,
						     session->name_generation),
			     *session_fd(session, i));
	if (outlives(session, KVT_PARCEL_CONTROL) && daemon->config.park_connections)
		park(daemon, kvt_parcel_name(name, KVT_PARCEL_CONTROL, session->index,
					     session->name_generation), control);
	session->parked = true;
	daemon->n_parked += KVT_PARCELS_PER_SESSION;
}

void kvt_unpark_session(struct kvt_daemon *daemon, struct kvt_session *session)
{
	char name[KVT_PARCEL_NAME_BYTES];

	if (!session->parked)
		return;
	for (size_t i = 0; i < N_SESSION_FDS; i++)
		kvt_notify_unpark(&daemon->notify,
				  kvt_parcel_name(name, session_fds[i].kind, session->index,
						  session->name_generation));
	kvt_notify_unpark(&daemon->notify, kvt_parcel_name(name, KVT_PARCEL_CONTROL, session->index,
							   session->name_generation));
	session->parked = false;
	daemon->n_parked -= KVT_PARCELS_PER_SESSION;
}

static const enum kvt_parcel_kind member_kinds[KVT_PARCELS_PER_MEMBER] = {
	KVT_PARCEL_MEMBER_SEGMENT,
	KVT_PARCEL_MEMBER_PIDFD,
	KVT_PARCEL_MEMBER_CONTROL,
};

void kvt_park_member(struct kvt_daemon *daemon, struct kvt_member *member, int control)
{
	const int fds[KVT_PARCELS_PER_MEMBER] = { member->segment.fd, member->pidfd, control };
	char name[KVT_PARCEL_NAME_BYTES];

	if (!daemon->sessions[member->session].parked)
		return;
	if (daemon->n_parked + KVT_PARCELS_PER_MEMBER > daemon->notify.store) {
		kvt_log_limited(&daemon->client_log, 0, daemon->real_ns, KVT_LOG_WARNING,
				"not_parked", "session=%u store=%u effect=\"the group ends with "
				"this daemon\" cure=\"raise FileDescriptorStoreMax=\"",
				member->session, daemon->notify.store);
		return;
	}
	for (size_t i = 0; i < KVT_PARCELS_PER_MEMBER; i++)
		if (member_kinds[i] != KVT_PARCEL_MEMBER_CONTROL || daemon->config.park_connections)
			park(daemon, kvt_parcel_name(name, member_kinds[i], member->index,
						     member->name_generation), fds[i]);
	member->parked = true;
	daemon->n_parked += KVT_PARCELS_PER_MEMBER;
}

void kvt_unpark_member(struct kvt_daemon *daemon, struct kvt_member *member)
{
	char name[KVT_PARCEL_NAME_BYTES];

	if (!member->parked)
		return;
	for (size_t i = 0; i < KVT_PARCELS_PER_MEMBER; i++)
		kvt_notify_unpark(&daemon->notify,
				  kvt_parcel_name(name, member_kinds[i], member->index,
						  member->name_generation));
	member->parked = false;
	daemon->n_parked -= KVT_PARCELS_PER_MEMBER;
}

void kvt_park_taken(struct kvt_daemon *daemon)
{
	if (!daemon->notify.store)
		return;
	kvt_park_objects(daemon);
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++) {
		struct kvt_session *session = &daemon->sessions[i];
		uint32_t at = session->connection;

		if (session->used)
			kvt_park_session(daemon, session,
					 at ? daemon->connections[at - 1].fd : -1);
	}
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		struct kvt_member *member = &daemon->members[i];
		uint32_t at = member->connection;

		if (member->session)
			kvt_park_member(daemon, member,
					at ? daemon->connections[at - 1].fd : -1);
	}
}

void kvt_unpark_all(struct kvt_daemon *daemon)
{
	char name[KVT_PARCEL_NAME_BYTES];

	if (!daemon->notify.store)
		return;
	for (uint32_t i = 1; daemon->members && i <= daemon->core_config.max_members; i++)
		kvt_unpark_member(daemon, &daemon->members[i]);
	for (uint32_t i = 1; daemon->sessions && i <= daemon->core_config.max_sessions; i++)
		kvt_unpark_session(daemon, &daemon->sessions[i]);
	kvt_notify_unpark(&daemon->notify, "arena");
	kvt_notify_unpark(&daemon->notify, "ledger");
	kvt_notify_unpark(&daemon->notify, "log");
	kvt_notify_unpark(&daemon->notify, "listen");
	kvt_notify_unpark(&daemon->notify, "socket");
	if (daemon->lock_parked)
		kvt_unpark_lock(daemon, daemon->lock.made_directory);
	for (uint32_t i = 0; i < daemon->pool.n_slabs; i++)
		kvt_notify_unpark(&daemon->notify, pool_name(name, i, daemon->pool.page_bytes));
}

/* ---- handing over */

static void each_object(struct kvt_daemon *daemon, kvt_parcel_fn *each, void *context)
{
	struct kvt_pool_export export;
	char name[KVT_PARCEL_NAME_BYTES];

	each(context, "arena", daemon->arena.fd);
	each(context, "ledger", daemon->ledger.fd);
	each(context, "log", daemon->oplog_tail.fd);
	each(context, listen_name(daemon), daemon->listen_fd);
	each(context, lock_name(name, daemon->lock.made_directory), daemon->lock.fd);
	if (daemon->pool.ops->export(&daemon->pool, &export) != 0)
		return;
	for (uint32_t i = 0; i < export.n_fds; i++)
		each(context, pool_name(name, i, daemon->pool.page_bytes), export.fds[i]);
}

static void each_member(struct kvt_daemon *daemon, kvt_parcel_fn *each, void *context)
{
	char name[KVT_PARCEL_NAME_BYTES];

	for (uint32_t m = 1; m <= daemon->core_config.max_members; m++) {
		const struct kvt_member *member = &daemon->members[m];
		uint32_t generation = member->name_generation;

		if (!member->session)
			continue;
		each(context, kvt_parcel_name(name, KVT_PARCEL_MEMBER_SEGMENT, m, generation),
		     member->segment.fd);
		each(context, kvt_parcel_name(name, KVT_PARCEL_MEMBER_PIDFD, m, generation),
		     member->pidfd);
		if (member->connection)
			each(context, kvt_parcel_name(name, KVT_PARCEL_MEMBER_CONTROL, m,
						      generation),
			     daemon->connections[member->connection - 1].fd);
	}
}

static void each_session(struct kvt_daemon *daemon, kvt_parcel_fn *each, void *context)
{
	char name[KVT_PARCEL_NAME_BYTES];

	for (uint32_t s = 1; s <= daemon->core_config.max_sessions; s++) {
		struct kvt_session *session = &daemon->sessions[s];
		uint32_t generation = session->name_generation;

		if (!session->used)
			continue;
		for (size_t i = 0; i < N_SESSION_FDS; i++)
			if (outlives(session, session_fds[i].kind))
				each(context, kvt_parcel_name(name, session_fds[i].kind, s,
							      generation), *session_fd(session, i));
		if (session->connection && outlives(session, KVT_PARCEL_CONTROL))
			each(context, kvt_parcel_name(name, KVT_PARCEL_CONTROL, s, generation),
			     daemon->connections[session->connection - 1].fd);
	}
}

void kvt_each_parcel(struct kvt_daemon *daemon, const struct kvt_connection *asking,
		     kvt_parcel_fn *each, void *context)
{
	each_object(daemon, each, context);
	for (uint32_t i = 0; i < daemon->n_connections; i++)
		if (daemon->connections[i].state == KVT_CONNECTION_OBSERVER &&
		    &daemon->connections[i] != asking)
			each(context, "observer", daemon->connections[i].fd);
	each_session(daemon, each, context);
	each_member(daemon, each, context);
}

/* ---- taking up: objects */

static int take_object(struct kvt_daemon *daemon, struct kvt_object *object, const char *name,
		       uint64_t need, char *why)
{
	int fd = kvt_parcels_take(&daemon->passed, name), error;

	if (fd < 0) {
		snprintf(why, KVT_WHY_BYTES, "no %s was left", name);
		return -ESTALE;
	}
	error = kvt_object_take(object, fd);
	if (error) {
		snprintf(why, KVT_WHY_BYTES, "cannot map the %s that was left: %s", name,
			 strerror(-error));
		return error;
	}
	if (object->bytes == need)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "the %s that was left has %llu bytes, and these options want "
		 "%llu", name, (unsigned long long)object->bytes, (unsigned long long)need);
	return -ESTALE;
}

static int take_pool(struct kvt_daemon *daemon, char *why)
{
	struct kvt_pool *pool = &daemon->pool;
	const struct kvt_pool_backend_ops *ops = pool->ops;
	char name[KVT_PARCEL_NAME_BYTES];
	int fds[KVT_MAX_SLABS], error;
	uint32_t n = 0;

	pool->ops = NULL; /* not created yet */
	if (!ops->adopt) {
		snprintf(why, KVT_WHY_BYTES, "a %s pool ends with its daemon", ops->name);
		return -ESTALE;
	}
	while (n < KVT_MAX_SLABS) {
		fds[n] = kvt_parcels_take(&daemon->passed, pool_name(name, n, pool->page_bytes));
		if (fds[n] < 0)
			break;
		n++;
	}
	error = ops->adopt(pool, fds, n, why, KVT_WHY_BYTES);
	if (!error)
		pool->ops = ops;
	return error;
}

uint32_t kvt_adopt_n_pages(const struct kvt_daemon *daemon)
{
	const struct kvt_parcels *passed = &daemon->passed;
	uint32_t n_pages = 0;

	for (uint32_t i = 0; i < passed->n; i++)
		if (passed->at[i].fd >= 0 && strcmp(passed->at[i].name, "arena") == 0 &&
		    pread(passed->at[i].fd, &n_pages, sizeof(n_pages),
			  offsetof(struct kvt_arena_header, n_pages)) != sizeof(n_pages))
			n_pages = 0;
	return n_pages;
}

int kvt_adopt_objects(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = take_object(daemon, &daemon->arena, "arena", daemon->sizes.arena_bytes, why);
	int log;

	if (!error)
		error = take_object(daemon, &daemon->ledger, "ledger",
				    daemon->sizes.ledger_bytes, why);
	if (!error)
		error = kvt_core_adoptable(&daemon->core_config, daemon->arena.base,
					   daemon->ledger.base, why, KVT_WHY_BYTES);
	log = kvt_parcels_take(&daemon->passed, "log");
	if (log >= 0 && kvt_object_take(&daemon->oplog_tail, log) != 0)
		kvt_log(KVT_LOG_WARNING, "no_log_tail", "effect=\"the log ends\"");
	return error ? error : take_pool(daemon, why);
}

void kvt_adopt_say_gone(struct kvt_daemon *daemon)
{
	struct kvt_arena_header *arena = daemon->arena.base;

	if (daemon->arena.bytes >= sizeof(*arena))
		kvt_store_release(&arena->state, KVT_ARENA_GONE);
}

/* ---- taking up: sessions */

int kvt_adopt_fd(struct kvt_daemon *daemon, enum kvt_parcel_kind kind, uint32_t index,
		 uint32_t generation)
{
	char name[KVT_PARCEL_NAME_BYTES];

	return kvt_parcels_take(&daemon->passed, kvt_parcel_name(name, kind, index, generation));
}

static void take_descriptors(struct kvt_daemon *daemon, struct kvt_session *session,
			     const struct kvt_session_record *record)
{
	uint32_t index = session->index, generation = record->generation;
	int segment = kvt_adopt_fd(daemon, KVT_PARCEL_SEGMENT, index, generation);
	int areas = kvt_adopt_fd(daemon, KVT_PARCEL_AREAS, index, generation);

	session->areas.fd = -1;
	if (areas >= 0)
		kvt_object_take(&session->areas, areas);
	if (segment >= 0 && kvt_object_take(&session->segment, segment) == 0 &&
	    kvt_segment_check(session->segment.base, session->segment.bytes, session->areas.bytes,
			      &session->layout) != 0)
		kvt_object_destroy(&session->segment);
	/* In part, perhaps; what was handed over is yet to be. */
	session->parked = daemon->notify.store != 0 && !daemon->takeover;
	daemon->n_parked += session->parked ? KVT_PARCELS_PER_SESSION : 0;
	session->doorbell = kvt_adopt_fd(daemon, KVT_PARCEL_DOORBELL, index, generation);
	session->bell = kvt_adopt_fd(daemon, KVT_PARCEL_BELL, index, generation);
	session->pidfd = kvt_adopt_fd(daemon, KVT_PARCEL_PIDFD, index, generation);
}

static bool is_alive(const struct kvt_session_record *record)
{
	return record->state == KVT_SESSION_OPEN || record->state == KVT_SESSION_CLOSING;
}

void kvt_adopt_views(struct kvt_daemon *daemon)
{
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++) {
		struct kvt_core_view view;

		if (!daemon->sessions[i].open)
			continue;
		if (!is_alive(kvt_core_session(daemon->core, i))) {
			kvt_session_kill(daemon, &daemon->sessions[i], -ECONNRESET,
					 "the session was ended by a daemon that was to take over "
					 "and failed: connect again");
			continue;
		}
		kvt_session_view(&daemon->sessions[i], &view);
		kvt_core_session_attach(daemon->core, i, &view);
	}
	kvt_group_views(daemon);
}

/* The process, if it lives: by the pidfd that was left, else by number and start time. */
static bool find_process(struct kvt_session *session, const struct kvt_session_record *record)
{
	if (record->signs & KVT_SIGN_EXITED)
		return false;
	if (session->pidfd >= 0 || record->pid == 0) /* 0: not visible here, so it may live */
		return true;
	return kvt_peer_pidfd_of(record->pid, record->start_time, &session->pidfd) == 0;
}

static void resume_ring(struct kvt_daemon *daemon, struct kvt_session *session,
			const struct kvt_session_record *record)
{
	struct kvt_core_view view;

	kvt_session_view(session, &view);
	kvt_core_session_attach(daemon->core, session->index, &view);
	kvt_ring_end_init(&session->ring, session->segment.base, session->areas.base,
			  &session->layout);
	kvt_ring_end_resume(&session->ring, record->sq_taken, record->cq_done, record->last_cqe);
	session->deferred = record->n_pending + record->n_waiters;
}

static void adopt_session(struct kvt_daemon *daemon, uint32_t index,
			  const struct kvt_session_record *record)
{
	struct kvt_session *session = &daemon->sessions[index];
	bool lives = is_alive(record);
	uint32_t signs = 0;
	int control;

	session->index = index;
	session->used = true;
	session->generation = ++daemon->generation;
	session->name_generation = record->generation;
	session->pid = record->pid;
	session->quiet = record->signs & KVT_SIGN_QUIET;
	take_descriptors(daemon, session, record);
	control = kvt_adopt_fd(daemon, KVT_PARCEL_CONTROL, index, record->generation);
	if (find_process(session, record))
		session->processes = 1;
	else if (!(record->signs & KVT_SIGN_EXITED))
		signs |= KVT_SIGN_EXITED;
	lives = kvt_group_adopt(daemon, session) && lives; /* in this order: processes count */
	lives = lives && signs == 0 && session->segment.base && session->areas.base &&
		session->doorbell >= 0 && session->bell >= 0;
	if (lives)
		resume_ring(daemon, session, record);
	kvt_session_adopted(daemon, session, lives);
	if (control >= 0 && record->signs & KVT_SIGN_HANGUP)
		kvt_control_leave_unused(daemon, control);
	else if ((control < 0 || !kvt_control_adopted(daemon, control, session, NULL)) &&
		 !lives && !(record->signs & KVT_SIGN_HANGUP))
		signs |= KVT_SIGN_HANGUP; /* nobody is left who could hold that socket */
	kvt_group_adopted(daemon, session, lives);
	if (session->processes)
		signs &= ~(uint32_t)KVT_SIGN_EXITED;
	if (session->connections)
		signs &= ~(uint32_t)KVT_SIGN_HANGUP;
	if (signs)
		kvt_core_session_sign(daemon->core, index, signs, daemon->now_ns);
	else if (!lives) /* its descriptors are lost, so it cannot go on */
		kvt_core_session_kill(daemon->core, index, daemon->now_ns);
	if (lives) /* whatever it waited for may be there */
		kvt_session_ring_bell(daemon, session);
}

void kvt_adopt_sessions(struct kvt_daemon *daemon)
{
	int fd;

	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++) {
		const struct kvt_session_record *record = kvt_core_session(daemon->core, i);

		if (record->state != KVT_SESSION_FREE)
			adopt_session(daemon, i, record);
	}
	while ((fd = kvt_parcels_take(&daemon->passed, "observer")) >= 0)
		kvt_control_adopted(daemon, fd, NULL, NULL);
}

/* Whoever maps the old objects keeps them, and the store forgets them. That the sockets of old
 * sessions close tells their clients. */
void kvt_adopt_rest(struct kvt_daemon *daemon)
{
	struct kvt_parcels *passed = &daemon->passed;

	for (uint32_t i = 0; i < passed->n; i++) {
		enum kvt_parcel_kind kind = kvt_parcel_kind(passed->at[i].name);

		if (!kvt_parcel_outlives_cache(kind) && (passed->at[i].fd >= 0 || !daemon->adopted))
			kvt_notify_unpark(&daemon->notify, passed->at[i].name);
		if (passed->at[i].fd < 0 || !kvt_parcel_is_shared(kind))
			continue;
		kvt_control_leave_unused(daemon, passed->at[i].fd);
		passed->at[i].fd = -1;
	}
	kvt_parcels_close(passed);
}
