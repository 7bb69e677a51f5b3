/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA part of kvtbench-attn. */
#ifndef KVT_BENCH_ATTN_GPU_H
#define KVT_BENCH_ATTN_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_options {
	uint32_t n_repetitions;
	const char *only; /* figures whose name contains this; NULL for all */
	bool quick;
	/*
	 * Sizes for emulated hardware, in tests of this program. Figures mean nothing then, and say
	 * so.
	 */
	bool small;
};

/*
 * Print a JSON object a line for each figure of CUDA device 0, beside the device's floors in the
 * same repetition. Returns 0, or 77 (and a line "skip: reason") where no device has kernels in this
 * build. Ends the program when the device fails.
 */
int gpu_run(const struct gpu_options *options);

#endif
