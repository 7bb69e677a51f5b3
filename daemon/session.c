/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

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
#include <time.h>
#include <unistd.h>

#include "shm/assert.h"

/* Touched by almost every operation, so worth faulting in before the first one. */
#define PREFAULT_BYTES (256u << 10)
#define RELEASES_PER_TURN 2

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

void kvt_session_hold(struct kvt_daemon *daemon, struct kvt_session *session)
{
	const int fds[] = { session->doorbell, session->bell, session->segment.fd,
			    session->areas.fd };

	session->hold = kvt_closer_hold(&daemon->closer, session->uid, fds,
					sizeof(fds) / sizeof(fds[0]));
}

void kvt_session_release(struct kvt_daemon *daemon, struct kvt_session *session)
{
	struct kvt_leaving leaving = {
		.key = session->hold,
		.uid = session->uid,
		.n_fds = 4,
		.fds = { session->doorbell, session->bell, session->segment.fd,
			 session->areas.fd },
	};

	if (session->doorbell_armed) {
		leaving.tag = kvt_tag(KVT_TAG_DOORBELL, session->index, session->generation);
		kvt_loop_cancel(&daemon->loop, leaving.tag);
	}
	if (session->pidfd_armed)
		kvt_loop_cancel(&daemon->loop, kvt_tag(KVT_TAG_PROCESS, session->index,
						       session->generation));
	kvt_unpark_session(daemon, session);
	close_fd(&session->pidfd);
	/* Their memory goes with the last descriptor, not here. */
	session->segment.fd = session->areas.fd = -1;
	kvt_object_destroy(&session->segment);
	kvt_object_destroy(&session->areas);
	kvt_closer_leave(&daemon->closer, &leaving);
	memset(session, 0, sizeof(*session));
	session->pidfd = session->doorbell = session->bell = -1;
	session->segment.fd = session->areas.fd = -1;
}

/* The completion descriptor is the client's end of a socket pair. Both ends of an eventfd would be
 * one file, whose flags and count the client could use to block us; a reader of a pipe holds its
 * mutex while it waits for its own page, and write() then waits, O_NONBLOCK or not. send() to a
 * socket takes spin locks only. Nothing can be sent to our end: descriptors that lay in its queue
 * would be released with it. */
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

static uint64_t processor_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

struct kvt_wake kvt_cost_begin(const struct kvt_cost *cost)
{
	return (struct kvt_wake){ .cycles = kvt_cycles(),
				  .processor_ns = cost->suspect ? processor_ns() : 0 };
}

/* The first that takes long is not charged, because the thread may just not have run. */
bool kvt_cost_end(struct kvt_daemon *daemon, struct kvt_cost *cost, const struct kvt_wake *wake)
{
	bool slow = kvt_cycles() - wake->cycles > KVT_COST_SLOW_US * daemon->cycles_per_us;
	uint64_t ns, off;

	if (!wake->processor_ns) {
		if (slow)
			cost->suspect = 64;
		return slow;
	}
	ns = processor_ns() - wake->processor_ns;
	if (ns <= KVT_COST_SLOW_US * 1000) {
		cost->suspect--;
		return false;
	}
	off = (daemon->real_ns - cost->at_ns) / 100;
	daemon->stats.costly_ns += ns;
	cost->level_ns = ns + (cost->level_ns > off ? cost->level_ns - off : 0);
	cost->at_ns = daemon->real_ns;
	cost->suspect = 64;
	if (cost->level_ns > KVT_COST_MOST_NS) {
		cost->over = true;
		daemon->cost_due = daemon->sweep_due = true;
	}
	return true;
}

void kvt_cost_poll(struct kvt_daemon *daemon, struct kvt_cost *cost, int fd, uint32_t events,
		   uint64_t tag)
{
	struct kvt_wake wake;

	if (!cost->suspect) {
		kvt_loop_poll(&daemon->loop, fd, events, tag);
		return;
	}
	kvt_loop_flush(&daemon->loop); /* what is queued already is not of this client */
	wake = kvt_cost_begin(cost);
	kvt_loop_poll(&daemon->loop, fd, events, tag);
	kvt_loop_flush(&daemon->loop);
	kvt_cost_end(daemon, cost, &wake);
}

