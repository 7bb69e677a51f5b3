/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_STOPPED_H
#define KVT_SHM_STOPPED_H

/** @file stopped.h: processes that a signal stopped. */

#include <stdbool.h>
#include <stdint.h>

/** True if /proc shows a process and says that it is stopped or traced. */
bool kvt_process_stopped(int32_t pid);

/** Return the process that listens at the other end of a unix socket, if it is stopped. 0: it runs,
 * or it cannot be told. */
int kvt_peer_stopped(int fd);

#endif
