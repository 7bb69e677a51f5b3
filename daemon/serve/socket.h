/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_SOCKET_H
#define KVT_SERVE_SOCKET_H

#include "daemon/serve/state.h"

/** Bind and listen at socket_path. -EADDRINUSE with `why`: a process listens there. */
int kvt_socket_bind(struct kvt_daemon *daemon, char *why);
/** Take listen_fd, which the service manager or a predecessor bound. */
void kvt_socket_passed(struct kvt_daemon *daemon);
/** Begin to watch the name. If it is gone, bind another socket. */
void kvt_socket_watch(struct kvt_daemon *daemon);
/** The file has changed. */
void kvt_socket_event(struct kvt_daemon *daemon);
/** Make the name again if it is gone or leads elsewhere. Returns when to look again. */
uint64_t kvt_socket_look(struct kvt_daemon *daemon);
/** Look if it is time. Returns when the next look is due. */
uint64_t kvt_socket_due(struct kvt_daemon *daemon);
/** Remove the name if we made it, and it leads to our socket. */
void kvt_socket_unlink(struct kvt_daemon *daemon);

#endif
