/* SPDX-License-Identifier: Apache-2.0 */

/* Entries: what an operation asks for, written into the ring. */

#include "kvtrunk_operations.h"
#include "libclient/submit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "libclient/slot.h"
#include "libclient/steps.h"

/* Arguments of an operation, and their sizes in the areas, in words. */
struct words {
	uint32_t takes;   /* KVT_TAKES_ */
	uint32_t flags;   /* of the entry */
	uint64_t sides;   /* of the side pages and their number, which come first */
	uint32_t head;    /* of the root key, which comes first, too */
	uint32_t n_keys;
	uint32_t n_pages; /* INSERT: pages behind the keys */
	uint64_t list;    /* room for the answer */
	const uint32_t *keys; /* or pages, of an operation that has no keys */
};

static uint64_t key_words(const struct words *words)
{
	return words->sides + words->head + words->n_keys + words->n_pages;
}

#define LIST_SIZE(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = (list),
static const uint8_t list_sizes[KVT_OP_COUNT] = { KVT_OPS(LIST_SIZE, , ) };

/* Pages in the table of a BEGIN. */
static uint64_t begin_table(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t page = client->info.page_size;

	return ((uint64_t)request->handle.positions + request->n_keys + request->arg + page - 1) /
	       page;
}

static uint32_t entry_flags(const struct kvt_request *request)
{
	bool rooted = request->root_key && request->handle.positions == 0;

	return request->flags | (rooted ? KVT_F_ROOT_KEY : 0u) |
	       (request->n_sides ? KVT_F_SIDES : 0u);
}

uint64_t kvt_side_words_of(const struct kvt_client *client, uint64_t positions)
{
	uint64_t pages = positions / client->info.page_size, words = 0;

	for (uint32_t kind = 0; kind < client->info.n_sides; kind++)
		words += pages < client->info.side_pages[kind] ? pages :
								 client->info.side_pages[kind];
	return words;
}

/* List words that are enough for any answer. */
static uint64_t list_words(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t page = client->info.page_size;
	uint64_t keys_pages = request->n_keys / page, pages, most;

	if (request->list_capacity)
		return request->list_capacity;
	switch (request->op < KVT_OP_COUNT ? list_sizes[request->op] : KVT_LIST_NONE) {
	case KVT_LIST_KEYS:
		return request->flags & KVT_F_LOCK ?
			       keys_pages + (request->handle.positions / page) :
			       0;
	case KVT_LIST_HANDLE:
		return request->handle.positions / page;
	case KVT_LIST_ARG:
		most = client->info.n_pages - 1;
		return request->flags & KVT_F_SHORTER && request->arg > most ? most : request->arg;
	case KVT_LIST_TWINS:
		return 2 * keys_pages +
		       (request->flags & KVT_F_LOCK ?
				keys_pages + (request->handle.positions / page) :
				0);
	case KVT_LIST_BEGUN:
		pages = begin_table(client, request);
		if (pages >= client->info.n_pages)
			return 1; /* refused: too large */
		pages += kvt_side_words_of(client, pages * page);
		return pages + (pages < client->list.count); /* a word for `shared` */
	case KVT_LIST_TABLE:
		if (entry_flags(request) & KVT_F_NO_LIST)
			return request->n_sides;
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
		       const struct kvt_slot *slot, uint32_t number, const struct words *words)
{
	bool fence = words->takes & KVT_TAKES_FENCE, lease = words->takes & KVT_TAKES_LEASE;

	*sqe = (struct kvt_sqe){
		.op = (uint8_t)request->op,
		.fence_slot = fence ? (uint8_t)request->fence.slot : 0,
		.flags = slot->flags,
		.namespace_id = request->namespace_id,
		.user_data = (uint64_t)slot->generation << 32 | number,
		.keys_offset = slot->keys.n ? slot->keys.at : 0,
		.n_keys = words->n_keys,
		.list_offset = words->list ? slot->list.at : 0,
		.list_capacity = (uint32_t)words->list,
		.arg = request->op == KVT_OP_INSERT && slot->n_pages ? slot->pages_at :
								       request->arg,
		.node = lease ? request->lease.index : request->handle.node,
		.generation = lease ? request->lease.generation : request->handle.generation,
		.positions = request->handle.positions,
		.fence_value = fence ? (request->fence.slot != KVT_FENCE_IDLE ?
						request->fence.value : 0) :
			       words->takes & KVT_TAKES_POINT ? request->point : 0,
		.priority = words->takes & KVT_TAKES_MIN ? (int32_t)request->min_positions :
							   request->priority,
		.ttl_ms = request->ttl_ms,
	};
}

/* True if the answer brings a lease or pages. */
static bool needs_pool(const struct kvt_request *request, uint32_t takes)
{
	return takes & KVT_TAKES_LIST && request->op != KVT_OP_STATS &&
	       (request->op != KVT_OP_MATCH || request->flags & KVT_F_LOCK);
}

static int check_sides(struct kvt_client *client, const struct kvt_request *request)
{
	bool none = client->info.n_sides == 0;

	if (request->n_sides && (request->op != KVT_OP_COMMIT || none))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "%s: side pages are for COMMIT, and for a daemon with the "
				       "option sides", kvt_op_name((int)request->op));
	if (request->point && (request->op != KVT_OP_BEGIN || none))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "%s: a point is declared by BEGIN, and to a daemon with the "
				       "option sides", kvt_op_name((int)request->op));
	if (request->flags & KVT_F_SIDES)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "%s: side pages belong into sides",
				       kvt_op_name((int)request->op));
	return 0;
}

