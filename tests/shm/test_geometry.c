/* SPDX-License-Identifier: Apache-2.0 */
/* shm/geometry.c: where each element of a slab lies, for every layout, order and type. Compared
 * with a naive formula; elements must cover the slab without overlap.
 *
 * Inputs: geometries from a table, and the largest. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk.h"
#include "shm/geometry.h"
#include "tests/lib/cases.h"

struct shape {
	uint32_t n_layers, n_kv_heads, head_dim, page_size, n_pages;
};

static const struct shape shapes[] = {
	{ 1, 1, 1, 1, 2 }, { 3, 2, 5, 4, 3 }, { 2, 3, 8, 16, 5 }, { 5, 1, 3, 2, 2 },
	{ 1, 4, 7, 8, 4 }, { 3, 1, 5, 4, 3 },
};

static struct kvt_pool_geometry make(const struct shape *shape, uint32_t type, uint32_t layout,
				     uint32_t order)
{
	struct kvt_pool_geometry geometry = {
		.n_layers = shape->n_layers, .n_kv_heads = shape->n_kv_heads,
		.head_dim = shape->head_dim, .type = type, .layout = layout, .order = order,
	};

	for (uint32_t i = 0; i < geometry.n_layers; i++) {
		geometry.scales[i][0] = 1 + (float)i;
		geometry.scales[i][1] = 100 + (float)i;
	}
	return geometry;
}

/* One index after the other, in the order of the arrays' names: an obviously right formula. */
static uint64_t naive(const struct shape *s, uint32_t type, uint32_t layout, uint32_t order,
		      const uint32_t at[6] /* layer, plane, page, head, position, element */)
{
	static const uint64_t bytes[] = { 2, 2, 4, 1 };
	uint64_t index;

	if (layout > KVT_LAYOUT_NHD) { /* a piece has both planes, or the only one */
		index = order == KVT_ORDER_LAYER ? at[0] * (uint64_t)s->n_pages + at[2]
						 : at[2] * (uint64_t)s->n_layers + at[0];
		if (layout == KVT_LAYOUT_LATENT)
			return ((index * s->page_size + at[4]) * s->head_dim + at[5]) * bytes[type];
		if (layout == KVT_LAYOUT_NHKD)
			index = (index * s->page_size + at[4]) * s->n_kv_heads + at[3];
		else
			index = index * s->n_kv_heads + at[3];
		if (layout == KVT_LAYOUT_HNKD)
			index = index * s->page_size + at[4];
		index = index * 2 + at[1];
		if (layout == KVT_LAYOUT_HKND)
			index = index * s->page_size + at[4];
		return (index * s->head_dim + at[5]) * bytes[type];
	}
	if (order == KVT_ORDER_LAYER)
		index = (at[0] * 2ull + at[1]) * s->n_pages + at[2];
	else
		index = (at[2] * (uint64_t)s->n_layers + at[0]) * 2 + at[1];
	if (layout == KVT_LAYOUT_HND)
		index = (index * s->n_kv_heads + at[3]) * s->page_size + at[4];
	else
		index = (index * s->page_size + at[4]) * s->n_kv_heads + at[3];
	return (index * s->head_dim + at[5]) * bytes[type];
}

/* Visit every element of a plane: its address is the naive one, and no other element has its
 * bytes. */
static void check_plane(const struct shape *s, const struct kvt_pool_geometry *geometry,
			const struct kvt_pool_view *view, char *slab, uint32_t layer,
			uint32_t plane, uint8_t *seen)
{
	const char *base = plane ? view->v : view->k;
	uint32_t at[6] = { layer, plane };

	for (at[2] = 0; at[2] < s->n_pages; at[2]++)
		for (at[3] = 0; at[3] < s->n_kv_heads; at[3]++)
			for (at[4] = 0; at[4] < s->page_size; at[4]++)
				for (at[5] = 0; at[5] < s->head_dim; at[5]++) {
					const char *address =
						base + at[2] * view->page_stride_bytes +
						at[3] * view->head_stride_bytes +
						at[4] * view->position_stride_bytes +
						at[5] * view->element_bytes;
					uint64_t offset = (uint64_t)(address - slab);

					assert_int_equal(offset,
							 naive(s, geometry->type, geometry->layout,
							       geometry->order, at));
					for (uint32_t b = 0; b < view->element_bytes; b++)
						assert_int_equal(seen[offset + b]++, 0);
				}
}

