/* SPDX-License-Identifier: Apache-2.0 */
#include "store/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
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
				   .page_bytes = record_bytes,
				   .mapped_bytes = n * (record_bytes + seal_bytes),
				   .memory_fd = -1, .jobs.wake = -1 };
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
	free(tier->crcs);
	*tier = (struct kvt_tier){ .ram = NULL };
}

int kvt_tier_keep_crcs(struct kvt_tier *tier)
{
	if (!tier->crcs)
		tier->crcs = calloc(tier->index.n_entries, sizeof(*tier->crcs));
	return tier->crcs ? 0 : -ENOMEM;
}

uint8_t *kvt_tier_record(const struct kvt_tier *tier, uint32_t entry)
{
	KVT_ASSERT(entry >= 1 && entry <= tier->index.n_entries);
	return tier->ram + (entry - 1) * tier->record_bytes;
}

uint32_t *kvt_tier_crcs(const struct kvt_tier *tier, uint32_t entry)
{
	KVT_ASSERT(tier->crcs && entry >= 1 && entry <= tier->index.n_entries);
	return tier->crcs[entry - 1];
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
	for (uint32_t i = 0; i < tier->n_below && entry; i++)
		if (tier->below[i].used)
			tier->below[i].used(tier->below[i].self, entry);
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

/* Take an entry. Pages are offered to the tiers below before they leave for it: one that is written
 * stays until then, but the last one that can leave does. */
static uint32_t take(struct kvt_tier *tier)
{
	const struct kvt_index *index = &tier->index;
	uint32_t i = 0;

	while (!index->first_free && index->oldest != index->youngest && i < tier->n_below)
		if (!tier->below[i].leave(tier->below[i].self, index->oldest))
			i++;
	return kvt_index_take(&tier->index);
}

/* Tell the tiers below of a page that came. */
static void enter(struct kvt_tier *tier, uint32_t entry)
{
	for (uint32_t i = 0; i < tier->n_below; i++)
		tier->below[i].entered(tier->below[i].self, entry);
}

/* Let a page be found whose bytes are there, or drop it. False: it was, or all pages were. */
static bool arrive(struct kvt_tier *tier, uint32_t entry, bool good)
{
	if (!good)
		kvt_index_drop(&tier->index, entry);
	else if (kvt_index_arrive(&tier->index, entry))
		enter(tier, entry);
	else
		return false;
	return good;
}

/* Give an entry a page's name, of a prompt that begins with it or behind an entry, 0: it is not
 * here. */
static void expect(struct kvt_tier *tier, uint32_t entry, const struct kvt_chain *page, bool first,
		   uint32_t front)
{
	kvt_index_expect(&tier->index, entry, page, front);
	tier->index.entries[entry].first = first;
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
		if (front) /* it may have come before that */
			kvt_index_join(&tier->index, entry, kvt_index_find(&tier->index, front));
		kvt_index_pin(&tier->index, entry);
		return entry;
	}
	entry = kvt_index_look(&tier->index, page);
	if (entry) /* on its way, or too old */
		return kvt_index_is_found(&tier->index, entry) ? -ENOENT : 0;
	if (!has(tier, page))
		return -ENOENT;
	if (tier->n_coming && tier->n_coming >= most)
		return -EAGAIN;
	entry = take(tier);
	if (!entry)
		return -EAGAIN; /* all are pinned, coming or being written */
	rc = read_below(tier, page, entry);
	if (rc != 0) {
		kvt_index_drop(&tier->index, entry);
		return rc;
	}
	expect(tier, entry, page, !front, front ? kvt_index_look(&tier->index, front) : 0);
	tier->index.entries[entry].below = 1;
	tier->n_coming++;
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
	moves = tier->n_coming + tier->n_copying + tier->n_writing > 0;
	kvt_tier_unlock(tier);
	return moves;
}

/* Take a page that came from below. */
static void take_arrived(struct kvt_tier *tier, uint32_t entry, bool good)
{
	struct kvt_index_entry *e = &tier->index.entries[entry];

	if (!e->time) /* copied by another host, not later */
		e->time = (uint32_t)time(NULL);
	if (arrive(tier, entry, good))
		e->used = 1; /* a load wants it */
	tier->n_coming--;
	tier->brought += good;
	tier->lost += !good;
}

