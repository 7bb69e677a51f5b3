/* SPDX-License-Identifier: Apache-2.0 */

/* A worker's model, its connection, and the agreement of the two on geometry and fingerprint.
 *
 * Inputs: worker->options. Invariant: pages are mapped only after the daemon has accepted geometry,
 * fingerprint and arithmetic. Callers: main.c, the benchmarks. */

#include <errno.h>
#include <string.h>

#include "kvtrunk_keys.h"
#include "worker.h"

/* Convert a pool's type of KV to the kernels'. */
static uint32_t attention_type(uint32_t element_type)
{
	static const uint32_t types[] = {
		[KVT_ELEMENT_BF16] = KVT_ATTN_BF16,
		[KVT_ELEMENT_FP16] = KVT_ATTN_F16,
		[KVT_ELEMENT_FP32] = KVT_ATTN_F32,
		[KVT_ELEMENT_FP8_E4M3] = KVT_ATTN_F8_E4M3,
	};

	return types[element_type];
}

/* Convert a kernels' type of KV to the pool's. */
static uint32_t element_type(uint32_t attention)
{
	uint32_t type = KVT_ELEMENT_BF16;

	while (attention_type(type) != attention)
		type++;
	return type;
}

const char *const worker_kv_types[] = {
	[KVT_ATTN_F32] = "fp32", [KVT_ATTN_F16] = "fp16", [KVT_ATTN_BF16] = "bf16", NULL
};

/** Fill the geometry of this model's pages: all layers of a page together. */
static void geometry(const struct worker *worker, struct kvt_pool_geometry *ret_geometry)
{
	const struct model *model = &worker->model;

	*ret_geometry = (struct kvt_pool_geometry){
		.n_layers = model->n_layers,
		.n_kv_heads = model->n_kv_heads,
		.head_dim = model->head_dim,
		.type = element_type(worker->options.kv_type),
		.layout = KVT_LAYOUT_HND,
		.order = KVT_ORDER_PAGE,
	};
	for (uint32_t i = 0; i < model->n_layers && i < KVT_MAX_LAYERS; i++)
		ret_geometry->scales[i][0] = ret_geometry->scales[i][1] = 1;
}

/** Print everything that must be equal in all processes that share this model's KV. -EINVAL: pages
 * cannot hold such a model. */
static int fingerprint(const struct worker *worker, const struct kvt_pool_geometry *pages,
		       char *ret_text)
{
	struct kvt_pool_geometry_text words;
	char weights[64], tokenizer[32];
	int error = kvt_pool_geometry_describe(pages, &words);

	if (error)
		return error;
	snprintf(weights, sizeof(weights), "llama2c:%016llx%016llx",
		 (unsigned long long)worker->model.digest[0],
		 (unsigned long long)worker->model.digest[1]);
	snprintf(tokenizer, sizeof(tokenizer), "%016llx",
		 (unsigned long long)worker->tokenizer.digest[0]);
	kvt_geometry_fingerprint(&(struct kvt_geometry){ .weights = weights,
							 .tokenizer = tokenizer,
							 .kv_type = words.kv_type,
							 .layout = words.layout },
				 ret_text);
	return 0;
}

void worker_attention_view(const struct kvt_pool_view *from, struct kvt_attn_view *ret_view)
{
	*ret_view = (struct kvt_attn_view){
		.k = from->k,
		.v = from->v,
		.page_stride_bytes = from->page_stride_bytes,
		.head_stride_bytes = from->head_stride_bytes,
		.position_stride_bytes = from->position_stride_bytes,
		.n_pages = from->n_pages,
		.page_size = from->page_size,
		.n_kv_heads = from->n_kv_heads,
		.head_dim = from->head_dim,
		.type = attention_type(from->type),
		.k_scale = from->k_scale,
		.v_scale = from->v_scale,
	};
}

int worker_open_model(struct worker *worker)
{
	const struct worker_options *o = &worker->options;
	int error = model_open(&worker->model, o->model, worker->why);

	if (!error)
		error = tokenizer_open(&worker->tokenizer, o->tokenizer, worker->model.vocab_size,
				       worker->why);
	return error;
}

static int open_compute(struct worker *worker)
{
	const struct worker_options *o = &worker->options;

	if (worker->compute)
		return 0;
	if (o->cuda)
		return compute_cuda_open(&worker->model, o->device, &worker->compute, worker->why);
	return compute_cpu_open(&worker->model, &worker->compute, worker->why);
}

