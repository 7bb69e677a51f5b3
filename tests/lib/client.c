/* SPDX-License-Identifier: Apache-2.0 */
/* Clients, children and pages with content, for tests with real processes.
 *
 * Inputs: a running daemon. Invariant: a failure ends the test program with a message. Callers: the
 * tests, by harness.h. */
#include "tests/lib/harness.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- clients */

struct kvt_client *kvt_test_connect_with(const struct kvt_test_daemon *daemon, uint32_t flags)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { .code = 0 };
	struct kvt_client *client;

	options.socket_path = daemon->socket;
	options.keys_count = 1u << 16;
	options.list_count = 1u << 16;
	options.spin_budget_ns = 20000;
	/* A test that writes pages must ask for their addresses. */
	options.flags = flags | KVT_ANY_GEOMETRY;
	if (kvt_client_connect(&client, &options, &error) != 0)
		kvt_test_fail("cannot connect: %s", error.text);
	return client;
}

struct kvt_client *kvt_test_connect(const struct kvt_test_daemon *daemon)
{
	return kvt_test_connect_with(daemon, 0);
}

struct kvt_client *kvt_test_observe(const struct kvt_test_daemon *daemon)
{
	return kvt_test_connect_with(daemon, KVT_HELLO_OBSERVE);
}

void kvt_test_fence_by(int method)
{
	setenv("KVTRUNK_FENCE", method == KVT_FENCE_BY_WRITE ? "write" : "host", 1);
}

void kvt_test_digest(const char *name, uint64_t ret_digest[2])
{
	ret_digest[0] = 0x6b76747465737473ull;
	ret_digest[1] = 0;
	for (const char *c = name; *c; c++)
		ret_digest[1] = ret_digest[1] * 1099511628211ull + (uint8_t)*c;
}

uint32_t kvt_test_namespace(struct kvt_client *client, const char *name)
{
	uint64_t digest[2];
	uint32_t number;
	int error;

	kvt_test_digest(name, digest);
	error = kvt_namespace_open(client, digest, name, &number);
	if (error != 0)
		kvt_test_fail("namespace %s: %s", name, kvt_client_error(client)->text);
	return number;
}

struct kvt_result kvt_test_call(struct kvt_client *client, const struct kvt_request *request)
{
	struct kvt_result result;

	if (kvt_call(client, request, &result) != 0)
		kvt_test_fail("%s: %s", kvt_op_name((int)request->op),
			      kvt_client_error(client)->text);
	kvt_result_release(client, &result);
	return result;
}

