/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file control.c
 * Messages on control connections: HELLO, NAMESPACE, RENEW, GROUP, FEED and admin requests, and
 * hang-ups.
 *
 * Connections with a message are queued by kind, half-open ones, observers and sessions, and turn.c
 * takes turns. A message that no honest client sends ends the connection. A connection belongs to a
 * session or member from admit() until kvt_control_drop(), which tells them of the hang-up. Called
 * by turn.c, timers.c and accept.c.
 */

#include "daemon/serve/control.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/core/core.h"
#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "daemon/keep/rights.h"
#include "daemon/serve/admin.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/group.h"
#include "daemon/serve/member.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "daemon/setup/pool_backend.h"
#include "kvtrunk_wire_feed.h"
#include "shm/assert.h"
#include "shm/geometry.h"
#include "shm/layout.h"

struct kvt_message_feed;

#define MESSAGES_AT_HANGUP 16 /* still taken after the peer hung up */
#define HELLO_WITHIN_NS 2000000000ull /* a connection's first message comes, or it is dropped */
#define SQ_ENTRIES_MAX 256u   /* of a submission ring; a completion ring has up to twice as many */
#define ROOM_STEPS 1024 /* a turn, nodes and pages: to empty a namespace for another one */

/* ---- ends */

void kvt_control_drop(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	struct kvt_member *member = connection->member;

	if (connection->fd < 0)
		return;
	kvt_connection_drop(daemon, connection);
	if (member)
		kvt_session_lost(daemon, member, false);
}

/* End a session or connection whose client does not read its socket. */
static void end_unsent(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	if (!connection->unsent)
		return;
	if (connection->state == KVT_CONNECTION_SESSION)
		kvt_session_kill(daemon, &daemon->sessions.slots[connection->member->session],
				 -ECOMM, "the control socket is not read: the session is over");
	else if (connection->state != KVT_CONNECTION_OVER)
		kvt_control_drop(daemon, connection);
}

enum take_result { TAKE_ONE, TAKE_NONE, TAKE_LATER, TAKE_HANGUP };
static enum take_result take_message(struct kvt_daemon *daemon, struct kvt_connection *connection);

bool kvt_control_has_room(const struct kvt_daemon *daemon)
{
	return daemon->connections.n_half_open < KVT_HALF_OPEN_MAX ||
	       !TAILQ_FIRST(&daemon->connections.half_open)->queue;
}

/* Make room for one more half-open connection: drop the oldest, unless its HELLO has arrived. */
static void make_room(struct kvt_daemon *daemon)
{
	struct kvt_connection *oldest = TAILQ_FIRST(&daemon->connections.half_open);
	uint32_t generation;

	if (daemon->connections.n_half_open < KVT_HALF_OPEN_MAX)
		return;
	generation = oldest->generation;
	take_message(daemon, oldest);
	if (oldest->generation != generation || oldest->state != KVT_CONNECTION_HALF_OPEN)
		return;
	kvt_log_limited(&daemon->client_log, oldest->peer.pid, daemon->clock.real_ns,
			KVT_LOG_WARNING,
			"half_open_dropped", "pid=%d why=\"more than %u connections without a "
			"first message\"", (int)oldest->peer.pid, KVT_HALF_OPEN_MAX);
	kvt_control_drop(daemon, oldest);
}

uint64_t kvt_control_end_half_open(struct kvt_daemon *daemon)
{
	struct kvt_connection *connection;

	while ((connection = TAILQ_FIRST(&daemon->connections.half_open)) != NULL) {
		if (daemon->clock.real_ns - connection->accepted_ns < HELLO_WITHIN_NS)
			return connection->accepted_ns + HELLO_WITHIN_NS;
		kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
				KVT_LOG_WARNING, "half_open_dropped",
				"pid=%d why=\"no first message within %llu ms\"",
				(int)connection->peer.pid, HELLO_WITHIN_NS / 1000000);
		kvt_control_drop(daemon, connection);
	}
	return UINT64_MAX;
}

