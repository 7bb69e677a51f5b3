/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tools.c
 * Building blocks of attacks.
 *
 * Inputs: the attack_run of scene.c. Invariant: an error tells an attacker to try something else,
 * and never ends the program. Callers: the attacks.
 */
#include "bench/attacks/attack.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "kvtrunk_wire_admin.h"
#include "shm/atomic.h"
#include "shm/layout.h"

void attack_ready(struct attack_run *run)
{
	kvt_store_release(&run->progress->ready, 1);
}

void attack_round(struct attack_run *run)
{
	kvt_add_full(&run->progress->rounds, 1);
}

bool attack_fork(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid)
		return true;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	return false;
}

void attack_thread(void *(*body)(void *), void *argument)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, body, argument))
		_exit(1);
}

void attack_hold(void)
{
	for (;;)
		pause();
}

void attack_pause(void)
{
	usleep(1000);
}

uint32_t attack_random(uint32_t below)
{
	static __thread uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

/* ---- the control socket */

int attack_dial(const struct attack_run *run)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, run->socket_path, strlen(run->socket_path));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void attack_say_hello(int fd, uint32_t flags)
{
	struct kvt_message_hello hello = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_HELLO,
			  .version = KVT_ABI, .bytes = sizeof(hello), .cookie = 5 },
		.flags = flags,
		.layout = kvt_layout(),
		.sq_entries = 8,
		.cq_entries = 16,
		.keys_count = 1024,
		.list_count = 1024,
		.pid = getpid(),
	};

	send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
}

int attack_read(int fd, bool wait)
{
	static __thread uint8_t packet[KVT_MESSAGE_MAX];
	char control[CMSG_SPACE(32 * sizeof(int))];
	struct iovec part = { packet, sizeof(packet) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(fd, &message, (wait ? 0 : MSG_DONTWAIT) | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
			close(((int *)(void *)CMSG_DATA(c))[i]);
	if (n < (ssize_t)sizeof(struct kvt_message))
		return -1;
	return ((struct kvt_message *)(void *)packet)->type;
}

int attack_observer(const struct attack_run *run)
{
	int fd = attack_dial(run);

	if (fd < 0)
		return -1;
	attack_say_hello(fd, KVT_HELLO_OBSERVE);
	if (attack_read(fd, true) == KVT_MSG_WELCOME)
		return fd;
	close(fd);
	return -1;
}

bool attack_ask(int fd, uint32_t what)
{
	struct kvt_message_admin request = {
		.head = { .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_ADMIN,
			  .version = KVT_ABI, .bytes = sizeof(request) },
		.what = what,
	};

	return send(fd, &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

/* ---- sessions */

struct kvt_client *attack_session(const struct attack_run *run, uint32_t sq_entries, uint32_t keys)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client;

	options.socket_path = run->socket_path;
	options.label = "attacker";
	options.sq_entries = sq_entries;
	options.keys_count = keys;
	options.list_count = keys;
	options.spin_budget_ns = 5000;
	options.timeout_ns = 20000000000ll;
	options.begin_wait_ns = -1;
	options.flags = KVT_HELLO_NO_RESUME;
	return kvt_client_connect(&client, &options, NULL) ? NULL : client;
}

uint32_t attack_namespace(struct kvt_client *client, uint64_t number)
{
	const uint64_t digest[2] = { 77, number };
	uint32_t ret = 0;

	return kvt_namespace_open(client, digest, "attack", &ret) ? 0 : ret;
}

static bool is_over(struct kvt_client *client)
{
	struct pollfd fd = { .fd = client->control, .events = POLLIN };

	return kvt_load_relaxed(&client->ring.header->gone) || poll(&fd, 1, 0) > 0;
}

int attack_feed(struct kvt_client *client, const struct kvt_sqe *sqe)
{
	struct kvt_ring_end *ring = &client->ring;
	struct kvt_cqe cqe;
	int n = 0;

	if (is_over(client))
		return -1;
	/* Bounded: a punched header may have any index. */
	for (uint32_t i = 0; i <= ring->cq_mask && kvt_ring_cq_ready(ring); i++)
		kvt_ring_cq_take(ring, &cqe);
	for (; kvt_ring_sq_space(ring) && n <= (int)ring->sq_mask; n++)
		kvt_ring_sq_put(ring, sqe);
	if (kvt_ring_sq_publish(ring))
		eventfd_write(client->doorbell, 1);
	return n;
}

bool attack_cache(struct kvt_client *client, uint32_t namespace_id, uint32_t first, uint32_t step,
		  uint32_t n)
{
	uint32_t *keys = malloc(n * sizeof(*keys));
	struct kvt_seq *seq = NULL;
	bool cached;

	for (uint32_t i = 0; keys && i < n; i++)
		keys[i] = first + i * step;
	cached = keys && !kvt_seq_begin(client, namespace_id, keys, n, 0, 0, &seq) &&
		 !kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0);
	if (seq)
		kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0);
	free(keys);
	return cached;
}
