/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_INDEX_H
#define KVT_CORE_INDEX_H

/**
 * @file index.h
 * The child index: (parent, root key, first page of keys) -> child.
 */

#include "daemon/core/state.h"

/** Make a node findable under its parent. */
void kvt_index_add(struct kvt_core *core, uint32_t child);
/** The same for a rebuild. False, and nothing done: its parent has another such child. */
bool kvt_index_add_new(struct kvt_core *core, uint32_t child);
void kvt_index_remove(struct kvt_core *core, uint32_t child);
/** Put `by` where `child` is: it begins with the same page, under the same parent. */
void kvt_index_replace(struct kvt_core *core, uint32_t child, uint32_t by);
/** Find the child of `parent` that begins with the first page of `keys`, KVT_NONE if there is none.
 * Below a root it must have this root key. *ret_equal = how many of its leading pages (at most
 * n_pages) are equal. */
uint32_t kvt_index_find(struct kvt_core *core, uint32_t parent, uint64_t root_key,
			const uint32_t *keys, uint32_t n_pages, uint32_t *ret_equal);

#endif
