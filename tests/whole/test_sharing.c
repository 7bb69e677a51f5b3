/* SPDX-License-Identifier: Apache-2.0 */
/* Several processes share prefixes through the pool, with real page content. Each checks what it
 * reuses, position by position.
 *
 * Inputs: prompts with common beginnings. Invariant: content of reused pages, and a clean audit. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "libclient/state.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define PAGE 16u

struct worker {
	uint32_t seed, n;
	const char *name;
};

/* A process that serves one prompt when asked, and reports how much it reused. */
static void worker_run(int pipe, void *context)
{
	const struct worker *worker = context;
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t namespace_id = kvt_test_namespace(client, worker->name);
	struct kvt_pool pool;
	uint32_t keys[2000];
	uint64_t seed;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &seed)) {
		kvt_test_keys(keys, worker->n, (uint32_t)seed);
		kvt_test_send(pipe, kvt_test_serve(client, &pool, namespace_id, worker->name[0],
						   keys, worker->n));
	}
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

static void start_workers(struct kvt_test_child *children, int n, kvt_test_child_fn *run,
			  const struct worker *workers)
{
	for (int i = 0; i < n; i++)
		kvt_test_child_start(&children[i], run,
				     workers ? (void *)(uintptr_t)(workers + i) : NULL);
	for (int i = 0; i < n; i++)
		kvt_test_expect(children[i].pipe, 1);
}

static void end_workers(struct kvt_test_child *children, int n)
{
	for (int i = 0; i < n; i++)
		kvt_test_child_end(&children[i]);
}

TEST_WITH_DAEMON(a_prefix_computed_by_one_process_is_reused_in_place_by_the_others, NULL)
{
	static const struct worker workers[3] = { { .n = 1000, .name = "shared" },
						  { .n = 1000, .name = "shared" },
						  { .n = 1000, .name = "shared" } };
	struct kvt_test_child children[3];
	struct kvt_counters counters;

	start_workers(children, 3, worker_run, workers);
	kvt_test_equal(kvt_test_ask(&children[0], 5), 0);
	kvt_test_equal(kvt_test_ask(&children[1], 5), 992); /* 62 whole pages of 1,000 positions */
	kvt_test_equal(kvt_test_ask(&children[2], 5), 992);
	kvt_test_equal(kvt_test_ask(&children[2], 6), 0);
	kvt_test_equal(kvt_test_ask(&children[0], 6), 992);
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.cached_pages, 2 * 62);
	kvt_test_equal(counters.private_pages, 0);
	end_workers(children, 3);
	kvt_test_audit(&daemon_);
}

TEST_WITH_DAEMON(another_namespace_shares_nothing, NULL)
{
	static const struct worker workers[2] = { { .n = 320, .name = "a-adapter" },
						  { .n = 320, .name = "base" } };
	struct kvt_test_child children[2];

	start_workers(children, 2, worker_run, workers);
	kvt_test_equal(kvt_test_ask(&children[0], 9), 0);
	kvt_test_equal(kvt_test_ask(&children[1], 9), 0);
	/* All of 320 positions match: one page is left to compute. */
	kvt_test_equal(kvt_test_ask(&children[0], 9), 304);
	kvt_test_equal(kvt_test_ask(&children[1], 9), 304);
	end_workers(children, 2);
	kvt_test_audit(&daemon_);
}

/* Two processes compute the same new prefix at the same time, chunk by chunk. */
TEST_WITH_DAEMON(a_prefix_computed_twice_is_stored_once_and_both_tables_stay_right, NULL)
{
	struct kvt_client *clients[2];
	struct kvt_seq *seqs[2];
	struct kvt_pool pools[2];
	uint32_t keys[640], namespaces[2], n_pages, at[2] = { 0, 0 };
	struct kvt_counters counters;

	kvt_test_keys(keys, 640, 4711);
	for (int i = 0; i < 2; i++) {
		clients[i] = kvt_test_connect(&daemon_);
		clients[i]->begin_wait_ns = -1; /* both compute it */
		namespaces[i] = kvt_test_namespace(clients[i], "twice");
		kvt_test_equal(kvt_pool_map(clients[i], &pools[i]), 0);
		kvt_test_equal(kvt_seq_begin(clients[i], namespaces[i], keys, 640, 0, 0,
					     &seqs[i]), 0);
		kvt_test_equal(kvt_seq_reusable(seqs[i]), 0);
		kvt_test_equal(kvt_seq_announced(seqs[i]), i == 0 ? 0 : 640);
	}
	for (uint32_t round = 0; at[0] < 640 || at[1] < 640; round++) {
		uint32_t i = round % 2, end;
		const uint32_t *pages = kvt_seq_pages(seqs[i], &n_pages);

		if (at[i] >= 640)
			continue;
		end = at[i] + 64 > 640 ? 640 : at[i] + 64;
		for (uint32_t p = at[i] / PAGE; p < end / PAGE; p++)
			kvt_test_page_fill(&pools[i], PAGE, pages[p], 't', keys, p);
		kvt_test_equal(kvt_seq_commit(seqs[i], end, NULL, 0, KVT_IDLE, KVT_F_CHUNKED), 0);
		at[i] = kvt_seq_next(seqs[i]);
		kvt_test_check(at[i] >= end);
	}
	for (int i = 0; i < 2; i++) {
		const uint32_t *pages = kvt_seq_pages(seqs[i], &n_pages);

		kvt_test_equal(n_pages, 40);
		for (uint32_t p = 0; p < 40; p++)
			kvt_test_check(
				kvt_test_page_right(&pools[i], PAGE, pages[p], 't', keys, p));
		kvt_test_equal(kvt_seq_end(seqs[i], 0, NULL, 0, KVT_IDLE, 0), 0);
	}
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.private_pages, 0);
	kvt_test_equal(counters.protected_pages, 0);
	for (int i = 0; i < 2; i++)
		kvt_test_equal(kvt_client_close(clients[i], KVT_IDLE), 0);
	kvt_test_audit(&daemon_);
}

