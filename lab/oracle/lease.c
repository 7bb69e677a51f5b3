/* SPDX-License-Identifier: Apache-2.0 */

/* The lease operations BEGIN, COMMIT, EXTEND and END: holding a path and releasing it.
 *
 * Inputs: the running operation of a record. Invariant: every path from a lease's node to the root
 * (or a detached top) is locked once per lease. Callers: ops.c, session.c (CLOSE). */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/oracle/events.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/lease.h"
#include "lab/oracle/run.h"
#include "lab/oracle/wait.h"

#define BUILD_EVENTS                                                                              \
	(EVENT_BIT(KVT_EV_ROOT) | EVENT_BIT(KVT_EV_NEW) | EVENT_BIT(KVT_EV_GROW) |               \
	 EVENT_BIT(KVT_EV_SPLIT) | EVENT_BIT(KVT_EV_TRIM) | EVENT_BIT(KVT_EV_FREE))

/* Find the lease that an entry names. It may be ending: then the deferred operation is the END that
 * waited. */
int lease_find(struct kvt_oracle *o, bool effect, struct model_lease **ret_lease)
{
	const struct kvt_record *record = o->run.record;
	const struct kvt_sqe *sqe = &record->sqe;
	uint32_t want = sqe->op == KVT_OP_UNLOCK ? MODEL_LEASE_MATCH : MODEL_LEASE_BEGIN;
	struct model_lease *lease;

	if (sqe->node == 0 || sqe->node > o->config.n_leases)
		return run_refuse(o, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	lease = &o->leases[sqe->node];
	if ((lease->kind != MODEL_LEASE_MATCH && lease->kind != MODEL_LEASE_BEGIN) ||
	    lease->generation != sqe->generation || (lease->ending && !effect))
		return run_refuse(o, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	if (lease->session != record->session)
		return run_refuse(o, -EPERM, KVT_REASON_LEASE_FOREIGN, 0);
	if (lease->kind != want)
		return run_refuse(o, -EINVAL, KVT_REASON_LEASE_KIND, 0);
	*ret_lease = lease;
	return 0;
}

/* Create a lease and lock the path to `node`. Records are recycled first in, first out, and each
 * end raises the generation, so both are predicted. */
int lease_make(struct kvt_oracle *o, uint32_t kind, uint32_t node, struct model_lease **ret)
{
	const struct kvt_record *record = o->run.record;
	uint32_t index = o->free_leases[o->free_lease];
	struct model_lease *lease = &o->leases[index];

	if (record->cqe.result != 0)
		return oracle_fail(o, "expected success, the record says %d (reason %u, number %u)",
				   record->cqe.result, record->cqe.reason,
				   record->cqe.refused.number);
	o->free_lease = (o->free_lease + 1) % o->config.n_leases;
	o->n_free_leases--;
	lease->kind = kind;
	lease->session = record->session;
	lease->namespace_id = record->sqe.namespace_id;
	lease->root_key = record->root_key;
	lease->node = node;
	lease->counted = lease->force_miss = lease->ending = lease->late = false;
	lease->bare = false;
	lease->point = 0;
	lease->sealed_ns = record->now_ns;
	lease->gap_us = 0;
	lease->epoch = o->epoch;
	lease->order = ++o->lease_order;
	lease->known = lease->computed = lease->done = 0;
	lease->n_table = lease->n_kept = 0;
	o->sessions[record->session].n_leases++;
	o->run.want.lease = index;
	o->run.want.lease_generation = lease->generation;
	model_lock(o, node, 0);
	*ret = lease;
	return 0;
}

void lease_drop(struct kvt_oracle *o, uint32_t index)
{
	struct model_lease *lease = &o->leases[index];

	o->sessions[lease->session].n_leases--;
	lease->kind = MODEL_LEASE_FREE;
	lease->generation++;
	lease->node = 0;
	o->free_leases[(o->free_lease + o->n_free_leases++) % o->config.n_leases] = index;
	lease->n_table = 0;
}

static uint32_t lease_index(const struct kvt_oracle *o, const struct model_lease *lease)
{
	return (uint32_t)(lease - o->leases);
}

/* Append a new private page to the lease's table. */
static int table_add(struct kvt_oracle *o, struct model_lease *lease, uint32_t page)
{
	lease->table = oracle_room(lease->table, &lease->table_room, lease->n_table + 1ull,
				   sizeof(*lease->table));
	if (!lease->table)
		return oracle_fail(o, "the oracle is out of memory");
	lease->table[lease->n_table++] = page;
	return 0;
}

static int table_add_fresh(struct kvt_oracle *o, struct model_lease *lease, uint32_t n)
{
	uint32_t page;

	for (uint32_t i = 0; i < n; i++) {
		TRY(run_fresh_page(o, o->run.n_want, &page));
		TRY(run_want(o, 0));
		model_page_set(o, page, KVT_PAGE_PRIVATE, o->run.record->session,
			       lease_index(o, lease));
		TRY(table_add(o, lease, page));
	}
	return 0;
}

static int table_add_own(struct kvt_oracle *o, struct model_lease *lease, const uint32_t *pages,
			 uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		model_page_set(o, pages[i], KVT_PAGE_PRIVATE, o->run.record->session,
			       lease_index(o, lease));
		TRY(table_add(o, lease, pages[i]));
	}
	return 0;
}

/* Unlock the lease's path, which touches it. Nodes that lose their last lock also lose their
 * unsealed tail. */
int lease_unlock(struct kvt_oracle *o, struct model_lease *lease)
{
	model_unlock(o, lease);
	o->stamp++; /* its path is no longer the operation's own */
	return events_follow(o, EVENT_BIT(KVT_EV_CUT) | EVENT_BIT(KVT_EV_FREE));
}

uint32_t lease_free_pages(struct kvt_oracle *o, uint32_t index)
{
	uint32_t freed = 0;

	for (uint32_t page = 1; page < o->config.n_pages; page++) {
		if (o->pages[page].state == KVT_PAGE_PRIVATE && o->pages[page].lease == index) {
			model_page_set(o, page, KVT_PAGE_FREE, 0, 0);
			freed++;
		}
	}
	return freed;
}

/* ---- BEGIN ---- */

struct begin {
	uint32_t n_keys; /* those of the handle included */
	uint32_t table; /* pages */
	uint32_t whole; /* pages of keys */
	uint32_t reuse; /* pages */
	uint32_t given; /* private pages */
	uint32_t words; /* of the list */
	bool alone, miss; /* too short to share; reuses nothing */
	struct model_walk walk;
};

static int begin_refused(struct kvt_oracle *o, struct begin *b)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint64_t total = (uint64_t)sqe->positions + sqe->n_keys + sqe->arg;
	uint32_t ps = o->config.page_size;

	if (total > 1ull << 31)
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_RANGE, 0);
	b->n_keys = sqe->positions + sqe->n_keys;
	b->table = (uint32_t)((total + ps - 1) / ps);
	return b->table > o->config.n_pages - 1 ? 0 : run_need_lease(o);
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Walk the keys: how many pages are cached, and how many of those are reused. */
static int begin_walk(struct kvt_oracle *o, struct begin *b)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	uint32_t ps = o->config.page_size;

	TRY(run_walk(o, &b->walk));
	b->alone = b->n_keys < (uint32_t)sqe->priority;
	if (b->alone)
		b->walk = (struct model_walk){ 0 };
	b->whole = o->config.disabled || b->alone ? 0 : b->n_keys / ps;
	b->reuse = b->walk.matched;
	if (b->reuse > 0 && b->reuse * ps == b->n_keys && !(sqe->flags & KVT_F_FULL))
		b->reuse--;
	b->reuse = model_usable(o, b->walk.matched_node, b->reuse);
	b->miss = sqe->flags & KVT_F_FORCE_MISS || wait_too_short(o, b->reuse);
	if (b->miss)
		b->reuse = 0;
	b->given = sqe->flags & KVT_F_NO_PAGES ? 0 : b->table - b->reuse;
	b->words = b->reuse + b->given + (o->config.n_sides > 0);
	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		b->words += least(o->config.side_pages[kind], b->reuse);
	return 0;
}

