/* SPDX-License-Identifier: Apache-2.0 */
/* Messages on the control socket, against the daemon's own code in this process. Each input is a
 * connection that sends some packets, with valid headers or not, and hangs up. Invariant: the
 * audit is clean after each input. Caller: libFuzzer. */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/control.h"
#include "daemon/serve/member.h"
#include "daemon/serve/session.h"
#include "daemon/start.h"
#include "kvtrunk_wire.h"
#include "shm/assert.h"

static struct kvt_daemon victim;
static char directory[] = "/tmp/kvt-fuzz-XXXXXX";

static void stop(void)
{
	kvt_daemon_stop(&victim);
	rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	static const char *const options[][2] = {
		{ "n_pages", "64" }, { "page_size", "4" }, { "page_bytes", "64" },
		{ "max_sessions", "4" }, { "max_namespaces", "8" }, { "total_leases", "64" },
		{ "max_op_keys", "4096" }, { "hugepages", "no" }, { "log_level", "error" },
	};
	char why[KVT_WHY_BYTES] = "", name[32];

	KVT_ASSERT(mkdtemp(directory));
	snprintf(name, sizeof(name), "fuzz-%d", (int)getpid());
	kvt_config_init(&victim.config);
	KVT_ASSERT(kvt_config_set(&victim.config, "", "runtime_dir", directory, why) == 0);
	KVT_ASSERT(kvt_config_set(&victim.config, "", "instance", name, why) == 0);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		KVT_ASSERT(kvt_config_set(&victim.config, "", options[i][0], options[i][1],
					  why) == 0);
	if (kvt_daemon_start(&victim, why) != 0) {
		fprintf(stderr, "start: %s\n", why);
		exit(1);
	}
	atexit(stop);
	return 0;
}

/* Submit requests to the kernel and drop the answers: this file calls the handlers itself. */
static void flush(void)
{
	struct kvt_loop_event events[64];

	kvt_loop_flush(&victim.loop);
	while (kvt_loop_reap(&victim.loop, events, 64) == 64)
		;
}

static struct kvt_connection *accept_one(int fd)
{
	kvt_daemon_clock(&victim);
	kvt_control_accepted(&victim, fd);
	for (uint32_t i = 0; i < victim.connections.n_slots; i++)
		if (victim.connections.slots[i].fd == fd)
			return &victim.connections.slots[i];
	return NULL;
}

static void drain(int fd)
{
	static char packet[KVT_MESSAGE_MAX], control[CMSG_SPACE(32 * sizeof(int))];
	struct iovec part = { packet, sizeof(packet) };
	ssize_t n;

	for (;;) {
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1,
					  .msg_control = control,
					  .msg_controllen = sizeof(control) };
		struct cmsghdr *c;

		n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (n <= 0)
			return;
		KVT_ASSERT((size_t)n >= sizeof(struct kvt_message));
		KVT_ASSERT(((struct kvt_message *)(void *)packet)->bytes == (uint32_t)n);
		for (c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
			for (size_t i = 0; c->cmsg_type == SCM_RIGHTS &&
			     i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
				close(((int *)(void *)CMSG_DATA(c))[i]);
	}
}

/* One packet: a valid beginning of some type, then the input's bytes over it. */
static size_t build(const uint8_t **at, const uint8_t *end, uint8_t *packet)
{
	static const uint32_t sizes[] = { 0, sizeof(struct kvt_message_hello),
					  sizeof(struct kvt_message_welcome),
					  sizeof(struct kvt_message_refused),
					  sizeof(struct kvt_message_namespace),
					  sizeof(struct kvt_message_admin), 24, 16 };
	uint32_t kind = **at & 7, n = sizes[kind], more = (uint32_t)**at >> 5;
	struct kvt_message head = { .magic = KVT_MESSAGE_MAGIC, .type = (uint16_t)kind,
				    .version = KVT_ABI };
	struct kvt_message_hello *hello = (struct kvt_message_hello *)(void *)packet;

	(*at)++;
	n += more == 7 ? 64 : 0;
	head.bytes = n;
	memset(packet, 0, n);
	memcpy(packet, &head, n < sizeof(head) ? n : sizeof(head));
	if (kind == KVT_MSG_HELLO) {
		hello->layout = kvt_abi_layout();
		hello->pid = getpid();
		hello->flags = more & 1;
	}
	/* Place and value, for a few bytes. */
	for (uint32_t i = more; i > 1 && end - *at >= 3; i--, *at += 3) {
		uint32_t where = ((uint32_t)(*at)[0] << 8 | (*at)[1]) % (n + 1);

		if (where < n)
			packet[where] = (*at)[2];
	}
	return n;
}

static void settle(uint32_t session)
{
	struct kvt_session *slot = &victim.sessions.slots[session];

	if (session && slot->processes > 0)
		kvt_session_lost(&victim, slot->members, true);
	while (kvt_core_work(victim.core, 64, false, victim.clock.now_ns))
		;
	kvt_sessions_sweep(&victim);
	KVT_ASSERT(kvt_core_audit(victim.core, NULL, NULL) == 0);
	victim.over = victim.draining = false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static uint8_t packet[KVT_MESSAGE_MAX] KVT_ALIGNED(8);
	const uint8_t *at = bytes, *end = bytes + n;
	struct kvt_connection *connection;
	uint32_t generation, session = 0;
	int fds[2];

	KVT_ASSERT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
	connection = accept_one(fds[0]);
	KVT_ASSERT(connection);
	generation = connection->generation;
	while (at < end && connection->generation == generation) {
		size_t size = build(&at, end, packet);

		if (send(fds[1], packet, size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			break;
		if (connection->armed) /* a new one is queued */
			kvt_control_event(&victim, connection, POLLIN);
		if (connection->queue)
			kvt_control_take(&victim, connection);
		if (connection->generation == generation && connection->member)
			session = connection->member->session;
		kvt_control_answer(&victim);
		drain(fds[1]);
		flush();
	}
	close(fds[1]);
	if (connection->generation == generation)
		kvt_control_drop(&victim, connection);
	settle(session);
	flush();
	return 0;
}
