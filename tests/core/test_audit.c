/* SPDX-License-Identifier: Apache-2.0 */

/* The audit finds damage.
 *
 * Every word of every record of a busy core is changed, one at a time. Each change must be found,
 * unless nothing can be compared with this word. Then a table of corruptions that change several
 * words so that they agree with each other, as an operation would that forgets a step. */

#include "daemon/core/records.h"
#include "kvtrunk_wire_control.h"
#include "tests/core/world.h"

#include <stdio.h>
#include <stdlib.h>

/** Let a BEGIN wait for what another session computes. */
static void wait_for(struct client *client, uint32_t space, struct keys keys, uint32_t ttl_ms)
{
	struct kvt_sqe sqe = {
		.op = KVT_OP_BEGIN, .flags = KVT_F_WAIT, .namespace_id = space, .n_keys = keys.n,
		.list_capacity = keys.n / client->world->ps + 1, .ttl_ms = ttl_ms,
	};

	memcpy(client->keys, keys.at, keys.n * sizeof(uint32_t));
	assert_true(submit(client, &sqe).deferred);
}

/** A core with some of everything: locks, announced and kept pages, a detached subtree under a lock
 * and one that waits for reclaim, deferred operations, waiting BEGINs, expiry, a dead session, two
 * uids. */
static struct world *busy(uint32_t policy)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 2, .n_pages = 140, .max_nodes = 40, .policy = policy,
		.max_sessions = 6, .n_leases = 14, .n_pending = 8, .max_namespaces = 6 });
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	struct client *d = client_of(w, 7);
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
	kvt_core_remove(w->core, other, 0, range(1, 4).at, 4, w->now_ns, &(bool){ false });
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
	space_open(d, "ns");
	space_open(d, "third");
	begin(a, ns, range(500, 519), 0, 0);
	wait_for(b, ns, range(500, 519), 1000);
	wait_for(d, ns, range(500, 519), 2000);
	remove_prefix(a, ns, range(400, 401)); /* waits for reclaim */
	world_audit(w);
	return w;
}

/** The same after a RESET: everything is of an earlier epoch and waits for background work. */
static struct world *stale(uint32_t policy)
{
	struct world *w = busy(policy);

	reset(&w->clients[0]);
	insert(&w->clients[1], space_open(&w->clients[1], "ns"), range(600, 603));
	world_audit(w);
	return w;
}

struct change {
	struct world *world;
	const char *what;
	uint32_t tried, missed;
};

/** Flip bits of one word, audit, put it back. `bits`: those that an audit can tell. */
static void change(struct change *change, uint32_t *word, const char *field, uint32_t at,
		   uint32_t bits)
{
	uint32_t before = *word;

	for (uint32_t bit = 0; bit <= 32; bit++) {
		uint32_t flip = bit < 32 ? 1u << bit : UINT32_MAX;

		if (!(flip & bits) || (bit == 32 && bits != UINT32_MAX))
			continue;
		*word = before ^ flip;
		change->tried++;
		if (world_problems(change->world) == 0) {
			change->missed++;
			print_error("%s[%u].%s: %x for %x is not noticed\n", change->what, at,
				    field, *word, before);
		}
		*word = before;
	}
}

