/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls that are one operation each (fill a request, wait, copy out), fence words, and
 * requests on the control socket. All operations go through kvt_client_call(); control requests
 * are sent again after a restart of the daemon, with the same cookie.
 */

#include "kvtrunk_operations.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/call.h"
#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/probe.h"
#include "libclient/resume.h"
#include "libclient/steps.h"
#include "libclient/stream.h"
#include "libclient/submit.h"
#include "libclient/wait.h"
#include "shm/racy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GONE_LOOK_NS 1000000000ll /* while waiting for an answer: how often to check `gone` */

/* Copy a list out and release the answer. The caller checked the room. */
static void take_list(struct kvt_client *client, struct kvt_result *result, uint32_t *ret_pages,
		      uint32_t *ret_n)
{
	if (result->n_pages)
		memcpy(ret_pages, result->pages, result->n_pages * sizeof(*ret_pages));
	if (ret_n)
		*ret_n = result->n_pages;
	kvt_result_release(client, result);
}

static int call_and_release(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_result *result)
{
	int rc = kvt_client_call(client, request, NULL, result);

	if (rc == 0)
		kvt_result_release(client, result);
	return rc;
}

int kvt_match(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, uint32_t flags, struct kvt_result *ret_result)
{
	struct kvt_request request = {
		.op = KVT_OP_MATCH,
		.flags = flags,
		.namespace_id = namespace_id,
		.keys = keys,
		.n_keys = n_keys,
	};

	return kvt_client_call_known(client, &request, request.handle, ret_result);
}

int kvt_lock(struct kvt_client *client, struct kvt_handle handle, struct kvt_lease *ret_lease,
	     uint32_t *ret_pages, uint32_t capacity, uint32_t *ret_n)
{
	struct kvt_request request = { .op = KVT_OP_LOCK, .handle = handle };
	uint32_t needed = handle.positions / client->info.page_size;
	struct kvt_result result;
	int rc;

	if (needed > capacity) {
		if (ret_n)
			*ret_n = needed;
		return kvt_client_fail(client, -ENOBUFS, KVT_REASON_LIST_SHORT,
				       "lock: the handle names %u pages, there is room for %u",
				       needed, capacity);
	}
	rc = kvt_client_call(client, &request, NULL, &result);
	if (rc != 0)
		return rc;
	*ret_lease = result.lease;
	take_list(client, &result, ret_pages, ret_n);
	return 0;
}

int kvt_unlock(struct kvt_client *client, struct kvt_lease lease, struct kvt_fence fence)
{
	struct kvt_request request = { .op = KVT_OP_UNLOCK, .lease = lease, .fence = fence };
	struct kvt_result result;

	return call_and_release(client, &request, &result);
}

int kvt_alloc(struct kvt_client *client, uint32_t n, uint32_t *ret_pages)
{
	struct kvt_request request = { .op = KVT_OP_ALLOC, .arg = n };
	struct kvt_result result;
	int rc = kvt_client_call(client, &request, NULL, &result);

	if (rc == 0)
		take_list(client, &result, ret_pages, NULL);
	return rc;
}

int kvt_free(struct kvt_client *client, const uint32_t *pages, uint32_t n, struct kvt_fence fence)
{
	struct kvt_request request = {
		.op = KVT_OP_FREE,
		.pages = pages,
		.n_pages = n,
		.fence = fence,
	};
	struct kvt_result result;

	return call_and_release(client, &request, &result);
}

int kvt_insert(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys, const uint32_t *pages, struct kvt_handle start,
	       struct kvt_fence fence, uint32_t flags, struct kvt_result *ret_result)
{
	struct kvt_request request = {
		.op = KVT_OP_INSERT,
		.flags = flags,
		.namespace_id = namespace_id,
		.keys = keys,
		.n_keys = n_keys,
		.pages = pages,
		.n_pages = n_keys / client->info.page_size,
		.handle = start,
		.fence = fence,
	};

	return kvt_client_call(client, &request, NULL, ret_result);
}

