/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtbench-attn: how fast attention on pages is, beside the machine's peak at the same time.
 *
 * Each line is a JSON object. Each repetition measures the floor before and after the kernel. It is
 * dropped if the two differ by more than a tenth, or if the kernel's threads waited for a CPU for
 * more than a twentieth of its time: the machine was busy. Figures are those of the repetition with
 * the median fraction of the higher floor. The floor of products is the best of several loops each
 * time; that of reading is the loop that was the best before the first repetition.
 *
 * Inputs: the command line. Invariant: a figure is never printed without its floor. Callers: none;
 * a program.
 */

#include <err.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/option.h"
#include "bench/attn/floor.h"
#include "bench/attn/gpu.h"
#include "kvt_kernels.h"
#include "shm/stdio.h"

#define Q_HEADS 32
#define KV_HEADS 8
#define HEAD_DIM 128
#define PAGE_SIZE 64
#define REPETITIONS_MAX 64

static struct {
	bool quick;
	bool torch;
	bool peers;
	bool gpu;
	bool small;
	uint32_t n_threads; /* of the runs with all cores */
	uint32_t isa;
	uint32_t n_repetitions;
	const char *only;
} options;

struct repetition {
	double seconds;
	double rate; /* 1e9 operations or bytes a second */
	double floor;
	double paged; /* decode by one thread: its paged read, beside its sequential one */
};

/* One measured thing. */
struct measure {
	const char *name;
	uint32_t type; /* of queries */
	uint32_t n_queries;
	uint32_t n_cached;
	uint32_t n_threads;
	uint32_t isa;
	enum floor_kind floor;
	uint32_t layout;
	bool f8; /* KV in fp8 */
};

/* A pool with one sequence in pages in random order. */
struct pool {
	struct kvt_attn_view view;
	void *slab;
	size_t slab_bytes;
	uint32_t *pages;
	uint32_t n_pages;
	void *q;
	void *out;
	struct kvt_attn_sequence sequence;
	struct kvt_attn_prefill prefill;
};

static void *memory_map(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "cannot map %zu MiB", bytes >> 20);
	/* As in a real pool: with huge pages where the system has them. */
	(void)madvise(memory, bytes, MADV_HUGEPAGE);
	return memory;
}

/* Small numbers of either sign, cheap enough for hundreds of megabytes. */
static void memory_fill(void *memory, size_t bytes, uint32_t type)
{
	uint16_t *half = memory;
	float *whole = memory;

	/* fp8: two numbers below 2, a sixteenth of the range and no NaN. */
	for (size_t i = 0; type == KVT_ATTN_F8_E4M3 && i < bytes / 2; i++)
		half[i] = (uint16_t)(random_next() & 0xbfbf);
	for (size_t i = 0; type == KVT_ATTN_BF16 && i < bytes / 2; i++) {
		uint32_t bits = random_next();

		half[i] = (uint16_t)(0x3e00 + (bits & 0x1ff) - (bits & 0x200 ? 0x80 : 0) +
				     (bits & 0x400 ? 0x8000 : 0));
	}
	for (size_t i = 0; type == KVT_ATTN_F32 && i < bytes / 4; i++)
		whole[i] = (float)random_next() * 0x1p-30f - 1.0f;
}

static uint32_t kv_type(const struct measure *measure)
{
	return measure->f8 ? KVT_ATTN_F8_E4M3 : measure->type;
}

static struct pool pool_make(const struct measure *measure)
{
	uint32_t n_positions = measure->n_cached + measure->n_queries;
	struct kvt_attn_geometry geometry = {
		.page_size = PAGE_SIZE,
		.n_layers = 1,
		.n_kv_heads = KV_HEADS,
		.head_dim = HEAD_DIM,
		.type = kv_type(measure),
		.layout = measure->layout,
		.n_pages = (n_positions - 1) / PAGE_SIZE + 2,
	};
	size_t rows_bytes = (size_t)measure->n_queries * Q_HEADS * HEAD_DIM *
			    (size_t)kvt_attn_type_bytes(measure->type);
	struct pool pool = { .n_pages = geometry.n_pages - 1 };
	uint64_t bytes = 0;

