/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_NOTIFY_H
#define KVT_DAEMON_NOTIFY_H

/**
 * @file notify.h
 * The service manager's side: sd_notify(3), watchdog and passed sockets, spoken by hand (the
 * protocol is a datagram and three variables, and a library would be one more dependency).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/park.h"

struct kvt_notify {
	int fd;               /* -1: nobody to tell */
	uint64_t watchdog_ns; /* 0: no watchdog */
	uint32_t store;       /* descriptors that the manager keeps at most; 0: it did not say */
	bool hangs;           /* it kept us waiting in vain: nobody waits again before it reads */
	uint32_t owed_bytes;
	char owed[256];       /* messages that found no room, each with its 0, the oldest first */
};

/** Our own `kvtrunkd --supervise` passes its end as "PID:FD" in this variable, instead of a name in
 * NOTIFY_SOCKET. It counts if PID is this process and FD a socket pair that our parent made. */
#define KVT_NOTIFY_PAIR "KVTRUNK_SUPERVISOR"

/** Read KVT_NOTIFY_PAIR or else NOTIFY_SOCKET, and WATCHDOG_USEC, WATCHDOG_PID and FDSTORE; take
 * them out of the environment. A socket name that starts with '@' is abstract. -EINVAL with `why`
 * if a variable is malformed; errno of socket() or connect() if nobody listens. Without the
 * variables: 0, nobody is told. */
int kvt_notify_open(struct kvt_notify *notify, char *why, size_t why_size);
void kvt_notify_close(struct kvt_notify *notify);

/** Send "NAME=VALUE\n..." lines. Never blocks; a full queue drops them. Returns whether sent. */
int kvt_notify_send(const struct kvt_notify *notify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/** The same for what the manager must hear (READY=1: it waits for that). A queue may be full of
 * what others said; then the lines are kept, in their order, and kvt_notify_owes() sends them. Of
 * more than fit, the oldest are given up. */
void kvt_notify_tell(struct kvt_notify *notify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** Send what is kept if there is room now. Returns whether some still is. */
bool kvt_notify_owes(struct kvt_notify *notify);

/** Have the manager keep a duplicate of `fd` under this name (FDSTORE=1), whatever happens to the
 * other end of it (FDPOLL=0). Waits at most KVT_NOTIFY_PATIENCE_MS for a busy manager, and after
 * that not again until it has read something. -EAGAIN: it was busier than that; -ENOTCONN: there is
 * none. */
int kvt_notify_park(struct kvt_notify *notify, const char *name, int fd);
/* On a loaded machine a manager may be off its core for some tenths of a second. */
#define KVT_NOTIFY_PATIENCE_MS 1000
/** Have it forget what it keeps under this name. Errors as above. */
int kvt_notify_unpark(struct kvt_notify *notify, const char *name);

/** Descriptors passed by LISTEN_FDS with the names of LISTEN_FDNAMES: sockets to listen on, and
 * what was parked. Takes the variables out of the environment. -EINVAL with `why` if they are
 * malformed; without them, or if they are for another process, the list is empty. */
int kvt_notify_passed(struct kvt_parcels *ret_parcels, char *why, size_t why_size);

#endif
