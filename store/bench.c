/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtstored --bench. Inputs: memory, and a path on the disk to measure. Called by main.c.
 *
 * A figure and its floor take turns, and each line has the median of the turns. The floor of memory
 * is memcpy() of the same pages by as many threads, that of the file sequential O_DIRECT of the
 * same bytes with as many operations in flight, in a second file beside it.
 */
#include "store/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/exit.h"
#include "shm/clock.h"
#include "shm/map.h"
#include "store/file_state.h"
#include "store/why.h"

#define PAGE_BYTES (1ull << 20)
#define TURNS 5u
#define RAM_PAGES 256u /* more than the caches hold */
#define FILE_PAGES_MOST 512u
#define FILE_BYTES_LEAST (2ull << 30) /* what is read has left the memory */

struct bench {
	const struct kvt_file_options *options;
	struct kvt_tier tier;
	struct kvt_slabs slabs; /* a pool of RAM_PAGES */
	struct kvt_workers workers;
	struct kvt_jobs jobs;
	struct kvt_job job[RAM_PAGES];
	struct kvt_file *file;
	uint32_t n; /* pages of a turn */
	uint32_t first; /* name of the first page of this turn */
	int floor_fd;
	char floor_path[4096];
	struct io_uring ring;
};

typedef int bench_fn(struct bench *bench);

static int by_size(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;

	return a < b ? -1 : a > b;
}

/* Time a figure and its floor in turns, and print the line. */
static int measure(struct bench *bench, const char *name, const char *floor_is, bench_fn *figure,
		   bench_fn *floor)
{
	double seconds[2][TURNS], rate[2];
	int rc = 0;

	for (uint32_t i = 0; i < 2 * TURNS && rc == 0; i++) {
		int64_t begun_ns = kvt_now_ns();

		rc = (i % 2 ? floor : figure)(bench);
		seconds[i % 2][i / 2] = (double)(kvt_now_ns() - begun_ns) / 1e9;
		bench->first += i % 2 ? bench->n : 0;
	}
	if (rc != 0)
		return rc;
	for (uint32_t i = 0; i < 2; i++) {
		qsort(seconds[i], TURNS, sizeof(*seconds[i]), by_size);
		rate[i] = (double)bench->n * PAGE_BYTES / seconds[i][TURNS / 2] / 1e9;
	}
	printf("{\"name\":\"%s\",\"workers\":%u,\"page_bytes\":%llu,\"pages\":%u,"
	       "\"gb_per_s\":%.2f,\"floor\":\"%s\",\"floor_gb_per_s\":%.2f,\"ratio\":%.2f}\n",
	       name, bench->workers.n, PAGE_BYTES, bench->n, rate[0], floor_is, rate[1],
	       rate[0] / rate[1]);
	fflush(stdout);
	return 0;
}

/* ---- memory */

/* Have all pages copied by the workers. */
static int copy_all(struct bench *bench, enum kvt_job_kind kind, bool wants_crc)
{
	for (uint32_t i = 0; i < bench->n; i++) {
		bench->job[i] = (struct kvt_job){
			.kind = kind, .slabs = &bench->slabs, .page = i,
			.record = kvt_tier_record(&bench->tier, i + 1), .wants_crc = wants_crc,
		};
		kvt_jobs_add(&bench->jobs, &bench->job[i]);
	}
	kvt_jobs_settle(&bench->jobs);
	return 0;
}

static int copy_out(struct bench *bench)
{
	return copy_all(bench, KVT_JOB_OUT, false);
}

static int copy_in(struct bench *bench)
{
	return copy_all(bench, KVT_JOB_IN, false);
}

static int copy_and_check(struct bench *bench)
{
	return copy_all(bench, KVT_JOB_OUT, true);
}

/* The part of the floor's pages that a thread copies. */
struct part {
	pthread_t thread;
	const struct bench *bench;
	uint32_t from, to;
	bool out;
};

static void *copy_part(void *self)
{
	const struct part *part = self;

	for (uint32_t i = part->from; i < part->to; i++) {
		uint8_t *record = kvt_tier_record(&part->bench->tier, i + 1);
		uint8_t *page = part->bench->slabs.bases[0] + i * PAGE_BYTES;

		memcpy(part->out ? record : page, part->out ? page : record, PAGE_BYTES);
	}
	return NULL;
}

static int memcpy_all(const struct bench *bench, bool out)
{
	struct part parts[KVT_WORKERS_MOST];
	uint32_t n = bench->workers.n, begun = 0;
	int rc = 0;

	for (; begun < n && rc == 0; begun += rc == 0) {
		parts[begun] = (struct part){ .bench = bench, .from = bench->n * begun / n,
					      .to = bench->n * (begun + 1) / n, .out = out };
		rc = -pthread_create(&parts[begun].thread, NULL, copy_part, &parts[begun]);
	}
	while (begun > 0)
		pthread_join(parts[--begun].thread, NULL);
	return rc;
}

static int memcpy_out(struct bench *bench)
{
	return memcpy_all(bench, true);
}

static int memcpy_in(struct bench *bench)
{
	return memcpy_all(bench, false);
}

