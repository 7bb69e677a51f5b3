/* SPDX-License-Identifier: Apache-2.0 */

/* The arena, read by the client itself: kvt_probe(), counters, and calls that send only the keys
 * that a probe did not find. */

#include "kvtrunk_operations.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/call.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/probe.h"
#include "libclient/wait.h"
#include "shm/racy.h"
#include "shm/walk.h"

#include <errno.h>
#include <stddef.h>

/* About as long as the longest common operations take. */
#define COUNTER_TRIES 4096u

/* A test clock is not ours: then a node with a TTL ends the walk, which reports less, never more.
 */
static uint64_t expiry_clock(const struct kvt_client *client)
{
	return client->info.test_clock ? UINT64_MAX : (uint64_t)kvt_now_ns();
}

/* Shorten a request to what follows `start`. False: unchanged, `start` does not fit it. */
static bool shorten_to(struct kvt_request *request, struct kvt_handle start)
{
	if (!request->keys || start.positions == 0 || start.positions > request->n_keys)
		return false;
	request->handle = start;
	request->keys += start.positions;
	request->n_keys -= start.positions;
	return true;
}

/* Probe for a request's keys and shorten it. False: unchanged, because nothing was found, or too
 * few keys, or the tree cannot be read. */
static bool shorten(const struct kvt_client *client, struct kvt_request *request)
{
	struct kvt_handle found;
	uint32_t id = request->namespace_id;

	if (request->n_keys < KVT_PROBE_KEYS || !request->keys || !client->arena.base ||
	    id >= client->n_opened || !client->opened[id].open)
		return false;
	return kvt_walk(&client->arena, id, client->opened[id].digest, request->root_key,
			request->keys, request->n_keys, expiry_clock(client), &found, NULL) == 0 &&
	       shorten_to(request, found);
}

/* Rest of a wait of `ttl_ms` that began at `begun_ns`: at least 1 ms, or 0 if `ttl_ms` is 0. */
static uint32_t time_left_ms(uint32_t ttl_ms, int64_t begun_ns)
{
	int64_t waited_ms = ttl_ms ? (kvt_now_ns() - begun_ns) / 1000000 : 0;

	return waited_ms < ttl_ms ? ttl_ms - (uint32_t)waited_ms : !!ttl_ms;
}

int kvt_client_call_known(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_handle start, struct kvt_result *ret_result)
{
	struct kvt_wait wait = { .started = false };
	struct kvt_request rest = *request;
	int rc = kvt_client_usable(client);
	bool given, shorter;
	int64_t begun_ns;

	if (rc != 0)
		return rc;
	given = shorten_to(&rest, start);
	shorter = given || shorten(client, &rest);
	begun_ns = shorter && request->ttl_ms ? kvt_now_ns() : 0;
	while ((rc = kvt_client_call_within(client, &rest, &wait, NULL, ret_result)) == -ESTALE &&
	       shorter && client->error.reason == KVT_REASON_HANDLE_STALE) {
		rest = *request;
		rest.ttl_ms = time_left_ms(request->ttl_ms, begun_ns);
		shorter = given && shorten(client, &rest);
		given = false;
	}
	return rc;
}

/* 0, or why the arena cannot be read. `instead`: the operation that asks the daemon. */
static int arena_readable(struct kvt_client *client, const char *what, const char *instead)
{
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (!client->arena.base)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "%s: the daemon withholds its arena (arena_visible = no): "
				       "use %s", what, instead);
	if (kvt_load_acquire(&client->arena.header->state) == KVT_ARENA_GONE) {
		kvt_client_look(client);
		kvt_client_lost(client, -ECONNRESET, "the daemon has shut down");
		return kvt_client_usable(client);
	}
	return 0;
}

int kvt_probe(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
	      uint32_t n_keys, struct kvt_handle *ret_handle, uint32_t *ret_matched)
{
	return kvt_probe_root(client, namespace_id, 0, keys, n_keys, ret_handle, ret_matched);
}

int kvt_probe_root(struct kvt_client *client, uint32_t namespace_id, uint64_t root_key,
		   const uint32_t *keys, uint32_t n_keys, struct kvt_handle *ret_handle,
		   uint32_t *ret_matched)
{
	struct kvt_handle handle;
	int rc = arena_readable(client, "probe", "MATCH");

	if (rc != 0)
		return rc;
	if (namespace_id >= client->n_opened || !client->opened[namespace_id].open)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_NAMESPACE, "probe: %s",
				       kvt_reason_text(KVT_REASON_NAMESPACE));
	rc = kvt_walk(&client->arena, namespace_id, client->opened[namespace_id].digest, root_key,
		      keys, n_keys, expiry_clock(client), &handle, NULL);
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

int kvt_counters_read(struct kvt_client *client, struct kvt_counters *ret_counters)
{
	const struct kvt_arena_header *header = client->arena.header;
	int rc = arena_readable(client, "counters", "kvt_stats()");
	struct kvt_counters copy;

	for (uint32_t tries = 0; rc == 0 && tries < COUNTER_TRIES; tries++) {
		/* Pairs with the release that ends a mutation: its counters are there. */
		uint64_t before = kvt_load_acquire(&header->mutation);

		if (before & 1) {
			kvt_cpu_relax();
			continue;
		}
		kvt_racy_copy((uint32_t *)&copy, (const uint32_t *)&header->counters,
			      sizeof(copy) / sizeof(uint32_t));
		/* Pairs with the release fence that begins a mutation: if a counter of it was read,
		 * so is its odd number. */
		kvt_fence_acquire();
		if (kvt_load_relaxed(&header->mutation) == before) {
			*ret_counters = copy;
			return 0;
		}
	}
	return rc ? rc : kvt_client_fail(client, -EAGAIN, 0,
					 "counters: they changed under every attempt: try again, "
					 "or use kvt_stats()");
}
