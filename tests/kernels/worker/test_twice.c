/* SPDX-License-Identifier: Apache-2.0 */

/* Two processes compute the same prompts at the same time, without waiting for each other or for
 * their commits. Pages of the faster one displace the other's while that reads them and writes
 * behind them. Each must get the logits that it gets alone, to the last bit, also if the other is
 * killed at some point. A third process takes every free page and spoils it.
 *
 * Inputs: prompt numbers over pipes. Invariant: equal logits, bit for bit. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "examples/worker/worker.h"
#include "libclient/state.h"
#include "tests/lib/harness.h"

enum { PROMPT = 500, NEW = 6, CHUNK = 32, ROUNDS = 6, KILLS = 6, MOST_ROUNDS = 200 };
enum { MOST_FLAGS = 16, SPOILED = 16 };

static struct worker worker;

static void open_model(const char *directory)
{
	static char model[512], tokenizer[512];

	snprintf(model, sizeof(model), "%s/prices.bin", directory);
	snprintf(tokenizer, sizeof(tokenizer), "%s/prices.tok", directory);
	worker.options = (struct worker_options){ .model = model, .tokenizer = tokenizer,
						  .max_tokens = NEW, .chunk = CHUNK, .seed = 1 };
	if (worker_open_model(&worker) != 0)
		kvt_test_fail("%s", worker.why);
}

static void start_daemon(void)
{
	char geometry[WORKER_FLAGS_BYTES];
	const char *flags[MOST_FLAGS + 1] = { NULL };
	unsigned int n = 0;

	worker_daemon_flags(&worker, 16, geometry);
	for (char *at = geometry, *flag; (flag = strsep(&at, " ")) && n < MOST_FLAGS;)
		flags[n++] = flag;
	kvt_test_daemon_prepare(&daemon_, "page_bytes = 0\nn_pages = 160\n");
	kvt_test_daemon_start(&daemon_, flags);
}

static void generate(uint64_t seed, bool cache, struct generation *g)
{
	struct kvt_test_random random = { seed };

	for (uint32_t i = 0; i < PROMPT; i++)
		g->tokens[i] = 3 + kvt_test_random_below(&random, worker.model.vocab_size - 3);
	if (worker_generate(&worker, g, cache) != 0)
		kvt_test_fail("%s", worker.why);
}

static void make(struct generation *g)
{
	*g = (struct generation){ .n_prompt = PROMPT };
	g->tokens = calloc(worker.model.context + 1, sizeof(*g->tokens));
	g->logits = calloc((size_t)NEW * worker.model.vocab_size, sizeof(*g->logits));
	kvt_test_check(g->tokens && g->logits);
}

/* Serve the prompt of each number received, with the cache, then alone; until 0. */
static void serve(int pipe, void *context)
{
	struct generation shared, alone;
	uint64_t seed;

	worker.options.socket = daemon_.socket;
	if (worker_open_cache(&worker) != 0)
		kvt_test_fail("%s", worker.why);
	worker.client->begin_wait_ns = -1;
	make(&shared);
	make(&alone);
	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &seed) && seed) {
		generate(seed, true, &shared);
		kvt_test_send(pipe, shared.cached);
		kvt_test_expect(pipe, 0);
		generate(seed, false, &alone);
		kvt_test_equal(shared.n_tokens, alone.n_tokens);
		kvt_test_check(memcmp(shared.tokens, alone.tokens,
				      alone.n_tokens * sizeof(*alone.tokens)) == 0);
		kvt_test_check(memcmp(shared.logits, alone.logits,
				      (alone.n_tokens - PROMPT) * worker.model.vocab_size *
					      sizeof(*alone.logits)) == 0);
		kvt_test_send(pipe, shared.n_tokens);
	}
	worker_close(&worker);
	free(shared.tokens);
	free(shared.logits);
	free(alone.tokens);
	free(alone.logits);
}

/* Wait until something is sent. */
static void spoil(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t pages[SPOILED];
	struct kvt_pool pool;
	char byte;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	while (recv(pipe, &byte, 1, MSG_DONTWAIT) < 0) {
		int error = kvt_alloc(client, SPOILED, pages);

		kvt_test_check(error == 0 || error == -ENOSPC);
		if (error)
			continue;
		for (uint32_t i = 0; i < SPOILED; i++)
			memset(kvt_page_address(&pool, pages[i]), 0xff,
			       kvt_test_page_bytes(&pool));
		kvt_test_equal(kvt_free(client, pages, SPOILED, KVT_IDLE), 0);
	}
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

static void start_child(struct kvt_test_child *child)
{
	kvt_test_child_start(child, serve, NULL);
	kvt_test_expect(child->pipe, 1);
}

static void expect_same(struct kvt_test_child *child)
{
	uint64_t n;

	kvt_test_send(child->pipe, 0);
	if (!kvt_test_receive(child->pipe, &n))
		kvt_test_fail("other tokens or logits than alone");
	kvt_test_check(n > PROMPT);
}

/* Repeat until enough rounds had duplicates, and COMMIT has looked on over pages of the faster
 * process. */
static void both_compute(struct kvt_test_child *children)
{
	uint64_t duplicates = 0, cached = 0, seed;
	struct kvt_counters counters = { 0 };
	uint32_t rounds = 0;

	for (seed = 1; rounds < ROUNDS || counters.advanced_positions == 0; seed++) {
		if (seed > MOST_ROUNDS)
			kvt_test_fail("%u rounds with duplicates, none with look-on", rounds);
		for (int i = 0; i < 2; i++)
			kvt_test_send(children[i].pipe, seed);
		for (int i = 0; i < 2; i++)
			kvt_test_check(kvt_test_receive(children[i].pipe, &cached));
		counters = kvt_test_settled(&daemon_);
		rounds += counters.duplicate_pages > duplicates;
		duplicates = counters.duplicate_pages;
		for (int i = 0; i < 2; i++)
			expect_same(&children[i]);
	}
	printf("%llu rounds: %llu duplicates, looked on over %llu positions\n",
	       (unsigned long long)seed - 1, (unsigned long long)duplicates,
	       (unsigned long long)counters.advanced_positions);
}

/* One of the two dies with commits in flight, as soon as part of its prompt is cached. */
static void one_is_killed(struct kvt_test_child *children, uint64_t seed)
{
	uint64_t before = kvt_test_settled(&daemon_).inserted_pages, cached;
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_counters counters;

	for (int i = 0; i < 2; i++)
		kvt_test_send(children[i].pipe, seed);
	do
		kvt_test_equal(kvt_stats(client, &counters), 0);
	while (counters.inserted_pages < before + 2 * (seed % KILLS + 1));
	kvt_test_child_kill(&children[1], SIGKILL);
	kvt_test_check(kvt_test_receive(children[0].pipe, &cached));
	expect_same(&children[0]);
	kvt_client_close(client, KVT_IDLE);
	start_child(&children[1]);
}

int main(int argc, char **argv)
{
	struct kvt_test_child children[2], spoiler;

	open_model(argc > 1 ? argv[1] : "examples/worker/model");
	start_daemon();
	for (int i = 0; i < 2; i++)
		start_child(&children[i]);
	kvt_test_child_start(&spoiler, spoil, NULL);
	both_compute(children);
	for (uint64_t i = 0; i < KILLS; i++)
		one_is_killed(children, 1000 + i);
	kvt_test_send(spoiler.pipe, 0);
	kvt_test_child_finish(&spoiler);
	for (int i = 0; i < 2; i++) {
		kvt_test_send(children[i].pipe, 0);
		kvt_test_child_finish(&children[i]);
	}
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_daemon_end(&daemon_);
	return 0;
}
