/* SPDX-License-Identifier: Apache-2.0 */
/* A store beside a daemon whose pages have side pages: a point comes back as it was, or its main
 * pages are not offered.
 *
 * Inputs: prompts that a worker serves. The bytes of a page, main or side, depend on its kind and
 * on all keys up to its end. Invariants: what is reused has its bytes, of each kind; whatever the
 * store does, the audit is clean. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"
#include "tests/store/proc/helper.h"
#include "tests/store/proc/store.h"

#define N 1100u /* keys of a prompt: whole pages, and some, of each size */
#define SALT 7

static struct kvt_test_side own, other;
static uint32_t page_size;
static const struct kvt_info *info;
static uint32_t keys[N];
static uint64_t digest[2]; /* of "store" */
static const struct kvt_handle root;
static char directory[TEST_FOLDER_BYTES], path[96];

static void connect_worker(void)
{
	kvt_test_side_connect(&own);
	info = kvt_client_info(own.worker);
	page_size = info->page_size;
}

static int start_with(const char *lines, const char *ram)
{
	kvt_test_digest("store", digest);
	kvt_test_daemon_begin(&own.daemon, lines);
	connect_worker();
	if (ram)
		kvt_test_side_store(&own, ram, NULL);
	return 0;
}

static int start_window(void **state)
{
	const char *more[] = { "--min-positions", "256", NULL };

	start_with("page_size = 7\nsides = 16\n", NULL);
	kvt_test_side_store(&own, "1M", more);
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
	kvt_test_side_end(&own);
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
		kvt_test_check(kvt_test_page_right(&own.pool, page_size, pages[i], SALT, prompt,
						   i));
	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		const uint32_t *sides = kvt_seq_sides(seq, kind, &n);

		for (uint32_t i = 0; i < n; i++)
			kvt_test_check(kvt_test_page_right(&own.pool, page_size, sides[i],
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
			kvt_test_equal(kvt_alloc(own.worker, 1, &side), 0);
			kvt_test_page_fill(&own.pool, page_size, side, salt_of(kind), prompt, i);
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

	kvt_test_equal(kvt_seq_begin(own.worker, own.space, prompt, n, 0, 0, &seq), 0);
	reused = check_reused(seq, prompt);
	pages = kvt_seq_pages(seq, &n_pages);
	for (uint32_t i = reused / page_size; i < n / page_size; i++)
		kvt_test_page_fill(&own.pool, page_size, pages[i], SALT, prompt, i);
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
	const struct kvt_request request = { .op = KVT_OP_MATCH, .namespace_id = own.space,
					     .keys = prompt, .n_keys = n };

	return kvt_test_call(own.worker, &request);
}

/* Evict pages. A load that brought its point may not have ended yet, and locks them. */
static void evict(uint32_t n)
{
	uint32_t evicted;

	while (own.store.pid > 0 && kvt_test_store_status(&own.peer).open_loads > 0)
		;
	kvt_test_equal(kvt_evict(own.worker, n, &evicted), 0);
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
	kvt_test_store_settled(&own.peer, with_sides(n));
	evict_all();
	return n;
}

/* FETCH keys behind what the pool has of a prompt. */
static uint32_t fetch_behind(const uint32_t *prompt, uint32_t n)
{
	uint32_t cached, n_pages, pages[N] = { 0 };
	struct kvt_handle handle = root;
	struct kvt_lease lease;

	kvt_test_equal(kvt_probe(own.worker, own.space, prompt, n, &handle, &cached), 0);
	if (cached) {
		kvt_test_equal(kvt_lock(own.worker, handle, &lease, pages, N, &n_pages), 0);
		kvt_test_equal(kvt_unlock(own.worker, lease, KVT_IDLE), 0);
	}
	return kvt_test_fetch(&own.peer, digest, cached ? handle : root,
			      cached ? pages[cached / page_size - 1] : 0, prompt + cached,
			      (n - cached) / page_size * page_size);
}

/* ---- */

static void check_that_a_point_comes_back(void)
{
	struct kvt_store_status status;
	uint32_t n = keep(), all = with_sides(n);

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	status = kvt_test_store_settled(&own.peer, all);
	kvt_test_equal(status.loaded_pages, all);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(match(keys, N).usable, n * page_size);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	evict_all(); /* and by the library */
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&own.peer, all).loaded_pages, 2 * all);
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

/* Another instance, with the same store. */
static int start_two(void **state)
{
	static const char *const lines = "page_size = 64\nsides = 2,1,1\n";
	struct kvt_test_store at_own;

	kvt_test_digest("store", digest);
	own = other = (struct kvt_test_side){ .worker = NULL };
	kvt_test_daemon_begin(&other.daemon, lines);
	kvt_test_daemon_begin(&own.daemon, lines);
	kvt_test_store_start_host(&other.store, &at_own, (const struct kvt_test_daemon *[]){
		&other.daemon, &own.daemon }, 2, "1M", NULL);
	kvt_test_peer_open(&other.peer, &other.store);
	kvt_test_peer_open(&own.peer, &at_own);
	kvt_test_side_connect(&other);
	connect_worker();
	return 0;
}

static int stop_two(void **state)
{
	kvt_test_peer_close(&own.peer);
	kvt_test_side_end(&other);
	kvt_test_side_end(&own);
	return 0;
}

TEST_WITH(a_point_comes_from_another_instance, start_two, stop_two)
{
	struct kvt_test_side first = own;
	uint32_t n = N / page_size;

	kvt_test_keys(keys, N, 1);
	own = other;
	kvt_test_equal(serve(keys, N, n), 0);
	own = first;
	kvt_test_store_settled(&other.peer, with_sides(n));
	kvt_test_equal(serve(keys, N, 0), n * page_size);
}

TEST_WITH(main_pages_without_a_point_are_not_offered, start_both, stop)
{
	uint32_t n = N / page_size;

	kvt_test_keys(keys, N, 2);
	kvt_test_equal(serve(keys, N, 0), 0);
	kvt_test_store_settled(&own.peer, n);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 0);
	kvt_test_equal(serve(keys, N, 9), 0);
	kvt_test_store_settled(&own.peer, with_sides(n) /* 9 pages have as many */);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 9 * page_size); /* up to the point */
	kvt_test_store_settled(&own.peer, with_sides(n));
	kvt_test_equal(match(keys, N).matched, 9 * page_size);
	kvt_test_equal(match(keys, N).usable, 9 * page_size);
}

