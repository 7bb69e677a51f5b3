/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fetch: the client's end of a store's socket (kvtrunk_fetch.h, kvtrunk_wire_store.h). Inputs: a
 * BEGIN, and what the store sends, which is checked before use.
 *
 * Invariants: no call waits for a store longer than wait_ns. Keys stay in the key area until their
 * answer. A store that is gone answers all with 0. One that missed three answers in a row, or could
 * not be reached, is left alone for a second.
 */
#include "libclient/fetch.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvtrunk_fetch.h"
#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_store.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "shm/clock.h"

#define QUIET_NS 1000000000ll /* not asked for so long */
#define LOAD_MS 1000u         /* for any load, beside a part for its length */
#define MISSES 3u             /* in a row */
#define ON_THE_WAY_MS 50u     /* of a patient answer, beside the store's patience */

enum ask_state {
	ASK_FREE = 0,
	ASK_OPEN,      /* asked */
	ASK_ANSWERED,  /* kvt_fetch_poll() takes it */
	ASK_ABANDONED, /* its time is over: drop its answer */
};

struct ask {
	uint32_t state; /* enum ask_state */
	uint32_t generation;
	struct kvt_extent extent;
	struct kvt_fetched fetched;
	int64_t due_ns; /* until when it may be answered */
};

struct kvt_store_end {
	struct sockaddr_un address;
	int64_t wait_ns;
	int64_t quiet_until_ns;
	uint32_t misses;
	int fd;              /* -1: not connected */
	uint32_t *keys;      /* the key area; NULL: no WELCOME yet */
	uint64_t keys_bytes;
	struct kvt_area area;
	uint32_t min_positions;
	uint32_t patience_ms; /* of the store */
	struct ask asks[KVT_STORE_OPEN];
};

void kvt_client_store_at(struct kvt_client *client, const char *path, int64_t wait_ns)
{
	KVT_KEEP_ERRNO;
	struct kvt_store_end *end;
	size_t n = client->path ? strlen(client->path) : 0, room = sizeof(end->address.sun_path);
	int bytes;

	if (path ? !*path : n == 0)
		return;
	end = calloc(1, sizeof(*end));
	if (!end)
		return;
	if (n > 5 && strcmp(client->path + n - 5, ".sock") == 0)
		n -= 5;
	bytes = path ? snprintf(end->address.sun_path, room, "%s", path)
		     : snprintf(end->address.sun_path, room, "%.*s.store", (int)n, client->path);
	if (bytes < 0 || (size_t)bytes >= room) { /* no socket can have this name */
		free(end);
		return;
	}
	end->address.sun_family = AF_UNIX;
	end->fd = -1;
	end->wait_ns = wait_ns;
	client->store = end;
}

/* Disconnect. Open fetches are answered with 0 positions. */
static void disconnect(const struct kvt_client *client, struct kvt_store_end *end)
{
	if (end->keys && !kvt_client_forked(client))
		munmap(end->keys, end->keys_bytes);
	if (end->keys)
		kvt_area_destroy(&end->area);
	if (end->fd >= 0)
		close(end->fd);
	end->fd = -1;
	end->keys = NULL;
	end->misses = 0;
	end->quiet_until_ns = kvt_now_ns() + QUIET_NS;
	for (uint32_t i = 0; i < KVT_STORE_OPEN; i++) {
		struct ask *ask = &end->asks[i];

		ask->generation++;
		if (ask->state == ASK_OPEN)
			ask->state = ASK_ANSWERED;
		else if (ask->state == ASK_ABANDONED)
			ask->state = ASK_FREE;
	}
}

void kvt_client_store_leave(struct kvt_client *client)
{
	if (!client->store)
		return;
	disconnect(client, client->store);
	free(client->store);
	client->store = NULL;
}

/* ---- what the store sends */

