/* SPDX-License-Identifier: Apache-2.0 */

/* Background work, in small steps: expiry, dead sessions, detached subtrees, compaction. */

#include <string.h>

#include "daemon/core/internal.h"

/* In one END or UNLOCK. */
#define JOIN_STEPS 8
#define JOIN_COPIES 64u /* pages */

/* ---- expiry */

static void expire(struct kvt_core *core, uint32_t id)
{
	kvt_mutation_begin(core);
	kvt_detach(core, id);
	core->count->expired_nodes++;
	kvt_record_emit(core, KVT_REC_EXPIRE, 0, id);
	kvt_mutation_end(core);
}

/** Detach a node if its time has come, as an effect of its own inside another operation, which
 * has changed nothing so far. Returns whether it did. */
bool kvt_expire_now(struct kvt_core *core, uint32_t id)
{
	struct kvt_record outer;

	if (core->nodes[id].expiry_ns > core->now_ns)
		return false;
	outer = core->record;
	kvt_mutation_end(core); /* the outer one, which has nothing to show yet */
	kvt_record_start(core);
	expire(core, id);
	kvt_record_start(core);
	core->record = outer;
	kvt_mutation_begin(core);
	return true;
}

void kvt_expire_due(struct kvt_core *core, uint32_t limit)
{
	for (uint32_t i = 0; i < limit && core->expiry.count > 0; i++) {
		uint32_t id = core->expiry.nodes[0];

		if (core->nodes[id].expiry_ns > core->now_ns)
			return;
		if (kvt_path_detached(core, id)) {
			kvt_heap_remove(core, &core->expiry, id);
			continue;
		}
		kvt_record_start(core);
		expire(core, id);
	}
}

uint64_t kvt_core_next_expiry_ns(const struct kvt_core *core)
{
	uint64_t expiry = KVT_NEVER;

	if (core->expiry.count)
		expiry = core->nodes[core->expiry.nodes[0]].expiry_ns;
	return core->n_waiters && core->wake_at_ns < expiry ? core->wake_at_ns : expiry;
}

/* ---- compaction: a long path of short runs becomes a short path of long ones */

void kvt_compact_note(struct kvt_core *core, uint32_t id)
{
	uint32_t size = core->config.max_nodes, last;

	if (core->nodes[id].flags & KVT_NODE_ROOT)
		return;
	last = (core->compact_head + core->compact_count + size - 1) % size;
	if (core->compact_count == size || (core->compact_count && core->compact[last] == id))
		return;
	core->compact[(core->compact_head + core->compact_count++) % size] = id;
}

static bool joinable(const struct kvt_core *core, const struct kvt_node *upper,
		     const struct kvt_node *lower)
{
	return !(upper->flags & (KVT_NODE_ROOT | KVT_NODE_DETACHED)) && upper->n_children == 1 &&
	       upper->sealed == upper->n_slots && upper->lock_ref == lower->lock_ref &&
	       upper->priority == lower->priority && upper->expiry_ns == lower->expiry_ns &&
	       kvt_policies[core->config.policy].same(core, upper, lower);
}

/** Copy a node's run to slots that are taken already, and give the old ones back. */
static void move_run(struct kvt_core *core, uint32_t id, uint32_t to)
{
	struct kvt_node *node = kvt_node_at(core, id);
	uint32_t from = node->first_slot, n = node->n_slots;

	kvt_undo_node(core, &core->undo, id);
	kvt_undo_slots(core, from, n);
	kvt_undo_keys(core, to, n);
	memcpy(kvt_keys_at(core, to), kvt_keys_at(core, from),
	       (size_t)n * core->ps * sizeof(uint32_t));
	memcpy(core->slot_pages + to, core->slot_pages + from, n * sizeof(uint32_t));
	for (uint32_t i = 0; i < node->sealed; i++)
		core->pages[core->slot_pages[to + i]].slot = to + i;
	kvt_node_write_begin(node);
	KVT_SET(node->first_slot, to);
	kvt_node_write_end(node);
	kvt_slots_clear_run(&core->slots, from);
	kvt_slots_set_run(&core->slots, to, id);
	memset(core->slot_pages + from, 0, n * sizeof(uint32_t));
	kvt_slots_give_later(core, from, n);
	core->effort.pages_moved += n;
}

/** Bring two runs together. Returns the pages copied, or -1 if there is no room to or it would take
 * more than `most`. */
