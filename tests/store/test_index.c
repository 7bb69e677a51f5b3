/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a store against a list that is searched from end to end. Keys share their leading
 * bytes, so they collide in the table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/index.h"
#include "tests/lib/cases.h"

#define ENTRIES 24u
#define NAMES 64u

/* Few homes: four values of the first byte that decides. */
static struct kvt_chain name(uint32_t i)
{
	struct kvt_chain page = { { 0 } };

	page.digest[3] = (uint8_t)(i % 4 * 85); /* the highest of the bits; 255: wraps round */
	page.digest[2] = i % 4 == 3 ? 255 : 0;
	page.digest[8] = (uint8_t)i;
	return page;
}

/* The truth: names from the oldest to the youngest, and pins by name. */
static uint32_t order[NAMES], n_order, pins[NAMES], entry_of[NAMES];
/* Pins by entry, of those that were cleared with pins. */
static uint32_t cleared[ENTRIES + 1], n_cleared;

static void forget(uint32_t i)
{
	for (uint32_t at = 0; at < n_order; at++)
		if (order[at] == i) {
			memmove(order + at, order + at + 1, (n_order - at - 1) * sizeof(*order));
			n_order--;
			return;
		}
}

static void check(const struct kvt_index *index)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < NAMES; i++) {
		struct kvt_chain page = name(i);

		assert_int_equal(kvt_index_find(index, &page), entry_of[i]);
		found += entry_of[i] != 0;
	}
	assert_int_equal(index->n_found, found);
}

static void add(struct kvt_index *index, uint32_t i)
{
	struct kvt_chain page = name(i);
	uint32_t entry = kvt_index_take(index);

	for (uint32_t other = 0; other < NAMES && entry; other++)
		if (entry_of[other] == entry) {
			assert_int_equal(other, order[0]);
			entry_of[other] = 0;
			forget(other);
		}
	if (!entry) {
		assert_int_equal(n_order, 0);
		assert_int_equal(index->n_found + n_cleared, ENTRIES);
		return;
	}
	assert_int_equal(cleared[entry], 0);
	kvt_index_publish(index, entry, &page, 0);
	entry_of[i] = entry;
	order[n_order++] = i;
}

static void touch(struct kvt_index *index, uint32_t i)
{
	kvt_index_touch(index, entry_of[i]);
	if (pins[i])
		return;
	forget(i);
	order[n_order++] = i;
}

static void clear(struct kvt_index *index)
{
	kvt_index_clear(index);
	for (uint32_t i = 0; i < NAMES; i++) {
		if (pins[i]) {
			cleared[entry_of[i]] = pins[i];
			n_cleared++;
		}
		entry_of[i] = pins[i] = 0;
	}
	n_order = 0;
}

TEST(it_finds_what_a_plain_list_finds_and_evicts_the_oldest)
{
	struct kvt_index index;

	memset(entry_of, 0, sizeof(entry_of));
	n_order = 0;
	srand(1);
	assert_int_equal(kvt_index_init(&index, ENTRIES), 0);
	for (uint32_t step = 0; step < 40000; step++) {
		uint32_t i = (uint32_t)rand() % NAMES, what = (uint32_t)rand() % 8;
		uint32_t entry = 1 + (uint32_t)rand() % ENTRIES;

		if (cleared[entry]) {
			assert_false(kvt_index_unpin(&index, entry));
			n_cleared -= --cleared[entry] == 0;
		}
		if (rand() % 200 == 0)
			clear(&index);
		if (!entry_of[i]) {
			add(&index, i);
		} else if (what < 2) {
			touch(&index, i);
		} else if (what < 4) {
			kvt_index_pin(&index, entry_of[i]);
			pins[i]++;
			forget(i);
		} else if (what < 7 && pins[i]) {
			assert_true(kvt_index_unpin(&index, entry_of[i]));
			if (--pins[i] == 0)
				order[n_order++] = i;
		} else if (what == 7 && !pins[i]) {
			kvt_index_drop(&index, entry_of[i]);
			entry_of[i] = 0;
			forget(i);
		}
		check(&index);
	}
	kvt_index_destroy(&index);
}

