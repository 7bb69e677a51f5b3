/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: pages of the tier become pages of the pool. Inputs: a FETCH, and what the feed told of its
 * anchor.
 *
 * Invariants: a page that is in memory is pinned until it is copied. Only private pages of a load's
 * own sequence are written: those of the table from kvt_seq_next() on. A COMMIT in flight keeps
 * what it displaces, so a job may still write it. A load ends at its first error, once its jobs
 * have: what was committed stays, and waiters compute the rest.
 *
 * Pages of the tiers below are read ahead, in the order of loads. While the oldest load waits for
 * one, later loads continue.
 *
 * Where pages have side pages, a load ends at a point (point.h), and brings what the pool lacks of
 * it. The last COMMIT seals the last main pages and attaches the side pages in one effect, and is
 * long enough that BEGINs wait for it. So no client finds the main pages without the point. A BEGIN
 * has private pages for cached ones behind the pool's last point: these twins go back at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_sequences.h"
#include "kvtrunk_wire_store.h"
#include "shm/assert.h"
#include "shm/clock.h"
#include "store/point.h"
#include "store/store.h"

#define CHUNK_POSITIONS 512u /* a COMMIT each */
#define AHEAD_PAGES 64u      /* of a load that are pinned or on their way, or more of small ones: */
#define AHEAD_BYTES (64ull << 20)
#define LATE_NS 1000000000ull /* a load ends that waits for a page so long */
#define AHEAD_READS 2u       /* begun at a time: each may write a page that leaves the memory */
#define AWAITED_POSITIONS 64u /* BEGINs do not wait for fewer: coalesce_threshold by default */

struct kvt_load_page {
	struct kvt_chain name;
	uint32_t entry; /* pinned; 0: it is not in memory yet, or was copied */
	uint32_t place; /* of a side page: KVT_SIDE_PLACE() on the path */
	uint32_t to;    /* of a side page: the session's page for it, 0: it is the sequence's */
	struct kvt_job job;
};

struct kvt_load {
	struct kvt_load *next;
	struct kvt_seq *seq;
	uint32_t namespace_id;
	uint32_t anchor;    /* page in front of the first one, 0: none */
	uint32_t first;     /* page of the path that pages[0] is for */
	uint32_t done;      /* of pages[]: copied, or cached by others */
	uint32_t at;        /* next of pages[]; those from `done` on have a job */
	uint32_t ahead;     /* of pages[]: those in memory or asked for */
	uint32_t committed; /* of pages[] */
	struct kvt_chain front; /* name of the page in front of the first one */
	uint64_t begun_ns;
	uint64_t waits_ns;  /* since when for a page, 0: it does not wait */
	uint64_t since_ns;  /* time of the last page, or of its first job */
	uint32_t n_main;    /* pages of the path; side pages follow them */
	uint32_t n_pages;
	struct kvt_load_page pages[];
};

/* Find the leading pages of `keys` that there are, at most `most`. Returns their number. */
static uint32_t find_pages(const struct kvt_store *store, struct kvt_chain chain,
			   const uint32_t *keys, uint32_t most, struct kvt_load_page *ret_pages)
{
	uint32_t page_size = store->known.info.page_size, n;

	for (n = 0; n < most; n++) {
		kvt_chain_next(&chain, keys + (uint64_t)n * page_size, page_size, &chain);
		if (!kvt_tier_has(store->tier, &chain))
			break;
		ret_pages[n].name = chain;
	}
	return n;
}

/* Pin the pages that are in memory. Others may have left since they were found. */
static void pin(struct kvt_store *store, struct kvt_load *load)
{
	for (uint32_t n = 0; n < load->n_pages; n++)
		load->pages[n].entry = kvt_tier_pin(store->tier, &load->pages[n].name);
}

static void unpin(struct kvt_store *store, struct kvt_load *load)
{
	for (uint32_t n = 0; n < load->n_pages; load->pages[n++].entry = 0)
		if (load->pages[n].entry)
			kvt_tier_unpin(store->tier, load->pages[n].entry, false);
}

