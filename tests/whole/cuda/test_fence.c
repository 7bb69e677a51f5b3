/* SPDX-License-Identifier: Apache-2.0 */
/* Fences that streams raise, with streams that lag. A call that gives pages away takes effect after
 * the writes queued before it, and never blocks its caller. Real daemon, stand-in for the driver,
 * checked by page content.
 *
 * Inputs: the fence method, the stand-in's gate and lag, failing calls. Invariant: no page is
 * reused before the last write to it. */
#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "libclient/state.h"
#include "tests/lib/capture.h"
#include "tests/whole/cuda/cuda_test.h"
#include "tests/lib/cases.h"

#define PAGE 16u
#define N_KEYS 64u /* four pages */
#define SALT 9

/* A client with its pool, a driver and a stream; and another client as observer. */
struct engine {
	struct kvt_cu_driver driver;
	struct kvt_client *client, *other;
	struct kvt_pool pool;
	uint32_t namespace_id, other_namespace;
	void *stream;
	uint32_t keys[N_KEYS];
};

static struct kvt_client *connect_by(int method)
{
	if (method != KVT_FENCE_BY_DEFAULT)
		kvt_test_fence_by(method);
	return kvt_test_connect(&daemon_);
}

static void start_daemon(const char *config)
{
	char text[300];

	snprintf(text, sizeof(text), "backend = cuda-vmm\nfence_poll_us = 50\n%s", config);
	kvt_test_daemon_begin(&daemon_, text);
}

static void engine_enter(struct engine *engine, int method)
{
	engine->driver = cuda_test_driver();
	engine->client = connect_by(method);
	engine->other = kvt_test_connect(&daemon_);
	engine->pool = cuda_test_map(engine->client, 0);
	engine->namespace_id = kvt_test_namespace(engine->client, "n");
	engine->other_namespace = kvt_test_namespace(engine->other, "n");
	kvt_test_equal(engine->driver.stream_create(&engine->stream, KVT_CU_STREAM_NON_BLOCKING),
		       0);
	for (uint32_t i = 0; i < N_KEYS; i++)
		engine->keys[i] = 1000 + i;
}

static void engine_open(struct engine *engine, int method, const char *config)
{
	start_daemon(config);
	engine_enter(engine, method);
}

