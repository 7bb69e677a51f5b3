/* SPDX-License-Identifier: Apache-2.0 */
/* Pools in device memory, between real processes: shared in place, and the errors when the driver,
 * the daemon or a client misbehaves. Real daemon, stand-in for the driver; each test ends with
 * nothing open.
 *
 * Inputs: backend, options, the stand-in's traits and failing calls. Invariant: pages have the
 * content of their keys, and errors name cause and cure. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "kvtrunk_wire.h"
#include "shm/clock.h"
#include "tests/whole/cuda/cuda_test.h"
#include "tests/lib/cases.h"
#include "tests/lib/mps_control.h"

#define PAGE 16u
#define N_KEYS 400u

static const char *const backends[] = { "cuda-ipc", "cuda-vmm" };

static void start(const char *backend, const char *more)
{
	char config[400];

	snprintf(config, sizeof(config), "backend = %s\n%s", backend, more);
	kvt_test_daemon_begin(&daemon_, config);
}

/* Close the only client of this process, and stop. */
static void close_and_stop(struct kvt_client *client)
{
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
	kvt_test_daemon_end(&daemon_);
}

/* Check cached pages in every slab, write the rest into every slab. */
static uint32_t serve(struct kvt_client *client, const struct kvt_pool *pools, int n_pools,
		      uint32_t seed)
{
	uint32_t keys[N_KEYS], reusable;
	struct kvt_seq *seq;

	kvt_test_keys(keys, N_KEYS, seed);
	if (kvt_seq_begin(client, kvt_test_namespace(client, "n"), keys, N_KEYS, 0, 0, &seq) != 0)
		kvt_test_fail("begin: %s", kvt_client_error(client)->text);
	reusable = kvt_seq_reusable(seq);
	for (uint32_t i = 0; i < N_KEYS / PAGE; i++)
		for (int j = 0; j < n_pools; j++) {
			uint32_t page = kvt_seq_pages(seq, NULL)[i];
			uint64_t salt = 100 * (pools[j].slab + 1);

			if (i >= reusable / PAGE)
				kvt_test_page_fill(&pools[j], PAGE, page, salt, keys, i);
			kvt_test_check(kvt_test_page_right(&pools[j], PAGE, page, salt, keys, i));
		}
	kvt_test_equal(kvt_seq_end(seq, N_KEYS, NULL, 0, KVT_IDLE, 0), 0);
	return reusable;
}

/* Serve by a client of its own, with the slabs of the first devices. */
static uint32_t serve_once(int n_devices, uint32_t seed)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_pool pools[2];
	uint32_t reusable;

	for (int i = 0; i < n_devices; i++)
		pools[i] = cuda_test_map(client, i);
	reusable = serve(client, pools, n_devices, seed);
	kvt_client_close(client, KVT_IDLE);
	return reusable;
}

/* ---- sharing */

struct worker {
	int n_devices;
	const char *visible; /* CUDA_VISIBLE_DEVICES, or NULL */
};

static void worker_run(int pipe, void *context)
{
	const struct worker *worker = context;
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_pool pools[4];
	uint64_t seed;

	if (worker->visible)
		setenv("CUDA_VISIBLE_DEVICES", worker->visible, 1);
	for (int i = 0; i < worker->n_devices; i++)
		pools[i] = cuda_test_map(client, i);
	kvt_test_send(pipe, pools[0].slab);
	while (kvt_test_receive(pipe, &seed))
		kvt_test_send(pipe, serve(client, pools, worker->n_devices, (uint32_t)seed));
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
	kvt_test_equal(*cuda_test_knob("stub_pushed"), 0);
}

/* Two workers; `b_slab`: of the first device that b sees. */
static void share(const struct worker *worker_a, const struct worker *worker_b, uint64_t b_slab)
{
	struct kvt_test_child a, b;

	kvt_test_child_start(&a, worker_run, (void *)(uintptr_t)worker_a);
	kvt_test_expect(a.pipe, 0);
	kvt_test_equal(kvt_test_ask(&a, 5), 0);
	kvt_test_child_start(&b, worker_run, (void *)(uintptr_t)worker_b);
	kvt_test_expect(b.pipe, b_slab);
	kvt_test_equal(kvt_test_ask(&b, 5), N_KEYS - PAGE);
	kvt_test_equal(kvt_test_ask(&b, 6), 0);
	kvt_test_equal(kvt_test_ask(&a, 6), N_KEYS - PAGE);
	kvt_test_child_end(&a);
	kvt_test_child_end(&b);
	kvt_test_daemon_end(&daemon_);
}

CUDA_TEST(a_page_number_is_valid_in_every_slab_and_slabs_are_found_by_uuid)
{
	const struct worker straight = { .n_devices = 2, .visible = "0,2" };
	const struct worker turned = { .n_devices = 2, .visible = "2,0" };

	setenv("KVT_STANDIN_DEVICES", "3", 1);
	for (int i = 0; i < 2; i++) {
		start(backends[i], "devices = 0 2\n"); /* slab 1 is on device 2 */
		share(&straight, &turned, 1);
	}
}

CUDA_TEST(one_process_opens_a_slab_once_for_all_its_clients)
{
	int *open = cuda_test_knob("stub_open");

	for (int i = 0; i < 2; i++) {
		struct kvt_client *a, *b;
		struct kvt_pool pools[3];
		int once;

		start(backends[i], "");
		a = kvt_test_connect(&daemon_);
		b = kvt_test_connect(&daemon_);
		pools[0] = cuda_test_map(a, 0);
		once = *open;
		kvt_test_check(once > 0);
		pools[1] = cuda_test_map(a, 0);
		pools[2] = cuda_test_map(b, 0);
		kvt_test_equal(*open, once);
		kvt_test_check(pools[0].base == pools[1].base && pools[0].base == pools[2].base);
		kvt_client_close(a, KVT_IDLE);
		*(volatile uint64_t *)pools[2].base = 7; /* still mapped for the other */
		kvt_test_equal(*open, once);
		kvt_client_abandon(b);
		kvt_test_equal(*open, 0);
		kvt_test_daemon_end(&daemon_);
	}
}

static struct kvt_client *closing;
static int n_unmapped;

static void expect_a_connection(void)
{
	kvt_test_check(fcntl(kvt_client_control_fd(closing), F_GETFD) >= 0);
	n_unmapped++;
}

/* So that a hang-up proves its end. */
CUDA_TEST(a_mapping_goes_before_the_connection)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void (**hook)(void);

	*(void **)&hook = library ? dlsym(library, "stub_on_unmap") : NULL;
	kvt_test_check(hook);
	*hook = expect_a_connection;
	for (int i = 0; i < 4; i++) {
		start(backends[i % 2], "");
		closing = kvt_test_connect(&daemon_);
		cuda_test_map(closing, 0);
		if (i < 2)
			kvt_test_equal(kvt_client_close(closing, KVT_IDLE), 0);
		else
			kvt_client_abandon(closing);
		kvt_test_equal(n_unmapped, i + 1);
		kvt_test_daemon_end(&daemon_);
	}
}

/* Slab 0 of one is not slab 0 of another. */
CUDA_TEST(one_process_serves_two_daemons)
{
	struct kvt_test_daemon first;
	struct kvt_client *a, *b;
	struct kvt_pool of_a, of_b;

	for (int i = 0; i < 2; i++) {
		start(backends[i], "");
		first = daemon_;
		a = kvt_test_connect(&first);
		start(backends[i], "");
		b = kvt_test_connect(&daemon_);
		of_a = cuda_test_map(a, 0);
		of_b = cuda_test_map(b, 0);
		kvt_test_check(of_a.base != of_b.base);
		*(volatile uint64_t *)of_a.base = 1;
		*(volatile uint64_t *)of_b.base = 2;
		kvt_test_equal(*(volatile uint64_t *)of_a.base, 1);
		kvt_client_close(a, KVT_IDLE);
		kvt_test_equal(*(volatile uint64_t *)of_b.base, 2);
		kvt_client_close(b, KVT_IDLE);
		kvt_test_daemon_end(&daemon_);
		daemon_ = first;
		kvt_test_daemon_end(&daemon_);
	}
}

