/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels on a real CUDA device: results against double precision, the same bits warm and cold,
 * poison. Skips without a device. (With LD_LIBRARY_PATH at the stub of the driver it runs on
 * emulated hardware, which tests the test.)
 *
 * Inputs: the shapes of support.h, on device 0. Invariant: as in test_attention.c and test_bits.c.
 */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvt_cuda.h"
#include "tests/lib/capture.h"
#include "tests/kernels/support.h"

static struct kvt_cu_driver driver;

/* The device's memory and its context, beside the library's own. */
static void driver_load(void)
{
	const char *missing;
	void *context = NULL;

	if (kvt_cu_load(&driver, &missing) || driver.primary_retain(&context, 0) ||
	    driver.context_push(context)) {
		fprintf(stderr, "cannot enter the device's context\n");
		exit(1);
	}
}

static int copy_in(uint64_t target, const void *source, size_t bytes)
{
	return driver.memory_upload(target, source, bytes, NULL) || driver.stream_synchronize(NULL);
}

static int copy_out(void *target, uint64_t source, size_t bytes)
{
	return driver.memory_download(target, source, bytes, NULL) ||
	       driver.stream_synchronize(NULL);
}

static uint64_t upload(const void *data, size_t bytes)
{
	uint64_t memory = 0;

	if (driver.memory_alloc(&memory, bytes) || copy_in(memory, data, bytes)) {
		fprintf(stderr, "cannot copy %zu bytes to the device\n", bytes);
		exit(1);
	}
	return memory;
}

/* A scene on the host, for the reference, and its slab on the device. */
struct model {
	struct scene host;
	uint64_t slab;
	struct kvt_attn_view view;
};

static void model_upload(struct model *model)
{
	if (copy_in(model->slab, model->host.pool.slab.data, model->host.pool.slab.bytes))
		case_fail(__FILE__, __LINE__, "upload");
}

/* The device address of this place of the slab. */
static void *on_device(const struct model *model, const void *place)
{
	return (void *)(uintptr_t)(model->slab + (uint64_t)((const char *)place -
							    (char *)model->host.pool.slab.data));
}

static struct model model_make(const struct scene_options *options)
{
	struct model model = { .host = scene_make(options) };

	model.slab = upload(model.host.pool.slab.data, model.host.pool.slab.bytes);
	model.view = model.host.pool.view;
	model.view.k = on_device(&model, model.view.k);
	model.view.v = on_device(&model, model.view.v);
	return model;
}

static void model_free(struct model *model)
{
	driver.memory_free(model->slab);
	scene_free(&model->host);
}

/* One call, with its input and output on the device. */
struct job {
	struct rows rows;
	struct kvt_attn_sequence sequence;
	struct kvt_attn_prefill prefill;
	uint64_t q, out;
};

static struct job job_make(const struct model *model, uint32_t first, uint32_t n)
{
	const struct scene_options *is = &model->host.is;
	uint32_t n_heads = is->n_kv_heads * is->group_heads;
	struct job job = {
		.rows = rows_make(n, n_heads, is->head_dim, is->q_type, KVT_ATTN_F32),
		.sequence = { .n_queries = n,
			      .n_positions = first + n,
			      .pages = model->host.text.pages,
			      .n_pages = model->host.text.n_pages },
		.prefill = { .kv = model->view,
			     .n_sequences = 1,
			     .n_q_heads = n_heads,
			     .q_type = is->q_type,
			     .out_type = KVT_ATTN_F32,
			     .scale = 1.0f / sqrtf((float)is->head_dim) },
	};

	rows_fill(&job.rows, 0, 1, first, n);
	job.q = upload(job.rows.q.data, job.rows.q.bytes);
	job.out = upload(job.rows.out.data, job.rows.out.bytes);
	job.prefill.q = (const void *)(uintptr_t)job.q;
	job.prefill.out = (void *)(uintptr_t)job.out;
	return job;
}

