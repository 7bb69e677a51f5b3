/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of pairs of bf16 with AVX512_BF16, for queries in bf16 and KV in bf16 or fp8 (which
 * bf16 holds exactly).
 */

#include <string.h>

#include "internal.h"

#include "avx512.inc.h"

#define STEP 2
#define GEMM_ROWS 6
#define GEMM_VECTORS 4
#define TILE 24
#define BLOCK 256

#define STEPS_ALIGN 1
#define VALUES_ALIGN 2

#define GEMM_CASES_OF(instance, rows)                                                              \
	instance(rows, 1) instance(rows, 2) instance(rows, 3) instance(rows, 4)
#define GEMM_CASES(instance)                                                                       \
	GEMM_CASES_OF(instance, 1)                                                                 \
	GEMM_CASES_OF(instance, 2)                                                                 \
	GEMM_CASES_OF(instance, 3) GEMM_CASES_OF(instance, 4) GEMM_CASES_OF(instance, 5)           \
		GEMM_CASES_OF(instance, 6)

typedef uint16_t element;
typedef __m512i vb;

static inline vb b_load(const element *source)
{
	return _mm512_loadu_si512(source);
}

static inline vb a_broadcast(const element *source)
{
	int pair;

	memcpy(&pair, source, sizeof pair);
	return _mm512_set1_epi32(pair);
}

static inline vf dot(vf c, vb b, vb a)
{
	return _mm512_dpbf16_ps(c, (__m512bh)b, (__m512bh)a);
}

#include "pairs.inc.h"

#define FEW_STEPS(type) ((type) == KVT_ATTN_BF16 ? 1 : (type) == KVT_ATTN_F8_E4M3 ? 2 : 0)
#define FEW_TYPES(instance) instance(BF16) instance(F8_E4M3)

#include "few.inc.h"

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type)
{
	/* Two bytes of four to the low half of each half word, or the other two. */
	const __m512i low = _mm512_broadcast_i32x4(_mm_setr_epi8(
		0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
	const __m512i high = _mm512_broadcast_i32x4(_mm_setr_epi8(
		2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));

	if (type == KVT_ATTN_BF16)
		return word;
	return f8_bf16(_mm512_shuffle_epi8(word, i ? high : low));
}

INLINE void values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
			const uint32_t n_vectors, const uint32_t type)
{
	const bool f8 = type == KVT_ATTN_F8_E4M3;
	const uint32_t bytes = f8 ? 1 : 2;

	UNROLL_FOR (i, (n_vectors + 1) / 2) {
		uint32_t x = (v + 2 * i) * VW, n = n_vectors > 1 ? 2 * VW : dim - x;
		__m512i pairs[2];

		pair_interleave(halves_load(row + x * bytes, n, f8),
				halves_load(row + stride + x * bytes, n, f8), pairs);
		ret_step[2 * i] = pairs[0];
		if (2 * i + 1 < n_vectors)
			ret_step[2 * i + 1] = pairs[1];
	}
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_avx512_bf16, "avx512_bf16");
