/* SPDX-License-Identifier: Apache-2.0 */

/* Every operation but the lease operations (lease.c): its answer and its changes.
 *
 * Inputs: an OP, ADMIN or DEFER record. Invariant: an operation is checked in the core's order, so
 * the first reason for a refusal must match. Caller: oracle.c. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_control.h"
#include "lab/oracle/events.h"
#include "lab/oracle/fail.h"
#include "lab/oracle/lease.h"
#include "lab/oracle/ops.h"
#include "lab/oracle/run.h"
#include "lab/oracle/session.h"
#include "lab/oracle/wait.h"

/* The fields of an entry that an operation uses; all others must be 0. */
struct op_rule {
	uint16_t flags;
	bool ns, keys, list, arg, handle, lease, fence, weight, deadline;
};

static const struct op_rule rules[KVT_OP_COUNT] = {
	[KVT_OP_MATCH] = { .flags = KVT_F_LOCK | KVT_F_NO_TOUCH | KVT_F_ROOT_KEY, .ns = 1,
			   .keys = 1, .list = 1, .handle = 1 },
	[KVT_OP_LOCK] = { .flags = KVT_F_SHORTER, .handle = 1, .list = 1 },
	[KVT_OP_UNLOCK] = { .lease = 1, .fence = 1 },
	[KVT_OP_ALLOC] = { .flags = KVT_F_SHORTER | KVT_F_OWN_STREAM, .arg = 1, .list = 1 },
	[KVT_OP_FREE] = { .keys = 1, .fence = 1 },
	[KVT_OP_INSERT] = { .flags = KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL | KVT_F_ROOT_KEY,
			    .ns = 1, .keys = 1, .list = 1, .arg = 1, .handle = 1, .fence = 1,
			    .weight = 1 },
	[KVT_OP_BEGIN] = { .flags = KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT |
				   KVT_F_OWN_STREAM | KVT_F_ROOT_KEY | KVT_F_NO_PAGES |
				   KVT_F_UNCOUNTED,
			   .ns = 1, .keys = 1, .list = 1, .arg = 1, .handle = 1, .deadline = 1 },
	[KVT_OP_COMMIT] = { .flags = KVT_F_CHUNKED | KVT_F_KEEP | KVT_F_NO_LIST | KVT_F_SIDES,
			    .keys = 1, .list = 1, .arg = 1, .lease = 1, .fence = 1 },
	[KVT_OP_EXTEND] = { .flags = KVT_F_OWN_STREAM, .keys = 1, .list = 1, .arg = 1, .lease = 1 },
	[KVT_OP_END] = { .flags = KVT_F_CHUNKED | KVT_F_KEEP | KVT_F_COMMIT, .keys = 1, .arg = 1,
			 .lease = 1, .fence = 1 },
	[KVT_OP_REMOVE] = { .flags = KVT_F_ROOT_KEY | KVT_F_DAMAGED, .ns = 1, .keys = 1 },
	[KVT_OP_PAGE] = { .arg = 1 },
	[KVT_OP_EVICT] = { .arg = 1 },
	[KVT_OP_STATS] = { .list = 1 },
	[KVT_OP_CLOSE] = { .fence = 1 },
	[KVT_OP_LEAVE] = { .ns = 1 },
	[KVT_OP_SUSPECT] = { .arg = 1 },
};

/* ---- operations without a lease to start from ---- */

static int op_match(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	uint32_t ps = o->config.page_size;
	bool lock = sqe->flags & KVT_F_LOCK;
	struct model_walk walk;
	struct model_lease *lease;

	TRY(run_walk(o, &walk));
	if (lock) {
		TRY(run_need_lease(o));
		TRY(run_need_quota(o, 0, model_unlocked_on_path(o, walk.matched_node,
								walk.matched)));
		TRY(run_need_list(o, walk.matched));
		TRY(run_want_path(o, walk.matched_node, walk.matched));
		run->cursor = walk.matched_node;
		run->split_at = walk.matched;
		if (walk.matched_node && o->n_free_ids > 0 &&
		    model_end(o->nodes[walk.matched_node]) > walk.matched)
			run->most_nodes = 1; /* the record must have this split */
		TRY(events_follow(o, EVENT_BIT(KVT_EV_SPLIT)));
		if (run->most_nodes && run->cursor == walk.matched_node)
			return oracle_fail(o, "no split at page %u, though a node was free",
					   walk.matched);
		walk.matched_node = run->cursor;
		TRY(lease_make(o, MODEL_LEASE_MATCH, walk.matched_node, &lease));
	}
	if (!(sqe->flags & KVT_F_NO_TOUCH))
		model_touch(o, walk.matched_node);
	run->want.match.matched = walk.matched * ps;
	run->want.match.announced = (walk.pages - walk.matched) * ps;
	run->want.match.usable = model_usable(o, walk.matched_node, walk.matched) * ps;
	run_want_handle(o, walk.matched_node, (uint64_t)walk.matched * ps);
	return 0;
}

