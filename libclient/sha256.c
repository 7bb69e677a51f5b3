/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sha256.h"

#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "shm/atomic.h"

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_words[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t rotate(uint32_t x, unsigned int n)
{
	return x >> n | x << (32 - n);
}

static uint32_t read_word(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void expand(const uint8_t block[64], uint32_t w[64])
{
	for (unsigned int i = 0; i < 16; i++)
		w[i] = read_word(block + 4 * i);
	for (unsigned int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		uint32_t s0 = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3;
		uint32_t s1 = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10;

		w[i] = w[i - 16] + s0 + w[i - 7] + s1;
	}
}

/* Do one round. The words keep their places; `a` is the place of the first, and moves. */
static inline __attribute__((always_inline)) void turn(uint32_t v[8], unsigned int a, uint32_t word)
{
	uint32_t first = v[a], b = v[(a + 1) % 8], c = v[(a + 2) % 8], e = v[(a + 4) % 8];
	uint32_t s0 = rotate(first, 2) ^ rotate(first, 13) ^ rotate(first, 22);
	uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
	uint32_t choice = (e & v[(a + 5) % 8]) ^ (~e & v[(a + 6) % 8]);
	uint32_t majority = (first & b) ^ (first & c) ^ (b & c);
	uint32_t t1 = v[(a + 7) % 8] + s1 + choice + word;

	v[(a + 3) % 8] += t1;
	v[(a + 7) % 8] = t1 + s0 + majority;
}

void kvt_sha256_compress_portable(uint32_t state[8], const uint8_t block[64])
{
	uint32_t w[64], v[8];

	expand(block, w);
	memcpy(v, state, sizeof(v));
	for (unsigned int i = 0; i < 64; i += 8)
#pragma GCC unroll 8 /* then the words are registers: 2.5 times as fast */
		for (unsigned int j = 0; j < 8; j++)
			turn(v, (8 - j) % 8, round_words[i + j] + w[i + j]);
	for (unsigned int i = 0; i < 8; i++)
		state[i] += v[i];
}

#if defined(__x86_64__)
#define BIT_SHA (1u << 29) /* of EBX; such processors have SSE 4.1, too */

/* Ask the processor once: in a virtual machine the question is slow. */
static bool instruction_there(void)
{
	static uint32_t answer; /* 0: not asked, 1: no, 2: yes */
	uint32_t known = kvt_load_relaxed(&answer), a, b = 0, c, d;

	if (!known) {
		known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & BIT_SHA ? 2 : 1;
		kvt_store_relaxed(&answer, known);
	}
	return known == 2;
}

/* The next four words, from the last 16: w[i % 4] is the oldest. */
__attribute__((target("sha,sse4.1"))) static inline __m128i schedule(const __m128i w[4],
								     unsigned int i)
{
	__m128i last = w[(i + 3) % 4], before = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);

	return _mm_sha256msg2_epu32(
		_mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), before), last);
}

/* The instructions have the state as ABEF and CDGH, highest word first. */
__attribute__((target("sha,sse4.1"))) static void by_instruction(uint32_t state[8],
								 const uint8_t block[64])
{
	const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
	__m128i badc = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
	__m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state + 1), 0x1b);
	__m128i abef = _mm_alignr_epi8(badc, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, badc, 0xf0);
	__m128i abef_before = abef, cdgh_before = cdgh, w[4] = { { 0 } };

#pragma GCC unroll 16
	for (unsigned int i = 0; i < 16; i++) {
		const __m128i *words = (const __m128i *)round_words + i;
		__m128i sum;

		w[i % 4] = i >= 4 ? schedule(w, i)
				  : _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)block + i),
						     swap);
		sum = _mm_add_epi32(w[i % 4], _mm_loadu_si128(words));
		cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
		abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
	}
	abef = _mm_shuffle_epi32(_mm_add_epi32(abef, abef_before), 0x1b); /* now FEBA */
	cdgh = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh_before), 0xb1); /* now DCHG */
	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(abef, cdgh, 0xf0));
	_mm_storeu_si128((__m128i *)state + 1, _mm_alignr_epi8(cdgh, abef, 8));
}
#endif

void kvt_sha256_compress(uint32_t state[8], const uint8_t block[64])
{
#if defined(__x86_64__)
	if (instruction_there()) {
		by_instruction(state, block);
		return;
	}
#endif
	kvt_sha256_compress_portable(state, block);
}

void kvt_sha256_init(struct kvt_sha256 *hash)
{
	static const uint32_t start[8] = {
		0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
		0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
	};

	memcpy(hash->state, start, sizeof(start));
	hash->n_bytes = 0;
}

void kvt_sha256_add(struct kvt_sha256 *hash, const void *bytes, size_t n)
{
	size_t used = hash->n_bytes % sizeof(hash->block);
	const uint8_t *from = bytes;

	hash->n_bytes += n;
	while (n > 0) {
		size_t part = sizeof(hash->block) - used;

		if (part > n)
			part = n;
		memcpy(hash->block + used, from, part);
		from += part;
		n -= part;
		used += part;
		if (used == sizeof(hash->block)) {
			kvt_sha256_compress(hash->state, hash->block);
			used = 0;
		}
	}
}

void kvt_sha256_finish(struct kvt_sha256 *hash, uint8_t ret_digest[32])
{
	uint64_t n_bits = hash->n_bytes * 8;
	uint8_t padding[72] = { 0x80 }, length[8];
	size_t used = hash->n_bytes % 64;

	for (unsigned int i = 0; i < 8; i++)
		length[i] = (uint8_t)(n_bits >> (56 - 8 * i));
	kvt_sha256_add(hash, padding, (used < 56 ? 56 : 120) - used);
	kvt_sha256_add(hash, length, sizeof(length));
	for (unsigned int i = 0; i < 32; i++)
		ret_digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}
