/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stores.c
 * What a store costs and brings: a FETCH that finds nothing, where there is no store, a load and a
 * copy beside memcpy(), and the first chunk of a load.
 *
 * Inputs: the options; a real daemon and a real kvtstored, each with its own memory. Invariants:
 * pool and buffers of a floor were touched before, as those of a store were. The store may use any
 * core. Caller: main.c.
 */
#include "bench/bench.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kvtrunk_wire_store.h"
#include "lab/store.h"
#include "shm/map.h"

#define PAGE_SIZE 16u
#define POOL_BYTES (512ull << 20)
#define COPY_BYTES (192ull << 20) /* of a sample */
#define CHUNK 512u                /* positions of a load's first COMMIT */
#define LOAD 1024u
#define FETCH_KEYS 4096u
#define POLL_NS 200000            /* between two looks at the store's counts */
#define DIGEST ((const uint64_t[2]){ 0x73746f726573ull, 1 })

struct stores {
	struct kvt_own_daemon daemon;
	struct kvt_own_store store;
	struct kvt_client *client; /* asks no store */
	struct kvt_client *asking;
	uint32_t namespace_id, asking_id; /* the same namespace in each */
	struct kvt_pool pool;
	uint64_t page_bytes;
	uint8_t *memory; /* COPY_BYTES */
	uint32_t *keys;
};

static struct kvt_client *connect_to(const struct kvt_own_daemon *daemon, const char *store_path,
				     uint32_t *ret_namespace)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = daemon->socket_path;
	options.label = "kvtbench";
	options.flags = KVT_ANY_GEOMETRY;
	options.store_path = store_path;
	options.fetch_wait_ns = 1000000000; /* a late answer is a sample, too */
	if (kvt_client_connect(&client, &options, &error))
		bench_die("stores: %s", error.text);
	if (kvt_namespace_open(client, DIGEST, "bench", ret_namespace))
		bench_die("stores: %s", kvt_client_error(client)->text);
	return client;
}

/* Start a daemon, connect to it and touch its pool. */
static void open_pool(struct stores *stores, const struct bench_options *options,
		      uint64_t page_bytes)
{
	char bytes[40], pages[40], why[512] = "";
	const char *flags[] = { bytes, pages, "--page_size=16", "--max_private_pages=0",
				"--log_level=error", "--spin_budget_us=20", NULL };

	*stores = (struct stores){ .page_bytes = page_bytes };
	snprintf(bytes, sizeof(bytes), "--page_bytes=%llu", (unsigned long long)page_bytes);
	snprintf(pages, sizeof(pages), "--n_pages=%llu",
		 (unsigned long long)(POOL_BYTES / page_bytes));
	if (kvt_own_daemon_start(&stores->daemon, options->daemon, flags, options->daemon_cpu, why,
				 sizeof(why)))
		bench_die("%s", why);
	stores->client = connect_to(&stores->daemon, "", &stores->namespace_id);
	if (kvt_pool_map(stores->client, &stores->pool))
		bench_die("stores: %s", kvt_client_error(stores->client)->text);
	memset(stores->pool.base, 1, POOL_BYTES / page_bytes * page_bytes);
}

/* Start a store and a client that asks it. scrub: bytes a second that it reads again, NULL: none */
static void open_store(struct stores *stores, const struct bench_options *options,
		       const char *scrub)
{
	char program[4096], why[512] = "";
	const char *socket_path = stores->daemon.socket_path;
	const char *flags[] = { "--ram-bytes", "512M", "--load-percent", "90", "--queue-pages",
				"65536", scrub ? "--scrub" : NULL, scrub, NULL };

	kvt_own_store_program(options->daemon, program, sizeof(program));
	if (kvt_own_store_start(&stores->store, program, &socket_path, 1, flags, -1, why,
				sizeof(why)))
		bench_die("%s", why);
	stores->asking = connect_to(&stores->daemon, NULL, &stores->asking_id);
}

static void close_store(struct stores *stores)
{
	kvt_own_store_stop(&stores->store);
	kvt_client_close(stores->asking, KVT_IDLE);
}