/* The digest in front of the keys. False: the anchor is not known as cached, or not yet. */
static bool chain_of_anchor(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			    struct kvt_chain *ret_chain)
{
	const struct kvt_chain *name = kvt_known_name(&store->known, ask->anchor);
	uint32_t page_size = store->known.info.page_size;

	if (ask->positions == 0) {
		kvt_chain_root(&store->known.info, ask->namespace_digest, ask->root_key, ret_chain);
		return true;
	}
	if (!name || !store->current || ask->positions % page_size != 0 ||
	    ask->positions / page_size >= store->known.info.n_pages)
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
	return kvt_tier_has(store->tier, &chain);
}

void kvt_load_note(struct kvt_store *store, const struct kvt_store_fetch *ask)
{
	const struct kvt_known *known = &store->known;
	uint32_t page = ask->anchor, end = ask->positions / known->info.page_size, first = end;

	for (uint32_t kind = 0; kind < known->info.n_sides; kind++)
		if (kvt_point_first(&known->info, end, kind) < first)
			first = kvt_point_first(&known->info, end, kind);
	if (kvt_known_name(known, page))
		kvt_tier_use(store->tier, kvt_known_name(known, page));
	/* And the point that it needs there. */
	for (uint32_t i = end; i-- > first && kvt_known_name(known, page);
	     page = known->pages[page].parent) {
		for (uint32_t kind = 0; kind < known->info.n_sides; kind++) {
			struct kvt_chain side;

			if (i < kvt_point_first(&known->info, end, kind))
				continue;
			kvt_chain_side(kvt_known_name(known, page), kind, &side);
			kvt_tier_use(store->tier, &side);
		}
	}
}

/* ---- points */

/* A search of points from the last page of a path to the first. */
struct search {
	const struct kvt_store *store;
	const struct kvt_load *load; /* NULL: what the pool has counts, and no more */
	uint32_t at, page; /* pages in front of those of the load, and the last of these */
};

static struct search search_of(const struct kvt_store *store, const struct kvt_load *load,
			       uint32_t first, uint32_t anchor)
{
	return (struct search){ .store = store, .load = load, .at = first, .page = anchor };
}

static bool tier_has_side(const struct kvt_store *store, const struct kvt_chain *name,
			  uint32_t kind)
{
	struct kvt_chain side;

	kvt_chain_side(name, kind, &side);
	return kvt_tier_has(store->tier, &side);
}

/* kvt_point_has */
static bool has_side(void *context, uint32_t index, uint32_t kind)
{
	struct search *search = context;
	const struct kvt_known *known = &search->store->known;

	if (search->load && index >= search->load->first)
		return tier_has_side(search->store,
				     &search->load->pages[index - search->load->first].name, kind);
	for (; search->at > index + 1 && kvt_known_name(known, search->page); search->at--)
		search->page = known->pages[search->page].parent;
	if (!kvt_known_name(known, search->page))
		return false;
	return kvt_known_side(known, search->page, kind) ||
	       (search->load &&
		tier_has_side(search->store, kvt_known_name(known, search->page), kind));
}

/* Shorten what was found, so that it ends at the last point. False: it is not worth loading. */
static bool end_at_point(const struct kvt_store *store, struct kvt_load *load)
{
	const struct kvt_info *info = &store->known.info;
	struct search pool = search_of(store, NULL, load->first, load->anchor);
	struct search all = search_of(store, load, load->first, load->anchor);
	uint32_t usable = load->first, end;

	end = kvt_point_last(info, load->first + load->n_main, has_side, &all);
	load->n_main = end > load->first ? end - load->first : 0;
	if (info->n_sides) {
		usable = kvt_point_last(info, load->first, has_side, &pool);
		/* BEGIN needs pages for all from `usable` on, beside those that it locks. */
		if (load->n_main * info->page_size <= AWAITED_POSITIONS ||
		    load->first + (end - usable) + kvt_point_pages(info) >= info->n_pages)
			return false;
	}
	return load->n_main > 0 &&
	       (uint64_t)(end - usable) * info->page_size >= store->host->options.min_positions;
}

/* The name of a page of the path: cached up to `cached`. NULL: it is not cached any more. */
static const struct kvt_chain *name_at(const struct kvt_store *store, const struct kvt_load *load,
				       const uint32_t *table, uint32_t cached, uint32_t index)
{
	if (index < cached)
		return kvt_known_name(&store->known, table[index]);
	return &load->pages[index - load->first].name;
}