/* Count the side pages behind which a BEGIN continues that were let go. With `hold` hold them. */
static uint32_t point_let(struct kvt_oracle *o, const struct begin *b, bool hold)
{
	uint32_t n = 0;

	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		for (uint32_t i = least(o->config.side_pages[kind], b->reuse); i > 0; i--) {
			uint32_t main = model_page_at(o, b->walk.node, b->reuse - i);
			uint32_t side = o->pages[main].sides[kind];

			n += o->pages[side].let != 0;
			if (hold)
				o->pages[side].let = 0;
		}
	return n;
}

/* Count the pages that can be evicted until this BEGIN holds them. */
static uint64_t begin_locks(struct kvt_oracle *o, const struct begin *b)
{
	return model_unlocked_on_path(o, b->walk.node, b->walk.pages) + point_let(o, b, false);
}

/* Count the slots for announced pages beyond one for each page of the pool. */
static uint64_t spare_slots(const struct kvt_oracle *o)
{
	uint64_t spare = o->config.n_slots - o->config.n_pages, announced = 0;

	for (uint32_t i = 0; i < o->n_live; i++)
		announced += o->nodes[o->live[i]]->n - o->nodes[o->live[i]]->sealed;
	return spare > announced ? spare - announced : 0;
}

/* True if nothing but this path continues its last `pages` evictable pages, what lies behind them
 * in the last node included. */
