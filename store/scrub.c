/* SPDX-License-Identifier: Apache-2.0 */
/* Reading of cached pages (scrub.h). Called by follow.c, session.c and serve.c. */
#include "store/scrub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtrunk_feed.h"
#include "shm/assert.h"
#include "shm/clock.h"

#define ROUND_EVERY 4u           /* of so many pages one is of the round */
#define SOON_EVERY 8u            /* of so many new pages one is read again soon */
#define SOON_NS 500000000ull
#define LATE_NS 25000000ull      /* what was not read in this time is not made up for */
#define LOOKS_MOST 4096u         /* at once for a cached page: less than a millisecond */

static size_t n_sums_of(const struct kvt_slabs *slabs)
{
	return (size_t)slabs->n_slabs * slabs->n_pieces;
}

uint64_t kvt_scrub_bytes(const struct kvt_info *info, const struct kvt_slabs *slabs)
{
	uint64_t sums = (info->n_pages + KVT_SCRUB_READS + 1ull) * n_sums_of(slabs);

	return info->n_pages * sizeof(struct kvt_scrubbed) + sums * sizeof(uint32_t) +
	       (slabs->device ? KVT_SCRUB_READS * slabs->record_bytes : 0);
}

int kvt_scrub_init(struct kvt_scrub *scrub, uint64_t rate, const struct kvt_known *known,
		   const struct kvt_slabs *slabs)
{
	uint64_t scrubbed = scrub->scrubbed, damaged = scrub->damaged;
	size_t n_pages = known->info.n_pages, n_sums = n_sums_of(slabs);

	*scrub = (struct kvt_scrub){ .rate = rate, .scrubbed = scrubbed, .damaged = damaged,
				     .n_sums = (uint32_t)n_sums };
	if (!rate)
		return 0;
	scrub->pages = calloc(n_pages, sizeof(*scrub->pages));
	scrub->sums = calloc(n_pages * n_sums, sizeof(*scrub->sums));
	scrub->read_sums = calloc((KVT_SCRUB_READS + 1) * n_sums, sizeof(*scrub->read_sums));
	if (slabs->device)
		scrub->records = malloc(KVT_SCRUB_READS * slabs->record_bytes);
	if (scrub->pages && scrub->sums && scrub->read_sums && !scrub->records == !slabs->device)
		return 0;
	kvt_scrub_destroy(scrub);
	return -ENOMEM;
}

void kvt_scrub_destroy(struct kvt_scrub *scrub)
{
	free(scrub->pages);
	free(scrub->sums);
	free(scrub->read_sums);
	free(scrub->records);
	*scrub = (struct kvt_scrub){ .scrubbed = scrub->scrubbed, .damaged = scrub->damaged };
}

void kvt_scrub_forget(struct kvt_scrub *scrub)
{
	scrub->since_ns = (uint64_t)kvt_now_ns();
	scrub->round_ns = scrub->last_round_ns = 0;
}

/* ---- which page comes next */

static void note(struct kvt_scrub *scrub, const struct kvt_known *known, uint32_t page)
{
	if (!kvt_known_name(known, page) || scrub->pages[page].waits)
		return;
	scrub->pages[page].waits = true;
	scrub->pages[page].next = 0;
	*(scrub->last_new ? &scrub->pages[scrub->last_new].next : &scrub->first_new) = page;
	scrub->last_new = page;
}

void kvt_scrub_note(struct kvt_scrub *scrub, const struct kvt_known *known,
		    const struct kvt_feed_record *record)
{
	if (!scrub->rate)
		return;
	for (uint32_t i = 0; i < record->n && record->type == KVT_FEED_STORED; i++)
		note(scrub, known, record->pages[i]);
	for (uint32_t i = 0; i < record->n && record->type == KVT_FEED_SIDE; i++)
		note(scrub, known, record->sides[i].side);
	if (record->type == KVT_FEED_STORED && !record->parent &&
	    kvt_known_name(known, record->pages[0])) {
		scrub->pages[record->pages[0]].namespace_id = record->namespace_id;
		scrub->pages[record->pages[0]].root_key = record->root_key;
	}
}

