/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_EVICT_H
#define KVT_CORE_EVICT_H

/**
 * @file evict.h
 * Making room.
 */

#include "daemon/core/state.h"

/** Free n pages; n <= evictable. More if the last one has side pages. */
void kvt_evict_pages(struct kvt_core *core, uint32_t n);
/** The same, but pages on the path to a node go last: what a BEGIN matches, for its own room. */
void kvt_evict_path_last(struct kvt_core *core, uint32_t n, uint32_t path_node);
/** Free n pages, and no others, from the end of the path to a leaf, which has so many that nothing
 * else continues. */
void kvt_evict_path_end(struct kvt_core *core, uint32_t n, uint32_t leaf);
/** Evict whole leaves until n nodes are free; the caller made sure that this can succeed. */
void kvt_evict_nodes(struct kvt_core *core, uint32_t n);

#endif
