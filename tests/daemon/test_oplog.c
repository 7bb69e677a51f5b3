/* SPDX-License-Identifier: Apache-2.0 */

/* The operation log's codec: it reads what it wrote and detects damage, cut ends and full disks.
 * Files are made here, cut and changed byte by byte.
 *
 * Invariant: what is read was written, in order, and the rest is named. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log/operations.h"
#include "daemon/log/operations_format.h"
#include "tests/lib/cases.h"

#define N_RECORDS 60
#define N_KEYS 300

static char path[] = "/tmp/kvt-oplog-XXXXXX";
static uint32_t all_keys[N_KEYS];

static struct kvt_core_config config(void)
{
	return (struct kvt_core_config){
		.page_size = 4, .n_pages = 5000, .n_slots = 5400, .max_nodes = 70,
		.max_namespaces = 5, .max_sessions = 3, .n_leases = 9, .n_pending = 2,
		.max_op_keys = 1 << 16, .policy = KVT_POLICY_LFU, .slru_threshold = 3,
	};
}

static int make_file(void **state)
{
	int fd;

	strcpy(path + sizeof(path) - 7, "XXXXXX");
	fd = mkstemp(path);
	if (fd < 0)
		return -1;
	for (uint32_t i = 0; i < N_KEYS; i++)
		all_keys[i] = i * 2654435761u;
	return close(fd);
}

static int remove_file(void **state)
{
	return unlink(path);
}

/* Make record i of a log. Its arrays are in `store`. */
struct store {
	uint32_t list[64], pages[8], out[8];
	struct kvt_event events[4];
};

static struct kvt_record make_record(uint32_t i, struct store *store)
{
	struct kvt_record r = {
		.kind = i % 5 == 4 ? KVT_REC_QUARANTINE : i % 7 == 3 ? KVT_REC_DEFER : KVT_REC_OP,
		.session = 1 + i % 3, .seq = i + 1, .now_ns = 1000000007ull * i * i,
		.value = i % 4 ? 0 : 0x123456789abcull, .list = store->list,
		.pages = store->pages, .events = store->events, .out = store->out,
	};
	struct kvt_counters *c = &r.counters;

	memset(store, 0, sizeof(*store));
	r.sqe.op = KVT_OP_BEGIN;
	r.sqe.user_data = i;
	r.sqe.node = i;
	r.n_list = i % 65;
	for (uint32_t k = 0; k < r.n_list; k++) /* up, down, apart, and the largest */
		store->list[k] = k < 20 ? 100 + k : k < 40 ? 4000 - k : k * i;
	if (r.n_list > 2)
		store->list[r.n_list - 1] = UINT32_MAX;
	r.n_pages = i % 9;
	for (uint32_t k = 0; k < r.n_pages; k++)
		store->pages[k] = 7 * k + 1;
	r.n_events = i % 5;
	for (uint32_t k = 0; k < r.n_events; k++)
		store->events[k] = (struct kvt_event){ k + 1, i, UINT32_MAX, 300 * k };
	r.n_out = i % 8;
	for (uint32_t k = 0; k < r.n_out; k++)
		store->out[k] = 50 - k;
	if (r.kind == KVT_REC_OP) {
		r.cqe = (struct kvt_cqe){ .user_data = i, .result = i % 3 ? 0 : -(int)i,
					  .lease = 1 + i % 11, .n_list = UINT32_MAX };
		r.sqe.op = i % 6 ? KVT_OP_COMMIT : KVT_OP_BEGIN;
		r.keys = all_keys;
		r.n_keys = (i * 13) % N_KEYS;
		r.known_positions = r.n_keys / 2;
		r.known_node = r.known_positions ? 5 : 0;
	} else if (r.kind == KVT_REC_DEFER) {
		r.cqe = (struct kvt_cqe){ 0 };
	} else {
		memset(&r.sqe, 0, sizeof(r.sqe));
	}
	c->free_pages = 5000 - i;
	c->operations = i * 1000000007ull;
	c->violations = i % 3 ? 4 : UINT64_MAX;
	return r;
}

