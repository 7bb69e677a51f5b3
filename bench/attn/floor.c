/* SPDX-License-Identifier: Apache-2.0 */

/* Floors of attention: products and reads, measured by the best of several loops.
 *
 * Inputs: a kind of product, or runs of bytes. Invariant: threads begin together, and a rate counts
 * from the first start to the last end. Callers: main.c; gpu.c for random_next(). */

#include "bench/attn/floor.h"

#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define THREADS_MAX 256

double now_s(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint32_t random_next(void)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33);
}

const char *floor_name(enum floor_kind kind)
{
	static const char *const names[] = { "128-bit mul+add", "256-bit fma", "512-bit fma",
					     "vdpbf16ps", "bfmmla" };

	return names[kind];
}

/* Loops. Each takes a number of rounds and returns its number of operations. */

typedef double loop_fn(uint64_t rounds);

typedef float vector __attribute__((vector_size(16)));

/*
 * Independent chains in registers. The empty asm hides their values from the compiler, which else
 * computes equal chains once.
 */
#define VECTOR_LOOP(n)                                                                             \
	static double loop_vector_##n(uint64_t rounds)                                             \
	{                                                                                          \
		vector c[n], a = { 0 }, b = { 0 };                                                 \
		memset(c, 0, sizeof c);                                                            \
		for (uint64_t i = 0; i < rounds; i++) {                                            \
			_Pragma("GCC unroll 16") for (int j = 0; j < n; j++)                       \
			{                                                                          \
				__asm__ volatile(""                                                \
						 : "+" VECTOR_REGISTER(a),                         \
						   "+" VECTOR_REGISTER(c[j]));                     \
				c[j] += a * b;                                                     \
			}                                                                          \
		}                                                                                  \
		_Pragma("GCC unroll 16") for (int j = 0; j < n;                                    \
					      j++) __asm__ volatile("" : : VECTOR_REGISTER(c[j])); \
		return (double)rounds * n * 8;                                                     \
	}

#if defined(__x86_64__)
#define VECTOR_REGISTER(x) "x"(x)
#elif defined(__aarch64__)
#define VECTOR_REGISTER(x) "w"(x)
#else
#define VECTOR_REGISTER(x) "m"(x)
#endif

VECTOR_LOOP(6)
VECTOR_LOOP(8)
VECTOR_LOOP(10)
VECTOR_LOOP(12)

#if defined(__x86_64__)

#define R8(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7)
#define R12(op) R8(op) op(8) op(9) op(10) op(11)
#define R14(op) R12(op) op(12) op(13)
#define R16(op) R14(op) op(14) op(15)
#define R20(op) R16(op) op(16) op(17) op(18) op(19)
#define R24(op) R20(op) op(20) op(21) op(22) op(23)
#define R28(op) R24(op) op(24) op(25) op(26) op(27)

#define FMA_256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n\t"
#define FMA_512(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
#define DOT_512(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n\t"
/* The same with a load for every product, the most that an inner kernel has. */
#define DOT_512_LOAD(n) "vdpbf16ps (%1), %%zmm31, %%zmm" #n "\n\t"

#define LOW_REGISTERS                                                                              \
	"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",   \
		"xmm11", "xmm12", "xmm13", "xmm14", "xmm15"
#define HIGH_REGISTERS                                                                             \
	"xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25",  \
		"xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"

#define ASM_LOOP(name, isa, zero, body, operations, ...)                                           \
	__attribute__((target(isa))) static double name(uint64_t rounds)                           \
	{                                                                                          \
		static const float line[16] __attribute__((aligned(64))) = { 0 };                  \
		uint64_t left = rounds;                                                            \
		__asm__ volatile(zero ".p2align 6\n1:\n\t" body "dec %0\n\tjnz 1b\n\t"             \
				 : "+r"(left)                                                      \
				 : "r"(line)                                                       \
				 : "cc", __VA_ARGS__);                                             \
		return (double)rounds * (operations);                                              \
	}

#define ZERO_256 "vxorps %%ymm14, %%ymm14, %%ymm14\n\tvxorps %%ymm15, %%ymm15, %%ymm15\n\t"
#define ZERO_512 "vpxord %%zmm30, %%zmm30, %%zmm30\n\tvpxord %%zmm31, %%zmm31, %%zmm31\n\t"

ASM_LOOP(loop_avx2_8, "avx2,fma", ZERO_256, R8(FMA_256), 8 * 16, LOW_REGISTERS)
ASM_LOOP(loop_avx2_12, "avx2,fma", ZERO_256, R12(FMA_256), 12 * 16, LOW_REGISTERS)
ASM_LOOP(loop_avx2_14, "avx2,fma", ZERO_256, R14(FMA_256), 14 * 16, LOW_REGISTERS)
ASM_LOOP(loop_avx512_12, "avx512f", ZERO_512, R12(FMA_512), 12 * 32, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_avx512_20, "avx512f", ZERO_512, R20(FMA_512), 20 * 32, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_avx512_28, "avx512f", ZERO_512, R28(FMA_512), 28 * 32, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_bf16_12, "avx512f", ZERO_512, R12(DOT_512), 12 * 64, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_bf16_20, "avx512f", ZERO_512, R20(DOT_512), 20 * 64, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_bf16_28, "avx512f", ZERO_512, R28(DOT_512), 28 * 64, LOW_REGISTERS, HIGH_REGISTERS)
ASM_LOOP(loop_bf16_load, "avx512f", ZERO_512, R24(DOT_512_LOAD), 24 * 64, LOW_REGISTERS,
	 HIGH_REGISTERS)

