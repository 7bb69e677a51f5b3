/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_AREA_H
#define KVT_AREA_H

#include <stdbool.h>
#include <stdint.h>

/** Free ranges of the key or the list area, in order of address. First fit keeps the low end warm
 * in both caches. Ranges are freed in any order and merged at once. So there are at most as many
 * holes as operations in flight plus one. */
struct kvt_extent {
	uint32_t at;
	uint32_t n;
};

struct kvt_area {
	struct kvt_extent *holes;
	uint32_t n_holes;
	uint32_t capacity;
	uint32_t count; /* words in all */
};

/** Prepare for at most `max_taken` ranges taken at a time. -ENOMEM. */
int kvt_area_init(struct kvt_area *area, uint32_t count, uint32_t max_taken);
void kvt_area_destroy(struct kvt_area *area);
/** Take at least n words (0 is legal and takes none). False when no hole is large enough. */
bool kvt_area_take(struct kvt_area *area, uint32_t n, struct kvt_extent *ret_extent);
void kvt_area_give(struct kvt_area *area, struct kvt_extent extent);

#endif
