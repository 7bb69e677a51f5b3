/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks through the control socket: half-open connections, malformed messages, unexpected
 * descriptors, answers left unread.
 *
 * Inputs: a seed. Invariant: after each attack the witness works, nothing has leaked, the audit is
 * clean. Caller: tests/run hostile. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "libclient/state.h"
#include "tests/daemon/hostile/witness.h"
#include "tests/lib/cases.h"
#include "tests/lib/raw.h"

/* ---------------------------------------------------------------- connections */

static void leave_half_open(struct kvt_client *client, struct kvt_test_random *random)
{
	struct rlimit limit;
	enum { MANY = 4000 };

	kvt_test_check(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max < MANY + 100 ? limit.rlim_max : MANY + 100;
	kvt_test_check(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	for (int i = 0; i < MANY && i + 100 < (int)limit.rlim_cur; i++)
		kvt_test_dial(&kvt_victim); /* and leave it open */
	/* A connection that sends HELLO is served. */
	for (int i = 0; i < 5; i++)
		kvt_client_close(kvt_test_connect(&kvt_victim), KVT_IDLE);
}

static void come_and_go(struct kvt_client *client, struct kvt_test_random *random)
{
	for (int i = 0; i < 2000; i++) {
		struct kvt_message_hello hello = kvt_test_hello(0);
		int fd = kvt_test_dial(&kvt_victim);

		/* A part of a HELLO, all of it, or none; then hang up without reading the
		 * answer. */
		send(fd, &hello, kvt_test_random_below(random, 2) ? sizeof(hello) :
			 kvt_test_random_below(random, sizeof(hello)), MSG_NOSIGNAL);
		close(fd);
	}
}

static void open_sessions_without_end(struct kvt_client *client, struct kvt_test_random *random)
{
	uint32_t welcomed = 0, refused = 0;

	for (int i = 0; i < 300; i++) {
		struct kvt_message_hello hello = kvt_test_hello(0);
		int fd = kvt_test_dial(&kvt_victim);
		int32_t result = 0;

		kvt_test_check(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello));
		switch (kvt_test_answer(fd, &result)) {
		case KVT_MSG_WELCOME:
			welcomed++;
			break;
		case KVT_MSG_REFUSED:
			kvt_test_check(result == -EDQUOT || result == -EUSERS ||
				       result == -EMFILE || result == -ENFILE ||
				       result == -ENOMEM);
			refused++;
			break;
		default:
			kvt_test_fail("neither welcomed nor refused");
		}
	}
	kvt_test_check(welcomed > 100 && refused > 0);
}

/* ---------------------------------------------------------------- messages */

/* Send HELLOs with one error each: refused or hung up on, never welcomed. */
static void send_wrong_hellos(struct kvt_client *client, struct kvt_test_random *random)
{
	for (int wrong = 0; wrong < 16; wrong++) {
		struct kvt_message_hello hello = kvt_test_hello(0);
		size_t bytes = sizeof(hello);
		int fd = kvt_test_dial(&kvt_victim);
		uint32_t type;

		switch (wrong) {
		case 0: hello.head.magic++; break;
		case 1: hello.head.type = KVT_MSG_WELCOME; break;
		case 2: hello.head.version++; break;
		case 3: hello.head.bytes++; break;
		case 4: hello.head.bytes = UINT32_MAX; break;
		case 5: bytes--; break;
		case 6: bytes = 3; break;
		case 7: hello.rank = 1; break;
		case 8: hello.layout++; break;
		case 9: hello.page_size = 32; break;
		case 10: hello.n_pages = 17; break;
		case 11: hello.page_bytes = 7; break;
		case 12: memset(hello.fingerprint, 'x', sizeof(hello.fingerprint)); break;
		case 13: hello.pid++; break;
		case 14: hello.flags = 0xffffffffu; break;
		default: hello.keys_count = UINT32_MAX; hello.list_count = UINT32_MAX;
			 hello.sq_entries = UINT32_MAX; hello.cq_entries = UINT32_MAX; break;
		}
		kvt_test_check(send(fd, &hello, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
		type = kvt_test_answer(fd, NULL);
		if (type != 0 && type != KVT_MSG_REFUSED && type != KVT_MSG_GOODBYE && wrong < 15)
			kvt_test_fail("wrong hello %d got an answer of type %u", wrong, type);
		close(fd);
	}
}

/* Make a message of any kind with a valid start and a random rest. */
static size_t random_message(struct kvt_test_random *random, uint8_t *bytes)
{
	static const uint16_t sizes[] = { sizeof(struct kvt_message_hello),
					  sizeof(struct kvt_message_namespace),
					  sizeof(struct kvt_message_admin), 24, 1, 700, 5000 };
	size_t n = sizes[kvt_test_random_below(random, sizeof(sizes) / sizeof(sizes[0]))];
	struct kvt_message head = { .magic = KVT_MESSAGE_MAGIC,
				    .type = (uint16_t)kvt_test_random_below(random, 9),
				    .version = KVT_ABI };

	if (kvt_test_random_below(random, 4) == 0)
		n += kvt_test_random_below(random, 64);
	head.bytes = kvt_test_random_below(random, 8) ? (uint32_t)n :
							(uint32_t)kvt_test_random(random);
	for (size_t i = 0; i < n; i++)
		bytes[i] = kvt_test_random_below(random, 3) ? 0 : (uint8_t)kvt_test_random(random);
	memcpy(bytes, &head, n < sizeof(head) ? n : sizeof(head));
	if (head.type == KVT_MSG_ADMIN && n >= sizeof(struct kvt_message_admin)) {
		struct kvt_message_admin *admin = (struct kvt_message_admin *)(void *)bytes;

		admin->what = kvt_test_random_below(random, 16);
		/* Root has the operator's rights here; using them is no attack. */
		if (admin->what == KVT_ADMIN_RESET || admin->what == KVT_ADMIN_TICK)
			admin->what = KVT_ADMIN_NAMESPACES;
	}
	return n;
}

static void send_random_messages(struct kvt_client *client, struct kvt_test_random *random)
{
	static uint8_t bytes[8192] KVT_ALIGNED(8);

	for (int i = 0; i < 1500; i++) {
		struct kvt_message_hello hello = kvt_test_hello(i % 2 ? KVT_HELLO_OBSERVE : 0);
		int fd = kvt_test_dial(&kvt_victim);

		if (i % 4)
			send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
		for (int k = 0; k < 6; k++)
			send(fd, bytes, random_message(random, bytes), MSG_NOSIGNAL);
		close(fd);
	}
}

/* Open more connections than may be half open, each with a session's first message and requests
 * behind it that are never read: the session ends while its connection is queued for the
 * requests. */
static void ask_and_hang_up(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_message_hello hello = kvt_test_hello(0);
	struct kvt_message_namespace question = { .label = "late" };
	int fds[100];

	question.head = (struct kvt_message){ .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_NAMESPACE,
					      .version = KVT_ABI,
					      .bytes = sizeof(question) };
	for (int round = 0; round < 40; round++) {
		for (int i = 0; i < 100; i++) {
			fds[i] = kvt_test_dial(&kvt_victim);
			send(fds[i], &hello, sizeof(hello), MSG_NOSIGNAL);
			for (int k = 0; k < 4; k++) {
				question.digest[0] = kvt_test_random(random);
				send(fds[i], &question, sizeof(question), MSG_NOSIGNAL);
			}
			shutdown(fds[i], SHUT_RD);
		}
		for (int i = 0; i < 100; i++)
			close(fds[i]);
	}
}

/* Send the largest packet, and an empty one. */
static void send_extreme_sizes(struct kvt_client *client, struct kvt_test_random *random)
{
	static uint8_t bytes[200000];
	int size = sizeof(bytes) + 4096;

	for (int i = 0; i < 50; i++) {
		struct kvt_message_hello hello = kvt_test_hello(0);
		int fd = kvt_test_dial(&kvt_victim);

		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
		if (i % 2)
			send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
		memcpy(bytes, &hello, sizeof(hello));
		send(fd, bytes, i % 4 < 2 ? sizeof(bytes) : 0, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fd);
	}
}

/* ---------------------------------------------------------------- not reading */

static void never_read_answers(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_message_hello hello = kvt_test_hello(KVT_HELLO_OBSERVE);
	struct kvt_message_admin request = { .what = KVT_ADMIN_NAMESPACES };
	int fds[20];

	request.head = (struct kvt_message){ .magic = KVT_MESSAGE_MAGIC, .type = KVT_MSG_ADMIN,
					     .version = KVT_ABI, .bytes = sizeof(request) };
	for (int i = 0; i < 20; i++) {
		fds[i] = kvt_test_dial(&kvt_victim);
		send(fds[i], &hello, sizeof(hello), MSG_NOSIGNAL);
	}
	for (int round = 0; round < 2000; round++)
		for (int i = 0; i < 20; i++)
			send(fds[i], &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---------------------------------------------------------------- descriptors */

/* Send descriptors of every kind, up to as many as fit a message, with every kind of message. */
static void send_odd_descriptors(struct kvt_client *client, struct kvt_test_random *random)
{
	struct kvt_message_namespace name = { .head = { .magic = KVT_MESSAGE_MAGIC,
							.type = KVT_MSG_NAMESPACE,
							.version = KVT_ABI,
							.bytes = sizeof(name) } };
	struct kvt_message_hello hello = kvt_test_hello(0);
	int kinds[6], fds[253], pair[2];

	kinds[0] = eventfd(0, EFD_CLOEXEC);
	kinds[1] = memfd_create("odd", MFD_CLOEXEC);
	kvt_test_check(pipe2(pair, O_CLOEXEC) == 0);
	kinds[2] = pair[0];
	kinds[3] = pair[1];
	kinds[4] = open("/dev/null", O_RDWR | O_CLOEXEC);
	kinds[5] = kvt_test_dial(&kvt_victim);
	for (int i = 0; i < 400; i++) {
		static const size_t counts[] = { 1, 2, 10, 253 };
		size_t n = counts[i % 4];
		int fd = kvt_test_dial(&kvt_victim);

		for (size_t k = 0; k < n; k++)
			fds[k] = kinds[kvt_test_random_below(random, 6)];
		kvt_test_send_fds(fd, &hello, sizeof(hello), fds, i % 3 ? n : 0);
		kvt_test_send_fds(fd, &name, sizeof(name), fds, n);
		kvt_test_send_fds(fd, "", 1, fds, n);
		close(fd);
	}
}

/* Open namespaces without end: the limit must hold and be answered. */
static void open_namespaces_without_end(struct kvt_client *client, struct kvt_test_random *random)
{
	uint32_t number, refused = 0;

	for (int i = 0; i < 6000; i++) {
		uint64_t digest[2] = { kvt_test_random(random), kvt_test_random(random) };
		int error = kvt_namespace_open(client, digest, "many", &number);

		kvt_test_check(error == 0 || error == -EDQUOT);
		refused += error != 0;
	}
	kvt_test_check(refused > 0);
}

/* The other tests rely on a witness that notices one wrong byte in a page that it reuses. */
static void the_witness_notices_a_wrong_byte(void **state)
{
	struct kvt_client *client;
	struct kvt_pool pool;

	kvt_witness_start(NULL);
	client = kvt_test_connect(&kvt_victim);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	for (uint32_t page = 1; page < pool.n_pages; page++)
		((volatile uint8_t *)kvt_page_address(&pool, page))[page % 1024] ^= 1;
	kvt_client_close(client, KVT_IDLE);
	kvt_witness_must_fail();
}

static const struct kvt_attack attacks[] = {
	{ "thousands_of_half_open_connections_keep_no_client_out", leave_half_open, 1, 1, 0 },
	{ "connections_that_come_and_go_leave_nothing", come_and_go, 2, 2, 0 },
	{ "more_sessions_than_there_may_be_are_refused", open_sessions_without_end, 3, 3, 0 },
	{ "a_wrong_hello_is_refused", send_wrong_hellos, 1, 1, 0 },
	{ "malformed_messages_end_only_their_own_connection", send_random_messages, 5, 6, 0 },
	{ "a_session_that_is_over_asks_nothing", ask_and_hang_up, 7, 7, 0 },
	{ "packets_of_any_size_are_survived", send_extreme_sizes, 1, 1, 0 },
	{ "an_unread_socket_stops_only_itself", never_read_answers, 1, 1, 0 },
	{ "unexpected_descriptors_are_not_kept", send_odd_descriptors, 9, 9, 0 },
	{ "namespaces_are_limited_and_given_back", open_namespaces_without_end, 9, 10, 0 },
};

int main(void)
{
	const struct CMUnitTest itself[] = {
		cmocka_unit_test(the_witness_notices_a_wrong_byte),
	};

	return kvt_attacks_run(attacks, sizeof(attacks) / sizeof(attacks[0]),
			       "log_level = warning\n", true) +
	       cmocka_run_group_tests(itself, NULL, NULL);
}
