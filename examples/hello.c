/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <kvtrunk.h>
#include <kvtrunk_keys.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 2, PROMPT = 1000, CHUNK = 512 };

/* Stands for your kernel: write K and V of positions [from, to) of one layer. */
static void compute(const struct kvt_pool_view *layer, const uint32_t *pages, const uint32_t *keys,
		    uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		for (uint32_t head = 0; head < layer->n_kv_heads; head++) {
			uint64_t at = pages[i / layer->page_size] * layer->page_stride_bytes +
				      head * layer->head_stride_bytes +
				      i % layer->page_size * layer->position_stride_bytes;

			memset((char *)layer->k + at, (int)keys[i],
			       layer->head_dim * layer->element_bytes);
			memset((char *)layer->v + at, (int)keys[i],
			       layer->head_dim * layer->element_bytes);
		}
}

int main(void)
{
	const struct kvt_pool_geometry geometry = { .n_layers = LAYERS, .n_kv_heads = 2,
						    .head_dim = 64, .type = KVT_ELEMENT_BF16 };
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_pool_view layers[LAYERS];
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_pool pool;
	struct kvt_seq *seq;
	uint32_t keys[PROMPT], ns;
	uint64_t digest[2];

	for (uint32_t i = 0; i < PROMPT; i++)
		keys[i] = i; /* the prompt's token ids */
	kvt_namespace_digest(&(struct kvt_namespace_fields){ .salt = { 0 } }, digest);
	options.geometry = &geometry; /* refused if the daemon's differs */
	if (kvt_client_connect(&client, &options, &error) != 0)
		return fprintf(stderr, "%s\n", error.text), 1;
	if (kvt_namespace_open(client, digest, "hello", &ns) != 0 ||
	    kvt_pool_map(client, &pool) != 0 ||
	    kvt_pool_view(client, &pool, 0, &layers[0]) != 0 ||
	    kvt_pool_view(client, &pool, 1, &layers[1]) != 0 ||
	    kvt_seq_begin(client, ns, keys, PROMPT, 64, 0, &seq) != 0)
		return fprintf(stderr, "%s\n", kvt_client_error(client)->text), 1;
	printf("%u of %u positions need no prefill\n", kvt_seq_reusable(seq), PROMPT);
	for (uint32_t at = kvt_seq_next(seq); at < PROMPT; at = kvt_seq_next(seq)) {
		uint32_t end = PROMPT - at > CHUNK ? at + CHUNK : PROMPT;
		int rc;

		for (uint32_t i = 0; i < LAYERS; i++)
			compute(&layers[i], kvt_seq_pages(seq, NULL), keys, at, end);
		rc = kvt_seq_commit(seq, end, NULL, 0, KVT_IDLE, KVT_F_CHUNKED);
		if (rc != 0 && rc != -ESTALE) /* ESTALE: reset; its pages stay private */
			return fprintf(stderr, "%s\n", kvt_client_error(client)->text), 1;
	}
	kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0);
	return kvt_client_close(client, KVT_IDLE) != 0;
}
