/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bf16 with BFMMLA, for queries in bf16 and KV in bf16 or fp8 (which bf16 holds
 * exactly).
 *
 * An instruction adds four products to each of 2 x 2 sums: two products to each other and then to
 * the sum, and the other two likewise. That chain depends on absolute positions alone. A step is
 * four elements: two positions' (or dimensions') steps side by side are a right factor, two rows'
 * steps a left one.
 *
 * Inputs: jobs of append_prefill.c. Invariant: all products are BFMMLA's, so that no row depends on
 * how many there are. Caller: through kvt_isa by context.c.
 */

#include "neon.inc.h"

#define STEP 4
#define GEMM_OWN
#define GEMM_ROWS 8
#define GEMM_VECTORS 4
#define TILE 32
#define BLOCK 128

/* Sixteen bytes of a left row are read at a time. */
#define STEPS_ALIGN 2
#define VALUES_ALIGN (STEP * STEPS_ALIGN)

typedef uint16_t element;

static inline vf v_exp2_weight(vf x)
{
	return v_exp2(x);
}

static inline void weights_store(element *target, vf low, vf high)
{
	bfloat16x8_t both = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high);

	vst1q_u16(target, vreinterpretq_u16_bf16(both));
}

/* Load the first n (at most 8) elements of a row in bf16, then zeros. Reads nothing behind them. */
static inline uint16x8_t halves_load(const void *source, uint32_t n, bool f8)
{
	uint32_t lanes = n < 8 ? n : 8;
	uint16_t few[8] = { 0 };
	uint64_t bytes = 0;

	if (!f8 && lanes == 8)
		return vld1q_u16(source);
	if (!f8) {
		memcpy(few, source, lanes * sizeof *few);
		return vld1q_u16(few);
	}
	if (lanes == 8)
		memcpy(&bytes, source, 8);
	else
		memcpy(&bytes, source, lanes);
	uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
	/* The upper half of a float that is a fp8 number is all of it. */
	uint32x4_t low = vreinterpretq_u32_f32(f8_floats(vget_low_u16(wide)));
	uint32x4_t high = vreinterpretq_u32_f32(f8_floats(vget_high_u16(wide)));

	return vcombine_u16(vshrn_n_u32(low, 16), vshrn_n_u32(high, 16));
}

static inline void row_load(element *target, const void *source, uint32_t n, uint32_t n_padded,
			    uint32_t type)
{
	(void)type; /* queries on this path are bf16 */
	for (uint32_t i = 0; i < n_padded; i += 8)
		vst1q_u16(target + i, halves_load((const uint16_t *)source + i,
						  i < n ? n - i : 0, false));
}

static inline __attribute__((always_inline)) void keys_pack_of(element *panel,
							       const struct kvt_rows *rows,
							       const struct kvt_rows *ahead,
							       uint32_t dim, const bool f8)
{
	const uint32_t bytes = f8 ? 1 : 2, step = GEMM_VECTORS * VW * STEP;

	/* Missing positions of the last pair are zeros, or others that are not used. */
	for (uint32_t key = 0; key < (rows->n + VW - 1) / VW * VW; key++) {
		element *to = panel + key * STEP;

		rows_fetch(rows, key + VW, 1, dim * bytes);
		ahead_fetch(ahead, key, 1, dim * bytes);
		for (uint32_t x = 0; x < dim; x += 8, to += 2 * step) {
			uint16x8_t both = halves_load(rows->at[key] + x * bytes, dim - x, f8);

			vst1_u16(to, vget_low_u16(both));
			vst1_u16(to + step, vget_high_u16(both));
		}
	}
}

static void keys_pack(element *panel, const struct kvt_rows *rows, const struct kvt_rows *ahead,
		      uint32_t dim, uint32_t type)
{
	if (type == KVT_ATTN_F8_E4M3)
		keys_pack_of(panel, rows, ahead, dim, true);
	else
		keys_pack_of(panel, rows, ahead, dim, false);
}

