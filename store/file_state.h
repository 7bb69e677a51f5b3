/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_FILE_STATE_H
#define KVT_STORE_FILE_STATE_H

/** @file file_state.h: state of the file tier, for file.c, file_open.c, and tests. */

#include <liburing.h>
#include <sys/uio.h>

#include "store/file.h"
#include "store/ghost.h"
#include "store/slots.h"
#include "store/writer.h"

#define KVT_FILE_SLOT_MAGIC "KVTSLOT" /* 8 bytes with its terminator */

enum kvt_file_kind {
	KVT_FILE_READ,
	KVT_FILE_WRITE,
	KVT_FILE_NAMES, /* a write of a group's */
	KVT_FILE_KINDS,
};

struct kvt_file_op {
	struct kvt_file_op *next; /* if it is free or queued */
	bool busy;
	enum kvt_file_kind kind;
	struct kvt_chain page;
	bool ended; /* a write, while one in front of it has not */
	uint32_t slot;
	uint32_t entry; /* of the memory */
	uint64_t begun_ns;
	int result; /* once it has ended */
	struct kvt_job check; /* of what was read */
	uint8_t *header; /* a block, or the names */
	struct iovec parts[2];
};

struct kvt_file_queue {
	struct kvt_file_op *first, *last;
};

/* Errors and slow reads, each of which closes the file for a while, which doubles. */
struct kvt_file_trouble {
	uint64_t minute_ns;       /* begin of the minute that errors are counted in */
	uint32_t errors, closures;
	uint64_t closed_until_ns; /* 0: open */
	uint64_t mean_ns;         /* of a read, over about eight */
	uint32_t reads, slow_closures; /* reads since the last of these */
	uint64_t slow_until_ns;   /* closed for reads */
};

struct kvt_file {
	struct kvt_tier *tier;
	struct io_uring ring;
	bool has_ring;
	int fd;
	char *path;
	uint64_t bytes;
	struct kvt_slots slots;
	uint32_t group; /* of the last write that ended: its names are not written */
	struct kvt_file_head head; /* as in the file */
	struct kvt_writer writer;
	struct kvt_ghost ghost;
	struct kvt_file_trouble trouble;
	uint32_t depth; /* of each kind */
	uint32_t in_flight[KVT_FILE_KINDS];
	uint32_t writes_most; /* of them: each pins a page of the memory */
	uint32_t last_steps;  /* of the ring, that an orderly stop may still go */
	uint64_t last_ns;     /* when it ends */
	struct kvt_file_op *writes[KVT_FILE_DEPTH_MOST]; /* in flight, a ring, in their order */
	uint32_t first_write;
	struct kvt_file_op *free_op;
	struct kvt_file_queue checked; /* reads that have ended: their checksums are computed */
	struct kvt_file_op ops[KVT_FILE_KINDS * KVT_FILE_DEPTH_MOST];
	uint8_t *headers; /* a block for each operation, then */
	uint8_t *head_block;
	uint64_t written, dropped, unpaid, unpaid_used, read, bad;
	struct kvt_store_time read_time;
};

/* ---- file.c */

/** Bytes of a slot with its header. */
uint64_t kvt_file_slot_bytes(const struct kvt_file *file);
/** Bytes of a whole group. */
uint64_t kvt_file_group_bytes(const struct kvt_file *file);
/** Where the names of a group are, and a slot. */
uint64_t kvt_file_group_at(const struct kvt_file *file, uint32_t group);
uint64_t kvt_file_slot_at(const struct kvt_file *file, uint32_t slot);
/** Check the header of a slot by itself. */
bool kvt_file_slot_ok(const struct kvt_file *file, const struct kvt_file_slot *header);
/** Note that the disk failed. Many failures in a minute close the file. */
void kvt_file_failed(struct kvt_file *file, const char *what, int error);
/** Return true while the file is closed after failures. */
bool kvt_file_is_closed(const struct kvt_file *file);
/** Return true if one more page can be written now. */
bool kvt_file_has_room(const struct kvt_file *file);
/** Return true if a page of the memory could be found in the file: what is in front of it is there,
 * or will be. */
bool kvt_file_is_next(const struct kvt_file *file, uint32_t entry);
/** Forget the page of a slot, also that the memory has it here. */
void kvt_file_forget_slot(struct kvt_file *file, uint32_t slot);
/** Begin to write a page of the memory that is next, where there is room. */
void kvt_file_write(struct kvt_file *file, uint32_t entry);
/** Begin to write the names of the group that the last write was in. If too many are being written,
 * a start reads the group's headers. */
void kvt_file_write_names(struct kvt_file *file);
/** Take what has ended, and have what was read checked. With the lock of the memory. Returns true
 * if a write has ended, so there may be room for another. */
bool kvt_file_turn(struct kvt_file *file);
/** The tier, without turn() and leave(): those are the writer's. */
struct kvt_below kvt_file_below(struct kvt_file *file);

#endif
