/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_TIMES_H
#define KVT_STORE_TIMES_H

/** @file times.h: count a time that a store tells (KVT_STORE_TIMES). */

#include "kvtrunk_wire_store.h"

static inline void kvt_store_time_add(struct kvt_store_time *time, uint64_t ns)
{
	uint64_t units = ns >> KVT_STORE_TIME_SHIFT;
	unsigned int bucket = units ? 64 - (unsigned int)__builtin_clzll(units) : 0;

	time->sum_ns += ns;
	time->buckets[bucket < KVT_STORE_TIME_BUCKETS ? bucket : KVT_STORE_TIME_BUCKETS - 1]++;
}

#endif
