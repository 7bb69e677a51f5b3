/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA contexts from open to close against the stand-in for the driver, which LD_LIBRARY_PATH must
 * name (tests/kernels/standin of the build). The three operations give the CPU's results,
 * every call of the driver may fail, and nothing stays open.
 *
 * Inputs: the call that fails, the stream that lags or is captured. Invariant: all or nothing is
 * written.
 */

#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvt_cuda.h"
#include "tests/lib/capture.h"
#include "tests/kernels/support.h"

static int *stub_fail_at, *stub_open, *stub_pushed, *stub_major, *stub_devices;
static void (*stub_gate)(int closed);

static bool stub_load(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library)
		return false;
	stub_fail_at = dlsym(library, "stub_fail_at");
	stub_open = dlsym(library, "stub_open");
	stub_pushed = dlsym(library, "stub_pushed");
	stub_major = dlsym(library, "stub_major");
	stub_devices = dlsym(library, "stub_devices");
	*(void **)&stub_gate = dlsym(library, "standin_gate");
	return stub_fail_at && stub_open && stub_pushed && stub_major && stub_devices &&
	       stub_gate;
}

static int cuda_open(struct kvt_attn_context **ret_context, char *text, size_t bytes)
{
	struct kvt_attn_options options = { .device = KVT_ATTN_CUDA };

	return kvt_attn_open(&options, ret_context, text, bytes);
}

/* Work of one round: append positions, copy a page, compute attention over both. */
struct round {
	struct pool pool;
	struct rows rows;
	struct text text;
	uint64_t slots[24];
	struct kvt_attn_append append;
	struct kvt_attn_copy copy;
	struct kvt_attn_sequence sequence;
	struct kvt_attn_prefill prefill;
	struct guarded k;
	struct guarded v;
};

static struct round round_make(void)
{
	struct pool_options options = { .n_pages = 12,
					.page_size = 8,
					.n_kv_heads = 2,
					.head_dim = 64,
					.type = KVT_ATTN_BF16,
					.seed = 3 };
	struct round round = { .pool = pool_make(&options),
			       .k = guarded_alloc(24 * 2 * 64 * 4),
			       .v = guarded_alloc(24 * 2 * 64 * 4) };

	round.text = text_make(&round.pool, 1, 32);
	round.rows = rows_make(24, 4, 64, KVT_ATTN_BF16, KVT_ATTN_F32);
	rows_fill(&round.rows, 0, 1, 8, 24);
	for (uint32_t i = 0; i < 24 * 2 * 64; i++) {
		((float *)round.k.data)[i] = text_value(5, 0, i / 128, i / 64 % 2, i % 64);
		((float *)round.v.data)[i] = text_value(5, 1, i / 128, i / 64 % 2, i % 64);
	}
	return round;
}

/* Pointers inside a round point to itself: set them once it stays at one place. */
static void round_link(struct round *round)
{
	for (uint32_t i = 0; i < 24; i++)
		round->slots[i] = (uint64_t)round->text.pages[1 + i / 8] * 8 + i % 8;
	round->append = (struct kvt_attn_append){ .kv = round->pool.view,
						  .n_positions = 24,
						  .type = KVT_ATTN_F32,
						  .k = round->k.data,
						  .v = round->v.data,
						  .slots = round->slots };
	/* The first page becomes a copy of the second, but for its last positions. */
	round->copy = (struct kvt_attn_copy){ round->text.pages[1], round->text.pages[0], 5 };
	round->sequence = (struct kvt_attn_sequence){
		.n_queries = 24, .n_positions = 32, .pages = round->text.pages, .n_pages = 4
	};
	round->prefill = (struct kvt_attn_prefill){ .kv = round->pool.view,
						    .sequences = &round->sequence,
						    .n_sequences = 1,
						    .n_q_heads = 4,
						    .q = round->rows.q.data,
						    .out = round->rows.out.data,
						    .q_type = KVT_ATTN_BF16,
						    .out_type = KVT_ATTN_F32,
						    .scale = 0.125f };
}

static int round_run_on(struct kvt_attn_context *context, struct round *round, void *stream)
{
	int r = kvt_attn_kv_append(context, &round->append, stream);

	if (!r)
		r = kvt_attn_page_copy(context, &round->pool.view, 1, &round->copy, 1, stream);
	if (!r)
		r = kvt_attn_append_prefill(context, &round->prefill, stream);
	return r;
}

