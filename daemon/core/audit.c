/* SPDX-License-Identifier: Apache-2.0 */

/* Everything against everything: each derived fact is computed again from the primary ones and
 * compared. And the records that admin tools show. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/audit.h"

#define report kvt_audit_report

void kvt_audit_report(struct kvt_audit *audit, const char *format, ...)
{
	char text[256];
	va_list args;

	audit->problems++;
	if (!audit->problem)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	audit->problem(audit->context, text);
}

/** How many live leases cross each node, by climbing each of them. */
static void count_locks(const struct kvt_core *core)
{
	memset(core->lock_count, 0, core->config.max_nodes * sizeof(*core->lock_count));
	for (uint32_t i = 1; i <= core->config.n_leases; i++) {
		if (!kvt_lease_alive(core, i))
			continue;
		for (uint32_t id = core->leases[i].node, n = 0;
		     id != KVT_NONE && id < core->config.max_nodes && n < core->config.max_nodes;
		     id = core->nodes[id].parent, n++)
			core->lock_count[id]++;
	}
}

static void check_pages(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;

	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		const struct kvt_page_record *record = &core->pages[page];
		const struct kvt_owner_record *owner = &core->owners[page];

		switch (record->state) {
		case KVT_PAGE_FREE:
			audit->free_pages++;
			break;
		case KVT_PAGE_PRIVATE:
			audit->private_pages++;
			if (!owner->session || owner->session > core->config.max_sessions ||
			    core->sessions[owner->session].state == KVT_SESSION_FREE)
				report(audit, "private page %u has no owner", page);
			break;
		case KVT_PAGE_CACHED:
			audit->cached++;
			if (record->slot == 0 || record->slot >= core->config.n_slots ||
			    core->slot_pages[record->slot] != page)
				report(audit, "cached page %u is not in its slot %u", page,
				       record->slot);
			else if (kvt_slots_node_of(&core->slots, record->slot) == KVT_NONE)
				report(audit, "cached page %u is in no node", page);
			break;
		case KVT_PAGE_QUARANTINE:
			audit->quarantined++;
			break;
		default:
			report(audit, "page %u has no such state: %u", page, record->state);
		}
	}
}

/** Whether a walk that comes to the parent finds this child, and no other, by its first page. As
 * kvt_index_find(), for an index that may name anything. */
static bool is_found(const struct kvt_core *core, uint32_t id)
{
	const struct kvt_node *node = kvt_node_at(core, id);
	const uint32_t *keys = kvt_keys_at(core, node->first_slot);
	uint32_t tag = kvt_racy_tag(core->arena->hash_seed, node->parent, keys, core->ps);
	uint32_t at = tag & core->bucket_mask;

	for (uint32_t n = 0; n <= core->bucket_mask && core->buckets[at] != 0;
	     n++, at = (at + 1) & core->bucket_mask) {
		uint32_t child = (uint32_t)core->buckets[at];
		const struct kvt_node *other;

		if (core->buckets[at] >> 32 != tag)
			continue;
		if (child == id)
			return node->tag == tag;
		if (!kvt_audit_node_live(core, child))
			return false;
		other = kvt_node_at(core, child);
		if (other->parent == node->parent && other->first_slot < core->config.n_slots &&
		    kvt_racy_equal(keys, kvt_keys_at(core, other->first_slot), core->ps))
			return false;
	}
	return false;
}

static void check_place(struct kvt_audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_node *node = kvt_node_at(core, id), *up;

	if (node->flags & (KVT_NODE_ROOT | KVT_NODE_DETACHED)) {
		bool through = !(node->flags & KVT_NODE_ROOT) && node->lock_ref > 0;

		/* Locks of a detached subtree still cross what was above it. */
		if (through ? !kvt_audit_node_live(core, node->parent) : node->parent != KVT_NONE)
			report(audit, "node %u is a top and has parent %u", id, node->parent);
		return;
	}
	audit->linked++;
	if (!kvt_audit_node_live(core, node->parent)) {
		report(audit, "node %u has no live parent", id);
		return;
	}
	up = kvt_node_at(core, node->parent);
	if (node->start != up->start + up->n_slots)
		report(audit, "node %u starts at page %u, its parent ends at %u", id, node->start,
		       up->start + up->n_slots);
	if (node->lock_ref > up->lock_ref)
		report(audit, "node %u has %u locks, its parent %u", id, node->lock_ref,
		       up->lock_ref);
	if (node->sealed > 0 && up->sealed < up->n_slots)
		report(audit, "node %u is sealed below an unsealed page", id);
	if (node->namespace_id != up->namespace_id)
		report(audit, "node %u is of another namespace than its parent", id);
	if (node->n_slots > 0 && !is_found(core, id))
		report(audit, "node %u is not found by its first page", id);
}

