/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the file of a store begins and ends (file.h). Inputs: a path of the user's, which may name
 * anything, and a file that another store left, in any state. Called by session.c and main.c.
 *
 * Commit point: the head of a start is written before the first slot, so no two starts give a write
 * the same number.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/number.h"
#include "base/progress.h"
#include "shm/clock.h"
#include "shm/size.h"
#include "store/crc32c.h"
#include "store/file_state.h"
#include "store/why.h"

#define HEAD_MAGIC "KVTFILE" /* 8 bytes with its terminator */
#define FORMAT 6u
#define ALLOCATE_BYTES (1ull << 30) /* at a time */
#define LOCK_TRIES 200u             /* 10 ms each */
#define GROUPS_AT_ONCE 16384u       /* that are read until progress is told */
#define START_SHIFT 40u             /* a number is a start's, and one of 2^40 of its writes */

uint64_t kvt_file_blocks(uint64_t bytes)
{
	return (bytes + KVT_FILE_BLOCK - 1) / KVT_FILE_BLOCK * KVT_FILE_BLOCK;
}

/* The size of a file of so many slots. */
static uint64_t bytes_for(const struct kvt_file *file, uint64_t n_slots)
{
	return kvt_file_slot_at(file, (uint32_t)n_slots) + kvt_file_slot_bytes(file);
}

/* Slots that a file of this size has. */
static uint64_t slots_in(const struct kvt_file *file, uint64_t bytes)
{
	uint64_t left = bytes > KVT_FILE_BLOCK ? bytes - KVT_FILE_BLOCK : 0;
	uint64_t n = left / kvt_file_group_bytes(file) * KVT_SLOTS_GROUP;

	left %= kvt_file_group_bytes(file);
	if (left > KVT_FILE_BLOCK)
		n += (left - KVT_FILE_BLOCK) / kvt_file_slot_bytes(file);
	return n < KVT_SLOTS_MAX ? n : KVT_SLOTS_MAX;
}

/* ---- the head */

static uint32_t crc_of(struct kvt_file_head head)
{
	head.crc = 0;
	return kvt_crc32c(0, &head, sizeof(head));
}

static int write_head(struct kvt_file *file)
{
	memcpy(file->head.magic, HEAD_MAGIC, sizeof(file->head.magic));
	file->head.format = FORMAT;
	file->head.crc = crc_of(file->head);
	memset(file->head_block, 0, KVT_FILE_BLOCK);
	memcpy(file->head_block, &file->head, sizeof(file->head));
	if (pwrite(file->fd, file->head_block, KVT_FILE_BLOCK, 0) != KVT_FILE_BLOCK)
		return -errno;
	return fdatasync(file->fd) == 0 ? 0 : -errno;
}

/* Begin an empty file where another version of kvtstored has left one. Its slots go, too: they may
 * be as here, and hold what was dropped. */
static int empty(struct kvt_file *file, struct kvt_error *why)
{
	file->head = (struct kvt_file_head){ .n_slots = 0 };
	if (ftruncate(file->fd, 0) != 0 || fdatasync(file->fd) != 0)
		return kvt_store_fail(why, -EIO, "cannot empty %s: %s", file->path,
				      strerror(errno));
	fprintf(stderr, "kvtstored: %s is of another version of kvtstored: it is emptied\n",
		file->path);
	return 0;
}

