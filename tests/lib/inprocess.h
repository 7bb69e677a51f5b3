/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_INPROCESS_H
#define KVT_TESTS_INPROCESS_H

/**
 * @file inprocess.h
 * Both ends in one process: a core, and a thread that serves rings like the daemon, without
 * sockets, processes of clients or io_uring. Memory is shared by address, so a thread sanitizer
 * sees every access of both ends.
 *
 * The thread takes entries round robin, lets deferred operations take effect, works in the
 * background, and sleeps on an eventfd under the daemon's protocol.
 */

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/client.h"
#include "libclient/fail.h"

#ifndef INSIDE_CLIENTS
#define INSIDE_CLIENTS 4u
#endif
#define INSIDE_CHECK(condition)                                                                   \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                  \
		}                                                                                 \
	} while (0)

struct inside_session {
	bool used;
	void *segment, *areas;
	struct kvt_segment_layout layout;
	struct kvt_ring_end end; /* the daemon's */
	uint32_t session;
	int control; /* the daemon's end */
	int doorbell, completion; /* duplicates of the client's */
	struct kvt_client *client;
};

struct inside {
	struct kvt_core_config config;
	struct kvt_core_sizes sizes;
	struct kvt_core *core;
	void *arena, *ledger, *scratch;
	struct kvt_arena_view view;
	uint64_t now_ns; /* read and written under `lock` */
	struct inside_session sessions[INSIDE_CLIENTS];
	pthread_t thread;
	pthread_mutex_t lock; /* the core; the thread holds it while it works */
	bool running;
	bool paused;  /* atomic: the thread serves nothing, like a stopped daemon */
	bool stop;    /* atomic */
	bool sleeping_allowed;
	int wake; /* for stop and pause */
};

static inline void *inside_memory(uint64_t bytes)
{
	void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);

	INSIDE_CHECK(memory);
	memset(memory, 0, bytes);
	return memory;
}

static inline struct inside_session *inside_find(struct inside *inside, uint32_t session)
{
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++)
		if (inside->sessions[i].used && inside->sessions[i].session == session)
			return &inside->sessions[i];
	return NULL;
}

static inline void inside_answer(struct inside_session *s, const struct kvt_cqe *cqe)
{
	const uint64_t one = 1;

	kvt_ring_cq_put(&s->end, cqe);
	if (kvt_ring_cq_publish(&s->end))
		INSIDE_CHECK(write(s->completion, &one, sizeof(one)) == sizeof(one));
}

static inline void inside_complete(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	struct inside_session *s = inside_find(context, session);

	if (s)
		inside_answer(s, cqe);
}

/* Start from a configuration whose zeros are filled in. */
static inline void inside_init(struct inside *inside, const struct kvt_core_config *config)
{
	struct kvt_core_hooks hooks = { .complete = inside_complete, .context = inside };
	const char *why = "";

	memset(inside, 0, sizeof(*inside));
	inside->config = *config;
	INSIDE_CHECK(kvt_core_plan(&inside->config, &inside->sizes, &why) == 0);
	inside->arena = inside_memory(inside->sizes.arena_bytes);
	inside->ledger = inside_memory(inside->sizes.ledger_bytes);
	inside->scratch = inside_memory(inside->sizes.scratch_bytes);
	inside->now_ns = 1000;
	INSIDE_CHECK(kvt_core_init(&inside->core, &inside->config, inside->arena, inside->ledger,
				   inside->scratch, &hooks, inside->now_ns) == 0);
	kvt_core_publish(inside->core, KVT_ARENA_READY);
	INSIDE_CHECK(kvt_arena_view_init(&inside->view, inside->arena,
					 inside->sizes.arena_bytes) == KVT_ATTACH_OK);
	pthread_mutex_init(&inside->lock, NULL);
	inside->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	INSIDE_CHECK(inside->wake >= 0);
	inside->sleeping_allowed = true;
}

