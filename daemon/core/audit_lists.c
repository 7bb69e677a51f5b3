/* SPDX-License-Identifier: Apache-2.0 */

/* The linked half of the audit: extents of slots, the child index, free lists, heaps, queues, and
 * what each session holds. */

#include "daemon/core/audit.h"

#define report kvt_audit_report

/* ---- slots: runs and free extents lie behind each other, without gap and without overlap */

static uint64_t count_bits(const uint64_t *bits, uint32_t n)
{
	uint64_t count = 0;

	for (uint32_t i = 0; i <= n / 64; i++)
		count += (uint64_t)__builtin_popcountll(bits[i]);
	return count;
}

static void check_slots(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_slots *slots = &core->slots;
	uint64_t extents = 0, runs = 0, n_free = 0;
	bool after_free = false;

	for (uint32_t at = 1, n; at < slots->n_slots; at += n) {
		bool head = kvt_bit_get(slots->free_head, at);
		uint32_t node = slots->run[at];

		if (head == kvt_bit_get(slots->run_head, at)) {
			report(audit, "slot %u begins neither a run nor a free extent", at);
			return;
		}
		if (!head && (!kvt_audit_node_live(core, node) ||
			      core->nodes[node].first_slot != at)) {
			report(audit, "the run at slot %u is not that of node %u", at, node);
			return;
		}
		n = head ? slots->length[at] : core->nodes[node].n_slots;
		if (n == 0 || n > slots->n_slots - at) {
			report(audit, "slot %u begins %u slots of %u", at, n, slots->n_slots);
			return;
		}
		if (head && (after_free || slots->first[at + n - 1] != at ||
			     !kvt_bit_get(slots->free_tail, at + n - 1)))
			report(audit, "the free extent at slot %u is not closed", at);
		extents += head;
		runs += !head;
		n_free += head ? n : 0;
		after_free = head;
	}
	if (n_free != slots->free_slots || !kvt_slots_bins_ok(slots, extents))
		report(audit, "%llu free slots in %llu extents, %u counted",
		       (unsigned long long)n_free, (unsigned long long)extents, slots->free_slots);
	if (count_bits(slots->free_head, slots->n_slots) != extents ||
	    count_bits(slots->free_tail, slots->n_slots) != extents ||
	    count_bits(slots->run_head, slots->n_slots) != runs)
		report(audit, "the maps of slots have more ends than %llu extents and %llu runs",
		       (unsigned long long)extents, (unsigned long long)runs);
}

/* ---- the child index holds what is linked, once, and nothing else */

static void check_index(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t used = 0;

	for (uint32_t i = 0; i <= core->bucket_mask; i++) {
		uint32_t child = (uint32_t)core->buckets[i];
		uint32_t tag = (uint32_t)(core->buckets[i] >> 32);

		if (core->buckets[i] == 0)
			continue;
		used++;
		if (!kvt_audit_node_live(core, child) || core->nodes[child].tag != tag)
			report(audit, "bucket %u names node %u", i, child);
	}
	if (used != audit->linked)
		report(audit, "the child index holds %llu nodes of %llu", (unsigned long long)used,
		       (unsigned long long)audit->linked);
}

/* ---- free records */

static void check_free_nodes(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t n = 0, last = KVT_NONE;

	for (uint32_t id = core->free_nodes.head; id != KVT_NONE && n <= core->free_nodes.count;
	     id = core->nodes[id].next_sibling, n++) {
		if (id >= core->config.max_nodes || (core->nodes[id].flags & KVT_NODE_LIVE)) {
			report(audit, "the free nodes are broken at node %u", id);
			return;
		}
		last = id;
	}
	if (n != core->free_nodes.count || last != core->free_nodes.tail)
		report(audit, "%u nodes are free, %u counted", n, core->free_nodes.count);
}

static void check_free_leases(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t n = 0, last = KVT_NONE;

	for (uint32_t id = core->free_leases.head; id != KVT_NONE && n <= core->free_leases.count;
	     id = core->leases[id].next_lease, n++) {
		if (id > core->config.n_leases || core->leases[id].kind != KVT_LEASE_FREE) {
			report(audit, "the free leases are broken at lease %u", id);
			return;
		}
		last = id;
	}
	if (n != core->free_leases.count || last != core->free_leases.tail ||
	    n + core->count->live_leases != core->config.n_leases)
		report(audit, "%u leases are free, %u counted", n, core->free_leases.count);
}

