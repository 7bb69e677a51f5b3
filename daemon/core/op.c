/* SPDX-License-Identifier: Apache-2.0 */

/* The operations that are not a sequence's, and the switch over all of them. */

#include <errno.h>
#include <string.h>

#include "daemon/core/internal.h"

int kvt_refuse(struct kvt_op_context *op, int error, enum kvt_reason reason, uint32_t number)
{
	op->cqe->reason = (uint16_t)reason;
	op->cqe->a = number;
	op->cqe->b = 0;
	return error;
}

/* ---- what each operation takes */

enum takes {
	TAKES_NAMESPACE = 1 << 0,
	TAKES_KEYS = 1 << 1,
	TAKES_LIST = 1 << 2,
	TAKES_ARG = 1 << 3,
	TAKES_HANDLE = 1 << 4,
	TAKES_LEASE = 1 << 5,
	TAKES_FENCE = 1 << 6,
	TAKES_POLICY = 1 << 7, /* priority and TTL */
	TAKES_PRIVILEGE = 1 << 8,
};

static const struct {
	uint32_t takes;
	uint32_t flags;
} op_rows[KVT_OP_COUNT] = {
	[KVT_OP_NOP] = { 0, 0 },
	[KVT_OP_MATCH] = { TAKES_NAMESPACE | TAKES_KEYS | TAKES_LIST, KVT_F_LOCK | KVT_F_NO_TOUCH },
	[KVT_OP_LOCK] = { TAKES_HANDLE | TAKES_LIST, 0 },
	[KVT_OP_UNLOCK] = { TAKES_LEASE | TAKES_FENCE, 0 },
	[KVT_OP_ALLOC] = { TAKES_ARG | TAKES_LIST, 0 },
	[KVT_OP_FREE] = { TAKES_KEYS | TAKES_FENCE, 0 },
	[KVT_OP_INSERT] = { TAKES_NAMESPACE | TAKES_KEYS | TAKES_LIST | TAKES_ARG | TAKES_HANDLE |
				    TAKES_FENCE | TAKES_POLICY,
			    KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL },
	[KVT_OP_BEGIN] = { TAKES_NAMESPACE | TAKES_KEYS | TAKES_LIST | TAKES_ARG,
			   KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT },
	[KVT_OP_COMMIT] = { TAKES_LEASE | TAKES_KEYS | TAKES_LIST | TAKES_ARG | TAKES_FENCE,
			    KVT_F_CHUNKED | KVT_F_KEEP },
	[KVT_OP_EXTEND] = { TAKES_LEASE | TAKES_LIST | TAKES_ARG, 0 },
	[KVT_OP_END] = { TAKES_LEASE | TAKES_KEYS | TAKES_ARG | TAKES_FENCE,
			 KVT_F_COMMIT | KVT_F_CHUNKED | KVT_F_KEEP },
	[KVT_OP_REMOVE] = { TAKES_NAMESPACE | TAKES_KEYS, 0 },
	[KVT_OP_PAGE] = { TAKES_ARG, 0 },
	[KVT_OP_EVICT] = { TAKES_ARG | TAKES_PRIVILEGE, 0 },
	[KVT_OP_RESET] = { TAKES_PRIVILEGE, 0 },
	[KVT_OP_STATS] = { TAKES_LIST, 0 },
	[KVT_OP_AUDIT] = { TAKES_PRIVILEGE, 0 },
	[KVT_OP_CLOSE] = { TAKES_FENCE, 0 },
};

bool kvt_op_takes_fence(uint32_t op)
{
	return op < KVT_OP_COUNT && (op_rows[op].takes & TAKES_FENCE);
}

bool kvt_op_takes_lease(uint32_t op)
{
	return op < KVT_OP_COUNT && (op_rows[op].takes & TAKES_LEASE);
}

static bool namespace_ok(const struct kvt_core *core, uint32_t session, uint32_t namespace_id)
{
	return namespace_id > 0 && namespace_id < core->config.max_namespaces &&
	       kvt_bit_get(core->opened + (size_t)session * core->opened_words, namespace_id);
}

static bool waits(const struct kvt_sqe *sqe)
{
	return sqe->op == KVT_OP_BEGIN && (sqe->flags & (KVT_F_WAIT | KVT_F_NO_WAIT));
}

