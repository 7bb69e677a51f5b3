/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file connection.c
 * Slots of control connections: take, poll, send, drop. control.c interprets the messages.
 *
 * Called by control.c, session.c and adopt.c, so it calls none of them. A failed send
 * sets `unsent`, and control.c then ends the session or connection. control.c also tells sessions
 * and members of a hang-up (kvt_control_drop()).
 */
#include "daemon/serve/daemon.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/keep/rights.h"
#include "shm/assert.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* ---- slots */

static uint32_t slot_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return (uint32_t)(connection - daemon->connections);
}

static uint64_t tag_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return kvt_tag(KVT_TAG_CONNECTION, slot_of(daemon, connection), connection->generation);
}

void kvt_connection_hold(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	connection->hold = kvt_closer_hold(&daemon->closer, connection->peer.uid, &connection->fd,
					   1);
}

void kvt_connection_queue(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	kvt_readable_add(&daemon->readable, &connection->readable, connection->peer.uid);
}

void kvt_connection_leave_unused(struct kvt_daemon *daemon, int fd)
{
	struct kvt_leaving leaving = { .uid = KVT_UID_UNKNOWN, .n_fds = 1, .fds = { fd } };

	kvt_closer_leave(&daemon->closer, &leaving);
}

void kvt_connection_refuse_fds(const struct kvt_daemon *daemon, int fd)
{
	int off = 0;

	/* On older kernels the descriptors stay queued until the closer releases the socket. */
	if (!daemon->config.test_old_kernel)
		setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

struct kvt_connection *kvt_connection_take(struct kvt_daemon *daemon, int fd,
					   const struct kvt_peer *peer)
{
	struct kvt_connection *connection;

	KVT_ASSERT(daemon->n_free_connections > 0);
	connection = &daemon->connections[daemon->free_connections[--daemon->n_free_connections]];
	KVT_ASSERT(connection->fd < 0);
	*connection = (struct kvt_connection){
		.state = KVT_CONNECTION_HALF_OPEN,
		.fd = fd,
		.generation = ++daemon->generation,
		.peer = *peer,
		.accepted_ns = daemon->real_ns,
		.accepted_boot_ns = kvt_peer_boot_ns(),
	};
	kvt_connection_hold(daemon, connection);
	return connection;
}

struct kvt_connection *kvt_connection_adopted(struct kvt_daemon *daemon, int fd)
{
	struct kvt_connection *connection;
	struct kvt_peer peer;

	if (daemon->n_free_connections == 0 ||
	    kvt_peer_read(fd, daemon->admin_gid, &peer) != 0) {
		kvt_connection_leave_unused(daemon, fd);
		return NULL;
	}
	kvt_connection_refuse_fds(daemon, fd);
	connection = kvt_connection_take(daemon, fd, &peer);
	connection->state = KVT_CONNECTION_SESSION;
	connection->adopted = true;
	kvt_connection_arm(daemon, connection);
	return connection;
}

void kvt_connection_arm(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t events = POLLRDHUP;

	if (connection->armed || connection->taking)
		return;
	if (!connection->waiting && connection->state != KVT_CONNECTION_OVER)
		events |= POLLIN;
	/* Safe here: takes the lock of our end's wait queue, which no client can lengthen. */
	kvt_loop_poll(&daemon->loop, connection->fd, events, tag_of(daemon, connection));
	connection->armed = true;
}

void kvt_connection_rearm(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (kvt_loop_cancel(&daemon->loop, connection->fd, tag_of(daemon, connection),
			    connection->armed))
		return;
	connection->armed = false;
	kvt_connection_arm(daemon, connection);
}

static void forget_kind(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (connection->state == KVT_CONNECTION_HALF_OPEN)
		kvt_half_open_remove(&daemon->half_open, &connection->half_open);
	else if (connection->state == KVT_CONNECTION_OBSERVER)
		daemon->n_observers--;
}

/* Shut the socket down. If the lane is full, the closer's close() does it. */
static void shut(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t uid = connection->peer.uid;
	struct kvt_lane *lane = kvt_lane_for(daemon, &connection->wake, uid);

	if (lane)
		kvt_lane_ask(daemon, lane, NULL, uid, KVT_LANE_SHUT, 0, &connection->fd, 1, NULL,
			     0);
	else
		shutdown(connection->fd, SHUT_RDWR);
}

void kvt_connection_drop(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	struct kvt_leaving leaving = { .key = connection->hold, .uid = connection->peer.uid,
				       .n_fds = 1, .fds = { connection->fd } };

	if (connection->fd < 0)
		return;
	/* shutdown() wakes the client's watches, which may take long. */
	if (!connection->hung_up)
		shut(daemon, connection);
	if (kvt_loop_cancel(&daemon->loop, connection->fd, tag_of(daemon, connection),
			    connection->armed))
		leaving.tag = tag_of(daemon, connection);
	kvt_lane_guard(daemon, &leaving);
	kvt_closer_leave(&daemon->closer, &leaving);
	forget_kind(daemon, connection);
	kvt_readable_remove(&daemon->readable, &connection->readable);
	*connection = (struct kvt_connection){ .fd = -1, .generation = ++daemon->generation };
	KVT_ASSERT(daemon->n_free_connections < daemon->n_connections);
	daemon->free_connections[daemon->n_free_connections++] = slot_of(daemon, connection);
}

/* ---- sending */

/* Send without a lane. False with errno on failure. */
static bool send_here(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const void *message, size_t bytes, const int *fds, uint32_t n_fds)
{
	uint64_t stamp = kvt_cycles();
	bool sent = kvt_rights_send(connection->fd, message, bytes, fds, n_fds) == (ssize_t)bytes;

	kvt_wake_done(daemon, &connection->wake, stamp);
	return sent;
}

bool kvt_connection_ask(struct kvt_daemon *daemon, struct kvt_connection *connection,
			struct kvt_lane *lane, enum kvt_lane_op op, const void *message,
			size_t bytes, const int *fds, uint32_t n_fds)
{
	int all[KVT_RIGHTS_MOST];

	KVT_ASSERT(n_fds < KVT_RIGHTS_MOST);
	all[0] = connection->fd;
	if (n_fds)
		memcpy(all + 1, fds, n_fds * sizeof(int));
	return kvt_lane_ask(daemon, lane, &connection->wake, connection->peer.uid, op,
			    tag_of(daemon, connection), all, 1 + n_fds, message, bytes);
}

void kvt_connection_unsent(struct kvt_daemon *daemon, struct kvt_connection *connection, int error)
{
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns,
			KVT_LOG_WARNING, "send_failed",
			"pid=%d error=\"%s\" why=\"%s\"", (int)connection->peer.pid,
			strerror(error), error == EAGAIN ? "the client does not read its socket"
							 : "the client is gone");
	connection->unsent = true;
}

