/* SPDX-License-Identifier: Apache-2.0 */

/* The audit: recompute what is derived from the primary facts, and compare.
 *
 * A rebuild, the one of recovery, runs on a shadow: a core with its own copy of all that a rebuild
 * writes. It refuses facts that contradict each other; the audit then reports the contradiction
 * and ends. Else the shadow is sound, and each derived field of the core must be equal to it.
 * Nothing of the core is trusted: an index is compared with its bound before it is followed, and a
 * list ends after as many steps as the shadow's.
 *
 * Not derived, so compared as sets or by their own rule: the order of children, of free pages, of
 * pages outside of leases, of free deferred operations, of extents in a bin; places in heaps and in
 * the child index; numbers of records of uids; which detached tops with nothing to reclaim are
 * queued; what waits in the expiry heap but is out of reach. Not compared: hints (`announcer`, the
 * ring of compaction), and free records beyond their links.
 *
 * A field that is added to what a rebuild writes is added to a table here. Callers: AUDIT, the
 * operator, tests. */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/audit.h"
#include "daemon/core/core.h"
#include "daemon/core/order.h"
#include "daemon/core/records.h"
#include "daemon/core/recover.h"
#include "daemon/core/side.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "kvtrunk_wire_control.h"

struct audit {
	const struct kvt_core *core, *shadow;
	kvt_core_problem_fn *problem;
	void *context;
	uint32_t problems;
};

static void __attribute__((format(printf, 2, 3))) report(struct audit *audit, const char *format,
							 ...)
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

/* ---- the shadow */

static int cast_shadow(const struct kvt_core *core, struct kvt_why *why)
{
	const struct kvt_core_config *c = &core->config;
	struct kvt_core *shadow = core->shadow, own = *shadow;

	*shadow = (struct kvt_core){
		.magic = core->magic, .config = core->config, .ps = core->ps,
		.n_sides = core->n_sides, .let = core->let,
		.bucket_mask = core->bucket_mask, .slot_keys = core->slot_keys,
		.root_keys = core->root_keys,
		.ledger = core->ledger, .tails = core->tails, .opened = core->opened,
		.opened_words = core->opened_words, .views = core->views, .sort = core->sort,
		.n_sort = core->n_sort, .now_ns = core->now_ns, .wake_at_ns = KVT_NEVER,
		.buckets = own.buckets, .detached = own.detached, .compact = own.compact,
		.heap.nodes = own.heap.nodes, .expiry = { own.expiry.nodes, 0, KVT_HEAP_EXPIRY },
		.leaves_ordered = core->leaves_ordered, .limited = core->limited,
		.over = { own.over.nodes, 0, KVT_HEAP_OVER },
		.slots = own.slots,
	};
#define COPY(array_, n_)                                                                          \
	shadow->array_ = own.array_;                                                              \
	memcpy(shadow->array_, core->array_, (n_) * sizeof(*own.array_));
#define ZERO(array_, n_)                                                                          \
	shadow->array_ = own.array_;                                                              \
	memset(shadow->array_, 0, (n_) * sizeof(*own.array_));
	KVT_SHADOW_COPIES(COPY)
	KVT_SHADOW_ZEROED(ZERO)
#undef COPY
#undef ZERO
	shadow->count = &shadow->arena->counters;
	kvt_slots_clear(&shadow->slots);
	return kvt_rebuild(shadow, why);
}

/* ---- fields that must be equal */

struct field {
	const char *name;
	size_t at;
	size_t bytes;
};

