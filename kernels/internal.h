/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the kernel library, which docs/architecture.md draws. Nothing here is
 * installed.
 */
#ifndef KVT_KERNELS_INTERNAL_H
#define KVT_KERNELS_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvt_kernels.h"

#define KVT_HIDDEN __attribute__((visibility("hidden")))
#define KVT_UNITS_PER_GROUP (KVT_ATTN_GROUP / KVT_ATTN_UNIT)

/*
 * A loop over registers. Under AddressSanitizer it stays a loop, whose checks are those of each
 * round: unrolled, they are so many that gcc takes minutes for a path.
 */
#ifdef __SANITIZE_ADDRESS__
#define UNROLL_FOR(i, n) for (uint32_t i = 0; i < (n); i++)
#else
#define UNROLL_FOR(i, n) _Pragma("GCC unroll 16") for (uint32_t i = 0; i < (n); i++)
#endif

/* A cache line, twice: neighbours are fetched in pairs. */
#define KVT_CPU_ALIGN 128

/*
 * Most rows of one job. Packing a unit costs as much as about 8 rows' work, so a thousand rows hide
 * it; more would only leave fewer jobs.
 */
#define KVT_JOB_ROWS 1024

/*
 * Most rows of a block with several KV heads, and of each head. Their scores of a block of
 * positions stay in L2.
 */
#define KVT_HEADS_ROWS 64
#define KVT_HEAD_ROWS 16

/*
 * Rows of one sequence computed together, in (query, head) order: those of one KV head, or, with a
 * single query, of several, so that their KV is read in its pages' order.
 */
struct kvt_row_block {
	const struct kvt_attn_prefill *prefill;
	const struct kvt_attn_sequence *sequence;
	const uint32_t *limits; /* number of positions that each query of the sequence sees */
	uint64_t first_token; /* row in q and out of the sequence's first query */
	uint32_t kv_head;
	uint32_t n_kv_heads;
	uint32_t first_head; /* the first query head */
	uint32_t query_rows; /* rows of one query: its query heads in this block */
	uint32_t first_row;
	uint32_t n_rows;
	uint32_t n_units; /* units of positions, up to the last row's limit */
	uint32_t span_units; /* units in one job: all, a group, or one */
	uint32_t other_units; /* units from the end of a thread's job to the start of its next */
	float *partials; /* partial results, one for each span; NULL: a single job writes out */
	atomic_uint n_jobs_left;
};

struct kvt_job {
	struct kvt_row_block *block;
	uint32_t first_unit;
	uint64_t cost; /* row units, for the order of jobs */
};

/*
 * The addresses of n positions of one plane and head. The following positions, or zero rows, fill
 * the last vector.
 */
#define KVT_ROWS_MAX 256
#define KVT_ROWS_MORE 16

struct kvt_rows {
	uint32_t n;
	const char *at[KVT_ROWS_MAX + KVT_ROWS_MORE];
};

/*
 * A path for one kind of products. A partial result of n rows is n maxima (in units of log2), n
 * sums, then n rows of padded_dim(head_dim) floats.
 */
struct kvt_path {
	const char *name;
	uint32_t (*padded_dim)(uint32_t head_dim);
	size_t (*workspace_bytes)(uint32_t head_dim);
	/* Run one job. Writes its partial result, or out if block->partials is NULL. */
	void (*job_run)(const struct kvt_job *job, void *workspace);
	/* Merge all partial results of a block in their order, and write out. */
	void (*block_finish)(const struct kvt_row_block *block, void *workspace);
};

/* The paths of one instruction set. bf16 is taken where q is bf16 and KV bf16 or fp8. */
struct kvt_isa {
	const char *name;
	const struct kvt_path *f32;
	const struct kvt_path *bf16;
};

extern const struct kvt_path kvt_path_portable_f32 KVT_HIDDEN;
#if defined(__x86_64__)
extern const struct kvt_path kvt_path_avx2_f32 KVT_HIDDEN;
extern const struct kvt_path kvt_path_avx512_f32 KVT_HIDDEN;
extern const struct kvt_path kvt_path_avx512_bf16 KVT_HIDDEN;
#endif

/*
 * A thread pool: kvt_pool_run() calls run(argument, item, worker) once for each item, from
 * n_threads threads.
 */
typedef void kvt_pool_run_fn(void *argument, uint64_t item, uint32_t worker);

