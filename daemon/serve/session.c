/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file session.c
 * A session's areas, doorbell and bell, from open to release, and its end.
 *
 * The core owns the session's leases and pages; the slot here has the same index. A session ends
 * at the first sign (a kill, or hang-up or exit of one of its processes): no further entry is
 * taken, and the slot stays until the core is done with it (kvt_sessions_sweep()). Private pages
 * leave quarantine after the last hang-up and the last exit. Large areas are freed bit by bit.
 * Called by control.c, group.c, adopt.c and turn.c.
 */

#include "kvtrunk_wire_segment.h"
#include "daemon/serve/session.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/records.h"
#include "daemon/core/view.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/member.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/state.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"

struct kvt_core_peer;

/* Faulted in before the first operation. */
#define PREFAULT_BYTES (256u << 10)
#define RELEASES_PER_TURN 2
/* Bytes of areas in one turn: about 0.1 ms. Areas of 132 MiB take 20 ms at once. */
#define FREE_BYTES (1u << 20)

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void kvt_session_release(struct kvt_daemon *daemon, struct kvt_session *session)
{
	uint64_t tag = kvt_tag(KVT_TAG_DOORBELL, session->index, session->generation);
	struct kvt_member *member = session->members, *next;

	if (daemon->pool.ops && daemon->pool.ops->forget)
		daemon->pool.ops->forget(&daemon->pool, session->index);
	for (; member; member = next) {
		next = member->next;
		kvt_member_release(daemon, member);
	}
	if (session->doorbell >= 0)
		kvt_loop_cancel(&daemon->loop, session->doorbell, tag, session->doorbell_armed);
	close_fd(&session->doorbell);
	close_fd(&session->bell);
	close_fd(&session->mirror);
	kvt_object_destroy(&session->areas);
	*session = KVT_SESSION_NONE;
}

/* Leave the areas to free_some(). No process uses them any more, or it was told that they go. */
static void leave_areas(struct kvt_daemon *daemon, struct kvt_session *session)
{
	if (!session->areas.base || daemon->sessions.n_leaving == daemon->core_config.max_sessions)
		return;
	close_fd(&session->areas.fd);
	daemon->sessions.leaving[daemon->sessions.n_leaving++] = session->areas;
	session->areas = (struct kvt_object){ .fd = -1 };
}

/* Free a part of the areas of ended sessions. */
static void free_some(struct kvt_daemon *daemon)
{
	struct kvt_object *last = &daemon->sessions.leaving[daemon->sessions.n_leaving - 1];
	char *end = (char *)last->base + last->bytes;

	KVT_ASSERT(daemon->sessions.n_leaving > 0);
	if (last->bytes <= FREE_BYTES) {
		kvt_object_destroy(last);
		daemon->sessions.n_leaving--;
		return;
	}
	madvise(end - FREE_BYTES, FREE_BYTES, MADV_REMOVE); /* best effort: munmap() does it, too */
	munmap(end - FREE_BYTES, FREE_BYTES);
	last->bytes -= FREE_BYTES;
}

/* Make the completion descriptor: a socket pair, because O_NONBLOCK of an eventfd is the client's,
 * too. Our end receives nothing. */
static int make_bell(int *ret_client, int *ret_daemon)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
		return -errno;
	shutdown(ends[0], SHUT_RD);
	*ret_daemon = ends[0];
	*ret_client = ends[1];
	return 0;
}

void kvt_session_doorbell_event(struct kvt_daemon *daemon, struct kvt_session *session,
				int result)
{
	uint64_t count;

	session->doorbell_armed = false;
	/* Only if it rang: the client may have made it blocking. */
	if (result > 0 && result & POLLIN && read(session->doorbell, &count, sizeof(count)) < 0)
		kvt_host_refuses(daemon, "read", errno);
}

