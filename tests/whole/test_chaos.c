/* SPDX-License-Identifier: Apache-2.0 */
/* Many processes do random operations and are killed at random. Invariants: the pool stays whole,
 * no page ever has wrong content, and the operation log agrees with the model exactly.
 *
 * Inputs: an eviction policy and a seed per case. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/state.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

enum { PAGE = 4, WORKERS = 5, KILLS = 60, MOST_KEYS = 400, MOST_SEQS = 4, MOST_PAGES = 24 };

struct worker {
	int pipe;
	struct kvt_client *client;
	struct kvt_pool pool;
	struct kvt_test_random random;
	uint32_t namespaces[2];
	uint32_t loose[MOST_PAGES]; /* private pages without a lease */
	uint32_t n_loose;
	uint64_t refused;
};

static uint32_t below(struct worker *worker, uint32_t n)
{
	return kvt_test_random_below(&worker->random, n);
}

/* Prompts share beginnings: a choice of trunk, and of branch at fixed places. */
static uint32_t random_keys(struct worker *worker, uint32_t *keys)
{
	uint32_t n = below(worker, MOST_KEYS), path = below(worker, 3);

	for (uint32_t i = 0; i < n; i++) {
		if (i > 0 && i % 37 == 0)
			path = path * 3 + below(worker, i < 120 ? 3 : 2);
		keys[i] = (path * 2654435761u + i * 40503u) & 0x7fffffffu;
	}
	return n;
}

/* Answers of a busy pool; anything else is a failure. */
static bool granted(struct worker *worker, int error, const char *what)
{
	if (error == 0)
		return true;
	if (error != -ENOSPC && error != -EDQUOT && error != -ESTALE)
		kvt_test_fail("%s: %s (%s)", what, kvt_errno_name(error),
			      kvt_client_error(worker->client)->text);
	worker->refused++;
	return false;
}

static void check_pages(struct worker *worker, uint64_t salt, const uint32_t *pages,
			const uint32_t *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!kvt_test_page_right(&worker->pool, PAGE, pages[i], salt, keys, i))
			kvt_test_fail("page %u of place %u shows something else", pages[i], i);
}

struct running {
	struct kvt_seq *seq;
	uint32_t keys[MOST_KEYS + 64];
	uint32_t n_keys, known, at; /* positions: with keys; known to the daemon; computed */
	uint32_t which;             /* namespace */
};

static void sequence_start(struct worker *worker, struct running *running)
{
	static const uint32_t flags[] = { 0, 0, 0, KVT_F_FULL, KVT_F_FORCE_MISS };
	uint32_t n_pages;

	running->n_keys = running->known = random_keys(worker, running->keys);
	running->which = below(worker, 2);
	for (uint32_t i = 0; i < 64; i++)
		running->keys[running->n_keys + i] = below(worker, 1u << 20);
	if (!granted(worker,
		     kvt_seq_begin(worker->client, worker->namespaces[running->which],
				   running->keys, running->n_keys, below(worker, 20),
				   flags[below(worker, 5)], &running->seq), "begin")) {
		running->seq = NULL;
		return;
	}
	running->at = kvt_seq_reusable(running->seq);
	check_pages(worker, running->which, kvt_seq_pages(running->seq, &n_pages), running->keys,
		    running->at / PAGE);
}

/* One of the commits in flight was refused: continue where the daemon is. */
static void fall_back(struct worker *worker, struct running *running)
{
	uint32_t next;

	granted(worker, kvt_seq_settle(running->seq), "settle");
	next = kvt_seq_next(running->seq);
	running->at = next;
	running->known = next > running->n_keys ? next : running->n_keys;
}

/* Settle commits in flight. Until here the table was the old one, and its pages, displaced ones
 * too, kept what was computed into them. */
static bool sequence_look(struct worker *worker, struct running *running)
{
	uint32_t n_pages;
	int in_flight;

	check_pages(worker, running->which, kvt_seq_pages(running->seq, &n_pages), running->keys,
		    running->at / PAGE);
	in_flight = kvt_seq_poll(running->seq);
	if (!granted(worker, in_flight < 0 ? in_flight : 0, "poll")) {
		fall_back(worker, running);
		return false;
	}
	if (running->at < kvt_seq_next(running->seq))
		running->at = kvt_seq_next(running->seq);
	check_pages(worker, running->which, kvt_seq_pages(running->seq, &n_pages), running->keys,
		    running->at / PAGE);
	return true;
}

