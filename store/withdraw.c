/* SPDX-License-Identifier: Apache-2.0 */
/* Dropping all pages, and withdrawing damaged ones (withdraw.h). Called by main.c and follow.c. */
#include "store/withdraw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtrunk_operations.h"
#include "kvtrunk_wire_arena.h"
#include "libclient/state.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/racy.h"
#include "shm/size.h"
#include "store/store.h"

#define AGAIN_NS 100000000ull /* until another attempt to withdraw */
#define SECOND_NS 1000000000ull
#define CLOCK_S 2u /* times are cut to seconds, and the clock of time() is late by a tick */

/* A prefix of the pool. */
struct path {
	uint64_t digest[2]; /* of its namespace */
	uint64_t root_key;
	uint32_t n_keys;
	uint32_t keys[];
};

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

/* Check that a page is what the keys of its path name. */
static bool is_named(const struct kvt_store *store, const struct path *path, uint32_t page)
{
	const struct kvt_info *info = &store->known.info;
	struct kvt_chain name;

	kvt_chain_root(info, path->digest, path->root_key, &name);
	for (uint32_t at = 0; at < path->n_keys; at += info->page_size)
		kvt_chain_next(&name, path->keys + at, info->page_size, &name);
	return memcmp(&name, kvt_known_name(&store->known, page), sizeof(name)) == 0;
}

/* Find the keys of a cached page's path. -EAGAIN: it is leaving; -ENOMEM. */
static int path_of(const struct kvt_store *store, uint32_t page, struct path **ret_path)
{
	const struct kvt_known *known = &store->known;
	uint32_t size = known->info.page_size, n = 0, root = page;
	struct path *path;
	bool whole = true;

	for (uint32_t at = page; at; at = known->pages[at].parent, n++)
		root = at;
	path = malloc(sizeof(*path) + (size_t)n * size * sizeof(*path->keys));
	if (!path)
		return -ENOMEM;
	path->n_keys = n * size;
	path->root_key = store->scrub.pages[root].root_key;
	memcpy(path->digest, known->digests[store->scrub.pages[root].namespace_id],
	       sizeof(path->digest));
	for (uint32_t at = page; at && whole; at = known->pages[at].parent)
		whole = read_keys(&store->client->arena, at, path->keys + (size_t)--n * size);
	if (whole && is_named(store, path, page)) {
		*ret_path = path;
		return 0;
	}
	free(path);
	return -EAGAIN;
}

/* True if the daemon takes fewer keys at once than the area has. */
static bool too_many_keys(const struct kvt_store *store, int rc)
{
	return rc == -EINVAL && kvt_client_error(store->client)->reason == KVT_REASON_BAD_RANGE;
}

/* Remove a prefix; one that is too long for the area of keys, or that nothing can be split off in
 * front of, for want of nodes, from an earlier page on. */
static int remove_path(struct kvt_store *store, const struct path *path)
{
	uint32_t size = store->known.info.page_size;
	struct kvt_request remove = {
		.op = KVT_OP_REMOVE, .flags = KVT_F_DAMAGED, .keys = path->keys,
		.n_keys = path->n_keys, .root_key = path->root_key,
	};
	struct kvt_result result = { .state = 0 };
	int rc = kvt_namespace_open(store->client, path->digest, NULL, &remove.namespace_id);

	if (rc != 0)
		return rc;
	while ((rc = kvt_call(store->client, &remove, &result)) != 0 && remove.n_keys > size &&
	       (rc == -ENOSPC || rc == -E2BIG || too_many_keys(store, rc)))
		remove.n_keys -= size;
	if (rc == 0 && result.state)
		kvt_store_say(store, "a prefix of %u page%s is withdrawn from page %u on; %u "
			      "lease%s held it, told by the next COMMIT", path->n_keys / size,
			      kvt_plural(path->n_keys / size), remove.n_keys / size,
			      result.lock_ref, kvt_plural(result.lock_ref));
	kvt_result_release(store->client, &result);
	kvt_namespace_close(store->client, remove.namespace_id);
	return rc;
}