/* Ring the client's bell, unless an earlier ring is unread. */
void kvt_session_ring_bell(struct kvt_daemon *daemon, struct kvt_session *session)
{
	static const uint64_t one = 1;
	int unanswered = 0;

	if (session->bell < 0 ||
	    (ioctl(session->bell, SIOCOUTQ, &unanswered) == 0 && unanswered > 0))
		return;
	if (send(session->bell, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		kvt_host_refuses(daemon, "sendto", errno); /* EPIPE: the client is gone */
}

void kvt_session_say_gone(struct kvt_daemon *daemon, const struct kvt_member *member, int error)
{
	struct kvt_segment_header *header = member->segment.base;

	if (!header)
		return;
	kvt_store_release(&header->gone, (uint32_t)-error);
	if (!member->rank)
		kvt_session_ring_bell(daemon, &daemon->sessions.slots[member->session]);
}

static int make_areas_and_bells(struct kvt_session *made, bool mirror, int *ret_completion,
				char *why, size_t why_size)
{
	const struct kvt_segment_layout *layout = &made->members->layout;
	uint64_t front = layout->areas_bytes < PREFAULT_BYTES ? layout->areas_bytes :
								PREFAULT_BYTES;
	int error = kvt_object_create_sealed(&made->areas, "kvtrunk-areas", layout->areas_bytes);

	if (!error) {
		/* An optimization: it may fail. */
		madvise(made->members->segment.base, layout->bytes, MADV_POPULATE_WRITE);
		madvise(made->areas.base, front, MADV_POPULATE_WRITE);
		made->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		error = made->doorbell < 0 ? -errno : 0;
	}
	if (!error)
		error = make_bell(ret_completion, &made->bell);
	if (!error && mirror)
		error = kvt_object_create_unmapped("kvtrunk-mirror", sizeof(struct kvt_mirror),
						   &made->mirror);
	if (error)
		snprintf(why, why_size, "cannot make descriptors for the session: %s%s",
			 strerror(-error),
			 error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)" : "");
	return error;
}

void kvt_session_view(const struct kvt_session *session, struct kvt_core_view *ret_view)
{
	const struct kvt_segment_layout *layout = &session->members->layout;
	char *areas = session->areas.base;

	*ret_view = (struct kvt_core_view){
		.keys = (const uint32_t *)(areas + layout->keys_offset),
		.keys_count = layout->keys_count,
		.list = (uint32_t *)(areas + layout->list_offset),
		.list_count = layout->list_count,
		.fences = kvt_member_fences(session->members),
	};
}

static int open_in_core(struct kvt_daemon *daemon, struct kvt_connection *connection,
			struct kvt_session *slot, const struct kvt_session_wish *wish,
			struct kvt_core_peer *peer, char *why, size_t why_size)
{
	struct kvt_core_view view;
	int error;

	kvt_session_view(slot, &view);
	peer->pid = connection->peer.pid;
	peer->uid = connection->peer.uid;
	peer->privileged = connection->peer.privileged;
	peer->label = wish->label;
	error = kvt_core_session_open(daemon->core, peer, &view, daemon->clock.now_ns,
				      &slot->index);
	if (error == -EDQUOT)
		snprintf(why, why_size, "uid %u has %u sessions (dead ones with pages in "
			 "quarantine count), the most for one uid (7/8 of "
			 "max_sessions=%u): end some, raise it, or run workers as several users",
			 (unsigned int)peer->uid, daemon->core_config.uid_sessions,
			 daemon->core_config.max_sessions);
	else if (error)
		snprintf(why, why_size, error == -EUSERS
			 ? "all %u sessions are in use (or their pages still in quarantine), but "
			   "for a last one that is kept for privileged clients: end some, or "
			   "raise max_sessions"
			 : "the session was refused (max_sessions %u)",
			 daemon->core_config.max_sessions);
	return error;
}

void kvt_session_note_end(struct kvt_daemon *daemon, struct kvt_session *session,
			  const char *how)
{
	const struct kvt_session_record *record = kvt_core_session(daemon->core, session->index);
	const struct kvt_member_record *first = kvt_core_member(daemon->core, session->index);
	struct kvt_session_end *end = &session->end;

	if (end->how)
		return;
	*end = (struct kvt_session_end){
		.how = how,
		.at_ns = daemon->clock.real_ns,
		.operations = record->operations,
		.leases = record->n_leases,
		.pages = record->n_private + record->n_quarantined,
	};
	kvt_log_clean(end->label, sizeof(end->label), first ? first->label : "",
		      sizeof(first->label));
}

void kvt_session_log_suspect(struct kvt_daemon *daemon, const struct kvt_session *session,
			     uint32_t page, uint32_t owner)
{
	const struct kvt_member_record *sealer =
		owner ? kvt_core_member(daemon->core, owner) : NULL;
	char label[KVT_LABEL_BYTES];

	kvt_log_clean(label, sizeof(label), sealer ? sealer->label : "", sizeof(label));
	kvt_log_limited(&daemon->client_log, session->members->pid, daemon->clock.real_ns,
			KVT_LOG_WARNING, "page_suspected", "session=%u pid=%d page=%u sealed_by=%u "
			"sealer_pid=%d sealer_label=\"%s\" why=\"the session computed other KV for "
			"it\"", session->index,
			(int)session->members->pid, page, owner, sealer ? sealer->pid : 0, label);
}

/* Name the sessions that are open, as "2:1234:engine 5:1300:other and 3 more". */
static void name_open(const struct kvt_daemon *daemon, char *text, size_t bytes)
{
	const struct kvt_sessions *sessions = &daemon->sessions;
	char name[KVT_LABEL_BYTES + 32], label[KVT_LABEL_BYTES], rest[32];
	size_t n = 0;

	*text = '\0';
	for (uint32_t i = 0; i < sessions->n_served; i++) {
		uint32_t index = sessions->served[i];
		const struct kvt_member_record *first = kvt_core_member(daemon->core, index);

		kvt_log_clean(label, sizeof(label), first ? first->label : "", sizeof(label));
		snprintf(name, sizeof(name), "%s%u:%d:%s", i ? " " : "", index,
			 first ? first->pid : 0, label);
		snprintf(rest, sizeof(rest), " and %u more", sessions->n_served - i);
		if (n + strlen(name) + sizeof(rest) > bytes) {
			memcpy(text + n, rest, strlen(rest) + 1);
			return;
		}
		memcpy(text + n, name, strlen(name) + 1);
		n += strlen(name);
	}
}

void kvt_session_log_damage(struct kvt_daemon *daemon, const struct kvt_session *session,
			    uint32_t leases)
{
	char open[640]; /* a line has 1024 */

	name_open(daemon, open, sizeof(open));
	kvt_log_limited(&daemon->client_log, session->members->pid, daemon->clock.real_ns,
			KVT_LOG_WARNING, "page_damaged", "session=%u pid=%d leases=%u open=\"%s\" "
			"why=\"a page was written after it was sealed, by one of these or by one "
			"that has ended; it is withdrawn\"", session->index,
			(int)session->members->pid, leases, open);
}

/* Log the session's life in one line: how it ended, what it held, how long its pages stayed in
 * quarantine. */
static void log_free(struct kvt_daemon *daemon, const struct kvt_session *session)
{
	const struct kvt_session_end *end = &session->end;
	pid_t pid = session->members->pid;

	if (!end->how)
		return;
	kvt_log_limited(&daemon->client_log, pid, daemon->clock.real_ns, KVT_LOG_INFO,
			"session_free", "session=%u pid=%d end=%s label=\"%s\" operations=%llu "
			"leases=%u pages=%u returned_ms=%llu", session->index, (int)pid, end->how,
			end->label, (unsigned long long)end->operations, end->leases, end->pages,
			(unsigned long long)(daemon->clock.real_ns - end->at_ns) / 1000000);
}

/* Free the slots of a session that the core is done with. */
static void retire(struct kvt_daemon *daemon, struct kvt_session *session)
{
	KVT_ASSERT(session->dying && !session->open && daemon->sessions.n_dying > 0);
	log_free(daemon, session);
	daemon->sessions.n_dying--;
	/* Clients see the hang-up, if they still have their sockets. */
	for (struct kvt_member *member = session->members; member; member = member->next)
		if (member->connection)
			kvt_connection_drop(daemon,
					    &daemon->connections.slots[member->connection - 1]);
	leave_areas(daemon, session);
	kvt_session_release(daemon, session);
}

void kvt_session_vacate(struct kvt_daemon *daemon, uint32_t member)
{
	if (daemon->members[member].session)
		retire(daemon, &daemon->sessions.slots[daemon->members[member].session]);
}

static uint32_t beyond_own_places(const struct kvt_daemon *daemon,
				  const struct kvt_session *session)
{
	uint32_t own = daemon->sessions.own_places;

	return session->deferred > own ? session->deferred - own : 0;
}

static void begin_serving(struct kvt_daemon *daemon, struct kvt_session *session)
{
	KVT_ASSERT(session->open && daemon->sessions.n_served < daemon->core_config.max_sessions);
	KVT_ASSERT(daemon->sessions.n_hot <= daemon->sessions.n_served);
	kvt_share_begin(&daemon->shares, &session->share);
	/* New sessions are hot: move the first cold one to the end. */
	daemon->sessions.served[daemon->sessions.n_served++] =
		daemon->sessions.served[daemon->sessions.n_hot];
	daemon->sessions.served[daemon->sessions.n_hot++] = session->index;
	session->worked_turn = daemon->stats.turns;
}

/* Fill the slot that the core chose and start serving. */
static struct kvt_session *settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
				  const struct kvt_session *made)
{
	struct kvt_session *session = &daemon->sessions.slots[made->index];
	struct kvt_member *first = made->members;

	kvt_session_vacate(daemon, made->index);
	KVT_ASSERT(!session->members && !session->open && !session->dying);
	*session = *made;
	session->members = NULL;
	session->generation = ++daemon->generation;
	session->name_generation = kvt_core_session(daemon->core, made->index)->generation;
	session->uid = connection->peer.uid;
	session->open = true;
	first->index = made->index;
	kvt_member_settle(daemon, connection, session, first);
	kvt_segment_format(first->segment.base, &first->layout, session->index);
	kvt_ring_end_init(&session->ring, first->segment.base, session->areas.base,
			  &first->layout);
	begin_serving(daemon, session);
	return session;
}

void kvt_session_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool serve)
{
	KVT_ASSERT(session->members && !session->open && !session->dying);
	session->uid = kvt_core_member(daemon->core, session->index)->uid;
	if (serve) {
		session->open = true;
		begin_serving(daemon, session);
		daemon->sessions.n_deferred += session->deferred;
		daemon->sessions.n_common += beyond_own_places(daemon, session);
		session->waiting_since_ns = daemon->clock.real_ns;
	} else {
		session->dying = true;
		daemon->sessions.n_dying++;
		daemon->sessions.sweep_due = true;
	}
}

