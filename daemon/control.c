/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "shm/assert.h"
#include "shm/geometry.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* Linux 6.16 */
#endif

#define LEAVE_AGAIN_NS 5000000ull
#define MESSAGES_AT_HANGUP 16 /* sent before it: requests that wait for no answer */
/* After a message no other one is taken for four times as long as it took: messages take a fifth of
 * the thread's time at most. An audit's successor does not wait for ever. */
#define PAUSE_PER_COST 4
#define PAUSE_MOST_US 2000

/* ---- slots */

static uint32_t slot_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return (uint32_t)(connection - daemon->connections);
}

static uint64_t tag_of(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	return kvt_tag(KVT_TAG_CONNECTION, slot_of(daemon, connection), connection->generation);
}

static void hold(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	connection->hold = kvt_closer_hold(&daemon->closer, connection->peer.uid, &connection->fd,
					   1);
}

/* The closer ended, which none of its work can cause: begin again with another one. */
static void replace_closer(struct kvt_daemon *daemon)
{
	int error = kvt_closer_start(&daemon->closer, daemon->closer.most);

	kvt_log(KVT_LOG_ERROR, "closer_ended", "successor=%d error=\"%s\"",
		error ? -1 : (int)daemon->closer.pid, strerror(-error));
	for (uint32_t i = 0; i < daemon->n_connections; i++)
		if (daemon->connections[i].fd >= 0)
			hold(daemon, &daemon->connections[i]);
	for (uint32_t i = 1; i <= daemon->core_config.max_sessions; i++)
		if (daemon->sessions[i].used)
			kvt_session_hold(daemon, &daemon->sessions[i]);
}

uint64_t kvt_control_leave(struct kvt_daemon *daemon)
{
	bool left = kvt_closer_flush(&daemon->closer);

	if (daemon->closer.lost)
		replace_closer(daemon);
	return left ? daemon->real_ns + LEAVE_AGAIN_NS : UINT64_MAX;
}

void kvt_control_refuse_fds(const struct kvt_daemon *daemon, int fd)
{
	int off = 0;

	/* An older kernel does not know it: then they lie in the queue until the closer has it. */
	if (!daemon->config.test_old_kernel)
		setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off));
}

/* Who pays for what the socket's system calls cost. */
static struct kvt_cost *cost_of(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	return connection->session ? &daemon->sessions[connection->session].cost :
				     &connection->cost;
}

static void forget_kind(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (connection->state == KVT_CONNECTION_HALF_OPEN)
		kvt_half_open_remove(&daemon->half_open, &connection->half_open);
	else if (connection->state == KVT_CONNECTION_OBSERVER)
		daemon->n_observers--;
}

void kvt_control_drop(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t session = connection->session, member = connection->member;
	struct kvt_leaving leaving = { .key = connection->hold, .uid = connection->peer.uid,
				       .n_fds = 1, .fds = { connection->fd } };

	if (connection->fd < 0)
		return;
	if (connection->armed)
		leaving.tag = tag_of(daemon, connection);
	/* shutdown() tells the client, and completes our poll. It also wakes the client's watches:
	 * where they may be many, the closer's close() does. */
	if (!connection->costly)
		shutdown(connection->fd, SHUT_RDWR);
	else if (connection->armed)
		kvt_loop_cancel(&daemon->loop, leaving.tag);
	kvt_closer_leave(&daemon->closer, &leaving);
	forget_kind(daemon, connection);
	if (connection->queued)
		TAILQ_REMOVE(&daemon->readable, connection, next_readable);
	*connection = (struct kvt_connection){ .fd = -1, .generation = ++daemon->generation };
	daemon->free_connections[daemon->n_free_connections++] = slot_of(daemon, connection);
	if (member)
		kvt_member_hangup(daemon, &daemon->members[member]);
	else if (session)
		kvt_session_hangup(daemon, &daemon->sessions[session]);
}

void kvt_control_drop_costly(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; i < daemon->n_connections; i++) {
		struct kvt_connection *connection = &daemon->connections[i];

		if (!connection->cost.over)
			continue;
		kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns,
				KVT_LOG_WARNING, "connection_dropped", "pid=%d uid=%u why=\"waking "
				"it cost more than 100 ms of the daemon's time within 10 s: its "
				"socket is watched many times\"", (int)connection->peer.pid,
				(unsigned int)connection->peer.uid);
		kvt_control_drop(daemon, connection);
	}
}

enum take_result { TAKE_ONE, TAKE_NONE, TAKE_HANGUP };
static enum take_result take_message(struct kvt_daemon *daemon, struct kvt_connection *connection);

static struct kvt_connection *connection_of(struct kvt_half_open *half_open)
{
	return (void *)((char *)half_open - offsetof(struct kvt_connection, half_open));
}

/* Make room for one of this uid. An honest client's HELLO may be there already and wait behind a
 * flood of events. */