/* Take one entry of one session. Returns false if there is none. */
static inline bool inside_serve_one(struct inside *inside, struct inside_session *s)
{
	struct kvt_sqe sqe;
	struct kvt_cqe cqe;

	if (kvt_ring_sq_pending(&s->end) <= 0 || kvt_ring_cq_space(&s->end) <= 0 ||
	    !kvt_core_can_defer(inside->core))
		return false;
	kvt_ring_sq_take(&s->end, &sqe);
	if (kvt_core_execute(inside->core, s->session, &sqe, inside->now_ns, &cqe))
		inside_answer(s, &cqe);
	return true;
}

static inline uint32_t inside_turn_locked(struct inside *inside)
{
	uint32_t done = 0;

	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++) {
		if (!inside->sessions[i].used)
			continue;
		done += inside_serve_one(inside, &inside->sessions[i]);
		done += kvt_core_poll(inside->core, inside->sessions[i].session, inside->now_ns);
	}
	return done + kvt_core_work(inside->core, 64, done == 0, inside->now_ns);
}

/* One turn of the serving thread. It checks `pause` under the lock: after inside_pause(true) no
 * turn runs or begins. */
static inline uint32_t inside_turn(struct inside *inside)
{
	uint32_t done = 0;

	pthread_mutex_lock(&inside->lock);
	if (!kvt_load_acquire(&inside->paused))
		done = inside_turn_locked(inside);
	pthread_mutex_unlock(&inside->lock);
	return done;
}

static inline void inside_need_wakeup(struct inside *inside, uint32_t value)
{
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++)
		if (inside->sessions[i].used)
			kvt_store_relaxed(&inside->sessions[i].end.header->sq_need_wakeup, value);
}

static inline void inside_sleep(struct inside *inside)
{
	struct pollfd fds[INSIDE_CLIENTS + 1] = { { .fd = inside->wake, .events = POLLIN } };
	uint64_t count;

	pthread_mutex_lock(&inside->lock);
	inside_need_wakeup(inside, 1);
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++)
		fds[i + 1] = (struct pollfd){
			.fd = inside->sessions[i].used ? inside->sessions[i].doorbell : -1,
			.events = POLLIN,
		};
	pthread_mutex_unlock(&inside->lock);
	/* Pairs with the client's full fence between its tail and its look at the flag. */
	kvt_fence_full();
	if (inside_turn(inside) == 0)
		poll(fds, INSIDE_CLIENTS + 1, -1);
	pthread_mutex_lock(&inside->lock);
	inside_need_wakeup(inside, 0);
	pthread_mutex_unlock(&inside->lock);
	for (uint32_t i = 0; i <= INSIDE_CLIENTS; i++)
		if (fds[i].revents & POLLIN)
			(void)!read(fds[i].fd, &count, sizeof(count));
}

static inline void *inside_thread(void *context)
{
	struct inside *inside = context;
	uint32_t idle = 0;

	while (!kvt_load_acquire(&inside->stop)) {
		if (kvt_load_acquire(&inside->paused)) {
			struct pollfd wake = { .fd = inside->wake, .events = POLLIN };
			uint64_t count;

			poll(&wake, 1, -1);
			(void)!read(inside->wake, &count, sizeof(count));
			continue;
		}
		idle = inside_turn(inside) ? 0 : idle + 1;
		if (idle > 1000 && inside->sleeping_allowed) {
			inside_sleep(inside);
			idle = 0;
		}
	}
	return NULL;
}

static inline void inside_start(struct inside *inside)
{
	inside->running = true;
	INSIDE_CHECK(pthread_create(&inside->thread, NULL, inside_thread, inside) == 0);
}

static inline void inside_wake(struct inside *inside)
{
	const uint64_t one = 1;

	INSIDE_CHECK(write(inside->wake, &one, sizeof(one)) == sizeof(one));
}

static inline void inside_pause(struct inside *inside, bool paused)
{
	kvt_store_release(&inside->paused, paused);
	inside_wake(inside);
	/* Any turn that was running has ended. */
	pthread_mutex_lock(&inside->lock);
	pthread_mutex_unlock(&inside->lock);
}

