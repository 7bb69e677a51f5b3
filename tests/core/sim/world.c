/* SPDX-License-Identifier: Apache-2.0 */

/* A small world from a seed: random numbers, a configuration, a core, an oracle, sessions. Memory
 * of a session is freed as soon as the core may not read it any more, so a sanitizer finds late
 * reads.
 *
 * Callers: main.c, hold.c, tests/core/crash/main.c. Invariant: equal seeds give equal runs. */

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/records.h"
#include "tests/core/sim/sim.h"
#include "tests/lib/zeroed.h"

bool sim_focus(void)
{
	return getenv("KVTSIM_FOCUS") != NULL;
}

static uint64_t next_random(struct sim *sim)
{
	uint64_t *s = sim->random, result = s[1] * 5, t = s[1] << 17;

	result = (result << 7 | result >> 57) * 9; /* xoshiro256** */
	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = s[3] << 45 | s[3] >> 19;
	return result;
}

static void seed_random(struct sim *sim)
{
	uint64_t x = sim->seed;

	for (int i = 0; i < 4; i++) { /* splitmix64 */
		uint64_t z = x += 0x9e3779b97f4a7c15ull;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
		z = (z ^ z >> 27) * 0x94d049bb133111ebull;
		sim->random[i] = z ^ z >> 31;
	}
}

uint32_t sim_below(struct sim *sim, uint32_t n)
{
	return n ? (uint32_t)(((next_random(sim) >> 32) * n) >> 32) : 0;
}

bool sim_chance(struct sim *sim, uint32_t per_mille)
{
	return sim_below(sim, 1000) < per_mille;
}

uint32_t sim_between(struct sim *sim, uint32_t least, uint32_t most)
{
	return most <= least ? least : least + sim_below(sim, most - least + 1);
}

bool sim_fail(struct sim *sim, const char *format, ...)
{
	va_list args;

	if (sim->failed)
		return false;
	sim->failed = true;
	va_start(args, format);
	vsnprintf(sim->why, sizeof(sim->why), format, args);
	va_end(args);
	return false;
}

/* Mostly a state or a short window; now and then longer than any path, or many kinds. */
static void choose_sides(struct sim *sim)
{
	struct kvt_core_config *c = &sim->config;

	if (!sim_chance(sim, 400))
		return;
	c->n_sides = sim_chance(sim, 800) ? sim_between(sim, 1, 2) :
					    sim_between(sim, 3, KVT_MAX_SIDES);
	for (uint32_t kind = 0; kind < c->n_sides; kind++)
		c->side_pages[kind] = sim_chance(sim, 600) ? 1 :
				      sim_chance(sim, 900) ? sim_between(sim, 2, 4) :
							     sim_between(sim, 5, 256);
}

/* Limit the cached pages of each namespace, and of the first one by its digest. */
static void choose_limits(struct sim *sim)
{
	struct kvt_core_config *c = &sim->config;

	if (!sim_chance(sim, 400))
		return;
	c->space_pages = sim_between(sim, 1, c->n_pages / 2);
	c->n_space_limits = sim_below(sim, 2);
	c->space_limits[0].pages = sim_below(sim, c->n_pages / 2);
	snprintf(c->space_limits[0].name, sizeof(c->space_limits[0].name), "%016x%016x", 1, 7);
}

/* Sequences that share points, some of many kinds, and few refusals: what concerns side pages
 * happens often. */
