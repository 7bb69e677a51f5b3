/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop in each of its ways. Events, wake-ups and withdrawals must be the same in all.
 *
 * Inputs: sockets and eventfds of the test. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/serve/loop.h"
#include "tests/lib/cases.h"

enum { ROOM = 8 }; /* of the list beside epoll */

static struct kvt_loop loop;
static uint64_t now_ns;

static int open_way(void **state)
{
	enum kvt_loop_way way = (enum kvt_loop_way)(uintptr_t)*state;
	char why[256] = "";

	return kvt_loop_open(&loop, way, way, ROOM, why, sizeof(why)) == 0 && !*why ? 0 : -1;
}

static int close_loop(void **state)
{
	kvt_loop_close(&loop);
	return 0;
}

/* A turn of one microsecond. io_uring's events are found in memory: nothing here enters the kernel
 * by itself. */
static bool ready(void)
{
	now_ns += 1000;
	return kvt_loop_ready(&loop, now_ns);
}

static struct kvt_loop_event spin_for_one(void)
{
	struct kvt_loop_event event = { 0 };

	do {
		while (!ready())
			kvt_cpu_relax();
	} while (kvt_loop_reap(&loop, &event, 1) == 0 || event.tag == 0);
	return event;
}

static void ring(int fd)
{
	uint64_t one = 1;

	assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static void see_many(int fd)
{
	struct kvt_loop_event event;
	uint64_t count;

	for (uint64_t tag = 1; tag < 100; tag++) {
		kvt_loop_poll(&loop, fd, POLLIN, tag);
		kvt_loop_flush(&loop);
		ring(fd);
		event = spin_for_one();
		assert_int_equal(event.tag, tag);
		assert_int_equal(event.result, POLLIN);
		assert_int_equal(read(fd, &count, sizeof(count)), sizeof(count));
	}
}

static void a_spinning_loop_sees_what_becomes_ready(void **state)
{
	int fd = eventfd(0, EFD_NONBLOCK);

	see_many(fd);
	close(fd);
}

static void a_poll_ends_once(void **state)
{
	int fd = eventfd(1, EFD_NONBLOCK);
	struct kvt_loop_event event;

	kvt_loop_poll(&loop, fd, POLLIN, 3);
	kvt_loop_flush(&loop);
	assert_int_equal(spin_for_one().tag, 3);
	ring(fd);
	for (int i = 0; i < 1000; i++)
		assert_false(ready());
	kvt_loop_sleep(&loop, 1000);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1), 0);
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
	struct kvt_loop_event event = { 0 };
	struct pollfd other;
	bool comes;
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	kvt_loop_poll(&loop, pair[0], POLLIN, 9);
	kvt_loop_flush(&loop);
	comes = kvt_loop_cancel(&loop, pair[0], 9, true);
	kvt_loop_flush(&loop);
	close(pair[0]);
	while (comes && event.tag != 9) {
		kvt_loop_sleep(&loop, UINT64_MAX);
		kvt_loop_reap(&loop, &event, 1);
	}
	other = (struct pollfd){ .fd = pair[1], .events = POLLRDHUP };
	assert_int_equal(poll(&other, 1, -1), 1);
	close(pair[1]);
}

/* Another process has the file, as a client has its doorbell. */
static void a_withdrawn_poll_of_a_file_that_stays_open_has_no_event(void **state)
{
	int fd = eventfd(0, EFD_NONBLOCK), twin = dup(fd);
	struct kvt_loop_event event = { 0 };
	bool comes;

	kvt_loop_poll(&loop, fd, POLLIN, 9);
	kvt_loop_flush(&loop);
	comes = kvt_loop_cancel(&loop, fd, 9, true);
	close(fd);
	while (comes && event.tag != 9) {
		kvt_loop_sleep(&loop, UINT64_MAX);
		kvt_loop_reap(&loop, &event, 1);
	}
	ring(twin);
	kvt_loop_sleep(&loop, 1000);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1) && event.tag, 0);
	close(twin);
}

static void what_was_seen_of_a_withdrawn_poll_is_forgotten_or_announced(void **state)
{
	struct kvt_loop_event event = { 0 };
	int fd = eventfd(1, EFD_NONBLOCK);
	bool comes;

	kvt_loop_poll(&loop, fd, POLLIN, 9);
	kvt_loop_flush(&loop);
	while (!ready())
		kvt_cpu_relax();
	comes = kvt_loop_cancel(&loop, fd, 9, true);
	kvt_loop_flush(&loop);
	while (kvt_loop_reap(&loop, &event, 1) && event.tag != 9)
		;
	assert_int_equal(event.tag == 9, comes);
	close(fd);
}

