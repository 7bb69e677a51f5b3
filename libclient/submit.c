/* SPDX-License-Identifier: Apache-2.0 */

/* Operations on the ring: slots, entries, answers, and giving back what late answers bring.
 *
 * Every operation of the library comes through kvt_client_call(), kvt_submit() or
 * kvt_client_submit_ahead(). Below are waiting (wait.c), page tables (table.c), failures (fail.c);
 * nothing here is called from there. */

#include "libclient/client.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define SLOT_BITS 17 /* of kvt_result.slot; the rest are of the slot's generation */
_Static_assert(2 * (KVT_SEGMENT_BYTES_MAX / sizeof(struct kvt_cqe)) + 2 < 1u << SLOT_BITS,
	       "a slot's number fits beside its generation");

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

	KVT_ASSERT(number > 0 && client->n_free > 0);
	client->free_slot = client->slots[number].next;
	client->n_free--;
	client->slots[number].twin = 0;
	return number;
}

static void slot_free(struct kvt_client *client, uint32_t number)
{
	struct kvt_slot *slot = &client->slots[number];

	KVT_ASSERT(slot->state != KVT_SLOT_FREE);
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

/* Operations that only give something back always find a slot (deadlock). */
static bool gives_back(uint32_t takes)
{
	return takes & KVT_TAKES_FENCE && !(takes & KVT_TAKES_LIST);
}

#define LIST_SIZE(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = (list),
static const uint8_t list_sizes[KVT_OP_COUNT] = { KVT_OPS(LIST_SIZE, , ) };

/* Pages in the table of a BEGIN. */
static uint64_t begin_table(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t shift = client->page_shift;

	return ((uint64_t)request->handle.positions + request->n_keys + request->arg +
		(1ull << shift) - 1) >> shift;
}

/* The entry's flags: the request's, without those that an older daemon refuses and need not know:
 * before ABI 2.5 it answers COMMIT with a list, before 2.6 all fences hold. A withheld arena does
 * not say. */
static uint32_t known_flags(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t minor = client->arena.base ? client->arena.header->abi_minor : 0;
	uint32_t flags = request->flags;

	if (request->op == KVT_OP_COMMIT && minor < KVT_ABI_MINOR_LATENT)
		flags &= ~(uint32_t)KVT_F_NO_LIST;
	if (minor < KVT_ABI_MINOR_MIRROR)
		flags &= ~(uint32_t)KVT_F_OWN_STREAM;
	if (request->root_key && request->handle.positions == 0)
		flags |= KVT_F_ROOT_KEY;
	return flags;
}

/* List words that are enough for any answer. */
static uint64_t list_words(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t shift = client->page_shift;
	uint64_t keys_pages = request->n_keys >> shift, pages, most;

	if (request->list_capacity)
		return request->list_capacity;
	switch (request->op < KVT_OP_COUNT ? list_sizes[request->op] : KVT_LIST_NONE) {
	case KVT_LIST_KEYS:
		return request->flags & KVT_F_LOCK ?
			       keys_pages + (request->handle.positions >> shift) :
			       0;
	case KVT_LIST_HANDLE:
		return request->handle.positions >> shift;
	case KVT_LIST_ARG:
		most = client->info.n_pages - 1;
		return request->flags & KVT_F_SHORTER && request->arg > most ? most : request->arg;
	case KVT_LIST_TWINS:
		return 2 * keys_pages +
		       (request->flags & KVT_F_LOCK ?
				keys_pages + (request->handle.positions >> shift) :
				0);
	case KVT_LIST_BEGUN:
		pages = begin_table(client, request);
		if (pages >= client->info.n_pages)
			return 1; /* refused: too large */
		return pages + (pages < client->list.count); /* a word for `shared` */
	case KVT_LIST_TABLE:
		if (known_flags(client, request) & KVT_F_NO_LIST)
			return 0;
		/* The whole page table, whose length only the daemon and kvt_seq know. */
		most = client->list.count / 4;
		return client->info.n_pages < most ? client->info.n_pages : most;
	case KVT_LIST_COUNTERS:
		return sizeof(struct kvt_counters) / sizeof(uint32_t);
	default:
		return 0;
	}
}

static void fill_entry(struct kvt_sqe *sqe, const struct kvt_request *request,
		       const struct kvt_slot *slot, uint32_t number, uint32_t n_keys,
		       uint32_t list_capacity)
{
	uint32_t takes = kvt_op_takes(request->op);
	bool fence = takes & KVT_TAKES_FENCE, lease = takes & KVT_TAKES_LEASE;

	*sqe = (struct kvt_sqe){
		.op = (uint8_t)request->op,
		.fence_slot = fence ? (uint8_t)request->fence.slot : 0,
		.flags = slot->flags,
		.namespace_id = request->namespace_id,
		.user_data = (uint64_t)slot->generation << 32 | number,
		.keys_offset = slot->keys.n ? slot->keys.at : 0,
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

/* True if the answer brings a lease or pages. */
static bool needs_pool(const struct kvt_request *request)
{
	return kvt_op_takes(request->op) & KVT_TAKES_LIST && request->op != KVT_OP_STATS &&
	       (request->op != KVT_OP_MATCH || request->flags & KVT_F_LOCK);
}

/* Refuse what an entry cannot express, and what a suspended client must not have. */
static int check_request(struct kvt_client *client, const struct kvt_request *request,
			 uint64_t key_words, uint64_t list)
{
	if (!client->has_session)
		return kvt_client_fail(client, -ENOTCONN, 0, client->info.rank > 0
				       ? "a member of a group has no ring: its rank 0 submits"
				       : "an observer has no session: connect without "
					 "KVT_HELLO_OBSERVE");
	if (KVT_UNLIKELY(client->suspended) && needs_pool(request))
		return kvt_client_awake(client);
	if (request->op > UINT8_MAX || request->flags > UINT16_MAX || request->reserved)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "op, flags or reserved field out of range");
	if (request->flags & KVT_F_ROOT_KEY ||
	    (request->root_key && (request->op == KVT_OP_LEAVE ||
				   !(kvt_op_takes(request->op) & KVT_TAKES_NAMESPACE))))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "%s: a root key belongs into root_key, and to MATCH, "
				       "INSERT, BEGIN or REMOVE", kvt_op_name((int)request->op));
	if (request->root_key && request->op == KVT_OP_REMOVE && !request->n_keys)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "remove: without keys it forgets the whole namespace: "
				       "give keys, or no root key");
	if (request->op == KVT_OP_REMOVE && request->keys && !request->n_keys)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "remove: the array of keys is empty; keys NULL forgets the "
				       "whole namespace");
	if (kvt_op_takes(request->op) & KVT_TAKES_FENCE && request->fence.slot > KVT_FENCE_IDLE)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_FENCE, "%s: fence slot %u: %s",
				       kvt_op_name((int)request->op), request->fence.slot,
				       kvt_reason_text(KVT_REASON_FENCE));
	if (request->op == KVT_OP_EXTEND && request->n_pages && client->arena.base &&
	    client->arena.header->abi_minor < KVT_ABI_MINOR_LATENT)
		return kvt_client_fail(client, -ENOTSUP, 0, "extend: the daemon is older than this "
				       "library and takes no pages: extend by a count");
	if ((request->n_keys && !request->keys) || (request->n_pages && !request->pages))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "a count above 0 without its array");
	if (request->op == KVT_OP_INSERT &&
	    request->n_pages != request->n_keys >> client->page_shift)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "insert: %u keys are %u whole pages, but %u were given",
				       request->n_keys, request->n_keys >> client->page_shift,
				       request->n_pages);
	/* More pages than the pool has: the daemon would refuse, but no list holds its answer. */
	if (list > client->list.count && list >= client->info.n_pages && !request->list_capacity &&
	    (request->op == KVT_OP_ALLOC || request->op == KVT_OP_EXTEND)) {
		kvt_client_fail(client, -ENOSPC, KVT_REASON_TOO_LARGE,
				"%s: ENOSPC: %s (%llu pages needed, the pool has %u)",
				kvt_op_name((int)request->op),
				kvt_reason_text(KVT_REASON_TOO_LARGE), (unsigned long long)list,
				client->info.n_pages - 1);
		client->error.needed = (uint32_t)list; /* request->arg */
		client->error.available = client->info.n_pages - 1;
		return -ENOSPC;
	}
	if (key_words > client->keys.count || list > client->list.count)
		return kvt_client_fail(client, -E2BIG, 0,
				       "%s needs %llu key and %llu list words, the areas have %u "
				       "and %u: connect with larger keys_count or list_count",
				       kvt_op_name((int)request->op),
				       (unsigned long long)key_words, (unsigned long long)list,
				       client->keys.count, client->list.count);
	return 0;
}

