/* SPDX-License-Identifier: Apache-2.0 */
/* A store beside a daemon whose pages have side pages: a point comes back as it was, or its main
 * pages are not offered.
 *
 * Inputs: prompts that a worker serves. The bytes of a page, main or side, depend on its kind and
 * on all keys up to its end. Invariants: what is reused has its bytes, of each kind; whatever the
 * store does, the audit is clean. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/proc/store.h"

#define N 1100u /* keys of a prompt: whole pages, and some, of each size */
#define SALT 7

static struct kvt_test_store store;
static struct kvt_test_peer peer;
static struct kvt_client *worker;
static struct kvt_pool pool;
static uint32_t space, page_size;
static const struct kvt_info *info;
static uint32_t keys[N];
static uint64_t digest[2] = { 0x6b76747465737473ull, 0 }; /* as kvt_test_namespace("store") */
static const struct kvt_handle root;
static char directory[64], path[96], helper[256];

static void connect_worker(void)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon_.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = 60000000000;
	kvt_test_equal(kvt_client_connect(&worker, &options, NULL), 0);
	space = kvt_test_namespace(worker, "store");
	kvt_test_equal(kvt_pool_map(worker, &pool), 0);
	info = kvt_client_info(worker);
	page_size = info->page_size;
}

static void start_store(const char *ram, const char *const *more)
{
	kvt_test_store_start_with(&store, &daemon_, ram, more);
	kvt_test_peer_open(&peer, &store);
}

static int start_with(const char *lines, const char *ram)
{
	digest[1] = 0;
	for (const char *c = "store"; *c; c++)
		digest[1] = digest[1] * 1099511628211ull + (uint8_t)*c;
	kvt_test_daemon_begin(&daemon_, lines);
	connect_worker();
	if (ram)
		start_store(ram, NULL);
	return 0;
}

static int start_window(void **state)
{
	const char *more[] = { "--min-positions", "256", NULL };

	start_with("page_size = 7\nsides = 16\n", NULL);
	start_store("1M", more);
	return 0;
}

static int start_state(void **state)
{
	return start_with("page_size = 16\nsides = 1\n", "1M");
}

static int start_both(void **state)
{
	return start_with("page_size = 64\nsides = 2,1,1\n", "1M");
}

static int start_big(void **state)
{
	return start_with("page_size = 16\nsides = 2,1\nn_pages = 256\npage_bytes = 1M\n"
			  "coalesce_patience_ms = 50\n", "90M");
}

static int stop(void **state)
{
	kvt_test_peer_close(&peer);
	if (store.pid > 0)
		kvt_test_equal(kvt_test_store_stop(&store), 0);
	kvt_client_close(worker, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
	return 0;
}

/* ---- a worker */

static uint64_t salt_of(uint32_t kind)
{
	return SALT + 1000 + kind;
}

/* Check what a sequence reuses. Returns the positions. */
static uint32_t check_reused(struct kvt_seq *seq, const uint32_t *prompt)
{
	uint32_t reused = kvt_seq_reusable(seq) / page_size, n;
	const uint32_t *pages = kvt_seq_pages(seq, &n);

	for (uint32_t i = 0; i < reused; i++)
		kvt_test_check(kvt_test_page_right(&pool, page_size, pages[i], SALT, prompt, i));
	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		const uint32_t *sides = kvt_seq_sides(seq, kind, &n);

		for (uint32_t i = 0; i < n; i++)
			kvt_test_check(kvt_test_page_right(&pool, page_size, sides[i],
							   salt_of(kind), prompt, reused - n + i));
	}
	return kvt_seq_reusable(seq);
}

/* Give a sequence what it lacks of a point behind n pages. */
static void make_point(struct kvt_seq *seq, const uint32_t *prompt, uint32_t n)
{
	uint32_t reused = kvt_seq_reusable(seq) / page_size, side;

	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		uint32_t most = info->side_pages[kind];

		for (uint32_t i = n > most ? n - most : 0; i < n; i++) {
			if (i < reused)
				continue;
			kvt_test_equal(kvt_alloc(worker, 1, &side), 0);
			kvt_test_page_fill(&pool, page_size, side, salt_of(kind), prompt, i);
			kvt_test_equal(kvt_seq_attach(seq, i, kind, side), 0);
		}
	}
}

