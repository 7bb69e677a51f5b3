/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the file of a store begins and ends (file.h). Inputs: a path of the user's, which may name
 * anything, and a file that another store left, in any state. Called by session.c and main.c.
 *
 * Commit points: the head of a start is written before the first slot, so a checkpoint of before
 * counts no more. The head that names a new checkpoint is written after it.
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

#include "store/crc32c.h"
#include "store/file_state.h"
#include "store/why.h"
#include "tools/progress.h"
#include "tools/util.h"

#define HEAD_MAGIC "KVTFILE" /* 8 bytes with its terminator */
#define FORMAT 3u
#define ALLOCATE_BYTES (1ull << 30) /* at a time */
#define LOCK_TRIES 200u             /* 10 ms each */

struct checkpoint_page {
	uint8_t key[KVT_CHAIN_KEY_BYTES];
	uint32_t slot;
	uint32_t front; /* slot of the page in front, 0: none */
	uint32_t time;  /* as in struct kvt_index_entry */
};

uint64_t kvt_file_blocks(uint64_t bytes)
{
	return (bytes + KVT_FILE_BLOCK - 1) / KVT_FILE_BLOCK * KVT_FILE_BLOCK;
}

/* ---- places in the file */

static uint64_t checkpoint_at(uint64_t n_slots, uint64_t record_bytes)
{
	return KVT_FILE_BLOCK + n_slots * (KVT_FILE_BLOCK + record_bytes);
}

static uint64_t bytes_for(uint64_t n_slots, uint64_t record_bytes)
{
	return checkpoint_at(n_slots, record_bytes) +
	       kvt_file_blocks(n_slots * sizeof(struct checkpoint_page));
}

static uint64_t slots_in(uint64_t bytes, uint64_t record_bytes)
{
	uint64_t each = KVT_FILE_BLOCK + record_bytes + sizeof(struct checkpoint_page);
	uint64_t n = bytes > 2 * KVT_FILE_BLOCK ? (bytes - 2 * KVT_FILE_BLOCK) / each : 0;

	return n < KVT_INDEX_MAX ? n : KVT_INDEX_MAX;
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
		return kvt_store_fail(why, -EINVAL, "cannot empty %s: %s", file->path,
				      strerror(errno));
	fprintf(stderr, "kvtstored: %s is of another version of kvtstored: it is emptied\n",
		file->path);
	return 0;
}

/* Read the head into file->head. n_slots 0: there is none, the file is empty, all zero, or was of
 * another version. */
