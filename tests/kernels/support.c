/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel tests share (support.h). Inputs: seeds and sizes; everything else follows from
 * them. Invariant: element types, layouts and the reference are written independently of kernels/,
 * so a mistake there is not repeated here. Callers: tests/kernels/test_*.c.
 */

#include "tests/kernels/support.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Cases */

static struct {
	char name[160];
	bool open;
	uint32_t n_failures;
	uint32_t n_passed;
	uint32_t n_failed;
	uint32_t n_skipped;
} cases;

static void case_end(void)
{
	if (!cases.open)
		return;
	cases.open = false;
	if (cases.n_failures) {
		cases.n_failed++;
		printf("[  FAILED  ] %s\n", cases.name);
	} else {
		cases.n_passed++;
		printf("[       OK ] %s\n", cases.name);
	}
	fflush(stdout);
}

void case_begin(const char *format, ...)
{
	va_list arguments;

	case_end();
	va_start(arguments, format);
	vsnprintf(cases.name, sizeof cases.name, format, arguments);
	va_end(arguments);
	cases.open = true;
	cases.n_failures = 0;
}

void case_skip(const char *reason)
{
	printf("skip: %s\n[  SKIPPED ] %s\n", reason, cases.name);
	cases.open = false;
	cases.n_skipped++;
}

void case_fail(const char *file, int line, const char *format, ...)
{
	va_list arguments;

	/* One wrong number is rarely alone. */
	if (cases.n_failures++ >= 5)
		return;
	printf("%s:%d: %s: ", file, line, cases.name);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
}

int cases_end(void)
{
	case_end();
	printf("%u passed, %u failed, %u skipped\n", cases.n_passed, cases.n_failed,
	       cases.n_skipped);
	if (cases.n_failed)
		return 1;
	return cases.n_passed ? 0 : 77;
}

static void *must(void *memory)
{
	if (!memory) {
		perror("out of memory");
		exit(1);
	}
	return memory;
}

/* Random numbers */

