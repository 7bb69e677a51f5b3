/* SPDX-License-Identifier: Apache-2.0 */
#include "store/index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/assert.h"

/* 44 bytes, and 8 of the table. */
_Static_assert(sizeof(struct kvt_index_entry) + 2 * sizeof(uint32_t) == 52, "bytes of an entry");

/* An entry of an earlier round stays in the table until it is taken. */
bool kvt_index_is_found(const struct kvt_index *index, uint32_t entry)
{
	const struct kvt_index_entry *e = &index->entries[entry];

	return e->state == KVT_INDEX_FOUND && e->round == index->round;
}

static bool counts(const void *self, uint32_t entry)
{
	const struct kvt_index *index = self;
	const struct kvt_index_entry *e = &index->entries[entry];

	return e->state >= KVT_INDEX_COMING && e->round == index->round;
}

int kvt_index_init(struct kvt_index *index, uint32_t n_entries)
{
	KVT_ASSERT(n_entries >= 1 && n_entries <= KVT_INDEX_MAX);
	*index = (struct kvt_index){
		.entries = calloc(n_entries + 1ull, sizeof(struct kvt_index_entry)),
		.n_entries = n_entries,
	};
	index->table = (struct kvt_hash){
		.keys = (const uint8_t *)&index->entries[1], .counts = counts, .self = index,
		.stride = sizeof(struct kvt_index_entry),
	};
	if (!index->entries || kvt_hash_init(&index->table, n_entries) != 0) {
		kvt_index_destroy(index);
		return -ENOMEM;
	}
	/* In ascending order: the memory of places that are never taken is never touched. */
	for (uint32_t i = 1; i < n_entries; i++)
		index->entries[i].older = i + 1;
	index->first_free = 1;
	index->n_ready = n_entries;
	return 0;
}

void kvt_index_limit(struct kvt_index *index, uint32_t n)
{
	KVT_ASSERT(index->first_free == 1 && n >= 1 && n <= index->n_entries);
	index->entries[n].older = 0;
	index->n_ready = n;
}

void kvt_index_grow(struct kvt_index *index, uint32_t n)
{
	KVT_ASSERT(n > index->n_ready && n <= index->n_entries);
	/* From the first of them on they are linked since kvt_index_init(). */
	index->entries[n].older = index->first_free;
	index->first_free = index->n_ready + 1;
	index->n_ready = n;
}

void kvt_index_destroy(struct kvt_index *index)
{
	free(index->entries);
	kvt_hash_destroy(&index->table);
	*index = (struct kvt_index){ .entries = NULL };
}

uint64_t kvt_index_bytes(uint64_t n_entries)
{
	return n_entries * (sizeof(struct kvt_index_entry) + 2 * sizeof(uint32_t));
}

/* ---- the order */

static void unlink_entry(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];

	*(e->older ? &index->entries[e->older].younger : &index->oldest) = e->younger;
	*(e->younger ? &index->entries[e->younger].older : &index->youngest) = e->older;
	e->older = e->younger = 0;
}

static void link_youngest(struct kvt_index *index, uint32_t entry)
{
	index->entries[entry].older = index->youngest;
	index->entries[entry].younger = 0;
	*(index->youngest ? &index->entries[index->youngest].younger : &index->oldest) = entry;
	index->youngest = entry;
}

static void link_oldest(struct kvt_index *index, uint32_t entry)
{
	index->entries[entry].older = 0;
	index->entries[entry].younger = index->oldest;
	*(index->oldest ? &index->entries[index->oldest].older : &index->youngest) = entry;
	index->oldest = entry;
}

static void make_free(struct kvt_index *index, uint32_t entry)
{
	index->entries[entry].older = index->first_free;
	index->first_free = entry;
}

/* Take a pin off an entry. Returns true if it was the last one of a FOUND entry, which the caller
 * links. */
static bool take_pin(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];

	KVT_ASSERT(e->pins > 0);
	if (--e->pins > 0 || e->state == KVT_INDEX_COMING)
		return false;
	if (kvt_index_is_found(index, entry))
		return true;
	make_free(index, entry);
	return false;
}

static void add_pin(struct kvt_index *index, uint32_t entry)
{
	if (index->entries[entry].pins++ == 0 && kvt_index_is_found(index, entry))
		unlink_entry(index, entry);
}

/* Take the pin of an entry that leaves off its front, and hand on its last use. */
static void leave_front(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry], *front = &index->entries[e->front];
	bool used_later = (int32_t)(front->use - e->use) > 0;

	if (!e->front)
		return;
	front->used |= e->used;
	front->passed |= e->passed && !front->used;
	if (take_pin(index, e->front)) {
		if (used_later)
			link_youngest(index, e->front);
		else
			link_oldest(index, e->front);
	}
	if (!used_later)
		front->use = e->use;
	e->front = 0;
}