/* A session with its client. Sizes of 0 are small defaults. */
static inline struct kvt_client *inside_connect(struct inside *inside, uint32_t sq, uint32_t cq,
						uint64_t keys, uint64_t list, int64_t spin_ns)
{
	struct kvt_core_peer peer = { .pid = 1, .label = "inside", .privileged = true };
	struct kvt_client_parts parts = { .spin_budget_ns = spin_ns };
	struct inside_session *s = inside->sessions;
	struct kvt_core_view view;
	int pair[2];

	while (s->used)
		s++;
	INSIDE_CHECK(s < inside->sessions + INSIDE_CLIENTS);
	INSIDE_CHECK(kvt_segment_plan(&s->layout, sq ? sq : 8, cq ? cq : 16, keys ? keys : 4096,
				      list ? list : 2048) == 0);
	s->segment = inside_memory(s->layout.bytes);
	s->areas = inside_memory(s->layout.areas_bytes);
	kvt_segment_format(s->segment, &s->layout, 1);
	kvt_ring_end_init(&s->end, s->segment, s->areas, &s->layout);
	view = (struct kvt_core_view){ .keys = s->end.keys,
				       .keys_count = s->layout.keys_count,
				       .list = s->end.list,
				       .list_count = s->layout.list_count,
				       .fences = s->end.fences };
	INSIDE_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
				pair) == 0);
	s->control = pair[0];
	parts.control = pair[1];
	parts.doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	parts.completion = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	s->doorbell = dup(parts.doorbell);
	s->completion = dup(parts.completion);
	parts.segment = s->segment;
	parts.areas = s->areas;
	parts.layout = s->layout;
	parts.arena = inside->view;
	parts.arena.bytes = 0; /* not for this side to unmap */
	parts.info = (struct kvt_info){ .page_size = inside->config.page_size,
					.n_pages = inside->config.n_pages,
					.arena_visible = true,
					.test_clock = true,
					.n_sides = inside->config.n_sides };
	memcpy(parts.info.side_pages, inside->config.side_pages, sizeof(parts.info.side_pages));
	pthread_mutex_lock(&inside->lock);
	INSIDE_CHECK(kvt_core_session_open(inside->core, &peer, &view, inside->now_ns,
					   &s->session) == 0);
	s->used = true;
	pthread_mutex_unlock(&inside->lock);
	parts.info.session = s->session;
	INSIDE_CHECK(kvt_client_create(&s->client, &parts) == 0);
	if (inside->running)
		inside_wake(inside); /* its doorbell must be one of those watched asleep */
	return s->client;
}

static inline struct inside_session *inside_session_of(struct inside *inside,
						       const struct kvt_client *client)
{
	struct inside_session *s = inside->sessions;

	while (s->client != client)
		s++;
	return s;
}

/* Open a namespace for a client and its probes. Returns 0 or the core's -errno. */
static inline int inside_namespace_open(struct inside *inside, struct kvt_client *client,
					const uint64_t digest[2], const char *name,
					uint32_t *ret_number)
{
	uint32_t session, number;
	int rc;

	pthread_mutex_lock(&inside->lock);
	session = inside_session_of(inside, client)->session;
	while (kvt_core_namespace_make_room(inside->core, session, digest, 64, inside->now_ns))
		continue;
	rc = kvt_core_namespace_open(inside->core, session, digest, name, inside->now_ns, &number);
	pthread_mutex_unlock(&inside->lock);
	if (rc) {
		kvt_client_fail(client, rc, KVT_REASON_LIMIT_NAMESPACES, "namespace: %s",
				kvt_errno_name(rc));
		return rc;
	}
	if (number >= client->n_opened) {
		client->opened = realloc(client->opened, (number + 1) * sizeof(*client->opened));
		INSIDE_CHECK(client->opened);
		memset(client->opened + client->n_opened, 0,
		       (number + 1 - client->n_opened) * sizeof(*client->opened));
		client->n_opened = number + 1;
	}
	client->opened[number] = (struct kvt_opened){ .digest = { digest[0], digest[1] },
							  .open = true };
	*ret_number = number;
	return 0;
}

