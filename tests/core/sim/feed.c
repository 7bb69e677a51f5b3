/* SPDX-License-Identifier: Apache-2.0 */

/* A subscriber of the feed, stopped and overtaken at random, and by the death of the core.
 *
 * What it knows of pages comes from records alone. After each snapshot, and whenever it has read
 * all records, that must be the arena's cached pages on paths that match: keys, parents, sealers,
 * namespaces, root keys and side pages. It has random numbers of its own, so it changes nothing of
 * a run. Callers: main.c; tests/core/crash/main.c, which also steps a snapshot between stores. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/zeroed.h"
#include "tests/core/sim/sim.h"

#define RING_BYTES (2 * KVT_FEED_ENTRY_MAX)
#define STOP_MOST 1000 /* steps */

static uint32_t below(struct sim_feed *feed, uint32_t n)
{
	feed->random = feed->random * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((feed->random >> 33) % n);
}

static bool chance(struct sim_feed *feed, uint32_t per_mille)
{
	return below(feed, 1000) < per_mille;
}

static void on_change(void *context, const struct kvt_change *change)
{
	struct sim *sim = context;

	kvt_feed_write(&sim->feed.writer, change);
}

/* ---- what the subscriber knows */

static void forget(struct sim *sim)
{
	memset(sim->feed.pages, 0, sim->config.n_pages * sizeof(*sim->feed.pages));
}

static void learn_stored(struct sim *sim, const struct kvt_feed_record *record)
{
	uint32_t ps = sim->config.page_size, parent = record->parent;
	struct sim_feed *feed = &sim->feed;

	if (parent && feed->pages[parent].state != KVT_PAGE_CACHED)
		sim_fail(sim, "feed: page %u was stored behind page %u, which is not known",
			 record->pages[0], parent);
	for (uint32_t i = 0; i < record->n; i++) {
		uint32_t page = record->pages[i];

		if (feed->pages[page].state)
			sim_fail(sim, "feed: page %u was stored twice", page);
		feed->pages[page] = (struct sim_fed_page){
			.state = KVT_PAGE_CACHED,
			.parent = parent,
			.sealer = record->sealer,
			.namespace_id = parent ? 0 : record->namespace_id,
			.root_key = parent ? 0 : record->root_key,
			.ends = record->ends,
		};
		memcpy(feed->keys + (size_t)page * ps, record->keys + (size_t)i * ps,
		       ps * sizeof(uint32_t));
		parent = page;
	}
}

static void learn_side(struct sim *sim, const struct kvt_feed_side *side)
{
	struct sim_fed_page *pages = sim->feed.pages;
	struct sim_fed_page now = { .state = KVT_PAGE_SIDE, .parent = side->page,
				    .kind = side->kind };

	for (uint32_t page = 1; page < sim->config.n_pages; page++)
		if (pages[page].state == now.state && pages[page].parent == now.parent &&
		    pages[page].kind == now.kind)
			sim_fail(sim, "feed: side page %u came before page %u left its place",
				 side->side, page);
	pages[side->side] = now;
}

static void learn(struct sim *sim, const struct kvt_feed_record *record)
{
	struct sim_feed *feed = &sim->feed;

	sim->coverage->rare[SIM_FEED_SIDE] += record->type == KVT_FEED_SIDE;
	switch (record->type) {
	case KVT_FEED_NAMESPACE:
		memcpy(feed->digests[record->namespace_id], record->digest,
		       sizeof(record->digest));
		break;
	case KVT_FEED_STORED:
		learn_stored(sim, record);
		break;
	case KVT_FEED_SIDE:
		for (uint32_t i = 0; i < record->n; i++)
			learn_side(sim, &record->sides[i]);
		break;
	case KVT_FEED_REMOVED:
		for (uint32_t i = 0; i < record->n; i++)
			feed->pages[record->pages[i]].state = 0;
		break;
	case KVT_FEED_LASTING:
		sim->coverage->rare[SIM_FEED_LASTING]++;
		for (uint32_t i = 0; i < record->n; i++)
			feed->pages[record->pages[i]].ends = false;
		break;
	case KVT_FEED_CLEARED:
		forget(sim);
		sim->coverage->rare[SIM_FEED_CLEARED]++;
		break;
	case KVT_FEED_USED:
		if (feed->pages[record->parent].state != KVT_PAGE_CACHED)
			sim_fail(sim, "feed: page %u was reused and is not known", record->parent);
		break;
	default:
		sim_fail(sim, "feed: a record of type %u", record->type);
	}
}

