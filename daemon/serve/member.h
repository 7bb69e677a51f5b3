/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_MEMBER_H
#define KVT_SERVE_MEMBER_H

#include "daemon/serve/state.h"

/** Make the pidfd and segment of the process behind `connection`; made->layout is its plan. On
 * failure too, kvt_member_release() it. */
int kvt_member_make(struct kvt_connection *connection, const char *name, struct kvt_member *made,
		    uint64_t *ret_start_time, char *why, size_t why_size);
/** Copy it into its slot, which must be free: watch, count and store it. */
void kvt_member_settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       struct kvt_session *session, const struct kvt_member *made);
/** Add it to its session's list. Rank 0 comes first. */
void kvt_member_link(struct kvt_session *session, struct kvt_member *member);
/** Give it its control connection. */
void kvt_member_connect(struct kvt_daemon *daemon, struct kvt_member *member,
			struct kvt_connection *connection);
/** Poll its pidfd. */
void kvt_member_watch(struct kvt_daemon *daemon, struct kvt_member *member);
/** Free a slot, or one that was made and not settled. */
void kvt_member_release(struct kvt_daemon *daemon, struct kvt_member *member);
/** The fence words in its segment. */
struct kvt_fence_word *kvt_member_fences(const struct kvt_member *member);

#endif
