/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtrunkd with a pool in device memory, on a device: two processes share pages in place, a killed
 * writer's pages become free after its last write, and what a commit behind a fence costs. Needs
 * the daemon beside the driver.
 *
 * Inputs: backend and fence method. Invariant: every reused page has the content of its keys.
 * Figures go to stdout as JSON lines.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>

#include "kvtrunk_wire.h"
#include "tests/lib/capture.h"
#include "tests/whole/gpu/gpu_test.h"

#define PAGE 16u
#define PAGE_BYTES 1024u /* written by kvt_test_spin */
#define N_KEYS 256u
#define COMMITS 200
#define SPIN_LIMIT 30000000ull

struct worker {
	int method;     /* enum kvt_fence_method */
	int mode;       /* KVT_CU_CAPTURE_MODE_..., of a capture */
	int own_mode;   /* of the thread */
	bool elsewhere; /* capture on another thread */
};

struct engine {
	struct gpu gpu;
	struct kvt_client *client;
	struct kvt_pool pool;
	uint32_t namespace_id;
	uint64_t stop; /* a device word that is 0 */
};

static void engine_open(struct engine *engine, int method)
{
	static const uint64_t zero;

	kvt_test_fence_by(method);
	engine->client = kvt_test_connect(&daemon_);
	engine->gpu = gpu_open();
	if (kvt_pool_map_cuda(engine->client, KVT_DEVICE_CURRENT, 0, &engine->pool) != 0)
		kvt_test_fail("map: %s", kvt_client_error(engine->client)->text);
	engine->namespace_id = kvt_test_namespace(engine->client, "n");
	engine->stop = (uint64_t)(uintptr_t)engine->pool.base; /* in the scratch page */
	gpu_do(&engine->gpu, memory_upload(engine->stop, &zero, 8, engine->gpu.stream));
	gpu_do(&engine->gpu, stream_synchronize(engine->gpu.stream));
}

static uint64_t address_of(const struct engine *engine, uint32_t page)
{
	return (uint64_t)(uintptr_t)kvt_page_address(&engine->pool, page);
}

/* Content of a page of these keys, in every word. */
static uint64_t content_of(uint32_t seed, uint32_t index)
{
	return (uint64_t)seed << 20 | (index + 1);
}

static bool page_right(struct engine *engine, uint32_t page, uint32_t seed, uint32_t index)
{
	uint64_t words[PAGE_BYTES / 8];

	gpu_read(&engine->gpu, words, address_of(engine, page), sizeof(words));
	for (uint32_t i = 0; i < PAGE_BYTES / 8; i++)
		if (words[i] != content_of(seed, index))
			return false;
	return true;
}

/* Serve a prompt like a worker: check cached pages, write the rest by kernels, commit it behind a
 * fence at once. Returns the positions reused. */
static uint32_t serve(struct engine *engine, uint32_t seed, uint64_t *ret_commit_ns)
{
	uint32_t keys[N_KEYS], n, reusable;
	const uint32_t *pages;
	struct kvt_fence fence;
	struct kvt_seq *seq;
	uint64_t begin_ns;

	for (uint32_t i = 0; i < N_KEYS; i++)
		keys[i] = seed * N_KEYS + i;
	if (kvt_seq_begin(engine->client, engine->namespace_id, keys, N_KEYS, 0, 0, &seq) != 0)
		kvt_test_fail("begin: %s", kvt_client_error(engine->client)->text);
	pages = kvt_seq_pages(seq, &n);
	reusable = kvt_seq_reusable(seq);
	for (uint32_t i = 0; i < reusable / PAGE; i++)
		kvt_test_check(page_right(engine, pages[i], seed, i));
	for (uint32_t i = reusable / PAGE; i < N_KEYS / PAGE; i++)
		gpu_write(&engine->gpu, address_of(engine, pages[i]), engine->stop,
			  content_of(seed, i), content_of(seed, i));
	begin_ns = kvt_now_ns();
	kvt_test_equal(kvt_fence_record(engine->client, engine->gpu.stream, &fence), 0);
	kvt_test_equal(kvt_seq_commit(seq, N_KEYS, NULL, 0, fence, 0), 0);
	*ret_commit_ns = kvt_now_ns() - begin_ns;
	pages = kvt_seq_pages(seq, &n);
	for (uint32_t i = 0; i < N_KEYS / PAGE; i++)
		kvt_test_check(page_right(engine, pages[i], seed, i));
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return reusable;
}

