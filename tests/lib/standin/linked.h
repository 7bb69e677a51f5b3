/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CUDA_LINKED_H
#define KVT_TESTS_CUDA_LINKED_H

/**
 * @file linked.h
 * Kernels that a stand-in for the driver is linked with, or not: tests/kernels/emulated.cpp.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* True if there is a kernel of this name. */
__attribute__((weak)) int emulated_known(const char *name);

/* Bytes of that kernel's argument. */
__attribute__((weak)) uint32_t emulated_args_bytes(const char *name);

/* Run all thread blocks of a kernel, one after the other. args is the kernel's argument. */
__attribute__((weak)) void emulated_launch(const char *name, const void *args, uint32_t grid_x,
					   uint32_t grid_y);

#ifdef __cplusplus
}
#endif

#endif
