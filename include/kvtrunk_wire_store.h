/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_STORE_H
#define KVTRUNK_WIRE_STORE_H

/**
 * @file kvtrunk_wire_store.h
 * Messages between a client and a store: fixed structs on a SOCK_SEQPACKET socket, one message a
 * packet. The daemon is no part of it.
 *
 *     store   WELCOME  + descriptor of the connection's key area
 *     client  FETCH    which keys it lacks, behind which cached page
 *     store   ANSWER   how many of them it loads: they are announced in the pool by now
 *
 * The socket has the name of the daemon's, with .store instead of .sock.
 */

#include <stdint.h>

#include "kvtrunk_wire_control.h"

#define KVT_STORE_MAGIC 0x5356414bu /* "KAVS" */
#define KVT_STORE_KEYS (1u << 20)   /* u32 elements of a key area */
#define KVT_STORE_OPEN 64u          /* FETCHes of a connection without their answer */

enum kvt_store_type {
	KVT_STORE_WELCOME = 1,
	KVT_STORE_FETCH = 2,
	KVT_STORE_ANSWER = 3,
	KVT_STORE_STATUS = 4, /* client: the head alone; store: struct kvt_store_status */
	KVT_STORE_DROP = 5,   /* the same; of uid 0 or the store's: forget all pages */
};

/** First message, with the descriptor of the key area: sealed against SHRINK and GROW. The client
 * writes keys there, the store only reads. */
struct kvt_store_welcome {
	struct kvt_message head;
	uint64_t instance[2]; /* of the daemon whose pool it fills */
	uint32_t n_keys;      /* u32 elements of the key area */
	uint32_t min_positions; /* fewer are not worth asking for */
	uint32_t patience_ms; /* that an answer to a KVT_STORE_PATIENT ask may take; 0: none */
	uint32_t reserved;
};
_Static_assert(sizeof(struct kvt_store_welcome) == 56, "kvt_store_welcome");

#define KVT_STORE_PATIENT 1u /* no request waits for the answer: it may ask a distributed store */

/** Ask for the keys at [keys_at, keys_at + n_keys) of the key area, in whole pages, behind what a
 * probe found: `anchor` is its last page, and (node, generation, positions) its handle; all 0: from
 * the root. The keys must stay until the answer. */
struct kvt_store_fetch {
	struct kvt_message head; /* cookie: the client's, copied to the answer */
	uint64_t namespace_digest[2];
	uint64_t root_key;
	uint32_t node, generation, positions;
	uint32_t anchor;
	uint32_t keys_at, n_keys;
	uint32_t flags; /* KVT_STORE_PATIENT */
	uint32_t reserved;
};
_Static_assert(sizeof(struct kvt_store_fetch) == 80, "kvt_store_fetch");

struct kvt_store_answer {
	struct kvt_message head;
	uint32_t positions;   /* that are loaded behind the anchor; 0: none */
	uint32_t expected_us; /* until the last of them is there */
};
_Static_assert(sizeof(struct kvt_store_answer) == 32, "kvt_store_answer");

/** Counts of a store: X(kind, name, meaning), in the order of struct kvt_store_status. `kvtctl
 * store status --json` (member NAME) and the metrics (kvtrunk_store_NAME) come from this table, by
 * the rules of KVT_COUNTERS. */