void kvt_control_accepted(struct kvt_daemon *daemon, int fd)
{
	struct kvt_connection *connection;
	struct kvt_peer peer;
	uint64_t due;
	int on = 1;

	daemon->stats.accepted++;
	/* SO_PASSCRED: each message then names its sending process. */
	if (kvt_peer_read(fd, daemon->admin_gid, &peer) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0) {
		kvt_host_refuses(daemon, "getsockopt or setsockopt", errno);
		close(fd);
		return;
	}
	kvt_connection_refuse_fds(fd);
	make_room(daemon);
	connection = kvt_connection_take(daemon, fd, &peer);
	due = daemon->clock.real_ns + HELLO_WITHIN_NS;
	if (due < daemon->timers.next_ns)
		daemon->timers.next_ns = due;
	kvt_connection_queue(daemon, connection); /* mostly, HELLO has arrived already */
}

/* ---- refusing */

/* Refuse a HELLO and drop the connection. A retry needs a new one. */
static void refuse_as(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      uint64_t cookie, int error, enum kvt_attach_state state, const char *text)
{
	struct kvt_message_refused message = { .state = state };

	daemon->stats.refused++;
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
			KVT_LOG_NOTICE, "refused",
			"pid=%d uid=%u error=%d why=\"%s\"", (int)connection->peer.pid,
			(unsigned int)connection->peer.uid, error, text);
	kvt_message_fill(&message.head, KVT_MSG_REFUSED, sizeof(message), error, cookie);
	strlcpy(message.text, text, sizeof(message.text));
	kvt_connection_send(daemon, connection, &message, sizeof(message), NULL, 0);
	kvt_control_drop(daemon, connection);
}

static void refuse(struct kvt_daemon *daemon, struct kvt_connection *connection, uint64_t cookie,
		   int error, const char *text)
{
	refuse_as(daemon, connection, cookie, error, KVT_ATTACH_REFUSED, text);
}

/* End a connection after a message that no honest client sends. */
static void malformed(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const char *text)
{
	if (connection->state == KVT_CONNECTION_SESSION)
		kvt_session_kill(daemon, &daemon->sessions.slots[connection->member->session],
				 -EPROTO, text);
	else
		refuse(daemon, connection, 0, -EPROTO, text);
}

/* ---- HELLO */

static void number_differs(const char *name, uint64_t here, uint64_t there, char *text, size_t size)
{
	snprintf(text, size, "geometry differs: the daemon has %s %llu, the client asked for %llu",
		 name, (unsigned long long)here, (unsigned long long)there);
}

/* Name the first difference between the client's page geometry and ours. */
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

/* Describe how the client's geometry differs from ours. False: it does not. */
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

	if (hello->geometry.n_layers && /* says more than two unequal fingerprints */
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

/* True if a fingerprint has no field but `sides`, which says nothing of what pages hold. */
static bool only_sides(const char *fingerprint)
{
	return strncmp(fingerprint, "sides=", 6) == 0 && !memchr(fingerprint, ';',
								  KVT_FINGERPRINT_BYTES);
}

/* True if the client would write pages without naming a geometry that we have. */
static bool geometry_unnamed(const struct kvt_daemon *daemon,
			     const struct kvt_message_hello *hello, char *text, size_t size)
{
	const char *ours = daemon->core_config.fingerprint; /* has the geometry's fields */
	char clean[161];

	if (!ours[0] || hello->geometry.n_layers ||
	    (hello->fingerprint[0] && (!only_sides(hello->fingerprint) || only_sides(ours))) ||
	    hello->flags & (KVT_HELLO_OBSERVE | KVT_ANY_GEOMETRY))
		return false;
	kvt_log_clean(clean, sizeof(clean), ours, KVT_FINGERPRINT_BYTES);
	snprintf(text, size, "geometry not named: the daemon's pages are of '%s', and others "
		 "would read what this client writes: set options.geometry or "
		 "options.fingerprint, or KVT_ANY_GEOMETRY if it writes no page or follows "
		 "kvt_pool_view()", clean);
	return true;
}

static uint32_t observers_of(const struct kvt_daemon *daemon, uid_t uid)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < daemon->connections.n_slots; i++)
		n += daemon->connections.slots[i].state == KVT_CONNECTION_OBSERVER &&
		     daemon->connections.slots[i].peer.uid == uid;
	return n;
}