static int op_lock(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint32_t ps = o->config.page_size, node, pages;
	struct model_lease *lease;
	bool must_split;

	TRY(run_handle(o, &node, &pages));
	TRY(run_need_lease(o));
	TRY(run_need_quota(o, 0, model_unlocked_on_path(o, node, pages)));
	TRY(run_need_list(o, pages));
	TRY(run_want_path(o, node, pages));
	run->cursor = node;
	run->split_at = pages;
	must_split = model_end(o->nodes[node]) > pages && o->n_free_ids > 0;
	TRY(events_follow(o, EVENT_BIT(KVT_EV_SPLIT)));
	if (must_split && run->cursor == node)
		return oracle_fail(o, "no split at page %u, though a node was free", pages);
	TRY(lease_make(o, MODEL_LEASE_MATCH, run->cursor, &lease));
	model_touch(o, run->cursor);
	run->want.lock.matched = pages * ps;
	run_want_handle(o, run->cursor, (uint64_t)pages * ps);
	return 0;
}

static int op_alloc(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint32_t n = run->record->sqe.arg, page;

	if (run->record->sqe.flags & KVT_F_SHORTER && n > 1) {
		uint64_t most;

		run_take_own(o, n, 0);
		most = model_available(o) + run->own;
		n = n > most ? (uint32_t)most + !most : n;
		while (n > 1 && !run_may_have(o, n, 0))
			n--;
	}
	TRY(run_need_private(o, n));
	for (uint32_t i = 0; i < n; i++) {
		TRY(run_want(o, 0));
		TRY(run_fresh_page(o, i, &page));
		model_page_set(o, page, KVT_PAGE_PRIVATE, run->record->session, 0);
	}
	run->want.alloc.evicted = run->evicted;
	return 0;
}

static int op_free(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;

	TRY(run_need_pages(o, record->keys, record->sqe.n_keys, NULL, 0));
	for (uint32_t i = 0; i < record->sqe.n_keys; i++)
		model_page_set(o, record->keys[i], KVT_PAGE_FREE, 0, 0);
	o->run.want.free.freed = record->sqe.n_keys;
	return 0;
}

/* ---- INSERT ---- */

struct insert {
	uint32_t pages;  /* pages given */
	uint32_t end;    /* those of the start handle included */
	struct model_walk walk;
};

/* Find the cached twins of the given pages: the sealed ones among the walked pages. */
static int insert_twins(struct kvt_oracle *o, const struct insert *in, uint32_t **ret_twins,
			uint32_t *ret_n)
{
	uint32_t n = in->walk.matched > in->walk.named ? in->walk.matched - in->walk.named : 0;
	uint32_t *twins = calloc(n + 1ull, sizeof(*twins));

	if (!twins)
		return oracle_fail(o, "the oracle is out of memory");
	for (uint32_t i = 0; i < n; i++)
		twins[i] = model_page_at(o, in->walk.matched_node, in->walk.named + i);
	*ret_twins = twins;
	*ret_n = n;
	return 0;
}

/* Bound the nodes of an insertion: a root, a split, and one for every new page. */
static int insert_nodes(struct kvt_oracle *o, const struct insert *in)
{
	struct model_run *run = &o->run;
	const struct model_node *last = model_node(o, in->walk.node);
	bool lock = run->record->sqe.flags & KVT_F_LOCK;
	bool inside = last && model_end(last) > in->walk.pages;
	bool raises = last && (run->priority > last->priority || run->expiry_ns > last->expiry_ns);
	bool split = inside && in->walk.pages > 0 &&
		     (lock || raises || in->walk.pages < in->end);
	uint64_t most = (uint64_t)in->end - in->walk.pages + split;

	if (in->end > 0 && !model_root(o, run->record->sqe.namespace_id))
		most++;
	run->cursor = in->end ? in->walk.node : 0;
	run->reached = in->walk.pages;
	run->target = in->end;
	run->split_at = split ? in->walk.pages : UINT32_MAX;
	if (in->end > 0)
		model_own(o, in->walk.node);
	return run_need_nodes(o, most);
}

static int insert_seal(struct kvt_oracle *o, const struct insert *in, const uint32_t *twins,
		       uint32_t n_twins)
{
	struct model_run *run = &o->run;
	const uint32_t *pages = run->record->pages;

	for (uint32_t i = 0; i < in->pages; i++) {
		struct model_node *node = model_covering(o, run->cursor, in->walk.named + i);

		if (i < n_twins) {
			if (pages[i] == twins[i])
				continue;
			TRY(run_want(o, pages[i]));
			TRY(run_want(o, twins[i]));
			run->duplicates++;
			continue;
		}
		if (in->walk.named + i - node->start != node->sealed)
			return oracle_fail(o, "page %u of the path cannot be sealed: node %u has "
					   "%u sealed from %u on", in->walk.named + i, node->id,
					   node->sealed, node->start);
		node->pages[node->sealed++] = pages[i];
		model_page_cache(o, pages[i], node->id);
		run->sealed++;
	}
	return 0;
}