#define CHANGE_BITS(record_, field_, bits_, at_, skip_)                                           \
	change(&c, (uint32_t *)(void *)&(record_)->field_, #field_, at_, (skip_) ? 0 : (bits_))
#define CHANGE(record_, field_, at_, skip_)                                                       \
	CHANGE_BITS(record_, field_, UINT32_MAX, at_, skip_)

static void changes_of_nodes(struct world *w)
{
	struct change c = { w, "node", 0, 0 };

	for (uint32_t id = 1; id < w->config.max_nodes; id++) {
		struct kvt_node *node = &w->core->nodes[id];
		bool live = node->flags & KVT_NODE_LIVE;

		/* Nothing else says why a prefix was removed. */
		CHANGE_BITS(node, flags, node->flags & KVT_NODE_REMOVED ?
			    ~(uint32_t)KVT_NODE_DAMAGED : UINT32_MAX, id, false);
		CHANGE_BITS(node, version, 1, id, !live);
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
		CHANGE(node, older, id, !live || !kvt_node_listed(node));
		CHANGE(node, younger, id, !live);
		CHANGE(node, heap_at, id, !live);
		CHANGE(node, expiry_at, id, !live);
		CHANGE(node, tag, id, !live || !node->parent ||
		       (node->flags & KVT_NODE_DETACHED));
	}
	assert_int_equal(c.missed, 0);
	assert_true(c.tried > 1000);
}

/* Nothing tells what is in front of a detached top that has lost its parent. */
static bool is_top(const struct kvt_core *core, uint32_t page)
{
	uint32_t slot = core->pages[page].slot;

	for (uint32_t id = 1; id < core->config.max_nodes; id++)
		if (kvt_node_live(core, id) && core->nodes[id].first_slot == slot)
			return core->nodes[id].parent == KVT_NONE;
	return false;
}

static void changes_of_pages(struct world *w)
{
	struct change c = { w, "page", 0, 0 };

	for (uint32_t page = 1; page < w->config.n_pages; page++) {
		struct kvt_page_record *record = &w->core->pages[page];
		struct kvt_owner_record *owner = &w->core->owners[page];
		bool private = record->state == KVT_PAGE_PRIVATE;
		bool quarantined = record->state == KVT_PAGE_QUARANTINE;

		/* The sealer is a fact: any is right. */
		change(&c, (uint32_t *)(void *)record + 1, "state", page, 0xff);
		CHANGE(record, slot, page, private || quarantined);
		CHANGE(record, parent, page, record->state != KVT_PAGE_CACHED ||
		       is_top(w->core, page));
		CHANGE(owner, session, page, !private && !quarantined);
		CHANGE(owner, lease, page, !private);
		CHANGE(owner, next, page, record->state == KVT_PAGE_CACHED);
		CHANGE(owner, prev, page, !quarantined && !(private && !owner->lease));
	}
	for (uint32_t slot = 1; slot < w->config.n_slots; slot++)
		if (w->core->slot_pages[slot])
			change(&c, &w->core->slot_pages[slot], "slot_pages", slot, UINT32_MAX);
	assert_int_equal(c.missed, 0);
	assert_true(c.tried > 1000);
}

static void changes_of_leases_and_sessions(struct world *w)
{
	struct change c = { w, "lease", 0, 0 };

	for (uint32_t i = 1; i <= w->config.n_leases; i++) {
		struct kvt_lease_record *lease = &w->core->leases[i];
		bool live = lease->kind != KVT_LEASE_FREE;

		change(&c, (uint32_t *)(void *)lease, "kind", i,
		       lease->kind == KVT_LEASE_MATCH ? 0 : 0xffff);
		CHANGE(lease, point, i, !live);
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
		CHANGE_BITS(lease, done, 0xffff0000, i, !live);
		CHANGE_BITS(lease, known, 0xffff0000, i, !live);
		CHANGE_BITS(lease, computed, 0xffff0000, i, !live);
		CHANGE(lease, epoch, i, !live || lease->epoch != w->core->arena->epoch);
		CHANGE(lease, n_pending, i, !live);
	}
	c.what = "session";
	for (uint32_t i = 1; i <= w->config.max_sessions; i++) {
		struct kvt_session_record *session = &w->core->sessions[i];

		CHANGE(session, n_leases, i, false);
		CHANGE(session, n_private, i, false);
		CHANGE(session, n_quarantined, i, false);
		CHANGE(session, n_waiters, i, false);
		CHANGE(session, first_lease, i, false);
		CHANGE(session, last_lease, i, false);
		CHANGE(session, first_page, i, false);
		CHANGE(session, first_quarantined, i, false);
		CHANGE(session, first_pending, i, false);
		CHANGE(session, last_pending, i, !session->n_pending);
		CHANGE(session, n_pending, i, false);
		CHANGE_BITS(w->core, opened[i * w->core->opened_words],
			    (1u << w->config.max_namespaces) - 2, i, false);
	}
	c.what = "pending";
	for (uint32_t i = 1; i <= w->config.n_pending; i++) {
		struct kvt_pending_record *pending = &w->core->pending[i];

		CHANGE(pending, session, i, false);
		CHANGE(pending, next, i, false);
		CHANGE_BITS(pending, lease,
			    pending->sqe.op == KVT_OP_BEGIN ? 0xffff0000 : UINT32_MAX, i,
			    !pending->session);
		CHANGE(pending, prev, i, pending->sqe.op != KVT_OP_BEGIN);
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
	CHANGE(core, n_roots, 0, false);
	CHANGE(core, stale_roots, 0, false);
	CHANGE(core, epoch_leases, 0, false);
	CHANGE(core, cut_leases, 0, false);
	CHANGE(core, dying, 0, false);
	CHANGE(core, open_sessions, 0, false);
	CHANGE(core, first_waiter, 0, false);
	CHANGE(core, last_waiter, 0, false);
	CHANGE(core, n_waiters, 0, false);
	CHANGE(core, slots.free_slots, 0, false);
	for (uint32_t i = 0; i < core->heap.count; i++)
		change(&c, &core->heap.nodes[i], "heap", i, UINT32_MAX);
	for (uint32_t i = 0; i < core->expiry.count; i++)
		change(&c, &core->expiry.nodes[i], "expiry", i, UINT32_MAX);
	for (uint32_t i = 0; i < core->detached_count; i++)
		CHANGE(core, detached[(core->detached_head + i) % w->config.max_nodes], i, false);
	for (uint32_t i = 0; i < KVT_BINS / 32; i++)
		change(&c, (uint32_t *)core->slots.bin_used + i, "bin_used", i, UINT32_MAX);
	for (uint32_t i = 0; i < KVT_BINS; i++)
		change(&c, &core->slots.bins[i], "bins", i, UINT32_MAX);
	for (uint32_t at = 1; at < w->config.n_slots; at++) {
		bool free_head = kvt_bit_get(core->slots.free_head, at);

		change(&c, &core->slots.length[at], "length", at, free_head ? UINT32_MAX : 0);
		change(&c, &core->slots.first[at], "first", at,
		       kvt_bit_get(core->slots.free_tail, at) ? UINT32_MAX : 0);
		change(&c, &core->slots.next[at], "next", at, free_head ? UINT32_MAX : 0);
		change(&c, &core->slots.prev[at], "prev", at, free_head ? UINT32_MAX : 0);
		change(&c, &core->slots.run[at], "run", at,
		       kvt_bit_get(core->slots.run_head, at) ? UINT32_MAX : 0);
	}
	for (uint32_t i = 0; i <= core->bucket_mask; i++)
		change(&c, (uint32_t *)(void *)&core->buckets[i], "bucket", i, UINT32_MAX);
	for (uint32_t i = 0; i < w->config.n_slots / 32; i++) {
		change(&c, (uint32_t *)core->slots.free_head + i, "free_head", i, UINT32_MAX);
		change(&c, (uint32_t *)core->slots.free_tail + i, "free_tail", i, UINT32_MAX);
		change(&c, (uint32_t *)core->slots.run_head + i, "run_head", i, UINT32_MAX);
	}
	change(&c, (uint32_t *)core->page_mark, "page_mark", 0, UINT32_MAX);
	assert_int_equal(c.missed, 0);
}

TEST(every_change_is_noticed)
{
	static const uint32_t policies[] = { KVT_POLICY_LRU, KVT_POLICY_LFU };

	for (int i = 0; i < 4; i++) {
		struct world *w = i < 2 ? busy(policies[i]) : stale(policies[i - 2]);

		changes_of_nodes(w);
		changes_of_pages(w);
		changes_of_leases_and_sessions(w);
		changes_of_namespaces_and_counters(w);
		changes_of_the_core_itself(w);
		world_free(w);
	}
}

/* ---- corruptions whose words agree with each other */

static struct corruption {
	const char *name;
	bool (*apply)(struct kvt_core *core); /* false: the core has nothing of the kind */
} corruptions[64];
static size_t n_corruptions;

#define CORRUPTION(name_)                                                                         \
	static bool name_(struct kvt_core *core);                                                 \
	static __attribute__((constructor)) void add_##name_(void)                                \
	{                                                                                         \
		KVT_ASSERT(n_corruptions < 64);                                                   \
		corruptions[n_corruptions++] = (struct corruption){ #name_, name_ };              \
	}                                                                                         \
	static bool name_(struct kvt_core *core)

/** The next node after `id` with these flags and no others, or KVT_NONE. */
static uint32_t node_with(const struct kvt_core *core, uint32_t id, uint32_t flags)
{
	while (++id < core->config.max_nodes)
		if (core->nodes[id].flags == flags)
			return id;
	return KVT_NONE;
}

/** The next evictable leaf after `id`. */
static uint32_t leaf_after(const struct kvt_core *core, uint32_t id)
{
	do
		id = node_with(core, id, KVT_NODE_LIVE);
	while (id != KVT_NONE && (core->nodes[id].lock_ref || core->nodes[id].n_children));
	return id;
}

static uint32_t lease_with(const struct kvt_core *core, uint32_t kind, bool kept)
{
	for (uint32_t id = 1; id <= core->config.n_leases; id++)
		if (core->leases[id].kind == kind && (!kept || core->leases[id].first_kept))
			return id;
	return KVT_NONE;
}

static uint32_t session_in(const struct kvt_core *core, uint32_t state)
{
	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		if (core->sessions[id].state == state)
			return id;
	return KVT_NONE;
}

static uint32_t cached_slot(const struct kvt_core *core, uint32_t after)
{
	while (++after < core->config.n_slots)
		if (core->slot_pages[after])
			return after;
	return KVT_NONE;
}

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t was = *a;

	*a = *b;
	*b = was;
}

CORRUPTION(a_leaf_leaves_the_recency_list)
{
	kvt_recency_remove(core, leaf_after(core, 0));
	return true;
}

CORRUPTION(a_locked_node_enters_the_recency_list)
{
	kvt_recency_add(core, core->leases[lease_with(core, KVT_LEASE_BEGIN, false)].node);
	return true;
}

CORRUPTION(the_oldest_node_becomes_the_youngest)
{
	uint32_t oldest = core->oldest;

	kvt_recency_remove(core, oldest);
	kvt_recency_add(core, oldest);
	return true;
}

CORRUPTION(a_leaf_leaves_the_policy_heap)
{
	if (core->heap.count)
		kvt_heap_remove(core, &core->heap, leaf_after(core, 0));
	return core->heap.count;
}

CORRUPTION(a_locked_node_enters_the_policy_heap)
{
	if (core->heap.count)
		kvt_heap_update(core, &core->heap,
				core->leases[lease_with(core, KVT_LEASE_BEGIN, false)].node);
	return core->heap.count;
}

CORRUPTION(two_places_of_the_policy_heap_are_exchanged)
{
	uint32_t *nodes = core->heap.nodes;

	if (core->heap.count < 2 || core->nodes[nodes[0]].touched == core->nodes[nodes[1]].touched)
		return false;
	swap(&nodes[0], &nodes[1]);
	swap(&core->nodes[nodes[0]].heap_at, &core->nodes[nodes[1]].heap_at);
	return true;
}

/* Of an earlier epoch, a node need not expire. */
CORRUPTION(a_node_leaves_the_expiry_heap)
{
	if (core->stale_roots)
		return false;
	kvt_heap_remove(core, &core->expiry, core->expiry.nodes[0]);
	return true;
}

CORRUPTION(a_node_that_never_expires_enters_the_expiry_heap)
{
	uint32_t id = leaf_after(core, 0);

	while (core->nodes[id].expiry_ns != KVT_NEVER)
		id = leaf_after(core, id);
	kvt_heap_update(core, &core->expiry, id);
	return true;
}

CORRUPTION(two_places_of_the_expiry_heap_are_exchanged)
{
	uint32_t *nodes = core->expiry.nodes;

	if (core->expiry.count < 2)
		return false;
	swap(&nodes[0], &nodes[1]);
	swap(&core->nodes[nodes[0]].expiry_at, &core->nodes[nodes[1]].expiry_at);
	return true;
}

CORRUPTION(a_node_expires_later)
{
	if (core->expiry.count > 1)
		core->nodes[core->expiry.nodes[0]].expiry_ns = KVT_NEVER - 1;
	return core->expiry.count > 1;
}

CORRUPTION(a_child_leaves_the_index)
{
	kvt_index_remove(core, leaf_after(core, 0));
	return true;
}

CORRUPTION(a_child_is_in_the_index_twice)
{
	kvt_index_add(core, leaf_after(core, 0));
	return true;
}

CORRUPTION(a_child_is_in_the_index_out_of_reach)
{
	uint32_t id = leaf_after(core, 0), at = core->nodes[id].tag & core->bucket_mask;
	kvt_bucket bucket = (kvt_bucket)core->nodes[id].tag << 32 | id;

	kvt_index_remove(core, id);
	while (core->buckets[(at - 1) & core->bucket_mask] || core->buckets[at])
		at = (at - 1) & core->bucket_mask;
	core->buckets[(at - 1) & core->bucket_mask] = bucket;
	return true;
}

CORRUPTION(a_child_gets_the_keys_of_its_sibling)
{
	for (uint32_t id = leaf_after(core, 0); id != KVT_NONE; id = leaf_after(core, id)) {
		const struct kvt_node *node = &core->nodes[id];

		if (node->next_sibling == KVT_NONE)
			continue;
		kvt_index_remove(core, id);
		memcpy(kvt_keys_at(core, node->first_slot),
		       kvt_keys_at(core, core->nodes[node->next_sibling].first_slot),
		       core->ps * sizeof(uint32_t));
		kvt_index_add(core, id);
		return true;
	}
	return false;
}

CORRUPTION(a_child_has_another_parent)
{
	uint32_t id = leaf_after(core, 0);

	core->nodes[id].parent = core->nodes[id].parent == 1 ? 2 : 1;
	return true;
}

CORRUPTION(a_child_is_not_linked)
{
	for (uint32_t id = leaf_after(core, 0); id != KVT_NONE; id = leaf_after(core, id)) {
		struct kvt_node *node = &core->nodes[id], *up = &core->nodes[node->parent];

		if (up->n_children < 2 || up->first_child != id)
			continue;
		up->first_child = node->next_sibling;
		core->nodes[node->next_sibling].prev_sibling = KVT_NONE;
		up->n_children--;
		return true;
	}
	return false;
}

CORRUPTION(a_detached_node_waits_no_more)
{
	uint32_t id = core->detached[core->detached_head];

	kvt_detached_forget(core, 0);
	core->nodes[id].flags &= ~(uint32_t)KVT_NODE_QUEUED;
	return true;
}

CORRUPTION(a_detached_node_waits_twice)
{
	uint32_t id = core->detached[core->detached_head];

	core->nodes[id].flags &= ~(uint32_t)KVT_NODE_QUEUED;
	kvt_detached_queue(core, id);
	return true;
}

CORRUPTION(two_slots_exchange_their_pages)
{
	uint32_t a = cached_slot(core, 0), b = cached_slot(core, a);

	swap(&core->slot_pages[a], &core->slot_pages[b]);
	return true;
}

CORRUPTION(a_page_is_in_two_slots)
{
	uint32_t a = cached_slot(core, 0), b = cached_slot(core, a);

	core->slot_pages[a] = core->slot_pages[b];
	return true;
}

CORRUPTION(a_cached_page_is_in_no_slot)
{
	uint32_t page = core->free_page;

	core->free_page = core->owners[page].next;
	core->pages[page] = (struct kvt_page_record){ .slot = 1, .state = KVT_PAGE_CACHED };
	core->slot_pages[1] = page;
	core->count->free_pages--;
	core->count->cached_pages++;
	core->count->evictable_pages++;
	return true;
}

CORRUPTION(a_page_lies_beyond_the_seal)
{
	for (uint32_t id = node_with(core, 0, KVT_NODE_LIVE); id != KVT_NONE;
	     id = node_with(core, id, KVT_NODE_LIVE)) {
		const struct kvt_node *node = &core->nodes[id];

		if (node->sealed == node->n_slots)
			continue;
		core->slot_pages[node->first_slot + node->sealed] = core->free_page;
		return true;
	}
	return false;
}

CORRUPTION(a_node_is_sealed_below_announced_pages)
{
	struct kvt_node *node = &core->nodes[leaf_after(core, 0)];
	struct kvt_node *up = &core->nodes[node->parent];

	if (up->sealed == 0)
		return false;
	up->sealed--;
	return true;
}

CORRUPTION(a_free_page_is_lost)
{
	core->free_page = core->owners[core->free_page].next;
	core->count->free_pages--;
	return true;
}

CORRUPTION(a_free_page_has_a_slot)
{
	core->pages[core->free_page].slot = 1;
	return true;
}

CORRUPTION(a_free_node_is_lost)
{
	core->free_nodes.head = core->nodes[core->free_nodes.head].next_sibling;
	core->free_nodes.count--;
	return true;
}

CORRUPTION(a_free_node_has_slots)
{
	core->nodes[core->free_nodes.head].n_slots = 1;
	return true;
}

CORRUPTION(a_free_lease_is_lost)
{
	core->free_leases.head = core->leases[core->free_leases.head].next_lease;
	core->free_leases.count--;
	return true;
}

CORRUPTION(a_free_deferred_operation_is_lost)
{
	core->free_pending.head = core->pending[core->free_pending.head].next;
	core->free_pending.count--;
	return true;
}

CORRUPTION(a_free_extent_is_lost)
{
	uint32_t extent = kvt_slots_find(&core->slots, 1);

	kvt_slots_take_at(&core->slots, extent, extent, core->slots.length[extent]);
	return true;
}

CORRUPTION(two_free_extents_touch)
{
	struct kvt_slots *slots = &core->slots;
	uint32_t extent = kvt_slots_find(slots, 4), n = slots->length[extent];

	kvt_slots_take_at(slots, extent, extent, n);
	kvt_slots_give(slots, extent, 2);
	kvt_bit_clear(slots->free_tail, extent + 1);
	kvt_slots_give(slots, extent + 2, n - 2);
	kvt_bit_set(slots->free_tail, extent + 1);
	return true;
}

CORRUPTION(a_free_extent_is_a_run)
{
	uint32_t extent = kvt_slots_find(&core->slots, 1);

	kvt_slots_take_at(&core->slots, extent, extent, core->slots.length[extent]);
	kvt_slots_set_run(&core->slots, extent, leaf_after(core, 0));
	return true;
}

CORRUPTION(a_run_has_a_head_inside)
{
	const struct kvt_node *node = &core->nodes[leaf_after(core, 0)];

	kvt_slots_set_run(&core->slots, node->first_slot + 1, leaf_after(core, 0));
	return true;
}

CORRUPTION(a_lease_leaves_its_session)
{
	uint32_t id = lease_with(core, KVT_LEASE_BEGIN, false);
	struct kvt_session_record *session = &core->sessions[core->leases[id].session];

	id = session->first_lease;
	session->first_lease = core->leases[id].next_lease;
	core->leases[session->first_lease].prev_lease = KVT_NONE;
	session->n_leases--;
	return true;
}

CORRUPTION(two_leases_exchange_their_tickets)
{
	uint32_t id = core->sessions[1].first_lease, next = core->leases[id].next_lease;
	uint64_t ticket = core->leases[id].ticket;

	core->leases[id].ticket = core->leases[next].ticket;
	core->leases[next].ticket = ticket;
	return true;
}

CORRUPTION(a_lease_ends_in_a_free_node)
{
	core->leases[lease_with(core, KVT_LEASE_BEGIN, false)].node = core->free_nodes.head;
	return true;
}

CORRUPTION(a_lease_crosses_another_path)
{
	core->leases[lease_with(core, KVT_LEASE_MATCH, false)].node = leaf_after(core, 0);
	return true;
}

CORRUPTION(a_lease_has_pages_and_no_path)
{
	for (uint32_t id = 1; id <= core->config.n_leases; id++) {
		struct kvt_lease_record *lease = &core->leases[id];

		if (lease->kind != KVT_LEASE_BEGIN || lease->done == 0)
			continue;
		for (uint32_t at = lease->node; at != KVT_NONE; at = core->nodes[at].parent)
			core->nodes[at].lock_ref--;
		lease->node = KVT_NONE;
		return true;
	}
	return false;
}

CORRUPTION(a_table_has_a_page_that_is_not_sealed)
{
	for (uint32_t id = 1; id <= core->config.n_leases; id++) {
		struct kvt_lease_record *lease = &core->leases[id];
		const struct kvt_node *node = &core->nodes[lease->node];

		if (lease->kind != KVT_LEASE_BEGIN || node->start + node->sealed != lease->done ||
		    lease->done == lease->path_pages || lease->node == KVT_NONE)
			continue;
		lease->done++;
		return true;
	}
	return false;
}

CORRUPTION(a_path_is_longer_than_its_nodes)
{
	struct kvt_lease_record *lease =
		&core->leases[lease_with(core, KVT_LEASE_MATCH, false)];

	lease->path_pages = core->nodes[lease->node].start + core->nodes[lease->node].n_slots + 1;
	return true;
}

CORRUPTION(a_table_knows_more_than_it_has)
{
	struct kvt_lease_record *lease =
		&core->leases[lease_with(core, KVT_LEASE_BEGIN, false)];

	lease->computed = (lease->done + lease->n_private) * core->ps + 1;
	return true;
}

CORRUPTION(a_private_page_is_lost)
{
	for (uint32_t id = 1; id <= core->config.max_sessions; id++) {
		struct kvt_session_record *session = &core->sessions[id];
		uint32_t page = session->first_page;

		if (page == KVT_NONE)
			continue;
		session->first_page = core->owners[page].next;
		core->owners[core->owners[page].next].prev = KVT_NONE;
		session->n_private--;
		return true;
	}
	return false;
}

CORRUPTION(a_kept_page_is_lost)
{
	struct kvt_lease_record *lease = &core->leases[lease_with(core, KVT_LEASE_BEGIN, true)];

	lease->first_kept = core->owners[lease->first_kept].next;
	lease->n_kept--;
	core->sessions[lease->session].n_private--;
	return true;
}

CORRUPTION(a_page_leaves_quarantine_alone)
{
	struct kvt_session_record *session = &core->sessions[session_in(core, KVT_SESSION_DEAD)];
	uint32_t page = session->first_quarantined;

	session->first_quarantined = core->owners[page].next;
	core->owners[session->first_quarantined].prev = KVT_NONE;
	session->n_quarantined--;
	return true;
}

CORRUPTION(a_private_page_has_a_free_session)
{
	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		if (core->pages[page].state != KVT_PAGE_PRIVATE)
			continue;
		core->owners[page].session = session_in(core, KVT_SESSION_FREE);
		return true;
	}
	return false;
}

CORRUPTION(a_namespace_lives_without_an_opener)
{
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		if (core->namespaces[i].flags)
			continue;
		core->namespaces[i].flags = KVT_NAMESPACE_USED;
		core->count->live_namespaces++;
		return true;
	}
	return false;
}

