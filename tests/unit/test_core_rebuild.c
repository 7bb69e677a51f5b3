/* SPDX-License-Identifier: Apache-2.0 */

/* What kvtrunk_abi.h calls derived really follows from the primary facts: after random operations
 * all of it is wiped and made again from node records, slots, namespaces, sessions, leases and page
 * owners alone. Then the audit must be clean, the recency list must be the same, and the core must
 * go on as its untouched twin does. */

#include "tests/unit/core_world.h"

#include <stdlib.h>

/* ---- forgetting */

static void forget_nodes(struct kvt_core *core)
{
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		struct kvt_node *node = &core->nodes[id];

		node->flags &= KVT_NODE_LIVE | KVT_NODE_ROOT | KVT_NODE_DETACHED;
		node->first_child = node->next_sibling = node->prev_sibling = KVT_NONE;
		node->n_children = node->lock_ref = node->tag = 0;
		node->older = node->younger = KVT_NONE;
		node->heap_at = node->expiry_at = 0;
	}
	memset(core->buckets, 0, (core->bucket_mask + 1ull) * sizeof(*core->buckets));
	core->free_nodes = (struct kvt_fifo){ 0 };
	core->oldest = core->youngest = KVT_NONE;
	core->evictable_nodes = core->heap.count = core->expiry.count = 0;
	core->detached_count = core->detached_head = core->reclaim_cursor = 0;
	core->reclaim_again = false;
	core->compact_count = 0;
}

static void forget_slots(struct kvt_slots *slots)
{
	uint32_t words = slots->n_slots / 64 + 1;

	memset(slots->length, 0x55, slots->n_slots * sizeof(uint32_t));
	memset(slots->first, 0x55, slots->n_slots * sizeof(uint32_t));
	memset(slots->next, 0x55, slots->n_slots * sizeof(uint32_t));
	memset(slots->prev, 0x55, slots->n_slots * sizeof(uint32_t));
	memset(slots->run, 0x55, slots->n_slots * sizeof(uint32_t));
	memset(slots->free_head, 0, words * sizeof(uint64_t));
	memset(slots->free_tail, 0, words * sizeof(uint64_t));
	memset(slots->run_head, 0, words * sizeof(uint64_t));
	memset(slots->bins, 0, sizeof(slots->bins));
	memset(slots->bin_used, 0, sizeof(slots->bin_used));
	slots->free_slots = 0;
}

static void forget_ledger(struct kvt_core *core)
{
	for (uint32_t i = 1; i <= core->config.n_leases; i++) {
		struct kvt_lease_record *lease = &core->leases[i];

		lease->next_lease = lease->prev_lease = KVT_NONE;
		lease->n_private = lease->n_kept = lease->n_pending = 0;
	}
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		struct kvt_session_record *session = &core->sessions[i];

		session->n_leases = session->n_private = session->n_quarantined = 0;
		session->first_lease = session->first_page = session->first_quarantined = 0;
		session->first_pending = session->last_pending = session->n_pending = 0;
	}
	for (uint32_t i = 1; i <= core->config.n_pending; i++)
		core->pending[i].next = KVT_NONE;
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		struct kvt_namespace_record *space = &core->namespaces[i];

		space->nodes = space->cached_pages = 0;
		space->evictable_pages = space->protected_pages = 0;
	}
	/* The lists of leases' pages are primary; free and loose pages are found by their owner. */
	for (uint32_t page = 1; page < core->config.n_pages; page++)
		if (core->owners[page].lease == KVT_NONE)
			core->owners[page].next = core->owners[page].prev = KVT_NONE;
	memset(core->pages + 1, 0, (core->config.n_pages - 1ull) * sizeof(*core->pages));
	core->free_page = KVT_NONE;
	core->free_leases = core->free_pending = (struct kvt_fifo){ 0 };
	core->dying = 0;
	memset(core->count, 0, offsetof(struct kvt_counters, operations));
}

/* ---- and making again */

