/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages in a distributed store (remote.h). Inputs: names to ask for, reads of loads, pages that
 * were copied, and what the helper brings, whose seals are checked before it is used.
 *
 * Invariants: the entry of a read is private, and this file's until arrived(). An entry in an open
 * PUT is pinned. Called by main.c, serve.c and the tier.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/keep/backoff.h"
#include "shm/clock.h"
#include "store/remote.h"

#define READS 32u /* of KVT_COMING_MOST: a helper that hangs leaves room for other tiers */
#define KNOWN_SETS 8192u
#define KNOWN_WAYS 4u
#define KNOWN_NS 60000000000ull    /* an EXISTS counts for so long */
#define PATIENCE_NS 60000000000ull /* Mooncake answers after 30 s without its master */
#define CLOSED_FIRST_NS 1000000000ull
#define CLOSED_MOST_NS 30000000000ull

/* A name that the helper has. */
struct known_name {
	uint8_t name[KVT_HELPER_NAME];
	uint64_t until_ns; /* 0: free */
};

enum read_state {
	READ_FREE = 0,
	READ_QUEUED,
	READ_SENT,  /* in the open GET */
	READ_ENDED, /* arrived() tells, once it is checked */
};

struct page_read {
	struct kvt_chain page;
	uint32_t entry;
	enum read_state state;
	bool is_got;    /* it was in a GET, at */
	uint32_t place;
	bool brought;
	struct kvt_job check;
};

struct page_write {
	struct kvt_chain page;
	uint32_t entry; /* that it had; it may have left */
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

	struct page_read reads[READS];
	uint32_t n_reads;
	uint32_t n_got, n_good;  /* of the last GET: not told yet; good ones */
	uint64_t get_ns;         /* since when GET is open, 0: it is not */
	uint64_t closed_until_ns;
	uint32_t failures;       /* GETs in a row that brought nothing */

