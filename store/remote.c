/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages in a distributed store (remote.h). Inputs: names to ask for, reads of loads, pages that
 * came into the memory or are used there, and what the helper brings, whose seals are checked
 * before it is used.
 *
 * Invariants: the entry of a read is private, and this file's until arrived(). An entry in an open
 * PUT is pinned. The state of an entry whose page is in a ring names that ring, until the page is
 * taken out or put by the other one. Called by main.c, serve.c and the tier.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <unistd.h>

#include "daemon/keep/backoff.h"
#include "shm/clock.h"
#include "store/budget.h"
#include "store/ghost.h"
#include "store/remote.h"

#define READ_BATCHES 4u /* in flight: of two open GETs, of those that are checked, and queued */
#define READS_LEAST 8u
#define KNOWN_SETS 8192u
#define KNOWN_WAYS 4u
#define KNOWN_NS 60000000000ull    /* an EXISTS counts for so long */
#define PATIENCE_NS 60000000000ull /* Mooncake answers after 30 s without its master */
#define CLOSED_FIRST_NS 1000000000ull
#define CLOSED_MOST_NS 30000000000ull
#define GETS (2u * KVT_HELPER_GETS) /* open, or with pages that are being checked */
#define GHOST_MEMORIES 8u /* so many times the memory's pages are known when they come back */
#define WINDOW 1000u      /* pages that an alarm looks at */
#define REFUSED_MOST 500u /* of these: the store is full */
#define DAMAGED_MOST 10u  /* of these: the store returns garbage */

/* A name that the helper has. */
struct known_name {
	uint8_t name[KVT_HELPER_NAME];
	uint64_t until_ns; /* 0: free */
};

STAILQ_HEAD(reads, page_read);

struct get {
	uint64_t cookie;
	uint64_t begun_ns;       /* 0: it was answered */
	uint32_t n_left, n_good; /* pages: not told of yet, 0: it is over; good ones */
	struct reads reads;      /* until it was answered */
};

struct page_read {
	STAILQ_ENTRY(page_read) next;
	struct kvt_chain page;
	uint32_t entry;
	struct get *get; /* NULL: it was in none */
	bool brought;
	struct kvt_job check;
};

/* What is known of a page in memory. */
struct put {
	uint32_t time_s : 29; /* of DONE and FAILED */
	enum {
		PUT_UNKNOWN = 0, /* it may be there */
		PUT_DONE,        /* it was there */
		PUT_FAILED,      /* refused, or dropped */
		PUT_QUEUED,      /* in the ring of others */
		PUT_FIRST,       /* in the ring of what came back */
	} state : 3;
};

struct ring_page {
	uint64_t name; /* the first bytes of its key: another page may have its entry by now */
	uint32_t entry;
};

/* Pages to put. */
struct ring {
	struct ring_page *pages; /* room for queue_pages */
	uint32_t at, n;
};

struct window {
	uint32_t n, bad; /* pages */
	bool alarm;
};

struct kvt_remote {
	struct kvt_tier *tier;
	struct kvt_remote_options options;
	struct kvt_helper helper;
	uint64_t now_ns; /* of this turn */

	struct known_name (*known)[KNOWN_WAYS];
	struct kvt_chain asked[KVT_HELPER_PAGES]; /* by the next EXISTS */
	uint32_t n_asked;
	uint64_t round, sent_round, answered; /* of `asked`; of the open EXISTS; the last over */
	uint64_t exists_ns; /* since when EXISTS is open, 0: it is not */

	struct page_read *all_reads;
	struct reads free, queued, ended; /* `ended`: arrived() tells, once they are checked */
	struct get gets[GETS];
	uint64_t closed_until_ns;
	uint32_t failures; /* GETs in a row that brought nothing */
	uint32_t came;     /* the entry that arrived() told of last */

	struct put *puts; /* by entry */
	struct ring first, others;
	struct kvt_budget budget;
	struct kvt_ghost ghost; /* what left the memory and was not put, with a budget */
	uint32_t lost_s; /* pages that were put until then may be lost, 0: none were */
	struct window refused, damaged;
	struct kvt_remote_counts counts;
};