bool kvt_tier_arrivals(struct kvt_tier *tier)
{
	bool more = false, good;
	uint32_t entry;

	kvt_jobs_look(&tier->jobs);
	for (uint32_t i = 0; i < tier->n_below; i++)
		if (tier->below[i].turn)
			more |= tier->below[i].turn(tier->below[i].self);
	kvt_tier_lock(tier);
	more |= drop_old(tier);
	for (uint32_t i = 0; i < tier->n_below; i++) {
		if (!tier->below[i].arrived(tier->below[i].self, &entry, &good))
			continue;
		take_arrived(tier, entry, good);
		more = true;
	}
	kvt_tier_unlock(tier);
	return more;
}

void kvt_tier_check(struct kvt_tier *tier, uint32_t entry, bool came, struct kvt_job *job)
{
	*job = (struct kvt_job){ .kind = KVT_JOB_CHECK, .record = kvt_tier_record(tier, entry),
				 .bytes = tier->page_bytes, .ended = true };
	if (came)
		kvt_jobs_add(&tier->jobs, job);
}

void kvt_tier_note_crc(struct kvt_tier *tier, uint32_t entry, const struct kvt_job *job)
{
	if (tier->crcs)
		memcpy(kvt_tier_crcs(tier, entry), job->crc, sizeof(job->crc));
}

void kvt_tier_clear(struct kvt_tier *tier)
{
	kvt_index_clear(&tier->index);
	kvt_store_release(&tier->drops, tier->drops + 1);
}

void kvt_tier_scan_open(struct kvt_tier *tier, struct kvt_scan *scan)
{
	kvt_tier_lock(tier);
	kvt_scan_open(&tier->index.scans, scan, tier->index.n_entries);
	kvt_tier_unlock(tier);
}

bool kvt_tier_scan(struct kvt_tier *tier, struct kvt_scan *scan, uint32_t since)
{
	bool done;

	kvt_tier_lock(tier);
	done = kvt_index_scan(&tier->index, scan, since);
	kvt_tier_unlock(tier);
	return done;
}

