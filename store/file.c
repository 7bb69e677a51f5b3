/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file tier at work (file.h). Inputs: pages that leave the memory, and reads of loads. Called
 * by tier.c through struct kvt_below; file_open.c makes and ends it.
 *
 * Invariants: an operation in flight owns a record of the memory and a slot. The record of a write
 * is pinned, its slot has no page; of a read it is the reverse. Writes are ended in the order in
 * which they began, so a page is found after the one in front of it, and a group's names are
 * written after its slots. The rings have room for all operations. The checksums of a write are
 * those of the memory (tier.h), of a read a job computes them.
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

uint64_t kvt_file_slot_bytes(const struct kvt_file *file)
{
	return KVT_FILE_BLOCK + file->tier->record_bytes;
}

uint64_t kvt_file_group_bytes(const struct kvt_file *file)
{
	return KVT_FILE_BLOCK + KVT_SLOTS_GROUP * kvt_file_slot_bytes(file);
}

uint64_t kvt_file_group_at(const struct kvt_file *file, uint32_t group)
{
	return KVT_FILE_BLOCK + group * kvt_file_group_bytes(file);
}

uint64_t kvt_file_slot_at(const struct kvt_file *file, uint32_t slot)
{
	return kvt_file_group_at(file, kvt_slots_group(slot)) + KVT_FILE_BLOCK +
	       (slot - 1) % KVT_SLOTS_GROUP * kvt_file_slot_bytes(file);
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
	       header->crc == crc_of(*header) &&
	       kvt_slots_counts(&file->slots, header->number, header->time);
}

static void write_header(struct kvt_file *file, const struct kvt_file_op *op)
{
	struct kvt_file_slot header = {
		.record_bytes = file->tier->record_bytes,
		.number = file->slots.next_number++,
		.time = file->tier->index.entries[op->entry].time,
	};

	memcpy(header.magic, KVT_FILE_SLOT_MAGIC, sizeof(header.magic));
	memcpy(header.key, op->page.digest, sizeof(header.key));
	memcpy(header.record_crc, kvt_tier_crcs(file->tier, op->entry), sizeof(header.record_crc));
	header.crc = crc_of(header);
	memset(op->header, 0, KVT_FILE_BLOCK);
	memcpy(op->header, &header, sizeof(header));
}

static bool sealed(const struct kvt_file *file, const struct kvt_file_op *op)
{
	const struct kvt_file_slot *header = (const struct kvt_file_slot *)op->header;

	return kvt_file_slot_ok(file, header) &&
	       memcmp(header->key, op->page.digest, sizeof(header->key)) == 0 &&
	       memcmp(header->record_crc, op->check.crc, sizeof(op->check.crc)) == 0;
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

/* Take an operation. NULL: as many of this kind are in flight as may be. */
static struct kvt_file_op *take_op(struct kvt_file *file, enum kvt_file_kind kind)
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

static void free_op(struct kvt_file *file, struct kvt_file_op *op)
{
	file->in_flight[op->kind]--;
	op->busy = false;
	op->next = file->free_op;
	file->free_op = op;
}

/* Start an operation: on its slot, or on the names of its slot's group. */
static void submit(struct kvt_file *file, struct kvt_file_op *op)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&file->ring);
	uint64_t slot_at = kvt_file_slot_at(file, op->slot);
	uint64_t group_at = kvt_file_group_at(file, kvt_slots_group(op->slot));

	KVT_ASSERT(sqe);
	op->begun_ns = (uint64_t)kvt_now_ns();
	op->parts[0] = (struct iovec){ op->header, KVT_FILE_BLOCK };
	if (op->kind != KVT_FILE_NAMES)
		op->parts[1] = (struct iovec){ kvt_tier_record(file->tier, op->entry),
					       file->tier->record_bytes };
	if (op->kind == KVT_FILE_READ)
		io_uring_prep_readv(sqe, file->fd, op->parts, 2, slot_at);
	else if (op->kind == KVT_FILE_WRITE)
		io_uring_prep_writev(sqe, file->fd, op->parts, 2, slot_at);
	else
		io_uring_prep_writev(sqe, file->fd, op->parts, 1, group_at);
	io_uring_sqe_set_data(sqe, op);
	/* What the kernel does not take now stays in the ring, for done(). */
	io_uring_submit(&file->ring);
}

/* Return an operation that ended, with the result of its system call. NULL: there is none. */
static struct kvt_file_op *done(struct kvt_file *file)
{
	struct io_uring_cqe *cqe;
	struct kvt_file_op *op;

	if (io_uring_sq_ready(&file->ring))
		io_uring_submit(&file->ring);
	if (io_uring_peek_cqe(&file->ring, &cqe) != 0)
		return NULL;
	op = io_uring_cqe_get_data(cqe);
	op->result = cqe->res;
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