static void push(struct kvt_fifo *fifo, uint32_t *next_of_tail, uint32_t id)
{
	if (fifo->count++ == 0)
		fifo->head = id;
	else
		*next_of_tail = id;
	fifo->tail = id;
}

static void link_nodes(struct kvt_core *core)
{
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		struct kvt_node *node = &core->nodes[id], *up = &core->nodes[node->parent];

		if (!(node->flags & KVT_NODE_LIVE)) {
			push(&core->free_nodes, &core->nodes[core->free_nodes.tail].next_sibling,
			     id);
			continue;
		}
		core->count->live_nodes++;
		core->namespaces[node->namespace_id].nodes++;
		if (node->n_slots)
			kvt_slots_set_run(&core->slots, node->first_slot, id);
		if (node->flags & (KVT_NODE_ROOT | KVT_NODE_DETACHED))
			continue;
		node->next_sibling = up->first_child;
		if (up->first_child)
			core->nodes[up->first_child].prev_sibling = id;
		up->first_child = id;
		up->n_children++;
		kvt_index_add(core, id);
	}
}

/** What is in no run is free. */
static void link_slots(struct kvt_core *core)
{
	uint32_t at = 1;

	while (at < core->config.n_slots) {
		if (kvt_bit_get(core->slots.run_head, at)) {
			at += core->nodes[core->slots.run[at]].n_slots;
			continue;
		}
		kvt_slots_give(&core->slots, at, 1);
		at++;
	}
}

static void count_locks(struct kvt_core *core)
{
	for (uint32_t i = 1; i <= core->config.n_leases; i++)
		if (kvt_lease_alive(core, i))
			for (uint32_t id = core->leases[i].node; id; id = core->nodes[id].parent)
				core->nodes[id].lock_ref++;
}

static void count_node(struct kvt_core *core, const struct kvt_node *node)
{
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	bool locked = node->lock_ref > 0;

	core->count->locked_nodes += locked;
	space->cached_pages += node->sealed;
	core->count->cached_pages += node->sealed;
	*(locked ? &space->protected_pages : &space->evictable_pages) += node->sealed;
	*(locked ? &core->count->protected_pages : &core->count->evictable_pages) += node->sealed;
	core->evictable_nodes += !locked && !(node->flags & KVT_NODE_ROOT);
	for (uint32_t i = 0; i < node->sealed; i++) {
		uint32_t slot = node->first_slot + i;

		core->pages[core->slot_pages[slot]] =
			(struct kvt_page_record){ slot, KVT_PAGE_CACHED };
	}
}

static struct kvt_core *sorting;

/* A touch is of a path, deepest first. */
static int by_recency(const void *a, const void *b)
{
	const struct kvt_node *x = &sorting->nodes[*(const uint32_t *)a];
	const struct kvt_node *y = &sorting->nodes[*(const uint32_t *)b];

	if (x->touched != y->touched)
		return x->touched < y->touched ? -1 : 1;
	return x->start < y->start ? 1 : -1;
}

static void order_nodes(struct kvt_core *core)
{
	uint32_t *list = calloc(core->config.max_nodes, sizeof(*list)), n = 0;

	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		struct kvt_node *node = &core->nodes[id];

		if (!(node->flags & KVT_NODE_LIVE))
			continue;
		count_node(core, node);
		if (node->expiry_ns != KVT_NEVER && !kvt_path_detached(core, id))
			kvt_node_set_expiry(core, id, node->expiry_ns);
		if (node->flags & KVT_NODE_DETACHED)
			kvt_detached_queue(core, id);
		if (!(node->flags & KVT_NODE_ROOT) && node->lock_ref == 0)
			list[n++] = id;
	}
	sorting = core;
	qsort(list, n, sizeof(*list), by_recency);
	for (uint32_t i = 0; i < n; i++) {
		kvt_recency_add(core, list[i]);
		kvt_leaf_check(core, list[i]);
	}
	free(list);
}

