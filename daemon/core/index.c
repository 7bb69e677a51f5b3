/* SPDX-License-Identifier: Apache-2.0 */

/* The child index: (parent, root key, first page of keys) -> child. Linear probing; deletion shifts
 * later entries back, so there are no tombstones and a table of twice max_nodes never degrades.
 * Clients probe it while it changes: each bucket is one atomic word, and they check each candidate
 * against the child itself. */

#include "daemon/core/index.h"
#include "daemon/core/state.h"

static uint32_t bucket_child(kvt_bucket bucket)
{
	return (uint32_t)bucket;
}

static uint32_t bucket_home(const struct kvt_core *core, kvt_bucket bucket)
{
	return (uint32_t)(bucket >> 32) & core->bucket_mask;
}

static kvt_bucket bucket_make(uint32_t tag, uint32_t child)
{
	return (kvt_bucket)tag << 32 | child;
}

static uint32_t place_of(const struct kvt_core *core, uint32_t child)
{
	kvt_bucket wanted = bucket_make(core->nodes[child].tag, child);
	uint32_t at = bucket_home(core, wanted);

	for (uint32_t i = 0; i <= core->bucket_mask; i++, at = (at + 1) & core->bucket_mask)
		if (core->buckets[at] == wanted)
			return at;
	KVT_ASSERT(!"child is in the index");
	return 0;
}

static void make_tag(struct kvt_core *core, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id);

	KVT_ASSERT(node->n_slots > 0 && node->parent != KVT_NONE);
	node->tag = kvt_racy_tag(core->arena->hash_seed ^ kvt_root_key_of(core, id), node->parent,
				 kvt_keys_at(core, node->first_slot), core->ps);
}

bool kvt_index_add_new(struct kvt_core *core, uint32_t child)
{
	struct kvt_node *node = kvt_node_at(core, child);
	uint32_t at;

	make_tag(core, child);
	for (at = node->tag & core->bucket_mask; core->buckets[at] != 0;
	     at = (at + 1) & core->bucket_mask) {
		const struct kvt_node *other = kvt_node_at(core, bucket_child(core->buckets[at]));

		if (other->tag == node->tag && other->parent == node->parent &&
		    kvt_root_key_of(core, bucket_child(core->buckets[at])) ==
			    kvt_root_key_of(core, child) &&
		    kvt_racy_equal(kvt_keys_at(core, other->first_slot),
				   kvt_keys_at(core, node->first_slot), core->ps))
			return false;
	}
	/* Pairs with the prober's acquire, as below. */
	kvt_store_release(&core->buckets[at], bucket_make(node->tag, child));
	return true;
}

void kvt_index_add(struct kvt_core *core, uint32_t child)
{
	struct kvt_node *node = kvt_node_at(core, child);
	uint32_t at;

	make_tag(core, child);
	at = node->tag & core->bucket_mask;
	while (core->buckets[at] != 0)
		at = (at + 1) & core->bucket_mask;
	/* Pairs with the prober's acquire: the node is whole before it can be found. */
	kvt_store_release(&core->buckets[at], bucket_make(node->tag, child));
}

void kvt_index_remove(struct kvt_core *core, uint32_t child)
{
	uint32_t hole = place_of(core, child), at = hole;

	for (;;) {
		uint32_t home;

		at = (at + 1) & core->bucket_mask;
		if (core->buckets[at] == 0)
			break;
		home = bucket_home(core, core->buckets[at]);
		/* It may move back only if its home is not between the hole and where it is. */
		if (((at - home) & core->bucket_mask) < ((at - hole) & core->bucket_mask))
			continue;
		kvt_store_release(&core->buckets[hole], core->buckets[at]);
		hole = at;
	}
	kvt_store_release(&core->buckets[hole], 0);
}

void kvt_index_replace(struct kvt_core *core, uint32_t child, uint32_t by)
{
	uint32_t at = place_of(core, child);

	core->nodes[by].tag = core->nodes[child].tag;
	kvt_store_release(&core->buckets[at], bucket_make(core->nodes[by].tag, by));
}

uint32_t kvt_index_find(struct kvt_core *core, uint32_t parent, uint64_t root_key,
			const uint32_t *keys, uint32_t n_pages, uint32_t *ret_equal)
{
	uint64_t key = core->nodes[parent].flags & KVT_NODE_ROOT ? root_key : 0;
	uint32_t tag = kvt_racy_tag(core->arena->hash_seed ^ key, parent, keys, core->ps);
	uint32_t at = tag & core->bucket_mask;

	for (kvt_bucket bucket; (bucket = core->buckets[at]) != 0;
	     at = (at + 1) & core->bucket_mask) {
		const struct kvt_node *child;
		uint32_t n, equal;

		if ((uint32_t)(bucket >> 32) != tag)
			continue;
		child = kvt_node_at(core, bucket_child(bucket));
		core->effort.nodes_touched++;
		if (child->parent != parent || kvt_root_key_of(core, bucket_child(bucket)) != key)
			continue;
		n = kvt_min(n_pages, child->n_slots);
		equal = kvt_racy_equal_pages(keys, kvt_keys_at(core, child->first_slot), n,
					     core->ps);
		core->effort.keys_compared += (equal + (equal < n)) * core->ps;
		if (equal == 0)
			continue;
		*ret_equal = equal;
		return bucket_child(bucket);
	}
	return KVT_NONE;
}