static void write_read_only(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_pool pool, both;

	kvt_test_equal(kvt_pool_map_cuda(client, 0, KVT_MAP_READ_ONLY, &pool), 0);
	both = cuda_test_map(client, 0);
	kvt_test_check(pool.base != both.base);
	*(volatile uint64_t *)both.base = 42;
	kvt_test_equal(*(volatile uint64_t *)pool.base, 42);
	kvt_test_send(pipe, 1);
	*(volatile uint64_t *)pool.base = 43;
	kvt_test_send(pipe, 2);
}

CUDA_TEST(a_read_only_mapping_cannot_be_written)
{
	struct kvt_test_child child;
	struct kvt_client *client;
	struct kvt_pool pool;
	uint64_t word;
	int status;

	start("cuda-vmm", "");
	kvt_test_child_start(&child, write_read_only, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_check(!kvt_test_receive(child.pipe, &word));
	kvt_test_equal(waitpid(child.pid, &status, 0), child.pid);
	kvt_test_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	close(child.pipe);
	kvt_test_daemon_end(&daemon_);
	start("cuda-ipc", "");
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_pool_map_cuda(client, 0, KVT_MAP_READ_ONLY, &pool), -ENOTSUP);
	kvt_test_check(strstr(kvt_client_error(client)->text, "cuda-vmm"));
	close_and_stop(client);
}

/* ---- the daemon's start */

/* Start, expect failure, and return true if it printed `text`. */
static void fails_to_start(const char *config, const char *text)
{
	int status;

	kvt_test_daemon_prepare(&daemon_, config);
	kvt_test_daemon_spawn(&daemon_, NULL);
	kvt_test_check(!kvt_test_daemon_await(&daemon_, "READY=1"));
	status = kvt_test_daemon_wait(&daemon_);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	if (!kvt_test_daemon_said(&daemon_, text))
		kvt_test_fail("it did not say '%s'", text);
	kvt_test_daemon_remove(&daemon_);
}

CUDA_TEST(a_host_without_the_driver_is_told_so)
{
	char *path = strdup(getenv("LD_LIBRARY_PATH"));

	if (access("/usr/lib/x86_64-linux-gnu/libcuda.so.1", F_OK) == 0 ||
	    access("/usr/lib64/libcuda.so.1", F_OK) == 0 ||
	    access("/usr/lib/aarch64-linux-gnu/libcuda.so.1", F_OK) == 0) {
		cuda_test_skip("this host has the driver");
	}
	unsetenv("LD_LIBRARY_PATH");
	fails_to_start("backend = cuda-ipc\n",
		       "backend cuda-ipc needs the NVIDIA driver: libcuda.so.1 not found");
	fails_to_start("backend = cuda-vmm\n",
		       "backend cuda-vmm needs the NVIDIA driver: libcuda.so.1 not found");
	setenv("LD_LIBRARY_PATH", path, 1);
	free(path);
}

CUDA_TEST(what_a_host_lacks_is_named_with_its_cure)
{
	static const struct {
		const char *knob, *value, *config, *text;
	} cases[] = {
		{ "DEVICES", "0", "backend = cuda-ipc\n", "finds no device" },
		{ "DEVICES", "2", "backend = cuda-ipc\ndevices = 2\n", "2 devices" },
		{ "DEVICES", "2", "backend = cuda-vmm\ndevices = 0 1 0\n", "device 0 twice" },
		{ "DEVICES", "2", "backend = cuda-vmm\ndevices = GPU-01234567\n", "GPU-01234567" },
		{ "DEVICES", "2", "backend = cuda-vmm\ndevices = 0 first\n", "'first'" },
		{ "TRAITS", "mig", "backend = cuda-ipc\ndevices = 0,1\n", "under MIG" },
		{ "TRAITS", "prohibited", "backend = cuda-ipc\n", "compute mode Prohibited" },
		{ "TRAITS", "exclusive", "backend = cuda-ipc\n", "Exclusive Process" },
		{ "TRAITS", "no-unified", "backend = cuda-ipc\n", "no unified addressing" },
		{ "DEVICES", "2", "backend = cuda-ipc\ndevices = GPU-6b767400\n",
		  "devices 0 and 1 begin: give more of it" },
		{ "DEVICES", "17", "backend = cuda-ipc\ndevices = all\n", "16 slabs at most" },
		{ "TRAITS", "no-ipc", "backend = cuda-ipc\n", "set backend = cuda-vmm" },
		{ "TRAITS", "no-vmm", "backend = cuda-vmm\n", "set backend = cuda-ipc" },
		{ "TRAITS", "no-posix-fd", "backend = cuda-vmm\n", "set backend = cuda-ipc" },
		{ "MEMORY", "4M", "backend = cuda-ipc\nn_pages = 8192\n", "no 8388608 bytes" },
		{ "MEMORY", "4M", "backend = cuda-vmm\nn_pages = 8192\n", "no 10485760 bytes" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char knob[64];

		snprintf(knob, sizeof(knob), "KVT_STANDIN_%s", cases[i].knob);
		setenv(knob, strcmp(cases[i].value, "4M") ? cases[i].value : "4194304", 1);
		fails_to_start(cases[i].config, cases[i].text);
		unsetenv(knob);
		kvt_test_equal(cuda_test_left_open(0, NULL), 0);
	}
}

/* Then the one process of a device in mode Exclusive Process is the MPS server. */
CUDA_TEST(mps_shares_a_device_that_is_one_process_s)
{
	for (int i = 0; i < 2; i++) {
		setenv("KVT_STANDIN_TRAITS", i ? "exclusive,mps" : "exclusive", 1);
		start(i ? "cuda-ipc" : "cuda-vmm",
		      i ? "n_pages = 0\npool_bytes = 10%\n" : "mps = yes\n");
		kvt_test_equal(serve_once(1, 1), 0);
		kvt_test_daemon_end(&daemon_);
	}
	fails_to_start("backend = cuda-ipc\nmps = no\n", "Exclusive Process");
}

CUDA_TEST(devices_are_named_by_number_by_uuid_or_all)
{
	static const struct {
		const char *list;
		uint32_t n;
	} cases[] = {
		{ "all", 3 }, { "1", 1 }, { "2, 0", 2 },
		{ "GPU-6b767400-0000-0000-0000-000000000002", 1 },
		{ "0 GPU-6b767400-0000-0000-0000-000000000003", 2 },
	};

	setenv("KVT_STANDIN_DEVICES", "3", 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvt_client *client;
		char config[100];

		snprintf(config, sizeof(config), "devices = %s\n", cases[i].list);
		start("cuda-vmm", config);
		client = kvt_test_connect(&daemon_);
		kvt_test_equal(kvt_client_info(client)->n_slabs, cases[i].n);
		close_and_stop(client);
	}
	setenv("KVT_STANDIN_TRAITS", "mig", 1);
	start("cuda-vmm", "devices = MIG-6b767400-0000-0000-0000-000000004d01\n");
	kvt_test_daemon_end(&daemon_);
}

static void hold_memory(int pipe, void *context)
{
	struct kvt_cu_driver driver = cuda_test_driver();
	uint64_t memory;

	kvt_test_equal(driver.primary_retain(&context, 1), 0);
	kvt_test_equal(driver.context_push(context), 0);
	kvt_test_equal(driver.memory_alloc(&memory, 10 << 20), 0);
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 0); /* never comes */
}

/* With this budget a daemon has so many pages, in slabs of so many bytes. */
static void expect_budget(int backend, const char *percent, uint32_t n_pages, uint64_t pool_bytes)
{
	struct kvt_client *client;
	char config[100];

	snprintf(config, sizeof(config), "devices = all\nn_pages = 0\npool_bytes = %s\n", percent);
	start(backends[backend], config);
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_client_info(client)->n_pages, n_pages);
	kvt_test_equal(kvt_client_info(client)->pool_bytes, pool_bytes);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

