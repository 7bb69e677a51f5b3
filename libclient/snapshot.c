/* SPDX-License-Identifier: Apache-2.0 */

/* A snapshot of what is cached (snapshot.h has the algorithm and its proof). */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/snapshot.h"
#include "shm/assert.h"
#include "shm/atomic.h"
#include "shm/racy.h"

#define WORDS_OF_RECORD (sizeof(struct kvt_page_record) / sizeof(uint32_t))
#define ROUNDS_MOST 1000 /* a root page is moved between two reads, that often */

/** Note where the snapshot begins. */
static void begin(struct kvt_snapshot *snapshot)
{
	snapshot->reader->at = kvt_feed_reader_tail(snapshot->reader);
	snapshot->epoch = kvt_load_relaxed(&snapshot->view->header->epoch);
}

static void begin_again(struct kvt_snapshot *snapshot)
{
	memset(snapshot->namespaces, 0,
	       snapshot->view->max_namespaces * sizeof(*snapshot->namespaces));
	snapshot->phase = KVT_SNAPSHOT_NAMESPACES;
	snapshot->at = snapshot->rounds = 0;
	begin(snapshot);
}

int kvt_snapshot_init(struct kvt_snapshot *snapshot, const struct kvt_arena_view *view,
		      struct kvt_feed_reader *reader)
{
	*snapshot = (struct kvt_snapshot){
		.view = view,
		.reader = reader,
		.namespaces = calloc(view->max_namespaces, sizeof(*snapshot->namespaces)),
		.pages = calloc(view->n_pages, sizeof(*snapshot->pages)),
		.keys = calloc(view->n_pages, (size_t)view->page_size * sizeof(uint32_t)),
		.chain = calloc(view->n_pages, sizeof(uint32_t)),
	};
	if (snapshot->namespaces && snapshot->pages && snapshot->keys && snapshot->chain) {
		begin(snapshot);
		return 0;
	}
	kvt_snapshot_destroy(snapshot);
	return -ENOMEM;
}

void kvt_snapshot_destroy(struct kvt_snapshot *snapshot)
{
	free(snapshot->namespaces);
	free(snapshot->pages);
	free(snapshot->keys);
	free(snapshot->chain);
	memset(snapshot, 0, sizeof(*snapshot));
}

/* ---- the arena */

static bool lacks_root(const struct kvt_snapshot_page *page)
{
	return page->state == KVT_PAGE_CACHED && page->parent == KVT_NONE && !page->namespace_id;
}

/** True if no node told of a page yet what its record does not. */
static bool is_open(const struct kvt_snapshot_page *page)
{
	return lacks_root(page) ||
	       (page->state == KVT_PAGE_CACHED && page->life == KVT_LIFE_UNKNOWN);
}

/** Note what a page is now. */
static void set_page(struct kvt_snapshot *snapshot, uint32_t page, struct kvt_snapshot_page now)
{
	snapshot->n_open -= is_open(&snapshot->pages[page]);
	snapshot->n_open += is_open(&now);
	snapshot->pages[page] = now;
}

static uint32_t *keys_of(const struct kvt_snapshot *snapshot, uint32_t page)
{
	return snapshot->keys + (size_t)page * snapshot->view->page_size;
}

static bool read_namespace(struct kvt_snapshot *snapshot, uint32_t id)
{
	const struct kvt_namespace_record *from = &snapshot->view->namespaces[id];
	struct kvt_snapshot_namespace *to = &snapshot->namespaces[id];

	to->used = kvt_load_relaxed(&from->flags) & KVT_NAMESPACE_USED;
	to->digest[0] = kvt_load_relaxed(&from->digest[0]);
	to->digest[1] = kvt_load_relaxed(&from->digest[1]);
	return true;
}

static void read_record(const struct kvt_page_record *from, struct kvt_page_record *to)
{
	kvt_racy_copy((uint32_t *)to, (const uint32_t *)from, WORDS_OF_RECORD);
	kvt_fence_acquire(); /* pairs with the release fence that begins a mutation */
}

