/* SPDX-License-Identifier: Apache-2.0 */

/* The undo log, written in a mutation, and read by the successor of a daemon that died in one.
 * Entries hold values, not differences: undoing twice is undoing once, so a successor may die in
 * the middle of it, too, or behind it: the log is full until the next mutation begins, because who
 * adopts has to tell which generations were raised, and is heard only if it gets to the end. */

#include <errno.h>
#include <string.h>

#include "daemon/core/internal.h"

#define CHUNK (1u << 24) /* slots or pages in one entry, at most */
#define WORDS(type) (sizeof(type) / sizeof(uint64_t))
#define SESSION_WORDS (offsetof(struct kvt_session_record, last_cqe) / sizeof(uint64_t))
#define MONOTONIC offsetof(struct kvt_counters, operations)
#define MONOTONIC_BYTES (sizeof(struct kvt_counters) - MONOTONIC)

static uint64_t halves(uint64_t n)
{
	return (n + 1) / 2;
}

uint64_t kvt_undo_capacity(const struct kvt_core_config *c)
{
	/* Each node once whole and once touched; its slots trimmed in two steps at most. */
	uint64_t words = (WORDS(struct kvt_node) + 1 + 4 + 2 * 3) * (c->max_nodes + 8ull);

	words += halves(c->n_slots);
	/* Overwritten keys: as many as one operation announces, in as many runs as it needs. */
	words += halves(c->max_op_keys + 2ull * KVT_MAX_PAGE_SIZE) + 3ull * c->max_nodes;
	/* CLOSE gives back two lists of pages of each lease; END with COMMIT lists a page twice. */
	words += 2ull * c->n_pages + 8ull * (c->n_leases + 8ull);
	words += (WORDS(struct kvt_lease_record) + 1) * (c->n_leases + 1ull);
	words += (WORDS(struct kvt_pending_record) + 1) * (c->n_pending + 1ull);
	words += (WORDS(struct kvt_namespace_record) + 1 + 2) * (c->max_namespaces + 1ull);
	return words + 8 * (SESSION_WORDS + 1) + KVT_MAX_PAGE_SIZE;
}

/* ---- writing */

void kvt_undo_begin(struct kvt_core *core)
{
	struct kvt_undo *undo = &core->undo;
	struct kvt_undo_header *header = undo->header;

	if (++undo->stamp == 0) { /* once in 2^32 mutations the stamps start anew */
		memset(undo->nodes, 0, core->config.max_nodes * sizeof(*undo->nodes));
		memset(undo->touches, 0, core->config.max_nodes * sizeof(*undo->touches));
		memset(undo->leases, 0, (core->config.n_leases + 1ull) * sizeof(*undo->leases));
		memset(undo->freed, 0, (core->config.n_slots / 32 + 1ull) * sizeof(*undo->freed));
		undo->stamp = 1;
	}
	undo->used = 0;
	header->words = 0;
	header->seq = core->ledger->seq;
	header->clock = core->ledger->clock;
	header->tickets = core->ledger->tickets;
	header->epoch = core->arena->epoch;
	memcpy((char *)&header->counters + MONOTONIC, (char *)core->count + MONOTONIC,
	       MONOTONIC_BYTES);
}

/** A record as it is. */
static void save(struct kvt_core *core, uint64_t kind, uint32_t id, const void *record, uint64_t n)
{
	memcpy(kvt_undo_room(&core->undo, n), record, n * sizeof(uint64_t));
	kvt_undo_push(&core->undo, kind, n, id);
}

/** An array of u32 and how many they are. */
static void save_array(struct kvt_core *core, uint64_t kind, uint32_t id, const uint32_t *array,
		       uint64_t n, uint64_t count)
{
	uint64_t *at = kvt_undo_room(&core->undo, halves(n) + 1);

	memcpy(at, array, n * sizeof(*array));
	at[halves(n)] = count;
	kvt_undo_push(&core->undo, kind, halves(n) + 1, id);
}

void kvt_undo_node_save(struct kvt_core *core, uint32_t node)
{
	core->undo.nodes[node] = core->undo.touches[node] = core->undo.stamp;
	save(core, KVT_UNDO_NODE, node, &core->nodes[node], WORDS(struct kvt_node));
}

void kvt_undo_node_free(struct kvt_core *core, uint32_t node)
{
	struct kvt_undo *undo = &core->undo;

	if (undo->nodes[node] == undo->stamp)
		return; /* it was freed in this mutation */
	undo->nodes[node] = undo->touches[node] = undo->stamp;
	*kvt_undo_room(undo, 1) = core->nodes[node].created;
	kvt_undo_push(undo, KVT_UNDO_NODE_FREE, 1, node);
}

