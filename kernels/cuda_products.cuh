/* SPDX-License-Identifier: Apache-2.0 */
/* Scores, weights and outputs of a tile. See cuda_attention.cuh. */
#ifndef KVT_KERNELS_CUDA_PRODUCTS_CUH
#define KVT_KERNELS_CUDA_PRODUCTS_CUH

#include "cuda_shape.cuh"

/* The warp's state of one unit. [0] is of row lane / 4, [1] of the row 8 below. */
template <int dim> struct unit_state {
	float maximum[2];
	float sum[2]; /* this lane's part, until the unit is done */
	float output[result_shape<dim>::dim_tiles][4];
};

template <int dim> KVT_DEVICE void unit_clear(struct unit_state<dim> *state)
{
	for (int i = 0; i < 2; i++) {
		state->maximum[i] = MINUS_INFINITY;
		state->sum[i] = 0;
	}
#pragma unroll
	for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			state->output[tile][i] = 0;
	}
}

/*
 * The address that a lane gives to load four matrices of 8 x 8: of 16 rows, two chunks, an even one
 * and the next. Of queries and values matrices 0 and 1 are the even chunk of rows 0-7 and 8-15, 2
 * and 3 the next chunk. Of keys 0 and 1 are both chunks of rows 0-7, 2 and 3 those of rows 8-15:
 * so the two words that a product takes are neighbours, as the instruction wants its registers.
 */
template <int row_chunks, bool keys>
KVT_DEVICE const unsigned char *matrix_row(const unsigned char *rows, uint32_t chunk)
{
	typedef swizzle<row_chunks> layout;
	const uint32_t lane = thread_index() % 32;
	const uint32_t row = keys ? lane / 16 * 8 + lane % 8 : lane % 16;
	const uint32_t twisted = (keys ? lane / 8 % 2 : lane / 16) ^ layout::twist(lane % 8);

	return rows + (row * row_chunks + layout::in_row(chunk, twisted)) * 16;
}

/* scores = q k^T for the warp's 16 rows and the tile's keys; they are 0 to begin with */
template <int dim, int kind>
KVT_DEVICE void tile_scores(const unsigned char *q, const unsigned char *k, float (*scores)[4])
{
	const int row_chunks = shape<dim, kind>::row_chunks;
	const unsigned char *rows = q + thread_index() / 32 * 16 * row_chunks * 16;

#pragma unroll
	for (int step = 0; step < dim / 16; step++) {
		uint32_t a[4];

		matrix_load(a, matrix_row<row_chunks, false>(rows, step * 2));
#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load(b, matrix_row<row_chunks, true>(
					       k + tile * 8 * row_chunks * 16, step * 2));
			matrix_multiply<kind == KIND_BF16>(scores[tile], a, b[0], b[1]);
			matrix_multiply<kind == KIND_BF16>(scores[tile + 1], a, b[2], b[3]);
		}
	}
}

/* Floats that are loaded at once. */
struct alignas(16) four {
	float x[4];
};

struct alignas(8) two {
	float x[2];
};

/* The same in fp32: each score adds dimensions in ascending order. */
template <int dim>
KVT_DEVICE void tile_scores_f32(const unsigned char *q, const unsigned char *k, float (*scores)[4])
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;
	const uint32_t q_row = warp * 16 + lane / 4, k_row = lane % 4 * 2;
	typedef swizzle<shape<dim, KIND_F32>::row_chunks> layout;

	for (uint32_t chunk = 0; chunk < dim / 4; chunk++) {
		const struct four low =
			shared_load<struct four>(q + layout::place(q_row, chunk) * 16);
		const struct four high =
			shared_load<struct four>(q + layout::place(q_row + 8, chunk) * 16);

#pragma unroll
		for (uint32_t i = 0; i < shape<dim, KIND_F32>::key_tiles * 2; i++) {
			const struct four key = shared_load<struct four>(
				k + layout::place(i / 2 * 8 + k_row + i % 2, chunk) * 16);
			float *score = scores[i / 2] + i % 2;

#pragma unroll
			for (int j = 0; j < 4; j++) {
				score[0] = product_sum(low.x[j], key.x[j], score[0]);
				score[2] = product_sum(high.x[j], key.x[j], score[2]);
			}
		}
	}
}

/* Set scores to minus infinity for keys that a row must not see; start is the tile's first
 * position. */
template <int dim, int kind>
KVT_DEVICE void tile_mask(float (*scores)[4], uint32_t start, const uint32_t *limits)
{
	const uint32_t column = thread_index() % 4 * 2;

#pragma unroll
	for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (start + tile * 8 + column + i % 2 >= limits[i / 2])
				scores[tile][i] = MINUS_INFINITY;
		}
	}
}

