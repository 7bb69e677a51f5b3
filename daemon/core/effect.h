/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_EFFECT_H
#define KVT_CORE_EFFECT_H

/**
 * @file effect.h
 * An effect: one change of the core's state, its undo log, its events, and its record.
 *
 *	kvt_record_start(core);
 *	kvt_mutation_begin(core);
 *	... save (undo.h), change, kvt_event_add() ...
 *	kvt_record_emit(core, kind, session, value);
 *	kvt_mutation_end(core);
 *
 * Without a record hook, events and records cost one test each; the hook of changes is told by the
 * way.
 */

#include "daemon/core/ledger.h"
#include "daemon/core/state.h"
#include "daemon/core/undo.h"

/** Open the bracket of a change: `mutation` is odd inside, and the undo log is empty. */
static inline void kvt_mutation_begin(struct kvt_core *core)
{
	kvt_undo_begin(core);
	kvt_fence_signal(); /* what the log says is for a mutation that is odd */
	kvt_store_relaxed(&core->arena->mutation, core->arena->mutation + 1);
	kvt_fence_release(); /* pairs with the acquire fence of readers of counters */
}

/** Give back slots when the mutation ends. Until then their keys are still facts. */
void kvt_slots_give_later(struct kvt_core *core, uint32_t first, uint32_t n);
/** Free the slots given back so far. `inside` the mutation: it is going to use them itself. */
void kvt_slots_give_due(struct kvt_core *core, bool inside);

/** Close it: from here on a crash undoes nothing, and slots given back inside are free. */
static inline void kvt_mutation_end(struct kvt_core *core)
{
	kvt_fence_signal();
	kvt_store_release(&core->arena->mutation, core->arena->mutation + 1);
	if (core->n_slots_due > 0)
		kvt_slots_give_due(core, false);
}

/* With a hook: the other halves of the functions below. */
void kvt_record_clear(struct kvt_core *core);
void kvt_event_note(struct kvt_core *core, uint32_t kind, uint32_t node, uint32_t other,
		    uint32_t n);
void kvt_record_tell(struct kvt_core *core, uint32_t kind, uint32_t session, uint64_t seq,
		     uint64_t value);
void kvt_change_tell(struct kvt_core *core, uint32_t kind, uint64_t seq, uint64_t value);

/** Begin a record: no events, no pages out, all fields 0. */
static inline void kvt_record_start(struct kvt_core *core)
{
	core->n_events = 0;
	core->n_in = core->n_out = core->n_lasting = core->n_used = core->cut = 0;
	if (core->hooks.record)
		kvt_record_clear(core);
}

/** Add a structural event to the record. */
static inline void kvt_event_add(struct kvt_core *core, uint32_t kind, uint32_t node,
				 uint32_t other, uint32_t n)
{
	if (core->hooks.record)
		kvt_event_note(core, kind, node, other, n);
}

/** Number the effect, and hand its record to the hook. Returns its seq. */
static inline uint64_t kvt_record_emit(struct kvt_core *core, uint32_t kind, uint32_t session,
				       uint64_t value)
{
	uint64_t seq = ++core->ledger->seq;

	if (core->hooks.record)
		kvt_record_tell(core, kind, session, seq, value);
	if (core->change)
		kvt_change_tell(core, kind, seq, value);
	return seq;
}

#endif