/* Measure with so many workers. */
static int bench_workers(struct bench *bench, uint32_t n)
{
	int rc = kvt_workers_start(&bench->workers, n);

	if (rc != 0)
		return rc;
	rc = measure(bench, "memory_out", "memcpy()", copy_out, memcpy_out);
	if (rc == 0)
		rc = measure(bench, "memory_in", "memcpy()", copy_in, memcpy_in);
	if (rc == 0)
		rc = measure(bench, "memory_out_checked", "memcpy()", copy_and_check, memcpy_out);
	kvt_workers_stop(&bench->workers);
	return rc;
}

static int bench_memory(struct bench *bench, uint32_t n_workers)
{
	uint8_t *pool = kvt_map(RAM_PAGES * PAGE_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1);
	int rc;

	if (!pool)
		return -ENOMEM;
	bench->slabs = (struct kvt_slabs){ .bases = { pool }, .n_slabs = 1, .n_pieces = 1,
					   .record_bytes = PAGE_BYTES,
					   .pieces = { { 0, PAGE_BYTES, PAGE_BYTES } } };
	bench->n = RAM_PAGES;
	/* Pages that look like no others, for disks that compress. */
	for (uint64_t i = 0, word = 1; i < RAM_PAGES * PAGE_BYTES / sizeof(word); i++) {
		word = word * 6364136223846793005ull + 1442695040888963407ull;
		memcpy(pool + i * sizeof(word), &word, sizeof(word));
	}
	for (uint32_t i = 0; i < bench->n; i++)
		kvt_slabs_read(&bench->slabs, i, kvt_tier_record(&bench->tier, i + 1),
			       kvt_tier_crcs(&bench->tier, i + 1));
	bench->jobs = (struct kvt_jobs){ .workers = &bench->workers, .wake = -1 };
	rc = bench_workers(bench, 1);
	for (uint32_t n = 2; n <= n_workers && rc == 0; n *= 2)
		rc = bench_workers(bench, n);
	munmap(pool, RAM_PAGES * PAGE_BYTES);
	return rc;
}

/* ---- the file */

static struct kvt_chain name_of(uint32_t i)
{
	struct kvt_chain page = { { 0 } };

	i *= 2654435761u; /* all values, far apart */
	memcpy(page.digest, &i, sizeof(i));
	return page;
}

static bool take_arrivals(struct bench *bench)
{
	bool any = false;

	while (kvt_tier_arrivals(&bench->tier))
		any = true;
	return any;
}

/* Start what has begun, and wait until a read or a write has ended. */
static int await_file(struct bench *bench)
{
	const uint32_t *in_flight = bench->file->in_flight;
	struct pollfd ended = { bench->tier.below[0].fd, POLLIN, 0 };

	if (!take_arrivals(bench) && in_flight[KVT_FILE_READ] + in_flight[KVT_FILE_WRITE] > 0) {
		if (bench->file->checked.first)
			kvt_jobs_settle(&bench->tier.jobs);
		else
			poll(&ended, 1, -1);
		take_arrivals(bench);
	}
	return bench->file->slots.n_failed ? -EIO : 0;
}

/* Let n new pages come into memory, and as many old ones leave it. */
static int write_file(struct bench *bench)
{
	struct kvt_tier *tier = &bench->tier;
	int rc = 0;

	for (uint32_t i = 0; i < bench->n && rc == 0; i++) {
		struct kvt_chain page = name_of(bench->first + i);
		struct kvt_index *index = &tier->index;
		uint32_t entry;

		while (rc == 0 && !index->first_free && !index->entries[index->oldest].kept)
			if (index->oldest && kvt_file_has_room(bench->file))
				kvt_file_write(bench->file, index->oldest);
			else
				rc = await_file(bench);
		entry = kvt_index_take(index);
		kvt_index_publish(index, entry, &page, 0);
		index->entries[entry].first = 1;
	}
	while (rc == 0 && bench->file->in_flight[KVT_FILE_WRITE] > 0)
		rc = await_file(bench);
	return rc;
}

static int read_file(struct bench *bench)
{
	uint32_t at = 0, ahead = 0;
	int rc = 0;

	while (at < bench->n && rc == 0) {
		struct kvt_chain page = name_of(bench->first + at);
		int64_t entry;

		for (; ahead < bench->n && ahead < at + KVT_FILE_DEPTH_MOST; ahead++) {
			struct kvt_chain next = name_of(bench->first + ahead);

			entry = kvt_tier_bring(&bench->tier, &next, &page);
			if (entry == -EAGAIN)
				break;
			if (entry > 0)
				kvt_tier_unpin(&bench->tier, (uint32_t)entry, true);
		}
		entry = kvt_tier_bring(&bench->tier, &page, &page);
		if (entry > 0)
			kvt_tier_unpin(&bench->tier, (uint32_t)entry, true);
		if (entry > 0)
			at++;
		else
			rc = entry == -ENOENT ? -EIO : await_file(bench);
	}
	return rc;
}

