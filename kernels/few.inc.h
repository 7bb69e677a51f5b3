/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows, as in decode: KV goes straight from its pages through registers into scores and
 * outputs. Includers define besides what attention.inc.h asks for
 *
 *   words            a vector of VW words of 4 bytes
 *   words_load, words_load_8  the first four or eight words of VW rows: vector i has word i of all
 *   FEW_WORDS        words loaded at a time, 4 or 8, for which there are registers
 *   FEW_EACH(instance, type)  rows, ascending, and vectors of outputs that fit into registers
 *                    beside them; a number of rows in between takes the next instance
 *   FEW_AT_ONCE(type)  optional: more rows than these are computed in two halves
 *   FEW_STEPS(type)  steps in 4 bytes of a row of KV of this type, 0 if there is no such way
 *   keys_step        step i of VW positions, of 4 bytes of them
 *   values_load      n_vectors vectors of one step of positions
 *   FEW_TOGETHER(type, n_vectors)  optional: steps that values_load_some loads at a time, 0 if it
 *                    does not take them
 *   FEW_TYPES        a case for each type that is taken, by its name
 *   FEW_NEAR, FEW_FAR(type)  how many strips ahead fetches are
 *   FEW_PAIRED(type) optional: true if values_load gives even and odd dimensions apart, in pairs
 *   pair_split, pair_join  then: bring a pair of vectors into this order, and back
 *   FEW_SPAN(type)   positions of values that are added to outputs in registers
 *   FEW_STEPS_AT_ONCE  steps of them without a loop
 *
 * Memory is the limit here. While strips are used, those after them are fetched: FEW_FAR strips
 * ahead into the second cache, FEW_NEAR strips ahead into the first one. A core's first cache can
 * wait for few lines at a time: with all fetches into it, Zen 4 had half of the bandwidth. Fetches
 * are spread evenly over the products: while the core waits for none, bandwidth is lost.
 */

#define INLINE static inline __attribute__((always_inline))

#define FEW_ROWS 8
/* Loops over more than 16 steps are not unrolled. */
#define FEW_WORDS_OF(type) (FEW_STEPS(type) < 3 ? FEW_WORDS : 4)
#ifndef FEW_AT_ONCE
#define FEW_AT_ONCE(type) FEW_ROWS
#endif

struct few {
	uint32_t type;
	uint32_t n_keys; /* of FEW_STRIPS strips */
	uint32_t n_rows;
	uint32_t dim;
	uint32_t out_dim;
	size_t q_stride; /* elements from row to row of the queries */
	size_t stride; /* bytes from position to position */
	size_t next_stride; /* of the rows being fetched */
	/* Addresses of strips, VW positions each: FEW_STRIPS in use, and those read next. */
	const char *strips[2 * FEW_STRIPS];
};

static bool few_possible(uint32_t dim, uint32_t type)
{
	return FEW_STEPS(type) && dim * kvt_type_size(type) % (4 * FEW_WORDS_OF(type)) == 0;
}

/* Fetch lines for use soon into the first cache, if near, those for use later into the second. */
INLINE void lines_fetch(const char *near, const char *far, uint32_t bytes)
{
	_Pragma("GCC unroll 4") for (uint32_t i = 0; i < bytes; i += 64) {
		if (near)
			__builtin_prefetch(near + i, 0, 3);
		__builtin_prefetch(far + i, 0, 2);
	}
}

/* Fetch what follows a row of the panel. In the first cache rows apart drive each other out. */
INLINE void row_ahead(const struct few *few, uint32_t row, const uint32_t type)
{
	const uint32_t row_bytes = few->dim * kvt_type_size(type);
	size_t within = row % VW * few->next_stride;
	const char *near = few->strips[row / VW + FEW_NEAR] + within;

	lines_fetch(few->next_stride == row_bytes ? near : NULL,
		    few->strips[row / VW + FEW_FAR(type)] + within, row_bytes);
}

/*
 * Fetch what follows two strips, in step with their use: at byte x of their rows, 2 * VW bytes for
 * each of the next n. Returns the start of adjacent rows in *ret_near and *ret_far; for other rows,
 * of which *row were fetched, fetches at once and returns NULL.
 */
