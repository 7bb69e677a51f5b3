/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket of a store (serve.h). Inputs: connections and FETCHes of peers, which are checked
 * before use; keys are copied out of the key area before they are hashed, for the peer can change
 * them. Called by main.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtrunk_wire_store.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/limit.h"
#include "shm/racy.h"
#include "store/serve.h"

#define BACKLOG 64
#define ACCEPT_PAUSE_NS 100000000 /* after a failure */
#define PARKED_MOST 256u /* each has its keys, of which a peer has as many as its key area */
#define PATIENCE_MS 100u /* of those whom no BEGIN waits for */

struct kvt_peer {
	struct kvt_peer *next;
	int fd;
	uid_t uid;
	const uint32_t *keys; /* the key area, which the peer writes */
};

/* A FETCH that is answered when the helper has told which pages there are. */
struct kvt_parked {
	struct kvt_parked *next;
	struct kvt_peer *peer;
	struct kvt_store_fetch ask;
	uint64_t round, since_ns, until_ns;
	uint32_t keys[]; /* a private copy */
};

/* ---- the name */

static int refuse(struct kvt_error *why, const char *path, int error)
{
	const char *cure = error == -ENOENT ? ": start kvtrunkd first, or name its socket with "
					      "--socket" :
			   error == -EACCES ? ": run kvtstored as a user who may write there, as "
					      "kvtrunkd's" : "";

	why->code = error;
	if (error == -EADDRINUSE)
		snprintf(why->text, sizeof(why->text), "%s is in use by another process: one store "
			 "serves an instance", path);
	else
		snprintf(why->text, sizeof(why->text), "cannot listen at %s: %s%s", path,
			 kvt_name_text(-error), cure);
	return error;
}

/* Give the socket the group and mode of the daemon's. A store of another user may not set the
 * group: then it is its own. */
static int share_like_daemon(const struct kvt_server *server)
{
	struct stat daemon;

	if (stat(server->store->daemon_path, &daemon) != 0)
		return -errno;
	if (chown(server->name.path, (uid_t)-1, daemon.st_gid) != 0 && errno != EPERM)
		return -errno;
	return chmod(server->name.path, daemon.st_mode & 0777) == 0 ? 0 : -errno;
}

static int listen_there(struct kvt_server *server)
{
	struct epoll_event event = { .events = EPOLLIN }, wake = { .events = EPOLLIN };
	int rc = kvt_name_bind(&server->name, SOCK_SEQPACKET | SOCK_NONBLOCK);

	if (rc < 0)
		return rc;
	server->listener = rc;
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	rc = server->epoll < 0 ? -errno : share_like_daemon(server);
	wake.data.ptr = server;
	if (rc == 0 && (listen(server->listener, BACKLOG) != 0 ||
			epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->listener, &event) != 0 ||
			epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->store->wake, &wake) != 0))
		rc = -errno;
	return rc;
}

int kvt_server_take(struct kvt_server *server, const char *path, struct kvt_error *why)
{
	int rc;

	*server = (struct kvt_server){ .listener = -1, .epoll = -1 };
	rc = kvt_name_take(&server->name, path);
	return rc == 0 ? 0 : refuse(why, path, rc);
}

int kvt_server_open(struct kvt_server *server, struct kvt_store *store, struct kvt_error *why)
{
	int rc;

	server->store = store;
	server->keys = malloc(KVT_STORE_KEYS * sizeof(*server->keys));
	server->names = malloc(KVT_HELPER_PAGES * sizeof(*server->names));
	rc = server->keys && server->names ? listen_there(server) : -ENOMEM;
	return rc == 0 ? 0 : refuse(why, server->name.path, rc);
}

/* ---- peers */

static struct kvt_parked *unpark(struct kvt_server *server, struct kvt_parked **at)
{
	struct kvt_parked *parked = *at;

	*at = parked->next;
	server->n_parked--;
	return parked;
}

