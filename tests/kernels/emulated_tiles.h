/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tile instructions of kernels/tiles.h, emulated as in Intel's manual. A file that includes
 * this instead runs without AMX. Products use AVX-512, which the path needs anyway.
 */
#ifndef KVT_TESTS_KERNELS_EMULATED_TILES_H
#define KVT_TESTS_KERNELS_EMULATED_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TILE_ROWS_MAX 16

struct tile_config {
	uint8_t palette;
	uint8_t start_row;
	uint8_t reserved[14];
	uint16_t row_bytes[16];
	uint8_t rows[16];
} __attribute__((aligned(64)));

struct emulated_tile {
	union {
		float floats[16][16];
		uint16_t halves[16][32];
	} at;
} __attribute__((aligned(64)));

static __thread struct tile_config emulated_config;
static __thread struct emulated_tile emulated_tiles[8];

/* A faulting instruction ends the program. */
static inline void emulated_expect(int good)
{
	if (!good)
		abort();
}

static inline void tile_config_load(const struct tile_config *config)
{
	emulated_expect(config->palette == 1 && config->start_row == 0);
	for (int i = 0; i < 8; i++)
		emulated_expect(config->rows[i] >= 1 && config->rows[i] <= 16 &&
				config->row_bytes[i] == 64);
	emulated_config = *config;
	memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void tile_release(void)
{
	emulated_config.palette = 0;
}

static inline void tile_zero(int t)
{
	emulated_expect(emulated_config.palette == 1);
	memset(&emulated_tiles[t], 0, sizeof emulated_tiles[t]);
}

/* Rows past those of the configuration become zeros. */
static inline void tile_load(int t, const void *from, uint64_t stride)
{
	emulated_expect(emulated_config.palette == 1);
	memset(&emulated_tiles[t], 0, sizeof emulated_tiles[t]);
	for (int row = 0; row < emulated_config.rows[t]; row++)
		memcpy(emulated_tiles[t].at.halves[row], (const char *)from + row * stride, 64);
}

static inline void tile_store(int t, void *to, uint64_t stride)
{
	emulated_expect(emulated_config.palette == 1);
	for (int row = 0; row < emulated_config.rows[t]; row++)
		memcpy((char *)to + row * stride, emulated_tiles[t].at.halves[row], 64);
}

/* One row of sums, with denormals read and written as 0, and rounding to nearest even. */
static inline void emulated_row_dot(float *c, const uint16_t *a, const uint16_t (*b)[32])
{
	const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
	__m512 even = _mm512_setzero_ps(), odd = even;

	for (int k = 0; k < 16; k++) {
		__m512i pairs = _mm512_load_si512(b[k]);
		__m512i ae = _mm512_set1_epi32((int)((uint32_t)a[2 * k] << 16));
		__m512i ao = _mm512_set1_epi32((int)((uint32_t)a[2 * k + 1] << 16));

		even = _mm512_fmadd_ps(_mm512_castsi512_ps(ae),
				       _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)), even);
		odd = _mm512_fmadd_ps(_mm512_castsi512_ps(ao),
				      _mm512_castsi512_ps(_mm512_and_si512(pairs, high)), odd);
	}
	_mm512_store_ps(c, _mm512_add_ps(_mm512_load_ps(c), _mm512_add_ps(even, odd)));
}

static inline void tile_dot(int c, int a, int b)
{
	uint32_t callers = _mm_getcsr();

	emulated_expect(emulated_config.palette == 1 && emulated_config.rows[b] == 16 &&
			emulated_config.rows[a] == emulated_config.rows[c]);
	/* All exceptions masked, flush to zero, denormals are zeros. */
	_mm_setcsr(0x1f80 | 0x8000 | 0x40);
	__asm__ volatile("" ::: "memory");
	for (int row = 0; row < emulated_config.rows[c]; row++)
		emulated_row_dot(emulated_tiles[c].at.floats[row], emulated_tiles[a].at.halves[row],
				 emulated_tiles[b].at.halves);
	__asm__ volatile("" ::: "memory");
	_mm_setcsr(callers);
}

#endif
