/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtstored beside a pool in device memory, on a device: an evicted prompt comes back with its
 * bytes, and so does what another instance computed; and how fast pages are copied out and loaded,
 * beside one copy of as many bytes. Needs the daemon and the store beside the driver.
 *
 * Inputs: backend and order of layers. Invariant: each piece of each page has the content of its
 * prompt. Figures go to stdout as JSON lines.
 */
#include "kvtrunk_fetch.h"
#include "tests/whole/gpu/gpu_test.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N_PAGES (gpu_emulated() ? 64u : 512u) /* of a prompt */
#define ROOM (gpu_emulated() ? "16M" : "2G")  /* of a store */

struct engine {
	struct gpu gpu;
	struct kvt_client *client;
	struct kvt_pool pool;
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
	uint32_t n_pieces;
	uint64_t *host; /* page-locked, of a page */
	uint64_t page_bytes;
};

static void engine_open(struct engine *engine, const struct kvt_test_daemon *daemon)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon->socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = 60000000000; /* for a busy machine */
	kvt_test_equal(kvt_client_connect(&engine->client, &options, NULL), 0);
	engine->gpu = gpu_open();
	if (kvt_pool_map_cuda(engine->client, KVT_DEVICE_CURRENT, 0, &engine->pool) != 0)
		kvt_test_fail("map: %s", kvt_client_error(engine->client)->text);
	engine->n_pieces = (uint32_t)kvt_pool_pieces(engine->client, engine->pieces);
	engine->page_bytes = kvt_client_info(engine->client)->page_bytes;
	gpu_do(&engine->gpu, host_alloc((void **)&engine->host, engine->page_bytes, 0));
}

/* Word i of a page of a prompt. */
static uint64_t content_of(uint64_t seed, uint32_t index, uint64_t i)
{
	return seed << 48 ^ (uint64_t)index << 28 ^ i;
}

/* Copy a page between `host` and the device, piece by piece, and wait. */
static void copy_page(struct engine *engine, uint32_t page, bool out)
{
	uint8_t *host = (uint8_t *)engine->host;

	for (uint32_t i = 0; i < engine->n_pieces; i++) {
		const struct kvt_pool_piece *piece = &engine->pieces[i];
		uint64_t at = (uint64_t)(uintptr_t)engine->pool.base + piece->offset_bytes +
			      page * piece->stride_bytes;

		if (out)
			gpu_do(&engine->gpu, memory_download(host, at, piece->bytes,
							     engine->gpu.stream));
		else
			gpu_do(&engine->gpu, memory_upload(at, host, piece->bytes,
							   engine->gpu.stream));
		host += piece->bytes;
	}
	gpu_do(&engine->gpu, stream_synchronize(engine->gpu.stream));
}

static void check_page(struct engine *engine, uint32_t page, uint64_t seed, uint32_t index)
{
	copy_page(engine, page, true);
	for (uint64_t i = 0; i < engine->page_bytes / 8; i++)
		kvt_test_check(engine->host[i] == content_of(seed, index, i));
}

static void write_page(struct engine *engine, uint32_t page, uint64_t seed, uint32_t index)
{
	for (uint64_t i = 0; i < engine->page_bytes / 8; i++)
		engine->host[i] = content_of(seed, index, i);
	copy_page(engine, page, false);
}