static void make_room(struct kvt_daemon *daemon, uint32_t uid)
{
	struct kvt_half_open *first = kvt_half_open_in_the_way(&daemon->half_open, uid);
	struct kvt_connection *oldest;
	uint32_t generation;

	if (!first)
		return;
	oldest = connection_of(first);
	generation = oldest->generation;
	take_message(daemon, oldest);
	if (oldest->generation != generation || oldest->state != KVT_CONNECTION_HALF_OPEN)
		return;
	kvt_log_limited(&daemon->client_log, oldest->peer.pid, daemon->real_ns, KVT_LOG_WARNING,
			"half_open_dropped", "pid=%d why=\"more than max_half_open=%lld "
			"connections without a first message\"", (int)oldest->peer.pid,
			(long long)daemon->config.max_half_open);
	kvt_control_drop(daemon, oldest);
}

uint64_t kvt_control_end_half_open(struct kvt_daemon *daemon)
{
	uint64_t patience = (uint64_t)daemon->config.hello_timeout_ms * 1000000;
	struct kvt_half_open *first;

	while ((first = TAILQ_FIRST(&daemon->half_open.all)) != NULL) {
		struct kvt_connection *connection = connection_of(first);

		if (daemon->real_ns - connection->accepted_ns < patience)
			return connection->accepted_ns + patience;
		kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns,
				KVT_LOG_WARNING, "half_open_dropped",
				"pid=%d why=\"no first message within %lld ms\"",
				(int)connection->peer.pid,
				(long long)daemon->config.hello_timeout_ms);
		kvt_control_drop(daemon, connection);
	}
	return UINT64_MAX;
}

void kvt_control_leave_unused(struct kvt_daemon *daemon, int fd)
{
	struct kvt_leaving leaving = { .uid = KVT_UID_UNKNOWN, .n_fds = 1, .fds = { fd } };

	kvt_closer_leave(&daemon->closer, &leaving);
}

void kvt_control_accepted(struct kvt_daemon *daemon, int fd)
{
	struct kvt_connection *connection;
	struct kvt_peer peer;
	uint64_t due;
	int on = 1;

	daemon->stats.accepted++;
	/* The kernel then says with each message which process sent it. */
	if (kvt_peer_read(fd, daemon->admin_gid, &peer) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
		kvt_control_leave_unused(daemon, fd);
		return;
	}
	kvt_control_refuse_fds(daemon, fd);
	make_room(daemon, peer.uid);
	KVT_ASSERT(daemon->n_free_connections > 0);
	connection = &daemon->connections[daemon->free_connections[--daemon->n_free_connections]];
	*connection = (struct kvt_connection){
		.state = KVT_CONNECTION_HALF_OPEN,
		.fd = fd,
		.generation = ++daemon->generation,
		.peer = peer,
		.accepted_ns = daemon->real_ns,
		.accepted_boot_ns = kvt_peer_boot_ns(),
	};
	hold(daemon, connection);
	kvt_half_open_add(&daemon->half_open, &connection->half_open, peer.uid);
	due = daemon->real_ns + (uint64_t)daemon->config.hello_timeout_ms * 1000000;
	if (due < daemon->next_timer_ns)
		daemon->next_timer_ns = due;
	kvt_control_arm(daemon, connection);
}

void kvt_control_arm(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t events = POLLRDHUP;

	if (connection->armed)
		return;
	if (!connection->waiting && connection->state != KVT_CONNECTION_OVER)
		events |= POLLIN;
	kvt_cost_poll(daemon, cost_of(daemon, connection), connection->fd, events,
		      tag_of(daemon, connection));
	connection->armed = true;
}

/* ---- sending */

bool kvt_control_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const void *message, size_t bytes, const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * (5 + KVT_MAX_SLABS))];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)message, .iov_len = bytes };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
	struct kvt_cost *cost = cost_of(daemon, connection);
	struct kvt_wake wake;
	ssize_t sent;

	if (cost->over && connection->costly)
		return false;
	if (n_fds) {
		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * n_fds);
	}
	wake = kvt_cost_begin(cost);
	sent = sendmsg(connection->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
	connection->costly |= kvt_cost_end(daemon, cost, &wake);
	if (sent == (ssize_t)bytes)
		return true;
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns,
			KVT_LOG_WARNING, "send_failed",
			"pid=%d error=\"%s\" why=\"%s\"", (int)connection->peer.pid,
			strerror(errno), errno == EAGAIN ? "the client does not read its socket"
							 : "the client is gone");
	if (connection->state == KVT_CONNECTION_SESSION)
		kvt_session_kill(daemon, &daemon->sessions[connection->session], -ECOMM,
				 "the control socket is not read: the session is over");
	else if (connection->state != KVT_CONNECTION_OVER)
		kvt_control_drop(daemon, connection);
	return false;
}

static void fill_head(struct kvt_message *head, uint16_t type, size_t bytes, int result,
		      uint64_t cookie)
{
	*head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = type,
		.version = KVT_ABI_MAJOR,
		.bytes = (uint32_t)bytes,
		.result = result,
		.cookie = cookie,
	};
}

