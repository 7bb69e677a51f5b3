/* SPDX-License-Identifier: Apache-2.0 */
/* A store beside a real daemon, spoken to by hand.
 *
 * Inputs: prompts that a worker serves, whose pages have content that depends on all their keys.
 * Invariants: a page that comes back has its bytes; whatever the store does, the audit is clean. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/clock.h"
#include "tests/lib/cases.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */

static struct kvt_test_side own;
static uint64_t digest[2]; /* of "store" */

static void connect_with(int64_t fetch_wait_ns)
{
	own.fetch_wait_ns = fetch_wait_ns;
	kvt_test_side_connect(&own);
}

static void start_store(const char *ram)
{
	kvt_test_digest("store", digest);
	connect_with(0);
	kvt_test_side_store(&own, ram, NULL);
}

static int start_with(const char *more, const char *ram)
{
	kvt_test_daemon_begin(&own.daemon, more);
	start_store(ram);
	return 0;
}

static int start(void **state)
{
	return start_with(NULL, "1M");
}

static int start_without_store(void **state)
{
	kvt_test_daemon_begin(&own.daemon, NULL);
	connect_with(0);
	return 0;
}

static int start_small(void **state)
{
	return start_with("n_pages = 256\n", "1M");
}

/* AddressSanitizer looks whether all that was made for the daemon that ended is freed. */
static int start_with_scrubber(void **state)
{
	static const char *const scrub[] = { "--scrub", "1M", NULL };

	kvt_test_daemon_begin(&own.daemon, NULL);
	connect_with(0);
	kvt_test_side_store(&own, "1M", scrub);
	return 0;
}

/* A load takes so long that it can be interrupted. */
static int start_big(void **state)
{
	return start_with("n_pages = 256\npage_bytes = 1M\ncoalesce_patience_ms = 50\n", "80M");
}

static int start_supervised(void **state)
{
	kvt_test_daemon_begin_supervised(&own.daemon, NULL);
	start_store("1M");
	return 0;
}

static int start_with_slabs(void **state)
{
	return start_with("n_slabs = 2\npage_bytes = 0\nn_layers = 3\nn_kv_heads = 2\n"
			  "head_dim = 8\nn_pages = 512\n", "4M");
}

static int stop(void **state)
{
	kvt_test_side_end(&own);
	return 0;
}

static uint32_t serve(const uint32_t *keys)
{
	return kvt_test_side_serve(&own, keys, N);
}

static uint32_t fetch(const uint32_t *keys)
{
	return kvt_test_side_fetch(&own, keys, N);
}

/* Serve a prompt, let the store copy it, and evict it. */
static void keep(const uint32_t *keys)
{
	kvt_test_equal(serve(keys), 0);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_side_evict(&own);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), 0);
}

TEST_WITH(an_evicted_prompt_is_loaded_with_its_bytes, start, stop)
{
	struct kvt_store_status status;
	struct kvt_counters counters;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 1);
	keep(keys);
	kvt_test_equal(fetch(keys), N);
	status = kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(status.loaded_pages, N / PAGE);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(status.hits, 1);
	kvt_test_equal(kvt_test_store_times(&status.fetch_time), status.fetches);
	kvt_test_equal(kvt_test_store_times(&status.load_time), 1);
	kvt_test_check(status.load_time.sum_ns > 0);
	kvt_test_equal(kvt_test_store_times(&status.file_read_time), 0);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), N);
	/* All but the last page is reused, and its bytes are right. */
	kvt_test_equal(serve(keys), N - PAGE);
	/* The hits are the client's: the load is no request. */
	kvt_test_equal(kvt_stats(own.worker, &counters), 0);
	kvt_test_equal(counters.input_positions, 2 * N);
	kvt_test_equal(counters.hit_positions, N - PAGE);
}

/* Cache a prompt with a time to live, 0: none. */
static void insert(const uint32_t *keys, uint32_t ttl_ms)
{
	uint32_t pages[N / PAGE];
	struct kvt_request request = { .op = KVT_OP_INSERT, .namespace_id = own.space,
				       .keys = keys, .n_keys = N, .pages = pages,
				       .n_pages = N / PAGE, .fence = KVT_IDLE, .ttl_ms = ttl_ms,
				       .flags = ttl_ms ? KVT_F_TTL : 0 };

	kvt_test_equal(kvt_alloc(own.worker, N / PAGE, pages), 0);
	kvt_test_equal(kvt_test_call(own.worker, &request).error, 0);
}