static inline uint32_t inside_namespace(struct inside *inside, struct kvt_client *client,
					uint64_t name)
{
	const uint64_t digest[2] = { name, ~name };
	uint32_t number;

	INSIDE_CHECK(inside_namespace_open(inside, client, digest, "test", &number) == 0);
	return number;
}

/* Hang up a client's socket, as the end of the daemon does. */
static inline void inside_hang_up(struct inside *inside, struct kvt_client *client)
{
	struct inside_session *s = inside_session_of(inside, client);

	close(s->control);
	s->control = -1;
}

static inline struct kvt_counters inside_counters(struct inside *inside)
{
	struct kvt_counters counters;

	pthread_mutex_lock(&inside->lock);
	counters = *kvt_core_counters(inside->core);
	pthread_mutex_unlock(&inside->lock);
	return counters;
}

static inline void inside_print(void *context, const char *text)
{
	fprintf(stderr, "audit: %s\n", text);
}

static inline uint32_t inside_audit(struct inside *inside)
{
	uint32_t problems;

	pthread_mutex_lock(&inside->lock);
	problems = kvt_core_audit(inside->core, inside_print, NULL);
	pthread_mutex_unlock(&inside->lock);
	return problems;
}

/* End the session of a closed or abandoned client and free its memory. */
static inline void inside_remove(struct inside *inside, struct inside_session *s)
{
	pthread_mutex_lock(&inside->lock);
	kvt_core_session_sign(inside->core, s->session,
			      KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET,
			      inside->now_ns);
	while (kvt_core_work(inside->core, 1024, false, inside->now_ns))
		;
	s->used = false;
	pthread_mutex_unlock(&inside->lock);
	inside_wake(inside); /* off its descriptors */
	if (s->control >= 0)
		close(s->control);
	close(s->doorbell);
	close(s->completion);
	free(s->segment);
	free(s->areas);
	s->client = NULL;
}

static inline void inside_forget(struct inside *inside, struct kvt_client *client)
{
	inside_remove(inside, inside_session_of(inside, client));
}

/* Close a client in order, and end its session. */
static inline void inside_close(struct inside *inside, struct kvt_client *client)
{
	INSIDE_CHECK(kvt_client_close(client, KVT_IDLE) == 0);
	inside_forget(inside, client);
}

static inline void inside_destroy(struct inside *inside)
{
	kvt_store_release(&inside->stop, true);
	inside_wake(inside);
	if (inside->running)
		pthread_join(inside->thread, NULL);
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++)
		INSIDE_CHECK(!inside->sessions[i].used);
	close(inside->wake);
	free(inside->arena);
	free(inside->ledger);
	free(inside->scratch);
	pthread_mutex_destroy(&inside->lock);
}

/* The end of a test: no private page and no lease is left, and the audit is clean. */
static inline void inside_end(struct inside *inside)
{
	struct kvt_counters counters = inside_counters(inside);

	INSIDE_CHECK(counters.private_pages + counters.quarantined_pages == 0);
	INSIDE_CHECK(counters.live_leases == 0);
	INSIDE_CHECK(counters.free_pages + counters.cached_pages == inside->config.n_pages - 1);
	INSIDE_CHECK(inside_audit(inside) == 0);
	inside_destroy(inside);
}

/* Start a core, with two clients. */
static inline void inside_start_pair(struct inside *inside, const struct kvt_core_config *config,
				     struct kvt_client **ret_one, struct kvt_client **ret_other)
{
	inside_init(inside, config);
	inside_start(inside);
	*ret_one = inside_connect(inside, 0, 0, 0, 0, 20000);
	*ret_other = inside_connect(inside, 0, 0, 0, 0, 20000);
}

static inline void inside_end_pair(struct inside *inside, struct kvt_client *one,
				   struct kvt_client *other)
{
	inside_close(inside, one);
	inside_close(inside, other);
	inside_end(inside);
}

#endif