#define FIELD(type_, name_)                                                                       \
	{ #name_, offsetof(struct type_, name_), sizeof(((struct type_ *)0)->name_) }

static const struct field node_fields[] = {
	FIELD(kvt_node, version), FIELD(kvt_node, lock_ref), FIELD(kvt_node, n_children),
	FIELD(kvt_node, younger),
};
static const struct field listed_fields[] = { FIELD(kvt_node, older) };
static const struct field linked_fields[] = { FIELD(kvt_node, tag) };
static const struct field free_node_fields[] = {
	FIELD(kvt_node, version), FIELD(kvt_node, flags), FIELD(kvt_node, next_sibling),
};
static const struct field page_fields[] = {
	FIELD(kvt_page_record, slot),
	{ "state", sizeof(uint32_t), sizeof(uint32_t) }, /* with the sealer, which is kept */
	FIELD(kvt_page_record, parent),
};
static const struct field lease_fields[] = {
	FIELD(kvt_lease_record, n_private), FIELD(kvt_lease_record, last_page),
	FIELD(kvt_lease_record, n_kept), FIELD(kvt_lease_record, n_pending),
	FIELD(kvt_lease_record, pending_keys),
	FIELD(kvt_lease_record, next_lease), FIELD(kvt_lease_record, prev_lease),
};
static const struct field free_lease_fields[] = { FIELD(kvt_lease_record, next_lease) };
static const struct field session_fields[] = {
	FIELD(kvt_session_record, n_leases), FIELD(kvt_session_record, n_private),
	FIELD(kvt_session_record, n_quarantined), FIELD(kvt_session_record, n_pending),
	FIELD(kvt_session_record, n_waiters), FIELD(kvt_session_record, first_lease),
	FIELD(kvt_session_record, last_lease), FIELD(kvt_session_record, first_pending),
};
static const struct field waiting_fields[] = { FIELD(kvt_session_record, last_pending) };
static const struct field pending_fields[] = {
	FIELD(kvt_pending_record, next), FIELD(kvt_pending_record, prev),
};
static const struct field space_fields[] = {
	FIELD(kvt_namespace_record, root), FIELD(kvt_namespace_record, opened),
	FIELD(kvt_namespace_record, nodes), FIELD(kvt_namespace_record, cached_pages),
	FIELD(kvt_namespace_record, evictable_pages),
	FIELD(kvt_namespace_record, protected_pages), FIELD(kvt_namespace_record, limit),
};
static const struct field counter_fields[] = {
	FIELD(kvt_counters, free_pages), FIELD(kvt_counters, private_pages),
	FIELD(kvt_counters, cached_pages), FIELD(kvt_counters, quarantined_pages),
	FIELD(kvt_counters, evictable_pages), FIELD(kvt_counters, protected_pages),
	FIELD(kvt_counters, live_nodes), FIELD(kvt_counters, locked_nodes),
	FIELD(kvt_counters, live_leases), FIELD(kvt_counters, live_sessions),
	FIELD(kvt_counters, live_namespaces), FIELD(kvt_counters, side_pages),
};
static const struct field core_fields[] = {
	FIELD(kvt_core, oldest), FIELD(kvt_core, youngest), FIELD(kvt_core, evictable_nodes),
	FIELD(kvt_core, n_roots), FIELD(kvt_core, stale_roots), FIELD(kvt_core, dying),
	FIELD(kvt_core, n_let), FIELD(kvt_core, n_points),
	FIELD(kvt_core, epoch_leases), FIELD(kvt_core, cut_leases),
	FIELD(kvt_core, open_sessions),
	FIELD(kvt_core, first_waiter), FIELD(kvt_core, last_waiter), FIELD(kvt_core, n_waiters),
	FIELD(kvt_core, free_nodes.head), FIELD(kvt_core, free_nodes.tail),
	FIELD(kvt_core, free_nodes.count), FIELD(kvt_core, free_leases.head),
	FIELD(kvt_core, free_leases.tail), FIELD(kvt_core, free_leases.count),
	FIELD(kvt_core, free_pending.count), FIELD(kvt_core, heap.count),
	FIELD(kvt_core, leaf_root), FIELD(kvt_core, over.count),
	FIELD(kvt_core, slots.free_slots),
};

static uint64_t value_of(const void *record, const struct field *field)
{
	uint32_t small;
	uint64_t large;

	if (field->bytes == sizeof(large)) {
		memcpy(&large, (const char *)record + field->at, sizeof(large));
		return large;
	}
	memcpy(&small, (const char *)record + field->at, sizeof(small));
	return small;
}

static void compare_fields(struct audit *audit, const char *what, uint32_t id, const void *found,
			   const void *wanted, const struct field *fields, size_t n)
{
	for (const struct field *field = fields; field < fields + n; field++) {
		uint64_t a = value_of(found, field), b = value_of(wanted, field);

		if (a != b)
			report(audit, "%s %u: %s is %llu, and recomputed %llu", what, id,
			       field->name, (unsigned long long)a, (unsigned long long)b);
	}
}

#define COMPARE(audit_, what_, id_, found_, wanted_, fields_)                                     \
	compare_fields(audit_, what_, id_, found_, wanted_, fields_,                              \
		       sizeof(fields_) / sizeof((fields_)[0]))

/** Compare an array of which every word is derived, where it is used. `used`: a bit for each word,
 * NULL for all. */
static void compare_words(struct audit *audit, const char *what, const uint32_t *found,
			  const uint32_t *wanted, uint32_t n, const uint64_t *used)
{
	for (uint32_t i = 1; i < n; i++)
		if (found[i] != wanted[i] && (!used || kvt_bit_get(used, i)))
			report(audit, "%s %u is %u, and recomputed %u", what, i, found[i],
			       wanted[i]);
}

/* ---- lists in an order that is not derived */

struct links {
	const uint32_t *next; /* of record 0 */
	const uint32_t *prev; /* NULL: singly linked */
	uint32_t stride;      /* from record to record, in words */
	uint32_t n;           /* records */
};

#define LINKS(array_, next_, prev_, n_)                                                           \
	((struct links){ &(array_)->next_, prev_, sizeof(*(array_)) / sizeof(uint32_t), n_ })

/** Check that a list holds what the shadow's does. Returns its last record. */
static uint32_t compare_set(struct audit *audit, const char *what, uint32_t id,
			    struct links links, uint32_t head, const uint32_t *wanted_next,
			    uint32_t wanted_head)
{
	uint64_t *marks = audit->shadow->page_mark;
	uint32_t missing = 0, last = KVT_NONE, at;

	for (at = wanted_head; at != KVT_NONE; at = wanted_next[(size_t)at * links.stride]) {
		kvt_bit_set(marks, at);
		missing++;
	}
	for (at = head; at != KVT_NONE; at = links.next[(size_t)at * links.stride]) {
		if (at >= links.n || !kvt_bit_get(marks, at) ||
		    (links.prev && links.prev[(size_t)at * links.stride] != last))
			break;
		kvt_bit_clear(marks, at);
		missing--;
		last = at;
	}
	if (at != KVT_NONE)
		report(audit, "%s %u: the list is broken at %u, behind %u", what, id, at, last);
	else if (missing)
		report(audit, "%s %u: the list lacks %u", what, id, missing);
	for (at = wanted_head; at != KVT_NONE; at = wanted_next[(size_t)at * links.stride])
		kvt_bit_clear(marks, at);
	return last;
}

/* ---- nodes */

static bool is_linked(const struct kvt_core *shadow, uint32_t id)
{
	const uint32_t flags = KVT_NODE_LIVE | KVT_NODE_ROOT | KVT_NODE_DETACHED;

	return (shadow->nodes[id].flags & flags) == KVT_NODE_LIVE;
}

/** Check places in heaps and in the queue of detached tops. Each is a subset of what could be
 * there, and all that matters must be in it. */
static void check_queues_of_node(struct audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	const struct kvt_node *node = kvt_node_at(core, id), *wanted = kvt_node_at(shadow, id);
	uint32_t top = id;

	if (!node->heap_at != !wanted->heap_at)
		report(audit, "node %u: heap place %u, and recomputed %u", id, node->heap_at,
		       wanted->heap_at);
	if (wanted->expiry_at && !node->expiry_at)
		report(audit, "node %u will not expire", id);
	if (node->lock_ref > 0 || shadow->detached_count == 0)
		return;
	while (top != KVT_NONE && !(shadow->nodes[top].flags & KVT_NODE_DETACHED))
		top = shadow->nodes[top].parent;
	if (top != KVT_NONE && !(core->nodes[top].flags & KVT_NODE_QUEUED))
		report(audit, "node %u below the detached node %u will not be reclaimed", id, top);
}

static void check_node(struct audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	const struct kvt_node *node = kvt_node_at(core, id), *wanted = kvt_node_at(shadow, id);

	if (!(wanted->flags & KVT_NODE_LIVE)) {
		COMPARE(audit, "free node", id, node, wanted, free_node_fields);
		return;
	}
	COMPARE(audit, "node", id, node, wanted, node_fields);
	if ((node->flags ^ wanted->flags) & ~(uint32_t)KVT_NODE_QUEUED)
		report(audit, "node %u: flags are %x, and recomputed %x", id, node->flags,
		       wanted->flags);
	if (kvt_node_listed(wanted))
		COMPARE(audit, "node", id, node, wanted, listed_fields);
	if (is_linked(shadow, id))
		COMPARE(audit, "node", id, node, wanted, linked_fields);
	if (core->cut_below[id] != shadow->cut_below[id])
		report(audit, "node %u: cut_below is %u, and recomputed %u", id,
		       core->cut_below[id], shadow->cut_below[id]);
	if (node->sealed && core->sealers[id] != KVT_SEALERS_MANY &&
	    core->sealers[id] != shadow->sealers[id])
		report(audit, "node %u: sealers is %u, and recomputed %u", id, core->sealers[id],
		       shadow->sealers[id]);
	compare_set(audit, "children of node", id,
		    LINKS(core->nodes, next_sibling, &core->nodes->prev_sibling,
			  core->config.max_nodes),
		    node->first_child, &shadow->nodes->next_sibling, wanted->first_child);
	check_queues_of_node(audit, id);
}

/** Check that each place of a heap holds the node or namespace that names it, and none goes before
 * its parent. `places`: those that name one. */
static void check_heap(struct audit *audit, const struct kvt_heap *heap, uint32_t places)
{
	static const char *const names[] = { "policy", "expiry", "limit" };
	const struct kvt_core *core = audit->core;
	const char *name = names[heap->of];

	if (heap->count != places) {
		report(audit, "%u places in the %s heap, %u are named", heap->count, name, places);
		return;
	}
	for (uint32_t i = 0; i < heap->count; i++) {
		uint32_t id = heap->nodes[i], up = heap->nodes[i ? (i - 1) / 2 : 0];

		if (heap->of == KVT_HEAP_OVER ? id >= core->config.max_namespaces :
						!kvt_node_live(core, id)) {
			report(audit, "place %u of the %s heap names %u, which is free", i, name,
			       id);
			return;
		}
		if (*kvt_heap_place(core, heap, id) != i + 1)
			report(audit, "place %u of the %s heap names %u", i, name, id);
		/* Equal times are in the order in which splits left them. */
		if (heap->of == KVT_HEAP_EXPIRY ?
			    core->nodes[id].expiry_ns < core->nodes[up].expiry_ns :
			    kvt_heap_before(core, heap, id, up))
			report(audit, "%u of the %s heap should go before %u", id, name, up);
	}
}

/** Check the treap of leaves, whose shape follows from its nodes, and which namespaces are above
 * their limits. */
static void check_limits(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	uint32_t over = 0;

	for (uint32_t id = 1; core->limited && id < core->config.max_nodes; id++)
		if (memcmp(&core->leaves[id], &shadow->leaves[id], sizeof(*core->leaves)) != 0)
			report(audit, "node %u is elsewhere in the order by namespace: rank %u, "
			       "and recomputed %u", id, core->leaves[id].rank,
			       shadow->leaves[id].rank);
	for (uint32_t id = 1; core->limited && id < core->config.max_namespaces; id++) {
		over += core->over_at[id] > 0;
		if (core->leaves_in[id] != shadow->leaves_in[id] ||
		    !core->over_at[id] != !shadow->over_at[id])
			report(audit, "namespace %u: %u leaves, place %u among those above their "
			       "limits, and recomputed %u, %u", id, core->leaves_in[id],
			       core->over_at[id], shadow->leaves_in[id], shadow->over_at[id]);
	}
	check_heap(audit, &core->over, over);
}

static void check_detached(struct audit *audit, uint32_t queued)
{
	const struct kvt_core *core = audit->core;
	const uint32_t flags = KVT_NODE_QUEUED | KVT_NODE_DETACHED;

	for (uint32_t i = 0; i < core->detached_count && i < core->config.max_nodes; i++) {
		uint32_t id = core->detached[(core->detached_head + i) % core->config.max_nodes];

		if (!kvt_node_live(core, id) || (core->nodes[id].flags & flags) != flags)
			report(audit, "node %u waits for reclaim and is not detached", id);
	}
	if (core->detached_count != queued ||
	    queued + core->stale_roots != core->count->detached_pending)
		report(audit, "%u detached nodes wait, %u are queued, %llu counted", queued,
		       core->detached_count, (unsigned long long)core->count->detached_pending);
}

static void check_nodes(struct audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t queued = 0, in_heap = 0, expiring = 0;

	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		const struct kvt_node *node = kvt_node_at(core, id);

		check_node(audit, id);
		if (!(node->flags & KVT_NODE_LIVE))
			continue;
		queued += !!(node->flags & KVT_NODE_QUEUED);
		in_heap += node->heap_at > 0;
		expiring += node->expiry_at > 0;
		if (node->expiry_at && node->expiry_ns == KVT_NEVER)
			report(audit, "node %u never expires and is in the expiry heap", id);
	}
	check_heap(audit, &core->heap, in_heap);
	check_heap(audit, &core->expiry, expiring);
	check_detached(audit, queued);
}

