/* SPDX-License-Identifier: Apache-2.0 */

/* Engines that contend for a pool smaller than what they want: they admit, compute in chunks,
 * decode, preempt, finish and die at random.
 *
 * Inputs: seeds. What must hold: a request owns the pages of its prompt from its admission on, so
 * nothing that it asks for is refused until its table ends. A full pool refuses admissions and
 * EXTEND; a tree without nodes refuses to publish, and a later COMMIT does it. Each request of each
 * engine that lives finishes once.
 */

#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_segment.h"
#include "tests/core/world.h"

enum { ENGINES = 6, REQUESTS = 3, PROMPT = 40, OUTPUT = 12, STEPS = 400 };

struct request {
	struct keys prompt; /* and what it generated before it was preempted */
	struct seq *seq;    /* NULL: it waits for admission */
	uint32_t held;      /* above 0: others compute its prompt; the client's next notice */
	uint32_t computed;  /* positions of the prompt */
	uint32_t left;      /* positions that it still generates; with 0 it is over */
};

struct engine {
	struct client *client;
	struct request requests[REQUESTS];
	uint64_t step;
	uint32_t space, finished;
};

struct host {
	struct world *world;
	struct engine engines[ENGINES];
	uint64_t random;
	uint32_t started, deaths, refused, preempted, unpublished;
	bool draining; /* no request is new, no engine dies */
};

static uint32_t below(struct host *host, uint32_t n)
{
	return next_random(&host->random) % n;
}

/* Prompts share heads: a system prompt, then one of few conversations, then keys of its own. */
static struct keys some_prompt(struct host *host)
{
	uint32_t system = below(host, 2) * 1000, talk = system + 100 * below(host, 3);

	return join(range(system, system + 9),
		    join(range(talk + 10, talk + 10 + below(host, PROMPT - 20)),
			 repeat(1 + below(host, 5), 1 + below(host, 9))));
}

/* An END behind the step that may still read the pages. */
static void request_ends(struct engine *engine, struct request *request)
{
	struct answer answer;

	fence(engine->client, 0, engine->step + 1);
	answer = end(request->seq);
	fence(engine->client, 0, 0);
	assert_true(answer.deferred);
	request->seq = NULL;
}

static void preempt(struct host *host, struct engine *engine, struct request *request)
{
	const struct seq *seq = request->seq;
	uint32_t *keys = (uint32_t *)repeat(0, seq->n_keys).at;

	memcpy(keys, seq->keys, seq->n_keys * sizeof(*keys));
	request->prompt = (struct keys){ keys, seq->n_keys };
	request_ends(engine, request);
	host->preempted++;
}

/* The pool is full, or the engine has its share of it. */
static bool no_room(struct answer answer)
{
	return answer.result == -ENOSPC || answer.reason == KVT_REASON_LIMIT_PAGES ||
	       answer.reason == KVT_REASON_SHARE;
}

static void admit(struct host *host, struct engine *engine, struct request *request)
{
	struct client *client = engine->client;
	struct seq *seq;

	if (request->held > client->n_notices)
		return;
	request->held = 0;
	seq = begin(client, engine->space, request->prompt, below(host, 4),
		    below(host, 4) ? KVT_F_NO_WAIT : 0);
	if (seq->a.result == 0) {
		request->seq = seq;
		request->computed = seq->a.reusable;
	} else if (no_room(seq->a)) {
		host->refused++;
	} else {
		expect_refused(seq->a, -EAGAIN, KVT_REASON_ANNOUNCED);
		request->held = client->n_notices + 1;
	}
}

static void publish(struct host *host, struct seq *seq, uint32_t computed, struct keys generated,
		    uint16_t flags)
{
	struct answer answer = commit(seq, computed, generated, flags | KVT_F_KEEP);

	if (answer.result == 0)
		return;
	expect_refused(answer, -ENOSPC, KVT_REASON_NODES);
	host->unpublished++;
}

/* One more position. A full pool preempts the engine's youngest request: perhaps this one. */
static void decode(struct host *host, struct engine *engine, struct request *request)
{
	struct seq *seq = request->seq;
	struct answer answer;

	if (seq->n_keys == seq->n_table * host->world->ps) {
		answer = extend(seq, 1);
		if (answer.result < 0) {
			struct request *youngest = request;

			assert_true(no_room(answer));
			for (struct request *r = request; r < engine->requests + REQUESTS; r++)
				if (r->seq)
					youngest = r;
			preempt(host, engine, youngest);
			return;
		}
	}
	publish(host, seq, seq->n_keys + 1, K(7000 + below(host, 2)), 0);
	if (--request->left)
		return;
	request_ends(engine, request);
	engine->finished++;
}

