/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types, one value at a time, exact to the bit on every CPU. The vector paths have their
 * own, equal to these (tests compare all values).
 */
#ifndef KVT_KERNELS_CONVERT_H
#define KVT_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "kvt_kernels_types.h"

#if defined(__CUDACC__)
#define KVT_INLINE static __host__ __device__ __forceinline__
#else
#define KVT_INLINE static inline
#endif

KVT_INLINE uint32_t kvt_float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

KVT_INLINE float kvt_bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

KVT_INLINE float kvt_bf16_to_float(uint16_t bits)
{
	return kvt_bits_float((uint32_t)bits << 16);
}

/* Round to nearest even; NaN stays NaN. */
KVT_INLINE uint16_t kvt_float_to_bf16(float value)
{
	uint32_t bits = kvt_float_bits(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

KVT_INLINE float kvt_f16_to_float(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16;
	uint32_t magnitude = half & 0x7fff;

	if (magnitude >= 0x7c00) /* infinity and NaN, which becomes a quiet one */
		return kvt_bits_float(sign | 0x7f800000u | (magnitude & 0x3ff) << 13 |
				      (magnitude > 0x7c00 ? 0x400000u : 0));
	if (magnitude < 0x400) /* a multiple of 2^-24, exact in a float */
		return kvt_bits_float(sign | kvt_float_bits((float)magnitude * 0x1p-24f));
	return kvt_bits_float(sign | (magnitude + 0x1c000) << 13);
}

KVT_INLINE uint16_t kvt_float_to_f16(float value)
{
	uint32_t bits = kvt_float_bits(value);
	uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
	uint32_t magnitude = bits & 0x7fffffffu;

	if (magnitude > 0x7f800000u)
		return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
	if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000u) /* below 2^-14: adding 0.5 rounds to multiples of 2^-24 */
		return (uint16_t)(sign |
				  (kvt_float_bits(kvt_bits_float(magnitude) + 0.5f) - 0x3f000000u));
	magnitude += 0xfff + (magnitude >> 13 & 1);
	return (uint16_t)(sign | (magnitude - 0x38000000u) >> 13);
}

KVT_INLINE float kvt_f8_to_float(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80) << 24;
	uint32_t magnitude = bits & 0x7f;

	if (magnitude == 0x7f)
		return kvt_bits_float(sign | 0x7fc00000u);
	if (magnitude < 8)
		return kvt_bits_float(sign | kvt_float_bits((float)magnitude * 0x1p-9f));
	return kvt_bits_float(sign | (magnitude + 0x3c0) << 20);
}

/* Round to nearest even; larger values and infinities become +-448. */
KVT_INLINE uint8_t kvt_float_to_f8(float value)
{
	uint32_t bits = kvt_float_bits(value);
	uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
	uint32_t magnitude = bits & 0x7fffffffu;

	if (magnitude > 0x7f800000u)
		return sign | 0x7f;
	if (magnitude >= 0x43e00000u) /* 448 */
		return sign | 0x7e;
	if (magnitude < 0x3c800000u) /* below 2^-6: adding 2^14 rounds to multiples of 2^-9 */
		return (uint8_t)(sign | (kvt_float_bits(kvt_bits_float(magnitude) + 0x1p14f) -
					 kvt_float_bits(0x1p14f)));
	magnitude += 0x7ffff + (magnitude >> 20 & 1);
	return (uint8_t)(sign | ((magnitude >> 20) - 0x3c0));
}

KVT_INLINE uint32_t kvt_type_size(uint32_t type)
{
	return type == KVT_ATTN_F32 ? 4 : type == KVT_ATTN_F8_E4M3 ? 1 : 2;
}

KVT_INLINE float kvt_element_load(const void *source, uint32_t type)
{
	uint16_t half;
	float value;

	switch (type) {
	case KVT_ATTN_F32:
		memcpy(&value, source, sizeof value);
		return value;
	case KVT_ATTN_F16:
		memcpy(&half, source, sizeof half);
		return kvt_f16_to_float(half);
	case KVT_ATTN_BF16:
		memcpy(&half, source, sizeof half);
		return kvt_bf16_to_float(half);
	default:
		return kvt_f8_to_float(*(const uint8_t *)source);
	}
}

KVT_INLINE void kvt_element_store(void *target, uint32_t type, float value)
{
	uint16_t half;

	switch (type) {
	case KVT_ATTN_F32:
		memcpy(target, &value, sizeof value);
		return;
	case KVT_ATTN_F16:
		half = kvt_float_to_f16(value);
		memcpy(target, &half, sizeof half);
		return;
	case KVT_ATTN_BF16:
		half = kvt_float_to_bf16(value);
		memcpy(target, &half, sizeof half);
		return;
	default:
		*(uint8_t *)target = kvt_float_to_f8(value);
	}
}

#endif
