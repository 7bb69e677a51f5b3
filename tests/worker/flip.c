/* SPDX-License-Identifier: Apache-2.0 */

/* flip SOCKET PAGE: spoil one page of the pool, as a broken client could. */

#include <stdio.h>
#include <stdlib.h>

#include "kvtrunk.h"

int main(int argc, char **argv)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;
	struct kvt_pool pool;
	uint64_t page;
	unsigned char *bytes;

	if (argc != 3)
		return 2;
	options.socket_path = argv[1];
	page = strtoull(argv[2], NULL, 10);
	if (kvt_client_connect(&client, &options, &error) != 0) {
		fprintf(stderr, "flip: %s\n", error.text);
		return 1;
	}
	if (kvt_pool_map(client, &pool) != 0 || page >= pool.n_pages)
		return 1;
	bytes = (unsigned char *)pool.base + page * pool.page_bytes;
	for (uint64_t i = 2; i < pool.page_bytes; i += 4) /* fp32: the high half of the fraction */
		bytes[i] ^= 0x20;
	return kvt_client_close(client, KVT_IDLE) != 0;
}