/* Take a new page that is still cached, 0: there is none. */
static uint32_t take_new(struct kvt_scrub *scrub, const struct kvt_known *known)
{
	while (scrub->first_new) {
		uint32_t page = scrub->first_new;

		scrub->first_new = scrub->pages[page].next;
		scrub->last_new = scrub->first_new ? scrub->last_new : 0;
		scrub->pages[page].waits = false;
		if (kvt_known_name(known, page))
			return page;
	}
	return 0;
}

/* Take a page that is due to be read again, 0: there is none. */
static uint32_t take_soon(struct kvt_scrub *scrub, const struct kvt_known *known, uint64_t now)
{
	while (scrub->n_soon && scrub->soon[scrub->soon_at].due_ns <= now) {
		const struct kvt_scrub_soon *soon = &scrub->soon[scrub->soon_at];

		scrub->soon_at = (scrub->soon_at + 1) % KVT_SCRUB_SOON;
		scrub->n_soon--;
		if (kvt_known_stayed(known, soon->page, soon->changes))
			return soon->page;
	}
	return 0;
}

/* Begin a round. One in which nothing was cached took no time. */
static void begin_round(struct kvt_scrub *scrub, uint64_t now)
{
	scrub->last_round_ns = scrub->round_ns && scrub->n_round ? now - scrub->round_ns : 0;
	scrub->round_ns = now;
	scrub->n_round = 0;
	scrub->at = 1;
}

/* Take the next page of the round. 0: none is cached, or not near: call again in the next turn. */
static uint32_t take_round(struct kvt_scrub *scrub, const struct kvt_known *known, uint64_t now)
{
	uint32_t n = known->info.n_pages;

	for (uint32_t looks = 0; looks < LOOKS_MOST && looks < n; looks++) {
		if (++scrub->at >= n)
			begin_round(scrub, now);
		if (kvt_known_name(known, scrub->at)) {
			scrub->n_round++;
			return scrub->at;
		}
	}
	return 0;
}

static uint32_t take(struct kvt_scrub *scrub, const struct kvt_known *known, uint64_t now)
{
	uint32_t page = take_soon(scrub, known, now);

	if (!page && scrub->first_new && ++scrub->turns % ROUND_EVERY)
		page = take_new(scrub, known);
	return page ? page : take_round(scrub, known, now);
}

/* ---- reading */

static uint32_t *sums_of(const struct kvt_scrub *scrub, uint32_t page)
{
	return scrub->sums + (size_t)page * scrub->n_sums;
}

/* Pay for a page of so many bytes. False: it is not time. */
static bool pay(struct kvt_scrub *scrub, uint64_t bytes, uint64_t now)
{
	if (now < scrub->ready_ns)
		return false;
	if (scrub->ready_ns + LATE_NS < now)
		scrub->ready_ns = now - LATE_NS;
	scrub->ready_ns += (uint64_t)((double)bytes * 1e9 / (double)scrub->rate);
	return true;
}

bool kvt_scrub_begin(struct kvt_scrub *scrub, const struct kvt_known *known,
		     const struct kvt_slabs *slabs, struct kvt_jobs *jobs)
{
	uint32_t at = (scrub->reads_at + scrub->n_reads) % KVT_SCRUB_READS, page;
	struct kvt_scrub_read *read = &scrub->reads[at];
	uint64_t now = (uint64_t)kvt_now_ns();

	if (!scrub->rate || scrub->n_reads == KVT_SCRUB_READS || now < scrub->ready_ns)
		return false;
	page = take(scrub, known, now);
	/* Reads end in any order, so a page has one. */
	if (!page || scrub->pages[page].reading || !pay(scrub, slabs->record_bytes, now))
		return false;
	scrub->pages[page].reading = true;
	*read = (struct kvt_scrub_read){ .changes = known->pages[page].changes, .begun_ns = now,
					 .begun_s = (uint32_t)time(NULL) };
	read->job = (struct kvt_job){
		.kind = KVT_JOB_SUM, .slabs = slabs, .page = page,
		.record = scrub->records ? scrub->records + at * slabs->record_bytes : NULL,
		.sums = scrub->read_sums + (size_t)at * scrub->n_sums,
	};
	scrub->n_reads++;
	kvt_jobs_add(jobs, &read->job);
	return true;
}

