/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_MODEL_H
#define KVT_LAB_ORACLE_MODEL_H

/** @file model.h: nodes, pages and walks of the model. */

#include "lab/oracle/state.h"

/** realloc() if `want` elements have no room. NULL: out of memory, `array` stays. */
void *oracle_room(void *array, uint32_t *room, uint64_t want, size_t bytes);

struct model_node *model_node(const struct kvt_oracle *o, uint32_t id); /* NULL if not in use */
uint32_t model_end(const struct model_node *node);
uint32_t model_root(const struct kvt_oracle *o, uint32_t namespace_id);

int model_node_take(struct kvt_oracle *o, uint32_t id, struct model_node **ret_node);
/** `heir`: the node that has what is left of its path, 0 if none has. */
void model_node_drop(struct kvt_oracle *o, struct model_node *node, uint32_t heir);
/** Let older handles of a node name at most `pages` pages of its path. */
void model_keep(struct kvt_oracle *o, uint32_t id, uint32_t pages);
/** At a restart what was left of older handles is forgotten. */
void model_forget_remains(struct kvt_oracle *o);
bool model_node_reserve(struct model_node *node, uint32_t n, uint32_t page_size);
bool model_child_add(struct model_node *parent, uint32_t child);
void model_child_remove(struct model_node *parent, uint32_t child);

void model_page_set(struct kvt_oracle *o, uint32_t page, uint32_t state, uint32_t session,
		    uint32_t lease);
void model_page_cache(struct kvt_oracle *o, uint32_t page, uint32_t node);

struct model_walk {
	uint32_t named;   /* pages before where it began, as a start handle names them */
	uint32_t node;    /* deepest node that holds a walked page; the root, or 0, if none does */
	uint32_t pages;   /* walked: equal keys, sealed or not; counted from the root */
	uint32_t matched; /* of those, leading sealed ones */
	uint32_t matched_node; /* deepest node that holds a matched page, 0 if none does */
};
/** Walk `n_pages` pages of keys down from page `from_pages`, which lies in, or at the end of,
 * `from`; from a root under `root_key`. */
void model_walk(const struct kvt_oracle *o, uint32_t from, uint32_t from_pages, uint64_t root_key,
		const uint32_t *keys, uint32_t n_pages, struct model_walk *ret_walk);
/** Fill o->path with the nodes from the root (or detached top) to `node`. */
int model_path(struct kvt_oracle *o, uint32_t node);
/** Return the node that covers page `page`, given any node at or below it. */
struct model_node *model_covering(const struct kvt_oracle *o, uint32_t node, uint32_t page);
uint32_t model_page_at(const struct kvt_oracle *o, uint32_t node, uint32_t page);

/** Count the side pages of a page. */
uint32_t model_sides(const struct kvt_oracle *o, uint32_t page);
/** Count the first `pages` sealed pages of a node, and their side pages. */
uint32_t model_weight(const struct kvt_oracle *o, const struct model_node *node, uint32_t pages);
/** The most of the first `pages` pages of the path to `node` whose last ones have all sides that a
 * reader needs. */
uint32_t model_usable(const struct kvt_oracle *o, uint32_t node, uint32_t pages);
/** The side page that was let go first, 0: none was. */
uint32_t model_first_let(const struct kvt_oracle *o);
/** Count the side pages that were let go in a namespace; 0: in all. */
uint32_t model_count_let(const struct kvt_oracle *o, uint32_t namespace_id);
/** Hold all that a lease let go; lease 0: that any lease did. */
void model_hold(struct kvt_oracle *o, uint32_t lease);
void model_touch(struct kvt_oracle *o, uint32_t node);
/* RESET detaches all roots at once, without events. */
void model_detach(struct kvt_oracle *o, struct model_node *node, uint32_t why);
void model_lock(struct kvt_oracle *o, uint32_t node, uint32_t stop);
/** Hold what a lease let go and unlock its path, which touches it. */
void model_unlock(struct kvt_oracle *o, struct model_lease *lease);
void model_count_use(struct kvt_oracle *o, uint32_t node);
/** Mark a path as the operation's own: this operation may evict nothing on it. */
void model_own(struct kvt_oracle *o, uint32_t node);
uint64_t model_evictable(const struct kvt_oracle *o);
/** Count the sealed pages in unlocked nodes on the first `pages` pages of the path to `node`. */
uint32_t model_unlocked_on_path(const struct kvt_oracle *o, uint32_t node, uint32_t pages);
void model_namespace_settle(struct kvt_oracle *o, uint32_t namespace_id);

#endif