static bool is_open(const struct kvt_remote *remote)
{
	return remote->helper.state == KVT_HELPER_IS_READY &&
	       remote->now_ns >= remote->closed_until_ns;
}

static void close_for_a_while(struct kvt_remote *remote)
{
	remote->failures++;
	remote->closed_until_ns = remote->now_ns + kvt_backoff_ns(remote->failures,
								  CLOSED_FIRST_NS, CLOSED_MOST_NS);
}

/* Count a page. The alarm is that of the last window, or of this one, if it has as many bad pages
 * already. */
static void look(struct window *window, bool bad, uint32_t most)
{
	window->bad += bad;
	if (++window->n < WINDOW && window->bad <= most)
		return;
	window->alarm = window->bad > most;
	window->n = window->bad = 0;
}

static uint8_t *seal_at(const struct kvt_remote *remote, uint32_t entry)
{
	return remote->tier->seals + (entry - 1) * sizeof(struct kvt_helper_seal);
}

static struct kvt_helper_page page_of(const struct kvt_remote *remote,
				      const struct kvt_chain *name, uint32_t entry)
{
	struct kvt_helper_page page = { .record_at = 0 };

	memcpy(page.name, name->digest, sizeof(page.name));
	if (entry) {
		page.record_at = (uint64_t)(kvt_tier_record(remote->tier, entry) -
					    remote->tier->ram);
		page.seal_at = (uint64_t)(seal_at(remote, entry) - remote->tier->ram);
	}
	return page;
}

static uint32_t entry_at(const struct kvt_remote *remote, const struct kvt_helper_page *page)
{
	return (uint32_t)(page->record_at / remote->tier->record_bytes) + 1;
}

/* Pages of a GET or PUT. Not all of a small memory: they cannot leave it. */
static uint32_t batch_pages(const struct kvt_remote *remote)
{
	uint64_t n = remote->options.batch_bytes / remote->tier->page_bytes;
	uint32_t most = remote->tier->index.n_entries / 8;

	most = most < KVT_HELPER_PAGES ? most : KVT_HELPER_PAGES;
	n = n < most ? n : most;
	return n ? (uint32_t)n : 1;
}

/* ---- names that exist */

static struct known_name *set_of(const struct kvt_remote *remote, const uint8_t *name)
{
	uint32_t bits;

	memcpy(&bits, name, sizeof(bits));
	return remote->known[bits % KNOWN_SETS];
}

static struct known_name *find_known(const struct kvt_remote *remote, const uint8_t *name)
{
	struct known_name *set = set_of(remote, name);

	for (uint32_t i = 0; i < KNOWN_WAYS; i++)
		if (set[i].until_ns && memcmp(set[i].name, name, KVT_HELPER_NAME) == 0)
			return &set[i];
	return NULL;
}

static void forget(struct kvt_remote *remote, const uint8_t *name)
{
	struct known_name *known = find_known(remote, name);

	if (known)
		known->until_ns = 0;
}

/* Know a name, in the place of the one that is forgotten first. */
static void learn(struct kvt_remote *remote, const uint8_t *name)
{
	struct known_name *set = set_of(remote, name), *to = find_known(remote, name);

	if (!to) {
		to = set;
		for (uint32_t i = 1; i < KNOWN_WAYS; i++)
			if (set[i].until_ns < to->until_ns)
				to = &set[i];
	}
	memcpy(to->name, name, sizeof(to->name));
	to->until_ns = remote->now_ns + KNOWN_NS;
}

uint64_t kvt_remote_ask(struct kvt_remote *remote, const struct kvt_chain *names, uint32_t n)
{
	uint32_t room = KVT_HELPER_PAGES - remote->n_asked;
	bool is_late = remote->exists_ns &&
		       remote->now_ns > remote->exists_ns + remote->options.wait_ns;

	if (!is_open(remote) || is_late || room == 0 || n == 0)
		return 0;
	n = n < room ? n : room;
	memcpy(remote->asked + remote->n_asked, names, n * sizeof(*names));
	remote->n_asked += n;
	return remote->round;
}

