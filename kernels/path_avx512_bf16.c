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

/* Positions between fetches of values, so that fetches do not queue up. */
#define FEW 4

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

/*
 * As v_exp2, but with an error of 9e-5: weights are rounded to bf16, which is twenty times as
 * coarse.
 */
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

/*
 * fp8 to bf16: the bits below the sign, as those of a float 2^120 too small, which the product
 * makes exact.
 */
static inline __m512i f8_bf16(__m256i bytes)
{
	__m512i bits = _mm512_cvtepu8_epi16(bytes);
	__m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f));
	__m512i sign = _mm512_slli_epi16(_mm512_xor_si512(bits, magnitude), 8);
	__mmask32 nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
	__mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
	/* 0 to 7 times 2^-9, in bf16 */
	const __m128i table =
		_mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60);
	__m512i value =
		_mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(0x3c00));

	value = _mm512_mask_permutexvar_epi16(value, small, magnitude,
					      _mm512_castsi128_si512(table));
	value = _mm512_mask_mov_epi16(value, nan, _mm512_set1_epi16(0x7fc0));
	return _mm512_or_si512(value, sign);
}

/* The first n (at most 32) elements of a row in bf16, and zeros. Nothing behind them is read. */
static inline __m512i halves_load(const void *source, uint32_t n, bool f8)
{
	/* A load without a mask is cheaper; the branch is the same for all rows. */
	if (!f8 && n >= 32)
		return _mm512_loadu_si512(source);
	if (f8)
		return f8_bf16(_mm256_maskz_loadu_epi8(first_mask_32(n), source));
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
	const uint32_t n_steps = (dim + 1) / 2;
	/* Spread over the transpositions, so that fetches do not queue up. */
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
 * Some rows of one panel of values, n_vectors wide, whose first dimension is from. Returns the
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
	__m512i highest = _mm512_setzero_si512(), some;

	for (uint32_t key = 0; key < rows->n; key += FEW) {
		const char *const *at = rows->at + key;
		uint32_t n = rows->n - key < FEW ? rows->n - key : FEW;

		rows_fetch(rows, key + VW, FEW, dim * (f8 ? 1 : 2));
		ahead_fetch(ahead, key, FEW, dim * (f8 ? 1 : 2));
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

/*
 * KV straight from its pages, for few rows, where memory is the limit. While a panel is used, the
 * next one is fetched, row by row, past the third cache, which would only be filled with what is
 * not read again; and a second time, FEW_NEAR rows before use, into the first. Either alone has too
 * few fetches on their way.
 */
#define INLINE static inline __attribute__((always_inline))
#define FEW_ROWS 8
#define FEW_KEYS (GEMM_VECTORS * VW)
#define FEW_STRIPS GEMM_VECTORS
#define FEW_NEAR 2

struct few {
	uint32_t n_keys; /* of a panel */
	uint32_t n_rows;
	uint32_t dim;
	uint32_t out_dim;
	size_t stride; /* from position to position */
	size_t next_stride;
	/* Sixteen positions each: a panel of keys or values, and what will be read after it. */
	const char *strips[2 * FEW_STRIPS];
};

static bool few_possible(uint32_t dim, uint32_t type)
{
	return type == KVT_ATTN_BF16 && dim % 8 == 0;
}

INLINE void few_fetch(const struct few *few, uint32_t row)
{
	uint32_t strip = row / VW;
	const char *near = few->strips[strip + FEW_NEAR] + row % VW * few->next_stride;
	const char *far = few->strips[strip + FEW_STRIPS] + row % VW * few->next_stride;

	for (uint32_t i = 0; i < few->dim * 2; i += 64) {
		_mm_prefetch(near + i, _MM_HINT_T0);
		_mm_prefetch(far + i, _MM_HINT_NTA);
	}
}

static inline __m128i sixteen_load(const char *source)
{
	return _mm_loadu_si128((const __m128i *)(const void *)source);
}

/*
 * Eight dimensions of sixteen rows: vector i gets pair i of all rows. Sixteen bytes of four rows
 * make a vector while they are loaded, which is half of the transposition.
 */
INLINE void pairs_load(const char *strip, size_t stride, __m512i *ret_pairs)
{
	__m512i t[4], u[4];

	UNROLL_FOR (i, 4) {
		const char *row = strip + i * stride;

		t[i] = _mm512_castsi128_si512(sixteen_load(row));
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 4 * stride), 1);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 8 * stride), 2);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 12 * stride), 3);
	}
	u[0] = _mm512_unpacklo_epi32(t[0], t[1]);
	u[1] = _mm512_unpackhi_epi32(t[0], t[1]);
	u[2] = _mm512_unpacklo_epi32(t[2], t[3]);
	u[3] = _mm512_unpackhi_epi32(t[2], t[3]);
	ret_pairs[0] = _mm512_unpacklo_epi64(u[0], u[2]);
	ret_pairs[1] = _mm512_unpackhi_epi64(u[0], u[2]);
	ret_pairs[2] = _mm512_unpacklo_epi64(u[1], u[3]);
	ret_pairs[3] = _mm512_unpackhi_epi64(u[1], u[3]);
}

