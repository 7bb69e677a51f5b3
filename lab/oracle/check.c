/* SPDX-License-Identifier: Apache-2.0 */

/* Recounts the model: the counters after each record, everything in kvt_oracle_check().
 *
 * Inputs: the model and the counters of a record. Invariant: only the three sums of state.h are
 * kept as they change, and the full check recounts those, too. Callers: oracle.c after each record,
 * kvt_oracle_check(). */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/oracle/check.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/model.h"

/* Bound the number of pending detached subtrees. A top is pending while there are pages to free
 * below it. Tops over nothing but locked nodes may or may not be on the core's list. */
static void count_detached(const struct kvt_oracle *o, uint64_t *ret_least, uint64_t *ret_most)
{
	uint64_t least = 0, most = 0;

	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		if (!node->top)
			continue;
		most++;
		least += node->locks == 0;
	}
	*ret_least = least;
	*ret_most = most;
}

static void recount(const struct kvt_oracle *o, struct kvt_counters *c)
{
	*c = o->counters;
	c->free_pages = o->in_state[KVT_PAGE_FREE];
	c->private_pages = o->in_state[KVT_PAGE_PRIVATE];
	c->cached_pages = o->in_state[KVT_PAGE_CACHED];
	c->quarantined_pages = o->in_state[KVT_PAGE_QUARANTINE];
	c->live_nodes = o->n_live;
	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		c->locked_nodes += node->locks > 0;
		c->evictable_pages += node->locks ? 0 : model_weight(o, node, node->sealed);
		c->protected_pages += node->locks ? model_weight(o, node, node->sealed) : 0;
		c->side_pages += model_weight(o, node, node->sealed) - node->sealed;
	}
	c->evictable_pages += model_count_let(o, 0);
	c->protected_pages -= model_count_let(o, 0);
	c->live_leases = o->config.n_leases - o->n_free_leases;
	c->live_sessions = o->n_sessions;
	c->live_namespaces = o->n_namespaces;
}

#define EXPECT_COUNTER(name) TRY(oracle_expect(o, "counter " #name, want.name, got->name))

int check_counters(struct kvt_oracle *o)
{
	const struct kvt_counters *got = &o->run.record->counters;
	struct kvt_counters want;
	uint64_t least, most;

	recount(o, &want);
	EXPECT_COUNTER(free_pages);
	EXPECT_COUNTER(private_pages);
	EXPECT_COUNTER(cached_pages);
	EXPECT_COUNTER(quarantined_pages);
	EXPECT_COUNTER(evictable_pages);
	EXPECT_COUNTER(protected_pages);
	EXPECT_COUNTER(live_nodes);
	EXPECT_COUNTER(locked_nodes);
	EXPECT_COUNTER(live_leases);
	EXPECT_COUNTER(live_sessions);
	EXPECT_COUNTER(live_namespaces);
	EXPECT_COUNTER(side_pages);
	EXPECT_COUNTER(operations);
	EXPECT_COUNTER(input_positions);
	EXPECT_COUNTER(hit_positions);
	EXPECT_COUNTER(inserted_pages);
	EXPECT_COUNTER(duplicate_pages);
	EXPECT_COUNTER(evicted_pages);
	EXPECT_COUNTER(advanced_positions);
	EXPECT_COUNTER(expired_nodes);
	EXPECT_COUNTER(merged_nodes);
	EXPECT_COUNTER(split_nodes);
	EXPECT_COUNTER(violations);
	EXPECT_COUNTER(coalesced_positions);
	EXPECT_COUNTER(waits);
	EXPECT_COUNTER(wait_ns);
	EXPECT_COUNTER(takeovers);
	EXPECT_COUNTER(deadline_misses);
	EXPECT_COUNTER(shared_hit_positions);
	EXPECT_COUNTER(expired_pages);
	EXPECT_COUNTER(removed_pages);
	EXPECT_COUNTER(reset_pages);
	EXPECT_COUNTER(suspected_pages);
	EXPECT_COUNTER(victim_age_ns);
	EXPECT_COUNTER(refusals);
	EXPECT_COUNTER(damaged_pages);
	count_detached(o, &least, &most);
	if (got->detached_pending < least || got->detached_pending > most)
		return oracle_fail(o, "counter detached_pending: expected %llu to %llu, the record "
				   "says %llu", (unsigned long long)least,
				   (unsigned long long)most,
				   (unsigned long long)got->detached_pending);
	return 0;
}

/* Check what must hold after every record. */
int check_settled(struct kvt_oracle *o)
{
	for (uint32_t i = 0; i < o->n_live; i++) {
		const struct model_node *node = o->nodes[o->live[i]];

		if (node->root) {
			if (!node->locks && !node->n_children && !node->detached)
				return oracle_fail(o, "root %u is left with nothing below it",
						   node->id);
			continue;
		}
		if (node->locks == 0 && (node->n == 0 || node->sealed < node->n))
			return oracle_fail(o, "unlocked node %u is left with %u of %u pages sealed",
					   node->id, node->sealed, node->n);
	}
	return 0;
}

