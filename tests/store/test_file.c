/* SPDX-License-Identifier: Apache-2.0 */
/* The file tier below a small memory, on a real file.
 *
 * Inputs: pages with a number in name, bytes and time; what a crash, a disk or a user does to the
 * file.
 * Invariants: a page that comes back has its bytes; what is lost is absent and counted. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/clock.h"
#include "store/crc32c.h"
#include "store/file_state.h"
#include "tests/lib/cases.h"
#include "tests/lib/direct_io.h"

#define RECORD (2 * KVT_FILE_BLOCK)
#define RAM_PAGES 16u
#define SLOTS 32u
#define COPIED 1700000000u /* time of page 0 */
#define SLOT_BYTES (KVT_FILE_BLOCK + RECORD)
#define FILE_BYTES (SLOTS * SLOT_BYTES + 2 * KVT_FILE_BLOCK) /* one group */

static char directory[TEST_FOLDER_BYTES], path[96];
static uint32_t ram_pages = RAM_PAGES;
static struct kvt_tier tier;
static struct kvt_file *file;
static struct kvt_error why;
static struct kvt_file_options options;
static const volatile int no_stop;

static struct kvt_chain name(uint32_t i)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest + 4, &i, sizeof(i));
	return page;
}

static int open_file(void)
{
	int rc;

	assert_int_equal(kvt_tier_init(&tier, ram_pages * RECORD, RECORD, 0), 0);
	file = NULL;
	rc = kvt_file_open(&file, &tier, &options, &why);
	if (rc != 0)
		kvt_tier_destroy(&tier);
	return rc;
}

static void close_file(bool orderly)
{
	static const volatile int at_once = 1;

	if (orderly) {
		kvt_file_close(file, &no_stop, 60);
	} else { /* as far as the file shows: killed */
		file->trouble.closed_until_ns = UINT64_MAX;
		kvt_file_close(file, &at_once, 0);
	}
	kvt_tier_destroy(&tier);
}

static int start(void **state)
{
	make_folder_on_disk(directory);
	snprintf(path, sizeof(path), "%s/pages", directory);
	need_direct_io(directory, path);
	options = (struct kvt_file_options){ .path = path, .bytes = FILE_BYTES, .depth = 2 };
	if (open_file() == 0)
		return 0;
	print_message("%s\n", why.text);
	return -1;
}

static int stop(void **state)
{
	if (file)
		close_file(true);
	unlink(path);
	return rmdir(directory);
}

static int start_closed(void **state)
{
	int rc = start(state);

	if (rc == 0)
		close_file(true);
	file = NULL;
	return rc;
}

/* Put a page into the memory, in an entry that is free, behind another one or 0. */
static uint32_t put_behind(uint32_t i, uint32_t front)
{
	uint32_t entry = kvt_index_take(&tier.index);
	struct kvt_chain page = name(i);

	memset(kvt_tier_record(&tier, entry), (int)i, RECORD);
	kvt_crc32c_quarters(kvt_tier_record(&tier, entry), RECORD, kvt_tier_crcs(&tier, entry));
	kvt_index_publish(&tier.index, entry, &page, front);
	tier.index.entries[entry].first = !front;
	tier.index.entries[entry].time = COPIED + i;
	tier.below[0].entered(file, entry);
	return entry;
}

static uint32_t put(uint32_t i)
{
	return put_behind(i, 0);
}

static bool is_busy(void)
{
	return file->in_flight[KVT_FILE_READ] + file->in_flight[KVT_FILE_WRITE] +
	       file->in_flight[KVT_FILE_NAMES] > 0;
}

static void settle(void)
{
	struct io_uring_cqe *cqe;

	while (is_busy()) {
		if (kvt_tier_arrivals(&tier)) /* it starts writes, too */
			continue;
		if (is_busy())
			io_uring_wait_cqe(&file->ring, &cqe);
	}
}

/* Offer a page that is to leave. True: it is being written. */
static bool leave(uint32_t entry)
{
	return tier.below[0].leave(file, entry);
}

static void store_pages(uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		uint32_t entry = put(i);

		leave(entry);
		settle();
		kvt_index_drop(&tier.index, entry);
	}
}

/* Read a page back, with the time of its copy. False: it is absent. */
static bool comes_back(uint32_t i)
{
	struct kvt_chain page = name(i);
	int64_t entry = kvt_tier_bring(&tier, &page, NULL);
	const uint8_t *record;

	if (entry == -EINPROGRESS) {
		settle();
		entry = kvt_tier_bring(&tier, &page, NULL);
	}
	if (entry < 0)
		return false;
	assert_true(entry > 0);
	record = kvt_tier_record(&tier, (uint32_t)entry);
	for (uint32_t b = 0; b < RECORD; b++)
		assert_int_equal(record[b], (uint8_t)i);
	assert_int_equal(tier.index.entries[entry].time, COPIED + i);
	kvt_tier_unpin(&tier, (uint32_t)entry, false);
	kvt_index_drop(&tier.index, (uint32_t)entry);
	return true;
}

TEST_WITH(a_page_that_left_the_memory_comes_back, start, stop)
{
	store_pages(1, 5);
	assert_int_equal(file->written, 5);
	assert_int_equal(tier.index.n_found, 0);
	for (uint32_t i = 1; i <= 5; i++)
		assert_true(comes_back(i));
	assert_false(comes_back(6));
	assert_int_equal(file->read, 5);
	store_pages(3, 1); /* it is there: not written again */
	assert_int_equal(file->written, 5);
}

