/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_COMPUTE_ARGS_H
#define KVT_WORKER_COMPUTE_ARGS_H

/**
 * @file compute_args.h
 * Arguments of the worker's CUDA kernels, compiled by the C compiler and by nvcc, and the
 * kernels by name. All have thread blocks of KVT_CUDA_THREADS, any number of them.
 */

#include <stdint.h>

#include "kernels/cuda_args.h"

#define COMPUTE_KERNELS(KERNEL)                                                                   \
	KERNEL(zero)                                                                              \
	KERNEL(embed)                                                                             \
	KERNEL(rms_norm)                                                                          \
	KERNEL(rotate)                                                                            \
	KERNEL(swiglu)                                                                            \
	KERNEL(add)                                                                               \
	KERNEL(round)

/* The operands of compute.h's operations; addresses are the device's. */
struct compute_args {
	uint64_t to;
	uint64_t from;
	uint64_t weight; /* rms_norm's, embed's table; swiglu's up */
	uint64_t n;      /* elements of `to`; rms_norm: rows; rotate: pairs */
	uint32_t width;  /* of a row */
	uint32_t head_dim;
	uint32_t position;
	uint32_t type;
	float constant; /* rms_norm: epsilon; rotate: base of the angles */
};

#endif