static void drop(struct kvt_server *server, struct kvt_peer *peer)
{
	struct kvt_parked **waiting = &server->parked;
	struct kvt_peer **at = &server->peers;

	while (*waiting) {
		if ((*waiting)->peer == peer)
			free(unpark(server, waiting));
		else
			waiting = &(*waiting)->next;
	}
	while (*at != peer)
		at = &(*at)->next;
	*at = peer->next;
	server->n_peers--;
	munmap((void *)peer->keys, KVT_STORE_KEYS * sizeof(*peer->keys));
	close(peer->fd);
	free(peer);
}

void kvt_server_drop_peers(struct kvt_server *server)
{
	while (server->peers)
		drop(server, server->peers);
}

void kvt_server_close(struct kvt_server *server)
{
	kvt_server_drop_peers(server);
	kvt_name_release(&server->name);
	if (server->listener >= 0)
		close(server->listener);
	if (server->epoll >= 0)
		close(server->epoll);
	free(server->keys);
	free(server->names);
	*server = (struct kvt_server){ .listener = -1, .epoll = -1 };
}

/* Make a key area: the peer maps it to write. Returns its descriptor. */
static int make_keys(const uint32_t **ret_keys)
{
	uint64_t bytes = KVT_STORE_KEYS * sizeof(uint32_t);
	int fd = memfd_create("kvtstored-keys", MFD_CLOEXEC | MFD_ALLOW_SEALING), rc;
	void *keys = MAP_FAILED;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		keys = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (keys == MAP_FAILED) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*ret_keys = keys;
	return fd;
}

static struct kvt_message head_of(uint16_t type, uint32_t bytes, uint64_t cookie)
{
	return (struct kvt_message){ .magic = KVT_STORE_MAGIC, .type = type, .version = KVT_ABI,
				     .bytes = bytes, .cookie = cookie };
}

static bool send_welcome(const struct kvt_server *server, int fd, int keys_fd)
{
	struct kvt_store_welcome welcome = {
		.head = head_of(KVT_STORE_WELCOME, sizeof(welcome), 0),
		.instance = { server->store->instance[0], server->store->instance[1] },
		.n_keys = KVT_STORE_KEYS,
		.min_positions = server->store->host->options.min_positions,
		.patience_ms = server->store->host->remote ? PATIENCE_MS : 0,
	};

	return kvt_send_with_fd(fd, &welcome, sizeof(welcome), keys_fd);
}

static uint32_t peers_of(const struct kvt_server *server, uid_t uid)
{
	uint32_t n = 0;

	for (const struct kvt_peer *peer = server->peers; peer; peer = peer->next)
		n += peer->uid == uid;
	return n;
}

/* Look at the listener again, or no more for a while: its event lasts as long as its queue. */
static void watch_listener(struct kvt_server *server, bool on)
{
	struct epoll_event event = { .events = on ? EPOLLIN : 0 };

	server->accept_again_ns = on ? 0 : kvt_now_ns() + ACCEPT_PAUSE_NS;
	epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listener, &event);
}

/* No peer can be accepted: say so once, until one is. */
static void accept_failed(struct kvt_server *server, int error)
{
	if (error == EAGAIN || error == EINTR || error == ECONNABORTED)
		return;
	if (error != server->accept_failed)
		kvt_store_say(server->store, "cannot accept clients: %s%s; it tries again",
			      kvt_limit_text(error), error == EMFILE ? "" :
			      ": the host lacks what each needs");
	server->accept_failed = error;
	watch_listener(server, false);
}