/* True if nothing was written to the file: a start that was killed may have allocated it. */
static bool is_blank(const struct kvt_file *file)
{
	return lseek(file->fd, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

/* Read the head into file->head. n_slots 0: there is none, the file is blank, or was of another
 * version. */
static int read_head(struct kvt_file *file, struct kvt_error *why)
{
	static const struct kvt_file_head none;
	ssize_t n = pread(file->fd, file->head_block, KVT_FILE_BLOCK, 0);

	if (n < 0)
		return kvt_store_fail(why, -EIO, "cannot read %s: %s", file->path,
				      strerror(errno));
	file->head = none;
	if (n >= (ssize_t)sizeof(file->head))
		memcpy(&file->head, file->head_block, sizeof(file->head));
	if (n == 0 || (n >= (ssize_t)sizeof(file->head) && is_blank(file)))
		return 0;
	if (memcmp(file->head.magic, HEAD_MAGIC, sizeof(file->head.magic)) != 0)
		return kvt_store_fail(why, -EDOM, "%s is no file of a store: choose another "
				      "path, or remove it", file->path);
	if (file->head.format != FORMAT)
		return empty(file, why);
	if (file->head.crc != crc_of(file->head) ||
	    file->head.n_slots == 0 || file->head.n_slots > KVT_SLOTS_MAX)
		return kvt_store_fail(why, -EIO, "%s is damaged: remove it to begin an empty "
				      "one", file->path);
	if (file->head.record_bytes != file->tier->record_bytes)
		return kvt_store_fail(why, -EINVAL, "%s has pages of %llu bytes, this pool's take "
				      "%llu: name another file for this model, or remove it",
				      file->path, (unsigned long long)file->head.record_bytes,
				      (unsigned long long)file->tier->record_bytes);
	return 0;
}

/* ---- its memory and space */

/* Lock the file. After a kill the kernel holds it until the last write of that store has ended. */
static bool lock(int fd)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	const struct timespec a_while = { .tv_nsec = 10000000 };

	for (uint32_t tries = 0; tries < LOCK_TRIES; tries++) {
		if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
			return true;
		nanosleep(&a_while, NULL);
	}
	return false;
}

/* Open the file for this process alone. *ret_made: it was not there. */
static int open_alone(struct kvt_file *file, bool *ret_made, struct kvt_error *why)
{
	int flags = O_RDWR | O_CLOEXEC | O_DIRECT;
	struct stat there;

	*ret_made = false;
	if (stat(file->path, &there) == 0 && !S_ISREG(there.st_mode))
		return kvt_store_fail(why, -EDOM, "%s is not a regular file: name one on a local "
				      "disk", file->path);
	file->fd = open(file->path, flags);
	if (file->fd < 0 && errno == ENOENT) {
		file->fd = open(file->path, flags | O_CREAT | O_EXCL, 0600);
		/* Without O_DIRECT it is made all the same. */
		*ret_made = file->fd >= 0 || errno == EINVAL;
	}
	if (file->fd < 0)
		return kvt_store_fail(why, errno == ENOENT || errno == ENOTDIR ? -EDOM : -EIO,
				      "cannot open %s: %s", file->path,
				      errno == EINVAL ? "its file system has no O_DIRECT: choose a "
				      "local disk" : strerror(errno));
	if (lock(file->fd))
		return 0;
	*ret_made = false; /* another store was quicker */
	return kvt_store_fail(why, -EIO, "%s is in use by another process: each store has a "
			      "file of its own", file->path);
}

/* Check first: a disk that is full for a moment is full for all. */
static int check_space(const struct kvt_file *file, struct kvt_error *why)
{
	char needed[32], free_text[32];
	struct statvfs space;
	struct stat there;
	uint64_t room;

	if (fstatvfs(file->fd, &space) != 0 || fstat(file->fd, &there) != 0)
		return kvt_store_fail(why, -EIO, "cannot look at %s: %s", file->path,
				      strerror(errno));
	room = (uint64_t)space.f_bavail * space.f_frsize;
	if (file->bytes <= room + (uint64_t)there.st_blocks * 512)
		return 0;
	return kvt_store_fail(why, -EIO, "%s needs %s, and its file system has %s left: make "
			      "--file-bytes smaller", file->path,
			      kvt_size_text(file->bytes, needed, sizeof(needed)),
			      kvt_size_text(room, free_text, sizeof(free_text)));
}

static int allocate(struct kvt_file *file, struct kvt_error *why)
{
	struct kvt_progress_line line;
	uint64_t at, n;
	int rc = 0;

	kvt_progress_begin(&line, false);
	for (at = 0; rc == 0 && at < file->bytes; at += n) {
		n = file->bytes - at < ALLOCATE_BYTES ? file->bytes - at : ALLOCATE_BYTES;
		rc = fallocate(file->fd, 0, (off_t)at, (off_t)n) == 0 ? 0 : -errno;
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: allocating %s, %llu of %llu MiB",
					   file->path, (unsigned long long)(at >> 20),
					   (unsigned long long)(file->bytes >> 20));
	}
	kvt_progress_end(&line);
	if (rc == 0)
		return 0;
	return kvt_store_fail(why, -EIO, "cannot allocate %llu bytes for %s: %s",
			      (unsigned long long)file->bytes, file->path, rc == -EOPNOTSUPP ?
			      "its file system has no fallocate(): choose a local disk" :
			      rc == -EFBIG ? "it is above the largest size of files here: raise "
			      "the limit (LimitFSIZE=, ulimit -f)" :
			      strerror(-rc));
}

