/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_HELPER_H
#define KVT_STORE_HELPER_H

/**
 * @file helper.h
 * A helper process: the library of a distributed store runs there, never in kvtstored.
 *
 *     STOPPED --start--> STARTING --READY--> READY
 *        ^                  |                  |   it exits, lies or is silent: SIGKILL
 *        +----reaped---- ENDING <--------------+
 *
 * Of each kind one request is open at most, of GET two. Those that take long keep their kind
 * closed: callers wait no longer than they want, and ask nothing more. Requests of a helper that is
 * killed complete with nothing once it is reaped: only then can it no longer write their memory.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_wire_helper.h"

#define KVT_HELPER_OPEN (2u + KVT_HELPER_GETS) /* EXISTS, PUT, GETs */

enum kvt_helper_state {
	KVT_HELPER_STOPPED = 0,
	KVT_HELPER_STARTING,
	KVT_HELPER_IS_READY,
	KVT_HELPER_ENDING,
};

struct kvt_helper_options {
	const char *command;   /* for the shell */
	uint64_t patience_ns;  /* for READY and for each answer */
	int memory_fd;         /* of the store's memory */
	uint64_t memory_bytes, record_bytes, batch_bytes;
};

struct kvt_helper {
	struct kvt_helper_options options;
	enum kvt_helper_state state;
	int epoll;                 /* where fd is watched */
	int fd;                    /* -1: none */
	int pid;
	uint64_t since_ns;         /* STARTING: its start */
	uint64_t start_ns;         /* STOPPED: no start before */
	uint32_t failures;         /* ends since the last answer */
	uint64_t starts, kills;
	uint64_t cookie;           /* of the last request */
	char kind[KVT_HELPER_KIND]; /* as the last one that was ready said */
	struct kvt_helper_open {
		uint64_t begun_ns; /* 0: no request is open */
		enum kvt_helper_type kind;
		struct kvt_helper_request *request;
	} open[KVT_HELPER_OPEN];
};

/** A request that completed. Its pages are valid until the next kvt_helper_ask() of its kind. */
struct kvt_helper_done {
	enum kvt_helper_type kind;
	bool answered;   /* false: its helper is gone */
	uint64_t cookie; /* struct kvt_helper's, as kvt_helper_ask() left it */
	uint32_t n_pages;
	const struct kvt_helper_page *pages;
	uint64_t bits[KVT_HELPER_PAGES / 64]; /* as in struct kvt_helper_answer */
};

/** Prepare. Nothing is started. -ENOMEM. */
int kvt_helper_init(struct kvt_helper *helper, const struct kvt_helper_options *options,
		    int epoll);
/** Kill the process, wait for its end, and forget open requests. */
void kvt_helper_destroy(struct kvt_helper *helper);

/** The pages of the next request of a kind, to fill; NULL: it cannot be asked now. */
struct kvt_helper_page *kvt_helper_room(const struct kvt_helper *helper,
					enum kvt_helper_type kind);
/** Send the request whose n pages were filled. -EAGAIN: it does not read; ask later. */
int kvt_helper_ask(struct kvt_helper *helper, enum kvt_helper_type kind, uint32_t n_pages,
		   uint64_t now_ns);
/** Start, watch and reap the process, and take its answers. Returns true for each request that
 * completed; call it until it returns false. */
bool kvt_helper_turn(struct kvt_helper *helper, uint64_t now_ns, struct kvt_helper_done *ret_done);
/** Check the bit of a page. */
bool kvt_helper_bit(const struct kvt_helper_done *done, uint32_t page);

/** Write the seal of a record with these checksums, and check that it is sealed with this name. */
void kvt_helper_seal(struct kvt_helper_seal *seal, const uint8_t name[KVT_HELPER_NAME],
		     const uint32_t crc[4], uint64_t record_bytes);
bool kvt_helper_sealed(const struct kvt_helper_seal *seal, const uint8_t name[KVT_HELPER_NAME],
		       const uint32_t crc[4], uint64_t record_bytes);

#endif
