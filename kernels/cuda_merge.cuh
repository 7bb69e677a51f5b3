/* SPDX-License-Identifier: Apache-2.0 */
/* Merging of units and spans: always the same operations, or bits would differ. */
#ifndef KVT_KERNELS_CUDA_MERGE_CUH
#define KVT_KERNELS_CUDA_MERGE_CUH

#include "cuda_products.cuh"
#include "cuda_rows.cuh"

struct merge_factors {
	float maximum;
	float target;
	float source;
};

KVT_DEVICE struct merge_factors merge_factors_of(float target, float source)
{
	struct merge_factors factors;
	float shift;

	factors.maximum = higher(target, source);
	shift = factors.maximum == MINUS_INFINITY ? 0 : factors.maximum;
	factors.target = exp2_of(target - shift);
	factors.source = exp2_of(source - shift);
	return factors;
}

KVT_DEVICE float merged(float target, float source, const struct merge_factors *factors)
{
	return product_sum(source, factors->source, product(target, factors->target));
}

KVT_DEVICE void output_write(const struct rows_at_hand *rows, uint32_t row, uint32_t column,
			     float value)
{
	const struct kvt_cuda_prefill *args = rows->args;
	unsigned char *out = at<unsigned char>(args->out) +
			     row_offset(rows, row, args->out_row_stride, args->out_head_stride);

	if (column >= args->head_dim)
		return;
	value += 0.0f; /* -0 and 0 are the same */
	if (args->out_type == KVT_ATTN_F32)
		((float *)(void *)out)[column] = value;
	else if (args->out_type == KVT_ATTN_BF16)
		((uint16_t *)(void *)out)[column] = (uint16_t)pair_of<true>(value, 0.0f);
	else
		((uint16_t *)(void *)out)[column] = (uint16_t)pair_of<false>(value, 0.0f);
}

/* The maximum and the sum of a row, as in a slot. */
struct row_sums {
	float maximum;
	float sum;
};

KVT_DEVICE struct row_sums row_sums_load(const float *slot, uint32_t row, bool first)
{
	struct row_sums sums = { 0, 0 };

	if (!first) {
		sums.maximum = slot[row];
		sums.sum = slot[KVT_CUDA_ROWS + row];
	}
	return sums;
}

KVT_DEVICE void row_sums_store(float *slot, uint32_t row, const struct row_sums *sums)
{
	slot[row] = sums->maximum;
	slot[KVT_CUDA_ROWS + row] = sums->sum;
}

/*
 * Merge the outputs of row i of a lane's two, some at once, which are read before any is written:
 * one wait for all. As many as leave the kernel without spills.
 */
template <int dim>
KVT_DEVICE void outputs_merge(float *output, const struct unit_state<dim> *unit, int i,
			      const struct merge_factors *factors, bool first)
{
	const int n_tiles = result_shape<dim>::dim_tiles;
	const int at_once = dim > 64 && dim <= 128 ? 16 : 4;

#pragma unroll
	for (int base = 0; base < n_tiles; base += at_once) {
		struct two before[at_once];

#pragma unroll
		for (int tile = base; tile < n_tiles && tile < base + at_once; tile++)
			before[tile - base] = first ? two{} : *(struct two *)(output + tile * 8);
#pragma unroll
		for (int tile = base; tile < n_tiles && tile < base + at_once; tile++) {
			struct two after;

#pragma unroll
			for (int j = 0; j < 2; j++) {
				float value = unit->output[tile][2 * i + j];

				if (!first)
					value = merged(before[tile - base].x[j], value, factors);
				after.x[j] = value;
			}
			*(struct two *)(output + tile * 8) = after;
		}
	}
}

/*
 * Merge a unit into the span's result, which is in its slot for want of registers. Rows that see
 * nothing of the unit are left alone.
 */
