/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file tier at work (file.h). Inputs: pages that leave the memory, and reads of loads. Called
 * by tier.c through struct kvt_below; file_open.c makes and ends it.
 *
 * Invariants: an operation in flight owns a record of the memory and a slot. The record of a write
 * is pinned, its slot is private; of a read it is the reverse. Writes are ended in the order in
 * which they began, so a page is found after the one in front of it. The rings have room for all
 * operations. Checksums of records are computed without the lock of the memory, in turn().
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/keep/backoff.h"
#include "shm/assert.h"
#include "shm/clock.h"
#include "store/crc32c.h"
#include "store/file_state.h"

#define SECOND_NS 1000000000ull
#define MINUTE_NS (60 * SECOND_NS)
#define ERRORS_MOST 10u /* in a minute: one more closes the file */
#define CLOSED_MOST_NS (60 * MINUTE_NS)
#define SLOW_NS (SECOND_NS / 4) /* of a read */
#define SLOW_MOST_NS (30 * SECOND_NS)
#define MEAN_READS 8u

/* ---- slots */

static uint64_t offset_of(const struct kvt_file *file, uint32_t slot)
{
	return KVT_FILE_BLOCK + (slot - 1) * (KVT_FILE_BLOCK + file->tier->record_bytes);
}

static uint32_t crc_of(struct kvt_file_slot header)
{
	header.crc = 0;
	return kvt_crc32c(0, &header, sizeof(header));
}

bool kvt_file_slot_ok(const struct kvt_file *file, const struct kvt_file_slot *header)
{
	return memcmp(header->magic, KVT_FILE_SLOT_MAGIC, sizeof(header->magic)) == 0 &&
	       header->record_bytes == file->tier->record_bytes &&
	       header->crc == crc_of(*header) && header->generation >= file->head.first_write;
}

static struct kvt_chain page_at(const struct kvt_index *index, uint32_t entry)
{
	struct kvt_chain page = { { 0 } };

	memcpy(page.digest, index->entries[entry].key, KVT_CHAIN_KEY_BYTES);
	return page;
}

/* The slot that a page can be read from. 0: none. */
static uint32_t good_slot(const struct kvt_file *file, const struct kvt_chain *page)
{
	uint32_t slot = kvt_index_find(&file->slots, page);

	return file->slots.entries[slot].bad ? 0 : slot;
}

/* The slot of a page that is written, or will be. 0: none. */
static uint32_t slot_of(const struct kvt_file *file, const struct kvt_chain *page)
{
	uint32_t slot = kvt_index_find(&file->slots, page);

	for (uint32_t i = 0; i < file->in_flight[KVT_FILE_WRITE] && !slot; i++)
		if (memcmp(file->writes[(file->first_write + i) % KVT_FILE_DEPTH_MOST]->page.digest,
			   page->digest, KVT_CHAIN_KEY_BYTES) == 0)
			slot = file->writes[(file->first_write + i) % KVT_FILE_DEPTH_MOST]->slot;
	return slot;
}

/* Write the header of a page, but for its checksums. Its number is that of now: a drop before they
 * are there counts. */
static void begin_header(struct kvt_file *file, const struct kvt_file_op *op)
{
	struct kvt_file_slot header = {
		.record_bytes = file->tier->record_bytes,
		.generation = file->next_write++,
		.time = file->tier->index.entries[op->entry].time,
		.front = op->first ? 0 : slot_of(file, &op->front),
	};

	memcpy(header.magic, KVT_FILE_SLOT_MAGIC, sizeof(header.magic));
	memcpy(header.key, op->page.digest, sizeof(header.key));
	memset(op->header, 0, KVT_FILE_BLOCK);
	memcpy(op->header, &header, sizeof(header));
}

static void seal(const struct kvt_file_op *op)
{
	struct kvt_file_slot *header = (struct kvt_file_slot *)op->header;

	memcpy(header->record_crc, op->crc, sizeof(op->crc));
	header->crc = crc_of(*header);
}

static bool sealed(const struct kvt_file *file, const struct kvt_file_op *op)
{
	const struct kvt_file_slot *header = (const struct kvt_file_slot *)op->header;

	return kvt_file_slot_ok(file, header) &&
	       memcmp(header->key, op->page.digest, sizeof(header->key)) == 0 &&
	       memcmp(header->record_crc, op->crc, sizeof(op->crc)) == 0;
}

static uint32_t time_of(const struct kvt_file_op *op)
{
	return ((const struct kvt_file_slot *)op->header)->time;
}

/* ---- operations */

static void push(struct kvt_file_queue *queue, struct kvt_file_op *op)
{
	op->next = NULL;
	if (queue->first)
		queue->last->next = op;
	else
		queue->first = op;
	queue->last = op;
}

