/* SPDX-License-Identifier: Apache-2.0 */
#include "store/slots.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/assert.h"
#include "store/crc32c.h"

_Static_assert(sizeof(struct kvt_slot_name) == 32, "KVT_SLOTS_GROUP of them are a block");

static struct kvt_slot_name *name_of(const struct kvt_slots *slots, uint32_t slot)
{
	KVT_ASSERT(slot >= 1 && slot <= slots->n);
	return &slots->names[slot - 1];
}

/* A dropped page stays in the table until its slot is used again. */
bool kvt_slots_has(const struct kvt_slots *slots, uint32_t slot)
{
	uint64_t number = name_of(slots, slot)->number;

	return number >= slots->first && number != KVT_SLOT_FAILED;
}

static bool counts(const void *slots, uint32_t slot)
{
	return kvt_slots_has(slots, slot);
}

uint32_t kvt_slots_groups(const struct kvt_slots *slots)
{
	return (slots->n + KVT_SLOTS_GROUP - 1) / KVT_SLOTS_GROUP;
}

uint32_t kvt_slots_group(uint32_t slot)
{
	return (slot - 1) / KVT_SLOTS_GROUP;
}

static uint64_t bytes_of_names(const struct kvt_slots *slots)
{
	return (uint64_t)kvt_slots_groups(slots) * KVT_SLOTS_GROUP * sizeof(struct kvt_slot_name);
}

int kvt_slots_init(struct kvt_slots *slots, uint32_t n)
{
	KVT_ASSERT(n >= 1 && n <= KVT_SLOTS_MAX);
	*slots = (struct kvt_slots){ .n = n, .next = 1, .first = 1, .next_number = 1 };
	slots->names = mmap(NULL, bytes_of_names(slots), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (slots->names == MAP_FAILED) {
		slots->names = NULL;
		return -ENOMEM;
	}
	slots->table = (struct kvt_hash){
		.keys = slots->names->key, .stride = sizeof(struct kvt_slot_name),
		.counts = counts, .self = slots,
	};
	slots->back = calloc(n / 64 + 1, sizeof(*slots->back));
	return slots->back ? kvt_hash_init(&slots->table, n) : -ENOMEM;
}

void kvt_slots_destroy(struct kvt_slots *slots)
{
	if (slots->names)
		munmap(slots->names, bytes_of_names(slots));
	kvt_hash_destroy(&slots->table);
	free(slots->back);
	*slots = (struct kvt_slots){ .names = NULL };
}

/* ---- pages */

uint32_t kvt_slots_find(const struct kvt_slots *slots, const struct kvt_chain *page)
{
	return kvt_hash_find(&slots->table, page->digest);
}

struct kvt_chain kvt_slots_page(const struct kvt_slots *slots, uint32_t slot)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest, name_of(slots, slot)->key, KVT_CHAIN_KEY_BYTES);
	return page;
}

uint32_t kvt_slots_time(const struct kvt_slots *slots, uint32_t slot)
{
	return name_of(slots, slot)->time;
}

void kvt_slots_use(struct kvt_slots *slots, uint32_t slot)
{
	KVT_ASSERT(kvt_slots_has(slots, slot));
	slots->back[slot / 64] |= 1ull << slot % 64;
}

uint32_t kvt_slots_step(struct kvt_slots *slots)
{
	uint32_t slot = slots->next;
	bool came_back = slots->back[slot / 64] >> slot % 64 & 1;

	slots->next = slot == slots->n ? 1 : slot + 1;
	slots->back[slot / 64] &= ~(1ull << slot % 64);
	if (name_of(slots, slot)->number == KVT_SLOT_FAILED)
		return 0;
	return came_back && kvt_slots_has(slots, slot) ? 0 : slot;
}

void kvt_slots_forget(struct kvt_slots *slots, uint32_t slot)
{
	struct kvt_slot_name *name = name_of(slots, slot);

	if (!name->number || name->number == KVT_SLOT_FAILED)
		return;
	kvt_hash_remove(&slots->table, slot);
	slots->n_found -= kvt_slots_has(slots, slot);
	*name = (struct kvt_slot_name){ .number = 0 };
}

void kvt_slots_fail(struct kvt_slots *slots, uint32_t slot)
{
	kvt_slots_forget(slots, slot);
	name_of(slots, slot)->number = KVT_SLOT_FAILED;
	slots->n_failed++;
}