/* Map the key area that came with WELCOME. False: this is no store of this client's daemon. */
static bool welcomed(const struct kvt_client *client, struct kvt_store_end *end,
		     const struct kvt_store_welcome *welcome, int fd)
{
	uint64_t bytes;
	void *keys;

	if (welcome->head.magic != KVT_STORE_MAGIC || welcome->head.version != KVT_ABI ||
	    welcome->head.type != KVT_STORE_WELCOME || fd < 0 || welcome->n_keys == 0 ||
	    memcmp(welcome->instance, client->info.instance, sizeof(welcome->instance)) != 0 ||
	    kvt_client_sealed_bytes(fd, &bytes) != 0 ||
	    bytes < welcome->n_keys * (uint64_t)sizeof(uint32_t) ||
	    kvt_client_map_shared(fd, bytes, NULL, &keys) != 0)
		return false;
	if (kvt_area_init(&end->area, welcome->n_keys, KVT_STORE_OPEN) != 0) {
		munmap(keys, bytes);
		return false;
	}
	end->keys = keys;
	end->keys_bytes = bytes;
	end->min_positions = welcome->min_positions;
	end->patience_ms = welcome->patience_ms;
	return true;
}

/* How long a BEGIN waits for a load at most, in ms: options->fetch_wait_ns. 0: there is none. */
static uint32_t load_ms(const struct kvt_store_end *end, uint32_t positions)
{
	return positions ? LOAD_MS + positions / 4 + (uint32_t)(end->wait_ns / 1000000) : 0;
}

/* Take an answer. False: it answers nothing. */
static bool answered(struct kvt_store_end *end, const struct kvt_store_answer *answer)
{
	uint32_t index = (uint32_t)answer->head.cookie;
	struct ask *ask = &end->asks[index % KVT_STORE_OPEN];

	if (answer->head.magic != KVT_STORE_MAGIC || answer->head.type != KVT_STORE_ANSWER ||
	    index >= KVT_STORE_OPEN || ask->generation != answer->head.cookie >> 32 ||
	    (ask->state != ASK_OPEN && ask->state != ASK_ABANDONED))
		return false;
	kvt_area_give(&end->area, ask->extent);
	ask->fetched.positions = answer->positions;
	ask->fetched.expected_us = answer->expected_us;
	ask->fetched.wait_ms = load_ms(end, answer->positions);
	ask->state = ask->state == ASK_OPEN ? ASK_ANSWERED : ASK_FREE;
	ask->generation++;
	end->misses = 0;
	return true;
}