int kvt_session_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
		     const struct kvt_session_wish *wish, uint64_t secret[2], int ret_fds[4],
		     char *why, size_t why_size)
{
	struct kvt_session made = KVT_SESSION_NONE, *session;
	struct kvt_member first = { .pidfd = -1, .segment.fd = -1 };
	struct kvt_core_peer peer = { 0 };
	int completion = -1, error;

	made.members = &first;
	made.no_resume = wish->no_resume;
	kvt_segment_plan(&first.layout, wish->sq_entries, wish->cq_entries, wish->keys_count,
			 wish->list_count);
	error = kvt_member_make(connection, "kvtrunk-session", &first, &peer.start_time, why,
				why_size);
	if (!error)
		error = make_areas_and_bells(&made, wish->mirror, &completion, why,
					     why_size);
	if (!error && getrandom(peer.secret, sizeof(peer.secret), 0) != sizeof(peer.secret)) {
		snprintf(why, why_size, "no randomness for the session's secret");
		error = -EIO;
	}
	if (!error)
		error = open_in_core(daemon, connection, &made, wish, &peer, why, why_size);
	if (error) {
		close_fd(&completion);
		close_fd(&made.doorbell);
		close_fd(&made.bell);
		close_fd(&made.mirror);
		kvt_object_destroy(&made.areas);
		kvt_member_release(daemon, &first);
		return error;
	}
	session = settle(daemon, connection, &made);
	memcpy(secret, peer.secret, sizeof(peer.secret));
	ret_fds[0] = first.segment.fd;
	ret_fds[1] = session->areas.fd;
	ret_fds[2] = session->doorbell;
	ret_fds[3] = completion;
	return 0;
}

