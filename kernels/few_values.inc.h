/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs of few rows, from pages through registers. See few.inc.h. */

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
