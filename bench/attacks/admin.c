/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file admin.c
 * Attacks on the control socket: floods of requests and of connections, and unread answers.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "kvtrunk_wire_admin.h"
#include "bench/attacks/attack.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define OBSERVERS 8
#define HALF_OPEN 4000
#define BACKLOG 256

/* Send as many requests as several observers' sockets take. Answers are read. */
static void flood(struct attack_run *run, uint32_t what)
{
	struct pollfd fds[OBSERVERS];

	for (int i = 0; i < OBSERVERS; i++)
		fds[i] = (struct pollfd){ .fd = attack_observer(run), .events = POLLIN };
	attack_ready(run);
	for (uint32_t n = 0;; n++) {
		struct pollfd *fd = &fds[n % OBSERVERS];

		if (n % OBSERVERS == 0)
			poll(fds, OBSERVERS, 10);
		while (fd->fd >= 0 && attack_ask(fd->fd, what))
			continue;
		while (fd->fd >= 0 && fd->revents) {
			int got = attack_read(fd->fd, false);

			if (got <= 0) {
				fd->revents = 0;
				if (got < 0)
					close(fd->fd);
				fd->fd = got < 0 ? attack_observer(run) : fd->fd;
			}
		}
		attack_round(run);
	}
}

void attack_namespaces_flood(struct attack_run *run)
{
	flood(run, KVT_ADMIN_NAMESPACES);
}

/* STATUS looks at every lease. */
void attack_status_flood(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 64, 4096);
	uint32_t keys[ATTACK_PAGE_SIZE] = { 1 };
	struct kvt_result result;

	if (client) {
		uint32_t namespace_id = attack_namespace(client, 1);

		attack_cache(client, namespace_id, 1, 1, 4 * ATTACK_PAGE_SIZE);
		for (uint32_t i = 0; i < ATTACK_PAGE_SIZE; i++)
			keys[i] = 1 + i;
		for (uint32_t i = 0; i < 4000; i++)
			if (!kvt_match(client, namespace_id, keys, ATTACK_PAGE_SIZE, KVT_F_LOCK,
				       &result))
				kvt_result_release(client, &result);
	}
	flood(run, KVT_ADMIN_STATUS);
}

void attack_clients_flood(struct attack_run *run)
{
	flood(run, KVT_ADMIN_CLIENTS);
}

void attack_observers(struct attack_run *run)
{
	attack_ready(run);
	for (;;) {
		if (attack_observer(run) < 0)
			attack_pause();
		attack_round(run);
	}
}

/* Observers and sessions that ask until their sockets are full, and never read. */
void attack_slow_reader(struct attack_run *run)
{
	struct kvt_message_namespace name = { .head = { .magic = KVT_MESSAGE_MAGIC,
							.type = KVT_MSG_NAMESPACE,
							.version = KVT_ABI,
							.bytes = sizeof(name) },
					      .digest = { 77, 1 } };
	int fds[OBSERVERS];

	for (int i = 0; i < OBSERVERS; i++)
		fds[i] = -1;
	attack_ready(run);
	for (uint32_t n = 0;; n++) {
		int *fd = &fds[n % OBSERVERS];

		if (*fd < 0) {
			*fd = attack_dial(run);
			attack_say_hello(*fd, n % 2 ? KVT_HELLO_OBSERVE : 0);
		}
		for (int i = 0; i < 64; i++) {
			attack_ask(*fd, KVT_ADMIN_NAMESPACES);
			send(*fd, &name, sizeof(name), MSG_NOSIGNAL | MSG_DONTWAIT);
		}
		if (n % 64 == 0) {
			close(*fd);
			*fd = -1;
		}
		attack_round(run);
		attack_pause();
	}
}

/* ---- connections */

void attack_connections(struct attack_run *run)
{
	attack_ready(run);
	attack_fork(); /* two of them */
	for (;;) {
		int fd = attack_dial(run);

		if (attack_random(2))
			attack_say_hello(fd, KVT_HELLO_OBSERVE);
		close(fd);
		attack_round(run);
	}
}

/* Fill each free place of the listening queue at once, without waiting in connect(). Each
 * connection stays, without HELLO. */
void attack_backlog(struct attack_run *run)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fds[BACKLOG], fd = -1;

	memcpy(address.sun_path, run->socket_path, strlen(run->socket_path));
	attack_ready(run);
	attack_fork();
	attack_fork(); /* four of them */
	memset(fds, -1, sizeof(fds));
	for (uint32_t n = 0;;) {
		if (fd < 0)
			fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
			continue;
		close(fds[n % BACKLOG]);
		fds[n++ % BACKLOG] = fd;
		fd = -1;
		attack_round(run);
	}
}

void attack_half_open(struct attack_run *run)
{
	static int fds[HALF_OPEN];

	for (uint32_t n = 0;; n++) {
		int *fd = &fds[n % HALF_OPEN];

		if (n >= HALF_OPEN)
			close(*fd);
		if (n == 1000)
			attack_ready(run);
		*fd = attack_dial(run);
		attack_round(run);
	}
}
