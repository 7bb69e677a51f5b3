/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_UNDO_H
#define KVT_CORE_UNDO_H

/**
 * @file undo.h
 * The undo log: what a mutation changes is written down first.
 *
 * The rule of the core: before the first store to a primary fact inside a mutation, one of these
 * has been called for it. A record is saved once a mutation (a stamp in private memory knows), so
 * calling again costs a comparison. Derived facts need nothing, and neither does what a record did
 * not mean before: pages, nodes, leases, keys of slots that were free before the mutation.
 *
 * A successor only looks at the log of a process that is dead, so stores have to be ordered by the
 * compiler, not by the CPU. The log has room for the largest operation there is (kvt_core_plan());
 * running over would be a bug of ours and is asserted.
 */

#include "daemon/core/core.h"
#include "shm/assert.h"
#include "shm/atomic.h"

#define KVT_UNDO_NODE_WORDS (sizeof(struct kvt_node) / sizeof(uint64_t))

/** The core's part of it. */
struct kvt_undo {
	struct kvt_undo_header *header;
	uint64_t *words;
	uint64_t used;     /* header->words, where clients of the cache line are not */
	uint64_t capacity;
	uint32_t stamp;    /* of the running mutation */
	uint32_t *nodes;   /* stamp of the mutation that saved it whole */
	uint32_t *touches; /* the same for times and hits alone */
	uint32_t *leases;
	uint64_t *freed;   /* per 32 slots: stamp << 32 | those freed in that mutation */
};

/** Room for an entry of n words and its last one. */
static inline uint64_t *kvt_undo_room(struct kvt_undo *undo, uint64_t n)
{
	KVT_ASSERT(undo->used + n < undo->capacity);
	return undo->words + undo->used;
}

static inline void kvt_undo_push(struct kvt_undo *undo, uint64_t kind, uint64_t n, uint32_t id)
{
	undo->words[undo->used + n] = kind << 60 | n << 32 | id;
	undo->used += n + 1;
	kvt_fence_signal();
	kvt_store_relaxed(&undo->header->words, undo->used);
	kvt_fence_signal();
}

/* A node: all of it, or only what a touch changes. */
void kvt_undo_node_save(struct kvt_core *core, uint32_t node);
/** A free node that is about to be made. */
void kvt_undo_node_free(struct kvt_core *core, uint32_t node);
static inline void kvt_undo_node(struct kvt_core *core, struct kvt_undo *undo, uint32_t node)
{
	if (undo->nodes[node] != undo->stamp)
		kvt_undo_node_save(core, node);
}

static inline void kvt_undo_touch(struct kvt_undo *undo, const struct kvt_node *node, uint32_t id)
{
	uint64_t *at;

	if (undo->touches[id] == undo->stamp)
		return;
	at = kvt_undo_room(undo, 3);
	at[0] = node->touched;
	at[1] = node->touched_ns;
	at[2] = node->hits;
	undo->touches[id] = undo->stamp;
	kvt_undo_push(undo, KVT_UNDO_NODE_TOUCHED, 3, id);
}

/** Slots that stop naming pages. */
void kvt_undo_slots(struct kvt_core *core, uint32_t first, uint32_t n);
/** Slots that stop being a run's: their keys are facts until the mutation ends. */
void kvt_undo_slots_freed(struct kvt_core *core, uint32_t first, uint32_t n);
/** Slots whose keys are about to be overwritten: saves them if they were freed just now. */
void kvt_undo_keys(struct kvt_core *core, uint32_t first, uint32_t n);

/** Pages that change hands; all of one session, lease (or none) and state, in an array. */
void kvt_undo_pages(struct kvt_core *core, uint32_t session, uint32_t lease, uint32_t state,
		    const uint32_t *pages, uint32_t n);
/** The first n pages of a list, or all of it if it is shorter. Owner, lease and state are those of
 * the first one; of loose pages the order does not matter. */
void kvt_undo_list(struct kvt_core *core, uint32_t page, uint32_t n);

void kvt_undo_lease_save(struct kvt_core *core, uint32_t lease);
/** A free lease that is about to be made; also stands for the free pages that it will take. */
void kvt_undo_lease_free(struct kvt_core *core, uint32_t lease, uint32_t session);
static inline void kvt_undo_lease(struct kvt_core *core, struct kvt_undo *undo, uint32_t lease)
{
	if (undo->leases[lease] != undo->stamp)
		kvt_undo_lease_save(core, lease);
}
/** The keys of a lease's tail. */
void kvt_undo_tail(struct kvt_core *core, uint32_t lease);

void kvt_undo_session(struct kvt_core *core, uint32_t session);
/** What each of its operations changes: counts of entries, completions and operations. */
void kvt_undo_progress(struct kvt_core *core, uint32_t session);
void kvt_undo_pending(struct kvt_core *core, uint32_t pending);
void kvt_undo_space(struct kvt_core *core, uint32_t namespace_id);
void kvt_undo_opened(struct kvt_core *core, uint32_t session, uint32_t namespace_id);

/** An empty log, which a mutation of now begins with. */
void kvt_undo_begin(struct kvt_core *core);

/** Words that the largest mutation can need. */
uint64_t kvt_undo_capacity(const struct kvt_core_config *config);

/** Back to before the mutation that a dead daemon was in. Trusts the log as little as the rest:
 * 0, or -EUCLEAN and nothing changed. Adds RAISE events. */
struct kvt_doubt;
int kvt_undo_roll_back(struct kvt_core *core, struct kvt_doubt *doubt);

#endif