uint64_t random_next(struct random *random)
{
	uint64_t z = random->state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint32_t random_seed(void)
{
	const char *text = getenv("KVT_SEED");
	uint32_t seed = text ? (uint32_t)strtoul(text, NULL, 0) : 0;

	if (!text && getentropy(&seed, sizeof seed) < 0)
		perror("getentropy");
	printf("random cases from KVT_SEED=%u on\n", seed);
	return seed;
}

uint32_t random_cases(uint32_t n)
{
	const char *text = getenv("KVT_CASES");

	return text ? (uint32_t)strtoul(text, NULL, 0) : n;
}

uint32_t random_below(struct random *random, uint32_t n)
{
	return (uint32_t)((random_next(random) >> 32) * n >> 32);
}

/* The sum of four uniform numbers, scaled; close enough to normal. */
static float normal_of(uint64_t bits)
{
	int32_t sum = 0;

	for (int i = 0; i < 4; i++)
		sum += (int32_t)(bits >> 16 * i & 0xffff) - 0x8000;
	return (float)sum * (1.0f / 37837.0f);
}

float random_normal(struct random *random)
{
	return normal_of(random_next(random));
}

/* Memory */

struct guarded guarded_alloc(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t body = (bytes + page - 1) / page * page;
	struct guarded memory = { .bytes = bytes, .map_bytes = body + 2 * page };

	memory.map = mmap(NULL, memory.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory.map == MAP_FAILED ||
	    mprotect((char *)memory.map + page, body, PROT_READ | PROT_WRITE) < 0) {
		perror("mmap");
		exit(1);
	}
	memory.data = (char *)memory.map + page + body - bytes;
	memset((char *)memory.map + page, 0xff, body);
	return memory;
}

void guarded_free(struct guarded *memory)
{
	munmap(memory->map, memory->map_bytes);
	*memory = (struct guarded){ 0 };
}

/* Element types */

static const struct {
	const char *name;
	size_t bytes;
	int exponent_bits;
	int mantissa_bits;
} types[] = {
	{ "fp32", 4, 8, 23 },
	{ "fp16", 2, 5, 10 },
	{ "bf16", 2, 8, 7 },
	{ "fp8", 1, 4, 3 },
};

size_t type_bytes(uint32_t type)
{
	return types[type].bytes;
}

const char *type_name(uint32_t type)
{
	return types[type].name;
}

/* ldexp(1, n) without a call: each element of each test passes here. */
static double power_of_two(int n)
{
	uint64_t bits = (uint64_t)(n + 1023) << 52;
	double value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

/* Decode any of the formats, from its definition. */
double element_read(const void *element, uint32_t type)
{
	int mantissa_bits = types[type].mantissa_bits;
	int exponent_max = (1 << types[type].exponent_bits) - 1;
	int bias = exponent_max / 2;
	uint32_t bits = 0, mantissa;
	int exponent;
	double value;

	memcpy(&bits, element, types[type].bytes);
	mantissa = bits & ((1u << mantissa_bits) - 1);
	exponent = (int)(bits >> mantissa_bits) & exponent_max;
	if (type == KVT_ATTN_F8_E4M3 && exponent == exponent_max && mantissa == 7)
		value = NAN;
	else if (type != KVT_ATTN_F8_E4M3 && exponent == exponent_max)
		value = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		value = mantissa * power_of_two(1 - bias - mantissa_bits);
	else
		value = (mantissa + (1u << mantissa_bits)) *
			power_of_two(exponent - bias - mantissa_bits);
	return bits >> (8 * types[type].bytes - 1) ? -value : value;
}

/* Round to the nearest number of the format, ties to even, from its definition. */
void element_write(void *element, uint32_t type, double value)
{
	int mantissa_bits = types[type].mantissa_bits;
	int exponent_max = (1 << types[type].exponent_bits) - 1;
	int bias = exponent_max / 2;
	uint32_t sign = signbit(value) ? 1u << (8 * types[type].bytes - 1) : 0;
	double highest = type == KVT_ATTN_F8_E4M3
				 ? 448
				 : (2 - power_of_two(-mantissa_bits)) *
					   power_of_two(exponent_max - 1 - bias);
	double magnitude = fabs(value), quantum, steps;
	uint32_t bits;
	int exponent;

	frexp(magnitude, &exponent); /* magnitude is in [2^(exponent - 1), 2^exponent) */
	exponent--;
	if (exponent < 1 - bias || magnitude == 0)
		exponent = 1 - bias;
	quantum = power_of_two(exponent - mantissa_bits);
	steps = nearbyint(magnitude / quantum);
	if (isnan(value))
		bits = type == KVT_ATTN_F8_E4M3 ? 0x7f
						: (uint32_t)exponent_max << mantissa_bits |
							  1u << (mantissa_bits - 1);
	else if (steps * quantum > highest || isinf(value))
		bits = type == KVT_ATTN_F8_E4M3 ? 0x7e : (uint32_t)exponent_max << mantissa_bits;
	else if (steps < (1 << mantissa_bits)) /* denormal */
		bits = (uint32_t)steps;
	else if (steps == (double)(2 << mantissa_bits)) /* rounded up to the next power */
		bits = (uint32_t)(exponent + 1 + bias) << mantissa_bits;
	else
		bits = ((uint32_t)(exponent + bias) << mantissa_bits) +
		       ((uint32_t)steps - (1u << mantissa_bits));
	bits |= sign;
	memcpy(element, &bits, types[type].bytes);
}

/* Pools */

struct pool pool_make(const struct pool_options *options)
{
	struct random random = { options->seed };
	struct pool pool = { .geometry = {
				     .n_pages = options->n_pages,
				     .page_size = options->page_size,
				     .n_layers = 3,
				     .n_kv_heads = options->n_kv_heads,
				     .head_dim = options->head_dim,
				     .type = options->type,
				     .layout = options->layout,
				     .order = options->order,
			     } };
	uint64_t bytes = 0;
	int r = kvt_attn_geometry_bytes(&pool.geometry, &bytes);

	pool.slab = guarded_alloc(bytes);
	r |= kvt_attn_geometry_view(&pool.geometry, pool.slab.data, bytes, 2, &pool.view);
	if (r) {
		fprintf(stderr, "pool_make: bad geometry\n");
		exit(1);
	}
	if (options->type == KVT_ATTN_F8_E4M3) {
		pool.view.k_scale = 0.03125f * 1.25f;
		pool.view.v_scale = 0.015625f * 1.5f;
	}
	pool.n_free = options->n_pages - 1;
	pool.free_pages = must(malloc(options->n_pages * sizeof *pool.free_pages));
	for (uint32_t i = 0; i < pool.n_free; i++) {
		uint32_t j = random_below(&random, i + 1);

		pool.free_pages[i] = pool.free_pages[j];
		pool.free_pages[j] = i + 1;
	}
	return pool;
}

void pool_free(struct pool *pool)
{
	guarded_free(&pool->slab);
	free(pool->free_pages);
}

void *pool_element(const struct pool *pool, uint32_t plane, uint32_t page, uint32_t head,
		   uint32_t position, uint32_t dim)
{
	const struct kvt_attn_geometry *g = &pool->geometry;
	uint64_t within, index;

	/* The layouts, written a second time: [page][layer][plane] or [layer][plane][page]. */
	if (g->layout == KVT_ATTN_HND)
		within = ((uint64_t)head * g->page_size + position) * g->head_dim + dim;
	else
		within = ((uint64_t)position * g->n_kv_heads + head) * g->head_dim + dim;
	if (g->order == KVT_ATTN_PAGE_MAJOR)
		index = ((uint64_t)page * g->n_layers + 2) * 2 + plane;
	else
		index = (2 * 2 + (uint64_t)plane) * g->n_pages + page;
	index = index * g->page_size * g->n_kv_heads * g->head_dim + within;
	return (char *)pool->slab.data + index * type_bytes(g->type);
}

static float value_of(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
	struct random random = { seed ^ a << 40 ^ b << 20 ^ c };

	return normal_of(random_next(&random));
}

float text_value(uint64_t seed, uint32_t plane, uint32_t position, uint32_t head, uint32_t dim)
{
	return value_of(seed * 7 + 1 + plane, position, head, dim);
}

/* An element of a query vector of the text with this seed. */
static float text_query(uint64_t seed, uint32_t position, uint32_t head, uint32_t dim)
{
	return value_of(seed * 7 + 3, position, head, dim);
}

static void text_write(const struct pool *pool, const struct text *text, uint64_t seed,
		       uint32_t position)
{
	const struct kvt_attn_geometry *g = &pool->geometry;
	uint32_t page = text->pages[position / g->page_size];

	for (uint32_t plane = 0; plane < 2; plane++) {
		double scale = plane ? pool->view.v_scale : pool->view.k_scale;

		for (uint32_t head = 0; head < g->n_kv_heads; head++) {
			for (uint32_t dim = 0; dim < g->head_dim; dim++)
				element_write(pool_element(pool, plane, page, head,
							   position % g->page_size, dim),
					      g->type,
					      text_value(seed, plane, position, head, dim) / scale);
		}
	}
}

struct text text_make(struct pool *pool, uint64_t seed, uint32_t n_positions)
{
	uint32_t page_size = pool->geometry.page_size;
	struct text text = { .n_positions = n_positions,
			     .n_pages = (n_positions + page_size - 1) / page_size };

	if (text.n_pages > pool->n_free) {
		fprintf(stderr, "text_make: the pool is too small\n");
		exit(1);
	}
	text.pages = must(malloc((text.n_pages + 1) * sizeof *text.pages));
	for (uint32_t i = 0; i < text.n_pages; i++)
		text.pages[i] = pool->free_pages[--pool->n_free];
	for (uint32_t position = 0; position < n_positions; position++)
		text_write(pool, &text, seed, position);
	return text;
}

void text_free(struct text *text)
{
	free(text->pages);
}

/* Rows */

struct rows rows_make(uint32_t n_rows, uint32_t n_heads, uint32_t head_dim, uint32_t q_type,
		      uint32_t out_type)
{
	size_t n = (size_t)n_rows * n_heads * head_dim;

	return (struct rows){
		.q = guarded_alloc(n * type_bytes(q_type)),
		.out = guarded_alloc(n * type_bytes(out_type)),
		.n_heads = n_heads,
		.head_dim = head_dim,
		.q_type = q_type,
		.out_type = out_type,
	};
}

void rows_free(struct rows *rows)
{
	guarded_free(&rows->q);
	guarded_free(&rows->out);
}

void rows_fill(struct rows *rows, uint32_t row, uint64_t seed, uint32_t first, uint32_t n)
{
	size_t bytes = type_bytes(rows->q_type);

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t head = 0; head < rows->n_heads; head++) {
			for (uint32_t dim = 0; dim < rows->head_dim; dim++) {
				size_t index = ((size_t)(row + i) * rows->n_heads + head) *
						       rows->head_dim +
					       dim;

				element_write((char *)rows->q.data + index * bytes, rows->q_type,
					      text_query(seed, first + i, head, dim));
			}
		}
	}
}