/* Use each system call of the ring once: a host may refuse one and allow the other. */
static int make_ring(struct kvt_file *file)
{
	struct io_uring_cqe *cqe;
	int rc = io_uring_queue_init(KVT_FILE_KINDS * file->depth, &file->ring, 0);

	if (rc != 0)
		return rc;
	file->has_ring = true;
	io_uring_prep_nop(io_uring_get_sqe(&file->ring));
	rc = io_uring_submit_and_wait(&file->ring, 1);
	if (rc >= 0)
		rc = io_uring_wait_cqe(&file->ring, &cqe);
	if (rc == 0)
		io_uring_cqe_seen(&file->ring, cqe);
	return rc;
}

static int make_operations(struct kvt_file *file, struct kvt_error *why)
{
	int rc = make_ring(file);

	if (rc != 0)
		return kvt_store_fail(why, -EIO, "a file needs io_uring, which is refused here: "
				      "%s (sysctl kernel.io_uring_disabled, RLIMIT_MEMLOCK, or a "
				      "seccomp profile)", strerror(-rc));
	for (uint32_t i = 0; i < KVT_FILE_KINDS * file->depth; i++) {
		file->ops[i].header = file->headers + i * KVT_FILE_BLOCK;
		file->ops[i].next = file->free_op;
		file->free_op = &file->ops[i];
	}
	return 0;
}

/* ---- what it holds */

/* Read n blocks, `step` bytes from each to the next one, into memory without gaps. What cannot be
 * read is zero. Returns an error of the ring. */
static int read_blocks(struct kvt_file *file, uint64_t at, uint64_t step, uint32_t n, uint8_t *to)
{
	uint32_t most = KVT_FILE_KINDS * file->depth, begun = 0, in_flight = 0;
	struct io_uring_cqe *cqe;
	int rc;

	while (begun < n || in_flight > 0) {
		for (; begun < n && in_flight < most; begun++, in_flight++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&file->ring);

			io_uring_prep_read(sqe, file->fd, to + (size_t)begun * KVT_FILE_BLOCK,
					   KVT_FILE_BLOCK, at + begun * step);
			io_uring_sqe_set_data64(sqe, begun);
		}
		rc = io_uring_submit_and_wait(&file->ring, 1);
		if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
			return rc;
		for (; io_uring_peek_cqe(&file->ring, &cqe) == 0; in_flight--) {
			uint64_t i = io_uring_cqe_get_data64(cqe);

			if (cqe->res != KVT_FILE_BLOCK)
				memset(to + i * KVT_FILE_BLOCK, 0, KVT_FILE_BLOCK);
			io_uring_cqe_seen(&file->ring, cqe);
		}
	}
	return 0;
}