static int64_t bring_together(struct kvt_core *core, uint32_t up, uint32_t down, uint32_t most)
{
	struct kvt_node *upper = kvt_node_at(core, up), *lower = kvt_node_at(core, down);
	struct kvt_slots *slots = &core->slots;
	uint32_t behind = upper->first_slot + upper->n_slots, extent, a = upper->n_slots,
		 b = lower->n_slots;

	if (behind == lower->first_slot)
		return 0;
	if (b <= most && kvt_slots_free_at(slots, behind) >= b) {
		kvt_slots_take_at(slots, behind, behind, b);
		move_run(core, down, behind);
		return b;
	}
	if (a <= most && kvt_slots_free_before(slots, lower->first_slot) >= a) {
		extent = lower->first_slot - kvt_slots_free_before(slots, lower->first_slot);
		kvt_slots_take_at(slots, extent, lower->first_slot - a, a);
		move_run(core, up, lower->first_slot - a);
		return a;
	}
	/* Moving both pays only if the shorter one is not tiny: otherwise a growing path would be
	 * copied whole for each little piece. Pieces join each other first, then the trunk. */
	extent = (uint64_t)a + b <= most &&
				 (uint64_t)kvt_min(a, b) * 8 >= (uint64_t)(a > b ? a : b) ?
			 kvt_slots_find(slots, a + b) :
			 KVT_NONE;
	if (extent == KVT_NONE)
		return -1;
	kvt_slots_take_at(slots, extent, extent, a + b);
	move_run(core, up, extent);
	move_run(core, down, extent + a);
	return (int64_t)a + b;
}

/** One step of a path upwards from `id`: join it with its parent if they go together, else go to
 * the parent. A step is an effect of its own, so that no slots are used twice in one. Returns the
 * node to go on from, KVT_NONE at the end. */
static uint32_t compact_step(struct kvt_core *core, uint32_t id, uint32_t *done)
{
	uint32_t up = core->nodes[id].parent;
	int64_t moved = -1;

	++*done;
	if (up == KVT_NONE || core->nodes[id].flags & KVT_NODE_DETACHED)
		return KVT_NONE;
	if (!joinable(core, kvt_node_at(core, up), kvt_node_at(core, id)))
		return up;
	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->effort = (struct kvt_core_effort){ 0 };
	moved = bring_together(core, up, id, UINT32_MAX);
	if (moved >= 0) {
		kvt_node_merge(core, up, id);
		*done += (uint32_t)moved;
		kvt_record_emit(core, KVT_REC_COMPACT, 0, 0);
	}
	kvt_mutation_end(core);
	return moved >= 0 ? id : up;
}

/** Join runs at the end of a path inside the operation that unlocked it: a few steps upwards, and a
 * few pages of keys copied at most. So a path that grows turn by turn stays short without idle
 * turns; what is longer waits for those. */
void kvt_path_join(struct kvt_core *core, uint32_t id)
{
	uint32_t left = JOIN_COPIES;

	for (uint32_t i = 0; i < JOIN_STEPS; i++) {
		uint32_t up = core->nodes[id].parent;
		int64_t moved = -1;

		if (up == KVT_NONE || core->nodes[id].flags & KVT_NODE_DETACHED)
			return;
		if (joinable(core, kvt_node_at(core, up), kvt_node_at(core, id)))
			moved = bring_together(core, up, id, left);
		if (moved < 0) {
			id = up;
			continue;
		}
		kvt_node_merge(core, up, id);
		left -= (uint32_t)moved;
	}
}

static uint32_t compact(struct kvt_core *core, uint32_t budget)
{
	uint32_t done = 0;

	while (core->compact_count > 0 && done < budget) {
		uint32_t id = core->compact[core->compact_head];

		core->compact_head = (core->compact_head + 1) % core->config.max_nodes;
		core->compact_count--;
		if (!(core->nodes[id].flags & KVT_NODE_LIVE)) {
			done++;
			continue;
		}
		while (id != KVT_NONE && done <= budget)
			id = compact_step(core, id, &done);
	}
	return done;
}

/* ---- all of it */

static uint32_t reclaim(struct kvt_core *core, uint32_t budget)
{
	uint64_t nodes = core->count->live_nodes;
	uint32_t steps = budget, freed;

	kvt_record_start(core);
	kvt_mutation_begin(core);
	core->effort = (struct kvt_core_effort){ 0 };
	freed = kvt_reclaim(core, &steps, budget);
	if (freed > 0 || core->count->live_nodes != nodes)
		kvt_record_emit(core, KVT_REC_RECLAIM, 0, 0);
	kvt_mutation_end(core);
	return budget - steps + freed;
}

/** What RESET left: stale roots become detached subtrees. Nothing that a client can see. */
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
	uint32_t done = 0;

	core->now_ns = now_ns;
	if (core->expiry.count > 0 && core->nodes[core->expiry.nodes[0]].expiry_ns <= now_ns) {
		kvt_expire_due(core, budget);
		done++;
	}
	done += kvt_wake(core);
	if (core->dying > 0)
		done += kvt_session_work(core, budget);
	if (core->stale_roots > 0 && done < budget)
		done += detach_stale(core, budget - done);
	if (core->detached_count > 0 && done < budget)
		done += reclaim(core, budget - done);
	if (idle && core->compact_count > 0 && done < budget)
		done += compact(core, budget - done);
	return done;
}

bool kvt_core_unsettled(const struct kvt_core *core)
{
	return core->detached_count > 0 || core->stale_roots > 0 || kvt_session_unsettled(core);
}
