/* SPDX-License-Identifier: Apache-2.0 */

/* Leases, and the four operations of a sequence: BEGIN COMMIT EXTEND END.
 *
 * Input is an operation whose entry was checked. Each decides everything in a plan, refuses or
 * makes room, and only then changes state. Invariants: a lease's table is `done` cached pages of
 * its path, then its private pages in order; every announced page of its path has a private page
 * behind it. Callers: op.c, and the end of a session. */

#include <errno.h>
#include <string.h>

#include "daemon/core/attach.h"
#include "daemon/core/compact.h"
#include "daemon/core/entry.h"
#include "daemon/core/evict.h"
#include "daemon/core/grow.h"
#include "daemon/core/lease.h"
#include "daemon/core/ledger.h"
#include "daemon/core/page.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"
#include "daemon/core/wait.h"
#include "daemon/core/walk.h"

/* ---- records */

/** Check that the session may have one more lease: 0 or the refusal. */
int kvt_lease_quota(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_session_record *session = &core->sessions[op->session];

	if (session->max_leases && session->n_leases >= session->max_leases)
		return kvt_refuse(op, -EDQUOT, KVT_REASON_LIMIT_LEASES, session->max_leases);
	if (core->free_leases.count == 0)
		return kvt_refuse(op, -ENOSPC, KVT_REASON_LEASES, 0);
	return 0;
}

/* A session's list begins with the lease that it took last. */
void kvt_lease_list(struct kvt_core *core, uint32_t id)
{
	struct kvt_lease_record *lease = &core->leases[id];
	struct kvt_session_record *owner = &core->sessions[lease->session];

	lease->next_lease = owner->first_lease;
	if (owner->first_lease != KVT_NONE)
		core->leases[owner->first_lease].prev_lease = id;
	else
		owner->last_lease = id;
	owner->first_lease = id;
	owner->n_leases++;
	core->epoch_leases += lease->epoch == core->arena->epoch;
	core->count->live_leases++;
}

static void unlist(struct kvt_core *core, const struct kvt_lease_record *lease)
{
	struct kvt_session_record *owner = &core->sessions[lease->session];

	if (lease->prev_lease != KVT_NONE)
		core->leases[lease->prev_lease].next_lease = lease->next_lease;
	else
		owner->first_lease = lease->next_lease;
	if (lease->next_lease != KVT_NONE)
		core->leases[lease->next_lease].prev_lease = lease->prev_lease;
	else
		owner->last_lease = lease->prev_lease;
	owner->n_leases--;
	core->epoch_leases -= lease->epoch == core->arena->epoch;
	core->count->live_leases--;
}

/* Between free leases next_lease KVT_NONE stands for the next number: so one that was never used
 * is never written, and takes no memory. */
void kvt_lease_queue(struct kvt_core *core, uint32_t id)
{
	struct kvt_fifo *fifo = &core->free_leases;

	if (fifo->count++ == 0)
		fifo->head = id;
	else if (id != fifo->tail + 1)
		core->leases[fifo->tail].next_lease = id;
	fifo->tail = id;
}

uint32_t kvt_lease_make(struct kvt_core *core, uint32_t session, uint32_t kind, uint32_t node,
			uint32_t path_pages)
{
	uint32_t id = core->free_leases.head;
	struct kvt_lease_record *lease = &core->leases[id];

	KVT_ASSERT(id != KVT_NONE && lease->kind == KVT_LEASE_FREE);
	if (--core->free_leases.count == 0)
		core->free_leases = (struct kvt_fifo){ 0 };
	else
		core->free_leases.head = lease->next_lease ? lease->next_lease : id + 1;
	kvt_save_lease(core, id);
	*lease = (struct kvt_lease_record){
		.kind = (uint16_t)kind,
		.generation = lease->generation,
		.session = session,
		.node = node,
		.path_pages = path_pages,
		.epoch = core->arena->epoch,
		.begun_ns = core->now_ns,
		.sealed_ns = core->now_ns,
		.ticket = ++core->ledger->tickets,
	};
	kvt_lease_list(core, id);
	return id;
}

void kvt_lease_point(struct kvt_core *core, uint32_t id)
{
	core->pointed_at[id] = core->n_points;
	core->pointed[core->n_points++] = id;
}

/** Forget the point of a lease. The caller has saved it. */
static void forget_point(struct kvt_core *core, uint32_t id)
{
	uint32_t at = core->pointed_at[id], last = core->pointed[--core->n_points];

	core->leases[id].point = 0;
	core->pointed[at] = last;
	core->pointed_at[last] = at;
	core->wake_due = true;
}

void kvt_lease_free(struct kvt_core *core, uint32_t id)
{
	struct kvt_lease_record *lease = &core->leases[id];

	kvt_save_lease(core, id);
	if (lease->point > 0)
		forget_point(core, id);
	unlist(core, lease);
	core->wake_due = true;
	*lease = (struct kvt_lease_record){ .generation = lease->generation + 1,
					    .ticket = ++core->ledger->tickets };
	kvt_lease_queue(core, id);
}

/* ---- pages behind a fence, for their own session */

/* Pages in a lease's table that nothing will seal: an END waits for its fence, and neither the keys
 * that are known nor those that deferred operations bring have a place there. So a COMMIT that
 * waits runs as if nothing was taken, and each announced page keeps its private one. */
static uint32_t spare_pages(const struct kvt_core *core, const struct kvt_lease_record *lease)
{
	uint64_t keep = (lease->known + lease->pending_keys + core->ps - 1) / core->ps;
	uint32_t table = lease->done + lease->n_private;

	return keep < table ? kvt_min(lease->n_private, table - (uint32_t)keep) : 0;
}

/** Count the pages, up to `most`, that the session may take from its leases that end. */
static uint32_t own_pages(struct kvt_core *core, uint32_t session, uint32_t most)
{
	uint32_t n = 0, id;

	for (id = core->sessions[session].first_pending; id != KVT_NONE && n < most;
	     id = core->pending[id].next) {
		const struct kvt_lease_record *lease = &core->leases[core->pending[id].lease];

		if (core->pending[id].sqe.op == KVT_OP_END)
			n += spare_pages(core, lease) + lease->n_kept;
		core->effort.nodes_touched++;
	}
	return kvt_min(n, most);
}

