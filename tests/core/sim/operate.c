/* SPDX-License-Identifier: Apache-2.0 */

/* One random step: mostly an operation of a session, valid or not.
 *
 * Inputs: the run's random numbers, and what each session holds. Invariants: every choice follows
 * from the seed; after each step records agree with the oracle. Callers: main.c,
 * tests/core/crash/main.c. */

#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_segment.h"
#include "lab/oracle/state.h"
#include "shm/atomic.h"
#include "tests/core/sim/sim.h"
#include "tests/lib/refusal.h"

#define SIDES_MOST (2 * KVT_MAX_SIDES) /* pairs of a COMMIT */

/* ---- keys: few values, shared beginnings */

/* With large pages a page is one random symbol from which its keys follow, but for a rare slip. */
static uint32_t random_key(struct sim *sim, uint32_t at, uint32_t before)
{
	if (!sim->wide || at % sim->config.page_size == 0 || sim_chance(sim, 1))
		return 1 + sim_below(sim, sim->alphabet);
	return before + 1;
}

static void random_keys(struct sim *sim, struct sim_sequence *to, uint32_t n)
{
	while (to->n < n) {
		to->keys[to->n] = random_key(sim, to->n, to->n ? to->keys[to->n - 1] : 0);
		to->n++;
	}
}

/* A sequence as traffic has them: an old one, its beginning with another end, or a new one. */
static uint32_t make_sequence(struct sim *sim)
{
	uint32_t at = sim_below(sim, SIM_SEQUENCES), how = sim_below(sim, 100), n;
	struct sim_sequence *to = &sim->sequences[at];
	const struct sim_sequence *from = &sim->sequences[sim_below(sim, SIM_SEQUENCES)];

	if (how < 20)
		return at; /* the same once more */
	if (how < 75) {
		n = sim_below(sim, from->n + 1);
		if (sim_chance(sim, 500))
			n -= n % sim->config.page_size;
		if (to != from)
			memcpy(to->keys, from->keys, n * sizeof(*to->keys));
		to->n = n;
		n = sim_chance(sim, 600) ? sim_below(sim, 4 * sim->config.page_size + 1) :
					   sim_below(sim, sim->longest);
		n = to->n + n < sim->longest ? to->n + n : sim->longest;
	} else if (how < 95) {
		to->n = 0;
		n = sim_below(sim, sim->longest / (1 + sim_below(sim, 4)) + 1);
	} else {
		to->n = 0;
		n = sim_below(sim, sim->config.page_size + 1);
	}
	if (n > to->n && sim_chance(sim, 500))
		n -= n % sim->config.page_size;
	random_keys(sim, to, n);
	return at;
}

/* ---- entries */

const uint64_t sim_root_keys[SIM_ROOT_KEYS] = { 0, 1, 1ull << 32, 0x700000007 };

struct shot {
	struct sim *sim;
	struct sim_session *s;
	uint32_t session;
	struct kvt_sqe sqe;
};

static uint32_t *keys_of(struct shot *shot)
{
	return (uint32_t *)(uintptr_t)shot->s->view.keys;
}

/* Put keys into the key area, where earlier operations rarely still need theirs. */
static void put_keys(struct shot *shot, const uint32_t *keys, uint32_t n)
{
	shot->sqe.keys_offset = sim_below(shot->sim, SIM_KEYS_AREA / 2 - n);
	shot->sqe.n_keys = n;
	if (n)
		memcpy(keys_of(shot) + shot->sqe.keys_offset, keys, n * sizeof(*keys));
}

static void put_list(struct shot *shot, uint32_t need)
{
	uint32_t capacity = need + sim_below(shot->sim, 8);

	if (sim_chance(shot->sim, 30))
		capacity = sim_below(shot->sim, need + 1);
	if (capacity > SIM_LIST_AREA)
		capacity = SIM_LIST_AREA;
	shot->sqe.list_capacity = capacity;
	shot->sqe.list_offset = sim_below(shot->sim, SIM_LIST_AREA - capacity + 1);
}

static void put_fence(struct shot *shot)
{
	uint32_t how = sim_below(shot->sim, 100);

	shot->sqe.fence_slot = KVT_FENCE_IDLE;
	if (how < 55)
		return;
	shot->sqe.fence_slot = (uint8_t)sim_below(shot->sim, KVT_FENCE_WORDS);
	shot->sqe.fence_value = shot->s->view.fences[shot->sqe.fence_slot].value;
	if (how < 90)
		shot->sqe.fence_value += sim_below(shot->sim, 4);
}

static void put_namespace(struct shot *shot)
{
	shot->sqe.namespace_id = shot->s->n_namespaces == 0 || sim_chance(shot->sim, 10) ?
		sim_below(shot->sim, shot->sim->config.max_namespaces + 2) :
		shot->s->namespaces[sim_below(shot->sim, shot->s->n_namespaces)];
}

