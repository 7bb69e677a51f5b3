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

#include "tests/lib/cases.h"
#include "tests/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */
#define SALT 7

static struct kvt_test_daemon daemon_;
static struct kvt_test_store store;
static struct kvt_test_peer peer;
static struct kvt_client *worker;
static struct kvt_pool pool;
static uint32_t space;
static const struct kvt_handle root;
/* As kvt_test_namespace("store"). */
static uint64_t digest[2] = { 0x6b76747465737473ull, 0 };

static void connect_worker(void)
{
	worker = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(worker, "store");
	kvt_test_equal(kvt_pool_map(worker, &pool), 0);
}

static int start_with(const char *more, const char *ram)
{
	digest[1] = 0;
	for (const char *c = "store"; *c; c++)
		digest[1] = digest[1] * 1099511628211ull + (uint8_t)*c;
	kvt_test_daemon_begin(&daemon_, more);
	connect_worker();
	kvt_test_store_start(&store, &daemon_, ram);
	kvt_test_peer_open(&peer, &store);
	return 0;
}

static int start(void **state)
{
	return start_with(NULL, "1M");
}

static int start_with_slabs(void **state)
{
	return start_with("n_slabs = 2\npage_bytes = 0\nn_layers = 3\nn_kv_heads = 2\n"
			  "head_dim = 8\nn_pages = 512\n", "4M");
}

static int stop(void **state)
{
	kvt_test_peer_close(&peer);
	if (store.pid > 0)
		kvt_test_equal(kvt_test_store_stop(&store), 0);
	kvt_client_close(worker, KVT_IDLE);
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
	return 0;
}

static void evict_all(void)
{
	uint32_t evicted;

	kvt_test_equal(kvt_evict(worker, 4095, &evicted), 0);
}

/* Serve a prompt, let the store copy it, and evict it. */
static void keep(const uint32_t *keys)
{
	kvt_test_equal(kvt_test_serve(worker, &pool, space, SALT, keys, N), 0);
	kvt_test_store_settled(&peer, N / PAGE);
	evict_all();
	kvt_test_equal(kvt_test_matched(worker, space, keys, N), 0);
}

TEST_WITH(an_evicted_prompt_is_loaded_with_its_bytes, start, stop)
{
	struct kvt_store_status status;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 1);
	keep(keys);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), N);
	status = kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_equal(status.loaded_pages, N / PAGE);
	kvt_test_equal(status.cut_loads, 0);
	kvt_test_equal(status.hits, 1);
	kvt_test_equal(kvt_test_matched(worker, space, keys, N), N);
	/* All but the last page is reused, and its bytes are right. */
	kvt_test_equal(kvt_test_serve(worker, &pool, space, SALT, keys, N), N - PAGE);
}

TEST_WITH(it_loads_behind_what_is_cached, start, stop)
{
	struct kvt_handle handle;
	uint32_t keys[N], matched, pages[N / PAGE], n;
	struct kvt_lease lease;

	kvt_test_keys(keys, N, 2);
	keep(keys);
	kvt_test_serve(worker, &pool, space, SALT, keys, N / 2);
	kvt_test_equal(kvt_probe(worker, space, keys, N, &handle, &matched), 0);
	kvt_test_equal(matched, N / 2);
	kvt_test_equal(kvt_lock(worker, handle, &lease, pages, N / PAGE, &n), 0);
	kvt_test_equal(kvt_unlock(worker, lease, KVT_IDLE), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, handle, pages[0], keys + N / 2, N / 2), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, handle, pages[n - 1], keys + N / 2, N / 2),
		       N / 2);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_equal(kvt_test_serve(worker, &pool, space, SALT, keys, N), N - PAGE);
}