static struct kvt_file_op *pop(struct kvt_file_queue *queue)
{
	struct kvt_file_op *op = queue->first;

	if (op)
		queue->first = op->next;
	return op;
}

struct kvt_file_op *kvt_file_op_take(struct kvt_file *file, enum kvt_file_kind kind)
{
	struct kvt_file_op *op = file->free_op;

	if (!op || file->in_flight[kind] == file->depth)
		return NULL;
	file->free_op = op->next;
	file->in_flight[kind]++;
	op->busy = true;
	op->kind = kind;
	return op;
}

void kvt_file_op_free(struct kvt_file *file, struct kvt_file_op *op)
{
	file->in_flight[op->kind]--;
	op->busy = false;
	op->next = file->free_op;
	file->free_op = op;
}

void kvt_file_submit(struct kvt_file *file, struct kvt_file_op *op, bool whole)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&file->ring);
	uint64_t offset = offset_of(file, op->slot);

	KVT_ASSERT(sqe);
	op->begun_ns = (uint64_t)kvt_now_ns();
	op->parts[0] = (struct iovec){ op->header, KVT_FILE_BLOCK };
	if (whole)
		op->parts[1] = (struct iovec){ kvt_tier_record(file->tier, op->entry),
					       file->tier->record_bytes };
	if (op->kind == KVT_FILE_READ)
		io_uring_prep_readv(sqe, file->fd, op->parts, whole ? 2 : 1, offset);
	else
		io_uring_prep_writev(sqe, file->fd, op->parts, 2, offset);
	io_uring_sqe_set_data(sqe, op);
	/* What the kernel does not take now stays in the ring, for kvt_file_done(). */
	io_uring_submit(&file->ring);
}

struct kvt_file_op *kvt_file_done(struct kvt_file *file, int *ret_result)
{
	struct io_uring_cqe *cqe;
	struct kvt_file_op *op;

	if (io_uring_sq_ready(&file->ring))
		io_uring_submit(&file->ring);
	if (io_uring_peek_cqe(&file->ring, &cqe) != 0)
		return NULL;
	op = io_uring_cqe_get_data(cqe);
	*ret_result = cqe->res;
	io_uring_cqe_seen(&file->ring, cqe);
	return op;
}

/* ---- trouble */

bool kvt_file_is_closed(const struct kvt_file *file)
{
	uint64_t until_ns = file->trouble.closed_until_ns;

	return until_ns && (uint64_t)kvt_now_ns() < until_ns;
}

static bool is_readable(const struct kvt_file *file)
{
	uint64_t until_ns = file->trouble.slow_until_ns;

	return !kvt_file_is_closed(file) && !(until_ns && (uint64_t)kvt_now_ns() < until_ns);
}

void kvt_file_failed(struct kvt_file *file, const char *what, int error)
{
	struct kvt_file_trouble *trouble = &file->trouble;
	uint64_t now = (uint64_t)kvt_now_ns(), closed_ns;

	if (kvt_file_is_closed(file))
		return; /* it was in flight then */
	if (now - trouble->minute_ns > 2 * CLOSED_MOST_NS)
		trouble->closures = 0;
	if (now - trouble->minute_ns > MINUTE_NS) {
		trouble->minute_ns = now;
		trouble->errors = 0;
	}
	if (trouble->errors++ == 0)
		fprintf(stderr, "kvtstored: cannot %s %s: %s; the place of a page that fails is "
			"not used until the next start\n", what, file->path, strerror(-error));
	if (trouble->errors <= ERRORS_MOST)
		return;
	closed_ns = kvt_backoff_ns(++trouble->closures, MINUTE_NS, CLOSED_MOST_NS);
	trouble->closed_until_ns = now + closed_ns;
	trouble->errors = 0;
	fprintf(stderr, "kvtstored: %s fails again and again: it is not used for %llu s\n",
		file->path, (unsigned long long)(closed_ns / SECOND_NS));
}

/* Note how long a read took. */
static void note_read(struct kvt_file *file, uint64_t took_ns)
{
	struct kvt_file_trouble *trouble = &file->trouble;
	uint64_t closed_ns;

	if (!is_readable(file))
		return; /* it was in flight then */
	trouble->mean_ns += took_ns / MEAN_READS - trouble->mean_ns / MEAN_READS;
	if (++trouble->reads == MEAN_READS)
		trouble->slow_closures = 0;
	if (trouble->mean_ns <= SLOW_NS)
		return;
	closed_ns = kvt_backoff_ns(++trouble->slow_closures, SECOND_NS, SLOW_MOST_NS);
	trouble->slow_until_ns = (uint64_t)kvt_now_ns() + closed_ns;
	trouble->mean_ns = 0;
	trouble->reads = 0;
	if (trouble->slow_closures == 1)
		fprintf(stderr, "kvtstored: reads of %s take more than %llu ms: it is not read "
			"for seconds\n", file->path, (unsigned long long)(SLOW_NS / 1000000));
}