static void put_sequence(struct shot *shot)
{
	uint32_t at = make_sequence(shot->sim);

	shot->sim->sequence_in_use = at;
	put_keys(shot, shot->sim->sequences[at].keys, shot->sim->sequences[at].n);
	put_namespace(shot);
}

static struct sim_lease *put_lease(struct shot *shot, uint32_t kind)
{
	struct sim_session *s = shot->s;
	struct sim_lease *lease = NULL;

	if (sim_chance(shot->sim, 15)) { /* of any session */
		shot->sqe.node = sim_below(shot->sim, shot->sim->config.n_leases + 2);
		shot->sqe.generation = sim_below(shot->sim, 4);
		return NULL;
	}
	if (sim_chance(shot->sim, 15)) { /* another session's, perhaps live */
		s = &shot->sim->sessions[1 + sim_below(shot->sim, SIM_SESSIONS)];
		if (!s->present)
			s = shot->s;
	}
	for (uint32_t i = 0; i < 12 && s->n_leases; i++) {
		lease = &s->leases[sim_below(shot->sim, s->n_leases)];
		if (lease->kind == kind)
			break;
	}
	if (!lease)
		return NULL;
	shot->sqe.node = lease->index;
	shot->sqe.generation = lease->generation;
	return lease;
}

/* After an END the session forgets most of its leases, but rarely tries an old one. */
static void forget_lease(struct shot *shot)
{
	struct sim_session *s = shot->s;

	for (uint32_t i = 0; i < s->n_leases; i++) {
		if (s->leases[i].index == shot->sqe.node &&
		    s->leases[i].generation == shot->sqe.generation &&
		    !sim_chance(shot->sim, 30)) {
			s->leases[i] = s->leases[--s->n_leases];
			return;
		}
	}
}

/* ---- one function per operation */

static const struct sim_handle *put_handle(struct shot *shot)
{
	struct sim *sim = shot->sim;
	const struct sim_handle *h;
	uint32_t ps = sim->config.page_size;

	if (!sim->n_handles)
		return NULL;
	h = &sim->handles[sim_below(sim, sim->n_handles)];
	shot->sqe.node = h->node;
	shot->sqe.generation = h->generation;
	shot->sqe.positions = h->positions;
	if (sim_chance(sim, 200) && h->positions > ps)
		shot->sqe.positions = ps * sim_between(sim, 1, h->positions / ps);
	if (sim_chance(sim, 20))
		shot->sqe.positions = sim_below(sim, h->positions + 3 * ps);
	if (sim_chance(sim, 20))
		shot->sqe.generation += sim_below(sim, 2) ? 1 : UINT32_MAX;
	if (sim_chance(sim, 10))
		shot->sqe.node = sim_below(sim, sim->config.max_nodes + 2);
	return h;
}

/* Keys that follow a handle: those of its own sequence, or others. */
static uint32_t keys_behind(struct shot *shot, const struct sim_handle *h, uint32_t *keys)
{
	struct sim *sim = shot->sim;
	const struct sim_sequence *q = &sim->sequences[h->sequence];
	uint32_t n = 0, at = shot->sqe.positions;

	if (sim_chance(sim, 600))
		while (at + n < q->n) {
			keys[n] = q->keys[at + n];
			n++;
		}
	n = sim_below(sim, n + 1);
	for (uint32_t more = sim_below(sim, 3 * sim->config.page_size); more && n < SIM_MAX_KEYS;
	     more--) {
		keys[n] = random_key(sim, at + n, n ? keys[n - 1] : 0);
		n++;
	}
	return n;
}

/* Put a root key in front of the keys, sometimes. */
static void put_root_key(struct shot *shot)
{
	uint32_t *at = keys_of(shot) + shot->sqe.keys_offset;

	if (!sim_chance(shot->sim, 300))
		return;
	memmove(at + 2, at, shot->sqe.n_keys * sizeof(*at));
	memcpy(at, &sim_root_keys[sim_below(shot->sim, SIM_ROOT_KEYS)], sizeof(*sim_root_keys));
	shot->sqe.flags |= KVT_F_ROOT_KEY;
}

/* Keys from a root, or behind a handle. Returns the handle. */
static const struct sim_handle *put_path(struct shot *shot, uint32_t behind)
{
	uint32_t keys[SIM_MAX_KEYS + 3 * KVT_MAX_PAGE_SIZE];
	const struct sim_handle *h = NULL;

	put_sequence(shot);
	if (sim_chance(shot->sim, behind))
		h = put_handle(shot);
	if (h) {
		put_keys(shot, keys, keys_behind(shot, h, keys));
		if (!sim_chance(shot->sim, 20))
			shot->sqe.namespace_id = h->namespace_id;
	}
	if (!h || sim_chance(shot->sim, 20))
		put_root_key(shot);
	return h;
}

static void op_match(struct shot *shot)
{
	put_path(shot, 300);
	if (sim_chance(shot->sim, 500)) {
		shot->sqe.flags |= KVT_F_LOCK;
		put_list(shot, (shot->sqe.n_keys + shot->sqe.positions) /
				       shot->sim->config.page_size);
	} else if (sim_chance(shot->sim, 300)) {
		shot->sqe.flags |= KVT_F_NO_TOUCH;
	}
}

