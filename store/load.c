/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: pages of the tier become pages of the pool. Inputs: a FETCH, and what the feed told of its
 * anchor.
 *
 * Invariants: a page that is in memory is pinned until it is copied. Only private pages of a load's
 * own sequence are written: those of the table from kvt_seq_next() on. A load ends at its first
 * error: what was committed stays, and waiters compute the rest.
 *
 * Pages of the tiers below are read ahead, in the order of loads. While the oldest load waits for
 * one, later loads continue.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_sequences.h"
#include "kvtrunk_wire_store.h"
#include "store/store.h"
#include "tools/util.h"

#define CHUNK_POSITIONS 512u /* a COMMIT each */
#define AHEAD_PAGES 64u      /* of a load that are pinned or on their way */
#define LATE_NS 1000000000ull /* a load ends that waits for a page so long */
#define AHEAD_READS 2u       /* begun at a time: each may write a page that leaves the memory */

struct kvt_load_page {
	struct kvt_chain name;
	uint32_t entry; /* pinned; 0: it is not in memory yet, or was copied */
};

struct kvt_load {
	struct kvt_load *next;
	struct kvt_seq *seq;
	uint32_t namespace_id;
	uint32_t anchor;    /* page in front of the first one, 0: none */
	uint32_t first;     /* page of the path that pages[0] is for */
	uint32_t at;        /* next page of the path */
	uint32_t ahead;     /* pages of the path that are in memory or were asked for */
	uint32_t committed; /* pages of the path */
	uint32_t behind;    /* entry of the page that was copied last */
	uint64_t waits_ns;  /* since when for a page, 0: it does not wait */
	uint32_t n_pages;
	struct kvt_load_page pages[];
};

/* Find the leading pages of `keys` that there are, at most `most`, and pin those in memory. Returns
 * their number. */
static uint32_t find_pages(struct kvt_store *store, struct kvt_chain chain, const uint32_t *keys,
			   uint32_t most, struct kvt_load_page *ret_pages)
{
	uint32_t page_size = store->known.info.page_size, n;

	for (n = 0; n < most; n++) {
		kvt_chain_next(&chain, keys + (uint64_t)n * page_size, page_size, &chain);
		if (!kvt_tier_has(&store->tier, &chain))
			break;
		ret_pages[n].name = chain;
		ret_pages[n].entry = kvt_index_find(&store->tier.index, &chain);
		if (ret_pages[n].entry) {
			kvt_index_pin(&store->tier.index, ret_pages[n].entry);
			store->tier.index.entries[ret_pages[n].entry].used = 1;
		}
	}
	return n;
}

/* Unpin from the last page: then pages in front are younger than those behind them. */
static void unpin(struct kvt_store *store, struct kvt_load *load)
{
	for (uint32_t n = load->n_pages; n-- > 0; load->pages[n].entry = 0)
		if (load->pages[n].entry)
			kvt_index_unpin(&store->tier.index, load->pages[n].entry);
}

/* The digest in front of the keys. False: the anchor is not known as cached, or not yet. */
static bool chain_of_anchor(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			    struct kvt_chain *ret_chain)
{
	const struct kvt_chain *name = kvt_known_name(&store->known, ask->anchor);

	if (ask->positions == 0) {
		kvt_chain_root(&store->known.info, ask->namespace_digest, ask->root_key, ret_chain);
		return true;
	}
	if (!name || !store->current || ask->positions % store->known.info.page_size != 0)
		return false;
	*ret_chain = *name;
	return true;
}

bool kvt_load_possible(const struct kvt_store *store, const struct kvt_store_fetch *ask,
		       const uint32_t *keys)
{
	struct kvt_chain chain;

	if (store->reset || !chain_of_anchor(store, ask, &chain))
		return false;
	kvt_chain_next(&chain, keys, store->known.info.page_size, &chain);
	return kvt_tier_has(&store->tier, &chain);
}

static uint32_t changes_of(const struct kvt_store *store, uint32_t page)
{
	return kvt_known_name(&store->known, page) ? store->known.pages[page].changes : 0;
}

/* Check that a BEGIN is behind the anchor, that no other lease computes its pages, and that no
 * RESET came before it. The lease locks the anchor: if it did not change until now, its name was
 * that of the keys in front. */
static bool begun_well(struct kvt_store *store, const struct kvt_store_fetch *ask,
		       const struct kvt_result *begun, uint32_t n_positions, uint32_t changes)
{
	uint32_t anchor_at = ask->positions / store->known.info.page_size;

	if (begun->announced > 0 || begun->reusable >= n_positions ||
	    begun->reusable < ask->positions || begun->n_pages < anchor_at)
		return false;
	if (kvt_store_follow(store) < 0 || !store->current || store->reset)
		return false;
	return anchor_at == 0 || (begun->pages[anchor_at - 1] == ask->anchor &&
				  changes_of(store, ask->anchor) == changes);
}

