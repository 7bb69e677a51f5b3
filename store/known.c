/* SPDX-License-Identifier: Apache-2.0 */
#include "store/known.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAMESPACES_MAX (1u << 24)

int kvt_known_init(struct kvt_known *known, const struct kvt_info *info, uint32_t queue_pages)
{
	*known = (struct kvt_known){
		.info = *info,
		.pages = calloc(info->n_pages, sizeof(*known->pages)),
		.sides = calloc((size_t)info->n_pages * info->n_sides + 1, sizeof(*known->sides)),
		.queue = calloc(queue_pages + 1ull, sizeof(*known->queue)),
		.queue_pages = queue_pages,
		.sweep_at = info->n_pages,
		.round = 1,
	};
	if (known->pages && known->sides && known->queue)
		return 0;
	kvt_known_destroy(known);
	return -ENOMEM;
}

void kvt_known_destroy(struct kvt_known *known)
{
	free(known->pages);
	free(known->sides);
	free(known->digests);
	free(known->queue);
	*known = (struct kvt_known){ .pages = NULL };
}

static struct kvt_known_page *page_at(struct kvt_known *known, uint32_t page)
{
	return page > 0 && page < known->info.n_pages ? &known->pages[page] : NULL;
}

const struct kvt_chain *kvt_known_name(const struct kvt_known *known, uint32_t page)
{
	if (page == 0 || page >= known->info.n_pages || known->pages[page].round != known->round)
		return NULL;
	return &known->pages[page].chain;
}

bool kvt_known_copyable(const struct kvt_known *known, uint32_t page)
{
	return known->queue_pages && kvt_known_name(known, page) && !known->pages[page].ends &&
	       !known->pages[page].old;
}

bool kvt_known_stayed(const struct kvt_known *known, uint32_t page, uint32_t changes)
{
	return kvt_known_name(known, page) && known->pages[page].changes == changes;
}

static uint32_t *sides_of(const struct kvt_known *known, uint32_t page)
{
	return known->sides + (size_t)page * known->info.n_sides;
}

uint32_t kvt_known_side(const struct kvt_known *known, uint32_t page, uint32_t kind)
{
	return kvt_known_name(known, page) ? sides_of(known, page)[kind] : 0;
}

static int learn_namespace(struct kvt_known *known, const struct kvt_feed_record *record)
{
	uint32_t id = record->namespace_id;

	if (id >= NAMESPACES_MAX)
		return -EPROTO;
	if (id >= known->n_digests) {
		uint64_t (*more)[2] = realloc(known->digests, (id + 16ull) * sizeof(*more));

		if (!more)
			return -ENOMEM;
		memset(more + known->n_digests, 0, (id + 16ull - known->n_digests) * sizeof(*more));
		known->digests = more;
		known->n_digests = id + 16;
	}
	memcpy(known->digests[id], record->digest, sizeof(record->digest));
	return 0;
}

/* Note that a page changes. Its side pages hang on it no longer, and it on no main page. */
static void lose(struct kvt_known *known, uint32_t page)
{
	struct kvt_known_page *lost = &known->pages[page];

	memset(sides_of(known, page), 0, known->info.n_sides * sizeof(*known->sides));
	for (uint32_t kind = 0; lost->is_side && kind < known->info.n_sides; kind++)
		if (sides_of(known, lost->parent)[kind] == page)
			sides_of(known, lost->parent)[kind] = 0;
	lost->is_side = lost->computed = false;
	lost->round = 0;
	lost->changes++;
}

void kvt_known_queue(struct kvt_known *known, uint32_t page)
{
	uint32_t at;

	if (!kvt_known_copyable(known, page))
		return;
	if (known->n_queued == known->queue_pages) {
		known->dropped++;
		known->sweep_at = 1;
		return;
	}
	at = (uint32_t)(((uint64_t)known->queue_at + known->n_queued) % known->queue_pages);
	known->queue[at] = (struct kvt_queued){ page, known->pages[page].changes };
	known->n_queued++;
}

uint32_t kvt_known_next(struct kvt_known *known, bool *ret_swept)
{
	*ret_swept = false;
	while (known->n_queued) {
		struct kvt_queued next = known->queue[known->queue_at];

		known->queue_at = (known->queue_at + 1) % known->queue_pages;
		known->n_queued--;
		if (kvt_known_stayed(known, next.page, next.changes) &&
		    kvt_known_copyable(known, next.page))
			return next.page;
	}
	*ret_swept = true;
	while (known->sweep_at < known->info.n_pages)
		if (kvt_known_copyable(known, known->sweep_at++))
			return known->sweep_at - 1;
	return 0;
}

/* The digest in front of the first page of a record. False: it is not known. */
static bool chain_before(const struct kvt_known *known, const struct kvt_feed_record *record,
			 struct kvt_chain *ret_chain)
{
	const struct kvt_chain *parent = kvt_known_name(known, record->parent);

