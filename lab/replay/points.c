/* SPDX-License-Identifier: Apache-2.0 */

/* Side pages of a request: see points.h.
 *
 * Inputs: where a request stands. Invariant: a page in `own` is private and loose; a COMMIT that
 * takes it clears it. Caller: worker.c. */

#include "kvtrunk_operations.h"
#include "lab/replay/points.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static int reserve(struct kvt_points *points, uint32_t pages)
{
	size_t n = (size_t)(pages + pages / 4 + 64) * points->n_sides;
	uint32_t *own, *list;
	struct kvt_side *pairs;

	if (pages <= points->own_pages)
		return 0;
	own = realloc(points->own, n * sizeof(*own));
	if (own)
		points->own = own;
	list = realloc(points->list, n * sizeof(*list));
	if (list)
		points->list = list;
	pairs = realloc(points->pairs, 2 * n * sizeof(*pairs)); /* as many to drop */
	if (pairs)
		points->pairs = pairs;
	if (!own || !list || !pairs)
		return -ENOMEM;
	points->own_pages = pages + pages / 4 + 64;
	return 0;
}

int kvt_points_begin(struct kvt_points *points, struct kvt_client *client,
		     const struct kvt_points_rule *rule, uint32_t reused, uint32_t matched,
		     uint32_t end)
{
	const struct kvt_info *info = kvt_client_info(client);
	int rc;

	points->client = client;
	points->rule = *rule;
	points->n_sides = info->n_sides;
	points->widest = 0;
	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		points->needed[kind] = info->side_pages[kind];
		if (points->widest < info->side_pages[kind])
			points->widest = info->side_pages[kind];
	}
	points->reused = points->low = points->high = reused;
	points->junction = matched;
	points->end = end;
	points->n_pairs = 0;
	points->out = false;
	rc = reserve(points, end + 1);
	if (!rc)
		memset(points->own, 0,
		       (size_t)points->own_pages * points->n_sides * sizeof(*points->own));
	return rc;
}

/* Find the first point behind a page; UINT32_MAX: there is none. */
static uint32_t next_point(const struct kvt_points *points, uint32_t index)
{
	uint32_t every = points->rule.every, next = UINT32_MAX;

	if (index >= points->end)
		return next;
	next = points->end;
	if (index < points->junction)
		next = min_u32(next, points->junction);
	return every ? min_u32(next, (index / every + 1) * every) : next;
}

/* True if a point at or before `last` needs a side page of a page. */
static bool published(const struct kvt_points *points, uint32_t index, uint32_t kind, uint32_t last)
{
	uint32_t point = next_point(points, index);

	return point <= last && point - index <= points->needed[kind];
}

/* Drop what only the reused point needs, if that is more than the pages computed since. */
static void add_drops(struct kvt_points *points)
{
	uint32_t n = points->n_pairs, reused = points->reused, end = points->end;

	for (uint32_t kind = 0; kind < points->n_sides; kind++) {
		uint32_t needed = points->needed[kind];
		uint32_t from = reused > needed ? reused - needed : 0;
		uint32_t to = min_u32(reused, end > needed ? end - needed : 0);

		for (uint32_t index = from; index < to; index++)
			points->pairs[n++] = (struct kvt_side){ KVT_SIDE_PLACE(index, kind),
								KVT_NONE };
	}
	if (n - points->n_pairs > end - reused)
		points->n_pairs = n;
}

static void add_pairs(struct kvt_points *points, uint32_t last)
{
	for (uint32_t index = points->low; index < last; index++) {
		for (uint32_t kind = 0; kind < points->n_sides; kind++) {
			uint32_t page = points->own[index * points->n_sides + kind];

			if (page != KVT_NONE && published(points, index, kind, last))
				points->pairs[points->n_pairs++] =
					(struct kvt_side){ KVT_SIDE_PLACE(index, kind), page };
		}
	}
	if (points->rule.drop && last == points->end && last > points->reused)
		add_drops(points);
}

int kvt_points_step(struct kvt_points *points, uint32_t computed, uint32_t page_size)
{
	uint32_t last = computed / page_size, to = (computed + page_size - 1) / page_size, n = 0;
	int rc = 0;

	for (uint32_t index = points->high; index < to; index++) {
		for (uint32_t kind = 0; kind < points->n_sides; kind++)
			n += to - index <= points->needed[kind] ||
			     published(points, index, kind, last);
	}
	if (n && !points->out)
		rc = kvt_alloc(points->client, n, points->list);
	points->out |= rc != 0;
	for (uint32_t index = to; index-- > points->high && !points->out;) {
		for (uint32_t kind = 0; kind < points->n_sides; kind++) {
			if (to - index <= points->needed[kind] ||
			    published(points, index, kind, last))
				points->own[index * points->n_sides + kind] = points->list[--n];
		}
	}
	points->high = to;
	points->n_pairs = 0;
	if (!points->out)
		add_pairs(points, last);
	return rc == -ENOSPC || rc == -EDQUOT ? 0 : rc;
}

/* Free the private side pages of [low, to) that are no longer in a window that ends at `end`. */
static int free_before(struct kvt_points *points, uint32_t to, uint32_t end)
{
	uint32_t n = 0;

	for (uint32_t index = points->low; index < to; index++) {
		for (uint32_t kind = 0; kind < points->n_sides; kind++) {
			uint32_t *own = &points->own[index * points->n_sides + kind];

			if (*own == KVT_NONE || end - index <= points->needed[kind])
				continue;
			points->list[n++] = *own;
			*own = KVT_NONE;
		}
	}
	return n ? kvt_free(points->client, points->list, n, KVT_IDLE) : 0;
}

int kvt_points_committed(struct kvt_points *points, const struct kvt_result *result,
			 uint32_t computed, uint32_t page_size)
{
	uint32_t to = (computed + page_size - 1) / page_size, at = 0;
	int rc;

	/* The answer names the pages not taken, in the order of the pairs. */
	for (uint32_t i = 0; i < points->n_pairs; i++) {
		const struct kvt_side *pair = &points->pairs[i];

		if (at < result->n_pages && pair->page == result->pages[at])
			at++;
		else if (pair->page != KVT_NONE)
			points->own[KVT_SIDE_INDEX(pair->place) * points->n_sides +
				    KVT_SIDE_KIND(pair->place)] = KVT_NONE;
	}
	points->n_pairs = 0;
	rc = free_before(points, to, to);
	if (to > points->widest && to - points->widest > points->low)
		points->low = to - points->widest;
	return rc;
}

int kvt_points_end(struct kvt_points *points)
{
	return free_before(points, points->high, UINT32_MAX);
}
