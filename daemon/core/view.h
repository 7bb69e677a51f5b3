/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_VIEW_H
#define KVT_CORE_VIEW_H

/** @file view.h: a session's memory, as the core sees it. */

#include <stdint.h>

struct kvt_fence_word;

/** The client's memory, as the core may touch it: read once, through shm/. Sizes are the daemon's
 * own copy. Must stay valid until the session is DEAD. */
struct kvt_core_view {
	const uint32_t *keys;
	uint64_t keys_count;
	uint32_t *list;
	uint64_t list_count;
	const struct kvt_fence_word *fences;
};

#endif
