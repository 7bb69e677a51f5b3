/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_SLOTS_H
#define KVT_STORE_SLOTS_H

/**
 * @file slots.h
 * The slots of a file: which page each holds, found by name, and which one is written next. 40
 * bytes a slot.
 *
 * They are a ring: the next one is that whose page was written first. A page that came back since
 * is passed, once (CLOCK, Corbato 1968). So a prompt's beginning stays with what was written behind
 * it later, and still the drive sees writes in its order.
 *
 * Each write has a number, which grows over all starts: a start continues behind the largest one.
 * Slots with a smaller number than `first` were dropped. A cut drops pages that were copied since a
 * time.
 *
 * The names are in memory as in the file, KVT_SLOTS_GROUP of them in a block.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"
#include "store/hash.h"
#include "store/scan.h"

#define KVT_SLOTS_MAX (1u << 30)
#define KVT_SLOTS_GROUP 128u
#define KVT_SLOTS_CUTS 16u
#define KVT_SLOT_FAILED UINT64_MAX /* its device failed: it is not used until the next start */

struct kvt_slot_name {
	uint8_t key[KVT_CHAIN_KEY_BYTES];
	uint64_t number; /* of the write, 0: it holds nothing */
	uint32_t time;   /* as in struct kvt_index_entry */
	uint32_t crc;    /* in the file: crc32c of what is in front of it */
};

/* Pages of writes with a smaller number were dropped that were copied since a time. */
struct kvt_slots_cut {
	uint64_t before; /* 0: none were */
	uint64_t since;  /* in s since 1970 */
};

struct kvt_slots {
	struct kvt_slot_name *names; /* slot s at s - 1, in whole groups */
	struct kvt_hash table;
	uint64_t *back; /* a bit a slot: its page came back since it was written or passed */
	uint32_t n, n_found, n_failed;
	uint32_t next;         /* slot that is written next */
	uint64_t first;        /* writes with a smaller number were dropped */
	uint64_t next_number;
	struct kvt_slots_cut cuts[KVT_SLOTS_CUTS]; /* the last one is the youngest */
	struct kvt_scan *scans; /* open ones, for a cut */
};

/** Make a ring of 1 to KVT_SLOTS_MAX slots without a page, aligned to blocks. -ENOMEM. */
int kvt_slots_init(struct kvt_slots *slots, uint32_t n);
void kvt_slots_destroy(struct kvt_slots *slots);
uint32_t kvt_slots_groups(const struct kvt_slots *slots);
/** Return the group of a slot, from 0 on. */
uint32_t kvt_slots_group(uint32_t slot);

/** Return the slot of a page, 0: none. */
uint32_t kvt_slots_find(const struct kvt_slots *slots, const struct kvt_chain *page);
/** Return a slot's page, only the key of it. */
struct kvt_chain kvt_slots_page(const struct kvt_slots *slots, uint32_t slot);
/** Return the time of a slot's page. */
uint32_t kvt_slots_time(const struct kvt_slots *slots, uint32_t slot);
/** Return true if a slot has a page. */
bool kvt_slots_has(const struct kvt_slots *slots, uint32_t slot);
/** Note that a page that has a slot came back. */
void kvt_slots_use(struct kvt_slots *slots, uint32_t slot);
/** Go one slot on. Returns the one that was next, 0: it is passed. It may have a page. */
uint32_t kvt_slots_step(struct kvt_slots *slots);
/** Forget the page of a slot, if it has one. */
void kvt_slots_forget(struct kvt_slots *slots, uint32_t slot);
/** Do not use a slot until the next start. */
void kvt_slots_fail(struct kvt_slots *slots, uint32_t slot);
/** Let a page be found in a slot that has none. No other slot may have it. */
void kvt_slots_publish(struct kvt_slots *slots, uint32_t slot, const struct kvt_chain *page,
		       uint64_t number, uint32_t time);
/** Return true if a page that was copied at a time, in a write of a number, was not dropped. */
bool kvt_slots_counts(const struct kvt_slots *slots, uint64_t number, uint32_t time);
/** Forget all pages, also those of writes that have a number already. */
void kvt_slots_clear(struct kvt_slots *slots);
/** Look at KVT_SCAN_LOOKS slots more for those with pages that were copied since a time. The scan
 * is opened with `scans` and n. Returns true if all were looked at. */
bool kvt_slots_scan(const struct kvt_slots *slots, struct kvt_scan *scan, uint32_t since);
/** From now on pages that were copied since a time, and have a number already, do not count. The
 * caller forgets those that slots hold. With too many cuts the two oldest become one, which drops
 * more. */
void kvt_slots_cut_since(struct kvt_slots *slots, uint32_t since);

/* ---- for a start, which fills `names` first, and a stop */

/** Write the block of a group. */
void kvt_slots_seal(const struct kvt_slots *slots, uint32_t group,
		    struct kvt_slot_name ret_block[KVT_SLOTS_GROUP]);
/** Zero those names of a group that are not as they were sealed. */
void kvt_slots_check(struct kvt_slots *slots, uint32_t group);
/** Return the largest number in a group. */
uint64_t kvt_slots_youngest(const struct kvt_slots *slots, uint32_t group);
/** Let all names be found. If two slots have a page, the larger number decides. */
void kvt_slots_enter(struct kvt_slots *slots);

#endif
