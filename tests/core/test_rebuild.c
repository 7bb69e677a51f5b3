/* SPDX-License-Identifier: Apache-2.0 */

/* Derived state follows from primary facts. After random operations all of it is spoilt, and a
 * successor recomputes it from node records, slots, namespaces, sessions, leases and page owners.
 * Then the audit must be clean, the recency list the same, and the successor must behave like an
 * untouched twin.
 *
 * Inputs: seeds, and the moment of the take-over. */

#include "daemon/core/records.h"
#include "kvtrunk_wire_control.h"
#include "tests/core/world.h"

/* ---- derived state becomes nonsense */

static void forget_nodes(struct kvt_core *core)
{
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		struct kvt_node *node = &core->nodes[id];

		if (node->flags & KVT_NODE_LIVE)
			node->flags ^= KVT_NODE_PINNED | KVT_NODE_QUEUED;
		node->first_child = node->next_sibling = node->prev_sibling = 0x55555555;
		node->n_children = node->lock_ref = node->tag = 0x55555555;
		node->older = node->younger = 0x55555555;
		node->heap_at = node->expiry_at = 0x55555555;
	}
	memset(core->buckets, 0x55, (core->bucket_mask + 1ull) * sizeof(*core->buckets));
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		struct kvt_namespace_record *space = &core->namespaces[i];

		space->root = space->opened = 0x55555555;
		space->nodes = space->cached_pages = 0x5555555555555555;
		space->evictable_pages = space->protected_pages = 0x5555555555555555;
	}
	memset(core->count, 0x55, offsetof(struct kvt_counters, operations));
}

static void forget_ledger(struct kvt_core *core)
{
	for (uint32_t i = 1; i <= core->config.n_leases; i++) {
		struct kvt_lease_record *lease = &core->leases[i];

		lease->next_lease = lease->prev_lease = lease->last_page = 0x55555555;
		lease->n_private = lease->n_kept = lease->n_pending = 0x55555555;
	}
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		struct kvt_session_record *session = &core->sessions[i];

		session->n_leases = session->n_private = session->n_quarantined = 0x55555555;
		session->first_lease = session->first_page = 0x55555555;
		session->first_quarantined = session->first_pending = 0x55555555;
		session->last_pending = session->n_pending = 0x55555555;
	}
	for (uint32_t i = 1; i <= core->config.n_pending; i++)
		core->pending[i].next = 0x55555555;
	/* The lists of leases' pages are primary. Free pages, and private ones without a lease, are
	 * found by owner. */
	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		if (core->owners[page].lease == KVT_NONE)
			core->owners[page].next = 0x55555555;
		core->owners[page].prev = 0x55555555;
		core->pages[page].slot = 0x55555555;
		if (core->pages[page].state != KVT_PAGE_QUARANTINE)
			core->pages[page].state = 0x55;
	}
}

static void adopt(struct world *w)
{
	struct kvt_core_adoption adoption;
	char why[256] = "";
	int error;

	forget_nodes(w->core);
	forget_ledger(w->core);
	error = world_adopt(w, &adoption, why, sizeof(why));
	if (error)
		fail_msg("adopt: %d, %s", error, why);
	assert_false(adoption.rolled_back);
	assert_int_equal(adoption.cached_pages, counters(w)->cached_pages);
	assert_int_equal(adoption.nodes, counters(w)->live_nodes);
	assert_int_equal(adoption.leases, counters(w)->live_leases);
	assert_int_equal(adoption.sessions, counters(w)->live_sessions);
}

/* ---- the tests */

static uint32_t read_recency(const struct kvt_core *core, uint32_t *list)
{
	uint32_t n = 0;

	for (uint32_t id = core->oldest; id != KVT_NONE; id = core->nodes[id].younger)
		list[n++] = id;
	return n;
}

/** Random operations of two clients, with a digest of their answers. */
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

/** One run; `again`: a successor takes over midway. Returns the digest of all answers. */
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
		give(clients[0], NULL, 0); /* some operation always waits */
		n = read_recency(w->core, before);
		count = *counters(w);
		if (again)
			adopt(w);
		world_audit(w);
		assert_int_equal(read_recency(w->core, now), n);
		assert_memory_equal(before, now, n * sizeof(*before));
		/* A top whose rest is locked may wait in the queue, but need not. */
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

TEST(all_that_is_derived_follows_from_the_facts)
{
	for (uint64_t seed = 1; seed <= 40; seed++)
		assert_int_equal(life(seed, false), life(seed, true));
}
