/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_ATOMIC_H
#define KVT_SHM_ATOMIC_H

/**
 * @file atomic.h
 * The only place where memory order is spelled. Everything else uses these, and every acquire,
 * release and fence names its partner in a comment.
 *
 * These are GNU __atomic builtins on plain fields, so shared structs stay plain C, which a debugger
 * can read.
 */

#include <stdbool.h>
#include <stdint.h>

#define kvt_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define kvt_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define kvt_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define kvt_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define kvt_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define kvt_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)
/* Compiler barrier. Enough for a successor, which reads the stores of a dead process in the order
 * in which that executed them. */
#define kvt_fence_signal() __atomic_signal_fence(__ATOMIC_SEQ_CST)
#define kvt_fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)

/* For words with several writers (tools, tests; not the rings). Sequentially consistent. */
#define kvt_add_full(p, n) __atomic_add_fetch((p), (n), __ATOMIC_SEQ_CST)
#define kvt_exchange_full(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
static inline bool kvt_replace_u32(uint32_t *word, uint32_t old, uint32_t value)
{
	return __atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

static inline bool kvt_replace_u64(uint64_t *word, uint64_t old, uint64_t value)
{
	return __atomic_compare_exchange_n(word, &old, value, false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

/* Hint to the core: a store to this line will follow. The compiler's own hint asks x86-64 for a
 * line to read, which the store must then ask for again. */
static inline void kvt_fetch_to_write(void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" ::"m"(*(char *)line));
#else
	__builtin_prefetch(line, 1);
#endif
}

/* Hint to the core: busy waiting. */
static inline void kvt_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#endif
}

#endif
