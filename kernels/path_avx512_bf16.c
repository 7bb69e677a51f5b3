/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of pairs of bf16 with AVX512_BF16, for queries in bf16 and KV in bf16 or fp8 (which
 * bf16 holds exactly). Few rows in fp8 are converted with AVX512_VBMI.
 */

#include <string.h>

#include "internal.h"

#include "avx512.inc.h"
#include "avx512_rows.inc.h"

#define STEP 2
#define GEMM_ROWS 6
#define GEMM_VECTORS 4
#define TILE 24
#define BLOCK 256

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

/* Positions between fetches of values, so that fetches do not queue up. */
#define VALUES_FETCH 4

/* Like v_exp2, with an error of 9e-5: bf16 rounds weights twenty times as coarsely. */
static inline vf v_exp2_weight(vf x)
{
	vf f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
	vf p = v_set1(0.0770670473575592f);

	p = v_fma(p, f, v_set1(0.22764499485492706f));
	p = v_fma(p, f, v_set1(0.6951167583465576f));
	p = v_fma(p, f, v_set1(1.0f));
	return _mm512_scalef_ps(p, x);
}

static inline void weights_store(element *target, vf low, vf high)
{
	_mm512_storeu_si512(target, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

static inline __mmask32 first_mask_32(uint32_t n)
{
	return n >= 32 ? 0xffffffffu : (1u << n) - 1;
}

/* Load the first n (at most 32) elements of a row in bf16, then zeros. Reads nothing behind
 * them. */
static inline __m512i halves_load(const void *source, uint32_t n, bool f8)
{
	/* An unmasked load is cheaper; the branch is the same for all rows. */
	if (!f8 && n >= 32)
		return _mm512_loadu_si512(source);
	if (f8)
		return f8_bf16(_mm512_cvtepu8_epi16(
			_mm256_maskz_loadu_epi8(first_mask_32(n), source)));
	return _mm512_maskz_loadu_epi16(first_mask_32(n), source);
}

static inline void row_load(element *target, const void *source, uint32_t n, uint32_t n_padded,
			    uint32_t type)
{
	(void)type; /* queries on this path are bf16 */
	for (uint32_t i = 0; i < n; i += 32)
		_mm512_mask_storeu_epi16(target + i, first_mask_32(n_padded - i),
					 halves_load((const uint16_t *)source + i, n - i, false));
}

static inline __attribute__((always_inline)) void keys_pack_of(element *panel,
							       const struct kvt_rows *rows,
							       const struct kvt_rows *ahead,
							       uint32_t dim, bool f8)
{
	const uint32_t bytes = f8 ? 1 : 2;
	const uint32_t n_steps = (dim + STEP - 1) / STEP;
	/* Spread fetches over the transpositions, so that they do not queue up. */
	const uint32_t n_fetch = VW / ((dim + 2 * VW - 1) / (2 * VW));

	for (uint32_t key = 0; key < rows->n; key += VW) {
		uint32_t fetched = key;

		rows_fetch(rows, key + VW, VW, dim * bytes);
		for (uint32_t x = 0; x < dim; x += 2 * VW) {
			uint32_t steps = n_steps - x / 2 < VW ? n_steps - x / 2 : VW;
			element *to = panel + (x * GEMM_VECTORS * VW + 2 * key);
			__m512i t[16];

			ahead_fetch(ahead, fetched, n_fetch, dim * bytes);
			fetched += n_fetch;
			UNROLL_FOR (i, 16)
				t[i] = halves_load(rows->at[key + i] + x * bytes, dim - x, f8);
			transpose_16(t);
			if (steps < VW) {
				for (uint32_t i = 0; i < steps; i++)
					_mm512_storeu_si512(to + i * (GEMM_VECTORS * VW * 2), t[i]);
				continue;
			}
			UNROLL_FOR (i, VW)
				_mm512_storeu_si512(to + i * (GEMM_VECTORS * VW * 2), t[i]);
		}
	}
}

static void keys_pack(element *panel, const struct kvt_rows *rows, const struct kvt_rows *ahead,
		      uint32_t dim, uint32_t type)
{
	if (type == KVT_ATTN_F8_E4M3)
		keys_pack_of(panel, rows, ahead, dim, true);
	else
		keys_pack_of(panel, rows, ahead, dim, false);
}

/* Two rows of 32 dimensions become two vectors of 16 pairs. */
static inline void pair_interleave(__m512i even, __m512i odd, __m512i *ret_pairs)
{
	const __m512i low =
		_mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39,
				 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
	const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));

	ret_pairs[0] = _mm512_permutex2var_epi16(even, low, odd);
	ret_pairs[1] = _mm512_permutex2var_epi16(even, high, odd);
}

