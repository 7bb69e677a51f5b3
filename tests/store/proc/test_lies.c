/* SPDX-License-Identifier: Apache-2.0 */
/* A client beside stores that lie, hang up, or say nothing.
 *
 * Inputs: a process in place of the store, which sends what a store must not. Invariants: each
 * prompt is served with its bytes, and nothing waits for the store for long. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "kvtrunk_wire_store.h"
#include "tests/lib/cases.h"
#include "tests/lib/raw.h"
#include "tests/lib/harness.h"

#define N 1024u
#define SALT 7
#define QUIET_NS 1000000000ll
#define ENOUGH_NS (60 * QUIET_NS) /* for a WELCOME on a busy machine */

enum lie {
	LIE_SILENT,         /* no WELCOME */
	LIE_GARBAGE,
	LIE_NO_DESCRIPTOR,
	LIE_SHORT_AREA,
	LIE_UNSEALED_AREA,
	LIE_OTHER_INSTANCE,
	LIE_OTHER_VERSION,
	LIE_SPEECHLESS,     /* no ANSWER */
	LIE_HANG_UP,        /* instead of ANSWER */
	LIE_WRONG_COOKIE,
	LIE_TWICE,          /* two ANSWERs */
	LIE_SHORT_ANSWER,
	LIE_PROMISE,        /* loads nothing */
	LIES,
};

static struct kvt_client *worker;
static uint64_t instance[2];
static char path[112];
static uint32_t keys[N];
static int64_t stands_at_ns; /* the clock of this process; 0: it runs */

/* Replaces libc's, in the client library, too. */
int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
	if (clock != CLOCK_MONOTONIC || stands_at_ns == 0)
		return (int)syscall(SYS_clock_gettime, clock, ret_time);
	ret_time->tv_sec = stands_at_ns / 1000000000;
	ret_time->tv_nsec = stands_at_ns % 1000000000;
	return 0;
}

static int make_area(enum lie lie)
{
	uint64_t bytes = lie == LIE_SHORT_AREA ? 4096 : KVT_STORE_KEYS * sizeof(uint32_t);
	int fd = memfd_create("keys", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	kvt_test_check(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	if (lie != LIE_UNSEALED_AREA)
		kvt_test_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

static void send_welcome(int fd, enum lie lie)
{
	struct kvt_store_welcome welcome = {
		.head = { .magic = lie == LIE_GARBAGE ? 1 : KVT_STORE_MAGIC,
			  .type = KVT_STORE_WELCOME,
			  .version = (uint16_t)(KVT_ABI + (lie == LIE_OTHER_VERSION)),
			  .bytes = sizeof(welcome) },
		.instance = { instance[0] + (lie == LIE_OTHER_INSTANCE), instance[1] },
		.n_keys = KVT_STORE_KEYS, .min_positions = 64,
	};
	int area = make_area(lie);

	kvt_test_send_fds(fd, &welcome, sizeof(welcome), &area, lie != LIE_NO_DESCRIPTOR);
	close(area);
}

/* Answer a FETCH. False: hang up. */
static bool answer(int fd, const struct kvt_store_fetch *ask, enum lie lie)
{
	struct kvt_store_answer answer = {
		.head = { .magic = KVT_STORE_MAGIC, .type = KVT_STORE_ANSWER, .version = KVT_ABI,
			  .bytes = sizeof(answer),
			  .cookie = ask->head.cookie + (lie == LIE_WRONG_COOKIE) },
		.positions = lie == LIE_PROMISE ? ask->n_keys : 0,
	};

	if (lie == LIE_SPEECHLESS)
		return true;
	if (lie == LIE_HANG_UP)
		return false;
	for (int i = 0; i <= (lie == LIE_TWICE); i++)
		send(fd, &answer, lie == LIE_SHORT_ANSWER ? 24 : sizeof(answer), MSG_NOSIGNAL);
	return true;
}

/* Serve one client at a time, until the test hangs up. */
static void pretend(int pipe, void *context)
{
	enum lie lie = *(const enum lie *)context;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd;
	struct kvt_store_fetch ask;

	snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", path);
	kvt_test_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	kvt_test_equal(listen(listener, 8), 0);
	kvt_test_send(pipe, 1);
	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		if (lie != LIE_SILENT)
			send_welcome(fd, lie);
		while (recv(fd, &ask, sizeof(ask), 0) == sizeof(ask) && answer(fd, &ask, lie))
			;
		close(fd);
	}
}

static int start(void **state)
{
	kvt_test_daemon_begin(&daemon_, NULL);
	snprintf(path, sizeof(path), "%s.store", daemon_.socket);
	return 0;
}

static int end(void **state)
{
	stands_at_ns = 0;
	return kvt_test_end(state);
}

/* Connect, for a request with `keys`. */
static struct kvt_request connect_with(int64_t fetch_wait_ns)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_request begin = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = N };

	options.socket_path = daemon_.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = fetch_wait_ns;
	kvt_test_equal(kvt_client_connect(&worker, &options, NULL), 0);
	memcpy(instance, kvt_client_info(worker)->instance, sizeof(instance));
	begin.namespace_id = kvt_test_namespace(worker, "lies");
	return begin;
}

