/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CONNECTION_H
#define KVT_SERVE_CONNECTION_H

#include "daemon/serve/state.h"

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
