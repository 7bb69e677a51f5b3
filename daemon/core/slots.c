/* SPDX-License-Identifier: Apache-2.0 */

/* Extents of slots. All of it is derived: the runs of the nodes say what is used.
 *
 * Invariants: every slot but 0 is in one run or one free extent; two free extents never touch.
 * Callers: the tree and growth, compaction, the mutation's end, recovery. */

#include <string.h>

#include "daemon/core/slots.h"
#include "daemon/core/state.h"

#define SCAN_LIMIT 8 /* extents searched in one bin before a larger bin is taken */

static uint32_t bin_of(uint32_t n)
{
	uint32_t power;

	if (n < 16)
		return n;
	power = 31 - (uint32_t)__builtin_clz(n);
	return 16 + (power - 4) * 4 + (n >> (power - 2) & 3);
}

static void bin_insert(struct kvt_slots *slots, uint32_t first, uint32_t n)
{
	uint32_t bin = bin_of(n), head = slots->bins[bin];

	KVT_ASSERT(first > 0 && n > 0 && n <= slots->n_slots - first);
	KVT_ASSERT(!kvt_bit_get(slots->free_tail, first - 1) &&
		   !kvt_bit_get(slots->free_head, first + n));
	slots->length[first] = n;
	slots->first[first + n - 1] = first;
	kvt_bit_set(slots->free_head, first);
	kvt_bit_set(slots->free_tail, first + n - 1);
	slots->next[first] = head;
	slots->prev[first] = KVT_NONE;
	if (head != KVT_NONE)
		slots->prev[head] = first;
	slots->bins[bin] = first;
	kvt_bit_set(slots->bin_used, bin);
}

static void bin_remove(struct kvt_slots *slots, uint32_t first)
{
	uint32_t n = slots->length[first], bin = bin_of(n);
	uint32_t next = slots->next[first], prev = slots->prev[first];

	KVT_ASSERT(kvt_bit_get(slots->free_tail, first + n - 1));
	KVT_ASSERT(kvt_bit_get(slots->free_head, first) && slots->first[first + n - 1] == first);
	KVT_ASSERT(prev != KVT_NONE || slots->bins[bin] == first);
	kvt_bit_clear(slots->free_head, first);
	kvt_bit_clear(slots->free_tail, first + n - 1);
	if (prev != KVT_NONE)
		slots->next[prev] = next;
	else
		slots->bins[bin] = next;
	if (next != KVT_NONE)
		slots->prev[next] = prev;
	if (slots->bins[bin] == KVT_NONE)
		kvt_bit_clear(slots->bin_used, bin);
}

void kvt_slots_init(struct kvt_slots *slots)
{
	slots->free_slots = slots->n_slots - 1;
	bin_insert(slots, 1, slots->n_slots - 1);
}

void kvt_slots_clear(struct kvt_slots *slots)
{
	size_t bytes = (slots->n_slots / 64 + 1) * sizeof(uint64_t);

	slots->free_slots = 0;
	memset(slots->free_head, 0, bytes);
	memset(slots->free_tail, 0, bytes);
	memset(slots->run_head, 0, bytes);
	memset(slots->bins, 0, sizeof(slots->bins));
	memset(slots->bin_used, 0, sizeof(slots->bin_used));
}

void kvt_slots_give(struct kvt_slots *slots, uint32_t first, uint32_t n)
{
	if (n == 0)
		return;
	slots->free_slots += n;
	KVT_ASSERT(slots->free_slots < slots->n_slots && !kvt_bit_get(slots->free_head, first));
	KVT_ASSERT(!kvt_bit_get(slots->run_head, first));
	if (first + n < slots->n_slots && kvt_bit_get(slots->free_head, first + n)) {
		uint32_t after = slots->length[first + n];

		bin_remove(slots, first + n);
		n += after;
	}
	if (first > 1 && kvt_bit_get(slots->free_tail, first - 1)) {
		uint32_t before = slots->first[first - 1];

		bin_remove(slots, before);
		n += first - before;
		first = before;
	}
	bin_insert(slots, first, n);
}

/* The first used bin at or above `bin`, KVT_BINS if there is none. */
static uint32_t bin_at_least(const struct kvt_slots *slots, uint32_t bin)
{
	for (uint32_t word = bin / 64; word < KVT_BINS / 64; word++) {
		uint64_t bits = slots->bin_used[word];

		if (word == bin / 64)
			bits &= ~0ull << (bin % 64);
		if (bits)
			return word * 64 + (uint32_t)__builtin_ctzll(bits);
	}
	return KVT_BINS;
}

uint32_t kvt_slots_find(const struct kvt_slots *slots, uint32_t n)
{
	uint32_t bin = bin_of(n), best = KVT_NONE, scanned = 0;

	KVT_ASSERT(n > 0);
	for (uint32_t at = slots->bins[bin]; at != KVT_NONE && scanned < SCAN_LIMIT;
	     at = slots->next[at], scanned++) {
		if (slots->length[at] >= n &&
		    (best == KVT_NONE || slots->length[at] < slots->length[best]))
			best = at;
	}
	if (best != KVT_NONE)
		return best;
	bin = bin_at_least(slots, bin + 1);
	return bin < KVT_BINS ? slots->bins[bin] : KVT_NONE;
}

