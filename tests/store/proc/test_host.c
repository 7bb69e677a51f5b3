/* SPDX-License-Identifier: Apache-2.0 */
/* One store for three instances, beside real daemons.
 *
 * Inputs: prompts that workers of each instance serve, whose pages have content that depends on all
 * their keys; deaths, stops and resets of daemons, and of the store. Invariants: a page that comes
 * back has its bytes, whichever instance computed it; what happens to one daemon costs the others
 * nothing; each audit is clean. $SECONDS_OF_STORES: time of each of the last two tests. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/clock.h"
#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 512u /* positions of a prompt */
#define PAGES (N / PAGE)
#define SIDES 3u
#define PROMPTS 40u /* of the last test */

static struct kvt_test_side sides[SIDES];
static struct kvt_test_store more[SIDES - 1];
static char directory[TEST_FOLDER_BYTES], path[96];

/* Start the store for the first n instances and connect to it. */
static void start_store_for(uint32_t n, const char *ram, const char *const *options)
{
	const struct kvt_test_daemon *daemons[SIDES];

	for (uint32_t i = 0; i < n; i++)
		daemons[i] = &sides[i].daemon;
	kvt_test_store_start_host(&sides[0].store, more, daemons, n, ram, options);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_peer_open(&sides[i].peer, i ? &more[i - 1] : &sides[0].store);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_side_connect(&sides[i]);
}

static void start_store(const char *ram, const char *const *options)
{
	start_store_for(SIDES, ram, options);
}

static void start_daemons(const char *config)
{
	memset(sides, 0, sizeof(sides));
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_daemon_begin(&sides[i].daemon, config);
}

static int start(void **state)
{
	start_daemons(NULL);
	start_store("1M", NULL);
	return 0;
}

static void close_peers(void)
{
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_peer_close(&sides[i].peer);
}

static void end_worker(struct kvt_test_side *side)
{
	kvt_client_close(side->worker, KVT_IDLE);
	side->worker = NULL;
}

static int stop(void **state)
{
	close_peers();
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_side_end(&sides[i]);
	return 0;
}

static int start_with_file(void **state)
{
	make_folder_on_disk(directory);
	snprintf(path, sizeof(path), "%s/pages", directory);
	need_direct_io(directory, path);
	start_daemons(NULL);
	start_store("1M", (const char *[]){ "--file", path, "--file-bytes", "16M", NULL });
	return 0;
}

static int stop_with_file(void **state)
{
	stop(state);
	remove_folder_on_disk(directory, path);
	return 0;
}

static uint32_t serve(uint32_t side, uint32_t prompt)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, prompt);
	return kvt_test_side_serve(&sides[side], keys, N);
}

static struct kvt_store_status settled(uint64_t pages)
{
	struct kvt_store_status status = kvt_test_store_settled(&sides[0].peer, pages);

	for (uint32_t i = 1; i < SIDES; i++)
		if (sides[i].peer.keys)
			kvt_test_store_settled(&sides[i].peer, pages);
	return status;
}

TEST_WITH(what_one_instance_computed_is_loaded_in_the_others, start, stop)
{
	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(settled(PAGES).copied_pages, PAGES);
	kvt_test_side_evict(&sides[0]);
	for (uint32_t i = 1; i < SIDES; i++)
		kvt_test_equal(serve(i, 1), N - PAGE);
	kvt_test_equal(serve(0, 1), N - PAGE);
	kvt_test_equal(settled(PAGES).instances, SIDES);
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_equal(kvt_test_store_status(&sides[i].peer).loaded_pages, PAGES);
}

TEST_WITH(a_prompt_that_all_compute_is_copied_once, start, stop)
{
	uint64_t copied = 0;

	for (uint32_t i = 0; i < SIDES; i++) { /* none asks the store */
		end_worker(&sides[i]);
		sides[i].fetch_wait_ns = -1;
		kvt_test_side_connect(&sides[i]);
		kvt_test_equal(serve(i, 1), 0);
	}
	settled(PAGES);
	for (uint32_t i = 0; i < SIDES; i++)
		copied += kvt_test_store_status(&sides[i].peer).copied_pages;
	kvt_test_equal(copied, PAGES);
}