static void check_free_pending(struct kvt_audit *audit, uint64_t waiting)
{
	const struct kvt_core *core = audit->core;
	uint32_t n = 0, last = KVT_NONE;

	for (uint32_t id = core->free_pending.head;
	     id != KVT_NONE && n <= core->free_pending.count; id = core->pending[id].next, n++) {
		if (id > core->config.n_pending || core->pending[id].session != 0) {
			report(audit, "the free deferred operations are broken at %u", id);
			return;
		}
		last = id;
	}
	if (n != core->free_pending.count || last != core->free_pending.tail ||
	    n + waiting != core->config.n_pending)
		report(audit, "%u deferred operations are free, %u counted, %llu wait", n,
		       core->free_pending.count, (unsigned long long)waiting);
}

/* ---- heaps and queues */

static void check_policy_heap(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_policy_row *policy = &kvt_policies[core->config.policy];
	const struct kvt_heap *heap = &core->heap;

	for (uint32_t i = 0; i < heap->count && i < core->config.max_nodes; i++) {
		uint32_t id = heap->nodes[i], up = heap->nodes[i ? (i - 1) / 2 : 0];

		if (!kvt_audit_node_live(core, id) || core->nodes[id].heap_at != i + 1) {
			report(audit, "place %u of the policy heap names node %u", i, id);
			return;
		}
		if (policy->before(core, kvt_node_at(core, id), kvt_node_at(core, up)))
			report(audit, "node %u of the policy heap should go before node %u", id,
			       up);
	}
}

static void check_expiry_heap(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_heap *heap = &core->expiry;

	for (uint32_t i = 0; i < heap->count && i < core->config.max_nodes; i++) {
		uint32_t id = heap->nodes[i], up = heap->nodes[i ? (i - 1) / 2 : 0];

		if (!kvt_audit_node_live(core, id) || core->nodes[id].expiry_at != i + 1 ||
		    core->nodes[id].expiry_ns == KVT_NEVER) {
			report(audit, "place %u of the expiry heap names node %u", i, id);
			return;
		}
		if (core->nodes[id].expiry_ns < core->nodes[up].expiry_ns)
			report(audit, "node %u expires before node %u", id, up);
	}
	if (heap->count != audit->expiring)
		report(audit, "%u nodes in the expiry heap, %llu have a place", heap->count,
		       (unsigned long long)audit->expiring);
}

static void check_detached_queue(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	const uint32_t flags = KVT_NODE_QUEUED | KVT_NODE_DETACHED;

	for (uint32_t i = 0; i < core->detached_count && i < core->config.max_nodes; i++) {
		uint32_t id = core->detached[(core->detached_head + i) % core->config.max_nodes];

		if (!kvt_audit_node_live(core, id) || (core->nodes[id].flags & flags) != flags)
			report(audit, "node %u waits for reclaim and is not detached", id);
	}
	if (core->detached_count != audit->queued ||
	    core->detached_count + core->stale_roots != core->count->detached_pending ||
	    audit->roots != core->n_roots || audit->stale_roots != core->stale_roots)
		report(audit, "%llu detached nodes wait, %u are queued, %llu counted",
		       (unsigned long long)audit->queued, core->detached_count,
		       (unsigned long long)core->count->detached_pending);
}

/* ---- namespaces */

/** In how many sessions each namespace is open: few bits of very many are set. */
static void count_opened(const struct kvt_core *core)
{
	const uint64_t *words = core->opened + core->opened_words;

	for (uint64_t i = 0; i < (uint64_t)core->config.max_sessions * core->opened_words; i++) {
		for (uint64_t left = words[i]; left; left &= left - 1) {
			uint64_t space = i % core->opened_words * 64 +
					 (uint32_t)__builtin_ctzll(left);

			if (space < core->config.max_namespaces)
				core->space_tally[space].opened++;
		}
	}
}