	if (kvt_attn_geometry_bytes(&geometry, &bytes))
		errx(1, "bad geometry");
	pool.slab_bytes = bytes;
	pool.slab = memory_map(bytes);
	memory_fill(pool.slab, bytes, kv_type(measure));
	if (kvt_attn_geometry_view(&geometry, pool.slab, bytes, 0, &pool.view))
		errx(1, "bad geometry");
	pool.pages = calloc(pool.n_pages, sizeof *pool.pages);
	pool.q = memory_map(rows_bytes);
	pool.out = memory_map(rows_bytes);
	memory_fill(pool.q, rows_bytes, measure->type);
	if (!pool.pages)
		err(1, "no memory");
	for (uint32_t i = 0; i < pool.n_pages; i++) {
		uint32_t j = random_next() % (i + 1);

		pool.pages[i] = pool.pages[j];
		pool.pages[j] = i + 1;
	}
	pool.sequence = (struct kvt_attn_sequence){ .n_queries = measure->n_queries,
						    .n_positions = n_positions,
						    .pages = pool.pages,
						    .n_pages = pool.n_pages };
	pool.prefill = (struct kvt_attn_prefill){ .kv = pool.view,
						  .n_sequences = 1,
						  .n_q_heads = Q_HEADS,
						  .q = pool.q,
						  .out = pool.out,
						  .q_type = measure->type,
						  .out_type = measure->type,
						  .scale = 1.0f / sqrtf(HEAD_DIM) };
	return pool;
}

static void pool_free(struct pool *pool, const struct measure *measure)
{
	size_t rows_bytes = (size_t)measure->n_queries * Q_HEADS * HEAD_DIM *
			    (size_t)kvt_attn_type_bytes(measure->type);

	munmap(pool->slab, pool->slab_bytes);
	munmap(pool->q, rows_bytes);
	munmap(pool->out, rows_bytes);
	free(pool->pages);
}

/* Count the requested products and sums. Masked positions do not count. */
static double operations(const struct measure *measure)
{
	double q = measure->n_queries;

	return 4.0 * HEAD_DIM * Q_HEADS * (q * measure->n_cached + q * (q + 1) / 2);
}

static double kv_bytes(const struct measure *measure)
{
	return 2.0 * KV_HEADS * HEAD_DIM * kvt_attn_type_bytes(kv_type(measure)) *
	       (measure->n_cached + measure->n_queries);
}

static struct kvt_attn_context *context_open(const struct measure *measure)
{
	struct kvt_attn_options context_options = { .n_threads = measure->n_threads,
						    .isa = measure->isa };
	struct kvt_attn_context *context = NULL;
	char text[256];

	if (kvt_attn_open(&context_options, &context, text, sizeof text))
		errx(1, "%s", text);
	return context;
}

static int repetition_compare(const void *a, const void *b)
{
	const struct repetition *x = a, *y = b;
	double fx = x->rate / x->floor, fy = y->rate / y->floor;

	return fx < fy ? -1 : fx > fy;
}

/* Time the kernel. 0: it had to wait for a CPU. */
static double kernel_seconds(struct kvt_attn_context *context, const struct pool *pool)
{
	double waited = floor_waited_s();
	double begin = now_s(), seconds;

	if (kvt_attn_append_prefill(context, &pool->prefill, NULL))
		errx(1, "%s", kvt_attn_error_text(context));
	seconds = now_s() - begin;
	waited = floor_waited_s() - waited;
	return waited > 0.05 * seconds ? 0 : seconds;
}

/*
 * List the runs of KV page by page in the order of the page table, keys and values in turn: n_heads
 * adjacent heads of a page at a time.
 */
static struct floor_runs runs_paged(const struct pool *pool, uint32_t n_heads)
{
	const struct kvt_attn_view *view = &pool->view;
	uint64_t *offsets = calloc((size_t)pool->n_pages * KV_HEADS * 2, sizeof *offsets);
	size_t n_runs = 0;

	if (!offsets)
		err(1, "no memory");
	for (uint32_t head = 0; head < KV_HEADS; head += n_heads) {
		for (uint32_t i = 0; i < pool->n_pages; i++) {
			uint64_t offset = pool->pages[i] * view->page_stride_bytes +
					  head * view->head_stride_bytes;

			offsets[n_runs++] = offset;
			offsets[n_runs++] = offset + (uint64_t)((char *)view->v - (char *)view->k);
		}
	}
	return (struct floor_runs){ .buffer = view->k,
				    .offsets = offsets,
				    .n_runs = n_runs,
				    .run_bytes = (size_t)n_heads * PAGE_SIZE * HEAD_DIM *
						 (size_t)kvt_attn_type_bytes(view->type) };
}

static struct floor_runs runs_sequential(const struct pool *pool)
{
	uint64_t *offset = calloc(1, sizeof *offset);

