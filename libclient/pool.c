/* SPDX-License-Identifier: Apache-2.0 */

/* The pool in this process: slabs of host memory, and where KV lies in a slab. */

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "kvtrunk_pool.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "shm/geometry.h"

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static int map_slab(struct kvt_client *client, struct kvt_client_slab *slab)
{
	const struct kvt_info *info = &client->info;
	uint64_t real, bytes;
	struct stat st;
	void *base;
	int rc = kvt_client_sealed_bytes(slab->fd, &real);

	if (rc != 0 || fstat(slab->fd, &st) != 0)
		return kvt_client_fail(client, -EPROTO, 0, "corrupt: the pool is not sealed");
	/* Huge pages are mapped whole; st_blksize is their size. */
	bytes = round_up(info->pool_bytes, st.st_blksize > 0 ? (uint64_t)st.st_blksize : 1);
	if (bytes > real)
		bytes = real;
	if (bytes < info->page_bytes * info->n_pages)
		return kvt_client_fail(client, -EPROTO, 0,
				       "corrupt: the pool has %llu bytes, %llu are needed",
				       (unsigned long long)real,
				       (unsigned long long)info->pool_bytes);
	rc = kvt_client_map_shared(slab->fd, bytes, NULL, &base);
	if (rc != 0)
		return kvt_client_fail(client, rc, 0, "cannot map the pool of %llu bytes: %s",
				       (unsigned long long)bytes, kvt_errno_name(rc));
	slab->base = base;
	slab->base_bytes = bytes;
	return 0;
}

int kvt_host_unmap_all(struct kvt_client *client)
{
	for (uint32_t i = 0; i < client->n_slabs; i++) {
		const struct kvt_client_slab *slab = &client->slabs[i];

		/* Nothing else may get the addresses, which tensors keep. */
		if (slab->base &&
		    mmap(slab->base, slab->base_bytes, PROT_NONE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
			    MAP_FAILED)
			return kvt_client_fail(client, -errno, 0, "cannot unmap slab %u: %s", i,
					       kvt_errno_name(errno));
	}
	return 0;
}

int kvt_host_map_all(struct kvt_client *client)
{
	for (uint32_t i = 0; i < client->n_slabs; i++) {
		struct kvt_client_slab *slab = &client->slabs[i];
		int rc = slab->base ? kvt_client_map_shared(slab->fd, slab->base_bytes, slab->base,
							    &slab->base)
				    : 0;

		if (rc != 0)
			return kvt_client_fail(client, rc, 0, "cannot map slab %u again: %s", i,
					       kvt_errno_name(rc));
	}
	return 0;
}

void kvt_client_describe_pool(const struct kvt_client *client, uint32_t slab, void *base,
			      struct kvt_pool *ret_pool)
{
	const struct kvt_info *info = &client->info;
	bool by_layer = info->geometry.n_layers && info->geometry.order == KVT_ORDER_LAYER;

	*ret_pool = (struct kvt_pool){
		.base = base,
		.bytes = info->pool_bytes,
		.n_pages = info->n_pages,
		.slab = slab,
		.reserved = by_layer ? 0 : info->page_bytes, /* kvt_page_address() */
	};
}

void *kvt_page_address(const struct kvt_pool *pool, uint32_t page)
{
	if (!pool->base || !pool->reserved || page >= pool->n_pages)
		return NULL;
	return (char *)pool->base + page * pool->reserved;
}

int kvt_pool_map_slab(struct kvt_client *client, uint32_t slab, struct kvt_pool *ret_pool)
{
	const struct kvt_info *info = &client->info;
	struct kvt_client_slab *from = &client->slabs[slab % KVT_MAX_SLABS];
	KVT_KEEP_ERRNO;
	int rc;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc == 0)
		rc = kvt_client_awake(client);
	if (rc != 0)
		return rc;
	if (client->n_slabs && slab >= client->n_slabs)
		return kvt_client_fail(client, -EINVAL, 0, "slab %u of a pool of %u: they are "
				       "counted from 0", slab, client->n_slabs);
	if (info->backend != KVT_POOL_HOST || !client->n_slabs || from->fd < 0)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       info->backend == KVT_POOL_HOST
					       ? "an observer gets no pool: connect without "
						 "KVT_HELLO_OBSERVE"
					       : "the pool is device memory: use "
						 "kvt_pool_map_cuda()");
	rc = from->base ? 0 : map_slab(client, from);
	if (rc != 0)
		return rc;
	kvt_client_describe_pool(client, slab, from->base, ret_pool);
	return 0;
}

int kvt_pool_map(struct kvt_client *client, struct kvt_pool *ret_pool)
{
	uint32_t rank = client->info.rank;

	return kvt_pool_map_slab(client, rank < client->n_slabs ? rank : 0, ret_pool);
}

int kvt_pool_pieces(struct kvt_client *client, struct kvt_pool_piece *ret_pieces)
{
	const struct kvt_info *info = &client->info;

	if (kvt_client_forked(client))
		return -ECHILD;
	return (int)kvt_pool_geometry_pieces(info->geometry.n_layers ? &info->geometry : NULL,
					     info->page_size, info->n_pages, info->page_bytes,
					     ret_pieces);
}

int kvt_pool_view(struct kvt_client *client, const struct kvt_pool *pool, uint32_t layer,
		  struct kvt_pool_view *ret_view)
{
	const struct kvt_info *info = &client->info;
	const struct kvt_pool_geometry *geometry = &info->geometry;

	if (kvt_client_forked(client))
		return -ECHILD;
	if (!geometry->n_layers)
		return kvt_client_fail(client, -ENODATA, 0, "the daemon was given page_bytes only: "
				       "give it n_layers, n_kv_heads, head_dim and kv_type");
	if (layer >= geometry->n_layers)
		return kvt_client_fail(client, -EINVAL, 0, "layer %u of %u: they are counted from "
				       "0", layer, geometry->n_layers);
	if (!pool->base || pool->n_pages != info->n_pages || pool->bytes != info->pool_bytes)
		return kvt_client_fail(client, -EINVAL, 0, "this is no slab of this client: get it "
				       "from kvt_pool_map()");
	kvt_pool_geometry_view(geometry, info->page_size, info->n_pages, pool->base, layer,
			       ret_view);
	return 0;
}
