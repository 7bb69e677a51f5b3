/* SPDX-License-Identifier: Apache-2.0 */

#include "libclient/slot.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/area.h"

void kvt_slot_push(struct kvt_client *client, struct kvt_slot_list *list, uint32_t number)
{
	KVT_ASSERT(number > 0 && number < client->n_slots);
	KVT_ASSERT(!list->first == !list->last);
	client->slots[number].next = 0;
	if (list->last)
		client->slots[list->last].next = number;
	else
		list->first = number;
	list->last = number;
	list->n++;
}

uint32_t kvt_slot_pop(struct kvt_client *client, struct kvt_slot_list *list)
{
	uint32_t number = list->first;

	if (number) {
		list->first = client->slots[number].next;
		if (!list->first)
			list->last = 0;
		list->n--;
	}
	return number;
}

uint32_t kvt_slot_take(struct kvt_client *client, uint32_t key_words, uint32_t list_words)
{
	uint32_t number = client->free_slot;
	struct kvt_slot *slot = &client->slots[number];

	KVT_ASSERT(number > 0 && client->n_free > 0);
	if (KVT_UNLIKELY(!kvt_area_take(&client->keys, key_words, &slot->keys)))
		return 0;
	if (KVT_UNLIKELY(!kvt_area_take(&client->list, list_words, &slot->list))) {
		kvt_area_give(&client->keys, slot->keys);
		return 0;
	}
	client->free_slot = slot->next;
	client->n_free--;
	slot->twin = 0;
	return number;
}

void kvt_slot_count_waiting(struct kvt_client *client, const struct kvt_slot *slot, bool waits)
{
	struct kvt_waiting *waiting = &client->waiting;

	waiting->n += waits ? 1 : -1u;
	waiting->key_words += waits ? slot->keys.n : -(uint64_t)slot->keys.n;
	waiting->list_words += waits ? slot->list.n : -(uint64_t)slot->list.n;
}

bool kvt_slot_copy_list(struct kvt_client *client, struct kvt_slot *slot)
{
	KVT_KEEP_ERRNO;
	/* Behind the list of a BEGIN is its `shared`. */
	uint32_t n = slot->cqe.n_list < slot->list.n ? slot->cqe.n_list + 1 : slot->list.n;

	if (slot->list.n == 0 || slot->copy)
		return false;
	slot->copy = malloc(n * sizeof(*slot->copy));
	if (!slot->copy)
		return false;
	memcpy(slot->copy, client->ring.list + slot->list.at, n * sizeof(*slot->copy));
	kvt_area_give(&client->list, slot->list);
	slot->list.n = n;
	return true;
}

static void free_copy(struct kvt_slot *slot)
{
	KVT_KEEP_ERRNO;

	free(slot->copy);
	slot->copy = NULL;
}

void kvt_slot_free(struct kvt_client *client, uint32_t number)
{
	struct kvt_slot *slot = &client->slots[number];

	KVT_ASSERT(number > 0 && slot->state != KVT_SLOT_FREE);
	kvt_area_give(&client->keys, slot->keys);
	if (KVT_UNLIKELY(slot->copy != NULL))
		free_copy(slot);
	else
		kvt_area_give(&client->list, slot->list);
	slot->keys.n = slot->list.n = 0;
	slot->state = KVT_SLOT_FREE;
	slot->generation++;
	slot->next = client->free_slot;
	client->free_slot = number;
	client->n_free++;
}
