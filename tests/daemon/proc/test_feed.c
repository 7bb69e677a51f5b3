/* SPDX-License-Identifier: Apache-2.0 */
/* The feed of a real daemon: records, snapshots, refusals, and its life.
 *
 * Inputs: what a worker caches and loses. Invariant: after a snapshot, and whenever it has read all
 * records, a subscriber knows exactly the pages that the daemon counts as cached. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "libclient/control.h"
#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"

#define PAGE 16u
#define PAGES 4096u

static struct kvt_client *worker, *reader;
static struct kvt_feed *feed;
static uint32_t namespace_id;

/* What the subscriber knows. */
static uint8_t known[PAGES]; /* 1: a page of the tree, 2: a side page */
static uint32_t parents[PAGES], first_keys[PAGES], n_known, used_page, used_n;
static uint64_t cleared_to;
static uint32_t n_spaces;

static void connect_all(void)
{
	worker = kvt_test_connect(&daemon_);
	reader = kvt_test_observe(&daemon_);
	namespace_id = kvt_test_namespace(worker, "feed");
	feed = NULL;
}

static int start(void **state)
{
	kvt_test_daemon_begin(&daemon_, *state);
	connect_all();
	return 0;
}

static int start_supervised(void **state)
{
	kvt_test_daemon_begin_supervised(&daemon_, NULL);
	connect_all();
	return 0;
}

static int stop(void **state)
{
	kvt_feed_close(feed);
	kvt_client_close(worker, KVT_IDLE);
	kvt_client_close(reader, KVT_IDLE);
	return kvt_test_end(state);
}

#define SMALL "feed_bytes = 1M\nfeed_used = yes\n"

static void forget(void)
{
	memset(known, 0, sizeof(known));
	n_known = n_spaces = used_page = used_n = 0;
	cleared_to = 0;
}

static void know(uint32_t page, uint8_t as)
{
	kvt_test_check(page > 0 && page < PAGES && !known[page]);
	known[page] = as;
	n_known++;
}

static void learn(const struct kvt_feed_record *record)
{
	uint32_t parent = record->parent;

	n_spaces += record->type == KVT_FEED_NAMESPACE;
	if (record->type == KVT_FEED_CLEARED) {
		forget();
		cleared_to = record->epoch;
	}
	if (record->type == KVT_FEED_USED) {
		used_page = record->parent;
		used_n = record->n;
	}
	for (uint32_t i = 0; i < record->n && record->type == KVT_FEED_STORED; i++) {
		kvt_test_check(!parent || known[parent] == 1);
		kvt_test_equal(record->namespace_id, record->parent ? 0 : namespace_id);
		know(record->pages[i], 1);
		first_keys[record->pages[i]] = record->keys[i * PAGE];
		parents[record->pages[i]] = parent;
		parent = record->pages[i];
	}
	for (uint32_t i = 0; i < record->n && record->sides; i++) {
		kvt_test_equal(known[record->sides[i].page], 1);
		know(record->sides[i].side, 2);
	}
	for (uint32_t i = 0; i < record->n && record->type == KVT_FEED_REMOVED; i++) {
		n_known -= known[record->pages[i]] != 0;
		known[record->pages[i]] = 0;
	}
}

/* Read until there are no more records: 0, or what kvt_feed_next() returns then. */
static int catch_up(void)
{
	struct kvt_feed_record record;
	int rc;

	while ((rc = kvt_feed_next(feed, &record)) == 1)
		learn(&record);
	return rc;
}

static void expect_all_known(void)
{
	struct kvt_counters counters;

	kvt_test_equal(catch_up(), 0);
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(catch_up(), 0);
	kvt_test_equal(n_known, counters.cached_pages);
}

static void open_feed(void)
{
	kvt_test_equal(kvt_feed_open(reader, &feed), 0);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
}

static void cache(uint32_t first, uint32_t n)
{
	kvt_test_cache(worker, namespace_id, first, n);
}

static void change(uint32_t what, uint64_t argument)
{
	struct kvt_message_admin request = { .what = what, .argument = argument };
	uint64_t answer[64];

	kvt_test_check(kvt_admin(reader, &request, NULL, 0, answer, sizeof(answer)) >= 0);
}

