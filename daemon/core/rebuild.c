/* SPDX-License-Identifier: Apache-2.0 */

/* Recomputing what is derived from the primary facts.
 *
 * The facts come from memory that a dead daemon left: each index is compared with its bound before
 * it is followed, each list ends after as many steps as there are records, and a contradiction is
 * refused, never guessed away. The order of queues is part of the facts (tickets, times, tokens):
 * the successor makes the choices that its predecessor would have made. Called by adopt.c, and by
 * audit.c on a copy of what it writes. */

#include <errno.h>
#include <string.h>

#include "daemon/core/backlog.h"
#include "daemon/core/core.h"
#include "daemon/core/entry.h"
#include "daemon/core/index.h"
#include "daemon/core/leaf.h"
#include "daemon/core/lease.h"
#include "daemon/core/ledger.h"
#include "daemon/core/order.h"
#include "daemon/core/page.h"
#include "daemon/core/records.h"
#include "daemon/core/recover.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/wait.h"
#include "kvtrunk_wire_control.h"

#define TRY(call)                                                                                 \
	do {                                                                                      \
		int try_error = (call);                                                           \
		if (try_error)                                                                    \
			return try_error;                                                         \
	} while (0)

/* ---- order: a merge sort inside the scratch area, for the core may not allocate */

static bool sorted(const struct kvt_sort *a, const struct kvt_sort *b)
{
	if (a->first != b->first)
		return a->first < b->first;
	return a->second != b->second ? a->second < b->second : a->id <= b->id;
}

static void merge(const struct kvt_sort *from, struct kvt_sort *to, uint32_t left, uint32_t middle,
		  uint32_t right)
{
	uint32_t a = left, b = middle;

	for (uint32_t i = left; i < right; i++)
		to[i] = b >= right || (a < middle && sorted(&from[a], &from[b])) ? from[a++] :
										   from[b++];
}

/** Sort the first n entries of core->sort. Returns where they are then. */
static struct kvt_sort *sort(struct kvt_core *core, uint32_t n)
{
	uint32_t half = core->n_sort;
	struct kvt_sort *from = core->sort, *to = core->sort + half;

	for (uint32_t width = 1; width < n; width = width > n / 2 ? n : 2 * width) {
		for (uint32_t left = 0; left < n; left += kvt_min(2 * width, n - left))
			merge(from, to, left, left + kvt_min(width, n - left),
			      left + kvt_min(2 * width, n - left));
		struct kvt_sort *other = from;

		from = to;
		to = other;
	}
	return from;
}

/* ---- nodes */

static void forget_node(struct kvt_node *node)
{
	const uint32_t facts = KVT_NODE_LIVE | KVT_NODE_ROOT | KVT_NODE_DETACHED | KVT_NODE_KEYED |
			       KVT_NODE_WHY | KVT_NODE_DAMAGED;

	if (node->flags & ~facts)
		KVT_SET(node->flags, node->flags & facts);
	/* A reader from before the crash retries, and none waits on an odd version for ever. */
	if (node->version & 1)
		KVT_SET(node->version, node->version + 1);
	node->first_child = node->next_sibling = node->prev_sibling = KVT_NONE;
	node->n_children = node->lock_ref = node->tag = 0;
	node->older = KVT_NONE;
	node->younger = KVT_NODE_UNLISTED;
	node->heap_at = node->expiry_at = 0;
	node->announcer = KVT_NONE;
}

static int check_free_node(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);

	if (node->flags || node->parent || node->first_slot || node->n_slots || node->sealed)
		return kvt_unclean(why, "node %u is free, but has flags %x and %u slots", id,
				 node->flags, node->n_slots);
	if (node->created > core->ledger->tickets)
		return kvt_unclean(why, "node %u has a ticket that was never given", id);
	return 0;
}

