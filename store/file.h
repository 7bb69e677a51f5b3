/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_FILE_H
#define KVT_STORE_FILE_H

/**
 * @file file.h
 * The file tier: pages that leave the memory, in slots of a preallocated file. It is read and
 * written past the page cache (O_DIRECT) by io_uring.
 *
 *     block 0      struct kvt_file_head
 *     groups       each a block of names (slots.h), then KVT_SLOTS_GROUP slots, the last one fewer
 *     a slot       a block with struct kvt_file_slot, then the record: one write
 *
 * Slots are written in turn. The one that comes next loses its page, unless that came back or is
 * being read. A group's names are written once its last slot is, and at an orderly stop. A start
 * reads them, and the headers of slots where they are not the last word. So it is as quick after a
 * crash, and nothing moves when the size changes.
 *
 * A slot holds a page if its header's checksum is right, and those of the record are as it says. A
 * load looks at both, so a torn write, a flipped bit or a truncated file costs pages, and no page
 * is wrong. A wrong name costs its page.
 *
 * An operation that fails costs its slot, which is not used until the next start. More than ten in
 * a minute close the file for a minute, which doubles to an hour. Reads that take 250 ms in the
 * mean close it for reads, for 1 to 30 s: computing is quicker then.
 *
 * A page of the memory is written from where it lies, before it leaves (writer.h). If too many
 * writes are in flight, it is dropped and counted.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_client.h"
#include "store/slots.h"
#include "store/tier.h"
#include "store/times.h"

#define KVT_FILE_BLOCK 4096u
#define KVT_FILE_DEPTH_MOST 64u
#define KVT_FILE_RAM_PAGES 8u /* that the memory must have at least */

#define KVT_FILE_CACHES 16u

/* A daemon's cache that pages of the file are from. */
struct kvt_file_cache {
	uint64_t instance[2]; /* 0: none */
	uint64_t epoch; /* of that cache, when the pages still counted */
};

struct kvt_file_head {
	char magic[8];
	uint32_t format;
	uint32_t crc; /* crc32c of all fields, with 0 here */
	uint64_t record_bytes;
	uint64_t n_slots;
	uint64_t generation;  /* starts of stores on this file */
	uint64_t first_write; /* what was written before was dropped */
	struct kvt_slots_cut cuts[KVT_SLOTS_CUTS];
	struct kvt_file_cache caches[KVT_FILE_CACHES]; /* the last ones, the youngest first */
};

struct kvt_file_slot {
	char magic[8];
	uint8_t key[KVT_CHAIN_KEY_BYTES];
	uint64_t record_bytes;
	uint64_t number; /* of this write */
	uint32_t record_crc[4]; /* crc32c of each quarter of the record */
	uint32_t crc; /* crc32c of all fields, with 0 here */
	uint32_t time; /* as in struct kvt_index_entry */
};

struct kvt_file_options {
	const char *path; /* NULL: no file */
	uint64_t bytes;
	uint32_t depth; /* reads in flight, and as many writes */
	uint64_t write_bytes; /* a second, at most; 0: no limit */
};

struct kvt_file;

struct kvt_file_counts {
	uint64_t bytes, room_pages, pages; /* now */
	uint64_t written, dropped; /* pages; `dropped`: not written in time, or not at all */
	uint64_t budget_bytes; /* a second, 0: no limit */
	uint64_t unpaid, unpaid_used; /* pages that left for want of it; of these, used ones */
	uint64_t read, bad; /* pages; `bad`: not what was written */
	struct kvt_store_time read_time;
	uint64_t bad_slots; /* whose device failed */
	bool closed; /* now: it failed often, or is slow */
};

/** Round up to whole blocks. */
uint64_t kvt_file_blocks(uint64_t bytes);
/** Make or continue the file, as a tier below one that is empty and has records of whole blocks.
 * Errors: `why` says what to do. */
int kvt_file_open(struct kvt_file **ret_file, struct kvt_tier *tier,
		  const struct kvt_file_options *options, struct kvt_error *why);
/** Write what the memory holds, for so many seconds at most, and the names, then close. `*stop`:
 * end early. NULL: nothing is done. */
void kvt_file_close(struct kvt_file *file, const volatile int *stop, uint32_t most_s);
/** Note that pages count for this cache, too, from now on. Returns its epoch when they last did: if
 * it is not `epoch`, there was a RESET that no store saw. NULL: nothing is done. */
uint64_t kvt_file_bind(struct kvt_file *file, const uint64_t instance[2], uint64_t epoch);
/** Forget all pages, also those that a start would find: what follows is of `epoch` of this cache.
 * NULL: nothing is done. */
void kvt_file_clear(struct kvt_file *file, const uint64_t instance[2], uint64_t epoch);
/** Open a scan for kvt_file_forget(). NULL: nothing is done, here and there. */
void kvt_file_scan_open(struct kvt_file *file, struct kvt_scan *scan);
/** Look at a part of the pages. Returns true if all were looked at. */
bool kvt_file_scan(struct kvt_file *file, struct kvt_scan *scan, uint32_t since);
/** Forget, for all starts, the pages that were copied since a time: the file does not know which
 * pages are behind others. Those that memory still has are written again. Closes the scan, which is
 * done. With the lock of the memory. */
void kvt_file_forget(struct kvt_file *file, struct kvt_scan *scan, uint32_t since);
/** NULL: all 0. */
struct kvt_file_counts kvt_file_count(const struct kvt_file *file);

#endif