int kvt_remove(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	       uint32_t n_keys)
{
	struct kvt_request request = {
		.op = KVT_OP_REMOVE,
		.namespace_id = namespace_id,
		.keys = keys,
		.n_keys = n_keys,
	};
	struct kvt_result result;

	return call_and_release(client, &request, &result);
}

int kvt_evict(struct kvt_client *client, uint32_t n, uint32_t *ret_evicted)
{
	struct kvt_request request = { .op = KVT_OP_EVICT, .arg = n };
	struct kvt_result result;
	int rc = call_and_release(client, &request, &result);

	if (rc == 0)
		*ret_evicted = result.evicted;
	return rc;
}

int kvt_reset(struct kvt_client *client)
{
	struct kvt_request request = { .op = KVT_OP_RESET };
	struct kvt_result result;

	return call_and_release(client, &request, &result);
}

int kvt_stats(struct kvt_client *client, struct kvt_counters *ret_counters)
{
	struct kvt_request request = { .op = KVT_OP_STATS };
	struct kvt_result result;
	int rc = kvt_client_call(client, &request, NULL, &result);

	if (rc != 0)
		return rc;
	if (result.n_pages * sizeof(uint32_t) != sizeof(*ret_counters)) {
		kvt_result_release(client, &result);
		return kvt_client_fail(client, -EPROTO, 0, "stats: %u words in the answer",
				       result.n_pages);
	}
	memcpy(ret_counters, result.pages, sizeof(*ret_counters));
	kvt_result_release(client, &result);
	return 0;
}

int kvt_page_sealer(struct kvt_client *client, uint32_t page, uint32_t *ret_sealer)
{
	struct kvt_request request = { .op = KVT_OP_PAGE, .arg = page };
	struct kvt_page_record record = { .state = KVT_PAGE_FREE };
	struct kvt_result result;
	int rc = kvt_client_usable(client);

	if (rc == 0 && !client->arena.base) {
		rc = kvt_client_call(client, &request, NULL, &result);
		if (rc == 0) {
			record.state = (uint8_t)result.state;
			record.sealer = result.sealer & KVT_SEALER_MASK;
			kvt_result_release(client, &result);
		}
	} else if (rc == 0 && page < client->arena.n_pages) {
		kvt_racy_copy((uint32_t *)&record, (const uint32_t *)&client->arena.pages[page],
			      sizeof(record) / sizeof(uint32_t));
	}
	if (rc != 0)
		return rc;
	if (record.state != KVT_PAGE_CACHED)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_PAGE_NOT_CACHED,
				       "page %u is not cached", page);
	*ret_sealer = record.sealer;
	return 0;
}

int kvt_page_suspect(struct kvt_client *client, uint32_t page, uint32_t *ret_session)
{
	struct kvt_request request = { .op = KVT_OP_SUSPECT, .arg = page };
	struct kvt_result result;
	int rc = call_and_release(client, &request, &result);

	if (rc == 0 && ret_session)
		*ret_session = result.owner;
	return rc;
}

/* ---------------------------------------------------------------- fences */

struct kvt_fence kvt_fence_idle(void)
{
	return KVT_IDLE;
}

static uint64_t *take_word(struct kvt_client *client, uint32_t slot)
{
	if (slot >= KVT_FENCE_WORDS || !kvt_client_has_fences(client) || kvt_client_forked(client))
		return NULL;
	client->fences_taken |= 1u << slot;
	return &client->ring.fences[slot].value;
}

uint64_t *kvt_fence_word(struct kvt_client *client, uint32_t slot)
{
	uint64_t *word = take_word(client, slot);

	if (word)
		kvt_client_raise_silently(client);
	return word;
}