/* Leave a front that was dropped while it was on its way. */
static void leave_lost_front(struct kvt_index *index, uint32_t entry)
{
	uint32_t front = index->entries[entry].front;

	if (front && index->entries[front].state == KVT_INDEX_FREE)
		leave_front(index, entry);
}

/* ---- entries */

static struct kvt_index_entry *entry_in(struct kvt_index *index, uint32_t entry,
					enum kvt_index_state state)
{
	KVT_ASSERT(entry >= 1 && entry <= index->n_entries);
	KVT_ASSERT(index->entries[entry].state == state);
	KVT_ASSERT(state != KVT_INDEX_FOUND || kvt_index_is_found(index, entry));
	return &index->entries[entry];
}

struct kvt_chain kvt_index_page(const struct kvt_index *index, uint32_t entry)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest, index->entries[entry].key, sizeof(index->entries[entry].key));
	return page;
}

uint32_t kvt_index_look(const struct kvt_index *index, const struct kvt_chain *page)
{
	return kvt_hash_find(&index->table, page->digest);
}

uint32_t kvt_index_find(const struct kvt_index *index, const struct kvt_chain *page)
{
	uint32_t entry = kvt_index_look(index, page);

	return kvt_index_is_found(index, entry) ? entry : 0;
}

void kvt_index_touch(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = entry_in(index, entry, KVT_INDEX_FOUND);

	e->use = ++index->clock;
	if (e->pins)
		return;
	unlink_entry(index, entry);
	link_youngest(index, entry);
}

/* Make a FOUND entry PRIVATE. */
static void withdraw(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = entry_in(index, entry, KVT_INDEX_FOUND);

	KVT_ASSERT(e->pins == 0);
	kvt_hash_remove(&index->table, entry);
	unlink_entry(index, entry);
	leave_front(index, entry);
	e->state = KVT_INDEX_PRIVATE;
	index->n_found--;
}

uint32_t kvt_index_take(struct kvt_index *index)
{
	uint32_t entry = index->first_free;
	struct kvt_index_entry *e = &index->entries[entry];

	if (entry) {
		KVT_ASSERT(e->pins == 0 && (e->state == KVT_INDEX_FREE ||
			   (e->state == KVT_INDEX_FOUND && e->round != index->round)));
		if (e->state == KVT_INDEX_FOUND)
			kvt_hash_remove(&index->table, entry);
		index->first_free = e->older;
		e->state = KVT_INDEX_PRIVATE;
		leave_front(index, entry); /* of an earlier round: it may be free now, too */
		return entry;
	}
	entry = index->oldest;
	if (entry) {
		index->left = index->entries[entry].use;
		withdraw(index, entry);
	}
	return entry;
}

void kvt_index_expect(struct kvt_index *index, uint32_t entry, const struct kvt_chain *page,
		      uint32_t front)
{
	struct kvt_index_entry *e = entry_in(index, entry, KVT_INDEX_PRIVATE);

	memcpy(e->key, page->digest, sizeof(e->key));
	kvt_hash_add(&index->table, entry);
	kvt_scan_note(index->scans, entry);
	e->state = KVT_INDEX_COMING;
	e->round = index->round;
	e->used = e->first = e->kept = e->passed = e->below = 0;
	e->front = front;
	if (front)
		add_pin(index, front);
}

bool kvt_index_arrive(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = entry_in(index, entry, KVT_INDEX_COMING);
	bool found = e->round == index->round;

	e->state = KVT_INDEX_FOUND;
	e->use = ++index->clock;
	if (found) {
		leave_lost_front(index, entry);
		index->n_found++;
	}
	if (e->pins > 0)
		return found;
	if (found)
		link_youngest(index, entry);
	else
		make_free(index, entry);
	return found;
}

void kvt_index_publish(struct kvt_index *index, uint32_t entry, const struct kvt_chain *page,
		       uint32_t front)
{
	kvt_index_expect(index, entry, page, front);
	kvt_index_arrive(index, entry);
}

void kvt_index_join(struct kvt_index *index, uint32_t entry, uint32_t front)
{
	struct kvt_index_entry *e = entry_in(index, entry, KVT_INDEX_FOUND);

	leave_lost_front(index, entry);
	if (e->front || !front || front == entry)
		return;
	add_pin(index, front);
	kvt_scan_note(index->scans, entry);
	e->front = front;
}

void kvt_index_drop(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];

	if (e->state == KVT_INDEX_FOUND) {
		withdraw(index, entry);
	} else if (e->state == KVT_INDEX_COMING) {
		kvt_hash_remove(&index->table, entry);
		leave_front(index, entry);
	} else {
		entry_in(index, entry, KVT_INDEX_PRIVATE);
	}
	e->state = KVT_INDEX_FREE;
	if (e->pins == 0)
		make_free(index, entry);
}