INLINE void strips_ahead(const struct few *few, uint32_t strip, uint32_t x, const uint32_t n,
			 const char **ret_near, const char **ret_far, uint32_t *row,
			 const uint32_t type, const bool adjacent)
{
	uint32_t row_bytes = few->dim * kvt_type_size(type), strip_bytes = VW * row_bytes;
	uint32_t at = 2 * VW * x;

	*ret_near = *ret_far = NULL;
	if (adjacent) {
		strip += at >= strip_bytes;
		at -= at >= strip_bytes ? strip_bytes : 0;
		*ret_near = few->strips[strip + FEW_NEAR] + at;
		*ret_far = few->strips[strip + FEW_FAR(type)] + at;
		return;
	}
	for (; (*row + 1) * row_bytes <= at + 2 * VW * n; ++*row)
		row_ahead(few, strip * VW + *row, type);
}

INLINE vb keys_step(words word, const uint32_t i, const uint32_t type);

INLINE void values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
			const uint32_t n_vectors, const uint32_t type);

#ifndef FEW_TOGETHER
#define FEW_TOGETHER(type, n_vectors) 0

INLINE void values_load_some(const char *row, size_t stride, uint32_t v, vb *ret_steps,
			     const uint32_t n_vectors)
{
	(void)row, (void)stride, (void)v, (void)ret_steps, (void)n_vectors;
}
#endif

#ifndef FEW_PAIRED
#define FEW_PAIRED(type) 0

INLINE void pair_split(vf *pair)
{
	(void)pair;
}

INLINE void pair_join(vf *pair)
{
	(void)pair;
}
#endif

#include "few_scores.inc.h"
#include "few_values.inc.h"

#define FEW_CASE(rows, width, name)                                                                \
	if (few->n_rows <= rows) {                                                                 \
		few_scores_of(few, scores, queries, rows, KVT_ATTN_##name);                        \
		return;                                                                            \
	}
#define FEW_SCORES(name)                                                                           \
	static void few_scores_##name(const struct few *few, float *scores,                        \
				      const element *queries)                                      \
	{                                                                                          \
		FEW_EACH(FEW_CASE, name)                                                           \
	}
FEW_TYPES(FEW_SCORES)
#undef FEW_CASE

/* These return true if all outputs, and so all values, are finite. If not, they must not be
 * used. */
#define FEW_CASE(rows, width, name)                                                                \
	if (few->n_rows <= rows)                                                                   \
		return few_values_of(few, outputs, weights, rows, width, KVT_ATTN_##name);
#define FEW_VALUES(name)                                                                           \
	static bool few_values_##name(const struct few *few, float *outputs,                       \
				      const element *weights)                                      \
	{                                                                                          \
		FEW_EACH(FEW_CASE, name)                                                           \
		return false;                                                                      \
	}
FEW_TYPES(FEW_VALUES)
#undef FEW_CASE

static void few_scores(const struct few *few, float *scores, const element *queries)
{
	if (few->n_rows > FEW_AT_ONCE(few->type)) {
		struct few half = *few;

		half.n_rows = few->n_rows / 2;
		few_scores(&half, scores, queries);
		scores += half.n_rows * BLOCK;
		queries += half.n_rows * few->q_stride;
		half.n_rows = few->n_rows - half.n_rows;
		few_scores(&half, scores, queries);
		return;
	}
#define FEW_CASE(name)                                                                             \
	case KVT_ATTN_##name:                                                                      \
		few_scores_##name(few, scores, queries);                                           \
		break;
	switch (few->type) {
		FEW_TYPES(FEW_CASE)
	}
#undef FEW_CASE
}

static bool few_values(const struct few *few, float *outputs, const element *weights)
{
	if (few->n_rows > FEW_AT_ONCE(few->type)) {
		struct few half = *few;
		bool good;

		half.n_rows = few->n_rows / 2;
		good = few_values(&half, outputs, weights);
		outputs += half.n_rows * few->out_dim;
		weights += half.n_rows * BLOCK;
		half.n_rows = few->n_rows - half.n_rows;
		return few_values(&half, outputs, weights) && good;
	}
#define FEW_CASE(name)                                                                             \
	case KVT_ATTN_##name:                                                                      \
		return few_values_##name(few, outputs, weights);
	switch (few->type) {
		FEW_TYPES(FEW_CASE)
	}
#undef FEW_CASE
	return false;
}
