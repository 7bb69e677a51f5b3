/* SPDX-License-Identifier: Apache-2.0 */
/* The float path with AVX2 and FMA: vector macros around attention.inc.h.
 *
 * Inputs: jobs of append_prefill.c. Invariant: conversions equal those of convert.h in every bit.
 * Caller: through kvt_isa by context.c. */

#include <immintrin.h>
#include <string.h>

#include "avx_fetch.inc.h"
#include "convert.h"
#include "internal.h"

#define VW 8
#define GEMM_ROWS 6
#define GEMM_VECTORS 2
#define GEMM_UNROLL _Pragma("GCC unroll 2")
#define TILE 24
#define BLOCK 128

/* Few rows: few.inc.h. More words at a time do not fit into registers. */
#define FEW_STRIPS 8
#define FEW_AT_ONCE(type) ((type) == KVT_ATTN_F8_E4M3 ? FEW_ROWS : 6)
#define FEW_WORDS 4
#define FEW_SPAN(type) (kvt_type_size(type) == 2 ? 8 * VW : 4 * VW)
#define FEW_STEPS_AT_ONCE VW
#define FEW_NEAR 2
#define FEW_FAR(type) (kvt_type_size(type) == 4 ? 4 : 8)
#define FEW_EACH(instance, type)                                                                   \
	instance(1, 4, type) instance(2, 4, type) instance(4, 2, type) instance(6, 2, type)        \
		instance(8, 1, type)

typedef __m256 vf;
typedef __m256i words;

#include "vector.inc.h"

static inline vf v_set1(float value)
{
	return _mm256_set1_ps(value);
}

static inline vf v_fma(vf a, vf b, vf c)
{
	return _mm256_fmadd_ps(a, b, c);
}

/* The greater one; b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
	return _mm256_max_ps(a, b);
}

static inline __m256i first_mask(uint32_t n)
{
	return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < VW ? (int)n : VW),
				  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n lanes of value, the others of other. */
static inline vf v_first(vf value, uint32_t n, vf other)
{
	return _mm256_blendv_ps(other, value, _mm256_castsi256_ps(first_mask(n)));
}

/* x where a equals b, else y. */
static inline vf v_if_equal(vf a, vf b, vf x, vf y)
{
	return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

static inline float v_sum(vf value)
{
	__m128 a = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));

	a = _mm_add_ps(a, _mm_movehl_ps(a, a));
	return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

static inline float v_maximum(vf value)
{
	__m128 a = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));

	a = _mm_max_ps(a, _mm_movehl_ps(a, a));
	return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/*
 * 2^x for x up to a little above 0: a power of two made of bits, times 2^fraction by a polynomial
 * that is 1 at 0, relative error 1e-7. Below 2^-126 it is 0. NaN passes (max takes its second
 * operand). Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
 */
static inline vf v_exp2(vf x)
{
	const vf magic = v_set1(12582912.0f);
	vf clamped = v_max(v_set1(-127.0f), x);
	vf sum = v_add(clamped, magic);
	vf f = v_sub(clamped, v_sub(sum, magic));
	__m256i power = _mm256_slli_epi32(
		_mm256_add_epi32(_mm256_castps_si256(sum), _mm256_set1_epi32(127)), 23);
	vf p = v_set1(0.001326472731307149f);

	p = v_fma(p, f, v_set1(0.009671512991189957f));
	p = v_fma(p, f, v_set1(0.05550733581185341f));
	p = v_fma(p, f, v_set1(0.24022242426872253f));
	p = v_fma(p, f, v_set1(0.6931470036506653f));
	p = v_fma(p, f, v_set1(1.0f));
	return v_mul(p, _mm256_castsi256_ps(power));
}

static inline void v_store_first(float *target, uint32_t n, vf value)
{
	if (n >= VW)
		_mm256_storeu_ps(target, value); /* far cheaper where a masked store is microcode */
	else
		_mm256_maskstore_ps(target, first_mask(n), value);
}