/** Check that the index holds each linked node once, where a probe from its home gets to it. The
 * shadow's has the same number, and found no twins. */
static void check_index(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	uint32_t mask = core->bucket_mask, start = 0, used = 0, wanted = 0, full = 0;

	while (start < mask && core->buckets[start] != 0)
		start++;
	for (uint32_t n = 0; n <= mask; n++) {
		uint32_t at = (start + n) & mask, child = (uint32_t)core->buckets[at];
		uint32_t tag = (uint32_t)(core->buckets[at] >> 32);

		wanted += shadow->buckets[n] != 0;
		if (core->buckets[at] == 0) {
			full = 0;
			continue;
		}
		if (child >= core->config.max_nodes || !is_linked(shadow, child) ||
		    shadow->nodes[child].tag != tag || kvt_bit_get(shadow->page_mark, child)) {
			report(audit, "bucket %u names node %u", at, child);
			continue;
		}
		kvt_bit_set(shadow->page_mark, child);
		if (((at - tag) & mask) > full++)
			report(audit, "node %u is not found by its first page", child);
		used++;
	}
	if (used != wanted)
		report(audit, "the child index holds %u nodes of %u", used, wanted);
	memset(shadow->page_mark, 0, (core->config.max_nodes / 64 + 1) * sizeof(uint64_t));
}