static void check_children(struct kvt_audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core;
	uint32_t n = 0, before = KVT_NONE;

	for (uint32_t child = core->nodes[id].first_child; child != KVT_NONE;
	     child = core->nodes[child].next_sibling) {
		if (!kvt_audit_node_live(core, child) || core->nodes[child].parent != id ||
		    core->nodes[child].prev_sibling != before || ++n > core->config.max_nodes) {
			report(audit, "children of node %u are in disorder", id);
			return;
		}
		before = child;
	}
	if (n != core->nodes[id].n_children)
		report(audit, "node %u has %u children and counts %u", id, n,
		       core->nodes[id].n_children);
}

/** False: its run cannot be looked at. */
static bool check_run(struct kvt_audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_node *node = kvt_node_at(core, id);

	if (node->first_slot == 0 || node->sealed > node->n_slots ||
	    (uint64_t)node->first_slot + node->n_slots > core->config.n_slots) {
		report(audit, "node %u has an impossible run", id);
		return false;
	}
	if (kvt_slots_node_of(&core->slots, node->first_slot) != id)
		report(audit, "the run of node %u is not its own", id);
	for (uint32_t i = 0; i < node->n_slots; i++) {
		uint32_t page = core->slot_pages[node->first_slot + i];

		if (i >= node->sealed ? page != KVT_NONE :
					(page == KVT_NONE || page >= core->config.n_pages ||
					 core->pages[page].state != KVT_PAGE_CACHED ||
					 core->pages[page].slot != node->first_slot + i))
			report(audit, "slot %u of node %u names page %u", i, id, page);
	}
	return true;
}

/** What its namespace and the queues should know of a node. */
static void tally_node(struct kvt_audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_node *node = kvt_node_at(core, id);
	struct kvt_space_tally *tally = &core->space_tally[node->namespace_id];
	uint32_t top = id;

	tally->nodes++;
	tally->cached += node->sealed;
	if (node->lock_ref > 0)
		tally->protected_pages += node->sealed;
	else
		tally->evictable += node->sealed;
	if ((node->flags & (KVT_NODE_ROOT | KVT_NODE_DETACHED)) == KVT_NODE_ROOT) {
		tally->root = id;
		audit->roots++;
		audit->stale_roots += kvt_is_stale(core, id);
	}
	audit->queued += !!(node->flags & KVT_NODE_QUEUED);
	audit->expiring += node->expiry_at > 0;
	for (uint32_t n = 0; kvt_audit_node_live(core, top) && n < core->config.max_nodes; n++) {
		if (core->nodes[top].flags & KVT_NODE_DETACHED)
			break;
		top = core->nodes[top].parent;
	}
	if (!kvt_audit_node_live(core, top)) {
		if (node->expiry_ns != KVT_NEVER && !node->expiry_at && !kvt_is_stale(core, id))
			report(audit, "node %u will not expire", id);
	} else if (node->lock_ref == 0 && !(core->nodes[top].flags & KVT_NODE_QUEUED)) {
		report(audit, "node %u below the detached node %u will not be reclaimed", id, top);
	}
}

static void check_node(struct kvt_audit *audit, uint32_t id, uint32_t locks)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_node *node = kvt_node_at(core, id);
	bool root = node->flags & KVT_NODE_ROOT, unlocked = node->lock_ref == 0;
	bool leaf = unlocked && !root && node->n_children == 0;

	audit->nodes++;
	audit->locked += !unlocked;
	audit->listed += !!(node->flags & KVT_NODE_LISTED);
	audit->heaped += node->heap_at > 0;
	if (node->flags >= KVT_NODE_QUEUED << 1)
		report(audit, "node %u has flags %x", id, node->flags);
	if (node->version & 1)
		report(audit, "node %u is being written", id);
	if (node->flags & KVT_NODE_PINNED)
		report(audit, "node %u is still pinned", id);
	if (node->lock_ref != locks)
		report(audit, "node %u has %u locks, %u leases cross it", id, node->lock_ref,
		       locks);
	if (node->namespace_id == 0 || node->namespace_id >= core->config.max_namespaces) {
		report(audit, "node %u is of no namespace: %u", id, node->namespace_id);
		return;
	}
	tally_node(audit, id);
	check_children(audit, id);
	if (root) {
		if (unlocked && node->n_children == 0 && !(node->flags & KVT_NODE_QUEUED))
			report(audit, "root %u has nothing below", id);
		if (node->n_slots || node->sealed || node->start || node->first_slot ||
		    (node->flags & KVT_NODE_LISTED))
			report(audit, "root %u has a run", id);
		check_place(audit, id);
		return;
	}
	audit->evictable_nodes += unlocked;
	if (unlocked) {
		audit->evictable += node->sealed;
		if (node->sealed != node->n_slots || node->n_slots == 0)
			report(audit, "unlocked node %u has %u of %u pages", id, node->sealed,
			       node->n_slots);
	} else {
		audit->protected_pages += node->sealed;
	}
	if (unlocked != !!(node->flags & KVT_NODE_LISTED))
		report(audit, "node %u: %u locks, but listed is %u", id, node->lock_ref,
		       !!(node->flags & KVT_NODE_LISTED));
	if (!kvt_policies[core->config.policy].list && leaf != (node->heap_at > 0))
		report(audit, "node %u: leaf %d, heap place %u", id, leaf, node->heap_at);
	if (check_run(audit, id))
		check_place(audit, id);
}