/* Four rows of eight dimensions become four vectors of two dimensions. */
static inline void four_interleave(const uint16x8_t *rows, uint16x8_t *ret_steps)
{
	uint32x4_t a = vreinterpretq_u32_u16(vzip1q_u16(rows[0], rows[1]));
	uint32x4_t b = vreinterpretq_u32_u16(vzip2q_u16(rows[0], rows[1]));
	uint32x4_t c = vreinterpretq_u32_u16(vzip1q_u16(rows[2], rows[3]));
	uint32x4_t d = vreinterpretq_u32_u16(vzip2q_u16(rows[2], rows[3]));

	ret_steps[0] = vreinterpretq_u16_u32(vzip1q_u32(a, c));
	ret_steps[1] = vreinterpretq_u16_u32(vzip2q_u32(a, c));
	ret_steps[2] = vreinterpretq_u16_u32(vzip1q_u32(b, d));
	ret_steps[3] = vreinterpretq_u16_u32(vzip2q_u32(b, d));
}

/*
 * Pack four positions, from which n dimensions are left, as up to two vectors of dimensions.
 * Returns the lanes' highest bits but the sign: 0x7f80 or more where a value is not finite.
 */
static inline __attribute__((always_inline)) uint16x8_t
values_step_pack(element *to, const char *const *rows, uint32_t offset, uint32_t n,
		 uint32_t n_vectors, const bool f8)
{
	uint16x8_t four[4], steps[4], highest = vdupq_n_u16(0);

	UNROLL_FOR (i, 4) {
		four[i] = halves_load(rows[i] + offset, n, f8);
		highest = vmaxq_u16(highest, vandq_u16(four[i], vdupq_n_u16(0x7fff)));
	}
	four_interleave(four, steps);
	UNROLL_FOR (i, 4) {
		if (i < 2 * n_vectors)
			vst1q_u16(to + 8 * i, steps[i]);
	}
	return highest;
}

static inline __attribute__((always_inline)) bool values_pack_of(element *chunk, uint32_t capacity,
								 const struct kvt_rows *rows,
								 const struct kvt_rows *ahead,
								 uint32_t dim, const bool f8)
{
	const uint32_t bytes = f8 ? 1 : 2, n_vectors = (dim + VW - 1) / VW;
	const uint32_t n_panels = (n_vectors + GEMM_VECTORS - 1) / GEMM_VECTORS;
	const uint32_t n_rows = (rows->n + VALUES_ALIGN - 1) / VALUES_ALIGN * VALUES_ALIGN;
	uint16x8_t highest = vdupq_n_u16(0);

	for (uint32_t key = 0; key < n_rows; key += STEP) {
		rows_fetch(rows, key + STEP, STEP, dim * bytes);
		ahead_fetch(ahead, key, STEP, dim * bytes);
		for (uint32_t panel = 0; panel < n_panels; panel++) {
			uint32_t first = n_vectors * panel / n_panels;
			uint32_t width = n_vectors * (panel + 1) / n_panels - first;
			element *to = chunk + (first * capacity + key * width) * VW;

			for (uint32_t v = 0; v < width; v += 2) {
				uint32_t x = (first + v) * VW, n = width - v < 2 ? 1 : 2;
				uint32_t left = dim - x < n * VW ? dim - x : n * VW;

				highest = vmaxq_u16(highest,
						    values_step_pack(to + v * VW * STEP,
								     rows->at + key, x * bytes,
								     left, n, f8));
			}
		}
	}
	return vmaxvq_u16(highest) >= 0x7f80;
}

static bool values_pack(element *chunk, uint32_t capacity, const struct kvt_rows *rows,
			const struct kvt_rows *ahead, uint32_t dim, uint32_t type)
{
	if (type == KVT_ATTN_F8_E4M3)
		return values_pack_of(chunk, capacity, rows, ahead, dim, true);
	return values_pack_of(chunk, capacity, rows, ahead, dim, false);
}

#include "attention.inc.h"

/* The inner kernel: pairs of rows times pairs of columns */

#define PAIRS_OF_ROWS (GEMM_ROWS / 2)
#define PAIRS_OF_COLUMNS 4

static inline bfloat16x8_t factor_load(const element *source)
{
	return vreinterpretq_bf16_u16(vld1q_u16(source));
}

