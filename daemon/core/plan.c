/* SPDX-License-Identifier: Apache-2.0 */

/* Sizes, layout and the first state of arena, ledger and scratch.
 *
 * Input is the configuration alone: equal ones give equal layouts, which recovery relies on. There
 * is no allocation after this. Callers: the daemon's start, recovery, tests. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/audit.h"
#include "daemon/core/core.h"
#include "daemon/core/ledger.h"
#include "daemon/core/order.h"
#include "daemon/core/plan.h"
#include "daemon/core/records.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tally.h"
#include "daemon/core/undo.h"
#include "daemon/core/view.h"
#include "shm/layout.h"

uint64_t kvt_ledger_layout(void)
{
	static const uint32_t facts[] = {
		KVT_LEDGER_SECTIONS, KVT_LABEL_BYTES, sizeof(struct kvt_ledger_header),
		sizeof(struct kvt_tally),
		offsetof(struct kvt_ledger_header, sections), sizeof(struct kvt_session_record),
		offsetof(struct kvt_session_record, operations),
		offsetof(struct kvt_session_record, last_cqe), sizeof(struct kvt_member_record),
		offsetof(struct kvt_member_record, secret), sizeof(struct kvt_lease_record),
		offsetof(struct kvt_lease_record, ticket), sizeof(struct kvt_owner_record),
		offsetof(struct kvt_lease_record, sealed_ns),
		offsetof(struct kvt_lease_record, point),
		sizeof(struct kvt_pending_record), offsetof(struct kvt_pending_record, token),
		offsetof(struct kvt_pending_record, owner),
		offsetof(struct kvt_pending_record, for_point),
		sizeof(struct kvt_undo_header), offsetof(struct kvt_undo_header, taker),
		offsetof(struct kvt_undo_header, counters),
	};

	return kvt_layout_fold(facts, sizeof(facts) / sizeof(facts[0]));
}

static uint64_t next_line(uint64_t offset)
{
	return (offset + KVT_LINE - 1) / KVT_LINE * KVT_LINE;
}

static uint32_t power_of_two_at_least(uint64_t n)
{
	uint64_t power = 1;

	while (power < n)
		power *= 2;
	return (uint32_t)power;
}

static uint32_t bucket_count(const struct kvt_core_config *config)
{
	return power_of_two_at_least(2ull * config->max_nodes);
}

static uint32_t opened_words(const struct kvt_core_config *config)
{
	return (config->max_namespaces + 63) / 64;
}

/** Tree nodes by default. In a small pool each page may be a run of its own, with a root for itself
 * if there are namespaces enough. In a large one nodes have several pages. */
static uint32_t node_count(uint32_t n_pages, uint32_t n_namespaces)
{
	uint32_t most = n_pages / 4 < 4096 ? 4096 : n_pages / 4;
	uint64_t n = n_pages + (uint64_t)(n_namespaces < n_pages ? n_namespaces : n_pages);

	if (n > most)
		n = most;
	return n < 64 ? 64 : (uint32_t)n;
}

static void fill_defaults(struct kvt_core_config *config)
{
	if (!config->n_slots)
		config->n_slots = config->n_pages + config->n_pages / 16 + 1;
	if (!config->max_namespaces)
		config->max_namespaces = 4096;
	if (!config->max_nodes)
		config->max_nodes = node_count(config->n_pages, config->max_namespaces);
	if (!config->max_sessions)
		config->max_sessions = 256;
	if (!config->n_leases)
		config->n_leases = 16384;
	if (!config->n_pending)
		config->n_pending = 4096;
	if (!config->max_members)
		config->max_members = 64;
	if (!config->max_op_keys)
		config->max_op_keys = 1u << 20;
	if (!config->slru_threshold)
		config->slru_threshold = 2;
}

/** Lay sections one behind the other. Returns the end. */
static uint64_t lay(struct kvt_section *sections, uint32_t id, uint64_t at, uint64_t count,
		    uint32_t entry_bytes)
{
	struct kvt_section section = {
		.offset = at,
		.bytes = count * entry_bytes,
		.count = count,
		.entry_bytes = entry_bytes,
		.id = id,
	};

	sections[id] = section;
	return next_line(at + section.bytes);
}