CUDA_TEST(a_budget_in_per_cent_is_of_the_fullest_device_s_free_memory)
{
	struct kvt_test_child holder;

	setenv("KVT_STANDIN_DEVICES", "3", 1);
	setenv("KVT_STANDIN_MEMORY", "33554432", 1);
	for (int i = 0; i < 2; i++)
		expect_budget(i, "50%", (32 << 20) / 100 * 50 / 1024, 16 << 20);
	/* All free memory, if a whole number of pages fills it: there is room for the mark. */
	setenv("KVT_STANDIN_MEMORY", "52428800", 1);
	for (int i = 0; i < 2; i++)
		expect_budget(i, "100%", (50 << 10) - (uint32_t)i, 50 << 20);
	/* Less than 2 MiB is too little. */
	setenv("KVT_STANDIN_MEMORY", "53477376", 1);
	for (int i = 0; i < 2; i++)
		expect_budget(i, "100%", (50 << 10) - (uint32_t)i, 50 << 20);
	/* The fullest is neither the first nor the last. */
	kvt_test_child_start(&holder, hold_memory, NULL);
	kvt_test_expect(holder.pipe, 1);
	for (int i = 0; i < 2; i++)
		expect_budget(i, "100%", (40 << 10) - 1, 40 << 20);
	kvt_test_child_kill(&holder, SIGKILL);
}

CUDA_TEST(slabs_are_in_units_of_2_mib_or_the_driver_s)
{
	expect_budget(0, "1M", 1024, 2 << 20);
	expect_budget(1, "1M", 1024, 2 << 20);
	expect_budget(1, "2M", 2048, 4 << 20); /* the mark needs another one */
	setenv("KVT_STANDIN_TRAITS", "coarse", 1);
	expect_budget(0, "1M", 1024, 2 << 20);
	expect_budget(1, "1M", 1024, 4 << 20);
}

/* Where a device can have memory that network adapters read and write, all of a pool is: the
 * stand-in with this trait takes no other, and without it none such. */
CUDA_TEST(slabs_are_open_to_network_adapters_where_the_device_is)
{
	setenv("KVT_STANDIN_TRAITS", "rdma", 1);
	for (int i = 0; i < 2; i++) {
		start(backends[i], "");
		kvt_test_equal(serve_once(1, 3), 0);
		kvt_test_daemon_end(&daemon_);
	}
}

static int contexts_of(pid_t pid)
{
	char path[128];
	int n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/contexts.%d", devices.dir, (int)pid);
	file = fopen(path, "re");
	kvt_test_check(file && fscanf(file, "%d", &n) == 1);
	fclose(file);
	return n;
}

/* What clients may have open stays until the process ends; all else is freed. */
CUDA_TEST(the_daemon_keeps_only_what_its_backend_needs)
{
	setenv("KVT_STANDIN_DEVICES", "2", 1);
	for (int i = 0; i < 2; i++) {
		pid_t pid;

		start(backends[i], "devices = all\nn_pages = 0\npool_bytes = 10%\n");
		pid = daemon_.pid;
		kvt_test_equal(contexts_of(pid), i ? 0 : 2);
		kvt_client_close(kvt_test_connect(&daemon_), KVT_IDLE);
		kvt_test_daemon_end(&daemon_);
		kvt_test_equal(cuda_test_left_open(pid, NULL), i ? 0 : 4);
	}
}

/* The n-th call fails, for every n until the daemon starts nevertheless. */
CUDA_TEST(every_call_of_the_daemon_s_start_fails_once)
{
	setenv("KVT_STANDIN_DEVICES", "2", 1);
	setenv("KVT_STANDIN_MEMORY", "41943040", 1);
	for (int i = 0; i < 4; i++) {
		int n = 0, n_failed = 0;

		setenv("KVT_STANDIN_TRAITS", i < 2 ? "none" : "releases-fail", 1);
		for (bool ready = false; !ready; n++) {
			char config[100], number[16];

			kvt_test_check(n < 200);
			snprintf(config, sizeof(config), "backend = %s\ndevices = all\n%s",
				 backends[i % 2], i < 2 ? "" : "n_pages = 0\npool_bytes = 10%\n");
			snprintf(number, sizeof(number), "%d", n);
			setenv("KVT_STANDIN_FAIL_AT", number, 1);
			kvt_test_daemon_prepare(&daemon_, config);
			kvt_test_daemon_spawn(&daemon_, NULL);
			ready = kvt_test_daemon_await(&daemon_, "READY=1");
			if (!ready) {
				int pid = daemon_.pid;

				kvt_test_check(WEXITSTATUS(kvt_test_daemon_wait(&daemon_)) != 0);
				kvt_test_check(kvt_test_daemon_said(&daemon_, "backend cuda-"));
				kvt_test_equal(cuda_test_left_open(pid, NULL), 0);
				n_failed++;
			} else if (n < 10) {
				ready = false; /* the one query that older drivers refuse */
				kvt_test_daemon_stop(&daemon_);
			} else {
				int calls = 0, pid = daemon_.pid;

				kvt_test_daemon_stop(&daemon_);
				kvt_test_check(cuda_test_left_open(pid, &calls) >= 0);
				ready = n > calls; /* no call was left to fail */
			}
			kvt_test_daemon_remove(&daemon_);
		}
		unsetenv("KVT_STANDIN_FAIL_AT");
		kvt_test_check(n_failed >= 15);
	}
}

static char held_by[64];

/* Kill a daemon under its client, and start another one, which finds the memory held. */
static struct kvt_test_child leave_a_holder(kvt_test_child_fn *run)
{
	static struct worker worker = { .n_devices = 1 };
	struct kvt_test_child client;

	setenv("KVT_STANDIN_MEMORY", "6291456", 1); /* room for one pool of 4 MiB */
	start("cuda-ipc", "");
	kvt_test_child_start(&client, run, &worker);
	kvt_test_expect(client.pipe, 0);
	kill(daemon_.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon_);
	kvt_test_daemon_spawn(&daemon_, NULL);
	snprintf(held_by, sizeof(held_by), "held by pid %d", (int)client.pid);
	return client;
}

CUDA_TEST(old_clients_that_still_hold_the_memory_are_named_and_waited_for)
{
	struct kvt_test_child client = leave_a_holder(worker_run);

	if (!kvt_test_daemon_await(&daemon_, held_by) ||
	    !kvt_test_daemon_said(&daemon_, "waits_for_memory"))
		kvt_test_fail("it did not name pid %d", (int)client.pid);
	kill(daemon_.pid, SIGTERM); /* it listens meanwhile */
	kvt_test_check(kvt_test_daemon_wait(&daemon_) != 0);
	kvt_test_daemon_spawn(&daemon_, NULL);
	kvt_test_check(kvt_test_daemon_await(&daemon_, held_by));
	kvt_test_child_kill(&client, SIGKILL);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1")); /* and now there is room */
	kvt_test_daemon_end(&daemon_);
}

static void *last_thread(void *pipe)
{
	kvt_test_expect(*(int *)pipe, 2);
	_exit(0);
}

static void first_thread(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	static int last_pipe; /* longer there than the stack */
	pthread_t last;

	last_pipe = pipe;
	kvt_test_send(pipe, cuda_test_map(client, 0).slab);
	kvt_test_expect(pipe, 1);
	kvt_test_equal(pthread_create(&last, NULL, last_thread, &last_pipe), 0);
	pthread_exit(NULL);
}

/* A process whose first thread has ended shows no mappings any more, but has the memory, like one
 * that takes long to exit. */
