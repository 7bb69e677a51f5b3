/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands for nvcc's binaries if there is no nvcc. The stand-in for the driver goes by names of
 * kernels (tests/kernels/emulated.cpp) and sees only the beginning of a binary.
 */

#include <stddef.h>

#include "examples/worker/compute_images.h"

static const unsigned char binary[] = "\177ELF of the stand-in";
static const unsigned char ptx[] = ".version of the stand-in";

/* The same devices as in the real lists. */
#define IMAGES                                                                                     \
	{                                                                                          \
		{ binary, "sm_90a binary", 9, 0, true, false },                                    \
		{ binary, "sm_80 binary", 8, 0, false, false },                                    \
		{ ptx, "compute_80 PTX", 8, 0, false, true },                                     \
		{ NULL, NULL, 0, 0, false, false },                                                \
	}

const struct kvt_cuda_image kvt_cuda_images[] = IMAGES;
const struct kvt_cuda_image compute_images[] = IMAGES;
