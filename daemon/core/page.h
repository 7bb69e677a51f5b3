/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_PAGE_H
#define KVT_CORE_PAGE_H

/**
 * @file page.h
 * States and lists of pages.
 */

#include "daemon/core/state.h"

/** FREE to PRIVATE of a session, and of a lease unless that is KVT_NONE. One must be free. */
uint32_t kvt_page_take(struct kvt_core *core, uint32_t session, uint32_t lease);
/** PRIVATE or QUARANTINE to FREE, of a page in no list. */
void kvt_page_release(struct kvt_core *core, uint32_t page);
/** PRIVATE to CACHED in a slot, of a page in no list. `parent` is the page in front, or 0. Slot
 * KVT_NONE: as a side page of `parent`. */
void kvt_page_cache(struct kvt_core *core, uint32_t page, uint32_t slot, uint32_t parent);
/** CACHED to FREE. */
void kvt_page_uncache(struct kvt_core *core, uint32_t page);
/** List a page of no lease with its session: private, or in quarantine. */
void kvt_loose_add(struct kvt_core *core, uint32_t session, uint32_t page);
/** Take it off that list. */
void kvt_loose_remove(struct kvt_core *core, uint32_t session, uint32_t page);
/** Copy a page list and check that each is a loose private page of the session. A page equal to
 * twins[i] (where twins is given and i < n_twins) passes. 0 or the reason. */
int kvt_pages_check(struct kvt_core *core, uint32_t session, const uint32_t *pages, uint32_t n,
		    const uint32_t *twins, uint32_t n_twins);
/** The same for a list that stands in core->op_pages. */
int kvt_pages_judge(struct kvt_core *core, uint32_t session, uint32_t n, const uint32_t *twins,
		    uint32_t n_twins);

#endif