static void op_lock(struct shot *shot)
{
	put_handle(shot);
	if (sim_chance(shot->sim, 500))
		shot->sqe.flags = KVT_F_SHORTER;
	put_list(shot, shot->sqe.positions / shot->sim->config.page_size);
}

static void op_unlock(struct shot *shot)
{
	put_lease(shot, KVT_LEASE_MATCH);
	put_fence(shot);
}

static void put_own_stream(struct shot *shot)
{
	if (sim_chance(shot->sim, 400))
		shot->sqe.flags |= KVT_F_OWN_STREAM;
}

static void op_alloc(struct shot *shot)
{
	struct sim *sim = shot->sim;

	shot->sqe.arg = sim_chance(sim, 900) ? sim_below(sim, sim->many ? 60 : 6) :
					       sim_below(sim, sim->config.n_pages + 2);
	put_list(shot, shot->sqe.arg);
	if (sim_chance(sim, 300)) {
		shot->sqe.flags = KVT_F_SHORTER;
		shot->sqe.arg += sim_chance(sim, 50) ? sim_below(sim, sim->config.n_pages) : 0;
	}
	put_own_stream(shot);
}

/* Pages to name: the session's own without a lease, and rarely others. */
static uint32_t put_pages(struct shot *shot, uint32_t *pages, uint32_t n)
{
	struct sim *sim = shot->sim;
	struct sim_session *s = shot->s;

	for (uint32_t i = 0; i < n && i < s->n_pages; i++) { /* shuffle as far as needed */
		uint32_t j = sim_between(sim, i, s->n_pages - 1), page = s->pages[i];

		s->pages[i] = s->pages[j];
		s->pages[j] = page;
	}
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i < s->n_pages ? s->pages[i] :
					    1 + sim_below(sim, sim->config.n_pages - 1);
	if (n && sim_chance(sim, 40))
		pages[sim_below(sim, n)] = sim_below(sim, sim->config.n_pages + 2);
	if (n > 1 && sim_chance(sim, 20))
		pages[n - 1] = pages[sim_below(sim, n - 1)];
	return n;
}

static void op_free(struct shot *shot)
{
	uint32_t pages[8];
	uint32_t n = sim_below(shot->sim, shot->s->n_pages < 7 ? shot->s->n_pages + 1 : 8);

	put_pages(shot, pages, n);
	put_keys(shot, pages, n);
	put_fence(shot);
}

static void put_weight(struct shot *shot)
{
	struct sim *sim = shot->sim;

	if (sim_chance(sim, 300))
		shot->sqe.priority = (int32_t)sim_below(sim, 5) - 2;
	if (sim_chance(sim, 150)) {
		shot->sqe.flags |= KVT_F_TTL;
		shot->sqe.ttl_ms = 1 + sim_below(sim, sim_chance(sim, 500) ? 20 : 3000);
	}
	if (sim_chance(sim, 300))
		shot->sqe.flags |= KVT_F_CHUNKED;
	if (sim_chance(sim, 250))
		shot->sqe.flags |= KVT_F_LOCK;
}

static void op_insert(struct shot *shot)
{
	struct sim *sim = shot->sim;
	uint32_t ps = sim->config.page_size, pages[SIM_MAX_KEYS + 3 * KVT_MAX_PAGE_SIZE];
	const struct sim_handle *h = put_path(shot, 300);
	const struct sim_lease *lease;
	uint32_t n;

	if (!sim_chance(sim, 100) && shot->sqe.n_keys / ps > shot->s->n_pages) {
		uint32_t cut = shot->s->n_pages * ps + sim_below(sim, ps);

		shot->sqe.n_keys = cut < shot->sqe.n_keys ? cut : shot->sqe.n_keys;
	}
	n = put_pages(shot, pages, shot->sqe.n_keys / ps);
	/* The cached pages themselves, as a lease on the same keys named them. */
	if (!h && shot->s->n_leases && sim_chance(sim, 250)) {
		lease = &shot->s->leases[sim_below(sim, shot->s->n_leases)];
		if (lease->kind == KVT_LEASE_MATCH &&
		    lease->sequence == sim->sequence_in_use)
			for (uint32_t i = 0; i < n && i < lease->n_list; i++)
				if (sim_chance(sim, 800))
					pages[i] = lease->list[i];
	}
	shot->sqe.arg = SIM_KEYS_AREA / 2 + sim_below(sim, SIM_KEYS_AREA / 2 - n);
	if (n)
		memcpy(keys_of(shot) + shot->sqe.arg, pages, n * sizeof(*pages));
	put_weight(shot);
	put_list(shot, 2 * n + shot->sqe.n_keys / ps + shot->sqe.positions / ps);
	put_fence(shot);
}