/* Announce n pages behind the anchor. */
static int announce(struct kvt_store *store, const struct kvt_store_fetch *ask,
		    const uint32_t *keys, struct kvt_load *load)
{
	uint32_t n_keys = load->n_pages * store->known.info.page_size;
	uint32_t n_positions = ask->positions + n_keys;
	struct kvt_request begin = {
		.op = KVT_OP_BEGIN,
		.flags = KVT_F_FULL, /* the last page, too */
		.keys = keys,
		.n_keys = n_keys,
		.handle = { ask->node, ask->generation, ask->positions },
		.root_key = ask->positions ? 0 : ask->root_key,
	};
	uint32_t changes = changes_of(store, ask->anchor);
	struct kvt_result begun;
	bool good;
	int rc = kvt_namespace_open(store->client, ask->namespace_digest, NULL,
				    &load->namespace_id);

	begin.namespace_id = load->namespace_id;
	if (rc != 0)
		return rc;
	rc = kvt_call(store->client, &begin, &begun);
	if (rc != 0) {
		kvt_namespace_close(store->client, load->namespace_id);
		return rc;
	}
	good = begun_well(store, ask, &begun, n_positions, changes);
	load->at = load->ahead = load->committed = begun.reusable / store->known.info.page_size;
	rc = kvt_seq_adopt(store->client, &begun, n_positions, &load->seq);
	if (rc != 0) {
		kvt_result_release(store->client, &begun);
		return rc; /* the lease is left to the end of the session: memory is short */
	}
	if (good)
		return 0;
	kvt_seq_end(load->seq, 0, NULL, 0, KVT_IDLE, 0);
	kvt_namespace_close(store->client, load->namespace_id);
	return -ESTALE;
}

static uint32_t pages_left(const struct kvt_load *load)
{
	return load->first + load->n_pages - load->at;
}

uint32_t kvt_load_missing(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			  const uint32_t *keys, struct kvt_chain *ret_names, uint32_t most)
{
	uint32_t page_size = store->known.info.page_size, n = 0;
	struct kvt_chain chain;

	if (!chain_of_anchor(store, ask, &chain))
		return 0;
	for (uint32_t i = 0; i < ask->n_keys / page_size && n < most; i++) {
		kvt_chain_next(&chain, keys + (uint64_t)i * page_size, page_size, &chain);
		if (n > 0 || !kvt_tier_has(&store->tier, &chain))
			ret_names[n++] = chain;
	}
	return n;
}

uint32_t kvt_load_begin(struct kvt_store *store, const struct kvt_store_fetch *ask,
			const uint32_t *keys)
{
	uint32_t page_size = store->known.info.page_size, most = ask->n_keys / page_size;
	struct kvt_loads *loads = &store->loads;
	struct kvt_chain chain;
	struct kvt_load *load;

	if (most > loads->most_pages - loads->n_pages)
		most = loads->most_pages - loads->n_pages;
	if ((uint64_t)most * page_size < store->options.min_positions ||
	    !chain_of_anchor(store, ask, &chain))
		return 0;
	load = calloc(1, sizeof(*load) + most * sizeof(*load->pages));
	if (!load)
		return 0;
	load->first = ask->positions / page_size;
	load->anchor = ask->anchor;
	load->n_pages = find_pages(store, chain, keys, most, load->pages);
	if (load->n_pages == 0 ||
	    (uint64_t)load->n_pages * page_size < store->options.min_positions ||
	    announce(store, ask, keys, load) != 0) {
		unpin(store, load);
		free(load);
		return 0;
	}
	*(loads->last ? &loads->last->next : &loads->first) = load;
	loads->last = load;
	loads->n_pages += pages_left(load);
	loads->begun++;
	return load->n_pages * page_size;
}

/* End a load. `seal`: with what was copied since its last commit. */
static void end(struct kvt_store *store, struct kvt_load *load, bool seal)
{
	uint32_t n_positions = seal ? load->at * store->known.info.page_size : 0;
	struct kvt_loads *loads = &store->loads;
	struct kvt_load **at = &loads->first, *before = NULL;

	for (; *at != load; at = &(*at)->next)
		before = *at;
	*at = load->next;
	if (loads->last == load)
		loads->last = before;
	loads->n_pages -= pages_left(load);
	loads->ended++;
	loads->cut += pages_left(load) > 0;
	kvt_seq_end(load->seq, n_positions, NULL, 0, KVT_IDLE, 0);
	/* -EBUSY: another load is in it, and closes it. */
	kvt_namespace_close(store->client, load->namespace_id);
	unpin(store, load);
	kvt_tier_touch(&store->tier, &store->known, load->anchor);
	free(load);
}

/* Seal what was copied, and copy on meanwhile. Others may have sealed more, as the answers to
 * earlier commits tell: continue behind it. */