bool kvt_connection_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const void *message, size_t bytes, const int *fds, uint32_t n_fds)
{
	struct kvt_lane *lane = kvt_lane_for(daemon, &connection->wake, connection->peer.uid);

	if (lane && kvt_connection_ask(daemon, connection, lane, KVT_LANE_SEND, message, bytes, fds,
				       n_fds))
		return true;
	if (!connection->wake.outstanding &&
	    send_here(daemon, connection, message, bytes, fds, n_fds))
		return true;
	kvt_host_refuses(daemon, "sendmsg", errno);
	kvt_connection_unsent(daemon, connection, errno);
	return false;
}

void kvt_message_fill(struct kvt_message *head, uint16_t type, size_t bytes, int result,
		      uint64_t cookie)
{
	*head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = type,
		.version = KVT_ABI_MAJOR,
		.bytes = (uint32_t)bytes,
		.result = result,
		.cookie = cookie,
	};
}

void kvt_connection_goodbye(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    int error, const char *text)
{
	struct kvt_message_refused message = { .state = KVT_ATTACH_OK };

	kvt_message_fill(&message.head, KVT_MSG_GOODBYE, sizeof(message), error, 0);
	strlcpy(message.text, text, sizeof(message.text));
	kvt_connection_send(daemon, connection, &message, sizeof(message), NULL, 0);
}

static void greet(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	struct kvt_lane *lane = kvt_lane_for(daemon, &connection->wake, connection->peer.uid);
	struct kvt_message_resumed message = {
		.generation = kvt_core_arena(daemon->core)->generation,
		.daemon_pid = getpid(),
	};

	/* Also if a request is unread: the predecessor's lane may still remove it. */
	kvt_message_fill(&message.head, KVT_MSG_RESUMED, sizeof(message), 0, 0);
	/* If the socket is full, an earlier RESUMED is still unread; drop this one. */
	if (!lane || !kvt_connection_ask(daemon, connection, lane, KVT_LANE_TELL, &message,
					 sizeof(message), NULL, 0))
		send_here(daemon, connection, &message, sizeof(message), NULL, 0);
}

void kvt_connections_greet(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; daemon->adopted && i < daemon->n_connections; i++)
		if (daemon->connections[i].adopted)
			greet(daemon, &daemon->connections[i]);
}
