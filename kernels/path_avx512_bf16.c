/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of pairs of bf16 with AVX512_BF16, for queries in bf16 and KV in bf16 or fp8 (which
 * bf16 holds exactly). Few rows in fp8 are converted with AVX512_VBMI.
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

#define F8_UPPER(bits) ((bits) >> 8)
#define F8_LOWER(bits) ((bits) & 0xff)

/* Convert fp8 to bf16, upper and lower bytes apart. */
INLINE void f8_bytes(__m512i codes, __m512i *ret_upper, __m512i *ret_lower)
{
	_Alignas(64) static const uint8_t upper[128] = { F8_BF16_TABLE(F8_UPPER) };
	_Alignas(64) static const uint8_t lower[128] = { F8_BF16_TABLE(F8_LOWER) };
	__m512i magnitude = _mm512_permutex2var_epi8(_mm512_load_si512(upper), codes,
						     _mm512_load_si512(upper + 64));

	/* magnitude | (codes & 0x80) */
	*ret_upper = _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8((char)0x80),
					       0xf8);
	*ret_lower = _mm512_permutex2var_epi8(_mm512_load_si512(lower), codes,
					      _mm512_load_si512(lower + 64));
}

/*
 * Pairs of bf16 from the bytes of 64: lane i has number `step` * i + first and the one that is
 * `apart` behind it.
 */
INLINE __m512i f8_pairs(__m512i upper, __m512i lower, const uint32_t step, const uint32_t first,
			const uint32_t apart)
{
	const __m512i lanes =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	/* For each byte the index of its source, from 64 on in upper. */
	const __m512i index = _mm512_add_epi32(
		_mm512_mullo_epi32(lanes, _mm512_set1_epi32((int)(step * 0x01010101))),
		_mm512_set1_epi32((int)(first * 0x01010101 + apart * 0x01010000 + 0x40004000)));

	return _mm512_permutex2var_epi8(lower, index, upper);
}

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type)
{
	__m512i upper, lower;

	if (type == KVT_ATTN_BF16)
		return word;
	f8_bytes(word, &upper, &lower);
	return f8_pairs(upper, lower, 4, 2 * i, 1);
}

/* 32 values of two positions, of n that exist. */
INLINE __m512i f8_rows_load(const char *row, size_t stride, uint32_t n)
{
	return _mm512_inserti64x4(
		_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(first_mask_32(n), row)),
		_mm256_maskz_loadu_epi8(first_mask_32(n), row + stride), 1);
}

INLINE void values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
			const uint32_t n_vectors, const uint32_t type)
{
	UNROLL_FOR (i, (n_vectors + 1) / 2) {
		uint32_t x = (v + 2 * i) * VW, n = n_vectors > 1 ? 2 * VW : dim - x;
		__m512i pairs[2], upper, lower;

		if (type == KVT_ATTN_F8_E4M3) {
			f8_bytes(f8_rows_load(row + x, stride, n), &upper, &lower);
			pairs[0] = f8_pairs(upper, lower, 1, 0, 32);
			pairs[1] = f8_pairs(upper, lower, 1, VW, 32);
		} else {
			pair_interleave(halves_load(row + 2 * x, n, false),
					halves_load(row + stride + 2 * x, n, false), pairs);
		}
		ret_step[2 * i] = pairs[0];
		if (2 * i + 1 < n_vectors)
			ret_step[2 * i + 1] = pairs[1];
	}
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_avx512_bf16, "avx512_bf16");
