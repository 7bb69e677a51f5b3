/* SPDX-License-Identifier: Apache-2.0 */
/* An engine in one file: it answers each line of its input, whatever happens to the daemon.
 *
 * In place of a model, K of a position is a hash of K before it and of the token, read from the
 * page table: one wrong page, and the answer is another. Everything else is what an engine does. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <kvtrunk.h>
#include <kvtrunk_keys.h>

enum { LAYERS = 2, CHUNK = 64, NEW = 16, MOST = 8192 };

struct engine {
	struct kvt_client *client;
	struct kvt_pool_view layers[LAYERS];
	uint32_t namespace_id;
};

struct request {
	uint32_t tokens[MOST], n_tokens, n_prompt;
	uint32_t computed; /* positions, of all attempts */
};

static const struct kvt_pool_geometry geometry = { .n_layers = LAYERS, .n_kv_heads = 1,
						   .head_dim = 16, .type = KVT_ELEMENT_FP32 };

/* Connect, also while the daemon starts. A daemon with another geometry refuses, and says how they
 * differ. */
static int engine_open(struct engine *engine)
{
	struct kvt_namespace_fields fields = { .salt = { .kind = KVT_FIELD_ABSENT } };
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error;
	struct kvt_pool pool;
	uint64_t digest[2];
	int rc;

	options.label = "engine";
	options.geometry = &geometry;
	options.connect_wait_ns = 30000000000; /* time for a successor */
	rc = kvt_client_connect(&engine->client, &options, &error);
	if (rc != 0) {
		fprintf(stderr, "engine: %s\n", error.text);
		return rc;
	}
	kvt_namespace_digest(&fields, digest); /* of the adapter and the tenant's salt, if any */
	rc = kvt_namespace_open(engine->client, digest, "engine", &engine->namespace_id);
	if (rc == 0)
		rc = kvt_pool_map(engine->client, &pool);
	for (uint32_t i = 0; rc == 0 && i < LAYERS; i++)
		rc = kvt_pool_view(engine->client, &pool, i, &engine->layers[i]);
	return rc;
}

/* Where K of a position lies: in a cached page, which is read only, or in one of our own. */
static uint32_t *k_of(const struct kvt_pool_view *layer, const uint32_t *pages, uint32_t position)
{
	return (uint32_t *)(void *)((char *)layer->k +
				    pages[position / layer->page_size] * layer->page_stride_bytes +
				    position % layer->page_size * layer->position_stride_bytes);
}

/* Compute positions [from, to). Returns the next token. */
static uint32_t forward(struct engine *engine, const struct kvt_seq *seq, const uint32_t *tokens,
			uint32_t from, uint32_t to)
{
	const uint32_t *pages = kvt_seq_pages(seq, NULL);
	uint32_t state = 0;

	for (uint32_t i = from; i < to; i++) {
		state = 0;
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			struct kvt_pool_view *view = &engine->layers[layer];

			state ^= i ? *k_of(view, pages, i - 1) : 0x811c9dc5;
			state = (state ^ tokens[i]) * 0x01000193;
			*k_of(view, pages, i) = state;
		}
	}
	return 'a' + (state >> 8) % 26;
}

/* ESTALE is one of two things. The daemon ended and nothing kept our session: connect again. Or
 * our prefix was reset or removed: the pages stay ours, and we publish nothing more. */
static int after(struct engine *engine, int rc)
{
	if (rc == -ESTALE && kvt_group_check(engine->client) == 0)
		return 0;
	return rc == -ESTALE ? -ECONNRESET : rc;
}

/* Others hold the pages for now: all, or so many that our share is used up. */
static bool is_full(const struct engine *engine)
{
	int reason = kvt_client_error(engine->client)->reason;

	return reason == KVT_REASON_ALL_LOCKED || reason == KVT_REASON_SHARE;
}

/* Prefill what is not cached, a chunk at a time. Other engines see each chunk at once. */
static int prefill(struct engine *engine, struct request *request, struct kvt_seq *seq,
		   uint32_t *ret_next)
{
	uint32_t at = kvt_seq_next(seq), end, n = request->n_tokens;
	int rc = 0;

	for (; rc == 0 && at < n; at = kvt_seq_next(seq)) {
		end = n - at > CHUNK ? at + CHUNK : n;
		*ret_next = forward(engine, seq, request->tokens, at, end);
		request->computed += end - at;
		rc = after(engine, kvt_seq_commit(seq, end, NULL, 0, KVT_IDLE,
						  end < n ? KVT_F_CHUNKED : 0));
	}
	return rc;
}

static int decode(struct engine *engine, struct request *request, struct kvt_seq *seq,
		  uint32_t next)
{
	uint32_t page_size = engine->layers[0].page_size, n_pages, at;
	int rc;

	while (request->n_tokens < request->n_prompt + NEW) {
		at = request->n_tokens;
		kvt_seq_pages(seq, &n_pages);
		rc = at / page_size < n_pages ? 0 : kvt_seq_extend(seq, 1);
		if (rc != 0) /* full: give everything back, or engines wait for each other */
			return rc == -ENOSPC || rc == -EDQUOT ? -EAGAIN : rc;
		request->tokens[request->n_tokens++] = next;
		next = forward(engine, seq, request->tokens, at, at + 1);
		request->computed++;
	}
	return 0;
}

/* One life of a sequence. The text so far stays in the request, so any failure can be followed by
 * another attempt, which finds cached what this one published. */
static int attempt(struct engine *engine, struct request *request)
{
	uint32_t *tokens = request->tokens, given = request->n_tokens, next = 0, more;
	struct kvt_seq *seq;
	int rc, end;

	rc = kvt_seq_begin(engine->client, engine->namespace_id, tokens, given, 0, 0, &seq);
	if (rc != 0)
		return is_full(engine) ? -EAGAIN : after(engine, rc);
	rc = prefill(engine, request, seq, &next);
	if (rc == 0)
		rc = decode(engine, request, seq, next);
	more = request->n_tokens - given; /* generated: others may find them, too */
	end = kvt_seq_end(seq, more ? given + more : 0, tokens + given, more, KVT_IDLE, 0);
	return rc != 0 ? rc : after(engine, end);
}

static int answer(struct engine *engine, struct request *request)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	int rc;

	while ((rc = attempt(engine, request)) != 0) {
		if (rc == -EAGAIN) {
			nanosleep(&pause, NULL);
		} else if (rc == -ECONNRESET) { /* no lease is left, and no page */
			kvt_client_close(engine->client, KVT_IDLE);
			engine->client = NULL;
			if (engine_open(engine) != 0)
				return rc;
		} else {
			fprintf(stderr, "engine: %s\n", kvt_client_error(engine->client)->text);
			return rc;
		}
	}
	return 0;
}

int main(void)
{
	static struct engine engine;
	static struct request request;
	static char line[MOST - NEW];
	int rc = engine_open(&engine);

	while (rc == 0 && fgets(line, sizeof(line), stdin)) {
		request = (struct request){ .n_prompt = (uint32_t)strlen(line) };
		for (uint32_t i = 0; line[i]; i++)
			request.tokens[request.n_tokens++] = (unsigned char)line[i];
		rc = answer(&engine, &request);
		if (rc != 0)
			break;
		printf("computed %u of %u: ", request.computed, request.n_tokens);
		for (uint32_t i = request.n_prompt; i < request.n_tokens; i++)
			putchar((int)request.tokens[i]);
		puts("");
		fflush(stdout);
	}
	if (engine.client)
		kvt_client_close(engine.client, KVT_IDLE);
	return rc != 0 || ferror(stdout);
}