/* Serve a prompt. Returns what was reused, and how long its BEGIN took. */
static uint32_t serve(struct engine *engine, uint64_t seed, uint64_t *ret_begin_ns)
{
	uint32_t n_keys = N_PAGES * PAGE, *keys = calloc(n_keys, sizeof(*keys)), n, reusable;
	uint64_t begin_ns = kvt_now_ns();
	const uint32_t *pages;
	struct kvt_seq *seq;

	for (uint32_t i = 0; i < n_keys; i++)
		keys[i] = (uint32_t)seed << 20 | i;
	if (kvt_seq_begin(engine->client, kvt_test_namespace(engine->client, "n"), keys, n_keys, 0,
			  0, &seq) != 0)
		kvt_test_fail("begin: %s", kvt_client_error(engine->client)->text);
	*ret_begin_ns = kvt_now_ns() - begin_ns;
	reusable = kvt_seq_reusable(seq);
	pages = kvt_seq_pages(seq, &n);
	for (uint32_t i = 0; i < N_PAGES; i++) {
		if (i >= reusable / PAGE)
			write_page(engine, pages[i], seed, i);
		check_page(engine, pages[i], seed, i);
	}
	kvt_test_equal(kvt_seq_end(seq, n_keys, NULL, 0, KVT_IDLE, 0), 0);
	free(keys);
	return reusable;
}

/* The floor: bytes per second of one copy of 64 pages, page-locked memory to device or back. */
static uint64_t copy_rate(struct engine *engine, bool out)
{
	uint64_t bytes = 64 * engine->page_bytes, memory, begin_ns, took_ns = UINT64_MAX;
	void *host;

	gpu_do(&engine->gpu, host_alloc(&host, bytes, 0));
	gpu_do(&engine->gpu, memory_alloc(&memory, bytes));
	for (int i = 0; i < 5; i++) {
		begin_ns = kvt_now_ns();
		if (out)
			gpu_do(&engine->gpu, memory_download(host, memory, bytes,
							     engine->gpu.stream));
		else
			gpu_do(&engine->gpu, memory_upload(memory, host, bytes,
							   engine->gpu.stream));
		gpu_do(&engine->gpu, stream_synchronize(engine->gpu.stream));
		if (kvt_now_ns() - begin_ns < took_ns)
			took_ns = kvt_now_ns() - begin_ns;
	}
	gpu_do(&engine->gpu, memory_free(memory));
	gpu_do(&engine->gpu, host_free(host));
	return bytes * 1000000000 / took_ns;
}

/* For each seed: serve it with the daemon that is the context. 0: evict all. */
static void engine_run(int pipe, void *context)
{
	struct engine engine;
	uint64_t seed, begin_ns = 0;
	uint32_t evicted;

	engine_open(&engine, context);
	kvt_test_send(pipe, copy_rate(&engine, true));
	kvt_test_send(pipe, copy_rate(&engine, false));
	while (kvt_test_receive(pipe, &seed)) {
		if (seed)
			kvt_test_send(pipe, serve(&engine, seed, &begin_ns));
		else
			kvt_test_send(pipe, (uint64_t)kvt_evict(engine.client, 65535, &evicted));
		kvt_test_send(pipe, begin_ns);
	}
	kvt_test_equal(kvt_client_close(engine.client, KVT_IDLE), 0);
}

static uint64_t ask(struct kvt_test_child *child, uint64_t seed, uint64_t *ret_begin_ns)
{
	uint64_t word = kvt_test_ask(child, seed);

	*ret_begin_ns = kvt_test_word(child->pipe);
	return word;
}

static void start_engine(struct kvt_test_child *engine, struct kvt_test_daemon *daemon,
			 double *ret_out_gb, double *ret_in_gb)
{
	kvt_test_child_start(engine, engine_run, daemon);
	*ret_out_gb = (double)kvt_test_word(engine->pipe) / 1e9;
	*ret_in_gb = (double)kvt_test_word(engine->pipe) / 1e9;
}

static double gb_per_s(const struct kvt_test_peer *peer, uint64_t ns)
{
	struct kvt_store_status status = kvt_test_store_status(peer);

	return (double)(N_PAGES * (status.ram_bytes / status.room_pages)) / (double)ns;
}

