/* SPDX-License-Identifier: Apache-2.0 */

/* Background work, in small steps: expiry, dead sessions, detached subtrees, compaction, and room
 * for namespaces. */

#include "daemon/core/compact.h"
#include "daemon/core/core.h"
#include "daemon/core/detach.h"
#include "daemon/core/effect.h"
#include "daemon/core/run.h"
#include "daemon/core/running.h"
#include "daemon/core/session.h"
#include "daemon/core/space.h"
#include "daemon/core/state.h"

uint64_t kvt_core_next_expiry_ns(const struct kvt_core *core)
{
	uint64_t expiry = KVT_NEVER;

	if (core->expiry.count)
		expiry = core->nodes[core->expiry.nodes[0]].expiry_ns;
	return core->n_waiters && core->wake_at_ns < expiry ? core->wake_at_ns : expiry;
}

static uint32_t reclaim(struct kvt_core *core, uint32_t budget)
{
	uint64_t nodes = core->count->live_nodes;
	uint32_t steps = budget, freed;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->effort = (struct kvt_core_effort){ 0 };
	freed = kvt_reclaim(core, &steps, budget);
	KVT_ASSERT(steps <= budget && freed <= (uint64_t)budget + core->n_sides);
	if (freed > 0 || core->count->live_nodes != nodes)
		kvt_record_emit(core, KVT_REC_RECLAIM, 0, 0);
	kvt_mutation_end(core);
	return budget - steps + freed;
}

/** Detach stale roots that RESET left. Invisible to clients. */
static uint32_t detach_stale(struct kvt_core *core, uint32_t budget)
{
	uint32_t looked;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	looked = kvt_detach_stale(core, budget, budget);
	kvt_mutation_end(core);
	return looked;
}

uint32_t kvt_core_work(struct kvt_core *core, uint32_t budget, bool idle, uint64_t now_ns)
{
	uint64_t outer = core->ledger->running;
	uint32_t done = 0;

	core->now_ns = now_ns;
	if (core->expiry.count > 0 && core->nodes[core->expiry.nodes[0]].expiry_ns <= now_ns) {
		kvt_expire_due(core, budget);
		done++;
	}
	done += kvt_core_wake(core, now_ns);
	if (core->dying > 0)
		done += kvt_session_work(core, budget);
	kvt_running_work(core, KVT_WORK_STALE, 0);
	if (core->stale_roots > 0 && done < budget)
		done += detach_stale(core, budget - done);
	kvt_running_work(core, KVT_WORK_RECLAIM, 0);
	if (core->detached_count > 0 && done < budget)
		done += reclaim(core, budget - done);
	kvt_running_work(core, KVT_WORK_COMPACT, 0);
	if (idle && core->compact_count > 0 && done < budget)
		done += kvt_compact(core, budget - done);
	kvt_running_end(core, outer);
	return done;
}

/** Detach a namespace's root, for another namespace that a session opens. */
static void empty_namespace(struct kvt_core *core, uint32_t session, uint32_t root)
{
	KVT_ASSERT(core->nodes[root].flags & KVT_NODE_ROOT);
	KVT_ASSERT(core->namespaces[core->nodes[root].namespace_id].opened == 0);
	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->record.sqe = (struct kvt_sqe){ .op = KVT_OP_REMOVE,
					     .namespace_id = core->nodes[root].namespace_id };
	core->record.cqe = (struct kvt_cqe){ .remove.state = 1 };
	kvt_detach(core, root, KVT_NODE_MADE_ROOM);
	kvt_record_emit(core, KVT_REC_ADMIN, session, 0);
	kvt_mutation_end(core);
}

bool kvt_core_namespace_make_room(struct kvt_core *core, uint32_t session,
				  const uint64_t digest[2], uint32_t budget, uint64_t now_ns)
{
	uint32_t root;

	kvt_core_wake(core, now_ns);
	if (!kvt_space_victim(core, session, digest, &root))
		return false;
	if (root != KVT_NONE)
		empty_namespace(core, session, root);
	return kvt_core_work(core, budget, false, now_ns) > 0;
}

bool kvt_core_unsettled(const struct kvt_core *core)
{
	return core->detached_count > 0 || core->stale_roots > 0 || kvt_session_unsettled(core);
}
