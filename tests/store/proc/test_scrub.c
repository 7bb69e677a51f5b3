/* SPDX-License-Identifier: Apache-2.0 */
/* A store that reads cached pages again, beside real daemons and workers.
 *
 * Inputs: prompts of workers; a bit of a cached page is flipped by one that maps the pool.
 * Invariants: each flip is found; what was computed from it is reused by nobody, from the pool or
 * from a copy, and copies from before it are; nothing else is called damaged; each audit is clean.
 *
 * A slow scrubber leaves time to copy what is damaged. If it was found before, another prompt is
 * damaged. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/withdraw.h"
#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 512u /* positions of a prompt */
#define PAGES (N / PAGE)
#define SIDES 2u
#define HOLDERS 4u
#define SALT 7 /* of kvt_test_side_serve() */
#define BAD 10u /* the page that is damaged */
#define OLD 20u /* pages that were copied before */
#define TRIES 8u
#define OTHERS 20u /* prompts */
#define QUIET 10u /* looks */
#define FEW 8u   /* pages: less than a tenth of a memory of four prompts */

static struct kvt_test_side sides[SIDES];
static struct kvt_test_store more[SIDES - 1];
static const char *const scrub[] = { "--scrub", "1G", NULL };
static const char *const slow[] = { "--scrub", "1M", NULL };
static const char large[] = "page_bytes = 16384\nn_pages = 1024\n"; /* 64 a second */
static char directory[TEST_FOLDER_BYTES], path[96];
static const char *const slow_file[] = { "--scrub", "1M", "--file", path, "--file-bytes", "32M",
					 NULL };

static uint32_t serve(uint32_t side, uint32_t prompt)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, prompt);
	return kvt_test_side_serve(&sides[side], keys, N);
}

static int start_with(const char *ram, const char *config, const char *const *options)
{
	memset(sides, 0, sizeof(sides));
	kvt_test_daemon_begin(&sides[0].daemon, config);
	kvt_test_side_store(&sides[0], ram, options);
	kvt_test_side_connect(&sides[0]);
	return 0;
}

static int start(void **state)
{
	return start_with("4M", NULL, scrub);
}

static int start_slow(void **state)
{
	return start_with("16M", large, slow);
}

static int start_alone(void **state)
{
	return start_with("0", NULL, scrub);
}

static int stop(void **state)
{
	kvt_test_side_end(&sides[0]);
	return 0;
}

static void start_host(const char *ram, const char *const *options)
{
	const struct kvt_test_daemon *daemons[SIDES];

	for (uint32_t i = 0; i < SIDES; i++)
		daemons[i] = &sides[i].daemon;
	kvt_test_store_start_host(&sides[0].store, more, daemons, SIDES, ram, options);
	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_peer_open(&sides[i].peer, i ? &more[i - 1] : &sides[0].store);
		kvt_test_side_connect(&sides[i]);
	}
}

static int start_two_with(const char *ram, const char *first, const char *second,
			  const char *const *options)
{
	memset(sides, 0, sizeof(sides));
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_daemon_begin(&sides[i].daemon, i ? second : first);
	start_host(ram, options);
	return 0;
}

static int start_two(void **state)
{
	return start_two_with("4M", NULL, NULL, scrub);
}

static int start_two_slow(void **state)
{
	return start_two_with("16M", large, large, slow);
}

/* Its memory has room for four prompts. */
static int start_two_file(void **state)
{
	make_folder_on_disk(directory);
	snprintf(path, sizeof(path), "%s/pages", directory);
	need_direct_io(directory, path);
	return start_two_with("2M", large, large, slow_file);
}

/* The second one has a place for one namespace. */
static int start_two_narrow(void **state)
{
	return start_two_with("4M", NULL, "max_namespaces = 2\n", scrub);
}

static int start_two_sizes(void **state)
{
	return start_two_with("0", NULL, "page_bytes = 4096\n", scrub);
}

