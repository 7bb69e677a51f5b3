/* SPDX-License-Identifier: Apache-2.0 */
/* The lock-free walk beside a tree that changes all the time: it never reports more than the truth.
 *
 * The truth at a moment cannot be read from outside. So the tree only ever has paths of a language:
 * pages are symbols, and in namespace n a symbol may be followed by those that are 1 + 2n or 2 + 2n
 * higher (mod N). The same symbols stand under many parents and in both namespaces; nodes are few
 * and recycled at once. A walk that followed a recycled node, a moved bucket or a half-written run
 * would report a path that never existed. Probers ask for paths with one forbidden step: nothing
 * beyond it may be reported.
 *
 * A prober then locks the reported prefix. If that succeeds, the handle must name exactly its keys:
 * a MATCH under the lock finds at least as much, unless the path was removed since. Or it begins
 * behind it: the table has the pages that a MATCH of all keys finds.
 *
 * Inputs: random trees and paths. Invariant: no race report, and no path that never existed. */
#include "kvtrunk_sequences.h"
#include "shm/walk.h"
#include "tests/lib/inprocess.h"

enum { PS = 4, N_PAGES = 40, N = 16, DEPTH = 8, CHANGES = 6000, PROBES = 40000 };

static struct inside inside;
static bool changing = true; /* atomic, as is the next */
static bool seen_enough;

struct actor {
	struct kvt_client *client;
	uint32_t ns[2];
	uint64_t seed;
	uint64_t hits, misses, races, locked, begun, stale, detached;
	pthread_t thread;
};

static uint32_t random_below(struct actor *actor, uint32_t n)
{
	actor->seed = actor->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(actor->seed >> 33) % n;
}

static void put_page(uint32_t *keys, uint32_t page, uint32_t symbol)
{
	for (uint32_t i = 0; i < PS; i++)
		keys[page * PS + i] = symbol * 100 + i;
}

/* A path of the language of namespace `which`, `pages` long. With `break_at` < pages the step into
 * that page is of the other language, or of none. */
static void make_path(struct actor *actor, uint32_t which, uint32_t pages, uint32_t break_at,
		      uint32_t *keys)
{
	uint32_t symbol = which * 3 + random_below(actor, 3); /* first symbols are disjoint too */

	for (uint32_t i = 0; i < pages; i++) {
		if (i == break_at)
			symbol = i ? symbol + 3 + random_below(actor, 4) - 2 * which * 2 :
				     (1 - which) * 3 + random_below(actor, 3);
		else if (i)
			symbol += 1 + 2 * which + random_below(actor, 2);
		symbol = (symbol + 4 * N) % N;
		put_page(keys, i, symbol);
	}
}

/* True if the step into page i is allowed. */
static bool step_allowed(const uint32_t *keys, uint32_t i, uint32_t which)
{
	uint32_t to = keys[i * PS] / 100, from, up;

	if (i == 0)
		return to / 3 == which;
	from = keys[(i - 1) * PS] / 100;
	up = (to + N - from) % N;
	return up == 1 + 2 * which || up == 2 + 2 * which;
}

static uint32_t allowed_pages(const uint32_t *keys, uint32_t pages, uint32_t which)
{
	uint32_t i = 0;

	while (i < pages && step_allowed(keys, i, which))
		i++;
	return i;
}

/* Make one change of the tree. */
static void change(struct actor *actor)
{
	uint32_t keys[DEPTH * PS], which = random_below(actor, 2), evicted;
	uint32_t pages = 1 + random_below(actor, DEPTH);
	struct kvt_client *client = actor->client;
	struct kvt_seq *seq;
	int rc;

	make_path(actor, which, pages, DEPTH, keys);
	INSIDE_CHECK(allowed_pages(keys, pages, which) == pages);
	switch (random_below(actor, 12)) {
	case 0:
		rc = kvt_evict(client, 1 + random_below(actor, 12), &evicted);
		break;
	case 1:
		pages = random_below(actor, pages);
		rc = kvt_remove(client, actor->ns[which], pages ? keys : NULL, pages * PS);
		break;
	case 2:
		rc = random_below(actor, 8) ? 0 : kvt_reset(client);
		break;
	default:
		rc = kvt_seq_begin(client, actor->ns[which], keys, pages * PS, 0, KVT_F_FULL, &seq);
		if (rc == -ENOSPC)
			return;
		INSIDE_CHECK(rc == 0);
		rc = kvt_seq_end(seq, pages * PS, NULL, 0, KVT_IDLE, 0);
		rc = rc == -ESTALE ? 0 : rc;
	}
	INSIDE_CHECK(rc == 0);
}

static void *change_all(void *context)
{
	for (uint32_t i = 0; i < CHANGES || !kvt_load_acquire(&seen_enough); i++)
		change(context);
	kvt_store_release(&changing, false);
	return NULL;
}

static void lock_and_compare(struct actor *actor, uint32_t ns, const uint32_t *keys,
			     uint32_t n_keys, struct kvt_handle handle)
{
	uint32_t pages[DEPTH], n;
	struct kvt_result result;
	struct kvt_lease lease;
	int rc = kvt_lock(actor->client, handle, &lease, pages, DEPTH, &n);

	INSIDE_CHECK(rc == 0 || rc == -ESTALE);
	if (rc != 0)
		return;
	actor->locked++;
	INSIDE_CHECK(n == handle.positions / PS);
	INSIDE_CHECK(kvt_match(actor->client, ns, keys, n_keys, 0, &result) == 0);
	if (result.matched < handle.positions) {
		struct kvt_lease second;

		/* A lock keeps pages, not a place in the tree. Only REMOVE or RESET can take that,
		 * and then the handle is stale. */
		rc = kvt_lock(actor->client, handle, &second, pages, DEPTH, &n);
		INSIDE_CHECK(rc == -ESTALE);
		actor->detached++;
	}
	INSIDE_CHECK(kvt_unlock(actor->client, lease, KVT_IDLE) == 0);
}