	kvt_store_time_add(&file->read_time, took_ns);
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

static bool is_whole(const struct kvt_file *file, const struct kvt_file_op *op)
{
	return op->result > 0 && (uint64_t)op->result == kvt_file_slot_bytes(file);
}

/* ---- writes */

/* Operations that have a slot. */
static uint32_t n_in_use(const struct kvt_file *file)
{
	return file->in_flight[KVT_FILE_READ] + file->in_flight[KVT_FILE_WRITE];
}

static bool is_in_use(const struct kvt_file *file, uint32_t slot)
{
	for (uint32_t i = 0; i < KVT_FILE_KINDS * file->depth; i++)
		if (file->ops[i].busy && file->ops[i].kind != KVT_FILE_NAMES &&
		    file->ops[i].slot == slot)
			return true;
	return false;
}

bool kvt_file_has_room(const struct kvt_file *file)
{
	return file->in_flight[KVT_FILE_WRITE] < file->writes_most &&
	       (!file->writer.closing || file->last_steps > 0) &&
	       file->slots.n - file->slots.n_failed > n_in_use(file);
}

bool kvt_file_is_next(const struct kvt_file *file, uint32_t entry)
{
	const struct kvt_index_entry *e = &file->tier->index.entries[entry];

	return e->first || (e->front && file->tier->index.entries[e->front].kept);
}

void kvt_file_forget_slot(struct kvt_file *file, uint32_t slot)
{
	struct kvt_chain page = kvt_slots_page(&file->slots, slot);
	uint32_t entry = kvt_slots_has(&file->slots, slot) ?
			 kvt_index_find(&file->tier->index, &page) : 0;

	if (entry)
		file->tier->index.entries[entry].kept = 0;
	kvt_slots_forget(&file->slots, slot);
}

/* Take the next slot that no operation has: there is one. */
static uint32_t take_slot(struct kvt_file *file)
{
	uint32_t slot;

	do {
		slot = kvt_slots_step(&file->slots);
		file->last_steps -= file->last_steps > 0;
	} while (!slot || is_in_use(file, slot));
	kvt_file_forget_slot(file, slot);
	return slot;
}

void kvt_file_write(struct kvt_file *file, uint32_t entry)
{
	struct kvt_index *ram = &file->tier->index;
	uint32_t slot = take_slot(file);
	struct kvt_file_op *op = take_op(file, KVT_FILE_WRITE);
	uint32_t at = file->first_write + file->in_flight[KVT_FILE_WRITE] - 1;

	KVT_ASSERT(op && !ram->entries[entry].kept);
	op->page = kvt_index_page(ram, entry);
	op->slot = slot;
	op->entry = entry;
	op->ended = false;
	file->writes[at % KVT_FILE_DEPTH_MOST] = op;
	write_header(file, op);
	kvt_index_pin(ram, entry);
	ram->entries[entry].kept = 1;
	file->tier->n_writing++;
	submit(file, op);
}

static bool is_old(const struct kvt_file *file, uint32_t slot)
{
	return kvt_tier_is_old(file->tier, kvt_slots_time(&file->slots, slot));
}

/* True if a page that came was here before, and what is in front of it came back, too: by the ghost
 * alone one of 100 pages did, and so most long paths. */
static bool came_back(const struct kvt_file *file, const struct kvt_index_entry *e,
		      const struct kvt_chain *page)
{
	return (e->first || file->tier->index.entries[e->front].used) &&
	       (e->kept || kvt_ghost_has(&file->ghost, page));
}

static void entered(void *self, uint32_t entry)
{
	struct kvt_file *file = self;
	struct kvt_index_entry *e = &file->tier->index.entries[entry];
	struct kvt_chain page = kvt_index_page(&file->tier->index, entry);
	uint32_t slot = kvt_slots_find(&file->slots, &page);

	/* Without a slot it is as it was: it may be being written. */
	if (slot && is_old(file, slot)) {
		kvt_slots_forget(&file->slots, slot);
		e->kept = 0;
	} else if (slot) {
		kvt_slots_use(&file->slots, slot);
		e->kept = 1;
	}
	e->used |= came_back(file, e, &page);
}

void kvt_file_write_names(struct kvt_file *file)
{
	struct kvt_file_op *op = take_op(file, KVT_FILE_NAMES);

	if (!op)
		return;
	op->slot = file->group * KVT_SLOTS_GROUP + 1;
	kvt_slots_seal(&file->slots, file->group, (struct kvt_slot_name *)op->header);
	submit(file, op);
}

/* Take the oldest write, which has ended. */
static void end_write(struct kvt_file *file, struct kvt_file_op *op)
{
	const struct kvt_file_slot *header = (const struct kvt_file_slot *)op->header;
	struct kvt_index_entry *e = &file->tier->index.entries[op->entry];
	bool found = kvt_index_put_back(&file->tier->index, op->entry);
	bool good = is_whole(file, op) && kvt_file_slot_ok(file, header);

	if (kvt_slots_group(op->slot) != file->group)
		kvt_file_write_names(file);
	file->group = kvt_slots_group(op->slot);
	if (good)
		kvt_slots_publish(&file->slots, op->slot, &op->page, header->number, header->time);
	if (op->result < 0) {
		kvt_slots_fail(&file->slots, op->slot);
		kvt_file_failed(file, "write", op->result);
	}
	if (found)
		e->kept = good;
	file->written += good;
	file->dropped += !good;
	file->tier->n_writing--;
	file->first_write = (file->first_write + 1) % KVT_FILE_DEPTH_MOST;
	free_op(file, op);
}

/* Note that a write has ended, and take those that may be. */
static void ended(struct kvt_file *file, struct kvt_file_op *op)
{
	if (op->kind == KVT_FILE_NAMES) {
		if (op->result < 0)
			kvt_file_failed(file, "write", op->result);
		free_op(file, op);
		return;
	}
	op->ended = true;
	while (file->in_flight[KVT_FILE_WRITE] && file->writes[file->first_write]->ended)
		end_write(file, file->writes[file->first_write]);
}

/* ---- reads */

/* Return the slot that a page is read from, 0: none. */
static uint32_t find(const struct kvt_file *file, const struct kvt_chain *page)
{
	uint32_t slot = is_readable(file) ? kvt_slots_find(&file->slots, page) : 0;

	return slot && !is_old(file, slot) ? slot : 0;
}

static bool has(void *self, const struct kvt_chain *page)
{
	return find(self, page) != 0;
}

static int begin_read(void *self, const struct kvt_chain *page, uint32_t entry)
{
	struct kvt_file *file = self;
	uint32_t slot = find(file, page);
	struct kvt_file_op *op = slot ? take_op(file, KVT_FILE_READ) : NULL;

	if (!op)
		return slot ? -EAGAIN : -ENOENT;
	op->slot = slot;
	op->entry = entry;
	op->page = *page;
	submit(file, op);
	return 0;
}

/* Check what was read. A slot that is not as it was written loses its page. */
static bool end_read(struct kvt_file *file, const struct kvt_file_op *op)
{
	const struct kvt_file_slot *header = (const struct kvt_file_slot *)op->header;
	bool found = kvt_slots_find(&file->slots, &op->page) == op->slot; /* it was not dropped */
	bool good = found && is_whole(file, op) && sealed(file, op);

	if (op->result < 0)
		kvt_file_failed(file, "read", op->result);
	else
		note_read(file, (uint64_t)kvt_now_ns() - op->begun_ns);
	if (good) {
		file->tier->index.entries[op->entry].time = header->time;
		kvt_tier_note_crc(file->tier, op->entry, &op->check);
	} else if (found) {
		kvt_file_forget_slot(file, op->slot);
	}
	if (op->result < 0)
		kvt_slots_fail(&file->slots, op->slot);
	file->read += good;
	file->bad += !good;
	return good;
}

bool kvt_file_turn(struct kvt_file *file)
{
	struct kvt_file_op *op;
	bool wrote = false;

	for (uint32_t n = 0; n < 2 * file->depth && (op = done(file)); n++) {
		if (op->kind == KVT_FILE_READ) {
			kvt_tier_check(file->tier, op->entry, is_whole(file, op), &op->check);
			push(&file->checked, op);
		} else {
			ended(file, op);
			wrote = true;
		}
	}
	return wrote;
}

static bool arrived(void *self, uint32_t *ret_entry, bool *ret_good)
{
	struct kvt_file *file = self;
	struct kvt_file_op *op = file->checked.first;

	if (!op || !kvt_job_has_ended(&op->check))
		return false;
	pop(&file->checked);
	*ret_entry = op->entry;
	*ret_good = end_read(file, op);
	free_op(file, op);
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
		.room_pages = file->slots.n,
		.pages = file->slots.n_found,
		.written = file->written,
		.dropped = file->dropped,
		.budget_bytes = file->writer.budget.bytes,
		.unpaid = file->unpaid,
		.unpaid_used = file->unpaid_used,
		.read = file->read,
		.bad = file->bad,
		.read_time = file->read_time,
		.bad_slots = file->slots.n_failed,
		.closed = !is_readable(file),
	};
}
