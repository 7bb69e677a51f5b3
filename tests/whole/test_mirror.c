/* SPDX-License-Identifier: Apache-2.0 */
/* Mirrors with real processes: every member of a group reads what rank 0 wrote, also under a
 * daemon's successor, and nobody waits for a process that has ended.
 *
 * Inputs: orders to members, and signals. Invariant: message i is the same for all ranks. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

enum { N_RANKS = 3, SMALL = 64 };

/* Orders to a process. It answers with a word. */
enum order {
	ORDER_READ = 1, /* then how many messages: answers with how many were right */
	ORDER_AWAIT,    /* answers at once, and with the error of a read or write that waits */
	ORDER_END,
};

static const struct kvt_group_token token = { { 5, 6 } };

struct rank {
	struct kvt_test_child child;
	const struct kvt_test_daemon *daemon;
	uint32_t number;
};

static struct kvt_client *connect_as(const struct kvt_test_daemon *daemon, uint32_t rank,
				     uint32_t flags)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_group_token got;
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = daemon->socket;
	options.flags = KVT_ANY_GEOMETRY | flags;
	options.group = rank ? &token : NULL;
	options.rank = rank;
	if (kvt_client_connect(&client, &options, &error) != 0)
		kvt_test_fail("rank %u: %s", rank, error.text);
	if (!rank)
		kvt_test_equal(kvt_group_open(client, N_RANKS, &token, &got), 0);
	return client;
}

/* Messages have all sizes up to some hundred bytes; some are as long as one may be. */
static uint32_t message(uint64_t i, uint8_t *bytes)
{
	uint32_t n = i % 50 == 7 ? KVT_MIRROR_MESSAGE_MAX : (uint32_t)(i * 37 % 500);

	memset(bytes, (int)(i % 251), n);
	return n;
}

static void write_messages(struct kvt_client *client, uint64_t from, uint64_t to)
{
	uint8_t bytes[KVT_MIRROR_MESSAGE_MAX];

	for (uint64_t i = from; i < to; i++)
		kvt_test_equal(kvt_mirror_write(client, bytes, message(i, bytes)), 0);
}

/* Wait for a message, or for room to write one, until that fails. */
static int await_end(struct kvt_client *client, uint32_t rank)
{
	uint8_t bytes[KVT_MIRROR_MESSAGE_MAX] = { 0 };
	int rc = 0;

	while (rc >= 0)
		rc = rank ? kvt_mirror_read(client, bytes, sizeof(bytes)) :
			    kvt_mirror_write(client, bytes, sizeof(bytes));
	return rc;
}

static void rank_main(int pipe, void *context)
{
	const struct rank *self = context;
	struct kvt_client *client = connect_as(self->daemon, self->number,
					       self->number ? 0 : KVT_MIRROR);
	uint8_t bytes[KVT_MIRROR_MESSAGE_MAX], expected[KVT_MIRROR_MESSAGE_MAX];
	uint64_t order, n, right = 0;

	kvt_test_send(pipe, self->number);
	while (kvt_test_receive(pipe, &order) && order != ORDER_END) {
		if (order == ORDER_AWAIT) {
			kvt_test_send(pipe, 0);
			kvt_test_send(pipe, (uint64_t)-await_end(client, self->number));
			continue;
		}
		for (n = kvt_test_word(pipe); n; n--) {
			uint32_t size = message(right, expected);

			if (kvt_mirror_read(client, bytes, sizeof(bytes)) == (int)size &&
			    memcmp(bytes, expected, size) == 0)
				right++;
		}
		kvt_test_send(pipe, right);
	}
	kvt_client_close(client, KVT_IDLE);
}

static void start_rank(struct rank *rank, const struct kvt_test_daemon *daemon, uint32_t number)
{
	*rank = (struct rank){ .daemon = daemon, .number = number };
	kvt_test_child_start(&rank->child, rank_main, rank);
	kvt_test_expect(rank->child.pipe, number);
}

static void ask_read(const struct rank *rank, uint64_t n)
{
	kvt_test_send(rank->child.pipe, ORDER_READ);
	kvt_test_send(rank->child.pipe, n);
}

static void finish_rank(struct rank *rank)
{
	kvt_test_send(rank->child.pipe, ORDER_END);
	kvt_test_child_finish(&rank->child);
}

/* Have it wait in a call of the mirror. */
static void let_wait(const struct rank *rank)
{
	kvt_test_equal(kvt_test_ask(&rank->child, ORDER_AWAIT), 0);
	while (kvt_test_process_state(rank->child.pid) != 'S')
		sched_yield();
}