/* A bell that rang and was not answered takes no second ring, so nothing piles up. */
void kvt_session_ring_bell(struct kvt_daemon *daemon, struct kvt_session *session)
{
	static const uint64_t one = 1;
	struct kvt_wake wake;
	int unanswered = 0;

	if (session->bell < 0 || session->cost.over ||
	    (ioctl(session->bell, SIOCOUTQ, &unanswered) == 0 && unanswered > 0))
		return;
	wake = kvt_cost_begin(&session->cost);
	/* EPIPE: nobody is left to hear it. */
	if (send(session->bell, &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
	kvt_cost_end(daemon, &session->cost, &wake);
}

void kvt_session_say_gone(struct kvt_daemon *daemon, struct kvt_session *session, int error)
{
	struct kvt_segment_header *header = session->segment.base;

	if (!header)
		return;
	kvt_store_release(&header->gone, (uint32_t)-error);
	kvt_session_ring_bell(daemon, session);
}

static int make_segment(struct kvt_session *slot, const struct kvt_session_wish *wish, char *why,
			size_t why_size)
{
	int error = kvt_segment_plan(&slot->layout, wish->sq_entries, wish->cq_entries,
				     wish->keys_count, wish->list_count);
	uint64_t front = slot->layout.areas_bytes;

	if (error == 0)
		error = kvt_object_create_sealed(&slot->segment, "kvtrunk-session",
						 slot->layout.bytes);
	if (error == 0)
		error = kvt_object_create_sealed(&slot->areas, "kvtrunk-areas",
						 slot->layout.areas_bytes);
	if (error) {
		snprintf(why, why_size, "cannot make a session segment: %s", strerror(-error));
		return error;
	}
	if (front > PREFAULT_BYTES)
		front = PREFAULT_BYTES;
	/* Only speed: may fail. */
	madvise(slot->segment.base, slot->layout.bytes, MADV_POPULATE_WRITE);
	madvise(slot->areas.base, front, MADV_POPULATE_WRITE);
	return 0;
}

static int make_descriptors(struct kvt_connection *connection, struct kvt_session *slot,
			    int *ret_completion, uint64_t *ret_start_time, char *why,
			    size_t why_size)
{
	int error;

	error = kvt_peer_pidfd(connection->fd, &connection->peer, connection->accepted_boot_ns,
			       &slot->pidfd, ret_start_time);
	if (error) {
		snprintf(why, why_size, "cannot watch process %d: %s%s",
			 (int)connection->peer.pid, strerror(-error),
			 error == -ENOTSUP ? " (it is in a PID namespace that the daemon does not "
					     "see, and this kernel lacks SO_PEERPIDFD)" :
			 error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)" : "");
		return error;
	}
	slot->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	error = slot->doorbell < 0 ? -errno : make_bell(ret_completion, &slot->bell);
	if (error)
		snprintf(why, why_size, "cannot make descriptors for the session: %s%s",
			 strerror(-error), error == -EMFILE ? " (raise the daemon's RLIMIT_NOFILE)"
						       : "");
	return error;
}

void kvt_session_view(const struct kvt_session *session, struct kvt_core_view *ret_view)
{
	char *base = session->segment.base, *areas = session->areas.base;

	*ret_view = (struct kvt_core_view){
		.keys = (const uint32_t *)(areas + session->layout.keys_offset),
		.keys_count = session->layout.keys_count,
		.list = (uint32_t *)(areas + session->layout.list_offset),
		.list_count = session->layout.list_count,
		.fences = (const struct kvt_fence_word *)(base + session->layout.fences_offset),
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
	error = kvt_core_session_open(daemon->core, peer, &view, daemon->now_ns, &slot->index);
	if (error == -EDQUOT)
		snprintf(why, why_size, "uid %u has %u sessions, dead ones whose pages are in "
			 "quarantine included, which is what one uid may have (7/8 of "
			 "max_sessions=%u): end some, raise it, or run workers as several users",
			 (unsigned int)peer->uid, daemon->core_config.uid_sessions,
			 daemon->core_config.max_sessions);
	else if (error)
		snprintf(why, why_size, error == -EUSERS
			 ? "all %u sessions are in use (or their pages still in quarantine): end "
			   "some, or raise max_sessions"
			 : "the session was refused (max_sessions %u)",
			 daemon->core_config.max_sessions);
	return error;
}

void kvt_session_note_end(struct kvt_daemon *daemon, struct kvt_session *session,
			  const char *how)
{
	const struct kvt_session_record *record = kvt_core_session(daemon->core, session->index);
	struct kvt_session_end *end = &session->end;

	if (end->how)
		return;
	*end = (struct kvt_session_end){
		.how = how,
		.at_ns = daemon->real_ns,
		.operations = record->operations,
		.leases = record->n_leases,
		.pages = record->n_private + record->n_quarantined,
	};
	kvt_log_clean(end->label, sizeof(end->label), record->label, sizeof(record->label));
}

/* The whole life in one line: what it was, how it ended, what came back, and how long its pages
 * were kept from others because something might still have written them. */
static void log_free(struct kvt_daemon *daemon, const struct kvt_session *session)
{
	const struct kvt_session_end *end = &session->end;

	if (!end->how)
		return;
	kvt_log_limited(&daemon->client_log, session->pid, daemon->real_ns, KVT_LOG_INFO,
			"session_free", "session=%u pid=%d end=%s label=\"%s\" operations=%llu "
			"leases=%u pages=%u returned_ms=%llu", session->index, (int)session->pid,
			end->how, end->label, (unsigned long long)end->operations, end->leases,
			end->pages,
			(unsigned long long)(daemon->real_ns - end->at_ns) / 1000000);
}

/* The core is done with a session: its slot is free for the next. */
static void retire(struct kvt_daemon *daemon, struct kvt_session *session)
{
	uint32_t connection = session->connection;

	log_free(daemon, session);
	daemon->n_dying--;
	/* A client that holds its socket after the end learns it by our closing it. */
	if (connection) {
		daemon->connections[connection - 1].session = 0;
		kvt_control_drop(daemon, &daemon->connections[connection - 1]);
	}
	kvt_group_release(daemon, session->index);
	kvt_session_release(daemon, session);
}

static void begin_serving(struct kvt_daemon *daemon, struct kvt_session *session)
{
	uint32_t uid = kvt_core_session(daemon->core, session->index)->uid;

	session->account = kvt_shares_account(&daemon->shares, uid);
	session->spent = session->account->floor;
	kvt_shares_join(&daemon->shares, session->account);
	/* New ones are hot: the first cold one moves to the end to make room. */
	daemon->served[daemon->n_served++] = daemon->served[daemon->n_hot];
	daemon->served[daemon->n_hot++] = session->index;
	session->worked_turn = daemon->stats.turns;
}

static void watch_process(struct kvt_daemon *daemon, struct kvt_session *session)
{
	kvt_loop_poll(&daemon->loop, session->pidfd, POLLIN,
		      kvt_tag(KVT_TAG_PROCESS, session->index, session->generation));
	session->pidfd_armed = true;
}

/* The slot becomes the one that the core chose. */
static struct kvt_session *settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
				  const struct kvt_session *made)
{
	struct kvt_session *session = &daemon->sessions[made->index];

	if (session->dying) /* the core was done with it, and we had not come round to it */
		retire(daemon, session);
	KVT_ASSERT(!session->used);
	*session = *made;
	session->used = true;
	session->generation = ++daemon->generation;
	session->connections = 1;
	session->processes = 1;
	session->connection = (uint32_t)(connection - daemon->connections) + 1;
	session->pid = connection->peer.pid;
	session->uid = connection->peer.uid;
	session->open = true;
	kvt_session_hold(daemon, session);
	kvt_segment_format(session->segment.base, &session->layout, session->index);
	kvt_ring_end_init(&session->ring, session->segment.base, session->areas.base,
			  &session->layout);
	begin_serving(daemon, session);
	watch_process(daemon, session);
	return session;
}

void kvt_session_adopted(struct kvt_daemon *daemon, struct kvt_session *session, bool serve)
{
	session->uid = kvt_core_session(daemon->core, session->index)->uid;
	kvt_session_hold(daemon, session);
	if (serve) {
		session->open = true;
		begin_serving(daemon, session);
		daemon->n_deferred += session->deferred;
		if (session->deferred > daemon->own_places)
			daemon->n_common += session->deferred - daemon->own_places;
		session->waiting_since_ns = daemon->real_ns;
	} else {
		session->dying = true;
		daemon->n_dying++;
		daemon->sweep_due = true;
	}
	if (session->processes && session->pidfd >= 0)
		watch_process(daemon, session);
}

int kvt_session_open(struct kvt_daemon *daemon, struct kvt_connection *connection,
		     const struct kvt_session_wish *wish, uint64_t secret[2],
		     uint32_t *ret_session, int ret_fds[4], char *why, size_t why_size)
{
	struct kvt_session made = { .pidfd = -1, .doorbell = -1, .bell = -1 };
	struct kvt_core_peer peer = { 0 };
	struct kvt_session *session;
	int completion = -1, error;

	made.segment.fd = made.areas.fd = -1;
	error = make_descriptors(connection, &made, &completion, &peer.start_time, why, why_size);
	if (!error)
		error = make_segment(&made, wish, why, why_size);
	if (!error && getrandom(peer.secret, sizeof(peer.secret), 0) != sizeof(peer.secret)) {
		snprintf(why, why_size, "no randomness for the session's secret");
		error = -EIO;
	}
	if (!error)
		error = open_in_core(daemon, connection, &made, wish, &peer, why, why_size);
	if (error) {
		close_fd(&completion);
		close_fd(&made.pidfd);
		close_fd(&made.doorbell);
		close_fd(&made.bell);
		kvt_object_destroy(&made.segment);
		kvt_object_destroy(&made.areas);
		return error;
	}
	session = settle(daemon, connection, &made);
	session->no_resume = wish->no_resume;
	kvt_park_session(daemon, session, connection->fd);
	memcpy(secret, peer.secret, sizeof(peer.secret));
	*ret_session = session->index;
	ret_fds[0] = session->segment.fd;
	ret_fds[1] = session->areas.fd;
	ret_fds[2] = session->doorbell;
	ret_fds[3] = completion;
	return 0;
}

static struct kvt_session *find_secret(struct kvt_daemon *daemon, const uint64_t secret[2])
{
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++) {
		const struct kvt_session_record *record = kvt_core_session(daemon->core, i);

		if (daemon->sessions[i].used && record->state != KVT_SESSION_FREE &&
		    !((record->secret[0] ^ secret[0]) | (record->secret[1] ^ secret[1])))
			return &daemon->sessions[i];
	}
	return NULL;
}

int kvt_session_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       const uint64_t secret[2], uint32_t *ret_session, char *why,
		       size_t why_size)
{
	struct kvt_session *session = find_secret(daemon, secret);
	const struct kvt_session_record *record;
	uint64_t start_time = 0;
	int pidfd = -1;

	if (!session || !session->open || session->connection) {
		snprintf(why, why_size, "no session with this secret waits to be resumed: %s; "
			 "connect without a secret", !session ? "the daemon started anew" :
			 session->open ? "it is connected" : "it is over");
		return -ESTALE;
	}
	record = kvt_core_session(daemon->core, session->index);
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
	session->connections++;
	session->connection = (uint32_t)(connection - daemon->connections) + 1;
	*ret_session = session->index;
	return 0;
}