/* `closed`: the client's session has already ended. */
static void engine_close(struct engine *engine, bool closed)
{
	cuda_test_gate(0);
	kvt_test_equal(engine->driver.stream_synchronize(engine->stream), 0);
	kvt_test_equal(engine->driver.stream_destroy(engine->stream), 0);
	if (closed)
		kvt_client_abandon(engine->client);
	else
		kvt_test_equal(kvt_client_close(engine->client, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(engine->other, KVT_IDLE), 0);
	kvt_test_daemon_end(&daemon_);
	kvt_test_equal(*cuda_test_knob("stub_pushed"), 1);
	kvt_test_equal(engine->driver.context_pop(&(void *){ NULL }), 0);
	kvt_test_equal(engine->driver.primary_release(0), 0);
	kvt_test_equal(*cuda_test_knob("stub_open"), 0);
}

/* Queue a kernel that writes the content of a page. */
static void write_page(struct engine *engine, void *stream, uint32_t page, uint32_t index)
{
	char content[4096];
	struct kvt_pool here = engine->pool;
	uint64_t bytes = kvt_test_page_bytes(&here);

	here.base = content;
	kvt_test_check(bytes * 2 <= sizeof(content));
	kvt_test_page_fill(&here, PAGE, 1, SALT, engine->keys, index);
	kvt_test_equal(engine->driver.memory_upload(
			       (uint64_t)(uintptr_t)kvt_page_address(&engine->pool, page),
			       content + bytes, bytes, stream), 0);
}

static bool page_right(struct engine *engine, uint32_t page, uint32_t index)
{
	return kvt_test_page_right(&engine->pool, PAGE, page, SALT, engine->keys, index);
}

static struct kvt_fence record(struct engine *engine, void *stream)
{
	struct kvt_fence fence = { 99, 0 };
	void *context = NULL;
	bool created = (uintptr_t)stream > 2; /* not a name of the default stream */

	/* A created stream names its context, which need not be current. */
	if (created)
		kvt_test_equal(engine->driver.context_pop(&context), 0);
	if (kvt_fence_record(engine->client, stream, &fence) != 0)
		kvt_test_fail("record: %s", kvt_client_error(engine->client)->text);
	if (created)
		kvt_test_equal(engine->driver.context_push(context), 0);
	kvt_test_check(fence.slot < KVT_FENCE_WORDS && fence.value > 0);
	return fence;
}

/* Queue writes of four pages on a stream that stands still. Returns the fence behind them. */
static struct kvt_fence write_pages(struct engine *engine, const uint32_t *pages)
{
	cuda_test_gate(1);
	for (uint32_t i = 0; i < 4; i++)
		write_page(engine, engine->stream, pages[i], i);
	return record(engine, engine->stream);
}

static struct kvt_result page_state(struct engine *engine, uint32_t page)
{
	const struct kvt_request request = { .op = KVT_OP_PAGE, .arg = page };

	return kvt_test_call(engine->other, &request);
}

static void expect_pages(struct engine *engine, const uint32_t *pages, uint32_t state, bool right)
{
	for (uint32_t i = 0; i < 4; i++) {
		kvt_test_equal(page_state(engine, pages[i]).state, state);
		kvt_test_equal(page_right(engine, pages[i], i), right);
	}
}

/* Submit it and an empty operation behind it. Once that is answered, the daemon has seen the first,
 * which still waits. */
static void submit_deferred(struct engine *engine, const struct kvt_request *request)
{
	struct kvt_request nop = { .op = KVT_OP_NOP, .user_data = 2 };
	struct kvt_result result;

	kvt_test_equal(kvt_submit(engine->client, request), 0);
	kvt_test_equal(kvt_submit(engine->client, &nop), 0);
	kvt_test_equal(kvt_reap(engine->client, &result, 1, 1), 1);
	kvt_test_equal(result.user_data, 2);
	kvt_result_release(engine->client, &result);
	kvt_test_equal(kvt_reap(engine->client, &result, 0, 1), 0);
}

static void await_effect(struct engine *engine)
{
	struct kvt_result result;

	cuda_test_gate(0);
	kvt_test_equal(kvt_reap(engine->client, &result, 1, 1), 1);
	kvt_test_equal(result.user_data, 1);
	if (result.error != 0)
		kvt_test_fail("%s: %d, %s", kvt_op_name((int)result.op), result.error,
			      kvt_reason_name((int)result.reason));
	kvt_test_check(result.flags & KVT_CQE_DEFERRED);
	kvt_result_release(engine->client, &result);
}

static uint32_t matched_by_other(struct engine *engine)
{
	return kvt_test_matched(engine->other, engine->other_namespace, engine->keys, N_KEYS);
}

static struct kvt_result begin(struct engine *engine, uint32_t pages[4])
{
	struct kvt_request request = { .op = KVT_OP_BEGIN, .namespace_id = engine->namespace_id,
				       .keys = engine->keys, .n_keys = N_KEYS };
	struct kvt_result result;

	kvt_test_equal(kvt_call(engine->client, &request, &result), 0);
	kvt_test_equal(result.n_pages, 4);
	memcpy(pages, result.pages, 4 * sizeof(*pages));
	kvt_result_release(engine->client, &result);
	return result;
}

/* ---- one operation each */

static void commit_case(struct engine *engine, uint32_t op)
{
	struct kvt_request request = { .op = op, .arg = N_KEYS, .user_data = 1 };
	uint32_t pages[4];

	request.lease = begin(engine, pages).lease;
	request.flags = op == KVT_OP_END ? KVT_F_COMMIT : 0;
	request.fence = write_pages(engine, pages);
	submit_deferred(engine, &request);
	kvt_test_equal(matched_by_other(engine), 0);
	kvt_test_equal(page_state(engine, pages[0]).state, KVT_PAGE_PRIVATE);
	await_effect(engine);
	kvt_test_equal(matched_by_other(engine), N_KEYS);
	expect_pages(engine, pages, KVT_PAGE_CACHED, true);
}

static void commit_test(struct engine *engine)
{
	commit_case(engine, KVT_OP_COMMIT);
}

static void end_commit_test(struct engine *engine)
{
	commit_case(engine, KVT_OP_END);
}

static void insert_test(struct engine *engine)
{
	struct kvt_request request = { .op = KVT_OP_INSERT, .user_data = 1, .n_pages = 4,
				       .namespace_id = engine->namespace_id,
				       .keys = engine->keys, .n_keys = N_KEYS };
	uint32_t pages[4];

	kvt_test_equal(kvt_alloc(engine->client, 4, pages), 0);
	request.pages = pages;
	request.fence = write_pages(engine, pages);
	submit_deferred(engine, &request);
	kvt_test_equal(matched_by_other(engine), 0);
	await_effect(engine);
	kvt_test_equal(matched_by_other(engine), N_KEYS);
	expect_pages(engine, pages, KVT_PAGE_CACHED, true);
}

/* Released pages stay their owner's until the writes into them are done. */
static void give_up(struct engine *engine, struct kvt_request *request, const uint32_t *pages)
{
	request->fence = write_pages(engine, pages);
	request->user_data = 1;
	submit_deferred(engine, request);
	expect_pages(engine, pages, KVT_PAGE_PRIVATE, false);
	await_effect(engine);
	expect_pages(engine, pages, KVT_PAGE_FREE, true);
}

static void free_test(struct engine *engine)
{
	struct kvt_request request = { .op = KVT_OP_FREE, .n_pages = 4 };
	uint32_t pages[4];

	kvt_test_equal(kvt_alloc(engine->client, 4, pages), 0);
	request.pages = pages;
	give_up(engine, &request, pages);
}

static void end_test(struct engine *engine)
{
	struct kvt_request request = { .op = KVT_OP_END };
	uint32_t pages[4];

	request.lease = begin(engine, pages).lease;
	give_up(engine, &request, pages);
}

static void close_test(struct engine *engine)
{
	struct kvt_request request = { .op = KVT_OP_CLOSE };
	struct kvt_request refused = { .op = KVT_OP_NOP };
	struct kvt_result result;
	uint32_t pages[4];

	begin(engine, pages);
	request.fence = write_pages(engine, pages);
	request.user_data = 1;
	kvt_test_equal(kvt_submit(engine->client, &request), 0);
	/* Nothing is taken behind CLOSE, but it is answered. */
	kvt_test_equal(kvt_call(engine->client, &refused, &result), -ESHUTDOWN);
	expect_pages(engine, pages, KVT_PAGE_PRIVATE, false);
	await_effect(engine);
	expect_pages(engine, pages, KVT_PAGE_FREE, true);
}

static void unlock_test(struct engine *engine)
{
	struct kvt_request end = { .op = KVT_OP_END, .flags = KVT_F_COMMIT, .arg = N_KEYS,
				   .fence = KVT_IDLE };
	struct kvt_request request = { .op = KVT_OP_UNLOCK, .user_data = 1 };
	struct kvt_result result;
	uint32_t pages[4], evicted;
	char read_back[1024];

	end.lease = begin(engine, pages).lease;
	kvt_test_call(engine->client, &end);
	kvt_test_equal(kvt_match(engine->client, engine->namespace_id, engine->keys, N_KEYS,
				 KVT_F_LOCK, &result), 0);
	request.lease = result.lease;
	kvt_result_release(engine->client, &result);
	cuda_test_gate(1);
	/* A read that is still queued. */
	kvt_test_equal(engine->driver.memory_download(read_back,
						      (uint64_t)(uintptr_t)kvt_page_address(
							      &engine->pool, pages[0]),
						      sizeof(read_back), engine->stream), 0);
	request.fence = record(engine, engine->stream);
	submit_deferred(engine, &request);
	kvt_test_equal(page_state(engine, pages[0]).lock_ref, 1);
	kvt_test_equal(kvt_evict(engine->other, 4, &evicted), 0);
	kvt_test_equal(evicted, 0);
	await_effect(engine);
	kvt_test_equal(page_state(engine, pages[0]).lock_ref, 0);
	kvt_test_equal(kvt_evict(engine->other, 4, &evicted), 0);
	kvt_test_equal(evicted, 4);
}

CUDA_TEST(no_operation_overtakes_its_writes)
{
	void (*const cases[])(struct engine *) = {
		commit_test, end_commit_test, insert_test, free_test,
		end_test, unlock_test, close_test,
	};
	const int n_cases = (int)(sizeof(cases) / sizeof(cases[0]));

	for (int method = KVT_FENCE_BY_HOST; method <= KVT_FENCE_BY_WRITE; method++)
		for (int i = 0; i < n_cases; i++) {
			static struct engine engine;

			engine_open(&engine, method, "");
			cases[i](&engine);
			kvt_test_equal(kvt_fence_method(engine.client), method);
			engine_close(&engine, i == n_cases - 1);
		}
}

/* ---- words */

CUDA_TEST(each_stream_has_a_word_of_its_own)
{
	static struct engine engine;
	void *streams[KVT_FENCE_WORDS];
	struct kvt_fence fence, again;
	struct kvt_client *observer;
	uint32_t seen = 0;

	engine_open(&engine, KVT_FENCE_BY_DEFAULT, "");
	/* Two words belong to the caller. */
	kvt_test_equal(kvt_fence_raise(engine.client, 15, 3), 0);
	kvt_test_check(kvt_fence_word(engine.client, 0));
	for (uint32_t i = 0; i < KVT_FENCE_WORDS - 2; i++) {
		kvt_test_equal(engine.driver.stream_create(&streams[i], 1), 0);
		fence = record(&engine, streams[i]);
		kvt_test_check(fence.slot != 0 && fence.slot != 15 && !(seen & 1u << fence.slot));
		seen |= 1u << fence.slot;
		again = record(&engine, streams[i]);
		kvt_test_equal(again.slot, fence.slot);
		kvt_test_equal(again.value, fence.value + 1);
	}
	kvt_test_equal(kvt_fence_method(engine.client), KVT_FENCE_BY_HOST);
	kvt_test_equal(kvt_fence_record(engine.client, engine.stream, &fence), -ENOSPC);
	kvt_test_check(strstr(kvt_client_error(engine.client)->text, "kvt_fence_forget"));
	kvt_test_equal(kvt_fence_raise(engine.client, again.slot, 100), -EBUSY);
	/* A forgotten word continues at its value. */
	cuda_test_gate(1);
	again = record(&engine, streams[3]);
	kvt_test_equal(kvt_fence_forget(engine.client, streams[3]), -EBUSY);
	cuda_test_gate(0);
	kvt_test_equal(engine.driver.stream_synchronize(streams[3]), 0);
	kvt_test_equal(kvt_fence_forget(engine.client, streams[3]), 0);
	kvt_test_equal(kvt_fence_forget(engine.client, streams[3]), -ENOENT);
	fence = record(&engine, engine.stream);
	kvt_test_equal(fence.slot, again.slot);
	kvt_test_equal(fence.value, again.value + 1);
	/* Streams that cannot have one. */
	kvt_test_equal(kvt_fence_record(engine.client, (void *)2, &fence), -EINVAL);
	observer = kvt_test_observe(&daemon_);
	kvt_test_equal(kvt_fence_record(observer, engine.stream, &fence), -EINVAL);
	kvt_client_close(observer, KVT_IDLE);
	/* The null stream, by both of its names. */
	kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0);
	kvt_test_equal(kvt_fence_forget(engine.client, engine.stream), 0);
	fence = record(&engine, NULL);
	again = record(&engine, (void *)1);
	kvt_test_equal(fence.slot, again.slot);
	for (uint32_t i = 0; i < KVT_FENCE_WORDS - 2; i++) {
		engine.driver.stream_synchronize(streams[i]);
		engine.driver.stream_destroy(streams[i]);
	}
	engine_close(&engine, false);
}