INLINE void few_scores_of(const struct few *few, float *scores, const element *queries,
			  const uint32_t n_rows)
{
	const size_t q_stride = (few->dim + 1) / 2 * 2;

	for (uint32_t key = 0; key < few->n_keys; key += 2 * VW) {
		const char *const *strips = few->strips + key / VW;
		vf c[FEW_ROWS][2];
		uint32_t fetched = 0;

		UNROLL_FOR (r, n_rows)
			c[r][0] = c[r][1] = v_zero();
		for (uint32_t x = 0; x < few->dim; x += 8) {
			__m512i low[4], high[4];

			for (; fetched * few->dim < 2 * VW * (x + 8); fetched++)
				few_fetch(few, key + fetched);
			pairs_load(strips[0] + x * 2, few->stride, low);
			pairs_load(strips[1] + x * 2, few->stride, high);
			UNROLL_FOR (i, 4)
				UNROLL_FOR (r, n_rows) {
					vb q = a_broadcast(queries + r * q_stride + x + 2 * i);

					c[r][0] = dot(c[r][0], low[i], q);
					c[r][1] = dot(c[r][1], high[i], q);
				}
		}
		UNROLL_FOR (r, n_rows) {
			v_store(scores + r * BLOCK + key, c[r][0]);
			v_store(scores + r * BLOCK + key + VW, c[r][1]);
		}
	}
}

/* Some rows' outputs: n_vectors of them, the first being number v. */
INLINE bool few_values_some(const struct few *few, float *outputs, const element *weights,
			    uint32_t v, const uint32_t n_rows, const uint32_t n_vectors)
{
	vf c[FEW_ROWS][4];
	__mmask16 bad = 0;

	outputs += v * VW;
	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (i, n_vectors)
			c[r][i] = v_load(outputs + r * few->out_dim + i * VW);
	for (uint32_t key = 0; key < few->n_keys; key += 2) {
		const char *even = few->strips[key / VW] + key % VW * few->stride + v * VW * 2;
		const char *odd = even + few->stride;
		__m512i pairs[4];

		UNROLL_FOR (i, (n_vectors + 1) / 2) {
			uint32_t n = few->dim - (v + 2 * i) * VW;

			pair_interleave(halves_load(even + i * 64, n, false),
					halves_load(odd + i * 64, n, false), pairs + 2 * i);
		}
		UNROLL_FOR (r, n_rows) {
			vb weight = a_broadcast(weights + r * BLOCK + key);

			UNROLL_FOR (i, n_vectors)
				c[r][i] = dot(c[r][i], pairs[i], weight);
		}
		if (v == 0) {
			few_fetch(few, key);
			few_fetch(few, key + 1);
		}
	}
	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (i, n_vectors) {
			/* NaN or infinite */
			bad |= _mm512_fpclass_ps_mask(c[r][i], 0x99);
			v_store(outputs + r * few->out_dim + i * VW, c[r][i]);
		}
	return !bad;
}

INLINE bool few_values_of(const struct few *few, float *outputs, const element *weights,
			  const uint32_t n_rows, const uint32_t width)
{
	const uint32_t n_vectors = few->out_dim / VW;
	bool good = true;
	uint32_t v = 0;

	for (; v + width <= n_vectors; v += width)
		good &= few_values_some(few, outputs, weights, v, n_rows, width);
	for (; v < n_vectors; v++)
		good &= few_values_some(few, outputs, weights, v, n_rows, 1);
	return good;
}

#define FEW_EACH(instance)                                                                         \
	instance(1, 4) instance(2, 4) instance(3, 4) instance(4, 4) instance(5, 2) instance(6, 2)  \
		instance(7, 2) instance(8, 2)

static void few_scores(const struct few *few, float *scores, const element *queries)
{
#define FEW_CASE(rows, width)                                                                      \
	case rows:                                                                                 \
		few_scores_of(few, scores, queries, rows);                                         \
		break;
	switch (few->n_rows) {
		FEW_EACH(FEW_CASE)
	}
#undef FEW_CASE
}

/* Returns whether all outputs are finite, and so all values were. If not, outputs are of no use. */
static bool few_values(const struct few *few, float *outputs, const element *weights)
{
#define FEW_CASE(rows, width)                                                                      \
	case rows:                                                                                 \
		return few_values_of(few, outputs, weights, rows, width);
	switch (few->n_rows) {
		FEW_EACH(FEW_CASE)
	}
#undef FEW_CASE
	return false;
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_avx512_bf16, "avx512_bf16");