/* Take it out of `served`, where the first n_hot are looked at in every turn. */
static void unserve(struct kvt_daemon *daemon, uint32_t index)
{
	uint32_t *served = daemon->served;
	uint32_t at = 0;

	while (at < daemon->n_served && served[at] != index)
		at++;
	KVT_ASSERT(at < daemon->n_served);
	if (at < daemon->n_hot) {
		served[at] = served[--daemon->n_hot];
		at = daemon->n_hot;
	}
	served[at] = served[--daemon->n_served];
}

/* From here on no entry of it is taken; the core forgets what was deferred. */
static void stop_serving(struct kvt_daemon *daemon, struct kvt_session *session)
{
	if (session->open) {
		session->open = false;
		unserve(daemon, session->index);
		kvt_shares_leave(&daemon->shares, session->account);
	}
	daemon->sweep_due = true;
	if (!session->dying) {
		session->dying = true;
		daemon->n_dying++;
	}
	daemon->n_deferred -= session->deferred;
	if (session->deferred > daemon->own_places)
		daemon->n_common -= session->deferred - daemon->own_places;
	session->deferred = 0;
	session->holding = false;
	daemon->compact_due = true;
}

static bool in_core(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	return session->used &&
	       kvt_core_session(daemon->core, session->index)->state != KVT_SESSION_FREE;
}