static void accept_one(struct kvt_server *server)
{
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), keys_fd = -1;
	struct kvt_peer *peer = NULL;
	struct epoll_event event = { .events = EPOLLIN };
	struct ucred who;
	socklen_t bytes = sizeof(who);
	bool good = false;

	if (fd < 0) {
		accept_failed(server, errno);
		return;
	}
	server->accept_failed = 0;
	if (server->n_peers < KVT_STORE_PEERS &&
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
	    peers_of(server, who.uid) < KVT_STORE_UID_PEERS)
		peer = calloc(1, sizeof(*peer));
	if (peer)
		keys_fd = make_keys(&peer->keys);
	if (keys_fd >= 0) {
		event.data.ptr = peer;
		good = send_welcome(server, fd, keys_fd) &&
		       epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
		close(keys_fd);
		if (!good)
			munmap((void *)peer->keys, KVT_STORE_KEYS * sizeof(*peer->keys));
	}
	if (!good) {
		close(fd);
		free(peer);
		return;
	}
	peer->fd = fd;
	peer->uid = who.uid;
	peer->next = server->peers;
	server->peers = peer;
	server->n_peers++;
}

/* ---- messages */

static bool head_ok(const struct kvt_message *head, uint16_t type, size_t bytes)
{
	return head->magic == KVT_STORE_MAGIC && head->version == KVT_ABI && head->type == type &&
	       head->bytes == bytes;
}

/* Begin to load what a peer lacks. Returns the positions. */
static uint32_t fetch(struct kvt_server *server, const struct kvt_peer *peer,
		      const struct kvt_store_fetch *ask)
{
	struct kvt_store *store = server->store;
	const uint32_t *keys = peer->keys + ask->keys_at;
	uint32_t page_size = store->known.info.page_size;

	if (!store->client || ask->n_keys < page_size)
		return 0;
	/* Most answers are no: copy what they need first. */
	kvt_racy_copy(server->keys, keys, page_size);
	if (!kvt_load_possible(store, ask, server->keys))
		return 0;
	kvt_racy_copy(server->keys, keys, ask->n_keys);
	return kvt_load_begin(store, ask, server->keys);
}

