/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in refuses what the driver refuses according to cuda.h, so that misuse fails here and
 * not first on a device.
 *
 * Inputs: misuses of the driver, one per case. Invariant: the CUresult of cuda.h.
 */
#include "tests/lib/capture.h"
#include "tests/whole/cuda/cuda_test.h"


#define KERNEL "kvt_test_spin"
#define PTX ".version 7.0\n"

CUDA_TEST(contexts_must_be_there)
{
	struct kvt_cu_driver driver;
	void *context, *event, *stream, *module, *other;
	uint64_t memory;

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	driver = cuda_test_driver();
	kvt_test_equal(driver.memory_alloc(&memory, 4096), 0);
	kvt_test_equal(driver.event_create(&event, 0), 0);
	kvt_test_equal(driver.stream_create(&stream, 0), 0);
	kvt_test_equal(driver.context_pop(&context), 0);
	kvt_test_equal(driver.memory_free(memory), KVT_CU_ERROR_INVALID_CONTEXT);
	kvt_test_equal(driver.module_load(&module, PTX), KVT_CU_ERROR_INVALID_CONTEXT);
	kvt_test_equal(driver.event_record(event, NULL), KVT_CU_ERROR_INVALID_CONTEXT);
	kvt_test_equal(driver.stream_synchronize(NULL), KVT_CU_ERROR_INVALID_CONTEXT);
	/* One of each device: they share nothing. */
	kvt_test_equal(driver.primary_retain(&other, 1), 0);
	kvt_test_equal(driver.context_push(other), 0);
	kvt_test_equal(driver.event_record(event, NULL), KVT_CU_ERROR_INVALID_HANDLE);
	kvt_test_equal(driver.memory_upload(memory, PTX, 8, stream), KVT_CU_ERROR_INVALID_VALUE);
	kvt_test_equal(driver.context_pop(&other), 0);
	/* After its last release a context is gone. */
	kvt_test_equal(driver.primary_release(0), 0);
	kvt_test_check(driver.context_push(context) != 0);
	kvt_test_equal(driver.primary_release(0), KVT_CU_ERROR_INVALID_CONTEXT);
}

CUDA_TEST(launches_have_limits)
{
	struct kvt_cu_driver driver = cuda_test_driver();
	static uint64_t words[128], stop = 1;
	struct {
		uint64_t words, stop, limit, first;
	} spin = { (uint64_t)(uintptr_t)words, (uint64_t)(uintptr_t)&stop, 1, 0 };
	void *arguments[] = { &spin }, *module, *function, *stream;
	unsigned int much = 90 << 10;

	kvt_test_equal(driver.module_load(&module, PTX), 0);
	kvt_test_equal(driver.module_function(&function, module, KERNEL), 0);
	kvt_test_equal(driver.stream_create(&stream, 0), 0);
	kvt_test_equal(driver.launch(function, 1, 1, 1, 128, 1, 1, 48 << 10, stream, arguments,
				     NULL), 0);
	kvt_test_check(driver.launch(function, 1, 1, 1, 128, 1, 1, much, stream, arguments, NULL));
	kvt_test_equal(driver.function_set(function, KVT_CU_FUNCTION_SHARED_BYTES, (int)much), 0);
	kvt_test_equal(driver.launch(function, 1, 1, 1, 128, 1, 1, much, stream, arguments, NULL),
		       0);
	kvt_test_check(driver.launch(function, 1, 65536, 1, 128, 1, 1, 0, stream, arguments, NULL));
	kvt_test_check(driver.launch(function, 1u << 31, 1, 1, 128, 1, 1, 0, stream, arguments,
				     NULL));
	kvt_test_equal(driver.stream_synchronize(stream), 0);
}

CUDA_TEST(copies_stay_in_their_memory)
{
	struct kvt_cu_driver driver = cuda_test_driver();
	uint64_t memory, word = 1;

	kvt_test_equal(driver.memory_alloc(&memory, 4096), 0);
	kvt_test_equal(driver.memory_upload(memory + 4088, &word, 8, NULL), 0);
	kvt_test_check(driver.memory_upload(memory + 4092, &word, 8, NULL));
	kvt_test_check(driver.memory_download(&word, (uint64_t)(uintptr_t)&devices, 8, NULL));
	kvt_test_check(driver.memory_copy(memory, memory + 4096, 8, NULL));
	kvt_test_equal(driver.memory_free(memory), 0);
	kvt_test_check(driver.memory_free(memory));
}

CUDA_TEST(times_are_between_events_that_keep_time)
{
	struct kvt_cu_driver driver = cuda_test_driver();
	void *timed, *plain, *late, *stream;
	float ms;

	kvt_test_equal(driver.event_create(&timed, 0), 0);
	kvt_test_equal(driver.event_create(&late, 0), 0);
	kvt_test_equal(driver.event_create(&plain, KVT_CU_EVENT_DISABLE_TIMING), 0);
	kvt_test_equal(driver.stream_create(&stream, 0), 0);
	/* Never recorded: no wait. */
	kvt_test_equal(driver.event_synchronize(timed), 0);
	kvt_test_equal(driver.event_record(timed, stream), 0);
	kvt_test_equal(driver.event_record(plain, stream), 0);
	kvt_test_equal(driver.event_elapsed(&ms, timed, plain), KVT_CU_ERROR_INVALID_HANDLE);
	kvt_test_equal(driver.event_elapsed(&ms, timed, late), KVT_CU_ERROR_INVALID_HANDLE);
	cuda_test_gate(1);
	kvt_test_equal(driver.event_record(late, stream), 0);
	kvt_test_check(driver.event_elapsed(&ms, timed, late));
	cuda_test_gate(0);
	kvt_test_equal(driver.event_synchronize(late), 0);
	kvt_test_equal(driver.event_elapsed(&ms, timed, late), 0);
}