static void choose_focus(struct sim *sim)
{
	struct kvt_core_config *c = &sim->config;

	sim->many = sim_chance(sim, 300);
	c->page_size = sim_between(sim, 1, 3);
	c->n_pages = sim_between(sim, 40, 160) + (sim->many ? 200 : 0); /* some points fit */
	c->n_slots = sim_chance(sim, 200) ? c->n_pages + 1 :
		     sim_chance(sim, 700) ? 2 * c->n_pages : 0;
	c->max_nodes = c->n_pages + 24;
	c->max_namespaces = 2;
	c->max_sessions = sim_between(sim, 3, SIM_SESSIONS);
	c->n_leases = 24;
	c->n_pending = 12;
	c->max_leases = c->uid_sessions = c->max_opened = 0;
	c->max_private_pages = sim_chance(sim, 200) ? c->n_pages / 2 : 0;
	c->reserve_pages = sim_chance(sim, 200) ? c->n_pages / 4 : 0;
	c->coalesce_threshold = sim_chance(sim, 700) ? 0 : c->page_size;
	c->disabled = sim->wide = false;
	c->n_sides = sim->many ? sim_between(sim, SIM_MANY_KINDS, KVT_MAX_SIDES) :
				 sim_between(sim, 1, 2);
	for (uint32_t kind = 0; kind < c->n_sides; kind++)
		c->side_pages[kind] = kind == 1 ? sim_between(sim, 1, 2) : 1;
}

static void choose_config(struct sim *sim)
{
	struct kvt_core_config *c = &sim->config;
	static const uint32_t page_sizes[] = { 1, 1, 2, 4, 7, 8 };
	static const uint32_t wide_sizes[] = { 16, 64, 100, 256, 544 };
	static const uint32_t tiny_sizes[] = { 1, 2, 4, 7 };

	memset(c, 0, sizeof(*c));
	sim->wide = sim_chance(sim, 80);
	c->page_size = sim->wide ? wide_sizes[sim_below(sim, 5)] : page_sizes[sim_below(sim, 6)];
	c->n_pages = sim_chance(sim, 600) ? sim_between(sim, 8, 40) : sim_between(sim, 40, 300);
	c->max_nodes = sim_chance(sim, 400) ? sim_between(sim, 8, 24) :
					      sim_between(sim, 8, c->n_pages + 24);
	c->n_slots = sim_chance(sim, 300) ? c->n_pages + 1 :
		     sim_chance(sim, 500) ? 2 * c->n_pages : 0;
	c->max_namespaces = sim_between(sim, 2, 5);
	c->max_sessions = sim_between(sim, 1, SIM_SESSIONS);
	c->n_leases = sim_chance(sim, 300) ? sim_between(sim, 1, 4) : sim_between(sim, 5, 24);
	c->n_pending = sim_chance(sim, 300) ? 1 : sim_between(sim, 2, 12);
	c->max_leases = sim_chance(sim, 300) ? sim_between(sim, 1, 6) : 0;
	c->max_private_pages = sim_chance(sim, 300) ? sim_between(sim, 1, c->n_pages) : 0;
	c->soft_private = sim_chance(sim, 500);
	c->uid_sessions = sim_chance(sim, 300) ? sim_between(sim, 1, c->max_sessions) : 0;
	c->max_opened = sim_chance(sim, 300) ? sim_between(sim, 1, c->max_namespaces) : 0;
	c->reserve_pages = sim_chance(sim, 300) ? sim_between(sim, 1, c->n_pages - 1) : 0;
	c->max_op_keys = SIM_KEYS_AREA;
	c->policy = sim_chance(sim, 300) ? KVT_POLICY_LRU : sim_below(sim, KVT_POLICY_COUNT);
	c->slru_threshold = sim_between(sim, 1, 4);
	c->disabled = sim_chance(sim, 30);
	c->coalesce_threshold = sim_chance(sim, 600) ? 0 : sim_below(sim, 4 * c->page_size);
	/* The short ones are less than what a lease takes to seal more: it stalls by its gaps. */
	c->patience_ns = sim_chance(sim, 500) ? 1000000ull * sim_between(sim, 1, 3000) :
			 sim_chance(sim, 500) ? 1000ull * sim_between(sim, 1, 3000) : 0;
	c->hash_seed = sim_chance(sim, 100) ? 0 : next_random(sim);
	if (sim->tiny) {
		c->page_size = tiny_sizes[sim_below(sim, 4)];
		c->n_pages = sim_between(sim, 8, 32);
		c->reserve_pages = c->reserve_pages ? sim_between(sim, 1, c->n_pages - 1) : 0;
		c->n_slots = 0;
		c->max_nodes = sim_between(sim, 8, 28);
		c->n_leases = sim_between(sim, 3, 8);
		c->n_pending = sim_between(sim, 1, 4);
		c->max_op_keys = 256;
		sim->wide = false;
	}
	choose_sides(sim);
	if (sim->focus)
		choose_focus(sim);
	choose_limits(sim);
	sim->alphabet = sim_between(sim, 1, 3);
	sim->longest = sim_between(sim, 2 * c->page_size, c->n_pages * c->page_size);
	if (sim->longest > SIM_MAX_KEYS)
		sim->longest = SIM_MAX_KEYS;
	if (!sim->wide && sim->longest > 1536)
		sim->longest = 1536;
	sim->gentle = sim->focus || sim_chance(sim, 500);
	if (sim->focus)
		sim->longest = 12 * c->page_size;
}

