/* SPDX-License-Identifier: Apache-2.0 */
#include "store/point.h"

uint32_t kvt_point_first(const struct kvt_info *info, uint32_t n, uint32_t kind)
{
	return n > info->side_pages[kind] ? n - info->side_pages[kind] : 0;
}

uint32_t kvt_point_pages(const struct kvt_info *info)
{
	uint32_t n = 0;

	for (uint32_t kind = 0; kind < info->n_sides; kind++)
		n += info->side_pages[kind];
	return n;
}

/* True if page `index` has what a point at n needs on it. Counts the kinds that need nothing. */
static bool has_all(const struct kvt_info *info, uint32_t n, uint32_t index, kvt_point_has *has,
		    void *context, uint32_t *ret_beyond)
{
	*ret_beyond = 0;
	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		if (index < kvt_point_first(info, n, kind))
			++*ret_beyond;
		else if (!has(context, index, kind))
			return false;
	}
	return true;
}

uint32_t kvt_point_last(const struct kvt_info *info, uint32_t n, kvt_point_has *has, void *context)
{
	uint32_t beyond = 0;

	/* A page that lacks something spoils all points that need it: the next one is in front. */
	for (uint32_t index = n; index-- > 0 && beyond < info->n_sides;)
		if (!has_all(info, n, index, has, context, &beyond))
			n = index;
	return n;
}