static int start_late(void **state)
{
	const char *options[] = { "--scrub", "1G", "--socket", sides[1].daemon.socket, NULL };

	memset(sides, 0, sizeof(sides));
	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_daemon_begin(&sides[i].daemon, NULL);
		kvt_test_side_connect(&sides[i]);
	}
	kvt_test_equal(serve(1, 2), 0);
	kvt_test_freeze(sides[1].daemon.pid);
	snprintf(more[0].path, sizeof(more[0].path), "%s.store", sides[1].daemon.socket);
	kvt_test_store_spawn(&sides[0].store, &sides[0].daemon, "4M", options);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "serving"));
	kvt_test_peer_open(&sides[0].peer, &sides[0].store);
	return 0;
}

static int stop_two(void **state)
{
	for (uint32_t i = 1; i < SIDES; i++)
		kvt_test_peer_close(&sides[i].peer);
	for (uint32_t i = 0; i < SIDES; i++)
		kvt_test_side_end(&sides[i]);
	return 0;
}

static int stop_two_file(void **state)
{
	int rc = stop_two(state);

	remove_folder_on_disk(directory, path);
	return rc;
}

static uint32_t matched(uint32_t side, uint32_t prompt)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, prompt);
	return kvt_test_matched(sides[side].worker, sides[side].space, keys, N);
}

/* Wait until so many pages were read again since now. Then twice as many new ones were read, too:
 * of four that are read three are new, and one of eight of those is read again soon. */
static void await_readings(uint32_t side, uint32_t n_pages)
{
	struct kvt_store_status status = kvt_test_store_status(&sides[side].peer);
	uint64_t enough = status.scrubbed_pages + n_pages;

	while (status.scrubbed_pages < enough)
		status = kvt_test_store_status(&sides[side].peer);
}

/* Wait until all cached pages were read twice since now. */
static void await_rounds(uint32_t side, uint32_t n_pages)
{
	await_readings(side, 4 * n_pages); /* each fourth may be of the round */
}

/* Wait until all cached pages were read that much later than now that copies tell it. */
static void grow_old(uint32_t side, uint32_t n_pages)
{
	time_t now = time(NULL);

	while (time(NULL) < now + 4)
		kvt_test_store_status(&sides[side].peer);
	await_readings(side, 2 * n_pages);
}

static struct kvt_store_status await_damage(uint32_t side, uint64_t n)
{
	struct kvt_store_status status = { .damaged_pages = 0 };

	while (status.damaged_pages < n)
		status = kvt_test_store_status(&sides[side].peer);
	return status;
}

/* Wait until a pool's pages were copied. */
static void await_copied(uint32_t side, uint64_t n)
{
	while (kvt_test_store_status(&sides[side].peer).copied_pages < n)
		;
}

/* The page of a cached prompt. */
static uint32_t page_of(uint32_t side, uint32_t prompt, uint32_t i)
{
	struct kvt_result result;
	uint32_t keys[N], page;

	kvt_test_keys(keys, N, prompt);
	kvt_test_equal(kvt_match(sides[side].worker, sides[side].space, keys, N, KVT_F_LOCK,
				 &result), 0);
	page = result.pages[i];
	kvt_test_equal(kvt_unlock(sides[side].worker, result.lease, KVT_IDLE), 0);
	kvt_result_release(sides[side].worker, &result);
	return page;
}

static void flip(uint32_t side, uint32_t page, uint32_t bit)
{
	uint64_t bytes = kvt_client_info(sides[side].worker)->page_bytes;
	uint8_t *at = (uint8_t *)sides[side].pool.base + page * bytes + bit / 8;

	*at ^= (uint8_t)(1u << bit % 8);
}

/* Wait until a prefix is gone from the pool, and its copies with it. */
static void await_withdrawn(uint32_t side, uint32_t prompt, uint32_t left)
{
	while (matched(side, prompt) > left)
		kvt_test_store_status(&sides[side].peer);
}

