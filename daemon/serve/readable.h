/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_READABLE_H
#define KVT_DAEMON_SERVE_READABLE_H

/**
 * @file readable.h
 * Connections with a message: round robin between uids, FIFO within one.
 *
 * So a flood's messages queue behind each other, not before those of other users. Uids that are
 * equal modulo KVT_READABLE_QUEUES share a queue.
 */

#include <stdbool.h>
#include <stdint.h>

#include <bsd/sys/queue.h>

#include "shm/assert.h"

#define KVT_READABLE_QUEUES 64

/** Part of a connection. */
struct kvt_readable {
	uint32_t uid;
	bool queued;
	TAILQ_ENTRY(kvt_readable) next;
};
TAILQ_HEAD(kvt_readable_queue, kvt_readable);

struct kvt_readables {
	uint64_t filled; /* a bit for each queue that is not empty */
	uint32_t turn;   /* the queue that is next */
	struct kvt_readable_queue queues[KVT_READABLE_QUEUES];
};

static inline void kvt_readables_init(struct kvt_readables *set)
{
	set->filled = set->turn = 0;
	for (uint32_t i = 0; i < KVT_READABLE_QUEUES; i++)
		TAILQ_INIT(&set->queues[i]);
}

/** Add a connection that is not queued. */
static inline void kvt_readable_add(struct kvt_readables *set, struct kvt_readable *one,
				    uint32_t uid)
{
	uint32_t at = uid % KVT_READABLE_QUEUES;

	KVT_ASSERT(!one->queued);
	one->uid = uid;
	one->queued = true;
	TAILQ_INSERT_TAIL(&set->queues[at], one, next);
	set->filled |= 1ull << at;
}

/** Remove a connection, if it is queued. */
static inline void kvt_readable_remove(struct kvt_readables *set, struct kvt_readable *one)
{
	uint32_t at = one->uid % KVT_READABLE_QUEUES;

	if (!one->queued)
		return;
	one->queued = false;
	TAILQ_REMOVE(&set->queues[at], one, next);
	if (TAILQ_EMPTY(&set->queues[at]))
		set->filled &= ~(1ull << at);
}

/** Take the next connection. The set must not be empty. */
static inline struct kvt_readable *kvt_readable_take(struct kvt_readables *set)
{
	uint64_t from_turn = set->filled & ~0ull << set->turn;
	uint32_t at = (uint32_t)__builtin_ctzll(from_turn ? from_turn : set->filled);
	struct kvt_readable *one = TAILQ_FIRST(&set->queues[at]);

	KVT_ASSERT(set->filled && one);
	kvt_readable_remove(set, one);
	set->turn = (at + 1) % KVT_READABLE_QUEUES;
	return one;
}

#endif
