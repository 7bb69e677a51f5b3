/* SPDX-License-Identifier: Apache-2.0 */
/* Writes positions into pages and copies pages, on the CPU. */

#include <math.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

/* Positions or pages that are one thread's item; fewer bytes than this are not worth waking it. */
#define POSITIONS_PER_ITEM 64
#define ALONE_BYTES (256 << 10)

struct append_job {
	const struct kvt_attn_append *append;
	uint32_t source_bytes;
	uint32_t target_bytes;
	bool same_type;
};

/* Convert a row. The true value is the stored one times the scale, which only fp8 has. */
static void row_convert(char *target, uint32_t target_type, const char *source,
			uint32_t source_type, uint32_t n, float scale)
{
	uint32_t target_bytes = kvt_type_size(target_type);
	uint32_t source_bytes = kvt_type_size(source_type);
	bool divide = target_type == KVT_ATTN_F8_E4M3;

	for (uint32_t i = 0; i < n; i++) {
		float value = kvt_element_load(source + i * source_bytes, source_type);

		if (divide)
			value /= scale;
		kvt_element_store(target + i * target_bytes, target_type, value);
	}
}

static void position_write(const struct append_job *job, uint32_t position)
{
	const struct kvt_attn_append *append = job->append;
	const struct kvt_attn_view *kv = &append->kv;
	uint64_t slot = append->slots[position];
	uint64_t source = position * append->row_stride_bytes;
	uint64_t target;

	if (slot == KVT_ATTN_NO_SLOT)
		return;
	target = slot / kv->page_size * kv->page_stride_bytes +
		 slot % kv->page_size * kv->position_stride_bytes;
	for (uint32_t head = 0; head < kv->n_kv_heads; head++) {
		const char *k = (const char *)append->k + source + head * append->head_stride_bytes;
		const char *v = (const char *)append->v + source + head * append->head_stride_bytes;
		char *k_to = (char *)kv->k + target + head * kv->head_stride_bytes;
		char *v_to = (char *)kv->v + target + head * kv->head_stride_bytes;

		if (job->same_type) {
			memcpy(k_to, k, kv->head_dim * job->target_bytes);
			memcpy(v_to, v, kv->head_dim * job->target_bytes);
			continue;
		}
		row_convert(k_to, kv->type, k, append->type, kv->head_dim, kv->k_scale);
		row_convert(v_to, kv->type, v, append->type, kv->head_dim, kv->v_scale);
	}
}

static void append_item(void *argument, uint64_t item, uint32_t worker)
{
	const struct append_job *job = argument;
	uint32_t position = (uint32_t)(item * POSITIONS_PER_ITEM);

	(void)worker;
	for (uint32_t i = 0; i < POSITIONS_PER_ITEM && position < job->append->n_positions; i++)
		position_write(job, position++);
}

int kvt_cpu_kv_append(struct kvt_attn_context *context, const struct kvt_attn_append *append)
{
	struct append_job job = {
		.append = append,
		.source_bytes = kvt_type_size(append->type),
		.target_bytes = kvt_type_size(append->kv.type),
		.same_type = append->type == append->kv.type,
	};
	uint64_t n_items =
		((uint64_t)append->n_positions + POSITIONS_PER_ITEM - 1) / POSITIONS_PER_ITEM;
	uint64_t bytes = 2ull * append->n_positions * append->kv.n_kv_heads * append->kv.head_dim *
			 job.source_bytes;

	kvt_pool_run(&context->pool, append_item, &job, n_items, bytes < ALONE_BYTES);
	return 0;
}

struct copy_job {
	const struct kvt_attn_view *views;
	const struct kvt_attn_copy *copies;
	uint32_t n_views;
};

static void plane_copy(const struct kvt_attn_view *kv, char *plane,
		       const struct kvt_attn_copy *copy)
{
	uint32_t bytes = kv->head_dim * kvt_type_size(kv->type);

	for (uint32_t head = 0; head < kv->n_kv_heads; head++) {
		const char *from =
			plane + copy->source * kv->page_stride_bytes + head * kv->head_stride_bytes;
		char *to =
			plane + copy->target * kv->page_stride_bytes + head * kv->head_stride_bytes;

		if (kv->position_stride_bytes == bytes) {
			memcpy(to, from, (size_t)bytes * copy->n_positions);
			continue;
		}
		for (uint32_t i = 0; i < copy->n_positions; i++)
			memcpy(to + i * kv->position_stride_bytes,
			       from + i * kv->position_stride_bytes, bytes);
	}
}

static void copy_item(void *argument, uint64_t item, uint32_t worker)
{
	const struct copy_job *job = argument;
	const struct kvt_attn_view *kv = &job->views[item % job->n_views];
	const struct kvt_attn_copy *copy = &job->copies[item / job->n_views];

	(void)worker;
	plane_copy(kv, kv->k, copy);
	plane_copy(kv, kv->v, copy);
}

int kvt_cpu_page_copy(struct kvt_attn_context *context, const struct kvt_attn_view *views,
		      uint32_t n_views, const struct kvt_attn_copy *copies, uint32_t n_copies)
{
	struct copy_job job = { views, copies, n_views };
	uint64_t bytes = 0;

	for (uint32_t i = 0; n_views && i < n_copies; i++)
		bytes += 2ull * copies[i].n_positions * n_views * views->n_kv_heads *
			 views->head_dim * kvt_type_size(views->type);
	kvt_pool_run(&context->pool, copy_item, &job, (uint64_t)n_copies * n_views,
		     bytes < ALONE_BYTES);
	return 0;
}