static bool path_ends(const struct kvt_oracle *o, const struct begin *b, uint64_t pages)
{
	const struct model_node *node = model_node(o, b->walk.node);
	uint64_t sum = 0;

	if (node)
		pages += model_weight(o, node, node->sealed) -
			 model_weight(o, node, b->walk.pages - node->start);
	for (; node && !node->root && !node->locks &&
	     node->n_children == (node->id == b->walk.node ? 0u : 1u);
	     node = model_node(o, node->parent))
		sum += model_weight(o, node, node->sealed);
	return pages <= sum;
}

/* Check that a BEGIN is not refused for pages of its own match that it does not reuse. */
static int begin_in_own_way(struct kvt_oracle *o, const struct begin *b, uint64_t locked, bool room)
{
	uint64_t reused = point_let(o, b, false);
	uint32_t own = o->run.own;

	if (b->reuse > 0)
		reused += model_unlocked_on_path(
			o, model_covering(o, b->walk.node, b->reuse - 1)->id, b->reuse);
	for (uint64_t gone = 1; gone + reused <= locked; gone++)
		if (run_may_have(o, b->given, locked - gone) && (!room || path_ends(o, b, gone)))
			return oracle_fail(o, "refused, though the last %llu pages of its match, "
					   "which it does not reuse, could go",
					   (unsigned long long)gone);
	o->run.own = own;
	return 0;
}

