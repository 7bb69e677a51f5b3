/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"
#include "shm/walk.h"

#include <errno.h>
#include <stddef.h>

/* A test clock is not ours: then a node with a TTL ends the walk, which reports less, never more.
 */
static uint64_t expiry_clock(const struct kvt_client *client)
{
	return client->info.test_clock ? UINT64_MAX : (uint64_t)kvt_client_now_ns();
}

bool kvt_client_shorten(struct kvt_client *client, struct kvt_request *request)
{
	const struct kvt_arena_header *header = client->arena.header;
	uint32_t id = request->namespace_id;

	if (request->n_keys < KVT_PROBE_KEYS || !request->keys || request->handle.node ||
	    request->handle.generation || request->handle.positions ||
	    kvt_client_usable(client) != 0)
		return false;
	if (!client->arena.base || header->abi_minor < KVT_ABI_MINOR_HANDLES ||
	    id >= client->n_opened || !client->opened[id].open)
		return false;
	if (kvt_walk(&client->arena, id, client->opened[id].digest, request->keys,
		     request->n_keys, expiry_clock(client), &request->handle, NULL) != 0 ||
	    request->handle.positions == 0)
		return false;
	request->keys += request->handle.positions;
	request->n_keys -= request->handle.positions;
	return true;
}

int kvt_probe(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, struct kvt_handle *ret_handle, uint32_t *ret_matched)
{
	struct kvt_handle handle;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (!client->arena.base)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "probe: the daemon withholds its arena "
				       "(arena_visible = no): use MATCH");
	if (kvt_load_acquire(&client->arena.header->state) == KVT_ARENA_GONE) {
		kvt_client_look(client);
		kvt_client_lost(client, -ECONNRESET, "the daemon has shut down");
		return kvt_client_usable(client);
	}
	if (namespace_id >= client->n_opened || !client->opened[namespace_id].open)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_NAMESPACE, "probe: %s",
				       kvt_reason_text(KVT_REASON_NAMESPACE));
	rc = kvt_walk(&client->arena, namespace_id, client->opened[namespace_id].digest, keys,
		      n_keys, expiry_clock(client), &handle, NULL);
	if (rc == -ENOENT || rc == -EINVAL) {
		/* Another namespace has the record now: nothing is cached. */
		handle = (struct kvt_handle){ 0, 0, 0 };
		rc = 0;
	}
	if (rc != 0)
		return kvt_client_fail(client, rc, 0,
				       "probe: the tree changed under every attempt: use MATCH");
	*ret_handle = handle;
	*ret_matched = handle.positions;
	return 0;
}