/* Who holds the lock of the memory holds up all instances. */
TEST_WITH(what_is_read_is_checked_by_a_worker, start, stop)
{
	static struct kvt_workers workers = KVT_WORKERS_INIT;
	struct kvt_chain page = name(1);
	uint32_t entry = put(1);

	assert_int_equal(kvt_workers_start(&workers, 1), 0);
	assert_true(leave(entry));
	settle();
	kvt_index_drop(&tier.index, entry);
	tier.jobs = (struct kvt_jobs){ .workers = &workers, .wake = -1 };
	assert_int_equal(kvt_tier_bring(&tier, &page, NULL), -EINPROGRESS);
	kvt_tier_lock(&tier);
	while (!file->checked.first)
		kvt_file_turn(file);
	kvt_jobs_settle(&tier.jobs);
	assert_true(kvt_job_has_ended(&file->checked.first->check));
	assert_memory_equal(file->checked.first->check.crc, kvt_tier_crcs(&tier, entry),
			    sizeof(*tier.crcs));
	kvt_tier_unlock(&tier);
	settle();
	assert_true(comes_back(1));
	tier.jobs = (struct kvt_jobs){ .wake = -1 };
	kvt_workers_stop(&workers);
}

/* So a byte that changes in the memory is found when the page comes back. */
TEST_WITH(the_checksums_of_a_write_are_those_of_the_copy, start, stop)
{
	uint32_t entry = put(1);

	kvt_tier_record(&tier, entry)[RECORD / 2] ^= 1;
	assert_true(leave(entry));
	settle();
	assert_int_equal(file->written, 1);
	kvt_index_drop(&tier.index, entry);
	assert_false(comes_back(1));
	assert_int_equal(file->bad, 1);
}

TEST_WITH(with_too_many_writes_in_flight_a_page_is_dropped, start, stop)
{
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(leave(put(i)), i < 3);
	settle();
	assert_int_equal(file->written, 2);
	assert_int_equal(file->dropped, 1);
	assert_int_equal(tier.n_writing, 0);
}

/* A page that nobody can reach costs a slot, and finds nothing. */
TEST_WITH(no_page_is_written_before_the_one_in_front_of_it, start, stop)
{
	uint32_t first = put(1), second = put_behind(2, first), lost;

	assert_false(leave(second));
	assert_int_equal(file->dropped, 1);
	assert_true(leave(first));
	assert_true(leave(second)); /* they end in this order */
	settle();
	assert_int_equal(file->written, 2);
	lost = put(3);
	tier.index.entries[lost].first = 0; /* what is in front of it is not in memory */
	assert_false(leave(lost));
}

/* Fill the memory with a path of n pages, numbered from `first` on. Returns its last entry. */
static uint32_t put_path(uint32_t first, uint32_t n)
{
	uint32_t entry = 0;

	for (uint32_t i = 0; i < n; i++)
		entry = put_behind(first + i, entry);
	return entry;
}

static void settle_turns(void)
{
	for (uint32_t turn = 0; turn < 4 * RAM_PAGES; turn++) {
		kvt_tier_arrivals(&tier);
		settle();
	}
}

static uint32_t slot_of(uint32_t i)
{
	struct kvt_chain page = name(i);

	return kvt_slots_find(&file->slots, &page);
}

TEST_WITH(the_oldest_paths_are_written_before_they_leave, start, stop)
{
	put_path(1, RAM_PAGES - 4);
	settle_turns();
	assert_int_equal(file->written, 0); /* nothing will leave soon */
	for (uint32_t i = 20; i < 24; i++)
		put(i);
	settle_turns();
	for (uint32_t i = 1; i <= RAM_PAGES - 4; i++)
		assert_int_not_equal(slot_of(i), 0);
	assert_int_equal(slot_of(20), 0); /* a tenth is one page here */
	assert_int_equal(file->dropped, 0);
}

TEST_WITH(with_a_budget_what_was_used_is_written_first, start, stop)
{
	uint32_t end = put_path(1, 8);

	put_path(20, 8);
	tier.index.entries[kvt_index_find(&tier.index, &(struct kvt_chain){
		.digest = { 0, 0, 0, 0, 5 } })].used = 1;
	file->writer.budget.bytes = 1; /* two pages of it at once, no more while this test runs */
	file->writer.budget.filled_ns = (uint64_t)kvt_now_ns();
	for (uint32_t i = 1; i <= 5; i++) { /* up to the one that was used */
		assert_int_equal(slot_of(i), 0);
		file->writer.budget.left = SLOT_BYTES;
		settle_turns();
		assert_int_not_equal(slot_of(i), 0);
	}
	file->writer.budget.left = SLOT_BYTES - 1; /* the rest waits for more than a half */
	settle_turns();
	assert_int_equal(file->written, 5);
	assert_true(tier.index.entries[end].passed);
	assert_false(leave(end));
	assert_int_equal(kvt_file_count(file).unpaid, 1);
	assert_int_equal(kvt_file_count(file).unpaid_used, 0);
	file->writer.budget.left = 2 * SLOT_BYTES;
	settle_turns();
	assert_int_equal(file->written, 7);
	assert_int_equal(slot_of(20), 0);
}

TEST_WITH(with_a_budget_a_page_that_comes_again_counts_as_used, start_closed, stop)
{
	options.write_bytes = 1;
	assert_int_equal(open_file(), 0);
	for (uint32_t turn = 0; turn < 2; turn++) {
		uint32_t entry = put(1);

		assert_int_equal(tier.index.entries[entry].used, turn);
		assert_false(leave(entry));
		kvt_index_drop(&tier.index, entry);
	}
	assert_int_equal(tier.index.entries[put(2)].used, 0);
}

