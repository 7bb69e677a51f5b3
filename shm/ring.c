/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/ring.h"

#include <errno.h>
#include <stddef.h>

#include "shm/assert.h"
#include "shm/layout.h"

#define AREA_COUNT_MAX (1ull << 31) /* entries name places in 32 bits */

static bool ring_size_ok(uint32_t entries)
{
	return entries >= 1 && entries <= KVT_SEGMENT_BYTES_MAX && (entries & (entries - 1)) == 0;
}

static uint64_t next_line(uint64_t offset)
{
	return (offset + KVT_LINE - 1) / KVT_LINE * KVT_LINE;
}

int kvt_segment_plan(struct kvt_segment_layout *layout, uint32_t sq_entries, uint32_t cq_entries,
		     uint64_t keys_count, uint64_t list_count)
{
	uint64_t at = sizeof(struct kvt_segment_header);

	if (!ring_size_ok(sq_entries) || !ring_size_ok(cq_entries) ||
	    keys_count > AREA_COUNT_MAX || list_count > AREA_COUNT_MAX)
		return -EINVAL;
	layout->sq_entries = sq_entries;
	layout->cq_entries = cq_entries;
	layout->keys_count = keys_count;
	layout->list_count = list_count;
	layout->sq_offset = at;
	at = next_line(at + sq_entries * sizeof(struct kvt_sqe));
	layout->cq_offset = at;
	at = next_line(at + cq_entries * sizeof(struct kvt_cqe));
	layout->fences_offset = at;
	layout->bytes = at + KVT_FENCE_WORDS * sizeof(struct kvt_fence_word);
	layout->keys_offset = 0;
	layout->list_offset = next_line(keys_count * sizeof(uint32_t));
	layout->areas_bytes = next_line(layout->list_offset + list_count * sizeof(uint32_t));
	return layout->bytes <= KVT_SEGMENT_BYTES_MAX ? 0 : -EINVAL;
}

void kvt_segment_format(void *base, const struct kvt_segment_layout *layout, uint32_t session)
{
	struct kvt_segment_header *header = base;

	KVT_ASSERT(layout->bytes > layout->fences_offset); /* kvt_segment_plan() */
	header->abi = KVT_ABI;
	header->header_bytes = sizeof(*header);
	header->layout = kvt_layout();
	header->object_bytes = layout->bytes;
	header->sq_entries = layout->sq_entries;
	header->cq_entries = layout->cq_entries;
	header->sq_offset = layout->sq_offset;
	header->cq_offset = layout->cq_offset;
	header->fences_offset = layout->fences_offset;
	header->areas_bytes = layout->areas_bytes;
	header->keys_offset = layout->keys_offset;
	header->keys_count = layout->keys_count;
	header->list_offset = layout->list_offset;
	header->list_count = layout->list_count;
	header->session = session;
	header->magic = KVT_SEGMENT_MAGIC;
}

int kvt_segment_check(const void *base, uint64_t object_bytes, uint64_t areas_bytes,
		      struct kvt_segment_layout *layout)
{
	const struct kvt_segment_header *header = base;

	if (object_bytes < sizeof(*header))
		return -EINVAL;
	if (header->magic != KVT_SEGMENT_MAGIC || header->abi != KVT_ABI ||
	    header->layout != kvt_layout() || header->header_bytes != sizeof(*header))
		return -EPROTO;
	if (kvt_segment_plan(layout, header->sq_entries, header->cq_entries, header->keys_count,
			     header->list_count) != 0)
		return -EINVAL;
	if (layout->bytes > object_bytes || layout->areas_bytes > areas_bytes ||
	    header->areas_bytes != layout->areas_bytes || header->sq_offset != layout->sq_offset ||
	    header->cq_offset != layout->cq_offset ||
	    header->fences_offset != layout->fences_offset ||
	    header->keys_offset != layout->keys_offset ||
	    header->list_offset != layout->list_offset)
		return -EINVAL;
	return 0;
}

void kvt_ring_end_init(struct kvt_ring_end *end, void *base, void *areas,
		       const struct kvt_segment_layout *layout)
{
	char *bytes = base;
	uint32_t *words = areas;

	KVT_ASSERT(ring_size_ok(layout->sq_entries) && ring_size_ok(layout->cq_entries));
	*end = (struct kvt_ring_end){
		.header = base,
		.sq = (struct kvt_sqe *)(bytes + layout->sq_offset),
		.cq = (struct kvt_cqe *)(bytes + layout->cq_offset),
		.fences = (struct kvt_fence_word *)(bytes + layout->fences_offset),
		.keys = words ? words + layout->keys_offset / sizeof(*words) : NULL,
		.list = words ? words + layout->list_offset / sizeof(*words) : NULL,
		.sq_mask = layout->sq_entries - 1,
		.cq_mask = layout->cq_entries - 1,
	};
}

void kvt_ring_end_resume(struct kvt_ring_end *end, uint32_t sq_taken, uint32_t cq_done,
			 const struct kvt_cqe last[2])
{
	end->sq_head = end->sq_tail = sq_taken;
	end->cq_head = kvt_load_acquire(&end->header->cq_head);
	/* Rewriting a published completion stores equal bytes. A ring of one entry holds the last
	 * only. */
	end->cq_tail = cq_done - 1 - (end->cq_mask != 0);
	while (end->cq_tail != cq_done)
		kvt_ring_cq_put(end, &last[end->cq_tail & 1]);
	/* Pair with the client's acquires, as always. */
	kvt_store_release(&end->header->sq_head, sq_taken);
	kvt_store_release(&end->header->cq_tail, cq_done);
}
