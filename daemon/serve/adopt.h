/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_ADOPT_H
#define KVT_SERVE_ADOPT_H

#include "daemon/serve/state.h"

/** Map the stored arena, ledger and pool. -ESTALE with `why`: one is missing or does not match. */
int kvt_adopt_objects(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Serve the sessions of a recovered core. Those with all descriptors continue, the others end.
 * -ESTALE with `why`: a trial would end one that another process could recover. */
int kvt_adopt_sessions(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES]);
/** Drop stored descriptors that were not taken. */
void kvt_adopt_rest(struct kvt_daemon *daemon);
/** Publish GONE in a stored arena that is not recovered, for processes that still map it. */
void kvt_adopt_say_gone(struct kvt_daemon *daemon);

#endif