static int read_head(struct kvt_file *file, struct kvt_error *why)
{
	static const struct kvt_file_head none;
	ssize_t n = pread(file->fd, file->head_block, KVT_FILE_BLOCK, 0);

	if (n < 0)
		return kvt_store_fail(why, -EINVAL, "cannot read %s: %s", file->path,
				      strerror(errno));
	file->head = none;
	if (n > 0 && n < (ssize_t)sizeof(file->head))
		return kvt_store_fail(why, -EDOM, "%s is no file of a store: choose another "
				      "path, or remove it", file->path);
	if (n > 0)
		memcpy(&file->head, file->head_block, sizeof(file->head));
	if (memcmp(&file->head, &none, sizeof(none)) == 0)
		return 0;
	if (memcmp(file->head.magic, HEAD_MAGIC, sizeof(file->head.magic)) != 0)
		return kvt_store_fail(why, -EDOM, "%s is no file of a store: choose another "
				      "path, or remove it", file->path);
	if (file->head.format != FORMAT)
		return empty(file, why);
	if (file->head.crc != crc_of(file->head) ||
	    file->head.n_slots == 0 || file->head.n_slots > KVT_INDEX_MAX)
		return kvt_store_fail(why, -EINVAL, "%s is damaged: remove it to begin an empty "
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
		return kvt_store_fail(why, -EINVAL, "cannot open %s: %s", file->path,
				      errno == EINVAL ? "its file system has no O_DIRECT: choose a "
				      "local disk" : strerror(errno));
	if (lock(file->fd))
		return 0;
	*ret_made = false; /* another store was quicker */
	return kvt_store_fail(why, -EINVAL, "%s is in use by another process: each store has a "
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
		return kvt_store_fail(why, -EINVAL, "cannot look at %s: %s", file->path,
				      strerror(errno));
	room = (uint64_t)space.f_bavail * space.f_frsize;
	if (file->bytes <= room + (uint64_t)there.st_blocks * 512)
		return 0;
	return kvt_store_fail(why, -EINVAL, "%s needs %s, and its file system has %s left: make "
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
	return kvt_store_fail(why, -EINVAL, "cannot allocate %llu bytes for %s: %s",
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
	int rc = io_uring_queue_init(2 * file->depth, &file->ring, 0);

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
		return kvt_store_fail(why, -EINVAL, "a file needs io_uring, which is refused here: "
				      "%s (sysctl kernel.io_uring_disabled, RLIMIT_MEMLOCK, or a "
				      "seccomp profile)", strerror(-rc));
	for (uint32_t i = 0; i < 2 * file->depth; i++) {
		file->ops[i].header = file->headers + i * KVT_FILE_BLOCK;
		file->ops[i].next = file->free_op;
		file->free_op = &file->ops[i];
	}
	return 0;
}

/* ---- what it holds */

struct scan {
	uint64_t *generations; /* of each slot's page; 0: it has none */
	uint32_t *fronts;      /* of each slot: its header's `front` */
	uint32_t *order;       /* slots, the oldest page first */
	uint32_t n;
};

static int by_generation(const void *one, const void *other, void *generations)
{
	const uint64_t *all = generations;
	uint64_t a = all[*(const uint32_t *)one], b = all[*(const uint32_t *)other];

	return a < b ? -1 : a > b;
}

static void take_header(struct kvt_file *file, struct scan *scan, const struct kvt_file_op *op)
{
	const struct kvt_file_slot *header = (const struct kvt_file_slot *)op->header;

	if (!kvt_file_slot_ok(file, header))
		return;
	scan->generations[op->slot] = header->generation;
	scan->fronts[op->slot] = header->front;
	scan->order[scan->n++] = op->slot;
	memcpy(file->slots.entries[op->slot].key, header->key, sizeof(header->key));
	file->slots.entries[op->slot].time = header->time;
}

static void read_headers(struct kvt_file *file, struct scan *scan, uint32_t n_slots)
{
	uint32_t next = 1, *reading = &file->in_flight[KVT_FILE_READ];
	struct kvt_progress_line line;
	struct io_uring_cqe *cqe;
	struct kvt_file_op *op;
	int result;

	kvt_progress_begin(&line, false);
	while (next <= n_slots || *reading > 0) {
		while (next <= n_slots && (op = kvt_file_op_take(file, KVT_FILE_READ)) != NULL) {
			op->slot = next++;
			kvt_file_submit(file, op, false);
		}
		io_uring_wait_cqe(&file->ring, &cqe);
		while ((op = kvt_file_done(file, &result)) != NULL) {
			if (result == KVT_FILE_BLOCK)
				take_header(file, scan, op);
			kvt_file_op_free(file, op);
		}
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: reading %s, %u of %u headers",
					   file->path, next - 1, n_slots);
	}
	kvt_progress_end(&line);
}

static struct kvt_chain name_of(const struct kvt_file *file, uint32_t slot)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest, file->slots.entries[slot].key, KVT_CHAIN_KEY_BYTES);
	return page;
}

/* Let the page of a private slot be found as the youngest, if the one in front of it is. Of two
 * slots with one page the younger stays, unless there are pages behind the older. */
static void publish(struct kvt_file *file, const struct scan *scan, uint32_t slot)
{
	struct kvt_chain page = name_of(file, slot), name;
	uint32_t older = kvt_index_find(&file->slots, &page), at = scan->fronts[slot], front = 0;

	/* A slot that was written later has another page now. */
	if (at && at <= file->slots.n_entries && scan->generations[at] &&
	    scan->generations[at] < scan->generations[slot]) {
		name = name_of(file, at);
		front = kvt_index_find(&file->slots, &name);
	}
	if ((at && !front) || (older && file->slots.entries[older].pins))
		return;
	if (older)
		kvt_index_drop(&file->slots, older);
	kvt_index_publish(&file->slots, slot, &page, front);
}

/* Find pages by the headers of their slots. */
static int find_by_headers(struct kvt_file *file, uint32_t n_slots)
{
	struct scan scan = {
		.generations = calloc(n_slots + 1ull, sizeof(uint64_t)),
		.fronts = calloc(n_slots + 1ull, sizeof(uint32_t)),
		.order = calloc(n_slots + 1ull, sizeof(uint32_t)),
	};
	int rc = scan.generations && scan.fronts && scan.order ? 0 : -ENOMEM;

	if (rc == 0) {
		read_headers(file, &scan, n_slots);
		qsort_r(scan.order, scan.n, sizeof(*scan.order), by_generation, scan.generations);
	}
	for (uint32_t i = 0; i < scan.n; i++) {
		publish(file, &scan, scan.order[i]);
		file->next_write = scan.generations[scan.order[i]] + 1;
	}
	free(scan.generations);
	free(scan.fronts);
	free(scan.order);
	return rc;
}

static bool has_page(const struct kvt_file *file, uint32_t slot)
{
	return slot && slot <= file->slots.n_entries && kvt_index_is_found(&file->slots, slot);
}

/* Find a page by its entry of the checkpoint, which is damaged if it makes no sense. */
static void take_entry(struct kvt_file *file, const struct checkpoint_page *entry)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest, entry->key, KVT_CHAIN_KEY_BYTES);
	if (entry->slot == 0 || entry->slot > file->slots.n_entries ||
	    file->slots.entries[entry->slot].state != KVT_INDEX_PRIVATE ||
	    kvt_index_find(&file->slots, &page))
		return;
	kvt_index_publish(&file->slots, entry->slot, &page, 0);
	file->slots.entries[entry->slot].time = entry->time;
}