CUDA_TEST(the_environment_chooses_where_the_device_can)
{
	static struct engine engine;
	static const char *const traits[] = { "none", "no-stream-ops", "no-host-register" };

	setenv("KVTRUNK_FENCE", "write", 1);
	for (int i = 0; i < 3; i++) {
		setenv("KVT_STANDIN_TRAITS", traits[i], 1);
		engine_open(&engine, KVT_FENCE_BY_DEFAULT, "");
		commit_test(&engine);
		kvt_test_equal(kvt_fence_method(engine.client),
			       i == 0 ? KVT_FENCE_BY_WRITE : KVT_FENCE_BY_HOST);
		engine_close(&engine, false);
	}
}

/* A stream is in its own context, whichever is current; a null stream in the current one. */
CUDA_TEST(streams_of_several_devices_have_words_of_their_own)
{
	setenv("KVT_STANDIN_DEVICES", "2", 1);
	for (int method = KVT_FENCE_BY_HOST; method <= KVT_FENCE_BY_WRITE; method++) {
		static struct engine engine;
		struct kvt_fence here, there, null_here, null_there;
		void *context, *stream, *first;
		struct kvt_pool pool;

		engine_open(&engine, method, "devices = all\n");
		pool = cuda_test_map(engine.client, 1);
		kvt_test_equal(engine.driver.primary_retain(&context, 1), 0);
		kvt_test_equal(engine.driver.context_push(context), 0);
		kvt_test_equal(engine.driver.stream_create(&stream, 1), 0);
		cuda_test_gate(1);
		here = record(&engine, engine.stream);
		there = record(&engine, stream);
		null_there = record(&engine, NULL);
		kvt_test_equal(engine.driver.memory_upload((uint64_t)(uintptr_t)pool.base, &here,
							   8, stream), 0);
		kvt_test_equal(engine.driver.context_pop(&first), 0);
		null_here = record(&engine, NULL);
		kvt_test_check(here.slot != there.slot && null_here.slot != null_there.slot);
		kvt_test_check(null_here.slot != here.slot && null_there.slot != there.slot);
		there = record(&engine, stream); /* from the other device's context */
		cuda_test_gate(0);
		kvt_test_equal(kvt_fence_method(engine.client), method);
		kvt_test_equal(engine.driver.context_push(context), 0);
		kvt_test_equal(engine.driver.stream_synchronize(stream), 0);
		kvt_test_equal(*kvt_fence_word(engine.client, there.slot), there.value);
		kvt_test_equal(engine.driver.stream_destroy(stream), 0);
		kvt_test_equal(engine.driver.context_pop(&first), 0);
		kvt_test_equal(engine.driver.primary_release(1), 0);
		engine_close(&engine, false);
	}
}

