/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_UNDO_RECORDS_H
#define KVT_CORE_UNDO_RECORDS_H

/** @file undo_records.h: save records of the ledger before a mutation changes them (undo.h). */

#include "daemon/core/records.h"
#include "daemon/core/undo.h"

/* The parts of a session that are saved. */
#define KVT_SESSION_FACTS offsetof(struct kvt_session_record, last_cqe)
#define KVT_PROGRESS_BYTES (2 * sizeof(uint64_t)) /* of a session, from `operations` on */

/** Save a lease, in use or free. */
static inline void kvt_save_lease(struct kvt_core *core, uint32_t lease)
{
	struct kvt_undo *undo = &core->undo;

	if (undo->leases[lease] == undo->stamp)
		return;
	undo->leases[lease] = undo->stamp;
	kvt_save(core, &core->leases[lease], sizeof(*core->leases));
}

/** Note the lease that is going to take free pages, one per mutation: its name finds them. */
static inline void kvt_save_taker(struct kvt_core *core, uint32_t lease)
{
	struct kvt_undo_header *header = core->undo.header;

	KVT_ASSERT(header->taker == 0 || (uint32_t)header->taker == lease);
	header->taker = (uint64_t)core->leases[lease].session << 32 | lease;
	kvt_fence_signal();
}

/** Save a session's counts of entries, completions and operations. */
static inline void kvt_save_progress(struct kvt_core *core, uint32_t session)
{
	kvt_save(core, &core->sessions[session].operations, KVT_PROGRESS_BYTES);
}

/** Save the owner of a session's private pages that are in no lease. */
void kvt_save_pages(struct kvt_core *core, uint32_t session, const uint32_t *pages, uint32_t n);
/** Save the first n pages of a list, or all of it if it is shorter. Owner, lease and state are
 * those of the first one; of loose pages the order does not matter. */
void kvt_save_list(struct kvt_core *core, uint32_t page, uint32_t n);

#endif
