/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SPINS_BEFORE_CLOCK 200 /* about as long as a busy daemon takes for a small operation */
#define SPINS_PER_CLOCK 32
#define LOOK_EVERY_NS 1000000 /* how often endless spinning looks at the control socket */
#define LOOK_EVERY_REAPS 256  /* the same for callers that poll kvt_reap() */
#define SLOT_BITS 17          /* of kvt_result.slot; the rest are of the slot's generation */

/* ---------------------------------------------------------------- failures */

int kvt_client_fail(struct kvt_client *client, int code, int reason, const char *format, ...)
{
	va_list arguments;

	client->error.attach_state = client->dead ? KVT_ATTACH_GONE : KVT_ATTACH_OK;
	client->error.code = code;
	client->error.reason = reason;
	va_start(arguments, format);
	vsnprintf(client->error.text, sizeof(client->error.text), format, arguments);
	va_end(arguments);
	return code;
}

int kvt_client_fail_result(struct kvt_client *client, const struct kvt_result *result)
{
	const char *op = kvt_op_name((int)result->op), *name = kvt_errno_name(result->error);
	const char *text = kvt_reason_text((int)result->reason);
	int reason = (int)result->reason;

	if (result->error == -ENOSPC && result->needed)
		return kvt_client_fail(client, result->error, reason,
				       "%s: %s: %s (%u pages needed, %u available)", op, name,
				       text, result->needed, result->available);
	if (result->error == -ENOBUFS || result->error == -EDQUOT)
		return kvt_client_fail(client, result->error, reason, "%s: %s: %s (%s %u)", op,
				       name, text, result->error == -EDQUOT ? "limit" : "needs",
				       result->needed);
	return kvt_client_fail(client, result->error, reason, "%s: %s: %s", op, name, text);
}

void kvt_client_lost(struct kvt_client *client, int code, const char *why)
{
	if (client->dead)
		return;
	client->dead = code;
	if (client->greeting >= 0) /* a successor that comes now need not go on with us */
		close(client->greeting);
	client->greeting = -1;
	if (!client->farewell[0])
		snprintf(client->farewell, sizeof(client->farewell), "%s", why);
}

static int lost_error(struct kvt_client *client)
{
	return kvt_client_fail(client, client->dead, 0, "session lost: %s", client->farewell);
}

int kvt_client_usable(struct kvt_client *client)
{
	if (KVT_UNLIKELY(!client || client->magic != KVT_CLIENT_MAGIC))
		return -EINVAL; /* closed, or never one: there is nowhere to say more */
	if (KVT_UNLIKELY(kvt_client_forked(client)))
		return kvt_client_fail(client, -ECHILD, 0,
				       "this client belongs to the parent process: connect anew");
	if (KVT_UNLIKELY(client->dead))
		return lost_error(client);
	return 0;
}

/* ---------------------------------------------------------------- control socket */

void kvt_client_take_message(struct kvt_client *client, int bytes)
{
	const struct kvt_message_refused *message = (const void *)client->packet;
	size_t head = offsetof(struct kvt_message_refused, text);

	if (message->head.type == KVT_MSG_RESUMED &&
	    (size_t)bytes == sizeof(struct kvt_message_resumed))
		client->info.daemon_pid =
			((const struct kvt_message_resumed *)(const void *)message)->daemon_pid;
	if (message->head.type != KVT_MSG_GOODBYE)
		return; /* an answer that came after its deadline, or a successor's greeting */
	if ((size_t)bytes > head)
		snprintf(client->farewell, sizeof(client->farewell),
			 "the daemon ended the session: %.*s", (int)((size_t)bytes - head),
			 message->text);
	kvt_client_lost(client, -ECONNRESET, "the daemon ended the session");
}

void kvt_client_look(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	unsigned int n_fds;
	int rc = 0;

	client->empty_reaps = 0;
	kvt_client_look_for_successor(client);
	while (!client->dead && !client->broken_ns && client->control >= 0) {
		rc = kvt_control_receive(client->control, client->packet, KVT_MESSAGE_MAX, NULL,
					 0, &n_fds, 0);
		if (rc == -EAGAIN)
			break;
		if (rc < 0)
			kvt_client_hung_up(client);
		else
			kvt_client_take_message(client, rc);
	}
	if (!kvt_client_has_fences(client) || client->dead)
		return;
	/* The daemon writes it once, when it ends a session for cause, and says GOODBYE. */
	if (kvt_load_acquire(&client->ring.header->gone))
		kvt_client_lost(client, -ECONNRESET, "the daemon ended the session");
	else if (client->arena.base &&
		 kvt_load_acquire(&client->arena.header->state) == KVT_ARENA_GONE)
		kvt_client_lost(client, -ECONNRESET,
				"the daemon has shut down: connect again when it is back");
}

void kvt_client_look_now_and_then(struct kvt_client *client)
{
	if (++client->empty_reaps >= LOOK_EVERY_REAPS)
		kvt_client_look(client);
}

/* ---------------------------------------------------------------- waiting */