/* Take the names of a group from its headers. */
static int read_headers(struct kvt_file *file, uint32_t group, uint8_t *blocks)
{
	uint32_t first = group * KVT_SLOTS_GROUP + 1, n = file->slots.n - (first - 1);
	int rc;

	n = n < KVT_SLOTS_GROUP ? n : KVT_SLOTS_GROUP;
	rc = read_blocks(file, kvt_file_slot_at(file, first), kvt_file_slot_bytes(file), n, blocks);
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_slot_name *name = &file->slots.names[first - 1 + i];
		struct kvt_file_slot header;

		memcpy(&header, blocks + (size_t)i * KVT_FILE_BLOCK, sizeof(header));
		*name = (struct kvt_slot_name){ .number = 0 };
		if (!kvt_file_slot_ok(file, &header))
			continue;
		name->number = header.number;
		name->time = header.time;
		memcpy(name->key, header.key, sizeof(name->key));
	}
	return rc;
}

/* Read the names of all groups. Returns an error of the ring. */
static int read_names(struct kvt_file *file)
{
	uint64_t step = kvt_file_group_bytes(file);
	uint32_t n = kvt_slots_groups(&file->slots), group, some;
	struct kvt_progress_line line;
	int rc = 0;

	kvt_progress_begin(&line, false);
	for (group = 0; rc == 0 && group < n; group += some) {
		some = n - group < GROUPS_AT_ONCE ? n - group : GROUPS_AT_ONCE;
		rc = read_blocks(file, kvt_file_group_at(file, group), step, some,
				 (uint8_t *)file->slots.names + (size_t)group * KVT_FILE_BLOCK);
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: reading %s, %u of %u blocks of names",
					   file->path, group, n);
	}
	kvt_progress_end(&line);
	return rc;
}

/* Find what the file holds. Names grow younger along the ring, up to its end. A group with older
 * ones than the group before it was written since its names were, or is what comes behind. */
static int find_pages(struct kvt_file *file)
{
	uint32_t n = kvt_slots_groups(&file->slots), last = 0;
	uint8_t *blocks = aligned_alloc(KVT_FILE_BLOCK, KVT_SLOTS_GROUP * KVT_FILE_BLOCK);
	int rc = blocks ? read_names(file) : -ENOMEM;
	uint64_t youngest = 0;

	for (uint32_t group = 0; group < n; group++) {
		kvt_slots_check(&file->slots, group);
		if (kvt_slots_youngest(&file->slots, group) > youngest) {
			youngest = kvt_slots_youngest(&file->slots, group);
			last = group;
		}
	}
	youngest = UINT64_MAX;
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		uint32_t group = (last + i) % n;

		if (kvt_slots_youngest(&file->slots, group) < youngest)
			rc = read_headers(file, group, blocks);
		youngest = kvt_slots_youngest(&file->slots, group);
	}
	free(blocks);
	kvt_slots_enter(&file->slots);
	return rc;
}

/* ---- begin and end */

static void release(struct kvt_file *file)
{
	if (file->has_ring)
		io_uring_queue_exit(&file->ring);
	if (file->fd >= 0)
		close(file->fd);
	kvt_slots_destroy(&file->slots);
	kvt_ghost_destroy(&file->ghost);
	free(file->headers);
	free(file->path);
	free(file);
}

/* Make the file of n slots of what is there, and begin a start on it. */
static int begin(struct kvt_file *file, const struct kvt_file_options *options, uint64_t n_slots,
		 struct kvt_error *why)
{
	int rc;

	file->bytes = bytes_for(file, n_slots);
	if (n_slots == KVT_SLOTS_MAX)
		kvt_store_say_cut("--file-bytes", options->bytes, file->bytes);
	rc = check_space(file, why);
	if (rc != 0)
		return rc;
	if (kvt_slots_init(&file->slots, (uint32_t)n_slots) != 0)
		return kvt_store_fail(why, -ENOMEM, "no memory for %llu pages of %s",
				      (unsigned long long)n_slots, file->path);
	rc = allocate(file, why);
	if (rc == 0)
		rc = make_operations(file, why);
	if (rc != 0)
		return rc;
	if (file->head.first_write)
		file->slots.first = file->head.first_write;
	memcpy(file->slots.cuts, file->head.cuts, sizeof(file->slots.cuts));
	if (file->head.n_slots)
		rc = find_pages(file);
	if (rc != 0)
		return kvt_store_fail(why, -EIO, "cannot read %s: %s", file->path,
				      strerror(-rc));
	file->head.generation++;
	file->head.n_slots = n_slots;
	file->head.record_bytes = file->tier->record_bytes;
	file->slots.next_number = file->head.generation << START_SHIFT;
	file->group = kvt_slots_group(file->slots.next);
	if (ftruncate(file->fd, (off_t)file->bytes) == 0)
		rc = write_head(file);
	else
		rc = -errno;
	return rc == 0 ? 0 : kvt_store_fail(why, -EIO, "cannot write %s: %s", file->path,
					    strerror(-rc));
}

