/* SPDX-License-Identifier: Apache-2.0 */

/* The library's view of a slab and the kernels' have the same addresses, for every layout, order
 * and type, and the scales of fp8 pass from a daemon's options to the kernels. Neither includes the
 * other, so they are compared here.
 *
 * Inputs: every layout, order and type. Invariant: equal addresses and values. */

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/worker/worker.h"
#include "shm/geometry.h"
#include "tests/lib/harness.h"

static const uint32_t types[] = { KVT_ATTN_BF16, KVT_ATTN_F16, KVT_ATTN_F32, KVT_ATTN_F8_E4M3 };
static const uint32_t layouts[] = { KVT_ATTN_HND, KVT_ATTN_NHD };
static const uint32_t orders[] = { KVT_ATTN_LAYER_MAJOR, KVT_ATTN_PAGE_MAJOR };

/* A different scale for each plane and layer, if the type has any. */
static float scale_of(uint32_t type, uint32_t layer, uint32_t plane)
{
	return types[type] == KVT_ATTN_F8_E4M3 ? (float)(2 + 10 * layer + plane) : 1;
}

static void compare(const struct kvt_attn_view *ours, const struct kvt_attn_view *theirs)
{
	if (ours->k != theirs->k || ours->v != theirs->v ||
	    ours->page_stride_bytes != theirs->page_stride_bytes ||
	    ours->head_stride_bytes != theirs->head_stride_bytes ||
	    ours->position_stride_bytes != theirs->position_stride_bytes ||
	    ours->n_pages != theirs->n_pages || ours->page_size != theirs->page_size ||
	    ours->n_kv_heads != theirs->n_kv_heads || ours->head_dim != theirs->head_dim ||
	    ours->type != theirs->type)
		errx(1, "type %u: the library's view is another than the kernels'", ours->type);
}

static void check(uint32_t type, uint32_t layout, uint32_t order)
{
	struct kvt_pool_geometry pool = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 24,
					  .type = type, .layout = layout, .order = order };
	struct kvt_attn_geometry kernels = { .n_pages = 5, .page_size = 8, .n_layers = 3,
					     .n_kv_heads = 2, .head_dim = 24, .type = types[type],
					     .layout = layouts[layout], .order = orders[order] };
	static char slab[1 << 20];
	struct kvt_attn_view ours, theirs;
	struct kvt_pool_view view;
	uint64_t bytes;

	for (uint32_t i = 0; i < 3; i++)
		for (uint32_t plane = 0; plane < 2; plane++)
			pool.scales[i][plane] = scale_of(type, i, plane);
	if (kvt_attn_geometry_bytes(&kernels, &bytes) != 0 ||
	    bytes != 5 * kvt_pool_geometry_page_bytes(&pool, 8))
		errx(1, "type %u: %" PRIu64 " bytes for the kernels", type, bytes);
	for (uint32_t layer = 0; layer < 3; layer++) {
		kvt_pool_geometry_view(&pool, 8, 5, slab, layer, &view);
		worker_attention_view(&view, &ours);
		if (kvt_attn_geometry_view(&kernels, slab, bytes, layer, &theirs) != 0)
			errx(1, "the kernels refuse layer %u", layer);
		compare(&ours, &theirs);
		if (ours.k_scale != scale_of(type, layer, 0) ||
		    ours.v_scale != scale_of(type, layer, 1))
			errx(1, "type %u, layer %u: other scales", type, layer);
	}
}

/* Unique values, exact in a float. */
static float value_at(uint32_t layer, uint32_t plane, uint32_t slot, uint32_t head, uint32_t x)
{
	return (float)((((layer * 2 + plane) * 40 + slot) * 2 + head) * 24 + x + 1);
}

/* As a tensor of [page][head][position][element] with the view's strides: this is how engines use
 * it without a copy. */
static void check_tensor(const struct kvt_pool_view *view, uint32_t layer, uint32_t plane)
{
	const uint32_t shape[4] = { view->n_pages, view->n_kv_heads, view->page_size,
				    view->head_dim };
	const int64_t strides[4] = {
		(int64_t)(view->page_stride_bytes / view->element_bytes),
		(int64_t)(view->head_stride_bytes / view->element_bytes),
		(int64_t)(view->position_stride_bytes / view->element_bytes), 1,
	};
	const float *data = plane ? view->v : view->k;
	uint32_t n = shape[0] * shape[1] * shape[2] * shape[3];

	for (uint32_t i = 0; i < n; i++) {
		uint32_t x = i % shape[3], t = i / shape[3] % shape[2];
		uint32_t h = i / shape[3] / shape[2] % shape[1];
		uint32_t p = i / shape[3] / shape[2] / shape[1];
		float got = data[p * strides[0] + h * strides[1] + t * strides[2] + x * strides[3]];

		if (got != value_at(layer, plane, p * shape[2] + t, h, x))
			errx(1, "layer %u, plane %u, page %u, head %u, position %u, element %u: %g",
			     layer, plane, p, h, t, x, (double)got);
	}
}

