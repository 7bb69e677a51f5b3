/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels by name, for each head dim, kind of products, and kind of KV (16 bits as the
 * queries, or fp8; any with fp32 products). cuda_host.c looks them up as
 * kvt_attend_DIM_KIND[_KV], kvt_repair_DIM_KIND[_KV] and kvt_merge_DIM.
 */

#include "convert.h"
#include "cuda_args.h"
#include "cuda_device.cuh"

#include "cuda_attention.cuh"
#include "cuda_pages.cuh"

#define ATTENTION(dim, name, kind, f8)                                                             \
	KVT_KERNEL_BLOCKS(KVT_CUDA_BLOCKS(dim))                                                    \
	kvt_attend_##dim##_##name(const __grid_constant__ struct kvt_cuda_prefill args)            \
	{                                                                                          \
		attend<dim, kind, f8>(args);                                                       \
	}                                                                                          \
	KVT_KERNEL kvt_repair_##dim##_##name(const __grid_constant__ struct kvt_cuda_prefill args) \
	{                                                                                          \
		repair<dim, kind, f8>(args);                                                       \
	}

#define ALL(dim)                                                                                   \
	ATTENTION(dim, bf16_16, KIND_BF16, false)                                                  \
	ATTENTION(dim, bf16_f8, KIND_BF16, true)                                                   \
	ATTENTION(dim, f16_16, KIND_F16, false)                                                    \
	ATTENTION(dim, f16_f8, KIND_F16, true)                                                     \
	ATTENTION(dim, f32, KIND_F32, false)                                                       \
	KVT_KERNEL kvt_merge_##dim(const __grid_constant__ struct kvt_cuda_prefill args)           \
	{                                                                                          \
		merge<dim>(args);                                                                  \
	}

ALL(64)
ALL(80)
ALL(96)
ALL(128)
ALL(256)

KVT_KERNEL kvt_append(const __grid_constant__ struct kvt_cuda_append args)
{
	append_run(&args, (uint64_t)block_index() * KVT_CUDA_THREADS + thread_index(),
		   (uint64_t)grid_size() * KVT_CUDA_THREADS);
}

KVT_KERNEL kvt_copy(const __grid_constant__ struct kvt_cuda_copy args)
{
	copy_run(&args, block_index(), block_index_y());
}
