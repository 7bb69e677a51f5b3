/* SPDX-License-Identifier: Apache-2.0 */
/* Start, stop, crash, drain: what is left behind, and which clients are refused. Each test starts
 * and ends daemons of its own.
 *
 * Invariant: nothing is left in the runtime folder and in /dev/shm, and messages name cause and
 * cure. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

TEST(a_stopped_daemon_leaves_nothing_behind)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	char names[1024];

	kvt_test_daemon_prepare(&daemon, NULL);
	for (int round = 0; round < 3; round++) {
		kvt_test_daemon_start(&daemon, NULL);
		kvt_test_check(kvt_test_daemon_leftovers(&daemon, names, sizeof(names)));
		client = kvt_test_connect(&daemon);
		kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
		kvt_test_daemon_stop(&daemon); /* checks that nothing is left */
	}
	kvt_test_daemon_remove(&daemon);
}

TEST(a_connect_names_a_stopped_daemon)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct kvt_error error;
	char cure[64];

	kvt_test_daemon_prepare(&daemon, NULL);
	kvt_test_daemon_start(&daemon, NULL);
	kvt_test_freeze(daemon.pid);
	options.socket_path = daemon.socket;
	options.timeout_ns = 100000000;
	kvt_test_equal(kvt_client_connect(&client, &options, &error), -ETIMEDOUT);
	snprintf(cure, sizeof(cure), "stopped, and kill -CONT %d continues it", (int)daemon.pid);
	kvt_test_check(strstr(error.text, cure) != NULL);
	kill(daemon.pid, SIGCONT);
	kvt_test_daemon_end(&daemon);
}

TEST(what_a_crashed_daemon_left_is_cleaned_up_by_the_next)
{
	struct kvt_test_daemon daemon;
	char names[1024];

	kvt_test_daemon_prepare(&daemon, NULL);
	for (int round = 0; round < 3; round++) {
		kvt_test_daemon_start(&daemon, NULL);
		kvt_client_abandon(kvt_test_connect(&daemon));
		kill(daemon.pid, SIGKILL);
		kvt_test_daemon_wait(&daemon);
		kvt_test_check(kvt_test_daemon_leftovers(&daemon, names, sizeof(names)));
	}
	kvt_test_daemon_start(&daemon, NULL);
	kvt_test_daemon_end(&daemon);
}

