/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_TALLY_H
#define KVT_CORE_TALLY_H

/**
 * @file tally.h
 * Tallies: what each session and each namespace asked for, and got (struct kvt_tally).
 *
 * They are facts of the ledger, so they survive a restart. A session's and a namespace's begin when
 * its record is taken. Row 0 has the instance's refusals, whose sum is in the arena's counters.
 */

#include "daemon/core/state.h"
#include "kvtrunk_wire_counts.h"

/** Rows of the section: one for each session record, 0 included, and each namespace. */
static inline uint64_t kvt_tally_rows(const struct kvt_core_config *config)
{
	return config->max_sessions + 1ull + config->max_namespaces;
}

static inline struct kvt_tally *kvt_tally_session(const struct kvt_core *core, uint32_t session)
{
	return &core->tallies[session];
}

static inline struct kvt_tally *kvt_tally_namespace(const struct kvt_core *core, uint32_t id)
{
	return &core->tallies[core->config.max_sessions + 1ull + id];
}

/** Begin a row, of a record that is taken. */
void kvt_tally_clear(struct kvt_core *core, struct kvt_tally *tally);
/** Count a BEGIN that was served, for the instance, too. `shared` of its hits others sealed. */
void kvt_tally_begun(struct kvt_core *core, uint32_t session, uint32_t namespace_id,
		     uint32_t positions, uint32_t hits, uint32_t shared);
/** Count pages that became cached. */
void kvt_tally_sealed(struct kvt_core *core, uint32_t session, uint32_t namespace_id, uint32_t n);
/** Count an operation that was refused, if its reason is one that is counted. `sqe` NULL: the
 * session was to open a namespace. */
void kvt_tally_refused(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
		       enum kvt_reason reason);

#endif
