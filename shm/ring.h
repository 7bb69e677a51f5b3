/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_RING_H
#define KVT_SHM_RING_H

/**
 * @file ring.h
 * The session segment and its areas: their layout, and the two ends of the two rings.
 *
 * A `struct kvt_ring_end` is private memory of one side. Its pointers into the segment are computed
 * once, from sizes that this side trusts. It keeps the last value seen of the other side's index,
 * so most calls touch no line that the other side writes.
 */

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_wire_operations.h"
#include "kvtrunk_wire_segment.h"
#include "shm/atomic.h"

/** Where everything is in the two objects; computed by both sides from four numbers. */
struct kvt_segment_layout {
	uint32_t sq_entries, cq_entries;
	uint64_t keys_count, list_count;
	uint64_t sq_offset, cq_offset, fences_offset; /* in the segment */
	uint64_t keys_offset, list_offset;            /* in the areas */
	uint64_t bytes;       /* of the segment */
	uint64_t areas_bytes; /* 0: both areas are empty */
};

/** Compute the layout. -EINVAL: a ring size is no power of two, the segment would be larger than
 * KVT_SEGMENT_BYTES_MAX, or an area has more than 2^31 keys. */
int kvt_segment_plan(struct kvt_segment_layout *layout, uint32_t sq_entries, uint32_t cq_entries,
		     uint64_t keys_count, uint64_t list_count);

/** Write the header of a new, zeroed segment (daemon). */
void kvt_segment_format(void *base, const struct kvt_segment_layout *layout, uint32_t session);

/** Check a received segment of `object_bytes` real bytes, whose areas have `areas_bytes`, and fill
 * the layout (client). Returns 0 or -EPROTO (magic, version, layout), -EINVAL (sizes or offsets do
 * not fit). */
int kvt_segment_check(const void *base, uint64_t object_bytes, uint64_t areas_bytes,
		      struct kvt_segment_layout *layout);

struct kvt_ring_end {
	struct kvt_segment_header *header;
	struct kvt_sqe *sq;
	struct kvt_cqe *cq;
	struct kvt_fence_word *fences;
	uint32_t *keys;
	uint32_t *list;
	uint32_t sq_mask, cq_mask;
	uint32_t sq_head, sq_tail; /* own index is exact, the other side's is a cached copy */
	uint32_t cq_head, cq_tail;
	uint32_t cpu;         /* CPU that the other side was told: number + 1; 0 = none */
	uint32_t client_cpu;  /* the daemon's copy, read with sq_tail: they share a line */
	uint32_t pace_us;     /* the daemon's copy, read with sq_tail */
};

/** `areas` may be NULL if the layout has none. */
void kvt_ring_end_init(struct kvt_ring_end *end, void *base, void *areas,
		       const struct kvt_segment_layout *layout);

/** Tell the other side in `word` on which CPU the caller runs: neither spins on the CPU that the
 * other needs. A lie costs only the liar. */
static inline void kvt_ring_tell_cpu(struct kvt_ring_end *end, uint32_t *word)
{
	uint32_t cpu = (uint32_t)(sched_getcpu() + 1);

	if (cpu == end->cpu)
		return;
	end->cpu = cpu;
	kvt_store_relaxed(word, cpu);
}

/* ---- client ---- */

/** Free submission entries. */
static inline uint32_t kvt_ring_sq_space(struct kvt_ring_end *end)
{
	uint32_t used = end->sq_tail - end->sq_head;

	if (used > end->sq_mask) { /* looks full: pairs with the daemon's release of sq_head */
		end->sq_head = kvt_load_acquire(&end->header->sq_head);
		used = end->sq_tail - end->sq_head;
	}
	return end->sq_mask + 1 - used;
}

/** Put one entry; there must be space. Not visible before kvt_ring_sq_publish(). */
static inline void kvt_ring_sq_put(struct kvt_ring_end *end, const struct kvt_sqe *sqe)
{
	end->sq[end->sq_tail++ & end->sq_mask] = *sqe;
}

/** Publish what was put. Returns true when the daemon sleeps and its doorbell must be rung. */
static inline bool kvt_ring_sq_publish(struct kvt_ring_end *end)
{
	kvt_ring_tell_cpu(end, &end->header->client_cpu);
	/* Pairs with the daemon's acquire of sq_tail: keys and entries before the index. */
	kvt_store_release(&end->header->sq_tail, end->sq_tail);
	/* Pairs with the daemon's full fence between its sq_need_wakeup and its last look. */
	kvt_fence_full();
	return kvt_load_relaxed(&end->header->sq_need_wakeup) != 0;
}