static struct kvt_cu_driver the_driver;

static void call_it(void *context)
{
	the_driver.event_record(context, NULL);
}

static void misuse(int pipe, void *context)
{
	void *event, *stream;

	(void)pipe, (void)context;
	the_driver = cuda_test_driver();
	kvt_test_equal(the_driver.event_create(&event, 0), 0);
	kvt_test_equal(the_driver.stream_create(&stream, 0), 0);
	kvt_test_equal(the_driver.launch_host(stream, call_it, event), 0);
	the_driver.stream_synchronize(stream);
	kvt_test_send(pipe, 1);
}

CUDA_TEST(host_functions_call_nothing)
{
	struct kvt_test_child child;
	uint64_t word;

	kvt_test_child_start(&child, misuse, NULL);
	kvt_test_check(!kvt_test_receive(child.pipe, &word));
	kvt_test_child_kill(&child, SIGKILL);
}

static struct capture capture_make(struct kvt_cu_driver *driver, unsigned int flags)
{
	struct capture capture = { .driver = driver };

	kvt_test_equal(driver->primary_retain(&capture.context, 0), 0);
	kvt_test_equal(driver->stream_create(&capture.stream, flags), 0);
	kvt_test_equal(driver->memory_alloc(&capture.memory, 4096), 0);
	return capture;
}

/* By mode of the thread, by mode of the capture: what cuda.h says about an allocation. */
CUDA_TEST(captures_prohibit_what_is_not_queued)
{
	static const char *const on_this_thread[] = { "--+", "--+", "+++" };
	static const char *const on_another[] = { "-++", "+++", "+++" };
	struct kvt_cu_driver driver = cuda_test_driver();
	struct capture capture = capture_make(&driver, KVT_CU_STREAM_NON_BLOCKING);

	for (int i = 0; i < 18; i++) {
		int mode = i / 3 % 3, before = mode, error;
		uint64_t memory = 0;
		bool allowed;

		capture.mode = i % 3;
		capture.elsewhere = i >= 9;
		allowed = (capture.elsewhere ? on_another : on_this_thread)[mode][i % 3] == '+';
		kvt_test_equal(driver.capture_mode_exchange(&mode), 0);
		capture_begin(&capture);
		error = driver.memory_alloc(&memory, 4096);
		capture_end(&capture);
		kvt_test_equal(driver.capture_mode_exchange(&mode), 0);
		kvt_test_equal(mode, before);
		kvt_test_equal(error, allowed ? 0 : KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		kvt_test_equal(capture.status, allowed ? 1 : 2);
		kvt_test_equal(capture.end_error, allowed ? 0 : 901);
		if (allowed)
			kvt_test_equal(driver.memory_free(memory), 0);
	}
}

/* In any mode: calls that touch the captured stream itself. */
CUDA_TEST(captured_streams_are_not_waited_for)
{
	struct kvt_cu_driver driver = cuda_test_driver();
	struct capture capture = capture_make(&driver, 0);
	int mode = KVT_CU_CAPTURE_MODE_RELAXED, status;
	struct capture_functions functions;
	void *event, *graph;

	kvt_test_check(capture_functions_find(&driver, &functions));
	kvt_test_equal(driver.event_create(&event, 0), 0);
	kvt_test_equal(driver.capture_mode_exchange(&mode), 0);
	capture_begin(&capture);
	kvt_test_equal(driver.stream_synchronize(capture.stream),
		       KVT_CU_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	capture_end(&capture);
	kvt_test_equal(capture.end_error, 901);
	capture_begin(&capture);
	kvt_test_equal(driver.stream_capturing(NULL, &status),
		       KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT);
	capture_end(&capture);
	kvt_test_check(capture_is_whole(&capture));
	capture_begin(&capture);
	kvt_test_equal(driver.memory_copy(capture.memory + 8, capture.memory, 8, NULL),
		       KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT);
	capture_end(&capture);
	kvt_test_equal(capture.end_error, 901);
	capture_begin(&capture);
	kvt_test_equal(driver.event_record(event, capture.stream), 0);
	kvt_test_equal(driver.event_synchronize(event), 907);
	capture_end(&capture);
	kvt_test_equal(capture.n_nodes, 3);
	capture.elsewhere = true;
	capture_begin(&capture);
	kvt_test_equal(functions.end(capture.stream, &graph), 908);
	capture_end(&capture);
	kvt_test_check(capture_is_whole(&capture));
}

int main(int argc, char **argv)
{
	cuda_test_environment(argv);
	return kvt_tests_run(argc, argv);
}
