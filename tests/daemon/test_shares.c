/* SPDX-License-Identifier: Apache-2.0 */
/* What one user may have of an instance: two engines stay unaffected, and one that takes all leaves
 * others their eighth. Clients are children that become other users.
 *
 * Invariant: the audit is clean, and refusals name the limit. */
#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/daemon/spawn.h"
#include "tests/lib/cases.h"
#include "tests/lib/raw.h"

#define PAGE 16
#define HUNGRY 65531u
#define OTHER 65532u
#define CANNOT 7777u

static struct kvt_test_daemon daemon_;

static int start(const char *more)
{
	kvt_test_daemon_begin(&daemon_, more);
	kvt_test_check(chmod(daemon_.dir, 0755) == 0);
	return 0;
}

static int start_default(void **state)
{
	return start("socket_mode = 0666\n");
}

static int start_small(void **state)
{
	return start("socket_mode = 0666\nmax_sessions = 16\nmax_namespaces = 16\n"
		     "max_nodes = 64\n");
}

static int stop(void **state)
{
	kvt_test_audit(&daemon_);
	kvt_test_daemon_end(&daemon_);
	return 0;
}

/* Returns false if this test may not become another user. */
static bool become(int pipe, uid_t uid)
{
	if (setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 &&
	    setresuid(uid, uid, uid) == 0)
		return true;
	kvt_test_send(pipe, CANNOT);
	return false;
}

static int try_connect(struct kvt_client **ret_client, struct kvt_error *error)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = daemon_.socket;
	options.keys_count = options.list_count = 1024;
	return kvt_client_connect(ret_client, &options, error);
}

static int begin(struct kvt_client *client, uint32_t space, uint32_t first, uint32_t n)
{
	uint32_t keys[32 * PAGE];
	struct kvt_seq *seq;

	kvt_test_check(n <= 32 * PAGE);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = first + i;
	return kvt_seq_begin(client, space, keys, n, 0, 0, &seq);
}

/* ---- normal use */