TEST_WITH(a_page_that_was_written_is_withdrawn_with_all_behind_it, start, stop)
{
	uint32_t keys[N + PAGE], page;
	struct kvt_seq *seq;

	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(serve(0, 2), 0);
	kvt_test_store_settled(&sides[0].peer, 2 * PAGES);
	await_rounds(0, 2 * PAGES);
	kvt_test_keys(keys, N, 1);
	kvt_test_keys(keys + N, PAGE, 3);
	kvt_test_equal(kvt_seq_begin(sides[0].worker, sides[0].space, keys, N + PAGE, 0, 0, &seq),
		       0);
	page = page_of(0, 1, 10);
	flip(0, page, 77);
	await_damage(0, 1);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "was written after it was sealed"));
	await_withdrawn(0, 1, 10 * PAGE);
	kvt_test_equal(matched(0, 1), 10 * PAGE);
	kvt_test_check(kvt_test_daemon_said(&sides[0].daemon, "event=page_damaged"));
	/* Who holds it learns why. */
	kvt_test_equal(kvt_seq_commit(seq, N + PAGE, NULL, 0, KVT_IDLE, 0), -ESTALE);
	kvt_test_equal(kvt_client_error(sides[0].worker)->reason, KVT_REASON_DAMAGED);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), -ESTALE);
	/* No copy brings it back. */
	serve(0, 1);
	kvt_test_side_evict(&sides[0]);
	kvt_test_equal(serve(0, 2), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).damaged_pages, 1);
}

/* The pool loads what it lacks, with the page that is right in the copy. */
TEST_WITH(copies_from_before_the_damage_repair_the_pool, start, stop)
{
	kvt_test_equal(serve(0, 1), 0);
	kvt_test_equal(serve(0, 2), 0);
	kvt_test_store_settled(&sides[0].peer, 2 * PAGES);
	grow_old(0, 2 * PAGES);
	flip(0, page_of(0, 1, BAD), 77);
	kvt_test_check(kvt_test_store_await(&sides[0].store, "0 copies of it and of what is behind "
					    "it are forgotten; its own is as it was, and stays"));
	await_withdrawn(0, 1, BAD * PAGE);
	kvt_test_store_settled(&sides[0].peer, 2 * PAGES);
	kvt_test_equal(serve(0, 1), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).loaded_pages, PAGES - BAD);
}

/* Cache a prompt. With a time to live its pages are not copied, until it is cached without one. */
static void insert(uint32_t side, uint32_t prompt, uint32_t ttl_ms)
{
	uint32_t keys[N], pages[PAGES];
	struct kvt_request request = { .op = KVT_OP_INSERT, .namespace_id = sides[side].space,
				       .keys = keys, .n_keys = N, .pages = pages, .n_pages = PAGES,
				       .fence = KVT_IDLE, .ttl_ms = ttl_ms,
				       .flags = ttl_ms ? KVT_F_TTL : 0 };

	kvt_test_keys(keys, N, prompt);
	kvt_test_equal(kvt_alloc(sides[side].worker, PAGES, pages), 0);
	for (uint32_t i = 0; i < PAGES; i++)
		kvt_test_page_fill(&sides[side].pool, PAGE, pages[i], SALT, keys, i);
	kvt_test_equal(kvt_test_call(sides[side].worker, &request).error, 0);
}

/* Wait until more pages were copied. False: damage was found before. */
static bool copied_unfound(uint32_t side, const struct kvt_store_status *before, uint32_t n)
{
	struct kvt_store_status status = *before;

	while (status.copied_pages < before->copied_pages + n &&
	       status.damaged_pages == before->damaged_pages)
		status = kvt_test_store_status(&sides[side].peer);
	return status.damaged_pages == before->damaged_pages;
}

/* Copy a page after it was damaged, and all behind it. Returns the prompt. */
static uint32_t copy_damaged(uint32_t side)
{
	static uint32_t prompt = 1000; /* the store has those of earlier tries */

	for (uint32_t tries = 0; tries < TRIES; tries++) {
		struct kvt_store_status before;

		insert(side, ++prompt, 3600000);
		await_readings(side, PAGES);
		before = kvt_test_store_status(&sides[side].peer);
		flip(side, page_of(side, prompt, BAD), 77);
		insert(side, prompt, 0);
		if (copied_unfound(side, &before, PAGES))
			return prompt;
		await_withdrawn(side, prompt, BAD * PAGE);
	}
	kvt_test_fail("each of %u damages was found before it was copied", TRIES);
}

/* Fetch a prompt whose first pages a pool has. */
static uint32_t fetch(uint32_t side, uint32_t prompt)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, prompt);
	return kvt_test_side_fetch(&sides[side], keys, N);
}

