/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The float path for any CPU, with the compiler's 128-bit vectors: SSE2 on any x86-64, NEON on Arm,
 * scalar code elsewhere.
 *
 * Inputs: jobs of append_prefill.c. Invariant: products and sums are rounded apart, so all CPUs
 * agree, with FMA or without. Caller: through kvt_isa by context.c.
 */

#include <string.h>

#include "convert.h"
#include "internal.h"

#define VW 4
#define GEMM_ROWS 4
#define GEMM_VECTORS 2
#define TILE 16
#define BLOCK 128

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));

#include "vector.inc.h"

static inline vf v_set1(float value)
{
	return (vf){ value, value, value, value };
}

static inline vf v_fma(vf a, vf b, vf c)
{
	return a * b + c;
}

/* x where the mask is all ones, y where it is 0. */
static inline vf v_choose(vi mask, vf x, vf y)
{
	return (vf)(((vi)x & mask) | ((vi)y & ~mask));
}

/* The greater one; b if either is NaN. */
static inline vf v_max(vf a, vf b)
{
	return v_choose(a > b, a, b);
}

static inline vi first_mask(uint32_t n)
{
	const vi lane = { 0, 1, 2, 3 };
	int32_t end = n < VW ? (int32_t)n : VW;

	return lane < (vi){ end, end, end, end };
}

/* The first n lanes of value, the others of other. */
static inline vf v_first(vf value, uint32_t n, vf other)
{
	return v_choose(first_mask(n), value, other);
}

/* x where a equals b, else y. */
static inline vf v_if_equal(vf a, vf b, vf x, vf y)
{
	return v_choose(a == b, x, y);
}

static inline float v_sum(vf value)
{
	return (value[0] + value[2]) + (value[1] + value[3]);
}

static inline float v_maximum(vf value)
{
	float a = value[0] > value[2] ? value[0] : value[2];
	float b = value[1] > value[3] ? value[1] : value[3];

	return a > b ? a : b;
}

/*
 * 2^x for x up to a little above 0: a power of two made of bits, times 2^fraction by a polynomial
 * that is 1 at 0, relative error 1e-7. Below 2^-126 it is 0; NaN passes. Adding 1.5 * 2^23 rounds
 * to an integer, which is then in the low bits of the sum.
 */
static inline vf v_exp2(vf x)
{
	const vf magic = v_set1(12582912.0f);
	vf clamped = v_max(v_set1(-127.0f), x);
	vf sum = clamped + magic;
	vf f = clamped - (sum - magic);
	vi power = ((vi)sum - (vi)magic + 127) << 23;
	vf p = v_set1(0.001326472731307149f);

	p = v_fma(p, f, v_set1(0.009671512991189957f));
	p = v_fma(p, f, v_set1(0.05550733581185341f));
	p = v_fma(p, f, v_set1(0.24022242426872253f));
	p = v_fma(p, f, v_set1(0.6931470036506653f));
	p = v_fma(p, f, v_set1(1.0f));
	return p * (vf)power;
}

static inline void v_store_first(float *target, uint32_t n, vf value)
{
	memcpy(target, &value, (n < VW ? n : VW) * sizeof(float));
}

static inline bool v_any_not_finite(vf value)
{
	const vi exponent = { 0x7f800000, 0x7f800000, 0x7f800000, 0x7f800000 };
	vi equal = ((vi)value & exponent) == exponent;

	return (equal[0] | equal[1] | equal[2] | equal[3]) != 0;
}

static inline void v_transpose(vf *rows)
{
	float t[VW][VW];

	memcpy(t, rows, sizeof t);
	for (int i = 0; i < VW; i++)
		rows[i] = (vf){ t[0][i], t[1][i], t[2][i], t[3][i] };
}

static inline void rows_fetch(const struct kvt_rows *rows, uint32_t first, uint32_t n,
			      uint32_t bytes)
{
	/* No prefetch: this path is bound by computing, not memory. */
	(void)rows, (void)first, (void)n, (void)bytes;
}

static inline void ahead_fetch(const struct kvt_rows *ahead, uint32_t first, uint32_t n,
			       uint32_t bytes)
{
	for (uint32_t i = first; ahead->n && i < first + n; i++) {
		for (uint32_t j = 0; j < bytes; j += 64)
			__builtin_prefetch(ahead->at[i] + j);
	}
}

/* Load the first n (VW at most) elements of a row as floats, then zeros. Reads nothing behind
 * them. */
static inline vf floats_load(const void *source, uint32_t n, uint32_t type)
{
	const char *byte = source;
	uint32_t bytes = kvt_type_size(type);
	float values[VW] = { 0 };

	if (type == KVT_ATTN_F32) {
		memcpy(values, source, (n < VW ? n : VW) * sizeof(float));
		return v_load(values);
	}
	for (uint32_t i = 0; i < VW && i < n; i++)
		values[i] = kvt_element_load(byte + i * bytes, type);
	return v_load(values);
}

static inline void row_store(void *target, const float *source, uint32_t n, uint32_t type)
{
	uint32_t bytes = kvt_type_size(type);

	for (uint32_t i = 0; i < n; i++)
		kvt_element_store((char *)target + i * bytes, type, source[i]);
}

#include "f32.inc.h"

#include "attention.inc.h"

KVT_PATH_DEFINE(kvt_path_portable_f32, "portable");