/* It may be deferred: its keys stay until then. */
static void put_wait(struct shot *shot)
{
	struct sim *sim = shot->sim;
	uint32_t from = shot->sqe.keys_offset;

	shot->sqe.flags |= sim_chance(sim, 700) ? KVT_F_WAIT : KVT_F_NO_WAIT;
	shot->sqe.ttl_ms = 1 + sim_below(sim, sim_chance(sim, 500) ? 8 : 4000);
	if (sim_chance(sim, 100)) /* a question, or with NO_WAIT refused */
		shot->sqe.ttl_ms = 0;
	if (sim_chance(sim, 50)) /* a client that changes them meanwhile, perhaps */
		return;
	shot->sqe.keys_offset = SIM_KEYS_AREA +
				shot->s->kept_next++ % SIM_KEPT_KEYS * SIM_KEPT_EACH;
	memcpy(keys_of(shot) + shot->sqe.keys_offset, keys_of(shot) + from,
	       (kvt_root_key_words(shot->sqe.flags) + shot->sqe.n_keys) * sizeof(uint32_t));
}

static void op_begin(struct shot *shot)
{
	struct sim *sim = shot->sim;
	uint32_t ps = sim->config.page_size, words;

	put_path(shot, 300);
	if (sim_chance(sim, 600))
		put_wait(shot);
	shot->sqe.arg = sim_chance(sim, 500) ? sim_below(sim, 3 * ps + 1) : 0;
	if (sim_chance(sim, 5))
		shot->sqe.arg = sim_below(sim, UINT32_MAX);
	if (sim_chance(sim, 200))
		shot->sqe.flags |= KVT_F_FULL;
	if (sim_chance(sim, 100))
		shot->sqe.flags |= KVT_F_FORCE_MISS;
	if (sim_chance(sim, 50))
		shot->sqe.flags |= KVT_F_UNCOUNTED;
	if (sim_chance(sim, 150))
		shot->sqe.priority = (int32_t)sim_between(sim, 1, 4 * ps);
	if (sim_chance(sim, 2))
		shot->sqe.priority = -1;
	put_own_stream(shot);
	if (sim_chance(sim, 300)) {
		shot->sqe.flags |= KVT_F_NO_PAGES;
		shot->sqe.arg = sim_chance(sim, 20) ? shot->sqe.arg : 0;
	}
	if (sim_chance(sim, sim->config.n_sides > 0 ? 500 : 2))
		shot->sqe.fence_value = sim_chance(sim, 400) ? KVT_POINT_JUNCTION :
					sim_below(sim, shot->sqe.positions + shot->sqe.n_keys +
							       2 * ps);
	words = (shot->sqe.positions + shot->sqe.n_keys + (shot->sqe.arg & 0xffff) + ps - 1) / ps;
	put_list(shot, words * (1 + sim->config.n_sides) + (sim->config.n_sides > 0));
}

/* Commit new positions with generated keys, sometimes a few beyond the table. */
static void put_progress(struct shot *shot, const struct sim_lease *lease)
{
	struct sim *sim = shot->sim;
	uint32_t ps = sim->config.page_size, keys[3 * KVT_MAX_PAGE_SIZE + 2], n = 0, room;

	if (!lease)
		return;
	room = lease->table * ps > lease->known ? lease->table * ps - lease->known : 0;
	if (sim_chance(sim, 500)) {
		n = sim_below(sim, (room < 2 * ps ? room : 2 * ps) + 1);
		if (room < 2 * ps && sim_chance(sim, 100))
			n = room + sim_below(sim, ps + 1);
		for (uint32_t i = 0; i < n; i++)
			keys[i] = random_key(sim, lease->known + i, i ? keys[i - 1] : 0);
	}
	put_keys(shot, keys, n);
	shot->sqe.arg = sim_between(sim, lease->computed, lease->known + n);
	if (sim_chance(sim, 500))
		shot->sqe.arg -= shot->sqe.arg % ps;
	if (sim_chance(sim, 200))
		shot->sqe.arg = lease->known + n;
	if (shot->sqe.arg > lease->table * ps && !sim_chance(sim, 50))
		shot->sqe.arg = lease->table * ps;
	if (sim->oracle->leases[lease->index].point && sim_chance(sim, 500))
		shot->sqe.arg = sim->oracle->leases[lease->index].point * ps;
	if (sim_chance(sim, 30))
		shot->sqe.arg = sim_below(sim, lease->table * ps + 2 * ps);
	if (sim_chance(sim, 400))
		shot->sqe.flags |= KVT_F_CHUNKED;
	if (sim_chance(sim, 200))
		shot->sqe.flags |= KVT_F_KEEP;
}

