/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_KERNELS_EMULATED_H
#define KVT_TESTS_KERNELS_EMULATED_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda_args.h"

enum emulated_kernel {
	EMULATED_ATTEND,
	EMULATED_MERGE,
	EMULATED_REPAIR,
};

#ifdef __cplusplus
extern "C"
#endif
	void
	emulated_launch(enum emulated_kernel kernel, uint32_t dim, bool bf16, bool f8,
			const struct kvt_cuda_prefill *args, uint32_t n_blocks);

#endif
