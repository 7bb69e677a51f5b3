/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows, as in decode, with AVX-512: KV goes straight from its pages through registers into
 * scores and outputs. Includers define besides what attention.inc.h asks for
 *
 *   FEW_STEPS(type)  steps in 4 bytes of a row of KV of this type, 0 if there is no such way
 *   keys_step        step i of sixteen positions, of 4 bytes of them
 *   values_load      n_vectors vectors of one step of positions
 *   FEW_TYPES        a case for each type that is taken, by its name
 *
 * Memory is the limit here. While two strips are used, those after them are fetched into the first
 * cache, twice: FEW_FAR strips ahead, and again FEW_NEAR strips ahead, since a core drops fetches
 * when it has too many. Fetches are spread evenly over the products: the core can wait for few
 * lines at a time, and while it waits for none, bandwidth is lost.
 */

#include "strips.inc.h"

#define FEW_ROWS 8
#define FEW_NEAR 2
/* Fetched data fits into L1 beside the data in use. */
#define FEW_FAR(type) (kvt_type_size(type) == 4 ? 3 : 4)

static bool few_possible(uint32_t dim, uint32_t type)
{
	return FEW_STEPS(type) && dim * kvt_type_size(type) % 16 == 0;
}

/* Fetch lines for use soon, and for use later. */
INLINE void lines_fetch(const char *near, const char *far, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 64) {
		_mm_prefetch(near + i, _MM_HINT_T0);
		_mm_prefetch(far + i, _MM_HINT_T0);
	}
}

/* Fetch what follows a row of the panel. */
INLINE void row_ahead(const struct few *few, uint32_t row, const uint32_t type)
{
	size_t within = row % VW * few->next_stride;

	lines_fetch(few->strips[row / VW + FEW_NEAR] + within,
		    few->strips[row / VW + FEW_FAR(type)] + within,
		    few->dim * kvt_type_size(type));
}

/*
 * Fetch what follows two strips, in step with their use: at byte x of their rows, 2 * VW bytes for
 * each of the next n. Returns the start of adjacent rows in *ret_near and *ret_far; for other rows
 * fetches at once and returns NULL.
 */
INLINE void strips_ahead(const struct few *few, uint32_t strip, uint32_t x, const uint32_t n,
			 const char **ret_near, const char **ret_far, const uint32_t type)
{
	uint32_t row_bytes = few->dim * kvt_type_size(type), strip_bytes = VW * row_bytes;
	uint32_t at = 2 * VW * x;

	*ret_near = *ret_far = NULL;
	if (few->next_stride == row_bytes) {
		strip += at >= strip_bytes;
		at -= at >= strip_bytes ? strip_bytes : 0;
		*ret_near = few->strips[strip + FEW_NEAR] + at;
		*ret_far = few->strips[strip + FEW_FAR(type)] + at;
		return;
	}
	for (uint32_t row = at / row_bytes; row < (at + 2 * VW * n) / row_bytes; row++)
		row_ahead(few, strip * VW + row, type);
}

INLINE vb keys_step(__m512i word, const uint32_t i, const uint32_t type);

INLINE void values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
			const uint32_t n_vectors, const uint32_t type);

/* Add the products of two strips' words with queries to c; for each word, fetch 8 * VW bytes. */
INLINE void words_add(vf (*c)[2], const __m512i *low, const __m512i *high, const element *queries,
		      size_t q_stride, const char *near, const char *far, const uint32_t n_words,
		      const uint32_t n_rows, const uint32_t type)
{
	const uint32_t n_steps = n_words * FEW_STEPS(type), bytes = 8 * VW;

	UNROLL_FOR (i, n_steps) {
		const uint32_t word = i / FEW_STEPS(type), step = i % FEW_STEPS(type);
		vb a = keys_step(low[word], step, type), b = keys_step(high[word], step, type);

		UNROLL_FOR (r, n_rows) {
			vb q = a_broadcast(queries + r * q_stride + i * STEP);

			c[r][0] = dot(c[r][0], a, q);
			c[r][1] = dot(c[r][1], b, q);
		}
		if (near && step == 0)
			lines_fetch(near + word * bytes, far + word * bytes, bytes);
	}
}

INLINE void few_scores_of(const struct few *few, float *scores, const element *queries,
			  const uint32_t n_rows, const uint32_t type)
{
	const uint32_t row_bytes = few->dim * kvt_type_size(type);
	const uint32_t word_elements = 4 / kvt_type_size(type);

	for (uint32_t strip = 0; strip * VW < few->n_keys; strip += 2) {
		const char *a = few->strips[strip], *b = few->strips[strip + 1];
		const char *near, *far;
		const element *q = queries;
		uint32_t x = 0;
		__m512i low[8], high[8];
		vf c[FEW_ROWS][2];

		UNROLL_FOR (r, n_rows)
			c[r][0] = c[r][1] = v_zero();
		for (; x + 32 <= row_bytes; x += 32, q += 8 * word_elements) {
			strips_ahead(few, strip, x, 32, &near, &far, type);
			words_load_8(a + x, few->stride, low);
			words_load_8(b + x, few->stride, high);
			words_add(c, low, high, q, few->q_stride, near, far, 8, n_rows, type);
		}
		for (; x < row_bytes; x += 16, q += 4 * word_elements) {
			strips_ahead(few, strip, x, 16, &near, &far, type);
			words_load(a + x, few->stride, low);
			words_load(b + x, few->stride, high);
			words_add(c, low, high, q, few->q_stride, near, far, 4, n_rows, type);
		}
		UNROLL_FOR (r, n_rows) {
			v_store(scores + r * BLOCK + strip * VW, c[r][0]);
			v_store(scores + r * BLOCK + strip * VW + VW, c[r][1]);
		}
	}
}

