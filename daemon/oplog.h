/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_OPLOG_H
#define KVT_OPLOG_H

/**
 * @file oplog.h
 * The operation log: every effect of the core in a file, so that any run of any number of
 * processes can be replayed and checked later (`kvtctl verify FILE`).
 *
 *     header   magic "KVTOPLOG", version, limits of the core, layout fingerprint
 *     record   u32 bytes of the body, u32 check of the body, body
 *     body     numbers as varints (differences where they repeat), entry and completion as they
 *              are, keys as u32, lists of pages as runs
 *
 * Keys are by far the largest part. Those that the tree knew before the operation are left out;
 * the reader gets them from the model that it replays into, and two independent 64-bit hashes of
 * all keys make sure that they are the same ones. A file that ends in the middle of a record (a
 * crash, a full disk) is good up to there. The file holds every client's keys: mode 0600.
 *
 * A successor appends to its predecessor's file: a head without a body tells the reader that
 * numbers start from zero again. What the predecessor wrote of an effect that was rolled back is
 * cut off first; where that begins is known from the log's tail, a few words in memory that
 * outlives the daemon.
 *
 * Not thread-safe; one log has one writer. Nothing here is larger than memory: the writer buffers
 * KVT_OPLOG_BUFFER bytes, the reader holds one record.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/core.h"
#include "daemon/core/record.h"

#define KVT_OPLOG_VERSION 3u
#define KVT_OPLOG_BUFFER (1u << 20)

struct kvt_oplog;

/** Whether the file, or its directory if it is missing, may be written; nothing is changed. */
int kvt_oplog_check(const char *path, char *why, size_t why_bytes);

/** Create the file, or replace an earlier log. A file that is no log is left alone (-EEXIST).
 * `config` as kvt_core_plan() filled it in. On failure `why` has a sentence. */
int kvt_oplog_open(const char *path, const struct kvt_core_config *config,
		   struct kvt_oplog **ret_log, char *why, size_t why_bytes);

#define KVT_OPLOG_TAIL_PLACES 16 /* an effect has at most two records */

/** Where the file ends and its last records begin; zeroed memory at first. */
struct kvt_oplog_tail {
	uint64_t end;
	uint64_t n_places; /* so far; the last ones are in `places` */
	struct {
		uint64_t seq, start;
	} places[KVT_OPLOG_TAIL_PLACES];
};

/** From now on each record reaches the kernel before kvt_oplog_write() returns, and `tail` says
 * what has: a successor can go on exactly behind the last effect. Before the first record. */
void kvt_oplog_keep(struct kvt_oplog *log, struct kvt_oplog_tail *tail);

/** The same for a log that has been written without a tail so far. -ESPIPE: it is no file. */
int kvt_oplog_hand_over(struct kvt_oplog *log, struct kvt_oplog_tail *tail);

/** Who was to go on with a log that was handed over has failed, and is gone. It may have written to
 * the file, so the log goes on as a successor's does, behind what the tail says: the next record is
 * an ADOPT. -ESTALE: the tail and the file contradict each other; nothing is written any more. */
int kvt_oplog_take_back(struct kvt_oplog *log);

/** Nobody is to go on with the log any more: records are buffered, and the tail is not looked at
 * again. Not between kvt_oplog_continue() or kvt_oplog_take_back() and their ADOPT. */
void kvt_oplog_let_go(struct kvt_oplog *log);

/** Go on with the log of a predecessor and its tail. `instance`: that of its arena. The first
 * record is the ADOPT: records of its seq and later ones are cut off. -ESTALE with `why`: it is not
 * that log. */
int kvt_oplog_continue(const char *path, const struct kvt_core_config *config,
		       const uint64_t instance[2], struct kvt_oplog_tail *tail,
		       struct kvt_oplog **ret_log, char *why, size_t why_bytes);

/** Append one record. The first error (-ENOSPC, -EIO, ...) is final: nothing is written any more,
 * and every later call returns it again. */
int kvt_oplog_write(struct kvt_oplog *log, const struct kvt_record *record);

/** Hand what is buffered to the kernel. */
int kvt_oplog_flush(struct kvt_oplog *log);

/** Flush, close, free. Returns the log's error if it had one. */
int kvt_oplog_close(struct kvt_oplog *log);

struct kvt_oplog_reader;

/** The first `positions` keys on the path to a node, as of now: 0 or a negative errno. */
typedef int kvt_oplog_path_fn(void *context, uint32_t node, uint32_t positions, uint32_t *ret_keys);

/** Open a log. *ret_config has the limits of the core that wrote it (sizes, policy, disabled). */
int kvt_oplog_reader_open(const char *path, struct kvt_oplog_reader **ret_reader,
			  struct kvt_core_config *ret_config, char *why, size_t why_bytes);

/** The next record; what it points to is valid until the next call. Returns 1, 0 at the end of the
 * log, or -EBADMSG with `why`: damage inside the file, or keys that are not those of the path. */
int kvt_oplog_next(struct kvt_oplog_reader *reader, kvt_oplog_path_fn *path, void *context,
		   struct kvt_record *ret_record, char *why, size_t why_bytes);

/** Whether the file ended in the middle of a record. */
bool kvt_oplog_truncated(const struct kvt_oplog_reader *reader);
/** Bytes of the file that were understood. */
uint64_t kvt_oplog_offset(const struct kvt_oplog_reader *reader);
void kvt_oplog_reader_close(struct kvt_oplog_reader *reader);

#endif
