/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_STORE_H
#define KVT_LAB_STORE_H

/**
 * @file store.h
 * A private kvtstored for private daemons (daemon.h), for replays and benchmarks. It is killed
 * with this process.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/path.h"

struct kvt_store_status;

#define KVT_OWN_STORE_INSTANCES 16u

struct kvt_own_store {
	pid_t pid; /* 0: none */
	uint32_t n; /* instances */
	char paths[KVT_OWN_STORE_INSTANCES][KVT_STORE_PATH_BYTES]; /* its socket for each */
};

/** Write the path of the kvtstored that is beside a kvtrunkd. `daemon` NULL: beside this program.
 */
void kvt_own_store_program(const char *daemon, char *ret_path, size_t bytes);

/** Start kvtstored for these n daemons and wait until it serves all. `flags`: its flags,
 * NULL-terminated, without --socket. `cpu` -1: any, also where this process is bound. Errors, with
 * a sentence in `why`: -EINVAL there is no such program, or it refused its flags; -ECHILD it did
 * not start. */
int kvt_own_store_start(struct kvt_own_store *store, const char *program,
			const char *const *socket_paths, uint32_t n, const char *const *flags,
			int cpu, char *why, size_t why_bytes);

/** Ask for what it counts, all its instances together. Errors: as kvt_store_ask(). */
int kvt_own_store_status(const struct kvt_own_store *store, struct kvt_store_status *ret_status);

/** Kill it, which loses nothing but its copies, and wait. */
void kvt_own_store_stop(struct kvt_own_store *store);

#endif
