/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_FEED_H
#define KVTRUNK_WIRE_FEED_H

/**
 * @file kvtrunk_wire_feed.h
 * The feed: a ring of records in a memfd. Written by the daemon alone, mapped read-only by
 * subscribers, which the daemon never looks at.
 *
 *     header    positions `head` and `tail`, free-running, in bytes
 *     ring      entries, each a multiple of 16 bytes and at most KVT_FEED_ENTRY_MAX. None crosses
 *               the ring's end: a PAD fills it
 *
 * The writer moves `head` behind what it is going to overwrite, writes, and moves `tail` once an
 * effect: readers see whole effects. A reader copies an entry before `tail`, then loads `head`: if
 * that is behind the entry's position, the copy may be torn.
 *
 * A feed belongs to one daemon process. `generation` is the arena's of that time, which a successor
 * raises before it serves. The daemon stores 0 there when it ends a feed that has subscribers.
 */

#include <stdint.h>

#include "kvtrunk_feed.h"
#include "kvtrunk_wire_base.h"
#include "kvtrunk_wire_control.h"

#define KVT_FEED_MAGIC 0x3130444545464b21ull /* "!KFEED01" */
#define KVT_FEED_ENTRY_MAX 65536u
#define KVT_FEED_ALIGN 16u

struct kvt_feed_header {
	uint64_t magic;
	uint32_t abi;
	uint32_t header_bytes; /* the ring begins there */
	uint64_t ring_bytes;   /* a power of two, at least 2 * KVT_FEED_ENTRY_MAX */
	uint64_t instance[2];  /* of the arena */
	uint64_t generation;   /* 0: the feed has ended */
	uint64_t head KVT_ALIGNED(KVT_LINE); /* entries before it may be overwritten */
	uint64_t tail KVT_ALIGNED(KVT_LINE); /* entries before it are complete */
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_feed_header) == 3 * KVT_LINE, "kvt_feed_header");

/** One record. A PAD has the first 16 bytes only. */
struct kvt_feed_entry {
	uint32_t bytes; /* of the whole entry */
	uint16_t type;  /* enum kvt_feed_type */
	uint16_t ends; /* STORED: 1 if the pages have a time to live */
	uint64_t seq;
	uint32_t n;
	uint32_t parent;
	uint32_t namespace_id;
	uint32_t sealer;
	uint64_t value[2]; /* STORED: root key. NAMESPACE: digest. CLEARED: epoch */
	/* STORED: n pages, then n * page_size keys. REMOVED, LASTING: n pages.
	 * SIDE: n kvt_feed_side. */
	uint32_t words[];
};
_Static_assert(sizeof(struct kvt_feed_entry) == 48, "kvt_feed_entry");

/** Words of an entry's list. */
static inline uint64_t kvt_feed_words(uint32_t type, uint32_t n, uint32_t page_size)
{
	return type == KVT_FEED_STORED	? n * (1ull + page_size) :
	       type == KVT_FEED_REMOVED ? n :
	       type == KVT_FEED_LASTING ? n :
	       type == KVT_FEED_SIDE	? 3ull * n :
					  0;
}

/** The most pages, or sides, of one entry. */
static inline uint32_t kvt_feed_most(uint32_t type, uint32_t page_size)
{
	uint32_t words = (KVT_FEED_ENTRY_MAX - sizeof(struct kvt_feed_entry)) / sizeof(uint32_t);

	return words / (uint32_t)kvt_feed_words(type, 1, page_size);
}

/** Subscribe or unsubscribe, and the answer, which brings the feed's descriptor (O_RDONLY). */
struct kvt_message_feed {
	struct kvt_message head;
	uint32_t on; /* 1: subscribe, 0: unsubscribe */
	uint32_t reserved;
	char text[KVT_TEXT_BYTES]; /* answer: why not */
};

#endif
