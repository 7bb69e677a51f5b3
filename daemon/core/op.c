/* SPDX-License-Identifier: Apache-2.0 */

/* The switch over all operations, and those that are not a sequence's.
 *
 * Input is an operation whose entry was checked; its lease, if it names one, is alive and its own.
 * An operation that refuses, waits or comes upon an expired node has changed nothing. The caller,
 * run.c, opens and closes the effect around it and answers it. */

#include <errno.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/detach.h"
#include "daemon/core/entry.h"
#include "daemon/core/evict.h"
#include "daemon/core/grow.h"
#include "daemon/core/leaf.h"
#include "daemon/core/lease.h"
#include "daemon/core/op.h"
#include "daemon/core/page.h"
#include "daemon/core/session.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "daemon/core/wait.h"
#include "daemon/core/walk.h"
#include "kvtrunk_wire_admin.h"

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
	op->cqe->n_list = pages;
}

static int op_match(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	struct kvt_walk walk;
	int error;

	error = kvt_walk_entry(core, op, sqe->n_keys / core->ps, &walk);
	if (error)
		return error;
	if (sqe->flags & KVT_F_LOCK) {
		error = kvt_lease_quota(core, op);
		if (!error)
			error = kvt_lock_quota(core, op, walk.match_node, walk.matched);
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
	op->cqe->match.matched = walk.matched * core->ps;
	op->cqe->match.announced = (walk.walked - walk.matched) * core->ps;
	op->cqe->match.usable =
		kvt_walk_usable(core, walk.match_node, walk.matched) * core->ps;
	return 0;
}

static int op_lock(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t node = KVT_NONE, pages = 0;
	int error = kvt_handle_check(core, op, &node, &pages);

	if (!error)
		error = kvt_lease_quota(core, op);
	if (!error)
		error = kvt_lock_quota(core, op, node, pages);
	if (!error && pages > op->sqe->list_capacity)
		error = kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, pages);
	if (error)
		return error;
	lock_and_list(core, op, node, pages);
	op->cqe->lock.matched = pages * core->ps;
	return 0;
}

/* ---- ALLOC, FREE */

static int op_alloc(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t n = op->sqe->arg, taken;
	int error;

	if (op->sqe->flags & KVT_F_SHORTER && n > 1) {
		n = kvt_private_most(core, op, n);
		n += n == 0; /* refused */
	}
	error = kvt_private_check(core, op, n);
	if (error)
		return error;
	kvt_room_make(core, n - op->own);
	kvt_save_list(core, core->free_page, n - op->own);
	taken = kvt_own_take(core, op->session, op->own);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t page = i < op->own ? kvt_own_next(core, &taken) :
					      kvt_page_take(core, op->session, KVT_NONE);

		kvt_loose_add(core, op->session, page);
		op->view->list[op->sqe->list_offset + i] = page;
	}
	op->cqe->alloc.evicted = core->n_out;
	op->cqe->n_list = n;
	return 0;
}

static int op_free(struct kvt_core *core, struct kvt_op_context *op)
{
	const uint32_t *pages = op->keys;
	uint32_t n = op->sqe->n_keys;
	int reason = kvt_pages_check(core, op->session, pages, n, NULL, 0);

	if (reason)
		return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, 0);
	kvt_save_pages(core, op->session, core->op_pages, n);
	for (uint32_t i = 0; i < n; i++) {
		kvt_loose_remove(core, op->session, core->op_pages[i]);
		kvt_page_release(core, core->op_pages[i]);
	}
	op->cqe->free.freed = n;
	return 0;
}

/* ---- INSERT */

struct insert_plan {
	uint32_t pages; /* given */
	uint32_t fresh; /* of those, without a slot */
	uint32_t twins; /* of those, duplicates */
	uint64_t expiry_ns;
	struct kvt_walk walk;
	struct kvt_need need;
};

