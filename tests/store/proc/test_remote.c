/* SPDX-License-Identifier: Apache-2.0 */
/* Two instances that share nothing but the folder of their stores' helpers (helper.c).
 *
 * Inputs: prompts that a worker of A serves, whose pages have content that depends on all keys.
 * Invariants: what is loaded in B has its bytes; whatever the helpers do, both audits are clean. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/helper.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */

static struct kvt_test_side a, b;
static char gate[80];
static const char *batch = "8K", *again = "600";

/* `file` NULL: without one. */
static void begin_side(struct kvt_test_side *side, const char *config, const char *wait_ms,
		       const char *file)
{
	const char *more[] = { "--helper", command, "--helper-wait-ms", wait_ms,
			       "--helper-batch-bytes", batch, "--helper-again-seconds", again,
			       file ? "--file" : NULL, file,
			       "--file-bytes", "4M", NULL };

	kvt_test_daemon_begin(&side->daemon, config);
	kvt_test_side_store(side, "1M", more);
	kvt_test_side_connect(side);
}

static int start_with(const char *config_of_b, const char *wait_ms)
{
	make_folder();
	begin_side(&a, NULL, wait_ms, NULL);
	begin_side(&b, config_of_b, wait_ms, NULL);
	return 0;
}

/* Pages of A lie in memory in whole blocks of its file, those of B do not. */
static int start_with_a_file(void **state)
{
	static char file[96];

	make_folder();
	snprintf(file, sizeof(file), "%s/pages", folder);
	begin_side(&a, NULL, "60000", has_direct_io(file) ? file : NULL);
	begin_side(&b, NULL, "60000", NULL);
	return 0;
}

static int start(void **state)
{
	return start_with(NULL, "60000");
}

/* That of A starts when its gate was opened. */
static int start_behind_a_gate(void **state)
{
	char helper[sizeof(command)];

	make_folder();
	snprintf(gate, sizeof(gate), "%s/gate", folder);
	kvt_test_equal(mkfifo(gate, 0600), 0);
	memcpy(helper, command, sizeof(helper));
	snprintf(command, sizeof(command), "sh -c 'read line <%s; exec %.150s'", gate, helper);
	begin_side(&a, NULL, "60000", NULL);
	memcpy(command, helper, sizeof(helper));
	begin_side(&b, NULL, "60000", NULL);
	return 0;
}

static int start_with_old_helpers(void **state)
{
	make_folder();
	make_bad("old");
	begin_side(&a, NULL, "60000", NULL);
	begin_side(&b, NULL, "60000", NULL);
	return 0;
}

static int start_impatient(void **state)
{
	return start_with(NULL, "4");
}

/* The worker of B waits for no store that has none below it. */
static int start_hasty(void **state)
{
	b.fetch_wait_ns = 1;
	return start_impatient(state);
}

static int start_with_large_batches(void **state)
{
	batch = "64K";
	return start(state);
}

static int start_asking_again(void **state)
{
	again = "1";
	return start(state);
}

static int start_with_other_pages(void **state)
{
	return start_with("page_bytes = 2048\n", "60000");
}

static int stop(void **state)
{
	kvt_test_side_end(&a);
	kvt_test_side_end(&b);
	remove_folder();
	batch = "8K";
	again = "600";
	return 0;
}

static void await_ready(const struct kvt_test_side *side)
{
	while (!kvt_test_store_status(&side->peer).helper_ready)
		;
}

/* Serve prompt `number` in A, and wait until it is stored. */
static void keep_in_a(uint32_t *keys, uint32_t number)
{
	uint64_t before;

	await_ready(&a);
	await_ready(&b);
	before = kvt_test_store_status(&a.peer).helper_written_pages;
	kvt_test_keys(keys, N, number);
	kvt_test_equal(kvt_test_side_serve(&a, keys, N), 0);
	while (kvt_test_store_status(&a.peer).helper_written_pages < before + N / PAGE)
		;
}

static uint32_t serve_in_b(const uint32_t *keys)
{
	return kvt_test_side_serve(&b, keys, N);
}

