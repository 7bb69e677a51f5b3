/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_LANE_PROCESS_H
#define KVT_DAEMON_KEEP_LANE_PROCESS_H

/**
 * @file lane_process.h
 * A lane: a child of the closer that wakes clients for the serving thread, and their messages. The
 * reasons and the serving thread's side are in daemon/serve/lane.h.
 */

#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_wire.h"

#define KVT_WAKE_SLOW_NS 200000ull

enum kvt_lane_op {
	KVT_LANE_RING = 1, /* send 8 bytes, unless the last ones are unread */
	KVT_LANE_TAKE,     /* remove the first message */
	KVT_LANE_SEND,
	KVT_LANE_TELL,     /* the same, but its failure does not matter */
	KVT_LANE_SHUT,     /* shutdown() */
	KVT_LANE_LOST,     /* no request: see kvt_lane_next() */
};

struct kvt_lane_answer {
	uint64_t number;  /* of the request */
	uint64_t tag;
	uint64_t cost_ns; /* CPU time of the lane */
	uint32_t op;
	int32_t error;    /* errno or 0; ECONNRESET: the lane was killed, outcome unknown */
};

/** A request, with duplicates of descriptors: the file, then those that the message carries. */
struct kvt_lane_request {
	uint64_t number; /* first: the closer peeks at it */
	uint64_t tag;
	uint32_t op;
	uint32_t bytes;
	uint8_t data[KVT_MESSAGE_MAX];
};
#define KVT_LANE_HEAD_BYTES offsetof(struct kvt_lane_request, data)

/** Main function of a lane: serve requests from `link` until it is closed, then exit with 0. Exits
 * with 1 when idle after a slow wake-up: a new process has its full priority again. With an `op`,
 * *in_hand is what the closer answers if the lane is killed. The lane may have answered, too; the
 * owner ignores the second answer of a number. */
__attribute__((noreturn)) void kvt_lane_main(int link, struct kvt_lane_answer *in_hand);
#define KVT_LANE_REFUSED 3

/** Exit in words with KVT_LANE_REFUSED if the host refuses this call, with errno: of a lane, after
 * which its closer ends too, or of a closer. */
void kvt_lane_check(const char *call, long result);

#endif