void kvt_test_cache(struct kvt_client *client, uint32_t space, uint32_t first, uint32_t n)
{
	uint32_t keys[4096];
	struct kvt_seq *seq;

	kvt_test_check(n <= 4096);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = first + i;
	kvt_test_equal(kvt_seq_begin(client, space, keys, n, 0, 0, &seq), 0);
	kvt_test_equal(kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
}

uint32_t kvt_test_matched(struct kvt_client *client, uint32_t space, const uint32_t *keys,
			  uint32_t n)
{
	struct kvt_result result;

	kvt_test_equal(kvt_match(client, space, keys, n, 0, &result), 0);
	kvt_result_release(client, &result);
	return result.matched;
}

/* `what`: KVT_ADMIN_STATUS, or KVT_ADMIN_SETTLED, which is answered once work is done. */
static struct kvt_admin_status status_of(struct kvt_client *observer, uint32_t what)
{
	struct kvt_message_admin request = { .what = what };
	struct kvt_admin_status status;
	int n = kvt_admin(observer, &request, NULL, 0, &status, sizeof(status));

	if (n != 1)
		kvt_test_fail("status: %d, %s", n, kvt_client_error(observer)->text);
	return status;
}

struct kvt_admin_status kvt_test_status(const struct kvt_test_daemon *daemon)
{
	struct kvt_client *observer = kvt_test_observe(daemon);
	struct kvt_admin_status status = status_of(observer, KVT_ADMIN_STATUS);

	kvt_client_close(observer, KVT_IDLE);
	return status;
}

struct kvt_counters kvt_test_settled(const struct kvt_test_daemon *daemon)
{
	struct kvt_client *observer = kvt_test_observe(daemon);
	struct kvt_admin_status status = status_of(observer, KVT_ADMIN_SETTLED);

	kvt_client_close(observer, KVT_IDLE);
	return status.counters;
}

void kvt_test_patience(const char *file, int line, const char *condition,
		       const struct kvt_counters *counters, int64_t began_ns)
{
	if (kvt_now_ns() - began_ns < KVT_TEST_PATIENCE_NS)
		return;
#define PRINT_GAUGE(name) fprintf(stderr, "%s=%llu\n", #name, (unsigned long long)counters->name);
#define PRINT_COUNTER(name)
#define PRINT(kind, name, text) PRINT_##kind(name)
	KVT_COUNTERS(PRINT)
	kvt_test_fail_at(file, line, "still not true: %s", condition);
}

void kvt_test_audit(const struct kvt_test_daemon *daemon)
{
	struct kvt_client *observer = kvt_test_observe(daemon);
	struct kvt_message_admin request = { .what = KVT_ADMIN_AUDIT };
	static char text[KVT_MESSAGE_MAX];
	struct kvt_counters counters = status_of(observer, KVT_ADMIN_SETTLED).counters;
	int n;

	memset(text, 0, sizeof(text));
	n = kvt_admin(observer, &request, NULL, 0, text, sizeof(text) - 1);
	if (n < 0)
		kvt_test_fail("audit: %s", kvt_client_error(observer)->text);
	if (request.total != 0)
		kvt_test_fail("audit found %llu problems: %s", (unsigned long long)request.total,
			      text);
	kvt_test_equal(counters.evictable_pages + counters.protected_pages, counters.cached_pages);
	kvt_client_close(observer, KVT_IDLE);
}

void kvt_test_session_ended(const struct kvt_test_daemon *daemon, uint32_t session)
{
	struct kvt_client *observer = kvt_test_observe(daemon);
	struct kvt_message_admin request = { .what = KVT_ADMIN_ENDED, .argument = session };
	int n = kvt_admin(observer, &request, NULL, 0, NULL, 0);

	if (n < 0)
		kvt_test_fail("ended: %s", kvt_client_error(observer)->text);
	kvt_client_close(observer, KVT_IDLE);
}

/* ---------------------------------------------------------------- pages with content */

static uint64_t mixed(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15ull) *
				    (b ^ 0xd6e8feb86659fd93ull);

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Return one word that depends on all that a page's content must depend on. */
static uint64_t page_seed(uint32_t page_size, uint64_t salt, const uint32_t *keys, uint32_t index)
{
	uint64_t seed = mixed(salt, index + 1);

	for (uint32_t i = 0; i < (index + 1) * page_size; i++)
		seed = mixed(seed, keys[i] + 1ull);
	return seed;
}

void kvt_test_keys(uint32_t *keys, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = (seed * 1000003u + i * 7919u) & 0x7fffffffu;
}

uint64_t kvt_test_page_bytes(const struct kvt_pool *pool)
{
	return (uint64_t)((char *)kvt_page_address(pool, 1) - (char *)kvt_page_address(pool, 0));
}

void kvt_test_page_fill(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			uint64_t salt, const uint32_t *keys, uint32_t index)
{
	uint64_t seed = page_seed(page_size, salt, keys, index);
	volatile uint64_t *words = kvt_page_address(pool, page);

	kvt_test_check(page > 0 && page < pool->n_pages);
	for (uint64_t i = 0; i < kvt_test_page_bytes(pool) / 8; i++)
		words[i] = mixed(seed, i);
}

bool kvt_test_page_right(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			 uint64_t salt, const uint32_t *keys, uint32_t index)
{
	uint64_t seed = page_seed(page_size, salt, keys, index);
	const volatile uint64_t *words = kvt_page_address(pool, page);

	if (page == 0 || page >= pool->n_pages)
		return false;
	for (uint64_t i = 0; i < kvt_test_page_bytes(pool) / 8; i++)
		if (words[i] != mixed(seed, i))
			return false;
	return true;
}

uint32_t kvt_test_serve(struct kvt_client *client, const struct kvt_pool *pool, uint32_t space,
			uint64_t salt, const uint32_t *keys, uint32_t n)
{
	uint32_t size = kvt_client_info(client)->page_size, reused;
	const uint32_t *pages;
	struct kvt_seq *seq;

	if (kvt_seq_begin(client, space, keys, n, 0, 0, &seq) != 0)
		kvt_test_fail("begin: %s", kvt_client_error(client)->text);
	pages = kvt_seq_pages(seq, NULL);
	reused = kvt_seq_reusable(seq);
	for (uint32_t i = reused / size; i < n / size; i++)
		kvt_test_page_fill(pool, size, pages[i], salt, keys, i);
	for (uint32_t i = 0; i < reused / size; i++)
		kvt_test_check(kvt_test_page_right(pool, size, pages[i], salt, keys, i));
	kvt_test_equal(kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0), 0);
	pages = kvt_seq_pages(seq, NULL);
	for (uint32_t i = 0; i < n / size; i++)
		kvt_test_check(kvt_test_page_right(pool, size, pages[i], salt, keys, i));
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	return reused;
}