static int begin_room(struct kvt_oracle *o, struct begin *b)
{
	struct model_run *run = &o->run;
	const struct model_node *last = model_node(o, b->walk.node);
	uint32_t fresh = b->given;
	bool split = last && b->walk.pages > 0 && model_end(last) > b->walk.pages;
	uint64_t locked = begin_locks(o, b), available;
	/* One in reserve: an eviction for pages may leave its last victim's node in use. */
	uint64_t most = (uint64_t)b->whole - b->walk.pages + split +
			(b->whole > b->walk.pages);

	run_take_own(o, fresh, locked);
	available = model_available(o) - locked + run->own;
	if (fresh <= available && !run_may_have(o, fresh, locked))
		TRY(begin_in_own_way(o, b, locked, true));
	TRY(run_need_quota(o, fresh - run->own, locked));
	TRY(run_need_list(o, b->words));
	if (fresh > available) {
		TRY(begin_in_own_way(o, b, locked, false));
		return run_no_room(o, fresh, available);
	}
	if (b->whole > 0 && !model_root(o, run->record->sqe.namespace_id))
		most++;
	if (b->whole > 0)
		model_own(o, b->walk.node);
	run->cursor = b->walk.node;
	run->reached = b->walk.pages;
	run->target = b->whole;
	run->split_at = split ? b->walk.pages : UINT32_MAX;
	run->need_pages = fresh - run->own;
	run->keys = run->record->keys;
	run->root_key = run->record->root_key;
	run->base = b->walk.named;
	if (run->record->sqe.flags & KVT_F_NO_PAGES && b->whole > b->walk.pages + spare_slots(o))
		return run_refuse(o, -ENOSPC, KVT_REASON_SLOTS, b->walk.pages + spare_slots(o));
	return run_need_nodes(o, most);
}

static void keep_tail(struct kvt_oracle *o, struct model_lease *lease, const uint32_t *keys,
		      uint32_t n)
{
	uint32_t ps = o->config.page_size;

	memcpy(lease->tail, keys + (n - n % ps), n % ps * sizeof(*keys));
}

/* List the positions that others sealed and, by kind, the side pages of the last reused pages. */
static int want_sides(struct kvt_oracle *o, const struct model_lease *lease, uint32_t reuse,
		      uint32_t shared)
{
	if (o->run.n_want >= o->run.record->n_list ||
	    o->run.record->list[o->run.n_want] != shared)
		return oracle_fail(o, "the list should say that others sealed %u positions",
				   shared);
	TRY(run_want(o, shared)); /* 0 would stand for anything */
	for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
		for (uint32_t n = least(o->config.side_pages[kind], reuse); n > 0; n--)
			TRY(run_want(o, o->pages[lease->table[reuse - n]].sides[kind]));
	return 0;
}

/* A point counts if it lies behind what is reused, and inside the keys. */
static void declare_point(const struct kvt_oracle *o, const struct begin *b,
			  struct model_lease *lease)
{
	uint64_t positions = o->run.record->sqe.fence_value;
	uint64_t point = positions / o->config.page_size;

	if (positions == KVT_POINT_JUNCTION)
		point = b->walk.pages;
	lease->point = point > b->reuse && point <= b->whole ? (uint32_t)point : 0;
}

int lease_begin(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	uint32_t ps = o->config.page_size, shared = 0;
	struct begin b = { 0 };
	struct model_lease *lease;

	TRY(begin_refused(o, &b));
	TRY(begin_walk(o, &b));
	if (b.table > o->config.n_pages - 1)
		return run_no_room(o, b.table, model_available(o) - begin_locks(o, &b));
	if ((sqe->flags & (KVT_F_WAIT | KVT_F_NO_WAIT)) && b.table <= sqe->list_capacity)
		TRY(wait_begin(o, &b.walk));
	TRY(begin_room(o, &b));
	point_let(o, &b, true);
	TRY(events_follow(o, BUILD_EVENTS));
	if (b.whole > 0)
		TRY(run_check_path(o));
	else
		run->cursor = 0;
	TRY(lease_make(o, MODEL_LEASE_BEGIN, run->cursor, &lease));
	model_touch(o, run->cursor);
	lease->force_miss = b.miss;
	lease->alone = b.alone;
	lease->known = b.n_keys;
	lease->done = b.reuse;
	lease->computed = b.reuse * ps;
	if (sqe->n_keys % ps)
		keep_tail(o, lease, run->record->keys, sqe->n_keys);
	TRY(run_want_path(o, run->cursor, b.reuse));
	for (uint32_t i = 0; i < b.reuse; i++)
		TRY(table_add(o, lease, run->want_list[i]));
	TRY(table_add_fresh(o, lease, b.given));
	lease->bare = sqe->flags & KVT_F_NO_PAGES;
	declare_point(o, &b, lease);
	run->want.begin = (struct kvt_answer_begin){
		.matched = sqe->flags & KVT_F_FORCE_MISS ? 0 : b.walk.matched * ps,
		.reusable = b.reuse * ps,
		.announced = (b.walk.pages - b.walk.matched) * ps,
		.evicted = run->evicted,
	};
	if (run->want.begin.matched) {
		const struct model_node *m = model_covering(o, run->cursor, b.walk.matched - 1);

		run_want_handle(o, m->id, run->want.begin.matched);
	}
	for (uint32_t i = 0; i < b.reuse; i++)
		if (o->pages[lease->table[i]].sealer != o->sessions[run->record->session].number)
			shared += ps;
	if (!(run->record->sqe.flags & KVT_F_UNCOUNTED)) {
		o->counters.input_positions += b.n_keys;
		o->counters.hit_positions += run->want.begin.reusable;
		o->counters.shared_hit_positions += shared;
	}
	return o->config.n_sides ? want_sides(o, lease, b.reuse, shared) : 0;
}