static int publish(struct worker *worker, struct running *running, uint32_t end,
		   uint32_t generated)
{
	const uint32_t *keys = running->keys + running->known;
	uint32_t flags = below(worker, 2) ? KVT_F_CHUNKED : 0;
	int error = -EAGAIN;

	if (below(worker, 2))
		error = kvt_seq_commit_async(running->seq, end, keys, generated, KVT_IDLE, flags);
	if (error == -EAGAIN) /* or too many in flight */
		error = kvt_seq_commit(running->seq, end, keys, generated, KVT_IDLE, flags);
	return error;
}

/* Compute up to `end` and publish it. */
static void sequence_step(struct worker *worker, struct running *running)
{
	uint32_t n_pages, end, generated = 0;
	const uint32_t *pages;

	if (!sequence_look(worker, running))
		return;
	pages = kvt_seq_pages(running->seq, &n_pages);
	end = running->at + below(worker, 64);
	if (end > running->n_keys + 64)
		end = running->n_keys + 64;
	if (end > n_pages * PAGE)
		end = n_pages * PAGE;
	if (end > running->known)
		generated = end - running->known;
	for (uint32_t i = running->at / PAGE; i < end / PAGE; i++)
		kvt_test_page_fill(&worker->pool, PAGE, pages[i], running->which, running->keys, i);
	if (!granted(worker, publish(worker, running, end, generated), "commit")) {
		fall_back(worker, running);
		return;
	}
	running->known += generated;
	running->at = kvt_seq_next(running->seq);
	check_pages(worker, running->which, kvt_seq_pages(running->seq, &n_pages), running->keys,
		    running->at / PAGE);
}

static void do_sequence(struct worker *worker, struct running *all)
{
	struct running *running = &all[below(worker, MOST_SEQS)];

	if (!running->seq) {
		sequence_start(worker, running);
		return;
	}
	switch (below(worker, 8)) {
	case 0:
		granted(worker, kvt_seq_extend(running->seq, below(worker, 4) * PAGE), "extend");
		break;
	case 1:
		granted(worker, kvt_seq_end(running->seq, 0, NULL, 0, KVT_IDLE, 0), "end");
		running->seq = NULL;
		break;
	default:
		sequence_step(worker, running);
		break;
	}
}

static void do_insert(struct worker *worker)
{
	uint32_t keys[MOST_KEYS], which = below(worker, 2), n = random_keys(worker, keys) / PAGE;
	struct kvt_result result;
	uint32_t kept = 0;

	if (n > worker->n_loose)
		n = worker->n_loose;
	for (uint32_t i = 0; i < n; i++)
		kvt_test_page_fill(&worker->pool, PAGE, worker->loose[i], which, keys, i);
	if (!granted(worker, kvt_insert(worker->client, worker->namespaces[which], keys, n * PAGE,
					worker->loose, (struct kvt_handle){ 0, 0, 0 }, KVT_IDLE, 0,
					&result), "insert"))
		return;
	/* Duplicates stay private; pages that were taken do not. */
	for (uint32_t i = 0; i < result.n_twins; i++)
		worker->loose[kept++] = result.twins[2 * i];
	kvt_test_equal(result.inserted + result.n_twins, n);
	kvt_result_release(worker->client, &result);
	for (uint32_t i = n; i < worker->n_loose; i++)
		worker->loose[kept++] = worker->loose[i];
	worker->n_loose = kept;
}

static void do_pages(struct worker *worker)
{
	uint32_t n = below(worker, 8);

	if (below(worker, 2) && worker->n_loose + n <= MOST_PAGES) {
		if (granted(worker, kvt_alloc(worker->client, n, worker->loose + worker->n_loose),
			    "alloc"))
			worker->n_loose += n;
	} else if (n <= worker->n_loose) {
		worker->n_loose -= n;
		kvt_test_equal(kvt_free(worker->client, worker->loose + worker->n_loose, n,
					KVT_IDLE), 0);
	}
}

