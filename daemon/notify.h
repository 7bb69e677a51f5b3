/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_NOTIFY_H
#define KVT_DAEMON_NOTIFY_H

/**
 * @file notify.h
 * The service manager's side: sd_notify(3), watchdog and passed sockets, spoken by hand (the
 * protocol is a datagram and three variables, and a library would be one more dependency).
 */

#include <stddef.h>
#include <stdint.h>

struct kvt_notify {
	int fd;               /* -1: nobody to tell */
	uint64_t watchdog_ns; /* 0: no watchdog */
};

/** Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, and take them out of the environment. A
 * socket name that starts with '@' is abstract. -EINVAL with `why` if a variable is malformed;
 * errno of socket() or connect() if nobody listens. Without the variables: 0, nobody is told. */
int kvt_notify_open(struct kvt_notify *notify, char *why, size_t why_size);
void kvt_notify_close(struct kvt_notify *notify);

/** Send "NAME=VALUE\n..." lines. Never blocks; a full queue drops them. Returns whether sent. */
int kvt_notify_send(const struct kvt_notify *notify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/** Descriptor passed by LISTEN_FDS, or -1 for none. It must be a listening SOCK_SEQPACKET unix
 * socket and the only one, else -EINVAL with `why`. */
int kvt_notify_listen_fd(int *ret_fd, char *why, size_t why_size);

#endif
