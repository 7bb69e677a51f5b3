/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_REPLAY_DAEMON_H
#define KVT_REPLAY_DAEMON_H

/**
 * @file replay_daemon.h
 * A daemon of one's own, for replays and benchmarks: started in a temporary directory, gone with
 * everything that it left when it is stopped.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kvt_own_daemon {
	pid_t pid; /* 0: none */
	char directory[64];
	char socket_path[96];
};

/** Start kvtrunkd and wait until it says READY. `flags` are its flags, NULL-terminated, without
 * socket and directory. `program` NULL: kvtrunkd beside this program, else from PATH. `cpu` -1:
 * any. Errors: -ENOENT no such program, -ECHILD it ended by itself (its own line on stderr says
 * why); `why` has a sentence. */
int kvt_own_daemon_start(struct kvt_own_daemon *daemon, const char *program,
			 const char *const *flags, int cpu, char *why, size_t why_bytes);

/** SIGTERM, wait, remove the directory. Returns its wait status, or -1 if it had ended before. */
int kvt_own_daemon_stop(struct kvt_own_daemon *daemon);

/** The process that serves: a child of `supervisor`, which runs with --supervise. 0: there is none
 * just now. */
pid_t kvt_supervised_daemon(pid_t supervisor);

#endif