/** Put the last n pages of a lease's table in front of a list. Returns the first one. */
static uint32_t cut_table(struct kvt_core *core, struct kvt_lease_record *lease, uint32_t n,
			  uint32_t list)
{
	uint32_t page = lease->first_page, last = KVT_NONE;

	for (uint32_t i = n; i < lease->n_private; i++) {
		last = page;
		page = core->owners[page].next;
	}
	kvt_save_list(core, last == KVT_NONE ? page : last, n + 1);
	core->owners[lease->last_page].next = list;
	if (last == KVT_NONE)
		lease->first_page = KVT_NONE;
	else
		core->owners[last].next = KVT_NONE;
	lease->last_page = last;
	lease->n_private -= n;
	return page;
}

static uint32_t cut_kept(struct kvt_core *core, struct kvt_lease_record *lease, uint32_t n,
			 uint32_t list)
{
	kvt_save_list(core, lease->first_kept, n);
	for (; n > 0; n--) {
		uint32_t page = lease->first_kept;

		lease->first_kept = core->owners[page].next;
		lease->n_kept--;
		core->owners[page].next = list;
		list = page;
	}
	return list;
}

uint32_t kvt_own_take(struct kvt_core *core, uint32_t session, uint32_t n)
{
	uint32_t list = KVT_NONE, id = core->sessions[session].first_pending;

	core->effort.pages_moved += n;
	for (; n > 0; id = core->pending[id].next) {
		uint32_t lease_id = core->pending[id].lease, some;
		struct kvt_lease_record *lease = &core->leases[lease_id];

		if (core->pending[id].sqe.op != KVT_OP_END)
			continue;
		kvt_save_lease(core, lease_id);
		some = kvt_min(n, spare_pages(core, lease));
		n -= some;
		if (some > 0)
			list = cut_table(core, lease, some, list);
		some = kvt_min(n, lease->n_kept);
		n -= some;
		list = cut_kept(core, lease, some, list);
	}
	return list;
}

uint32_t kvt_own_next(struct kvt_core *core, uint32_t *list)
{
	uint32_t page = *list;

	*list = core->owners[page].next;
	core->owners[page].next = KVT_NONE;
	return page;
}

/* ---- pages of a lease, in table order */

static void append_page(struct kvt_core *core, struct kvt_lease_record *lease, uint32_t page)
{
	if (lease->n_private++ == 0)
		lease->first_page = page;
	else
		core->owners[lease->last_page].next = page;
	lease->last_page = page;
}

/** Append n pages, `own` of them from ended leases of the session. */
static void append_pages(struct kvt_core *core, uint32_t id, uint32_t n, uint32_t own,
			 uint32_t *list)
{
	struct kvt_lease_record *lease = &core->leases[id];
	uint32_t taken = kvt_own_take(core, lease->session, own);

	kvt_save_lease(core, id);
	kvt_save_taker(core, id);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t page = i < own ? kvt_own_next(core, &taken) :
					  kvt_page_take(core, lease->session, id);

		core->owners[page].lease = id;
		append_page(core, lease, page);
		list[i] = page;
	}
}

/* Append pages that the session has: they stand in core->op_pages. */
static void append_own(struct kvt_core *core, uint32_t id, uint32_t n)
{
	struct kvt_lease_record *lease = &core->leases[id];

	kvt_save_lease(core, id);
	kvt_save_taker(core, id); /* a rollback ends the list where it ended */
	kvt_save_pages(core, lease->session, core->op_pages, n);
	for (uint32_t i = 0; i < n; i++) {
		kvt_loose_remove(core, lease->session, core->op_pages[i]);
		core->owners[core->op_pages[i]].lease = id;
		append_page(core, lease, core->op_pages[i]);
	}
	core->effort.pages_moved += n;
}

static uint32_t pop_page(struct kvt_core *core, struct kvt_lease_record *lease)
{
	uint32_t page = lease->first_page;

	KVT_ASSERT(lease->n_private > 0);
	lease->first_page = core->owners[page].next;
	core->owners[page].next = KVT_NONE;
	if (--lease->n_private == 0)
		lease->last_page = KVT_NONE;
	return page;
}

static uint32_t release_list(struct kvt_core *core, uint32_t page)
{
	uint32_t n = 0;

	kvt_save_list(core, page, UINT32_MAX);
	while (page != KVT_NONE) {
		uint32_t next = core->owners[page].next;

		kvt_page_release(core, page);
		page = next;
		n++;
	}
	return n;
}

/** The page table: cached pages of the path, then the private ones. */
static void write_table(const struct kvt_core *core, const struct kvt_lease_record *lease,
			uint32_t *list)
{
	uint32_t page = lease->first_page;

	kvt_path_pages(core, lease->node, lease->done, list);
	for (uint32_t i = 0; i < lease->n_private; i++, page = core->owners[page].next)
		list[lease->done + i] = page;
}

/* ---- room */

/** Count the pages that are free or can be, with `path_pages` evictable ones about to be locked. */
static uint64_t room(const struct kvt_core *core, uint64_t path_pages)
{
	KVT_ASSERT(path_pages <= core->count->evictable_pages);
	return core->count->free_pages + core->count->evictable_pages - path_pages;
}

/** Count the pages of a lease's path, but for places where it has a private page. */
static uint32_t locked_pages(const struct kvt_lease_record *lease)
{
	uint32_t table = lease->done + lease->n_private;

	return lease->path_pages > table ? lease->path_pages - lease->n_private : lease->done;
}

/** The most pages that the session may take or lock now, of `left` that are free or evictable.
 *
 * While another session is open, the last reserve_pages are for sessions that hold fewer, private
 * and locked pages together. So each newcomer finds pages, also beside one that publishes and locks
 * all it gets. Shared pages count once per lease. */
static uint64_t within_reserve(const struct kvt_core *core, uint32_t id, uint64_t left)
{
	uint64_t reserve = core->config.reserve_pages, beside = left > reserve ? left - reserve : 0;
	uint64_t held = core->sessions[id].n_private;

	if (!reserve || core->open_sessions < 2)
		return left;
	for (uint32_t lease = core->sessions[id].first_lease;
	     lease != KVT_NONE && held + beside < reserve; lease = core->leases[lease].next_lease)
		held += locked_pages(&core->leases[lease]);
	return held + beside < reserve ? reserve - held : beside;
}

