/* SPDX-License-Identifier: Apache-2.0 */
/* A store beside pools in device memory: real daemon, worker and kvtstored, stand-in for the
 * driver.
 *
 * Inputs: backends, devices, failing calls. Invariant: a page that comes back has its bytes in each
 * slab, and what fails leaves a clean audit. */
#include <stdio.h>
#include <string.h>

#include "kvtrunk_fetch.h"
#include "store/crc32c.h"
#include "store/device.h"
#include "store/workers.h"
#include "tests/whole/cuda/cuda_test.h"
#include "tests/store/proc/store.h"

#define PAGE 16u
#define N 1024u /* positions of a prompt */

static struct kvt_test_store store;
static struct kvt_client *worker;
static struct kvt_pool pools[2];
static uint32_t n_pools, space;

/* An instance that another one is worked with beside. */
struct instance {
	struct kvt_test_daemon daemon;
	struct kvt_client *worker;
	struct kvt_pool pool;
	uint32_t space;
};

static void start_on(int first_device, const char *config, uint32_t n_devices)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	kvt_test_daemon_begin(&daemon_, config);
	options.socket_path = daemon_.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = 60000000000; /* for a busy machine */
	kvt_test_equal(kvt_client_connect(&worker, &options, NULL), 0);
	space = kvt_test_namespace(worker, "store");
	n_pools = n_devices;
	for (uint32_t i = 0; i < n_devices; i++)
		kvt_test_equal(kvt_pool_map_cuda(worker, first_device + (int)i, 0, &pools[i]), 0);
}

static void start(const char *config, uint32_t n_devices)
{
	start_on(0, config, n_devices);
}

static void stop(void)
{
	kvt_client_close(worker, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* Serve a prompt in every slab. Returns what was reused. */
static uint32_t serve(const uint32_t *keys)
{
	uint32_t n, reusable;
	struct kvt_seq *seq;
	const uint32_t *pages;

	kvt_test_equal(kvt_seq_begin(worker, space, keys, N, 0, 0, &seq), 0);
	reusable = kvt_seq_reusable(seq);
	pages = kvt_seq_pages(seq, &n);
	for (uint32_t i = 0; i < N / PAGE; i++) {
		for (uint32_t j = 0; j < n_pools; j++) {
			uint64_t salt = pools[j].slab;

			if (i >= reusable / PAGE)
				kvt_test_page_fill(&pools[j], PAGE, pages[i], salt, keys, i);
			kvt_test_check(kvt_test_page_right(&pools[j], PAGE, pages[i], salt, keys,
							   i));
		}
	}
	kvt_test_equal(kvt_seq_end(seq, N, NULL, 0, KVT_IDLE, 0), 0);
	return reusable;
}

/* Evict a prompt once the store has a copy. */
static void evict_copied(const uint32_t *keys)
{
	struct kvt_test_peer peer;
	uint32_t evicted;

	kvt_test_peer_open(&peer, &store);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_evict(worker, 4095, &evicted), 0);
	kvt_test_equal(kvt_test_matched(worker, space, keys, N), 0);
}

static void evict_and_load(const uint32_t *keys)
{
	kvt_test_equal(serve(keys), 0);
	evict_copied(keys);
	kvt_test_equal(serve(keys), N - PAGE); /* it asks the store */
}

CUDA_TEST(slabs_on_two_devices_come_back_together)
{
	static const char *const backends[] = { "cuda-ipc", "cuda-vmm" };
	char config[200];
	uint32_t keys[N];
	pid_t pid;

	kvt_test_keys(keys, N, 1);
	setenv("KVT_STANDIN_DEVICES", "2", 1);
	for (uint32_t i = 0; i < 2; i++) {
		snprintf(config, sizeof(config), "backend = %s\ndevices = 1 0\npage_bytes = 0\n"
			 "n_layers = 3\nn_kv_heads = 2\nhead_dim = 8\n", backends[i]);
		start(config, 2);
		kvt_test_store_start(&store, &daemon_, "4M");
		pid = store.pid;
		evict_and_load(keys);
		kvt_test_equal(kvt_test_store_stop(&store), 0);
		kvt_test_equal(cuda_test_left_open(pid, NULL), 0);
		stop();
	}
}

/* Work with this instance from now on, and keep what was worked with in its place. */
static void swap(struct instance *instance)
{
	struct instance before = { daemon_, worker, pools[0], space };

	daemon_ = instance->daemon;
	worker = instance->worker;
	pools[0] = instance->pool;
	space = instance->space;
	*instance = before;
}

/* Start two instances, on devices 1 and 0, with one store that serves both. The second one is
 * worked with. */
static void start_two(struct instance *ret_other)
{
	const struct kvt_test_daemon *daemons[2] = { &ret_other->daemon, &daemon_ };
	struct kvt_test_store at_second;

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	start_on(1, "backend = cuda-vmm\ndevices = 1\n", 1);
	swap(ret_other);
	start("backend = cuda-vmm\ndevices = 0\n", 1);
	kvt_test_store_start_host(&store, &at_second, daemons, 2, "1M", NULL);
}

/* Serve a prompt by the instance that is not worked with. Returns what was reused. */
static uint32_t serve_there(struct instance *other, const uint32_t *keys)
{
	uint32_t reusable;

	swap(other);
	reusable = serve(keys);
	swap(other);
	return reusable;
}

static void stop_two(struct instance *other)
{
	stop();
	swap(other);
	stop();
}

CUDA_TEST(instances_on_two_devices_load_from_one_store)
{
	struct instance other;
	struct kvt_test_peer peer;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 1);
	start_two(&other);
	kvt_test_equal(serve_there(&other, keys), 0);
	kvt_test_peer_open(&peer, &store);
	kvt_test_store_settled(&peer, N / PAGE);
	kvt_test_peer_close(&peer);
	kvt_test_equal(serve(keys), N - PAGE);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	stop_two(&other);
}

