/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_OPLOG_H
#define KVT_OPLOG_H

/**
 * @file operations.h
 * The operation log: every effect of the core in a file, so that any run can be replayed and
 * checked later (`kvtlab verify FILE`).
 *
 *     header   magic "KVTOPLOG", version, limits of the core, layout fingerprint
 *     record   u32 bytes of the body, u32 check of the body, body
 *     body     numbers as varints (differences where they repeat), entry and completion raw, keys
 *              as u32, lists of pages as runs
 *
 * Keys are by far the largest part. Those that the tree knew before the operation are left out.
 * The reader takes them from the model that it replays into, and checks them by two independent
 * 64-bit hashes of all keys. A file that ends within a record (a crash, a full disk) is good up to
 * there. The file holds every client's keys: mode 0600.
 *
 * A successor appends to its predecessor's file. A head without a body tells the reader that
 * differences restart from zero. Records of an effect that was rolled back are cut off first. Their
 * place is in the log's tail, a few words in memory that outlives the daemon.
 *
 * Not thread-safe; one log has one writer. The writer buffers KVT_OPLOG_BUFFER bytes, the reader
 * holds one record.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/record.h"

#define KVT_OPLOG_VERSION 7u
#define KVT_OPLOG_BUFFER (1u << 20)

struct kvt_oplog;

/** Check that the file, or its directory if it is missing, can be written. Changes nothing. */
int kvt_oplog_check(const char *path, char *why, size_t why_bytes);

/** Create the file, or replace an earlier log. -EEXIST: the file is no log, and is left alone.
 * `config` as filled by kvt_core_plan(). On failure `why` has a sentence. */
int kvt_oplog_open(const char *path, const struct kvt_core_config *config,
		   struct kvt_oplog **ret_log, char *why, size_t why_bytes);

#define KVT_OPLOG_TAIL_PLACES 16 /* an effect has at most two records */

/** The end of the file and the places of its last records. Zero-initialised is empty. */
struct kvt_oplog_tail {
	uint64_t end;
	uint64_t n_places; /* records so far; the last ones are in `places` */
	struct {
		uint64_t seq, start;
	} places[KVT_OPLOG_TAIL_PLACES];
};

/** Keep `tail` current, so that a successor can append right after the last effect. Each record
 * then reaches the kernel before kvt_oplog_write() returns. Call before the first record. */
void kvt_oplog_keep(struct kvt_oplog *log, struct kvt_oplog_tail *tail);

/** Continue a predecessor's log by its tail. `instance`: of its arena. The first record must be the
 * ADOPT: records of its seq and later are cut off. -ESTALE with `why`: another log, or ended. */
int kvt_oplog_continue(const char *path, const struct kvt_core_config *config,
		       const uint64_t instance[2], struct kvt_oplog_tail *tail,
		       struct kvt_oplog **ret_log, char *why, size_t why_bytes);

/** Mark the log of this tail as ended: it lacks later effects, so no daemon may continue it. */
void kvt_oplog_end(struct kvt_oplog_tail *tail);
bool kvt_oplog_ended(const struct kvt_oplog_tail *tail);

/** Append one record. The first error (-ENOSPC, -EIO, ...) is final: later calls write nothing and
 * return it again. */
int kvt_oplog_write(struct kvt_oplog *log, const struct kvt_record *record);

/** Write the buffer to the file. */
int kvt_oplog_flush(struct kvt_oplog *log);

/** Flush, close, free. Returns the log's error if it had one. */
int kvt_oplog_close(struct kvt_oplog *log);

struct kvt_oplog_reader;

/** Get the first `positions` keys of the path to a node, as of now. 0 or a negative errno. */
typedef int kvt_oplog_path_fn(void *context, uint32_t node, uint32_t positions, uint32_t *ret_keys);

/** Open a log. *ret_config has the limits of the core that wrote it (sizes, policy, disabled). */
int kvt_oplog_reader_open(const char *path, struct kvt_oplog_reader **ret_reader,
			  struct kvt_core_config *ret_config, char *why, size_t why_bytes);

/** Read the next record. Its pointers are valid until the next call. Returns 1; 0 at the end;
 * -EBADMSG with `why`: the file is damaged, or the path's keys differ. */
int kvt_oplog_next(struct kvt_oplog_reader *reader, kvt_oplog_path_fn *path, void *context,
		   struct kvt_record *ret_record, char *why, size_t why_bytes);

/** True if the file ended within a record. */
bool kvt_oplog_truncated(const struct kvt_oplog_reader *reader);
/** Bytes of the file that were read as whole records. */
uint64_t kvt_oplog_offset(const struct kvt_oplog_reader *reader);
void kvt_oplog_reader_close(struct kvt_oplog_reader *reader);

#endif