bool sim_create(struct sim *sim)
{
	struct kvt_core_hooks hooks = { sim_on_complete, sim_on_record, sim };
	struct kvt_core_sizes sizes;
	const char *why = "";
	int error;

	seed_random(sim);
	sim->focus = sim_focus();
	choose_config(sim);
	if (kvt_core_plan(&sim->config, &sizes, &why))
		return sim_fail(sim, "plan: %s", why);
	sim->arena_bytes = sizes.arena_bytes;
	sim->ledger_bytes = sizes.ledger_bytes;
	sim->scratch_bytes = sizes.scratch_bytes;
	sim->arena = zeroed(sizes.arena_bytes);
	sim->ledger = zeroed(sizes.ledger_bytes);
	sim->scratch = zeroed(sizes.scratch_bytes);
	sim->before = zeroed(sizes.arena_bytes + sizes.ledger_bytes);
	sim->after = zeroed(sizes.arena_bytes + sizes.ledger_bytes);
	sim->now_ns = 1000;
	error = kvt_core_init(&sim->core, &sim->config, sim->arena, sim->ledger, sim->scratch,
			      &hooks, sim->now_ns);
	if (error)
		return sim_fail(sim, "init: %d", error);
	kvt_core_publish(sim->core, KVT_ARENA_READY);
	sim->oracle = kvt_oracle_create(&sim->config);
	if (!sim->oracle)
		return sim_fail(sim, "out of memory");
	sim->coverage->policy[sim->config.policy]++;
	return true;
}

/* Attach a session of a recovered core to its memory and its members' words. */
static void attach(struct sim *sim, uint32_t session)
{
	struct sim_session *s = &sim->sessions[session];

	kvt_core_session_attach(sim->core, session, &s->view);
	for (uint32_t i = 0; i < s->n_members; i++) {
		const struct kvt_member_record *member = kvt_core_member(sim->core, s->members[i]);

		if (!member || member->session != session || member->state != KVT_MEMBER_JOINED)
			sim_fail(sim, "member %u of session %u is lost", i, session);
		kvt_core_member_attach(sim->core, s->members[i], s->words[i]);
	}
}

/** The daemon dies and its successor takes over. */
void sim_restart(struct sim *sim)
{
	struct kvt_core_hooks hooks = { sim_on_complete, sim_on_record, sim };
	struct kvt_core *core;
	char why[512] = "";
	int error;

	if (sim->config.space_pages && !sim->steady && sim_chance(sim, 200))
		sim->config.space_pages = sim_between(sim, 1, sim->config.n_pages / 2);
	free(sim->heir); /* of one that died before it took over */
	sim->heir = zeroed(sim->scratch_bytes);
	error = kvt_core_adopt(&core, &sim->config, sim->arena, sim->ledger, sim->heir, &hooks,
			       sim->now_ns, NULL, why, sizeof(why));
	if (error) {
		sim_fail(sim, "adoption: %d, %s", error, why);
		return;
	}
	sim_feed_lost(sim);
	free(sim->scratch);
	sim->scratch = sim->heir;
	sim->heir = NULL;
	sim->core = core;
	sim->draining = false;
	for (uint32_t i = 1; i <= SIM_SESSIONS; i++)
		if (sim->sessions[i].open)
			attach(sim, i);
	if (!sim->failed)
		kvt_core_audit(core, sim_on_problem, sim);
}

