/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes, strides and names of a pool's geometry (geometry.h). Pure functions. Callers: the daemon
 * and libclient. Products fit 64 bits if kvt_pool_geometry_ok().
 */

#include "shm/geometry.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kvtrunk_pool.h"
#include "shm/assert.h"

struct element {
	const char *name;
	uint32_t bytes;
};

static const struct element elements[] = {
	[KVT_ELEMENT_BF16] = { "bf16", 2 },
	[KVT_ELEMENT_FP16] = { "fp16", 2 },
	[KVT_ELEMENT_FP32] = { "fp32", 4 },
	[KVT_ELEMENT_FP8_E4M3] = { "fp8_e4m3", 1 },
};

#define N_ELEMENTS (sizeof(elements) / sizeof(elements[0]))

uint32_t kvt_element_bytes(uint32_t type)
{
	return type < N_ELEMENTS ? elements[type].bytes : 0;
}

const char *kvt_element_name(uint32_t type)
{
	return type < N_ELEMENTS ? elements[type].name : "?";
}

const char *kvt_page_layout_name(uint32_t layout)
{
	static const char *const names[] = {
		[KVT_LAYOUT_HND] = "hnd", [KVT_LAYOUT_NHD] = "nhd", [KVT_LAYOUT_HNKD] = "hnkd",
		[KVT_LAYOUT_NHKD] = "nhkd", [KVT_LAYOUT_HKND] = "hknd",
		[KVT_LAYOUT_LATENT] = "latent",
	};

	return layout < sizeof(names) / sizeof(names[0]) ? names[layout] : "?";
}

uint32_t kvt_page_layout_planes(uint32_t layout)
{
	return layout == KVT_LAYOUT_LATENT ? 1 : 2;
}

const char *kvt_page_order_name(uint32_t order)
{
	return order == KVT_ORDER_LAYER ? "layer" : order == KVT_ORDER_PAGE ? "page" : "?";
}

float kvt_pool_geometry_scale(const struct kvt_pool_geometry *geometry, uint32_t layer, int plane)
{
	float scale = geometry->scales[layer][plane];

	return scale == 0 ? 1 : scale;
}

bool kvt_pool_geometry_ok(const struct kvt_pool_geometry *geometry)
{
	if (geometry->n_layers < 1 || geometry->n_layers > KVT_MAX_LAYERS ||
	    geometry->n_kv_heads < 1 || geometry->n_kv_heads > KVT_MAX_KV_HEADS ||
	    geometry->head_dim < 1 || geometry->head_dim > KVT_MAX_HEAD_DIM ||
	    geometry->type >= N_ELEMENTS || geometry->layout > KVT_LAYOUT_LATENT ||
	    (geometry->layout == KVT_LAYOUT_LATENT && geometry->n_kv_heads != 1) ||
	    geometry->order > KVT_ORDER_PAGE)
		return false;
	for (uint32_t i = 0; i < geometry->n_layers; i++)
		for (int plane = 0; plane < 2; plane++)
			if (!(geometry->scales[i][plane] >= 0 &&
			      geometry->scales[i][plane] <= __FLT_MAX__))
				return false;
	return true;
}

/* Bytes of one page in one plane: at most 4,096 * 4,096 * 1,024 * 4 = 2^36. */
static uint64_t plane_bytes(const struct kvt_pool_geometry *geometry, uint32_t page_size)
{
	return (uint64_t)page_size * geometry->n_kv_heads * geometry->head_dim *
	       kvt_element_bytes(geometry->type);
}

uint64_t kvt_pool_geometry_page_bytes(const struct kvt_pool_geometry *geometry,
				      uint32_t page_size)
{
	if (!kvt_pool_geometry_ok(geometry) || page_size < 1 || page_size > KVT_MAX_PAGE_SIZE)
		return 0;
	return (uint64_t)kvt_page_layout_planes(geometry->layout) * geometry->n_layers *
	       plane_bytes(geometry, page_size);
}

/* Bytes from an index to the next, of each that one layer of a page has. */
struct steps {
	uint64_t plane, head, position;
};

static struct steps layout_steps(const struct kvt_pool_geometry *geometry, uint32_t page_size,
				 uint64_t plane_stride)
{
	uint64_t row = (uint64_t)geometry->head_dim * kvt_element_bytes(geometry->type);
	uint64_t n_heads = geometry->n_kv_heads;

	switch (geometry->layout) {
	case KVT_LAYOUT_HND:
		return (struct steps){ plane_stride, row * page_size, row };
	case KVT_LAYOUT_NHD:
		return (struct steps){ plane_stride, row, row * n_heads };
	case KVT_LAYOUT_HNKD:
		return (struct steps){ row, 2 * row * page_size, 2 * row };
	case KVT_LAYOUT_NHKD:
		return (struct steps){ row, 2 * row, 2 * row * n_heads };
	case KVT_LAYOUT_LATENT:
		return (struct steps){ 0, row * page_size, row };
	default: /* HKND */
		return (struct steps){ row * page_size, 2 * row * page_size, row };
	}
}

