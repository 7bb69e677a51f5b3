/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/raw.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int kvt_test_dial(const struct kvt_test_daemon *daemon)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	kvt_test_check(fd >= 0);
	memcpy(address.sun_path, daemon->socket, strlen(daemon->socket));
	kvt_test_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

struct kvt_message_hello kvt_test_hello(uint32_t flags)
{
	return (struct kvt_message_hello){
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_HELLO,
			  .version = KVT_ABI, .bytes = sizeof(struct kvt_message_hello),
			  .cookie = 5 },
		.flags = flags,
		.layout = kvt_abi_layout(),
		.sq_entries = 8,
		.cq_entries = 16,
		.keys_count = 1024,
		.list_count = 1024,
		.pid = getpid(),
	};
}

bool kvt_test_send_fds(int fd, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(253 * sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)bytes, n };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (n_fds > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n;
}

uint32_t kvt_test_answer(int fd, int32_t *ret_result)
{
	union {
		struct kvt_message head;
		uint8_t bytes[KVT_MESSAGE_MAX];
	} packet;
	char control[CMSG_SPACE(16 * sizeof(int))];
	struct iovec part = { &packet, sizeof(packet) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	if (n > 0 && c && c->cmsg_type == SCM_RIGHTS)
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
			close(((int *)(void *)CMSG_DATA(c))[i]);
	if (n < (ssize_t)sizeof(packet.head))
		return 0;
	if (ret_result)
		*ret_result = packet.head.result;
	return packet.head.type;
}
