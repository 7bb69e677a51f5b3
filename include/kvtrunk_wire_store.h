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
};

/** First message, with the descriptor of the key area: sealed against SHRINK and GROW. The client
 * writes keys there, the store only reads. */
struct kvt_store_welcome {
	struct kvt_message head;
	uint64_t instance[2]; /* of the daemon whose pool it fills */
	uint32_t n_keys;      /* u32 elements of the key area */
	uint32_t min_positions; /* fewer are not worth asking for */
};
_Static_assert(sizeof(struct kvt_store_welcome) == 48, "kvt_store_welcome");

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
};
_Static_assert(sizeof(struct kvt_store_fetch) == 72, "kvt_store_fetch");

struct kvt_store_answer {
	struct kvt_message head;
	uint32_t positions;   /* that are loaded behind the anchor; 0: none */
	uint32_t expected_us; /* until the last of them is there */
};
_Static_assert(sizeof(struct kvt_store_answer) == 32, "kvt_store_answer");

/** Counts since the store's start, but for those that say otherwise. */
struct kvt_store_status {
	struct kvt_message head;
	uint64_t connected; /* 1: to a daemon now */
	uint64_t ram_bytes, room_pages, pages; /* now: memory, pages that fit, pages there */
	uint64_t queued_pages; /* now: cached pages that wait to be copied */
	uint64_t dropped_pages; /* found the queue full; since it connected */
	uint64_t copied_pages, spoiled_copies, refused_copies; /* good, bad, without a place */
	uint64_t open_loads, loading_pages; /* now */
	uint64_t loads, cut_loads, loaded_pages;
	uint64_t fetches, hits; /* asked; answered with positions */
	uint64_t helper_ready;  /* 1: the distributed store may be asked now */
	uint64_t helper_starts;
	uint64_t helper_read_pages;
	uint64_t helper_bad_pages; /* missing, or not as they were written */
	uint64_t helper_written_pages;
	uint64_t helper_dropped_pages; /* not written: it was slow or failed */
};
_Static_assert(sizeof(struct kvt_store_status) == 200, "kvt_store_status");

#endif