/** Check that n pages can be had, op->own and others made free, with `path_pages` evictable ones
 * about to be locked. */
static int room_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t n,
		      uint64_t path_pages)
{
	uint64_t available = op->own + room(core, path_pages);

	if (n <= available)
		return 0;
	kvt_refuse(op, -ENOSPC,
		   n > core->config.n_pages - 1 ? KVT_REASON_TOO_LARGE : KVT_REASON_ALL_LOCKED,
		   (uint32_t)available);
	op->cqe->refused.needed = n;
	return -ENOSPC;
}

void kvt_room_make(struct kvt_core *core, uint32_t n)
{
	if (n > core->count->free_pages)
		kvt_evict_pages(core, n - (uint32_t)core->count->free_pages);
}

/** The most private pages that a session may have now, if it could get `left` more.
 *
 * A limit in pages always holds. A share is of what the session has or could have: the more the
 * others hold, the less one session may. So each newcomer finds pages, and sessions that all want
 * more end up with equal parts. Alone, a session may have all. */
static uint64_t private_limit(const struct kvt_core *core, uint32_t id, uint64_t left)
{
	const struct kvt_session_record *session = &core->sessions[id];
	uint64_t limit = session->max_private_pages;

	if (!limit || (core->config.soft_private && core->open_sessions < 2))
		return UINT64_MAX;
	if (core->config.soft_private)
		return limit * (session->n_private + left) / (core->config.n_pages - 1);
	return limit;
}

/** Judge n more private pages, with `path_pages` evictable ones about to be locked. Returns the
 * reason of a refusal and in *ret_limit what it is a limit of. For want of room there is another
 * refusal, which says how much there is. */
static enum kvt_reason beyond_quota(const struct kvt_core *core, uint32_t id, uint32_t n,
				    uint64_t path_pages, uint64_t *ret_limit)
{
	const struct kvt_session_record *session = &core->sessions[id];
	uint64_t left = room(core, path_pages), wanted = (uint64_t)session->n_private + n;
	uint64_t limit = private_limit(core, id, left);

	if (n > 0 && (n <= left || !core->config.soft_private) && wanted > limit) {
		/* Below max_private_pages the share grows with what others give back. */
		*ret_limit = wanted > session->max_private_pages ? session->max_private_pages :
								   limit;
		return wanted > session->max_private_pages ? KVT_REASON_LIMIT_PAGES :
							     KVT_REASON_SHARE;
	}
	*ret_limit = core->config.n_pages - 1 - core->config.reserve_pages;
	if (n > left || n + core->config.reserve_pages <= left)
		return KVT_REASON_NONE;
	return n + path_pages > within_reserve(core, id, left + path_pages) ? KVT_REASON_SHARE :
									      KVT_REASON_NONE;
}

/** Check that the session may take n pages and lock path_pages that could be evicted. Fills
 * op->own: if n are not free, or too many, OWN_STREAM takes from the session's ended leases first,
 * whose pages it holds already. */
static int page_quota(struct kvt_core *core, struct kvt_op_context *op, uint32_t n,
		      uint64_t path_pages)
{
	uint64_t limit;
	enum kvt_reason reason = beyond_quota(core, op->session, n, path_pages, &limit);

	op->own = 0;
	if (op->sqe->flags & KVT_F_OWN_STREAM && (reason || n > core->count->free_pages)) {
		op->own = own_pages(core, op->session, n);
		reason = beyond_quota(core, op->session, n - op->own, path_pages, &limit);
	}
	return reason ? kvt_refuse(op, -EDQUOT, reason, (uint32_t)limit) : 0;
}

int kvt_lock_quota(struct kvt_core *core, struct kvt_op_context *op, uint32_t node, uint32_t pages)
{
	uint64_t most = within_reserve(core, op->session, room(core, 0));

	if (pages + core->count->side_pages <= most ||
	    kvt_path_evictable(core, node, pages) <= most)
		return 0;
	return kvt_refuse(op, -EDQUOT, KVT_REASON_SHARE,
			  core->config.n_pages - 1 - core->config.reserve_pages);
}

static uint32_t private_most(const struct kvt_core *core, uint32_t session, uint32_t n)
{
	uint64_t available = room(core, 0), held = core->sessions[session].n_private;
	uint64_t limit = private_limit(core, session, available);
	uint64_t most = within_reserve(core, session, available);

	if (most > available)
		most = available;
	if (limit < held + most)
		most = limit > held ? limit - held : 0;
	return n < most ? n : (uint32_t)most;
}

uint32_t kvt_private_most(struct kvt_core *core, const struct kvt_op_context *op, uint32_t n)
{
	uint32_t most = private_most(core, op->session, n), own;

	if (most == n || !(op->sqe->flags & KVT_F_OWN_STREAM))
		return most;
	own = own_pages(core, op->session, n);
	return own + private_most(core, op->session, n - own);
}

int kvt_private_check(struct kvt_core *core, struct kvt_op_context *op, uint32_t n)
{
	int error = page_quota(core, op, n, 0);

	if (!error && n > op->sqe->list_capacity)
		error = kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, n);
	return error ? error : room_check(core, op, n, 0);
}

/* ---- BEGIN */

/** The plan of a BEGIN, made before anything changes. */
struct begin_plan {
	uint32_t n_keys;  /* those of the handle included */
	uint32_t table;   /* pages of all positions */
	uint32_t given;   /* private pages in the page table, behind the reused ones */
	uint32_t whole;   /* whole pages of keys, 0 when disabled */
	uint32_t matched; /* pages */
	uint32_t reuse;   /* pages */
	uint32_t words;   /* of the answer's list */
	uint32_t fresh;   /* pages to announce that no other lease has */
	bool alone;       /* too short to share */
	bool miss;        /* nothing is reused, whatever is cached */
	struct kvt_walk walk;
	struct kvt_need need;
};