/* This daemon looks at fences only once a second, so the test is slow unless host functions wake
 * it. */
CUDA_TEST(a_host_function_wakes_the_daemon)
{
	static struct engine engine;

	engine_open(&engine, KVT_FENCE_BY_HOST, "fence_poll_us = 1000000\n");
	for (int i = 0; i < 150; i++)
		free_test(&engine);
	engine_close(&engine, false);
}

/* ---- failures and ends */

static int segments_mapped(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[1024];
	int n = 0;

	while (file && fgets(line, sizeof(line), file))
		n += strstr(line, "kvtrunk-session") != NULL;
	if (file)
		fclose(file);
	return n;
}

CUDA_TEST(every_call_of_a_fence_fails_once)
{
	int *fail_at = cuda_test_knob("stub_fail_at");

	for (int method = KVT_FENCE_BY_HOST; method <= KVT_FENCE_BY_WRITE; method++)
		for (int n = 0, rc = -EIO; rc != 0 || n < 16; n++) {
			static struct engine engine;
			struct kvt_fence fence = { 99, 0 };
			int mapped = segments_mapped();

			kvt_test_check(n < 40);
			engine_open(&engine, method, "");
			*fail_at = n;
			rc = kvt_fence_record(engine.client, engine.stream, &fence);
			*fail_at = -1;
			kvt_test_equal(*cuda_test_knob("stub_pushed"), 1);
			kvt_test_equal(capture_mode(&engine.driver), KVT_CU_CAPTURE_MODE_GLOBAL);
			if (rc != 0) {
				kvt_test_equal(rc, -EIO);
				kvt_test_equal(fence.slot, 99);
				kvt_test_check(strlen(kvt_client_error(engine.client)->text) > 20);
				kvt_test_equal(kvt_fence_forget(engine.client, engine.stream),
					       -ENOENT); /* it got no word */
			}
			commit_test(&engine); /* and now it works */
			engine_close(&engine, false);
			kvt_test_equal(segments_mapped(), mapped);
		}
}

