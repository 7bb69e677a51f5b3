/* SPDX-License-Identifier: Apache-2.0 */

/* Cuts a batch into thread blocks and launches: see cuda_plan.h.
 *
 * Inputs: a checked batch, the room on a device. Invariants: the cut changes no result; the plan's
 * memory is kept from call to call. Callers: cuda_host.c, the tests. */

#include "cuda_plan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "convert.h"

#define GRID_MAX 0x7fffffffu /* thread blocks of a launch, in x */

uint32_t kvt_cuda_dim(uint32_t head_dim)
{
	static const uint32_t dims[] = { 64, 80, 96, 128, 256 };

	for (uint32_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
		if (head_dim <= dims[i])
			return dims[i];
	}
	return 0;
}

size_t kvt_cuda_slot_bytes(uint32_t dim)
{
	return sizeof(float) * KVT_CUDA_ROWS * (dim + 2);
}

/* True if tensor cores apply: queries of 16 bits, and KV of the same type or fp8. */
static bool on_tensor_cores(const struct kvt_attn_prefill *prefill)
{
	return prefill->q_type != KVT_ATTN_F32 &&
	       (prefill->kv.type == prefill->q_type || prefill->kv.type == KVT_ATTN_F8_E4M3);
}

void kvt_cuda_kernel_name(const struct kvt_attn_prefill *prefill, char *name, size_t name_bytes)
{
	uint32_t dim = kvt_cuda_dim(prefill->kv.head_dim);

	if (on_tensor_cores(prefill))
		snprintf(name, name_bytes, "%u_%s_%s", dim,
			 prefill->q_type == KVT_ATTN_BF16 ? "bf16" : "f16",
			 prefill->kv.type == KVT_ATTN_F8_E4M3 ? "f8" : "16");
	else
		snprintf(name, name_bytes, "%u_f32", dim);
}

/* Keep equal to struct shape and struct copied_shape in cuda_shape.cuh; test_cuda compares. */
size_t kvt_cuda_shared_bytes(const struct kvt_attn_prefill *prefill, uint32_t n_stages)
{
	uint32_t dim = kvt_cuda_dim(prefill->kv.head_dim);
	size_t tile_keys = dim > 128 ? 32 : 64, row_bytes = dim * sizeof(uint16_t);

	if (!on_tensor_cores(prefill)) {
		tile_keys /= dim > 128 ? 4 : 2;
		return (KVT_CUDA_ROWS + 2 * n_stages * tile_keys) * dim * sizeof(float);
	}
	if (prefill->kv.type == KVT_ATTN_F8_E4M3)
		return (KVT_CUDA_ROWS + 2 * tile_keys) * row_bytes + 2 * n_stages * tile_keys * dim;
	return (KVT_CUDA_ROWS + 2 * n_stages * tile_keys) * row_bytes;
}

/* Return the resident blocks. Each takes a KiB beyond what it asks for. */
static uint32_t blocks_at_a_time(const struct kvt_cuda_room *room, uint32_t dim, size_t bytes)
{
	uint32_t n_blocks = room->shared_bytes / ((uint32_t)bytes + 1024);

	return bytes > room->block_shared_bytes	   ? 0
	       : n_blocks > KVT_CUDA_BLOCKS(dim) ? KVT_CUDA_BLOCKS(dim)
						 : n_blocks;
}

struct kvt_cuda_fit kvt_cuda_fit(const struct kvt_attn_prefill *prefill,
				 const struct kvt_cuda_room *room)
{
	uint32_t dim = kvt_cuda_dim(prefill->kv.head_dim), n_stages = 2;
	size_t bytes = kvt_cuda_shared_bytes(prefill, n_stages);
	size_t stage_bytes = kvt_cuda_shared_bytes(prefill, n_stages + 1) - bytes;
	uint32_t n_blocks = blocks_at_a_time(room, dim, bytes);

	/* A block with two stages has at most 99 KiB, which every device has. */
	if (!n_blocks)
		n_blocks = 1;
	while (n_stages < KVT_CUDA_STAGES_MAX &&
	       blocks_at_a_time(room, dim, bytes + stage_bytes) >= n_blocks) {
		n_stages++;
		bytes += stage_bytes;
	}
	return (struct kvt_cuda_fit){ .n_resident = room->n_multiprocessors * n_blocks,
				      .n_stages = n_stages,
				      .shared_bytes = (uint32_t)bytes };
}

static uint32_t ceil_divide(uint64_t n, uint32_t by)
{
	return (uint32_t)((n + by - 1) / by);
}

static size_t align_16(size_t bytes)
{
	return (bytes + 15) & ~(size_t)15;
}

struct sizes {
	uint64_t n_pages;
	uint64_t n_tokens;
	uint64_t n_blocks;
	uint64_t n_groups; /* of all blocks */
	uint64_t n_units; /* likewise; an upper bound of items */
	uint64_t n_rows; /* of the longest sequence */
};

static struct sizes sizes_of(const struct kvt_attn_prefill *prefill)
{
	uint64_t group_heads = prefill->n_q_heads / prefill->kv.n_kv_heads;
	struct sizes sizes = { 0 };

	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		const struct kvt_attn_sequence *sequence = &prefill->sequences[i];
		uint64_t n_blocks;