/* BEGIN with NO_WAIT may have two answers. The first, "not now", gets a slot of its own. */
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

	/* A full counter wakes too (EAGAIN). Waiting reports a closed one: no daemon. */
	while (write(client->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static bool two_answers(const struct kvt_request *request)
{
	return request->op == KVT_OP_BEGIN && (request->flags & KVT_F_NO_WAIT);
}

static bool has_room(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t left = gives_back(kvt_op_takes(request->op)) ? 1 : 2 + client->ring.cq_mask / 2;

	left += two_answers(request);
	return client->n_free >= left && client->n_flying <= client->ring.cq_mask &&
	       kvt_ring_sq_space(&client->ring) > 0;
}

/* True if the entry waits for a fence word whose raise rings the doorbell. */
static bool rung_later(const struct kvt_client *client, const struct kvt_sqe *sqe)
{
	return sqe->fence_value && kvt_load_relaxed(&client->ring.header->raises_ring) &&
	       kvt_load_relaxed(&client->ring.fences[sqe->fence_slot].value) < sqe->fence_value;
}

/* Submit one entry. `waits`: the caller waits for the answer, and a refusal comes before the fence.
 * -EAGAIN without a text: no room; the caller decides what that means. */
static int submit(struct kvt_client *client, const struct kvt_request *request, uint32_t state,
		  bool waits, uint32_t *ret_number)
{
	bool insert = request->op == KVT_OP_INSERT;
	bool pages = kvt_op_takes(request->op) & KVT_TAKES_PAGES;
	uint32_t n_keys = pages ? request->n_pages : request->n_keys;
	uint32_t flags = known_flags(client, request), head = kvt_root_key_words(flags);
	uint64_t key_words = (uint64_t)head + n_keys + (insert ? request->n_pages : 0);
	uint64_t list = list_words(client, request);
	struct kvt_slot *slot;
	struct kvt_sqe sqe;
	uint32_t number;
	bool asleep;
	int rc = check_request(client, request, key_words, list);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	number = client->free_slot;
	slot = &client->slots[number];
	if (KVT_UNLIKELY(!has_room(client, request)))
		goto no_room;
	if (KVT_UNLIKELY(!kvt_area_take(&client->keys, (uint32_t)key_words, &slot->keys)))
		goto no_room;
	if (KVT_UNLIKELY(!kvt_area_take(&client->list, (uint32_t)list, &slot->list))) {
		kvt_area_give(&client->keys, slot->keys);
		goto no_room;
	}
	slot_take(client);
	if (two_answers(request))
		take_twin(client, slot, request);
	client->n_flying++;
	slot->state = (uint8_t)state;
	slot->op = (uint8_t)request->op;
	slot->flags = (uint16_t)flags;
	slot->user_data = request->user_data;
	slot->fence = request->fence;
	slot->seq = NULL;
	slot->n_pages = insert ? request->n_pages : 0;
	slot->pages_at = slot->keys.at + head + n_keys;
	memcpy(client->ring.keys + slot->keys.at, &request->root_key, head * sizeof(uint32_t));
	if (n_keys)
		memcpy(client->ring.keys + slot->keys.at + head,
		       pages ? request->pages : request->keys, n_keys * sizeof(uint32_t));
	if (slot->n_pages)
		memcpy(client->ring.keys + slot->pages_at, request->pages,
		       slot->n_pages * sizeof(uint32_t));
	if (request->op == KVT_OP_BEGIN && begin_table(client, request) < list)
		client->ring.list[slot->list.at + begin_table(client, request)] = 0;
	if (request->op == KVT_OP_LEAVE && request->namespace_id < client->n_opened)
		client->opened[request->namespace_id].open = false;
	kvt_client_step(client, KVT_STEP_KEYS_WRITTEN);
	fill_entry(&sqe, request, slot, number, n_keys, (uint32_t)list);
	if (sqe.fence_value && sqe.fence_value > client->awaited[sqe.fence_slot])
		client->awaited[sqe.fence_slot] = sqe.fence_value;
	kvt_ring_sq_put(&client->ring, &sqe);
	kvt_client_step(client, KVT_STEP_ENTRY_PUT);
	asleep = kvt_ring_sq_publish(&client->ring);
	kvt_client_step(client, KVT_STEP_TAIL_PUBLISHED);
	if (asleep && (waits || !rung_later(client, &sqe)))
		ring_doorbell(client);
	kvt_client_step(client, KVT_STEP_SUBMITTED);
	*ret_number = number;
	return 0;

no_room:
	kvt_client_kick(client); /* entries behind fences did not ring */
	return -EAGAIN;
}

/* ---------------------------------------------------------------- answers */

#define WORD(word) result->word = words->word;
#define UNUSED(n)
#define ANSWER(NAME, name, takes, flags, list, answer)                                   \
	case KVT_OP_##NAME: {                                                             \
		const struct kvt_answer_##name *words = &cqe->name;                       \
		(void)words;                                                              \
		answer                                                                    \
		break;                                                                    \
	}

void kvt_client_decode_answer(struct kvt_result *result, const struct kvt_cqe *cqe)
{
	if (cqe->flags & KVT_CQE_ASYNC) {
		result->matched = cqe->notice.matched;
		result->state = cqe->notice.state;
		return;
	}
	switch (result->op) {
		KVT_OPS(ANSWER, WORD, UNUSED)
	default:
		break;
	}
	if (result->op == KVT_OP_COMMIT)
		result->known = cqe->positions;
	else if (result->op == KVT_OP_INSERT)
		result->duplicates = cqe->insert.n_twins;
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
			result->available = cqe->refused.number;
			result->needed = cqe->refused.needed;
		} else if (cqe->result == -ENOBUFS || cqe->result == -EDQUOT ||
			   cqe->reason == KVT_REASON_NAMESPACE_HELD) {
			result->needed = cqe->refused.number;
		} else if (cqe->reason == KVT_REASON_ANNOUNCED) {
			result->announced = cqe->refused.number;
		} else {
			result->next = cqe->refused.number;
		}
		return 0;
	}
	if (slot->op != KVT_OP_COMMIT)
		result->handle =
			(struct kvt_handle){ cqe->node, cqe->generation, cqe->positions };
	result->lease = (struct kvt_lease){ cqe->lease, cqe->lease_generation };
	kvt_client_decode_answer(result, cqe);
	n_list = kvt_op_takes(slot->op) & KVT_TAKES_LIST ? cqe->n_list : 0;
	if (KVT_UNLIKELY(n_list > slot->list.n || result->n_twins > n_list / 2))
		return -EPROTO;
	/* Behind the table, if there was room; a daemon of ABI 2.2 leaves the 0. */
	if (slot->op == KVT_OP_BEGIN && n_list < slot->list.n)
		result->shared = client->ring.list[slot->list.at + n_list];
	result->twins = client->ring.list + slot->list.at;
	result->pages = result->twins + 2 * (size_t)result->n_twins;
	result->n_pages = n_list - 2 * result->n_twins;
	return 0;
}

