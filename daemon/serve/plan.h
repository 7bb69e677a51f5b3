/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_PLAN_H
#define KVT_SERVE_PLAN_H

#include "daemon/serve/state.h"

/** Plan pool and core from the configuration and the stored arena. On failure `why` says it. */
int kvt_daemon_plan(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Check that a daemon with the options as they are now could recover what this one has. -ESTALE or
 * -EINVAL with `why`. */
int kvt_daemon_plan_successor(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);

#endif
