/* SPDX-License-Identifier: Apache-2.0 */

/* What the page of kvtmetricsd reads of nodes in the arena, against what the core says of them; and
 * the time of its history. */
#include <stdlib.h>

#include "daemon/core/records.h"
#include "daemon/core/side.h"
#include "daemon/core/tree.h"
#include "tests/core/world.h"
#include "tools/page.h"
#include "tools/page_tree.h"

#define FIELD(row, name) (row)[KVT_PAGE_FIELD_##name]

static struct kvt_tree read_all(struct world *w, bool more)
{
	struct kvt_client reader = { .info.n_sides = w->config.n_sides };
	struct kvt_tree tree;

	memcpy(reader.info.side_pages, w->config.side_pages, sizeof(reader.info.side_pages));
	assert_int_equal(kvt_arena_view_init(&reader.arena, w->arena, w->sizes.arena_bytes),
			 KVT_ATTACH_OK);
	kvt_tree_read(&reader, w->now_ns, UINT32_MAX, more, &tree);
	return tree;
}

/* Compare all nodes. Returns how many. */
static size_t expect_same(struct world *w)
{
	struct kvt_tree nodes = read_all(w, false);
	size_t n = 0;

	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		const struct kvt_node *node = &w->core->nodes[id];
		const uint32_t *row;

		if (!kvt_node_live(w->core, id))
			continue;
		assert_true(n < nodes.n);
		row = nodes.nodes[n++].row;
		assert_int_equal(FIELD(row, node), id);
		assert_int_equal(FIELD(row, parent), node->parent);
		assert_int_equal(FIELD(row, namespace), node->namespace_id);
		assert_int_equal(FIELD(row, start), node->start);
		assert_int_equal(FIELD(row, pages), node->n_slots);
		assert_int_equal(FIELD(row, sealed), node->sealed);
		assert_int_equal(FIELD(row, locks), node->lock_ref);
		assert_int_equal(FIELD(row, uses), node->uses);
		assert_int_equal(FIELD(row, age_s), (w->now_ns - node->touched_ns) / 1000000000);
		assert_int_equal(FIELD(row, sealer), node->sealed ? w->core->sealers[id] : 0);
		assert_int_equal(FIELD(row, flags), node->flags);
		assert_int_equal(FIELD(row, sides), kvt_sides_in(w->core, id));
	}
	assert_int_equal(nodes.n, n);
	free(nodes.nodes);
	return n;
}

/* What is read of one node. */
static struct kvt_tree_node read_one(struct world *w, uint32_t id)
{
	struct kvt_tree tree = read_all(w, true);
	struct kvt_tree_node node = { .node = 0 };

	for (uint32_t i = 0; i < tree.n; i++)
		if (tree.nodes[i].node == id)
			node = tree.nodes[i];
	free(tree.nodes);
	assert_int_equal(node.node, id);
	return node;
}

TEST(a_node_has_all_that_kvtctl_shows)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), id;
	struct kvt_tree_node node;

	insert(a, ns, range(1, 8));
	a->priority = -3;
	a->ttl_ms = 40;
	id = insert(a, ns, range(1, 14)).handle.node;
	match_lock(a, ns, range(1, 14));
	w->now_ns += 10000000;
	node = read_one(w, id);
	assert_int_equal(node.start, 4);
	assert_int_equal(node.pages, 3);
	assert_int_equal(node.sealed, 3);
	assert_int_equal(node.locks, 1);
	assert_int_equal(node.priority, -3);
	assert_int_equal(node.uses, 1);
	assert_int_equal(node.age_ns, 10000000);
	assert_int_equal(node.expires_in_ns, 30000000);
	assert_int_equal(node.sealer, kvt_core_session(w->core, a->session)->sealer);
	assert_memory_equal(node.keys, range(9, 12).at, sizeof(node.keys));
	w->now_ns += 100000000; /* due, but not looked at yet */
	assert_int_equal(read_one(w, id).expires_in_ns, 0);
	assert_true(read_one(w, node.parent).expires_in_ns == UINT64_MAX);
	assert_int_equal(read_one(w, node.parent).n_children, 1);
}

