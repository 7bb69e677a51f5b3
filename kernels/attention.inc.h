/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one job, for any vector width. A path_*.c file defines the macros and functions
 * listed below and includes this file, which defines the functions of a struct kvt_path.
 *
 *   vf, VW                     a vector of VW floats
 *   element, STEP              the products' factors: a step takes STEP elements of each side
 *   GEMM_ROWS, GEMM_VECTORS    accumulators of the inner kernel: rows, and vectors in each
 *   GEMM_UNROLL                a pragma for its loop, or nothing
 *   TILE                       rows whose scores are held at a time
 *   BLOCK                      positions whose scores are held at a time, a divisor of the unit
 *   v_*                        float vector operations
 *   vb, b_load, a_broadcast    a vector of VW steps, and one step in all lanes
 *   dot(c, b, a)               c + product of one step, rounded as the instruction does
 *   weights_store              2 * VW weights as elements
 *   row_load, row_store        one row of head_dim elements to and from the caller's types
 *   keys_pack, values_pack     pages to panels
 *   FEW_ROWS, FEW_STRIPS, struct few, few_possible, few_scores, few_values
 *                              few rows (if the path has a way), without packing, FEW_STRIPS times
 *                              VW positions at a time: few.inc.h
 *
 * A path with an inner kernel of its own defines GEMM_OWN, and instead of b_load, a_broadcast and
 * dot:
 *
 *   STEPS_ALIGN                steps that it takes at a time
 *   gemm_run                   the inner kernel, declared below
 *
 * How results stay the same
 *
 *   Every number below is computed by a chain of operations that depends only on the row's own
 *   data and on absolute positions: scores add dimensions in ascending order; maxima and sums go
 *   through the blocks of a unit in order, a lane of a vector holding every VW-th position;
 *   outputs add positions in ascending order; units and groups are merged in order. Which rows
 *   share a tile, how many rows or vectors an inner kernel has, and which lane or thread
 *   computes, changes no chain. Positions that a row must not see add weight +0 to its chain,
 *   which changes nothing (the last step, + 0, makes -0 and +0 the same).
 *
 * Panels
 *
 *   keys:    [BLOCK / PANEL_KEYS panels][steps of head_dim][PANEL_KEYS positions][STEP dimensions]
 *   values:  [panels of 1 to GEMM_VECTORS vectors of dimensions]
 *            [steps of positions][dimensions][STEP positions]
 *   queries: [row][steps of head_dim][STEP], weights likewise [row][position]
 */

#ifndef STEPS_ALIGN
#define STEPS_ALIGN 1
#endif
#ifndef GEMM_UNROLL
#define GEMM_UNROLL
#endif
#define PANEL_KEYS (GEMM_VECTORS * VW)
#ifdef FEW_ROWS
#define FEW_KEYS (FEW_STRIPS * VW)
#else
#define FEW_KEYS PANEL_KEYS
#endif
#define N_BLOCKS (KVT_ATTN_UNIT / BLOCK)
#define STRIP (2 * VW)
#define LAST_KEYS (STEP * STEPS_ALIGN) /* positions of one addition to outputs */
#define TILE_ROWS (TILE > KVT_HEADS_ROWS ? TILE : KVT_HEADS_ROWS)
#define INLINE static inline __attribute__((always_inline))

_Static_assert(KVT_ATTN_UNIT % BLOCK == 0 && BLOCK % PANEL_KEYS == 0 && BLOCK % STRIP == 0 &&
		       BLOCK % FEW_KEYS == 0 && BLOCK <= KVT_ROWS_MAX,
	       "a unit is whole blocks, a block whole panels and strips");
_Static_assert(TILE_ROWS % VW == 0, "rows of a tile are whole vectors");

struct partial {
	float *maxima;
	float *sums;
	float *outputs;
};

struct work {
	const struct kvt_row_block *block;
	const struct kvt_attn_view *kv;
	uint32_t head_dim;
	uint32_t key_steps; /* steps of one score */
	uint32_t out_dim; /* head_dim, padded to whole vectors */
	uint32_t n_panels; /* of output dimensions */
	float log2_scale;

	/* The current unit: its first position, and the most positions of it that any row sees. */
	uint32_t unit_start;
	uint32_t unit_keys;
	uint32_t limit; /* the last row's limit, in all units */