static void job_queue(struct job *job, struct kvt_attn_context *context)
{
	job->prefill.sequences = &job->sequence;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &job->prefill, NULL), 0);
}

static struct rows job_end(struct job *job)
{
	EXPECT_EQUAL(copy_out(job->rows.out.data, job->out, job->rows.out.bytes), 0);
	driver.memory_free(job->q);
	driver.memory_free(job->out);
	return job->rows;
}

static struct rows run(struct kvt_attn_context *context, const struct model *model, uint32_t first,
		       uint32_t n)
{
	struct job job = job_make(model, first, n);

	job_queue(&job, context);
	return job_end(&job);
}

static void rows_check(const struct model *model, const struct rows *rows, uint32_t first,
		       uint32_t n)
{
	const struct scene *host = &model->host;
	double allowed = rows->q_type == KVT_ATTN_BF16	? 5e-3
			 : rows->q_type == KVT_ATTN_F16 ? 1e-3
							: 5e-6;
	struct random random = { 7 };

	for (uint32_t i = 0; i < 12; i++) {
		uint32_t query = i == 0 ? 0 : i == 1 ? n - 1 : random_below(&random, n);
		uint32_t head = random_below(&random, rows->n_heads);
		double error = rows_error(rows, query, head, &host->pool, &host->text,
					  host->is.group_heads, first + query + 1,
					  (double)(1.0f / sqrtf((float)rows->head_dim)));

		if (!(error <= allowed))
			case_fail(__FILE__, __LINE__, "query %u, head %u: relative error %g", query,
				  head, error);
	}
}

static void shapes_test(struct kvt_attn_context *context)
{
	for (uint32_t i = 0; i < N_SCENE_SHAPES; i++) {
		const struct scene_options *scene = &scene_shapes[i].scene;
		uint32_t n = scene_shapes[i].n, first = scene->n_positions - n;
		OWNED(model) model = model_make(scene);
		OWNED(rows) rows = run(context, &model, first, n);

		case_begin("gpu: dim %u, %u of %u, page size %u, %s KV, %s q", scene->head_dim, n,
			   scene->n_positions, scene->page_size, type_name(scene->kv_type),
			   type_name(scene->q_type));
		rows_check(&model, &rows, first, n);
	}
}

static void bits_test(struct kvt_attn_context *context, uint32_t n_positions, uint32_t n,
		      uint32_t type)
{
	static const uint32_t chunks[] = { 1, 2, 17, 1, 35 };
	OWNED(model) model = model_make(
		&(struct scene_options){ 64, 1, 4, n_positions, 16, type, type });
	uint32_t start = n_positions - n, first = start;
	OWNED(rows) expected = run(context, &model, start, n);

	case_begin("gpu: the same bits in chunks and decode, %u positions, %s", n_positions,
		   type_name(type));
	rows_check(&model, &expected, start, n);
	for (uint32_t i = 0; first < n_positions; i++) {
		uint32_t size =
			chunks[i % 5] < n_positions - first ? chunks[i % 5] : n_positions - first;
		OWNED(rows) result = run(context, &model, first, size);

		rows_compare(&expected, start, &result, first, size);
		first += size;
	}
}

static void poison_test(struct kvt_attn_context *context)
{
	OWNED(model) model = model_make(&(struct scene_options){
		64, 1, 2, 260, 16, KVT_ATTN_BF16, KVT_ATTN_BF16 });
	OWNED(rows) clean = run(context, &model, 200, 60);

	case_begin("gpu: V that is not finite reaches no earlier row");
	element_write(pool_element(&model.host.pool, 1, model.host.text.pages[230 / 16], 0,
				   230 % 16, 5),
		      KVT_ATTN_BF16, INFINITY);
	model_upload(&model);
	OWNED(rows) poisoned = run(context, &model, 200, 60);

	rows_compare(&clean, 200, &poisoned, 200, 30);
	EXPECT(!isfinite(((float *)poisoned.out.data)[30 * 128 + 5]));
	EXPECT(!isfinite(((float *)poisoned.out.data)[59 * 128 + 64 + 5]));
}