/* Refuse what an entry cannot express, and what a suspended client must not have. */
static int check_request(struct kvt_client *client, const struct kvt_request *request,
			 const struct words *words)
{
	uint64_t keys = key_words(words), list = words->list;
	int rc;

	if (!client->has_session)
		return kvt_client_fail(client, -ENOTCONN, 0, client->info.rank > 0
				       ? "a member of a group has no ring: its rank 0 submits"
				       : "an observer has no session: connect without "
					 "KVT_HELLO_OBSERVE");
	if (KVT_UNLIKELY(client->suspended) && needs_pool(request, words->takes))
		return kvt_client_awake(client);
	if (request->op > UINT8_MAX || request->flags > UINT16_MAX)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "op or flags out of range");
	rc = check_sides(client, request);
	if (rc)
		return rc;
	if (request->flags & KVT_F_ROOT_KEY ||
	    (request->root_key && (request->op == KVT_OP_LEAVE ||
				   !(words->takes & KVT_TAKES_NAMESPACE))))
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
	if (words->takes & KVT_TAKES_FENCE && request->fence.slot > KVT_FENCE_IDLE)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_FENCE, "%s: fence slot %u: %s",
				       kvt_op_name((int)request->op), request->fence.slot,
				       kvt_reason_text(KVT_REASON_FENCE));
	if ((request->n_keys && !request->keys) || (request->n_pages && !request->pages) ||
	    (request->n_sides && !request->sides))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "a count above 0 without its array");
	if (request->op == KVT_OP_INSERT &&
	    request->n_pages != request->n_keys / client->info.page_size)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "insert: %u keys are %u whole pages, but %u were given",
				       request->n_keys, request->n_keys / client->info.page_size,
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
	if (keys > client->keys.count || list > client->list.count)
		return kvt_client_fail(client, -E2BIG, 0,
				       "%s needs %llu key and %llu list words, the areas have %u "
				       "and %u: connect with larger keys_count or list_count",
				       kvt_op_name((int)request->op),
				       (unsigned long long)keys, (unsigned long long)list,
				       client->keys.count, client->list.count);
	return 0;
}

