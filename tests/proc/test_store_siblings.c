/* SPDX-License-Identifier: Apache-2.0 */
/* The store of instance A beside instances B and C of the same host, which have none.
 *
 * Inputs: prompts that workers of B and C serve, whose pages have content that depends on all keys.
 * Invariants: what is loaded in A has its bytes; whatever B does, A is served, and all audits are
 * clean. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/lib/cases.h"
#include "tests/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */
#define SALT 7

static struct kvt_test_side a, b, c;

static uint32_t serve(struct kvt_test_side *side, const uint32_t *keys)
{
	return kvt_test_side_serve(side, keys, N);
}

static void start_a(const char *config, const char *ram, const char *other)
{
	char itself[160]; /* as another user wrote it */
	const char *more[] = { "--sibling", b.daemon.socket, "--sibling", a.daemon.socket,
			       "--sibling", itself, other ? "--sibling" : NULL, other, NULL };

	kvt_test_daemon_begin(&a.daemon, config);
	snprintf(itself, sizeof(itself), "/.%s", a.daemon.socket);
	kvt_test_side_store(&a, ram, more);
	kvt_test_side_connect(&a);
}

static int start_with(const char *config, const char *ram)
{
	kvt_test_daemon_begin(&b.daemon, config);
	kvt_test_side_connect(&b);
	start_a(config, ram, NULL);
	return 0;
}

static int start(void **state)
{
	return start_with(NULL, "1M");
}

/* A copy of a page takes so long that it can be overtaken. */
static int start_big(void **state)
{
	return start_with("n_pages = 65\npage_bytes = 256K\n", "20M");
}

static int start_with_short_feed(void **state)
{
	return start_with("feed_bytes = 64K\n", "1M");
}

static int start_supervised(void **state)
{
	kvt_test_daemon_begin_supervised(&b.daemon, NULL);
	kvt_test_side_connect(&b);
	start_a(NULL, "1M", NULL);
	return 0;
}

static int start_three(void **state)
{
	kvt_test_daemon_begin(&b.daemon, NULL);
	kvt_test_side_connect(&b);
	kvt_test_daemon_begin(&c.daemon, NULL);
	kvt_test_side_connect(&c);
	start_a(NULL, "1M", c.daemon.socket);
	return 0;
}

static int stop(void **state)
{
	kvt_test_side_end(&a);
	kvt_test_side_end(&b);
	return 0;
}

static int stop_three(void **state)
{
	kvt_test_side_end(&c);
	return stop(state);
}

/* Wait until the store knows what so many siblings cache. */
static void await_known(uint32_t siblings, uint64_t pages)
{
	struct kvt_store_status status;

	do
		status = kvt_test_store_status(&a.peer);
	while (status.siblings_ready != siblings || status.sibling_pages != pages);
}

/* Serve prompt `number` in B, and wait until the store knows `pages`. */
static void cache_in_b(uint32_t *keys, uint32_t number, uint64_t pages)
{
	kvt_test_keys(keys, N, number);
	kvt_test_equal(serve(&b, keys), 0);
	await_known(1, pages);
}

TEST_WITH(what_b_computed_is_loaded_in_a, start, stop)
{
	struct kvt_store_status status;
	uint32_t keys[2][N];

	for (uint32_t i = 0; i < 2; i++)
		cache_in_b(keys[i], 1 + i, (i + 1) * N / PAGE);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_equal(serve(&a, keys[i]), N - PAGE);
	status = kvt_test_store_settled(&a.peer, 2 * N / PAGE);
	kvt_test_equal(status.sibling_read_pages, 2 * N / PAGE);
	kvt_test_equal(status.sibling_spoiled_pages, 0);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(status.loaded_pages, 2 * N / PAGE);
	/* In memory it outlives both pools. */
	kvt_test_side_evict(&a);
	kvt_test_side_evict(&b);
	await_known(1, 0);
	kvt_test_equal(serve(&a, keys[0]), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&a.peer).sibling_read_pages, 2 * N / PAGE);
}