struct kvt_pool {
	uint32_t n_threads; /* the caller's included */
	uint32_t n_started;
	pthread_t *threads;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_cond_t idle;
	bool stop;
	/*
	 * Running threads, and one more for each run. Written under the lock, read without it by
	 * spinning threads.
	 */
	_Alignas(KVT_CPU_ALIGN) atomic_uint n_busy;
	_Alignas(KVT_CPU_ALIGN) atomic_uint_fast64_t turn;
	_Alignas(KVT_CPU_ALIGN) atomic_uint_fast64_t next_item;
	uint64_t n_items;
	kvt_pool_run_fn *run;
	void *argument;
};

int kvt_pool_init(struct kvt_pool *pool, uint32_t n_threads) KVT_HIDDEN;
void kvt_pool_destroy(struct kvt_pool *pool) KVT_HIDDEN;
void kvt_pool_run(struct kvt_pool *pool, kvt_pool_run_fn *run, void *argument, uint64_t n_items,
		  bool alone) KVT_HIDDEN;

/* Memory that grows, kept from call to call. */
struct kvt_buffer {
	void *data;
	size_t bytes;
};

int kvt_buffer_reserve(struct kvt_buffer *buffer, size_t bytes) KVT_HIDDEN;
void kvt_buffer_free(struct kvt_buffer *buffer) KVT_HIDDEN;

struct kvt_cuda;

struct kvt_attn_context {
	uint32_t magic;
	pthread_mutex_t lock;
	char error_text[256];
	char description[160];
	enum kvt_attn_device device;
	enum kvt_attn_isa isa;
	struct kvt_isa paths;
	uint64_t scratch_bytes;
	struct kvt_pool pool;
	struct kvt_buffer limits;
	struct kvt_buffer blocks;
	struct kvt_buffer jobs;
	struct kvt_buffer partials;
	struct kvt_buffer *workspaces; /* one for each thread */
	struct kvt_cuda *cuda;
};

/* Set the context's error text and return error. */
int kvt_attn_fail(struct kvt_attn_context *context, int error, const char *format, ...) KVT_HIDDEN
	__attribute__((format(printf, 3, 4)));

/* Checks. Each returns 0, or a negative errno with the context's error text set. */
int kvt_check_prefill(struct kvt_attn_context *context,
		      const struct kvt_attn_prefill *prefill) KVT_HIDDEN;
int kvt_check_append(struct kvt_attn_context *context,
		     const struct kvt_attn_append *append) KVT_HIDDEN;
int kvt_check_copies(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		     uint32_t n_views, const struct kvt_attn_copy *copies,
		     uint32_t n_copies) KVT_HIDDEN;

/* Compute how many positions each query of a sequence sees, into limits[n_queries]. */
void kvt_sequence_limits(const struct kvt_attn_sequence *sequence, uint32_t *limits) KVT_HIDDEN;

/* Return the factor that makes a product of q and stored K a score in units of log2. */
static inline float kvt_log2_scale(const struct kvt_attn_prefill *prefill)
{
	float k_scale = prefill->kv.k_scale == 0 ? 1.0f : prefill->kv.k_scale;

	return prefill->scale * k_scale * 1.44269504f;
}

/* Fill in the strides that are 0. */
void kvt_prefill_strides(struct kvt_attn_prefill *prefill) KVT_HIDDEN;
void kvt_append_strides(struct kvt_attn_append *append) KVT_HIDDEN;

int kvt_cpu_append_prefill(struct kvt_attn_context *context,
			   const struct kvt_attn_prefill *prefill) KVT_HIDDEN;
int kvt_cpu_kv_append(struct kvt_attn_context *context,
		      const struct kvt_attn_append *append) KVT_HIDDEN;
int kvt_cpu_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		      uint32_t n_views, const struct kvt_attn_copy *copies,
		      uint32_t n_copies) KVT_HIDDEN;

int kvt_cuda_open(struct kvt_attn_context *context, uint32_t device_index) KVT_HIDDEN;
void kvt_cuda_close(struct kvt_attn_context *context) KVT_HIDDEN;
int kvt_cuda_append_prefill(struct kvt_attn_context *context,
			    const struct kvt_attn_prefill *prefill, void *stream) KVT_HIDDEN;
int kvt_cuda_kv_append(struct kvt_attn_context *context, const struct kvt_attn_append *append,
		       void *stream) KVT_HIDDEN;
int kvt_cuda_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		       uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies,
		       void *stream) KVT_HIDDEN;

#endif