void kvt_slots_publish(struct kvt_slots *slots, uint32_t slot, const struct kvt_chain *page,
		       uint64_t number, uint32_t time)
{
	struct kvt_slot_name *name = name_of(slots, slot);

	KVT_ASSERT(!name->number && number >= slots->first);
	*name = (struct kvt_slot_name){ .number = number, .time = time };
	memcpy(name->key, page->digest, sizeof(name->key));
	kvt_hash_add(&slots->table, slot);
	kvt_scan_note(slots->scans, slot);
	slots->n_found++;
}

bool kvt_slots_counts(const struct kvt_slots *slots, uint64_t number, uint32_t time)
{
	bool is_cut = number < slots->first;

	for (uint32_t i = 0; i < KVT_SLOTS_CUTS; i++)
		is_cut |= number < slots->cuts[i].before && (!time || time >= slots->cuts[i].since);
	return !is_cut;
}

void kvt_slots_clear(struct kvt_slots *slots)
{
	slots->first = slots->next_number;
	slots->n_found = 0;
}

bool kvt_slots_scan(const struct kvt_slots *slots, struct kvt_scan *scan, uint32_t since)
{
	uint32_t looks = 0, slot;

	while ((slot = kvt_scan_look(scan, &looks)) != 0)
		if (kvt_slots_has(slots, slot) &&
		    (!kvt_slots_time(slots, slot) || kvt_slots_time(slots, slot) >= since))
			kvt_scan_add(scan, slot);
	return kvt_scan_is_done(scan);
}

void kvt_slots_cut_since(struct kvt_slots *slots, uint32_t since)
{
	struct kvt_slots_cut *cuts = slots->cuts;

	if (cuts[0].before && cuts[0].since < cuts[1].since)
		cuts[1].since = cuts[0].since;
	memmove(cuts, cuts + 1, (KVT_SLOTS_CUTS - 1) * sizeof(*cuts));
	cuts[KVT_SLOTS_CUTS - 1] = (struct kvt_slots_cut){ slots->next_number, since };
}

/* ---- the array in the file */

static uint32_t crc_of(const struct kvt_slot_name *name)
{
	return kvt_crc32c(0, name, offsetof(struct kvt_slot_name, crc));
}

void kvt_slots_seal(const struct kvt_slots *slots, uint32_t group,
		    struct kvt_slot_name ret_block[KVT_SLOTS_GROUP])
{
	memcpy(ret_block, &slots->names[(size_t)group * KVT_SLOTS_GROUP],
	       KVT_SLOTS_GROUP * sizeof(*ret_block));
	for (uint32_t i = 0; i < KVT_SLOTS_GROUP; i++)
		ret_block[i].crc = crc_of(&ret_block[i]);
}

void kvt_slots_check(struct kvt_slots *slots, uint32_t group)
{
	for (uint32_t i = 0; i < KVT_SLOTS_GROUP; i++) {
		struct kvt_slot_name *name = &slots->names[(size_t)group * KVT_SLOTS_GROUP + i];
		bool is_slot = (uint64_t)group * KVT_SLOTS_GROUP + i < slots->n;

		if (!is_slot || name->number == KVT_SLOT_FAILED || name->crc != crc_of(name))
			*name = (struct kvt_slot_name){ .number = 0 };
	}
}

uint64_t kvt_slots_youngest(const struct kvt_slots *slots, uint32_t group)
{
	uint64_t youngest = 0;

	for (uint32_t i = 0; i < KVT_SLOTS_GROUP; i++) {
		uint64_t number = slots->names[(size_t)group * KVT_SLOTS_GROUP + i].number;

		youngest = number > youngest ? number : youngest;
	}
	return youngest;
}

void kvt_slots_enter(struct kvt_slots *slots)
{
	uint64_t youngest = 0;

	for (uint32_t slot = 1; slot <= slots->n; slot++) {
		struct kvt_slot_name name = *name_of(slots, slot);
		struct kvt_chain page = kvt_slots_page(slots, slot);
		uint32_t other;

		*name_of(slots, slot) = (struct kvt_slot_name){ .number = 0 };
		if (!kvt_slots_counts(slots, name.number, name.time))
			continue;
		if (name.number > youngest) {
			youngest = name.number;
			slots->next = slot == slots->n ? 1 : slot + 1;
		}
		other = kvt_slots_find(slots, &page);
		if (other && name_of(slots, other)->number > name.number)
			continue;
		if (other)
			kvt_slots_forget(slots, other);
		kvt_slots_publish(slots, slot, &page, name.number, name.time);
	}
}