static void begin_and_compare(struct actor *actor, uint32_t ns, const uint32_t *keys,
			      uint32_t n_keys, struct kvt_handle handle)
{
	struct kvt_request request = {
		.op = KVT_OP_BEGIN, .flags = KVT_F_FULL, .namespace_id = ns, .handle = handle,
		.keys = keys + handle.positions, .n_keys = n_keys - handle.positions,
	};
	struct kvt_request end = { .op = KVT_OP_END, .fence = KVT_IDLE };
	uint32_t named = handle.positions / PS, pages[DEPTH];
	struct kvt_client *client = actor->client;
	struct kvt_result begun, found, ended;
	bool same;
	int rc = kvt_call(client, &request, &begun);

	INSIDE_CHECK(rc == 0 || rc == -ESTALE || rc == -ENOSPC);
	actor->stale += rc == -ESTALE;
	if (rc != 0)
		return;
	actor->begun++;
	INSIDE_CHECK(begun.matched >= handle.positions && begun.n_pages >= named);
	memcpy(pages, begun.pages, named * sizeof(*pages));
	kvt_result_release(client, &begun);
	INSIDE_CHECK(kvt_match(client, ns, keys, n_keys, KVT_F_LOCK, &found) == 0);
	same = found.n_pages >= named && memcmp(found.pages, pages, named * sizeof(*pages)) == 0;
	kvt_result_release(client, &found);
	INSIDE_CHECK(kvt_unlock(client, found.lease, KVT_IDLE) == 0);
	end.lease = begun.lease;
	INSIDE_CHECK(kvt_call(client, &end, &ended) == 0);
	INSIDE_CHECK(same || ended.flags & KVT_CQE_DETACHED);
}

static void probe(struct actor *actor, uint32_t i)
{
	uint32_t keys[DEPTH * PS], which = random_below(actor, 2), matched, allowed;
	uint32_t pages = 1 + random_below(actor, DEPTH);
	struct kvt_handle handle;
	int rc;

	make_path(actor, which, pages, random_below(actor, DEPTH + 4), keys);
	allowed = allowed_pages(keys, pages, which);
	rc = kvt_probe(actor->client, actor->ns[which], keys, pages * PS, &handle, &matched);
	if (rc == -EAGAIN) {
		actor->races++;
		return;
	}
	INSIDE_CHECK(rc == 0);
	INSIDE_CHECK(matched % PS == 0 && matched == handle.positions);
	if (matched / PS > allowed) {
		fprintf(stderr, "probe reports %u pages, only %u of them were ever possible\n",
			matched / PS, allowed);
		abort();
	}
	actor->hits += matched > 0;
	actor->misses += matched == 0;
	if (matched && i % 64 == 0)
		lock_and_compare(actor, actor->ns[which], keys, pages * PS, handle);
	else if (matched && i % 64 == 32)
		begin_and_compare(actor, actor->ns[which], keys, pages * PS, handle);
}

/* How long that takes depends on the scheduler: the tree changes until then. */
static bool saw_enough(const struct actor *actor)
{
	return actor->hits > 1000 && actor->misses > 1000 && actor->locked > 10 &&
	       actor->begun > 10 && actor->stale > 0 && actor->detached < actor->locked;
}

static void *probe_all(void *context)
{
	struct actor *actor = context;

	for (uint32_t i = 0; i < PROBES || kvt_load_acquire(&changing); i++) {
		probe(actor, i);
		if (saw_enough(actor))
			kvt_store_release(&seen_enough, true);
	}
	return NULL;
}

int main(void)
{
	struct kvt_core_config config = {
		.page_size = PS, .n_pages = N_PAGES, .max_nodes = 24, .hash_seed = 5,
	};
	struct actor actors[2] = { { .seed = 1 }, { .seed = 2 } };

	inside_init(&inside, &config);
	inside_start(&inside);
	for (int i = 0; i < 2; i++) {
		actors[i].client = inside_connect(&inside, 4, 8, 1024, 1024, 100000);
		actors[i].ns[0] = inside_namespace(&inside, actors[i].client, 1);
		actors[i].ns[1] = inside_namespace(&inside, actors[i].client, 2);
	}
	INSIDE_CHECK(pthread_create(&actors[0].thread, NULL, change_all, &actors[0]) == 0);
	INSIDE_CHECK(pthread_create(&actors[1].thread, NULL, probe_all, &actors[1]) == 0);
	for (int i = 0; i < 2; i++)
		pthread_join(actors[i].thread, NULL);
	printf("%llu hits, %llu misses, %llu gave up after races, %llu locked, %llu begun, "
	       "%llu stale, %llu detached\n",
	       (unsigned long long)actors[1].hits, (unsigned long long)actors[1].misses,
	       (unsigned long long)actors[1].races, (unsigned long long)actors[1].locked,
	       (unsigned long long)actors[1].begun, (unsigned long long)actors[1].stale,
	       (unsigned long long)actors[1].detached);
	INSIDE_CHECK(saw_enough(&actors[1]));
	for (int i = 0; i < 2; i++) {
		INSIDE_CHECK(kvt_client_close(actors[i].client, KVT_IDLE) == 0);
		inside_forget(&inside, actors[i].client);
	}
	INSIDE_CHECK(inside_audit(&inside) == 0);
	inside_destroy(&inside);
	return 0;
}
