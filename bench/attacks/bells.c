/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bells.c
 * Attacks on wake-ups between daemon and client, made slow by the client.
 *
 * Inputs: the attack_run of scene.c. Invariant: an attack runs until it is killed. Caller: scene.c,
 * through table.c.
 */
#include "bench/attacks/attack.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/atomic.h"

#define PUNCHED_BYTES (768ul << 20)
#define WATCH_DUPS 600
#define WATCH_EPOLLS 500 /* a file is watched once by an epoll and descriptor */
#define PAGE 4096

struct reader {
	int fd;
	char *into;
};

/* Make the daemon ring the session's bell for an answer. */
static int ring_my_bell(struct kvt_client *client)
{
	const struct kvt_sqe nop = { .op = KVT_OP_NOP, .fence_slot = KVT_FENCE_IDLE };

	kvt_store_release(&client->ring.header->cq_need_wakeup, 1);
	return attack_feed(client, &nop);
}

static void *read_into(void *argument)
{
	const struct reader *reader = argument;

	for (;;)
		if (read(reader->fd, reader->into, 8) < 0)
			attack_pause();
	return NULL;
}

/* ---- a read that hangs in a page fault and blocks the daemon */

static void *punch(void *argument)
{
	int fd = *(int *)argument;

	for (;;) {
		fallocate(fd, 0, 0, PUNCHED_BYTES);
		/* A fault within the range waits until the whole range is freed. */
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PUNCHED_BYTES);
	}
	return NULL;
}

void attack_bell_punched(struct attack_run *run)
{
	static struct reader reader;
	static int fd;
	struct kvt_client *client = attack_session(run, 8, 1024);

	fd = memfd_create("punched", MFD_CLOEXEC);
	if (!client || fd < 0 || ftruncate(fd, PUNCHED_BYTES))
		_exit(1);
	reader.fd = client->completion;
	reader.into = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	attack_ready(run);
	attack_thread(punch, &fd);
	attack_thread(read_into, &reader);
	for (;;) {
		if (ring_my_bell(client) < 0) {
			kvt_client_abandon(client);
			client = attack_session(run, 8, 1024);
			while (!client)
				attack_hold();
			reader.fd = client->completion;
		}
		attack_round(run);
		attack_pause();
	}
}

void attack_bell_hung(struct attack_run *run)
{
	static struct reader readers[2];
	struct kvt_client *client = attack_session(run, 8, 1024);
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			   0);

	range.range.start = (uintptr_t)pages;
	range.range.len = 2 * PAGE;
	if (!client || ioctl(run->faults, UFFDIO_REGISTER, &range))
		_exit(1);
	readers[0] = (struct reader){ client->completion, pages };
	readers[1] = (struct reader){ client->control, pages + PAGE };
	attack_thread(read_into, &readers[0]);
	attack_thread(read_into, &readers[1]);
	attack_ready(run);
	for (;;) {
		attack_ask(client->control, KVT_ADMIN_STATUS);
		ring_my_bell(client);
		attack_round(run);
		attack_pause();
	}
}

/* ---- wait queues of hundreds of thousands */

/* Watch `fd` from WATCH_EPOLLS epolls: *ret_epolls. */
static void watch(int fd, int *ret_epolls)
{
	static int dups[WATCH_DUPS];

	for (int i = 0; i < WATCH_DUPS; i++)
		dups[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	for (int i = 0; i < WATCH_EPOLLS; i++) {
		ret_epolls[i] = epoll_create1(EPOLL_CLOEXEC);
		for (int k = 0; k < WATCH_DUPS; k++) {
			struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET };

			epoll_ctl(ret_epolls[i], EPOLL_CTL_ADD, dups[k], &event);
		}
	}
}

/* Let some of them notice: they queue their watches again at the next wake-up. */
static void notice(const int *epolls, uint32_t round)
{
	static struct epoll_event events[WATCH_DUPS];

	for (uint32_t i = round % 8; i < WATCH_EPOLLS; i += 8)
		epoll_wait(epolls[i], events, WATCH_DUPS, 0);
}

void attack_watch_bell(struct attack_run *run)
{
	static int epolls[WATCH_EPOLLS];
	struct kvt_client *client = attack_session(run, 8, 1024);
	char bytes[16];

	if (!client)
		_exit(1);
	watch(client->completion, epolls);
	attack_ready(run);
	for (uint32_t round = 0; ring_my_bell(client) >= 0; round++) {
		while (read(client->completion, bytes, sizeof(bytes)) > 0)
			continue;
		notice(epolls, round);
		attack_round(run);
	}
	for (;; attack_pause())
		attack_round(run);
}

/* Write to an eventfd that has many watches. */
static _Noreturn void write_watched(struct attack_run *run, int fd)
{
	static int epolls[WATCH_EPOLLS];

	watch(fd, epolls);
	attack_ready(run);
	for (uint32_t round = 0;; round++) {
		eventfd_write(fd, 1);
		notice(epolls, round);
		attack_round(run);
		attack_pause();
	}
}

void attack_watch_doorbell(struct attack_run *run)
{
	struct kvt_client *client = attack_session(run, 8, 1024);

	if (!client)
		_exit(1);
	write_watched(run, client->doorbell);
}

void attack_watch_own(struct attack_run *run)
{
	write_watched(run, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

void attack_watch_control(struct attack_run *run)
{
	static int epolls[WATCH_EPOLLS];
	struct kvt_client *client = attack_session(run, 8, 1024);

	if (!client)
		_exit(1);
	watch(client->control, epolls);
	attack_ready(run);
	for (uint32_t round = 0;; round++) {
		attack_ask(client->control, KVT_ADMIN_STATUS);
		attack_pause();
		if (attack_read(client->control, false) < 0)
			attack_pause();
		notice(epolls, round);
		attack_round(run);
	}
}

/* ---- more wake-ups than any client needs */

static void *ring_one(void *argument)
{
	for (;;)
		eventfd_write(((struct kvt_client *)argument)->doorbell, 1);
	return NULL;
}

void attack_doorbells(struct attack_run *run)
{
	struct kvt_client *client = NULL;

	for (int i = 0; i < 4; i++) {
		client = attack_session(run, 8, 1024);
		if (!client)
			break;
		if (i < 3)
			attack_thread(ring_one, client);
	}
	attack_ready(run);
	while (client) {
		eventfd_write(client->doorbell, 1);
		attack_round(run);
	}
}
