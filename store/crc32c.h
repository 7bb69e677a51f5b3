/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_CRC32C_H
#define KVT_STORE_CRC32C_H

/**
 * @file crc32c.h
 * CRC-32C (Castagnoli), by the processor's instruction where it has one.
 */

#include <stddef.h>
#include <stdint.h>

/** The checksum of bytes behind others that have `crc`; 0: none are in front. */
uint32_t kvt_crc32c(uint32_t crc, const void *bytes, size_t n);
/** The same without the instruction. */
uint32_t kvt_crc32c_portable(uint32_t crc, const void *bytes, size_t n);
/** Continue four checksums, each with n bytes of its own. Side by side is three times as fast. */
void kvt_crc32c_four(uint32_t crc[4], const uint8_t *const at[4], size_t n);
/** The checksums of the four quarters of n bytes; the last one has the up to three bytes over. */
void kvt_crc32c_quarters(const void *bytes, size_t n, uint32_t ret_crc[4]);

#endif