/* Move the bytes of a turn through the second file. */
static int move_floor(struct bench *bench, bool write)
{
	const uint32_t n_bytes = (uint32_t)(KVT_FILE_BLOCK + PAGE_BYTES);
	uint32_t next = 0, ended = 0;
	struct io_uring_cqe *cqe;
	int rc = 0;

	while (ended < bench->n && rc == 0) {
		while (next < bench->n && next - ended < bench->options->depth) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&bench->ring);
			uint8_t *at = bench->tier.ram + next % (RAM_PAGES - 1) * PAGE_BYTES;
			uint64_t offset = ((uint64_t)bench->first + next) * n_bytes;

			if (write)
				io_uring_prep_write(sqe, bench->floor_fd, at, n_bytes, offset);
			else
				io_uring_prep_read(sqe, bench->floor_fd, at, n_bytes, offset);
			io_uring_submit(&bench->ring);
			next++;
		}
		rc = io_uring_wait_cqe(&bench->ring, &cqe);
		if (rc != 0)
			continue;
		rc = cqe->res == (int)n_bytes ? 0 : -EIO;
		io_uring_cqe_seen(&bench->ring, cqe);
		ended++;
	}
	return rc;
}

static int write_floor(struct bench *bench)
{
	return move_floor(bench, true);
}

static int read_floor(struct bench *bench)
{
	return move_floor(bench, false);
}

static int open_floor(struct bench *bench, uint64_t bytes, struct kvt_error *why)
{
	snprintf(bench->floor_path, sizeof(bench->floor_path), "%s.floor", bench->options->path);
	bench->floor_fd = open(bench->floor_path, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC,
			       0600);
	if (bench->floor_fd < 0 || fallocate(bench->floor_fd, 0, 0, (off_t)bytes) != 0 ||
	    io_uring_queue_init(bench->options->depth, &bench->ring, 0) != 0)
		return kvt_store_fail(why, -EINVAL, "cannot make %s of %llu bytes",
				      bench->floor_path, (unsigned long long)bytes);
	return 0;
}

/* Measure the file. All that is written has room, in the second file, too. */
static int bench_file(struct bench *bench, uint32_t n_workers, struct kvt_error *why)
{
	uint64_t each = KVT_FILE_BLOCK + PAGE_BYTES;
	struct kvt_file_options options = *bench->options;
	char floor_is[64];
	int rc;

	bench->n = (uint32_t)(options.bytes / each / (TURNS + 2));
	if (bench->n > FILE_PAGES_MOST)
		bench->n = FILE_PAGES_MOST;
	bench->tier.jobs = (struct kvt_jobs){ .workers = &bench->workers, .wake = -1 };
	rc = kvt_workers_start(&bench->workers, n_workers);
	if (rc == 0)
		rc = kvt_file_open(&bench->file, &bench->tier, &options, why);
	if (rc == 0)
		rc = open_floor(bench, each * bench->n * (TURNS + 1), why);
	if (rc != 0)
		return rc;
	snprintf(floor_is, sizeof(floor_is), "sequential O_DIRECT, %u in flight", options.depth);
	bench->first = 0;
	write_file(bench); /* full memory: from now on each page that comes lets one leave */
	bench->first = bench->n;
	rc = measure(bench, "file_write", floor_is, write_file, write_floor);
	bench->first = 0;
	kvt_index_clear(&bench->tier.index); /* what leaves from now on is in the file */
	if (rc == 0)
		rc = measure(bench, "file_read", floor_is, read_file, read_floor);
	return rc == 0 ? 0 : kvt_store_fail(why, rc, "%s: %s", options.path, strerror(-rc));
}

int kvt_store_bench(const struct kvt_file_options *options, uint32_t n_workers)
{
	static const volatile int at_once = 1;
	static struct bench bench = { .floor_fd = -1, .workers = KVT_WORKERS_INIT };
	struct kvt_error why = { .text = "out of memory" };
	int rc;

	bench.options = options;
	if (options->path && options->bytes < FILE_BYTES_LEAST) {
		fprintf(stderr, "kvtstored: --bench needs --file-bytes of 2G or more\n");
		return KVT_EXIT_USAGE;
	}
	if (options->path && access(options->path, F_OK) == 0) {
		fprintf(stderr, "kvtstored: %s is there: name a file to make for --bench\n",
			options->path);
		return KVT_EXIT_USAGE;
	}
	rc = kvt_tier_init(&bench.tier, RAM_PAGES * PAGE_BYTES, PAGE_BYTES, 0);
	if (rc == 0)
		rc = kvt_tier_keep_crcs(&bench.tier);
	if (rc == 0)
		rc = bench_memory(&bench, n_workers);
	if (rc == 0 && options->path)
		rc = bench_file(&bench, n_workers, &why);
	if (rc != 0)
		fprintf(stderr, "kvtstored: %s\n", why.text);
	kvt_file_close(bench.file, &at_once, 0);
	kvt_workers_stop(&bench.workers);
	if (bench.floor_fd >= 0) {
		close(bench.floor_fd);
		unlink(bench.floor_path);
	}
	if (bench.file)
		unlink(options->path);
	kvt_tier_destroy(&bench.tier);
	return rc == 0 ? KVT_EXIT_OK : KVT_EXIT_PROBLEM;
}