	struct page_write *writes; /* ring of queue_pages */
	uint32_t writes_at, n_writes;
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

static void take_exists(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	for (uint32_t i = 0; i < done->n_pages; i++) {
		if (kvt_helper_bit(done, i))
			learn(remote, done->pages[i].name);
		else
			forget(remote, done->pages[i].name);
	}
	remote->exists_ns = 0;
	remote->answered = remote->sent_round;
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
	uint32_t most = batch_pages(remote), i = 0;

	if (!has(self, page))
		return -ENOENT;
	if (remote->n_reads == (most < READS ? most : READS))
		return -EAGAIN;
	while (remote->reads[i].state != READ_FREE)
		i++;
	remote->reads[i] = (struct page_read){ .page = *page, .entry = entry,
					       .state = READ_QUEUED };
	remote->n_reads++;
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

static bool arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	struct kvt_remote *remote = self;
	struct page_read *read = remote->reads;

	while (read < remote->reads + READS &&
	       (read->state != READ_ENDED || !kvt_job_has_ended(&read->check)))
		read++;
	if (read == remote->reads + READS)
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
	read->state = READ_FREE;
	remote->n_reads--;
	remote->n_good += *ret_good;
	if (read->is_got && --remote->n_got == 0) {
		if (remote->n_good > 0)
			remote->failures = 0;
		else
			close_for_a_while(remote);
	}
	return true;
}

static bool send_get(struct kvt_remote *remote)
{
	struct kvt_helper_page *pages = kvt_helper_room(&remote->helper, KVT_HELPER_GET);
	uint32_t n = 0, most = batch_pages(remote);

	if (!pages || remote->n_got > 0)
		return false;
	for (uint32_t i = 0; i < READS && n < most; i++) {
		struct page_read *read = &remote->reads[i];

		if (read->state != READ_QUEUED)
			continue;
		/* What it does not bring must not look as if it had. */
		memset(seal_at(remote, read->entry), 0, sizeof(struct kvt_helper_seal));
		read->place = n;
		pages[n++] = page_of(remote, &read->page, read->entry);
	}
	if (n == 0 || kvt_helper_ask(&remote->helper, KVT_HELPER_GET, n, remote->now_ns) != 0)
		return false;
	for (uint32_t i = 0, sent = 0; i < READS && sent < n; i++) {
		if (remote->reads[i].state == READ_QUEUED) {
			remote->reads[i].state = READ_SENT;
			remote->reads[i].is_got = true;
			sent++;
		}
	}
	remote->get_ns = remote->now_ns;
	return true;
}

/* End a read. What was brought is checked first. */
static void end_read(struct kvt_remote *remote, struct page_read *read, bool brought)
{
	read->state = READ_ENDED;
	read->brought = brought;
	kvt_tier_check(remote->tier, read->entry, brought, &read->check);
}

static void take_get(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	for (uint32_t i = 0; i < READS; i++) {
		struct page_read *read = &remote->reads[i];

		if (read->state == READ_SENT)
			end_read(remote, read, kvt_helper_bit(done, read->place));
	}
	kvt_store_time_add(&remote->counts.get_time, remote->now_ns - remote->get_ns);
	remote->get_ns = 0;
	remote->n_got = done->n_pages;
	remote->n_good = 0;
}

/* End reads that nothing was sent for: it will not be. */
static void end_queued(struct kvt_remote *remote)
{
	for (uint32_t i = 0; i < READS; i++) {
		struct page_read *read = &remote->reads[i];

		if (read->state == READ_QUEUED)
			end_read(remote, read, false);
	}
}

/* ---- writes */

void kvt_remote_store(struct kvt_remote *remote, uint32_t entry, const struct kvt_chain *page)
{
	if (remote->n_writes == remote->options.queue_pages) {
		remote->counts.dropped++;
		return;
	}
	remote->writes[((uint64_t)remote->writes_at + remote->n_writes++) %
		       remote->options.queue_pages] = (struct page_write){ *page, entry };
}

/* Seal the page of an entry that is stored now. */
static void seal(const struct kvt_remote *remote, const struct page_write *write)
{
	struct kvt_helper_seal made;

	kvt_helper_seal(&made, write->page.digest, kvt_tier_crcs(remote->tier, write->entry),
			remote->tier->page_bytes);
	memcpy(seal_at(remote, write->entry), &made, sizeof(made));
}

static bool send_put(struct kvt_remote *remote)
{
	struct kvt_helper_page *pages = kvt_helper_room(&remote->helper, KVT_HELPER_PUT);
	struct kvt_index *index = &remote->tier->index;
	uint32_t n = 0, most = batch_pages(remote);

	while (pages && remote->n_writes && n < most) {
		const struct page_write *write = &remote->writes[remote->writes_at];

		remote->writes_at = (remote->writes_at + 1) % remote->options.queue_pages;
		remote->n_writes--;
		if (kvt_index_find(index, &write->page) != write->entry) {
			remote->counts.dropped++; /* it has left */
			continue;
		}
		seal(remote, write);
		kvt_index_pin(index, write->entry);
		pages[n++] = page_of(remote, &write->page, write->entry);
	}
	if (n == 0)
		return false;
	if (kvt_helper_ask(&remote->helper, KVT_HELPER_PUT, n, remote->now_ns) == 0)
		return true;
	remote->counts.dropped += n;
	while (n > 0)
		kvt_index_unpin(index, entry_at(remote, &pages[--n]));
	return false;
}

static void take_put(struct kvt_remote *remote, const struct kvt_helper_done *done)
{
	for (uint32_t n = done->n_pages; n-- > 0;) {
		kvt_index_unpin(&remote->tier->index, entry_at(remote, &done->pages[n]));
		if (kvt_helper_bit(done, n))
			remote->counts.stored++;
		else
			remote->counts.dropped++;
	}
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
	if (remote->get_ns && remote->now_ns > remote->get_ns + KVT_REMOTE_LATE_NS &&
	    remote->now_ns >= remote->closed_until_ns)
		close_for_a_while(remote);
	if (!is_open(remote)) {
		end_queued(remote);
		if (remote->n_asked)
			remote->answered = remote->round++;
		remote->n_asked = 0;
	}
	any |= send_exists(remote);
	any |= send_get(remote);
	any |= send_put(remote);
	return any;
}

struct kvt_remote_counts kvt_remote_count(const struct kvt_remote *remote)
{
	struct kvt_remote_counts counts = remote ? remote->counts :
						   (struct kvt_remote_counts){ .ready = 0 };

	if (remote) {
		counts.ready = is_open(remote);
		counts.starts = remote->helper.starts;
	}
	return counts;
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
	int epoll = epoll_create1(EPOLL_CLOEXEC), rc = -ENOMEM;

	if (epoll < 0)
		rc = -errno;
	if (remote && epoll >= 0) {
		remote->tier = tier;
		remote->options = *options;
		remote->round = 1;
		remote->known = calloc(KNOWN_SETS, sizeof(*remote->known));
		remote->writes = calloc(options->queue_pages, sizeof(*remote->writes));
		if (remote->known && remote->writes && kvt_tier_keep_crcs(tier) == 0)
			rc = kvt_helper_init(&remote->helper, &helper, epoll);
	}
	if (rc == 0) {
		tier->below[tier->n_below++] = (struct kvt_below){
			.self = remote, .fd = epoll, .has = has, .read = read_page,
			.arrived = arrived };
		*ret_remote = remote;
		return 0;
	}
	if (epoll >= 0)
		close(epoll);
	if (remote) {
		free(remote->known);
		free(remote->writes);
	}
	free(remote);
	return rc;
}

void kvt_remote_close(struct kvt_remote *remote)
{
	if (!remote)
		return;
	close(remote->helper.epoll);
	kvt_helper_destroy(&remote->helper);
	free(remote->known);
	free(remote->writes);
	free(remote);
}