CUDA_TEST(an_ending_process_holds_memory_until_it_has_ended)
{
	struct kvt_test_child client = leave_a_holder(first_thread);

	kvt_test_check(kvt_test_daemon_await(&daemon_, held_by));
	kvt_test_send(client.pipe, 1);
	kvt_test_await_zombie(client.pid);
	while (recv(daemon_.notify, &(char){ 0 }, 1, MSG_DONTWAIT) >= 0)
		continue;
	/* The first log line may come from an earlier look; the second does not. */
	for (int i = 0; i < 2; i++)
		if (!kvt_test_daemon_await(&daemon_, held_by))
			kvt_test_fail("it did not wait for the last thread");
	kvt_test_send(client.pipe, 2);
	kvt_test_child_finish(&client);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_daemon_end(&daemon_);
}

/* ---- a client that maps */

CUDA_TEST(every_call_of_a_client_s_mapping_fails_once)
{
	int *fail_at = cuda_test_knob("stub_fail_at"), *open = cuda_test_knob("stub_open");

	for (int i = 0; i < 4; i++) {
		int n, rc = -EIO;

		start(backends[i % 2], "");
		setenv("KVT_STANDIN_TRAITS", i < 2 ? "none" : "releases-fail", 1);
		for (n = 0; rc != 0; n++) {
			struct kvt_client *client = kvt_test_connect(&daemon_);
			struct kvt_pool pool;

			kvt_test_check(n < 100);
			*fail_at = n;
			rc = kvt_pool_map_cuda(client, 0, 0, &pool);
			if (rc != 0) {
				kvt_test_check(*fail_at == -1);
				kvt_test_check(rc == -EIO || rc == -ENOTSUP || rc == -ENODEV);
				kvt_test_check(strlen(kvt_client_error(client)->text) > 20);
				kvt_test_equal(*open, 0);
				/* A retry succeeds. */
				pool = cuda_test_map(client, 0);
				*(volatile uint64_t *)pool.base = 1;
			}
			/* The other calls of the count fail during cleanup. */
			kvt_client_close(client, KVT_IDLE);
			kvt_test_equal(*open, 0);
			kvt_test_equal(*cuda_test_knob("stub_pushed"), 0);
			*fail_at = -1;
		}
		kvt_test_check(n > 4);
		unsetenv("KVT_STANDIN_TRAITS");
		kvt_test_daemon_end(&daemon_);
	}
}

/* ---- suspended clients */

CUDA_TEST(a_suspended_client_has_nothing_on_the_device_and_finds_its_cache)
{
	const struct kvt_cu_driver driver = cuda_test_driver();
	int *open = cuda_test_knob("stub_open");
	struct kvt_client *client, *other;
	struct kvt_pool pool, again;
	int before = *open;

	for (int i = 0; i < 2; i++) {
		start(backends[i], "");
		client = kvt_test_connect(&daemon_);
		pool = cuda_test_map(client, 0);
		kvt_test_equal(serve(client, &pool, 1, 4), 0);
		kvt_test_equal(kvt_client_suspend(client), 0);
		/* The context; by cuda-vmm also the addresses. */
		kvt_test_equal(*open, before + 1 + i);
		kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &again), -ENXIO);
		other = kvt_test_connect(&daemon_); /* takes up the entry, not the old memory */
		again = cuda_test_map(other, 0);
		kvt_test_equal(serve(other, &again, 1, 4), N_KEYS - PAGE);
		kvt_client_close(other, KVT_IDLE);
		kvt_test_equal(*open, before + 1 + i);
		kvt_test_equal(kvt_client_resume(client), 0);
		again = cuda_test_map(client, 0);
		kvt_test_check(i == 0 || again.base == pool.base);
		kvt_test_equal(serve(client, &again, 1, 4), N_KEYS - PAGE);
		kvt_test_equal(kvt_client_suspend(client), 0);
		kvt_client_close(client, KVT_IDLE);
		kvt_test_equal(*open, before);
		kvt_test_daemon_end(&daemon_);
	}
	driver.primary_release(0);
}

CUDA_TEST(another_client_of_the_process_keeps_the_mapping_of_a_suspended_one)
{
	int *open = cuda_test_knob("stub_open");

	for (int i = 0; i < 2; i++) {
		struct kvt_client *a, *b;
		struct kvt_pool pool;
		int once;

		start(backends[i], "");
		a = kvt_test_connect(&daemon_);
		b = kvt_test_connect(&daemon_);
		cuda_test_map(a, 0);
		pool = cuda_test_map(b, 0);
		once = *open;
		kvt_test_equal(kvt_client_suspend(a), 0);
		kvt_test_equal(*open, once);
		*(volatile uint64_t *)pool.base = 7;
		kvt_client_close(b, KVT_IDLE); /* the last one that is awake */
		kvt_test_check(*open < once && *open > 0);
		kvt_test_equal(kvt_client_resume(a), 0);
		kvt_test_equal(*open, once);
		kvt_client_abandon(a);
		kvt_test_equal(*open, 0);
		kvt_test_daemon_end(&daemon_);
	}
}

/* Two mappings, of which the second may fail: then none is left, and the client sleeps on. */
CUDA_TEST(every_call_of_resume_fails_once)
{
	int *fail_at = cuda_test_knob("stub_fail_at"), *open = cuda_test_knob("stub_open");

	for (int i = 0; i < 2; i++) {
		struct kvt_client *client;
		struct kvt_pool pool, readable;
		int n, rc = -EIO, asleep;

		start(backends[i], "");
		client = kvt_test_connect(&daemon_);
		pool = cuda_test_map(client, 0);
		if (i == 1)
			kvt_test_equal(kvt_pool_map_cuda(client, 0, KVT_MAP_READ_ONLY, &readable),
				       0);
		kvt_test_equal(serve(client, &pool, 1, 5), 0);
		kvt_test_equal(kvt_client_suspend(client), 0);
		asleep = *open;
		for (n = 0; rc != 0; n++) {
			kvt_test_check(n < 100);
			*fail_at = n;
			rc = kvt_client_resume(client);
			if (rc == 0)
				break;
			kvt_test_check(rc == -EIO || rc == -ENOTSUP);
			kvt_test_check(strlen(kvt_client_error(client)->text) > 20);
			kvt_test_equal(*open, asleep);
			kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &pool), -ENXIO);
		}
		*fail_at = -1;
		kvt_test_check(n > 2);
		pool = cuda_test_map(client, 0);
		kvt_test_equal(serve(client, &pool, 1, 5), N_KEYS - PAGE);
		kvt_test_equal(*cuda_test_knob("stub_pushed"), 0);
		close_and_stop(client);
	}
}

CUDA_TEST(work_of_a_stream_keeps_its_client_awake)
{
	const struct kvt_cu_driver driver = cuda_test_driver();
	struct kvt_client *client;
	struct kvt_fence fence;
	void *stream;

	start("cuda-vmm", "");
	client = kvt_test_connect(&daemon_);
	cuda_test_map(client, 0);
	kvt_test_equal(driver.stream_create(&stream, KVT_CU_STREAM_NON_BLOCKING), 0);
	cuda_test_gate(1);
	kvt_test_equal(kvt_fence_record(client, stream, &fence), 0);
	kvt_test_equal(kvt_client_suspend(client), -EBUSY);
	kvt_test_check(strstr(kvt_client_error(client)->text, "stream"));
	cuda_test_gate(0);
	kvt_test_equal(driver.stream_synchronize(stream), 0);
	kvt_test_equal(kvt_client_suspend(client), 0);
	kvt_test_equal(kvt_fence_record(client, stream, &fence), 0); /* its word is still its own */
	kvt_test_equal(fence.value, 2);
	kvt_test_equal(driver.stream_synchronize(stream), 0);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(driver.stream_destroy(stream), 0);
	kvt_test_daemon_end(&daemon_);
}

static void expect_refusal(const struct kvt_test_daemon *of, int device, int error,
			   const char *text)
{
	struct kvt_client *client = kvt_test_connect(of);
	struct kvt_pool pool;
	int rc = kvt_pool_map_cuda(client, device, 0, &pool);

	if (rc != error || !strstr(kvt_client_error(client)->text, text))
		kvt_test_fail("%d, \"%s\" instead of %d, \"%s\"", rc,
			      kvt_client_error(client)->text, error, text);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
}

