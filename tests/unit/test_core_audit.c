/* SPDX-License-Identifier: Apache-2.0 */

/* The audit notices what is wrong: every word of every record of a busy core is changed, one at a
 * time, and each change must be found, unless the word is on the list of those that nothing can
 * be compared with. */

#include "tests/unit/core_world.h"

#include <stdio.h>
#include <stdlib.h>

/** A core with something of everything: locks, announced and kept pages, a detached subtree under
 * a lock and one that waits for reclaim, deferred operations, expiry, a dead session. */
static struct world *busy(uint32_t policy)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 2, .n_pages = 120, .max_nodes = 40, .policy = policy,
		.max_sessions = 5, .n_leases = 12, .n_pending = 6, .max_namespaces = 6 });
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(b, "other"), list[2];
	struct seq *one, *two;

	space_open(b, "ns");
	insert(a, ns, range(1, 20));
	insert(a, ns, join(range(1, 10), range(50, 57)));
	a->ttl_ms = 100;
	insert(a, ns, range(100, 107));
	a->ttl_ms = 50;
	insert(a, ns, range(110, 113));
	match_lock(b, ns, range(1, 14));
	one = begin(a, ns, range(200, 209), 4, 0);
	two = begin(b, ns, range(200, 209), 4, 0);
	commit(one, 8, NO_KEYS, 0);
	commit(two, 6, NO_KEYS, KVT_F_KEEP);
	insert(b, other, range(1, 12));
	insert(b, other, join(range(1, 4), range(300, 305)));
	match_lock(b, other, range(1, 4));
	kvt_core_remove(w->core, other, range(1, 4).at, 4, w->now_ns, &(bool){ false });
	insert(b, other, range(30, 35));
	insert(a, ns, range(400, 407));
	memcpy(list, alloc(a, 2).list, sizeof(list));
	alloc(b, 3);
	fence(a, 1, 1);
	assert_true(commit(one, 10, NO_KEYS, 0).deferred);
	fence(a, 2, 1);
	assert_true(give(a, list, 2).deferred);
	alloc(c, 4);
	client_dies(c, KVT_SIGN_HANGUP);
	remove_prefix(a, ns, range(400, 401)); /* waits for reclaim */
	world_audit(w);
	return w;
}

struct change {
	struct world *world;
	const char *what;
	uint32_t tried, missed;
};

/** Flip bits of one word and look; put it back. `skip`: nothing can tell. */
static void change(struct change *change, uint32_t *word, const char *field, uint32_t at, bool skip)
{
	static const uint32_t flips[] = { 1, 2, 0x40, 0x80000000u, 0xffffffffu };
	uint32_t before = *word;

	if (skip)
		return;
	for (size_t i = 0; i < sizeof(flips) / sizeof(flips[0]); i++) {
		*word = before ^ flips[i];
		change->tried++;
		if (world_problems(change->world) == 0) {
			change->missed++;
			print_error("%s[%u].%s: %x for %x is not noticed\n", change->what, at,
				    field, *word, before);
		}
		*word = before;
	}
}

#define CHANGE(record_, field_, at_, skip_)                                                       \
	change(&c, (uint32_t *)(void *)&(record_)->field_, #field_, at_, skip_)

static void changes_of_nodes(struct world *w)
{
	struct change c = { w, "node", 0, 0 };

	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		struct kvt_node *node = &w->core->nodes[id];
		bool live = node->flags & KVT_NODE_LIVE;

		CHANGE(node, flags, id, false);
		CHANGE(node, parent, id, !live);
		CHANGE(node, first_slot, id, !live);
		CHANGE(node, n_slots, id, !live);
		CHANGE(node, sealed, id, !live);
		CHANGE(node, start, id, !live || (node->flags & KVT_NODE_DETACHED));
		CHANGE(node, namespace_id, id, !live);
		CHANGE(node, first_child, id, !live);
		CHANGE(node, next_sibling, id, !live || !node->parent ||
		       (node->flags & KVT_NODE_DETACHED));
		CHANGE(node, prev_sibling, id, !live || !node->parent ||
		       (node->flags & KVT_NODE_DETACHED));
		CHANGE(node, n_children, id, !live);
		CHANGE(node, lock_ref, id, !live);
		CHANGE(node, older, id, !(node->flags & KVT_NODE_LISTED));
		CHANGE(node, younger, id, !(node->flags & KVT_NODE_LISTED));
		CHANGE(node, heap_at, id, !live);
		CHANGE(node, expiry_at, id, !live);
		CHANGE(node, tag, id, !live || !node->parent ||
		       (node->flags & KVT_NODE_DETACHED));
	}
	assert_int_equal(c.missed, 0);
	assert_true(c.tried > 1000);
}

