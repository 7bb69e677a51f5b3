/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_TURN_H
#define KVT_SERVE_TURN_H

#include "daemon/serve/state.h"

void kvt_daemon_run(struct kvt_daemon *daemon);
/** Core hook: a deferred operation took effect. */
void kvt_daemon_complete(void *context, uint32_t session, const struct kvt_cqe *cqe);

#endif