/* ---- COMMIT ---- */

static bool path_is_damaged(const struct kvt_oracle *o, const struct model_lease *lease)
{
	const struct model_node *node = model_node(o, lease->node);

	while (node && !node->damaged)
		node = model_node(o, node->parent);
	return node;
}

/* True if other sessions can find the lease's path. */
static int path_is_attached(struct kvt_oracle *o, const struct model_lease *lease)
{
	if (lease->epoch != o->epoch)
		return run_refuse(o, -ESTALE, KVT_REASON_EPOCH, lease->computed);
	if (lease->node && o->nodes[lease->node]->detached)
		return run_refuse(o, -ESTALE, path_is_damaged(o, lease) ? KVT_REASON_DAMAGED :
				  KVT_REASON_DETACHED, lease->computed);
	return 0;
}

/* Return how many of the given keys have a place in the page table. */
static uint32_t keys_taken(const struct kvt_oracle *o, const struct model_lease *lease)
{
	uint64_t table = (uint64_t)lease->n_table * o->config.page_size;
	uint64_t room = table > lease->known ? table - lease->known : 0;
	uint32_t n = o->run.record->sqe.n_keys;

	return n < room ? n : (uint32_t)room;
}

static int commit_refused(struct kvt_oracle *o, const struct model_lease *lease, bool list)
{
	uint32_t computed = o->run.record->sqe.arg;

	if (computed > (uint64_t)lease->n_table * o->config.page_size)
		return run_refuse(o, -EINVAL, KVT_REASON_BEYOND_TABLE, lease->computed);
	if (computed > (uint64_t)lease->known + keys_taken(o, lease))
		return run_refuse(o, -EINVAL, KVT_REASON_BEYOND_KEYS, lease->computed);
	TRY(path_is_attached(o, lease));
	return list ? run_need_list(o, lease->n_table) : 0;
}

/* Collect the known keys from the last whole page on, followed by the generated ones. */
static int commit_keys(struct kvt_oracle *o, const struct model_lease *lease, uint32_t n)
{
	uint32_t tail = lease->known % o->config.page_size;
	uint32_t *keys = oracle_room(o->scratch, &o->scratch_room, (uint64_t)tail + n + 1,
				     sizeof(*keys));

	if (!keys)
		return oracle_fail(o, "the oracle is out of memory");
	o->scratch = keys;
	memcpy(keys, lease->tail, tail * sizeof(*keys));
	if (n)
		memcpy(keys + tail, o->run.record->keys, n * sizeof(*keys));
	return 0;
}

