/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of tiles of bf16, for queries in bf16 and KV in bf16 or fp8 (which bf16 holds exactly).
 * All else is done with AVX-512. path_amx_bf16.c includes it with the instructions, the tests once
 * more with an emulation of them.
 *
 * Panels and chunks are laid out in pairs, as tiles want them on the right side: 16 steps of 16
 * positions, or of 16 dimensions. Queries and weights are rows, as tiles want them on the left.
 *
 * With few rows, K goes from its pages into tiles on the left side, and queries are on the right:
 * nothing is transposed but the queries and the scores. A score is the same sum either way.
 */

#include "internal.h"

#include "avx512.inc.h"

#define STEP 2
#define GEMM_OWN
#define GEMM_TILES
#define GEMM_ROWS 32
#define GEMM_VECTORS 4
#define TILE 64
#define BLOCK 256

#define STEPS_ALIGN 16
#define VALUES_ALIGN 32

typedef uint16_t element;
typedef __m512i vb;

#include "pairs.inc.h"
#include "strips.inc.h"

#define FEW_ROWS 16

static inline uint32_t dim_whole(uint32_t dim)
{
	return (dim + 31) / 32 * 32;
}

/* Elements of one head's queries. */
static inline size_t few_across_elements(uint32_t dim)
{
	return (size_t)dim_whole(dim) * TILE_ROWS_MAX;
}

static bool few_possible(uint32_t dim, uint32_t type)
{
	(void)dim, (void)type;
	return true;
}

static void few_scores(const struct few *few, float *scores, const element *queries);
static bool few_values(const struct few *few, float *outputs, const element *weights);
static void job_begin(void);
static void job_end(void);

#include "attention.inc.h"

/* Tile shapes */

/* Rows of the configured tiles of sums and left factors; 0: none configured, other code may have
 * its own. */
static __thread uint32_t tiles_rows __attribute__((tls_model("initial-exec")));

static void tiles_shape(uint32_t n_rows)
{
	struct tile_config config = { .palette = 1 };

	if (tiles_rows == n_rows)
		return;
	for (uint32_t i = 0; i < 8; i++) {
		config.row_bytes[i] = 64;
		config.rows[i] = (uint8_t)(i < 6 ? n_rows : TILE_ROWS_MAX);
	}
	tile_config_load(&config);
	tiles_rows = n_rows;
}

static void job_begin(void)
{
	tiles_rows = 0;
}

/* Release the tiles: the kernel need not save those of a thread that has none. */
static void job_end(void)
{
	tile_release();
}

/* The inner kernel: one or two tiles of rows times one or two of columns */

#define TILES_ADD(two_rows, two_columns)                                                           \
	do {                                                                                       \
		for (uint32_t step = 0; step < gemm->n_steps; step += STEPS_ALIGN) {               \
			tile_load(6, b, b_bytes);                                                  \
			tile_load(4, a, a_bytes);                                                  \
			tile_dot(0, 4, 6);                                                         \
			if (two_columns) {                                                         \
				tile_load(7, b + 2 * VW, b_bytes);                                 \
				tile_dot(1, 4, 7);                                                 \
			}                                                                          \
			if (two_rows) {                                                            \
				tile_load(5, a + a_second, a_bytes);                               \
				tile_dot(2, 5, 6);                                                 \
			}                                                                          \
			if (two_rows && two_columns)                                               \
				tile_dot(3, 5, 7);                                                 \
			a += STEP * STEPS_ALIGN;                                                   \
			b += gemm->b_stride * STEPS_ALIGN;                                         \
		}                                                                                  \
	} while (0)

/* Load the sums from c, or zero them; or store them to c. */
#define TILES_EACH(two_rows, two_columns, operation)                                               \
	do {                                                                                       \
		operation(0, c, c_bytes);                                                          \
		if (two_columns)                                                                   \
			operation(1, c + VW, c_bytes);                                             \
		if (two_rows)                                                                      \
			operation(2, c + c_second, c_bytes);                                       \
		if (two_rows && two_columns)                                                       \
			operation(3, c + c_second + VW, c_bytes);                                  \
	} while (0)
#define TILE_BEGIN_0(t, from, stride) tile_zero(t)

INLINE void tiles_body(const struct gemm *gemm, const element *b, float *c, const bool two_rows,
		       const bool two_columns)
{
	const size_t a_bytes = gemm->a_stride * sizeof *b, b_bytes = gemm->b_stride * sizeof *b;
	const size_t c_bytes = gemm->c_stride * sizeof *c;
	const size_t a_second = TILE_ROWS_MAX * gemm->a_stride;
	const size_t c_second = TILE_ROWS_MAX * gemm->c_stride;
	const element *a = gemm->a;

	if (gemm->add)
		TILES_EACH(two_rows, two_columns, tile_load);
	else
		TILES_EACH(two_rows, two_columns, TILE_BEGIN_0);
	TILES_ADD(two_rows, two_columns);
	TILES_EACH(two_rows, two_columns, tile_store);
}

