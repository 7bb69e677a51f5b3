/* SPDX-License-Identifier: Apache-2.0 */
/* What arrives with a message besides its bytes. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/keep/rights.h"
#include "tests/lib/cases.h"

static int ends[2];

static int open_pair(void **state)
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
}

static int close_pair(void **state)
{
	close(ends[0]);
	close(ends[1]);
	return 0;
}

static void ask_for_credentials(void)
{
	int on = 1;

	assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
}

/* Send `n` duplicates and receive with room for `most`. */
static struct kvt_rights pass(uint32_t n, uint32_t most)
{
	struct kvt_rights rights;
	int fds[KVT_RIGHTS_MOST];
	char text[8];

	for (uint32_t i = 0; i < n; i++)
		fds[i] = ends[i % 2];
	assert_int_equal(kvt_rights_send(ends[0], "ab", 2, fds, n), 2);
	assert_int_equal(kvt_rights_receive(ends[1], text, sizeof(text), 0, most, &rights), 2);
	assert_memory_equal(text, "ab", 2);
	return rights;
}

static void close_all(const struct kvt_rights *rights)
{
	for (uint32_t i = 0; i < rights->n_fds; i++)
		close(rights->fds[i]);
}

TEST_WITH(descriptors_arrive_in_order_and_close_on_exec, open_pair, close_pair)
{
	struct kvt_rights rights = pass(KVT_RIGHTS_MOST, KVT_RIGHTS_MOST);

	assert_int_equal(rights.n_fds, KVT_RIGHTS_MOST);
	assert_int_equal(rights.flags & MSG_CTRUNC, 0);
	assert_int_equal(rights.sender, -1);
	for (uint32_t i = 0; i < rights.n_fds; i++) {
		struct stat sent, got;

		assert_int_equal(fstat(ends[i % 2], &sent), 0);
		assert_int_equal(fstat(rights.fds[i], &got), 0);
		assert_int_equal(got.st_ino, sent.st_ino);
		assert_int_equal(fcntl(rights.fds[i], F_GETFD), FD_CLOEXEC);
	}
	close_all(&rights);
}

TEST_WITH(the_sender_is_told_beside_descriptors_and_without, open_pair, close_pair)
{
	struct kvt_rights rights;

	ask_for_credentials();
	rights = pass(0, 1);
	assert_int_equal(rights.sender, getpid());
	assert_int_equal(rights.n_fds, 0);
	rights = pass(2, 2);
	assert_int_equal(rights.sender, getpid());
	assert_int_equal(rights.n_fds, 2);
	close_all(&rights);
}

/* Receive no descriptor: closing it may block for long. */
TEST_WITH(without_room_no_descriptor_is_received, open_pair, close_pair)
{
	struct kvt_rights rights;
	int next = dup(ends[0]), same;

	close(next);
	ask_for_credentials();
	rights = pass(3, 0);
	assert_int_equal(rights.n_fds, 0);
	assert_int_not_equal(rights.flags & MSG_CTRUNC, 0);
	same = dup(ends[0]);
	assert_int_equal(same, next);
	close(same);
}

TEST_WITH(nothing_there_is_an_error_at_once, open_pair, close_pair)
{
	struct kvt_rights rights = { .n_fds = 7 };
	char text[8];

	assert_int_equal(kvt_rights_receive(ends[1], text, sizeof(text), 0, 1, &rights), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(rights.n_fds, 7);
	while (kvt_rights_send(ends[0], "ab", 2, NULL, 0) == 2)
		continue;
	assert_int_equal(errno, EAGAIN);
}