/** The kind of a side page; none if it is being attached, or leaves: then a record tells. */
static uint32_t kind_of(const struct kvt_snapshot *snapshot, uint32_t main, uint32_t side)
{
	uint32_t kind = 0;

	while (kind < snapshot->view->n_sides &&
	       kvt_arena_side(snapshot->view, main, kind) != side)
		kind++;
	return kind;
}

static bool read_page(struct kvt_snapshot *snapshot, uint32_t page)
{
	const struct kvt_arena_view *view = snapshot->view;
	struct kvt_page_record first, second;
	struct kvt_snapshot_page now;

	read_record(&view->pages[page], &second);
	do {
		first = second;
		now = (struct kvt_snapshot_page){ .parent = first.parent, .sealer = first.sealer };
		if (first.state != KVT_PAGE_CACHED || first.parent >= view->n_pages ||
		    first.slot >= view->n_slots) {
			/* Drop a page that was read before the feed was overtaken. */
			if (snapshot->pages[page].state)
				set_page(snapshot, page, (struct kvt_snapshot_page){ 0 });
			return true;
		}
		now.state = first.slot == KVT_NONE ? KVT_PAGE_SIDE : KVT_PAGE_CACHED;
		if (now.state == KVT_PAGE_SIDE)
			now.kind = kind_of(snapshot, first.parent, page);
		else
			kvt_racy_copy(keys_of(snapshot, page),
				      view->slot_keys + (size_t)first.slot * view->page_size,
				      view->page_size);
		kvt_fence_acquire(); /* pairs with the same: other keys come with another record */
		read_record(&view->pages[page], &second);
	} while (memcmp(&first, &second, sizeof(first)) != 0);
	set_page(snapshot, page, now);
	return true;
}

/** A node's run of cached pages, as read from the node. */
struct run {
	uint32_t n; /* cached pages, in snapshot->chain, which is not used yet */
	uint32_t start, flags, namespace_id;
	uint64_t root_key, epoch, expiry_ns;
	bool cut; /* its subtree was detached */
};

/** True if a node, or the root that it hangs on, was detached. A root cannot be freed, nor its
 * number reused, before the nodes on it changed. */
static bool is_cut(const struct kvt_arena_view *view, const struct kvt_node *node)
{
	uint32_t parent = kvt_load_relaxed(&node->parent);
	uint32_t flags = kvt_load_relaxed(&node->flags);

	if (kvt_load_relaxed(&node->start) == 0 && parent < view->max_nodes)
		flags |= kvt_load_relaxed(&view->nodes[parent].flags);
	return flags & KVT_NODE_DETACHED;
}

/** Read it under the node's version. False: the node changes. A free node has no pages. */
static bool read_run(const struct kvt_snapshot *snapshot, uint32_t id, struct run *run)
{
	const struct kvt_arena_view *view = snapshot->view;
	const struct kvt_node *node = &view->nodes[id];
	/* Pairs with the release that ends a change of the node. */
	uint32_t version = kvt_load_acquire(&node->version);
	uint32_t slot = kvt_load_relaxed(&node->first_slot);
	uint32_t n = kvt_load_relaxed(&node->sealed);

	n = n < view->n_pages && slot < view->n_slots && n <= view->n_slots - slot ? n : 0;
	for (uint32_t i = 0; i < n; i++)
		snapshot->chain[i] = kvt_load_relaxed(&view->slot_pages[slot + i]);
	*run = (struct run){
		.n = n,
		.start = kvt_load_relaxed(&node->start),
		.flags = kvt_load_relaxed(&node->flags),
		.namespace_id = kvt_load_relaxed(&node->namespace_id),
		.root_key = kvt_load_relaxed(&view->root_keys[id]),
		.epoch = kvt_load_relaxed(&node->epoch),
		.expiry_ns = kvt_load_relaxed(&node->expiry_ns),
		.cut = is_cut(view, node),
	};
	/* Pairs with the release fence that begins one. */
	kvt_fence_acquire();
	return !(version & 1) && kvt_load_relaxed(&node->version) == version;
}

