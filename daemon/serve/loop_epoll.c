/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop on epoll (loop_epoll.h). Called by loop.c. */
#include "daemon/serve/loop_epoll.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "daemon/serve/loop.h"
#include "shm/assert.h"

int kvt_loop_epoll_open(struct kvt_loop_epoll *loop, uint32_t room,
			struct kvt_loop_failure *failure)
{
	int error;

	*loop = (struct kvt_loop_epoll){ .fd = epoll_create1(EPOLL_CLOEXEC), .room = room,
					 .failure = failure };
	if (loop->fd < 0)
		return -errno;
	loop->listed = calloc(room + 1, sizeof(*loop->listed));
	loop->tags = calloc(room + 1, sizeof(*loop->tags));
	error = loop->listed && loop->tags ? 0 : -ENOMEM;
	if (error)
		kvt_loop_epoll_close(loop);
	else
		loop->listed[0] = (struct pollfd){ .fd = loop->fd, .events = POLLIN };
	return error;
}

void kvt_loop_epoll_close(struct kvt_loop_epoll *loop)
{
	close(loop->fd);
	free(loop->listed);
	free(loop->tags);
	*loop = (struct kvt_loop_epoll){ .fd = -1 };
}

/* ---- polls */

static void list(struct kvt_loop_epoll *loop, int fd, uint32_t events, uint64_t tag)
{
	KVT_ASSERT(fd >= 0 && loop->n_listed < loop->room);
	loop->n_listed++;
	loop->listed[loop->n_listed] = (struct pollfd){ .fd = fd, .events = (short)events };
	loop->tags[loop->n_listed] = tag;
}

static void unlist(struct kvt_loop_epoll *loop, uint32_t at)
{
	KVT_ASSERT(at > 0 && at <= loop->n_listed);
	loop->n_rung -= loop->listed[at].revents != 0;
	loop->listed[at] = loop->listed[loop->n_listed];
	loop->tags[at] = loop->tags[loop->n_listed];
	loop->n_listed--;
}

void kvt_loop_epoll_poll(struct kvt_loop_epoll *loop, int fd, uint32_t events, uint64_t tag)
{
	struct epoll_event what = { .events = events | EPOLLONESHOT, .data.u64 = tag };

	loop->calls++;
	if (epoll_ctl(loop->fd, EPOLL_CTL_MOD, fd, &what) == 0)
		return;
	loop->calls++;
	if (errno == ENOENT && epoll_ctl(loop->fd, EPOLL_CTL_ADD, fd, &what) == 0)
		return;
	list(loop, fd, events, tag);
}

void kvt_loop_epoll_cancel(struct kvt_loop_epoll *loop, int fd, uint64_t tag)
{
	for (uint32_t i = 0; i < loop->n_seen; i++)
		if (loop->seen[i].tag == tag)
			loop->seen[i].tag = 0;
	for (uint32_t i = 1; i <= loop->n_listed; i++)
		if (loop->tags[i] == tag) {
			unlist(loop, i);
			return;
		}
	/* Not left to close(): while other processes have the file, the registration would stay,
	 * and the last close() takes the lock of the whole kernel (before Linux 6.4). */
	loop->calls++;
	if (epoll_ctl(loop->fd, EPOLL_CTL_DEL, fd, NULL) != 0 && errno != ENOENT &&
	    errno != EBADF) /* it was not polled, or there is none */
		kvt_loop_failed(loop->failure, "epoll_ctl", -errno);
}

/* ---- events */

static void look(struct kvt_loop_epoll *loop)
{
	struct epoll_event events[KVT_LOOP_SEEN];
	int n = epoll_wait(loop->fd, events, KVT_LOOP_SEEN, 0);

	if (n < 0 && errno != EINTR)
		kvt_loop_failed(loop->failure, "epoll_wait", -errno);
	loop->calls++;
	loop->n_seen = n > 0 ? (uint32_t)n : 0;
	KVT_ASSERT(loop->n_seen <= KVT_LOOP_SEEN);
	for (uint32_t i = 0; i < loop->n_seen; i++) {
		loop->seen[i].tag = events[i].data.u64;
		loop->seen[i].events = events[i].events;
	}
}

/* Poll the listed descriptors, in addition to our set if `from` is 0. Returns true if that one is
 * ready. */
static bool poll_listed(struct kvt_loop_epoll *loop, uint32_t from, const struct timespec *timeout)
{
	bool ready;
	int n;

	loop->listed[0].revents = 0;
	loop->calls++;
	n = ppoll(loop->listed + from, loop->n_listed + 1 - from, timeout, NULL);
	if (n < 0) { /* the array is as it was */
		if (errno != EINTR && errno != ENOMEM)
			kvt_loop_failed(loop->failure, "ppoll", -errno);
		n = 0;
		for (uint32_t i = 0; i <= loop->n_listed; i++)
			loop->listed[i].revents = 0;
	}
	ready = loop->listed[0].revents != 0;
	loop->n_rung = (uint32_t)n - ready;
	KVT_ASSERT(loop->n_rung <= loop->n_listed);
	return ready;
}

bool kvt_loop_epoll_look(struct kvt_loop_epoll *loop, uint64_t now_ns)
{
	if (loop->n_seen || loop->n_rung)
		return true;
	if (now_ns < loop->look_at_ns)
		return false;
	loop->look_at_ns = now_ns + KVT_LOOP_LOOK_NS;
	look(loop);
	if (loop->n_listed)
		poll_listed(loop, 1, &(struct timespec){ 0, 0 });
	return loop->n_seen || loop->n_rung;
}

unsigned int kvt_loop_epoll_reap(struct kvt_loop_epoll *loop, struct kvt_loop_event *ret_events,
				 unsigned int max)
{
	unsigned int n = 0;

	if (!loop->n_seen && !loop->n_rung)
		look(loop);
	while (loop->n_seen && n < max) {
		loop->n_seen--;
		ret_events[n++] = (struct kvt_loop_event){
			.tag = loop->seen[loop->n_seen].tag,
			.result = (int32_t)loop->seen[loop->n_seen].events,
		};
	}
	for (uint32_t i = loop->n_listed; loop->n_rung && i && n < max; i--) {
		if (!loop->listed[i].revents)
			continue;
		ret_events[n++] = (struct kvt_loop_event){ .tag = loop->tags[i],
							   .result = loop->listed[i].revents };
		unlist(loop, i);
	}
	return n;
}

void kvt_loop_epoll_sleep(struct kvt_loop_epoll *loop, uint64_t timeout_ns)
{
	struct timespec timeout = {
		.tv_sec = (time_t)(timeout_ns / 1000000000ull),
		.tv_nsec = (long)(timeout_ns % 1000000000ull),
	};

	if (loop->n_seen || loop->n_rung)
		return;
	if (poll_listed(loop, 0, timeout_ns == UINT64_MAX ? NULL : &timeout))
		look(loop);
}