/* ---- against the arena */

static bool root_is(const struct sim *sim, uint32_t page, const struct sim_fed_page *fed)
{
	const struct kvt_arena_view *view = &sim->feed.view;
	struct kvt_admin_namespace space;
	struct kvt_admin_page place;
	uint64_t key;
	uint32_t id;

	if (!kvt_core_describe_page(sim->core, page, &place))
		return false;
	id = view->nodes[place.node].namespace_id;
	key = view->nodes[place.node].flags & KVT_NODE_KEYED ? view->root_keys[place.node] : 0;
	return id == fed->namespace_id && key == fed->root_key &&
	       kvt_core_describe_namespace(sim->core, id, &space) &&
	       memcmp(space.digest, sim->feed.digests[id], sizeof(space.digest)) == 0;
}

/* True if the node of a page has a time to live. */
static bool ends(const struct sim *sim, uint32_t page)
{
	struct kvt_admin_page place;

	return kvt_core_describe_page(sim->core, page, &place) &&
	       sim->feed.view.nodes[place.node].expiry_ns != UINT64_MAX;
}

/* True if a cached page is what the subscriber believes. */
static bool page_is(const struct sim *sim, uint32_t page, const struct sim_fed_page *fed)
{
	const struct kvt_arena_view *view = &sim->feed.view;
	const struct kvt_page_record *record = &view->pages[page];
	uint32_t ps = view->page_size;

	if (record->parent != fed->parent)
		return false;
	if (record->slot == KVT_NONE)
		return fed->state == KVT_PAGE_SIDE &&
		       kvt_arena_side(view, fed->parent, fed->kind) == page;
	return fed->state == KVT_PAGE_CACHED && record->sealer == fed->sealer &&
	       fed->ends == ends(sim, page) &&
	       memcmp(view->slot_keys + (size_t)record->slot * ps,
		      sim->feed.keys + (size_t)page * ps, ps * sizeof(uint32_t)) == 0 &&
	       (fed->parent || root_is(sim, page, fed));
}

/* True if a cached page is on a path that was cut off, or is of an earlier epoch. */
static bool is_cut_off(const struct sim *sim, uint32_t page)
{
	const struct kvt_arena_view *view = &sim->feed.view;
	struct kvt_admin_page place;
	uint32_t id;

	kvt_core_describe_page(sim->core, page, &place);
	for (id = place.node; id != KVT_NONE; id = view->nodes[id].parent)
		if (view->nodes[id].flags & KVT_NODE_DETACHED ||
		    view->nodes[id].epoch != view->header->epoch)
			return true;
	return false;
}

/* True if the subscriber knows a page, and its whole path. */
static bool is_known(const struct sim *sim, uint32_t page)
{
	const struct sim_fed_page *pages = sim->feed.pages;

	while (page != KVT_NONE && pages[page].state)
		page = pages[page].parent;
	return page == KVT_NONE;
}

static void check(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;

	for (uint32_t page = 1; page < sim->config.n_pages && !sim->failed; page++) {
		const struct sim_fed_page *fed = &feed->pages[page];
		bool cached = feed->view.pages[page].state == KVT_PAGE_CACHED;

		if (cached && is_cut_off(sim, page)) {
			sim->coverage->rare[SIM_FEED_CUT_OFF]++;
			cached = false;
		}
		if (cached != is_known(sim, page))
			sim_fail(sim, "feed: page %u is %scached, and the subscriber believes "
				 "state %u, parent %u", page, cached ? "" : "not ", fed->state,
				 fed->parent);
		else if (cached && !page_is(sim, page, fed))
			sim_fail(sim, "feed: page %u, state %u, parent %u, kind %u, namespace %u: "
				 "the arena has another", page, fed->state, fed->parent, fed->kind,
				 fed->namespace_id);
	}
	sim->coverage->rare[SIM_FEED_CHECKED]++;
}

/* ---- its life */