static void insert_weigh(struct kvt_oracle *o, const struct kvt_sqe *sqe, uint64_t expiry_ns)
{
	for (uint32_t id = o->run.cursor; id; id = o->nodes[id]->parent) {
		struct model_node *node = o->nodes[id];

		if (sqe->priority > node->priority)
			node->priority = sqe->priority;
		if (expiry_ns > node->expiry_ns)
			node->expiry_ns = expiry_ns;
	}
	if (!(sqe->flags & KVT_F_CHUNKED))
		model_count_use(o, o->run.cursor);
	model_touch(o, o->run.cursor);
}

static int insert_into_tree(struct kvt_oracle *o, struct insert *in, const uint32_t *twins,
			    uint32_t n_twins)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	uint32_t duplicates = 0;
	struct model_lease *lease;

	TRY(oracle_expect(o, "pages given to INSERT", in->pages, run->record->n_pages));
	TRY(run_need_pages(o, run->record->pages, in->pages, twins, n_twins));
	for (uint32_t i = 0; i < n_twins; i++)
		duplicates += run->record->pages[i] != twins[i];
	if (sqe->flags & KVT_F_LOCK)
		TRY(run_need_lease(o));
	TRY(run_need_list(o, 2ull * duplicates + (sqe->flags & KVT_F_LOCK ? in->end : 0)));
	run->priority = sqe->priority;
	run->expiry_ns = sqe->flags & KVT_F_TTL ?
				 run->record->now_ns + sqe->ttl_ms * 1000000ull : UINT64_MAX;
	TRY(insert_nodes(o, in));
	run->keys = run->record->keys;
	run->root_key = run->record->root_key;
	run->base = in->walk.named;
	TRY(events_follow(o, EVENT_BIT(KVT_EV_ROOT) | EVENT_BIT(KVT_EV_NEW) |
				     EVENT_BIT(KVT_EV_SPLIT) | EVENT_BIT(KVT_EV_TRIM) |
				     EVENT_BIT(KVT_EV_FREE)));
	TRY(oracle_expect(o, "pages that stand on the path", in->end, run->reached));
	if (run->split_at != UINT32_MAX)
		return oracle_fail(o, "no split at page %u", run->split_at);
	TRY(insert_seal(o, in, twins, n_twins));
	o->counters.duplicate_pages += duplicates;
	insert_weigh(o, sqe, run->expiry_ns);
	if (sqe->flags & KVT_F_LOCK) {
		TRY(lease_make(o, MODEL_LEASE_MATCH, run->cursor, &lease));
		TRY(run_want_path(o, run->cursor, in->end));
	}
	return 0;
}

static int op_insert(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	uint32_t ps = o->config.page_size, n_twins = 0;
	struct insert in = { 0 };
	struct model_lease *lease;
	uint32_t *twins = NULL;
	int result;

	if (o->config.disabled) {
		if (!(sqe->flags & KVT_F_LOCK))
			return 0;
		TRY(run_need_lease(o));
		return lease_make(o, MODEL_LEASE_MATCH, 0, &lease);
	}
	in.pages = sqe->n_keys / ps;
	TRY(run_walk(o, &in.walk));
	in.end = in.walk.named + in.pages;
	TRY(insert_twins(o, &in, &twins, &n_twins));
	result = insert_into_tree(o, &in, twins, n_twins);
	free(twins);
	TRY(result);
	run->want.insert = (struct kvt_answer_insert){
		.existed = (in.walk.matched < in.end ? in.walk.matched : in.end) * ps,
		.inserted = run->sealed,
		.evicted = run->evicted,
		.n_twins = run->duplicates,
	};
	run_want_handle(o, in.end ? run->cursor : 0, (uint64_t)in.end * ps);
	return 0;
}

/* ---- REMOVE, EVICT, RESET, PAGE, STATS ---- */

/* Follow one DETACH, and the removal of an empty root above it. */
static int follow_detach(struct kvt_oracle *o, uint32_t top)
{
	const struct kvt_record *record = o->run.record;

	if (o->run.event >= record->n_events ||
	    record->events[o->run.event].kind != KVT_EV_DETACH)
		return oracle_fail(o, "node %u should be detached", top);
	TRY(oracle_expect(o, "node that is detached", top, record->events[o->run.event].node));
	return events_follow(o, EVENT_BIT(KVT_EV_DETACH) | EVENT_BIT(KVT_EV_FREE));
}