TEST_WITH(what_a_computed_is_loaded_in_b, start, stop)
{
	struct kvt_store_status status;
	uint32_t keys[2][N];

	for (uint32_t i = 0; i < 2; i++)
		keep_in_a(keys[i], 1 + i);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_equal(serve_in_b(keys[i]), N - PAGE);
	status = kvt_test_store_settled(&b.peer, 2 * N / PAGE);
	kvt_test_equal(status.helper_read_pages, 2 * N / PAGE);
	kvt_test_equal(status.helper_bad_pages, 0);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(status.loaded_pages, 2 * N / PAGE);
	/* It is not stored once more. */
	kvt_test_equal(status.helper_written_pages, 0);
}

/* Check that `kvtctl store status` tells this of A's helper. */
static void must_tell(const char *text)
{
	char line[900];

	snprintf(line, sizeof(line), "'%s/kvtctl' --socket '%s' store status | grep -q '%s'",
		 kvt_test_build(), a.daemon.socket, text);
	kvt_test_equal(system(line), 0);
}

TEST_WITH(kvtctl_tells_what_a_helper_does, start, stop)
{
	uint32_t keys[N];

	keep_in_a(keys, 1);
	must_tell("distributed store: folder");
	must_tell("its helper is ready, started 1 time; 64 pages written, 0 refused, 0 not in");
}

TEST_WITH(kvtctl_tells_of_a_helper_that_is_not_ready, start_behind_a_gate, stop)
{
	while (kvt_test_store_status(&a.peer).helper_starts == 0)
		;
	must_tell("not ready: the store.s log says why");
}

/* It is asked nothing, and tried again. */
TEST_WITH(a_helper_of_another_version_is_ended_and_named, start_with_old_helpers, stop)
{
	kvt_test_check(kvt_test_store_await(&a.store, "is of another version: install kvtstored "
					    "and it from one release"));
	kvt_test_equal(kvt_test_store_status(&a.peer).helper_ready, 0);
	make_good("old");
	kvt_test_check(kvt_test_store_await(&a.store, "the helper is ready"));
	kvt_test_equal(kvt_test_store_status(&a.peer).helper_ready, 1);
}

TEST_WITH(what_was_copied_before_a_helper_is_ready_is_stored, start_behind_a_gate, stop)
{
	uint32_t keys[N];
	int fd;

	await_ready(&b);
	kvt_test_keys(keys, N, 5);
	kvt_test_side_serve(&a, keys, N);
	kvt_test_store_settled(&a.peer, N / PAGE);
	kvt_test_equal(kvt_test_store_status(&a.peer).helper_ready, 0);
	fd = open(gate, O_WRONLY | O_CLOEXEC);
	close(fd);
	while (kvt_test_store_status(&a.peer).helper_written_pages < N / PAGE)
		;
	kvt_test_equal(serve_in_b(keys), N - PAGE);
}

TEST_WITH(it_loads_behind_what_b_has, start, stop)
{
	uint32_t keys[N], half[N];

	keep_in_a(keys, 3);
	memcpy(half, keys, sizeof(half));
	kvt_test_keys(half + N / 2, N / 2, 4);
	serve_in_b(half); /* the first half is loaded */
	kvt_test_equal(kvt_test_matched(b.worker, b.space, keys, N), N / 2);
	kvt_test_equal(serve_in_b(keys), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&b.peer).helper_bad_pages, 0);
}

TEST_WITH(what_the_memory_lost_comes_back_from_afar, start, stop)
{
	static uint32_t keys[24][N]; /* more than the memory has room for */

	for (uint32_t i = 0; i < 24; i++)
		keep_in_a(keys[i], 10 + i);
	kvt_test_side_evict(&a);
	for (uint32_t i = 0; i < 24; i++)
		kvt_test_equal(kvt_test_side_serve(&a, keys[i], N), N - PAGE);
	kvt_test_check(kvt_test_store_status(&a.peer).helper_read_pages > 0);
}

