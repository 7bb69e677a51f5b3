/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLOCK_H
#define KVT_CLOCK_H

#include <stdint.h>
#include <time.h>

/** Read CLOCK_MONOTONIC: the time of all deadlines, in all processes of a host. */
static inline int64_t kvt_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

#endif
