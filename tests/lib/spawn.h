/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_SPAWN_H
#define KVT_TESTS_SPAWN_H

/**
 * @file spawn.h
 * Start a daemon in a changed environment: `change` runs in the new process before exec, with
 * namespaces, limits and filters of the test. And sockets beside the daemon's, and what a client
 * holds.
 */

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/harness.h"

/** Returns false if this host does not allow the change. */
typedef bool kvt_test_change_fn(struct kvt_test_daemon *daemon);

#define KVT_TEST_CANNOT_CHANGE 77

/** `flag`: one more argument, or NULL. */
static inline void kvt_test_spawn_with(struct kvt_test_daemon *daemon, kvt_test_change_fn *change,
				       const char *flag)
{
	char program[640], notify[96];
	char *argv[] = { program, (char *)(uintptr_t)"--config", daemon->config,
			 (char *)(uintptr_t)flag, NULL };
	int fd;

	snprintf(program, sizeof(program), "%s/kvtrunkd", kvt_test_build());
	snprintf(notify, sizeof(notify), "%s/notify", daemon->dir);
	fflush(NULL);
	daemon->pid = fork();
	kvt_test_check(daemon->pid >= 0);
	if (daemon->pid)
		return;
	fd = open(daemon->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	dup2(fd, 1);
	dup2(fd, 2);
	setenv("NOTIFY_SOCKET", notify, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (change && !change(daemon))
		_exit(KVT_TEST_CANNOT_CHANGE);
	execv(program, argv);
	_exit(126);
}

static inline void kvt_test_spawn_changed(struct kvt_test_daemon *daemon,
					  kvt_test_change_fn *change)
{
	kvt_test_spawn_with(daemon, change, NULL);
}

/** Prepare a daemon, start it changed and wait until it is ready. Returns false if it ended before:
 * its status is *ret_status, which may be NULL if it must not. */
static inline bool kvt_test_start_changed(struct kvt_test_daemon *daemon, const char *config,
					  kvt_test_change_fn *change, int *ret_status)
{
	kvt_test_daemon_prepare(daemon, config);
	kvt_test_spawn_changed(daemon, change);
	if (kvt_test_daemon_await(daemon, "READY=1"))
		return true;
	if (!ret_status)
		kvt_test_fail("it did not start");
	*ret_status = kvt_test_daemon_wait(daemon);
	return false;
}

/** Listen at a path. */
static inline int kvt_test_listen(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	kvt_test_check(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	kvt_test_check(listen(fd, 8) == 0);
	return fd;
}

/** Listen at a daemon's path, on descriptor notify + 1, for kvt_test_pass_socket(). */
static inline void kvt_test_listen_for(const struct kvt_test_daemon *daemon)
{
	int fd = kvt_test_listen(daemon->socket);

	kvt_test_equal(dup2(fd, daemon->notify + 1), daemon->notify + 1);
	if (fd != daemon->notify + 1)
		close(fd);
}

/** In a `change`: pass this socket, as systemd does. */
static inline bool kvt_test_pass_socket(struct kvt_test_daemon *daemon)
{
	char pid[32];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "1", 1);
	return dup2(daemon->notify + 1, 3) == 3;
}

/** In a child: take ten pages of the daemon `context`, send the session, and wait for a word. */
static inline void kvt_test_hold_pages(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(context);
	uint32_t pages[10];
	uint64_t word;

	kvt_test_equal(kvt_alloc(client, 10, pages), 0);
	kvt_test_send(pipe, kvt_client_info(client)->session);
	kvt_test_receive(pipe, &word);
	_exit(0);
}

/** In a `change`: set a filter of system calls. */
static inline bool kvt_test_set_filter(struct sock_filter *filter, unsigned short n)
{
	struct sock_fprog program = { n, filter };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/** In a `change`: have one system call fail with `error`. */
static inline bool kvt_test_forbid(uint32_t call, uint32_t error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return kvt_test_set_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

#endif