/* Check for a free observer slot. An eighth of the slots (at least one) is reserved for privileged
 * peers; any other uid may have a quarter. So operators can always look, and no user can keep
 * others out. */
static int observer_check(const struct kvt_daemon *daemon,
			  const struct kvt_connection *connection, char *text, size_t size)
{
	const uint32_t all = KVT_OBSERVERS_MAX, kept = all / 8, own = all / 4;
	uint32_t uid = connection->peer.uid;

	if (daemon->connections.n_observers >= all) {
		snprintf(text, size, "%u observers are connected, as many as may be: try later",
			 all);
		return -EUSERS;
	}
	if (connection->peer.privileged)
		return 0;
	if (daemon->connections.n_observers + kept >= all) {
		snprintf(text, size, "%u observers are connected, and the last %u of "
			 "%u places are for privileged ones: try later",
			 daemon->connections.n_observers, kept, all);
		return -EUSERS;
	}
	if (observers_of(daemon, uid) >= own) {
		snprintf(text, size, "uid %u has %u observers connected, and may have a quarter "
			 "of %u: close some", uid, own, all);
		return -EDQUOT;
	}
	return 0;
}

/* Check a HELLO. Negative errno with a text and a state: refuse it. */
static int hello_check(struct kvt_daemon *daemon, const struct kvt_connection *connection,
		       const struct kvt_message_hello *hello, enum kvt_attach_state *ret_state,
		       char *text, size_t size)
{
	bool observe = hello->flags & KVT_HELLO_OBSERVE;

	*ret_state = KVT_ATTACH_REFUSED;
	if (hello->layout != kvt_layout()) {
		snprintf(text, size, "layout differs: both speak ABI %u, but were built with other "
			 "structures: install libkvtrunk and kvtrunkd of one build",
			 KVT_ABI);
		*ret_state = KVT_ATTACH_WRONG_LAYOUT;
		return -EPROTO;
	}
	if (hello->flags & ~(uint32_t)(KVT_HELLO_OBSERVE | KVT_HELLO_NO_RESUME |
				       KVT_ANY_GEOMETRY | KVT_MIRROR)) {
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
			 "child must connect itself", hello->pid, (int)connection->peer.pid);
		return -EPERM;
	}
	if (geometry_differs(daemon, hello, text, size) ||
	    geometry_unnamed(daemon, hello, text, size)) {
		*ret_state = KVT_ATTACH_WRONG_GEOMETRY;
		return -EINVAL;
	}
	if (hello->rank && !hello->group[0] && !hello->group[1]) {
		snprintf(text, size, "rank %u gave no token of its group, or one of zeroes: get "
			 "it from rank 0, after kvt_group_open()", hello->rank);
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

/* Clamp the requested sizes to the daemon's limits. An area holds at most what one operation can
 * use: a client may punch holes into it, and each missing page costs the serving thread a fault.
 * INSERT lists a page number for each page of keys. */
static void hello_wish(const struct kvt_daemon *daemon, const struct kvt_message_hello *hello,
		       struct kvt_session_wish *wish)
{
	uint64_t list = daemon->core_config.max_op_keys;
	uint64_t keys = list + list / daemon->core_config.page_size;

	wish->sq_entries = power_of_two(hello->sq_entries, 8, SQ_ENTRIES_MAX);
	wish->cq_entries = power_of_two(hello->cq_entries ? hello->cq_entries
							  : 2ull * wish->sq_entries, 8,
					2ull * SQ_ENTRIES_MAX);
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
	welcome->n_sides = config->n_sides;
	memcpy(welcome->side_pages, config->side_pages, sizeof(welcome->side_pages));
	welcome->flags = (connection->peer.privileged ? KVT_WELCOME_PRIVILEGED : 0u) |
			 (config->disabled ? KVT_WELCOME_DISABLED : 0u) |
			 (daemon->clock.is_test ? KVT_WELCOME_TEST_CLOCK : 0u) |
			 (daemon->notify.store && daemon->pool.ops->adopt ? KVT_WELCOME_KEPT : 0u);
	welcome->daemon_pid = getpid();
	memcpy(welcome->fingerprint, config->fingerprint, sizeof(welcome->fingerprint));
	welcome->geometry = daemon->plan.geometry;
}

/* Add descriptors: the arena if it may be seen; for sessions the pool, and a mirror. */
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

static void add_mirror(const struct kvt_session *session, struct kvt_message_welcome *welcome,
		       int *fds, uint32_t *n_fds)
{
	if (session->mirror < 0)
		return;
	welcome->fds |= KVT_FD_MIRROR;
	fds[(*n_fds)++] = session->mirror;
}

/* The connection is a session's now: name it, and the memory of this process. */
static void admit(struct kvt_daemon *daemon, struct kvt_connection *connection,
		  struct kvt_message_welcome *welcome)
{
	const struct kvt_member *member = connection->member;

	KVT_ASSERT(member->session);
	kvt_connection_is_open(daemon, connection, KVT_CONNECTION_SESSION);
	welcome->session = member->session;
	welcome->sealer = kvt_core_session(daemon->core, member->session)->sealer;
	welcome->segment_bytes = member->layout.bytes;
	welcome->areas_bytes = member->layout.areas_bytes;
}

static void hello_session(struct kvt_daemon *daemon, struct kvt_connection *connection,
			  const struct kvt_message_hello *hello,
			  struct kvt_message_welcome *welcome)
{
	int fds[4 + 1 + KVT_MAX_SLABS + 1], error;
	char label[KVT_LABEL_BYTES], text[KVT_TEXT_BYTES];
	struct kvt_session_wish wish = { .label = label,
					 .no_resume = hello->flags & KVT_HELLO_NO_RESUME,
					 .mirror = hello->flags & KVT_MIRROR };
	uint32_t n_fds = 4;

	kvt_log_clean(label, sizeof(label), hello->label, KVT_LABEL_BYTES);
	hello_wish(daemon, hello, &wish);
	error = kvt_session_open(daemon, connection, &wish, welcome->secret, fds, text,
				 sizeof(text));
	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, welcome);
	welcome->fds = KVT_FD_SEGMENT | KVT_FD_AREAS | KVT_FD_DOORBELL | KVT_FD_COMPLETION;
	add_shared(daemon, welcome, fds, &n_fds);
	add_mirror(&daemon->sessions.slots[welcome->session], welcome, fds, &n_fds);
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
			KVT_LOG_INFO, "session_open",
			"session=%u pid=%d uid=%u label=\"%s\"", welcome->session,
			(int)connection->peer.pid, (unsigned int)connection->peer.uid, label);
	kvt_connection_send(daemon, connection, welcome, sizeof(*welcome), fds, n_fds);
	close(fds[3]); /* our copy of the client's end */
}