static void start_wait(struct kvt_client *client, struct kvt_wait *wait, int64_t now_ns)
{
	wait->started = true;
	wait->deadline_ns = client->timeout_ns > 0 ? now_ns + client->timeout_ns : INT64_MAX;
	wait->spin_until_ns =
		client->spin_budget_ns < 0 ? INT64_MAX : now_ns + client->spin_budget_ns;
	wait->look_at_ns = now_ns + LOOK_EVERY_NS;
}

/* The completion counter says only "look": empty it, so that the next sleep sleeps. */
static void drain_completion(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	uint64_t count;

	while (read(client->completion, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

/* Nobody wakes us when a successor comes. */
static int64_t sleep_until(const struct kvt_client *client, const struct kvt_wait *wait)
{
	int64_t soon_ns;

	if (!client->broken_ns)
		return wait->deadline_ns;
	soon_ns = kvt_client_now_ns() + KVT_SUCCESSOR_POLL_NS;
	return soon_ns < wait->deadline_ns ? soon_ns : wait->deadline_ns;
}

static void sleep_for_completion(struct kvt_client *client, const struct kvt_wait *wait)
{
	struct pollfd fds[2] = {
		{ .fd = client->completion, .events = POLLIN },
		{ .fd = client->broken_ns ? -1 : client->control, .events = POLLIN },
	};
	KVT_KEEP_ERRNO;
	int64_t left = sleep_until(client, wait);
	struct timespec timeout;
	int n;

	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	/* Pairs with the daemon's full fence in kvt_ring_cq_publish(): either we see its tail or
	 * it sees our flag. */
	kvt_fence_full();
	if (kvt_ring_cq_ready(&client->ring) == 0) {
		kvt_client_step(client, KVT_STEP_BEFORE_SLEEP);
		if (left != INT64_MAX) {
			left -= kvt_client_now_ns();
			left = left > 0 ? left : 0;
		}
		timeout.tv_sec = left / 1000000000;
		timeout.tv_nsec = left % 1000000000;
		n = ppoll(fds, 2, left == INT64_MAX ? NULL : &timeout, NULL);
		if (n > 0 && fds[0].revents)
			drain_completion(client);
		if ((n > 0 && fds[1].revents) || client->broken_ns)
			kvt_client_look(client);
	}
	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 0);
	client->armed = false;
}

/* Not found at once: now the clock may be asked. */
static __attribute__((noinline)) int wait_slowly(struct kvt_client *client,
						 struct kvt_wait *wait)
{
	for (;;) {
		int64_t now_ns = kvt_client_now_ns();

		if (!wait->started)
			start_wait(client, wait, now_ns);
		if (now_ns >= wait->deadline_ns)
			return kvt_ring_cq_ready(&client->ring) ? 0 : -ETIMEDOUT;
		if (now_ns >= wait->look_at_ns) {
			wait->look_at_ns = now_ns + LOOK_EVERY_NS;
			kvt_client_look(client);
		}
		if (now_ns >= wait->spin_until_ns)
			sleep_for_completion(client, wait);
		for (unsigned int i = 0; i < SPINS_PER_CLOCK; i++) {
			if (kvt_ring_cq_ready(&client->ring))
				return 0;
			kvt_cpu_relax();
		}
		/* What was answered before the end still counts, so this comes last. */
		if (client->dead)
			return client->dead;
	}
}

int kvt_client_wait(struct kvt_client *client, struct kvt_wait *wait)
{
	for (unsigned int i = 0; i < SPINS_BEFORE_CLOCK; i++) {
		if (kvt_ring_cq_ready(&client->ring))
			return 0;
		kvt_cpu_relax();
	}
	return wait_slowly(client, wait);
}

/* ---------------------------------------------------------------- slots */

static void list_push(struct kvt_client *client, struct kvt_slot_list *list, uint32_t number)
{
	client->slots[number].next = 0;
	if (list->last)
		client->slots[list->last].next = number;
	else
		list->first = number;
	list->last = number;
}

static uint32_t list_pop(struct kvt_client *client, struct kvt_slot_list *list)
{
	uint32_t number = list->first;

	if (number) {
		list->first = client->slots[number].next;
		if (!list->first)
			list->last = 0;
	}
	return number;
}

static uint32_t slot_take(struct kvt_client *client)
{
	uint32_t number = client->free_slot;

	client->free_slot = client->slots[number].next;
	client->n_free--;
	client->slots[number].twin = 0;
	return number;
}

static void slot_free(struct kvt_client *client, uint32_t number)
{
	struct kvt_slot *slot = &client->slots[number];

	kvt_area_give(&client->keys, slot->keys);
	kvt_area_give(&client->list, slot->list);
	slot->keys.n = slot->list.n = 0;
	slot->state = KVT_SLOT_FREE;
	slot->generation++;
	slot->next = client->free_slot;
	client->free_slot = number;
	client->n_free++;
}

/* ---------------------------------------------------------------- submission */

static bool op_has_fence(uint32_t op)
{
	return op == KVT_OP_UNLOCK || op == KVT_OP_FREE || op == KVT_OP_INSERT ||
	       op == KVT_OP_COMMIT || op == KVT_OP_END || op == KVT_OP_CLOSE;
}

static bool op_has_lease(uint32_t op)
{
	return op == KVT_OP_UNLOCK || op == KVT_OP_COMMIT || op == KVT_OP_EXTEND ||
	       op == KVT_OP_END;
}

/* Operations that only give something back must always find a slot. */
static bool op_gives_back(uint32_t op)
{
	return op == KVT_OP_UNLOCK || op == KVT_OP_FREE || op == KVT_OP_END || op == KVT_OP_CLOSE;
}

/* Words that hold any answer to this request. */
static uint64_t list_words(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t shift = client->page_shift;
	uint64_t page_size = 1ull << shift, keys_pages = request->n_keys >> shift;
	uint64_t pages, most;

	if (request->list_capacity)
		return request->list_capacity;
	switch (request->op) {
	case KVT_OP_MATCH:
		return request->flags & KVT_F_LOCK ? keys_pages : 0;
	case KVT_OP_LOCK:
		return request->handle.positions >> shift;
	case KVT_OP_ALLOC:
	case KVT_OP_EXTEND:
		return request->arg;
	case KVT_OP_INSERT:
		return 2 * keys_pages +
		       (request->flags & KVT_F_LOCK ?
				keys_pages + (request->handle.positions >> shift) :
				0);
	case KVT_OP_BEGIN:
		pages = (request->n_keys + (uint64_t)request->arg + page_size - 1) >> shift;
		return pages < client->info.n_pages ? pages : 1; /* refused: too large */
	case KVT_OP_COMMIT:
		/* The whole page table, whose length only the daemon and kvt_seq know. */
		most = client->list.count / 4;
		return client->info.n_pages < most ? client->info.n_pages : most;
	case KVT_OP_STATS:
		return sizeof(struct kvt_counters) / sizeof(uint32_t);
	default:
		return 0;
	}
}

static void fill_entry(struct kvt_sqe *sqe, const struct kvt_request *request,
		       const struct kvt_slot *slot, uint32_t number, uint32_t n_keys,
		       uint32_t list_capacity)
{
	bool fence = op_has_fence(request->op), lease = op_has_lease(request->op);

	*sqe = (struct kvt_sqe){
		.op = (uint8_t)request->op,
		.fence_slot = fence ? (uint8_t)request->fence.slot : 0,
		.flags = (uint16_t)request->flags,
		.namespace_id = request->namespace_id,
		.user_data = (uint64_t)slot->generation << 32 | number,
		.keys_offset = n_keys ? slot->keys.at : 0,
		.n_keys = n_keys,
		.list_offset = list_capacity ? slot->list.at : 0,
		.list_capacity = list_capacity,
		.arg = request->op == KVT_OP_INSERT && slot->n_pages ? slot->pages_at :
								       request->arg,
		.node = lease ? request->lease.index : request->handle.node,
		.generation = lease ? request->lease.generation : request->handle.generation,
		.positions = request->handle.positions,
		.fence_value = fence && request->fence.slot != KVT_FENCE_IDLE ?
				       request->fence.value :
				       0,
		.priority = request->priority,
		.ttl_ms = request->ttl_ms,
	};
}

/* What the library itself must refuse, because the entry could not even say it. */
static int check_request(struct kvt_client *client, const struct kvt_request *request,
			 uint64_t key_words, uint64_t list)
{
	if (!client->has_session)
		return kvt_client_fail(client, -ENOTCONN, 0, client->info.rank > 0
				       ? "a member of a group has no ring: its rank 0 submits"
				       : "an observer has no session: connect without "
					 "KVT_HELLO_OBSERVE");
	if (request->op > UINT8_MAX || request->flags > UINT16_MAX || request->reserved)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "op, flags or reserved field out of range");
	if (op_has_fence(request->op) && request->fence.slot > KVT_FENCE_IDLE)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_FENCE, "%s: fence slot %u: %s",
				       kvt_op_name((int)request->op), request->fence.slot,
				       kvt_reason_text(KVT_REASON_FENCE));
	if ((request->n_keys && !request->keys) || (request->n_pages && !request->pages))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "a count above 0 without its array");
	if (request->op == KVT_OP_INSERT &&
	    request->n_pages != request->n_keys >> client->page_shift)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "insert: %u keys are %u whole pages, but %u were given",
				       request->n_keys, request->n_keys >> client->page_shift,
				       request->n_pages);
	/* More pages than there are: the daemon would say so, but no list holds the answer. */
	if (list > client->list.count && list >= client->info.n_pages && !request->list_capacity &&
	    (request->op == KVT_OP_ALLOC || request->op == KVT_OP_EXTEND))
		return kvt_client_fail(client, -ENOSPC, KVT_REASON_TOO_LARGE,
				       "%s: ENOSPC: %s (%llu pages needed, the pool has %u)",
				       kvt_op_name((int)request->op),
				       kvt_reason_text(KVT_REASON_TOO_LARGE),
				       (unsigned long long)list, client->info.n_pages - 1);
	if (key_words > client->keys.count || list > client->list.count)
		return kvt_client_fail(client, -E2BIG, 0,
				       "%s needs %llu key and %llu list words, the areas have %u "
				       "and %u: connect with larger keys_count or list_count",
				       kvt_op_name((int)request->op),
				       (unsigned long long)key_words, (unsigned long long)list,
				       client->keys.count, client->list.count);
	return 0;
}