static void subscribe(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;
	uint64_t bytes = sizeof(struct kvt_feed_header) + RING_BYTES;

	if (!feed->memory) {
		feed->memory = zeroed(bytes);
		feed->pages = calloc(sim->config.n_pages, sizeof(*feed->pages));
		feed->keys = calloc(sim->config.n_pages,
				    sim->config.page_size * sizeof(uint32_t));
		kvt_arena_view_init(&feed->view, sim->arena, sim->arena_bytes);
	}
	kvt_feed_begin(&feed->writer, feed->memory, bytes, sim->core, sim->arena, sim->arena_bytes,
		       chance(feed, 500));
	if (kvt_feed_reader_init(&feed->reader, feed->memory, bytes, sim->config.page_size))
		sim_fail(sim, "feed: the reader refuses it");
	kvt_core_set_change(sim->core, on_change);
	feed->on = true;
	feed->known = feed->reading = false;
	feed->stopped = 0;
}

/* The core is gone, and its feed with it. */
void sim_feed_lost(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;

	if (!feed->on)
		return;
	if (feed->reading)
		kvt_snapshot_destroy(&feed->snapshot);
	kvt_feed_reader_destroy(&feed->reader);
	feed->on = feed->known = feed->reading = false;
}

void sim_feed_free(struct sim *sim)
{
	sim_feed_lost(sim);
	free(sim->feed.memory);
	free(sim->feed.pages);
	free(sim->feed.keys);
}

/* The snapshot is ready: learn it. What came since is read as ever. */
static void take_snapshot(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;
	struct kvt_feed_record record;
	int rc;

	forget(sim);
	memset(feed->digests, 0, sizeof(feed->digests));
	while ((rc = kvt_snapshot_next(&feed->snapshot, &record)) > 0)
		learn(sim, &record);
	if (rc < 0)
		sim_fail(sim, "feed: the snapshot contradicts itself");
	sim->coverage->rare[SIM_FEED_ROUNDS] += feed->snapshot.rounds > 0;
	kvt_snapshot_destroy(&feed->snapshot);
	feed->reading = false;
	feed->known = true;
	sim->coverage->rare[SIM_FEED_SNAPSHOT]++;
}

static void step_snapshot(struct sim *sim, uint32_t steps)
{
	int rc = kvt_snapshot_step(&sim->feed.snapshot, steps);

	if (rc == 1)
		take_snapshot(sim);
	else if (rc == -EOVERFLOW)
		sim->coverage->rare[SIM_FEED_OVERTAKEN_READING]++;
	else if (rc < 0)
		sim_fail(sim, "feed: snapshot: %d", rc);
}

/* Read up to n records. True: there are no more. */
static bool read_some(struct sim *sim, uint32_t n)
{
	struct sim_feed *feed = &sim->feed;
	struct kvt_feed_record record;
	int rc = 1;

	while (n-- > 0 && !sim->failed && (rc = kvt_feed_reader_next(&feed->reader, &record)) == 1)
		learn(sim, &record);
	if (rc == -EOVERFLOW) {
		feed->known = false;
		sim->coverage->rare[SIM_FEED_OVERTAKEN]++;
	} else if (rc < 0) {
		sim_fail(sim, "feed: %d", rc);
	}
	return rc == 0;
}

void sim_feed_inside(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;

	if (feed->on && feed->reading && chance(feed, 100))
		step_snapshot(sim, 1 + below(feed, chance(feed, 300) ? 256 : 8));
}

/* The writer gives up all that it has written, as a small ring would. */
static void overtake(struct sim_feed *feed)
{
	feed->writer.head = feed->writer.header->head = feed->writer.end;
}

void sim_feed_step(struct sim *sim)
{
	struct sim_feed *feed = &sim->feed;

	if (sim->step == 1)
		feed->random = sim->seed;
	if (!feed->on && chance(feed, 20))
		subscribe(sim);
	if (!feed->on || (feed->stopped > 0 && feed->stopped-- > 0))
		return;
	if (chance(feed, 4))
		overtake(feed);
	if (chance(feed, 2))
		feed->stopped = 1 + below(feed, STOP_MOST);
	if (chance(feed, 1)) {
		kvt_core_set_change(sim->core, NULL);
		sim_feed_lost(sim);
	} else if (feed->reading) {
		step_snapshot(sim, 1 + below(feed, chance(feed, 100) ? 64 : 4));
	} else if (!feed->known || chance(feed, 50)) {
		if (kvt_snapshot_init(&feed->snapshot, &feed->view, &feed->reader))
			sim_fail(sim, "out of memory");
		else
			feed->reading = true;
		feed->known = false;
	}
	if (feed->known && read_some(sim, chance(feed, 300) ? UINT32_MAX : below(feed, 3)))
		check(sim);
}