/* ---- the full check ---- */

static int check_sides(struct kvt_oracle *o, uint32_t main)
{
	for (uint32_t kind = 0; kind < o->config.n_sides; kind++) {
		uint32_t side = o->pages[main].sides[kind];

		if (side && (o->pages[side].state != KVT_PAGE_CACHED ||
			     o->pages[side].main != main || o->pages[side].node))
			return oracle_fail(o, "side page %u of page %u: state %u, on page %u",
					   side, main, o->pages[side].state, o->pages[side].main);
	}
	return 0;
}

static int check_node(struct kvt_oracle *o, const struct model_node *node)
{
	const struct model_node *parent = model_node(o, node->parent);

	if (node->sealed > node->n)
		return oracle_fail(o, "node %u: %u of %u sealed", node->id, node->sealed, node->n);
	if (parent && node->start != model_end(parent) && !node->top)
		return oracle_fail(o, "node %u starts at %u, its parent ends at %u", node->id,
				   node->start, model_end(parent));
	if (parent && parent->locks < node->locks)
		return oracle_fail(o, "node %u has %u locks, its parent %u", node->id,
				   node->locks, parent->locks);
	if (parent && !node->top && node->sealed > 0 && parent->sealed < parent->n)
		return oracle_fail(o, "node %u is sealed below unsealed pages", node->id);
	for (uint32_t i = 0; i < node->sealed; i++) {
		const struct model_page *page = &o->pages[node->pages[i]];

		if (page->state != KVT_PAGE_CACHED || page->node != node->id)
			return oracle_fail(o, "page %u of node %u: state %u, node %u",
					   node->pages[i], node->id, page->state, page->node);
		TRY(check_sides(o, node->pages[i]));
	}
	return 0;
}

static int check_locks(struct kvt_oracle *o)
{
	uint32_t *locks = calloc(o->config.max_nodes, sizeof(*locks));
	int result = 0;

	if (!locks)
		return oracle_fail(o, "the oracle is out of memory");
	for (uint32_t i = 1; i <= o->config.n_leases; i++)
		if (o->leases[i].kind != MODEL_LEASE_FREE)
			for (uint32_t id = o->leases[i].node; id; id = o->nodes[id]->parent)
				locks[id]++;
	for (uint32_t i = 0; i < o->n_live && result == 0; i++)
		result = oracle_expect(o, "locks of a node, recounted", locks[o->live[i]],
				       o->nodes[o->live[i]]->locks);
	free(locks);
	return result;
}

static int check_pages(struct kvt_oracle *o)
{
	uint64_t in_state[KVT_PAGE_SCRATCH + 1] = { 0 }, sealed = 0;

	for (uint32_t page = 0; page < o->config.n_pages; page++)
		in_state[o->pages[page].state]++;
	for (uint32_t state = 0; state <= KVT_PAGE_SCRATCH; state++)
		TRY(oracle_expect(o, "pages in a state, recounted", in_state[state],
				  o->in_state[state]));
	for (uint32_t i = 0; i < o->n_live; i++)
		sealed += model_weight(o, o->nodes[o->live[i]], UINT32_MAX);
	return oracle_expect(o, "cached pages, recounted", sealed, in_state[KVT_PAGE_CACHED]);
}

static int check_leases(struct kvt_oracle *o)
{
	for (uint32_t i = 1; i <= o->config.n_leases; i++) {
		const struct model_lease *lease = &o->leases[i];

		if (lease->kind != MODEL_LEASE_BEGIN)
			continue;
		for (uint32_t at = 0; at < lease->n_table; at++) {
			const struct model_page *page = &o->pages[lease->table[at]];
			bool cached = page->state == KVT_PAGE_CACHED;

			if (cached ? at >= lease->done :
				     at < lease->done || page->state != KVT_PAGE_PRIVATE ||
					     page->lease != i)
				return oracle_fail(o, "lease %u: page %u at %u of its table (%u "
						   "done) is in state %u of lease %u", i,
						   lease->table[at], at, lease->done, page->state,
						   page->lease);
		}
	}
	return 0;
}

static int check_all(struct kvt_oracle *o)
{
	for (uint32_t i = 0; i < o->n_live; i++)
		TRY(check_node(o, o->nodes[o->live[i]]));
	TRY(check_locks(o));
	TRY(check_pages(o));
	return check_leases(o);
}

int kvt_oracle_check(const struct kvt_oracle *oracle, char *why, size_t why_bytes)
{
	struct kvt_oracle copy = *oracle; /* the const oracle's `why` is written through the copy */

	copy.why = why;
	copy.why_bytes = why_bytes;
	return check_all(&copy);
}