	if (record->parent == 0 && record->namespace_id < known->n_digests) {
		kvt_chain_root(&known->info, known->digests[record->namespace_id],
			       record->root_key, ret_chain);
		return true;
	}
	if (!parent)
		return false;
	*ret_chain = *parent;
	return true;
}

static void learn_pages(struct kvt_known *known, const struct kvt_feed_record *record)
{
	uint32_t page_size = known->info.page_size;
	struct kvt_chain chain = { { 0 } };
	bool named = chain_before(known, record, &chain);
	uint32_t parent = record->parent;

	for (uint32_t i = 0; i < record->n; i++) {
		struct kvt_known_page *page = page_at(known, record->pages[i]);

		if (named)
			kvt_chain_next(&chain, record->keys + (uint64_t)i * page_size, page_size,
				       &chain);
		if (!page)
			return; /* what is behind it has no name */
		lose(known, record->pages[i]);
		page->parent = parent;
		parent = record->pages[i];
		page->round = named ? known->round : 0;
		page->ends = record->ends;
		page->old = known->outdated && record->seq == 0;
		page->computed = record->seq && record->sealer != known->info.sealer;
		page->chain = chain;
		if (named)
			kvt_known_queue(known, record->pages[i]);
	}
}

static void learn_sides(struct kvt_known *known, const struct kvt_feed_record *record)
{
	for (uint32_t i = 0; i < record->n; i++) {
		const struct kvt_feed_side *side = &record->sides[i];
		const struct kvt_chain *name = kvt_known_name(known, side->page);
		struct kvt_known_page *page;

		if (!name || side->kind >= known->info.n_sides)
			continue;
		page = page_at(known, side->side);
		if (!page)
			continue;
		lose(known, side->side);
		page->parent = side->page;
		page->round = known->round;
		page->is_side = true;
		page->ends = known->pages[side->page].ends;
		page->old = known->outdated && record->seq == 0;
		kvt_chain_side(name, side->kind, &page->chain);
		sides_of(known, side->page)[side->kind] = side->side;
		kvt_known_queue(known, side->side);
	}
}

/* Queue a page that lasts from now on. */
static void prolong(struct kvt_known *known, uint32_t page)
{
	if (!kvt_known_name(known, page) || !known->pages[page].ends)
		return;
	known->pages[page].ends = false;
	kvt_known_queue(known, page);
}

static void prolong_path(struct kvt_known *known, const struct kvt_feed_record *record)
{
	for (uint32_t i = 0; i < record->n; i++) {
		prolong(known, record->pages[i]);
		for (uint32_t kind = 0; kind < known->info.n_sides; kind++)
			prolong(known, kvt_known_side(known, record->pages[i], kind));
	}
}

void kvt_known_forget(struct kvt_known *known)
{
	/* Marks of earlier rounds in pages and `sides` are cleared when the page is named again. */
	known->round++;
}

uint32_t kvt_known_find(const struct kvt_known *known, const struct kvt_chain *name)
{
	for (uint32_t page = 1; page < known->info.n_pages; page++)
		if (kvt_known_name(known, page) &&
		    memcmp(&known->pages[page].chain, name, sizeof(*name)) == 0)
			return page;
	return 0;
}

int kvt_known_lose_behind(struct kvt_known *known)
{
	enum { NEW, FOUND, BEHIND };
	uint8_t *marks = calloc(known->info.n_pages, 1);

	if (!marks)
		return -ENOMEM;
	marks[0] = FOUND;
	/* Up to a page that is marked or not cached, then that way again: each is marked once. */
	for (uint32_t page = 1; page < known->info.n_pages; page++) {
		uint32_t up = page;

		while (marks[up] == NEW && kvt_known_name(known, up))
			up = known->pages[up].parent;
		for (uint32_t at = page; at != up; at = known->pages[at].parent)
			marks[at] = marks[up] == FOUND ? FOUND : BEHIND;
	}
	for (uint32_t page = 1; page < known->info.n_pages; page++)
		if (marks[page] == BEHIND)
			lose(known, page);
	free(marks);
	return 0;
}

void kvt_known_keep_out(struct kvt_known *known)
{
	for (uint32_t page = 1; known->pages && page < known->info.n_pages; page++)
		known->pages[page].old = true;
	known->outdated = true;
}

int kvt_known_take(struct kvt_known *known, const struct kvt_feed_record *record)
{
	switch (record->type) {
	case KVT_FEED_NAMESPACE:
		return learn_namespace(known, record);
	case KVT_FEED_STORED:
		learn_pages(known, record);
		return 0;
	case KVT_FEED_REMOVED:
		for (uint32_t i = 0; i < record->n; i++)
			if (page_at(known, record->pages[i]))
				lose(known, record->pages[i]);
		return 0;
	case KVT_FEED_LASTING:
		prolong_path(known, record);
		return 0;
	case KVT_FEED_SIDE:
		learn_sides(known, record);
		return 0;
	case KVT_FEED_CLEARED:
		kvt_known_forget(known);
		known->outdated = false;
		return 0;
	default: /* USED */
		return 0;
	}
}