/* Processor time of the store, ns. */
static int64_t store_cpu_ns(void)
{
	struct timespec time;
	clockid_t clock;

	kvt_test_equal(clock_getcpuclockid(own.store.pid, &clock), 0);
	kvt_test_equal(clock_gettime(clock, &time), 0);
	return time.tv_sec * 1000000000 + time.tv_nsec;
}

TEST_WITH(a_peer_that_lies_about_its_place_takes_no_time, start_state, stop)
{
	uint32_t half = keep() / 2 * page_size, cached, page, n_pages;
	struct kvt_handle handle;
	struct kvt_lease lease;
	int64_t before_ns;

	kvt_client_close(own.worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, page_size, 0), 0);
	kvt_test_equal(kvt_probe(own.worker, own.space, keys, half, &handle, &cached), 0);
	kvt_test_equal(cached, page_size);
	kvt_test_equal(kvt_lock(own.worker, handle, &lease, &page, 1, &n_pages), 0);
	before_ns = store_cpu_ns();
	handle.positions = UINT32_MAX / page_size * page_size;
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, handle, page, keys + page_size, half), 0);
	kvt_test_check(store_cpu_ns() - before_ns < 100000000);
	kvt_test_equal(kvt_unlock(own.worker, lease, KVT_IDLE), 0);
}

