/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_MEMBER_H
#define KVT_SERVE_MEMBER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/setup/object.h"
#include "shm/ring.h"

struct kvt_connection;
struct kvt_daemon;
struct kvt_session;

/** A process of a session: rank 0, which opened it, or another rank of its group. The slot number
 * is the core's: rank 0 has its session's. */
struct kvt_member {
	struct kvt_member *next; /* next process of the session */
	uint32_t index;      /* number of the slot */
	uint32_t session;    /* slot of its session, 0 = free */
	uint32_t rank;
	uint32_t connection; /* slot of the control connection + 1, 0 = none */
	int pidfd;           /* -1 = none */
	bool pidfd_armed;
	bool told;           /* GOODBYE was sent, or the process is gone */
	bool kept;           /* the keeper has its descriptors, with rank 0's the session's */
	pid_t pid;
	struct kvt_object segment; /* beyond rank 0 only its fence words and `gone` are used */
	struct kvt_segment_layout layout;
};

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
