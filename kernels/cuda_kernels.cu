/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels by name, for each head dim, 16-bit type, and kind of KV (16 bits as the queries, or
 * fp8). cuda_host.c looks them up as kvt_attend_DIM_TYPE_KV, kvt_repair_DIM_TYPE_KV and
 * kvt_merge_DIM_TYPE.
 */

#include "convert.h"
#include "cuda_args.h"
#include "cuda_device.cuh"

#include "cuda_attention.cuh"
#include "cuda_pages.cuh"

#define ATTENTION(dim, name, bf16, kv, f8)                                                         \
	KVT_KERNEL kvt_attend_##dim##_##name##_##kv(                                               \
		const __grid_constant__ struct kvt_cuda_prefill args)                              \
	{                                                                                          \
		attend<dim, bf16, f8>(args);                                                       \
	}                                                                                          \
	KVT_KERNEL kvt_repair_##dim##_##name##_##kv(                                               \
		const __grid_constant__ struct kvt_cuda_prefill args)                              \
	{                                                                                          \
		repair<dim, bf16, f8>(args);                                                       \
	}

#define MERGE(dim, name, bf16)                                                                     \
	KVT_KERNEL kvt_merge_##dim##_##name(const __grid_constant__ struct kvt_cuda_prefill args)  \
	{                                                                                          \
		merge<dim, bf16>(args);                                                            \
	}

#define ALL(dim)                                                                                   \
	ATTENTION(dim, bf16, true, 16, false)                                                      \
	ATTENTION(dim, bf16, true, f8, true)                                                       \
	ATTENTION(dim, f16, false, 16, false)                                                      \
	ATTENTION(dim, f16, false, f8, true)                                                       \
	MERGE(dim, bf16, true)                                                                     \
	MERGE(dim, f16, false)

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