bool kvt_remote_answered(const struct kvt_remote *remote, uint64_t round)
{
	return round <= remote->answered;
}

static bool send_exists(struct kvt_remote *remote)
{
	struct kvt_helper_page *pages = kvt_helper_room(&remote->helper, KVT_HELPER_EXISTS);

	if (!pages || !remote->n_asked)
		return false;
	for (uint32_t i = 0; i < remote->n_asked; i++)
		pages[i] = page_of(remote, &remote->asked[i], 0);
	if (kvt_helper_ask(&remote->helper, KVT_HELPER_EXISTS, remote->n_asked, remote->now_ns))
		return false;
	remote->exists_ns = remote->now_ns;
	remote->sent_round = remote->round++;
	remote->n_asked = 0;
	return true;
}

/* ---- reads */

static bool has(void *self, const struct kvt_chain *page)
{
	struct kvt_remote *remote = self;
	const struct known_name *known = find_known(remote, page->digest);

	return known && known->until_ns > remote->now_ns && is_open(remote);
}

static int read_page(void *self, const struct kvt_chain *page, uint32_t entry)
{
	struct kvt_remote *remote = self;
	struct page_read *read = STAILQ_FIRST(&remote->free);

	if (!has(self, page))
		return -ENOENT;
	if (!read)
		return -EAGAIN;
	STAILQ_REMOVE_HEAD(&remote->free, next);
	*read = (struct page_read){ .page = *page, .entry = entry };
	STAILQ_INSERT_TAIL(&remote->queued, read, next);
	remote->tier->index.entries[entry].time = 0; /* perhaps another host copied it */
	return 0;
}

static bool is_good(const struct kvt_remote *remote, const struct page_read *read)
{
	struct kvt_helper_seal seal;

	memcpy(&seal, seal_at(remote, read->entry), sizeof(seal));
	return read->brought && kvt_helper_sealed(&seal, read->page.digest, read->check.crc,
						  remote->tier->page_bytes);
}

/* Take note that a page of a GET has been told. */
static void tell(struct kvt_remote *remote, struct get *get, bool good)
{
	get->n_good += good;
	if (--get->n_left > 0)
		return;
	if (get->n_good > 0)
		remote->failures = 0;
	else
		close_for_a_while(remote);
}

static bool arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	struct kvt_remote *remote = self;
	struct page_read *read = STAILQ_FIRST(&remote->ended);

	if (!read || !kvt_job_has_ended(&read->check))
		return false;
	*ret_entry = read->entry;
	*ret_good = is_good(remote, read);
	if (*ret_good) {
		kvt_tier_note_crc(remote->tier, read->entry, &read->check);
		remote->counts.got++;
	} else {
		remote->counts.bad++;
		forget(remote, read->page.digest);
	}
	if (read->brought)
		look(&remote->damaged, !*ret_good, DAMAGED_MOST);
	remote->came = read->entry;
	STAILQ_REMOVE_HEAD(&remote->ended, next);
	STAILQ_INSERT_HEAD(&remote->free, read, next);
	if (read->get)
		tell(remote, read->get, *ret_good);
	return true;
}

static struct get *free_get(struct kvt_remote *remote)
{
	for (uint32_t i = 0; i < GETS; i++)
		if (remote->gets[i].n_left == 0)
			return &remote->gets[i];
	return NULL;
}

