/* SPDX-License-Identifier: Apache-2.0 */
/* The inner kernel, and the panels that it reads. See attention.inc.h. */

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

/* Each size of the inner kernel: instance(rows, vectors). */
#if GEMM_VECTORS == 4
#define GEMM_CASES_OF(instance, rows)                                                              \
	instance(rows, 1) instance(rows, 2) instance(rows, 3) instance(rows, 4)
#else
#define GEMM_CASES_OF(instance, rows) instance(rows, 1) instance(rows, 2)
#endif
#define GEMM_CASES_4(instance)                                                                     \
	GEMM_CASES_OF(instance, 1)                                                                 \
	GEMM_CASES_OF(instance, 2) GEMM_CASES_OF(instance, 3) GEMM_CASES_OF(instance, 4)
#if GEMM_ROWS == 6
#define GEMM_CASES(instance)                                                                       \
	GEMM_CASES_4(instance) GEMM_CASES_OF(instance, 5) GEMM_CASES_OF(instance, 6)
#else
#define GEMM_CASES(instance) GEMM_CASES_4(instance)
#endif

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