/* The ghost takes some pages for others, and more of them on a long path than there are paths. */
TEST_WITH(with_a_budget_a_page_comes_again_behind_a_front_that_did, start_closed, stop)
{
	uint32_t front, entry;

	options.write_bytes = 1;
	assert_int_equal(open_file(), 0);
	entry = put(2);
	assert_false(leave(entry)); /* the ghost has it, and not its front */
	kvt_index_drop(&tier.index, entry);
	front = put(1);
	entry = put_behind(2, front);
	assert_int_equal(tier.index.entries[entry].used, 0);
	kvt_index_drop(&tier.index, entry);
	tier.index.entries[front].used = 1;
	entry = put_behind(2, front);
	assert_int_equal(tier.index.entries[entry].used, 1);
}

TEST_WITH(a_full_file_writes_over_its_oldest_page, start, stop)
{
	assert_int_equal(file->slots.n, SLOTS);
	store_pages(1, SLOTS);
	store_pages(SLOTS + 1, 1);
	assert_false(comes_back(1));
	for (uint32_t i = 2; i <= SLOTS + 1; i++)
		assert_true(comes_back(i));
}

TEST_WITH(a_page_that_came_back_is_passed_once, start, stop)
{
	store_pages(1, SLOTS);
	for (uint32_t turn = 0; turn < 2; turn++)
		assert_true(comes_back(1));
	store_pages(100, 1);
	assert_int_equal(slot_of(100), 2);
	store_pages(101, SLOTS - 2); /* to the end of the ring */
	assert_int_equal(slot_of(1), 1);
	store_pages(200, 1);
	assert_int_equal(slot_of(200), 1);
}

TEST_WITH(a_slot_that_is_being_read_is_not_written, start, stop)
{
	struct kvt_chain page = name(1);
	uint32_t slot, entry;

	store_pages(1, SLOTS);
	slot = slot_of(1);
	assert_int_equal(kvt_tier_bring(&tier, &page, NULL), -EINPROGRESS);
	entry = put(100);
	leave(entry); /* it would be the next one's */
	settle();
	assert_true(comes_back(1));
	assert_int_equal(slot_of(1), slot);
	assert_true(comes_back(3));
	assert_false(comes_back(2));
}

TEST_WITH(a_page_in_memory_that_lost_its_slot_is_written_again, start, stop)
{
	uint32_t entry = put(1);

	assert_true(leave(entry));
	settle();
	assert_true(tier.index.entries[entry].kept);
	store_pages(2, SLOTS);
	assert_false(tier.index.entries[entry].kept);
	assert_true(leave(entry));
	settle();
	kvt_index_drop(&tier.index, entry);
	assert_true(comes_back(1));
}

TEST_WITH(a_restart_finds_all_pages, start, stop)
{
	store_pages(1, 5);
	for (uint32_t i = 6; i <= 8; i++)
		put(i); /* in memory at the end */
	for (uint32_t turn = 0; turn < 2; turn++) {
		close_file(true);
		assert_int_equal(open_file(), 0);
		assert_int_equal(file->slots.n_found, 8);
		for (uint32_t i = 1; i <= 8; i++)
			assert_true(comes_back(i));
	}
	close_file(true);
	assert_int_equal(open_file(), 0);
	store_pages(100, SLOTS - 8 + 2); /* it goes on where the last one was */
	for (uint32_t i = 1; i <= 8; i++)
		assert_int_equal(comes_back(i), i > 2);
}

/* What is written may cost a page of the memory its slot. */
TEST_WITH(a_stop_writes_the_whole_memory_into_a_small_file, start, stop)
{
	uint32_t end = put_path(1, RAM_PAGES), n = SLOTS - RAM_PAGES / 2;

	for (uint32_t i = 0; i < RAM_PAGES / 2; i++) {
		assert_true(leave(end - RAM_PAGES + 1 + i));
		settle();
	}
	kvt_index_drop(&tier.index, end);
	store_pages(100, n); /* the first half of the path is next */
	close_file(true);
	assert_int_equal(open_file(), 0);
	for (uint32_t i = 1; i < RAM_PAGES; i++)
		assert_true(comes_back(i));
}

/* Change the file behind the store's back. */
static void damage(uint64_t at, const void *bytes, size_t n)
{
	int fd = open(path, O_WRONLY);

	assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
	close(fd);
}

/* Without the time for it all, what came back is first, then the youngest. */
TEST_WITH(a_stop_ends_in_time_with_what_came_back_in_the_file, start, stop)
{
	put_path(1, 4);
	tier.index.entries[kvt_index_find(&tier.index, &(struct kvt_chain){
		.digest = { 0, 0, 0, 0, 2 } })].used = 1; /* not its last page */
	put_path(11, 4);
	/* It is to end as soon as a page is written. */
	kvt_file_close(file, (const volatile int *)&file->written, 60);
	kvt_tier_destroy(&tier);
	assert_int_equal(open_file(), 0);
	assert_int_not_equal(slot_of(1), 0);
	assert_int_equal(slot_of(11), 0);
	kvt_file_clear(file, (const uint64_t[]){ 1, 2 }, 1);
	put_path(1, 4);
	kvt_file_close(file, &no_stop, 0); /* no time at all */
	kvt_tier_destroy(&tier);
	assert_int_equal(open_file(), 0);
	assert_int_equal(file->slots.n_found, 0);
}