/* Compute again what was withdrawn, and wait until it is copied. */
static void serve_and_copy(uint32_t side, uint32_t prompt)
{
	uint64_t pages = kvt_test_store_status(&sides[side].peer).pages;

	kvt_test_equal(serve(side, prompt), BAD * PAGE);
	kvt_test_store_settled(&sides[side].peer, pages + PAGES - BAD);
}

TEST_WITH(a_copy_that_is_wrong_leaves_with_all_behind_it, start_slow, stop)
{
	uint32_t prompt = copy_damaged(0);

	kvt_test_check(kvt_test_store_await(&sides[0].store, "22 copies of it and of what is "
					    "behind it are forgotten"));
	await_withdrawn(0, prompt, BAD * PAGE);
	kvt_test_equal(fetch(0, prompt), 0);
	serve_and_copy(0, prompt); /* their names are free for what is right */
	kvt_test_side_evict(&sides[0]);
	kvt_test_equal(serve(0, prompt), N - PAGE);
}

TEST_WITH(of_a_path_copies_from_before_stay_and_later_ones_go, start_slow, stop)
{
	uint32_t keys[N], prompt = 0;
	struct kvt_store_status before;

	for (uint32_t i = 1; i <= TRIES; i++) {
		kvt_test_keys(keys, N, i);
		kvt_test_equal(kvt_test_side_serve(&sides[0], keys, OLD * PAGE), 0);
	}
	kvt_test_store_settled(&sides[0].peer, TRIES * OLD);
	grow_old(0, TRIES * OLD);
	do { /* its rest is computed from a damaged page */
		kvt_test_check(++prompt <= TRIES);
		before = kvt_test_store_status(&sides[0].peer);
		flip(0, page_of(0, prompt, BAD), 5);
		insert(0, prompt, 0);
	} while (!copied_unfound(0, &before, PAGES - OLD));
	await_damage(0, before.damaged_pages + 1);
	await_withdrawn(0, prompt, BAD * PAGE);
	kvt_test_equal(serve(0, prompt), OLD * PAGE);
}

TEST_WITH(what_others_loaded_of_a_wrong_copy_leaves_their_pools, start_two_slow, stop_two)
{
	struct kvt_store_status before;
	uint32_t prompt;

	do {
		prompt = copy_damaged(0);
		before = kvt_test_store_status(&sides[0].peer);
		if (fetch(1, prompt) < N)
			continue; /* found before it is loaded */
		while (matched(1, prompt) < N && before.damaged_pages ==
		       kvt_test_store_status(&sides[0].peer).damaged_pages)
			;
	} while (matched(1, prompt) < N);
	await_damage(0, before.damaged_pages + 1);
	for (uint32_t i = 0; i < SIDES; i++) {
		await_withdrawn(i, prompt, BAD * PAGE);
		kvt_test_equal(fetch(i, prompt), 0);
	}
	serve_and_copy(0, prompt);
	kvt_test_equal(serve(1, prompt), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&sides[1].peer).damaged_pages, 0);
}

/* Wait until so many pages were copied, and until the file was written to for QUIET looks no more.
 * Returns how many pages were written. */
static uint64_t await_written(uint64_t n_copied)
{
	uint64_t written = 0;

	for (uint32_t quiet = 0; quiet < QUIET; quiet++) {
		struct kvt_store_status status = kvt_test_store_status(&sides[0].peer);
		uint64_t copied = status.copied_pages +
				  kvt_test_store_status(&sides[1].peer).copied_pages;

		if (copied < n_copied || status.file_writing_pages ||
		    written != status.file_written_pages)
			quiet = 0;
		written = status.file_written_pages;
	}
	return written;
}

/* Have what memory has leave it for the file: a few pages at a time, which are written before they
 * leave. More would be dropped where computing is faster than the disk. By the other instance: new
 * pages of that with the damage would be read before those that are damaged next. */
static void push_out(void)
{
	static uint32_t prompt = 100000;
	uint64_t enough = await_written(0) + 5 * PAGES, written;
	uint32_t keys[FEW * PAGE];

	do {
		uint64_t copied = kvt_test_store_status(&sides[0].peer).copied_pages +
				  kvt_test_store_status(&sides[1].peer).copied_pages;

		kvt_test_keys(keys, FEW * PAGE, prompt++);
		kvt_test_side_serve(&sides[1], keys, FEW * PAGE);
		written = await_written(copied + FEW);
	} while (written < enough);
}

