/* SPDX-License-Identifier: Apache-2.0 */

/* Recover a successor from memory at some moment and compare its facts with those of the last
 * effect.
 *
 * Inputs: arena and ledger of the running core, copied. Invariants: all facts are equal byte by
 * byte after blank_*() cleared what carries no meaning; generations are equal or never seen before.
 * Caller: main.c, before each store. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"
#include "daemon/core/undo_log.h"
#include "tests/core/crash/crash.h"
#include "tests/lib/zeroed.h"

bool crash_check_init(struct crash_check *check, const struct kvt_core_config *config,
		      const void *arena, const void *ledger)
{
	struct kvt_core_config filled = *config;

	*check = (struct crash_check){ .config = config, .arena = arena, .ledger = ledger };
	if (kvt_core_plan(&filled, &check->sizes, NULL))
		return false;
	check->arena_copy = zeroed(check->sizes.arena_bytes);
	check->ledger_copy = zeroed(check->sizes.ledger_bytes);
	check->arena_last = zeroed(check->sizes.arena_bytes);
	check->ledger_last = zeroed(check->sizes.ledger_bytes);
	check->scratch = zeroed(check->sizes.scratch_bytes);
	return true;
}

void crash_check_free(struct crash_check *check)
{
	free(check->arena_copy);
	free(check->ledger_copy);
	free(check->arena_last);
	free(check->ledger_last);
	free(check->scratch);
}

/* ---- clear what carries no meaning, so that the rest can be compared byte by byte */

static void blank_nodes(struct kvt_core *core)
{
	for (uint32_t id = 0; id < core->config.max_nodes; id++) {
		struct kvt_node *node = &core->nodes[id];

		node->version = 0;
		if (node->flags & KVT_NODE_LIVE)
			continue;
		*node = (struct kvt_node){
			.created = node->created,
			.next_sibling = node->next_sibling,
			.generation = node->generation,
		};
	}
}

static void blank_slots(struct kvt_core *core)
{
	for (uint32_t slot = 0; slot < core->config.n_slots; slot++) {
		uint32_t id = slot ? kvt_slots_node_of(&core->slots, slot) : KVT_NONE;
		const struct kvt_node *node = &core->nodes[id];

		if (id != KVT_NONE && slot < node->first_slot + node->n_slots &&
		    slot >= node->first_slot) {
			if (slot >= node->first_slot + node->sealed)
				core->slot_pages[slot] = KVT_NONE;
			continue;
		}
		core->slot_pages[slot] = KVT_NONE;
		memset(kvt_keys_at(core, slot), 0, core->ps * sizeof(uint32_t));
	}
}

static void blank_pages(struct kvt_core *core)
{
	for (uint32_t page = 0; page < core->config.n_pages; page++)
		if (core->pages[page].state != KVT_PAGE_CACHED)
			core->pages[page].sealer = core->pages[page].parent = 0;
}

static void blank_ledger(struct kvt_core *core)
{
	for (uint32_t id = 0; id <= core->config.n_leases; id++) {
		const struct kvt_lease_record *lease = &core->leases[id];
		uint32_t n = lease->kind == KVT_LEASE_BEGIN ? lease->known % core->ps : 0;

		memset(core->tails + (size_t)id * core->ps + n, 0,
		       (core->ps - n) * sizeof(uint32_t));
	}
	for (uint32_t id = 0; id <= core->config.max_sessions; id++) {
		struct kvt_session_record *session = &core->sessions[id];

		/* Deaths are charged outside of effects; main.c checks them. */
		session->fatal_entry = session->deaths = 0;
		/* The last but one is in the ring. */
		memset(&session->last_cqe[session->cq_done & 1], 0, sizeof(struct kvt_cqe));
		if (session->state == KVT_SESSION_FREE || session->state == KVT_SESSION_DEAD ||
		    session->state == KVT_SESSION_DYING || session->cq_done == 0)
			memset(session->last_cqe, 0, sizeof(session->last_cqe));
	}
	for (uint32_t id = 0; id < core->config.max_namespaces; id++) {
		if (core->namespaces[id].flags)
			continue;
		memset(core->labels[id], 0, sizeof(core->labels[id]));
		core->namespaces[id] = (struct kvt_namespace_record){ 0 };
	}
	for (uint32_t id = 1; id <= core->config.n_pending; id++)
		core->pending[id].deaths = 0;
	/* They change outside of effects; members_whole() has checked them. */
	memset(core->members, 0,
	       (kvt_core_members(&core->config) + 1) * sizeof(*core->members));
	core->undo.header->words = 0;
	memset(core->undo.header, 0,
	       sizeof(*core->undo.header) + core->undo.capacity * sizeof(uint64_t));
}

static void blank(struct kvt_core *core)
{
	blank_nodes(core);
	blank_slots(core);
	blank_pages(core);
	blank_ledger(core);
	core->arena->mutation = 0;
	core->arena->generation = 0;
}

/* ---- one successor */

