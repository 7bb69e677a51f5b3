/* SPDX-License-Identifier: Apache-2.0 */

/* Answers: what a completion says, and giving back what late ones bring. */

#include "kvtrunk_operations.h"
#include "kvtrunk_wire_segment.h"
#include "libclient/answer.h"

#include <string.h>

#include "libclient/area.h"
#include "libclient/fail.h"
#include "libclient/sides.h"
#include "libclient/slot.h"
#include "libclient/steps.h"
#include "libclient/submit.h"
#include "libclient/table.h"

#define SLOT_BITS 17 /* of kvt_result.slot; the rest are of the slot's generation */
_Static_assert(2 * (KVT_SEGMENT_BYTES_MAX / sizeof(struct kvt_cqe)) + 5 < 1u << SLOT_BITS,
	       "a slot's number fits beside its generation");

#define WORD(word) result->word = words->word;

void kvt_client_decode_answer(struct kvt_result *result, const struct kvt_cqe *cqe)
{
	if (cqe->flags & KVT_CQE_ASYNC) {
		result->matched = cqe->notice.matched;
		result->state = cqe->notice.state;
		return;
	}
	switch (result->op) {
		KVT_OPS(KVT_ANSWER_CASE, WORD, KVT_NO_WORD)
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
	const uint32_t *list = slot->copy ? slot->copy : client->ring.list + slot->list.at;
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
	if (KVT_UNLIKELY(client->info.n_sides > 0) && slot->op == KVT_OP_BEGIN &&
	    result->lease.index) {
		uint64_t behind = 1 + kvt_side_words_of(client, result->reusable);

		if (n_list < behind)
			return -EPROTO;
		n_list -= (uint32_t)behind;
		result->n_sides = (uint32_t)behind - 1;
		result->sides = list + n_list + 1;
	}
	/* Behind the table, if there was room. */
	if (slot->op == KVT_OP_BEGIN && n_list < slot->list.n)
		result->shared = list[n_list];
	result->twins = list;
	result->pages = result->twins + 2 * (size_t)result->n_twins;
	result->n_pages = n_list - 2 * result->n_twins;
	return 0;
}

/* The answer has left the CQ. Keep the slot only for its list. */
static void finish(struct kvt_client *client, uint32_t number, struct kvt_result *result)
{
	struct kvt_slot *slot = &client->slots[number];

	if (result->n_pages == 0 && result->n_twins == 0) {
		result->pages = result->twins = result->sides = NULL;
		kvt_slot_free(client, number);
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
		kvt_slot_free(client, number);
		return true;
	}
	while (undo_request(client, slot, &result, &request)) {
		kvt_client_step(client, KVT_STEP_GIVE_BACK);
		if (kvt_client_put(client, &request, KVT_SLOT_SILENT, false, &undoing) == -EAGAIN) {
			slot->op = before.op;
			slot->flags = before.flags;
			return false;
		}
		before.flags = slot->flags;
	}
	kvt_slot_free(client, number);
	return true;
}

/* Submit what the end of a sequence still needs. True: all, and the handle is free. */
static bool submit_end(struct kvt_client *client, struct kvt_seq *seq)
{
	struct kvt_request request = { .op = KVT_OP_END, .lease = seq->lease,
				       .fence = seq->fence };
	uint32_t number;

	if (seq->lease.index) {
		if (kvt_client_put(client, &request, KVT_SLOT_SILENT, false, &number) == -EAGAIN)
			return false;
		seq->lease.index = 0;
	}
	if (seq->n_ahead + seq->n_late) /* commits that say which side pages are left */
		return false;
	while (kvt_seq_free_sides(seq, &request)) {
		if (kvt_client_put(client, &request, KVT_SLOT_SILENT, false, &number) == -EAGAIN)
			return false;
		seq->n_left -= request.n_pages;
	}
	kvt_seq_recycle(seq);
	return true;
}

void kvt_answer_retry(struct kvt_client *client)
{
	while (client->undo.first) {
		uint32_t number = client->undo.first, next = client->slots[number].next;

		if (!undo(client, number))
			return;
		client->undo.first = next;
		client->undo.n--;
		if (!next)
			client->undo.last = 0;
	}
	for (struct kvt_seq **at = &client->ending; *at;) {
		struct kvt_seq *seq = *at, *next = seq->next_free;

		if (submit_end(client, seq))
			*at = next;
		else
			at = &seq->next_free;
	}
}

void kvt_client_end_later(struct kvt_client *client, struct kvt_seq *seq)
{
	seq->next_free = client->ending;
	client->ending = seq;
	kvt_answer_retry(client);
}

/* Tell a sequence the answer of its slot. */
static void tell(const struct kvt_slot *slot, struct kvt_result *result,
		 void (*take)(struct kvt_seq *seq, const struct kvt_result *result))
{
	kvt_seq_sides_answered(slot->seq, slot, result);
	take(slot->seq, result);
}

/* Hand an asynchronous answer to its sequence. Returns the slot of one that is told, too, with the
 * slot as if nothing but kvt_reap() waited for it; else frees the slot: 0, -EPROTO. */
static int take_ahead(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_result result;
	int rc = 0;

	if (KVT_UNLIKELY(decode(client, slot, cqe, &result) != 0))
		rc = broken_answer(client);
	else if (slot->seq)
		tell(slot, &result, slot->told ? kvt_seq_answered_told : kvt_seq_answered);
	slot->seq = NULL;
	if (rc == 0 && slot->told) {
		slot->state = KVT_SLOT_FLYING;
		return (int)number;
	}
	kvt_slot_free(client, number);
	return rc;
}

/* Handle an answer after its deadline: update the sequence, give the rest back. */
static void take_late(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	struct kvt_slot *slot = &client->slots[number];
	struct kvt_result result;

	/* Not in undo(): a sequence that waits for its table must not wait for room. */
	if (slot->seq && decode(client, slot, cqe, &result) == 0)
		tell(slot, &result, kvt_seq_late);
	slot->seq = NULL;
	slot->cqe = *cqe;
	slot->state = KVT_SLOT_UNDO;
	kvt_slot_push(client, &client->undo, number);
}

int kvt_answer_take(struct kvt_client *client, struct kvt_cqe *cqe)
{
	struct kvt_slot *slot;
	uint32_t number;
	int rc = 0;

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
			kvt_slot_free(client, twin);
			return 0;
		}
		kvt_slot_free(client, twin);
	}
	client->n_flying--;
	if (slot->waits)
		kvt_slot_count_waiting(client, slot, false);
	if (KVT_LIKELY(slot->state == KVT_SLOT_FLYING || slot->state == KVT_SLOT_AHEAD))
		kvt_client_step(client, KVT_STEP_AFTER_NOP + slot->op);
	if (KVT_LIKELY(slot->state == KVT_SLOT_FLYING))
		return (int)number;
	switch (slot->state) {
	case KVT_SLOT_AHEAD:
		rc = take_ahead(client, number, cqe);
		break;
	case KVT_SLOT_SILENT:
		kvt_slot_free(client, number);
		break;
	case KVT_SLOT_ABANDONED:
		take_late(client, number, cqe);
		break;
	default:
		return broken_answer(client);
	}
	if (KVT_UNLIKELY(client->undo.first || client->ending))
		kvt_answer_retry(client);
	return rc;
}