void sim_view_free(struct sim_session *s)
{
	free((void *)(uintptr_t)s->view.keys);
	free(s->view.list);
	free((void *)(uintptr_t)s->view.fences);
	for (uint32_t i = 0; i < s->n_members; i++)
		free(s->words[i]);
	s->n_members = 0;
	free(s->pages);
	memset(&s->view, 0, sizeof(s->view));
	s->pages = NULL;
	s->n_pages = 0;
	s->n_leases = 0;
	s->n_waiting = 0;
}

void sim_destroy(struct sim *sim)
{
	for (uint32_t i = 1; i <= SIM_SESSIONS; i++)
		sim_view_free(&sim->sessions[i]);
	sim_feed_free(sim);
	kvt_oracle_destroy(sim->oracle);
	free(sim->arena);
	free(sim->ledger);
	free(sim->scratch);
	free(sim->heir);
	free(sim->before);
	free(sim->after);
}

/* Raise a generation that was seen: by one, and only once. */
static void renew(struct sim *sim, uint32_t session, uint32_t number, uint32_t seen)
{
	uint32_t first = 0, second = 0;

	if (kvt_core_namespace_renew(sim->core, session, number, seen, &first) ||
	    kvt_core_namespace_renew(sim->core, session, number, seen, &second) ||
	    first != seen + 1 || second != first)
		sim_fail(sim, "generation %u of namespace %u became %u, then %u", seen, number,
			 first, second);
}

void sim_namespace_open(struct sim *sim, uint32_t session)
{
	uint32_t which = 1 + sim_below(sim, sim->config.max_namespaces);
	uint64_t digest[2] = { which, 7 };
	uint32_t number = 0;
	struct sim_session *s = &sim->sessions[session];
	struct kvt_admin_namespace space;

	while (kvt_core_namespace_make_room(sim->core, session, digest, 1 + sim_below(sim, 8),
					    sim->now_ns)) {
		sim->coverage->rare[SIM_MADE_ROOM]++;
		if (sim_chance(sim, 100))
			return; /* it may ask again, when others have had turns */
	}
	if (kvt_core_namespace_open(sim->core, session, digest, "sim", sim->now_ns, &number)) {
		sim->coverage->rare[SIM_UNOPENED]++;
		return;
	}
	if (kvt_core_describe_namespace(sim->core, number, &space) && sim_chance(sim, 300))
		renew(sim, session, number, space.generation);
	for (uint32_t i = 0; i < s->n_namespaces; i++)
		if (s->namespaces[i] == number)
			return;
	if (s->n_namespaces < 8)
		s->namespaces[s->n_namespaces++] = number;
}

