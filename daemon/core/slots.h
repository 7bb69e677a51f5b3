/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_SLOTS_H
#define KVT_CORE_SLOTS_H

/**
 * @file slots.h
 * Extents of slots, with boundary tags, in bins by size.
 */

#include "daemon/core/bits.h"

#define KVT_BINS 128 /* size classes of free extents: exact to 15, then 4 per power of two */

/** Free slots: extents with boundary tags, in bins by size (good fit in O(1)). */
struct kvt_slots {
	uint32_t n_slots;
	uint32_t free_slots;
	uint32_t *length;    /* at the first slot of a free extent: its length */
	uint32_t *first;     /* at the last slot of a free extent: its first slot */
	uint32_t *next;      /* at the first slot: list of the bin */
	uint32_t *prev;
	uint32_t *run;       /* at the first slot of a node's run: the node */
	uint64_t *free_head; /* bit: a free extent begins here */
	uint64_t *free_tail; /* bit: a free extent ends here */
	uint64_t *run_head;  /* bit: a node's run begins here */
	uint32_t bins[KVT_BINS];
	uint64_t bin_used[KVT_BINS / 64];
};

/** Make all slots but 0 one free extent. */
void kvt_slots_init(struct kvt_slots *slots);
/** Forget all extents and runs. */
void kvt_slots_clear(struct kvt_slots *slots);
/** Free n slots, joining them with free neighbours. */
void kvt_slots_give(struct kvt_slots *slots, uint32_t first, uint32_t n);
/** Take up to n slots in one run. First choice: at `wish`, if enough is free there; then a good
 * fit; then the longest run. Returns the first; *ret_got <= n. At least one slot must be free. */
uint32_t kvt_slots_take(struct kvt_slots *slots, uint32_t n, uint32_t wish, uint32_t *ret_got);
/** Length of the free extent that begins at `slot`, 0 if none does. */
uint32_t kvt_slots_free_at(const struct kvt_slots *slots, uint32_t slot);
/** Length of the free extent that ends right before `slot`. */
uint32_t kvt_slots_free_before(const struct kvt_slots *slots, uint32_t slot);
/** Take exactly n slots from `first` on, out of the free extent at `extent`. */
void kvt_slots_take_at(struct kvt_slots *slots, uint32_t extent, uint32_t first, uint32_t n);
/** An extent of at least n slots, KVT_NONE if there is none. */
uint32_t kvt_slots_find(const struct kvt_slots *slots, uint32_t n);
/** Upper bound of the runs that n slots would take now. More than n: too few are free. */
uint32_t kvt_slots_runs(const struct kvt_slots *slots, uint32_t n, uint32_t wish);
/** Audit: true if the bins hold exactly the free extents, `extents` in number. */
bool kvt_slots_bins_ok(const struct kvt_slots *slots, uint64_t extents);
void kvt_slots_set_run(struct kvt_slots *slots, uint32_t first, uint32_t node);
void kvt_slots_clear_run(struct kvt_slots *slots, uint32_t first);
/** The node whose run holds a used slot, KVT_NONE for a free one. */
uint32_t kvt_slots_node_of(const struct kvt_slots *slots, uint32_t slot);

#endif
