/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_SESSION_H
#define KVT_CORE_SESSION_H

/**
 * @file session.h
 * The end of sessions.
 */

#include "daemon/core/state.h"

/** CLOSE: end all leases, free all pages of a session. Returns pages freed. */
uint32_t kvt_close_now(struct kvt_core *core, uint32_t session);
/** Take back what dead sessions held, `budget` pages or leases at most. Returns how many. */
uint32_t kvt_session_work(struct kvt_core *core, uint32_t budget);
/** True if a dead session still holds something that can be taken back now. */
bool kvt_session_unsettled(const struct kvt_core *core);

#endif
