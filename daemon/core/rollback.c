/* SPDX-License-Identifier: Apache-2.0 */

/* Undo the mutation in which a daemon crashed.
 *
 * Input is the undo log of undo.c. It is not trusted: all entries are checked before the first is
 * undone. Entries hold values, not differences, so undoing is idempotent and a successor may crash
 * in the middle of it. The log stays full until the next mutation begins: the ADOPT record, written
 * at the end, names the generations that were bumped. Called by adopt.c. */

#include <string.h>

#include "daemon/core/effect.h"
#include "daemon/core/recover.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/undo.h"
#include "daemon/core/undo_records.h"

/* ---- entries */

struct entry {
	uint64_t kind;
	uint64_t bytes;
	uint64_t place;
	const void *old;
	uint64_t end; /* of the entry before it */
};

/** The entry that ends at `end`. False: there is no room for what it says. */
static bool entry_before(const struct kvt_undo *undo, uint64_t end, struct entry *ret_entry)
{
	uint64_t bytes = undo->words[end - 1] & ~(15ull << 60);

	if (end < 2 || kvt_words(bytes) > end - 2)
		return false;
	*ret_entry = (struct entry){
		.kind = undo->words[end - 1] >> 60,
		.bytes = bytes,
		.place = undo->words[end - 2],
		.old = undo->words + end - 2 - kvt_words(bytes),
		.end = end - 2 - kvt_words(bytes),
	};
	return true;
}

/** The address of a place: anywhere, until are_facts() has checked it. */
static uintptr_t address(const struct kvt_core *core, uint64_t place)
{
	return place & KVT_UNDO_LEDGER ? (uintptr_t)core->ledger + (place & ~KVT_UNDO_LEDGER) :
					 (uintptr_t)core->arena + place;
}

/** Records, and which bytes of each may be saved. */
struct facts {
	const void *first;
	uint64_t n;
	uint64_t bytes; /* of a record */
	uint64_t from, to;
	uint64_t unit;  /* offset and length are multiples of it */
};

/** True if the bytes at an address are facts of one of these records. */
static bool are_facts(const struct facts *facts, uintptr_t at, uint64_t bytes)
{
	uint64_t offset = at - (uintptr_t)facts->first, within = offset % facts->bytes;

	return offset < facts->n * facts->bytes && within >= facts->from && within < facts->to &&
	       within % facts->unit == 0 && bytes > 0 && bytes <= facts->to - within &&
	       bytes % facts->unit == 0;
}

