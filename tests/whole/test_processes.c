/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that fork, stop, lose their connection or die: when their pages become free. Pages that
 * a live process can write must not be reused.
 *
 * Inputs: what a client process does, and when it is stopped or killed. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvtrunk_wire.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

#define PAGE 16u

static struct kvt_counters wait_for_quarantined(uint64_t n)
{
	struct kvt_counters counters;

	kvt_test_until(&daemon_, counters, counters.quarantined_pages == n);
	return counters;
}

/* ---------------------------------------------------------------- fork */

/* Connect, take pages, fork a child that only holds what it inherited, report. */
static void forking_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	struct kvt_counters counters;
	uint32_t pages[5];
	uint64_t word;

	kvt_test_equal(kvt_alloc(client, 5, pages), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	fflush(NULL);
	if (fork() == 0) {
		/* The child cannot use the handle: an error, no crash. */
		kvt_test_equal(kvt_stats(client, &counters), -ECHILD);
		kvt_test_send(pipe, 2);
		kvt_test_receive(pipe, &word);
		_exit(0);
	}
	for (;;)
		pause();
}

TEST_WITH_DAEMON(a_forked_child_keeps_its_parents_pages_in_quarantine_until_it_exits, NULL)
{
	struct kvt_test_child child;
	static uint32_t pages[4096];
	uint64_t session;

	kvt_test_child_start(&child, forking_run, NULL);
	session = kvt_test_word(child.pipe);
	kvt_test_expect(child.pipe, 2);
	kill(child.pid, SIGKILL);
	kvt_test_check(waitpid(child.pid, NULL, 0) == child.pid);
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	kvt_test_equal(wait_for_quarantined(5).private_pages, 0);
	kvt_test_audit(&daemon_);
	/* Others continue, and never get those pages. */
	for (int round = 0; round < 3; round++) {
		struct kvt_client *client = kvt_test_connect(&daemon_);

		kvt_test_equal(kvt_alloc(client, 4091, pages), -ENOSPC);
		kvt_test_equal(kvt_alloc(client, 4090, pages), 0);
		kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	}
	kvt_test_equal(kvt_test_settled(&daemon_).quarantined_pages, 5);
	kvt_test_send(child.pipe, 0);
	kvt_test_check(!kvt_test_receive(child.pipe, &session)); /* the forked child is gone */
	close(child.pipe);
	kvt_test_equal(wait_for_quarantined(0).free_pages, 4095);
	kvt_test_audit(&daemon_);
}

/* A client connected in the parent is useless in the child; the child connects itself. */
static void reconnecting_run(int pipe, void *context)
{
	struct kvt_client *old = kvt_test_connect(&daemon_), *fresh;
	struct kvt_counters counters;
	struct kvt_pool pool;
	uint32_t page;
	int status;

	kvt_test_equal(kvt_pool_map(old, &pool), 0);
	kvt_test_equal(kvt_alloc(old, 1, &page), 0);
	fflush(NULL);
	if (fork() == 0) {
		unsigned char resident;

		/* The pool is not mapped here. */
		kvt_test_check(mincore(pool.base, 1, &resident) != 0 && errno == ENOMEM);
		fresh = kvt_test_connect(&daemon_);
		kvt_test_equal(kvt_stats(fresh, &counters), 0);
		kvt_test_equal(counters.private_pages, 1);
		kvt_test_equal(kvt_client_close(fresh, KVT_IDLE), 0);
		kvt_test_equal(kvt_client_close(old, KVT_IDLE), -ECHILD);
		_exit(0);
	}
	kvt_test_check(wait(&status) > 0 && status == 0);
	kvt_test_equal(kvt_free(old, &page, 1, KVT_IDLE), 0);
	kvt_test_equal(kvt_client_close(old, KVT_IDLE), 0);
	kvt_test_send(pipe, 1);
}

