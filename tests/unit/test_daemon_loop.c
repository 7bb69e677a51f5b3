/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop with each kernel feature on and off. Events, wake-ups and withdrawals must be the
 * same in every mode.
 *
 * Inputs: sockets and eventfds of the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/serve/loop.h"

static struct kvt_loop loop;

static int open_way(uint32_t way)
{
	char why[256] = "";

	return kvt_loop_open(&loop, way, why, sizeof(why)) == 0 ? 0 : -1;
}

static int open_best(void **state)
{
	return open_way(0);
}

static int open_coop(void **state)
{
	return open_way(1);
}

static int open_plain(void **state)
{
	return open_way(2);
}

static int close_loop(void **state)
{
	kvt_loop_close(&loop);
	return 0;
}

/* Events are found in memory: nothing here enters the kernel by itself. */
static struct kvt_loop_event spin_for_one(void)
{
	struct kvt_loop_event event = { 0 };

	do {
		while (!kvt_loop_ready(&loop))
			kvt_cpu_relax();
	} while (kvt_loop_reap(&loop, &event, 1) == 0 || event.tag == 0);
	return event;
}

static void a_spinning_loop_sees_what_becomes_ready(void **state)
{
	struct kvt_loop_event event;
	int fd = eventfd(0, EFD_NONBLOCK);
	uint64_t one = 1, count;

	for (uint64_t tag = 1; tag < 100; tag++) {
		kvt_loop_poll(&loop, fd, POLLIN, tag);
		kvt_loop_flush(&loop);
		assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
		event = spin_for_one();
		assert_int_equal(event.tag, tag);
		assert_int_equal(event.result, POLLIN);
		assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
	}
	close(fd);
}

static void a_sleeping_loop_wakes_for_an_event_and_for_its_timeout(void **state)
{
	struct kvt_loop_event event;
	int fd = eventfd(1, EFD_NONBLOCK);

	kvt_loop_sleep(&loop, 1000);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1), 0);
	kvt_loop_poll(&loop, fd, POLLIN, 7); /* not flushed: sleeping submits it */
	kvt_loop_sleep(&loop, UINT64_MAX);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1), 1);
	assert_int_equal(event.tag, 7);
	close(fd);
}

static void a_withdrawn_poll_lets_its_descriptor_go(void **state)
{
	struct kvt_loop_event events[4];
	struct pollfd other;
	unsigned int n = 0;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	kvt_loop_poll(&loop, pair[0], POLLIN, 9);
	kvt_loop_flush(&loop);
	kvt_loop_cancel(&loop, 9);
	kvt_loop_flush(&loop);
	close(pair[0]);
	while (n < 2) { /* the withdrawn one and the withdrawal */
		kvt_loop_sleep(&loop, UINT64_MAX);
		n += kvt_loop_reap(&loop, events, 4);
	}
	other = (struct pollfd){ .fd = pair[1], .events = POLLRDHUP };
	assert_int_equal(poll(&other, 1, -1), 1);
	close(pair[1]);
}

/* More requests than the submission ring has entries, more events than its completions. */
static void more_events_than_the_rings_hold_are_kept(void **state)
{
	enum { N = 3000 };
	struct kvt_loop_event events[64];
	int fd = eventfd(1, EFD_NONBLOCK);
	uint64_t sum = 0;
	unsigned int n = 0;

	for (uint64_t tag = 1; tag <= N; tag++)
		kvt_loop_poll(&loop, fd, POLLIN, tag);
	kvt_loop_flush(&loop);
	while (n < N) {
		unsigned int got = kvt_loop_reap(&loop, events, 64);

		for (unsigned int i = 0; i < got; i++)
			sum += events[i].tag;
		n += got;
		if (!got)
			kvt_loop_sleep(&loop, UINT64_MAX);
	}
	assert_int_equal(sum, (uint64_t)N * (N + 1) / 2);
	close(fd);
}

#define IN_EACH(test)                                                                             \
	{ #test " (best)", test, open_best, close_loop, NULL },                                   \
	{ #test " (coop)", test, open_coop, close_loop, NULL },                                   \
	{ #test " (plain)", test, open_plain, close_loop, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_EACH(a_spinning_loop_sees_what_becomes_ready),
		IN_EACH(a_sleeping_loop_wakes_for_an_event_and_for_its_timeout),
		IN_EACH(a_withdrawn_poll_lets_its_descriptor_go),
		IN_EACH(more_events_than_the_rings_hold_are_kept),
	};
	char why[256] = "";

	if (kvt_loop_open(&loop, 0, why, sizeof(why)) != 0) {
		print_message("skip: %s\n", why);
		return 77;
	}
	kvt_loop_close(&loop);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