CORRUPTION(a_namespace_in_use_is_free)
{
	core->namespaces[1].flags = 0;
	core->count->live_namespaces--;
	return true;
}

CORRUPTION(a_free_session_is_open)
{
	core->sessions[session_in(core, KVT_SESSION_FREE)].state = KVT_SESSION_OPEN;
	core->count->live_sessions++;
	return true;
}

CORRUPTION(an_open_session_is_dying)
{
	core->sessions[session_in(core, KVT_SESSION_OPEN)].state = KVT_SESSION_DYING;
	core->dying++;
	return true;
}

CORRUPTION(a_dying_session_is_not_counted)
{
	core->sessions[session_in(core, KVT_SESSION_DEAD)].state = KVT_SESSION_DYING;
	return true;
}

CORRUPTION(a_waiter_leaves_the_queue)
{
	uint32_t id = core->first_waiter;

	core->first_waiter = core->pending[id].next;
	core->pending[core->first_waiter].prev = KVT_NONE;
	core->n_waiters--;
	core->sessions[core->pending[id].session].n_waiters--;
	return true;
}

CORRUPTION(two_waiters_exchange_their_places)
{
	uint64_t token = core->pending[core->first_waiter].token;

	if (core->n_waiters < 2)
		return false;
	core->pending[core->first_waiter].token = core->pending[core->last_waiter].token;
	core->pending[core->last_waiter].token = token;
	return true;
}