static void open_all(struct stores *stores, const struct bench_options *options,
		     uint64_t page_bytes)
{
	open_pool(stores, options, page_bytes);
	stores->memory = kvt_map(COPY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				 -1);
	if (!stores->memory)
		bench_die("no memory for %llu bytes", (unsigned long long)COPY_BYTES);
	kvt_map_huge(stores->memory, COPY_BYTES);
	memset(stores->memory, 1, COPY_BYTES);
	stores->keys = bench_alloc(COPY_BYTES / page_bytes * PAGE_SIZE, sizeof(*stores->keys));
	open_store(stores, options, NULL);
}

static void close_all(struct stores *stores)
{
	close_store(stores);
	kvt_client_close(stores->client, KVT_IDLE);
	kvt_own_daemon_stop(&stores->daemon);
	munmap(stores->memory, COPY_BYTES);
	free(stores->keys);
}

static struct kvt_store_status status_of(const struct stores *stores)
{
	struct kvt_store_status status;

	if (kvt_own_store_status(&stores->store, &status))
		bench_die("stores: the store has ended");
	return status;
}

static void pause_shortly(void)
{
	const struct timespec pause = { .tv_nsec = POLL_NS };

	nanosleep(&pause, NULL);
}

/* Wait until the store has copied n pages in all. */
static void await_copied(const struct stores *stores, uint64_t n)
{
	while (status_of(stores).copied_pages < n)
		pause_shortly();
}

static void evict(struct stores *stores)
{
	uint32_t evicted;

	if (kvt_evict(stores->client, (uint32_t)(POOL_BYTES / stores->page_bytes), &evicted))
		bench_die("stores: %s", kvt_client_error(stores->client)->text);
}

static struct kvt_seq *begin(const struct stores *stores, uint32_t n_keys)
{
	struct kvt_seq *seq;

	if (kvt_seq_begin(stores->client, stores->namespace_id, stores->keys, n_keys, 0,
			  KVT_F_FULL, &seq))
		bench_die("stores: %s", kvt_client_error(stores->client)->text);
	return seq;
}

static void end(const struct stores *stores, struct kvt_seq *seq, uint32_t computed)
{
	if (kvt_seq_end(seq, computed, NULL, 0, KVT_IDLE, 0))
		bench_die("stores: %s", kvt_client_error(stores->client)->text);
}

/* Copy the pages of a sequence to memory, or back. */
static void floor_copy(const struct stores *stores, struct kvt_seq *seq, uint32_t n_pages,
		       bool in, struct bench_samples *samples)
{
	uint32_t n;
	const uint32_t *pages = kvt_seq_pages(seq, &n);
	uint64_t start = bench_ticks();

	for (uint32_t i = 0; i < n_pages; i++) {
		uint8_t *page = (uint8_t *)stores->pool.base + pages[i] * stores->page_bytes;
		uint8_t *there = stores->memory + i * stores->page_bytes;

		memcpy(in ? page : there, in ? there : page, stores->page_bytes);
	}
	bench_samples_add_any(samples, bench_ticks() - start);
}

/* Fetch what was evicted. Returns when the answer is there: n_keys are announced. */
static void fetch(struct stores *stores, uint32_t n_keys)
{
	struct kvt_request ask = { .op = KVT_OP_BEGIN, .namespace_id = stores->asking_id,
				   .keys = stores->keys, .n_keys = n_keys };
	struct kvt_fetched fetched;
	int rc = kvt_fetch(stores->asking, &ask);

	if (rc != 1)
		bench_die("stores: not asked: %d", rc);
	while ((rc = kvt_fetch_poll(stores->asking, &fetched)) == 0)
		sched_yield();
	if (rc != 1 || fetched.positions != n_keys)
		bench_die("stores: %u positions of %u are loaded: is the machine too busy to "
			  "answer within a second?", fetched.positions, n_keys);
}

struct times {
	struct bench_samples out, out_floor, in, in_floor, first, first_floor;
};

/* Publish a new prompt of n pages and wait until it is copied. */
static void copy_out(struct stores *stores, uint32_t n, struct times *times)
{
	uint64_t before = status_of(stores).copied_pages, start;
	struct kvt_seq *seq;

	bench_new_keys(stores->keys, n * PAGE_SIZE);
	seq = begin(stores, n * PAGE_SIZE);
	floor_copy(stores, seq, n, false, &times->out_floor);
	floor_copy(stores, seq, n, true, &times->in_floor);
	floor_copy(stores, seq, CHUNK / PAGE_SIZE, true, &times->first_floor);
	start = bench_ticks();
	end(stores, seq, n * PAGE_SIZE);
	await_copied(stores, before + n);
	bench_samples_add_any(&times->out, bench_ticks() - start);
	evict(stores);
}

