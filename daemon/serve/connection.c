/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file connection.c
 * Slots of control connections: take, poll, send, drop. control.c interprets the messages.
 *
 * Called by control.c, session.c and adopt.c, so it calls none of them. A failed send
 * sets `unsent`, and control.c then ends the session or connection. control.c also tells sessions
 * and members of a hang-up (kvt_control_drop()).
 */

#include "daemon/serve/connection.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/keep/rights.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/state.h"
#include "shm/assert.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

/* ---- slots */

static uint32_t slot_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return (uint32_t)(connection - daemon->connections.slots);
}

static uint64_t tag_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return kvt_tag(KVT_TAG_CONNECTION, slot_of(daemon, connection), connection->generation);
}

void kvt_connection_queue(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	KVT_ASSERT(!connection->queue && connection->state);
	connection->queue = connection->state;
	TAILQ_INSERT_TAIL(&daemon->connections.readable[connection->queue], connection, readable);
	daemon->connections.n_readable++;
}

void kvt_connection_unqueue(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (!connection->queue)
		return;
	KVT_ASSERT(daemon->connections.n_readable > 0);
	TAILQ_REMOVE(&daemon->connections.readable[connection->queue], connection, readable);
	daemon->connections.n_readable--;
	connection->queue = KVT_CONNECTION_FREE;
}

void kvt_connection_refuse_fds(int fd)
{
	int off = 0;

	/* On older kernels take_message() drops them. */
	setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

struct kvt_connection *kvt_connection_take(struct kvt_daemon *daemon, int fd,
					   const struct kvt_peer *peer)
{
	struct kvt_connection *connection;

	KVT_ASSERT(daemon->connections.n_free > 0);
	connection =
		&daemon->connections.slots[daemon->connections.free[--daemon->connections.n_free]];
	KVT_ASSERT(connection->fd < 0 && !connection->queue);
	*connection = (struct kvt_connection){
		.state = KVT_CONNECTION_HALF_OPEN,
		.fd = fd,
		.generation = ++daemon->generation,
		.peer = *peer,
		.accepted_ns = daemon->clock.real_ns,
		.accepted_boot_ns = kvt_peer_boot_ns(),
	};
	TAILQ_INSERT_TAIL(&daemon->connections.half_open, connection, half_open);
	daemon->connections.n_half_open++;
	return connection;
}

void kvt_connection_is_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    enum kvt_connection_state state)
{
	KVT_ASSERT(connection->state == KVT_CONNECTION_HALF_OPEN &&
		   daemon->connections.n_half_open > 0);
	TAILQ_REMOVE(&daemon->connections.half_open, connection, half_open);
	daemon->connections.n_half_open--;
	KVT_ASSERT(state != KVT_CONNECTION_FREE && state < KVT_CONNECTION_STATES);
	daemon->connections.n_observers += state == KVT_CONNECTION_OBSERVER;
	connection->state = state;
}

void kvt_connection_arm(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t events = POLLRDHUP;

	if (connection->armed)
		return;
	if (!connection->waiting && connection->state != KVT_CONNECTION_OVER)
		events |= POLLIN;
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

void kvt_connection_drop(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (connection->fd < 0)
		return;
	if (connection->state == KVT_CONNECTION_HALF_OPEN)
		kvt_connection_is_open(daemon, connection, KVT_CONNECTION_OVER);
	else if (connection->state == KVT_CONNECTION_OBSERVER)
		daemon->connections.n_observers--;
	KVT_ASSERT(daemon->connections.n_observers < daemon->connections.n_slots);
	kvt_connection_unqueue(daemon, connection);
	kvt_feed_leave(daemon, connection);
	/* close() is not enough: until its end the poll refers to the socket. */
	if (!connection->hung_up)
		shutdown(connection->fd, SHUT_RDWR);
	kvt_loop_cancel(&daemon->loop, connection->fd, tag_of(daemon, connection),
			connection->armed);
	close(connection->fd);
	*connection = (struct kvt_connection){ .fd = -1, .generation = ++daemon->generation };
	KVT_ASSERT(daemon->connections.n_free < daemon->connections.n_slots);
	daemon->connections.free[daemon->connections.n_free++] = slot_of(daemon, connection);
}

/* ---- sending */

bool kvt_connection_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const void *message, size_t bytes, const int *fds, uint32_t n_fds)
{
	if (kvt_rights_send(connection->fd, message, bytes, fds, n_fds) == (ssize_t)bytes)
		return true;
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
			errno == EPIPE ? KVT_LOG_INFO : KVT_LOG_WARNING, "send_failed",
			"pid=%d error=\"%s\" why=\"%s\"", (int)connection->peer.pid,
			strerror(errno), errno == EAGAIN ? "the client does not read its socket"
							 : "the client is gone");
	kvt_host_refuses(daemon, "sendmsg", errno);
	connection->unsent = true;
	return false;
}

void kvt_message_fill(struct kvt_message *head, uint16_t type, size_t bytes, int result,
		      uint64_t cookie)
{
	KVT_ASSERT(bytes >= sizeof(*head) && bytes <= KVT_MESSAGE_MAX);
	*head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = type,
		.version = KVT_ABI,
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