#define KVT_STORE_COUNTS(X)                                                                        \
	X(GAUGE, connected, "1 while the store has a session of its daemon.")                      \
	X(GAUGE, uptime_ns, "Age of the store.")                                                   \
	X(GAUGE, instances, "Instances with a session, which share the store.")                   \
	X(GAUGE, pool_pages, "Pages of the pool that the store serves.")                           \
	X(GAUGE, ram_bytes, "Memory for copies.")                                                  \
	X(GAUGE, room_pages, "Pages that fit into the store.")                                     \
	X(GAUGE, pages, "Pages that are in the store.")                                            \
	X(GAUGE, queued_pages, "Cached pages that wait to be copied, or are being copied.")        \
	X(COUNTER, dropped_pages, "Pages that found the queue full: copied later, or never.")      \
	X(COUNTER, copied_pages, "Pages that were copied into the store.")                         \
	X(COUNTER, spoiled_copies, "Copies thrown away: the page was evicted meanwhile.")          \
	X(COUNTER, refused_copies, "Pages not copied: the store was full of younger ones.")        \
	X(GAUGE, open_loads, "Loads that have begun and not ended.")                               \
	X(GAUGE, loading_pages, "Pages that these still have to load.")                            \
	X(COUNTER, loads, "Loads begun.")                                                          \
	X(COUNTER, cut_loads, "Loads that ended before their last page.")                          \
	X(COUNTER, loaded_pages, "Pages loaded into the pool.")                                    \
	X(COUNTER, fetches, "Times that clients asked for what the pool lacked.")                  \
	X(COUNTER, hits, "Of these: answered with pages.")                                         \
	X(COUNTER, computed_pages, "Pages that clients computed, as the store saw them.")          \
	X(COUNTER, recomputed_pages, "Of these: the store had them.")                              \
	X(GAUGE, unloaded_ns, "Time since a page was loaded last, or since the start.")            \
	X(GAUGE, unloaded_pages, "Pages that clients computed in this time.")                      \
	X(GAUGE, scrub_bytes, "Bytes of the pool that are read again in a second. 0: none.")       \
	X(COUNTER, scrubbed_pages, "Cached pages that were read again.")                           \
	X(COUNTER, damaged_pages, "Of these: pages that were written after they were sealed.")     \
	X(GAUGE, scrub_round_ns, "Time in which all cached pages were read again. 0: none yet.")   \
	X(GAUGE, scrub_since_ns, "Time since all were to be read for the first time.")             \
	X(GAUGE, coming_pages, "Pages on their way from a tier below the memory.")                 \
	X(GAUGE, file_bytes, "Size of the file. 0: there is none.")                                \
	X(GAUGE, file_room_pages, "Pages that fit into the file.")                                 \
	X(GAUGE, file_pages, "Pages that are in the file.")                                        \
	X(GAUGE, file_writing_pages, "Pages that are being written to the file.")                  \
	X(COUNTER, file_written_pages, "Pages written to the file.")                               \
	X(COUNTER, file_dropped_pages, "Pages that left the memory and were not written in time.") \
	X(GAUGE, file_budget_bytes, "Most that is written to the file in a second. 0: no limit.")  \
	X(COUNTER, file_budget_dropped_pages, "Pages that left, unwritten, for want of budget.")   \
	X(COUNTER, file_budget_used_pages, "Of these: pages that had come back.")                  \
	X(COUNTER, file_read_pages, "Pages read from the file.")                                   \
	X(COUNTER, file_bad_pages, "Pages of the file that were not as they were written.")        \
	X(GAUGE, file_closed, "1 while the file is not read: its disk fails often, or is slow.")   \
	X(GAUGE, file_bad_slots, "Places of the file whose disk failed, until the next start.")    \
	X(GAUGE, helper_ready, "1 while a distributed store may be asked.")                        \
	X(COUNTER, helper_starts, "Starts of the helper of a distributed store.")                  \
	X(COUNTER, helper_read_pages, "Pages that the helper brought.")                            \
	X(COUNTER, helper_bad_pages, "Pages of it that were missing, or not as written.")          \
	X(COUNTER, helper_written_pages, "Pages that the helper wrote.")                           \
	X(COUNTER, helper_dropped_pages, "Pages not written in time: it was slow, or ended.")      \
	X(COUNTER, helper_refused_pages, "Pages that it could not write.")                         \
	X(GAUGE, helper_full, "1: of the last 1,000 pages it could not write more than half.")     \
	X(GAUGE, helper_garbage, "1: of the last 1,000 that it brought 11 or more were damaged.")

/** Times that a store measures: X(name, meaning), in the order of struct kvt_store_status.
 * Metrics: histograms kvtrunk_store_NAME_seconds. */
#define KVT_STORE_TIMES(X)                                                                         \
	X(fetch, "From the reading of a FETCH to its answer.")                                     \
	X(load, "From an answer with pages until all of these are loaded.")                        \
	X(file_read, "Read of a page of the file.")                                                \
	X(helper_read, "One GET of pages by the helper.")

#define KVT_STORE_TIME_BUCKETS 16
#define KVT_STORE_TIME_SHIFT 14 /* powers of two of 16,384 ns: 16 us to 0.27 s, and longer */

/** Bucket i counts times below 1 << (KVT_STORE_TIME_SHIFT + i) ns that are in none before it, the
 * last one all longer ones. */
struct kvt_store_time {
	uint64_t sum_ns;
	uint64_t buckets[KVT_STORE_TIME_BUCKETS];
};

/** Answer to STATUS, and to DROP: as it was before. A refused DROP has the result -EPERM. */
struct kvt_store_status {
	struct kvt_message head;
#define KVT_STORE_COUNT(kind, name, meaning) uint64_t name;
	KVT_STORE_COUNTS(KVT_STORE_COUNT)
#undef KVT_STORE_COUNT
#define KVT_STORE_TIME(name, meaning) struct kvt_store_time name##_time;
	KVT_STORE_TIMES(KVT_STORE_TIME)
#undef KVT_STORE_TIME
	char helper_kind[16]; /* of the distributed store, "" before its helper was ready; NUL */
};
_Static_assert(sizeof(struct kvt_store_status) == 432 + 4 * 136 + 16, "kvt_store_status");

#endif