TEST(with_all_pinned_or_private_there_is_none_to_take)
{
	struct kvt_chain page = name(1);
	struct kvt_index index;
	uint32_t first, second;

	assert_int_equal(kvt_index_init(&index, 2), 0);
	first = kvt_index_take(&index);
	second = kvt_index_take(&index);
	assert_true(first && second && first != second);
	assert_int_equal(kvt_index_take(&index), 0);
	kvt_index_publish(&index, first, &page, 0);
	kvt_index_pin(&index, first);
	assert_int_equal(kvt_index_take(&index), 0);
	kvt_index_unpin(&index, first);
	assert_int_equal(kvt_index_take(&index), first);
	assert_int_equal(kvt_index_find(&index, &page), 0);
	kvt_index_destroy(&index);
}

/* ---- paths: against a cache that touches each page of a path at each use */

#define ROOM 1500u
#define TREE 60000u
#define LONGEST 400u

struct path_page {
	uint32_t parent, length; /* of its path */
	uint32_t older, younger; /* in the cache of the truth */
	uint32_t n_behind;       /* pages right behind it in the index */
	bool there;              /* in the cache of the truth */
};

struct paths {
	struct kvt_index index;
	struct path_page pages[TREE];
	uint32_t page_of[ROOM + 1]; /* of the index */
	uint32_t n_pages, n_there, oldest, youngest;
	uint32_t path[LONGEST];
	uint64_t wanted, found, truth; /* pages that requests had, of both caches */
	uint64_t evictions, displaced;
};

static struct kvt_chain name_of_page(uint32_t page)
{
	struct kvt_chain chain = { { 0 } };
	uint64_t bits = page * 0x9e3779b97f4a7c15ull;

	memcpy(chain.digest, &bits, sizeof(bits));
	memcpy(chain.digest + sizeof(bits), &page, sizeof(page));
	return chain;
}

static uint32_t entry_of_page(const struct paths *paths, uint32_t page)
{
	struct kvt_chain name = name_of_page(page);

	return page ? kvt_index_find(&paths->index, &name) : 0;
}

static void take_out(struct paths *paths, uint32_t page)
{
	struct path_page *at = &paths->pages[page];

	*(at->older ? &paths->pages[at->older].younger : &paths->oldest) = at->younger;
	*(at->younger ? &paths->pages[at->younger].older : &paths->youngest) = at->older;
	at->there = false;
	paths->n_there--;
}

static void put_youngest(struct paths *paths, uint32_t page)
{
	struct path_page *at = &paths->pages[page];

	at->older = paths->youngest;
	at->younger = 0;
	*(paths->youngest ? &paths->pages[paths->youngest].younger : &paths->oldest) = page;
	paths->youngest = page;
	at->there = true;
	paths->n_there++;
}

/* The page of an entry leaves: nothing behind it is left. Count how far it was from the oldest of
 * the truth. */
static void leave(struct paths *paths, uint32_t entry)
{
	uint32_t page = paths->page_of[entry], far = 0;

	if (!page)
		return;
	assert_int_equal(paths->pages[page].n_behind, 0);
	paths->pages[paths->pages[page].parent].n_behind--;
	paths->evictions++;
	for (uint32_t at = paths->oldest; at && at != page; at = paths->pages[at].younger)
		far++;
	paths->displaced += paths->pages[page].there ? far : 0;
}

static void publish(struct paths *paths, uint32_t page)
{
	uint32_t front = entry_of_page(paths, paths->pages[page].parent), entry;
	struct kvt_chain name = name_of_page(page);

	if (front)
		kvt_index_pin(&paths->index, front);
	entry = kvt_index_take(&paths->index);
	assert_int_not_equal(entry, 0);
	leave(paths, entry);
	if (front)
		assert_true(kvt_index_unpin(&paths->index, front));
	kvt_index_publish(&paths->index, entry, &name, front);
	paths->page_of[entry] = page;
	paths->pages[paths->pages[page].parent].n_behind++;
}

