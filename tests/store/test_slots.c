/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of a file against an array that is searched from end to end. Keys share their leading
 * bytes, so they collide in the table. */
#include <stdlib.h>
#include <string.h>

#include "store/slots.h"
#include "tests/lib/cases.h"

#define SLOTS 200u /* two groups, the second one not whole */
#define NAMES 300u

/* Few homes: four values of the first byte that decides. */
static struct kvt_chain name(uint32_t i)
{
	struct kvt_chain page = { { 0 } };

	page.digest[3] = (uint8_t)(i % 4 * 85);
	memcpy(page.digest + 8, &i, sizeof(i));
	return page;
}

/* The truth: slot of each name, name of each slot; 0: none. */
static uint32_t slot_of[NAMES], name_in[SLOTS + 1];
static bool came_back[SLOTS + 1], failed[SLOTS + 1];
static uint32_t next;

static void forget(uint32_t slot)
{
	if (name_in[slot])
		slot_of[name_in[slot]] = 0;
	name_in[slot] = 0;
}

static void check(const struct kvt_slots *slots)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i < NAMES; i++) {
		struct kvt_chain page = name(i), key = { { 0 } };

		assert_int_equal(kvt_slots_find(slots, &page), slot_of[i]);
		if (!slot_of[i])
			continue;
		key = kvt_slots_page(slots, slot_of[i]);
		assert_memory_equal(key.digest, page.digest, KVT_CHAIN_KEY_BYTES);
		n++;
	}
	assert_int_equal(slots->n_found, n);
}

/* Take the slot that the truth says is next, and check that it is. */
static uint32_t take(struct kvt_slots *slots)
{
	uint32_t slot, taken;

	do {
		bool passed = failed[next] || (came_back[next] && name_in[next]);

		slot = next;
		came_back[next] = false;
		next = next % SLOTS + 1;
		taken = kvt_slots_step(slots);
		assert_int_equal(taken, passed ? 0 : slot);
	} while (!taken);
	kvt_slots_forget(slots, slot);
	forget(slot);
	return slot;
}

static void put(struct kvt_slots *slots, uint32_t i)
{
	struct kvt_chain page = name(i);
	uint32_t slot;

	if (slot_of[i])
		return;
	slot = take(slots);
	kvt_slots_publish(slots, slot, &page, slots->next_number++, i);
	slot_of[i] = slot;
	name_in[slot] = i;
}

/* Write the names as a stop does, and read them as a start does. */
static void restart(struct kvt_slots *slots)
{
	struct kvt_slot_name blocks[2][KVT_SLOTS_GROUP];
	uint64_t first = slots->first, number = slots->next_number;
	struct kvt_slots_cut cuts[KVT_SLOTS_CUTS];
	uint64_t youngest = 0;

	for (uint32_t group = 0; group < 2; group++)
		kvt_slots_seal(slots, group, blocks[group]);
	memcpy(cuts, slots->cuts, sizeof(cuts));
	kvt_slots_destroy(slots);
	assert_int_equal(kvt_slots_init(slots, SLOTS), 0);
	memcpy(slots->cuts, cuts, sizeof(cuts));
	memcpy(slots->names, blocks, sizeof(blocks));
	slots->first = first;
	for (uint32_t group = 0; group < 2; group++) {
		kvt_slots_check(slots, group);
		if (kvt_slots_youngest(slots, group) > youngest)
			youngest = kvt_slots_youngest(slots, group);
	}
	assert_true(youngest < number);
	kvt_slots_enter(slots);
	slots->next_number = number;
	memset(came_back, 0, sizeof(came_back));
	memset(failed, 0, sizeof(failed));
	next = slots->next; /* behind the youngest that counts */
	for (uint32_t slot = 1; slot <= SLOTS; slot++)
		if (name_in[slot] && slots->names[slot - 1].number == youngest)
			assert_int_equal(next, slot % SLOTS + 1);
}

static void start(struct kvt_slots *slots)
{
	assert_int_equal(kvt_slots_init(slots, SLOTS), 0);
	assert_int_equal(kvt_slots_groups(slots), 2);
	memset(slot_of, 0, sizeof(slot_of));
	memset(name_in, 0, sizeof(name_in));
	memset(came_back, 0, sizeof(came_back));
	memset(failed, 0, sizeof(failed));
	next = 1;
}