/** Note what a node says of one of its pages; of the first one, where its path begins. */
static void note_page(struct kvt_snapshot *snapshot, const struct run *run, uint32_t page,
		      bool is_first)
{
	struct kvt_snapshot_page now = snapshot->pages[page];

	now.life = run->expiry_ns == UINT64_MAX ? KVT_LIFE_LASTS : KVT_LIFE_ENDS;
	if (is_first && (run->cut || run->epoch < snapshot->epoch)) {
		now.state = 0;
	} else if (is_first && run->start == 0 && lacks_root(&now)) {
		now.namespace_id = run->namespace_id;
		now.root_key = run->flags & KVT_NODE_KEYED ? run->root_key : 0;
	}
	set_page(snapshot, page, now);
}

/** Read what is known of the pages of a node only there: whether they have a time to live; where a
 * path begins, its namespace and root key; that the path was cut off there. */
static bool read_node(struct kvt_snapshot *snapshot, uint32_t id)
{
	struct run run;

	if (!read_run(snapshot, id, &run))
		return false;
	if (!(run.flags & KVT_NODE_LIVE))
		return true;
	for (uint32_t i = 0; i < run.n; i++)
		if (snapshot->chain[i] < snapshot->view->n_pages)
			note_page(snapshot, &run, snapshot->chain[i], i == 0);
	return true;
}

/* ---- the feed */

static bool pages_ok(const struct kvt_snapshot *snapshot, const struct kvt_feed_record *record)
{
	uint32_t n_pages = snapshot->view->n_pages;

	if (record->parent >= n_pages || record->namespace_id >= snapshot->view->max_namespaces)
		return false;
	for (uint32_t i = 0; i < record->n; i++)
		if ((record->pages && record->pages[i] >= n_pages) ||
		    (record->sides && (record->sides[i].side >= n_pages ||
				       record->sides[i].page >= n_pages)))
			return false;
	return true;
}

static void apply_stored(struct kvt_snapshot *snapshot, const struct kvt_feed_record *record)
{
	uint32_t ps = snapshot->view->page_size, parent = record->parent;

	for (uint32_t i = 0; i < record->n; i++) {
		uint32_t page = record->pages[i];

		memcpy(keys_of(snapshot, page), record->keys + (size_t)i * ps,
		       ps * sizeof(*record->keys));
		set_page(snapshot, page, (struct kvt_snapshot_page){
			.state = KVT_PAGE_CACHED,
			.parent = parent,
			.sealer = record->sealer,
			.namespace_id = record->namespace_id,
			.root_key = record->root_key,
			.life = record->ends ? KVT_LIFE_ENDS : KVT_LIFE_LASTS,
		});
		parent = page;
	}
}

static void apply(struct kvt_snapshot *snapshot, const struct kvt_feed_record *record)
{
	switch (record->type) {
	case KVT_FEED_NAMESPACE:
		snapshot->namespaces[record->namespace_id] = (struct kvt_snapshot_namespace){
			{ record->digest[0], record->digest[1] }, true,
		};
		break;
	case KVT_FEED_STORED:
		apply_stored(snapshot, record);
		break;
	case KVT_FEED_SIDE:
		for (uint32_t i = 0; i < record->n; i++)
			set_page(snapshot, record->sides[i].side, (struct kvt_snapshot_page){
				.state = KVT_PAGE_SIDE,
				.parent = record->sides[i].page,
				.kind = record->sides[i].kind,
			});
		break;
	case KVT_FEED_REMOVED:
		for (uint32_t i = 0; i < record->n; i++)
			set_page(snapshot, record->pages[i], (struct kvt_snapshot_page){ 0 });
		break;
	case KVT_FEED_LASTING:
		for (uint32_t i = 0; i < record->n; i++) {
			struct kvt_snapshot_page now = snapshot->pages[record->pages[i]];

			now.life = KVT_LIFE_LASTS;
			set_page(snapshot, record->pages[i], now);
		}
		break;
	case KVT_FEED_CLEARED:
		memset(snapshot->pages, 0, snapshot->view->n_pages * sizeof(*snapshot->pages));
		snapshot->n_open = 0;
		break;
	default:
		break;
	}
}