/* Two rows of two steps become two left factors. */
static inline void left_load(const element *even, const element *odd, bfloat16x8_t *ret_factors)
{
	uint64x2_t a = vreinterpretq_u64_u16(vld1q_u16(even));
	uint64x2_t b = vreinterpretq_u64_u16(vld1q_u16(odd));

	ret_factors[0] = vreinterpretq_bf16_u64(vzip1q_u64(a, b));
	ret_factors[1] = vreinterpretq_bf16_u64(vzip2q_u64(a, b));
}

/* Two rows of four columns become two squares of sums, or back. */
static inline void squares_make(vf even, vf odd, vf *ret_squares)
{
	float64x2_t a = vreinterpretq_f64_f32(even), b = vreinterpretq_f64_f32(odd);

	ret_squares[0] = vreinterpretq_f32_f64(vzip1q_f64(a, b));
	ret_squares[1] = vreinterpretq_f32_f64(vzip2q_f64(a, b));
}

/* Multiply n_rows rows with n_vectors (1 or 2) vectors of columns. */
INLINE void pairs_body(const struct gemm *gemm, const element *b, float *c, uint32_t n_rows,
		       const uint32_t n_pairs, const uint32_t n_vectors)
{
	const element *even[PAIRS_OF_ROWS], *odd[PAIRS_OF_ROWS];
	vf sums[PAIRS_OF_ROWS][PAIRS_OF_COLUMNS];

	UNROLL_FOR (p, n_pairs) {
		/* An odd number of rows: the last one twice, stored once. */
		bool two = 2 * p + 1 < n_rows;

		even[p] = gemm->a + 2 * p * gemm->a_stride;
		odd[p] = two ? even[p] + gemm->a_stride : even[p];
		UNROLL_FOR (v, n_vectors) {
			const float *at = c + 2 * p * gemm->c_stride + v * VW;

			sums[p][2 * v] = sums[p][2 * v + 1] = v_zero();
			if (gemm->add)
				squares_make(v_load(at), v_load(two ? at + gemm->c_stride : at),
					     &sums[p][2 * v]);
		}
	}
	for (uint32_t step = 0; step < gemm->n_steps; step += STEPS_ALIGN) {
		bfloat16x8_t left[PAIRS_OF_ROWS][2];

		UNROLL_FOR (p, n_pairs) {
			left_load(even[p], odd[p], left[p]);
			even[p] += STEP * STEPS_ALIGN;
			odd[p] += STEP * STEPS_ALIGN;
		}
		UNROLL_FOR (i, STEPS_ALIGN) {
			UNROLL_FOR (q, 2 * n_vectors) {
				bfloat16x8_t right = factor_load(b + q * 2 * STEP);

				UNROLL_FOR (p, n_pairs)
					sums[p][q] = vbfmmlaq_f32(sums[p][q], left[p][i], right);
			}
			b += gemm->b_stride;
		}
	}
	UNROLL_FOR (p, n_pairs) {
		UNROLL_FOR (v, n_vectors) {
			float *at = c + 2 * p * gemm->c_stride + v * VW;
			vf rows[2];

			squares_make(sums[p][2 * v], sums[p][2 * v + 1], rows);
			v_store(at, rows[0]);
			if (2 * p + 1 < n_rows)
				v_store(at + gemm->c_stride, rows[1]);
		}
	}
}

INLINE void pairs_of(const struct gemm *gemm, const element *b, float *c, uint32_t n_rows,
		     const uint32_t n_vectors)
{
	switch ((n_rows + 1) / 2) {
	case 1:
		pairs_body(gemm, b, c, n_rows, 1, n_vectors);
		break;
	case 2:
		pairs_body(gemm, b, c, n_rows, 2, n_vectors);
		break;
	case 3:
		pairs_body(gemm, b, c, n_rows, 3, n_vectors);
		break;
	default:
		pairs_body(gemm, b, c, n_rows, 4, n_vectors);
	}
}

static void gemm_run(const struct gemm *gemm, uint32_t n_rows, uint32_t n_vectors)
{
	for (uint32_t v = 0; v < n_vectors; v += 2) {
		const element *b = gemm->b + v * VW * STEP;

		if (v + 1 < n_vectors)
			pairs_of(gemm, b, gemm->c + v * VW, n_rows, 2);
		else
			pairs_of(gemm, b, gemm->c + v * VW, n_rows, 1);
	}
}

KVT_PATH_DEFINE(kvt_path_neon_bf16, "neon_bf16");
