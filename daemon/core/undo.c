/* SPDX-License-Identifier: Apache-2.0 */

/* Writing the undo log.
 *
 * Every file that changes primary facts inside a mutation calls undo.h before it does; rollback.c
 * reads the log after a crash. Entries hold values, not differences. An entry is complete before
 * header->words counts it. */

#include "daemon/core/undo.h"

#include "daemon/core/ledger.h"
#include "daemon/core/undo_records.h"

/** Words of an entry of a record, or of so many bytes in runs of 4. */
#define ENTRY(bytes) (kvt_words(bytes) + 2)
#define RUNS(bytes, runs) (kvt_words(bytes) + 3 * (runs))

uint64_t kvt_undo_capacity(const struct kvt_core_config *c)
{
	/* Each node once whole and once touched, its root key once; its slots trimmed in two steps
	 * at most. */
	uint64_t words = (ENTRY(sizeof(struct kvt_node)) + ENTRY(KVT_TOUCHED_BYTES) +
			  ENTRY(sizeof(uint64_t))) * (c->max_nodes + 8ull);

	words += RUNS(4ull * c->n_slots, 2 * (c->max_nodes + 8ull));
	/* Side pages leave with their page. A COMMIT takes a page once, and may drop it then. */
	if (c->n_sides > 0)
		words += 2ull * c->n_pages * ENTRY(4ull * c->n_sides);
	/* Overwritten keys: as many as one operation announces, in as many runs as it needs. */
	words += RUNS(4 * (c->max_op_keys + 2ull * c->page_size), (uint64_t)c->max_nodes);
	/* CLOSE gives back two lists of pages of each lease; END with COMMIT lists a page twice. */
	words += 2ull * c->n_pages + 8ull * (c->n_leases + 8ull);
	words += ENTRY(sizeof(struct kvt_lease_record)) * (c->n_leases + 1ull);
	words += ENTRY(sizeof(struct kvt_pending_record)) * (c->n_pending + 1ull);
	words += ENTRY(sizeof(struct kvt_namespace_record)) * (c->max_namespaces + 1ull);
	words += 4 * ENTRY(sizeof(struct kvt_tally));
	words += ENTRY(c->max_namespaces / 8 + sizeof(uint64_t)); /* those that a session opened */
	return words + 8 * ENTRY(KVT_SESSION_FACTS) + ENTRY(4ull * c->page_size);
}

void kvt_undo_begin(struct kvt_core *core)
{
	struct kvt_undo *undo = &core->undo;
	struct kvt_undo_header *header = undo->header;
	const char *from = (char *)core->count + KVT_MONOTONIC;
	char *to = (char *)&header->counters + KVT_MONOTONIC;
	const size_t half = KVT_MONOTONIC_BYTES / 2;

	if (++undo->stamp == 0) { /* once in 2^32 mutations stamps restart */
		memset(undo->nodes, 0, core->config.max_nodes * sizeof(*undo->nodes));
		memset(undo->touches, 0, core->config.max_nodes * sizeof(*undo->touches));
		memset(undo->leases, 0, (core->config.n_leases + 1ull) * sizeof(*undo->leases));
		memset(undo->freed, 0, (core->config.n_slots / 32 + 1ull) * sizeof(*undo->freed));
		undo->stamp = 1;
	}
	undo->used = 0;
	header->words = 0;
	header->taker = 0;
	header->seq = core->ledger->seq;
	header->clock = core->ledger->clock;
	header->tickets = core->ledger->tickets;
	header->epoch = core->arena->epoch;
	/* In halves: above 256 bytes gcc copies by `rep movs`, which is slow to start. */
	memcpy(to, from, half);
	memcpy(to + half, from + half, KVT_MONOTONIC_BYTES - half);
}

/* ---- slots that the mutation frees and uses again */

void kvt_save_slots_freed(struct kvt_core *core, uint32_t first, uint32_t n)
{
	struct kvt_undo *undo = &core->undo;

	KVT_ASSERT(first > 0 && n <= core->config.n_slots - first);
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

void kvt_save_keys(struct kvt_core *core, uint32_t first, uint32_t n)
{
	KVT_ASSERT(first > 0 && n <= core->config.n_slots - first);
	if (any_freed(&core->undo, first, n))
		kvt_save(core, kvt_keys_at(core, first),
			 (uint64_t)n * core->ps * sizeof(*core->slot_keys));
}

/* ---- pages */

/** Close an entry of n pages and of the one behind them, which stand in the room already. */
static void push_pages(struct kvt_core *core, const struct kvt_owner_record *owner, uint32_t state,
		       uint32_t n)
{
	kvt_undo_push(&core->undo, KVT_UNDO_PAGES, (n + 1ull) * sizeof(uint32_t),
		      (uint64_t)owner->session << 48 | (uint64_t)state << 32 | owner->lease);
}

void kvt_save_pages(struct kvt_core *core, uint32_t session, const uint32_t *pages, uint32_t n)
{
	uint32_t *to = kvt_undo_room(&core->undo, (n + 1ull) * sizeof(*to));

	KVT_ASSERT(n < core->config.n_pages);
	if (n == 0)
		return;
	memcpy(to, pages, n * sizeof(*to));
	to[n] = KVT_NONE;
	push_pages(core, &(struct kvt_owner_record){ .session = session }, KVT_PAGE_PRIVATE, n);
}

void kvt_save_list(struct kvt_core *core, uint32_t page, uint32_t n)
{
	struct kvt_owner_record owner;
	uint32_t state, most, *to, count = 0;

	if (page == KVT_NONE || n == 0)
		return;
	owner = core->owners[page];
	state = core->pages[page].state;
	most = kvt_min(n, core->config.n_pages);
	to = kvt_undo_room(&core->undo, (most + 1ull) * sizeof(*to));
	for (; page != KVT_NONE && count < most; page = core->owners[page].next)
		to[count++] = page;
	KVT_ASSERT(count < core->config.n_pages);
	to[count] = page;
	/* Some pages of a dying session still name leases that are gone: no lease counts. */
	if (owner.lease && core->leases[owner.lease].session != owner.session)
		owner.lease = KVT_NONE;
	push_pages(core, &owner, state, count);
}