/* Two answers may come: the first one, "not now", then has a slot of its own. */
static void take_twin(struct kvt_client *client, struct kvt_slot *slot,
		      const struct kvt_request *request)
{
	struct kvt_slot *twin;

	slot->twin = slot_take(client);
	twin = &client->slots[slot->twin];
	twin->state = KVT_SLOT_SPARE;
	twin->op = (uint8_t)request->op;
	twin->flags = (uint16_t)request->flags;
	twin->user_data = request->user_data;
	twin->seq = NULL;
	twin->n_pages = 0;
}

static void ring_doorbell(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	const uint64_t one = 1;

	/* A full counter wakes as well as one more; a closed one means that nobody is there,
	 * which waiting will tell. */
	while (write(client->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static bool two_answers(const struct kvt_request *request)
{
	return request->op == KVT_OP_BEGIN && (request->flags & KVT_F_NO_WAIT);
}

/* Room for one more entry, for this operation. */
static bool has_room(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t left = op_gives_back(request->op) ? 1 : 2 + client->ring.cq_mask / 2;

	left += two_answers(request);
	return client->n_free >= left && client->n_flying <= client->ring.cq_mask &&
	       kvt_ring_sq_space(&client->ring) > 0;
}

/* -EAGAIN without a text when there is no room; the caller decides what that means. */
static int submit(struct kvt_client *client, const struct kvt_request *request, uint32_t state,
		  uint32_t *ret_number)
{
	bool insert = request->op == KVT_OP_INSERT, frees = request->op == KVT_OP_FREE;
	uint32_t n_keys = frees ? request->n_pages : request->n_keys;
	uint64_t key_words = (uint64_t)n_keys + (insert ? request->n_pages : 0);
	uint64_t list = list_words(client, request);
	struct kvt_slot *slot;
	struct kvt_sqe sqe;
	uint32_t number;
	bool asleep;
	int rc = check_request(client, request, key_words, list);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	if (KVT_UNLIKELY(!has_room(client, request)))
		return -EAGAIN;
	number = client->free_slot;
	slot = &client->slots[number];
	if (!kvt_area_take(&client->keys, (uint32_t)key_words, &slot->keys))
		return -EAGAIN;
	if (!kvt_area_take(&client->list, (uint32_t)list, &slot->list)) {
		kvt_area_give(&client->keys, slot->keys);
		return -EAGAIN;
	}
	slot_take(client);
	if (two_answers(request))
		take_twin(client, slot, request);
	client->n_flying++;
	slot->state = (uint8_t)state;
	slot->op = (uint8_t)request->op;
	slot->flags = (uint16_t)request->flags;
	slot->user_data = request->user_data;
	slot->fence = request->fence;
	slot->seq = NULL;
	slot->n_pages = insert ? request->n_pages : 0;
	slot->pages_at = slot->keys.at + n_keys;
	if (n_keys)
		memcpy(client->ring.keys + slot->keys.at, frees ? request->pages : request->keys,
		       n_keys * sizeof(uint32_t));
	if (slot->n_pages)
		memcpy(client->ring.keys + slot->pages_at, request->pages,
		       slot->n_pages * sizeof(uint32_t));
	kvt_client_step(client, KVT_STEP_KEYS_WRITTEN);
	fill_entry(&sqe, request, slot, number, n_keys, (uint32_t)list);
	kvt_ring_sq_put(&client->ring, &sqe);
	kvt_client_step(client, KVT_STEP_ENTRY_PUT);
	asleep = kvt_ring_sq_publish(&client->ring);
	kvt_client_step(client, KVT_STEP_TAIL_PUBLISHED);
	if (asleep)
		ring_doorbell(client);
	kvt_client_step(client, KVT_STEP_SUBMITTED);
	*ret_number = number;
	return 0;
}

/* ---------------------------------------------------------------- answers */

static void decode_counts(struct kvt_result *result, const struct kvt_cqe *cqe)
{
	switch (result->op) {
	case KVT_OP_MATCH:
	case KVT_OP_LOCK:
		result->matched = cqe->a;
		result->announced = cqe->b;
		break;
	case KVT_OP_INSERT:
		result->existed = cqe->a;
		result->inserted = cqe->b;
		result->evicted = cqe->c;
		result->n_twins = cqe->d;
		result->duplicates = cqe->d;
		break;
	case KVT_OP_BEGIN:
		result->matched = cqe->a;
		if (cqe->flags & KVT_CQE_ASYNC) {
			result->state = cqe->c;
			break;
		}
		result->reusable = cqe->b;
		result->announced = cqe->c;
		result->evicted = cqe->d;
		break;
	case KVT_OP_COMMIT:
		result->next = cqe->a;
		result->known = cqe->positions;
		result->advanced = cqe->b;
		result->sealed = cqe->c;
		result->duplicates = cqe->d;
		break;
	case KVT_OP_END:
		result->sealed = cqe->c;
		result->freed = cqe->d;
		break;
	case KVT_OP_FREE:
	case KVT_OP_CLOSE:
		result->freed = cqe->d;
		break;
	case KVT_OP_ALLOC:
	case KVT_OP_EXTEND:
	case KVT_OP_EVICT:
		result->evicted = cqe->c;
		break;
	case KVT_OP_PAGE:
		result->state = cqe->a;
		result->owner = cqe->b;
		result->lock_ref = cqe->d;
		break;
	case KVT_OP_AUDIT:
		result->problems = cqe->a;
		break;
	case KVT_OP_REMOVE:
		result->state = cqe->a;
		break;
	default:
		break;
	}
}

/* How many list words an answer may have: only these operations write any. */
static uint32_t list_length(const struct kvt_result *result, const struct kvt_cqe *cqe)
{
	switch (result->op) {
	case KVT_OP_MATCH:
	case KVT_OP_LOCK:
	case KVT_OP_ALLOC:
	case KVT_OP_INSERT:
	case KVT_OP_BEGIN:
	case KVT_OP_COMMIT:
	case KVT_OP_EXTEND:
	case KVT_OP_STATS:
		return cqe->e;
	default:
		return 0;
	}
}

static int decode(struct kvt_client *client, struct kvt_slot *slot, const struct kvt_cqe *cqe,
		  struct kvt_result *result)
{
	uint32_t n_list;

	memset(result, 0, sizeof(*result));
	result->user_data = slot->user_data;
	result->seq = cqe->seq;
	result->error = cqe->result;
	result->reason = cqe->reason;
	result->flags = cqe->flags;
	result->op = slot->op;
	if (KVT_UNLIKELY(cqe->result != 0)) {
		if (cqe->result == -ENOSPC) {
			result->available = cqe->a;
			result->needed = cqe->b;
		} else if (cqe->result == -ENOBUFS || cqe->result == -EDQUOT) {
			result->needed = cqe->a;
		} else if (cqe->reason == KVT_REASON_ANNOUNCED) {
			result->announced = cqe->a;
		} else {
			result->next = cqe->a;
		}
		return 0;
	}
	if (slot->op != KVT_OP_COMMIT)
		result->handle =
			(struct kvt_handle){ cqe->node, cqe->generation, cqe->positions };
	result->lease = (struct kvt_lease){ cqe->lease, cqe->lease_generation };
	decode_counts(result, cqe);
	n_list = list_length(result, cqe);
	if (KVT_UNLIKELY(n_list > slot->list.n || result->n_twins > n_list / 2))
		return -EPROTO;
	result->twins = client->ring.list + slot->list.at;
	result->pages = result->twins + 2 * (size_t)result->n_twins;
	result->n_pages = n_list - 2 * result->n_twins;
	return 0;
}

/* The answer has left the CQ. Without a list there is nothing to hold on to. */
static void finish(struct kvt_client *client, uint32_t number, struct kvt_result *result)
{
	struct kvt_slot *slot = &client->slots[number];

	if (result->n_pages == 0 && result->n_twins == 0) {
		result->pages = result->twins = NULL;
		slot_free(client, number);
		return;
	}
	kvt_area_give(&client->keys, slot->keys);
	slot->keys.n = 0;
	slot->state = KVT_SLOT_HELD;
	result->slot = (uint32_t)slot->generation << SLOT_BITS | number;
}

static int broken_answer(struct kvt_client *client)
{
	kvt_client_lost(client, -EPROTO,
			"the daemon answered what was not asked: its ring is damaged");
	return lost_error(client);
}

/* Page numbers that a late INSERT left with the caller: all of them if it failed, else those
 * whose twins are cached. Its caller was told that they are ours now. */
static uint32_t late_pages(struct kvt_client *client, const struct kvt_slot *slot,
			   const struct kvt_result *result, const uint32_t **ret_pages)
{
	uint32_t *mine = client->ring.keys + slot->pages_at;

	*ret_pages = mine;
	if (result->error != 0)
		return slot->n_pages;
	for (uint32_t i = 0; i < result->n_twins; i++)
		mine[i] = result->twins[2 * i];
	return result->n_twins;
}

/* The next thing to give back of what an answer brought that nobody waits for any more; marks it
 * as given back. False: nothing (more). Nothing was launched on leases and pages that the caller
 * never saw, so they need no fence; those of INSERT keep theirs. */
static bool undo_request(struct kvt_client *client, struct kvt_slot *slot,
			 const struct kvt_result *result, struct kvt_request *request)
{
	bool ok = result->error == 0;

	*request = (struct kvt_request){ .fence = KVT_IDLE };
	if (ok && (slot->op == KVT_OP_BEGIN || slot->op == KVT_OP_LOCK ||
		   slot->flags & KVT_F_LOCK)) {
		request->op = slot->op == KVT_OP_BEGIN ? KVT_OP_END : KVT_OP_UNLOCK;
		request->lease = result->lease;
		slot->flags &= (uint16_t)~KVT_F_LOCK;
		slot->op = slot->op == KVT_OP_INSERT ? KVT_OP_INSERT : KVT_OP_NOP;
		return request->lease.index != 0;
	}
	request->op = KVT_OP_FREE;
	if (slot->op == KVT_OP_ALLOC && ok) {
		request->pages = result->pages;
		request->n_pages = result->n_pages;
	} else if (slot->op == KVT_OP_INSERT) {
		request->fence = slot->fence;
		request->n_pages = late_pages(client, slot, result, &request->pages);
	}
	slot->op = KVT_OP_NOP;
	return request->n_pages > 0;
}

/* Try to give back all of it; true when the slot is done with. */
static bool undo(struct kvt_client *client, uint32_t number)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_slot before = *slot;
	struct kvt_request request;
	struct kvt_result result;
	uint32_t undoing;

	if (decode(client, slot, &slot->cqe, &result) != 0) {
		broken_answer(client);
		slot_free(client, number);
		return true;
	}
	while (undo_request(client, slot, &result, &request)) {
		kvt_client_step(client, KVT_STEP_GIVE_BACK);
		if (submit(client, &request, KVT_SLOT_SILENT, &undoing) == -EAGAIN) {
			slot->op = before.op;
			slot->flags = before.flags;
			return false;
		}
		before.flags = slot->flags;
	}
	slot_free(client, number);
	return true;
}

/* What could not be given back when it should have been, for want of room, goes now. */
static __attribute__((noinline)) void undo_waiting(struct kvt_client *client)
{
	while (client->undo.first) {
		uint32_t number = client->undo.first, next = client->slots[number].next;

		if (!undo(client, number))
			return;
		client->undo.first = next;
		if (!next)
			client->undo.last = 0;
	}
	while (client->ending) {
		struct kvt_seq *seq = client->ending;
		struct kvt_request request = { .op = KVT_OP_END, .lease = seq->lease,
					       .fence = seq->fence };
		uint32_t number;

		if (submit(client, &request, KVT_SLOT_SILENT, &number) == -EAGAIN)
			return;
		client->ending = seq->next_free;
		kvt_seq_recycle(seq);
	}
}

void kvt_client_end_later(struct kvt_client *client, struct kvt_seq *seq)
{
	seq->next_free = client->ending;
	client->ending = seq;
	undo_waiting(client);
}

/* An answer that a sequence waits for, or will: it takes note at once, and its slot is free. */
static int take_ahead(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_result result;
	int rc = 0;

	if (KVT_UNLIKELY(decode(client, slot, cqe, &result) != 0))
		rc = broken_answer(client);
	else if (slot->seq)
		kvt_seq_answered(slot->seq, &result);
	slot->seq = NULL;
	slot_free(client, number);
	return rc;
}

/* The deadline of this one passed: take note of what it brings, and give that back. */
static void take_late(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_result result;

	/* A sequence that waits for its page table must not wait for room to give back. */
	if (slot->seq && decode(client, slot, cqe, &result) == 0)
		kvt_seq_late(slot->seq, &result);
	slot->seq = NULL;
	slot->cqe = *cqe;
	slot->state = KVT_SLOT_UNDO;
	list_push(client, &client->undo, number);
	undo_waiting(client);
}

/* Take one answer from the CQ. Returns its slot when somebody waits for it, 0 when it was for
 * the library itself, -EPROTO when it fits nothing. */
static int take_answer(struct kvt_client *client, struct kvt_cqe *cqe)
{
	struct kvt_slot *slot;
	uint32_t number;

	kvt_client_step(client, KVT_STEP_COMPLETION_SEEN);
	kvt_ring_cq_take(&client->ring, cqe);
	kvt_client_step(client, KVT_STEP_COMPLETION_TAKEN);
	number = (uint32_t)cqe->user_data;
	if (KVT_UNLIKELY(number == 0 || number >= client->n_slots))
		return broken_answer(client);
	slot = &client->slots[number];
	if (KVT_UNLIKELY(slot->generation != cqe->user_data >> 32))
		return broken_answer(client);
	if (KVT_UNLIKELY(slot->twin)) {
		uint32_t twin = slot->twin;

		slot->twin = 0;
		if (cqe->reason == KVT_REASON_ANNOUNCED) { /* and the notice is still to come */
			if (slot->state == KVT_SLOT_FLYING)
				return (int)twin;
			slot_free(client, twin);
			return 0;
		}
		slot_free(client, twin);
	}
	if (KVT_LIKELY(slot->state == KVT_SLOT_FLYING)) {
		client->n_flying--;
		kvt_client_step(client, KVT_STEP_AFTER_NOP + slot->op);
		return (int)number;
	}
	switch (slot->state) {
	case KVT_SLOT_AHEAD:
		client->n_flying--;
		kvt_client_step(client, KVT_STEP_AFTER_NOP + slot->op);
		return take_ahead(client, number, cqe);
	case KVT_SLOT_SILENT:
		client->n_flying--;
		slot_free(client, number);
		return 0;
	case KVT_SLOT_ABANDONED:
		client->n_flying--;
		take_late(client, number, cqe);
		return 0;
	default:
		return broken_answer(client);
	}
}

static void stash(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	client->slots[number].cqe = *cqe;
	client->slots[number].state = KVT_SLOT_DONE;
	list_push(client, &client->done, number);
}

/* Take one answer and keep it for kvt_reap(). */
static int take_for_later(struct kvt_client *client)
{
	struct kvt_cqe cqe;
	int number = take_answer(client, &cqe);

	if (number > 0)
		stash(client, (uint32_t)number, &cqe);
	return number < 0 ? number : 0;
}

int kvt_client_take_ready(struct kvt_client *client)
{
	int rc = 0;

	while (rc == 0 && kvt_ring_cq_ready(&client->ring))
		rc = take_for_later(client);
	return rc;
}

static int deliver(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe,
		   struct kvt_result *ret_result)
{
	if (KVT_UNLIKELY(decode(client, &client->slots[number], cqe, ret_result) != 0)) {
		slot_free(client, number);
		return broken_answer(client);
	}
	finish(client, number, ret_result);
	return 0;
}

/* ---------------------------------------------------------------- public */

static int check_alive(struct kvt_client *client)
{
	int rc = kvt_client_usable(client);

	if (rc != 0 || !client->has_session)
		return rc;
	if (KVT_UNLIKELY(kvt_load_relaxed(&client->ring.header->gone))) {
		kvt_client_look(client);
		return kvt_client_usable(client);
	}
	if (KVT_UNLIKELY(client->undo.first || client->ending))
		undo_waiting(client);
	return 0;
}

static int no_room(struct kvt_client *client)
{
	return kvt_client_fail(client, -EAGAIN, 0,
			       "no room: %u operations in flight, %u slots and %u submissions "
			       "free: reap and release results first",
			       client->n_flying, client->n_free,
			       kvt_ring_sq_space(&client->ring));
}

static int submit_now(struct kvt_client *client, const struct kvt_request *request,
		      uint32_t state, uint32_t *ret_number)
{
	int rc = check_alive(client);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	rc = submit(client, request, state, ret_number);
	if (KVT_LIKELY(rc != -EAGAIN))
		return rc;
	/* Answers that are there already hold keys that nobody needs any more. */
	rc = kvt_client_take_ready(client);
	if (rc != 0)
		return rc;
	rc = submit(client, request, state, ret_number);
	return rc == -EAGAIN ? no_room(client) : rc;
}

int kvt_submit(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t number;

	return submit_now(client, request, KVT_SLOT_FLYING, &number);
}

int kvt_client_submit_ahead(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_seq *seq)
{
	uint32_t number;
	int rc = submit_now(client, request, KVT_SLOT_AHEAD, &number);

	if (rc == 0)
		client->slots[number].seq = seq;
	return rc;
}

static int wait_failed(struct kvt_client *client, int rc)
{
	if (rc != -ETIMEDOUT)
		return lost_error(client);
	return kvt_client_fail(client, rc, 0,
			       "no answer within %lld ms: the daemon is stopped or busy, or a "
			       "fence has not been reached",
			       (long long)(client->timeout_ns / 1000000));
}

/* Submit, waiting for room if others hold it. */
static int submit_waiting(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_wait *wait, uint32_t *ret_number)
{
	for (;;) {
		int rc = submit(client, request, KVT_SLOT_FLYING, ret_number);

		if (KVT_LIKELY(rc != -EAGAIN))
			return rc;
		if (client->n_flying == 0)
			return no_room(client); /* only the caller can make some */
		rc = kvt_client_wait(client, wait);
		if (rc == -ETIMEDOUT) /* not submitted: this must not look like a late answer */
			return no_room(client);
		if (rc != 0)
			return wait_failed(client, rc);
		rc = take_for_later(client);
		if (rc != 0)
			return rc;
		undo_waiting(client);
	}
}

static int await(struct kvt_client *client, uint32_t number, struct kvt_wait *wait,
		 struct kvt_seq *seq, struct kvt_result *ret_result)
{
	struct kvt_slot *slot = &client->slots[number];
	uint32_t twin = slot->twin ? slot->twin : number;
	struct kvt_cqe cqe;
	int got;

	for (;;) {
		int rc = kvt_client_wait(client, wait);

		if (KVT_UNLIKELY(rc != 0)) {
			if (rc == -ETIMEDOUT) {
				slot->state = KVT_SLOT_ABANDONED;
				slot->seq = seq;
				if (seq)
					seq->n_late++;
			}
			return wait_failed(client, rc);
		}
		got = take_answer(client, &cqe);
		if (KVT_LIKELY(got == (int)number || got == (int)twin))
			return deliver(client, (uint32_t)got, &cqe, ret_result);
		if (got < 0)
			return got;
		if (got > 0)
			stash(client, (uint32_t)got, &cqe);
	}
}

int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result)
{
	struct kvt_wait wait = { .started = false };
	struct kvt_request longer;
	uint32_t number;
	int rc = check_alive(client);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	for (;;) {
		rc = submit_waiting(client, request, &wait, &number);
		if (KVT_LIKELY(rc == 0))
			rc = await(client, number, &wait, seq, ret_result);
		if (KVT_UNLIKELY(rc != 0))
			return rc;
		if (KVT_LIKELY(ret_result->error == 0))
			return 0;
		if (ret_result->error != -ENOBUFS || request->list_capacity != 0 ||
		    ret_result->needed == 0 || ret_result->needed > client->list.count)
			return kvt_client_fail_result(client, ret_result);
		/* The answer is longer than was guessed. Nothing was done: ask again. */
		longer = *request;
		longer.list_capacity = ret_result->needed;
		request = &longer;
	}
}

int kvt_call(struct kvt_client *client, const struct kvt_request *request,
	     struct kvt_result *ret_result)
{
	return kvt_client_call(client, request, NULL, ret_result);
}

int kvt_reap(struct kvt_client *client, struct kvt_result *ret_results, int min, int max)
{
	struct kvt_wait wait = { .started = false };
	struct kvt_cqe cqe;
	bool slept = client->armed;
	int n = 0, rc = 0;

	if (KVT_UNLIKELY(client->magic != KVT_CLIENT_MAGIC))
		return -EINVAL;
	if (KVT_UNLIKELY(kvt_client_forked(client) || !client->has_session)) {
		rc = kvt_client_usable(client);
		return rc ? rc : kvt_client_fail(client, -ENOTCONN, 0, "an observer has no ring");
	}
	if (slept) {
		kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 0);
		client->armed = false;
		drain_completion(client);
	}
	while (n < max) {
		uint32_t number = list_pop(client, &client->done);

		if (number) {
			rc = deliver(client, number, &client->slots[number].cqe, &ret_results[n]);
			if (rc != 0)
				break;
			n++;
			continue;
		}
		if (kvt_ring_cq_ready(&client->ring) == 0) {
			if (n >= min || client->n_flying == 0)
				break;
			rc = kvt_client_wait(client, &wait);
			if (rc != 0) {
				wait_failed(client, rc);
				break;
			}
		}
		rc = take_answer(client, &cqe);
		if (rc > 0) {
			rc = deliver(client, (uint32_t)rc, &cqe, &ret_results[n]);
			n += rc == 0;
		}
		if (rc < 0)
			break;
	}
	/* Who slept on both descriptors and finds nothing may have been woken by the other one. */
	if (n == 0 && rc == 0 && slept)
		kvt_client_look(client);
	else if (n == 0 && rc == 0)
		kvt_client_look_now_and_then(client);
	if (n == 0 && rc == 0 && client->dead)
		rc = lost_error(client);
	return n > 0 ? n : rc < 0 ? rc : 0;
}

