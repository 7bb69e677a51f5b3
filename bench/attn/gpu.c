/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on a CUDA device, beside the device's peak at the same time: a loop of matrix products
 * (mma.sync) that waits for nothing, and a read and a copy of device memory. All times are between
 * two events on the stream. Each repetition measures the floor before and after the kernel, and is
 * dropped if the two differ by more than a tenth.
 *
 * The cost of paging is the ratio of two figures of one repetition: pages in random order, and the
 * same positions in one contiguous tensor, which the same kernel reads through an ascending page
 * table.
 *
 * Inputs: the options. Invariant: a figure is never printed without its floors. Caller: main.c.
 */

#include "bench/attn/gpu.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/attn/floor.h"
#include "bench/attn/gpu_args.h"
#include "kvt_cuda.h"
#include "kvt_kernels.h"

#define Q_HEADS 32
#define KV_HEADS 8
#define HEAD_DIM 128
#define REPETITIONS_MAX 64
#define BATCH_MAX 64
#define THREADS 128

/* The floors' kernels as PTX, which the driver compiles for the device. */
#ifdef KVT_CUDA_IMAGES
__asm__(".pushsection .rodata\n\t.balign 64\nbench_gpu_image:\n\t.incbin \"" KVT_CUDA_IMAGES
	"/bench.ptx\"\n\t.byte 0\n\t.popsection");
extern const char bench_gpu_image[] __attribute__((visibility("hidden")));
static const char *const floors_image = bench_gpu_image;
#else
static const char *const floors_image = NULL;
#endif

static struct kvt_cu_driver driver;

/* The benchmark has nothing to save when the device fails. */
#define DO(call)                                                                                   \
	do {                                                                                       \
		int error_ = driver.call;                                                          \
		if (error_)                                                                        \
			errx(1, "the CUDA driver failed in %s: %s (%d)", #call,                    \
			     kvt_cu_text(&driver, error_), error_);                                \
	} while (0)

static struct {
	const struct gpu_options *options;
	struct kvt_attn_context *context;
	void *primary;
	void *module;
	void *peaks[2];
	void *read;
	void *fill;
	void *begin;
	void *end;
	uint32_t n_multiprocessors;
	char name[128];
	/* The memory for reads and copies. */
	uint64_t memory;
	size_t memory_bytes;
} gpu;

/* One figure. Sizes are those of one sequence. */
struct gpu_case {
	const char *name;
	uint32_t n_queries;
	uint32_t n_cached;
	uint32_t n_sequences;
	uint32_t page_size;
	uint32_t q_type;
	uint32_t kv_type;
	double aim; /* TFLOP/s, or TB/s for decode; 0: none */
	double aim_h200; /* where it differs there */
	double loss_aim; /* of paging; 0: not compared with contiguous KV */
};

/* A batch on the device: pages in random order, or all of a head in one piece. */
struct gpu_batch {
	struct kvt_attn_view view;
	struct kvt_attn_sequence sequences[BATCH_MAX];
	struct kvt_attn_prefill prefill;
	uint32_t *pages;
	uint64_t kv;
	size_t kv_bytes;
	uint64_t q;
	uint64_t out;
};

struct gpu_repetition {
	double seconds;
	double rate; /* TFLOP/s or TB/s */
	double floor;
	double loss; /* of paging, as a fraction */
};

static void driver_load(void)
{
	const char *missing;

	if (kvt_cu_load(&driver, &missing))
		errx(1, "libcuda.so.1 has no %s", missing ? missing : "place on this machine");
}

