/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_RIGHTS_H
#define KVT_DAEMON_KEEP_RIGHTS_H

/**
 * @file rights.h
 * One message on a Unix socket, with descriptors (SCM_RIGHTS) and the sender's pid
 * (SCM_CREDENTIALS). Neither call blocks, whatever the socket's mode.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define KVT_RIGHTS_MOST 24 /* descriptors of one message: WELCOME has 6 and one for each slab */

/** Ancillary data of a received message. */
struct kvt_rights {
	int flags;    /* MSG_TRUNC, MSG_CTRUNC: the message or its descriptors did not fit */
	pid_t sender; /* -1: not sent; 0: not visible in this PID namespace */
	uint32_t n_fds;
	/* The caller's, closed on exec. Descriptors also fill the room of absent credentials. */
	int fds[KVT_RIGHTS_MOST + CMSG_SPACE(sizeof(struct ucred)) / sizeof(int)];
};

/** Send `bytes` bytes and duplicates of `n_fds` <= KVT_RIGHTS_MOST descriptors. Returns what
 * sendmsg() does, with its errno; no SIGPIPE. */
ssize_t kvt_rights_send(int socket, const void *data, size_t bytes, const int *fds, uint32_t n_fds);
/** Receive into `size` bytes, with room for at least `most_fds` <= KVT_RIGHTS_MOST descriptors.
 * With 0 and SO_PASSCRED there is room for none. `flags`: of recvmsg(). Returns what recvmsg()
 * does, with its errno; *ret_rights is untouched if that is negative. */
ssize_t kvt_rights_receive(int socket, void *data, size_t size, int flags, uint32_t most_fds,
			   struct kvt_rights *ret_rights);

#endif