static uint64_t lay_arena(const struct kvt_core_config *c, struct kvt_section *sections)
{
	uint64_t at = sizeof(struct kvt_arena_header);

	at = lay(sections, KVT_SECTION_NODES, at, c->max_nodes, sizeof(struct kvt_node));
	at = lay(sections, KVT_SECTION_BUCKETS, at, bucket_count(c), sizeof(kvt_bucket));
	at = lay(sections, KVT_SECTION_SLOT_KEYS, at, (uint64_t)c->n_slots,
		 c->page_size * (uint32_t)sizeof(uint32_t));
	at = lay(sections, KVT_SECTION_SLOT_PAGES, at, c->n_slots, sizeof(uint32_t));
	at = lay(sections, KVT_SECTION_PAGES, at, c->n_pages, sizeof(struct kvt_page_record));
	at = lay(sections, KVT_SECTION_NAMESPACES, at, c->max_namespaces,
		 sizeof(struct kvt_namespace_record));
	at = lay(sections, KVT_SECTION_ROOT_KEYS, at, c->max_nodes, sizeof(uint64_t));
	return lay(sections, KVT_SECTION_SIDES, at, (uint64_t)c->n_pages * c->n_sides,
		   sizeof(uint32_t));
}

static uint64_t lay_ledger(const struct kvt_core_config *c, struct kvt_section *sections)
{
	uint64_t at = next_line(sizeof(struct kvt_ledger_header));

	at = lay(sections, KVT_LSECTION_SESSIONS, at, c->max_sessions + 1,
		 sizeof(struct kvt_session_record));
	at = lay(sections, KVT_LSECTION_LEASES, at, c->n_leases + 1ull,
		 sizeof(struct kvt_lease_record));
	at = lay(sections, KVT_LSECTION_TAILS, at, c->n_leases + 1ull,
		 c->page_size * (uint32_t)sizeof(uint32_t));
	at = lay(sections, KVT_LSECTION_OWNERS, at, c->n_pages, sizeof(struct kvt_owner_record));
	at = lay(sections, KVT_LSECTION_PENDING, at, c->n_pending + 1ull,
		 sizeof(struct kvt_pending_record));
	at = lay(sections, KVT_LSECTION_OPENED, at, (c->max_sessions + 1ull) * opened_words(c),
		 sizeof(uint64_t));
	at = lay(sections, KVT_LSECTION_LABELS, at, c->max_namespaces, KVT_LABEL_BYTES);
	at = lay(sections, KVT_LSECTION_UNDO, at,
		 sizeof(struct kvt_undo_header) / sizeof(uint64_t) + kvt_undo_capacity(c),
		 sizeof(uint64_t));
	at = lay(sections, KVT_LSECTION_MEMBERS, at, kvt_core_members(c) + 1ull,
		 sizeof(struct kvt_member_record));
	return lay(sections, KVT_LSECTION_TALLIES, at, kvt_tally_rows(c),
		   sizeof(struct kvt_tally));
}

/** Hand out scratch memory piece by piece; with base NULL only counts. */
struct scratch {
	char *base;
	uint64_t at;
};

static void *carve(struct scratch *scratch, uint64_t count, uint64_t bytes)
{
	void *piece = scratch->base ? scratch->base + scratch->at : NULL;

	scratch->at = next_line(scratch->at + count * bytes);
	return piece;
}

static void carve_slots(struct kvt_slots *slots, const struct kvt_core_config *c,
			struct scratch *scratch)
{
	uint64_t words = (c->n_slots + 64ull) / 64 + 1;

	slots->n_slots = c->n_slots;
	slots->length = carve(scratch, c->n_slots, sizeof(uint32_t));
	slots->first = carve(scratch, c->n_slots, sizeof(uint32_t));
	slots->next = carve(scratch, c->n_slots, sizeof(uint32_t));
	slots->prev = carve(scratch, c->n_slots, sizeof(uint32_t));
	slots->run = carve(scratch, c->n_slots, sizeof(uint32_t));
	slots->free_head = carve(scratch, words, sizeof(uint64_t));
	slots->free_tail = carve(scratch, words, sizeof(uint64_t));
	slots->run_head = carve(scratch, words, sizeof(uint64_t));
}

/** The most records that a rebuild has to bring into an order. */
static uint64_t sort_count(const struct kvt_core_config *c)
{
	uint64_t n = c->max_nodes;

	n = n > c->n_leases + 1ull ? n : c->n_leases + 1ull;
	return n > c->n_pending + 1ull ? n : c->n_pending + 1ull;
}