/** All that kvt_save() is called for. Record 0 of each kind is unused, but of tallies. */
static bool bytes_ok(const struct kvt_core *core, const struct entry *e)
{
	const struct kvt_core_config *c = &core->config;
	const uint64_t page = core->ps * sizeof(uint32_t), keys = (c->n_slots - 1) * page;
	const uint64_t slots = (c->n_slots - 1) * sizeof(uint32_t);
	const uint64_t sides = (c->n_pages - 1ull) * c->n_sides * sizeof(uint32_t);
	const uint64_t opened = c->max_sessions * core->opened_words * sizeof(uint64_t);
	const struct facts all[] = {
		{ core->nodes + 1, c->max_nodes - 1, sizeof(struct kvt_node), KVT_TOUCHED,
		  KVT_TOUCHED + KVT_TOUCHED_BYTES, 8 },
		{ kvt_keys_at(core, 1), 1, keys, 0, keys, page },
		{ core->slot_pages + 1, 1, slots, 0, slots, 4 },
		{ core->sides + c->n_sides, c->n_sides > 0, sides + !sides, 0, sides, 4 },
		{ core->namespaces + 1, c->max_namespaces - 1, sizeof(*core->namespaces), 0,
		  sizeof(*core->namespaces), 8 },
		{ core->root_keys + 1, c->max_nodes - 1, sizeof(*core->root_keys), 0,
		  sizeof(*core->root_keys), 8 },
		{ core->sessions + 1, c->max_sessions, sizeof(*core->sessions), 0,
		  KVT_SESSION_FACTS, 8 },
		{ core->leases + 1, c->n_leases, sizeof(*core->leases), 0, sizeof(*core->leases),
		  8 },
		{ core->tails + core->ps, c->n_leases, page, 0, page, 4 },
		{ core->pending + 1, c->n_pending, sizeof(*core->pending), 0,
		  sizeof(*core->pending), 8 },
		{ core->opened + core->opened_words, 1, opened, 0, opened, 8 },
		{ core->tallies, kvt_tally_rows(c), sizeof(*core->tallies), 0,
		  sizeof(*core->tallies), 8 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (are_facts(&all[i], address(core, e->place), e->bytes))
			return true;
	return false;
}

static bool node_ok(const struct kvt_core *core, const struct entry *e)
{
	const struct facts nodes = { core->nodes + 1, core->config.max_nodes - 1,
				     sizeof(struct kvt_node), 0, sizeof(struct kvt_node),
				     sizeof(struct kvt_node) };

	return are_facts(&nodes, address(core, e->place), e->bytes);
}

/** A list of pages: its place, and how many they are. */
struct list {
	uint32_t session, state, lease;
	uint32_t n;
};

static struct list list_of(const struct entry *e)
{
	return (struct list){
		.session = (uint32_t)(e->place >> 48),
		.state = (uint32_t)(e->place >> 32) & 0xffff,
		.lease = (uint32_t)e->place,
		.n = (uint32_t)(e->bytes / sizeof(uint32_t)) - 1,
	};
}

static bool pages_ok(const struct kvt_core *core, const struct entry *e)
{
	const uint32_t *pages = e->old;
	struct list list = list_of(e);

	if (e->bytes < 2 * sizeof(*pages) || e->bytes % sizeof(*pages) ||
	    e->bytes > (core->config.n_pages + 1ull) * sizeof(*pages) ||
	    pages[list.n] >= core->config.n_pages || list.session > core->config.max_sessions ||
	    list.lease > core->config.n_leases || (list.state == KVT_PAGE_FREE) != !list.session ||
	    (list.state != KVT_PAGE_FREE && list.state != KVT_PAGE_PRIVATE &&
	     list.state != KVT_PAGE_QUARANTINE))
		return false;
	for (uint32_t i = 0; i < list.n; i++)
		if (pages[i] == KVT_NONE || pages[i] >= core->config.n_pages)
			return false;
	return true;
}

static bool entry_ok(const struct kvt_core *core, const struct entry *e)
{
	switch ((enum kvt_undo_kind)e->kind) {
	case KVT_UNDO_BYTES:
		return bytes_ok(core, e);
	case KVT_UNDO_NODE:
		return node_ok(core, e);
	case KVT_UNDO_PAGES:
		return pages_ok(core, e);
	}
	return false;
}

/* ---- undoing */

/** Write a node back. Readers see it change as in any other change. If they may have seen more than
 * the old node had, bump its generation instead of restoring it (ABA), and tell it by an event. */
static void undo_node(struct kvt_core *core, uint32_t id, const struct kvt_node *old)
{
	struct kvt_node *node = kvt_node_at(core, id);
	bool seen = !(old->flags & KVT_NODE_LIVE) || node->generation != old->generation ||
		    (uint64_t)node->start + node->sealed > (uint64_t)old->start + old->sealed;
	uint32_t version = node->version | 1;
	uint32_t generation = seen ? node->generation + 1 : old->generation;

	KVT_SET(node->version, version);
	kvt_fence_release(); /* pairs with the reader's acquire fence before its second look */
	KVT_SET(node->generation, generation);
	KVT_SET(node->parent, old->parent);
	KVT_SET(node->first_slot, old->first_slot);
	KVT_SET(node->n_slots, old->n_slots);
	KVT_SET(node->sealed, old->sealed);
	KVT_SET(node->start, old->start);
	KVT_SET(node->flags, old->flags);
	KVT_SET(node->namespace_id, old->namespace_id);
	KVT_SET(node->expiry_ns, old->expiry_ns);
	node->uses = old->uses;
	node->priority = old->priority;
	node->touched = old->touched;
	node->created = old->created;
	node->touched_ns = old->touched_ns;
	KVT_SET(node->epoch, old->epoch);
	kvt_store_release(&node->version, version + 1); /* pairs with the reader's acquire */
	if (seen)
		kvt_event_add(core, KVT_EV_RAISE, id, generation, 0);
}

static void undo_pages(struct kvt_core *core, const uint32_t *pages, struct list list)
{
	for (uint32_t i = 0; i < list.n; i++) {
		core->owners[pages[i]] = (struct kvt_owner_record){
			.session = list.session,
			.lease = list.lease,
			.next = list.lease == KVT_NONE ? KVT_NONE : pages[i + 1],
		};
		core->pages[pages[i]].state = list.state;
	}
}

static void undo(struct kvt_core *core, const struct entry *e)
{
	struct kvt_node node;

	switch ((enum kvt_undo_kind)e->kind) {
	case KVT_UNDO_BYTES:
		memcpy((void *)address(core, e->place), e->old, e->bytes);
		break;
	case KVT_UNDO_NODE:
		memcpy(&node, e->old, sizeof(node));
		undo_node(core, (uint32_t)((const struct kvt_node *)address(core, e->place) -
					   core->nodes), &node);
		break;
	case KVT_UNDO_PAGES:
		undo_pages(core, e->old, list_of(e));
		break;
	}
}

/** Mark the pages of a list up to `last`; KVT_NONE: up to its end. The rebuild finds
 * faults of a list. */
static void mark_list(struct kvt_core *core, uint32_t page, uint32_t last)
{
	for (uint32_t n = 0; page != KVT_NONE && page < core->config.n_pages &&
			     n < core->config.n_pages; n++) {
		kvt_bit_set(core->page_mark, page);
		if (page == last) {
			core->owners[page].next = KVT_NONE;
			return;
		}
		page = core->owners[page].next;
	}
}

/** Free the pages that a lease took in the mutation: they name it, and no list of it holds them any
 * more. Pages of a dying session may name its predecessor. */
static void give_back_taken(struct kvt_core *core, uint32_t id, uint32_t session)
{
	const struct kvt_lease_record *lease = &core->leases[id];

	if (lease->kind != KVT_LEASE_FREE) {
		mark_list(core, lease->first_page, lease->last_page);
		mark_list(core, lease->first_kept, KVT_NONE);
	}
	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		struct kvt_owner_record *owner = &core->owners[page];

		if (owner->lease == id &&
		    (owner->session == KVT_NONE || owner->session == session) &&
		    !kvt_bit_get(core->page_mark, page))
			*owner = (struct kvt_owner_record){ 0 };
	}
	memset(core->page_mark, 0, (core->config.n_pages / 64 + 1) * sizeof(*core->page_mark));
}

static int check(const struct kvt_core *core, struct kvt_why *why)
{
	const struct kvt_undo_header *header = core->undo.header;
	struct entry entry;

	if (header->words > core->undo.capacity)
		return kvt_unclean(why, "the undo log says that it has %llu words of %llu",
				 (unsigned long long)header->words,
				 (unsigned long long)core->undo.capacity);
	if (header->taker && ((uint32_t)header->taker - 1 >= core->config.n_leases ||
			      header->taker >> 32 > core->config.max_sessions))
		return kvt_unclean(why, "the undo log says that lease %u of session %u took pages",
				 (uint32_t)header->taker, (uint32_t)(header->taker >> 32));
	for (uint64_t end = header->words; end > 0; end = entry.end)
		if (!entry_before(&core->undo, end, &entry) || !entry_ok(core, &entry))
			return kvt_unclean(why, "the undo log has an impossible entry before word "
					 "%llu", (unsigned long long)end);
	return 0;
}

int kvt_undo_roll_back(struct kvt_core *core, struct kvt_why *why)
{
	struct kvt_undo_header *header = core->undo.header;
	struct entry entry;
	int error = check(core, why);

	if (error)
		return error;
	for (uint64_t end = header->words; end > 0; end = entry.end) {
		bool there = entry_before(&core->undo, end, &entry);

		KVT_ASSERT(there); /* checked above, and the ledger has one writer */
		undo(core, &entry);
	}
	if (header->taker)
		give_back_taken(core, (uint32_t)header->taker, (uint32_t)(header->taker >> 32));
	memcpy((char *)core->count + KVT_MONOTONIC, (char *)&header->counters + KVT_MONOTONIC,
	       KVT_MONOTONIC_BYTES);
	core->ledger->seq = header->seq;
	core->ledger->clock = header->clock;
	core->ledger->tickets = header->tickets;
	kvt_store_release(&core->arena->epoch, header->epoch);
	return 0;
}