int kvt_fence_raise(struct kvt_client *client, uint32_t slot, uint64_t value)
{
	uint64_t *word;
	int rc;

	/* A member may make no other call, so this one notices the end of the group. */
	if (client->info.rank > 0 && kvt_load_relaxed(&client->ring.header->gone))
		kvt_client_look(client);
	rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	word = take_word(client, slot);
	if (!word)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_FENCE,
				       "fence slot %u: there are %u, and an observer has none",
				       slot, KVT_FENCE_WORDS);
	if (kvt_streams_uses(client, slot))
		return kvt_client_fail(client, -EBUSY, KVT_REASON_FENCE,
				       "fence slot %u is raised by a stream: use a lower one",
				       slot);
	if (kvt_load_relaxed(word) < value) {
		/* Pairs with the daemon's acquire of the word: page writes come before it. */
		kvt_store_release(word, value);
		kvt_client_step(client, KVT_STEP_FENCE_RAISED);
	}
	/* Operations that wait for a member's word are rank 0's: a member cannot know of them. */
	if (client->info.rank > 0 || client->awaited[slot])
		kvt_client_kick(client);
	if (client->awaited[slot] <= value)
		client->awaited[slot] = 0;
	return 0;
}

/* ---------------------------------------------------------------- control socket */

static int64_t control_deadline(const struct kvt_client *client)
{
	return client->timeout_ns > 0 ? kvt_now_ns() + client->timeout_ns : INT64_MAX;
}

/* Also check `gone`: if the socket was full, there is no GOODBYE. */
static int receive_answer(struct kvt_client *client, int *ret_fds, unsigned int *n_fds,
			  int64_t deadline_ns)
{
	unsigned int room = *n_fds;
	int64_t look_ns;
	int rc;

	do {
		look_ns = kvt_now_ns() + GONE_LOOK_NS;
		look_ns = look_ns < deadline_ns ? look_ns : deadline_ns;
		*n_fds = 0;
		rc = kvt_control_receive(client->control, client->packet, KVT_MESSAGE_MAX, ret_fds,
					 room, n_fds, look_ns);
		if (rc == -ETIMEDOUT && kvt_client_has_fences(client) &&
		    kvt_load_acquire(&client->ring.header->gone)) {
			kvt_client_look(client);
			return client->dead;
		}
	} while (rc == -ETIMEDOUT && look_ns < deadline_ns);
	return rc;
}

/* Send one request and receive its answer, with a descriptor if `ret_fd` is given: -1 if there is
 * none. -ECONNRESET: the daemon is gone. */
static int ask_once(struct kvt_client *client, const struct kvt_message *head, size_t bytes,
		    const void *more, size_t more_bytes, int *ret_fd, int64_t deadline_ns)
{
	const struct kvt_message *answer = (const void *)client->packet;
	int rc = kvt_control_send(client->control, head, bytes, more, more_bytes, deadline_ns);

	if (rc == 0 && head->type == KVT_MSG_NAMESPACE)
		kvt_client_step(client, KVT_STEP_NAMESPACE_SENT);
	while (rc == 0) {
		unsigned int n_fds = ret_fd ? 1 : 0;

		rc = receive_answer(client, ret_fd, &n_fds, deadline_ns);
		if (rc < 0)
			break;
		if (ret_fd && n_fds == 0)
			*ret_fd = -1;
		if (answer->type == head->type && answer->cookie == head->cookie)
			return rc;
		if (ret_fd && n_fds > 0)
			close(*ret_fd);
		kvt_client_take_message(client, rc);
		rc = client->dead;
	}
	return rc;
}

/* A daemon that ended may not have read the request: send it to the successor. */
static int ask(struct kvt_client *client, struct kvt_message *head, size_t bytes,
	       const void *more, size_t more_bytes, int *ret_fd)
{
	KVT_KEEP_ERRNO;
	int64_t deadline_ns = control_deadline(client);
	int rc;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc != 0)
		return rc;
	KVT_ASSERT(bytes + more_bytes <= KVT_MESSAGE_MAX);
	head->magic = KVT_MESSAGE_MAGIC;
	head->version = KVT_ABI;
	head->bytes = (uint32_t)(bytes + more_bytes);
	head->result = 0;
	head->cookie = ++client->cookie;
	kvt_client_look(client); /* unread messages are older than the request */
	do { /* now they may be its answer, which the daemon gives once */
		rc = kvt_client_await_successor(client, deadline_ns);
		if (rc == 0)
			rc = ask_once(client, head, bytes, more, more_bytes, ret_fd,
				      deadline_ns);
		if (rc == -ECONNRESET && !client->dead) {
			kvt_client_look(client);
			kvt_client_hung_up(client);
		}
	} while (client->broken_ns && rc == -ECONNRESET && !client->dead);
	if (client->dead)
		return kvt_client_usable(client);
	return rc < 0 ? kvt_client_fail(client, rc, 0, "control socket: %s", kvt_errno_name(rc)) :
			rc;
}