static uint32_t wrong_key_at = UINT32_MAX;
static uint64_t ends[N_RECORDS + 1]; /* offsets where n records are whole */

static int path_keys(void *context, uint32_t node, uint32_t positions, uint32_t *ret_keys)
{
	if (node != 5)
		return -ENOENT;
	memcpy(ret_keys, all_keys, positions * sizeof(*ret_keys));
	if (wrong_key_at < positions)
		ret_keys[wrong_key_at] ^= 1;
	return 0;
}

static void write_log(uint32_t n)
{
	struct kvt_core_config c = config();
	struct kvt_oplog *log;
	struct store store;
	char why[256] = "";

	assert_int_equal(kvt_oplog_open(path, &c, &log, why, sizeof(why)), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_record r = make_record(i, &store);

		assert_int_equal(kvt_oplog_write(log, &r), 0);
	}
	assert_int_equal(kvt_oplog_close(log), 0);
}

static void assert_same(const struct kvt_record *got, uint32_t i)
{
	struct store store;
	struct kvt_record want = make_record(i, &store);

	assert_int_equal(got->kind, want.kind);
	assert_int_equal(got->session, want.session);
	assert_int_equal(got->seq, want.seq);
	assert_int_equal(got->now_ns, want.now_ns);
	assert_int_equal(got->value, want.value);
	assert_memory_equal(&got->sqe, &want.sqe, sizeof(want.sqe));
	assert_memory_equal(&got->cqe, &want.cqe, sizeof(want.cqe));
	assert_int_equal(got->n_keys, want.n_keys);
	if (want.n_keys)
		assert_memory_equal(got->keys, want.keys, want.n_keys * sizeof(uint32_t));
	assert_int_equal(got->n_list, want.n_list);
	if (want.n_list)
		assert_memory_equal(got->list, want.list, want.n_list * sizeof(uint32_t));
	assert_int_equal(got->n_pages, want.n_pages);
	if (want.n_pages)
		assert_memory_equal(got->pages, want.pages, want.n_pages * sizeof(uint32_t));
	assert_int_equal(got->n_events, want.n_events);
	if (want.n_events)
		assert_memory_equal(got->events, want.events,
				    want.n_events * sizeof(*want.events));
	assert_int_equal(got->n_out, want.n_out);
	if (want.n_out)
		assert_memory_equal(got->out, want.out, want.n_out * sizeof(uint32_t));
	assert_memory_equal(&got->counters, &want.counters, sizeof(want.counters));
}

/* Read the file. Each record must be right. Returns their number. */
static uint32_t read_log(int *ret_end, bool *ret_truncated)
{
	struct kvt_oplog_reader *reader;
	struct kvt_core_config c, want = config();
	struct kvt_record record;
	char why[256] = "";
	uint32_t n = 0;

	*ret_end = kvt_oplog_reader_open(path, &reader, &c, why, sizeof(why));
	if (*ret_end) {
		assert_true(*why != '\0');
		return 0;
	}
	if (c.n_pages == want.n_pages && c.policy == want.policy)
		assert_memory_equal(&c, &want, sizeof(c));
	while ((*ret_end = kvt_oplog_next(reader, path_keys, NULL, &record, why,
					  sizeof(why))) > 0) {
		assert_same(&record, n);
		if (++n <= N_RECORDS)
			ends[n] = kvt_oplog_offset(reader);
	}
	if (*ret_end < 0)
		assert_true(*why != '\0');
	*ret_truncated = kvt_oplog_truncated(reader);
	kvt_oplog_reader_close(reader);
	return n;
}