/* Set what needs no file. Without memory, some of it is NULL. */
static struct kvt_file *make_file(struct kvt_tier *tier, const struct kvt_file_options *options)
{
	struct kvt_file *file = calloc(1, sizeof(*file));
	uint64_t headers;

	if (!file)
		return NULL;
	file->fd = -1;
	file->tier = tier;
	file->depth = options->depth;
	file->writes_most = tier->index.n_entries / KVT_FILE_RAM_PAGES;
	if (file->writes_most > file->depth)
		file->writes_most = file->depth;
	file->writer.budget = (struct kvt_budget){
		.bytes = options->write_bytes, .page = KVT_FILE_BLOCK + tier->record_bytes,
	};
	file->path = strdup(options->path);
	headers = KVT_FILE_KINDS * file->depth;
	file->headers = aligned_alloc(KVT_FILE_BLOCK, (headers + 1) * KVT_FILE_BLOCK);
	file->head_block = file->headers + headers * KVT_FILE_BLOCK;
	return file;
}

int kvt_file_open(struct kvt_file **ret_file, struct kvt_tier *tier,
		  const struct kvt_file_options *options, struct kvt_error *why)
{
	struct kvt_file *file = make_file(tier, options);
	uint64_t n_slots = file ? slots_in(file, options->bytes) : 0;
	bool made = false;
	int rc = 0;

	/* With a budget, what comes back goes first. */
	if (!file || !file->path || !file->headers || kvt_tier_keep_crcs(tier) != 0 ||
	    (options->write_bytes && kvt_ghost_init(&file->ghost, n_slots) != 0))
		rc = kvt_store_fail(why, -ENOMEM, "no memory for a file");
	else if (tier->index.n_entries < KVT_FILE_RAM_PAGES || n_slots == 0)
		rc = kvt_store_fail(why, -EDOM, "%s has no room for %u page%s of %llu bytes: "
				    "make it larger", n_slots ? "--ram-bytes" : "--file-bytes",
				    n_slots ? KVT_FILE_RAM_PAGES : 1, n_slots ? "s" : "",
				    (unsigned long long)tier->record_bytes);
	if (!file)
		return rc;
	if (rc == 0)
		rc = open_alone(file, &made, why);
	if (rc == 0)
		rc = read_head(file, why);
	if (rc == 0)
		rc = begin(file, options, n_slots, why);
	if (rc != 0) {
		if (made)
			unlink(options->path);
		release(file);
		return rc;
	}
	tier->below[tier->n_below++] = kvt_writer_below(file);
	*ret_file = file;
	return 0;
}

static bool is_busy(const struct kvt_file *file)
{
	uint32_t n = 0;

	for (uint32_t kind = 0; kind < KVT_FILE_KINDS; kind++)
		n += file->in_flight[kind];
	return n > 0;
}

/* Wait until an operation ends, and take all that have. False: the ring fails, none will. */
static bool drain(struct kvt_file *file)
{
	struct io_uring_cqe *cqe;
	int rc;

	if (kvt_tier_arrivals(file->tier) || !is_busy(file))
		return true;
	if (file->checked.first) { /* the next call takes it */
		kvt_jobs_settle(&file->tier->jobs);
		return true;
	}
	rc = io_uring_wait_cqe(&file->ring, &cqe); /* all that have begun are submitted */
	if (rc != 0 && rc != -EINTR)
		kvt_file_failed(file, "wait for", rc);
	while (rc == 0 && kvt_tier_arrivals(file->tier))
		;
	return rc == 0 || rc == -EINTR;
}

