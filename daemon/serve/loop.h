/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_LOOP_H
#define KVT_DAEMON_SERVE_LOOP_H

/**
 * @file loop.h
 * io_uring as an event loop: one-shot polls, and a sleep with a timeout.
 *
 * Polls are one-shot: a client that makes a descriptor ready without end costs one completion each
 * time it is armed. The kernel reads no descriptor for us. While the daemon spins it reads two
 * words in memory (kvt_loop_ready()) and makes no system call.
 */

#include <liburing.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/atomic.h"

struct kvt_loop {
	struct io_uring ring;
	const char *mode; /* which set-up flags the kernel took, for the start-up report */
	uint64_t enters;  /* system calls made here */
};

struct kvt_loop_event {
	uint64_t tag;
	int32_t result; /* revents, or a negative errno */
};

/** Set-ups from the best to the plainest. */
#define KVT_LOOP_WAYS 3

/** Make the ring with the best set-up that this kernel has. Tests skip the first `first_way`. On
 * failure `why` names the cause (sysctl, seccomp, memory limit, old kernel) and the cure. */
int kvt_loop_open(struct kvt_loop *loop, uint32_t first_way, char *why, size_t why_size);
void kvt_loop_close(struct kvt_loop *loop);

/** True if there is something to reap; no system call. TASKRUN means that the kernel holds
 * completions back until it is entered. */
static inline bool kvt_loop_ready(const struct kvt_loop *loop)
{
	return io_uring_cq_ready(&loop->ring) != 0 ||
	       (kvt_load_relaxed(loop->ring.sq.kflags) &
		(IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

/** Poll `fd` once for `events`. Queued until kvt_loop_flush() or kvt_loop_sleep(). */
void kvt_loop_poll(struct kvt_loop *loop, int fd, uint32_t events, uint64_t tag);
/** Cancel the request with this tag. It may still complete; the cancellation does, with tag 0. */
void kvt_loop_cancel(struct kvt_loop *loop, uint64_t tag);

/** Hand queued requests to the kernel; no system call if there are none. */
void kvt_loop_flush(struct kvt_loop *loop);
/** Take up to `max` events. Enters the kernel only if it holds completions back. */
unsigned int kvt_loop_reap(struct kvt_loop *loop, struct kvt_loop_event *ret_events,
			   unsigned int max);
/** Sleep until an event or the timeout. UINT64_MAX: no timeout. */
void kvt_loop_sleep(struct kvt_loop *loop, uint64_t timeout_ns);

#endif
