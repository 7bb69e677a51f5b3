/* SPDX-License-Identifier: Apache-2.0 */
/* kv_append and page_copy: what is written, where, and that nothing else changes. Inputs: random K
 * and V; poison everywhere else.
 *
 * Invariant: positions written have the rounded input; all other bytes still hold poison. */

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/support.h"

/* K and V of n positions, [position][head][dim], of one type. */
struct source {
	struct guarded k;
	struct guarded v;
	uint32_t type;
	uint32_t n_heads;
	uint32_t head_dim;
};

static struct source source_make(uint32_t n, uint32_t n_heads, uint32_t head_dim, uint32_t type)
{
	size_t elements = (size_t)n * n_heads * head_dim;
	struct source source = { guarded_alloc(elements * type_bytes(type)),
				 guarded_alloc(elements * type_bytes(type)), type, n_heads,
				 head_dim };

	for (uint32_t i = 0; i < elements; i++) {
		uint32_t position = i / head_dim / n_heads, head = i / head_dim % n_heads;

		element_write((char *)source.k.data + i * type_bytes(type), type,
			      text_value(1, 0, position, head, i % head_dim));
		element_write((char *)source.v.data + i * type_bytes(type), type,
			      text_value(1, 1, position, head, i % head_dim));
	}
	return source;
}

static void source_free(struct source *source)
{
	guarded_free(&source->k);
	guarded_free(&source->v);
}

static const void *source_element(const struct source *source, uint32_t plane, uint32_t position,
				  uint32_t head, uint32_t dim)
{
	size_t index = ((size_t)position * source->n_heads + head) * source->head_dim + dim;

	return (char *)(plane ? source->v.data : source->k.data) + index * type_bytes(source->type);
}

/* Compare the pool with the expected content: written[slot] is a source position, or -1 for
 * poison. */
static void pool_compare(const struct pool *pool, const struct source *source, const int *written)
{
	const struct kvt_attn_geometry *g = &pool->geometry;

	for (uint32_t slot = 0; slot < g->n_pages * g->page_size; slot++) {
		for (uint32_t i = 0; i < 2 * g->n_kv_heads * g->head_dim; i++) {
			uint32_t plane = i & 1, head = i / 2 % g->n_kv_heads,
				 dim = i / 2 / g->n_kv_heads;
			double scale = plane ? pool->view.v_scale : pool->view.k_scale;
			uint32_t expected = 0xffffffff, found = 0;
			float value;

			if (written[slot] >= 0) {
				/* The library divides by a float, so the quotient is one too. */
				value = (float)element_read(source_element(source, plane,
									   (uint32_t)written[slot],
									   head, dim),
							    source->type) /
					(float)scale;
				expected = 0;
				element_write(&expected, g->type, value);
			}
			memcpy(&found,
			       pool_element(pool, plane, slot / g->page_size, head,
					    slot % g->page_size, dim),
			       type_bytes(g->type));
			expected &= type_bytes(g->type) == 4 ? 0xffffffff
							     : (1u << 8 * type_bytes(g->type)) - 1;
			if (found != expected)
				case_fail(__FILE__, __LINE__,
					  "plane %u slot %u head %u dim %u: %x, not %x", plane,
					  slot, head, dim, found, expected);
		}
	}
}

/* All other layers still hold poison. */
static void layers_check(const struct pool *pool)
{
	const unsigned char *bytes = pool->slab.data;
	size_t poisoned = 0, own = 2 * pool->slab.bytes / 6;

	for (size_t i = 0; i < pool->slab.bytes; i++)
		poisoned += bytes[i] == 0xff;
	EXPECT(poisoned >= pool->slab.bytes - own);
}

