/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_DAEMON_H
#define KVT_LAB_DAEMON_H

/**
 * @file daemon.h
 * A private daemon for replays and benchmarks, in a temporary directory. Both go when it is
 * stopped or this process is killed.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kvt_own_daemon {
	pid_t pid; /* 0: none */
	char directory[64];
	char socket_path[96];
	pid_t cleaner; /* removes the directory; 0: none */
	int held;      /* our end of the cleaner's pipe */
};

/** Start kvtrunkd and wait for READY. `flags`: its flags, NULL-terminated, without socket and
 * directory. `program` NULL: kvtrunkd beside this program, else from PATH. `cpu` -1: any. Errors,
 * with a sentence in `why`: -EINVAL there is no such program, or it refused its flags; -ECHILD it
 * ended by itself (stderr has its reason). */
int kvt_own_daemon_start(struct kvt_own_daemon *daemon, const char *program,
			 const char *const *flags, int cpu, char *why, size_t why_bytes);

/** Send SIGTERM, wait, remove the directory. Returns the wait status, or -1 if the daemon had ended
 * before. */
int kvt_own_daemon_stop(struct kvt_own_daemon *daemon);

/** True for the wait status of a program that refused its options, or could not be run. */
bool kvt_status_is_usage(int wait_status);

/** Return the serving child of `supervisor`, which runs with --supervise. 0: none at the moment. */
pid_t kvt_supervised_daemon(pid_t supervisor);

#endif
