/* SPDX-License-Identifier: Apache-2.0 */
/* Products of floats with NEON, rounded once with their sums. */

#include "neon.inc.h"

/* 24 sums, four vectors of one side and one or two of the other: 30 of 32 registers. */
#define GEMM_ROWS 6
#define GEMM_VECTORS 4
#define TILE 24
#define BLOCK 128

/* Few rows: few.inc.h */
#define FEW_STRIPS 16
#define FEW_WORDS 4
#define FEW_SPAN(type) (8 * VW)
#define FEW_STEPS_AT_ONCE VW
#define FEW_NEAR 4
#define FEW_FAR(type) (kvt_type_size(type) == 4 ? 8 : 16)
#define FEW_EACH(instance, type)                                                                   \
	instance(1, 4, type) instance(2, 4, type) instance(4, 4, type) instance(6, 4, type)        \
		instance(8, 2, type)

typedef uint32x4_t words;

#include "f32.inc.h"

/* Sixteen bytes of four rows: vector i gets word i of all rows. */
static inline __attribute__((always_inline)) void
words_load(const char *strip, size_t stride, words *ret_words)
{
	vf rows[4];

	UNROLL_FOR (i, 4)
		rows[i] = vreinterpretq_f32_u8(
			vld1q_u8((const uint8_t *)(strip + i * stride)));
	v_transpose(rows);
	UNROLL_FOR (i, 4)
		ret_words[i] = vreinterpretq_u32_f32(rows[i]);
}

static inline __attribute__((always_inline)) void
words_load_8(const char *strip, size_t stride, words *ret_words)
{
	words_load(strip, stride, ret_words);
	words_load(strip + 16, stride, ret_words + 4);
}

#define FEW_STEPS(type) ((type) == KVT_ATTN_F32 ? 1 : (type) == KVT_ATTN_F8_E4M3 ? 0 : 2)
#define FEW_TYPES(instance) instance(F32) instance(BF16) instance(F16)

#include "few.inc.h"

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type)
{
	if (type == KVT_ATTN_F32)
		return vreinterpretq_f32_u32(word);
	if (type == KVT_ATTN_F16)
		return f16_floats(i ? vshrn_n_u32(word, 16) : vmovn_u32(word));
	if (i)
		return vreinterpretq_f32_u32(vandq_u32(word, vdupq_n_u32(0xffff0000)));
	return vreinterpretq_f32_u32(vshlq_n_u32(word, 16));
}

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_neon_f32, "neon");