bool kvt_op_may_wait(const struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe)
{
	uint32_t takes;

	if (sqe->op >= KVT_OP_COUNT)
		return false;
	takes = op_rows[sqe->op].takes;
	return (takes & TAKES_FENCE || waits(sqe)) &&
	       !(sqe->flags & ~op_rows[sqe->op].flags) &&
	       (sqe->fence_slot < KVT_FENCE_WORDS || sqe->fence_slot == KVT_FENCE_IDLE) &&
	       sqe->n_keys <= core->config.max_op_keys &&
	       (!(takes & TAKES_NAMESPACE) || namespace_ok(core, session, sqe->namespace_id));
}

/** Whether every field that the operation does not take is 0. */
static bool unused_fields_zero(const struct kvt_sqe *sqe, uint32_t takes)
{
	if (!(takes & TAKES_NAMESPACE) && sqe->namespace_id)
		return false;
	if (!(takes & TAKES_KEYS) && (sqe->keys_offset || sqe->n_keys))
		return false;
	if (!(takes & TAKES_LIST) && (sqe->list_offset || sqe->list_capacity))
		return false;
	if (!(takes & TAKES_ARG) && sqe->arg)
		return false;
	if (!(takes & (TAKES_HANDLE | TAKES_LEASE)) && (sqe->node || sqe->generation))
		return false;
	if (!(takes & TAKES_HANDLE) && sqe->positions)
		return false;
	if (!(takes & TAKES_FENCE) &&
	    (sqe->fence_value || (sqe->fence_slot && sqe->fence_slot != KVT_FENCE_IDLE)))
		return false;
	return takes & TAKES_POLICY ||
	       (!sqe->priority && (!sqe->ttl_ms || sqe->op == KVT_OP_BEGIN));
}

static bool areas_ok(const struct kvt_op_context *op, uint32_t ps)
{
	const struct kvt_sqe *sqe = op->sqe;

	if ((uint64_t)sqe->keys_offset + sqe->n_keys > op->view->keys_count ||
	    (uint64_t)sqe->list_offset + sqe->list_capacity > op->view->list_count)
		return false;
	return sqe->op != KVT_OP_INSERT ||
	       (uint64_t)sqe->arg + sqe->n_keys / ps <= op->view->keys_count;
}

int kvt_lease_check(struct kvt_core *core, struct kvt_op_context *op, bool deferred)
{
	const struct kvt_sqe *sqe = op->sqe;
	const struct kvt_lease_record *lease;

	if (sqe->node == 0 || sqe->node > core->config.n_leases)
		return kvt_refuse(op, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	lease = &core->leases[sqe->node];
	if (!kvt_lease_alive(core, sqe->node) || lease->generation != sqe->generation ||
	    (!deferred && (lease->flags & KVT_LEASE_ENDING)))
		return kvt_refuse(op, -ESTALE, KVT_REASON_LEASE_STALE, 0);
	if (lease->session != op->session)
		return kvt_refuse(op, -EPERM, KVT_REASON_LEASE_FOREIGN, 0);
	if ((lease->kind == KVT_LEASE_MATCH) != (sqe->op == KVT_OP_UNLOCK))
		return kvt_refuse(op, -EINVAL, KVT_REASON_LEASE_KIND, 0);
	return 0;
}

/** Everything about an entry that can be judged before its fence is reached. */
static int validate(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	const struct kvt_session_record *session = &core->sessions[op->session];
	uint32_t takes;

	if (session->state != KVT_SESSION_OPEN)
		return kvt_refuse(op, -ESHUTDOWN, KVT_REASON_CLOSING, 0);
	if (sqe->op >= KVT_OP_COUNT)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_OP, 0);
	takes = op_rows[sqe->op].takes;
	if (sqe->flags & ~op_rows[sqe->op].flags ||
	    (sqe->op == KVT_OP_MATCH && sqe->flags == (KVT_F_LOCK | KVT_F_NO_TOUCH)) ||
	    (sqe->op == KVT_OP_BEGIN && (sqe->flags & KVT_F_WAIT) &&
	     (sqe->flags & KVT_F_NO_WAIT)) ||
	    (sqe->op == KVT_OP_END && (sqe->flags & (KVT_F_CHUNKED | KVT_F_KEEP)) &&
	     !(sqe->flags & KVT_F_COMMIT)))
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_FLAGS, 0);
	if (!unused_fields_zero(sqe, takes) ||
	    (sqe->op == KVT_OP_END && !(sqe->flags & KVT_F_COMMIT) &&
	     (sqe->arg || sqe->keys_offset || sqe->n_keys)))
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_FIELD, 0);
	if (sqe->op == KVT_OP_BEGIN && waits(sqe) != !!sqe->ttl_ms)
		return kvt_refuse(op, -EINVAL, KVT_REASON_DEADLINE, 0);
	if (sqe->op != KVT_OP_BEGIN && !!(sqe->flags & KVT_F_TTL) != !!sqe->ttl_ms)
		return kvt_refuse(op, -EINVAL, KVT_REASON_TTL, 0);
	if (sqe->fence_slot >= KVT_FENCE_WORDS && sqe->fence_slot != KVT_FENCE_IDLE)
		return kvt_refuse(op, -EINVAL, KVT_REASON_FENCE, 0);
	if (!areas_ok(op, core->ps))
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE, 0);
	if (sqe->n_keys > core->config.max_op_keys)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE, core->config.max_op_keys);
	if (takes & TAKES_NAMESPACE && !namespace_ok(core, op->session, sqe->namespace_id))
		return kvt_refuse(op, -EINVAL, KVT_REASON_NAMESPACE, 0);
	if (takes & TAKES_PRIVILEGE && !(session->flags & 1))
		return kvt_refuse(op, -EPERM, KVT_REASON_PRIVILEGE, 0);
	return takes & TAKES_LEASE ? kvt_lease_check(core, op, false) : 0;
}

