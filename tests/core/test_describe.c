/* SPDX-License-Identifier: Apache-2.0 */

/* What the core reports: records of pages, nodes, namespaces and leases, and counters through
 * STATS.
 *
 * Inputs: small worlds of world.h. Invariant: reports agree with what the operations did. */
#include <stdio.h>

#include "kvtrunk_wire_admin.h"
#include "tests/core/world.h"

/* PAGE answers state, owner, node and position. */
TEST(a_page_can_be_described)
{
	struct world *w = world_small(4, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), pages[5];
	struct answer found, told;
	struct kvt_admin_page described;
	struct seq *seq;

	insert(a, ns, range(1, 20));
	insert(a, ns, join(range(1, 8), range(50, 57)));
	found = match_lock(a, ns, range(1, 20));
	memcpy(pages, found.list, sizeof(pages));
	for (uint32_t i = 0; i < 5; i++) {
		told = page_of(a, pages[i]);
		assert_int_equal(told.state, KVT_PAGE_CACHED);
		assert_int_equal(told.handle.positions, 4 * i);
		assert_int_equal(told.lock_ref, 1);
		assert_int_equal(told.handle.generation,
				 node_at(w, told.handle.node)->generation);
	}
	seq = begin(b, space_open(b, "ns"), NO_KEYS, 4, 0);
	assert_true(kvt_core_describe_page(w->core, seq->table[0], &described));
	assert_int_equal(described.state, KVT_PAGE_PRIVATE);
	assert_int_equal(described.session, b->session);
	assert_int_equal(described.lease, seq->lease);
	assert_int_equal(page_of(a, 0).state, KVT_PAGE_SCRATCH);
	assert_int_equal(page_of(a, 39).state, KVT_PAGE_FREE);
	expect_refused(page_of(a, 40), -EINVAL, KVT_REASON_PAGE_RANGE);
	expect_refused(page_of(a, UINT32_MAX), -EINVAL, KVT_REASON_PAGE_RANGE);
}

TEST(a_namespace_can_be_described)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t one = space_open(a, "one"), two = space_open(b, "two");
	struct kvt_admin_namespace space;

	space_open(b, "one");
	insert(a, one, range(1, 8));
	insert(b, two, range(1, 4));
	match_lock(a, one, range(1, 4));
	assert_true(kvt_core_describe_namespace(w->core, one, &space));
	assert_string_equal(space.label, "one");
	assert_int_equal(space.opened, 2);
	assert_int_equal(space.cached_pages, 4);
	assert_int_equal(space.protected_pages, 2);
	assert_int_equal(space.evictable_pages, 2);
	assert_int_equal(space.nodes, 3);
	assert_true(kvt_core_describe_namespace(w->core, two, &space));
	assert_int_equal(space.cached_pages, 2);
	assert_false(kvt_core_describe_namespace(w->core, 0, &space));
	assert_false(kvt_core_describe_namespace(w->core, two + 1, &space));
	assert_false(kvt_core_describe_namespace(w->core, 32, &space));
	assert_false(kvt_core_describe_namespace(w->core, UINT32_MAX, &space));
}

TEST(the_oldest_lease_and_the_stale_ones_are_named)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(a, "other");
	struct kvt_admin_status status;
	struct answer first;

	kvt_core_describe_leases(w->core, w->now_ns, &status);
	assert_int_equal(status.oldest_lease, 0);
	insert(a, ns, range(1, 8));
	insert(a, other, range(1, 8));
	first = match_lock(a, ns, range(1, 8));
	w->now_ns += 5;
	begin(a, other, range(1, 8), 0, 0);
	w->now_ns += 5;
	kvt_core_describe_leases(w->core, w->now_ns, &status);
	assert_int_equal(status.oldest_lease, first.lease);
	assert_int_equal(status.oldest_lease_session, a->session);
	assert_int_equal(status.oldest_lease_age_ns, 10);
	assert_int_equal(status.stale_locks, 0);
	remove_prefix(a, other, NO_KEYS);
	kvt_core_describe_leases(w->core, w->now_ns, &status);
	assert_int_equal(status.stale_locks, 1);
	reset(a);
	kvt_core_describe_leases(w->core, w->now_ns, &status);
	assert_int_equal(status.stale_locks, 2);
}