static int commit(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t page_size = store->known.info.page_size, at;
	int rc = kvt_seq_commit_async(load->seq, load->at * page_size, NULL, 0, KVT_IDLE, 0);

	if (rc == -EAGAIN) /* the ring is full */
		rc = kvt_seq_commit(load->seq, load->at * page_size, NULL, 0, KVT_IDLE, 0);
	if (rc != 0)
		return rc;
	at = kvt_seq_next(load->seq) / page_size;
	if (at > load->first + load->n_pages)
		at = load->first + load->n_pages;
	if (at > load->at) {
		store->loads.n_pages -= at - load->at;
		load->at = at;
	}
	load->committed = load->at;
	return 0;
}

/* Have pages behind the next one read, as far as there is room. */
static void read_ahead(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t end_at = load->first + load->n_pages;
	uint64_t before = store->tier.begun;

	if (load->ahead <= load->at)
		load->ahead = load->at + 1;
	for (; load->ahead < end_at && load->ahead - load->at < AHEAD_PAGES &&
	       store->tier.begun - before < AHEAD_READS; load->ahead++) {
		const struct kvt_load_page *page = &load->pages[load->ahead - load->first];

		if (!page->entry && kvt_tier_bring(&store->tier, &page->name) == -EAGAIN)
			return;
	}
}

/* Get the next page into memory and pin it. Returns 1: it is there; 0: not yet. -ENOENT: it was
 * lost. */
static int bring(struct kvt_store *store, struct kvt_load *load)
{
	struct kvt_load_page *page = &load->pages[load->at - load->first];
	int64_t entry = page->entry ? page->entry : kvt_tier_bring(&store->tier, &page->name);

	if (entry == -ENOENT)
		return -ENOENT;
	if (entry > 0 && !page->entry) {
		kvt_index_pin(&store->tier.index, (uint32_t)entry);
		page->entry = (uint32_t)entry;
	}
	read_ahead(store, load);
	return entry > 0;
}

/* Copy the next page, which is in memory, into the pool. -EIO. */
static int copy(struct kvt_store *store, struct kvt_load *load, uint32_t to_page)
{
	struct kvt_load_page *page = &load->pages[load->at - load->first];
	int rc = kvt_slabs_write(&store->slabs, to_page,
				 kvt_tier_record(&store->tier, page->entry));

	if (rc != 0)
		return rc;
	kvt_index_unpin(&store->tier.index, page->entry);
	kvt_index_touch(&store->tier.index, page->entry, load->behind);
	load->behind = page->entry;
	page->entry = 0;
	load->at++;
	store->loads.n_pages--;
	store->loads.loaded++;
	store->loads.last_ns = (uint64_t)kvt_tool_now_ns();
	store->loads.last_computed = store->tier.computed;
	return 0;
}

/* Copy a page of a load, or end it. False: its page is on the way. */
static bool advance(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t chunk = CHUNK_POSITIONS / store->known.info.page_size, n_pages;
	const uint32_t *pages = kvt_seq_pages(load->seq, &n_pages);
	uint64_t begun_ns = (uint64_t)kvt_tool_now_ns();
	bool wanted = load->at < n_pages && pages_left(load) > 0;
	int there = wanted ? bring(store, load) : 0, rc = 0;

	if (wanted && there == 0) {
		load->waits_ns = load->waits_ns ? load->waits_ns : begun_ns;
		if (begun_ns - load->waits_ns < LATE_NS)
			return false;
		there = -ETIMEDOUT;
	}
	if (there == 1 && copy(store, load, pages[load->at]) != 0)
		return true; /* kvt_store_broken() */
	if (pages_left(load) > 0 && load->at - load->committed >= (chunk ? chunk : 1))
		rc = commit(store, load);
	/* A mean over about eight pages. */
	begun_ns = load->waits_ns ? load->waits_ns : begun_ns;
	load->waits_ns = 0;
	store->loads.page_ns += ((uint64_t)kvt_tool_now_ns() - begun_ns) / 8 -
				store->loads.page_ns / 8;
	if (rc != 0 || there < 0 || pages_left(load) == 0)
		end(store, load, true);
	return true;
}

bool kvt_load_turn(struct kvt_store *store)
{
	struct kvt_load *load = store->loads.first;
	uint64_t before = store->tier.begun;

	while (load) {
		struct kvt_load *next = load->next;

		if (advance(store, load) || store->tier.begun != before)
			return true;
		load = next;
	}
	/* With nothing on its way, loads wait for what the pages of each other occupy. */
	if (!store->loads.first || store->tier.n_coming || !kvt_tier_ready(&store->tier))
		return false;
	end(store, store->loads.first, true);
	return true;
}

void kvt_loads_end(struct kvt_store *store)
{
	while (store->loads.first)
		end(store, store->loads.first, false);
}