TEST_WITH(a_daemon_that_was_killed_leaves_what_it_had, start, stop)
{
	kvt_test_equal(serve(0, 1), 0);
	settled(PAGES);
	kvt_test_equal(kill(sides[0].daemon.pid, SIGKILL), 0);
	kvt_test_daemon_wait(&sides[0].daemon);
	end_worker(&sides[0]);
	kvt_test_equal(serve(1, 1), N - PAGE);
	kvt_test_equal(serve(2, 2), 0);
	while (kvt_test_store_status(&sides[1].peer).instances != SIDES - 1)
		;
	kvt_test_daemon_start(&sides[0].daemon, NULL);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "connected again"));
	kvt_test_peer_close(&sides[0].peer); /* it was dropped, with the pool that it asked for */
	kvt_test_peer_open(&sides[0].peer, &sides[0].store);
	kvt_test_side_connect(&sides[0]);
	kvt_test_equal(serve(0, 1), N - PAGE);
	settled(2 * PAGES);
	kvt_test_equal(serve(0, 2), N - PAGE);
}

static int by_time(const void *one, const void *other)
{
	const int64_t *a = one, *b = other;

	return *a < *b ? -1 : *a > *b;
}

/* Its load waits for an answer of the daemon meanwhile. */
TEST_WITH(a_stopped_daemon_delays_no_other, start, stop)
{
	static int64_t took[4000];
	uint32_t keys[N];

	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(serve(1, 2), 0);
	settled(2 * PAGES);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_side_evict(&sides[i]);
	kvt_test_freeze(sides[0].daemon.pid);
	kvt_test_keys(keys, N, 900);
	for (uint32_t i = 0; i < 4000; i++) {
		int64_t began = kvt_now_ns();

		kvt_test_equal(kvt_test_side_fetch(&sides[1], keys, N), 0);
		took[i] = kvt_now_ns() - began;
	}
	kvt_test_equal(serve(1, 1), N - PAGE); /* what the stopped one had */
	qsort(took, 4000, sizeof(*took), by_time);
	printf("FETCH beside a stopped daemon: p50 %lld us, p99 %lld us, slowest %lld us\n",
	       (long long)took[2000] / 1000, (long long)took[3960] / 1000,
	       (long long)took[3999] / 1000);
	kvt_test_equal(kill(sides[0].daemon.pid, SIGCONT), 0);
	kvt_test_equal(serve(0, 2), N - PAGE);
}

/* Kill the store, and start another one. */
static void kill_store(void)
{
	close_peers();
	kvt_test_store_kill(&sides[0].store);
	for (uint32_t i = 1; i < SIDES; i++)
		kvt_test_store_unlink(&more[i - 1]);
	for (uint32_t i = 0; i < SIDES; i++)
		end_worker(&sides[i]);
	start_store("1M", NULL);
}

TEST_WITH(a_store_that_was_killed_copies_what_pools_have_again, start, stop)
{
	kvt_test_equal(serve(0, 1), 0);
	settled(PAGES);
	kill_store();
	settled(PAGES);
	kvt_test_equal(serve(1, 1), N - PAGE);
}

TEST_WITH(a_reset_in_one_reaches_all, start, stop)
{
	uint32_t keys[N];

	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(serve(1, 2), 0);
	settled(2 * PAGES);
	kvt_test_equal(kvt_reset(sides[0].worker), 0);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "the cache was reset"));
	for (uint32_t i = 1; i <= 2; i++) {
		kvt_test_keys(keys, N, i);
		kvt_test_equal(kvt_test_side_fetch(&sides[2], keys, N), 0);
	}
	/* Other pools are as before: but what they cached before is not copied again. */
	kvt_test_keys(keys, N, 2);
	kvt_test_equal(kvt_test_matched(sides[1].worker, sides[1].space, keys, N), N);
	kvt_test_equal(serve(2, 3), 0);
	settled(PAGES);
	kvt_test_equal(serve(0, 3), N - PAGE);
	kvt_test_side_evict(&sides[1]);
	kvt_test_equal(serve(1, 2), 0); /* stored again: it is copied */
	settled(2 * PAGES);
	kvt_test_equal(serve(0, 2), N - PAGE);
}

/* Also of one that is stopped then. */
TEST_WITH(a_drop_in_one_keeps_out_what_all_cached_before, start, stop)
{
	kvt_test_equal(serve(0, 1), 0);
	settled(PAGES);
	kvt_test_freeze(sides[0].daemon.pid);
	kvt_test_equal(kvt_test_store_drop(&sides[1].peer).head.result, 0);
	kvt_test_equal(kill(sides[0].daemon.pid, SIGCONT), 0);
	kvt_test_equal(serve(0, 2), 0);
	settled(PAGES); /* the second prompt, not the first */
	kvt_test_equal(serve(1, 2), N - PAGE);
	kvt_test_equal(serve(1, 1), 0);
}