/* Reference */

uint32_t reference_limit(uint32_t position, uint32_t n_positions,
			 const struct kvt_attn_region *regions, uint32_t n_regions)
{
	uint32_t limit = position + 1;

	for (uint32_t i = 0; i < n_regions; i++) {
		if (regions[i].start <= position && position < regions[i].end)
			limit = regions[i].end;
	}
	return limit < n_positions ? limit : n_positions;
}

/* Attention of one query head of one row, in double precision, straight from the pages:
 * result[head_dim]. The row sees positions 0 .. limit - 1. */
static void reference_row(const struct pool *pool, const struct text *text, const void *q,
			  uint32_t q_type, uint32_t kv_head, uint32_t limit, double scale,
			  double *result)
{
	const struct kvt_attn_geometry *g = &pool->geometry;
	double *scores = must(malloc(limit * sizeof *scores));
	double highest = -INFINITY, sum = 0, query[KVT_ATTN_HEAD_DIM_MAX];

	for (uint32_t dim = 0; dim < g->head_dim; dim++)
		query[dim] = element_read((const char *)q + dim * type_bytes(q_type), q_type);
	for (uint32_t position = 0; position < limit; position++) {
		uint32_t page = text->pages[position / g->page_size];
		double score = 0;

		for (uint32_t dim = 0; dim < g->head_dim; dim++)
			score += query[dim] *
				 element_read(pool_element(pool, 0, page, kv_head,
							   position % g->page_size, dim),
					      g->type);
		scores[position] = score * scale * (double)pool->view.k_scale;
		highest = fmax(highest, scores[position]);
	}
	for (uint32_t dim = 0; dim < g->head_dim; dim++)
		result[dim] = 0;
	for (uint32_t position = 0; position < limit; position++) {
		uint32_t page = text->pages[position / g->page_size];
		double weight = exp(scores[position] - highest);

		sum += weight;
		for (uint32_t dim = 0; dim < g->head_dim; dim++)
			result[dim] +=
				weight * element_read(pool_element(pool, 1, page, kv_head,
								   position % g->page_size, dim),
						      g->type);
	}
	for (uint32_t dim = 0; dim < g->head_dim; dim++)
		result[dim] *= (double)pool->view.v_scale / sum;
	free(scores);
}