/* ---- slots and pages */

static void check_slots(struct audit *audit)
{
	const struct kvt_slots *found = &audit->core->slots, *wanted = &audit->shadow->slots;
	const struct {
		const char *what;
		const uint64_t *found, *wanted;
	} maps[] = {
		{ "free extents begin", found->free_head, wanted->free_head },
		{ "free extents end", found->free_tail, wanted->free_tail },
		{ "runs begin", found->run_head, wanted->run_head },
	};
	uint32_t n = found->n_slots;
	uint64_t extents = 0;

	for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++)
		for (uint32_t word = 0; word <= n / 64; word++)
			if (maps[i].found[word] != maps[i].wanted[word])
				report(audit, "in slots %u to %u, %s at %llx, and recomputed %llx",
				       word * 64, word * 64 + 63, maps[i].what,
				       (unsigned long long)maps[i].found[word],
				       (unsigned long long)maps[i].wanted[word]);
	for (uint32_t word = 0; word <= n / 64; word++)
		extents += (uint64_t)__builtin_popcountll(wanted->free_head[word]);
	compare_words(audit, "length of extent", found->length, wanted->length, n,
		      wanted->free_head);
	compare_words(audit, "first slot of the extent that ends at", found->first, wanted->first,
		      n, wanted->free_tail);
	compare_words(audit, "node of the run at slot", found->run, wanted->run, n,
		      wanted->run_head);
	compare_words(audit, "page of slot", audit->core->slot_pages, audit->shadow->slot_pages, n,
		      NULL);
	if (!kvt_slots_bins_ok(found, extents))
		report(audit, "the bins do not hold the %llu free extents",
		       (unsigned long long)extents);
}