TEST_WITH(reads_what_was_written, make_file, remove_file)
{
	bool truncated;
	struct stat st;
	int end;

	write_log(N_RECORDS);
	assert_int_equal(read_log(&end, &truncated), N_RECORDS);
	assert_int_equal(end, 0);
	assert_false(truncated);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

TEST_WITH(leaves_known_keys_out, make_file, remove_file)
{
	struct stat st;
	uint64_t keys = 0;

	write_log(N_RECORDS);
	for (uint32_t i = 0; i < N_RECORDS; i++) {
		struct store store;

		keys += make_record(i, &store).n_keys;
	}
	assert_int_equal(stat(path, &st), 0);
	assert_true((uint64_t)st.st_size < keys * sizeof(uint32_t) * 3 / 4 + N_RECORDS * 300);
}

/* A crash may cut the file anywhere: whole records before it are read, and the rest is reported. */
TEST_WITH(tolerates_a_cut_at_any_byte, make_file, remove_file)
{
	bool truncated = false;
	struct stat st;
	off_t size;
	int end;

	write_log(12);
	assert_int_equal(read_log(&end, &truncated), 12);
	ends[0] = sizeof(struct oplog_header);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, ends[12]);
	for (size = st.st_size - 1; size > 0; size--) {
		uint32_t whole = 0;

		while (whole < 12 && ends[whole + 1] <= (uint64_t)size)
			whole++;
		assert_int_equal(truncate(path, size), 0);
		assert_int_equal(read_log(&end, &truncated), whole);
		if ((uint64_t)size < ends[0]) {
			assert_int_equal(end, -EINVAL); /* the header itself is cut */
			continue;
		}
		assert_int_equal(end, 0);
		assert_int_equal(truncated, (uint64_t)size != ends[whole]);
	}
}