/* The answer has left the CQ. Keep the slot only for its list. */
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
			"the daemon answered no open request: its ring is damaged");
	return kvt_client_lost_error(client);
}

/* Pages that a late INSERT did not take: all if it failed, else those with cached twins. The caller
 * gave them up when its deadline passed, so the library frees them. */
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

/* Build the next request that undoes an abandoned answer, and mark it as done. False: nothing left.
 * The caller never saw these leases and pages, so no fence is needed; those of INSERT keep theirs.
 */
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

/* Give back all of an abandoned answer. True: the slot is free; false: no room yet. */
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
		if (submit(client, &request, KVT_SLOT_SILENT, false, &undoing) == -EAGAIN) {
			slot->op = before.op;
			slot->flags = before.flags;
			return false;
		}
		before.flags = slot->flags;
	}
	slot_free(client, number);
	return true;
}

/* Retry what found no room to be given back. */
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

		if (submit(client, &request, KVT_SLOT_SILENT, false, &number) == -EAGAIN)
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

/* Hand an asynchronous answer to its sequence and free the slot. */
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

/* Handle an answer after its deadline: update the sequence, give the rest back. */
static void take_late(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_result result;

	/* Not in undo(): a sequence that waits for its table must not wait for room. */
	if (slot->seq && decode(client, slot, cqe, &result) == 0)
		kvt_seq_late(slot->seq, &result);
	slot->seq = NULL;
	slot->cqe = *cqe;
	slot->state = KVT_SLOT_UNDO;
	list_push(client, &client->undo, number);
	undo_waiting(client);
}

