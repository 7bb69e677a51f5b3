/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file descriptors.c
 * Attacks with descriptors that are slow to close.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LINGER_S 8
#define LINGERING 64u /* at a time: bounded by ports and memory */
#define FLOODERS 15
#define MEMORY_BYTES (512ul << 20)

/* Make a TCP socket whose close() lingers for LINGER_S: its buffer is full, its peer does not
 * read. */
static int lingering(void)
{
	const struct linger linger = { .l_onoff = 1, .l_linger = LINGER_S };
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof(address);
	static const char filler[65536];
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), peer;

	if (listener < 0 || bind(listener, (struct sockaddr *)&address, bytes) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &bytes) ||
	    connect(fd, (struct sockaddr *)&address, bytes))
		_exit(1);
	peer = accept(listener, NULL, NULL); /* stays open */
	close(listener);
	if (peer < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		_exit(1);
	while (send(fd, filler, sizeof(filler), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		continue;
	return fd;
}

/* Send the descriptor and drop our reference. False: refused. */
static bool send_descriptor(int to, const struct sockaddr_un *address, socklen_t address_bytes,
			    void *bytes, size_t n, int fd)
{
	const struct linger none = { .l_onoff = 1 };
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
				  .cmsg_len = CMSG_LEN(sizeof(int)) } };
	struct iovec part = { bytes, n };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control),
				  .msg_name = (void *)(uintptr_t)address,
				  .msg_namelen = address_bytes };
	bool sent;

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	sent = sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
	if (!sent) /* last reference: closed here */
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
	return sent;
}

/* Send so many messages with such a socket, then hang up. */
static void linger_on(struct attack_run *run, bool hello, uint32_t messages)
{
	struct kvt_message_namespace name = { .head = { .magic = KVT_MESSAGE_MAGIC,
							.type = KVT_MSG_NAMESPACE,
							.version = KVT_ABI_MAJOR,
							.bytes = sizeof(name) } };

	attack_ready(run);
	for (uint32_t sent = 0; sent < LINGERING;) {
		int fd = attack_dial(run);
		bool went = false;

		if (fd < 0) {
			attack_pause();
			continue;
		}
		if (hello) {
			attack_say_hello(fd, 0);
			attack_read(fd, messages == 1);
		}
		for (uint32_t i = 0; i < messages; i++, sent++) {
			went = send_descriptor(fd, NULL, 0, &name, sizeof(name), lingering());
			attack_round(run);
		}
		if (went && messages == 1)
			attack_read(fd, true); /* it has been received: GOODBYE */
		close(fd);
	}
}

void attack_linger_session(struct attack_run *run)
{
	linger_on(run, true, 1);
}

void attack_linger_half_open(struct attack_run *run)
{
	linger_on(run, false, 1);
}

void attack_linger_close(struct attack_run *run)
{
	linger_on(run, true, 8);
}

void attack_memory_descriptor(struct attack_run *run)
{
	char byte = 0;

	attack_ready(run);
	for (;;) {
		int memory = memfd_create("large", MFD_CLOEXEC), fd = attack_dial(run);

		if (memory < 0 || fallocate(memory, 0, 0, MEMORY_BYTES))
			_exit(1);
		attack_say_hello(fd, KVT_HELLO_OBSERVE);
		attack_read(fd, true);
		if (send_descriptor(fd, NULL, 0, &byte, 1, memory))
			attack_read(fd, true);
		close(fd);
		attack_round(run);
	}
}

/* ---- the supervisor's notify socket */

/* Find the number-th abstract datagram socket of the network namespace named after us. Returns the
 * length of its address, 0 if there is none. */
static socklen_t find_notify(uint32_t number, struct sockaddr_un *ret_address)
{
	FILE *file = fopen("/proc/net/unix", "re");
	char line[512], name[128];
	unsigned int type;
	socklen_t bytes = 0;

	while (file && !bytes && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%*s %*s %*s %*s %x %*s %*s %100s", &type, name) != 2 ||
		    type != SOCK_DGRAM || strncmp(name, "@kvtrunk", 8) || number--)
			continue;
		*ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
		memcpy(ret_address->sun_path + 1, name + 1, strlen(name) - 1);
		bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
	}
	if (file)
		fclose(file);
	return bytes;
}

void attack_notify_descriptors(struct attack_run *run)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address;
	char text[] = "FDSTORE=1";

	attack_ready(run);
	for (uint32_t i = 0; i < LINGERING; i++) {
		socklen_t bytes = find_notify(i % 2, &address);

		if (bytes)
			send_descriptor(fd, &address, bytes, text, sizeof(text) - 1, lingering());
		attack_round(run);
	}
}

void attack_notify_flood(struct attack_run *run)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un addresses[4];
	socklen_t bytes[4];
	static char text[1500];
	uint64_t counted_ns = 0;
	uint32_t n = 0;

	while (n < 4 && (bytes[n] = find_notify(n, &addresses[n])))
		n++;
	memset(text, 'x', sizeof(text));
	attack_ready(run);
	for (int i = 0; i < FLOODERS; i++) /* waiting senders fill each freed place */
		if (!attack_fork())
			break;
	for (uint32_t i = 0;; i++) {
		if (n)
			sendto(fd, text, sizeof(text), MSG_NOSIGNAL,
			       (struct sockaddr *)&addresses[i % n], bytes[i % n]);
		else
			attack_pause();
		if (attack_now_ns() - counted_ns < 1000000)
			continue;
		counted_ns = attack_now_ns(); /* one round a millisecond */
		attack_round(run);
	}
}
