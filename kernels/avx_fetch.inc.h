/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetches of rows for the AVX2 and AVX-512 paths. */

#include <immintrin.h>

#include "internal.h"

/* Prefetch row by row, in memory's order: the next rows into L1, those of a block later into L2. */
static inline void rows_fetch(const struct kvt_rows *rows, uint32_t first, uint32_t n,
			      uint32_t bytes)
{
	for (uint32_t i = first; i < first + n; i++) {
		const char *row = rows->at[i];

		for (uint32_t j = 0; j < bytes; j += 256) {
			_mm_prefetch(row + j, _MM_HINT_T0);
			_mm_prefetch(row + j + 64, _MM_HINT_T0);
			_mm_prefetch(row + j + 128, _MM_HINT_T0);
			_mm_prefetch(row + j + 192, _MM_HINT_T0);
		}
	}
}

static inline void ahead_fetch(const struct kvt_rows *ahead, uint32_t first, uint32_t n,
			       uint32_t bytes)
{
	for (uint32_t i = first; ahead->n && i < first + n; i++) {
		const char *row = ahead->at[i];

		for (uint32_t j = 0; j < bytes; j += 256) {
			_mm_prefetch(row + j, _MM_HINT_T1);
			_mm_prefetch(row + j + 64, _MM_HINT_T1);
			_mm_prefetch(row + j + 128, _MM_HINT_T1);
			_mm_prefetch(row + j + 192, _MM_HINT_T1);
		}
	}
}