/* Send without waiting. A peer that does not read its answers loses its connection. */
static void reply(struct kvt_server *server, struct kvt_peer *peer, const void *answer,
		  size_t bytes)
{
	if (send(peer->fd, answer, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes)
		drop(server, peer);
}

/* Answer a FETCH that was read at `since_ns`. */
static void answer_fetch(struct kvt_server *server, struct kvt_peer *peer,
			 const struct kvt_store_fetch *ask, uint64_t since_ns, uint32_t positions)
{
	const struct kvt_loads *loads = &server->store->loads;
	struct kvt_store_answer answer = {
		.head = head_of(KVT_STORE_ANSWER, sizeof(answer), ask->head.cookie),
		.positions = positions,
	};

	server->asked++;
	server->answered += answer.positions > 0;
	kvt_store_time_add(&server->fetch_time, (uint64_t)kvt_now_ns() - since_ns);
	if (answer.positions)
		answer.expected_us = (uint32_t)(loads->n_pages * loads->page_ns / 1000);
	reply(server, peer, &answer, sizeof(answer));
}

/* Ask the helper for what no tier has. Returns true if the answer waits for it. */
static bool park(struct kvt_server *server, struct kvt_peer *peer,
		 const struct kvt_store_fetch *ask, uint64_t since_ns)
{
	const struct kvt_store *store = server->store;
	struct kvt_parked **end = &server->parked, *parked;
	uint64_t wait_ns = store->host->options.remote.wait_ns;
	uint32_t n;

	if (!store->host->remote || !store->client || server->n_parked == PARKED_MOST)
		return false;
	if (ask->flags & KVT_STORE_PATIENT && wait_ns < PATIENCE_MS * 1000000ull)
		wait_ns = PATIENCE_MS * 1000000ull;
	parked = malloc(sizeof(*parked) + ask->n_keys * sizeof(*parked->keys));
	if (!parked)
		return false;
	*parked = (struct kvt_parked){ .peer = peer, .ask = *ask, .since_ns = since_ns,
				       .until_ns = since_ns + wait_ns };
	kvt_racy_copy(parked->keys, peer->keys + ask->keys_at, ask->n_keys);
	n = kvt_load_missing(store, ask, parked->keys, server->names, KVT_HELPER_PAGES);
	kvt_tier_lock(store->tier);
	parked->round = kvt_remote_ask(store->host->remote, server->names, n);
	kvt_tier_unlock(store->tier);
	if (!parked->round) {
		free(parked);
		return false;
	}
	kvt_store_wake(store->host->wake);
	while (*end)
		end = &(*end)->next;
	*end = parked;
	server->n_parked++;
	return true;
}

static bool is_answered(const struct kvt_store *store, uint64_t round)
{
	bool answered;

	kvt_tier_lock(store->tier);
	answered = kvt_remote_answered(store->host->remote, round);
	kvt_tier_unlock(store->tier);
	return answered;
}

/* Answer FETCHes that wait no longer. */
static void answer_parked(struct kvt_server *server)
{
	struct kvt_parked **at = &server->parked;
	struct kvt_store *store = server->store;
	uint64_t now = (uint64_t)kvt_now_ns();

	while (*at) {
		struct kvt_parked *parked = *at;

		if (now < parked->until_ns && !is_answered(store, parked->round)) {
			at = &parked->next;
			continue;
		}
		unpark(server, at);
		answer_fetch(server, parked->peer, &parked->ask, parked->since_ns, store->client ?
			     kvt_load_begin(store, &parked->ask, parked->keys) : 0);
		free(parked);
		at = &server->parked; /* its peer may have been dropped, with others of it */
	}
}

/* With the tier's lock. */
static struct kvt_store_status status_of(const struct kvt_server *server)
{
	const struct kvt_store *store = server->store;
	const struct kvt_tier *tier = store->tier;
	const struct kvt_host *host = store->host;
	const struct kvt_loads *loads = &store->loads;
	struct kvt_file_counts file = kvt_file_count(host->file);
	struct kvt_remote_counts remote = kvt_remote_count(host->remote);
	uint64_t now = (uint64_t)kvt_now_ns();

	return (struct kvt_store_status){
		.connected = store->client != NULL,
		.uptime_ns = now - host->started_ns,
		.instances = kvt_load_relaxed(&host->n_sessions),
		.pool_pages = store->client ? store->known.info.n_pages - 1 : 0,
		.ram_bytes = host->options.ram_bytes ? tier->ram_bytes : 0,
		.room_pages = host->options.ram_bytes ? tier->index.n_ready : 0,
		.pages = tier->index.n_found,
		.queued_pages = store->known.n_queued + store->n_copies,
		.dropped_pages = store->known.dropped,
		.copied_pages = store->share.copied,
		.spoiled_copies = store->share.spoiled,
		.refused_copies = store->share.full,
		.open_loads = loads->begun - loads->ended,
		.loading_pages = loads->n_pages,
		.loads = loads->begun,
		.cut_loads = loads->cut,
		.loaded_pages = loads->loaded,
		.fetches = server->asked,
		.hits = server->answered,
		.computed_pages = store->share.computed,
		.recomputed_pages = store->share.recomputed,
		.unloaded_ns = now - (loads->last_ns ? loads->last_ns : host->started_ns),
		.unloaded_pages = store->share.computed - loads->last_computed,
		.scrub_bytes = store->scrub.rate,
		.scrubbed_pages = store->scrub.scrubbed,
		.damaged_pages = store->scrub.damaged,
		.scrub_round_ns = store->scrub.last_round_ns,
		.scrub_since_ns = store->scrub.rate ? now - store->scrub.since_ns : 0,
		.coming_pages = tier->n_coming,
		.file_bytes = file.bytes,
		.file_room_pages = file.room_pages,
		.file_pages = file.pages,
		.file_writing_pages = tier->n_writing,
		.file_written_pages = file.written,
		.file_dropped_pages = file.dropped,
		.file_budget_bytes = file.budget_bytes,
		.file_budget_dropped_pages = file.unpaid,
		.file_budget_used_pages = file.unpaid_used,
		.file_read_pages = file.read,
		.file_bad_pages = file.bad,
		.file_closed = file.closed,
		.file_bad_slots = file.bad_slots,
		.helper_ready = remote.ready,
		.helper_starts = remote.starts,
		.helper_read_pages = remote.got,
		.helper_bad_pages = remote.bad,
		.helper_written_pages = remote.stored,
		.helper_dropped_pages = remote.dropped,
		.helper_refused_pages = remote.refused,
		.helper_full = remote.full,
		.helper_garbage = remote.garbage,
		.fetch_time = server->fetch_time,
		.load_time = loads->time,
		.file_read_time = file.read_time,
		.helper_read_time = remote.get_time,
	};
}

/* Check that a peer may change what the store has. */
static bool may_drop(const struct kvt_peer *peer)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);

	return getsockopt(peer->fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
	       (who.uid == 0 || who.uid == geteuid());
}

