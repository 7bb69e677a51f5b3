/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_SPAWN_H
#define KVT_TESTS_SPAWN_H

/**
 * @file spawn.h
 * Start a daemon in a changed environment: `change` runs in the new process before exec, with
 * namespaces, limits and filters of the test.
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