/* No changed bit yields a record that was never written: read_log() compares them all. */
TEST_WITH(notices_any_changed_bit, make_file, remove_file)
{
	uint32_t noticed = 0, tried = 0;
	struct stat st;
	int fd;

	write_log(12);
	assert_int_equal(stat(path, &st), 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	for (off_t at = sizeof(struct oplog_header); at < st.st_size; at++) {
		bool truncated;
		uint8_t byte, bad;
		int end;

		assert_int_equal(pread(fd, &byte, 1, at), 1);
		bad = byte ^ (uint8_t)(1u << (at % 8));
		assert_int_equal(pwrite(fd, &bad, 1, at), 1);
		noticed += read_log(&end, &truncated) < 12;
		tried++;
		assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	}
	close(fd);
	assert_true(tried > 1000);
	assert_int_equal(noticed, tried);
}

TEST_WITH(notices_keys_that_are_not_those_of_the_path, make_file, remove_file)
{
	bool truncated;
	int end;

	write_log(N_RECORDS);
	wrong_key_at = 3;
	assert_true(read_log(&end, &truncated) < N_RECORDS);
	assert_int_equal(end, -EBADMSG);
	wrong_key_at = UINT32_MAX;
}

TEST_WITH(a_full_disk_ends_the_log_and_nothing_else, make_file, remove_file)
{
	struct rlimit small = { .rlim_cur = 300000, .rlim_max = RLIM_INFINITY }, old;
	struct kvt_core_config c = config();
	struct kvt_oplog *log = NULL;
	struct store store;
	char why[256] = "";
	int error = 0, again, end;
	bool truncated;

	assert_int_equal(kvt_oplog_open("/dev/full", &c, &log, why, sizeof(why)), -ENOSPC);
	assert_non_null(strstr(why, "/dev/full"));
	/* A file at its size limit counts as a full disk. */
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small.rlim_max = old.rlim_max;
	assert_int_equal(kvt_oplog_open(path, &c, &log, why, sizeof(why)), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	for (uint32_t i = 0; i < 20000 && !error; i++) {
		struct kvt_record r = make_record(i, &store);

		error = kvt_oplog_write(log, &r);
	}
	assert_int_equal(error, -EFBIG);
	struct kvt_record r = make_record(1, &store);

	again = kvt_oplog_write(log, &r);
	assert_int_equal(again, -EFBIG);
	assert_int_equal(kvt_oplog_close(log), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_true(read_log(&end, &truncated) > 100);
	assert_int_equal(end, 0);
}

TEST_WITH(replaces_logs_and_nothing_else, make_file, remove_file)
{
	struct kvt_core_config c = config();
	struct kvt_oplog *log = NULL;
	char why[256] = "", text[32] = "";
	bool truncated;
	FILE *file;
	int end;

	write_log(20);
	write_log(3);
	assert_int_equal(read_log(&end, &truncated), 3);
	file = fopen(path, "w");
	assert_non_null(file);
	fputs("precious: do not touch", file);
	fclose(file);
	assert_int_equal(kvt_oplog_open(path, &c, &log, why, sizeof(why)), -EEXIST);
	assert_non_null(strstr(why, "is no operation log"));
	file = fopen(path, "r");
	assert_non_null(fgets(text, sizeof(text), file));
	fclose(file);
	assert_string_equal(text, "precious: do not touch");
	assert_int_equal(read_log(&end, &truncated), 0);
	assert_int_equal(end, -EINVAL);
	assert_int_equal(kvt_oplog_open("/nowhere/at/all", &c, &log, why, sizeof(why)), -ENOENT);
}

static void write_some(struct kvt_oplog *log, uint32_t from, uint32_t to)
{
	struct store store;

	for (uint32_t i = from; i < to; i++) {
		struct kvt_record r = make_record(i, &store);

		assert_int_equal(kvt_oplog_write(log, &r), 0);
	}
}

/* A daemon died in its `lost`-th last record, which was complete or half written. */
static void continues_after(uint32_t lost, bool half)
{
	struct kvt_core_config c = config();
	const uint64_t other[2] = { 1, 1 };
	struct kvt_oplog_tail tail;
	struct kvt_oplog *log;
	char why[256] = "";
	bool truncated;
	int end;

	assert_int_equal(kvt_oplog_open(path, &c, &log, why, sizeof(why)), 0);
	kvt_oplog_keep(log, &tail);
	write_some(log, 0, 20);
	assert_int_equal(read_log(&end, &truncated), 20); /* all of it is in the file */
	assert_int_equal(kvt_oplog_close(log), 0);
	if (half) {
		FILE *file = fopen(path, "a");

		assert_non_null(file);
		fputs("half a record", file);
		fclose(file);
	}
	assert_int_equal(kvt_oplog_continue(path, &c, other, &tail, &log, why, sizeof(why)),
			 -ESTALE);
	assert_int_equal(kvt_oplog_continue(path, &c, c.instance, &tail, &log, why, sizeof(why)),
			 0);
	write_some(log, 20 - lost, 21 - lost);
	/* No old bytes follow the first new record. */
	assert_int_equal(read_log(&end, &truncated), 21 - lost);
	assert_false(truncated);
	write_some(log, 21 - lost, 30);
	assert_int_equal(kvt_oplog_close(log), 0);
	assert_int_equal(read_log(&end, &truncated), 30);
	assert_false(truncated);
	/* And again by a third daemon that finds nothing to cut. */
	assert_int_equal(kvt_oplog_continue(path, &c, c.instance, &tail, &log, why, sizeof(why)),
			 0);
	write_some(log, 30, 40);
	assert_int_equal(kvt_oplog_close(log), 0);
	assert_int_equal(read_log(&end, &truncated), 40);
}

TEST_WITH(a_successor_continues_behind_the_last_whole_effect, make_file, remove_file)
{
	for (uint32_t lost = 0; lost <= 2; lost++) {
		continues_after(lost, false);
		continues_after(lost, true);
	}
}

TEST_WITH(a_log_that_ended_is_not_continued, make_file, remove_file)
{
	struct kvt_core_config c = config();
	struct kvt_oplog_tail tail;
	struct kvt_oplog *log;
	char why[256] = "";

	assert_int_equal(kvt_oplog_open(path, &c, &log, why, sizeof(why)), 0);
	kvt_oplog_keep(log, &tail);
	write_some(log, 0, 10);
	assert_int_equal(kvt_oplog_close(log), 0);
	assert_int_equal(kvt_oplog_continue(path, &c, c.instance, &tail, &log, why, sizeof(why)),
			 0);
	assert_int_equal(kvt_oplog_close(log), 0);
	kvt_oplog_end(&tail);
	assert_int_equal(kvt_oplog_continue(path, &c, c.instance, &tail, &log, why, sizeof(why)),
			 -ESTALE);
}