/* Find the process that this HELLO names by its secret and rank, or NULL. */
static struct kvt_member *find_secret(struct kvt_daemon *daemon,
				      const struct kvt_message_hello *hello)
{
	for (uint32_t i = 1; i <= kvt_core_members(&daemon->core_config); i++) {
		const struct kvt_member_record *record = kvt_core_member(daemon->core, i);

		/* Secrets are compared whole, so that the time it takes tells nothing. */
		if (daemon->members[i].session && record && record->rank == hello->rank &&
		    !((record->secret[0] ^ hello->secret[0]) |
		      (record->secret[1] ^ hello->secret[1])))
			return &daemon->members[i];
	}
	return NULL;
}

int kvt_session_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       const struct kvt_message_hello *hello, char *why, size_t why_size)
{
	struct kvt_member *member = find_secret(daemon, hello);
	const struct kvt_member_record *record;
	uint64_t start_time = 0;
	int pidfd = -1;

	if (!member || !daemon->sessions.slots[member->session].open || member->connection) {
		snprintf(why, why_size, "no session with this secret waits to be resumed: %s: "
			 "connect without a secret", !member ? "the daemon started cold" :
			 member->connection ? "it is connected" :
			 "it could not be continued after the daemon's restart");
		return -ESTALE;
	}
	record = kvt_core_member(daemon->core, member->index);
	if (kvt_peer_pidfd(connection->fd, &connection->peer, connection->accepted_boot_ns,
			   &pidfd, &start_time) != 0 ||
	    record->pid != connection->peer.pid || record->uid != connection->peer.uid ||
	    record->start_time != start_time) {
		close_fd(&pidfd);
		snprintf(why, why_size, "the session of this secret is another process's (pid %d): "
			 "connect without a secret", (int)record->pid);
		return -ESTALE;
	}
	close_fd(&pidfd);
	kvt_member_connect(daemon, member, connection);
	return 0;
}

