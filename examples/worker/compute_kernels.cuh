/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass's kernels beside attention and matrix products. An element's result depends
 * only on its operands, and a row's sum is always added in the same order: by each lane
 * of a warp, then by lanes in pairs.
 */
#ifndef KVT_WORKER_COMPUTE_KERNELS_CUH
#define KVT_WORKER_COMPUTE_KERNELS_CUH

#include "examples/worker/compute_args.h"

KVT_DEVICE float *numbers(uint64_t address)
{
	return (float *)(uintptr_t)address;
}

/* Distribute the elements over all threads of all blocks. */
#define EACH_ELEMENT(i, n)                                                                        \
	uint64_t i = (uint64_t)block_index() * KVT_CUDA_THREADS + thread_index();                 \
	i < (n);                                                                                  \
	i += (uint64_t)grid_size() * KVT_CUDA_THREADS

KVT_DEVICE void zero_run(const struct compute_args *args)
{
	for (EACH_ELEMENT(i, args->n))
		numbers(args->to)[i] = 0.0f;
}

KVT_DEVICE void embed_run(const struct compute_args *args)
{
	const uint32_t *tokens = (const uint32_t *)(uintptr_t)args->from;

	for (EACH_ELEMENT(i, args->n)) {
		uint64_t from = (uint64_t)tokens[i / args->width] * args->width + i % args->width;

		numbers(args->to)[i] = numbers(args->weight)[from];
	}
}

/* A warp for a row. */
KVT_DEVICE void rms_norm_run(const struct compute_args *args)
{
	const uint32_t width = args->width, warps = KVT_CUDA_THREADS / 32;
	const uint32_t warp = thread_index() / 32, lane = thread_index() % 32;

	for (uint64_t row = block_index() * warps + warp; row < args->n;
	     row += grid_size() * warps) {
		const float *x = numbers(args->from) + row * width;
		float *y = numbers(args->to) + row * width, sum = 0.0f, scale;

		for (uint32_t i = lane; i < width; i += 32)
			sum += x[i] * x[i];
		for (int mask = 16; mask > 0; mask /= 2)
			sum += exchange(sum, mask);
		scale = 1.0f / sqrtf(sum / (float)width + args->constant);
		for (uint32_t i = lane; i < width; i += 32)
			y[i] = numbers(args->weight)[i] * (scale * x[i]);
	}
}

KVT_DEVICE void rotate_run(const struct compute_args *args)
{
	const uint32_t pairs = args->width / 2;

	for (EACH_ELEMENT(i, args->n)) {
		float *x = numbers(args->to) + 2 * i;
		uint32_t dim = (uint32_t)(i % pairs) * 2 % args->head_dim;
		float frequency = 1.0f / powf(args->constant, (float)dim / (float)args->head_dim);
		float angle = (float)(args->position + (uint32_t)(i / pairs)) * frequency;
		float c = cosf(angle), s = sinf(angle), a = x[0], b = x[1];

		x[0] = a * c - b * s;
		x[1] = a * s + b * c;
	}
}

KVT_DEVICE void swiglu_run(const struct compute_args *args)
{
	float *gate = numbers(args->to);

	for (EACH_ELEMENT(i, args->n))
		gate[i] = gate[i] / (1.0f + expf(-gate[i])) * numbers(args->weight)[i];
}

KVT_DEVICE void add_run(const struct compute_args *args)
{
	for (EACH_ELEMENT(i, args->n))
		numbers(args->to)[i] += numbers(args->from)[i];
}

KVT_DEVICE void round_run(const struct compute_args *args)
{
	const uint32_t bytes = kvt_type_size(args->type);

	for (EACH_ELEMENT(i, args->n))
		kvt_element_store((unsigned char *)(uintptr_t)args->to + i * bytes, args->type,
				  numbers(args->from)[i]);
}

#endif
