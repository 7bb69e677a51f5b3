/* SPDX-License-Identifier: Apache-2.0 */

/* flip SOCKET PAGE: spoil one page of the pool like a broken client: in host memory, or on CUDA
 * device 0. */

#include <stdio.h>
#include <stdlib.h>

#include "kvt_cuda.h"
#include "kvtrunk.h"

/* The third byte of every four: in fp32 the high half of the fraction, in 16 bits the low one. */
static void spoil(unsigned char *bytes, uint64_t n)
{
	for (uint64_t i = 2; i < n; i += 4)
		bytes[i] ^= 0x20;
}

static int spoil_on_device(uint64_t address, uint64_t n)
{
	unsigned char *copy = malloc(n);
	struct kvt_cu_driver cuda;
	const char *missing;
	void *context;
	int error;

	if (!copy || kvt_cu_load(&cuda, &missing) != 0)
		return 1;
	error = cuda.primary_retain(&context, 0) || cuda.context_push(context) ||
		cuda.memory_download(copy, address, n, NULL) || cuda.stream_synchronize(NULL);
	if (!error) {
		spoil(copy, n);
		error = cuda.memory_upload(address, copy, n, NULL) ||
			cuda.stream_synchronize(NULL);
	}
	free(copy);
	return error;
}

int main(int argc, char **argv)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_pool pool;
	uint64_t bytes;
	uint32_t page;
	void *at;
	bool host;

	if (argc != 3)
		return 2;
	options.socket_path = argv[1];
	options.flags = KVT_ANY_GEOMETRY;
	page = (uint32_t)strtoul(argv[2], NULL, 10);
	if (kvt_client_connect(&client, &options, &error) != 0) {
		fprintf(stderr, "flip: %s\n", error.text);
		return 1;
	}
	host = kvt_client_info(client)->backend == KVT_POOL_HOST;
	if ((host ? kvt_pool_map(client, &pool) : kvt_pool_map_cuda(client, 0, 0, &pool)) != 0 ||
	    page >= pool.n_pages) {
		fprintf(stderr, "flip: %s\n", kvt_client_error(client)->text);
		return 1;
	}
	bytes = kvt_client_info(client)->page_bytes;
	at = kvt_page_address(&pool, page);
	if (host)
		spoil(at, bytes);
	else if (spoil_on_device((uint64_t)(uintptr_t)at, bytes) != 0)
		return 1;
	return kvt_client_close(client, KVT_IDLE) != 0;
}
