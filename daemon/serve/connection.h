/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CONNECTION_H
#define KVT_SERVE_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include <bsd/sys/queue.h>

#include "daemon/serve/connections.h"
#include "daemon/serve/peer.h"
#include "kvtrunk_wire_admin.h"

struct kvt_daemon;
struct kvt_member;

struct kvt_connection {
	enum kvt_connection_state state;
	int fd;
	uint32_t generation;
	struct kvt_member *member; /* a session's process, NULL: none */
	struct kvt_peer peer;
	TAILQ_ENTRY(kvt_connection) half_open; /* link in the queue of half-open ones */
	TAILQ_ENTRY(kvt_connection) readable;
	enum kvt_connection_state queue; /* queue `readable` that has it; FREE: none */
	uint64_t accepted_ns; /* time of accept(), monotonic */
	uint64_t accepted_boot_ns;
	bool armed;
	bool hung_up; /* POLLHUP: no process has the other end */
	bool over;    /* hung up: its last messages are taken, then it is dropped */
	bool waiting; /* answer `request` once it is true */
	bool unsent;  /* a message could not be sent */
	bool subscribed; /* to the feed */
	uint32_t n_last; /* messages taken since it hung up */
	struct kvt_message_admin request;
};

/** Take a slot for `fd`, which has sent no message yet. A slot must be free. */
struct kvt_connection *kvt_connection_take(struct kvt_daemon *daemon, int fd,
					   const struct kvt_peer *peer);
/** Queue a connection that has a message. */
void kvt_connection_queue(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Take it out of the queue, if it is in one. */
void kvt_connection_unqueue(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Note that its first message came. */
void kvt_connection_is_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    enum kvt_connection_state state);
/** Arm the poll for what the connection waits for. */
void kvt_connection_arm(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Replace an armed poll by one for what the connection waits for now: here, or in
 * kvt_control_event(), which gets -ECANCELED. */
void kvt_connection_rearm(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Close and free the slot, without telling session or member: see kvt_control_drop(). */
void kvt_connection_drop(struct kvt_daemon *daemon, struct kvt_connection *connection);
/** Have the kernel refuse descriptors that are sent to this socket, or to one accepted from it. */
void kvt_connection_refuse_fds(int fd);
/** Fill the head of a message of `bytes` bytes. `cookie`: of the request; 0: there is none. */
void kvt_message_fill(struct kvt_message *head, uint16_t type, size_t bytes, int result,
		      uint64_t cookie);
/** Send one message. Never blocks. False: the socket is full; connection->unsent is set. */
bool kvt_connection_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const void *message, size_t bytes, const int *fds, uint32_t n_fds);
/** Send GOODBYE with a text. */
void kvt_connection_goodbye(struct kvt_daemon *daemon, struct kvt_connection *connection,
			    int error, const char *text);

#endif
