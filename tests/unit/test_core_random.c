/* SPDX-License-Identifier: Apache-2.0 */

/* Random workers over a small pool. The harness compares reused content with what was computed,
 * audits after each operation, and finds nothing left at the end.
 *
 * Inputs: seeds; deaths and fences at random. */

#include "tests/unit/core_world.h"

#include <stdlib.h>

enum { CLIENTS = 4, SEQS = 3, LOCKS = 2 };

struct worker {
	struct client *client;
	struct seq *seqs[SEQS];
	struct answer locks[LOCKS];
};

struct town {
	struct world *world;
	struct worker workers[CLIENTS];
	uint32_t spaces[2];
	uint64_t random;
};

static uint32_t below(struct town *town, uint32_t n)
{
	return next_random(&town->random) % n;
}

/* Few keys, so that prompts share heads. */
static struct keys some_keys(struct town *town, uint32_t most)
{
	uint32_t n = below(town, most + 1);
	uint32_t *keys = (uint32_t *)repeat(0, n).at;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = below(town, i % 4 ? 2 : 3);
	return (struct keys){ keys, n };
}

static void settle_in(struct town *town, struct worker *worker)
{
	*worker = (struct worker){ .client = client_new(town->world) };
	town->spaces[0] = space_open(worker->client, "one");
	town->spaces[1] = space_open(worker->client, "two");
}

/* A new worker replaces a dead one and reuses its record in the harness. */
static void replace(struct town *town, struct worker *worker, uint32_t signs)
{
	struct world *w = town->world;
	struct client *client = worker->client;
	struct kvt_core_peer peer = { .pid = 7, .privileged = true };
	struct kvt_core_view view = { client->keys, client->keys_count, client->list,
				      client->list_count, client->fences };

	client_dies(client, signs);
	assert_int_equal(kvt_core_session(w->core, client->session)->n_leases, 0);
	if (kvt_core_session(w->core, client->session)->state != KVT_SESSION_FREE)
		client_dies(client, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	memset(client->fences, 0, KVT_FENCE_WORDS * sizeof(*client->fences));
	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, w->now_ns,
					       &client->session), 0);
	*worker = (struct worker){ .client = client };
	space_open(client, "one");
	space_open(client, "two");
}

/* One operation on a sequence. Computing continues where COMMIT said. */
static void work_on(struct town *town, struct worker *worker, uint32_t i)
{
	struct seq *seq = worker->seqs[i];
	uint32_t ps = town->world->ps, at, known;

	if (!seq) {
		static const uint16_t flags[] = { 0, 0, 0, KVT_F_FULL, KVT_F_FORCE_MISS };

		seq = begin(worker->client, town->spaces[below(town, 2)], some_keys(town, 22),
			    below(town, 9), flags[below(town, 5)]);
		worker->seqs[i] = seq->a.result < 0 ? NULL : seq;
		return;
	}
	known = seq->n_keys;
	at = town->world->core->leases[seq->lease].computed;
	switch (below(town, 6)) {
	case 0:
		extend(seq, below(town, 3));
		break;
	case 1:
		at = at < known ? at + below(town, known - at + 1) : at;
		end_commit(seq, at, NO_KEYS, KVT_F_COMMIT);
		worker->seqs[i] = NULL;
		break;
	case 2: { /* decode, if the table has room */
		struct keys more = head(some_keys(town, 5), seq->n_table * ps - known);

		commit(seq, known + more.n, more, 0);
		break;
	}
	default:
		at = at < known ? at + below(town, known - at + 1) : at;
		commit(seq, at, NO_KEYS, below(town, 2) ? KVT_F_CHUNKED : KVT_F_KEEP);
	}
}

static void step(struct town *town)
{
	struct worker *worker = &town->workers[below(town, CLIENTS)];
	struct client *client = worker->client;
	uint32_t space = town->spaces[below(town, 2)], i = below(town, LOCKS);

	switch (below(town, 40)) {
	case 0:
		evict(client, below(town, 6));
		break;
	case 1:
		remove_prefix(client, space, some_keys(town, 12));
		break;
	case 2:
		if (below(town, 8) == 0)
			reset(client);
		break;
	case 3:
		replace(town, worker, 1u + below(town, 2));
		break;
	case 4:
	case 5:
	case 6:
	case 7:
		if (worker->locks[i].lease)
			expect_ok(unlock(client, worker->locks[i]));
		worker->locks[i] = match_lock(client, space, some_keys(town, 22));
		break;
	case 8:
	case 9:
		client->ttl_ms = below(town, 4) * 3;
		insert_flags(client, space, some_keys(town, 22), 0);
		break;
	case 10:
		town->world->now_ns += 1000000;
		break;
	case 11:
	case 12:
		kvt_core_work(town->world->core, 1 + below(town, 20), true, town->world->now_ns);
		break;
	default:
		work_on(town, worker, below(town, SEQS));
	}
}

static void life_of_a_town(uint64_t seed)
{
	static const uint32_t page_sizes[] = { 1, 2, 4, 7, 544 };
	struct town town = { .random = seed };

	town.world = world_new((struct kvt_core_config){
		.page_size = page_sizes[seed / 5 % 5], .n_pages = 40 + (uint32_t)seed % 4 * 30,
		.max_nodes = seed % 5 ? 200 : 24, .policy = (uint32_t)seed % KVT_POLICY_COUNT,
		.max_private_pages = seed % 2 ? 30 : 0 });
	for (int i = 0; i < CLIENTS; i++)
		settle_in(&town, &town.workers[i]);
	for (int i = 0; i < 1200; i++)
		step(&town);
	for (int i = 0; i < CLIENTS; i++)
		client_dies(town.workers[i].client,
			    KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	kvt_core_evict(town.world->core, 1000, town.world->now_ns);
	world_settle(town.world);
	expect_pages(town.world, 0, 0, 0);
	assert_int_equal(counters(town.world)->live_nodes, 0);
	assert_int_equal(counters(town.world)->live_leases, 0);
	assert_int_equal(counters(town.world)->live_namespaces, 0);
	world_free(town.world);
}

TEST(what_is_reused_is_what_was_computed)
{
	for (uint64_t seed = 1; seed <= 30; seed++)
		life_of_a_town(seed);
}
