/* SPDX-License-Identifier: Apache-2.0 */
/* Which connections kvtmetricsd drops, and when. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/visitors.h"
#include "tests/lib/cases.h"

static struct kvt_visitors visitors;
static int peers[KVT_VISITORS_ROOM + 1], ours[KVT_VISITORS_ROOM + 1];

static int begin(void **state)
{
	visitors = (struct kvt_visitors){ .lock = PTHREAD_MUTEX_INITIALIZER, .patience_ns = 100 };
	for (size_t i = 0; i <= KVT_VISITORS_ROOM; i++) {
		int ends[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
			return -1;
		ours[i] = ends[0];
		peers[i] = ends[1];
	}
	return 0;
}

static int end(void **state)
{
	for (size_t i = 0; i <= KVT_VISITORS_ROOM; i++) {
		close(ours[i]);
		close(peers[i]);
	}
	return 0;
}

static bool is_shut(size_t i)
{
	char byte;

	return recv(peers[i], &byte, 1, MSG_DONTWAIT) == 0;
}

TEST_WITH(the_oldest_gives_way_when_there_are_too_many, begin, end)
{
	for (size_t i = 0; i < KVT_VISITORS_MOST; i++)
		assert_true(kvt_visitors_came(&visitors, ours[i], KVT_VISITORS_ANYONE, 0));
	assert_false(is_shut(0));
	for (size_t i = KVT_VISITORS_MOST; i < KVT_VISITORS_MOST + 5; i++) {
		assert_true(kvt_visitors_came(&visitors, ours[i], KVT_VISITORS_ANYONE, 0));
		assert_true(is_shut(i - KVT_VISITORS_MOST));
		assert_false(is_shut(i - KVT_VISITORS_MOST + 1));
	}
	/* A closed one makes room. */
	kvt_visitors_left(&visitors, ours[KVT_VISITORS_MOST]);
	assert_true(kvt_visitors_came(&visitors, ours[40], KVT_VISITORS_ANYONE, 0));
	assert_false(is_shut(5));
}

static void ask(size_t i, const char *request)
{
	assert_int_equal(send(peers[i], request, strlen(request), 0), strlen(request));
}

TEST_WITH(who_has_asked_gives_way_last, begin, end)
{
	ask(0, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
	ask(1, "GET / HTTP/1.1\r\nHost: x\r\n");
	for (size_t i = 0; i < KVT_VISITORS_MOST + 3; i++)
		assert_true(kvt_visitors_came(&visitors, ours[i], KVT_VISITORS_ANYONE, 0));
	assert_false(is_shut(0));
	for (size_t i = 1; i <= 3; i++)
		assert_true(is_shut(i));
	for (size_t i = 4; i < KVT_VISITORS_MOST + 4; i++)
		ask(i, "\r\n\r\n");
	assert_true(kvt_visitors_came(&visitors, ours[KVT_VISITORS_MOST + 3], KVT_VISITORS_ANYONE,
				      0));
	assert_true(is_shut(0)); /* all have */
}

TEST_WITH(a_user_with_many_does_not_push_out_one_with_few, begin, end)
{
	assert_true(kvt_visitors_came(&visitors, ours[0], 1000, 0)); /* the oldest of all */
	for (size_t i = 1; i < 40; i++)
		assert_true(kvt_visitors_came(&visitors, ours[i], 65534, 0));
	assert_false(is_shut(0));
	assert_true(is_shut(1));
	assert_true(is_shut(24));
	assert_false(is_shut(25));
	for (size_t i = 25; i < 41; i++)
		ask(i, "\r\n\r\n");
	assert_true(kvt_visitors_came(&visitors, ours[40], 65534, 0));
	assert_false(is_shut(0));
	assert_true(is_shut(25));
}

TEST_WITH(all_of_a_request_has_a_deadline, begin, end)
{
	assert_true(kvt_visitors_expire(&visitors, 0) == INT64_MAX);
	assert_true(kvt_visitors_came(&visitors, ours[0], 1, 10));
	assert_true(kvt_visitors_came(&visitors, ours[1], 1, 20));
	assert_true(kvt_visitors_expire(&visitors, 109) == 110);
	assert_false(is_shut(0));
	assert_true(kvt_visitors_expire(&visitors, 110) == 120);
	assert_true(is_shut(0));
	assert_false(is_shut(1));
	kvt_visitors_left(&visitors, ours[1]);
	assert_true(kvt_visitors_expire(&visitors, 1000) == INT64_MAX);
	assert_false(is_shut(1));
}

TEST_WITH(who_is_being_served_gives_way_last, begin, end)
{
	for (size_t i = 0; i < KVT_VISITORS_MOST; i++) {
		assert_true(kvt_visitors_came(&visitors, ours[i], KVT_VISITORS_ANYONE, 0));
		if (i == 0)
			kvt_visitors_asked(&visitors, ours[i]);
	}
	assert_true(kvt_visitors_came(&visitors, ours[KVT_VISITORS_MOST], KVT_VISITORS_ANYONE, 0));
	assert_false(is_shut(0));
	assert_true(is_shut(1));
}

TEST_WITH(without_a_place_none_is_taken_in, begin, end)
{
	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++)
		assert_true(kvt_visitors_came(&visitors, ours[i], 1, 0));
	assert_false(kvt_visitors_came(&visitors, ours[KVT_VISITORS_ROOM], 1, 0));
	kvt_visitors_left(&visitors, ours[3]);
	assert_true(kvt_visitors_came(&visitors, ours[KVT_VISITORS_ROOM], 1, 0));
}

TEST_WITH(a_number_that_comes_again_has_the_place_that_it_had, begin, end)
{
	for (size_t i = 0; i < KVT_VISITORS_ROOM; i++)
		assert_true(kvt_visitors_came(&visitors, ours[i], 1, 0));
	kvt_visitors_asked(&visitors, ours[5]);
	assert_true(kvt_visitors_came(&visitors, ours[5], 1, 0)); /* the server closed it */
	assert_false(visitors.at[5].asked);
}
