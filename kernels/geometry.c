/* SPDX-License-Identifier: Apache-2.0 */
/* The place of one layer's KV in a slab. */

#include <errno.h>

#include "convert.h"
#include "internal.h"

int kvt_attn_type_bytes(uint32_t type)
{
	return type > KVT_ATTN_F8_E4M3 ? -EINVAL : (int)kvt_type_size(type);
}

static bool geometry_valid(const struct kvt_attn_geometry *geometry)
{
	return geometry->n_pages && geometry->n_layers && geometry->page_size &&
	       geometry->page_size <= KVT_ATTN_PAGE_SIZE_MAX &&
	       !(geometry->page_size & (geometry->page_size - 1)) && geometry->n_kv_heads &&
	       geometry->n_kv_heads <= KVT_ATTN_HEADS_MAX && geometry->head_dim &&
	       geometry->head_dim <= KVT_ATTN_HEAD_DIM_MAX && geometry->type <= KVT_ATTN_F8_E4M3 &&
	       geometry->layout <= KVT_ATTN_NHD && geometry->order <= KVT_ATTN_PAGE_MAJOR;
}

/* Return the bytes of one page of one plane: at most 256 * 4096 * 256 * 4 = 2^30. */
static uint64_t plane_page_bytes(const struct kvt_attn_geometry *geometry)
{
	return (uint64_t)geometry->page_size * geometry->n_kv_heads * geometry->head_dim *
	       kvt_type_size(geometry->type);
}

int kvt_attn_geometry_bytes(const struct kvt_attn_geometry *geometry, uint64_t *ret_bytes)
{
	uint64_t bytes;

	if (!geometry_valid(geometry))
		return -EINVAL;
	if (__builtin_mul_overflow(2 * plane_page_bytes(geometry), geometry->n_layers, &bytes) ||
	    __builtin_mul_overflow(bytes, geometry->n_pages, &bytes) || bytes > INT64_MAX)
		return -EOVERFLOW;
	*ret_bytes = bytes;
	return 0;
}

int kvt_attn_geometry_view(const struct kvt_attn_geometry *geometry, void *slab,
			   uint64_t slab_bytes, uint32_t layer, struct kvt_attn_view *ret_view)
{
	uint64_t bytes, plane, row, first;
	struct kvt_attn_view view;
	int r = kvt_attn_geometry_bytes(geometry, &bytes);

	if (r)
		return r;
	if (!slab || layer >= geometry->n_layers)
		return -EINVAL;
	if (slab_bytes < bytes)
		return -ERANGE;
	row = (uint64_t)geometry->head_dim * kvt_type_size(geometry->type);
	plane = plane_page_bytes(geometry);
	view = (struct kvt_attn_view){
		.n_pages = geometry->n_pages,
		.page_size = geometry->page_size,
		.n_kv_heads = geometry->n_kv_heads,
		.head_dim = geometry->head_dim,
		.type = geometry->type,
		.page_stride_bytes = plane,
		.k_scale = 1,
		.v_scale = 1,
	};
	if (geometry->layout == KVT_ATTN_HND) {
		view.head_stride_bytes = row * geometry->page_size;
		view.position_stride_bytes = row;
	} else {
		view.head_stride_bytes = row;
		view.position_stride_bytes = row * geometry->n_kv_heads;
	}
	if (geometry->order == KVT_ATTN_LAYER_MAJOR) {
		plane *= geometry->n_pages;
		first = 2 * plane * layer;
	} else {
		view.page_stride_bytes = 2 * plane * geometry->n_layers;
		first = 2 * plane * layer;
	}
	view.k = (char *)slab + first;
	view.v = (char *)slab + first + plane;
	*ret_view = view;
	return 0;
}