/* While the daemon stops, nothing new is begun: what is leased may finish. */
static bool begins_lease(const struct kvt_sqe *sqe)
{
	return sqe->op == KVT_OP_BEGIN || sqe->op == KVT_OP_LOCK ||
	       ((sqe->op == KVT_OP_MATCH || sqe->op == KVT_OP_INSERT) &&
		(sqe->flags & KVT_F_LOCK));
}

void kvt_core_drain(struct kvt_core *core, bool draining, uint64_t now_ns)
{
	if (core->draining == draining)
		return;
	core->now_ns = now_ns;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->draining = draining;
	kvt_record_emit(core, KVT_REC_DRAIN, 0, draining);
	kvt_mutation_end(core);
}

/* ---- MATCH, LOCK, UNLOCK */

/** Lock exactly `pages` pages of the path to a node that holds the last of them; the whole edge
 * when there is no node left to split it. Fills the lease and the page list. */
static void lock_and_list(struct kvt_core *core, struct kvt_op_context *op, uint32_t node,
			  uint32_t pages)
{
	uint32_t id, end = 0;

	if (node != KVT_NONE) {
		uint32_t in_node = pages - core->nodes[node].start;

		if (in_node < core->nodes[node].n_slots && core->free_nodes.count > 0)
			node = kvt_node_split(core, node, in_node);
		end = core->nodes[node].start + core->nodes[node].n_slots;
		kvt_path_lock(core, node, KVT_NONE);
		kvt_path_touch(core, node);
		kvt_path_pages(core, node, pages, op->view->list + op->sqe->list_offset);
		op->cqe->node = node;
		op->cqe->generation = core->nodes[node].generation;
		op->cqe->positions = pages * core->ps;
	}
	id = kvt_lease_make(core, op->session, KVT_LEASE_MATCH, node, end);
	op->cqe->lease = id;
	op->cqe->lease_generation = core->leases[id].generation;
	op->cqe->e = pages;
}

static int op_match(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t pages = core->config.disabled ? 0 : sqe->n_keys / core->ps;
	struct kvt_walk walk;
	int error;

	kvt_walk_keys(core, sqe->namespace_id, op->keys, pages, &walk);
	core->effort.path_nodes = walk.path_nodes;
	core->record.known_node = walk.walked ? walk.node : KVT_NONE;
	core->record.known_positions = walk.walked * core->ps;
	if (sqe->flags & KVT_F_LOCK) {
		error = kvt_lease_quota(core, op);
		if (!error && walk.matched > sqe->list_capacity)
			error = kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, walk.matched);
		if (error)
			return error;
		lock_and_list(core, op, walk.match_node, walk.matched);
	} else if (walk.matched > 0) {
		if (!(sqe->flags & KVT_F_NO_TOUCH))
			kvt_path_touch(core, walk.match_node);
		op->cqe->node = walk.match_node;
		op->cqe->generation = core->nodes[walk.match_node].generation;
		op->cqe->positions = walk.matched * core->ps;
	}
	op->cqe->a = walk.matched * core->ps;
	op->cqe->b = (walk.walked - walk.matched) * core->ps;
	return 0;
}