static void worker_run(int pipe, void *context)
{
	const struct worker *worker = context;
	struct engine engine;
	uint64_t seed, commit_ns;

	engine_open(&engine, worker->method);
	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &seed)) {
		kvt_test_send(pipe, serve(&engine, (uint32_t)seed, &commit_ns));
		kvt_test_send(pipe, commit_ns);
		kvt_test_send(pipe, (uint64_t)kvt_fence_method(engine.client));
	}
	kvt_test_equal(kvt_client_close(engine.client, KVT_IDLE), 0);
}

/* Write into private pages forever. */
static void spinner_run(int pipe, void *context)
{
	struct engine engine;
	uint32_t pages[4];

	engine_open(&engine, KVT_FENCE_BY_HOST);
	kvt_test_equal(kvt_alloc(engine.client, 4, pages), 0);
	gpu_write(&engine.gpu, address_of(&engine, pages[0]), engine.stop, 1, SPIN_LIMIT);
	kvt_test_send(pipe, kvt_client_info(engine.client)->session);
	kvt_test_expect(pipe, 0); /* never comes */
}

static uint64_t ask(struct kvt_test_child *child, uint32_t seed, uint64_t *ret_commit_ns,
		    uint64_t *ret_method)
{
	uint64_t reused = kvt_test_ask(child, seed);

	*ret_commit_ns = kvt_test_word(child->pipe);
	*ret_method = kvt_test_word(child->pipe);
	return reused;
}

