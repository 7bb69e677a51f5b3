/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_RUN_H
#define KVT_CORE_RUN_H

/**
 * @file run.h
 * What background work shares with running operations.
 */

#include "daemon/core/state.h"

/** Detach nodes whose time has come, at most `limit`, each as an effect of its own. */
void kvt_expire_due(struct kvt_core *core, uint32_t limit);

#endif