int kvt_control_ask(struct kvt_client *client, struct kvt_message *head, size_t bytes,
		    const void *more, size_t more_bytes)
{
	return ask(client, head, bytes, more, more_bytes, NULL);
}

int kvt_control_ask_fd(struct kvt_client *client, struct kvt_message *head, size_t bytes,
		       int *ret_fd)
{
	int fd = -1, rc = ask(client, head, bytes, NULL, 0, &fd);

	if (rc >= 0)
		*ret_fd = fd;
	return rc;
}

/* Remember what the packet's answer says of a namespace. */
static int remember(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	const struct kvt_message_namespace *answer = (const void *)client->packet;
	uint32_t namespace_id = answer->namespace_id;

	if (namespace_id >= client->n_opened) {
		uint32_t n = namespace_id + 16;
		struct kvt_opened *more;

		if (namespace_id >= 1u << 24)
			return kvt_client_fail(client, -EPROTO, 0, "namespace number %u",
					       namespace_id);
		more = realloc(client->opened, n * sizeof(*more));
		if (!more)
			return kvt_client_fail(client, -ENOMEM, 0, "out of memory");
		memset(more + client->n_opened, 0, (n - client->n_opened) * sizeof(*more));
		client->opened = more;
		client->n_opened = n;
	}
	client->opened[namespace_id] = (struct kvt_opened){
		.digest = { answer->digest[0], answer->digest[1] },
		.generation = answer->generation,
		.open = true,
	};
	return 0;
}

/* Ask one NAMESPACE or RENEW. On success the packet is its answer. */
static int ask_namespace(struct kvt_client *client, struct kvt_message_namespace *message)
{
	const struct kvt_message_namespace *answer = (const void *)client->packet;
	int rc = kvt_control_ask(client, &message->head, sizeof(*message), NULL, 0);

	if (rc < 0)
		return rc;
	if (rc != sizeof(*answer))
		return kvt_client_fail(client, -EPROTO, 0, "namespace: %d bytes in the answer",
				       rc);
	if (answer->head.result < 0)
		return kvt_client_fail(client, answer->head.result,
				       answer->head.result == -ENOSPC ||
				       answer->head.result == -EDQUOT ?
					       KVT_REASON_LIMIT_NAMESPACES : KVT_REASON_NAMESPACE,
				       "namespace: %s: %.*s",
				       kvt_errno_name(answer->head.result),
				       (int)sizeof(answer->text), answer->text);
	return 0;
}

/* Wait for a LEAVE that was not answered in time: it would close what is opened now. */
static int await_leave(struct kvt_client *client)
{
	struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result result;
	int rc = client->leaving ? call_and_release(client, &request, &result) : 0;

	client->leaving &= rc != 0;
	return rc;
}

int kvt_namespace_open(struct kvt_client *client, const uint64_t digest[2], const char *label,
		       uint32_t *ret_namespace)
{
	struct kvt_message_namespace message = {
		.head.type = KVT_MSG_NAMESPACE,
		.digest = { digest[0], digest[1] },
	};
	const struct kvt_message_namespace *answer = (const void *)client->packet;
	int rc;

	for (uint32_t i = 0; i < client->n_opened; i++) {
		if (client->opened[i].open && client->opened[i].digest[0] == digest[0] &&
		    client->opened[i].digest[1] == digest[1]) {
			*ret_namespace = i;
			return 0;
		}
	}
	if (label)
		memcpy(message.label, label, strnlen(label, sizeof(message.label) - 1));
	rc = await_leave(client);
	if (rc == 0)
		rc = ask_namespace(client, &message);
	if (rc == 0)
		rc = remember(client);
	if (rc != 0)
		return rc;
	*ret_namespace = answer->namespace_id;
	return 0;
}