static int round_run(struct kvt_attn_context *context, struct round *round)
{
	return round_run_on(context, round, NULL);
}

static void round_free(struct round *round)
{
	text_free(&round->text);
	rows_free(&round->rows);
	pool_free(&round->pool);
	guarded_free(&round->k);
	guarded_free(&round->v);
}

static void rounds_compare(const struct round *a, const struct round *b)
{
	const float *x = a->rows.out.data, *y = b->rows.out.data;

	EXPECT(memcmp(a->pool.slab.data, b->pool.slab.data, a->pool.slab.bytes) == 0);
	for (uint32_t i = 0; i < 24 * 4 * 64; i++) {
		if (!(fabsf(x[i] - y[i]) < 0.02f))
			case_fail(__FILE__, __LINE__, "element %u is %g, not %g", i, (double)x[i],
				  (double)y[i]);
	}
}

static void round_test(void)
{
	struct kvt_attn_context *cuda = NULL, *cpu = context_for(KVT_ATTN_ISA_PORTABLE, 1, 0);
	OWNED(round) on_cuda = round_make(), on_cpu = round_make();
	char text[256] = "";

	case_begin("driver: the operations do as on the CPU");
	round_link(&on_cuda);
	round_link(&on_cpu);
	if (cuda_open(&cuda, text, sizeof text)) {
		case_fail(__FILE__, __LINE__, "%s", text);
	} else {
		EXPECT(strcmp(kvt_attn_describe(cuda), "cuda 0, sm_90: sm_90a binary, mma.sync") ==
		       0);
		EXPECT_EQUAL(kvt_attn_context_isa(cuda), KVT_ATTN_ISA_AUTO);
		EXPECT_EQUAL(round_run(cuda, &on_cuda), 0);
		EXPECT_EQUAL(round_run(cpu, &on_cpu), 0);
		rounds_compare(&on_cuda, &on_cpu);
		EXPECT_EQUAL(round_run(cuda, &on_cuda), 0);
		rounds_compare(&on_cuda, &on_cpu);
		kvt_attn_close(cuda);
	}
	EXPECT_EQUAL(*stub_open, 0);
	EXPECT_EQUAL(*stub_pushed, 0);
	kvt_attn_close(cpu);
}

/*
 * The caller's rounding mode influences neither what the host computes for the device, such as the
 * product of the scales, nor the device.
 */
static void rounding_test(void)
{
	struct kvt_attn_context *context = NULL;
	OWNED(round) expected = round_make(), round = round_make();

	case_begin("driver: caller's rounding mode");
	round_link(&expected);
	round_link(&round);
	expected.prefill.scale = round.prefill.scale = 0.1f;
	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	EXPECT_EQUAL(round_run(context, &expected), 0);
	fesetround(FE_UPWARD);
	EXPECT_EQUAL(round_run(context, &round), 0);
	EXPECT_EQUAL(fegetround(), FE_UPWARD);
	fesetround(FE_TONEAREST);
	EXPECT(memcmp(expected.pool.slab.data, round.pool.slab.data, round.pool.slab.bytes) == 0);
	EXPECT(memcmp(expected.rows.out.data, round.rows.out.data, round.rows.out.bytes) == 0);
	kvt_attn_close(context);
}

/* The n-th call fails, for every n until none does. */
static void failures_test(void)
{
	uint32_t n_failures = 0;
	struct kvt_cu_driver driver;
	const char *missing;

	case_begin("driver: every call fails once");
	EXPECT(!kvt_cu_load(&driver, &missing) && !driver.init(0));
	for (int n = 0; n < 200; n++) {
		struct kvt_attn_context *context = NULL;
		OWNED(round) round = round_make();
		char text[256] = "";
		bool did_fail;
		int r;

		round_link(&round);
		*stub_fail_at = n;
		r = cuda_open(&context, text, sizeof text);
		did_fail = *stub_fail_at < 0;
		if (!r) {
			r = round_run(context, &round);
			if (r)
				snprintf(text, sizeof text, "%s", kvt_attn_error_text(context));
			did_fail = *stub_fail_at < 0;
			*stub_fail_at = -1;
			/* What failed can be repeated. */
			EXPECT_EQUAL(round_run(context, &round), 0);
			kvt_attn_close(context);
		}
		EXPECT_EQUAL(*stub_open, 0);
		EXPECT_EQUAL(*stub_pushed, 0);
		EXPECT_EQUAL(capture_mode(&driver), KVT_CU_CAPTURE_MODE_GLOBAL);
		if (!did_fail)
			break;
		if (!r) /* restoring the thread's mode is tried twice */
			continue;
		if ((r != -EIO && r != -ENOMEM) || strlen(text) < 20)
			case_fail(__FILE__, __LINE__, "call %d: %d, \"%s\"", n, r, text);
		n_failures++;
	}
	*stub_fail_at = -1;
	/* Opening alone makes eleven calls, and each operation at least five. */
	EXPECT(n_failures >= 26 && n_failures < 200);
}

