/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of the closer, when the closer reads nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/closer.h"

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

static void what_leaves_while_the_socket_is_full_is_not_sent_again_each_time(void **state)
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

static void a_flush_is_a_bounded_piece_of_work_and_all_leaves_in_the_end(void **state)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			what_leaves_while_the_socket_is_full_is_not_sent_again_each_time, start,
			end),
		cmocka_unit_test_setup_teardown(
			a_flush_is_a_bounded_piece_of_work_and_all_leaves_in_the_end, start, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