static void check_nodes(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;

	memset(core->space_tally, 0, core->config.max_namespaces * sizeof(*core->space_tally));
	count_locks(core);
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		if (core->nodes[id].flags & KVT_NODE_LIVE)
			check_node(audit, id, core->lock_count[id]);
		else if (core->lock_count[id])
			report(audit, "%u leases cross node %u, which is free",
			       core->lock_count[id], id);
		else if (core->nodes[id].flags || core->nodes[id].n_slots)
			report(audit, "node %u is free and has flags %x, %u slots", id,
			       core->nodes[id].flags, core->nodes[id].n_slots);
	}
}

static void check_recency(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t before = KVT_NONE;
	uint64_t n = 0, last = 0;

	for (uint32_t id = core->oldest; id != KVT_NONE; id = core->nodes[id].younger) {
		const struct kvt_node *node = kvt_node_at(core, id);

		if (!kvt_audit_node_live(core, id) || !(node->flags & KVT_NODE_LISTED) ||
		    node->older != before || ++n > core->config.max_nodes) {
			report(audit, "the recency list is broken at node %u", id);
			return;
		}
		if (node->touched < last)
			report(audit, "node %u is out of order in the recency list", id);
		last = node->touched;
		before = id;
	}
	if (n != audit->listed || before != core->youngest)
		report(audit, "the recency list holds %llu nodes of %llu", (unsigned long long)n,
		       (unsigned long long)audit->listed);
}

/** Length of a list of a lease's pages, UINT32_MAX if it is broken or ends elsewhere. */
static uint32_t list_length(const struct kvt_core *core, uint32_t page, uint32_t lease,
			    const uint32_t *end)
{
	uint32_t n = 0, last = KVT_NONE;

	for (; page != KVT_NONE; last = page, page = core->owners[page].next) {
		if (page >= core->config.n_pages || core->owners[page].lease != lease ||
		    core->owners[page].session != core->leases[lease].session ||
		    core->pages[page].state != KVT_PAGE_PRIVATE || ++n > core->config.n_pages)
			return UINT32_MAX;
	}
	return !end || *end == last ? n : UINT32_MAX;
}

/** What a lease says of its path. */
static void check_path(struct kvt_audit *audit, uint32_t i)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_lease_record *lease = &core->leases[i];
	const struct kvt_node *node;
	uint64_t table = (uint64_t)(lease->done + lease->n_private) * core->ps;
	uint32_t id = lease->node;

	if (lease->done > lease->path_pages || lease->known > table || lease->computed > table)
		report(audit, "lease %u: %u positions known, %u computed, %u pages done", i,
		       lease->known, lease->computed, lease->done);
	if (id == KVT_NONE) {
		if (lease->done)
			report(audit, "lease %u has no path", i);
		return;
	}
	if (!kvt_audit_node_live(core, id)) {
		report(audit, "lease %u: its path ends in node %u, which is free", i, id);
		return;
	}
	node = kvt_node_at(core, id);
	if (lease->kind == KVT_LEASE_BEGIN ?
		    node->start + node->n_slots != lease->path_pages :
		    node->start + node->n_slots < lease->path_pages)
		report(audit, "lease %u: its path of %u pages ends in node %u", i,
		       lease->path_pages, id);
	for (uint32_t n = 0; node->start >= lease->done && n < core->config.max_nodes &&
			     kvt_audit_node_live(core, node->parent); n++)
		node = kvt_node_at(core, node->parent);
	if (lease->done > 0 && node->start + node->sealed < lease->done)
		report(audit, "lease %u: %u pages of its table are not cached", i, lease->done);
}

