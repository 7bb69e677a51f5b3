/* SPDX-License-Identifier: Apache-2.0 */
/* Suspended clients: they hold no page and no mapping, keep session and namespaces, and find their
 * cache when they resume. Calls that need the pool are refused meanwhile.
 *
 * Inputs: what a client holds at suspend, the daemon's fate until resume. Invariant: content of
 * reused pages, and a clean audit. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

enum { PAGE = 16, N_KEYS = 320, N_PAGES = 4096, SLOT = 2 };

static uint32_t keys[N_KEYS];

static int start(void **state)
{
	kvt_test_keys(keys, N_KEYS, 7);
	return kvt_test_begin(state);
}

#define SUSPEND_TEST(name) TEST_WITH(name, start, kvt_test_end)

static uint32_t serve(struct kvt_client *client, const struct kvt_pool *pool, uint32_t space)
{
	return kvt_test_serve(client, pool, space, 1, keys, N_KEYS);
}

/* Mappings of this process's pools. */
static int pools_mapped(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	kvt_test_check(maps);
	while (fgets(line, sizeof(line), maps))
		n += strstr(line, "kvtrunk-pool") != NULL;
	fclose(maps);
	return n;
}

static void suspend(struct kvt_client *client)
{
	if (kvt_client_suspend(client) != 0)
		kvt_test_fail("suspend: %s", kvt_client_error(client)->text);
}

static void expect_busy(struct kvt_client *client, const char *text)
{
	kvt_test_equal(kvt_client_suspend(client), -EBUSY);
	if (!strstr(kvt_client_error(client)->text, text))
		kvt_test_fail("not '%s': %s", text, kvt_client_error(client)->text);
}

SUSPEND_TEST(a_suspended_client_maps_nothing_and_finds_its_cache_at_the_same_addresses)
{
	struct kvt_client *client = kvt_test_connect(&daemon_), *other;
	uint32_t space = kvt_test_namespace(client, "n");
	struct kvt_pool pool, again;

	kvt_test_equal(kvt_client_resume(client), 0); /* nothing to do */
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(serve(client, &pool, space), 0);
	kvt_test_equal(pools_mapped(), 1);
	suspend(client);
	kvt_test_equal(pools_mapped(), 0);
	suspend(client);
	other = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_pool_map(other, &again), 0);
	kvt_test_check(again.base != pool.base);
	kvt_test_equal(serve(other, &again, kvt_test_namespace(other, "n")), N_KEYS - PAGE);
	kvt_client_close(other, KVT_IDLE);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_test_equal(pools_mapped(), 1);
	kvt_test_equal(kvt_pool_map(client, &again), 0);
	kvt_test_check(again.base == pool.base);
	kvt_test_equal(serve(client, &pool, space), N_KEYS - PAGE);
	suspend(client);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_test_equal(pools_mapped(), 0);
}

/* All of the pool is others' while a client sleeps. */
SUSPEND_TEST(a_suspended_client_holds_no_page)
{
	static uint32_t pages[N_PAGES];
	struct kvt_client *client = kvt_test_connect(&daemon_), *other;
	uint32_t space = kvt_test_namespace(client, "n");
	struct kvt_pool pool;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(serve(client, &pool, space), 0);
	suspend(client);
	other = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_alloc(other, N_PAGES - 1, pages), 0);
	kvt_client_close(other, KVT_IDLE);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_test_equal(serve(client, &pool, space), 0);
	kvt_client_close(client, KVT_IDLE);
}