/* Some extent of the largest used bin: the longest, to within the width of a bin. */
static uint32_t longest(const struct kvt_slots *slots)
{
	for (uint32_t word = KVT_BINS / 64; word-- > 0;)
		if (slots->bin_used[word])
			return slots->bins[word * 64 + 63 -
					   (uint32_t)__builtin_clzll(slots->bin_used[word])];
	return KVT_NONE;
}

void kvt_slots_take_at(struct kvt_slots *slots, uint32_t extent, uint32_t first, uint32_t n)
{
	uint32_t length = slots->length[extent];

	KVT_ASSERT(kvt_bit_get(slots->free_head, extent));
	KVT_ASSERT(first >= extent && first + n <= extent + length);
	KVT_ASSERT(n > 0 && n <= slots->free_slots);
	bin_remove(slots, extent);
	if (first > extent)
		bin_insert(slots, extent, first - extent);
	if (first + n < extent + length)
		bin_insert(slots, first + n, extent + length - first - n);
	slots->free_slots -= n;
}

uint32_t kvt_slots_take(struct kvt_slots *slots, uint32_t n, uint32_t wish, uint32_t *ret_got)
{
	uint32_t extent = KVT_NONE;

	KVT_ASSERT(n > 0 && slots->free_slots > 0);
	if (wish && kvt_slots_free_at(slots, wish) >= n)
		extent = wish;
	if (extent == KVT_NONE)
		extent = kvt_slots_find(slots, n);
	if (extent == KVT_NONE)
		extent = longest(slots);
	*ret_got = kvt_min(n, slots->length[extent]);
	KVT_ASSERT(*ret_got > 0);
	kvt_slots_take_at(slots, extent, extent, *ret_got);
	return extent;
}

uint32_t kvt_slots_free_at(const struct kvt_slots *slots, uint32_t slot)
{
	if (slot >= slots->n_slots || !kvt_bit_get(slots->free_head, slot))
		return 0;
	return slots->length[slot];
}

uint32_t kvt_slots_free_before(const struct kvt_slots *slots, uint32_t slot)
{
	if (slot <= 1 || !kvt_bit_get(slots->free_tail, slot - 1))
		return 0;
	return slot - slots->first[slot - 1];
}

uint32_t kvt_slots_runs(const struct kvt_slots *slots, uint32_t n, uint32_t wish)
{
	uint32_t runs = 0, left = n;

	if (n == 0)
		return 0;
	if ((wish && kvt_slots_free_at(slots, wish) >= n) ||
	    kvt_slots_find(slots, n) != KVT_NONE)
		return 1;
	/* Each piece comes from the largest bin; within a bin lengths differ by a quarter at most,
	 * and counting every extent of it makes this an upper bound of what taking will need. */
	for (uint32_t bin = KVT_BINS; bin-- > 0 && left > 0;) {
		for (uint32_t at = slots->bins[bin]; at != KVT_NONE && left > 0;
		     at = slots->next[at]) {
			left -= kvt_min(left, slots->length[at]);
			runs++;
		}
	}
	/* The rest comes from victims of this operation's own eviction: the slots of each
	 * are one run, and its node comes back with them. */
	return runs;
}

void kvt_slots_set_run(struct kvt_slots *slots, uint32_t first, uint32_t node)
{
	KVT_ASSERT(first > 0 && first < slots->n_slots && node != KVT_NONE);
	KVT_ASSERT(!kvt_bit_get(slots->free_head, first));
	slots->run[first] = node;
	kvt_bit_set(slots->run_head, first);
}

void kvt_slots_clear_run(struct kvt_slots *slots, uint32_t first)
{
	KVT_ASSERT(kvt_bit_get(slots->run_head, first));
	slots->run[first] = KVT_NONE;
	kvt_bit_clear(slots->run_head, first);
}

uint32_t kvt_slots_node_of(const struct kvt_slots *slots, uint32_t slot)
{
	uint32_t word = slot / 64;
	uint64_t bits = slots->run_head[word] & (~0ull >> (63 - slot % 64));

	KVT_ASSERT(slot < slots->n_slots);
	while (!bits) {
		if (word == 0)
			return KVT_NONE;
		bits = slots->run_head[--word];
	}
	return slots->run[word * 64 + 63 - (uint32_t)__builtin_clzll(bits)];
}

bool kvt_slots_bins_ok(const struct kvt_slots *slots, uint64_t extents)
{
	uint64_t n = 0;

	for (uint32_t bin = 0; bin < KVT_BINS; bin++) {
		uint32_t before = KVT_NONE;

		if (kvt_bit_get(slots->bin_used, bin) != (slots->bins[bin] != KVT_NONE))
			return false;
		for (uint32_t at = slots->bins[bin]; at != KVT_NONE; at = slots->next[at]) {
			if (at >= slots->n_slots || !kvt_bit_get(slots->free_head, at) ||
			    bin_of(slots->length[at]) != bin || slots->prev[at] != before ||
			    ++n > extents)
				return false;
			before = at;
		}
	}
	return n == extents;
}
