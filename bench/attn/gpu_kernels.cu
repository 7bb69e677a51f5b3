/* SPDX-License-Identifier: Apache-2.0 */
/* The floor kernels by name. */

#include "kernels/cuda_args.h"
#include "kernels/cuda_device.cuh"

#include "bench/attn/gpu_kernels.cuh"

KVT_KERNEL bench_peak_4(const __grid_constant__ struct bench_gpu_args args)
{
	peak_run<4>(&args);
}

KVT_KERNEL bench_peak_8(const __grid_constant__ struct bench_gpu_args args)
{
	peak_run<8>(&args);
}

KVT_KERNEL bench_read(const __grid_constant__ struct bench_gpu_args args)
{
	read_run(&args);
}

KVT_KERNEL bench_fill(const __grid_constant__ struct bench_gpu_args args)
{
	fill_run(&args);
}
