/* SPDX-License-Identifier: Apache-2.0 */

/* What sessions of one user leave each other, and what the defaults allow.
 *
 * Inputs: the daemon's options, and sessions that take all they get. Invariant: one session cannot
 * shut out another one. */
#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define PAGE 16u

#define DEFAULTS "max_private_pages = 75%\nn_pages = 1025\n"

TEST_WITH_DAEMON(two_engines_of_256_sequences_fit_by_default, DEFAULTS)
{
	struct kvt_client *engines[2] = { kvt_test_connect(&daemon_), kvt_test_connect(&daemon_) };
	uint32_t keys[PAGE];
	struct kvt_seq *seq;

	for (uint32_t i = 0; i < 512; i++) {
		struct kvt_client *engine = engines[i % 2];
		uint32_t namespace_id = kvt_test_namespace(engine, "model");

		kvt_test_keys(keys, PAGE, i);
		if (kvt_seq_begin(engine, namespace_id, keys, PAGE, 0, 0, &seq))
			kvt_test_fail("sequence %u: %s", i, kvt_client_error(engine)->text);
	}
	kvt_client_close(engines[0], KVT_IDLE);
	kvt_client_close(engines[1], KVT_IDLE);
}

/* Take pages, many at first, one by one at last. Returns how many there were. */
static uint32_t hoard(struct kvt_client *client)
{
	uint32_t pages[256], all = 0;

	for (uint32_t n = 256; n > 0; n /= 2)
		while (kvt_alloc(client, n, pages) == 0)
			all += n;
	return all;
}

TEST_WITH_DAEMON(hoarders_leave_pages_for_each_newcomer, DEFAULTS)
{
	struct kvt_client *hog = kvt_test_connect(&daemon_), *other = kvt_test_connect(&daemon_);
	struct kvt_client *third = kvt_test_connect(&daemon_);

	kvt_test_equal(hoard(hog), 768);
	kvt_test_equal(kvt_client_error(hog)->reason, KVT_REASON_LIMIT_PAGES);
	kvt_test_equal(hoard(other), 128); /* half of the rest: then it holds an eighth of all */
	kvt_test_equal(kvt_client_error(other)->reason, KVT_REASON_SHARE);
	kvt_test_equal(hoard(third), 96); /* three quarters of the rest */
	kvt_client_close(third, KVT_IDLE);
	kvt_client_close(other, KVT_IDLE);
	kvt_test_equal(hoard(hog), 256); /* alone, it may have all */
	kvt_client_close(hog, KVT_IDLE);
}

/* Two sessions take pages in turns, as long as one gets any. */
static void hoard_both(struct kvt_client *one, struct kvt_client *other, uint32_t n[2])
{
	uint32_t page;
	bool more = true;

	n[0] = n[1] = 0;
	while (more) {
		bool first = kvt_alloc(one, 1, &page) == 0;
		bool second = kvt_alloc(other, 1, &page) == 0;

		n[0] += first;
		n[1] += second;
		more = first || second;
	}
}

TEST_WITH_DAEMON(a_newcomer_finds_a_tenth_beside_two_that_took_their_share, DEFAULTS)
{
	struct kvt_client *one = kvt_test_connect(&daemon_), *other = kvt_test_connect(&daemon_);
	struct kvt_client *third = kvt_test_connect(&daemon_);
	uint32_t n[2];

	hoard_both(one, other, n);
	kvt_test_equal(n[0], 439);
	kvt_test_equal(n[1], 438);
	kvt_test_equal(hoard(third), 110);
	kvt_client_close(third, KVT_IDLE);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(one, KVT_IDLE);
}

/* Open sessions as long as there are places. */
static uint32_t open_all(struct kvt_client *ret_clients[8])
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error;
	uint32_t n = 0;

	options.socket_path = daemon_.socket;
	while (n < 8 && kvt_client_connect(&ret_clients[n], &options, &error) == 0)
		n++;
	return n;
}

static void connect_as(int pipe, void *context)
{
	struct kvt_client *clients[8];
	uid_t uid = *(uid_t *)context;

	if (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0 ||
	    setresuid(uid, uid, uid) != 0) {
		kvt_test_send(pipe, 77);
		return;
	}
	kvt_test_send(pipe, open_all(clients));
	kvt_test_receive(pipe, &(uint64_t){ 0 });
}

TEST_WITH_DAEMON(the_last_session_is_an_administrators,
		 "max_sessions = 8\nsocket_mode = 0666\n")
{
	static const uint64_t expected[] = { 7, 0 }; /* 7/8 are a uid's, the last place no one's */
	struct kvt_test_child children[2];
	struct kvt_client *last[8];
	uint64_t n = 0;

	for (unsigned int i = 0; i < 2; i++) {
		uid_t uid = 65530 + i;

		kvt_test_child_start(&children[i], connect_as, &uid);
		kvt_test_check(kvt_test_receive(children[i].pipe, &n));
		if (n == 77)
			kvt_skip("needs another uid, which this process cannot take");
		kvt_test_equal(n, expected[i]);
	}
	kvt_test_equal(open_all(last), 1);
	kvt_client_close(last[0], KVT_IDLE);
	for (unsigned int i = 0; i < 2; i++) {
		kvt_test_send(children[i].pipe, 1);
		kvt_test_child_finish(&children[i]);
	}
}