static void keep_and_load(const char *backend, const char *order)
{
	struct kvt_test_store store;
	struct kvt_test_child engine;
	struct kvt_test_peer peer;
	double floor_out_gb, floor_in_gb;
	uint64_t took_ns, out_ns;

	kvt_test_store_start(&store, &daemon_, ROOM);
	kvt_test_peer_open(&peer, &store);
	start_engine(&engine, &daemon_, &floor_out_gb, &floor_in_gb);
	kvt_test_equal(ask(&engine, 1, &took_ns), 0);
	out_ns = kvt_now_ns(); /* a little late: it copies as pages are committed */
	kvt_test_store_settled(&peer, N_PAGES);
	out_ns = kvt_now_ns() - out_ns;
	kvt_test_equal(ask(&engine, 0, &took_ns), 0);
	kvt_test_equal(ask(&engine, 1, &took_ns), (N_PAGES - 1) * PAGE);
	gpu_figure("a store's copies", "\"backend\": \"%s\", \"order\": \"%s\", "
		   "\"out_gb_per_s\": %.2f, \"load_gb_per_s\": %.2f, "
		   "\"floor_out_gb_per_s\": %.2f, \"floor_in_gb_per_s\": %.2f", backend, order,
		   gb_per_s(&peer, out_ns), gb_per_s(&peer, took_ns), floor_out_gb, floor_in_gb);
	kvt_test_child_end(&engine);
	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
}

/* What another instance on the same device computed, through host memory. */
static void load_from_other(const char *config, const char *backend, const char *order)
{
	struct kvt_test_daemon other;
	struct kvt_test_child owner, engine;
	struct kvt_test_store store, at_other;
	struct kvt_test_peer peer;
	double floor_out_gb, floor_in_gb;
	uint64_t took_ns;

	kvt_test_daemon_begin(&other, config);
	start_engine(&owner, &other, &floor_out_gb, &floor_in_gb);
	kvt_test_equal(ask(&owner, 2, &took_ns), 0);
	kvt_test_store_start_host(&store, &at_other, (const struct kvt_test_daemon *[]){
		&daemon_, &other }, 2, ROOM, NULL);
	kvt_test_peer_open(&peer, &store);
	kvt_test_store_settled(&peer, 2 * N_PAGES); /* of both */
	start_engine(&engine, &daemon_, &floor_out_gb, &floor_in_gb);
	kvt_test_equal(ask(&engine, 2, &took_ns), (N_PAGES - 1) * PAGE);
	gpu_figure("another instance's pages", "\"backend\": \"%s\", \"order\": \"%s\", "
		   "\"load_gb_per_s\": %.2f, \"floor_out_gb_per_s\": %.2f, "
		   "\"floor_in_gb_per_s\": %.2f", backend, order, gb_per_s(&peer, took_ns),
		   floor_out_gb, floor_in_gb);
	kvt_test_child_end(&engine);
	kvt_test_child_end(&owner);
	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	kvt_test_daemon_end(&other);
}

int main(void)
{
	static const char *const backends[] = { "cuda-ipc", "cuda-vmm" };
	static const char *const orders[] = { "layer", "page" };
	char path[600], config[400];

	gpu_test_begin();
	snprintf(path, sizeof(path), "%s/kvtstored", kvt_test_build());
	if (access(path, X_OK) != 0) {
		printf("skip: kvtstored is not built here\n");
		gpu_test_end();
		return 77;
	}
	for (int i = 0; i < 4; i++) {
		snprintf(config, sizeof(config), "backend = %s\npage_size = %u\npage_bytes = 0\n"
			 "n_layers = %d\nn_kv_heads = 8\nhead_dim = %d\nn_pages = %u\n"
			 "kv_order = %s\n",
			 backends[i % 2], PAGE, gpu_emulated() ? 4 : 32, gpu_emulated() ? 16 : 128,
			 2 * N_PAGES, orders[i / 2]);
		kvt_test_daemon_begin(&daemon_, config);
		keep_and_load(backends[i % 2], orders[i / 2]);
		load_from_other(config, backends[i % 2], orders[i / 2]);
		kvt_test_daemon_end(&daemon_);
	}
	return gpu_test_end();
}