static void check_namespaces(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	struct kvt_space_tally *tally = core->space_tally;
	uint64_t live = 0;

	count_opened(core);
	for (uint32_t i = 1; i < core->config.max_namespaces; i++) {
		const struct kvt_namespace_record *space = &core->namespaces[i];
		uint32_t opened = tally[i].opened;

		live += space->flags == 1;
		if (opened != space->opened)
			report(audit, "namespace %u is open in %u sessions, %u counted", i, opened,
			       space->opened);
		if (space->flags != (opened > 0 || tally[i].nodes > 0))
			report(audit, "namespace %u: %u sessions, %llu nodes, flags %u", i, opened,
			       (unsigned long long)tally[i].nodes, space->flags);
		if (space->nodes != tally[i].nodes || space->cached_pages != tally[i].cached ||
		    space->evictable_pages != tally[i].evictable ||
		    space->protected_pages != tally[i].protected_pages)
			report(audit, "the counters of namespace %u are wrong", i);
		if (space->root != tally[i].root)
			report(audit, "namespace %u has root %u, not %u", i, tally[i].root,
			       space->root);
	}
	if (live != core->count->live_namespaces)
		report(audit, "%llu namespaces live, %llu counted", (unsigned long long)live,
		       (unsigned long long)core->count->live_namespaces);
}

/* ---- sessions */

/** Length of a list of pages of one session in one state; UINT64_MAX: it is broken. `doubly`:
 * backward links count, too. */
static uint64_t pages_in(const struct kvt_core *core, uint32_t page, uint32_t session,
			 uint32_t state, bool doubly)
{
	uint32_t before = KVT_NONE;
	uint64_t n = 0;

	for (; page != KVT_NONE; before = page, page = core->owners[page].next) {
		if (page >= core->config.n_pages || core->pages[page].state != state ||
		    core->owners[page].session != session || ++n > core->config.n_pages)
			return UINT64_MAX;
		if (doubly && (core->owners[page].prev != before ||
			       core->owners[page].lease != KVT_NONE))
			return UINT64_MAX;
	}
	return n;
}

static uint64_t check_session_leases(struct kvt_audit *audit, uint32_t id, uint64_t *ret_waiting)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_session_record *session = &core->sessions[id];
	uint32_t before = KVT_NONE, n = 0;
	uint64_t pages = 0;

	*ret_waiting = 0;
	for (uint32_t at = session->first_lease; at != KVT_NONE; n++) {
		const struct kvt_lease_record *lease = &core->leases[at];

		if (at > core->config.n_leases || lease->session != id ||
		    lease->kind == KVT_LEASE_FREE || lease->prev_lease != before ||
		    n > core->config.n_leases) {
			report(audit, "session %u: its leases are broken at %u", id, at);
			return 0;
		}
		pages += lease->n_private + lease->n_kept;
		*ret_waiting += lease->n_pending;
		before = at;
		at = lease->next_lease;
	}
	if (n != session->n_leases)
		report(audit, "session %u holds %u leases and counts %u", id, n,
		       session->n_leases);
	return pages;
}

static void check_session_pending(struct kvt_audit *audit, uint32_t id, uint64_t of_leases)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_session_record *session = &core->sessions[id];
	uint32_t n = 0, last = KVT_NONE;
	uint64_t with_lease = 0;

	for (uint32_t at = session->first_pending; at != KVT_NONE; n++) {
		const struct kvt_pending_record *pending = &core->pending[at];

		if (at > core->config.n_pending || pending->session != id ||
		    n > core->config.n_pending ||
		    (pending->lease != KVT_NONE && (pending->lease > core->config.n_leases ||
						    core->leases[pending->lease].session != id))) {
			report(audit, "session %u: what waits is broken at %u", id, at);
			return;
		}
		with_lease += pending->lease != KVT_NONE;
		last = at;
		at = pending->next;
	}
	if (n != session->n_pending || (n && last != session->last_pending) ||
	    with_lease != of_leases)
		report(audit, "session %u: %u operations wait, %u counted, %llu of its leases", id,
		       n, session->n_pending, (unsigned long long)of_leases);
}

/** One waiter of the queue, which came before the next one. */
static bool waiter_ok(const struct kvt_core *core, const struct kvt_pending_record *waiter)
{
	return waiter->sqe.op == KVT_OP_BEGIN && waiter->session != 0 &&
	       waiter->session <= core->config.max_sessions &&
	       core->sessions[waiter->session].state == KVT_SESSION_OPEN &&
	       waiter->lease <= core->config.n_leases &&
	       (waiter->deadline_ns >= core->wake_at_ns || core->wake_due ||
		!core->views[waiter->session].fences);
}