static void append_test(struct kvt_attn_context *context, uint32_t from, uint32_t to,
			uint32_t variant)
{
	struct pool_options options = { .n_pages = 9,
					.page_size = variant & 2 ? 1 : 16,
					.n_kv_heads = 3,
					.head_dim = 20,
					.type = to,
					.layout = variant & 1,
					.order = variant >> 1,
					.seed = 3 };
	struct pool pool;
	OWNED(source) source = source_make(70, 3, 20, from);
	OWNED(guarded) slots = guarded_alloc(70 * sizeof(uint64_t));
	struct kvt_attn_append append;
	int written[9 * 16];
	uint32_t n_slots;

	case_begin("kv_append: %s to %s, variant %u", type_name(from), type_name(to), variant);
	if (options.page_size == 1)
		options.n_pages = 100;
	pool = pool_make(&options);
	n_slots = options.n_pages * options.page_size;
	for (uint32_t i = 0; i < n_slots; i++)
		written[i] = -1;
	for (uint32_t i = 0; i < 70; i++) {
		/* Every seventh to no slot; 37 and the number of slots have no common divisor. */
		uint64_t slot = i % 7 == 3 ? KVT_ATTN_NO_SLOT : (i * 37 + 11) % n_slots;

		((uint64_t *)slots.data)[i] = slot;
		if (slot != KVT_ATTN_NO_SLOT)
			written[slot] = (int)i;
	}
	append = (struct kvt_attn_append){ .kv = pool.view,
					   .n_positions = 70,
					   .type = from,
					   .k = source.k.data,
					   .v = source.v.data,
					   .slots = slots.data };
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	pool_compare(&pool, &source, written);
	layers_check(&pool);
	pool_free(&pool);
}

/* Large enough to be shared between threads; strides of K and V as in a fused projection. */
static void append_large_test(struct kvt_attn_context *context)
{
	uint32_t n = 2000, heads = 4, dim = 64;
	OWNED(guarded) fused = guarded_alloc((size_t)n * 3 * heads * dim * 4);
	struct pool_options options = { .n_pages = 130,
					.page_size = 16,
					.n_kv_heads = heads,
					.head_dim = dim,
					.type = KVT_ATTN_BF16,
					.seed = 9 };
	OWNED(pool) pool = pool_make(&options);
	uint64_t *slots = calloc(n, sizeof *slots);
	float *rows = fused.data;
	struct kvt_attn_append append = { .kv = pool.view,
					  .n_positions = n,
					  .type = KVT_ATTN_F32,
					  .k = rows + heads * dim,
					  .v = rows + 2 * heads * dim,
					  .row_stride_bytes = 3 * heads * dim * 4,
					  .head_stride_bytes = dim * 4,
					  .slots = slots };

	case_begin("kv_append: many positions out of rows of q, k and v");
	for (uint32_t i = 0; i < n; i++) {
		slots[i] = (uint64_t)pool.free_pages[i / 16] * 16 + i % 16;
		for (uint32_t j = 0; j < 3 * heads * dim; j++)
			rows[i * 3 * heads * dim + j] = (float)(i * 7 + j);
	}
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t j = 0; j < 2 * heads * dim; j++) {
			uint32_t plane = j / (heads * dim), head = j / dim % heads;
			uint16_t expected, found;

			element_write(&expected, KVT_ATTN_BF16, i * 7 + heads * dim + j);
			memcpy(&found,
			       pool_element(&pool, plane, (uint32_t)(slots[i] / 16), head,
					    slots[i] % 16, j % dim),
			       2);
			EXPECT_EQUAL(found, expected);
		}
	}
	free(slots);
}