static bool is_whole(const struct kvt_file *file, int result)
{
	return result > 0 && (uint64_t)result == KVT_FILE_BLOCK + file->tier->record_bytes;
}

/* ---- writes */

bool kvt_file_has_room(const struct kvt_file *file)
{
	return file->free_op && file->in_flight[KVT_FILE_WRITE] < file->writes_most &&
	       (file->slots.first_free || file->slots.oldest);
}

bool kvt_file_is_next(const struct kvt_file *file, uint32_t entry)
{
	const struct kvt_index_entry *e = &file->tier->index.entries[entry];

	return e->first || (e->front && file->tier->index.entries[e->front].kept);
}

/* Note that a page of the memory is not in the file, if it is in memory. */
static void unkeep(struct kvt_file *file, const struct kvt_chain *page)
{
	uint32_t entry = kvt_index_find(&file->tier->index, page);

	if (entry)
		file->tier->index.entries[entry].kept = 0;
}

/* Take a slot for a page: its own, if that is bad, for others may be behind it. */
static uint32_t take_slot(struct kvt_file *file, const struct kvt_chain *page, bool *ret_again)
{
	bool leaves = !file->slots.first_free;
	uint32_t slot = kvt_index_find(&file->slots, page);
	struct kvt_chain other;

	*ret_again = slot != 0;
	if (slot) {
		kvt_index_pin(&file->slots, slot);
		return slot;
	}
	slot = kvt_index_take(&file->slots);
	other = page_at(&file->slots, slot);
	if (leaves)
		unkeep(file, &other);
	return slot;
}

void kvt_file_write(struct kvt_file *file, uint32_t entry)
{
	struct kvt_index *ram = &file->tier->index;
	struct kvt_file_op *op = kvt_file_op_take(file, KVT_FILE_WRITE);
	uint32_t at = file->first_write + file->in_flight[KVT_FILE_WRITE] - 1;

	KVT_ASSERT(op && !ram->entries[entry].kept);
	op->page = page_at(ram, entry);
	op->slot = take_slot(file, &op->page, &op->again);
	op->entry = entry;
	op->ended = false;
	op->first = ram->entries[entry].first;
	if (!op->first)
		op->front = page_at(ram, ram->entries[entry].front);
	file->writes[at % KVT_FILE_DEPTH_MOST] = op;
	begin_header(file, op);
	kvt_index_pin(ram, entry);
	ram->entries[entry].kept = 1;
	file->tier->n_writing++;
	push(&file->begun, op);
}

static void entered(void *self, uint32_t entry)
{
	struct kvt_file *file = self;
	struct kvt_index_entry *e = &file->tier->index.entries[entry];
	struct kvt_chain page = page_at(&file->tier->index, entry);

	e->kept = good_slot(file, &page) != 0;
	e->used |= kvt_ghost_has(&file->ghost, &page);
}

/* Take the oldest write, which has ended. What its page is behind was written before it. */
static void end_write(struct kvt_file *file, struct kvt_file_op *op)
{
	struct kvt_index_entry *e = &file->tier->index.entries[op->entry];
	uint32_t front = op->first ? 0 : kvt_index_find(&file->slots, &op->front);
	bool found = kvt_index_put_back(&file->tier->index, op->entry), good;

	good = is_whole(file, op->result) && (op->first || front) &&
	       kvt_file_slot_ok(file, (const struct kvt_file_slot *)op->header);
	if (op->result < 0)
		kvt_file_failed(file, "write", op->result);
	if (op->again)
		good &= kvt_index_unpin(&file->slots, op->slot);
	else if (good)
		kvt_index_publish(&file->slots, op->slot, &op->page, front);
	if (good) {
		file->slots.entries[op->slot].bad = 0;
		file->slots.entries[op->slot].time = time_of(op);
	} else if (!op->again && op->result < 0) {
		file->bad_slots++; /* it stays private */
	} else if (!op->again) {
		kvt_index_drop(&file->slots, op->slot);
	}
	if (found)
		e->kept = good;
	file->written += good;
	file->dropped += !good;
	file->tier->n_writing--;
	file->first_write = (file->first_write + 1) % KVT_FILE_DEPTH_MOST;
	kvt_file_op_free(file, op);
}

/* Note that a write has ended, and take those that may be. */
static void ended(struct kvt_file *file, struct kvt_file_op *op, int result)
{
	op->result = result;
	op->ended = true;
	while (file->in_flight[KVT_FILE_WRITE] && file->writes[file->first_write]->ended)
		end_write(file, file->writes[file->first_write]);
}