void kvt_undo_slots(struct kvt_core *core, uint32_t first, uint32_t n)
{
	for (uint32_t done = 0, take; done < n; done += take) {
		take = kvt_min(n - done, CHUNK);
		save_array(core, KVT_UNDO_SLOTS, first + done, core->slot_pages + first + done,
			   take, take);
	}
}

void kvt_undo_slots_freed(struct kvt_core *core, uint32_t first, uint32_t n)
{
	struct kvt_undo *undo = &core->undo;

	for (uint32_t slot = first, end = first + n, next; slot < end; slot = next) {
		uint64_t *word = &undo->freed[slot / 32], bits;

		next = kvt_min(end, slot / 32 * 32 + 32);
		bits = (1ull << (next - slot)) - 1;
		if (*word >> 32 != undo->stamp)
			*word = (uint64_t)undo->stamp << 32;
		*word |= bits << slot % 32;
	}
}

static bool any_freed(const struct kvt_undo *undo, uint32_t first, uint32_t n)
{
	for (uint32_t slot = first, end = first + n, next; slot < end; slot = next) {
		uint64_t word = undo->freed[slot / 32];

		next = kvt_min(end, slot / 32 * 32 + 32);
		if (word >> 32 == undo->stamp &&
		    (uint32_t)word >> slot % 32 & ((1ull << (next - slot)) - 1))
			return true;
	}
	return false;
}

void kvt_undo_keys(struct kvt_core *core, uint32_t first, uint32_t n)
{
	uint32_t chunk = CHUNK / core->ps;

	if (!any_freed(&core->undo, first, n))
		return;
	for (uint32_t done = 0, take; done < n; done += take) {
		take = kvt_min(n - done, chunk);
		save_array(core, KVT_UNDO_KEYS, first + done, kvt_keys_at(core, first + done),
			   (uint64_t)take * core->ps, take);
	}
}

/** Close an entry of `n` pages that stand in the room already. */
static void push_pages(struct kvt_core *core, uint32_t session, uint32_t lease, uint32_t state,
		       uint32_t n, uint32_t after)
{
	uint64_t *at = core->undo.words + core->undo.used + halves(n);

	at[0] = (uint64_t)n << 32 | after;
	at[1] = (uint64_t)state << 32 | lease;
	kvt_undo_push(&core->undo, KVT_UNDO_PAGES, halves(n) + 2, session);
}

void kvt_undo_pages(struct kvt_core *core, uint32_t session, uint32_t lease, uint32_t state,
		    const uint32_t *pages, uint32_t n)
{
	for (uint32_t done = 0, take; done < n; done += take) {
		take = kvt_min(n - done, CHUNK);
		memcpy(kvt_undo_room(&core->undo, halves(take) + 2), pages + done,
		       take * sizeof(*pages));
		push_pages(core, session, lease, state, take, KVT_NONE);
	}
}

void kvt_undo_list(struct kvt_core *core, uint32_t page, uint32_t n)
{
	while (page != KVT_NONE && n > 0) {
		struct kvt_owner_record owner = core->owners[page];
		uint32_t state = core->pages[page].state, count = 0;
		uint32_t most = kvt_min(kvt_min(n, CHUNK), core->config.n_pages);
		uint32_t *to = (uint32_t *)kvt_undo_room(&core->undo, halves(most) + 2);

		for (; page != KVT_NONE && count < most; page = core->owners[page].next)
			to[count++] = page;
		n -= count;
		/* Of a dying session's pages some still name leases that are gone: none counts. */
		if (owner.lease && core->leases[owner.lease].session != owner.session)
			owner.lease = KVT_NONE;
		push_pages(core, owner.session, owner.lease, state, count, page);
	}
}

void kvt_undo_lease_save(struct kvt_core *core, uint32_t lease)
{
	core->undo.leases[lease] = core->undo.stamp;
	save(core, KVT_UNDO_LEASE, lease, &core->leases[lease], WORDS(struct kvt_lease_record));
}

void kvt_undo_lease_free(struct kvt_core *core, uint32_t lease, uint32_t session)
{
	struct kvt_undo *undo = &core->undo;
	uint64_t *at;

	if (undo->leases[lease] == undo->stamp)
		return;
	undo->leases[lease] = undo->stamp;
	at = kvt_undo_room(undo, 2);
	at[0] = core->leases[lease].ticket;
	at[1] = (uint64_t)core->leases[lease].generation << 32 | session;
	kvt_undo_push(undo, KVT_UNDO_LEASE_FREE, 2, lease);
}

