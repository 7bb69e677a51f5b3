/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_SPACE_H
#define KVT_CORE_SPACE_H

/**
 * @file space.h
 * Namespaces.
 */

#include "daemon/core/state.h"

/** Free a namespace that no session has open and no node names. */
void kvt_space_free(struct kvt_core *core, uint32_t namespace_id);
/** Close all namespaces of a session. */
void kvt_spaces_close(struct kvt_core *core, uint32_t session);

#endif
