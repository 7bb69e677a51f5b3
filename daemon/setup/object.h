/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_OBJECT_H
#define KVT_DAEMON_SETUP_OBJECT_H

/**
 * @file object.h
 * Files of an instance (lock file, control socket, two POSIX shared-memory objects), and memory
 * objects that clients get.
 *
 * The holder of the lock (flock on RUNTIME_DIR/INSTANCE.lock.d/lock) serves the instance. It may
 * remove what a dead daemon of the same instance and directory left: the names of shared-memory
 * objects start with both. The file has mode 0600, in a directory of mode 0700, because another
 * user's shared lock would keep a successor out. The keeper stores its descriptor, so a restart
 * leaves no gap.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define KVT_OBJECT_NAME_BYTES 128

struct kvt_lock_file {
	int fd; /* -1: not held */
	char path[256];
	char private[192];  /* the directory of mode 0700 */
	char directory[128];
	int made_directory; /* 1: ours to remove */
	pid_t holder;       /* after -EADDRINUSE: pid in the file, 0 = unknown */
	int drain_ms;       /* and how long it lets leases end; 0: it does not stop */
};

/** Make the directory if missing and take the lock. -EADDRINUSE with `why` naming the pid if a
 * live daemon holds it, -EACCES if the lock is another user's. Sets *ret_stale to whether a dead
 * daemon's file was found. */
int kvt_lock_take(struct kvt_lock_file *lock, const char *directory, const char *instance,
		  int *ret_stale, char *why, size_t why_size);
/** Check that a file or directory could be made there: 0, -ENOENT, -ENOTDIR, -EACCES, ... */
int kvt_place_check(const char *path);
/** Check that it could be taken, and make nothing. Errors and `why` as of kvt_lock_take(). */
int kvt_lock_check(const char *directory, const char *instance, char *why, size_t why_size);
/** True if the process whose pid is in the lock file lives. Does not touch the lock. */
bool kvt_lock_held(const char *directory, const char *instance);
/** Write our pid into the lock file. */
int kvt_lock_sign(struct kvt_lock_file *lock);
/** Write, for a start that waits, that this daemon stops, and how long leases may end. */
void kvt_lock_drain(const struct kvt_lock_file *lock, int drain_ms);
/** Take a stored lock. `made_directory` as it was stored. -ESTALE: the lock of another instance or
 * directory. */
int kvt_lock_adopt(struct kvt_lock_file *lock, int fd, const char *directory, const char *instance,
		   int made_directory);
/** Take the lock again if its file was removed. 1: it was; 0: it was not; a negative errno as of
 * kvt_lock_take(). */
int kvt_lock_again(struct kvt_lock_file *lock, const char *directory, const char *instance,
		   char *why, size_t why_size);
/** Remove the file, and the directory if we made it and it is empty. */
void kvt_lock_release(struct kvt_lock_file *lock);

/** True if the process has exited, is exiting, or has SIGKILL pending: its files are free soon. */
bool kvt_process_ending(pid_t pid);

/** A shared-memory object that this process mapped. */
struct kvt_object {
	int fd; /* -1: none */
	void *base;
	uint64_t bytes;
	char name[KVT_OBJECT_NAME_BYTES]; /* as for shm_open(); "" if it has none */
};

/** Format the prefix of an instance's object names, "/kvtrunk.NAME.HASH.". */
void kvt_object_prefix(char to[KVT_OBJECT_NAME_BYTES], const char *directory,
		       const char *instance);

/** Unlink every object in /dev/shm whose name starts with `prefix`. Returns the number. */
int kvt_object_clean(const char *prefix);

/** Processes that still map objects of a dead daemon. Zero-initialise it. */
struct kvt_object_holders {
	uint32_t n;
	int pids[64];    /* of the first ones */
	char names[160]; /* of the first four: "pid 12 (python3), pid 13 (python3)" */
};

/** Find processes that map objects of that prefix, this daemon's own excepted. A holder of the last
 * call counts until it has exited: mappings are released first, descriptors and device memory
 * later. True if there are any. */
bool kvt_object_held(const char *prefix, struct kvt_object_holders *holders);

#define KVT_OBJECT_PREFIX "/kvtrunk."

/** Unlink this user's objects with that prefix and age that no live daemon holds. Crashed daemons
 * that were not started again under the same name left them. Returns the number. */
int kvt_object_clean_orphans(const char *prefix, int64_t least_age_s);

/** Make, allocate (no SIGBUS later), zero and map an object of mode 0600, named PREFIX + `what` + a
 * random suffix. The name is temporary: see kvt_object_forget_name(). On failure `why` has the
 * size needed, the size available, and the cure. */
int kvt_object_create(struct kvt_object *object, const char *prefix, const char *what,
		      uint64_t bytes, char *why, size_t why_size);

/** Check that /dev/shm has room for an arena of `bytes`, once `back` bytes are freed. -ENOSPC with
 * `why`, as of kvt_object_create(). */
int kvt_object_room(uint64_t bytes, uint64_t back, char *why, size_t why_size);

/** Open a read-only descriptor of the object. Lowers its mode to 0400, so that only owner and root
 * can reopen it for writing. */
int kvt_object_open_readonly(const struct kvt_object *object);

/** Unlink the name. Descriptors keep the object, so a crash leaves no file behind. */
void kvt_object_forget_name(struct kvt_object *object);

/** Map an object of another process, in its whole size. Consumes `fd`, on failure too. -EINVAL: no
 * memory object. */
int kvt_object_take(struct kvt_object *object, int fd);

/** Leave a mapping out of core files: it has the keys and KV of all clients. Objects are by
 * themselves. */
void kvt_object_undump(void *base, uint64_t bytes);

/** Make and map a memfd that no other process maps. Its pages are allocated as they are written. */
int kvt_object_create_private(struct kvt_object *object, const char *what, uint64_t bytes);

/** Make a memfd, sealed against SHRINK, GROW and further seals, for others to map. */
int kvt_object_create_unmapped(const char *what, uint64_t bytes, int *ret_fd);
/** Make and map such a memfd. */
int kvt_object_create_sealed(struct kvt_object *object, const char *what, uint64_t bytes);

/** Unmap, close, and unlink if it has a name. */
void kvt_object_destroy(struct kvt_object *object);

#endif
