/* SPDX-License-Identifier: Apache-2.0 */

/* The calls of gcc's thread sanitizer, without the sanitizer: announce each store of the
 * instrumented core to watched memory before it happens. A process killed there leaves exactly what
 * memory holds at that moment. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tests/core/crash/crash.h"

static const char *watched[2];
static size_t watched_bytes[2];
static crash_store_fn *announce;
static void *announce_context;

void crash_watch(const void *a, size_t a_bytes, const void *b, size_t b_bytes,
		 crash_store_fn *store, void *context)
{
	watched[0] = a;
	watched[1] = b;
	watched_bytes[0] = a_bytes;
	watched_bytes[1] = b_bytes;
	announce = store;
	announce_context = context;
}

static void about_to_store(void *at, size_t n)
{
	for (int i = 0; i < 2; i++)
		if (announce && (size_t)((const char *)at - watched[i]) < watched_bytes[i])
			announce(announce_context, at, n);
}

/* In steps of a word, as a processor may. */
void *crash_memcpy(void *to, const void *from, size_t n)
{
	for (size_t at = 0, step; at < n; at += step) {
		step = n - at < 8 ? n - at : 8;
		about_to_store((char *)to + at, step);
		memcpy((char *)to + at, (const char *)from + at, step);
	}
	return to;
}

void *crash_memset(void *to, int byte, size_t n)
{
	for (size_t at = 0, step; at < n; at += step) {
		step = n - at < 8 ? n - at : 8;
		about_to_store((char *)to + at, step);
		memset((char *)to + at, byte, step);
	}
	return to;
}

/* ---- the interface that the compiler calls */

void __tsan_init(void)
{
}

void __tsan_func_entry(void *caller)
{
}

void __tsan_func_exit(void)
{
}

#define READ(name)                                                                                \
	void name(void *at)                                                                       \
	{                                                                                         \
		(void)at;                                                                         \
	}
#define WRITE(name, bytes)                                                                        \
	void name(void *at)                                                                       \
	{                                                                                         \
		about_to_store(at, bytes);                                                        \
	}

READ(__tsan_read1)
READ(__tsan_read2)
READ(__tsan_read4)
READ(__tsan_read8)
READ(__tsan_read16)
READ(__tsan_unaligned_read2)
READ(__tsan_unaligned_read4)
READ(__tsan_unaligned_read8)
READ(__tsan_unaligned_read16)
WRITE(__tsan_write1, 1)
WRITE(__tsan_write2, 2)
WRITE(__tsan_write4, 4)
WRITE(__tsan_write8, 8)
WRITE(__tsan_write16, 16)
WRITE(__tsan_unaligned_write2, 2)
WRITE(__tsan_unaligned_write4, 4)
WRITE(__tsan_unaligned_write8, 8)
WRITE(__tsan_unaligned_write16, 16)

void __tsan_read_range(void *at, size_t n)
{
}

void __tsan_write_range(void *at, size_t n)
{
	about_to_store(at, n);
}

#define ATOMIC(bits, type)                                                                        \
	type __tsan_atomic##bits##_load(const volatile type *at, int order)                       \
	{                                                                                         \
		(void)order;                                                                      \
		return *at;                                                                       \
	}                                                                                         \
	void __tsan_atomic##bits##_store(volatile type *at, type value, int order)                \
	{                                                                                         \
		(void)order;                                                                      \
		about_to_store((void *)(uintptr_t)at, sizeof(*at));                               \
		*at = value;                                                                      \
	}

ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int order)
{
}

void __tsan_atomic_signal_fence(int order)
{
}