/*
 * Turn scores into weights; update maxima, sums and outputs. A row that sees nothing of the tile
 * has only minus infinities: its maximum stays, the factor is 1, the weights are 0.
 */
template <int dim, int kind>
KVT_DEVICE void tile_weights(struct unit_state<dim> *state, float (*scores)[4], float log2_scale)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float high = MINUS_INFINITY, shift, factor, sum = 0;

#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++)
			high = higher(high, higher(scores[tile][2 * i], scores[tile][2 * i + 1]));
		high = higher(high, exchange(high, 1));
		high = higher(high, exchange(high, 2));
		high = higher(state->maximum[i], product(high, log2_scale));
		shift = high == MINUS_INFINITY ? 0 : high;
		factor = exp2_of(state->maximum[i] - shift);
		state->maximum[i] = high;
#pragma unroll
		for (int tile = 0; tile < shape<dim, kind>::key_tiles; tile++) {
#pragma unroll
			for (int j = 2 * i; j < 2 * i + 2; j++) {
				scores[tile][j] =
					exp2_of(product_sum(scores[tile][j], log2_scale, -shift));
				sum += scores[tile][j];
			}
		}
		state->sum[i] = product_sum(state->sum[i], factor, sum);
		if (factor == 1.0f) /* as in most tiles but the first */
			continue;
#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
			state->output[tile][2 * i] = product(state->output[tile][2 * i], factor);
			state->output[tile][2 * i + 1] =
				product(state->output[tile][2 * i + 1], factor);
		}
	}
}

/* outputs += weights v */
template <int dim, int kind>
KVT_DEVICE void tile_values(struct unit_state<dim> *state, float (*weights)[4],
			    const unsigned char *v)
{
	const int row_chunks = shape<dim, kind>::row_chunks;
	const bool bf16 = kind == KIND_BF16;

#pragma unroll
	for (int step = 0; step < shape<dim, kind>::tile_keys / 16; step++) {
		const float *low = weights[2 * step], *high = weights[2 * step + 1];
		uint32_t a[4] = { pair_of<bf16>(low[0], low[1]), pair_of<bf16>(low[2], low[3]),
				  pair_of<bf16>(high[0], high[1]),
				  pair_of<bf16>(high[2], high[3]) };

#pragma unroll
		for (int tile = 0; tile < result_shape<dim>::dim_tiles; tile += 2) {
			uint32_t b[4];

			matrix_load_transposed(
				b, matrix_row<row_chunks, false>(
					   v + step * 16 * row_chunks * 16, tile));
			matrix_multiply<bf16>(state->output[tile], a, b[0], b[1]);
			matrix_multiply<bf16>(state->output[tile + 1], a, b[2], b[3]);
		}
	}
}

/* The same in fp32: each output adds positions in ascending order. */
template <int dim>
KVT_DEVICE void tile_values_f32(struct unit_state<dim> *state, float (*weights)[4],
				const unsigned char *v)
{
	const uint32_t lane = thread_index() % 32;
	const int row_chunks = shape<dim, KIND_F32>::row_chunks;
	/* Two columns of eight: the half of a chunk, of one of two chunks that are neighbours. */
	const unsigned char *half = v + lane % 2 * 8;
	const uint32_t neighbour = lane / 2 % 2;

#pragma unroll
	for (uint32_t key = 0; key < shape<dim, KIND_F32>::tile_keys; key++) {
		/* The lane of the same four that has this column. */
		const uint32_t owner = lane / 4 * 4 + key % 8 / 2;
		const float low = from_lane(weights[key / 8][key % 2], owner);
		const float high = from_lane(weights[key / 8][2 + key % 2], owner);
		const uint32_t twist = swizzle<row_chunks>::twist(key);
		const unsigned char *row = half + (neighbour ^ twist % 2) * 16;

#pragma unroll
		for (uint32_t tile = 0; tile < result_shape<dim>::dim_tiles; tile++) {
			const uint32_t chunk = key * row_chunks + (tile * 2 ^ twist / 2 * 2);
			const struct two value = shared_load<struct two>(row + chunk * 16);
			float *output = state->output[tile];

			output[0] = product_sum(low, value.x[0], output[0]);
			output[1] = product_sum(low, value.x[1], output[1]);
			output[2] = product_sum(high, value.x[0], output[2]);
			output[3] = product_sum(high, value.x[1], output[3]);
		}
	}
}

#endif
