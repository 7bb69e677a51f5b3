/* SPDX-License-Identifier: Apache-2.0 */
/* What one client may have of an instance: two engines stay unaffected, and one that takes all
 * leaves others their eighth.
 *
 * Invariant: the audit is clean, and refusals name the limit. */
#include <errno.h>
#include <grp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"
#include "tests/lib/raw.h"

#define PAGE 16
#define HUNGRY 65531u
#define CANNOT 7777u

#define DEFAULT "max_private_pages = 75%\n"
#define SMALL "socket_mode = 0666\nmax_sessions = 16\nmax_namespaces = 16\nmax_nodes = 64\n"

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

static int begin(struct kvt_client *client, uint32_t space, uint32_t first, uint32_t n,
		 struct kvt_seq **ret_seq)
{
	uint32_t keys[32 * PAGE];

	kvt_test_check(n <= 32 * PAGE);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = first + i;
	return kvt_seq_begin(client, space, keys, n, 0, 0, ret_seq);
}

TEST_WITH_DAEMON(two_engines_meet_no_limit, DEFAULT)
{
	struct kvt_client *engines[2];
	struct kvt_seq *seq;

	for (uint32_t e = 0; e < 2; e++) {
		char name[32];

		engines[e] = kvt_test_connect(&daemon_);
		for (uint32_t i = 0; i < 64; i++) { /* adapters */
			snprintf(name, sizeof(name), "adapter-%u-%u", e, i);
			kvt_test_namespace(engines[e], name);
		}
	}
	for (uint32_t i = 0; i < 400; i++) /* 3,200 of 4,095 pages */
		kvt_test_equal(begin(engines[i % 2], kvt_test_namespace(engines[i % 2], "all"),
				     i << 12, 8 * PAGE, &seq), 0);
	for (uint32_t e = 0; e < 2; e++)
		kvt_client_close(engines[e], KVT_IDLE);
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

static void use_the_rest(struct kvt_client *client)
{
	struct kvt_seq *seq;
	uint32_t page;

	kvt_test_equal(begin(client, kvt_test_namespace(client, "honest"), 1u << 30, 4 * PAGE,
			     &seq), 0);
	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_client_close(client, KVT_IDLE);
}

TEST_WITH_DAEMON(all_sessions_are_not_for_one_user, SMALL)
{
	struct kvt_test_child hungry;
	uint64_t word = 0;

	kvt_test_child_start(&hungry, take_sessions, NULL);
	kvt_test_check(kvt_test_receive(hungry.pipe, &word));
	if (word == CANNOT)
		kvt_skip("needs another uid, which this process cannot take");
	use_the_rest(kvt_test_connect(&daemon_));
	kvt_test_send(hungry.pipe, 1);
	kvt_test_child_finish(&hungry);
}

TEST_WITH_DAEMON(all_namespaces_are_not_for_one, SMALL)
{
	struct kvt_client *hungry = kvt_test_connect(&daemon_);
	uint64_t digest[2] = { 0, 99 };
	uint32_t space;

	while (digest[0] < 16 && kvt_namespace_open(hungry, digest, NULL, &space) == 0)
		digest[0]++;
	kvt_test_equal(digest[0], 14);
	kvt_test_equal(kvt_client_error(hungry)->code, -EDQUOT);
	kvt_test_check(strstr(kvt_client_error(hungry)->text, "14 namespaces"));
	use_the_rest(kvt_test_connect(&daemon_));
	kvt_client_close(hungry, KVT_IDLE);
}

/* Two nodes per lease: its own, and the rest of one that it split. */
TEST_WITH_DAEMON(all_nodes_are_not_for_one, SMALL)
{
	struct kvt_client *hungry = kvt_test_connect(&daemon_);
	uint32_t n = 0, space = kvt_test_namespace(hungry, "hungry");
	struct kvt_seq *seq;
	int result = 0;

	for (; n < 64 && result == 0; n++)
		result = begin(hungry, space, n << 12, PAGE, &seq);
	kvt_test_equal(n, 22);
	kvt_test_equal(result, -EDQUOT);
	kvt_test_equal(kvt_client_error(hungry)->reason, KVT_REASON_LIMIT_LEASES);
	use_the_rest(kvt_test_connect(&daemon_));
	kvt_client_close(hungry, KVT_IDLE);
}

/* Published and locked: a limit of private pages does not bind it. */
TEST_WITH_DAEMON(all_pages_are_not_for_one, DEFAULT)
{
	struct kvt_client *hungry = kvt_test_connect(&daemon_);
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t n = 0, space = kvt_test_namespace(hungry, "hungry");
	struct kvt_seq *seq;

	for (; begin(hungry, space, n << 12, 32 * PAGE, &seq) == 0; n++)
		kvt_test_equal(kvt_seq_commit(seq, 32 * PAGE, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(n, 3584 / 32);
	kvt_test_equal(kvt_client_error(hungry)->reason, KVT_REASON_SHARE);
	use_the_rest(client);
	kvt_client_close(hungry, KVT_IDLE);
}