TEST_WITH(records_tell_what_is_cached_and_what_stops_being_so, start, stop)
{
	uint32_t root = 0, behind = 0;

	open_feed();
	cache(1000, 10 * PAGE);
	cache(1000, 20 * PAGE);
	expect_all_known();
	kvt_test_equal(n_known, 20);
	for (uint32_t page = 1; page < PAGES; page++) {
		root += known[page] && first_keys[page] == 1000 && parents[page] == 0;
		behind += known[page] && first_keys[page] != 1000 &&
			  first_keys[parents[page]] == first_keys[page] - PAGE;
	}
	kvt_test_equal(root, 1);
	kvt_test_equal(behind, 19);
	change(KVT_ADMIN_EVICT, 7);
	expect_all_known();
	kvt_test_equal(n_known, 13);
	cache(50000, 3 * PAGE);
	change(KVT_ADMIN_RESET, 0);
	expect_all_known();
	kvt_test_equal(n_known, 0);
	kvt_test_equal(cleared_to, 2);
}

/* Insert a prompt with a time to live of a minute, or with none. */
static void insert(uint32_t first, uint32_t n, uint32_t ttl_ms)
{
	uint32_t keys[8 * PAGE], pages[8];
	struct kvt_request request = { .op = KVT_OP_INSERT, .namespace_id = namespace_id,
				       .keys = keys, .n_keys = n * PAGE, .pages = pages,
				       .n_pages = n, .fence = KVT_IDLE, .ttl_ms = ttl_ms,
				       .flags = ttl_ms ? KVT_F_TTL : 0 };

	for (uint32_t i = 0; i < n * PAGE; i++)
		keys[i] = first + i;
	kvt_test_equal(kvt_alloc(worker, n, pages), 0);
	kvt_test_equal(kvt_test_call(worker, &request).error, 0);
}

/* Take records until the next one that names pages, which is of this type. Returns their number,
 * and in *ret_ends whether they have a time to live. */
static uint32_t next_pages(uint32_t type, uint32_t *ret_ends)
{
	struct kvt_feed_record record;

	do {
		kvt_test_equal(kvt_feed_next(feed, &record), 1);
	} while (!record.pages);
	kvt_test_equal(record.type, type);
	*ret_ends = record.ends;
	return record.n;
}

TEST_WITH(a_time_to_live_and_its_end_are_told, start, stop)
{
	uint32_t ends, n_ending = 0;

	kvt_test_equal(kvt_feed_open(reader, &feed), 0);
	insert(1000, 6, 60000);
	kvt_test_equal(next_pages(KVT_FEED_STORED, &ends), 6);
	kvt_test_equal(ends, 1);
	insert(1000, 6, 0);
	kvt_test_equal(next_pages(KVT_FEED_LASTING, &ends), 6);
	insert(5000, 4, 60000);
	kvt_test_equal(next_pages(KVT_FEED_STORED, &ends), 4);
	insert(9000, 3, 0);
	kvt_test_equal(next_pages(KVT_FEED_STORED, &ends), 3);
	kvt_test_equal(ends, 0);
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	for (uint32_t n = 0, more; n < 13; n += more) {
		more = next_pages(KVT_FEED_STORED, &ends);
		n_ending += ends * more;
	}
	kvt_test_equal(n_ending, 4);
	cache(5000, 4 * PAGE + 1); /* a COMMIT of the whole path */
	kvt_test_equal(next_pages(KVT_FEED_LASTING, &ends), 4);
}

TEST_WITH(a_snapshot_is_what_is_cached_and_changes_follow_it, start, stop)
{
	for (uint32_t i = 0; i < 50; i++)
		cache(1000 + 500 * i, (1 + i % 7) * PAGE);
	cache(1000, 40 * PAGE);
	open_feed();
	cache(90000, 5 * PAGE); /* after the snapshot, before it is read */
	expect_all_known();
	kvt_test_check(n_known > 100);
	kvt_test_equal(n_spaces, 1);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	expect_all_known();
}

