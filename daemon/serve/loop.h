/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_LOOP_H
#define KVT_DAEMON_SERVE_LOOP_H

/**
 * @file loop.h
 * The event loop: one-shot polls, and a sleep with a timeout. io_uring, or epoll without it.
 *
 * Polls are one-shot: a client that makes a descriptor ready without end costs one completion each
 * time it is armed. The kernel reads no descriptor for us. While the daemon spins, io_uring's
 * kvt_loop_ready() reads two words in memory and makes no system call. On epoll it makes one of
 * 0.2 us each KVT_LOOP_LOOK_NS, so an event is seen that much later while the daemon is busy.
 *
 * A host may refuse a system call at any time (seccomp, a sandbox that emulates a part). At open a
 * way is used once and passed over if it does not work. Later the first failure is kept in
 * `failure`: polls and sleeps then do nothing, and the daemon must end.
 */

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/loop_epoll.h"
#include "shm/atomic.h"

/** Ways to wait for events, best first: three set-ups of io_uring, then epoll. */
enum kvt_loop_way {
	KVT_LOOP_IO_URING = 0, /* the best set-up that the kernel has */
	KVT_LOOP_IO_URING_COOP,
	KVT_LOOP_IO_URING_PLAIN,
	KVT_LOOP_EPOLL,
};

struct kvt_loop {
	enum kvt_loop_way way;
	struct kvt_loop_failure failure;
	struct io_uring ring;
	struct kvt_loop_epoll epoll;
	const char *mode; /* the way in words, for the start-up report; NULL: not open */
	uint32_t refused; /* sleeps in a row that the kernel had no memory for */
	uint64_t enters;  /* system calls made here; of epoll: kvt_loop_epoll.calls */
};

struct kvt_loop_event {
	uint64_t tag;
	int32_t result; /* revents, or a negative errno */
};

/** Open the first of the ways from `first` to `last` that this host allows, and use it once.
 * `room`: most polls at a time. If io_uring failed, `why` has cause (sysctl, seccomp, memory limit,
 * old kernel) and cure, also where epoll was opened instead. Else it is empty. */
int kvt_loop_open(struct kvt_loop *loop, enum kvt_loop_way first, enum kvt_loop_way last,
		  uint32_t room, char *why, size_t why_size);
void kvt_loop_close(struct kvt_loop *loop);

/** True if there is something to reap. `now_ns`: CLOCK_MONOTONIC; epoll looks when it is time.
 * TASKRUN means that the kernel holds completions back until it is entered. */
static inline bool kvt_loop_ready(struct kvt_loop *loop, uint64_t now_ns)
{
	if (__builtin_expect(loop->way == KVT_LOOP_EPOLL, 0))
		return kvt_loop_epoll_look(&loop->epoll, now_ns);
	return io_uring_cq_ready(&loop->ring) != 0 ||
	       (kvt_load_relaxed(loop->ring.sq.kflags) &
		(IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

/** Poll `fd` once for `events`. Queued until kvt_loop_flush() or kvt_loop_sleep(). */
void kvt_loop_poll(struct kvt_loop *loop, int fd, uint32_t events, uint64_t tag);
/** Stop polling `fd`: before it is closed, or to poll for other events. `armed`: its poll, with
 * this tag, is not over. True: an event with the tag is still to come, -ECANCELED or what was seen;
 * until then the kernel refers to the file. A cancellation may have an event, with tag 0. */
bool kvt_loop_cancel(struct kvt_loop *loop, int fd, uint64_t tag, bool armed);

/** Hand queued requests to the kernel; no system call if there are none. */
void kvt_loop_flush(struct kvt_loop *loop);
/** Take up to `max` events. Enters the kernel only if it holds completions back. */
unsigned int kvt_loop_reap(struct kvt_loop *loop, struct kvt_loop_event *ret_events,
			   unsigned int max);
/** Sleep until an event or the timeout. UINT64_MAX: no timeout. */
void kvt_loop_sleep(struct kvt_loop *loop, uint64_t timeout_ns);

#endif
