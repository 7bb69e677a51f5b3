/* SPDX-License-Identifier: Apache-2.0 */
/* The name of the socket vanishes while a daemon serves, or leads to another process.
 *
 * Inputs: a daemon, and what happens to files beside it. Invariant: connected clients continue, new
 * ones can connect as soon as the name can be made, and no other process's file is removed. */
#include <errno.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/lib/spawn.h"
#include "tests/lib/cases.h"

static void await_words(const char *words)
{
	while (!kvt_test_daemon_said(&daemon_, words))
		sched_yield();
}

/* Both the client from before and a new one are served. */
static void check_both(struct kvt_client *before)
{
	struct kvt_client *client = kvt_test_connect(&daemon_);
	uint32_t page;

	kvt_test_equal(kvt_alloc(client, 1, &page), 0);
	kvt_test_equal(kvt_free(client, &page, 1, KVT_IDLE), 0);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(kvt_alloc(before, 1, &page), 0);
	kvt_test_equal(kvt_free(before, &page, 1, KVT_IDLE), 0);
}

static ino_t inode_of(const char *path)
{
	struct stat there;

	return lstat(path, &there) == 0 ? there.st_ino : 0;
}

TEST(a_removed_name_is_made_again)
{
	static const char *const loops[] = { "", "event_loop = epoll\n" };

	for (int i = 0; i < 2; i++) {
		struct kvt_client *client;

		kvt_test_daemon_begin(&daemon_, loops[i]);
		client = kvt_test_connect(&daemon_);
		for (uint32_t n = 1; n <= 3; n++) {
			kvt_test_equal(unlink(daemon_.socket), 0);
			while (kvt_test_daemon_count(&daemon_, "event=socket_made_again") < n)
				sched_yield();
			check_both(client);
		}
		kvt_client_close(client, KVT_IDLE);
		kvt_test_daemon_end(&daemon_);
	}
}

/* Then the daemon looks each second. */
static bool without_inotify(struct kvt_test_daemon *daemon)
{
	(void)daemon;
	return kvt_test_forbid(SYS_inotify_init1, EMFILE);
}