/* Remove it from `served`, whose first n_hot are polled in every turn. */
static void unserve(struct kvt_daemon *daemon, uint32_t index)
{
	uint32_t *served = daemon->sessions.served;
	uint32_t at = 0;

	while (at < daemon->sessions.n_served && served[at] != index)
		at++;
	KVT_ASSERT(at < daemon->sessions.n_served &&
		   daemon->sessions.n_hot <= daemon->sessions.n_served);
	if (at < daemon->sessions.n_hot) {
		served[at] = served[--daemon->sessions.n_hot];
		at = daemon->sessions.n_hot;
	}
	served[at] = served[--daemon->sessions.n_served];
}

/* Stop taking entries. The core drops the deferred ones. */
static void stop_serving(struct kvt_daemon *daemon, struct kvt_session *session)
{
	if (session->open) {
		session->open = false;
		unserve(daemon, session->index);
		kvt_share_end(&daemon->shares, &session->share);
	}
	daemon->sessions.sweep_due = true;
	if (!session->dying) {
		session->dying = true;
		daemon->sessions.n_dying++;
	}
	KVT_ASSERT(daemon->sessions.n_deferred >= session->deferred &&
		   daemon->sessions.n_common >= beyond_own_places(daemon, session));
	daemon->sessions.n_deferred -= session->deferred;
	daemon->sessions.n_common -= beyond_own_places(daemon, session);
	session->deferred = 0;
	session->holding = false;
	daemon->turn.compact_due = true;
}

static bool in_core(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	return session->members &&
	       kvt_core_session(daemon->core, session->index)->state != KVT_SESSION_FREE;
}

/* Log once that the pool cannot say whether a dead client still writes. */
static void log_unproved(struct kvt_daemon *daemon, struct kvt_session *session, const char *why)
{
	session->unproved = true;
	kvt_log_limited(&daemon->client_log, session->members->pid, daemon->clock.real_ns,
			KVT_LOG_WARNING, "mps_silent",
			"session=%u pid=%d why=\"%s\" "
			"effect=\"its pages are free mps_grace_ms after its end\" "
			"cure=\"docs/gpu.md, When a dead client's pages are free again\"",
			session->index, (int)session->members->pid, why);
}

/* Ask the pool whether private pages can be freed. That needs every socket hung up, every process
 * exited, and no launched kernel or DMA that still writes. */