#endif

#define LOOPS_MAX 4

static loop_fn *const loops[][LOOPS_MAX] = {
	[FLOOR_VECTOR] = { loop_vector_6, loop_vector_8, loop_vector_10, loop_vector_12 },
#if defined(__x86_64__)
	[FLOOR_AVX2] = { loop_avx2_8, loop_avx2_12, loop_avx2_14 },
	[FLOOR_AVX512] = { loop_avx512_12, loop_avx512_20, loop_avx512_28 },
	[FLOOR_BF16] = { loop_bf16_12, loop_bf16_20, loop_bf16_28, loop_bf16_load },
#endif
};

bool floor_has(enum floor_kind kind)
{
	switch (kind) {
	case FLOOR_VECTOR:
		return true;
#if defined(__x86_64__)
	case FLOOR_AVX2:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
	case FLOOR_AVX512:
		return __builtin_cpu_supports("avx512f");
	case FLOOR_BF16:
		return __builtin_cpu_supports("avx512bf16");
#endif
	default:
		return false;
	}
}

/*
 * Return the best of a loop's short samples: long enough to time well, short enough to fall between
 * interruptions.
 */
static double loop_best(loop_fn *loop)
{
	const uint64_t rounds = 60000;
	double best = 0;

	for (int i = 0; i < 5; i++) {
		double begin = now_s();
		double operations = loop(rounds);
		double rate = operations / (now_s() - begin) * 1e-9;

		if (rate > best)
			best = rate;
	}
	return best;
}

/* Threads that begin together. */

struct share {
	pthread_barrier_t *barrier;
	pthread_t thread;
	double (*work)(struct share *share);
	const char *buffer;
	const uint64_t *offsets;
	size_t n_runs;
	size_t run_bytes;
	enum floor_kind kind;
	int loop;
	double result; /* a rate, or bytes */
	double begin;
	double end;
};

static void *share_main(void *argument)
{
	struct share *share = argument;

	pthread_barrier_wait(share->barrier);
	share->begin = now_s();
	share->result = share->work(share);
	share->end = now_s();
	return NULL;
}

/* Run n threads at once and add their results. */
static double shares_run(struct share *shares, uint32_t n)
{
	pthread_barrier_t barrier;
	double sum = 0;

	pthread_barrier_init(&barrier, NULL, n);
	for (uint32_t i = 0; i < n; i++) {
		shares[i].barrier = &barrier;
		if (i && pthread_create(&shares[i].thread, NULL, share_main, &shares[i]))
			return 0;
	}
	share_main(&shares[0]);
	for (uint32_t i = 1; i < n; i++)
		pthread_join(shares[i].thread, NULL);
	for (uint32_t i = 0; i < n; i++)
		sum += shares[i].result;
	pthread_barrier_destroy(&barrier);
	return sum;
}

static double loop_work(struct share *share)
{
	return loop_best(loops[share->kind][share->loop]);
}

double floor_gflops(enum floor_kind kind, uint32_t n_threads)
{
	struct share shares[THREADS_MAX];
	double best = 0;

	if (n_threads > THREADS_MAX)
		n_threads = THREADS_MAX;
	for (int i = 0; i < LOOPS_MAX && loops[kind][i]; i++) {
		double rate;

		for (uint32_t j = 0; j < n_threads; j++)
			shares[j] = (struct share){ .work = loop_work, .kind = kind, .loop = i };
		rate = shares_run(shares, n_threads);
		if (rate > best)
			best = rate;
	}
	return best;
}

/* Reading. Sums are kept so that the compiler drops no load. */

static volatile uint64_t read_sink;

/* Prefetch distances, into L1 and beyond it; 0: none. */
struct fetch {
	size_t near;
	size_t far;
};

static const struct fetch fetches[] = { { 0, 0 },	{ 512, 0 },	{ 2048, 0 },
					{ 4096, 0 },	{ 8192, 0 },	{ 1024, 8192 },
					{ 1024, 16384 } };

#define N_FETCHES (int)(sizeof fetches / sizeof fetches[0])
#define READ_ROUNDS 5

/* Return the address `ahead` bytes behind position i of a run, maybe in the next run. */
static const char *ahead_at(const char *run, size_t bytes, const char *next, size_t i, size_t ahead)
{
	size_t at = i + ahead;

	return at < bytes ? run + at : next + (at - bytes) % bytes;
}

#if defined(__x86_64__)

#include <immintrin.h>

