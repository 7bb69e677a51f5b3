/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of the closer, when the closer reads nothing: bounded queues, held descriptors,
 * and pauses between restarts.
 *
 * Invariant: the owner never blocks, and each descriptor is sent once or held. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keep/closer.h"
#include "tests/lib/cases.h"

#define MS 1000000ull

enum { MOST = 4096, WAITING = 200, AT_ONCE = 32 };

struct link {
	struct kvt_closer closer;
	int other; /* the closer's end */
};

static int start(void **state)
{
	static struct link link;
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0)
		return -1;
	link = (struct link){ .closer = { .fd = ends[0], .most = MOST }, .other = ends[1] };
	link.closer.free_keys = calloc(MOST, sizeof(*link.closer.free_keys));
	link.closer.leaving = calloc(MOST, sizeof(*link.closer.leaving));
	if (!link.closer.free_keys || !link.closer.leaving)
		return -1;
	for (uint32_t i = 0; i < MOST; i++)
		link.closer.free_keys[link.closer.n_free_keys++] = MOST - i;
	*state = &link;
	return 0;
}

static int end(void **state)
{
	struct link *link = *state;

	close(link->other);
	kvt_closer_forget(&link->closer);
	return 0;
}

static void leave_one(struct kvt_closer *closer)
{
	struct kvt_leaving leaving = { .n_fds = 1, .fds = { open("/dev/null", O_RDONLY) } };

	assert_true(leaving.fds[0] >= 0);
	kvt_closer_leave(closer, &leaving);
}

static void read_all(struct link *link)
{
	uint8_t bytes[64];

	while (recv(link->other, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		continue;
}

static void fill(struct link *link)
{
	while (link->closer.n_leaving == 0)
		leave_one(&link->closer);
}

TEST_WITH(what_leaves_while_the_socket_is_full_is_not_sent_again_each_time, start, end)
{
	struct link *link = *state;
	uint64_t sends;

	fill(link);
	sends = link->closer.sends;
	for (uint32_t i = 1; i < WAITING; i++)
		leave_one(&link->closer);
	assert_int_equal(link->closer.n_leaving, WAITING);
	assert_int_equal(link->closer.sends, sends);
	assert_true(kvt_closer_flush(&link->closer)); /* one try, not one for each */
	assert_int_equal(link->closer.sends, sends + 1);
}

TEST_WITH(a_flush_is_a_bounded_piece_of_work_and_all_leaves_in_the_end, start, end)
{
	struct link *link = *state;
	uint32_t flushes = 0;
	bool left = true;

	fill(link);
	while (link->closer.n_leaving < WAITING)
		leave_one(&link->closer);
	while (left) {
		uint64_t sends = link->closer.sends;

		read_all(link);
		left = kvt_closer_flush(&link->closer);
		assert_in_range(link->closer.sends - sends, 1, AT_ONCE + 1);
		assert_true(++flushes <= WAITING);
	}
	assert_int_equal(link->closer.n_free_keys, MOST);
}

/* Hold descriptors until the end of the process is seen. */
static void lose(struct kvt_closer *closer)
{
	assert_int_equal(waitpid(closer->pid, NULL, 0), closer->pid);
	while (!closer->lost)
		kvt_closer_hold(closer, 0, (int[]){ STDIN_FILENO }, 1);
}

static uint32_t lines_logged(int fd)
{
	char text[4096];
	ssize_t bytes = pread(fd, text, sizeof(text), 0);
	uint32_t n = 0;

	for (ssize_t i = 0; i < bytes; i++)
		n += text[i] == '\n';
	return n;
}

/* Count processes started within ten seconds if each ends at once. */
static uint32_t starts(struct kvt_closer *closer, uint64_t *now_ns)
{
	uint64_t end = *now_ns + 10000 * MS;
	uint32_t n = 0;

	for (; *now_ns < end; *now_ns += MS) {
		if (!kvt_closer_replace(closer, *now_ns))
			continue;
		n++;
		lose(closer);
	}
	return n;
}

TEST(a_process_that_ends_at_once_is_replaced_after_growing_pauses)
{
	struct kvt_closer closer = { .fd = -1 };
	int errors = memfd_create("stderr", 0), saved = dup(STDERR_FILENO);
	uint64_t now = 1000 * MS;

	assert_true(errors >= 0 && saved >= 0 && dup2(errors, STDERR_FILENO) >= 0);
	assert_int_equal(kvt_closer_start(&closer, MOST, 0), 0);
	lose(&closer);
	now += 100000 * MS;
	assert_false(kvt_closer_replace(&closer, now)); /* due in a millisecond */
	assert_in_range(starts(&closer, &now), 15, 20); /* 1 + 2 + ... + 512 ms, then each second */
	assert_int_equal(lines_logged(errors), 2);
	now = closer.start_at_ns;
	assert_true(kvt_closer_replace(&closer, now));
	now += 100000 * MS; /* this one lived long */
	lose(&closer);
	assert_in_range(starts(&closer, &now), 15, 20);
	assert_int_equal(lines_logged(errors), 4);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(errors);
	closer.lost = false;
	kvt_closer_forget(&closer);
}

TEST_WITH(what_leaves_stays_open_while_the_process_is_lost, start, end)
{
	struct link *link = *state;
	struct kvt_closer *closer = &link->closer;
	struct kvt_leaving leaving = { .n_fds = 1, .fds = { open("/dev/null", O_RDONLY) } };

	leaving.key = kvt_closer_hold(closer, 0, leaving.fds, 1);
	assert_int_not_equal(leaving.key, 0);
	close(link->other);
	assert_int_equal(kvt_closer_hold(closer, 0, leaving.fds, 1), 0);
	kvt_closer_leave(closer, &leaving);
	assert_true(kvt_closer_flush(closer));
	assert_int_not_equal(fcntl(leaving.fds[0], F_GETFD), -1);
	close(leaving.fds[0]);
	link->other = open("/dev/null", O_RDONLY);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "--closer") == 0)
		return EXIT_FAILURE; /* the process that ends at once */
	return kvt_tests_run(argc, argv);
}