/*
 * Pack some rows of one panel of values, n_vectors wide, whose first dimension is from. Returns the
 * lanes' highest bits but the sign: 0x7f80 or more where a value is not finite.
 */
static inline __attribute__((always_inline)) __m512i values_panel_pack(
	element *panel, const char *const *rows, uint32_t n_rows, uint32_t dim, uint32_t from,
	const uint32_t n_vectors, bool f8)
{
	const uint32_t bytes = f8 ? 1 : 2;
	const __m512i magnitude = _mm512_set1_epi16(0x7fff);
	__m512i highest = _mm512_setzero_si512();

	for (uint32_t key = 0; key < n_rows; key += 2) {
		UNROLL_FOR (pair, (n_vectors + 1) / 2) {
			uint32_t v = 2 * pair, x = from + v * VW;
			__m512i even = halves_load(rows[key] + x * bytes, dim - x, f8);
			__m512i odd = halves_load(rows[key + 1] + x * bytes, dim - x, f8);
			__m512i pairs[2];

			highest = _mm512_max_epu16(highest, _mm512_and_si512(even, magnitude));
			highest = _mm512_max_epu16(highest, _mm512_and_si512(odd, magnitude));
			pair_interleave(even, odd, pairs);
			_mm512_storeu_si512(panel, pairs[0]);
			panel += 2 * VW;
			if (v + 1 == n_vectors)
				continue;
			_mm512_storeu_si512(panel, pairs[1]);
			panel += 2 * VW;
		}
	}
	return highest;
}

static inline __attribute__((always_inline)) bool values_pack_of(element *chunk, uint32_t capacity,
								 const struct kvt_rows *rows,
								 const struct kvt_rows *ahead,
								 uint32_t dim, bool f8)
{
	const uint32_t n_vectors = (dim + VW - 1) / VW;
	const uint32_t n_panels = (n_vectors + GEMM_VECTORS - 1) / GEMM_VECTORS;
	const uint32_t n_rows = (rows->n + STEP - 1) / STEP * STEP;
	__m512i highest = _mm512_setzero_si512(), some;

	for (uint32_t key = 0; key < n_rows; key += VALUES_FETCH) {
		const char *const *at = rows->at + key;
		uint32_t n = n_rows - key < VALUES_FETCH ? n_rows - key : VALUES_FETCH;

		rows_fetch(rows, key + VW, VALUES_FETCH, dim * (f8 ? 1 : 2));
		ahead_fetch(ahead, key, VALUES_FETCH, dim * (f8 ? 1 : 2));
		for (uint32_t panel = 0; panel < n_panels; panel++) {
			uint32_t first = n_vectors * panel / n_panels;
			uint32_t width = n_vectors * (panel + 1) / n_panels - first;
			element *to = chunk + (first * capacity + key * width) * VW;

			if (width == GEMM_VECTORS)
				some = values_panel_pack(to, at, n, dim, first * VW, GEMM_VECTORS,
							 f8);
			else
				some = values_panel_pack(to, at, n, dim, first * VW, width, f8);
			highest = _mm512_max_epu16(highest, some);
		}
	}
	return _mm512_cmpge_epu16_mask(highest, _mm512_set1_epi16(0x7f80)) != 0;
}

static bool values_pack(element *chunk, uint32_t capacity, const struct kvt_rows *rows,
			const struct kvt_rows *ahead, uint32_t dim, uint32_t type)
{
	if (type == KVT_ATTN_F8_E4M3)
		return values_pack_of(chunk, capacity, rows, ahead, dim, true);
	return values_pack_of(chunk, capacity, rows, ahead, dim, false);
}

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
