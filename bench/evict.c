/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file evict.c
 * Eviction of one leaf under each policy, from 1 K to 300 K leaves; bytes per position. Both on the
 * state machine in this process: a round trip would hide the difference.
 *
 * Inputs: none; it makes its own trees. Invariant: the floor's records are as warm in the caches as
 * the leaves. Caller: main.c.
 */
#include "kvtrunk_wire_arena.h"
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAF_PAGE_SIZE 16u
#define AIM_LRU_NS 300
#define AIM_HEAP_NS 2000

/* The floor: unlink the oldest of n records of a node's size, in a list whose order is unrelated to
 * addresses, and put it on a free list. Its successor becomes the list's end and is read: the one
 * line that cannot be prefetched. */
struct record {
	uint32_t older, younger, next_free, filler[13];
	uint64_t more[8];
};
_Static_assert(sizeof(struct record) == sizeof(struct kvt_node), "a record is as large as a node");

static struct record *make_records(uint32_t n)
{
	struct record *records = bench_alloc(n + 1, sizeof(*records));
	uint32_t *order = bench_alloc(n, sizeof(*order)), last = 0;

	for (uint32_t i = 0; i < n; i++)
		order[i] = i + 1;
	for (uint32_t i = n; i > 1; i--) {
		uint32_t j = (uint32_t)(kvt_trace_mix(i) % i), keep = order[i - 1];

		order[i - 1] = order[j];
		order[j] = keep;
	}
	for (uint32_t i = 0; i < n; i++) {
		records[last].younger = order[i];
		records[order[i]].older = last;
		last = order[i];
	}
	records[last].younger = 0;
	records[0].older = last;
	free(order);
	return records;
}

static uint32_t pop(struct record *records)
{
	uint32_t oldest = records[0].younger;
	struct record *record = &records[oldest];

	records[0].younger = record->younger;
	records[record->younger].older = 0;
	record->next_free = records[0].next_free;
	records[0].next_free = oldest;
	return records[record->younger].younger;
}

/* Read the counter after `value` has arrived: the counter alone does not wait for loads. */
static uint64_t ticks_after(uint32_t value)
{
	__asm__ volatile("" ::"r"(value) : "memory");
#if defined(__x86_64__)
	__builtin_ia32_lfence();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
	return bench_ticks();
}

/* Make leaves of one page below a shared first page, and touch them in an order unrelated to that
 * of their creation. */
static void grow_leaves(struct bench_target *target, uint32_t *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		bench_new_keys(keys + (size_t)i * LEAF_PAGE_SIZE, LEAF_PAGE_SIZE);
		if (!bench_cache(target, keys + (size_t)i * LEAF_PAGE_SIZE, LEAF_PAGE_SIZE, 0, NULL,
				 NULL))
			bench_die("evict: the leaves do not fit");
	}
	for (uint32_t i = 0; i < n; i++) {
		size_t at = kvt_trace_mix(i) % n * LEAF_PAGE_SIZE;

		bench_cache(target, keys + at, LEAF_PAGE_SIZE, 0, NULL, NULL);
	}
}

static void measure(const struct bench_options *options, struct bench_target *target,
		    struct record *records, uint32_t n, struct bench_result *line)
{
	struct bench_samples values = { 0 }, floors = { 0 };
	struct kvt_request evict = { .op = KVT_OP_EVICT, .arg = 1 };
	uint32_t count = n / 4 < 2000 ? n / 4 : options->quick ? 500 : 2000;
	struct kvt_result result;

	bench_prepare(target, &evict);
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start = bench_ticks();

		bench_run(target, &evict, &result);
		bench_samples_add(&values, ticks_after(result.evicted) - start);
		if (result.evicted != 1)
			bench_die("evict: %u pages", result.evicted);
		start = bench_ticks();
		bench_samples_add(&floors, ticks_after(pop(records)) - start);
	}
	line->value = bench_samples_take(&values);
	line->floor = bench_samples_take(&floors);
}

static void evict_one(const struct bench_options *options, uint32_t policy, uint32_t n)
{
	struct bench_target target = { 0 };
	struct bench_options core = *options;
	struct bench_result line = { .name = "evict", .kind = kvt_policy_name(policy),
				     .floor_is = "the oldest of such records unlinked" };
	uint32_t *keys = bench_alloc((size_t)n * LEAF_PAGE_SIZE, sizeof(*keys));
	struct record *records;
	char figure[80];

	core.core = true;
	target.config.page_size = LEAF_PAGE_SIZE;
	target.config.policy = policy;
	target.config.max_nodes = n + n / 8 + 1024;
	bench_target_open(&target, &core, n + 4096);
	grow_leaves(&target, keys, n);
	records = make_records(n); /* as warm as the leaves */
	measure(options, &target, records, n, &line);
	snprintf(line.extra, sizeof(line.extra), "\"leaves\":%u,\"target\":"
		 "\"core in this process\"", n);
	bench_emit(&line);
	snprintf(figure, sizeof(figure), "evict one of %u leaves, %s, p50", n, line.kind);
	if (policy == 0 || n == 300000)
		bench_aim(figure, line.value.p50 / 1000, "us",
			  (policy == 0 ? AIM_LRU_NS : AIM_HEAP_NS) / 1000.0, false);
	bench_target_close(&target);
	free(records);
	free(keys);
}

void bench_evict(const struct bench_options *options)
{
	static const uint32_t leaves[] = { 1000, 10000, 100000, 300000 };

	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		for (unsigned int i = 0; i < (options->quick ? 2u : 4u); i++)
			evict_one(options, policy, leaves[i]);
	}
}

void bench_arena(void)
{
	static const uint32_t pages[] = { 1u << 14, 1u << 17, 1u << 20 };
	static const uint32_t sizes[] = { 16, 64, 256 };

	for (unsigned int i = 0; i < 9; i++) {
		struct kvt_core_config config = { .page_size = sizes[i / 3],
						  .n_pages = pages[i % 3] + 1 };
		struct kvt_core_sizes bytes;
		const char *why = "";
		double positions = (double)pages[i % 3] * sizes[i / 3], arena;

		if (kvt_core_plan(&config, &bytes, &why))
			bench_die("arena: %s", why);
		arena = (double)bytes.arena_bytes / positions;
		bench_line("arena_bytes_per_position", "\"page_size\":%u,\"pages\":%u,"
			   "\"arena\":%.3f,\"ledger\":%.3f,\"scratch\":%.3f,"
			   "\"floor\":4,\"floor_is\":\"the keys alone\"",
			   sizes[i / 3], pages[i % 3], arena,
			   (double)bytes.ledger_bytes / positions,
			   (double)bytes.scratch_bytes / positions);
		if (sizes[i / 3] == 64 && pages[i % 3] < 1u << 20)
			bench_aim(pages[i % 3] == 1u << 14 ?
				  "arena bytes / pool positions, page 64, 1 M positions" :
				  "arena bytes / pool positions, page 64, 8 M positions",
				  arena, "B", 5.5, false);
	}
}
