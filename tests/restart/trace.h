/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_TRACE_H
#define KVT_TESTS_TRACE_H

/**
 * @file trace.h
 * Daemons that are stopped, and killed, at their system calls (ptrace). A place is a stop: before a
 * system call, or behind it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#include <linux/ptrace.h>

/** Trace a process that runs, and, if wanted, all that it starts. False: it cannot be traced. */
bool kvt_trace_seize(pid_t pid, bool children);
/** The same for one that asks for that itself, from its beginning, with its children. */
bool kvt_trace_begin(pid_t pid);
/** Stop one that was seized and runs. */
void kvt_trace_stop(pid_t pid);
/** Let a stopped one run untraced. */
void kvt_trace_let_go(pid_t pid);
/** Resume a stopped one until the next place. False: it has ended, as *ret_status says. */
bool kvt_trace_next(pid_t pid, struct ptrace_syscall_info *ret_info, int *ret_status);
/** Whether this is the place before that system call. */
bool kvt_trace_begins(const struct ptrace_syscall_info *info, uint64_t number);
/** Whether this is the place before one that hands `text` to the kernel: write(), send(). */
bool kvt_trace_says(pid_t pid, const struct ptrace_syscall_info *info, const char *text);
/** Read its memory. False: it has no such. */
bool kvt_trace_read(pid_t pid, uint64_t address, void *to, size_t bytes);
/** Kill one, and see that it died of that. */
void kvt_trace_kill(pid_t pid);
/** The next child that a traced process starts, stopped at its beginning. 0: it has ended. */
pid_t kvt_trace_child(pid_t parent, int *ret_status);

/** Which of `n` places are tried: all where KVT_SWEEP is "all", else `few`, by chance, from a seed
 * that is printed, or that KVT_SEED gives. */
struct kvt_sweep {
	uint32_t n, left;
	bool all;
	uint64_t state;
};
void kvt_sweep_start(struct kvt_sweep *sweep, const char *what, uint32_t n, uint32_t few);
/** False: that was all. */
bool kvt_sweep_next(struct kvt_sweep *sweep, uint32_t *ret_place);

#endif
