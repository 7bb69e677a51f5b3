/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows, as in decode, with AVX-512: KV goes straight from its pages through registers into
 * scores and outputs. Includers define besides what attention.inc.h asks for
 *
 *   FEW_STEPS(type)  steps in 16 bytes of a row of KV of this type, 0 if there is no such way
 *   FEW_FAR(type)    strips between what is used and what is fetched first
 *   keys_load        16 bytes of sixteen positions: vector i gets step i of all of them
 *   values_load      n_vectors vectors of one step of positions
 *   FEW_TYPES        a case for each type that is taken, by its name
 *
 * Memory is the limit here. While a strip is used, those after it are fetched row by row, twice:
 * FEW_FAR strips ahead past the third cache, which would only be filled with what is not read
 * again, and FEW_NEAR strips ahead into the first. Either alone has too few fetches on their way.
 */

#define INLINE static inline __attribute__((always_inline))
#define FEW_ROWS 8
#define FEW_STRIPS GEMM_VECTORS
#define FEW_NEAR 2

struct few {
	uint32_t type;
	uint32_t n_keys; /* of a panel */
	uint32_t n_rows;
	uint32_t dim;
	uint32_t out_dim;
	size_t q_stride; /* elements from row to row of the queries */
	size_t stride; /* bytes from position to position */
	size_t next_stride; /* where they are fetched */
	/* Where strips, VW positions each, begin: those of a panel, and of what is read next. */
	const char *strips[2 * FEW_STRIPS];
};

static bool few_possible(uint32_t dim, uint32_t type)
{
	return FEW_STEPS(type) && dim * kvt_type_size(type) % 16 == 0;
}

INLINE void few_fetch(const struct few *few, uint32_t row, const uint32_t type)
{
	size_t within = row % VW * few->next_stride;
	const char *near = few->strips[row / VW + FEW_NEAR] + within;
	const char *far = few->strips[row / VW + FEW_FAR(type)] + within;

	for (uint32_t i = 0; i < few->dim * kvt_type_size(type); i += 64) {
		_mm_prefetch(near + i, _MM_HINT_T0);
		_mm_prefetch(far + i, _MM_HINT_NTA);
	}
}

static inline __m128i sixteen_load(const char *source)
{
	return _mm_loadu_si128((const __m128i *)(const void *)source);
}

/*
 * Sixteen bytes of sixteen rows: vector i gets word i of all rows. Sixteen bytes of four rows
 * make a vector while they are loaded, which is half of the transposition.
 */
INLINE void words_load(const char *strip, size_t stride, __m512i *ret_words)
{
	__m512i t[4], u[4];

	UNROLL_FOR (i, 4) {
		const char *row = strip + i * stride;

		t[i] = _mm512_castsi128_si512(sixteen_load(row));
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 4 * stride), 1);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 8 * stride), 2);
		t[i] = _mm512_inserti32x4(t[i], sixteen_load(row + 12 * stride), 3);
	}
	u[0] = _mm512_unpacklo_epi32(t[0], t[1]);
	u[1] = _mm512_unpackhi_epi32(t[0], t[1]);
	u[2] = _mm512_unpacklo_epi32(t[2], t[3]);
	u[3] = _mm512_unpackhi_epi32(t[2], t[3]);
	ret_words[0] = _mm512_unpacklo_epi64(u[0], u[2]);
	ret_words[1] = _mm512_unpackhi_epi64(u[0], u[2]);
	ret_words[2] = _mm512_unpacklo_epi64(u[1], u[3]);
	ret_words[3] = _mm512_unpackhi_epi64(u[1], u[3]);
}

INLINE void keys_load(const char *strip, size_t stride, vb *ret_steps, const uint32_t type);

INLINE void values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
			const uint32_t n_vectors, const uint32_t type);

INLINE void few_scores_of(const struct few *few, float *scores, const element *queries,
			  const uint32_t n_rows, const uint32_t type)
{
	const uint32_t row_bytes = few->dim * kvt_type_size(type);
	const uint32_t n_steps = FEW_STEPS(type);

	for (uint32_t key = 0; key < few->n_keys; key += 2 * VW) {
		const char *const *strips = few->strips + key / VW;
		const element *q = queries;
		vf c[FEW_ROWS][2];
		uint32_t fetched = 0;

		UNROLL_FOR (r, n_rows)
			c[r][0] = c[r][1] = v_zero();
		for (uint32_t x = 0; x < row_bytes; x += 16, q += n_steps * STEP) {
			vb low[8], high[8];

			for (; fetched * row_bytes < 2 * VW * (x + 16); fetched++)
				few_fetch(few, key + fetched, type);
			keys_load(strips[0] + x, few->stride, low, type);
			keys_load(strips[1] + x, few->stride, high, type);
			UNROLL_FOR (i, n_steps)
				UNROLL_FOR (r, n_rows) {
					vb step = a_broadcast(q + r * few->q_stride + i * STEP);

					c[r][0] = dot(c[r][0], low[i], step);
					c[r][1] = dot(c[r][1], high[i], step);
				}
		}
		UNROLL_FOR (r, n_rows) {
			v_store(scores + r * BLOCK + key, c[r][0]);
			v_store(scores + r * BLOCK + key + VW, c[r][1]);
		}
	}
}

/* Some rows' outputs: n_vectors of them, the first being number v. */
INLINE bool few_values_some(const struct few *few, float *outputs, const element *weights,
			    uint32_t v, const uint32_t n_rows, const uint32_t n_vectors,
			    const uint32_t type)
{
	vf c[FEW_ROWS][4];
	__mmask16 bad = 0;

	outputs += v * VW;
	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (i, n_vectors)
			c[r][i] = v_load(outputs + r * few->out_dim + i * VW);
	for (uint32_t key = 0; key < few->n_keys; key += STEP) {
		const char *row = few->strips[key / VW] + key % VW * few->stride;
		vb step[4];

		values_load(row, few->stride, few->dim, v, step, n_vectors, type);
		UNROLL_FOR (r, n_rows) {
			vb weight = a_broadcast(weights + r * BLOCK + key);

			UNROLL_FOR (i, n_vectors)
				c[r][i] = dot(c[r][i], step[i], weight);
		}
		UNROLL_FOR (i, STEP)
			if (v == 0)
				few_fetch(few, key + i, type);
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
	const uint32_t n_vectors = few->out_dim / VW;
	bool good = true;
	uint32_t v = 0;

	for (; v + width <= n_vectors; v += width)
		good &= few_values_some(few, outputs, weights, v, n_rows, width, type);
	for (; v < n_vectors; v++)
		good &= few_values_some(few, outputs, weights, v, n_rows, 1, type);
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

/* They return whether all outputs are finite, and so all values were. If not, they are no use. */
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
