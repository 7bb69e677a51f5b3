/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: pages of the tier become pages of the pool. Inputs: a FETCH, and what the feed told of its
 * anchor.
 *
 * Invariants: the entries of a load are pinned until its end. Only private pages of its own
 * sequence are written: those of the table from kvt_seq_next() on. A load ends at its first error:
 * what was committed stays, and waiters compute the rest.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtrunk_sequences.h"
#include "kvtrunk_wire_store.h"
#include "store/store.h"

#define CHUNK_POSITIONS 512u /* a COMMIT each */

struct kvt_load {
	struct kvt_load *next;
	struct kvt_seq *seq;
	uint32_t namespace_id;
	uint32_t anchor;    /* page in front of the first one, 0: none */
	uint32_t first;     /* page of the path that the first entry is for */
	uint32_t at;        /* next page of the path */
	uint32_t committed; /* pages of the path */
	uint32_t n_entries;
	uint32_t entries[];
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Pin the leading pages of `keys` that the tier has, at most `most`. Returns their number. */
static uint32_t pin_found(struct kvt_store *store, struct kvt_chain chain, const uint32_t *keys,
			  uint32_t most, uint32_t *ret_entries)
{
	uint32_t page_size = store->known.info.page_size, n;

	for (n = 0; n < most; n++) {
		kvt_chain_next(&chain, keys + (uint64_t)n * page_size, page_size, &chain);
		ret_entries[n] = kvt_index_find(&store->tier.index, &chain);
		if (!ret_entries[n])
			break;
		kvt_index_pin(&store->tier.index, ret_entries[n]);
	}
	return n;
}

/* Unpin from the last page: then pages in front are younger than those behind them. */
static void unpin(struct kvt_store *store, const uint32_t *entries, uint32_t n)
{
	while (n > 0)
		kvt_index_unpin(&store->tier.index, entries[--n]);
}

/* The digest in front of the keys. False: the anchor is not known as cached. */
static bool chain_of_anchor(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			    struct kvt_chain *ret_chain)
{
	const struct kvt_chain *name = kvt_known_name(&store->known, ask->anchor);

	if (ask->positions == 0) {
		kvt_chain_root(&store->known.info, ask->namespace_digest, ask->root_key, ret_chain);
		return true;
	}
	if (!name || ask->positions % store->known.info.page_size != 0)
		return false;
	*ret_chain = *name;
	return true;
}

bool kvt_load_possible(const struct kvt_store *store, const struct kvt_store_fetch *ask,
		       const uint32_t *keys)
{
	struct kvt_chain chain;

	if (!chain_of_anchor(store, ask, &chain))
		return false;
	kvt_chain_next(&chain, keys, store->known.info.page_size, &chain);
	return kvt_index_find(&store->tier.index, &chain) != 0;
}

/* Check that a BEGIN is behind the anchor and that no other lease computes its pages. */
static bool begun_well(const struct kvt_store *store, const struct kvt_store_fetch *ask,
		       const struct kvt_result *begun, uint32_t n_positions)
{
	uint32_t anchor_at = ask->positions / store->known.info.page_size;

	return begun->announced == 0 && begun->reusable < n_positions &&
	       begun->reusable >= ask->positions && begun->n_pages >= anchor_at &&
	       (anchor_at == 0 || begun->pages[anchor_at - 1] == ask->anchor);
}

/* Announce n pages behind the anchor. */
static int announce(struct kvt_store *store, const struct kvt_store_fetch *ask,
		    const uint32_t *keys, struct kvt_load *load)
{
	uint32_t n_keys = load->n_entries * store->known.info.page_size;
	uint32_t n_positions = ask->positions + n_keys;
	struct kvt_request begin = {
		.op = KVT_OP_BEGIN,
		.flags = KVT_F_FULL, /* the last page, too */
		.keys = keys,
		.n_keys = n_keys,
		.handle = { ask->node, ask->generation, ask->positions },
		.root_key = ask->positions ? 0 : ask->root_key,
	};
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
	good = begun_well(store, ask, &begun, n_positions);
	load->at = load->committed = begun.reusable / store->known.info.page_size;
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
	return load->first + load->n_entries - load->at;
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
	load = calloc(1, sizeof(*load) + most * sizeof(*load->entries));
	if (!load)
		return 0;
	load->first = ask->positions / page_size;
	load->anchor = ask->anchor;
	load->n_entries = pin_found(store, chain, keys, most, load->entries);
	if (load->n_entries == 0 ||
	    (uint64_t)load->n_entries * page_size < store->options.min_positions ||
	    announce(store, ask, keys, load) != 0) {
		unpin(store, load->entries, load->n_entries);
		free(load);
		return 0;
	}
	*(loads->last ? &loads->last->next : &loads->first) = load;
	loads->last = load;
	loads->n_pages += pages_left(load);
	loads->begun++;
	return load->n_entries * page_size;
}

/* End the oldest load. */
static void end_first(struct kvt_store *store)
{
	struct kvt_loads *loads = &store->loads;
	struct kvt_load *load = loads->first;

	loads->first = load->next;
	if (!loads->first)
		loads->last = NULL;
	loads->n_pages -= pages_left(load);
	loads->ended++;
	loads->cut += pages_left(load) > 0;
	kvt_seq_end(load->seq, 0, NULL, 0, KVT_IDLE, 0);
	/* -EBUSY: another load is in it, and closes it. */
	kvt_namespace_close(store->client, load->namespace_id);
	unpin(store, load->entries, load->n_entries);
	kvt_tier_touch(&store->tier, &store->known, load->anchor);
	free(load);
}

/* Seal what was copied. Others may have sealed more: continue behind it. */
static int commit(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t page_size = store->known.info.page_size, at;
	int rc = kvt_seq_commit(load->seq, load->at * page_size, NULL, 0, KVT_IDLE, 0);

	if (rc != 0)
		return rc;
	at = kvt_seq_next(load->seq) / page_size;
	if (at > load->first + load->n_entries)
		at = load->first + load->n_entries;
	if (at > load->at) {
		store->loads.n_pages -= at - load->at;
		load->at = at;
	}
	load->committed = load->at;
	return 0;
}

bool kvt_load_turn(struct kvt_store *store)
{
	struct kvt_load *load = store->loads.first;
	uint32_t chunk = CHUNK_POSITIONS / store->known.info.page_size, n_pages;
	uint64_t begun_ns = now_ns();
	const uint32_t *pages;
	int rc = 0;

	if (!load)
		return false;
	pages = kvt_seq_pages(load->seq, &n_pages);
	if (load->at < n_pages && pages_left(load) > 0) {
		uint32_t entry = load->entries[load->at - load->first];

		kvt_slabs_write(&store->slabs, pages[load->at],
				kvt_tier_record(&store->tier, entry));
		load->at++;
		store->loads.n_pages--;
		store->loads.loaded++;
	}
	if (pages_left(load) == 0 || load->at - load->committed >= (chunk ? chunk : 1))
		rc = commit(store, load);
	/* A mean over about eight pages. */
	store->loads.page_ns += (now_ns() - begun_ns) / 8 - store->loads.page_ns / 8;
	if (rc != 0 || pages_left(load) == 0)
		end_first(store);
	return true;
}

void kvt_loads_end(struct kvt_store *store)
{
	while (store->loads.first)
		end_first(store);
}
