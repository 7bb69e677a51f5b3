/* SPDX-License-Identifier: Apache-2.0 */
#include <kvtrunk.h>
#include <kvtrunk_keys.h>
#include <stdio.h>

int main(void)
{
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_pool pool;
	struct kvt_seq *seq;
	uint32_t keys[1000], ns, n, page_size;
	uint64_t digest[2];

	for (uint32_t i = 0; i < 1000; i++)
		keys[i] = i; /* the prompt's token ids */
	kvt_namespace_digest(&(struct kvt_namespace_fields){ .salt = { 0 } }, digest);
	if (kvt_client_connect(&client, NULL, &error) != 0)
		return fprintf(stderr, "%s\n", error.text), 1;
	if (kvt_namespace_open(client, digest, "hello", &ns) != 0 ||
	    kvt_pool_map(client, &pool) != 0 ||
	    kvt_seq_begin(client, ns, keys, 1000, 64, 0, &seq) != 0)
		return fprintf(stderr, "%s\n", kvt_client_error(client)->text), 1;
	page_size = kvt_client_info(client)->page_size;
	printf("%u of 1000 positions need no prefill\n", kvt_seq_reusable(seq));
	for (uint32_t at = kvt_seq_next(seq); at < 1000; at = kvt_seq_next(seq)) {
		uint32_t end = at + 512 < 1000 ? at + 512 : 1000; /* one chunk of prefill */
		const uint32_t *pages = kvt_seq_pages(seq, &n);

		for (uint32_t i = at; i < end; i++) /* your kernel writes the KV of position i */
			*((uint32_t *)((char *)pool.base + pages[i / page_size] * pool.page_bytes) +
			  i % page_size) = keys[i];
		if (kvt_seq_commit(seq, end, NULL, 0, KVT_IDLE, KVT_F_CHUNKED) != 0)
			break; /* nothing more is shared; decode goes on */
	}
	kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0);
	return kvt_client_close(client, KVT_IDLE) != 0;
}
