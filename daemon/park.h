/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_PARK_H
#define KVT_DAEMON_PARK_H

/**
 * @file park.h
 * Descriptors with names: what outlives a daemon.
 *
 * Everything that a client sees of an instance is behind descriptors: arena, ledger, pool, the
 * listening socket, and of each session its segment, its areas, its pidfd, its doorbell, its bell
 * and its control socket. A daemon parks them with its service manager (or `kvtrunkd --supervise`,
 * which speaks the same protocol) as soon as they exist, and its successor gets them back, so that
 * a client does not even lose its connection when the daemon is killed.
 *
 *     arena  ledger  pool.N.PAGE_BYTES  log
 *     listen  socket                       its file is ours to remove, another's
 *     lock.MADE                            the lock file; MADE 1: runtime_dir is ours to remove
 *     observer                             only from daemon to daemon
 *     segment.S.G  areas.S.G  pidfd.S.G  doorbell.S.G  bell.S.G  control.S.G
 *                                          session S of generation G
 *     member-segment.M.G  member-pidfd.M.G  member-control.M.G         member M of generation G
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt_closer;

#define KVT_PARCEL_NAME_BYTES 48
#define KVT_PARCELS_PER_SESSION 6
#define KVT_PARCELS_PER_MEMBER 3

struct kvt_parcel {
	int fd; /* -1: taken */
	uint32_t hold; /* its key with the closer, 0 = none */
	char name[KVT_PARCEL_NAME_BYTES];
};

/** A list that owns its descriptors. Zero-initialised is empty. */
struct kvt_parcels {
	struct kvt_parcel *at;
	uint32_t n, room;
	uint32_t next; /* where the last one was taken: the next one is often behind it */
	struct kvt_closer *closer; /* releases what clients share; NULL: it is closed here */
};

/** Takes the descriptor, also on failure (then it is closed). -ENOMEM. */
int kvt_parcels_add(struct kvt_parcels *parcels, const char *name, int fd);
/** The descriptor of that name, which is the caller's from now on; -1 if there is none. */
int kvt_parcels_take(struct kvt_parcels *parcels, const char *name);
/** Have the (new) closer hold what is there of what clients share. */
void kvt_parcels_hold(struct kvt_parcels *parcels);
/** Close all that was not taken, and forget the list. */
void kvt_parcels_close(struct kvt_parcels *parcels);
/** Close and forget those of that name. */
void kvt_parcels_remove(struct kvt_parcels *parcels, const char *name);

/** What stands before the dot of a name, or all of it. */
enum kvt_parcel_kind {
	KVT_PARCEL_OTHER = 0, /* a service manager's own name: a listening socket */
	KVT_PARCEL_ARENA,
	KVT_PARCEL_LEDGER,
	KVT_PARCEL_POOL,
	KVT_PARCEL_LISTEN,
	KVT_PARCEL_SOCKET,
	KVT_PARCEL_LOG,
	KVT_PARCEL_LOCK,
	KVT_PARCEL_OBSERVER,
	KVT_PARCEL_SEGMENT,
	KVT_PARCEL_AREAS,
	KVT_PARCEL_PIDFD,
	KVT_PARCEL_DOORBELL,
	KVT_PARCEL_BELL,
	KVT_PARCEL_CONTROL,
	KVT_PARCEL_MEMBER_SEGMENT,
	KVT_PARCEL_MEMBER_PIDFD,
	KVT_PARCEL_MEMBER_CONTROL,
};
enum kvt_parcel_kind kvt_parcel_kind(const char *name);
/** Whether it is for a socket to listen on: whoever connects waits in its queue. */
bool kvt_parcel_is_socket(enum kvt_parcel_kind kind);
/** Whether a client shares that file, or its other end, and so has a say in how long its release
 * takes (daemon/closer.h). */
bool kvt_parcel_is_shared(enum kvt_parcel_kind kind);

/** Whether it belongs to the instance and not to its cache: a socket or the lock. */
bool kvt_parcel_outlives_cache(enum kvt_parcel_kind kind);

/** Whether a predecessor left anything of a cache. */
bool kvt_parcels_left(const struct kvt_parcels *parcels);
/** The first that a daemon of kvtrunk parked, a socket too; NULL: there is none. */
const struct kvt_parcel *kvt_parcels_kept(const struct kvt_parcels *parcels);

/** "KIND.SESSION.GENERATION". Returns `to`. */
const char *kvt_parcel_name(char to[KVT_PARCEL_NAME_BYTES], enum kvt_parcel_kind kind,
			    uint32_t session, uint32_t generation);

/** The listening socket among them, or -1: the one parcel that no daemon parked, or the one named
 * "listen" (then *ret_own: its file is ours to remove) or "socket". It must be a listening
 * SOCK_SEQPACKET unix socket and the only one, else -EINVAL with `why`. */
int kvt_parcels_take_listen(struct kvt_parcels *parcels, int *ret_fd, bool *ret_own, char *why,
			    size_t why_size);

#endif