TEST_WITH(what_has_a_time_to_live_does_not_come_back_after_it, start, stop)
{
	uint32_t ending[N], lasting[N];

	kvt_test_keys(ending, N, 1);
	kvt_test_keys(lasting, N, 2);
	insert(ending, 3600000);
	insert(lasting, 0); /* told later: when it was copied, the first one was looked at */
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_side_evict(&own);
	kvt_test_equal(fetch(ending), 0);
	kvt_test_equal(fetch(lasting), N);
	/* Once it is used without one, it is any prompt. */
	insert(ending, 3600000);
	insert(ending, 0);
	kvt_test_store_settled(&own.peer, 2 * N / PAGE);
	kvt_test_side_evict(&own);
	kvt_test_equal(fetch(ending), N);
}

TEST_WITH(memory_that_is_not_there_is_refused_in_words, start_without_store, stop)
{
	static const char *const scrub[] = { "--scrub", "1M", NULL };

	kvt_test_store_spawn(&own.store, &own.daemon, "100T", NULL);
	kvt_test_check(kvt_test_store_await(&own.store, "left: make --ram-bytes smaller"));
	kvt_test_equal(kvt_test_store_wait(&own.store), 3);
	kvt_test_store_spawn(&own.store, &own.daemon, "100T", scrub);
	kvt_test_check(kvt_test_store_await(&own.store, "index and the checksums of --scrub need"));
	kvt_test_equal(kvt_test_store_wait(&own.store), 3);
}

TEST_WITH(it_serves_while_its_memory_comes, start_without_store, stop)
{
	uint64_t first = 64 << 20, all = 256 << 20, record;
	uint32_t keys[N], room;

	kvt_test_keys(keys, N, 1);
	kvt_test_side_store(&own, "256M", NULL);
	record = kvt_client_info(own.worker)->page_bytes;
	room = kvt_test_store_status(&own.peer).room_pages;
	kvt_test_check(room >= first / record);
	keep(keys);
	kvt_test_equal(fetch(keys), N);
	while ((room = kvt_test_store_status(&own.peer).room_pages) < all / record)
		;
	kvt_test_equal(room, all / record);
	kvt_test_store_settled(&own.peer, N / PAGE); /* what still loads is not evicted */
	kvt_test_side_evict(&own);
	kvt_test_equal(fetch(keys), N);
	kvt_test_equal(kvt_test_store_stop(&own.store), 0);
	kvt_test_store_spawn(&own.store, &own.daemon, "256M", NULL);
	kvt_test_check(kvt_test_store_await(&own.store, "serving"));
	kvt_test_equal(kvt_test_store_stop(&own.store), 0); /* while it comes, as a rule */
	own.store.pid = 0;
}

TEST_WITH(it_loads_behind_what_is_cached, start, stop)
{
	struct kvt_handle handle;
	uint32_t keys[N], matched, pages[N / PAGE], n;
	struct kvt_lease lease;

	kvt_test_keys(keys, N, 2);
	keep(keys);
	kvt_test_side_serve(&own, keys, N / 2);
	kvt_test_equal(kvt_probe(own.worker, own.space, keys, N, &handle, &matched), 0);
	kvt_test_equal(matched, N / 2);
	kvt_test_equal(kvt_lock(own.worker, handle, &lease, pages, N / PAGE, &n), 0);
	kvt_test_equal(kvt_unlock(own.worker, lease, KVT_IDLE), 0);
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, handle, pages[0], keys + N / 2, N / 2), 0);
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, handle, pages[n - 1], keys + N / 2, N / 2),
		       N / 2);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(serve(keys), N - PAGE);
}

/* Fill the pages of a table in all slabs, or count bytes that are not as they were filled. */
static uint64_t each_byte(const uint32_t *pages, uint32_t n, bool fill)
{
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
	int n_pieces = kvt_pool_pieces(own.worker, pieces);
	uint64_t wrong = 0;

	kvt_test_equal(n_pieces, 6); /* two planes of three layers */
	for (uint32_t s = 0; s < 2; s++) {
		kvt_test_equal(kvt_pool_map_slab(own.worker, s, &own.pool), 0);
		for (uint32_t i = 0; i < n * 6; i++) {
			const struct kvt_pool_piece *piece = &pieces[i % 6];
			uint8_t *at = (uint8_t *)own.pool.base + piece->offset_bytes +
				      pages[i / 6] * piece->stride_bytes;

			for (uint64_t b = 0; b < piece->bytes; b++) {
				uint8_t byte = (uint8_t)((i * 512 + b * 2 + s) * 2654435761u >> 13);

				wrong += at[b] != byte;
				if (fill)
					at[b] = byte;
			}
		}
	}
	return fill ? 0 : wrong;
}