void kvt_index_clear(struct kvt_index *index)
{
	/* The order, from its youngest on, becomes the begin of the free list. */
	if (index->oldest) {
		index->entries[index->oldest].older = index->first_free;
		index->first_free = index->youngest;
	}
	index->oldest = index->youngest = index->n_found = 0;
	index->round++; /* 25 bits: once a second for a year */
}

/* ---- forgetting a part */

enum { NEW, APART, BEHIND };

/* Find out whether an entry is behind those that are marked so. Each is marked once. */
static bool is_behind(const struct kvt_index *index, uint8_t *marks, uint32_t entry)
{
	const struct kvt_index_entry *entries = index->entries;
	uint32_t up = entry;

	while (marks[up] == NEW && entries[up].front && counts(index, entries[up].front))
		up = entries[up].front;
	if (marks[up] == NEW)
		marks[up] = entries[up].first ? APART : BEHIND;
	for (uint32_t at = entry; at != up; at = entries[at].front)
		marks[at] = marks[up];
	return marks[entry] == BEHIND;
}

/* True if a page may have been copied since a time. */
static bool is_since(const struct kvt_index_entry *e, uint32_t since)
{
	return !e->time || e->time >= since;
}

/* Put an entry into another round. */
static void forget(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];

	if (e->state == KVT_INDEX_FOUND)
		index->n_found--;
	if (e->state == KVT_INDEX_FOUND && !e->pins) {
		unlink_entry(index, entry);
		make_free(index, entry);
	}
	e->round--;
}

/* True if an entry that counts may be forgotten, if it is behind a page. */
static bool may_go(const struct kvt_index *index, uint32_t entry, uint32_t since)
{
	const struct kvt_index_entry *e = &index->entries[entry];

	return e->state == KVT_INDEX_COMING || is_since(e, since);
}

bool kvt_index_scan(const struct kvt_index *index, struct kvt_scan *scan, uint32_t since)
{
	uint32_t looks = 0, entry;

	while ((entry = kvt_scan_look(scan, &looks)) != 0) {
		uint32_t front = index->entries[entry].front;

		/* One that stays leaves a front that goes. */
		if (counts(index, entry) && (may_go(index, entry, since) ||
					     (front && may_go(index, front, since))))
			kvt_scan_add(scan, entry);
	}
	return kvt_scan_is_done(scan);
}

void kvt_index_forget(struct kvt_index *index, struct kvt_scan *scan, uint32_t page,
		      uint32_t since, uint32_t stays)
{
	uint8_t *marks = calloc(index->n_entries + 1ull, 1); /* NULL: all may be behind it */
	uint32_t entry = 0;

	KVT_ASSERT(kvt_scan_is_done(scan));
	if (marks)
		marks[page] = BEHIND;
	while (marks && (entry = kvt_scan_next(scan, entry)) != 0)
		if (kvt_index_is_found(index, entry) && is_since(&index->entries[entry], since))
			is_behind(index, marks, entry);
	while ((entry = kvt_scan_next(scan, entry)) != 0) {
		const struct kvt_index_entry *e = &index->entries[entry];
		bool lost = e->state == KVT_INDEX_COMING ||
			    (entry != stays && is_since(e, since) &&
			     (!marks || marks[entry] == BEHIND));

		if (lost && counts(index, entry))
			forget(index, entry);
	}
	/* Entries that stay behind a forgotten one would keep it. */
	while ((entry = kvt_scan_next(scan, entry)) != 0)
		if (counts(index, entry) && index->entries[entry].front &&
		    !counts(index, index->entries[entry].front))
			leave_front(index, entry);
	free(marks);
	kvt_scan_close(&index->scans, scan);
}

void kvt_index_pin(struct kvt_index *index, uint32_t entry)
{
	KVT_ASSERT(counts(index, entry));
	add_pin(index, entry);
}

bool kvt_index_unpin(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];
	bool found = kvt_index_is_found(index, entry);

	if (found && e->pins == 1)
		e->use = ++index->clock;
	return kvt_index_put_back(index, entry);
}

/* True if a last use is nearer to now than to that of the oldest entry. */
static bool is_recent(const struct kvt_index *index, uint32_t use)
{
	uint32_t oldest_use = index->oldest ? index->entries[index->oldest].use : use;

	return (int32_t)(index->clock - use) < (int32_t)(use - oldest_use);
}

bool kvt_index_put_back(struct kvt_index *index, uint32_t entry)
{
	struct kvt_index_entry *e = &index->entries[entry];
	bool found = kvt_index_is_found(index, entry);

	if (!take_pin(index, entry))
		return found;
	if (e->use == index->clock || is_recent(index, e->use))
		link_youngest(index, entry);
	else
		link_oldest(index, entry);
	return found;
}