static void kernel_launch(void *function, uint32_t grid, const struct bench_gpu_args *args)
{
	void *arguments[] = { (void *)(uintptr_t)args };

	DO(launch(function, grid, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
}

static void memory_fill(uint64_t memory, size_t bytes, uint32_t type)
{
	struct bench_gpu_args args = { memory, bytes, 0, type };

	kernel_launch(gpu.fill, gpu.options->small ? 4 : gpu.n_multiprocessors * 16, &args);
}

/* Seconds of device time between two events around work. */
static double seconds_end(void)
{
	float ms = 0;

	DO(event_record(gpu.end, NULL));
	DO(event_synchronize(gpu.end));
	DO(event_elapsed(&ms, gpu.begin, gpu.end));
	return (double)ms * 1e-3;
}

static void seconds_begin(void)
{
	DO(event_record(gpu.begin, NULL));
}

/* Floors: the best of several loops. */

static double floor_tflops(void)
{
	uint32_t n_rounds = gpu.options->small ? 2 : 4000;
	double best = 0;

	for (uint32_t i = 0; i < 8; i++) {
		uint32_t n_chains = i % 2 ? 8 : 4;
		uint32_t grid = gpu.options->small ? 2 : gpu.n_multiprocessors * (2u << i / 2);
		struct bench_gpu_args args = { gpu.memory, 0, n_rounds, 0 };
		double work = 16.0 * 8 * 16 * 2 * n_chains * n_rounds * (THREADS / 32) * grid;
		double rate;

		seconds_begin();
		kernel_launch(gpu.peaks[i % 2], grid, &args);
		rate = work / seconds_end() * 1e-12;
		best = rate > best ? rate : best;
	}
	return best;
}

/* Measure bytes read, or read and written by the driver's own copy: the faster of both. */
static double floor_tbytes(double *ret_copy)
{
	struct bench_gpu_args args = { gpu.memory, gpu.memory_bytes, 0, 0 };
	size_t half = gpu.memory_bytes / 2;
	double best = 0, rate;

	for (uint32_t i = 0; i < 4; i++) {
		seconds_begin();
		kernel_launch(gpu.read, gpu.options->small ? 2 : gpu.n_multiprocessors * (4u << i),
			      &args);
		rate = (double)gpu.memory_bytes / seconds_end() * 1e-12;
		best = rate > best ? rate : best;
	}
	seconds_begin();
	DO(memory_copy(gpu.memory, gpu.memory + half, half, NULL));
	*ret_copy = 2.0 * (double)half / seconds_end() * 1e-12;
	return best;
}

/* Batches */

static uint32_t pages_of(const struct gpu_case *c)
{
	return (c->n_cached + c->n_queries - 1) / c->page_size + 1;
}

static size_t rows_bytes(const struct gpu_case *c)
{
	return (size_t)c->n_sequences * c->n_queries * Q_HEADS * HEAD_DIM *
	       (size_t)kvt_attn_type_bytes(c->q_type);
}

static size_t kv_bytes(const struct gpu_case *c)
{
	return (size_t)pages_of(c) * c->n_sequences * c->page_size * KV_HEADS * HEAD_DIM *
	       (size_t)kvt_attn_type_bytes(c->kv_type) * 2;
}

/* Number the pages. Those of all sequences are in random order, spread over the pool. */
static void pages_order(uint32_t *pages, uint32_t n, bool contiguous)
{
	for (uint32_t i = 0; i < n; i++)
		pages[i] = i;
	for (uint32_t i = n - 1; !contiguous && i; i--) {
		uint32_t j = random_next() % (i + 1), page = pages[i];

		pages[i] = pages[j];
		pages[j] = page;
	}
}

static void view_make(struct gpu_batch *batch, const struct gpu_case *c, bool contiguous)
{
	uint64_t position = HEAD_DIM * (uint64_t)kvt_attn_type_bytes(c->kv_type);
	uint64_t page = position * c->page_size;
	uint32_t n_pages = pages_of(c) * c->n_sequences;

	batch->view = (struct kvt_attn_view){
		.k = (void *)(uintptr_t)batch->kv,
		.v = (void *)(uintptr_t)(batch->kv + batch->kv_bytes / 2),
		.position_stride_bytes = position,
		/* Contiguous: all positions of a head follow each other. Else HND pages. */
		.head_stride_bytes = contiguous ? page * n_pages : page,
		.page_stride_bytes = contiguous ? page : page * KV_HEADS,
		.n_pages = n_pages,
		.page_size = c->page_size,
		.n_kv_heads = KV_HEADS,
		.head_dim = HEAD_DIM,
		.type = c->kv_type,
		.k_scale = 1,
		.v_scale = 1,
	};
}

static void batch_make(struct gpu_batch *batch, const struct gpu_case *c, bool contiguous)
{
	uint32_t n_pages = pages_of(c);

	batch->kv_bytes = kv_bytes(c);
	batch->pages = calloc((size_t)n_pages * c->n_sequences, sizeof *batch->pages);
	if (!batch->pages)
		err(1, "no memory");
	pages_order(batch->pages, n_pages * c->n_sequences, contiguous);
	DO(memory_alloc(&batch->kv, batch->kv_bytes));
	DO(memory_alloc(&batch->q, rows_bytes(c)));
	DO(memory_alloc(&batch->out, rows_bytes(c)));
	memory_fill(batch->kv, batch->kv_bytes, c->kv_type);
	memory_fill(batch->q, rows_bytes(c), c->q_type);
	view_make(batch, c, contiguous);
	for (uint32_t i = 0; i < c->n_sequences; i++)
		batch->sequences[i] = (struct kvt_attn_sequence){
			.n_queries = c->n_queries,
			.n_positions = c->n_queries + c->n_cached,
			.pages = batch->pages + (size_t)i * n_pages,
			.n_pages = n_pages,
		};
	batch->prefill = (struct kvt_attn_prefill){
		.kv = batch->view,
		.sequences = batch->sequences,
		.n_sequences = c->n_sequences,
		.n_q_heads = Q_HEADS,
		.q = (const void *)(uintptr_t)batch->q,
		.out = (void *)(uintptr_t)batch->out,
		.q_type = c->q_type,
		.out_type = c->q_type,
		.scale = 0.0883883476f,
	};
}

static void batch_free(struct gpu_batch *batch)
{
	DO(memory_free(batch->kv));
	DO(memory_free(batch->q));
	DO(memory_free(batch->out));
	free(batch->pages);
}

static double operations(const struct gpu_case *c)
{
	double q = c->n_queries, n = c->n_cached;

	return 4.0 * HEAD_DIM * Q_HEADS * (q * n + q * (q + 1) / 2) * c->n_sequences;
}

static double bytes_read(const struct gpu_case *c)
{
	return 2.0 * HEAD_DIM * KV_HEADS * kvt_attn_type_bytes(c->kv_type) *
	       ((double)c->n_cached + c->n_queries) * c->n_sequences;
}

/* Measure the device time of one call. The first call after a pause would include host work. */
static double batch_seconds(const struct gpu_batch *batch, uint32_t n_calls)
{
	seconds_begin();
	for (uint32_t i = 0; i < n_calls; i++) {
		if (kvt_attn_append_prefill(gpu.context, &batch->prefill, NULL))
			errx(1, "%s", kvt_attn_error_text(gpu.context));
	}
	return seconds_end() / n_calls;
}

/* Measuring */

static bool is_decode(const struct gpu_case *c)
{
	return c->n_queries == 1;
}

static double case_floor(const struct gpu_case *c)
{
	double copy;

	return is_decode(c) ? floor_tbytes(&copy) : floor_tflops();
}

/* Return how many calls take about 20 ms, so that the first launch does not count. */
static uint32_t calls_for(const struct gpu_batch *batch)
{
	double once;

	if (gpu.options->small)
		return 1;
	batch_seconds(batch, 1); /* allocate partial results, load kernels */
	once = batch_seconds(batch, 2);
	return once > 0.02 ? 1 : once > 0.0002 ? (uint32_t)(0.02 / once) : 100;
}

static uint32_t case_repeat(const struct gpu_case *c, struct gpu_repetition *repetitions)
{
	struct gpu_batch *paged = calloc(2, sizeof *paged), *contiguous = paged + 1;
	double work = is_decode(c) ? bytes_read(c) : operations(c);
	uint32_t n_kept = 0, n_calls;

	if (!paged)
		err(1, "no memory");
	batch_make(paged, c, false);
	if (c->loss_aim > 0)
		batch_make(contiguous, c, true);
	n_calls = calls_for(paged);
	for (uint32_t i = 0; i < gpu.options->n_repetitions; i++) {
		double before = case_floor(c), seconds = batch_seconds(paged, n_calls);
		double other = c->loss_aim > 0 ? batch_seconds(contiguous, n_calls) : seconds;
		double after = case_floor(c), high = before > after ? before : after;
		double low = before > after ? after : before;

		if (high > low * 1.1 && !gpu.options->small)
			continue;
		repetitions[n_kept++] = (struct gpu_repetition){ seconds, work / seconds * 1e-12,
								 high, 1 - other / seconds };
	}
	batch_free(paged);
	if (c->loss_aim > 0)
		batch_free(contiguous);
	free(paged);
	return n_kept;
}

static int repetition_compare(const void *a, const void *b)
{
	const struct gpu_repetition *x = a, *y = b;
	double fx = x->rate / x->floor, fy = y->rate / y->floor;

	return fx < fy ? -1 : fx > fy;
}

static const char *type_text(uint32_t type)
{
	static const char *const names[] = { "fp32", "fp16", "bf16", "fp8" };

	return names[type];
}

static void case_begin(const struct gpu_case *c, uint32_t n_kept)
{
	printf("{\"name\": \"gpu %s\", \"device\": \"%s\", \"binary\": \"%s\", \"q\": %u, "
	       "\"k\": %u, \"batch\": %u, \"page_size\": %u, \"type\": \"%s\", "
	       "\"kv_type\": \"%s\", \"repetitions\": %u, \"dropped\": %u%s",
	       c->name, gpu.name, kvt_attn_describe(gpu.context), c->n_queries,
	       c->n_queries + c->n_cached, c->n_sequences, c->page_size, type_text(c->q_type),
	       type_text(c->kv_type), n_kept, gpu.options->n_repetitions - n_kept,
	       gpu.options->small ? ", \"emulated\": true" : "");
}

static void case_print(const struct gpu_case *c, struct gpu_repetition *repetitions,
		       uint32_t n_kept)
{
	const char *unit = is_decode(c) ? "tbytes_per_s" : "tflops";
	const struct gpu_repetition *median = &repetitions[n_kept / 2];
	double aim = c->aim_h200 > 0 && strstr(gpu.name, "H200") ? c->aim_h200 : c->aim;

	case_begin(c, n_kept);
	if (!n_kept) {
		printf(", \"error\": \"the device was never quiet: floors differed by more than "
		       "10 %%\"}\n");
		return;
	}
	qsort(repetitions, n_kept, sizeof *repetitions, repetition_compare);
	printf(", \"seconds\": %.7f, \"%s\": %.3f, \"%s\": %.3f, \"fraction\": %.3f, "
	       "\"fraction_lowest\": %.3f, \"fraction_highest\": %.3f",
	       median->seconds, unit, median->rate,
	       is_decode(c) ? "read_tbytes_per_s" : "peak_mma_sync_tflops", median->floor,
	       median->rate / median->floor, repetitions[0].rate / repetitions[0].floor,
	       repetitions[n_kept - 1].rate / repetitions[n_kept - 1].floor);
	if (aim > 0)
		printf(", \"aim_%s\": %.1f", unit, aim);
	if (c->loss_aim > 0)
		printf(", \"paging_loss\": %.4f, \"paging_loss_aim\": %.2f", median->loss,
		       c->loss_aim);
	printf("}\n");
	fflush(stdout);
}

static void case_run(struct gpu_case c)
{
	struct gpu_repetition repetitions[REPETITIONS_MAX];
	size_t wanted = (kv_bytes(&c) + 2 * rows_bytes(&c)) * (c.loss_aim > 0 ? 2 : 1);
	size_t free_bytes = 0, total = 0;

	if (gpu.options->only && !strstr(c.name, gpu.options->only))
		return;
	if (gpu.options->small) {
		c.n_cached = c.n_cached ? 70 : 0;
		c.n_queries = is_decode(&c) ? 1 : 5;
		c.n_sequences = c.n_sequences > 2 ? 2 : c.n_sequences;
		wanted = 0;
	}
	DO(memory_info(&free_bytes, &total));
	if (wanted + ((size_t)1 << 30) > free_bytes && wanted) {
		case_begin(&c, 0);
		printf(", \"error\": \"needs %zu MiB of device memory, %zu MiB are free\"}\n",
		       wanted >> 20, free_bytes >> 20);
		return;
	}
	case_print(&c, repetitions, case_repeat(&c, repetitions));
}

static void floors_run(void)
{
	double copy = 0, read = floor_tbytes(&copy), peak = floor_tflops();

	printf("{\"name\": \"gpu floors\", \"device\": \"%s\", \"multiprocessors\": %u, "
	       "\"peak_mma_sync_tflops\": %.1f, \"read_tbytes_per_s\": %.3f, "
	       "\"copy_tbytes_per_s\": %.3f%s}\n",
	       gpu.name, gpu.n_multiprocessors, peak, read, copy,
	       gpu.options->small ? ", \"emulated\": true" : "");
	fflush(stdout);
}

static void cases_run(void)
{
	static const struct gpu_case cases[] = {
		{ "append 727 x 100K", 727, 100000, 1, 64, KVT_ATTN_BF16, KVT_ATTN_BF16, 350, 0,
		  0.02 },
		{ "append 727 x 100K page 16", 727, 100000, 1, 16, KVT_ATTN_BF16, KVT_ATTN_BF16, 0,
		  0, 0.05 },
		{ "append 2048 x 32K", 2048, 32768, 1, 64, KVT_ATTN_BF16, KVT_ATTN_BF16, 350, 0,
		  0.02 },
		{ "append 2048 x 32K fp16", 2048, 32768, 1, 64, KVT_ATTN_F16, KVT_ATTN_F16, 0, 0,
		  0 },
		{ "append 2048 x 32K fp8 KV", 2048, 32768, 1, 64, KVT_ATTN_BF16, KVT_ATTN_F8_E4M3,
		  0, 0, 0 },
		{ "causal 2048 x 8", 2048, 0, 8, 64, KVT_ATTN_BF16, KVT_ATTN_BF16, 0, 0, 0 },
		{ "decode 16 x 32K", 1, 32767, 16, 64, KVT_ATTN_BF16, KVT_ATTN_BF16, 2.6, 3.7,
		  0.02 },
		{ "decode 16 x 32K page 16", 1, 32767, 16, 16, KVT_ATTN_BF16, KVT_ATTN_BF16, 0, 0,
		  0.05 },
		{ "decode 16 x 32K fp8 KV", 1, 32767, 16, 64, KVT_ATTN_BF16, KVT_ATTN_F8_E4M3, 0, 0,
		  0 },
		{ "decode 1 x 100K", 1, 99999, 1, 64, KVT_ATTN_BF16, KVT_ATTN_BF16, 0, 0, 0 },
	};

	for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		if (!gpu.options->quick || cases[i].aim > 0 || cases[i].loss_aim > 0)
			case_run(cases[i]);
	}
}

static void gpu_open(void)
{
	int count = 0;

	if (!floors_image)
		errx(1, "built without CUDA kernels: build it by make kernels-cuda");
	driver_load();
	DO(device_name(gpu.name, sizeof gpu.name, 0));
	DO(device_attribute(&count, KVT_CU_ATTRIBUTE_MULTIPROCESSORS, 0));
	gpu.n_multiprocessors = (uint32_t)count;
	DO(primary_retain(&gpu.primary, 0));
	DO(context_push(gpu.primary));
	DO(module_load(&gpu.module, floors_image));
	DO(module_function(&gpu.peaks[0], gpu.module, "bench_peak_4"));
	DO(module_function(&gpu.peaks[1], gpu.module, "bench_peak_8"));
	DO(module_function(&gpu.read, gpu.module, "bench_read"));
	DO(module_function(&gpu.fill, gpu.module, "bench_fill"));
	DO(event_create(&gpu.begin, 0));
	DO(event_create(&gpu.end, 0));
	/* Many times the L2 cache. */
	gpu.memory_bytes = gpu.options->small ? (size_t)64 << 10 : (size_t)2 << 30;
	DO(memory_alloc(&gpu.memory, gpu.memory_bytes));
	memory_fill(gpu.memory, gpu.memory_bytes, KVT_ATTN_BF16);
}

static void gpu_close(void)
{
	DO(memory_free(gpu.memory));
	DO(event_destroy(gpu.begin));
	DO(event_destroy(gpu.end));
	DO(module_unload(gpu.module));
	kvt_attn_close(gpu.context);
	DO(context_pop(&gpu.primary));
	DO(primary_release(0));
}

int gpu_run(const struct gpu_options *options)
{
	struct kvt_attn_options context_options = { .device = KVT_ATTN_CUDA };
	char text[256];

	gpu.options = options;
	if (kvt_attn_open(&context_options, &gpu.context, text, sizeof text)) {
		printf("skip: %s\n", text);
		return 77;
	}
	gpu_open();
	floors_run();
	cases_run();
	gpu_close();
	return 0;
}