/* Every call of forgetting a stream, and of closing, fails once: nothing is left open. */
CUDA_TEST(every_call_of_giving_fences_back_fails_once)
{
	int *fail_at = cuda_test_knob("stub_fail_at");

	for (int method = KVT_FENCE_BY_HOST; method <= KVT_FENCE_BY_WRITE; method++)
		for (int n = 0; n < 12; n++) {
			static struct engine engine;
			struct kvt_fence fence;
			int mapped = segments_mapped(), rc;

			engine_open(&engine, method, "");
			kvt_test_equal(kvt_fence_record(engine.client, engine.stream, &fence), 0);
			kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0);
			*fail_at = n / 2;
			if (n % 2) {
				rc = kvt_fence_forget(engine.client, engine.stream);
				kvt_test_check(rc == 0 || rc == -EIO);
				*fail_at = rc == 0 ? -1 : *fail_at;
			}
			kvt_test_equal(kvt_client_close(engine.client, KVT_IDLE), 0);
			*fail_at = -1;
			kvt_test_equal(*cuda_test_knob("stub_pushed"), 1);
			kvt_test_equal(segments_mapped(), mapped + 1); /* the other client's */
			engine.client = kvt_test_connect(&daemon_);
			engine_close(&engine, false);
		}
}

CUDA_TEST(fences_may_come_after_the_client_is_gone)
{
	for (int method = KVT_FENCE_BY_HOST; method <= KVT_FENCE_BY_WRITE; method++) {
		static struct engine engine;
		struct kvt_client *client;
		struct kvt_fence fence = KVT_IDLE;
		int mapped, others[8];
		uint64_t count;

		engine_open(&engine, method, "");
		mapped = segments_mapped();
		client = connect_by(method);
		cuda_test_gate(1);
		for (int i = 0; i < 5; i++)
			kvt_test_equal(kvt_fence_record(client, engine.stream, &fence), 0);
		kvt_client_set_timeout(client, 20000000);
		kvt_test_equal(kvt_client_close(client, fence), -ETIMEDOUT);
		kvt_test_equal(segments_mapped(), mapped + 1);
		/* New owners of its descriptor numbers are neither rung nor closed. */
		for (int i = 0; i < 8; i++)
			others[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		cuda_test_gate(0);
		kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0);
		for (int i = 0; i < 8; i++) {
			kvt_test_check(read(others[i], &count, sizeof(count)) < 0 &&
				       errno == EAGAIN);
			kvt_test_equal(close(others[i]), 0);
		}
		/* The next client frees what a device writes to. */
		client = connect_by(method);
		kvt_test_equal(kvt_fence_record(client, engine.stream, &fence), 0);
		if (method == KVT_FENCE_BY_WRITE)
			kvt_test_equal(segments_mapped(), mapped + 1); /* its own */
		kvt_test_equal(kvt_client_close(client, fence), 0);
		kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0);
		if (method == KVT_FENCE_BY_HOST) /* its thread may be about to unmap it */
			while (segments_mapped() > mapped)
				sched_yield();
		kvt_test_equal(segments_mapped(), mapped);
		engine_close(&engine, false);
	}
}

