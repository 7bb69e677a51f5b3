/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_USER_H
#define KVT_CORE_USER_H

/**
 * @file user.h
 * What the sessions of one uid hold together.
 */

#include "daemon/core/state.h"

/** The slow half of kvt_user_may_hold(). */
bool kvt_user_may_hold_more(const struct kvt_core *core, uint32_t session, uint32_t n,
			    uint64_t path_pages);
/** True if the session's uid may take n pages and lock path_pages evictable ones: it leaves other
 * uids what is theirs, or has little itself. */
static inline bool kvt_user_may_hold(const struct kvt_core *core, uint32_t session, uint32_t n,
				     uint64_t path_pages)
{
	return core->count->free_pages + core->count->evictable_pages >=
		       core->uid_reserve + path_pages + n ||
	       kvt_user_may_hold_more(core, session, n, path_pages);
}

/** Count a session that begins, is over, is gone. */
void kvt_user_session(struct kvt_core *core, uint32_t session);
void kvt_user_session_over(struct kvt_core *core, uint32_t session);
void kvt_user_session_gone(struct kvt_core *core, uint32_t session);
/** Check that the uid may have one more: 0, or -EDQUOT. */
int kvt_user_check_session(const struct kvt_core *core, uint32_t uid);
/** Count all of it from complete records of sessions. */
void kvt_users_rebuild(struct kvt_core *core);

#endif