/* More processes than pages: exactly one gets the last, the others are refused, nothing is lost. */
static void grabber_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t page = 0;
	uint64_t word;

	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &word)) {
		int error = kvt_alloc(client, 1, &page);

		kvt_test_check(error == 0 || error == -ENOSPC);
		kvt_test_send(pipe, error == 0);
		kvt_test_check(kvt_test_receive(pipe, &word));
		if (error == 0)
			kvt_test_equal(kvt_free(client, &page, 1, KVT_IDLE), 0);
		kvt_test_send(pipe, 2);
	}
	kvt_client_close(client, KVT_IDLE);
}

TEST_WITH_DAEMON(the_last_page_goes_to_exactly_one_process, NULL)
{
	enum { GRABBERS = 6, ROUNDS = 200 };
	struct kvt_test_child children[GRABBERS];
	struct kvt_client *hog = kvt_test_connect(&daemon_);
	static uint32_t pages[4096];

	/* All but one page; cached ones are evicted for it. */
	kvt_test_equal(kvt_alloc(hog, 4094, pages), 0);
	start_workers(children, GRABBERS, grabber_run, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t got = 0;

		for (int i = 0; i < GRABBERS; i++)
			kvt_test_send(children[i].pipe, 1);
		for (int i = 0; i < GRABBERS; i++)
			got += kvt_test_word(children[i].pipe);
		kvt_test_equal(got, 1);
		for (int i = 0; i < GRABBERS; i++)
			kvt_test_send(children[i].pipe, 1);
		for (int i = 0; i < GRABBERS; i++)
			kvt_test_expect(children[i].pipe, 2);
	}
	end_workers(children, GRABBERS);
	kvt_test_equal(kvt_free(hog, pages, 4094, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(hog, KVT_IDLE), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).free_pages, 4095);
	kvt_test_audit(&daemon_);
}

/* A reader decodes from its prefix while the prefix is evicted, removed and reset. */
TEST_WITH_DAEMON(a_locked_prefix_stays_readable_whatever_others_do, NULL)
{
	struct kvt_client *reader = kvt_test_connect(&daemon_), *other = kvt_test_connect(&daemon_);
	uint32_t namespaces[2] = { kvt_test_namespace(reader, "keep"),
				   kvt_test_namespace(other, "keep") };
	uint32_t keys[320], evicted, n_pages, more[64];
	const uint32_t *pages;
	struct kvt_pool pool;
	struct kvt_seq *seq;

	kvt_test_keys(keys, 320, 31);
	kvt_test_equal(kvt_pool_map(reader, &pool), 0);
	kvt_test_equal(kvt_test_serve(reader, &pool, namespaces[0], 'k', keys, 320), 0);
	kvt_test_equal(kvt_seq_begin(reader, namespaces[0], keys, 320, 64, KVT_F_FULL, &seq), 0);
	kvt_test_equal(kvt_seq_reusable(seq), 320);
	kvt_test_equal(kvt_evict(other, 4095, &evicted), 0);
	kvt_test_equal(evicted, 0);
	kvt_test_equal(kvt_remove(other, namespaces[1], keys, 160), 0);
	kvt_test_equal(kvt_reset(other), 0);
	kvt_test_equal(kvt_alloc(other, 64, more), 0);
	pages = kvt_seq_pages(seq, &n_pages);
	for (uint32_t i = 0; i < 20; i++)
		kvt_test_check(kvt_test_page_right(&pool, PAGE, pages[i], 'k', keys, i));
	kvt_test_keys(keys, 16, 1);
	kvt_test_equal(kvt_seq_commit(seq, 336, keys, 16, KVT_IDLE, 0), -ESTALE);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ESTALE);
	kvt_test_equal(kvt_free(other, more, 64, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(reader, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(other, KVT_IDLE), 0);
	kvt_test_equal(kvt_test_settled(&daemon_).free_pages, 4095);
	kvt_test_audit(&daemon_);
}
