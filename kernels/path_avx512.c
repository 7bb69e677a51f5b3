/* SPDX-License-Identifier: Apache-2.0 */
/* Products of floats with AVX-512. */

#include <string.h>

#include "internal.h"

#include "avx512.inc.h"
#include "avx512_rows.inc.h"

#define GEMM_ROWS 6
#define GEMM_VECTORS 4
#define TILE 24
#define BLOCK 256

/*
 * Convert fp8: as bits of fp16 it is 2^8 too small, which a multiplication corrects exactly. As
 * bits of a float a number below 2^-6 would be denormal, and its product a microcode assist.
 */
static inline vf f8_floats(__m128i bytes)
{
	const __m128i magnitude = _mm_set1_epi8(0x7f);
	__mmask16 nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, magnitude), magnitude);
	__m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
	__m512i value, quiet;

	halves = _mm256_and_si256(_mm256_srai_epi16(halves, 1), _mm256_set1_epi16((short)0xbf80));
	value = _mm512_castps_si512(_mm512_mul_ps(_mm512_cvtph_ps(halves), v_set1(256.0f)));
	/* (value & 0x80000000) | 0x7fc00000 */
	quiet = _mm512_ternarylogic_epi32(value, _mm512_set1_epi32((int)0x80000000),
					  _mm512_set1_epi32(0x7fc00000), 0xea);
	return _mm512_castsi512_ps(_mm512_mask_mov_epi32(value, nan, quiet));
}

/* Load the first n (VW at most) elements of a row as floats, then zeros. Reads nothing behind
 * them. */
static inline vf floats_load(const void *source, uint32_t n, uint32_t type)
{
	__mmask16 mask = first_mask(n);
	__m256i half;

	switch (type) {
	case KVT_ATTN_F32:
		return _mm512_maskz_loadu_ps(mask, source);
	case KVT_ATTN_F16:
		return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, source));
	case KVT_ATTN_BF16:
		half = _mm256_maskz_loadu_epi16(mask, source);
		return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
	default:
		return f8_floats(_mm_maskz_loadu_epi8(mask, source));
	}
}

static inline void v_store_first(float *target, uint32_t n, vf value)
{
	_mm512_mask_storeu_ps(target, first_mask(n), value);
}

static inline __attribute__((always_inline)) void v_transpose(vf *rows)
{
	__m512i bits[16];

	UNROLL_FOR (i, 16)
		bits[i] = _mm512_castps_si512(rows[i]);
	transpose_16(bits);
	UNROLL_FOR (i, 16)
		rows[i] = _mm512_castsi512_ps(bits[i]);
}

#include "f32.inc.h"

#define FEW_STEPS(type) (4 / kvt_type_size(type))
#define FEW_TYPES(instance) instance(F32) instance(BF16) instance(F16) instance(F8_E4M3)

#include "few.inc.h"

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type)
{
	if (type == KVT_ATTN_F32)
		return _mm512_castsi512_ps(word);
	if (type == KVT_ATTN_F8_E4M3) {
		/* Two steps' bytes at a time, in bf16. */
		word = f8_bf16(i % 2 ? _mm512_srli_epi16(word, 8) : word);
		if (i < 2)
			return _mm512_castsi512_ps(_mm512_slli_epi32(word, 16));
		return _mm512_castsi512_ps(
			_mm512_and_si512(word, _mm512_set1_epi32((int)0xffff0000)));
	}
	if (i)
		word = _mm512_srli_epi32(word, 16);
	if (type == KVT_ATTN_F16)
		return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(word));
	return _mm512_castsi512_ps(_mm512_slli_epi32(word, 16));
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_avx512_f32, "avx512");