static bool send_get(struct kvt_remote *remote)
{
	struct kvt_helper_page *pages = kvt_helper_room(&remote->helper, KVT_HELPER_GET);
	struct get *get = free_get(remote);
	struct page_read *read;
	uint32_t n = 0, most = batch_pages(remote);

	if (!pages || !get)
		return false;
	STAILQ_FOREACH(read, &remote->queued, next) {
		if (n == most)
			break;
		/* A page that the helper does not bring must have no old seal. */
		memset(seal_at(remote, read->entry), 0, sizeof(struct kvt_helper_seal));
		pages[n++] = page_of(remote, &read->page, read->entry);
	}
	if (n == 0 || kvt_helper_ask(&remote->helper, KVT_HELPER_GET, n, remote->now_ns) != 0)
		return false;
	*get = (struct get){ .cookie = remote->helper.cookie, .begun_ns = remote->now_ns,
			     .n_left = n };
	STAILQ_INIT(&get->reads);
	while (n-- > 0) {
		read = STAILQ_FIRST(&remote->queued);
		STAILQ_REMOVE_HEAD(&remote->queued, next);
		STAILQ_INSERT_TAIL(&get->reads, read, next);
		read->get = get;
	}
	return true;
}

/* End the first read of a list. Pages that came are checked before the tier hears of them. */
static void end_read(struct kvt_remote *remote, struct reads *reads, bool brought)
{
	struct page_read *read = STAILQ_FIRST(reads);

	STAILQ_REMOVE_HEAD(reads, next);
	STAILQ_INSERT_TAIL(&remote->ended, read, next);
	read->brought = brought;
	kvt_tier_check(remote->tier, read->entry, brought, &read->check);
}

static void take_get(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	struct get *get = remote->gets;

	while (!get->begun_ns || get->cookie != done->cookie)
		get++;
	for (uint32_t i = 0; i < done->n_pages; i++)
		end_read(remote, &get->reads, kvt_helper_bit(done, i));
	kvt_store_time_add(&remote->counts.get_time, remote->now_ns - get->begun_ns);
	get->begun_ns = 0;
}

static bool is_late(const struct kvt_remote *remote)
{
	for (uint32_t i = 0; i < GETS; i++)
		if (remote->gets[i].begun_ns &&
		    remote->now_ns > remote->gets[i].begun_ns + KVT_REMOTE_LATE_NS)
			return true;
	return false;
}

/* ---- what is known of pages in memory */

static uint32_t now_s(const struct kvt_remote *remote)
{
	return (uint32_t)(remote->now_ns / KVT_BUDGET_SECOND_NS) + 1;
}

static void note(struct kvt_remote *remote, uint32_t entry, int state)
{
	remote->puts[entry].state = (unsigned int)state;
	remote->puts[entry].time_s = now_s(remote);
}

static bool is_queued(const struct put *put)
{
	return put->state == PUT_QUEUED || put->state == PUT_FIRST;
}

static uint64_t name_of(const struct kvt_remote *remote, uint32_t entry)
{
	uint64_t name;

	memcpy(&name, remote->tier->index.entries[entry].key, sizeof(name));
	return name;
}

/* Note a page in place i of a ring. */
static void queue_at(struct kvt_remote *remote, struct ring *ring, uint32_t i, uint32_t entry)
{
	ring->pages[((uint64_t)ring->at + i) % remote->options.queue_pages] =
		(struct ring_page){ name_of(remote, entry), entry };
	remote->puts[entry].state = ring == &remote->first ? PUT_FIRST : PUT_QUEUED;
}

static void queue(struct kvt_remote *remote, struct ring *ring, uint32_t entry)
{
	if (ring->n < remote->options.queue_pages) {
		queue_at(remote, ring, ring->n++, entry);
		return;
	}
	note(remote, entry, PUT_FAILED);
	remote->counts.dropped++;
}

/* True if a page of a path that is missing there must be put: it never was, or before the loss. */
static bool is_lost(const struct kvt_remote *remote, uint32_t entry)
{
	const struct put *put = &remote->puts[entry];

	return put->state != PUT_DONE || put->time_s <= remote->lost_s;
}

/* The page in front of one, 0: none, or it and those in front of it are in the first ring. */
static uint32_t front_of(const struct kvt_remote *remote, uint32_t entry)
{
	uint32_t front = remote->tier->index.entries[entry].front;

	return front && kvt_index_is_found(&remote->tier->index, front) &&
	       remote->puts[front].state != PUT_FIRST ? front : 0;
}

