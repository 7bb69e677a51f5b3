/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_LANE_H
#define KVT_DAEMON_SERVE_LANE_H

/**
 * @file lane.h
 * Lanes: processes that make wake-ups of clients which may take long.
 *
 * A wake-up walks all watches on a file: 0.1 us each, under a spin lock. A client may have millions
 * of them. So the serving thread rings a bell, or uses a control socket, only if the last wake-up
 * of the same file was cheap and less than KVT_WAKE_CHEAP_NS ago. Else it asks a *lane*, a child of
 * the closer, which measures the processor time and answers:
 *
 *     serving thread -- request, with duplicates of descriptors --> lane -- send() --> client
 *                    <----------- tag, error, cost ---------------
 *
 * A lane has requests of one uid at a time. After a cost above KVT_WAKE_SLOW_NS, all wake-ups of
 * that uid use lanes for KVT_WAKE_SLOW_FOR_NS, on new connections too. The cost is also charged to
 * the session or connection, which ends beyond KVT_COST_MOST_NS.
 *
 * A lane never drops a last reference: a descriptor is released only after the lane has closed its
 * duplicates and answered.
 *
 * While a control socket has requests without answer, the serving thread does not touch it: a
 * reader holds a mutex of the socket while it wakes others.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/keep/closer.h"
#include "daemon/keep/lane_process.h"

#define KVT_WAKE_CHEAP_NS 100000000ull
#define KVT_WAKE_SLOW_FOR_NS 60000000000ull
#define KVT_LANE_BUSY 4 /* requests; then no message of a control socket is taken */

/** Wake-up state of one file that a client watches. */
struct kvt_wake {
	uint64_t cheap_until_ns; /* until then it needs no lane */
	uint32_t outstanding;    /* requests without answer, all in `lane` */
	uint32_t lane;
	bool owed;               /* bell: ring again once they are answered */
};

struct kvt_lane {
	uint32_t uid;         /* of its requests, or of the last ones */
	uint32_t outstanding; /* requests without answer */
	uint32_t generation;  /* of its poll's tag */
	bool armed;
	bool full;            /* something waits for its answers */
};

/** Uids whose wake-ups were slow. When full, the oldest is forgotten. */
#define KVT_SLOW_UIDS 32
struct kvt_slow_uids {
	uint64_t until_ns; /* of the last of them */
	struct {
		uint64_t until_ns;
		uint32_t uid;
	} at[KVT_SLOW_UIDS];
};

struct kvt_daemon;

/** Choose the lane for a wake-up of this uid. NULL: do it here, then call kvt_wake_done(). The lane
 * may be busy, see kvt_lane_is_busy(). */
struct kvt_lane *kvt_lane_for(struct kvt_daemon *daemon, const struct kvt_wake *wake,
			      uint32_t uid);
/** True if the lane takes no request of this uid now. Set `full` to be called when it does. */
bool kvt_lane_is_busy(const struct kvt_lane *lane, uint32_t uid);
/** Send a request. `tag` names the owner of `wake` (KVT_TAG_BELL, KVT_TAG_CONNECTION); 0 and NULL
 * if no owner waits for the answer. `fds`: the file, then the `n_fds` - 1 that the message carries.
 * False with errno on failure; EAGAIN sets lane->full. Never blocks. */
bool kvt_lane_ask(struct kvt_daemon *daemon, struct kvt_lane *lane, struct kvt_wake *wake,
		  uint32_t uid, enum kvt_lane_op op, uint64_t tag, const int *fds, uint32_t n_fds,
		  const void *data, size_t bytes);
/** Have `leaving` wait for all requests so far of its uid's lane. */
void kvt_lane_guard(const struct kvt_daemon *daemon, struct kvt_leaving *leaving);
/** Take the next answer of a lane whose poll fired. KVT_LANE_LOST: its open requests are lost.
 * False: no answer now; the poll is armed again if requests are outstanding. */
bool kvt_lane_next(struct kvt_daemon *daemon, uint32_t slot, uint32_t generation,
		   struct kvt_lane_answer *ret_answer);
/** Start with a new lane process. Requests of the last one are lost. */
void kvt_lane_reset(struct kvt_daemon *daemon, uint32_t slot);
/** Note a wake-up made on this thread since `stamp` (cycles). */
void kvt_wake_done(const struct kvt_daemon *daemon, struct kvt_wake *wake, uint64_t stamp);

#endif
