/* SPDX-License-Identifier: Apache-2.0 */
#include "store/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shm/assert.h"
#include "shm/atomic.h"
#include "shm/map.h"

#define OLD_MOST 32u     /* pages that are too old, dropped at once */
#define LOOKS_MOST 4096u /* pages at once that need no copy: less than a millisecond */

/* Map memory that nothing else has, or that helpers share. */
static int map_memory(struct kvt_tier *tier, bool shared)
{
	int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;

	if (shared) {
		tier->memory_fd = memfd_create("kvtstored-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (tier->memory_fd < 0 ||
		    ftruncate(tier->memory_fd, (off_t)tier->mapped_bytes) != 0 ||
		    fcntl(tier->memory_fd, F_ADD_SEALS,
			  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
			return -errno;
	}
	tier->ram = kvt_map(tier->mapped_bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE,
			    tier->memory_fd);
	if (!tier->ram)
		return -errno;
	/* A crash need not write it to disk. */
	madvise(tier->ram, tier->mapped_bytes, MADV_DONTDUMP);
	madvise(tier->ram, tier->mapped_bytes, MADV_HUGEPAGE);
	return 0;
}

int kvt_tier_init(struct kvt_tier *tier, uint64_t ram_bytes, uint64_t record_bytes,
		  uint32_t seal_bytes)
{
	uint64_t n = record_bytes ? ram_bytes / (record_bytes + seal_bytes) : 0;
	int rc;

	if (n == 0)
		return -EINVAL;
	if (n > KVT_INDEX_MAX)
		n = KVT_INDEX_MAX;
	*tier = (struct kvt_tier){ .lock = PTHREAD_MUTEX_INITIALIZER, .ram_bytes = n * record_bytes,
				   .record_bytes = record_bytes,
				   .mapped_bytes = n * (record_bytes + seal_bytes),
				   .memory_fd = -1 };
	rc = map_memory(tier, seal_bytes > 0);
	if (rc == 0)
		rc = kvt_index_init(&tier->index, (uint32_t)n);
	if (rc != 0)
		kvt_tier_destroy(tier);
	else if (seal_bytes)
		tier->seals = tier->ram + tier->ram_bytes;
	return rc;
}

void kvt_tier_destroy(struct kvt_tier *tier)
{
	if (tier->ram)
		munmap(tier->ram, tier->mapped_bytes);
	if (tier->mapped_bytes && tier->memory_fd >= 0)
		close(tier->memory_fd);
	kvt_index_destroy(&tier->index);
	*tier = (struct kvt_tier){ .ram = NULL };
}

uint8_t *kvt_tier_record(const struct kvt_tier *tier, uint32_t entry)
{
	KVT_ASSERT(entry >= 1 && entry <= tier->index.n_entries);
	return tier->ram + (entry - 1) * tier->record_bytes;
}

void kvt_tier_fill(struct kvt_tier *tier, uint64_t bytes)
{
	uint32_t n = (uint32_t)(bytes / tier->record_bytes);

	kvt_tier_lock(tier);
	if (n > tier->index.n_ready)
		kvt_index_grow(&tier->index, n);
	kvt_tier_unlock(tier);
}

void kvt_tier_lock(struct kvt_tier *tier)
{
	pthread_mutex_lock(&tier->lock);
}

void kvt_tier_unlock(struct kvt_tier *tier)
{
	pthread_mutex_unlock(&tier->lock);
}

/* ---- age */

bool kvt_tier_is_old(const struct kvt_tier *tier, uint32_t time_s)
{
	return tier->max_age_s && time_s && (uint32_t)time(NULL) - time_s > tier->max_age_s;
}

/* Return the entry of a page, 0: it is not here, or too old. */
static uint32_t find(const struct kvt_tier *tier, const struct kvt_chain *page)
{
	uint32_t entry = kvt_index_find(&tier->index, page);

	return kvt_tier_is_old(tier, tier->index.entries[entry].time) ? 0 : entry;
}

/* Drop some of the oldest pages that are too old. A clock that was set back makes none. */
static bool drop_old(struct kvt_tier *tier)
{
	struct kvt_index *index = &tier->index;
	uint32_t n = 0;

	while (index->oldest && kvt_tier_is_old(tier, index->entries[index->oldest].time) &&
	       n < OLD_MOST) {
		kvt_index_drop(index, index->oldest);
		n++;
	}
	return n == OLD_MOST;
}

/* ---- pins */

static void use(struct kvt_tier *tier, uint32_t entry)
{
	kvt_index_touch(&tier->index, entry);
	tier->index.entries[entry].used = 1;
}

void kvt_tier_use(struct kvt_tier *tier, const struct kvt_chain *page)
{
	uint32_t entry;

	kvt_tier_lock(tier);
	entry = find(tier, page);
	if (entry)
		use(tier, entry);
	kvt_tier_unlock(tier);
}

uint32_t kvt_tier_pin(struct kvt_tier *tier, const struct kvt_chain *page)
{
	uint32_t entry;

	kvt_tier_lock(tier);
	entry = find(tier, page);
	if (entry)
		kvt_index_pin(&tier->index, entry);
	kvt_tier_unlock(tier);
	return entry;
}

void kvt_tier_unpin(struct kvt_tier *tier, uint32_t entry, bool used)
{
	kvt_tier_lock(tier);
	if (kvt_index_unpin(&tier->index, entry) && used)
		use(tier, entry);
	kvt_tier_unlock(tier);
}

/* ---- from below */

static bool has(const struct kvt_tier *tier, const struct kvt_chain *page)
{
	bool there = find(tier, page) != 0;

	for (uint32_t i = 0; i < tier->n_below && !there; i++)
		there = tier->below[i].has(tier->below[i].self, page);
	return there;
}

bool kvt_tier_has(struct kvt_tier *tier, const struct kvt_chain *page)
{
	bool there;

	kvt_tier_lock(tier);
	there = has(tier, page);
	kvt_tier_unlock(tier);
	return there;
}

static bool is_coming(const struct kvt_tier *tier, const struct kvt_chain *page)
{
	for (uint32_t i = 0; i < tier->n_coming; i++)
		if (memcmp(tier->coming[i].page.digest, page->digest, KVT_CHAIN_KEY_BYTES) == 0)
			return true;
	return false;
}

/* Take an entry. Pages are offered to the tiers below before they leave for it: one that is written
 * stays until then, but the last one that can leave does. */
static uint32_t take(struct kvt_tier *tier)
{
	const struct kvt_index *index = &tier->index;
	uint32_t i = 0;

	while (!index->first_free && index->oldest != index->youngest && i < tier->n_below)
		if (!tier->below[i].leave || !tier->below[i].leave(tier->below[i].self,
								   index->oldest))
			i++;
	return kvt_index_take(&tier->index);
}

/* Tell the tiers below of a page that came. */
static void enter(struct kvt_tier *tier, uint32_t entry)
{
	for (uint32_t i = 0; i < tier->n_below; i++)
		if (tier->below[i].entered)
			tier->below[i].entered(tier->below[i].self, entry);
}

/* Let a page be found, of a prompt that begins with it or behind an entry, 0: it is not here. */
static void publish(struct kvt_tier *tier, uint32_t entry, const struct kvt_chain *page, bool first,
		    uint32_t front)
{
	kvt_index_publish(&tier->index, entry, page, front);
	tier->index.entries[entry].first = first;
	enter(tier, entry);
}

/* Begin to read a page into an entry, from the nearest tier that has it. */
static int read_below(struct kvt_tier *tier, const struct kvt_chain *page, uint32_t entry)
{
	int rc = -ENOENT;

	for (uint32_t i = 0; i < tier->n_below && rc == -ENOENT; i++)
		if (tier->below[i].has(tier->below[i].self, page))
			rc = tier->below[i].read(tier->below[i].self, page, entry);
	return rc;
}

static int64_t bring(struct kvt_tier *tier, const struct kvt_chain *page,
		     const struct kvt_chain *front)
{
	/* Not all of a small memory: what arrives must stay until it is used. */
	uint32_t most = tier->index.n_entries / 4, entry = find(tier, page);
	int rc;

	if (entry) {
		if (front) /* it may have arrived before that */
			kvt_index_join(&tier->index, entry, kvt_index_find(&tier->index, front));
		kvt_index_pin(&tier->index, entry);
		return entry;
	}
	if (is_coming(tier, page))
		return 0;
	if (!has(tier, page))
		return -ENOENT;
	if (tier->n_coming && tier->n_coming >= (most < KVT_COMING_MOST ? most : KVT_COMING_MOST))
		return -EAGAIN;
	entry = take(tier);
	if (!entry)
		return -EAGAIN; /* all are pinned, coming or being written */
	rc = read_below(tier, page, entry);
	if (rc != 0) {
		kvt_index_drop(&tier->index, entry);
		return rc;
	}
	tier->coming[tier->n_coming++] = (struct kvt_coming){
		.page = *page, .front = front ? *front : *page, .entry = entry, .first = !front,
	};
	tier->begun++;
	return -EINPROGRESS;
}

int64_t kvt_tier_bring(struct kvt_tier *tier, const struct kvt_chain *page,
		       const struct kvt_chain *front)
{
	int64_t rc;

	kvt_tier_lock(tier);
	rc = bring(tier, page, front);
	kvt_tier_unlock(tier);
	return rc;
}

bool kvt_tier_moves(struct kvt_tier *tier)
{
	bool moves;

	kvt_tier_lock(tier);
	moves = tier->n_coming + tier->n_writing > 0;
	kvt_tier_unlock(tier);
	return moves;
}

static void arrive(struct kvt_tier *tier, uint32_t entry, bool good)
{
	struct kvt_coming came;
	uint32_t i = 0;

	while (i < tier->n_coming && tier->coming[i].entry != entry)
		i++;
	KVT_ASSERT(i < tier->n_coming);
	came = tier->coming[i];
	tier->coming[i] = tier->coming[--tier->n_coming];
	/* It may have been copied from the pool meanwhile. */
	if (good && !came.stale && !kvt_index_find(&tier->index, &came.page)) {
		publish(tier, entry, &came.page, came.first,
			kvt_index_find(&tier->index, &came.front));
		tier->index.entries[entry].used = 1; /* a load wants it */
		if (tier->max_age_s && !tier->index.entries[entry].time)
			tier->index.entries[entry].time = (uint32_t)time(NULL);
	} else {
		kvt_index_drop(&tier->index, entry);
	}
	tier->brought += good;
	tier->lost += !good;
}

bool kvt_tier_arrivals(struct kvt_tier *tier)
{
	bool more = false, good;
	uint32_t entry;

	for (uint32_t i = 0; i < tier->n_below; i++)
		if (tier->below[i].turn)
			more |= tier->below[i].turn(tier->below[i].self);
	kvt_tier_lock(tier);
	more |= drop_old(tier);
	for (uint32_t i = 0; i < tier->n_below; i++) {
		if (!tier->below[i].arrived(tier->below[i].self, &entry, &good))
			continue;
		arrive(tier, entry, good);
		more = true;
	}
	kvt_tier_unlock(tier);
	return more;
}

void kvt_tier_clear(struct kvt_tier *tier)
{
	kvt_index_clear(&tier->index);
	for (uint32_t i = 0; i < tier->n_coming; i++)
		tier->coming[i].stale = true;
	kvt_store_release(&tier->drops, tier->drops + 1);
}

/* Count a page that a client computed, once. */
static void count_computed(const struct kvt_tier *tier, struct kvt_share *share,
			   struct kvt_known_page *page)
{
	if (!page->computed)
		return;
	page->computed = false;
	share->computed++;
	share->recomputed += has(tier, &page->chain);
}

/* ---- copies */

/* The entry of a cached page, 0: it is not here. */
static uint32_t entry_of(const struct kvt_tier *tier, const struct kvt_known *known, uint32_t page)
{
	const struct kvt_chain *name = kvt_known_name(known, page);

	return name ? kvt_index_find(&tier->index, name) : 0;
}

/* True if there is an entry for a page. Where the tier is full, its front must be here, and another
 * page must be there to leave. */
static bool has_place(const struct kvt_index *index, bool is_root, uint32_t front)
{
	if (index->first_free)
		return true;
	return (is_root || front) && index->oldest &&
	       (index->oldest != front || index->youngest != front);
}

/* Use a page that a pool cached again, which makes it young, if it was too old. */
static void come_again(struct kvt_tier *tier, uint32_t entry)
{
	struct kvt_index_entry *e = &tier->index.entries[entry];

	kvt_index_touch(&tier->index, entry);
	if (!kvt_tier_is_old(tier, e->time))
		return;
	e->time = (uint32_t)time(NULL);
	enter(tier, entry);
}

/* Find the next queued page that is not here and has a place. Returns as kvt_copy_begin(). */
static int choose(struct kvt_tier *tier, struct kvt_known *known, struct kvt_share *share,
		  struct kvt_copy *copy)
{
	uint32_t there, looks = 0;
	bool swept;

	/* What was cached before a drop is kept out first. */
	if (share->drops != tier->drops)
		return 0;
	/* Wait for memory that comes, and while all that could leave is being written, but for one,
	 * which may be the front of the next page: if the queue has room until then. */
	if (!tier->index.first_free && (tier->index.n_ready < tier->index.n_entries ||
	     (tier->n_writing && tier->index.oldest == tier->index.youngest)) &&
	    known->n_queued < known->queue_pages / 2)
		return 0;
	while ((copy->page = kvt_known_next(known, &swept)) != 0) {
		copy->front = entry_of(tier, known, known->pages[copy->page].parent);
		there = entry_of(tier, known, copy->page);
		count_computed(tier, share, &known->pages[copy->page]);
		if (there && !swept)
			come_again(tier, there);
		else if (!there && has_place(&tier->index, !known->pages[copy->page].parent,
					     copy->front))
			return 1;
		share->full += !there;
		if (++looks == LOOKS_MOST)
			return -EAGAIN;
	}
	return 0;
}

/* Take an entry for a page that was chosen, and pin its front. */
static void prepare(struct kvt_tier *tier, const struct kvt_known *known, struct kvt_copy *copy)
{
	if (copy->front)
		kvt_index_pin(&tier->index, copy->front);
	copy->entry = take(tier);
	KVT_ASSERT(copy->entry);
	copy->first = !known->pages[copy->page].parent;
	copy->chain = *kvt_known_name(known, copy->page);
	copy->changes = known->pages[copy->page].changes;
	copy->drops = tier->drops;
}

int kvt_copy_begin(struct kvt_tier *tier, struct kvt_known *known, const struct kvt_slabs *slabs,
		   struct kvt_share *share, struct kvt_copy *ret_copy)
{
	struct kvt_copy copy = { .entry = 0 };
	int rc;

	kvt_tier_lock(tier);
	rc = choose(tier, known, share, &copy);
	if (rc == 1)
		prepare(tier, known, &copy);
	kvt_tier_unlock(tier);
	if (rc != 1)
		return rc;
	/* A device that fails may write the record for ever: its entry stays PRIVATE. */
	if (kvt_slabs_read(slabs, copy.page, kvt_tier_record(tier, copy.entry)) != 0)
		return 0;
	/* Pairs with the release of the feed's tail: a later writer of the page is in the feed. */
	kvt_fence_acquire();
	*ret_copy = copy;
	return 1;
}

bool kvt_copy_end(struct kvt_tier *tier, const struct kvt_known *known, struct kvt_share *share,
		  const struct kvt_copy *copy, bool complete)
{
	bool good = complete && kvt_known_stayed(known, copy->page, copy->changes);
	uint32_t now = (uint32_t)time(NULL);
	bool found = false, only;

	kvt_tier_lock(tier);
	if (copy->front)
		found = kvt_index_unpin(&tier->index, copy->front);
	/* The same prefix may have been stored and copied as another page meanwhile, or by another
	 * instance. */
	only = good && copy->drops == tier->drops && !kvt_index_find(&tier->index, &copy->chain);
	if (only) {
		tier->index.entries[copy->entry].time = now;
		publish(tier, copy->entry, &copy->chain, copy->first, found ? copy->front : 0);
	} else {
		kvt_index_drop(&tier->index, copy->entry);
	}
	kvt_tier_unlock(tier);
	share->copied += only;
	share->spoiled += !good;
	return only;
}