TEST(without_inotify_too)
{
	struct kvt_client *client;
	int status;

	if (!kvt_test_start_changed(&daemon_, "", without_inotify, &status)) {
		kvt_test_equal(WEXITSTATUS(status), KVT_TEST_CANNOT_CHANGE);
		kvt_test_daemon_remove(&daemon_);
		kvt_skip("no seccomp filter can be set here");
	}
	client = kvt_test_connect(&daemon_);
	kvt_test_equal(unlink(daemon_.socket), 0);
	await_words("event=socket_made_again");
	check_both(client);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* Its lock is gone, too, and must keep another daemon out all the same. */
TEST(a_removed_directory_is_made_again_with_the_lock)
{
	struct kvt_test_daemon second;
	struct kvt_client *client;
	char command[128], lines[256];

	kvt_test_daemon_prepare(&daemon_, "");
	snprintf(daemon_.socket, sizeof(daemon_.socket), "%s/run/s", daemon_.dir);
	snprintf(lines, sizeof(lines), "runtime_dir = %s/run\nsocket_path = %s\n", daemon_.dir,
		 daemon_.socket);
	kvt_test_daemon_configure(&daemon_, lines);
	kvt_test_daemon_start(&daemon_, NULL);
	client = kvt_test_connect(&daemon_);
	snprintf(command, sizeof(command), "rm -r %s/run", daemon_.dir);
	kvt_test_freeze(daemon_.pid); /* it would make the socket in the directory again */
	kvt_test_equal(system(command), 0);
	kill(daemon_.pid, SIGCONT);
	await_words("event=socket_made_again");
	check_both(client);
	second = daemon_;
	second.notify = -1;
	kvt_test_daemon_spawn(&second, NULL);
	kvt_test_equal(WEXITSTATUS(kvt_test_daemon_wait(&second)), 3);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

TEST(another_process_that_has_the_name_keeps_it)
{
	struct kvt_client *client;
	int other;

	kvt_test_daemon_begin(&daemon_, "");
	client = kvt_test_connect(&daemon_);
	kvt_test_freeze(daemon_.pid);
	kvt_test_equal(unlink(daemon_.socket), 0);
	other = kvt_test_listen(daemon_.socket);
	kill(daemon_.pid, SIGCONT);
	await_words("event=socket_lost");
	kvt_test_check(kvt_test_daemon_said(&daemon_, "in use by a live process"));
	close(other); /* its name stays */
	kill(daemon_.pid, SIGHUP);
	await_words("event=socket_made_again");
	check_both(client);
	kvt_test_freeze(daemon_.pid);
	kvt_test_equal(unlink(daemon_.socket), 0);
	other = kvt_test_listen(daemon_.socket);
	kill(daemon_.pid, SIGTERM);
	kill(daemon_.pid, SIGCONT);
	kvt_client_close(client, KVT_IDLE);
	kvt_test_equal(kvt_test_daemon_wait(&daemon_), 0);
	kvt_test_check(inode_of(daemon_.socket) != 0);
	close(other);
	kvt_test_daemon_remove(&daemon_);
}

TEST(a_successor_makes_a_lost_name_again)
{
	struct kvt_client *client;
	pid_t pid;

	kvt_test_daemon_begin_supervised(&daemon_, "");
	client = kvt_test_connect(&daemon_);
	for (int i = 0; i < 2; i++) { /* the second one inherits the socket made again */
		pid = kvt_test_daemon_child(&daemon_);
		kvt_test_freeze(pid);
		kvt_test_equal(unlink(daemon_.socket), 0);
		kill(pid, SIGKILL);
		kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
		check_both(client);
		kvt_test_daemon_succeed(&daemon_);
		check_both(client);
		kvt_test_equal(kvt_test_daemon_count(&daemon_, "event=socket_made_again"), i + 1);
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_daemon_end(&daemon_);
}

/* ---- a name that cannot be made */

TEST(the_name_of_a_passed_socket_is_left_to_the_manager)
{
	kvt_test_daemon_prepare(&daemon_, "");
	kvt_test_listen_for(&daemon_);
	kvt_test_spawn_changed(&daemon_, kvt_test_pass_socket);
	kvt_test_check(kvt_test_daemon_await(&daemon_, "READY=1"));
	kvt_test_equal(unlink(daemon_.socket), 0);
	await_words("event=socket_lost");
	kvt_test_check(kvt_test_daemon_said(&daemon_, "systemctl restart"));
	kvt_test_equal(inode_of(daemon_.socket), 0);
	close(daemon_.notify + 1);
	kvt_test_daemon_stop(&daemon_);
	kvt_test_daemon_remove(&daemon_);
}

/* The daemon stands still, so its name stays lost. */
TEST(clients_without_a_socket_are_told_of_the_daemon_that_lives)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { 0 };
	struct kvt_test_daemon second;
	struct kvt_client *client;
	char words[64];

	kvt_test_daemon_prepare(&daemon_, "socket_path =\n");
	snprintf(daemon_.socket, sizeof(daemon_.socket), "%.40s/%.48s.sock", daemon_.dir,
		 daemon_.name);
	kvt_test_daemon_start(&daemon_, NULL);
	kvt_test_freeze(daemon_.pid);
	kvt_test_equal(unlink(daemon_.socket), 0);
	snprintf(words, sizeof(words), "kill -HUP %d", (int)daemon_.pid);
	options.socket_path = daemon_.socket;
	options.connect_wait_ns = -1;
	kvt_test_equal(kvt_client_connect(&client, &options, &error), -ENOENT);
	if (!strstr(error.text, words))
		kvt_test_fail("not told: %s", error.text);
	second = daemon_;
	kvt_test_daemon_spawn(&second, NULL);
	kvt_test_equal(WEXITSTATUS(kvt_test_daemon_wait(&second)), 3);
	kvt_test_check(kvt_test_daemon_said(&daemon_, words));
	kill(daemon_.pid, SIGCONT);
	await_words("event=socket_made_again");
	kvt_test_daemon_end(&daemon_);
}