/* The memory of a namespace that is open here, or NULL. */
static struct kvt_opened *opened_here(const struct kvt_client *client, uint32_t namespace_id)
{
	return namespace_id < client->n_opened && client->opened[namespace_id].open ?
		       &client->opened[namespace_id] : NULL;
}

static int not_opened(struct kvt_client *client, uint32_t namespace_id)
{
	return kvt_client_fail(client, -EINVAL, KVT_REASON_NAMESPACE,
			       "namespace %u is not open here: open it first", namespace_id);
}

int kvt_namespace_generation(struct kvt_client *client, uint32_t namespace_id,
			     uint32_t *ret_generation)
{
	const struct kvt_opened *opened = opened_here(client, namespace_id);

	if (!opened)
		return not_opened(client, namespace_id);
	*ret_generation = opened->generation;
	return 0;
}

int kvt_namespace_renew(struct kvt_client *client, uint32_t namespace_id, uint32_t seen,
			uint32_t *ret_generation)
{
	struct kvt_message_namespace message = {
		.head.type = KVT_MSG_RENEW,
		.namespace_id = namespace_id,
		.generation = seen,
	};
	const struct kvt_message_namespace *answer = (const void *)client->packet;
	int rc;

	if (!opened_here(client, namespace_id))
		return not_opened(client, namespace_id);
	rc = ask_namespace(client, &message);
	if (rc != 0)
		return rc;
	client->opened[namespace_id].generation = *ret_generation = answer->generation;
	return 0;
}

int kvt_namespace_close(struct kvt_client *client, uint32_t namespace_id)
{
	struct kvt_request request = { .op = KVT_OP_LEAVE, .namespace_id = namespace_id };
	bool open = namespace_id < client->n_opened && client->opened[namespace_id].open;
	struct kvt_result result;
	int rc = call_and_release(client, &request, &result);

	if (open && !client->opened[namespace_id].open && (rc == -ETIMEDOUT || rc == -EINTR))
		client->leaving = true;
	else if (rc != 0 && open)
		client->opened[namespace_id].open = true;
	return rc;
}

int kvt_admin(struct kvt_client *client, struct kvt_message_admin *request, const void *payload,
	      size_t payload_bytes, void *ret_records, size_t bytes)
{
	const struct kvt_message_admin *answer = (const void *)client->packet;
	size_t got;
	int rc;

	if (payload_bytes > KVT_MESSAGE_MAX - sizeof(*request))
		return kvt_client_fail(client, -E2BIG, 0, "admin payload of %zu bytes, at most %zu",
				       payload_bytes, KVT_MESSAGE_MAX - sizeof(*request));
	request->head.type = KVT_MSG_ADMIN;
	rc = kvt_control_ask(client, &request->head, sizeof(*request), payload, payload_bytes);
	if (rc < 0)
		return rc;
	if ((size_t)rc < sizeof(*answer))
		return kvt_client_fail(client, -EPROTO, 0, "admin: %d bytes in the answer", rc);
	got = (size_t)rc - sizeof(*answer);
	*request = *answer;
	if (answer->head.result < 0)
		return kvt_client_fail(client, answer->head.result, 0, "%.*s (%s)",
				       (int)sizeof(answer->text), answer->text,
				       kvt_errno_name(answer->head.result));
	if ((uint64_t)answer->count * answer->record_bytes > got)
		return kvt_client_fail(client, -EPROTO, 0, "admin: %u records of %u bytes in %zu",
				       answer->count, answer->record_bytes, got);
	if (got > bytes)
		return kvt_client_fail(client, -ENOBUFS, 0,
				       "admin: the answer has %zu bytes, there is room for %zu",
				       got, bytes);
	if (got)
		memcpy(ret_records, client->packet + sizeof(*answer), got);
	return (int)request->count;
}