/* Find pages by the checkpoint. False: it is not of the last start, or damaged. */
static bool find_by_checkpoint(struct kvt_file *file)
{
	const struct kvt_file_head *head = &file->head;
	uint64_t bytes = kvt_file_blocks(head->checkpoint_pages * sizeof(struct checkpoint_page));
	uint64_t at = checkpoint_at(head->n_slots, head->record_bytes);
	struct checkpoint_page *pages;
	bool good;

	if (head->checkpoint_generation != head->generation || head->checkpoint_pages == 0 ||
	    head->checkpoint_pages > head->n_slots)
		return false;
	pages = aligned_alloc(KVT_FILE_BLOCK, bytes);
	good = pages && pread(file->fd, pages, bytes, (off_t)at) == (ssize_t)bytes &&
	       kvt_crc32c(0, pages, head->checkpoint_pages * sizeof(*pages)) ==
		       head->checkpoint_crc;
	for (uint64_t i = 0; good && i < head->checkpoint_pages; i++)
		take_entry(file, &pages[i]);
	for (uint64_t i = 0; good && i < head->checkpoint_pages; i++)
		if (has_page(file, pages[i].slot) && has_page(file, pages[i].front))
			kvt_index_join(&file->slots, pages[i].slot, pages[i].front);
	if (good)
		file->next_write = head->next_write;
	free(pages);
	return good;
}

/* Find what the file holds. Slots without a page become free. */
static int find_pages(struct kvt_file *file)
{
	uint64_t n = file->head.n_slots;
	int rc = 0;

	while (kvt_index_take(&file->slots))
		;
	file->next_write = file->head.first_write ? file->head.first_write : 1;
	if (n > file->slots.n_entries)
		n = file->slots.n_entries;
	if (n && !find_by_checkpoint(file))
		rc = find_by_headers(file, (uint32_t)n);
	for (uint32_t slot = file->slots.n_entries; slot > 0; slot--)
		if (file->slots.entries[slot].state == KVT_INDEX_PRIVATE)
			kvt_index_drop(&file->slots, slot);
	return rc;
}

/* ---- begin and end */

static void release(struct kvt_file *file)
{
	if (file->has_ring)
		io_uring_queue_exit(&file->ring);
	if (file->fd >= 0)
		close(file->fd);
	kvt_index_destroy(&file->slots);
	kvt_ghost_destroy(&file->ghost);
	free(file->headers);
	free(file->path);
	free(file);
}