/** Check a live node's own fields. */
static int check_live_node(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	const struct kvt_namespace_record *space;
	bool root = node->flags & KVT_NODE_ROOT;
	int reasons = __builtin_popcount(node->flags & KVT_NODE_WHY);

	if (node->flags >= KVT_NODE_DAMAGED << 1 ||
	    (node->flags & KVT_NODE_DAMAGED && !(node->flags & KVT_NODE_REMOVED)) ||
	    reasons != ((node->flags & KVT_NODE_DETACHED) != 0))
		return kvt_unclean(why, "node %u has flags %x", id, node->flags);
	if (node->namespace_id == 0 || node->namespace_id >= core->config.max_namespaces)
		return kvt_unclean(why, "node %u is of no namespace: %u", id, node->namespace_id);
	space = &core->namespaces[node->namespace_id];
	if (space->flags != KVT_NAMESPACE_USED)
		return kvt_unclean(why, "node %u is of namespace %u, which is not in use", id,
				 node->namespace_id);
	if (root ? node->first_slot || node->n_slots || node->sealed || node->start ||
			   node->parent :
		   node->first_slot == 0 || node->n_slots == 0 || node->sealed > node->n_slots)
		return kvt_unclean(why, "node %u has an impossible run", id);
	if (node->flags & KVT_NODE_KEYED && (root || node->start || !core->root_keys[id]))
		return kvt_unclean(why, "node %u has an impossible root key", id);
	if ((uint64_t)node->first_slot + node->n_slots > core->config.n_slots ||
	    (uint64_t)node->start + node->n_slots > core->config.n_slots)
		return kvt_unclean(why, "node %u reaches beyond the last slot", id);
	if (node->touched > core->ledger->clock || node->created > core->ledger->clock ||
	    node->epoch > core->arena->epoch)
		return kvt_unclean(why, "node %u is of the future", id);
	if (!root && node->parent == KVT_NONE && !(node->flags & KVT_NODE_DETACHED))
		return kvt_unclean(why, "node %u has no parent", id);
	return 0;
}

/** Check a node against its parent. A run begins where the parent ends, and none is empty: so every
 * climb ends. */
static int check_parent(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id), *up = kvt_node_at(core, node->parent);

	if (!kvt_node_live(core, node->parent))
		return kvt_unclean(why, "the parent of node %u is node %u, which is free", id,
				 node->parent);
	if (node->start != up->start + up->n_slots || node->namespace_id != up->namespace_id)
		return kvt_unclean(why, "node %u does not begin where node %u ends", id,
				 node->parent);
	if (node->sealed > 0 && up->sealed < up->n_slots)
		return kvt_unclean(why, "node %u is sealed below announced pages", id);
	if (node->epoch != up->epoch)
		return kvt_unclean(why, "node %u is of another epoch than its parent", id);
	if (node->touched > up->touched)
		return kvt_unclean(why, "node %u was touched after its parent", id);
	return 0;
}

static int link_root(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];

	if (node->flags & KVT_NODE_DETACHED)
		return 0;
	if (space->root != KVT_NONE)
		return kvt_unclean(why, "namespace %u has two roots: nodes %u and %u",
				 node->namespace_id, space->root, id);
	KVT_SET(space->root, id);
	core->n_roots++;
	core->stale_roots += kvt_is_stale(core, id);
	core->count->detached_pending += kvt_is_stale(core, id);
	return 0;
}

/** A node under its parent, with all that both say checked: it can be found from now on. */
static int link_node(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	struct kvt_node *node = kvt_node_at(core, id), *up = kvt_node_at(core, node->parent);

	core->count->live_nodes++;
	core->namespaces[node->namespace_id].nodes++;
	if (node->flags & KVT_NODE_ROOT)
		return link_root(core, why, id);
	if (node->parent != KVT_NONE)
		TRY(check_parent(core, why, id));
	if (kvt_bit_get(core->slots.run_head, node->first_slot))
		return kvt_unclean(why, "nodes %u and %u begin at slot %u", id,
				 core->slots.run[node->first_slot], node->first_slot);
	kvt_slots_set_run(&core->slots, node->first_slot, id);
	if (node->flags & KVT_NODE_DETACHED)
		return 0;
	if (!kvt_index_add_new(core, id))
		return kvt_unclean(why, "node %u has a twin below node %u", id, node->parent);
	node->next_sibling = up->first_child;
	if (up->first_child != KVT_NONE)
		core->nodes[up->first_child].prev_sibling = id;
	up->first_child = id;
	up->n_children++;
	return 0;
}

static int rebuild_nodes(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t i = 0; i <= core->bucket_mask; i++)
		kvt_store_relaxed(&core->buckets[i], 0);
	for (uint32_t i = 0; i < core->config.max_namespaces; i++)
		KVT_SET(core->namespaces[i].root, KVT_NONE);
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		if (core->nodes[id].flags & KVT_NODE_LIVE)
			TRY(check_live_node(core, why, id));
		else
			TRY(check_free_node(core, why, id));
		forget_node(kvt_node_at(core, id));
	}
	for (uint32_t id = 1; id < core->config.max_nodes; id++)
		if (core->nodes[id].flags & KVT_NODE_LIVE)
			TRY(link_node(core, why, id));
	return 0;
}