/** Carve the arrays of the audit's shadow. `shadow`: NULL only counts. */
static void carve_shadow(struct kvt_core *shadow, const struct kvt_core_config *c,
			 struct scratch *scratch)
{
	struct kvt_core probe;

	if (!shadow)
		shadow = &probe;
	carve_slots(&shadow->slots, c, scratch);
#define CARVE(array_, n_) shadow->array_ = carve(scratch, n_, sizeof(*shadow->array_));
	KVT_SHADOW_COPIES(CARVE)
	KVT_SHADOW_ZEROED(CARVE)
#undef CARVE
	shadow->buckets = carve(scratch, bucket_count(c), sizeof(kvt_bucket));
	shadow->heap.nodes = carve(scratch, c->max_nodes, sizeof(uint32_t));
	shadow->expiry.nodes = carve(scratch, c->max_nodes, sizeof(uint32_t));
	shadow->over.nodes = carve(scratch, KVT_LIMITED_SPACES(c), sizeof(uint32_t));
	shadow->detached = carve(scratch, c->max_nodes, sizeof(uint32_t));
	shadow->compact = carve(scratch, c->max_nodes, sizeof(uint32_t));
}

/** Carve what operations look up anywhere in: the caller may put it on huge pages. */
static void carve_hot(struct kvt_core *core, const struct kvt_core_config *c,
		      struct scratch *scratch)
{
	carve_slots(&core->slots, c, scratch);
	core->cut_below = carve(scratch, c->max_nodes, sizeof(uint32_t));
	core->sealers = carve(scratch, c->max_nodes, sizeof(uint32_t));
	core->sides_in = carve(scratch, KVT_SIDED_NODES(c), sizeof(uint32_t));
	core->side_top = carve(scratch, KVT_SIDED_NODES(c), sizeof(uint32_t));
	core->remains = carve(scratch, c->max_nodes, sizeof(struct kvt_remains));
	core->undo.nodes = carve(scratch, c->max_nodes, sizeof(uint32_t));
	core->undo.touches = carve(scratch, c->max_nodes, sizeof(uint32_t));
	core->undo.freed = carve(scratch, c->n_slots / 32 + 1ull, sizeof(uint64_t));
}