/** A live handle's node, or the refusal. *ret_node is the shallowest node that covers it. */
static int handle_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t *ret_node)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t id = sqe->node, pages = sqe->positions / core->ps, holder;
	const struct kvt_node *node;

	if (id == KVT_NONE || id >= core->config.max_nodes)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	node = kvt_node_at(core, id);
	if (!(node->flags & KVT_NODE_LIVE) || node->generation != sqe->generation ||
	    kvt_path_detached(core, id))
		return kvt_refuse(op, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	if ((node->flags & KVT_NODE_ROOT) || pages == 0 || sqe->positions % core->ps)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	/* Below announced pages a node has none that are sealed: what counts is the node that holds
	 * the handle's last page, not the one that it names. */
	holder = kvt_path_node(core, id, pages - 1);
	if (pages > core->nodes[holder].start + core->nodes[holder].sealed)
		return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
	/* A node without a TTL may stand below one whose time has come. */
	for (uint32_t up = id; up != KVT_NONE; up = core->nodes[up].parent)
		if (kvt_expire_now(core, up))
			return kvt_refuse(op, -ESTALE, KVT_REASON_HANDLE_STALE, 0);
	*ret_node = holder;
	return 0;
}

static int op_lock(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t node = KVT_NONE, pages = op->sqe->positions / core->ps;
	int error = handle_check(core, op, &node);

	if (!error)
		error = kvt_lease_quota(core, op);
	if (!error && pages > op->sqe->list_capacity)
		error = kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, pages);
	if (error)
		return error;
	lock_and_list(core, op, node, pages);
	op->cqe->a = pages * core->ps;
	return 0;
}

/* ---- ALLOC, FREE */

static int op_alloc(struct kvt_core *core, struct kvt_op_context *op)
{
	uint64_t evicted = core->count->evicted_pages;
	uint32_t n = op->sqe->arg;
	int error = kvt_private_check(core, op, n);

	if (error)
		return error;
	kvt_room_make(core, n);
	kvt_undo_list(core, core->free_page, n);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t page = kvt_page_take(core, op->session, KVT_NONE);

		kvt_loose_add(core, op->session, page);
		op->view->list[op->sqe->list_offset + i] = page;
	}
	op->cqe->c = (uint32_t)(core->count->evicted_pages - evicted);
	op->cqe->e = n;
	return 0;
}

static int op_free(struct kvt_core *core, struct kvt_op_context *op)
{
	const uint32_t *pages = op->keys;
	uint32_t n = op->sqe->n_keys;
	int reason = kvt_pages_check(core, op->session, pages, n, NULL, 0);

	if (reason)
		return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, 0);
	kvt_undo_pages(core, op->session, KVT_NONE, KVT_PAGE_PRIVATE, core->op_pages, n);
	for (uint32_t i = 0; i < n; i++) {
		kvt_loose_remove(core, op->session, core->op_pages[i]);
		kvt_page_release(core, core->op_pages[i]);
	}
	op->cqe->d = n;
	return 0;
}

/* ---- INSERT */

struct insert_plan {
	uint32_t base;  /* pages before the given keys (start handle) */
	uint32_t pages; /* given */
	uint32_t fresh; /* of those, without a slot */
	uint32_t twins; /* of those, duplicates */
	struct kvt_walk walk;
	struct kvt_need need;
};

static int insert_walk(struct kvt_core *core, struct kvt_op_context *op, struct insert_plan *plan)
{
	const struct kvt_sqe *sqe = op->sqe;
	const uint32_t *keys = op->keys;
	struct kvt_walk *walk = &plan->walk;
	uint32_t node;
	int error;

	plan->pages = sqe->n_keys / core->ps;
	if (sqe->node == KVT_NONE) {
		if (sqe->generation || sqe->positions)
			return kvt_refuse(op, -EINVAL, KVT_REASON_HANDLE_BAD, 0);
		kvt_walk_keys(core, sqe->namespace_id, keys, plan->pages, walk);
		return 0;
	}
	error = handle_check(core, op, &node);
	if (error)
		return error;
	if (core->nodes[node].namespace_id != sqe->namespace_id)
		return kvt_refuse(op, -EINVAL, KVT_REASON_NOT_CONTINUATION, 0);
	plan->base = sqe->positions / core->ps;
	*walk = (struct kvt_walk){
		.root = node,
		.node = node,
		.match_node = node,
		.in_node = plan->base - core->nodes[node].start,
		.walked = plan->base,
		.matched = plan->base,
	};
	kvt_walk_from(core, walk, keys, plan->pages);
	return 0;
}