/* Receive one message. 1, 0: there is none, -errno: it is none of a store. */
static int receive(const struct kvt_client *client, struct kvt_store_end *end)
{
	union {
		struct kvt_store_welcome welcome;
		struct kvt_store_answer answer;
	} message;
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { &message, sizeof(message) };
	struct msghdr from = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
			       .msg_controllen = sizeof(control) };
	ssize_t bytes = recvmsg(end->fd, &from, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	const struct cmsghdr *with;
	bool good = false;
	int fd = -1;

	if (bytes < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	with = CMSG_FIRSTHDR(&from);
	if (with && with->cmsg_type == SCM_RIGHTS && with->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&fd, CMSG_DATA(with), sizeof(fd));
	if (!end->keys)
		good = bytes == sizeof(message.welcome) &&
		       welcomed(client, end, &message.welcome, fd);
	else if (bytes == sizeof(message.answer))
		good = answered(end, &message.answer);
	if (fd >= 0)
		close(fd);
	return good ? 1 : -EPROTO;
}

/* Take all messages that are there. */
static void receive_all(const struct kvt_client *client, struct kvt_store_end *end)
{
	int rc = 1;

	while (end->fd >= 0 && rc > 0)
		rc = receive(client, end);
	if (rc < 0)
		disconnect(client, end);
}

/* Wait until a message can be received. False: not in time. */
static bool wait_for_message(const struct kvt_store_end *end, int64_t until_ns)
{
	struct pollfd wait = { .fd = end->fd, .events = POLLIN };
	int64_t left_ns = until_ns - kvt_now_ns();
	struct timespec left = { .tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000 };
	int n;

	if (left_ns <= 0 || end->fd < 0)
		return false;
	n = ppoll(&wait, 1, &left, NULL);
	return n > 0 || (n < 0 && errno == EINTR);
}

/* Count an answer that did not come in time. */
static void missed(struct kvt_store_end *end)
{
	if (++end->misses < MISSES)
		return;
	end->misses = 0;
	end->quiet_until_ns = kvt_now_ns() + QUIET_NS;
}

/* Stop waiting for an answer. */
static void abandon(struct kvt_store_end *end, struct ask *ask)
{
	ask->state = ASK_ABANDONED;
	missed(end);
}

/* ---- asking */

/* Be connected and welcomed. False: there is no store, or not now. */
static bool ready(const struct kvt_client *client, struct kvt_store_end *end, int64_t until_ns)
{
	if (end->quiet_until_ns && kvt_now_ns() < end->quiet_until_ns)
		return false;
	if (end->fd < 0) {
		end->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (end->fd < 0 || connect(end->fd, (const struct sockaddr *)&end->address,
					   sizeof(end->address)) != 0) {
			disconnect(client, end);
			return false;
		}
	}
	receive_all(client, end);
	while (end->fd >= 0 && !end->keys && wait_for_message(end, until_ns))
		receive_all(client, end);
	if (end->fd >= 0 && !end->keys)
		missed(end);
	return end->keys;
}

static struct ask *free_ask(struct kvt_store_end *end)
{
	for (uint32_t i = 0; i < KVT_STORE_OPEN; i++)
		if (end->asks[i].state == ASK_FREE)
			return &end->asks[i];
	return NULL;
}

/* The last page of a handle's prefix; 0: the tree changes. A hint, which the store checks. */
static uint32_t last_page(const struct kvt_client *client, struct kvt_handle handle)
{
	const struct kvt_arena_view *view = &client->arena;
	const struct kvt_node *node = &view->nodes[handle.node % view->max_nodes];
	uint32_t start = kvt_load_relaxed(&node->start), n = handle.positions / view->page_size;
	uint64_t slot = kvt_load_relaxed(&node->first_slot);

	if (n <= start)
		return 0;
	slot += n - start - 1;
	return slot < view->n_slots ? kvt_load_relaxed(&view->slot_pages[slot]) : 0;
}

bool kvt_client_is_point(const struct kvt_client *client, uint32_t page)
{
	const struct kvt_arena_view *view = &client->arena;
	const struct kvt_info *info = &client->info;

	for (uint32_t i = 0, n = 1; n > 0 && page > 0 && page < view->n_pages; i++) {
		n = 0;
		for (uint32_t kind = 0; kind < info->n_sides; kind++) {
			if (i >= info->side_pages[kind])
				continue;
			if (!kvt_arena_side(view, page, kind))
				return false;
			n++;
		}
		page = kvt_load_relaxed(&view->pages[page].parent);
	}
	return true;
}

/* Count the positions that a store could add to `cached` ones, in whole pages. Where pages have
 * sides, a point at the end of the keys is of no use: the last position is computed. */
static uint32_t missing_positions(const struct kvt_client *client, const struct kvt_request *begin,
				  uint32_t cached)
{
	uint32_t page_size = client->info.page_size, n_keys = begin->n_keys;

	n_keys -= client->info.n_sides > 0 && !(begin->flags & KVT_F_FULL);
	return n_keys > cached ? (n_keys - cached) / page_size * page_size : 0;
}

/* The fewest missing positions that are worth asking for. Without a point where the cached ones
 * end, far more cannot be reused. */
static uint32_t least_positions(const struct kvt_client *client, const struct kvt_store_end *end,
				struct kvt_handle handle)
{
	return kvt_client_is_point(client, handle.positions ? last_page(client, handle) : 0) ?
		       end->min_positions : client->info.page_size;
}

/* Send the keys behind a handle, n of them. False: not sent. */
static bool send_ask(struct kvt_client *client, struct kvt_store_end *end, struct ask *ask,
		     const struct kvt_request *begin, struct kvt_handle handle, uint32_t n,
		     uint32_t flags)
{
	const struct kvt_opened *opened = &client->opened[begin->namespace_id];
	struct kvt_store_fetch fetch = {
		.head = { .magic = KVT_STORE_MAGIC, .type = KVT_STORE_FETCH, .version = KVT_ABI,
			  .bytes = sizeof(fetch),
			  .cookie = (uint64_t)ask->generation << 32 | (uint64_t)(ask - end->asks) },
		.namespace_digest = { opened->digest[0], opened->digest[1] },
		.root_key = begin->root_key,
		.node = handle.node, .generation = handle.generation,
		.positions = handle.positions,
		.anchor = handle.positions ? last_page(client, handle) : 0,
		.keys_at = ask->extent.at,
		.n_keys = n,
		.flags = flags,
	};

	if (handle.positions && !fetch.anchor)
		return false;
	memcpy(end->keys + ask->extent.at, begin->keys + handle.positions,
	       n * sizeof(*begin->keys));
	return send(end->fd, &fetch, sizeof(fetch), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(fetch);
}

/* Ask. 1, with the ask; 0: not asked; or -errno. Sets `start` to what the pool has. */
static int ask_for(struct kvt_client *client, const struct kvt_request *begin, int64_t until_ns,
		   uint32_t flags, struct kvt_handle *start, struct ask **ret_ask)
{
	struct kvt_store_end *end = client->store;
	struct kvt_handle handle;
	uint32_t cached, missing;
	struct ask *ask;
	int rc;

	if (!end || !client->arena.base || begin->n_keys < client->info.page_size ||
	    begin->n_keys < begin->min_positions || begin->flags & KVT_F_FORCE_MISS ||
	    !begin->keys || !ready(client, end, until_ns))
		return 0;
	ask = free_ask(end);
	if (!ask || begin->n_keys < end->min_positions)
		return 0;
	rc = kvt_probe_root(client, begin->namespace_id, begin->root_key, begin->keys,
			    begin->n_keys, &handle, &cached);
	if (rc < 0)
		return rc == -EAGAIN ? 0 : rc;
	if (cached)
		*start = handle;
	missing = missing_positions(client, begin, cached);
	if (missing == 0 || missing < least_positions(client, end, handle) ||
	    !kvt_area_take(&end->area, missing, &ask->extent))
		return 0;
	if (!send_ask(client, end, ask, begin, handle, missing, flags)) {
		kvt_area_give(&end->area, ask->extent);
		return 0;
	}
	ask->state = ASK_OPEN;
	ask->due_ns = until_ns;
	if (flags & KVT_STORE_PATIENT && end->patience_ms)
		ask->due_ns += (end->patience_ms + ON_THE_WAY_MS) * 1000000ll;
	ask->fetched = (struct kvt_fetched){ .user_data = begin->user_data, .cached = cached };
	*ret_ask = ask;
	return 1;
}

int kvt_fetch(struct kvt_client *client, const struct kvt_request *begin)
{
	KVT_KEEP_ERRNO;
	int rc = kvt_client_usable(client);
	struct kvt_handle start;
	struct ask *ask;

	if (rc != 0 || !client->store)
		return rc;
	return ask_for(client, begin, kvt_now_ns() + client->store->wait_ns, KVT_STORE_PATIENT,
		       &start, &ask);
}

int kvt_fetch_poll(struct kvt_client *client, struct kvt_fetched *ret_fetched)
{
	KVT_KEEP_ERRNO;
	struct kvt_store_end *end = client->store;
	int rc = kvt_client_usable(client);
	int64_t now_ns;

	if (rc != 0 || !end)
		return rc;
	receive_all(client, end);
	now_ns = kvt_now_ns();
	for (uint32_t i = 0; i < KVT_STORE_OPEN; i++) {
		struct ask *ask = &end->asks[i];

		if (ask->state == ASK_OPEN && now_ns > ask->due_ns)
			abandon(end, ask);
		else if (ask->state == ASK_ANSWERED)
			ask->state = ASK_FREE;
		else
			continue;
		*ret_fetched = ask->fetched;
		return 1;
	}
	return 0;
}

uint32_t kvt_client_fetch_now(struct kvt_client *client, const struct kvt_request *begin,
			      struct kvt_handle *start)
{
	KVT_KEEP_ERRNO;
	struct kvt_store_end *end = client->store;
	int64_t wait_ns = end ? end->wait_ns : 0, until_ns;
	struct ask *ask;

	if (wait_ns <= 0)
		return 0;
	if (client->timeout_ns > 0 && client->timeout_ns / 4 < wait_ns)
		wait_ns = client->timeout_ns / 4;
	until_ns = kvt_now_ns() + wait_ns;
	if (ask_for(client, begin, until_ns, 0, start, &ask) != 1)
		return 0;
	do
		receive_all(client, end);
	while (ask->state == ASK_OPEN && wait_for_message(end, until_ns));
	if (ask->state != ASK_ANSWERED) {
		abandon(end, ask);
		return 0;
	}
	ask->state = ASK_FREE;
	return ask->fetched.wait_ms;
}