/* Add a process as a rank of an existing group. */
static void hello_member(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_hello *hello,
			 struct kvt_message_welcome *welcome)
{
	char label[KVT_LABEL_BYTES], text[KVT_TEXT_BYTES];
	int fds[2 + 1 + KVT_MAX_SLABS + 1], error;
	uint32_t n_fds = 2;

	kvt_log_clean(label, sizeof(label), hello->label, KVT_LABEL_BYTES);
	error = kvt_group_join(daemon, connection, hello, label, welcome, fds, text, sizeof(text));
	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, welcome);
	welcome->fds = KVT_FD_SEGMENT | KVT_FD_DOORBELL;
	add_shared(daemon, welcome, fds, &n_fds);
	add_mirror(&daemon->sessions.slots[welcome->session], welcome, fds, &n_fds);
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
			KVT_LOG_INFO, "member_joined", "session=%u rank=%u pid=%d label=\"%s\"",
			welcome->session, welcome->rank, (int)connection->peer.pid, label);
	kvt_connection_send(daemon, connection, welcome, sizeof(*welcome), fds, n_fds);
}

/* Give a recovered session's process its new connection. */
static void hello_resume(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_hello *hello,
			 struct kvt_message_welcome *welcome)
{
	char text[KVT_TEXT_BYTES];
	int error = kvt_session_resume(daemon, connection, hello, text, sizeof(text));

