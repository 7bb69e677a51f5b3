/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs by threads: each is done once, its owner sees all of it, and what a load waits for comes
 * first. */
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "store/crc32c.h"
#include "store/workers.h"
#include "tests/lib/cases.h"

#define PAGES 64u
#define BYTES 4096u
#define OWNERS 3u
#define OWNER(fd) (struct kvt_jobs){ .workers = &workers, .wake = (fd) }

static uint8_t pool[PAGES * BYTES], records[PAGES][BYTES], back[PAGES * BYTES];
static const struct kvt_slabs from = { .bases = { pool }, .n_slabs = 1, .n_pieces = 1,
				       .record_bytes = BYTES,
				       .pieces = { { 0, BYTES, BYTES } } };
static const struct kvt_slabs to = { .bases = { back }, .n_slabs = 1, .n_pieces = 1,
				     .record_bytes = BYTES, .pieces = { { 0, BYTES, BYTES } } };
static struct kvt_workers workers = KVT_WORKERS_INIT;
static struct kvt_job job[PAGES];

static void fill_pool(uint32_t round)
{
	for (uint32_t i = 0; i < PAGES; i++)
		memset(pool + i * BYTES, (int)(round * 31 + i), BYTES);
}

static struct kvt_job copy_of(enum kvt_job_kind kind, uint32_t page)
{
	return (struct kvt_job){ .kind = kind, .slabs = kind == KVT_JOB_OUT ? &from : &to,
				 .page = page, .record = records[page], .bytes = BYTES,
				 .wants_crc = true };
}

/* Out, checked, and back in, by three owners in turns: each waits for its own. */
TEST(all_pages_go_out_and_come_back)
{
	struct kvt_jobs owners[OWNERS] = { OWNER(-1), OWNER(-1), OWNER(-1) };
	static const enum kvt_job_kind kinds[] = { KVT_JOB_OUT, KVT_JOB_CHECK, KVT_JOB_IN };
	uint32_t crc[4];

	assert_int_equal(kvt_workers_start(&workers, 4), 0);
	for (uint32_t round = 0; round < 50; round++) {
		fill_pool(round);
		for (uint32_t k = 0; k < 3; k++) {
			for (uint32_t i = 0; i < PAGES; i++) {
				job[i] = copy_of(kinds[k], i);
				kvt_jobs_add(&owners[i % OWNERS], &job[i]);
			}
			for (uint32_t i = 0; i < OWNERS; i++)
				kvt_jobs_settle(&owners[i]);
			for (uint32_t i = 0; i < PAGES; i++) {
				assert_true(kvt_job_has_ended(&job[i]));
				assert_int_equal(job[i].result, 0);
				kvt_crc32c_quarters(pool + i * BYTES, BYTES, crc);
				if (kinds[k] != KVT_JOB_IN)
					assert_memory_equal(job[i].crc, crc, sizeof(crc));
			}
		}
		assert_memory_equal(back, pool, sizeof(pool));
	}
	kvt_workers_stop(&workers);
}

static bool is_woken(int fd)
{
	struct pollfd wake = { .fd = fd, .events = POLLIN };
	uint64_t n;

	return poll(&wake, 1, 0) > 0 && read(fd, &n, sizeof(n)) > 0;
}

/* One wake for any number, and another one for what ends behind a look. */
TEST(an_owner_that_sleeps_is_woken)
{
	struct kvt_jobs jobs = OWNER(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));

	assert_int_equal(kvt_workers_start(&workers, 2), 0);
	for (uint32_t round = 0; round < 100; round++) {
		kvt_jobs_look(&jobs);
		for (uint32_t i = 0; i < 3; i++) {
			job[i] = copy_of(KVT_JOB_OUT, i);
			kvt_jobs_add(&jobs, &job[i]);
		}
		kvt_jobs_settle(&jobs);
		assert_true(is_woken(jobs.wake));
		assert_false(is_woken(jobs.wake));
		job[3] = copy_of(KVT_JOB_OUT, 3); /* without a look */
		kvt_jobs_add(&jobs, &job[3]);
		kvt_jobs_settle(&jobs);
		assert_false(is_woken(jobs.wake));
	}
	kvt_workers_stop(&workers);
	close(jobs.wake);
}

/* A record is copied into a pool before a copy that was asked for earlier writes over it. */
TEST(what_a_load_waits_for_comes_first)
{
	struct kvt_jobs jobs = OWNER(-1);

	fill_pool(1);
	memset(records[0], 0xaa, BYTES);
	job[0] = copy_of(KVT_JOB_OUT, 0);
	job[1] = copy_of(KVT_JOB_IN, 0);
	kvt_jobs_add(&jobs, &job[0]);
	kvt_jobs_add(&jobs, &job[1]);
	assert_int_equal(kvt_workers_start(&workers, 1), 0); /* until now all wait */
	kvt_jobs_settle(&jobs);
	assert_int_equal(back[0], 0xaa);
	assert_memory_equal(records[0], pool, BYTES);
	kvt_workers_stop(&workers);
}

/* As in tests without threads, and where there are none to be had. */
TEST(without_workers_a_job_is_done_at_once)
{
	struct kvt_jobs jobs = { .wake = -1 };

	fill_pool(2);
	job[0] = copy_of(KVT_JOB_OUT, 5);
	kvt_jobs_add(&jobs, &job[0]);
	assert_true(kvt_job_has_ended(&job[0]));
	assert_memory_equal(records[5], pool + 5 * BYTES, BYTES);
	kvt_jobs_settle(&jobs);
}
