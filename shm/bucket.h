/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_BUCKET_H
#define KVT_SHM_BUCKET_H

/** @file bucket.h: the bucket of a histogram whose buckets are powers of two. */

#include <stdint.h>

/** Bucket i of n has values below 1 << i that are in none before it, the last one all larger. */
static inline uint32_t kvt_log2_bucket(uint64_t value, uint32_t n)
{
	uint32_t bucket = value ? 64 - (uint32_t)__builtin_clzll(value) : 0;

	return bucket < n ? bucket : n - 1;
}

#endif
