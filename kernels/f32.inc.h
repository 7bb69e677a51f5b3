/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The float paths' part that is the same for all vector widths. Includers
 * define besides the float vectors
 *
 *   floats_load        the first n elements of a row as floats, and zeros; reads nothing more
 *   v_store_first      store the first n lanes
 *   v_transpose        VW vectors: lane j of vector i becomes lane i of vector j
 *   v_any_not_finite   whether any lane is infinite or NaN
 *   rows_fetch, ahead_fetch  ask for rows that will be read soon, and later
 *   pair_load          with FEW_PAIRED of few.inc.h: a pair of vectors, in the order of pair_split
 */

#define STEP 1

typedef float element;
typedef vf vb;

static inline vb b_load(const element *source)
{
	return v_load(source);
}

static inline vb a_broadcast(const element *source)
{
	return v_set1(*source);
}

static inline vf dot(vf c, vb b, vb a)
{
	return v_fma(b, a, c);
}

static inline vf v_exp2_weight(vf x)
{
	return v_exp2(x);
}

static inline void weights_store(element *target, vf low, vf high)
{
	v_store(target, low);
	v_store(target + VW, high);
}

static inline void row_load(element *target, const void *source, uint32_t n, uint32_t n_padded,
			    uint32_t type)
{
	uint32_t bytes = kvt_type_size(type);

	for (uint32_t i = 0; i < n; i += VW)
		v_store_first(target + i, n_padded - i,
			      floats_load((const char *)source + i * bytes, n - i, type));
}

static inline __attribute__((always_inline)) void keys_pack_of(element *panel,
							       const struct kvt_rows *rows,
							       const struct kvt_rows *ahead,
							       uint32_t dim, const uint32_t type)
{
	const uint32_t bytes = kvt_type_size(type);
	/* Spread fetches over the transpositions, at least one in each, so that they do not queue
	 * up. */
	const uint32_t n_fetch = (VW + dim / VW - 1) / (dim / VW ? dim / VW : 1);

	for (uint32_t key = 0; key < rows->n; key += VW) {
		uint32_t fetched = key;

		rows_fetch(rows, key + VW, VW, dim * bytes);
		for (uint32_t x = 0; x < dim; x += VW) {
			uint32_t steps = dim - x < VW ? dim - x : VW;
			element *to = panel + x * (GEMM_VECTORS * VW) + key;
			vf t[VW];

			if (fetched < key + VW)
				ahead_fetch(ahead, fetched, n_fetch, dim * bytes);
			fetched += n_fetch;
			UNROLL_FOR (i, VW)
				t[i] = floats_load(rows->at[key + i] + x * bytes, dim - x, type);
			v_transpose(t);
			if (steps < VW) {
				for (uint32_t i = 0; i < steps; i++)
					v_store(to + i * (GEMM_VECTORS * VW), t[i]);
				continue;
			}
			UNROLL_FOR (i, VW)
				v_store(to + i * (GEMM_VECTORS * VW), t[i]);
		}
	}
}

/* For few.inc.h */
static inline __attribute__((always_inline)) void
values_load(const char *row, size_t stride, uint32_t dim, uint32_t v, vb *ret_step,
	    const uint32_t n_vectors, const uint32_t type)
{
	(void)stride;
#ifdef FEW_PAIRED
	if (FEW_PAIRED(type) && n_vectors > 1) {
		UNROLL_FOR (i, n_vectors / 2)
			pair_load(row + (v + 2 * i) * VW * kvt_type_size(type), ret_step + 2 * i);
		return;
	}
#endif
	UNROLL_FOR (i, n_vectors) {
		uint32_t x = (v + i) * VW, n = n_vectors > 1 ? VW : dim - x;

		ret_step[i] = floats_load(row + x * kvt_type_size(type), n, type);
	}
}

/* Pack some rows of one panel of values, n_vectors wide, whose first dimension is from. */
static inline __attribute__((always_inline)) bool values_panel_pack(
	element *panel, const char *const *rows, uint32_t n_rows, uint32_t dim, uint32_t from,
	const uint32_t n_vectors, const uint32_t type)
{
	const uint32_t bytes = kvt_type_size(type);
	bool not_finite = false;

	for (uint32_t key = 0; key < n_rows; key++) {
		UNROLL_FOR (v, n_vectors) {
			uint32_t x = from + v * VW;
			vf value = floats_load(rows[key] + x * bytes, dim - x, type);

			not_finite |= v_any_not_finite(value);
			v_store(panel, value);
			panel += VW;
		}
	}
	return not_finite;
}

static inline __attribute__((always_inline)) bool values_pack_of(element *chunk, uint32_t capacity,
								 const struct kvt_rows *rows,
								 const struct kvt_rows *ahead,
								 uint32_t dim, const uint32_t type)
{
	const uint32_t n_vectors = (dim + VW - 1) / VW;
	const uint32_t n_panels = (n_vectors + GEMM_VECTORS - 1) / GEMM_VECTORS;
	bool not_finite = false;

	for (uint32_t key = 0; key < rows->n; key += VW) {
		const char *const *at = rows->at + key;
		uint32_t n = rows->n - key < VW ? rows->n - key : VW;

		rows_fetch(rows, key + VW, VW, dim * kvt_type_size(type));
		ahead_fetch(ahead, key, VW, dim * kvt_type_size(type));
		for (uint32_t panel = 0; panel < n_panels; panel++) {
			uint32_t first = n_vectors * panel / n_panels;
			uint32_t width = n_vectors * (panel + 1) / n_panels - first;
			element *to = chunk + first * VW * capacity + key * width * VW;

			if (width == GEMM_VECTORS)
				not_finite |= values_panel_pack(to, at, n, dim, first * VW,
								GEMM_VECTORS, type);
			else
				not_finite |=
					values_panel_pack(to, at, n, dim, first * VW, width, type);
		}
	}
	return not_finite;
}

/* The type becomes a constant, so that each loop has one conversion and no choice. */

static void keys_pack(element *panel, const struct kvt_rows *rows, const struct kvt_rows *ahead,
		      uint32_t dim, uint32_t type)
{
	switch (type) {
	case KVT_ATTN_F32:
		keys_pack_of(panel, rows, ahead, dim, KVT_ATTN_F32);
		return;
	case KVT_ATTN_F16:
		keys_pack_of(panel, rows, ahead, dim, KVT_ATTN_F16);
		return;
	case KVT_ATTN_BF16:
		keys_pack_of(panel, rows, ahead, dim, KVT_ATTN_BF16);
		return;
	default:
		keys_pack_of(panel, rows, ahead, dim, KVT_ATTN_F8_E4M3);
	}
}

static bool values_pack(element *chunk, uint32_t capacity, const struct kvt_rows *rows,
			const struct kvt_rows *ahead, uint32_t dim, uint32_t type)
{
	switch (type) {
	case KVT_ATTN_F32:
		return values_pack_of(chunk, capacity, rows, ahead, dim, KVT_ATTN_F32);
	case KVT_ATTN_F16:
		return values_pack_of(chunk, capacity, rows, ahead, dim, KVT_ATTN_F16);
	case KVT_ATTN_BF16:
		return values_pack_of(chunk, capacity, rows, ahead, dim, KVT_ATTN_BF16);
	default:
		return values_pack_of(chunk, capacity, rows, ahead, dim, KVT_ATTN_F8_E4M3);
	}
}