TEST_WITH(a_store_with_a_file_shares_with_one_without, start_with_a_file, stop)
{
	uint32_t keys[N];

	keep_in_a(keys, 50);
	kvt_test_equal(serve_in_b(keys), N - PAGE);
	kvt_test_keys(keys, N, 51);
	kvt_test_equal(serve_in_b(keys), 0);
	while (kvt_test_store_status(&b.peer).helper_written_pages < N / PAGE)
		;
	kvt_test_equal(kvt_test_side_serve(&a, keys, N), N - PAGE);
	kvt_test_side_evict(&a);
	kvt_test_equal(kvt_test_side_serve(&a, keys, N), N - PAGE);
}

TEST_WITH(garbage_is_computed_and_never_reused, start, stop)
{
	static const char *const ways[] = { "flipped", "swapped", "empty", "exit", "short",
					    "stranger" };
	uint32_t keys[N], number = 110;

	for (uint32_t i = 0; i < 6; i++) {
		keep_in_a(keys, 100 + i);
		make_bad(ways[i]);
		/* Of a swapped GET the first page is right. */
		kvt_test_check(serve_in_b(keys) < N / 2);
		make_good(ways[i]);
		kvt_test_equal(kvt_test_matched(b.worker, b.space, keys, N), N);
		/* It is asked again after a while. */
		do
			keep_in_a(keys, number++);
		while (serve_in_b(keys) != N - PAGE);
	}
	kvt_test_check(kvt_test_store_status(&b.peer).helper_bad_pages > 0);
	kvt_test_equal(kvt_test_store_status(&b.peer).helper_starts, 4); /* three were killed */
}

TEST_WITH(one_that_hangs_in_a_get_ends_the_load_and_is_closed, start, stop)
{
	struct kvt_store_status status;
	uint32_t keys[N], ready;
	int64_t began_ns;

	keep_in_a(keys, 120);
	make_bad("closed");
	began_ns = kvt_now_ns();
	serve_in_b(keys);
	ready = kvt_test_store_status(&b.peer).helper_ready;
	kvt_test_equal(kvt_test_matched(b.worker, b.space, keys, N), N);
	kvt_test_keys(keys, N, 121);
	kvt_test_equal(serve_in_b(keys), 0); /* not asked */
	status = kvt_test_store_status(&b.peer);
	/* After the second of the GET it is closed for one, which may have passed. */
	kvt_test_check((!ready && status.loads == 1) ||
		       kvt_now_ns() - began_ns > 2000000000);
	make_good("closed");
}

TEST_WITH(a_fetch_does_not_wait_for_one_that_is_silent, start_impatient, stop)
{
	uint32_t keys[N];

	await_ready(&b);
	make_bad("silent");
	kvt_test_keys(keys, N, 130);
	/* The first is answered in 4 ms, others at once. */
	for (uint32_t i = 0; i < 1000; i++)
		kvt_test_equal(kvt_test_side_fetch(&b, keys, N), 0);
	make_good("silent");
}

/* Fetch a prompt by the worker of B, and wait for what it loads. Returns the positions. */
static uint32_t fetch_in_b(const uint32_t *keys)
{
	struct kvt_request begin = { .namespace_id = b.space, .keys = keys, .n_keys = N };
	struct kvt_fetched fetched;

	while (kvt_fetch(b.worker, &begin) != 1) /* not connected yet */
		poll(NULL, 0, 1);
	while (kvt_fetch_poll(b.worker, &fetched) == 0)
		poll(NULL, 0, 1);
	while (kvt_test_store_status(&b.peer).open_loads > 0)
		;
	return fetched.positions;
}

/* Each prompt is asked for once. Where a machine stalls for the rest of 100 ms, one may be lost: in
 * the 4 ms of an ask that a client waits for, all would be. */
TEST_WITH(a_fetch_that_blocks_nobody_waits_for_a_slow_one, start_hasty, stop)
{
	uint32_t keys[N], loaded = 0, asked;
	uint64_t read;

	for (asked = 0; loaded < 14; asked++) {
		kvt_test_check(asked < 42);
		keep_in_a(keys, 160 + asked);
		make_bad("slow");
		loaded += fetch_in_b(keys) == N;
		make_good("slow");
		kvt_test_side_evict(&b);
	}
	/* The store may read what a client no longer waits for. */
	read = kvt_test_store_status(&b.peer).helper_read_pages;
	kvt_test_check(14 * N / PAGE <= read && read <= asked * N / PAGE);
	b.fetch_wait_ns = 0;
}