/* All elements of all planes cover the slab exactly: no overlap, no hole, no end beyond. */
TEST(every_element_has_bytes_of_its_own_and_all_are_the_slab)
{
	for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) * 48; i++) {
		const struct shape *s = &shapes[i / 48];
		struct kvt_pool_geometry geometry = make(s, i % 4, i / 4 % 6, i / 24 % 2);
		bool latent = geometry.layout == KVT_LAYOUT_LATENT;
		uint64_t bytes = kvt_pool_geometry_page_bytes(&geometry, s->page_size) *
				 s->n_pages;
		char *slab = malloc(bytes);
		uint8_t *seen = calloc(1, bytes);
		struct kvt_pool_view view;

		assert_int_equal(bytes == 0, latent && s->n_kv_heads != 1);
		assert_non_null(slab);
		assert_non_null(seen);
		for (uint32_t layer = 0; bytes && layer < s->n_layers; layer++) {
			kvt_pool_geometry_view(&geometry, s->page_size, s->n_pages, slab, layer,
					       &view);
			assert_int_equal(view.n_pages, s->n_pages);
			assert_int_equal(view.page_size, s->page_size);
			assert_int_equal(view.n_kv_heads, s->n_kv_heads);
			assert_int_equal(view.head_dim, s->head_dim);
			assert_int_equal(view.type, geometry.type);
			assert_true(view.k_scale == 1 + (float)layer);
			assert_true(view.v_scale == 100 + (float)layer);
			check_plane(s, &geometry, &view, slab, layer, 0, seen);
			if (latent)
				assert_ptr_equal(view.v, view.k);
			else
				check_plane(s, &geometry, &view, slab, layer, 1, seen);
		}
		for (uint64_t b = 0; b < bytes; b++)
			assert_int_equal(seen[b], 1);
		free(slab);
		free(seen);
	}
}

/* Mark the bytes of a page by its pieces and by its views: they are the same. */
static void check_pieces(const struct shape *s, const struct kvt_pool_geometry *geometry,
			 uint32_t page, uint8_t *by_pieces)
{
	uint64_t page_bytes = kvt_pool_geometry_page_bytes(geometry, s->page_size), sum = 0;
	struct kvt_pool_piece pieces[KVT_MAX_PIECES];
	uint32_t n = kvt_pool_geometry_pieces(geometry, s->page_size, s->n_pages, page_bytes,
					      pieces);
	bool latent = geometry->layout == KVT_LAYOUT_LATENT;
	struct kvt_pool_view view;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = pieces[i].offset_bytes + page * pieces[i].stride_bytes;

		assert_true(at + pieces[i].bytes <= page_bytes * s->n_pages);
		for (uint64_t b = 0; b < pieces[i].bytes; b++)
			assert_int_equal(by_pieces[at + b]++, 0);
		sum += pieces[i].bytes;
	}
	assert_int_equal(sum, page_bytes);
	for (uint32_t i = 0; i < s->n_layers * 2 * s->n_kv_heads * s->page_size; i++) {
		uint32_t head = i / 2 / s->n_layers % s->n_kv_heads;
		uint32_t position = i / 2 / s->n_layers / s->n_kv_heads;
		uint64_t at;

		if (i % 2 && latent)
			continue;
		kvt_pool_geometry_view(geometry, s->page_size, s->n_pages, NULL,
				       i / 2 % s->n_layers, &view);
		at = (uintptr_t)(i % 2 ? view.v : view.k) + page * view.page_stride_bytes +
		     head * view.head_stride_bytes + position * view.position_stride_bytes;
		for (uint32_t b = 0; b < s->head_dim * view.element_bytes; b++)
			assert_int_equal(by_pieces[at + b]++, 1);
	}
}

TEST(the_pieces_of_a_page_are_its_elements_in_every_layout)
{
	for (uint32_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) * 48; i++) {
		const struct shape *s = &shapes[i / 48];
		struct kvt_pool_geometry geometry = make(s, i % 4, i / 4 % 6, i / 24 % 2);
		uint64_t bytes = kvt_pool_geometry_page_bytes(&geometry, s->page_size) *
				 s->n_pages;
		uint8_t *seen = calloc(1, bytes + 1);

		assert_non_null(seen);
		for (uint32_t page = 0; bytes && page < s->n_pages; page++)
			check_pieces(s, &geometry, page, seen);
		for (uint64_t b = 0; b < bytes; b++)
			assert_int_equal(seen[b], 2);
		free(seen);
	}
}

TEST(a_page_without_a_geometry_is_one_piece)
{
	struct kvt_pool_piece piece;

	assert_int_equal(kvt_pool_geometry_pieces(NULL, 16, 8, 1000, &piece), 1);
	assert_int_equal(piece.offset_bytes, 0);
	assert_int_equal(piece.stride_bytes, 1000);
	assert_int_equal(piece.bytes, 1000);
}

TEST(a_page_of_a_page_major_slab_is_one_piece)
{
	struct kvt_pool_geometry geometry = make(&shapes[1], KVT_ELEMENT_FP16, KVT_LAYOUT_NHD,
						 KVT_ORDER_PAGE);
	uint64_t bytes = kvt_pool_geometry_page_bytes(&geometry, 4);
	struct kvt_pool_view view;
	char slab[1];

	assert_int_equal(bytes, 2 * 3 * 4 * 2 * 5 * 2);
	kvt_pool_geometry_view(&geometry, 4, 3, slab, 0, &view);
	assert_ptr_equal(view.k, slab);
	assert_int_equal(view.page_stride_bytes, bytes);
}

