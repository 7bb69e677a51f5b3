/* SPDX-License-Identifier: Apache-2.0 */
/* An engine captures a stream into a graph while this library maps a pool, records fences on other
 * streams and closes. The graph must be the same as without them.
 *
 * Inputs: the capture's mode, its thread, and how fences are raised. Invariant: two nodes in the
 * graph, and the thread's mode unchanged. */
#include <errno.h>

#include "tests/cuda/capture.h"
#include "tests/cuda/cuda_test.h"
#include "tests/lib/cases.h"

static struct kvt_test_daemon daemon_;

/* An engine's state before it captures. */
struct engine {
	struct kvt_cu_driver driver;
	struct capture capture;
	void *stream; /* not the captured one */
	uint64_t memory;
};

static void engine_open(struct engine *engine)
{
	*engine = (struct engine){ .driver = cuda_test_driver() };
	engine->capture.driver = &engine->driver;
	kvt_test_equal(engine->driver.primary_retain(&engine->capture.context, 0), 0);
	kvt_test_equal(engine->driver.stream_create(&engine->stream, KVT_CU_STREAM_NON_BLOCKING),
		       0);
	kvt_test_equal(engine->driver.stream_create(&engine->capture.stream, 0), 0);
	kvt_test_equal(engine->driver.memory_alloc(&engine->memory, 4096), 0);
	engine->capture.memory = engine->memory;
}

static void engine_close(struct engine *engine)
{
	kvt_test_equal(engine->driver.stream_destroy(engine->stream), 0);
	kvt_test_equal(engine->driver.stream_destroy(engine->capture.stream), 0);
	kvt_test_equal(engine->driver.memory_free(engine->memory), 0);
	kvt_test_equal(engine->driver.primary_release(0), 0);
	kvt_test_equal(engine->driver.primary_release(0), 0);
	kvt_test_equal(engine->driver.context_pop(&(void *){ NULL }), 0);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
}

/* Wait for a queue from the test, in relaxed mode because of the capture. */
static void synchronize(struct engine *engine)
{
	int mode;

	kvt_test_equal(kvt_cu_relax(&engine->driver, &mode), 0);
	kvt_test_equal(engine->driver.stream_synchronize(engine->stream), 0);
	kvt_cu_restore(&engine->driver, mode);
}

/* A client's whole life, from its first allocation to its last. */
static void client_live(struct engine *engine, int method)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_fence fence;
	uint32_t pages[2];

	kvt_test_fence_by(method);
	cuda_test_map(client, 0);
	kvt_test_equal(kvt_alloc(client, 2, pages), 0);
	kvt_test_equal(kvt_fence_record(client, engine->stream, &fence), 0);
	kvt_test_equal(kvt_free(client, pages, 2, fence), 0);
	kvt_test_equal(kvt_fence_method(client), method);
	synchronize(engine);
	kvt_test_equal(kvt_fence_forget(client, engine->stream), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

static void live_beside_capture(int capture_mode_, bool elsewhere, int method)
{
	/* The owner chooses the thread's mode. */
	int own = elsewhere ? KVT_CU_CAPTURE_MODE_GLOBAL : KVT_CU_CAPTURE_MODE_THREAD_LOCAL;
	struct engine engine;
	int mode = own;

	engine_open(&engine);
	engine.capture.mode = capture_mode_;
	engine.capture.elsewhere = elsewhere;
	kvt_test_equal(engine.driver.capture_mode_exchange(&mode), 0);
	capture_begin(&engine.capture);
	client_live(&engine, method);
	kvt_test_equal(capture_mode(&engine.driver), own);
	capture_end(&engine.capture);
	if (!capture_is_whole(&engine.capture))
		kvt_test_fail("mode %d, thread %d, method %d: status %d, errors %d %d %d",
			      capture_mode_, elsewhere, method, engine.capture.status,
			      engine.capture.begin_error, engine.capture.copy_error,
			      engine.capture.end_error);
	engine_close(&engine);
}

CUDA_TEST(captures_of_other_streams_go_on)
{
	static const char *const configs[] = { "backend = cuda-ipc\nfence_poll_us = 50\n",
					       "backend = cuda-vmm\nfence_poll_us = 50\n" };

	for (int i = 0; i < 2; i++) {
		kvt_test_daemon_prepare(&daemon_, configs[i]);
		kvt_test_daemon_start(&daemon_, NULL);
		for (int j = 0; j < 12; j++)
			live_beside_capture(j % 3, j % 2, j < 6 ? KVT_FENCE_BY_HOST
								: KVT_FENCE_BY_WRITE);
		kvt_test_audit(&daemon_);
		kvt_test_daemon_end(&daemon_);
	}
}

CUDA_TEST(no_fence_is_part_of_a_graph)
{
	struct kvt_client *client;
	struct kvt_fence fence;
	struct engine engine;

	kvt_test_daemon_begin(&daemon_, "backend = cuda-vmm\n");
	engine_open(&engine);
	client = kvt_test_connect(&daemon_);
	capture_begin(&engine.capture);
	kvt_test_equal(kvt_fence_record(client, engine.capture.stream, &fence), -EBUSY);
	kvt_test_check(strstr(kvt_client_error(client)->text, "captured"));
	kvt_test_equal(kvt_fence_record(client, NULL, &fence), -EBUSY);
	kvt_test_check(strstr(kvt_client_error(client)->text, "the null stream waits for"));
	kvt_test_equal(kvt_fence_record(client, engine.stream, &fence), 0);
	capture_end(&engine.capture);
	kvt_test_check(capture_is_whole(&engine.capture));
	kvt_test_equal(kvt_fence_record(client, engine.capture.stream, &fence), 0);
	kvt_test_equal(kvt_fence_record(client, NULL, &fence), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_daemon_end(&daemon_);
}

int main(int argc, char **argv)
{
	cuda_test_environment(argv);
	return kvt_tests_run(argc, argv);
}