CUDA_TEST(the_traps_have_names)
{
	struct kvt_client *observer;
	struct kvt_pool pool;

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	start("cuda-ipc", "");
	expect_refusal(&daemon_, 1, -EXDEV, "no slab of the pool is on device 1");
	expect_refusal(&daemon_, 2, -ENODEV, "no CUDA device 2");
	expect_refusal(&daemon_, KVT_DEVICE_CURRENT, -EINVAL, "no current CUDA context");
	setenv("KVT_STANDIN_DRIVER", "12040", 1);
	expect_refusal(&daemon_, 0, -ENOTSUP, "CUDA 13.0, this process's for 12.4");
	unsetenv("KVT_STANDIN_DRIVER");
	setenv("KVT_STANDIN_TRAITS", "no-ipc", 1);
	expect_refusal(&daemon_, 0, -ENOTSUP, "not IPC-capable");
	unsetenv("KVT_STANDIN_TRAITS");
	observer = kvt_test_observe(&daemon_);
	kvt_test_equal(kvt_pool_map_cuda(observer, 0, 0, &pool), -ENOTSUP);
	kvt_test_equal(kvt_pool_map(observer, &pool), -ENOTSUP);
	kvt_client_close(observer, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
	start("host", "");
	expect_refusal(&daemon_, 0, -ENOTSUP, "kvt_pool_map()");
	kvt_test_daemon_end(&daemon_);
}

/* The driver refuses the handle with this error. */
static void expect_refusal_by(const char *call, const char *cu_error, int error, const char *text)
{
	setenv("KVT_STANDIN_FAIL_CALL", call, 1);
	setenv("KVT_STANDIN_FAIL_ERROR", cu_error, 1);
	*cuda_test_knob("stub_fail_at") = 0;
	expect_refusal(&daemon_, 0, error, text);
	kvt_test_equal(*cuda_test_knob("stub_fail_at"), -1);
	unsetenv("KVT_STANDIN_FAIL_CALL");
	unsetenv("KVT_STANDIN_FAIL_ERROR");
}

CUDA_TEST(what_the_driver_says_of_a_handle_is_said)
{
	start("cuda-ipc", "");
	expect_refusal_by("cuIpcOpenMemHandle_v2", "2", -ENOMEM, "while the pool was mapped");
	expect_refusal_by("cuIpcOpenMemHandle_v2", "208", -EBUSY, "only one may");
	expect_refusal_by("cuIpcOpenMemHandle_v2", "800", -ENOTSUP, "set backend = cuda-vmm");
	expect_refusal_by("cuIpcOpenMemHandle_v2", "1", -EIO, "invalid argument");
	expect_refusal_by("cuDevicePrimaryCtxRetain", "2", -ENOMEM, "out of memory");
	kvt_test_daemon_end(&daemon_);
	start("cuda-vmm", "");
	expect_refusal_by("cuMemImportFromShareableHandle", "2", -ENOMEM, "out of memory");
	expect_refusal_by("cuMemImportFromShareableHandle", "801", -ENOTSUP,
			  "set backend = cuda-ipc");
	expect_refusal_by("cuMemMap", "1", -EIO, "invalid argument");
	kvt_test_daemon_end(&daemon_);
}

CUDA_TEST(a_driver_that_maps_nothing_read_only_is_named)
{
	struct kvt_client *client;
	struct kvt_pool pool;

	start("cuda-vmm", "");
	setenv("KVT_STANDIN_TRAITS", "no-read-only", 1);
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_pool_map_cuda(client, 0, KVT_MAP_READ_ONLY, &pool), -ENOTSUP);
	kvt_test_check(strstr(kvt_client_error(client)->text, "without KVT_MAP_READ_ONLY"));
	cuda_test_map(client, 0);
	close_and_stop(client);
}

static void see_another_mig_instance(int pipe, void *context)
{
	setenv("KVT_STANDIN_TRAITS", "mig", 1);
	expect_refusal(&daemon_, 0, -EXDEV, "MIG instances do not share memory");
	kvt_test_send(pipe, 1);
}

CUDA_TEST(another_mig_instance_is_named)
{
	struct kvt_test_child child;

	start("cuda-vmm", "");
	kvt_test_child_start(&child, see_another_mig_instance, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_child_finish(&child);
	kvt_test_daemon_end(&daemon_);
}

static void map_after_the_daemon_s_death(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_client *early = kvt_test_connect(&daemon_);
	struct kvt_pool mapped, pool;
	int rc;

	mapped = cuda_test_map(early, 0);
	*(volatile uint64_t *)mapped.base = 4711;
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 2);
	kvt_client_abandon(early);
	rc = kvt_pool_map_cuda(client, 0, 0, &pool);
	if (rc != -ECONNRESET || !strstr(kvt_client_error(client)->text, "gone"))
		kvt_test_fail("%d: %s", rc, kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
	kvt_test_send(pipe, 3);
}

CUDA_TEST(an_exporter_that_is_gone_is_named)
{
	struct kvt_test_child child;

	start("cuda-ipc", "");
	kvt_test_child_start(&child, map_after_the_daemon_s_death, NULL);
	kvt_test_expect(child.pipe, 1);
	kill(daemon_.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon_);
	kvt_test_send(child.pipe, 2);
	kvt_test_expect(child.pipe, 3);
	kvt_test_child_finish(&child);
	kvt_test_daemon_start(&daemon_, NULL); /* removes what the dead one left */
	kvt_test_daemon_end(&daemon_);
}

static void map_as_another_user(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_cu_driver driver;
	const int *backend = context;
	struct kvt_pool pool;
	const char *missing;
	int rc;

	/* Before this process changes user: the other user may not read its folder. */
	kvt_test_equal(kvt_cu_load(&driver, &missing), 0);
	kvt_test_equal(setresuid(65534, 65534, 65534), 0);
	rc = kvt_pool_map_cuda(client, 0, 0, &pool);
	if (*backend == 0)
		kvt_test_check(rc == -EPERM &&
			       strstr(kvt_client_error(client)->text, "this process user 65534"));
	else
		kvt_test_equal(rc, 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
	kvt_test_send(pipe, 1);
}

/* Any holder can use a descriptor; a handle works only for the user that made it. */
CUDA_TEST(another_user_s_ipc_handle_is_named)
{
	if (geteuid() != 0)
		cuda_test_skip("only root can become another user");
	kvt_test_equal(chmod(devices.dir, 0777), 0);
	for (int i = 0; i < 2; i++) {
		struct kvt_test_child child;

		start(backends[i], "");
		kvt_test_child_start(&child, map_as_another_user, &i);
		kvt_test_expect(child.pipe, 1);
		kvt_test_child_finish(&child);
		kvt_test_daemon_end(&daemon_);
	}
}

/* The driver refuses it without a cause, as it often does. */
static void map_across_namespaces(struct kvt_client *client)
{
	struct kvt_pool pool;

	setenv("KVT_STANDIN_FAIL_CALL", "cuIpcOpenMemHandle_v2", 1);
	*cuda_test_knob("stub_fail_at") = 0;
	kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &pool), -ENOTSUP);
	kvt_test_check(strstr(kvt_client_error(client)->text, "another PID namespace"));
	cuda_test_map(client, 0); /* and where it does not refuse it, all is well */
}