/* An END whose fence is never reached; its client is killed. */
static void end_never(int pipe, void *context)
{
	struct kvt_request request = { .op = KVT_OP_END, .flags = KVT_F_COMMIT, .arg = N_KEYS,
				       .user_data = 1 };
	static struct engine engine;
	uint32_t pages[4];

	engine_enter(&engine, KVT_FENCE_BY_HOST);
	request.lease = begin(&engine, pages).lease;
	request.fence = write_pages(&engine, pages);
	submit_deferred(&engine, &request);
	kvt_test_send(pipe, kvt_client_info(engine.client)->session);
	kvt_test_expect(pipe, 0); /* never comes */
}

CUDA_TEST(a_fence_that_is_never_reached_ends_with_its_client)
{
	struct kvt_counters counters;
	struct kvt_test_child child;
	static struct engine engine;
	static uint32_t pages[4095];
	uint64_t session;

	start_daemon("mps = yes\nmps_grace_ms = 86400000\n");
	kvt_test_child_start(&child, end_never, NULL);
	session = kvt_test_word(child.pipe);
	engine_enter(&engine, KVT_FENCE_BY_HOST);
	kvt_test_equal(kvt_alloc(engine.client, 4092, pages), -ENOSPC); /* four are taken */
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.quarantined_pages, 4);
	kvt_test_equal(counters.cached_pages, 0);
	kvt_test_equal(counters.live_leases, 0);
	kvt_test_equal(matched_by_other(&engine), 0);
	kvt_test_equal(kvt_alloc(engine.client, 4092, pages), -ENOSPC);
	kvt_test_equal(kvt_alloc(engine.client, 4091, pages), 0);
	engine_close(&engine, false);
}

/* ---- groups */

/* Rank 1: receives four page numbers and writes its part of them into the slab of device 1. */
static void rank_run(int pipe, void *context)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_group_token token;
	static struct engine engine;
	struct kvt_fence fence;

	token.words[0] = kvt_test_word(pipe);
	token.words[1] = kvt_test_word(pipe);
	options.socket_path = daemon_.socket;
	options.group = &token;
	options.rank = 1;
	engine.driver = cuda_test_driver();
	kvt_test_equal(kvt_client_connect(&engine.client, &options, NULL), 0);
	engine.pool = cuda_test_map(engine.client, 1);
	kvt_test_equal(engine.pool.slab, 1);
	for (uint32_t i = 0; i < N_KEYS; i++)
		engine.keys[i] = 1000 + i;
	kvt_test_equal(engine.driver.stream_create(&engine.stream, 1), 0);
	kvt_test_send(pipe, 1);
	cuda_test_gate(1);
	for (uint32_t i = 0; i < 4; i++)
		write_page(&engine, engine.stream, (uint32_t)kvt_test_word(pipe), i);
	fence = record(&engine, engine.stream);
	kvt_test_send(pipe, (uint64_t)fence.slot << 32 | fence.value);
	kvt_test_expect(pipe, 2);
	cuda_test_gate(0);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_check(page_right(&engine, (uint32_t)kvt_test_word(pipe), i));
	kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0);
	kvt_test_equal(engine.driver.stream_destroy(engine.stream), 0);
	kvt_test_send(pipe, 3);
	kvt_test_expect(pipe, 4);
	kvt_client_close(engine.client, KVT_IDLE);
}