TEST(an_instance_with_other_pages_is_named_and_the_others_are_served)
{
	struct kvt_test_store one = { .pid = 0 }, other = { .pid = 0 };
	uint32_t served;

	start_daemons(NULL);
	kvt_test_daemon_stop(&sides[2].daemon);
	kvt_test_daemon_configure(&sides[2].daemon, "page_bytes = 8192\n");
	kvt_test_daemon_start(&sides[2].daemon, NULL);
	kvt_test_store_spawn(&sides[0].store, &sides[0].daemon, "1M", (const char *[]){
		"--socket", sides[2].daemon.socket, NULL });
	kvt_test_check(kvt_test_store_await(&sides[0].store, "have another size than those"));
	snprintf(one.path, sizeof(one.path), "%s.store", sides[0].daemon.socket);
	snprintf(other.path, sizeof(other.path), "%s.store", sides[2].daemon.socket);
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_side_connect(&sides[i]);
	/* The first one tells the size, and is served soon. */
	for (served = 0; !kvt_test_peer_try(&sides[served].peer, served ? &other : &one);)
		served = 2 - served;
	kvt_test_equal(serve(served, 1), 0);
	kvt_test_store_settled(&sides[served].peer, PAGES);
	kvt_test_equal(access(served ? one.path : other.path, F_OK), -1);
	stop(NULL);
}

TEST(a_daemon_that_comes_late_is_served)
{
	start_daemons(NULL);
	kvt_test_daemon_stop(&sides[1].daemon);
	kvt_test_store_spawn(&sides[0].store, &sides[0].daemon, "1M", (const char *[]){
		"--socket", sides[1].daemon.socket, NULL });
	kvt_test_check(kvt_test_store_await(&sides[0].store, "serving"));
	kvt_test_peer_open(&sides[0].peer, &sides[0].store);
	kvt_test_side_connect(&sides[0]);
	kvt_test_side_connect(&sides[2]);
	kvt_test_equal(serve(0, 1), 0);
	kvt_test_store_settled(&sides[0].peer, PAGES);
	kvt_test_daemon_start(&sides[1].daemon, NULL);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "serving"));
	kvt_test_side_connect(&sides[1]);
	kvt_test_equal(serve(1, 1), N - PAGE);
	stop(NULL);
}

/* Name the socket of a daemon in the folder of this test. `ret_store`: where its store's is. */
static void name_socket(uint32_t side, struct kvt_test_store *ret_store)
{
	char name[96];

	snprintf(name, sizeof(name), "%s/gpu%u.sock", directory, side);
	kvt_test_equal(symlink(sides[side].daemon.socket, name), 0);
	*ret_store = (struct kvt_test_store){ .pid = 0 };
	snprintf(ret_store->path, sizeof(ret_store->path), "%s/gpu%u.store", directory, side);
}

TEST(daemons_of_a_pattern_are_served_as_they_come)
{
	struct kvt_test_daemon pattern = { .pid = 0 };
	struct kvt_test_store store, at[2];
	uint32_t keys[N];
	char command[96];

	start_daemons(NULL);
	snprintf(directory, sizeof(directory), "/tmp/kvt-store-XXXXXX");
	kvt_test_check(mkdtemp(directory));
	snprintf(pattern.socket, sizeof(pattern.socket), "%s/*.sock", directory);
	name_socket(0, &at[0]);
	kvt_test_store_spawn(&store, &pattern, "1M", NULL);
	kvt_test_check(kvt_test_store_await(&store, "gpu0: serving"));
	name_socket(1, &at[1]);
	kvt_test_check(kvt_test_store_await(&store, "gpu1: serving"));
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_side_connect(&sides[i]);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_peer_open(&sides[i].peer, &at[i]);
	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(kvt_test_store_settled(&sides[0].peer, PAGES).instances, 2);
	kvt_test_keys(keys, N, 1);
	kvt_test_equal(kvt_test_side_fetch(&sides[1], keys, N), N);
	close_peers();
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	snprintf(command, sizeof(command), "rm -r %s", directory);
	kvt_test_equal(system(command), 0);
	stop(NULL);
}