/** Rebuild the free list, in the order in which ids were freed. */
static void queue_free_nodes(struct kvt_core *core)
{
	struct kvt_fifo *fifo = &core->free_nodes;
	struct kvt_sort *list;
	uint32_t n = 0;

	for (uint32_t id = 1; id < core->config.max_nodes; id++)
		if (!(core->nodes[id].flags & KVT_NODE_LIVE))
			core->sort[n++] = (struct kvt_sort){ core->nodes[id].created, 0, id };
	list = sort(core, n);
	for (uint32_t i = 0; i < n; i++)
		core->nodes[list[i].id].next_sibling = i + 1 < n ? list[i + 1].id : KVT_NONE;
	*fifo = (struct kvt_fifo){ n ? list[0].id : KVT_NONE, n ? list[n - 1].id : KVT_NONE, n };
}

/* ---- slots: those in no run are free */

static uint32_t next_run(const struct kvt_slots *slots, uint32_t at)
{
	while (at < slots->n_slots) {
		uint64_t bits = slots->run_head[at / 64] & ~0ull << at % 64;

		if (bits)
			return kvt_min(at / 64 * 64 + (uint32_t)__builtin_ctzll(bits),
				       slots->n_slots);
		at = at / 64 * 64 + 64;
	}
	return slots->n_slots;
}

static int rebuild_slots(struct kvt_core *core, struct kvt_why *why)
{
	struct kvt_slots *slots = &core->slots;
	uint32_t at = 1;

	while (at < slots->n_slots) {
		uint32_t run = next_run(slots, at), next;

		kvt_slots_give(slots, at, run - at);
		if (run == slots->n_slots)
			break;
		at = run + core->nodes[slots->run[run]].n_slots;
		next = next_run(slots, run + 1);
		if (next < at)
			return kvt_unclean(why, "the runs of nodes %u and %u overlap",
					 slots->run[run], slots->run[next]);
	}
	return 0;
}

/* ---- pages */

/** Mark all pages free; slots, leases and sessions claim theirs later. Quarantine is a fact of the
 * page. */
static void forget_pages(struct kvt_core *core)
{
	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		struct kvt_page_record *record = &core->pages[page];

		record->slot = KVT_NONE;
		if (record->state != KVT_PAGE_QUARANTINE)
			record->state = KVT_PAGE_FREE;
	}
	core->pages[0] = (struct kvt_page_record){ .slot = KVT_NONE, .state = KVT_PAGE_SCRATCH };
	core->free_page = KVT_NONE;
}

/** True if a page that a fact names may be what the fact says: no other one names it. */
static bool unclaimed(const struct kvt_core *core, uint32_t page)
{
	return page != KVT_NONE && page < core->config.n_pages &&
	       core->pages[page].state == KVT_PAGE_FREE && !core->owners[page].session &&
	       !core->owners[page].lease;
}

/** Claim the side pages of page `at` of a node's run. */
static int claim_sides(struct kvt_core *core, struct kvt_why *why, uint32_t id, uint32_t at)
{
	uint32_t main = core->slot_pages[core->nodes[id].first_slot + at];

	for (uint32_t kind = 0; kind < core->n_sides; kind++) {
		uint32_t page = kvt_sides_of(core, main)[kind];

		if (page == KVT_NONE)
			continue;
		if (!unclaimed(core, page))
			return kvt_unclean(why, "side %u of page %u is page %u, which is not its "
					 "own", kind, main, page);
		core->pages[page].state = KVT_PAGE_CACHED;
		core->pages[page].parent = main;
		core->owners[page] = (struct kvt_owner_record){ 0 };
		core->count->cached_pages++;
		core->count->side_pages++;
		core->sides_in[id]++;
		core->side_top[id] = core->nodes[id].start + at + 1;
	}
	return 0;
}