/* Continue in a PID namespace, as process `number`. Exits with 77 if that is not allowed. */
static int run_as_number(pid_t number, int backend)
{
	struct clone_args arguments = { .exit_signal = SIGCHLD };
	struct kvt_client *client;
	struct kvt_pool pool;
	pid_t child;
	int status = 0;

	arguments.set_tid = (uint64_t)(uintptr_t)&number;
	arguments.set_tid_size = 1;
	child = (pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments));
	if (child < 0)
		return 77;
	if (child > 0) {
		waitpid(child, &status, 0);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	kvt_test_equal(getpid(), number);
	client = kvt_test_connect(&daemon_);
	if (number != daemon_.pid) {
		map_across_namespaces(client);
	} else if (backend == 0) {
		int rc = kvt_pool_map_cuda(client, 0, 0, &pool);

		if (rc != -ENOTUNIQ || !strstr(kvt_client_error(client)->text, "PID namespaces"))
			kvt_test_fail("%d: %s", rc, kvt_client_error(client)->text);
	} else {
		cuda_test_map(client, 0); /* descriptors do not depend on pids */
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
	_exit(0);
}

static int in_namespace(int backend, pid_t number)
{
	pid_t child;
	int status = 0;

	fflush(NULL);
	child = fork();
	kvt_test_check(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (unshare(CLONE_NEWPID) != 0)
			_exit(77);
		child = fork(); /* process 1 there, whose end ends the namespace */
		if (child == 0)
			_exit(run_as_number(number, backend));
		waitpid(child, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* By both backends with the daemon's own number; and with another one, which IPC refuses. */
CUDA_TEST(pid_namespaces_that_the_driver_mixes_up_are_named)
{
	for (int i = 0; i < 3; i++) {
		int status;

		start(backends[i % 2], "");
		status = in_namespace(i % 2, daemon_.pid + i / 2);
		kvt_test_daemon_end(&daemon_);
		if (status == 77)
			cuda_test_skip("PID namespaces and numbers may not be made here");
		kvt_test_equal(status, 0);
	}
}

/* ---- writers that die */

struct writer {
	bool child_holds; /* a child of the client holds its socket and keeps writing */
	bool hangs_up;    /* the client hangs up, and its process continues */
};

/* Take pages, then write into them forever, like a kernel in flight. */
static void writer_run(int pipe, void *context)
{
	const struct writer *writer = context;
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_pool pool = cuda_test_map(client, 0);
	uint32_t pages[64];
	pid_t child = 0;

	kvt_test_equal(kvt_alloc(client, 64, pages), 0);
	if (writer->child_holds) {
		child = fork();
		kvt_test_check(child >= 0);
	}
	if (writer->child_holds && child == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		for (uint64_t n = 0;; n++)
			for (int i = 0; i < 64; i++)
				*(volatile uint64_t *)kvt_page_address(&pool, pages[i]) = n;
	}
	kvt_test_send(pipe, (uint64_t)child << 32 | kvt_client_info(client)->session);
	if (writer->hangs_up)
		kvt_client_abandon(client);
	kvt_test_expect(pipe, 0); /* never comes */
}

static void fence_session(uint64_t session)
{
	struct kvt_client *client = kvt_test_observe(&daemon_);
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE, .argument = session };

	kvt_test_check(kvt_admin(client, &request, NULL, 0, NULL, 0) >= 0);
	kvt_client_close(client, KVT_IDLE);
}

/* Wait until no page is in quarantine. The daemon works between the queries: no time is guessed. */
static void await_no_quarantine(void)
{
	while (kvt_test_status(&daemon_).counters.quarantined_pages)
		sched_yield();
}

static void kill_writers(const char *backend)
{
	struct writer writer = { .child_holds = true };
	struct kvt_test_child child;
	struct kvt_client *other;
	struct kvt_pool pool;
	static uint32_t pages[4096], n = 4095 - 64;
	uint64_t word;

	start(backend, "mps = no\n");
	kvt_test_child_start(&child, writer_run, &writer);
	word = kvt_test_word(child.pipe);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(&daemon_, (uint32_t)word);
	/* The process has exited; its child has the socket and keeps writing. */
	kvt_test_equal(kvt_test_status(&daemon_).counters.quarantined_pages, 64);
	other = kvt_test_connect(&daemon_);
	pool = cuda_test_map(other, 0);
	kvt_test_equal(kvt_alloc(other, n + 1, pages), -ENOSPC);
	kvt_test_equal(kvt_alloc(other, n, pages), 0);
	for (uint32_t j = 0; j < n; j++)
		*(volatile uint64_t *)kvt_page_address(&pool, pages[j]) = 1;
	kvt_test_equal(kill((pid_t)(word >> 32), SIGKILL), 0);
	await_no_quarantine();
	for (uint32_t j = 0; j < n; j++)
		kvt_test_equal(*(volatile uint64_t *)kvt_page_address(&pool, pages[j]), 1);
	kvt_test_equal(kvt_alloc(other, 64, pages), 0);
	close_and_stop(other);
}

/* In a separate process each: one that used CUDA cannot fork. */
CUDA_TEST(ipc_pages_of_a_killed_client_wait_until_nothing_writes_them)
{
	kill_writers("cuda-ipc");
}

CUDA_TEST(vmm_pages_of_a_killed_client_wait_until_nothing_writes_them)
{
	kill_writers("cuda-vmm");
}

/* Returns its session. */
static uint64_t kill_a_writer(void)
{
	struct writer writer = { .child_holds = false };
	struct kvt_test_child child;
	uint64_t session;

	kvt_test_child_start(&child, writer_run, &writer);
	session = kvt_test_word(child.pipe);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	return session;
}

/* The pages of a killed writer wait for an operator. */
static void expect_quarantine(void)
{
	uint64_t session = kill_a_writer();

	kvt_test_equal(kvt_test_settled(&daemon_).quarantined_pages, 64);
	fence_session(session);
	await_no_quarantine();
}

/* They are free once they have ended. */
static void expect_no_quarantine(void)
{
	kill_a_writer();
	await_no_quarantine();
}

CUDA_TEST(under_mps_a_time_of_grace_is_added)
{
	int64_t begin_ns;

	start("cuda-vmm", "mps = yes\nmps_grace_ms = 300\n");
	begin_ns = kvt_now_ns();
	expect_no_quarantine();
	kvt_test_check(kvt_now_ns() - begin_ns >= 300000000);
	kvt_test_daemon_end(&daemon_);
	/* So long that only an operator ends it. */
	start("cuda-ipc", "mps = yes\nmps_grace_ms = 86400000\n");
	expect_quarantine();
	kvt_test_daemon_end(&daemon_);
	start("cuda-ipc", "mps = no\nmps_grace_ms = 86400000\n");
	expect_no_quarantine();
	kvt_test_daemon_end(&daemon_);
}

/* The grace time begins with the later of hang-up and exit. */
CUDA_TEST(the_time_of_grace_begins_when_both_signs_are_there)
{
	for (int i = 0; i < 2; i++) {
		struct writer writer = { .child_holds = i == 0, .hangs_up = i == 1 };
		struct kvt_test_child child;
		uint64_t session;
		int64_t begin_ns;

		start("cuda-vmm", "mps = yes\nmps_grace_ms = 200\n");
		kvt_test_child_start(&child, writer_run, &writer);
		session = kvt_test_word(child.pipe);
		if (i == 0)
			kvt_test_child_kill(&child, SIGKILL);
		kvt_test_session_ended(&daemon_, (uint32_t)session);
		begin_ns = kvt_now_ns();
		/* More than the time, with one sign. */
		while (kvt_now_ns() - begin_ns < 250000000)
			kvt_test_equal(kvt_test_status(&daemon_).counters.quarantined_pages, 64);
		begin_ns = kvt_now_ns();
		if (i == 0)
			kvt_test_equal(kill((pid_t)(session >> 32), SIGKILL), 0);
		else
			kvt_test_child_kill(&child, SIGKILL);
		await_no_quarantine();
		kvt_test_check(kvt_now_ns() - begin_ns >= 200000000);
		kvt_test_daemon_end(&daemon_);
	}
}

CUDA_TEST(mps_is_noticed)
{
	char control[120];
	uint64_t session;

	/* MPS found by its control pipe. */
	snprintf(control, sizeof(control), "%s/control", devices.dir);
	kvt_test_equal(mkfifo(control, 0600), 0);
	setenv("CUDA_MPS_PIPE_DIRECTORY", devices.dir, 1);
	start("cuda-ipc", "mps = auto\nmps_grace_ms = 86400000\n");
	expect_quarantine();
	kvt_test_daemon_end(&daemon_);
	unlink(control);
	/* MPS starts later: what was found is cached for a second. */
	start("cuda-ipc", "mps_grace_ms = 86400000\n");
	expect_no_quarantine();
	kvt_test_equal(mkfifo(control, 0600), 0);
	do
		session = kill_a_writer(); /* many a second */
	while (!kvt_test_settled(&daemon_).quarantined_pages);
	fence_session(session);
	await_no_quarantine();
	kvt_test_daemon_end(&daemon_);
	unlink(control);
	/* MPS reported by the driver. */
	setenv("KVT_STANDIN_TRAITS", "mps", 1);
	start("cuda-vmm", "mps_grace_ms = 86400000\n");
	expect_quarantine();
	kvt_test_daemon_end(&daemon_);
	unsetenv("KVT_STANDIN_TRAITS");
	/* No MPS. */
	start("cuda-vmm", "mps_grace_ms = 86400000\n");
	expect_no_quarantine();
	kvt_test_daemon_end(&daemon_);
}

/* ---- MPS's word */

/* The stand-in for the control program of MPS, with a server that sleeps. */
static struct {
	char folder[64];
	pid_t server;
	int lock; /* one such server at a time: all that run must be of the control program */
} mps;

static void mps_say(const char *name, const char *text)
{
	char path[100];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", mps.folder, name);
	kvt_test_check((file = fopen(path, "w")) && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void mps_say_clients(const char *text)
{
	char name[32];

	snprintf(name, sizeof(name), "clients-%d", mps.server);
	mps_say(name, text);
}

static void mps_begin(const char *backend, uint32_t grace_ms)
{
	char text[200], sleeps[100];

	mps.lock = open("/tmp/kvt-mps.lock", O_CREAT | O_RDWR | O_CLOEXEC, 0666);
	kvt_test_check(mps.lock >= 0 && flock(mps.lock, LOCK_EX) == 0);
	fchmod(mps.lock, 0666); /* if it is ours */
	if (system("grep -qsx nvidia-cuda-mps /proc/[0-9]*/comm") == 0)
		cuda_test_skip("MPS runs on this host");
	snprintf(mps.folder, sizeof(mps.folder), "/tmp/kvt-mps-XXXXXX");
	kvt_test_check(mkdtemp(mps.folder) && chmod(mps.folder, 0755) == 0);
	mps_say("control", mps_control_script);
	snprintf(text, sizeof(text), "%s/control", mps.folder);
	kvt_test_equal(chmod(text, 0755), 0);
	snprintf(sleeps, sizeof(sleeps), "%s/nvidia-cuda-mps-server", mps.folder);
	kvt_test_equal(symlink("/bin/sleep", sleeps), 0);
	mps.server = fork();
	if (mps.server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(sleeps, sleeps, "1000", NULL);
		_exit(1);
	}
	snprintf(text, sizeof(text), "%d\n", mps.server);
	mps_say("servers", text);
	mps_say_clients("");
	mps_say("lines", "");
	snprintf(text, sizeof(text), "mps = yes\nmps_grace_ms = %u\nmps_control = %s/control\n",
		 grace_ms, mps.folder);
	start(backend, text);
}

static void mps_end(void)
{
	char command[100];

	kvt_test_daemon_end(&daemon_);
	kvt_test_equal(kill(mps.server, SIGKILL), 0);
	kvt_test_equal(waitpid(mps.server, NULL, 0), mps.server);
	snprintf(command, sizeof(command), "rm -r %s", mps.folder);
	kvt_test_equal(system(command), 0);
	close(mps.lock);
}

/* How often the control program got the line. */
static int mps_asked(const char *format, int pid)
{
	char path[100], line[100], wanted[100];
	FILE *file;
	int n = 0;

	snprintf(path, sizeof(path), "%s/lines", mps.folder);
	snprintf(wanted, sizeof(wanted), format, mps.server, pid);
	kvt_test_check((file = fopen(path, "r")));
	while (fgets(line, sizeof(line), file))
		n += strcmp(line, wanted) == 0;
	fclose(file);
	return n;
}

/* Take pages and wait for the end, as rank 0 of two. */
static void leader_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_group_token token;
	uint32_t pages[64];

	kvt_test_equal(kvt_alloc(client, 64, pages), 0);
	kvt_test_equal(kvt_group_open(client, 2, NULL, &token), 0);
	kvt_test_send(pipe, token.words[0]);
	kvt_test_send(pipe, token.words[1]);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_expect(pipe, 0); /* never comes */
}

static void member_run(int pipe, void *context)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;

	options.socket_path = daemon_.socket;
	options.group = context;
	options.rank = 1;
	kvt_test_equal(kvt_client_connect(&client, &options, NULL), 0);
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 0); /* never comes */
}

enum { A_DAY_MS = 86400000 };

CUDA_TEST(under_mps_pages_are_free_when_its_control_says_that_the_client_is_gone)
{
	mps_begin("cuda-vmm", A_DAY_MS);
	expect_no_quarantine();
	kvt_test_equal(mps_asked("get_client_list %d\n", 0), 1);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "event=mps_silent"));
	mps_end();
}

