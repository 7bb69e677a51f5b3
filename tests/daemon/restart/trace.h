/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_TRACE_H
#define KVT_TESTS_TRACE_H

/**
 * @file trace.h
 * Stop and kill daemons at their system calls (ptrace). A place is a stop: before a system call, or
 * behind it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#include <linux/ptrace.h>

/** Trace a running process and, with `children`, all that it starts. Returns false if it cannot be
 * traced. */
bool kvt_trace_seize(pid_t pid, bool children);
/** Stop a seized process that runs. */
void kvt_trace_stop(pid_t pid);
/** Let a stopped process run untraced. */
void kvt_trace_let_go(pid_t pid);
/** Resume a stopped process until the next place. Returns false if it has ended, as *ret_status
 * says. */
bool kvt_trace_next(pid_t pid, struct ptrace_syscall_info *ret_info, int *ret_status);
/** True if this is the place before one that hands `text` to the kernel: write(), send(). */
bool kvt_trace_says(pid_t pid, const struct ptrace_syscall_info *info, const char *text);
/** Skip the system call at whose place it stands, and make it return -error. It then stands behind
 * the call. Returns false if this processor does not allow that. */
bool kvt_trace_fail(pid_t pid, int error);
/** True if kvt_trace_fail() works here. */
bool kvt_trace_can_fail(void);
/** Read its memory. Returns false if the address is not mapped. */
bool kvt_trace_read(pid_t pid, uint64_t address, void *to, size_t bytes);
/** Kill a process and check that it died of that. */
void kvt_trace_kill(pid_t pid);
/** The next child that a traced process starts, stopped at its beginning. 0: the process has
 * ended. */
pid_t kvt_trace_child(pid_t parent, int *ret_status);

/** Which of `n` places to try: all if KVT_SWEEP is "all", else `few` at random. The seed is
 * printed, or taken from KVT_SEED. */
struct kvt_sweep {
	uint32_t n, left;
	bool all;
	uint64_t state;
};
void kvt_sweep_start(struct kvt_sweep *sweep, const char *what, uint32_t n, uint32_t few);
/** False: no more. */
bool kvt_sweep_next(struct kvt_sweep *sweep, uint32_t *ret_place);

#endif