static int claim_cached(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);

	for (uint32_t i = 0; i < node->sealed; i++) {
		uint32_t slot = node->first_slot + i, page = core->slot_pages[slot];

		if (!unclaimed(core, page))
			return kvt_unclean(why, "slot %u of node %u names page %u, which is not "
					 "its own", slot, id, page);
		core->pages[page].slot = slot;
		core->pages[page].state = KVT_PAGE_CACHED;
		/* A detached top has lost its parent; its first page keeps what it had. */
		if (i > 0 || node->parent != KVT_NONE)
			core->pages[page].parent = kvt_page_before(core, node, i);
		core->owners[page] = (struct kvt_owner_record){ 0 };
		kvt_sealer_note(core, id, i, core->pages[page].sealer);
		TRY(claim_sides(core, why, id, i));
	}
	/* Behind them a seal that was rolled back may have left its page. */
	memset(core->slot_pages + node->first_slot + node->sealed, 0,
	       (node->n_slots - node->sealed) * sizeof(*core->slot_pages));
	core->count->cached_pages += node->sealed;
	return 0;
}

/** Clear what is left of side pages where no page of a node has any. */
static void forget_sides(struct kvt_core *core)
{
	for (uint32_t page = 0; core->n_sides > 0 && page < core->config.n_pages; page++)
		for (uint32_t kind = 0; core->pages[page].slot == KVT_NONE && kind < core->n_sides;
		     kind++)
			if (kvt_sides_of(core, page)[kind] != KVT_NONE)
				KVT_SET(kvt_sides_of(core, page)[kind], KVT_NONE);
}

/** Claim a list of a lease's pages. */
static int claim_leased(struct kvt_core *core, struct kvt_why *why, uint32_t id, uint32_t page,
			uint32_t *ret_n, uint32_t *ret_last)
{
	struct kvt_session_record *session = &core->sessions[core->leases[id].session];
	uint32_t n = 0, last = KVT_NONE;

	for (; page != KVT_NONE; last = page, page = core->owners[page].next, n++) {
		/* A page is claimed once, so the list ends. */
		if (page >= core->config.n_pages || core->pages[page].state != KVT_PAGE_FREE ||
		    core->owners[page].lease != id ||
		    core->owners[page].session != core->leases[id].session)
			return kvt_unclean(why, "lease %u lists page %u, which is not its own", id,
					 page);
		core->pages[page].state = KVT_PAGE_PRIVATE;
	}
	session->n_private += n;
	core->count->private_pages += n;
	*ret_n = n;
	*ret_last = last;
	return 0;
}

static int claim_loose(struct kvt_core *core, struct kvt_why *why, uint32_t page)
{
	struct kvt_owner_record *owner = &core->owners[page];
	struct kvt_session_record *session = &core->sessions[owner->session];

	if (owner->session > core->config.max_sessions || session->state == KVT_SESSION_FREE)
		return kvt_unclean(why, "page %u is of no session: %u", page, owner->session);
	if (owner->lease > core->config.n_leases)
		return kvt_unclean(why, "page %u is of no lease: %u", page, owner->lease);
	if (core->pages[page].state == KVT_PAGE_QUARANTINE) {
		if (session->state != KVT_SESSION_DYING && session->state != KVT_SESSION_DEAD)
			return kvt_unclean(why, "page %u of session %u, which lives, is in "
					 "quarantine", page, owner->session);
		session->n_quarantined++;
		core->count->quarantined_pages++;
	} else {
		/* A dying session's pages keep the name of the lease that they were in. */
		if (owner->lease && (session->state != KVT_SESSION_DYING ||
				     (core->leases[owner->lease].kind != KVT_LEASE_FREE &&
				      core->leases[owner->lease].session == owner->session)))
			return kvt_unclean(why, "page %u is not in the list of its lease %u", page,
					 owner->lease);
		core->pages[page].state = KVT_PAGE_PRIVATE;
		session->n_private++;
		core->count->private_pages++;
	}
	kvt_loose_add(core, owner->session, page);
	return 0;
}

/** Put unclaimed pages on the free list in ascending order. */
static int rebuild_pages(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t page = core->config.n_pages - 1; page > 0; page--) {
		struct kvt_owner_record *owner = &core->owners[page];
		uint32_t state = core->pages[page].state;

		if (state != KVT_PAGE_FREE && state != KVT_PAGE_QUARANTINE)
			continue;
		if (owner->session != KVT_NONE) {
			TRY(claim_loose(core, why, page));
			continue;
		}
		if (state != KVT_PAGE_FREE || owner->lease)
			return kvt_unclean(why, "page %u has no owner and is not free", page);
		*owner = (struct kvt_owner_record){ .next = core->free_page };
		core->free_page = page;
		core->count->free_pages++;
	}
	return 0;
}

/* ---- sessions, leases, what waits */