/* Make the file of n slots of what is there, and begin a start on it. */
static int begin(struct kvt_file *file, uint64_t n_slots, struct kvt_error *why)
{
	int rc;

	file->bytes = bytes_for(n_slots, file->tier->record_bytes);
	rc = check_space(file, why);
	if (rc != 0)
		return rc;
	if (kvt_index_init(&file->slots, (uint32_t)n_slots) != 0)
		return kvt_store_fail(why, -ENOMEM, "no memory for %llu pages of %s",
				      (unsigned long long)n_slots, file->path);
	rc = allocate(file, why);
	if (rc == 0)
		rc = make_operations(file, why);
	if (rc == 0 && find_pages(file) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory to read %s", file->path);
	if (rc != 0)
		return rc;
	file->head.generation++;
	file->head.n_slots = n_slots;
	file->head.record_bytes = file->tier->record_bytes;
	if (ftruncate(file->fd, (off_t)file->bytes) == 0)
		rc = write_head(file);
	else
		rc = -errno;
	return rc == 0 ? 0 : kvt_store_fail(why, -EINVAL, "cannot write %s: %s", file->path,
					    strerror(-rc));
}

int kvt_file_open(struct kvt_file **ret_file, struct kvt_tier *tier,
		  const struct kvt_file_options *options, struct kvt_error *why)
{
	uint64_t n_slots = slots_in(options->bytes, tier->record_bytes);
	struct kvt_file *file = calloc(1, sizeof(*file));
	bool made = false;
	int rc = 0;

	if (tier->index.n_entries < KVT_FILE_RAM_PAGES || n_slots == 0) {
		free(file);
		return kvt_store_fail(why, -EDOM, "%s has no room for %u pages of %llu bytes: "
				      "make it larger", n_slots ? "--ram-bytes" : "--file-bytes",
				      n_slots ? KVT_FILE_RAM_PAGES : 1,
				      (unsigned long long)tier->record_bytes);
	}
	if (file) {
		file->fd = -1;
		file->tier = tier;
		file->depth = options->depth;
		file->writes_most = tier->index.n_entries / KVT_FILE_RAM_PAGES;
		if (file->writes_most > file->depth)
			file->writes_most = file->depth;
		file->writer.budget_bytes = options->write_bytes;
		file->path = strdup(options->path);
		file->headers = aligned_alloc(KVT_FILE_BLOCK,
					      (2ull * file->depth + 1) * KVT_FILE_BLOCK);
		file->head_block = file->headers + 2ull * file->depth * KVT_FILE_BLOCK;
	}
	/* With a budget, what comes back goes first. */
	if (!file || !file->path || !file->headers ||
	    (options->write_bytes && kvt_ghost_init(&file->ghost, n_slots) != 0))
		rc = kvt_store_fail(why, -ENOMEM, "no memory for a file");
	if (rc == 0)
		rc = open_alone(file, &made, why);
	if (rc == 0)
		rc = read_head(file, why);
	if (rc == 0)
		rc = begin(file, n_slots, why);
	if (rc != 0) {
		if (made)
			unlink(options->path);
		if (file)
			release(file);
		return rc;
	}
	tier->below[tier->n_below++] = kvt_writer_below(file);
	*ret_file = file;
	return 0;
}

static bool is_busy(const struct kvt_file *file)
{
	return file->in_flight[KVT_FILE_READ] + file->in_flight[KVT_FILE_WRITE] > 0;
}

/* Wait until an operation ends, and take all that have. False: the ring fails, none will. */
static bool drain(struct kvt_file *file)
{
	struct io_uring_cqe *cqe;
	int rc;

	if (kvt_tier_arrivals(file->tier) || !is_busy(file))
		return true;
	rc = io_uring_wait_cqe(&file->ring, &cqe); /* all that have begun are submitted */
	if (rc != 0 && rc != -EINTR)
		kvt_file_failed(file, "wait for", rc);
	while (rc == 0 && kvt_tier_arrivals(file->tier))
		;
	return rc == 0 || rc == -EINTR;
}

/* Write the path that ends with a page of the memory. */
static void write_path(struct kvt_file *file, uint32_t entry, const volatile int *stop)
{
	uint32_t steps = 1;

	kvt_writer_begin(file, entry);
	while (!(stop && *stop) && !kvt_writer_go(file, &steps)) {
		if (steps == 0)
			steps = 1;
		else if (!is_busy(file) || !drain(file))
			return;
	}
}

/* Write these paths of the memory, the youngest first: it may end early. */
static void write_paths(struct kvt_file *file, const uint32_t *ends, uint32_t n, uint64_t most,
			const volatile int *stop)
{
	const struct kvt_index_entry *entries = file->tier->index.entries;
	uint64_t before = file->written;
	struct kvt_progress_line line;

	kvt_progress_begin(&line, false);
	for (uint32_t i = n; i-- > 0 && !(stop && *stop) && !kvt_file_is_closed(file);) {
		uint64_t written;

		do { /* a long path takes some turns */
			written = file->written;
			write_path(file, ends[i], stop);
			while (is_busy(file) && drain(file))
				;
		} while (!entries[ends[i]].kept && file->written > written);
		if (file->written - before >= most)
			break;
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: writing %s, %u of %u prompts",
					   file->path, n - i, n);
	}
	kvt_progress_end(&line);
}