static int op_remove(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;
	uint32_t ps = o->config.page_size, pages = sqe->n_keys / ps;
	uint32_t root = model_root(o, sqe->namespace_id);
	struct model_walk walk;
	struct model_node *node;

	if (!root || (sqe->n_keys > 0 && pages == 0))
		return 0;
	if (sqe->n_keys == 0) {
		run->want.remove.state = 1;
		return follow_detach(o, root);
	}
	model_walk(o, root, 0, run->record->root_key, run->record->keys, pages, &walk);
	if (walk.pages < pages)
		return 0;
	node = o->nodes[walk.node];
	if (node->start < pages - 1) {
		model_own(o, walk.node);
		TRY(run_need_nodes(o, 1));
		run->cursor = walk.node;
		run->split_at = pages - 1;
		TRY(events_follow(o, EVENT_BIT(KVT_EV_SPLIT) | EVENT_BIT(KVT_EV_TRIM) |
					     EVENT_BIT(KVT_EV_FREE)));
		if (run->split_at != UINT32_MAX)
			return oracle_fail(o, "no split at page %u", pages - 1);
		o->stamp++; /* unlocked nodes may be evicted now */
	}
	run->want.remove.state = 1;
	return follow_detach(o, walk.node);
}

static int op_evict(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint64_t evictable = model_evictable(o);
	uint32_t n = run->record->sqe.arg;

	if (n > evictable)
		n = (uint32_t)evictable;
	run->path_alone = run->record->kind == KVT_REC_ADMIN &&
			  run->record->value == KVT_EVICT_ALONE;
	if (run->record->kind == KVT_REC_ADMIN && model_node(o, run->record->sqe.node))
		model_own(o, run->record->sqe.node);
	run->need_pages = o->in_state[KVT_PAGE_FREE] + n;
	TRY(events_follow(o, EVENT_BIT(KVT_EV_TRIM) | EVENT_BIT(KVT_EV_FREE)));
	if (run->evicted < n)
		return oracle_fail(o, "EVICT freed %u pages of %u", run->evicted, n);
	run->want.evict.evicted = run->evicted;
	return 0;
}

static int op_reset(struct kvt_oracle *o)
{
	o->epoch++;
	for (uint32_t i = 0; i <= o->config.max_namespaces; i++)
		if (o->namespaces[i].root)
			model_detach(o, o->nodes[o->namespaces[i].root], KVT_NODE_RESET);
	return 0;
}

static int op_page(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint32_t id = run->record->sqe.arg;
	const struct model_page *page;
	const struct model_node *node;

	if (id >= o->config.n_pages)
		return run_refuse(o, -EINVAL, KVT_REASON_PAGE_RANGE, 0);
	page = &o->pages[id];
	run->want.page.state = page->main ? KVT_PAGE_SIDE : page->state;
	run->want.page.owner = page->session;
	if (page->state != KVT_PAGE_CACHED)
		return 0;
	run->want.page.sealer = run->record->cqe.page.sealer; /* from tickets, which are unknown */
	if (page->main)
		id = page->main;
	node = o->nodes[o->pages[id].node];
	for (uint32_t i = 0; i < node->sealed; i++)
		if (node->pages[i] == id)
			run_want_handle(o, node->id,
					(uint64_t)(node->start + i) * o->config.page_size);
	run->want.page.lock_ref = node->locks;
	return 0;
}

static int op_suspect(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	uint32_t id = run->record->sqe.arg;

	if (id >= o->config.n_pages)
		return run_refuse(o, -EINVAL, KVT_REASON_PAGE_RANGE, 0);
	if (o->pages[id].state != KVT_PAGE_CACHED)
		return run_refuse(o, -EINVAL, KVT_REASON_PAGE_NOT_CACHED, 0);
	for (uint32_t i = 1; i <= o->config.max_sessions; i++)
		if (o->sessions[i].state != KVT_SESSION_FREE &&
		    o->sessions[i].number == o->pages[id].sealer)
			run->want.suspect.owner = i;
	o->counters.suspected_pages++;
	return 0;
}

static int op_stats(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	uint32_t words = sizeof(struct kvt_counters) / sizeof(uint32_t);
	struct kvt_counters before = record->counters;

	TRY(run_need_list(o, words));
	before.operations--; /* STATS does not count itself */
	TRY(oracle_expect(o, "words of STATS", words, record->n_list));
	if (memcmp(record->list, &before, sizeof(before)) != 0)
		return oracle_fail(o, "STATS answered other counters than the record has");
	for (uint32_t i = 0; i < words; i++)
		TRY(run_want(o, record->list[i]));
	return 0;
}

/* ---- one entry ---- */

/* True if fence_value may be a declared point. */
static bool point_ok(const struct kvt_oracle *o, const struct kvt_sqe *sqe)
{
	return sqe->op == KVT_OP_BEGIN && o->config.n_sides > 0 && sqe->fence_value <= UINT32_MAX;
}