static int insert_plan(struct kvt_core *core, struct kvt_op_context *op, struct insert_plan *plan)
{
	const struct kvt_sqe *sqe = op->sqe;
	const uint32_t *keys;
	uint32_t existing, words;
	int error = insert_walk(core, op, plan), reason;

	if (error)
		return error;
	existing = plan->walk.matched - plan->base;
	plan->fresh = plan->base + plan->pages - plan->walk.walked;
	kvt_path_pages(core, plan->walk.node, plan->walk.matched, core->path_list);
	reason = kvt_pages_check(core, op->session, op->view->keys + sqe->arg, plan->pages,
				 core->path_list + plan->base, existing);
	if (reason)
		return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, 0);
	for (uint32_t i = 0; i < existing; i++)
		plan->twins += core->op_pages[i] != core->path_list[plan->base + i];
	words = 2 * plan->twins;
	if (sqe->flags & KVT_F_LOCK) {
		error = kvt_lease_quota(core, op);
		if (error)
			return error;
		words += plan->base + plan->pages;
	}
	if (words > sqe->list_capacity)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, words);
	keys = op->keys + (size_t)(plan->walk.walked - plan->base) * core->ps;
	if (plan->fresh > 0 && !kvt_walk_ends_new(core, &plan->walk, keys))
		return kvt_refuse(op, -EINVAL, KVT_REASON_KEYS_CHANGED, 0);
	kvt_need_compute(core, &plan->walk, plan->fresh, sqe->flags & KVT_F_LOCK, &plan->need);
	if (kvt_need_nodes(core, plan->walk.node, &plan->need))
		return kvt_refuse(op, -ENOSPC, KVT_REASON_NODES, 0);
	return 0;
}

/** Seal what has no page yet, from the first such place of the path to its end. */
static void insert_seal(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan, uint32_t deepest)
{
	uint32_t end = plan->base + plan->pages;

	kvt_undo_pages(core, op->session, KVT_NONE, KVT_PAGE_PRIVATE,
		       core->op_pages + plan->walk.matched - plan->base, end - plan->walk.matched);
	for (uint32_t page = plan->walk.matched; page < end;) {
		uint32_t id = kvt_path_node(core, deepest, page);
		uint32_t stop = kvt_min(end, core->nodes[id].start + core->nodes[id].n_slots);

		for (; page < stop; page++) {
			uint32_t given = core->op_pages[page - plan->base];

			kvt_loose_remove(core, op->session, given);
			kvt_node_seal(core, id, given);
		}
		kvt_leaf_check(core, id);
	}
	op->cqe->b = end - plan->walk.matched;
}

static void insert_list(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan)
{
	uint32_t *list = op->view->list + op->sqe->list_offset, n = 0;

	for (uint32_t i = 0; i < plan->walk.matched - plan->base; i++) {
		uint32_t twin = core->path_list[plan->base + i];

		if (core->op_pages[i] == twin)
			continue;
		list[n++] = core->op_pages[i];
		list[n++] = twin;
	}
	op->cqe->d = n / 2;
	op->cqe->e = n;
}

static void insert_lock(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan, uint32_t deepest)
{
	uint32_t *list = op->view->list + op->sqe->list_offset + op->cqe->e, id;
	uint32_t pages = plan->base + plan->pages;

	if (pages > 0) {
		kvt_path_lock(core, deepest, KVT_NONE);
		kvt_path_pages(core, deepest, pages, list);
	}
	id = kvt_lease_make(core, op->session, KVT_LEASE_MATCH, pages ? deepest : KVT_NONE, pages);
	op->cqe->lease = id;
	op->cqe->lease_generation = core->leases[id].generation;
	op->cqe->e += pages;
}

/** Caching is disabled: nothing is taken, and a LOCK is a lease that locks nothing, as MATCH's. */
static int insert_nothing(struct kvt_core *core, struct kvt_op_context *op)
{
	int error;

	if (!(op->sqe->flags & KVT_F_LOCK))
		return 0;
	error = kvt_lease_quota(core, op);
	if (error)
		return error;
	op->cqe->lease = kvt_lease_make(core, op->session, KVT_LEASE_MATCH, KVT_NONE, 0);
	op->cqe->lease_generation = core->leases[op->cqe->lease].generation;
	return 0;
}

