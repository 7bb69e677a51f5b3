/* SPDX-License-Identifier: Apache-2.0 */

/* Simulated caches without kvtrunk, and the flat cache: see private.h.
 *
 * Inputs: a trace, a pool's size, routers. Invariants: a pool's used pages never exceed its size;
 * the list from old to young holds exactly the cached, unlocked pages. Callers: replay/main.c;
 * kvtbench scenarios for the flat cache. */

#include "lab/replay/private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/replay/steps.h"
#include "lab/trace/tree.h"

#define PROGRESS_EVERY 256u

/* ---- one pool ---- */

/* A cached page in the list from old to young. Entry 0 is the head. */
struct entry {
	uint32_t older;
	uint32_t younger;
	uint32_t page;
};

struct pool {
	struct entry *entries;
	uint32_t *at; /* by page of the tree: its entry, 0 if not cached */
	uint32_t usable;
	uint32_t free_pages;
	uint32_t listed;     /* cached and unlocked pages */
	uint32_t spare;      /* unused entries, linked by `younger` */
	struct kvt_private_result result;
};

static int pool_create(struct pool *pool, uint32_t usable, uint32_t n_pages)
{
	pool->entries = calloc((size_t)usable + 1, sizeof(*pool->entries));
	pool->at = calloc(n_pages, sizeof(*pool->at));
	if (!pool->entries || !pool->at)
		return -ENOMEM;
	pool->usable = usable;
	pool->free_pages = usable;
	for (uint32_t i = 1; i <= usable; i++)
		pool->entries[i].younger = i < usable ? i + 1 : 0;
	pool->spare = usable ? 1 : 0;
	return 0;
}

static void pool_free(struct pool *pool)
{
	free(pool->entries);
	free(pool->at);
}

static void pool_unlink(struct pool *pool, uint32_t entry)
{
	struct entry *e = &pool->entries[entry];

	pool->entries[e->older].younger = e->younger;
	pool->entries[e->younger].older = e->older;
	pool->listed--;
}

static void pool_link_young(struct pool *pool, uint32_t entry)
{
	struct entry *e = &pool->entries[entry], *head = &pool->entries[0];

	e->older = head->older;
	e->younger = 0;
	pool->entries[head->older].younger = entry;
	head->older = entry;
	pool->listed++;
}

/* Take n pages, evicting the oldest. That many must be free or evictable. */
static void pool_take(struct pool *pool, uint32_t n)
{
	while (pool->free_pages < n) {
		uint32_t oldest = pool->entries[0].younger;

		pool_unlink(pool, oldest);
		pool->at[pool->entries[oldest].page] = 0;
		pool->entries[oldest].younger = pool->spare;
		pool->spare = oldest;
		pool->free_pages++;
		pool->result.evictions++;
	}
	pool->free_pages -= n;
}

/* Take pages for the answer in a worker's steps, up to the first refused one. */
static uint32_t pool_extend(struct pool *pool, uint32_t wanted)
{
	uint32_t got = 0;

	while (got < wanted) {
		uint32_t n = wanted - got < KVT_REPLAY_EXTEND_PAGES ? wanted - got :
			     KVT_REPLAY_EXTEND_PAGES;

		if (n > pool->free_pages + pool->listed)
			break;
		pool_take(pool, n);
		got += n;
	}
	return got;
}

/* `path` has the request's whole pages. */
static void pool_serve(struct pool *pool, const struct kvt_trace_request *request,
		       uint32_t page_size, const uint32_t *path)
{
	uint32_t full = request->input / page_size, matched = 0, reused, own, extra;
	uint32_t input_pages = kvt_pages_for(request->input, page_size);
	uint32_t table = kvt_pages_for((uint64_t)request->input + request->output, page_size);

	while (matched < full && pool->at[path[matched]])
		matched++;
	reused = matched && matched * page_size == request->input ? matched - 1 : matched;
	own = input_pages - reused;
	pool->result.input_positions += request->input;
	if (own > pool->free_pages + pool->listed - matched || input_pages > pool->usable) {
		pool->result.refused++;
		return;
	}
	pool->result.hit_positions += (uint64_t)reused * page_size;
	for (uint32_t i = 0; i < matched; i++)
		pool_unlink(pool, pool->at[path[i]]);
	pool_take(pool, own);
	extra = pool_extend(pool, table - input_pages);
	for (uint32_t i = matched; i < full; i++) {
		uint32_t entry = pool->spare;

		pool->spare = pool->entries[entry].younger;
		pool->entries[entry].page = path[i];
		pool->at[path[i]] = entry;
	}
	pool->free_pages += own + extra - (full - matched);
	for (uint32_t i = full; i-- > 0;)
		pool_link_young(pool, pool->at[path[i]]);
}

/* ---- a trace through all routers ---- */

struct simulation {
	const struct kvt_trace *trace;
	const struct kvt_private_options *options;
	struct kvt_page_tree tree;
	struct pool *pools; /* ONE, then N round robin, then N sticky */
	uint32_t *path; /* of the longest input */
};

static void serve_one(struct simulation *simulation, uint32_t index)
{
	const struct kvt_trace_request *request = &simulation->trace->requests[index];
	uint32_t n = simulation->options->n_pools, page_size = simulation->options->page_size;
	struct pool *serving[KVT_ROUTERS] = {
		&simulation->pools[0],
		&simulation->pools[1 + index % n],
		&simulation->pools[1 + n + request->session % n],
	};

	kvt_page_tree_path(&simulation->tree, simulation->tree.leaves[index],
			   request->input / page_size, simulation->path);
	for (int i = 0; i < KVT_ROUTERS; i++)
		pool_serve(serving[i], request, page_size, simulation->path);
}

