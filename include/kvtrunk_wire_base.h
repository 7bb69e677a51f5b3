/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_BASE_H
#define KVTRUNK_WIRE_BASE_H

/**
 * @file kvtrunk_wire_base.h
 * The ABI number, and what all shared structures rest on.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_types.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvtrunk shares little-endian structures: this byte order is not supported"
#endif

#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif

#define KVT_ABI 4 /* raised with each change of shared bytes or messages: no build speaks two */

/* A line that one side writes and the other polls. 128, not 64: x86 prefetches lines in pairs
 * and Arm server cores have 128-byte granules, so 64 would still ping-pong. */
#define KVT_LINE 128
#define KVT_ALIGNED(n) __attribute__((aligned(n)))

/** Fold numbers into one: FNV-1a, computed at compile time. */
static inline uint64_t kvt_layout_fold(const uint32_t *facts, size_t n)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < n; i++)
		hash = (hash ^ facts[i]) * 0x100000001b3ull;
	return hash;
}

#endif