/* Announce the whole pages among the generated keys, which continue the lease's path. */
static int commit_announce(struct kvt_oracle *o, struct model_lease *lease)
{
	struct model_run *run = &o->run;
	uint32_t ps = o->config.page_size, n_keys = keys_taken(o, lease);
	uint32_t from = lease->known / ps, to = (lease->known + n_keys) / ps;
	uint32_t tail = lease->known % ps, old = lease->node;
	const struct model_node *last;
	struct model_walk walk;
	uint64_t most;

	TRY(commit_keys(o, lease, n_keys));
	if (to == from || o->config.disabled || lease->alone) {
		run->cursor = lease->node;
	} else {
		uint32_t at = lease->node ? lease->node : model_root(o, lease->namespace_id);

		model_walk(o, at, from, lease->root_key, o->scratch, to - from, &walk);
		last = model_node(o, walk.node);
		run->cursor = walk.node;
		run->reached = walk.pages;
		run->target = to;
		run->keys = o->scratch;
		run->root_key = lease->root_key;
		run->base = from;
		run->grow_node = walk.node == old && walk.pages == from ? old : 0;
		most = to - walk.pages + (at == 0);
		if (last && walk.pages > from && model_end(last) > walk.pages) {
			run->split_at = walk.pages;
			most++;
		}
		model_own(o, walk.node);
		TRY(run_need_nodes(o, most));
		TRY(events_follow(o, BUILD_EVENTS));
		TRY(run_check_path(o));
		model_lock(o, run->cursor, old);
		lease->node = run->cursor;
	}
	keep_tail(o, lease, o->scratch, tail + n_keys);
	lease->known += n_keys;
	return 0;
}

/* Replace the lease's page `i` by `twin`, which another lease sealed first. */
static void displace(struct kvt_oracle *o, struct model_lease *lease, uint32_t i, uint32_t twin)
{
	uint32_t page = lease->table[i];

	lease->table[i] = twin;
	o->run.duplicates++;
	o->counters.duplicate_pages++;
	if (o->run.record->sqe.flags & KVT_F_KEEP) {
		o->pages[page].kept = true;
		lease->n_kept++;
	} else {
		model_page_set(o, page, KVT_PAGE_FREE, 0, 0);
	}
}

static int commit_seal(struct kvt_oracle *o, struct model_lease *lease, uint32_t computed)
{
	bool looks_on = !lease->force_miss && o->config.n_sides == 0;
	uint32_t ps = o->config.page_size;
	uint32_t i;

	for (i = lease->done; (uint64_t)(i + 1) * ps <= computed; i++) {
		struct model_node *node = model_covering(o, lease->node, i);
		uint32_t at = i - node->start;

		if (at < node->sealed) {
			displace(o, lease, i, node->pages[at]);
			continue;
		}
		if (at != node->sealed)
			return oracle_fail(o, "page %u of the path is not next to be sealed", i);
		node->pages[node->sealed++] = lease->table[i];
		model_page_cache(o, lease->table[i], node->id);
		o->run.sealed++;
	}
	for (; looks_on && (uint64_t)(i + 1) * ps < lease->known && i < lease->n_table; i++) {
		uint32_t twin = model_page_at(o, lease->node, i);

		if (!twin)
			break;
		displace(o, lease, i, twin);
	}
	lease->done = i;
	if (o->run.sealed || (lease->point && o->run.duplicates))
		wait_sealed(o, lease);
	if (lease->done >= lease->point)
		lease->point = 0;
	return 0;
}

/* Count a sequence's hit once: at its first COMMIT without CHUNKED, at the latest at its END. The
 * CHUNKED flag of END applies to its COMMIT only. */
void lease_count_use(struct kvt_oracle *o, struct model_lease *lease)
{
	if (lease->counted || lease->kind != MODEL_LEASE_BEGIN)
		return;
	lease->counted = true;
	model_count_use(o, lease->node);
}

