/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/interrupt.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

void kvt_catch_interrupts(void)
{
	struct sigaction action = { .sa_handler = on_interrupt };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

bool kvt_interrupted(void)
{
	return interrupted;
}
