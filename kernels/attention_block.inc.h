/* SPDX-License-Identifier: Apache-2.0 */
/* A block of a unit, packed before or read panel by panel. See attention.inc.h. */

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