/* Use a path: what is found of it is touched, what is missing is published. */
static void use(struct paths *paths, uint32_t last)
{
	uint32_t n = paths->pages[last].length, found = 0, truth = 0;

	for (uint32_t i = n; i-- > 0; last = paths->pages[last].parent)
		paths->path[i] = last;
	while (found < n && entry_of_page(paths, paths->path[found]))
		found++;
	while (truth < n && paths->pages[paths->path[truth]].there)
		truth++;
	paths->wanted += n;
	paths->found += found;
	paths->truth += truth;
	if (found > 0)
		kvt_index_touch(&paths->index, entry_of_page(paths, paths->path[found - 1]));
	for (uint32_t i = found; i < n; i++)
		if (!entry_of_page(paths, paths->path[i])) /* it may be there without its front */
			publish(paths, paths->path[i]);
	for (uint32_t i = 0; i < n; i++) {
		if (paths->pages[paths->path[i]].there)
			take_out(paths, paths->path[i]);
		else if (paths->n_there == ROOM)
			take_out(paths, paths->oldest);
		put_youngest(paths, paths->path[i]);
	}
	for (uint32_t i = n; i-- > 0;) {
		take_out(paths, paths->path[i]);
		put_youngest(paths, paths->path[i]);
	}
}

/* A request that continues a recent path, or branches off it, or repeats it, or is new. */
static void request(struct paths *paths)
{
	uint32_t last = 0, more = 1 + (uint32_t)rand() % 20;

	if (paths->n_pages > 1 && rand() % 8)
		last = paths->n_pages - 1 -
		       (uint32_t)rand() % (paths->n_pages < 4000 ? paths->n_pages - 1 : 3999);
	if (last && rand() % 20 == 0) /* it publishes nothing, if all is here */
		more = 0;
	for (; more > 0 && paths->pages[last].length < LONGEST; more--) {
		uint32_t page = paths->n_pages++;

		paths->pages[page] = (struct path_page){ .parent = last };
		paths->pages[page].length = paths->pages[last].length + 1;
		last = page;
	}
	use(paths, last);
}

TEST(paths_stay_as_if_each_use_touched_all_of_them)
{
	struct paths *paths = calloc(1, sizeof(*paths));
	double points;

	srand(2);
	paths->n_pages = 1;
	assert_int_equal(kvt_index_init(&paths->index, ROOM), 0);
	while (paths->n_pages + 20 < TREE)
		request(paths);
	points = 100.0 * ((double)paths->found - (double)paths->truth) / (double)paths->wanted;
	printf("%llu evictions, displaced by %.2f %%; %.2f %% found, %+.3f points\n",
	       (unsigned long long)paths->evictions,
	       100.0 * (double)paths->displaced / (double)paths->evictions / ROOM,
	       100.0 * (double)paths->found / (double)paths->wanted, points);
	assert_true(paths->evictions > 50000);
	assert_true(paths->displaced * 20 <= paths->evictions * ROOM);
	assert_true(points < 0.1 && points > -0.1);
	kvt_index_destroy(&paths->index);
	free(paths);
}

/* So a page of a long prompt costs no more than one of a short one. */
TEST(a_use_and_a_page_more_change_three_entries_however_long_the_path)
{
	enum { LENGTH = 8192 };
	struct kvt_index_entry *before = calloc(LENGTH + 3, sizeof(*before));
	struct kvt_index index;
	uint32_t front = 0, changed = 0;

	assert_int_equal(kvt_index_init(&index, LENGTH + 2), 0);
	for (uint32_t i = 1; i <= LENGTH; i++) {
		struct kvt_chain name = name_of_page(i);
		uint32_t entry = kvt_index_take(&index);

		kvt_index_publish(&index, entry, &name, front);
		front = entry;
	}
	memcpy(before, index.entries, (LENGTH + 3) * sizeof(*before));
	kvt_index_touch(&index, front);
	kvt_index_publish(&index, kvt_index_take(&index), &(struct kvt_chain){ { 1 } }, front);
	for (uint32_t i = 1; i <= LENGTH + 2; i++)
		changed += memcmp(&before[i], &index.entries[i], sizeof(*before)) != 0;
	assert_int_equal(changed, 2);
	kvt_index_destroy(&index);
	free(before);
}

