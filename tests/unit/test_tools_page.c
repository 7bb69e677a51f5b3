/* SPDX-License-Identifier: Apache-2.0 */

/* What the page of kvtmetricsd reads of nodes in the arena, against what the core says of them. */
#include <stdlib.h>

#include "tests/unit/core_world.h"
#include "tools/page_tree.h"

#define FIELD(row, name) (row)[KVT_PAGE_FIELD_##name]

static struct kvt_page_nodes read_all(struct world *w)
{
	struct kvt_arena_view view;
	struct kvt_page_nodes nodes;

	assert_int_equal(kvt_arena_view_init(&view, w->arena, w->sizes.arena_bytes),
			 KVT_ATTACH_OK);
	kvt_page_nodes_read(&view, w->now_ns, &nodes);
	return nodes;
}

/* Compare all nodes. Returns how many. */
static size_t expect_same(struct world *w)
{
	struct kvt_page_nodes nodes = read_all(w);
	struct kvt_admin_node node;
	size_t n = 0;

	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		const uint32_t *row = nodes.rows[n];

		if (!kvt_core_describe_node(w->core, id, w->now_ns, &node))
			continue;
		assert_true(n++ < nodes.n);
		assert_int_equal(FIELD(row, node), id);
		assert_int_equal(FIELD(row, parent), node.parent);
		assert_int_equal(FIELD(row, namespace), node.namespace_id);
		assert_int_equal(FIELD(row, start), node.start);
		assert_int_equal(FIELD(row, pages), node.n_slots);
		assert_int_equal(FIELD(row, sealed), node.sealed);
		assert_int_equal(FIELD(row, locks), node.lock_ref);
		assert_int_equal(FIELD(row, uses), node.uses);
		assert_int_equal(FIELD(row, age_s), node.age_ns / 1000000000);
		assert_int_equal(FIELD(row, sealer), node.sealer);
		assert_int_equal(FIELD(row, flags), node.flags);
		assert_int_equal(FIELD(row, sides), node.side_pages);
	}
	assert_int_equal(nodes.n, n);
	free(nodes.rows);
	return n;
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
	struct kvt_page_nodes nodes;
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, range(1, 3));
	pages = match_lock(a, ns, range(1, 3)).list;
	w->core->sides[pages[0] * 2] = 30;
	w->core->sides[pages[2] * 2 + 1] = 31;
	nodes = read_all(w);
	assert_int_equal(nodes.n, 2); /* the root, and the path */
	assert_int_equal(FIELD(nodes.rows[1], sides), 2);
	free(nodes.rows);
	w->core->sides[pages[0] * 2] = w->core->sides[pages[2] * 2 + 1] = KVT_NONE;
}

/* A daemon that died in a change leaves an odd version. */
TEST(a_node_in_change_is_left_out)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t id = insert(a, space_open(a, "ns"), range(1, 8)).handle.node;
	struct kvt_page_nodes nodes;

	w->core->nodes[id].version++;
	nodes = read_all(w);
	w->core->nodes[id].version--;
	assert_int_equal(nodes.n, 1);
	assert_int_not_equal(FIELD(nodes.rows[0], node), id);
	free(nodes.rows);
	assert_int_equal(expect_same(w), 2);
}
