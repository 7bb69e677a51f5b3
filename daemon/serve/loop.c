/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file loop.c
 * The event loop of loop.h: set-up with fallbacks, polls, sleeps.
 *
 * io_uring is here, epoll in loop_epoll.c. A request waits in the SQ until a flush or a sleep; a
 * full SQ is submitted at once. No result of a system call is dropped: it is retried by the next
 * sleep, or is a failure of the loop. Called by the serving thread only.
 */
#include "daemon/serve/loop.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/assert.h"

/* Both rings count against RLIMIT_MEMLOCK, which may be as low as 64 KiB. */
#define SQ_ENTRIES 256
#define CQ_ENTRIES 1024
#define REFUSED_MOST 2000 /* sleeps of 1 ms each */
#define PROBE_NS 100000000ull
#define PROBE_SLEEPS 10

static int read_sysctl(const char *path)
{
	FILE *file = fopen(path, "re");
	int value = -1;

	if (file && fscanf(file, "%d", &value) != 1)
		value = -1;
	if (file)
		fclose(file);
	return value;
}

static void explain(int error, char *why, size_t why_size)
{
	int disabled = read_sysctl("/proc/sys/kernel/io_uring_disabled");

	if (error == -EPERM && disabled == 2)
		snprintf(why, why_size, "io_uring is disabled on this host: sysctl "
			 "kernel.io_uring_disabled is 2; set it to 0");
	else if (error == -EPERM && disabled == 1)
		snprintf(why, why_size, "io_uring is disabled for this user: sysctl "
			 "kernel.io_uring_disabled is 1; set it to 0, run with CAP_SYS_ADMIN, or "
			 "join the group of kernel.io_uring_group");
	else if (error == -EPERM || error == -EACCES)
		snprintf(why, why_size, "io_uring is forbidden to this process, most likely by a "
			 "seccomp profile (containers): allow io_uring_setup, io_uring_enter and "
			 "io_uring_register for the daemon; clients do not need them");
	else if (error == -ENOSYS)
		snprintf(why, why_size, "no io_uring here: the kernel lacks it (5.11 or newer with "
			 "CONFIG_IO_URING is needed) or a seccomp profile hides it");
	else if (error == -ENOMEM)
		snprintf(why, why_size, "no memory for io_uring: raise RLIMIT_MEMLOCK (ulimit -l, "
			 "LimitMEMLOCK=) or the memory limit");
	else if (error == -EIO)
		snprintf(why, why_size, "io_uring does not work here: it reports no event (a "
			 "sandbox that emulates a part of it?)");
	else
		snprintf(why, why_size, "io_uring cannot be set up: %s", strerror(-error));
}

/* Set io_uring up in the first way from `first` to `last` that this kernel has. */
static int open_io_uring(struct kvt_loop *loop, enum kvt_loop_way first, enum kvt_loop_way last,
			 char *why, size_t why_size)
{
	/* DEFER_TASKRUN keeps the kernel from interrupting a turn. With TASKRUN_FLAG a spinning
	 * loop sees in memory that completions wait. */
	static const struct {
		unsigned int flags;
		const char *mode;
	} ways[KVT_LOOP_EPOLL] = {
		{ IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			  IORING_SETUP_TASKRUN_FLAG,
		  "io_uring:single_issuer,defer_taskrun,taskrun_flag" },
		{ IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		  "io_uring:coop_taskrun,taskrun_flag" },
		{ 0, "io_uring:plain" },
	};
	int error = -EINVAL;

	for (uint32_t i = first; i <= last && i < KVT_LOOP_EPOLL && error == -EINVAL; i++) {
		struct io_uring_params params = {
			.flags = ways[i].flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
			.cq_entries = CQ_ENTRIES,
		};

		error = io_uring_queue_init_params(SQ_ENTRIES, &loop->ring, &params);
		loop->way = i;
		loop->mode = ways[i].mode;
	}
	if (error) {
		explain(error, why, why_size);
		return error;
	}
	if (!(loop->ring.features & IORING_FEAT_EXT_ARG) ||
	    !(loop->ring.features & IORING_FEAT_NODROP)) {
		io_uring_queue_exit(&loop->ring);
		snprintf(why, why_size, "this kernel's io_uring is too old: 5.11 or newer is "
			 "needed");
		return -ENOTSUP;
	}
	return 0;
}

static void withdraw(struct kvt_loop *loop, int fd, uint64_t tag, int *left)
{
	/* An event of the poll, and one of its cancellation. */
	if (kvt_loop_cancel(loop, fd, tag, true))
		*left += 2;
}

/* Use the loop as the daemon will: a poll that is due and one that is withdrawn. -EIO: their events
 * do not come. */
static int probe(struct kvt_loop *loop)
{
	int due = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK), left = 1;
	int idle = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct kvt_loop_event events[4];

	if (due < 0 || idle < 0)
		kvt_loop_failed(&loop->failure, "eventfd2", -errno);
	if (!loop->failure.call) {
		kvt_loop_poll(loop, due, POLLIN, 1);
		kvt_loop_poll(loop, idle, POLLIN, 2);
		withdraw(loop, idle, 2, &left);
	}
	for (int i = 0; i < PROBE_SLEEPS && left > 0 && !loop->failure.call; i++) {
		kvt_loop_sleep(loop, PROBE_NS);
		left -= (int)kvt_loop_reap(loop, events, sizeof(events) / sizeof(events[0]));
	}
	kvt_loop_cancel(loop, due, 1, false);
	close(due);
	close(idle);
	loop->enters = loop->epoll.calls = 0;
	if (left)
		kvt_loop_failed(&loop->failure, "an event is not reported", -EIO);
	return loop->failure.error;
}