/* Old clients of a crashed daemon keep their mappings; the successor never touches them. */
TEST(a_successor_leaves_alone_what_old_clients_map)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client, *fresh;
	struct kvt_counters counters;
	struct kvt_pool pool;
	uint8_t *page;
	uint32_t pages[4];

	kvt_test_daemon_begin(&daemon, NULL);
	client = kvt_test_connect(&daemon);
	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	kvt_test_equal(kvt_alloc(client, 4, pages), 0);
	page = kvt_page_address(&pool, pages[0]);
	memset(page, 0x5a, kvt_test_page_bytes(&pool));
	kill(daemon.pid, SIGKILL);
	kvt_test_daemon_wait(&daemon);
	kvt_test_daemon_start(&daemon, NULL);
	fresh = kvt_test_connect(&daemon);
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	for (uint64_t i = 0; i < kvt_test_page_bytes(&pool); i++)
		kvt_test_equal(page[i], 0x5a);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(kvt_stats(fresh, &counters), 0);
	kvt_test_equal(counters.free_pages, 4095);
	kvt_client_close(fresh, KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

TEST(a_second_daemon_of_the_same_instance_is_refused_and_harms_nothing)
{
	struct kvt_test_daemon daemon, second;
	struct kvt_client *client;
	struct kvt_counters counters;
	int status;

	kvt_test_daemon_begin(&daemon, NULL);
	client = kvt_test_connect(&daemon);
	second = daemon;
	kvt_test_daemon_spawn(&second, NULL);
	kvt_test_check(!kvt_test_daemon_await(&second, "READY=1"));
	status = kvt_test_daemon_wait(&second);
	kvt_test_check(WIFEXITED(status) && WEXITSTATUS(status) != 0 &&
		       WEXITSTATUS(status) != 126);
	kvt_test_equal(kvt_stats(client, &counters), 0);
	kvt_test_equal(kvt_client_close(client, KVT_IDLE), 0);
	kvt_client_close(kvt_test_connect(&daemon), KVT_IDLE);
	kvt_test_daemon_end(&daemon);
}

/* Begin a sequence, then tell its daemon to stop. Returns the sequence's client. */
static struct kvt_client *stop_beside_lease(const struct kvt_test_daemon *daemon,
					    struct kvt_seq **ret_seq)
{
	struct kvt_client *client = kvt_test_connect(daemon);
	const uint32_t keys[32] = { 3, 1, 4, 1, 5 };

	kvt_test_equal(kvt_seq_begin(client, kvt_test_namespace(client, "drain"), keys, 32, 0, 0,
				     ret_seq), 0);
	kill(daemon->pid, SIGTERM);
	return client;
}

/* A client that has a lease when SIGTERM comes may finish; new clients are refused. */
TEST(a_draining_daemon_waits_for_leases_and_refuses_clients)
{
	struct kvt_test_daemon daemon;
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_client *client, *late;
	struct kvt_error error = { .code = 0 };
	char names[1024];
	struct kvt_seq *seq;
	int code;

	kvt_test_daemon_begin(&daemon, "drain_ms = 3600000\n");
	client = stop_beside_lease(&daemon, &seq);
	kvt_test_check(kvt_test_daemon_await(&daemon, "STOPPING=1"));
	options.socket_path = daemon.socket;
	options.connect_wait_ns = -1;
	code = kvt_client_connect(&late, &options, &error);
	kvt_test_check(code == -ESHUTDOWN || code == -ECONNREFUSED || code == -ENOENT);
	kvt_test_check(error.text[0]);
	kvt_test_equal(kvt_seq_commit(seq, 32, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_test_daemon_wait(&daemon), 0);
	kvt_test_check(!kvt_test_daemon_leftovers(&daemon, names, sizeof(names)));
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon);
}

/* `kill` and a start in the next line: the start is no failure. */
TEST(a_start_beside_a_draining_daemon_waits_for_its_end)
{
	struct kvt_test_daemon daemon, second;
	struct kvt_client *client;
	struct kvt_seq *seq;

	kvt_test_daemon_begin(&daemon, "drain_ms = 3600000\n");
	client = stop_beside_lease(&daemon, &seq);
	kvt_test_check(kvt_test_daemon_await(&daemon, "STOPPING=1"));
	second = daemon;
	kvt_test_daemon_spawn(&second, NULL);
	while (!kvt_test_daemon_said(&second, "event=waits")) {
		kvt_test_equal(waitpid(second.pid, NULL, WNOHANG), 0);
		poll(NULL, 0, 1);
	}
	kvt_test_check(kvt_test_daemon_said(&second, "lets leases end for up to 3600001 ms"));
	kvt_test_equal(kvt_seq_commit(seq, 32, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
	kvt_test_equal(kvt_test_daemon_wait(&daemon), 0);
	kvt_test_check(kvt_test_daemon_await(&second, "READY=1"));
	kvt_client_close(client, KVT_IDLE);
	kvt_client_close(kvt_test_connect(&second), KVT_IDLE);
	kvt_test_daemon_end(&second);
}

TEST(a_lease_that_never_ends_holds_a_draining_daemon_only_for_drain_ms)
{
	struct kvt_test_daemon daemon;
	struct kvt_client *client;
	struct kvt_counters counters;
	char names[1024];
	struct kvt_seq *seq;

	kvt_test_daemon_begin(&daemon, "drain_ms = 20\n");
	client = stop_beside_lease(&daemon, &seq);
	kvt_test_equal(kvt_test_daemon_wait(&daemon), 0);
	kvt_test_check(!kvt_test_daemon_leftovers(&daemon, names, sizeof(names)));
	kvt_test_equal(kvt_stats(client, &counters), -ECONNRESET);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_remove(&daemon);
}

/* As in a shell: the client starts in the line after the daemon. */
static void early_run(int pipe, void *context)
{
	kvt_test_send(pipe, 1);
	kvt_client_close(kvt_test_connect(context), KVT_IDLE);
	kvt_test_send(pipe, 2);
}

TEST(a_client_waits_for_a_daemon_that_comes_after_it)
{
	struct kvt_test_daemon daemon;
	struct kvt_test_child early;

	kvt_test_daemon_prepare(&daemon, NULL);
	kvt_test_child_start(&early, early_run, &daemon);
	kvt_test_expect(early.pipe, 1);
	while (kvt_test_process_state(early.pid) != 'S') /* between two looks */
		sched_yield();
	kvt_test_daemon_start(&daemon, NULL);
	kvt_test_expect(early.pipe, 2);
	kvt_test_child_finish(&early);
	kvt_test_daemon_end(&daemon);
}

TEST(two_instances_run_side_by_side)
{
	struct kvt_test_daemon daemons[2];
	struct kvt_client *clients[2];

	for (int i = 0; i < 2; i++) {
		kvt_test_daemon_begin(&daemons[i], NULL);
		clients[i] = kvt_test_connect(&daemons[i]);
	}
	kvt_test_check(memcmp(kvt_client_info(clients[0])->instance,
			      kvt_client_info(clients[1])->instance, 16) != 0);
	for (int i = 0; i < 2; i++) {
		kvt_test_equal(kvt_client_close(clients[i], KVT_IDLE), 0);
		kvt_test_daemon_end(&daemons[i]);
	}
}

/* An error before READY: its own sentence, and nothing left behind. */
TEST(a_daemon_that_cannot_start_says_why_and_leaves_nothing)
{
	static const struct {
		const char *config;
		const char *said;
	} cases[] = {
		{ "page_size = 4097\n", "page_size" },
		{ "polcy = lru\n", "polcy" },
		{ "policy = newest\n", "lru" },
		{ "n_pages = 1\n", "n_pages" },
		{ "this is no line\n", "config" },
		{ "backend = cuda-ipc\n", "backend" },
		{ "socket_path = /nonexistent-directory/socket\n", "/nonexistent-directory" },
	};
	struct kvt_test_daemon daemon;
	char names[1024];
	int status;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		kvt_test_daemon_prepare(&daemon, cases[i].config);
		kvt_test_daemon_spawn(&daemon, NULL);
		kvt_test_check(!kvt_test_daemon_await(&daemon, "READY=1"));
		status = kvt_test_daemon_wait(&daemon);
		if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 126 ||
		    !kvt_test_daemon_said(&daemon, cases[i].said))
			kvt_test_fail("'%.20s...': status 0x%x, '%s' not said", cases[i].config,
				      status, cases[i].said);
		if (kvt_test_daemon_leftovers(&daemon, names, sizeof(names)))
			kvt_test_fail("'%.20s...': left behind: %s", cases[i].config, names);
		kvt_test_daemon_remove(&daemon);
	}
}