/* From the file, where it was when the damage was found. */
TEST_WITH(what_was_written_of_a_wrong_copy_is_not_found_by_a_start, start_two_file, stop_two_file)
{
	struct kvt_store_status before;
	uint32_t prompt;

	/* So a round takes seconds. */
	for (uint32_t i = 0; i < OTHERS; i++)
		serve(0, 100 + i);
	await_readings(0, OTHERS * PAGES / 2);
	do {
		prompt = copy_damaged(0);
		before = kvt_test_store_status(&sides[0].peer);
		push_out();
	} while (fetch(1, prompt) < N ||
		 kvt_test_store_status(&sides[0].peer).damaged_pages > before.damaged_pages);
	await_damage(0, before.damaged_pages + 1);
	for (uint32_t i = 0; i < SIDES; i++)
		await_withdrawn(i, prompt, BAD * PAGE);
	for (uint32_t orderly = 0; orderly < 2; orderly++) {
		for (uint32_t i = 0; i < SIDES; i++) {
			kvt_test_peer_close(&sides[i].peer);
			kvt_client_close(sides[i].worker, KVT_IDLE);
		}
		if (orderly) {
			kvt_test_equal(kvt_test_store_stop(&sides[0].store), 0);
		} else {
			kvt_test_store_kill(&sides[0].store);
			kvt_test_store_unlink(&more[0]);
		}
		start_host("2M", slow_file);
		for (uint32_t i = 0; i < SIDES; i++)
			kvt_test_equal(fetch(i, prompt), 0);
	}
	serve(1, 100); /* it was written before */
	kvt_test_equal(serve(0, prompt), BAD * PAGE);
}

/* A tree of its own in the namespace, as engines with drafts have. */
TEST_WITH(a_page_under_a_root_key_is_withdrawn, start, stop)
{
	uint32_t keys[N], n_pages;
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = N,
				     .namespace_id = sides[0].space, .root_key = 77 };
	struct kvt_request match = { .op = KVT_OP_MATCH, .keys = keys, .n_keys = N,
				     .namespace_id = sides[0].space, .root_key = 77 };
	struct kvt_result result = { .matched = N };
	struct kvt_seq *seq;
	uint32_t page;

	kvt_test_keys(keys, N, 1);
	kvt_test_equal(kvt_seq_start(sides[0].worker, &begin, &seq), 0);
	page = kvt_seq_pages(seq, &n_pages)[4];
	kvt_test_equal(kvt_seq_end(seq, N, NULL, 0, KVT_IDLE, 0), 0);
	await_rounds(0, PAGES);
	flip(0, page, 9);
	await_damage(0, 1);
	while (result.matched > 4 * PAGE) {
		kvt_test_equal(kvt_call(sides[0].worker, &match, &result), 0);
		kvt_result_release(sides[0].worker, &result);
	}
	kvt_test_equal(result.matched, 4 * PAGE);
}

TEST_WITH(what_was_damaged_in_one_instance_leaves_the_others, start_two, stop_two)
{
	kvt_test_equal(serve(0, 1), 0);
	kvt_test_store_settled(&sides[0].peer, PAGES);
	kvt_test_equal(serve(1, 1), N - PAGE); /* loaded */
	kvt_test_equal(serve(1, 2), 0);
	kvt_test_store_settled(&sides[1].peer, 2 * PAGES);
	await_rounds(0, PAGES);
	flip(0, page_of(0, 1, 3), 0);
	await_damage(0, 1);
	for (uint32_t i = 0; i < SIDES; i++) {
		await_withdrawn(i, 1, 3 * PAGE);
		kvt_test_equal(matched(i, 1), 3 * PAGE);
	}
	/* What is right there, stays. */
	kvt_test_equal(matched(1, 2), N);
	serve(1, 1);
	kvt_test_equal(kvt_test_store_status(&sides[1].peer).damaged_pages, 0);
}