/** Check what hangs on pages, and what nodes say of it. */
static void check_sides(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;

	for (uint32_t page = 0; page < core->config.n_pages; page++)
		for (uint32_t kind = 0; kind < core->n_sides; kind++)
			if (kvt_sides_of(core, page)[kind] != kvt_sides_of(shadow, page)[kind])
				report(audit, "side %u of page %u is page %u, and recomputed %u",
				       kind, page, kvt_sides_of(core, page)[kind],
				       kvt_sides_of(shadow, page)[kind]);
	for (uint32_t id = 1; core->n_sides > 0 && id < core->config.max_nodes; id++) {
		if (!(shadow->nodes[id].flags & KVT_NODE_LIVE))
			continue;
		if (core->sides_in[id] != shadow->sides_in[id])
			report(audit, "node %u: sides_in is %u, and recomputed %u", id,
			       core->sides_in[id], shadow->sides_in[id]);
		if (core->side_top[id] < shadow->side_top[id])
			report(audit, "node %u: side_top is %u, below page %u, which has a side",
			       id, core->side_top[id], shadow->side_top[id] - 1);
	}
}

/** Check the list of side pages that were let go, the oldest first, and what its leases count. */
static void check_let(struct audit *audit)
{
	const struct kvt_core *core = audit->core;
	uint32_t page = core->let_first, before = KVT_NONE, n = 0;
	uint64_t counted = 0, leases = 0; /* sums of lease numbers */

	for (; page != KVT_NONE && page < core->config.n_pages && n < core->n_let; n++) {
		const struct kvt_let *let = &core->let[page];

		if (let->lease == KVT_NONE || let->lease > core->config.n_leases ||
		    core->leases[let->lease].kind != KVT_LEASE_BEGIN || let->older != before ||
		    (before != KVT_NONE && core->let[before].tick > let->tick))
			report(audit, "page %u was let go by lease %u, behind page %u", page,
			       let->lease, before);
		leases += let->lease;
		before = page;
		page = let->younger;
	}
	for (uint32_t id = 1; core->n_sides > 0 && id <= core->config.n_leases; id++)
		counted += (uint64_t)id * core->let_of[id];
	if (n != core->n_let || page != KVT_NONE || core->let_last != before || leases != counted)
		report(audit, "%u side pages were let go, the list has %u", core->n_let, n);
}