static int bad_entry(struct kvt_oracle *o, const struct kvt_sqe *sqe)
{
	const struct op_rule *rule;

	if (sqe->op >= KVT_OP_COUNT)
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_OP, 0);
	rule = &rules[sqe->op];
	if (sqe->flags & ~rule->flags || (sqe->flags & KVT_F_SIDES && o->config.n_sides == 0))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (sqe->op == KVT_OP_MATCH && (sqe->flags & KVT_F_LOCK) && (sqe->flags & KVT_F_NO_TOUCH))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (sqe->op == KVT_OP_END && sqe->flags && !(sqe->flags & KVT_F_COMMIT))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (((sqe->flags & KVT_F_NO_LIST) && !(sqe->flags & KVT_F_KEEP)) ||
	    ((sqe->flags & KVT_F_SIDES) && !(sqe->flags & KVT_F_NO_LIST)))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if ((sqe->flags & KVT_F_ROOT_KEY) && sqe->node != 0)
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (sqe->op == KVT_OP_REMOVE && sqe->flags && sqe->n_keys == 0)
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if ((sqe->flags & KVT_F_WAIT) && (sqe->flags & KVT_F_NO_WAIT))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if ((sqe->flags & KVT_F_NO_LIST) && !(sqe->flags & KVT_F_SIDES) &&
	    (sqe->list_offset || sqe->list_capacity))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if ((!rule->ns && sqe->namespace_id) ||
	    (!rule->keys && (sqe->keys_offset || sqe->n_keys)) ||
	    (!rule->list && (sqe->list_offset || sqe->list_capacity)) ||
	    (!rule->arg && sqe->arg) ||
	    (!rule->handle && !rule->lease && (sqe->node || sqe->generation)) ||
	    (!rule->handle && sqe->positions) ||
	    (!rule->weight && sqe->priority && (sqe->op != KVT_OP_BEGIN || sqe->priority < 0)) ||
	    (!rule->weight && !rule->deadline && sqe->ttl_ms) ||
	    (!rule->fence && !point_ok(o, sqe) && sqe->fence_value) ||
	    (!rule->fence && sqe->fence_slot && sqe->fence_slot != KVT_FENCE_IDLE))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (sqe->op == KVT_OP_END && !(sqe->flags & KVT_F_COMMIT) &&
	    (sqe->keys_offset || sqe->n_keys || sqe->arg))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (sqe->op == KVT_OP_BEGIN && (sqe->flags & KVT_F_NO_PAGES) && sqe->arg)
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (sqe->op == KVT_OP_EXTEND && sqe->n_keys > 0 &&
	    (sqe->arg || sqe->list_capacity || sqe->flags))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (rule->deadline && (sqe->ttl_ms ? !(sqe->flags & (KVT_F_WAIT | KVT_F_NO_WAIT)) :
					     sqe->flags & KVT_F_NO_WAIT))
		return run_refuse(o, -EINVAL, KVT_REASON_DEADLINE, 0);
	if (rule->weight && (sqe->ttl_ms != 0) != ((sqe->flags & KVT_F_TTL) != 0))
		return run_refuse(o, -EINVAL, KVT_REASON_TTL, 0);
	if (sqe->fence_slot >= KVT_FENCE_WORDS && sqe->fence_slot != KVT_FENCE_IDLE)
		return run_refuse(o, -EINVAL, KVT_REASON_FENCE, 0);
	return 0;
}

/* True if the refusal may come from an area's size, which is not in the log. Such a refusal is
 * possible for any entry with keys or a list. */
static bool range_refused(const struct kvt_record *record)
{
	return record->cqe.result == -EINVAL && record->cqe.reason == KVT_REASON_BAD_RANGE;
}

static int check_entry(struct kvt_oracle *o, bool effect)
{
	const struct kvt_record *record = o->run.record;
	const struct kvt_sqe *sqe = &record->sqe;
	const struct model_session *session = &o->sessions[record->session];
	struct model_lease *lease;

	if (!effect) {
		if (session->state != KVT_SESSION_OPEN)
			return run_refuse(o, -ESHUTDOWN, KVT_REASON_CLOSING, 0);
		TRY(bad_entry(o, sqe));
		if (range_refused(record) &&
		    (rules[sqe->op].keys || rules[sqe->op].list || rules[sqe->op].arg))
			return run_refuse(o, -EINVAL, KVT_REASON_BAD_RANGE,
					  record->cqe.refused.number);
		if (rules[sqe->op].ns &&
		    (sqe->namespace_id > o->config.max_namespaces ||
		     !session->opened[sqe->namespace_id]))
			return run_refuse(o, -EINVAL, KVT_REASON_NAMESPACE, 0);
	}
	/* The pairs are read when it takes effect, and may name another number then. */
	if (effect && sqe->op == KVT_OP_COMMIT && (sqe->flags & KVT_F_SIDES) &&
	    range_refused(record))
		return run_refuse(o, -EINVAL, KVT_REASON_BAD_RANGE, record->cqe.refused.number);
	if ((sqe->op == KVT_OP_EVICT || sqe->op == KVT_OP_RESET || sqe->op == KVT_OP_AUDIT) &&
	    !session->privileged)
		return run_refuse(o, -EPERM, KVT_REASON_PRIVILEGE, 0);
	return rules[sqe->op].lease ? lease_find(o, effect, &lease) : 0;
}

