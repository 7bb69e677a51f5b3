/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_RACY_H
#define KVT_SHM_RACY_H

/**
 * @file racy.h
 * Reading memory that another process may be writing.
 *
 * The daemon reads keys that a client can change (TOCTOU); a probing client reads runs that the
 * daemon may be recycling. Both accept a wrong answer that they can detect or that hurts only the
 * liar. Neither accepts a compiler that reads a value twice. So these functions are out of line,
 * and callers use only their results.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Copy n keys, each read once. */
void kvt_racy_copy(uint32_t *to, const uint32_t *from, size_t n);

/** Compare n keys. If either side changes meanwhile, either answer. */
bool kvt_racy_equal(const uint32_t *a, const uint32_t *b, size_t n);

/** Count equal leading pages of `page_size` keys, at most `n_pages`. */
uint32_t kvt_racy_equal_pages(const uint32_t *a, const uint32_t *b, uint32_t n_pages,
			      uint32_t page_size);

/** Hash a child's parent and first page of keys into its tag. Never 0. */
uint32_t kvt_racy_tag(uint64_t seed, uint32_t parent, const uint32_t *keys, uint32_t page_size);

#endif