/* The largest accepted: no product wraps. */
TEST(the_largest_geometry_does_not_overflow)
{
	const struct shape s = { 256, 4096, 1024, 256, 1u << 6 };
	struct kvt_pool_geometry geometry = make(&s, KVT_ELEMENT_FP32, 0, KVT_ORDER_LAYER);
	struct kvt_pool_view view;

	assert_int_equal(kvt_pool_geometry_page_bytes(&geometry, 256), 1ull << 41);
	kvt_pool_geometry_view(&geometry, 256, s.n_pages, NULL, 255, &view);
	assert_int_equal((uintptr_t)view.v, 511ull * (1ull << 32) * s.n_pages);
}

TEST(what_is_no_geometry_has_no_page)
{
	const struct kvt_pool_geometry good = make(&shapes[1], KVT_ELEMENT_FP8_E4M3, 0, 0);
	struct kvt_pool_geometry_text text = { .layout = "untouched" };
	struct kvt_pool_geometry bad[13];

	for (size_t i = 0; i < 13; i++)
		bad[i] = good;
	bad[0].n_layers = 0;
	bad[1].n_layers = KVT_MAX_LAYERS + 1;
	bad[2].n_kv_heads = 0;
	bad[3].n_kv_heads = 4097;
	bad[4].head_dim = 0;
	bad[5].head_dim = 1025;
	bad[6].type = 4;
	bad[7].layout = KVT_LAYOUT_LATENT; /* of two heads */
	bad[8].order = 2;
	bad[9].scales[2][1] = -0.5f;
	bad[10].scales[0][0] = NAN;
	bad[11].scales[1][0] = INFINITY;
	bad[12].layout = 6;
	for (size_t i = 0; i < 13; i++) {
		assert_int_equal(kvt_pool_geometry_page_bytes(&bad[i], 4), 0);
		assert_int_equal(kvt_pool_geometry_describe(&bad[i], &text), -EINVAL);
	}
	assert_string_equal(text.layout, "untouched");
	assert_int_not_equal(kvt_pool_geometry_page_bytes(&good, 4), 0);
	assert_int_equal(kvt_pool_geometry_page_bytes(&good, 0), 0);
	assert_int_equal(kvt_pool_geometry_page_bytes(&good, 4097), 0);
}

TEST(words_tell_everything_that_differs)
{
	struct kvt_pool_geometry geometry = make(&shapes[1], KVT_ELEMENT_BF16, 0, KVT_ORDER_PAGE);
	struct kvt_pool_geometry_text text, other;

	assert_int_equal(kvt_pool_geometry_describe(&geometry, &text), 0);
	assert_string_equal(text.kv_type, "bf16.3x2x5");
	assert_string_equal(text.layout, "hnd.page");
	assert_string_equal(text.kv_scales, "");
	geometry.type = KVT_ELEMENT_FP8_E4M3;
	geometry.layout = KVT_LAYOUT_NHD;
	geometry.order = KVT_ORDER_LAYER;
	assert_int_equal(kvt_pool_geometry_describe(&geometry, &text), 0);
	assert_string_equal(text.kv_type, "fp8_e4m3.3x2x5");
	assert_string_equal(text.layout, "nhd.layer");
	assert_memory_equal(text.kv_scales, "per-layer:", 10);
	geometry.scales[2][1] += 0.5f;
	assert_int_equal(kvt_pool_geometry_describe(&geometry, &other), 0);
	assert_string_not_equal(text.kv_scales, other.kv_scales);
	for (int i = 0; i < 3; i++) {
		geometry.scales[i][0] = 0.5f;
		geometry.scales[i][1] = 0.25f;
	}
	assert_int_equal(kvt_pool_geometry_describe(&geometry, &text), 0);
	assert_string_equal(text.kv_scales, "3f000000,3e800000");
}

/* Zero means the default. */
TEST(a_scale_that_was_not_given_is_one)
{
	struct kvt_pool_geometry geometry = make(&shapes[1], KVT_ELEMENT_FP8_E4M3, 0, 0);
	struct kvt_pool_geometry_text ones, zeros;
	struct kvt_pool_view view;

	for (uint32_t i = 0; i < KVT_MAX_LAYERS; i++)
		geometry.scales[i][0] = geometry.scales[i][1] = 1;
	assert_int_equal(kvt_pool_geometry_describe(&geometry, &ones), 0);
	memset(geometry.scales, 0, sizeof(geometry.scales));
	assert_int_equal(kvt_pool_geometry_describe(&geometry, &zeros), 0);
	assert_string_equal(zeros.kv_scales, ones.kv_scales);
	assert_int_not_equal(kvt_pool_geometry_page_bytes(&geometry, 4), 0);
	kvt_pool_geometry_view(&geometry, 4, 2, &geometry, 1, &view);
	assert_true(view.k_scale == 1 && view.v_scale == 1);
}