/* Check that the pool's memory is on the computing device. */
static int check_backend(struct worker *worker)
{
	bool host = kvt_client_info(worker->client)->backend == KVT_POOL_HOST;

	if (host && worker->options.cuda)
		snprintf(worker->why, sizeof(worker->why), "the daemon's pool is host memory, "
			 "which --device cuda cannot use: start kvtrunkd with --backend=cuda-vmm "
			 "(or cuda-ipc), or this worker with --device cpu");
	else if (!host && !worker->options.cuda)
		snprintf(worker->why, sizeof(worker->why), "the daemon's pool is device memory, "
			 "which --device cpu cannot use: start kvtrunkd with --backend=host, or "
			 "this worker with --device cuda");
	else
		return 0;
	return -ENOTSUP;
}

/* Describe the pool to the kernels, layer by layer. */
static int map_pool(struct worker *worker, struct kvt_attn_view *views)
{
	const struct worker_options *o = &worker->options;
	struct kvt_pool_view view;
	int code = o->cuda ? kvt_pool_map_cuda(worker->client, (int)o->device, 0, &worker->pool)
			   : kvt_pool_map(worker->client, &worker->pool);

	for (uint32_t i = 0; i < worker->model.n_layers && !code; i++) {
		code = kvt_pool_view(worker->client, &worker->pool, i, &view);
		if (!code)
			worker_attention_view(&view, &views[i]);
	}
	return code ? worker_failed(worker, code) : 0;
}

/* Connect with this geometry. */
static int connect_client(struct worker *worker)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_pool_geometry pages;
	char print[KVT_FINGERPRINT_BYTES];
	struct kvt_error error;
	uint64_t digest[2];
	int code;

	geometry(worker, &pages);
	code = fingerprint(worker, &pages, print);
	if (code) {
		snprintf(worker->why, sizeof(worker->why), "pages cannot hold the KV of this "
			 "model: at most %u layers", KVT_MAX_LAYERS);
		return code;
	}
	options.socket_path = worker->options.socket;
	options.fingerprint = print;
	options.geometry = &pages;
	options.label = "worker";
	code = kvt_client_connect(&worker->client, &options, &error);
	if (code) {
		snprintf(worker->why, sizeof(worker->why), "%.400s%s", error.text, code == -EINVAL
			 ? " (worker --geometry prints the options that kvtrunkd needs)" : "");
		return code;
	}
	/* Other arithmetic gives other bits for the same keys: part of the namespace. */
	kvt_namespace_digest(&(struct kvt_namespace_fields){
		.extra = KVT_FIELD_OF_TEXT(worker->compute->arithmetic) }, digest);
	code = kvt_namespace_open(worker->client, digest,
				  kvt_attn_describe(worker->compute->attention),
				  &worker->namespace_id);
	return code ? worker_failed(worker, code) : 0;
}

int worker_open_cache(struct worker *worker)
{
	struct kvt_attn_view views[KVT_MAX_LAYERS];
	int code = open_compute(worker);

	if (!code)
		code = connect_client(worker);
	if (!code)
		code = check_backend(worker);
	if (!code)
		code = map_pool(worker, views);
	if (!code)
		code = forward_open(&worker->forward, &worker->model, worker->compute, views,
				    worker->options.chunk, worker->why);
	return code;
}

int worker_fence(struct worker *worker, struct kvt_fence *ret_fence)
{
	const struct compute *compute = worker->compute;
	int code = compute->error;

	if (code) {
		snprintf(worker->why, sizeof(worker->why), "%s", compute->why);
		return code;
	}
	if (!compute->stream) {
		*ret_fence = KVT_IDLE;
		return 0;
	}
	code = kvt_fence_record(worker->client, compute->stream, ret_fence);
	return code ? worker_failed(worker, code) : 0;
}

const char *worker_daemon_flags(const struct worker *worker, uint32_t page_size, char *flags)
{
	struct kvt_pool_geometry pages;
	char print[KVT_FINGERPRINT_BYTES] = "";

	geometry(worker, &pages);
	fingerprint(worker, &pages, print); /* connecting refuses the same */
	snprintf(flags, WORKER_FLAGS_BYTES, "--page_size=%u --n_layers=%u --n_kv_heads=%u "
		 "--head_dim=%u --kv_type=%s --kv_order=page --fingerprint=%s", page_size,
		 pages.n_layers, pages.n_kv_heads, pages.head_dim,
		 worker_kv_types[worker->options.kv_type], print);
	return flags;
}

void worker_close_cache(struct worker *worker)
{
	/* Waits: nothing queued may touch the pool when the client unmaps it. The client also goes
	 * before the stream of its fences (compute_close()). */
	forward_close(&worker->forward);
	if (worker->client)
		kvt_client_close(worker->client, KVT_IDLE);
	worker->client = NULL;
}

void worker_close(struct worker *worker)
{
	worker_close_cache(worker);
	compute_close(worker->compute);
	worker->compute = NULL;
	tokenizer_close(&worker->tokenizer);
	model_close(&worker->model);
}