/** Behind the table, the answer's list has the word of shared positions and the side pages. */
static void plan_sides(struct kvt_core *core, struct begin_plan *plan)
{
	plan->words++;
	for (uint32_t kind = 0; kind < core->n_sides; kind++)
		plan->words += kvt_min(core->config.side_pages[kind], plan->reuse);
}

/** Write the side pages behind which a lease continues, by kind, each kind in path order. */
static void write_sides(const struct kvt_core *core, uint32_t node, uint32_t reuse, uint32_t *list)
{
	kvt_path_pages(core, node, reuse, core->path_list);
	for (uint32_t kind = 0; kind < core->n_sides; kind++)
		for (uint32_t n = kvt_min(core->config.side_pages[kind], reuse); n > 0; n--)
			*list++ = kvt_sides_of(core, core->path_list[reuse - n])[kind];
}

/** Count the side pages behind which a BEGIN continues that were let go. With `hold` hold them
 * again. */
static uint32_t point_let(struct kvt_core *core, uint32_t node, uint32_t reuse, bool hold)
{
	uint32_t n = 0;

	kvt_path_pages(core, node, reuse, core->path_list);
	for (uint32_t kind = 0; kind < core->n_sides; kind++) {
		for (uint32_t i = kvt_min(core->config.side_pages[kind], reuse); i > 0; i--) {
			uint32_t page = kvt_sides_of(core, core->path_list[reuse - i])[kind];

			if (!kvt_side_is_let(core, page))
				continue;
			n++;
			if (hold)
				kvt_side_hold(core, page);
		}
	}
	return n;
}

/** True if a session has room and quota for n private pages, with `path_pages` evictable ones about
 * to be locked. */
static bool fits(struct kvt_core *core, const struct kvt_op_context *op, uint32_t n,
		 uint64_t path_pages)
{
	uint64_t limit;

	if (op->sqe->flags & KVT_F_OWN_STREAM)
		n -= own_pages(core, op->session, n);
	return n <= room(core, path_pages) &&
	       !beyond_quota(core, op->session, n, path_pages, &limit);
}

/** The least pages from the end of a refused BEGIN's match without which its given pages fit: main
 * pages behind what it reuses, and, if there is room without any match, more. Those are more pages
 * to give, so it is refused again, and looks again. 0: its match is not in its way. */
static uint32_t match_gives(struct kvt_core *core, const struct kvt_op_context *op,
			    const struct begin_plan *plan)
{
	uint32_t path = (uint32_t)plan->need.path_pages, low = 0, most = path, reused = 0, deepest;

	if (!fits(core, op, plan->given, 0))
		return 0;
	while (most - low > 1) {
		uint32_t gives = low + (most - low) / 2;

		if (fits(core, op, plan->given, path - gives))
			most = gives;
		else
			low = gives;
	}
	if (plan->reuse > 0) {
		deepest = kvt_path_node(core, plan->walk.node, plan->reuse - 1);
		reused = (uint32_t)kvt_path_evictable(core, deepest, plan->reuse);
		if (core->n_let > 0)
			reused += point_let(core, plan->walk.node, plan->reuse, false);
	}
	return most <= path - reused || fits(core, op, plan->table, 0) ? most : 0;
}

/** Count the pages at the end of a path that only this path has: nothing else continues them. */
static uint64_t path_end(const struct kvt_core *core, uint32_t node)
{
	uint64_t sum = 0;

	for (uint32_t id = node; id != KVT_NONE && core->nodes[id].lock_ref == 0 &&
	     core->nodes[id].n_children == (id == node ? 0u : 1u); id = core->nodes[id].parent)
		sum += core->nodes[id].n_slots + kvt_sides_in(core, id);
	return sum;
}

/** Note the pages to evict for a BEGIN whose own match is in its way: side pages, and main pages
 * that it cannot reuse. For want of room all else goes first; for want of quota nothing else goes,
 * and not what other prompts continue. */
static void evict_first(struct kvt_core *core, const struct kvt_op_context *op,
			const struct begin_plan *plan, int error)
{
	uint32_t node = plan->walk.node, gives = match_gives(core, op, plan);

	if (gives == 0)
		return;
	core->evict_path = node;
	core->evict_alone = error == -EDQUOT;
	if (core->evict_alone) {
		gives += core->nodes[node].n_slots - plan->walk.in_node +
			 kvt_sides_in(core, node) -
			 kvt_sides_count(core, node, plan->walk.in_node);
		core->evict_first = gives <= path_end(core, node) ? gives : 0;
	} else {
		core->evict_first = gives - (uint32_t)core->count->free_pages +
				    (uint32_t)room(core, plan->need.path_pages);
	}
}

/** Slots for announced pages that have no private page behind them. Every other page may want one
 * slot: so many are left out, and no other operation lacks one for these. */
static uint32_t spare_slots(const struct kvt_core *core)
{
	uint64_t in_slots = core->count->cached_pages - core->count->side_pages;
	uint64_t kept = core->config.n_pages - 1 - in_slots;

	return core->slots.free_slots > kept ? (uint32_t)(core->slots.free_slots - kept) : 0;
}

