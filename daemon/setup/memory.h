/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_MEMORY_H
#define KVT_DAEMON_SETUP_MEMORY_H

/** @file memory.h: the memory that the machine and its cgroups leave to this process. */

#include <stddef.h>
#include <stdint.h>

/** Memory of the machine, or the lowest limit of our cgroups if that is less. */
uint64_t kvt_memory_limit_bytes(void);
/** Memory that is free without swapping: of the machine, or below the limits of our cgroups if that
 * is less. UINT64_MAX: unknown. */
uint64_t kvt_memory_free_bytes(void);
/** Say in `why` that the daemon's memory cannot be locked, and the limit. Returns `error`. */
int kvt_memory_not_locked(int error, char *why, size_t why_size);

#endif