static void hold_a_session(int pipe, void *context)
{
	struct kvt_client *client;
	struct kvt_error error;

	if (!become(pipe, OTHER))
		return;
	kvt_test_equal(try_connect(&client, &error), 0);
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

TEST_WITH(two_engines_of_one_user_meet_no_limit, start_default, stop)
{
	struct kvt_client *engines[2];
	struct kvt_test_child other;
	uint64_t word = 0;

	kvt_test_child_start(&other, hold_a_session, NULL);
	kvt_test_check(kvt_test_receive(other.pipe, &word));
	if (word == CANNOT)
		kvt_skip("needs another uid, which this process cannot take");
	for (uint32_t e = 0; e < 2; e++) {
		char name[32];

		engines[e] = kvt_test_connect(&daemon_);
		for (uint32_t i = 0; i < 64; i++) { /* adapters */
			snprintf(name, sizeof(name), "adapter-%u-%u", e, i);
			kvt_test_namespace(engines[e], name);
		}
		for (uint32_t i = 0; i < 200; i++) /* 3,200 of 4,095 pages */
			kvt_test_equal(begin(engines[e], kvt_test_namespace(engines[e], name),
					     e << 24 | i << 12, 8 * PAGE), 0);
	}
	for (uint32_t e = 0; e < 2; e++)
		kvt_client_close(engines[e], KVT_IDLE);
	kvt_test_send(other.pipe, 1);
	kvt_test_child_finish(&other);
}

/* ---- one that takes all it can get */

static void take_sessions(int pipe, void *context)
{
	struct kvt_client *client = NULL;
	struct kvt_error error = { 0 };
	uint32_t n = 0;

	if (!become(pipe, HUNGRY))
		return;
	while (n < 16 && try_connect(&client, &error) == 0)
		n++;
	kvt_test_equal(n, 14);
	kvt_test_equal(error.code, -EDQUOT);
	kvt_test_check(strstr(error.text, "14 sessions") && strstr(error.text, "max_sessions=16"));
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static void take_namespaces(int pipe, void *context)
{
	uint64_t digest[2] = { 0, 99 };
	struct kvt_client *client;
	struct kvt_error error;
	uint32_t space;

	if (!become(pipe, HUNGRY))
		return;
	kvt_test_equal(try_connect(&client, &error), 0);
	while (digest[0] < 16 && kvt_namespace_open(client, digest, NULL, &space) == 0)
		digest[0]++;
	kvt_test_equal(digest[0], 14);
	kvt_test_equal(kvt_client_error(client)->code, -EDQUOT);
	kvt_test_check(strstr(kvt_client_error(client)->text, "14 namespaces"));
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

/* Two nodes per lease: its own, and the rest of one that it split. */
static void take_nodes(int pipe, void *context)
{
	struct kvt_client *client;
	struct kvt_error error;
	uint32_t n = 0, space;
	int result = 0;

	if (!become(pipe, HUNGRY))
		return;
	kvt_test_equal(try_connect(&client, &error), 0);
	space = kvt_test_namespace(client, "hungry");
	for (; n < 64 && result == 0; n++)
		result = begin(client, space, n << 12, PAGE);
	kvt_test_equal(n, 22);
	kvt_test_equal(result, -EDQUOT);
	kvt_test_equal(kvt_client_error(client)->reason, KVT_REASON_LIMIT_LEASES);
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static void take_pages(int pipe, void *context)
{
	static uint32_t pages[4096];
	struct kvt_client *clients[2];
	struct kvt_error error;
	struct kvt_options options = KVT_OPTIONS_INIT;
	uint32_t n = 0;

	if (!become(pipe, HUNGRY))
		return;
	options.socket_path = daemon_.socket;
	options.list_count = 8192;
	for (int i = 0; i < 2; i++)
		kvt_test_equal(kvt_client_connect(&clients[i], &options, &error), 0);
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &(uint64_t){ 0 }); /* another user is present now */
	while (n < 4096 && kvt_alloc(clients[n / 64 % 2], 64, pages) == 0)
		n += 64;
	kvt_test_equal(n, 3584);
	kvt_test_equal(kvt_client_error(clients[n / 64 % 2])->reason, KVT_REASON_UID_PAGES);
	kvt_test_send(pipe, 2);
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

static struct kvt_test_child hungry;

static void begin_taking(kvt_test_child_fn *take)
{
	uint64_t word = 0;

	kvt_test_child_start(&hungry, take, NULL);
	kvt_test_check(kvt_test_receive(hungry.pipe, &word));
	if (word == CANNOT)
		kvt_skip("needs another uid, which this process cannot take");
}

static void end_taking(void)
{
	kvt_test_send(hungry.pipe, 1);
	kvt_test_child_finish(&hungry);
}

static void use_the_rest(struct kvt_client *client)
{
	uint32_t page;

	kvt_test_equal(begin(client, kvt_test_namespace(client, "honest"), 1u << 30, 4 * PAGE), 0);
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_client_close(client, KVT_IDLE);
}

TEST_WITH(all_sessions_are_not_for_one, start_small, stop)
{
	begin_taking(take_sessions);
	use_the_rest(kvt_test_connect(&daemon_));
	end_taking();
}

TEST_WITH(all_namespaces_are_not_for_one, start_small, stop)
{
	begin_taking(take_namespaces);
	use_the_rest(kvt_test_connect(&daemon_));
	end_taking();
}

TEST_WITH(all_nodes_are_not_for_one, start_small, stop)
{
	begin_taking(take_nodes);
	use_the_rest(kvt_test_connect(&daemon_));
	end_taking();
}

TEST_WITH(all_pages_are_not_for_one, start_default, stop)
{
	struct kvt_client *client;

	begin_taking(take_pages);
	client = kvt_test_connect(&daemon_);
	kvt_test_send(hungry.pipe, 1);
	kvt_test_expect(hungry.pipe, 2);
	use_the_rest(client);
	end_taking();
}
