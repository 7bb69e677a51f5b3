/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping all pages, and withdrawing damaged ones (withdraw.h). Called by main.c and follow.c. */
#include "store/withdraw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_operations.h"
#include "libclient/state.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/racy.h"
#include "store/store.h"

/* Read the keys of a page of the path, as they are now. */
static bool read_keys(const struct kvt_arena_view *arena, uint32_t page, uint32_t *ret_keys)
{
	uint32_t slot = page < arena->n_pages ? kvt_load_relaxed(&arena->pages[page].slot) : 0;

	if (slot == 0 || slot >= arena->n_slots)
		return false;
	kvt_racy_copy(ret_keys, arena->slot_keys + (size_t)slot * arena->page_size,
		      arena->page_size);
	return true;
}

/* Compute the name of a prefix. */
static struct kvt_chain name_of(const struct kvt_withdrawal *prefix, const struct kvt_info *info)
{
	struct kvt_chain name;

	kvt_chain_root(info, prefix->digest, prefix->root_key, &name);
	for (uint32_t at = 0; at < prefix->n_keys; at += info->page_size)
		kvt_chain_next(&name, prefix->keys + at, info->page_size, &name);
	return name;
}

/* Find the keys of a cached page's path. NULL: it has left meanwhile, so that a good one will be
 * computed, or there is no memory. */
static struct kvt_withdrawal *path_of(const struct kvt_store *store, uint32_t page)
{
	const struct kvt_known *known = &store->known;
	uint32_t size = known->info.page_size, n = 0, root = page;
	struct kvt_withdrawal *path;
	bool whole = true;

	for (uint32_t at = page; at; at = known->pages[at].parent, n++) {
		root = at;
		if (!kvt_known_name(known, at))
			return NULL;
	}
	path = malloc(sizeof(*path) + (size_t)n * size * sizeof(*path->keys));
	if (!path)
		return NULL;
	path->name = *kvt_known_name(known, page);
	path->n_keys = n * size;
	path->root_key = store->scrub.pages[root].root_key;
	memcpy(path->digest, known->digests[store->scrub.pages[root].namespace_id],
	       sizeof(path->digest));
	for (uint32_t at = page; at && whole; at = known->pages[at].parent)
		whole = read_keys(&store->client->arena, at, path->keys + (size_t)--n * size);
	if (whole) {
		struct kvt_chain name = name_of(path, &known->info);

		whole = memcmp(&name, &path->name, sizeof(name)) == 0;
	}
	if (whole)
		return path;
	free(path);
	return NULL;
}

/* Note a prefix for all instances, and forget all copies, at once. `path` NULL: only this. */
static void publish(struct kvt_store *store, struct kvt_withdrawal *path)
{
	struct kvt_host *host = store->host;
	struct kvt_withdrawal **place;

	kvt_loads_end(store);
	kvt_tier_lock(store->tier);
	place = &host->withdrawals[host->n_withdrawals % KVT_WITHDRAWALS];
	free(*place);
	*place = path;
	kvt_store_release(&host->n_withdrawals, host->n_withdrawals + 1);
	kvt_tier_clear(store->tier);
	kvt_file_clear(host->file, store->instance, store->epoch);
	kvt_tier_unlock(store->tier);
}

/* Take a copy of a withdrawal. NULL: it is none of this pool, or was too long ago. */
static struct kvt_withdrawal *take(const struct kvt_store *store, uint32_t number)
{
	const struct kvt_host *host = store->host;
	struct kvt_withdrawal *copy = NULL;
	const struct kvt_withdrawal *path;
	size_t bytes;

	kvt_tier_lock(store->tier);
	path = host->n_withdrawals - number <= KVT_WITHDRAWALS ?
	       host->withdrawals[number % KVT_WITHDRAWALS] : NULL;
	bytes = path ? sizeof(*path) + path->n_keys * sizeof(*path->keys) : 0;
	copy = path ? malloc(bytes) : NULL;
	if (copy)
		memcpy(copy, path, bytes);
	kvt_tier_unlock(store->tier);
	return copy;
}

/* Take all records that there are. */
static int follow_all(struct kvt_store *store)
{
	int rc;

	do
		rc = kvt_store_follow(store);
	while (rc > 0 && !store->current);
	return rc < 0 ? rc : store->current ? 0 : -EAGAIN;
}