/*
 * While an engine captures another stream, in any mode and thread, open a context, make its first
 * call and a larger one, for which its memory grows, and close it.
 */
static void capture_test(struct kvt_attn_context *context, int n)
{
	int own = n % 2 ? KVT_CU_CAPTURE_MODE_THREAD_LOCAL : KVT_CU_CAPTURE_MODE_GLOBAL, mode = own;
	const struct kvt_attn_options options = { .device = KVT_ATTN_CUDA };
	OWNED(model) model = model_make(&(struct scene_options){
		64, 1, 2, 1300, 16, KVT_ATTN_BF16, KVT_ATTN_BF16 });
	struct capture capture = { .driver = &driver, .mode = n / 2 % 3, .elsewhere = n >= 6 };
	struct job small = job_make(&model, 200, 4), large = job_make(&model, 1240, 60);
	OWNED(rows) expected_small = run(context, &model, 200, 4);
	OWNED(rows) expected_large = run(context, &model, 1240, 60);
	struct kvt_attn_context *second = NULL;

	case_begin("gpu: a capture in mode %d on %s thread, own mode %d, continues", capture.mode,
		   capture.elsewhere ? "another" : "this", own);
	EXPECT(!driver.primary_retain(&capture.context, 0) &&
	       !driver.stream_create(&capture.stream, KVT_CU_STREAM_NON_BLOCKING));
	capture.memory = model.slab;
	driver.capture_mode_exchange(&mode);
	capture_begin(&capture);
	EXPECT_EQUAL(kvt_attn_open(&options, &second, NULL, 0), 0);
	job_queue(&small, second);
	job_queue(&large, second);
	kvt_attn_close(second);
	EXPECT_EQUAL(capture_mode(&driver), own);
	capture_end(&capture);
	driver.capture_mode_exchange(&mode);
	if (!capture_is_whole(&capture))
		case_fail(__FILE__, __LINE__, "status %d, nodes %zu, errors %d %d %d",
			  capture.status, capture.n_nodes, capture.begin_error,
			  capture.copy_error, capture.end_error);
	OWNED(rows) rows_small = job_end(&small);
	OWNED(rows) rows_large = job_end(&large);

	rows_compare(&expected_small, 200, &rows_small, 200, 4);
	rows_compare(&expected_large, 1240, &rows_large, 1240, 60);
	driver.stream_destroy(capture.stream);
	driver.primary_release(0);
}

int main(int argc, char **argv)
{
	struct kvt_attn_options options = { .device = KVT_ATTN_CUDA };
	struct kvt_attn_context *context = NULL;
	char text[256] = "";
	bool emulated = getenv("KVT_TEST_EMULATED");
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;

	if (kvt_attn_open(&options, &context, text, sizeof text)) {
		printf("skip: %s\n", text);
		return 77;
	}
	printf("%s\n", kvt_attn_describe(context));
	driver_load();
	shapes_test(context);
	bits_test(context, 1100, 60, KVT_ATTN_BF16);
	bits_test(context, 1100, 20, KVT_ATTN_F32);
	/* Emulated hardware, and a sanitizer, are too slow for a device's workload. */
	if (!quick && !emulated) {
		bits_test(context, 3000, 2900, KVT_ATTN_BF16);
		bits_test(context, 3000, 2900, KVT_ATTN_F16);
		bits_test(context, 3000, 900, KVT_ATTN_F32);
		bits_test(context, 20000, 300, KVT_ATTN_BF16);
	}
	poison_test(context);
	/* A sanitizer's own calls end captures. */
	for (int i = 0; i < 12 && !quick; i++)
		capture_test(context, i);
	kvt_attn_close(context);
	return cases_end();
}
