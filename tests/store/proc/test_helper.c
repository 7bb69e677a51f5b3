/* SPDX-License-Identifier: Apache-2.0 */
/* The helper processes of a store, without the store: good ones, and bad ones in all ways that
 * tests/store/proc/helper.c has.
 *
 * Invariant: a request completes exactly once, with nothing if its helper is bad. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/clock.h"
#include "store/crc32c.h"
#include "store/helper.h"
#include "store/remote.h"
#include "tests/lib/cases.h"
#include "tests/store/proc/helper.h"

#define RECORD 4096u
#define PAGES 8u
#define SEALS (PAGES * RECORD)
#define BYTES (SEALS + PAGES * sizeof(struct kvt_helper_seal))

static struct kvt_helper helper;
static uint8_t *memory;
static int epoll, memory_fd;

static void start_helper(uint64_t patience_ns)
{
	struct kvt_helper_options options = {
		.command = command, .patience_ns = patience_ns, .memory_fd = memory_fd,
		.memory_bytes = BYTES, .record_bytes = RECORD, .batch_bytes = BYTES,
	};

	kvt_test_equal(kvt_helper_init(&helper, &options, epoll), 0);
}

static int start(void **state)
{
	make_folder();
	memory_fd = memfd_create("memory", MFD_CLOEXEC);
	kvt_test_equal(ftruncate(memory_fd, BYTES), 0);
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
	epoll = epoll_create1(EPOLL_CLOEXEC);
	start_helper(60000000000);
	return 0;
}

static int stop(void **state)
{
	kvt_helper_destroy(&helper);
	munmap(memory, BYTES);
	close(memory_fd);
	close(epoll);
	remove_folder();
	return 0;
}

/* One turn. Sleeps until the helper has said something, or for a moment. */
static bool turn(struct kvt_helper_done *done)
{
	struct epoll_event event;

	if (kvt_helper_turn(&helper, (uint64_t)kvt_now_ns(), done))
		return true;
	epoll_wait(epoll, &event, 1, 10);
	return false;
}

static void await_state(enum kvt_helper_state state)
{
	struct kvt_helper_done done;

	while (helper.state != state)
		kvt_test_check(!turn(&done));
}

static struct kvt_helper_page page_of(uint32_t i, uint32_t record)
{
	struct kvt_helper_page page = {
		.record_at = record * RECORD,
		.seal_at = SEALS + record * sizeof(struct kvt_helper_seal),
	};

	memset(page.name, (int)(i + 1), sizeof(page.name));
	return page;
}

static struct kvt_helper_seal *seal_of(const struct kvt_helper_page *page)
{
	return (struct kvt_helper_seal *)(memory + page->seal_at);
}

/* Ask for pages [0, n) in records from `record` on. */
static void ask(enum kvt_helper_type kind, uint32_t n, uint32_t record)
{
	struct kvt_helper_page *pages = kvt_helper_room(&helper, kind);

	kvt_test_check(pages);
	for (uint32_t i = 0; i < n; i++)
		pages[i] = page_of(i, record + i);
	kvt_test_equal(kvt_helper_ask(&helper, kind, n, (uint64_t)kvt_now_ns()), 0);
	/* One at a time, but for two GETs. */
	kvt_test_check(kind == KVT_HELPER_GET || !kvt_helper_room(&helper, kind));
}

/* Await a completion. Returns its bits. */
static uint64_t await_done(enum kvt_helper_type kind, uint32_t n)
{
	struct kvt_helper_done done;

	while (!turn(&done))
		;
	kvt_test_equal(done.kind, kind);
	kvt_test_equal(done.n_pages, n);
	return done.bits[0];
}

static void put(uint32_t n)
{
	uint32_t crc[4];

	await_state(KVT_HELPER_IS_READY);
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_helper_page page = page_of(i, i);

		memset(memory + page.record_at, (int)(i * 3 + 1), RECORD);
		kvt_crc32c_quarters(memory + page.record_at, RECORD, crc);
		kvt_helper_seal(seal_of(&page), page.name, crc, RECORD);
	}
	ask(KVT_HELPER_PUT, n, 0);
	kvt_test_equal(await_done(KVT_HELPER_PUT, n), (1ull << n) - 1);
}

static bool is_sealed(uint32_t i, uint32_t record)
{
	struct kvt_helper_page page = page_of(i, record);
	uint32_t crc[4];

	kvt_crc32c_quarters(memory + page.record_at, RECORD, crc);
	return kvt_helper_sealed(seal_of(&page), page.name, crc, RECORD);
}

TEST_WITH(pages_come_back_with_their_seals, start, stop)
{
	put(3);
	ask(KVT_HELPER_EXISTS, 5, 0);
	kvt_test_equal(await_done(KVT_HELPER_EXISTS, 5), 7);
	ask(KVT_HELPER_GET, 4, 4);
	kvt_test_equal(await_done(KVT_HELPER_GET, 4), 7);
	for (uint32_t i = 0; i < 4; i++)
		kvt_test_equal(is_sealed(i, 4 + i), i < 3);
	kvt_test_equal(memory[5 * RECORD], 4);
}

