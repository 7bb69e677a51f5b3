/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing positions into pages, and copying pages. Elements are converted as convert.h says, to
 * the bit.
 */
#ifndef KVT_KERNELS_CUDA_PAGES_CUH
#define KVT_KERNELS_CUDA_PAGES_CUH

/* Copy an element of the source's type, 2 or 4 bytes, bit for bit, NaN included. */
KVT_DEVICE void element_copy(uint64_t to, uint64_t from, uint32_t bytes)
{
	if (bytes == 4)
		*at<uint32_t>(to) = *at<const uint32_t>(from);
	else
		*at<uint16_t>(to) = *at<const uint16_t>(from);
}

KVT_DEVICE void element_convert(const struct kvt_cuda_append *args, uint64_t to, uint64_t from,
				float scale)
{
	float value = kvt_element_load(at<const unsigned char>(from), args->source_type);

	if (args->target_type == KVT_ATTN_F8_E4M3)
		value = quotient(value, scale);
	kvt_element_store(at<unsigned char>(to), args->target_type, value);
}

/* A thread for each element of K, and the same one of V. */
KVT_DEVICE void append_run(const struct kvt_cuda_append *args, uint64_t first, uint64_t step)
{
	const uint32_t source_bytes = kvt_type_size(args->source_type);
	const uint32_t target_bytes = kvt_type_size(args->target_type);
	const uint32_t row_elements = args->n_kv_heads * args->head_dim;

	for (uint64_t i = first; i < args->n_elements; i += step) {
		uint64_t position = i / row_elements;
		uint32_t head = (uint32_t)(i % row_elements) / args->head_dim;
		uint32_t dim = (uint32_t)(i % args->head_dim);
		uint64_t slot = at<const uint64_t>(args->slots)[position];
		uint64_t from = position * args->row_stride + head * args->row_head_stride +
				dim * source_bytes;
		uint64_t to;

		if (slot == KVT_ATTN_NO_SLOT)
			continue;
		to = (slot >> args->page_shift) * args->page_stride +
		     (slot & ((1u << args->page_shift) - 1)) * args->position_stride +
		     head * args->head_stride + dim * target_bytes;
		if (args->source_type == args->target_type) {
			element_copy(args->k_pages + to, args->k + from, source_bytes);
			element_copy(args->v_pages + to, args->v + from, source_bytes);
			continue;
		}
		element_convert(args, args->k_pages + to, args->k + from, args->k_scale);
		element_convert(args, args->v_pages + to, args->v + from, args->v_scale);
	}
}

/* Copy the positions of a copy and head in both planes, by pieces that divide a row. */
template <typename piece>
KVT_DEVICE void copy_pieces(const struct kvt_cuda_copy *args, uint32_t n_positions, uint64_t from,
			    uint64_t to)
{
	const uint32_t row_pieces = args->row_bytes / (uint32_t)sizeof(piece);

	for (uint32_t i = thread_index(); i < n_positions * row_pieces; i += KVT_CUDA_THREADS) {
		uint64_t offset = i / row_pieces * args->position_stride +
				  i % row_pieces * sizeof(piece);

		*at<piece>(args->k + to + offset) = *at<const piece>(args->k + from + offset);
		*at<piece>(args->v + to + offset) = *at<const piece>(args->v + from + offset);
	}
}

/* A thread block for each copy and head. */
KVT_DEVICE void copy_run(const struct kvt_cuda_copy *args, uint32_t index, uint32_t head)
{
	const struct kvt_attn_copy copy = at<const struct kvt_attn_copy>(args->copies)[index];
	const uint64_t from = copy.source * args->page_stride + head * args->head_stride;
	const uint64_t to = copy.target * args->page_stride + head * args->head_stride;
	const uint64_t addresses = args->k | args->v | args->page_stride | args->head_stride |
				   args->position_stride | args->row_bytes;

	if (addresses % sizeof(struct line_piece) == 0)
		copy_pieces<struct line_piece>(args, copy.n_positions, from, to);
	else
		copy_pieces<unsigned char>(args, copy.n_positions, from, to);
}

#endif