static int op_insert(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint64_t expiry = sqe->flags & KVT_F_TTL ? core->now_ns + sqe->ttl_ms * 1000000ull :
						   KVT_NEVER;
	uint64_t evicted = core->count->evicted_pages;
	struct insert_plan plan = { 0 };
	uint32_t deepest = KVT_NONE;
	const uint32_t *keys;
	int error;

	if (core->config.disabled)
		return insert_nothing(core, op);
	error = insert_plan(core, op, &plan);
	core->record.pages = core->op_pages;
	core->record.n_pages = plan.pages;
	if (sqe->node == KVT_NONE && plan.walk.walked > 0) {
		core->record.known_node = plan.walk.node;
		core->record.known_positions = plan.walk.walked * core->ps;
	}
	if (error)
		return error;
	if (plan.base + plan.pages > 0) {
		if (plan.need.root)
			plan.walk.node = kvt_root_make(core, sqe->namespace_id);
		deepest = plan.need.split ? kvt_walk_cut(core, &plan.walk) : plan.walk.node;
		keys = op->keys + (size_t)(plan.walk.walked - plan.base) * core->ps;
		if (plan.fresh > 0)
			deepest = kvt_grow(core, deepest, core->first_page, keys, plan.fresh,
					   sqe->priority, expiry);
		insert_seal(core, op, &plan, deepest);
		kvt_path_raise(core, deepest, sqe->priority, expiry);
		if (!(sqe->flags & KVT_F_CHUNKED))
			kvt_path_count_hit(core, deepest);
		kvt_path_touch(core, deepest);
		op->cqe->node = deepest;
		op->cqe->generation = core->nodes[deepest].generation;
		op->cqe->positions = (plan.base + plan.pages) * core->ps;
	}
	insert_list(core, op, &plan);
	if (sqe->flags & KVT_F_LOCK)
		insert_lock(core, op, &plan, deepest);
	op->cqe->a = plan.walk.matched * core->ps;
	op->cqe->c = (uint32_t)(core->count->evicted_pages - evicted);
	return 0;
}

/* ---- REMOVE, EVICT, RESET, PAGE, STATS, AUDIT */

int kvt_remove_prefix(struct kvt_core *core, struct kvt_op_context *op, uint32_t namespace_id,
		      const uint32_t *keys, uint32_t n_keys, bool *ret_removed)
{
	uint32_t pages = n_keys / core->ps, in_node;
	struct kvt_walk walk;
	struct kvt_need need = { .split = 1 };

	*ret_removed = false;
	kvt_walk_keys(core, namespace_id, keys, pages, &walk);
	core->record.known_node = walk.walked ? walk.node : KVT_NONE;
	core->record.known_positions = walk.walked * core->ps;
	if (walk.root == KVT_NONE || walk.walked < pages || (n_keys > 0 && pages == 0))
		return 0;
	if (n_keys == 0) {
		walk.node = walk.root;
	} else {
		in_node = pages - 1 - core->nodes[walk.node].start;
		if (in_node > 0) {
			struct kvt_need path;

			kvt_need_compute(core, &walk, 0, false, &path);
			need.path_nodes = path.path_nodes;
			if (kvt_need_nodes(core, walk.node, &need))
				return kvt_refuse(op, -ENOSPC, KVT_REASON_NODES, 0);
			kvt_node_split(core, walk.node, in_node);
		}
	}
	kvt_detach(core, walk.node);
	*ret_removed = true;
	return 0;
}

static int op_remove(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	bool removed = false;
	int error = kvt_remove_prefix(core, op, sqe->namespace_id,
				      op->keys, sqe->n_keys, &removed);

	if (!error)
		op->cqe->a = removed;
	return error;
}

static int op_evict(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t n = op->sqe->arg;

	if (n > core->count->evictable_pages)
		n = (uint32_t)core->count->evictable_pages;
	kvt_evict_pages(core, n);
	op->cqe->c = n;
	return 0;
}

void kvt_reset_all(struct kvt_core *core)
{
	core->count->detached_pending += core->n_roots - core->stale_roots;
	core->stale_roots = core->n_roots;
	core->wake_due = true;
	/* Last: a client that sees it must not see it go back, should we die in between. */
	kvt_store_release(&core->arena->epoch, core->arena->epoch + 1);
	core->epoch_leases = core->cut_leases = 0;
}

static int op_page(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_admin_page page;

	if (!kvt_core_describe_page(core, op->sqe->arg, &page))
		return kvt_refuse(op, -EINVAL, KVT_REASON_PAGE_RANGE, 0);
	op->cqe->a = page.state;
	op->cqe->b = page.session;
	op->cqe->d = page.lock_ref;
	op->cqe->node = page.node;
	op->cqe->generation = page.generation;
	op->cqe->positions = page.position;
	return 0;
}

static int op_stats(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t words = sizeof(*core->count) / sizeof(uint32_t);

	if (op->sqe->list_capacity < words)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, words);
	memcpy(op->view->list + op->sqe->list_offset, core->count, sizeof(*core->count));
	op->cqe->e = words;
	return 0;
}

/* ---- the switch */