/* Fill the pages of a table in all slabs, or count bytes that are not as they were filled. */
static uint64_t each_byte(const uint32_t *pages, uint32_t n, bool fill)
{
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
	int n_pieces = kvt_pool_pieces(worker, pieces);
	uint64_t wrong = 0;

	kvt_test_equal(n_pieces, 6); /* two planes of three layers */
	for (uint32_t s = 0; s < 2; s++) {
		kvt_test_equal(kvt_pool_map_slab(worker, s, &pool), 0);
		for (uint32_t i = 0; i < n * 6; i++) {
			const struct kvt_pool_piece *piece = &pieces[i % 6];
			uint8_t *at = (uint8_t *)pool.base + piece->offset_bytes +
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
	kvt_test_equal(kvt_seq_begin(worker, space, keys, N, 0, 0, &seq), 0);
	pages = kvt_seq_pages(seq, &n);
	kvt_test_equal(n, N / PAGE);
	each_byte(pages, n, true);
	kvt_test_equal(kvt_seq_end(seq, N, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_store_settled(&peer, N / PAGE);
	evict_all();
	for (uint32_t s = 0; s < 2; s++) {
		kvt_test_equal(kvt_pool_map_slab(worker, s, &pool), 0);
		memset(pool.base, 0, kvt_client_info(worker)->pool_bytes);
	}
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), N);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_equal(kvt_seq_begin(worker, space, keys, N, 0, KVT_F_FULL, &seq), 0);
	kvt_test_equal(kvt_seq_reusable(seq), N);
	pages = kvt_seq_pages(seq, &n);
	kvt_test_equal(each_byte(pages, n, false), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

TEST_WITH(what_it_does_not_have_is_answered_with_none, start, stop)
{
	uint64_t other[2] = { 1, 2 };
	uint32_t keys[N];

	kvt_test_keys(keys, N, 4);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), 0);
	keep(keys);
	kvt_test_equal(kvt_test_fetch(&peer, other, root, 0, keys, N), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys + 1, N - 1), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, 63), 0); /* below min */
	kvt_test_equal(kvt_test_fetch(&peer, digest, (struct kvt_handle){ 1, 1, 16 }, 5, keys, N),
		       0);
	kvt_test_equal(kvt_test_store_status(&peer).loads, 0);
	keys[500] ^= 1; /* a part of it */
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), 496);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_equal(kvt_test_matched(worker, space, keys, N), 496);
}

TEST_WITH(what_another_computes_is_not_loaded, start, stop)
{
	uint32_t keys[N];
	struct kvt_seq *seq;

	kvt_test_keys(keys, N, 5);
	keep(keys);
	kvt_test_equal(kvt_seq_begin(worker, space, keys, N, 0, 0, &seq), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), N);
	kvt_test_store_settled(&peer, N / PAGE);
}

TEST_WITH(garbage_costs_the_connection_and_nothing_else, start, stop)
{
	struct kvt_store_fetch ask = { .head = { .magic = KVT_STORE_MAGIC, .version = KVT_ABI,
						 .type = KVT_STORE_FETCH, .bytes = sizeof(ask) } };
	struct kvt_test_peer bad;
	char byte;

	for (int i = 0; i < 4; i++) {
		kvt_test_peer_open(&bad, &store);
		ask.head.magic = i == 0 ? 0 : KVT_STORE_MAGIC;
		ask.keys_at = i == 1 ? KVT_STORE_KEYS + 1 : 1;
		ask.n_keys = i == 2 ? KVT_STORE_KEYS : 0;
		kvt_test_check(send(bad.fd, &ask, i == 3 ? 8 : sizeof(ask), 0) > 0);
		kvt_test_equal(recv(bad.fd, &byte, 1, 0), 0); /* hung up */
		kvt_test_peer_close(&bad);
	}
	kvt_test_equal(kvt_test_store_status(&peer).fetches, 0);
}

TEST_WITH(its_socket_has_the_mode_of_the_daemons, start, stop)
{
	struct stat own, daemon;

	kvt_test_equal(stat(store.path, &own), 0);
	kvt_test_equal(stat(daemon_.socket, &daemon), 0);
	kvt_test_equal(own.st_mode & 0777, daemon.st_mode & 0777);
	kvt_test_equal(own.st_gid, daemon.st_gid);
}

TEST_WITH(a_second_store_is_refused_in_words, start, stop)
{
	char command[800];

	snprintf(command, sizeof(command),
		 "'%s/kvtstored' --socket '%s' --ram-bytes 1M 2>&1 | grep -q 'in use'",
		 kvt_test_build(), daemon_.socket);
	kvt_test_equal(system(command), 0);
	kvt_test_equal(kvt_test_store_status(&peer).connected, 1);
}

TEST_WITH(a_daemon_that_starts_cold_is_filled_again, start, stop)
{
	uint32_t keys[N];

	kvt_test_keys(keys, N, 6);
	keep(keys);
	kvt_client_close(worker, KVT_IDLE);
	kvt_test_check(kill(daemon_.pid, SIGKILL) == 0);
	kvt_test_daemon_wait(&daemon_);
	kvt_test_check(kvt_test_store_await(&store, "the daemon is gone"));
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_check(kvt_test_store_await(&store, "connected again; 64 pages"));
	connect_worker();
	kvt_test_peer_close(&peer);
	kvt_test_peer_open(&peer, &store);
	kvt_test_equal(kvt_test_fetch(&peer, digest, root, 0, keys, N), N);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_equal(kvt_test_serve(worker, &pool, space, SALT, keys, N), N - PAGE);
}
