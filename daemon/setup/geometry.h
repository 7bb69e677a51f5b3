/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_GEOMETRY_H
#define KVT_DAEMON_SETUP_GEOMETRY_H

/**
 * @file geometry.h
 * The plan of the pool: contents, size and number of pages.
 *
 * Planned in three steps. The shape needs options only, scales may need a file, and a budget in per
 * cent needs the amount of free memory.
 */

#include <stdio.h>

#include <stdbool.h>
#include <stddef.h>

#include "daemon/setup/config.h"
#include "kvtrunk_types.h"

struct kvt_pool_plan {
	struct kvt_pool_geometry geometry; /* n_layers 0: not configured */
	uint64_t page_bytes;               /* bytes of a page in one slab */
	uint64_t budget_bytes;             /* bytes of one slab; 0: n_pages is configured */
	uint64_t free_bytes;               /* base of the percentage, for one slab; or 0 */
	uint32_t page_size;
	uint32_t n_pages;
	uint32_t n_slabs;
	char fingerprint[KVT_FINGERPRINT_BYTES]; /* the option, with fields of geometry and sides */
	uint32_t n_sides; /* kinds of side pages */
	uint32_t side_pages[KVT_MAX_SIDES]; /* of each: trailing pages of a path that need one */
};

/** Fill geometry and page_bytes. -EINVAL with `why`: options contradict each other. */
int kvt_pool_plan_shape(const struct kvt_config *config, struct kvt_pool_plan *ret_plan,
			char why[KVT_WHY_BYTES]);

/** Fill scales, sides and fingerprint, after the shape. -EINVAL, or why a file does not open. */
int kvt_pool_plan_scales(const struct kvt_config *config, struct kvt_pool_plan *plan,
			 char why[KVT_WHY_BYTES]);

/** Fill the number of pages, after the shape. If pool_bytes is a percentage, a stored pool keeps
 * its `left` pages. With `left` 0 the percentage is of `free_bytes`, the free memory for one slab.
 * -EINVAL: too few or too many. */
int kvt_pool_plan_pages(const struct kvt_config *config, uint32_t left, uint64_t free_bytes,
			struct kvt_pool_plan *plan, char why[KVT_WHY_BYTES]);

/** True if a client's fingerprint has a field that ours lacks or that differs. Order is ignored,
 * and an empty field `sides` asks for none. `theirs` has at most KVT_FINGERPRINT_BYTES bytes and
 * may lack the final 0. `text` names the difference, for the client's user. */
bool kvt_fingerprint_differs(const char *ours, const char *theirs, char *text, size_t size);

/** Print the derivation (--check-config). */
void kvt_pool_plan_print(const struct kvt_config *config, const struct kvt_pool_plan *plan,
			 FILE *to);

#endif