/** As kvt_path_detached(), for nodes that may name anything. */
static bool is_cut(const struct kvt_core *core, uint32_t id)
{
	for (uint32_t n = 0; kvt_audit_node_live(core, id) && n < core->config.max_nodes; n++) {
		if (core->nodes[id].flags & KVT_NODE_DETACHED)
			return true;
		id = core->nodes[id].parent;
	}
	return false;
}

/** What STATUS tells of leases: their list by age, and how many can never commit again. */
static void check_lease_statistics(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t listed = 0, epoch = 0, cut = 0;
	uint32_t before = KVT_NONE;

	for (uint32_t i = core->oldest_lease; i != KVT_NONE; i = core->leases[i].younger) {
		const struct kvt_lease_record *lease = &core->leases[i];

		if (i > core->config.n_leases || !kvt_lease_alive(core, i) ||
		    lease->older != before || ++listed > core->config.n_leases ||
		    (before != KVT_NONE && core->leases[before].ticket >= lease->ticket)) {
			report(audit, "the leases by age are broken at lease %u", i);
			return;
		}
		before = i;
		if (lease->epoch != core->arena->epoch)
			continue;
		epoch++;
		cut += is_cut(core, lease->node);
	}
	if (before != core->youngest_lease || listed != core->count->live_leases)
		report(audit, "%llu leases are listed by age, %llu live",
		       (unsigned long long)listed, (unsigned long long)core->count->live_leases);
	if (epoch != core->epoch_leases || cut != core->cut_leases)
		report(audit, "%llu leases are of this epoch, %llu of them on detached paths; "
		       "%llu and %llu counted", (unsigned long long)epoch, (unsigned long long)cut,
		       (unsigned long long)core->epoch_leases,
		       (unsigned long long)core->cut_leases);
}

static void check_leases(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t live = 0;

	for (uint32_t i = 1; i <= core->config.n_leases; i++) {
		const struct kvt_lease_record *lease = &core->leases[i];

		if (lease->kind == KVT_LEASE_FREE)
			continue;
		live++;
		if (lease->session == 0 || lease->session > core->config.max_sessions) {
			report(audit, "lease %u is of no session: %u", i, lease->session);
			continue;
		}
		if (list_length(core, lease->first_page, i, &lease->last_page) != lease->n_private)
			report(audit, "lease %u: its pages are not %u", i, lease->n_private);
		if (list_length(core, lease->first_kept, i, NULL) != lease->n_kept)
			report(audit, "lease %u: its kept pages are not %u", i, lease->n_kept);
		if (kvt_lease_alive(core, i))
			check_path(audit, i);
	}
	if (live != core->count->live_leases)
		report(audit, "%llu leases live, %llu counted", (unsigned long long)live,
		       (unsigned long long)core->count->live_leases);
	check_lease_statistics(audit);
}

static void check_free_list(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint64_t n = 0;

	for (uint32_t page = core->free_page; page != KVT_NONE; page = core->owners[page].next) {
		if (page >= core->config.n_pages || core->pages[page].state != KVT_PAGE_FREE ||
		    core->pages[page].slot != KVT_NONE || ++n > core->config.n_pages) {
			report(audit, "the free list is broken at page %u", page);
			return;
		}
	}
	if (n != audit->free_pages)
		report(audit, "%llu pages are free, the free list holds %llu",
		       (unsigned long long)audit->free_pages, (unsigned long long)n);
}

static void compare(struct kvt_audit *audit, const char *name, uint64_t found, uint64_t counted)
{
	if (found != counted)
		report(audit, "%s: %llu found, %llu counted", name, (unsigned long long)found,
		       (unsigned long long)counted);
}

static void check_counters(struct kvt_audit *audit)
{
	const struct kvt_core *core = audit->core;
	const struct kvt_counters *count = core->count;

	compare(audit, "free pages", audit->free_pages, count->free_pages);
	compare(audit, "private pages", audit->private_pages, count->private_pages);
	compare(audit, "cached pages", audit->cached, count->cached_pages);
	compare(audit, "quarantined pages", audit->quarantined, count->quarantined_pages);
	compare(audit, "evictable pages", audit->evictable, count->evictable_pages);
	compare(audit, "protected pages", audit->protected_pages, count->protected_pages);
	compare(audit, "live nodes", audit->nodes, count->live_nodes);
	compare(audit, "locked nodes", audit->locked, count->locked_nodes);
	compare(audit, "evictable nodes", audit->evictable_nodes, core->evictable_nodes);
	compare(audit, "nodes in the policy heap", audit->heaped, core->heap.count);
	if (!kvt_core_counters_ok(core))
		report(audit, "the states of pages do not add up to the pool");
}