uint32_t kvt_scrub_ended(const struct kvt_scrub *scrub)
{
	uint32_t n = 0;

	while (n < scrub->n_reads &&
	       kvt_job_has_ended(&scrub->reads[(scrub->reads_at + n) % KVT_SCRUB_READS].job))
		n++;
	return n;
}

/* Read a new page again soon, if it is its turn and there is room. */
static void note_soon(struct kvt_scrub *scrub, const struct kvt_scrub_read *read)
{
	uint32_t at = (scrub->soon_at + scrub->n_soon) % KVT_SCRUB_SOON;

	if (scrub->n_new++ % SOON_EVERY || scrub->n_soon == KVT_SCRUB_SOON)
		return;
	scrub->soon[at] = (struct kvt_scrub_soon){ read->job.page, read->changes,
						   read->begun_ns + SOON_NS };
	scrub->n_soon++;
}

/* Compare a page with how it was read first. */
static bool differs(const struct kvt_scrub *scrub, const struct kvt_scrub_read *read,
		    struct kvt_damage *ret_damage)
{
	const struct kvt_scrubbed *page = &scrub->pages[read->job.page];
	uint32_t *first = scrub->read_sums + KVT_SCRUB_READS * (size_t)scrub->n_sums;
	struct kvt_damage damage = { .page = read->job.page, .right_ns = page->right_ns,
				     .right_s = page->right_s, .first_sums = first };

	for (uint32_t i = 0; i < scrub->n_sums; i++) {
		if (read->job.sums[i] == sums_of(scrub, damage.page)[i])
			continue;
		damage.first = damage.n_pieces ? damage.first : i;
		damage.last = i;
		damage.n_pieces++;
	}
	if (damage.n_pieces)
		memcpy(first, sums_of(scrub, damage.page), scrub->n_sums * sizeof(*first));
	*ret_damage = damage;
	return damage.n_pieces > 0;
}

bool kvt_scrub_end(struct kvt_scrub *scrub, const struct kvt_known *known, bool complete,
		   struct kvt_damage *ret_damage)
{
	const struct kvt_scrub_read *read = &scrub->reads[scrub->reads_at];
	struct kvt_scrubbed *page = &scrub->pages[read->job.page];
	bool again, damaged = false;

	KVT_ASSERT(scrub->n_reads > 0);
	scrub->reads_at = (scrub->reads_at + 1) % KVT_SCRUB_READS;
	scrub->n_reads--;
	page->reading = false;
	if (!complete || read->job.result != 0 ||
	    !kvt_known_stayed(known, read->job.page, read->changes)) {
		note(scrub, known, read->job.page); /* it may be another one by now */
		return false;
	}
	again = page->right_ns && page->changes == read->changes;
	if (again) {
		damaged = differs(scrub, read, ret_damage);
		scrub->scrubbed++;
		scrub->damaged += damaged;
	} else {
		note_soon(scrub, read);
	}
	page->changes = read->changes;
	page->right_ns = read->begun_ns;
	page->right_s = read->begun_s;
	/* A damaged page is told of once. */
	memcpy(sums_of(scrub, read->job.page), read->job.sums,
	       scrub->n_sums * sizeof(*read->job.sums));
	return damaged;
}
