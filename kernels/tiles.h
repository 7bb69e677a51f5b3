/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile instructions of AMX that the amx_bf16 path uses, with the roles that it gives to the
 * eight registers. The same names are defined in tests/kernels/emulated_tiles.h, by plain C.
 *
 *   TILE_C (0 to 3)   sums: rows of 16 floats
 *   TILE_A (4, 5)     left factors: rows of 32 bf16
 *   TILE_B (6, 7)     right factors: 16 rows of 16 pairs of bf16
 *
 * A product adds to c[m][n] one number: the sum over even elements, and that over odd ones, each
 * from 0 in ascending order, added to each other. Each step rounds to nearest even, denormals are 0
 * on both sides; MXCSR has no effect.
 */
#ifndef KVT_KERNELS_TILES_H
#define KVT_KERNELS_TILES_H

#include <stdint.h>

#define TILE_ROWS_MAX 16

struct tile_config {
	uint8_t palette;
	uint8_t start_row;
	uint8_t reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct tile_config) == 64, "as the instruction reads it");

static inline void tile_config_load(const struct tile_config *config)
{
	__asm__ volatile("ldtilecfg %0" ::"m"(*config) : "memory");
}

static inline void tile_release(void)
{
	__asm__ volatile("tilerelease" ::: "memory");
}

/* Registers are part of the instruction, so these are macros. Strides are in bytes. */
#define tile_zero(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define tile_load(t, from, stride)                                                                 \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void *)(from)),              \
			 "r"((uint64_t)(stride))                                                   \
			 : "memory")
#define tile_store(t, to, stride)                                                                  \
	__asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void *)(to)),                  \
			 "r"((uint64_t)(stride))                                                   \
			 : "memory")
#define tile_dot(c, a, b)                                                                          \
	__asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#endif
