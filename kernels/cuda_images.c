/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of binaries. The build defines KVT_CUDA_IMAGES as the folder where nvcc has put them,
 * or does not, where there is no nvcc.
 */

#include "cuda_images.h"

#include <stddef.h>

#ifdef KVT_CUDA_IMAGES

#define IMAGE(symbol, file)                                                                        \
	__asm__(".pushsection .rodata\n\t.balign 64\n\t.type " #symbol ", @object\n" #symbol       \
		":\n\t.incbin \"" KVT_CUDA_IMAGES "/" file "\"\n\t.byte 0\n\t.size " #symbol       \
		", . - " #symbol "\n\t.popsection");                                               \
	extern const unsigned char symbol[] __attribute__((visibility("hidden")))

IMAGE(kvt_cuda_image_sm_80, "sm_80.cubin");
IMAGE(kvt_cuda_image_sm_90a, "sm_90a.cubin");
IMAGE(kvt_cuda_image_ptx, "compute_80.ptx");

const struct kvt_cuda_image kvt_cuda_images[] = {
	{ kvt_cuda_image_sm_90a, "sm_90a binary", 9, 0, true, false },
	{ kvt_cuda_image_sm_80, "sm_80 binary", 8, 0, false, false },
	{ kvt_cuda_image_ptx, "compute_80 PTX", 8, 0, false, true },
	{ NULL, NULL, 0, 0, false, false },
};

#else

const struct kvt_cuda_image kvt_cuda_images[] = { { NULL, NULL, 0, 0, false, false } };

#endif