static void compute(struct host *host, struct engine *engine, struct request *request)
{
	struct seq *seq = request->seq;

	if (request->computed >= seq->n_keys) {
		decode(host, engine, request);
		return;
	}
	request->computed += 1 + below(host, seq->n_keys - request->computed);
	publish(host, seq, request->computed, NO_KEYS,
		request->computed < seq->n_keys ? KVT_F_CHUNKED : 0);
}

static void schedule(struct host *host, struct engine *engine)
{
	for (struct request *r = engine->requests; r < engine->requests + REQUESTS; r++) {
		if (!r->left) {
			if (host->draining)
				continue;
			*r = (struct request){ .prompt = some_prompt(host),
						.left = 1 + below(host, OUTPUT) };
			host->started++;
		}
		if (!r->seq)
			admit(host, engine, r);
		else
			compute(host, engine, r);
	}
	raise_fence(engine->client, 0, ++engine->step);
	for (uint32_t i = 0; i < host->world->n_done; i++)
		assert_true(host->world->done[i].flags & KVT_CQE_ASYNC ||
			    host->world->done[i].result == 0);
	host->world->n_done = 0;
}

static void dies(struct host *host, struct engine *engine)
{
	struct client *client = engine->client;
	struct kvt_core_peer peer = { .pid = 7, .privileged = true };
	struct kvt_core_view view = { client->keys, client->keys_count, client->list,
				      client->list_count, client->fences };

	client_dies(client, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	for (uint32_t i = 0; i < REQUESTS; i++)
		host->started -= engine->requests[i].left != 0;
	memset(client->fences, 0, KVT_FENCE_WORDS * sizeof(*client->fences));
	assert_int_equal(kvt_core_session_open(host->world->core, &peer, &view,
					       host->world->now_ns, &client->session), 0);
	*engine = (struct engine){ .client = client, .space = space_open(client, "model"),
				   .finished = engine->finished };
	host->deaths++;
}

static bool all_finished(const struct host *host)
{
	for (uint32_t i = 0; i < ENGINES * REQUESTS; i++)
		if (host->engines[i / REQUESTS].requests[i % REQUESTS].left)
			return false;
	return true;
}

static void life_of_a_host(uint64_t seed, struct host *total)
{
	struct host host = { .random = seed };
	uint32_t ps = 1u << seed % 3, finished = 0;
	uint32_t n_pages = 2 + (PROMPT + OUTPUT) * (3 + (uint32_t)seed % 9) / 2 / ps;

	/* For one request and a half of the longest up to what two engines want. */
	host.world = world_new((struct kvt_core_config){
		.page_size = ps, .policy = (uint32_t)seed % KVT_POLICY_COUNT,
		.max_nodes = seed % 2 ? 64 : 400, .n_pages = n_pages, .soft_private = true,
		.max_private_pages = seed % 4 < 2 ? (n_pages - 1) * 3 / 4 : 0 });
	host.world->quick = true;
	for (int i = 0; i < ENGINES; i++) {
		host.engines[i].client = client_new(host.world);
		host.engines[i].space = space_open(host.engines[i].client, "model");
	}
	for (int i = 0; i < STEPS; i++) {
		struct engine *engine = &host.engines[below(&host, ENGINES)];

		if (below(&host, 25) == 0)
			dies(&host, engine);
		schedule(&host, engine);
		host.world->now_ns += 1000000;
		if (i % 16 == 0)
			world_audit(host.world);
	}
	host.draining = true;
	for (int i = 0; i < 50 * STEPS && !all_finished(&host); i++)
		schedule(&host, &host.engines[below(&host, ENGINES)]);
	assert_true(all_finished(&host));
	for (int i = 0; i < ENGINES; i++) {
		finished += host.engines[i].finished;
		raise_fence(host.engines[i].client, 0, UINT64_MAX);
	}
	assert_int_equal(finished, host.started);
	assert_int_equal(counters(host.world)->private_pages, 0);
	assert_int_equal(counters(host.world)->protected_pages, 0);
	assert_int_equal(counters(host.world)->quarantined_pages, 0);
	world_audit(host.world);
	total->deaths += host.deaths;
	total->refused += host.refused;
	total->preempted += host.preempted;
	total->unpublished += host.unpublished;
	world_free(host.world);
}

TEST(what_was_admitted_is_never_refused_and_all_finish)
{
	struct host total = { 0 };

	for (uint64_t seed = 1; seed <= 150; seed++)
		life_of_a_host(seed, &total);
	assert_true(total.deaths > 1000 && total.refused > 1000 && total.preempted > 1000 &&
		    total.unpublished > 100);
}
