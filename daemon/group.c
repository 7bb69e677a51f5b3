/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "shm/assert.h"
#include "shm/atomic.h"

/* Groups: the processes of one tensor-parallel engine, which hold together what one session holds.
 *
 * Rank 0 opened the session and has its ring. Each other rank has a control socket, a pidfd, its
 * slab of the pool and fence words of its own, and nothing else: leases and pages are the
 * session's. The first socket or process to go ends the session, the last one to go lets private
 * pages out of quarantine; kvt_session.connections and .processes count all of them. */

/* A member's segment is a session's of the least size: nobody uses its ring. */
#define MEMBER_RING 2u

/* Of an adopted session: later its slot knows. */
static uint32_t find_ranks(const struct kvt_daemon *daemon, uint32_t session)
{
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		const struct kvt_member_record *member = kvt_core_member(daemon->core, i);

		if (member && member->session == session)
			return member->n_ranks;
	}
	return 0;
}

/* A client whose daemon died with the question asks it again. */
static bool same_again(const struct kvt_daemon *daemon, uint32_t session, uint32_t n_ranks,
		       uint64_t ret_token[2])
{
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		const struct kvt_member_record *member = kvt_core_member(daemon->core, i);

		if (!member || member->session != session || member->rank != 0)
			continue;
		memcpy(ret_token, member->secret, sizeof(member->secret));
		return member->n_ranks == n_ranks;
	}
	return false;
}

int kvt_group_open(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t n_ranks,
		   uint64_t ret_token[2], char *why, size_t why_size)
{
	uint64_t token[2];
	int error;

	if (!connection->session || connection->member) {
		snprintf(why, why_size, "only a process that opened a session can make a group of "
			 "it: %s", connection->member ? "this one is a member" : "an observer has "
							"none");
		return -ENOTCONN;
	}
	if (n_ranks < 2 || n_ranks > KVT_MAX_RANKS) {
		snprintf(why, why_size, "a group has 2 to %u ranks, not %u", KVT_MAX_RANKS,
			 n_ranks);
		return -EINVAL;
	}
	if (getrandom(token, sizeof(token), 0) != sizeof(token)) {
		snprintf(why, why_size, "no randomness for the group's token");
		return -EIO;
	}
	token[0] |= !(token[0] | token[1]); /* 0 would mean: no token */
	error = kvt_core_group_open(daemon->core, connection->session, n_ranks, token);
	if (error == -EALREADY && same_again(daemon, connection->session, n_ranks, ret_token))
		return 0;
	if (error == -ENOSPC)
		snprintf(why, why_size, "all max_members=%u places are taken by groups: end some, "
			 "or raise it", daemon->core_config.max_members);
	else if (error)
		snprintf(why, why_size, "this session leads a group of %u ranks already",
			 daemon->sessions[connection->session].n_ranks);
	if (error)
		return error;
	daemon->sessions[connection->session].n_ranks = n_ranks;
	memcpy(ret_token, token, sizeof(token));
	return 0;
}

/* ---- a member comes */

static const struct kvt_fence_word *words_of(const struct kvt_member *member)
{
	return (void *)((char *)member->segment.base + member->layout.fences_offset);
}

static int find_place(const struct kvt_daemon *daemon, const struct kvt_message_hello *hello,
		      uint32_t *ret_place, char *why, size_t why_size)
{
	int error = kvt_core_group_find(daemon->core, hello->group, hello->rank, ret_place);

	if (error == -ESTALE)
		snprintf(why, why_size, "no group has this token: its rank 0 ended or closed its "
			 "session, or it is another daemon's; get a new one from rank 0");
	else if (error == -ERANGE)
		snprintf(why, why_size, "rank %u is none of this group: members are rank 1 to the "
			 "last that rank 0 named, and rank 0 is who opened it", hello->rank);
	else if (error == -EEXIST)
		snprintf(why, why_size, "rank %u of this group has come already, and a group is "
			 "over with its first member: give each process a rank of its own",
			 hello->rank);
	return error;
}

/* Its words begin where rank 0's are: no fence that was reached becomes unreached. */
static void copy_words(const struct kvt_session *session, struct kvt_member *made)
{
	struct kvt_fence_word *to = (void *)((char *)made->segment.base +
					     made->layout.fences_offset);

	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		to[i].value = kvt_load_acquire(&session->ring.fences[i].value);
}

static int make_member(struct kvt_connection *connection, const struct kvt_session *session,
		       struct kvt_member *made, struct kvt_core_peer *peer, char *why,
		       size_t why_size)
{
	int error = kvt_peer_pidfd(connection->fd, &connection->peer, connection->accepted_boot_ns,
				   &made->pidfd, &peer->start_time);

	if (error) {
		snprintf(why, why_size, "cannot watch process %d: %s",
			 (int)connection->peer.pid, strerror(-error));
		return error;
	}
	error = kvt_segment_plan(&made->layout, MEMBER_RING, MEMBER_RING, 0, 0);
	if (!error)
		error = kvt_object_create_sealed(&made->segment, "kvtrunk-member",
						 made->layout.bytes);
	if (!error && getrandom(peer->secret, sizeof(peer->secret), 0) != sizeof(peer->secret))
		error = -EIO;
	if (error) {
		snprintf(why, why_size, "cannot make a member's segment: %s%s", strerror(-error),
			 error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)" : "");
		return error;
	}
	kvt_segment_format(made->segment.base, &made->layout, session->index);
	copy_words(session, made);
	return 0;
}