static void check_waiters(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t n = 0, before = KVT_NONE, counted = 0;

	for (uint32_t at = core->first_waiter; at != KVT_NONE; n++) {
		const struct kvt_pending_record *waiter = &core->pending[at];

		if (at > core->config.n_pending || n > core->config.n_pending ||
		    waiter->prev != before || !waiter_ok(core, waiter) ||
		    (before != KVT_NONE && core->pending[before].token >= waiter->token)) {
			report(audit, "the queue of waiting BEGINs is broken at %u", at);
			return;
		}
		before = at;
		at = waiter->next;
	}
	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		counted += core->sessions[id].n_waiters;
	if (n != core->n_waiters || counted != n || before != core->last_waiter)
		report(audit, "%u BEGINs wait, %u counted, %u by their sessions", n,
		       core->n_waiters, counted);
}

static void check_session(struct kvt_audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_session_record *session = &core->sessions[id];
	/* The pages of a session that is over are only ever taken from the head. */
	bool doubly = session->state == KVT_SESSION_OPEN || session->state == KVT_SESSION_CLOSING;
	uint64_t waiting, leased = check_session_leases(audit, id, &waiting);
	uint64_t loose = pages_in(core, session->first_page, id, KVT_PAGE_PRIVATE, doubly);
	uint64_t dead = pages_in(core, session->first_quarantined, id, KVT_PAGE_QUARANTINE, true);

	if (loose == UINT64_MAX || loose + leased != session->n_private)
		report(audit, "session %u: %llu loose pages, %llu of leases, %u counted", id,
		       (unsigned long long)loose, (unsigned long long)leased, session->n_private);
	if (dead != session->n_quarantined)
		report(audit, "session %u: %llu pages in quarantine, %u counted", id,
		       (unsigned long long)dead, session->n_quarantined);
	check_session_pending(audit, id, waiting);
}

static void check_sessions(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t live = 0, dying = 0, private_pages = 0, quarantined = 0, waiting = 0, leases = 0;

	for (uint32_t id = 1; id <= core->config.max_sessions; id++) {
		const struct kvt_session_record *session = &core->sessions[id];

		live += session->state != KVT_SESSION_FREE;
		dying += session->state == KVT_SESSION_DYING;
		private_pages += session->n_private;
		quarantined += session->n_quarantined;
		waiting += session->n_pending;
		leases += session->n_leases;
		check_session(audit, id);
	}
	if (live != core->count->live_sessions || dying != core->dying)
		report(audit, "%llu sessions live, %llu counted; %llu dying, %u counted",
		       (unsigned long long)live, (unsigned long long)core->count->live_sessions,
		       (unsigned long long)dying, core->dying);
	if (private_pages != audit->private_pages || quarantined != audit->quarantined)
		report(audit, "sessions own %llu private and %llu quarantined pages",
		       (unsigned long long)private_pages, (unsigned long long)quarantined);
	if (leases != core->count->live_leases)
		report(audit, "sessions hold %llu leases", (unsigned long long)leases);
	check_free_pending(audit, waiting + core->n_waiters);
	check_waiters(audit);
}

/** What uids hold together. That every session and namespace is counted by one follows from the
 * sums being whole. */
static void check_users(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t live = 0, sessions = 0, namespaces = 0;

	for (uint32_t id = 1; id <= core->n_users; id++) {
		const struct kvt_user *user = &core->users[id];

		live += user->live > 0;
		sessions += user->sessions;
		namespaces += user->namespaces;
		if (!kvt_user_ok(core, id) ||
		    ((user->sessions || user->namespaces) && kvt_user_find(core, user->uid) != id))
			report(audit, "what uid %u holds is not what its sessions hold", user->uid);
	}
	if (live != core->live_users || sessions != core->count->live_sessions ||
	    namespaces != core->count->live_namespaces)
		report(audit, "uids hold %llu sessions and %llu namespaces",
		       (unsigned long long)sessions, (unsigned long long)namespaces);
}

void kvt_audit_lists(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;

	check_slots(audit);
	check_index(audit);
	check_free_nodes(audit);
	check_free_leases(audit);
	check_policy_heap(audit);
	check_expiry_heap(audit);
	check_detached_queue(audit);
	check_namespaces(audit);
	check_sessions(audit);
	check_users(audit);
	for (uint32_t i = 0; i <= core->config.n_pages / 64; i++)
		if (core->page_mark[i])
			report(audit, "marks of pages were left behind");
}
