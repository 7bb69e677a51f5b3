/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHA256_H
#define KVT_SHA256_H

/**
 * @file sha256.h
 * SHA-256 (FIPS 180-4), so that the library needs nothing but libc for a few dozen bytes. By the
 * instructions of x86-64 where the processor has them: a store hashes all keys that it sees.
 */

#include <stddef.h>
#include <stdint.h>

struct kvt_sha256 {
	uint32_t state[8];
	uint64_t n_bytes;
	uint8_t block[64];
};

void kvt_sha256_init(struct kvt_sha256 *hash);
void kvt_sha256_add(struct kvt_sha256 *hash, const void *bytes, size_t n);
void kvt_sha256_finish(struct kvt_sha256 *hash, uint8_t ret_digest[32]);

/** Take one block into a state. */
void kvt_sha256_compress(uint32_t state[8], const uint8_t block[64]);
/** The same without instructions for it. */
void kvt_sha256_compress_portable(uint32_t state[8], const uint8_t block[64]);

#endif