/** True if INSERT raises priority or expiry of its last node, which then must end where it ends. */
static bool raises_last(const struct kvt_core *core, const struct kvt_sqe *sqe,
			const struct insert_plan *plan)
{
	const struct kvt_node *node = kvt_node_at(core, plan->walk.node);

	return sqe->priority > node->priority || plan->expiry_ns > node->expiry_ns;
}

static int insert_plan(struct kvt_core *core, struct kvt_op_context *op, struct insert_plan *plan)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t existing, words;
	int error, reason;
	bool exact;

	plan->pages = sqe->n_keys / core->ps;
	error = kvt_walk_entry(core, op, plan->pages, &plan->walk);
	if (error)
		return error;
	existing = plan->walk.matched - plan->walk.named;
	plan->fresh = plan->walk.named + plan->pages - plan->walk.walked;
	kvt_path_pages(core, plan->walk.node, plan->walk.matched, core->path_list);
	reason = kvt_pages_check(core, op->session, op->view->keys + sqe->arg, plan->pages,
				 core->path_list + plan->walk.named, existing);
	if (reason)
		return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, 0);
	for (uint32_t i = 0; i < existing; i++)
		plan->twins += core->op_pages[i] != core->path_list[plan->walk.named + i];
	words = 2 * plan->twins;
	if (sqe->flags & KVT_F_LOCK) {
		error = kvt_lease_quota(core, op);
		if (error)
			return error;
		words += plan->walk.named + plan->pages;
	}
	if (words > sqe->list_capacity)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, words);
	if (plan->fresh > 0 && !kvt_walk_ends_new(core, op, &plan->walk))
		return kvt_refuse(op, -EINVAL, KVT_REASON_KEYS_CHANGED, 0);
	exact = sqe->flags & KVT_F_LOCK ||
		(plan->walk.node != KVT_NONE && raises_last(core, sqe, plan));
	kvt_need_compute(core, &plan->walk, plan->fresh, exact, &plan->need);
	if (kvt_need_nodes(core, plan->walk.node, &plan->need))
		return kvt_refuse(op, -ENOSPC, KVT_REASON_NODES, 0);
	return 0;
}

/** Seal what has no page yet, from the first such place of the path to its end. */
static void insert_seal(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan, uint32_t deepest)
{
	uint32_t end = plan->walk.named + plan->pages;

	kvt_save_pages(core, op->session, core->op_pages + plan->walk.matched - plan->walk.named,
		       end - plan->walk.matched);
	for (uint32_t page = plan->walk.matched; page < end;) {
		uint32_t id = kvt_path_node(core, deepest, page);
		uint32_t stop = kvt_min(end, core->nodes[id].start + core->nodes[id].n_slots);
		uint32_t first = page;

		for (; page < stop; page++) {
			uint32_t given = core->op_pages[page - plan->walk.named];

			kvt_loose_remove(core, op->session, given);
			kvt_node_seal(core, id, given);
		}
		kvt_node_sealed(core, id, stop - first);
		kvt_leaf_check(core, id);
	}
	op->cqe->insert.inserted = end - plan->walk.matched;
	kvt_tally_sealed(core, op->session, op->sqe->namespace_id, end - plan->walk.matched);
}

static void insert_list(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan)
{
	uint32_t *list = op->view->list + op->sqe->list_offset, n = 0;

	for (uint32_t i = 0; i < plan->walk.matched - plan->walk.named; i++) {
		uint32_t twin = core->path_list[plan->walk.named + i];

		if (core->op_pages[i] == twin)
			continue;
		list[n++] = core->op_pages[i];
		list[n++] = twin;
	}
	op->cqe->insert.n_twins = n / 2;
	op->cqe->n_list = n;
}