static int by_size(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

static void share_and_commit(const char *backend, int method)
{
	struct worker worker = { .method = method };
	struct kvt_test_child a, b;
	uint64_t times_ns[COMMITS], used = 0;

	kvt_test_child_start(&a, worker_run, &worker);
	kvt_test_child_start(&b, worker_run, &worker);
	kvt_test_expect(a.pipe, 1);
	kvt_test_expect(b.pipe, 1);
	for (uint32_t i = 0; i < COMMITS; i++) {
		uint64_t other_ns;

		kvt_test_equal(ask(&a, (uint32_t)method * 1000 + i, &times_ns[i], &used), 0);
		kvt_test_equal(ask(&b, (uint32_t)method * 1000 + i, &other_ns, &used),
			       N_KEYS - PAGE);
	}
	kvt_test_child_end(&a);
	kvt_test_child_end(&b);
	qsort(times_ns, COMMITS, sizeof(times_ns[0]), by_size);
	gpu_figure("commit behind a fence", "\"backend\": \"%s\", \"asked\": \"%s\", "
		   "\"method\": \"%s\", \"kernels\": %u, \"p50_us\": %.1f, \"p99_us\": %.1f",
		   backend, method == KVT_FENCE_BY_WRITE ? "write" : "host",
		   used == KVT_FENCE_BY_WRITE ? "write" : "host", N_KEYS / PAGE,
		   (double)times_ns[COMMITS / 2] / 1e3, (double)times_ns[COMMITS * 99 / 100] / 1e3);
}

/* An engine captures while a client lives its whole life: it maps the pool, frees pages behind a
 * first fence, and closes. Then the words of the segment are registered and freed. */
static void capturer_run(int pipe, void *context)
{
	const struct worker *worker = context;
	struct gpu gpu = gpu_open();
	struct capture capture = { .driver = &gpu.driver, .context = gpu.context,
				   .mode = worker->mode, .elsewhere = worker->elsewhere };
	struct kvt_client *client = kvt_test_connect(&daemon_);
	int mode = worker->own_mode;
	struct kvt_fence fence;
	struct kvt_pool pool;
	uint32_t pages[2];

	gpu_do(&gpu, stream_create(&capture.stream, KVT_CU_STREAM_NON_BLOCKING));
	gpu_do(&gpu, memory_alloc(&capture.memory, 4096));
	kvt_test_fence_by(worker->method);
	gpu_do(&gpu, capture_mode_exchange(&mode));
	capture_begin(&capture);
	if (kvt_pool_map_cuda(client, KVT_DEVICE_CURRENT, 0, &pool) != 0)
		kvt_test_fail("map: %s", kvt_client_error(client)->text);
	kvt_test_equal(kvt_alloc(client, 2, pages), 0);
	kvt_test_equal(kvt_fence_record(client, gpu.stream, &fence), 0);
	kvt_test_equal(kvt_free(client, pages, 2, fence), 0);
	while (kvt_fence_forget(client, gpu.stream) == -EBUSY)
		sched_yield();
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_equal(capture_mode(&gpu.driver), worker->own_mode);
	capture_end(&capture);
	kvt_test_send(pipe, (uint64_t)capture_is_whole(&capture));
	kvt_test_send(pipe, (uint64_t)capture.status);
	kvt_test_send(pipe, (uint64_t)capture.end_error);
}

/* Number n of 12: each mode, thread and method. */
static void capture_beside(const char *backend, int n)
{
	static const char *const modes[] = { "global", "thread", "relaxed" };
	struct worker worker = { .mode = n % 3, .elsewhere = n / 3 % 2,
				 .method = n < 6 ? KVT_FENCE_BY_HOST : KVT_FENCE_BY_WRITE };
	struct kvt_test_child child;
	uint64_t whole, status;
	int error;

	worker.own_mode = worker.elsewhere || n % 2 == 0 ? KVT_CU_CAPTURE_MODE_GLOBAL :
							   KVT_CU_CAPTURE_MODE_THREAD_LOCAL;
	kvt_test_child_start(&child, capturer_run, &worker);
	whole = kvt_test_word(child.pipe);
	status = kvt_test_word(child.pipe);
	error = (int)kvt_test_word(child.pipe);
	kvt_test_child_finish(&child);
	gpu_figure("capture beside a first map and fence", "\"backend\": \"%s\", "
		   "\"asked\": \"%s\", \"mode\": \"%s\", \"thread\": \"%s\", "
		   "\"whole\": %s, \"error\": %d", backend, n < 6 ? "host" : "write",
		   modes[worker.mode], worker.elsewhere ? "another" : "the same",
		   whole ? "true" : "false", error);
	kvt_test_check(whole);
	kvt_test_equal(status, 1);
}

static void kill_a_writer(const char *backend)
{
	struct kvt_test_child child;
	uint64_t session, begin_ns;

	kvt_test_child_start(&child, spinner_run, NULL);
	session = kvt_test_word(child.pipe);
	begin_ns = kvt_now_ns();
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	while (kvt_test_status(&daemon_).counters.quarantined_pages)
		sched_yield();
	gpu_figure("pages of a killed writer are free", "\"backend\": \"%s\", \"after_us\": %.0f",
		   backend, (double)(kvt_now_ns() - begin_ns) / 1e3);
}

int main(void)
{
	static const char *const backends[] = { "cuda-ipc", "cuda-vmm" };
	char path[600], config[300];

	gpu_test_begin();
	snprintf(path, sizeof(path), "%s/kvtrunkd", kvt_test_build());
	if (access(path, X_OK) != 0) {
		printf("skip: kvtrunkd is not built here\n");
		gpu_test_end();
		return 77;
	}
	for (int i = 0; i < 2; i++) {
		snprintf(config, sizeof(config), "backend = %s\npage_size = %u\npage_bytes = %u\n"
			 "n_pages = 32768\n", backends[i], PAGE, PAGE_BYTES);
		kvt_test_daemon_begin(&daemon_, config);
		share_and_commit(backends[i], KVT_FENCE_BY_HOST);
		share_and_commit(backends[i], KVT_FENCE_BY_WRITE);
		for (int j = 0; j < 12; j++)
			capture_beside(backends[i], j);
		kill_a_writer(backends[i]);
		kvt_test_daemon_end(&daemon_);
	}
	return gpu_test_end();
}