/* Take one answer from the CQ. Returns the slot of an answer for the caller, 0 for one of the
 * library's own, -EPROTO for an impossible one. */
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
		if (cqe->reason == KVT_REASON_ANNOUNCED) { /* the notice follows */
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
	KVT_ASSERT(client->slots[number].state == KVT_SLOT_FLYING ||
		   client->slots[number].state == KVT_SLOT_SPARE);
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

uint32_t kvt_client_unanswered(const struct kvt_client *client)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i < client->n_slots; i++) {
		const struct kvt_slot *slot = &client->slots[i];
		bool notice = slot->op == KVT_OP_BEGIN && slot->flags & KVT_F_NO_WAIT &&
			      !slot->twin;

		n += slot->state == KVT_SLOT_ABANDONED || slot->state == KVT_SLOT_UNDO ||
		     slot->state == KVT_SLOT_SILENT || slot->state == KVT_SLOT_AHEAD ||
		     (slot->state == KVT_SLOT_FLYING && !notice);
	}
	for (const struct kvt_seq *seq = client->ending; seq; seq = seq->next_free)
		n++;
	return n;
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
	rc = submit(client, request, state, false, ret_number);
	if (KVT_LIKELY(rc != -EAGAIN))
		return rc;
	/* Available answers hold key space that is no longer needed. */
	rc = kvt_client_take_ready(client);
	if (rc != 0)
		return rc;
	rc = submit(client, request, state, false, ret_number);
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