template <int dim>
KVT_DEVICE void span_merge(float *slot, const struct unit_state<dim> *unit, const uint32_t *limits,
			   uint32_t unit_start, bool first)
{
	const uint32_t lane = thread_index() % 32, row = thread_index() / 32 * 16 + lane / 4;

	slot = (float *)used_here(slot);

	struct row_sums sums[2] = { row_sums_load(slot, row, first),
				    row_sums_load(slot, row + 8, first) };

	/* The four lanes of a row have read what one of them now overwrites. */
	warp_barrier();
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float *output = slot + 2 * KVT_CUDA_ROWS + (row + 8 * i) * dim + lane % 4 * 2;
		struct merge_factors factors =
			merge_factors_of(sums[i].maximum, unit->maximum[i]);

		if (limits[i] > unit_start) {
			sums[i].maximum = first ? unit->maximum[i] : factors.maximum;
			sums[i].sum = first ? unit->sum[i]
					    : merged(sums[i].sum, unit->sum[i], &factors);
		}
		if (lane % 4 == 0)
			row_sums_store(slot, row + 8 * i, &sums[i]);
		if (limits[i] > unit_start)
			outputs_merge<dim>(output, unit, i, &factors, first);
	}
}

/* Write the complete result out, from the slot where this thread has put it. */
template <int dim> KVT_DEVICE void span_write(const struct rows_at_hand *rows, const float *slot)
{
	const uint32_t lane = thread_index() % 32, warp = thread_index() / 32;

	for (int i = 0; i < 2; i++) {
		uint32_t row = warp * 16 + lane / 4 + 8 * i;
		const float *output = slot + 2 * KVT_CUDA_ROWS + row * dim + lane % 4 * 2;
		float factor = quotient(rows->args->v_scale, slot[KVT_CUDA_ROWS + row]);

		if (row >= rows->n_rows)
			continue;
		for (int j = 0; j < dim / 4; j++) {
			uint32_t column = j / 2 * 8 + j % 2;

			output_write(rows, row, column + lane % 4 * 2,
				     product(output[column], factor));
		}
	}
}

template <int dim> KVT_DEVICE float *slot_at(float *slots, uint64_t index)
{
	return slots + index * result_shape<dim>::slot_floats;
}

/* Return the first of a block's slots. */
template <int dim>
KVT_DEVICE float *slots_of(const struct kvt_cuda_prefill &args, const struct kvt_cuda_block *block)
{
	return slot_at<dim>(at<float>(args.partials), block->first_slot);
}

/* Merging of spans: a warp does a row, a lane every 32nd dimension. */

template <int dim> struct row_state {
	float maximum;
	float sum;
	float output[(dim + 31) / 32];
};

template <int dim>
KVT_DEVICE void row_load(struct row_state<dim> *state, const float *slot, uint32_t row)
{
	state->maximum = slot[row];
	state->sum = slot[KVT_CUDA_ROWS + row];
	for (int i = 0; i < (dim + 31) / 32; i++) {
		uint32_t column = i * 32 + thread_index() % 32;

		state->output[i] = column < dim ? slot[2 * KVT_CUDA_ROWS + row * dim + column] : 0;
	}
}

template <int dim>
KVT_DEVICE void row_merge(struct row_state<dim> *target, const struct row_state<dim> *source)
{
	struct merge_factors factors = merge_factors_of(target->maximum, source->maximum);

	target->maximum = factors.maximum;
	target->sum = merged(target->sum, source->sum, &factors);
	for (int i = 0; i < (dim + 31) / 32; i++)
		target->output[i] = merged(target->output[i], source->output[i], &factors);
}

/* Put a row's spans together and write it out. slot_row is its place in the slots. */
template <int dim>
KVT_DEVICE void row_finish(const struct rows_at_hand *rows, uint32_t row, uint32_t span_units,
			   float *slots, uint32_t slot_row)
{
	const uint32_t n_units = (limit_of(rows, row) + UNIT - 1) / UNIT;
	struct row_state<dim> total = {}, group, span;
	float factor;

	for (uint32_t first = 0; first < n_units; first += GROUP_UNITS) {
		uint32_t end = least(first + GROUP_UNITS, n_units);

		row_load<dim>(&group, slot_at<dim>(slots, first / span_units), slot_row);
		for (uint32_t unit = first + span_units; unit < end; unit += span_units) {
			row_load<dim>(&span, slot_at<dim>(slots, unit / span_units), slot_row);
			row_merge<dim>(&group, &span);
		}
		if (first == 0)
			total = group;
		else
			row_merge<dim>(&total, &group);
	}
	factor = quotient(rows->args->v_scale, total.sum);
	for (int i = 0; i < (dim + 31) / 32; i++)
		output_write(rows, row, i * 32 + thread_index() % 32,
			     product(total.output[i], factor));
}

#endif