static void check_pages(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	uint32_t n = core->config.n_pages;

	if (memcmp(core->pages, shadow->pages, n * sizeof(*core->pages)) != 0)
		for (uint32_t page = 0; page < n; page++)
			COMPARE(audit, "page", page, &core->pages[page], &shadow->pages[page],
				page_fields);
	compare_set(audit, "free pages", 0, LINKS(core->owners, next, NULL, n), core->free_page,
		    &shadow->owners->next, shadow->free_page);
	for (uint32_t i = 0; i <= n / 64; i++)
		if (core->page_mark[i])
			report(audit, "marks of pages %u to %u were left behind", i * 64,
			       i * 64 + 63);
}

/* ---- sessions, leases, what waits, namespaces, uids */

static void check_leases(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;

	for (uint32_t id = 1; id <= core->config.n_leases; id++) {
		const struct kvt_lease_record *found = &core->leases[id];
		const struct kvt_lease_record *wanted = &shadow->leases[id];

		if (found->kind != KVT_LEASE_FREE && found->point &&
		    (core->pointed_at[id] >= shadow->n_points ||
		     core->pointed[core->pointed_at[id]] != id))
			report(audit, "the point of lease %u is not listed", id);
		if (found->kind == KVT_LEASE_FREE)
			COMPARE(audit, "free lease", id, found, wanted, free_lease_fields);
		else
			COMPARE(audit, "lease", id, found, wanted, lease_fields);
	}
}