CORRUPTION(a_waiter_is_no_BEGIN)
{
	core->pending[core->first_waiter].sqe.op = KVT_OP_COMMIT;
	return true;
}

CORRUPTION(a_waiter_is_of_a_session_that_is_over)
{
	struct kvt_pending_record *waiter = &core->pending[core->first_waiter];

	core->sessions[waiter->session].n_waiters--;
	waiter->session = session_in(core, KVT_SESSION_DEAD);
	core->sessions[waiter->session].n_waiters++;
	return true;
}

CORRUPTION(a_deadline_comes_before_the_next_wake)
{
	core->pending[core->first_waiter].deadline_ns = 0;
	return core->wake_at_ns > 0 && !core->wake_due;
}

CORRUPTION(an_operation_waits_for_no_session)
{
	struct kvt_session_record *session = &core->sessions[1];

	session->first_pending = core->pending[session->first_pending].next;
	session->n_pending--;
	return true;
}

CORRUPTION(a_node_is_of_another_namespace)
{
	uint32_t id = leaf_after(core, 0), from = core->nodes[id].namespace_id;
	uint32_t to = from == 1 ? 2 : 1, n = core->nodes[id].sealed;

	core->nodes[id].namespace_id = to;
	core->namespaces[from].nodes--, core->namespaces[to].nodes++;
	core->namespaces[from].cached_pages -= n, core->namespaces[to].cached_pages += n;
	core->namespaces[from].evictable_pages -= n, core->namespaces[to].evictable_pages += n;
	return true;
}