static void insert_lock(struct kvt_core *core, struct kvt_op_context *op,
			const struct insert_plan *plan, uint32_t deepest)
{
	uint32_t *list = op->view->list + op->sqe->list_offset + op->cqe->n_list, id;
	uint32_t pages = plan->walk.named + plan->pages;

	if (pages > 0) {
		kvt_path_lock(core, deepest, KVT_NONE);
		kvt_path_pages(core, deepest, pages, list);
	}
	id = kvt_lease_make(core, op->session, KVT_LEASE_MATCH, pages ? deepest : KVT_NONE, pages);
	op->cqe->lease = id;
	op->cqe->lease_generation = core->leases[id].generation;
	op->cqe->n_list += pages;
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
	struct insert_plan plan = { .expiry_ns = KVT_NEVER };
	uint32_t deepest = KVT_NONE;
	int error;

	if (core->config.disabled)
		return insert_nothing(core, op);
	if (sqe->flags & KVT_F_TTL)
		plan.expiry_ns = core->now_ns + sqe->ttl_ms * 1000000ull;
	error = insert_plan(core, op, &plan);
	core->record.pages = core->op_pages;
	core->record.n_pages = plan.pages;
	if (error)
		return error;
	if (plan.walk.named + plan.pages > 0) {
		if (plan.need.root)
			plan.walk.node = kvt_root_make(core, sqe->namespace_id);
		deepest = plan.need.split ? kvt_walk_cut(core, &plan.walk) : plan.walk.node;
		if (plan.fresh > 0)
			deepest = kvt_grow(core, deepest, plan.walk.root_key, core->first_page,
					   kvt_walk_rest(core, op, &plan.walk), plan.fresh,
					   sqe->priority, plan.expiry_ns);
		insert_seal(core, op, &plan, deepest);
		kvt_path_raise(core, deepest, sqe->priority, plan.expiry_ns);
		if (!(sqe->flags & KVT_F_CHUNKED))
			kvt_path_count_use(core, deepest);
		kvt_path_touch(core, deepest);
		op->cqe->node = deepest;
		op->cqe->generation = core->nodes[deepest].generation;
		op->cqe->positions = (plan.walk.named + plan.pages) * core->ps;
	}
	insert_list(core, op, &plan);
	core->count->duplicate_pages += plan.twins;
	if (sqe->flags & KVT_F_LOCK)
		insert_lock(core, op, &plan, deepest);
	op->cqe->insert.existed = plan.walk.matched * core->ps;
	op->cqe->insert.evicted = core->n_out;
	return 0;
}

/* ---- REMOVE, LEAVE, EVICT, RESET, PAGE, SUSPECT, STATS, AUDIT */

int kvt_remove_prefix(struct kvt_core *core, struct kvt_op_context *op, uint32_t namespace_id,
		      uint64_t root_key, const uint32_t *keys, uint32_t n_keys,
		      bool *ret_removed)
{
	uint32_t damaged = op->sqe->flags & KVT_F_DAMAGED ? KVT_NODE_DAMAGED : 0;
	uint32_t pages = n_keys / core->ps, in_node;
	struct kvt_walk walk;
	struct kvt_need need = { .split = 1 };
	int error = kvt_walk_keys(core, namespace_id, root_key, keys, pages, &walk);

	*ret_removed = false;
	if (error)
		return error;
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
	op->cqe->remove.lock_ref = core->nodes[walk.node].lock_ref;
	kvt_detach(core, walk.node, KVT_NODE_REMOVED | damaged);
	core->count->damaged_pages += damaged != 0;
	*ret_removed = true;
	return 0;
}

static int op_remove(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	bool removed = false;
	int error = kvt_remove_prefix(core, op, sqe->namespace_id, op->root_key, op->keys,
				      sqe->n_keys, &removed);

	if (!error)
		op->cqe->remove.state = removed;
	return error;
}

static int op_leave(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t held = kvt_space_held(core, op->session, op->sqe->namespace_id);

	if (held)
		return kvt_refuse(op, -EBUSY, KVT_REASON_NAMESPACE_HELD, held);
	kvt_space_close(core, op->session, op->sqe->namespace_id);
	return 0;
}

static int op_evict(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t n = op->sqe->arg;

	if (n > core->count->evictable_pages)
		n = (uint32_t)core->count->evictable_pages;
	kvt_evict_pages(core, n);
	op->cqe->evict.evicted = core->n_out;
	return 0;
}