/* Serve n keys, with a point behind `point` pages; 0: none. Returns the positions reused. */
static uint32_t serve(const uint32_t *prompt, uint32_t n, uint32_t point)
{
	struct kvt_seq *seq;
	const uint32_t *pages;
	uint32_t reused, n_pages;

	kvt_test_equal(kvt_seq_begin(worker, space, prompt, n, 0, 0, &seq), 0);
	reused = check_reused(seq, prompt);
	pages = kvt_seq_pages(seq, &n_pages);
	for (uint32_t i = reused / page_size; i < n / page_size; i++)
		kvt_test_page_fill(&pool, page_size, pages[i], SALT, prompt, i);
	if (point)
		make_point(seq, prompt, point);
	kvt_test_equal(kvt_seq_end(seq, n, NULL, 0, KVT_IDLE, 0), 0);
	return reused;
}

/* The pages of a point behind n pages, together with these. */
static uint32_t with_sides(uint32_t n)
{
	uint32_t all = n;

	for (uint32_t kind = 0; kind < info->n_sides; kind++)
		all += n < info->side_pages[kind] ? n : info->side_pages[kind];
	return all;
}

static struct kvt_result match(const uint32_t *prompt, uint32_t n)
{
	const struct kvt_request request = { .op = KVT_OP_MATCH, .namespace_id = space,
					     .keys = prompt, .n_keys = n };

	return kvt_test_call(worker, &request);
}

/* Evict pages. A load that brought its point may not have ended yet, and locks them. */
static void evict(uint32_t n)
{
	uint32_t evicted;

	while (store.pid > 0 && kvt_test_store_status(&peer).open_loads > 0)
		;
	kvt_test_equal(kvt_evict(worker, n, &evicted), 0);
}

static void evict_all(void)
{
	evict(4095);
	kvt_test_equal(match(keys, N).matched, 0);
}

/* Serve the prompt with a point at its end, let the store copy it, and evict it. */
static uint32_t keep(void)
{
	uint32_t n = N / page_size;

	kvt_test_keys(keys, N, 1);
	kvt_test_equal(serve(keys, N, n), 0);
	kvt_test_store_settled(&peer, with_sides(n));
	evict_all();
	return n;
}

/* FETCH keys behind what the pool has of a prompt. */
static uint32_t fetch_behind(const uint32_t *prompt, uint32_t n)
{
	uint32_t cached, n_pages, pages[N] = { 0 };
	struct kvt_handle handle = root;
	struct kvt_lease lease;

	kvt_test_equal(kvt_probe(worker, space, prompt, n, &handle, &cached), 0);
	if (cached) {
		kvt_test_equal(kvt_lock(worker, handle, &lease, pages, N, &n_pages), 0);
		kvt_test_equal(kvt_unlock(worker, lease, KVT_IDLE), 0);
	}
	return kvt_test_fetch(&peer, digest, cached ? handle : root,
			      cached ? pages[cached / page_size - 1] : 0, prompt + cached,
			      (n - cached) / page_size * page_size);
}

/* ---- */

static void check_that_a_point_comes_back(void)
{
	struct kvt_store_status status;
	uint32_t n = keep(), all = with_sides(n);

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	status = kvt_test_store_settled(&peer, all);
	kvt_test_equal(status.loaded_pages, all);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(match(keys, N).usable, n * page_size);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	evict_all(); /* and by the library */
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&peer, all).loaded_pages, 2 * all);
}

TEST_WITH(a_window_comes_back, start_window, stop)
{
	check_that_a_point_comes_back();
}

TEST_WITH(a_state_comes_back, start_state, stop)
{
	check_that_a_point_comes_back();
}

TEST_WITH(windows_and_states_come_back, start_both, stop)
{
	check_that_a_point_comes_back();
}

static struct kvt_test_daemon sibling;
static struct kvt_client *sibling_worker;

/* A sibling has a prompt with its point. */
static int start_with_sibling(void **state)
{
	static const char *const lines = "page_size = 64\nsides = 2,1,1\n";

	start_with(lines, NULL);
	kvt_test_keys(keys, N, 1);
	kvt_test_equal(serve(keys, N, N / page_size), 0);
	sibling = daemon_;
	sibling_worker = worker;
	start_with(lines, NULL);
	start_store("1M", (const char *[]){ "--sibling", sibling.socket, NULL });
	return 0;
}

static int stop_with_sibling(void **state)
{
	stop(state);
	kvt_client_close(sibling_worker, KVT_IDLE);
	kvt_test_audit(&sibling);
	kvt_test_daemon_end(&sibling);
	return 0;
}

TEST_WITH(a_point_comes_from_a_sibling, start_with_sibling, stop_with_sibling)
{
	uint32_t n = N / page_size;

	while (kvt_test_store_status(&peer).sibling_pages != with_sides(n))
		;
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_status(&peer).sibling_read_pages, with_sides(n));
}