/* Every element is where the kernels have put it, in packed layouts too: the kernels follow any
 * strides. */
static void check_elements(uint32_t layout, uint32_t order)
{
	struct kvt_pool_geometry pool = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 24,
					  .type = KVT_ELEMENT_FP32, .layout = layout,
					  .order = order };
	static float slab[3 * 2 * 5 * 8 * 2 * 24], planes[2][40][2][24];
	struct kvt_attn_context *context = NULL;
	struct kvt_pool_view view;
	uint64_t slots[40];

	kvt_test_equal(kvt_attn_open(NULL, &context, NULL, 0), 0);
	for (uint32_t layer = 0; layer < 3; layer++) {
		struct kvt_attn_append append = { .n_positions = 40, .k = planes[0],
						  .v = planes[1], .slots = slots };

		for (uint32_t i = 0; i < 2 * 40 * 2 * 24; i++)
			(&planes[0][0][0][0])[i] = value_at(layer, i / 24 / 2 / 40,
							    i / 24 / 2 % 40, i / 24 % 2, i % 24);
		for (uint32_t i = 0; i < 40; i++)
			slots[i] = i;
		kvt_pool_geometry_view(&pool, 8, 5, slab, layer, &view);
		worker_attention_view(&view, &append.kv);
		kvt_test_equal(kvt_attn_kv_append(context, &append, NULL), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		kvt_pool_geometry_view(&pool, 8, 5, slab, i / 2, &view);
		check_tensor(&view, i / 2, i % 2);
	}
	kvt_attn_close(context);
}

/* Fill the middle layer of a slab with K and V of 40 positions and attend to 33 of them. */
static void attend(struct kvt_attn_context *context, const struct kvt_pool_geometry *pool,
		   float out[5 * 4 * 24])
{
	static const uint32_t pages[5] = { 4, 1, 3, 0, 2 };
	static float keys[40 * 2 * 24], values[40 * 2 * 24], queries[5 * 4 * 24];
	static char slab[3 * 2 * 5 * 8 * 2 * 24 * sizeof(float)];
	struct kvt_attn_append append = { .n_positions = 40, .k = keys, .v = values };
	struct kvt_attn_sequence sequence = { .n_queries = 5, .n_positions = 33, .pages = pages,
					      .n_pages = 5 };
	struct kvt_attn_prefill prefill = { .sequences = &sequence, .n_sequences = 1,
					    .n_q_heads = 4, .q = queries, .out = out,
					    .scale = 0.2f };
	struct kvt_pool_view view;
	uint64_t slots[40];

	memset(slab, 0, sizeof(slab));
	for (uint32_t i = 0; i < 40; i++)
		slots[i] = pages[i / 8] * 8 + i % 8;
	for (uint32_t i = 0; i < 40 * 2 * 24; i++) {
		keys[i] = (float)(i * 7 % 31) / 16 - 1;
		values[i] = (float)(i * 5 % 37) / 16 - 1;
	}
	for (uint32_t i = 0; i < 5 * 4 * 24; i++)
		queries[i] = (float)(i * 3 % 29) / 16 - 1;
	append.slots = slots;
	kvt_pool_geometry_view(pool, 8, 5, slab, 1, &view);
	worker_attention_view(&view, &append.kv);
	prefill.kv = append.kv;
	kvt_test_equal(kvt_attn_kv_append(context, &append, NULL), 0);
	kvt_test_equal(kvt_attn_append_prefill(context, &prefill, NULL), 0);
}