/* Make the pages that the memory has the youngest of the file, in the same order. */
static void touch_slots(struct kvt_file *file, const uint32_t *ends, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_chain page = { { 0 } };
		uint32_t slot;

		memcpy(page.digest, file->tier->index.entries[ends[i]].key, KVT_CHAIN_KEY_BYTES);
		slot = kvt_index_find(&file->slots, &page);
		if (slot)
			kvt_index_touch(&file->slots, slot);
	}
}

/* Write what the memory holds, as much as the file has room for. */
static void write_memory(struct kvt_file *file, const volatile int *stop)
{
	const struct kvt_index *ram = &file->tier->index;
	uint32_t *ends = calloc(ram->n_found + 1ull, sizeof(*ends)), n = 0;
	uint64_t n_kept = 0;

	while (is_busy(file) && drain(file))
		;
	if (!ends)
		return; /* the file has what was written before */
	file->writer.budget_bytes = 0;
	file->writer.closing = true;
	for (uint32_t entry = ram->oldest; entry; entry = ram->entries[entry].younger)
		ends[n++] = entry;
	for (uint32_t entry = 1; entry <= ram->n_entries; entry++)
		n_kept += kvt_index_is_found(ram, entry) && ram->entries[entry].kept;
	touch_slots(file, ends, n);
	if (n_kept < file->slots.n_entries)
		write_paths(file, ends, n, file->slots.n_entries - n_kept, stop);
	touch_slots(file, ends, n);
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
	kvt_index_clear(&file->slots);
	file->head.first_write = file->next_write;
	note_cache(file, instance, epoch);
	file->head.caches[0].epoch = epoch;
	/* Also after a failure: the next start uses the file again. */
	if (!keep_head(file))
		fprintf(stderr, "kvtstored: %s keeps what was dropped, and the next start would "
			"find it: remove the file\n", file->path);
}

static void add_entry(const struct kvt_file *file, uint32_t slot, struct checkpoint_page *page)
{
	const struct kvt_index_entry *e = &file->slots.entries[slot];

	*page = (struct checkpoint_page){ .slot = slot, .front = e->front, .time = e->time };
	memcpy(page->key, e->key, sizeof(page->key));
}

/* The order of pages with others behind them is lost: they are as old as those. */
static int write_checkpoint(struct kvt_file *file)
{
	const struct kvt_index *slots = &file->slots;
	uint64_t n = slots->n_found, i = 0;
	uint64_t bytes = kvt_file_blocks(n * sizeof(struct checkpoint_page));
	uint64_t at = checkpoint_at(file->head.n_slots, file->head.record_bytes);
	struct checkpoint_page *pages = n ? aligned_alloc(KVT_FILE_BLOCK, bytes) : NULL;
	int rc;

	if (!pages)
		return n ? -ENOMEM : 0;
	memset(pages, 0, bytes);
	for (uint32_t slot = 1; slot <= slots->n_entries; slot++)
		if (kvt_index_is_found(slots, slot) && slots->entries[slot].pins)
			add_entry(file, slot, &pages[i++]);
	for (uint32_t slot = slots->oldest; slot; slot = slots->entries[slot].younger)
		add_entry(file, slot, &pages[i++]);
	file->head.checkpoint_generation = file->head.generation;
	file->head.checkpoint_pages = n;
	file->head.checkpoint_crc = kvt_crc32c(0, pages, n * sizeof(*pages));
	file->head.next_write = file->next_write;
	rc = pwrite(file->fd, pages, bytes, (off_t)at) == (ssize_t)bytes &&
	     fdatasync(file->fd) == 0 ? write_head(file) : -errno;
	free(pages);
	return rc;
}

void kvt_file_close(struct kvt_file *file, const volatile int *stop)
{
	if (!file)
		return;
	write_memory(file, stop);
	if (!kvt_file_is_closed(file))
		write_checkpoint(file); /* without it the next start reads all headers */
	release(file);
}