/** Apply the next records of the feed, up to T1. Returns 1 if those were all, 0: call again. */
static int apply_some(struct kvt_snapshot *snapshot, uint32_t *steps)
{
	struct kvt_feed_record record;

	while (snapshot->reader->at < snapshot->until) {
		int rc = *steps ? kvt_feed_reader_next(snapshot->reader, &record) : 0;

		if (rc < 0 || *steps == 0)
			return rc;
		if (rc == 0) /* a PAD was the last one */
			break;
		if (!pages_ok(snapshot, &record))
			return -EPROTO;
		apply(snapshot, &record);
		*steps -= record.n < *steps ? record.n + 1 : *steps;
	}
	return 1;
}

/* ---- the steps */

/** Read the next ones of n namespaces, pages or nodes, or begin the next phase. False: one that is
 * being changed comes next. */
static bool read_some(struct kvt_snapshot *snapshot, uint32_t n,
		      bool read_one(struct kvt_snapshot *snapshot, uint32_t id), uint32_t *steps)
{
	for (; snapshot->at < n && *steps > 0; --*steps, snapshot->at++)
		if (!read_one(snapshot, snapshot->at))
			return false;
	if (snapshot->at < n)
		return true;
	snapshot->at = 0;
	snapshot->phase++;
	/* All reads are of mutations up to this one. Pairs with the release fence that begins
	 * it. */
	kvt_fence_acquire();
	snapshot->mutation = kvt_load_relaxed(&snapshot->view->header->mutation);
	return true;
}

int kvt_snapshot_step(struct kvt_snapshot *snapshot, uint32_t steps)
{
	const struct kvt_arena_view *view = snapshot->view;
	int rc = 0;

	while (steps > 0) {
		switch (snapshot->phase) {
		case KVT_SNAPSHOT_NAMESPACES:
			read_some(snapshot, view->max_namespaces, read_namespace, &steps);
			break;
		case KVT_SNAPSHOT_PAGES:
			read_some(snapshot, view->n_pages, read_page, &steps);
			break;
		case KVT_SNAPSHOT_NODES:
			if (!read_some(snapshot, view->max_nodes, read_node, &steps))
				return 0;
			break;
		case KVT_SNAPSHOT_SETTLE:
			/* Pairs with the release that ends a mutation: its records are there. */
			if (snapshot->mutation & 1 &&
			    kvt_load_acquire(&view->header->mutation) == snapshot->mutation)
				return 0;
			snapshot->until = kvt_feed_reader_tail(snapshot->reader);
			snapshot->phase = KVT_SNAPSHOT_APPLY;
			break;
		case KVT_SNAPSHOT_APPLY:
			rc = apply_some(snapshot, &steps);
			if (rc == -EOVERFLOW)
				begin_again(snapshot);
			if (rc <= 0)
				return rc;
			if (snapshot->n_open && ++snapshot->rounds > ROUNDS_MOST)
				return -EPROTO;
			snapshot->phase = snapshot->n_open ? KVT_SNAPSHOT_NODES :
								 KVT_SNAPSHOT_READY;
			break;
		case KVT_SNAPSHOT_READY:
			return 1;
		}
	}
	return snapshot->phase == KVT_SNAPSHOT_READY;
}

/* ---- giving it away */

/** Put `page`, and what is in front of it and was not given, into the chain. If a page in front is
 * not there, all behind it is left out. False: a path is a circle. */
static bool find_chain(struct kvt_snapshot *snapshot, uint32_t page)
{
	for (; page != KVT_NONE && !snapshot->pages[page].given;
	     page = snapshot->pages[page].parent) {
		if (snapshot->n_chain == snapshot->view->n_pages)
			return false;
		snapshot->chain[snapshot->n_chain++] = page;
		if (snapshot->pages[page].state == KVT_PAGE_CACHED)
			continue;
		while (snapshot->n_chain > 0)
			snapshot->pages[snapshot->chain[--snapshot->n_chain]].state = 0;
		return true;
	}
	return true;
}