TEST_WITH(what_was_cached_before_the_store_started_is_loaded, start, stop)
{
	static uint32_t keys[4][N];

	kvt_test_peer_close(&a.peer);
	kvt_test_equal(kvt_test_store_stop(&a.store), 0);
	for (uint32_t i = 0; i < 4; i++) {
		kvt_test_keys(keys[i], N, 10 + i);
		kvt_test_equal(serve(&b, keys[i]), 0);
	}
	kvt_test_side_store(&a, "1M", (const char *[]){ "--sibling", b.daemon.socket, NULL });
	await_known(1, 4 * N / PAGE);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_equal(serve(&a, keys[i]), N - PAGE);
}

TEST_WITH(it_loads_behind_what_a_has, start, stop)
{
	uint32_t keys[N], half[N];

	cache_in_b(keys, 3, N / PAGE);
	memcpy(half, keys, sizeof(half));
	kvt_test_keys(half + N / 2, N / 2, 4);
	serve(&a, half); /* the first half is loaded */
	kvt_test_equal(kvt_test_matched(a.worker, a.space, keys, N), N / 2);
	kvt_test_equal(serve(&a, keys), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&a.peer).sibling_read_pages, N / PAGE);
}

TEST_WITH(each_of_two_siblings_is_read, start_three, stop_three)
{
	uint32_t keys[2][N];

	for (uint32_t i = 0; i < 2; i++) {
		kvt_test_keys(keys[i], N, 5 + i);
		serve(i ? &c : &b, keys[i]);
	}
	await_known(2, 2 * N / PAGE);
	/* Its own daemon is listed, too, and is none. */
	kvt_test_equal(kvt_test_store_status(&a.peer).siblings, 2);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_equal(serve(&a, keys[i]), N - PAGE);
}

/* Return how many positions the store promises. */
static uint32_t fetch_in_a(const uint32_t *keys)
{
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = a.space, .keys = keys,
				     .n_keys = N };
	struct kvt_fetched answer;

	kvt_test_equal(kvt_fetch(a.worker, &begin), 1);
	while (kvt_fetch_poll(a.worker, &answer) == 0)
		;
	return answer.positions;
}

