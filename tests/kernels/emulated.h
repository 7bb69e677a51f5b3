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

/* Run all thread blocks of a kernel, one after the other. args is what the kernel takes. */
void emulated_launch(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y);

#ifdef __cplusplus
}
#endif

#endif
