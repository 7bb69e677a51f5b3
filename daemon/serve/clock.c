/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/clock.h"

#include "daemon/serve/state.h"
#include "shm/clock.h"

void kvt_daemon_clock(struct kvt_daemon *daemon)
{
	daemon->clock.real_ns = (uint64_t)kvt_now_ns();
	if (!daemon->clock.is_test)
		daemon->clock.now_ns = daemon->clock.real_ns;
	daemon->clock.stamp = kvt_cycles();
}
