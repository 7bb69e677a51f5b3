/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_SEGMENT_H
#define KVTRUNK_WIRE_SEGMENT_H

/**
 * @file kvtrunk_wire_segment.h
 * Memory of a session, written by both sides: the segment with its rings and fence words; the
 * mirror of a group.
 */

#include <stdint.h>

#include "kvtrunk_wire_base.h"

#define KVT_SEGMENT_MAGIC 0x313047455354564bull /* "KVTSEG01" */

/* A client can punch holes into its own memory while the daemon uses it; a fault there waits until
 * the hole is made. No seal forbids that, so the sizes bound it: every operation touches little,
 * and no area is larger than one operation can use. */
#define KVT_SEGMENT_BYTES_MAX 65536u

/** First bytes of a session segment: a memfd that the daemon makes, sizes and seals. The key area
 * and the list area are in a second one.
 *
 * The four indices are free running and only ever compared by unsigned difference; entry i is at i
 * & (entries - 1). Each has one writer and a line of its own. The daemon reads sizes from its own
 * copy, never from here: a client can write every byte of this object.
 *
 *   client: entry, then sq_tail (release)      daemon: sq_tail (acquire), entry, sq_head (release)
 *   daemon: entry, then cq_tail (release)      client: cq_tail (acquire), entry, cq_head (release)
 *
 * Sleeping: a side sets its *_need_wakeup, issues a full fence, looks once more, then sleeps on its
 * descriptor. The other side, after publishing, issues a full fence and reads the flag. */
struct kvt_segment_header {
	uint64_t magic;
	uint32_t abi; /* KVT_ABI */
	uint32_t header_bytes;
	uint64_t layout;
	uint64_t object_bytes;
	uint32_t sq_entries; /* powers of two */
	uint32_t cq_entries;
	uint64_t sq_offset;
	uint64_t cq_offset;
	uint64_t fences_offset; /* KVT_FENCE_WORDS lines, the word first on each */
	uint64_t areas_bytes;   /* of the second object; 0: there is none */
	uint64_t keys_offset;   /* in it */
	uint64_t keys_count;    /* u32 */
	uint64_t list_offset;   /* in it */
	uint64_t list_count;    /* u32 */
	uint32_t session;
	uint32_t reserved0[3];
	uint32_t sq_head KVT_ALIGNED(KVT_LINE); /* daemon */
	uint32_t sq_tail KVT_ALIGNED(KVT_LINE); /* client */
	uint32_t client_cpu; /* where it last submitted: number + 1; 0 = unknown */
	uint32_t pace_us;    /* client: its next entry comes within; 0 = unknown */
	uint32_t raises_ring; /* client: 1 = each raise of a fence word rings the doorbell */
	uint32_t cq_head KVT_ALIGNED(KVT_LINE); /* client */
	uint32_t cq_tail KVT_ALIGNED(KVT_LINE); /* daemon */
	uint32_t daemon_cpu; /* where it last answered: number + 1; 0 = unknown */
	uint32_t sq_need_wakeup KVT_ALIGNED(KVT_LINE); /* daemon: "ring my eventfd" */
	uint32_t cq_need_wakeup KVT_ALIGNED(KVT_LINE); /* client: "ring mine" */
	uint32_t gone KVT_ALIGNED(KVT_LINE); /* daemon: session over, errno in the low bits */
	uint8_t reserved1[KVT_LINE - sizeof(uint32_t)];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_segment_header) == 8 * KVT_LINE, "kvt_segment_header");

struct kvt_fence_word {
	uint64_t value;
	uint8_t reserved[KVT_LINE - 8];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_fence_word) == KVT_LINE, "kvt_fence_word");

#define KVT_MIRROR_RING 32768u /* bytes; a power of two */

/** How far a member has read. A line of its own, which it writes and rank 0 polls. */
struct kvt_mirror_reader {
	uint32_t read;       /* as `written`; a futex */
	uint32_t writer_sleeps; /* rank 0: "wake me" */
	uint8_t reserved[KVT_LINE - 8];
};

/** The mirror of a group: messages of rank 0, each for every member, in order. The daemon makes the
 * object, zeroed, and passes it to rank 0 and to each member.
 *
 * A message is a word with its length, at most KVT_MIRROR_MESSAGE_MAX, and its bytes, padded to 4.
 * Positions count bytes modulo 2^32; a byte lies at its position modulo KVT_MIRROR_RING. Rank 0
 * raises `written` behind a whole message, after every rank from 1 to the last has read what it
 * overwrites, joined or not. */
struct kvt_mirror {
	uint32_t written;      /* rank 0; a futex */
	uint32_t reader_sleeps; /* members: "wake me" */
	uint8_t reserved[KVT_LINE - 8];
	struct kvt_mirror_reader readers[KVT_MAX_RANKS]; /* by rank; 0 unused */
	uint8_t ring[KVT_MIRROR_RING];
} KVT_ALIGNED(KVT_LINE);
_Static_assert(sizeof(struct kvt_mirror) == (1 + KVT_MAX_RANKS) * KVT_LINE + KVT_MIRROR_RING,
	       "kvt_mirror");

#endif
