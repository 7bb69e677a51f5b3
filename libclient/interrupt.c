/* SPDX-License-Identifier: Apache-2.0 */

/* Interrupts end calls that sleep, for languages whose signal handlers run between calls. */

#include "libclient/interrupt.h"

#include <stddef.h>

#include "kvtrunk_client.h"
#include "shm/atomic.h"
#include "shm/clock.h"

#define SLICE_NS 50000000 /* longest sleep between two questions */

static int (*ask)(void);

void kvt_set_interrupted(int (*interrupted)(void))
{
	kvt_store_relaxed(&ask, interrupted);
}

int64_t kvt_interrupt_slice(int64_t deadline_ns)
{
	int64_t slice_ns;

	if (!kvt_load_relaxed(&ask))
		return deadline_ns;
	slice_ns = kvt_now_ns() + SLICE_NS;
	return slice_ns < deadline_ns ? slice_ns : deadline_ns;
}

bool kvt_client_interrupted(void)
{
	int (*interrupted)(void) = kvt_load_relaxed(&ask);

	return interrupted && interrupted() != 0;
}
