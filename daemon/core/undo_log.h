/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_UNDO_LOG_H
#define KVT_CORE_UNDO_LOG_H

/** @file undo_log.h: the format of the undo log in the ledger. undo.h writes it. */

#include <stdint.h>

#include "kvtrunk_wire_arena.h"

/** Kinds of entries of the undo log. An entry is the old bytes, padded to words, then their place,
 * then kind << 60 | how many bytes. The log is undone from its end. A place is an offset in the
 * arena, or KVT_UNDO_LEDGER | one in the ledger: a successor maps them elsewhere. */
enum kvt_undo_kind {
	KVT_UNDO_BYTES = 1, /* written back as they are */
	KVT_UNDO_NODE = 2,  /* a whole node: its version and generation rise instead */
	KVT_UNDO_PAGES = 3, /* u32 pages in the order of their list, and what followed. No place,
			       but session << 48 | state << 32 | lease */
};
#define KVT_UNDO_LEDGER (1ull << 63)

/** The undo log: the old value of every primary fact that the running mutation changes. If a
 * successor finds `mutation` odd, it writes them back. Facts that every mutation changes are in the
 * header. Records and pages that were free before are not saved. */
struct kvt_undo_header {
	uint64_t words; /* of entries, since `mutation` became odd */
	uint64_t seq;   /* as in the headers, when it did */
	uint64_t clock;
	uint64_t tickets;
	uint64_t epoch;
	uint64_t taker; /* session << 32 | the lease that takes free pages, 0: none does */
	uint64_t reserved[10];
	struct kvt_counters counters; /* the monotonic ones */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_undo_header) == 512, "kvt_undo_header");

#endif