static void changes_of_pages(struct world *w)
{
	struct change c = { w, "page", 0, 0 };

	for (uint32_t page = 1; page < w->config.n_pages; page++) {
		struct kvt_page_record *record = &w->core->pages[page];
		struct kvt_owner_record *owner = &w->core->owners[page];
		bool private = record->state == KVT_PAGE_PRIVATE;
		bool quarantined = record->state == KVT_PAGE_QUARANTINE;

		CHANGE(record, state, page, false);
		CHANGE(record, slot, page, private || quarantined);
		CHANGE(owner, session, page, !private && !quarantined);
		CHANGE(owner, lease, page, !private);
		CHANGE(owner, next, page, record->state == KVT_PAGE_CACHED);
		CHANGE(owner, prev, page, !quarantined && !(private && !owner->lease));
	}
	for (uint32_t slot = 1; slot < w->config.n_slots; slot++)
		if (w->core->slot_pages[slot])
			change(&c, &w->core->slot_pages[slot], "slot_pages", slot, false);
	assert_int_equal(c.missed, 0);
	assert_true(c.tried > 1000);
}

static void changes_of_leases_and_sessions(struct world *w)
{
	struct change c = { w, "lease", 0, 0 };

	for (uint32_t i = 1; i <= w->config.n_leases; i++) {
		struct kvt_lease_record *lease = &w->core->leases[i];
		bool live = lease->kind != KVT_LEASE_FREE;

		CHANGE(lease, kind, i, lease->kind == KVT_LEASE_MATCH);
		CHANGE(lease, session, i, !live);
		CHANGE(lease, node, i, !live);
		CHANGE(lease, path_pages, i, lease->kind != KVT_LEASE_BEGIN);
		CHANGE(lease, n_private, i, !live);
		CHANGE(lease, first_page, i, !live);
		CHANGE(lease, last_page, i, !live);
		CHANGE(lease, first_kept, i, !live);
		CHANGE(lease, n_kept, i, !live);
		CHANGE(lease, next_lease, i, false);
		CHANGE(lease, prev_lease, i, !live);
		CHANGE(lease, n_pending, i, !live);
	}
	c.what = "session";
	for (uint32_t i = 1; i <= w->config.max_sessions; i++) {
		struct kvt_session_record *session = &w->core->sessions[i];

		CHANGE(session, n_leases, i, false);
		CHANGE(session, n_private, i, false);
		CHANGE(session, n_quarantined, i, false);
		CHANGE(session, first_lease, i, false);
		CHANGE(session, first_page, i, false);
		CHANGE(session, first_quarantined, i, false);
		CHANGE(session, first_pending, i, false);
		CHANGE(session, last_pending, i, !session->n_pending);
		CHANGE(session, n_pending, i, false);
	}
	c.what = "pending";
	for (uint32_t i = 1; i <= w->config.n_pending; i++) {
		struct kvt_pending_record *pending = &w->core->pending[i];

		CHANGE(pending, session, i, false);
		CHANGE(pending, next, i, false);
		CHANGE(pending, lease, i, !pending->session);
	}
	assert_int_equal(c.missed, 0);
	assert_true(c.tried > 300);
}

static void changes_of_namespaces_and_counters(struct world *w)
{
	struct change c = { w, "namespace", 0, 0 };
	struct kvt_counters *count = w->core->count;

	for (uint32_t i = 1; i < w->config.max_namespaces; i++) {
		struct kvt_namespace_record *space = &w->core->namespaces[i];

		CHANGE(space, flags, i, false);
		CHANGE(space, root, i, false);
		CHANGE(space, opened, i, false);
		CHANGE(space, cached_pages, i, false);
		CHANGE(space, evictable_pages, i, false);
		CHANGE(space, protected_pages, i, false);
		CHANGE(space, nodes, i, false);
	}
	c.what = "counter";
	CHANGE(count, free_pages, 0, false);
	CHANGE(count, private_pages, 0, false);
	CHANGE(count, cached_pages, 0, false);
	CHANGE(count, quarantined_pages, 0, false);
	CHANGE(count, evictable_pages, 0, false);
	CHANGE(count, protected_pages, 0, false);
	CHANGE(count, detached_pending, 0, false);
	CHANGE(count, live_nodes, 0, false);
	CHANGE(count, locked_nodes, 0, false);
	CHANGE(count, live_leases, 0, false);
	CHANGE(count, live_sessions, 0, false);
	CHANGE(count, live_namespaces, 0, false);
	assert_int_equal(c.missed, 0);
}