/* ---------------------------------------------------------------- children */

void kvt_test_child_start(struct kvt_test_child *child, kvt_test_child_fn *run, void *context)
{
	int ends[2];

	fflush(NULL);
	kvt_test_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
	child->pid = fork();
	kvt_test_check(child->pid >= 0);
	if (child->pid == 0) {
		/* Close the parent's descriptors: a hang-up must be one. */
		close_range(3, (unsigned int)ends[1] - 1, 0);
		close_range((unsigned int)ends[1] + 1, ~0u, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(ends[1], context);
		fflush(NULL);
		_exit(0);
	}
	close(ends[1]);
	child->pipe = ends[0];
}

void kvt_test_send(int pipe, uint64_t word)
{
	kvt_test_check(send(pipe, &word, sizeof(word), MSG_NOSIGNAL) == sizeof(word));
}

bool kvt_test_receive(int pipe, uint64_t *ret_word)
{
	ssize_t n;

	do
		n = recv(pipe, ret_word, sizeof(*ret_word), MSG_WAITALL);
	while (n < 0 && errno == EINTR);
	return n == sizeof(*ret_word);
}

uint64_t kvt_test_word(int pipe)
{
	uint64_t word = 0;

	if (!kvt_test_receive(pipe, &word))
		kvt_test_fail("process %d: the other side is gone", (int)getpid());
	return word;
}

void kvt_test_expect(int pipe, uint64_t word)
{
	kvt_test_equal(kvt_test_word(pipe), word);
}

uint64_t kvt_test_ask(const struct kvt_test_child *child, uint64_t word)
{
	kvt_test_send(child->pipe, word);
	return kvt_test_word(child->pipe);
}

static int child_wait(struct kvt_test_child *child)
{
	int status = 0;

	while (waitpid(child->pid, &status, 0) < 0)
		kvt_test_check(errno == EINTR);
	close(child->pipe);
	child->pid = -1;
	return status;
}

int kvt_test_child_kill(struct kvt_test_child *child, int signal_number)
{
	kvt_test_check(kill(child->pid, signal_number) == 0);
	return child_wait(child);
}

void kvt_test_child_finish(struct kvt_test_child *child)
{
	int status = child_wait(child);

	if (status != 0)
		kvt_test_fail("a child ended with status 0x%x", status);
}

void kvt_test_child_end(struct kvt_test_child *child)
{
	shutdown(child->pipe, SHUT_RDWR);
	kvt_test_child_finish(child);
}

/* ---------------------------------------------------------------- random */

uint64_t kvt_test_random(struct kvt_test_random *random)
{
	uint64_t x;

	random->state += 0x9e3779b97f4a7c15ull;
	x = random->state;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

uint32_t kvt_test_random_below(struct kvt_test_random *random, uint32_t n)
{
	return (uint32_t)((kvt_test_random(random) >> 32) * n >> 32);
}
