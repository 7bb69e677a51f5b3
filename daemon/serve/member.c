/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file member.c
 * The processes of a session: rank 0, and the other ranks of its group.
 *
 * Each has a control socket, a pidfd and a segment with fence words. A slot has the index of the
 * core's record. The first process to go ends the session (session.c), which releases all slots.
 * Called by session.c, group.c and adopt.c.
 */

#include "kvtrunk_wire_segment.h"
#include "daemon/serve/member.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/connection.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "daemon/serve/stored.h"
#include "shm/assert.h"

int kvt_member_make(struct kvt_connection *connection, const char *name, struct kvt_member *made,
		    uint64_t *ret_start_time, char *why, size_t why_size)
{
	int error = kvt_peer_pidfd(connection->fd, &connection->peer, connection->accepted_boot_ns,
				   &made->pidfd, ret_start_time);

	if (error) {
		snprintf(why, why_size, "cannot watch process %d: %s%s",
			 (int)connection->peer.pid, strerror(-error),
			 error == -ENOTSUP ? " (it is in a PID namespace that the daemon does not "
					     "see, and this kernel lacks SO_PEERPIDFD)" :
			 error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)" : "");
		return error;
	}
	made->pid = connection->peer.pid;
	error = kvt_object_create_sealed(&made->segment, name, made->layout.bytes);
	if (error)
		snprintf(why, why_size, "cannot make a segment: %s%s", strerror(-error),
			 error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)" : "");
	return error;
}

struct kvt_fence_word *kvt_member_fences(const struct kvt_member *member)
{
	KVT_ASSERT(member->segment.base);
	return (void *)((char *)member->segment.base + member->layout.fences_offset);
}

void kvt_member_link(struct kvt_session *session, struct kvt_member *member)
{
	struct kvt_member **at = session->members ? &session->members->next : &session->members;

	KVT_ASSERT(session->index && (session->members || !member->rank));
	member->session = session->index;
	member->next = *at;
	*at = member;
}

void kvt_member_connect(struct kvt_daemon *daemon, struct kvt_member *member,
			struct kvt_connection *connection)
{
	KVT_ASSERT(!member->connection && !connection->member);
	connection->member = member;
	member->connection = (uint32_t)(connection - daemon->connections.slots) + 1;
	daemon->sessions.slots[member->session].connections++;
}

static uint64_t tag_of(const struct kvt_daemon *daemon, const struct kvt_member *member)
{
	return kvt_tag(KVT_TAG_PROCESS, member->index,
		       daemon->sessions.slots[member->session].generation);
}

void kvt_member_watch(struct kvt_daemon *daemon, struct kvt_member *member)
{
	KVT_ASSERT(member->session && !member->pidfd_armed);
	kvt_loop_poll(&daemon->loop, member->pidfd, POLLIN, tag_of(daemon, member));
	member->pidfd_armed = true;
}

void kvt_member_settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       struct kvt_session *session, const struct kvt_member *made)
{
	struct kvt_member *member = &daemon->members[made->index];

	KVT_ASSERT(!member->session);
	*member = *made;
	kvt_member_link(session, member);
	session->processes++;
	kvt_member_connect(daemon, member, connection);
	kvt_member_watch(daemon, member);
	kvt_keep_member(daemon, member);
}

void kvt_member_release(struct kvt_daemon *daemon, struct kvt_member *member)
{
	kvt_forget_member(daemon, member);
	if (member->pidfd >= 0) {
		kvt_loop_cancel(&daemon->loop, member->pidfd, tag_of(daemon, member),
				member->pidfd_armed);
		close(member->pidfd);
	}
	kvt_object_destroy(&member->segment);
	*member = (struct kvt_member){ .index = member->index, .pidfd = -1, .segment.fd = -1 };
}