int kvt_client_submit_silently(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t number;

	return submit_now(client, request, KVT_SLOT_SILENT, &number);
}

static int wait_failed(struct kvt_client *client, int rc)
{
	if (rc != -ETIMEDOUT)
		return kvt_client_lost_error(client);
	return kvt_client_fail(client, rc, 0,
			       "no answer within %lld ms: the daemon is stopped or busy, or a "
			       "fence has not been reached",
			       (long long)(client->timeout_ns / 1000000));
}

/* Submit; wait for room if other operations hold it. */
static int submit_waiting(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_wait *wait, uint32_t *ret_number)
{
	for (;;) {
		int rc = submit(client, request, KVT_SLOT_FLYING, true, ret_number);

		if (KVT_LIKELY(rc != -EAGAIN))
			return rc;
		if (client->n_flying == 0)
			return no_room(client); /* only the caller can make room */
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

	KVT_ASSERT(slot->state == KVT_SLOT_FLYING && !slot->seq);
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

/* A request as it was before it was shortened. */
struct whole {
	struct kvt_request request;
	int64_t begun_ns;
	bool given; /* the handle is the caller's: if it is stale, a probe finds what is left */
};

/* Send more keys, or all. A BEGIN that has waited waits for the rest of its time only. Returns true
 * if they may turn out to be too few again. */
static bool lengthen(struct kvt_client *client, struct whole *whole, struct kvt_request *request)
{
	int64_t waited_ms = (kvt_client_now_ns() - whole->begun_ns) / 1000000;
	bool given = whole->given;

	*request = whole->request;
	if (request->ttl_ms)
		request->ttl_ms = waited_ms < request->ttl_ms ?
					  request->ttl_ms - (uint32_t)waited_ms :
					  1;
	whole->given = false;
	return given && kvt_client_shorten(client, request);
}

/* `whole`: of a shortened request; else NULL. */
static int call(struct kvt_client *client, const struct kvt_request *request,
		struct whole *whole, struct kvt_seq *seq, struct kvt_result *ret_result)
{
	struct kvt_wait wait = { .started = false };
	struct kvt_request longer, rest;
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
		if (ret_result->reason == KVT_REASON_HANDLE_STALE && whole) {
			whole = lengthen(client, whole, &rest) ? whole : NULL;
			request = &rest;
			continue;
		}
		if (ret_result->error != -ENOBUFS || request->list_capacity != 0 ||
		    ret_result->needed == 0 || ret_result->needed > client->list.count)
			return kvt_client_fail_result(client, ret_result);
		/* The answer did not fit and nothing was done: ask again with more room. */
		longer = *request;
		longer.list_capacity = ret_result->needed;
		request = &longer;
	}
}

int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result)
{
	return call(client, request, NULL, seq, ret_result);
}

int kvt_client_call_known(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_handle start, struct kvt_result *ret_result)
{
	struct kvt_request rest;
	struct whole whole;

	if (request->n_keys < KVT_PROBE_KEYS && start.positions == 0)
		return call(client, request, NULL, NULL, ret_result);
	rest = *request;
	whole.given = kvt_client_shorten_to(client, &rest, start);
	if (!whole.given && !kvt_client_shorten(client, &rest))
		return call(client, request, NULL, NULL, ret_result);
	whole.request = *request;
	whole.begun_ns = request->ttl_ms ? kvt_client_now_ns() : 0;
	return call(client, &rest, &whole, NULL, ret_result);
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
		kvt_client_drain(client);
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
	/* A caller that slept on both descriptors may have been woken by the control socket. */
	if (n == 0 && rc == 0 && slept)
		kvt_client_look(client);
	else if (n == 0 && rc == 0)
		kvt_client_look_now_and_then(client);
	if (n == 0 && rc == 0 && client->dead)
		rc = kvt_client_lost_error(client);
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
	/* A copy of a released result has an older generation. */
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

void kvt_client_raise_silently(struct kvt_client *client)
{
	if (!kvt_load_relaxed(&client->ring.header->raises_ring))
		return;
	kvt_store_relaxed(&client->ring.header->raises_ring, 0);
	kvt_client_kick(client); /* it may sleep */
}