static void do_lookup(struct worker *worker)
{
	uint32_t keys[MOST_KEYS], which = below(worker, 2), n = random_keys(worker, keys);
	uint32_t pages[MOST_KEYS / PAGE], n_pages;
	struct kvt_handle handle;
	struct kvt_lease lease;
	uint32_t matched;
	int error;

	error = kvt_probe(worker->client, worker->namespaces[which], keys, n, &handle, &matched);
	if (error == -EAGAIN || (error == 0 && matched == 0))
		return;
	kvt_test_equal(error, 0);
	kvt_test_check(matched <= n && matched % PAGE == 0);
	error = kvt_lock(worker->client, handle, &lease, pages, MOST_KEYS / PAGE, &n_pages);
	if (!granted(worker, error, "lock"))
		return;
	kvt_test_equal(n_pages, matched / PAGE);
	check_pages(worker, which, pages, keys, n_pages);
	kvt_test_equal(kvt_unlock(worker->client, lease, KVT_IDLE), 0);
}

static void do_rare(struct worker *worker)
{
	uint32_t keys[MOST_KEYS], n = random_keys(worker, keys), evicted;
	int error;

	switch (below(worker, 12)) {
	case 0:
		kvt_test_equal(kvt_reset(worker->client), 0);
		break;
	case 1:
		kvt_test_equal(kvt_evict(worker->client, below(worker, 50), &evicted), 0);
		break;
	default:
		error = kvt_remove(worker->client, worker->namespaces[below(worker, 2)],
				   n ? keys : NULL, n);
		kvt_test_check(error >= 0);
	}
}

static void worker_run(int pipe, void *context)
{
	struct worker worker = { .pipe = pipe, .random = { *(uint64_t *)context } };
	static struct running running[MOST_SEQS];

	worker.client = kvt_test_connect(&daemon_);
	worker.client->begin_wait_ns = 2000000; /* deadlines pass, too */
	worker.namespaces[0] = kvt_test_namespace(worker.client, "one");
	worker.namespaces[1] = kvt_test_namespace(worker.client, "two");
	kvt_test_equal(kvt_pool_map(worker.client, &worker.pool), 0);
	for (uint64_t n = 1;; n++) {
		uint32_t what = below(&worker, 100);

		if (what < 70)
			do_sequence(&worker, running);
		else if (what < 80)
			do_pages(&worker);
		else if (what < 90)
			do_insert(&worker);
		else if (what < 98)
			do_lookup(&worker);
		else
			do_rare(&worker);
		if (n % 16 == 0)
			kvt_test_send(pipe, worker.refused);
	}
}

static void random_work_with_kills(const char *policy, uint64_t seed)
{
	struct kvt_test_child children[WORKERS];
	struct kvt_test_random random = { seed };
	struct kvt_counters counters;
	char config[512];
	uint64_t word, seeds = seed * 1000;

	snprintf(config, sizeof(config), "page_size = 4\npage_bytes = 64\nn_pages = 700\n"
		 "max_leases = 64\npolicy = %s\n", policy);
	kvt_test_daemon_begin_logged(&daemon_, config, false);
	for (int i = 0; i < WORKERS; i++, seeds++)
		kvt_test_child_start(&children[i], worker_run, &seeds);
	for (int kills = 0; kills < KILLS; kills++) {
		struct kvt_test_child *victim = &children[kvt_test_random_below(&random, WORKERS)];

		for (uint32_t n = 1 + kvt_test_random_below(&random, 40); n > 0; n--)
			if (!kvt_test_receive(victim->pipe, &word))
				kvt_test_fail("a worker failed by itself");
		kvt_test_child_kill(victim, SIGKILL);
		seeds++;
		kvt_test_child_start(victim, worker_run, &seeds);
	}
	for (int i = 0; i < WORKERS; i++)
		kvt_test_child_kill(&children[i], SIGKILL);
	kvt_test_until(&daemon_, counters,
		       counters.live_sessions == 0 && counters.quarantined_pages == 0);
	kvt_test_equal(counters.private_pages, 0);
	kvt_test_equal(counters.protected_pages, 0);
	kvt_test_equal(counters.free_pages + counters.cached_pages, 699);
	kvt_test_audit(&daemon_);
	print_message("%s: %llu operations, %llu hits of %llu positions\n", policy,
		      (unsigned long long)counters.operations,
		      (unsigned long long)counters.hit_positions,
		      (unsigned long long)counters.input_positions);
	kvt_test_daemon_end(&daemon_);
}

TEST(random_operations_and_kills_under_lru_agree_with_the_model)
{
	random_work_with_kills("lru", 1);
}

TEST(random_operations_and_kills_under_slru_agree_with_the_model)
{
	random_work_with_kills("slru", 2);
}

TEST(random_operations_and_kills_under_lfu_agree_with_the_model)
{
	random_work_with_kills("lfu", 3);
}
