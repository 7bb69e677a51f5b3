/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file rebuild.c
 * How long recovery takes after a daemon's death: all facts checked, everything
 * derived rebuilt, the full audit. In this process, on memory that is mapped already (as stored
 * descriptors are after mmap with MAP_POPULATE), with scratch memory that is not.
 */
#include "bench/bench.h"
#include "daemon/core/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define REBUILD_PAGE_SIZE 16u
#define MILLION 1000000u

static void fill(struct bench_target *target, uint32_t n_pages, uint32_t run)
{
	uint32_t n_keys = run * REBUILD_PAGE_SIZE;
	uint32_t *keys = bench_alloc(n_keys, sizeof(*keys));

	for (uint32_t pages = 0; pages + run <= n_pages; pages += run) {
		bench_new_keys(keys, n_keys);
		if (!bench_cache(target, keys, n_keys, 0, NULL, NULL))
			bench_die("rebuild: the runs do not fit");
	}
	free(keys);
}

/* Read once the bytes that recovery reads: all but the keys and the undo log. */
static uint64_t read_all(const void *object, const struct kvt_section *sections, uint32_t n,
			 uint32_t left_out)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		const uint64_t *words = (const void *)((const char *)object + sections[i].offset);

		for (uint64_t at = 0; i != left_out && at < sections[i].bytes / 8; at++)
			sum += words[at];
	}
	return sum;
}

static uint64_t adopt_once(struct bench_target *target, uint64_t scratch_bytes)
{
	struct kvt_core_adoption adoption;
	struct kvt_core *core;
	char why[256] = "";
	uint64_t start, ticks;
	void *scratch = mmap(NULL, scratch_bytes, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (scratch == MAP_FAILED)
		bench_die("rebuild: no memory");
	start = bench_ticks();
	if (kvt_core_adopt(&core, &target->config, target->arena, target->ledger, scratch, NULL, 1,
			   &adoption, why, sizeof(why)))
		bench_die("rebuild: %s", why);
	ticks = bench_ticks() - start;
	munmap(scratch, scratch_bytes);
	return ticks;
}

static void measure(const struct bench_options *options, uint32_t n_pages, uint32_t run,
		    const char *kind)
{
	struct bench_samples values = { 0 }, floors = { 0 };
	struct bench_target target = { 0 };
	struct bench_options core = *options;
	struct bench_result line = { .name = "rebuild", .kind = kind,
				     .floor_is = "one read of the same records" };
	struct kvt_core_sizes sizes;
	volatile uint64_t sum;
	uint32_t n_slots;

	core.core = true;
	target.config.page_size = REBUILD_PAGE_SIZE;
	target.config.max_nodes = n_pages / run + n_pages / 4 + 64;
	bench_target_open(&target, &core, n_pages + 1);
	fill(&target, n_pages, run);
	kvt_core_plan(&target.config, &sizes, NULL);
	n_slots = target.config.n_slots;
	for (uint32_t i = 0; i < (options->quick ? 3u : 11u); i++) {
		const struct kvt_arena_header *arena = target.arena;
		const struct kvt_ledger_header *ledger = target.ledger;
		uint64_t start;

		bench_samples_add_any(&values, adopt_once(&target, sizes.scratch_bytes));
		start = bench_ticks();
		sum = read_all(arena, arena->sections, KVT_ARENA_SECTIONS, KVT_SECTION_SLOT_KEYS);
		sum += read_all(ledger, ledger->sections, KVT_LEDGER_SECTIONS, KVT_LSECTION_UNDO);
		bench_samples_add_any(&floors, bench_ticks() - start);
	}
	(void)sum;
	line.value = bench_samples_take(&values);
	line.floor = bench_samples_take(&floors);
	snprintf(line.extra, sizeof(line.extra), "\"slots\":%u,\"nodes\":%llu,\"cached\":%llu,"
		 "\"ms_per_million_slots\":%.2f,\"target\":\"core in this process\"", n_slots,
		 (unsigned long long)kvt_core_counters(target.core)->live_nodes,
		 (unsigned long long)kvt_core_counters(target.core)->cached_pages,
		 line.value.p50 / 1e6 * MILLION / n_slots);
	bench_emit(&line);
	if (n_pages == 1u << 16)
		bench_aim("rebuild of 1 M cached positions, p50", line.value.p50 / 1e6, "ms", 50,
			  false);
	target.core = NULL; /* its scratch memory predates the successors */
	bench_target_close(&target);
}

void bench_rebuild(const struct bench_options *options)
{
	measure(options, 1u << 12, 64, "64 K positions, runs of 64 pages");
	measure(options, 1u << 16, 64, "1 M positions, runs of 64 pages");
	measure(options, 1u << 16, 4, "1 M positions, runs of 4 pages");
	if (!options->quick)
		measure(options, 1u << 20, 64, "16 M positions, runs of 64 pages");
}
