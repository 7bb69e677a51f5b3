/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_BACKGROUND_H
#define KVT_DAEMON_SETUP_BACKGROUND_H

/**
 * @file background.h
 * `kvtrunkd --detach`: go to the background, and return to the shell once the daemon serves.
 *
 * The parent waits for a byte on a pipe, or for the child's exit, whose status and log it passes
 * on. The child has its own session and no standard input and output. It logs to standard error if
 * that is a file, the journal, or a device other than a terminal. Else it logs to
 * RUNTIME_DIR/INSTANCE.log: a terminal closes, and a pipe would keep its reader waiting. The
 * working directory stays: relative paths in options are resolved there, on SIGHUP too.
 */

#include "daemon/setup/config.h"

/** Fork. Returns 0 in the child, with *ret_ready for kvt_background_ready(). Returns 1 in the
 * parent once the child serves or has exited, with *ret_status. A negative errno with `why`: there
 * is no child (-EINVAL: these options do not allow --detach). */
int kvt_background(const struct kvt_config *config, int *ret_ready, int *ret_status,
	       char why[KVT_WHY_BYTES]);
/** Tell the parent that the daemon serves, once: sets *ready to -1. */
void kvt_background_ready(int *ready);

#endif