static struct kvt_core_sizes carve_scratch(struct kvt_core *core, const struct kvt_core_config *c,
					   void *base)
{
	struct scratch scratch = { base, next_line(sizeof(struct kvt_core)) };
	uint64_t hot, shadow;

	carve_hot(core, c, &scratch);
	hot = scratch.at;
	core->heap.nodes = carve(&scratch, c->max_nodes, sizeof(uint32_t));
	core->expiry.nodes = carve(&scratch, c->max_nodes, sizeof(uint32_t));
	core->leaves = carve(&scratch, KVT_LIMITED_NODES(c), sizeof(*core->leaves));
	core->leaves_in = carve(&scratch, KVT_LIMITED_SPACES(c), sizeof(uint32_t));
	core->over_at = carve(&scratch, KVT_LIMITED_SPACES(c), sizeof(uint32_t));
	core->over.nodes = carve(&scratch, KVT_LIMITED_SPACES(c), sizeof(uint32_t));
	core->detached = carve(&scratch, c->max_nodes, sizeof(uint32_t));
	core->compact = carve(&scratch, c->max_nodes, sizeof(uint32_t));
	core->views = carve(&scratch, c->max_sessions + 1ull, sizeof(struct kvt_core_view));
	core->groups = carve(&scratch, c->max_sessions + 1ull, sizeof(*core->groups));
	core->lease_stamp = carve(&scratch, c->n_leases + 1ull, sizeof(uint32_t));
	core->progress = carve(&scratch, c->n_leases + 1ull, sizeof(*core->progress));
	core->session_stamp = carve(&scratch, c->max_sessions + 1ull, sizeof(uint32_t));
	core->op_pages = carve(&scratch, c->max_op_keys, sizeof(uint32_t));
	core->op_keys = carve(&scratch, c->max_op_keys + c->page_size, sizeof(uint32_t));
	core->op_sides = carve(&scratch, c->n_sides ? c->max_op_keys : 0, sizeof(uint32_t));
	core->log_keys = carve(&scratch, c->max_op_keys, sizeof(uint32_t));
	core->path_list = carve(&scratch, c->n_pages, sizeof(uint32_t));
	core->page_mark = carve(&scratch, c->n_pages / 64 + 1, sizeof(uint64_t));
	/* One operation can evict everything: each node once trimmed, once freed, and its own
	 * new runs on top; each side page that was let go. */
	core->max_events = 4 * c->max_nodes + 64 + (c->n_sides ? c->n_pages : 0);
	core->let = carve(&scratch, c->n_sides ? c->n_pages : 0, sizeof(*core->let));
	core->pointed = carve(&scratch, c->n_leases + 1ull, sizeof(uint32_t));
	core->pointed_at = carve(&scratch, c->n_leases + 1ull, sizeof(uint32_t));
	core->let_of = carve(&scratch, c->n_sides ? c->n_leases + 1ull : 0, sizeof(uint32_t));
	core->events = carve(&scratch, core->max_events, sizeof(struct kvt_event));
	core->in = carve(&scratch, c->n_pages, sizeof(uint32_t));
	core->out = carve(&scratch, c->n_pages, sizeof(uint32_t));
	core->lasting = carve(&scratch, c->n_pages, sizeof(uint32_t));
	core->slots_due = carve(&scratch, c->max_nodes, sizeof(struct kvt_run));
	core->undo.leases = carve(&scratch, c->n_leases + 1ull, sizeof(uint32_t));
	core->n_sort = (uint32_t)sort_count(c);
	core->sort = carve(&scratch, 2ull * core->n_sort, sizeof(struct kvt_sort));
	shadow = scratch.at;
	core->shadow = carve(&scratch, 1, sizeof(*core->shadow));
	carve_shadow(core->shadow, c, &scratch);
	return (struct kvt_core_sizes){ .scratch_bytes = scratch.at, .scratch_hot_bytes = hot,
					.audit_bytes = scratch.at - shadow };
}

static const char *sides_problem(const struct kvt_core_config *c)
{
	uint32_t sum = 0;

	if (c->n_sides > KVT_MAX_SIDES)
		return "there may be at most 32 kinds of side pages";
	for (uint32_t kind = 0; kind < c->n_sides; kind++) {
		if (c->side_pages[kind] < 1 || c->side_pages[kind] > KVT_MAX_SIDE_PAGES / 2)
			return "a kind of side pages must need from 1 to 1024 trailing pages";
		sum += c->side_pages[kind];
	}
	return sum > KVT_MAX_SIDE_PAGES ?
		       "all kinds of side pages together may need at most 2048 trailing pages" :
		       NULL;
}

static const char *config_problem(const struct kvt_core_config *c)
{
	if (c->page_size < 1 || c->page_size > KVT_MAX_PAGE_SIZE)
		return "page_size must be from 1 to 4096";
	if (c->n_pages < 2 || c->n_pages > 1u << 30)
		return "n_pages must be from 2 (one scratch page, one page) to 2^30";
	if (c->n_slots <= c->n_pages || c->n_slots > 1u << 31)
		return "n_slots must be above n_pages";
	if (c->reserve_pages >= c->n_pages)
		return "reserve_pages must be below n_pages";
	if (c->max_nodes < 8 || c->max_nodes > 1u << 30)
		return "max_nodes must be from 8 to 2^30";
	if (c->max_namespaces < 2 || c->max_namespaces > 1u << 20)
		return "max_namespaces must be from 2 to 2^20";
	if (c->max_sessions < 1 || c->max_sessions > 65535)
		return "max_sessions must be from 1 to 65535";
	if (c->max_members > 1u << 16)
		return "max_members must be at most 65536";
	if (c->n_leases < 1 || c->n_leases > 1u << 24)
		return "total_leases must be from 1 to 2^24";
	if (c->n_pending < 1 || c->n_pending > 1u << 24)
		return "n_pending must be from 1 to 2^24";
	if (c->max_op_keys < 1 || c->max_op_keys > 1u << 31)
		return "max_op_keys must be from 1 to 2^31";
	if (c->policy >= KVT_POLICY_COUNT)
		return "unknown eviction policy";
	return sides_problem(c);
}

