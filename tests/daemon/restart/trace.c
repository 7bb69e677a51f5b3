/* SPDX-License-Identifier: Apache-2.0 */
/* Processes stopped at their system calls (trace.h). Inputs: pids that this test may trace.
 * Invariant: each call needs the process in one state, stopped or running. Callers: test_death.c,
 * test_upgrade.c, test_restart.c. */

#include "tests/daemon/restart/trace.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/harness.h"

#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)

bool kvt_trace_seize(pid_t pid, bool children)
{
	return ptrace(PTRACE_SEIZE, pid, NULL,
		      OPTIONS | (children ? PTRACE_O_TRACEFORK : 0)) == 0;
}

void kvt_trace_stop(pid_t pid)
{
	int status;

	kvt_test_equal(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL), 0);
	kvt_test_equal(waitpid(pid, &status, __WALL), pid);
	kvt_test_check(WIFSTOPPED(status));
}

/* Returns false if it was killed after it stopped. waitpid() then tells. */
static bool ask(enum __ptrace_request request, pid_t pid, void *data)
{
	bool asked = ptrace(request, pid, NULL, data) == 0;

	if (!asked)
		kvt_test_equal(errno, ESRCH);
	return asked;
}

void kvt_trace_let_go(pid_t pid)
{
	ask(PTRACE_DETACH, pid, NULL);
}

bool kvt_trace_next(pid_t pid, struct ptrace_syscall_info *ret_info, int *ret_status)
{
	int status, signal = 0;

	do {
		ask(PTRACE_SYSCALL, pid, (void *)(intptr_t)signal);
		kvt_test_equal(waitpid(pid, &status, __WALL), pid);
		*ret_status = status;
		if (!WIFSTOPPED(status))
			return false;
		signal = status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
	} while (WSTOPSIG(status) != (SIGTRAP | 0x80));
	if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(*ret_info), ret_info) > 0)
		return true;
	kvt_test_equal(errno, ESRCH);
	return false;
}

static bool begins(const struct ptrace_syscall_info *info, uint64_t number)
{
	return info->op == PTRACE_SYSCALL_INFO_ENTRY && info->entry.nr == number;
}

#if defined(__x86_64__)

bool kvt_trace_can_fail(void)
{
	return true;
}

bool kvt_trace_fail(pid_t pid, int error)
{
	struct ptrace_syscall_info info;
	struct user_regs_struct regs;
	int status;

	if (!ask(PTRACE_GETREGS, pid, &regs))
		return true;
	regs.orig_rax = (unsigned long long)-1;
	if (!ask(PTRACE_SETREGS, pid, &regs) || !kvt_trace_next(pid, &info, &status) ||
	    !ask(PTRACE_GETREGS, pid, &regs))
		return true;
	regs.rax = (unsigned long long)-error;
	ask(PTRACE_SETREGS, pid, &regs);
	return true;
}

#else

bool kvt_trace_can_fail(void)
{
	return false;
}

bool kvt_trace_fail(pid_t pid, int error)
{
	(void)pid, (void)error;
	return false;
}

#endif

bool kvt_trace_read(pid_t pid, uint64_t address, void *to, size_t bytes)
{
	struct iovec here = { to, bytes };
	struct iovec there = { (void *)(uintptr_t)address, bytes };

	return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

bool kvt_trace_says(pid_t pid, const struct ptrace_syscall_info *info, const char *text)
{
	char said[256];
	size_t n;

	if (!begins(info, SYS_write) && !begins(info, SYS_sendto))
		return false;
	n = info->entry.args[2] < sizeof(said) ? info->entry.args[2] : sizeof(said) - 1;
	if (!kvt_trace_read(pid, info->entry.args[1], said, n))
		return false;
	said[n] = '\0';
	return strstr(said, text) != NULL;
}

void kvt_trace_kill(pid_t pid)
{
	int status;

	kvt_test_equal(kill(pid, SIGKILL), 0);
	do {
		kvt_test_equal(waitpid(pid, &status, __WALL), pid);
	} while (WIFSTOPPED(status));
	kvt_test_check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

pid_t kvt_trace_child(pid_t parent, int *ret_status)
{
	unsigned long child;
	int status;

	for (;;) {
		int signal;

		kvt_test_equal(waitpid(parent, &status, __WALL), parent);
		*ret_status = status;
		if (!WIFSTOPPED(status))
			return 0;
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8))
			break;
		signal = status >> 16 || WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		kvt_test_equal(ptrace(PTRACE_CONT, parent, NULL, signal), 0);
	}
	kvt_test_equal(ptrace(PTRACE_GETEVENTMSG, parent, NULL, &child), 0);
	kvt_test_equal(ptrace(PTRACE_CONT, parent, NULL, NULL), 0);
	kvt_test_equal(waitpid((pid_t)child, &status, __WALL), (pid_t)child);
	kvt_test_check(WIFSTOPPED(status));
	return (pid_t)child;
}

void kvt_sweep_start(struct kvt_sweep *sweep, const char *what, uint32_t n, uint32_t few)
{
	const char *how = getenv("KVT_SWEEP"), *seed = getenv("KVT_SEED");

	kvt_test_check(n > 0);
	*sweep = (struct kvt_sweep){ .n = n, .all = how && strcmp(how, "all") == 0 };
	sweep->left = sweep->all || few > n ? n : few;
	sweep->state = seed ? strtoull(seed, NULL, 0) : (uint64_t)getpid();
	if (sweep->all)
		printf("%s: each of %u places\n", what, n);
	else
		printf("%s: %u of %u places, KVT_SEED=%llu\n", what, sweep->left, n,
		       (unsigned long long)sweep->state);
	fflush(stdout);
}

bool kvt_sweep_next(struct kvt_sweep *sweep, uint32_t *ret_place)
{
	struct kvt_test_random random = { sweep->state };

	if (sweep->left == 0)
		return false;
	sweep->left--;
	*ret_place = sweep->all ? sweep->left : kvt_test_random_below(&random, sweep->n);
	sweep->state = random.state;
	return true;
}