	element *queries; /* [KVT_JOB_ROWS][key_steps][STEP] */
	element *keys; /* a unit, or a panel if the block is one tile */
	element *values; /* likewise */
	float *scores; /* [TILE_ROWS][BLOCK] */
	element *weights; /* [TILE_ROWS][BLOCK]; where elements are floats, the scores' memory */
	float *sum_lanes; /* [TILE_ROWS][VW] */
	float *factors; /* [TILE_ROWS] scale of older sums after a new maximum */
	float *outputs_before; /* [TILE_ROWS][out_dim] without the current block */
	struct partial tile; /* TILE_ROWS rows */
	struct partial group; /* KVT_JOB_ROWS rows */
	struct partial total; /* KVT_JOB_ROWS rows */
	bool not_finite[N_BLOCKS];
};

static uint32_t padded_dim(uint32_t head_dim)
{
	return (head_dim + VW - 1) / VW * VW;
}

INLINE uint32_t minimum(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Return where part i begins when n is cut into equal parts, give or take 1. */
INLINE uint32_t share(uint32_t n, uint32_t parts, uint32_t i)
{
	return (uint32_t)((uint64_t)n * i / parts);
}

/* Memory */

static void *carve(char **next, size_t bytes)
{
	void *data = *next;

	*next += (bytes + KVT_CPU_ALIGN - 1) / KVT_CPU_ALIGN * KVT_CPU_ALIGN;
	return data;
}

static void partial_carve(struct partial *partial, char **next, uint32_t n_rows, uint32_t out_dim)
{
	partial->maxima = carve(next, n_rows * sizeof(float));
	partial->sums = carve(next, n_rows * sizeof(float));
	partial->outputs = carve(next, (size_t)n_rows * out_dim * sizeof(float));
}

/* Lay out a workspace that begins at base; return its end. */
static char *work_carve(struct work *work, char *base, uint32_t head_dim)
{
	char *next = base;

	work->head_dim = head_dim;
	work->key_steps =
		(head_dim + STEP * STEPS_ALIGN - 1) / (STEP * STEPS_ALIGN) * STEPS_ALIGN;
	work->out_dim = padded_dim(head_dim);
	work->n_panels = (work->out_dim / VW + GEMM_VECTORS - 1) / GEMM_VECTORS;
	work->queries =
		carve(&next, (size_t)KVT_JOB_ROWS * work->key_steps * STEP * sizeof(element));
	work->keys = carve(&next, (size_t)KVT_ATTN_UNIT * work->key_steps * STEP * sizeof(element));
	work->values = carve(&next, (size_t)KVT_ATTN_UNIT * work->out_dim * sizeof(element));
	work->scores = carve(&next, (size_t)TILE_ROWS * BLOCK * sizeof(float));
	work->weights = (element *)(void *)work->scores;
	if (sizeof(element) != sizeof(float))
		work->weights = carve(&next, (size_t)TILE_ROWS * BLOCK * sizeof(element));
	work->sum_lanes = carve(&next, (size_t)TILE_ROWS * VW * sizeof(float));
	work->factors = carve(&next, TILE_ROWS * sizeof(float));
	work->outputs_before =
		carve(&next, (size_t)TILE_ROWS * work->out_dim * sizeof(float));
	partial_carve(&work->tile, &next, TILE_ROWS, work->out_dim);
	partial_carve(&work->group, &next, KVT_JOB_ROWS, work->out_dim);
	partial_carve(&work->total, &next, KVT_JOB_ROWS, work->out_dim);
	return next;
}

static size_t workspace_bytes(uint32_t head_dim)
{
	struct work work;
	char base;

	return (size_t)(work_carve(&work, &base, head_dim) - &base);
}

static void work_begin(struct work *work, const struct kvt_row_block *block, void *workspace)
{
	const struct kvt_attn_prefill *prefill = block->prefill;

	work_carve(work, workspace, prefill->kv.head_dim);
	work->block = block;
	work->kv = &prefill->kv;
	work->log2_scale = kvt_log2_scale(prefill);
}

/* Rows */

/* Return how many positions a row of the block sees. */
INLINE uint32_t row_limit(const struct kvt_row_block *block, uint32_t row)
{
	return block->limits[(block->first_row + row) / block->query_rows];
}

/* Find the first row that sees position start; n_rows if none does. Limits ascend. */
static uint32_t row_first(const struct kvt_row_block *block, uint32_t start)
{
	uint32_t low = 0, high = block->n_rows;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (row_limit(block, middle) > start)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static size_t row_offset(const struct kvt_row_block *block, uint32_t row, uint64_t row_stride,
			 uint64_t head_stride)
{
	uint32_t in_sequence = block->first_row + row;
	uint64_t token = block->first_token + in_sequence / block->query_rows;
	uint32_t head = block->first_head + in_sequence % block->query_rows;

	return token * row_stride + head * head_stride;
}

static void queries_load(struct work *work)
{
	const struct kvt_row_block *block = work->block;
	const struct kvt_attn_prefill *prefill = block->prefill;
	const char *q = prefill->q;
	size_t stride = (size_t)work->key_steps * STEP;

	for (uint32_t row = 0; row < block->n_rows; row++) {
		size_t offset = row_offset(block, row, prefill->q_row_stride_bytes,
					   prefill->q_head_stride_bytes);

		row_load(work->queries + row * stride, q + offset, work->head_dim, (uint32_t)stride,
			 prefill->q_type);
	}
}

static void rows_write(const struct work *work, const struct partial *result)
{
	const struct kvt_row_block *block = work->block;
	const struct kvt_attn_prefill *prefill = block->prefill;
	float v_scale = prefill->kv.v_scale == 0 ? 1.0f : prefill->kv.v_scale;
	char *out = prefill->out;

	for (uint32_t row = 0; row < block->n_rows; row++) {
		float *output = result->outputs + (size_t)row * work->out_dim;
		vf factor = v_set1(v_scale / result->sums[row]);
		size_t offset = row_offset(block, row, prefill->out_row_stride_bytes,
					   prefill->out_head_stride_bytes);

		for (uint32_t i = 0; i < work->out_dim; i += VW)
			v_store(output + i, v_add(v_mul(v_load(output + i), factor), v_zero()));
		row_store(out + offset, output, work->head_dim, prefill->out_type);
	}
}

/* Stands for a missing row. */
static const char no_row[KVT_ATTN_HEAD_DIM_MAX * sizeof(float)];

/* Find the positions [start, end) of one KV head in one plane; n of them, missing ones included. */
static void positions_find(const struct work *work, const char *plane, uint32_t head,
			   uint32_t start, uint32_t end, const char **ret_rows, uint32_t n)
{
	const struct kvt_attn_view *kv = work->kv;
	const uint32_t *pages = work->block->sequence->pages;
	uint32_t page_size = kv->page_size;
	uint32_t shift = (uint32_t)__builtin_ctz(page_size);
	uint32_t n_found = start < end ? minimum(end - start, n) : 0;
	uint32_t i = 0;

	if (n_found)
		plane += (work->block->kv_head + head) * kv->head_stride_bytes;
	while (i < n_found) {
		uint32_t within = (start + i) & (page_size - 1);
		uint32_t page_end = i + minimum(n_found - i, page_size - within);
		const char *row = plane + pages[(start + i) >> shift] * kv->page_stride_bytes +
				  within * kv->position_stride_bytes;

		for (; i < page_end; i++, row += kv->position_stride_bytes)
			ret_rows[i] = row;
	}
	for (; i < n; i++)
		ret_rows[i] = no_row;
}

/* Likewise, at most n_max of them. */
static void rows_find(const struct work *work, const char *plane, uint32_t head, uint32_t start,
		      uint32_t end, uint32_t n_max, struct kvt_rows *ret_rows)
{
	ret_rows->n = start < end ? minimum(end - start, n_max) : 0;
	positions_find(work, plane, head, start, end, ret_rows->at, n_max + KVT_ROWS_MORE);
}

/* The inner kernel: c[rows][vectors] = (c or 0) + a b, steps in ascending order. */

struct gemm {
	const element *a;
	size_t a_stride; /* elements from row to row */
	const element *b;
	size_t b_stride; /* elements from step to step */
	uint32_t n_steps;
	float *c;
	size_t c_stride; /* floats from row to row */
	bool add;
};

#ifdef GEMM_OWN

static void gemm_run(const struct gemm *gemm, uint32_t n_rows, uint32_t n_vectors);

#else

INLINE void gemm_body(const struct gemm *gemm, const uint32_t n_rows, const uint32_t n_vectors)
{
	const size_t a_stride = gemm->a_stride;
	const uint32_t n_low = (n_rows + 1) / 2;
	const element *low = gemm->a, *high = low + n_low * a_stride;
	const element *b = gemm->b;
	const size_t b_stride =
		n_vectors == GEMM_VECTORS ? PANEL_KEYS * STEP : gemm->b_stride;
	vf c[GEMM_ROWS][GEMM_VECTORS];

	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (v, n_vectors)
			c[r][v] = gemm->add ? v_load(gemm->c + r * gemm->c_stride + v * VW)
					    : v_zero();

	/* Two pointers reach six rows by scaled strides, if the compiler cannot merge them. */
	__asm__("" : "+r"(high));
	GEMM_UNROLL
	for (uint32_t step = gemm->n_steps; step; step--) {
		vb bv[GEMM_VECTORS];

		UNROLL_FOR (v, n_vectors)
			bv[v] = b_load(b + v * VW * STEP);
		UNROLL_FOR (r, n_rows) {
			vb av = a_broadcast(r < n_low ? low + r * a_stride
						      : high + (r - n_low) * a_stride);

			UNROLL_FOR (v, n_vectors)
				c[r][v] = dot(c[r][v], bv[v], av);
		}
		low += STEP;
		high += STEP;
		b += b_stride;
	}

	UNROLL_FOR (r, n_rows)
		UNROLL_FOR (v, n_vectors)
			v_store(gemm->c + r * gemm->c_stride + v * VW, c[r][v]);
}

#define GEMM_CASE(rows, vectors)                                                                   \
	static void gemm_##rows##_##vectors(const struct gemm *gemm)                               \
	{                                                                                          \
		gemm_body(gemm, rows, vectors);                                                    \
	}
GEMM_CASES(GEMM_CASE)

typedef void gemm_fn(const struct gemm *gemm);

#define GEMM_ENTRY(rows, vectors) [rows][vectors] = gemm_##rows##_##vectors,
static gemm_fn *const gemm_table[GEMM_ROWS + 1][GEMM_VECTORS + 1] = { GEMM_CASES(GEMM_ENTRY) };

INLINE void gemm_run(const struct gemm *gemm, uint32_t n_rows, uint32_t n_vectors)
{
	gemm_table[n_rows][n_vectors](gemm);
}

#endif

/* Packing */

/* Positions of one head to fetch now and pack soon. */
struct ahead {
	const char *plane;
	uint32_t head;
	uint32_t start;
	uint32_t end;
};

/* Pack the panel of a head's keys that begins at position start of the unit. */
static void panel_pack(const struct work *work, element *panel, uint32_t head, uint32_t start,
		       const struct ahead *ahead)
{
	struct kvt_rows rows, ahead_rows;
	uint32_t base = work->unit_start;

	rows_find(work, work->kv->k, head, base + start, base + work->unit_keys, PANEL_KEYS, &rows);
	rows_find(work, ahead->plane, ahead->head, ahead->start, ahead->end, PANEL_KEYS,
		  &ahead_rows);
	keys_pack(panel, &rows, &ahead_rows, work->head_dim, work->kv->type);
}

/* Pack capacity positions of values likewise. Returns true if any is not finite. */
static bool chunk_pack(const struct work *work, element *chunk, uint32_t head, uint32_t start,
		       uint32_t capacity, const struct ahead *ahead)
{
	struct kvt_rows rows, ahead_rows;
	uint32_t base = work->unit_start;

	rows_find(work, work->kv->v, head, base + start, base + work->unit_keys, capacity, &rows);
	rows_find(work, ahead->plane, ahead->head, ahead->start, ahead->end, capacity, &ahead_rows);
	return values_pack(chunk, capacity, &rows, &ahead_rows, work->head_dim, work->kv->type);
}

static void unit_pack(struct work *work)
{
	size_t panel_elements = (size_t)work->key_steps * STEP * PANEL_KEYS;
	size_t chunk_elements = (size_t)work->out_dim * BLOCK;
	const struct ahead nothing = { 0 };

	for (uint32_t start = 0; start < work->unit_keys; start += PANEL_KEYS)
		panel_pack(work, work->keys + start / PANEL_KEYS * panel_elements, 0, start,
			   &nothing);
	for (uint32_t i = 0; i * BLOCK < work->unit_keys; i++)
		work->not_finite[i] = chunk_pack(work, work->values + i * chunk_elements, 0,
						 i * BLOCK, BLOCK, &nothing);
}

/* A tile on a block: scores, weights, outputs */

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

/* Units */

/* Run a block of a unit that was packed as a whole. */
static void block_packed(const struct work *work, const struct tile *tile, uint32_t block_start,
			 uint32_t block_end)
{
	size_t panel_elements = (size_t)work->key_steps * STEP * PANEL_KEYS;
	size_t chunk_elements = (size_t)work->out_dim * BLOCK;
	uint32_t index = block_start / BLOCK;

	for (uint32_t start = block_start; start < block_end; start += PANEL_KEYS)
		panel_scores(work, tile, 0, work->keys + start / PANEL_KEYS * panel_elements,
			     block_start, start);
	tile_weights(work, tile, block_start);
	chunk_values(work, tile, 0, work->values + index * chunk_elements, block_start, block_start,
		     BLOCK, work->not_finite[index]);
}

/*
 * A single tile, as in decode: use each panel while it is in L1. Memory is the limit, so KV is read
 * in its own order: the keys of a block, then its values, page by page, and of each page all heads
 * of the block. Each panel fetches the next one.
 */
struct place {
	bool values;
	uint32_t head;
	/* Positions: a block, in it those read for all heads, in them a panel. */
	uint32_t block;
	uint32_t stretch;
	uint32_t panel;
	uint32_t panel_keys;
};

INLINE const char *place_plane(const struct work *work, const struct place *at)
{
	return at->values ? work->kv->v : work->kv->k;
}

/*
 * Return the block that is read after start: behind a job's units, probably those of the thread's
 * next job.
 */
INLINE uint32_t block_after(const struct kvt_row_block *block, uint32_t start)
{
	bool ends = start % (block->span_units * KVT_ATTN_UNIT) == 0;

	return ends ? start + block->other_units * KVT_ATTN_UNIT : start;
}

INLINE struct place place_after(const struct work *work, const struct tile *tile, struct place at)
{
	uint32_t page_size = work->kv->page_size;
	uint32_t stretch = page_size < at.panel_keys ? at.panel_keys : minimum(page_size, BLOCK);
	uint32_t block_end = minimum(at.block + BLOCK, work->limit);

	if (tile->head_rows == tile->n_rows)
		stretch = BLOCK;
	at.panel += at.panel_keys;
	if (at.panel < minimum(at.stretch + stretch, block_end))
		return at;
	at.panel = at.stretch;
	if (++at.head * tile->head_rows < tile->n_rows)
		return at;
	at.head = 0;
	at.stretch += stretch;
	if (at.stretch >= block_end) {
		at.block = at.values ? block_after(work->block, at.block + BLOCK) : at.block;
		at.stretch = at.block;
		at.values = !at.values;
	}
	at.panel = at.stretch;
	return at;
}

static struct ahead place_ahead(const struct work *work, const struct place *at)
{
	return (struct ahead){ place_plane(work, at), at->head, at->panel, work->limit };
}

static void panel_scores_packed(const struct work *work, const struct tile *tile,
				const struct place *at, const struct place *next)
{
	struct ahead ahead = place_ahead(work, next);
	uint32_t start = at->panel - work->unit_start;

	panel_pack(work, work->keys, at->head, start, &ahead);
	panel_scores(work, tile, at->head, work->keys, at->block - work->unit_start, start);
}

static void panel_values_packed(const struct work *work, const struct tile *tile,
				const struct place *at, const struct place *next)
{
	struct ahead ahead = place_ahead(work, next);
	uint32_t start = at->panel - work->unit_start;
	bool not_finite = chunk_pack(work, work->values, at->head, start, PANEL_KEYS, &ahead);

	chunk_values(work, tile, at->head, work->values, at->block - work->unit_start, start,
		     PANEL_KEYS, not_finite);
}

#ifdef FEW_ROWS

/*
 * True for so few rows that packing would cost more than the products: KV goes from its pages
 * through registers into scores and outputs. The products are the same, in the same order.
 */
INLINE bool few_rows(const struct work *work, const struct tile *tile)
{
	return tile->head_rows <= FEW_ROWS && few_possible(work->head_dim, work->kv->type);
}

/* Find the strips of a panel. Returns how many of its positions exist. */
INLINE uint32_t strips_find(const struct work *work, const struct place *at,
			    const char **ret_strips)
{
	const struct kvt_attn_view *kv = work->kv;
	uint32_t n = at->panel < work->limit ? minimum(work->limit - at->panel, FEW_KEYS) : 0;

	if (n == FEW_KEYS && kv->page_size >= FEW_KEYS) {
		uint32_t shift = (uint32_t)__builtin_ctz(kv->page_size);
		const char *base =
			place_plane(work, at) +
			(work->block->kv_head + at->head) * kv->head_stride_bytes +
			work->block->sequence->pages[at->panel >> shift] * kv->page_stride_bytes +
			(at->panel & (kv->page_size - 1)) * kv->position_stride_bytes;

		for (uint32_t i = 0; i < FEW_KEYS / VW; i++)
			ret_strips[i] = base + i * VW * kv->position_stride_bytes;
		return n;
	}
	for (uint32_t i = 0; i < FEW_KEYS; i += VW)
		positions_find(work, place_plane(work, at), at->head, at->panel + i, at->panel + n,
			       ret_strips + i / VW, 1);
	return n;
}

/*
 * Gather positions that are not evenly spaced, sixteen at a time, or are partly missing: zero rows
 * fill the gaps.
 */
static void strips_gather(const struct work *work, const struct place *at, struct few *few)
{
	uint32_t row_bytes = work->head_dim * (uint32_t)kvt_type_size(work->kv->type);
	char *to = (char *)work->keys;
	const char *rows[FEW_KEYS];

	positions_find(work, place_plane(work, at), at->head, at->panel, at->panel + few->n_keys,
		       rows, FEW_KEYS);
	few->stride = row_bytes;
	for (uint32_t i = 0; i < FEW_KEYS; i++, to += row_bytes) {
		memcpy(to, rows[i], row_bytes);
		if (i % VW == 0)
			few->strips[i / VW] = to;
	}
}

static void few_make(const struct work *work, const struct tile *tile, const struct place *at,
		     const struct place *next, struct few *few)
{
	few->type = work->kv->type;
	few->n_rows = tile->head_rows;
	few->q_stride = (size_t)work->key_steps * STEP;
	few->dim = work->head_dim;
	few->out_dim = work->out_dim;
	few->stride = work->kv->position_stride_bytes;
	few->next_stride = few->stride;
	few->n_keys = strips_find(work, at, few->strips);
	strips_find(work, next, few->strips + FEW_STRIPS);
	if (few->n_keys < FEW_KEYS || work->kv->page_size < VW)
		strips_gather(work, at, few);
}

static void panel_scores_few(const struct work *work, const struct tile *tile,
			     const struct place *at, const struct place *next)
{
	uint32_t row = at->head * tile->head_rows;
	struct few few;

	few_make(work, tile, at, next, &few);
	few_scores(&few, work->scores + row * BLOCK + (at->panel - at->block),
		   work->queries + (size_t)(tile->first_row + row) * work->key_steps * STEP);
}

static bool panel_values_few(const struct work *work, const struct tile *tile,
			     const struct place *at, const struct place *next)
{
	uint32_t row = at->head * tile->head_rows;
	struct few few;

	few_make(work, tile, at, next, &few);
	return few_values(&few, work->tile.outputs + (size_t)row * work->out_dim,
			  work->weights + row * BLOCK + (at->panel - at->block));
}

/* Redo a block's values for one head, some of whose values are not finite. */
static void head_values_again(const struct work *work, const struct tile *tile,
			      const struct place *block, uint32_t head)
{
	size_t first = (size_t)head * tile->head_rows * work->out_dim;
	size_t n = (size_t)tile->head_rows * work->out_dim;
	uint32_t end = minimum(block->block + BLOCK, work->limit);
	struct place at = *block;

	at.head = head;
	memcpy(work->tile.outputs + first, work->outputs_before + first, n * sizeof(float));
	for (; at.panel < end; at.panel += PANEL_KEYS)
		panel_values_packed(work, tile, &at, &at);
}

#else

INLINE bool few_rows(const struct work *work, const struct tile *tile)
{
	(void)work, (void)tile;
	return false;
}

static void panel_scores_few(const struct work *work, const struct tile *tile,
			     const struct place *at, const struct place *next)
{
	panel_scores_packed(work, tile, at, next);
}

static bool panel_values_few(const struct work *work, const struct tile *tile,
			     const struct place *at, const struct place *next)
{
	panel_values_packed(work, tile, at, next);
	return true;
}

static void head_values_again(const struct work *work, const struct tile *tile,
			      const struct place *block, uint32_t head)
{
	(void)work, (void)tile, (void)block, (void)head;
}

#endif

static void block_streamed(const struct work *work, const struct tile *tile, uint32_t block_start)
{
	uint32_t start = work->unit_start + block_start;
	bool few = few_rows(work, tile), again[TILE_ROWS] = { false };
	struct place at = { .block = start, .stretch = start, .panel = start }, next, values;

	at.panel_keys = few ? FEW_KEYS : PANEL_KEYS;
	for (; !at.values; at = next) {
		next = place_after(work, tile, at);
		if (few)
			panel_scores_few(work, tile, &at, &next);
		else
			panel_scores_packed(work, tile, &at, &next);
	}
	tile_weights(work, tile, block_start);
	if (few)
		memcpy(work->outputs_before, work->tile.outputs,
		       (size_t)tile->n_rows * work->out_dim * sizeof(float));
	for (values = at; at.values; at = next) {
		next = place_after(work, tile, at);
		if (!few)
			panel_values_packed(work, tile, &at, &next);
		else if (!panel_values_few(work, tile, &at, &next))
			again[at.head] = true;
	}
	for (uint32_t head = 0; head * tile->head_rows < tile->n_rows; head++) {
		if (again[head])
			head_values_again(work, tile, &values, head);
	}
}

/* Run one unit for the rows [first_row, first_row + n_rows) of the block, into work->tile. */
static void tile_unit(const struct work *work, uint32_t first_row, uint32_t n_rows, bool packed)
{
	struct tile tile = { .first_row = first_row, .n_rows = n_rows };
	uint32_t n_keys = 0;

	tile.head_rows = n_rows / work->block->n_kv_heads;
	bands_cut(&tile);
	for (uint32_t row = 0; row < n_rows; row++) {
		uint32_t limit = row_limit(work->block, first_row + row);

		n_keys = limit <= work->unit_start
				 ? 0
				 : minimum(limit - work->unit_start, KVT_ATTN_UNIT);
		tile.n_keys[row] = n_keys;
	}
	for (uint32_t row = 0; row < n_rows; row += VW)
		v_store(work->tile.maxima + row, v_set1(-__builtin_inff()));
	for (uint32_t i = 0; i < n_rows * VW; i += VW)
		v_store(work->sum_lanes + i, v_zero());
	for (uint32_t i = 0; i < n_rows * work->out_dim; i += VW)
		v_store(work->tile.outputs + i, v_zero());

	for (uint32_t start = 0; start < n_keys; start += BLOCK) {
		if (packed)
			block_packed(work, &tile, start, minimum(start + BLOCK, n_keys));
		else
			block_streamed(work, &tile, start);
	}
	for (uint32_t row = 0; row < n_rows; row++)
		work->tile.sums[row] = v_sum(v_load(work->sum_lanes + row * VW));
}

/* Merging */

static struct partial partial_at(const struct partial *partial, uint32_t row, uint32_t out_dim)
{
	return (struct partial){ partial->maxima + row, partial->sums + row,
				 partial->outputs + (size_t)row * out_dim };
}

static void partial_copy(const struct partial *target, const struct partial *source,
			 uint32_t n_rows, uint32_t out_dim)
{
	memcpy(target->maxima, source->maxima, n_rows * sizeof(float));
	memcpy(target->sums, source->sums, n_rows * sizeof(float));
	memcpy(target->outputs, source->outputs, (size_t)n_rows * out_dim * sizeof(float));
}

/* Merge n rows (at most VW): bring both sides to their common maximum and add. */
static void partial_merge_some(const struct partial *target, const struct partial *source,
			       uint32_t n, uint32_t out_dim)
{
	_Alignas(64) float a[VW] = { 0 }, b[VW] = { 0 }, common[VW];
	vf lowest = v_set1(-__builtin_inff());
	vf high, shift;

	memcpy(a, target->maxima, n * sizeof(float));
	memcpy(b, source->maxima, n * sizeof(float));
	high = v_max(v_load(a), v_load(b));
	shift = v_if_equal(high, lowest, v_zero(), high);
	v_store(common, high);
	v_store(a, v_exp2(v_sub(v_load(a), shift)));
	v_store(b, v_exp2(v_sub(v_load(b), shift)));
	memcpy(target->maxima, common, n * sizeof(float));

	for (uint32_t row = 0; row < n; row++) {
		vf fa = v_set1(a[row]), fb = v_set1(b[row]);
		float *to = target->outputs + (size_t)row * out_dim;
		const float *from = source->outputs + (size_t)row * out_dim;

		target->sums[row] = v_lane0(
			v_fma(v_set1(source->sums[row]), fb, v_mul(v_set1(target->sums[row]), fa)));
		for (uint32_t i = 0; i < out_dim; i += VW)
			v_store(to + i, v_fma(v_load(from + i), fb, v_mul(v_load(to + i), fa)));
	}
}

static void partial_merge(const struct partial *target, const struct partial *source,
			  uint32_t n_rows, uint32_t out_dim, bool first)
{
	if (first) {
		partial_copy(target, source, n_rows, out_dim);
		return;
	}
	for (uint32_t row = 0; row < n_rows; row += VW) {
		struct partial to = partial_at(target, row, out_dim);
		struct partial from = partial_at(source, row, out_dim);

		partial_merge_some(&to, &from, minimum(VW, n_rows - row), out_dim);
	}
}

/* Run one unit of the block and merge it into work->group. */
static void unit_run(struct work *work, uint32_t unit, bool first)
{
	const struct kvt_row_block *block = work->block;
	uint32_t start = unit * KVT_ATTN_UNIT;
	uint32_t first_row = row_first(block, start);
	uint32_t tile_rows = block->n_kv_heads > 1 ? block->n_rows : TILE;
	bool packed = block->n_rows - first_row > tile_rows;

	work->unit_start = start;
	work->limit = row_limit(block, block->n_rows - 1);
	work->unit_keys = minimum(work->limit - start, KVT_ATTN_UNIT);
	if (packed)
		unit_pack(work);
	for (uint32_t row = first_row; row < block->n_rows; row += tile_rows) {
		uint32_t n_rows = minimum(tile_rows, block->n_rows - row);
		struct partial target = partial_at(&work->group, row, work->out_dim);

		tile_unit(work, row, n_rows, packed);
		partial_merge(&target, &work->tile, n_rows, work->out_dim, first);
	}
}

/*
 * Merge a group. Rows that see none of it have stale data in work->group; they are the first ones
 * and are left out. Every row sees position 0, so the first group has all rows.
 */
static void group_merge(struct work *work, uint32_t first_unit, bool first)
{
	const struct kvt_row_block *block = work->block;
	uint32_t row = row_first(block, first_unit * KVT_ATTN_UNIT);
	struct partial to = partial_at(&work->total, row, work->out_dim);
	struct partial from = partial_at(&work->group, row, work->out_dim);

	partial_merge(&to, &from, block->n_rows - row, work->out_dim, first);
}

/* Return span number i of the block's partial results. */
static struct partial partial_of_span(const struct kvt_row_block *block, uint32_t out_dim,
				      uint32_t i)
{
	size_t n_rows = block->n_rows;
	float *base = block->partials + i * n_rows * (out_dim + 2);

	return (struct partial){ base, base + n_rows, base + 2 * n_rows };
}

static void job_run(const struct kvt_job *job, void *workspace)
{
	const struct kvt_row_block *block = job->block;
	uint32_t end = minimum(job->first_unit + block->span_units, block->n_units);
	uint32_t unit = job->first_unit;
	struct work work;

	work_begin(&work, block, workspace);
	queries_load(&work);
	while (unit < end) {
		uint32_t group = unit;
		uint32_t group_end =
			minimum(end, (unit / KVT_UNITS_PER_GROUP + 1) * KVT_UNITS_PER_GROUP);

		for (; unit < group_end; unit++)
			unit_run(&work, unit, unit == group);
		if (end - job->first_unit > KVT_UNITS_PER_GROUP)
			group_merge(&work, group, group == job->first_unit);
	}
	/* A single group was not copied into the total. */
	struct partial *result =
		end - job->first_unit > KVT_UNITS_PER_GROUP ? &work.total : &work.group;

	if (block->partials) {
		struct partial target =
			partial_of_span(block, work.out_dim, job->first_unit / block->span_units);
		uint32_t row = row_first(block, job->first_unit * KVT_ATTN_UNIT);
		struct partial to = partial_at(&target, row, work.out_dim);
		struct partial from = partial_at(result, row, work.out_dim);

		partial_copy(&to, &from, block->n_rows - row, work.out_dim);
	} else {
		rows_write(&work, result);
	}
}

/* Merge the span that begins at unit, a group or one unit of it, into work->group. */
static void span_merge(struct work *work, uint32_t unit)
{
	const struct kvt_row_block *block = work->block;
	uint32_t row = row_first(block, unit * KVT_ATTN_UNIT);
	struct partial source = partial_of_span(block, work->out_dim, unit / block->span_units);
	struct partial to = partial_at(&work->group, row, work->out_dim);
	struct partial from = partial_at(&source, row, work->out_dim);

	partial_merge(&to, &from, block->n_rows - row, work->out_dim,
		      unit % KVT_UNITS_PER_GROUP == 0);
}

static void block_finish(const struct kvt_row_block *block, void *workspace)
{
	struct work work;

	work_begin(&work, block, workspace);
	for (uint32_t group = 0; group < block->n_units; group += KVT_UNITS_PER_GROUP) {
		uint32_t end = minimum(group + KVT_UNITS_PER_GROUP, block->n_units);

		for (uint32_t unit = group; unit < end; unit += block->span_units)
			span_merge(&work, unit);
		group_merge(&work, group, group == 0);
	}
	rows_write(&work, &work.total);
}

#define KVT_PATH_DEFINE(path_name, text)                                                           \
	const struct kvt_path path_name = {                                                        \
		.name = text,                                                                      \
		.padded_dim = padded_dim,                                                          \
		.workspace_bytes = workspace_bytes,                                                \
		.job_run = job_run,                                                                \
		.block_finish = block_finish,                                                      \
	}