TEST_WITH(without_copies_pages_may_have_any_size, start_two_sizes, stop_two)
{
	for (uint32_t i = 0; i < SIDES; i++) {
		kvt_test_equal(serve(i, 1), 0);
		await_rounds(i, PAGES);
		flip(i, page_of(i, 1, 5), 8 * 1000);
		await_damage(i, 1);
		await_withdrawn(i, 1, 5 * PAGE);
		kvt_test_equal(serve(i, 1), 5 * PAGE);
	}
}

/* True if the store can write the pool. */
static bool can_write(const struct kvt_test_side *side)
{
	char maps[64], line[512], mode[8] = "", found[8] = "";
	FILE *file;

	snprintf(maps, sizeof(maps), "/proc/%d/maps", (int)side->store.pid);
	file = fopen(maps, "re");
	kvt_test_check(file);
	while (fgets(line, sizeof(line), file)) {
		unsigned long long from, to;

		if (sscanf(line, "%llx-%llx %7s", &from, &to, mode) == 3 &&
		    to - from == side->pool.bytes && strstr(line, "memfd:"))
			memcpy(found, mode, sizeof(found));
	}
	fclose(file);
	kvt_test_check(found[0] == 'r' && found[3] == 's');
	return found[1] == 'w';
}

/* So it is none of those that may have written. */
TEST_WITH(a_store_without_copies_cannot_write_the_pool, start_alone, stop)
{
	kvt_test_check(!can_write(&sides[0]));
	kvt_test_equal(serve(0, 1), 0);
	await_rounds(0, PAGES);
}

TEST_WITH(a_store_that_loads_can_write_the_pool, start, stop)
{
	kvt_test_check(can_write(&sides[0]));
}

static int start_few_nodes(void **state)
{
	memset(sides, 0, sizeof(sides));
	kvt_test_daemon_begin(&sides[0].daemon, "max_nodes = 8\n");
	kvt_test_side_store(&sides[0], "4M", scrub);
	kvt_test_side_connect(&sides[0]);
	return 0;
}

/* Nothing can be split in front of the page, so the whole node is withdrawn. */
TEST_WITH(without_a_free_node_more_of_the_prefix_is_withdrawn, start_few_nodes, stop)
{
	struct kvt_client *clients[HOLDERS];
	struct kvt_result held, lease;
	uint32_t keys[N], n = 1;

	kvt_test_equal(serve(0, 2), 0);
	kvt_test_equal(serve(0, 1), 0);
	await_rounds(0, 2 * PAGES);
	kvt_test_keys(keys, N, 1);
	kvt_test_equal(kvt_match(sides[0].worker, sides[0].space, keys, N, KVT_F_LOCK, &held), 0);
	/* Each splits the other prompt, as long as there are nodes. */
	kvt_test_keys(keys, N, 2);
	for (uint32_t i = 0; i < HOLDERS; i++) {
		uint32_t space;

		clients[i] = kvt_test_connect(&sides[0].daemon);
		space = kvt_test_namespace(clients[i], "store");
		while (kvt_match(clients[i], space, keys, n * PAGE, KVT_F_LOCK, &lease) == 0) {
			kvt_result_release(clients[i], &lease);
			n++;
		}
		kvt_test_equal(kvt_client_error(clients[i])->code, -EDQUOT);
	}
	flip(0, held.pages[10], 3);
	await_damage(0, 1);
	await_withdrawn(0, 1, 0);
	kvt_test_equal(kvt_unlock(sides[0].worker, held.lease, KVT_IDLE), 0);
	kvt_result_release(sides[0].worker, &held);
	for (uint32_t i = 0; i < HOLDERS; i++)
		kvt_client_close(clients[i], KVT_IDLE);
	serve(0, 1);
	kvt_test_store_settled(&sides[0].peer, 2 * PAGES);
}