static void ask_quiet(struct kvt_daemon *daemon, struct kvt_session *session)
{
	struct kvt_pool_writer writer = { .session = session->index };
	uint64_t again_ns = UINT64_MAX;
	char why[256] = "";

	if (session->quiet || session->connections || session->processes ||
	    !in_core(daemon, session))
		return;
	if (!session->ended_ns)
		session->ended_ns = daemon->clock.real_ns;
	if (daemon->clock.real_ns < session->quiet_again_ns)
		return;
	writer.ended_ns = session->ended_ns;
	for (const struct kvt_member *member = session->members; member; member = member->next) {
		KVT_ASSERT(writer.n_pids < KVT_MAX_RANKS);
		writer.pids[writer.n_pids++] = member->pid;
	}
	session->quiet = daemon->pool.ops->quiesce(&daemon->pool, &writer, daemon->clock.real_ns,
						   &again_ns, why, sizeof(why));
	if (*why && !session->unproved)
		log_unproved(daemon, session, why);
	if (!session->quiet) {
		session->quiet_again_ns = again_ns;
		if (again_ns < daemon->timers.next_ns)
			daemon->timers.next_ns = again_ns;
		return;
	}
	kvt_core_session_sign(daemon->core, session->index, KVT_SIGN_QUIET, daemon->clock.now_ns);
}

/* Log the first sign of the session's end. */
static void log_over(struct kvt_daemon *daemon, struct kvt_session *session, const char *sign)
{
	const struct kvt_session_record *record = kvt_core_session(daemon->core, session->index);

	if (session->dying)
		return;
	kvt_session_note_end(daemon, session, "died");
	kvt_log_limited(&daemon->client_log, session->members->pid, daemon->clock.real_ns,
			KVT_LOG_INFO,
			"session_over", "session=%u pid=%d sign=%s leases=%u private_pages=%u",
			session->index, (int)session->members->pid, sign, record->n_leases,
			record->n_private);
}

/* KVT_SIGN_HANGUP if a recovered session has no connection: the exit is its only sign. */
static uint32_t lost_hangup(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	uint32_t signs = kvt_core_session(daemon->core, session->index)->signs;

	return session->connections || signs & KVT_SIGN_HANGUP ? 0 : KVT_SIGN_HANGUP;
}

/* The mark comes last: who sees it finds GOODBYE, with the cause, in its socket. */
static void tell(struct kvt_daemon *daemon, struct kvt_member *member, int error, const char *why)
{
	struct kvt_connection *connection =
		member->connection ? &daemon->connections.slots[member->connection - 1] : NULL;

	member->told = true;
	if (connection && connection->state != KVT_CONNECTION_OVER) {
		/* Keep our end open: its hang-up tells that no process holds the other. */
		connection->state = KVT_CONNECTION_OVER;
		kvt_connection_goodbye(daemon, connection, error, why);
	}
	kvt_session_say_gone(daemon, member, error);
}

void kvt_session_tell(struct kvt_daemon *daemon, struct kvt_member *member, int error,
		      const char *why)
{
	for (; member; member = member->next)
		if (!member->told)
			tell(daemon, member, error, why);
}

void kvt_session_kill(struct kvt_daemon *daemon, struct kvt_session *session, int error,
		      const char *why)
{
	if (!session->open)
		return;
	kvt_session_note_end(daemon, session, "killed");
	kvt_log_limited(&daemon->client_log, session->members->pid, daemon->clock.real_ns,
			KVT_LOG_WARNING, "session_ended", "session=%u pid=%d why=\"%s\"",
			session->index, (int)session->members->pid, why);
	if (in_core(daemon, session))
		kvt_core_session_kill(daemon->core, session->index, daemon->clock.now_ns);
	stop_serving(daemon, session);
	kvt_session_tell(daemon, session->members, error, why);
}