/* Kind 0 needs 1 page, kind 1 needs 2. The node ends at 6 pages; its parent at 3. */
TEST(a_node_tells_its_last_point)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 60,
							      .max_nodes = 32, .n_sides = 2,
							      .side_pages = { 1, 2 } });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), lower, upper;
	uint32_t *sides = w->core->sides;
	struct answer path;

	insert(a, ns, range(1, 3));
	insert(a, ns, join(range(1, 3), range(50, 51)));
	lower = insert(a, ns, range(1, 6)).handle.node;
	upper = node_at(w, lower)->parent;
	path = match_lock(a, ns, range(1, 6));
	assert_int_equal(node_at(w, lower)->start, 3);
	sides[path.list[3] * 2] = 30;
	sides[path.list[3] * 2 + 1] = 31;
	assert_int_equal(read_one(w, lower).point, 0); /* page 2, in the parent, lacks kind 1 */
	sides[path.list[2] * 2 + 1] = 32;
	assert_int_equal(read_one(w, lower).point, 4);
	sides[path.list[5] * 2] = 33;
	sides[path.list[5] * 2 + 1] = 34;
	assert_int_equal(read_one(w, lower).point, 4); /* page 4 lacks kind 1 */
	assert_int_equal(read_one(w, upper).point, 0);
	for (uint32_t i = 0; i < 6; i++)
		sides[path.list[i] * 2] = sides[path.list[i] * 2 + 1] = KVT_NONE;
}

TEST(nodes_are_read_as_the_core_describes_them)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t one = space_open(a, "one"), two = space_open(b, "two");
	struct seq *announced;

	assert_int_equal(expect_same(w), 0);
	insert(a, one, range(1, 8));
	w->now_ns += 3500000000;
	insert(b, space_open(b, "one"), range(1, 14)); /* two sealers on one path */
	insert(b, two, range(1, 6));
	match_lock(a, one, range(1, 12));
	announced = begin(b, two, range(1, 20), 0, 0);
	w->now_ns += 2000000000;
	assert_true(expect_same(w) >= 5);
	expect_ok(commit(announced, 20, NO_KEYS, 0));
	remove_prefix(a, one, range(1, 4)); /* detached, under a lock */
	assert_true(expect_same(w) >= 4);
}

TEST(side_pages_of_a_node_are_counted)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 40,
							      .max_nodes = 32, .n_sides = 2,
							      .side_pages = { 1, 2 } });
	struct client *a = client_new(w);
	const uint32_t *pages;
	struct kvt_tree nodes;
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, range(1, 3));
	pages = match_lock(a, ns, range(1, 3)).list;
	w->core->sides[pages[0] * 2] = 30;
	w->core->sides[pages[2] * 2 + 1] = 31;
	nodes = read_all(w, false);
	assert_int_equal(nodes.n, 2); /* the root, and the path */
	assert_int_equal(nodes.nodes[1].sides, 2);
	free(nodes.nodes);
	w->core->sides[pages[0] * 2] = w->core->sides[pages[2] * 2 + 1] = KVT_NONE;
}

/* A daemon that died in a change leaves an odd version. */
TEST(a_node_in_change_is_left_out)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t id = insert(a, space_open(a, "ns"), range(1, 8)).handle.node;
	struct kvt_tree nodes;

	w->core->nodes[id].version++;
	nodes = read_all(w, false);
	w->core->nodes[id].version--;
	assert_int_equal(nodes.n, 1);
	assert_int_not_equal(nodes.nodes[0].node, id);
	free(nodes.nodes);
	assert_int_equal(expect_same(w), 2);
}

TEST(the_history_is_of_an_hour)
{
	assert_int_equal((KVT_PAGE_SAMPLES - 1) * KVT_PAGE_SAMPLE_NS, 3600 * 1000000000ll);
}
