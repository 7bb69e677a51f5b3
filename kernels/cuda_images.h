/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA kernels' binaries, as they lie in this library. */
#ifndef KVT_KERNELS_CUDA_IMAGES_H
#define KVT_KERNELS_CUDA_IMAGES_H

#include <stdbool.h>

struct kvt_cuda_image {
	const unsigned char *data; /* NULL ends the list */
	const char *name;
	int major;
	int minor;
	bool exact; /* for this compute capability only */
	bool ptx; /* for later ones */
};

extern const struct kvt_cuda_image kvt_cuda_images[] __attribute__((visibility("hidden")));

#endif
