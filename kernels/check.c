/* SPDX-License-Identifier: Apache-2.0 */
/* Checks every argument that a caller can get wrong.
 *
 * Inputs: the caller's structs and host arrays. Invariant: nothing is written before all checks of
 * an operation have passed. Caller: context.c. */

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "convert.h"
#include "internal.h"

static bool stride_aligned(uint64_t stride, uint32_t element_bytes)
{
	return stride % element_bytes == 0;
}

static bool pointer_aligned(const void *pointer, uint32_t element_bytes)
{
	return (uintptr_t)pointer % element_bytes == 0;
}

static bool scale_valid(float scale, uint32_t type)
{
	if (type == KVT_ATTN_F8_E4M3)
		return isfinite(scale) && scale > 0;
	return scale == 0 || scale == 1;
}

static int check_view(struct kvt_attn_context *context, const struct kvt_attn_view *view)
{
	uint32_t bytes;

	if (view->type > KVT_ATTN_F8_E4M3)
		return kvt_attn_fail(context, -EINVAL,
				     "kv.type is %u: use a value of enum kvt_attn_type",
				     view->type);
	if (!view->page_size || view->page_size > KVT_ATTN_PAGE_SIZE_MAX ||
	    (view->page_size & (view->page_size - 1)))
		return kvt_attn_fail(context, -EINVAL,
				     "kv.page_size is %u: use a power of two up to %u",
				     view->page_size, KVT_ATTN_PAGE_SIZE_MAX);
	if (!view->head_dim || view->head_dim > KVT_ATTN_HEAD_DIM_MAX)
		return kvt_attn_fail(context, -EINVAL, "kv.head_dim is %u: use 1 to %u",
				     view->head_dim, KVT_ATTN_HEAD_DIM_MAX);
	if (!view->n_kv_heads || view->n_kv_heads > KVT_ATTN_HEADS_MAX || !view->n_pages)
		return kvt_attn_fail(context, -EINVAL,
				     "kv has %u heads and %u pages: use 1 to %u heads "
				     "and at least one page",
				     view->n_kv_heads, view->n_pages, KVT_ATTN_HEADS_MAX);
	if (!view->k || !view->v)
		return kvt_attn_fail(context, -EINVAL,
				     "kv.k or kv.v is NULL: make the view with "
				     "kvt_attn_geometry_view()");
	bytes = kvt_type_size(view->type);
	if (!pointer_aligned(view->k, bytes) || !pointer_aligned(view->v, bytes) ||
	    !stride_aligned(view->page_stride_bytes, bytes) ||
	    !stride_aligned(view->head_stride_bytes, bytes) ||
	    !stride_aligned(view->position_stride_bytes, bytes))
		return kvt_attn_fail(context, -EINVAL,
				     "a pointer or stride of kv is not a multiple of "
				     "the element's %u bytes",
				     bytes);
	if (!scale_valid(view->k_scale, view->type) || !scale_valid(view->v_scale, view->type))
		return kvt_attn_fail(context, -EINVAL,
				     "kv.k_scale %g or kv.v_scale %g is wrong: it is "
				     "finite and above 0 with fp8, and 1 with other types",
				     (double)view->k_scale, (double)view->v_scale);
	return 0;
}

static int regions_check(struct kvt_attn_context *context, const struct kvt_attn_sequence *sequence,
			 uint32_t index)
{
	uint32_t end = 0;

	if (sequence->n_regions && !sequence->regions)
		return kvt_attn_fail(context, -EINVAL,
				     "sequence %u has %u regions, but regions is NULL", index,
				     sequence->n_regions);
	for (uint32_t i = 0; i < sequence->n_regions; i++) {
		const struct kvt_attn_region *region = &sequence->regions[i];

		if (region->start < end || region->end <= region->start)
			return kvt_attn_fail(
				context, -EINVAL,
				"region %u of sequence %u is [%u, %u): "
				"regions must not be empty, must ascend and not overlap",
				i, index, region->start, region->end);
		end = region->end;
	}
	return 0;
}

static int sequence_check(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill,
			  uint32_t index)
{
	const struct kvt_attn_sequence *sequence = &prefill->sequences[index];
	uint32_t page_size = prefill->kv.page_size;
	uint32_t n_pages;

	if (!sequence->n_queries)
		return 0;
	if (sequence->n_positions > KVT_ATTN_POSITIONS_MAX)
		return kvt_attn_fail(context, -EINVAL,
				     "sequence %u has %u positions: use %u or less", index,
				     sequence->n_positions, KVT_ATTN_POSITIONS_MAX);
	if (sequence->n_queries > sequence->n_positions)
		return kvt_attn_fail(context, -EINVAL,
				     "sequence %u has %u queries but only %u positions: "
				     "n_positions counts the new positions too",
				     index, sequence->n_queries, sequence->n_positions);
	n_pages = (sequence->n_positions - 1) / page_size + 1;
	if (!sequence->pages || sequence->n_pages < n_pages)
		return kvt_attn_fail(context, -EINVAL,
				     "sequence %u has %u pages: %u positions in pages "
				     "of %u need %u",
				     index, sequence->pages ? sequence->n_pages : 0,
				     sequence->n_positions, page_size, n_pages);
	for (uint32_t i = 0; i < n_pages; i++) {
		if (sequence->pages[i] >= prefill->kv.n_pages)
			return kvt_attn_fail(context, -EINVAL,
					     "entry %u of sequence %u's page table is "
					     "%u, but the pool has %u pages",
					     i, index, sequence->pages[i], prefill->kv.n_pages);
	}
	return regions_check(context, sequence, index);
}