static bool say(struct kvt_daemon *daemon, struct kvt_connection *connection, uint16_t type,
		uint64_t cookie, int error, enum kvt_attach_state state, const char *text)
{
	struct kvt_message_refused message = { .state = state };

	fill_head(&message.head, type, sizeof(message), error, cookie);
	strlcpy(message.text, text, sizeof(message.text));
	return kvt_control_send(daemon, connection, &message, sizeof(message), NULL, 0);
}

bool kvt_control_say(struct kvt_daemon *daemon, struct kvt_connection *connection, uint16_t type,
		     uint64_t cookie, int error, const char *text)
{
	return say(daemon, connection, type, cookie, error, KVT_ATTACH_OK, text);
}

static void greet(const struct kvt_daemon *daemon, const struct kvt_connection *connection)
{
	struct kvt_message_resumed message = {
		.generation = kvt_core_arena(daemon->core)->generation,
		.daemon_pid = getpid(),
	};
	uint8_t byte;

	/* A request that nobody has read is still there. */
	if (recv(connection->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
		return;
	fill_head(&message.head, KVT_MSG_RESUMED, sizeof(message), 0, 0);
	/* Who has not read the greetings of earlier successors needs no other. */
	if (send(connection->fd, &message, sizeof(message), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
}

bool kvt_control_adopted(struct kvt_daemon *daemon, int fd, struct kvt_session *session,
			 struct kvt_member *member)
{
	struct kvt_connection *connection;
	struct kvt_peer peer;

	if (daemon->n_free_connections == 0 ||
	    kvt_peer_read(fd, daemon->admin_gid, &peer) != 0) {
		kvt_control_leave_unused(daemon, fd);
		return false;
	}
	kvt_control_refuse_fds(daemon, fd);
	connection = &daemon->connections[daemon->free_connections[--daemon->n_free_connections]];
	*connection = (struct kvt_connection){
		.state = !session ? KVT_CONNECTION_OBSERVER :
			 session->open ? KVT_CONNECTION_SESSION : KVT_CONNECTION_OVER,
		.fd = fd,
		.generation = ++daemon->generation,
		.peer = peer,
		.session = session ? session->index : 0,
		.member = member ? member->index : 0,
		.accepted_ns = daemon->real_ns,
		.accepted_boot_ns = kvt_peer_boot_ns(),
		.adopted = true,
	};
	hold(daemon, connection);
	if (session) {
		*(member ? &member->connection : &session->connection) =
			slot_of(daemon, connection) + 1;
		session->connections++;
	} else {
		daemon->n_observers++;
	}
	kvt_control_arm(daemon, connection);
	return true;
}

void kvt_control_greet(struct kvt_daemon *daemon)
{
	for (uint32_t i = 0; daemon->adopted && i < daemon->n_connections; i++)
		if (daemon->connections[i].adopted)
			greet(daemon, &daemon->connections[i]);
}

/* A HELLO that cannot be granted. The connection ends: the next try is a new one. */
static void refuse_as(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      uint64_t cookie, int error, enum kvt_attach_state state, const char *text)
{
	daemon->stats.refused++;
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns, KVT_LOG_NOTICE,
			"refused",
			"pid=%d uid=%u error=%d why=\"%s\"", (int)connection->peer.pid,
			(unsigned int)connection->peer.uid, error, text);
	if (say(daemon, connection, KVT_MSG_REFUSED, cookie, error, state, text))
		kvt_control_drop(daemon, connection);
}

static void refuse(struct kvt_daemon *daemon, struct kvt_connection *connection, uint64_t cookie,
		   int error, const char *text)
{
	refuse_as(daemon, connection, cookie, error, KVT_ATTACH_REFUSED, text);
}

/* A message that no honest client sends. */
static void malformed(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const char *text)
{
	if (connection->state == KVT_CONNECTION_SESSION)
		kvt_session_kill(daemon, &daemon->sessions[connection->session], -EPROTO, text);
	else
		refuse(daemon, connection, 0, -EPROTO, text);
}

/* ---- HELLO */

static void number_differs(const char *name, uint64_t here, uint64_t there, char *text, size_t size)
{
	snprintf(text, size, "geometry differs: the daemon has %s %llu, the client asked for %llu",
		 name, (unsigned long long)here, (unsigned long long)there);
}

/* The first difference between what a client takes our pages for and what they are. */
static bool pages_differ(const struct kvt_pool_geometry *ours,
			 const struct kvt_pool_geometry *theirs, char *text, size_t size)
{
	const struct {
		const char *name;
		uint32_t here, there;
		const char *(*name_of)(uint32_t);
	} fields[] = {
		{ "n_layers", ours->n_layers, theirs->n_layers, NULL },
		{ "n_kv_heads", ours->n_kv_heads, theirs->n_kv_heads, NULL },
		{ "head_dim", ours->head_dim, theirs->head_dim, NULL },
		{ "kv_type", ours->type, theirs->type, kvt_element_name },
		{ "kv_layout", ours->layout, theirs->layout, kvt_page_layout_name },
		{ "kv_order", ours->order, theirs->order, kvt_page_order_name },
	};

	if (!ours->n_layers) {
		snprintf(text, size, "geometry differs: the client has one, the daemon was given "
			 "page_bytes only: give it n_layers, n_kv_heads, head_dim, kv_type, "
			 "kv_layout and kv_order");
		return true;
	}
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (fields[i].here == fields[i].there)
			continue;
		if (fields[i].name_of)
			snprintf(text, size, "geometry differs: the daemon has %s %s, the client "
				 "asked for %s", fields[i].name, fields[i].name_of(fields[i].here),
				 fields[i].name_of(fields[i].there));
		else
			number_differs(fields[i].name, fields[i].here, fields[i].there, text, size);
		return true;
	}
	for (uint32_t i = 0; i < ours->n_layers; i++) {
		double here[2], there[2];

		for (int plane = 0; plane < 2; plane++) {
			here[plane] = (double)kvt_pool_geometry_scale(ours, i, plane);
			there[plane] = (double)kvt_pool_geometry_scale(theirs, i, plane);
		}
		if (here[0] == there[0] && here[1] == there[1])
			continue;
		snprintf(text, size, "geometry differs: the daemon has scales %g,%g for layer %u, "
			 "the client asked for %g,%g: see kv_scales", here[0], here[1], i, there[0],
			 there[1]);
		return true;
	}
	return false;
}

/* What differs between the client's geometry and ours, in words; false if nothing does. */
static bool geometry_differs(const struct kvt_daemon *daemon,
			     const struct kvt_message_hello *hello, char *text, size_t size)
{
	const struct kvt_core_config *ours = &daemon->core_config;
	const struct {
		const char *name;
		uint64_t here, there;
	} numbers[] = {
		{ "page_size", ours->page_size, hello->page_size },
		{ "page_bytes", daemon->pool.page_bytes, hello->page_bytes },
		{ "n_pages", ours->n_pages, hello->n_pages },
	};

	if (hello->geometry.n_layers && /* tells more than two unequal fingerprints do */
	    pages_differ(&daemon->plan.geometry, &hello->geometry, text, size))
		return true;
	if (kvt_fingerprint_differs(ours->fingerprint, hello->fingerprint, text, size))
		return true;
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (!numbers[i].there || numbers[i].here == numbers[i].there)
			continue;
		number_differs(numbers[i].name, numbers[i].here, numbers[i].there, text, size);
		return true;
	}
	return false;
}

/* Whether a client gets pages to write whose content it has not named, though we know of it. */
static bool geometry_unnamed(const struct kvt_daemon *daemon,
			     const struct kvt_message_hello *hello, char *text, size_t size)
{
	const char *ours = daemon->core_config.fingerprint; /* has the geometry's fields */
	char clean[161];

	if (!ours[0] || hello->fingerprint[0] || hello->geometry.n_layers ||
	    hello->flags & (KVT_HELLO_OBSERVE | KVT_ANY_GEOMETRY))
		return false;
	kvt_log_clean(clean, sizeof(clean), ours, KVT_FINGERPRINT_BYTES);
	snprintf(text, size, "geometry not named: the daemon's pages are of '%s', and the client "
		 "would share whatever it writes into them: set options.geometry or "
		 "options.fingerprint, or say KVT_ANY_GEOMETRY if it writes no page or asks "
		 "kvt_pool_view() where", clean);
	return true;
}

static uint32_t observers_of(const struct kvt_daemon *daemon, uid_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < daemon->n_connections; i++)
		n += daemon->connections[i].state == KVT_CONNECTION_OBSERVER &&
		     daemon->connections[i].peer.uid == uid;
	return n;
}

