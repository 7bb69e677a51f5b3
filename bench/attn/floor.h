/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's peak at this moment: products per second, and bytes read per second. Each is
 * the best of several loops, since one loop alone may show a third of the real peak.
 */
#ifndef KVT_BENCH_ATTN_FLOOR_H
#define KVT_BENCH_ATTN_FLOOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum floor_kind {
	FLOOR_VECTOR, /* products and sums of the compiler's 128-bit vectors */
	FLOOR_AVX2, /* fma of 256-bit vectors */
	FLOOR_AVX512, /* fma of 512-bit vectors */
	FLOOR_BF16, /* vdpbf16ps of 512-bit vectors */
};

const char *floor_name(enum floor_kind kind);

/* True if this CPU has it. */
bool floor_has(enum floor_kind kind);

/*
 * Measure operations per second (a product and a sum are two), in units of 1e9, of n_threads
 * threads at once.
 */
double floor_gflops(enum floor_kind kind, uint32_t n_threads);

/* Runs of bytes to read in the order of their offsets, by one of several loops. */
struct floor_runs {
	const void *buffer;
	const uint64_t *offsets;
	size_t n_runs;
	size_t run_bytes;
	int loop;
};

/*
 * Choose the fastest loop for n_threads at once, each with its share of the runs: the one with the
 * highest median. Returns that median, in units of 1e9 bytes per second.
 */
double floor_read_choose(struct floor_runs *runs, uint32_t n_threads);

/* Measure the chosen loop's rate once. */
double floor_read(const struct floor_runs *runs, uint32_t n_threads);

/*
 * Return the seconds that this process's threads have been ready to run but waited for a CPU. 0
 * where the kernel does not tell.
 */
double floor_waited_s(void);

double now_s(void);

/* Return 31 random bits, the same sequence in each run. For one thread. */
uint32_t random_next(void);

#endif
