/* SPDX-License-Identifier: Apache-2.0 */
/* A tile on a block: scores, weights, outputs. See attention.inc.h. */

/* Some rows of the block, and how many of the unit's positions each sees. */
struct tile {
	uint32_t first_row;
	uint32_t n_rows;
	uint32_t head_rows; /* rows of each KV head */
	uint32_t n_bands; /* of a head: the rows of one inner kernel each */
	/* Where each band of a head begins, and where the last one ends. */
	uint32_t band_rows[TILE_ROWS / GEMM_ROWS + 2];
	uint32_t n_keys[TILE_ROWS]; /* 0 to KVT_ATTN_UNIT */
};

static void bands_cut(struct tile *tile)
{
	tile->n_bands = (tile->head_rows + GEMM_ROWS - 1) / GEMM_ROWS;
	for (uint32_t band = 0; band <= tile->n_bands; band++) {
#ifdef GEMM_OWN
		/* A partial tile takes as long as a full one. */
		tile->band_rows[band] = minimum(band * GEMM_ROWS, tile->head_rows);
#else
		tile->band_rows[band] = share(tile->head_rows, tile->n_bands, band);
#endif
	}
}

/* Return the first row of a head's band, or the end for one past the last band. */
INLINE uint32_t band_row(const struct tile *tile, uint32_t head, uint32_t band)
{
	return head * tile->head_rows + tile->band_rows[band];
}

/* Return how many of the positions [start, start + n) a row of the tile sees. */
INLINE uint32_t keys_seen(const struct tile *tile, uint32_t row, uint32_t start, uint32_t n)
{
	uint32_t n_keys = tile->n_keys[row];

	return n_keys <= start ? 0 : minimum(n_keys - start, n);
}

/* Compute the scores of a packed panel of keys, for the rows that see any of it. */
static void panel_scores(const struct work *work, const struct tile *tile, uint32_t head,
			 const element *panel, uint32_t block_start, uint32_t panel_start)
{
	size_t q_stride = (size_t)work->key_steps * STEP;

	for (uint32_t band = 0; band < tile->n_bands; band++) {
		uint32_t row = band_row(tile, head, band);
		uint32_t end = band_row(tile, head, band + 1);
		uint32_t n = keys_seen(tile, end - 1, panel_start, PANEL_KEYS);
		struct gemm gemm = {
			.a = work->queries + (tile->first_row + row) * q_stride,
			.a_stride = q_stride,
			.b = panel,
			.b_stride = PANEL_KEYS * STEP,
			.n_steps = work->key_steps,
			.c = work->scores + row * BLOCK + (panel_start - block_start),
			.c_stride = BLOCK,
		};

		if (n)
			gemm_run(&gemm, end - row, (n + VW - 1) / VW);
	}
}

/* Return the maximum of a row's n scores, n at least 1. */
INLINE float scores_maximum(const float *scores, uint32_t n)
{
	vf lowest = v_set1(-__builtin_inff());
	vf a = lowest, b = lowest;
	uint32_t i = 0;

	for (; i + STRIP <= n; i += STRIP) {
		a = v_max(a, v_load(scores + i));
		b = v_max(b, v_load(scores + i + VW));
	}
	if (i < n) {
		a = v_max(a, v_first(v_load(scores + i), n - i, lowest));
		b = v_max(b, v_first(v_load(scores + i + VW), n - i > VW ? n - i - VW : 0, lowest));
	}
	return v_maximum(v_max(a, b));
}

/*
 * Compute the weights of a row's n scores, and zeros up to n_fill. Returns the lanes of sums with
 * the weights added.
 */
INLINE vf scores_weights(const float *scores, element *weights, uint32_t n, uint32_t n_fill,
			 float log2_scale, float maximum, vf sums)
{
	vf scale = v_set1(log2_scale);
	vf shift = v_set1(-maximum);
	uint32_t i = 0;

	for (; i + STRIP <= n; i += STRIP) {
		vf a = v_exp2_weight(v_fma(v_load(scores + i), scale, shift));
		vf b = v_exp2_weight(v_fma(v_load(scores + i + VW), scale, shift));

		weights_store(weights + i, a, b);
		sums = v_add(v_add(sums, a), b);
	}
	if (i < n) {
		vf a = v_exp2_weight(v_fma(v_load(scores + i), scale, shift));
		vf b = v_exp2_weight(v_fma(v_load(scores + i + VW), scale, shift));

		a = v_first(a, n - i, v_zero());
		b = v_first(b, n - i > VW ? n - i - VW : 0, v_zero());
		weights_store(weights + i, a, b);
		sums = v_add(v_add(sums, a), b);
		i += STRIP;
	}
	for (; i < n_fill; i += STRIP)
		weights_store(weights + i, v_zero(), v_zero());
	return sums;
}

/*
 * Compute new maxima of the tile's rows, and the factors for sums under the old ones. A row that
 * sees nothing of the block keeps its maximum; its factor is unused. Without a finite score a row's
 * maximum is minus infinity; its weights are then computed against 0, not against infinity minus
 * infinity.
 */