/* Whether there is a place for one more observer. An eighth of the places, but one at least, is for
 * privileged ones, and a quarter of them the most that another uid may have: operators can always
 * look, and no user keeps others from looking. */
static int observer_check(const struct kvt_daemon *daemon,
			  const struct kvt_connection *connection, char *text, size_t size)
{
	uint32_t all = (uint32_t)daemon->config.max_observers, kept = (all + 7) / 8;
	uint32_t own = (all + 3) / 4, uid = connection->peer.uid;

	if (daemon->n_observers >= all) {
		snprintf(text, size, "max_observers=%u observers are connected: try later", all);
		return -EUSERS;
	}
	if (connection->peer.privileged)
		return 0;
	if (daemon->n_observers + kept >= all) {
		snprintf(text, size, "%u observers are connected, and the last %u of "
			 "max_observers=%u places are for privileged ones: try later",
			 daemon->n_observers, kept, all);
		return -EUSERS;
	}
	if (observers_of(daemon, uid) >= own) {
		snprintf(text, size, "uid %u has %u observers connected, and may have a quarter "
			 "of max_observers=%u: close some, or raise it", uid, own, all);
		return -EDQUOT;
	}
	return 0;
}

/* Why this HELLO is refused: 0, or a negative errno with a text and a state. */
static int hello_check(struct kvt_daemon *daemon, const struct kvt_connection *connection,
		       const struct kvt_message_hello *hello, enum kvt_attach_state *ret_state,
		       char *text, size_t size)
{
	bool observe = hello->flags & KVT_HELLO_OBSERVE;

	*ret_state = KVT_ATTACH_REFUSED;
	if (hello->abi_major != KVT_ABI_MAJOR) {
		snprintf(text, size, "version differs: the daemon speaks ABI %u.%u, the client "
			 "%u.%u: install libkvtrunk and kvtrunkd of one release", KVT_ABI_MAJOR,
			 KVT_ABI_MINOR, hello->abi_major, hello->abi_minor);
		*ret_state = KVT_ATTACH_WRONG_VERSION;
		return -EPROTO;
	}
	if (hello->layout != kvt_abi_layout()) {
		snprintf(text, size, "layout differs: both speak ABI %u, but were built with other "
			 "structures: install libkvtrunk and kvtrunkd of one build",
			 KVT_ABI_MAJOR);
		*ret_state = KVT_ATTACH_WRONG_LAYOUT;
		return -EPROTO;
	}
	if (hello->flags & ~(uint32_t)(KVT_HELLO_OBSERVE | KVT_HELLO_NO_RESUME |
				       KVT_ANY_GEOMETRY)) {
		snprintf(text, size, "unknown flags 0x%x in HELLO", hello->flags);
		return -EPROTO;
	}
	if (daemon->draining && !observe) {
		snprintf(text, size, "the daemon is shutting down: try its successor");
		*ret_state = KVT_ATTACH_GONE;
		return -ESHUTDOWN;
	}
	if (!kvt_peer_is_pid(connection->peer.pid, hello->pid)) {
		snprintf(text, size, "HELLO comes from pid %d, but pid %d connected: a forked "
			 "child must connect anew", hello->pid, (int)connection->peer.pid);
		return -EPERM;
	}
	if (geometry_differs(daemon, hello, text, size) ||
	    geometry_unnamed(daemon, hello, text, size)) {
		*ret_state = KVT_ATTACH_WRONG_GEOMETRY;
		return -EINVAL;
	}
	if (observe && (hello->group[0] || hello->group[1])) {
		snprintf(text, size, "an observer is no member of a group: connect without "
			 "KVT_HELLO_OBSERVE, or without a token");
		return -EINVAL;
	}
	return observe ? observer_check(daemon, connection, text, size) : 0;
}