/* End the group of a process that is gone. */
static void end_group(struct kvt_daemon *daemon, struct kvt_member *member, const char *how)
{
	struct kvt_session *session = &daemon->sessions.slots[member->session];
	char why[KVT_TEXT_BYTES];

	member->told = true; /* send it nothing */
	snprintf(why, sizeof(why), "the group is over: rank %u (pid %d) %s", member->rank,
		 (int)member->pid, how);
	if (!member->rank)
		kvt_session_tell(daemon, member->next, -ECONNRESET, why);
	else if (in_core(daemon, session) &&
		 !(kvt_core_session(daemon->core, session->index)->signs & KVT_SIGN_CLOSED))
		kvt_session_kill(daemon, session, -ECONNRESET, why);
}

void kvt_session_lost(struct kvt_daemon *daemon, struct kvt_member *member, bool exited)
{
	struct kvt_session *session = &daemon->sessions.slots[member->session];
	uint32_t *left = exited ? &session->processes : &session->connections;
	uint32_t signs = exited ? KVT_SIGN_EXITED : KVT_SIGN_HANGUP;

	KVT_ASSERT(member->session && (exited || member->connection));
	if (exited)
		member->pidfd_armed = false;
	else
		member->connection = 0;
	if (member->connection) /* another process has inherited the socket */
		daemon->connections.slots[member->connection - 1].state = KVT_CONNECTION_OVER;
	end_group(daemon, member, exited ? "exited" : "hung up");
	kvt_core_member_sign(daemon->core, member->index, signs);
	KVT_ASSERT(*left > 0);
	(*left)--;
	if (in_core(daemon, session)) {
		log_over(daemon, session, exited ? "exited" : "hangup");
		if (*left)
			kvt_core_session_kill(daemon->core, session->index, daemon->clock.now_ns);
		else
			kvt_core_session_sign(daemon->core, session->index,
					      exited ? signs | lost_hangup(daemon, session) : signs,
					      daemon->clock.now_ns);
	}
	stop_serving(daemon, session);
	ask_quiet(daemon, session);
}

void kvt_session_fence(struct kvt_daemon *daemon, struct kvt_session *session)
{
	KVT_ASSERT(session->members); /* as long as the core has the session */
	kvt_core_session_sign(daemon->core, session->index, KVT_SIGN_FENCED, daemon->clock.now_ns);
	kvt_log(KVT_LOG_NOTICE, "session_fenced", "session=%u pid=%d", session->index,
		(int)session->members->pid);
	stop_serving(daemon, session);
}

/* True if no process has the other end of the bell, and the ring has no CLOSE left to run. */
static bool is_abandoned(struct kvt_session *session)
{
	struct pollfd bell = { .fd = session->bell };

	return !session->deferred && !session->holding && poll(&bell, 1, 0) == 1 &&
	       bell.revents & POLLHUP && kvt_ring_sq_pending(&session->ring) == 0;
}

/* End recovered sessions whose client closed or abandoned them before it connected again: they have
 * no socket that could hang up. */
static void end_unconnected(struct kvt_daemon *daemon)
{
	daemon->sessions.look_due = false;
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++) {
		struct kvt_session *session = &daemon->sessions.slots[i];

		if (!session->open || session->connections ||
		    (!(kvt_core_session(daemon->core, i)->signs & KVT_SIGN_CLOSED) &&
		     !is_abandoned(session)))
			continue;
		log_over(daemon, session, "unconnected");
		kvt_core_session_sign(daemon->core, i, KVT_SIGN_HANGUP, daemon->clock.now_ns);
		stop_serving(daemon, session);
	}
}

void kvt_sessions_sweep(struct kvt_daemon *daemon)
{
	/* Unmapping is slow: first return the pages that others wait for. */
	bool first = kvt_core_unsettled(daemon->core);
	uint32_t released = 0;

	if (daemon->sessions.look_due)
		end_unconnected(daemon);
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions &&
	     daemon->sessions.n_dying; i++) {
		struct kvt_session *session = &daemon->sessions.slots[i];

		if (!session->dying)
			continue;
		if (in_core(daemon, session))
			ask_quiet(daemon, session);
		else if (first || released++ >= RELEASES_PER_TURN)
			daemon->sessions.sweep_due = true;
		else
			retire(daemon, session);
	}
	if (daemon->sessions.n_leaving && !first && !released)
		free_some(daemon);
	daemon->sessions.sweep_due |= daemon->sessions.n_leaving != 0;
}