/* Private pages may go when every socket has hung up, every process has exited, and nothing that
 * they launched can still write. */
static void ask_quiet(struct kvt_daemon *daemon, struct kvt_session *session)
{
	struct kvt_pool_writer writer = { session->index, session->pid, session->ended_ns };
	uint64_t again_ns = UINT64_MAX;

	if (session->quiet || session->connections || session->processes ||
	    !in_core(daemon, session))
		return;
	if (!session->ended_ns)
		writer.ended_ns = session->ended_ns = daemon->real_ns;
	if (daemon->real_ns < session->quiet_again_ns)
		return;
	if (!daemon->pool.ops->quiesce(&daemon->pool, &writer, daemon->real_ns, &again_ns)) {
		session->quiet_again_ns = again_ns;
		if (again_ns < daemon->next_timer_ns)
			daemon->next_timer_ns = again_ns;
		return;
	}
	session->quiet = true;
	kvt_core_session_sign(daemon->core, session->index, KVT_SIGN_QUIET, daemon->now_ns);
}

/* The first sign of its end; the others are no news. */
static void log_over(struct kvt_daemon *daemon, struct kvt_session *session, const char *sign)
{
	const struct kvt_session_record *record = kvt_core_session(daemon->core, session->index);

	if (session->dying)
		return;
	kvt_session_note_end(daemon, session, "died");
	kvt_log_limited(&daemon->client_log, session->pid, daemon->real_ns, KVT_LOG_INFO,
			"session_over", "session=%u pid=%d sign=%s leases=%u private_pages=%u",
			session->index, (int)session->pid, sign, record->n_leases,
			record->n_private);
}