static void tile_maxima(const struct work *work, const struct tile *tile, uint32_t block_start)
{
	float *maxima = work->tile.maxima;
	vf lowest = v_set1(-__builtin_inff());
	_Alignas(64) float highest[TILE_ROWS];

	for (uint32_t row = 0; row < (tile->n_rows + VW - 1) / VW * VW; row++) {
		uint32_t n = row < tile->n_rows ? keys_seen(tile, row, block_start, BLOCK) : 0;

		highest[row] =
			n ? scores_maximum(work->scores + row * BLOCK, n) : -__builtin_inff();
	}
	for (uint32_t row = 0; row < tile->n_rows; row += VW) {
		vf old = v_load(maxima + row);
		vf new = v_max(old, v_mul(v_load(highest + row), v_set1(work->log2_scale)));

		v_store(maxima + row, new);
		v_store(work->factors + row,
			v_exp2(v_sub(old, v_if_equal(new, lowest, v_zero(), new))));
	}
}

/* Turn the scores of a block into weights; bring sums and outputs to the new maxima. */
static void tile_weights(const struct work *work, const struct tile *tile, uint32_t block_start)
{
	uint32_t n_fill = keys_seen(tile, tile->n_rows - 1, block_start, BLOCK);

	tile_maxima(work, tile, block_start);
	for (uint32_t row = 0; row < tile->n_rows; row++) {
		uint32_t n = keys_seen(tile, row, block_start, BLOCK);
		float *output = work->tile.outputs + (size_t)row * work->out_dim;
		float *lanes = work->sum_lanes + row * VW;
		float maximum = work->tile.maxima[row];
		float factor = n ? work->factors[row] : 1.0f;
		vf sums = v_mul(v_load(lanes), v_set1(factor));

		if (maximum == -__builtin_inff())
			maximum = 0;
		sums = scores_weights(work->scores + row * BLOCK, work->weights + row * BLOCK, n,
				      n_fill, work->log2_scale, maximum, sums);
		v_store(lanes, sums);
		/* Outputs are empty before the first block. */
		if (factor == 1.0f || !block_start)
			continue;
		for (uint32_t i = 0; i < work->out_dim; i += VW)
			v_store(output + i, v_mul(v_load(output + i), v_set1(factor)));
	}
}

/* Add n_keys weighted values of a chunk to the outputs of n_rows rows. */
static void chunk_add(const struct work *work, const element *weights, const element *chunk,
		      uint32_t capacity, uint32_t row, uint32_t n_rows, uint32_t n_keys)
{
	uint32_t n_vectors = work->out_dim / VW;

	for (uint32_t panel = 0; panel < work->n_panels; panel++) {
		uint32_t first = share(n_vectors, work->n_panels, panel);
		uint32_t width = share(n_vectors, work->n_panels, panel + 1) - first;
		struct gemm gemm = {
			.a = weights,
			.a_stride = BLOCK,
			.b = chunk + (size_t)first * VW * capacity,
			.b_stride = (size_t)width * VW * STEP,
			.n_steps = (n_keys + STEP - 1) / STEP,
			.c = work->tile.outputs + (size_t)row * work->out_dim + first * VW,
			.c_stride = work->out_dim,
			.add = true,
		};

		gemm_run(&gemm, n_rows, width);
	}
}

/*
 * Add one row's weighted values of a chunk that has values that are not finite. 0 times infinity is
 * not 0, so the row gets exactly the positions that it sees; in the last addition zeros replace the
 * others.
 */
static void chunk_add_exactly(const struct work *work, const element *weights, const element *chunk,
			      uint32_t capacity, uint32_t row, uint32_t n_keys)
{
	uint32_t n_vectors = work->out_dim / VW;
	uint32_t n_whole = n_keys / LAST_KEYS * LAST_KEYS;
	_Alignas(64) element last[GEMM_VECTORS * VW * LAST_KEYS];

	if (n_whole)
		chunk_add(work, weights, chunk, capacity, row, 1, n_whole);
	if (n_whole == n_keys)
		return;
	for (uint32_t panel = 0; panel < work->n_panels; panel++) {
		uint32_t first = share(n_vectors, work->n_panels, panel);
		uint32_t width = share(n_vectors, work->n_panels, panel + 1) - first;
		const element *step =
			chunk + (size_t)first * VW * capacity + (size_t)width * VW * n_whole;
		struct gemm gemm = {
			.a = weights + n_whole,
			.b = last,
			.b_stride = (size_t)width * VW * STEP,
			.n_steps = STEPS_ALIGN,
			.c = work->tile.outputs + (size_t)row * work->out_dim + first * VW,
			.add = true,
		};

		for (uint32_t i = 0; i < width * VW * LAST_KEYS; i++) {
			uint32_t key = i / (width * VW * STEP) * STEP + i % STEP;

			last[i] = key < n_keys - n_whole ? step[i] : 0;
		}
		gemm_run(&gemm, 1, width);
	}
}

/*
 * Add a chunk of a head's values, positions [start, start + capacity) of the unit, to the outputs
 * of its rows.
 */
static void chunk_values(const struct work *work, const struct tile *tile, uint32_t head,
			 const element *chunk, uint32_t block_start, uint32_t start,
			 uint32_t capacity, bool not_finite)
{
	for (uint32_t band = 0; band < tile->n_bands; band++) {
		uint32_t row = band_row(tile, head, band);
		uint32_t end = band_row(tile, head, band + 1);
		uint32_t n = keys_seen(tile, end - 1, start, capacity);
		const element *weights = work->weights + row * BLOCK + (start - block_start);

		if (!n)
			continue;
		if (!not_finite || keys_seen(tile, row, start, capacity) == capacity) {
			chunk_add(work, weights, chunk, capacity, row, end - row, n);
			continue;
		}
		for (; row < end; row++, weights += BLOCK) {
			n = keys_seen(tile, row, start, capacity);
			if (n)
				chunk_add_exactly(work, weights, chunk, capacity, row, n);
		}
	}
}
