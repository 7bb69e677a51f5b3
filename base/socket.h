/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_SOCKET_H
#define KVT_BASE_SOCKET_H

/**
 * @file socket.h
 * The path of a program's socket, which one process has at a time: it locks (flock) PATH.lock
 * until it ends. A socket file that the lock holder finds there is a dead process's.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

struct kvt_name {
	char path[108]; /* empty: not held */
	char lock_path[116];
	int lock;
};

/** Lock the path. -EADDRINUSE: another process has it; -EINVAL: not of 1 to 107 bytes; other
 * errors: of open(). */
int kvt_name_take(struct kvt_name *name, const char *path);
/** Bind a socket of this type there, with mode 0600. Returns its descriptor. -EEXIST: there is a
 * file that is no socket; other errors: of socket() and bind(). */
int kvt_name_bind(const struct kvt_name *name, int type);
/** strerror() of a positive errno of the two, with the cure where there is one. */
const char *kvt_name_text(int error);
/** Remove socket and lock, if they are still ours. All zero: do nothing. */
void kvt_name_release(struct kvt_name *name);

/** The process that listens at the path is stopped, as by SIGSTOP: its number. 0: it runs, or it
 * cannot be told. */
int kvt_socket_stopped(const char *path);

/** Send one message with a descriptor. False: not sent, for it would wait, or the peer is gone. */
bool kvt_send_with_fd(int to, const void *message, size_t bytes, int fd);

#endif