/* Append the side pages that the pool lacks of the load's point. The sequence locks what it has.
 * -ENOENT: the point is gone. */
static int find_sides(const struct kvt_store *store, struct kvt_load *load)
{
	uint32_t n_table, end = load->first + load->n_main, cached = load->first + load->at;
	const uint32_t *table = kvt_seq_pages(load->seq, &n_table);
	const struct kvt_info *info = &store->known.info;

	for (uint32_t kind = 0; kind < info->n_sides; kind++) {
		for (uint32_t i = kvt_point_first(info, end, kind); i < end; i++) {
			struct kvt_load_page *side = &load->pages[load->n_pages];
			const struct kvt_chain *name = name_at(store, load, table, cached, i);

			if (i < cached && kvt_known_side(&store->known, table[i], kind))
				continue;
			if (!name || !tier_has_side(store, name, kind))
				return -ENOENT;
			kvt_chain_side(name, kind, &side->name);
			side->place = KVT_SIDE_PLACE(i, kind);
			load->n_pages++;
		}
	}
	return 0;
}

/* Get a page for each side page of a load. */
static int allocate_sides(const struct kvt_store *store, struct kvt_load *load)
{
	uint32_t n = load->n_pages - load->n_main, pages[KVT_MAX_SIDE_PAGES];
	int rc;

	KVT_ASSERT(n <= KVT_MAX_SIDE_PAGES);
	rc = n ? kvt_alloc(store->client, n, pages) : 0;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		load->pages[load->n_main + i].to = pages[i];
	return rc;
}

/* Give the side pages, which were copied, to the sequence: its next commit attaches them. */
static void give_sides(struct kvt_load *load)
{
	for (uint32_t i = load->n_main; i < load->n_pages; i++) {
		struct kvt_load_page *side = &load->pages[i];

		if (kvt_seq_attach(load->seq, KVT_SIDE_INDEX(side->place),
				   KVT_SIDE_KIND(side->place), side->to) == 0)
			side->to = 0;
	}
}

/* Free the pages for side pages that were not given. */
static void free_sides(const struct kvt_store *store, const struct kvt_load *load)
{
	uint32_t n = 0, pages[KVT_MAX_SIDE_PAGES];

	for (uint32_t i = load->n_main; i < load->n_pages; i++)
		if (load->pages[i].to)
			pages[n++] = load->pages[i].to;
	if (n)
		kvt_free(store->client, pages, n, KVT_IDLE);
}

/* ---- the beginning */

static uint32_t changes_of(const struct kvt_store *store, uint32_t page)
{
	return kvt_known_name(&store->known, page) ? store->known.pages[page].changes : 0;
}

/* Check that a sequence is behind the anchor, and that no RESET came before it. It locks the
 * anchor: if that did not change until now, its name was that of the keys in front. */
static bool is_behind_anchor(struct kvt_store *store, const struct kvt_store_fetch *ask,
			     const struct kvt_load *load, uint32_t changes)
{
	uint32_t n_table;
	const uint32_t *table = kvt_seq_pages(load->seq, &n_table);

	if (kvt_store_follow(store) < 0 || !store->current || store->reset || n_table < load->first)
		return false;
	return load->first == 0 || (table[load->first - 1] == ask->anchor &&
				    kvt_known_stayed(&store->known, ask->anchor, changes));
}

/* Make sure that a sequence loads what was promised, and that no other lease computes it. -ESTALE:
 * it does not. */
static int check_begun(struct kvt_store *store, const struct kvt_store_fetch *ask,
		       struct kvt_load *load, uint32_t changes)
{
	uint32_t page_size = store->known.info.page_size, matched = kvt_seq_matched(load->seq);
	int rc = 0;

	if (kvt_seq_announced(load->seq) > 0 || matched < ask->positions ||
	    matched >= ask->positions + load->n_main * page_size)
		return -ESTALE;
	load->n_pages = load->n_main;
	if (matched > kvt_seq_next(load->seq)) /* give back twins of what is cached */
		rc = kvt_seq_commit(load->seq, matched, NULL, 0, KVT_IDLE, 0);
	if (rc == 0 && !is_behind_anchor(store, ask, load, changes))
		rc = -ESTALE;
	load->done = load->at = load->ahead = load->committed = matched / page_size - load->first;
	if (rc == 0)
		rc = find_sides(store, load);
	return rc == 0 ? allocate_sides(store, load) : rc;
}