	if (error) {
		refuse(daemon, connection, hello->head.cookie, error, text);
		return;
	}
	admit(daemon, connection, welcome);
	welcome->rank = hello->rank;
	welcome->n_ranks = kvt_core_member(daemon->core, connection->member->index)->n_ranks;
	welcome->flags |= KVT_WELCOME_RESUMED;
	memcpy(welcome->secret, hello->secret, sizeof(welcome->secret));
	kvt_log_limited(&daemon->client_log, connection->peer.pid, daemon->clock.real_ns,
			KVT_LOG_INFO, "session_resumed", "session=%u rank=%u pid=%d",
			welcome->session, welcome->rank, (int)connection->peer.pid);
	kvt_connection_send(daemon, connection, welcome, sizeof(*welcome), NULL, 0);
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
	kvt_message_fill(&welcome.head, KVT_MSG_WELCOME, sizeof(welcome), 0, hello->head.cookie);
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
	kvt_connection_is_open(daemon, connection, KVT_CONNECTION_OBSERVER);
	add_shared(daemon, &welcome, fds, &n_fds);
	kvt_connection_send(daemon, connection, &welcome, sizeof(welcome), fds, n_fds);
}

/* ---- NAMESPACE, RENEW */

/* Say why a namespace is not opened or renewed. */
static void namespace_refused(const struct kvt_daemon *daemon, int error, char *text, size_t size)
{
	const struct kvt_core_config *config = &daemon->core_config;

	if (error == -ENOSPC)
		snprintf(text, size, "all max_namespaces=%u namespaces are open or locked: close "
			 "some (kvt_namespace_close()), or raise it", config->max_namespaces);
	else if (error == -EDQUOT)
		snprintf(text, size, "this session has %u namespaces open, the most for one (7/8 "
			 "of max_namespaces=%u): close some (kvt_namespace_close()), or raise it",
			 config->max_opened, config->max_namespaces);
	else if (error == -ENOENT)
		snprintf(text, size, "no such namespace");
	else if (error == -EINVAL)
		snprintf(text, size, "the session does not have it open: open it first "
			 "(kvt_namespace_open())");
	else
		snprintf(text, size, "%s", strerror(-error));
}

static void handle_namespace(struct kvt_daemon *daemon, struct kvt_connection *connection,
			     const struct kvt_message_namespace *request)
{
	uint32_t session = connection->member ? connection->member->session : 0;
	struct kvt_message_namespace answer = *request;
	struct kvt_admin_namespace described;
	char label[KVT_LABEL_BYTES];
	int error;

	memset(answer.text, 0, sizeof(answer.text));
	if (request->head.type == KVT_MSG_RENEW) {
		error = kvt_core_namespace_renew(daemon->core, session, request->namespace_id,
						 request->generation, &answer.generation);
	} else {
		answer.namespace_id = answer.generation = 0;
		kvt_log_clean(label, sizeof(label), request->label, KVT_LABEL_BYTES);
		error = kvt_core_namespace_open(daemon->core, session, request->digest, label,
						daemon->clock.now_ns, &answer.namespace_id);
		if (!error && kvt_core_describe_namespace(daemon->core, answer.namespace_id,
							  &described))
			answer.generation = described.generation;
	}
	kvt_message_fill(&answer.head, request->head.type, sizeof(answer), error,
			 request->head.cookie);
	if (error)
		namespace_refused(daemon, error, answer.text, sizeof(answer.text));
	kvt_connection_send(daemon, connection, &answer, sizeof(answer), NULL, 0);
}

/* Empty another namespace a bit, if this message opens one for which there is no place. Returns
 * true if the message has to wait for that. */
static bool must_make_room(struct kvt_daemon *daemon, const struct kvt_connection *connection,
			   size_t bytes)
{
	const struct kvt_message_namespace *request = (const void *)daemon->message;

	return connection->state == KVT_CONNECTION_SESSION && bytes == sizeof(*request) &&
	       request->head.type == KVT_MSG_NAMESPACE && request->head.bytes == bytes &&
	       kvt_core_namespace_make_room(daemon->core, connection->member->session,
					    request->digest, ROOM_STEPS, daemon->clock.now_ns);
}

