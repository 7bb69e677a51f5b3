/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_OPLOG_FORMAT_H
#define KVT_OPLOG_FORMAT_H

/**
 * @file operations_format.h
 * The format that writer and reader of the operation log share. Little endian.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/record.h"

#define OPLOG_MAGIC 0x474f4c504f54564bull /* "KVTOPLOG" */
#define OPLOG_COUNTERS (sizeof(struct kvt_counters) / sizeof(uint64_t))
#define OPLOG_MAX_BODY (1u << 31) /* no operation has that many keys */
_Static_assert(OPLOG_COUNTERS <= 64, "a mask of changed counters is one number");

struct oplog_header {
	uint64_t magic;
	uint32_t version;
	uint32_t header_bytes;
	uint64_t layout; /* of entries and completions, which are written raw */
	uint32_t page_size, n_pages, n_slots, max_nodes;
	uint32_t max_namespaces, max_sessions, n_leases, n_pending;
	uint32_t max_leases, max_private_pages, max_op_keys, policy;
	uint32_t uid_sessions, max_opened, reserve_pages, reserved;
	uint32_t slru_threshold, disabled;
	uint32_t coalesce_threshold, soft_private;
	uint64_t patience_ns;
	uint32_t n_sides, side_pages[KVT_MAX_SIDES], reserved2;
	uint64_t instance[2];
};

/** The check of a head without a body: another writer continues from here. */
#define OPLOG_CHECK_CONTINUED 0x746e6f63u /* "cont" */

struct oplog_bytes {
	uint8_t *bytes;
	size_t n;
	size_t room;
};

static inline bool oplog_has_sqe(uint32_t kind)
{
	return kind == KVT_REC_OP || kind == KVT_REC_DEFER || kind == KVT_REC_ADMIN;
}

static inline bool oplog_has_cqe(uint32_t kind)
{
	return kind == KVT_REC_OP || kind == KVT_REC_DEFER || kind == KVT_REC_ADMIN;
}

static inline bool oplog_has_root_key(const struct kvt_record *record)
{
	return oplog_has_sqe(record->kind) && record->sqe.flags & KVT_F_ROOT_KEY;
}

/** FREE and EXTEND name pages where others have keys. */
static inline bool oplog_keys_are_pages(const struct kvt_record *record)
{
	return record->kind == KVT_REC_OP && kvt_op_takes(record->sqe.op) & KVT_TAKES_PAGES;
}

/** The page table of each sequence, as last answered by BEGIN or COMMIT. A COMMIT mostly replaces a
 * few pages, so only the part between common prefix and common suffix is written. Writer and reader
 * keep equal tables. */
struct oplog_table {
	uint32_t *pages;
	uint32_t n;
	uint32_t room;
};

struct oplog_tables {
	struct oplog_table *at; /* by lease */
	uint32_t n;
};

bool oplog_tables_init(struct oplog_tables *tables, uint32_t n_leases);
void oplog_tables_free(struct oplog_tables *tables);
/** The table that a record's list is a difference to. NULL: the list is written whole. */
struct oplog_table *oplog_table_of(const struct oplog_tables *tables,
				   const struct kvt_record *record);
/** Update the tables by a record. False: out of memory. */
bool oplog_tables_learn(struct oplog_tables *tables, const struct kvt_record *record);

/** Two independent hashes of all keys. */
void oplog_hash_keys(const uint32_t *keys, uint64_t n, uint64_t ret_hash[2]);
/** Checksum of a body. */
uint32_t oplog_check(const uint8_t *bytes, size_t n);

#endif