static int run(struct kvt_core *core, struct kvt_op_context *op)
{
	switch (op->sqe->op) {
	case KVT_OP_NOP:
		return 0;
	case KVT_OP_MATCH:
		return op_match(core, op);
	case KVT_OP_LOCK:
		return op_lock(core, op);
	case KVT_OP_UNLOCK:
		kvt_lease_end_join(core, op->sqe->node);
		return 0;
	case KVT_OP_ALLOC:
		return op_alloc(core, op);
	case KVT_OP_FREE:
		return op_free(core, op);
	case KVT_OP_INSERT:
		return op_insert(core, op);
	case KVT_OP_BEGIN:
		return op->waiter && (op->sqe->flags & KVT_F_NO_WAIT) ?
			       kvt_wait_notice(core, op) :
			       kvt_op_begin(core, op);
	case KVT_OP_COMMIT:
		return kvt_op_commit(core, op);
	case KVT_OP_EXTEND:
		return kvt_op_extend(core, op);
	case KVT_OP_END:
		return kvt_op_end(core, op);
	case KVT_OP_REMOVE:
		return op_remove(core, op);
	case KVT_OP_PAGE:
		return op_page(core, op);
	case KVT_OP_EVICT:
		return op_evict(core, op);
	case KVT_OP_RESET:
		kvt_reset_all(core);
		return 0;
	case KVT_OP_STATS:
		return op_stats(core, op);
	case KVT_OP_AUDIT:
		op->cqe->a = kvt_core_audit(core, NULL, NULL);
		return 0;
	case KVT_OP_CLOSE:
		op->cqe->d = kvt_close_now(core, op->session);
		return 0;
	default:
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_OP, 0);
	}
}

static void finish(struct kvt_core *core, struct kvt_op_context *op, int error, uint64_t token)
{
	struct kvt_session_record *session = &core->sessions[op->session];
	struct kvt_cqe *cqe = op->cqe;

	if (error)
		*cqe = (struct kvt_cqe){
			.result = error, .reason = cqe->reason, .flags = cqe->flags, .a = cqe->a,
			.b = cqe->b,
		};
	kvt_undo_progress(core, op->session);
	cqe->user_data = op->sqe->user_data;
	cqe->seq = core->ledger->seq + 1;
	if (!(cqe->flags & KVT_CQE_ASYNC)) { /* counted when it was answered first */
		core->count->operations++;
		session->operations++;
	}
	session->sq_taken += token == 0;
	session->last_cqe[session->cq_done & 1] = *cqe;
	session->cq_done++;
	if (core->hooks.record) {
		struct kvt_record *record = &core->record;

		record->sqe = *op->sqe;
		record->cqe = *cqe;
		/* An entry that was refused for something else may name keys that are not there. */
		if (areas_ok(op, core->ps) && op->sqe->n_keys <= core->config.max_op_keys) {
			record->keys = op->keys;
			record->n_keys = op->sqe->n_keys;
			record->list = op->view->list + op->sqe->list_offset;
			record->n_list = error ? 0 : cqe->e;
		}
	}
	kvt_record_emit(core, KVT_REC_OP, op->session, token);
}

/** Where the operation reads its keys. A log must hold the keys that were acted on, and a client
 * may change its own at any moment: so a logged operation runs on a copy. */
static void find_keys(struct kvt_core *core, struct kvt_op_context *op)
{
	op->keys = NULL;
	if (!areas_ok(op, core->ps) || op->sqe->n_keys > core->config.max_op_keys)
		return;
	op->keys = op->view->keys + op->sqe->keys_offset;
	if (!core->hooks.record)
		return;
	kvt_racy_copy(core->log_keys, op->keys, op->sqe->n_keys);
	op->keys = core->log_keys;
}

/** A BEGIN waits. With NO_WAIT it says so; returns whether there is a completion. */
static bool begin_waits(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t announced = (op->goal - op->matched) * core->ps;
	bool again = op->waiter != KVT_NONE;
	uint64_t token;

	kvt_wait_begin(core, op);
	token = core->pending[op->waiter].token;
	if (!again && (op->sqe->flags & KVT_F_WAIT)) {
		kvt_undo_progress(core, op->session);
		core->sessions[op->session].sq_taken++;
	}
	if (again || (op->sqe->flags & KVT_F_WAIT)) {
		kvt_wait_emit(core, op, again ? token : 0);
		return false;
	}
	finish(core, op, kvt_refuse(op, -EAGAIN, KVT_REASON_ANNOUNCED, announced), 0);
	kvt_record_start(core);
	kvt_wait_emit(core, op, token);
	return true;
}

