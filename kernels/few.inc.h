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

/* Add the products of two strips' words with queries to c; for each word, fetch 8 * VW bytes. */
INLINE void words_add(vf (*c)[2], const words *low, const words *high,
		      const element *const *queries, const char *near, const char *far,
		      const uint32_t n_words, const uint32_t n_rows, const uint32_t type,
		      const bool fetch)
{
	const uint32_t n_steps = n_words * FEW_STEPS(type), bytes = 8 * VW;

	UNROLL_FOR (i, n_steps) {
		const uint32_t word = i / FEW_STEPS(type), step = i % FEW_STEPS(type);
		vb a = keys_step(low[word], step, type), b = keys_step(high[word], step, type);

		UNROLL_FOR (r, n_rows) {
			vb q = a_broadcast(queries[r] + i * STEP);

			c[r][0] = dot(c[r][0], a, q);
			c[r][1] = dot(c[r][1], b, q);
		}
		if (fetch && step == 0)
			lines_fetch(near + word * bytes, far + word * bytes, bytes);
	}
}

/*
 * Compute the scores of two strips. If the rows that are fetched lie side by side, fetches are in
 * step with the words.
 */
INLINE void strips_scores(const struct few *few, uint32_t strip, float *scores,
			  const element *queries, const uint32_t n_rows, const uint32_t type)
{
	const uint32_t row_bytes = few->dim * kvt_type_size(type);
	const uint32_t word_elements = 4 / kvt_type_size(type);
	const uint32_t n_words = FEW_WORDS_OF(type), bytes = 4 * n_words;
	const bool adjacent = few->next_stride == row_bytes;
	const char *a = few->strips[strip], *b = few->strips[strip + 1], *near, *far;
	const element *q[FEW_ROWS];
	words low[8], high[8];
	vf c[FEW_ROWS][2];
	uint32_t x = 0, row = 0;

	UNROLL_FOR (r, n_rows) {
		/* Rows that do not exist repeat the last one; their results are dropped. */
		q[r] = queries + (r < few->n_rows ? r : few->n_rows - 1) * few->q_stride;
		/* Else the compiler makes one pointer and more offsets than there are registers. */
		__asm__("" : "+r"(q[r]));
		c[r][0] = c[r][1] = v_zero();
	}
	/* Rows apart may share a set of the cache: use up a line before one of the other strip. */
	for (; n_words == 8 && !adjacent && x + 64 <= row_bytes; x += 64) {
		words rest[8];

		strips_ahead(few, strip, x, 64, &near, &far, &row, type, false);
		words_load_8(a + x, few->stride, low);
		words_load_8(a + x + 32, few->stride, rest);
		UNROLL_FOR (half, 2) {
			words_load_8(b + x + 32 * half, few->stride, high);
			words_add(c, half ? rest : low, high, q, near, far, 8, n_rows, type, false);
			UNROLL_FOR (r, n_rows)
				q[r] += 8 * word_elements;
		}
	}
	for (; x < row_bytes; x += bytes) {
		strips_ahead(few, strip, x, bytes, &near, &far, &row, type, adjacent);
		if (n_words == 8) {
			words_load_8(a + x, few->stride, low);
			words_load_8(b + x, few->stride, high);
		} else {
			words_load(a + x, few->stride, low);
			words_load(b + x, few->stride, high);
		}
		words_add(c, low, high, q, near, far, n_words, n_rows, type, adjacent);
		UNROLL_FOR (r, n_rows)
			q[r] += n_words * word_elements;
	}
	UNROLL_FOR (r, n_rows) {
		if (r >= few->n_rows)
			break;
		v_store(scores + r * BLOCK + strip * VW, c[r][0]);
		v_store(scores + r * BLOCK + strip * VW + VW, c[r][1]);
	}
}

INLINE void few_scores_of(const struct few *few, float *scores, const element *queries,
			  const uint32_t n_rows, const uint32_t type)
{
	for (uint32_t strip = 0; strip * VW < few->n_keys; strip += 2)
		strips_scores(few, strip, scores, queries, n_rows, type);
}

