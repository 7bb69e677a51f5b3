/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/area.h"
#include "libclient/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One line: never write to a line that the daemon still reads. */
#define GRANULE (KVT_LINE / sizeof(uint32_t))

int kvt_area_init(struct kvt_area *area, uint32_t count, uint32_t max_taken)
{
	KVT_ASSERT(max_taken < UINT32_MAX);
	area->holes = calloc((size_t)max_taken + 1, sizeof(*area->holes));
	if (!area->holes)
		return -ENOMEM;
	area->capacity = max_taken + 1;
	area->count = count;
	area->n_holes = count ? 1 : 0;
	area->holes[0] = (struct kvt_extent){ 0, count };
	return 0;
}

void kvt_area_destroy(struct kvt_area *area)
{
	free(area->holes);
	area->holes = NULL;
}

bool kvt_area_take(struct kvt_area *area, uint32_t n, struct kvt_extent *ret_extent)
{
	uint64_t rounded = ((uint64_t)n + GRANULE - 1) / GRANULE * GRANULE;

	if (n == 0) {
		*ret_extent = (struct kvt_extent){ 0, 0 };
		return true;
	}
	for (uint32_t i = 0; i < area->n_holes; i++) {
		struct kvt_extent *hole = &area->holes[i];
		uint32_t taken;

		if (hole->n < n)
			continue;
		/* The last line of an area may be short. */
		taken = rounded < hole->n ? (uint32_t)rounded : hole->n;
		*ret_extent = (struct kvt_extent){ hole->at, taken };
		hole->at += taken;
		hole->n -= taken;
		if (hole->n == 0) {
			area->n_holes--;
			memmove(hole, hole + 1, (area->n_holes - i) * sizeof(*hole));
		}
		return true;
	}
	return false;
}

void kvt_area_give(struct kvt_area *area, struct kvt_extent extent)
{
	struct kvt_extent *hole;
	uint32_t i = 0;

	if (extent.n == 0)
		return;
	while (i < area->n_holes && area->holes[i].at < extent.at)
		i++;
	hole = &area->holes[i];
	KVT_ASSERT(extent.n <= area->count - extent.at);
	KVT_ASSERT((i == 0 || hole[-1].at + hole[-1].n <= extent.at) &&
		   (i == area->n_holes || extent.at + extent.n <= hole->at));
	if (i > 0 && hole[-1].at + hole[-1].n == extent.at) {
		hole[-1].n += extent.n;
		if (i < area->n_holes && extent.at + extent.n == hole->at) {
			hole[-1].n += hole->n;
			area->n_holes--;
			memmove(hole, hole + 1, (area->n_holes - i) * sizeof(*hole));
		}
		return;
	}
	if (i < area->n_holes && extent.at + extent.n == hole->at) {
		hole->at = extent.at;
		hole->n += extent.n;
		return;
	}
	KVT_ASSERT(area->n_holes < area->capacity);
	memmove(hole + 1, hole, (area->n_holes - i) * sizeof(*hole));
	*hole = extent;
	area->n_holes++;
}