static void drop_member(struct kvt_daemon *daemon, struct kvt_member *member)
{
	if (member->pidfd_armed)
		kvt_loop_cancel(&daemon->loop, kvt_tag(KVT_TAG_MEMBER, member->index,
						       member->generation));
	kvt_unpark_member(daemon, member);
	if (member->pidfd >= 0)
		close(member->pidfd);
	kvt_object_destroy(&member->segment);
	*member = (struct kvt_member){ .pidfd = -1, .segment.fd = -1 };
}

static void watch(struct kvt_daemon *daemon, struct kvt_member *member)
{
	kvt_loop_poll(&daemon->loop, member->pidfd, POLLIN,
		      kvt_tag(KVT_TAG_MEMBER, member->index, member->generation));
	member->pidfd_armed = true;
}

/* The slot is the core's place from now on, and the session has a process more. */
static void settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   struct kvt_session *session, const struct kvt_member *made)
{
	struct kvt_member *member = &daemon->members[made->index];

	KVT_ASSERT(!member->session);
	*member = *made;
	member->session = session->index;
	member->generation = ++daemon->generation;
	member->pid = connection->peer.pid;
	member->connection = (uint32_t)(connection - daemon->connections) + 1;
	connection->session = session->index;
	connection->member = member->index;
	session->connections++;
	session->processes++;
	watch(daemon, member);
	member->name_generation = kvt_core_member(daemon->core, member->index)->generation;
	kvt_park_member(daemon, member, connection->fd);
}

int kvt_group_join(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   const struct kvt_message_hello *hello, const char *label,
		   struct kvt_message_welcome *welcome, int ret_fds[2], char *why, size_t why_size)
{
	struct kvt_member made = { .pidfd = -1, .segment.fd = -1 };
	struct kvt_core_peer peer = { .pid = connection->peer.pid, .uid = connection->peer.uid,
				      .label = label };
	const struct kvt_member_record *record;
	struct kvt_session *session;
	int error = find_place(daemon, hello, &made.index, why, why_size);

	if (error)
		return error;
	record = kvt_core_member(daemon->core, made.index);
	session = &daemon->sessions[record->session];
	if (!session->open) { /* its end is known here and on its way to the core */
		snprintf(why, why_size, "the group is over: get a new token from rank 0");
		return -ESTALE;
	}
	error = make_member(connection, session, &made, &peer, why, why_size);
	if (error) {
		drop_member(daemon, &made);
		return error;
	}
	settle(daemon, connection, session, &made);
	kvt_core_member_join(daemon->core, made.index, &peer,
			     words_of(&daemon->members[made.index]));
	welcome->session = session->index;
	welcome->segment_bytes = made.layout.bytes;
	welcome->rank = hello->rank;
	welcome->n_ranks = record->n_ranks;
	memcpy(welcome->secret, peer.secret, sizeof(welcome->secret));
	ret_fds[0] = made.segment.fd;
	ret_fds[1] = session->doorbell;
	return 0;
}

/* ---- a predecessor's */

static void take_segment(struct kvt_daemon *daemon, struct kvt_member *member)
{
	int fd = kvt_adopt_fd(daemon, KVT_PARCEL_MEMBER_SEGMENT, member->index,
			      member->name_generation);

	member->parked = fd >= 0 && !daemon->takeover;
	daemon->n_parked += member->parked ? KVT_PARCELS_PER_MEMBER : 0;
	if (fd >= 0 && kvt_object_take(&member->segment, fd) == 0 &&
	    kvt_segment_check(member->segment.base, member->segment.bytes, 0, &member->layout) != 0)
		kvt_object_destroy(&member->segment);
}

/* Whether its process lives, or may: by the pidfd that was left, else by number and start time. */
static bool find_process(struct kvt_daemon *daemon, struct kvt_member *member,
			 const struct kvt_member_record *record)
{
	member->pidfd = kvt_adopt_fd(daemon, KVT_PARCEL_MEMBER_PIDFD, member->index,
				     member->name_generation);
	if (record->signs & KVT_SIGN_EXITED && member->pidfd >= 0) {
		close(member->pidfd);
		member->pidfd = -1;
	}
	if (record->signs & KVT_SIGN_EXITED)
		return false;
	if (member->pidfd >= 0 || record->pid == 0) /* 0: not visible here */
		return true;
	return kvt_peer_pidfd_of(record->pid, record->start_time, &member->pidfd) == 0;
}

