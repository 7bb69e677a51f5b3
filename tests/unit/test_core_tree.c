/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/tree.c, walk.c and grow.c: splits and merges, paths, runs that do not fit in one
 * piece. Random sequences are compared with a map from every prefix to its page.
 *
 * Invariant: each cached prefix has its page, and no other prefix matches. */

#include "tests/unit/core_world.h"

#include <stdio.h>
#include <stdlib.h>

TEST(a_split_divides_the_run_and_nothing_else)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), id;
	struct kvt_node before;

	a->priority = 4;
	a->ttl_ms = 500;
	id = insert(a, ns, range(1, 20)).handle.node;
	for (uint32_t cut = 9; cut >= 1; cut--) {
		const struct kvt_node *upper, *lower = node_at(w, id);
		uint32_t up;

		before = *lower;
		if (before.n_slots == 1)
			break;
		kvt_mutation_begin(w->core);
		up = kvt_node_split(w->core, id, 1);
		kvt_mutation_end(w->core);
		upper = node_at(w, up);
		world_audit(w);
		assert_int_equal(upper->first_slot, before.first_slot);
		assert_int_equal(upper->n_slots, 1);
		assert_int_equal(upper->sealed, 1);
		assert_int_equal(upper->start, before.start);
		assert_int_equal(upper->hits, before.hits);
		assert_int_equal(upper->priority, before.priority);
		assert_int_equal(upper->touched, before.touched);
		assert_int_equal(upper->created, before.created);
		assert_int_equal(upper->expiry_ns, before.expiry_ns);
		assert_int_equal(lower->first_slot, before.first_slot + 1);
		assert_int_equal(lower->n_slots, before.n_slots - 1);
		assert_int_equal(lower->start, before.start + 1);
		assert_int_equal(lower->generation, before.generation);
		assert_int_equal(lower->parent, up);
		assert_int_equal(lower->older, before.older);
		assert_int_equal(lower->younger, up); /* directly on the young side */
		expect_matched(a, ns, range(1, 20), 20);
	}
	assert_int_equal(path_length(a, ns, range(1, 20)), 10);
}

TEST(a_merge_undoes_a_split)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), id = insert(a, ns, range(1, 20)).handle.node, up;
	struct kvt_node before = *node_at(w, id);

	for (uint32_t cut = 1; cut < 10; cut++) {
		kvt_mutation_begin(w->core);
		up = kvt_node_split(w->core, id, cut);
		kvt_node_merge(w->core, up, id);
		kvt_mutation_end(w->core);
		world_audit(w);
		assert_int_equal(node_at(w, id)->first_slot, before.first_slot);
		assert_int_equal(node_at(w, id)->n_slots, 10);
		assert_int_equal(node_at(w, id)->sealed, 10);
		assert_int_equal(node_at(w, id)->start, 0);
		assert_int_equal(node_at(w, id)->generation, before.generation);
		assert_int_equal(node_at(w, up)->flags, 0);
		expect_matched(a, ns, range(1, 20), 20);
	}
}

/* Free slots in pieces: the run becomes a chain of nodes, and acts as one. */
TEST(a_run_without_room_becomes_a_chain)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 60, .n_slots = 61, .max_nodes = 64 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), length;
	struct answer lease;

	for (uint32_t i = 0; i < 19; i++)
		insert(a, ns, range(100 * i + 1, 100 * i + 3));
	for (uint32_t i = 0; i < 19; i += 2) /* every other one is old, and is evicted */
		match(a, ns, range(100 * i + 1, 100 * i + 3));
	assert_int_equal(evict(a, 27).evicted, 27);
	insert(a, ns, range(5001, 5029));
	length = path_length(a, ns, range(5001, 5029));
	assert_in_range(length, 8, 10);
	lease = match_lock(a, ns, range(5001, 5029));
	assert_int_equal(lease.matched, 29);
	expect_ok(unlock(a, lease));
	/* Once there is room, idle turns join the chain. */
	match(a, ns, range(5001, 5029));
	evict(a, 30);
	match(a, ns, range(5001, 5029));
	unlock(a, match_lock(a, ns, range(5001, 5029)));
	world_compact(w);
	assert_true(path_length(a, ns, range(5001, 5029)) < length);
	assert_int_equal(match_lock(a, ns, range(5001, 5029)).matched, 29);
}