SUSPEND_TEST(suspend_is_refused_while_the_session_holds_something_and_says_what)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t space = kvt_test_namespace(client, "n"), pages[3];
	struct kvt_result result;
	struct kvt_pool pool;
	struct kvt_seq *seq;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(kvt_seq_begin(client, space, keys, 40, 0, 0, &seq), 0);
	expect_busy(client, "holds 1 lease and 3 private pages:");
	kvt_test_equal(pools_mapped(), 1); /* nothing changed */
	kvt_test_page_fill(&pool, PAGE, kvt_seq_pages(seq, NULL)[0], 1, keys, 0);
	/* The library's own END waits for its fence: suspend does not. */
	kvt_test_equal(kvt_seq_end_async(seq, 40, NULL, 0, (struct kvt_fence){ SLOT, 1 }, 0), 0);
	expect_busy(client, "waits for 1 answer:");
	kvt_test_equal(kvt_fence_raise(client, SLOT, 1), 0);
	suspend(client);
	kvt_test_equal(kvt_client_resume(client), 0);

	kvt_test_equal(kvt_match(client, space, keys, 40, KVT_F_LOCK, &result), 0);
	kvt_test_equal(kvt_alloc(client, 3, pages), 0);
	expect_busy(client, "holds 1 lease and 3 private pages:");
	kvt_test_equal(kvt_unlock(client, result.lease, KVT_IDLE), 0);
	kvt_result_release(client, &result);
	expect_busy(client, "holds 0 leases and 3 private pages:");
	for (uint32_t i = 0; i < 2; i++) {
		struct kvt_request request = { .op = KVT_OP_FREE, .pages = pages + i, .n_pages = 1,
					       .fence = { SLOT, 2 } };

		kvt_test_equal(kvt_submit(client, &request), 0);
	}
	expect_busy(client, "waits for 2 answers:");
	kvt_test_equal(kvt_fence_raise(client, SLOT, 2), 0);
	expect_busy(client, "holds 0 leases and 1 private page:");
	kvt_test_equal(kvt_free(client, pages + 2, 1, KVT_IDLE), 0);
	suspend(client); /* answers that were not reaped hold nothing */
	kvt_test_equal(kvt_reap(client, &result, 1, 1), 1);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_client_close(client, KVT_IDLE);
}

/* A BEGIN that waits for others' work is refused; the notice that one was promised is not. */
SUSPEND_TEST(a_promised_notice_does_not_keep_a_client_awake)
{
	struct kvt_client *client = kvt_test_connect(&daemon_), *other = kvt_test_connect(&daemon_);
	struct kvt_request request = { .op = KVT_OP_BEGIN, .flags = KVT_F_NO_WAIT, .keys = keys,
				       .n_keys = N_KEYS, .ttl_ms = 600000, .user_data = 5 };
	struct kvt_result results[2];
	struct kvt_seq *seq;

	request.namespace_id = kvt_test_namespace(client, "n");
	kvt_test_equal(kvt_seq_begin(other, kvt_test_namespace(other, "n"), keys, N_KEYS, 0, 0,
				     &seq), 0);
	kvt_test_equal(kvt_submit(client, &request), 0);
	kvt_test_equal(kvt_reap(client, results, 1, 1), 1);
	kvt_test_equal(results[0].reason, KVT_REASON_ANNOUNCED);
	suspend(client);
	kvt_test_equal(kvt_client_resume(client), 0);
	request.flags = KVT_F_WAIT;
	kvt_test_equal(kvt_submit(client, &request), 0);
	expect_busy(client, "waits for 1 answer:");
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_reap(client, results, 2, 2), 2);
	kvt_client_close(other, KVT_IDLE);
	kvt_client_close(client, KVT_IDLE);
}

