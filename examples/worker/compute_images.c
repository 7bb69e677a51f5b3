/* SPDX-License-Identifier: Apache-2.0 */

/* The worker's CUDA kernels made by nvcc; none without nvcc. */

#include "kernels/cuda_images.h"

#include <stddef.h>

#include "compute_images.h"

#ifdef KVT_CUDA_IMAGES

KVT_CUDA_IMAGE(worker_image_sm_80, "worker_sm_80.cubin");
KVT_CUDA_IMAGE(worker_image_sm_90a, "worker_sm_90a.cubin");
KVT_CUDA_IMAGE(worker_image_ptx, "worker_compute_80.ptx");

const struct kvt_cuda_image compute_images[] = {
	{ worker_image_sm_90a, "sm_90a binary", 9, 0, true, false },
	{ worker_image_sm_80, "sm_80 binary", 8, 0, false, false },
	{ worker_image_ptx, "compute_80 PTX", 8, 0, false, true },
	{ NULL, NULL, 0, 0, false, false },
};

#else

const struct kvt_cuda_image compute_images[] = { { NULL, NULL, 0, 0, false, false } };

#endif