/* Places of a point at the end of what is computed, if the session has pages, then others. */
static uint32_t choose_places(struct shot *shot, uint32_t *places, uint32_t most)
{
	const struct kvt_core_config *c = &shot->sim->config;
	uint32_t end = shot->sqe.arg / c->page_size, n = 0;

	if (end > 1 && sim_chance(shot->sim, 300))
		end = sim_between(shot->sim, 1, end);
	for (uint32_t kind = 0; kind < c->n_sides; kind++)
		for (uint32_t back = 1; back <= end && back <= c->side_pages[kind] && n < most &&
					n < shot->s->n_pages; back++)
			places[n++] = KVT_SIDE_PLACE(end - back, kind);
	for (uint32_t more = sim_below(shot->sim, 3); more > 0 && n < most; more--)
		places[n++] = KVT_SIDE_PLACE(sim_below(shot->sim, end + 1),
					     sim_below(shot->sim, c->n_sides));
	if (n && sim_chance(shot->sim, 20))
		places[sim_below(shot->sim, n)] = sim_below(shot->sim, UINT32_MAX);
	return n;
}

/* Places of the lease that have side pages, behind n others: to let them go. */
static uint32_t places_taken(struct shot *shot, uint32_t *places, uint32_t n, uint32_t most)
{
	const struct kvt_oracle *o = shot->sim->oracle;
	const struct model_lease *lease;

	if (shot->sqe.node == 0 || shot->sqe.node > o->config.n_leases)
		return n;
	lease = &o->leases[shot->sqe.node];
	for (uint32_t at = lease->kind == MODEL_LEASE_BEGIN ? lease->done : 0; at-- > 0;)
		for (uint32_t kind = 0; kind < o->config.n_sides; kind++)
			if (n < most && o->pages[lease->table[at]].sides[kind] &&
			    sim_chance(shot->sim, 700))
				places[n++] = KVT_SIDE_PLACE(at, kind);
	return n;
}

/* True if the COMMIT ends at the point that its lease declared. */
static bool at_its_point(const struct shot *shot)
{
	const struct kvt_oracle *o = shot->sim->oracle;
	uint32_t lease = shot->sqe.node;

	return lease > 0 && lease <= o->config.n_leases && o->leases[lease].point > 0 &&
	       shot->sqe.arg == o->leases[lease].point * o->config.page_size;
}

/* Put pairs of places and side pages in front of the keys. */
static void put_sides(struct shot *shot)
{
	struct sim *sim = shot->sim;
	uint32_t places[SIDES_MOST], pages[SIDES_MOST];
	uint32_t n = choose_places(shot, places, SIDES_MOST), given = n;
	uint32_t *at = keys_of(shot) + shot->sqe.keys_offset;
	bool makes = at_its_point(shot) && sim_chance(sim, 800);

	if (sim_chance(sim, 400))
		n = places_taken(shot, places, n, SIDES_MOST);
	put_pages(shot, pages, given);
	memmove(at + 1 + 2 * n, at, shot->sqe.n_keys * sizeof(*at));
	at[0] = sim_chance(sim, 10) ? sim_below(sim, UINT32_MAX) : n;
	for (uint32_t i = 0; i < n; i++) {
		at[1 + 2 * i] = places[i];
		at[2 + 2 * i] = i < given && makes ? pages[i] :
				i >= given || sim_chance(sim, 150) ? KVT_SIDE_LET :
				sim_chance(sim, 200) ? KVT_NONE : pages[i];
	}
	shot->sqe.flags |= KVT_F_KEEP | KVT_F_NO_LIST | KVT_F_SIDES;
	put_list(shot, n);
}

static void op_commit(struct shot *shot)
{
	const struct sim_lease *lease = put_lease(shot, KVT_LEASE_BEGIN);

	put_progress(shot, lease);
	if (lease && sim_chance(shot->sim, 100))
		shot->sqe.arg = sim_below(shot->sim, lease->computed + 1);
	if (shot->sim->config.n_sides > 0 && sim_chance(shot->sim, 600))
		put_sides(shot);
	else if (shot->sqe.flags & KVT_F_KEEP && sim_chance(shot->sim, 500))
		shot->sqe.flags |= KVT_F_NO_LIST;
	else
		put_list(shot, lease ? lease->table : 4);
	if (sim_chance(shot->sim, 10))
		shot->sqe.flags ^= KVT_F_NO_LIST;
	if (sim_chance(shot->sim, 5))
		shot->sqe.flags ^= KVT_F_SIDES;
	put_fence(shot);
}

static void op_extend(struct shot *shot)
{
	uint32_t pages[4], ps = shot->sim->config.page_size, lacks = 0;
	const struct sim_lease *lease = put_lease(shot, KVT_LEASE_BEGIN);

	if (shot->s->n_pages > 0 && sim_chance(shot->sim, 400)) {
		put_keys(shot, pages, put_pages(shot, pages, 1 + sim_below(shot->sim, 4)));
		return;
	}
	shot->sqe.arg = sim_chance(shot->sim, 980) ? sim_below(shot->sim, 4) :
						     shot->sim->config.n_pages;
	if (lease && lease->known > lease->table * ps)
		lacks = (lease->known + ps - 1) / ps - lease->table;
	if (lacks && sim_chance(shot->sim, 700)) /* begun without pages */
		shot->sqe.arg = sim_chance(shot->sim, 500) ? lacks :
							     sim_between(shot->sim, 1, lacks);
	put_own_stream(shot);
	put_list(shot, shot->sqe.arg);
}