static uint32_t power_of_two(uint64_t wish, uint64_t least, uint64_t most)
{
	uint64_t size = least;

	while (size < wish && size < most)
		size *= 2;
	return (uint32_t)(size < most ? size : most);
}

/* The client's wishes within the daemon's limits. An area holds at most what one operation can use,
 * because a client may punch holes into it: INSERT has a page number for each page of keys. */
static void hello_wish(const struct kvt_daemon *daemon, const struct kvt_message_hello *hello,
		       struct kvt_session_wish *wish)
{
	uint64_t most = power_of_two((uint64_t)daemon->config.max_ring_entries, 8, 256);
	uint64_t list = daemon->core_config.max_op_keys;
	uint64_t keys = list + list / daemon->core_config.page_size;

	wish->sq_entries = power_of_two(hello->sq_entries, 8, most);
	wish->cq_entries = power_of_two(hello->cq_entries ? hello->cq_entries
							  : 2ull * wish->sq_entries, 8, 2 * most);
	wish->keys_count = hello->keys_count ? hello->keys_count : 1u << 20;
	wish->list_count = hello->list_count ? hello->list_count : 1u << 18;
	wish->keys_count = wish->keys_count < keys ? wish->keys_count : keys;
	wish->list_count = wish->list_count < list ? wish->list_count : list;
}

static void fill_welcome(const struct kvt_daemon *daemon,
			 const struct kvt_connection *connection,
			 struct kvt_message_welcome *welcome)
{
	const struct kvt_core_config *config = &daemon->core_config;

	welcome->page_size = config->page_size;
	welcome->n_pages = config->n_pages;
	welcome->page_bytes = daemon->pool.page_bytes;
	welcome->pool_bytes = daemon->pool.bytes;
	welcome->backend = daemon->pool.ops->backend;
	welcome->n_slabs = daemon->pool.n_slabs;
	welcome->arena_bytes = daemon->arena.bytes;
	welcome->epoch = kvt_core_arena(daemon->core)->epoch;
	memcpy(welcome->instance, config->instance, sizeof(welcome->instance));
	welcome->max_leases = config->max_leases;
	welcome->max_private_pages = config->max_private_pages;
	welcome->policy = config->policy;
	welcome->flags = (connection->peer.privileged ? KVT_WELCOME_PRIVILEGED : 0u) |
			 (config->disabled ? KVT_WELCOME_DISABLED : 0u) |
			 (daemon->test_clock ? KVT_WELCOME_TEST_CLOCK : 0u) |
			 (daemon->notify.store && daemon->pool.ops->adopt ? KVT_WELCOME_KEPT : 0u);
	welcome->daemon_pid = getpid();
	memcpy(welcome->fingerprint, config->fingerprint, sizeof(welcome->fingerprint));
	welcome->geometry = daemon->plan.geometry;
}