static bool must_end(const struct kvt_file *file, const volatile int *stop)
{
	return (stop && *stop) || kvt_file_is_closed(file) ||
	       (uint64_t)kvt_now_ns() >= file->last_ns;
}

/* Write the path that ends with a page of the memory. */
static void write_path(struct kvt_file *file, uint32_t entry, const volatile int *stop)
{
	uint32_t steps = 1;

	kvt_writer_begin(file, entry);
	while (!must_end(file, stop) && !kvt_writer_go(file, &steps)) {
		if (steps == 0)
			steps = 1;
		else if (!is_busy(file) || !drain(file))
			return;
	}
}

/* Write the paths that end with these pages of the memory, the last one first: it may end early. */
static void write_paths(struct kvt_file *file, const uint32_t *ends, uint32_t n,
			const volatile int *stop)
{
	const struct kvt_index_entry *entries = file->tier->index.entries;
	struct kvt_progress_line line;

	kvt_progress_begin(&line, false);
	for (uint32_t i = n; i-- > 0 && !must_end(file, stop);) {
		uint64_t written;

		do { /* a long path takes some turns */
			written = file->written;
			write_path(file, ends[i], stop);
			while (is_busy(file) && drain(file))
				;
		} while (!entries[ends[i]].kept && file->written > written);
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: writing %s, %u of %u prompt%s",
					   file->path, n - i, n, kvt_plural(n));
	}
	kvt_progress_end(&line);
}

/* True if a path has a page that came back, as far as it is not written. */
static bool came_back(const struct kvt_index *ram, uint32_t end)
{
	uint32_t entry = end;

	while (entry && !ram->entries[entry].kept && !ram->entries[entry].used)
		entry = ram->entries[entry].front;
	return entry && ram->entries[entry].used;
}

/* List the ends of all paths of the memory, the oldest first, and those that came back behind the
 * others. */
static uint32_t list_ends(const struct kvt_index *ram, uint32_t *ret_entries)
{
	uint32_t n = 0;

	for (uint32_t used = 0; used < 2; used++)
		for (uint32_t entry = ram->oldest; entry; entry = ram->entries[entry].younger)
			if (came_back(ram, entry) == used)
				ret_entries[n++] = entry;
	return n;
}

/* List the pages of the memory that the file has not. */
static uint32_t list_unkept(const struct kvt_index *ram, uint32_t *ret_entries)
{
	uint32_t n = 0;

	for (uint32_t entry = 1; entry <= ram->n_entries; entry++)
		if (kvt_index_is_found(ram, entry) && !ram->entries[entry].kept)
			ret_entries[n++] = entry;
	return n;
}

/* Write what the memory holds, what came back and the youngest first, as much as the file has room
 * for, until the time is over. Each write may cost another page of it the slot, which is written
 * again then: once round the ring at most. */
static void write_memory(struct kvt_file *file, const volatile int *stop)
{
	const struct kvt_index *ram = &file->tier->index;
	uint32_t *ends = calloc(ram->n_found + 1ull, sizeof(*ends)), n;
	uint64_t before;

	while (is_busy(file) && drain(file))
		;
	if (!ends)
		return; /* the file has what was written before */
	file->writer.budget.bytes = 0;
	file->writer.closing = true;
	file->last_steps = file->slots.n;
	n = list_ends(ram, ends);
	do {
		before = file->written;
		write_paths(file, ends, n, stop);
		n = list_unkept(ram, ends);
	} while (n > 0 && file->written > before);
	if (n > 0)
		fprintf(stderr, "kvtstored: %u page%s of memory not in %s: %s\n", n,
			kvt_plural(n), file->path,
			kvt_file_is_closed(file) ? "its disk fails" : must_end(file, stop) ?
			"it was to end before that (--stop-seconds)" : "it is full");
	free(ends);
}

