/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lane.c
 * The serving thread's side of lanes: choose one, send requests, count answers (lane.h).
 *
 * Inputs are requests from connection.c and session.c, and answers from lane processes. A wake with
 * outstanding requests has all of them in one lane, so they keep their order. `outstanding` of
 * lane, wake and closer drop together, by an answer or by kvt_lane_reset().
 */
#include "daemon/serve/lane.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/keep/rights.h"
#include "daemon/serve/daemon.h"
#include "shm/assert.h"

static uint32_t slot_of(const struct kvt_daemon *daemon, const struct kvt_lane *lane)
{
	return (uint32_t)(lane - daemon->lanes);
}

static bool is_slow(const struct kvt_daemon *daemon, uint32_t uid)
{
	const struct kvt_slow_uids *slow = &daemon->slow_uids;

	for (uint32_t i = 0; daemon->real_ns < slow->until_ns && i < KVT_SLOW_UIDS; i++)
		if (slow->at[i].uid == uid && daemon->real_ns < slow->at[i].until_ns)
			return true;
	return false;
}

static void remember_slow(struct kvt_daemon *daemon, uint32_t uid)
{
	struct kvt_slow_uids *slow = &daemon->slow_uids;
	uint32_t at = 0;

	for (uint32_t i = 0; i < KVT_SLOW_UIDS && slow->at[at].uid != uid; i++)
		if (slow->at[i].uid == uid || slow->at[i].until_ns < slow->at[at].until_ns)
			at = i;
	slow->at[at].uid = uid;
	slow->at[at].until_ns = slow->until_ns = daemon->real_ns + KVT_WAKE_SLOW_FOR_NS;
}

struct kvt_lane *kvt_lane_for(struct kvt_daemon *daemon, const struct kvt_wake *wake, uint32_t uid)
{
	struct kvt_lane *least = &daemon->lanes[0];

	if (wake->outstanding)
		return &daemon->lanes[wake->lane];
	if (!daemon->closer.n_lanes || daemon->closer.lost)
		return NULL;
	/* While the daemon stops, a slow wake-up delays no other client. */
	if (!is_slow(daemon, uid) && (daemon->real_ns < wake->cheap_until_ns || daemon->over))
		return NULL;
	for (uint32_t i = 0; i < daemon->closer.n_lanes; i++) {
		struct kvt_lane *lane = &daemon->lanes[i];

		if (lane->outstanding && lane->uid == uid)
			return lane;
		if (lane->outstanding < least->outstanding)
			least = lane;
	}
	return least;
}

bool kvt_lane_is_busy(const struct kvt_lane *lane, uint32_t uid)
{
	return lane->outstanding && (lane->uid != uid || lane->outstanding >= KVT_LANE_BUSY);
}

void kvt_lane_guard(const struct kvt_daemon *daemon, struct kvt_leaving *leaving)
{
	for (uint32_t i = 0; i < daemon->closer.n_lanes; i++) {
		const struct kvt_lane *lane = &daemon->lanes[i];

		if (!lane->outstanding || lane->uid != leaving->uid)
			continue;
		leaving->lane = i;
		leaving->lane_answers = daemon->closer.answers[i] + lane->outstanding;
	}
}

static void arm(struct kvt_daemon *daemon, struct kvt_lane *lane)
{
	uint32_t slot = slot_of(daemon, lane);

	if (lane->armed)
		return;
	kvt_loop_poll(&daemon->loop, daemon->closer.lanes[slot], POLLIN,
		      kvt_tag(KVT_TAG_LANE, slot, lane->generation));
	kvt_loop_flush(&daemon->loop); /* a spinning turn does not flush */
	lane->armed = true;
}