void kvt_undo_tail(struct kvt_core *core, uint32_t lease)
{
	uint32_t n = core->leases[lease].known % core->ps;

	if (n > 0)
		save_array(core, KVT_UNDO_TAIL, lease, core->tails + (size_t)lease * core->ps, n,
			   n);
}

void kvt_undo_session(struct kvt_core *core, uint32_t session)
{
	save(core, KVT_UNDO_SESSION, session, &core->sessions[session], SESSION_WORDS);
}

void kvt_undo_progress(struct kvt_core *core, uint32_t session)
{
	const struct kvt_session_record *record = &core->sessions[session];
	uint64_t *at = kvt_undo_room(&core->undo, 2);

	at[0] = record->operations;
	at[1] = (uint64_t)record->cq_done << 32 | record->sq_taken;
	kvt_undo_push(&core->undo, KVT_UNDO_PROGRESS, 2, session);
}

void kvt_undo_pending(struct kvt_core *core, uint32_t pending)
{
	save(core, KVT_UNDO_PENDING, pending, &core->pending[pending],
	     WORDS(struct kvt_pending_record));
}

void kvt_undo_space(struct kvt_core *core, uint32_t namespace_id)
{
	save(core, KVT_UNDO_SPACE, namespace_id, &core->namespaces[namespace_id],
	     WORDS(struct kvt_namespace_record));
}

void kvt_undo_opened(struct kvt_core *core, uint32_t session, uint32_t namespace_id)
{
	uint32_t word = session * core->opened_words + namespace_id / 64;

	save(core, KVT_UNDO_OPENED, word, &core->opened[word], 1);
}

/* ---- reading: what a dead daemon left */

struct entry {
	uint64_t kind;
	uint64_t n; /* words before the last one */
	uint32_t id;
	const uint64_t *at;
};

/** The entry that ends at `end`. False: there is no room for what it says. */
static bool entry_before(const struct kvt_undo *undo, uint64_t end, struct entry *ret_entry)
{
	uint64_t last = undo->words[end - 1];

	*ret_entry = (struct entry){ .kind = last >> 60, .n = last >> 32 & 0xfffffff,
				     .id = (uint32_t)last };
	if (ret_entry->n >= end)
		return false;
	ret_entry->at = undo->words + end - 1 - ret_entry->n;
	return true;
}

static bool array_ok(const struct entry *e, uint64_t each, uint64_t most)
{
	uint64_t count = e->n ? e->at[e->n - 1] : 0;

	return count > 0 && count <= most && e->n == halves(count * each) + 1;
}

static bool pages_ok(const struct kvt_core *core, const struct entry *e)
{
	const uint32_t *pages = (const uint32_t *)e->at;
	uint64_t count, after, state, lease;

	if (e->n < 3 || e->id > core->config.max_sessions)
		return false;
	count = e->at[e->n - 2] >> 32;
	after = (uint32_t)e->at[e->n - 2];
	state = e->at[e->n - 1] >> 32;
	lease = (uint32_t)e->at[e->n - 1];
	if (count > core->config.n_pages || e->n != halves(count) + 2 ||
	    after >= core->config.n_pages || lease > core->config.n_leases ||
	    (state != KVT_PAGE_FREE && state != KVT_PAGE_PRIVATE && state != KVT_PAGE_QUARANTINE) ||
	    (state == KVT_PAGE_FREE) != (e->id == 0))
		return false;
	for (uint64_t i = 0; i < count; i++)
		if (pages[i] == KVT_NONE || pages[i] >= core->config.n_pages)
			return false;
	return true;
}

