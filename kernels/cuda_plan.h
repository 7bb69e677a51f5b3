/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a batch into thread blocks. Plain C, without the driver, so that tests need no
 * GPU.
 */
#ifndef KVT_KERNELS_CUDA_PLAN_H
#define KVT_KERNELS_CUDA_PLAN_H

#include "cuda_args.h"
#include "internal.h"

/*
 * Blocks whose partial results fit into memory together, and their items. Slots count from 0 in
 * each launch.
 */
struct kvt_cuda_launch {
	uint32_t first_block;
	uint32_t n_blocks;
	uint32_t first_item;
	uint32_t n_items;
	uint32_t n_slots;
	uint32_t n_split; /* blocks of several spans: kernel merge has work */
	uint32_t n_uneven; /* blocks whose rows see unequally many positions: repair may have */
};

/* The upload is one piece of memory, in this order; each array is aligned to 16 bytes. */
struct kvt_cuda_plan {
	struct kvt_buffer memory;
	size_t bytes; /* to upload */
	size_t pages_offset;
	size_t limits_offset;
	size_t blocks_offset;
	size_t items_offset;
	size_t flags_offset;
	uint32_t n_blocks;
	uint32_t n_items;
	uint32_t n_stages;
	uint32_t slots_max; /* of any launch */
	uint32_t n_launches;
	struct kvt_buffer launches; /* struct kvt_cuda_launch[] */
};

/* Return the head dim of the kernels that serve this one; 0: none. */
uint32_t kvt_cuda_dim(uint32_t head_dim) KVT_HIDDEN;

/* Bytes of one slot. */
size_t kvt_cuda_slot_bytes(uint32_t dim) KVT_HIDDEN;

/*
 * Return the kernels' name behind kvt_attend_ and kvt_repair_, such as 128_bf16_f8, and their bytes
 * of shared memory for n_stages stages.
 */
void kvt_cuda_kernel_name(const struct kvt_attn_prefill *prefill, char *name,
			  size_t name_bytes) KVT_HIDDEN;
size_t kvt_cuda_shared_bytes(const struct kvt_attn_prefill *prefill, uint32_t n_stages) KVT_HIDDEN;

/* A device's resources for thread blocks. */
struct kvt_cuda_room {
	uint32_t n_multiprocessors;
	uint32_t shared_bytes; /* of a multiprocessor */
	uint32_t block_shared_bytes; /* limit of one block */
};

/* Their use by the blocks of a batch. */
struct kvt_cuda_fit {
	uint32_t n_resident; /* blocks that the device runs at a time */
	uint32_t n_stages; /* 2 to KVT_CUDA_STAGES_MAX */
	uint32_t shared_bytes; /* of a block */
};

/*
 * Fit as many blocks as have room with two stages, then as many stages as leave all of them room:
 * other blocks hide every wait, stages only those for copies.
 */
struct kvt_cuda_fit kvt_cuda_fit(const struct kvt_attn_prefill *prefill,
				 const struct kvt_cuda_room *room) KVT_HIDDEN;

/*
 * Plan a checked batch for a device with this fit and memory for slots_wanted slots (a launch has
 * at least one block, whatever that needs). Returns 0, -ENOMEM, or -EINVAL for a batch beyond
 * 32-bit counts. The plan keeps its memory from call to call; kvt_cuda_plan_free() frees it.
 */
int kvt_cuda_plan_make(struct kvt_cuda_plan *plan, const struct kvt_attn_prefill *prefill,
		       const struct kvt_cuda_fit *fit, uint64_t slots_wanted) KVT_HIDDEN;
void kvt_cuda_plan_free(struct kvt_cuda_plan *plan) KVT_HIDDEN;

/* Make the arguments of a launch; base is the plan's address on the device. */
void kvt_cuda_plan_args(const struct kvt_cuda_plan *plan, const struct kvt_cuda_launch *launch,
			const struct kvt_attn_prefill *prefill, uint64_t base, uint64_t partials,
			struct kvt_cuda_prefill *ret_args) KVT_HIDDEN;

#endif