/* An engine's driver, primary context, stream and memory. */
struct engine {
	struct kvt_cu_driver driver;
	struct capture capture;
	uint64_t memory;
	void *stream; /* not the captured one */
};

static void engine_open(struct engine *engine)
{
	struct kvt_cu_driver *driver = &engine->driver;
	const char *missing;

	*engine = (struct engine){ .memory = 0 };
	EXPECT(!kvt_cu_load(driver, &missing) && !driver->init(0) &&
	       !driver->primary_retain(&engine->capture.context, 0) &&
	       !driver->context_push(engine->capture.context) &&
	       !driver->stream_create(&engine->stream, KVT_CU_STREAM_NON_BLOCKING) &&
	       !driver->stream_create(&engine->capture.stream, 0) &&
	       !driver->memory_alloc(&engine->memory, 4096));
	engine->capture.driver = driver;
	engine->capture.memory = engine->memory;
}

static void engine_close(struct engine *engine)
{
	struct kvt_cu_driver *driver = &engine->driver;

	driver->stream_synchronize(engine->stream);
	driver->stream_destroy(engine->stream);
	driver->stream_destroy(engine->capture.stream);
	driver->memory_free(engine->memory);
	driver->context_pop(&(void *){ NULL });
	driver->primary_release(0);
	EXPECT_EQUAL(*stub_open, 0);
	EXPECT_EQUAL(*stub_pushed, 0);
}

/* Whether a stream is being captured is found out before queueing on it, and without ending the
 * capture. */
static void capture_test(void)
{
	struct kvt_attn_context *context = NULL;
	OWNED(round) round = round_make();
	struct engine engine;

	case_begin("driver: a stream that is being captured is refused");
	round_link(&round);
	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	engine_open(&engine);
	capture_begin(&engine.capture);
	EXPECT_EQUAL(kvt_attn_kv_append(context, &round.append, engine.capture.stream), -EBUSY);
	EXPECT_EQUAL(kvt_attn_page_copy(context, &round.pool.view, 1, &round.copy, 1, NULL),
		     -EBUSY);
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &round.prefill, engine.capture.stream),
		     -EBUSY);
	EXPECT(strstr(kvt_attn_error_text(context), "captured into a graph"));
	capture_end(&engine.capture);
	EXPECT(capture_is_whole(&engine.capture));
	EXPECT_EQUAL(round_run_on(context, &round, engine.capture.stream), 0);
	engine.driver.stream_synchronize(engine.capture.stream);
	kvt_attn_close(context);
	engine_close(&engine);
}

static void open_expect(int error, const char *word)
{
	struct kvt_attn_context *context = NULL;
	char text[256] = "";

	EXPECT_EQUAL(cuda_open(&context, text, sizeof text), error);
	if (!strstr(text, word))
		case_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, word);
	kvt_attn_close(context);
	EXPECT_EQUAL(*stub_open, 0);
}

static void devices_test(void)
{
	struct kvt_attn_context *context = NULL;
	OWNED(round) round = round_make();

	case_begin("driver: devices that are not there, or too old");
	*stub_devices = 0;
	open_expect(-ENODEV, "no device");
	*stub_devices = 1;
	*stub_major = 7;
	open_expect(-ENOTSUP, "7.0");

	*stub_major = 9;
	case_begin("driver: a driver that is too old for the kernels");
	setenv("KVT_STANDIN_FAIL_CALL", "cuModuleLoadData", 1);
	setenv("KVT_STANDIN_FAIL_ERROR", "222", 1);
	*stub_fail_at = 0;
	open_expect(-EIO, "older than the nvcc");
	*stub_fail_at = -1;
	unsetenv("KVT_STANDIN_FAIL_CALL");
	unsetenv("KVT_STANDIN_FAIL_ERROR");

	round_link(&round);
	case_begin("driver: the binary for each device, in as much shared memory as it has");
	*stub_major = 8;
	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	EXPECT(strstr(kvt_attn_describe(context), "sm_80 binary"));
	EXPECT_EQUAL(round_run(context, &round), 0);
	kvt_attn_close(context);
	*stub_major = 12;
	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	EXPECT(strstr(kvt_attn_describe(context), "PTX"));
	EXPECT_EQUAL(round_run(context, &round), 0);
	kvt_attn_close(context);
	*stub_major = 9;
}