TEST_WITH(all_slabs_and_layers_come_back, start_with_slabs, stop)
{
	const uint32_t *pages;
	struct kvt_seq *seq;
	uint32_t keys[N], n;

	kvt_test_keys(keys, N, 3);
	kvt_test_equal(kvt_seq_begin(own.worker, own.space, keys, N, 0, 0, &seq), 0);
	pages = kvt_seq_pages(seq, &n);
	kvt_test_equal(n, N / PAGE);
	each_byte(pages, n, true);
	kvt_test_equal(kvt_seq_end(seq, N, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_side_evict(&own);
	for (uint32_t s = 0; s < 2; s++) {
		kvt_test_equal(kvt_pool_map_slab(own.worker, s, &own.pool), 0);
		memset(own.pool.base, 0, kvt_client_info(own.worker)->pool_bytes);
	}
	kvt_test_equal(fetch(keys), N);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(kvt_seq_begin(own.worker, own.space, keys, N, 0, KVT_F_FULL, &seq), 0);
	kvt_test_equal(kvt_seq_reusable(seq), N);
	pages = kvt_seq_pages(seq, &n);
	kvt_test_equal(each_byte(pages, n, false), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

TEST_WITH(what_it_does_not_have_is_answered_with_none, start, stop)
{
	const struct kvt_handle root = { 0, 0, 0 }, unknown = { 1, 1, 16 };
	uint64_t other[2] = { 1, 2 };
	uint32_t keys[N];

	kvt_test_keys(keys, N, 4);
	kvt_test_equal(fetch(keys), 0);
	keep(keys);
	kvt_test_equal(kvt_test_fetch(&own.peer, other, root, 0, keys, N), 0);
	kvt_test_equal(kvt_test_side_fetch(&own, keys + 1, N - 1), 0);
	kvt_test_equal(kvt_test_side_fetch(&own, keys, 63), 0); /* below min */
	kvt_test_equal(kvt_test_fetch(&own.peer, digest, unknown, 5, keys, N), 0);
	kvt_test_equal(kvt_test_store_status(&own.peer).loads, 0);
	keys[500] ^= 1; /* a part of it */
	kvt_test_equal(fetch(keys), 496);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), 496);
}

TEST_WITH(what_another_computes_is_not_loaded, start, stop)
{
	uint32_t keys[N];
	struct kvt_request request = { .op = KVT_OP_BEGIN, .namespace_id = own.space, .keys = keys,
				       .n_keys = N };

	kvt_test_keys(keys, N, 5);
	keep(keys);
	request = (struct kvt_request){ .op = KVT_OP_END, .fence = KVT_IDLE,
					.lease = kvt_test_call(own.worker, &request).lease };
	kvt_test_equal(fetch(keys), 0);
	kvt_test_call(own.worker, &request);
	kvt_test_equal(fetch(keys), N);
	kvt_test_store_settled(&own.peer, N / PAGE);
}

/* Serve a prompt by a client that does not ask the store. */
static void serve_without_store(const uint32_t *keys)
{
	struct kvt_test_side other = { .daemon = own.daemon, .fetch_wait_ns = -1 };

	kvt_test_side_connect(&other);
	kvt_test_equal(kvt_test_side_serve(&other, keys, N), 0);
	kvt_client_close(other.worker, KVT_IDLE);
}

TEST_WITH(what_is_computed_although_it_is_there_is_counted, start, stop)
{
	struct kvt_store_status status;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 15);
	keep(keys);
	serve_without_store(keys);
	while (status = kvt_test_store_status(&own.peer), status.computed_pages < 2 * N / PAGE)
		;
	kvt_test_equal(status.computed_pages, 2 * N / PAGE);
	kvt_test_equal(status.recomputed_pages, N / PAGE);
	kvt_test_equal(status.unloaded_pages, 2 * N / PAGE);
	kvt_test_side_evict(&own);
	kvt_test_equal(fetch(keys), N);
	status = kvt_test_store_settled(&own.peer, N / PAGE);
	/* What it loads itself counts for neither. */
	kvt_test_equal(status.computed_pages, 2 * N / PAGE);
	kvt_test_equal(status.recomputed_pages, N / PAGE);
	kvt_test_equal(status.unloaded_pages, 0);
}

TEST_WITH(what_it_drops_is_not_found, start, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 16);
	keep(keys);
	kvt_test_equal(kvt_test_store_drop(&own.peer).pages, N / PAGE);
	kvt_test_equal(kvt_test_store_status(&own.peer).pages, 0);
	kvt_test_equal(fetch(keys), 0);
	keep(keys); /* and copied again */
	kvt_test_equal(fetch(keys), N);
	kvt_test_store_settled(&own.peer, N / PAGE);
}