/* ---- GROUP */

static void handle_group(struct kvt_daemon *daemon, struct kvt_connection *connection,
			 const struct kvt_message_group *request)
{
	struct kvt_message_group answer = { .n_ranks = request->n_ranks,
					    .token = { request->token[0], request->token[1] } };
	int error = kvt_group_open(daemon, connection, request->n_ranks, answer.token, answer.text,
				   sizeof(answer.text));

	kvt_message_fill(&answer.head, KVT_MSG_GROUP, sizeof(answer), error, request->head.cookie);
	kvt_connection_send(daemon, connection, &answer, sizeof(answer), NULL, 0);
}

/* ---- FEED */

static void handle_feed(struct kvt_daemon *daemon, struct kvt_connection *connection,
			const struct kvt_message_feed *request)
{
	struct kvt_message_feed answer = { .on = request->on };
	int fd = -1;

	if (request->on)
		fd = kvt_feed_join(daemon, connection, answer.text, sizeof(answer.text));
	else
		kvt_feed_leave(daemon, connection);
	kvt_message_fill(&answer.head, KVT_MSG_FEED, sizeof(answer),
			 request->on && fd < 0 ? fd : 0, request->head.cookie);
	kvt_connection_send(daemon, connection, &answer, sizeof(answer), &fd, fd >= 0);
}

/* ---- receiving */