/** Give the first pages of the chain. */
static void give_chain(struct kvt_snapshot *snapshot, struct kvt_feed_record *record)
{
	uint32_t ps = snapshot->view->page_size, most = kvt_feed_most(KVT_FEED_STORED, ps);
	uint32_t first = snapshot->chain[snapshot->n_chain - 1];
	const struct kvt_snapshot_page *of = &snapshot->pages[first];
	uint32_t *words = snapshot->reader->copy->words, n = 0;

	for (uint32_t i = snapshot->n_chain; i > 0 && n < most; i--, n++) {
		const struct kvt_snapshot_page *page = &snapshot->pages[snapshot->chain[i - 1]];

		if (page->sealer != of->sealer || page->life != of->life)
			break;
		words[n] = snapshot->chain[i - 1];
	}
	for (uint32_t i = 0; i < n; i++) {
		snapshot->pages[words[i]].given = true;
		memcpy(words + n + (size_t)i * ps, keys_of(snapshot, words[i]),
		       ps * sizeof(*words));
	}
	snapshot->n_chain -= n;
	*record = (struct kvt_feed_record){
		.type = KVT_FEED_STORED,
		.n = n,
		.parent = of->parent,
		.namespace_id = of->namespace_id,
		.root_key = of->root_key,
		.sealer = of->sealer,
		.ends = of->life == KVT_LIFE_ENDS,
		.pages = words,
		.keys = words + n,
	};
}

static int next_stored(struct kvt_snapshot *snapshot, struct kvt_feed_record *record)
{
	while (snapshot->n_chain == 0) {
		uint32_t page = snapshot->view->n_pages - 1 - snapshot->at;

		if (snapshot->at == snapshot->view->n_pages)
			return 0;
		snapshot->at++; /* downwards: the end of a path mostly has its highest numbers */
		if (snapshot->pages[page].state == KVT_PAGE_CACHED && !find_chain(snapshot, page))
			return -EPROTO;
	}
	give_chain(snapshot, record);
	return 1;
}

static int next_side(struct kvt_snapshot *snapshot, struct kvt_feed_record *record)
{
	uint32_t most = kvt_feed_most(KVT_FEED_SIDE, snapshot->view->page_size), n = 0;
	struct kvt_feed_side *sides = (void *)snapshot->reader->copy->words;

	for (; snapshot->at < snapshot->view->n_pages && n < most; snapshot->at++) {
		const struct kvt_snapshot_page *page = &snapshot->pages[snapshot->at];

		if (page->state != KVT_PAGE_SIDE || !snapshot->pages[page->parent].given)
			continue;
		if (page->kind >= snapshot->view->n_sides)
			return -EPROTO;
		sides[n++] = (struct kvt_feed_side){ page->parent, page->kind, snapshot->at };
	}
	*record = (struct kvt_feed_record){ .type = KVT_FEED_SIDE, .n = n, .sides = sides };
	return n > 0;
}

static int next_namespace(struct kvt_snapshot *snapshot, struct kvt_feed_record *record)
{
	while (snapshot->at < snapshot->view->max_namespaces) {
		uint32_t id = snapshot->at++;
		const struct kvt_snapshot_namespace *space = &snapshot->namespaces[id];

		if (!space->used)
			continue;
		*record = (struct kvt_feed_record){
			.type = KVT_FEED_NAMESPACE,
			.namespace_id = id,
			.digest = { space->digest[0], space->digest[1] },
		};
		return 1;
	}
	return 0;
}

int kvt_snapshot_next(struct kvt_snapshot *snapshot, struct kvt_feed_record *ret_record)
{
	enum kvt_feed_type last = snapshot->view->n_sides ? KVT_FEED_SIDE : KVT_FEED_STORED;

	KVT_ASSERT(snapshot->phase == KVT_SNAPSHOT_READY);
	if (snapshot->giving == KVT_FEED_PAD) {
		snapshot->giving = KVT_FEED_NAMESPACE;
		snapshot->at = 0;
	}
	for (; snapshot->giving <= last; snapshot->giving++, snapshot->at = 0) {
		int rc = snapshot->giving == KVT_FEED_NAMESPACE ?
				 next_namespace(snapshot, ret_record) :
			 snapshot->giving == KVT_FEED_STORED ? next_stored(snapshot, ret_record) :
							       next_side(snapshot, ret_record);

		if (rc != 0)
			return rc;
	}
	return 0;
}
