/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_UNDO_H
#define KVT_CORE_UNDO_H

/**
 * @file undo.h
 * The undo log: save each fact before a mutation changes it.
 *
 * Inside a mutation, save a primary fact before the first store to it, with kvt_save() or one of
 * its forms below. Saving it again is harmless. Nodes and leases have a stamp in private memory and
 * are saved once per mutation: a further call costs a comparison. Derived facts are not saved, nor
 * is what was free before the mutation (pages that a lease takes, slots, keys). rollback.c has the
 * list of what may be saved.
 *
 * A successor reads the log only after the writer's exit, so compiler ordering is enough; no CPU
 * fence is needed. The log has room for the largest operation (kvt_core_plan()), which is asserted.
 */

#include <string.h>

#include "daemon/core/state.h"
#include "daemon/core/undo_log.h"

/* The parts of records that are saved. */
#define KVT_TOUCHED offsetof(struct kvt_node, lock_ref) /* of a node, by a touch */
#define KVT_TOUCHED_BYTES (offsetof(struct kvt_node, older) - KVT_TOUCHED)
#define KVT_MONOTONIC offsetof(struct kvt_counters, operations)
#define KVT_MONOTONIC_BYTES (sizeof(struct kvt_counters) - KVT_MONOTONIC)

/** Words for so many bytes. */
static inline uint64_t kvt_words(uint64_t bytes)
{
	return (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
}

/** Return the place for the bytes of an entry. */
static inline void *kvt_undo_room(struct kvt_undo *undo, uint64_t bytes)
{
	KVT_ASSERT(undo->used + kvt_words(bytes) + 2 <= undo->capacity);
	return undo->words + undo->used;
}

/** Close an entry whose bytes stand in the room already: it counts from now on. */
static inline void kvt_undo_push(struct kvt_undo *undo, enum kvt_undo_kind kind, uint64_t bytes,
				 uint64_t place)
{
	uint64_t *end = undo->words + undo->used + kvt_words(bytes);

	end[0] = place;
	end[1] = (uint64_t)kind << 60 | bytes;
	undo->used += kvt_words(bytes) + 2;
	kvt_fence_signal();
	kvt_store_relaxed(&undo->header->words, undo->used);
	kvt_fence_signal();
}

static inline void kvt_save_as(struct kvt_core *core, enum kvt_undo_kind kind, const void *at,
			       uint64_t bytes)
{
	uint64_t in_arena = (uint64_t)((const char *)at - (const char *)core->arena);
	uint64_t in_ledger = (uint64_t)((const char *)at - (const char *)core->ledger);

	memcpy(kvt_undo_room(&core->undo, bytes), at, bytes);
	kvt_undo_push(&core->undo, kind, bytes,
		      in_arena < core->undo.arena_bytes ? in_arena : KVT_UNDO_LEDGER | in_ledger);
}

/** Save bytes of the arena or the ledger before they change. */
static inline void kvt_save(struct kvt_core *core, const void *at, uint64_t bytes)
{
	kvt_save_as(core, KVT_UNDO_BYTES, at, bytes);
}

/** Save all of a node, in use or free. */
static inline void kvt_save_node(struct kvt_core *core, uint32_t node)
{
	struct kvt_undo *undo = &core->undo;

	if (undo->nodes[node] == undo->stamp)
		return;
	undo->nodes[node] = undo->touches[node] = undo->stamp;
	kvt_save_as(core, KVT_UNDO_NODE, &core->nodes[node], sizeof(*core->nodes));
}

/** Save what a touch of a node changes. */
static inline void kvt_save_touch(struct kvt_core *core, uint32_t node)
{
	struct kvt_undo *undo = &core->undo;

	if (undo->touches[node] == undo->stamp)
		return;
	undo->touches[node] = undo->stamp;
	kvt_save(core, (const char *)&core->nodes[node] + KVT_TOUCHED, KVT_TOUCHED_BYTES);
}

/** Note slots that leave a run. Their keys are facts until the mutation ends. */
void kvt_save_slots_freed(struct kvt_core *core, uint32_t first, uint32_t n);
/** Save keys before they are overwritten, if the slots were freed in this mutation. */
void kvt_save_keys(struct kvt_core *core, uint32_t first, uint32_t n);

/** Empty the log at the start of a mutation. */
void kvt_undo_begin(struct kvt_core *core);

/** Words that the largest mutation needs. */
uint64_t kvt_undo_capacity(const struct kvt_core_config *config);

#endif
