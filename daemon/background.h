/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_BACKGROUND_H
#define KVT_DAEMON_BACKGROUND_H

/**
 * @file background.h
 * `kvtrunkd --detach`: go to the background, and return to the shell when the daemon serves.
 *
 * The parent waits for the child's word on a pipe, or for its end, whose exit status and message
 * become its own. The child has a session of its own, no standard input and output, and logs to
 * standard error if that is a file, a device that is no terminal, or the journal; else to
 * RUNTIME_DIR/INSTANCE.log, because a terminal closes and a pipe keeps its reader waiting. The
 * working directory stays: names of files in options are relative to it, also on SIGHUP.
 */

#include "daemon/config.h"

/** Fork. Returns 0 in the child, with *ret_ready for kvt_background_ready(); 1 in the parent when
 * the child serves or has ended, with its exit status; a negative errno with `why` if there is no
 * child (-EINVAL: this cannot be detached). */
int kvt_background(const struct kvt_config *config, int *ret_ready, int *ret_status,
	       char why[KVT_WHY_BYTES]);
/** Tell the parent that the daemon serves. Does nothing if `*ready` is -1, and makes it that. */
void kvt_background_ready(int *ready);

#endif