static int begin_plan(struct kvt_core *core, struct kvt_op_context *op, struct begin_plan *plan)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint64_t positions = (uint64_t)sqe->positions + sqe->n_keys + sqe->arg;
	uint32_t flags = sqe->flags, taken;
	bool too_large;
	int error;

	if (positions > 1u << 31)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BAD_RANGE, 0);
	plan->n_keys = sqe->positions + sqe->n_keys;
	plan->table = (uint32_t)((positions + core->ps - 1) / core->ps);
	too_large = plan->table > core->config.n_pages - 1;
	error = too_large ? 0 : kvt_lease_quota(core, op);
	if (error)
		return error;
	plan->alone = plan->n_keys < (uint32_t)sqe->priority;
	plan->whole = core->config.disabled || plan->alone ? 0 : plan->n_keys / core->ps;
	error = kvt_walk_entry(core, op, plan->alone ? 0 : sqe->n_keys / core->ps, &plan->walk);
	if (error)
		return error;
	if (plan->alone)
		plan->walk = (struct kvt_walk){ 0 };
	plan->matched = plan->walk.matched;
	plan->reuse = plan->matched;
	if (plan->reuse * core->ps == plan->n_keys && plan->reuse > 0 && !(flags & KVT_F_FULL))
		plan->reuse--;
	if (core->n_sides > 0)
		plan->reuse = kvt_walk_usable(core, plan->walk.match_node, plan->reuse);
	plan->miss = flags & KVT_F_FORCE_MISS || kvt_walk_too_short(core, sqe, plan->reuse);
	if (plan->miss)
		plan->reuse = 0;
	plan->given = flags & KVT_F_NO_PAGES ? 0 : plan->table - plan->reuse;
	plan->words = plan->reuse + plan->given;
	if (core->n_sides > 0)
		plan_sides(core, plan);
	plan->fresh = plan->whole - plan->walk.walked;
	kvt_need_compute(core, &plan->walk, plan->fresh, true, &plan->need);
	if (core->n_let > 0)
		plan->need.path_pages += point_let(core, plan->walk.node, plan->reuse, false);
	if (too_large)
		return room_check(core, op, plan->table, plan->need.path_pages);
	if (flags & (KVT_F_WAIT | KVT_F_NO_WAIT) && plan->table <= sqe->list_capacity &&
	    kvt_wait_check(core, op, &plan->walk) == KVT_WAITS)
		return KVT_WAITS;
	error = page_quota(core, op, plan->given, plan->need.path_pages);
	if (error) {
		evict_first(core, op, plan, error);
		return error;
	}
	if (plan->words > sqe->list_capacity)
		return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, plan->words);
	taken = plan->given - op->own;
	plan->need.spare = plan->fresh > 0 && taken > core->count->free_pages;
	if (plan->need.spare)
		plan->need.evict_pages = taken - (uint32_t)core->count->free_pages;
	error = room_check(core, op, plan->given, plan->need.path_pages);
	if (error) {
		evict_first(core, op, plan, error);
		return error;
	}
	if (plan->fresh && !kvt_walk_ends_new(core, op, &plan->walk))
		return kvt_refuse(op, -EINVAL, KVT_REASON_KEYS_CHANGED, 0);
	if (flags & KVT_F_NO_PAGES && plan->fresh > spare_slots(core))
		return kvt_refuse(op, -ENOSPC, KVT_REASON_SLOTS,
				  plan->walk.walked + spare_slots(core));
	if (kvt_need_nodes(core, plan->walk.node, &plan->need))
		return kvt_refuse(op, -ENOSPC, KVT_REASON_NODES, 0);
	return 0;
}

/** Lock the path, announce the rest. Returns the node where the path ends. */
static uint32_t begin_path(struct kvt_core *core, struct kvt_op_context *op,
			   struct begin_plan *plan, uint32_t pages)
{
	struct kvt_walk *walk = &plan->walk;
	uint32_t end, deepest;

	if (plan->whole == 0 || (walk->walked == 0 && plan->fresh == 0)) {
		kvt_room_make(core, pages);
		return KVT_NONE;
	}
	if (plan->need.root)
		walk->node = walk->root = kvt_root_make(core, op->sqe->namespace_id);
	end = kvt_walk_cut(core, walk);
	kvt_path_lock(core, end, KVT_NONE);
	if (core->n_let > 0)
		point_let(core, end, plan->reuse, true);
	kvt_room_make(core, pages);
	if (plan->fresh == 0)
		return end;
	deepest = kvt_grow(core, end, walk->root_key, core->first_page,
			   kvt_walk_rest(core, op, walk), plan->fresh, 0, KVT_NEVER);
	kvt_path_lock(core, deepest, end);
	return deepest;
}

/** Note the point that a BEGIN declares, if it is one that others could wait for. */
static void declare_point(struct kvt_core *core, uint32_t id, uint64_t positions,
			  const struct begin_plan *plan)
{
	uint64_t point = positions == KVT_POINT_JUNCTION ? plan->walk.walked :
							    positions / core->ps;

	if (point <= plan->reuse || point > plan->whole)
		return;
	core->leases[id].point = (uint32_t)point;
	kvt_lease_point(core, id);
}

/** Tell the feed which pages are reused. The list of the answer is client memory. */
static void note_used(struct kvt_core *core, uint32_t node, uint32_t pages)
{
	const struct kvt_node *last;

	core->n_used = pages;
	if (pages == 0)
		return;
	last = kvt_node_at(core, kvt_path_node(core, node, pages - 1));
	core->used = core->slot_pages[last->first_slot + pages - 1 - last->start];
}

int kvt_op_begin(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	uint32_t *list = op->view->list + sqe->list_offset, node, id, shared;
	struct begin_plan plan = { 0 };
	struct kvt_lease_record *lease;
	int error = begin_plan(core, op, &plan);

	if (error)
		return error;
	node = begin_path(core, op, &plan, plan.given - op->own);
	kvt_path_touch(core, node);
	id = kvt_lease_make(core, op->session, KVT_LEASE_BEGIN, node, plan.whole);
	lease = &core->leases[id];
	lease->flags = (uint16_t)((plan.miss ? KVT_LEASE_FORCE_MISS : 0) |
				  (plan.alone ? KVT_LEASE_ALONE : 0) |
				  (sqe->flags & KVT_F_FULL ? KVT_LEASE_FULL : 0) |
				  (sqe->flags & KVT_F_NO_PAGES ? KVT_LEASE_BARE : 0));
	lease->namespace_id = sqe->namespace_id;
	lease->root_key = op->root_key;
	lease->done = plan.reuse;
	lease->known = plan.n_keys;
	lease->computed = plan.reuse * core->ps;
	lease->own_start = plan.walk.walked;
	if (sqe->fence_value)
		declare_point(core, id, sqe->fence_value, &plan);
	kvt_racy_copy(core->tails + (size_t)id * core->ps,
		      op->keys + sqe->n_keys / core->ps * core->ps,
		      sqe->n_keys % core->ps);
	kvt_path_announce(core, id);
	kvt_path_pages(core, node, plan.reuse, list);
	append_pages(core, id, plan.given, op->own, list + plan.reuse);
	if (core->change)
		note_used(core, node, plan.reuse);
	shared = core->ps * kvt_path_shared(core, node, plan.reuse,
					    core->sessions[op->session].sealer);
	list += plan.reuse + plan.given;
	if (sqe->list_capacity > plan.reuse + plan.given)
		*list++ = shared;
	if (core->n_sides > 0)
		write_sides(core, node, plan.reuse, list);

	if (!(sqe->flags & KVT_F_UNCOUNTED))
		kvt_tally_begun(core, op->session, sqe->namespace_id, plan.n_keys,
				plan.reuse * core->ps, shared);
	op->cqe->lease = id;
	op->cqe->lease_generation = lease->generation;
	if (plan.matched > 0 && !(sqe->flags & KVT_F_FORCE_MISS)) {
		op->cqe->node = kvt_path_node(core, node, plan.matched - 1);
		op->cqe->generation = core->nodes[op->cqe->node].generation;
		op->cqe->positions = plan.matched * core->ps;
	}
	op->cqe->begin.matched = sqe->flags & KVT_F_FORCE_MISS ? 0 : plan.matched * core->ps;
	op->cqe->begin.reusable = plan.reuse * core->ps;
	op->cqe->begin.announced = (plan.walk.walked - plan.matched) * core->ps;
	op->cqe->begin.evicted = core->n_out;
	op->cqe->n_list = plan.words;
	return 0;
}