TEST(after_a_clear_fronts_become_free_as_what_is_behind_them_is_taken)
{
	struct kvt_index index;
	uint32_t front = 0, first;

	assert_int_equal(kvt_index_init(&index, 4), 0);
	for (uint32_t i = 1; i <= 4; i++) {
		struct kvt_chain name = name_of_page(i);
		uint32_t entry = kvt_index_take(&index);

		kvt_index_publish(&index, entry, &name, front);
		index.entries[entry].used = i == 4;
		front = entry;
	}
	first = kvt_index_take(&index); /* the end of the path: what it knew is handed on */
	assert_int_equal(first, front);
	assert_true(index.entries[index.oldest].used);
	kvt_index_drop(&index, first);
	kvt_index_clear(&index);
	for (uint32_t i = 0; i < 4; i++) {
		struct kvt_chain name = name_of_page(10 + i);
		uint32_t entry = kvt_index_take(&index);

		assert_int_not_equal(entry, 0);
		kvt_index_publish(&index, entry, &name, 0);
	}
	assert_int_equal(index.n_found, 4);
	kvt_index_destroy(&index);
}

TEST(an_index_that_grows_gives_each_entry_once)
{
	struct kvt_index index;
	uint32_t taken = 0;

	assert_int_equal(kvt_index_init(&index, ENTRIES), 0);
	kvt_index_limit(&index, 1);
	for (uint32_t ready = 1; ready <= ENTRIES; ready += 1 + ready / 4) {
		if (ready > 1)
			kvt_index_grow(&index, ready);
		if (ready % 3 == 0)
			continue; /* some are free when more come */
		for (uint32_t entry; (entry = kvt_index_take(&index)) != 0;) {
			assert_false(taken >> entry & 1);
			assert_true(entry <= ready);
			taken |= 1u << entry;
		}
		assert_int_equal(taken, (2u << ready) - 2);
	}
	kvt_index_destroy(&index);
}

/* ---- pages that come */

static enum { AWAY, COMES, FOUND, STALE } state_of[NAMES]; /* STALE: it comes, and was cleared */
static uint32_t front_of[NAMES]; /* name + 1, 0: none */

static bool is_behind(uint32_t i)
{
	for (uint32_t other = 0; other < NAMES; other++)
		if ((state_of[other] == COMES || state_of[other] == FOUND) &&
		    front_of[other] == i + 1)
			return true;
	return false;
}

/* Take an entry, if there is one: it is free, or its page has none behind it. */
static uint32_t take_one(struct kvt_index *index)
{
	uint32_t entry = kvt_index_take(index);

	for (uint32_t i = 0; i < NAMES && entry; i++) {
		if (state_of[i] == AWAY || entry_of[i] != entry)
			continue;
		assert_int_equal(state_of[i], FOUND);
		assert_false(is_behind(i));
		state_of[i] = AWAY;
	}
	return entry;
}

/* Let a page be on its way, behind another one that is here or comes. */
static void begin_to_come(struct kvt_index *index, uint32_t i)
{
	struct kvt_chain page = name(i), before;
	uint32_t front = (uint32_t)rand() % NAMES, entry = take_one(index);

	if (!entry)
		return;
	before = name(front);
	front_of[i] = front != i && kvt_index_look(index, &before) ? front + 1 : 0;
	kvt_index_expect(index, entry, &page, front_of[i] ? entry_of[front] : 0);
	entry_of[i] = entry;
	state_of[i] = COMES;
}

/* A page has come, or it was lost: then what is behind it stays, without it. */
static void come(struct kvt_index *index, uint32_t i, bool good)
{
	if (good)
		assert_int_equal(kvt_index_arrive(index, entry_of[i]), state_of[i] == COMES);
	else
		kvt_index_drop(index, entry_of[i]);
	for (uint32_t other = 0; other < NAMES && !good && state_of[i] == COMES; other++)
		if (front_of[other] == i + 1)
			front_of[other] = 0;
	state_of[i] = good && state_of[i] == COMES ? FOUND : AWAY;
}