/* Open the namespace of a load. It stays open until one of another begins: to open and to close are
 * a round trip each. */
static int enter(struct kvt_store *store, const uint64_t digest[2], uint32_t *ret_namespace)
{
	uint32_t before = store->loads.namespace_id;
	int rc = kvt_namespace_open(store->client, digest, NULL, ret_namespace);

	if (rc != 0)
		return rc;
	store->loads.namespace_id = *ret_namespace;
	/* -EBUSY: a load is in it, and closes it. */
	if (before && before != *ret_namespace)
		kvt_namespace_close(store->client, before);
	return 0;
}

/* Announce the pages behind the anchor. */
static int announce(struct kvt_store *store, const struct kvt_store_fetch *ask,
		    const uint32_t *keys, struct kvt_load *load)
{
	uint32_t n_keys = load->n_main * store->known.info.page_size;
	uint32_t n_positions = ask->positions + n_keys;
	struct kvt_request begin = {
		.op = KVT_OP_BEGIN,
		.flags = KVT_F_FULL | KVT_F_UNCOUNTED, /* the last page, too */
		.keys = keys,
		.n_keys = n_keys,
		.handle = { ask->node, ask->generation, ask->positions },
		.root_key = ask->positions ? 0 : ask->root_key,
	};
	uint32_t changes = changes_of(store, ask->anchor);
	struct kvt_result begun;
	int rc = enter(store, ask->namespace_digest, &load->namespace_id);

	begin.namespace_id = load->namespace_id;
	if (rc == 0)
		rc = kvt_call(store->client, &begin, &begun);
	if (rc != 0)
		return rc;
	rc = kvt_seq_adopt(store->client, &begun, n_positions, &load->seq);
	if (rc != 0) {
		kvt_result_release(store->client, &begun);
		return rc; /* the lease is left to the end of the session: memory is short */
	}
	rc = check_begun(store, ask, load, changes);
	if (rc == 0)
		return 0;
	kvt_seq_end(load->seq, 0, NULL, 0, KVT_IDLE, 0);
	return rc;
}

static uint32_t pages_left(const struct kvt_load *load)
{
	return load->n_pages - load->done;
}

/* Append names of a page's side pages that no tier has. Returns how many names there are. */
static uint32_t add_sides(const struct kvt_store *store, const struct kvt_chain *page,
			  struct kvt_chain *names, uint32_t n, uint32_t most)
{
	for (uint32_t kind = 0; kind < store->known.info.n_sides && n < most; kind++) {
		kvt_chain_side(page, kind, &names[n]);
		n += !kvt_tier_has(store->tier, &names[n]);
	}
	return n;
}

uint32_t kvt_load_missing(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			  const uint32_t *keys, struct kvt_chain *ret_names, uint32_t most)
{
	uint32_t page_size = store->known.info.page_size, n = 0;
	struct kvt_chain before, chain;
	bool missing = false;

	if (!chain_of_anchor(store, ask, &chain))
		return 0;
	for (uint32_t i = 0; i < ask->n_keys / page_size && n < most; i++) {
		before = chain;
		kvt_chain_next(&chain, keys + (uint64_t)i * page_size, page_size, &chain);
		if (!missing && kvt_tier_has(store->tier, &chain))
			continue;
		if (!missing && i > 0) /* a side page leaves before its main page */
			n = add_sides(store, &before, ret_names, n, most);
		missing = true;
		if (n < most)
			ret_names[n++] = chain;
		n = add_sides(store, &chain, ret_names, n, most);
	}
	return n;
}

/* Room for main pages in all loads together. */
static uint32_t room_of(const struct kvt_store *store)
{
	uint32_t room = store->loads.most_pages - store->loads.n_pages;
	uint32_t sides = kvt_point_pages(&store->known.info);

	return room > sides ? room - sides : 0;
}

/* Count the leading pages of `keys` that an open load brings. With sides it has a point at its end
 * only. */