CUDA_TEST(under_mps_the_work_of_every_dead_rank_is_ended)
{
	struct kvt_test_child leader, member;
	struct kvt_group_token token;
	uint32_t session;
	char clients[100];
	pid_t pids[2];

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	mps_begin("cuda-vmm", A_DAY_MS);
	kvt_test_child_start(&leader, leader_run, NULL);
	token.words[0] = kvt_test_word(leader.pipe);
	token.words[1] = kvt_test_word(leader.pipe);
	session = (uint32_t)kvt_test_word(leader.pipe);
	kvt_test_child_start(&member, member_run, &token);
	kvt_test_expect(member.pipe, 1);
	pids[0] = leader.pid;
	pids[1] = member.pid;
	snprintf(clients, sizeof(clients), "%d\n%d\n", pids[1], pids[0]);
	mps_say_clients(clients);
	kvt_test_child_kill(&leader, SIGKILL);
	kvt_test_child_kill(&member, SIGKILL);
	kvt_test_session_ended(&daemon_, session);
	await_no_quarantine();
	for (int i = 0; i < 2; i++)
		kvt_test_equal(mps_asked("terminate_client %d %d\n", pids[i]), 1);
	mps_end();
}

CUDA_TEST(under_mps_answers_that_prove_nothing_are_told_once_for_each_session)
{
	uint64_t session;

	mps_begin("cuda-ipc", A_DAY_MS);
	mps_say("servers", "Cannot find MPS control daemon\n");
	for (uint32_t i = 1; i <= 2; i++) {
		int before = mps_asked("get_server_list\n", 0);

		session = kill_a_writer();
		while (mps_asked("get_server_list\n", 0) < before + 2)
			kvt_test_equal(kvt_test_status(&daemon_).counters.quarantined_pages, 64);
		kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=mps_silent"), i);
		fence_session(session);
		await_no_quarantine();
	}
	kvt_test_check(kvt_test_daemon_said(&daemon_, "what is not understood: Cannot find MPS"));
	mps_end();
}

CUDA_TEST(under_mps_a_client_that_is_still_there_after_the_time_of_grace_is_told)
{
	struct writer writer = { .child_holds = false };
	struct kvt_test_child child;
	char text[100];
	uint32_t session;

	mps_begin("cuda-vmm", 300);
	kvt_test_child_start(&child, writer_run, &writer);
	session = (uint32_t)kvt_test_word(child.pipe);
	snprintf(text, sizeof(text), "%d\n", child.pid);
	mps_say_clients(text);
	mps_say("refusal", "CUDA_ERROR_UNKNOWN\n");
	snprintf(text, sizeof(text), "lists pid %d, and answers terminate_client", child.pid);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(&daemon_, session);
	await_no_quarantine();
	kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=mps_silent"), 1);
	kvt_test_check(kvt_test_daemon_said(&daemon_, text));
	mps_end();
}