TEST_FROM(side_pages_are_told, start, stop, "sides = 1,2\n")
{
	uint32_t keys[3 * PAGE], pages[2];
	struct kvt_side sides[2];
	struct kvt_request request = { .op = KVT_OP_COMMIT, .arg = 3 * PAGE, .sides = sides,
				       .n_sides = 2, .flags = KVT_F_KEEP | KVT_F_NO_LIST,
				       .fence = KVT_IDLE };
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = namespace_id,
				     .keys = keys, .n_keys = 3 * PAGE };
	struct kvt_result result;

	for (uint32_t i = 0; i < 3 * PAGE; i++)
		keys[i] = 7 + i;
	open_feed();
	kvt_test_equal(kvt_alloc(worker, 2, pages), 0);
	sides[0] = (struct kvt_side){ KVT_SIDE_PLACE(2, 0), pages[0] };
	sides[1] = (struct kvt_side){ KVT_SIDE_PLACE(2, 1), pages[1] };
	request.lease = kvt_test_call(worker, &begin).lease;
	result = kvt_test_call(worker, &request);
	kvt_test_equal(result.error, 0);
	expect_all_known();
	kvt_test_equal(n_known, 5);
	kvt_test_equal(known[pages[0]], 2);
	kvt_test_equal(known[pages[1]], 2);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	expect_all_known();
	kvt_test_equal(known[pages[1]], 2);
	request = (struct kvt_request){ .op = KVT_OP_END, .lease = request.lease,
					.fence = KVT_IDLE };
	kvt_test_equal(kvt_test_call(worker, &request).error, 0);
	change(KVT_ADMIN_EVICT, 5);
	expect_all_known();
	kvt_test_equal(n_known, 0);
}

/* Know pages with their whole paths only. Returns their number. */
static uint32_t n_whole(void)
{
	uint32_t n = 0, at;

	for (uint32_t page = 1; page < PAGES; page++) {
		for (at = page; at && known[at] == 1; at = parents[at])
			;
		n += known[page] == 1 && at == 0;
	}
	return n;
}

TEST_WITH(a_namespace_that_is_removed_whole_is_told_at_once, start, stop)
{
	struct kvt_request request = { .op = KVT_OP_REMOVE, .namespace_id = namespace_id };
	struct kvt_lease leases[2];

	open_feed();
	for (uint32_t i = 0; i < 600; i++) /* paths: more than one REMOVED has */
		cache(1000 + 100 * i, (i < 2 ? 3 : 1) * PAGE);
	kvt_test_equal(catch_up(), 0);
	kvt_test_equal(n_whole(), 604);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t keys[3 * PAGE];
		struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = namespace_id,
					     .keys = keys, .n_keys = 3 * PAGE };

		for (uint32_t k = 0; k < 3 * PAGE; k++)
			keys[k] = 1000 + 100 * i + k;
		leases[i] = kvt_test_call(worker, &begin).lease;
	}
	kvt_test_equal(kvt_test_call(worker, &request).error, 0);
	kvt_test_equal(catch_up(), 0);
	kvt_test_equal(n_whole(), 0);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	kvt_test_equal(catch_up(), 0);
	kvt_test_equal(n_known, 0);
	cache(1000, 4 * PAGE); /* the same path again, while the old one is locked */
	kvt_test_equal(catch_up(), 0);
	kvt_test_equal(n_whole(), 4);
	for (uint32_t i = 0; i < 2; i++) {
		struct kvt_request end = { .op = KVT_OP_END, .lease = leases[i],
					   .fence = KVT_IDLE };

		kvt_test_equal(kvt_test_call(worker, &end).error, 0);
	}
	expect_all_known();
	kvt_test_equal(n_known, 4);
}

TEST_FROM(a_side_page_leaves_before_another_takes_its_place, start, stop, "sides = 1\n")
{
	uint32_t keys[2 * PAGE], pages[2];
	struct kvt_side sides[2];
	struct kvt_request request = { .op = KVT_OP_COMMIT, .arg = 2 * PAGE, .sides = sides,
				       .n_sides = 1, .flags = KVT_F_KEEP | KVT_F_NO_LIST,
				       .fence = KVT_IDLE };
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .namespace_id = namespace_id,
				     .keys = keys, .n_keys = 2 * PAGE };
	struct kvt_feed_record record;

	for (uint32_t i = 0; i < 2 * PAGE; i++)
		keys[i] = 7 + i;
	open_feed();
	kvt_test_equal(kvt_alloc(worker, 2, pages), 0);
	request.lease = kvt_test_call(worker, &begin).lease;
	sides[0] = (struct kvt_side){ KVT_SIDE_PLACE(1, 0), pages[0] };
	kvt_test_equal(kvt_test_call(worker, &request).error, 0);
	kvt_test_equal(catch_up(), 0);
	sides[0].page = KVT_NONE;
	sides[1] = (struct kvt_side){ KVT_SIDE_PLACE(1, 0), pages[1] };
	request.n_sides = 2;
	kvt_test_equal(kvt_test_call(worker, &request).error, 0);
	kvt_test_equal(kvt_feed_next(feed, &record), 1);
	kvt_test_equal(record.type, KVT_FEED_REMOVED);
	kvt_test_equal(record.pages[0], pages[0]);
	kvt_test_equal(kvt_feed_next(feed, &record), 1);
	kvt_test_equal(record.type, KVT_FEED_SIDE);
	kvt_test_equal(record.sides[0].side, pages[1]);
}

