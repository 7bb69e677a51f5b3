/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file host.c
 * Use each system call that clients need once, before the daemon is ready.
 *
 * If the host refuses one (seccomp, a sandbox, a security module), the daemon does not start.
 * refused.c handles what is refused later. Called by start.c.
 */

#include "daemon/serve/host.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/keep/rights.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/refused.h"
#include "daemon/serve/session.h"

/* Exchange a message with a descriptor over a socket pair, as with a client. Returns the call that
 * failed. */
static const char *try_messages(const int ends[2])
{
	struct kvt_rights rights;
	char byte = 0;
	int on = 1;

	if (setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
		return "setsockopt";
	if (kvt_rights_send(ends[1], &byte, 1, &ends[0], 1) != 1)
		return "sendmsg";
	if (kvt_rights_receive(ends[0], &byte, 1, MSG_PEEK, 0, &rights) != 1)
		return "recvmsg";
	if (recv(ends[0], NULL, 0, MSG_DONTWAIT) < 0)
		return "recvfrom";
	if (send(ends[1], &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
		return "sendto";
	if (poll(&(struct pollfd){ .fd = ends[0], .events = POLLIN }, 1, 0) != 1)
		return "poll";
	return NULL;
}

/* Ring a doorbell. */
static const char *try_doorbell(struct kvt_session *session)
{
	uint64_t one = 1;

	session->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->doorbell < 0)
		return "eventfd2";
	if (write(session->doorbell, &one, sizeof(one)) != sizeof(one))
		return "write";
	if (read(session->doorbell, &one, sizeof(one)) != sizeof(one))
		return "read";
	return NULL;
}

/* Find this process behind a socket, as a client's. */
static const char *try_process(int fd, int *ret_pidfd)
{
	struct kvt_peer peer;
	uint64_t start;

	if (kvt_peer_read(fd, (gid_t)-1, &peer) != 0)
		return "getsockopt";
	return kvt_peer_pidfd(fd, &peer, kvt_peer_boot_ns(), ret_pidfd, &start) != 0 ?
		       "getsockopt or pidfd_open" : NULL;
}

int kvt_host_try(char why[KVT_WHY_BYTES])
{
	struct kvt_session session = KVT_SESSION_NONE;
	int ends[2] = { -1, -1 }, pidfd = -1, error;
	const char *call = "socketpair";

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0)
		call = try_messages(ends);
	if (!call)
		call = try_doorbell(&session);
	if (!call)
		call = try_process(ends[0], &pidfd);
	if (!call && kvt_object_create_sealed(&session.areas, "kvtrunk-try", 1) != 0)
		call = "memfd_create, ftruncate, fcntl or mmap";
	error = call ? -errno : 0;
	if (call)
		snprintf(why, KVT_WHY_BYTES, "this host refuses %s to the daemon, which needs it "
			 "for each client: %s; " KVT_HOST_CURE, call, strerror(-error));
	kvt_object_destroy(&session.areas);
	for (size_t i = 0; i < 4; i++) {
		int fd = (int[]){ ends[0], ends[1], session.doorbell, pidfd }[i];

		if (fd >= 0)
			close(fd);
	}
	return error;
}
