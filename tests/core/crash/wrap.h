/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CRASH_WRAP_H
#define KVT_CRASH_WRAP_H

/**
 * @file wrap.h
 * Included first in the instrumented core: memcpy() and its kin announce their stores, too, and
 * store in steps.
 */

#include <string.h>

void *crash_memcpy(void *to, const void *from, size_t n);
void *crash_memset(void *to, int byte, size_t n);

#define memcpy(to, from, n) crash_memcpy(to, from, n)
#define memset(to, byte, n) crash_memset(to, byte, n)

#endif
