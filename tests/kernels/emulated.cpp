/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels, run on the CPU. They are found by their names in kernels/cuda_kernels.cu. */

#include "tests/kernels/emulated.h"
#include "tests/kernels/emulator.h"

#include "kernels/cuda_attention.cuh"
#include "kernels/cuda_pages.cuh"

#include "bench/attn/gpu_kernels.cuh"
#include "examples/worker/compute_kernels.cuh"

typedef void run_fn(void *args);

template <int dim, int kind, bool f8> static void attend_run(void *args)
{
	attend<dim, kind, f8>(*static_cast<const kvt_cuda_prefill *>(args));
}

template <int dim, int kind, bool f8> static void repair_run(void *args)
{
	repair<dim, kind, f8>(*static_cast<const kvt_cuda_prefill *>(args));
}

template <int dim> static void merge_run(void *args)
{
	merge<dim>(*static_cast<const kvt_cuda_prefill *>(args));
}

static void append_kernel(void *args)
{
	append_run(static_cast<const kvt_cuda_append *>(args),
		   (uint64_t)block_index() * KVT_CUDA_THREADS + thread_index(),
		   (uint64_t)grid_size() * KVT_CUDA_THREADS);
}

static void copy_kernel(void *args)
{
	copy_run(static_cast<const kvt_cuda_copy *>(args), block_index(), block_index_y());
}

template <int n_chains> static void peak_kernel(void *args)
{
	peak_run<n_chains>(static_cast<const bench_gpu_args *>(args));
}

static void read_kernel(void *args)
{
	read_run(static_cast<const bench_gpu_args *>(args));
}

static void fill_kernel(void *args)
{
	fill_run(static_cast<const bench_gpu_args *>(args));
}

#define COMPUTE_KERNEL(name)                                                                      \
	static void worker_##name(void *args)                                                     \
	{                                                                                         \
		name##_run(static_cast<const compute_args *>(args));                              \
	}
COMPUTE_KERNELS(COMPUTE_KERNEL)

struct kernel {
	const char *name;
	run_fn *run;
	size_t bytes; /* of its argument */
};

#define ATTENTION(dim, name, kind, f8)                                                             \
	{ "kvt_attend_" #dim "_" #name, attend_run<dim, kind, f8>, sizeof(kvt_cuda_prefill) },     \
	{                                                                                          \
		"kvt_repair_" #dim "_" #name, repair_run<dim, kind, f8>, sizeof(kvt_cuda_prefill)  \
	}
#define ALL(dim)                                                                                   \
	ATTENTION(dim, bf16_16, KIND_BF16, false), ATTENTION(dim, bf16_f8, KIND_BF16, true),       \
		ATTENTION(dim, f16_16, KIND_F16, false), ATTENTION(dim, f16_f8, KIND_F16, true),   \
		ATTENTION(dim, f32, KIND_F32, false),                                              \
	{                                                                                          \
		"kvt_merge_" #dim, merge_run<dim>, sizeof(kvt_cuda_prefill)                        \
	}

#define COMPUTE(name) { "worker_" #name, worker_##name, sizeof(compute_args) },

static const kernel kernels[] = {
	ALL(64),
	ALL(80),
	ALL(96),
	ALL(128),
	ALL(256),
	{ "kvt_append", append_kernel, sizeof(kvt_cuda_append) },
	{ "kvt_copy", copy_kernel, sizeof(kvt_cuda_copy) },
	{ "bench_peak_4", peak_kernel<4>, sizeof(bench_gpu_args) },
	{ "bench_peak_8", peak_kernel<8>, sizeof(bench_gpu_args) },
	{ "bench_read", read_kernel, sizeof(bench_gpu_args) },
	{ "bench_fill", fill_kernel, sizeof(bench_gpu_args) },
	COMPUTE_KERNELS(COMPUTE)
};

static const kernel *kernel_find(const char *name)
{
	for (const kernel &kernel : kernels) {
		if (strcmp(kernel.name, name) == 0)
			return &kernel;
	}
	return nullptr;
}

extern "C" int emulated_known(const char *name)
{
	return kernel_find(name) != nullptr;
}

extern "C" uint32_t emulated_args_bytes(const char *name)
{
	return (uint32_t)kernel_find(name)->bytes;
}

extern "C" void emulated_schedule(uint64_t seed)
{
	emulator::schedule = seed;
}

extern "C" void emulated_traffic_count(int on)
{
	emulator::traffic_count(on);
}

extern "C" uint32_t emulated_traffic(const struct emulated_place **ret_places, uint32_t *ret_bytes)
{
	*ret_places = emulator::the_traffic->places;
	*ret_bytes = emulator::the_traffic->used_bytes;
	return emulator::the_traffic->n_places;
}

extern "C" void emulated_launch(const char *name, const void *args, uint32_t grid_x,
				uint32_t grid_y)
{
	const kernel *kernel = kernel_find(name);
	alignas(16) unsigned char copy[256];

	memcpy(copy, args, kernel->bytes);
	for (uint32_t y = 0; y < grid_y; y++) {
		for (uint32_t x = 0; x < grid_x; x++)
			emulator::block_run(x, y, grid_x, kernel->run, copy);
	}
}