static void collect(const struct simulation *simulation,
		    struct kvt_private_result ret_results[KVT_ROUTERS])
{
	memset(ret_results, 0, KVT_ROUTERS * sizeof(*ret_results));
	for (uint32_t i = 0; i < 1 + 2 * simulation->options->n_pools; i++) {
		const struct kvt_private_result *from = &simulation->pools[i].result;
		struct kvt_private_result *to = &ret_results[!i ? KVT_ROUTER_ONE :
			i <= simulation->options->n_pools ? KVT_ROUTER_ROUND_ROBIN :
			KVT_ROUTER_STICKY];

		to->input_positions += from->input_positions;
		to->hit_positions += from->hit_positions;
		to->evictions += from->evictions;
		to->refused += from->refused;
	}
}

int kvt_private_simulate(const struct kvt_trace *trace, const struct kvt_private_options *options,
			 struct kvt_private_result ret_results[KVT_ROUTERS],
			 kvt_trace_progress_fn *progress, void *context)
{
	struct simulation simulation = { .trace = trace, .options = options };
	uint32_t n_pools = 1 + 2 * options->n_pools;
	int rc = 0;

	simulation.pools = calloc(n_pools, sizeof(*simulation.pools));
	simulation.path = malloc(((size_t)trace->max_input + 1) * sizeof(*simulation.path));
	if (!simulation.pools || !simulation.path)
		rc = -ENOMEM;
	if (!rc)
		rc = kvt_page_tree_build(&simulation.tree, trace, options->page_size,
					 options->n_namespaces, progress, context);
	for (uint32_t i = 0; i < n_pools && !rc; i++)
		rc = pool_create(&simulation.pools[i],
				 i ? options->usable_pages / options->n_pools :
				     options->usable_pages, simulation.tree.n);
	for (uint32_t i = 0; i < trace->n_requests && !rc; i++) {
		serve_one(&simulation, i);
		if (progress && i % PROGRESS_EVERY == 0 && !progress(context, i))
			rc = -ECANCELED;
	}
	if (!rc)
		collect(&simulation, ret_results);
	for (uint32_t i = 0; simulation.pools && i < n_pools; i++)
		pool_free(&simulation.pools[i]);
	kvt_page_tree_free(&simulation.tree);
	free(simulation.path);
	free(simulation.pools);
	return rc;
}

/* ---- the flat cache ---- */

/* Searched linearly: there are a few dozen blocks. */
struct flat_block {
	uint64_t hash;
	uint64_t used;
	bool pinned;
};

struct kvt_flat {
	struct flat_block *blocks;
	uint32_t n, room, capacity, block;
	uint64_t clock;
};

struct kvt_flat *kvt_flat_create(uint32_t block, uint32_t capacity)
{
	struct kvt_flat *flat = calloc(1, sizeof(*flat));

	if (flat) {
		flat->block = block;
		flat->capacity = capacity;
	}
	return flat;
}

void kvt_flat_destroy(struct kvt_flat *flat)
{
	if (!flat)
		return;
	free(flat->blocks);
	free(flat);
}

static struct flat_block *flat_find(struct kvt_flat *flat, uint64_t hash)
{
	for (uint32_t i = 0; i < flat->n; i++) {
		if (flat->blocks[i].hash == hash)
			return &flat->blocks[i];
	}
	return NULL;
}

/* Find a place for one more block: unused, or the least recently used without a pin. */
static struct flat_block *flat_place(struct kvt_flat *flat, int *ret_error)
{
	struct flat_block *oldest = NULL, *larger;

	if (!flat->capacity || flat->n < flat->capacity) {
		if (flat->n == flat->room) {
			larger = realloc(flat->blocks, (flat->room + 256) * sizeof(*larger));
			if (!larger) {
				*ret_error = -ENOMEM;
				return NULL;
			}
			flat->blocks = larger;
			flat->room += 256;
		}
		return &flat->blocks[flat->n++];
	}
	for (uint32_t i = 0; i < flat->n; i++) {
		struct flat_block *block = &flat->blocks[i];

		if (!block->pinned && (!oldest || block->used < oldest->used))
			oldest = block;
	}
	if (!oldest)
		*ret_error = -ENOSPC;
	return oldest;
}

static uint64_t flat_hash(const struct kvt_flat *flat, uint64_t before, const uint32_t *keys)
{
	for (uint32_t i = 0; i < flat->block; i++)
		before = kvt_trace_mix(before ^ keys[i]);
	return before;
}

int kvt_flat_serve(struct kvt_flat *flat, const uint32_t *keys, uint32_t n_keys,
		   uint32_t *ret_cached)
{
	uint32_t n = n_keys / flat->block, cached = 0;
	bool leading = true;
	uint64_t hash = 0;
	int rc = 0;

	if (flat->capacity && n > flat->capacity)
		return -ENOSPC;
	/* Pin all hits before misses evict. */
	for (uint32_t i = 0; i < n && leading; i++) {
		struct flat_block *block;

		hash = flat_hash(flat, hash, keys + i * flat->block);
		block = flat_find(flat, hash);
		leading = block != NULL;
		if (block) {
			block->pinned = true;
			block->used = ++flat->clock;
			cached += flat->block;
		}
	}
	hash = 0;
	for (uint32_t i = 0; i < n && !rc; i++) {
		struct flat_block *block;

		hash = flat_hash(flat, hash, keys + i * flat->block);
		block = flat_find(flat, hash);
		if (!block)
			block = flat_place(flat, &rc);
		if (block)
			*block = (struct flat_block){ hash, ++flat->clock, true };
	}
	for (uint32_t i = 0; i < flat->n; i++)
		flat->blocks[i].pinned = false;
	if (!rc)
		*ret_cached = cached;
	return rc;
}
