/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the kernel tests: cases that are counted, memory with guard pages, random numbers,
 * element types written a second time (slow and plain), a pool with sequences in it, and attention
 * in double precision.
 */
#ifndef KVT_TESTS_KERNELS_SUPPORT_H
#define KVT_TESTS_KERNELS_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvt_kernels.h"

/* Cases */

/* Begin a case; ends the one before. */
void case_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* End the case as skipped, with the reason. */
void case_skip(const char *reason);
/* Record a failure of the current case. */
void case_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Print the counts. Returns the program's exit status. */
int cases_end(void);

#define EXPECT(condition)                                                                          \
	do {                                                                                       \
		if (!(condition))                                                                  \
			case_fail(__FILE__, __LINE__, "%s", #condition);                           \
	} while (0)
#define EXPECT_EQUAL(a, b)                                                                         \
	do {                                                                                       \
		long long a_ = (long long)(a), b_ = (long long)(b);                                \
		if (a_ != b_)                                                                      \
			case_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #a, a_, b_);         \
	} while (0)

/* Random numbers, equal for equal seeds on every machine. */

struct random {
	uint64_t state;
};

uint64_t random_next(struct random *random);
uint32_t random_below(struct random *random, uint32_t n);
/* About normal: mean 0, deviation 1. */
float random_normal(struct random *random);

/* Memory that ends at an unreadable page, and begins after another if its size allows. */

struct guarded {
	void *data;
	size_t bytes;
	void *map;
	size_t map_bytes;
};

/* Declares variables that NAME_free() frees at the end of the block. */
#define OWNED(name) __attribute__((cleanup(name##_free))) struct name

struct guarded guarded_alloc(size_t bytes);
void guarded_free(struct guarded *memory);

/* Element types */

size_t type_bytes(uint32_t type);
const char *type_name(uint32_t type);
double element_read(const void *element, uint32_t type);
void element_write(void *element, uint32_t type, double value);

/*
 * A pool of one layer, or the middle one of several, with sequences whose KV is a function of
 * their seeds.
 */

struct pool {
	struct kvt_attn_geometry geometry;
	struct guarded slab;
	struct kvt_attn_view view;
	uint32_t *free_pages; /* in random order, without page 0 */
	uint32_t n_free;
};

struct pool_options {
	uint32_t n_pages;
	uint32_t page_size;
	uint32_t n_kv_heads;
	uint32_t head_dim;
	uint32_t type;
	uint32_t layout;
	uint32_t order;
	uint64_t seed; /* of the page order */
};

/* All bytes are 0xff, NaN in all types. */
struct pool pool_make(const struct pool_options *options);
void pool_free(struct pool *pool);

struct text {
	uint32_t n_positions;
	uint32_t *pages;
	uint32_t n_pages;
};

/* Positions 0 .. n_positions - 1 of the text with this seed, in pages of the pool. */
struct text text_make(struct pool *pool, uint64_t seed, uint32_t n_positions);
void text_free(struct text *text);
/* One element of a text's K (plane 0) or V (plane 1) before it is rounded to the pool's type. */
float text_value(uint64_t seed, uint32_t plane, uint32_t position, uint32_t head, uint32_t dim);
void *pool_element(const struct pool *pool, uint32_t plane, uint32_t page, uint32_t head,
		   uint32_t position, uint32_t dim);

/* Queries of a batch, and poisoned memory for the result; rows are [query][head][dim]. */

struct rows {
	struct guarded q;
	struct guarded out;
	uint32_t n_heads;
	uint32_t head_dim;
	uint32_t q_type;
	uint32_t out_type;
};

struct rows rows_make(uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t q_type,
		      uint32_t out_type);
void rows_free(struct rows *rows);
/* Fill queries of positions [first, first + n) of a text into rows from row on. */
void rows_fill(struct rows *rows, uint32_t row, uint64_t seed, uint32_t first, uint32_t n);

/*
 * Relative error of one query head of one row: the norm of the difference by the norm of the
 * reference. group_heads query heads use one KV head.
 */
double rows_error(const struct rows *rows, uint32_t row, uint32_t head, const struct pool *pool,
		  const struct text *text, uint32_t group_heads, uint32_t limit, double scale);

/*
 * Positions [first, first + n), computed twice as fp32, must have the same bits. Row 0 of result is
 * position first, row 0 of expected an earlier one.
 */
void rows_compare(const struct rows *expected, uint32_t expected_first, const struct rows *result,
		  uint32_t first, uint32_t n);

/* A text in a pool, and queries about it. */

struct scene_options {
	uint32_t head_dim;
	uint32_t n_kv_heads;
	uint32_t group_heads; /* query heads per KV head */
	uint32_t n_positions;
	uint32_t page_size;
	uint32_t kv_type;
	uint32_t q_type;
};

/* Cases in which CUDA kernels are compared with the reference, on a device and on emulated
 * hardware. */
struct scene_shape {
	struct scene_options scene;
	uint32_t n; /* the last ones have queries */
};
#define N_SCENE_SHAPES 14
extern const struct scene_shape scene_shapes[N_SCENE_SHAPES];

struct scene {
	struct scene_options is;
	struct pool pool;
	struct text text;
};

struct scene scene_make(const struct scene_options *options);
void scene_free(struct scene *scene);

/*
 * A case with a random shape: head dim, page size, group and types, up to four regions, one of
 * which the end may cut; two sequences that share their pages, and one without queries between
 * them. run computes it, and may draw random numbers; tolerance is the largest relative error of a
 * row.
 */
void random_test(const char *what, uint32_t seed,
		 void (*run)(const struct kvt_attn_prefill *prefill, struct random *random,
			     void *context),
		 double (*tolerance)(const struct scene *scene, uint32_t out_type, void *context),
		 void *context);

/*
 * A random shape of up to n_positions_max positions, as a whole; and twice more, cut into at most
 * n_parts_max parts in any order, in pages of another size, layout and order. Bits must be equal.
 * run computes what it gets, in the rounding mode that it gets, and may draw random numbers.
 * (random_bits.c)
 */
#define RANDOM_PARTS_MAX 24
typedef void random_run_fn(const struct kvt_attn_prefill *prefill, int rounding_mode,
			   struct random *random, void *context);
void random_bits_test(const char *what, uint32_t seed, uint32_t n_positions_max,
		      uint32_t n_parts_max, random_run_fn *run, void *context);
/* The first seed of random tests: KVT_SEED, or a random one; and their number, KVT_CASES or n. */
uint32_t random_seed(void);
uint32_t random_cases(uint32_t n);

/* How many positions a query at this position sees, in the plainest code. */
uint32_t reference_limit(uint32_t position, uint32_t n_positions,
			 const struct kvt_attn_region *regions, uint32_t n_regions);

/* The paths, and a context for one; NULL if this CPU lacks it. */
#define N_ISAS 5
extern const char *const isa_names[N_ISAS];
/* True if the path multiplies in bf16 where q is bf16 and KV is bf16 or fp8. */
bool isa_rounds(uint32_t isa);
struct kvt_attn_context *context_for(uint32_t isa, uint32_t n_threads, uint64_t scratch_bytes);

#endif
