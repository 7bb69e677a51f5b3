/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA kernels' binaries inside a library or a program. The build defines KVT_CUDA_IMAGES
 * as the folder of nvcc's output, in cuda.h of its own folder; without nvcc it is undefined.
 */
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

/* This library's binaries. */
extern const struct kvt_cuda_image kvt_cuda_images[] __attribute__((visibility("hidden")));

/*
 * Choose the binary for a compute capability; NULL: none. Binaries run on devices of the same major
 * number and the same or a later minor one; sm_90a on 9.0 only. Later devices get PTX, which the
 * driver compiles.
 */
const struct kvt_cuda_image *kvt_cuda_image_choose(const struct kvt_cuda_image *images, int major,
						   int minor)
	__attribute__((visibility("hidden")));

/* Return the cure for a driver error about loading a binary: a text after "; ", or an empty one for
 * any other error. */
const char *kvt_cuda_image_cure(int error) __attribute__((visibility("hidden")));

/* A file of that folder, as an array. */
#define KVT_CUDA_IMAGE(symbol, file)                                                               \
	__asm__(".pushsection .rodata\n\t.balign 64\n\t.type " #symbol ", @object\n" #symbol       \
		":\n\t.incbin \"" KVT_CUDA_IMAGES "/" file "\"\n\t.byte 0\n\t.size " #symbol       \
		", . - " #symbol "\n\t.popsection");                                               \
	extern const unsigned char symbol[] __attribute__((visibility("hidden")))

#endif