TEST_WITH(main_pages_without_a_point_are_not_offered, start_both, stop)
{
	uint32_t n = N / page_size;

	kvt_test_keys(keys, N, 2);
	kvt_test_equal(serve(keys, N, 0), 0);
	kvt_test_store_settled(&peer, n);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 0);
	kvt_test_equal(serve(keys, N, 9), 0);
	kvt_test_store_settled(&peer, with_sides(n) /* 9 pages have as many */);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 9 * page_size); /* up to the point */
	kvt_test_store_settled(&peer, with_sides(n));
	kvt_test_equal(match(keys, N).matched, 9 * page_size);
	kvt_test_equal(match(keys, N).usable, 9 * page_size);
}

/* An engine computes the last token, so it cannot continue behind a prompt of whole pages. */
TEST_WITH(a_point_that_no_begin_can_use_is_not_loaded, start_state, stop)
{
	uint32_t n = keep();

	kvt_test_equal(serve(keys, n * page_size, 0), 0);
	kvt_test_equal(kvt_test_store_status(&peer).loads, 0);
	evict_all();
	kvt_test_equal(serve(keys, n * page_size + 1, 0), n * page_size);
}

/* The pool lost the last 10 pages of a prompt: 70 positions, fewer than are loaded at once. But its
 * point is gone, so all is computed that is not loaded. */
TEST_WITH(a_window_reaches_in_front_of_what_is_loaded, start_window, stop)
{
	uint32_t n = keep(), all = with_sides(n);

	serve(keys, N, 0);
	kvt_test_store_settled(&peer, all);
	evict(20); /* with their side pages */
	kvt_test_equal(match(keys, N).matched, (n - 10) * page_size);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&peer, all).loaded_pages, all + 20);
	evict_all(); /* without the side pages in front, which are loaded, too */
	kvt_client_close(worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, (n - 10) * page_size + 1, 0), 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&peer, all).loaded_pages, all + 20 + 26);
}

/* What is cached in front has no side pages: the load's BEGIN gets private pages for it, which must
 * not become cached. */
TEST_WITH(a_point_is_loaded_behind_pages_without_any, start_both, stop)
{
	uint32_t n = keep(), half = n / 2 * page_size;

	kvt_client_close(worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, half / 2, 0), 0);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&peer, with_sides(n)).loaded_pages,
		       with_sides(n) - half / 2 / page_size);
	/* A window that lies in what is cached without it. */
	evict_all();
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, half), 0);
	kvt_test_equal(match(keys, N).matched, 0);
}

TEST_WITH(two_prompts_share_what_is_in_front_of_their_points, start_both, stop)
{
	uint32_t n = keep(), half = n / 2, others[N];

	memcpy(others, keys, sizeof(others));
	for (uint32_t i = half * page_size; i < N; i++)
		others[i] ^= 1;
	kvt_test_equal(serve(others, N, n), 0);
	/* The store has the first prompt: the second's own half is behind what both have. */
	kvt_test_store_settled(&peer, 2 * with_sides(n) - half);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(serve(others, N, 0), n * page_size);
	evict_all();
	kvt_test_equal(serve(others, N, 0), n * page_size);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
}

TEST_WITH(a_side_page_is_no_anchor, start_state, stop)
{
	uint32_t n = N / page_size, cached, half, n_pages, pages[N];
	struct kvt_handle handle;
	struct kvt_lease lease;
	const uint32_t *side;
	struct kvt_seq *seq;

	keep();
	half = n / 2 * page_size;
	kvt_client_close(worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, half, n / 2), 0);
	kvt_test_equal(kvt_seq_begin(worker, space, keys, half, 0, KVT_F_FULL, &seq), 0);
	side = kvt_seq_sides(seq, 0, &n_pages);
	kvt_test_equal(n_pages, 1);
	kvt_test_equal(kvt_probe(worker, space, keys, N, &handle, &cached), 0);
	kvt_test_equal(cached, half);
	kvt_test_equal(kvt_lock(worker, handle, &lease, pages, N, &n_pages), 0);
	kvt_test_store_settled(&peer, with_sides(n) + 1);
	kvt_test_equal(kvt_test_fetch(&peer, digest, handle, *side, keys + half, half), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, handle, pages[n_pages - 1], keys + half,
				      (n * page_size - half)), n * page_size - half);
	kvt_test_equal(kvt_unlock(worker, lease, KVT_IDLE), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_store_settled(&peer, with_sides(n) + 1);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
}

