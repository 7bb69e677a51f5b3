/* SPDX-License-Identifier: Apache-2.0 */

/* A worker's model, its connection, and what the two must agree on. */

#include <cblas.h>
#include <errno.h>
#include <string.h>

#include "kvtrunk_keys.h"
#include "worker.h"

/** Everything that must be equal in all processes that share this model's KV. */
static void fingerprint(const struct worker *worker, char *ret_text)
{
	snprintf(ret_text, KVT_FINGERPRINT_BYTES,
		 "llama2c:%016llx%016llx,tok:%016llx,kv:f32,hnd,page-major",
		 (unsigned long long)worker->model.digest[0],
		 (unsigned long long)worker->model.digest[1],
		 (unsigned long long)worker->tokenizer.digest[0]);
}

static uint64_t page_bytes(const struct worker *worker, uint32_t page_size)
{
	return 2ull * worker->model.n_layers * page_size * worker->model.kv_dim * sizeof(float);
}

int worker_open_model(struct worker *worker)
{
	const struct worker_options *o = &worker->options;
	int error;

	openblas_set_num_threads(1); /* one core a worker, and the same order of sums always */
	error = model_open(&worker->model, o->model, worker->why);

	if (!error)
		error = tokenizer_open(&worker->tokenizer, o->tokenizer, worker->model.vocab_size,
				       worker->why);
	return error;
}

int worker_open_cache(struct worker *worker)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	char print[KVT_FINGERPRINT_BYTES];
	const struct kvt_info *info;
	struct kvt_error error;
	uint64_t digest[2];
	int code;

	fingerprint(worker, print);
	options.socket_path = worker->options.socket;
	options.fingerprint = print;
	options.label = "worker";
	code = kvt_client_connect(&worker->client, &options, &error);
	if (code) {
		snprintf(worker->why, sizeof(worker->why), "%s", error.text);
		return code;
	}
	info = kvt_client_info(worker->client);
	if (info->page_bytes != page_bytes(worker, info->page_size)) {
		snprintf(worker->why, sizeof(worker->why), "the daemon's pages have %llu bytes; "
			 "this model's have %llu: start it with the options that worker "
			 "--geometry prints", (unsigned long long)info->page_bytes,
			 (unsigned long long)page_bytes(worker, info->page_size));
		return -EINVAL;
	}
	kvt_namespace_digest(&(struct kvt_namespace_fields){ .salt = { 0 } }, digest);
	code = kvt_namespace_open(worker->client, digest, "default", &worker->namespace_id);
	if (!code)
		code = kvt_pool_map(worker->client, &worker->pool);
	if (code) {
		snprintf(worker->why, sizeof(worker->why), "%s",
			 kvt_client_error(worker->client)->text);
		return code;
	}
	return forward_open(&worker->forward, &worker->model, info->page_size, info->n_pages,
			    worker->pool.base, worker->pool.bytes, worker->options.chunk,
			    worker->why);
}

const char *worker_daemon_flags(const struct worker *worker, uint32_t page_size, char *flags)
{
	char print[KVT_FINGERPRINT_BYTES];

	fingerprint(worker, print);
	snprintf(flags, WORKER_FLAGS_BYTES, "--page_size=%u --page_bytes=%llu --fingerprint=%s",
		 page_size, (unsigned long long)page_bytes(worker, page_size), print);
	return flags;
}

void worker_close_cache(struct worker *worker)
{
	forward_close(&worker->forward);
	if (worker->client)
		kvt_client_close(worker->client, KVT_IDLE);
	worker->client = NULL;
}

void worker_close(struct worker *worker)
{
	worker_close_cache(worker);
	tokenizer_close(&worker->tokenizer);
	model_close(&worker->model);
}