/* The arena for all, if it may be seen; the pool for those with a session. */
static void add_shared(struct kvt_daemon *daemon, struct kvt_message_welcome *welcome, int *fds,
		       uint32_t *n_fds)
{
	struct kvt_pool_export export;

	if (daemon->config.arena_visible) {
		welcome->fds |= KVT_FD_ARENA;
		fds[(*n_fds)++] = daemon->arena_readonly;
	}
	if (!welcome->session || daemon->pool.ops->export(&daemon->pool, &export) != 0)
		return;
	if (export.n_fds)
		welcome->fds |= KVT_FD_POOL;
	for (uint32_t i = 0; i < export.n_fds; i++)
		fds[(*n_fds)++] = export.fds[i];
	memcpy(welcome->slabs, export.slabs, sizeof(welcome->slabs));
}

/* From now on the connection is a session's, or its member's. */
static void admit(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t session)
{
	kvt_half_open_remove(&daemon->half_open, &connection->half_open);
	connection->state = KVT_CONNECTION_SESSION;
	connection->session = session;
}

static void hello_session(struct kvt_daemon *daemon, struct kvt_connection *connection,
			  const struct kvt_message_hello *hello,
			  struct kvt_message_welcome *welcome)
{
	int fds[4 + 1 + KVT_MAX_SLABS], error;
	char label[KVT_LABEL_BYTES], text[KVT_TEXT_BYTES];
	struct kvt_session_wish wish = { .label = label,
					 .no_resume = hello->flags & KVT_HELLO_NO_RESUME };
	struct kvt_leaving completion = { .uid = connection->peer.uid, .n_fds = 1 };
	uint32_t n_fds = 4, session;
	bool sent;

	kvt_log_clean(label, sizeof(label), hello->label, KVT_LABEL_BYTES);
	hello_wish(daemon, hello, &wish);
	error = kvt_session_open(daemon, connection, &wish, welcome->secret, &session, fds, text,
				 sizeof(text));
	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, session);
	welcome->session = session;
	welcome->fds = KVT_FD_SEGMENT | KVT_FD_AREAS | KVT_FD_DOORBELL | KVT_FD_COMPLETION;
	welcome->segment_bytes = daemon->sessions[session].layout.bytes;
	welcome->areas_bytes = daemon->sessions[session].layout.areas_bytes;
	add_shared(daemon, welcome, fds, &n_fds);
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns, KVT_LOG_INFO,
			"session_open",
			"session=%u pid=%d uid=%u label=\"%s\"", session,
			(int)connection->peer.pid, (unsigned int)connection->peer.uid, label);
	sent = kvt_control_send(daemon, connection, welcome, sizeof(*welcome), fds, n_fds);
	(void)sent; /* if not, the session has ended with the connection */
	completion.fds[0] = fds[3]; /* the client's end of it is the client's */
	kvt_closer_leave(&daemon->closer, &completion);
}

/* Another process of an engine, to hold with it what its first one's session holds. */
static void hello_member(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_hello *hello,
			 struct kvt_message_welcome *welcome)
{
	char label[KVT_LABEL_BYTES], text[KVT_TEXT_BYTES];
	int fds[2 + 1 + KVT_MAX_SLABS], error;
	uint32_t n_fds = 2;

	kvt_log_clean(label, sizeof(label), hello->label, KVT_LABEL_BYTES);
	error = kvt_group_join(daemon, connection, hello, label, welcome, fds, text, sizeof(text));
	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, welcome->session);
	welcome->fds = KVT_FD_SEGMENT | KVT_FD_DOORBELL;
	add_shared(daemon, welcome, fds, &n_fds);
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns, KVT_LOG_INFO,
			"member_joined", "session=%u rank=%u pid=%d label=\"%s\"",
			welcome->session, welcome->rank, (int)connection->peer.pid, label);
	kvt_control_send(daemon, connection, welcome, sizeof(*welcome), fds, n_fds);
}

/* The client has everything but the connection. */
static void hello_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_hello *hello,
			 struct kvt_message_welcome *welcome)
{
	char text[KVT_TEXT_BYTES];
	uint32_t session;
	int error = kvt_session_resume(daemon, connection, hello->secret, &session, text,
				       sizeof(text));

	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, session);
	welcome->session = session;
	welcome->flags |= KVT_WELCOME_RESUMED;
	welcome->segment_bytes = daemon->sessions[session].layout.bytes;
	welcome->areas_bytes = daemon->sessions[session].layout.areas_bytes;
	memcpy(welcome->secret, hello->secret, sizeof(welcome->secret));
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->real_ns,
			KVT_LOG_INFO, "session_resumed",
			"session=%u pid=%d", session, (int)connection->peer.pid);
	kvt_control_send(daemon, connection, welcome, sizeof(*welcome), NULL, 0);
}