/* Remove a page, and all behind it, from the pool, if that has it. */
static int remove_page(struct kvt_store *store, const struct kvt_chain *name)
{
	uint32_t page = kvt_known_find(&store->known, name);
	struct path *path;
	int rc = page ? path_of(store, page, &path) : 0;

	if (!page || rc != 0)
		return rc;
	/* That of the last load: a session has few open at a time. */
	if (store->loads.namespace_id)
		kvt_namespace_close(store->client, store->loads.namespace_id);
	store->loads.namespace_id = 0;
	rc = remove_path(store, path);
	free(path);
	return rc;
}

/* Return the time since when copies may be wrong, as they tell it. Clocks may have been set. */
static uint32_t wrong_since(const struct kvt_damage *damage)
{
	uint64_t ago_ns = (uint64_t)kvt_now_ns() - damage->right_ns;
	uint32_t by_now = (uint32_t)((uint64_t)time(NULL) - ago_ns / SECOND_NS);

	return (by_now < damage->right_s ? by_now : damage->right_s) - CLOCK_S;
}

/* Pin the copy of a damaged page, if it is as the page was at first. Returns its entry, 0: it is
 * not, or there is none. */
static uint32_t pin_right(struct kvt_store *store)
{
	const struct kvt_chain *name = kvt_known_name(&store->known, store->damage.page);
	size_t n = store->scrub.n_sums;
	uint32_t entry = kvt_tier_pin(store->tier, name), *sums = calloc(n, sizeof(*sums));
	bool right = false;

	if (entry && sums) {
		kvt_slabs_sum(&store->slabs, store->damage.page,
			      kvt_tier_record(store->tier, entry), sums);
		right = memcmp(sums, store->damage.first_sums, n * sizeof(*sums)) == 0;
	}
	if (entry && !right)
		kvt_tier_unpin(store->tier, entry, false);
	free(sums);
	return right ? entry : 0;
}

/* Forget wrong copies, and note the name of a damaged page for all instances: at once. */
static void publish(struct kvt_store *store)
{
	struct kvt_withdrawal *withdrawal = &store->withdrawal;
	struct kvt_tier *tier = store->tier;
	uint32_t n;

	kvt_loads_end(store);
	kvt_tier_lock(tier);
	store->host->withdrawals[tier->withdrawals % KVT_WITHDRAWALS] = withdrawal->name;
	n = kvt_tier_forget(tier, &withdrawal->pages, &withdrawal->name, withdrawal->since,
			    withdrawal->stays);
	kvt_file_forget(store->host->file, &withdrawal->slots, withdrawal->since);
	kvt_tier_unlock(tier);
	if (withdrawal->stays)
		kvt_tier_unpin(tier, withdrawal->stays, false);
	withdrawal->open = false;
	kvt_store_say(store, "%u copies of it and of what is behind it are forgotten%s", n,
		      withdrawal->stays ? "; its own is as it was, and stays" : "");
}

/* Take a withdrawal. False: it was too long ago. */
static bool take(const struct kvt_store *store, uint32_t number, struct kvt_chain *ret_name)
{
	bool there;

	kvt_tier_lock(store->tier);
	there = store->tier->withdrawals - number <= KVT_WITHDRAWALS;
	*ret_name = store->host->withdrawals[number % KVT_WITHDRAWALS];
	kvt_tier_unlock(store->tier);
	return there;
}

/* Take all records that there are: what is known then is what requests find. */
static int settle(struct kvt_store *store)
{
	int rc = kvt_store_follow(store);

	return rc < 0 ? rc : store->current ? kvt_known_lose_behind(&store->known) : -EAGAIN;
}

