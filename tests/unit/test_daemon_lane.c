/* SPDX-License-Identifier: Apache-2.0 */
/* The serving thread's side of a lane that ends: each request is counted as answered once.
 *
 * Inputs: answers by hand, as a lane and the closer of a killed one give them. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/serve/daemon.h"
#include "tests/lib/cases.h"

enum { OURS = 7, OTHER = 8 }; /* uids */

struct lane {
	struct kvt_daemon *daemon;
	int other; /* the lane's end */
	uint64_t number; /* of the last request taken */
};

static int start(void **state)
{
	static struct lane lane;
	char why[200];
	int ends[2];

	lane = (struct lane){ .daemon = calloc(1, sizeof(*lane.daemon)) };
	if (!lane.daemon || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0 ||
	    kvt_loop_open(&lane.daemon->loop, KVT_LOOP_EPOLL, KVT_LOOP_EPOLL, 1, why,
			  sizeof(why)) != 0)
		return -1;
	lane.daemon->closer.n_lanes = 1;
	lane.daemon->closer.lanes[0] = ends[0];
	lane.other = ends[1];
	*state = &lane;
	return 0;
}

static int end(void **state)
{
	struct lane *lane = *state;

	kvt_loop_close(&lane->daemon->loop);
	close(lane->daemon->closer.lanes[0]);
	close(lane->other);
	free(lane->daemon);
	return 0;
}

static bool ask(struct lane *lane, struct kvt_wake *wake, uint32_t uid)
{
	return kvt_lane_ask(lane->daemon, &lane->daemon->lanes[0], wake, uid, KVT_LANE_RING, 1,
			    &lane->other, 1, NULL, 0);
}

static void take(struct lane *lane)
{
	struct kvt_lane_request request;

	assert_true(recv(lane->other, &request, sizeof(request), MSG_DONTWAIT) > 0);
	lane->number = request.number;
}

/* Answer the last request taken. */
static void answer(struct lane *lane, int error)
{
	const struct kvt_lane_answer answer = { .number = lane->number, .tag = 1,
						.op = KVT_LANE_RING, .error = error };

	assert_int_equal(send(lane->other, &answer, sizeof(answer), MSG_DONTWAIT), sizeof(answer));
}

static bool next(struct lane *lane)
{
	struct kvt_lane_answer ignored;

	return kvt_lane_next(lane->daemon, 0, lane->daemon->lanes[0].generation, &ignored);
}

TEST_WITH(an_answer_given_twice_is_counted_once, start, end)
{
	struct lane *lane = *state;
	struct kvt_wake first = { 0 }, second = { 0 };

	assert_true(ask(lane, &first, OURS));
	take(lane);
	answer(lane, 0);
	answer(lane, ECONNRESET); /* by the closer: it was killed right after */
	assert_true(ask(lane, &second, OURS)); /* nobody takes it */
	assert_true(next(lane));
	assert_false(next(lane));
	assert_int_equal(lane->daemon->lanes[0].outstanding, 1);
	assert_false(ask(lane, &second, OTHER)); /* it would wait behind ours */
	take(lane);
	answer(lane, 0);
	assert_true(next(lane));
	assert_int_equal(lane->daemon->lanes[0].outstanding, 0);
	assert_true(ask(lane, &second, OTHER));
}

TEST_WITH(what_a_lost_lane_answers_later_is_not_counted, start, end)
{
	struct lane *lane = *state;
	struct kvt_wake wake = { 0 };

	assert_true(ask(lane, &wake, OURS));
	take(lane);
	kvt_lane_reset(lane->daemon, 0);
	assert_true(ask(lane, &wake, OURS));
	answer(lane, 0);
	assert_false(next(lane));
	assert_int_equal(lane->daemon->lanes[0].outstanding, 1);
}