static int rows_check(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill)
{
	uint32_t q_bytes, out_bytes;

	if (prefill->q_type > KVT_ATTN_BF16 || prefill->out_type > KVT_ATTN_BF16)
		return kvt_attn_fail(context, -EINVAL,
				     "q_type is %u and out_type %u: use F32, F16 or BF16",
				     prefill->q_type, prefill->out_type);
	if (!prefill->n_q_heads || prefill->n_q_heads > KVT_ATTN_HEADS_MAX ||
	    prefill->n_q_heads % prefill->kv.n_kv_heads)
		return kvt_attn_fail(context, -EINVAL,
				     "n_q_heads is %u: use a multiple of the %u KV heads, "
				     "up to %u",
				     prefill->n_q_heads, prefill->kv.n_kv_heads,
				     KVT_ATTN_HEADS_MAX);
	if (!isfinite(prefill->scale) || !(prefill->scale > 0))
		return kvt_attn_fail(context, -EINVAL,
				     "scale is %g: use a finite number above 0, such as "
				     "1 / sqrt(head_dim)",
				     (double)prefill->scale);
	if (!isfinite(kvt_log2_scale(prefill)) || !(kvt_log2_scale(prefill) > 0))
		return kvt_attn_fail(context, -EINVAL,
				     "scale %g times kv.k_scale %g times log2(e) is beyond what a "
				     "float holds: choose both nearer to 1",
				     (double)prefill->scale, (double)prefill->kv.k_scale);
	q_bytes = kvt_type_size(prefill->q_type);
	out_bytes = kvt_type_size(prefill->out_type);
	if (!pointer_aligned(prefill->q, q_bytes) || !pointer_aligned(prefill->out, out_bytes) ||
	    !stride_aligned(prefill->q_row_stride_bytes, q_bytes) ||
	    !stride_aligned(prefill->q_head_stride_bytes, q_bytes) ||
	    !stride_aligned(prefill->out_row_stride_bytes, out_bytes) ||
	    !stride_aligned(prefill->out_head_stride_bytes, out_bytes))
		return kvt_attn_fail(context, -EINVAL,
				     "a pointer or stride of q or out is not a multiple "
				     "of its element's size");
	return 0;
}

int kvt_check_prefill(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill)
{
	uint64_t n_rows = 0;
	int r = check_view(context, &prefill->kv);

	if (!r)
		r = rows_check(context, prefill);
	if (r)
		return r;
	if (prefill->n_sequences && !prefill->sequences)
		return kvt_attn_fail(context, -EINVAL, "n_sequences is %u, but sequences is NULL",
				     prefill->n_sequences);
	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		r = sequence_check(context, prefill, i);
		if (r)
			return r;
		n_rows += prefill->sequences[i].n_queries;
	}
	if (n_rows && (!prefill->q || !prefill->out))
		return kvt_attn_fail(context, -EINVAL,
				     "q or out is NULL, but there are %llu queries",
				     (unsigned long long)n_rows);
	return 0;
}

int kvt_check_append(struct kvt_attn_context *context, const struct kvt_attn_append *append)
{
	uint64_t n_slots;
	uint32_t bytes;
	int r = check_view(context, &append->kv);

	if (r)
		return r;
	if (append->type > KVT_ATTN_BF16)
		return kvt_attn_fail(context, -EINVAL, "type is %u: use F32, F16 or BF16",
				     append->type);
	if (!append->n_positions)
		return 0;
	if (!append->k || !append->v || !append->slots)
		return kvt_attn_fail(context, -EINVAL,
				     "k, v or slots is NULL, but there are %u positions",
				     append->n_positions);
	bytes = kvt_type_size(append->type);
	if (!pointer_aligned(append->k, bytes) || !pointer_aligned(append->v, bytes) ||
	    !stride_aligned(append->row_stride_bytes, bytes) ||
	    !stride_aligned(append->head_stride_bytes, bytes))
		return kvt_attn_fail(context, -EINVAL,
				     "a pointer or stride of k or v is not a multiple of "
				     "the element's %u bytes",
				     bytes);
	n_slots = (uint64_t)append->kv.n_pages * append->kv.page_size;
	for (uint32_t i = 0; i < append->n_positions; i++) {
		if (append->slots[i] >= n_slots && append->slots[i] != KVT_ATTN_NO_SLOT)
			return kvt_attn_fail(context, -EINVAL,
					     "slot %u is %llu, but the pool ends at %llu", i,
					     (unsigned long long)append->slots[i],
					     (unsigned long long)n_slots);
	}
	return 0;
}