/* Every fp16 and bf16 number to every type, and floats near all borders of rounding. */
static void conversion_test(struct kvt_attn_context *context, uint32_t from, uint32_t to)
{
	uint32_t n = 65536 / 256;
	struct pool_options options = { .n_pages = n + 1,
					.page_size = 1,
					.n_kv_heads = 1,
					.head_dim = 256,
					.type = to,
					.seed = 1 };
	OWNED(pool) pool = pool_make(&options);
	OWNED(guarded) source = guarded_alloc(65536 * type_bytes(from));
	uint64_t slots[256];
	struct kvt_attn_append append = { .kv = pool.view,
					  .n_positions = n,
					  .type = from,
					  .k = source.data,
					  .v = source.data,
					  .slots = slots };
	struct random random = { from * 4 + to };

	case_begin("kv_append: all of %s to %s", type_name(from), type_name(to));
	append.kv.k_scale = append.kv.v_scale = 1;
	for (uint32_t i = 0; i < 256; i++)
		slots[i] = i + 1;
	for (uint32_t i = 0; i < 65536; i++) {
		uint16_t half = (uint16_t)i;
		/*
		 * All exponents, and mantissas near the middle between two numbers of a shorter
		 * type.
		 */
		uint32_t bits =
			(i << 16 | 0x8000 | (uint32_t)random_next(&random) % 3 * 0x7fff) - (i & 1);

		memcpy((char *)source.data + i * type_bytes(from),
		       from == KVT_ATTN_F32 ? (void *)&bits : (void *)&half, type_bytes(from));
	}
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	for (uint32_t i = 0; i < 65536; i++) {
		double value = element_read((char *)source.data + i * type_bytes(from), from);
		const void *element = pool_element(&pool, i & 1, i / 256 + 1, 0, 0, i % 256);
		uint32_t expected = 0, found = 0;

		element_write(&expected, to, value);
		memcpy(&found, element, type_bytes(to));
		if (from == to) /* unchanged: bits of a NaN too */
			memcpy(&expected, (char *)source.data + i * type_bytes(from),
			       type_bytes(from));
		if (isnan(value) && from != to ? !isnan(element_read(element, to))
					       : found != expected)
			case_fail(__FILE__, __LINE__, "%g becomes %x, not %x", value, found,
				  expected);
	}
}

/*
 * The rounding modes of the caller, and of the thread that opened the context, have no influence.
 */
static void rounding_test(uint32_t from, uint32_t to, int mode)
{
	uint32_t n = 256, dim = 256;
	struct pool_options options = { .n_pages = n + 1,
					.page_size = 1,
					.n_kv_heads = 1,
					.head_dim = dim,
					.type = to,
					.seed = 1 };
	OWNED(pool) expected = pool_make(&options), pool = pool_make(&options);
	OWNED(guarded) source = guarded_alloc(n * dim * type_bytes(from));
	struct kvt_attn_context *context = context_for(KVT_ATTN_ISA_AUTO, 3, 0);
	struct random random = { 1 };
	uint64_t slots[256];
	struct kvt_attn_append append = { .kv = expected.view,
					  .n_positions = n,
					  .type = from,
					  .k = source.data,
					  .v = source.data,
					  .slots = slots };

	case_begin("kv_append: %s to %s in rounding mode %x", type_name(from), type_name(to), mode);
	for (uint32_t i = 0; i < n; i++)
		slots[i] = i + 1;
	/* Between 1 and 2^-39, where the shorter types have denormals and then underflow. */
	for (uint32_t i = 0; i < n * dim; i++)
		element_write((char *)source.data + i * type_bytes(from), from,
			      (double)ldexpf(random_normal(&random), -(int)(i % 40)));
	append.kv.k_scale = append.kv.v_scale = to == KVT_ATTN_F8_E4M3 ? 0.3f : 1;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	kvt_attn_close(context);

	fesetround(mode);
	context = context_for(KVT_ATTN_ISA_AUTO, 3, 0);
	append.kv.k = pool.view.k;
	append.kv.v = pool.view.v;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	EXPECT_EQUAL(fegetround(), mode);
	fesetround(FE_TONEAREST);
	EXPECT(memcmp(expected.slab.data, pool.slab.data, pool.slab.bytes) == 0);
	kvt_attn_close(context);
}

