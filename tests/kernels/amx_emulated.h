/* SPDX-License-Identifier: Apache-2.0 */
/* The amx_bf16 path on emulated tiles, for CPUs with AVX512_BF16. */
#ifndef KVT_TESTS_KERNELS_AMX_EMULATED_H
#define KVT_TESTS_KERNELS_AMX_EMULATED_H

#include <stdint.h>

#include "kernels/internal.h"

extern const struct kvt_path kvt_path_amx_emulated;

/* c += a b, one product of whole tiles: a is [row][32], b [pair][16 columns][2]. */
void amx_emulated_dot(float (*c)[16], const uint16_t (*a)[32], const uint16_t (*b)[32]);

#endif
