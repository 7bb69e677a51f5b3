/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_MPS_GONE_H
#define KVT_DAEMON_SETUP_MPS_GONE_H

/**
 * @file mps_gone.h
 * `kvtrunkd mps-gone CONTROL PID...`: ask MPS whether it still has a client, and end its work. In a
 * process of its own, because programs and /proc are waited for (mps.h).
 */

#include <stddef.h>
#include <stdint.h>

#include "daemon/setup/mps.h"

#define KVT_MPS_GONE_COMMAND "mps-gone"
#define KVT_MPS_GONE_SECONDS 3 /* no longer: SIGALRM */
#define KVT_MPS_COMM "nvidia-cuda-mps" /* as the kernel cuts the names of MPS's programs */

/** Read a file of a process, of its folder in `proc`. Returns the length, at most size - 1, and
 * ends it with '\0'; negative: it cannot be read. */
ssize_t kvt_mps_read(const char *proc, const char *pid, const char *name, char *text, size_t size);
/** Ask the program `control`, found in PATH, for processes that have exited. `proc`: "/proc".
 * `why`: the reason of a verdict other than KVT_MPS_GONE. Waits. */
enum kvt_mps_verdict kvt_mps_gone(const char *control, const char *proc, const int32_t *pids,
				  uint32_t n_pids, char *why, size_t why_size);
/** The command, with its arguments. Returns its exit status: a verdict, or 2. */
int kvt_mps_gone_main(int argc, char **argv);

#endif