void kvt_answer_keep(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe)
{
	KVT_ASSERT(client->slots[number].state == KVT_SLOT_FLYING ||
		   client->slots[number].state == KVT_SLOT_SPARE);
	client->slots[number].cqe = *cqe;
	client->slots[number].state = KVT_SLOT_DONE;
	kvt_area_give(&client->keys, client->slots[number].keys);
	client->slots[number].keys.n = 0;
	kvt_slot_push(client, &client->done, number);
}

bool kvt_answer_leave_areas(struct kvt_client *client)
{
	bool moved = false;

	for (uint32_t i = client->done.first; i; i = client->slots[i].next)
		moved |= kvt_slot_copy_list(client, &client->slots[i]);
	return moved;
}

int kvt_answer_keep_next(struct kvt_client *client)
{
	struct kvt_cqe cqe;
	int number = kvt_answer_take(client, &cqe);

	if (number > 0)
		kvt_answer_keep(client, (uint32_t)number, &cqe);
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
		rc = kvt_answer_keep_next(client);
	return rc;
}

int kvt_answer_deliver(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe,
		   struct kvt_result *ret_result)
{
	if (KVT_UNLIKELY(decode(client, &client->slots[number], cqe, ret_result) != 0)) {
		kvt_slot_free(client, number);
		return broken_answer(client);
	}
	finish(client, number, ret_result);
	return 0;
}

void kvt_result_release(struct kvt_client *client, struct kvt_result *result)
{
	uint32_t name = result->slot, number = name & ((1u << SLOT_BITS) - 1);
	const struct kvt_slot *slot = &client->slots[number];

	if (number == 0 || number >= client->n_slots)
		return;
	result->slot = 0;
	result->pages = result->twins = result->sides = NULL;
	/* A copy of a released result has an older generation. */
	if (slot->state == KVT_SLOT_HELD &&
	    ((uint32_t)slot->generation << SLOT_BITS | number) == name)
		kvt_slot_free(client, number);
}