static void load_in(struct stores *stores, uint32_t n_keys, uint32_t wanted,
		    struct bench_samples *samples)
{
	struct kvt_seq *seq;
	uint64_t start;

	fetch(stores, n_keys);
	start = bench_ticks();
	seq = begin(stores, wanted);
	bench_samples_add_any(samples, bench_ticks() - start);
	if (kvt_seq_reusable(seq) != wanted)
		bench_die("stores: %u of %u positions came", kvt_seq_reusable(seq), wanted);
	end(stores, seq, 0);
	/* The rest of the load. */
	end(stores, begin(stores, n_keys), 0);
	evict(stores);
}

static double emit(const char *name, const char *kind, struct bench_samples *value,
		   struct bench_samples *floor, const char *floor_is, uint64_t bytes)
{
	struct bench_result line = { .name = name, .kind = kind, .floor_is = floor_is };
	double ratio;

	line.value = bench_samples_take(value);
	line.floor = bench_samples_take(floor);
	ratio = line.floor.p50 / line.value.p50;
	if (bytes)
		snprintf(line.extra, sizeof(line.extra), "\"gb_per_s\":%.2f,"
			 "\"floor_gb_per_s\":%.2f", (double)bytes / line.value.p50,
			 (double)bytes / line.floor.p50);
	bench_emit(&line);
	return bytes ? ratio : (line.value.p50 - line.floor.p50) / 1000;
}

static void copies(const struct bench_options *options, uint64_t page_bytes, const char *kind)
{
	uint32_t n = (uint32_t)(COPY_BYTES / page_bytes), rounds = options->quick ? 5 : 15;
	struct times times = { 0 };
	struct stores stores;
	char figure[80];
	double value;

	open_all(&stores, options, page_bytes);
	for (uint32_t i = 0; i < rounds; i++) {
		copy_out(&stores, n, &times);
		load_in(&stores, n * PAGE_SIZE, n * PAGE_SIZE, &times.in);
		load_in(&stores, LOAD, CHUNK, &times.first);
	}
	close_all(&stores);
	value = emit("store_copy_out", kind, &times.out, &times.out_floor,
		     "memcpy() of the same pages", n * page_bytes);
	snprintf(figure, sizeof(figure), "store, %s: copies out / memcpy()", kind);
	bench_aim(figure, value, "", 0.9, true);
	value = emit("store_load", kind, &times.in, &times.in_floor, "memcpy() of the same pages",
		     n * page_bytes);
	snprintf(figure, sizeof(figure), "store, %s: loads / memcpy()", kind);
	bench_aim(figure, value, "", 0.9, true);
	value = emit("store_first_chunk", kind, &times.first, &times.first_floor,
		     "memcpy() of the chunk", 0);
	snprintf(figure, sizeof(figure), "store, %s: first chunk, above memcpy()", kind);
	bench_aim(figure, value, "us", 100, false);
}

/* ---- a FETCH that finds nothing */

static void begin_new(struct stores *stores, bool asking, struct bench_samples *samples)
{
	struct kvt_client *client = asking ? stores->asking : stores->client;
	struct kvt_seq *seq;
	uint64_t start;
	int rc;

	bench_new_keys(stores->keys, FETCH_KEYS);
	start = bench_ticks();
	rc = kvt_seq_begin(client, asking ? stores->asking_id : stores->namespace_id,
			   stores->keys, FETCH_KEYS, 0, 0, &seq);
	bench_samples_add(samples, bench_ticks() - start);
	if (rc)
		bench_die("stores: %s", kvt_client_error(client)->text);
	end(stores, seq, 0);
}

/* The first call of a new client, which looks for the socket. */
static void look_for_none(struct stores *stores, struct bench_samples *samples)
{
	struct kvt_request ask = { .op = KVT_OP_BEGIN, .keys = stores->keys,
				   .n_keys = FETCH_KEYS };
	struct kvt_client *client;
	uint64_t start;
	int rc;

	client = connect_to(&stores->daemon, "/nonexistent/store", &ask.namespace_id);
	start = bench_ticks();
	rc = kvt_fetch(client, &ask);
	bench_samples_add(samples, bench_ticks() - start);
	if (rc)
		bench_die("stores: a store that does not exist: %d", rc);
	kvt_client_close(client, KVT_IDLE);
}