int kvt_core_plan(struct kvt_core_config *config, struct kvt_core_sizes *ret_sizes,
		  const char **ret_why)
{
	struct kvt_section sections[KVT_LEDGER_SECTIONS] = { { 0 } };
	struct kvt_core probe = { 0 };
	const char *why;

	fill_defaults(config);
	why = config_problem(config);
	if (why) {
		if (ret_why)
			*ret_why = why;
		return -EINVAL;
	}
	*ret_sizes = carve_scratch(&probe, config, NULL);
	ret_sizes->arena_bytes = lay_arena(config, sections);
	ret_sizes->ledger_bytes = lay_ledger(config, sections);
	return 0;
}

static void fill_arena(struct kvt_core *core, void *memory, uint64_t now_ns)
{
	const struct kvt_core_config *c = &core->config;
	struct kvt_arena_header *header = memory;

	header->abi = KVT_ABI;
	header->header_bytes = sizeof(*header);
	header->layout = kvt_layout();
	memcpy(header->instance, c->instance, sizeof(header->instance));
	header->hash_seed = c->hash_seed;
	header->generation = 1;
	header->page_size = c->page_size;
	header->n_pages = c->n_pages;
	header->n_slots = c->n_slots;
	header->max_nodes = c->max_nodes;
	header->n_buckets = bucket_count(c);
	header->max_namespaces = c->max_namespaces;
	header->n_sections = KVT_ARENA_SECTIONS;
	header->policy = c->policy;
	header->started_ns = now_ns;
	header->epoch = 1;
	memcpy(header->fingerprint, c->fingerprint, sizeof(header->fingerprint));
	header->n_sides = c->n_sides;
	memcpy(header->side_pages, c->side_pages, sizeof(header->side_pages));
	header->object_bytes = lay_arena(c, header->sections);
}

static void fill_ledger(struct kvt_core *core, void *memory)
{
	const struct kvt_core_config *c = &core->config;
	struct kvt_ledger_header *header = memory;

	header->abi = KVT_ABI;
	header->header_bytes = sizeof(*header);
	header->layout = kvt_ledger_layout();
	memcpy(header->instance, c->instance, sizeof(header->instance));
	memcpy(header->boot_id, c->boot_id, sizeof(header->boot_id));
	header->max_sessions = c->max_sessions;
	header->n_leases = c->n_leases;
	header->n_pending = c->n_pending;
	header->n_sections = KVT_LEDGER_SECTIONS;
	header->object_bytes = lay_ledger(c, header->sections);
}

/** Set the arrays' addresses by the configuration, not by the headers, which are not trusted. */
static void bind(struct kvt_core *core, void *arena, void *ledger)
{
	const struct kvt_core_config *c = &core->config;
	struct kvt_section sections[KVT_LEDGER_SECTIONS] = { { 0 } };
	char *bytes = arena;

	core->undo.arena_bytes = lay_arena(c, sections);
	core->arena = arena;
	core->count = &core->arena->counters;
	core->nodes = (void *)(bytes + sections[KVT_SECTION_NODES].offset);
	core->buckets = (void *)(bytes + sections[KVT_SECTION_BUCKETS].offset);
	core->bucket_mask = bucket_count(c) - 1;
	core->slot_keys = (void *)(bytes + sections[KVT_SECTION_SLOT_KEYS].offset);
	core->slot_pages = (void *)(bytes + sections[KVT_SECTION_SLOT_PAGES].offset);
	core->pages = (void *)(bytes + sections[KVT_SECTION_PAGES].offset);
	core->namespaces = (void *)(bytes + sections[KVT_SECTION_NAMESPACES].offset);
	core->root_keys = (void *)(bytes + sections[KVT_SECTION_ROOT_KEYS].offset);
	core->sides = (void *)(bytes + sections[KVT_SECTION_SIDES].offset);

	bytes = ledger;
	lay_ledger(c, sections);
	core->ledger = ledger;
	core->sessions = (void *)(bytes + sections[KVT_LSECTION_SESSIONS].offset);
	core->leases = (void *)(bytes + sections[KVT_LSECTION_LEASES].offset);
	core->tails = (void *)(bytes + sections[KVT_LSECTION_TAILS].offset);
	core->owners = (void *)(bytes + sections[KVT_LSECTION_OWNERS].offset);
	core->pending = (void *)(bytes + sections[KVT_LSECTION_PENDING].offset);
	core->opened = (void *)(bytes + sections[KVT_LSECTION_OPENED].offset);
	core->opened_words = opened_words(c);
	core->labels = (void *)(bytes + sections[KVT_LSECTION_LABELS].offset);
	core->members = (void *)(bytes + sections[KVT_LSECTION_MEMBERS].offset);
	core->tallies = (void *)(bytes + sections[KVT_LSECTION_TALLIES].offset);
	core->undo.header = (void *)(bytes + sections[KVT_LSECTION_UNDO].offset);
	core->undo.words = (uint64_t *)(core->undo.header + 1);
	core->undo.capacity = kvt_undo_capacity(c);
}