bool kvt_lane_ask(struct kvt_daemon *daemon, struct kvt_lane *lane, struct kvt_wake *wake,
		  uint32_t uid, enum kvt_lane_op op, uint64_t tag, const int *fds, uint32_t n_fds,
		  const void *data, size_t bytes)
{
	static struct kvt_lane_request request;
	uint32_t slot = slot_of(daemon, lane);

	if (lane->outstanding && lane->uid != uid) {
		lane->full = true;
		errno = EAGAIN;
		return false;
	}
	KVT_ASSERT(slot < daemon->closer.n_lanes && bytes <= sizeof(request.data));
	request.number = daemon->closer.answers[slot] + lane->outstanding + 1;
	request.tag = tag;
	request.op = op;
	request.bytes = (uint32_t)bytes;
	if (bytes)
		memcpy(request.data, data, bytes);
	if (kvt_rights_send(daemon->closer.lanes[slot], &request, KVT_LANE_HEAD_BYTES + bytes, fds,
			    n_fds) < 0) {
		lane->full |= errno == EAGAIN;
		return false;
	}
	lane->uid = uid;
	lane->outstanding++;
	if (wake) {
		wake->outstanding++;
		wake->lane = slot;
	}
	arm(daemon, lane);
	return true;
}

void kvt_wake_done(const struct kvt_daemon *daemon, struct kvt_wake *wake, uint64_t stamp)
{
	bool cheap = (kvt_cycles() - stamp) * 1000 < KVT_WAKE_SLOW_NS * daemon->cycles_per_us;

	/* If not cheap, the thread may have been preempted; a lane measures the next one. */
	wake->cheap_until_ns = cheap ? daemon->real_ns + KVT_WAKE_CHEAP_NS : 0;
}

/* Forget the requests that a lost lane will not answer. */
static void forget(struct kvt_daemon *daemon, uint32_t slot)
{
	struct kvt_lane *lane = &daemon->lanes[slot];

	daemon->closer.answers[slot] += lane->outstanding;
	lane->outstanding = 0;
	lane->full = true;
}

static void count(struct kvt_daemon *daemon, uint32_t slot, const struct kvt_lane_answer *answer)
{
	struct kvt_lane *lane = &daemon->lanes[slot];

	lane->outstanding--;
	daemon->closer.answers[slot]++;
	if (answer->cost_ns <= KVT_WAKE_SLOW_NS)
		return;
	daemon->stats.costly_ns += answer->cost_ns;
	remember_slow(daemon, lane->uid);
}

/* Receive an answer. For a lane that is killed right after an answer the closer answers again. */
static ssize_t receive(const struct kvt_daemon *daemon, uint32_t slot,
		       struct kvt_lane_answer *ret_answer)
{
	int link = daemon->closer.lanes[slot];
	ssize_t n;

	do
		n = recv(link, ret_answer, sizeof(*ret_answer), MSG_DONTWAIT);
	while (n == sizeof(*ret_answer) && ret_answer->number <= daemon->closer.answers[slot]);
	return n;
}

bool kvt_lane_next(struct kvt_daemon *daemon, uint32_t slot, uint32_t generation,
		   struct kvt_lane_answer *ret_answer)
{
	struct kvt_lane *lane = &daemon->lanes[slot];
	ssize_t n;

	if (lane->generation != generation)
		return false;
	lane->armed = false;
	n = receive(daemon, slot, ret_answer);
	if (n < 0)
		kvt_host_refuses(daemon, "recvfrom", errno);
	if (n == 0 && !daemon->closer.lost) { /* closer and lane have ended */
		daemon->closer.lost = true;
		*ret_answer = (struct kvt_lane_answer){ .op = KVT_LANE_LOST };
	} else if (n != sizeof(*ret_answer)) {
		if (lane->outstanding)
			arm(daemon, lane);
		return false;
	}
	if (ret_answer->op == KVT_LANE_LOST)
		forget(daemon, slot);
	else
		count(daemon, slot, ret_answer);
	return true;
}

void kvt_lane_reset(struct kvt_daemon *daemon, uint32_t slot)
{
	struct kvt_lane *lane = &daemon->lanes[slot];

	kvt_loop_cancel(&daemon->loop, daemon->closer.lanes[slot],
			kvt_tag(KVT_TAG_LANE, slot, lane->generation), lane->armed);
	lane->generation++;
	lane->armed = false;
	forget(daemon, slot);
}