TEST(a_page_that_comes_has_its_name_and_is_not_found)
{
	bool seen[ENTRIES + 1] = { false };
	struct kvt_index index;
	uint32_t n = 0;

	srand(7);
	assert_int_equal(kvt_index_init(&index, ENTRIES), 0);
	memset(state_of, 0, sizeof(state_of));
	for (uint32_t step = 0; step < 40000; step++) {
		uint32_t i = (uint32_t)rand() % NAMES;

		if (rand() % 300 == 0) {
			kvt_index_clear(&index);
			for (uint32_t other = 0; other < NAMES; other++)
				state_of[other] = state_of[other] == COMES ? STALE :
						  state_of[other] == FOUND ? AWAY :
						  state_of[other];
		}
		if (state_of[i] == AWAY)
			begin_to_come(&index, i);
		else if (state_of[i] != FOUND)
			come(&index, i, rand() % 4 != 0);
		for (uint32_t other = 0; other < NAMES; other++) {
			struct kvt_chain page = name(other);

			assert_int_equal(kvt_index_find(&index, &page),
					 state_of[other] == FOUND ? entry_of[other] : 0);
			assert_int_equal(kvt_index_look(&index, &page) != 0,
					 state_of[other] == FOUND || state_of[other] == COMES);
		}
	}
	for (uint32_t i = 0; i < NAMES; i++)
		if (state_of[i] == COMES || state_of[i] == STALE)
			come(&index, i, true);
	kvt_index_clear(&index);
	for (uint32_t entry; (entry = kvt_index_take(&index)) != 0; n++) {
		assert_false(seen[entry]); /* no entry was lost, and none is there twice */
		seen[entry] = true;
	}
	assert_int_equal(n, ENTRIES);
	kvt_index_destroy(&index);
}

/* ---- forgetting a page and what is behind it: against a look at each path */

#define SINCE 5u

static uint32_t time_of[NAMES];
static bool lost_front[NAMES]; /* it has one, and that is not here */

/* True if a page is behind another one, is it, or may be. */
static bool may_be_behind(uint32_t i, uint32_t page)
{
	for (; i != page && front_of[i]; i = front_of[i] - 1)
		;
	return i == page || lost_front[i];
}

static void put_tree(struct kvt_index *index, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++) {
		struct kvt_chain page = name(i);
		uint32_t entry = kvt_index_take(index);
		struct kvt_index_entry *e = &index->entries[entry];

		front_of[i] = i && rand() % 8 ? 1 + (uint32_t)rand() % i : 0;
		lost_front[i] = !front_of[i] && rand() % 4 == 0;
		time_of[i] = (uint32_t)rand() % (2 * SINCE);
		entry_of[i] = entry;
		state_of[i] = rand() % 6 ? FOUND : COMES;
		pins[i] = rand() % 6 == 0;
		kvt_index_expect(index, entry, &page, front_of[i] ? entry_of[front_of[i] - 1] : 0);
		e->first = !front_of[i] && !lost_front[i];
		e->time = time_of[i];
		if (state_of[i] == FOUND)
			assert_true(kvt_index_arrive(index, entry));
		if (pins[i])
			kvt_index_pin(index, entry);
	}
}

/* Check what was forgotten, and what stays without its front. */
static void check_forgotten(const struct kvt_index *index, uint32_t root, uint32_t stays)
{
	uint32_t n_found = 0;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		bool is_old = time_of[i] > 0 && time_of[i] < SINCE;
		bool there = state_of[i] == FOUND &&
			     (is_old || i == stays || !may_be_behind(i, root));
		struct kvt_chain page = name(i);
		uint32_t front = index->entries[entry_of[i]].front;

		assert_int_equal(kvt_index_look(index, &page), there ? entry_of[i] : 0);
		n_found += there;
		if (there && front)
			assert_true(kvt_index_is_found(index, front));
	}
	assert_int_equal(index->n_found, n_found);
}

