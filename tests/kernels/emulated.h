/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_KERNELS_EMULATED_H
#define KVT_TESTS_KERNELS_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether there is a kernel of this name. */
int emulated_known(const char *name);

/* Bytes of what that kernel takes. */
uint32_t emulated_args_bytes(const char *name);

/*
 * From now on: 0 for threads that take turns and copies that are as late as they may; else the seed
 * of another order. (tests/kernels/emulator.h)
 */
void emulated_schedule(uint64_t seed);

/* Run all thread blocks of a kernel, one after the other. args is what the kernel takes. */
void emulated_launch(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y);

#ifdef __cplusplus
}
#endif

#endif
