/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stored.c
 * Descriptors that outlive the daemon: stored with its keeper, taken by its successor.
 *
 * The two functions each_of_...() are the only list of them. member.c stores those of processes,
 * start.c those of the instance; adopt.c takes them.
 */

#include "daemon/serve/stored.h"

#include <string.h>

#include "daemon/core/core.h"
#include "daemon/serve/member.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"

/* `fd`: the daemon's variable, negative if there is none. `kept`: the keeper has it already. */
typedef void stored_fn(struct kvt_daemon *daemon, const char *name, int *fd, bool kept);

static const char *lock_name(int made_directory)
{
	return made_directory ? "lock.1" : "lock.0";
}

/* The name holds the file's identity: a successor can tell whether the socket still has it. */
static const char *listen_name(const struct kvt_daemon *daemon, char to[KVT_STORED_NAME_BYTES])
{
	return kvt_stored_name(to, KVT_STORED_LISTEN, daemon->listener.file[0],
			       daemon->listener.file[1]);
}

static void each_of_instance(struct kvt_daemon *daemon, int *slabs, uint32_t n_slabs,
			     stored_fn *each)
{
	char name[KVT_STORED_NAME_BYTES];
	int none = -1;

	each(daemon, "arena", &daemon->arena.fd, daemon->adopted);
	each(daemon, "ledger", &daemon->ledger.fd, daemon->adopted);
	each(daemon, "log", &daemon->oplog_tail.fd, daemon->adopted);
	/* The name holds the page size: a pool of other pages is another pool. */
	for (uint32_t i = 0; i < n_slabs; i++)
		each(daemon, kvt_stored_name(name, KVT_STORED_POOL, i, daemon->pool.page_bytes),
		     &slabs[i], daemon->adopted);
	/* A passed socket is the service manager's. */
	each(daemon, listen_name(daemon, name), daemon->listener.made ? &daemon->listener.fd :
	     &none, daemon->kept.has_socket);
	each(daemon, lock_name(daemon->lock.made_directory), &daemon->lock.fd,
	     daemon->kept.has_lock);
}

/* Rank 0 has the session's descriptors, too. Only some sessions have the last one, a mirror. */
static uint32_t count_of(const struct kvt_daemon *daemon, const struct kvt_member *member)
{
	if (member->rank)
		return KVT_STORED_PER_MEMBER;
	return KVT_STORED_PER_SESSION - (daemon->sessions.slots[member->session].mirror < 0);
}

/* A no_resume session leaves only what tells of the end of its processes. */
static void each_of_member(struct kvt_daemon *daemon, struct kvt_member *member, stored_fn *each)
{
	struct kvt_session *session = &daemon->sessions.slots[member->session];
	const struct {
		enum kvt_stored_kind kind;
		int *fd;
	} places[KVT_STORED_PER_SESSION] = {
		{ KVT_STORED_SEGMENT, &member->segment.fd },
		{ KVT_STORED_PIDFD, &member->pidfd },
		{ KVT_STORED_AREAS, &session->areas.fd },
		{ KVT_STORED_DOORBELL, &session->doorbell },
		{ KVT_STORED_BELL, &session->bell },
		{ KVT_STORED_MIRROR, &session->mirror },
	};
	size_t n = member->rank ? KVT_STORED_PER_MEMBER : KVT_STORED_PER_SESSION;
	char name[KVT_STORED_NAME_BYTES];

	for (size_t i = 0; i < n; i++)
		if (!session->no_resume || places[i].kind == KVT_STORED_PIDFD)
			each(daemon, kvt_stored_name(name, places[i].kind, member->index,
						     session->name_generation),
			     places[i].fd, false);
}

/* ---- storing */

static void keep(struct kvt_daemon *daemon, const char *name, int *fd, bool kept)
{
	int error = *fd < 0 || kept ? 0 : kvt_notify_keep(&daemon->notify, name, *fd);

	if (error)
		kvt_log_limited(&daemon->client_log, 0, daemon->clock.real_ns, KVT_LOG_WARNING,
				"not_kept", "name=%s error=\"%s\" effect=\"lost when this daemon "
				"ends\"", name, strerror(-error));
}

