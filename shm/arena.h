/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_ARENA_H
#define KVT_SHM_ARENA_H

/**
 * @file arena.h
 * Reading an arena that another process writes.
 *
 * Everything is checked before use: magic, version, layout, and every size and offset against the
 * real size of the object. A view keeps private copies of all numbers that bound an index. So later
 * writes of the owner can cause a wrong answer, never a wrong address. Outcomes have names, because
 * "not yet", "no" and "gone" need different cures.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_types.h"
#include "shm/atomic.h"

struct kvt_arena_header;
struct kvt_namespace_record;
struct kvt_node;
struct kvt_page_record;

struct kvt_arena_view {
	const void *base; /* NULL: no arena */
	uint64_t bytes;
	const struct kvt_arena_header *header;
	const struct kvt_node *nodes;
	const uint64_t *buckets; /* of kvt_bucket */
	const uint32_t *slot_keys;
	const uint32_t *slot_pages;
	const struct kvt_page_record *pages;
	const struct kvt_namespace_record *namespaces;
	const uint64_t *root_keys;
	const uint32_t *sides; /* [page][n_sides] */
	uint64_t hash_seed;
	uint32_t page_size;
	uint32_t n_pages;
	uint32_t n_slots;
	uint32_t max_nodes;
	uint32_t n_buckets;
	uint32_t max_namespaces;
	uint32_t n_sides;
};

/** The side page of a kind that hangs on a page; KVT_NONE: none, or no such kind or page. */
static inline uint32_t kvt_arena_side(const struct kvt_arena_view *view, uint32_t page,
				      uint32_t kind)
{
	return page < view->n_pages && kind < view->n_sides ?
		       kvt_load_relaxed(&view->sides[(size_t)page * view->n_sides + kind]) :
		       KVT_NONE;
}

/** Check a private copy of a header against the real size of its object. */
enum kvt_attach_state kvt_arena_check(const struct kvt_arena_header *header,
				      uint64_t object_bytes);

/** View an arena that is mapped already (same process, tests). */
enum kvt_attach_state kvt_arena_view_init(struct kvt_arena_view *ret_view, const void *base,
					  uint64_t object_bytes);

/** Check the object behind a descriptor and map it read-only, out of forked children. The header is
 * first read with pread(), so a truncated object never faults. The caller unmaps with
 * kvt_arena_detach(). */
enum kvt_attach_state kvt_arena_attach(struct kvt_arena_view *ret_view, int fd);
void kvt_arena_detach(struct kvt_arena_view *view);

/** Cause and cure of a state. */
const char *kvt_arena_state_text(enum kvt_attach_state state);

#endif
