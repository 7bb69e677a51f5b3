/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file shared.c
 * Access to the mapping that a replay's parent and workers share.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "lab/replay/replay.h"

void kvt_replay_notify(struct kvt_replay_shared *shared)
{
	kvt_add_full(&shared->progress, 1);
	/* Pairs with the waiter's increment before the kernel compares `progress`. */
	kvt_fence_full();
	/* A killed waiter stays counted: a useless syscall, never a missed wake-up. */
	if (kvt_load_acquire(&shared->waiters))
		syscall(SYS_futex, &shared->progress, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void kvt_replay_settle(struct kvt_replay_shared *shared, uint32_t index, uint32_t state)
{
	/* Pairs with the acquire of a waiter for this request. */
	kvt_store_release(&shared->slots[index].state, state);
	kvt_add_full(&shared->done, 1);
	kvt_replay_notify(shared);
}

void kvt_replay_wait(struct kvt_replay_shared *shared, uint32_t seen, int64_t timeout_ns)
{
	struct timespec timeout = { .tv_sec = timeout_ns / 1000000000,
				    .tv_nsec = timeout_ns % 1000000000 };

	kvt_add_full(&shared->waiters, 1);
	syscall(SYS_futex, &shared->progress, FUTEX_WAIT, seen, timeout_ns > 0 ? &timeout : NULL,
		NULL, 0);
	kvt_add_full(&shared->waiters, UINT32_MAX); /* one less */
}

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t power, bucket;

	if (ns < 16)
		return (uint32_t)ns;
	power = 63 - (uint32_t)__builtin_clzll(ns);
	bucket = (power - 3) * 16 + (uint32_t)((ns >> (power - 4)) & 15);
	return bucket < KVT_LATENCY_BUCKETS ? bucket : KVT_LATENCY_BUCKETS - 1;
}

static uint64_t bucket_edge(uint32_t bucket)
{
	if (bucket < 16)
		return bucket;
	return (uint64_t)(16 + bucket % 16 + 1) << (bucket / 16 - 1);
}

void kvt_latency_add(struct kvt_latency *latency, uint64_t ns)
{
	latency->buckets[bucket_of(ns)]++;
	latency->n++;
	if (ns > latency->max_ns)
		latency->max_ns = ns;
}

void kvt_latency_merge(struct kvt_latency *into, const struct kvt_latency *from)
{
	for (uint32_t i = 0; i < KVT_LATENCY_BUCKETS; i++)
		into->buckets[i] += from->buckets[i];
	into->n += from->n;
	if (from->max_ns > into->max_ns)
		into->max_ns = from->max_ns;
}

double kvt_latency_us(const struct kvt_latency *latency, double part)
{
	uint64_t before = 0, wanted = (uint64_t)(part * (double)latency->n);

	for (uint32_t i = 0; i < KVT_LATENCY_BUCKETS; i++) {
		before += latency->buckets[i];
		if (before > wanted) {
			uint64_t edge = bucket_edge(i);

			return (double)(edge < latency->max_ns ? edge : latency->max_ns) / 1000;
		}
	}
	return (double)latency->max_ns / 1000;
}
