/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread works on: partial results, workspace, rows of pages. See attention.inc.h. */

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
