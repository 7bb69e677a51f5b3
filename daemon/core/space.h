/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_SPACE_H
#define KVT_CORE_SPACE_H

/**
 * @file space.h
 * Namespaces.
 */

#include "daemon/core/state.h"

/** Give each namespace the limit that the configuration has for it now: after a restart. */
void kvt_spaces_limit(struct kvt_core *core);
/** Free a namespace that no session has open and no node names. */
void kvt_space_free(struct kvt_core *core, uint32_t namespace_id);
/** True if the session can open this namespace only once another one is emptied, and one can be:
 * the least recently used of those that no session has open and of whose nodes none is locked.
 * `*ret_root` is its root, KVT_NONE if it is being emptied already. */
bool kvt_space_victim(const struct kvt_core *core, uint32_t session, const uint64_t digest[2],
		      uint32_t *ret_root);
/** Leases of a session in a namespace, and its operations there that wait. */
uint32_t kvt_space_held(const struct kvt_core *core, uint32_t session, uint32_t namespace_id);
/** Close a namespace that a session has open. */
void kvt_space_close(struct kvt_core *core, uint32_t session, uint32_t namespace_id);
/** Close all namespaces of a session. */
void kvt_spaces_close(struct kvt_core *core, uint32_t session);

#endif
