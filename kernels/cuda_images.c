/* SPDX-License-Identifier: Apache-2.0 */
/* The library's binaries made by nvcc; none without nvcc. */

#include "cuda_images.h"

#include <stddef.h>

#ifdef KVT_CUDA_IMAGES

KVT_CUDA_IMAGE(kvt_cuda_image_sm_80, "sm_80.cubin");
KVT_CUDA_IMAGE(kvt_cuda_image_sm_90a, "sm_90a.cubin");
KVT_CUDA_IMAGE(kvt_cuda_image_ptx, "compute_80.ptx");

const struct kvt_cuda_image kvt_cuda_images[] = {
	{ kvt_cuda_image_sm_90a, "sm_90a binary", 9, 0, true, false },
	{ kvt_cuda_image_sm_80, "sm_80 binary", 8, 0, false, false },
	{ kvt_cuda_image_ptx, "compute_80 PTX", 8, 0, false, true },
	{ NULL, NULL, 0, 0, false, false },
};

#else

const struct kvt_cuda_image kvt_cuda_images[] = { { NULL, NULL, 0, 0, false, false } };

#endif