SUSPEND_TEST(calls_that_need_the_pool_are_refused_while_suspended_and_others_are_not)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t space = kvt_test_namespace(client, "n"), pages[N_KEYS / PAGE], n;
	struct kvt_request request = { .op = KVT_OP_BEGIN, .keys = keys, .n_keys = N_KEYS };
	struct kvt_counters counters;
	struct kvt_handle handle;
	struct kvt_result result;
	struct kvt_lease lease;
	struct kvt_pool pool;
	struct kvt_seq *seq;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(serve(client, &pool, space), 0);
	kvt_test_equal(kvt_probe(client, space, keys, N_KEYS, &handle, &n), 0);
	suspend(client);
	kvt_test_equal(kvt_pool_map(client, &pool), -ENXIO);
	kvt_test_equal(kvt_pool_map_slab(client, 0, &pool), -ENXIO);
	kvt_test_equal(kvt_pool_map_cuda(client, 0, 0, &pool), -ENXIO);
	kvt_test_equal(kvt_seq_begin(client, space, keys, N_KEYS, 0, 0, &seq), -ENXIO);
	kvt_test_check(strstr(kvt_client_error(client)->text, "kvt_client_resume()"));
	kvt_test_equal(kvt_seq_continue(client, space, handle, keys, N_KEYS, 0, 0, &seq), -ENXIO);
	kvt_test_equal(kvt_match(client, space, keys, N_KEYS, KVT_F_LOCK, &result), -ENXIO);
	kvt_test_equal(kvt_lock(client, handle, &lease, pages, N_KEYS / PAGE, &n), -ENXIO);
	kvt_test_equal(kvt_alloc(client, 1, pages), -ENXIO);
	kvt_test_equal(kvt_insert(client, space, keys, PAGE, pages, (struct kvt_handle){ 0 },
				  KVT_IDLE, 0, &result), -ENXIO);
	request.namespace_id = space;
	kvt_test_equal(kvt_submit(client, &request), -ENXIO);

	kvt_test_equal(kvt_match(client, space, keys, N_KEYS, 0, &result), 0);
	kvt_test_equal(result.matched, N_KEYS);
	kvt_test_equal(kvt_probe(client, space, keys, N_KEYS, &handle, &n), 0);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_test_equal(counters.cached_pages, N_KEYS / PAGE);
	kvt_test_equal(kvt_test_namespace(client, "n"), space);
	kvt_test_equal(kvt_fence_raise(client, SLOT, 1), 0);
	kvt_test_equal(kvt_group_check(client), 0);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_test_equal(serve(client, &pool, space), N_KEYS - PAGE);
	kvt_client_close(client, KVT_IDLE);
}

SUSPEND_TEST(an_observer_and_a_forked_child_can_be_told_to_suspend)
{
	struct kvt_client *observer = kvt_test_observe(&daemon_), *client;
	int status;
	pid_t child;

	suspend(observer);
	kvt_test_equal(kvt_client_resume(observer), 0);
	kvt_client_close(observer, KVT_IDLE);
	client = kvt_test_connect(&daemon_);
	child = fork();
	kvt_test_check(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		kvt_test_equal(kvt_client_suspend(client), -ECHILD);
		kvt_test_equal(kvt_client_resume(client), -ECHILD);
		_exit(0);
	}
	kvt_test_equal(waitpid(child, &status, 0), child);
	kvt_test_equal(status, 0);
	kvt_client_close(client, KVT_IDLE);
}

TEST(resume_says_that_the_daemon_ended_meanwhile)
{
	struct kvt_client *client;
	struct kvt_pool pool;

	kvt_test_daemon_begin(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	suspend(client);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_equal(kvt_client_resume(client), -ECONNRESET);
	kvt_test_equal(pools_mapped(), 0);
	kvt_test_equal(kvt_client_suspend(client), -ECONNRESET);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), -ECONNRESET);
	kvt_test_daemon_remove(&daemon_);
}

TEST(a_daemon_that_is_kept_may_restart_while_its_client_is_suspended)
{
	struct kvt_client *client;
	struct kvt_pool pool;
	uint32_t space;

	kvt_test_keys(keys, N_KEYS, 7);
	kvt_test_daemon_begin_supervised(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	space = kvt_test_namespace(client, "n");
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(serve(client, &pool, space), 0);
	suspend(client);
	kvt_test_daemon_succeed(&daemon_);
	kvt_test_equal(kvt_client_resume(client), 0);
	kvt_test_equal(serve(client, &pool, space), N_KEYS - PAGE);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_end(NULL);
}