static uint32_t loading(const struct kvt_store *store, const struct kvt_store_fetch *ask,
			const struct kvt_chain *chain, const uint32_t *keys)
{
	uint32_t page_size = store->known.info.page_size, most = ask->n_keys / page_size, best = 0;
	struct kvt_chain head;

	if (!store->loads.first || most == 0)
		return 0;
	kvt_chain_next(chain, keys, page_size, &head);
	for (const struct kvt_load *load = store->loads.first; load; load = load->next) {
		uint32_t first = ask->positions / page_size - load->first, n = 0;
		struct kvt_chain page = head;

		while (n < most && first + n < load->n_main &&
		       memcmp(&page, &load->pages[first + n].name, sizeof(page)) == 0) {
			n++;
			if (n < most)
				kvt_chain_next(&page, keys + (uint64_t)n * page_size, page_size,
					       &page);
		}
		if (n > best && (!store->known.info.n_sides || first + n == load->n_main))
			best = n;
	}
	return best;
}

uint32_t kvt_load_begin(struct kvt_store *store, const struct kvt_store_fetch *ask,
			const uint32_t *keys)
{
	uint32_t page_size = store->known.info.page_size, most = ask->n_keys / page_size;
	uint32_t sides = kvt_point_pages(&store->known.info);
	struct kvt_loads *loads = &store->loads;
	struct kvt_chain chain;
	struct kvt_load *load;
	uint32_t n;

	if (!chain_of_anchor(store, ask, &chain))
		return 0;
	/* Announced already. The answer gives its waiters the deadline of a load, too. */
	n = loading(store, ask, &chain, keys);
	if (n > 0)
		return n * page_size;
	if (most > room_of(store))
		most = room_of(store);
	if (!sides && (uint64_t)most * page_size < store->host->options.min_positions)
		return 0;
	load = calloc(1, sizeof(*load) + (most + sides) * sizeof(*load->pages));
	if (!load)
		return 0;
	load->first = ask->positions / page_size;
	load->anchor = ask->anchor;
	load->front = chain;
	load->n_main = find_pages(store, chain, keys, most, load->pages);
	if (!end_at_point(store, load) || announce(store, ask, keys, load) != 0) {
		free(load);
		return 0;
	}
	pin(store, load);
	*(loads->last ? &loads->last->next : &loads->first) = load;
	loads->last = load;
	loads->n_pages += pages_left(load);
	loads->begun++;
	load->begun_ns = (uint64_t)kvt_now_ns();
	return load->n_main * page_size;
}

/* ---- its pages */

static uint32_t main_pages_done(const struct kvt_load *load)
{
	return load->done < load->n_main ? load->done : load->n_main;
}

/* Take the pages whose jobs have ended. Returns how many those were, a negative error if a device
 * failed. */
static int take_copied(struct kvt_store *store, struct kvt_load *load)
{
	struct kvt_loads *loads = &store->loads;
	uint64_t now = (uint64_t)kvt_now_ns();
	int n = 0;

	for (; load->done < load->at; load->done++, n++) {
		struct kvt_load_page *page = &load->pages[load->done];

		if (!kvt_job_has_ended(&page->job))
			break;
		if (page->job.result != 0)
			return page->job.result;
		loads->n_jobs--;
		loads->n_pages--;
		if (!page->entry)
			continue; /* others cached it */
		kvt_tier_unpin(store->tier, page->entry, true);
		page->entry = 0;
		loads->loaded++;
		loads->last_ns = now;
		loads->last_computed = store->share.computed;
		/* A mean over about eight pages. */
		loads->page_ns += (now - load->since_ns) / 8 - loads->page_ns / 8;
		load->since_ns = now;
	}
	return n;
}

/* Take note that what was loaded is used: the path, and side pages. */
static void use_loaded(struct kvt_store *store, const struct kvt_load *load)
{
	uint32_t n = main_pages_done(load);

	for (uint32_t i = n ? n - 1 : 0; i < load->done; i++)
		kvt_tier_use(store->tier, &load->pages[i].name);
}