static void fetches(const struct bench_options *options)
{
	struct bench_samples asked = { 0 }, not_asked = { 0 }, none = { 0 }, nothing = { 0 };
	uint32_t count = options->quick ? 200 : 2000;
	struct stores stores;
	double us;

	open_all(&stores, options, 65536);
	for (uint32_t i = 0; i < count; i++) {
		begin_new(&stores, true, &asked);
		begin_new(&stores, false, &not_asked);
		if (i % 20 == 0)
			look_for_none(&stores, &none);
	}
	close_all(&stores);
	us = emit("store_fetch_nothing", "kvt_seq_begin() of 4,096 new keys", &asked, &not_asked,
		  "the same without a store", 0);
	bench_aim("store: a FETCH that finds nothing adds, p50", us, "us", 100, false);
	emit("store_none", "look for a store where there is none, once a second", &none, &nothing,
	     NULL, 0);
}

/* ---- a FETCH beside a scrubber */

/* Ask for new keys until the answer. */
static void ask_new(struct stores *stores, struct bench_samples *samples)
{
	struct kvt_request ask = { .op = KVT_OP_BEGIN, .namespace_id = stores->asking_id,
				   .keys = stores->keys, .n_keys = FETCH_KEYS };
	struct kvt_fetched fetched;
	uint64_t start;

	bench_new_keys(stores->keys, FETCH_KEYS);
	start = bench_ticks();
	if (kvt_fetch(stores->asking, &ask) != 1)
		bench_die("stores: not asked");
	while (kvt_fetch_poll(stores->asking, &fetched) == 0)
		sched_yield();
	bench_samples_add_any(samples, bench_ticks() - start);
}

/* Ask a store once it has copied all pages, and read them again if it does that. */
static void ask_some(struct stores *stores, const struct bench_options *options, const char *scrub,
		     uint32_t n_pages, struct bench_samples *samples)
{
	open_store(stores, options, scrub);
	await_copied(stores, n_pages);
	while (scrub && status_of(stores).scrubbed_pages < n_pages)
		pause_shortly();
	for (uint32_t i = 0; i < 2000; i++) {
		ask_new(stores, samples);
		pause_shortly();
	}
	close_store(stores);
}

/* The same store without it, in turns. A part of the pool is cached. */
static void fetches_beside_scrub(const struct bench_options *options)
{
	uint32_t rounds = options->quick ? 2 : 20;
	struct bench_samples beside = { 0 }, alone = { 0 };
	uint32_t n_pages = COPY_BYTES / 65536;
	struct bench_result line = { .name = "store_fetch_beside_scrub",
				     .kind = "4,096 new keys, beside --scrub 2G",
				     .floor_is = "the same without --scrub" };
	struct stores stores;

	open_pool(&stores, options, 65536);
	stores.keys = bench_alloc(n_pages * PAGE_SIZE, sizeof(*stores.keys));
	bench_new_keys(stores.keys, n_pages * PAGE_SIZE);
	end(&stores, begin(&stores, n_pages * PAGE_SIZE), n_pages * PAGE_SIZE);
	for (uint32_t i = 0; i < rounds; i++) {
		ask_some(&stores, options, NULL, n_pages, &alone);
		ask_some(&stores, options, "2G", n_pages, &beside);
	}
	kvt_client_close(stores.client, KVT_IDLE);
	kvt_own_daemon_stop(&stores.daemon);
	free(stores.keys);
	line.value = bench_samples_take(&beside);
	line.floor = bench_samples_take(&alone);
	bench_emit(&line);
	bench_aim("store: a FETCH beside --scrub 2G, p99", line.value.p99 / 1e6, "ms", 1, false);
}

void bench_stores(const struct bench_options *options)
{
	if (options->core)
		return;
	fetches(options);
	fetches_beside_scrub(options);
	copies(options, 1 << 20, "pages of 1 MiB");
	copies(options, 64 << 10, "pages of 64 KiB");
}