/** Completions that are there. */
static inline uint32_t kvt_ring_cq_ready(struct kvt_ring_end *end)
{
	if (end->cq_tail == end->cq_head) /* pairs with the daemon's release of cq_tail */
		end->cq_tail = kvt_load_acquire(&end->header->cq_tail);
	return end->cq_tail - end->cq_head;
}

/** True if the daemon last answered on the CPU where the client last submitted. */
static inline bool kvt_ring_daemon_here(const struct kvt_ring_end *end)
{
	return end->cpu && kvt_load_relaxed(&end->header->daemon_cpu) == end->cpu;
}

/** Take one; there must be one. */
static inline void kvt_ring_cq_take(struct kvt_ring_end *end, struct kvt_cqe *ret_cqe)
{
	*ret_cqe = end->cq[end->cq_head++ & end->cq_mask];
	/* Pairs with the daemon's acquire of cq_head: the entry is copied before it is reused. */
	kvt_store_release(&end->header->cq_head, end->cq_head);
}

/* ---- daemon ---- */

/** How many entries wait. -EPROTO when the client wrote an impossible index. */
static inline int kvt_ring_sq_pending(struct kvt_ring_end *end)
{
	if (end->sq_tail == end->sq_head) { /* pairs with the client's release of sq_tail */
		uint32_t tail = kvt_load_acquire(&end->header->sq_tail);

		if (tail - end->sq_head > end->sq_mask + 1)
			return -71; /* EPROTO; not kept, so the next look says it again */
		end->sq_tail = tail;
		end->client_cpu = kvt_load_relaxed(&end->header->client_cpu);
		end->pace_us = kvt_load_relaxed(&end->header->pace_us);
	}
	return (int)(end->sq_tail - end->sq_head);
}

/** Copy the oldest entry, once; there must be one. It stays in the ring, for a successor, until
 * kvt_ring_sq_advance(). */
static inline void kvt_ring_sq_peek(const struct kvt_ring_end *end, struct kvt_sqe *ret_sqe)
{
	const volatile uint64_t *from =
		(const volatile uint64_t *)&end->sq[end->sq_head & end->sq_mask];
	uint64_t *to = (uint64_t *)ret_sqe;

	for (unsigned int i = 0; i < sizeof(*ret_sqe) / sizeof(uint64_t); i++)
		to[i] = from[i];
}

/** The oldest entry took effect: give its place back. */
static inline void kvt_ring_sq_advance(struct kvt_ring_end *end)
{
	end->sq_head++;
	/* Pairs with the client's acquire of sq_head. */
	kvt_store_release(&end->header->sq_head, end->sq_head);
}

/** Copy the oldest entry and give its place back. */
static inline void kvt_ring_sq_take(struct kvt_ring_end *end, struct kvt_sqe *ret_sqe)
{
	kvt_ring_sq_peek(end, ret_sqe);
	kvt_ring_sq_advance(end);
}

/** Continue for a predecessor: `sq_taken` entries took effect and `cq_done` completions were made.
 * The last two (`last`, completion i at i & 1) may be missing; those before are in the ring. */
void kvt_ring_end_resume(struct kvt_ring_end *end, uint32_t sq_taken, uint32_t cq_done,
			 const struct kvt_cqe last[2]);

/** Room for completions. -EPROTO when the client wrote an impossible index. */
static inline int kvt_ring_cq_space(struct kvt_ring_end *end)
{
	uint32_t used = end->cq_tail - end->cq_head;

	if (used > end->cq_mask / 2) { /* pairs with the client's release of cq_head */
		end->cq_head = kvt_load_acquire(&end->header->cq_head);
		used = end->cq_tail - end->cq_head;
		if (used > end->cq_mask + 1)
			return -71; /* EPROTO */
	}
	return (int)(end->cq_mask + 1 - used);
}

/** Put one completion; there must be room. Visible after kvt_ring_cq_publish(). */
static inline void kvt_ring_cq_put(struct kvt_ring_end *end, const struct kvt_cqe *cqe)
{
	end->cq[end->cq_tail++ & end->cq_mask] = *cqe;
}

/** Publish. Returns true when the client sleeps and must be woken. */
static inline bool kvt_ring_cq_publish(struct kvt_ring_end *end)
{
	kvt_ring_tell_cpu(end, &end->header->daemon_cpu);
	/* Pairs with the client's acquire of cq_tail. */
	kvt_store_release(&end->header->cq_tail, end->cq_tail);
	/* Pairs with the client's full fence between its cq_need_wakeup and its last look. */
	kvt_fence_full();
	return kvt_load_relaxed(&end->header->cq_need_wakeup) != 0;
}

/** True if the client submitted on the CPU where the daemon last answered. */
static inline bool kvt_ring_client_here(const struct kvt_ring_end *end)
{
	return end->cpu && end->client_cpu == end->cpu;
}

#endif
