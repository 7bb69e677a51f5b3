/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of pages for both AVX-512 paths: transpose, store. */

#include "avx_fetch.inc.h"

/* Transpose sixteen rows of sixteen 32-bit elements. */
static inline __attribute__((always_inline)) void transpose_16(__m512i *rows)
{
	__m512i t[16];

	UNROLL_FOR (i, 8) {
		t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
		t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
	}
	UNROLL_FOR (i, 4) {
		rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
		rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
		rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
		rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
	}
	/* Now lane k of rows[4 * i + j] holds column 4 * k + j of rows 4 * i .. 4 * i + 3. */
	UNROLL_FOR (j, 4) {
		t[j] = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0x88);
		t[4 + j] = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0x88);
		t[8 + j] = _mm512_shuffle_i32x4(rows[j], rows[4 + j], 0xdd);
		t[12 + j] = _mm512_shuffle_i32x4(rows[8 + j], rows[12 + j], 0xdd);
	}
	UNROLL_FOR (j, 4) {
		rows[j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88);
		rows[8 + j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xdd);
		rows[4 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
		rows[12 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xdd);
	}
}

static inline __m128i sixteen_load(const char *source)
{
	return _mm_loadu_si128((const __m128i *)(const void *)source);
}

/* In each quarter of four vectors: vector i gets word i of all of them. */
static inline __attribute__((always_inline)) void
words_transpose(const __m512i *rows, __m512i *ret_words)
{
	__m512i u[4];

	u[0] = _mm512_unpacklo_epi32(rows[0], rows[1]);
	u[1] = _mm512_unpackhi_epi32(rows[0], rows[1]);
	u[2] = _mm512_unpacklo_epi32(rows[2], rows[3]);
	u[3] = _mm512_unpackhi_epi32(rows[2], rows[3]);
	ret_words[0] = _mm512_unpacklo_epi64(u[0], u[2]);
	ret_words[1] = _mm512_unpackhi_epi64(u[0], u[2]);
	ret_words[2] = _mm512_unpacklo_epi64(u[1], u[3]);
	ret_words[3] = _mm512_unpackhi_epi64(u[1], u[3]);
}

/*
 * Sixteen bytes of sixteen rows: vector i gets word i of all rows. Sixteen bytes of four rows
 * make a vector while they are loaded, which is half of the transposition.
 */
static inline __attribute__((always_inline)) void
words_load(const char *strip, size_t stride, words *ret_words)
{
	__m512i t[4];

	UNROLL_FOR (i, 4) {
		const char *row = strip + i * stride;

		t[i] = _mm512_castsi128_si512(sixteen_load(row));
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 4 * stride), 1);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 8 * stride), 2);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 12 * stride), 3);
	}
	words_transpose(t, ret_words);
}

/* Likewise, of thirty-two bytes, with fewer loads. */
static inline __attribute__((always_inline)) void
words_load_8(const char *strip, size_t stride, words *ret_words)
{
	__m512i t[8], u[8];

	UNROLL_FOR (i, 8) {
		const char *row = strip + (i / 4 * 8 + i % 4) * stride;

		t[i] = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)row));
		t[i] = _mm512_inserti64x4(
			t[i], _mm256_loadu_si256((const void *)(row + 4 * stride)), 1);
	}
	words_transpose(t, u);
	words_transpose(t + 4, u + 4);
	UNROLL_FOR (i, 4) {
		ret_words[i] = _mm512_shuffle_i32x4(u[i], u[4 + i], 0x88);
		ret_words[4 + i] = _mm512_shuffle_i32x4(u[i], u[4 + i], 0xdd);
	}
}

static inline void row_store(void *target, const float *source, uint32_t n, uint32_t type)
{
	uint16_t *half = target;

	for (uint32_t i = 0; i < n; i += VW) {
		__mmask16 mask = first_mask(n - i);
		__m512 value = v_load(source + i);
		__m512i bits = _mm512_castps_si512(value);
		__m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
		__mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);

		switch (type) {
		case KVT_ATTN_F32:
			_mm512_mask_storeu_ps((float *)target + i, mask, value);
			break;
		case KVT_ATTN_F16:
			_mm256_mask_storeu_epi16(half + i, mask,
						 _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
			break;
		default:
			/* Not cvtneps_pbh: that makes denormals zero. */
			odd = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
			odd = _mm512_add_epi32(bits, odd);
			odd = _mm512_mask_or_epi32(odd, nan, bits, _mm512_set1_epi32(0x400000));
			_mm256_mask_storeu_epi16(half + i, mask,
						 _mm512_cvtepi32_epi16(_mm512_srli_epi32(odd, 16)));
		}
	}
}