static void handle_hello(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_hello *hello)
{
	struct kvt_message_welcome welcome = { 0 };
	enum kvt_attach_state state;
	char text[KVT_TEXT_BYTES];
	uint32_t n_fds = 0;
	int fds[1], error;

	error = hello_check(daemon, connection, hello, &state, text, sizeof(text));
	if (error) {
		refuse_as(daemon, connection, hello->head.cookie, error, state, text);
		return;
	}
	fill_welcome(daemon, connection, &welcome);
	fill_head(&welcome.head, KVT_MSG_WELCOME, sizeof(welcome), 0, hello->head.cookie);
	if (hello->secret[0] || hello->secret[1]) {
		hello_resume(daemon, connection, hello, &welcome);
		return;
	}
	if (hello->group[0] || hello->group[1]) {
		hello_member(daemon, connection, hello, &welcome);
		return;
	}
	if (!(hello->flags & KVT_HELLO_OBSERVE)) {
		hello_session(daemon, connection, hello, &welcome);
		return;
	}
	kvt_half_open_remove(&daemon->half_open, &connection->half_open);
	daemon->n_observers++;
	connection->state = KVT_CONNECTION_OBSERVER;
	add_shared(daemon, &welcome, fds, &n_fds);
	kvt_control_send(daemon, connection, &welcome, sizeof(welcome), fds, n_fds);
}

/* ---- NAMESPACE */

static void handle_namespace(struct kvt_daemon *daemon, struct kvt_connection *connection,
			     const struct kvt_message_namespace *request)
{
	struct kvt_message_namespace answer = *request;
	uint32_t number = 0;
	char label[KVT_LABEL_BYTES];
	int error;

	kvt_log_clean(label, sizeof(label), request->label, KVT_LABEL_BYTES);
	error = kvt_core_namespace_open(daemon->core, connection->session, request->digest, label,
					daemon->now_ns, &number);
	fill_head(&answer.head, KVT_MSG_NAMESPACE, sizeof(answer), error, request->head.cookie);
	answer.namespace_id = number;
	answer.reserved = 0;
	memset(answer.text, 0, sizeof(answer.text));
	if (error == -ENOSPC)
		snprintf(answer.text, sizeof(answer.text), "all max_namespaces=%u namespaces are "
			 "open or hold keys: close some, or raise it",
			 daemon->core_config.max_namespaces);
	else if (error == -EDQUOT)
		snprintf(answer.text, sizeof(answer.text), "uid %u made %u namespaces that are "
			 "open or hold keys, which is what one uid may (7/8 of max_namespaces=%u): "
			 "close some, remove some (kvtctl remove), or raise it",
			 (unsigned int)connection->peer.uid, daemon->core_config.uid_namespaces,
			 daemon->core_config.max_namespaces);
	else if (error == -ENOENT)
		snprintf(answer.text, sizeof(answer.text), "no such namespace");
	else if (error)
		snprintf(answer.text, sizeof(answer.text), "%s", strerror(-error));
	kvt_control_send(daemon, connection, &answer, sizeof(answer), NULL, 0);
}

/* ---- GROUP */

static void handle_group(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_group *request)
{
	struct kvt_message_group answer = { .n_ranks = request->n_ranks };
	int error = kvt_group_open(daemon, connection, request->n_ranks, answer.token, answer.text,
				   sizeof(answer.text));

	fill_head(&answer.head, KVT_MSG_GROUP, sizeof(answer), error, request->head.cookie);
	kvt_control_send(daemon, connection, &answer, sizeof(answer), NULL, 0);
}

/* ---- receiving */