/* Write the head of a file in use. False: it is as it was. */
static bool keep_head(struct kvt_file *file)
{
	int rc = write_head(file);

	if (rc != 0)
		kvt_file_failed(file, "write", rc);
	return rc == 0;
}

/* Write what was dropped into the head. After a failure, too: the next start uses the file. */
static void keep_dropped(struct kvt_file *file)
{
	if (!keep_head(file))
		fprintf(stderr, "kvtstored: %s keeps what was dropped, and the next start would "
			"find it: remove the file\n", file->path);
}

/* Make a cache the youngest of the head. Returns its epoch there, `epoch` if it is not. */
static uint64_t note_cache(struct kvt_file *file, const uint64_t instance[2], uint64_t epoch)
{
	struct kvt_file_cache *caches = file->head.caches, found = { .epoch = epoch };
	uint32_t at = 0;

	memcpy(found.instance, instance, sizeof(found.instance));
	while (at < KVT_FILE_CACHES - 1 &&
	       memcmp(caches[at].instance, instance, sizeof(found.instance)) != 0)
		at++;
	if (memcmp(caches[at].instance, instance, sizeof(found.instance)) == 0)
		found = caches[at];
	memmove(caches + 1, caches, at * sizeof(*caches));
	caches[0] = found;
	return found.epoch;
}

uint64_t kvt_file_bind(struct kvt_file *file, const uint64_t instance[2], uint64_t epoch)
{
	struct kvt_file_head before;

	if (!file)
		return epoch;
	before = file->head;
	epoch = note_cache(file, instance, epoch);
	if (memcmp(&before, &file->head, sizeof(before)) != 0)
		keep_head(file);
	return epoch;
}

void kvt_file_clear(struct kvt_file *file, const uint64_t instance[2], uint64_t epoch)
{
	if (!file)
		return;
	kvt_slots_clear(&file->slots);
	file->head.first_write = file->slots.first;
	note_cache(file, instance, epoch);
	file->head.caches[0].epoch = epoch;
	keep_dropped(file);
}

void kvt_file_scan_open(struct kvt_file *file, struct kvt_scan *scan)
{
	if (!file)
		return;
	kvt_tier_lock(file->tier);
	kvt_scan_open(&file->slots.scans, scan, file->slots.n);
	kvt_tier_unlock(file->tier);
}

bool kvt_file_scan(struct kvt_file *file, struct kvt_scan *scan, uint32_t since)
{
	bool done;

	if (!file)
		return true;
	kvt_tier_lock(file->tier);
	done = kvt_slots_scan(&file->slots, scan, since);
	kvt_tier_unlock(file->tier);
	return done;
}

void kvt_file_forget(struct kvt_file *file, struct kvt_scan *scan, uint32_t since)
{
	struct kvt_slots *slots = file ? &file->slots : NULL;
	uint32_t slot = 0;

	if (!file)
		return;
	kvt_slots_cut_since(slots, since);
	memcpy(file->head.cuts, slots->cuts, sizeof(slots->cuts));
	keep_dropped(file);
	while ((slot = kvt_scan_next(scan, slot)) != 0)
		if (kvt_slots_has(slots, slot) &&
		    !kvt_slots_counts(slots, slots->names[slot - 1].number,
				      kvt_slots_time(slots, slot)))
			kvt_file_forget_slot(file, slot);
	kvt_scan_close(&slots->scans, scan);
}

void kvt_file_close(struct kvt_file *file, const volatile int *stop, uint32_t most_s)
{
	if (!file)
		return;
	file->last_ns = (uint64_t)kvt_now_ns() + most_s * 1000000000ull;
	write_memory(file, stop);
	if (!kvt_file_is_closed(file)) {
		kvt_file_write_names(file); /* else the next start reads headers instead */
		while (is_busy(file) && drain(file))
			;
		fdatasync(file->fd);
	}
	release(file);
}