static void changes_of_the_core_itself(struct world *w)
{
	struct kvt_core *core = w->core;
	struct change c = { w, "core", 0, 0 };

	CHANGE(core, free_page, 0, false);
	CHANGE(core, oldest, 0, false);
	CHANGE(core, youngest, 0, false);
	CHANGE(core, evictable_nodes, 0, false);
	CHANGE(core, free_nodes.head, 0, false);
	CHANGE(core, free_nodes.tail, 0, false);
	CHANGE(core, free_nodes.count, 0, false);
	CHANGE(core, free_leases.head, 0, false);
	CHANGE(core, free_leases.tail, 0, false);
	CHANGE(core, free_leases.count, 0, false);
	CHANGE(core, free_pending.head, 0, false);
	CHANGE(core, free_pending.tail, 0, false);
	CHANGE(core, free_pending.count, 0, false);
	CHANGE(core, expiry.count, 0, false);
	CHANGE(core, heap.count, 0, kvt_policies[w->config.policy].list);
	CHANGE(core, detached_count, 0, false);
	CHANGE(core, dying, 0, false);
	CHANGE(core, slots.free_slots, 0, false);
	for (uint32_t i = 0; i < core->heap.count; i++)
		change(&c, &core->heap.nodes[i], "heap", i, false);
	for (uint32_t i = 0; i < core->expiry.count; i++)
		change(&c, &core->expiry.nodes[i], "expiry", i, false);
	for (uint32_t i = 0; i < KVT_BINS; i++)
		change(&c, &core->slots.bins[i], "bins", i, false);
	for (uint32_t at = 1; at < w->config.n_slots; at++) {
		bool free_head = kvt_bit_get(core->slots.free_head, at);

		change(&c, &core->slots.length[at], "length", at, !free_head);
		change(&c, &core->slots.first[at], "first", at,
		       !kvt_bit_get(core->slots.free_tail, at));
		change(&c, &core->slots.next[at], "next", at, !free_head);
		change(&c, &core->slots.prev[at], "prev", at, !free_head);
		change(&c, &core->slots.run[at], "run", at,
		       !kvt_bit_get(core->slots.run_head, at));
	}
	for (uint32_t i = 0; i <= core->bucket_mask; i++)
		change(&c, (uint32_t *)(void *)&core->buckets[i], "bucket", i, false);
	for (uint32_t i = 0; i < w->config.n_slots / 32; i++) {
		change(&c, (uint32_t *)core->slots.free_head + i, "free_head", i, false);
		change(&c, (uint32_t *)core->slots.free_tail + i, "free_tail", i, false);
		change(&c, (uint32_t *)core->slots.run_head + i, "run_head", i, false);
	}
	change(&c, (uint32_t *)core->page_mark, "page_mark", 0, false);
	assert_int_equal(c.missed, 0);
}

static void every_change_is_noticed(void **state)
{
	static const uint32_t policies[] = { KVT_POLICY_LRU, KVT_POLICY_LFU };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct world *w = busy(policies[i]);

		changes_of_nodes(w);
		changes_of_pages(w);
		changes_of_leases_and_sessions(w);
		changes_of_namespaces_and_counters(w);
		changes_of_the_core_itself(w);
		world_free(w);
	}
}

/* Recency: a listed child is older than its listed parent, and the list follows `touched`. */
static void an_order_that_is_wrong_is_noticed(void **state)
{
	struct world *w = busy(KVT_POLICY_LRU);
	struct kvt_node *oldest = &w->core->nodes[w->core->oldest];
	uint64_t before = oldest->touched;

	(void)state;
	oldest->touched = UINT64_MAX;
	assert_true(world_problems(w) > 0);
	oldest->touched = before;
	world_free(w);
}

static void keys_that_changed_in_the_arena_are_noticed(void **state)
{
	struct world *w = busy(KVT_POLICY_LRU);
	uint32_t changed = 0;

	(void)state;
	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		struct kvt_node *node = &w->core->nodes[id];
		uint32_t *keys = kvt_keys_at(w->core, node->first_slot);

		if (!(node->flags & KVT_NODE_LIVE) || !node->n_slots ||
		    (node->flags & KVT_NODE_DETACHED))
			continue;
		for (uint32_t i = 0; i < w->ps; i++, changed++) {
			keys[i] ^= 0x100;
			assert_true(world_problems(w) > 0);
			keys[i] ^= 0x100;
		}
	}
	assert_true(changed > 8);
	world_free(w);
}

static void count_problem(void *context, const char *text)
{
	assert_true(strlen(text) > 10);
	++*(uint32_t *)context;
}

static void each_finding_has_a_sentence(void **state)
{
	struct world *w = busy(KVT_POLICY_LRU);
	uint32_t said = 0, found;

	(void)state;
	w->core->count->free_pages++;
	found = kvt_core_audit(w->core, count_problem, &said);
	assert_int_equal(said, found);
	assert_true(found >= 1);
	assert_false(kvt_core_counters_ok(w->core));
	w->core->count->free_pages--;
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(every_change_is_noticed),
		CASE(an_order_that_is_wrong_is_noticed),
		CASE(keys_that_changed_in_the_arena_are_noticed),
		CASE(each_finding_has_a_sentence),
	};

	return RUN_CASES(tests);
}
