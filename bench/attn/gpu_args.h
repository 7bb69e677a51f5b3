/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the floor kernels. Compiled by the C compiler and by nvcc. */
#ifndef KVT_BENCH_ATTN_GPU_ARGS_H
#define KVT_BENCH_ATTN_GPU_ARGS_H

#include <stdint.h>

/* memory has n_bytes, a multiple of 16, and is aligned to 16. */
struct bench_gpu_args {
	uint64_t memory;
	uint64_t n_bytes;
	uint32_t n_rounds;
	uint32_t kind; /* fill: enum kvt_attn_type */
};

#endif