/* End a load. `seal`: with what was copied since its last commit. */
static void end(struct kvt_store *store, struct kvt_load *load, bool seal)
{
	struct kvt_loads *loads = &store->loads;
	struct kvt_load **at = &loads->first, *before = NULL;
	uint32_t n_positions = 0;

	if (load->at > load->done) {
		kvt_jobs_settle(&store->jobs);
		take_copied(store, load);
	}
	if (seal)
		n_positions = (load->first + main_pages_done(load)) * store->known.info.page_size;
	loads->n_jobs -= load->at - load->done; /* a device failed */
	for (; *at != load; at = &(*at)->next)
		before = *at;
	*at = load->next;
	if (loads->last == load)
		loads->last = before;
	loads->n_pages -= pages_left(load);
	loads->ended++;
	loads->cut += pages_left(load) > 0;
	if (pages_left(load) == 0)
		kvt_store_time_add(&loads->time, (uint64_t)kvt_now_ns() - load->begun_ns);
	if (seal && pages_left(load) == 0)
		give_sides(load);
	use_loaded(store, load);
	kvt_seq_end(load->seq, n_positions, NULL, 0, KVT_IDLE, 0);
	free_sides(store, load);
	if (load->namespace_id != loads->namespace_id)
		kvt_namespace_close(store->client, load->namespace_id);
	unpin(store, load);
	free(load);
}

/* Take note that others cached the pages in front of one. Those that have a job are taken when that
 * has ended. */
static void skip(struct kvt_store *store, struct kvt_load *load, uint32_t end)
{
	for (; load->at < end; load->at++) {
		struct kvt_load_page *page = &load->pages[load->at];

		if (page->entry)
			kvt_tier_unpin(store->tier, page->entry, false);
		page->entry = 0;
		page->job.ended = true;
		store->loads.n_jobs++;
	}
}

/* Seal what was copied, and copy on meanwhile. Others may have sealed more, as the answers to
 * earlier commits tell: continue behind it. */
static int commit(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t page_size = store->known.info.page_size, next;
	uint32_t n_positions = (load->first + load->done) * page_size;
	int rc = kvt_seq_commit_async(load->seq, n_positions, NULL, 0, KVT_IDLE, 0);

	if (rc == -EAGAIN) { /* the ring is full; this one gives back what it displaces */
		kvt_jobs_settle(&store->jobs);
		rc = kvt_seq_commit(load->seq, n_positions, NULL, 0, KVT_IDLE, 0);
	}
	if (rc != 0)
		return rc;
	load->committed = load->done;
	next = kvt_seq_next(load->seq) / page_size - load->first;
	skip(store, load, next < load->n_main ? next : load->n_main);
	return 0;
}

/* The name of the page in front of a page of a load: of a side page, its main page. NULL: it is the
 * first of its prompt. */
static const struct kvt_chain *front_of(const struct kvt_store *store, const struct kvt_load *load,
					uint32_t at)
{
	uint32_t n_table, index = KVT_SIDE_INDEX(load->pages[at].place);
	const uint32_t *table = kvt_seq_pages(load->seq, &n_table);
	const struct kvt_chain *main;

	if (at < load->n_main)
		return at > 0 ? &load->pages[at - 1].name : load->first ? &load->front : NULL;
	main = name_at(store, load, table, load->first, index);
	return main ? main : &load->front;
}

/* Have a page brought, and pin it if it is there. Returns as kvt_tier_bring(). */
static int64_t bring_page(struct kvt_store *store, struct kvt_load *load, uint32_t at)
{
	struct kvt_load_page *page = &load->pages[at];
	int64_t rc = page->entry;

	if (rc == 0)
		rc = kvt_tier_bring(store->tier, &page->name, front_of(store, load, at));
	if (rc > 0)
		page->entry = (uint32_t)rc;
	store->begun += rc == -EINPROGRESS;
	return rc;
}

/* Have pages behind the next one read, as far as there is room. */
static void read_ahead(struct kvt_store *store, struct kvt_load *load)
{
	uint64_t before = store->begun, ahead = AHEAD_BYTES / store->slabs.record_bytes;

	ahead = ahead > AHEAD_PAGES ? ahead : AHEAD_PAGES;
	if (load->ahead <= load->at)
		load->ahead = load->at + 1;
	for (; load->ahead < load->n_pages && load->ahead - load->at < ahead &&
	       store->begun - before < AHEAD_READS; load->ahead++)
		if (bring_page(store, load, load->ahead) == -EAGAIN)
			return;
}