TEST(random_writes_uses_failures_drops_and_starts_agree_with_an_array)
{
	struct kvt_slots slots;
	uint32_t n_failed = 0;

	start(&slots);
	srand(5);
	for (uint32_t step = 0; step < 60000; step++) {
		uint32_t i = 1 + (uint32_t)rand() % (NAMES - 1), chance = (uint32_t)rand() % 1000;

		if (chance < 600) {
			put(&slots, i);
		} else if (chance < 900 && slot_of[i]) {
			kvt_slots_use(&slots, slot_of[i]);
			came_back[slot_of[i]] = true;
		} else if (chance < 990 && slot_of[i]) {
			kvt_slots_forget(&slots, slot_of[i]);
			forget(slot_of[i]);
		} else if (chance == 990 && slot_of[i] && n_failed < SLOTS / 2) {
			n_failed++;
			failed[slot_of[i]] = true;
			kvt_slots_fail(&slots, slot_of[i]);
			forget(slot_of[i]);
			assert_int_equal(slots.n_failed, n_failed);
		} else if (chance == 991) {
			kvt_slots_clear(&slots);
			memset(slot_of, 0, sizeof(slot_of));
			memset(name_in, 0, sizeof(name_in));
		} else if (chance == 992) {
			restart(&slots);
			n_failed = 0;
		}
		if (step % 16 == 0)
			check(&slots);
	}
	kvt_slots_destroy(&slots);
}

TEST(of_two_slots_with_a_page_the_younger_has_it_and_wrong_names_have_none)
{
	struct kvt_slots slots;
	struct kvt_slot_name block[KVT_SLOTS_GROUP];
	struct kvt_chain one = name(1);

	for (uint32_t younger = 0; younger < 2; younger++) {
		start(&slots);
		for (uint32_t i = 0; i < 2; i++) {
			slots.names[i].number = i == younger ? 9 : 8;
			memcpy(slots.names[i].key, one.digest, KVT_CHAIN_KEY_BYTES);
		}
		slots.names[2] = (struct kvt_slot_name){ .key = { 7 }, .number = 3 };
		slots.names[3] = (struct kvt_slot_name){ .key = { 8 }, .number = KVT_SLOT_FAILED };
		kvt_slots_seal(&slots, 0, block);
		block[2].key[1] ^= 1;
		memcpy(slots.names, block, sizeof(block));
		kvt_slots_check(&slots, 0);
		kvt_slots_enter(&slots);
		assert_int_equal(slots.n_found, 1);
		assert_int_equal(kvt_slots_find(&slots, &one), younger + 1);
		assert_int_equal(slots.next, younger + 2);
		assert_int_equal(slots.n_failed, 0);
		kvt_slots_destroy(&slots);
	}
}

/* More cuts than there is room for: those that became one may drop more, and nothing comes back. */
TEST(what_was_cut_counts_no_more_and_what_is_written_later_does)
{
	enum { CUTS = 3 * KVT_SLOTS_CUTS };
	struct kvt_slots slots;
	uint64_t before[CUTS];
	uint32_t since[CUTS];

	start(&slots);
	srand(3);
	for (uint32_t cut = 0; cut < CUTS; cut++) {
		slots.next_number += 10;
		before[cut] = slots.next_number;
		since[cut] = 100 + (uint32_t)rand() % 100;
		assert_true(kvt_slots_counts(&slots, before[cut] - 1, since[cut]));
		kvt_slots_cut_since(&slots, since[cut]);
		assert_false(kvt_slots_counts(&slots, before[cut] - 1, since[cut]));
		assert_false(kvt_slots_counts(&slots, before[cut] - 1, 0));
		assert_true(kvt_slots_counts(&slots, before[cut] - 1, since[cut] - 1));
		assert_true(kvt_slots_counts(&slots, before[cut], since[cut]));
		for (uint32_t i = 0; i <= cut; i++)
			assert_false(kvt_slots_counts(&slots, before[i] - 1, since[i]));
	}
	kvt_slots_destroy(&slots);
}

TEST(what_was_cut_is_not_found_by_a_start)
{
	struct kvt_slots slots;

	start(&slots);
	for (uint32_t i = 1; i < 20; i++)
		put(&slots, i); /* copied at i */
	kvt_slots_cut_since(&slots, 10);
	put(&slots, 30);
	restart(&slots);
	for (uint32_t i = 1; i < NAMES; i++) {
		struct kvt_chain page = name(i);

		assert_int_equal(kvt_slots_find(&slots, &page) != 0, i < 10 || i == 30);
	}
	assert_int_equal(slots.n_found, 10);
	kvt_slots_destroy(&slots);
}
