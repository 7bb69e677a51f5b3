/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SETUP_MPS_GONE_H
#define KVT_DAEMON_SETUP_MPS_GONE_H

/**
 * @file mps_gone.h
 * `kvtrunkd mps-gone CONTROL PID...`: ask MPS whether it still has a client, and end its work. In a
 * process of its own, because programs and /proc are waited for (mps.h).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/setup/mps.h"

#define KVT_MPS_GONE_COMMAND "mps-gone"
#define KVT_MPS_GONE_SECONDS 3 /* no longer: SIGALRM */

/** True if an entry of the folder `proc` is a process of MPS: a server, or the control program. */
bool kvt_mps_is_program(const char *proc, const char *entry);
/** Ask the program `control`, found in PATH, for processes that have exited. `proc`: "/proc".
 * `why`: the reason of a verdict other than KVT_MPS_GONE. Waits. */
enum kvt_mps_verdict kvt_mps_gone(const char *control, const char *proc, const int32_t *pids,
				  uint32_t n_pids, char *why, size_t why_size);
/** The command, with its arguments. Returns its exit status: a verdict, or 2. */
int kvt_mps_gone_main(int argc, char **argv);

#endif
