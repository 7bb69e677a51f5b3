/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_BITS_H
#define KVT_CORE_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t kvt_min(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static inline bool kvt_bit_get(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static inline void kvt_bit_set(uint64_t *bits, uint32_t i)
{
	bits[i / 64] |= 1ull << (i % 64);
}

static inline void kvt_bit_clear(uint64_t *bits, uint32_t i)
{
	bits[i / 64] &= ~(1ull << (i % 64));
}

#endif
