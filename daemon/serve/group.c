/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the processes of one tensor-parallel engine, which share one session.
 *
 * Rank 0 opened the session and has its ring. Each other rank has only a control socket, a pidfd,
 * its slab of the pool and its own fence words: leases and pages are the session's. Called by
 * control.c. */

#include "kvtrunk_wire_segment.h"
#include "daemon/serve/group.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/core/core.h"
#include "daemon/core/records.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/member.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "shm/atomic.h"

/* A member's segment has the smallest ring, which stays unused. */
#define MEMBER_RING 2u

int kvt_group_open(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t n_ranks,
		   uint64_t token[2], char *why, size_t why_size)
{
	const struct kvt_member *member = connection->member;
	const uint64_t chosen[2] = { token[0], token[1] };
	bool is_chosen = chosen[0] | chosen[1];
	int error;

	if (!member || member->rank) {
		snprintf(why, why_size, "only a process that opened a session can make a group of "
			 "it: %s", member ? "this one is a member" : "an observer has none");
		return -ENOTCONN;
	}
	if (n_ranks < 2 || n_ranks > KVT_MAX_RANKS) {
		snprintf(why, why_size, "a group has 2 to %u ranks, not %u", KVT_MAX_RANKS,
			 n_ranks);
		return -EINVAL;
	}
	if (!is_chosen && getrandom(token, sizeof(chosen), 0) != sizeof(chosen)) {
		snprintf(why, why_size, "no randomness for the group's token");
		return -EIO;
	}
	token[0] |= !(token[0] | token[1]); /* 0 means no token */
	error = kvt_core_group_open(daemon->core, member->session, n_ranks, token);
	if (error == -ENOSPC)
		snprintf(why, why_size, "all max_members=%u places are taken by groups: end some, "
			 "or raise it", daemon->core_config.max_members);
	else if (error == -EEXIST)
		snprintf(why, why_size, "another group has this token: give each engine an id of "
			 "its own to derive it from");
	else if (error)
		snprintf(why, why_size, "this session leads a group of %u ranks already",
			 kvt_core_member(daemon->core, member->index)->n_ranks);
	else if (is_chosen && memcmp(token, chosen, sizeof(chosen)) != 0) {
		snprintf(why, why_size, "this session leads a group with another token already");
		error = -EALREADY;
	}
	return error;
}

/* ---- joining */

static int find_place(const struct kvt_daemon *daemon, const struct kvt_message_hello *hello,
		      uint32_t *ret_place, char *why, size_t why_size)
{
	int error = kvt_core_group_find(daemon->core, hello->group, hello->rank, ret_place);

	if (error == -ESTALE)
		snprintf(why, why_size, "no group has this token: its rank 0 ended or closed its "
			 "session, or it is another daemon's; get a new one from rank 0");
	else if (error == -ERANGE)
		snprintf(why, why_size, "rank %u is not in this group: members are ranks 1 to the "
			 "last that rank 0 named; rank 0 opened the group", hello->rank);
	else if (error == -EEXIST)
		snprintf(why, why_size, "rank %u of this group has already joined, and a group "
			 "ends with its first member: give each process its own rank",
			 hello->rank);
	return error;
}

/* Start its fence words at rank 0's values: a reached fence must stay reached. */
static void copy_words(const struct kvt_session *session, const struct kvt_member *made)
{
	struct kvt_fence_word *to = kvt_member_fences(made);

	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		to[i].value = kvt_load_acquire(&session->ring.fences[i].value);
}

int kvt_group_join(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   const struct kvt_message_hello *hello, const char *label,
		   struct kvt_message_welcome *welcome, int ret_fds[2], char *why, size_t why_size)
{
	struct kvt_member made = { .rank = hello->rank, .pidfd = -1, .segment.fd = -1 };
	struct kvt_core_peer peer = { .pid = connection->peer.pid, .uid = connection->peer.uid,
				      .label = label };
	const struct kvt_member_record *record;
	struct kvt_session *session;
	int error = find_place(daemon, hello, &made.index, why, why_size);

	if (error)
		return error;
	record = kvt_core_member(daemon->core, made.index);
	session = &daemon->sessions.slots[record->session];
	if (!session->open) { /* ended here, and the core has not been told yet */
		snprintf(why, why_size, "the group is over: get a new token from rank 0");
		return -ESTALE;
	}
	kvt_segment_plan(&made.layout, MEMBER_RING, MEMBER_RING, 0, 0);
	error = kvt_member_make(connection, "kvtrunk-member", &made, &peer.start_time, why,
				why_size);
	if (error) {
		kvt_member_release(daemon, &made);
		return error;
	}
	kvt_segment_format(made.segment.base, &made.layout, session->index);
	copy_words(session, &made);
	kvt_session_vacate(daemon, made.index);
	kvt_member_settle(daemon, connection, session, &made);
	kvt_core_member_join(daemon->core, made.index, &peer, kvt_member_fences(&made));
	welcome->rank = hello->rank;
	welcome->n_ranks = record->n_ranks;
	memcpy(welcome->secret, hello->group, sizeof(welcome->secret));
	ret_fds[0] = made.segment.fd;
	ret_fds[1] = session->doorbell;
	return 0;
}
