/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_GHOST_H
#define KVT_STORE_GHOST_H

/**
 * @file ghost.h
 * Names that left the memory unwritten: about the last n to 2n of them. A page that is computed
 * again is worth more than one that never was. One of 100 other names is taken for one of these.
 *
 * Parts of Bloom filters (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors",
 * 1970), two to a part: when the younger one is full, the older one is emptied and becomes the
 * younger. So all is done at once, and nothing takes long.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"

#define KVT_GHOST_NAMES 4096u /* of a filter */
#define KVT_GHOST_WORDS 640u  /* 10 bits a name */

struct kvt_ghost_part {
	uint32_t n; /* names in the younger filter */
	uint32_t younger;
	uint64_t bits[2][KVT_GHOST_WORDS];
};

struct kvt_ghost {
	struct kvt_ghost_part *parts;
	uint32_t n_parts; /* 0: it remembers nothing */
};

/** Remember about n names, n below 2^44. -ENOMEM. */
int kvt_ghost_init(struct kvt_ghost *ghost, uint64_t n);
void kvt_ghost_destroy(struct kvt_ghost *ghost);
void kvt_ghost_add(struct kvt_ghost *ghost, const struct kvt_chain *page);
bool kvt_ghost_has(const struct kvt_ghost *ghost, const struct kvt_chain *page);

#endif