void kvt_pool_geometry_view(const struct kvt_pool_geometry *geometry, uint32_t page_size,
			    uint32_t n_pages, void *base, uint32_t layer,
			    struct kvt_pool_view *ret_view)
{
	uint64_t plane = plane_bytes(geometry, page_size);
	bool by_layer = geometry->order == KVT_ORDER_LAYER;
	bool apart = geometry->layout <= KVT_LAYOUT_NHD; /* the planes of a layer */
	uint64_t piece = kvt_page_layout_planes(geometry->layout) * plane; /* a layer of a page */
	struct steps steps = layout_steps(geometry, page_size, by_layer ? plane * n_pages : plane);
	uint64_t page_stride = !by_layer ? geometry->n_layers * piece : apart ? plane : piece;
	char *k = (char *)base + layer * piece * (by_layer ? n_pages : 1);

	KVT_ASSERT(layer < geometry->n_layers && kvt_element_bytes(geometry->type) > 0);
	*ret_view = (struct kvt_pool_view){
		.k = k,
		.v = k + steps.plane,
		.page_stride_bytes = page_stride,
		.head_stride_bytes = steps.head,
		.position_stride_bytes = steps.position,
		.element_bytes = kvt_element_bytes(geometry->type),
		.type = geometry->type,
		.n_pages = n_pages,
		.page_size = page_size,
		.n_kv_heads = geometry->n_kv_heads,
		.head_dim = geometry->head_dim,
		.k_scale = kvt_pool_geometry_scale(geometry, layer, 0),
		.v_scale = kvt_pool_geometry_scale(geometry, layer, 1),
	};
}

uint32_t kvt_pool_geometry_pieces(const struct kvt_pool_geometry *geometry, uint32_t page_size,
				  uint32_t n_pages, uint64_t page_bytes,
				  struct kvt_pool_piece *ret_pieces)
{
	uint32_t n_planes, n;
	uint64_t bytes;

	if (!geometry || geometry->order == KVT_ORDER_PAGE) {
		ret_pieces[0] = (struct kvt_pool_piece){ 0, page_bytes, page_bytes };
		return 1;
	}
	n_planes = geometry->layout <= KVT_LAYOUT_NHD ? 2 : 1; /* that lie apart */
	bytes = plane_bytes(geometry, page_size) *
		(kvt_page_layout_planes(geometry->layout) / n_planes);
	n = geometry->n_layers * n_planes;
	for (uint32_t i = 0; i < n; i++)
		ret_pieces[i] = (struct kvt_pool_piece){ i * bytes * n_pages, bytes, bytes };
	return n;
}

static uint32_t scale_bits(const struct kvt_pool_geometry *geometry, uint32_t layer, int plane)
{
	float value = kvt_pool_geometry_scale(geometry, layer, plane);
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/* Write the bits: decimals depend on the locale. One pair if all layers are equal, else a digest of
 * all (FNV-1a). */
static void describe_scales(const struct kvt_pool_geometry *geometry, char *to, size_t size)
{
	uint32_t k = scale_bits(geometry, 0, 0), v = scale_bits(geometry, 0, 1);
	uint64_t hash = 0xcbf29ce484222325ull;
	bool same = true;

	for (uint32_t i = 0; i < geometry->n_layers; i++) {
		uint32_t pair[2] = { scale_bits(geometry, i, 0), scale_bits(geometry, i, 1) };

		same = same && pair[0] == k && pair[1] == v;
		hash = (hash ^ pair[0]) * 0x100000001b3ull;
		hash = (hash ^ pair[1]) * 0x100000001b3ull;
	}
	if (geometry->type != KVT_ELEMENT_FP8_E4M3)
		*to = '\0';
	else if (same)
		snprintf(to, size, "%08x,%08x", k, v);
	else
		snprintf(to, size, "per-layer:%016llx", (unsigned long long)hash);
}

int kvt_pool_geometry_describe(const struct kvt_pool_geometry *geometry,
			       struct kvt_pool_geometry_text *ret_text)
{
	if (!kvt_pool_geometry_ok(geometry))
		return -EINVAL;
	memset(ret_text, 0, sizeof(*ret_text));
	snprintf(ret_text->kv_type, sizeof(ret_text->kv_type), "%s.%ux%ux%u",
		 kvt_element_name(geometry->type), geometry->n_layers, geometry->n_kv_heads,
		 geometry->head_dim);
	snprintf(ret_text->layout, sizeof(ret_text->layout), "%s.%s",
		 kvt_page_layout_name(geometry->layout), kvt_page_order_name(geometry->order));
	describe_scales(geometry, ret_text->kv_scales, sizeof(ret_text->kv_scales));
	return 0;
}