/** Signs of an end do not come without it, and the end not without signs. */
static bool signs_ok(const struct kvt_session_record *session)
{
	const uint32_t ends = KVT_SIGN_HANGUP | KVT_SIGN_EXITED, all = ends | KVT_SIGN_QUIET;

	switch (session->state) {
	case KVT_SESSION_FREE:
		return session->signs == 0;
	case KVT_SESSION_OPEN:
		return !(session->signs & (ends | KVT_SIGN_CLOSED));
	case KVT_SESSION_CLOSING:
		return !(session->signs & ends);
	case KVT_SESSION_DEAD:
		return (session->signs & all) != all && !(session->signs & KVT_SIGN_FENCED);
	default:
		return true;
	}
}

static bool has_process(const struct kvt_core *core, uint32_t session)
{
	const struct kvt_member_record *member = kvt_core_member(core, session);

	return member && member->session == session && member->rank == 0 &&
	       member->state == KVT_MEMBER_JOINED;
}

static int rebuild_sessions(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		struct kvt_session_record *session = &core->sessions[i];

		if (session->state > KVT_SESSION_DEAD || session->signs >= KVT_SIGN_CLOSED << 1 ||
		    !signs_ok(session))
			return kvt_unclean(why, "session %u is in state %u with signs %x", i,
					 session->state, session->signs);
		if (session->state != KVT_SESSION_FREE && !has_process(core, i))
			return kvt_unclean(why, "session %u has no process", i);
		session->n_leases = session->n_private = session->n_quarantined = 0;
		session->first_lease = session->last_lease = KVT_NONE;
		session->first_page = KVT_NONE;
		session->first_quarantined = KVT_NONE;
		session->first_pending = session->last_pending = KVT_NONE;
		session->n_pending = session->n_waiters = 0;
		core->count->live_sessions += session->state != KVT_SESSION_FREE;
		core->dying += session->state == KVT_SESSION_DYING;
		core->open_sessions += session->state == KVT_SESSION_OPEN ||
				       session->state == KVT_SESSION_CLOSING;
	}
	for (uint32_t i = 1; i <= kvt_core_members(&core->config); i++)
		core->members[i].label[KVT_LABEL_BYTES - 1] = '\0';
	return 0;
}

/** Check a lease's own fields. */
static int check_lease(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_lease_record *lease = &core->leases[id];
	const uint32_t flags = KVT_LEASE_COUNTED | KVT_LEASE_FORCE_MISS | KVT_LEASE_ENDING |
			       KVT_LEASE_FULL | KVT_LEASE_LATE | KVT_LEASE_BARE |
			       KVT_LEASE_ALONE;
	uint32_t state;

	if (lease->kind > KVT_LEASE_BEGIN || lease->flags & ~flags)
		return kvt_unclean(why, "lease %u has kind %u and flags %x", id, lease->kind,
				 lease->flags);
	if (lease->ticket > core->ledger->tickets)
		return kvt_unclean(why, "lease %u has a ticket that was never given", id);
	if (lease->kind == KVT_LEASE_FREE)
		return 0;
	if (lease->session == 0 || lease->session > core->config.max_sessions)
		return kvt_unclean(why, "lease %u is of no session: %u", id, lease->session);
	state = core->sessions[lease->session].state;
	if (state == KVT_SESSION_FREE || state == KVT_SESSION_DEAD)
		return kvt_unclean(why, "lease %u is of session %u, which holds none", id,
				 lease->session);
	if (lease->node != KVT_NONE && !kvt_node_live(core, lease->node))
		return kvt_unclean(why, "lease %u ends in node %u, which is free", id,
				 lease->node);
	if (lease->epoch > core->arena->epoch)
		return kvt_unclean(why, "lease %u is of the future", id);
	if (lease->node != KVT_NONE && lease->epoch != core->nodes[lease->node].epoch)
		return kvt_unclean(why, "lease %u is of another epoch than its path", id);
	if (lease->kind == KVT_LEASE_MATCH)
		return lease->first_page || lease->first_kept || lease->done || lease->point ?
			       kvt_unclean(why, "lease %u is a lock and has pages", id) :
			       0;
	if (lease->namespace_id == 0 || lease->namespace_id >= core->config.max_namespaces ||
	    (lease->node && lease->namespace_id != core->nodes[lease->node].namespace_id))
		return kvt_unclean(why, "lease %u is of namespace %u", id, lease->namespace_id);
	if (lease->path_pages && lease->path_pages != lease->known / core->ps)
		return kvt_unclean(why, "lease %u knows %u positions and a path of %u pages", id,
				 lease->known, lease->path_pages);
	return 0;
}