/* ---- reads */

static bool has(void *self, const struct kvt_chain *page)
{
	struct kvt_file *file = self;

	return is_readable(file) && good_slot(file, page);
}

static int begin_read(void *self, const struct kvt_chain *page, uint32_t entry)
{
	struct kvt_file *file = self;
	uint32_t slot = is_readable(file) ? good_slot(file, page) : 0;
	struct kvt_file_op *op = slot ? kvt_file_op_take(file, KVT_FILE_READ) : NULL;

	if (!op)
		return slot ? -EAGAIN : -ENOENT;
	op->slot = slot;
	op->entry = entry;
	op->page = *page;
	kvt_index_pin(&file->slots, slot);
	file->tier->index.entries[entry].time = file->slots.entries[slot].time;
	kvt_file_submit(file, op, true);
	return 0;
}

/* Give up a slot that is not as it was written. Where others are behind it, it is written again
 * with its page. */
static void spoil(struct kvt_file *file, const struct kvt_file_op *op)
{
	struct kvt_index_entry *slot = &file->slots.entries[op->slot];

	unkeep(file, &op->page);
	slot->bad = 1;
	file->bad_slots += op->result < 0;
	if (slot->pins > 0)
		return;
	kvt_index_drop(&file->slots, op->slot);
	if (op->result < 0) { /* not used until the next start */
		uint32_t taken = kvt_index_take(&file->slots);

		KVT_ASSERT(taken == op->slot); /* the last one that became free */
	}
}

/* Take the slot of a read back. */
static bool end_slot(struct kvt_file *file, const struct kvt_file_op *op)
{
	bool found = kvt_index_unpin(&file->slots, op->slot);
	bool good = found && is_whole(file, op->result) && sealed(file, op);

	if (!good && found)
		spoil(file, op);
	if (op->result < 0)
		kvt_file_failed(file, "read", op->result);
	else
		note_read(file, (uint64_t)kvt_now_ns() - op->begun_ns);
	file->read += good;
	file->bad += !good;
	return good;
}

/* Return an operation whose checksums are due: a write that has begun, or a read that has ended.
 * *ret_wrote becomes true if a write has ended. */
static struct kvt_file_op *next_to_check(struct kvt_file *file, bool *ret_wrote)
{
	struct kvt_file_op *op;
	int result;

	kvt_tier_lock(file->tier);
	op = pop(&file->begun);
	while (!op && (op = kvt_file_done(file, &result)) != NULL) {
		op->result = result;
		if (op->kind == KVT_FILE_READ)
			break;
		ended(file, op, result);
		*ret_wrote = true;
		op = NULL;
	}
	kvt_tier_unlock(file->tier);
	return op;
}

bool kvt_file_turn(struct kvt_file *file)
{
	struct kvt_file_op *op;
	bool wrote = false;

	for (uint32_t n = 0; n < 2 * file->depth && (op = next_to_check(file, &wrote)); n++) {
		if (op->kind == KVT_FILE_WRITE || is_whole(file, op->result))
			kvt_crc32c_quarters(kvt_tier_record(file->tier, op->entry),
					    file->tier->record_bytes, op->crc);
		kvt_tier_lock(file->tier);
		if (op->kind == KVT_FILE_WRITE) {
			seal(op);
			kvt_file_submit(file, op, true);
		} else {
			push(&file->ended, op);
		}
		kvt_tier_unlock(file->tier);
	}
	return wrote;
}

static bool arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	struct kvt_file *file = self;
	struct kvt_file_op *op = pop(&file->ended);

	if (!op)
		return false;
	*ret_entry = op->entry;
	*ret_good = end_slot(file, op);
	kvt_file_op_free(file, op);
	return true;
}

struct kvt_below kvt_file_below(struct kvt_file *file)
{
	return (struct kvt_below){ .self = file, .fd = file->ring.ring_fd, .has = has,
				   .read = begin_read, .arrived = arrived,
				   .entered = entered };
}

struct kvt_file_counts kvt_file_count(const struct kvt_file *file)
{
	if (!file)
		return (struct kvt_file_counts){ .bytes = 0 };
	return (struct kvt_file_counts){
		.bytes = file->bytes,
		.room_pages = file->slots.n_entries,
		.pages = file->slots.n_found,
		.written = file->written,
		.dropped = file->dropped,
		.budget_bytes = file->writer.budget_bytes,
		.unpaid = file->unpaid,
		.unpaid_used = file->unpaid_used,
		.read = file->read,
		.bad = file->bad,
		.bad_slots = file->bad_slots,
		.closed = !is_readable(file),
	};
}
