/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_GEOMETRY_H
#define KVT_DAEMON_GEOMETRY_H

/**
 * @file geometry.h
 * The pool that the options ask for: what a page holds, how large it is, how many there are.
 *
 * Three steps, because they need more and more: the shape follows from the options alone, scales
 * may stand in a file, and a budget that is a share needs to know how much memory is free.
 */

#include <stdio.h>

#include <stdbool.h>
#include <stddef.h>

#include "daemon/config.h"
#include "kvtrunk_abi.h"

struct kvt_pool_plan {
	struct kvt_pool_geometry geometry; /* n_layers 0: none was given */
	uint64_t page_bytes;               /* of one slab */
	uint64_t budget_bytes;             /* of one slab; 0: n_pages was given */
	uint64_t free_bytes;               /* that a percentage was taken of, for one slab; or 0 */
	uint32_t page_size;
	uint32_t n_pages;
	uint32_t n_slabs;
	char fingerprint[KVT_FINGERPRINT_BYTES]; /* the option, with the geometry's fields */
};

/** Geometry and page_bytes. -EINVAL with `why`: options that contradict each other. */
int kvt_pool_plan_shape(const struct kvt_config *config, struct kvt_pool_plan *ret_plan,
			char why[KVT_WHY_BYTES]);

/** Scales and fingerprint, after the shape. -EINVAL, or what opening the file gave. */
int kvt_pool_plan_scales(const struct kvt_config *config, struct kvt_pool_plan *plan,
			 char why[KVT_WHY_BYTES]);

/** Number of pages, after the shape. If pool_bytes is a percentage: `left` pages, those of a
 * predecessor's pool, which is a share of what was free then; or, where that is 0, the share of
 * `free_bytes`, what one slab could have. -EINVAL: too few or too many. */
int kvt_pool_plan_pages(const struct kvt_config *config, uint32_t left, uint64_t free_bytes,
			struct kvt_pool_plan *plan, char why[KVT_WHY_BYTES]);

/** Whether a client's fingerprint names a field that is not one of ours: compare by fields, in any
 * order. `theirs` has at most KVT_FINGERPRINT_BYTES bytes and need not end. `text` gets the
 * difference as a client's user reads it. */
bool kvt_fingerprint_differs(const char *ours, const char *theirs, char *text, size_t size);

/** The derivation in lines for people (--check-config). */
void kvt_pool_plan_print(const struct kvt_config *config, const struct kvt_pool_plan *plan,
			 FILE *to);

#endif