bool kvt_group_adopt(struct kvt_daemon *daemon, struct kvt_session *session)
{
	bool whole = true;

	session->n_ranks = find_ranks(daemon, session->index);
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		const struct kvt_member_record *record = kvt_core_member(daemon->core, i);
		struct kvt_member *member = &daemon->members[i];
		bool lives;

		if (!record || record->session != session->index ||
		    (record->state != KVT_MEMBER_JOINED && record->state != KVT_MEMBER_OVER))
			continue;
		member->index = i;
		member->session = session->index;
		member->generation = ++daemon->generation;
		member->name_generation = record->generation;
		member->pid = record->pid;
		take_segment(daemon, member);
		lives = find_process(daemon, member, record);
		session->processes += lives;
		whole = whole && lives && member->segment.base &&
			record->state == KVT_MEMBER_JOINED;
	}
	return whole;
}

/* Its socket. A hang-up that nobody saw ends the group like one that is seen. */
static bool adopt_socket(struct kvt_daemon *daemon, struct kvt_session *session,
			 struct kvt_member *member)
{
	int fd = kvt_adopt_fd(daemon, KVT_PARCEL_MEMBER_CONTROL, member->index,
			      member->name_generation);

	return fd >= 0 && kvt_control_adopted(daemon, fd, session, member);
}

void kvt_group_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool lives)
{
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		struct kvt_member *member = &daemon->members[i];
		bool connected;

		if (member->session != session->index)
			continue;
		connected = adopt_socket(daemon, session, member);
		if (member->pidfd >= 0)
			watch(daemon, member);
		if (lives)
			kvt_core_member_attach(daemon->core, i, words_of(member));
		if (lives && !connected)
			kvt_session_kill(daemon, session, -ECONNRESET,
					 "the group is over: the connection of a member was not "
					 "kept over the daemon's restart");
	}
}

void kvt_group_views(struct kvt_daemon *daemon)
{
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++)
		if (daemon->members[i].session && daemon->members[i].segment.base &&
		    daemon->sessions[daemon->members[i].session].open)
			kvt_core_member_attach(daemon->core, i, words_of(&daemon->members[i]));
}

/* ---- the end */

static void tell(struct kvt_daemon *daemon, struct kvt_member *member, int error, const char *why)
{
	struct kvt_segment_header *header = member->segment.base;
	struct kvt_connection *connection;

	member->told = true;
	if (header)
		kvt_store_release(&header->gone, (uint32_t)-error);
	if (!member->connection)
		return;
	connection = &daemon->connections[member->connection - 1];
	if (connection->state == KVT_CONNECTION_OVER)
		return;
	/* The socket stays open on our side: only its hang-up tells that nobody holds it. */
	connection->state = KVT_CONNECTION_OVER;
	kvt_control_say(daemon, connection, KVT_MSG_GOODBYE, 0, error, why);
}

void kvt_group_over(struct kvt_daemon *daemon, uint32_t session, int error, const char *why)
{
	if (!daemon->sessions[session].n_ranks)
		return;
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++)
		if (daemon->members[i].session == session && !daemon->members[i].told)
			tell(daemon, &daemon->members[i], error, why);
}

/* The group is over with its first member, unless it is over already. */
static void end_group(struct kvt_daemon *daemon, struct kvt_member *member, const char *how)
{
	const struct kvt_member_record *record = kvt_core_member(daemon->core, member->index);
	struct kvt_session *session = &daemon->sessions[member->session];
	char why[KVT_TEXT_BYTES];

	member->told = true; /* there is nobody to tell */
	if (!record || kvt_core_session(daemon->core, session->index)->signs & KVT_SIGN_CLOSED)
		return;
	snprintf(why, sizeof(why), "the group is over: rank %u (pid %d) %s", record->rank,
		 (int)member->pid, how);
	kvt_session_kill(daemon, session, -ECONNRESET, why);
}

void kvt_member_hangup(struct kvt_daemon *daemon, struct kvt_member *member)
{
	member->connection = 0;
	end_group(daemon, member, "hung up");
	kvt_core_member_sign(daemon->core, member->index, KVT_SIGN_HANGUP);
	kvt_session_part(daemon, &daemon->sessions[member->session], false, "member_hangup");
}

void kvt_member_exited(struct kvt_daemon *daemon, struct kvt_member *member)
{
	member->pidfd_armed = false;
	if (member->connection) /* whoever holds the socket now is not the client */
		daemon->connections[member->connection - 1].state = KVT_CONNECTION_OVER;
	end_group(daemon, member, "exited");
	kvt_core_member_sign(daemon->core, member->index, KVT_SIGN_EXITED);
	kvt_session_part(daemon, &daemon->sessions[member->session], true, "member_exited");
}

void kvt_group_release(struct kvt_daemon *daemon, uint32_t session)
{
	if (!daemon->sessions[session].n_ranks)
		return;
	for (uint32_t i = 1; i <= daemon->core_config.max_members; i++) {
		struct kvt_member *member = &daemon->members[i];
		uint32_t connection = member->connection;

		if (member->session != session)
			continue;
		drop_member(daemon, member);
		if (!connection)
			continue;
		daemon->connections[connection - 1].session = 0;
		daemon->connections[connection - 1].member = 0;
		kvt_control_drop(daemon, &daemon->connections[connection - 1]);
	}
}