/* An engine computes the last token, so it cannot continue behind a prompt of whole pages. */
TEST_WITH(a_point_that_no_begin_can_use_is_not_loaded, start_state, stop)
{
	uint32_t n = keep();

	kvt_test_equal(serve(keys, n * page_size, 0), 0);
	kvt_test_equal(kvt_test_store_status(&own.peer).loads, 0);
	evict_all();
	kvt_test_equal(serve(keys, n * page_size + 1, 0), n * page_size);
}

/* The pool lost the last 10 pages of a prompt: 70 positions, fewer than are loaded at once. But its
 * point is gone, so all is computed that is not loaded. */
TEST_WITH(a_window_reaches_in_front_of_what_is_loaded, start_window, stop)
{
	uint32_t n = keep(), all = with_sides(n);

	serve(keys, N, 0);
	kvt_test_store_settled(&own.peer, all);
	evict(20); /* with their side pages */
	kvt_test_equal(match(keys, N).matched, (n - 10) * page_size);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&own.peer, all).loaded_pages, all + 20);
	evict_all(); /* without the side pages in front, which are loaded, too */
	kvt_client_close(own.worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, (n - 10) * page_size + 1, 0), 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&own.peer, all).loaded_pages, all + 20 + 26);
}

/* What is cached in front has no side pages: the load's BEGIN gets private pages for it, which must
 * not become cached. */
TEST_WITH(a_point_is_loaded_behind_pages_without_any, start_both, stop)
{
	uint32_t n = keep(), half = n / 2 * page_size;

	kvt_client_close(own.worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, half / 2, 0), 0);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_settled(&own.peer, with_sides(n)).loaded_pages,
		       with_sides(n) - half / 2 / page_size);
	/* A window that lies in what is cached without it. */
	evict_all();
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, root, 0, keys, half), 0);
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
	kvt_test_store_settled(&own.peer, 2 * with_sides(n) - half);
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
	kvt_client_close(own.worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(serve(keys, half, n / 2), 0);
	kvt_test_equal(kvt_seq_begin(own.worker, own.space, keys, half, 0, KVT_F_FULL, &seq), 0);
	side = kvt_seq_sides(seq, 0, &n_pages);
	kvt_test_equal(n_pages, 1);
	kvt_test_equal(kvt_probe(own.worker, own.space, keys, N, &handle, &cached), 0);
	kvt_test_equal(cached, half);
	kvt_test_equal(kvt_lock(own.worker, handle, &lease, pages, N, &n_pages), 0);
	kvt_test_store_settled(&own.peer, with_sides(n) + 1);
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, handle, *side, keys + half, half), 0);
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, handle, pages[n_pages - 1], keys + half,
				      (n * page_size - half)), n * page_size - half);
	kvt_test_equal(kvt_unlock(own.worker, lease, KVT_IDLE), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_store_settled(&own.peer, with_sides(n) + 1);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
}

/* ---- what may fail */

TEST_WITH(a_store_killed_in_a_load_leaves_no_page_behind, start_big, stop)
{
	struct kvt_counters counters;
	uint32_t n = keep();

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	kvt_test_store_kill(&own.store);
	serve(keys, N, n); /* checks the bytes of what is reused */
	kvt_test_until(&own.daemon, counters, counters.quarantined_pages == 0);
	evict_all();
	counters = kvt_test_settled(&own.daemon);
	kvt_test_equal(counters.free_pages, info->n_pages - 1);
}

TEST_WITH(a_load_ends_with_a_reset, start_big, stop)
{
	uint32_t n = keep();

	kvt_test_equal(fetch_behind(keys, N), n * page_size);
	kvt_test_equal(kvt_reset(own.worker), 0);
	kvt_test_store_settled(&own.peer, 0);
	kvt_test_equal(match(keys, N).matched, 0);
	kvt_test_equal(kvt_test_settled(&own.daemon).private_pages, 0);
	kvt_test_equal(serve(keys, N, n), 0);
}