static void gemm_run(const struct gemm *gemm, uint32_t n_rows, uint32_t n_vectors)
{
	const element *b = gemm->b;
	float *c = gemm->c;

	/* Heads that share a block have 16 rows at most. */
	tiles_shape(gemm->exact ? n_rows : TILE_ROWS_MAX);
	for (uint32_t v = 0; v < n_vectors; v += 2, b += 4 * VW, c += 2 * VW) {
		bool two = v + 1 < n_vectors;

		if (n_rows > TILE_ROWS_MAX && two)
			tiles_body(gemm, b, c, true, true);
		else if (n_rows > TILE_ROWS_MAX)
			tiles_body(gemm, b, c, true, false);
		else if (two)
			tiles_body(gemm, b, c, false, true);
		else
			tiles_body(gemm, b, c, false, false);
	}
}

/* Few rows */

/* Panels of KV as rows of bf16, where tiles cannot read them from their pages. */
struct few_rows_of_bf16 {
	_Alignas(64) element at[PANEL_KEYS][KVT_ATTN_HEAD_DIM_MAX];
};

static void strip_widen(element (*target)[KVT_ATTN_HEAD_DIM_MAX], const char *strip, size_t stride,
			uint32_t dim, bool f8)
{
	for (uint32_t key = 0; key < VW; key++, strip += stride) {
		for (uint32_t x = 0; x < dim; x += 32)
			_mm512_store_si512(&target[key][x],
					   halves_load(strip + x * (f8 ? 1 : 2), dim - x, f8));
	}
}

/* Fetch what follows rows [row, row + n) of the panel. */
INLINE void rows_ahead(const struct few *few, uint32_t row, const uint32_t n)
{
	uint32_t bytes = few->dim * kvt_type_size(few->type);

	UNROLL_FOR (i, n) {
		const char *next = few->strips[FEW_STRIPS + (row + i) / VW] +
				   (row + i) % VW * few->next_stride;

		/* Into L2: it keeps more misses in flight than L1. */
		for (uint32_t j = 0; j < bytes; j += 64)
			_mm_prefetch(next + j, _MM_HINT_T1);
	}
}

/* Lay queries out as right factors, with zeros for missing rows. */
static void queries_across(const element *queries, size_t stride, uint32_t n_rows, uint32_t dim,
			   element *across)
{
	for (uint32_t x = 0; x < dim; x += 32, across += 16 * 32) {
		__m512i t[16];

		UNROLL_FOR (i, 16)
			t[i] = i < n_rows ? _mm512_loadu_si512(queries + i * stride + x)
					  : _mm512_setzero_si512();
		transpose_16(t);
		UNROLL_FOR (i, 16)
			_mm512_store_si512(across + i * 32, t[i]);
	}
}

static void few_begin(const struct work *work, const struct tile *tile)
{
	size_t stride = (size_t)work->key_steps * STEP;

	for (uint32_t row = 0, head = 0; row < tile->n_rows; row += tile->head_rows, head++)
		queries_across(work->queries + (tile->first_row + row) * stride, stride,
			       tile->head_rows, dim_whole(work->head_dim),
			       work->across + head * few_across_elements(work->head_dim));
}

INLINE void scores_put(const __m512i *rows, float *scores, uint32_t n_rows, const uint32_t n_most)
{
	UNROLL_FOR (i, n_most) {
		if (i < n_rows)
			_mm512_storeu_si512(scores + i * BLOCK, rows[i]);
	}
}

/* Transpose sixteen positions' scores from [position][row] to rows. */
static void scores_across(const float (*strip)[16], float *scores, uint32_t n_rows)
{
	const char *from = (const char *)strip;
	__m512i t[16];

	if (n_rows <= 4) {
		words_load(from, sizeof strip[0], t);
		scores_put(t, scores, n_rows, 4);
	} else if (n_rows <= 8) {
		words_load_8(from, sizeof strip[0], t);
		scores_put(t, scores, n_rows, 8);
	} else {
		UNROLL_FOR (i, 16)
			t[i] = _mm512_load_si512(strip[i]);
		transpose_16(t);
		scores_put(t, scores, n_rows, 16);
	}
}

/* Fetches of a panel's rows, spread evenly over n_steps steps. */
struct fetching {
	uint32_t n_steps;
	uint32_t step;
	uint32_t row;
};

INLINE void fetching_step(const struct few *few, struct fetching *fetching)
{
	for (fetching->step++; fetching->row * fetching->n_steps < PANEL_KEYS * fetching->step;
	     fetching->row++)
		rows_ahead(few, fetching->row, 1);
}

