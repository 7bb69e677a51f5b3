/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_START_H
#define KVT_DAEMON_START_H

#include "daemon/serve/state.h"

/** Make everything and listen. On failure undo it and set `why`. */
int kvt_daemon_start(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Check that this machine can serve the configuration; make nothing (--check-config). */
int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Tell clients, publish GONE, remove every object. */
void kvt_daemon_stop(struct kvt_daemon *daemon);
/** Leave everything to a successor, which gets the stored descriptors. */
void kvt_daemon_leave(struct kvt_daemon *daemon);

#endif