/* ---- COMMIT */

/** The plan of a COMMIT. Its keys are in core->op_keys: the lease's tail, then the new ones. */
struct commit_plan {
	struct kvt_lease_record *lease;
	uint32_t id;
	uint32_t computed;
	uint32_t whole;   /* pages computed */
	uint32_t limit;   /* pages up to which it looks on, over those that others sealed */
	uint32_t n_keys;  /* generated ones */
	uint32_t tail;    /* keys of the lease's tail, in front of them */
	uint32_t pages;   /* whole pages to announce */
	uint32_t fresh;   /* those that do not exist yet */
	bool in_place;    /* lengthen the lease's own last run */
	struct kvt_walk walk;
	struct kvt_need need;
};

static bool can_grow_in_place(const struct kvt_core *core, const struct commit_plan *plan)
{
	const struct kvt_lease_record *lease = plan->lease;
	const struct kvt_node *node = kvt_node_at(core, lease->node);

	return lease->node != KVT_NONE && plan->walk.walked == lease->path_pages &&
	       node->lock_ref == 1 && node->n_children == 0 && node->start >= lease->own_start &&
	       kvt_slots_free_at(&core->slots, node->first_slot + node->n_slots) >= plan->fresh;
}

/** Walk the generated keys, and compute what announcing them needs. */
static int plan_growth(struct kvt_core *core, struct kvt_op_context *op, struct commit_plan *plan)
{
	struct kvt_lease_record *lease = plan->lease;
	struct kvt_walk *walk = &plan->walk;
	int error;

	plan->tail = lease->known % core->ps;
	memcpy(core->op_keys, core->tails + (size_t)plan->id * core->ps,
	       plan->tail * sizeof(uint32_t));
	kvt_racy_copy(core->op_keys + plan->tail, op->keys,
		      plan->n_keys);
	if (!core->config.disabled && !(lease->flags & KVT_LEASE_ALONE))
		plan->pages = (plan->tail + plan->n_keys) / core->ps;
	if (plan->pages == 0)
		return 0;
	if (lease->node == KVT_NONE) {
		error = kvt_walk_keys(core, lease->namespace_id, lease->root_key, core->op_keys,
				      plan->pages, walk);
	} else {
		walk->root = walk->node = lease->node;
		walk->in_node = core->nodes[lease->node].n_slots;
		walk->walked = lease->path_pages;
		error = kvt_walk_from(core, walk, core->op_keys, plan->pages);
	}
	if (error)
		return error;
	plan->fresh = lease->path_pages + plan->pages - walk->walked;
	plan->in_place = plan->fresh > 0 && can_grow_in_place(core, plan);
	if (plan->in_place)
		return 0;
	kvt_need_compute(core, walk, plan->fresh, true, &plan->need);
	if (kvt_need_nodes(core, walk->node, &plan->need))
		return kvt_refuse(op, -ENOSPC, KVT_REASON_NODES, 0);
	return 0;
}

/** Why nothing of the lease's path is found any more: KVT_REASON_NONE if it still is. */
static enum kvt_reason why_detached(const struct kvt_core *core,
				    const struct kvt_lease_record *lease)
{
	if (lease->epoch != core->arena->epoch)
		return KVT_REASON_EPOCH;
	if (core->cut_leases && kvt_path_detached(core, lease->node))
		return kvt_path_damaged(core, lease->node) ? KVT_REASON_DAMAGED :
							     KVT_REASON_DETACHED;
	return KVT_REASON_NONE;
}

/** Check that the lease's path is still attached: 0 or the refusal. */
static int check_attached(const struct kvt_core *core, struct kvt_op_context *op,
			  const struct kvt_lease_record *lease)
{
	enum kvt_reason reason = why_detached(core, lease);

	return reason ? kvt_refuse(op, -ESTALE, reason, lease->computed) : 0;
}

/** Check that the entry has room for the page table, if its answer has one. */
static int check_table(struct kvt_op_context *op, const struct kvt_lease_record *lease)
{
	uint32_t table = lease->done + lease->n_private;

	if (op->sqe->flags & KVT_F_NO_LIST || table <= op->sqe->list_capacity)
		return 0;
	return kvt_refuse(op, -ENOBUFS, KVT_REASON_LIST_SHORT, table);
}

/** True if a COMMIT continues over pages that others sealed. A window or a state cannot jump. */
static bool looks_on(const struct kvt_core *core, const struct kvt_lease_record *lease)
{
	return core->n_sides == 0 && !(lease->flags & KVT_LEASE_FORCE_MISS);
}