	if (!offset)
		err(1, "no memory");
	return (struct floor_runs){ .buffer = pool->slab,
				    .offsets = offset,
				    .n_runs = 1,
				    .run_bytes = pool->slab_bytes };
}

static void runs_free(struct floor_runs *runs)
{
	free((uint64_t *)runs->offsets);
	*runs = (struct floor_runs){ 0 };
}

/* The reads beside decode, each by its best loop. */
struct readings {
	struct floor_runs sequential;
	struct floor_runs paged;
};

static struct readings readings_make(const struct measure *measure, const struct pool *pool)
{
	struct readings readings = { 0 };
	struct floor_runs head_by_head;

	if (measure->n_queries > 1)
		return readings;
	readings.paged = runs_paged(pool, KV_HEADS);
	/* In NHD a head of a page is no run. */
	head_by_head = runs_paged(pool, measure->layout == KVT_ATTN_NHD ? KV_HEADS : 1);
	if (floor_read_choose(&head_by_head, measure->n_threads) >
	    floor_read_choose(&readings.paged, measure->n_threads)) {
		struct floor_runs slower = readings.paged;

		readings.paged = head_by_head;
		head_by_head = slower;
	}
	runs_free(&head_by_head);
	readings.sequential = runs_sequential(pool);
	if (measure->n_threads == 1)
		floor_read_choose(&readings.sequential, 1);
	return readings;
}

static void readings_free(struct readings *readings)
{
	runs_free(&readings->sequential);
	runs_free(&readings->paged);
}

static double floor_sample(const struct measure *measure, const struct readings *readings)
{
	if (measure->n_queries > 1)
		return floor_gflops(measure->floor, measure->n_threads);
	if (measure->n_threads > 1)
		return floor_read(&readings->paged, measure->n_threads);
	return floor_read(&readings->sequential, 1);
}

/* Collect the repetitions that count; returns their number. */
static uint32_t measure_repeat(const struct measure *measure, struct repetition *repetitions)
{
	struct pool pool = pool_make(measure);
	struct kvt_attn_context *context = context_open(measure);
	struct readings readings = readings_make(measure, &pool);
	double work = measure->n_queries > 1 ? operations(measure) : kv_bytes(measure);
	uint32_t n_kept = 0;

	pool.prefill.sequences = &pool.sequence;
	kernel_seconds(context, &pool); /* page faults, workspaces */
	for (uint32_t i = 0; i < options.n_repetitions; i++) {
		double before = floor_sample(measure, &readings);
		double seconds = kernel_seconds(context, &pool);
		double after = floor_sample(measure, &readings);
		double paged = measure->n_queries == 1
				       ? floor_read(&readings.paged, measure->n_threads)
				       : 0;
		double low = before < after ? before : after,
		       high = before < after ? after : before;

		if (high > low * 1.1 || seconds == 0)
			continue;
		repetitions[n_kept++] =
			(struct repetition){ seconds, work / seconds * 1e-9, high, paged };
	}
	readings_free(&readings);
	kvt_attn_close(context);
	pool_free(&pool, measure);
	return n_kept;
}

static const char *isa_name(uint32_t isa)
{
	static const char *const names[] = { "auto", "portable", "avx2", "avx512", "avx512_bf16" };

	return names[isa];
}

static bool measured; /* at least one */

static bool is_left_out(const char *name)
{
	bool out = options.only && !strstr(name, options.only);

	measured |= !out;
	return out;
}