static inline bool v_any_not_finite(vf value)
{
	__m256i exponent = _mm256_set1_epi32(0x7f800000);
	__m256i equal = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(value), exponent),
					   exponent);

	return !_mm256_testz_si256(equal, equal);
}

static inline __attribute__((always_inline)) void v_transpose(vf *rows)
{
	vf t[8], u[8];

	UNROLL_FOR (i, 4) {
		t[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
		t[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
	}
	UNROLL_FOR (i, 2) {
		u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
		u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
		u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
		u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
	}
	UNROLL_FOR (i, 4) {
		rows[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
		rows[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
	}
}

static inline vf bf16_floats(__m128i halves)
{
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/*
 * Convert fp8: as bits of fp16 it is 2^8 too small, which a multiplication corrects exactly. As
 * bits of a float a number below 2^-6 would be denormal, and its product a microcode assist.
 */
static inline vf f8_floats(__m128i bytes)
{
	const __m128i no_sign = _mm_set1_epi16(0x3f80);
	__m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 8), nan;

	halves = _mm_and_si128(_mm_srai_epi16(halves, 1), _mm_set1_epi16((short)0xbf80));
	/* NaN would come out as 480. */
	nan = _mm_cmpeq_epi16(_mm_and_si128(halves, no_sign), no_sign);
	halves = _mm_xor_si128(halves, _mm_and_si128(nan, _mm_set1_epi16(0x3f80 ^ 0x7e00)));
	return v_mul(_mm256_cvtph_ps(halves), v_set1(256.0f));
}

/* Load the first n (VW at most) elements of a row as floats, then zeros. Reads nothing behind
 * them. */
static inline vf floats_load(const void *source, uint32_t n, uint32_t type)
{
	__m128i few = _mm_setzero_si128();
	uint32_t lanes = n < VW ? n : VW;

	if (type == KVT_ATTN_F32)
		return lanes == VW ? _mm256_loadu_ps(source)
				   : _mm256_maskload_ps(source, first_mask(n));
	if (lanes == VW && type != KVT_ATTN_F8_E4M3)
		few = _mm_loadu_si128(source);
	else if (lanes == VW)
		few = _mm_loadl_epi64(source);
	else
		memcpy(&few, source, lanes * kvt_type_size(type));
	switch (type) {
	case KVT_ATTN_F16:
		return _mm256_cvtph_ps(few);
	case KVT_ATTN_BF16:
		return bf16_floats(few);
	default:
		return f8_floats(few);
	}
}

static inline void row_store(void *target, const float *source, uint32_t n, uint32_t type)
{
	uint32_t bytes = kvt_type_size(type);
	uint16_t *half = target;
	uint32_t i = 0;

	if (type == KVT_ATTN_F32) {
		memcpy(target, source, n * sizeof *source);
		return;
	}
	for (; type == KVT_ATTN_F16 && i + VW <= n; i += VW)
		_mm_storeu_si128((__m128i *)(void *)(half + i),
				 _mm256_cvtps_ph(v_load(source + i), _MM_FROUND_TO_NEAREST_INT));
	for (; i < n; i++)
		kvt_element_store((char *)target + i * bytes, type, source[i]);
}

/* Even and odd dimensions cost two operations where those in order cost four. */
#define FEW_PAIRED(type) ((type) == KVT_ATTN_BF16)

static inline void pair_load(const char *source, vf *ret_pair)
{
	words both = _mm256_loadu_si256((const void *)source);

	ret_pair[0] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
	ret_pair[1] = _mm256_castsi256_ps(
		_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000)));
}

static inline void pair_split(vf *pair)
{
	vf low = _mm256_permute2f128_ps(pair[0], pair[1], 0x20);
	vf high = _mm256_permute2f128_ps(pair[0], pair[1], 0x31);

	pair[0] = _mm256_shuffle_ps(low, high, 0x88);
	pair[1] = _mm256_shuffle_ps(low, high, 0xdd);
}

static inline void pair_join(vf *pair)
{
	vf low = _mm256_unpacklo_ps(pair[0], pair[1]);
	vf high = _mm256_unpackhi_ps(pair[0], pair[1]);

	pair[0] = _mm256_permute2f128_ps(low, high, 0x20);
	pair[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

#include "f32.inc.h"

/* Sixteen bytes of eight rows: vector i gets word i of all rows. */
static inline __attribute__((always_inline)) void
words_load(const char *strip, size_t stride, words *ret_words)
{
	words t[4], u[4];

	UNROLL_FOR (i, 4) {
		const __m128i *low = (const void *)(strip + i * stride);
		const __m128i *high = (const void *)(strip + (i + 4) * stride);

		t[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
					       _mm_loadu_si128(high), 1);
	}
	u[0] = _mm256_unpacklo_epi32(t[0], t[1]);
	u[1] = _mm256_unpackhi_epi32(t[0], t[1]);
	u[2] = _mm256_unpacklo_epi32(t[2], t[3]);
	u[3] = _mm256_unpackhi_epi32(t[2], t[3]);
	ret_words[0] = _mm256_unpacklo_epi64(u[0], u[2]);
	ret_words[1] = _mm256_unpackhi_epi64(u[0], u[2]);
	ret_words[2] = _mm256_unpacklo_epi64(u[1], u[3]);
	ret_words[3] = _mm256_unpackhi_epi64(u[1], u[3]);
}

static inline __attribute__((always_inline)) void
words_load_8(const char *strip, size_t stride, words *ret_words)
{
	words_load(strip, stride, ret_words);
	words_load(strip + 16, stride, ret_words + 4);
}

/*
 * Operands of the conversion of fp8, in memory: in registers they would drive out sums. Tables are
 * twice 16 bytes.
 */
#define BYTES_32(x) { [0 ... 31] = (x) }
#define TWICE(...) { __VA_ARGS__, __VA_ARGS__ }
static const struct {
	int8_t one[32], to_127[32], magnitude[32], first[32];
	int8_t upper[32], upper_differs[32], lower_differs[32];
} f8_operands __attribute__((aligned(32))) = {
	.one = BYTES_32(1),
	.to_127 = BYTES_32(0x70),
	.magnitude = BYTES_32(0x7f),
	.first = BYTES_32(-0x10),
	.upper = TWICE(0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43, -0x44, -0x43, -0x42, -0x41,
		       -0x40, -0x3f, -0x3e, -0x3d),
	.upper_differs = TWICE(0x3c, 0x3c, 0x07, 0x07, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
	.lower_differs =
		TWICE(0x30, 0, 0x10, -0x60, -0x10, 0x40, 0x70, 0x20, 0x10, 0, 0, 0, 0, 0, 0, 0),
};

static inline __attribute__((always_inline)) words f8_operand(const int8_t *bytes)
{
	return _mm256_load_si256((const void *)bytes);
}

/*
 * Convert fp8 to bf16, upper and lower bytes apart. A table of 16 has the upper byte for sign and
 * three bits of exponent; the other bits are the lower one's. Tables of what differs correct NaN
 * (index 0) and what is below 2^-6 (1 to 8); other codes have an index of 9 to 15, or above 127,
 * and so nothing to correct.
 */
static inline __attribute__((always_inline)) void f8_bytes(words codes, words *ret_upper,
							   words *ret_lower)
{
	__typeof__(&f8_operands) of = &f8_operands;
	words first, upper, lower, index;

	__asm__("" : "+r"(of)); /* else the compiler knows them and makes them anew */
	first = _mm256_and_si256(codes, f8_operand(of->first));
	upper = _mm256_srli_epi16(first, 4);
	lower = _mm256_slli_epi16(_mm256_xor_si256(codes, first), 4);
	index = _mm256_and_si256(_mm256_add_epi8(codes, f8_operand(of->one)),
				 f8_operand(of->magnitude));
	index = _mm256_adds_epu8(index, f8_operand(of->to_127));
	*ret_upper = _mm256_xor_si256(
		_mm256_shuffle_epi8(f8_operand(of->upper), upper),
		_mm256_shuffle_epi8(f8_operand(of->upper_differs), index));
	*ret_lower = _mm256_xor_si256(
		lower, _mm256_shuffle_epi8(f8_operand(of->lower_differs), index));
}

/* Convert fp8 in the even or odd bytes to bf16 half words. */
static inline __attribute__((always_inline)) words f8_bf16(words codes, const bool odd)
{
	const words odd_bytes = _mm256_set1_epi16((short)0xff00);
	words upper, lower;

	f8_bytes(codes, &upper, &lower);
	if (odd)
		return _mm256_blendv_epi8(_mm256_srli_epi16(lower, 8), upper, odd_bytes);
	return _mm256_blendv_epi8(lower, _mm256_slli_epi16(upper, 8), odd_bytes);
}

/* 32 values of fp8 are converted at a time, of as many positions as that takes. */
#define FEW_TOGETHER(type, n_vectors) ((type) == KVT_ATTN_F8_E4M3 ? 4 / (n_vectors) : 0)

static inline __attribute__((always_inline)) void
values_load_some(const char *row, size_t stride, uint32_t v, vb *ret_steps,
		 const uint32_t n_vectors)
{
	const char *at = row + v * VW;
	/* Unpacking works in each lane, so the lower lane gets the lower halves of vectors. */
	const words order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
	words codes, upper, lower, halves[2];

	if (n_vectors == 4)
		codes = _mm256_loadu_si256((const void *)at);
	else if (n_vectors == 2)
		codes = _mm256_inserti128_si256(
			_mm256_castsi128_si256(_mm_loadu_si128((const void *)at)),
			_mm_loadu_si128((const void *)(at + stride)), 1);
	else
		codes = _mm256_setr_m128i(
			_mm_unpacklo_epi64(_mm_loadl_epi64((const void *)at),
					   _mm_loadl_epi64((const void *)(at + stride))),
			_mm_unpacklo_epi64(_mm_loadl_epi64((const void *)(at + 2 * stride)),
					   _mm_loadl_epi64((const void *)(at + 3 * stride))));
	f8_bytes(_mm256_permutevar8x32_epi32(codes, order), &upper, &lower);
	halves[0] = _mm256_unpacklo_epi8(lower, upper);
	halves[1] = _mm256_unpackhi_epi8(lower, upper);
	UNROLL_FOR (i, 2) {
		ret_steps[2 * i] = _mm256_castsi256_ps(
			_mm256_unpacklo_epi16(_mm256_setzero_si256(), halves[i]));
		ret_steps[2 * i + 1] = _mm256_castsi256_ps(
			_mm256_unpackhi_epi16(_mm256_setzero_si256(), halves[i]));
	}
}

#define FEW_STEPS(type) ((type) == KVT_ATTN_F16 ? 0 : 4 / kvt_type_size(type))
#define FEW_TYPES(instance) instance(F32) instance(BF16) instance(F8_E4M3)

#include "few.inc.h"

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type)
{
	const bool upper = type == KVT_ATTN_F8_E4M3 ? i >= 2 : i;

	if (type == KVT_ATTN_F32)
		return _mm256_castsi256_ps(word);
	if (type == KVT_ATTN_F8_E4M3)
		word = f8_bf16(word, i % 2); /* two steps' bytes at a time */
	if (upper)
		return _mm256_castsi256_ps(
			_mm256_and_si256(word, _mm256_set1_epi32((int)0xffff0000)));
	return _mm256_castsi256_ps(_mm256_slli_epi32(word, 16));
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_avx2_f32, "avx2");