uint32_t kvt_tier_forget(struct kvt_tier *tier, struct kvt_scan *scan, const struct kvt_chain *page,
			 uint32_t since, uint32_t stays)
{
	uint32_t n_found = tier->index.n_found;

	kvt_index_forget(&tier->index, scan, kvt_index_look(&tier->index, page), since, stays);
	kvt_store_release(&tier->withdrawals, tier->withdrawals + 1);
	return n_found - tier->index.n_found;
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

/* The entry of a cached page, 0: it is not here, nor on its way. */
static uint32_t entry_of(const struct kvt_tier *tier, const struct kvt_known *known, uint32_t page)
{
	const struct kvt_chain *name = kvt_known_name(known, page);

	return name ? kvt_index_look(&tier->index, name) : 0;
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

/* True if less than three pages can leave: the front of another may be one, and the last one is
 * offered to no tier below. */
static bool few_can_leave(const struct kvt_index *index)
{
	uint32_t second = index->oldest ? index->entries[index->oldest].younger : 0;

	return !second || !index->entries[second].younger;
}

/* Use a page that a pool cached again, which makes it young, if it was too old. Its front may have
 * been forgotten, and be back. */
static void come_again(struct kvt_tier *tier, uint32_t entry, uint32_t front)
{
	struct kvt_index_entry *e = &tier->index.entries[entry];

	if (!kvt_index_is_found(&tier->index, entry))
		return;
	kvt_index_join(&tier->index, entry, front);
	kvt_index_touch(&tier->index, entry);
	if (!kvt_tier_is_old(tier, e->time))
		return;
	e->time = (uint32_t)time(NULL);
	enter(tier, entry);
}

/* True if a page is on its way from below, and may turn out to be lost. */
static bool may_be_lost(const struct kvt_index *index, uint32_t entry)
{
	return entry && !kvt_index_is_found(index, entry) && index->entries[entry].below;
}

/* Find the next queued page that is not here and has a place, and the entry of its front. Returns
 * as kvt_copy_begin(). */
static int choose(struct kvt_tier *tier, struct kvt_known *known, struct kvt_share *share,
		  uint32_t *ret_page, uint32_t *ret_front)
{
	uint32_t there, looks = 0, again = 0, page, front;
	bool swept;

	/* What was cached before a drop is kept out first, and what is damaged removed. */
	if (share->drops != tier->drops || share->withdrawn != tier->withdrawals)
		return 0;
	/* Copies on their way pin their fronts: wait while one page or two could leave. */
	if (!tier->index.first_free && tier->n_copying && few_can_leave(&tier->index))
		return 0;
	/* Wait for memory that comes, and while all that could leave is being written, but for one,
	 * which may be the front of the next page: if the queue has room until then. */
	if (!tier->index.first_free && (tier->index.n_ready < tier->index.n_entries ||
	     (tier->n_writing && tier->index.oldest == tier->index.youngest)) &&
	    known->n_queued < known->queue_pages / 2)
		return 0;
	while ((page = kvt_known_next(known, &swept)) != 0) {
		front = entry_of(tier, known, known->pages[page].parent);
		there = entry_of(tier, known, page);
		count_computed(tier, share, &known->pages[page]);
		*ret_page = page;
		*ret_front = front;
		if (may_be_lost(&tier->index, there) || may_be_lost(&tier->index, front)) {
			kvt_known_queue(known, page);
			if (++again >= known->n_queued)
				return 0;
			continue;
		}
		if (there && !swept)
			come_again(tier, there, front);
		else if (!there && has_place(&tier->index, !known->pages[page].parent, front))
			return 1;
		share->full += !there;
		if (++looks == LOOKS_MOST)
			return -EAGAIN;
	}
	return 0;
}

/* Take an entry for a page that was chosen, behind that of its front, and make its job. */
static void prepare(struct kvt_tier *tier, const struct kvt_known *known,
		    const struct kvt_slabs *slabs, uint32_t page, uint32_t front,
		    struct kvt_copy *copy)
{
	if (front) /* it stays */
		kvt_index_pin(&tier->index, front);
	*copy = (struct kvt_copy){
		.entry = take(tier),
		.changes = known->pages[page].changes,
	};
	KVT_ASSERT(copy->entry);
	expect(tier, copy->entry, kvt_known_name(known, page), !known->pages[page].parent, front);
	if (front)
		kvt_index_put_back(&tier->index, front);
	copy->job = (struct kvt_job){
		.kind = KVT_JOB_OUT, .slabs = slabs, .page = page,
		.record = kvt_tier_record(tier, copy->entry), .wants_crc = tier->crcs != NULL,
	};
	tier->n_copying++;
}

int kvt_copy_begin(struct kvt_tier *tier, struct kvt_known *known, const struct kvt_slabs *slabs,
		   struct kvt_share *share, struct kvt_jobs *jobs, struct kvt_copy *copy)
{
	uint32_t page, front;
	int rc;

	kvt_tier_lock(tier);
	rc = choose(tier, known, share, &page, &front);
	if (rc == 1)
		prepare(tier, known, slabs, page, front, copy);
	kvt_tier_unlock(tier);
	if (rc == 1)
		kvt_jobs_add(jobs, &copy->job);
	return rc;
}

bool kvt_copy_end(struct kvt_tier *tier, const struct kvt_known *known, struct kvt_share *share,
		  const struct kvt_copy *copy, bool complete)
{
	bool good = complete && kvt_known_stayed(known, copy->job.page, copy->changes), found;

	if (copy->job.result != 0)
		return false;
	kvt_tier_lock(tier);
	if (good)
		tier->index.entries[copy->entry].time = (uint32_t)time(NULL);
	if (good)
		kvt_tier_note_crc(tier, copy->entry, &copy->job);
	found = arrive(tier, copy->entry, good);
	tier->n_copying--;
	kvt_tier_unlock(tier);
	share->copied += found;
	share->spoiled += !good;
	return found;
}