bool kvt_op_run(struct kvt_core *core, struct kvt_op_context *op, uint64_t token)
{
	bool answered = true;
	int error = 0;

	if (token) /* it waited: the keys are read now */
		find_keys(core, op);
	kvt_mutation_begin(core);
	if (token && !areas_ok(op, core->ps)) /* it waited for a session that came back with less */
		error = kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE, 0);
	else if (token && kvt_op_takes_lease(op->sqe->op))
		error = kvt_lease_check(core, op, true);
	if (!error)
		error = run(core, op);
	if (error == KVT_WAITS) {
		answered = begin_waits(core, op);
	} else {
		if (op->waiter)
			kvt_wait_end(core, op, error);
		if (op->deferred)
			kvt_pending_forget(core, op->deferred, op->before);
		finish(core, op, error, token);
	}
	kvt_mutation_end(core);
	return answered;
}

void kvt_op_cancel(struct kvt_core *core, struct kvt_op_context *op, uint64_t token)
{
	kvt_record_start(core);
	find_keys(core, op);
	kvt_mutation_begin(core);
	kvt_wait_end(core, op, -ECANCELED);
	finish(core, op, kvt_refuse(op, -ECANCELED, KVT_REASON_CLOSING, 0), token);
	kvt_mutation_end(core);
}

bool kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
		      uint64_t now_ns, struct kvt_cqe *ret_cqe)
{
	struct kvt_op_context op = {
		.session = session,
		.sqe = sqe,
		.view = &core->views[session],
		.cqe = ret_cqe,
	};
	int error;

	KVT_ASSERT(session > 0 && session <= core->config.max_sessions);
	core->now_ns = now_ns;
	if (core->expiry.count > 0)
		kvt_expire_due(core, 16);
	kvt_wake(core);
	core->effort = (struct kvt_core_effort){ 0 };
	kvt_record_start(core);
	memset(ret_cqe, 0, sizeof(*ret_cqe));
	find_keys(core, &op);
	error = validate(core, &op);
	if (error || (core->draining && begins_lease(sqe))) {
		kvt_mutation_begin(core);
		if (error)
			core->count->violations++;
		else
			error = kvt_refuse(&op, -ESHUTDOWN, KVT_REASON_DRAINING, 0);
		finish(core, &op, error, 0);
		kvt_mutation_end(core);
		return true;
	}
	if (sqe->op == KVT_OP_CLOSE && core->sessions[session].n_waiters > 0) {
		kvt_waiters_cancel(core, session);
		kvt_record_start(core);
	}
	if (kvt_op_takes_fence(sqe->op) && kvt_defer(core, &op))
		return false;
	return kvt_op_run(core, &op, 0);
}

uint32_t kvt_core_evict(struct kvt_core *core, uint32_t n, uint64_t now_ns)
{
	core->now_ns = now_ns;
	kvt_wake(core);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	if (n > core->count->evictable_pages)
		n = (uint32_t)core->count->evictable_pages;
	kvt_evict_pages(core, n);
	core->record.sqe = (struct kvt_sqe){ .op = KVT_OP_EVICT, .arg = n };
	core->record.cqe = (struct kvt_cqe){ .c = n };
	kvt_record_emit(core, KVT_REC_ADMIN, 0, 0);
	kvt_mutation_end(core);
	return n;
}

void kvt_core_reset(struct kvt_core *core, uint64_t now_ns)
{
	core->now_ns = now_ns;
	kvt_wake(core);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	kvt_reset_all(core);
	core->record.sqe = (struct kvt_sqe){ .op = KVT_OP_RESET };
	kvt_record_emit(core, KVT_REC_ADMIN, 0, 0);
	kvt_mutation_end(core);
}

int kvt_core_remove(struct kvt_core *core, uint32_t namespace_id, const uint32_t *keys,
		    uint32_t n_keys, uint64_t now_ns, bool *ret_removed)
{
	struct kvt_sqe sqe = { .op = KVT_OP_REMOVE, .namespace_id = namespace_id,
			       .n_keys = n_keys };
	struct kvt_cqe cqe = { 0 };
	struct kvt_op_context op = { .sqe = &sqe, .cqe = &cqe, .keys = keys };
	int error;

	if (namespace_id == 0 || namespace_id >= core->config.max_namespaces ||
	    !core->namespaces[namespace_id].flags)
		return -ENOENT;
	core->now_ns = now_ns;
	kvt_wake(core);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	error = kvt_remove_prefix(core, &op, namespace_id, keys, n_keys, ret_removed);
	if (!error)
		cqe.a = *ret_removed;
	cqe.result = error;
	core->record.sqe = sqe;
	core->record.cqe = cqe;
	core->record.keys = keys;
	core->record.n_keys = n_keys;
	kvt_record_emit(core, KVT_REC_ADMIN, 0, 0);
	kvt_mutation_end(core);
	return error;
}