static void op_end(struct shot *shot)
{
	const struct sim_lease *lease = put_lease(shot, KVT_LEASE_BEGIN);

	if (sim_chance(shot->sim, 600)) {
		put_progress(shot, lease);
		shot->sqe.flags |= KVT_F_COMMIT;
	}
	put_fence(shot);
}

static void op_remove(struct shot *shot)
{
	put_sequence(shot);
	put_root_key(shot);
	if (shot->sqe.n_keys > 0 && sim_chance(shot->sim, 300))
		shot->sqe.n_keys = sim_between(shot->sim, 1, shot->sqe.n_keys);
	if (sim_chance(shot->sim, shot->sim->gentle ? 5 : 50))
		shot->sqe.n_keys = 0;
	else if (sim_chance(shot->sim, 300))
		shot->sqe.flags |= KVT_F_DAMAGED;
}

static void op_leave(struct shot *shot)
{
	put_namespace(shot);
}

static void op_stats(struct shot *shot)
{
	put_list(shot, sizeof(struct kvt_counters) / sizeof(uint32_t));
}

static void op_page(struct shot *shot)
{
	shot->sqe.arg = sim_below(shot->sim, shot->sim->config.n_pages + 1);
}

static void op_evict(struct shot *shot)
{
	shot->sqe.arg = sim_below(shot->sim, sim_chance(shot->sim, 100) ? UINT32_MAX : 8);
}

static void op_close(struct shot *shot)
{
	put_fence(shot);
}

static void op_plain(struct shot *shot)
{
}

static void op_garbage(struct shot *shot)
{
	uint8_t *bytes = (uint8_t *)&shot->sqe;

	for (size_t i = 0; i < sizeof(shot->sqe); i++)
		bytes[i] = sim_chance(shot->sim, 200) ? (uint8_t)sim_below(shot->sim, 256) : 0;
	shot->sqe.op = (uint8_t)sim_below(shot->sim, KVT_OP_COUNT + 2);
}

static const struct {
	uint32_t weight; /* of 1000 or so */
	uint8_t op;
	void (*fill)(struct shot *shot);
} menu[] = {
	{ 90, KVT_OP_MATCH, op_match },    { 60, KVT_OP_LOCK, op_lock },
	{ 90, KVT_OP_UNLOCK, op_unlock },  { 90, KVT_OP_ALLOC, op_alloc },
	{ 40, KVT_OP_FREE, op_free },      { 110, KVT_OP_INSERT, op_insert },
	{ 130, KVT_OP_BEGIN, op_begin },   { 180, KVT_OP_COMMIT, op_commit },
	{ 50, KVT_OP_EXTEND, op_extend },  { 110, KVT_OP_END, op_end },
	{ 12, KVT_OP_REMOVE, op_remove },  { 10, KVT_OP_PAGE, op_page },
	{ 6, KVT_OP_EVICT, op_evict },     { 1, KVT_OP_RESET, op_plain },
	{ 4, KVT_OP_STATS, op_stats },     { 1, KVT_OP_AUDIT, op_plain },
	{ 2, KVT_OP_CLOSE, op_close },     { 5, KVT_OP_NOP, op_plain },
	{ 12, KVT_OP_LEAVE, op_leave },    { 8, KVT_OP_SUSPECT, op_page },
	{ 8, KVT_OP_COUNT, op_garbage },
};

static uint32_t leases_of_kind(const struct sim_session *s, uint32_t kind)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n_leases; i++)
		n += s->leases[i].kind == kind;
	return n;
}

static size_t choose_row(struct sim *sim)
{
	uint32_t total = 0, at;
	size_t i;

	for (i = 0; i < sizeof(menu) / sizeof(menu[0]); i++)
		total += menu[i].weight;
	at = sim_below(sim, total);
	for (i = 0; at >= menu[i].weight; i++)
		at -= menu[i].weight;
	return i;
}

/* True if an operation makes sense for what the session holds. Senseless ones are rare. */
static bool sensible(const struct shot *shot, uint32_t op)
{
	uint32_t sequences = leases_of_kind(shot->s, KVT_LEASE_BEGIN);
	uint32_t locks = leases_of_kind(shot->s, KVT_LEASE_MATCH);

	switch (op) {
	case KVT_OP_UNLOCK:
		return locks > 0;
	case KVT_OP_COMMIT:
	case KVT_OP_EXTEND:
	case KVT_OP_END:
		return sequences > 0;
	case KVT_OP_BEGIN:
		return sequences < 5;
	case KVT_OP_LOCK:
		return locks < 4;
	case KVT_OP_ALLOC:
		return shot->s->n_pages < shot->sim->config.n_pages / 4 + 4;
	case KVT_OP_FREE:
		return shot->s->n_pages > 0;
	default:
		return true;
	}
}