static bool entry_ok(const struct kvt_core *core, const struct entry *e)
{
	const struct kvt_core_config *c = &core->config;
	bool node = e->id > 0 && e->id < c->max_nodes, lease = e->id > 0 && e->id <= c->n_leases;
	bool session = e->id > 0 && e->id <= c->max_sessions;
	uint64_t rest = e->id < c->n_slots ? c->n_slots - e->id : 0;

	switch ((enum kvt_undo_kind)e->kind) {
	case KVT_UNDO_NODE:
		return node && e->n == WORDS(struct kvt_node);
	case KVT_UNDO_NODE_FREE:
		return node && e->n == 1;
	case KVT_UNDO_NODE_TOUCHED:
		return node && e->n == 3;
	case KVT_UNDO_SLOTS:
		return e->id > 0 && array_ok(e, 1, rest);
	case KVT_UNDO_KEYS:
		return e->id > 0 && array_ok(e, core->ps, rest);
	case KVT_UNDO_PAGES:
		return pages_ok(core, e);
	case KVT_UNDO_LEASE:
		return lease && e->n == WORDS(struct kvt_lease_record);
	case KVT_UNDO_LEASE_FREE:
		return lease && e->n == 2 && (uint32_t)e->at[1] <= c->max_sessions;
	case KVT_UNDO_TAIL:
		return lease && array_ok(e, 1, core->ps);
	case KVT_UNDO_SESSION:
		return session && e->n == SESSION_WORDS;
	case KVT_UNDO_PROGRESS:
		return session && e->n == 2;
	case KVT_UNDO_PENDING:
		return e->id > 0 && e->id <= c->n_pending &&
		       e->n == WORDS(struct kvt_pending_record);
	case KVT_UNDO_SPACE:
		return e->id < c->max_namespaces && e->n == WORDS(struct kvt_namespace_record);
	case KVT_UNDO_OPENED:
		return e->id < (c->max_sessions + 1ull) * core->opened_words && e->n == 1;
	}
	return false;
}

/** A node as it was; readers see it change as in any other change. What they may have seen of what
 * never happened must not match again, when the same number comes round: then its generation
 * goes on instead of back. */
static void undo_node(struct kvt_core *core, uint32_t id, const struct kvt_node *old)
{
	struct kvt_node *node = kvt_node_at(core, id);
	bool seen = node->generation != old->generation ||
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
	node->hits = old->hits;
	node->priority = old->priority;
	node->touched = old->touched;
	node->created = old->created;
	node->touched_ns = old->touched_ns;
	KVT_SET(node->epoch, old->epoch);
	kvt_store_release(&node->version, version + 1); /* pairs with the reader's acquire */
	if (seen)
		kvt_event_add(core, KVT_EV_RAISE, id, generation, 0);
}

static void undo_free_node(struct kvt_core *core, uint32_t id, uint64_t ticket)
{
	/* Another generation than the one that it has: so that it is raised. */
	struct kvt_node old = { .generation = core->nodes[id].generation - 1, .created = ticket,
				.expiry_ns = KVT_NEVER };

	undo_node(core, id, &old);
}

static void undo_pages(struct kvt_core *core, const struct entry *e)
{
	const uint32_t *pages = (const uint32_t *)e->at;
	uint32_t n = (uint32_t)(e->at[e->n - 2] >> 32), after = (uint32_t)e->at[e->n - 2];
	uint32_t state = (uint32_t)(e->at[e->n - 1] >> 32), lease = (uint32_t)e->at[e->n - 1];

	for (uint32_t i = 0; i < n; i++) {
		core->owners[pages[i]] = (struct kvt_owner_record){
			.session = e->id,
			.lease = lease,
			.next = lease == KVT_NONE ? KVT_NONE : i + 1 < n ? pages[i + 1] : after,
		};
		core->pages[pages[i]].state = state;
	}
}

static void undo_free_lease(struct kvt_core *core, const struct entry *e)
{
	/* The session stays until the pages are found that the lease took. */
	core->leases[e->id] = (struct kvt_lease_record){
		.ticket = e->at[0],
		.generation = (uint32_t)(e->at[1] >> 32),
		.session = (uint32_t)e->at[1],
	};
	core->lease_stamp[e->id] = core->stamp;
}

static void undo_progress(struct kvt_session_record *session, const uint64_t *at)
{
	session->operations = at[0];
	session->cq_done = (uint32_t)(at[1] >> 32);
	session->sq_taken = (uint32_t)at[1];
}