/*
 * Add two strips' part to some rows' outputs: n_vectors of them from number v on. Does one of
 * n_passes parts of the fetches.
 */
INLINE bool few_values_some(const struct few *few, float *outputs, const element *weights,
			    uint32_t first, uint32_t v, uint32_t pass, uint32_t n_passes,
			    const uint32_t n_rows, const uint32_t n_vectors, const uint32_t type)
{
	uint32_t end = few->n_keys - first < 2 * VW ? few->n_keys : first + 2 * VW;
	uint32_t ahead = first + 2 * VW * pass / n_passes, due = 0;
	vf c[FEW_ROWS][4];
	__mmask16 bad = 0;

	outputs += v * VW;
	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (i, n_vectors)
			c[r][i] = v_load(outputs + r * few->out_dim + i * VW);
	for (uint32_t key = first; key < end; key += STEP) {
		const char *row = few->strips[key / VW] + key % VW * few->stride;
		vb step[4];

		values_load(row, few->stride, few->dim, v, step, n_vectors, type);
		UNROLL_FOR (r, n_rows) {
			vb weight = a_broadcast(weights + r * BLOCK + key);

			UNROLL_FOR (i, n_vectors)
				c[r][i] = dot(c[r][i], step[i], weight);
		}
		for (due += STEP; due >= n_passes; due -= n_passes)
			row_ahead(few, ahead++, type);
	}
	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (i, n_vectors) {
			/* NaN or infinite */
			bad |= _mm512_fpclass_ps_mask(c[r][i], 0x99);
			v_store(outputs + r * few->out_dim + i * VW, c[r][i]);
		}
	return !bad;
}

INLINE bool few_values_of(const struct few *few, float *outputs, const element *weights,
			  const uint32_t n_rows, const uint32_t width, const uint32_t type)
{
	const uint32_t n_vectors = few->out_dim / VW, n_whole = few->dim / VW / width;
	const uint32_t n_passes = n_whole + n_vectors - n_whole * width;
	bool good = true;

	for (uint32_t key = 0; key < few->n_keys; key += 2 * VW) {
		uint32_t pass = 0;

		for (; pass < n_whole; pass++)
			good &= few_values_some(few, outputs, weights, key, pass * width, pass,
						n_passes, n_rows, width, type);
		for (; pass < n_passes; pass++)
			good &= few_values_some(few, outputs, weights, key,
						pass + n_whole * (width - 1), pass, n_passes,
						n_rows, 1, type);
	}
	return good;
}

/* Rows, and vectors of outputs that fit into registers beside them. */
#define FEW_EACH(instance, type)                                                                   \
	instance(1, 4, type) instance(2, 4, type) instance(3, 4, type) instance(4, 4, type)        \
		instance(5, 2, type) instance(6, 2, type) instance(7, 2, type) instance(8, 2, type)

#define FEW_CASE(rows, width, name)                                                                \
	case rows:                                                                                 \
		few_scores_of(few, scores, queries, rows, KVT_ATTN_##name);                        \
		break;
#define FEW_SCORES(name)                                                                           \
	static void few_scores_##name(const struct few *few, float *scores,                        \
				      const element *queries)                                      \
	{                                                                                          \
		switch (few->n_rows) {                                                             \
			FEW_EACH(FEW_CASE, name)                                                   \
		}                                                                                  \
	}
FEW_TYPES(FEW_SCORES)
#undef FEW_CASE

/* These return true if all outputs, and so all values, are finite. If not, they must not be
 * used. */
#define FEW_CASE(rows, width, name)                                                                \
	case rows:                                                                                 \
		return few_values_of(few, outputs, weights, rows, width, KVT_ATTN_##name);
#define FEW_VALUES(name)                                                                           \
	static bool few_values_##name(const struct few *few, float *outputs,                       \
				      const element *weights)                                      \
	{                                                                                          \
		switch (few->n_rows) {                                                             \
			FEW_EACH(FEW_CASE, name)                                                   \
		}                                                                                  \
		return false;                                                                      \
	}
FEW_TYPES(FEW_VALUES)
#undef FEW_CASE

static void few_scores(const struct few *few, float *scores, const element *queries)
{
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
#define FEW_CASE(name)                                                                             \
	case KVT_ATTN_##name:                                                                      \
		return few_values_##name(few, outputs, weights);
	switch (few->type) {
		FEW_TYPES(FEW_CASE)
	}
#undef FEW_CASE
	return false;
}
