/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's peak: matrix products that never wait for memory, and a read of memory
 * in order. Memory is filled with numbers, since products of zeros take less power and run
 * at higher clocks than real ones.
 */
#ifndef KVT_BENCH_ATTN_GPU_KERNELS_CUH
#define KVT_BENCH_ATTN_GPU_KERNELS_CUH

#include "bench/attn/gpu_args.h"

/* Sixteen bytes, loaded at once. */
struct alignas(16) line {
	uint32_t words[4];
};

KVT_DEVICE uint32_t bits_mix(uint32_t x)
{
	x = (x ^ (x >> 16)) * 0x7feb352du;
	x = (x ^ (x >> 15)) * 0x846ca68bu;
	return x ^ (x >> 16);
}

/* Two bf16 numbers of either sign between 0.12 and 0.5. */
KVT_DEVICE uint32_t bf16_pair(uint32_t seed)
{
	return (bits_mix(seed) & 0x80ff80ffu) | 0x3e003e00u;
}

/* Run n_chains independent products, n_rounds times. */
template <int n_chains> KVT_DEVICE void peak_run(const struct bench_gpu_args *args)
{
	const uint32_t seed = block_index() * KVT_CUDA_THREADS + thread_index();
	uint32_t a[4], b[2];
	float c[n_chains][4] = {};
	float sum = 0;

	for (int i = 0; i < 4; i++)
		a[i] = bf16_pair(seed * 6 + (uint32_t)i);
	for (int i = 0; i < 2; i++)
		b[i] = bf16_pair(seed * 6 + 4 + (uint32_t)i);
	for (uint32_t round = 0; round < args->n_rounds; round++) {
#pragma unroll
		for (int i = 0; i < n_chains; i++)
			matrix_multiply<true>(c[i], a, b[0], b[1]);
	}
	for (int i = 0; i < n_chains; i++)
		sum += c[i][0] + c[i][1] + c[i][2] + c[i][3];
	/* The sum is never minus infinity, but the compiler cannot know. */
	if (float_bits(sum) == 0xff800000u)
		*(float *)(uintptr_t)args->memory = sum;
}

KVT_DEVICE void read_run(const struct bench_gpu_args *args)
{
	const struct line *lines = (const struct line *)(uintptr_t)args->memory;
	const uint64_t n_lines = args->n_bytes / sizeof *lines;
	const uint64_t step = (uint64_t)grid_size() * KVT_CUDA_THREADS;
	uint64_t i = (uint64_t)block_index() * KVT_CUDA_THREADS + thread_index();
	uint32_t sum = 0;

	for (; i + 7 * step < n_lines; i += 8 * step) {
		struct line line[8];

#pragma unroll
		for (int j = 0; j < 8; j++)
			line[j] = lines[i + (uint64_t)j * step];
#pragma unroll
		for (int j = 0; j < 8; j++)
			sum |= line[j].words[0] ^ line[j].words[1] ^ line[j].words[2] ^
			       line[j].words[3];
	}
	for (; i < n_lines; i += step)
		sum |= lines[i].words[0];
	if (sum == 0x12345678u && args->n_rounds == 0xffffffffu)
		*(uint32_t *)(uintptr_t)args->memory = sum;
}

/* Numbers of either sign: 16-bit ones between 0.12 and 0.5, fp32 likewise, fp8 up to 1. */
KVT_DEVICE void fill_run(const struct bench_gpu_args *args)
{
	uint32_t *words = (uint32_t *)(uintptr_t)args->memory;
	const uint64_t step = (uint64_t)grid_size() * KVT_CUDA_THREADS;
	uint64_t i = (uint64_t)block_index() * KVT_CUDA_THREADS + thread_index();

	for (; i < args->n_bytes / 4; i += step) {
		uint32_t bits = bits_mix((uint32_t)i ^ (uint32_t)(i >> 32) * 0x9e3779b9u);

		words[i] = args->kind == 0   ? (bits & 0x807fffffu) | 0x3e800000u
			   : args->kind == 1 ? (bits & 0x83ff83ffu) | 0x34003400u
			   : args->kind == 2 ? (bits & 0x80ff80ffu) | 0x3e003e00u
					     : bits & 0xb7b7b7b7u;
	}
}

#endif