TEST_WITH(a_drop_ends_loads, start_big, stop)
{
	struct kvt_store_status status;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 17);
	do { /* again if the load was quicker: a drop takes what is being copied */
		kvt_test_side_evict(&own);
		kvt_test_store_drop(&own.peer);
		keep(keys);
		kvt_test_equal(fetch(keys), N);
		kvt_test_store_drop(&own.peer);
		status = kvt_test_store_status(&own.peer);
	} while (status.cut_loads == 0);
	kvt_test_equal(status.open_loads, 0);
	/* It may have copied again what the load had sealed. */
	kvt_test_check(kvt_test_matched(own.worker, own.space, keys, N) < N);
}

TEST_WITH(another_user_drops_nothing, start, stop)
{
	struct kvt_test_peer other;
	uint32_t keys[N];

	if (geteuid() != 0)
		kvt_skip("only root can be another user");
	kvt_test_keys(keys, N, 18);
	keep(keys);
	kvt_test_equal(chmod(own.store.path, 0666), 0);
	kvt_test_equal(seteuid(65534), 0);
	kvt_test_peer_open(&other, &own.store);
	kvt_test_equal(seteuid(0), 0);
	kvt_test_equal(kvt_test_store_drop(&other).head.result, -EPERM);
	kvt_test_peer_close(&other);
	kvt_test_equal(kvt_test_store_status(&own.peer).pages, N / PAGE);
}

TEST_WITH(garbage_costs_the_connection_and_nothing_else, start, stop)
{
	struct kvt_store_fetch ask = { .head = { .magic = KVT_STORE_MAGIC, .version = KVT_ABI,
						 .type = KVT_STORE_FETCH, .bytes = sizeof(ask) } };
	struct kvt_test_peer bad;
	char byte;

	for (int i = 0; i < 4; i++) {
		kvt_test_peer_open(&bad, &own.store);
		ask.head.magic = i == 0 ? 0 : KVT_STORE_MAGIC;
		ask.keys_at = i == 1 ? KVT_STORE_KEYS + 1 : 1;
		ask.n_keys = i == 2 ? KVT_STORE_KEYS : 0;
		kvt_test_check(send(bad.fd, &ask, i == 3 ? 8 : sizeof(ask), 0) > 0);
		kvt_test_equal(recv(bad.fd, &byte, 1, 0), 0); /* hung up */
		kvt_test_peer_close(&bad);
	}
	kvt_test_equal(kvt_test_store_status(&own.peer).fetches, 0);
}

TEST_WITH(one_uid_cannot_take_all_places, start, stop)
{
	static struct kvt_test_peer peers[512];
	uint32_t n = 0;

	while (kvt_test_peer_try(&peers[n], &own.store)) {
		n++;
		kvt_test_check(n < 512);
	}
	kvt_test_equal(n, 448 - 1); /* one is `peer` */
	kvt_test_equal(kvt_test_store_status(&peers[n - 1]).connected, 1);
	kvt_test_peer_close(&peers[--n]);
	while (!kvt_test_peer_try(&peers[n], &own.store)) /* until it is seen */
		kvt_test_store_status(&own.peer);
	for (n++; n > 0; n--)
		kvt_test_peer_close(&peers[n - 1]);
}

/* A pool whose records take the store several turns. */
static int start_large(void **state)
{
	return start_with("n_pages = 65536\npage_bytes = 16\n", "1M");
}

static uint64_t pages_told(const struct kvt_store_status *status)
{
	return status->queued_pages + status->dropped_pages + status->copied_pages +
	       status->refused_copies;
}

