/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/rights.h"

#include <string.h>
#include <sys/socket.h>

#include "shm/assert.h"

ssize_t kvt_rights_send(int socket, const void *data, size_t bytes, const int *fds, uint32_t n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * KVT_RIGHTS_MOST)];
	} control = { 0 };
	struct iovec part = { .iov_base = (void *)(uintptr_t)data, .iov_len = bytes };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	KVT_ASSERT(n_fds <= KVT_RIGHTS_MOST);
	if (n_fds) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * n_fds);
	}
	return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void take(struct kvt_rights *rights, struct cmsghdr *part)
{
	size_t bytes = part->cmsg_len - CMSG_LEN(0);
	struct ucred sender;

	if (part->cmsg_level != SOL_SOCKET)
		return;
	if (part->cmsg_type == SCM_CREDENTIALS) {
		memcpy(&sender, CMSG_DATA(part), sizeof(sender));
		rights->sender = sender.pid;
	} else if (part->cmsg_type == SCM_RIGHTS) {
		KVT_ASSERT(bytes <= sizeof(rights->fds));
		memcpy(rights->fds, CMSG_DATA(part), bytes);
		rights->n_fds = (uint32_t)(bytes / sizeof(int));
	}
}

ssize_t kvt_rights_receive(int socket, void *data, size_t size, int flags, uint32_t most_fds,
			   struct kvt_rights *ret_rights)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) +
			   CMSG_SPACE(sizeof(int) * KVT_RIGHTS_MOST)];
	} control;
	struct iovec part = { .iov_base = data, .iov_len = size };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control };
	ssize_t n;

	KVT_ASSERT(most_fds <= KVT_RIGHTS_MOST);
	message.msg_controllen = CMSG_SPACE(sizeof(struct ucred));
	if (most_fds)
		message.msg_controllen += CMSG_SPACE(sizeof(int) * most_fds);
	n = recvmsg(socket, &message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return n;
	*ret_rights = (struct kvt_rights){ .flags = message.msg_flags, .sender = -1 };
	for (struct cmsghdr *extra = CMSG_FIRSTHDR(&message); extra;
	     extra = CMSG_NXTHDR(&message, extra))
		take(ret_rights, extra);
	return n;
}