/* Put a path before others, from its front on. A later use finds the rest lost if there is no place
 * for all. */
static void put_first(struct kvt_remote *remote, uint32_t end)
{
	uint32_t n = 0, room = remote->options.queue_pages - remote->first.n, more;

	for (uint32_t at = end; at; at = front_of(remote, at))
		n += is_lost(remote, at);
	more = n < room ? n : room;
	for (uint32_t at = end, front; at; at = front) {
		front = front_of(remote, at);
		if (is_lost(remote, at) && --n < room)
			queue_at(remote, &remote->first, remote->first.n + n, at);
	}
	remote->first.n += more;
}

/* Learn whether the page of an entry is there. If one is lost that was put, so may be all that were
 * until now; those that are put from now on are not. */
static void learn_of(struct kvt_remote *remote, uint32_t entry, bool there)
{
	struct put *put = &remote->puts[entry];

	if (there) {
		note(remote, entry, PUT_DONE);
	} else if (!is_queued(put)) {
		if (!is_lost(remote, entry))
			remote->lost_s = now_s(remote);
		put_first(remote, entry);
	}
}

/* Ask for a page that is used, if that was not known for a while. */
static void ask_again(struct kvt_remote *remote, uint32_t entry)
{
	const struct put *put = &remote->puts[entry];

	if (is_queued(put) || !is_open(remote) || remote->n_asked >= KVT_HELPER_PAGES / 2)
		return;
	if (put->state == PUT_UNKNOWN || now_s(remote) - put->time_s >= remote->options.again_s)
		remote->asked[remote->n_asked++] = kvt_index_page(&remote->tier->index, entry);
}

static void used(void *self, uint32_t entry)
{
	struct kvt_remote *remote = self;

	if (remote->puts[entry].state == PUT_QUEUED)
		put_first(remote, entry);
	else
		ask_again(remote, entry);
}

static void entered(void *self, uint32_t entry)
{
	struct kvt_remote *remote = self;
	struct kvt_index_entry *e = &remote->tier->index.entries[entry];
	struct kvt_chain page = kvt_index_page(&remote->tier->index, entry);

	if (!e->below)
		queue(remote, e->used || kvt_ghost_has(&remote->ghost, &page) ? &remote->first :
		      &remote->others, entry);
	else
		note(remote, entry, entry == remote->came ? PUT_DONE : PUT_UNKNOWN);
	remote->came = 0;
	if (e->front)
		ask_again(remote, e->front);
}

static bool leave(void *self, uint32_t entry)
{
	struct kvt_remote *remote = self;
	struct kvt_chain page = kvt_index_page(&remote->tier->index, entry);

	if (remote->puts[entry].state != PUT_DONE)
		kvt_ghost_add(&remote->ghost, &page);
	return false;
}

static void take_exists(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	for (uint32_t i = 0; i < done->n_pages; i++) {
		bool there = kvt_helper_bit(done, i);
		struct kvt_chain page = { { 0 } };
		uint32_t entry;

		memcpy(page.digest, done->pages[i].name, KVT_HELPER_NAME);
		entry = kvt_index_find(&remote->tier->index, &page);
		if (there)
			learn(remote, page.digest);
		else
			forget(remote, page.digest);
		if (entry && done->answered)
			learn_of(remote, entry, there);
	}
	remote->exists_ns = 0;
	remote->answered = remote->sent_round;
}

/* ---- writes */

/* Find the next page of a ring, and take out those before it that have left, or were put otherwise.
 * Returns its entry, 0: none. */
static uint32_t next_of(struct kvt_remote *remote, struct ring *ring)
{
	unsigned int state = ring == &remote->first ? PUT_FIRST : PUT_QUEUED;

	for (; ring->n > 0; ring->n--) {
		const struct ring_page *page = &ring->pages[ring->at];

		if (!kvt_index_is_found(&remote->tier->index, page->entry) ||
		    name_of(remote, page->entry) != page->name)
			remote->counts.dropped++;
		else if (remote->puts[page->entry].state == state)
			return page->entry;
		ring->at = (ring->at + 1) % remote->options.queue_pages;
	}
	return 0;
}