static void fill(struct shot *shot)
{
	size_t i = choose_row(shot->sim);

	for (int tries = 0; tries < 8 && !sensible(shot, menu[i].op); tries++)
		if (!sim_chance(shot->sim, 20))
			i = choose_row(shot->sim);
	shot->sqe.op = menu[i].op;
	menu[i].fill(shot);
	if (sim_chance(shot->sim, 10)) { /* one bit of a good entry is wrong */
		uint32_t bit = sim_below(shot->sim, 8 * sizeof(shot->sqe));

		((uint8_t *)&shot->sqe)[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	shot->sqe.user_data = shot->sim->step;
}

/* ---- a stream advances: fences rise, and deferred operations take effect */

/* One more rank, whose words begin with rank 0's. */
static void member_joins(struct sim *sim, uint32_t session)
{
	struct sim_session *s = &sim->sessions[session];
	uint64_t token[2] = { session, 1 + s->view.keys_count };
	const struct kvt_core_peer peer = { .pid = 7, .label = "rank" };
	uint32_t n = s->n_members, place;

	if (!s->open || s->closing || n == SIM_RANKS - 1)
		return;
	if (n == 0)
		kvt_core_group_open(sim->core, session, SIM_RANKS, token);
	if (kvt_core_group_find(sim->core, token, n + 1, &place) != 0)
		return;
	s->words[n] = calloc(KVT_FENCE_WORDS, sizeof(struct kvt_fence_word));
	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		s->words[n][i].value = s->view.fences[i].value;
	s->members[n] = place;
	kvt_core_member_join(sim->core, place, &peer, s->words[n]);
	s->n_members++;
	sim->coverage->rare[SIM_MEMBER]++;
}

/* Members' streams follow rank 0's, some time later. */
static void raise_members(struct sim *sim, const struct sim_session *s)
{
	for (uint32_t m = 0; m < s->n_members; m++)
		for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
			if (s->words[m][i].value < s->view.fences[i].value && sim_chance(sim, 600))
				kvt_store_release(&s->words[m][i].value,
						  s->words[m][i].value + 1);
}

static void raise_fences(struct sim *sim, uint32_t session)
{
	struct sim_session *s = &sim->sessions[session];
	struct kvt_fence_word *words = (struct kvt_fence_word *)(uintptr_t)s->view.fences;

	if (!words) /* it is over */
		return;
	if (sim_chance(sim, 20))
		member_joins(sim, session);
	raise_members(sim, s);
	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		if (sim_chance(sim, 400))
			kvt_store_release(&words[i].value, words[i].value + sim_below(sim, 4));
	if (!sim_chance(sim, 100)) /* else an operation comes before the daemon's next look */
		kvt_core_poll(sim->core, session, sim->now_ns);
}

static bool rank_0_reached(const struct sim_session *s, const struct kvt_sqe *sqe)
{
	return s->view.fences[sqe->fence_slot].value >= sqe->fence_value;
}

static void forget_namespace(struct sim_session *s, uint32_t number)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < s->n_namespaces; i++)
		if (s->namespaces[i] != number)
			s->namespaces[kept++] = s->namespaces[i];
	s->n_namespaces = kept;
}

/* Copy what a refusal leaves unchanged. */
static void copy_facts(const struct sim *sim, char *to)
{
	memcpy(to, sim->arena, sim->arena_bytes);
	memcpy(to + sim->arena_bytes, sim->ledger, sim->ledger_bytes);
	refusal_blank(&sim->config, to, to + sim->arena_bytes);
}

/* Run an entry. A refusal that is its only effect leaves no trace: looked at now and then. */
static bool execute(struct shot *shot, struct kvt_cqe *ret_cqe)
{
	struct sim *sim = shot->sim;
	uint64_t seq = kvt_core_ledger(sim->core)->seq;
	bool watched = sim->step % 251 == 0, answered;

	if (watched)
		copy_facts(sim, sim->before);
	answered = kvt_core_execute(sim->core, shot->session, &shot->sqe, sim->now_ns, ret_cqe);
	if (!watched || !answered || ret_cqe->result >= 0 ||
	    kvt_core_ledger(sim->core)->seq != seq + 1)
		return answered;
	copy_facts(sim, sim->after);
	if (memcmp(sim->before, sim->after, sim->arena_bytes + sim->ledger_bytes) != 0)
		sim_fail(sim, "op %u was refused, and changed something", shot->sqe.op);
	sim->coverage->rare[SIM_REFUSED]++;
	return answered;
}