double rows_error(const struct rows *rows, uint32_t row, uint32_t head, const struct pool *pool,
		  const struct text *text, uint32_t group_heads, uint32_t limit, double scale)
{
	size_t index = ((size_t)row * rows->n_heads + head) * rows->head_dim;
	size_t out_bytes = type_bytes(rows->out_type);
	double expected[KVT_ATTN_HEAD_DIM_MAX], difference = 0, norm = 0;

	reference_row(pool, text, (char *)rows->q.data + index * type_bytes(rows->q_type),
		      rows->q_type, head / group_heads, limit, scale, expected);
	for (uint32_t i = 0; i < rows->head_dim; i++) {
		double value = element_read((char *)rows->out.data + (index + i) * out_bytes,
					    rows->out_type);

		difference += (value - expected[i]) * (value - expected[i]);
		norm += expected[i] * expected[i];
	}
	return sqrt(difference / norm);
}

void rows_compare(const struct rows *expected, uint32_t expected_first, const struct rows *result,
		  uint32_t first, uint32_t n)
{
	size_t row_floats = (size_t)expected->n_heads * expected->head_dim;
	const uint32_t *a = (uint32_t *)expected->out.data + (first - expected_first) * row_floats;
	const uint32_t *b = result->out.data;

	for (size_t i = 0; i < n * row_floats; i++) {
		if (a[i] != b[i]) {
			case_fail(__FILE__, __LINE__,
				  "position %zu, head %zu, dim %zu: %08x, not %08x",
				  first + i / row_floats, i % row_floats / expected->head_dim,
				  i % expected->head_dim, b[i], a[i]);
			return;
		}
	}
}