/* End all that is under way, take what is left, and have each entry once. */
static void take_all(struct kvt_index *index)
{
	bool seen[ENTRIES + 1] = { false };
	uint32_t n = 0;

	for (uint32_t i = 0; i < ENTRIES; i++) {
		if (state_of[i] == COMES)
			assert_false(kvt_index_arrive(index, entry_of[i]));
		if (pins[i])
			kvt_index_unpin(index, entry_of[i]);
		pins[i] = 0;
	}
	for (uint32_t entry; (entry = kvt_index_take(index)) != 0; n++) {
		assert_false(seen[entry]);
		seen[entry] = true;
	}
	assert_int_equal(n, ENTRIES);
}

TEST(what_was_copied_behind_a_page_since_a_time_is_forgotten)
{
	struct kvt_index index;

	srand(9);
	for (uint32_t run = 0; run < 3000; run++) {
		/* Some of the last ones are not here. */
		uint32_t root = (uint32_t)rand() % (ENTRIES + 4);
		uint32_t stays = (uint32_t)rand() % ENTRIES;
		struct kvt_chain page = name(root);
		struct kvt_scan scan;

		assert_int_equal(kvt_index_init(&index, ENTRIES), 0);
		put_tree(&index, 0, ENTRIES / 2);
		kvt_scan_open(&index.scans, &scan, ENTRIES);
		scan.n = (uint32_t)rand() % ENTRIES; /* others come behind a part of the scan */
		assert_true(kvt_index_scan(&index, &scan, SINCE));
		put_tree(&index, ENTRIES / 2, ENTRIES);
		scan.n = ENTRIES;
		assert_true(kvt_index_scan(&index, &scan, SINCE));
		stays = state_of[stays] == FOUND ? stays : NAMES;
		kvt_index_forget(&index, &scan, kvt_index_look(&index, &page), SINCE,
				 stays < NAMES ? entry_of[stays] : 0);
		check_forgotten(&index, root, stays);
		take_all(&index);
		kvt_index_destroy(&index);
	}
}

/* Forget an entry, or after a scan an entry whose front came in between. */
static void forget_entry(struct kvt_index *index, uint32_t entry, uint32_t joins, uint32_t front)
{
	struct kvt_scan scan;

	kvt_scan_open(&index->scans, &scan, index->n_entries);
	assert_true(kvt_index_scan(index, &scan, SINCE));
	if (joins)
		kvt_index_join(index, joins, front);
	kvt_index_forget(index, &scan, entry, SINCE, 0);
	assert_null(index->scans);
}

TEST(a_page_that_finds_its_front_during_a_scan_leaves_it)
{
	struct kvt_chain page = name(1), behind = name(2);
	uint32_t entry, front;
	struct kvt_index index;

	assert_int_equal(kvt_index_init(&index, 4), 0);
	entry = kvt_index_take(&index);
	kvt_index_publish(&index, entry, &behind, 0);
	index.entries[entry].time = SINCE - 1;
	front = kvt_index_take(&index);
	kvt_index_publish(&index, front, &page, 0);
	index.entries[front].time = SINCE;
	forget_entry(&index, front, entry, front);
	assert_int_equal(kvt_index_find(&index, &behind), entry);
	assert_int_equal(index.entries[entry].front, 0);
	assert_int_equal(index.entries[front].pins, 0);
	kvt_index_destroy(&index);
}

/* So that it stays as long as what is behind it again. */
TEST(a_page_that_stays_without_its_front_finds_it_again)
{
	struct kvt_chain page = name(1), behind = name(2);
	uint32_t entry, front;
	struct kvt_index index;

	assert_int_equal(kvt_index_init(&index, 4), 0);
	front = kvt_index_take(&index);
	kvt_index_publish(&index, front, &page, 0);
	index.entries[front].time = SINCE;
	entry = kvt_index_take(&index);
	kvt_index_publish(&index, entry, &behind, front);
	index.entries[entry].time = SINCE - 1;
	forget_entry(&index, front, 0, 0);
	assert_int_equal(kvt_index_find(&index, &page), 0);
	assert_int_equal(kvt_index_find(&index, &behind), entry);
	front = kvt_index_take(&index);
	kvt_index_publish(&index, front, &page, 0);
	kvt_index_join(&index, entry, front);
	kvt_index_touch(&index, front);
	assert_int_equal(index.oldest, entry);
	assert_int_equal(index.youngest, entry);
	kvt_index_destroy(&index);
}