static void answer_status(struct kvt_server *server, struct kvt_peer *peer,
			  const struct kvt_message *head)
{
	struct kvt_store_status status;

	kvt_tier_lock(server->store->tier);
	status = status_of(server);
	snprintf(status.helper_kind, sizeof(status.helper_kind), "%s",
		 kvt_remote_count(server->store->host->remote).kind);
	kvt_tier_unlock(server->store->tier);
	status.head = head_of(head->type, sizeof(status), head->cookie);
	if (head->type == KVT_STORE_DROP) {
		if (may_drop(peer))
			kvt_store_drop(server->store);
		else
			status.head.result = -EPERM;
	}
	reply(server, peer, &status, sizeof(status));
}

/* Take one message of a peer. */
static void serve(struct kvt_server *server, struct kvt_peer *peer)
{
	struct kvt_store_fetch ask;
	ssize_t bytes = recv(peer->fd, &ask, sizeof(ask), MSG_DONTWAIT | MSG_TRUNC);
	uint64_t now = (uint64_t)kvt_now_ns();

	if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (bytes == sizeof(ask.head) &&
	    (head_ok(&ask.head, KVT_STORE_STATUS, sizeof(ask.head)) ||
	     head_ok(&ask.head, KVT_STORE_DROP, sizeof(ask.head))))
		answer_status(server, peer, &ask.head);
	else if (bytes == sizeof(ask) && head_ok(&ask.head, KVT_STORE_FETCH, sizeof(ask)) &&
		 ask.keys_at <= KVT_STORE_KEYS && ask.n_keys <= KVT_STORE_KEYS - ask.keys_at) {
		/* The anchor may have been cached a moment ago. */
		if (server->store->client && kvt_store_follow(server->store) < 0) {
			answer_fetch(server, peer, &ask, now, 0);
			return;
		}
		if (server->store->client)
			kvt_load_note(server->store, &ask);
		if (!park(server, peer, &ask, now))
			answer_fetch(server, peer, &ask, now, fetch(server, peer, &ask));
	} else {
		drop(server, peer);
	}
}

bool kvt_server_wait(struct kvt_server *server, int wait_ms)
{
	if (server->parked && wait_ms > 1)
		wait_ms = 1;
	if (server->accept_again_ns && kvt_now_ns() >= server->accept_again_ns)
		watch_listener(server, true);
	if (server->accept_again_ns && wait_ms > ACCEPT_PAUSE_NS / 1000000)
		wait_ms = ACCEPT_PAUSE_NS / 1000000;
	server->n_events = epoll_wait(server->epoll, server->events, KVT_STORE_EVENTS, wait_ms);
	return server->n_events > 0;
}

void kvt_server_turn(struct kvt_server *server)
{
	uint64_t wakes;

	for (int i = 0; i < server->n_events; i++) {
		void *from = server->events[i].data.ptr;

		if (!from)
			accept_one(server);
		else if (from != server)
			serve(server, from);
		else if (read(server->store->wake, &wakes, sizeof(wakes)) < 0)
			continue; /* another event of it was read */
	}
	server->n_events = 0;
	answer_parked(server);
}
