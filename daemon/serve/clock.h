/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_CLOCK_H
#define KVT_SERVE_CLOCK_H

#include "daemon/serve/state.h"

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