TEST_WITH(a_reset_of_one_while_no_store_runs_reaches_the_file, start_with_file, stop_with_file)
{
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_equal(serve(i, 1 + i), 0);
	settled(SIDES * PAGES);
	close_peers();
	kvt_test_equal(kvt_test_store_stop(&sides[0].store), 0);
	kvt_test_equal(kvt_reset(sides[1].worker), 0);
	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_side_evict(&sides[i]);
		end_worker(&sides[i]);
	}
	start_store("1M", (const char *[]){ "--file", path, "--file-bytes", "16M", NULL });
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_equal(serve(0, 1 + i), 0);
}

TEST_WITH(pages_of_all_come_back_from_one_file, start_with_file, stop_with_file)
{
	for (uint32_t i = 0; i < 12; i++) /* more than the memory */
		kvt_test_equal(serve(i % SIDES, 1 + i), 0);
	for (uint32_t i = 0; i < SIDES; i++)
		while (kvt_test_store_status(&sides[i].peer).queued_pages > 0)
			;
	close_peers();
	kvt_test_equal(kvt_test_store_stop(&sides[0].store), 0);
	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_side_evict(&sides[i]);
		end_worker(&sides[i]);
	}
	start_store("1M", (const char *[]){ "--file", path, "--file-bytes", "16M", NULL });
	for (uint32_t i = 9; i < 12; i++)
		kvt_test_equal(serve((i + 1) % SIDES, 1 + i), N - PAGE);
	kvt_test_check(kvt_test_store_status(&sides[0].peer).file_read_pages > 0);
}

/* ---- all at once */

static void kill_daemon(struct kvt_test_side *side)
{
	kvt_test_equal(kill(side->daemon.pid, SIGKILL), 0);
	kvt_test_daemon_wait(&side->daemon);
	end_worker(side);
	kvt_test_daemon_start(&side->daemon, NULL);
	kvt_test_side_connect(side);
}

static int64_t seconds(void)
{
	const char *text = getenv("SECONDS_OF_STORES");

	return text ? atoll(text) : 2;
}

static void serve_for_ever(int pipe, void *context)
{
	struct kvt_test_side *side = context;
	uint32_t keys[N];

	srand((unsigned int)getpid());
	kvt_test_side_connect(side);
	kvt_test_send(pipe, 1);
	for (;;) {
		kvt_test_keys(keys, N, 1 + (uint32_t)rand() % PROMPTS);
		kvt_test_side_serve(side, keys, N); /* compares the bytes of what is reused */
		if (rand() % 8 == 0)
			kvt_test_side_evict(side);
	}
}

/* Workers of all three at once, while daemons are stopped in turns. */
TEST_WITH(pages_are_right_while_all_load_and_copy, start, stop)
{
	int64_t until_ns = kvt_now_ns() + seconds() * 1000000000;
	struct kvt_test_child children[SIDES];
	uint64_t loaded = 0, word;

	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_child_start(&children[i], serve_for_ever, &sides[i]);
		kvt_test_receive(children[i].pipe, &word);
	}
	for (uint32_t turn = 0; kvt_now_ns() < until_ns; turn++) {
		const struct kvt_test_side *stopped = &sides[turn % SIDES];
		const struct kvt_test_side *other = &sides[(turn + 1) % SIDES];
		uint64_t before = kvt_test_store_status(&other->peer).loaded_pages;

		kvt_test_freeze(stopped->daemon.pid);
		while (kvt_test_store_status(&other->peer).loaded_pages < before + PAGES)
			;
		kvt_test_equal(kill(stopped->daemon.pid, SIGCONT), 0);
	}
	for (uint32_t i = 0; i < SIDES; i++) {
		loaded += kvt_test_store_status(&sides[i].peer).loaded_pages;
		kvt_test_child_kill(&children[i], SIGKILL);
	}
	printf("%llu pages loaded and compared\n", (unsigned long long)loaded);
}

/* One thing after the other, with deaths of daemons and of the store. */
TEST_WITH(pages_are_right_through_deaths, start, stop)
{
	int64_t until_ns = kvt_now_ns() + seconds() * 1000000000;
	uint32_t daemons = 0, stores = 0, served = 0;

	srand(3);
	while (kvt_now_ns() < until_ns) {
		uint32_t side = (uint32_t)rand() % SIDES, what = (uint32_t)rand() % 100;

		if (what < 4) {
			kill_daemon(&sides[side]);
			daemons++;
		} else if (what < 6) {
			kill_store();
			stores++;
		} else if (what < 20) {
			kvt_test_side_evict(&sides[side]);
		} else {
			serve(side, 1 + (uint32_t)rand() % PROMPTS);
			served++;
		}
	}
	printf("%u prompts, %u daemons and %u stores killed\n", served, daemons, stores);
}