void kvt_result_release(struct kvt_client *client, struct kvt_result *result)
{
	uint32_t name = result->slot, number = name & ((1u << SLOT_BITS) - 1);
	const struct kvt_slot *slot = &client->slots[number];

	if (number == 0 || number >= client->n_slots)
		return;
	result->slot = 0;
	result->pages = result->twins = NULL;
	/* A copy of a result that was released before names an older generation. */
	if (slot->state == KVT_SLOT_HELD &&
	    ((uint32_t)slot->generation << SLOT_BITS | number) == name)
		slot_free(client, number);
}

int kvt_client_settle(struct kvt_client *client, const struct kvt_seq *seq)
{
	struct kvt_wait wait = { .started = false };

	while (seq->n_late || seq->n_ahead) {
		int rc = kvt_client_wait(client, &wait);

		if (rc != 0)
			return wait_failed(client, rc);
		rc = take_for_later(client);
		if (rc != 0)
			return rc;
	}
	return 0;
}

void kvt_client_forget(struct kvt_client *client, const struct kvt_seq *seq)
{
	for (uint32_t i = 1; i < client->n_slots; i++)
		if (client->slots[i].seq == seq)
			client->slots[i].seq = NULL;
}

int kvt_client_arm(struct kvt_client *client)
{
	uint32_t ready = 0;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (!client->has_session)
		return kvt_client_fail(client, -ENOTCONN, 0, "an observer has no ring");
	client->armed = true;
	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	/* Pairs with the daemon's full fence in kvt_ring_cq_publish(). */
	kvt_fence_full();
	ready = kvt_ring_cq_ready(&client->ring);
	for (uint32_t i = client->done.first; i; i = client->slots[i].next)
		ready++;
	return (int)ready;
}

void kvt_client_kick(struct kvt_client *client)
{
	if (kvt_client_forked(client) || !kvt_client_has_fences(client))
		return;
	/* The word that says whether the daemon sleeps is in rank 0's segment. */
	if (client->info.rank > 0) {
		ring_doorbell(client);
		return;
	}
	/* Pairs with the daemon's full fence between its sq_need_wakeup and its last look. */
	kvt_fence_full();
	if (kvt_load_relaxed(&client->ring.header->sq_need_wakeup))
		ring_doorbell(client);
}