		if (!sequence->n_queries)
			continue;
		n_blocks = ceil_divide(sequence->n_queries * group_heads, KVT_CUDA_ROWS) *
			   (uint64_t)prefill->kv.n_kv_heads;
		sizes.n_pages += ceil_divide(sequence->n_positions, prefill->kv.page_size);
		sizes.n_tokens += sequence->n_queries;
		if (sequence->n_queries * group_heads > sizes.n_rows)
			sizes.n_rows = sequence->n_queries * group_heads;
		sizes.n_blocks += n_blocks;
		sizes.n_groups += n_blocks * ceil_divide(sequence->n_positions, KVT_ATTN_GROUP);
		sizes.n_units += n_blocks * ceil_divide(sequence->n_positions, KVT_ATTN_UNIT);
	}
	return sizes;
}

static int memory_make(struct kvt_cuda_plan *plan, const struct sizes *sizes, uint64_t n_items)
{
	plan->pages_offset = 0;
	plan->limits_offset = align_16(sizes->n_pages * sizeof(uint32_t));
	plan->blocks_offset = plan->limits_offset + align_16(sizes->n_tokens * sizeof(uint32_t));
	plan->items_offset =
		plan->blocks_offset + align_16(sizes->n_blocks * sizeof(struct kvt_cuda_block));
	plan->flags_offset = plan->items_offset + align_16(n_items * sizeof(struct kvt_cuda_item));
	plan->bytes = plan->flags_offset + align_16(sizes->n_blocks * sizeof(uint32_t));
	if (kvt_buffer_reserve(&plan->memory, plan->bytes) ||
	    kvt_buffer_reserve(&plan->launches, sizes->n_blocks * sizeof(struct kvt_cuda_launch)))
		return -ENOMEM;
	/* Flags begin at 0. */
	memset(plan->memory.data, 0, plan->bytes);
	return 0;
}

static void *plan_at(const struct kvt_cuda_plan *plan, size_t offset)
{
	return (char *)plan->memory.data + offset;
}

/* Return the launch of the next block: a new one if its slots do not fit any more. */
static struct kvt_cuda_launch *launch_for(struct kvt_cuda_plan *plan, uint32_t n_slots,
					  uint64_t slots_wanted)
{
	struct kvt_cuda_launch *launch = plan->launches.data;

	launch += plan->n_launches;
	if (plan->n_launches && launch[-1].n_slots + (uint64_t)n_slots <= slots_wanted)
		return launch - 1;
	plan->n_launches++;
	*launch = (struct kvt_cuda_launch){ .first_block = plan->n_blocks,
					    .first_item = plan->n_items };
	return launch;
}

static void block_add(struct kvt_cuda_plan *plan, struct kvt_cuda_block block, bool uneven,
		      uint64_t slots_wanted)
{
	struct kvt_cuda_item *items = plan_at(plan, plan->items_offset);
	struct kvt_cuda_block *blocks = plan_at(plan, plan->blocks_offset);
	uint32_t n_slots = ceil_divide(block.n_units, block.span_units);
	struct kvt_cuda_launch *launch = launch_for(plan, n_slots, slots_wanted);

	block.first_slot = launch->n_slots;
	for (uint32_t unit = 0; unit < block.n_units; unit += block.span_units)
		items[plan->n_items++] = (struct kvt_cuda_item){ launch->n_blocks, unit };
	blocks[plan->n_blocks++] = block;
	launch->n_blocks++;
	launch->n_slots += n_slots;
	launch->n_split += n_slots > 1;
	launch->n_uneven += uneven;
	launch->n_items = plan->n_items - launch->first_item;
	if (launch->n_slots > plan->slots_max)
		plan->slots_max = launch->n_slots;
}

static void sequence_add(struct kvt_cuda_plan *plan, const struct kvt_attn_prefill *prefill,
			 const struct kvt_attn_sequence *sequence, struct kvt_cuda_block block,
			 const uint32_t *limits, uint64_t slots_wanted)
{
	uint32_t group_heads = prefill->n_q_heads / prefill->kv.n_kv_heads;
	uint64_t n_rows = (uint64_t)sequence->n_queries * group_heads;

	for (uint32_t head = 0; head < prefill->kv.n_kv_heads; head++) {
		for (uint64_t row = 0; row < n_rows; row += KVT_CUDA_ROWS) {
			uint64_t end = row + KVT_CUDA_ROWS < n_rows ? row + KVT_CUDA_ROWS : n_rows;

			block.first_row = (uint32_t)row;
			block.n_rows = (uint32_t)(end - row);
			block.kv_head = head;
			uint32_t low = limits[row / group_heads];
			uint32_t high = limits[(end - 1) / group_heads];

			block.n_units = ceil_divide(high, KVT_ATTN_UNIT);
			block_add(plan, block, low != high, slots_wanted);
		}
	}
}