/* A continuation lies right behind its parent if those slots are free. */
TEST(a_continuation_lies_behind_its_parent)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	const struct kvt_node *one = node_at(w, insert(a, ns, range(1, 5)).handle.node);
	const struct kvt_node *two = node_at(w, insert(a, ns, range(1, 9)).handle.node);

	assert_int_equal(two->first_slot, one->first_slot + one->n_slots);
	assert_int_equal(two->start, 5);
}

/* ---- compared with a map: a prefix is cached or not, under one page */

enum { DEPTH = 8, WIDTH = 2, PREFIXES = 1 << (DEPTH + 1) };

/** Prefixes of 0/1 keys are numbered like a heap: 1 is empty, 2n and 2n + 1 append 0 and 1. */
struct oracle {
	uint32_t page[PREFIXES];
};

static uint32_t number(const uint32_t *keys, uint32_t n)
{
	uint32_t at = 1;

	for (uint32_t i = 0; i < n; i++)
		at = 2 * at + keys[i];
	return at;
}

static void check_match(struct client *a, uint32_t ns, struct oracle *o, const uint32_t *keys,
			uint32_t n)
{
	struct answer found = match_lock(a, ns, (struct keys){ keys, n });
	uint32_t want = 0;

	while (want < n && o->page[number(keys, want + 1)])
		want++;
	assert_int_equal(found.matched, want);
	for (uint32_t i = 0; i < want; i++)
		assert_int_equal(found.list[i], o->page[number(keys, i + 1)]);
	expect_ok(unlock(a, found));
}

static void check_insert(struct client *a, uint32_t ns, struct oracle *o, const uint32_t *keys,
			 uint32_t n)
{
	struct world *w = a->world;
	uint32_t existed = 0, fresh[DEPTH];
	struct answer done;

	memcpy(fresh, alloc(a, n).list, n * sizeof(*fresh));
	for (uint32_t p = 2; p < PREFIXES; p++) /* what ALLOC evicted is gone */
		if (o->page[p] && w->core->pages[o->page[p]].state != KVT_PAGE_CACHED)
			o->page[p] = 0;
	while (existed < n && o->page[number(keys, existed + 1)])
		existed++;
	for (uint32_t i = existed; i < n; i++)
		world_write(w, fresh[i], ns, (struct keys){ keys, i + 1 });
	done = insert_pages(a, ns, (struct keys){ keys, n }, fresh, n, 0);
	expect_ok(done);
	assert_int_equal(done.existed, existed);
	assert_int_equal(done.inserted, n - existed);
	for (uint32_t i = existed; i < n; i++)
		o->page[number(keys, i + 1)] = fresh[i];
	expect_ok(give(a, fresh, existed));
}

TEST(random_prefixes_agree_with_a_map)
{
	for (uint64_t seed = 1; seed <= 14; seed++) {
		struct world *w = world_new((struct kvt_core_config){
			.page_size = 1, .n_pages = seed % 2 ? 80 : 600, .max_nodes = 600,
			.policy = (uint32_t)seed % KVT_POLICY_COUNT });
		struct oracle *o = calloc(1, sizeof(*o));
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");
		uint64_t random = seed;

		for (int step = 0; step < 500; step++) {
			uint32_t keys[DEPTH], n = 1 + next_random(&random) % DEPTH;

			for (uint32_t i = 0; i < n; i++)
				keys[i] = next_random(&random) % WIDTH;
			if (step % 3 == 0)
				check_insert(a, ns, o, keys, n);
			else
				check_match(a, ns, o, keys, n);
			if (step % 5 == 0)
				kvt_core_work(w->core, 20, true, w->now_ns);
			world_audit(w);
		}
		free(o);
		world_free(w);
	}
}

/* A conversation that grows turn by turn, never idle in between. */
TEST(a_growing_path_stays_short_without_idle_turns)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 2, .n_pages = 900,
							      .max_nodes = 256 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	for (uint32_t turn = 1; turn <= 40; turn++) {
		struct seq *seq = begin(a, ns, range(1, 10 * turn), 0, 0);
		struct seq *other = begin(a, ns, range(1000 * turn, 1000 * turn + 9), 0, 0);

		commit(seq, 10 * turn, NO_KEYS, 0);
		commit(other, 10, NO_KEYS, 0);
		expect_ok(end(seq));
		expect_ok(end(other)); /* takes the slots behind */
		assert_in_range(path_length(a, ns, range(1, 10 * turn)), 1, 8);
	}
	expect_matched(a, ns, range(1, 400), 400);
}