/* Remove all from a pool that may have what is no longer noted. */
static int reset(struct kvt_store *store)
{
	int rc = kvt_reset(store->client);

	if (rc == 0)
		kvt_store_say(store, "more than %u pages were withdrawn that this instance did not "
			      "notice: its cache is reset", KVT_WITHDRAWALS);
	return rc;
}

/* Remove from this pool what was withdrawn until the number n. */
static int follow_withdrawals(struct kvt_store *store, uint32_t n)
{
	uint32_t *done = &store->share.withdrawn;

	while (*done != n) {
		struct kvt_chain name;
		bool noted = take(store, *done, &name);
		int rc = settle(store);

		if (rc == 0)
			rc = noted ? remove_page(store, &name) : reset(store);
		if (rc != 0)
			return rc;
		*done = noted ? *done + 1 : n;
	}
	return settle(store);
}

/* Note that a withdrawal did not succeed: say so once, and try again later. */
static void put_off(struct kvt_store *store, int rc)
{
	if (!store->again_ns && store->feed)
		kvt_store_say(store, "what was withdrawn cannot be removed yet: %s; until then "
			      "nothing is copied and read again", strerror(-rc));
	store->again_ns = (uint64_t)kvt_now_ns() + AGAIN_NS;
}

/* Say what was found, and keep of it what the pool may not keep. */
static void begin(struct kvt_store *store)
{
	struct kvt_withdrawal *withdrawal = &store->withdrawal;
	const struct kvt_damage *damage = &store->damage;
	const struct kvt_known_page *page = &store->known.pages[damage->page];
	double seconds = (double)((uint64_t)kvt_now_ns() - damage->right_ns) / 1e9;
	uint32_t sealer = 0;

	kvt_page_sealer(store->client, damage->page, &sealer);
	kvt_store_say(store, "page %u was written after it was sealed: %u of %u pieces differ, "
		      "from piece %u to %u; it was right %.1f s ago. Session %u sealed it; any one "
		      "that was open since may have written: the daemon's log has them "
		      "(event=page_damaged)", damage->page,
		      damage->n_pieces, store->scrub.n_sums, damage->first, damage->last, seconds,
		      sealer);
	if (store->host->remote)
		kvt_store_say(store, "what the distributed store took in these %.1f s may be "
			      "computed from it, and stays there", seconds);
	*withdrawal = (struct kvt_withdrawal){
		.open = true, .since = wrong_since(damage), .stays = pin_right(store),
		.name = page->is_side ? store->known.pages[page->parent].chain : page->chain,
	};
	kvt_tier_scan_open(store->tier, &withdrawal->pages);
	kvt_file_scan_open(store->host->file, &withdrawal->slots);
	store->damage.n_pieces = 0;
}

void kvt_store_withdraw(struct kvt_store *store)
{
	struct kvt_withdrawal *withdrawal = &store->withdrawal;

	if (!withdrawal->open)
		begin(store);
	if (kvt_tier_scan(store->tier, &withdrawal->pages, withdrawal->since) &&
	    kvt_file_scan(store->host->file, &withdrawal->slots, withdrawal->since))
		publish(store);
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
	uint32_t drops = kvt_load_acquire(&store->tier->drops), n;
	int rc;

	if (!store->client || (drops == store->share.drops && kvt_store_is_clean(store)))
		return;
	kvt_loads_end(store);
	if (!store->current || (uint64_t)kvt_now_ns() < store->again_ns)
		return; /* until it is done nothing is copied */
	kvt_tier_lock(store->tier);
	drops = store->tier->drops;
	n = store->tier->withdrawals;
	kvt_tier_unlock(store->tier);
	rc = follow_withdrawals(store, n);
	if (rc != 0 && rc != -EAGAIN)
		put_off(store, rc);
	if (rc != 0)
		return;
	store->again_ns = 0;
	if (drops == store->share.drops)
		store->known.sweep_at = 1; /* what is left in the pool is good */
	else
		kvt_known_keep_out(&store->known);
	store->share.drops = drops;
}