__attribute__((target("avx512f"))) static uint64_t
run_read_512(const char *run, size_t bytes, const char *next, const struct fetch *fetch)
{
	__m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

	for (size_t i = 0; i + 256 <= bytes; i += 256) {
		const char *near = ahead_at(run, bytes, next, i, fetch->near);
		const char *far = ahead_at(run, bytes, next, i, fetch->far);

		for (size_t j = 0; fetch->near && j < 256; j += 64)
			_mm_prefetch(near + j, _MM_HINT_T0);
		for (size_t j = 0; fetch->far && j < 256; j += 64)
			_mm_prefetch(far + j, _MM_HINT_NTA);
		a = _mm512_or_si512(a, _mm512_loadu_si512(run + i));
		b = _mm512_or_si512(b, _mm512_loadu_si512(run + i + 64));
		c = _mm512_or_si512(c, _mm512_loadu_si512(run + i + 128));
		d = _mm512_or_si512(d, _mm512_loadu_si512(run + i + 192));
	}
	a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
	return (uint64_t)_mm512_reduce_or_epi64(a);
}

#endif

static uint64_t run_read_64(const char *run, size_t bytes, const char *next,
			    const struct fetch *fetch)
{
	uint64_t sums[8] = { 0 }, words[8];

	for (size_t i = 0; i + 64 <= bytes; i += 64) {
		if (fetch->near)
			__builtin_prefetch(ahead_at(run, bytes, next, i, fetch->near));
		if (fetch->far)
			__builtin_prefetch(ahead_at(run, bytes, next, i, fetch->far), 0, 0);
		memcpy(words, run + i, 64);
		for (int j = 0; j < 8; j++)
			sums[j] |= words[j];
	}
	return sums[0] | sums[1] | sums[2] | sums[3] | sums[4] | sums[5] | sums[6] | sums[7];
}

static uint64_t run_read(const char *run, size_t bytes, const char *next, const struct fetch *fetch)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f"))
		return run_read_512(run, bytes, next, fetch);
#endif
	return run_read_64(run, bytes, next, fetch);
}

static double read_work(struct share *share)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < share->n_runs; i++) {
		size_t next = i + 1 < share->n_runs ? i + 1 : i;

		sum |= run_read(share->buffer + share->offsets[i], share->run_bytes,
				share->buffer + share->offsets[next], &fetches[share->loop]);
	}
	read_sink = sum;
	return (double)(share->n_runs * share->run_bytes);
}

/* Return the time from the first thread's start to the last one's end. */
static double shares_seconds(const struct share *shares, uint32_t n)
{
	double begin = shares[0].begin, end = shares[0].end;

	for (uint32_t i = 1; i < n; i++) {
		begin = shares[i].begin < begin ? shares[i].begin : begin;
		end = shares[i].end > end ? shares[i].end : end;
	}
	return end - begin;
}

double floor_read(const struct floor_runs *runs, uint32_t n_threads)
{
	struct share shares[THREADS_MAX];
	double bytes;

	if (n_threads > THREADS_MAX)
		n_threads = THREADS_MAX;
	for (uint32_t i = 0; i < n_threads; i++) {
		size_t first = runs->n_runs * i / n_threads;
		size_t end = runs->n_runs * (i + 1) / n_threads;

		shares[i] = (struct share){ .work = read_work,
					    .buffer = runs->buffer,
					    .loop = runs->loop,
					    .offsets = runs->offsets + first,
					    .n_runs = end - first,
					    .run_bytes = runs->run_bytes };
	}
	bytes = shares_run(shares, n_threads);
	return bytes / shares_seconds(shares, n_threads) * 1e-9;
}

static int rate_compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Measure the loops in turns, so that noise hits all of them. */
double floor_read_choose(struct floor_runs *runs, uint32_t n_threads)
{
	double rates[N_FETCHES][READ_ROUNDS];
	double best = 0;
	int chosen = 0;

	for (int round = 0; round < READ_ROUNDS; round++) {
		for (runs->loop = 0; runs->loop < N_FETCHES; runs->loop++)
			rates[runs->loop][round] = floor_read(runs, n_threads);
	}
	for (int i = 0; i < N_FETCHES; i++) {
		qsort(rates[i], READ_ROUNDS, sizeof rates[i][0], rate_compare);
		if (rates[i][READ_ROUNDS / 2] > best) {
			best = rates[i][READ_ROUNDS / 2];
			chosen = i;
		}
	}
	runs->loop = chosen;
	return best;
}

double floor_waited_s(void)
{
	double waited = 0;
	struct dirent *entry;
	DIR *tasks = opendir("/proc/self/task");

	while (tasks && (entry = readdir(tasks))) {
		unsigned long long ran_ns, waited_ns;
		char path[300];
		FILE *file;

		snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (file && fscanf(file, "%llu %llu", &ran_ns, &waited_ns) == 2)
			waited += (double)waited_ns * 1e-9;
		if (file)
			fclose(file);
	}
	if (tasks)
		closedir(tasks);
	return waited;
}