static bool views_alike(const struct kvt_attn_view *a, const struct kvt_attn_view *b)
{
	return a->n_pages == b->n_pages && a->page_size == b->page_size &&
	       a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim && a->type == b->type;
}

static int page_role_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/*
 * Check that no page is a target and anything else, too. Pages are sorted with their role: 0
 * source, 1 target.
 */
static int copies_apart(struct kvt_attn_context *context, const struct kvt_attn_copy *copies,
			uint32_t n_copies)
{
	uint64_t *roles;

	if (kvt_buffer_reserve(&context->jobs, 2 * sizeof *roles * n_copies))
		return kvt_attn_fail(context, -ENOMEM, "no memory to check %u copies", n_copies);
	roles = context->jobs.data;
	for (uint32_t i = 0; i < n_copies; i++) {
		roles[2 * i] = (uint64_t)copies[i].source << 1;
		roles[2 * i + 1] = (uint64_t)copies[i].target << 1 | 1;
	}
	qsort(roles, 2 * (size_t)n_copies, sizeof *roles, page_role_compare);
	for (size_t i = 1; i < 2 * (size_t)n_copies; i++) {
		if (roles[i] >> 1 == roles[i - 1] >> 1 && roles[i] & 1)
			return kvt_attn_fail(context, -EINVAL,
					     "page %u is the target of a copy, and source "
					     "or target of another: make two calls",
					     (uint32_t)(roles[i] >> 1));
	}
	return 0;
}

int kvt_check_copies(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		     uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies)
{
	if ((n_views && !views) || (n_copies && !copies))
		return kvt_attn_fail(context, -EINVAL,
				     "views or copies is NULL, but there are %u and %u", n_views,
				     n_copies);
	for (uint32_t i = 0; i < n_views; i++) {
		int r = check_view(context, &views[i]);

		if (r)
			return r;
		if (!views_alike(&views[i], &views[0]))
			return kvt_attn_fail(context, -EINVAL,
					     "view %u differs from view 0: all layers "
					     "of a pool have the same pages, heads, dim and type",
					     i);
	}
	for (uint32_t i = 0; n_views && i < n_copies; i++) {
		const struct kvt_attn_copy *copy = &copies[i];

		if (copy->source >= views->n_pages || copy->target >= views->n_pages)
			return kvt_attn_fail(context, -EINVAL,
					     "copy %u is from page %u to %u, but the pool "
					     "has %u pages",
					     i, copy->source, copy->target, views->n_pages);
		if (copy->source == copy->target)
			return kvt_attn_fail(context, -EINVAL, "copy %u is from page %u to itself",
					     i, copy->source);
		if (!copy->n_positions || copy->n_positions > views->page_size)
			return kvt_attn_fail(context, -EINVAL,
					     "copy %u is of %u positions: use 1 to the "
					     "page size, %u",
					     i, copy->n_positions, views->page_size);
	}
	return n_views && n_copies > 1 ? copies_apart(context, copies, n_copies) : 0;
}

void kvt_sequence_limits(const struct kvt_attn_sequence *sequence, uint32_t *limits)
{
	uint32_t first = sequence->n_positions - sequence->n_queries;
	uint32_t region = 0;

	for (uint32_t i = 0; i < sequence->n_queries; i++) {
		uint32_t position = first + i;
		uint32_t limit = position + 1;

		while (region < sequence->n_regions && sequence->regions[region].end <= position)
			region++;
		if (region < sequence->n_regions && sequence->regions[region].start <= position)
			limit = sequence->regions[region].end;
		limits[i] = limit < sequence->n_positions ? limit : sequence->n_positions;
	}
}

static void strides_fill(uint64_t *row_stride, uint64_t *head_stride, uint32_t n_heads,
			 uint32_t head_dim, uint32_t type)
{
	if (!*head_stride)
		*head_stride = (uint64_t)head_dim * kvt_type_size(type);
	if (!*row_stride)
		*row_stride = (uint64_t)head_dim * kvt_type_size(type) * n_heads;
}

void kvt_prefill_strides(struct kvt_attn_prefill *prefill)
{
	strides_fill(&prefill->q_row_stride_bytes, &prefill->q_head_stride_bytes,
		     prefill->n_q_heads, prefill->kv.head_dim, prefill->q_type);
	strides_fill(&prefill->out_row_stride_bytes, &prefill->out_head_stride_bytes,
		     prefill->n_q_heads, prefill->kv.head_dim, prefill->out_type);
}

void kvt_append_strides(struct kvt_attn_append *append)
{
	strides_fill(&append->row_stride_bytes, &append->head_stride_bytes, append->kv.n_kv_heads,
		     append->kv.head_dim, append->type);
}
