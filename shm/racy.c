/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/racy.h"

#include <string.h>

/* Intended races: ThreadSanitizer is off here, and nowhere else. */
#if defined(__SANITIZE_THREAD__)
#define KVT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVT_TSAN 1
#endif
#endif
#ifdef KVT_TSAN
#define KVT_RACY __attribute__((noinline, no_sanitize("thread")))
#define KVT_RACY_PLAIN 1
#else
#define KVT_RACY __attribute__((noinline))
#endif

KVT_RACY void kvt_racy_copy(uint32_t *to, const uint32_t *from, size_t n)
{
#ifdef KVT_RACY_PLAIN
	for (size_t i = 0; i < n; i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
#else
	memcpy(to, from, n * sizeof(*to));
#endif
}

KVT_RACY bool kvt_racy_equal(const uint32_t *a, const uint32_t *b, size_t n)
{
#ifdef KVT_RACY_PLAIN
	for (size_t i = 0; i < n; i++)
		if (__atomic_load_n(&a[i], __ATOMIC_RELAXED) !=
		    __atomic_load_n(&b[i], __ATOMIC_RELAXED))
			return false;
	return true;
#else
	return memcmp(a, b, n * sizeof(*a)) == 0;
#endif
}

KVT_RACY uint32_t kvt_racy_equal_pages(const uint32_t *a, const uint32_t *b, uint32_t n_pages,
				       uint32_t page_size)
{
	uint32_t low = 0, high = 0;

	/* Common case first: all equal, at memory speed. */
	if (kvt_racy_equal(a, b, (size_t)n_pages * page_size))
		return n_pages;
	/* Else gallop, then bisect: a difference at page d costs O(d), whatever the length. */
	for (uint32_t step = 1; high < n_pages; step *= 2) {
		low = high;
		high = step < n_pages - low ? low + step : n_pages;
		if (!kvt_racy_equal(a + (size_t)low * page_size, b + (size_t)low * page_size,
				    (size_t)(high - low) * page_size))
			break;
	}
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (kvt_racy_equal(a + (size_t)low * page_size, b + (size_t)low * page_size,
				   (size_t)(middle - low) * page_size))
			low = middle;
		else
			high = middle;
	}
	return low;
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Multiply-and-fold over pairs of words, two lanes: spreads token ids well, keyed by the instance's
 * seed. Equality never rests on it. */
KVT_RACY uint32_t kvt_racy_tag(uint64_t seed, uint32_t parent, const uint32_t *keys,
			       uint32_t page_size)
{
	const uint64_t k0 = 0x9e3779b97f4a7c15ull, k1 = 0xd6e8feb86659fd93ull;
	uint64_t lane0 = mix(seed ^ k0, parent ^ k1), lane1 = seed ^ k1;
	uint32_t i = 0, tag;

	for (; i + 4 <= page_size; i += 4) {
		uint64_t a = __atomic_load_n(&keys[i], __ATOMIC_RELAXED) |
			     (uint64_t)__atomic_load_n(&keys[i + 1], __ATOMIC_RELAXED) << 32;
		uint64_t b = __atomic_load_n(&keys[i + 2], __ATOMIC_RELAXED) |
			     (uint64_t)__atomic_load_n(&keys[i + 3], __ATOMIC_RELAXED) << 32;

		lane0 = mix(lane0 ^ a, k0);
		lane1 = mix(lane1 ^ b, k1);
	}
	for (; i < page_size; i++)
		lane0 = mix(lane0 ^ __atomic_load_n(&keys[i], __ATOMIC_RELAXED), k1);
	lane0 = mix(lane0 ^ k1, lane1 ^ k0 ^ page_size);
	tag = (uint32_t)(lane0 ^ (lane0 >> 32));
	return tag ? tag : 1;
}