/* Evict all of B, and write over what a path had, front to back as the store reads it. */
static void overwrite(const uint32_t *path)
{
	uint32_t others[N];
	struct kvt_seq *seq;

	kvt_test_keys(others, N, 99);
	kvt_test_equal(kvt_seq_begin(b.worker, b.space, others, N, 0, 0, &seq), 0);
	kvt_test_equal(kvt_seq_reusable(seq), 0);
	for (uint32_t i = 0; i < N / PAGE; i++)
		kvt_test_page_fill(&b.pool, PAGE, path[i], SALT, others, i);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

TEST_WITH(a_copy_that_b_overtakes_is_never_loaded, start_big, stop)
{
	uint32_t keys[N], path[N / PAGE], n;
	struct kvt_store_status status;
	struct kvt_seq *seq;
	uint32_t round = 0;

	do {
		kvt_test_keys(keys, N, 100 + round++);
		serve(&b, keys);
		kvt_test_equal(kvt_seq_begin(b.worker, b.space, keys, N, 0, KVT_F_FULL, &seq), 0);
		memcpy(path, kvt_seq_pages(seq, &n), sizeof(path));
		kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
		while (fetch_in_a(keys) == 0)
			;
		overwrite(path);
		serve(&a, keys); /* checks the bytes of all */
		status = kvt_test_store_status(&a.peer);
	} while (round < 12 || !status.sibling_spoiled_pages || !status.sibling_read_pages);
}

TEST_WITH(a_stopped_sibling_is_read_and_delays_nothing, start, stop)
{
	uint32_t keys[4][N], unknown[N];

	for (uint32_t i = 0; i < 4; i++)
		cache_in_b(keys[i], 20 + i, (i + 1) * N / PAGE);
	kvt_test_freeze(b.daemon.pid);
	for (uint32_t i = 0; i < 3; i++)
		kvt_test_equal(serve(&a, keys[i]), N - PAGE);
	/* A call of B takes a second: the runner would not wait for so many. */
	kvt_test_keys(unknown, N, 30);
	for (uint32_t i = 0; i < 1000; i++)
		kvt_test_equal(kvt_test_side_fetch(&a, unknown, N), 0);
	/* Nor does a store wait for it that starts now. */
	kvt_test_peer_close(&a.peer);
	kvt_test_equal(kvt_test_store_stop(&a.store), 0);
	kvt_test_side_store(&a, "1M", (const char *[]){ "--sibling", b.daemon.socket, NULL });
	for (uint32_t i = 0; i < 1000; i++)
		kvt_test_equal(kvt_test_side_fetch(&a, unknown, N), 0);
	kvt_test_check(kill(b.daemon.pid, SIGCONT) == 0);
	await_known(1, 4 * N / PAGE);
	kvt_client_close(a.worker, KVT_IDLE); /* it looks for a store once a second */
	kvt_test_side_connect(&a);
	kvt_test_equal(serve(&a, keys[3]), N - PAGE);
}

TEST_WITH(a_sibling_that_is_killed_comes_back_cold, start, stop)
{
	uint32_t keys[N];

	cache_in_b(keys, 40, N / PAGE);
	kvt_client_close(b.worker, KVT_IDLE);
	kvt_test_check(kill(b.daemon.pid, SIGKILL) == 0);
	kvt_test_daemon_wait(&b.daemon);
	kvt_test_check(kvt_test_store_await(&a.store, "the daemon is gone"));
	await_known(0, 0);
	kvt_test_equal(serve(&a, keys), 0);
	kvt_test_daemon_start(&b.daemon, NULL);
	kvt_test_side_connect(&b);
	await_known(1, 0);
	cache_in_b(keys, 41, N / PAGE);
	kvt_test_equal(serve(&a, keys), N - PAGE);
}

TEST_WITH(a_sibling_that_restarts_with_all_it_had_is_read_again, start_supervised, stop)
{
	static uint32_t keys[4][N];
	struct kvt_counters counters;

	for (uint32_t i = 0; i < 3; i++) {
		cache_in_b(keys[i], 50 + i, (i + 1) * N / PAGE);
		kvt_test_daemon_succeed(&b.daemon);
	}
	cache_in_b(keys[3], 53, 4 * N / PAGE); /* its successor's feed tells of it */
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_equal(serve(&a, keys[i]), N - PAGE);
	/* The worker and one of the store, however often it connected. */
	kvt_test_until(&b.daemon, counters, counters.live_sessions == 2);
}

/* Do something to B, or to the store of A. */
static void disturb(struct kvt_test_random *random, const uint32_t *keys)
{
	pid_t daemon = kvt_test_daemon_child(&b.daemon);

	switch (kvt_test_random_below(random, 6)) {
	case 0:
		kvt_test_daemon_succeed(&b.daemon);
		break;
	case 1:
		kvt_test_freeze(daemon);
		serve(&a, keys);
		kvt_test_check(kill(daemon, SIGCONT) == 0);
		break;
	case 2:
		kvt_test_side_evict(&b);
		break;
	case 3:
		kvt_test_equal(kvt_reset(b.worker), 0);
		break;
	case 4:
		kvt_test_store_kill(&a.store);
		kvt_test_peer_close(&a.peer);
		kvt_test_side_store(&a, "64K", (const char *[]){ "--sibling", b.daemon.socket,
								 NULL });
		kvt_client_close(a.worker, KVT_IDLE); /* it looks for a store once a second */
		kvt_test_side_connect(&a);
		break;
	default:
		kvt_test_side_evict(&a);
	}
}

TEST_WITH(whatever_happens_to_b_what_is_loaded_in_a_is_right, start_supervised, stop)
{
	struct kvt_test_random random = { .state = 11 };
	uint32_t keys[N], n_read = 0;

	for (uint32_t round = 0; round < 150; round++) {
		kvt_test_keys(keys, N, 200 + kvt_test_random_below(&random, 8));
		serve(&b, keys);
		disturb(&random, keys);
		while (round % 2 && kvt_test_store_status(&a.peer).siblings_ready == 0)
			;
		serve(&a, keys); /* checks the bytes */
		n_read += kvt_test_store_status(&a.peer).sibling_read_pages > 0;
	}
	kvt_test_check(n_read > 0);
}

TEST_WITH(records_that_were_lost_are_made_up_for, start_with_short_feed, stop)
{
	uint32_t keys[N];

	kvt_client_close(b.worker, KVT_IDLE);
	kvt_test_side_connect(&b);
	await_known(1, 0);
	kvt_test_freeze(a.store.pid);
	for (uint32_t i = 0; i < 40; i++) { /* 4 KiB of keys each */
		kvt_test_keys(keys, N, 60 + i);
		kvt_test_equal(serve(&b, keys), 0);
	}
	kvt_test_check(kill(a.store.pid, SIGCONT) == 0);
	await_known(1, 40 * N / PAGE);
	kvt_test_equal(serve(&a, keys), N - PAGE);
}

TEST_WITH(after_a_reset_only_what_is_new_is_loaded, start, stop)
{
	uint32_t keys[N], others[N];

	cache_in_b(keys, 110, N / PAGE);
	kvt_test_equal(kvt_reset(a.worker), 0);
	kvt_test_check(kvt_test_store_await(&a.store, "the cache was reset"));
	await_known(1, 0);
	kvt_test_equal(serve(&a, keys), 0);
	cache_in_b(others, 111, N / PAGE);
	kvt_test_equal(serve(&a, others), N - PAGE);
	kvt_test_equal(kvt_reset(b.worker), 0);
	await_known(1, 0);
	kvt_test_store_drop(&a.peer);
	kvt_test_side_evict(&a);
	kvt_test_equal(serve(&a, others), 0);
}

/* Restart B, which keeps its cache, and wait until the store follows the successor: what is cached
 * before is in its snapshot, which is not taken. */
static void succeed_forgotten_b(uint32_t number)
{
	uint32_t keys[N];

	kvt_test_daemon_succeed(&b.daemon);
	kvt_test_keys(keys, N, number);
	kvt_test_equal(serve(&b, keys), 0);
	while (kvt_test_store_status(&a.peer).sibling_pages == 0) {
		kvt_test_equal(kvt_remove(b.worker, b.space, keys, PAGE), 0);
		kvt_test_equal(serve(&b, keys), 0);
	}
	await_known(1, N / PAGE);
}

TEST_WITH(what_was_forgotten_does_not_come_back_with_a_snapshot, start_supervised, stop)
{
	uint32_t keys[N], others[N];

	cache_in_b(keys, 114, N / PAGE);
	kvt_test_store_drop(&a.peer);
	await_known(1, 0);
	succeed_forgotten_b(115);
	kvt_test_equal(serve(&a, keys), 0);
	/* All that it caches is newer than its own reset. */
	kvt_test_equal(kvt_reset(b.worker), 0);
	await_known(1, 0);
	cache_in_b(keys, 116, N / PAGE);
	kvt_test_daemon_succeed(&b.daemon);
	cache_in_b(others, 117, 2 * N / PAGE);
	kvt_test_equal(serve(&a, keys), N - PAGE);
}

/* Restart B with another option: A says what is wrong, and does without it. */
static void find_nothing(const char *option, const char *said)
{
	uint32_t keys[N];

	kvt_client_close(b.worker, KVT_IDLE);
	kvt_test_check(kill(b.daemon.pid, SIGKILL) == 0);
	kvt_test_daemon_wait(&b.daemon);
	kvt_test_daemon_configure(&b.daemon, option);
	kvt_test_daemon_start(&b.daemon, NULL);
	kvt_test_check(kvt_test_store_await(&a.store, said));
	kvt_test_side_connect(&b);
	kvt_test_keys(keys, N, 120);
	kvt_test_equal(serve(&b, keys), 0);
	kvt_test_equal(kvt_test_store_status(&a.peer).siblings_ready, 0);
	kvt_test_equal(serve(&a, keys), 0);
}

TEST_WITH(a_sibling_with_other_pages_is_named_and_not_used, start, stop)
{
	find_nothing("page_bytes = 2048\n", "it has another model, layout or page size");
}

TEST_WITH(a_sibling_with_another_model_is_named_and_not_used, start, stop)
{
	find_nothing("fingerprint = other\n", "it has another model, layout or page size");
}

TEST_WITH(a_sibling_without_a_feed_is_named_and_not_used, start, stop)
{
	find_nothing("feed_bytes = 0\n", "the daemon has none: set feed_bytes");
}