static void check_session(struct audit *audit, uint32_t id)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	const struct kvt_session_record *found = &core->sessions[id];
	const struct kvt_session_record *wanted = &shadow->sessions[id];
	uint32_t n = core->config.n_pages;
	/* Pages of an ended session are only taken from the head. */
	bool doubly = found->state == KVT_SESSION_OPEN || found->state == KVT_SESSION_CLOSING;

	COMPARE(audit, "session", id, found, wanted, session_fields);
	if (wanted->n_pending)
		COMPARE(audit, "session", id, found, wanted, waiting_fields);
	compare_set(audit, "private pages of session", id,
		    LINKS(core->owners, next, doubly ? &core->owners->prev : NULL, n),
		    found->first_page, &shadow->owners->next, wanted->first_page);
	compare_set(audit, "quarantined pages of session", id,
		    LINKS(core->owners, next, &core->owners->prev, n), found->first_quarantined,
		    &shadow->owners->next, wanted->first_quarantined);
}

static void check_pending(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;
	uint32_t last;

	for (uint32_t id = 1; id <= core->config.n_pending; id++)
		if (core->pending[id].session != KVT_NONE)
			COMPARE(audit, "deferred operation", id, &core->pending[id],
				&shadow->pending[id], pending_fields);
	last = compare_set(audit, "free deferred operations", 0,
			   LINKS(core->pending, next, NULL, core->config.n_pending + 1),
			   core->free_pending.head, &shadow->pending->next,
			   shadow->free_pending.head);
	if (core->free_pending.tail != last)
		report(audit, "the last free deferred operation is %u, not %u", last,
		       core->free_pending.tail);
	if (!core->wake_due && core->wake_at_ns > shadow->wake_at_ns)
		report(audit, "a deadline at %llu ns would be seen at %llu ns",
		       (unsigned long long)shadow->wake_at_ns,
		       (unsigned long long)core->wake_at_ns);
}

static void check_names(struct audit *audit)
{
	const struct kvt_core *core = audit->core, *shadow = audit->shadow;

	for (uint32_t id = 1; id < core->config.max_namespaces; id++)
		COMPARE(audit, "namespace", id, &core->namespaces[id], &shadow->namespaces[id],
			space_fields);
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
	struct audit audit = { .core = core, .shadow = core->shadow, .problem = problem,
			       .context = context };
	char text[256] = "";

	if (cast_shadow(core, &(struct kvt_why){ text, sizeof(text) })) {
		report(&audit, "%s", text);
		return audit.problems;
	}
	COMPARE(&audit, "core", 0, core, core->shadow, core_fields);
	COMPARE(&audit, "counters", 0, core->count, core->shadow->count, counter_fields);
	check_nodes(&audit);
	check_limits(&audit);
	check_index(&audit);
	check_slots(&audit);
	check_pages(&audit);
	check_sides(&audit);
	check_let(&audit);
	check_leases(&audit);
	check_pending(&audit);
	for (uint32_t id = 1; id <= core->config.max_sessions; id++)
		check_session(&audit, id);
	check_names(&audit);
	return audit.problems;
}