bool kvt_core_counters_ok(const struct kvt_core *core)
{
	const struct kvt_counters *count = core->count;

	return count->free_pages + count->private_pages + count->cached_pages +
			       count->quarantined_pages ==
		       core->config.n_pages - 1 &&
	       count->evictable_pages + count->protected_pages == count->cached_pages &&
	       core->free_nodes.count + count->live_nodes == core->config.max_nodes - 1;
}

uint32_t kvt_core_audit(const struct kvt_core *core, kvt_core_problem_fn *problem, void *context)
{
	struct kvt_audit audit = { .core = core, .problem = problem, .context = context };

	check_pages(&audit);
	check_nodes(&audit);
	check_recency(&audit);
	check_leases(&audit);
	check_free_list(&audit);
	check_counters(&audit);
	kvt_audit_lists(&audit);
	return audit.problems;
}

/* ---- for people */

bool kvt_core_describe_node(const struct kvt_core *core, uint32_t id, uint64_t now_ns,
			    struct kvt_admin_node *ret_node)
{
	const struct kvt_node *node;
	uint32_t shown;

	if (!kvt_audit_node_live(core, id))
		return false;
	node = kvt_node_at(core, id);
	shown = kvt_min(4, node->n_slots * core->ps);
	*ret_node = (struct kvt_admin_node){
		.node = id,
		.generation = node->generation,
		.parent = node->parent,
		.first_slot = node->first_slot,
		.n_slots = node->n_slots,
		.sealed = node->sealed,
		.start = node->start,
		.flags = node->flags,
		.namespace_id = node->namespace_id,
		.n_children = node->n_children,
		.lock_ref = node->lock_ref,
		.hits = node->hits,
		.priority = node->priority,
		.first_page = node->sealed ? core->slot_pages[node->first_slot] : KVT_NONE,
		.age_ns = now_ns > node->touched_ns ? now_ns - node->touched_ns : 0,
		.expires_in_ns = node->expiry_ns == KVT_NEVER ? KVT_NEVER :
				 node->expiry_ns > now_ns     ? node->expiry_ns - now_ns :
								0,
	};
	if (shown)
		memcpy(ret_node->keys, kvt_keys_at(core, node->first_slot), shown * 4);
	return true;
}

bool kvt_core_describe_namespace(const struct kvt_core *core, uint32_t id,
				 struct kvt_admin_namespace *ret_namespace)
{
	const struct kvt_namespace_record *space = &core->namespaces[id];

	if (id == 0 || id >= core->config.max_namespaces || !space->flags)
		return false;
	*ret_namespace = (struct kvt_admin_namespace){
		.namespace_id = id,
		.root = kvt_root_of(core, id),
		.opened = space->opened,
		.digest = { space->digest[0], space->digest[1] },
		.cached_pages = space->cached_pages,
		.evictable_pages = space->evictable_pages,
		.protected_pages = space->protected_pages,
		.nodes = space->nodes,
	};
	memcpy(ret_namespace->label, core->labels[id], KVT_LABEL_BYTES);
	return true;
}

bool kvt_core_describe_page(const struct kvt_core *core, uint32_t page,
			    struct kvt_admin_page *ret_page)
{
	const struct kvt_page_record *record;
	const struct kvt_node *node;

	if (page >= core->config.n_pages)
		return false;
	record = &core->pages[page];
	*ret_page = (struct kvt_admin_page){
		.page = page,
		.state = record->state,
		.session = core->owners[page].session,
		.lease = core->owners[page].lease,
	};
	if (record->state != KVT_PAGE_CACHED)
		return true;
	ret_page->node = kvt_slots_node_of(&core->slots, record->slot);
	node = kvt_node_at(core, ret_page->node);
	ret_page->generation = node->generation;
	ret_page->position = (node->start + record->slot - node->first_slot) * core->ps;
	ret_page->lock_ref = node->lock_ref;
	return true;
}

void kvt_core_describe_leases(const struct kvt_core *core, uint64_t now_ns,
			      struct kvt_admin_status *status)
{
	const struct kvt_lease_record *oldest = &core->leases[core->oldest_lease];

	status->oldest_lease = core->oldest_lease;
	status->oldest_lease_session = core->oldest_lease ? oldest->session : 0;
	status->oldest_lease_age_ns = core->oldest_lease ? now_ns - oldest->begun_ns : 0;
	status->stale_locks = core->count->live_leases - core->epoch_leases + core->cut_leases;
}