TEST_WITH(what_is_too_old_is_not_read_and_written_again, start, stop)
{
	uint32_t entry, slot;

	store_pages(1, 2); /* of 2023 */
	tier.max_age_s = 1000;
	assert_false(comes_back(1));
	close_file(false);
	assert_int_equal(open_file(), 0);
	tier.max_age_s = 1000;
	assert_false(comes_back(2));
	slot = slot_of(1);
	entry = put(1); /* it was computed again */
	tier.index.entries[entry].time = (uint32_t)time(NULL);
	assert_false(tier.index.entries[entry].kept);
	assert_true(leave(entry));
	settle();
	kvt_index_drop(&tier.index, entry);
	assert_int_equal(file->slots.n_found, 2);
	assert_int_not_equal(slot_of(1), slot);
	assert_int_equal(kvt_tier_bring(&tier, &(struct kvt_chain){ .digest = { 0, 0, 0, 0, 1 } },
					NULL), -EINPROGRESS);
	settle();
}

/* As an instance that has it again while it leaves the memory, too old. */
TEST_WITH(a_page_that_comes_again_while_it_is_written_is_written_once, start, stop)
{
	uint32_t entry = put(1);

	assert_true(leave(entry));
	tier.below[0].entered(file, entry);
	assert_true(tier.index.entries[entry].kept);
	settle();
	assert_false(leave(entry));
	assert_int_equal(file->written, 1);
	assert_int_equal(file->slots.n_found, 1);
}

/* More pages than a group, whose names a start reads. */
#define MANY (3 * KVT_SLOTS_GROUP + 10)

static int start_many(void **state)
{
	int rc = start(state);

	if (rc != 0)
		return rc;
	close_file(true);
	options.bytes = MANY * SLOT_BYTES + 5 * KVT_FILE_BLOCK;
	return open_file();
}

TEST_WITH(after_a_kill_names_and_headers_tell_what_is_there, start_many, stop)
{
	/* Where a writer may be: in a group, at its ends, in the second round. */
	static const uint32_t at[] = { 5, 1, 121, 1, 2, 126, 1, 130, 7, MANY, 100, 1 };
	uint32_t last = 0, first;

	assert_int_equal(file->slots.n, MANY);
	for (uint32_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		store_pages(last + 1, at[i]);
		last += at[i];
		first = last > MANY ? last - MANY + 1 : 1;
		close_file(false);
		assert_int_equal(open_file(), 0);
		assert_int_equal(file->slots.n_found, last - first + 1);
		assert_int_equal(slot_of(last), (last - 1) % MANY + 1);
		for (uint32_t page = 1; page <= last; page++)
			assert_int_equal(slot_of(page) != 0, page >= first);
		assert_true(comes_back(last));
		assert_true(comes_back(first));
		assert_int_equal(file->bad, 0);
		close_file(false); /* it knows no more that they came back */
		assert_int_equal(open_file(), 0);
	}
}

/* Zero the names of a group, as if they had not been written. */
static void lose_names(uint32_t group)
{
	static const uint8_t zeros[KVT_FILE_BLOCK];

	damage(kvt_file_group_at(file, group), zeros, sizeof(zeros));
}

TEST_WITH(names_that_were_not_written_are_read_from_headers, start_many, stop)
{
	for (uint32_t group = 0; group < 4; group++) {
		store_pages(1 + group * MANY, MANY);
		close_file(true);
		assert_int_equal(open_file(), 0);
		lose_names(group);
		close_file(false);
		assert_int_equal(open_file(), 0);
		assert_int_equal(file->slots.n_found, MANY);
		for (uint32_t i = 0; i < MANY; i += 50)
			assert_true(comes_back(1 + group * MANY + i));
		close_file(true);
		assert_int_equal(open_file(), 0);
	}
}


static uint64_t slot_at(uint32_t i)
{
	return kvt_file_slot_at(file, slot_of(i));
}

TEST_WITH(a_slot_that_is_not_as_it_was_written_is_absent_and_counted, start, stop)
{
	static const uint8_t zeros[KVT_FILE_BLOCK];
	uint8_t *other = calloc(1, SLOT_BYTES);
	int fd = open(path, O_RDONLY);

	store_pages(1, 5);
	damage(slot_at(1) + SLOT_BYTES - 1, "x", 1);           /* a flipped bit */
	damage(slot_at(2) + KVT_FILE_BLOCK + 4096, zeros, 4096); /* torn */
	damage(slot_at(3) + 20, "x", 1);                       /* in the header */
	assert_int_equal(pread(fd, other, SLOT_BYTES, (off_t)slot_at(5)), SLOT_BYTES);
	damage(slot_at(4), other, SLOT_BYTES);                 /* another page */
	for (uint32_t i = 1; i <= 5; i++)
		assert_int_equal(comes_back(i), i == 5);
	assert_int_equal(file->bad, 4);
	assert_int_equal(file->slots.n_failed, 0);
	assert_int_equal(file->slots.n_found, 1);
	store_pages(1, 4); /* their slots are used again */
	for (uint32_t i = 1; i <= 5; i++)
		assert_true(comes_back(i));
	free(other);
	close(fd);
}

/* Write garbage over a part of the file, often of its head or names. */
static void damage_somewhere(void)
{
	uint64_t from = rand() % 4 ? 0 : KVT_FILE_BLOCK;
	uint64_t at = from + (uint64_t)rand() % (rand() % 3 ? 400 : FILE_BYTES - from);
	uint8_t bytes[64];

	for (uint32_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)rand();
	damage(at, bytes, 1 + (uint32_t)rand() % sizeof(bytes));
}