/* Handle a request. */
static void handle(struct kvt_daemon *daemon, struct kvt_connection *connection, size_t bytes)
{
	const struct kvt_message *head = (const struct kvt_message *)daemon->message;

	if (connection->state == KVT_CONNECTION_HALF_OPEN) {
		if (head->type != KVT_MSG_HELLO)
			malformed(daemon, connection, "the first message must be HELLO");
		else if (bytes != sizeof(struct kvt_message_hello))
			malformed(daemon, connection, "HELLO has another size here: install "
				  "libkvtrunk and kvtrunkd of one release");
		else
			handle_hello(daemon, connection, (const void *)daemon->message);
	} else if ((head->type == KVT_MSG_NAMESPACE || head->type == KVT_MSG_RENEW) &&
		   bytes == sizeof(struct kvt_message_namespace)) {
		handle_namespace(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_GROUP && bytes == sizeof(struct kvt_message_group)) {
		handle_group(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_FEED && bytes == sizeof(struct kvt_message_feed)) {
		handle_feed(daemon, connection, (const void *)daemon->message);
	} else if (head->type == KVT_MSG_ADMIN && bytes >= sizeof(struct kvt_message_admin)) {
		size_t header = sizeof(struct kvt_message_admin);

		kvt_admin_handle(daemon, connection, (const void *)daemon->message,
				 daemon->message + header, bytes - header);
	} else {
		malformed(daemon, connection, "unexpected message, or its size is wrong");
	}
}

/* A HELLO that resumes or joins a session, or opens none. It is never refused for deaths: it
 * allocates nothing, and the first messages after a death are always such, so that two kills from
 * outside would often fall into equal ones. */
static bool opens_nothing(const struct kvt_connection *connection,
			  const struct kvt_message_hello *hello)
{
	return connection->state == KVT_CONNECTION_HALF_OPEN &&
	       (hello->secret[0] || hello->secret[1] || hello->group[0] || hello->group[1] ||
		hello->flags & KVT_HELLO_OBSERVE);
}

/* Name a request by its sender's uid and its content: a repetition after the daemon's death has
 * another cookie, and often another connection. *ret_what: see KVT_RUNNING_REQUEST. Returns false
 * if it has no name, because it is not refused whatever it does. */
static bool name_request(const struct kvt_daemon *daemon, const struct kvt_connection *connection,
			 size_t bytes, uint32_t *ret_what, uint64_t *ret_digest)
{
	const struct kvt_message *head = (const struct kvt_message *)daemon->message;
	const uint32_t *words = (const void *)(head + 1);
	size_t n = (bytes - sizeof(*head)) / sizeof(*words);

	*ret_what = head->type;
	if (head->type == KVT_MSG_ADMIN && n > 0)
		*ret_what = KVT_RUNNING_ADMIN | words[0]; /* kvt_message_admin.what */
	if (head->type == KVT_MSG_HELLO && bytes == sizeof(struct kvt_message_hello)) {
		if (opens_nothing(connection, (const void *)daemon->message))
			return false;
		/* The sizes that it asks for, without pid, secret and label. */
		n = (offsetof(struct kvt_message_hello, pid) - sizeof(*head)) / sizeof(*words);
	}
	*ret_digest = kvt_layout_fold(words, n) + connection->peer.uid * 0x9e3779b97f4a7c15ull;
	*ret_digest >>= 16;
	return true;
}

/* Answer a request in which daemons died, without looking at more of it than its kind. */
static void refuse_fatal(struct kvt_daemon *daemon, struct kvt_connection *connection, size_t bytes)
{
	static const char text[] = "two daemons died in this request, so it is not run again until "
		"an orderly restart: find the cause in the daemon's log (died_in), then kvtctl "
		"upgrade, or systemctl restart";
	union {
		struct kvt_message head;
		struct kvt_message_namespace namespace;
		struct kvt_message_group group;
		struct kvt_message_feed feed;
		struct kvt_message_admin admin;
	} *request = (void *)daemon->message;

	if (connection->state == KVT_CONNECTION_HALF_OPEN) {
		refuse(daemon, connection, request->head.cookie, -EIO, text);
		return;
	}
	if (request->head.type == KVT_MSG_ADMIN && bytes >= sizeof(request->admin)) {
		kvt_admin_refuse(daemon, connection, &request->admin, -EIO, text);
		return;
	}
	if (request->head.type == KVT_MSG_GROUP && bytes == sizeof(request->group)) {
		strlcpy(request->group.text, text, sizeof(request->group.text));
	} else if (request->head.type == KVT_MSG_FEED && bytes == sizeof(request->feed)) {
		strlcpy(request->feed.text, text, sizeof(request->feed.text));
	} else if (bytes == sizeof(request->namespace)) {
		strlcpy(request->namespace.text, text, sizeof(request->namespace.text));
	} else {
		malformed(daemon, connection, text);
		return;
	}
	request->head.result = -EIO;
	kvt_connection_send(daemon, connection, request, bytes, NULL, 0);
}

static void dispatch(struct kvt_daemon *daemon, struct kvt_connection *connection, size_t bytes)
{
	const struct kvt_message *head = (const struct kvt_message *)daemon->message;
	uint64_t digest;
	uint32_t what;
	bool named;

	if (bytes < sizeof(*head) || head->magic != KVT_MESSAGE_MAGIC || head->bytes != bytes) {
		malformed(daemon, connection, "not a kvtrunk message, or its length is wrong");
		return;
	}
	if (head->version != KVT_ABI) {
		char text[KVT_TEXT_BYTES];

		snprintf(text, sizeof(text), "version differs: the daemon speaks ABI %u, the "
			 "client %u: install libkvtrunk and kvtrunkd of one release",
			 KVT_ABI, head->version);
		malformed(daemon, connection, text);
		return;
	}
	named = name_request(daemon, connection, bytes, &what, &digest);
	if (named && !kvt_core_request_begin(daemon->core, what, digest)) {
		refuse_fatal(daemon, connection, bytes);
		return;
	}
	handle(daemon, connection, bytes);
	if (named)
		kvt_core_request_end(daemon->core);
}

/* POLLRDHUP: the client will send nothing more. POLLHUP: nor will it read. */
static bool hung_up(int fd, short how)
{
	struct pollfd look = { .fd = fd, .events = POLLRDHUP };

	return poll(&look, 1, 0) == 1 && look.revents & how;
}

/* Take one message, if there is one. Only a message that is not left waiting is removed. The kernel
 * closes its descriptors, because there is no room for any. */
static enum take_result take_message(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	struct kvt_rights rights;
	ssize_t n;

	n = kvt_rights_receive(connection->fd, daemon->message, KVT_MESSAGE_MAX, MSG_PEEK, 0,
			       &rights);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return TAKE_NONE;
	if (n < 0) {
		kvt_host_refuses(daemon, "recvmsg", errno);
		return TAKE_HANGUP;
	}
	if (n == 0 && hung_up(connection->fd, POLLRDHUP | POLLHUP))
		return TAKE_HANGUP;
	/* The peer is gone: no HELLO needs an answer. */
	if (connection->state == KVT_CONNECTION_HALF_OPEN && hung_up(connection->fd, POLLHUP)) {
		connection->hung_up = true;
		return TAKE_HANGUP;
	}
	if (!(rights.flags & MSG_CTRUNC) && must_make_room(daemon, connection, (size_t)n))
		return TAKE_LATER;
	if (recv(connection->fd, NULL, 0, MSG_DONTWAIT) < 0)
		kvt_host_refuses(daemon, "recvfrom", errno);
	if (rights.flags & MSG_CTRUNC)
		malformed(daemon, connection, "descriptors are not taken here");
	else if (rights.flags & MSG_TRUNC)
		malformed(daemon, connection, "message larger than 65536 bytes");
	else if (rights.sender >= 0 && rights.sender != connection->peer.pid)
		malformed(daemon, connection, "the sender is not the process that connected: a "
			  "forked child must connect itself");
	else
		dispatch(daemon, connection, (size_t)n);
	end_unsent(daemon, connection);
	return TAKE_ONE;
}

void kvt_control_event(struct kvt_daemon *daemon, struct kvt_connection *connection, int result)
{
	uint32_t revents = result >= 0 ? (uint32_t)result : result == -ECANCELED ? 0 : POLLHUP;

	connection->armed = false;
	connection->over = revents & (POLLHUP | POLLRDHUP | POLLERR);
	connection->hung_up = revents & POLLHUP;
	/* A session's last requests are dropped at hang-up, so that its pages come back sooner. */
	if (revents & POLLIN && !connection->waiting &&
	    connection->state != KVT_CONNECTION_OVER &&
	    !(connection->over && connection->state == KVT_CONNECTION_SESSION)) {
		connection->n_last = 0;
		kvt_connection_queue(daemon, connection);
	} else if (connection->over) {
		kvt_control_drop(daemon, connection);
	} else {
		kvt_connection_arm(daemon, connection);
	}
}

/* Queue the connection again, arm its poll, or drop it. */
static void settle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   enum take_result taken)
{
	KVT_ASSERT(connection->fd >= 0);
	if (connection->over && taken == TAKE_ONE && !connection->waiting &&
	    connection->state != KVT_CONNECTION_OVER &&
	    connection->state != KVT_CONNECTION_SESSION &&
	    ++connection->n_last < MESSAGES_AT_HANGUP) {
		kvt_connection_queue(daemon, connection);
	} else if (connection->over || taken == TAKE_HANGUP) {
		kvt_control_drop(daemon, connection);
	} else if (taken == TAKE_LATER) {
		kvt_connection_queue(daemon, connection);
	} else {
		kvt_connection_arm(daemon, connection);
	}
}

void kvt_control_take(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	uint32_t generation = connection->generation;
	enum take_result taken = TAKE_NONE;

	kvt_connection_unqueue(daemon, connection);
	if (connection->state != KVT_CONNECTION_OVER)
		taken = take_message(daemon, connection);
	if (connection->generation == generation) /* not dropped */
		settle(daemon, connection, taken);
}

/* ---- answers that wait */

void kvt_control_answer(struct kvt_daemon *daemon)
{
	bool left = false;

	for (uint32_t i = 0; i < daemon->connections.n_slots; i++) {
		struct kvt_connection *connection = &daemon->connections.slots[i];

		if (!connection->waiting)
			continue;
		if (!kvt_admin_answer(daemon, connection)) {
			left = true;
			continue;
		}
		end_unsent(daemon, connection);
		if (connection->fd < 0)
			continue;
		connection->waiting = false;
		/* A poll in flight lacks POLLIN. */
		kvt_connection_rearm(daemon, connection);
	}
	daemon->waiters = left;
	kvt_loop_flush(&daemon->loop);
}