static int open_epoll(struct kvt_loop *loop, uint32_t room, char *why, size_t why_size)
{
	int error = kvt_loop_epoll_open(&loop->epoll, room, &loop->failure);

	loop->way = KVT_LOOP_EPOLL;
	loop->mode = "epoll";
	if (error)
		kvt_loop_failed(&loop->failure, "epoll_create1", error);
	else if ((error = probe(loop)) != 0)
		kvt_loop_epoll_close(&loop->epoll);
	if (error)
		snprintf(why, why_size, "the daemon cannot wait for events: %s: %s; if a seccomp "
			 "profile (containers) forbids it, allow epoll_create1, epoll_ctl, "
			 "epoll_wait, ppoll and eventfd2", loop->failure.call, strerror(-error));
	return error;
}

int kvt_loop_open(struct kvt_loop *loop, enum kvt_loop_way first, enum kvt_loop_way last,
		  uint32_t room, char *why, size_t why_size)
{
	int error = -EINVAL;

	memset(loop, 0, sizeof(*loop));
	why[0] = '\0';
	if (first < KVT_LOOP_EPOLL)
		error = open_io_uring(loop, first, last, why, why_size);
	if (!error && first < KVT_LOOP_EPOLL && (error = probe(loop)) != 0) {
		explain(error, why, why_size);
		io_uring_queue_exit(&loop->ring);
		loop->failure = (struct kvt_loop_failure){ 0 };
	}
	if (error && last == KVT_LOOP_EPOLL)
		error = open_epoll(loop, room, why, why_size);
	if (error)
		loop->mode = NULL;
	return error;
}

void kvt_loop_close(struct kvt_loop *loop)
{
	if (loop->way == KVT_LOOP_EPOLL)
		kvt_loop_epoll_close(&loop->epoll);
	else
		io_uring_queue_exit(&loop->ring);
	loop->mode = NULL;
}

/* Judge the result of an io_uring_enter(). EAGAIN: no memory now; EBUSY: events wait to be reaped.
 * Both pass, so they are no failure before the kernel refused many sleeps in a row. */
static void judge(struct kvt_loop *loop, int result)
{
	if (result >= 0 || result == -EINTR || result == -ETIME)
		loop->refused = 0;
	else if (result != -EAGAIN && result != -EBUSY)
		kvt_loop_failed(&loop->failure, "io_uring_enter", result);
}

static struct io_uring_sqe *loop_sqe(struct kvt_loop *loop)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	for (int tries = 0; !sqe && tries < 16; tries++) {
		kvt_loop_flush(loop);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	if (!sqe)
		kvt_loop_failed(&loop->failure, "io_uring_enter", -EAGAIN);
	return sqe;
}

void kvt_loop_poll(struct kvt_loop *loop, int fd, uint32_t events, uint64_t tag)
{
	struct io_uring_sqe *sqe;

	KVT_ASSERT(fd >= 0);
	if (loop->way == KVT_LOOP_EPOLL) {
		kvt_loop_epoll_poll(&loop->epoll, fd, events, tag);
		return;
	}
	sqe = loop_sqe(loop);
	if (!sqe)
		return;
	io_uring_prep_poll_add(sqe, fd, events);
	io_uring_sqe_set_data64(sqe, tag);
}

bool kvt_loop_cancel(struct kvt_loop *loop, int fd, uint64_t tag, bool armed)
{
	struct io_uring_sqe *sqe;

	if (loop->way == KVT_LOOP_EPOLL) {
		kvt_loop_epoll_cancel(&loop->epoll, fd, tag);
		return false;
	}
	sqe = armed ? loop_sqe(loop) : NULL;
	if (!sqe)
		return false;
	io_uring_prep_cancel64(sqe, tag, 0);
	io_uring_sqe_set_data64(sqe, 0);
	return true;
}

void kvt_loop_flush(struct kvt_loop *loop)
{
	if (loop->way == KVT_LOOP_EPOLL || !io_uring_sq_ready(&loop->ring))
		return;
	loop->enters++;
	judge(loop, io_uring_submit(&loop->ring));
}

unsigned int kvt_loop_reap(struct kvt_loop *loop, struct kvt_loop_event *ret_events,
			   unsigned int max)
{
	struct io_uring_cqe *cqe;
	unsigned int head, n = 0;

	if (loop->way == KVT_LOOP_EPOLL)
		return kvt_loop_epoll_reap(&loop->epoll, ret_events, max);
	if (!io_uring_cq_ready(&loop->ring) && kvt_loop_ready(loop, 0)) {
		loop->enters++;
		judge(loop, io_uring_get_events(&loop->ring));
	}
	io_uring_for_each_cqe(&loop->ring, head, cqe) {
		if (n == max)
			break;
		ret_events[n++] = (struct kvt_loop_event){
			.tag = cqe->user_data,
			.result = cqe->res,
		};
	}
	io_uring_cq_advance(&loop->ring, n);
	return n;
}

void kvt_loop_sleep(struct kvt_loop *loop, uint64_t timeout_ns)
{
	struct __kernel_timespec timeout = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000ull),
		.tv_nsec = (long long)(timeout_ns % 1000000000ull),
	};
	struct io_uring_cqe *cqe;
	int result;

	if (loop->way == KVT_LOOP_EPOLL) {
		kvt_loop_epoll_sleep(&loop->epoll, timeout_ns);
		return;
	}
	loop->enters++;
	result = io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1, timeout_ns == UINT64_MAX ?
						  NULL : &timeout, NULL);
	judge(loop, result);
	if (result != -EAGAIN)
		return;
	poll(NULL, 0, 1);
	if (++loop->refused == REFUSED_MOST)
		kvt_loop_failed(&loop->failure, "io_uring_enter", result);
}
