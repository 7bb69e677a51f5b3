/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_LOOP_EPOLL_H
#define KVT_DAEMON_SERVE_LOOP_EPOLL_H

/**
 * @file loop_epoll.h
 * The event loop of loop.h on hosts that refuse io_uring: one epoll set, and ppoll() to sleep.
 *
 * A poll is a one-shot registration: MOD arms it again, ADD only the first time. A descriptor that
 * cannot be registered (out of memory, or of watches) is listed instead, and each look and sleep
 * polls the list.
 *
 * ppoll() sleeps because its timeout has nanoseconds; epoll_pwait2() is of Linux 5.11, and older
 * seccomp profiles do not know it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt_loop_event;
struct pollfd;

/** Time between two looks for events while the daemon is busy. A look takes 0.2 us, the work after
 * an event 20 to 100 us. */
#define KVT_LOOP_LOOK_NS 50000ull
#define KVT_LOOP_SEEN 8 /* events of one look */

/** The first system call of a loop that failed for good. Its events may be lost from then on. */
struct kvt_loop_failure {
	const char *call; /* NULL: none failed */
	int error;        /* negative errno */
};

struct kvt_loop_epoll {
	struct kvt_loop_failure *failure; /* the caller's */
	uint64_t look_at_ns; /* time of the next look */
	uint32_t n_seen, n_rung; /* events to reap: from the set, from the list */
	int fd;
	struct {
		uint64_t tag;
		uint32_t events;
	} seen[KVT_LOOP_SEEN];
	struct pollfd *listed; /* [0]: our set; then [1 .. n_listed] */
	uint64_t *tags;        /* [i]: tag of listed[i] */
	uint32_t n_listed, room;
	uint64_t calls;
};

/** Note a failure. The first one counts. */
static inline void kvt_loop_failed(struct kvt_loop_failure *failure, const char *call, int error)
{
	if (!failure->call)
		*failure = (struct kvt_loop_failure){ call, error };
}

int kvt_loop_epoll_open(struct kvt_loop_epoll *loop, uint32_t room,
			struct kvt_loop_failure *failure);
void kvt_loop_epoll_close(struct kvt_loop_epoll *loop);

/** Look now if it is time. True: there is something to reap. */
bool kvt_loop_epoll_look(struct kvt_loop_epoll *loop, uint64_t now_ns);
/** Poll `fd` once. */
void kvt_loop_epoll_poll(struct kvt_loop_epoll *loop, int fd, uint32_t events, uint64_t tag);
/** End the poll of `fd` with this tag, and its registration. No event of it comes. */
void kvt_loop_epoll_cancel(struct kvt_loop_epoll *loop, int fd, uint64_t tag);
/** Take up to `max` events; look first if none is known. */
unsigned int kvt_loop_epoll_reap(struct kvt_loop_epoll *loop, struct kvt_loop_event *ret_events,
				 unsigned int max);
/** Sleep until an event or the timeout, and look. UINT64_MAX: no timeout. */
void kvt_loop_epoll_sleep(struct kvt_loop_epoll *loop, uint64_t timeout_ns);

#endif
