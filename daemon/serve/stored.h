/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_STORED_H
#define KVT_SERVE_STORED_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/keep/fdstore.h"
#include "daemon/setup/pool.h"
#include "kvtrunk_types.h"

struct kvt_daemon;
struct kvt_member;

/** Descriptors that the keeper holds for this daemon. Changed by start.c, then by stored.c. */
struct kvt_kept {
	struct kvt_fdstore passed; /* a predecessor's descriptors, until taken or dropped */
	uint32_t n;                /* descriptors that the keeper has */
	bool has_socket;           /* the listening socket is kept */
	bool has_lock;             /* the lock is kept, and outlives this process */
};

/** Store the instance's descriptors, if there is a keeper. Only with the lock held: the keeper's
 * next daemon takes them without checking for another one that serves. */
void kvt_keep_instance(struct kvt_daemon *daemon);
void kvt_forget_lock(struct kvt_daemon *daemon, int made_directory);
/** Store the socket in place of the one bound to `old_file` (device and inode), and_lock: the lock,
 * too. */
void kvt_keep_socket(struct kvt_daemon *daemon, const uint64_t old_file[2], bool and_lock);
/** Store a process's descriptors, with rank 0's its session's; remove them from the store. */
void kvt_keep_member(struct kvt_daemon *daemon, struct kvt_member *member);
void kvt_forget_member(struct kvt_daemon *daemon, struct kvt_member *member);
/** Empty the store: no successor follows. */
void kvt_forget_all(struct kvt_daemon *daemon);
/** Take the instance's stored descriptors into empty fields of `daemon`, and the pool's into
 * `slabs`. */
void kvt_take_instance(struct kvt_daemon *daemon, int slabs[KVT_MAX_SLABS]);
/** Take the stored ones of a slot. */
void kvt_take_member(struct kvt_daemon *daemon, struct kvt_member *member);

#endif