TEST_FROM(a_slow_subscriber_overflows_and_takes_a_snapshot, start, stop, SMALL)
{
	open_feed();
	kvt_test_equal(catch_up(), 0);
	for (uint32_t i = 0; i < 200; i++) /* more than a mebibyte of keys */
		cache(1000 + 10000 * i, 2048);
	kvt_test_equal(catch_up(), -EOVERFLOW);
	kvt_test_equal(kvt_client_error(reader)->code, -EOVERFLOW);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	expect_all_known();
	kvt_test_check(n_known > 1000);
}

/* Add to the word of the daemon's arena that is odd while a mutation runs. */
static void mutate(int64_t by)
{
	char line[256], path[64];
	unsigned long at = 0;
	uint64_t mutation;
	FILE *maps;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)daemon_.pid);
	maps = fopen(path, "re");
	kvt_test_check(maps);
	while (!at && fgets(line, sizeof(line), maps))
		if (strstr(line, ".arena."))
			at = strtoul(line, NULL, 16);
	fclose(maps);
	kvt_test_check(at);
	at += offsetof(struct kvt_arena_header, mutation);
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)daemon_.pid);
	fd = open(path, O_RDWR | O_CLOEXEC);
	kvt_test_equal(pread(fd, &mutation, sizeof(mutation), (off_t)at), sizeof(mutation));
	mutation += (uint64_t)by;
	kvt_test_equal(pwrite(fd, &mutation, sizeof(mutation), (off_t)at), sizeof(mutation));
	close(fd);
}

TEST_WITH(a_daemon_stopped_in_a_change_holds_up_no_snapshot, start, stop)
{
	open_feed();
	cache(1000, 4 * PAGE);
	expect_all_known();
	kvt_client_set_timeout(reader, 20000000);
	kvt_test_freeze(daemon_.pid);
	mutate(1);
	kvt_test_equal(kvt_feed_snapshot(feed), -ETIMEDOUT);
	kvt_test_check(strstr(kvt_client_error(reader)->text, "SIGCONT"));
	mutate(-1);
	kvt_test_equal(kill(daemon_.pid, SIGCONT), 0);
	kvt_client_set_timeout(reader, 0);
	forget();
	kvt_test_equal(kvt_feed_snapshot(feed), 0);
	expect_all_known();
}

TEST_FROM(used_pages_are_told_if_asked_for, start, stop, SMALL)
{
	open_feed();
	cache(1000, 4 * PAGE);
	cache(1000, 4 * PAGE + 1);
	expect_all_known();
	kvt_test_equal(used_n, 4);
	kvt_test_equal(first_keys[used_page], 1000 + 3 * PAGE);
}

TEST_FROM(it_is_refused_where_keys_are_not_shown, start, stop, "arena_visible = no\n")
{
	kvt_test_equal(kvt_feed_open(reader, &feed), -EACCES);
	kvt_test_check(strstr(kvt_client_error(reader)->text, "arena_visible = yes"));
}

