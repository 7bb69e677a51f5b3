/* SPDX-License-Identifier: Apache-2.0 */
/* Float vectors and conversions for both AVX-512 paths. */

#include <immintrin.h>

#include "convert.h"
#include "internal.h"

#define VW 16

/* Few rows: few.inc.h */
#define FEW_STRIPS 4
#define FEW_WORDS 8
#define FEW_NEAR 2
/* A strip of fp32 is twice as large. */
#define FEW_FAR(type) (kvt_type_size(type) == 4 ? 3 : 4)
#define FEW_SPAN(type) (2 * VW)
#define FEW_STEPS_AT_ONCE 1
#define FEW_EACH(instance, type)                                                                   \
	instance(1, 4, type) instance(2, 4, type) instance(4, 4, type) instance(6, 2, type)        \
		instance(8, 2, type)

typedef __m512 vf;
typedef __m512i words;

#include "vector.inc.h"

static inline vf v_set1(float value)
{
	return _mm512_set1_ps(value);
}

static inline vf v_fma(vf a, vf b, vf c)
{
	return _mm512_fmadd_ps(a, b, c);
}

/* The greater one; b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
	return _mm512_max_ps(a, b);
}

static inline __mmask16 first_mask(uint32_t n)
{
	return (__mmask16)(n >= VW ? 0xffff : (1u << n) - 1);
}

/* The first n lanes of value, the others of other. */
static inline vf v_first(vf value, uint32_t n, vf other)
{
	return _mm512_mask_blend_ps(first_mask(n), other, value);
}

/* x where a equals b, else y. */
static inline vf v_if_equal(vf a, vf b, vf x, vf y)
{
	return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ), y, x);
}

static inline __m256 fold_halves(vf value, bool upper)
{
	return upper ? _mm512_extractf32x8_ps(value, 1) : _mm512_castps512_ps256(value);
}

static inline float v_sum(vf value)
{
	__m256 a = _mm256_add_ps(fold_halves(value, false), fold_halves(value, true));
	__m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	b = _mm_add_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float v_maximum(vf value)
{
	__m256 a = _mm256_max_ps(fold_halves(value, false), fold_halves(value, true));
	__m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

	b = _mm_max_ps(b, _mm_movehl_ps(b, b));
	return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline bool v_any_not_finite(vf value)
{
	const __m512i exponent = _mm512_set1_epi32(0x7f800000);

	return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(value), exponent),
				       exponent) != 0;
}

/*
 * 2^x for x up to a little above 0. 2^fraction by a polynomial that is 1 at 0 (so 2^0 is 1
 * exactly), relative error 1e-7; scalef takes the floor of x, underflows to 0, and lets NaN
 * through.
 */
static inline vf v_exp2(vf x)
{
	vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
	vf p = v_set1(0.0018671301659196615f);

	p = v_fma(p, f, v_set1(0.009017029777169228f));
	p = v_fma(p, f, v_set1(0.05579991266131401f));
	p = v_fma(p, f, v_set1(0.24016444385051727f));
	p = v_fma(p, f, v_set1(0.6931512951850891f));
	p = v_fma(p, f, v_set1(1.0f));
	return _mm512_scalef_ps(p, x);
}

/* of() of the bf16 of each fp8 without sign: 0 to 7 times 2^-9, normal numbers, NaN. */
#define F8_1(of, m) of(((m) << 4) + 0x3c00)
#define F8_4(of, m) F8_1(of, m), F8_1(of, (m) + 1), F8_1(of, (m) + 2), F8_1(of, (m) + 3)
#define F8_16(of, m) F8_4(of, m), F8_4(of, (m) + 4), F8_4(of, (m) + 8), F8_4(of, (m) + 12)
#define F8_BF16_TABLE(of)                                                                          \
	of(0), of(0x3b00), of(0x3b80), of(0x3bc0), of(0x3c00), of(0x3c20), of(0x3c40), of(0x3c60), \
		F8_4(of, 8), F8_4(of, 12), F8_16(of, 16), F8_16(of, 32), F8_16(of, 48),            \
		F8_16(of, 64), F8_16(of, 80), F8_16(of, 96), F8_4(of, 112), F8_4(of, 116),         \
		F8_4(of, 120), F8_1(of, 124), F8_1(of, 125), F8_1(of, 126), of(0x7fc0)
#define F8_WHOLE(bits) (bits)

/*
 * Convert fp8 in the low halves of half words to bf16, the bits below the sign by a table of 128:
 * bf16 numbers with exponent 0 are not normal in fp8, and 0x7f is NaN. Ignores the high halves.
 */
static inline __m512i f8_bf16(__m512i bits)
{
	_Alignas(64) static const uint16_t table[128] = { F8_BF16_TABLE(F8_WHOLE) };
	__m512i value = _mm512_permutex2var_epi16(_mm512_load_si512(table), bits,
						  _mm512_load_si512(table + 32));
	__mmask32 upper = _mm512_test_epi16_mask(bits, _mm512_set1_epi16(0x40));
	__m512i sign = _mm512_slli_epi16(bits, 8);

	value = _mm512_mask_blend_epi16(upper, value,
					_mm512_permutex2var_epi16(_mm512_load_si512(table + 64),
								  bits,
								  _mm512_load_si512(table + 96)));
	/* value | (sign & 0x8000) */
	return _mm512_ternarylogic_epi32(value, sign, _mm512_set1_epi16((short)0x8000), 0xf8);
}