static int run_op(struct kvt_oracle *o)
{
	switch (o->run.record->sqe.op) {
	case KVT_OP_MATCH:
		return op_match(o);
	case KVT_OP_LOCK:
		return op_lock(o);
	case KVT_OP_UNLOCK:
	case KVT_OP_END:
		return lease_end(o);
	case KVT_OP_ALLOC:
		return op_alloc(o);
	case KVT_OP_FREE:
		return op_free(o);
	case KVT_OP_INSERT:
		return op_insert(o);
	case KVT_OP_BEGIN:
		return o->run.waiter.waits && (o->run.waiter.sqe.flags & KVT_F_NO_WAIT) ?
			       wait_notice(o) :
			       lease_begin(o);
	case KVT_OP_COMMIT:
		return lease_commit(o);
	case KVT_OP_EXTEND:
		return lease_extend(o);
	case KVT_OP_REMOVE:
		return op_remove(o);
	case KVT_OP_PAGE:
		return op_page(o);
	case KVT_OP_SUSPECT:
		return op_suspect(o);
	case KVT_OP_EVICT:
		return op_evict(o);
	case KVT_OP_RESET:
		return op_reset(o);
	case KVT_OP_STATS:
		return op_stats(o);
	case KVT_OP_CLOSE:
		return session_close(o);
	case KVT_OP_LEAVE:
		return session_leave(o);
	case KVT_OP_AUDIT: /* finds nothing; the log lacks how much memory was free */
		if (o->run.record->cqe.reason == KVT_REASON_MEMORY)
			return run_refuse(o, -ENOMEM, KVT_REASON_MEMORY, 0);
		return 0;
	default: /* NOP */
		return 0;
	}
}

#define WORD(word) #word,
#define UNUSED(n) "words[" #n "]",
#define ANSWER(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = { answer },
static const char *const words[KVT_OP_COUNT + 1][4] = {
	KVT_OPS(ANSWER, WORD, UNUSED) { "number", "needed", UNUSED(2) UNUSED(3) }
};

static int compare_words(struct kvt_oracle *o)
{
	const struct kvt_cqe *want = &o->run.want, *got = &o->run.record->cqe;
	uint32_t op = want->result ? KVT_OP_COUNT : o->run.record->sqe.op;

	for (uint32_t i = 0; i < 4; i++)
		TRY(oracle_expect(o, words[op][i], want->words[i], got->words[i]));
	return 0;
}

static int compare_cqe(struct kvt_oracle *o)
{
	const struct kvt_cqe *want = &o->run.want, *got = &o->run.record->cqe;

	if (want->result != got->result || want->reason != got->reason)
		return oracle_fail(o, "result: expected %d (reason %u, number %u), the record says "
				   "%d (reason %u, number %u)", want->result, want->reason,
				   want->refused.number, got->result, got->reason,
				   got->refused.number);
	TRY(oracle_expect(o, "cqe.user_data", want->user_data, got->user_data));
	TRY(oracle_expect(o, "cqe.seq", want->seq, got->seq));
	TRY(oracle_expect(o, "cqe.flags", want->flags, got->flags));
	TRY(oracle_expect(o, "cqe.lease", want->lease, got->lease));
	TRY(oracle_expect(o, "cqe.lease_generation", want->lease_generation,
			  got->lease_generation));
	TRY(oracle_expect(o, "cqe.node", want->node, got->node));
	TRY(oracle_expect(o, "cqe.generation", want->generation, got->generation));
	TRY(oracle_expect(o, "cqe.positions", want->positions, got->positions));
	TRY(compare_words(o));
	return oracle_expect(o, "cqe.n_list", want->n_list, got->n_list);
}

static int compare_list(struct kvt_oracle *o)
{
	const struct model_run *run = &o->run;
	const struct kvt_record *record = run->record;

	TRY(oracle_expect(o, "words in the list", run->n_want, record->n_list));
	for (uint32_t i = 0; i < run->n_want; i++)
		if (run->want_list[i] && run->want_list[i] != record->list[i])
			return oracle_fail(o, "list[%u]: expected %u, the record says %u", i,
					   run->want_list[i], record->list[i]);
	return 0;
}

static bool ordered_by_lease(uint32_t op)
{
	return op == KVT_OP_COMMIT || op == KVT_OP_UNLOCK || op == KVT_OP_END;
}

