/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_PROGRAM_H
#define KVT_DAEMON_KEEP_PROGRAM_H

/**
 * @file program.h
 * A program file that is opened once and run by its descriptor. So the file that was checked is the
 * file that starts, even if its path was replaced in between (TOCTOU).
 */

#include "daemon/keep/notify.h"

struct kvt_program {
	int fd; /* -1: none */
	char path[KVT_PROGRAM_PATH_BYTES];
};

/** Open the running program and read its path. Negative errno. */
int kvt_program_open_self(struct kvt_program *program);
/** Open the file at `path`. -EACCES: no regular file, or not executable; -ENAMETOOLONG. */
int kvt_program_open(struct kvt_program *program, const char *path);
void kvt_program_close(struct kvt_program *program);

/** Execute the program in this forked process. Passes descriptors of the store by LISTEN_FDS
 * (negative ones are left out), and `notify`, unless -1, by KVT_NOTIFY_PAIR (daemon/keep/notify.h).
 * Returns only on failure: negative errno. */
int kvt_program_run(const struct kvt_program *program, char *const argv[],
		    const struct kvt_fdstore *store, int notify);

#endif