static void dispatch(struct kvt_daemon *daemon, struct kvt_connection *connection, size_t bytes)
{
	const struct kvt_message *head = (const struct kvt_message *)daemon->message;

	if (connection->adopted && bytes >= sizeof(*head) && head->cookie != 0) {
		/* Sent once to our predecessor, and again to us: it is answered once. */
		if (head->cookie == connection->last_cookie)
			return;
		connection->last_cookie = head->cookie;
	}
	if (bytes < sizeof(*head) || head->magic != KVT_MESSAGE_MAGIC || head->bytes != bytes) {
		malformed(daemon, connection, "not a kvtrunk message, or its length is wrong");
	} else if (head->version != KVT_ABI_MAJOR) {
		char text[KVT_TEXT_BYTES];

		snprintf(text, sizeof(text), "version differs: the daemon speaks ABI %u, the "
			 "client %u: install libkvtrunk and kvtrunkd of one release",
			 KVT_ABI_MAJOR, head->version);
		malformed(daemon, connection, text);
	} else if (connection->state == KVT_CONNECTION_HALF_OPEN) {
		if (head->type != KVT_MSG_HELLO)
			malformed(daemon, connection, "the first message must be HELLO");
		else if (bytes != sizeof(struct kvt_message_hello))
			malformed(daemon, connection, "HELLO has another size here: install "
				  "libkvtrunk and kvtrunkd of one release");
		else
			handle_hello(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_NAMESPACE &&
		   bytes == sizeof(struct kvt_message_namespace)) {
		handle_namespace(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_GROUP && bytes == sizeof(struct kvt_message_group)) {
		handle_group(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_ADMIN && bytes >= sizeof(struct kvt_message_admin)) {
		size_t header = sizeof(struct kvt_message_admin);

		kvt_admin_handle(daemon, connection, (const void *)daemon->message,
				 daemon->message + header, bytes - header);
	} else {
		malformed(daemon, connection, "unexpected message, or its size is wrong");
	}
}

static bool hung_up(int fd)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };

	return poll(&look, 1, 0) == 1;
}

/* Take one message, if there is one. It is looked at where it lies: one that brought descriptors
 * stays there until the closer releases the socket, because taking it would release them here. (To
 * receive them would not do either: close() also flushes a file, and that may wait.) */
static enum take_result take_message(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct iovec part = { .iov_base = daemon->message, .iov_len = KVT_MESSAGE_MAX };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct kvt_cost *cost = cost_of(daemon, connection);
	struct kvt_wake wake = kvt_cost_begin(cost); /* both wake who waits for room to send */
	ssize_t n = recvmsg(connection->fd, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *extra;

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? TAKE_NONE : TAKE_HANGUP;
	if (n == 0 && hung_up(connection->fd))
		return TAKE_HANGUP;
	if (message.msg_flags & MSG_CTRUNC) {
		malformed(daemon, connection, "descriptors are not taken here");
		return TAKE_ONE;
	}
	recv(connection->fd, NULL, 0, MSG_DONTWAIT);
	connection->costly |= kvt_cost_end(daemon, cost, &wake);
	extra = CMSG_FIRSTHDR(&message);
	if (message.msg_flags & MSG_TRUNC)
		malformed(daemon, connection, "message larger than 65536 bytes");
	else if (extra && extra->cmsg_type == SCM_CREDENTIALS &&
		 ((struct ucred *)CMSG_DATA(extra))->pid != connection->peer.pid)
		malformed(daemon, connection, "the sender is not the process that connected: a "
			  "forked child must connect anew");
	else
		dispatch(daemon, connection, (size_t)n);
	return TAKE_ONE;
}

void kvt_control_event(struct kvt_daemon *daemon, struct kvt_connection *connection,
		       uint32_t revents)
{
	connection->armed = false;
	connection->over = revents & (POLLHUP | POLLRDHUP | POLLERR);
	/* What a session asked for before it hung up does not matter any more; its pages do. */
	if (revents & POLLIN && !connection->waiting &&
	    connection->state != KVT_CONNECTION_OVER &&
	    !(connection->over && connection->state == KVT_CONNECTION_SESSION)) {
		connection->queued = true;
		connection->n_last = 0;
		TAILQ_INSERT_TAIL(&daemon->readable, connection, next_readable);
	} else if (connection->over) {
		kvt_control_drop(daemon, connection);
	} else {
		kvt_control_arm(daemon, connection);
	}
}

/* One message of a connection that has one, and what follows from it for the connection. Its
 * session may have ended since it was queued: then the message is left where it is. */
static void serve_readable(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t generation = connection->generation;
	enum take_result taken = TAKE_NONE;

	if (connection->state != KVT_CONNECTION_OVER)
		taken = take_message(daemon, connection);

	if (connection->generation != generation)
		return; /* dropped meanwhile */
	if (connection->over && taken == TAKE_ONE && !connection->waiting &&
	    connection->state != KVT_CONNECTION_OVER &&
	    connection->state != KVT_CONNECTION_SESSION &&
	    ++connection->n_last < MESSAGES_AT_HANGUP) {
		connection->queued = true;
		TAILQ_INSERT_TAIL(&daemon->readable, connection, next_readable);
	} else if (connection->over || taken == TAKE_HANGUP) {
		kvt_control_drop(daemon, connection);
	} else {
		kvt_control_arm(daemon, connection);
	}
}

uint32_t kvt_control_work(struct kvt_daemon *daemon)
{
	struct kvt_connection *connection = TAILQ_FIRST(&daemon->readable);
	uint64_t start = kvt_cycles(), pause, most = PAUSE_MOST_US * daemon->cycles_per_us;

	if ((int64_t)(start - daemon->message_after) < 0)
		return 1; /* soon */
	TAILQ_REMOVE(&daemon->readable, connection, next_readable);
	connection->queued = false;
	kvt_daemon_clock(daemon);
	serve_readable(daemon, connection);
	kvt_loop_flush(&daemon->loop);
	pause = (kvt_cycles() - start) * PAUSE_PER_COST;
	daemon->message_after = kvt_cycles() + (pause < most ? pause : most);
	return 1;
}
