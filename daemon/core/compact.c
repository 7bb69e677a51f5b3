/* SPDX-License-Identifier: Apache-2.0 */

/* Compaction: a long path of short runs becomes a short path of long ones.
 *
 * Only a parent and its only child are joined, with equal locks and policy fields, so no choice of
 * eviction and no handle changes. Slots are metadata: their keys and page numbers are copied, pages
 * are not. Callers: END and UNLOCK, a few steps each; idle turns, for all that backlog.c noted. */

#include <string.h>

#include "daemon/core/compact.h"
#include "daemon/core/effect.h"
#include "daemon/core/order.h"
#include "daemon/core/slots.h"
#include "daemon/core/state.h"
#include "daemon/core/tree.h"
#include "daemon/core/undo.h"

/* In one END or UNLOCK. */
#define JOIN_STEPS 8
#define JOIN_COPIES 64u /* pages */

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

	KVT_ASSERT(!kvt_bit_get(core->slots.free_head, to) &&
		   (to + n <= from || from + n <= to));
	KVT_ASSERT(to > 0 && n > 0 && to + n <= core->slots.n_slots);
	kvt_save_node(core, id);
	kvt_save(core, core->slot_pages + from, n * sizeof(*core->slot_pages));
	kvt_save_keys(core, to, n);
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

/** Make two runs neighbours. Returns the pages copied; -1 if there is no room, or it would take
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

/** Join a node with its parent if they go together. An effect of its own, so that no slots are used
 * twice in one. Returns the node for the next step, KVT_NONE at the path's end. */
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

uint32_t kvt_compact(struct kvt_core *core, uint32_t budget)
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
