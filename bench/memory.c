/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file memory.c
 * What a daemon costs a position: its resident memory without the pool, empty and full.
 *
 * Inputs: the options. Invariant: pages are never written, so the pool takes no memory. Caller:
 * main.c.
 */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SEQUENCE 65536u
#define AIM_BYTES 12

static double resident_bytes(pid_t pid)
{
	unsigned long long pages = 0;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	file = fopen(path, "re");
	if (!file || fscanf(file, "%*u %llu", &pages) != 1)
		bench_die("memory: cannot read %s", path);
	fclose(file);
	return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void fill(struct bench_target *target, uint64_t positions)
{
	uint32_t *keys = bench_alloc(SEQUENCE, sizeof(*keys));

	for (uint64_t at = 0; at < positions; at += SEQUENCE) {
		bench_new_keys(keys, SEQUENCE);
		if (!bench_cache(target, keys, SEQUENCE, 0, NULL, NULL))
			bench_die("memory: the sequences do not fit");
	}
	free(keys);
}

static void memory_of(const struct bench_options *options, uint64_t positions)
{
	struct bench_target target = { 0 };
	struct kvt_core_config config = { .page_size = BENCH_PAGE_SIZE };
	struct kvt_core_sizes bytes;
	double empty, full, n = (double)positions;
	const char *why = "";

	config.n_pages = (uint32_t)(positions / BENCH_PAGE_SIZE) + 1;
	if (kvt_core_plan(&config, &bytes, &why))
		bench_die("memory: %s", why);
	bench_target_open(&target, options, config.n_pages);
	empty = resident_bytes(target.daemon.pid) / n;
	fill(&target, positions);
	full = resident_bytes(target.daemon.pid) / n;
	bench_target_close(&target);
	bench_line("memory_bytes_per_position", "\"positions\":%llu,\"page_size\":%u,"
		   "\"empty\":%.2f,\"full\":%.2f,\"floor\":%.2f,\"floor_is\":\"the arena alone\"",
		   (unsigned long long)positions, BENCH_PAGE_SIZE, empty, full,
		   (double)bytes.arena_bytes / n);
	if (positions == 1u << 20)
		bench_aim("resident bytes / pool positions, page 64, 1 M positions, full", full,
			  "B", AIM_BYTES, false);
}

void bench_memory(const struct bench_options *options)
{
	static const uint64_t positions[] = { 1u << 20, 8u << 20, 64u << 20 };

	for (unsigned int i = 0; i < (options->quick ? 2u : 3u); i++)
		memory_of(options, positions[i]);
}