/** Check a lease against its path. */
static int check_path(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_lease_record *lease = &core->leases[id];
	const struct kvt_node *node = kvt_node_at(core, lease->node);
	uint64_t table = (uint64_t)(lease->done + lease->n_private) * core->ps;
	uint32_t end = node->start + node->n_slots;

	if (lease->point && (lease->point <= lease->done || lease->point > lease->path_pages ||
			     core->n_sides == 0))
		return kvt_unclean(why, "lease %u declares a point at page %u", id, lease->point);
	/* Begun without pages it knows more than its table holds, never more than the pool. */
	if (lease->done > lease->path_pages || lease->computed > table ||
	    lease->known > (core->config.n_pages - 1ull) * core->ps)
		return kvt_unclean(why, "lease %u: %u positions known, %u computed, %u pages done",
				 id, lease->known, lease->computed, lease->done);
	if (lease->node == KVT_NONE)
		return lease->done ? kvt_unclean(why, "lease %u has no path", id) : 0;
	if (lease->kind == KVT_LEASE_BEGIN ? end != lease->path_pages : end < lease->path_pages)
		return kvt_unclean(why, "lease %u: its path of %u pages ends in node %u", id,
				 lease->path_pages, lease->node);
	while (node->start >= lease->done && node->parent != KVT_NONE)
		node = kvt_node_at(core, node->parent);
	if (node->start + node->sealed < lease->done)
		return kvt_unclean(why, "lease %u: %u pages of its table are not cached", id,
				 lease->done);
	return 0;
}

static int claim_lease(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	struct kvt_lease_record *lease = &core->leases[id];
	bool cut = false;
	uint32_t last;

	if (lease->point)
		kvt_lease_point(core, id);
	TRY(claim_leased(core, why, id, lease->first_page, &lease->n_private,
			 &lease->last_page));
	TRY(claim_leased(core, why, id, lease->first_kept, &lease->n_kept, &last));
	for (uint32_t at = lease->node; at != KVT_NONE; at = core->nodes[at].parent) {
		core->nodes[at].lock_ref++;
		core->cut_below[at] += cut;
		cut = cut || core->nodes[at].flags & KVT_NODE_DETACHED;
	}
	core->cut_leases += cut && lease->epoch == core->arena->epoch;
	return 0;
}

/** Free ones queue up. */
static void link_lease(struct kvt_core *core, uint32_t id)
{
	if (core->leases[id].kind == KVT_LEASE_FREE)
		kvt_lease_queue(core, id);
	else
		kvt_lease_list(core, id);
}

static int rebuild_leases(struct kvt_core *core, struct kvt_why *why)
{
	struct kvt_sort *list;

	for (uint32_t id = 1; id <= core->config.n_leases; id++) {
		struct kvt_lease_record *lease = &core->leases[id];

		TRY(check_lease(core, why, id));
		lease->next_lease = lease->prev_lease = KVT_NONE;
		lease->n_private = lease->n_kept = lease->n_pending = 0;
		lease->pending_keys = 0;
		lease->last_page = KVT_NONE;
		if (lease->kind != KVT_LEASE_FREE)
			TRY(claim_lease(core, why, id));
		core->sort[id - 1] = (struct kvt_sort){ lease->ticket, 0, id };
	}
	list = sort(core, core->config.n_leases);
	for (uint32_t i = 0; i < core->config.n_leases; i++)
		link_lease(core, list[i].id);
	return 0;
}

/** Check the leases' paths, when all pages are claimed. */
static int check_paths(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t id = 1; id <= core->config.n_leases; id++)
		if (core->leases[id].kind != KVT_LEASE_FREE)
			TRY(check_path(core, why, id));
	return 0;
}