/* The first copy fails, so nothing is computed before both are served. */
CUDA_TEST(a_driver_that_fails_at_one_instance_leaves_the_other_its_store)
{
	struct instance other;
	struct kvt_test_store second = { .pid = 0 };
	struct kvt_test_peer peer;
	uint32_t keys[N];

	kvt_test_keys(keys, N, 1);
	setenv("KVT_STANDIN_FAIL_CALL", "cuMemcpyDtoHAsync_v2", 1);
	setenv("KVT_STANDIN_FAIL_AT", "0", 1);
	start_two(&other);
	unsetenv("KVT_STANDIN_FAIL_CALL");
	unsetenv("KVT_STANDIN_FAIL_AT");
	kvt_test_equal(serve_there(&other, keys), 0);
	kvt_test_check(kvt_test_store_await(&store, "the CUDA driver failed while copying"));
	snprintf(second.path, sizeof(second.path), "%s.store", daemon_.socket);
	kvt_test_peer_open(&peer, &second); /* nothing was copied from its pool yet */
	kvt_test_equal(kvt_test_store_status(&peer).connected, 1);
	kvt_test_peer_close(&peer);
	kvt_test_equal(serve(keys), 0);
	kvt_test_equal(kill(store.pid, SIGTERM), 0);
	kvt_test_equal(kvt_test_store_wait(&store), EXIT_FAILURE);
	stop_two(&other);
}

/* The store fails at its first call of this kind, and says so; a prompt is served beside it. */
static void expect_end_at(const char *call, const char *ram, bool loads)
{
	static const char *const scrub[] = { "--scrub", "1G", NULL };
	uint32_t keys[N];

	kvt_test_keys(keys, N, 1);
	start("backend = cuda-vmm\n", 1);
	setenv("KVT_STANDIN_FAIL_CALL", call, 1);
	setenv("KVT_STANDIN_FAIL_AT", "0", 1);
	kvt_test_store_start_with(&store, &daemon_, ram, strcmp(ram, "0") ? NULL : scrub);
	unsetenv("KVT_STANDIN_FAIL_CALL");
	unsetenv("KVT_STANDIN_FAIL_AT");
	kvt_test_equal(serve(keys), 0);
	if (loads) {
		evict_copied(keys);
		kvt_test_equal(serve(keys), 0);
	}
	kvt_test_check(kvt_test_store_await(&store, "the CUDA driver failed while copying"));
	kvt_test_equal(kvt_test_store_wait(&store), EXIT_FAILURE);
	stop();
}

CUDA_TEST(a_store_ends_when_its_driver_fails)
{
	expect_end_at("cuMemcpyDtoHAsync_v2", "1M", false);
	expect_end_at("cuEventSynchronize", "1M", false);
	expect_end_at("cuEventSynchronize", "0", false);
	expect_end_at("cuMemcpyHtoDAsync_v2", "1M", true);
}