TEST_WITH(the_log_counts_the_sessions_that_a_line_has_no_room_for, start_alone, stop)
{
	enum { MANY = 48 };
	struct kvt_client *clients[MANY];

	for (uint32_t i = 0; i < MANY; i++)
		clients[i] = kvt_test_connect(&sides[0].daemon);
	kvt_test_equal(serve(0, 1), 0);
	await_rounds(0, PAGES);
	flip(0, page_of(0, 1, 0), 0);
	await_damage(0, 1);
	await_withdrawn(0, 1, 0);
	kvt_test_check(kvt_test_daemon_said(&sides[0].daemon, " more\" why=\"a page was written"));
	kvt_test_check(kvt_test_daemon_said(&sides[0].daemon, "it is withdrawn\""));
	for (uint32_t i = 0; i < MANY; i++)
		kvt_client_close(clients[i], KVT_IDLE);
}

/* It has no such prefix, and no place for its namespace. */
TEST_WITH(an_instance_without_the_namespace_goes_on, start_two_narrow, stop_two)
{
	sides[0].space = kvt_test_namespace(sides[0].worker, "other");
	kvt_test_equal(serve(0, 1), 0);
	await_rounds(0, PAGES);
	flip(0, page_of(0, 1, 3), 0);
	await_damage(0, 1);
	await_withdrawn(0, 1, 3 * PAGE);
	kvt_test_equal(serve(1, 2), 0);
	await_copied(1, PAGES);
	await_rounds(1, PAGES);
}

TEST_WITH(an_instance_that_missed_too_many_withdrawals_is_reset, start_two, stop_two)
{
	for (uint32_t prompt = 0; prompt < 2; prompt++) {
		kvt_test_equal(serve(0, prompt), 0);
		kvt_test_store_settled(&sides[0].peer, (prompt + 1) * PAGES);
		kvt_test_equal(serve(1, prompt), N - PAGE); /* loaded */
	}
	kvt_test_freeze(sides[1].daemon.pid);
	/* The first one may be on its way when the daemon goes on. */
	for (uint32_t prompt = 0; prompt < KVT_WITHDRAWALS + 2; prompt++) {
		kvt_test_equal(serve(0, prompt) % (N - PAGE), 0);
		await_rounds(0, 3 * PAGES);
		flip(0, page_of(0, prompt, 3), 0);
		await_damage(0, prompt + 1);
		await_withdrawn(0, prompt, 3 * PAGE);
	}
	kill(sides[1].daemon.pid, SIGCONT);
	await_withdrawn(1, 0, 0);
	await_withdrawn(1, 1, 0);
	kvt_test_equal(serve(1, 2), 0);
	kvt_test_store_settled(&sides[1].peer, PAGES);
}

/* The pool of a daemon that did not answer until then. */
TEST_WITH(a_withdrawal_keeps_no_later_pool_from_being_copied, start_late, stop_two)
{
	kvt_test_equal(serve(0, 1), 0);
	await_rounds(0, PAGES);
	flip(0, page_of(0, 1, 0), 0);
	await_damage(0, 1);
	await_withdrawn(0, 1, 0);
	kill(sides[1].daemon.pid, SIGCONT);
	while (!kvt_test_peer_try(&sides[1].peer, &more[0]))
		;
	await_copied(1, PAGES);
	kvt_test_equal(serve(0, 2), N - PAGE); /* loaded */
}

/* Pages leave and are sealed again all the while, and none of that is damage. */
TEST_WITH(each_of_a_hundred_writes_is_found_alone, start_alone, stop)
{
	enum { WRITES = 100, PROMPTS = 4 };

	for (uint32_t i = 0; i < PROMPTS; i++)
		kvt_test_equal(serve(0, i), 0);
	for (uint32_t i = 0; i < WRITES; i++) {
		uint32_t prompt = i % PROMPTS, at = i * 7 % PAGES, other = 1000 + i;

		await_rounds(0, PROMPTS * PAGES);
		flip(0, page_of(0, prompt, at), i * 997 % (1024 * 8));
		kvt_test_equal(serve(0, other), 0);
		await_damage(0, i + 1);
		await_withdrawn(0, prompt, at * PAGE);
		kvt_test_equal(serve(0, prompt), at * PAGE);
		kvt_test_side_evict(&sides[0]);
		for (uint32_t j = 0; j < PROMPTS; j++)
			kvt_test_equal(serve(0, j), 0);
	}
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).damaged_pages, WRITES);
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).copied_pages, 0);
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).queued_pages, 0);
	kvt_test_equal(kvt_test_store_status(&sides[0].peer).dropped_pages, 0);
}