CUDA_TEST(a_group_s_fence_waits_for_the_streams_of_all_ranks)
{
	struct kvt_request request = { .op = KVT_OP_COMMIT, .arg = N_KEYS, .user_data = 1 };
	struct kvt_test_child child;
	static struct engine engine;
	struct kvt_group_token token;
	uint32_t pages[4];

	setenv("KVT_STANDIN_DEVICES", "2", 1);
	start_daemon("devices = all\n");
	kvt_test_child_start(&child, rank_run, NULL); /* a process that used CUDA cannot fork */
	engine_enter(&engine, KVT_FENCE_BY_HOST);
	kvt_test_equal(kvt_group_open(engine.client, 2, NULL, &token), 0);
	kvt_test_send(child.pipe, token.words[0]);
	kvt_test_send(child.pipe, token.words[1]);
	kvt_test_expect(child.pipe, 1);
	request.lease = begin(&engine, pages).lease;
	for (uint32_t i = 0; i < 4; i++) {
		write_page(&engine, engine.stream, pages[i], i);
		kvt_test_send(child.pipe, pages[i]);
	}
	request.fence = record(&engine, engine.stream);
	kvt_test_equal(engine.driver.stream_synchronize(engine.stream), 0); /* this rank's word is
									     * reached */
	kvt_test_expect(child.pipe, (uint64_t)request.fence.slot << 32 | request.fence.value);
	submit_deferred(&engine, &request);
	kvt_test_equal(matched_by_other(&engine), 0);
	kvt_test_send(child.pipe, 2);
	await_effect(&engine);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_send(child.pipe, pages[i]);
	kvt_test_expect(child.pipe, 3);
	kvt_test_equal(matched_by_other(&engine), N_KEYS);
	/* Members stop, rank 0 closes, members close. */
	kvt_test_equal(engine.driver.stream_destroy(engine.stream), 0);
	kvt_test_equal(kvt_client_close(engine.client, KVT_IDLE), 0);
	kvt_test_send(child.pipe, 4);
	kvt_test_child_finish(&child);
	kvt_test_equal(kvt_client_close(engine.other, KVT_IDLE), 0);
	kvt_test_daemon_end(&daemon_);
	kvt_test_equal(*cuda_test_knob("stub_open"), 1);
}

/* ---- lagging streams in several processes */

enum { ROUNDS = 150, N_STREAMS = 3 };

static void fill(struct kvt_cu_driver *driver, const struct kvt_pool *pool, uint32_t page,
		 const uint32_t *keys, uint32_t index, void *stream)
{
	static char content[4096];
	struct kvt_pool here = *pool;
	uint64_t bytes = kvt_test_page_bytes(pool);

	here.base = content;
	kvt_test_page_fill(&here, PAGE, 1, SALT, keys, index);
	kvt_test_equal(driver->memory_upload((uint64_t)(uintptr_t)kvt_page_address(pool, page),
					     content + bytes, bytes, stream), 0);
}

/* Page by page, each committed behind the stream without waiting: the stream writes into pages that
 * others' pages displace meanwhile. */
static void fill_ahead(struct kvt_client *client, struct kvt_cu_driver *driver,
		       const struct kvt_pool *pool, struct kvt_seq *seq, const uint32_t *keys,
		       void *stream)
{
	uint32_t at = kvt_seq_next(seq);
	struct kvt_fence fence;

	while (at < N_KEYS) {
		uint32_t page = kvt_seq_pages(seq, NULL)[at / PAGE], end = at + PAGE;

		fill(driver, pool, page, keys, at / PAGE, stream);
		kvt_test_equal(kvt_fence_record(client, stream, &fence), 0);
		kvt_test_equal(kvt_seq_commit_async(seq, end, NULL, 0, fence, KVT_F_CHUNKED), 0);
		kvt_test_check(kvt_seq_poll(seq) >= 0);
		at = kvt_seq_next(seq);
		kvt_test_check(at >= end);
	}
}

/* Serve prompts of few prefixes from a pool that is far too small, so that pages are reused fast.
 * Cached content must be right at once, and no late write may hit a page of another session. */