/* In the slab of the second device. */
CUDA_TEST(a_page_that_was_written_on_a_device_is_found)
{
	static const char *const scrub[] = { "--scrub", "1G", NULL };
	struct kvt_test_peer peer;
	struct kvt_store_status status = { .scrubbed_pages = 0 };
	struct kvt_result result;
	uint32_t keys[N];
	pid_t pid;

	kvt_test_keys(keys, N, 1);
	setenv("KVT_STANDIN_DEVICES", "2", 1);
	start("backend = cuda-vmm\ndevices = 1 0\n", 2);
	kvt_test_store_start_with(&store, &daemon_, "0", scrub);
	pid = store.pid;
	kvt_test_peer_open(&peer, &store);
	kvt_test_equal(serve(keys), 0);
	while (status.scrubbed_pages < 4 * N / PAGE) /* all were read at least once */
		status = kvt_test_store_status(&peer);
	kvt_test_equal(status.damaged_pages, 0);
	kvt_test_equal(kvt_match(worker, space, keys, N, KVT_F_LOCK, &result), 0);
	*((uint8_t *)pools[1].base + (uint64_t)result.pages[20] * 1024 + 7) ^= 1;
	kvt_test_equal(kvt_unlock(worker, result.lease, KVT_IDLE), 0);
	kvt_result_release(worker, &result);
	while (kvt_test_matched(worker, space, keys, N) != 20 * PAGE)
		kvt_test_equal(kvt_test_store_status(&peer).damaged_pages <= 1, true);
	kvt_test_peer_close(&peer);
	kvt_test_equal(kvt_test_store_stop(&store), 0);
	kvt_test_equal(cuda_test_left_open(pid, NULL), 0);
	stop();
}

/* Eight pages of 2 MiB are two waits, which the stand-in counts down. */
CUDA_TEST(pages_of_a_device_share_a_wait)
{
	enum { BYTES = 2 << 20, PAGES = 8 };
	struct kvt_workers workers = KVT_WORKERS_INIT;
	struct kvt_jobs jobs = { .workers = &workers, .wake = -1 };
	struct kvt_job job[PAGES];
	uint8_t *records = calloc(PAGES, BYTES);
	struct kvt_device *device;
	struct kvt_slabs slabs;
	struct kvt_error why;
	uint32_t crc[4];

	start("backend = cuda-vmm\npage_bytes = 2M\nn_pages = 16\n", 1);
	kvt_test_equal(kvt_device_open(&device, &why), 0);
	kvt_test_equal(kvt_slabs_map(&slabs, worker, device, true, &why), 0);
	setenv("KVT_STANDIN_FAIL_CALL", "cuEventSynchronize", 1);
	*cuda_test_knob("stub_fail_at") = 100;
	for (uint32_t i = 0; i < PAGES; i++) {
		job[i] = (struct kvt_job){ .kind = KVT_JOB_OUT, .slabs = &slabs, .page = i + 1,
					   .record = records + i * BYTES, .wants_crc = true };
		memset((uint8_t *)pools[0].base + job[i].page * (uint64_t)BYTES, 'a' + (int)i,
		       BYTES);
		kvt_jobs_add(&jobs, &job[i]);
	}
	kvt_test_equal(kvt_workers_start(&workers, 1), 0);
	kvt_jobs_settle(&jobs);
	kvt_test_equal(*cuda_test_knob("stub_fail_at"), 98);
	*cuda_test_knob("stub_fail_at") = -1;
	for (uint32_t i = 0; i < PAGES; i++) {
		kvt_test_equal(job[i].result, 0);
		kvt_test_check(job[i].record[0] == 'a' + i && job[i].record[BYTES - 1] == 'a' + i);
		kvt_crc32c_quarters(job[i].record, BYTES, crc);
		kvt_test_check(memcmp(job[i].crc, crc, sizeof(crc)) == 0);
	}
	kvt_workers_stop(&workers);
	stop();
	kvt_device_close(device);
	free(records);
}

/* True if this process can write at an address, which is mapped. */
static bool can_write(const void *at)
{
	unsigned long long from = 0, to = 0, wanted = (uintptr_t)at;
	char line[512], mode[8] = "";
	FILE *file = fopen("/proc/self/maps", "re");

	kvt_test_check(file);
	while (!(from <= wanted && wanted < to) && fgets(line, sizeof(line), file))
		kvt_test_equal(sscanf(line, "%llx-%llx %7s", &from, &to, mode), 3);
	fclose(file);
	kvt_test_check(wanted < to && mode[0] == 'r');
	return mode[1] == 'w';
}

/* As a store without copies maps it. CUDA IPC maps for writing only. */
CUDA_TEST(a_device_that_is_only_read_is_mapped_so_where_the_driver_can)
{
	static const char *const backends[] = { "backend = cuda-vmm\n", "backend = cuda-ipc\n" };

	for (uint32_t i = 0; i < 2; i++) {
		struct kvt_device *device;
		struct kvt_slabs slabs;
		struct kvt_error why;

		start(backends[i], 1);
		kvt_test_equal(kvt_device_open(&device, &why), 0);
		kvt_test_equal(kvt_slabs_map(&slabs, worker, device, false, &why), 0);
		kvt_test_equal(can_write(slabs.bases[0]), i);
		kvt_test_check(can_write(pools[0].base));
		stop();
		kvt_device_close(device);
	}
}

int main(int argc, char **argv)
{
	cuda_test_environment(argv);
	return kvt_tests_run(argc, argv);
}