int kvt_cuda_plan_make(struct kvt_cuda_plan *plan, const struct kvt_attn_prefill *prefill,
		       const struct kvt_cuda_fit *fit, uint64_t slots_wanted)
{
	struct sizes sizes = sizes_of(prefill);
	/*
	 * Use groups if they fill the device twice, so that its last round is well filled; else
	 * units.
	 */
	uint32_t span_units =
		sizes.n_groups >= 2 * (uint64_t)fit->n_resident ? KVT_UNITS_PER_GROUP : 1;
	struct kvt_cuda_block block = { .span_units = span_units };
	uint32_t *pages, *limits;
	int r;

	/* Limits: the kernels' 32-bit counts, and the blocks of a launch. */
	if (sizes.n_rows > UINT32_MAX || sizes.n_tokens > UINT32_MAX ||
	    sizes.n_pages > UINT32_MAX || sizes.n_units > GRID_MAX)
		return -EINVAL;
	plan->n_blocks = plan->n_items = plan->n_launches = plan->slots_max = 0;
	plan->n_stages = fit->n_stages;
	r = memory_make(plan, &sizes, span_units == 1 ? sizes.n_units : sizes.n_groups);
	if (r)
		return r;
	pages = plan_at(plan, plan->pages_offset);
	limits = plan_at(plan, plan->limits_offset);
	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		const struct kvt_attn_sequence *sequence = &prefill->sequences[i];
		uint32_t n_pages = ceil_divide(sequence->n_positions, prefill->kv.page_size);

		if (!sequence->n_queries)
			continue;
		memcpy(pages + block.first_page, sequence->pages, n_pages * sizeof *pages);
		kvt_sequence_limits(sequence, limits + block.first_token);
		sequence_add(plan, prefill, sequence, block, limits + block.first_token,
			     slots_wanted);
		block.first_page += n_pages;
		block.first_token += sequence->n_queries;
	}
	return 0;
}

void kvt_cuda_plan_free(struct kvt_cuda_plan *plan)
{
	kvt_buffer_free(&plan->memory);
	kvt_buffer_free(&plan->launches);
}

/* True if rows are aligned to 16 bytes and a multiple of 16 bytes long. */
static bool are_lines(uint64_t base, uint64_t strides, uint32_t head_dim, uint32_t type)
{
	return (base | strides | (uint64_t)head_dim * kvt_type_size(type)) % 16 == 0;
}

static uint32_t lines_of(const struct kvt_attn_prefill *prefill)
{
	const struct kvt_attn_view *kv = &prefill->kv;
	uint64_t planes = (uint64_t)(uintptr_t)kv->k | (uint64_t)(uintptr_t)kv->v;
	uint64_t strides = kv->page_stride_bytes | kv->head_stride_bytes |
			   kv->position_stride_bytes;
	uint64_t q_strides = prefill->q_row_stride_bytes | prefill->q_head_stride_bytes;

	return (are_lines((uint64_t)(uintptr_t)prefill->q, q_strides, kv->head_dim,
			  prefill->q_type) ? KVT_CUDA_LINES_Q : 0) |
	       (are_lines(planes, strides, kv->head_dim, kv->type) ? KVT_CUDA_LINES_KV : 0);
}

void kvt_cuda_plan_args(const struct kvt_cuda_plan *plan, const struct kvt_cuda_launch *launch,
			const struct kvt_attn_prefill *prefill, uint64_t base, uint64_t partials,
			struct kvt_cuda_prefill *ret_args)
{
	const struct kvt_attn_view *kv = &prefill->kv;

	*ret_args = (struct kvt_cuda_prefill){
		.k = (uint64_t)(uintptr_t)kv->k,
		.v = (uint64_t)(uintptr_t)kv->v,
		.page_stride = kv->page_stride_bytes,
		.head_stride = kv->head_stride_bytes,
		.position_stride = kv->position_stride_bytes,
		.q = (uint64_t)(uintptr_t)prefill->q,
		.out = (uint64_t)(uintptr_t)prefill->out,
		.q_row_stride = prefill->q_row_stride_bytes,
		.q_head_stride = prefill->q_head_stride_bytes,
		.out_row_stride = prefill->out_row_stride_bytes,
		.out_head_stride = prefill->out_head_stride_bytes,
		.pages = base + plan->pages_offset,
		.limits = base + plan->limits_offset,
		.blocks = base + plan->blocks_offset +
			  launch->first_block * sizeof(struct kvt_cuda_block),
		.items = base + plan->items_offset +
			 launch->first_item * sizeof(struct kvt_cuda_item),
		.partials = partials,
		.flags = base + plan->flags_offset + launch->first_block * sizeof(uint32_t),
		.n_blocks = launch->n_blocks,
		.page_shift = (uint32_t)__builtin_ctz(kv->page_size),
		.head_dim = kv->head_dim,
		.group_heads = prefill->n_q_heads / kv->n_kv_heads,
		.q_type = prefill->q_type,
		.kv_type = kv->type,
		.out_type = prefill->out_type,
		.lines = lines_of(prefill),
		.n_stages = plan->n_stages,
		.log2_scale = kvt_log2_scale(prefill),
		.v_scale = kv->v_scale == 0 ? 1.0f : kv->v_scale,
	};
}