static uint64_t stale_locks(struct world *w)
{
	struct kvt_admin_status status;

	kvt_core_describe_leases(w->core, w->now_ns, &status);
	return status.stale_locks;
}

/* A path may be detached in two places: its leases count once and leave once. */
TEST(a_lease_that_lost_its_path_twice_counts_once)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *deep, *upper, *fresh;

	insert(a, ns, range(1, 12));
	deep = begin(a, ns, range(1, 12), 0, 0);
	upper = begin(a, ns, range(1, 4), 0, 0);
	assert_int_equal(stale_locks(w), 0);
	remove_prefix(a, ns, range(1, 8));
	assert_int_equal(stale_locks(w), 1);
	remove_prefix(a, ns, NO_KEYS);
	assert_int_equal(stale_locks(w), 2);
	end(deep);
	assert_int_equal(stale_locks(w), 1);
	reset(a);
	fresh = begin(a, ns, range(1, 4), 0, 0);
	assert_int_equal(stale_locks(w), 1);
	end(upper);
	assert_int_equal(stale_locks(w), 0);
	end(fresh);
	assert_int_equal(stale_locks(w), 0);
}

/* RESET costs the same with one namespace and with thirty. None of them matches after it, before or
 * after its background work, and a new root takes the old one's place. */
TEST(reset_leaves_its_work_to_the_background)
{
	struct world *w = world_small(2, 200);
	struct client *a = client_new(w);
	uint32_t spaces[30];
	struct seq *old;
	char name[8];

	for (uint32_t i = 0; i < 30; i++) {
		snprintf(name, sizeof(name), "ns%u", i);
		spaces[i] = space_open(a, name);
		insert(a, spaces[i], range(1, 4));
	}
	old = begin(a, spaces[7], range(1, 8), 0, 0);
	reset(a);
	assert_in_range(w->core->undo.used, 1, 40);
	assert_int_equal(counters(w)->detached_pending, 30);
	for (uint32_t i = 0; i < 30; i++)
		expect_matched(a, spaces[i], range(1, 4), 0);
	insert(a, spaces[3], range(1, 6));
	expect_matched(a, spaces[3], range(1, 6), 6);
	assert_int_equal(world_adopt(w, NULL, name, sizeof(name)), 0);
	expect_matched(a, spaces[3], range(1, 6), 6);
	expect_matched(a, spaces[4], range(1, 4), 0);
	world_settle(w);
	expect_matched(a, spaces[3], range(1, 6), 6);
	assert_int_equal(counters(w)->cached_pages, 3 + 2); /* `old` still locks two */
	expect_ok(end(old));
	world_settle(w);
	expect_pages(w, 3, 0, 0);
}

TEST(stats_are_the_counters)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), words = sizeof(struct kvt_counters) / 4;
	struct kvt_sqe sqe = { .op = KVT_OP_STATS, .list_capacity = words - 1 };
	struct kvt_counters got;
	struct answer answer;

	insert(a, ns, range(1, 8));
	begin(a, ns, range(1, 8), 4, 0);
	answer = submit(a, &sqe);
	expect_refused(answer, -ENOBUFS, KVT_REASON_LIST_SHORT);
	assert_int_equal(answer.number, words);
	sqe.list_capacity = words;
	answer = submit(a, &sqe);
	expect_ok(answer);
	assert_int_equal(answer.n_list, words);
	memcpy(&got, answer.list, sizeof(got));
	got.operations = counters(w)->operations; /* STATS itself is counted after it */
	assert_memory_equal(&got, counters(w), sizeof(got));
}