TEST(members_read_the_same_messages_however_late_they_join)
{
	struct kvt_test_daemon daemon;
	struct rank early, late;
	struct kvt_client *leader;

	kvt_test_daemon_begin_supervised(&daemon, NULL);
	leader = connect_as(&daemon, 0, KVT_MIRROR);
	start_rank(&early, &daemon, 1);
	write_messages(leader, 0, 20);
	kvt_test_daemon_succeed(&daemon);
	start_rank(&late, &daemon, 2);
	ask_read(&early, 2000);
	ask_read(&late, 2000);
	write_messages(leader, 20, 2000);
	kvt_test_expect(early.child.pipe, 2000);
	kvt_test_expect(late.child.pipe, 2000);
	kvt_test_daemon_succeed(&daemon); /* the ring needs no daemon */
	ask_read(&early, 10);
	write_messages(leader, 2000, 2010);
	kvt_test_expect(early.child.pipe, 2010);
	kvt_client_close(leader, KVT_IDLE);
	finish_rank(&early);
	finish_rank(&late);
	kvt_test_daemon_end(&daemon);
}

TEST(rank_0_waits_for_the_slowest_member)
{
	uint8_t bytes[KVT_MIRROR_MESSAGE_MAX];
	struct kvt_test_daemon daemon;
	struct rank quick, slow;
	struct kvt_client *leader;
	uint64_t n = 0;

	kvt_test_daemon_begin(&daemon, NULL);
	leader = connect_as(&daemon, 0, KVT_MIRROR);
	start_rank(&quick, &daemon, 1);
	ask_read(&quick, 1000);
	start_rank(&slow, &daemon, 2);
	kvt_client_set_timeout(leader, 20000000);
	while (kvt_mirror_write(leader, bytes, message(n, bytes)) == 0)
		n++;
	kvt_test_equal(kvt_client_error(leader)->code, -ETIMEDOUT);
	kvt_test_check(n > 20 && n < 1000);
	kvt_client_set_timeout(leader, 0);
	ask_read(&slow, 1000);
	write_messages(leader, n, 1000);
	kvt_test_expect(quick.child.pipe, 1000);
	kvt_test_expect(slow.child.pipe, 1000);
	kvt_client_close(leader, KVT_IDLE);
	finish_rank(&quick);
	finish_rank(&slow);
	kvt_test_daemon_end(&daemon);
}

/* One is killed while another waits for it in a call. */
static void kill_while_waiting(uint32_t victim, uint32_t waiter)
{
	struct kvt_test_daemon daemon;
	struct rank ranks[N_RANKS];

	kvt_test_daemon_begin(&daemon, NULL);
	for (uint32_t i = 0; i < N_RANKS; i++)
		start_rank(&ranks[i], &daemon, i);
	let_wait(&ranks[waiter]);
	kvt_test_child_kill(&ranks[victim].child, SIGKILL);
	kvt_test_expect(ranks[waiter].child.pipe, ECONNRESET);
	for (uint32_t i = 0; i < N_RANKS; i++)
		if (i != victim)
			finish_rank(&ranks[i]);
	kvt_test_daemon_end(&daemon);
}

TEST(a_member_does_not_wait_for_a_killed_rank_0)
{
	kill_while_waiting(0, 1);
}

TEST(rank_0_does_not_wait_for_a_killed_member)
{
	kill_while_waiting(2, 0);
}

TEST(what_has_no_mirror_is_told_why)
{
	uint8_t bytes[KVT_MIRROR_MESSAGE_MAX + 1] = { 0 };
	struct kvt_group_token got;
	struct kvt_test_daemon daemon;
	struct kvt_client *leader, *member;

	kvt_test_daemon_begin(&daemon, NULL);
	leader = kvt_test_connect(&daemon);
	kvt_test_equal(kvt_mirror_write(leader, bytes, SMALL), -ENOTSUP);
	kvt_test_equal(kvt_mirror_read(leader, bytes, SMALL), -ENOTCONN);
	kvt_test_equal(kvt_group_open(leader, 2, &token, &got), 0);
	member = connect_as(&daemon, 1, 0);
	kvt_test_equal(kvt_mirror_read(member, bytes, SMALL), -ENOTSUP);
	kvt_test_equal(kvt_mirror_write(member, bytes, SMALL), -ENOTCONN);
	kvt_client_close(leader, KVT_IDLE);
	kvt_client_close(member, KVT_IDLE);
	leader = kvt_test_observe(&daemon);
	kvt_test_equal(kvt_mirror_write(leader, bytes, SMALL), -ENOTCONN);
	kvt_client_close(leader, KVT_IDLE);

	leader = connect_as(&daemon, 0, KVT_MIRROR);
	member = connect_as(&daemon, 1, 0);
	kvt_test_equal(kvt_mirror_write(leader, bytes, sizeof(bytes)), -EMSGSIZE);
	kvt_test_equal(kvt_mirror_write(leader, NULL, 0), 0);
	kvt_test_equal(kvt_mirror_write(leader, bytes, SMALL), 0);
	kvt_test_equal(kvt_mirror_read(member, NULL, 0), 0);
	kvt_test_equal(kvt_mirror_read(member, bytes, SMALL - 1), -EMSGSIZE);
	kvt_test_equal(kvt_mirror_read(member, bytes, SMALL), SMALL);
	kvt_client_close(leader, KVT_IDLE);
	kvt_client_close(member, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}
