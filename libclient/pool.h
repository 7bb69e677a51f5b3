/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_POOL_H
#define KVT_CLIENT_POOL_H

#include "libclient/state.h"

struct kvt_pool;

/** Describe a mapped slab. */
void kvt_client_describe_pool(const struct kvt_client *client, uint32_t slab, void *base,
			      struct kvt_pool *ret_pool);

/** Get the size of a received object. -EPROTO: it is not sealed against shrinking. */
int kvt_client_sealed_bytes(int fd, uint64_t *ret_bytes);
/** Map an object read-write, out of forked children. `at`: in place of what is mapped there; NULL:
 * anywhere. */
int kvt_client_map_shared(int fd, uint64_t bytes, void *at, void **ret_base);

/** Unmap host slabs, and keep their addresses; map them there again. After a failure some are. */
int kvt_host_unmap_all(struct kvt_client *client);
int kvt_host_map_all(struct kvt_client *client);

#endif