void kvt_reset_all(struct kvt_core *core)
{
	core->count->detached_pending += core->n_roots - core->stale_roots;
	core->stale_roots = core->n_roots;
	core->wake_due = true;
	/* Last: after a crash a client must not see it go back. */
	kvt_store_release(&core->arena->epoch, core->arena->epoch + 1);
	core->epoch_leases = core->cut_leases = 0;
}

static int op_page(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_admin_page page;

	if (!kvt_core_describe_page(core, op->sqe->arg, &page))
		return kvt_refuse(op, -EINVAL, KVT_REASON_PAGE_RANGE, 0);
	op->cqe->page.state = page.state;
	op->cqe->page.owner = page.session;
	op->cqe->page.sealer =
		core->pages[page.page].state == KVT_PAGE_CACHED ? core->pages[page.page].sealer : 0;
	op->cqe->page.lock_ref = page.lock_ref;
	op->cqe->node = page.node;
	op->cqe->generation = page.generation;
	op->cqe->positions = page.position;
	return 0;
}

/** The session that sealed a page, if it has not gone; else 0. */
static uint32_t sealer_of(const struct kvt_core *core, uint32_t page)
{
	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		if (core->sessions[id].state != KVT_SESSION_FREE && core->pages[page].sealer &&
		    core->sessions[id].sealer == core->pages[page].sealer)
			return id;
	return 0;
}

static int op_suspect(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t page = op->sqe->arg, owner;

	if (page >= core->config.n_pages)
		return kvt_refuse(op, -EINVAL, KVT_REASON_PAGE_RANGE, 0);
	if (core->pages[page].state != KVT_PAGE_CACHED)
		return kvt_refuse(op, -EINVAL, KVT_REASON_PAGE_NOT_CACHED, 0);
	owner = sealer_of(core, page);
	kvt_save(core, &core->sessions[op->session], KVT_SESSION_FACTS);
	core->sessions[op->session].suspects++;
	if (owner) {
		kvt_save(core, &core->sessions[owner], KVT_SESSION_FACTS);
		core->sessions[owner].suspected++;
	}
	core->count->suspected_pages++;
	op->cqe->suspect.owner = owner;
	return 0;
}

static int op_stats(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t words = sizeof(*core->count) / sizeof(uint32_t);

	if (op->sqe->list_capacity < words)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, words);
	memcpy(op->view->list + op->sqe->list_offset, core->count, sizeof(*core->count));
	op->cqe->n_list = words;
	return 0;
}

/* ---- the switch */

int kvt_op_run(struct kvt_core *core, struct kvt_op_context *op)
{
	uint32_t none = KVT_NONE;

	switch (op->sqe->op) {
	case KVT_OP_NOP:
		return 0;
	case KVT_OP_MATCH:
		return op_match(core, op);
	case KVT_OP_LOCK:
		return op_lock(core, op);
	case KVT_OP_UNLOCK:
		kvt_lease_end_join(core, op->sqe->node, &none);
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
	case KVT_OP_LEAVE:
		return op_leave(core, op);
	case KVT_OP_PAGE:
		return op_page(core, op);
	case KVT_OP_SUSPECT:
		return op_suspect(core, op);
	case KVT_OP_EVICT:
		return op_evict(core, op);
	case KVT_OP_RESET:
		kvt_reset_all(core);
		return 0;
	case KVT_OP_STATS:
		return op_stats(core, op);
	case KVT_OP_AUDIT:
		if (core->no_memory)
			return kvt_refuse(op, -ENOMEM, KVT_REASON_MEMORY, 0);
		op->cqe->audit.problems = kvt_core_audit(core, NULL, NULL);
		return 0;
	case KVT_OP_CLOSE:
		op->cqe->close.freed = kvt_close_now(core, op->session);
		return 0;
	default:
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_OP, 0);
	}
}
