/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_NAMES_H
#define KVT_STORE_NAMES_H

/**
 * @file names.h
 * Pages by name, for two threads without a lock: one changes the table, another looks into it.
 *
 * A look is a hint. It may miss a page while its chain changes, and it compares 64 bits of the
 * name: the thread that changes the table verifies what was found.
 */

#include <stdint.h>

#include "store/chain.h"

struct kvt_names {
	uint32_t n_pages;
	uint32_t n_chains; /* a power of two */
	uint32_t n_named;  /* pages that have a name */
	uint64_t *tags;    /* by page: first bits of its name, 0: it has none */
	uint32_t *next;    /* by page: the next one of its chain, 0: none */
	uint32_t *chains;  /* first pages, 0: none */
};

/** Make a table of pages [1, n_pages) without names. -ENOMEM. */
int kvt_names_init(struct kvt_names *names, uint32_t n_pages);
void kvt_names_destroy(struct kvt_names *names);

/** Return a page of this name, 0: none. By any thread. */
uint32_t kvt_names_find(const struct kvt_names *names, const struct kvt_chain *name);
/** Name a page, which has no name. Several pages may have one name. */
void kvt_names_add(struct kvt_names *names, uint32_t page, const struct kvt_chain *name);
/** Take a page's name. Does nothing if it has none. */
void kvt_names_remove(struct kvt_names *names, uint32_t page);
void kvt_names_clear(struct kvt_names *names);

#endif
