/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_PAGE_TREE_H
#define KVT_TOOLS_PAGE_TREE_H

/**
 * @file page_tree.h
 * The nodes that the page draws, read from the arena. The daemon does no work for it.
 */

#include <stddef.h>
#include <stdint.h>

#include "shm/arena.h"
#include "tools/util.h"

#define KVT_PAGE_MOST_NODES 100000u /* that are told; below 2^17 for tree.js */

/** What the page knows of a node, by these names. */
#define KVT_PAGE_FIELDS(X)                                                                        \
	X(node) X(parent) X(namespace) X(start) X(pages) X(sealed) X(locks) X(uses) X(age_s)      \
	X(sealer) X(flags) X(sides)

enum kvt_page_field {
#define KVT_PAGE_FIELD(name) KVT_PAGE_FIELD_##name,
	KVT_PAGE_FIELDS(KVT_PAGE_FIELD)
#undef KVT_PAGE_FIELD
	KVT_PAGE_N_FIELDS,
};

struct kvt_page_nodes {
	uint32_t (*rows)[KVT_PAGE_N_FIELDS]; /* by ascending node */
	size_t n, room;
	uint64_t omitted; /* nodes beyond KVT_PAGE_MOST_NODES */
};

/** Read all live nodes while the daemon changes them: each is whole, and they may contradict each
 * other. `now_ns` is the daemon's clock. The caller frees `rows`. */
void kvt_page_nodes_read(const struct kvt_arena_view *view, uint64_t now_ns,
			 struct kvt_page_nodes *ret_nodes);
/** Append the columns, one behind the other, as 32-bit numbers of this machine. */
void kvt_page_nodes_print(const struct kvt_page_nodes *nodes, struct kvt_text *text);

#endif