TEST_WITH(whatever_was_damaged_no_page_is_wrong, start, stop)
{
	uint32_t refused = 0, absent = 0, right = 0;

	srand(7);
	for (uint32_t turn = 0; turn < 60; turn++) {
		store_pages(1 + turn, 10);
		close_file(turn % 3);
		for (uint32_t i = 0; i < turn % 4; i++)
			damage_somewhere();
		if (open_file() != 0) {
			refused++;
			unlink(path);
			assert_int_equal(open_file(), 0);
		}
		for (uint32_t i = 1; i < 1 + turn + 10; i++) {
			bool back = comes_back(i); /* with its bytes */

			right += back;
			absent += !back;
		}
	}
	assert_true(refused > 0 && absent > 0 && right > 0);
}

TEST_WITH(a_file_that_is_truncated_loses_pages_only, start, stop)
{
	store_pages(1, 5);
	assert_int_equal(truncate(path, (off_t)(slot_at(3) + 100)), 0);
	for (uint32_t i = 1; i <= 5; i++)
		assert_int_equal(comes_back(i), i < 3);
	assert_int_equal(file->slots.n_failed, 0);
	close_file(true);
	assert_int_equal(truncate(path, (off_t)(2 * KVT_FILE_BLOCK + SLOT_BYTES)), 0);
	assert_int_equal(open_file(), 0);
	assert_true(comes_back(1));
	assert_false(comes_back(2));
	store_pages(10, SLOTS - 1);
	assert_true(comes_back(10 + SLOTS - 2));
}

/* Have reads and writes fail: address 0 and those behind are mapped in no process, so there they
 * are EIO. Returns the descriptor of the file, for mend_device(). */
static int break_device(void)
{
	int good = dup(file->fd), bad = open("/proc/self/mem", O_RDWR);

	assert_int_equal(dup2(bad, file->fd), file->fd);
	close(bad);
	return good;
}

static void mend_device(int good)
{
	assert_int_equal(dup2(good, file->fd), file->fd);
	close(good);
}

TEST_WITH(a_read_that_fails_costs_its_slot, start, stop)
{
	int good;

	store_pages(1, 2);
	good = break_device();
	assert_false(comes_back(1));
	mend_device(good);
	assert_int_equal(file->bad, 1);
	assert_int_equal(file->slots.n_failed, 1);
	assert_int_equal(slot_of(2), 2);
	store_pages(10, SLOTS); /* all that are left are used, and not that one */
	assert_int_equal(file->slots.n_found, SLOTS - 1);
	assert_false(comes_back(10));
	for (uint32_t i = 11; i < 10 + SLOTS; i++)
		assert_true(comes_back(i));
	close_file(true);
	assert_int_equal(open_file(), 0);
	store_pages(50, SLOTS);
	assert_int_equal(file->slots.n_found, SLOTS);
}

TEST_WITH(a_write_that_fails_costs_its_slot, start, stop)
{
	int good = break_device();

	store_pages(1, 1);
	mend_device(good);
	assert_int_equal(file->written, 0);
	assert_int_equal(file->dropped, 1);
	assert_int_equal(file->slots.n_failed, 1);
	assert_int_equal(tier.n_writing, 0);
	assert_false(comes_back(1));
	store_pages(1, SLOTS - 1);
	assert_int_equal(file->slots.n_found, SLOTS - 1);
}

TEST_WITH(a_device_that_fails_often_is_closed_for_a_while, start, stop)
{
	int good;

	store_pages(1, 20);
	good = break_device();
	for (uint32_t i = 1; i <= 10; i++)
		assert_false(comes_back(i));
	assert_false(kvt_file_is_closed(file));
	assert_false(comes_back(11));
	assert_true(kvt_file_is_closed(file));
	assert_false(comes_back(12));
	store_pages(30, 1);
	assert_int_equal(file->slots.n_failed, 11);
	mend_device(good);
	file->trouble.closed_until_ns = 1; /* the minute has passed */
	assert_true(comes_back(12));
	assert_int_equal(file->trouble.closures, 1);
}

/* Read a page that seems to have taken so long. */
static bool comes_back_after(uint32_t i, uint64_t took_ns)
{
	struct kvt_chain page = name(i);

	if (kvt_tier_bring(&tier, &page, NULL) != -EINPROGRESS)
		return false;
	for (uint32_t n = 0; n < KVT_FILE_KINDS * file->depth; n++)
		file->ops[n].begun_ns -= took_ns;
	settle();
	return comes_back(i);
}

TEST_WITH(a_disk_that_is_slow_is_not_read_for_a_while, start, stop)
{
	store_pages(1, 12);
	for (uint32_t i = 1; i <= 8; i++) /* seldom: that is no slow disk */
		assert_true(comes_back_after(i, i == 4 ? 1900000000 : 0));
	for (uint32_t turn = 0; turn < 2; turn++) {
		uint32_t slow = 0;

		for (; !kvt_file_count(file).closed; slow++)
			assert_true(comes_back_after(1, 1000000000));
		assert_in_range(slow, 2, 3);
		assert_false(comes_back(4));
		assert_false(kvt_file_is_closed(file));
		store_pages(20 + turn, 1); /* it is written all the same */
		assert_int_equal(file->trouble.slow_closures, turn + 1);
		file->trouble.slow_until_ns = 1;
		assert_true(comes_back(20 + turn));
	}
	for (uint32_t i = 1; i <= 8; i++)
		assert_true(comes_back(i));
	assert_int_equal(file->trouble.slow_closures, 0);
	assert_int_equal(file->slots.n_failed, 0);
}

