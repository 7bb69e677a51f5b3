/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_WALK_H
#define KVT_CORE_WALK_H

/**
 * @file walk.h
 * From keys to a place in the tree.
 */

#include "daemon/core/entry.h"
#include "daemon/core/state.h"

/* Returned through an operation that has changed nothing: core->expired names a node whose time has
 * come. run.c expires it and runs the operation again. */
#define KVT_EXPIRED 2

/** The place in the tree that keys lead to. */
struct kvt_walk {
	uint64_t root_key; /* what it must find below a root */
	uint32_t root;     /* KVT_NONE: the namespace has no keys */
	uint32_t node;     /* deepest node reached, the root included */
	uint32_t in_node;  /* pages walked inside it */
	uint32_t named;    /* pages of the entry's start handle: its keys follow them */
	uint32_t walked;   /* pages that exist, announced ones included */
	uint32_t matched;  /* leading pages that are sealed */
	uint32_t match_node; /* deepest node with matched pages, KVT_NONE if none */
	uint32_t path_nodes;
};

/** True if a node's time has come: core->expired names it then. */
static inline bool kvt_is_expired(struct kvt_core *core, uint32_t node)
{
	if (core->nodes[node].expiry_ns > core->now_ns)
		return false;
	core->expired = node;
	return true;
}

/** Check an entry's handle. *ret_node is the shallowest node that covers its *ret_pages pages: all,
 * or with SHORTER those that are left. 0, KVT_EXPIRED, or a refusal: -EINVAL it names nothing,
 * -ESTALE its prefix is gone. */
int kvt_handle_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t *ret_node,
		     uint32_t *ret_pages);
/** Walk `n_pages` pages of an entry's keys: from its start handle, or without one from the root of
 * its namespace. Tells the record which keys the tree knows. 0, KVT_EXPIRED, or a refusal of the
 * handle, which must be of the entry's namespace. */
int kvt_walk_entry(struct kvt_core *core, struct kvt_op_context *op, uint32_t n_pages,
		   struct kvt_walk *walk);
/** kvt_walk_usable() where pages have sides. With `floor` pages or fewer it may be too many. */
uint32_t kvt_walk_search(struct kvt_core *core, uint32_t node, uint32_t pages, uint32_t floor);
/** True if a BEGIN shall not reuse so few pages: less than its minimum, and not all that its prompt
 * could reuse. */
static inline bool kvt_walk_too_short(const struct kvt_core *core, const struct kvt_sqe *sqe,
				      uint32_t pages)
{
	uint32_t keys = sqe->positions + sqe->n_keys;

	if (pages * core->ps >= (uint32_t)sqe->priority)
		return false;
	return keys > 0 && pages < (keys - !(sqe->flags & KVT_F_FULL)) / core->ps;
}

/** The most leading pages, of `pages` cached ones of the path to `node`, behind which a reader can
 * continue: the last ones have all side pages that it needs. */
static inline uint32_t kvt_walk_usable(struct kvt_core *core, uint32_t node, uint32_t pages)
{
	return core->n_sides == 0 ? pages : kvt_walk_search(core, node, pages, 0);
}

/** The entry's keys behind what its walk has found. */
static inline const uint32_t *kvt_walk_rest(const struct kvt_core *core,
					    const struct kvt_op_context *op,
					    const struct kvt_walk *walk)
{
	return op->keys + (size_t)(walk->walked - walk->named) * core->ps;
}

/** Walk from the root of a namespace. 0, or KVT_EXPIRED. */
int kvt_walk_keys(struct kvt_core *core, uint32_t namespace_id, uint64_t root_key,
		  const uint32_t *keys, uint32_t n_pages, struct kvt_walk *walk);
/** Continue from a place inside the tree. 0, or KVT_EXPIRED. */
int kvt_walk_from(struct kvt_core *core, struct kvt_walk *walk, const uint32_t *keys,
		  uint32_t n_pages);

#endif
