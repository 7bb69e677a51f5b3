/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LOG_FEED_H
#define KVT_LOG_FEED_H

/**
 * @file feed.h
 * The writing end of the feed (kvtrunk_wire_feed.h).
 *
 * Input is the core's changes, and what the arena says of the pages in them. Nothing is refused and
 * nothing waits: what readers have not read is overwritten. Callers: daemon/serve/feed.c, tests.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shm/arena.h"

struct kvt_change;
struct kvt_core;
struct kvt_feed_header;

#define KVT_FEED_BYTES_LEAST (1ull << 20)

struct kvt_feed_writer {
	struct kvt_feed_header *header;
	uint8_t *ring;
	uint64_t ring_bytes;
	uint64_t head, end; /* end: behind what is written; `tail` at the end of the effect */
	uint64_t ahead;     /* the cache has the ring up to there */
	uint64_t epoch;     /* that readers know */
	bool tell_used;     /* write USED */
	const struct kvt_core *core;
	struct kvt_arena_view view;
};

/** Bytes of the object for a ring of at most `wish` bytes, which becomes a power of two. */
uint64_t kvt_feed_object_bytes(uint64_t wish);

/** Begin an empty feed in zeroed memory of kvt_feed_object_bytes(). `arena` is the core's. */
void kvt_feed_begin(struct kvt_feed_writer *writer, void *memory, uint64_t bytes,
		    const struct kvt_core *core, const void *arena, uint64_t arena_bytes,
		    bool tell_used);

/** End it: readers get -ECONNRESET behind the last record. */
void kvt_feed_end(struct kvt_feed_writer *writer);

/** Write the records of one effect. */
void kvt_feed_write(struct kvt_feed_writer *writer, const struct kvt_change *change);

#endif
