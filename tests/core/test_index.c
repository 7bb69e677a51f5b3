/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/index.c: the child index, compared with a list of every child.
 *
 * Inputs: random parents and keys, from fixed seeds. Invariant: each child is found, and no other.
 */

#include "tests/core/world.h"

#include <stdlib.h>

/* Nodes made by hand, with only what the index reads. */
static void hang(struct world *w, uint32_t id, uint32_t parent, uint32_t key)
{
	struct kvt_node *node = &w->core->nodes[id];

	node->parent = parent;
	node->first_slot = id;
	node->n_slots = 1;
	for (uint32_t i = 0; i < w->ps; i++)
		kvt_keys_at(w->core, id)[i] = key + i * 1000003u;
	kvt_index_add(w->core, id);
}

static uint32_t find(struct world *w, uint32_t parent, uint32_t key)
{
	uint32_t keys[KVT_MAX_PAGE_SIZE], equal = 99;

	for (uint32_t i = 0; i < w->ps; i++)
		keys[i] = key + i * 1000003u;
	parent = kvt_index_find(w->core, parent, 0, keys, 1, &equal);
	assert_int_equal(equal, parent == KVT_NONE ? 99 : 1);
	return parent;
}

static void clear(struct world *w)
{
	memset(w->core->buckets, 0, (w->core->bucket_mask + 1ull) * sizeof(kvt_bucket));
	memset(w->core->nodes, 0, w->config.max_nodes * sizeof(struct kvt_node));
	for (uint32_t id = 1; id < w->config.max_nodes; id++)
		w->core->nodes[id].next_sibling = id + 1 < w->config.max_nodes ? id + 1 : 0;
}

/** Random additions, removals and replacements. Small `parents` and `keys` let children of
 * different parents share keys. There are few buckets; `seed_of_hash` is arbitrary. */
static void random_changes(uint32_t ps, uint64_t seed, uint32_t max_nodes)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = ps, .n_pages = 600, .max_nodes = max_nodes,
		.hash_seed = seed * 0x9e3779b97f4a7c15ull });
	uint32_t *parent_of = calloc(max_nodes, sizeof(*parent_of));
	uint32_t *key_of = calloc(max_nodes, sizeof(*key_of));
	uint64_t random = seed;

	for (int step = 0; step < 6000; step++) {
		uint32_t id = 1 + next_random(&random) % (max_nodes - 1);
		uint32_t parent = 1 + next_random(&random) % 6, key = next_random(&random) % 60;
		uint32_t other = 1 + next_random(&random) % (max_nodes - 1), want = KVT_NONE;

		for (uint32_t i = 1; i < max_nodes; i++)
			if (parent_of[i] == parent && key_of[i] == key)
				want = i;
		assert_int_equal(find(w, parent, key), want);
		if (!parent_of[id] && want == KVT_NONE) {
			hang(w, id, parent, key);
			parent_of[id] = parent;
			key_of[id] = key;
		} else if (parent_of[id] && !parent_of[other] && step % 3 == 0) {
			/* Like a split: another node takes the place, with the same keys. */
			w->core->nodes[other].parent = parent_of[id];
			w->core->nodes[other].first_slot = other;
			w->core->nodes[other].n_slots = 1;
			memcpy(kvt_keys_at(w->core, other), kvt_keys_at(w->core, id), ps * 4);
			kvt_index_replace(w->core, id, other);
			parent_of[other] = parent_of[id];
			key_of[other] = key_of[id];
			parent_of[id] = 0;
		} else if (parent_of[id]) {
			kvt_index_remove(w->core, id);
			parent_of[id] = 0;
		}
	}
	for (uint32_t i = 1; i < max_nodes; i++)
		if (parent_of[i])
			kvt_index_remove(w->core, i);
	for (uint32_t i = 0; i <= w->core->bucket_mask; i++)
		assert_int_equal(w->core->buckets[i], 0); /* no tombstones */
	free(parent_of);
	free(key_of);
	clear(w);
	world_free(w);
}

TEST(random_changes_agree_with_a_list)
{
	for (uint64_t seed = 0; seed < 12; seed++)
		random_changes(seed % 2 ? 1 : 16, seed, seed % 3 ? 64 : 300);
}

/* Equal tags of different keys: the keys decide, not the hash. Find such a pair by trying. */
TEST(equal_hashes_of_different_keys_are_told_apart)
{
	enum { TRIED = 300000 };
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 40,
							      .max_nodes = 16 });
	uint32_t *tags = malloc(TRIED * sizeof(*tags)), *heads = calloc(1 << 19, sizeof(*heads));
	uint32_t *next = malloc(TRIED * sizeof(*next)), a = 0, b = 0;

	for (uint32_t key = 1; key < TRIED && !a; key++) {
		uint32_t tag = kvt_racy_tag(w->core->arena->hash_seed, 1, &key, 1);

		tags[key] = tag;
		for (uint32_t at = heads[tag >> 13]; at; at = next[at])
			if (tags[at] == tag)
				a = at, b = key;
		next[key] = heads[tag >> 13];
		heads[tag >> 13] = key;
	}
	assert_int_not_equal(a, 0);
	hang(w, 2, 1, a);
	assert_int_equal(find(w, 1, b), KVT_NONE);
	hang(w, 3, 1, b);
	assert_int_equal(w->core->nodes[2].tag, w->core->nodes[3].tag);
	assert_int_equal(find(w, 1, a), 2);
	assert_int_equal(find(w, 1, b), 3);
	kvt_index_remove(w->core, 2);
	assert_int_equal(find(w, 1, a), KVT_NONE);
	assert_int_equal(find(w, 1, b), 3);
	free(tags);
	free(heads);
	free(next);
	clear(w);
}

TEST(a_find_counts_the_equal_pages_of_the_edge)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), equal = 0, root, child;

	child = insert(a, ns, range(1, 20)).handle.node;
	root = w->core->namespaces[ns].root;
	for (uint32_t pages = 1; pages <= 12; pages++) {
		assert_int_equal(kvt_index_find(w->core, root, 0, range(1, 24).at, pages, &equal),
				 child);
		assert_int_equal(equal, pages < 10 ? pages : 10);
	}
	assert_int_equal(kvt_index_find(w->core, root, 0, join(range(1, 5), K(9, 9, 9)).at, 4,
					&equal), child);
	assert_int_equal(equal, 2);
	assert_int_equal(kvt_index_find(w->core, root, 0, K(1, 3).at, 1, &equal), KVT_NONE);
}