/* Also its slots: the start after a crash reads them. */
TEST_WITH(a_file_of_another_version_is_emptied, start, stop)
{
	for (uint32_t orderly = 0; orderly < 2; orderly++) {
		store_pages(1, 5);
		close_file(true);
		damage(offsetof(struct kvt_file_head, format), "\1", 1);
		assert_int_equal(open_file(), 0);
		for (uint32_t i = 1; i <= 5; i++)
			assert_false(comes_back(i));
		close_file(orderly);
		assert_int_equal(open_file(), 0);
		for (uint32_t i = 1; i <= 5; i++)
			assert_false(comes_back(i));
		store_pages(1, 1);
		assert_true(comes_back(1));
	}
}

TEST_WITH(what_is_dropped_is_not_found_by_a_start, start, stop)
{
	for (uint32_t orderly = 0; orderly < 2; orderly++) {
		store_pages(1, 5);
		assert_true(leave(put(6))); /* it is being written */
		kvt_tier_clear(&tier);
		kvt_file_clear(file, (const uint64_t[]){ 1, 2 }, 1);
		settle();
		for (uint32_t i = 1; i <= 6; i++)
			assert_false(comes_back(i));
		store_pages(7, 1);
		close_file(orderly);
		assert_int_equal(open_file(), 0);
		for (uint32_t i = 1; i <= 7; i++)
			assert_int_equal(comes_back(i), i == 7);
	}
}

TEST_WITH(what_is_dropped_after_a_failure_is_not_found_by_a_start, start, stop)
{
	int good;

	store_pages(1, 2);
	good = break_device();
	assert_false(comes_back(1));
	mend_device(good);
	kvt_file_clear(file, (const uint64_t[]){ 1, 2 }, 1);
	close_file(true);
	assert_int_equal(open_file(), 0);
	assert_false(comes_back(2));
}

/* Look for pages that were copied since a time, among those that are in the file now. */
static void scan_since(struct kvt_scan *scan, uint32_t since)
{
	kvt_file_scan_open(file, scan);
	assert_true(kvt_file_scan(file, scan, since));
}

/* Also one that is being written, those that were while others were looked at, and where names were
 * not: headers tell what was dropped. */
TEST_WITH(what_was_copied_since_a_time_is_dropped_for_all_starts, start, stop)
{
	uint32_t old, young;

	for (uint32_t orderly = 0; orderly < 2; orderly++) {
		struct kvt_scan scan;

		store_pages(1, 5);
		scan_since(&scan, COPIED + 5);
		store_pages(6, 3);
		old = put(2);
		young = put(7); /* right, as far as the memory knows */
		assert_true(leave(put(9)));
		kvt_file_forget(file, &scan, COPIED + 5);
		assert_true(tier.index.entries[old].kept);
		assert_false(tier.index.entries[young].kept);
		settle();
		assert_int_equal(slot_of(9), 0);
		assert_true(leave(young)); /* written again, it counts */
		settle();
		close_file(orderly);
		assert_int_equal(open_file(), 0);
		for (uint32_t i = 1; i <= 9; i++)
			assert_int_equal(slot_of(i) != 0, i < 5 || i == 7 || (orderly && i == 9));
		assert_true(comes_back(4));
		assert_true(comes_back(7));
	}
}

TEST_WITH(a_page_of_an_unknown_time_is_dropped, start, stop)
{
	uint32_t entry = put(1);
	struct kvt_scan scan;

	tier.index.entries[entry].time = 0;
	assert_true(leave(entry));
	settle();
	kvt_index_drop(&tier.index, entry);
	assert_int_not_equal(slot_of(1), 0);
	scan_since(&scan, UINT32_MAX);
	kvt_file_forget(file, &scan, UINT32_MAX);
	assert_int_equal(slot_of(1), 0);
	close_file(false);
	assert_int_equal(open_file(), 0);
	assert_int_equal(slot_of(1), 0);
}

TEST_WITH(a_start_tells_the_epoch_that_its_pages_are_of, start, stop)
{
	static const uint64_t one[2] = { 1, 2 }, other[2] = { 1, 3 };

	assert_int_equal(kvt_file_bind(NULL, one, 5), 5);
	assert_int_equal(kvt_file_bind(file, one, 5), 5);
	close_file(false);
	assert_int_equal(open_file(), 0);
	assert_int_equal(kvt_file_bind(file, one, 6), 5);
	close_file(false); /* before what is of 5 is dropped */
	assert_int_equal(open_file(), 0);
	assert_int_equal(kvt_file_bind(file, one, 7), 5);
	kvt_file_clear(file, one, 7);
	close_file(false);
	assert_int_equal(open_file(), 0);
	assert_int_equal(kvt_file_bind(file, one, 8), 7);
	assert_int_equal(kvt_file_bind(file, other, 1), 1);
}

TEST_WITH(a_size_can_be_changed, start, stop)
{
	struct stat there;

	store_pages(1, SLOTS);
	for (uint32_t half = 0; half < 2; half++) {
		close_file(half == 0);
		options.bytes = half ? FILE_BYTES : FILE_BYTES / 2;
		assert_int_equal(open_file(), 0);
		assert_int_equal(stat(path, &there), 0);
		assert_true((uint64_t)there.st_size <= options.bytes);
		assert_true((uint64_t)there.st_size > options.bytes - 2 * SLOT_BYTES);
		assert_in_range(file->slots.n_found, SLOTS / 2 - 1, SLOTS / 2);
		assert_true(comes_back(1));
		assert_false(comes_back(SLOTS));
	}
}