static void pretend_to_serve(struct kvt_test_child *ret_fake, enum lie lie)
{
	kvt_test_child_start(ret_fake, pretend, &lie);
	kvt_test_expect(ret_fake->pipe, 1);
}

static void end_with(struct kvt_test_child *fake)
{
	kvt_test_child_kill(fake, 9);
	unlink(path);
}

/* Serve some prompts beside a store that lies, and ask for one. */
static void serve_beside(enum lie lie)
{
	struct kvt_request begin = connect_with(20000000);
	struct kvt_fetched fetched;
	struct kvt_test_child fake;
	struct kvt_pool pool;

	kvt_test_equal(kvt_pool_map(worker, &pool), 0);
	pretend_to_serve(&fake, lie);
	for (uint32_t i = 0; i < 5; i++) {
		kvt_test_keys(keys, N, 1000 * lie + i);
		kvt_test_equal(kvt_test_serve(worker, &pool, begin.namespace_id, SALT, keys, N), 0);
	}
	kvt_test_keys(keys, N, 1000 * lie + 5);
	kvt_test_check(kvt_fetch(worker, &begin) >= 0);
	while (kvt_fetch_poll(worker, &fetched) == 1)
		kvt_test_check(fetched.positions == 0 || lie == LIE_PROMISE);
	end_with(&fake);
	kvt_test_equal(kvt_test_serve(worker, &pool, begin.namespace_id, SALT, keys, N), 0);
	kvt_test_equal(kvt_client_close(worker, KVT_IDLE), 0);
}

TEST_WITH(no_lie_costs_a_prompt_its_bytes_or_its_time, start, kvt_test_end)
{
	for (enum lie lie = 0; lie < LIES; lie++)
		serve_beside(lie);
}

/* Expect that a store is not asked for a second, but then. */
static void expect_quiet(const struct kvt_request *begin)
{
	kvt_test_equal(kvt_fetch(worker, begin), 0);
	stands_at_ns += QUIET_NS - 1;
	kvt_test_equal(kvt_fetch(worker, begin), 0);
	stands_at_ns += 1;
	kvt_test_equal(kvt_fetch(worker, begin), 1);
}

TEST_WITH(a_store_that_misses_three_answers_is_left_alone_for_a_second, start, end)
{
	struct kvt_request begin = connect_with(ENOUGH_NS);
	struct kvt_fetched fetched;
	struct kvt_test_child fake;

	kvt_test_keys(keys, N, 1);
	pretend_to_serve(&fake, LIE_SPEECHLESS);
	stands_at_ns = kvt_now_ns();
	for (uint32_t i = 0; i < 3; i++) {
		kvt_test_equal(kvt_fetch(worker, &begin), 1);
		kvt_test_equal(kvt_fetch_poll(worker, &fetched), 0);
		stands_at_ns += ENOUGH_NS + 1;
		kvt_test_equal(kvt_fetch_poll(worker, &fetched), 1);
		kvt_test_equal(fetched.positions, 0);
	}
	expect_quiet(&begin);
	stands_at_ns = 0;
	end_with(&fake);
	kvt_test_equal(kvt_client_close(worker, KVT_IDLE), 0);
}

TEST_WITH(a_store_that_is_not_there_is_left_alone_for_a_second, start, end)
{
	struct kvt_request begin = connect_with(ENOUGH_NS);
	struct kvt_test_child fake;

	kvt_test_keys(keys, N, 1);
	stands_at_ns = kvt_now_ns();
	kvt_test_equal(kvt_fetch(worker, &begin), 0);
	pretend_to_serve(&fake, LIE_SPEECHLESS);
	expect_quiet(&begin);
	stands_at_ns = 0;
	end_with(&fake);
	kvt_test_equal(kvt_client_close(worker, KVT_IDLE), 0);
}