TEST_WITH(a_seal_finds_each_wrong_bit_and_anothers_page, start, stop)
{
	uint8_t *seal = memory + SEALS;

	put(2);
	kvt_test_check(is_sealed(0, 0) && is_sealed(1, 1));
	kvt_test_check(!is_sealed(1, 0));
	for (uint32_t bit = 0; bit < 8 * sizeof(struct kvt_helper_seal); bit++) {
		seal[bit / 8] ^= (uint8_t)(1 << bit % 8);
		kvt_test_check(!is_sealed(0, 0));
		seal[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	for (uint32_t bit = 0; bit < 8 * RECORD; bit += 101) {
		memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
		kvt_test_check(!is_sealed(0, 0));
		memory[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	kvt_test_check(is_sealed(0, 0));
}

TEST_WITH(what_is_swapped_flipped_or_missing_is_not_sealed, start, stop)
{
	static const char *const ways[] = { "swapped", "flipped", "empty" };

	put(3);
	for (uint32_t i = 0; i < 3; i++) {
		make_bad(ways[i]);
		memset(memory + 4 * RECORD, 0, 3 * RECORD);
		memset(memory + SEALS + 4 * sizeof(struct kvt_helper_seal), 0,
		       3 * sizeof(struct kvt_helper_seal));
		ask(KVT_HELPER_GET, 3, 4);
		kvt_test_equal(await_done(KVT_HELPER_GET, 3), 7);
		kvt_test_check(!is_sealed(1, 5));
		make_good(ways[i]);
	}
}

TEST_WITH(all_kinds_may_be_open_at_once, start, stop)
{
	struct kvt_helper_done done;
	uint32_t seen = 0;

	put(2);
	ask(KVT_HELPER_EXISTS, 2, 0);
	ask(KVT_HELPER_GET, 2, 4);
	ask(KVT_HELPER_PUT, 2, 0);
	for (int n = 0; n < 3; n++) {
		while (!turn(&done))
			;
		kvt_test_equal(done.bits[0], 3);
		seen |= 1u << done.kind;
	}
	kvt_test_equal(seen, 7u << KVT_HELPER_EXISTS);
}

TEST_WITH(two_gets_may_be_open_and_each_has_its_answer, start, stop)
{
	struct kvt_helper_done done;

	put(3);
	ask(KVT_HELPER_GET, 2, 4);
	ask(KVT_HELPER_GET, 5, 3);
	kvt_test_check(!kvt_helper_room(&helper, KVT_HELPER_GET));
	for (uint32_t n = 0; n < 2; n++) {
		while (!turn(&done))
			;
		kvt_test_equal(done.cookie, helper.cookie - 1 + n);
		kvt_test_equal(done.n_pages, n ? 5 : 2);
		kvt_test_equal(done.bits[0], n ? 7 : 3);
	}
}

TEST_WITH(ready_tells_the_kind_of_store, start, stop)
{
	await_state(KVT_HELPER_IS_READY);
	kvt_test_check(strcmp(helper.kind, "folder") == 0);
}

TEST_WITH(a_helper_that_lies_or_ends_is_replaced, start, stop)
{
	static const char *const ways[] = { "exit", "short", "stranger" };

	for (uint32_t i = 0; i < 3; i++) {
		put(2);
		make_bad(ways[i]);
		ask(KVT_HELPER_GET, 2, 4);
		kvt_test_equal(await_done(KVT_HELPER_GET, 2), 0);
		kvt_test_equal(helper.state, KVT_HELPER_STOPPED);
		kvt_test_check(!kvt_helper_room(&helper, KVT_HELPER_GET));
		make_good(ways[i]);
		await_state(KVT_HELPER_IS_READY);
		kvt_test_equal(helper.starts, i + 2);
		ask(KVT_HELPER_GET, 2, 4);
		kvt_test_equal(await_done(KVT_HELPER_GET, 2), 3);
	}
}

TEST_WITH(a_killed_helper_completes_all_that_is_open, start, stop)
{
	uint32_t seen = 0;

	put(2);
	make_bad("silent");
	for (int kind = KVT_HELPER_EXISTS; kind <= KVT_HELPER_PUT; kind++)
		ask(kind, 2, 0);
	kvt_test_equal(kill(helper.pid, SIGKILL), 0);
	for (int n = 0; n < 3; n++) {
		struct kvt_helper_done done;

		while (!turn(&done))
			;
		kvt_test_equal(done.bits[0], 0);
		seen |= 1u << done.kind;
	}
	kvt_test_equal(seen, 7u << KVT_HELPER_EXISTS);
}

TEST_WITH(a_silent_helper_is_killed_when_patience_ends, start, stop)
{
	put(2);
	make_bad("silent");
	ask(KVT_HELPER_GET, 2, 4);
	ask(KVT_HELPER_EXISTS, 1, 0);
	helper.options.patience_ns = 1000000;
	kvt_test_equal(await_done(KVT_HELPER_EXISTS, 1), 0);
	kvt_test_equal(await_done(KVT_HELPER_GET, 2), 0);
	kvt_test_equal(helper.kills, 1);
}

TEST_WITH(one_that_cannot_be_started_is_tried_less_and_less, start, stop)
{
	struct kvt_helper_done done;

	helper.options.command = "/nowhere/helper";
	while (helper.starts < 3)
		kvt_test_check(!turn(&done));
	await_state(KVT_HELPER_STOPPED);
	kvt_test_equal(helper.failures, 3);
	kvt_test_check(!kvt_helper_turn(&helper, helper.start_ns - 1, &done));
	kvt_test_equal(helper.starts, 3);
}

TEST_WITH(one_that_is_never_ready_is_asked_nothing, start, stop)
{
	struct kvt_helper_done done;

	make_bad("never-ready");
	kvt_test_check(!turn(&done));
	kvt_test_equal(helper.state, KVT_HELPER_STARTING);
	kvt_test_check(!kvt_helper_room(&helper, KVT_HELPER_EXISTS));
	helper.options.patience_ns = 1;
	while (helper.kills == 0)
		kvt_test_check(!turn(&done));
}

/* ---- the tier below */

static struct kvt_tier tier;
static struct kvt_remote *remote;

/* A helper that is asked for one page at a time. */
static void open_remote(uint64_t write_bytes)
{
	const struct kvt_remote_options options = {
		.command = command, .batch_bytes = RECORD, .queue_pages = 4, .again_s = 600,
		.write_bytes = write_bytes,
	};

	kvt_test_equal(kvt_tier_init(&tier, BYTES, RECORD, sizeof(struct kvt_helper_seal)), 0);
	kvt_test_equal(kvt_remote_open(&remote, &tier, &options), 0);
}

static void close_remote(void)
{
	kvt_remote_close(remote);
	kvt_tier_destroy(&tier);
}

/* Let a page come into the memory, in the entry that was freed last. Returns the entry. */
static uint32_t enter(uint8_t i, uint32_t front)
{
	uint32_t entry = kvt_index_take(&tier.index);
	struct kvt_chain name;

	memset(name.digest, i, sizeof(name.digest));
	memset(kvt_tier_record(&tier, entry), i, RECORD);
	kvt_crc32c_quarters(kvt_tier_record(&tier, entry), RECORD, kvt_tier_crcs(&tier, entry));
	kvt_index_publish(&tier.index, entry, &name, front);
	tier.below[0].entered(remote, entry);
	return entry;
}

/* Turn until so many pages were put, or dropped. Returns how many were put. */
static uint64_t await_puts(uint64_t n)
{
	struct kvt_remote_counts counts;

	do {
		kvt_remote_turn(remote);
		counts = kvt_remote_count(remote);
	} while (counts.stored + counts.dropped < n);
	return counts.stored;
}

/* Check which pages PUTs had, in their order. */
static void must_have_put(const char *pages)
{
	char path[128], line[64];
	FILE *log;

	snprintf(path, sizeof(path), "%s/log", folder);
	log = fopen(path, "re");
	kvt_test_check(log);
	while (fgets(line, sizeof(line), log)) {
		unsigned int kind, n, page;

		kvt_test_equal(sscanf(line, "%u %u %x", &kind, &n, &page), 3);
		if (kind == KVT_HELPER_PUT)
			kvt_test_equal(page, *pages ? *pages++ - '0' : 0);
	}
	kvt_test_equal(*pages, '\0');
	fclose(log);
}

/* Before its turn to be stored, a page left the memory, and came back to where another was. */
TEST_WITH(a_page_that_left_is_not_stored, start, stop)
{
	uint32_t entry;

	open_remote(0);
	entry = enter(1, 0);
	kvt_index_drop(&tier.index, entry);
	kvt_test_equal(enter(2, 0), entry);
	kvt_index_drop(&tier.index, entry);
	kvt_test_equal(enter(4, 0), entry);
	enter(3, 0);
	kvt_test_equal(await_puts(4), 2);
	must_have_put("43");
	close_remote();
}

TEST_WITH(what_is_used_is_put_before_others_from_its_front_on, start, stop)
{
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t end;

		open_remote(i * 64 * RECORD);
		enter(4, 0);
		end = enter(3, enter(2, enter(1, 0)));
		tier.below[0].used(remote, end);
		kvt_test_equal(await_puts(4), 4);
		must_have_put(i ? "12341234" : "1234");
		close_remote();
	}
}

TEST_WITH(what_left_and_is_computed_again_is_put_before_others, start, stop)
{
	uint32_t entry;

	open_remote(64 * RECORD);
	entry = enter(1, 0);
	tier.below[0].leave(remote, entry);
	kvt_index_drop(&tier.index, entry);
	enter(2, 0);
	enter(1, 0);
	kvt_test_equal(await_puts(3), 2);
	must_have_put("12");
	close_remote();
}
