/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Float vectors and conversions for both NEON paths.
 *
 * Inputs: vectors and rows of attention.inc.h. Invariant: conversions equal those of convert.h in
 * every bit. Callers: path_neon.c, path_neon_bf16.c.
 */

#include <arm_neon.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

#define VW 4

typedef float32x4_t vf;

#include "vector.inc.h"

static inline vf v_set1(float value)
{
	return vdupq_n_f32(value);
}

static inline vf v_fma(vf a, vf b, vf c)
{
	return vfmaq_f32(c, a, b);
}

/* The greater one; b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
	return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* The first n lanes of value, the others of other. */
static inline vf v_first(vf value, uint32_t n, vf other)
{
	static const uint32_t lanes[VW] = { 0, 1, 2, 3 };

	return vbslq_f32(vcltq_u32(vld1q_u32(lanes), vdupq_n_u32(n)), value, other);
}

/* x where a equals b, else y. */
static inline vf v_if_equal(vf a, vf b, vf x, vf y)
{
	return vbslq_f32(vceqq_f32(a, b), x, y);
}

static inline float v_sum(vf value)
{
	float32x2_t half = vadd_f32(vget_low_f32(value), vget_high_f32(value));

	return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}

static inline float v_maximum(vf value)
{
	value = v_max(value, vextq_f32(value, value, 2));
	return v_lane0(v_max(value, vextq_f32(value, value, 1)));
}

/*
 * 2^x for x up to a little above 0: a power of two made of bits, times 2^fraction by a polynomial
 * that is 1 at 0, relative error 1e-7. Below 2^-126 it is 0. NaN passes. Adding 1.5 * 2^23 rounds
 * to an integer, which is then in the low bits of the sum.
 */
static inline vf v_exp2(vf x)
{
	const vf magic = v_set1(12582912.0f);
	vf clamped = v_max(v_set1(-127.0f), x);
	vf sum = v_add(clamped, magic);
	vf f = v_sub(clamped, v_sub(sum, magic));
	int32x4_t power = vshlq_n_s32(
		vaddq_s32(vreinterpretq_s32_f32(sum), vdupq_n_s32(127)), 23);
	vf p = v_set1(0.001326472731307149f);

	p = v_fma(p, f, v_set1(0.009671512991189957f));
	p = v_fma(p, f, v_set1(0.05550733581185341f));
	p = v_fma(p, f, v_set1(0.24022242426872253f));
	p = v_fma(p, f, v_set1(0.6931470036506653f));
	p = v_fma(p, f, v_set1(1.0f));
	return v_mul(p, vreinterpretq_f32_s32(power));
}

static inline void v_store_first(float *target, uint32_t n, vf value)
{
	if (n >= VW)
		v_store(target, value);
	else
		memcpy(target, &value, n * sizeof *target);
}

static inline bool v_any_not_finite(vf value)
{
	const uint32x4_t exponent = vdupq_n_u32(0x7f800000);
	uint32x4_t bits = vandq_u32(vreinterpretq_u32_f32(value), exponent);

	return vmaxvq_u32(bits) == 0x7f800000;
}

/* Transpose four rows of four 32-bit elements. */
static inline __attribute__((always_inline)) void v_transpose(vf *rows)
{
	float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(rows[0], rows[1]));
	float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(rows[0], rows[1]));
	float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(rows[2], rows[3]));
	float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(rows[2], rows[3]));

	rows[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
	rows[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
	rows[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
	rows[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

/* Prefetch row by row, in memory's order: the next rows into L1, those of a block later into L2. */
static inline void rows_fetch(const struct kvt_rows *rows, uint32_t first, uint32_t n,
			      uint32_t bytes)
{
	for (uint32_t i = first; i < first + n; i++) {
		for (uint32_t j = 0; j < bytes; j += 64)
			__builtin_prefetch(rows->at[i] + j);
	}
}

static inline void ahead_fetch(const struct kvt_rows *ahead, uint32_t first, uint32_t n,
			       uint32_t bytes)
{
	for (uint32_t i = first; ahead->n && i < first + n; i++) {
		for (uint32_t j = 0; j < bytes; j += 64)
			__builtin_prefetch(ahead->at[i] + j, 0, 2);
	}
}

static inline vf bf16_floats(uint16x4_t halves)
{
	return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
}

static inline vf f16_floats(uint16x4_t halves)
{
	return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}

/*
 * Convert fp8: the bits below the sign are those of a float 2^120 too small, which a multiplication
 * corrects exactly.
 */
static inline vf f8_floats(uint16x4_t bytes)
{
	uint32x4_t bits = vmovl_u16(bytes);
	uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7f));
	uint32x4_t sign = vshlq_n_u32(veorq_u32(bits, magnitude), 24);
	vf value = v_mul(vreinterpretq_f32_u32(vshlq_n_u32(magnitude, 20)), v_set1(0x1p120f));
	uint32x4_t result = vbslq_u32(vceqq_u32(magnitude, vdupq_n_u32(0x7f)),
				      vdupq_n_u32(0x7fc00000), vreinterpretq_u32_f32(value));

	return vreinterpretq_f32_u32(vorrq_u32(result, sign));
}

/* Load the first n (VW at most) elements of a row as floats, then zeros. Reads nothing behind
 * them. */
static inline vf floats_load(const void *source, uint32_t n, uint32_t type)
{
	uint32_t lanes = n < VW ? n : VW;
	float floats[VW] = { 0 };
	uint16x4_t halves;
	uint64_t few = 0;

	if (type == KVT_ATTN_F32) {
		if (lanes == VW)
			return v_load(source);
		memcpy(floats, source, lanes * sizeof *floats);
		return v_load(floats);
	}
	if (lanes == VW && type != KVT_ATTN_F8_E4M3)
		memcpy(&few, source, VW * 2);
	else if (lanes == VW)
		memcpy(&few, source, VW);
	else
		memcpy(&few, source, lanes * kvt_type_size(type));
	halves = vcreate_u16(few);
	switch (type) {
	case KVT_ATTN_F16:
		return f16_floats(halves);
	case KVT_ATTN_BF16:
		return bf16_floats(halves);
	default:
		return f8_floats(vget_low_u16(vmovl_u8(vcreate_u8(few))));
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
		vst1_u16(half + i, vreinterpret_u16_f16(vcvt_f16_f32(v_load(source + i))));
	for (; i < n; i++)
		kvt_element_store((char *)target + i * bytes, type, source[i]);
}