static void shoot(struct sim *sim, uint32_t session)
{
	struct sim_session *s = &sim->sessions[session];
	struct shot shot = { .sim = sim, .s = s, .session = session };
	struct kvt_cqe cqe;
	bool reached, answered;

	fill(&shot);
	reached = sim_fence_reached(sim, session, &shot.sqe);
	sim->coverage->rare[SIM_MEMBER_WAITED] += !reached && rank_0_reached(s, &shot.sqe);
	if (!kvt_core_can_defer(sim->core) && (!reached || s->n_waiting)) {
		/* The daemon would leave the entry in the ring. */
		sim->coverage->rare[SIM_NO_DEFER_ROOM]++;
		raise_fences(sim, 1 + sim_below(sim, sim->config.max_sessions));
		return;
	}
	kvt_core_let_wait(sim->core, !sim_chance(sim, 20));
	answered = execute(&shot, &cqe);
	sim_settle(sim);
	if (answered) {
		if (!sim->failed && memcmp(&cqe, &sim->last_cqe, sizeof(cqe)) != 0)
			sim_fail(sim, "the completion (seq %llu) is not the last record's (%llu)",
				 (unsigned long long)cqe.seq,
				 (unsigned long long)sim->last_cqe.seq);
		if (cqe.result != 0)
			return;
	} else if (reached && !s->n_waiting && shot.sqe.op != KVT_OP_BEGIN) {
		sim_fail(sim, "op %u was deferred without need", shot.sqe.op);
	}
	if (shot.sqe.op == KVT_OP_END || shot.sqe.op == KVT_OP_UNLOCK)
		forget_lease(&shot);
	if (shot.sqe.op == KVT_OP_CLOSE)
		s->closing = true;
	else if (shot.sqe.op == KVT_OP_LEAVE)
		forget_namespace(s, shot.sqe.namespace_id);
}

/* ---- other events */

static void die(struct sim *sim, uint32_t session)
{
	static const uint32_t signs[] = { KVT_SIGN_HANGUP, KVT_SIGN_EXITED, KVT_SIGN_HANGUP,
					  KVT_SIGN_HANGUP | KVT_SIGN_EXITED, 0 };

	sim_session_end(sim, session, signs[sim_below(sim, 5)]);
}

/* A session that has ended gets its missing signs, in any order. */
static void sign_more(struct sim *sim, uint32_t session)
{
	static const uint32_t signs[] = { KVT_SIGN_HANGUP, KVT_SIGN_EXITED, KVT_SIGN_QUIET,
					  KVT_SIGN_QUIET, KVT_SIGN_FENCED };

	sim_session_end(sim, session, signs[sim_below(sim, sim_chance(sim, 100) ? 5 : 4)]);
}

static void pass_time(struct sim *sim)
{
	uint32_t how = sim_below(sim, 1000);

	if (how < 900)
		sim->now_ns += sim_below(sim, 200000);
	else if (how < 998)
		sim->now_ns += sim_below(sim, 5000000);
	else
		sim->now_ns += 1000000ull * sim_below(sim, 4000);
}

static void operator_acts(struct sim *sim)
{
	uint32_t at = make_sequence(sim);
	struct sim_sequence *q = &sim->sequences[at];
	bool removed;

	switch (sim_below(sim, 8)) {
	case 0:
		kvt_core_reset(sim->core, sim->now_ns);
		break;
	case 1:
		kvt_core_remove(sim->core, sim_below(sim, sim->config.max_namespaces),
				sim_root_keys[sim_below(sim, SIM_ROOT_KEYS)], q->keys,
				q->n, sim->now_ns, &removed);
		break;
	default:
		kvt_core_evict(sim->core, sim_below(sim, 12), sim->now_ns);
		break;
	}
}

static uint32_t pick_session(struct sim *sim)
{
	return 1 + sim_below(sim, sim->config.max_sessions);
}

void sim_operate(struct sim *sim)
{
	uint32_t how = sim_below(sim, 1000), session = pick_session(sim);
	struct sim_session *s = &sim->sessions[session];
	uint32_t deaths = sim->gentle ? 1 : 4;

	sim_settle(sim);
	pass_time(sim);
	if (sim_chance(sim, sim->focus ? 1 : 3))
		sim_restart(sim);
	if (sim_chance(sim, sim->draining ? 50 : !sim->focus)) {
		sim->draining = !sim->draining;
		kvt_core_drain(sim->core, sim->draining, sim->now_ns);
	}
	if (!s->present) {
		sim_session_open(sim);
		return;
	}
	if (!s->open) {
		if (how < 250)
			sign_more(sim, session);
		else if (how < 600)
			kvt_core_work(sim->core, sim_below(sim, 6), sim_chance(sim, 300),
				      sim->now_ns);
		return;
	}
	if (sim->focus && how >= deaths && how < 25 && !sim_chance(sim, 50))
		how = s->n_namespaces ? 1000 : 8; /* neither the operator nor new namespaces */
	if (how < deaths || (s->closing && how < 50))
		die(sim, session);
	else if (how < 8)
		operator_acts(sim);
	else if (how < 25)
		sim_namespace_open(sim, session);
	else if (how < 80)
		raise_fences(sim, session);
	else if (how < 110)
		kvt_core_work(sim->core, sim_below(sim, 20), sim_chance(sim, 700), sim->now_ns);
	else if (how < 112)
		sim_session_end(sim, session, KVT_SIGN_QUIET);
	else
		shoot(sim, session);
}