static uint32_t count_list(struct kvt_core *core, uint32_t page, uint32_t *ret_last)
{
	uint32_t n = 0, last = KVT_NONE;

	for (; page != KVT_NONE; page = core->owners[page].next, n++)
		last = page;
	if (ret_last)
		*ret_last = last;
	return n;
}

static void link_leases(struct kvt_core *core)
{
	for (uint32_t i = 1; i <= core->config.n_leases; i++) {
		struct kvt_lease_record *lease = &core->leases[i];
		struct kvt_session_record *session = &core->sessions[lease->session];

		if (lease->kind == KVT_LEASE_FREE) {
			push(&core->free_leases, &core->leases[core->free_leases.tail].next_lease,
			     i);
			continue;
		}
		lease->n_private = count_list(core, lease->first_page, &lease->last_page);
		lease->n_kept = count_list(core, lease->first_kept, NULL);
		lease->next_lease = session->first_lease;
		if (session->first_lease)
			core->leases[session->first_lease].prev_lease = i;
		session->first_lease = i;
		session->n_leases++;
		core->count->live_leases++;
	}
}

static void link_pages(struct kvt_core *core)
{
	for (uint32_t page = core->config.n_pages - 1; page > 0; page--) {
		struct kvt_owner_record *owner = &core->owners[page];
		struct kvt_session_record *session = &core->sessions[owner->session];

		if (core->pages[page].state == KVT_PAGE_CACHED)
			continue;
		if (owner->session == KVT_NONE) {
			owner->next = core->free_page;
			core->free_page = page;
			core->count->free_pages++;
		} else if (session->state == KVT_SESSION_DEAD) {
			core->pages[page].state = KVT_PAGE_QUARANTINE;
			kvt_loose_add(core, owner->session, page);
			session->n_quarantined++;
			core->count->quarantined_pages++;
		} else {
			core->pages[page].state = KVT_PAGE_PRIVATE;
			if (owner->lease == KVT_NONE)
				kvt_loose_add(core, owner->session, page);
			session->n_private++;
			core->count->private_pages++;
		}
	}
}

/** In order of their tokens: that is the order of submission. */
static void link_pending(struct kvt_core *core)
{
	uint64_t done = 0;

	for (;;) {
		uint32_t next = KVT_NONE;

		for (uint32_t i = 1; i <= core->config.n_pending; i++)
			if (core->pending[i].session && core->pending[i].token > done &&
			    (!next || core->pending[i].token < core->pending[next].token))
				next = i;
		if (!next)
			break;
		struct kvt_pending_record *pending = &core->pending[next];
		struct kvt_session_record *session = &core->sessions[pending->session];

		done = pending->token;
		if (session->n_pending++ == 0)
			session->first_pending = next;
		else
			core->pending[session->last_pending].next = next;
		session->last_pending = next;
		if (pending->lease)
			core->leases[pending->lease].n_pending++;
	}
	for (uint32_t i = 1; i <= core->config.n_pending; i++)
		if (!core->pending[i].session)
			push(&core->free_pending, &core->pending[core->free_pending.tail].next, i);
}

static void rebuild(struct kvt_core *core)
{
	forget_nodes(core);
	forget_slots(&core->slots);
	forget_ledger(core);
	link_nodes(core);
	link_slots(core);
	count_locks(core);
	order_nodes(core);
	link_leases(core);
	link_pages(core);
	link_pending(core);
	for (uint32_t i = 1; i <= core->config.max_sessions; i++)
		core->count->live_sessions += core->sessions[i].state != KVT_SESSION_FREE;
	for (uint32_t i = 1; i < core->config.max_namespaces; i++)
		core->count->live_namespaces += core->namespaces[i].flags;
}

/* ---- the tests */

static uint32_t read_recency(const struct kvt_core *core, uint32_t *list)
{
	uint32_t n = 0;

	for (uint32_t id = core->oldest; id != KVT_NONE; id = core->nodes[id].younger)
		list[n++] = id;
	return n;
}