CORRUPTION(a_root_is_of_an_earlier_epoch)
{
	uint32_t root = KVT_NONE;

	for (uint32_t i = 1; i < core->config.max_namespaces && root == KVT_NONE; i++)
		root = core->namespaces[i].root;
	core->nodes[root].epoch ^= 1u << 20;
	return core->stale_roots == 0;
}

/** Copy what is all of a core into `copy`, or back. */
static void copy_world(struct world *w, char *copy, bool back)
{
	const struct {
		void *memory;
		uint64_t bytes;
	} pieces[] = {
		{ w->arena, w->sizes.arena_bytes },
		{ w->ledger, w->sizes.ledger_bytes },
		{ w->scratch, w->sizes.scratch_bytes },
	};

	for (int i = 0; i < 3; copy += pieces[i++].bytes)
		memcpy(back ? pieces[i].memory : copy, back ? copy : pieces[i].memory,
		       pieces[i].bytes);
}

static uint32_t corrupt(struct world *w, uint32_t *applied)
{
	char *copy = malloc(w->sizes.arena_bytes + w->sizes.ledger_bytes +
			    w->sizes.scratch_bytes);
	uint32_t missed = 0;

	assert_non_null(copy);
	copy_world(w, copy, false);
	for (size_t i = 0; i < n_corruptions; i++, copy_world(w, copy, true)) {
		if (!corruptions[i].apply(w->core))
			continue;
		applied[i]++;
		if (world_problems(w) > 0)
			continue;
		missed++;
		print_error("%s: is not noticed\n", corruptions[i].name);
	}
	free(copy);
	world_free(w);
	return missed;
}