/* Run one measure. Returns the seconds of the median repetition, 0 if none counted. */
static double measure_run(const struct measure *measure)
{
	struct repetition repetitions[REPETITIONS_MAX];
	struct repetition *median;
	uint32_t n_kept;
	bool decode = measure->n_queries == 1;

	if (is_left_out(measure->name))
		return 0;
	n_kept = measure_repeat(measure, repetitions);
	printf("{\"name\": \"%s\", \"path\": \"%s\", \"q\": %u, \"k\": %u, \"type\": \"%s\", "
	       "\"threads\": %u, \"repetitions\": %u, \"dropped\": %u",
	       measure->name, isa_name(measure->isa), measure->n_queries,
	       measure->n_queries + measure->n_cached,
	       measure->f8 ? "fp8" : measure->type == KVT_ATTN_BF16 ? "bf16" : "fp32",
	       measure->n_threads, n_kept,
	       options.n_repetitions - n_kept);
	if (!n_kept) {
		printf(", \"error\": \"the machine was never quiet: each time, floors differed by "
		       "more "
		       "than 10 %% or threads waited for a CPU\"}\n");
		return 0;
	}
	qsort(repetitions, n_kept, sizeof *repetitions, repetition_compare);
	median = &repetitions[n_kept / 2];
	printf(", \"seconds\": %.6f", median->seconds);
	if (decode)
		printf(", \"gflops\": %.1f, \"gbytes_per_s\": %.2f, \"%s_gbytes_per_s\": %.2f",
		       operations(measure) / median->seconds * 1e-9, median->rate,
		       measure->n_threads > 1 ? "paged_read" : "sequential_read", median->floor);
	else
		printf(", \"gflops\": %.1f, \"peak\": \"%s\", \"peak_gflops\": %.1f", median->rate,
		       floor_name(measure->floor), median->floor);
	if (decode && measure->n_threads == 1)
		printf(", \"paged_read_gbytes_per_s\": %.2f", median->paged);
	printf(", \"fraction\": %.3f, \"fraction_lowest\": %.3f, \"fraction_highest\": %.3f}\n",
	       median->rate / median->floor, repetitions[0].rate / repetitions[0].floor,
	       repetitions[n_kept - 1].rate / repetitions[n_kept - 1].floor);
	fflush(stdout);
	return median->seconds;
}

/* Return the machine's own peak with n_threads: products, or page reads by the loop for many. */
static double scaling_peak(const struct measure *measure, const struct readings *readings,
			   uint32_t n_threads)
{
	return measure->n_queries > 1 ? floor_gflops(measure->floor, n_threads)
				      : floor_read(&readings->paged, n_threads);
}

/* Run one thread and n_threads on the same work in turns, so that noise hits both. */
static void scaling_run(const struct measure *measure, uint32_t n_threads)
{
	struct measure many = *measure;
	struct repetition ratios[REPETITIONS_MAX];
	struct kvt_attn_context *one, *all;
	const char *name = measure->n_queries > 1 ? "scaling" : "decode scaling";
	struct readings readings;
	struct pool pool;
	uint32_t n_kept = 0;

	if (n_threads < 2 || is_left_out(name))
		return;
	many.n_threads = n_threads;
	pool = pool_make(measure);
	readings = readings_make(&many, &pool);
	pool.prefill.sequences = &pool.sequence;
	one = context_open(measure);
	all = context_open(&many);
	kernel_seconds(all, &pool);
	for (uint32_t i = 0; i < options.n_repetitions; i++) {
		double peak_one = scaling_peak(measure, &readings, 1);
		double peak_all = scaling_peak(measure, &readings, n_threads);
		double seconds_one = kernel_seconds(one, &pool);
		double seconds_all = kernel_seconds(all, &pool);
		double after_all = scaling_peak(measure, &readings, n_threads);

		if (fabs(after_all - peak_all) > 0.1 * peak_all || seconds_one == 0 ||
		    seconds_all == 0)
			continue;
		ratios[n_kept++] = (struct repetition){ seconds_all, seconds_one / seconds_all,
							peak_all / peak_one, 0 };
	}
	printf("{\"name\": \"%s\", \"path\": \"%s\", \"q\": %u, \"k\": %u, "
	       "\"threads\": %u, \"repetitions\": %u, \"dropped\": %u",
	       name, isa_name(measure->isa), measure->n_queries,
	       measure->n_queries + measure->n_cached, n_threads, n_kept,
	       options.n_repetitions - n_kept);
	if (n_kept) {
		qsort(ratios, n_kept, sizeof *ratios, repetition_compare);
		printf(", \"times_one_thread\": %.3f, \"peak_times_one_thread\": %.3f",
		       ratios[n_kept / 2].rate, ratios[n_kept / 2].floor);
	}
	printf("}\n");
	fflush(stdout);
	readings_free(&readings);
	kvt_attn_close(one);
	kvt_attn_close(all);
	pool_free(&pool, measure);
}

/*
 * Run a script of this folder on the library beside this program. Returns its exit status; 77:
 * something it needs is not installed.
 */