/* Remove a prefix from the pool. Keys of another model have other names. A negative error: it may
 * still be there. */
static int remove_prefix(struct kvt_store *store, const struct kvt_withdrawal *path)
{
	uint32_t page = kvt_known_find(&store->known, &path->name);
	struct kvt_request remove = {
		.op = KVT_OP_REMOVE, .flags = KVT_F_DAMAGED, .keys = path->keys,
		.n_keys = path->n_keys, .root_key = path->root_key,
	};
	struct kvt_chain name = name_of(path, &store->known.info);
	struct kvt_result result = { .state = 0 };
	int rc;

	if (memcmp(&name, &path->name, sizeof(name)) != 0)
		return 0;
	if (path->root_key)
		remove.flags |= KVT_F_ROOT_KEY;
	rc = kvt_namespace_open(store->client, path->digest, "kvtstored", &remove.namespace_id);
	if (rc != 0)
		return rc;
	rc = kvt_call(store->client, &remove, &result);
	if (rc == 0 && result.state)
		kvt_store_say(store, "%u pages of a prefix, and what is behind the last one, are "
			      "withdrawn; %u leases hold it: their next COMMIT is told",
			      path->n_keys / store->known.info.page_size, result.lock_ref);
	kvt_result_release(store->client, &result);
	kvt_namespace_close(store->client, remove.namespace_id);
	if (rc == 0 && page)
		rc = follow_all(store);
	return rc == 0 && page ? kvt_known_lose_behind(&store->known, page) : rc;
}

/* Remove from this pool what was withdrawn since the last call. False: it did not succeed. */
static bool follow_withdrawals(struct kvt_store *store)
{
	uint32_t n = kvt_load_acquire(&store->host->n_withdrawals);

	for (; store->withdrawn != n; store->withdrawn++) {
		struct kvt_withdrawal *path = take(store, store->withdrawn);
		int rc = path ? remove_prefix(store, path) : 0;

		free(path);
		if (rc != 0)
			return false;
	}
	return true;
}

void kvt_store_withdraw(struct kvt_store *store)
{
	const struct kvt_damage *damage = &store->damage;
	const struct kvt_known_page *page = &store->known.pages[damage->page];
	struct kvt_withdrawal *path = path_of(store, page->is_side ? page->parent : damage->page);
	double seconds = (double)((uint64_t)kvt_now_ns() - damage->right_ns) / 1e9;
	uint32_t sealer = 0;

	kvt_page_sealer(store->client, damage->page, &sealer);
	kvt_store_say(store, "page %u was written after it was sealed: %u of %u pieces differ, "
		      "from piece %u to %u; it was right %.1f s ago. Session %u sealed it; any one "
		      "that was open since may have written: the daemon's log has them "
		      "(event=page_damaged). All copies are dropped%s", damage->page,
		      damage->n_pieces, store->scrub.n_sums, damage->first, damage->last, seconds,
		      sealer, !path ? "; the page has left the pool" : "");
	if (store->host->remote)
		kvt_store_say(store, "what the distributed store took in these %.1f s may be "
			      "computed from it, and stays there", seconds);
	store->damage.n_pieces = 0;
	publish(store, path);
}

/* ---- all instances */

void kvt_store_drop(struct kvt_store *store)
{
	bool reset = store->reset;

	kvt_loads_end(store);
	kvt_tier_lock(store->tier);
	kvt_tier_clear(store->tier);
	kvt_file_clear(store->host->file, store->instance, store->epoch);
	if (reset) /* what is cached here is younger than the RESET */
		store->share.drops++;
	kvt_tier_unlock(store->tier);
	store->reset = false;
}

void kvt_store_notice(struct kvt_store *store)
{
	uint32_t drops = kvt_load_acquire(&store->tier->drops);

	if (!store->client || (drops == store->share.drops && kvt_store_is_clean(store)))
		return;
	kvt_loads_end(store);
	if (!store->current || !follow_withdrawals(store))
		return; /* until it is done nothing is copied */
	/* What is left in the pool is good, unless there was a RESET or a drop, too. */
	if (drops - store->share.drops == store->withdrawn - store->noticed)
		store->known.sweep_at = 1;
	else
		kvt_known_keep_out(&store->known);
	store->share.drops = drops;
	store->noticed = store->withdrawn;
}