TEST_WITH(a_load_that_is_dropped_gives_its_pages_back, start_big, stop)
{
	do { /* again if the load was quicker */
		evict_all();
		kvt_test_store_drop(&own.peer);
		kvt_test_equal(keep(), N / page_size);
		kvt_test_equal(fetch_behind(keys, N), N / page_size * page_size);
	} while (kvt_test_store_drop(&own.peer).loading_pages == 0);
	kvt_test_equal(kvt_test_settled(&own.daemon).private_pages, 0);
	kvt_test_equal(match(keys, N).usable, 0);
}

TEST_WITH(a_point_that_lost_a_side_page_is_not_offered, start_both, stop)
{
	uint32_t n = N / page_size;
	struct kvt_seq *seq;

	kvt_test_keys(keys, N, 4);
	kvt_test_equal(serve(keys, N, n), 0);
	kvt_test_store_settled(&own.peer, with_sides(n));
	kvt_test_store_drop(&own.peer);
	/* The store sees the rest of it again, without the state. */
	kvt_test_equal(kvt_seq_begin(own.worker, own.space, keys, N, 0, 0, &seq), 0);
	kvt_test_equal(kvt_seq_attach(seq, n - 1, 1, KVT_NONE), 0);
	kvt_test_equal(kvt_seq_commit(seq, n * page_size, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(match(keys, N).usable, 0);
	kvt_test_peer_close(&own.peer);
	kvt_test_equal(kvt_test_store_stop(&own.store), 0);
	kvt_test_side_store(&own, "1M", NULL); /* its snapshot has what is cached now */
	kvt_test_store_settled(&own.peer, with_sides(n) - 1);
	evict_all();
	kvt_test_equal(fetch_behind(keys, N), 0);
}

/* ---- below the memory */

static void start_file_store(void)
{
	const char *more[] = { "--file", path, "--file-bytes", "16M", NULL };

	kvt_test_side_store(&own, "512K", more);
}

static int start_file(void **state)
{
	make_folder_on_disk(directory);
	snprintf(path, sizeof(path), "%s/pages", directory);
	need_direct_io(directory, path);
	start_with("page_size = 16\nsides = 4,1\n", NULL);
	start_file_store();
	return 0;
}

static int stop_file(void **state)
{
	stop(state);
	remove_folder_on_disk(directory, path);
	return 0;
}

static int start_helper(void **state)
{
	const char *more[] = { "--helper", command, "--helper-wait-ms", "60000",
			       "--helper-batch-bytes", "8K", NULL };

	make_folder();
	start_with("page_size = 16\nsides = 4,1\n", NULL);
	kvt_test_side_store(&own, "1M", more);
	while (!kvt_test_store_status(&own.peer).helper_ready)
		;
	return 0;
}

static int stop_helper(void **state)
{
	stop(state);
	remove_folder();
	return 0;
}

TEST_WITH(points_come_back_from_a_distributed_store, start_helper, stop_helper)
{
	struct kvt_store_status status;
	uint32_t n = keep(), all = with_sides(n);

	while (kvt_test_store_status(&own.peer).helper_written_pages < all)
		;
	kvt_test_store_drop(&own.peer);
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	status = kvt_test_store_settled(&own.peer, all);
	kvt_test_equal(status.helper_read_pages, all);
	kvt_test_equal(status.helper_bad_pages, 0);
}

TEST_WITH(points_come_back_from_a_file, start_file, stop_file)
{
	uint32_t n = keep();

	kvt_test_peer_close(&own.peer);
	kvt_test_equal(kvt_test_store_stop(&own.store), 0);
	start_file_store();
	kvt_client_close(own.worker, KVT_IDLE);
	connect_worker();
	kvt_test_equal(kvt_test_store_status(&own.peer).file_pages, with_sides(n));
	kvt_test_equal(serve(keys, N, 0), n * page_size);
	kvt_test_equal(kvt_test_store_status(&own.peer).file_bad_pages, 0);
}