TEST_WITH(peers_are_served_between_the_records_of_a_flood, start_large, stop)
{
	static uint32_t keys[131072];
	const uint32_t n = 6;
	struct kvt_message head = { .magic = KVT_STORE_MAGIC, .version = KVT_ABI,
				    .type = KVT_STORE_STATUS, .bytes = sizeof(head) };
	struct kvt_store_status status;
	struct kvt_seq *seq;

	kvt_client_close(own.worker, KVT_IDLE);
	connect_with(-1);
	kvt_test_freeze(own.store.pid);
	for (uint32_t i = 0; i < n; i++) {
		kvt_test_keys(keys, 131072, i);
		kvt_test_equal(kvt_seq_begin(own.worker, own.space, keys, 131072, 0, 0, &seq), 0);
		kvt_test_equal(kvt_seq_end(seq, 131072, NULL, 0, KVT_IDLE, 0), 0);
	}
	for (int i = 0; i < 2; i++)
		kvt_test_equal(send(own.peer.fd, &head, sizeof(head), 0), sizeof(head));
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	for (int i = 0; i < 2; i++) {
		kvt_test_equal(recv(own.peer.fd, &status, sizeof(status), 0), sizeof(status));
		kvt_test_check(pages_told(&status) < n * 131072 / PAGE);
	}
	do
		status = kvt_test_store_status(&own.peer);
	while (pages_told(&status) < n * 131072 / PAGE);
}

TEST_WITH(its_socket_has_the_mode_of_the_daemons, start, stop)
{
	struct stat store, daemon;

	kvt_test_equal(stat(own.store.path, &store), 0);
	kvt_test_equal(stat(own.daemon.socket, &daemon), 0);
	kvt_test_equal(store.st_mode & 0777, daemon.st_mode & 0777);
	kvt_test_equal(store.st_gid, daemon.st_gid);
}

TEST_WITH(a_second_store_is_refused_in_words, start, stop)
{
	char command[1000];

	/* Also before the first one listens, and before the second allocates anything. */
	kvt_test_equal(unlink(own.store.path), 0);
	snprintf(command, sizeof(command), "f='%s.file'; '%s/kvtstored' --socket '%s' --ram-bytes "
		 "1M --file $f --file-bytes 16M 2>&1 | grep -q 'in use' && ! test -e $f",
		 own.daemon.socket, kvt_test_build(), own.daemon.socket);
	kvt_test_equal(system(command), 0);
	kvt_test_equal(kvt_test_store_status(&own.peer).connected, 1);
}

TEST_WITH(a_store_whose_files_were_removed_leaves_those_of_the_next, start, stop)
{
	struct kvt_test_store first = own.store;
	int status;

	kvt_test_peer_close(&own.peer);
	kvt_test_store_unlink(&first);
	kvt_test_side_store(&own, "1M", NULL);
	kvt_test_equal(kill(first.pid, SIGTERM), 0);
	kvt_test_equal(waitpid(first.pid, &status, 0), first.pid);
	close(first.output);
	kvt_test_equal(status, 0);
	kvt_test_peer_close(&own.peer);
	kvt_test_peer_open(&own.peer, &own.store);
}

TEST_WITH(a_daemon_that_it_cannot_follow_is_named_in_the_log, start, stop)
{
	kvt_client_close(own.worker, KVT_IDLE);
	kvt_test_check(kill(own.daemon.pid, SIGKILL) == 0);
	kvt_test_daemon_wait(&own.daemon);
	kvt_test_check(kvt_test_store_await(&own.store, "the daemon is gone"));
	kvt_test_daemon_configure(&own.daemon, "feed_bytes = 0\n");
	kvt_test_daemon_start(&own.daemon, NULL);
	kvt_test_check(kvt_test_store_await(&own.store, "set feed_bytes = 16M"));
	kvt_test_side_connect(&own);
}

/* True if a store that waits for a stopped daemon is ended by a signal, and not by its patience. */
static bool ends_while_it_starts(void)
{
	struct kvt_test_store starting;
	char path[32], name[32] = "";
	int status;
	FILE *file;

	kvt_test_store_spawn(&starting, &own.daemon, "1M", NULL);
	snprintf(path, sizeof(path), "/proc/%d/comm", (int)starting.pid);
	while (strncmp(name, "kvtstored", 9) != 0 || kvt_test_process_state(starting.pid) == 'R') {
		file = fopen(path, "re");
		kvt_test_check(file && fgets(name, sizeof(name), file));
		fclose(file);
	}
	kvt_test_equal(kill(starting.pid, SIGTERM), 0);
	kvt_test_equal(waitpid(starting.pid, &status, 0), starting.pid);
	close(starting.output);
	kvt_test_store_unlink(&starting);
	return WIFSIGNALED(status);
}

TEST_WITH(a_signal_ends_a_store_that_starts, start_without_store, stop)
{
	bool ends = false;

	kvt_test_freeze(own.daemon.pid);
	for (uint32_t i = 0; i < 10 && !ends; i++)
		ends = ends_while_it_starts();
	kvt_test_equal(kill(own.daemon.pid, SIGCONT), 0);
	kvt_test_check(ends);
}

