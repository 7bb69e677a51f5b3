/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_POINT_H
#define KVT_STORE_POINT_H

/**
 * @file point.h
 * Points: how far a prefix is usable where pages have side pages. A prefix continues behind page m
 * only if the last pages of it have the side pages that each kind needs.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_client.h"

/** Return true if page `index` of the prefix has its side page of a kind. Called from the last page
 * to the first. */
typedef bool kvt_point_has(void *context, uint32_t index, uint32_t kind);

/** Return the largest usable number of pages, n at most. Without kinds: n. */
uint32_t kvt_point_last(const struct kvt_info *info, uint32_t n, kvt_point_has *has,
			void *context);
/** Return the first of n pages that a point at n needs a side page of `kind` on. */
uint32_t kvt_point_first(const struct kvt_info *info, uint32_t n, uint32_t kind);
/** Return how many side pages a point needs at most. */
uint32_t kvt_point_pages(const struct kvt_info *info);

#endif