int kvt_core_prepare(struct kvt_core *core, const struct kvt_core_config *config, void *arena,
		     void *ledger, const struct kvt_core_hooks *hooks, uint64_t now_ns)
{
	struct kvt_core_config filled = *config;
	struct kvt_core_sizes sizes;
	int error = kvt_core_plan(&filled, &sizes, NULL);

	if (error)
		return error;
	core->magic = KVT_CORE_MAGIC;
	core->config = filled;
	core->ps = filled.page_size;
	core->n_sides = filled.n_sides;
	for (uint32_t kind = 0; kind < filled.n_sides; kind++)
		if (filled.side_pages[kind] > core->side_most)
			core->side_most = filled.side_pages[kind];
	if (hooks)
		core->hooks = *hooks;
	core->now_ns = now_ns;
	core->wake_at_ns = KVT_NEVER;
	carve_scratch(core, &filled, core);
	core->expiry.of = KVT_HEAP_EXPIRY;
	core->over.of = KVT_HEAP_OVER;
	core->limited = KVT_LIMITED(&core->config);
	core->leaves_ordered = core->limited || !kvt_policies[core->config.policy].list;
	bind(core, arena, ledger);
	return 0;
}

void kvt_core_layout(const struct kvt_core_config *config, struct kvt_arena_header *ret_arena,
		     struct kvt_ledger_header *ret_ledger)
{
	struct kvt_core probe = { .config = *config };

	memset(ret_arena, 0, sizeof(*ret_arena));
	memset(ret_ledger, 0, sizeof(*ret_ledger));
	fill_arena(&probe, ret_arena, 0);
	fill_ledger(&probe, ret_ledger);
}

/** Everything free, lowest numbers first. */
static void fill_free_lists(struct kvt_core *core)
{
	const struct kvt_core_config *c = &core->config;

	core->pages[0].state = KVT_PAGE_SCRATCH;
	core->free_page = c->n_pages > 1 ? 1 : KVT_NONE;
	for (uint32_t page = 1; page < c->n_pages; page++)
		core->owners[page].next = page + 1 < c->n_pages ? page + 1 : KVT_NONE;
	core->count->free_pages = c->n_pages - 1;

	core->free_nodes = (struct kvt_fifo){ 1, c->max_nodes - 1, c->max_nodes - 1 };
	for (uint32_t node = 1; node < c->max_nodes; node++)
		core->nodes[node].next_sibling = node + 1 < c->max_nodes ? node + 1 : KVT_NONE;
	core->free_leases = (struct kvt_fifo){ 1, c->n_leases, c->n_leases };
	core->free_pending = (struct kvt_fifo){ 1, c->n_pending, c->n_pending };
	for (uint32_t i = 1; i <= c->n_pending; i++)
		core->pending[i].next = i < c->n_pending ? i + 1 : KVT_NONE;
	kvt_slots_init(&core->slots);
}

int kvt_core_init(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		  void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		  uint64_t now_ns)
{
	struct kvt_core *core = scratch;
	int error = kvt_core_prepare(core, config, arena, ledger, hooks, now_ns);

	if (error)
		return error;
	fill_arena(core, arena, now_ns);
	fill_ledger(core, ledger);
	fill_free_lists(core);
	core->arena->magic = KVT_ARENA_MAGIC;
	core->ledger->magic = KVT_LEDGER_MAGIC;
	*ret_core = core;
	return 0;
}

void kvt_core_publish(struct kvt_core *core, uint32_t state)
{
	/* Pairs with the acquire in the attach code: everything before a READY is visible. */
	kvt_store_release(&core->arena->state, state);
}