static int commit_plan(struct kvt_core *core, struct kvt_op_context *op, struct commit_plan *plan)
{
	const struct kvt_lease_record *lease = plan->lease;
	uint64_t table = (uint64_t)(lease->done + lease->n_private) * core->ps;
	uint32_t known;
	int error;

	if (plan->computed > table)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BEYOND_TABLE, lease->computed);
	/* Keys have no place beyond the table. The last token sampled has no KV yet, either. */
	if (plan->n_keys + (uint64_t)lease->known > table)
		plan->n_keys = lease->known < table ? (uint32_t)table - lease->known : 0;
	known = lease->known + plan->n_keys;
	if (plan->computed > known)
		return kvt_refuse(op, -EINVAL, KVT_REASON_BEYOND_KEYS, lease->computed);
	plan->whole = plan->computed / core->ps;
	/* Look-on leaves at least one known position to compute, and ends with the table. */
	if (known > 0 && looks_on(core, lease))
		plan->limit = kvt_min((known - 1) / core->ps, lease->done + lease->n_private);
	error = check_attached(core, op, lease);
	if (!error && op->sqe->op == KVT_OP_COMMIT)
		error = check_table(op, lease);
	if (!error && op->sqe->flags & KVT_F_SIDES)
		error = kvt_attach_check(core, op, lease, plan->whole);
	if (error)
		return error;
	return plan_growth(core, op, plan);
}

/** Save the lease, and all pages that it can lose. */
static void save_lease(struct kvt_core *core, const struct commit_plan *plan)
{
	const struct kvt_lease_record *lease = plan->lease;
	uint32_t most = plan->whole > plan->limit ? plan->whole : plan->limit;

	kvt_save_lease(core, plan->id);
	if (plan->n_keys > 0 && plan->tail > 0)
		kvt_save(core, core->tails + (size_t)plan->id * core->ps,
			 plan->tail * sizeof(*core->tails));
	if (most > lease->done)
		kvt_save_list(core, lease->first_page, most - lease->done);
}

/** Announce the whole pages of generated keys on the lease's path. */
static void commit_grow(struct kvt_core *core, struct commit_plan *plan)
{
	struct kvt_lease_record *lease = plan->lease;
	uint32_t shared = plan->walk.walked - lease->path_pages, end;
	const uint32_t *fresh = core->op_keys + (size_t)shared * core->ps;

	if (plan->in_place) {
		kvt_grow_run(core, lease->node, fresh, plan->fresh);
	} else if (plan->pages > 0) {
		if (plan->need.root)
			plan->walk.node = kvt_root_make(core, lease->namespace_id);
		end = kvt_walk_cut(core, &plan->walk);
		if (shared > 0)
			lease->own_start = plan->walk.walked;
		if (plan->fresh > 0)
			end = kvt_grow(core, end, plan->walk.root_key, fresh, fresh, plan->fresh,
				       0, KVT_NEVER);
		kvt_path_lock(core, end, lease->node);
		lease->node = end;
		kvt_path_announce(core, plan->id);
	}
	lease->path_pages += plan->pages;
	lease->known += plan->n_keys;
	memcpy(core->tails + (size_t)plan->id * core->ps,
	       core->op_keys + (plan->tail + plan->n_keys) / core->ps * core->ps,
	       (plan->tail + plan->n_keys) % core->ps * sizeof(uint32_t));
}

/** Replace the page at `done` of the table by the cached twin of its place. */
static void displace(struct kvt_core *core, struct kvt_lease_record *lease, bool keep)
{
	uint32_t page = pop_page(core, lease);

	lease->done++;
	core->count->duplicate_pages++;
	if (!keep) {
		kvt_page_release(core, page);
		return;
	}
	core->owners[page].next = lease->first_kept;
	lease->first_kept = page;
	lease->n_kept++;
}

static void commit_seal(struct kvt_core *core, struct commit_plan *plan, bool keep,
			struct kvt_cqe *cqe)
{
	struct kvt_lease_record *lease = plan->lease;

	while (lease->node != KVT_NONE && lease->done < lease->path_pages) {
		uint32_t id = kvt_path_node(core, lease->node, lease->done);
		struct kvt_node *node = kvt_node_at(core, id);
		uint32_t end = node->start + node->n_slots, sealed = 0;

		while (lease->done < end) {
			if (lease->done < node->start + node->sealed &&
			    (lease->done < plan->whole || lease->done < plan->limit)) {
				displace(core, lease, keep);
				cqe->commit.duplicates++;
			} else if (lease->done < plan->whole) {
				kvt_node_seal(core, id, pop_page(core, lease));
				lease->done++;
				sealed++;
			} else {
				break;
			}
		}
		if (sealed > 0)
			kvt_node_sealed(core, id, sealed);
		cqe->commit.sealed += sealed;
		if (lease->done < end)
			return;
	}
}

/** Take the side pages of a COMMIT that seals nothing. */
static int commit_sides(struct kvt_core *core, struct kvt_op_context *op,
			const struct kvt_lease_record *lease)
{
	int error = check_attached(core, op, lease);

	if (!error)
		error = kvt_attach_check(core, op, lease, lease->computed / core->ps);
	if (!error)
		kvt_attach(core, op, lease);
	return error;
}

/** Commit to a live BEGIN lease. Fills `commit` of the completion. */
static int commit(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_sqe *sqe = op->sqe;
	struct commit_plan plan = {
		.lease = &core->leases[sqe->node],
		.id = sqe->node,
		.computed = sqe->arg,
		.n_keys = sqe->n_keys,
	};
	uint64_t before = core->count->duplicate_pages;
	uint32_t next;
	int error;

	if (plan.computed < plan.lease->computed) {
		op->cqe->commit.next = plan.lease->computed;
		return sqe->flags & KVT_F_SIDES ? commit_sides(core, op, plan.lease) : 0;
	}
	error = commit_plan(core, op, &plan);
	if (error)
		return error;
	save_lease(core, &plan);
	commit_grow(core, &plan);
	commit_seal(core, &plan, sqe->flags & KVT_F_KEEP, op->cqe);
	if (sqe->flags & KVT_F_SIDES)
		kvt_attach(core, op, plan.lease);
	KVT_ASSERT(core->count->duplicate_pages - before == op->cqe->commit.duplicates);
	/* With a point, twins are progress, too: others wait for its side pages. */
	if (op->cqe->commit.sealed > 0 || (plan.lease->point && op->cqe->commit.duplicates > 0))
		kvt_wait_progress(core, plan.id);
	if (op->cqe->commit.sealed > 0)
		kvt_tally_sealed(core, op->session, plan.lease->namespace_id,
				 op->cqe->commit.sealed);
	if (plan.lease->point > 0 && plan.lease->done >= plan.lease->point)
		forget_point(core, plan.id); /* its side pages are there, or will never be */
	/* A COMMIT has no TTL. Under a prefix that expires, its pages would go with the prefix, and
	 * its own later commits would be stale: another session's TTL would decide. */
	if (core->expiry.count > 0)
		kvt_path_raise(core, plan.lease->node, INT32_MIN, KVT_NEVER);
	if (!(sqe->flags & KVT_F_CHUNKED) && !(plan.lease->flags & KVT_LEASE_COUNTED)) {
		plan.lease->flags |= KVT_LEASE_COUNTED;
		kvt_path_count_use(core, plan.lease->node);
	}
	kvt_path_touch(core, plan.lease->node);
	next = plan.lease->done * core->ps;
	if (next < plan.computed)
		next = plan.computed;
	plan.lease->computed = next;
	op->cqe->commit.next = next;
	op->cqe->commit.advanced = next - plan.computed;
	core->count->advanced_positions += next - plan.computed;
	return 0;
}

