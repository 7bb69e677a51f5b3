/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CLOCK_H
#define KVT_SERVE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct kvt_daemon;

/** The clocks, as last read. Only clock.c changes the times, but for a test's clock (admin.c). */
struct kvt_clock {
	uint64_t now_ns;          /* the cache's clock */
	uint64_t real_ns;         /* CLOCK_MONOTONIC, refreshed every few microseconds */
	uint64_t stamp, interval; /* cycles: when last read, and until the next read */
	uint64_t cycles_per_us;
	uint64_t units_per_cycle; /* units of 64 ns for histograms, 32 bits after the point */
	bool is_test;             /* requests move now_ns */
};

/** Read the clocks. */
void kvt_daemon_clock(struct kvt_daemon *daemon);

static inline uint64_t kvt_cycles(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t value;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(value));
	return value;
#else
#error "kvtrunkd needs a cycle counter: add one for this processor"
#endif
}

#endif