static void lagging_worker(int pipe, void *context)
{
	struct kvt_test_random random = { (uint64_t)(uintptr_t)context };
	struct kvt_client *client = connect_by((int)((uint64_t)(uintptr_t)context % 2) + 1);
	struct kvt_cu_driver driver = cuda_test_driver();
	struct kvt_pool pool = cuda_test_map(client, 0);
	uint32_t namespace_id = kvt_test_namespace(client, "n"), keys[N_KEYS], wrong = 0;
	void *streams[N_STREAMS];
	uint64_t reused = 0;

	for (int i = 0; i < N_STREAMS; i++)
		kvt_test_equal(driver.stream_create(&streams[i], 1), 0);
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 2);
	for (int round = 0; round < ROUNDS; round++) {
		void *stream = streams[kvt_test_random_below(&random, N_STREAMS)];
		uint32_t seed = kvt_test_random_below(&random, 12), n;
		struct kvt_fence fence;
		const uint32_t *pages;
		struct kvt_seq *seq;
		int rc;

		for (uint32_t i = 0; i < N_KEYS; i++)
			keys[i] = seed * 64 + i;
		client->begin_wait_ns = kvt_test_random_below(&random, 2) ? -1 : KVT_BEGIN_WAIT_NS;
		rc = kvt_seq_begin(client, namespace_id, keys, N_KEYS, 0, 0, &seq);
		if (rc == -ENOSPC || rc == -EAGAIN) {
			sched_yield();
			continue;
		}
		if (rc != 0)
			kvt_test_fail("begin: %s", kvt_client_error(client)->text);
		pages = kvt_seq_pages(seq, &n);
		for (uint32_t i = 0; i < kvt_seq_reusable(seq) / PAGE; i++)
			wrong += !kvt_test_page_right(&pool, PAGE, pages[i], SALT, keys, i);
		reused += kvt_seq_reusable(seq);
		if (round % 2)
			fill_ahead(client, &driver, &pool, seq, keys, stream);
		for (uint32_t i = kvt_seq_next(seq) / PAGE; i < 4; i++)
			fill(&driver, &pool, pages[i], keys, i, stream);
		kvt_test_equal(kvt_fence_record(client, stream, &fence), 0);
		if (kvt_test_random_below(&random, 4) == 0) { /* drop all */
			kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, fence, 0), 0);
			continue;
		}
		kvt_test_equal(kvt_seq_commit(seq, N_KEYS, NULL, 0, fence, 0), 0);
		pages = kvt_seq_pages(seq, &n);
		for (uint32_t i = 0; i < 4; i++)
			wrong += !kvt_test_page_right(&pool, PAGE, pages[i], SALT, keys, i);
		kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	}
	for (int i = 0; i < N_STREAMS; i++) {
		kvt_test_equal(driver.stream_synchronize(streams[i]), 0);
		kvt_test_equal(driver.stream_destroy(streams[i]), 0);
	}
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_send(pipe, wrong);
	kvt_test_send(pipe, reused);
}

CUDA_TEST(late_writes_hit_no_other_pages)
{
	struct kvt_test_child children[3];
	uint64_t reused = 0;

	setenv("KVT_STANDIN_LAG_US", "300", 1);
	kvt_test_daemon_begin(&daemon_, "backend = cuda-ipc\nn_pages = 33\nfence_poll_us = 50\n");
	for (uint64_t i = 0; i < 3; i++)
		kvt_test_child_start(&children[i], lagging_worker, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < 3; i++)
		kvt_test_expect(children[i].pipe, 1);
	for (int i = 0; i < 3; i++)
		kvt_test_send(children[i].pipe, 2);
	for (int i = 0; i < 3; i++) {
		kvt_test_expect(children[i].pipe, 0);
		reused += kvt_test_word(children[i].pipe);
		kvt_test_child_finish(&children[i]);
	}
	kvt_test_check(reused > 0);
	kvt_test_check(kvt_test_settled(&daemon_).evicted_pages > 100);
	kvt_test_daemon_end(&daemon_);
}

/* ---- captures: of other streams, see tests/whole/gpu/test_pool.c */

CUDA_TEST(no_fence_is_part_of_a_graph)
{
	static struct engine engine;
	struct capture capture = { .driver = &engine.driver };
	struct kvt_fence fence;

	engine_open(&engine, KVT_FENCE_BY_HOST, "");
	capture.memory = (uint64_t)(uintptr_t)engine.pool.base;
	kvt_test_equal(engine.driver.stream_create(&capture.stream, 0), 0);
	capture_begin(&capture);
	kvt_test_equal(kvt_fence_record(engine.client, capture.stream, &fence), -EBUSY);
	kvt_test_check(strstr(kvt_client_error(engine.client)->text, "captured"));
	kvt_test_equal(kvt_fence_record(engine.client, NULL, &fence), -EBUSY);
	kvt_test_check(strstr(kvt_client_error(engine.client)->text, "the null stream waits for"));
	kvt_test_equal(kvt_fence_record(engine.client, engine.stream, &fence), 0);
	capture_end(&capture);
	kvt_test_check(capture_is_whole(&capture));
	kvt_test_equal(kvt_fence_record(engine.client, capture.stream, &fence), 0);
	kvt_test_equal(kvt_fence_record(engine.client, NULL, &fence), 0);
	kvt_test_equal(engine.driver.stream_destroy(capture.stream), 0);
	engine_close(&engine, false);
}

int main(int argc, char **argv)
{
	cuda_test_environment(argv);
	return kvt_tests_run(argc, argv);
}
