/* SPDX-License-Identifier: Apache-2.0 */

/* Continuing with the arena and the ledger of a daemon that ended.
 *
 * Inputs are the two objects, mapped, and the configuration. Refused before anything is touched:
 * objects of another build, geometry, model or boot. Refused later, with `mutation` left odd: facts
 * that contradict each other. The caller is kvtrunkd at its start (daemon/serve/adopt.c). */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/effect.h"
#include "daemon/core/plan.h"
#include "daemon/core/recover.h"
#include "daemon/core/running.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"
#include "shm/layout.h"

struct kvt_core_adoption;

static int __attribute__((format(printf, 3, 4))) stale(char *why, size_t why_size,
						       const char *format, ...)
{
	va_list args;

	if (why_size > 0) {
		va_start(args, format);
		vsnprintf(why, why_size, format, args);
		va_end(args);
	}
	return -ESTALE;
}

/** The common part of both headers. */
struct build {
	uint64_t magic;
	uint32_t abi;
	uint32_t header_bytes;
	uint64_t layout;
};

/** Check that the bytes are of this kind and build. `wanted` has no magic yet. */
static int check_build(const char *name, const void *object, uint64_t magic, const void *wanted,
		       char *why, size_t why_size)
{
	struct build found;
	struct build want;

	memcpy(&found, object, sizeof(found));
	memcpy(&want, wanted, sizeof(want));
	if (found.magic != magic)
		return stale(why, why_size, "the %s is not one: its magic is %llx", name,
			     (unsigned long long)found.magic);
	if (found.abi != want.abi || found.layout != want.layout ||
	    found.header_bytes != want.header_bytes)
		return stale(why, why_size, "the %s is of another build: ABI %u, layout %llx; this "
			     "one has ABI %u, layout %llx", name, found.abi,
			     (unsigned long long)found.layout, want.abi,
			     (unsigned long long)want.layout);
	return 0;
}

struct kvt_starts kvt_core_starts_of(const void *arena_memory, uint64_t arena_bytes,
				     const void *ledger_memory, uint64_t ledger_bytes)
{
	const struct kvt_arena_header *arena = arena_memory;
	const struct kvt_ledger_header *ledger = ledger_memory;
	struct kvt_starts starts = { 0 };

	if (arena_bytes < sizeof(*arena) || ledger_bytes < sizeof(*ledger) ||
	    arena->magic != KVT_ARENA_MAGIC || ledger->magic != KVT_LEDGER_MAGIC ||
	    arena->layout != kvt_layout() || ledger->layout != kvt_ledger_layout())
		return starts;
	starts = ledger->starts;
	starts.adopted += arena->generation - 1;
	return starts;
}

static int check_number(const char *name, uint64_t found, uint64_t wanted, char *why,
			size_t why_size)
{
	if (found == wanted)
		return 0;
	return stale(why, why_size, "%s was %llu and is configured as %llu", name,
		     (unsigned long long)found, (unsigned long long)wanted);
}

static int check_geometry(const struct kvt_arena_header *arena,
			  const struct kvt_ledger_header *ledger,
			  const struct kvt_arena_header *want,
			  const struct kvt_ledger_header *book, char *why, size_t why_size)
{
	const struct {
		const char *name;
		uint64_t found, wanted;
	} numbers[] = {
		{ "page_size", arena->page_size, want->page_size },
		{ "n_pages", arena->n_pages, want->n_pages },
		{ "n_slots", arena->n_slots, want->n_slots },
		{ "max_nodes", arena->max_nodes, want->max_nodes },
		{ "max_namespaces", arena->max_namespaces, want->max_namespaces },
		{ "the number of sides", arena->n_sides, want->n_sides },
		{ "the number of buckets", arena->n_buckets, want->n_buckets },
		{ "max_sessions", ledger->max_sessions, book->max_sessions },
		{ "total_leases", ledger->n_leases, book->n_leases },
		{ "the number of pending records", ledger->n_pending, book->n_pending },
		{ "the size of the arena", arena->object_bytes, want->object_bytes },
		{ "the size of the ledger", ledger->object_bytes, book->object_bytes },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		int error = check_number(numbers[i].name, numbers[i].found, numbers[i].wanted, why,
					 why_size);

		if (error)
			return error;
	}
	if (memcmp(arena->side_pages, want->side_pages, sizeof(want->side_pages)) != 0)
		return stale(why, why_size, "sides need other numbers of pages");
	if (memcmp(arena->sections, want->sections, sizeof(want->sections)) != 0 ||
	    memcmp(ledger->sections, book->sections, sizeof(book->sections)) != 0 ||
	    arena->n_sections != want->n_sections || ledger->n_sections != book->n_sections)
		return stale(why, why_size, "the sections lie elsewhere");
	return 0;
}

