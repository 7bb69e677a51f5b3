/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_ASSERT_H
#define KVT_SHM_ASSERT_H

/**
 * @file assert.h
 * KVT_ASSERT stays on in production. It is for our own bugs: what a client, a file or the
 * kernel can cause is an error and is handled.
 */

#include <stdio.h>
#include <stdlib.h>

static inline __attribute__((noreturn, cold)) void kvt_assert_failed(const char *what,
								     const char *file, int line)
{
	fprintf(stderr, "kvtrunk: assertion failed at %s:%d: %s\n", file, line, what);
	abort();
}

#define KVT_ASSERT(condition)                                                                     \
	do {                                                                                      \
		if (__builtin_expect(!(condition), 0))                                            \
			kvt_assert_failed(#condition, __FILE__, __LINE__);                        \
	} while (0)

#endif