/* Check the pairs of places and side pages. */
static int sides_refused(struct kvt_oracle *o, const struct model_lease *lease, uint32_t computed)
{
	const struct kvt_record *record = o->run.record;
	uint32_t n = record->n_pages / 2, given = 0;
	uint32_t *pages = calloc(n + 1ull, sizeof(*pages));
	int result = 0;

	if (!pages)
		return oracle_fail(o, "the oracle is out of memory");
	for (uint32_t i = 0; i < n && result == 0; i++) {
		uint32_t place = record->pages[2 * i];

		if (KVT_SIDE_INDEX(place) >= computed / o->config.page_size ||
		    KVT_SIDE_KIND(place) >= o->config.n_sides)
			result = run_refuse(o, -EINVAL, KVT_REASON_SIDE_PLACE, lease->computed);
		if (record->pages[2 * i + 1] && record->pages[2 * i + 1] != KVT_SIDE_LET)
			pages[given++] = record->pages[2 * i + 1];
	}
	if (result == 0)
		result = run_need_pages(o, pages, given, NULL, 0);
	free(pages);
	if (result == MODEL_REFUSED)
		o->run.want.refused.number = lease->computed;
	return result ? result : run_need_list(o, given);
}

/* True if no other lease crosses page `at` of the path, and no branch leaves the path behind it. */
static bool alone_behind(const struct kvt_oracle *o, const struct model_lease *lease, uint32_t at)
{
	for (uint32_t id = lease->node; id; id = o->nodes[id]->parent) {
		const struct model_node *node = o->nodes[id];

		if (node->n_children > (id != lease->node))
			return false;
		if (node->start <= at)
			return node->locks == 1;
	}
	return false;
}

/* Let a side page on page `at` of the path go, if no other lease crosses that. */
static void let_go(struct kvt_oracle *o, const struct model_lease *lease, uint32_t at,
		   struct model_page *side)
{
	if (side->let || model_covering(o, lease->node, at)->locks > 1)
		return;
	side->let = lease_index(o, lease);
	side->let_at = o->clock;
	side->let_order = ++o->let_order;
}

/* Attach side pages to pages of the path, drop others or let them go. */
static int commit_sides(struct kvt_oracle *o, const struct model_lease *lease)
{
	const struct kvt_record *record = o->run.record;

	for (uint32_t i = 0; i + 1 < record->n_pages; i += 2) {
		uint32_t at = KVT_SIDE_INDEX(record->pages[i]), page = record->pages[i + 1];
		uint32_t main = at < lease->done ? lease->table[at] : 0, dropped;
		uint32_t *side = &o->pages[main].sides[KVT_SIDE_KIND(record->pages[i])];

		if (page == KVT_SIDE_LET) {
			if (main && *side)
				let_go(o, lease, at, &o->pages[*side]);
		} else if (page && main && !*side) {
			model_page_cache(o, page, 0);
			o->pages[page].main = main;
			*side = page;
		} else if (page) {
			TRY(run_want(o, page));
		} else if (main && *side && alone_behind(o, lease, at)) {
			dropped = *side;
			*side = 0;
			TRY(events_page_out(o, dropped));
		}
	}
	return 0;
}

/* Do COMMIT, or the COMMIT of END with F_COMMIT. `list`: the answer has the page table. */
static int commit(struct kvt_oracle *o, struct model_lease *lease, bool list, uint32_t *ret_next)
{
	uint32_t computed = o->run.record->sqe.arg, next = computed;

	if (computed < lease->computed) {
		if (list)
			TRY(run_need_list(o, lease->n_table));
		*ret_next = lease->computed;
		if (!(o->run.record->sqe.flags & KVT_F_SIDES))
			return 0;
		TRY(path_is_attached(o, lease));
		TRY(sides_refused(o, lease, lease->computed));
		return commit_sides(o, lease);
	}
	TRY(commit_refused(o, lease, list));
	if (o->run.record->sqe.flags & KVT_F_SIDES)
		TRY(sides_refused(o, lease, computed));
	TRY(commit_announce(o, lease));
	if (!o->config.disabled && !lease->alone) {
		TRY(commit_seal(o, lease, computed));
		if ((uint64_t)lease->done * o->config.page_size > next)
			next = lease->done * o->config.page_size;
	}
	if (o->run.record->sqe.flags & KVT_F_SIDES)
		TRY(commit_sides(o, lease));
	/* As an INSERT without a TTL: what it publishes would go with a prefix that expires. */
	for (uint32_t id = lease->node; id; id = o->nodes[id]->parent)
		o->nodes[id]->expiry_ns = UINT64_MAX;
	lease->computed = next;
	o->run.advanced = next - computed;
	o->counters.advanced_positions += next - computed;
	if (!(o->run.record->sqe.flags & KVT_F_CHUNKED))
		lease_count_use(o, lease);
	model_touch(o, lease->node);
	*ret_next = next;
	return 0;
}

