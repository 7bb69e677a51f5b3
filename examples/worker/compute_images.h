/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_COMPUTE_IMAGES_H
#define KVT_WORKER_COMPUTE_IMAGES_H

#include "kernels/cuda_images.h"

extern const struct kvt_cuda_image compute_images[];

#endif