/* Add FEW_STEPS_AT_ONCE weighted steps of positions, which begin at row, to c. */
INLINE void values_add(const struct few *few, vf (*c)[4], const element *weights, const char *row,
		       uint32_t v, const uint32_t n_rows, const uint32_t n_vectors,
		       const uint32_t type)
{
	const uint32_t some = FEW_TOGETHER(type, n_vectors);
	const size_t stride = few->stride;
	vb steps[4];

	UNROLL_FOR (j, FEW_STEPS_AT_ONCE) {
		const uint32_t first = j % (some ? some : 1) * n_vectors;

		if (!some)
			values_load(row, stride, few->dim, v, steps, n_vectors, type);
		else if (!first)
			values_load_some(row, stride, v, steps, n_vectors);
		UNROLL_FOR (r, n_rows) {
			vb weight = a_broadcast(weights + r * BLOCK + j * STEP);

			UNROLL_FOR (i, n_vectors)
				c[r][i] = dot(c[r][i], steps[first + i], weight);
		}
		row += STEP * stride;
	}
}

/*
 * Add a span's part to some rows' outputs: n_vectors of them from number v on. Rows that do not
 * exist are read from what follows in the workspace, and dropped. Does one of n_passes parts of the
 * fetches. Returns the marks, NaN where an output is not finite.
 */
INLINE vf few_values_some(const struct few *few, float *outputs, const element *weights,
			  uint32_t first, uint32_t v, uint32_t pass, uint32_t n_passes, vf marks,
			  const uint32_t n_rows, const uint32_t n_vectors, const uint32_t type)
{
	const uint32_t span = FEW_SPAN(type), n_pairs = FEW_PAIRED(type) ? n_vectors / 2 : 0;
	uint32_t end = few->n_keys - first < span ? few->n_keys : first + span;
	uint32_t ahead = first + span * pass / n_passes, due = 0;
	const char *row = NULL;
	vf c[FEW_ROWS][4];

	outputs += v * VW;
	UNROLL_FOR (r, n_rows) {
		UNROLL_FOR (i, n_vectors)
			c[r][i] = v_load(outputs + r * few->out_dim + i * VW);
		UNROLL_FOR (i, n_pairs)
			pair_split(c[r] + 2 * i);
	}
	for (uint32_t key = first; key < end;) {
		if (key % VW == 0)
			row = few->strips[key / VW];
		/* Positions from n_keys on are zero rows with weights of zero. */
		values_add(few, c, weights + key, row, v, n_rows, n_vectors, type);
		key += FEW_STEPS_AT_ONCE * STEP;
		row += FEW_STEPS_AT_ONCE * STEP * few->stride;
		for (due += FEW_STEPS_AT_ONCE * STEP; due >= n_passes; due -= n_passes)
			row_ahead(few, ahead++, type);
	}
	UNROLL_FOR (r, n_rows) {
		if (r >= few->n_rows)
			break;
		UNROLL_FOR (i, n_pairs)
			pair_join(c[r] + 2 * i);
		UNROLL_FOR (i, n_vectors) {
			marks = v_fma(c[r][i], v_zero(), marks);
			v_store(outputs + r * few->out_dim + i * VW, c[r][i]);
		}
	}
	return marks;
}

INLINE bool few_values_of(const struct few *few, float *outputs, const element *weights,
			  const uint32_t n_rows, const uint32_t width, const uint32_t type)
{
	const uint32_t n_vectors = few->out_dim / VW, n_whole = few->dim / VW / width;
	const uint32_t n_passes = n_whole + n_vectors - n_whole * width;
	vf marks = v_zero();

	for (uint32_t key = 0; key < few->n_keys; key += FEW_SPAN(type)) {
		uint32_t pass = 0;

		for (; pass < n_whole; pass++)
			marks = few_values_some(few, outputs, weights, key, pass * width, pass,
						n_passes, marks, n_rows, width, type);
		for (; pass < n_passes; pass++)
			marks = few_values_some(few, outputs, weights, key,
						pass + n_whole * (width - 1), pass, n_passes, marks,
						n_rows, 1, type);
	}
	return !v_any_not_finite(marks);
}

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