/* Reads are limited by their bytes. */
TEST_WITH(all_pages_of_a_prompt_are_read_at_once, start_with_large_batches, stop)
{
	uint32_t keys[N];

	keep_in_a(keys, 180);
	make_bad("held");
	kvt_test_equal(kvt_test_side_fetch(&b, keys, N), N);
	while (kvt_test_store_status(&b.peer).coming_pages < N / PAGE)
		;
	make_good("held");
	kvt_test_equal(serve_in_b(keys), N - PAGE);
}

/* What the restart of a distributed store costs it. */
static void lose_all(void)
{
	char text[80];

	snprintf(text, sizeof(text), "rm %s/kvt:*", folder);
	kvt_test_equal(system(text), 0);
}

static bool was_put_again(uint64_t before)
{
	return kvt_test_store_status(&a.peer).helper_written_pages >= before + N / PAGE;
}

TEST_WITH(what_is_lost_there_is_put_again_when_it_is_loaded, start_asking_again, stop)
{
	uint32_t keys[N];

	keep_in_a(keys, 190);
	lose_all();
	do {
		kvt_test_side_evict(&a);
		kvt_test_equal(kvt_test_side_serve(&a, keys, N), N - PAGE);
	} while (!was_put_again(N / PAGE));
	kvt_test_equal(serve_in_b(keys), N - PAGE);
}

/* The pool has the prompt: only its next pages are seen by the store. */
TEST_WITH(what_is_lost_there_is_put_again_when_it_continues, start_asking_again, stop)
{
	uint32_t keys[N + PAGE], more = 0;

	keep_in_a(keys, 191);
	lose_all();
	do {
		keys[N] = ++more;
		kvt_test_equal(kvt_test_side_serve(&a, keys, N + PAGE), N);
		kvt_test_store_settled(&a.peer, N / PAGE + more);
	} while (!was_put_again(N / PAGE + more));
	kvt_test_equal(serve_in_b(keys), N - PAGE);
}

TEST_WITH(one_that_is_full_raises_an_alarm, start, stop)
{
	uint32_t keys[N];

	await_ready(&a);
	make_bad("full");
	for (uint32_t i = 0; !kvt_test_store_status(&a.peer).helper_full; i++) {
		kvt_test_keys(keys, N, 200 + i);
		kvt_test_side_serve(&a, keys, N);
		kvt_test_store_settled(&a.peer, (i + 1) * N / PAGE);
	}
	kvt_test_check(kvt_test_store_status(&a.peer).helper_refused_pages > 500);
	kvt_test_equal(kvt_test_store_status(&a.peer).helper_written_pages, 0);
	must_tell("^ALARM: the distributed store (folder) cannot write most pages");
}

TEST_WITH(one_that_returns_garbage_raises_an_alarm, start, stop)
{
	uint32_t keys[N];

	make_bad("flipped");
	for (uint32_t i = 0; !kvt_test_store_status(&a.peer).helper_garbage; i++) {
		keep_in_a(keys, 300 + i);
		kvt_test_side_evict(&a);
		kvt_test_store_drop(&a.peer);
		kvt_test_side_serve(&a, keys, N);
	}
	must_tell("^ALARM: the distributed store (folder) returns damaged pages");
}

TEST_WITH(a_slow_one_loses_pages_and_delays_no_copy, start_impatient, stop)
{
	static uint32_t keys[4][N];

	await_ready(&a);
	make_bad("silent");
	for (uint32_t i = 0; i < 4; i++) {
		kvt_test_keys(keys[i], N, 140 + i);
		kvt_test_side_serve(&a, keys[i], N);
		kvt_test_store_settled(&a.peer, (i + 1) * N / PAGE);
	}
	kvt_test_side_evict(&a);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_equal(kvt_test_side_serve(&a, keys[i], N), N - PAGE);
	make_good("silent");
}

TEST_WITH(pages_of_another_size_are_not_found, start_with_other_pages, stop)
{
	uint32_t keys[N];

	keep_in_a(keys, 150);
	kvt_test_equal(serve_in_b(keys), 0);
	kvt_test_equal(kvt_test_store_status(&b.peer).loads, 0);
}
