/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/clock.h"

#include <time.h>

#include "daemon/serve/state.h"

static uint64_t clock_ns(clockid_t id)
{
	struct timespec now;

	clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void kvt_daemon_clock(struct kvt_daemon *daemon)
{
	daemon->clock.real_ns = clock_ns(CLOCK_MONOTONIC);
	if (!daemon->clock.is_test)
		daemon->clock.now_ns = daemon->clock.real_ns;
	daemon->clock.stamp = kvt_cycles();
}