static int check_pending(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_pending_record *pending = &core->pending[id];
	bool takes_lease = kvt_op_takes(pending->sqe.op) & KVT_TAKES_LEASE;
	uint32_t lease = takes_lease ? pending->sqe.node : KVT_NONE;
	bool waiter = pending->sqe.op == KVT_OP_BEGIN;
	uint32_t state;

	if (pending->session > core->config.max_sessions)
		return kvt_unclean(why, "deferred operation %u is of no session: %u", id,
				 pending->session);
	state = core->sessions[pending->session].state;
	if (state != KVT_SESSION_OPEN && state != KVT_SESSION_CLOSING)
		return kvt_unclean(why, "deferred operation %u is of session %u, which is over",
				 id, pending->session);
	if (!kvt_op_may_wait(core, pending->session, &pending->sqe))
		return kvt_unclean(why, "deferred operation %u of session %u cannot have been let "
				 "in", id, pending->session);
	if (waiter ? pending->lease > core->config.n_leases || state != KVT_SESSION_OPEN :
		     pending->lease != lease || lease > core->config.n_leases ||
			     (lease && (core->leases[lease].session != pending->session ||
					core->leases[lease].generation !=
						pending->sqe.generation)))
		return kvt_unclean(why, "deferred operation %u is of lease %u", id,
				 pending->lease);
	if (pending->for_point > waiter)
		return kvt_unclean(why, "deferred operation %u waits for point %u", id,
				 pending->for_point);
	if (pending->token == 0 || pending->token > core->ledger->seq)
		return kvt_unclean(why, "deferred operation %u has token %llu", id,
				 (unsigned long long)pending->token);
	return 0;
}

/** Tokens are numbers of effects: their order is that of submission. */
static int rebuild_pending(struct kvt_core *core, struct kvt_why *why)
{
	struct kvt_fifo *fifo = &core->free_pending;
	struct kvt_sort *list;
	uint32_t n = 0;

	for (uint32_t id = 1; id <= core->config.n_pending; id++) {
		struct kvt_pending_record *pending = &core->pending[id];

		pending->next = KVT_NONE;
		if (pending->session != KVT_NONE) {
			TRY(check_pending(core, why, id));
			core->sort[n++] = (struct kvt_sort){ pending->token, 0, id };
			continue;
		}
		if (fifo->count++ == 0)
			fifo->head = id;
		else
			core->pending[fifo->tail].next = id;
		fifo->tail = id;
	}
	list = sort(core, n);
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_pending_record *pending = &core->pending[list[i].id];
		struct kvt_session_record *session = &core->sessions[pending->session];

		if (pending->sqe.op == KVT_OP_BEGIN) {
			kvt_waiter_add(core, list[i].id);
			continue;
		}
		if (session->n_pending++ == 0)
			session->first_pending = list[i].id;
		else
			core->pending[session->last_pending].next = list[i].id;
		session->last_pending = list[i].id;
		if (pending->lease != KVT_NONE) {
			core->leases[pending->lease].n_pending++;
			core->leases[pending->lease].pending_keys += pending->sqe.n_keys;
		}
	}
	return 0;
}

/* ---- namespaces */

static int rebuild_opened(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t s = 0; s <= core->config.max_sessions; s++) {
		const uint64_t *bits = core->opened + (size_t)s * core->opened_words;

		for (uint32_t word = 0; word < core->opened_words; word++) {
			for (uint64_t left = bits[word]; left; left &= left - 1) {
				uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(left);

				if (i == 0 || i >= core->config.max_namespaces || s == 0 ||
				    core->sessions[s].state == KVT_SESSION_FREE)
					return kvt_unclean(why, "session %u has namespace %u open",
							 s, i);
				core->namespaces[i].opened++;
			}
		}
	}
	return 0;
}

static int rebuild_namespaces(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t i = 0; i < core->config.max_namespaces; i++) {
		struct kvt_namespace_record *space = &core->namespaces[i];

		if (space->flags & ~(uint32_t)KVT_NAMESPACE_USED)
			return kvt_unclean(why, "namespace %u has flags %x", i, space->flags);
		space->opened = 0;
		space->cached_pages = space->evictable_pages = space->protected_pages = 0;
		space->nodes = 0;
		core->labels[i][KVT_LABEL_BYTES - 1] = '\0';
		core->count->live_namespaces += space->flags == KVT_NAMESPACE_USED;
	}
	return rebuild_opened(core, why);
}

/* ---- what depends on locks */

/** Check what locks, children and namespaces say of a node: nothing is there for nothing. */
static int check_use(struct kvt_core *core, struct kvt_why *why, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	bool root = node->flags & KVT_NODE_ROOT, locked = node->lock_ref > 0;

	/* Locks of a detached subtree still cross what was above it. */
	if (!root && node->flags & KVT_NODE_DETACHED && locked != (node->parent != KVT_NONE))
		return kvt_unclean(why, "node %u is a top and has parent %u", id, node->parent);
	if (root && !(node->flags & KVT_NODE_DETACHED) && !locked && node->n_children == 0)
		return kvt_unclean(why, "root %u has nothing below", id);
	if (!locked && node->sealed != node->n_slots)
		return kvt_unclean(why, "unlocked node %u has %u of %u pages", id, node->sealed,
				 node->n_slots);
	return 0;
}