/* ---- what may fail */

TEST_WITH(a_store_killed_in_a_load_leaves_no_page_behind, start_big, stop)
{
	struct kvt_counters counters;
	uint32_t n = keep();

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	kvt_test_store_kill(&store);
	serve(keys, N, n); /* checks the bytes of what is reused */
	kvt_test_until(&daemon_, counters, counters.quarantined_pages == 0);
	evict_all();
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.free_pages, info->n_pages - 1);
}

TEST_WITH(a_load_ends_with_a_reset, start_big, stop)
{
	uint32_t n = keep();

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	kvt_test_equal(kvt_reset(worker), 0);
	kvt_test_store_settled(&peer, 0);
	kvt_test_equal(match(keys, N).matched, 0);
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_equal(serve(keys, N, n), 0);
}

TEST_WITH(a_load_that_is_dropped_gives_its_pages_back, start_big, stop)
{
	uint32_t n = keep();

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	kvt_test_check(kvt_test_store_drop(&peer).loading_pages > 0);
	kvt_test_equal(kvt_test_settled(&daemon_).private_pages, 0);
	kvt_test_equal(match(keys, N).usable, 0);
}

TEST_WITH(a_point_that_lost_a_side_page_is_not_offered, start_both, stop)
{
	uint32_t n = N / page_size;
	struct kvt_seq *seq;

	kvt_test_keys(keys, N, 4);
	kvt_test_equal(serve(keys, N, n), 0);
	kvt_test_store_settled(&peer, with_sides(n));
	kvt_test_store_drop(&peer);
	/* The store sees the rest of it again, without the state. */
	kvt_test_equal(kvt_seq_begin(worker, space, keys, N, 0, 0, &seq), 0);
	kvt_test_equal(kvt_seq_attach(seq, n - 1, 1, KVT_NONE), 0);
	kvt_test_equal(kvt_seq_commit(seq, n * page_size, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	start_store("1M", NULL); /* its snapshot has what is cached now */
	kvt_test_store_settled(&peer, with_sides(n) - 1);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 0);
}

/* ---- below the memory */

static void start_file_store(void)
{
	const char *more[] = { "--file", path, "--file-bytes", "16M", "--file-admit", "all",
			       NULL };

	start_store("512K", more);
}

static int start_file(void **state)
{
	int fd;

	snprintf(directory, sizeof(directory), "/var/tmp/kvt-store-XXXXXX");
	kvt_test_check(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/pages", directory);
	fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
	unlink(path);
	if (fd < 0) {
		rmdir(directory);
		kvt_skip("/var/tmp has no O_DIRECT");
	}
	close(fd);
	start_with("page_size = 16\nsides = 4,1\n", NULL);
	start_file_store();
	return 0;
}

static int stop_file(void **state)
{
	stop(state);
	unlink(path);
	rmdir(directory);
	return 0;
}

static int start_helper(void **state)
{
	const char *more[] = { "--helper", helper, "--helper-wait-ms", "60000",
			       "--helper-batch-bytes", "8K", NULL };

	snprintf(directory, sizeof(directory), "/var/tmp/kvt-store-XXXXXX");
	kvt_test_check(mkdtemp(directory));
	snprintf(helper, sizeof(helper), "%s/tests/proc/helper %s", kvt_test_build(), directory);
	start_with("page_size = 16\nsides = 4,1\n", NULL);
	start_store("1M", more);
	while (!kvt_test_store_status(&peer).helper_ready)
		;
	return 0;
}

static int stop_helper(void **state)
{
	char remove[80];

	stop(state);
	snprintf(remove, sizeof(remove), "rm -r %s", directory);
	kvt_test_equal(system(remove), 0);
	return 0;
}

TEST_WITH(points_come_back_from_a_distributed_store, start_helper, stop_helper)
{
	struct kvt_store_status status;
	uint32_t n = keep(), all = with_sides(n);

	while (kvt_test_store_status(&peer).helper_written_pages < all)
		;
	kvt_test_store_drop(&peer);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	status = kvt_test_store_settled(&peer, all);
	kvt_test_equal(status.helper_read_pages, all);
	kvt_test_equal(status.helper_bad_pages, 0);
}

TEST_WITH(points_come_back_from_a_file, start_file, stop_file)
{
	uint32_t n = keep();

	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	start_file_store();
	kvt_client_close(worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(kvt_test_store_status(&peer).file_pages, with_sides(n));
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_status(&peer).file_bad_pages, 0);
}