int kvt_core_adoptable(const struct kvt_core_config *config, const void *arena_memory,
		       const void *ledger_memory, char *why, size_t why_size)
{
	const struct kvt_arena_header *arena = arena_memory;
	const struct kvt_ledger_header *ledger = ledger_memory;
	struct kvt_core_config filled = *config;
	struct kvt_core_sizes sizes;
	struct kvt_ledger_header book;
	struct kvt_arena_header want;
	const char *problem = "";
	int error = kvt_core_plan(&filled, &sizes, &problem);

	if (error) {
		stale(why, why_size, "%s", problem);
		return error;
	}
	kvt_core_layout(&filled, &want, &book);
	error = check_build("arena", arena, KVT_ARENA_MAGIC, &want, why, why_size);
	if (!error)
		error = check_build("ledger", ledger, KVT_LEDGER_MAGIC, &book, why, why_size);
	if (!error)
		error = check_geometry(arena, ledger, &want, &book, why, why_size);
	if (error)
		return error;
	if (strncmp(arena->fingerprint, want.fingerprint, sizeof(want.fingerprint)) != 0)
		return stale(why, why_size, "the fingerprint was \"%.*s\" and is \"%.*s\"",
			     (int)sizeof(want.fingerprint), arena->fingerprint,
			     (int)sizeof(want.fingerprint), want.fingerprint);
	if (memcmp(ledger->boot_id, book.boot_id, sizeof(book.boot_id)) != 0)
		return stale(why, why_size, "the machine was booted since: the boot id is "
			     "another");
	if (memcmp(arena->instance, ledger->instance, sizeof(arena->instance)) != 0)
		return stale(why, why_size, "arena and ledger are of different instances");
	if (arena->state == KVT_ARENA_STARTING || arena->state >= KVT_ARENA_GONE)
		return stale(why, why_size, "the arena is in state %u: %s", arena->state,
			     arena->state == KVT_ARENA_STARTING ?
				     "its daemon died before it was ready" :
				     "its instance has ended");
	return 0;
}

static void summarize(const struct kvt_core *core, bool rolled_back, uint64_t died_in,
		      struct kvt_core_adoption *ret_adoption)
{
	uint32_t waiting = core->config.n_pending - core->free_pending.count;

	if (!ret_adoption)
		return;
	*ret_adoption = (struct kvt_core_adoption){
		.rolled_back = rolled_back,
		.sessions = (uint32_t)core->count->live_sessions,
		.leases = (uint32_t)core->count->live_leases,
		.waiting = waiting,
		.nodes = (uint32_t)core->count->live_nodes,
		.cached_pages = core->count->cached_pages,
		.generation = core->arena->generation,
		.died_in = died_in,
	};
}

/** Handles that were trimmed before the restart are stale. A node that was never used has none, and
 * its memory is not touched. */
static void forget_remains(struct kvt_core *core)
{
	for (uint32_t id = 1; id < core->config.max_nodes; id++) {
		const struct kvt_node *node = kvt_node_at(core, id);

		if (node->generation || node->flags & KVT_NODE_LIVE)
			core->remains[id] = (struct kvt_remains){ .born = node->generation,
								  .left = UINT32_MAX };
	}
}

/** Recover the state from the facts, inside a mutation. After a crash here the next successor finds
 * the same facts and the same log, and bumps the same generations. */
static int recover(struct kvt_core *core, bool *ret_rolled_back, uint64_t *ret_died_in,
		   struct kvt_why *why)
{
	int error = 0;

	kvt_record_start(core);
	*ret_rolled_back = core->arena->mutation & 1;
	if (*ret_rolled_back)
		error = kvt_undo_roll_back(core, why);
	else
		kvt_mutation_begin(core);
	if (!error)
		error = kvt_rebuild(core, why);
	if (error)
		return error;
	forget_remains(core);
	core->arena->generation++;
	core->arena->policy = core->config.policy;
	kvt_record_emit(core, KVT_REC_ADOPT, 0, *ret_rolled_back);
	kvt_mutation_end(core);
	kvt_spaces_limit(core);
	*ret_died_in = kvt_running_charge(core); /* later: no rollback may undo it */
	return 0;
}

int kvt_core_adopt(struct kvt_core **ret_core, const struct kvt_core_config *config, void *arena,
		   void *ledger, void *scratch, const struct kvt_core_hooks *hooks,
		   uint64_t now_ns, struct kvt_core_adoption *ret_adoption, char *why,
		   size_t why_size)
{
	struct kvt_why problem = { why, why_size };
	struct kvt_core *core = scratch;
	int error = kvt_core_adoptable(config, arena, ledger, why, why_size);
	uint64_t died_in = 0;
	bool rolled_back = false;

	if (error)
		return error;
	error = kvt_core_prepare(core, config, arena, ledger, hooks, now_ns);
	if (error)
		return error;
	memcpy(core->config.instance, core->arena->instance, sizeof(core->config.instance));
	core->config.hash_seed = core->arena->hash_seed;
	error = recover(core, &rolled_back, &died_in, &problem);
	if (error)
		return error;
	summarize(core, rolled_back, died_in, ret_adoption);
	*ret_core = core;
	return 0;
}