static int check_spaces(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		const struct kvt_namespace_record *space = &core->namespaces[i];

		if (space->flags != (space->opened > 0 || space->nodes > 0))
			return kvt_unclean(why, "namespace %u: %u sessions, %u nodes, flags %u",
					 i, space->opened, space->nodes, space->flags);
	}
	return 0;
}

static void count_node(struct kvt_core *core, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_namespace_record *space = &core->namespaces[node->namespace_id];
	uint32_t pages = node->sealed + kvt_sides_in(core, id);
	bool locked = node->lock_ref > 0;

	core->count->locked_nodes += locked;
	space->cached_pages += pages;
	*(locked ? &space->protected_pages : &space->evictable_pages) += pages;
	*(locked ? &core->count->protected_pages : &core->count->evictable_pages) += pages;
	core->evictable_nodes += !locked && !(node->flags & KVT_NODE_ROOT);
}

/** A touch is of a path, deepest first: so time, then depth, is the order of the list. */
static int rebuild_order(struct kvt_core *core, struct kvt_why *why)
{
	struct kvt_sort *list;
	uint32_t n = 0;

	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		const struct kvt_node *node = kvt_node_at(core, id);

		if (!(node->flags & KVT_NODE_LIVE))
			continue;
		TRY(check_use(core, why, id));
		count_node(core, id);
		if (node->expiry_ns != KVT_NEVER && !kvt_path_detached(core, id))
			kvt_heap_update(core, &core->expiry, id);
		if (node->flags & KVT_NODE_DETACHED)
			kvt_detached_queue(core, id);
		if (!(node->flags & KVT_NODE_ROOT) && node->lock_ref == 0)
			core->sort[n++] = (struct kvt_sort){ node->touched,
							     UINT32_MAX - node->start, id };
	}
	list = sort(core, n);
	for (uint32_t i = 0; i < n; i++) {
		kvt_recency_add(core, list[i].id);
		kvt_leaf_check(core, list[i].id);
		if (core->nodes[list[i].id].n_children == 0)
			kvt_compact_note(core, list[i].id);
	}
	return 0;
}

/** Count the side pages that were let go. A successor has none, an audit's shadow the core's. */
static int count_let(struct kvt_core *core, struct kvt_why *why)
{
	for (uint32_t page = 0; core->n_sides > 0 && page < core->config.n_pages; page++) {
		const struct kvt_page_record *side = &core->pages[page];
		const struct kvt_node *node;
		struct kvt_namespace_record *space;

		if (!kvt_side_is_let(core, page))
			continue;
		node = kvt_node_at(core, kvt_slots_node_of(&core->slots,
							   core->pages[side->parent].slot));
		if (side->slot != KVT_NONE || side->parent == KVT_NONE || node->lock_ref == 0)
			return kvt_unclean(why, "page %u was let go and is no side page of a lock",
					   page);
		space = &core->namespaces[node->namespace_id];
		space->evictable_pages++;
		space->protected_pages--;
		core->count->evictable_pages++;
		core->count->protected_pages--;
		core->n_let++;
	}
	return 0;
}

int kvt_rebuild(struct kvt_core *core, struct kvt_why *why)
{
	memset(core->count, 0, offsetof(struct kvt_counters, operations));
	core->count->side_pages = 0;
	TRY(rebuild_sessions(core, why));
	TRY(rebuild_namespaces(core, why));
	TRY(rebuild_nodes(core, why));
	queue_free_nodes(core);
	TRY(rebuild_slots(core, why));
	forget_pages(core);
	for (uint32_t id = 1; id < core->config.max_nodes; id++)
		if (core->nodes[id].flags & KVT_NODE_LIVE)
			TRY(claim_cached(core, why, id));
	forget_sides(core);
	TRY(rebuild_leases(core, why));
	TRY(rebuild_pages(core, why));
	TRY(check_paths(core, why));
	TRY(rebuild_pending(core, why));
	TRY(check_spaces(core, why));
	TRY(rebuild_order(core, why));
	return count_let(core, why);
}