/* BEGIN with NO_WAIT may have two answers. The first, "not now", gets a slot of its own. */
static void take_twin(struct kvt_client *client, struct kvt_slot *slot,
		      const struct kvt_request *request)
{
	struct kvt_slot *twin;

	slot->twin = kvt_slot_take(client, 0, 0);
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

static bool two_answers(const struct kvt_request *request)
{
	return request->op == KVT_OP_BEGIN && (request->flags & KVT_F_NO_WAIT);
}

/* True if BEGINs that wait leave room for one more: half of each ring and area stays for what ends
 * their waits. Half of the SQ, too: if waiting BEGINs fill it, no answer tells when there is room
 * again. */
static bool may_wait(const struct kvt_client *client, const struct words *words)
{
	const struct kvt_waiting *waiting = &client->waiting;

	return waiting->n == 0 ||
	       (waiting->n < (client->ring.sq_mask + 1) / 2 &&
		waiting->n < (client->ring.cq_mask + 1) / 2 &&
		waiting->key_words + key_words(words) <= client->keys.count / 2 &&
		waiting->list_words + words->list <= client->list.count / 2);
}

/* The free slots that an entry needs. Results that the caller holds leave half a CQ to operations
 * that only give something back (deadlock). Answers to reap leave three slots. A call that waits
 * takes one, or two of a BEGIN with NO_WAIT; what it brings too late is given back with another. */
static bool has_slots(const struct kvt_client *client, const struct kvt_request *request,
		      uint32_t takes, enum kvt_slot_state state, bool waits)
{
	bool gives_back = takes & KVT_TAKES_FENCE && !(takes & KVT_TAKES_LIST);
	uint32_t held = gives_back ? 1 : 2 + client->ring.cq_mask / 2, least = 4;

	if (state == KVT_SLOT_SILENT)
		least = 1;
	else if (waits)
		least = gives_back ? 1 : 2;
	else
		held += 3;
	if (two_answers(request)) {
		held++;
		least++;
	}
	return client->n_free >= least &&
	       client->n_free + (waits ? client->done.n : 0) >= held;
}

static bool has_room(struct kvt_client *client, const struct kvt_request *request, uint32_t takes,
		     enum kvt_slot_state state, bool waits)
{
	return has_slots(client, request, takes, state, waits) &&
	       client->n_flying <= client->ring.cq_mask && kvt_ring_sq_space(&client->ring) > 0;
}

/* The value of its fence word that an entry waits for, 0: none. */
static uint64_t awaited_value(const struct kvt_sqe *sqe)
{
	return kvt_op_takes(sqe->op) & KVT_TAKES_FENCE ? sqe->fence_value : 0;
}

/* True if the entry waits for a fence word whose raise rings the doorbell. */
static bool rung_later(const struct kvt_client *client, const struct kvt_sqe *sqe)
{
	return awaited_value(sqe) && kvt_load_relaxed(&client->ring.header->raises_ring) &&
	       kvt_load_relaxed(&client->ring.fences[sqe->fence_slot].value) < sqe->fence_value;
}

static struct words count_words(const struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t takes = kvt_op_takes(request->op), flags = entry_flags(request);
	bool pages = takes & KVT_TAKES_PAGES;

	return (struct words){
		.takes = takes,
		.flags = flags,
		.sides = kvt_side_words(flags, request->n_sides),
		.head = kvt_root_key_words(flags),
		.n_keys = pages ? request->n_pages : request->n_keys,
		.n_pages = request->op == KVT_OP_INSERT ? request->n_pages : 0,
		.list = list_words(client, request),
		.keys = pages ? request->pages : request->keys,
	};
}

/* Take a slot and its ranges. Returns its number, 0: no room. */
static uint32_t take_slot(struct kvt_client *client, const struct kvt_request *request,
			  const struct words *words, enum kvt_slot_state state, bool waits)
{
	bool waiting = request->op == KVT_OP_BEGIN && request->flags & KVT_F_WAIT &&
		       request->ttl_ms;
	struct kvt_slot *slot;
	uint32_t number;

	if (KVT_UNLIKELY(!has_room(client, request, words->takes, state, waits)))
		return 0;
	if (waiting && !waits && !may_wait(client, words))
		return 0;
	number = kvt_slot_take(client, (uint32_t)key_words(words), (uint32_t)words->list);
	if (KVT_UNLIKELY(number == 0))
		return 0;
	slot = &client->slots[number];
	if (two_answers(request))
		take_twin(client, slot, request);
	client->n_flying++;
	if (waiting)
		kvt_slot_count_waiting(client, slot, true);
	slot->state = (uint8_t)state;
	slot->op = (uint8_t)request->op;
	slot->flags = (uint16_t)words->flags;
	slot->user_data = request->user_data;
	slot->fence = request->fence;
	slot->seq = NULL;
	slot->told = false;
	slot->waits = waiting;
	slot->n_pages = words->n_pages;
	slot->pages_at = slot->keys.at + (uint32_t)words->sides + words->head + words->n_keys;
	return number;
}

/* Write the slot's ranges. */
static void write_areas(struct kvt_client *client, const struct kvt_request *request,
			const struct kvt_slot *slot, const struct words *words)
{
	uint32_t *keys = client->ring.keys + slot->keys.at;

	if (words->sides) {
		*keys = request->n_sides;
		memcpy(keys + 1, request->sides, request->n_sides * sizeof(*request->sides));
		keys += words->sides;
	}
	memcpy(keys, &request->root_key, words->head * sizeof(*keys));
	if (words->n_keys)
		memcpy(keys + words->head, words->keys, words->n_keys * sizeof(*keys));
	if (words->n_pages)
		memcpy(client->ring.keys + slot->pages_at, request->pages,
		       words->n_pages * sizeof(*keys));
}

static void publish(struct kvt_client *client, const struct kvt_sqe *sqe, bool waits)
{
	bool asleep;

	if (awaited_value(sqe) && sqe->fence_value > client->awaited[sqe->fence_slot])
		client->awaited[sqe->fence_slot] = sqe->fence_value;
	kvt_ring_sq_put(&client->ring, sqe);
	kvt_client_step(client, KVT_STEP_ENTRY_PUT);
	asleep = kvt_ring_sq_publish(&client->ring);
	kvt_client_step(client, KVT_STEP_TAIL_PUBLISHED);
	if (asleep && (waits || !rung_later(client, sqe)))
		ring_doorbell(client);
	kvt_client_step(client, KVT_STEP_SUBMITTED);
}

int kvt_client_put(struct kvt_client *client, const struct kvt_request *request,
		   enum kvt_slot_state state, bool waits, uint32_t *ret_number)
{
	struct words words = count_words(client, request);
	struct kvt_sqe sqe;
	uint32_t number;
	int rc = check_request(client, request, &words);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	number = take_slot(client, request, &words, state, waits);
	if (KVT_UNLIKELY(number == 0)) {
		kvt_client_kick(client); /* entries behind fences did not ring */
		return -EAGAIN;
	}
	write_areas(client, request, &client->slots[number], &words);
	if (request->op == KVT_OP_LEAVE && request->namespace_id < client->n_opened)
		client->opened[request->namespace_id].open = false;
	kvt_client_step(client, KVT_STEP_KEYS_WRITTEN);
	fill_entry(&sqe, request, &client->slots[number], number, &words);
	publish(client, &sqe, waits);
	*ret_number = number;
	return 0;
}