/* A session that was adopted without its control socket never hangs up: its process's end is all
 * there will be. */
static uint32_t lost_hangup(const struct kvt_daemon *daemon, const struct kvt_session *session)
{
	uint32_t signs = kvt_core_session(daemon->core, session->index)->signs;

	return session->connections || signs & KVT_SIGN_HANGUP ? 0 : KVT_SIGN_HANGUP;
}

void kvt_session_part(struct kvt_daemon *daemon, struct kvt_session *session, bool exited,
		      const char *who)
{
	uint32_t *left = exited ? &session->processes : &session->connections;
	uint32_t signs = exited ? KVT_SIGN_EXITED : KVT_SIGN_HANGUP;

	KVT_ASSERT(*left > 0);
	(*left)--;
	if (in_core(daemon, session)) {
		log_over(daemon, session, who);
		if (*left)
			kvt_core_session_kill(daemon->core, session->index, daemon->now_ns);
		else
			kvt_core_session_sign(daemon->core, session->index,
					      exited ? signs | lost_hangup(daemon, session) : signs,
					      daemon->now_ns);
	}
	stop_serving(daemon, session);
	ask_quiet(daemon, session);
}

/* What members are told when the process that opened their session ends. */
static void tell_members(struct kvt_daemon *daemon, const struct kvt_session *session,
			 const char *how)
{
	char why[KVT_TEXT_BYTES];

	snprintf(why, sizeof(why), "the group is over: rank 0 (pid %d) %s", (int)session->pid, how);
	kvt_group_over(daemon, session->index, -ECONNRESET, why);
}