int lease_commit(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	bool list = !(run->record->sqe.flags & KVT_F_NO_LIST);
	struct model_lease *lease;
	uint32_t next;

	TRY(lease_find(o, true, &lease));
	TRY(commit(o, lease, list, &next));
	for (uint32_t i = 0; list && i < lease->n_table; i++)
		TRY(run_want(o, lease->table[i]));
	run->want.lease = run->record->sqe.node;
	run->want.lease_generation = run->record->sqe.generation;
	run->want.positions = lease->known;
	run->want.commit = (struct kvt_answer_commit){
		.next = next,
		.advanced = run->advanced,
		.sealed = run->sealed,
		.duplicates = run->duplicates,
	};
	return 0;
}

int lease_extend(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_record *record = run->record;
	struct model_lease *lease;

	TRY(lease_find(o, true, &lease));
	if (record->sqe.n_keys > 0) {
		TRY(run_need_pages(o, record->keys, record->sqe.n_keys, NULL, 0));
		TRY(table_add_own(o, lease, record->keys, record->sqe.n_keys));
	} else {
		TRY(run_need_private(o, record->sqe.arg));
		TRY(table_add_fresh(o, lease, record->sqe.arg));
	}
	if (lease->bare && lease->n_table > lease->done) {
		lease->bare = false;
		lease->sealed_ns = record->now_ns;
	}
	model_touch(o, lease->node);
	run->want.lease = run->record->sqe.node;
	run->want.lease_generation = run->record->sqe.generation;
	run->want.extend.evicted = run->evicted;
	return 0;
}

/* Find which leading pages of an ending sequence's path are cached, and stay so. */
static void end_keeps(struct kvt_oracle *o, const struct model_lease *lease)
{
	uint32_t n = 0;

	if (lease->node == 0 || lease->kind != MODEL_LEASE_BEGIN || lease->epoch != o->epoch ||
	    o->nodes[lease->node]->detached)
		return;
	while (n < lease->known / o->config.page_size && model_page_at(o, lease->node, n))
		n++;
	o->run.kept_pages = n;
	o->run.kept_node = n ? model_covering(o, lease->node, n - 1)->id : 0;
}

/* END and UNLOCK. */
int lease_end(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	struct model_lease *lease;
	uint32_t next;
	int result = 0;

	TRY(lease_find(o, true, &lease));
	if (sqe->flags & KVT_F_COMMIT)
		result = commit(o, lease, false, &next);
	if (result == 0 && lease->kind == MODEL_LEASE_BEGIN)
		result = path_is_attached(o, lease);
	if (result < 0)
		return result;
	if (result == MODEL_REFUSED && run->want.result == -ESTALE)
		run->want.flags |= KVT_CQE_DETACHED;
	run->want.result = 0; /* END always succeeds; `reason` has the trouble */
	lease_count_use(o, lease);
	end_keeps(o, lease);
	TRY(lease_unlock(o, lease));
	run->want.end = (struct kvt_answer_end){
		.sealed = run->sealed,
		.freed = lease_free_pages(o, sqe->node),
	};
	lease_drop(o, sqe->node);
	return 0;
}