static int script_run(const char *python, const char *script, const char *option)
{
	char library[PATH_MAX + 32], threads[16];
	ssize_t n = readlink("/proc/self/exe", library, PATH_MAX);
	int status = 0;
	pid_t child;

	while (n > 0 && library[n - 1] != '/')
		n--;
	snprintf(library + (n < 0 ? 0 : n), 32, "libkvtkernels.so");
	snprintf(threads, sizeof threads, "%u", options.n_threads ? options.n_threads : 1);
	fflush(stdout);
	child = fork();
	if (child == 0) {
		execlp(python, python, script, "--threads", threads, library, option,
		       (char *)NULL);
		warn("skip: %s", python);
		_exit(77);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		err(1, "cannot run %s", script);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Compare with other libraries that the Python of KVT_PEERS_PYTHON can import. Returns the exit
 * status. Without --peers their absence is no failure. */
static int peers_run(void)
{
	const char *python = getenv("KVT_PEERS_PYTHON"), *script = "bench/attn/peers.py";
	int status = 77;

	if (access(script, R_OK) == 0)
		status = script_run(python ? python : "python3", script, NULL);
	else
		warnx("skip: %s is in the source folder", script);
	if (status != 77 || options.peers)
		return status;
	warnx("compared with no other library: none is installed (KVT_PEERS_PYTHON)");
	return 0;
}

static uint32_t best_isa(void)
{
	struct kvt_attn_context *context =
		context_open(&(struct measure){ .n_threads = 1, .isa = options.isa });
	int isa = kvt_attn_context_isa(context);

	kvt_attn_close(context);
	return (uint32_t)isa;
}

static enum floor_kind floor_of_path(uint32_t isa, uint32_t type)
{
	static const enum floor_kind floors[] = { FLOOR_VECTOR, FLOOR_VECTOR, FLOOR_AVX2,
						  FLOOR_AVX512, FLOOR_BF16 };

	if (isa == KVT_ATTN_ISA_AVX512_BF16 && type != KVT_ATTN_BF16)
		return FLOOR_AVX512;
	return floors[isa];
}

/*
 * Return the CPU's best unit for products of a type, whatever path runs: a path that leaves it
 * unused has a low fraction. With --isa, the unit of that path.
 */
static enum floor_kind floor_of(uint32_t isa, uint32_t type)
{
	enum floor_kind best = floor_of_path(isa, type);
	double best_rate = floor_gflops(best, 1);

	for (int i = FLOOR_VECTOR; !options.isa && i <= FLOOR_BF16; i++) {
		enum floor_kind kind = (enum floor_kind)i;
		double rate = 0;

		if (floor_has(kind) && (kind < FLOOR_BF16 || type == KVT_ATTN_BF16))
			rate = floor_gflops(kind, 1);
		if (rate > best_rate) {
			best_rate = rate;
			best = kind;
		}
	}
	return best;
}

static void all_run(uint32_t isa, uint32_t n_threads)
{
	static const struct measure measures[] = {
		{ "append 727 x 32768", KVT_ATTN_BF16, 727, 32768, 1, 0, 0, 0, false },
		{ "append 727 x 4096", KVT_ATTN_BF16, 727, 4096, 1, 0, 0, 0, false },
		{ "causal 2048", KVT_ATTN_BF16, 2048, 0, 1, 0, 0, 0, false },
		{ "append 727 x 32768 fp32", KVT_ATTN_F32, 727, 32768, 1, 0, 0, 0, false },
		{ "append 727 x 4096 fp32", KVT_ATTN_F32, 727, 4096, 1, 0, 0, 0, false },
		{ "causal 2048 fp32", KVT_ATTN_F32, 2048, 0, 1, 0, 0, 0, false },
		{ "decode 1 x 32768", KVT_ATTN_BF16, 1, 32767, 1, 0, 0, 0, false },
		{ "decode 1 x 32768 NHD", KVT_ATTN_BF16, 1, 32767, 1, 0, 0, KVT_ATTN_NHD, false },
		{ "decode 1 x 32768 fp8", KVT_ATTN_BF16, 1, 32767, 1, 0, 0, 0, true },
		{ "decode 1 x 32768 fp32", KVT_ATTN_F32, 1, 32767, 1, 0, 0, 0, false },
	};
	for (uint32_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
		struct measure measure = measures[i];

		/* The long fp32 case adds nothing to the short one. */
		if (options.quick && strstr(measure.name, "32768 fp32"))
			continue;
		measure.isa = isa;
		measure.floor = floor_of(isa, measure.type);
		measure_run(&measure);
		if (measure.n_queries > 1 || n_threads < 2 || measure.layout || measure.f8)
			continue;
		measure.n_threads = n_threads;
		measure_run(&measure);
	}
	for (uint32_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
		struct measure measure = measures[i];

		if (measure.type != KVT_ATTN_BF16 || (i != 1 && measure.n_queries > 1) ||
		    measure.layout || measure.f8)
			continue;
		measure.isa = isa;
		measure.floor = floor_of(isa, measure.type);
		scaling_run(&measure, n_threads);
	}
}

static void usage(void)
{
	printf(
		"usage: kvtbench-attn [--quick] [--isa PATH] [--threads N] [--repetitions N]\n"
		"                     [--only TEXT] [--torch] [--peers] [--gpu [--small]]\n"
		"\n"
		"Attention on paged KV: 32 query heads, 8 KV heads, head dim 128, pages of 64 in "
		"random\n"
		"order. One JSON object a line, with the machine's floor at the time beside each "
		"figure.\n"
		"\n"
		"  --quick          at most 40 seconds\n"
		"  --isa PATH       portable, avx2, avx512, avx512_bf16;\n"
		"                   default: the best there is\n"
		"  --threads N      threads of the runs with all cores; default: all\n"
		"  --repetitions N  of each figure, up to %d; default 9, with --quick 3\n"
		"  --only TEXT      only figures whose name contains TEXT\n"
		"  --torch          also PyTorch's attention, where it is installed, by one "
		"thread or N:\n"
		"                   bench/attn/sdpa.py, so from the source folder\n"
		"  --peers          also with --quick, --isa or --only: OpenVINO, PyTorch, vLLM in "
		"turns with\n"
		"                   the kernels (bench/attn/peers.py, by the Python of "
		"KVT_PEERS_PYTHON);\n"
		"                   exit status 77 if none is installed\n"
		"  --gpu            CUDA device 0 instead of the CPU\n"
		"  --small          with --gpu: sizes for emulated hardware; no figure counts\n"
		"\n"
		"Exit status 1 if another library was faster than the kernels.\n",
		REPETITIONS_MAX);
}

static uint32_t number(const char *text, uint32_t max)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (!*text || *end || value < 1 || value > max)
		errx(2, "%s is not a number from 1 to %u", text, max);
	return (uint32_t)value;
}

static uint32_t isa_number(const char *name)
{
	for (uint32_t i = 0; i <= KVT_ATTN_ISA_AVX512_BF16; i++) {
		if (strcmp(name, isa_name(i)) == 0)
			return i;
	}
	errx(2,
	     "--isa %s: use auto, portable, avx2, avx512 or avx512_bf16",
	     name);
}

static void options_parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "isa", required_argument, NULL, 'i' },
		{ "threads", required_argument, NULL, 't' },
		{ "only", required_argument, NULL, 'o' },
		{ "repetitions", required_argument, NULL, 'r' },
		{ "torch", no_argument, NULL, 'p' },
		{ "peers", no_argument, NULL, 'e' },
		{ "gpu", no_argument, NULL, 'g' },
		{ "small", no_argument, NULL, 's' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = kvt_option_next(argc, argv, longs, NULL, "kvtbench-attn --help")) != -1) {
		switch (c) {
		case 'q':
			options.quick = true;
			break;
		case 'i':
			options.isa = isa_number(optarg);
			break;
		case 't':
			options.n_threads = number(optarg, 256);
			break;
		case 'r':
			options.n_repetitions = number(optarg, REPETITIONS_MAX);
			break;
		case 'o':
			options.only = optarg;
			break;
		case 'p':
			options.torch = true;
			break;
		case 'e':
			options.peers = true;
			break;
		case 'g':
			options.gpu = true;
			break;
		case 's':
			options.small = true;
			break;
		case 'h':
			usage();
			exit(0);
		default: /* and that was said */
			exit(2);
		}
	}
	if (kvt_option_rest(argc, argv))
		exit(2);
}

int main(int argc, char **argv)
{
	cpu_set_t set;
	uint32_t n_threads = 1;

	kvt_stdio_begin("kvtbench-attn");
	options_parse(argc, argv);
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		n_threads = (uint32_t)CPU_COUNT(&set);
	if (options.n_threads)
		n_threads = options.n_threads;
	if (!options.n_repetitions)
		options.n_repetitions = options.quick ? 3 : 9;
	if (options.gpu)
		return gpu_run(&(struct gpu_options){ .n_repetitions = options.n_repetitions,
						      .only = options.only,
						      .quick = options.quick,
						      .small = options.small });
	all_run(best_isa(), n_threads);
	if (!measured)
		errx(2, "--only %s: no measurement has it in its name", options.only);
	if (options.torch)
		(void)script_run("python3", "bench/attn/sdpa.py", "--device=cpu");
	return options.peers || !(options.quick || options.isa || options.only) ? peers_run() : 0;
}