/* Queries, KV and results may each have another type, on the device as on the CPU. */
static void types_test(void)
{
	static const uint32_t types[][2] = { { KVT_ATTN_F32, KVT_ATTN_F32 },
					     { KVT_ATTN_F32, KVT_ATTN_BF16 },
					     { KVT_ATTN_F16, KVT_ATTN_BF16 } };
	struct kvt_attn_context *context = NULL, *cpu = context_for(KVT_ATTN_ISA_PORTABLE, 1, 0);
	struct rows rows[3], expected[3];

	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	for (uint32_t i = 0; i < 3; i++) {
		OWNED(round) round = round_make();

		case_begin("driver: %s queries, %s results, bf16 KV", type_name(types[i][0]),
			   type_name(types[i][1]));
		round_link(&round);
		rows[i] = rows_make(24, 4, 64, types[i][0], types[i][1]);
		expected[i] = rows_make(24, 4, 64, types[i][0], types[i][1]);
		rows_fill(&rows[i], 0, 1, 8, 24);
		round.prefill.q = rows[i].q.data;
		round.prefill.q_type = types[i][0];
		round.prefill.out_type = types[i][1];
		round.prefill.out = rows[i].out.data;
		EXPECT_EQUAL(round_run(context, &round), 0);
		round.prefill.out = expected[i].out.data;
		EXPECT_EQUAL(round_run(cpu, &round), 0);
		for (uint32_t j = 0; j < 24 * 4 * 64; j++) {
			size_t at = j * type_bytes(types[i][1]);
			double a = element_read((char *)rows[i].out.data + at, types[i][1]);
			double b = element_read((char *)expected[i].out.data + at, types[i][1]);

			if (!(fabs(a - b) <= (types[i][1] == KVT_ATTN_F32 ? 1e-5 : 0.02)))
				case_fail(__FILE__, __LINE__, "element %u is %g, not %g", j, a, b);
		}
		rows_free(&rows[i]);
		rows_free(&expected[i]);
	}
	kvt_attn_close(context);
	kvt_attn_close(cpu);
}

/* Positions of one type into pages of another, in any layout, then page copies: as on the CPU. */
static void pages_test(struct kvt_attn_context *cuda, struct kvt_attn_context *cpu, uint32_t from,
		       uint32_t to)
{
	struct pool_options options = { .n_pages = 9,
					.page_size = 8,
					.n_kv_heads = 3,
					.head_dim = 20,
					.type = to,
					.layout = (from + to) & 1,
					.order = from & 1,
					.seed = 3 };
	static const struct kvt_attn_copy copies[] = { { 1, 7, 5 }, { 2, 8, 8 }, { 3, 6, 1 } };
	static const uint32_t signaling[] = { 0x7f800001, 0x7c01, 0x7f81 };
	struct pool pools[2] = { pool_make(&options), pool_make(&options) };
	OWNED(guarded) k = guarded_alloc(30 * 60 * type_bytes(from));
	OWNED(guarded) v = guarded_alloc(30 * 60 * type_bytes(from));
	uint64_t slots[30];

	case_begin("driver: pages: %s to %s", type_name(from), type_name(to));
	for (uint32_t i = 0; i < 30; i++)
		slots[i] = i % 7 == 3 ? KVT_ATTN_NO_SLOT : 8 + i * 11 % 32;
	for (uint32_t i = 0; i < 30 * 60; i++) {
		/* Some are too large for fp8, one is NaN or infinite. */
		double value = i == 77 ? NAN : (i % 13 ? 3.0 : 3000.0) * text_value(1, 0, i, 0, 0);

		element_write((char *)k.data + i * type_bytes(from), from, value);
		element_write((char *)v.data + i * type_bytes(from), from, -0.7 * value);
	}
	/* One is a signaling NaN, whose bits a copy keeps. */
	memcpy((char *)k.data + 78 * type_bytes(from), &signaling[from], type_bytes(from));
	for (uint32_t i = 0; i < 2; i++) {
		struct kvt_attn_append append = { .kv = pools[i].view,
						  .n_positions = 30,
						  .type = from,
						  .k = k.data,
						  .v = v.data,
						  .slots = slots };

		EXPECT_EQUAL(kvt_attn_kv_append(i ? cpu : cuda, &append, NULL), 0);
		EXPECT_EQUAL(kvt_attn_page_copy(i ? cpu : cuda, &pools[i].view, 1, copies, 3, NULL),
			     0);
	}
	EXPECT(memcmp(pools[0].slab.data, pools[1].slab.data, pools[0].slab.bytes) == 0);
	pool_free(&pools[0]);
	pool_free(&pools[1]);
}