/* Scenes */

const struct scene_shape scene_shapes[N_SCENE_SHAPES] = {
	{ { 64, 1, 4, 150, 16, KVT_ATTN_BF16, KVT_ATTN_BF16 }, 40 },
	{ { 80, 2, 3, 100, 1, KVT_ATTN_F16, KVT_ATTN_F16 }, 100 },
	{ { 96, 1, 7, 90, 32, KVT_ATTN_BF16, KVT_ATTN_BF16 }, 11 },
	{ { 128, 1, 8, 200, 64, KVT_ATTN_BF16, KVT_ATTN_BF16 }, 17 },
	{ { 128, 1, 2, 130, 16, KVT_ATTN_F8_E4M3, KVT_ATTN_BF16 }, 33 },
	{ { 256, 1, 2, 70, 16, KVT_ATTN_F16, KVT_ATTN_F16 }, 35 },
	{ { 64, 1, 2, 66, 16, KVT_ATTN_F8_E4M3, KVT_ATTN_F16 }, 1 },
	{ { 17, 1, 2, 70, 4, KVT_ATTN_BF16, KVT_ATTN_BF16 }, 40 }, /* no whole lines */
	{ { 72, 1, 2, 70, 4, KVT_ATTN_BF16, KVT_ATTN_BF16 }, 20 },
	{ { 128, 1, 4, 140, 64, KVT_ATTN_F32, KVT_ATTN_F32 }, 20 },
	{ { 256, 1, 3, 50, 16, KVT_ATTN_F32, KVT_ATTN_F32 }, 25 },
	{ { 80, 1, 2, 70, 2, KVT_ATTN_F8_E4M3, KVT_ATTN_F32 }, 40 },
	{ { 96, 1, 2, 70, 32, KVT_ATTN_BF16, KVT_ATTN_F16 }, 3 },
	{ { 7, 2, 2, 70, 32, KVT_ATTN_F32, KVT_ATTN_F32 }, 40 },
};

struct scene scene_make(const struct scene_options *options)
{
	struct pool_options pool = { .n_pages = options->n_positions / options->page_size + 9,
				     .page_size = options->page_size,
				     .n_kv_heads = options->n_kv_heads,
				     .head_dim = options->head_dim,
				     .type = options->kv_type,
				     .layout = options->page_size & 1,
				     .seed = 3 };
	struct scene scene = { .is = *options, .pool = pool_make(&pool) };

	scene.text = text_make(&scene.pool, 1, options->n_positions);
	return scene;
}

void scene_free(struct scene *scene)
{
	text_free(&scene->text);
	pool_free(&scene->pool);
}

/* Random shapes */

struct shape {
	struct scene_options is;
	uint32_t out_type;
	uint32_t n_regions;
	struct kvt_attn_region regions[4];
};

static struct shape shape_random(struct random *random)
{
	static const uint32_t dims[] = { 64, 80, 96, 128, 256, 40, 65, 100, 8, 1, 200 };
	struct shape shape = { .is = { .head_dim = dims[random_below(random, 11)],
				       .n_kv_heads = 1 + random_below(random, 2),
				       .group_heads = 1 + random_below(random, 9),
				       .page_size = 1u << random_below(random, 9),
				       .kv_type = random_below(random, 4),
				       .q_type = random_below(random, 3) },
			       .out_type = random_below(random, 3) };
	uint32_t at = 0;

	/* Rarely across the end of a unit. */
	shape.is.n_positions = random_below(random, 8) ? 1 + random_below(random, 150)
						       : 1000 + random_below(random, 60);
	while (shape.n_regions < 4 && random_below(random, 2)) {
		struct kvt_attn_region *region = &shape.regions[shape.n_regions++];

		region->start = at + random_below(random, 40);
		region->end = at = region->start + 1 + random_below(random, 60);
	}
	return shape;
}