/* Longer than the calls of one that serves wait. */
TEST_WITH(a_store_that_starts_waits_for_a_busy_daemon, start_without_store, stop)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *other;

	options.socket_path = own.daemon.socket;
	options.timeout_ns = 1500000000;
	kvt_test_freeze(own.daemon.pid);
	kvt_test_store_spawn(&own.store, &own.daemon, "1M", NULL);
	kvt_test_equal(kvt_client_connect(&other, &options, NULL), -ETIMEDOUT);
	kvt_test_equal(kill(own.daemon.pid, SIGCONT), 0);
	kvt_test_check(kvt_test_store_await(&own.store, "serving"));
}

TEST_WITH(a_daemon_that_starts_cold_is_filled_again, start_with_scrubber, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 6);
	keep(keys);
	kvt_client_close(own.worker, KVT_IDLE);
	kvt_test_check(kill(own.daemon.pid, SIGKILL) == 0);
	kvt_test_daemon_wait(&own.daemon);
	kvt_test_check(kvt_test_store_await(&own.store, "the daemon is gone"));
	kvt_test_daemon_start(&own.daemon, NULL);
	kvt_test_check(kvt_test_store_await(&own.store, "connected again; 64 pages"));
	connect_with(0);
	kvt_test_peer_close(&own.peer);
	kvt_test_peer_open(&own.peer, &own.store);
	kvt_test_equal(fetch(keys), N);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(serve(keys), N - PAGE);
}

TEST_WITH(what_was_reset_is_not_loaded, start, stop)
{
	uint32_t keys[N], others[N];

	kvt_test_keys(keys, N, 20);
	kvt_test_keys(others, N, 21);
	keep(keys);
	kvt_test_equal(kvt_reset(own.worker), 0);
	kvt_test_equal(fetch(keys), 0);
	kvt_test_check(kvt_test_store_await(&own.store, "the cache was reset"));
	keep(others);
	kvt_test_equal(kvt_test_store_status(&own.peer).pages, N / PAGE);
	kvt_test_equal(fetch(others), N);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(serve(others), N - PAGE);
}

static int start_with_short_feed(void **state)
{
	return start_with("feed_bytes = 64K\n", "1M");
}

TEST_WITH(a_reset_whose_record_was_lost_is_not_loaded, start_with_short_feed, stop)
{
	uint32_t keys[N], others[N];

	kvt_test_keys(keys, N, 22);
	keep(keys);
	kvt_client_close(own.worker, KVT_IDLE);
	connect_with(-1);
	kvt_test_freeze(own.store.pid);
	kvt_test_equal(kvt_reset(own.worker), 0);
	for (uint32_t i = 0; i < 40; i++) { /* 4 KiB of keys each */
		kvt_test_keys(others, N, 23 + i);
		kvt_test_equal(serve(others), 0);
	}
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	kvt_test_equal(fetch(keys), 0);
	kvt_test_check(kvt_test_store_await(&own.store, "the cache was reset"));
}

TEST_WITH(a_load_ends_with_a_reset, start_big, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 70);
	keep(keys);
	kvt_test_equal(fetch(keys), N);
	kvt_test_equal(kvt_reset(own.worker), 0);
	kvt_test_store_settled(&own.peer, 0);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), 0);
	kvt_test_equal(serve(keys), 0);
}

/* ---- through the library */

static struct kvt_request begin_of(const uint32_t *keys, uint32_t n)
{
	return (struct kvt_request){ .op = KVT_OP_BEGIN, .namespace_id = own.space, .keys = keys,
				     .n_keys = n, .user_data = 11 };
}

/* Take the answer to the only fetch. */
static struct kvt_fetched fetched(void)
{
	struct kvt_fetched answer;
	int rc;

	while ((rc = kvt_fetch_poll(own.worker, &answer)) == 0)
		kvt_test_store_status(&own.peer);
	kvt_test_equal(rc, 1);
	kvt_test_equal(answer.user_data, 11);
	return answer;
}

TEST_WITH(a_sequence_begins_with_what_the_store_has, start, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 11);
	keep(keys);
	kvt_test_equal(serve(keys), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&own.peer).loaded_pages, N / PAGE);
	/* And behind what the pool has: only that is loaded. */
	kvt_test_side_evict(&own);
	kvt_test_equal(kvt_test_side_serve(&own, keys, 255), 240);
	kvt_test_side_evict(&own);
	kvt_test_equal(kvt_test_side_fetch(&own, keys, 256), 256);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(serve(keys), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&own.peer).loaded_pages,
		       N / PAGE + 15 + 16 + (N - 256) / PAGE);
}

