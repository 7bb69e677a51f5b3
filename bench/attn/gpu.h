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
	 * Sizes that emulated hardware can do: figures mean nothing then, and say so. Tests of this
	 * program use it.
	 */
	bool small;
};

/*
 * Print a JSON object a line for each figure of CUDA device 0, with the device's floors in the
 * same repetition beside it. Returns 0, or 77 (and a line "skip: reason") where there is no
 * device that this build has kernels for. Ends the program when the device fails.
 */
int gpu_run(const struct gpu_options *options);

#endif