/* Check that no earlier operation of the same lease (for CLOSE: session) still waits. */
static int check_order(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;

	for (uint32_t i = 0; i < o->n_pending; i++) {
		const struct model_pending *p = &o->pending[i];
		bool before = record->value == 0 || p->seq < record->value;

		if (!before || p->session != record->session)
			continue;
		if (record->sqe.op == KVT_OP_CLOSE ||
		    (ordered_by_lease(record->sqe.op) && p->lease == record->sqe.node))
			return oracle_fail(o, "op %u took effect before the deferred op %u of "
					   "seq %llu", record->sqe.op, p->sqe.op,
					   (unsigned long long)p->seq);
	}
	return 0;
}

static int take_pending(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;

	for (uint32_t i = 0; i < o->n_pending; i++) {
		struct model_pending *p = &o->pending[i];

		if (p->seq != record->value)
			continue;
		TRY(oracle_expect(o, "session of the deferred operation", p->session,
				  record->session));
		if (memcmp(&p->sqe, &record->sqe, sizeof(p->sqe)) != 0)
			return oracle_fail(o, "the deferred entry changed while it waited");
		o->run.since = p->since;
		if (p->waits)
			o->run.waiter = *p;
		memmove(p, p + 1, (--o->n_pending - i) * sizeof(*p));
		return 0;
	}
	return oracle_fail(o, "no operation was deferred at seq %llu",
			   (unsigned long long)record->value);
}

/* Count a protocol violation: honest clients never cause one. Too many positions may also have been
 * refused at run time; the log lacks the area's size to tell. */
static void count_violation(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;

	if (record->sqe.op == KVT_OP_BEGIN && range_refused(record) &&
	    (uint64_t)record->sqe.positions + record->sqe.n_keys + record->sqe.arg >
		    1ull << 31 &&
	    record->counters.violations == o->counters.violations)
		return;
	o->counters.violations++;
}

/* Check that no operation begins a lease while the daemon drains. */
static int check_draining(struct kvt_oracle *o)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;
	bool locks = sqe->op == KVT_OP_MATCH || sqe->op == KVT_OP_INSERT;

	if (o->draining && (sqe->op == KVT_OP_BEGIN || sqe->op == KVT_OP_LOCK ||
			    (locks && (sqe->flags & KVT_F_LOCK))))
		return run_refuse(o, -ESHUTDOWN, KVT_REASON_DRAINING, 0);
	return 0;
}

/* Check that two daemons ended since the operation could first run. The log does not tell in which
 * operation a daemon died. */
static int check_fatal(struct kvt_oracle *o)
{
	if (o->n_adopted < o->run.since + 2)
		return oracle_fail(o, "refused as deadly, though only %llu daemons ended since it "
				   "could run", (unsigned long long)(o->n_adopted - o->run.since));
	return run_refuse(o, -EIO, KVT_REASON_FATAL, 0);
}

static int check_session(struct kvt_oracle *o)
{
	uint32_t session = o->run.record->session;

	if (session == 0 || session > o->config.max_sessions ||
	    o->sessions[session].state == KVT_SESSION_FREE)
		return oracle_fail(o, "no such session: %u", session);
	return 0;
}

/* Return the namespace of the record's entry or lease; 0: it names none. */
static uint32_t namespace_of(const struct kvt_oracle *o)
{
	const struct kvt_sqe *sqe = &o->run.record->sqe;

	if (sqe->op >= KVT_OP_COUNT)
		return 0;
	if (rules[sqe->op].lease)
		return sqe->node <= o->config.n_leases ? o->leases[sqe->node].namespace_id : 0;
	return sqe->namespace_id < o->config.max_namespaces ? sqe->namespace_id : 0;
}

static void add_tally(struct kvt_oracle *o, struct kvt_tally *tally)
{
	const struct model_run *run = &o->run;
	const struct kvt_sqe *sqe = &run->record->sqe;

	tally->inserted_pages += run->sealed;
	if (sqe->op != KVT_OP_BEGIN || run->want.result || !run->want.lease ||
	    sqe->flags & KVT_F_UNCOUNTED)
		return;
	tally->input_positions += sqe->positions + sqe->n_keys;
	tally->hit_positions += run->want.begin.reusable;
}

/* Count for the session and the namespace what the operation asked for and got. */
static void count_tallies(struct kvt_oracle *o)
{
	uint32_t op = o->run.record->sqe.op, id = o->run.namespace_id;
	uint32_t row = kvt_refusal_of(o->run.want.reason);
	struct kvt_tally *session = &o->sessions[o->run.record->session].tally;

	add_tally(o, session);
	if (id)
		add_tally(o, &o->namespaces[id].tally);
	if (row == KVT_REFUSAL_COUNT)
		return;
	o->counters.refusals++;
	o->refused[row]++;
	session->refused[row]++;
	if (id && op != KVT_OP_END)
		o->namespaces[id].tally.refused[row]++;
}

