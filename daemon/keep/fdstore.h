/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_FDSTORE_H
#define KVT_DAEMON_KEEP_FDSTORE_H

/**
 * @file fdstore.h
 * Named descriptors that outlive a daemon.
 *
 * Everything that a client shares with an instance is behind descriptors. The keeper is the service
 * manager, or `kvtrunkd --supervise` with the same protocol. It stores the descriptors as soon as
 * they exist and passes them to the successor (serve/adopt.c). Connections are not among them: a
 * client connects again with its session's secret.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** X(kind, name, scope)
 *   scope   INSTANCE  stays when the cache is dropped
 *           CACHE     one object of the cache
 *           SESSION   one of each session
 *           MEMBER    one of each process of a session
 *
 * Names: "KIND"; "pool.SLAB.PAGE_BYTES"; "lock.1" if runtime_dir is ours to remove, else "lock.0";
 * of sessions and processes "KIND.INDEX.GENERATION", where rank 0 has its session's index. A
 * listening socket from the service manager may have any name; "listen.DEVICE.INODE" is
 * one that a daemon bound, with the file that its name leads to. */
#define KVT_STORED_KINDS(X)                                                                       \
	X(OTHER, "", INSTANCE)                                                                    \
	X(LISTEN, "listen", INSTANCE)                                                             \
	X(LOCK, "lock", INSTANCE)                                                                 \
	X(ARENA, "arena", CACHE)                                                                  \
	X(LEDGER, "ledger", CACHE)                                                                \
	X(LOG, "log", CACHE)                                                                      \
	X(POOL, "pool", CACHE)                                                                    \
	X(AREAS, "areas", SESSION)                                                                \
	X(MIRROR, "mirror", SESSION)                                                              \
	X(DOORBELL, "doorbell", SESSION)                                                          \
	X(BELL, "bell", SESSION)                                                                  \
	X(SEGMENT, "segment", MEMBER)                                                             \
	X(PIDFD, "pidfd", MEMBER)

#define KVT_STORED_KIND(kind, name, scope) KVT_STORED_##kind,
enum kvt_stored_kind { KVT_STORED_KINDS(KVT_STORED_KIND) KVT_STORED_N };

#define KVT_STORED_NAME_BYTES 48
#define KVT_STORED_PER_SESSION 6 /* at most; rank 0 included */
#define KVT_STORED_PER_MEMBER 2  /* of another rank */

struct kvt_stored {
	int fd; /* -1: taken */
	char name[KVT_STORED_NAME_BYTES];
};

/** A list that owns its descriptors. Zero-initialised is empty. */
struct kvt_fdstore {
	struct kvt_stored *at;
	uint32_t n, room;
	uint32_t next; /* where to search first: after the last one taken */
};

/** Add a descriptor. Consumes it, on failure too. -ENOMEM. */
int kvt_fdstore_add(struct kvt_fdstore *store, const char *name, int fd);
/** Take the descriptor of that name; the caller owns it. -1: there is none. */
int kvt_fdstore_take(struct kvt_fdstore *store, const char *name);
/** Close all descriptors and empty the list. */
void kvt_fdstore_close(struct kvt_fdstore *store);
/** Close and remove all of that name. */
void kvt_fdstore_remove(struct kvt_fdstore *store, const char *name);
/** Close and remove everything of the cache: a cold start follows. */
void kvt_fdstore_drop_cache(struct kvt_fdstore *store);

/** True if a predecessor stored anything of a cache. */
bool kvt_fdstore_has_cache(const struct kvt_fdstore *store);
/** True if a kvtrunkd stored anything, be it a listening socket. */
bool kvt_fdstore_is_used(const struct kvt_fdstore *store);

/** Take the listening socket, or -1. *ret_own: a daemon bound it, so this daemon removes its file.
 * ret_file: device and inode of that file, 0 without `ret_own`.
 * -EINVAL with `why`: there are several, or it is no listening SOCK_SEQPACKET unix socket. */
int kvt_fdstore_take_listen(struct kvt_fdstore *store, int *ret_fd, bool *ret_own,
			    uint64_t ret_file[2], char *why, size_t why_size);
/** Take the lock, or -1. *ret_made_directory: runtime_dir is ours to remove. */
int kvt_fdstore_take_lock(struct kvt_fdstore *store, int *ret_made_directory);

/** Parse the kind: the name up to its first dot. */
enum kvt_stored_kind kvt_stored_kind(const char *name);
/** True if it stays when the cache is dropped. */
bool kvt_stored_outlives_cache(enum kvt_stored_kind kind);
/** Format "KIND.A.B". Returns `to`. */
const char *kvt_stored_name(char to[KVT_STORED_NAME_BYTES], enum kvt_stored_kind kind, uint64_t a,
			    uint64_t b);

#endif