TEST_WITH(a_scheduler_fetches_when_a_request_arrives, start, stop)
{
	uint32_t keys[N];
	struct kvt_request begin = begin_of(keys, N);
	struct kvt_fetched answer;

	kvt_test_keys(keys, N, 12);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1);
	answer = fetched();
	kvt_test_equal(answer.positions, 0);
	kvt_test_equal(answer.cached, 0);
	keep(keys);
	kvt_test_freeze(own.store.pid); /* so that nothing is loaded before both are asked */
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1); /* of two: it is being loaded, or is */
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	answer = fetched();
	kvt_test_equal(answer.positions, N);
	answer = fetched();
	kvt_test_check(answer.positions == 0 || answer.positions == N);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), N);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 0); /* nothing is missing */
	kvt_test_equal(kvt_fetch_poll(own.worker, &answer), 0);
	begin.namespace_id = 99;
	kvt_test_equal(kvt_fetch(own.worker, &begin), -EINVAL);
}

TEST_WITH(a_second_request_gets_the_load_of_the_first, start, stop)
{
	struct kvt_client *first = own.worker;
	uint32_t keys[N];
	struct kvt_request begin = begin_of(keys, N);
	struct kvt_fetched answer;

	kvt_test_keys(keys, N, 19);
	keep(keys);
	kvt_test_equal(kvt_fetch(first, &begin), 1); /* until both are connected */
	fetched();
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_side_evict(&own);
	connect_with(0);
	keys[0]++;
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1);
	kvt_test_equal(fetched().positions, 0);
	keys[0]--;
	kvt_test_freeze(own.store.pid); /* so that both are asked before either is loaded */
	kvt_test_equal(kvt_fetch(first, &begin), 1);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1);
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	kvt_test_equal(fetched().positions, N);
	while (kvt_fetch_poll(first, &answer) == 0)
		;
	kvt_test_equal(answer.positions, N);
	kvt_client_close(first, KVT_IDLE); /* it was aborted */
	kvt_test_equal(serve(keys), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&own.peer).loads, 2);
}

TEST_WITH(a_scheduler_asks_a_stopped_store_three_times, start, stop)
{
	uint32_t keys[N], asked = 0;
	struct kvt_request begin = begin_of(keys, N);
	struct kvt_fetched answer;
	int64_t began_ns;

	kvt_client_close(own.worker, KVT_IDLE);
	connect_with(50000000);
	kvt_test_keys(keys, N, 18);
	while (kvt_fetch(own.worker, &begin) != 1) /* until it is connected */
		kvt_test_store_status(&own.peer);
	fetched();
	kvt_test_store_status(&own.peer); /* its answer has come, if late */
	kvt_test_freeze(own.store.pid);
	began_ns = kvt_now_ns();
	for (; kvt_fetch(own.worker, &begin) == 1; asked++) {
		while (kvt_fetch_poll(own.worker, &answer) == 0)
			;
		kvt_test_equal(answer.positions, 0);
	}
	/* And again after a second, which may have passed on a busy machine. */
	kvt_test_check(asked == 3 ||
		       (asked > 3 && kvt_now_ns() - began_ns > 1000000000));
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	kvt_test_store_status(&own.peer);
	kvt_test_equal(kvt_fetch_poll(own.worker, &answer), 0); /* late answers are dropped */
}

TEST_WITH(many_fetches_at_once_are_all_answered, start, stop)
{
	static uint32_t keys[80][128];
	uint32_t asked = 0;

	for (uint32_t i = 0; i < 80; i++) {
		struct kvt_request begin = begin_of(keys[i], 128);
		int rc;

		kvt_test_keys(keys[i], 128, 100 + i);
		rc = kvt_fetch(own.worker, &begin);
		kvt_test_check(rc == (asked < KVT_STORE_OPEN));
		asked += (uint32_t)rc;
	}
	for (; asked > 0; asked--)
		kvt_test_equal(fetched().positions, 0);
}