static void count(struct kvt_daemon *daemon, const char *name, int *fd, bool kept)
{
	(void)name, (void)kept;
	daemon->kept.n += *fd >= 0;
}

static void forget(struct kvt_daemon *daemon, const char *name, int *fd, bool kept)
{
	(void)fd, (void)kept;
	kvt_notify_forget(&daemon->notify, name);
}

void kvt_keep_instance(struct kvt_daemon *daemon)
{
	struct kvt_pool_export export = { 0 };

	if (!daemon->notify.store)
		return;
	if (daemon->pool.ops->export(&daemon->pool, &export) != 0)
		export.n_fds = 0;
	each_of_instance(daemon, export.fds, export.n_fds, keep);
	each_of_instance(daemon, export.fds, export.n_fds, count);
	daemon->kept.has_lock = true;
}

void kvt_forget_lock(struct kvt_daemon *daemon, int made_directory)
{
	kvt_notify_forget(&daemon->notify, lock_name(made_directory));
	daemon->kept.has_lock = false;
}

void kvt_keep_socket(struct kvt_daemon *daemon, const uint64_t old_file[2], bool and_lock)
{
	char name[KVT_STORED_NAME_BYTES];

	if (!daemon->notify.store)
		return;
	kvt_notify_forget(&daemon->notify, kvt_stored_name(name, KVT_STORED_LISTEN, old_file[0],
							   old_file[1]));
	keep(daemon, listen_name(daemon, name), &daemon->listener.fd, false);
	if (!and_lock)
		return;
	kvt_notify_forget(&daemon->notify, lock_name(0));
	kvt_notify_forget(&daemon->notify, lock_name(1));
	keep(daemon, lock_name(daemon->lock.made_directory), &daemon->lock.fd, false);
}

static bool has_room(struct kvt_daemon *daemon, const struct kvt_member *member)
{
	if (daemon->kept.n + count_of(daemon, member) <= daemon->notify.store)
		return true;
	kvt_log_limited(&daemon->client_log, 0, daemon->clock.real_ns, KVT_LOG_WARNING, "not_kept",
			"session=%u store=%u effect=\"the %s ends with this daemon\" "
			"cure=\"raise FileDescriptorStoreMax=\"", member->session,
			daemon->notify.store, member->rank ? "group" : "session");
	return false;
}

void kvt_keep_member(struct kvt_daemon *daemon, struct kvt_member *member)
{
	if (!daemon->notify.store || (member->rank && !daemon->members[member->session].kept) ||
	    !has_room(daemon, member))
		return;
	each_of_member(daemon, member, keep);
	member->kept = true;
	daemon->kept.n += count_of(daemon, member);
}

void kvt_forget_member(struct kvt_daemon *daemon, struct kvt_member *member)
{
	if (!member->kept)
		return;
	each_of_member(daemon, member, forget);
	member->kept = false;
	KVT_ASSERT(daemon->kept.n >= count_of(daemon, member));
	daemon->kept.n -= count_of(daemon, member);
}

void kvt_forget_all(struct kvt_daemon *daemon)
{
	int slabs[KVT_MAX_SLABS];

	if (!daemon->notify.store)
		return;
	for (uint32_t i = 1; daemon->members && i <= kvt_core_members(&daemon->core_config); i++)
		kvt_forget_member(daemon, &daemon->members[i]);
	each_of_instance(daemon, slabs, daemon->pool.n_slabs, forget);
	daemon->kept.has_lock = false;
}

/* ---- taking */

static void take(struct kvt_daemon *daemon, const char *name, int *fd, bool kept)
{
	(void)kept;
	if (*fd < 0)
		*fd = kvt_fdstore_take(&daemon->kept.passed, name);
}

void kvt_take_instance(struct kvt_daemon *daemon, int slabs[KVT_MAX_SLABS])
{
	each_of_instance(daemon, slabs, KVT_MAX_SLABS, take);
}

void kvt_take_member(struct kvt_daemon *daemon, struct kvt_member *member)
{
	each_of_member(daemon, member, take);
	if (member->kept || !daemon->notify.store)
		return;
	member->kept = true; /* in part, perhaps */
	daemon->kept.n += count_of(daemon, member);
}
