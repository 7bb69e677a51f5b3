/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_REFUSAL_H
#define KVT_TESTS_REFUSAL_H

/**
 * @file refusal.h
 * What a refused operation may change in arena and ledger.
 */

#include <string.h>

#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"

/** Blank in a copy of both what a refusal may change: its own counts; places in the expiry heap,
 * which drops detached nodes before any operation; and hints, which a BEGIN that looks for whom to
 * wait refreshes. */
static inline void refusal_blank(const struct kvt_core_config *config, void *arena, void *ledger)
{
	struct kvt_arena_header *header = arena;
	struct kvt_ledger_header *book = ledger;
	struct kvt_session_record *sessions =
		(void *)((char *)ledger + book->sections[KVT_LSECTION_SESSIONS].offset);
	struct kvt_node *nodes =
		(void *)((char *)arena + header->sections[KVT_SECTION_NODES].offset);

	for (uint32_t id = 0; id < config->max_nodes; id++)
		nodes[id].expiry_at = nodes[id].announcer = 0;
	header->mutation = 0;
	header->counters.operations = 0;
	header->counters.violations = 0;
	header->counters.refusals = 0;
	book->seq = 0;
	memset((char *)ledger + book->sections[KVT_LSECTION_UNDO].offset, 0,
	       book->sections[KVT_LSECTION_UNDO].bytes);
	memset((char *)ledger + book->sections[KVT_LSECTION_TALLIES].offset, 0,
	       book->sections[KVT_LSECTION_TALLIES].bytes);
	for (uint32_t i = 0; i <= config->max_sessions; i++) {
		sessions[i].operations = 0;
		sessions[i].sq_taken = sessions[i].cq_done = 0;
		sessions[i].deaths = 0;
		memset(sessions[i].last_cqe, 0, sizeof(sessions[i].last_cqe));
	}
}

#endif
