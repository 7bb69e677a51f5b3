/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_INTERRUPT_H
#define KVT_TOOLS_INTERRUPT_H

/** @file interrupt.h: signals that end a command between two steps. */

#include <stdbool.h>

/** From now on SIGINT and SIGTERM only interrupt sleeps, and are told by kvt_interrupted(). */
void kvt_catch_interrupts(void);
bool kvt_interrupted(void);

#endif
