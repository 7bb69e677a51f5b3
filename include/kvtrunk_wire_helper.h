/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_WIRE_HELPER_H
#define KVTRUNK_WIRE_HELPER_H

/**
 * @file kvtrunk_wire_helper.h
 * Messages between kvtstored and a helper, which keeps pages in a distributed store: fixed structs
 * on a SOCK_SEQPACKET socket, one message a packet. The socket is the helper's standard input.
 *
 *     store   HELLO   + descriptor of the store's memory
 *     helper  READY   connected: it may be asked
 *     store   EXISTS, GET or PUT: at most one of each without its answer, two of GET
 *     helper  the same kind: a bit for each page
 *
 * Answers may come in any order. A helper ends at end of file. One of another version ends at HELLO
 * or is killed at its READY: the log of kvtstored says so.
 *
 * A page's value in the distributed store is its record and, behind it, its seal. Both lie in the
 * store's memory, where the request says. The store writes and checks seals. A helper stores and
 * brings bytes. After its answer it touches none of them: the store uses them for other pages.
 */

#include <stdint.h>

#include "kvtrunk_wire_control.h"

#define KVT_HELPER_MAGIC 0x4856414bu /* "KAVH" */
#define KVT_HELPER_VERSION 2u
#define KVT_HELPER_PAGES 2048u /* in a request */
#define KVT_HELPER_NAME 16u    /* bytes of a page's name */
#define KVT_HELPER_KIND 16u    /* bytes of a word for the distributed store */
#define KVT_HELPER_GETS 2u     /* without their answers */

enum kvt_helper_type {
	KVT_HELPER_HELLO = 1,
	KVT_HELPER_READY = 2,
	KVT_HELPER_EXISTS = 3,
	KVT_HELPER_GET = 4,
	KVT_HELPER_PUT = 5,
};

/** First message. `head.version` of all messages is KVT_HELPER_VERSION. */
struct kvt_helper_hello {
	struct kvt_message head;
	uint64_t memory_bytes; /* of the descriptor */
	uint64_t record_bytes; /* of each page */
	uint64_t batch_bytes;  /* most record bytes of a GET or PUT */
};
_Static_assert(sizeof(struct kvt_helper_hello) == 48, "kvt_helper_hello");

struct kvt_helper_ready {
	struct kvt_message head;
	char kind[KVT_HELPER_KIND]; /* of store, for people: a-z and 0-9, then a NUL or more */
};
_Static_assert(sizeof(struct kvt_helper_ready) == 40, "kvt_helper_ready");

/** Behind each record. The crc32c is that of the crc32c of each quarter of the record, the last one
 * with the up to three bytes over, and of the seal with crc32c 0. */
struct kvt_helper_seal {
	uint32_t magic; /* KVT_HELPER_MAGIC */
	uint32_t crc32c;
	uint64_t record_bytes;
	uint8_t name[KVT_HELPER_NAME];
};
_Static_assert(sizeof(struct kvt_helper_seal) == 32, "kvt_helper_seal");

struct kvt_helper_page {
	uint8_t name[KVT_HELPER_NAME];
	uint64_t record_at, seal_at; /* bytes in the store's memory; EXISTS: 0 */
};

/** EXISTS, GET and PUT. The message ends behind its last page. */
struct kvt_helper_request {
	struct kvt_message head; /* cookie: the store's, copied to the answer */
	uint32_t n_pages;
	uint32_t reserved;
	struct kvt_helper_page pages[KVT_HELPER_PAGES];
};
_Static_assert(sizeof(struct kvt_helper_request) == 32 + 32 * KVT_HELPER_PAGES,
	       "kvt_helper_request");

/** Bit i % 64 of bits[i / 64]: page i is there, was brought, or was stored. */
struct kvt_helper_answer {
	struct kvt_message head;
	uint64_t bits[KVT_HELPER_PAGES / 64];
};
_Static_assert(sizeof(struct kvt_helper_answer) == 24 + KVT_HELPER_PAGES / 8,
	       "kvt_helper_answer");

#endif
