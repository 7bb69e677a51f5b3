/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_TIMES_H
#define KVT_STORE_TIMES_H

/** @file times.h: count a time that a store tells (KVT_STORE_TIMES). */

#include "kvtrunk_wire_store.h"
#include "shm/bucket.h"

static inline void kvt_store_time_add(struct kvt_store_time *time, uint64_t ns)
{
	time->sum_ns += ns;
	time->buckets[kvt_log2_bucket(ns >> KVT_STORE_TIME_SHIFT, KVT_STORE_TIME_BUCKETS)]++;
}

#endif
