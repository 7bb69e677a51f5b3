/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_NOTIFY_H
#define KVT_DAEMON_KEEP_NOTIFY_H

/**
 * @file notify.h
 * Messages to the keeper: sd_notify(3), watchdog, fd store and passed sockets. Implemented here
 * without libsystemd: the protocol is a datagram and three variables.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/keep/fdstore.h"

#define KVT_PROGRAM_PATH_BYTES 1024

/** The last upgrade, as `kvtrunkd --supervise` reports it. */
struct kvt_upgrade {
	uint64_t id; /* number of the request; 0: none */
	bool asked;  /* by this daemon, which the keeper is going to replace */
	bool trial;  /* this daemon is the new program: it must not start cold */
	char why[256]; /* why it failed; "": it did not */
};

struct kvt_notify {
	int fd;               /* -1: no keeper */
	bool pair;            /* the keeper is `kvtrunkd --supervise` */
	struct kvt_upgrade upgrade;
	uint64_t watchdog_ns; /* 0: no watchdog */
	uint32_t store;       /* capacity of the fd store; 0: it has none */
	bool hangs;           /* a wait timed out: wait no more until it has read something */
	uint32_t owed_bytes;
	char owed[256];       /* unsent messages, each with its 0, oldest first */
};

/** Our own `kvtrunkd --supervise` passes its end as "PID:FD" in this variable, instead of a name in
 * NOTIFY_SOCKET. It counts if PID is this process and FD a socket pair that our parent made. */
#define KVT_NOTIFY_PAIR "KVTRUNK_SUPERVISOR"

/** Passed beside it: "ID:try:" to the new program, "ID:done:WHY" to later daemons. */
#define KVT_NOTIFY_UPGRADE "KVTRUNK_UPGRADE"

/** Connect to the keeper that the environment names. Reads and unsets KVT_NOTIFY_PAIR or else
 * NOTIFY_SOCKET ('@': abstract), WATCHDOG_USEC, WATCHDOG_PID and FDSTORE. Without them: 0, and
 * messages go nowhere. -EINVAL with `why`: malformed; else the errno of socket() or connect(). */
int kvt_notify_open(struct kvt_notify *notify, char *why, size_t why_size);
void kvt_notify_close(struct kvt_notify *notify);

/** Send "NAME=VALUE\n..." lines. Never blocks; a full queue drops them. Returns whether sent. */
int kvt_notify_send(const struct kvt_notify *notify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/** Send lines that must arrive (READY=1). If the queue is full, perhaps of other services, the
 * lines are kept in their order for kvt_notify_owes(). If `owed` is full, the oldest are lost. */
void kvt_notify_tell(struct kvt_notify *notify, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** Send kept lines while there is room. True if some are left. */
bool kvt_notify_owes(struct kvt_notify *notify);

/** Store a duplicate of `fd` under this name (FDSTORE=1). It stays stored when the other end hangs
 * up (FDPOLL=0). Waits at most KVT_NOTIFY_PATIENCE_MS for a busy manager; after a timeout it does
 * not wait until the manager has read something. -EAGAIN: timeout; -ENOTCONN: no manager. */
int kvt_notify_keep(struct kvt_notify *notify, const char *name, int fd);
/* On a loaded machine a manager may be off its core for some tenths of a second. */
#define KVT_NOTIFY_PATIENCE_MS 1000
/** Remove descriptors of this name from the store. Errors as above. */
int kvt_notify_forget(struct kvt_notify *notify, const char *name);

/** Ask the keeper to replace this daemon by the program at `path` ("": the running one's path). The
 * successor knows the outcome (KVT_NOTIFY_UPGRADE). Errors as above. */
int kvt_notify_upgrade(struct kvt_notify *notify, uint64_t id, const char *path);

/** Take descriptors passed by LISTEN_FDS and LISTEN_FDNAMES: listening sockets and stored ones.
 * Unsets the variables. The list is empty without them, or if they name another process. -EINVAL
 * with `why`: malformed. */
int kvt_notify_passed(struct kvt_fdstore *ret_store, char *why, size_t why_size);

#endif
