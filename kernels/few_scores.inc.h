/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of few rows, from pages through registers. See few.inc.h. */

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