static void pages_tests(void)
{
	struct kvt_attn_context *cuda = NULL, *cpu = context_for(KVT_ATTN_ISA_PORTABLE, 1, 0);

	EXPECT_EQUAL(cuda_open(&cuda, NULL, 0), 0);
	for (uint32_t from = 0; from <= KVT_ATTN_BF16; from++) {
		for (uint32_t to = 0; to <= KVT_ATTN_F8_E4M3; to++)
			pages_test(cuda, cpu, from, to);
	}
	kvt_attn_close(cuda);
	kvt_attn_close(cpu);
}

/*
 * Calls queued on a stream that stands still: the caller continues, may reuse its arrays at once,
 * and all are done when the stream moves. Calls beyond the staging memory wait until the stream
 * moves.
 */
static void queued_test(void)
{
	struct kvt_attn_context *context = NULL, *cpu = context_for(KVT_ATTN_ISA_PORTABLE, 1, 0);
	OWNED(round) on_cuda = round_make(), on_cpu = round_make();
	void *primary = NULL, *stream = NULL;
	static struct kvt_cu_driver driver;
	const char *missing;

	case_begin("driver: calls are queued, not waited for");
	round_link(&on_cuda);
	round_link(&on_cpu);
	EXPECT_EQUAL(cuda_open(&context, NULL, 0), 0);
	EXPECT_EQUAL(kvt_cu_load(&driver, &missing), 0);
	EXPECT_EQUAL(driver.primary_retain(&primary, 0), 0);
	EXPECT_EQUAL(driver.context_push(primary), 0);
	EXPECT_EQUAL(driver.stream_create(&stream, 1), 0);
	/* Growing memory waits, so the first round is not queued. */
	EXPECT_EQUAL(round_run_on(context, &on_cuda, stream), 0);
	EXPECT_EQUAL(driver.stream_synchronize(stream), 0);
	stub_gate(1);
	memset(on_cuda.rows.out.data, 0xff, on_cuda.rows.out.bytes);
	EXPECT_EQUAL(round_run_on(context, &on_cuda, stream), 0);
	memset(on_cuda.slots, 0xff, sizeof on_cuda.slots);
	on_cuda.sequence.n_queries = 1;
	stub_gate(0);
	EXPECT_EQUAL(driver.stream_synchronize(stream), 0);
	EXPECT_EQUAL(round_run(cpu, &on_cpu), 0);
	rounds_compare(&on_cuda, &on_cpu);
	memset(on_cuda.rows.out.data, 0xff, on_cuda.rows.out.bytes);
	round_link(&on_cuda);
	for (int i = 0; i < 10; i++)
		EXPECT_EQUAL(round_run_on(context, &on_cuda, stream), 0);
	EXPECT_EQUAL(driver.stream_synchronize(stream), 0);
	rounds_compare(&on_cuda, &on_cpu);
	kvt_attn_close(context);
	EXPECT_EQUAL(driver.stream_destroy(stream), 0);
	driver.context_pop(&primary);
	driver.primary_release(0);
	EXPECT_EQUAL(*stub_open, 0);
	kvt_attn_close(cpu);
}

int main(void)
{
	struct kvt_attn_context *context = NULL;
	char text[256] = "";

	if (!stub_load()) {
		printf("skip: LD_LIBRARY_PATH does not lead to the stub of the driver\n");
		return 77;
	}
	if (cuda_open(&context, text, sizeof text) == -ENOTSUP) {
		printf("skip: %s\n", text);
		return 77;
	}
	kvt_attn_close(context);
	round_test();
	rounding_test();
	failures_test();
	capture_test();
	devices_test();
	types_test();
	pages_tests();
	queued_test();
	return cases_end();
}