/* More requests than the submission ring has entries, more events than its completions. */
static void more_events_than_the_rings_hold_are_kept(void **state)
{
	enum { N = 1500 };
	static int fds[N];
	struct kvt_loop_event events[64];
	struct rlimit limit;
	uint64_t sum = 0;
	unsigned int n = 0;

	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < N + 50) {
		limit.rlim_cur = N + 50;
		if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
			kvt_skip("needs more open files than this process may have");
	}
	fds[0] = eventfd(1, EFD_NONBLOCK);
	for (int i = 1; i < N; i++)
		fds[i] = dup(fds[0]);
	for (uint64_t tag = 1; tag <= N; tag++)
		kvt_loop_poll(&loop, fds[tag - 1], POLLIN, tag);
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
	for (int i = 0; i < N; i++)
		close(fds[i]);
}

/* ---- on epoll alone */

static void a_spinning_loop_enters_the_kernel_now_and_then(void **state)
{
	uint64_t calls = loop.epoll.calls;

	for (int i = 0; i < 10000; i++)
		assert_false(ready());
	assert_in_range(loop.epoll.calls - calls, 199, 201);
}

/* As without memory or with too many watches of this user. */
static void refuse_registrations(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_ctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, EPOLL_CTL_ADD, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		_exit(77);
}

static void use_without_registrations(void)
{
	int fd = eventfd(0, EFD_NONBLOCK), other = eventfd(0, EFD_NONBLOCK);
	struct kvt_loop_event event;

	refuse_registrations();
	kvt_loop_poll(&loop, other, POLLIN, 1000);
	see_many(fd);
	kvt_loop_poll(&loop, fd, POLLIN, 7);
	ring(fd);
	kvt_loop_sleep(&loop, UINT64_MAX);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1), 1);
	assert_int_equal(event.tag, 7);
	ring(other);
	kvt_loop_cancel(&loop, other, 1000, true);
	kvt_loop_sleep(&loop, 1000);
	assert_int_equal(kvt_loop_reap(&loop, &event, 1), 0);
	assert_int_equal(loop.epoll.n_listed, 0);
	_exit(0);
}

static void descriptors_that_cannot_be_registered_are_polled(void **state)
{
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		use_without_registrations();
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		kvt_skip("needs io_uring");
	assert_int_equal(status, 0);
}

#define BY(test, name, way) { #test name, test, open_way, close_loop, (void *)(uintptr_t)(way) },
#define IN_IO_URING(test)                                                                         \
	BY(test, " (best)", KVT_LOOP_IO_URING)                                                    \
	BY(test, " (coop)", KVT_LOOP_IO_URING_COOP)                                               \
	BY(test, " (plain)", KVT_LOOP_IO_URING_PLAIN)
#define IN_EPOLL(test) BY(test, " (epoll)", KVT_LOOP_EPOLL)
#define IN_EACH(X)                                                                                \
	X(a_spinning_loop_sees_what_becomes_ready)                                                \
	X(a_poll_ends_once)                                                                       \
	X(a_sleeping_loop_wakes_for_an_event_and_for_its_timeout)                                 \
	X(a_withdrawn_poll_lets_its_descriptor_go)                                                \
	X(a_withdrawn_poll_of_a_file_that_stays_open_has_no_event)                                \
	X(what_was_seen_of_a_withdrawn_poll_is_forgotten_or_announced)                            \
	X(more_events_than_the_rings_hold_are_kept)

int main(void)
{
	const struct CMUnitTest on_epoll[] = {
		IN_EACH(IN_EPOLL)
		IN_EPOLL(a_spinning_loop_enters_the_kernel_now_and_then)
		IN_EPOLL(descriptors_that_cannot_be_registered_are_polled)
	};
	const struct CMUnitTest on_io_uring[] = { IN_EACH(IN_IO_URING) };
	int failed = cmocka_run_group_tests(on_epoll, NULL, NULL);
	char why[256] = "";

	if (kvt_loop_open(&loop, KVT_LOOP_IO_URING, KVT_LOOP_IO_URING_PLAIN, ROOM, why,
			  sizeof(why)) != 0) {
		print_message("not on io_uring: %s\n", why);
		return failed;
	}
	kvt_loop_close(&loop);
	return failed + cmocka_run_group_tests(on_io_uring, NULL, NULL);
}