/* Nothing moves when the size changes, so a kill in between leaves a longer or shorter file. */
TEST_WITH(a_size_can_be_changed_and_the_change_be_cut_short, start_many, stop)
{
	static const uint32_t sizes[] = { 200, MANY, 128, 500, 129, 127, MANY };
	uint32_t kept = MANY;

	store_pages(1, MANY);
	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t n_groups = (sizes[i] + KVT_SLOTS_GROUP - 1) / KVT_SLOTS_GROUP;
		uint64_t bytes = sizes[i] * SLOT_BYTES + (1 + n_groups) * KVT_FILE_BLOCK;

		close_file(i % 2);
		assert_int_equal(truncate(path, (off_t)bytes), 0); /* killed here */
		for (uint32_t turn = 0; turn < 2; turn++) {
			if (turn == 1)
				options.bytes = bytes;
			kept = sizes[i] < kept ? sizes[i] : kept;
			assert_int_equal(open_file(), 0);
			assert_int_equal(file->slots.n_found, kept);
			assert_true(comes_back(1));
			assert_true(comes_back(kept));
			assert_int_equal(slot_of(kept + 1), 0);
			if (turn == 0)
				close_file(false);
		}
		assert_int_equal(file->slots.n, sizes[i]);
	}
	assert_int_equal(file->bad, 0);
}

/* ---- a disk that is slower than prompts come */

#define PROMPTS 48u
#define LENGTH 12u  /* pages of a prompt */
#define TOGETHER 4u /* requests that are served in turns */
#define REQUESTS 1500u
#define TURN 24u /* pages that are computed while the disk ends what it has: two */

struct request {
	uint32_t prompt, n; /* pages served */
	bool computes, computes_alone; /* with the file, with memory alone */
};

static struct kvt_index alone; /* of as much memory */
static uint32_t hits, hits_alone, n_computed;

/* Page i of a prompt. Two prompts share their first third. */
static uint32_t number_of(uint32_t prompt, uint32_t i)
{
	return 1 + (i < LENGTH / 3 ? prompt / 2 * 2 : prompt) * LENGTH + i;
}

static uint32_t find_in(const struct kvt_index *index, uint32_t prompt, uint32_t i)
{
	struct kvt_chain page = name(number_of(prompt, i));

	return kvt_index_find(index, &page);
}

/* Give a page an entry, behind its front. */
static uint32_t publish(struct kvt_index *index, uint32_t entry, uint32_t prompt, uint32_t i)
{
	struct kvt_chain page = name(number_of(prompt, i));

	kvt_index_publish(index, entry, &page, i ? find_in(index, prompt, i - 1) : 0);
	index->entries[entry].first = i == 0;
	return entry;
}

static void serve_alone(struct request *request)
{
	uint32_t entry = find_in(&alone, request->prompt, request->n);

	request->computes_alone |= !entry;
	hits_alone += !request->computes_alone;
	if (entry)
		kvt_index_touch(&alone, entry);
	else
		publish(&alone, kvt_index_take(&alone), request->prompt, request->n);
}

/* Bring a page from the file. False: it is not there. */
static bool load(uint32_t prompt, uint32_t i)
{
	struct kvt_chain page = name(number_of(prompt, i)), front = name(number_of(prompt, i - 1));
	int64_t entry;

	while ((entry = kvt_tier_bring(&tier, &page, i ? &front : NULL)) == -EINPROGRESS ||
	       entry == -EAGAIN || entry == 0)
		settle();
	if (entry > 0)
		kvt_tier_unpin(&tier, (uint32_t)entry, true);
	return entry > 0;
}

/* Compute a page: others leave for it, as for a copy. */
static void compute(uint32_t prompt, uint32_t i)
{
	const struct kvt_index *index = &tier.index;
	uint32_t entry;

	while (!index->first_free && index->oldest != index->youngest && leave(index->oldest))
		;
	entry = publish(&tier.index, kvt_index_take(&tier.index), prompt, i);
	memset(kvt_tier_record(&tier, entry), (int)i, RECORD);
	kvt_crc32c_quarters(kvt_tier_record(&tier, entry), RECORD, kvt_tier_crcs(&tier, entry));
	tier.below[0].entered(file, entry);
	if (++n_computed % TURN)
		return;
	file->writer.budget.left = 2 * SLOT_BYTES;
	kvt_tier_arrivals(&tier);
	settle();
}

static void serve(struct request *request)
{
	uint32_t prompt = request->prompt, i = request->n, entry = find_in(&tier.index, prompt, i);

	if (entry)
		kvt_index_touch(&tier.index, entry);
	else if (request->computes || !load(prompt, i))
		request->computes = true;
	if (!find_in(&tier.index, prompt, i))
		compute(prompt, i);
	hits += !request->computes;
	serve_alone(request);
	request->n++;
}

/* Check that of each prompt the file has nothing behind a page that is nowhere. */
static void check_reachable(void)
{
	for (uint32_t prompt = 0; prompt < PROMPTS; prompt++) {
		bool missing = false;

		for (uint32_t i = 0; i < LENGTH; i++) {
			bool stored = slot_of(number_of(prompt, i)) != 0;

			assert_false(stored && missing);
			missing |= !stored && !find_in(&tier.index, prompt, i);
		}
	}
}

static int start_slow(void **state)
{
	int rc = start_closed(state);

	if (rc != 0)
		return rc;
	ram_pages = 64;
	options.write_bytes = 1; /* two pages at once, more when this test says so */
	options.bytes = 2 * PROMPTS * LENGTH * SLOT_BYTES;
	rc = open_file();
	ram_pages = RAM_PAGES;
	return rc;
}