TEST(corruptions_that_agree_with_themselves_are_noticed)
{
	uint32_t applied[64] = { 0 }, missed = 0;

	missed += corrupt(busy(KVT_POLICY_LRU), applied);
	missed += corrupt(busy(KVT_POLICY_LFU), applied);
	missed += corrupt(stale(KVT_POLICY_LRU), applied);
	for (size_t i = 0; i < n_corruptions; i++)
		if (!applied[i])
			fail_msg("%s: no core has anything of the kind", corruptions[i].name);
	assert_int_equal(missed, 0);
}

/* Recency: a listed child is older than its listed parent, and the list follows `touched`. */
TEST(an_order_that_is_wrong_is_noticed)
{
	struct world *w = busy(KVT_POLICY_LRU);
	struct kvt_node *oldest = &w->core->nodes[w->core->oldest];
	uint64_t before = oldest->touched;

	oldest->touched = UINT64_MAX;
	assert_true(world_problems(w) > 0);
	oldest->touched = before;
}

TEST(keys_that_changed_in_the_arena_are_noticed)
{
	struct world *w = busy(KVT_POLICY_LRU);
	uint32_t changed = 0;

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
}

static void count_problem(void *context, const char *text)
{
	assert_true(strlen(text) > 10);
	++*(uint32_t *)context;
}

TEST(each_finding_has_a_sentence)
{
	struct world *w = busy(KVT_POLICY_LRU);
	uint32_t said = 0, found;

	w->core->count->free_pages++;
	found = kvt_core_audit(w->core, count_problem, &said);
	assert_int_equal(said, found);
	assert_true(found >= 1);
	assert_false(kvt_core_counters_ok(w->core));
	w->core->count->free_pages--;
}

/* The audit compares lists by marks. A mark left behind by one would be read by the next. */
TEST(a_list_that_lacks_a_record_is_one_finding)
{
	struct world *w = busy(KVT_POLICY_LRU);
	struct kvt_core *core = w->core;
	uint32_t *first = &core->nodes[core->nodes[leaf_after(core, 0)].parent].first_child;
	uint32_t before = *first, found;

	*first = KVT_NONE;
	found = world_problems(w);
	*first = before;
	assert_int_equal(found, 1);
}