TEST_WITH(it_ends_when_keys_are_shown_no_more, start, stop)
{
	open_feed();
	cache(1000, 4 * PAGE);
	kvt_test_daemon_configure(&daemon_, "arena_visible = no\n");
	kvt_test_equal(kill(daemon_.pid, SIGHUP), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_equal(catch_up(), -ECONNRESET); /* behind the last record */
	kvt_test_equal(n_known, 4);
	kvt_test_check(strstr(kvt_client_error(reader)->text, "arena_visible is no"));
	cache(50000, 4 * PAGE);
	kvt_test_equal(catch_up(), -ECONNRESET);
	kvt_test_equal(n_known, 4);
	kvt_feed_close(feed);
	kvt_test_equal(kvt_feed_open(reader, &feed), -EACCES);
	feed = NULL;
	kvt_test_daemon_configure(&daemon_, "arena_visible = yes\n");
	kvt_test_equal(kill(daemon_.pid, SIGHUP), 0);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	open_feed();
	expect_all_known();
	kvt_test_equal(n_known, 8);
}

TEST_FROM(it_is_refused_without_memory_for_it, start, stop, "feed_bytes = 0\n")
{
	kvt_test_equal(kvt_feed_open(reader, &feed), -ENOTSUP);
	kvt_test_check(strstr(kvt_client_error(reader)->text, "feed_bytes = 16M"));
}

/* Ask while a limit of the daemon is this low. Returns false if that was enough. */
static bool refused_at(int which, rlim_t limit, int error)
{
	struct rlimit before, low;
	int rc;

	kvt_test_equal(prlimit(daemon_.pid, which, NULL, &before), 0);
	low = (struct rlimit){ limit, before.rlim_max };
	kvt_test_equal(prlimit(daemon_.pid, which, &low, NULL), 0);
	rc = kvt_feed_open(reader, &feed);
	kvt_test_equal(prlimit(daemon_.pid, which, &before, NULL), 0);
	if (rc == 0)
		return false;
	kvt_test_equal(rc, error);
	kvt_test_check(strstr(kvt_client_error(reader)->text, "lower feed_bytes, or raise"));
	return true;
}

TEST_WITH(it_is_refused_where_it_cannot_be_made, start, stop)
{
	uint32_t before = kvt_test_daemon_descriptors(&daemon_), limit = 3;
	unsigned long pages;
	char name[64];
	FILE *statm;

	snprintf(name, sizeof(name), "/proc/%d/statm", (int)daemon_.pid);
	statm = fopen(name, "re");
	kvt_test_check(statm && fscanf(statm, "%lu", &pages) == 1);
	fclose(statm);
	kvt_test_check(refused_at(RLIMIT_AS, pages * (rlim_t)sysconf(_SC_PAGESIZE) + (8 << 20),
				  -ENOMEM));
	while (refused_at(RLIMIT_NOFILE, limit, -EMFILE)) /* for the first, then for the second */
		limit++;
	kvt_test_check(limit > 4);
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), before + 2);
	kvt_feed_close(feed);
	open_feed();
	cache(1000, 3 * PAGE);
	expect_all_known();
}

TEST_WITH(a_client_has_one_feed, start, stop)
{
	struct kvt_feed *second;

	open_feed();
	kvt_test_equal(kvt_feed_open(reader, &second), -EALREADY);
	kvt_feed_close(feed);
	open_feed();
}

TEST_WITH(it_is_made_for_the_first_subscriber_and_dropped_with_the_last, start, stop)
{
	uint32_t before = kvt_test_daemon_descriptors(&daemon_);
	struct kvt_feed *second;
	int status;
	pid_t pid;

	open_feed();
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), before + 2);
	kvt_test_equal(kvt_feed_open(worker, &second), 0);
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), before + 2);
	kvt_feed_close(second);
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), before + 2);
	kvt_feed_close(feed);
	feed = NULL;
	kvt_test_equal(kvt_test_daemon_descriptors(&daemon_), before);
	fflush(NULL);
	pid = fork();
	if (pid == 0) /* ends without a word */
		_exit(kvt_feed_open(kvt_test_observe(&daemon_), &second) == 0 ? 0 : 1);
	kvt_test_equal(waitpid(pid, &status, 0), pid);
	kvt_test_equal(status, 0);
	while (kvt_test_daemon_descriptors(&daemon_) != before)
		sched_yield();
}

TEST_WITH(its_descriptor_cannot_write, start, stop)
{
	struct kvt_message_feed message = { .head.type = KVT_MSG_FEED, .on = 1 };
	int fd = -1;

	kvt_test_check(kvt_control_ask_fd(worker, &message.head, sizeof(message), &fd) > 0);
	kvt_test_check(fd >= 0);
	kvt_test_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	kvt_test_check(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	kvt_test_check(ftruncate(fd, 0) != 0);
	close(fd);
}

TEST_WITH(after_a_restart_subscribers_ask_again, start_supervised, stop)
{
	cache(1000, 20 * PAGE);
	open_feed();
	expect_all_known();
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_equal(catch_up(), -ECONNRESET);
	kvt_feed_close(feed);
	cache(70000, 3 * PAGE);
	open_feed();
	cache(80000, 3 * PAGE);
	expect_all_known();
	kvt_test_equal(n_known, 26);
}

TEST_WITH(a_forked_child_has_no_feed, start, stop)
{
	struct kvt_feed_record record;
	int status;
	pid_t pid;

	open_feed();
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(kvt_feed_next(feed, &record) == -ECHILD ? (kvt_feed_close(feed), 0) : 1);
	kvt_test_equal(waitpid(pid, &status, 0), pid);
	kvt_test_equal(status, 0);
	cache(1000, PAGE);
	expect_all_known();
}