static bool fail(struct crash_check *check, const char *what, uint64_t a, uint64_t b)
{
	check->failed = true;
	snprintf(check->why, sizeof(check->why), "%s (%llu, %llu)", what, (unsigned long long)a,
		 (unsigned long long)b);
	return false;
}

/** A generation is unchanged, or higher than any that a reader can have seen. */
static bool generations_ok(struct crash_check *check, struct kvt_core *core)
{
	uint64_t nodes = (uint64_t)((char *)core->nodes - (char *)core->arena);
	const struct kvt_node *seen = (const void *)(check->arena + nodes);
	struct kvt_node *last = (void *)(check->arena_last + nodes);

	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		if (core->nodes[id].generation != last[id].generation &&
		    core->nodes[id].generation <= seen[id].generation)
			return fail(check, "a generation was seen and will come again", id,
				    core->nodes[id].generation);
		core->nodes[id].generation = last[id].generation;
	}
	return true;
}

/** A successor sees only complete records of a group. */
static bool members_whole(struct crash_check *check, const struct kvt_core *core)
{
	for (uint32_t id = 1; id <= kvt_core_members(&core->config); id++) {
		const struct kvt_member_record *member = kvt_core_member(core, id);

		if (!member)
			continue;
		if ((id <= core->config.max_sessions ? member->rank != 0 || member->session != id :
		     !member->rank || member->rank >= member->n_ranks || !member->secret[0]) ||
		    (member->state == KVT_MEMBER_JOINED && (!member->pid || !member->label[0])))
			return fail(check, "half a member", id, member->state);
	}
	return true;
}

static bool same(struct crash_check *check, const char *what, const struct kvt_section *sections,
		 uint32_t n_sections, const char *now, const char *last, uint64_t bytes)
{
	uint64_t at = 0;
	uint32_t section = 0;

	if (memcmp(now, last, bytes) == 0)
		return true;
	while (memcmp(now + at, last + at, 4) == 0)
		at += 4;
	while (section < n_sections && at >= sections[section].offset + sections[section].bytes)
		section++;
	check->failed = true;
	if (section < n_sections && at >= sections[section].offset)
		snprintf(check->why, sizeof(check->why), "the %s differs from the last effect's: "
			 "section %u, record %llu, byte %llu: %u, was %u", what, section,
			 (unsigned long long)((at - sections[section].offset) /
					      sections[section].entry_bytes),
			 (unsigned long long)((at - sections[section].offset) %
					      sections[section].entry_bytes),
			 *(const uint32_t *)(now + at), *(const uint32_t *)(last + at));
	else
		snprintf(check->why, sizeof(check->why), "the %s differs from the last effect's at "
			 "byte %llu", what, (unsigned long long)at);
	return false;
}

static bool compare(struct crash_check *check, struct kvt_core *core)
{
	return generations_ok(check, core) &&
	       same(check, "arena", core->arena->sections, KVT_ARENA_SECTIONS,
		    check->arena_copy, check->arena_last, check->sizes.arena_bytes) &&
	       same(check, "ledger", core->ledger->sections, KVT_LEDGER_SECTIONS,
		    check->ledger_copy, check->ledger_last, check->sizes.ledger_bytes);
}

static void tear(struct crash_check *check, const void *old_at, const void *old, size_t n_old)
{
	size_t in_arena = (size_t)((const char *)old_at - check->arena);
	size_t in_ledger = (size_t)((const char *)old_at - check->ledger);

	if (in_arena < check->sizes.arena_bytes)
		memcpy(check->arena_copy + in_arena, old, n_old);
	else
		memcpy(check->ledger_copy + in_ledger, old, n_old);
}

bool crash_check_now(struct crash_check *check, const void *old_at, const void *old, size_t n_old)
{
	const struct kvt_arena_header *header = (const void *)check->arena;
	struct kvt_core_adoption adoption = { 0 };
	struct kvt_core *core;
	char why[256] = "";
	int error;

	if (check->failed)
		return false;
	check->n_checks++;
	memcpy(check->arena_copy, check->arena, check->sizes.arena_bytes);
	memcpy(check->ledger_copy, check->ledger, check->sizes.ledger_bytes);
	memset(check->scratch, 0, check->sizes.scratch_bytes);
	if (n_old)
		tear(check, old_at, old, n_old);
	error = plain_core_adopt(&core, check->config, check->arena_copy, check->ledger_copy,
				 check->scratch, NULL, check->now_ns, &adoption, why, sizeof(why));
	if (error) {
		check->failed = true;
		snprintf(check->why, sizeof(check->why), "adoption: %d, %s", error, why);
		return false;
	}
	check->n_rolled_back += adoption.rolled_back;
	if (!members_whole(check, core))
		return false;
	blank(core);
	core->ledger->seq--; /* the recovery's own */
	if (check->known && (header->mutation & 1 || header->mutation == check->mutation))
		return compare(check, core);
	check->known = true;
	check->mutation = header->mutation;
	memcpy(check->arena_last, check->arena_copy, check->sizes.arena_bytes);
	memcpy(check->ledger_last, check->ledger_copy, check->sizes.ledger_bytes);
	return true;
}
