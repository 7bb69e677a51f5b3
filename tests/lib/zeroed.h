/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_ZEROED_H
#define KVT_TESTS_ZEROED_H

/**
 * @file zeroed.h
 * Memory for a core, for free().
 */

#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire.h"

/** Allocate zeros in whole cache lines. Never NULL. */
static inline void *zeroed(uint64_t bytes)
{
	uint64_t rounded = (bytes + KVT_LINE - 1) / KVT_LINE * KVT_LINE;
	void *memory = aligned_alloc(KVT_LINE, rounded);

	if (!memory)
		abort();
	return memset(memory, 0, rounded);
}

#endif
