/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_RACY_H
#define KVT_SHM_RACY_H

/**
 * @file racy.h
 * Reading memory that somebody else may be writing.
 *
 * The daemon reads keys that a client can change at any moment; a probing client reads runs that
 * the daemon may be recycling. Both accept a wrong answer that they can detect or that hurts only
 * the liar; neither accepts that the compiler reads a value twice and acts on two different ones.
 * So these are out of line, and their results are all that a caller may use.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Copy n keys, each read once. */
void kvt_racy_copy(uint32_t *to, const uint32_t *from, size_t n);

/** Whether n keys are equal. Either side may be changing: then either answer. */
bool kvt_racy_equal(const uint32_t *a, const uint32_t *b, size_t n);

/** How many leading whole pages of `page_size` keys are equal, of at most `n_pages`. */
uint32_t kvt_racy_equal_pages(const uint32_t *a, const uint32_t *b, uint32_t n_pages,
			      uint32_t page_size);

/** Tag of a child: the hash of its parent and the first page of its keys. Never 0. */
uint32_t kvt_racy_tag(uint64_t seed, uint32_t parent, const uint32_t *keys, uint32_t page_size);

#endif