/* The question and all that it started end with the session's quarantine. */
CUDA_TEST(under_mps_nothing_is_left_of_a_question_whose_session_is_over)
{
	uint64_t session;

	mps_begin("cuda-vmm", A_DAY_MS);
	mps_say("more", "sleep 1000\n");
	session = kill_a_writer();
	while (mps_asked("get_server_list\n", 0) < 1)
		kvt_test_equal(kvt_test_status(&daemon_).counters.quarantined_pages, 64);
	fence_session(session);
	await_no_quarantine();
	while (kvt_test_first_child(daemon_.pid))
		kvt_test_status(&daemon_);
	mps_say("more", "");
	expect_no_quarantine();
	mps_end();
}

/* ---- a daemon's successor */

CUDA_TEST(a_successor_takes_up_a_vmm_pool_with_all_that_is_cached)
{
	struct kvt_client *client;
	struct kvt_pool pools[2];

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-vmm\ndevices = all\n");
	client = kvt_test_connect(&daemon_);
	kvt_test_check(kvt_client_info(client)->kept);
	for (int i = 0; i < 2; i++)
		pools[i] = cuda_test_map(client, i);
	kvt_test_equal(serve(client, pools, 2, 1), 0);
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_equal(serve(client, pools, 2, 1), N_KEYS - PAGE);
	kvt_test_equal(serve(client, pools, 2, 2), 0);
	kvt_client_close(client, KVT_IDLE);
	/* Held by descriptors alone, without any client. */
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_daemon_succeed(&daemon_);
	for (uint32_t seed = 1; seed <= 2; seed++)
		kvt_test_equal(serve_once(2, seed), N_KEYS - PAGE);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "cold_start"));
	kvt_test_daemon_end(&daemon_);
}

/* A successor does not know how long a dead client's work has been running: the grace time
 * restarts. */
CUDA_TEST(quarantine_outlives_the_daemon)
{
	uint64_t session;

	kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-vmm\nmps = yes\n"
					 "mps_grace_ms = 86400000\n");
	session = kill_a_writer();
	kvt_test_equal(kvt_test_status(&daemon_).counters.quarantined_pages, 64);
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_check(!kvt_test_daemon_said(&daemon_, "cold_start"));
	kvt_test_equal(kvt_test_settled(&daemon_).quarantined_pages, 64);
	fence_session(session);
	await_no_quarantine();
	kvt_test_daemon_end(&daemon_);
	/* It asks the driver itself after the grace time. */
	kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-vmm\nmps = yes\n"
					 "mps_grace_ms = 300\n");
	kill_a_writer();
	kvt_test_daemon_succeed(&daemon_);
	await_no_quarantine();
	kvt_test_daemon_end(&daemon_);
}

CUDA_TEST(memory_that_lost_its_contents_is_not_taken_up)
{
	struct kvt_client *client;
	struct kvt_pool pool;

	setenv("KVT_STANDIN_MEMORY", "8388608", 1); /* room for one */
	kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-vmm\n");
	client = kvt_test_connect(&daemon_);
	pool = cuda_test_map(client, 0);
	kvt_test_equal(serve(client, &pool, 1, 1), 0);
	memset(pool.base, 0, pool.bytes); /* like a driver that scrubs it */
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_check(kvt_test_daemon_said(&daemon_, "lost its contents"));
	kvt_test_equal(serve_once(1, 1), 0);
	kvt_test_daemon_end(&daemon_);
}

/* Device memory does not record options: it is recovered only under the same ones. */
CUDA_TEST(slabs_of_other_devices_are_not_taken_up)
{
	static const struct {
		const char *before, *after, *text;
	} cases[] = {
		{ "0 1", "1 0", "stored slab 0 does not fit these options" },
		{ "0 1", "0", "the stored pool has 2 slabs, but devices wants 1" },
		{ "0", "0 1", "the stored pool has 1 slabs, but devices wants 2" },
		{ "0", "1", "stored slab 0 does not fit these options" },
	};

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	setenv("KVT_STANDIN_MEMORY", "8388608", 1); /* room for one slab a device */
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char config[100];

		snprintf(config, sizeof(config), "backend = cuda-vmm\ndevices = %s\n",
			 cases[i].before);
		kvt_test_daemon_begin_supervised(&daemon_, config);
		snprintf(config, sizeof(config), "devices = %s\n", cases[i].after);
		kvt_test_daemon_configure(&daemon_, config);
		kvt_test_daemon_succeed(&daemon_);
		if (!kvt_test_daemon_said(&daemon_, cases[i].text))
			kvt_test_fail("it did not say '%s'", cases[i].text);
		kvt_test_check(!kvt_test_daemon_said(&daemon_, "waits_for_memory"));
		kvt_test_daemon_end(&daemon_);
	}
}

CUDA_TEST(an_ipc_pool_ends_with_its_daemon_and_clients_are_told)
{
	struct kvt_client *client;
	struct kvt_pool pool;
	uint32_t page;
	int rc;

	kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-ipc\n");
	client = kvt_test_connect(&daemon_);
	kvt_test_check(!kvt_client_info(client)->kept);
	pool = cuda_test_map(client, 0);
	kvt_test_equal(serve(client, &pool, 1, 1), 0);
	kvt_test_daemon_succeed(&daemon_);
	rc = kvt_alloc(client, 1, &page);
	if (rc != -ECONNRESET && rc != -ESTALE)
		kvt_test_fail("%d: %s", rc, kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(serve_once(1, 1), 0);
	kvt_test_daemon_end(&daemon_);
}

/* The n-th call of a successor fails, for every n: it recovers all, or starts cold, or the next one
 * does. */
CUDA_TEST(every_call_of_a_successor_s_start_fails_once)
{
	int whole = 0, n;

	setenv("KVT_STANDIN_MEMORY", "8388608", 1); /* room for one pool: none may be left */
	/* Two undisturbed runs in a row: there was no n-th call. (A single one may be the query
	 * that older drivers refuse.) */
	for (n = 0; whole < 2; n++) {
		char number[16];
		uint32_t reused;

		kvt_test_check(n < 60);
		kvt_test_daemon_begin_supervised(&daemon_, "backend = cuda-vmm\n");
		kvt_test_equal(serve_once(1, 1), 0);
		snprintf(number, sizeof(number), "%d", n);
		cuda_test_fail_others_at(number);
		kvt_test_daemon_succeed(&daemon_);
		reused = serve_once(1, 1);
		kvt_test_check(reused == 0 || reused == N_KEYS - PAGE);
		whole = reused && !kvt_test_daemon_said(&daemon_, "start_failed") ? whole + 1 : 0;
		kvt_test_daemon_end(&daemon_);
	}
	kvt_test_check(n > 15);
}

/* ---- a forked child */

CUDA_TEST(a_forked_child_touches_nothing_of_its_parent_s)
{
	struct kvt_client *client;
	struct kvt_pool pool, again;
	int status = 0;
	pid_t child;

	start("cuda-ipc", "");
	client = kvt_test_connect(&daemon_);
	pool = cuda_test_map(client, 0);
	fflush(NULL);
	child = fork();
	kvt_test_check(child >= 0);
	if (child == 0) {
		int open = *cuda_test_knob("stub_open");

		kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &again), -ECHILD);
		kvt_client_close(client, KVT_IDLE);
		kvt_test_equal(*cuda_test_knob("stub_open"), open);
		/* Nor does the child have a driver for a client of its own. */
		client = kvt_test_connect(&daemon_);
		kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &again), -EIO);
		kvt_test_check(strstr(kvt_client_error(client)->text, "forked"));
		kvt_client_close(client, KVT_IDLE);
		_exit(0);
	}
	waitpid(child, &status, 0);
	kvt_test_equal(status, 0);
	*(volatile uint64_t *)pool.base = 1;
	close_and_stop(client);
}

int main(int argc, char **argv)
{
	cuda_test_environment(argv);
	return kvt_tests_run(argc, argv);
}
