/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_CACHE_H
#define KVT_DAEMON_CACHE_H

#include "daemon/serve/state.h"

/** Recover the stored cache if it is complete and matches; else drop it and make a new one. With
 * the lock of the instance. Returns a negative errno with `why`; a trial fails instead of starting
 * cold. */
int kvt_daemon_make_cache(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Close pool, arena, ledger and log, as far as they were made. */
void kvt_daemon_unmake_cache(struct kvt_daemon *daemon);

#endif