/** Random operations of two clients; what they answer goes into a digest. */
static void live(struct world *w, struct client *clients[2], uint32_t ns, uint64_t *random,
		 int steps, uint64_t *digest)
{
	static struct seq *open[2];
	static struct answer held[2];

	for (int step = 0; step < steps; step++) {
		uint32_t who = next_random(random) % 2, keys[14], n = next_random(random) % 14;
		struct client *a = clients[who];
		struct keys query = { keys, n };

		for (uint32_t i = 0; i < n; i++)
			keys[i] = next_random(random) % 2;
		switch (next_random(random) % 8) {
		case 0:
			a->ttl_ms = next_random(random) % 3 * 5;
			*digest = *digest * 31 + insert_flags(a, ns, query, 0).existed;
			break;
		case 1:
			if (held[who].lease)
				unlock(a, held[who]);
			held[who] = match_lock(a, ns, query);
			*digest = *digest * 31 + held[who].matched;
			break;
		case 2:
			if (open[who])
				end(open[who]);
			open[who] = begin(a, ns, query, 4, 0);
			*digest = *digest * 31 + open[who]->a.reusable;
			if (open[who]->a.result < 0)
				open[who] = NULL;
			break;
		case 3:
			if (open[who])
				commit(open[who], open[who]->n_keys, NO_KEYS, 0);
			break;
		case 4:
			remove_prefix(a, ns, query.n > 8 ? query : NO_KEYS);
			break;
		case 5:
			*digest = *digest * 31 + alloc(a, n % 3).evicted;
			if (kvt_core_session(w->core, a->session)->first_page)
				give(a, &w->core->sessions[a->session].first_page, 1);
			break;
		case 6:
			w->now_ns += 1000000;
			break;
		default:
			*digest = *digest * 31 + match(a, ns, query).matched;
		}
	}
	if (steps == 0) {
		memset(open, 0, sizeof(open));
		memset(held, 0, sizeof(held));
	}
}

/** One life; with `again` everything derived is made again on the way. Returns the digest of
 * all answers. */
static uint64_t life(uint64_t seed, bool again)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 2, .n_pages = 90, .max_nodes = 70, .max_namespaces = 5,
		.policy = (uint32_t)seed % KVT_POLICY_COUNT });
	struct client *clients[2] = { client_new(w), client_new(w) }, *dead = client_new(w);
	uint32_t ns = space_open(clients[0], "ns"), before[70], now[70], n;
	struct kvt_counters count;
	uint64_t random = seed, digest = 0;

	space_open(clients[1], "ns");
	alloc(dead, 5);
	client_dies(dead, KVT_SIGN_EXITED);
	live(w, clients, ns, &random, 0, &digest);
	for (int round = 0; round < 6; round++) {
		live(w, clients, ns, &random, 30, &digest);
		fence(clients[0], 1, (uint64_t)round + 1);
		give(clients[0], NULL, 0); /* something always waits */
		n = read_recency(w->core, before);
		count = *counters(w);
		if (again)
			rebuild(w->core);
		world_audit(w);
		assert_int_equal(read_recency(w->core, now), n);
		assert_memory_equal(before, now, n * sizeof(*before));
		/* A top whose rest is locked need not wait in the queue, but may. */
		count.detached_pending = counters(w)->detached_pending;
		assert_memory_equal(&count, counters(w), sizeof(count));
		raise_fence(clients[0], 1, (uint64_t)round + 1);
		assert_int_equal(w->n_done, round + 1);
	}
	live(w, clients, ns, &random, 60, &digest);
	digest = digest * 31 + counters(w)->cached_pages;
	world_free(w);
	return digest;
}

static void all_that_is_derived_follows_from_the_facts(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++)
		assert_int_equal(life(seed, false), life(seed, true));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(all_that_is_derived_follows_from_the_facts),
	};

	return RUN_CASES(tests);
}