static void copy_test(struct kvt_attn_context *context, uint32_t type, uint32_t variant)
{
	static const struct kvt_attn_copy copies[] = { { 3, 1, 5 }, { 4, 6, 8 }, { 3, 7, 1 } };
	struct pool_options options = { .n_pages = 9,
					.page_size = 8,
					.n_kv_heads = 2,
					.head_dim = 24,
					.type = type,
					.layout = variant & 1,
					.order = variant >> 1,
					.seed = 3 };
	OWNED(pool) pool = pool_make(&options);
	OWNED(source) source = source_make(16, 2, 24, KVT_ATTN_F32);
	struct kvt_attn_append append = { .kv = pool.view,
					  .n_positions = 16,
					  .type = KVT_ATTN_F32,
					  .k = source.k.data,
					  .v = source.v.data };
	uint64_t slots[16];
	int written[72];

	case_begin("page_copy: %s, variant %u", type_name(type), variant);
	for (int i = 0; i < 72; i++)
		written[i] = i >= 24 && i < 40 ? i - 24 : -1;
	for (uint32_t i = 0; i < 16; i++)
		slots[i] = 24 + i;
	append.slots = slots;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), 0);
	EXPECT_EQUAL(kvt_attn_page_copy(context, &pool.view, 1, copies, 3, NULL), 0);
	for (uint32_t i = 0; i < 3; i++) {
		for (uint32_t j = 0; j < copies[i].n_positions; j++)
			written[copies[i].target * 8 + j] = written[copies[i].source * 8 + j];
	}
	pool_compare(&pool, &source, written);
	layers_check(&pool);
}

/* All layers of a pool in one call, large enough for threads. */
static void copy_layers_test(struct kvt_attn_context *context)
{
	struct kvt_attn_geometry geometry = { .n_pages = 40,
					      .page_size = 64,
					      .n_layers = 6,
					      .n_kv_heads = 2,
					      .head_dim = 64,
					      .type = KVT_ATTN_F16,
					      .order = KVT_ATTN_PAGE_MAJOR };
	struct kvt_attn_view views[6];
	struct kvt_attn_copy copies[10];
	struct guarded slab;
	uint64_t bytes = 0, page_bytes;
	char *data;

	case_begin("page_copy: whole pages in all layers");
	EXPECT_EQUAL(kvt_attn_geometry_bytes(&geometry, &bytes), 0);
	slab = guarded_alloc(bytes);
	data = slab.data;
	page_bytes = bytes / 40;
	for (uint32_t page = 0; page < 40; page++) {
		for (uint64_t i = 0; i < page_bytes; i++)
			data[page * page_bytes + i] = (char)(page + i % 97);
	}
	for (uint32_t i = 0; i < 6; i++)
		EXPECT_EQUAL(kvt_attn_geometry_view(&geometry, data, bytes, i, &views[i]), 0);
	for (uint32_t i = 0; i < 10; i++)
		copies[i] = (struct kvt_attn_copy){ 2 * i + 1, 39 - i, 64 };
	EXPECT_EQUAL(kvt_attn_page_copy(context, views, 6, copies, 10, NULL), 0);
	for (uint32_t page = 0; page < 40; page++) {
		uint32_t from = page > 29 ? 2 * (39 - page) + 1 : page;

		for (uint64_t i = 0; i < page_bytes; i++)
			EXPECT_EQUAL(data[page * page_bytes + i], (char)(from + i % 97));
	}
	guarded_free(&slab);
}

int main(void)
{
	struct kvt_attn_context *context = context_for(KVT_ATTN_ISA_AUTO, 2, 0);

	if (!context)
		return 1;
	for (uint32_t from = 0; from <= KVT_ATTN_BF16; from++) {
		for (uint32_t to = 0; to <= KVT_ATTN_F8_E4M3; to++) {
			append_test(context, from, to, (from + to) % 4);
			conversion_test(context, from, to);
		}
	}
	append_large_test(context);
	rounding_test(KVT_ATTN_F32, KVT_ATTN_F16, FE_UPWARD);
	rounding_test(KVT_ATTN_F32, KVT_ATTN_F8_E4M3, FE_DOWNWARD);
	rounding_test(KVT_ATTN_F16, KVT_ATTN_F8_E4M3, FE_TOWARDZERO);
	for (uint32_t i = 0; i < 4; i++)
		copy_test(context, i, i);
	copy_layers_test(context);
	kvt_attn_close(context);
	return cases_end();
}
