/* SPDX-License-Identifier: Apache-2.0 */

/* The rarer halves of effect.h: slots that a mutation gives back, records and changes for hooks. */

#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/effect.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/undo.h"

/* ---- slots */

/* Taking such a slot inside the mutation would mean saving its keys first, and mostly there are
 * others. */
void kvt_slots_give_later(struct kvt_core *core, uint32_t first, uint32_t n)
{
	KVT_ASSERT(core->arena->mutation & 1);
	KVT_ASSERT(first > 0 && n > 0 && n <= core->slots.n_slots - first);
	if (core->n_slots_due == core->config.max_nodes)
		kvt_slots_give_due(core, true);
	core->slots_due[core->n_slots_due++] = (struct kvt_run){ first, n };
}

void kvt_slots_give_due(struct kvt_core *core, bool inside)
{
	for (uint32_t i = 0; i < core->n_slots_due; i++) {
		struct kvt_run run = core->slots_due[i];

		if (inside)
			kvt_save_slots_freed(core, run.first, run.n);
		kvt_slots_give(&core->slots, run.first, run.n);
	}
	core->n_slots_due = 0;
}

/* ---- the record */

void kvt_record_clear(struct kvt_core *core)
{
	memset(&core->record, 0, sizeof(core->record));
}

void kvt_event_note(struct kvt_core *core, uint32_t kind, uint32_t node, uint32_t other,
		    uint32_t n)
{
	KVT_ASSERT(core->n_events < core->max_events);
	core->events[core->n_events++] = (struct kvt_event){ kind, node, other, n };
}

void kvt_record_tell(struct kvt_core *core, uint32_t kind, uint32_t session, uint64_t seq,
		     uint64_t value)
{
	struct kvt_record *record = &core->record;

	KVT_ASSERT(seq == core->ledger->seq && core->n_out < core->config.n_pages);
	record->kind = kind;
	record->session = session;
	record->seq = seq;
	record->now_ns = core->now_ns;
	record->value = value;
	record->events = core->events;
	record->n_events = core->n_events;
	record->out = core->out;
	record->n_out = core->n_out;
	record->counters = *core->count;
	core->hooks.record(core->hooks.context, record);
}

/* ---- changes of what is cached */

void kvt_core_set_change(struct kvt_core *core, kvt_core_change_fn *change)
{
	KVT_ASSERT(!(core->arena->mutation & 1));
	core->change = change;
}

void kvt_change_tell(struct kvt_core *core, uint32_t kind, uint64_t seq, uint64_t value)
{
	struct kvt_change change = {
		.seq = seq,
		.in = core->in,
		.out = core->out,
		.lasting = core->lasting,
		.n_in = core->n_in,
		.n_out = core->n_out,
		.n_lasting = core->n_lasting,
		.cut = core->cut,
		.namespace_id = kind == KVT_REC_NAMESPACE ? (uint32_t)value : 0,
		.n_used = core->n_used,
		.used = core->used,
	};

	core->change(core->hooks.context, &change);
}
