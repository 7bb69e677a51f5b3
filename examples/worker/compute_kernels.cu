/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's kernels by name: compute_cuda.c looks them up as worker_NAME. */

#include "kernels/convert.h"
#include "kernels/cuda_args.h"
#include "kernels/cuda_device.cuh"

#include "examples/worker/compute_kernels.cuh"

#define KERNEL(name)                                                                              \
	KVT_KERNEL worker_##name(const __grid_constant__ struct compute_args args)                \
	{                                                                                         \
		name##_run(&args);                                                                \
	}

COMPUTE_KERNELS(KERNEL)
