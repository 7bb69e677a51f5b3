/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_PAGE_TREE_H
#define KVT_TOOLS_PAGE_TREE_H

/**
 * @file page_tree.h
 * The nodes that the page and kvtctl tree draw, read from the arena. The daemon does no work.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/state.h"
#include "shm/arena.h"

struct kvt_text;

#define KVT_PAGE_MOST_NODES 100000u /* that are told; below 2^17 for tree.js */

/** Fields of a node on the page, by name. */
#define KVT_PAGE_FIELDS(X)                                                                        \
	X(node) X(parent) X(namespace) X(start) X(pages) X(sealed) X(locks) X(uses) X(age_s)      \
	X(sealer) X(flags) X(sides)

enum kvt_page_field {
#define KVT_PAGE_FIELD(name) KVT_PAGE_FIELD_##name,
	KVT_PAGE_FIELDS(KVT_PAGE_FIELD)
#undef KVT_PAGE_FIELD
	KVT_PAGE_N_FIELDS,
};

/** A node. What follows the row is read for kvtctl alone. */
struct kvt_tree_node {
	union { /* a row, or its fields by name */
		uint32_t row[KVT_PAGE_N_FIELDS];
		struct {
#define KVT_PAGE_MEMBER(name) uint32_t name;
			KVT_PAGE_FIELDS(KVT_PAGE_MEMBER)
#undef KVT_PAGE_MEMBER
		};
	};
	uint32_t generation, n_children;
	int32_t priority;
	uint32_t keys[4];       /* the first ones of the run */
	uint64_t root_key;      /* of a node right below a root; 0: it has none */
	uint64_t age_ns;        /* since the last touch */
	uint64_t expires_in_ns; /* UINT64_MAX: never */
	uint32_t point;         /* pages up to its last point; 0: none */
};

struct kvt_tree {
	struct kvt_tree_node *nodes; /* by ascending number; the caller frees them */
	uint32_t n;
	uint64_t omitted; /* nodes beyond the most that were asked for */
};

/** Read the live nodes of a client's arena while the daemon changes them: each is whole, and they
 * may contradict each other. `now_ns` is the daemon's clock. `more`: also what follows the rows. */
void kvt_tree_read(const struct kvt_client *client, uint64_t now_ns, uint32_t most, bool more,
		   struct kvt_tree *ret_tree);
/** Append the columns of the rows, one behind the other, as 32-bit numbers of this machine. */
void kvt_tree_print(const struct kvt_tree *tree, struct kvt_text *text);

#endif