void kvt_session_hangup(struct kvt_daemon *daemon, struct kvt_session *session)
{
	session->connection = 0;
	tell_members(daemon, session, "hung up");
	kvt_session_part(daemon, session, false, "hangup");
}

void kvt_session_exited(struct kvt_daemon *daemon, struct kvt_session *session)
{
	session->pidfd_armed = false;
	if (session->connection) /* whoever holds the socket now is not the client */
		daemon->connections[session->connection - 1].state = KVT_CONNECTION_OVER;
	tell_members(daemon, session, "exited");
	kvt_session_part(daemon, session, true, "exited");
}

void kvt_session_kill(struct kvt_daemon *daemon, struct kvt_session *session, int error,
		      const char *why)
{
	struct kvt_connection *connection =
		session->connection ? &daemon->connections[session->connection - 1] : NULL;

	if (!session->open)
		return;
	kvt_session_note_end(daemon, session, "killed");
	kvt_log_limited(&daemon->client_log, session->pid, daemon->real_ns, KVT_LOG_WARNING,
			"session_ended", "session=%u pid=%d why=\"%s\"", session->index,
			(int)session->pid, why);
	if (in_core(daemon, session))
		kvt_core_session_kill(daemon->core, session->index, daemon->now_ns);
	stop_serving(daemon, session);
	kvt_session_say_gone(daemon, session, error);
	kvt_group_over(daemon, session->index, error, why);
	if (!connection)
		return;
	/* The socket stays open on our side: only its hang-up tells that nobody holds it. */
	connection->state = KVT_CONNECTION_OVER;
	kvt_control_say(daemon, connection, KVT_MSG_GOODBYE, 0, error, why);
}

void kvt_session_fence(struct kvt_daemon *daemon, struct kvt_session *session)
{
	kvt_core_session_sign(daemon->core, session->index, KVT_SIGN_FENCED, daemon->now_ns);
	kvt_log(KVT_LOG_NOTICE, "session_fenced", "session=%u pid=%d", session->index,
		(int)session->pid);
	if (session->used)
		stop_serving(daemon, session);
}

static void end_costly(struct kvt_daemon *daemon)
{
	daemon->cost_due = false;
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++)
		if (daemon->sessions[i].open && daemon->sessions[i].cost.over) {
			daemon->stats.costly_sessions++;
			kvt_session_kill(daemon, &daemon->sessions[i], -ECOMM,
					 "waking it cost more than 100 ms of the daemon's time "
					 "within 10 s: its sockets or its doorbell are watched "
					 "many times");
		}
	kvt_control_drop_costly(daemon);
}

void kvt_sessions_sweep(struct kvt_daemon *daemon)
{
	/* Unmapping takes its time: first the pages that others wait for come back. */
	bool first = kvt_core_unsettled(daemon->core);
	uint32_t released = 0;

	if (daemon->cost_due)
		end_costly(daemon);
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions && daemon->n_dying; i++) {
		struct kvt_session *session = &daemon->sessions[i];

		if (!session->dying)
			continue;
		if (in_core(daemon, session))
			ask_quiet(daemon, session);
		else if (first || released++ >= RELEASES_PER_TURN)
			daemon->sweep_due = true;
		else
			retire(daemon, session);
	}
}