/* The rows of one sequence of a batch, beginning with first_row. */
static void random_rows_check(const struct scene *scene, const struct rows *rows,
			      uint32_t first_row, const struct kvt_attn_sequence *sequence,
			      struct random *random, double tolerance)
{
	uint32_t first = sequence->n_positions - sequence->n_queries;
	double scale = 1.0 / (double)sqrtf((float)scene->is.head_dim);

	for (uint32_t i = 0; i < sequence->n_queries; i += 1 + random_below(random, 4)) {
		uint32_t head = random_below(random, rows->n_heads);
		uint32_t limit = reference_limit(first + i, sequence->n_positions,
						 sequence->regions, sequence->n_regions);
		double error = rows_error(rows, first_row + i, head, &scene->pool, &scene->text,
					  scene->is.group_heads, limit, scale);

		if (!(error <= tolerance))
			case_fail(__FILE__, __LINE__, "position %u, head %u: relative error %g",
				  first + i, head, error);
	}
}

void random_test(const char *what, uint32_t seed,
		 void (*run)(const struct kvt_attn_prefill *prefill, struct random *random,
			     void *context),
		 double (*tolerance)(const struct scene *scene, uint32_t out_type, void *context),
		 void *context)
{
	struct random random = { seed };
	struct shape shape = shape_random(&random);
	OWNED(scene) scene = scene_make(&shape.is);
	uint32_t ends[2] = { shape.is.n_positions,
			     1 + random_below(&random, shape.is.n_positions) };
	uint32_t n[2] = { 1 + random_below(&random, ends[0] < 40 ? ends[0] : 40),
			  1 + random_below(&random, ends[1] < 9 ? ends[1] : 9) };
	struct kvt_attn_sequence sequences[3] = { 0 };
	OWNED(rows) rows = rows_make(n[0] + n[1], shape.is.n_kv_heads * shape.is.group_heads,
				     shape.is.head_dim, shape.is.q_type, shape.out_type);
	struct kvt_attn_prefill prefill = { .kv = scene.pool.view,
					    .sequences = sequences,
					    .n_sequences = 3,
					    .n_q_heads = rows.n_heads,
					    .q = rows.q.data,
					    .out = rows.out.data,
					    .q_type = rows.q_type,
					    .out_type = rows.out_type,
					    .scale = 1.0f / sqrtf((float)shape.is.head_dim) };

	case_begin("%s: random %u: dim %u, %u heads x %u, %u and %u of %u and %u, page %u, "
		   "%s KV, %s q, %s out, %u regions",
		   what, seed, shape.is.head_dim, shape.is.n_kv_heads, shape.is.group_heads, n[0],
		   n[1], ends[0], ends[1], shape.is.page_size, type_name(shape.is.kv_type),
		   type_name(shape.is.q_type), type_name(shape.out_type), shape.n_regions);
	for (uint32_t i = 0; i < 2; i++) {
		sequences[2 * i] = (struct kvt_attn_sequence){ .n_queries = n[i],
							       .n_positions = ends[i],
							       .pages = scene.text.pages,
							       .n_pages = scene.text.n_pages,
							       .regions = shape.regions,
							       .n_regions = shape.n_regions };
		rows_fill(&rows, i ? n[0] : 0, 1, ends[i] - n[i], n[i]);
	}
	run(&prefill, &random, context);
	for (uint32_t i = 0; i < 2; i++)
		random_rows_check(&scene, &rows, i ? n[0] : 0, &sequences[2 * i], &random,
				  tolerance(&scene, shape.out_type, context));
}

/* Contexts */

const char *const isa_names[N_ISAS] = { "auto", "portable", "avx2", "avx512", "avx512_bf16" };

bool isa_rounds(uint32_t isa)
{
	return isa == KVT_ATTN_ISA_AVX512_BF16;
}

struct kvt_attn_context *context_for(uint32_t isa, uint32_t n_threads, uint64_t scratch_bytes)
{
	struct kvt_attn_options options = { .n_threads = n_threads,
					    .isa = isa,
					    .scratch_bytes = scratch_bytes };
	struct kvt_attn_context *context = NULL;
	char text[256];

	if (kvt_attn_open(&options, &context, text, sizeof text))
		return NULL;
	return context;
}