TEST_WITH(a_slow_disk_costs_no_hits_and_all_it_has_can_be_reached, start_slow, stop)
{
	struct request running[TOGETHER];
	uint32_t n = 0;

	srand(11);
	hits = hits_alone = n_computed = 0;
	assert_int_equal(kvt_index_init(&alone, tier.index.n_entries), 0);
	for (uint32_t i = 0; i < TOGETHER; i++)
		running[i].n = LENGTH;
	for (uint32_t turn = 0; n < REQUESTS; turn++) {
		struct request *request = &running[turn % TOGETHER];

		if (request->n == LENGTH) { /* some prompts come more often */
			uint32_t most = 1 + (uint32_t)rand() % PROMPTS;

			*request = (struct request){ .prompt = (uint32_t)rand() % most };
			n++;
		}
		serve(request);
		if (turn % 64 == 0)
			check_reachable();
	}
	assert_true(kvt_file_count(file).unpaid + kvt_file_count(file).dropped > 0);
	assert_true(hits > hits_alone);
	print_message("%u of %u pages hit, %u with memory alone\n", hits, n * LENGTH, hits_alone);
	kvt_index_destroy(&alone);
}

/* ---- what is refused, and left as it is */

static void must_say(int code, const char *text)
{
	assert_int_equal(open_file(), code);
	if (!strstr(why.text, text))
		fail_msg("'%s' is not in '%s'", text, why.text);
}

TEST_WITH(a_file_that_is_none_of_a_store_is_refused, start_closed, stop)
{
	char text[8192] = "precious";
	struct stat there;

	for (uint32_t i = 0; i < 3; i++) {
		uint64_t bytes = i == 0 ? 8 : sizeof(text);

		unlink(path);
		close(open(path, O_WRONLY | O_CREAT, 0600));
		if (i == 2)
			memcpy(text, "KVTFILE\0\6", 9); /* of this version */
		damage(0, text, bytes);
		must_say(i == 2 ? -EIO : -EDOM, i == 2 ? "damaged" : "no file of a store");
		assert_int_equal(stat(path, &there), 0);
		assert_int_equal(there.st_size, bytes);
	}
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	must_say(-EDOM, "not a regular file");
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	must_say(-EDOM, "not a regular file");
	options.path = "/nowhere/pages";
	must_say(-EDOM, "No such file");
}

/* Others begin with zeros, too. */
TEST_WITH(a_file_that_begins_with_zeros_is_no_empty_one, start_closed, stop)
{
	char text[4096] = "precious", there[4096];
	int fd;

	unlink(path);
	close(open(path, O_WRONLY | O_CREAT, 0600));
	assert_int_equal(truncate(path, 8 * 4096), 0);
	damage(4 * 4096, text, sizeof(text));
	must_say(-EDOM, "no file of a store");
	fd = open(path, O_RDONLY);
	assert_int_equal(pread(fd, there, sizeof(there), 4 * 4096), sizeof(there));
	assert_memory_equal(there, text, sizeof(there));
	close(fd);
	unlink(path); /* as a start leaves it that is killed while it allocates */
	close(open(path, O_WRONLY | O_CREAT, 0600));
	assert_int_equal(truncate(path, 8 * 4096), 0);
	assert_int_equal(open_file(), 0);
}

TEST_WITH(pages_of_another_size_are_kept_for_their_model, start_closed, stop)
{
	assert_int_equal(kvt_tier_init(&tier, RAM_PAGES * RECORD * 2, RECORD * 2, 0), 0);
	assert_int_equal(kvt_file_open(&file, &tier, &options, &why), -EINVAL);
	assert_non_null(strstr(why.text, "has pages of 8192 bytes, this pool's take 16384"));
	kvt_tier_destroy(&tier);
}

TEST_WITH(one_file_is_for_one_store, start, stop)
{
	struct kvt_tier second;
	struct kvt_file *other;

	assert_int_equal(kvt_tier_init(&second, RAM_PAGES * RECORD, RECORD, 0), 0);
	assert_int_equal(kvt_file_open(&other, &second, &options, &why), -EIO);
	assert_non_null(strstr(why.text, "in use by another process"));
	kvt_tier_destroy(&second);
	store_pages(1, 1);
	assert_true(comes_back(1));
}

TEST_WITH(a_disk_without_room_is_refused_with_both_sizes, start_closed, stop)
{
	unlink(path);
	options.bytes = 1ull << 42;
	must_say(-EIO, "make --file-bytes smaller");
	assert_non_null(strstr(why.text, "TiB"));
	assert_int_not_equal(access(path, F_OK), 0); /* nothing is left */
	options.bytes = 4096;
	must_say(-EDOM, "--file-bytes has no room for 1 page");
}

TEST_WITH(a_start_tells_epochs_of_several_caches, start, stop)
{
	uint64_t caches[KVT_FILE_CACHES + 1][2];

	for (uint64_t i = 0; i <= KVT_FILE_CACHES; i++) {
		caches[i][0] = 10 + i;
		caches[i][1] = 1;
	}
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(kvt_file_bind(file, caches[i], 5 + i), 5 + i);
	close_file(false);
	assert_int_equal(open_file(), 0);
	assert_int_equal(kvt_file_bind(file, caches[1], 9), 6); /* a RESET that no store saw */
	kvt_file_clear(file, caches[1], 9);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(kvt_file_bind(file, caches[i], 20), i == 1 ? 9 : 5 + i);
	/* The one that was bound first is forgotten. */
	for (uint64_t i = 3; i <= KVT_FILE_CACHES; i++)
		assert_int_equal(kvt_file_bind(file, caches[i], 1), 1);
	assert_int_equal(kvt_file_bind(file, caches[1], 20), 9);
	assert_int_equal(kvt_file_bind(file, caches[0], 20), 20);
}