int ops_apply(struct kvt_oracle *o)
{
	struct model_run *run = &o->run;
	const struct kvt_record *record = run->record;
	bool effect = record->value != 0;
	int result;

	TRY(check_session(o));
	run->namespace_id = namespace_of(o);
	run->want.user_data = record->sqe.user_data;
	run->want.seq = record->seq;
	if (effect) {
		run->want.flags = KVT_CQE_DEFERRED;
		TRY(take_pending(o));
	} else {
		run->since = o->sessions[record->session].since;
		o->sessions[record->session].since = o->n_adopted;
	}
	if (!(run->waiter.sqe.flags & KVT_F_NO_WAIT)) /* NO_WAIT was counted at its first answer */
		o->counters.operations++;
	else
		run->want.flags |= KVT_CQE_ASYNC;
	if (record->cqe.reason == KVT_REASON_FATAL) {
		result = check_fatal(o);
	} else {
		result = check_entry(o, effect);
		if (result == MODEL_REFUSED && !effect)
			count_violation(o);
		if (result == 0 && !effect)
			result = check_draining(o);
	}
	if (run->waiter.waits && record->cqe.result == -ECANCELED) {
		result = wait_cancel(o);
	} else if (result == 0) {
		TRY(check_order(o));
		result = run_op(o);
	}
	if (result < 0)
		return result;
	if (run->waiter.waits)
		wait_end(o);
	if (result == MODEL_REFUSED) {
		run->n_want = 0;
	} else if (record->sqe.op != KVT_OP_END && record->sqe.op != KVT_OP_UNLOCK) {
		run->want.n_list = run->n_want;
	} else { /* nodes off the path may merge at once */
		TRY(events_follow(o, EVENT_BIT(KVT_EV_MERGE)));
		if (run->kept_pages)
			run_want_handle(o, run->kept_node,
					(uint64_t)run->kept_pages * o->config.page_size);
	}
	TRY(events_done(o));
	TRY(compare_cqe(o));
	count_tallies(o);
	return compare_list(o);
}

/* Follow a DEFER. Its entry has passed all checks of submission. */
int ops_defer(struct kvt_oracle *o)
{
	const struct kvt_record *record = o->run.record;
	const struct kvt_sqe *sqe = &record->sqe;
	uint32_t lease = sqe->op < KVT_OP_COUNT && rules[sqe->op].lease ? sqe->node : 0;
	bool waits = sqe->fence_slot != KVT_FENCE_IDLE;
	int result;

	TRY(check_session(o));
	if (sqe->op == KVT_OP_BEGIN && record->value)
		return wait_defer(o);
	if (record->value == 0)
		o->sessions[record->session].since = o->n_adopted;
	result = check_entry(o, false);
	if (result == 0)
		result = check_draining(o);
	if (result < 0)
		return result;
	if (result == MODEL_REFUSED)
		return oracle_fail(o, "deferred, but should have been refused with %d (reason %u)",
				   o->run.want.result, o->run.want.reason);
	if (sqe->op == KVT_OP_BEGIN)
		return wait_defer(o);
	for (uint32_t i = 0; i < o->n_pending; i++)
		waits = waits || (o->pending[i].session == record->session &&
				  (sqe->op == KVT_OP_CLOSE || (ordered_by_lease(sqe->op) &&
							       o->pending[i].lease == lease)));
	if (!waits || !rules[sqe->op].fence)
		return oracle_fail(o, "op %u was deferred without a fence to wait for", sqe->op);
	o->pending = oracle_room(o->pending, &o->pending_room, o->n_pending + 1ull,
				 sizeof(*o->pending));
	if (!o->pending)
		return oracle_fail(o, "the oracle is out of memory");
	o->pending[o->n_pending++] = (struct model_pending){
		.seq = record->seq, .session = record->session, .lease = lease, .sqe = *sqe,
		.since = o->n_adopted,
	};
	if (sqe->op == KVT_OP_END || sqe->op == KVT_OP_UNLOCK)
		o->leases[lease].ending = true;
	if (sqe->op == KVT_OP_CLOSE)
		o->sessions[record->session].state = KVT_SESSION_CLOSING;
	return events_done(o);
}

int admin_apply(struct kvt_oracle *o)
{
	int result;

	switch (o->run.record->sqe.op) {
	case KVT_OP_EVICT:
		result = op_evict(o);
		break;
	case KVT_OP_RESET:
		result = op_reset(o);
		break;
	case KVT_OP_REMOVE:
		if (o->run.record->session)
			TRY(session_check_recycled(o));
		result = op_remove(o);
		break;
	default:
		return oracle_fail(o, "an operator's op %u", o->run.record->sqe.op);
	}
	if (result < 0)
		return result;
	TRY(events_done(o));
	TRY(oracle_expect(o, "cqe.result", (uint64_t)o->run.want.result,
			  (uint64_t)o->run.record->cqe.result));
	return compare_words(o);
}
