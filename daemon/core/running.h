/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_RUNNING_H
#define KVT_CORE_RUNNING_H

/**
 * @file running.h
 * Note in the ledger what runs (enum kvt_running): a successor learns what the daemon died in.
 */

#include "daemon/core/ledger.h"
#include "daemon/core/records.h"
#include "daemon/core/state.h"

/** Note what runs from now on. Returns what ran around it, for kvt_running_end(). */
static inline uint64_t kvt_running_begin(struct kvt_core *core, uint64_t running)
{
	uint64_t outer = core->ledger->running;

	kvt_store_relaxed(&core->ledger->running, running);
	kvt_fence_signal(); /* noted before anything that may be deadly */
	return outer;
}

static inline void kvt_running_end(struct kvt_core *core, uint64_t outer)
{
	kvt_fence_signal();
	kvt_store_relaxed(&core->ledger->running, outer);
}

/** `deaths`: of daemons that ran the same before. */
static inline uint64_t kvt_running_word(enum kvt_running kind, uint32_t deaths, uint32_t what,
					uint32_t session, uint32_t number)
{
	return (uint64_t)kind << 60 | (uint64_t)(deaths + 1) << 56 | (uint64_t)(what & 0xff) << 48 |
	       (uint64_t)(session & 0xffff) << 32 | number;
}

static inline uint64_t kvt_running_work(struct kvt_core *core, enum kvt_work what, uint32_t session)
{
	return kvt_running_begin(core, kvt_running_word(KVT_RUNNING_WORK, 0, what, session, 0));
}

/** Daemons that died in the session's next entry. */
static inline uint32_t kvt_entry_deaths(const struct kvt_session_record *session)
{
	return session->fatal_entry == session->sq_taken ? session->deaths : 0;
}

/** Charge the last daemon's death to what it died in. Returns what that was, 0 if it is not run
 * again. A successor that dies here leaves it to the next. */
uint64_t kvt_running_charge(struct kvt_core *core);

#endif
