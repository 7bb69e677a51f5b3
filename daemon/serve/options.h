/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_OPTIONS_H
#define KVT_SERVE_OPTIONS_H

#include "daemon/serve/state.h"

/** Raise RLIMIT_NOFILE to what the configuration needs. Returns 1 if raised, 0 if it was high
 * enough. -EMFILE with `why`. */
int kvt_daemon_raise_nofile(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Copy the reloadable options into the fields that the turn uses. */
void kvt_daemon_apply(struct kvt_daemon *daemon);

#endif