/* Take the next page to put. 0: none, or there is no budget for it now. */
static uint32_t take_next(struct kvt_remote *remote)
{
	struct ring *ring = &remote->first;
	uint32_t entry = next_of(remote, ring);

	if (!entry) {
		ring = &remote->others;
		entry = next_of(remote, ring);
	}
	if (!entry || !kvt_budget_spend(&remote->budget, ring == &remote->first, remote->now_ns))
		return 0;
	note(remote, entry, PUT_DONE); /* take_put() knows better */
	return entry;
}

/* Seal the page of an entry, and name it in a PUT. */
static struct kvt_helper_page seal(const struct kvt_remote *remote, uint32_t entry)
{
	struct kvt_chain name = kvt_index_page(&remote->tier->index, entry);
	struct kvt_helper_seal made;

	kvt_helper_seal(&made, name.digest, kvt_tier_crcs(remote->tier, entry),
			remote->tier->page_bytes);
	memcpy(seal_at(remote, entry), &made, sizeof(made));
	return page_of(remote, &name, entry);
}

/* Take note of how the PUT of a page ended. */
static void end_put(struct kvt_remote *remote, uint32_t entry, bool answered, bool stored)
{
	note(remote, entry, stored ? PUT_DONE : PUT_FAILED);
	kvt_index_unpin(&remote->tier->index, entry);
	remote->counts.stored += stored;
	remote->counts.refused += answered && !stored;
	remote->counts.dropped += !answered;
	if (answered)
		look(&remote->refused, !stored, REFUSED_MOST);
}

static bool send_put(struct kvt_remote *remote)
{
	struct kvt_helper_page *pages = kvt_helper_room(&remote->helper, KVT_HELPER_PUT);
	uint32_t n = 0, most = batch_pages(remote), entry;

	while (pages && n < most && (entry = take_next(remote)) != 0) {
		kvt_index_pin(&remote->tier->index, entry);
		pages[n++] = seal(remote, entry);
	}
	if (n == 0)
		return false;
	if (kvt_helper_ask(&remote->helper, KVT_HELPER_PUT, n, remote->now_ns) == 0)
		return true;
	while (n > 0)
		end_put(remote, entry_at(remote, &pages[--n]), false, false);
	return false;
}

static void take_put(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	for (uint32_t n = done->n_pages; n-- > 0;)
		end_put(remote, entry_at(remote, &done->pages[n]), done->answered,
			kvt_helper_bit(done, n));
}

/* ---- turns */

static bool take_answers(struct kvt_remote *remote)
{
	struct kvt_helper_done done;
	bool any = false;

	for (; kvt_helper_turn(&remote->helper, remote->now_ns, &done); any = true) {
		if (done.kind == KVT_HELPER_EXISTS)
			take_exists(remote, &done);
		else if (done.kind == KVT_HELPER_GET)
			take_get(remote, &done);
		else
			take_put(remote, &done);
	}
	return any;
}

bool kvt_remote_turn(struct kvt_remote *remote)
{
	bool any;

	if (!remote)
		return false;
	remote->now_ns = (uint64_t)kvt_now_ns();
	any = take_answers(remote);
	if (is_late(remote) && remote->now_ns >= remote->closed_until_ns)
		close_for_a_while(remote);
	if (!is_open(remote)) {
		while (!STAILQ_EMPTY(&remote->queued))
			end_read(remote, &remote->queued, false);
		if (remote->n_asked)
			remote->answered = remote->round++;
		remote->n_asked = 0;
	}
	any |= send_exists(remote);
	while (send_get(remote))
		any = true;
	any |= send_put(remote);
	return any;
}

struct kvt_remote_counts kvt_remote_count(const struct kvt_remote *remote)
{
	struct kvt_remote_counts counts = remote ? remote->counts :
						   (struct kvt_remote_counts){ .kind = "" };

