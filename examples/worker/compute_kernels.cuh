/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a forward pass computes beside attention and matrix products. An element's result depends
 * on nothing but its operands, and a row's sum is always added in the same order: by threads, by
 * lanes in pairs, by warps.
 */
#ifndef KVT_WORKER_COMPUTE_KERNELS_CUH
#define KVT_WORKER_COMPUTE_KERNELS_CUH

#include "examples/worker/compute_args.h"

KVT_DEVICE float *numbers(uint64_t address)
{
	return (float *)(uintptr_t)address;
}

/* Elements are dealt out to all threads of all blocks. */
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

/* The sum over all threads of a block, in each of them. */
KVT_DEVICE float block_sum(float sum)
{
	float *sums = (float *)shared_memory(); /* one for each warp */

	for (int mask = 16; mask > 0; mask /= 2)
		sum += exchange(sum, mask);
	barrier(); /* the sums before have been read */
	if (thread_index() % 32 == 0)
		sums[thread_index() / 32] = sum;
	barrier();
	sum = 0.0f;
	for (int warp = 0; warp < KVT_CUDA_THREADS / 32; warp++)
		sum += sums[warp];
	return sum;
}

/* A thread block for a row. */
KVT_DEVICE void rms_norm_run(const struct compute_args *args)
{
	const uint32_t width = args->width;

	for (uint64_t row = block_index(); row < args->n; row += grid_size()) {
		const float *x = numbers(args->from) + row * width;
		float *y = numbers(args->to) + row * width, sum = 0.0f, scale;

		for (uint32_t i = thread_index(); i < width; i += KVT_CUDA_THREADS)
			sum += x[i] * x[i];
		sum = block_sum(sum);
		scale = 1.0f / sqrtf(sum / (float)width + args->constant);
		for (uint32_t i = thread_index(); i < width; i += KVT_CUDA_THREADS)
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
