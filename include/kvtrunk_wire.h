/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_H
#define KVTRUNK_WIRE_H

/**
 * @file kvtrunk_wire.h
 * Every byte that clients and the daemon share: the arena, the session segment and the messages of
 * the control socket.
 *
 * Applications include kvtrunk.h. This header is for the library, the daemon, debuggers and clients
 * in another language.
 *
 *     arena     tree and page records. Written by the daemon alone, mapped read-only by clients.
 *     segment   one per session: SQ, CQ, fence words. Written by both.
 *     areas     one per session: key area, list area. Written by both.
 *     mirror    one per session that asks for it. Written by its clients; the daemon never maps it.
 *     feed      one while there are subscribers. Written by the daemon alone, mapped read-only.
 *     messages  fixed structs on a SOCK_SEQPACKET socket, one message a packet.
 *
 * Its parts: kvtrunk_wire_arena.h; kvtrunk_wire_operations.h, entries and completions;
 * kvtrunk_wire_segment.h, segment and mirror; kvtrunk_wire_feed.h, the feed;
 * kvtrunk_wire_control.h and kvtrunk_wire_admin.h, messages; kvtrunk_wire_counts.h.
 *
 * All integers are little endian; kvtrunk does not build for another byte order. Every structure
 * has a fixed size that a static assertion holds. kvt_abi_layout() folds sizes and offsets into one
 * number that both ends compare first: two builds that disagree never touch the same memory.
 *
 * The daemon's own object, the ledger, is private to it: daemon/core/ledger.h, which also says
 * which fields of the arena are facts and which are derived.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_types.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_base.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_counts.h"
#include "kvtrunk_wire_feed.h"
#include "kvtrunk_wire_operations.h"
#include "kvtrunk_wire_segment.h"

/** One number that changes when a structure that clients and the daemon share does: sizes,
 * alignments, and the offsets that a change of order would move. */
static inline uint64_t kvt_abi_layout(void)
{
	static const uint32_t facts[] = {
		KVT_ABI, KVT_LINE, KVT_FENCE_WORDS, KVT_OP_COUNT, KVT_REASON_COUNT,
		KVT_ARENA_SECTIONS,
		sizeof(struct kvt_arena_header), offsetof(struct kvt_arena_header, counters),
		offsetof(struct kvt_arena_header, state),
		offsetof(struct kvt_arena_header, mutation),
		sizeof(struct kvt_counters), sizeof(struct kvt_section),
		sizeof(struct kvt_node), offsetof(struct kvt_node, lock_ref),
		offsetof(struct kvt_node, expiry_ns),
		offsetof(struct kvt_node, younger), sizeof(struct kvt_page_record),
		sizeof(struct kvt_namespace_record), sizeof(struct kvt_sqe), sizeof(struct kvt_cqe),
		sizeof(struct kvt_segment_header), offsetof(struct kvt_segment_header, cq_tail),
		offsetof(struct kvt_segment_header, gone), sizeof(struct kvt_fence_word),
		sizeof(struct kvt_message_hello), sizeof(struct kvt_message_welcome),
		sizeof(struct kvt_slab_record), sizeof(struct kvt_pool_geometry),
		sizeof(struct kvt_message_group), sizeof(struct kvt_message_namespace),
		sizeof(struct kvt_message_admin), sizeof(struct kvt_admin_status),
		sizeof(struct kvt_admin_option), sizeof(struct kvt_admin_client),
		sizeof(struct kvt_message_feed),
		sizeof(struct kvt_feed_header), sizeof(struct kvt_feed_entry),
	};

	return kvt_layout_fold(facts, sizeof(facts) / sizeof(facts[0]));
}

#endif