void sim_session_open(struct sim *sim)
{
	struct kvt_core_peer peer = {
		.pid = 100 + (int32_t)sim_below(sim, 1000),
		.uid = 1000 + sim_below(sim, 3),
		.privileged = sim_chance(sim, 500),
		.label = "sim",
	};
	struct kvt_core_view view = {
		.keys = calloc(SIM_KEYS_AREA + SIM_KEPT_AREA, sizeof(uint32_t)),
		.keys_count = SIM_KEYS_AREA + SIM_KEPT_AREA,
		.list = calloc(SIM_LIST_AREA, sizeof(uint32_t)),
		.list_count = SIM_LIST_AREA,
		.fences = calloc(KVT_FENCE_WORDS, sizeof(struct kvt_fence_word)),
	};
	uint32_t *pages = calloc(sim->config.n_pages, sizeof(*pages)), session = 0, present = 0;
	uint32_t own = 0;
	struct sim_session *s;
	int error;

	for (uint32_t i = 1; i <= SIM_SESSIONS; i++) {
		present += sim->sessions[i].present;
		own += sim->sessions[i].present && sim->sessions[i].uid == peer.uid;
	}
	error = kvt_core_session_open(sim->core, &peer, &view, sim->now_ns, &session);
	if (error) {
		free((void *)(uintptr_t)view.keys);
		free(view.list);
		free((void *)(uintptr_t)view.fences);
		free(pages);
		/* The last place is kept for a privileged peer. */
		present += !peer.privileged && !sim->sessions[sim->config.max_sessions].present;
		if (error == -EDQUOT ? own != sim->config.uid_sessions :
				       error != -EUSERS || present < sim->config.max_sessions)
			sim_fail(sim, "session_open: %d with %u of %u sessions", error, present,
				 sim->config.max_sessions);
		return;
	}
	if (session == 0 || session > sim->config.max_sessions ||
	    sim->sessions[session].present) {
		sim_fail(sim, "session_open gave session %u", session);
		return;
	}
	s = &sim->sessions[session];
	memset(s, 0, sizeof(*s));
	s->open = s->present = true;
	s->uid = peer.uid;
	s->view = view;
	s->pages = pages;
	for (uint32_t i = sim_between(sim, 0, 3); i; i--)
		sim_namespace_open(sim, session);
}

/* The core must not look at a session's memory any more: free it at once. */
void sim_session_end(struct sim *sim, uint32_t session, uint32_t signs)
{
	struct sim_session *s = &sim->sessions[session];
	bool ends = signs == 0 || (signs & (KVT_SIGN_HANGUP | KVT_SIGN_EXITED));

	s->signs |= signs;
	if (ends && s->n_waiting)
		sim->coverage->rare[SIM_DEAD_WITH_DEFERRED]++;
	if (signs)
		kvt_core_session_sign(sim->core, session, signs, sim->now_ns);
	else
		kvt_core_session_kill(sim->core, session, sim->now_ns);
	if (ends) {
		s->open = false;
		sim_view_free(s);
	}
}

static bool drained(struct sim *sim)
{
	const struct kvt_counters *c = kvt_core_counters(sim->core);

	if (c->free_pages != sim->config.n_pages - 1 || c->live_nodes || c->live_leases ||
	    c->live_sessions || c->live_namespaces || c->detached_pending || c->locked_nodes)
		return sim_fail(sim, "after everything ended: %llu pages free of %u, %llu nodes, "
				"%llu leases, %llu sessions, %llu namespaces, %llu detached",
				(unsigned long long)c->free_pages, sim->config.n_pages - 1,
				(unsigned long long)c->live_nodes,
				(unsigned long long)c->live_leases,
				(unsigned long long)c->live_sessions,
				(unsigned long long)c->live_namespaces,
				(unsigned long long)c->detached_pending);
	return true;
}

bool sim_drain(struct sim *sim)
{
	uint32_t all = KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET;
	uint32_t turns = 0;

	for (uint32_t i = 1; i <= SIM_SESSIONS && !sim->failed; i++)
		if (sim->sessions[i].present)
			sim_session_end(sim, i, all);
	if (sim_chance(sim, 500) && !sim->failed)
		kvt_core_reset(sim->core, sim->now_ns);
	while (!sim->failed && kvt_core_work(sim->core, 64, true, sim->now_ns))
		if (++turns > 100000)
			return sim_fail(sim, "background work never ends");
	if (!sim->failed)
		kvt_core_evict(sim->core, UINT32_MAX, sim->now_ns);
	while (!sim->failed && kvt_core_work(sim->core, 64, true, sim->now_ns))
		if (++turns > 100000)
			return sim_fail(sim, "background work never ends");
	if (!sim->failed && kvt_core_unsettled(sim->core))
		return sim_fail(sim, "no work is left, but something is unsettled");
	return !sim->failed && drained(sim);
}