	if (remote) {
		counts.kind = remote->helper.kind;
		counts.ready = is_open(remote);
		counts.starts = remote->helper.starts;
		counts.full = remote->refused.alarm;
		counts.garbage = remote->damaged.alarm;
	}
	return counts;
}

/* ---- the whole */

/* Pages in flight. Not all of a small memory, as other tiers read into it, too. */
static uint32_t reads_most(const struct kvt_remote *remote)
{
	uint64_t n = READ_BATCHES * remote->options.batch_bytes / remote->tier->page_bytes;
	uint32_t most = remote->tier->index.n_entries / 8;

	n = n > READS_LEAST ? n : READS_LEAST;
	n = n < READ_BATCHES * KVT_HELPER_PAGES ? n : READ_BATCHES * KVT_HELPER_PAGES;
	return n < most ? (uint32_t)n : most ? most : 1;
}

static int allocate(struct kvt_remote *remote)
{
	uint32_t n_reads = reads_most(remote), n_entries = remote->tier->index.n_entries;
	uint32_t queue_pages = remote->options.queue_pages;
	int rc = 0;

	STAILQ_INIT(&remote->free);
	STAILQ_INIT(&remote->queued);
	STAILQ_INIT(&remote->ended);
	remote->known = calloc(KNOWN_SETS, sizeof(*remote->known));
	remote->all_reads = calloc(n_reads, sizeof(*remote->all_reads));
	remote->puts = calloc(n_entries + 1ull, sizeof(*remote->puts));
	remote->first.pages = calloc(queue_pages, sizeof(*remote->first.pages));
	remote->others.pages = calloc(queue_pages, sizeof(*remote->others.pages));
	if (remote->options.write_bytes)
		rc = kvt_ghost_init(&remote->ghost, (uint64_t)GHOST_MEMORIES * n_entries);
	if (!remote->known || !remote->all_reads || !remote->puts || !remote->first.pages ||
	    !remote->others.pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_reads; i++)
		STAILQ_INSERT_TAIL(&remote->free, &remote->all_reads[i], next);
	return rc;
}

static void release(struct kvt_remote *remote)
{
	free(remote->known);
	free(remote->all_reads);
	free(remote->puts);
	free(remote->first.pages);
	free(remote->others.pages);
	kvt_ghost_destroy(&remote->ghost);
	free(remote);
}

int kvt_remote_open(struct kvt_remote **ret_remote, struct kvt_tier *tier,
		    const struct kvt_remote_options *options)
{
	struct kvt_remote *remote = calloc(1, sizeof(*remote));
	struct kvt_helper_options helper = {
		.command = options->command,
		.patience_ns = PATIENCE_NS,
		.memory_fd = tier->memory_fd,
		.memory_bytes = tier->mapped_bytes,
		.record_bytes = tier->page_bytes,
		.batch_bytes = options->batch_bytes,
	};
	int epoll, rc;

	if (!remote)
		return -ENOMEM;
	remote->tier = tier;
	remote->options = *options;
	remote->round = 1;
	remote->budget = (struct kvt_budget){ .bytes = options->write_bytes,
					      .page = tier->page_bytes };
	epoll = epoll_create1(EPOLL_CLOEXEC);
	rc = epoll < 0 ? -errno : allocate(remote);
	if (rc == 0)
		rc = kvt_tier_keep_crcs(tier);
	if (rc == 0)
		rc = kvt_helper_init(&remote->helper, &helper, epoll);
	if (rc == 0) {
		tier->below[tier->n_below++] = (struct kvt_below){
			.self = remote, .fd = epoll, .has = has, .read = read_page,
			.arrived = arrived, .entered = entered, .leave = leave, .used = used };
		*ret_remote = remote;
		return 0;
	}
	if (epoll >= 0)
		close(epoll);
	release(remote);
	return rc;
}

void kvt_remote_close(struct kvt_remote *remote)
{
	if (!remote)
		return;
	close(remote->helper.epoll);
	kvt_helper_destroy(&remote->helper);
	release(remote);
}
