/* SPDX-License-Identifier: Apache-2.0 */

/* What the library says about a slab and what the kernels take it for are the same addresses, for
 * every layout, order and type. Neither depends on the other, so this is the place to compare. */

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "examples/worker/worker.h"
#include "shm/geometry.h"

static const uint32_t types[] = { KVT_ATTN_BF16, KVT_ATTN_F16, KVT_ATTN_F32, KVT_ATTN_F8_E4M3 };
static const uint32_t layouts[] = { KVT_ATTN_HND, KVT_ATTN_NHD };
static const uint32_t orders[] = { KVT_ATTN_LAYER_MAJOR, KVT_ATTN_PAGE_MAJOR };

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
	if (ours->k_scale != 1 || ours->v_scale != 1)
		errx(1, "scales of 1 became others");
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

	for (int i = 0; i < 3; i++)
		pool.scales[i][0] = pool.scales[i][1] = 1;
	if (kvt_attn_geometry_bytes(&kernels, &bytes) != 0 ||
	    bytes != 5 * kvt_pool_geometry_page_bytes(&pool, 8))
		errx(1, "type %u: %" PRIu64 " bytes for the kernels", type, bytes);
	for (uint32_t layer = 0; layer < 3; layer++) {
		kvt_pool_geometry_view(&pool, 8, 5, slab, layer, &view);
		worker_attention_view(&view, &ours);
		if (kvt_attn_geometry_view(&kernels, slab, bytes, layer, &theirs) != 0)
			errx(1, "the kernels refuse layer %u", layer);
		compare(&ours, &theirs);
	}
}

int main(void)
{
	for (uint32_t i = 0; i < 16; i++)
		check(i % 4, i / 4 % 2, i / 8);
	puts("16 geometries are the same for library and kernels");
	return 0;
}