static void few_scores(const struct few *few, float *scores, const element *queries)
{
	_Alignas(64) float strip[16][16];
	struct few_rows_of_bf16 wide;
	const bool f8 = few->type == KVT_ATTN_F8_E4M3;
	const uint32_t n_dims = dim_whole(few->dim);
	const bool direct = !f8 && n_dims == few->dim;
	struct fetching fetching = { .n_steps = n_dims / 32 * (PANEL_KEYS / VW) };

	(void)queries;
	tiles_shape(TILE_ROWS_MAX);
	for (uint32_t i = 0; i * VW < few->n_keys; i++) {
		const char *keys = few->strips[i];
		size_t stride = few->stride;

		if (!direct) {
			strip_widen(wide.at, keys, stride, few->dim, f8);
			keys = (const char *)wide.at;
			stride = sizeof wide.at[0];
		}
		tile_zero(0);
		for (uint32_t x = 0; x < n_dims; x += 32) {
			tile_load(6, few->across + x * TILE_ROWS_MAX, 64);
			tile_load(4, keys + 2 * x, stride);
			tile_dot(0, 4, 6);
			fetching_step(few, &fetching);
		}
		tile_store(0, strip, sizeof strip[0]);
		scores_across(strip, scores + i * VW, few->n_rows);
	}
}

struct few_pairs {
	_Alignas(64) element at[4][16][32];
};

/* Pack thirty-two positions of up to 64 dimensions, from x on, as four right factors. */
INLINE void pairs_put(const struct few *few, uint32_t first, uint32_t x, struct few_pairs *pairs,
		      struct fetching *fetching, const bool whole, const bool f8)
{
	const uint32_t bytes = f8 ? 1 : 2;

	for (uint32_t i = 0; i < 16; i++) {
		uint32_t key = first + 2 * i;
		const char *even = few->strips[key / VW] + key % VW * few->stride + x * bytes;

		for (uint32_t half = 0; half < 2 && x + 32 * half < few->dim; half++) {
			uint32_t n = whole ? 32 : few->dim - x - 32 * half;
			const char *from = even + 32 * half * bytes;
			__m512i both[2];

			pair_interleave(halves_load(from, n, f8),
					halves_load(from + few->stride, n, f8), both);
			_mm512_store_si512(pairs->at[2 * half][i], both[0]);
			_mm512_store_si512(pairs->at[2 * half + 1][i], both[1]);
		}
		fetching_step(few, fetching);
	}
}

#define FEW_EACH_TILE(n, operation, c, stride)                                                     \
	do {                                                                                       \
		operation(0, c, stride);                                                           \
		if (n > 1)                                                                         \
			operation(1, c + VW, stride);                                              \
		if (n > 2)                                                                         \
			operation(2, c + 2 * VW, stride);                                          \
		if (n > 3)                                                                         \
			operation(3, c + 3 * VW, stride);                                          \
	} while (0)

/* Add a panel's values, n (at most 4) tiles of dimensions from x on, to the outputs c. */
INLINE void few_values_some(const struct few *few, float *c, const element *weights, uint32_t x,
			    uint32_t n, struct fetching *fetching)
{
	const size_t c_bytes = few->out_dim * sizeof *c;
	struct few_pairs pairs;

	FEW_EACH_TILE(n, tile_load, c, c_bytes);
	for (uint32_t key = 0; key < few->n_keys; key += VALUES_ALIGN) {
		if (few->type == KVT_ATTN_F8_E4M3)
			pairs_put(few, key, x, &pairs, fetching, false, true);
		else if (few->dim - x >= 64)
			pairs_put(few, key, x, &pairs, fetching, true, false);
		else
			pairs_put(few, key, x, &pairs, fetching, false, false);
		tile_load(4, weights + key, BLOCK * sizeof *weights);
		tile_load(6, pairs.at[0], 64);
		tile_dot(0, 4, 6);
		if (n > 1) {
			tile_load(7, pairs.at[1], 64);
			tile_dot(1, 4, 7);
		}
		if (n > 2) {
			tile_load(6, pairs.at[2], 64);
			tile_dot(2, 4, 6);
		}
		if (n > 3) {
			tile_load(7, pairs.at[3], 64);
			tile_dot(3, 4, 7);
		}
	}
	FEW_EACH_TILE(n, tile_store, c, c_bytes);
}

/* Returns true if all outputs, and so all values, are finite. If not, they must not be used. */
static bool few_values(const struct few *few, float *outputs, const element *weights)
{
	struct fetching fetching = { .n_steps = (few->out_dim + 63) / 64 * (PANEL_KEYS / 2) };
	__mmask16 bad = 0;

	tiles_shape(few->n_rows);
	for (uint32_t x = 0; x < few->out_dim; x += 64)
		few_values_some(few, outputs + x, weights, x, minimum(4, (few->out_dim - x) / VW),
				&fetching);
	for (uint32_t i = 0; i < few->n_rows * few->out_dim; i += VW)
		/* NaN or infinite */
		bad |= _mm512_fpclass_ps_mask(v_load(outputs + i), 0x99);
	return !bad;
}