/* Attention is bit for bit that of hnd in layer-major order, wherever the elements lie. */
static void check_attention(uint32_t type, uint32_t layout, uint32_t order)
{
	struct kvt_pool_geometry pool = { .n_layers = 3, .n_kv_heads = 2, .head_dim = 24,
					  .type = type, .layout = KVT_LAYOUT_HND };
	struct kvt_attn_context *context = NULL;
	float want[5 * 4 * 24], got[5 * 4 * 24];

	kvt_test_equal(kvt_attn_open(NULL, &context, NULL, 0), 0);
	attend(context, &pool, want);
	pool.layout = layout;
	pool.order = order;
	attend(context, &pool, got);
	if (memcmp(want, got, sizeof(want)) != 0)
		errx(1, "type %u: attention differs in layout %u, order %u", type, layout, order);
	kvt_attn_close(context);
}

/* One position of one layer through the kernels: stored, and read back. */
static void check_scaled(struct kvt_attn_context *context, const struct kvt_attn_view *view,
			 float k_scale, float v_scale)
{
	const uint32_t page = 5;
	const uint64_t slot = page * 16;
	float ones[16], threes[16], out[16];
	struct kvt_attn_append append = { .kv = *view, .n_positions = 1, .k = ones, .v = threes,
					  .slots = &slot };
	struct kvt_attn_sequence sequence = { .n_queries = 1, .n_positions = 1, .pages = &page,
					      .n_pages = 1 };
	struct kvt_attn_prefill prefill = { .kv = *view, .sequences = &sequence, .n_sequences = 1,
					    .n_q_heads = 1, .q = ones, .out = out, .scale = 1 };
	const uint8_t *k = (uint8_t *)view->k + page * view->page_stride_bytes;
	const uint8_t *v = (uint8_t *)view->v + page * view->page_stride_bytes;

	for (int i = 0; i < 16; i++) {
		ones[i] = 1;
		threes[i] = 3;
	}
	kvt_test_equal(kvt_attn_kv_append(context, &append, NULL), 0);
	kvt_test_equal(kvt_attn_append_prefill(context, &prefill, NULL), 0);
	/* e4m3: 2 is 0x40, 4 is 0x48, 12 is 0x54, 6 is 0x4c */
	kvt_test_equal(k[0], k_scale == 0.5f ? 0x40 : 0x48);
	kvt_test_equal(v[0], v_scale == 0.25f ? 0x54 : 0x4c);
	for (int i = 0; i < 16; i++)
		kvt_test_check(out[i] == 3);
}

/* From the daemon's options through the pool's view to the kernels' values. */
static void check_daemon(const char *kv_scales, const float scales[2][2])
{
	struct kvt_attn_context *context = NULL;
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct kvt_pool pool;
	char config[300];

	snprintf(config, sizeof(config), "n_layers = 2\nn_kv_heads = 1\nhead_dim = 16\n"
		 "kv_type = fp8_e4m3\nkv_scales = %s\n", kv_scales);
	kvt_test_daemon_begin(&daemon, config);
	client = kvt_test_connect(&daemon);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(kvt_attn_open(NULL, &context, NULL, 0), 0);
	for (uint32_t layer = 0; layer < 2; layer++) {
		struct kvt_attn_view ours;
		struct kvt_pool_view view;

		kvt_test_equal(kvt_pool_view(client, &pool, layer, &view), 0);
		kvt_test_check(view.k_scale == scales[layer][0]);
		kvt_test_check(view.v_scale == scales[layer][1]);
		worker_attention_view(&view, &ours);
		check_scaled(context, &ours, scales[layer][0], scales[layer][1]);
	}
	kvt_attn_close(context);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

static void check_daemons(void)
{
	static const float same[2][2] = { { 0.5f, 0.25f }, { 0.5f, 0.25f } };
	static const float each[2][2] = { { 0.5f, 0.25f }, { 0.25f, 0.5f } };
	char path[] = "/tmp/kvt-scales-XXXXXX";
	int fd = mkstemp(path);

	kvt_test_check(fd >= 0);
	dprintf(fd, "0.5 0.25\n0.25 0.5\n");
	close(fd);
	check_daemon("0.5, 0.25", same);
	check_daemon(path, each);
	unlink(path);
}

int main(void)
{
	for (uint32_t i = 0; i < 16; i++)
		check(i % 4, i / 4 % 2, i / 8);
	for (uint32_t i = 0; i < 10; i++)
		check_elements(i % 5, i / 5);
	for (uint32_t i = 0; i < 4 * 10; i++)
		check_attention(i % 4, i / 4 % 5, i / 20);
	check_daemons();
	puts("16 geometries are the same for library and kernels, all 40 give the same attention; "
	     "scales come through");
	return 0;
}