int kvt_op_commit(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_lease_record *lease = &core->leases[op->sqe->node];
	int error = 0;

	op->cqe->lease = op->sqe->node;
	op->cqe->lease_generation = op->sqe->generation;
	if (op->sqe->arg < lease->computed)
		error = check_table(op, lease);
	if (!error)
		error = commit(core, op);
	if (error)
		return error;
	op->cqe->positions = lease->known;
	if (op->sqe->flags & KVT_F_NO_LIST)
		return 0;
	write_table(core, lease, op->view->list + op->sqe->list_offset);
	op->cqe->n_list = lease->done + lease->n_private;
	return 0;
}

/* ---- EXTEND, END */

/** Have others wait for a lease from now on: it has pages. The caller has saved it. */
static void begin_computing(struct kvt_core *core, uint32_t id)
{
	core->leases[id].flags &= (uint16_t)~KVT_LEASE_BARE;
	core->leases[id].sealed_ns = core->now_ns;
	kvt_path_announce(core, id);
}

int kvt_op_extend(struct kvt_core *core, struct kvt_op_context *op)
{
	struct kvt_lease_record *lease = &core->leases[op->sqe->node];
	uint32_t n = op->sqe->arg, n_own = op->sqe->n_keys;
	int error, reason;

	if (n_own) {
		reason = kvt_pages_check(core, op->session, op->keys, n_own, NULL, 0);
		if (reason)
			return kvt_refuse(op, -EINVAL, (enum kvt_reason)reason, 0);
		append_own(core, op->sqe->node, n_own);
	} else {
		error = kvt_private_check(core, op, n);
		if (error)
			return error;
		kvt_room_make(core, n - op->own);
		append_pages(core, op->sqe->node, n, op->own,
			     op->view->list + op->sqe->list_offset);
	}
	if (lease->flags & KVT_LEASE_BARE && lease->n_private > 0)
		begin_computing(core, op->sqe->node);
	kvt_path_touch(core, lease->node);
	op->cqe->lease = op->sqe->node;
	op->cqe->lease_generation = op->sqe->generation;
	op->cqe->extend.evicted = core->n_out;
	op->cqe->n_list = n;
	return 0;
}

uint32_t kvt_lease_end(struct kvt_core *core, uint32_t id)
{
	struct kvt_lease_record *lease = &core->leases[id];
	uint32_t freed = 0;

	if (lease->kind == KVT_LEASE_BEGIN && !(lease->flags & KVT_LEASE_COUNTED))
		kvt_path_count_use(core, lease->node);
	if (core->n_let > 0)
		kvt_sides_hold_all(core, id);
	kvt_path_unlock(core, lease->node);
	freed += release_list(core, lease->first_page);
	freed += release_list(core, lease->first_kept);
	kvt_lease_free(core, id);
	return freed;
}

uint32_t kvt_lease_end_join(struct kvt_core *core, uint32_t id, uint32_t *holder)
{
	uint32_t node = core->leases[id].node, up = core->nodes[node].parent, freed;
	uint32_t generation = core->nodes[*holder].generation, start = core->nodes[*holder].start;

	freed = kvt_lease_end(core, id);
	/* Announced pages go with the lock, and perhaps others. */
	if (!(core->nodes[node].flags & KVT_NODE_LIVE))
		node = up;
	if (node != KVT_NONE && core->nodes[node].flags & KVT_NODE_LIVE)
		kvt_path_join(core, node);
	if (core->nodes[*holder].generation != generation) /* merged into one below */
		*holder = kvt_path_node(core, node, start);
	return freed;
}

/** Leading pages of a lease's path that are cached, whether it sealed them or another. */
static uint32_t cached_pages(const struct kvt_core *core, const struct kvt_lease_record *lease)
{
	uint32_t id = lease->node;

	while (id != KVT_NONE && core->nodes[id].sealed == 0)
		id = core->nodes[id].parent;
	return id == KVT_NONE ? 0 :
				kvt_min(core->nodes[id].start + core->nodes[id].sealed,
					lease->path_pages);
}

int kvt_op_end(struct kvt_core *core, struct kvt_op_context *op)
{
	const struct kvt_lease_record *lease = &core->leases[op->sqe->node];
	int error = op->sqe->flags & KVT_F_COMMIT ? commit(core, op) : 0;
	uint32_t pages, holder;

	if (error == KVT_EXPIRED)
		return error;
	if (!error)
		error = check_attached(core, op, lease);
	/* END always ends; the completion says what became of its COMMIT or path. */
	if (error == -ESTALE)
		op->cqe->flags |= KVT_CQE_DETACHED;
	pages = why_detached(core, lease) ? 0 : cached_pages(core, lease);
	holder = pages ? kvt_path_node(core, lease->node, pages - 1) : KVT_NONE;
	op->cqe->end = (struct kvt_answer_end){
		.sealed = error ? 0 : op->cqe->commit.sealed,
		.freed = kvt_lease_end_join(core, op->sqe->node, &holder),
	};
	if (pages) {
		op->cqe->node = holder;
		op->cqe->generation = core->nodes[holder].generation;
		op->cqe->positions = pages * core->ps;
	}
	return 0;
}