/* Get the next page into memory and pin it. Returns 1: it is there; 0: not yet. -ENOENT: it was
 * lost. */
static int bring(struct kvt_store *store, struct kvt_load *load)
{
	int64_t rc = bring_page(store, load, load->at);

	if (rc == -ENOENT)
		return -ENOENT;
	read_ahead(store, load);
	return rc > 0;
}

/* Have the next page, which is in memory, copied into the pool. */
static void copy(struct kvt_store *store, struct kvt_load *load, uint32_t to_page)
{
	struct kvt_load_page *page = &load->pages[load->at];

	if (load->at == load->done)
		load->since_ns = (uint64_t)kvt_now_ns();
	page->job = (struct kvt_job){
		.kind = KVT_JOB_IN, .slabs = &store->slabs, .page = to_page,
		.record = kvt_tier_record(store->tier, page->entry),
	};
	kvt_jobs_add(&store->jobs, &page->job);
	store->loads.n_jobs++;
	load->at++;
}

/* True if a COMMIT is due, before the last one, which is as long: BEGINs do not wait for less. */
static bool commit_due(const struct kvt_store *store, const struct kvt_load *load)
{
	uint32_t chunk = CHUNK_POSITIONS / store->known.info.page_size;

	chunk = chunk ? chunk : 1;
	return load->done < load->n_main && load->done - load->committed >= chunk &&
	       load->n_main - load->done >= chunk;
}

/* The pool's page that the next page is copied to. 0: there is none. */
static uint32_t next_page(const struct kvt_load *load)
{
	uint32_t at = load->first + load->at, n_pages;
	const uint32_t *pages = kvt_seq_pages(load->seq, &n_pages);

	if (load->at < load->n_pages && load->at >= load->n_main)
		return load->pages[load->at].to;
	return load->at < load->n_pages && at < n_pages ? pages[at] : 0;
}

/* Begin to copy the next page of a load. Returns 1: it did; 0: the page is on its way, or too many
 * jobs are open, or all have begun. -ENOENT: the page was lost. -ETIMEDOUT: it is late. */
static int begin_next(struct kvt_store *store, struct kvt_load *load)
{
	uint32_t to_page = next_page(load);
	uint64_t now = (uint64_t)kvt_now_ns();
	int there;

	if (!to_page || store->loads.n_jobs >= store->jobs_most)
		return 0;
	there = bring(store, load);
	if (there == 1) {
		load->waits_ns = 0;
		copy(store, load, to_page);
	} else if (there == 0) {
		load->waits_ns = load->waits_ns ? load->waits_ns : now;
		if (now - load->waits_ns >= LATE_NS)
			return -ETIMEDOUT;
	}
	return there;
}

/* True if nothing of a load is to come: all is there, or the sequence has no page for it. */
static bool is_over(const struct kvt_load *load)
{
	return load->at == load->done && next_page(load) == 0;
}

/* Go on with a load, or end it. False: its pages are on the way. */
static bool advance(struct kvt_store *store, struct kvt_load *load)
{
	int n = take_copied(store, load), begun, rc = 0;

	if (n < 0)
		return true; /* kvt_store_broken() */
	begun = begin_next(store, load);
	if (commit_due(store, load))
		rc = commit(store, load);
	if (rc == 0 && begun >= 0 && !is_over(load))
		return n + begun > 0;
	end(store, load, true);
	return true;
}

bool kvt_load_turn(struct kvt_store *store)
{
	struct kvt_load *load = store->loads.first;
	/* Before the looks: what arrives behind them is seen by those of the next turn. */
	bool moves = load && (store->loads.n_jobs > 0 || kvt_tier_moves(store->tier));
	uint64_t before = store->begun;

	while (load) {
		struct kvt_load *next = load->next;

		if (advance(store, load) || store->begun != before)
			return true;
		load = next;
	}
	/* With nothing on its way, loads wait for what the pages of each other occupy. */
	if (!store->loads.first || moves)
		return false;
	end(store, store->loads.first, true);
	return true;
}

void kvt_loads_end(struct kvt_store *store)
{
	if (store->loads.first)
		kvt_jobs_settle(&store->jobs);
	while (store->loads.first && !kvt_store_broken(store))
		end(store, store->loads.first, false);
}
