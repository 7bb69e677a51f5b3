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

static void park(struct kvt_daemon *daemon, const char *name, int fd)
{
	int error = kvt_notify_park(&daemon->notify, name, fd);

	if (error)
		kvt_log_limited(&daemon->client_log, daemon->real_ns, KVT_LOG_WARNING,
				"not_parked", "name=%s error=\"%s\" effect=\"lost when this daemon "
				"ends\"", name, strerror(-error));
}

static void park_pool(struct kvt_daemon *daemon)
{
	struct kvt_pool_export export;
	char name[KVT_PARCEL_NAME_BYTES];

	if (daemon->pool.ops->export(&daemon->pool, &export) != 0)
		return;
	for (uint32_t i = 0; i < export.n_fds; i++) {
		snprintf(name, sizeof(name), "pool.%u", i);
		park(daemon, name, export.fds[i]);
	}
}

void kvt_park_objects(struct kvt_daemon *daemon)
{
	if (!daemon->notify.store)
		return;
	if (daemon->socket_made && !daemon->listen_kept)
		park(daemon, "listen", daemon->listen_fd);
	daemon->n_parked = 3 + daemon->pool.n_slabs;
	if (daemon->adopted) /* they are there already */
		return;
	park(daemon, "arena", daemon->arena.fd);
	park(daemon, "ledger", daemon->ledger.fd);
	park_pool(daemon);
}

static const struct {
	enum kvt_parcel_kind kind;
	size_t offset;
} session_fds[] = {
	{ KVT_PARCEL_SEGMENT, offsetof(struct kvt_session, segment.fd) },
	{ KVT_PARCEL_PIDFD, offsetof(struct kvt_session, pidfd) },
	{ KVT_PARCEL_DOORBELL, offsetof(struct kvt_session, doorbell) },
	{ KVT_PARCEL_BELL, offsetof(struct kvt_session, bell) },
};
#define N_SESSION_FDS (sizeof(session_fds) / sizeof(session_fds[0]))

static int *session_fd(struct kvt_session *session, size_t i)
{
	return (int *)((char *)session + session_fds[i].offset);
}

void kvt_park_session(struct kvt_daemon *daemon, struct kvt_session *session, int control)
{
	char name[KVT_PARCEL_NAME_BYTES];

	session->name_generation = kvt_core_session(daemon->core, session->index)->generation;
	if (!daemon->notify.store)
		return;
	if (daemon->n_parked + KVT_PARCELS_PER_SESSION > daemon->notify.store) {
		kvt_log_limited(&daemon->client_log, daemon->real_ns, KVT_LOG_WARNING,
				"not_parked", "session=%u store=%u effect=\"the session ends with "
				"this daemon\" cure=\"raise FileDescriptorStoreMax=\"",
				session->index, daemon->notify.store);
		return;
	}
	for (size_t i = 0; i < N_SESSION_FDS; i++)
		park(daemon, kvt_parcel_name(name, session_fds[i].kind, session->index,
					     session->name_generation), *session_fd(session, i));
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

void kvt_unpark_all(struct kvt_daemon *daemon)
{
	char name[KVT_PARCEL_NAME_BYTES];

	if (!daemon->notify.store)
		return;
	for (uint32_t i = 1; daemon->sessions && i <= daemon->core_config.max_sessions; i++)
		kvt_unpark_session(daemon, &daemon->sessions[i]);
	kvt_notify_unpark(&daemon->notify, "arena");
	kvt_notify_unpark(&daemon->notify, "ledger");
	kvt_notify_unpark(&daemon->notify, "listen");
	for (uint32_t i = 0; i < daemon->pool.n_slabs; i++) {
		snprintf(name, sizeof(name), "pool.%u", i);
		kvt_notify_unpark(&daemon->notify, name);
	}
}

/* ---- taking up */

/* Nothing of it can be used: whoever maps the old objects keeps them, and the store forgets them.
 * That the sockets of old sessions close tells their clients. */
void kvt_adopt_nothing(struct kvt_daemon *daemon)
{
	struct kvt_parcels *passed = &daemon->passed;

	for (uint32_t i = 0; i < passed->n; i++)
		if (passed->at[i].fd >= 0)
			kvt_notify_unpark(&daemon->notify, passed->at[i].name);
	kvt_parcels_close(passed);
}