TEST_WITH_DAEMON(a_forked_child_connects_itself_and_leaves_its_parent_alone, NULL)
{
	struct kvt_test_child child;

	kvt_test_child_start(&child, reconnecting_run, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_child_finish(&child);
	kvt_test_equal(kvt_test_settled(&daemon_).free_pages, 4095);
	kvt_test_audit(&daemon_);
}

/* ---------------------------------------------------------------- connection lost */

static void dropping_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t pages[3];
	uint64_t word;

	kvt_test_equal(kvt_alloc(client, 3, pages), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_client_abandon(client);
	kvt_test_send(pipe, 1);
	kvt_test_receive(pipe, &word);
}

static uint32_t drop(struct kvt_test_child *child)
{
	uint64_t session;

	kvt_test_child_start(child, dropping_run, NULL);
	session = kvt_test_word(child->pipe);
	kvt_test_expect(child->pipe, 1);
	kvt_test_session_ended(&daemon_, (uint32_t)session);
	kvt_test_equal(wait_for_quarantined(3).private_pages, 0);
	return (uint32_t)session;
}

TEST_WITH_DAEMON(a_process_that_lost_its_connection_keeps_quarantine_until_it_ends, NULL)
{
	struct kvt_test_child child;

	drop(&child);
	kvt_test_equal(kvt_test_child_kill(&child, SIGKILL), SIGKILL);
	kvt_test_equal(wait_for_quarantined(0).free_pages, 4095);
	kvt_test_audit(&daemon_);
}

TEST_WITH_DAEMON(an_operator_may_fence_a_process_that_lives_on, NULL)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE };
	struct kvt_client *observer = kvt_test_observe(&daemon_);
	struct kvt_test_child child;

	request.argument = drop(&child);
	kvt_test_check(kvt_admin(observer, &request, NULL, 0, NULL, 0) >= 0);
	kvt_test_equal(wait_for_quarantined(0).free_pages, 4095);
	kvt_test_audit(&daemon_);
	kvt_test_equal(kvt_client_close(observer, KVT_IDLE), 0);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_audit(&daemon_);
}

/* ---------------------------------------------------------------- stopped */

static void sleepy_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t ns = kvt_test_namespace(client, "sleepy"), keys[160], n;
	const uint32_t *pages;
	struct kvt_pool pool;
	struct kvt_seq *seq;

	kvt_test_keys(keys, 160, 1);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(kvt_seq_begin(client, ns, keys, 160, 0, 0, &seq), 0);
	pages = kvt_seq_pages(seq, &n);
	for (uint32_t i = 0; i < 10; i++)
		kvt_test_page_fill(&pool, PAGE, pages[i], 'z', keys, i);
	kvt_test_equal(kvt_seq_commit(seq, 80, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_send(pipe, 1);
	kvt_test_expect(pipe, 2); /* stopped and continued in between */
	pages = kvt_seq_pages(seq, &n);
	for (uint32_t i = 0; i < 10; i++)
		kvt_test_check(kvt_test_page_right(&pool, PAGE, pages[i], 'z', keys, i));
	kvt_test_equal(kvt_seq_end(seq, 160, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
}

TEST_WITH_DAEMON(a_stopped_process_is_not_a_dead_one, NULL)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t ns = kvt_test_namespace(client, "sleepy"), keys[1600];
	struct kvt_counters counters;
	struct kvt_test_child child;
	struct kvt_result result;

	kvt_test_child_start(&child, sleepy_run, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_freeze(child.pid);
	/* Others cycle through the whole pool several times. */
	for (uint32_t round = 0; round < 200; round++) {
		struct kvt_seq *seq;

		kvt_test_keys(keys, 1600, round + 2);
		kvt_test_equal(kvt_seq_begin(client, ns, keys, 1600, 0, 0, &seq), 0);
		kvt_test_equal(kvt_seq_end(seq, 1600, NULL, 0, KVT_IDLE, 0), 0);
	}
	counters = kvt_test_settled(&daemon_);
	kvt_test_equal(counters.private_pages, 5);
	kvt_test_equal(counters.protected_pages, 5);
	kvt_test_equal(counters.live_sessions, 2);
	kvt_test_keys(keys, 160, 1);
	kvt_test_equal(kvt_match(client, ns, keys, 160, 0, &result), 0);
	kvt_test_equal(result.matched, 80);
	kvt_test_equal(result.announced, 80);
	kvt_result_release(client, &result);
	kill(child.pid, SIGCONT);
	kvt_test_send(child.pipe, 2);
	kvt_test_child_finish(&child);
	kvt_test_equal(kvt_test_matched(client, ns, keys, 160), 160);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_audit(&daemon_);
}

/* A stopped process that is killed loses everything. */
TEST_WITH_DAEMON(a_stopped_process_that_is_killed_is_a_dead_one, NULL)
{
	struct kvt_counters counters;
	struct kvt_test_child child;

	kvt_test_child_start(&child, sleepy_run, NULL);
	kvt_test_expect(child.pipe, 1);
	kvt_test_freeze(child.pid);
	kvt_test_child_kill(&child, SIGKILL);
	kvt_test_until(&daemon_, counters, counters.private_pages == 0);
	kvt_test_equal(wait_for_quarantined(0).protected_pages, 0);
	kvt_test_audit(&daemon_);
}
