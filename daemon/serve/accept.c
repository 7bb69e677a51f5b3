/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file accept.c
 * Accept connections without starving the rings.
 *
 * The kernel's queue is FIFO, and connect() waits while it is full. So a new connection waits
 * behind at most KVT_LISTEN_BACKLOG others. turn.c accepts a few at a time, and pauses after them.
 *
 * Accepting only takes a slot. The first message is taken later. If no slot is free, the oldest
 * half-open connection is dropped. If its message has not been looked for yet, the queue waits.
 */

#include "daemon/serve/accept.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/serve/control.h"
#include "daemon/serve/options.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/state.h"

#define ACCEPTS_AT_ONCE 2
#define FAILED_PAUSE_NS 100000000ull

static void watch(struct kvt_daemon *daemon)
{
	kvt_loop_poll(&daemon->loop, daemon->listener.fd, POLLIN,
		      kvt_tag(KVT_TAG_ACCEPT, 0, daemon->accept.generation));
}

void kvt_accept_event(struct kvt_daemon *daemon)
{
	daemon->accept.due = !daemon->draining && daemon->listener.fd >= 0;
}

void kvt_accept_stop(struct kvt_daemon *daemon)
{
	kvt_loop_cancel(&daemon->loop, daemon->listener.fd,
			kvt_tag(KVT_TAG_ACCEPT, 0, daemon->accept.generation), true);
	daemon->accept.due = false;
	daemon->accept.again_ns = 0;
}

void kvt_accept_rest(struct kvt_daemon *daemon, int from)
{
	int fd;

	while ((fd = accept4(from, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		kvt_control_accepted(daemon, fd);
}

void kvt_accept_moved(struct kvt_daemon *daemon, int old)
{
	kvt_loop_cancel(&daemon->loop, old,
			kvt_tag(KVT_TAG_ACCEPT, 0, daemon->accept.generation), true);
	daemon->accept.generation++; /* an event of the old poll may still come */
	kvt_accept_rest(daemon, old);
	kvt_accept_event(daemon);
}

uint64_t kvt_accept_again(struct kvt_daemon *daemon)
{
	if (!daemon->accept.again_ns)
		return UINT64_MAX;
	if (daemon->clock.real_ns < daemon->accept.again_ns)
		return daemon->accept.again_ns;
	daemon->accept.again_ns = 0;
	kvt_accept_event(daemon);
	return UINT64_MAX;
}

static void failed(struct kvt_daemon *daemon, int error)
{
	char why[KVT_WHY_BYTES];

	if (kvt_host_refuses(daemon, "accept4", error))
		return;
	/* The limit was lowered after start. */
	if (error == EMFILE && kvt_daemon_raise_nofile(daemon, why) > 0)
		return;
	if (error != daemon->accept.failed) /* once, not with each try */
		kvt_log_limited(&daemon->client_log, 0, daemon->clock.real_ns, KVT_LOG_ERROR,
				"accept_failed", "error=\"%s\" cure=\"%s\"", strerror(error),
				error == EMFILE ? "raise RLIMIT_NOFILE" :
				error == ENFILE ? "raise sysctl fs.file-max" : "none");
	daemon->accept.failed = error;
	daemon->accept.due = false;
	daemon->accept.again_ns = daemon->clock.real_ns + FAILED_PAUSE_NS;
	daemon->timers.next_ns = 0;
}

/* Accept one connection. False: the queue is empty or must wait. */
static bool accept_one(struct kvt_daemon *daemon)
{
	int fd;

	if (!kvt_control_has_room(daemon))
		return false;
	fd = accept4(daemon->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		daemon->accept.failed = 0;
		kvt_control_accepted(daemon, fd);
		return true;
	}
	if (errno == EAGAIN) {
		daemon->accept.due = false;
		watch(daemon);
	} else if (errno != EINTR && errno != ECONNABORTED) {
		failed(daemon, errno);
	}
	return false;
}

void kvt_accept_some(struct kvt_daemon *daemon)
{
	for (int i = 0; i < ACCEPTS_AT_ONCE && accept_one(daemon); i++)
		continue;
}
