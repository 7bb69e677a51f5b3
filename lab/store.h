/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_STORE_H
#define KVT_LAB_STORE_H

/**
 * @file store.h
 * A private kvtstored beside a private daemon (daemon.h), for replays and benchmarks. It is killed
 * with this process.
 */

#include <stddef.h>
#include <sys/types.h>

#include "tools/store.h"

struct kvt_own_store {
	pid_t pid; /* 0: none */
	char path[KVT_STORE_PATH_BYTES]; /* of its socket */
};

/** Write the path of the kvtstored that is beside a kvtrunkd. `daemon` NULL: beside this program.
 */
void kvt_own_store_program(const char *daemon, char *ret_path, size_t bytes);

/** Start kvtstored and wait until it serves. `flags`: its flags, NULL-terminated, without --socket.
 * `cpu` -1: any, also where this process is bound. Errors, with a sentence in `why`: -ECHILD it did
 * not start. */
int kvt_own_store_start(struct kvt_own_store *store, const char *program, const char *socket_path,
			const char *const *flags, int cpu, char *why, size_t why_bytes);

/** Ask for what it counts. Errors: as kvt_store_ask(). */
int kvt_own_store_status(const struct kvt_own_store *store, struct kvt_store_status *ret_status);

/** Kill it, which loses nothing but its copies, and wait. */
void kvt_own_store_stop(struct kvt_own_store *store);

#endif
