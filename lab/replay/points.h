/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_REPLAY_POINTS_H
#define KVT_LAB_REPLAY_POINTS_H

/**
 * @file points.h
 * The side pages of one request, as an engine has them for layers with windows or states.
 *
 * A running request has a private side page for each of the last pages that a kind needs. At a
 * point a COMMIT publishes them: at the end of the prompt, at the junction where a request leaves a
 * prefix that others know, and every so many pages if asked for. All places are counted in pages.
 */

#include "kvtrunk_types.h"

struct kvt_points_rule {
	uint32_t every; /* pages between two points on the way; 0: none */
	bool drop;      /* the reused point, if its side pages outnumber the pages since */
};

struct kvt_points {
	struct kvt_client *client;
	uint32_t n_sides;
	uint32_t needed[KVT_MAX_SIDES]; /* of each kind: side pages of a point */
	uint32_t widest;
	struct kvt_points_rule rule;
	uint32_t reused, junction, end;
	uint32_t low;       /* no page before it has a private side page */
	uint32_t high;      /* nor has one from it on */
	uint32_t *own;      /* by page, then kind: the private side page, or KVT_NONE */
	uint32_t own_pages; /* capacity */
	uint32_t *list;     /* pages of one ALLOC or FREE */
	struct kvt_side *pairs; /* of one COMMIT */
	uint32_t n_pairs;
	bool out;           /* ALLOC was refused: nothing is published from now on */
};

/** Begin a request that reuses `reused` pages of `matched` and has `end` whole pages. Returns 0 or
 * -ENOMEM. */
int kvt_points_begin(struct kvt_points *points, struct kvt_client *client,
		     const struct kvt_points_rule *rule, uint32_t reused, uint32_t matched,
		     uint32_t end);
/** Take the side pages that a step to `computed` positions needs, and prepare the pairs of its
 * COMMIT, with those to drop. Returns 0, or the error of ALLOC but for -ENOSPC and -EDQUOT. */
int kvt_points_step(struct kvt_points *points, uint32_t computed, uint32_t page_size);
/** Take over the answer of COMMIT, and free the side pages that left their windows. Returns the
 * error of FREE. */
int kvt_points_committed(struct kvt_points *points, const struct kvt_result *result,
			 uint32_t computed, uint32_t page_size);
/** Free all private side pages. Returns the error of FREE. */
int kvt_points_end(struct kvt_points *points);

#endif