static void undo(struct kvt_core *core, const struct entry *e)
{
	struct kvt_node node;

	switch ((enum kvt_undo_kind)e->kind) {
	case KVT_UNDO_NODE:
		memcpy(&node, e->at, sizeof(node));
		undo_node(core, e->id, &node);
		break;
	case KVT_UNDO_NODE_FREE:
		undo_free_node(core, e->id, e->at[0]);
		break;
	case KVT_UNDO_NODE_TOUCHED:
		core->nodes[e->id].touched = e->at[0];
		core->nodes[e->id].touched_ns = e->at[1];
		core->nodes[e->id].hits = (uint32_t)e->at[2];
		break;
	case KVT_UNDO_SLOTS:
		memcpy(core->slot_pages + e->id, e->at, e->at[e->n - 1] * sizeof(uint32_t));
		break;
	case KVT_UNDO_KEYS:
		memcpy(kvt_keys_at(core, e->id), e->at,
		       e->at[e->n - 1] * core->ps * sizeof(uint32_t));
		break;
	case KVT_UNDO_PAGES:
		undo_pages(core, e);
		break;
	case KVT_UNDO_LEASE:
		memcpy(&core->leases[e->id], e->at, sizeof(*core->leases));
		core->lease_stamp[e->id] = core->stamp;
		break;
	case KVT_UNDO_LEASE_FREE:
		undo_free_lease(core, e);
		break;
	case KVT_UNDO_TAIL:
		memcpy(core->tails + (size_t)e->id * core->ps, e->at,
		       e->at[e->n - 1] * sizeof(uint32_t));
		break;
	case KVT_UNDO_SESSION:
		memcpy(&core->sessions[e->id], e->at, SESSION_WORDS * sizeof(uint64_t));
		break;
	case KVT_UNDO_PROGRESS:
		undo_progress(&core->sessions[e->id], e->at);
		break;
	case KVT_UNDO_PENDING:
		memcpy(&core->pending[e->id], e->at, sizeof(*core->pending));
		break;
	case KVT_UNDO_SPACE:
		memcpy(&core->namespaces[e->id], e->at, sizeof(*core->namespaces));
		break;
	case KVT_UNDO_OPENED:
		core->opened[e->id] = e->at[0];
		break;
	}
}

/** The pages of one list, which ends at `last` or, if that is KVT_NONE, where it ends. Whatever is
 * wrong with it is for the rebuild to say. */
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

/** What leases took in the mutation was free before, and is in none of their lists now. */
static void give_back_taken(struct kvt_core *core)
{
	for (uint32_t id = 1; id <= core->config.n_leases; id++) {
		const struct kvt_lease_record *lease = &core->leases[id];

		if (core->lease_stamp[id] != core->stamp || lease->kind == KVT_LEASE_FREE)
			continue;
		mark_list(core, lease->first_page, lease->last_page);
		mark_list(core, lease->first_kept, KVT_NONE);
	}
	for (uint32_t page = 1; page < core->config.n_pages; page++) {
		struct kvt_owner_record *owner = &core->owners[page];

		if (owner->lease != KVT_NONE && owner->lease <= core->config.n_leases &&
		    core->lease_stamp[owner->lease] == core->stamp &&
		    (owner->session == KVT_NONE ||
		     core->leases[owner->lease].session == owner->session) &&
		    !kvt_bit_get(core->page_mark, page))
			*owner = (struct kvt_owner_record){ 0 };
	}
	memset(core->page_mark, 0, (core->config.n_pages / 64 + 1) * sizeof(*core->page_mark));
	for (uint32_t id = 1; id <= core->config.n_leases; id++)
		if (core->leases[id].kind == KVT_LEASE_FREE)
			core->leases[id].session = KVT_NONE;
}

int kvt_undo_roll_back(struct kvt_core *core, struct kvt_doubt *doubt)
{
	struct kvt_undo_header *header = core->undo.header;
	uint64_t words = header->words, end;
	struct entry entry;

	if (words > core->undo.capacity)
		return kvt_doubt(doubt, "the undo log says that it has %llu words of %llu",
				 (unsigned long long)words,
				 (unsigned long long)core->undo.capacity);
	for (end = words; end > 0; end -= entry.n + 1)
		if (!entry_before(&core->undo, end, &entry) || !entry_ok(core, &entry))
			return kvt_doubt(doubt, "the undo log has an impossible entry before word "
					 "%llu", (unsigned long long)end);
	core->stamp++;
	for (end = words; end > 0; end -= entry.n + 1) {
		bool there = entry_before(&core->undo, end, &entry);

		KVT_ASSERT(there); /* nobody but us writes the ledger, and it was a moment ago */
		undo(core, &entry);
	}
	give_back_taken(core);
	memcpy((char *)core->count + MONOTONIC, (char *)&header->counters + MONOTONIC,
	       MONOTONIC_BYTES);
	core->ledger->seq = header->seq;
	core->ledger->clock = header->clock;
	core->ledger->tickets = header->tickets;
	kvt_store_release(&core->arena->epoch, header->epoch);
	return 0;
}