TEST_WITH(a_stopped_store_costs_milliseconds_and_then_nothing, start, stop)
{
	uint32_t keys[N], others[N];
	struct kvt_request begin = begin_of(others, N);
	struct kvt_fetched answer;
	uint64_t asked, late = 0;

	kvt_test_keys(keys, N, 13);
	keep(keys);
	kvt_client_close(own.worker, KVT_IDLE);
	connect_with(1000000);
	kvt_test_keys(others, N, 14);
	while (kvt_fetch(own.worker, &begin) != 1) /* until it is connected */
		kvt_test_store_status(&own.peer);
	fetched();
	asked = kvt_test_store_status(&own.peer).fetches;
	kvt_test_freeze(own.store.pid);
	for (uint32_t i = 0; i < 7; i++) {
		keys[0] = 1000 + i;
		kvt_test_equal(serve(keys), 0);
	}
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	kvt_test_equal(kvt_fetch_poll(own.worker, &answer), 0); /* late answers are dropped */
	kvt_test_store_settled(&own.peer, 8 * N / PAGE);
	for (uint32_t i = 0; i < 7; i++) /* a turn takes one message of each peer */
		late = kvt_test_store_status(&own.peer).fetches - asked;
	/* Three were waited for, and the rest not even asked. */
	kvt_test_check(late >= 3 && late < 7);
}

TEST_WITH(a_store_killed_in_a_load_leaves_the_rest_to_be_computed, start_big, stop)
{
	struct kvt_fetched answer;
	uint32_t keys[N];
	struct kvt_request begin = begin_of(keys, N);

	kvt_test_keys(keys, N, 15);
	keep(keys);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 1);
	kvt_test_equal(fetched().positions, N);
	kvt_test_store_kill(&own.store);
	serve(keys); /* checks the bytes of all */
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), N);
	kvt_test_equal(kvt_fetch(own.worker, &begin), 0);
	kvt_test_equal(kvt_fetch_poll(own.worker, &answer), 0);
}

TEST_WITH(a_store_stopped_in_a_load_holds_up_others_for_a_moment, start_big, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 16);
	keep(keys);
	kvt_client_close(own.worker, KVT_IDLE);
	connect_with(1000000);
	kvt_test_equal(fetch(keys), N);
	kvt_test_freeze(own.store.pid);
	serve(keys);
	kvt_test_equal(kvt_test_matched(own.worker, own.space, keys, N), N);
	kvt_test_check(kill(own.store.pid, SIGCONT) == 0);
	kvt_test_store_settled(&own.peer, N / PAGE);
	kvt_test_equal(serve(keys), N - PAGE);
}

TEST_WITH(what_other_traffic_evicted_comes_back, start_small, stop)
{
	static uint32_t keys[8][N];

	for (uint32_t i = 0; i < 8; i++) { /* twice the pool */
		kvt_test_keys(keys[i], N, 200 + i);
		serve(keys[i]);
		kvt_test_store_settled(&own.peer, (i + 1) * N / PAGE);
	}
	for (uint32_t i = 0; i < 8; i++)
		kvt_test_equal(serve(keys[i]), N - PAGE);
	kvt_test_check(kvt_test_store_status(&own.peer).loaded_pages >= 4 * N / PAGE);
}

TEST_WITH(it_follows_a_daemon_that_restarts_with_all_it_had, start_supervised, stop)
{
	static uint32_t keys[2][N];

	for (uint32_t i = 0; i < 2; i++) {
		kvt_test_keys(keys[i], N, 300 + i);
		serve(keys[i]);
		kvt_test_store_settled(&own.peer, (i + 1) * N / PAGE);
		kvt_test_daemon_succeed(&own.daemon);
	}
	kvt_test_side_evict(&own);
	for (uint32_t i = 0; i < 2; i++)
		kvt_test_equal(serve(keys[i]), N - PAGE);
	kvt_test_equal(kvt_test_store_status(&own.peer).connected, 1);
}

TEST_WITH(without_a_store_or_with_another_path_nothing_is_asked, start, stop)
{
	const struct kvt_test_daemon me = { .pid = getpid() };
	uint32_t keys[N], descriptors;
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_request begin = begin_of(keys, N);
	struct kvt_client *other;

	kvt_test_keys(keys, N, 15);
	keep(keys);
	descriptors = kvt_test_daemon_descriptors(&me);
	options.socket_path = own.daemon.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = 60000000000;
	for (int i = 0; i < 3; i++) {
		options.store_path = i == 0 ? "" : i == 1 ? "/nowhere" : own.store.path;
		kvt_test_equal(kvt_client_connect(&other, &options, NULL), 0);
		begin.namespace_id = kvt_test_namespace(other, "store");
		kvt_test_equal(kvt_fetch(other, &begin), i == 2);
		kvt_client_close(other, KVT_IDLE);
		kvt_test_equal(kvt_test_daemon_descriptors(&me), descriptors);
	}
	kvt_test_store_settled(&own.peer, N / PAGE);
}
