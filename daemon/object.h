/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_OBJECT_H
#define KVT_DAEMON_OBJECT_H

/**
 * @file object.h
 * What the daemon leaves in the file system while it lives: a lock file, the control socket, and
 * two POSIX shared-memory objects; and the memory objects that it hands to clients.
 *
 * The lock file (RUNTIME_DIR/INSTANCE.lock.d/lock, held with flock) decides who is alive. The lock
 * holder may remove what a dead daemon of the same instance and directory left: the names of the
 * shared-memory objects start with both. The file can be opened by the daemon's user only (mode
 * 0600, in a directory of mode 0700): a shared lock of any other user would keep a successor out.
 * Its descriptor is parked with the service manager, so that the lock passes on without a gap.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvtrunk_abi.h"

#define KVT_OBJECT_NAME_BYTES 128

struct kvt_lock_file {
	int fd; /* -1: not held */
	char path[256];
	char private[192];  /* the directory of mode 0700 */
	char directory[128];
	int made_directory; /* 1: ours to remove */
	pid_t holder;       /* after -EADDRINUSE: as the file says, 0 = unknown */
};

/** Make the directory if missing and take the lock. -EADDRINUSE with `why` naming the pid if a
 * live daemon holds it, -EACCES if the lock is another user's. Sets *ret_stale to whether a dead
 * daemon's file was found. */
int kvt_lock_take(struct kvt_lock_file *lock, const char *directory, const char *instance,
		  int *ret_stale, char *why, size_t why_size);
/** Whether the process that wrote its pid into the lock file lives. The lock is not touched. */
bool kvt_lock_held(const char *directory, const char *instance);
/** Write our pid into it. */
int kvt_lock_sign(struct kvt_lock_file *lock);
/** The lock that a predecessor held or holds, and passed: it is ours. `made_directory` as it was.
 * -ESTALE: it is not that of this instance and directory. */
int kvt_lock_adopt(struct kvt_lock_file *lock, int fd, const char *directory, const char *instance,
		   int made_directory);
/** Remove the file, and the directory if we made it and it is empty. */
void kvt_lock_release(struct kvt_lock_file *lock);

/** Whether the process has ended or is about to: it exits, or SIGKILL is on its way. What it holds
 * is free in a moment. */
bool kvt_process_ending(pid_t pid);

/** A shared-memory object that this process mapped. */
struct kvt_object {
	int fd; /* -1: none */
	void *base;
	uint64_t bytes;
	char name[KVT_OBJECT_NAME_BYTES]; /* as for shm_open(); "" if it has none */
};

/** Beginning of the names of an instance's objects, "/kvtrunk.NAME.HASH.". */
void kvt_object_prefix(char to[KVT_OBJECT_NAME_BYTES], const char *directory,
		       const char *instance);

/** Unlink every object in /dev/shm whose name starts with `prefix`. Returns how many. */
int kvt_object_clean(const char *prefix);

/** Processes that keep what a daemon left. Begin with all zero. */
struct kvt_object_holders {
	uint32_t n;
	int pids[64];    /* of the first ones */
	char names[160]; /* of the first four: "pid 12 (python3), pid 13 (python3)" */
};

/** Who still maps an object of that prefix, which other daemons than this one made. Who did at the
 * last look, and is ending, counts until it has ended: a process's mappings go first, what its
 * descriptors keep, device memory too, goes later. Returns whether there is anybody. */
bool kvt_object_held(const char *prefix, struct kvt_object_holders *holders);

#define KVT_OBJECT_PREFIX "/kvtrunk."

/** Unlink this user's objects whose names start with `prefix`, which no live daemon holds, and
 * which are at least that old: what daemons left that crashed and will not be started again under
 * the same name. Returns how many. */
int kvt_object_clean_orphans(const char *prefix, int64_t least_age_s);

/** Make, fill with zeroes (really allocated: no SIGBUS later) and map PREFIX + `what` + a random
 * suffix, mode 0600. The name is for the moment only: see kvt_object_forget_name(). On failure
 * `why` says what was needed, what is there, and the cure. */
int kvt_object_create(struct kvt_object *object, const char *prefix, const char *what,
		      uint64_t bytes, char *why, size_t why_size);

/** Whether /dev/shm has room for `bytes` of `what` beside `before` bytes more, once `back` bytes
 * have been given back. -ENOSPC with `why`, as kvt_object_create() says it. */
int kvt_object_room(const char *what, uint64_t bytes, uint64_t before, uint64_t back, char *why,
		    size_t why_size);

/** A descriptor to the object that cannot write and, unless its holder is the owner or root,
 * cannot be reopened for writing: the object's mode is lowered to 0400. */
int kvt_object_open_readonly(const struct kvt_object *object);

/** Unlink the name. Descriptors keep the object, so nothing is left behind however we end. */
void kvt_object_forget_name(struct kvt_object *object);

/** Map an object that another process made, of whatever size it has; `fd` is taken, also on
 * failure. -EINVAL: it is no memory object. */
int kvt_object_take(struct kvt_object *object, int fd);

/** A memfd sealed against SHRINK, GROW and further seals, mapped. */
int kvt_object_create_sealed(struct kvt_object *object, const char *what, uint64_t bytes);

/** Unmap, close, and unlink if it has a name. */
void kvt_object_destroy(struct kvt_object *object);

#endif
